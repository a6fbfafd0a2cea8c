/* Full verification of a step folder. With a manifest: every extent of every file, and no file may be missing from the
 * manifest. Without one: the CRC-32 of every archive that .metadata names; torch writes no other checksums. */
#include "common/ckpt/blob.h"
#include "common/ckpt/ckpt_priv.h"
#include "common/ckpt/file_reader.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct progress {
    void (*fn)(int64_t, int64_t, void *);
    void *arg;
    int64_t done, total;
};

static void advance(struct progress *p, uint64_t bytes)
{
    p->done += (int64_t)bytes;
    if (p->fn)
        p->fn(p->done, p->total, p->arg);
}

/* ---- with a manifest ---- */

static err_t file_verify(const struct ckpt *c, const struct manifest_file *f, struct progress *p, struct why *why)
{
    const struct ckpt_file file = {f->name, f->size, f};
    struct extent_reader r;
    const struct file_range whole = {&file, 0, f->size};
    extent_reader_init(&r, c->dir, c->claims);
    err_t err = extent_reader_expect(&r, &whole, 1);
    if (!err)
        err = extent_reader_open(&r, &file, why);
    for (uint64_t at = 0; at < f->size && !err; at = r.at + r.len) {
        err = extent_reader_load(&r, at, f->size, why);
        if (!err)
            advance(p, r.len);
    }
    extent_reader_fini(&r);
    return err;
}

static err_t strangers_check(const struct ckpt *c, struct why *why)
{
    DIR *d = opendir(c->dir);
    if (!d)
        return why_set(why, err_from_errno(errno), "%s: %s", c->dir, strerror(errno));
    err_t err = OK;
    for (struct dirent *e; !err && (e = readdir(d));)
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0 && strcmp(e->d_name, CKPT_MANIFEST) != 0 &&
            !manifest_find(&c->manifest, e->d_name))
            err = why_set(why, ERR_CORRUPT, "%s/%s is not covered by " CKPT_MANIFEST "; move it elsewhere", c->dir,
                          e->d_name);
    closedir(d);
    return err;
}

static err_t manifest_verify(const struct ckpt *c, struct progress *p, struct why *why)
{
    for (int i = 0; i < c->manifest.n_files; i++)
        p->total += (int64_t)c->manifest.files[i].size;
    err_t err = strangers_check(c, why);
    for (int i = 0; i < c->manifest.n_files && !err; i++)
        err = file_verify(c, &c->manifest.files[i], p, why);
    return err;
}

/* ---- without ---- */

/* Reading a complete chunk checks its CRC-32; the data is discarded. */
static err_t chunk_verify(struct ckpt *c, const struct ckpt_tensor *t, const struct ckpt_chunk *k, struct why *why)
{
    if (t->dtype == DT_NONE)
        return OK; /* elements of an unknown type */
    void *data = malloc((size_t)box_elements(&k->box) * dtype_bytes(t->dtype) + 1);
    if (!data)
        return why_set(why, ERR_NOMEM, "out of memory for a chunk of %.200s", t->fqn);
    const struct ckpt_want want = {t->fqn, k->box, t->dtype, data};
    err_t err = ckpt_read(c, &want, 1, NULL, why);
    free(data);
    return err;
}

static err_t archives_verify(struct ckpt *c, struct progress *p, struct why *why)
{
    const struct meta *m = &c->meta;
    err_t err = OK;
    for (int i = 0; i < c->n_files; i++)
        p->total += (int64_t)c->files[i].size;
    for (int i = 0; i < m->n_tensors; i++)
        for (int j = 0; j < m->tensors[i].n_chunks && !err; j++) {
            err = chunk_verify(c, &m->tensors[i], &m->tensors[i].chunks[j], why);
            advance(p, (uint64_t)m->tensors[i].chunks[j].length);
        }
    for (int i = 0; i < m->n_leaves && !err; i++) {
        struct ckpt_scalar s;
        err = ckpt_scalar(c, m->leaves[i].fqn, &s, why);
        advance(p, (uint64_t)m->leaves[i].length);
    }
    return err;
}

err_t ckpt_verify(const char *dir, void (*progress)(int64_t, int64_t, void *), void *arg, struct why *why)
{
    struct progress p = {.fn = progress, .arg = arg};
    struct ckpt *c;
    err_t err = ckpt_open(dir, &c, why);
    if (err)
        return err;
    err = c->has_manifest ? manifest_verify(c, &p, why) : archives_verify(c, &p, why);
    ckpt_close(c);
    return err;
}
