/* ZeRO: every stage on every mesh of shards and replicas computes one worker's numbers, with any accumulation, prefetch
 * and resharding; and the memory that each stage saves. */
#include "tests/common/plan/world.h"

static struct job_spec sharded(enum model_arch arch, int zero, int fsdp, int dp)
{
    struct job_spec job = job_small(arch, fsdp * dp);
    job.parallel.zero = zero;
    job.parallel.fsdp = fsdp;
    job.parallel.prefetch = 1;
    job.parallel.reshard = true;
    job.model.dim = 24; /* a number of rows that is no multiple of a grain; empty pieces */
    job.model.vocab = 101;
    job.train.dropout = arch == ARCH_TRANSFORMER ? 0.25 : 0;
    return job;
}

typedef void (*job_fn)(const struct job_spec *job);

static void each_mesh(enum numerics numerics, job_fn compare)
{
    for (int arch = ARCH_LLAMA; arch <= ARCH_TRANSFORMER; arch++)
        for (int zero = 0; zero <= 3; zero++)
            for (int fsdp = zero ? 2 : 1; fsdp <= 4; fsdp++)
                for (int dp = 1; dp <= 2; dp++) {
                    struct job_spec job = sharded((enum model_arch)arch, zero, fsdp, dp);
                    job.train.numerics = numerics;
                    compare(&job);
                }
}

TEST(every_stage_on_every_mesh_is_one_worker)
{
    each_mesh(NUMERICS_FAST, world_compare);
}

TEST(canonical_stages_are_one_worker_bit_for_bit)
{
    each_mesh(NUMERICS_CANONICAL, world_compare_exact);
}

/* From one microbatch, with idle ranks, to many; also with a short last one. */
TEST(accumulation_is_one_worker)
{
    for (int zero = 1; zero <= 3; zero++)
        for (int64_t batch = 2; batch <= 14; batch += 3) {
            struct job_spec job = sharded(batch & 1 ? ARCH_GPT2 : ARCH_LLAMA, zero, 3, 2);
            job.train.global_batch = batch;
            world_compare(&job);
            job.train.numerics = NUMERICS_CANONICAL;
            world_compare_exact(&job);
        }
}

/* Options that change the order of work, not its result. */
TEST(prefetch_and_reshard_change_nothing)
{
    for (int64_t prefetch = 0; prefetch <= 9; prefetch += 3)
        for (int reshard = 0; reshard < 2; reshard++) {
            struct job_spec one = sharded(ARCH_GPT2, 3, 2, 2), other = one;
            one.parallel.prefetch = 1;
            other.parallel.prefetch = prefetch;
            other.parallel.reshard = reshard;
            world_compare_two(&one, &other);
        }
}

/* With every other axis: pieces of local tensors, tied heads on two stages, shared key-value heads. */
static void with_others(enum numerics numerics, job_fn compare, int least_zero)
{
    static const struct mesh meshes[] = {{{1, 1, 2, 1, 2}}, {{1, 2, 2, 1, 4}}, {{1, 1, 2, 2, 1}}, {{1, 2, 1, 3, 1}},
                                         {{1, 1, 2, 2, 2}}, {{2, 1, 2, 1, 1}}, {{2, 2, 3, 1, 1}}, {{2, 1, 2, 1, 2}},
                                         {{2, 1, 2, 2, 1}}, {{2, 2, 2, 1, 2}}};
    for (size_t i = 0; i < sizeof(meshes) / sizeof(meshes[0]); i++)
        for (int arch = ARCH_LLAMA; arch <= ARCH_TRANSFORMER; arch++)
            for (int zero = meshes[i].size[AXIS_FSDP] > 1 ? least_zero : 0; zero <= 3; zero++) {
                const int *size = meshes[i].size;
                struct job_spec job = sharded((enum model_arch)arch, zero, size[AXIS_FSDP], size[AXIS_DP]);
                if (zero && size[AXIS_FSDP] == 1)
                    continue;
                job.parallel.workers = mesh_workers(&meshes[i]);
                job.parallel.pp = size[AXIS_PP];
                job.parallel.cp = size[AXIS_CP];
                job.parallel.tp = size[AXIS_TP];
                job.parallel.sp = arch == ARCH_LLAMA || zero > 1;
                job.model.tied = arch == ARCH_GPT2 || zero & 1;
                job.train.numerics = numerics;
                compare(&job);
            }
}

TEST(stages_with_every_other_axis_are_one_worker)
{
    with_others(NUMERICS_FAST, world_compare, 0);
}

/* The tree covers dp and fsdp; sums over cp and tp round differently. */
TEST(canonical_stages_with_every_other_axis_are_near_one_worker)
{
    with_others(NUMERICS_CANONICAL, world_compare, 3);
}

/* Pipeline stages change no sum, unless two of them use one tensor. */
TEST(canonical_stages_of_a_pipeline_are_one_worker_bit_for_bit)
{
    for (int zero = 0; zero <= 3; zero++)
        for (int pp = 2; pp <= 3; pp++) {
            struct job_spec job = sharded(ARCH_LLAMA, zero, 2, 2);
            job.model.layers = 3;
            job.parallel.pp = pp;
            job.parallel.workers *= pp;
            job.train.numerics = NUMERICS_CANONICAL;
            world_compare_exact(&job);
        }
}

