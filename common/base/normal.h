/* A standard normal number from 128 random bits, by Box and Muller (1958): sqrt(-2 log u) cos(2 pi v).
 *
 * A job must start from the same bits on every processor and every GPU. Therefore this file calls no mathematical
 * library: the results of log and cos differ between versions of a library, between processors with and without fused
 * multiply-add, and between a processor and a GPU. Each operation here is one of + - * / sqrt in float64, rounded to
 * nearest by itself (IEEE 754), which gives the same bits everywhere. A compiler must not fuse two of them: the host is
 * compiled with -ffp-contract=off, and device code names each operation.
 *
 * No include guard: one inclusion per kind of numbers. The includer defines
 *   NORMAL_FN                                   what stands in front of a function: static inline
 *   NORMAL_NAME(name)                           the name of a function
 *   NORMAL_REAL, NORMAL_WORD                    double and uint64_t, or vectors of as many of each
 *   NORMAL_ADD(a, b), _SUB, _MUL, _DIV, _SQRT(a)  one operation; b may be a constant, for a vector of itself
 *   NORMAL_BITS(real), NORMAL_FROM_BITS(word)   the same bits as the other type
 *
 * tests/common/base/test_normal.c measures both functions: the logarithm is off by less than 1 ulp, the cosine by less
 * than 3. */
#define NORMAL_STEP(p, x, c) NORMAL_ADD(NORMAL_MUL(p, x), c)

/* The upper 53 of the 64 bits (high, low) as a number in [0, 1); high and low are words of 32 bits. The words become
 * the last bits of 2^20 + high 2^-32 and of 2^-1 + (low / 2^11) 2^-53. Every operation is exact. */
NORMAL_FN NORMAL_REAL NORMAL_NAME(uniform)(NORMAL_WORD high, NORMAL_WORD low)
{
    NORMAL_REAL a = NORMAL_FROM_BITS(high | 0x4130000000000000u);
    NORMAL_REAL b = NORMAL_FROM_BITS(low >> 11 | 0x3fe0000000000000u);
    return NORMAL_ADD(NORMAL_SUB(a, 0x1p20 + 0.5), b);
}

/* Natural logarithm of a normal number u > 0. With u = 2^e (1 + f), 1 + f in [sqrt(1/2), sqrt(2)), and s = f / (2 + f):
 * log(1 + f) = 2 artanh s = f - f^2/2 + s (f^2/2 + r), where r = 2 s^2/3 + 2 s^4/5 + .. + 2 s^20/21 (s^2 < 0.0295, so
 * the next term is below 2^-58 of the result). This order of the sum is that of fdlibm's log. ln 2 comes in two parts;
 * the first has 33 bits, so that e times it is exact. */
NORMAL_FN NORMAL_REAL NORMAL_NAME(log)(NORMAL_REAL u)
{
    /* sqrt(1/2) is moved to 1: the exponent's bits are then those of 2^e. */
    NORMAL_WORD bits = NORMAL_BITS(u), power = (bits + (0x3ff0000000000000u - 0x3fe6a09e667f3bcdu)) >> 52;
    NORMAL_REAL e = NORMAL_SUB(NORMAL_FROM_BITS(power | 0x4330000000000000u), 0x1p52 + 1023);
    NORMAL_REAL f = NORMAL_SUB(NORMAL_FROM_BITS(bits - (power << 52) + 0x3ff0000000000000u), 1.0);
    NORMAL_REAL s = NORMAL_DIV(f, NORMAL_ADD(f, 2.0)), z = NORMAL_MUL(s, s), half = NORMAL_MUL(NORMAL_MUL(f, f), 0.5);
    NORMAL_REAL r = NORMAL_ADD(NORMAL_MUL(z, 2.0 / 21), 2.0 / 19);
    r = NORMAL_STEP(r, z, 2.0 / 17);
    r = NORMAL_STEP(r, z, 2.0 / 15);
    r = NORMAL_STEP(r, z, 2.0 / 13);
    r = NORMAL_STEP(r, z, 2.0 / 11);
    r = NORMAL_STEP(r, z, 2.0 / 9);
    r = NORMAL_STEP(r, z, 2.0 / 7);
    r = NORMAL_STEP(r, z, 2.0 / 5);
    r = NORMAL_STEP(r, z, 2.0 / 3);
    r = NORMAL_MUL(r, z);
    r = NORMAL_ADD(NORMAL_MUL(s, NORMAL_ADD(half, r)), NORMAL_MUL(e, 0x1.a39ef35793c76p-33));
    return NORMAL_ADD(NORMAL_SUB(f, NORMAL_SUB(half, r)), NORMAL_MUL(e, 0x1.62e42feep-1));
}

