/* The commit is one rename. Before it, all files are durable, covered by the manifest, and in a folder whose name no
 * reader opens; after it, the step folder is complete. A crash between any two calls leaves either the partial folder
 * or the committed step. A second attempt may start over, because it rewrites only files of the partial folder. */
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/ckpt/manifest.h"
#include "common/ckpt/metadata.h"
#include "common/ckpt/part.h"
#include "common/ckpt/shared.h"
#include "common/ckpt/sums.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- the parts' entries are merged into one table ---- */

struct ref {
    const struct part_entry *e;
    const char *file;
};

static int ref_compare(const void *x, const void *y)
{
    const struct ref *a = x, *b = y;
    int c = strcmp(a->e->fqn, b->e->fqn);
    for (int d = 0; !c && d < a->e->box.ndim && d < b->e->box.ndim; d++)
        c = a->e->box.offset[d] < b->e->box.offset[d] ? -1 : a->e->box.offset[d] > b->e->box.offset[d];
    return c ? c : strcmp(a->file, b->file);
}

static struct ref *refs_collect(struct ckpt_part *const *parts, int n_parts, int *ret_n)
{
    size_t n = 0, k = 0;
    for (int i = 0; i < n_parts; i++)
        n += (size_t)parts[i]->n_entries;
    struct ref *refs = calloc(n + 1, sizeof(*refs));
    for (int i = 0; refs && i < n_parts; i++)
        for (int j = 0; j < parts[i]->n_entries; j++)
            refs[k++] = (struct ref){&parts[i]->entries[j], parts[i]->file};
    if (refs)
        qsort(refs, n, sizeof(*refs), ref_compare);
    *ret_n = (int)n;
    return refs;
}

static bool same_tensor(const struct part_entry *a, const struct part_entry *b)
{
    return a->dtype == b->dtype && a->box.ndim == b->box.ndim &&
           memcmp(a->shape, b->shape, (size_t)a->box.ndim * sizeof(a->shape[0])) == 0;
}

/* Adds refs[0..n), which have the same name. For a tensor without elements several ranks may have the one empty box; it
 * is stored once. */
static err_t group_add(struct meta *m, const struct ref *refs, int n, struct why *why)
{
    const struct part_entry *first = refs[0].e;
    if (first->dtype == DT_NONE) {
        if (n > 1)
            return why_set(why, ERR_INVALID, "%.200s is both in %s and in %s", first->fqn, refs[0].file, refs[1].file);
        m->leaves[m->n_leaves++] = (struct meta_leaf){first->fqn, refs[0].file, first->offset, first->length};
        return OK;
    }
    struct ckpt_tensor *t = &m->tensors[m->n_tensors++];
    struct ckpt_chunk *next = m->n_tensors > 1 ? t[-1].chunks + t[-1].n_chunks : m->chunks;
    *t = (struct ckpt_tensor){.fqn = first->fqn, .dtype = first->dtype, .ndim = first->box.ndim, .chunks = next};
    memcpy(t->shape, first->shape, sizeof(t->shape));
    for (int i = 0; i < n; i++) {
        const struct part_entry *e = refs[i].e;
        if (!same_tensor(first, e))
            return why_set(why, ERR_INVALID, "%.200s has another shape or type in %s than in %s", first->fqn,
                           refs[i].file, refs[0].file);
        if (t->n_chunks && !box_elements(&e->box))
            continue;
        t->chunks[t->n_chunks++] = (struct ckpt_chunk){e->box, refs[i].file, e->offset, e->length};
    }
    return cover_check(t, true, why);
}

static err_t meta_build(const struct ref *refs, int n, struct meta *m, struct why *why)
{
    m->tensors = calloc((size_t)n + 1, sizeof(*m->tensors));
    m->leaves = calloc((size_t)n + 1, sizeof(*m->leaves));
    m->chunks = calloc((size_t)n + 1, sizeof(*m->chunks));
    if (!m->tensors || !m->leaves || !m->chunks)
        return why_set(why, ERR_NOMEM, "out of memory for %d boxes", n);
    for (int i = 0, j; i < n; i = j) {
        for (j = i + 1; j < n && strcmp(refs[i].e->fqn, refs[j].e->fqn) == 0;)
            j++;
        err_t err = group_add(m, refs + i, j - i, why);
        if (err)
            return err;
    }
    return OK;
}

/* ---- files ---- */

