/* The checker accepts whole jobs: every combination of two axes, with the options that apply to them. */
#include "common/plan/check/plan_check.h"
#include "tests/common/plan/plan_fixture.h"

struct choice {
    int dp, fsdp, cp, tp, zero;
    int sp; /* 2: also async_tp */
};

static struct job_spec job_of(const struct choice *c, enum model_arch arch)
{
    struct job_spec job = job_small(arch, c->dp * c->fsdp * c->cp * c->tp);
    job.parallel.fsdp = c->fsdp;
    job.parallel.cp = c->cp;
    job.parallel.tp = c->tp;
    job.parallel.zero = c->zero;
    job.parallel.sp = c->sp > 0;
    job.parallel.async_tp = c->sp > 1;
    job.parallel.prefetch = 1;
    job.parallel.reshard = c->dp == 1;
    job.parallel.chunks = 1;
    return job;
}

static void check_job(const struct job_spec *job, enum program_mode mode)
{
    const struct job_parallel *p = &job->parallel;
    struct fixture f;
    fixture_init(&f, job, mode);
    if (plan_check(&f.graph, f.programs, f.n, &f.why) != OK)
        fail_msg(
            "arch %d, mode %d, numerics %d, dtype %d; pp %lld of %d, fsdp %lld, cp %lld, tp %lld, %lld workers, sp "
            "%d, zero %lld: %s",
            (int)job->model.arch, (int)mode, (int)job->train.numerics, (int)job->train.dtype, (long long)p->pp,
            (int)p->schedule, (long long)p->fsdp, (long long)p->cp, (long long)p->tp, (long long)p->workers, (int)p->sp,
            (long long)p->zero, f.why.text);
    fixture_fini(&f);
}

TEST(combinations_of_axes_pass)
{
    for (int dp = 1; dp <= 2; dp++)
        for (int fsdp = 1; fsdp <= 2; fsdp++)
            for (int cp = 1; cp <= 2; cp++)
                for (int tp = 1; tp <= 4; tp++)
                    for (int zero = 0; zero <= (fsdp > 1 ? 3 : 0); zero++)
                        for (int sp = 0; sp <= (tp > 1); sp++) {
                            const struct choice c = {dp, fsdp, cp, tp, zero, sp};
                            if (dp * fsdp * cp * tp > MAX_RANKS)
                                continue;
                            for (int arch = ARCH_LLAMA; arch <= ARCH_TRANSFORMER; arch++)
                                for (int k = 0; k < 4; k++) {
                                    struct job_spec job = job_of(&c, (enum model_arch)arch);
                                    job.train.numerics = k == 2 ? NUMERICS_CANONICAL : NUMERICS_FAST;
                                    job.train.dtype = k == 3 ? DT_BF16 : DT_F32;
                                    check_job(&job, k == 1 ? MODE_EVAL : MODE_TRAIN);
                                }
                        }
}

TEST(generation_passes)
{
    for (int cp = 1; cp <= 2; cp++)
        for (int tp = 1; tp <= 3; tp++) {
            const struct choice c = {1, 1, cp, tp, 0, tp - 1};
            struct job_spec job = job_of(&c, cp > 1 ? ARCH_LLAMA : ARCH_GPT2);
            check_job(&job, MODE_GENERATE);
            if (cp == 1)
                check_job(&job, MODE_DECODE);
        }
}

TEST(overlapped_tensor_parallelism_passes)
{
    static const struct choice choices[] = {{1, 1, 1, 2, 0, 2}, {1, 1, 1, 3, 0, 2}, {1, 1, 1, 4, 0, 2},
                                            {2, 1, 1, 3, 0, 2}, {1, 1, 2, 3, 0, 2}, {1, 2, 1, 2, 1, 2},
                                            {1, 2, 1, 2, 3, 2}, {1, 2, 2, 2, 2, 2}};
    for (size_t i = 0; i < sizeof(choices) / sizeof(choices[0]); i++)
        for (int arch = ARCH_LLAMA; arch <= ARCH_TRANSFORMER; arch++)
            for (int k = 0; k < 4; k++) {
                struct job_spec job = job_of(&choices[i], (enum model_arch)arch);
                job.train.numerics = k == 2 ? NUMERICS_CANONICAL : NUMERICS_FAST;
                job.train.dtype = k == 3 ? DT_BF16 : DT_F32;
                job.parallel.recompute = (enum recompute)((i + (size_t)k) % 4);
                check_job(&job, k == 1 ? MODE_EVAL : MODE_TRAIN);
                if (k > 1 || job.parallel.workers * 2 > MAX_RANKS)
                    continue;
                job.parallel.pp = 2;
                job.parallel.workers *= 2;
                job.parallel.schedule = k ? PIPE_1F1B : PIPE_ZB_H1;
                check_job(&job, k == 1 ? MODE_EVAL : MODE_TRAIN);
            }
}

