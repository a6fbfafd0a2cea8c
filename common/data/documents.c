/* One thread reads files in order, others encode, and the first one writes what comes back in the same order. So the
 * set's bytes do not depend on the number of threads. */
#include "common/base/cpus.h"
#include "common/data/batch.h"
#include "common/data/marks.h"
#include "common/data/preparation.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define MAX_THREADS 64 /* one thread reads and writes, and cannot feed more */

/* ---- reading ---- */

static err_t refuse_turns(struct preparation *x, const struct input *in, const struct document *d)
{
    return why_set(x->why, ERR_UNSUPPORTED,
                   "%s: row %" PRId64
                   " is a conversation (%s, ..): set data.template to the chat template of the model, or write "
                   "input_ids and loss_mask instead",
                   in->path, d->row, d->turns[0].role);
}

/* Passes a conversation on as ids with weights. */
static err_t render_turns(struct preparation *x, int i, const struct document *d, each_document_fn *each, void *arg)
{
    const struct input *in = &x->sources[i].input;
    struct buf ids = {0}, weights = {0};
    if (!x->chat)
        return refuse_turns(x, in, d);
    err_t err = chat_render(x->chat, d->turns, d->n_turns, &ids, &weights, x->why);
    if (err) {
        why_prefix(x->why, err, "%s: row %" PRId64, in->path, d->row);
    } else {
        const struct document rendered = {.row = d->row,
                                          .ids = (const int32_t *)(const void *)ids.data,
                                          .weights = weights.data,
                                          .n_ids = (int64_t)weights.len};
        err = each(arg, i, &rendered);
    }
    buf_fini(&ids);
    buf_fini(&weights);
    return err;
}

/* With labels, the last token of a document is followed by one whose number is the label (data.h). */
static err_t check_label(struct preparation *x, const struct input *in, const struct doc_options *o,
                         const struct document *d)
{
    const int64_t row = d->row;
    if (!o->label)
        return OK;
    if (!d->labelled)
        return why_set(x->why, ERR_UNSUPPORTED,
                       "%s: row %" PRId64 " has no label (data.label): labels are read from JSON lines, Parquet, Arrow "
                       "and HDF5",
                       in->path, row);
    if (d->n_turns || d->weights)
        return why_set(x->why, ERR_UNSUPPORTED,
                       "%s: row %" PRId64 " has a label beside %s: with labels only the label counts in the loss",
                       in->path, row, d->n_turns ? "a conversation" : "a mask of the loss");
    if (x->tokenizer && d->label >= tokenizer_vocab(x->tokenizer))
        return why_set(x->why, ERR_UNSUPPORTED,
                       "%s: row %" PRId64 ": label %d, but a tokenizer of %" PRId64 " tokens allows labels below that",
                       in->path, row, d->label, tokenizer_vocab(x->tokenizer));
    x->index.labels = d->label >= x->index.labels ? d->label + 1 : x->index.labels;
    return OK;
}

static err_t read_documents(struct preparation *x, int i, int64_t skip, each_document_fn *each, void *arg)
{
    struct input_reader r;
    const struct input *in = &x->sources[i].input;
    const char *field = x->p->field, *label = x->p->label;
    const struct doc_options o = {.field = field && field[0] ? field : NULL, .label = label && label[0] ? label : NULL};
    bool end = false;
    int64_t reported = 0;
    err_t err = input_reader_open(in, &o, &r, x->why);
    if (err)
        return err;
    while (!err && !end) {
        struct document d;
        err = preparation_stopped(x);
        err = err ? err : r.docs->ops->next(r.docs, &d, &end, x->why);
        if (!err && !end)
            err = check_label(x, in, &o, &d);
        if (!err && !end && skip-- <= 0)
            err = d.n_turns ? render_turns(x, i, &d, each, arg) : each(arg, i, &d);
        preparation_report(x, r.file.consumed - reported);
        reported = r.file.consumed;
    }
    if (!err)
        err = input_file_same(in, &r.file, x->why);
    input_reader_close(&r);
    if (!err) /* what a reader of a source left out */
        preparation_report(x, in->bytes - reported);
    return err;
}

err_t documents_each(struct preparation *x, int from, int64_t offset, each_document_fn *each, void *arg)
{
    err_t err = OK;
    for (int i = 0; i < from; i++)
        preparation_report(x, x->sources[i].input.bytes);
    for (int i = from; !err && i < x->n_sources; i++)
        err = read_documents(x, i, i == from ? offset : 0, each, arg);
    return err;
}

/* ---- writing ---- */

struct documents_writer {
    struct preparation *x;
    struct shard_writer *shards;
    struct marks_writer marks;
    struct batch_pool *pool;
    struct batch *batch; /* being filled; NULL: none */
    int source;          /* of what was written last */
    int64_t offset;      /* documents of it that were written */
};

