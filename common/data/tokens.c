/* A set of token files has no tokens of its own: its shards are the files' places. Nothing is copied but the ends of
 * documents and the masks, and nothing is read as a whole unless a token marks the ends.
 *
 * The ids are not all compared with the vocabulary, because that would read everything; those of the fingerprint's
 * blocks are. They find a file of another tokenizer, and an id that they miss is refused when it is read. */
#include "common/data/marks.h"
#include "common/data/place.h"
#include "common/data/preparation.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK ((int64_t)1 << 16) /* tokens that are looked at together */
#define SAMPLES 256              /* blocks of a large file that are compared with the vocabulary */

/* ---- opening ---- */

static err_t check_block(struct preparation *x, const struct token_file *f, int64_t at, int64_t n, int32_t *ids)
{
    const struct token_type_row *type = &token_types[f->type];
    int64_t vocab = tokenizer_vocab(x->tokenizer);
    uint64_t any = type->widen(f->ids.data + f->offset + (size_t)at * (size_t)type->bytes, n, ids);
    if (!token_ids_illegal(ids, n, any, vocab))
        return OK;
    int64_t i = 0;
    while (i + 1 < n && ids[i] >= 0 && ids[i] < vocab)
        i++;
    return why_set(x->why, ERR_INVALID,
                   "%s: token %" PRId64 " has the id %d, but the tokenizer has %" PRId64
                   " tokens. Set data.tokenizer and data.tokenizer_files to the tokenizer that made the ids",
                   f->ids.path, at + i, ids[i], vocab);
}

static err_t check_ids(struct preparation *x, const struct token_file *f)
{
    int64_t blocks = (f->tokens + BLOCK - 1) / BLOCK, step = blocks / SAMPLES + 1;
    int32_t *ids = malloc((size_t)BLOCK * sizeof(*ids));
    err_t err = ids ? OK : preparation_fail(x, ERR_NOMEM);
    for (int64_t at = 0; !err && at < f->tokens; at += BLOCK * step)
        err = check_block(x, f, at, f->tokens - at < BLOCK ? f->tokens - at : BLOCK, ids);
    free(ids);
    return err;
}

static err_t hash_beside(struct preparation *x, const struct file_map *m, char ret[65])
{
    err_t err = m->path ? sha_of(m->data, m->len, ret) : OK;
    return err ? preparation_fail(x, err) : OK;
}

static err_t check_ends(struct preparation *x, const struct token_file *f)
{
    if (!f->n_ends || (!x->ends.before.len && !x->ends.after.len))
        return OK;
    return why_set(x->why, ERR_INVALID,
                   "%s: %s has the ends of its documents, and its ids are taken as they are: leave out data.bos and "
                   "data.eos",
                   f->ids.path, f->index.path);
}

err_t tokens_open(struct preparation *x)
{
    err_t err = OK;
    if (x->p->tokenizer == TOKENIZER_WORDS && !x->tokenizer)
        return why_set(x->why, ERR_INVALID, "%s has token ids, of which the tokenizer words cannot count a vocabulary",
                       x->sources[0].input.path);
    if (!x->tokenizer && (err = tokenizer_bytes_new(&x->tokenizer)))
        return preparation_fail(x, err);
    for (int i = 0; !err && i < x->n_sources; i++) {
        struct source *s = &x->sources[i];
        struct token_file *f = &s->tokens;
        err = token_file_open(s->input.format->tokens, s->input.path, f, x->why);
        err = err ? err : check_ends(x, f);
        err = err ? err : check_ids(x, f);
        if (!err && (err = place_fingerprint(f->ids.data, f->ids.len, s->sha256)))
            preparation_fail(x, err);
        err = err ? err : hash_beside(x, &f->index, s->index_sha256);
        err = err ? err : hash_beside(x, &f->losses, s->losses_sha256);
        preparation_report(x, s->input.bytes);
    }
    return err;
}

/* ---- writing ---- */

static err_t put_document(struct marks_writer *marks, const struct token_file *f, int64_t begin, int64_t end,
                          struct index_source *source, struct why *why)
{
    if (end == begin)
        return OK;
    source->documents++;
    return marks_writer_put(marks, end - begin, f->losses.path ? f->losses.data + begin : NULL, why);
}

