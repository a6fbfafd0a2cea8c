/* Trailing dimensions that are complete in both source and destination collapse into one run. The remaining dimensions
 * are iterated like the digits of an odometer. */
#include "common/ckpt/ckpt_priv.h"

#include <stdlib.h>
#include <string.h>

static struct copy_run *run_new(struct copy_runs *r)
{
    if (r->n == r->cap) {
        size_t cap = r->cap ? r->cap * 2 : 16;
        struct copy_run *v = realloc(r->v, cap * sizeof(*v));
        if (!v)
            return NULL;
        r->v = v;
        r->cap = cap;
    }
    return &r->v[r->n++];
}

/* Row-major index, within a box, of the element at global coordinates `at`. */
static uint64_t index_in(const struct box *b, const int64_t *at)
{
    uint64_t i = 0;
    for (int d = 0; d < b->ndim; d++)
        i = i * (uint64_t)b->size[d] + (uint64_t)(at[d] - b->offset[d]);
    return i;
}

/* Advances over dimensions [0, dims); false after the last element. */
static bool next(int64_t *at, const struct box *part, int dims)
{
    for (int d = dims - 1; d >= 0; d--) {
        if (++at[d] < part->offset[d] + part->size[d])
            return true;
        at[d] = part->offset[d];
    }
    return false;
}

err_t runs_add(struct copy_runs *r, const struct box *part, const struct box *src, uint64_t src_at, enum dtype from,
               const struct box *dst, uint8_t *dst_data, enum dtype to)
{
    int outer = part->ndim; /* dimensions to iterate */
    uint64_t elements = 1;
    bool whole = true;
    while (outer > 0 && whole) {
        outer--;
        elements *= (uint64_t)part->size[outer];
        whole = part->size[outer] == src->size[outer] && part->size[outer] == dst->size[outer];
    }
    if (!elements)
        return OK;
    int64_t at[BOX_MAX_DIMS];
    memcpy(at, part->offset, sizeof(at));
    do {
        struct copy_run *run = run_new(r);
        if (!run)
            return ERR_NOMEM;
        *run = (struct copy_run){src_at + index_in(src, at) * dtype_bytes(from), elements,
                                 dst_data + index_in(dst, at) * dtype_bytes(to), to};
    } while (next(at, part, outer));
    return OK;
}
