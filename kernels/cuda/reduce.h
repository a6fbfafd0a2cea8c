/* Sums along rows, and sums down columns. Column sums take two launches: the first reduces blocks of rows to partial
 * sums, the second adds those to the result. Only the sizes and the device determine which rows form a partial sum, so
 * the same inputs give the same bits. */
#ifndef DTD_KERNELS_CUDA_REDUCE_H
#define DTD_KERNELS_CUDA_REDUCE_H

#include "kernels/cuda/cuda.h"

#ifdef __cplusplus
extern "C" {
#endif

/* out[n] += column sums of x[t, n], `ld` elements between its rows; out has the wide type. Uses the stream's scratch
 * memory. */
void KERN_FN(columns_add)(struct kern_stream *s, int64_t t, int64_t n, int64_t ld, const void *x, void *out);
/* out[t] += row sums of x[t, n], `ld` elements between its rows; out has the wide type. */
void KERN_FN(rows_add)(struct kern_stream *s, int64_t t, int64_t n, int64_t ld, const void *x, void *out);
/* out[n] += column sums of partial[parts, n], both float32; `stride` floats between the rows of partial. */
void KERN_FN(partials_add)(struct kern_stream *s, int64_t parts, int64_t n, int64_t stride, const float *partial,
                           float *out);

#ifdef __cplusplus
}
#endif

#endif
