/* The budget counts the requested sizes and a fixed overhead per allocation. This is only close to the real memory use,
 * but allocation and release count the same number, so that the count cannot drift. */
#include "daemon/store/bytes.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define BYTEBUF_MIN_BYTES 256 /* most requests and answers fit, so that a buffer is allocated once */

err_t budget_take(struct budget *b, size_t bytes)
{
    if (bytes > b->max || b->used > b->max - bytes)
        return ERR_LIMIT;
    if (b->parent && budget_take(b->parent, bytes))
        return ERR_LIMIT;
    b->used += bytes;
    return OK;
}

void budget_give(struct budget *b, size_t bytes)
{
    assert(b->used >= bytes);
    b->used -= bytes;
    if (b->parent)
        budget_give(b->parent, bytes);
}

void budget_leave(struct budget *b)
{
    if (b->parent)
        budget_give(b->parent, b->used);
    b->parent = NULL;
}

err_t budget_alloc(struct budget *b, size_t bytes, void **ret)
{
    *ret = NULL;
    return budget_realloc(b, ret, 0, bytes);
}

err_t budget_realloc(struct budget *b, void **memory, size_t was, size_t bytes)
{
    size_t held = *memory ? was + BUDGET_PIECE_BYTES : 0;
    if (bytes > SIZE_MAX - BUDGET_PIECE_BYTES)
        return ERR_LIMIT;
    size_t want = bytes + BUDGET_PIECE_BYTES;
    err_t err = want > held ? budget_take(b, want - held) : OK;
    if (err)
        return err;
    void *p = realloc(*memory, bytes ? bytes : 1);
    if (!p) {
        if (want > held)
            budget_give(b, want - held);
        return ERR_NOMEM;
    }
    if (held > want)
        budget_give(b, held - want);
    *memory = p;
    return OK;
}

void budget_free(struct budget *b, void *memory, size_t bytes)
{
    if (!memory)
        return;
    budget_give(b, bytes + BUDGET_PIECE_BYTES);
    free(memory);
}

void bytebuf_fini(struct bytebuf *p)
{
    budget_free(p->budget, p->data, p->cap);
    *p = (struct bytebuf){.budget = p->budget};
}

err_t bytebuf_reserve(struct bytebuf *p, size_t more)
{
    if (more <= p->cap - p->len)
        return OK;
    if (more > SIZE_MAX / 4 - p->len)
        return ERR_LIMIT;
    size_t cap = p->cap * 2 > BYTEBUF_MIN_BYTES ? p->cap * 2 : BYTEBUF_MIN_BYTES;
    if (cap < p->len + more)
        cap = p->len + more;
    void *data = p->data;
    err_t err = budget_realloc(p->budget, &data, p->cap, cap);
    if (err)
        return err;
    p->data = data;
    p->cap = cap;
    return OK;
}

err_t bytebuf_add(struct bytebuf *p, const void *data, size_t len)
{
    err_t err = bytebuf_reserve(p, len);
    if (err || !len)
        return err;
    memcpy(p->data + p->len, data, len);
    p->len += len;
    return OK;
}

void bytebuf_clear(struct bytebuf *p, size_t keep)
{
    p->len = 0;
    if (p->cap > keep)
        bytebuf_fini(p);
}
