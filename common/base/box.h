/* A box: a rectangular part of a tensor, in global coordinates. Checkpoints, shards and loads are described by boxes.
 */
#ifndef DTD_COMMON_BASE_BOX_H
#define DTD_COMMON_BASE_BOX_H

#include <stdbool.h>
#include <stdint.h>

#define BOX_MAX_DIMS 8

struct box {
    int ndim; /* 0: a scalar tensor, whose box always has one element */
    int64_t offset[BOX_MAX_DIMS];
    int64_t size[BOX_MAX_DIMS];
};

static inline int64_t box_elements(const struct box *b)
{
    int64_t n = 1;
    for (int d = 0; d < b->ndim; d++)
        n *= b->size[d];
    return n;
}

/* Writes the intersection to `ret`. False, and `ret` is not written, if it is empty. Both must have the same ndim. */
static inline bool box_intersect(const struct box *a, const struct box *b, struct box *ret)
{
    struct box r = {.ndim = a->ndim};
    for (int d = 0; d < a->ndim; d++) {
        int64_t lo = a->offset[d] > b->offset[d] ? a->offset[d] : b->offset[d];
        int64_t ae = a->offset[d] + a->size[d], be = b->offset[d] + b->size[d];
        int64_t hi = ae < be ? ae : be;
        if (hi <= lo)
            return false;
        r.offset[d] = lo;
        r.size[d] = hi - lo;
    }
    *ret = r;
    return true;
}

static inline bool box_equal(const struct box *a, const struct box *b)
{
    if (a->ndim != b->ndim)
        return false;
    for (int d = 0; d < a->ndim; d++)
        if (a->offset[d] != b->offset[d] || a->size[d] != b->size[d])
            return false;
    return true;
}

#endif
