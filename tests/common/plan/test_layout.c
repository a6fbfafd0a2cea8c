/* The mesh and how units are split over it; test_save.c tests boxes. */
#include "tests/common/plan/plan_fixture.h"

TEST(shares_differ_by_at_most_one)
{
    for (int64_t n = 0; n <= 33; n++)
        for (int parts = 1; parts <= 9; parts++) {
            int64_t next = 0, smallest = n, largest = 0, before = n;
            for (int i = 0; i < parts; i++) {
                int64_t lo, hi;
                layout_split(n, parts, i, &lo, &hi);
                assert_int_equal(lo, next);
                next = hi;
                assert_true(hi - lo <= before); /* larger first */
                before = hi - lo;
                smallest = hi - lo < smallest ? hi - lo : smallest;
                largest = hi - lo > largest ? hi - lo : largest;
            }
            assert_int_equal(next, n);
            assert_true(largest - smallest <= 1);
        }
}

TEST(coordinates_count_the_innermost_axis_fastest)
{
    struct mesh m = {{2, 3, 1, 1, 4}};
    int c[AXIS_COUNT];
    assert_int_equal(mesh_workers(&m), 24);
    for (int rank = 0; rank < 24; rank++) {
        mesh_coords(&m, rank, c);
        assert_int_equal((((c[0] * 3 + c[1]) * 1 + c[2]) * 1 + c[3]) * 4 + c[4], rank);
    }
    assert_string_equal(mesh_axis_name(AXIS_FSDP), "fsdp");
}

/* Every fold up to 8 ranks of an axis against its definition: ep is tp's, cp's and fsdp's shares multiplied; a share is
 * the whole axis unless all later ones are 1, and divides it. */
TEST(expert_parallelism_fills_the_axes_from_the_innermost)
{
    for (int i = 0; i < 8 * 8 * 8; i++) {
        const struct mesh m = {{2, 3, i / 64 + 1, i / 8 % 8 + 1, i % 8 + 1}};
        const int fsdp = m.size[AXIS_FSDP], cp = m.size[AXIS_CP], tp = m.size[AXIS_TP];
        bool legal[8 * 8 * 8 + 2] = {false};
        for (int d = 1; d <= 8; d++) {
            if (tp % d == 0)
                legal[d] = true;
            if (cp % d == 0)
                legal[tp * d] = true;
            if (fsdp % d == 0)
                legal[tp * cp * d] = true;
        }
        for (int ep = 1; ep <= fsdp * cp * tp + 1; ep++) {
            struct mesh_fold f;
            int64_t near;
            assert_int_equal(mesh_fold_init(&m, ep, &f, &near), legal[ep]);
            for (int d = 0; d < llabs(near - ep); d++)
                assert_false(legal[ep - d] || legal[ep + d]);
            assert_true(legal[near]);
            if (!legal[ep])
                continue;
            assert_int_equal(near, ep);
            assert_int_equal(f.share[AXIS_TP] * f.share[AXIS_CP] * f.share[AXIS_FSDP], ep);
            assert_int_equal(f.share[AXIS_PP] * f.share[AXIS_DP], 1);
            for (int a = 0; a < AXIS_COUNT; a++) {
                assert_int_equal(m.size[a] % f.share[a], 0);
                assert_int_equal(f.axes >> a & 1, f.share[a] > 1);
            }
            assert_true(f.share[AXIS_TP] == tp || f.share[AXIS_CP] * f.share[AXIS_FSDP] == 1);
            assert_true(f.share[AXIS_CP] == cp || f.share[AXIS_FSDP] == 1);
        }
    }
}
