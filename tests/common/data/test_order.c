/* The order of samples: proportions of every prefix, passes, limits, and bijections, against counting. */
#include "common/base/clock.h"
#include "common/data/data.h"
#include "common/data/order.h"
#include "tests/common/data/files.h"

static struct data_order *order_make(const struct order_source *sources, int n)
{
    struct data_order *o;
    assert_ok(order_new(sources, n, 5, SHUFFLE_SAMPLES, 1, &o));
    return o;
}

static int source_at(const struct data_order *o, int64_t position)
{
    int source;
    int64_t sample;
    order_at(o, position, &source, &sample);
    return source;
}

/* Computed with exact fractions by another program. */
TEST(sequences_of_sources)
{
    static const struct {
        int n;
        int64_t weights[4];
        const char *sequence;
    } rows[] = {
        {1, {9}, "0000000000"},
        {2, {1, 1}, "0101010101"},
        {3, {5, 3, 2}, "0102010102010201"},
        {3, {7, 2, 1}, "0001001002000100"},
        {4, {6, 1, 3, 4}, "0302032030102303"},
    };
    for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++) {
        struct order_source s[4];
        for (int i = 0; i < rows[r].n; i++)
            s[i] = (struct order_source){.samples = 100, .weight = rows[r].weights[i]};
        struct data_order *o = order_make(s, rows[r].n);
        for (int64_t p = 0; rows[r].sequence[p]; p++)
            assert_int_equal(source_at(o, p), rows[r].sequence[p] - '0');
        assert_true(order_end(o) == INT64_MAX);
        order_free(o);
    }
}

/* After every prefix |given - weight part| is below one sample; given is counted. */
static void check_prefixes(const int64_t *weights, int n, int64_t first, int64_t end)
{
    struct order_source s[16] = {0};
    int64_t given[16], sum = 0;
    for (int i = 0; i < n; i++) {
        s[i] = (struct order_source){.samples = 1000, .weight = weights[i]};
        sum += weights[i];
    }
    struct data_order *o = order_make(s, n);
    for (int i = 0; i < n; i++)
        given[i] = order_count(o, i, first);
    for (int64_t p = first; p < end; p++) {
        given[source_at(o, p)]++;
        for (int i = 0; i < n; i++) {
            __int128 off = (__int128)given[i] * sum - (__int128)(p + 1) * weights[i];
            if (off >= sum || off <= -sum)
                fail_msg("source %d of %d has given %lld of %lld", i, n, (long long)given[i], (long long)p + 1);
        }
    }
    for (int i = 0; i < n; i++)
        assert_int_equal(order_count(o, i, end), given[i]);
    order_free(o);
}

TEST(every_prefix_has_the_proportions)
{
    uint64_t state = 11;
    for (int round = 0; round < 300; round++) {
        int64_t weights[16];
        int n = 1 + (int)(random_next(&state) % 16);
        for (int i = 0; i < n; i++)
            weights[i] = 1 + (int64_t)(random_next(&state) % (round % 2 ? 1000 : 7));
        check_prefixes(weights, n, 0, 3000);
    }
    check_prefixes((int64_t[]){1000000, 1}, 2, 0, 2100000);
    check_prefixes((int64_t[]){611, 389, 47}, 3, 4000000000000, 4000000000000 + 3000);
}

TEST(a_source_gives_each_sample_once_per_pass)
{
    const struct order_source s[] = {{.samples = 17, .weight = 3}, {.samples = 40, .weight = 2}};
    struct data_order *o = order_make(s, 2);
    int64_t given[2] = {0}, times[2][40] = {{0}};
    for (int64_t p = 0; p < 500; p++) {
        int i;
        int64_t sample;
        order_at(o, p, &i, &sample);
        assert_in_range(sample, 0, s[i].samples - 1);
        assert_int_equal(times[i][sample]++, given[i]++ / s[i].samples);
    }
    order_free(o);
}

TEST(one_source_is_the_sampler)
{
    const struct order_source s = {.samples = 1000, .weight = 7};
    struct data_order *o = order_make(&s, 1);
    for (int64_t p = 0; p < 3000; p++) {
        int i;
        int64_t sample;
        order_at(o, p, &i, &sample);
        assert_int_equal(sample, data_sampler(5, 1000, p));
    }
    order_free(o);
}

TEST(sources_with_equal_sizes_have_orders_of_their_own)
{
    const struct order_source s[] = {{.samples = 1000, .weight = 1}, {.samples = 1000, .weight = 1}};
    struct data_order *o = order_make(s, 2);
    int same = 0;
    for (int64_t p = 0; p < 2000; p += 2) {
        int i;
        int64_t a, b;
        order_at(o, p, &i, &a);
        order_at(o, p + 1, &i, &b);
        same += a == b;
    }
    assert_in_range(same, 0, 10);
    order_free(o);
}

/* Half, three tenths and two tenths; the first may give 40 samples, the last 30. When a source has left, the others
 * have their proportions among themselves. */
TEST(a_source_leaves_after_its_passes)
{
    const struct order_source s[] = {{.samples = 20, .weight = 5, .passes = 2},
                                     {.samples = 9, .weight = 3},
                                     {.samples = 10, .weight = 2, .passes = 3}};
    struct data_order *o = order_make(s, 3);
    int64_t given[3] = {0}, p = 0, base[3];
    for (; given[0] < 40; p++)
        given[source_at(o, p)]++;
    assert_in_range(p, 79, 81);
    memcpy(base, given, sizeof(base));
    for (int64_t first = p; given[2] < 30; p++) {
        given[source_at(o, p)]++;
        assert_true(llabs((given[1] - base[1]) * 5 - (p + 1 - first) * 3) < 5);
    }
    for (int i = 0; i < 100; i++, p++)
        assert_int_equal(source_at(o, p), 1);
    assert_int_equal(order_count(o, 0, p), 40);
    assert_int_equal(order_count(o, 2, p), 30);
    assert_int_equal(order_count(o, 1, p), p - 70);
    assert_true(order_end(o) == INT64_MAX);
    order_free(o);
}