static err_t write_batch(struct documents_writer *w, const struct batch *b)
{
    const struct batch_doc *docs = (const struct batch_doc *)(const void *)b->docs.data;
    const uint8_t *weights = b->weights.data;
    struct index_source *source = &w->x->index.sources[b->source];
    if (b->err)
        return why_set(w->x->why, b->err, "%s", b->why.text);
    int64_t tokens = (int64_t)(b->ids.len / sizeof(int32_t));
    err_t err = shard_writer_put(w->shards, (const int32_t *)(const void *)b->ids.data, tokens, w->x->why);
    source->tokens += tokens;
    for (size_t i = 0; !err && i < b->docs.len / sizeof(*docs); i++) {
        if (!docs[i].tokens)
            continue;
        err = marks_writer_put(&w->marks, docs[i].tokens, docs[i].weighted ? weights : NULL, w->x->why);
        weights += docs[i].weighted ? docs[i].tokens : 0;
        source->documents++;
    }
    if (b->source != w->source)
        w->offset = 0;
    w->source = b->source;
    w->offset += (int64_t)(b->docs.len / sizeof(*docs));
    if (!err && preparation_saves(w->x))
        err = preparation_save(w->x, w->source, w->offset, w->shards, &w->marks);
    return err;
}

static err_t write_oldest(struct documents_writer *w, bool *ret_none)
{
    struct batch *b = batch_pool_take(w->pool);
    *ret_none = !b;
    if (!b)
        return OK;
    err_t err = write_batch(w, b);
    batch_pool_release(w->pool, b);
    return err;
}

static void put_batch(struct documents_writer *w)
{
    if (w->batch)
        batch_pool_put(w->pool, w->batch);
    w->batch = NULL;
}

static err_t add_document(void *arg, int source, const struct document *d)
{
    struct documents_writer *w = arg;
    bool none;
    err_t err = OK;
    if (w->batch && (w->batch->source != source || batch_full(w->batch)))
        put_batch(w);
    while (!err && !w->batch && !(w->batch = batch_pool_empty(w->pool)))
        err = write_oldest(w, &none);
    if (err)
        return err;
    w->batch->source = source;
    w->batch->path = w->x->sources[source].input.path;
    return batch_add(w->batch, d, w->x->why);
}

static err_t write_all(struct documents_writer *w)
{
    struct data_index *index = &w->x->index;
    bool none = false;
    err_t err = documents_each(w->x, w->source, w->offset, add_document, w);
    if (!err)
        put_batch(w);
    while (!err && !none)
        err = write_oldest(w, &none);
    if (err == ERR_CANCELED && preparation_save(w->x, w->source, w->offset, w->shards, &w->marks))
        return err; /* what was saved before remains */
    if (!err)
        err = marks_writer_finish(&w->marks, index->documents_sha256, index->weights_sha256, w->x->why);
    index->documents = w->marks.documents;
    return err;
}

err_t documents_list(struct preparation *x)
{
    int n = x->n_sources;
    x->index.sources = calloc((size_t)n, sizeof(*x->index.sources));
    if (!x->index.sources)
        return preparation_fail(x, ERR_NOMEM);
    x->index.n_sources = n;
    for (int i = 0; i < n; i++) {
        struct index_source *s = &x->index.sources[i];
        *s = (struct index_source){.path = strdup(x->sources[i].input.path),
                                   .format = strdup(x->sources[i].input.format->name),
                                   .bytes = x->sources[i].input.bytes};
        if (!s->path || !s->format)
            return preparation_fail(x, ERR_NOMEM);
    }
    return OK;
}

static int thread_count(const struct preparation *x)
{
    int n = x->p->threads ? x->p->threads : cpus_usable(NULL, 0);
    return n < 1 ? 1 : n > MAX_THREADS ? MAX_THREADS : n;
}

/* Goes on where the journal ends. */
static err_t continue_documents(struct documents_writer *w)
{
    const struct journal *j = &w->x->unfinished.journal;
    w->source = j->source;
    w->offset = j->offset;
    w->x->index.labels = j->labels;

    for (int i = 0; i < j->n_counts; i++) {
        w->x->index.sources[i].documents = j->counts[i].documents;
        w->x->index.sources[i].tokens = j->counts[i].tokens;
    }
    return marks_writer_continue(&w->marks, j->documents, w->shards->tokens, j->weighted, j->bits, w->x->why);
}

err_t documents_write(struct preparation *x, struct shard_writer *shards)
{
    struct documents_writer w = {.x = x, .shards = shards};
    err_t err = documents_list(x);
    if (err)
        return err;
    if (x->p->template != CHAT_NONE && (err = chat_new(x->p->template, x->tokenizer, &x->chat, x->why)))
        return err;
    marks_writer_init(&w.marks, x->unfinished.dir);
    err = continue_documents(&w);
    if (!err && (err = batch_pool_new(x->tokenizer, &x->ends, thread_count(x), &w.pool)))
        preparation_fail(x, err);
    err = err ? err : write_all(&w);
    batch_pool_free(w.pool);
    marks_writer_fini(&w.marks);
    chat_free(x->chat);
    x->chat = NULL;
    return err;
}