static err_t crcs_of(const void *data, size_t len, uint32_t **ret, uint32_t *ret_n)
{
    struct sums_extents s = {0};
    err_t err = sums_extents_add(&s, data, len);
    if (!err)
        err = sums_extents_end(&s);
    uint32_t *crcs = err ? NULL : malloc(s.crcs.len + 1);
    if (crcs) {
        if (s.crcs.len)
            memcpy(crcs, s.crcs.data, s.crcs.len);
        *ret = crcs;
        *ret_n = (uint32_t)(s.crcs.len / sizeof(*crcs));
    }
    sums_extents_fini(&s);
    return err ? err : crcs ? OK : ERR_NOMEM;
}

static err_t file_put(const char *dir, const char *name, const void *data, size_t len, struct why *why)
{
    char path[PATH_MAX];
    if ((size_t)snprintf(path, sizeof(path), "%s/%s", dir, name) >= sizeof(path))
        return why_set(why, ERR_LIMIT, "the path %.200s is too long", dir);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0 && errno == ELOOP)
        return why_set(why, ERR_DENIED, "%s is a link; dtd does not write through links", path);
    if (fd < 0)
        return why_set(why, err_from_errno(errno), "%s: %s", path, strerror(errno));
    err_t err = file_write_all(fd, data, len);
    if (!err && fsync(fd))
        err = err_from_errno(errno);
    if (close(fd) && !err)
        err = err_from_errno(errno);
    if (err == ERR_LIMIT)
        err = ERR_NOSPACE; /* EFBIG, as in part.c */
    if (err == ERR_NOSPACE)
        return ckpt_no_space(path, (int64_t)len, why);
    return err ? why_set(why, err, "%s: %s", path, err_text(err)) : OK;
}

/* Writes a small file and adds it to the manifest; data NULL: none. */
static err_t small_put(const char *dir, const char *name, const void *data, size_t len, struct manifest *m,
                       struct why *why)
{
    uint32_t *crcs, n;
    if (!data)
        return OK;
    err_t err = file_put(dir, name, data, len, why);
    if (!err)
        err = crcs_of(data, len, &crcs, &n);
    return err ? err : manifest_add(m, name, len, crcs, n);
}

static err_t part_put(const char *dir, const struct ckpt_part *part, struct manifest *m, struct why *why)
{
    char path[PATH_MAX];
    struct stat st;
    if ((size_t)snprintf(path, sizeof(path), "%s/%s", dir, part->file) >= sizeof(path))
        return why_set(why, ERR_LIMIT, "the path %.200s is too long", dir);
    if (stat(path, &st))
        return why_set(why, err_from_errno(errno), "%s: %s", path, strerror(errno));
    if ((uint64_t)st.st_size != part->size)
        return why_set(why, ERR_CORRUPT, "%s has %lld bytes, but %llu in its index", path, (long long)st.st_size,
                       (unsigned long long)part->size);
    uint32_t *crcs = malloc(((size_t)part->n_crcs + 1) * sizeof(*crcs));
    if (!crcs)
        return ERR_NOMEM;
    if (part->n_crcs)
        memcpy(crcs, part->crcs, part->n_crcs * sizeof(*crcs));
    return manifest_add(m, part->file, part->size, crcs, part->n_crcs);
}

/* Removes files that an earlier attempt left, because the manifest does not cover them. */
static err_t strangers_remove(const char *dir, const struct manifest *m)
{
    DIR *d = opendir(dir);
    if (!d)
        return err_from_errno(errno);
    err_t err = OK;
    for (struct dirent *e; !err && (e = readdir(d));) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0 || manifest_find(m, e->d_name))
            continue;
        if (unlinkat(dirfd(d), e->d_name, 0) && errno != ENOENT)
            err = err_from_errno(errno);
    }
    closedir(d);
    return err;
}

static err_t manifest_put(const char *dir, struct manifest *m, struct why *why)
{
    struct buf b = {0};
    manifest_sort(m);
    err_t err = strangers_remove(dir, m);
    if (!err)
        err = manifest_write(m, &b);
    if (!err)
        err = file_put(dir, CKPT_MANIFEST, b.data, b.len, why);
    buf_fini(&b);
    return err;
}

/* A checkpoint is its job's if it is not older than the job, so this node's clock, which may be slow, must not make it
 * older. */
static int64_t date_of(const struct ckpt_commit *c)
{
    const int64_t now = clock_wall_ms(), least = c->me ? c->me->submitted_ms : 0;
    return now > least ? now : least;
}

