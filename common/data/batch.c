/* The reader copies documents into batches of about a megabyte, so that a thread has work for tens of milliseconds and
 * the lock is taken rarely. The ring has two batches per thread: one is encoded while the next is read or written. The
 * order of batches, and so the set, does not depend on the number of threads. */
#include "common/data/batch.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* ---- batches ---- */

static err_t no_memory(struct why *why, err_t err)
{
    return err ? why_set(why, err, "%s", err_text(err)) : OK;
}

static err_t add_ids(struct batch *b, const struct document *d, struct batch_doc *doc)
{
    doc->is_ids = true;
    doc->at = b->given.len / sizeof(int32_t);
    doc->len = (size_t)d->n_ids;
    doc->weighted = d->weights != NULL;
    err_t err = buf_append(&b->given, d->ids, doc->len * sizeof(int32_t));
    if (!err && (err = buf_reserve(&b->given_weights, doc->len)) == OK) {
        if (d->weights)
            memcpy(b->given_weights.data + doc->at, d->weights, doc->len);
        else
            memset(b->given_weights.data + doc->at, 1, doc->len);
        b->given_weights.len += doc->len;
    }
    return err;
}

err_t batch_add(struct batch *b, const struct document *d, struct why *why)
{
    struct batch_doc doc = {
        .row = d->row, .at = b->text.len, .len = d->len, .labelled = d->labelled, .label = d->label};
    err_t err = d->n_ids ? add_ids(b, d, &doc) : buf_append(&b->text, d->text, d->len);
    return no_memory(why, err ? err : buf_append(&b->docs, &doc, sizeof(doc)));
}

bool batch_full(const struct batch *b)
{
    return b->text.len + b->given.len + b->docs.len >= BATCH_BYTES;
}

void batch_reset(struct batch *b)
{
    struct buf *bufs[] = {&b->docs, &b->text, &b->given, &b->given_weights, &b->ids, &b->weights};
    for (size_t i = 0; i < sizeof(bufs) / sizeof(bufs[0]); i++)
        bufs[i]->len = 0;
    b->consumed = 0;
    b->err = OK;
}

void batch_fini(struct batch *b)
{
    struct buf *bufs[] = {&b->docs, &b->text, &b->given, &b->given_weights, &b->ids, &b->weights};
    for (size_t i = 0; i < sizeof(bufs) / sizeof(bufs[0]); i++)
        buf_fini(bufs[i]);
}

/* ---- encoding ---- */

static err_t fail_doc(const struct batch *b, const struct batch_doc *d, err_t err, const char *text, struct why *why)
{
    return why_set(why, err, "%s: row %" PRId64 ": %s", b->path, d->row, text);
}

static err_t fail_encode(const struct batch *b, const struct batch_doc *d, err_t err, struct why *why)
{
    if (err == ERR_LIMIT)
        return fail_doc(b, d, err, "the tokenizer's pattern does not split more than 16 MiB of the text", why);
    if (err == ERR_UNSUPPORTED)
        return fail_doc(b, d, err, "it has a character that is not in the vocabulary, which has no unknown token", why);
    return why_set(why, err, "%s", err_text(err));
}

static err_t encode_text(struct batch *b, const struct batch_doc *d, struct encoder *e, bool line)
{
    const uint8_t *text = b->text.data + d->at;
    err_t err = encoder_feed(e, text, d->len);
    if (!err && line && d->len && text[d->len - 1] != '\n')
        err = encoder_feed(e, (const uint8_t *)"\n", 1);
    return err ? err : encoder_finish(e);
}

/* A text that brings the token with which bos begins each document would have it twice. */
static err_t check_doubled(const struct batch *b, const struct batch_doc *d, const struct doc_ends *ends, size_t from,
                           struct why *why)
{
    size_t n = ends->before.len;
    if (!n || b->ids.len - from < n || memcmp(b->ids.data + from, ends->before.data, n) != 0)
        return OK;
    return fail_doc(b, d, ERR_INVALID,
                    "the text begins with the token that data.bos puts before each document, so it would occur twice; "
                    "set data.bos to none",
                    why);
}

static err_t make_text(struct batch *b, struct batch_doc *d, const struct doc_ends *ends, struct encoder *e,
                       struct why *why)
{
    size_t begin = b->ids.len;
    err_t err = buf_append(&b->ids, ends->before.data, ends->before.len);
    size_t from = b->ids.len;
    err = err ? err : encode_text(b, d, e, ends->line);
    if (err)
        return fail_encode(b, d, err, why);
    err = check_doubled(b, d, ends, from, why);
    if (err)
        return err;
    err = buf_append(&b->ids, ends->after.data, ends->after.len);
    d->tokens = (int64_t)((b->ids.len - begin) / sizeof(int32_t));
    return no_memory(why, err);
}

static err_t make_ids(struct batch *b, struct batch_doc *d, int64_t vocab, struct why *why)
{
    const int32_t *ids = (const int32_t *)(const void *)b->given.data + d->at;
    for (size_t i = 0; i < d->len; i++)
        if (ids[i] < 0 || ids[i] >= vocab)
            return why_set(why, ERR_INVALID,
                           "%s: row %" PRId64 ": token id %d, but the tokenizer has %" PRId64
                           " tokens: the ids were made with another one",
                           b->path, d->row, ids[i], vocab);
    err_t err = buf_append(&b->ids, ids, d->len * sizeof(*ids));
    if (!err && d->weighted)
        err = buf_append(&b->weights, b->given_weights.data + d->at, d->len);
    d->tokens = (int64_t)d->len;
    return no_memory(why, err);
}

