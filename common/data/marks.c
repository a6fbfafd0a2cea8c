/* Ends are 8 bytes per document, a few thousandths of the tokens' size, and can be searched without being read.
 * Weights are one bit per token; a source gives them for all of its documents or for none, so the first document with
 * weights usually begins the file, and the ones for those before it cost nothing. */
#include "common/data/marks.h"

#include "common/base/file.h"
#include "common/data/cache.h"
#include "common/data/index.h"
#include "common/data/shard.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <unistd.h>

#define FLUSH ((size_t)1 << 20)

static err_t fail(const struct marks_writer *w, const char *name, err_t err, struct why *why)
{
    return why_set(why, err, "writing %s/%s: %s", w->dir, name, err_text(err));
}

static err_t flush(struct mark_file *f)
{
    err_t err = f->out.len ? sha_add(&f->sha, f->out.data, f->out.len) : OK;
    if (!err)
        err = file_write_all(f->fd, f->out.data, f->out.len);
    f->out.len = 0;
    return err;
}

static err_t put(struct mark_file *f, const void *data, size_t len)
{
    err_t err = f->out.len >= FLUSH ? flush(f) : OK;
    return err ? err : buf_append(&f->out, data, len);
}

static err_t create(const struct marks_writer *w, const char *name, struct mark_file *f, struct why *why)
{
    char path[PATH_MAX];
    err_t err = cache_join(w->dir, name, path, sizeof(path), why);
    if (err)
        return err;
    f->fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (f->fd < 0)
        return why_set(why, err_from_errno(errno), "%s: %s", path, strerror(errno));
    err = sha_init(&f->sha);
    return err ? fail(w, name, err, why) : OK;
}

static err_t finish(const struct marks_writer *w, const char *name, struct mark_file *f, char ret[65], struct why *why)
{
    err_t err = flush(f);
    if (!err)
        err = sha_hex(&f->sha, ret);
    if (!err && fsync(f->fd))
        err = err_from_errno(errno);
    if (close(f->fd) && !err)
        err = err_from_errno(errno);
    f->fd = -1;
    return err ? fail(w, name, err, why) : OK;
}

void marks_writer_init(struct marks_writer *w, const char *dir)
{
    *w = (struct marks_writer){.dir = dir, .ends.fd = -1, .weights.fd = -1};
}

void marks_writer_fini(struct marks_writer *w)
{
    struct mark_file *files[] = {&w->ends, &w->weights};
    for (int i = 0; i < 2; i++) {
        if (files[i]->fd >= 0)
            close(files[i]->fd);
        sha_fini(&files[i]->sha);
        buf_fini(&files[i]->out);
    }
}

/* ---- continuing ---- */

err_t marks_writer_continue(struct marks_writer *w, int64_t documents, int64_t tokens, bool weighted, uint8_t bits,
                            struct why *why)
{
    w->documents = documents;
    w->tokens = tokens;
    w->weighted = weighted;
    w->bits = bits;
    err_t err = OK;
    if (documents)
        err = shard_file_continue(w->dir, INDEX_DOCUMENTS, documents * 8, &w->ends.sha, &w->ends.fd, why);
    if (!err && weighted)
        err = shard_file_continue(w->dir, INDEX_WEIGHTS, tokens / 8, &w->weights.sha, &w->weights.fd, why);
    return err;
}

static err_t sync_file(const struct marks_writer *w, const char *name, struct mark_file *f, struct why *why)
{
    if (f->fd < 0)
        return OK;
    err_t err = flush(f);
    if (!err && fdatasync(f->fd))
        err = err_from_errno(errno);
    return err ? fail(w, name, err, why) : OK;
}

err_t marks_writer_sync(struct marks_writer *w, struct why *why)
{
    err_t err = sync_file(w, INDEX_DOCUMENTS, &w->ends, why);
    return err ? err : sync_file(w, INDEX_WEIGHTS, &w->weights, why);
}

/* ---- weights ---- */

static err_t put_bit(struct marks_writer *w, int64_t at, unsigned bit)
{
    w->bits = (uint8_t)((at % 8 ? w->bits : 0) | bit << at % 8);
    return at % 8 == 7 ? put(&w->weights, &w->bits, 1) : OK;
}

/* The bits of tokens before the first document with weights. */
static err_t begin_weights(struct marks_writer *w, struct why *why)
{
    static const uint8_t ones[4096] = {[0 ... 4095] = 0xff};
    err_t err = create(w, INDEX_WEIGHTS, &w->weights, why);
    if (err)
        return err;
    for (int64_t left = w->tokens / 8; !err && left;) {
        int64_t n = left < (int64_t)sizeof(ones) ? left : (int64_t)sizeof(ones);
        err = put(&w->weights, ones, (size_t)n);
        left -= n;
    }
    w->bits = (uint8_t)((1u << w->tokens % 8) - 1);
    w->weighted = true;
    return err ? fail(w, INDEX_WEIGHTS, err, why) : OK;
}

static err_t put_weights(struct marks_writer *w, int64_t n, const uint8_t *weights, struct why *why)
{
    err_t err = weights && !w->weighted ? begin_weights(w, why) : OK;
    if (err || !w->weighted)
        return err;
    for (int64_t i = 0; !err && i < n; i++)
        err = put_bit(w, w->tokens + i, weights ? weights[i] : 1);
    return err ? fail(w, INDEX_WEIGHTS, err, why) : OK;
}

/* ---- documents ---- */

err_t marks_writer_put(struct marks_writer *w, int64_t n, const uint8_t *weights, struct why *why)
{
    err_t err = w->ends.fd < 0 ? create(w, INDEX_DOCUMENTS, &w->ends, why) : OK;
    err = err ? err : put_weights(w, n, weights, why);
    if (err)
        return err;
    uint64_t end = htole64((uint64_t)(w->tokens += n));
    w->documents++;
    err = put(&w->ends, &end, sizeof(end));
    return err ? fail(w, INDEX_DOCUMENTS, err, why) : OK;
}

err_t marks_writer_finish(struct marks_writer *w, char ret_documents[65], char ret_weights[65], struct why *why)
{
    ret_documents[0] = ret_weights[0] = '\0';
    err_t err = w->ends.fd < 0 ? OK : finish(w, INDEX_DOCUMENTS, &w->ends, ret_documents, why);
    if (err || !w->weighted)
        return err;
    if (w->tokens % 8 && (err = put(&w->weights, &w->bits, 1)))
        return fail(w, INDEX_WEIGHTS, err, why);
    return finish(w, INDEX_WEIGHTS, &w->weights, ret_weights, why);
}
