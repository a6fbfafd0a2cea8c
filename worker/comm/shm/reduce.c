/* Elementwise reductions, two small loops per type and operation, made by macro and found by table: the first two
 * sources into the piece, and one more source into it.
 *
 * They run over pieces of 2,048 elements: the piece of the result stays in the first cache while the sources stream
 * through, and is written once, so that the destination may be one of the sources. A NaN in any source is a NaN in the
 * result, for minimum and maximum too: a broken gradient must not hide. Integer sums wrap. */
#include "worker/comm/shm/shm.h"

#include <string.h>

#define PIECE 2048

typedef void (*join_fn)(void *restrict acc, const void *first, const void *second, int64_t n);
typedef void (*combine_fn)(void *restrict acc, const void *restrict x, int64_t n);
typedef void (*divide_fn)(void *acc, int64_t n, int by);

/* The expression is of a, what there is, and b, what comes. */
#define COMBINE(name, type, expression)                                                           \
    static void name(void *restrict acc, const void *restrict src, int64_t n)                     \
    {                                                                                             \
        type *to = acc;                                                                           \
        const type *x = src;                                                                      \
        for (int64_t i = 0; i < n; i++) {                                                         \
            const type a = to[i], b = x[i];                                                       \
            to[i] = (expression);                                                                 \
        }                                                                                         \
    }                                                                                             \
    static void name##_join(void *restrict acc, const void *first, const void *second, int64_t n) \
    {                                                                                             \
        type *restrict to = acc;                                                                  \
        const type *x = first, *y = second;                                                       \
        for (int64_t i = 0; i < n; i++) {                                                         \
            const type a = x[i], b = y[i];                                                        \
            to[i] = (expression);                                                                 \
        }                                                                                         \
    }
#define DIVIDE(name, type)                         \
    static void name(void *acc, int64_t n, int by) \
    {                                              \
        type *a = acc;                             \
        for (int64_t i = 0; i < n; i++)            \
            a[i] = a[i] / (type)by;                \
    }

COMBINE(sum_f32, float, a + b)
COMBINE(min_f32, float, (b < a || b != b) ? b : a)
COMBINE(max_f32, float, (b > a || b != b) ? b : a)
COMBINE(sum_f64, double, a + b)
COMBINE(min_f64, double, (b < a || b != b) ? b : a)
COMBINE(max_f64, double, (b > a || b != b) ? b : a)
COMBINE(sum_i32, int32_t, (int32_t)((uint32_t)a + (uint32_t)b))
COMBINE(min_i32, int32_t, b < a ? b : a)
COMBINE(max_i32, int32_t, b > a ? b : a)
COMBINE(sum_i64, int64_t, (int64_t)((uint64_t)a + (uint64_t)b))
COMBINE(min_i64, int64_t, b < a ? b : a)
COMBINE(max_i64, int64_t, b > a ? b : a)
DIVIDE(divide_f32, float)
DIVIDE(divide_f64, double)
DIVIDE(divide_i32, int32_t)
DIVIDE(divide_i64, int64_t)

#define ROW(type)                           \
    {                                       \
        {[REDUCE_SUM] = sum_##type##_join,  \
         [REDUCE_MIN] = min_##type##_join,  \
         [REDUCE_MAX] = max_##type##_join,  \
         [REDUCE_AVG] = sum_##type##_join}, \
            {[REDUCE_SUM] = sum_##type,     \
             [REDUCE_MIN] = min_##type,     \
             [REDUCE_MAX] = max_##type,     \
             [REDUCE_AVG] = sum_##type},    \
            divide_##type                   \
    }
static const struct {
    join_fn join[REDUCE_AVG + 1];
    combine_fn combine[REDUCE_AVG + 1];
    divide_fn divide;
} table[] = {
    [DT_F32] = ROW(f32),
    [DT_F64] = ROW(f64),
    [DT_I32] = ROW(i32),
    [DT_I64] = ROW(i64),
};

void shm_reduce(void *dst, const void *const *src, int n_src, int64_t n, enum dtype dtype, enum reduce_op op, bool add)
{
    _Alignas(64) uint8_t acc[PIECE * 8];
    const size_t size = dtype_bytes(dtype);
    for (int64_t at = 0; at < n; at += PIECE) {
        int64_t m = n - at < PIECE ? n - at : PIECE;
        size_t skip = (size_t)at * size, bytes = (size_t)m * size;
        if (n_src == 1)
            memcpy(acc, (const uint8_t *)src[0] + skip, bytes);
        else
            table[dtype].join[op](acc, (const uint8_t *)src[0] + skip, (const uint8_t *)src[1] + skip, m);
        for (int i = 2; i < n_src; i++)
            table[dtype].combine[op](acc, (const uint8_t *)src[i] + skip, m);
        if (op == REDUCE_AVG)
            table[dtype].divide(acc, m, n_src);
        if (add)
            table[dtype].combine[REDUCE_SUM](acc, (uint8_t *)dst + skip, m);
        memcpy((uint8_t *)dst + skip, acc, bytes);
    }
}

void shm_divide(void *x, int64_t n, enum dtype dtype, int by)
{
    table[dtype].divide(x, n, by);
}
