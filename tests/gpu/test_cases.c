/* The case table on the real GPU, both compute types, every case twice: same inputs, same bits. And the first
 * parameters, which have the processor's bits. */
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

static void all_cases(enum dtype dtype)
{
    struct dev *d = gpu();
    const struct cases_options o = {.twice = true};
    int ran = cases_run(d, dev_kernels(d, dtype), &o);
    printf("%d cases in %s\n", ran, dtype_name(dtype));
    assert_true(ran > 0);
    dev_close(d);
}

TEST(float32)
{
    all_cases(DT_F32);
}

TEST(bfloat16)
{
    all_cases(DT_BF16);
}

TEST(first_parameters)
{
    struct dev *d = gpu();
    normal_check_boxes(d, dev_kernels(d, DT_F32), 1);
    normal_check_boxes(d, dev_kernels(d, DT_BF16), 1);
    normal_check_doubles(d, dev_kernels(d, DT_F32));
    dev_close(d);
}
