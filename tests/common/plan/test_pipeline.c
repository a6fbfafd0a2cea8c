/* Pipelines: every schedule against one worker, in the numbers of all ranks together. */
#include "tests/common/plan/world.h"

static struct job_spec pipeline(enum model_arch arch, int pp, enum pipe_schedule schedule, int chunks, int batch)
{
    struct job_spec job = job_small(arch, pp);
    job.model.layers = pp * chunks > 2 ? pp * chunks : 2;
    job.parallel.pp = pp;
    job.parallel.schedule = schedule;
    job.parallel.chunks = chunks;
    job.train.global_batch = batch;
    return job;
}

static const enum pipe_schedule schedules[] = {PIPE_1F1B, PIPE_GPIPE, PIPE_INTERLEAVED, PIPE_ZB_H1};

TEST(every_schedule_is_one_worker)
{
    for (int arch = ARCH_LLAMA; arch <= ARCH_GPT2; arch++)
        for (int pp = 2; pp <= 4; pp++)
            for (int i = 0; i < 4; i++) {
                struct job_spec job = pipeline((enum model_arch)arch, pp, schedules[i], 1, 10);
                world_compare(&job);
            }
}

TEST(chunks_are_one_worker)
{
    for (int arch = ARCH_LLAMA; arch <= ARCH_GPT2; arch++)
        for (int pp = 2; pp <= 4; pp++)
            for (int chunks = 2; chunks <= 3; chunks++) {
                struct job_spec job = pipeline((enum model_arch)arch, pp, PIPE_INTERLEAVED, chunks, 9);
                world_compare(&job);
            }
}

/* From a single microbatch, fewer than ranks, to many, the last one short. */
TEST(any_number_of_microbatches_is_one_worker)
{
    static const int batches[] = {1, 2, 3, 4, 7, 16};
    for (int i = 0; i < 6; i++)
        for (int k = 0; k < 4; k++) {
            struct job_spec job =
                pipeline(ARCH_LLAMA, 3, schedules[k], schedules[k] == PIPE_INTERLEAVED ? 2 : 1, batches[i]);
            job.train.micro_batch = batches[i] < 2 ? 1 : 2;
            world_compare(&job);
        }
}

TEST(a_head_tied_across_stages_is_one_worker)
{
    for (int pp = 2; pp <= 3; pp++)
        for (int k = 0; k < 4; k++) {
            struct job_spec job = pipeline(ARCH_LLAMA, pp, schedules[k], schedules[k] == PIPE_INTERLEAVED ? 2 : 1, 10);
            job.model.tied = true;
            world_compare(&job);
        }
}

/* Replicas of a pipeline: with as many microbatches, with one more, with none. */
TEST(replicas_of_pipelines_are_one_worker)
{
    for (int dp = 2; dp <= 4; dp++)
        for (int batch = 2; batch <= 14; batch += 4)
            for (int k = 0; k < 4; k++) {
                struct job_spec job =
                    pipeline(ARCH_GPT2, 2, schedules[k], schedules[k] == PIPE_INTERLEAVED ? 2 : 1, batch);
                job.parallel.workers = 2 * dp;
                world_compare(&job);
            }
}

/* The tree does not see who computes what when. */
TEST(canonical_pipelines_are_one_worker_bit_for_bit)
{
    for (int dp = 1; dp <= 2; dp++)
        for (int k = 0; k < 4; k++) {
            struct job_spec job = pipeline(ARCH_LLAMA, 2, schedules[k], schedules[k] == PIPE_INTERLEAVED ? 2 : 1, 10);
            job.parallel.workers = 2 * dp;
            job.train.numerics = NUMERICS_CANONICAL;
            world_compare_exact(&job);
        }
}

TEST(sharded_pipelines_are_one_worker)
{
    for (int zero = 1; zero <= 3; zero++)
        for (int batch = 2; batch <= 10; batch += 4)
            for (int k = 0; k < 4; k++) {
                struct job_spec job =
                    pipeline(ARCH_LLAMA, 2, schedules[k], schedules[k] == PIPE_INTERLEAVED ? 2 : 1, batch);
                job.parallel.workers = 4;
                job.parallel.fsdp = 2;
                job.parallel.zero = zero;
                job.parallel.reshard = zero == 3 && batch == 6;
                job.parallel.prefetch = 1;
                world_compare(&job);
            }
}

TEST(tensor_parallel_pipelines_are_one_worker)
{
    for (int sp = 0; sp <= 1; sp++)
        for (int k = 0; k < 4; k++) {
            struct job_spec job = pipeline(ARCH_LLAMA, 2, schedules[k], schedules[k] == PIPE_INTERLEAVED ? 2 : 1, 10);
            job.parallel.workers = 4;
            job.parallel.tp = 2;
            job.parallel.sp = sp;
            world_compare(&job);
        }
}

TEST(context_parallel_pipelines_are_one_worker)
{
    for (int k = 0; k < 4; k++) {
        struct job_spec job = pipeline(ARCH_LLAMA, 2, schedules[k], schedules[k] == PIPE_INTERLEAVED ? 2 : 1, 10);
        job.parallel.workers = 4;
        job.parallel.cp = 2;
        world_compare(&job);
    }
}

/* What is computed again is what was computed before. */
TEST(recomputation_changes_no_bit)
{
    static const enum recompute policies[] = {RECOMPUTE_FULL, RECOMPUTE_POINTWISE, RECOMPUTE_ATTENTION};
    for (int arch = ARCH_LLAMA; arch <= ARCH_GPT2; arch++)
        for (int i = 0; i < 3; i++)
            for (int k = 0; k < 4; k++) {
                struct job_spec off = pipeline((enum model_arch)arch, 2, schedules[k],
                                               schedules[k] == PIPE_INTERLEAVED ? 2 : 1, 10),
                                on = off;
                on.parallel.recompute = policies[i];
                world_compare_two(&off, &on);
            }
}

TEST(evaluation_and_generation_go_through_the_pipeline)
{
    for (int arch = ARCH_LLAMA; arch <= ARCH_GPT2; arch++)
        for (int pp = 2; pp <= 3; pp++)
            for (int chunks = 1; chunks <= 2; chunks++)
                for (int dp = 1; dp <= 2; dp++) {
                    struct job_spec job = pipeline((enum model_arch)arch, pp, PIPE_INTERLEAVED, chunks, 10);
                    job.parallel.workers = pp * dp;
                    world_compare_passes(&job);
                }
}