/* cos(2 pi v) for v in [0, 1) whose uppermost bit (of 53) is `upper`, 0 or 1. n = 1 + 2 upper is the nearer of the
 * angles pi/2 and 3 pi/2 in quarter turns, where the cosine is -sin(r) or sin(r) of what is left, |r| <= pi/2. pi/2
 * comes in two parts, the first of 33 bits. The sine is Taylor's series up to r^21 (the next term is below 2^-59). */
NORMAL_FN NORMAL_REAL NORMAL_NAME(cosine)(NORMAL_REAL v, NORMAL_WORD upper)
{
    NORMAL_REAL n = NORMAL_FROM_BITS(0x3ff0000000000000u + (upper << 51) + (upper << 52)); /* 1.0 or 3.0 */
    NORMAL_REAL angle = NORMAL_MUL(v, 6.283185307179586476925286766559);
    NORMAL_REAL r = NORMAL_SUB(NORMAL_SUB(angle, NORMAL_MUL(n, 0x1.921fb544p+0)), NORMAL_MUL(n, 0x1.0b4611a626331p-34));
    NORMAL_REAL z = NORMAL_MUL(r, r);
    NORMAL_REAL p = NORMAL_ADD(NORMAL_MUL(z, 1.0 / 51090942171709440000.0), -1.0 / 121645100408832000.0);
    p = NORMAL_STEP(p, z, 1.0 / 355687428096000.0);
    p = NORMAL_STEP(p, z, -1.0 / 1307674368000.0);
    p = NORMAL_STEP(p, z, 1.0 / 6227020800.0);
    p = NORMAL_STEP(p, z, -1.0 / 39916800.0);
    p = NORMAL_STEP(p, z, 1.0 / 362880.0);
    p = NORMAL_STEP(p, z, -1.0 / 5040.0);
    p = NORMAL_STEP(p, z, 1.0 / 120.0);
    p = NORMAL_STEP(p, z, -1.0 / 6.0);
    NORMAL_REAL sine = NORMAL_ADD(r, NORMAL_MUL(NORMAL_MUL(r, z), p));
    return NORMAL_MUL(NORMAL_SUB(n, 2.0), sine);
}

/* The two factors of the number that the 32-bit words a, b, c, d make: u = (a, b) + 2^-53 in (0, 1], v = (c, d). */
NORMAL_FN NORMAL_REAL NORMAL_NAME(radius)(NORMAL_WORD a, NORMAL_WORD b)
{
    NORMAL_REAL u = NORMAL_ADD(NORMAL_NAME(uniform)(a, b), 0x1p-53);
    return NORMAL_SQRT(NORMAL_MUL(NORMAL_NAME(log)(u), -2.0));
}

NORMAL_FN NORMAL_REAL NORMAL_NAME(direction)(NORMAL_WORD c, NORMAL_WORD d)
{
    return NORMAL_NAME(cosine)(NORMAL_NAME(uniform)(c, d), c >> 31);
}

NORMAL_FN NORMAL_REAL NORMAL_NAME(of_words)(NORMAL_WORD a, NORMAL_WORD b, NORMAL_WORD c, NORMAL_WORD d)
{
    return NORMAL_MUL(NORMAL_NAME(radius)(a, b), NORMAL_NAME(direction)(c, d));
}

#undef NORMAL_STEP
