/* The memory that workers use equals the forecast of a job, to the byte, in every type of the fast kernels: the spaces
 * that they allocate, one by one and together, the highest byte of activations that steps write, and the arena of a
 * snapshot. */
#include "common/plan/estimate/memory.h"
#include "tests/parity/rank.h"

#include <sys/mman.h>

#define MAX_WORLD 8
#define LINE 64 /* buffers begin at multiples of it */

struct measured {
    struct parity_model m;
    struct plan_memory forecast[MAX_WORLD], used[MAX_WORLD];
};

/* The end of the last line that is not zero. New memory is zero, and nothing is zeroed behind the last use. */
static int64_t high_mark(const uint8_t *space, int64_t bytes)
{
    while (bytes > 0 && !space[bytes - 1])
        bytes--;
    return (bytes + LINE - 1) / LINE * LINE;
}

static int measure_rank(void *arg, int fd, int rank)
{
    struct measured *x = arg;
    struct parity_rank r = {0};
    struct engine_result result;
    struct snapshot s = {0};
    struct why why = {""};
    err_t err = parity_rank_open(&r, &x->m, fd, rank, &why);
    for (int step = 0; step < 2 && !err; step++)
        err = parity_rank_step(&r, &result, &why);
    err = err ? err : snapshot_plan_save(&r.e, &s);
    if (err)
        fprintf(stderr, "rank %d: %s %s\n", rank, err_name(err), why.text);
    for (int k = 0; k < SPACE_COUNT; k++)
        x->used[rank].bytes[k] = plan_space_reserved((int64_t)r.e.space_bytes[k]);
    x->used[rank].total_bytes = (int64_t)engine_device_bytes(&r.e);
    if (!err) {
        const int64_t end = high_mark(r.e.space[SPACE_WORK], (int64_t)r.e.space_bytes[SPACE_WORK]);
        x->used[rank].bytes[SPACE_WORK] = plan_space_reserved(end);
        x->used[rank].arena_bytes = (int64_t)s.bytes;
        snapshot_fini(&s);
    }
    parity_rank_close(&r);
    return err != OK;
}

static void measure(const char *yaml, const char *dtype, const char *layout)
{
    char type[48];
    /* 12 samples give every rank whole microbatches, which need the most memory. */
    const char *sets[] = {"train.numerics=fast", "train.verify_every=0", "train.global_batch=12", type, layout, NULL};
    struct measured *x = mmap(NULL, sizeof(*x), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct why why;
    assert_true(x != MAP_FAILED);
    snprintf(type, sizeof(type), "train.dtype=%s", dtype);
    parity_model_init(&x->m, yaml, sets);
    const int world = (int)x->m.job.parallel.workers;
    assert_true(world <= MAX_WORLD);
    assert_ok(plan_memory_of_ranks(&x->m.job, &x->m.graph, x->forecast, &why));
    parity_fork(world, measure_rank, x);
    for (int r = 0; r < world; r++) {
        for (int k = 0; k < SPACE_COUNT; k++)
            if (x->used[r].bytes[k] != x->forecast[r].bytes[k])
                fail_msg("%s %s, rank %d, space %d: %lld bytes used, %lld forecast", dtype, layout, r, k,
                         (long long)x->used[r].bytes[k], (long long)x->forecast[r].bytes[k]);
        const int64_t spaces = x->forecast[r].total_bytes - x->forecast[r].arena_bytes;
        if (x->used[r].total_bytes != spaces)
            fail_msg("%s %s, rank %d: %lld bytes allocated, %lld forecast", dtype, layout, r,
                     (long long)x->used[r].total_bytes, (long long)spaces);
        if (x->used[r].arena_bytes != x->forecast[r].arena_bytes)
            fail_msg("%s %s, rank %d: %lld bytes in the arena, %lld forecast", dtype, layout, r,
                     (long long)x->used[r].arena_bytes, (long long)x->forecast[r].arena_bytes);
    }
    parity_model_fini(&x->m);
    munmap(x, sizeof(*x));
}

static void both_types(const char *yaml, const char *layout)
{
    measure(yaml, "bfloat16", layout);
    measure(yaml, "float32", layout);
}

static const char mixture[] =
    "name: parity\n"
    "model: {arch: llama, dim: 48, layers: 2, heads: 6, kv_heads: 2, vocab: 300, experts: 8, experts_per_token: 2,\n"
    "        expert_ffn: 24, shared_experts: 1, shared_gate: true, aux_loss: 0.1}\n"
    "data: {train: [/nothing], tokenizer: words}\n"
    "train: {steps: 40, seq: 12, global_batch: 8, micro_batch: 2, lr: 1.0e-2}\n"
    "checkpoint: {dir: /nowhere}\n";

TEST(workers_use_the_memory_of_the_forecast)
{
    static const char *const layouts[] = {
        "parallel={workers: 1}",
        "parallel={workers: 3}",
        "parallel={workers: 2, fsdp: 2, zero: 1}",
        "parallel={workers: 2, fsdp: 2, zero: 2}",
        "parallel={workers: 2, fsdp: 2, zero: 3}",
        "parallel={workers: 2, tp: 2}",
        "parallel={workers: 2, tp: 2, sp: false}",
        "parallel={workers: 2, cp: 2}",
        "parallel={workers: 2, pp: 2}",
        "parallel={workers: 4, fsdp: 2, zero: 3, pp: 2, recompute: full}",
    };
    for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++) {
        both_types(parity_llama, layouts[i]);
        both_types(parity_gpt2, layouts[i]);
    }
}

TEST(workers_with_experts_use_the_memory_of_the_forecast)
{
    static const char *const layouts[] = {
        "parallel={workers: 1}",
        "parallel={workers: 2, fsdp: 2, ep: 2}",
        "parallel={workers: 4, fsdp: 4, zero: 3, ep: 4}",
        "parallel={workers: 4, tp: 2, sp: false, cp: 2, ep: 4}",
    };
    for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++)
        both_types(mixture, layouts[i]);
}
