/* Token and position embeddings. */
#include "kernels/ref/ref.h"

void KERN_FN(embed)(struct kern_stream *s, int64_t t, int64_t d, int64_t seq, int64_t lo, int64_t hi,
                    const int32_t *ids, const void *table, const void *pos, void *y)
{
    const real *rows = table, *positions = pos;
    real *out = y;
    for (int64_t i = 0; i < t; i++)
        for (int64_t j = 0; j < d; j++) {
            bool here = ids[i] >= lo && ids[i] < hi;
            out[i * d + j] = (here ? rows[(ids[i] - lo) * d + j] : 0) + (positions ? positions[i % seq * d + j] : 0);
        }
}

void KERN_FN(embed_grad)(struct kern_stream *s, int64_t t, int64_t d, int64_t seq, int64_t lo, int64_t hi,
                         const int32_t *ids, const void *dy, void *d_table, void *d_pos)
{
    const real *g = dy;
    real *rows = d_table, *positions = d_pos;
    for (int64_t i = 0; i < t; i++)
        for (int64_t j = 0; j < d; j++) {
            if (ids[i] >= lo && ids[i] < hi)
                rows[(ids[i] - lo) * d + j] += g[i * d + j];
            if (positions)
                positions[i % seq * d + j] += g[i * d + j];
        }
}
