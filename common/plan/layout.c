/* Who holds what. A dimension that a rank holds is a short list of ranges of global indices; every axis that shards it
 * cuts the list further, the innermost axis first (tp, cp, fsdp, ..), so that an outer axis cuts what the inner ones
 * left: FSDP over a tensor-parallel shard gives both sides one contiguous run. Boxes are the product of the dimensions'
 * lists.
 *
 * Invariant: over the ranks of one replica the boxes are disjoint and cover the tensor, whatever the sizes; a rank may
 * hold nothing. */
#include "common/plan/layout.h"

#include <assert.h>
#include <stddef.h>

#define MAX_RANGES 64

struct range {
    int64_t lo, hi;
};

struct ranges {
    int n;
    struct range r[MAX_RANGES];
};

int mesh_workers(const struct mesh *m)
{
    int n = 1;
    for (int a = 0; a < AXIS_COUNT; a++)
        n *= m->size[a];
    return n;
}

void mesh_coords(const struct mesh *m, int rank, int ret[AXIS_COUNT])
{
    for (int a = AXIS_COUNT - 1; a >= 0; a--) {
        ret[a] = rank % m->size[a];
        rank /= m->size[a];
    }
}

const char *mesh_axis_name(enum mesh_axis axis)
{
    static const char *const names[AXIS_COUNT] = {"pp", "dp", "fsdp", "cp", "tp"};
    return (unsigned)axis < AXIS_COUNT ? names[axis] : "?";
}

void layout_split(int64_t n, int parts, int index, int64_t *ret_lo, int64_t *ret_hi)
{
    int64_t each = n / parts, more = n % parts; /* the first `more` parts have one unit more */
    *ret_lo = index * each + (index < more ? index : more);
    *ret_hi = *ret_lo + each + (index < more ? 1 : 0);
}

/* Appends the global ranges of local indices [lo, hi). */
static void ranges_slice(const struct ranges *from, int64_t lo, int64_t hi, struct ranges *to)
{
    int64_t start = 0; /* local index where from->r[i] begins */
    for (int i = 0; i < from->n; i++) {
        int64_t size = from->r[i].hi - from->r[i].lo;
        int64_t a = lo > start ? lo - start : 0, b = hi - start < size ? hi - start : size;
        start += size;
        if (a >= b)
            continue;
        struct range r = {from->r[i].lo + a, from->r[i].lo + b};
        if (to->n && to->r[to->n - 1].hi == r.lo) {
            to->r[to->n - 1].hi = r.hi;
            continue;
        }
        assert(to->n < MAX_RANGES);
        to->r[to->n++] = r;
    }
}

static int64_t ranges_size(const struct ranges *r)
{
    int64_t n = 0;
    for (int i = 0; i < r->n; i++)
        n += r->r[i].hi - r->r[i].lo;
    return n;
}

static struct ranges ranges_cut(const struct ranges *from, const struct axis_layout *l, int parts, int index)
{
    struct ranges to = {0};
    int segments = l->segments > 1 ? l->segments : 1;
    int64_t unit = l->unit > 1 ? l->unit : 1, each = ranges_size(from) / segments;
    assert(each * segments == ranges_size(from));
    int64_t lo, hi;
    layout_split((each + unit - 1) / unit, parts, index, &lo, &hi);
    lo = lo * unit < each ? lo * unit : each; /* the last unit may be short */
    hi = hi * unit < each ? hi * unit : each;
    for (int s = 0; s < segments; s++)
        ranges_slice(from, s * each + lo, s * each + hi, &to);
    return to;
}

/* The product of the lists, the last dimension fastest. */
static int boxes_of(const struct ranges *dims, int ndim, int max, struct box *ret)
{
    int total = 1, n = 0;
    for (int d = 0; d < ndim; d++)
        total *= dims[d].n;
    for (; n < total && n < max; n++) {
        struct box b = {.ndim = ndim};
        for (int d = ndim - 1, rest = n; d >= 0; d--) {
            struct range r = dims[d].r[rest % dims[d].n];
            rest /= dims[d].n;
            b.offset[d] = r.lo;
            b.size[d] = r.hi - r.lo;
        }
        ret[n] = b;
    }
    return total;
}

int layout_boxes(const struct mesh *m, const struct layout *l, int ndim, const int64_t *dims, int rank, int max,
                 struct box *ret)
{
    struct ranges local[BOX_MAX_DIMS];
    int coords[AXIS_COUNT];
    assert(ndim <= BOX_MAX_DIMS);
    mesh_coords(m, rank, coords);
    for (int d = 0; d < ndim; d++)
        local[d] = (struct ranges){dims[d] > 0, {{0, dims[d]}}};
    for (int a = AXIS_COUNT - 1; a >= 0; a--) {
        if (l->axis[a].kind != LAYOUT_SHARD)
            continue;
        assert(l->axis[a].dim < ndim);
        struct ranges *r = &local[l->axis[a].dim];
        *r = ranges_cut(r, &l->axis[a], m->size[a], coords[a]);
    }
    return boxes_of(local, ndim, max, ret);
}
