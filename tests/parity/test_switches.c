/* Settings that must not change a bit: in canonical numerics, every layout that splits neither samples nor sums of a
 * layer, and switches that only move work. */
#include "tests/parity/compare.h"

#define STEPS 4
#define LAYOUT(...) ((const char *const[]){__VA_ARGS__, NULL})

static struct parity_result *run(const char *yaml, const char *numerics, const char *const *layout,
                                 struct parity_model *m)
{
    char n[48];
    const char *sets[16] = {n, "model.layers=4"};
    snprintf(n, sizeof(n), "train.numerics=%s", numerics);
    for (int i = 0; layout[i]; i++)
        sets[i + 2] = layout[i];
    parity_model_init(m, yaml, sets);
    return parity_run(m, STEPS, NULL);
}

/* Each of the layouts has the same bits as the first. */
static void same_bits(const char *yaml, const char *numerics, const char *const *const *layouts, int n)
{
    struct parity_model one, other;
    struct parity_result *a = run(yaml, numerics, layouts[0], &one);
    for (int i = 1; i < n; i++) {
        struct parity_result *b = run(yaml, numerics, layouts[i], &other);
        print_message("layout %d\n", i);
        parity_compare_bits(a, b, STEPS);
        parity_result_free(b);
        parity_model_fini(&other);
    }
    parity_result_free(a);
    parity_model_fini(&one);
}
#define SAME_BITS(yaml, numerics, list) same_bits(yaml, numerics, list, sizeof(list) / sizeof((list)[0]))

#define SHARDED                                                                                    \
    LAYOUT("parallel.workers=2", "parallel.fsdp=2", "parallel.zero=0"),                            \
        LAYOUT("parallel.workers=2", "parallel.fsdp=2", "parallel.zero=1"),                        \
        LAYOUT("parallel.workers=3", "parallel.fsdp=3", "parallel.zero=2"),                        \
        LAYOUT("parallel.workers=4", "parallel.fsdp=2", "parallel.zero=3"),                        \
        LAYOUT("parallel.workers=3", "parallel.fsdp=3", "parallel.zero=3", "parallel.prefetch=2"), \
        LAYOUT("parallel.workers=2", "parallel.fsdp=2", "parallel.zero=3", "parallel.reshard=false")

TEST(llama_canonical_layouts_bit_for_bit)
{
    const char *const *const list[] = {
        LAYOUT("parallel.workers=1"),
        SHARDED,
        LAYOUT("parallel.workers=2", "parallel.pp=2"),
        LAYOUT("parallel.workers=4", "parallel.pp=4", "parallel.schedule=gpipe"),
        LAYOUT("parallel.workers=2", "parallel.pp=2", "parallel.schedule=interleaved", "parallel.chunks=2"),
        LAYOUT("parallel.workers=3", "parallel.pp=3", "parallel.schedule=zb-h1"),
        LAYOUT("parallel.workers=2", "parallel.pp=2", "parallel.schedule=zb-v", "parallel.chunks=2"),
        LAYOUT("parallel.workers=4", "parallel.pp=2", "parallel.fsdp=2", "parallel.zero=3"),
    };
    SAME_BITS(parity_llama, "canonical", list);
}

TEST(gpt2_canonical_layouts_bit_for_bit)
{
    const char *const *const list[] = {LAYOUT("parallel.workers=1"), SHARDED};
    SAME_BITS(parity_gpt2, "canonical", list);
}

/* A tied table of two stages gets two sums, one of the embedding and one of the head, but one worker sums both at once.
 * Therefore gpt2's pipelines have bits of their own, the same for every schedule, stage of ZeRO and number of replicas.
 */
TEST(gpt2_canonical_pipelines_bit_for_bit)
{
    const char *const *const list[] = {
        LAYOUT("parallel.workers=2", "parallel.pp=2"),
        LAYOUT("parallel.workers=2", "parallel.pp=2", "parallel.schedule=gpipe"),
        LAYOUT("parallel.workers=2", "parallel.pp=2", "parallel.schedule=zb-h1"),
        LAYOUT("parallel.workers=4", "parallel.pp=4"),
        LAYOUT("parallel.workers=4", "parallel.pp=2"),
        LAYOUT("parallel.workers=4", "parallel.pp=2", "parallel.fsdp=2", "parallel.zero=3"),
    };
    SAME_BITS(parity_gpt2, "canonical", list);
}

