/* Stopping and resuming equals training without a stop: bit for bit with the same workers, and in canonical numerics
 * with any number. */
#include "tests/parity/harness.h"

#include <math.h>

#define STOP 7
#define STEPS 15

/* A layout as overrides, ended by NULL. */
#define LAYOUT(...) ((const char *const[]){__VA_ARGS__, NULL})

static void init_model(struct parity_model *m, const char *yaml, const char *numerics, const char *const *layout)
{
    char n[48];
    const char *sets[16] = {n};
    snprintf(n, sizeof(n), "train.numerics=%s", numerics);
    for (int i = 0; layout[i]; i++)
        sets[i + 1] = layout[i];
    parity_model_init(m, yaml, sets);
}

/* Returns 0 if all bits are equal, otherwise the largest relative difference of the parameters. */
static double stop_and_resume(const char *yaml, const char *numerics, const char *const *before,
                              const char *const *after)
{
    struct parity_model m, first, second;
    init_model(&m, yaml, numerics, before);
    init_model(&first, yaml, numerics, before);
    init_model(&second, yaml, numerics, after);
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
    for (int i = 0; i < PARITY_MAX_STATES; i++)
        worst = a->state[i] == c->state[i] ? worst : 1;
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

#define WORKERS_1 LAYOUT("parallel.workers=1")
#define WORKERS_2 LAYOUT("parallel.workers=2")
#define WORKERS_3 LAYOUT("parallel.workers=3")
#define WORKERS_4 LAYOUT("parallel.workers=4")

TEST(resume_on_the_same_workers_is_bit_for_bit)
{
    assert_true(stop_and_resume(parity_llama, "canonical", WORKERS_2, WORKERS_2) == 0);
    assert_true(stop_and_resume(parity_gpt2, "fast", WORKERS_3, WORKERS_3) == 0);
    assert_true(stop_and_resume(parity_llama, "proof", WORKERS_1, WORKERS_1) == 0);
}

TEST(canonical_resume_on_other_workers_is_bit_for_bit)
{
    assert_true(stop_and_resume(parity_llama, "canonical", WORKERS_2, WORKERS_3) == 0);
    assert_true(stop_and_resume(parity_gpt2, "canonical", WORKERS_4, WORKERS_1) == 0);
}

TEST(proof_resume_on_other_workers_is_within_proof_bounds)
{
    double worst = stop_and_resume(parity_llama, "proof", WORKERS_3, WORKERS_2);
    assert_true(worst > 0 && worst < 1e-9);
}

/* Resumes from each layout in the next, and from the last in the first, so that ZeRO pieces, split columns, stages and
 * the ring's copies are all converted into each other. */
TEST(proof_resume_moves_between_all_layouts)
{
    const char *const *const ring[] = {
        LAYOUT("parallel.workers=3", "parallel.fsdp=3", "parallel.zero=3"),
        LAYOUT("parallel.workers=2", "parallel.tp=2"),
        LAYOUT("parallel.workers=2", "parallel.pp=2"),
        LAYOUT("parallel.workers=2", "parallel.cp=2"),
        LAYOUT("parallel.workers=4", "parallel.fsdp=2", "parallel.zero=2", "parallel.tp=2"),
        LAYOUT("parallel.workers=4", "parallel.pp=2", "parallel.fsdp=2", "parallel.zero=1"),
    };
    const int n = sizeof(ring) / sizeof(ring[0]);
    for (int i = 0; i < n; i++) {
        const char *yaml = i % 2 ? parity_gpt2 : parity_llama;
        double worst = stop_and_resume(yaml, "proof", ring[i], ring[(i + 1) % n]);
        if (!(worst < 1e-9))
            fail_msg("from layout %d to the next: %g", i, worst);
    }
}

/* Stages round the ranks, in a V, and none: parameters have names of layers, so each resumes from each. */
TEST(resume_moves_between_placements_of_stages)
{
#define LAYERS_4 "model.layers=4"
    const char *const *const ring[] = {
        LAYOUT(LAYERS_4, "parallel.workers=2", "parallel.pp=2"),
        LAYOUT(LAYERS_4, "parallel.workers=2", "parallel.pp=2", "parallel.schedule=zb-v", "parallel.chunks=2"),
        LAYOUT(LAYERS_4, "parallel.workers=2", "parallel.pp=2", "parallel.schedule=interleaved", "parallel.chunks=2"),
        LAYOUT(LAYERS_4, "parallel.workers=4", "parallel.pp=2", "parallel.schedule=zb-v", "parallel.chunks=2",
               "parallel.fsdp=2", "parallel.zero=2"),
        LAYOUT(LAYERS_4, "parallel.workers=1"),
        LAYOUT(LAYERS_4, "parallel.workers=4", "parallel.pp=2", "parallel.schedule=zb-v", "parallel.chunks=2",
               "parallel.tp=2"),
    };
    const int n = sizeof(ring) / sizeof(ring[0]);
    for (int i = 0; i < n; i++)
        for (int tied = 0; tied < 2; tied++) {
            double worst = stop_and_resume(tied ? parity_gpt2 : parity_llama, "proof", ring[i], ring[(i + 1) % n]);
            if (!(worst < 1e-9))
                fail_msg("%s, from layout %d to the next: %g", tied ? "gpt2" : "llama", i, worst);
        }
    for (int i = 0; i < n - 2; i++) /* tensor parallelism has other bits */
        assert_true(stop_and_resume(parity_llama, "canonical", ring[i], ring[i + 1]) == 0);
}

TEST(resume_in_the_same_layout_is_bit_for_bit)
{
    assert_true(stop_and_resume(parity_llama, "proof",
                                LAYOUT("parallel.workers=4", "parallel.fsdp=2", "parallel.zero=3", "parallel.tp=2"),
                                LAYOUT("parallel.workers=4", "parallel.fsdp=2", "parallel.zero=3", "parallel.tp=2")) ==
                0);
    assert_true(stop_and_resume(parity_gpt2, "fast", LAYOUT("parallel.workers=4", "parallel.pp=2", "parallel.cp=2"),
                                LAYOUT("parallel.workers=4", "parallel.pp=2", "parallel.cp=2")) == 0);
}

TEST(canonical_resume_moves_between_stages_of_zero_bit_for_bit)
{
    assert_true(stop_and_resume(parity_llama, "canonical",
                                LAYOUT("parallel.workers=4", "parallel.fsdp=2", "parallel.zero=3"),
                                LAYOUT("parallel.workers=3", "parallel.fsdp=3", "parallel.zero=1")) == 0);
    assert_true(stop_and_resume(parity_llama, "canonical", LAYOUT("parallel.workers=2", "parallel.pp=2"),
                                LAYOUT("parallel.workers=2", "parallel.fsdp=2", "parallel.zero=2")) == 0);
}

/* Biases of the choice of experts and the numbers of the last step, which are saved without moments, whole, by one of
 * their replicas. */
#define BIASED_EXPERTS                                                                                               \
    "model.experts=5", "model.expert_ffn=24", "model.router=sigmoid", "model.router_norm=true", "model.moe_every=2", \
        "model.expert_bias=0.02", "model.aux_loss=0.05", "model.aux_scope=batch"

TEST(states_of_routers_resume_in_any_layout)
{
    const char *const *const ring[] = {
        LAYOUT(BIASED_EXPERTS, "parallel.workers=3", "parallel.fsdp=3", "parallel.zero=3"),
        LAYOUT(BIASED_EXPERTS, "parallel.workers=2", "parallel.tp=2", "parallel.ep=2"),
        LAYOUT(BIASED_EXPERTS, "parallel.workers=2", "parallel.pp=2"),
        LAYOUT(BIASED_EXPERTS, "parallel.workers=2", "parallel.cp=2"),
        LAYOUT(BIASED_EXPERTS, "parallel.workers=4", "parallel.tp=2", "parallel.sp=false"),
    };
    const int n = sizeof(ring) / sizeof(ring[0]);
    for (int i = 0; i < n; i++) {
        double worst = stop_and_resume(parity_llama, "proof", ring[i], ring[(i + 1) % n]);
        if (!(worst < 1e-9))
            fail_msg("from layout %d to the next: %g", i, worst);
    }
}

/* ---- types ---- */

/* Loads the state of a job in one type into a job in another, which first saves it again and then trains on. Returns
 * the largest relative difference of its losses from those of the first job without a stop. */
static double move_between_types(const char *from, const char *to, const char *const *before, const char *const *after)
{
    char name[SNAPSHOT_NAME_MAX], first[48], second[48];
    const char *a[16] = {"train.numerics=fast", first}, *b[16] = {"train.numerics=fast", second};
    snprintf(first, sizeof(first), "train.dtype=%s", from);
    snprintf(second, sizeof(second), "train.dtype=%s", to);
    for (int i = 0; before[i]; i++)
        a[i + 2] = before[i];
    for (int i = 0; after[i]; i++)
        b[i + 2] = after[i];
    struct parity_model m, other;
    parity_model_init(&m, parity_llama, a);
    parity_model_init(&other, parity_llama, b);
    struct store *saved = store_new(&m.graph, DT_F32), *again = store_new(&m.graph, DT_F32);
    const struct parity_options save = {.save = saved}, copy = {.load = saved, .save = again}, load = {.load = saved};
    struct parity_result *whole = parity_run(&m, STEPS, NULL), *stopped = parity_run(&m, STOP, &save);
    struct parity_result *copied = parity_run(&other, STOP, &copy), *resumed = parity_run(&other, STEPS, &load);
    int64_t differ = store_differences(saved, again, name);
    if (differ)
        fail_msg("%s to %s: %lld elements differ after loading, first in %s", from, to, (long long)differ, name);
    double worst = 0;
    for (int s = STOP; s < STEPS; s++)
        worst = fmax(worst, fabs(whole->loss[s] - resumed->loss[s]) / whole->loss[s]);
    assert_true(resumed->loss[STEPS - 1] < whole->loss[0] - 0.2);
    parity_result_free(whole);
    parity_result_free(stopped);
    parity_result_free(copied);
    parity_result_free(resumed);
    store_free(saved);
    store_free(again);
    parity_model_fini(&m);
    parity_model_fini(&other);
    return worst;
}

/* Parameters and moments are float32 in both types, so loading changes no bit; the next steps round differently. */
TEST(a_checkpoint_moves_between_float32_and_bfloat16)
{
    static const char *const types[] = {"float32", "bfloat16", "float32"};
    const char *const *const layouts[] = {
        LAYOUT("parallel.workers=2"),
        LAYOUT("parallel.workers=2", "parallel.fsdp=2", "parallel.zero=3"),
        LAYOUT("parallel.workers=2", "parallel.fsdp=2", "parallel.zero=1"),
        LAYOUT("parallel.workers=2", "parallel.tp=2"),
        LAYOUT("parallel.workers=2", "parallel.pp=2"),
    };
    const int n = sizeof(layouts) / sizeof(layouts[0]);
    for (int i = 0; i < n; i++)
        for (int way = 0; way < 2; way++) {
            double worst = move_between_types(types[way], types[way + 1], layouts[i], layouts[(i + 1) % n]);
            printf("%s to %s: losses differ by %.2g\n", types[way], types[way + 1], worst);
            assert_true(worst > 0 && worst < 2e-3);
        }
}

TEST(bfloat16_resume_in_the_same_layout_is_bit_for_bit)
{
    assert_true(move_between_types("bfloat16", "bfloat16", WORKERS_2, WORKERS_2) == 0);
    assert_true(move_between_types("bfloat16", "bfloat16",
                                   LAYOUT("parallel.workers=2", "parallel.fsdp=2", "parallel.zero=2"),
                                   LAYOUT("parallel.workers=2", "parallel.fsdp=2", "parallel.zero=2")) == 0);
}

/* ---- experts ---- */

#define EXPERTS                                                                                                    \
    "model={experts: 9, experts_per_token: 2, expert_ffn: 11, shared_experts: 1, aux_loss: 0.1, router: sigmoid, " \
    "router_norm: true}"

struct visit {
    struct parity_model m;
    struct store *store; /* parameters and optimizer state after the steps */
};

/* Loads the state of `from`, which may be NULL, into a layout, runs up to step `last`, and stores the state again. */
static struct parity_result *visit(struct visit *v, const char *const *layout, const struct store *from, int64_t last)
{
    const char *sets[16] = {EXPERTS};
    for (int i = 0; layout[i]; i++)
        sets[i + 1] = layout[i];
    init_model(&v->m, parity_llama, "proof", sets);
    v->store = store_new(&v->m.graph, DT_F64);
    const struct parity_options options = {.load = (struct store *)from, .save = v->store};
    struct parity_result *r = parity_run(&v->m, last, &options);
    assert_int_equal(store_bad_elements(v->store), 0);
    return r;
}

static void visit_end(struct visit *v, struct parity_result *r)
{
    parity_result_free(r);
    store_free(v->store);
    parity_model_fini(&v->m);
}

/* Loading and saving without a step changes no bit, whatever fold of expert parallelism, tp, pp, ZeRO and number of
 * workers the two layouts have. */
static void check_loaded(const char *const *layout, const struct store *from, int64_t step)
{
    char name[SNAPSHOT_NAME_MAX];
    struct visit v;
    struct parity_result *r = visit(&v, layout, from, step);
    int64_t differ = store_differences(from, v.store, name);
    if (differ)
        fail_msg("%lld elements differ after loading, first in %s", (long long)differ, name);
    visit_end(&v, r);
}

/* Goes round all layouts, some steps in each, and is one worker all the way. */
TEST(experts_move_between_all_folds)
{
    const char *const *const ring[] = {
        LAYOUT("parallel={workers: 2, fsdp: 2, zero: 3, ep: 2}"),
        LAYOUT("parallel={workers: 4, tp: 4, ep: 2}"),
        LAYOUT("parallel={workers: 3}"),
        LAYOUT("parallel={workers: 4, fsdp: 4, zero: 2, ep: 2}"),
        LAYOUT("parallel={workers: 4, pp: 2, fsdp: 2, zero: 1, ep: 2}"),
        LAYOUT("parallel={workers: 4, cp: 2, tp: 2, sp: false, ep: 4}"),
        LAYOUT("parallel={workers: 4, fsdp: 2, zero: 3, tp: 2}"),
        LAYOUT("parallel={workers: 8, fsdp: 4, zero: 3, tp: 2, ep: 8}"),
    };
    const int n = sizeof(ring) / sizeof(ring[0]);
    struct visit one, v[2];
    struct parity_result *want = visit(&one, LAYOUT("parallel={workers: 1}"), NULL, 2 * n), *r[2] = {NULL, NULL};
    for (int i = 0; i < n; i++) {
        const int at = i % 2;
        if (i)
            check_loaded(ring[i], v[!at].store, 2 * i);
        r[at] = visit(&v[at], ring[i], i ? v[!at].store : NULL, 2 * i + 2);
        for (int s = 2 * i; s < 2 * i + 2; s++)
            if (!(fabs(r[at]->loss[s] - want->loss[s]) <= 1e-10 * want->loss[s]))
                fail_msg("layout %d, step %d: loss %.17g instead of %.17g", i, s + 1, r[at]->loss[s], want->loss[s]);
        if (i)
            visit_end(&v[!at], r[!at]);
    }
    visit_end(&v[(n - 1) % 2], r[(n - 1) % 2]);
    visit_end(&one, want);
}
