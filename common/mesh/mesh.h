/* The mesh of workers, and how units are split over it. sharding.h decides which rank holds which part of a tensor.
 * Pure. */
#ifndef DTD_COMMON_MESH_MESH_H
#define DTD_COMMON_MESH_MESH_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stdint.h>

/* Outermost first: rank = ((((pp * dp + ..) * fsdp + ..) * cp + ..) * tp + ..). */
enum mesh_axis { AXIS_PP, AXIS_DP, AXIS_FSDP, AXIS_CP, AXIS_TP, AXIS_COUNT };

struct mesh {
    int size[AXIS_COUNT]; /* all >= 1; their product is the number of workers */
};

int mesh_workers(const struct mesh *m);
/* The rank's coordinate on every axis. */
void mesh_coords(const struct mesh *m, int rank, int ret[AXIS_COUNT]);
/* How expert parallelism is folded over tp, cp and fsdp. `share` ranks of an axis, consecutive ones, have different
 * experts; the axis repeats them size / share times. A group of expert parallelism is the ranks that agree in
 * coordinate / share on every axis, and `axes` is the set (1 << axis) of those with a share above 1. All zero: no
 * expert parallelism. */
struct mesh_fold {
    unsigned axes;
    int share[AXIS_COUNT];
};
/* The fold of `ep` ranks. It fills the axes from the innermost on: tp, cp, fsdp; of the last one that it needs it may
 * take a part that divides the axis. False: `ep` has no such fold; *ret_near is the nearest value that has one, the
 * lower one of two. `ret` and `ret_near` may be NULL. */
bool mesh_fold_init(const struct mesh *m, int64_t ep, struct mesh_fold *ret, int64_t *ret_near);
const char *mesh_axis_name(enum mesh_axis axis);
/* "dp", "dp x fsdp": a set of 1 << axis, into a text of at least MESH_AXES_NAME bytes, which is returned. */
#define MESH_AXES_NAME 32
const char *mesh_axes_name(unsigned axes, char *text);

/* What a step brings to all ranks from their peers, in bytes, by the set of axes that the groups go over; sets without
 * any are left out. There are fewer than TRAFFIC_SETS groups of different sets in a program. */
#define TRAFFIC_SETS 12
struct traffic {
    int n;
    uint32_t axes[TRAFFIC_SETS]; /* below 1 << AXIS_COUNT */
    int64_t bytes[TRAFFIC_SETS];
};
/* Does nothing if `bytes` is 0 or the table is full. */
void traffic_add(struct traffic *t, unsigned axes, int64_t bytes);

enum reduce_op { REDUCE_SUM, REDUCE_MIN, REDUCE_MAX, REDUCE_AVG };

/* The part [lo, hi) of `n` units that index i of `parts` holds: sizes differ by at most one, larger first. */
void layout_split(int64_t n, int parts, int index, int64_t *ret_lo, int64_t *ret_hi);

#endif
