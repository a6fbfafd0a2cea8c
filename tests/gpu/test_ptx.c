/* Every function of kernels/cuda/ptx.h on a real GPU. */
#include "tests/gpu/ptx_cases.h"
#include "tests/lib/test.h"

TEST(instructions_are_as_documented)
{
    if (ptx_probe_devices() == 0) {
        printf("skipped: no GPU\n");
        exit(77);
    }
    ptx_cases_run();
}
