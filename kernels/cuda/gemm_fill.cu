/* See gemm_fill.h. Rarely used: when cuBLASLt cannot add a bias itself, or when a product has no terms. A block
 * processes rows, its threads neighbouring columns. */
#include "kernels/cuda/gemm_fill.h"
#include "kernels/cuda/vec.h"

#define FILL_THREADS 256

template <class T>
static __global__ void __launch_bounds__(FILL_THREADS)
    fill_rows(int64_t rows, int64_t columns, int64_t ld, const elem *bias, T *c)
{
    for (int64_t i = blockIdx.x; i < rows; i += gridDim.x)
        for (int64_t j = threadIdx.x; j < columns; j += blockDim.x)
            vec_narrow(bias ? vec_widen(bias[j]) : 0.0f, &c[i * ld + j]);
}

void KERN_FN(gemm_fill)(struct kern_stream *s, int64_t rows, int64_t columns, int64_t ld, const void *bias, bool wide_c,
                        void *c)
{
    unsigned grid = grid_blocks(s, rows, FILL_THREADS);
    if (wide_c && sizeof(elem) != sizeof(wide))
        CUDA_LAUNCH(s, fill_rows<wide>, grid, FILL_THREADS, 0, rows, columns, ld, (const elem *)bias, (wide *)c);
    else
        CUDA_LAUNCH(s, fill_rows<elem>, grid, FILL_THREADS, 0, rows, columns, ld, (const elem *)bias, (elem *)c);
}