TEST(passes_go_on_when_another_source_leaves)
{
    const struct order_source s[] = {{.samples = 20, .weight = 5, .passes = 1}, {.samples = 40, .weight = 3}};
    struct data_order *o = order_make(s, 2);
    int64_t given = 0, times[40] = {0};
    for (int64_t p = 0; p < 400; p++) {
        int i;
        int64_t sample;
        order_at(o, p, &i, &sample);
        if (i == 1)
            assert_int_equal(times[sample]++, given++ / 40);
    }
    assert_int_equal(given, 380);
    order_free(o);
}

TEST(the_order_ends_when_all_have_left)
{
    const struct order_source s[] = {{.samples = 20, .weight = 5, .passes = 2},
                                     {.samples = 9, .weight = 3, .passes = 1}};
    struct data_order *o = order_make(s, 2);
    assert_int_equal(order_end(o), 49);
    int64_t given[2] = {0};
    for (int64_t p = 0; p < 49; p++)
        given[source_at(o, p)]++;
    assert_int_equal(given[0], 40);
    assert_int_equal(given[1], 9);
    assert_int_equal(order_count(o, 0, 49), 40);
    order_free(o);
}

TEST(weights_are_exact)
{
    struct why why = {""};
    int64_t w[4];
    assert_ok(order_weights((char *[]){"0.7", "0.2", "0.1"}, 3, w, &why));
    assert_true(w[0] == 7 && w[1] == 2 && w[2] == 1);
    assert_ok(order_weights((char *[]){"70", "20", "10.50", "0.25"}, 4, w, &why));
    assert_true(w[0] == 280 && w[1] == 80 && w[2] == 42 && w[3] == 1);
    static const char *const bad[] = {"0", "-1", "", "1e3", "0.0", "a", "1.2.3", "0.1234567891", "nan", " 1", "."};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char *texts[] = {(char *)(uintptr_t) "1", (char *)(uintptr_t)bad[i]};
        assert_int_equal(order_weights(texts, 2, w, &why), ERR_INVALID);
        assert_non_null(strstr(why.text, "is not a weight"));
    }
    assert_int_equal(order_weights((char *[]){"0.1234567", "0.7654321"}, 2, w, &why), ERR_INVALID);
    assert_non_null(strstr(why.text, "fewer digits"));
    assert_int_equal(order_weights((char *[]){"100000000000000000", "0.000000001"}, 2, w, &why), ERR_INVALID);
}

/* ---- blocks ---- */

static void check_blocks(int64_t n, int64_t block, int64_t pass)
{
    uint8_t *seen = calloc((size_t)n, 1);
    for (int64_t i = 0; i < n; i++) {
        int64_t at = order_shuffled(3, n, SHUFFLE_BLOCKS, block, pass * n + i);
        if (at < 0 || at >= n || seen[at])
            fail_msg("%lld samples, blocks of %lld: position %lld gives %lld", (long long)n, (long long)block,
                     (long long)i, (long long)at);
        seen[at] = 1;
    }
    free(seen);
}

TEST(blocks_give_each_sample_once)
{
    for (int64_t n = 1; n < 400; n++)
        for (int64_t block = 1; block < 6; block++)
            check_blocks(n, block, n % 3);
    check_blocks(1000003, 1000, 2);
}

/* Until the last window, 16 blocks are in use at a time: each is read completely before another begins. */
TEST(a_window_reads_16_blocks)
{
    const int64_t n = 100 * 50 + 7, block = 50;
    int64_t moved = 0;
    for (int64_t w = 0; w < 5; w++) {
        int blocks = 0;
        uint8_t seen[101] = {0};
        for (int64_t i = 0; i < 16 * block; i++) {
            int64_t at = order_shuffled(3, n, SHUFFLE_BLOCKS, block, n + w * 16 * block + i);
            blocks += !seen[at / block];
            seen[at / block] = 1;
            moved += llabs(at - (w * 16 * block + i));
        }
        assert_int_equal(blocks, 16);
    }
    assert_true(moved / (80 * block) > 16 * block); /* the mean is more than a window */
}

TEST(each_pass_has_other_blocks)
{
    int same = 0;
    for (int64_t i = 0; i < 5000; i++)
        same += order_shuffled(3, 5000, SHUFFLE_BLOCKS, 50, i) == order_shuffled(3, 5000, SHUFFLE_BLOCKS, 50, 5000 + i);
    assert_in_range(same, 0, 30);
}

TEST(the_time_of_a_position_is_printed)
{
    const struct order_source s[] = {{.samples = 1000003, .weight = 611, .passes = 3},
                                     {.samples = 70000001, .weight = 389},
                                     {.samples = 333667, .weight = 47, .passes = 2}};
    for (int shuffle = SHUFFLE_SAMPLES; shuffle <= SHUFFLE_BLOCKS; shuffle++) {
        struct data_order *o;
        int64_t sum = 0, begin = clock_mono_ns();
        assert_ok(order_new(s, 3, 5, (enum data_shuffle)shuffle, 2048, &o));
        int64_t made = clock_mono_ns();
        for (int64_t i = 0; i < 1000000; i++) {
            int source;
            int64_t sample;
            order_at(o, i * 7919, &source, &sample);
            sum += sample;
        }
        print_message("%.1f ns a position, %.3f ms to begin (%lld)\n", (double)(clock_mono_ns() - made) * 1e-6,
                      (double)(made - begin) * 1e-6, (long long)sum);
        order_free(o);
    }
}
