/* Conversions between element types: exact if possible, else rounded once, to nearest even. The oracle searches all
 * 65,536 values for the nearest one. */
#include "common/ckpt/ckpt_priv.h"
#include "tests/lib/test.h"

#include <math.h>

static double value_of(enum dtype t, uint16_t bits)
{
    double d;
    convert(&d, DT_F64, &bits, t, 1);
    return d;
}

static const enum dtype halves[] = {DT_BF16, DT_F16};

TEST(sixteen_bits_there_and_back)
{
    for (int k = 0; k < 2; k++)
        for (uint32_t i = 0; i < 65536; i++) {
            uint16_t bits = (uint16_t)i, back;
            float f;
            double d;
            convert(&f, DT_F32, &bits, halves[k], 1);
            convert(&back, halves[k], &f, DT_F32, 1);
            if (isnan(f) ? !isnan(value_of(halves[k], back)) : back != bits)
                fail_msg("%s %04x by float comes back as %04x", dtype_name(halves[k]), bits, back);
            convert(&d, DT_F64, &bits, halves[k], 1);
            convert(&back, halves[k], &d, DT_F64, 1);
            if (isnan(d) ? !isnan(value_of(halves[k], back)) : back != bits)
                fail_msg("%s %04x by double comes back as %04x", dtype_name(halves[k]), bits, back);
        }
}

TEST(known_values)
{
    static const struct {
        uint16_t bits;
        double value;
    } f16[] = {{0x3c00, 1}, {0xc000, -2}, {0x7bff, 65504}, {0x0001, 0x1p-24}, {0x0400, 0x1p-14}, {0x3555, 0x1.554p-2}};
    for (size_t i = 0; i < sizeof(f16) / sizeof(f16[0]); i++)
        assert_true(value_of(DT_F16, f16[i].bits) == f16[i].value);
    assert_true(value_of(DT_BF16, 0x3f80) == 1);
    assert_true(value_of(DT_BF16, 0x4049) == 3.140625);
    assert_true(isinf(value_of(DT_F16, 0x7c00)) && isinf(value_of(DT_BF16, 0x7f80)));
}

/* Non-negative finite values of a 16-bit type have the order of their bits, so bisection finds the neighbours. */
static uint16_t nearest(enum dtype t, double d)
{
    uint16_t inf = t == DT_F16 ? 0x7c00 : 0x7f80, lo = 0, hi = inf, sign = signbit(d) ? 0x8000 : 0;
    d = fabs(d);
    while (hi - lo > 1) {
        uint16_t mid = (uint16_t)((lo + hi) / 2);
        if (value_of(t, mid) <= d)
            lo = mid;
        else
            hi = mid;
    }
    double a = value_of(t, lo), b = hi == inf ? a + (a - value_of(t, (uint16_t)(lo - 1))) : value_of(t, hi);
    double down = d - a, up = b - d;
    uint16_t best = down < up ? lo : up < down ? hi : lo % 2 ? hi : lo;
    return sign | best;
}

static void check_rounding(enum dtype t, double d)
{
    float f = (float)d;
    uint16_t got;
    convert(&got, t, &d, DT_F64, 1);
    if (got != nearest(t, d))
        fail_msg("double %a to %s is %04x, nearest is %04x", d, dtype_name(t), got, nearest(t, d));
    if (!isfinite(f))
        return;
    convert(&got, t, &f, DT_F32, 1);
    if (got != nearest(t, (double)f))
        fail_msg("float %a to %s is %04x, nearest is %04x", (double)f, dtype_name(t), got, nearest(t, (double)f));
}

TEST(rounded_once_to_nearest_even)
{
    unsigned seed = 3;
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < 100000; i++) {
            uint16_t bits = (uint16_t)(rand_r(&seed) % (k ? 0x7bff : 0x7f7f));
            double a = value_of(halves[k], bits), b = value_of(halves[k], (uint16_t)(bits + 1));
            double tie = a + (b - a) / 2, nudge = (b - a) * 0x1p-40;
            check_rounding(halves[k], tie);
            check_rounding(halves[k], tie + nudge); /* a tie in float, not in double */
            check_rounding(halves[k], -(tie - nudge));
            check_rounding(halves[k], a + (b - a) * rand_r(&seed) / RAND_MAX);
        }
}

TEST(what_can_become_what)
{
    assert_true(convert_is_possible(DT_F32, DT_BF16));
    assert_true(convert_is_possible(DT_I64, DT_I64));
    assert_false(convert_is_possible(DT_I64, DT_F32));
    assert_false(convert_is_possible(DT_F32, DT_I32));
    assert_false(convert_is_possible(DT_NONE, DT_F32));
}
