/* Data parallelism, which every other layout is combined with: all ranks together against one rank. */
#include "tests/common/plan/world.h"

TEST(data_parallel_is_one_worker)
{
    for (int arch = ARCH_LLAMA; arch <= ARCH_GPT2; arch++)
        for (int n = 2; n <= 6; n++) {
            struct job_spec job = job_small((enum model_arch)arch, n);
            world_compare(&job);
        }
}

TEST(canonical_data_parallel_is_one_worker_bit_for_bit)
{
    for (int n = 2; n <= 6; n++) {
        struct job_spec job = job_small(ARCH_LLAMA, n);
        job.train.numerics = NUMERICS_CANONICAL;
        world_compare_exact(&job);
    }
}
