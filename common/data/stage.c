/* The copy is mapped over the addresses at which the set has mapped its files, so views of the set need no change.
 *
 * Files are read by read(2) and not through the mapping: read-ahead of mappings is small on network file systems, and a
 * file that becomes shorter would end the process by SIGBUS. */
#include "common/data/stage.h"

#include "common/base/file.h"
#include "common/data/place.h"
#include "common/data/set.h"
#include "common/data/sha.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CHUNK ((size_t)8 << 20)  /* the blocks of Lustre and GPFS have 4 to 16 MiB */
#define ALIGN ((size_t)64 << 10) /* the largest page size of Linux on 64-bit ARM */

static int64_t aligned(size_t bytes)
{
    return (int64_t)((bytes + ALIGN - 1) / ALIGN * ALIGN);
}

int64_t stage_bytes(const struct data_set *d)
{
    int64_t sum = 0;
    for (int i = 0; i < set_files(d); i++) {
        struct set_file f;
        if (!set_file(d, i, &f, NULL))
            sum += aligned(f.bytes);
    }
    return sum;
}

/* ---- copying ---- */

struct copying {
    int fd;
    int64_t at; /* end of what has been copied */
    uint8_t *chunk;
    const atomic_bool *cancel;
    bool target; /* the error is one of the copy */
    struct why *why;
};

static err_t changed(struct copying *c, const struct set_file *f)
{
    return f->place ? why_set(c->why, ERR_CORRUPT,
                              "%s: the file has changed since it was prepared, and the set reads its tokens from it; "
                              "prepare the data again",
                              f->path)
                    : why_set(c->why, ERR_CORRUPT,
                              "%s: it does not match its hash; remove the folder and prepare the data again", f->path);
}

static err_t write_chunk(struct copying *c, size_t n)
{
    err_t err = file_pwrite_all(c->fd, c->chunk, n, c->at);
    c->target = err != OK;
    c->at += (int64_t)n;
    return err ? why_set(c->why, err, "%s", err_text(err)) : OK;
}

/* Reads f->bytes, and on to the end to notice that the file has grown. sha NULL: no hash is asked for. */
static err_t copy_bytes(struct copying *c, const struct set_file *f, int from, struct sha *sha)
{
    size_t done = 0;
    for (;;) {
        if (atomic_load(c->cancel))
            return why_set(c->why, ERR_CANCELED, "%s", err_text(ERR_CANCELED));
        ssize_t n = read(from, c->chunk, CHUNK);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return why_set(c->why, err_from_errno(errno), "%s: %s", f->path, strerror(errno));
        if ((size_t)n > f->bytes - done || (n == 0 && done < f->bytes))
            return changed(c, f);
        if (n == 0)
            return OK;
        err_t err = sha ? sha_add(sha, c->chunk, (size_t)n) : OK;
        err = err ? why_set(c->why, err, "%s", err_text(err)) : write_chunk(c, (size_t)n);
        if (err)
            return err;
        done += (size_t)n;
    }
}

/* The fingerprint is of a few blocks, which are read from the copy. */
static err_t place_hash(struct copying *c, const struct set_file *f, int64_t start, char ret[65])
{
    void *copy = mmap(NULL, f->bytes, PROT_READ, MAP_SHARED, c->fd, start);
    if (copy == MAP_FAILED) {
        c->target = true;
        return why_set(c->why, err_from_errno(errno), "%s", strerror(errno));
    }
    err_t err = place_fingerprint(copy, f->bytes, ret);
    munmap(copy, f->bytes);
    return err ? why_set(c->why, err, "%s", err_text(err)) : OK;
}

static bool place_is_same(const struct index_place *p, int fd)
{
    struct stat st;
    return !fstat(fd, &st) && st.st_size == p->bytes && place_mtime_ns(&st) == p->mtime_ns;
}

static err_t copy_place(struct copying *c, const struct set_file *f, int from, char ret[65])
{
    const int64_t start = c->at;
    err_t err = copy_bytes(c, f, from, NULL);
    if (!err && !place_is_same(f->place, from))
        err = changed(c, f);
    return err ? err : place_hash(c, f, start, ret);
}

static err_t copy_own(struct copying *c, const struct set_file *f, int from, char ret[65])
{
    struct sha sha;
    err_t err = sha_init(&sha);
    if (err)
        return why_set(c->why, err, "%s", err_text(err));
    err = copy_bytes(c, f, from, &sha);
    if (!err && (err = sha_hex(&sha, ret)))
        why_set(c->why, err, "%s", err_text(err));
    sha_fini(&sha);
    return err;
}

static err_t copy_file(struct copying *c, const struct set_file *f)
{
    char found[65];
    const int64_t start = c->at;
    int from = file_open_plain(f->path);
    if (from < 0)
        return why_set(c->why, err_from_errno(errno), "%s: %s", f->path, strerror(errno));
    posix_fadvise(from, 0, 0, POSIX_FADV_SEQUENTIAL);
    err_t err = f->place ? copy_place(c, f, from, found) : copy_own(c, f, from, found);
    close(from);
    if (!err && strcmp(found, f->sha256) != 0)
        err = changed(c, f);
    c->at = start + aligned(f->bytes);
    return err;
}

err_t stage_copy(const struct data_set *d, int fd, int64_t at, const atomic_bool *cancel, bool *ret_target,
                 struct why *why)
{
    struct copying c = {.fd = fd, .at = at, .chunk = malloc(CHUNK), .cancel = cancel, .why = why};
    err_t err = c.chunk ? OK : why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    for (int i = 0; !err && i < set_files(d); i++) {
        struct set_file f;
        err = set_file(d, i, &f, why);
        err = err ? err : copy_file(&c, &f);
    }
    if (!err && ftruncate(fd, c.at)) {
        c.target = true;
        err = why_set(why, err_from_errno(errno), "%s", strerror(errno));
    }
    free(c.chunk);
    *ret_target = c.target;
    return err;
}

/* ---- using the copy ---- */

err_t stage_use(struct data_set *d, int fd, int64_t at, struct why *why)
{
    struct stat st;
    if (fstat(fd, &st) || !S_ISREG(st.st_mode) || at < 0 || at % (int64_t)ALIGN || st.st_size - at < stage_bytes(d))
        return why_set(why, ERR_INVALID, "the staged copy is too short for this set");
    err_t err = OK;
    for (int i = 0; !err && i < set_files(d); i++) {
        struct set_file f;
        err = set_file(d, i, &f, why);
        if (!err && mmap((void *)(uintptr_t)f.data, f.bytes, PROT_READ, MAP_SHARED | MAP_FIXED, fd, at) == MAP_FAILED)
            err = why_set(why, err_from_errno(errno), "the staged copy of %s: %s", f.path, strerror(errno));
        at += err ? 0 : aligned(f.bytes);
    }
    return err;
}
