/* Shares and boxes, against a tensor painted element by element. */
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

/* Every element must be held by exactly `copies` ranks. */
static void assert_covers(const struct mesh *m, const struct layout *l, int ndim, const int64_t *dims, int copies)
{
    int64_t total = 1;
    for (int d = 0; d < ndim; d++)
        total *= dims[d];
    int *paint = calloc((size_t)total + 1, sizeof(*paint));
    for (int rank = 0; rank < mesh_workers(m); rank++) {
        struct box boxes[64];
        int n = layout_boxes(m, l, ndim, dims, rank, 64, boxes);
        assert_true(n <= 64);
        for (int i = 0; i < n; i++) {
            for (int64_t e = 0; e < box_elements(&boxes[i]); e++) {
                int64_t at = 0, rest = e, stride = 1;
                for (int d = ndim - 1; d >= 0; d--) {
                    at += (boxes[i].offset[d] + rest % boxes[i].size[d]) * stride;
                    rest /= boxes[i].size[d];
                    stride *= dims[d];
                }
                assert_true(at < total);
                paint[at]++;
            }
        }
    }
    for (int64_t e = 0; e < total; e++)
        if (paint[e] != copies)
            fail_msg("element %lld of %lld is held by %d ranks, not %d", (long long)e, (long long)total, paint[e],
                     copies);
    free(paint);
}

TEST(replicated_tensors_are_whole_everywhere)
{
    struct mesh m = {{1, 3, 1, 1, 1}};
    struct layout l = {0};
    int64_t dims[] = {4, 5};
    struct box b;
    assert_int_equal(layout_boxes(&m, &l, 2, dims, 2, 1, &b), 1);
    assert_int_equal(box_elements(&b), 20);
    assert_covers(&m, &l, 2, dims, 3);
    assert_int_equal(layout_boxes(&m, &l, 0, NULL, 0, 1, &b), 1); /* a scalar has one element */
}

TEST(uneven_shards_cover_once)
{
    for (int64_t rows = 1; rows <= 13; rows++)
        for (int tp = 1; tp <= 5; tp++)
            for (int64_t unit = 1; unit <= 4; unit++) {
                struct mesh m = {{1, 2, 1, 1, tp}};
                struct layout l = {0};
                int64_t dims[] = {rows, 3};
                l.axis[AXIS_TP] = (struct axis_layout){.kind = LAYOUT_SHARD, .segments = 1, .unit = unit};
                assert_covers(&m, &l, 2, dims, 2);
            }
}

TEST(cuts_fall_on_units)
{
    struct mesh m = {{1, 1, 1, 1, 3}};
    struct layout l = {0};
    int64_t dims[] = {20}; /* five heads of four over three ranks: 2, 2, 1 */
    static const int64_t want[][2] = {{0, 8}, {8, 8}, {16, 4}};
    l.axis[AXIS_TP] = (struct axis_layout){.kind = LAYOUT_SHARD, .segments = 1, .unit = 4};
    for (int r = 0; r < 3; r++) {
        struct box b;
        assert_int_equal(layout_boxes(&m, &l, 1, dims, r, 1, &b), 1);
        assert_int_equal(b.offset[0], want[r][0]);
        assert_int_equal(b.size[0], want[r][1]);
    }
}

TEST(segments_are_cut_alike)
{
    struct mesh m = {{1, 1, 1, 1, 2}};
    struct layout l = {0};
    int64_t dims[] = {3, 24}; /* columns are q, k, v of 8: rank 1 has the second half of each */
    struct box b[3];
    l.axis[AXIS_TP] = (struct axis_layout){.kind = LAYOUT_SHARD, .dim = 1, .segments = 3, .unit = 4};
    assert_int_equal(layout_boxes(&m, &l, 2, dims, 1, 3, b), 3);
    for (int s = 0; s < 3; s++) {
        assert_int_equal(b[s].offset[1], 8 * s + 4);
        assert_int_equal(b[s].size[1], 4);
        assert_int_equal(b[s].size[0], 3);
    }
    assert_covers(&m, &l, 2, dims, 1);
    assert_int_equal(layout_boxes(&m, &l, 2, dims, 1, 1, b), 3); /* the number, though only one fits */
}

TEST(two_axes_may_cut_one_dimension)
{
    for (int64_t rows = 1; rows <= 30; rows += 2)
        for (int fsdp = 1; fsdp <= 3; fsdp++)
            for (int tp = 1; tp <= 3; tp++) {
                struct mesh m = {{1, 2, fsdp, 1, tp}};
                struct layout l = {0};
                int64_t dims[] = {3 * rows, 2};
                l.axis[AXIS_TP] = (struct axis_layout){.kind = LAYOUT_SHARD, .segments = 3, .unit = 2};
                l.axis[AXIS_FSDP] = (struct axis_layout){.kind = LAYOUT_SHARD, .segments = 1, .unit = 1};
                assert_covers(&m, &l, 2, dims, 2);
            }
}

TEST(a_rank_may_hold_nothing)
{
    struct mesh m = {{1, 1, 1, 1, 4}};
    struct layout l = {0};
    int64_t dims[] = {2};
    struct box b;
    l.axis[AXIS_TP] = (struct axis_layout){.kind = LAYOUT_SHARD, .segments = 1, .unit = 1};
    assert_int_equal(layout_boxes(&m, &l, 1, dims, 3, 1, &b), 0);
    dims[0] = 0;
    assert_int_equal(layout_boxes(&m, &l, 1, dims, 0, 1, &b), 0);
}
