/* Tests a job's initial parameters: those of the whole model, in any layout. Every rank compares its pieces with the
 * values that the elements have by definition. */
#include "tests/parity/harness.h"

static const char *const layouts[][6] = {
    {"parallel.workers=1", NULL},
    {"parallel.workers=2", "parallel.tp=2", NULL},
    {"parallel.workers=3", "parallel.fsdp=3", "parallel.zero=3", NULL},
    {"parallel.workers=4", "parallel.tp=2", "parallel.fsdp=2", "parallel.zero=2", NULL},
    {"parallel.workers=4", "parallel.pp=2", "parallel.fsdp=2", "parallel.zero=1", NULL},
    {"parallel.workers=2", "parallel.tp=2", "train.seed=18446744073709551615", NULL},
};

static err_t check_pieces(void *arg, struct engine *e, struct why *why)
{
    int64_t wrong = parity_collect(e, PARITY_PARAM, arg, true);
    return wrong ? why_set(why, ERR_CORRUPT, "%lld elements of rank %d are wrong", (long long)wrong, e->config.rank)
                 : OK;
}

static void check_model(const char *yaml, const char *numerics)
{
    for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++) {
        const char *sets[8] = {numerics};
        for (int n = 0; layouts[i][n]; n++)
            sets[n + 1] = layouts[i][n];
        struct parity_model m;
        parity_model_init(&m, yaml, sets);
        double *want = calloc((size_t)m.graph.n_params, sizeof(double));
        assert_non_null(want);
        parity_first_params(&m, want);
        const struct parity_options o = {.before = check_pieces, .arg = want};
        parity_result_free(parity_run(&m, 0, &o));
        free(want);
        parity_model_fini(&m);
    }
}

TEST(every_layout_starts_from_the_same_float32)
{
    check_model(parity_llama, "train.numerics=fast");
    check_model(parity_gpt2, "train.numerics=fast");
    check_model(parity_transformer, "train.numerics=fast");
}

TEST(every_layout_starts_from_the_same_float64)
{
    check_model(parity_llama, "train.numerics=proof");
    check_model(parity_gpt2, "train.numerics=proof");
    check_model(parity_transformer, "train.numerics=proof");
}
