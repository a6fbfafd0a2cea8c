/* Overlaps are found by a sweep along the dimension that separates the boxes best, so that there is one active box at a
 * time both for dim-0 shards and for column shards. Disjoint boxes inside the tensor cover it if and only if their
 * volumes add up to the tensor's. */
#include "common/ckpt/metadata.h"

#include <stdlib.h>
#include <string.h>

struct box_span {
    int64_t lo, hi;
    const struct ckpt_chunk *chunk;
};

static int span_compare(const void *x, const void *y)
{
    const struct box_span *a = x, *b = y;
    return a->lo < b->lo ? -1 : a->lo > b->lo;
}

static err_t inside_check(const struct ckpt_tensor *t, struct why *why)
{
    int64_t volume = 1;
    for (int d = 0; d < t->ndim; d++)
        if (t->shape[d] < 0 || __builtin_mul_overflow(volume, t->shape[d] ? t->shape[d] : 1, &volume))
            return why_set(why, ERR_INVALID, "%.200s is too large", t->fqn);
    for (int i = 0; i < t->n_chunks; i++) {
        const struct box *b = &t->chunks[i].box;
        for (int d = 0; d < t->ndim; d++)
            if (b->ndim != t->ndim || b->offset[d] < 0 || b->size[d] < 0 || b->offset[d] > t->shape[d] ||
                b->size[d] > t->shape[d] - b->offset[d])
                return why_set(why, ERR_INVALID, "a box of %.200s in %s lies outside the tensor", t->fqn,
                               t->chunks[i].file);
    }
    return OK;
}

/* Fills spans along d with the non-empty boxes. Returns the number of distinct starts. */
static int spans_along(const struct ckpt_tensor *t, int d, struct box_span *spans, int *ret_n)
{
    int n = 0, starts = 0;
    for (int i = 0; i < t->n_chunks; i++) {
        const struct box *b = &t->chunks[i].box;
        if (box_elements(b))
            spans[n++] = (struct box_span){b->offset[d], b->offset[d] + b->size[d], &t->chunks[i]};
    }
    qsort(spans, (size_t)n, sizeof(*spans), span_compare);
    for (int i = 0; i < n; i++)
        starts += i == 0 || spans[i].lo != spans[i - 1].lo;
    *ret_n = n;
    return starts;
}

static err_t disjoint_check(const struct ckpt_tensor *t, struct box_span *spans, int n, struct why *why)
{
    struct box common;
    int active = 0; /* spans[0 .. active) may overlap the next span; their order does not matter */
    for (int i = 0; i < n; i++) {
        struct box_span now = spans[i];
        int keep = 0;
        for (int k = 0; k < active; k++)
            if (spans[k].hi > now.lo)
                spans[keep++] = spans[k];
        active = keep;
        for (int k = 0; k < active; k++)
            if (box_intersect(&spans[k].chunk->box, &now.chunk->box, &common))
                return why_set(why, ERR_INVALID, "boxes of %.200s in %s and %s overlap", t->fqn, spans[k].chunk->file,
                               now.chunk->file);
        spans[active++] = now;
    }
    return OK;
}

static err_t overlap_check(const struct ckpt_tensor *t, struct why *why)
{
    struct box_span *spans = calloc((size_t)t->n_chunks + 1, sizeof(*spans));
    if (!spans)
        return why_set(why, ERR_NOMEM, "out of memory for the boxes of %.200s", t->fqn);
    int best = 0, most = 0, n = 0;
    for (int d = 0; d < t->ndim; d++) {
        int starts = spans_along(t, d, spans, &n);
        if (starts > most) {
            most = starts;
            best = d;
        }
    }
    (void)spans_along(t, best, spans, &n);
    err_t err = disjoint_check(t, spans, n, why);
    free(spans);
    return err;
}

err_t cover_check(const struct ckpt_tensor *t, bool whole, struct why *why)
{
    err_t err = inside_check(t, why);
    if (!err && t->ndim == 0 && t->n_chunks > 1)
        err = why_set(why, ERR_INVALID, "the scalar %.200s is stored %d times", t->fqn, t->n_chunks);
    if (!err && t->ndim > 0 && t->n_chunks > 1)
        err = overlap_check(t, why);
    if (err || !whole)
        return err;
    struct box all = {.ndim = t->ndim};
    memcpy(all.size, t->shape, sizeof(all.size));
    int64_t have = 0;
    for (int i = 0; i < t->n_chunks; i++)
        have += box_elements(&t->chunks[i].box);
    if (have != box_elements(&all) || !t->n_chunks)
        return why_set(why, ERR_INVALID, "the boxes of %.200s cover %lld of its %lld elements", t->fqn, (long long)have,
                       (long long)box_elements(&all));
    return OK;
}
