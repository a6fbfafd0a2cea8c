/* The tables of the PTX ISA, sections mma.m16n8k16 (.bf16), mma.m16n8k8 (.tf32) and ldmatrix, register by register, for
 * lane l with groupID = l >> 2 and threadID_in_group = l & 3. */
#include "tests/gpu/ptx_cases.h"
#include "tests/lib/test.h"

#include <float.h>
#include <math.h>

static uint32_t x[32][PTX_WORDS], r[32][PTX_WORDS];

static void probe(enum ptx_probe what)
{
    memset(r, 0x77, sizeof(r));
    int e = ptx_probe_run(what, &x[0][0], &r[0][0]);
    if (e)
        fail_msg("case %d: cudart returns %d", (int)what, e);
}

static uint32_t bits_of(float f)
{
    uint32_t b;
    memcpy(&b, &f, sizeof(b));
    return b;
}

static float float_of(uint32_t b)
{
    float f;
    memcpy(&f, &b, sizeof(f));
    return f;
}

/* ---- ldmatrix: element (i, j) of matrix m is 100 m + 10 i + j ---- */

static void check_ldmatrix(enum ptx_probe what)
{
    for (uint32_t row = 0; row < 32; row++)
        for (uint32_t w = 0; w < 4; w++) {
            uint32_t low = 100 * (row / 8) + 10 * (row % 8) + 2 * w;
            x[row][w] = low | (low + 1) << 16;
        }
    probe(what);
    for (uint32_t l = 0; l < 32; l++)
        for (uint32_t m = 0; m < 4; m++) {
            uint32_t group = l >> 2, in_group = l & 3;
            uint32_t low = 100 * m + 10 * group + 2 * in_group, high = low + 1;
            if (what == PTX_LDMATRIX_TRANS) {
                low = 100 * m + 10 * (2 * in_group) + group;
                high = low + 10;
            }
            if (r[l][m] != (low | high << 16))
                fail_msg("ldmatrix%s: lane %u register %u is %08x, expected %08x",
                         what == PTX_LDMATRIX_TRANS ? ".trans" : "", l, m, r[l][m], low | high << 16);
        }
}

/* ---- mma: small integers, so that every sum is exact in whatever order ---- */

static double a[16][16], b[16][8], c[16][8];

static void fill_factors(int k)
{
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < k; j++)
            a[i][j] = (i * 7 + j * 3 + i * j) % 17 - 8;
    for (int i = 0; i < k; i++)
        for (int j = 0; j < 8; j++)
            b[i][j] = (i * 5 + j * 11 + i * j * 3) % 19 - 9;
    for (int i = 0; i < 16; i++)
        for (int j = 0; j < 8; j++)
            c[i][j] = i * 100 + j;
}

static uint32_t bf16_bits(double v)
{
    return bits_of((float)v) >> 16; /* small integers are exact */
}

static void put_bf16(uint32_t l)
{
    uint32_t group = l >> 2, t = l & 3;
    for (uint32_t i = 0; i < 8; i++) {
        uint32_t row = i < 2 || (i >= 4 && i < 6) ? group : group + 8, column = t * 2 + (i & 1) + (i >= 4 ? 8 : 0);
        x[l][i / 2] |= bf16_bits(a[row][column]) << (i % 2 ? 16 : 0);
    }
    for (uint32_t i = 0; i < 4; i++)
        x[l][4 + i / 2] |= bf16_bits(b[t * 2 + (i & 1) + (i >= 2 ? 8 : 0)][group]) << (i % 2 ? 16 : 0);
}

static void put_tf32(uint32_t l)
{
    uint32_t group = l >> 2, t = l & 3;
    for (uint32_t i = 0; i < 4; i++)
        x[l][i] = bits_of((float)a[i == 0 || i == 2 ? group : group + 8][i < 2 ? t : t + 4]);
    for (uint32_t i = 0; i < 2; i++)
        x[l][4 + i] = bits_of((float)b[i == 0 ? t : t + 4][group]);
}