/* A text that gives no tokens has nothing to classify. */
static err_t add_label(struct batch *b, struct batch_doc *d, struct why *why)
{
    if (!d->labelled || !d->tokens)
        return OK;
    d->tokens++;
    return no_memory(why, buf_append(&b->ids, &d->label, sizeof(d->label)));
}

static void encode(struct batch *b, const struct tokenizer *t, const struct doc_ends *ends, struct encoder *e)
{
    struct batch_doc *docs = (struct batch_doc *)(void *)b->docs.data;
    size_t n = b->docs.len / sizeof(*docs);
    e->ids = &b->ids;
    for (size_t i = 0; !b->err && i < n; i++) {
        b->err = docs[i].is_ids ? make_ids(b, &docs[i], tokenizer_vocab(t), &b->why)
                                : make_text(b, &docs[i], ends, e, &b->why);
        b->err = b->err ? b->err : add_label(b, &docs[i], &b->why);
    }
}

/* ---- threads ---- */

struct batch_slot {
    struct batch batch;
    bool done; /* encoded */
};

struct batch_pool {
    const struct tokenizer *tokenizer;
    const struct doc_ends *ends;
    pthread_mutex_t lock;
    pthread_cond_t ready, done;
    pthread_t *threads;
    int n_threads, n_slots;
    struct batch_slot *slots;
    int64_t filled, begun, taken; /* batches put, begun by a thread, and taken */
    bool stop;
};

static struct batch_slot *next_ready(struct batch_pool *p)
{
    while (!p->stop && p->begun == p->filled)
        pthread_cond_wait(&p->ready, &p->lock);
    return p->stop ? NULL : &p->slots[p->begun++ % p->n_slots];
}

static void *work(void *arg)
{
    struct batch_pool *p = arg;
    struct encoder e;
    encoder_init(&e, p->tokenizer, NULL);
    pthread_mutex_lock(&p->lock);
    for (struct batch_slot *s; (s = next_ready(p));) {
        pthread_mutex_unlock(&p->lock);
        encode(&s->batch, p->tokenizer, p->ends, &e);
        pthread_mutex_lock(&p->lock);
        s->done = true;
        pthread_cond_signal(&p->done);
    }
    pthread_mutex_unlock(&p->lock);
    encoder_fini(&e);
    return NULL;
}

err_t batch_pool_new(const struct tokenizer *t, const struct doc_ends *ends, int threads, struct batch_pool **ret)
{
    struct batch_pool *p = calloc(1, sizeof(*p));
    if (!p)
        return ERR_NOMEM;
    *p = (struct batch_pool){.tokenizer = t, .ends = ends, .n_slots = 2 * threads + 1};
    p->slots = calloc((size_t)p->n_slots, sizeof(*p->slots));
    p->threads = calloc((size_t)threads, sizeof(*p->threads));
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->ready, NULL);
    pthread_cond_init(&p->done, NULL);
    while (p->slots && p->threads && p->n_threads < threads &&
           !pthread_create(&p->threads[p->n_threads], NULL, work, p))
        p->n_threads++;
    if (!p->n_threads) { /* fewer than asked are enough */
        batch_pool_free(p);
        return ERR_NOMEM;
    }
    *ret = p;
    return OK;
}

struct batch *batch_pool_empty(struct batch_pool *p)
{
    struct batch *b = &p->slots[p->filled % p->n_slots].batch;
    if (p->filled - p->taken == p->n_slots) /* only this thread changes both numbers, so no lock is needed */
        return NULL;
    batch_reset(b);
    return b;
}

void batch_pool_put(struct batch_pool *p, struct batch *b)
{
    pthread_mutex_lock(&p->lock);
    p->filled++;
    pthread_cond_signal(&p->ready);
    pthread_mutex_unlock(&p->lock);
}

struct batch *batch_pool_take(struct batch_pool *p)
{
    if (p->taken == p->filled)
        return NULL;
    struct batch_slot *s = &p->slots[p->taken % p->n_slots];
    pthread_mutex_lock(&p->lock);
    while (!s->done)
        pthread_cond_wait(&p->done, &p->lock);
    pthread_mutex_unlock(&p->lock);
    return &s->batch;
}

void batch_pool_release(struct batch_pool *p, struct batch *b)
{
    p->slots[p->taken++ % p->n_slots].done = false;
}

void batch_pool_free(struct batch_pool *p)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->stop = true;
    pthread_cond_broadcast(&p->ready);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->n_threads; i++)
        pthread_join(p->threads[i], NULL);
    for (int i = 0; p->slots && i < p->n_slots; i++)
        batch_fini(&p->slots[i].batch);
    pthread_mutex_destroy(&p->lock);
    pthread_cond_destroy(&p->ready);
    pthread_cond_destroy(&p->done);
    free(p->slots);
    free(p->threads);
    free(p);
}
