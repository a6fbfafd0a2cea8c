/* Normal numbers of the CUDA module, whose kernels run on the processor: the bits equal those of the CPU kernels. */
#include "tests/kernels/normal.h"
#include "tests/lib/test.h"

static struct dev *module(void)
{
    static struct dev *d;
    struct why why = {""};
    if (!d && dev_open("cuda", 0, &d, &why))
        fail_msg("%s", why.text);
    return d;
}

TEST(a_box_has_the_numbers_of_its_place)
{
    normal_check_boxes(module(), dev_kernels(module(), DT_F32), 1);
    normal_check_boxes(module(), dev_kernels(module(), DT_BF16), 1);
}

TEST(rows_may_lie_far_apart)
{
    normal_check_far_rows(module(), dev_kernels(module(), DT_F32));
}

TEST(all_bits_of_float64_are_those_of_rng_normal)
{
    normal_check_doubles(module(), dev_kernels(module(), DT_F32));
}
