/* Normal numbers: a thread computes one element at a time, in float64. Each operation is written as an intrinsic,
 * because the compiler would otherwise fuse operations and the bits would differ from the host's
 * (common/base/normal.h). */
#include "kernels/cuda/philox.h"
#include "kernels/cuda/vec.h"

#define NORMAL_FN static __device__ __forceinline__
#define NORMAL_NAME(name) normal_##name
#define NORMAL_REAL double
#define NORMAL_WORD uint64_t
#define NORMAL_ADD(a, b) __dadd_rn((a), (b))
#define NORMAL_SUB(a, b) __dsub_rn((a), (b))
#define NORMAL_MUL(a, b) __dmul_rn((a), (b))
#define NORMAL_DIV(a, b) __ddiv_rn((a), (b))
#define NORMAL_SQRT(a) __dsqrt_rn(a)
#define NORMAL_BITS(real) ((uint64_t)__double_as_longlong(real))
#define NORMAL_FROM_BITS(word) __longlong_as_double((long long)(word))
#include "common/base/normal.h"

#define THREADS 256
#define PIECE (4 * THREADS) /* elements of a row per block: one division serves four elements of a thread */

static __device__ __forceinline__ float normal_at(const struct kern_normal &k, uint64_t position)
{
    uint4 w = philox(k.seed, make_uint4((uint32_t)position, (uint32_t)(position >> 32), (uint32_t)k.stream,
                                        (uint32_t)(k.stream >> 32)));
    return __double2float_rn(__dadd_rn(__dmul_rn(normal_of_words(w.x, w.y, w.z, w.w), k.std), k.mean));
}

/* `pieces`: number of pieces of a row */
static __global__ void __launch_bounds__(THREADS) normal_rows(struct kern_normal k, int64_t pieces)
{
    for (int64_t p = blockIdx.x; p < k.rows * pieces; p += gridDim.x) {
        int64_t i = p / pieces, first = (p - i * pieces) * PIECE, end = min(first + PIECE, k.n);
        wide *y = (wide *)k.y + i * k.stride;
        for (int64_t j = first + threadIdx.x; j < end; j += THREADS)
            y[j] = normal_at(k, k.first + (uint64_t)(i * k.cols + j));
    }
}

/* Floor: 4 bytes an element, but the 75 float64 operations per element take longer. */
void KERN_FN(normal)(struct kern_stream *s, const struct kern_normal *k)
{
    int64_t pieces = (k->n + PIECE - 1) / PIECE;
    CUDA_LAUNCH(s, normal_rows, grid_blocks(s, k->rows * pieces, THREADS), THREADS, 0, *k, pieces);
}
