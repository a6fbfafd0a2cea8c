/* The transformer of Vaswani et al. (2017), on one rank and on every axis: post-norm, sinusoids, ReLU, biases, dropout
 * by global coordinates; with and without a causal mask. */
#include "tests/common/plan/world.h"

static struct job_spec job_taught(int workers)
{
    struct job_spec job = job_small(ARCH_TRANSFORMER, workers);
    job.model.ffn = 36;
    job.train.dropout = 0.25;
    return job;
}

TEST(data_parallel_drops_the_same)
{
    for (int n = 2; n <= 3; n++) {
        struct job_spec job = job_taught(n);
        world_compare(&job);
    }
}

TEST(every_axis_is_one_worker)
{
    static const struct {
        int fsdp, zero, tp, pp, cp;
        bool sp;
    } cells[] = {
        {2, 1, 1, 1, 1, true},  {2, 3, 1, 1, 1, true}, {1, 0, 2, 1, 1, true}, {1, 0, 2, 1, 1, false},
        {1, 0, 3, 1, 1, true},  {1, 0, 1, 2, 1, true}, {1, 0, 1, 1, 2, true}, {1, 0, 2, 1, 2, true},
        {1, 0, 2, 2, 1, true},  {2, 3, 2, 1, 1, true}, {2, 2, 1, 2, 1, true}, {1, 0, 1, 1, 3, true},
        {2, 3, 2, 2, 1, false},
    };
    for (size_t i = 0; i < sizeof(cells) / sizeof(cells[0]); i++)
        for (int causal = 0; causal < 2; causal++) {
            struct job_spec job = job_taught(cells[i].fsdp * cells[i].tp * cells[i].pp * cells[i].cp);
            job.parallel.fsdp = cells[i].fsdp;
            job.parallel.zero = cells[i].zero;
            job.parallel.tp = cells[i].tp;
            job.parallel.pp = cells[i].pp;
            job.parallel.cp = cells[i].cp;
            job.parallel.sp = cells[i].sp;
            job.model.causal = causal;
            world_compare(&job);
        }
}

TEST(computing_again_drops_the_same)
{
    for (int how = RECOMPUTE_FULL; how <= RECOMPUTE_ATTENTION; how++) {
        struct job_spec kept = job_taught(2), again = job_taught(2);
        again.parallel.recompute = (enum recompute)how;
        world_compare_two(&kept, &again);
    }
}

TEST(without_dropout_nothing_is_dropped)
{
    struct job_spec job = job_taught(2);
    job.train.dropout = 0;
    job.parallel.tp = 2;
    world_compare(&job);
}
