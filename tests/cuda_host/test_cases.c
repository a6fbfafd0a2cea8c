/* Runs the case table on the CUDA module, whose kernels run on the processor. The address sanitizer checks every
 * kernel's reads and writes. The thread sanitizer, with a system thread per thread of a block, detects accesses that no
 * barrier orders; it runs only the small cases. */
#include "tests/cuda_host/counts.h"
#include "tests/kernels/harness.h"
#include "tests/lib/test.h"

#if defined(__SANITIZE_THREAD__)
#define TINY true
#else
#define TINY false
#endif

/* `algorithms`: an algorithm file, or NULL. */
static void all_cases(enum dtype dtype, const char *op, const char *algorithms)
{
    struct dev *d;
    struct why why = {""};
    struct cuda_host_counts before, after;
    if (dev_open("cuda", 0, &d, &why))
        fail_msg("%s", why.text);
    assert_ok(dev_algorithms(d, algorithms, &why));
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
    all_cases(DT_F32, NULL, NULL);
}

TEST(bfloat16)
{
    all_cases(DT_BF16, NULL, NULL);
}

static void all_products(const char *algorithms)
{
    if (TINY)
        TEST_SKIP("the other cases have run the kernels that it uses");
    all_cases(DT_F32, "gemm", algorithms);
    all_cases(DT_BF16, "gemm", algorithms);
}

TEST(products_without_fused_forms)
{
    cuda_host_refuse_fused(true);
    all_products(NULL);
}

/* Our own kernel computes products that cuBLASLt cannot. */
TEST(products_without_an_algorithm)
{
    cuda_host_require_aligned(16);
    all_products(NULL);
}

/* Timing runs a product many times, but its result is added once. */
TEST(products_that_are_timed)
{
    all_products(test_tmpdir());
}

/* Runs the separate form of every product that has one. */
TEST(products_whose_fused_forms_are_slow)
{
    cuda_host_plant_ms("fused", 100);
    all_products(test_tmpdir());
}
