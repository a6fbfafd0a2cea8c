/* One job on 1, 2, 3, 4 and 5 workers must have the same losses, gradients and parameters. The batch of 7 samples in
 * microbatches of 2 is divisible by no number of workers; with 5 workers, one has no samples. */
#include "tests/parity/compare.h"

#include <math.h>

#define STEPS 20

static struct parity_result *run_in(const char *yaml, const char *numerics, const char *dtype, int workers,
                                    struct parity_model *m)
{
    char w[32], n[48], d[48];
    snprintf(w, sizeof(w), "parallel.workers=%d", workers);
    snprintf(n, sizeof(n), "train.numerics=%s", numerics);
    snprintf(d, sizeof(d), "train.dtype=%s", dtype);
    const char *sets[] = {w, n, d, NULL};
    parity_model_init(m, yaml, sets);
    return parity_run(m, STEPS, NULL);
}

static struct parity_result *run(const char *yaml, const char *numerics, int workers, struct parity_model *m)
{
    return run_in(yaml, numerics, strcmp(numerics, "proof") == 0 ? "float64" : "float32", workers, m);
}

static void check_learns(const struct parity_result *r)
{
    assert_true(r->loss[STEPS - 1] <
                r->loss[0] - 0.2); /* the model must learn, otherwise the comparison proves nothing */
    assert_true(isfinite(r->valid) && r->valid > 0);
}

static void proof_matrix(const char *yaml)
{
    struct parity_model one, many;
    struct parity_result *a = run(yaml, "proof", 1, &one);
    check_learns(a);
    parity_check_zero(&one.graph, a->grad, a->n);
    for (int workers = 2; workers <= 5; workers++) {
        struct parity_result *b = run(yaml, "proof", workers, &many);
        parity_compare_bounds(&one.graph, a, b, STEPS);
        parity_result_free(b);
        parity_model_fini(&many);
    }
    parity_result_free(a);
    parity_model_fini(&one);
}

TEST(llama_in_proof_mode)
{
    proof_matrix(parity_llama);
}

TEST(gpt2_in_proof_mode)
{
    proof_matrix(parity_gpt2);
}

static void canonical_matrix(const char *yaml, const char *dtype)
{
    struct parity_model one, many;
    struct parity_result *a = run_in(yaml, "canonical", dtype, 1, &one);
    check_learns(a);
    for (int workers = 2; workers <= 5; workers++) {
        struct parity_result *b = run_in(yaml, "canonical", dtype, workers, &many);
        parity_compare_bits(a, b, STEPS);
        parity_result_free(b);
        parity_model_fini(&many);
    }
    parity_result_free(a);
    parity_model_fini(&one);
}

TEST(llama_in_canonical_numerics_bit_for_bit)
{
    canonical_matrix(parity_llama, "float32");
}

TEST(gpt2_in_canonical_numerics_bit_for_bit)
{
    canonical_matrix(parity_gpt2, "float32");
}

TEST(llama_in_canonical_bfloat16_bit_for_bit)
{
    canonical_matrix(parity_llama, "bfloat16");
}

TEST(gpt2_in_canonical_bfloat16_bit_for_bit)
{
    canonical_matrix(parity_gpt2, "bfloat16");
}

/* Fast numerics do not promise equal bits, but equal training. */
TEST(fast_numerics_agree_to_rounding)
{
    struct parity_model one, many;
    struct parity_result *a = run(parity_llama, "fast", 1, &one), *b = run(parity_llama, "fast", 3, &many);
    check_learns(a);
    for (int s = 0; s < STEPS; s++)
        assert_true(fabs(a->loss[s] - b->loss[s]) <= 1e-4 * a->loss[s]);
    parity_result_free(a);
    parity_result_free(b);
    parity_model_fini(&one);
    parity_model_fini(&many);
}
