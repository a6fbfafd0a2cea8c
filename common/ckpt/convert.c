/* Every conversion between floating-point types rounds once, to nearest, ties to even. The element loops are simple
 * enough for the compiler to vectorize. */
#include "common/ckpt/ckpt_priv.h"

#include <string.h>

typedef void (*convert_fn)(void *dst, const void *src, size_t n);

static float bf16_to_f32(uint16_t v)
{
    uint32_t bits = (uint32_t)v << 16;
    float f;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

static uint16_t f32_to_bf16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof(bits));
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | 0x40); /* keeps a quiet NaN quiet */
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

static float f16_to_f32(uint16_t v)
{
    uint32_t sign = (uint32_t)(v & 0x8000) << 16, exp = (v >> 10) & 31, man = v & 1023;
    uint32_t bits;
    float f;
    if (exp == 0) { /* zero and subnormals: man x 2^-24 is exact */
        f = (float)man * 0x1p-24f;
        return sign ? -f : f;
    }
    bits = sign | (exp == 31 ? 0x7f800000u | man << 13 : (exp + 112) << 23 | man << 13);
    memcpy(&f, &bits, sizeof(f));
    return f;
}

static uint16_t f32_to_f16(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof(bits));
    uint16_t sign = (uint16_t)((bits >> 16) & 0x8000);
    uint32_t abs = bits & 0x7fffffffu;
    if (abs > 0x7f800000u)
        return sign | 0x7e00;
    if (abs >= 0x477ff000u) /* rounds to 65536 or is infinite */
        return sign | 0x7c00;
    if (abs < 0x38800000u) { /* below 2^-14: the sum with 1/2 rounds at 2^-24 */
        float a;
        uint32_t r;
        memcpy(&a, &abs, sizeof(a));
        a += 0.5f;
        memcpy(&r, &a, sizeof(r));
        return (uint16_t)(sign | (r - 0x3f000000u));
    }
    abs += 0xfffu + ((abs >> 13) & 1);
    return (uint16_t)(sign | ((abs - 0x38000000u) >> 13));
}

/* A conversion from double to 16 bits must not round twice: it rounds to float towards odd, then to nearest. */
static float f64_to_odd(double d)
{
    float f = (float)d;
    uint32_t bits;
    memcpy(&bits, &f, sizeof(bits));
    if ((double)f == d || d != d || (bits & 1))
        return f;
    bool away = (double)f > d ? d > 0 : d < 0; /* |f| > |d| */
    bits = away ? bits - 1 : bits | 1;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

#define LOOP(name, to_type, from_type, expression)                    \
    static void name(void *dst, const void *src, size_t n)            \
    {                                                                 \
        for (size_t i = 0; i < n; i++) {                              \
            from_type x;                                              \
            memcpy(&x, (const char *)src + i * sizeof(x), sizeof(x)); \
            to_type y = (expression);                                 \
            memcpy((char *)dst + i * sizeof(y), &y, sizeof(y));       \
        }                                                             \
    }
LOOP(f32_f64, double, float, x)
LOOP(f32_bf16, uint16_t, float, f32_to_bf16(x))
LOOP(f32_f16, uint16_t, float, f32_to_f16(x))
LOOP(f64_f32, float, double, (float)x)
LOOP(f64_bf16, uint16_t, double, f32_to_bf16(f64_to_odd(x)))
LOOP(f64_f16, uint16_t, double, f32_to_f16(f64_to_odd(x)))
LOOP(bf16_f32, float, uint16_t, bf16_to_f32(x))
LOOP(bf16_f64, double, uint16_t, bf16_to_f32(x))
LOOP(bf16_f16, uint16_t, uint16_t, f32_to_f16(bf16_to_f32(x)))
LOOP(f16_f32, float, uint16_t, f16_to_f32(x))
LOOP(f16_f64, double, uint16_t, f16_to_f32(x))
LOOP(f16_bf16, uint16_t, uint16_t, f32_to_bf16(f16_to_f32(x)))

/* [from][to] */
static const convert_fn table[DT_F16 + 1][DT_F16 + 1] = {
    [DT_F32] = {[DT_F64] = f32_f64, [DT_BF16] = f32_bf16, [DT_F16] = f32_f16},
    [DT_F64] = {[DT_F32] = f64_f32, [DT_BF16] = f64_bf16, [DT_F16] = f64_f16},
    [DT_BF16] = {[DT_F32] = bf16_f32, [DT_F64] = bf16_f64, [DT_F16] = bf16_f16},
    [DT_F16] = {[DT_F32] = f16_f32, [DT_F64] = f16_f64, [DT_BF16] = f16_bf16},
};

static convert_fn find_convert(enum dtype from, enum dtype to)
{
    return from <= DT_F16 && to <= DT_F16 ? table[from][to] : NULL;
}

bool convert_is_possible(enum dtype from, enum dtype to)
{
    return from == to || find_convert(from, to);
}

void convert(void *dst, enum dtype to, const void *src, enum dtype from, size_t n)
{
    if (from == to)
        memcpy(dst, src, n * dtype_bytes(from));
    else
        find_convert(from, to)(dst, src, n);
}
