/* Frequencies of rotary positions against those that transformers 5 computes in float32, of real models. */
#include "tests/common/plan/plan_fixture.h"

#include <math.h>

static const struct {
    struct job_model m;          /* heads 1: dim columns */
    double factor, frequency[6]; /* of pairs 0, 1, n / 4, n / 2, 3 n / 4, n - 1 */
} models[] = {
    /* Llama 3.2 1B, Llama 3.1 8B */
    {{.dim = 64, .rope_type = ROPE_LLAMA3, .rope_theta = 5e5, .rope_factor = 32, .rope_original = 8192},
     1,
     {1, .663601279, .0376060307, 4.29556705e-4, 1.66196742e-6, 9.41830649e-8}},
    {{.dim = 128, .rope_type = ROPE_LLAMA3, .rope_theta = 5e5, .rope_factor = 8, .rope_original = 8192},
     1,
     {1, .814617217, .0376060307, 5.24846022e-4, 6.64786967e-6, 3.06892588e-7}},
    {{.dim = 128, .rope_type = ROPE_LINEAR, .rope_theta = 1e4, .rope_factor = 4},
     1,
     {.25, .216491088, .0250000004, .00249999994, 2.50000012e-4, 2.88695483e-5}},
    /* Qwen 2.5 with 131,072 positions */
    {{.dim = 128, .rope_type = ROPE_YARN, .rope_theta = 1e6, .rope_factor = 4, .rope_original = 32768},
     1.13862944,
     {1, .805842221, .0316227786, 6.02941145e-4, 7.90569356e-6, 3.10234441e-7}},
    {{.dim = 128, .rope_type = ROPE_DYNAMIC, .rope_theta = 1e4, .rope_factor = 2, .rope_original = 4096},
     1,
     {1, .865964323, .1, .01, .001, 1.15478198e-4}},
};

static void build(const struct job_model *like, struct graph *ret)
{
    struct job_model m = *like;
    struct why why;
    m.arch = ARCH_LLAMA;
    m.layers = m.heads = m.kv_heads = 1;
    m.vocab = 32;
    m.norm_eps = 1e-5;
    m.rope_low = m.rope_slow = 1;
    m.rope_high = 4;
    m.rope_fast = 32;
    assert_ok(graph_build(&m, 16, ret, &why));
}

TEST(frequencies_are_those_of_transformers)
{
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
        struct graph g;
        build(&models[i].m, &g);
        const int64_t n = g.ropes[0].pairs, at[] = {0, 1, n / 4, n / 2, 3 * n / 4, n - 1};
        assert_int_equal(n, models[i].m.dim / 2);
        assert_true(fabs(g.ropes[0].factor - models[i].factor) < 1e-7);
        for (int k = 0; k < 6; k++)
            if (!(fabs(g.ropes[0].frequency[at[k]] / models[i].frequency[k] - 1) < 3e-7))
                fail_msg("model %zu: frequency %d is %.9g, expected %.9g", i, k, g.ropes[0].frequency[at[k]],
                         models[i].frequency[k]);
        graph_fini(&g);
    }
}

/* Pythia turns a quarter of a head: the frequencies are those of a head of that many columns. Half a pair is none. */
TEST(a_part_of_a_head_turns_as_a_smaller_head)
{
    struct graph part, small;
    build(&(struct job_model){.dim = 64, .rope_theta = 1e4, .rope_part = 0.25}, &part);
    build(&(struct job_model){.dim = 16, .rope_theta = 1e4}, &small);
    assert_int_equal(part.ropes[0].pairs, 8);
    assert_memory_equal(part.ropes[0].frequency, small.ropes[0].frequency, 8 * sizeof(double));
    graph_fini(&part);
    build(&(struct job_model){.dim = 64, .rope_theta = 1e4, .rope_part = 0.36}, &part);
    assert_int_equal(part.ropes[0].pairs, 11);
    graph_fini(&part);
    graph_fini(&small);
}

/* Phi-3 with 131,072 positions: short factors of 1.1, long ones of 5. A sequence of as many tokens as the model was
 * first trained on is short. */
TEST(longrope_chooses_by_the_sequence)
{
    static const double expected[] = {.909090877, .750367403, .0909090936, .0090909088, 9.09090915e-4, 1.10138863e-4};
    static char short_text[] = "1.1", long_text[] = "5";
    static const int at[] = {0, 1, 12, 24, 36, 47};
    char *shorts[48], *longs[48];
    for (int i = 0; i < 48; i++) {
        shorts[i] = short_text;
        longs[i] = long_text;
    }
    const struct job_model m = {.arch = ARCH_LLAMA,
                                .dim = 96,
                                .layers = 1,
                                .heads = 1,
                                .vocab = 32,
                                .norm_eps = 1e-5,
                                .rope_theta = 1e4,
                                .rope_type = ROPE_LONGROPE,
                                .rope_factor = 32,
                                .rope_original = 4096,
                                .rope_short = shorts,
                                .rope_long = longs,
                                .n_rope_short = 48,
                                .n_rope_long = 48};
    for (int is_long = 0; is_long < 2; is_long++) {
        struct graph g;
        struct why why;
        assert_ok(graph_build(&m, 4096 + is_long, &g, &why));
        assert_true(fabs(g.ropes[0].factor - 1.19023807) < 1e-7);
        for (int k = 0; k < 6; k++) {
            double want = is_long ? expected[k] * 1.1 / 5 : expected[k];
            assert_true(fabs(g.ropes[0].frequency[at[k]] / want - 1) < 3e-7);
        }
        graph_fini(&g);
    }
    struct job_model few = m;
    struct graph g;
    struct why why;
    few.n_rope_long = 47;
    assert_err(ERR_INVALID, graph_build(&few, 16, &g, &why));
    assert_message(&why, "needs 48 numbers");
}

TEST(factors_of_yarn)
{
    static const struct {
        double attention, mscale, all, factor;
    } cases[] = {{0, 0, 0, 1.36888794}, {0.5, 0, 0, 0.5}, {0, 1, 0, 1.36888794}, {0, 0.707, 1, 0.921042355}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct graph g;
        build(&(struct job_model){.dim = 64,
                                  .rope_type = ROPE_YARN,
                                  .rope_theta = 1e4,
                                  .rope_factor = 40,
                                  .rope_original = 4096,
                                  .rope_attention = cases[i].attention,
                                  .rope_mscale = cases[i].mscale,
                                  .rope_mscale_all = cases[i].all},
              &g);
        if (!(fabs(g.ropes[0].factor - cases[i].factor) < 1e-7))
            fail_msg("factor %.9g, expected %.9g", g.ropes[0].factor, cases[i].factor);
        graph_fini(&g);
    }
}
