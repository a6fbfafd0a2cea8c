/* The sampler is a bijection for every size, looks random, and never changes: the order of the data is part of a
 * checkpoint. */
#include "common/base/clock.h"
#include "common/data/data.h"
#include "tests/lib/test.h"

#include <math.h>

static uint8_t seen[(1 << 20) + 2];

static void check_bijection(uint64_t seed, int64_t n, int64_t pass)
{
    memset(seen, 0, (size_t)n);
    for (int64_t i = 0; i < n; i++) {
        int64_t at = data_sampler(seed, n, pass * n + i);
        if (at < 0 || at >= n || seen[at])
            fail_msg("n %lld, seed %llu, pass %lld: position %lld gives %lld, %s", (long long)n,
                     (unsigned long long)seed, (long long)pass, (long long)i, (long long)at,
                     at < 0 || at >= n ? "outside" : "a second time");
        seen[at] = 1;
    }
}

TEST(bijection_at_every_small_size)
{
    for (int64_t n = 1; n <= 400; n++)
        for (int64_t pass = 0; pass < 2; pass++)
            check_bijection((uint64_t)n * 7, n, pass);
}

TEST(bijection_around_powers_of_two)
{
    for (int k = 9; k <= 20; k++) {
        int64_t n = (int64_t)1 << k;
        check_bijection(1, n - 1, 0);
        check_bijection(2, n, 3);
        check_bijection(3, n + 1, 1);
        check_bijection(4, n / 2 + n / 5, 0);
    }
}

TEST(inside_of_the_range_at_large_sizes)
{
    static const int64_t sizes[] = {(1LL << 31) + 1, (1LL << 32), (1LL << 40) + 12345, (1LL << 62) + 1, INT64_MAX};
    for (size_t s = 0; s < sizeof(sizes) / sizeof(sizes[0]); s++)
        for (int64_t i = 0; i < 1000; i++) {
            int64_t at = data_sampler(9, sizes[s], i);
            assert_true(at >= 0 && at < sizes[s]);
        }
}

/* Chi-square statistic: sum of squared normalized deviations of `cells` counts from their mean. */
static double chi_square(const int64_t *counts, int cells, double expected)
{
    double sum = 0;
    for (int i = 0; i < cells; i++)
        sum += ((double)counts[i] - expected) * ((double)counts[i] - expected) / expected;
    return sum;
}

/* Six standard deviations of a chi-square with `freedom` degrees. */
static void check_chi_square(double found, double freedom, const char *what, uint64_t seed, int64_t n)
{
    if (fabs(found - freedom) > 6 * sqrt(2 * freedom))
        fail_msg("%s: chi-square %.1f with %.0f degrees of freedom, seed %llu, n %lld", what, found, freedom,
                 (unsigned long long)seed, (long long)n);
}

TEST(position_says_nothing_about_the_sample)
{
    static const int64_t sizes[] = {1 << 16, 100000, (1 << 17) + 1};
    for (size_t s = 0; s < 3; s++)
        for (uint64_t seed = 0; seed < 8; seed++) {
            int64_t n = sizes[s], pairs[16 * 16] = {0};
            for (int64_t i = 0; i < n; i++)
                pairs[i * 16 / n * 16 + data_sampler(seed, n, i) * 16 / n]++;
            check_chi_square(chi_square(pairs, 256, (double)n / 256), 15 * 15, "pairs", seed, n);
        }
}

TEST(neighbours_are_far_apart)
{
    static const int64_t sizes[] = {1 << 16, 100000, (1 << 17) + 1};
    for (size_t s = 0; s < 3; s++)
        for (uint64_t seed = 0; seed < 8; seed++) {
            int64_t n = sizes[s], distances[64] = {0}, last = data_sampler(seed, n, 0);
            for (int64_t i = 1; i < n; i++) {
                int64_t at = data_sampler(seed, n, i);
                distances[(at - last + n) % n * 64 / n]++;
                last = at;
            }
            check_chi_square(chi_square(distances, 64, (double)(n - 1) / 64), 63, "distances", seed, n);
        }
}

static int64_t same_places(uint64_t seed_a, int64_t from_a, uint64_t seed_b, int64_t from_b, int64_t n)
{
    int64_t same = 0;
    for (int64_t i = 0; i < n; i++)
        same += data_sampler(seed_a, n, from_a + i) == data_sampler(seed_b, n, from_b + i);
    return same;
}

TEST(seeds_and_passes_have_orders_of_their_own)
{
    const int64_t n = 10000; /* two unrelated orders have one fixed point on average; 10 have a probability of 1e-7 */
    for (uint64_t k = 1; k <= 8; k++) {
        assert_true(same_places(0, 0, k, 0, n) < 10);
        assert_true(same_places(5, 0, 5, (int64_t)k * n, n) < 10);
        assert_true(same_places(k, 0, 0, (int64_t)k * n, n) < 10);
    }
}

TEST(the_order_never_changes)
{
    static const struct {
        uint64_t seed;
        int64_t n, position, sample;
    } golden[] = {
#include "tests/common/data/sampler_golden.inc"
    };
    for (size_t i = 0; i < sizeof(golden) / sizeof(golden[0]); i++)
        assert_int_equal(data_sampler(golden[i].seed, golden[i].n, golden[i].position), golden[i].sample);
}

TEST(speed)
{
    static const int64_t sizes[] = {1 << 20, (1 << 20) + 1, 100000000};
    for (size_t s = 0; s < 3; s++) {
        int64_t start = clock_mono_ns(), sum = 0, count = 200000;
        for (int64_t i = 0; i < count; i++)
            sum += data_sampler(1, sizes[s], i);
        printf("n %lld: %.1f ns a sample (%lld)\n", (long long)sizes[s],
               (double)(clock_mono_ns() - start) / (double)count, (long long)(sum & 1));
    }
}
