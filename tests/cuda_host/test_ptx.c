/* Runs the host implementations of kernels/cuda/ptx.h through the cases that a GPU must also pass. */
#include "tests/gpu/ptx_cases.h"
#include "tests/lib/test.h"

TEST(instructions_are_as_documented)
{
    assert_true(ptx_probe_devices() > 0);
    ptx_cases_run();
}
