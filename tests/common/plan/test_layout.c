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
