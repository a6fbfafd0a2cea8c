/* Tensor, sequence and context parallelism: all ranks together against one rank, for sizes that the mesh divides and
 * sizes that it does not. */
#include "common/plan/estimate/cost.h"
#include "tests/common/plan/world.h"

static struct job_spec job_of(enum model_arch arch, int dp, int cp, int tp, bool sp)
{
    struct job_spec job = job_small(arch, dp * cp * tp);
    job.parallel.cp = cp;
    job.parallel.tp = tp;
    job.parallel.sp = sp;
    job.train.global_batch = 4;
    return job;
}

static void tensor_parallel(enum model_arch arch, bool sp)
{
    for (int tp = 2; tp <= 4; tp++) {
        struct job_spec job = job_of(arch, 1, 1, tp, sp), odd = job_uneven(job);
        if (tp != 3)
            world_compare(&job);
        world_compare(&odd);
    }
}

TEST(llama_in_tensor_parallel_is_one_worker)
{
    tensor_parallel(ARCH_LLAMA, false);
}

TEST(gpt2_in_tensor_parallel_is_one_worker)
{
    tensor_parallel(ARCH_GPT2, false);
}

TEST(llama_in_sequence_parallel_is_one_worker)
{
    tensor_parallel(ARCH_LLAMA, true);
}

TEST(gpt2_in_sequence_parallel_is_one_worker)
{
    tensor_parallel(ARCH_GPT2, true);
}

/* Values of a step that other ranks read: of groups over tp and cp. */
static int count_read_in(const struct program *p, enum buffer_space space)
{
    static const enum op_kind kinds[] = {OP_ALL_REDUCE, OP_OWN_GATHER, OP_OWN_SCATTER, OP_GATHER, OP_SHIFT};
    int n = 0;
    for (int i = 0; i < p->n_ops; i++)
        for (size_t k = 0; k < sizeof(kinds) / sizeof(kinds[0]); k++)
            n += p->ops[i].kind == kinds[k] && p->buffers[p->ops[i].arg[0].buffer].space == space;
    return n;
}

/* On a GPU the collectives have the device's memory, of which no part is better than another. */
TEST(on_a_cpu_collectives_read_in_place)
{
    static const int axes[][2] = {{1, 2}, {2, 1}, {2, 2}}; /* cp, tp */
    for (int arch = 0; arch < 2; arch++)
        for (int i = 0; i < 6; i++)
            for (int gpu = 0; gpu < 2; gpu++) {
                struct job_spec job = job_of((enum model_arch)arch, 1, axes[i / 2][0], axes[i / 2][1], i % 2);
                struct fixture f;
                job.run.device = gpu ? DEVICE_CUDA : DEVICE_CPU;
                fixture_init(&f, &job, MODE_TRAIN);
                for (int r = 0; r < f.n; r++) {
                    const struct program *p = &f.programs[r];
                    assert_true((count_read_in(p, SPACE_WORK) > 0) == gpu);
                    assert_true((count_read_in(p, SPACE_SHARED) > 0) == !gpu);
                    assert_true((p->space_bytes[SPACE_SHARED] > 0) == !gpu);
                }
                fixture_fini(&f);
            }
}

TEST(ranks_that_share_key_value_heads_are_one_worker)
{
    for (int kv = 1; kv <= 3; kv++)
        for (int tp = 2; tp <= 4; tp++)
            for (int sp = 0; sp < 2; sp++) {
                struct job_spec job = job_of(ARCH_LLAMA, 1, 1, tp, sp);
                job.model.heads = 4 * kv;
                job.model.dim = 8 * kv;
                job.model.kv_heads = kv;
                world_compare(&job);
            }
}

TEST(a_tied_llama_and_an_untied_gpt2_are_one_worker)
{
    for (int arch = ARCH_LLAMA; arch <= ARCH_GPT2; arch++)
        for (int sp = 0; sp < 2; sp++) {
            struct job_spec job = job_uneven(job_of((enum model_arch)arch, 1, 1, 2, sp));
            job.model.tied = arch == ARCH_LLAMA;
            world_compare(&job);
        }
}

/* Some ranks have no own tokens. */
TEST(fewer_tokens_than_ranks_are_one_worker)
{
    for (int arch = ARCH_LLAMA; arch <= ARCH_GPT2; arch++) {
        struct job_spec job = job_of((enum model_arch)arch, 1, 1, 4, true);
        job.train.seq = 3;
        job.train.micro_batch = 1;
        world_compare(&job);
    }
}

TEST(data_times_tensor_parallel_is_one_worker)
{
    for (int arch = ARCH_LLAMA; arch <= ARCH_GPT2; arch++)
        for (int sp = 0; sp < 2; sp++) {
            struct job_spec job = job_uneven(job_of((enum model_arch)arch, 2, 1, 3, sp));
            world_compare(&job);
        }
}

