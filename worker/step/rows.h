/* A box of a tensor in an engine's memory: rows of `width` elements, `stride` elements apart. Pure functions. */
#ifndef DTD_WORKER_STEP_ROWS_H
#define DTD_WORKER_STEP_ROWS_H

#include "common/base/box.h"

#include <stdint.h>

struct box_rows {
    int64_t width, stride;
};

static inline struct box_rows rows_of(const struct box *b, int64_t stride)
{
    return (struct box_rows){b->ndim > 1 ? b->size[b->ndim - 1] : 1, stride};
}

/* Position of the box's element `at`, in elements from its first. */
static inline int64_t rows_place(const struct box_rows *r, int64_t at)
{
    return at / r->width * r->stride + at % r->width;
}

/* The number of contiguous elements from `at` on, at most up to `end`. */
static inline int64_t rows_run(const struct box_rows *r, int64_t at, int64_t end)
{
    int64_t row = r->width - at % r->width;
    return r->stride == r->width || row > end - at ? end - at : row;
}

#endif