static err_t files_put(const struct ckpt_commit *c, const char *dir, const struct meta *meta,
                       struct ckpt_part *const *parts, int n_parts, struct why *why)
{
    struct manifest m = {.step = c->step, .epoch = c->epoch, .loss = c->loss, .committed_ms = date_of(c)};
    struct buf b = {0};
    err_t err = OK;
    for (int i = 0; i < n_parts && !err; i++)
        err = part_put(dir, parts[i], &m, why);
    if (!err)
        err = small_put(dir, CKPT_JOB_FILE, c->job_yaml, c->job_yaml ? strlen(c->job_yaml) : 0, &m, why);
    if (!err)
        err = small_put(dir, CKPT_VOCAB_FILE, c->vocab, c->vocab_bytes, &m, why);
    if (!err)
        err = small_put(dir, CKPT_HF_FILE, c->hf, c->hf_bytes, &m, why);
    if (!err)
        err = metadata_write(meta, &b);
    if (!err)
        err = small_put(dir, METADATA_FILE, b.data, b.len, &m, why);
    if (!err)
        err = manifest_put(dir, &m, why);
    buf_fini(&b);
    manifest_fini(&m);
    return err;
}

/* ---- the commit ---- */

/* The folder that this process wrote was moved away, and another process created a folder under its old name. `final`
 * is that folder now; rename it to trash. */
static err_t stranger_mark(const char *root, const char *final, struct why *why)
{
    char trash[PATH_MAX];
    if ((size_t)snprintf(trash, sizeof(trash), "%s/.trash-%s", root, strrchr(final, '/') + 1) < sizeof(trash))
        (void)!rename(final,
                      trash); /* if this fails, the folder is no valid checkpoint, and the next epoch moves it aside */
    return why_set(why, ERR_STALE, "another epoch has taken %s over", root);
}

/* `fd` keeps the folder open, so no other folder can get its inode number. */
static err_t publish(const struct ckpt_commit *c, const char *dir, int fd, const char *final, struct why *why)
{
    struct stat mine, there;
    if (fsync(fd) || fstat(fd, &mine))
        return why_set(why, err_from_errno(errno), "%s: %s", dir, strerror(errno));
    err_t err =
        c->me ? ckpt_held(c->root, c->me, why) : OK; /* the head of shared.c explains what this check prevents */
    if (err)
        return err;
    if (rename(dir, final))
        return why_set(why, err_from_errno(errno), "cannot rename %s to %s: %s", dir, final, strerror(errno));
    if (stat(final, &there) == 0 && (there.st_ino != mine.st_ino || there.st_dev != mine.st_dev))
        return stranger_mark(c->root, final, why);
    err = file_sync_dir(c->root);
    return err ? why_set(why, err, "%s: %s", c->root, err_text(err)) : OK;
}

static err_t commit_in(const struct ckpt_commit *c, const char *dir, const char *final, const struct meta *meta,
                       struct ckpt_part *const *parts, int n_parts, struct why *why)
{
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return why_set(why, err_from_errno(errno), "%s: %s", dir, strerror(errno));
    err_t err = files_put(c, dir, meta, parts, n_parts, why);
    if (!err)
        err = publish(c, dir, fd, final, why);
    close(fd);
    return err;
}

err_t ckpt_commit(const struct ckpt_commit *c, struct ckpt_part *const *parts, int n_parts, struct why *why)
{
    char dir[PATH_MAX], final[PATH_MAX];
    struct stat st;
    struct why local;
    why = why ? why : &local;
    if ((c->me ? ckpt_partial_dir_of(c->root, c->step, c->me, dir, sizeof(dir))
               : ckpt_partial_dir(c->root, c->step, c->epoch, dir, sizeof(dir))) ||
        ckpt_step_dir(c->root, c->step, final, sizeof(final)))
        return why_set(why, ERR_LIMIT, "the path %.200s is too long", c->root);
    if (stat(final, &st) == 0 && rmdir(final))
        return why_set(why, ERR_EXISTS, "%s exists already and is not replaced", final);
    int n;
    struct ref *refs = refs_collect(parts, n_parts, &n);
    if (!refs)
        return why_set(why, ERR_NOMEM, "out of memory for a commit");
    struct meta meta = {0};
    why->text[0] = '\0';
    err_t err = meta_build(refs, n, &meta, why);
    if (!err)
        err = commit_in(c, dir, final, &meta, parts, n_parts, why);
    if (err && !why->text[0])
        why_set(why, err, "%s: %s", final, err_text(err));
    free(meta.tensors);
    free(meta.leaves);
    free(meta.chunks);
    free(refs);
    return err;
}
