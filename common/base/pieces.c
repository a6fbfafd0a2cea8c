/* Copies lie in blocks that never move, so pieces can point into them. A copy that follows another one in its block
 * extends that piece. */
#include "common/base/pieces.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK_BYTES (64u << 10) /* far above one copy, so that blocks are few */

struct pieces_block {
    struct pieces_block *older;
    size_t used, cap;
    uint8_t data[];
};

void pieces_fini(struct pieces *p)
{
    for (struct pieces_block *b; (b = p->block);) {
        p->block = b->older;
        free(b);
    }
    free(p->at);
    *p = (struct pieces){0};
}

static err_t reserve_piece(struct pieces *p)
{
    if (p->n < p->cap)
        return OK;
    size_t cap = p->cap ? 2 * p->cap : 64;
    struct piece *more = realloc(p->at, cap * sizeof(*more));
    if (!more)
        return ERR_NOMEM;
    p->at = more;
    p->cap = cap;
    return OK;
}

static err_t reserve_block(struct pieces *p, size_t len)
{
    if (p->block && p->block->cap - p->block->used >= len)
        return OK;
    size_t cap = len > BLOCK_BYTES ? len : BLOCK_BYTES;
    struct pieces_block *b = malloc(sizeof(*b) + cap);
    if (!b)
        return ERR_NOMEM;
    *b = (struct pieces_block){.older = p->block, .cap = cap};
    p->block = b;
    return OK;
}

err_t pieces_borrow(struct pieces *p, const void *data, size_t len)
{
    err_t err = len ? reserve_piece(p) : OK;
    if (err || !len)
        return err;
    p->at[p->n++] = (struct piece){data, len};
    p->bytes += len;
    return OK;
}

err_t pieces_copy(struct pieces *p, const void *data, size_t len)
{
    err_t err = len ? reserve_piece(p) : OK;
    err = err || !len ? err : reserve_block(p, len);
    if (err || !len)
        return err;
    uint8_t *to = p->block->data + p->block->used;
    struct piece *last = p->n ? &p->at[p->n - 1] : NULL;
    memcpy(to, data, len);
    p->block->used += len;
    p->bytes += len;
    if (last && (const uint8_t *)last->data + last->len == to && to > p->block->data)
        last->len += len;
    else
        p->at[p->n++] = (struct piece){to, len};
    return OK;
}