/* Every mode has its own gathers; a rank without a microbatch of an evaluation joins. */
TEST(evaluation_and_generation_gather_too)
{
    for (int zero = 1; zero <= 3; zero++)
        for (int64_t batch = 2; batch <= 10; batch += 4) {
            struct job_spec job = sharded(zero & 1 ? ARCH_LLAMA : ARCH_GPT2, zero, 3, 1);
            job.train.global_batch = batch;
            world_compare_passes(&job);
        }
}

/* Gathers send the bfloat16 copies of pieces. With one microbatch per rank every gradient is summed once, in the order
 * of ranks, with any stage. */
TEST(bfloat16_stages_are_equal_bit_for_bit)
{
    for (int arch = ARCH_LLAMA; arch <= ARCH_TRANSFORMER; arch++)
        for (int zero = 1; zero <= 3; zero++) {
            struct job_spec whole = sharded((enum model_arch)arch, 0, 3, 1), shards;
            whole.train.dtype = DT_BF16;
            whole.train.global_batch = 5; /* the last microbatch is short */
            shards = whole;
            shards.parallel.zero = zero;
            world_compare_two(&whole, &shards);
        }
}

/* Gathered parameters that are kept, split backwards, chunks: each with unequal numbers of microbatches in a group. */
TEST(schedules_with_shards_are_one_worker)
{
    static const struct {
        enum pipe_schedule schedule;
        int chunks;
    } rows[] = {{PIPE_GPIPE, 1}, {PIPE_1F1B, 1},       {PIPE_ZB_H1, 1}, {PIPE_INTERLEAVED, 2},
                {PIPE_ZB_V, 2},  {PIPE_DUALPIPE_V, 2}, {PIPE_ZB_H2, 1}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        for (int zero = 1; zero <= 3; zero++)
            for (int reshard = 0; reshard < 2; reshard++)
                for (int64_t batch = 10; batch <= 16; batch += 6) {
                    struct job_spec job = sharded(i & 1 ? ARCH_GPT2 : ARCH_LLAMA, zero, 2, 1);
                    job.model.layers = 4;
                    job.train.global_batch = batch;
                    job.parallel.pp = 2;
                    job.parallel.workers = 4;
                    job.parallel.chunks = rows[i].chunks;
                    job.parallel.schedule = rows[i].schedule;
                    job.parallel.reshard = reshard;
                    world_compare(&job);
                }
}

/* Bytes of one of four ranks in float32 with N parameters: N / 4 for pieces and 2 N / 4 for moments; values in the
 * compute type are whole below stage 3, local gradients below stage 2. Tolerance: a grain per tensor, and two units,
 * which stages 2 and 3 hold temporarily. */
TEST(each_stage_needs_less)
{
    int64_t work0 = 0;
    for (int zero = 0; zero <= 3; zero++) {
        struct job_spec job = job_small(ARCH_LLAMA, 4);
        struct fixture f;
        job.model.dim = 128;
        job.model.layers = 24;
        job.model.ffn = 344;
        job.parallel.zero = zero;
        job.parallel.fsdp = 4;
        job.parallel.prefetch = 1;
        job.parallel.reshard = true;
        fixture_init(&f, &job, MODE_TRAIN);
        const struct program *p = &f.programs[1];
        const int64_t n = 4 * f.graph.n_params, piece = zero ? n / 4 : n, slack = 64 * f.graph.n_tensors + n / 50;
        const int64_t unit = n / 24;
        const int64_t grad[] = {n, n + n / 4, n / 4 + unit, n / 4 + unit};
        const int64_t values[] = {0, n, n, 2 * unit};
        work0 = zero ? work0 : p->space_bytes[SPACE_WORK];
        assert_in_range(p->space_bytes[SPACE_PARAM], piece, piece + slack);
        assert_in_range(p->space_bytes[SPACE_OPT], 2 * piece, 2 * (piece + slack));
        assert_in_range(p->space_bytes[SPACE_GRAD], grad[zero] - slack, grad[zero] + slack);
        assert_in_range(p->space_bytes[SPACE_WORK], work0 + values[zero] - unit / 2, work0 + values[zero] + slack);
        fixture_fini(&f);
    }
}

/* A recomputed node reads its parameters again, so they are gathered again. */
TEST(recomputation_with_shards_changes_nothing)
{
    for (int arch = ARCH_LLAMA; arch <= ARCH_TRANSFORMER; arch++)
        for (int kind = RECOMPUTE_FULL; kind <= RECOMPUTE_ATTENTION; kind++)
            for (int reshard = 0; reshard < 2; reshard++) {
                struct job_spec keeps = sharded((enum model_arch)arch, 3, 2, 2), again = keeps;
                again.parallel.recompute = (enum recompute)kind;
                again.parallel.reshard = reshard;
                world_compare_two(&keeps, &again);
            }
}
