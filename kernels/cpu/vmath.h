/* Functions of vectors: exp and the logistic function in float32, exp, sine and cosine in float64. Private to
 * kernels/cpu.
 *
 * Bounds, measured by tests/kernels/test_vmath.c over the whole range: v_exp 1.5 ulp, v_exp_d 2 ulp, v_sigmoid 3 ulp,
 * v_tanh 4 ulp, v_sincos 1e-11 absolute for |x| < 2^20. GELU has no use for v_tanh: 1 + tanh(u) = 2 sigmoid(2u), which
 * also keeps its digits for large -u. */
#ifndef DTD_KERNELS_CPU_VMATH_H
#define DTD_KERNELS_CPU_VMATH_H

#include "kernels/cpu/simd.h"

/* e^x = 2^n e^r, |r| <= ln 2 / 2. The polynomial in r interpolates (e^r - 1 - r) / r^2 at the Chebyshev nodes, 1.0e-8
 * relative. Results reach FLT_MAX; larger ones become infinite. Below e^-86 (4.5e-38) the result is
 * 0, because subnormals would cost more than they are worth. A NaN stays a NaN: minimum and maximum then return their
 * second operand. */
static ALWAYS_INLINE vf v_exp(vf x)
{
    const vf magic = v_set(0x1.8p23f); /* adding it leaves the nearest integer in the low bits */
    vf y = v_min(v_set(89.0f), x);
#if !defined(__AVX512F__)
    y = v_max(v_set(-86.0f), y);
#endif
    vf shifted = v_fma(y, v_set(0x1.715476p+0f), magic), n = shifted - magic;
    vf r = v_fma(n, v_set(-0x1.62e4p-1f), y); /* ln 2 in two parts; the first has 15 bits, so n times it is exact */
    r = v_fma(n, v_set(-0x1.7f7d1cp-20f), r);
    vf p = v_fma(v_set(0x1.6d113cp-10f), r, v_set(0x1.120ba2p-7f));
    p = v_fma(p, r, v_set(0x1.55551ap-5f));
    p = v_fma(p, r, v_set(0x1.5554dcp-3f));
    p = v_fma(p, r, v_set(0.5f));
    p = v_fma(p, r, v_set(1.0f));
    p = v_fma(p, r, v_set(1.0f));
#if defined(__AVX512F__)
    __mmask16 keep = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-86.0f), _CMP_NLT_UQ);
    return (vf)_mm512_maskz_scalef_ps(keep, (__m512)p, (__m512)n);
#else
    vi scale = (((vi)shifted - (vi)magic) + 126) << 23; /* 2^(n-1), so that n = 128 fits */
    return v_select(x < v_set(-86.0f), (vf){0}, p * (vf)scale * 2.0f);
#endif
}

/* 1 / x for normal x in [1, 2^126] */
static ALWAYS_INLINE vf v_reciprocal(vf x)
{
#if defined(__AVX512F__)
    vf r = (vf)_mm512_rcp14_ps((__m512)x), error = v_fma(-x, r, v_set(1.0f));
    return v_fma(r, v_fma(error, error, error), r); /* 14 bits become 42 */
#else
    return 1.0f / x;
#endif
}

/* The result is never below e^-86, an error only for x below -86. */
static ALWAYS_INLINE vf v_sigmoid(vf x)
{
    return v_reciprocal(1.0f + v_exp(v_min(v_set(86.0f), -x)));
}

/* x + x^3 p(x^2) for |x| < 5/8, where the other formula would lose digits; p interpolates (tanh(x) / x - 1) / x^2 at
 * the Chebyshev nodes, 4.3e-8. Else 1 - 2 / (e^2|x| + 1) with the sign of x; above 40 that is 1. A NaN stays a NaN. */
static ALWAYS_INLINE vf v_tanh(vf x)
{
    const vf z = x * x, size = v_max(-x, x);
    vf p = v_fma(v_set(-0x1.8f8de4p-8f), z, v_set(0x1.58048ep-6f));
    p = v_fma(p, z, v_set(-0x1.b9258ap-5f));
    p = v_fma(p, z, v_set(0x1.110e1cp-3f));
    p = v_fma(p, z, v_set(-0x1.555552p-2f));
    vf large = v_fma(v_reciprocal(1.0f + v_exp(v_min(v_set(40.0f), size + size))), v_set(-2.0f), v_set(1.0f));
    return v_select(size < v_set(0.625f), v_fma(x * z, p, x), v_select(x < (vf){0}, -large, large));
}

/* e^x as v_exp computes it, with the Taylor series up to r^13 (4e-18 relative). Infinite above e^709.78; 0 below
 * e^-708, because subnormals would cost more than they are worth. A NaN stays a NaN. */
static ALWAYS_INLINE vd v_exp_d(vd x)
{
    const vd magic = v_set_d(0x1.8p52);
    vd y = v_select_d(x > v_set_d(710), v_set_d(710), x);
    y = v_select_d(y < v_set_d(-709), v_set_d(-709), y);
    vd shifted = v_fma_d(y, v_set_d(0x1.71547652b82fep+0), magic), n = shifted - magic;
    vd r = v_fma_d(n, v_set_d(-0x1.62e42fefa38p-1), y); /* the first part of ln 2 has 42 bits, so n times it is exact */
    r = v_fma_d(n, v_set_d(-0x1.ef35793c7673p-45), r);
    vd p = v_set_d(1.0 / 6227020800);
    static const double terms[] = {
        1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720,
        1.0 / 120,       1.0 / 24,       1.0 / 6,       0.5,          1,           1};
    for (int i = 0; i < (int)(sizeof(terms) / sizeof(terms[0])); i++)
        p = v_fma_d(p, r, v_set_d(terms[i]));
    vl power = (((vl)shifted - (vl)magic) + 1022) << 52; /* 2^(n-1), so that n = 1024 fits */
    return v_select_d(x < v_set_d(-708), (vd){0}, p * (vd)power * 2.0);
}

/* Quarter turns are subtracted with pi/2 in two parts (the first has 33 bits); the Taylor series takes the remainder.
 */
static ALWAYS_INLINE void v_sincos(vd x, vd *ret_sin, vd *ret_cos)
{
    const vd magic = 0x1.8p52 - (vd){0};
    vd n = v_fma_d(x, 0x1.45f306dc9c883p-1 - (vd){0}, magic);
    vl quarter = (vl)n - (vl)magic;
    n -= magic;
    vd r = v_fma_d(n, -0x1.921fb544p+0 - (vd){0}, x);
    r = v_fma_d(n, -0x1.0b4611a626331p-34 - (vd){0}, r);
    vd z = r * r;
    vd s = ((((-1.0 / 39916800 * z + 1.0 / 362880) * z - 1.0 / 5040) * z + 1.0 / 120) * z - 1.0 / 6) * z * r + r;
    vd c =
        (((((1.0 / 479001600 * z - 1.0 / 3628800) * z + 1.0 / 40320) * z - 1.0 / 720) * z + 1.0 / 24) * z - 0.5) * z +
        1.0;
    vl swap = -(quarter & 1), sin_sign = (quarter & 2) << 62, cos_sign = ((quarter + 1) & 2) << 62;
    vl sb = (swap & (vl)c) | (~swap & (vl)s), cb = (swap & (vl)s) | (~swap & (vl)c);
    *ret_sin = (vd)(sb ^ sin_sign);
    *ret_cos = (vd)(cb ^ cos_sign);
}

#endif
