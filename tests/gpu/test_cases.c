/* Runs the case table on the real GPU, in both compute types and every case twice: the same inputs must give the same
 * bits. Also checks that the initial parameters have the CPU's bits. */
#include "tests/kernels/gelu.h"
#include "tests/kernels/harness.h"
#include "tests/kernels/normal.h"
#include "tests/lib/test.h"

static struct dev *gpu(void)
{
    struct dev *d;
    struct why why = {""};
    int n = 0;
    if (dev_count("cuda", &n, &why) || n == 0) {
        printf("skipped: %s\n", why.text[0] ? why.text : "no GPU");
        exit(77);
    }
    if (dev_open("cuda", 0, &d, &why))
        fail_msg("%s", why.text);
    return d;
}

/* `algorithms`: time products and store their algorithms. */
static void all_cases(enum dtype dtype, const char *op, bool algorithms)
{
    struct dev *d = gpu();
    const struct cases_options o = {.op = op, .twice = true};
    assert_ok(dev_algorithms(d, algorithms ? test_tmpdir() : NULL, NULL));
    int ran = cases_run(d, dev_kernels(d, dtype), &o);
    printf("%d cases in %s\n", ran, dtype_name(dtype));
    assert_true(ran > 0);
    dev_close(d);
}

TEST(float32)
{
    all_cases(DT_F32, NULL, false);
}

TEST(bfloat16)
{
    all_cases(DT_BF16, NULL, false);
}

TEST(products_that_are_timed)
{
    all_cases(DT_F32, "gemm", true);
    all_cases(DT_BF16, "gemm", true);
}

/* The case table's bounds for GELU would admit a tanh of eleven bits, because they are on the scale of a whole matrix.
 */
TEST(gelu_near_zero)
{
    struct dev *d = gpu();
    for (int act = KERN_ACT_GELU; act <= KERN_ACT_GELU_GRAD; act++) {
        double worst = gelu_worst(d, (enum kern_act)act);
        printf("%s: the worst error is %.3f of what rounding to bfloat16 allows\n",
               act == KERN_ACT_GELU ? "GELU" : "its gradient", worst);
        assert_true(worst <= 1.1);
    }
    dev_close(d);
}

TEST(first_parameters)
{
    struct dev *d = gpu();
    normal_check_boxes(d, dev_kernels(d, DT_F32), 1);
    normal_check_boxes(d, dev_kernels(d, DT_BF16), 1);
    normal_check_doubles(d, dev_kernels(d, DT_F32));
    dev_close(d);
}