/* Norms of all heads, which are summed over tp in both directions; with tp 4 two workers have one key-value head. */
TEST(canonical_norms_over_tp_bit_for_bit)
{
#define OLMO "model.heads=8", "model.qk_norm=whole", "model.norm_place=after"
    const char *const *const two[] = {
        LAYOUT(OLMO, "parallel.workers=2", "parallel.tp=2"),
        LAYOUT(OLMO, "parallel.workers=4", "parallel.tp=2"),
        LAYOUT(OLMO, "parallel.workers=4", "parallel.tp=2", "parallel.fsdp=2", "parallel.zero=3"),
        LAYOUT(OLMO, "parallel.workers=2", "parallel.tp=2", "parallel.recompute=full"),
        LAYOUT(OLMO, "parallel.workers=2", "parallel.tp=2", "run.comm_thread=on"),
    };
    const char *const *const four[] = {
        LAYOUT(OLMO, "parallel.workers=4", "parallel.tp=4"),
        LAYOUT(OLMO, "parallel.workers=8", "parallel.tp=4"),
        LAYOUT(OLMO, "parallel.workers=4", "parallel.tp=4", "run.comm_thread=on"),
    };
    SAME_BITS(parity_llama, "canonical", two);
    SAME_BITS(parity_llama, "canonical", four);
}

TEST(prefetch_and_resharding_move_work_only)
{
#define ZERO3 "parallel.workers=4", "parallel.fsdp=2", "parallel.tp=2", "parallel.zero=3"
    const char *const *const list[] = {LAYOUT(ZERO3), LAYOUT(ZERO3, "parallel.prefetch=0"),
                                       LAYOUT(ZERO3, "parallel.prefetch=3"), LAYOUT(ZERO3, "parallel.reshard=false")};
    SAME_BITS(parity_llama, "proof", list);
    SAME_BITS(parity_gpt2, "fast", list);
}

/* Each of the layouts has the same bits with and without a communication thread. */
static void same_bits_with_thread(const char *yaml, const char *numerics, const char *const *const *layouts, int n)
{
    for (int i = 0; i < n; i++) {
        const char *beside[16] = {"run.comm_thread=on"};
        for (int k = 0; layouts[i][k]; k++)
            beside[k + 1] = layouts[i][k];
        same_bits(yaml, numerics, (const char *const *const[]){layouts[i], beside}, 2);
    }
}

TEST(a_communication_thread_moves_work_only)
{
    const char *const *const list[] = {
        LAYOUT("parallel.workers=3"),
        LAYOUT("parallel.workers=3", "parallel.fsdp=3", "parallel.zero=3", "parallel.prefetch=2"),
        LAYOUT("parallel.workers=4", "parallel.fsdp=2", "parallel.zero=2"),
        LAYOUT("parallel.workers=2", "parallel.tp=2"),
        LAYOUT("parallel.workers=2", "parallel.tp=2", "parallel.sp=false"),
        LAYOUT("parallel.workers=3", "parallel.pp=3"),
        LAYOUT("parallel.workers=2", "parallel.pp=2", "parallel.schedule=zb-h1"),
        LAYOUT("parallel.workers=2", "parallel.pp=2", "parallel.schedule=zb-v", "parallel.chunks=2", "model.layers=4"),
        LAYOUT("parallel.workers=2", "parallel.cp=2"),
    };
    same_bits_with_thread(parity_llama, "fast", list, sizeof(list) / sizeof(list[0]));
    same_bits_with_thread(parity_transformer, "fast", list, 2);
    same_bits_with_thread(parity_llama, "canonical", list, 3);
}

/* The rows of experts and their order are the same, however tokens get to them. */
static void same_bits_gathered(const char *numerics, const char *experts, const char *const *const *layouts, int n)
{
    for (int i = 0; i < n; i++) {
        const char *rows[16] = {experts}, *gathered[16] = {experts, "parallel.dispatch=all_gather"};
        for (int k = 0; layouts[i][k]; k++)
            rows[k + 1] = gathered[k + 2] = layouts[i][k];
        same_bits(parity_llama, numerics, (const char *const *const[]){rows, gathered}, 2);
    }
}

