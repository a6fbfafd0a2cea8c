/* A model that classifies texts: one target for each sample, at a place of its own, and a head with a few rows. No
 * layout and no microbatch changes the loss, the gradients and the parameters after a few steps. */
#include "tests/parity/compare.h"

#include <math.h>

#define LABELS 6
#define STEPS 3
#define LAYOUT(...) ((const char *const[]){__VA_ARGS__, NULL})

static struct parity_result *run(const char *yaml, const char *numerics, const char *const *layout)
{
    struct parity_model m = {0};
    char n[48];
    const char *sets[16] = {n, "model.layers=4", "model.labels=6", "train.clip=100"}; /* never clips */
    snprintf(n, sizeof(n), "train.numerics=%s", numerics);
    for (int i = 0; layout[i]; i++)
        sets[i + 4] = layout[i];
    parity_model_init(&m, yaml, sets);
    struct parity_result *r = parity_run(&m, STEPS, NULL);
    parity_model_fini(&m);
    return r;
}

static const char *const texts[] = {parity_gpt2, parity_llama};

/* The first loss is near ln 6: a mean over samples, and not over tokens. */
TEST(the_loss_is_the_mean_over_samples)
{
    for (int i = 0; i < 2; i++) {
        struct parity_result *r = run(texts[i], "proof", LAYOUT("parallel.workers=1"));
        assert_true(fabs(r->loss[0] - log(LABELS)) < 0.2);
        parity_result_free(r);
    }
}

TEST(no_layout_changes_a_gradient)
{
    const char *const *const list[] = {
        LAYOUT("parallel.workers=2", "parallel.tp=2"),
        LAYOUT("parallel.workers=4", "parallel.tp=4", "parallel.sp=true"), /* 1, 2, 1 and 2 labels */
        LAYOUT("parallel.workers=2", "parallel.cp=2"),
        LAYOUT("parallel.workers=4", "parallel.tp=2", "parallel.fsdp=2", "parallel.zero=3"),
        LAYOUT("parallel.workers=4", "parallel.tp=2", "parallel.pp=2"),
        LAYOUT("parallel.workers=4", "parallel.cp=2", "parallel.pp=2", "parallel.schedule=zb-h1"),
    };
    for (int k = 0; k < 2; k++) {
        struct parity_model m = {0};
        struct parity_result *alone = run(texts[k], "proof", LAYOUT("parallel.workers=1"));
        parity_model_init(&m, texts[k], LAYOUT("model.layers=4", "model.labels=6"));
        for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++) {
            print_message("model %d, layout %zu\n", k, i);
            struct parity_result *r = run(texts[k], "proof", list[i]);
            parity_compare_bounds(&m.graph, alone, r, STEPS);
            parity_result_free(r);
        }
        parity_result_free(alone);
        parity_model_fini(&m);
    }
}

TEST(no_layout_changes_a_bit)
{
    const char *const *const list[] = {
        LAYOUT("parallel.workers=2"),
        LAYOUT("parallel.workers=3", "parallel.fsdp=3", "parallel.zero=3"),
        LAYOUT("parallel.workers=2", "parallel.pp=2"),
        LAYOUT("parallel.workers=2", "parallel.pp=2", "parallel.schedule=zb-h2", "parallel.post_validation=true"),
        LAYOUT("parallel.workers=2", "parallel.pp=2", "parallel.chunks=2", "parallel.schedule=zb-v"),
    };
    for (int k = 0; k < 2; k++) {
        struct parity_result *alone = run(texts[k], "canonical", LAYOUT("parallel.workers=1"));
        for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++) {
            print_message("model %d, layout %zu\n", k, i);
            struct parity_result *r = run(texts[k], "canonical", list[i]);
            parity_compare_bits(alone, r, STEPS);
            parity_result_free(r);
        }
        parity_result_free(alone);
    }
}
