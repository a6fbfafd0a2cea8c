/* Copies of matrices that are parts of wider ones. */
#include "kernels/cpu/cpu.h"

#include <assert.h>

struct copy_args {
    int64_t n, ldx, ldy;
    const elem *x;
    elem *y;
};

static void copy_rows(void *arg, int part, int64_t lo, int64_t hi)
{
    const struct copy_args *a = arg;
    if (a->ldx == a->n && a->ldy == a->n)
        memcpy(a->y + lo * a->n, a->x + lo * a->n, (size_t)((hi - lo) * a->n) * sizeof(elem));
    else
        for (int64_t i = lo; i < hi; i++)
            memcpy(a->y + i * a->ldy, a->x + i * a->ldx, (size_t)a->n * sizeof(elem));
}

void KERN_FN(copy_cols)(struct kern_stream *s, int64_t rows, int64_t n, const void *x, int64_t ldx, void *y,
                        int64_t ldy)
{
    assert(rows < 2 || (ldx >= n && ldy >= n));
    struct copy_args a = {n, ldx, ldy, x, y};
    kern_stream_run(s, rows, 1 + 4096 / (n + 1), copy_rows, &a);
}
