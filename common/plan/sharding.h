/* Who holds what of every parameter: from a graph and a mesh, ranges, boxes, pieces and the groups that sum gradients.
 * Nothing else decides any of this. Pure.
 *
 * A rank's **local tensor** is what tensor parallelism leaves it of a parameter: rows x cols, dense (a vector has one
 * column). With ZeRO a rank owns a **piece** of each local tensor: whole rows [lo, hi), in grains, so that the pieces
 * of the fsdp group cover it and every piece is one run of memory and few boxes. Without ZeRO the piece is the local
 * tensor. Parameter (float32), moments, and the gradient that the update reads exist for pieces.
 *
 * Ranks that hold equal boxes are replicas: dp always, cp always, fsdp without ZeRO, tp where the parameter is not cut
 * or where there are fewer key-value heads than ranks, pp where two stages use it (a tied head). The gradient of a
 * piece is summed over the ranks that hold a share of it: over dp, fsdp and cp in any case; over its tp replicas where
 * each has computed a part of it only; over the stages that use it. */
#ifndef DTD_COMMON_PLAN_SHARDING_H
#define DTD_COMMON_PLAN_SHARDING_H

#include "common/base/box.h"
#include "common/plan/graph.h"
#include "common/mesh/mesh.h"

/* The units [lo, hi) of one segment that index `i` of `parts` has. Groups are dealt whole while there are as many as
 * parts; else parts are dealt to groups, and a group's units are split among its parts, or, where it has one unit,
 * held by all of them. */
void sharding_cut(const struct graph_cut *cut, int parts, int i, int64_t *ret_lo, int64_t *ret_hi);
/* Parts with equal ranges are replicas of one box: the box's number among the distinct ones, and how many there are. */
int sharding_cut_box(const struct graph_cut *cut, int parts, int i, int *ret_boxes);
/* Elements of dimension `extent` that the part has, over all segments. */
int64_t sharding_cut_extent(const struct graph_cut *cut, int64_t extent, int parts, int i);

/* Which stages there are and what runs where: contiguous runs of layers, chunk c of rank r is stage c * pp + r. */
struct sharding_stage {
    int first_node, end_node;
};

/* A pipeline rank one of whose stages takes a parameter; next: another one of the same parameter, 0: none. */
struct sharding_use {
    int pp, next;
};

struct sharding_param {
    int use;            /* the first of its uses in place.use; 0: none */
    bool held;          /* one of this rank's stages uses it */
    int stages;         /* pipeline ranks that do */
    int64_t rows, cols; /* local tensor; of a parameter that is not held too */
    int64_t lo, hi;     /* piece: rows */
    int64_t grain;      /* rows: pieces begin at multiples of it; a grain has at most 1024 elements, or one row */
    int64_t slot;       /* elements that the largest piece of any rank has: pieces lie at equal offsets on all ranks */
    int64_t full_slot;  /* the same of local tensors */
    int tp_box, tp_boxes; /* which of the distinct boxes that tp makes */
    int64_t block0;       /* where its local tensor's blocks of squares begin in the array of all of them */
};

struct sharding {
    struct mesh mesh;
    int rank, coord[AXIS_COUNT];
    int zero;
    struct sharding_param *param; /* by graph tensor; rows 0 for what is no parameter */
    struct sharding_stage *stage; /* of the whole pipeline: mesh pp * chunks */
    struct sharding_use *use;     /* of all parameters, from 1 on: most have one, a tied head has two */
    int n_uses, n_stages, chunks;
    int64_t n_blocks; /* of squares, all parameters, all boxes */
};

/* Elements of a row-wise grain of a tensor with `cols` columns, times cols the size of a block of squares. */
int64_t sharding_grain(int64_t cols);

/* `chunks` per pipeline rank. ERR_INVALID with why[] names what cannot be cut so and the nearest legal choice. Freed by
 * sharding_fini. */
NODISCARD err_t sharding_init(struct sharding *p, const struct graph *g, const struct mesh *mesh, int rank, int zero,
                           int chunks, struct why *why);
void sharding_fini(struct sharding *p); /* legal on a zeroed one */

/* Rows of parameter t's local tensor that fsdp index i owns. */
void sharding_piece(const struct sharding *p, int t, int i, int64_t *ret_lo, int64_t *ret_hi);

/* Rows [lo, hi) of the local tensor as boxes of the global one. Each lies in the local memory with `stride` elements
 * between rows of the box, from element `offset` on, counted from the start of row lo. Returns their number; writes at
 * most SHARDING_MAX_BOXES. */
#define SHARDING_MAX_BOXES 8
struct sharding_box {
    struct box box;
    int64_t offset, stride;
};
int sharding_boxes(const struct sharding *p, const struct graph *g, int t, int64_t lo, int64_t hi,
                struct sharding_box ret[SHARDING_MAX_BOXES]);

/* Whether a stage of pipeline rank `pp` uses parameter t. */
bool sharding_uses(const struct sharding *p, int pp, int t);

/* Whether this rank is the one that counts its piece in the norm and in sums over distinct elements: the first of its
 * replicas in tp and pp. */
bool sharding_counts(const struct sharding *p, const struct graph *g, int t);

/* The ranks that differ from this one on the given axes only (a set of 1 << axis), ascending. Returns their number;
 * `ret` has room for all workers. */
int sharding_group(const struct sharding *p, unsigned axes, int *ret);

#endif
