/* The choice of tokens against counted frequencies, and against probabilities computed here. */
#include "tests/lib/test.h"

#include "worker/choose.h"

#include <math.h>

#define N 50

static void fill(float *logits)
{
    for (int i = 0; i < N; i++)
        logits[i] = (float)((i * 29) % 17) / 4.0f;
}

static int32_t choose(const struct choose_rule *rule, const float *logits, uint64_t position)
{
    static struct choose_room room;
    if (!room.n)
        assert_ok(choose_room_init(&room, N));
    return choose_token(rule, logits, NULL, 0, position, &room);
}

TEST(temperature_zero_takes_the_first_of_the_largest)
{
    float logits[N];
    const struct choose_rule rule = {.temperature = 0, .seed = 3};
    fill(logits);
    int best = 0;
    for (int i = 0; i < N; i++)
        best = logits[i] > logits[best] ? i : best;
    for (uint64_t position = 0; position < 20; position++)
        assert_int_equal(choose(&rule, logits, position), best);
}

/* Frequencies over many positions are those of `p`, within 4.5 standard deviations. */
static void check_frequencies(const struct choose_rule *rule, const float *logits, const double *p)
{
    double sum = 0;
    int count[N] = {0};
    const int draws = 20000;
    for (int i = 0; i < N; i++)
        sum += p[i];
    for (uint64_t position = 0; position < (uint64_t)draws; position++)
        count[choose(rule, logits, position)]++;
    for (int i = 0; i < N; i++) {
        double q = p[i] / sum, deviation = sqrt(draws * q * (1 - q));
        if (fabs(count[i] - draws * q) > 4.5 * deviation)
            fail_msg("token %d came %d times, %.1f expected", i, count[i], draws * q);
    }
}

/* exp(logit / temperature) of the k most likely tokens, the first ones of equal ones. */
static void softmax(const float *logits, double temperature, int k, double *ret)
{
    for (int i = 0; i < N; i++) {
        int better = 0;
        for (int j = 0; j < N; j++)
            better += logits[j] > logits[i] || (logits[j] == logits[i] && j < i);
        ret[i] = better < k ? exp((double)logits[i] / temperature) : 0;
    }
}

TEST(tokens_have_the_frequencies_of_softmax)
{
    float logits[N];
    double p[N];
    fill(logits);
    softmax(logits, 1, N, p);
    check_frequencies(&(struct choose_rule){.temperature = 1, .seed = 1}, logits, p);
    softmax(logits, 0.5, N, p);
    check_frequencies(&(struct choose_rule){.temperature = 0.5, .seed = 2}, logits, p);
    softmax(logits, 2, 7, p);
    check_frequencies(&(struct choose_rule){.temperature = 2, .seed = 3, .top_k = 7}, logits, p);
}

/* Logits ln 8, ln 4, ln 2, ln 1, ln 1: probabilities 8/16, 4/16, 2/16, 1/16, 1/16 of the tokens 3, 0, 4, 1, 2. All
 * others are impossible. */
static const double of_16[5] = {4, 1, 1, 8, 2};

static void check_kept(struct choose_rule rule, unsigned kept)
{
    float logits[N];
    double p[N] = {0};
    for (int i = 0; i < N; i++)
        logits[i] = i < 5 ? (float)log(of_16[i]) : -1e30f;
    for (int i = 0; i < 5; i++)
        p[i] = kept >> i & 1 ? of_16[i] : 0;
    rule.temperature = 1;
    check_frequencies(&rule, logits, p);
}

TEST(filters_keep_the_likely_tokens)
{
    enum { T0 = 1, T1 = 2, T2 = 4, T3 = 8, T4 = 16 };
    check_kept((struct choose_rule){.top_p = 0.4}, T3);
    check_kept((struct choose_rule){.top_p = 0.51}, T3 | T0);
    check_kept((struct choose_rule){.top_p = 0.76}, T3 | T0 | T4);
    check_kept((struct choose_rule){.top_p = 0.9}, T3 | T0 | T4 | T1); /* the first of equal ones */
    check_kept((struct choose_rule){.top_p = 1}, T0 | T1 | T2 | T3 | T4);
    check_kept((struct choose_rule){.min_p = 0.3}, T3 | T0);
    check_kept((struct choose_rule){.min_p = 0.1}, T0 | T1 | T2 | T3 | T4);
    check_kept((struct choose_rule){.min_p = 0.2, .top_p = 0.99}, T3 | T0 | T4);
    check_kept((struct choose_rule){.top_k = 3}, T3 | T0 | T4);
    check_kept((struct choose_rule){.top_k = 3, .top_p = 0.85}, T3 | T0);      /* 12/14 */
    check_kept((struct choose_rule){.top_k = 3, .top_p = 0.86}, T3 | T0 | T4); /* of the three, not of all */
    check_kept((struct choose_rule){.top_k = 4, .min_p = 0.3, .top_p = 0.9}, T3 | T0);
}

/* A penalty of 2 halves a logit above 0 and doubles one below, once however often the token occurs. */
TEST(the_penalty_is_for_tokens_of_the_text)
{
    const float logits[4] = {3, 1.6f, -1, -1.5f}, other[4] = {3, 1.4f, -1, -1.5f};
    const int32_t first[] = {0, 0, 0, 7, -1}, three[] = {0, 1, 2};
    const struct choose_rule rule = {.penalty = 2}, none = {.penalty = 1};
    struct choose_room room;
    assert_ok(choose_room_init(&room, 4));
    assert_int_equal(choose_token(&none, logits, first, 5, 0, &room), 0);
    assert_int_equal(choose_token(&rule, logits, first, 5, 0, &room), 1); /* 1.5 and 1.6 */
    assert_int_equal(choose_token(&rule, other, first, 5, 0, &room), 0);  /* 1.5, not 0.375, and 1.4 */
    assert_int_equal(choose_token(&rule, logits, three, 3, 0, &room), 0); /* 1.5, 0.8, -2, -1.5 */
    const float low[4] = {-1, -1.5f, -3, -9};
    assert_int_equal(choose_token(&rule, low, first, 5, 0, &room), 1); /* -2 */
    choose_room_fini(&room);
}

TEST(top_one_is_the_likeliest)
{
    float logits[N];
    fill(logits);
    const struct choose_rule one = {.temperature = 1.0, .top_k = 1}, zero = {.temperature = 0};
    for (uint64_t position = 0; position < 50; position++)
        assert_int_equal(choose(&one, logits, position), choose(&zero, logits, position));
}