static void context_parallel(enum model_arch arch, int tp, int64_t seq)
{
    for (int cp = 2; cp <= 4; cp++) {
        struct job_spec job = job_of(arch, 1, cp, tp, true);
        job = seq % 2 ? job_uneven(job) : job;
        job.train.seq = seq;
        world_compare(&job);
    }
}

TEST(llama_in_a_ring_is_one_worker)
{
    context_parallel(ARCH_LLAMA, 1, 24);
    context_parallel(ARCH_LLAMA, 1, 17);
}

TEST(gpt2_in_a_ring_is_one_worker)
{
    context_parallel(ARCH_GPT2, 1, 24);
    context_parallel(ARCH_GPT2, 1, 17);
}

TEST(rings_of_tensor_parallel_ranks_are_one_worker)
{
    for (int arch = ARCH_LLAMA; arch <= ARCH_GPT2; arch++)
        for (int tp = 2; tp <= 4; tp++)
            context_parallel((enum model_arch)arch, tp, 9);
}

TEST(data_times_context_parallel_is_one_worker)
{
    for (int arch = ARCH_LLAMA; arch <= ARCH_GPT2; arch++) {
        struct job_spec job = job_uneven(job_of((enum model_arch)arch, 2, 3, 1, false));
        world_compare(&job);
    }
}

static void recomputed(enum recompute what, int cp, int tp, bool sp)
{
    for (int arch = ARCH_LLAMA; arch <= ARCH_GPT2; arch++) {
        struct job_spec job = job_uneven(job_of((enum model_arch)arch, 1, cp, tp, sp));
        job.parallel.recompute = what;
        job.model.layers = 3;
        world_compare(&job);
    }
}

TEST(recomputed_values_equal_kept_ones)
{
    for (int what = RECOMPUTE_FULL; what <= RECOMPUTE_ATTENTION; what++)
        for (int sp = 0; sp < 2; sp++) {
            recomputed((enum recompute)what, 1, 1, false);
            recomputed((enum recompute)what, 1, 2, sp);
            recomputed((enum recompute)what, 2, 1, false);
            recomputed((enum recompute)what, 2, 2, sp);
        }
}

TEST(evaluation_and_generation_are_one_worker)
{
    for (int arch = ARCH_LLAMA; arch <= ARCH_GPT2; arch++)
        for (int cp = 1; cp <= 3; cp++)
            for (int tp = 1; tp <= 3; tp++) {
                struct job_spec job = job_uneven(job_of((enum model_arch)arch, 1, cp, tp, tp == 2));
                world_compare_passes(&job);
            }
}

TEST(shards_times_tensor_times_context_parallel_are_one_worker)
{
    for (int arch = ARCH_LLAMA; arch <= ARCH_GPT2; arch++)
        for (int zero = 0; zero <= 3; zero++)
            for (int axes = 1; axes <= 3; axes++) {
                struct job_spec job =
                    job_uneven(job_of((enum model_arch)arch, 1, axes & 2 ? 2 : 1, axes & 1 ? 2 : 1, zero % 2));
                job.parallel.zero = zero;
                job.parallel.fsdp = 2;
                job.parallel.workers *= 2;
                job.parallel.recompute = zero == 3 ? RECOMPUTE_FULL : RECOMPUTE_NONE;
                world_compare(&job);
            }
}

static double flops(const struct job_spec *job, enum op_kind kind)
{
    struct fixture f;
    struct op_cost cost;
    double sum = 0;
    fixture_init(&f, job, MODE_TRAIN);
    for (int r = 0; r < f.n; r++) {
        const struct program *p = &f.programs[r];
        for (int a = 0; a < p->n_actions; a++)
            for (int i = p->actions[a].first_op; i < p->actions[a].first_op + p->actions[a].n_ops; i++) {
                if (p->ops[i].kind != kind)
                    continue;
                plan_op_cost(p, &p->ops[i], p->micros[p->actions[a].micro].samples, &cost);
                sum += cost.flops;
            }
    }
    fixture_fini(&f);
    return sum;
}

/* The ranks together do exactly the FLOPs of one worker: no op ignores the mask, and nothing is computed twice. */
TEST(all_ranks_together_multiply_what_one_does)
{
    const enum op_kind kinds[] = {OP_GEMM, OP_ATTENTION, OP_ATTENTION_GRAD};
    for (int arch = ARCH_LLAMA; arch <= ARCH_GPT2; arch++)
        for (int cp = 1; cp <= 4; cp++)
            for (int tp = 1; tp <= 2; tp++)
                for (int k = 0; k < 3; k++) {
                    struct job_spec job = job_uneven(job_of((enum model_arch)arch, 1, cp, tp, true));
                    struct job_spec one = job_uneven(job_of((enum model_arch)arch, 1, 1, 1, false));
                    job.train.seq = one.train.seq = 9;
                    assert_float_equal(flops(&job, kinds[k]), flops(&one, kinds[k]), 0.5);
                }
}