static err_t put_indexed(struct preparation *x, struct marks_writer *marks, const struct token_file *f,
                         struct index_source *source)
{
    int64_t begin = 0;
    err_t err = OK;
    for (int64_t i = 0; !err && i < f->n_ends; i++) {
        err = put_document(marks, f, begin, f->end(f, i), source, x->why);
        begin = f->end(f, i);
    }
    return err;
}

/* Cuts before each id `before` and behind each id `after`; -1: none. */
static err_t put_cut(struct preparation *x, struct marks_writer *marks, const struct token_file *f, int32_t before,
                     int32_t after, struct index_source *source)
{
    const struct token_type_row *type = &token_types[f->type];
    int64_t begin = 0;
    int32_t *ids = malloc((size_t)BLOCK * sizeof(*ids));
    err_t err = ids ? OK : preparation_fail(x, ERR_NOMEM);
    for (int64_t at = 0; !err && at < f->tokens; at += BLOCK) {
        int64_t n = f->tokens - at < BLOCK ? f->tokens - at : BLOCK;
        type->widen(f->ids.data + f->offset + (size_t)at * (size_t)type->bytes, n, ids);
        for (int64_t i = 0; !err && i < n; i++) {
            int64_t cut = ids[i] == after ? at + i + 1 : ids[i] == before ? at + i : begin;
            err = put_document(marks, f, begin, cut, source, x->why);
            begin = cut;
        }
    }
    free(ids);
    return err ? err : put_document(marks, f, begin, f->tokens, source, x->why);
}

static int32_t only_id(const struct buf *ids)
{
    return ids->len ? *(const int32_t *)(const void *)ids->data : -1;
}

static err_t put_documents(struct preparation *x, struct marks_writer *marks)
{
    err_t err = OK;
    for (int i = 0; !err && i < x->n_sources; i++) {
        const struct token_file *f = &x->sources[i].tokens;
        struct index_source *source = &x->index.sources[i];
        if (f->n_ends)
            err = put_indexed(x, marks, f, source);
        else
            err = put_cut(x, marks, f, only_id(&x->ends.before), only_id(&x->ends.after), source);
    }
    return err ? err : marks_writer_finish(marks, x->index.documents_sha256, x->index.weights_sha256, x->why);
}

/* Whether any file has documents; if none has, the set is one run of tokens. */
static bool has_documents(const struct preparation *x)
{
    bool has = x->ends.before.len || x->ends.after.len;
    for (int i = 0; i < x->n_sources; i++)
        has |= x->sources[i].tokens.n_ends > 0;
    return has;
}

static err_t add_place(struct preparation *x, int i)
{
    const struct source *s = &x->sources[i];
    struct index_shard *shard = &x->index.shards[i];
    struct index_place *place = calloc(1, sizeof(*place));
    shard->place = place;
    if (!place || !(place->path = strdup(s->tokens.ids.path)))
        return preparation_fail(x, ERR_NOMEM);
    place->type = s->tokens.type;
    place->offset = (int64_t)s->tokens.offset;
    place->bytes = (int64_t)s->tokens.ids.len;
    place->mtime_ns = place_mtime_ns(&s->tokens.ids.st);
    shard->tokens = s->tokens.tokens;
    memcpy(shard->sha256, s->sha256, sizeof(shard->sha256));
    x->index.sources[i].tokens = shard->tokens;
    x->index.tokens += shard->tokens;
    return OK;
}

static err_t add_places(struct preparation *x)
{
    if (x->n_sources > INDEX_MAX_SHARDS)
        return why_set(x->why, ERR_LIMIT, "more than %d files of ids: concatenate some", INDEX_MAX_SHARDS);
    x->index.shards = calloc((size_t)x->n_sources, sizeof(*x->index.shards));
    if (!x->index.shards)
        return preparation_fail(x, ERR_NOMEM);
    x->index.n_shards = x->n_sources;
    err_t err = documents_list(x);
    for (int i = 0; !err && i < x->n_sources; i++)
        err = add_place(x, i);
    return err;
}

err_t tokens_write(struct preparation *x)
{
    struct marks_writer marks;
    marks_writer_init(&marks, x->unfinished.dir);
    err_t err = add_places(x);
    if (!err && has_documents(x))
        err = put_documents(x, &marks);
    x->index.documents = marks.documents;
    marks_writer_fini(&marks);
    return err;
}
