/* Combines two parts of a softmax in one pass over both outputs; memory bandwidth limits its speed. */
#include "kernels/cpu/cpu.h"

#include <assert.h>

static void join_row(int64_t n, elem *o, float *lse, const elem *o2, float lse2)
{
    float max = *lse > lse2 ? *lse : lse2, own = expf(*lse - max), other = expf(lse2 - max), sum = own + other;
    vf a = v_set(own / sum), b = v_set(other / sum);
    for (int64_t j = 0; j < n; j += VF)
        e_store_part(o, j, n, v_fma(e_load_part(o, j, n), a, e_load_part(o2, j, n) * b));
    *lse = max + logf(sum);
}

static void join_rows(void *arg, int part, int64_t lo, int64_t hi)
{
    const struct kern_attention_join *a = arg;
    for (int64_t row = lo; row < hi; row++)
        for (int64_t h = 0; h < a->heads; h++) {
            int64_t at = (row / a->seq * a->heads + h) * a->seq + row % a->seq;
            join_row(a->head_dim, (elem *)a->o + row * a->o_stride + h * a->head_dim, (float *)a->lse + at,
                     (const elem *)a->o2 + row * a->o2_stride + h * a->head_dim, ((const float *)a->lse2)[at]);
        }
}

void KERN_FN(attention_join)(struct kern_stream *s, const struct kern_attention_join *a)
{
    struct kern_attention_join args = *a;
    assert(a->o_stride >= a->heads * a->head_dim && a->o2_stride >= a->heads * a->head_dim);
    kern_stream_run(s, a->batch * a->seq, 16, join_rows, &args);
}