/* The first half of a split backward keeps what the second needs, with any recomputation and any cut. */
TEST(halves_of_a_backward_are_one_worker)
{
    for (int arch = ARCH_LLAMA; arch <= ARCH_GPT2; arch++)
        for (int axes = 0; axes <= 3; axes++)
            for (int what = RECOMPUTE_NONE; what <= RECOMPUTE_ATTENTION; what++) {
                struct job_spec job =
                    job_uneven(job_of((enum model_arch)arch, 1, axes & 2 ? 2 : 1, axes & 1 ? 2 : 1, what % 2 == 0));
                job.parallel.pp = 2;
                job.parallel.workers *= 2;
                job.parallel.schedule = PIPE_ZB_H1;
                job.parallel.recompute = (enum recompute)what;
                job.model.layers = 3;
                world_compare(&job);
            }
}

/* Every axis at once. */
TEST(all_axes_together_are_one_worker)
{
    const enum pipe_schedule schedules[] = {PIPE_1F1B, PIPE_GPIPE, PIPE_INTERLEAVED, PIPE_ZB_H1, PIPE_ZB_V};
    for (int arch = ARCH_LLAMA; arch <= ARCH_GPT2; arch++)
        for (int k = 0; k < 5; k++) {
            struct job_spec job = job_uneven(job_of((enum model_arch)arch, 1, 2, 2, k % 2));
            job.parallel.pp = 2;
            job.parallel.fsdp = 2;
            job.parallel.workers *= 4;
            job.parallel.schedule = schedules[k];
            job.parallel.chunks = job_schedule_row(schedules[k])->most > 1 ? 2 : 1;
            job.parallel.zero = 3 - k % 4;
            job.parallel.recompute = (enum recompute)(k % 4);
            job.model.layers = 4;
            world_compare(&job);
            world_compare_passes(&job);
        }
}

static int64_t work_bytes(enum model_arch arch, enum recompute what, int layers)
{
    struct job_spec job = job_of(arch, 1, 1, 1, false);
    struct fixture f;
    job.parallel.recompute = what;
    job.model.layers = layers;
    fixture_init(&f, &job, MODE_TRAIN);
    int64_t bytes = f.programs[0].space_bytes[SPACE_WORK];
    fixture_fini(&f);
    return bytes;
}

/* 16 tokens of 16 columns. */
TEST(a_recomputed_layer_keeps_one_tensor)
{
    for (int arch = ARCH_LLAMA; arch <= ARCH_GPT2; arch++) {
        enum model_arch a = (enum model_arch)arch;
        assert_int_equal(work_bytes(a, RECOMPUTE_FULL, 9) - work_bytes(a, RECOMPUTE_FULL, 8), 16 * 16 * 4);
        int64_t all = work_bytes(a, RECOMPUTE_NONE, 9), norms = work_bytes(a, RECOMPUTE_POINTWISE, 9);
        assert_true(work_bytes(a, RECOMPUTE_FULL, 9) < norms && norms < all);
        assert_true(work_bytes(a, RECOMPUTE_ATTENTION, 9) < all);
    }
}

static bool of_weight(const struct program *p, const struct op *op)
{
    int written = op->kind == OP_ZERO ? 0 : 3;
    return (op->kind == OP_GEMM || op->kind == OP_ZERO) && p->buffers[op->arg[written].buffer].space == SPACE_GRAD;
}

/* On a device with streams the sum of an input's gradient is in flight while weight gradients are computed. */
TEST(sums_of_shares_overlap_matmuls_of_weights)
{
    for (int arch = ARCH_LLAMA; arch <= ARCH_GPT2; arch++)
        for (int sp = 0; sp < 2; sp++) {
            struct job_spec job = job_of((enum model_arch)arch, 1, 1, 2, sp);
            struct fixture f;
            int sums = 0;
            fixture_init(&f, &job, MODE_TRAIN);
            const struct program *p = &f.programs[0];
            for (int a = 0; a < p->n_actions; a++)
                for (int i = 0; p->actions[a].kind == ACT_BACKWARD && i < p->actions[a].n_ops; i++) {
                    const struct op *op = &p->ops[p->actions[a].first_op + i];
                    if (op->kind != (sp ? OP_OWN_SCATTER : OP_ALL_REDUCE))
                        continue;
                    assert_true(of_weight(p, op + 1));
                    sums++;
                }
            assert_int_equal(sums,
                             2 * (2 * job.model.layers + 1)); /* microbatches; two sums per layer, and the head's */
            fixture_fini(&f);
        }
}
