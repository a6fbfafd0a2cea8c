/* Stopping and going on equals never stopping: bit for bit with the same workers, and in canonical numerics with any.
 */
#include "tests/parity/harness.h"

#include <math.h>

#define STOP 7
#define STEPS 15

static void model(struct parity_model *m, const char *yaml, const char *numerics, int workers)
{
    char w[32], n[48];
    snprintf(w, sizeof(w), "parallel.workers=%d", workers);
    snprintf(n, sizeof(n), "train.numerics=%s", numerics);
    const char *sets[] = {w, n, NULL};
    parity_model_init(m, yaml, sets);
}

/* 0 when all bits are equal, else the largest relative difference of the parameters. */
static double stop_and_go(const char *yaml, const char *numerics, int before, int after)
{
    struct parity_model m, first, second;
    model(&m, yaml, numerics, before);
    model(&first, yaml, numerics, before);
    model(&second, yaml, numerics, after);
    struct store *store = store_new(&m.graph, strcmp(numerics, "proof") == 0 ? DT_F64 : DT_F32);
    struct parity_options save = {.save = store}, load = {.load = store};
    struct parity_result *a = parity_run(&m, STEPS, NULL), *b = parity_run(&first, STOP, &save);
    assert_int_equal(store_bad_elements(store), 0);
    struct parity_result *c = parity_run(&second, STEPS, &load);
    double worst = 0;
    for (int s = STOP; s < STEPS; s++)
        worst = fmax(worst, fabs(a->loss[s] - c->loss[s]) / a->loss[s]);
    for (int64_t i = 0; i < a->n; i++)
        worst = fmax(worst, fabs(a->param[i] - c->param[i]) / (fabs(a->param[i]) + 1e-3));
    assert_true(c->loss[STEPS - 1] < b->loss[0]);
    parity_result_free(a);
    parity_result_free(b);
    parity_result_free(c);
    store_free(store);
    parity_model_fini(&m);
    parity_model_fini(&first);
    parity_model_fini(&second);
    return worst;
}

TEST(resume_on_the_same_workers_is_bit_for_bit)
{
    assert_true(stop_and_go(parity_llama, "canonical", 2, 2) == 0);
    assert_true(stop_and_go(parity_gpt2, "fast", 3, 3) == 0);
    assert_true(stop_and_go(parity_llama, "proof", 1, 1) == 0);
}

TEST(canonical_resume_on_other_workers_is_bit_for_bit)
{
    assert_true(stop_and_go(parity_llama, "canonical", 2, 3) == 0);
    assert_true(stop_and_go(parity_gpt2, "canonical", 4, 1) == 0);
}

TEST(proof_resume_on_other_workers_is_within_proof_bounds)
{
    double worst = stop_and_go(parity_llama, "proof", 3, 2);
    assert_true(worst > 0 && worst < 1e-9);
}
