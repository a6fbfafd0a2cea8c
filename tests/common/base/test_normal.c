/* Normal numbers: that they stay as they are, since a checkpoint's job is begun again from a seed; and that they are
 * what Box and Muller's formula gives with the logarithm and the cosine of the C library. */
#include "tests/lib/test.h"

#include "common/base/rng.h"

#include <float.h>

/* Recorded on x86-64; Python's floats, which fuse nothing, give the same bits. */
TEST(normal_known_bits)
{
    static const struct {
        uint64_t seed, stream, position;
        double x;
    } known[] = {
        {0, 0, 0, -0x1.f1bcd549837e1p-4},
        {0x1, 0x2, 0x3, -0x1.0cc0733f47799p-1},
        {0x7, 0x5e66d619484093f9u, 0, 0x1.7830d046b77bep-3},
        {0x7, 0x5e66d619484093f9u, 0x1, -0x1.fd1113769186ep-2},
        {0x123456789abcdef0u, 0xfedcba9876543210u, 0xfedcba987654321u, -0x1.b0f6033377968p-2},
        {0xffffffffffffffffu, 0xffffffffffffffffu, 0xffffffffffffffffu, -0x1.1d0237eb0dfc4p+0},
        {0x2a, 0x2c403a3125427ab5u, 0x12d687, -0x1.fdf474cf82ea6p+0},
        {0x2a, 0x5, 0x100000000u, 0x1.0b434a4e4b066p-2},
        {0x2a, 0x5, 0xffffffff, -0x1.c4894c62680fap-1},
        {0x1, 0x1, 0x4d, -0x1.4a0c6be5bfe69p-3},
    };
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        assert_true(rng_normal(known[i].seed, known[i].stream, known[i].position) == known[i].x);
}

static double formula(const uint32_t r[4])
{
    double u = ((double)((((uint64_t)r[0] << 32) | r[1]) >> 11) + 1.0) * 0x1p-53;
    double v = (double)((((uint64_t)r[2] << 32) | r[3]) >> 11) * 0x1p-53;
    return sqrt(-2.0 * log(u)) * cos(6.283185307179586476925286766559 * v);
}

/* In float64 both round differently here and there. In float32 that shows up in less than one number of 10^9: none of
 * these, or one on a C library that rounds worse. */
TEST(normal_is_the_formula_in_float32)
{
    int differ = 0;
    for (uint64_t i = 0; i < 2000000; i++) {
        uint32_t r[4];
        rng_at(7, 9, i, r);
        double want = formula(r), got = rng_normal(7, 9, i);
        assert_true(fabs(got - want) <= 4 * DBL_EPSILON * fmax(fabs(want), 1));
        differ += (float)got != (float)want;
    }
    assert_true(differ <= 1);
}

/* Distance in units in the last place of the float64 nearest to `want`. */
static double ulps(double got, long double want)
{
    double at = fabs((double)want);
    return (double)fabsl(((long double)got - want) / ((long double)nextafter(at, INFINITY) - (long double)at));
}

TEST(logarithm_and_cosine_are_within_their_bounds)
{
    double log_worst = 0, cos_worst = 0;
    for (uint64_t i = 0; i < 1000000; i++) {
        /* numbers near 1 and near 0 as well as those between */
        double v = rng_uniform(3, 4, i), u = ldexp(v + 0x1p-53, -(int)(i % 4 ? i % 50 : 0));
        double angle = 6.283185307179586476925286766559 * v;
        log_worst = fmax(log_worst, ulps(rng_normal_log(u), logl((long double)u)));
        cos_worst = fmax(cos_worst, ulps(rng_normal_cosine(v, v >= 0.5), cosl((long double)angle)));
    }
    print_message("log %.3f ulp, cosine %.3f ulp\n", log_worst, cos_worst);
    assert_true(log_worst < 1 && cos_worst < 3);
}

TEST(normal_at_the_ends_of_its_words)
{
    const uint64_t all = 0xffffffffu;
    assert_true(rng_normal_log(1) == 0 && rng_normal_of_words(all, all, 0, 0) == 0);
    assert_true(fabs(rng_normal_of_words(0, 0, 0, 0) - sqrt(106 * log(2))) < 1e-14);
    assert_true(fabs(rng_normal_of_words(0, 0, 0x80000000u, 0) + sqrt(106 * log(2))) < 1e-14);
    assert_true(rng_normal_uniform(all, all) == 1 - 0x1p-53 && rng_normal_uniform(0, 0x7ff) == 0);
    assert_true(rng_normal_uniform(0, 0x800) == 0x1p-53 && rng_normal_uniform(1, 0) == 0x1p-32);
}
