/* Sinusoidal positions. A thread computes one pair of columns, which share their angle. The angle is in double until
 * whole turns are subtracted, so distant positions lose no precision. */
#include "kernels/cuda/vec.h"

#include <math.h>

#define MOST_THREADS 512

static __global__ void __launch_bounds__(MOST_THREADS)
    add_rows(int64_t t, int64_t d, int64_t seq, double per_column, const int32_t *__restrict__ rows, const elem *x,
             elem *y)
{
    for (int64_t i = blockIdx.x; i < t; i += gridDim.x) {
        double pos = (double)(rows[i] % seq);
        for (int64_t j = 2 * (int64_t)threadIdx.x; j < d; j += 2 * (int64_t)blockDim.x) {
            double angle = pos * exp2(-(double)j * per_column);
            vec_narrow(vec_widen(x[i * d + j]) + (float)sin(angle), &y[i * d + j]);
            if (j + 1 < d)
                vec_narrow(vec_widen(x[i * d + j + 1]) + (float)cos(angle), &y[i * d + j + 1]);
        }
    }
}

/* Floor: 2 arrays. */
void KERN_FN(positions)(struct kern_stream *s, int64_t t, int64_t d, int64_t seq, const int32_t *rows, const void *x,
                        void *y)
{
    int threads = row_threads(d * VEC / 2, MOST_THREADS);
    CUDA_LAUNCH(s, add_rows, grid_blocks(s, t, threads), threads, 0, t, d, seq, log2(KERN_POSITIONS_BASE) / (double)d,
                rows, (const elem *)x, (elem *)y);
}
