/* Copies of matrices that are parts of wider ones. */
#include "kernels/ref/ref.h"

void KERN_FN(copy_cols)(struct kern_stream *s, int64_t rows, int64_t n, const void *x, int64_t ldx, void *y,
                        int64_t ldy)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < n; j++)
            ((real *)y)[i * ldy + j] = ((const real *)x)[i * ldx + j];
}
