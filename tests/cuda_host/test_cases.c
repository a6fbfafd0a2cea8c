/* The case table on the CUDA module, whose kernels run on the processor. Under the address sanitizer every kernel's
 * reads and writes are watched; under the thread sanitizer, with a system thread per thread of a block, what no barrier
 * orders is found: then the small cases only. */
#include "tests/cuda_host/counts.h"
#include "tests/kernels/harness.h"
#include "tests/lib/test.h"

#if defined(__SANITIZE_THREAD__)
#define TINY true
#else
#define TINY false
#endif

static void all_cases(enum dtype dtype, const char *op, bool plain)
{
    struct dev *d;
    struct why why = {""};
    struct cuda_host_counts before, after;
    if (dev_open("cuda", 0, &d, &why))
        fail_msg("%s", why.text);
    cuda_host_refuse_fused(plain);
    cuda_host_counts_read(&before);
    const struct cases_options o = {.op = op, .no_slow = true, .tiny = TINY, .twice = !TINY};
    assert_true(cases_run(d, dev_kernels(d, dtype), &o) > 0);
    cuda_host_counts_read(&after);
    cuda_host_counts_print(&after, stdout);
    assert_true(after.launches > before.launches || after.products > before.products);
    dev_close(d);
    cuda_host_counts_read(&after);
    assert_int_equal(after.live_allocations + after.live_streams + after.live_events + after.live_handles, 0);
}

TEST(float32)
{
    all_cases(DT_F32, NULL, false);
}

TEST(bfloat16)
{
    all_cases(DT_BF16, NULL, false);
}

TEST(products_without_fused_forms)
{
    if (TINY)
        TEST_SKIP("the kernels behind it have been run by the other cases");
    all_cases(DT_F32, "gemm", true);
    all_cases(DT_BF16, "gemm", true);
}