TEST(gathered_tokens_make_the_same_rows)
{
    static const char few[] = "model={experts: 5, experts_per_token: 2, expert_ffn: 11, aux_loss: 0.1}";
    static const char many[] = "model={experts: 7, experts_per_token: 6, expert_ffn: 11, aux_loss: 0.1}";
    const char *const *const list[] = {
        LAYOUT("parallel={workers: 2, tp: 2, ep: 2}"),
        LAYOUT("parallel={workers: 2, tp: 2, sp: false, ep: 2, recompute: experts}"),
        LAYOUT("parallel={workers: 4, cp: 2, tp: 2, ep: 4}"),
        LAYOUT("parallel={workers: 2, fsdp: 2, zero: 1, ep: 2}", "train.global_batch=6"), /* one has a turn more */
        LAYOUT("parallel={workers: 4, fsdp: 4, zero: 3, ep: 4, recompute: full}"),
        LAYOUT("parallel={workers: 4, pp: 2, fsdp: 2, zero: 0, ep: 2, schedule: zb-h1}"),
    };
    same_bits_gathered("proof", few, list, 6);
    same_bits_gathered("fast", many, list, 6);
    same_bits_gathered("canonical", few, list, 3);
}

TEST(recomputation_moves_work_only)
{
#define CUT "parallel.workers=4", "parallel.tp=2", "parallel.cp=2"
    const char *const *const list[] = {LAYOUT(CUT), LAYOUT(CUT, "parallel.recompute=full"),
                                       LAYOUT(CUT, "parallel.recompute=pointwise"),
                                       LAYOUT(CUT, "parallel.recompute=attention")};
    SAME_BITS(parity_llama, "proof", list);
    SAME_BITS(parity_gpt2, "fast", list);
    SAME_BITS(parity_transformer, "fast", list);
}

#define ASYNC(...) LAYOUT(__VA_ARGS__), LAYOUT(__VA_ARGS__, "parallel.async_tp=true", "run.comm_thread=on")
static const char *const models[] = {parity_llama, parity_gpt2, parity_transformer};

TEST(overlapped_tensor_parallelism_moves_work_only)
{
    const char *const *const two[] = {ASYNC("parallel.workers=2", "parallel.tp=2")};
    const char *const *const three[] = {ASYNC("parallel.workers=3", "parallel.tp=3", "train.seq=19")};
    for (int i = 0; i < 3; i++) {
        SAME_BITS(models[i], "proof", two);
        SAME_BITS(models[i], "proof", three);
    }
}

TEST(overlapped_tensor_parallelism_with_other_axes)
{
    const char *const *const beside[][2] = {
        {ASYNC("parallel.workers=4", "parallel.tp=2", "parallel.cp=2", "parallel.recompute=full")},
        {ASYNC("parallel.workers=4", "parallel.tp=2", "parallel.pp=2")},
        {ASYNC("parallel.workers=4", "parallel.tp=2", "parallel.fsdp=2", "parallel.zero=3")}};
    for (int i = 0; i < 3; i++)
        SAME_BITS(models[i], "proof", beside[i]);
}

/* Rounds change which rows stand together in a product, and so no bit of a row. Sums over rows may differ: the
 * gradients of experts. */
TEST(rounds_do_not_change_a_bit_of_the_forward)
{
    static const char experts[] = "model={experts: 5, experts_per_token: 2, expert_ffn: 11, aux_loss: 0.1}";
    static const char *const layouts[] = {"workers: 2, tp: 2, sp: false, ep: 2", "workers: 4, cp: 2, tp: 2, ep: 4",
                                          "workers: 4, fsdp: 4, zero: 3, ep: 4", "workers: 4, pp: 2, fsdp: 2, ep: 2"};
    static const char *const numerics[] = {"proof", "fast"};
    for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]) * 2; i++) {
        struct parity_model one, other;
        char at_once[96], rounds[96];
        snprintf(at_once, sizeof(at_once), "parallel={%s, recompute: experts}", layouts[i / 2]);
        snprintf(rounds, sizeof(rounds), "parallel={%s, recompute: experts, expert_rows: 1}", layouts[i / 2]);
        struct parity_result *a = run(parity_llama, numerics[i % 2], LAYOUT(experts, at_once), &one);
        struct parity_result *b = run(parity_llama, numerics[i % 2], LAYOUT(experts, rounds), &other);
        if (memcmp(a->loss, b->loss, sizeof(a->loss[0])) != 0)
            fail_msg("%s: loss %a at once, %a in rounds", layouts[i / 2], a->loss[0], b->loss[0]);
        parity_result_free(a);
        parity_result_free(b);
        parity_model_fini(&one);
        parity_model_fini(&other);
    }
}
