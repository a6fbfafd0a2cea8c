/* Functions of vectors: exp and the logistic function in float32, sine and cosine in float64. Private to kernels/cpu.
 *
 * Bounds, measured by tests/kernels/test_vmath.c over the whole range: v_exp 1.5 ulp, v_sigmoid 3 ulp, v_sincos 1e-11
 * absolute for |x| < 2^20. tanh needs no code of its own: 1 + tanh(u) = 2 sigmoid(2u), which also keeps its digits for
 * large -u. */
#ifndef DTD_KERNELS_CPU_VMATH_H
#define DTD_KERNELS_CPU_VMATH_H

#include "kernels/cpu/simd.h"

/* e^x = 2^n e^r, |r| <= ln 2 / 2, e^r = 1 + r + r^2 p(r); p interpolates at the Chebyshev nodes, 1.0e-8 relative. 2^n
 * is put together as 2 * 2^(n-1), so that results up to FLT_MAX are reached and larger ones become infinite. Below
 * e^-86 (4.5e-38) the result is 0: subnormals would cost more than they are worth. A NaN stays one. */
static ALWAYS_INLINE vf v_exp(vf x)
{
    const vf magic = v_set(0x1.8p23f); /* adding it leaves the nearest integer in the low bits */
    vi tiny = x < v_set(-86.0f);
    vf y = v_select(x > v_set(89.0f), v_set(89.0f), v_select(tiny, v_set(-86.0f), x));
    vf n = v_fma(y, v_set(0x1.715476p+0f), magic);
    vi scale = (((vi)n - (vi)magic) + 126) << 23;
    n -= magic;
    vf r = v_fma(n, v_set(-0x1.62e4p-1f), y); /* ln 2 in two parts; the first has 15 bits, so n times it is exact */
    r = v_fma(n, v_set(-0x1.7f7d1cp-20f), r);
    vf p = v_fma(v_set(0x1.6d113cp-10f), r, v_set(0x1.120ba2p-7f));
    p = v_fma(p, r, v_set(0x1.55551ap-5f));
    p = v_fma(p, r, v_set(0x1.5554dcp-3f));
    p = v_fma(p, r, v_set(0.5f));
    vf e = v_fma(r * r, p, r) + 1.0f;
    return v_select(tiny, (vf){0}, e * (vf)scale * 2.0f);
}

static ALWAYS_INLINE vf v_sigmoid(vf x)
{
    return 1.0f / (1.0f + v_exp(-x));
}

/* Quarter turns are taken off with pi/2 in two parts (the first has 33 bits), what is left goes into Taylor's series.
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
