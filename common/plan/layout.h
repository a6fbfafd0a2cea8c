/* Layouts: for every tensor and mesh axis, replicate, shard or partial. One table; every rank's boxes, replica groups
 * and reductions follow from it. Pure. */
#ifndef DTD_COMMON_PLAN_LAYOUT_H
#define DTD_COMMON_PLAN_LAYOUT_H

#include "common/base/box.h"
#include "common/base/err.h"

#include <stdint.h>

/* Outermost first: rank = ((((pp * dp + ..) * fsdp + ..) * cp + ..) * tp + ..). */
enum mesh_axis { AXIS_PP, AXIS_DP, AXIS_FSDP, AXIS_CP, AXIS_TP, AXIS_COUNT };

struct mesh {
    int size[AXIS_COUNT]; /* all >= 1; their product is the number of workers */
};

int mesh_workers(const struct mesh *m);
/* The rank's coordinate on every axis. */
void mesh_coords(const struct mesh *m, int rank, int ret[AXIS_COUNT]);
const char *mesh_axis_name(enum mesh_axis axis);

enum layout_kind { LAYOUT_REPLICATE, LAYOUT_SHARD, LAYOUT_PARTIAL };
enum reduce_op { REDUCE_SUM, REDUCE_MIN, REDUCE_MAX, REDUCE_AVG };

struct axis_layout {
    enum layout_kind kind;
    int dim;           /* SHARD: the dimension that is cut */
    int segments;      /* SHARD: the dimension is this many equal segments, each cut alike (fused qkv); 1 else */
    int64_t unit;      /* SHARD: cuts fall on multiples of this (head_dim; rows) */
    enum reduce_op op; /* PARTIAL */
};

struct layout {
    struct axis_layout axis[AXIS_COUNT];
};

/* The part [lo, hi) of `n` units that index i of `parts` holds: sizes differ by at most one, larger first. */
void layout_split(int64_t n, int parts, int index, int64_t *ret_lo, int64_t *ret_hi);
/* The boxes of a tensor that `rank` holds (`segments` > 1 gives several), the last dimension's ranges fastest. Where
 * two axes shard one dimension the innermost cuts first. Returns their number; writes at most `max` of them. */
int layout_boxes(const struct mesh *m, const struct layout *l, int ndim, const int64_t *dims, int rank, int max,
                 struct box *ret);

#endif
