/* Bitwise copies of matrices that are parts of wider ones. */
#include "kernels/cuda/vec.h"

#define MOST_THREADS 512

template <typename T>
static __global__ void __launch_bounds__(MOST_THREADS)
    copy_rows(int64_t rows, int64_t n, const T *__restrict__ x, int64_t ldx, T *__restrict__ y, int64_t ldy)
{
    for (int64_t i = blockIdx.x; i < rows; i += gridDim.x)
        for (int64_t j = threadIdx.x; j < n; j += blockDim.x)
            y[i * ldy + j] = x[i * ldx + j];
}

/* Floor: 2 arrays. */
void KERN_FN(copy_cols)(struct kern_stream *s, int64_t rows, int64_t n, const void *x, int64_t ldx, void *y,
                        int64_t ldy)
{
    const void *arrays[] = {x, y};
    bool whole = vec_all_aligned(2, arrays) && n % VEC == 0 && ldx % VEC == 0 && ldy % VEC == 0;
    int threads = row_threads(whole ? n : n * VEC, MOST_THREADS);
    unsigned blocks = grid_blocks(s, rows, threads);
    if (whole)
        CUDA_LAUNCH(s, copy_rows<uint4>, blocks, threads, 0, rows, n / VEC, (const uint4 *)x, ldx / VEC, (uint4 *)y,
                    ldy / VEC);
    else
        CUDA_LAUNCH(s, copy_rows<elem>, blocks, threads, 0, rows, n, (const elem *)x, ldx, (elem *)y, ldy);
}