/* Activation recomputation, and streams of random numbers. */
TEST(recomputation_and_dropout_pass)
{
    static const struct choice other_axes[] = {
        {1, 1, 1, 1, 0, false}, {1, 2, 1, 2, 3, true}, {1, 1, 2, 1, 0, false}, {1, 1, 1, 2, 0, false}};
    for (int again = RECOMPUTE_NONE; again <= RECOMPUTE_ATTENTION; again++)
        for (size_t b = 0; b < sizeof(other_axes) / sizeof(other_axes[0]); b++)
            for (int arch = ARCH_LLAMA; arch <= ARCH_TRANSFORMER; arch++)
                for (int pp = 1; pp <= 2; pp++) {
                    struct job_spec job = job_of(&other_axes[b], (enum model_arch)arch);
                    job.parallel.pp = pp;
                    job.parallel.workers *= pp;
                    job.parallel.recompute = (enum recompute)again;
                    job.parallel.schedule = again % 2 ? PIPE_ZB_H1 : PIPE_1F1B;
                    job.train.dropout = arch == ARCH_TRANSFORMER ? 0.1 : 0;
                    check_job(&job, MODE_TRAIN);
                }
}

/* Pipelines: every schedule, even and uneven numbers of microbatches, combined with other axes. */
TEST(pipelines_pass)
{
    static const struct {
        enum pipe_schedule schedule;
        int chunks;
    } schedules[] = {{PIPE_GPIPE, 1}, {PIPE_1F1B, 1},       {PIPE_INTERLEAVED, 2}, {PIPE_ZB_H1, 1},
                     {PIPE_ZB_V, 2},  {PIPE_DUALPIPE_V, 2}, {PIPE_ZB_H2, 1}};
    static const struct choice other_axes[] = {{1, 1, 1, 1, 0, false}, {2, 1, 1, 1, 0, false}, {1, 2, 1, 1, 1, false},
                                               {1, 2, 1, 1, 2, false}, {1, 2, 1, 1, 3, false}, {1, 1, 2, 1, 0, false},
                                               {1, 1, 1, 2, 0, false}, {1, 1, 1, 2, 0, true},  {1, 2, 1, 2, 3, true}};
    for (size_t s = 0; s < sizeof(schedules) / sizeof(schedules[0]); s++)
        for (size_t b = 0; b < sizeof(other_axes) / sizeof(other_axes[0]); b++)
            for (int pp = 2; pp <= 3; pp++)
                for (int arch = ARCH_LLAMA; arch <= ARCH_TRANSFORMER; arch++)
                    for (int k = 0; k < 4; k++) {
                        struct job_spec job = job_of(&other_axes[b], (enum model_arch)arch);
                        job.parallel.pp = pp;
                        job.parallel.workers *= pp;
                        if (job.parallel.workers > MAX_RANKS)
                            continue;
                        job.model.layers = pp * schedules[s].chunks;
                        job.model.tied = arch == ARCH_GPT2 || (arch == ARCH_LLAMA && b % 2);
                        const bool leaves = !job.model.tied || job_schedule_row(schedules[s].schedule)->fewest < 2;
                        job.train.global_batch = k == 3 ? 9 : 12;
                        job.train.numerics = k == 2 && leaves ? NUMERICS_CANONICAL : NUMERICS_FAST;
                        job.parallel.schedule = schedules[s].schedule;
                        job.parallel.chunks = schedules[s].chunks;
                        check_job(&job, k == 1 ? MODE_EVAL : MODE_TRAIN);
                    }
}
