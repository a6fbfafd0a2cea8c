/* Combines two parts of a softmax. */
#include "kernels/ref/ref.h"

#include <math.h>

/* One row of one head. */
static void join_row(int64_t n, real *o, real *lse, const real *o2, double lse2)
{
    double max = (double)*lse > lse2 ? (double)*lse : lse2;
    double own = exp((double)*lse - max), other = exp(lse2 - max), sum = own + other;
    for (int64_t j = 0; j < n; j++)
        o[j] = (real)((own * (double)o[j] + other * (double)o2[j]) / sum);
    *lse = (real)(max + log(sum));
}

void KERN_FN(attention_join)(struct kern_stream *s, const struct kern_attention_join *a)
{
    for (int64_t row = 0; row < a->batch * a->seq; row++)
        for (int64_t h = 0; h < a->heads; h++) {
            int64_t at = (row / a->seq * a->heads + h) * a->seq + row % a->seq;
            join_row(a->head_dim, (real *)a->o + row * a->o_stride + h * a->head_dim, (real *)a->lse + at,
                     (const real *)a->o2 + row * a->o2_stride + h * a->head_dim, (double)((const real *)a->lse2)[at]);
        }
}
