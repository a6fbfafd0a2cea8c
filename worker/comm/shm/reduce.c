/* Elementwise reductions, one small loop per type and operation, made by macro and found by table.
 *
 * They run over pieces of 2,048 elements: the piece of the result stays in the first cache while the sources stream
 * through, and is written once, so that the destination may be one of the sources. A NaN in any source is a NaN in the
 * result, for minimum and maximum too: a broken gradient must not hide. Integer sums wrap. */
#include "worker/comm/shm/shm.h"

#include <string.h>

#define PIECE 2048

typedef void (*combine_fn)(void *acc, const void *x, int64_t n);
typedef void (*divide_fn)(void *acc, int64_t n, int by);

#define COMBINE(name, type, expression)                     \
    static void name(void *acc, const void *src, int64_t n) \
    {                                                       \
        type *a = acc;                                      \
        const type *x = src;                                \
        for (int64_t i = 0; i < n; i++)                     \
            a[i] = (expression);                            \
    }
#define DIVIDE(name, type)                         \
    static void name(void *acc, int64_t n, int by) \
    {                                              \
        type *a = acc;                             \
        for (int64_t i = 0; i < n; i++)            \
            a[i] = a[i] / (type)by;                \
    }

COMBINE(sum_f32, float, a[i] + x[i])
COMBINE(min_f32, float, (x[i] < a[i] || x[i] != x[i]) ? x[i] : a[i])
COMBINE(max_f32, float, (x[i] > a[i] || x[i] != x[i]) ? x[i] : a[i])
COMBINE(sum_f64, double, a[i] + x[i])
COMBINE(min_f64, double, (x[i] < a[i] || x[i] != x[i]) ? x[i] : a[i])
COMBINE(max_f64, double, (x[i] > a[i] || x[i] != x[i]) ? x[i] : a[i])
COMBINE(sum_i32, int32_t, (int32_t)((uint32_t)a[i] + (uint32_t)x[i]))
COMBINE(min_i32, int32_t, x[i] < a[i] ? x[i] : a[i])
COMBINE(max_i32, int32_t, x[i] > a[i] ? x[i] : a[i])
COMBINE(sum_i64, int64_t, (int64_t)((uint64_t)a[i] + (uint64_t)x[i]))
COMBINE(min_i64, int64_t, x[i] < a[i] ? x[i] : a[i])
COMBINE(max_i64, int64_t, x[i] > a[i] ? x[i] : a[i])
DIVIDE(divide_f32, float)
DIVIDE(divide_f64, double)
DIVIDE(divide_i32, int32_t)
DIVIDE(divide_i64, int64_t)

static const struct {
    combine_fn combine[REDUCE_AVG + 1];
    divide_fn divide;
} table[] = {
    [DT_F32] = {{[REDUCE_SUM] = sum_f32, [REDUCE_MIN] = min_f32, [REDUCE_MAX] = max_f32, [REDUCE_AVG] = sum_f32},
                divide_f32},
    [DT_F64] = {{[REDUCE_SUM] = sum_f64, [REDUCE_MIN] = min_f64, [REDUCE_MAX] = max_f64, [REDUCE_AVG] = sum_f64},
                divide_f64},
    [DT_I32] = {{[REDUCE_SUM] = sum_i32, [REDUCE_MIN] = min_i32, [REDUCE_MAX] = max_i32, [REDUCE_AVG] = sum_i32},
                divide_i32},
    [DT_I64] = {{[REDUCE_SUM] = sum_i64, [REDUCE_MIN] = min_i64, [REDUCE_MAX] = max_i64, [REDUCE_AVG] = sum_i64},
                divide_i64},
};

void shm_reduce(void *dst, const void *const *src, int n_src, int64_t n, enum dtype dtype, enum reduce_op op, bool add)
{
    _Alignas(64) uint8_t acc[PIECE * 8];
    const size_t size = dtype_bytes(dtype);
    for (int64_t at = 0; at < n; at += PIECE) {
        int64_t m = n - at < PIECE ? n - at : PIECE;
        size_t skip = (size_t)at * size, bytes = (size_t)m * size;
        memcpy(acc, (const uint8_t *)src[0] + skip, bytes);
        for (int i = 1; i < n_src; i++)
            table[dtype].combine[op](acc, (const uint8_t *)src[i] + skip, m);
        if (op == REDUCE_AVG)
            table[dtype].divide(acc, m, n_src);
        if (add)
            table[dtype].combine[REDUCE_SUM](acc, (uint8_t *)dst + skip, m);
        memcpy((uint8_t *)dst + skip, acc, bytes);
    }
}
