/* Checks normal numbers on every table of the processor. */
#include "kernels/variants.h"
#include "tests/kernels/normal.h"
#include "tests/lib/test.h"

static struct dev *cpu(void)
{
    static struct dev *d;
    if (!d)
        assert_ok(dev_open("cpu", 0, &d, NULL));
    return d;
}

TEST(a_box_has_the_numbers_of_its_place_with_any_number_of_threads)
{
    const struct kern_ops *k;
    const char *isa;
    for (int i = 0; (k = kern_variant(i, &isa)); i++)
        for (int threads = 1; threads <= 4; threads++)
            normal_check_boxes(cpu(), k, threads);
}

TEST(rows_may_lie_far_apart)
{
    const struct kern_ops *k;
    const char *isa;
    for (int i = 0; (k = kern_variant(i, &isa)); i++)
        normal_check_far_rows(cpu(), k);
}

TEST(all_bits_of_float64_are_those_of_rng_normal)
{
    const struct kern_ops *k;
    const char *isa;
    for (int i = 0; (k = kern_variant(i, &isa)); i++)
        normal_check_doubles(cpu(), k);
}
