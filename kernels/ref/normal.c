/* Normal numbers, one element at a time. */
#include "common/base/rng.h"
#include "kernels/ref/ref.h"

void KERN_FN(normal)(struct kern_stream *s, const struct kern_normal *k)
{
    for (int64_t i = 0; i < k->rows; i++)
        for (int64_t j = 0; j < k->n; j++) {
            double x = rng_normal(k->seed, k->stream, k->first + (uint64_t)(i * k->cols + j));
            ((real *)k->y)[i * k->stride + j] = (real)(k->mean + k->std * x);
        }
}