static void check_mma(enum ptx_probe what)
{
    int k = what == PTX_MMA_BF16 ? 16 : 8;
    memset(x, 0, sizeof(x));
    fill_factors(k);
    for (uint32_t l = 0; l < 32; l++) {
        (what == PTX_MMA_BF16 ? put_bf16 : put_tf32)(l);
        for (uint32_t i = 0; i < 4; i++)
            x[l][6 + i] = bits_of((float)c[(l >> 2) + (i < 2 ? 0 : 8)][(l & 3) * 2 + (i & 1)]);
    }
    probe(what);
    for (uint32_t l = 0; l < 32; l++)
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t row = (l >> 2) + (i < 2 ? 0 : 8), column = (l & 3) * 2 + (i & 1);
            double want = c[row][column];
            for (int j = 0; j < k; j++)
                want += a[row][j] * b[j][column];
            if ((double)float_of(r[l][i]) != want)
                fail_msg("mma k=%d: lane %u register %u is %g, expected %g", k, l, i, (double)float_of(r[l][i]), want);
        }
}

/* ---- numbers ---- */

static const float numbers[32] = {0,          -0.0f,       1,          -1,         1.5f,      0x1.002p0f, 0x1.001p0f,
                                  0x1.003p0f, -0x1.001p0f, 0x1.ffep0f, 0x1.fffp0f, 0x1.01p0f, 0x1.03p0f,  0x1.0101p0f,
                                  0x1.ffp0f,  0x1.feffp0f, 3.14159f,   -2.71828f,  0.1f,      -0.3f,      1e-20f,
                                  -1e-20f,    1e20f,       -1e20f,     100.25f,    -100.75f,  7e-3f,      -126,
                                  -125.5f,    20.125f,     INFINITY,   -INFINITY};

static void check_tf32(void)
{
    for (int l = 0; l < 32; l++)
        x[l][0] = bits_of(numbers[l]);
    probe(PTX_TF32);
    for (int l = 0; l < 32; l++) {
        double want = numbers[l];
        int e;
        if (isfinite(want) && want != 0) {
            double m = frexp(want, &e) * 0x1p11; /* 11 significant bits before the point */
            want = ldexp(round(m), e - 11);      /* halves away from zero */
        }
        if ((double)float_of(r[l][0] & 0xffffe000u) != want)
            fail_msg("tf32 of %a is %a, expected %a", (double)numbers[l], (double)float_of(r[l][0]), want);
    }
}

static double to_bf16(double v)
{
    int e;
    if (!isfinite(v) || v == 0)
        return v;
    double m = frexp(v, &e) * 0x1p8;
    return ldexp(nearbyint(m), e - 8);
}

static void check_pack(void)
{
    for (int l = 0; l < 32; l++) {
        x[l][0] = bits_of(numbers[l]);
        x[l][1] = bits_of(numbers[31 - l]);
    }
    probe(PTX_PACK_BF16);
    for (int l = 0; l < 32; l++) {
        assert_true((double)float_of(r[l][0] << 16) == to_bf16(numbers[l]));
        assert_true((double)float_of(r[l][0] & 0xffff0000u) == to_bf16(numbers[31 - l]));
    }
}

static void check_exp2(void)
{
    for (int l = 0; l < 32; l++)
        x[l][0] = bits_of(l == 0 ? NAN : numbers[l]);
    probe(PTX_EXP2);
    assert_true(isnan(float_of(r[0][0])));
    for (int l = 1; l < 32; l++) {
        double want = exp2((double)numbers[l]), got = (double)float_of(r[l][0]);
        if (want < 0x1p-126)
            want = 0;
        if (want > FLT_MAX)
            want = (double)INFINITY;
        if (isfinite(want) ? fabs(got - want) > 0x1p-22 * want : got != want)
            fail_msg("2^%a is %a, expected %a", (double)numbers[l], got, want);
    }
}

static void check_async(void)
{
    for (uint32_t l = 0; l < 32; l++)
        for (uint32_t i = 0; i < 4; i++)
            x[l][i] = 1000 + l * 4 + i;
    probe(PTX_ASYNC);
    for (uint32_t l = 0; l < 32; l++)
        for (uint32_t i = 0; i < 4; i++)
            assert_int_equal(r[l][i], (31 - l) % 2 ? 0 : 1000 + (31 - l) * 4 + i);
}

void ptx_cases_run(void)
{
    check_ldmatrix(PTX_LDMATRIX);
    check_ldmatrix(PTX_LDMATRIX_TRANS);
    check_mma(PTX_MMA_BF16);
    check_mma(PTX_MMA_TF32);
    check_tf32();
    check_pack();
    check_exp2();
    check_async();
}
