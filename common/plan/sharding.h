/* The sharding of every parameter: from a graph and a mesh, the ranges, boxes and pieces of each rank, and the groups
 * that sum gradients. No other file decides any of this. Pure.
 *
 *   whole tensor            local tensor (tp)        piece (ZeRO)
 *   +------+------+         +------+                 +------+
 *   |      |      |         |      |                 |      |  rows [lo, hi) of fsdp index 0
 *   |tp 0  |tp 1  |  ---->  |tp 0  |  ------------>  +------+
 *   |      |      |         |      |                 |      |  rows [lo, hi) of fsdp index 1
 *   +------+------+         +------+                 +------+
 *
 * A rank's local tensor is its part of a parameter under tensor parallelism: rows x cols, dense; a vector has one
 * column. With ZeRO a rank owns a piece of each local tensor: whole rows [lo, hi) in multiples of a grain. The pieces
 * of the fsdp group cover the local tensor, and each piece is contiguous in memory and consists of few boxes. Without
 * ZeRO the piece is the local tensor. Parameters (float32), moments and the gradient that the update reads are stored
 * by piece.
 *
 * Ranks that hold equal boxes are replicas: over dp and cp always, over fsdp without ZeRO, over tp where the parameter
 * is not cut or where there are fewer key-value heads than ranks, over pp where two stages use it (a tied head). The
 * gradient of a piece is summed over the ranks that hold a share of it: over dp, fsdp and cp always; over its tp
 * replicas where each computed only a part of it; over the stages that use it.
 *
 * Experts are cut over the fold of expert parallelism (mesh_fold), and all of this holds for them on what the fold
 * leaves of each axis: ZeRO divides a local tensor into fsdp / share pieces, replicas and shares of a sum are the ranks
 * of equal boxes. */
#ifndef DTD_COMMON_PLAN_SHARDING_H
#define DTD_COMMON_PLAN_SHARDING_H

#include "common/base/box.h"
#include "common/mesh/mesh.h"
#include "common/plan/graph.h"
#include "common/plan/placement.h"

/* The units [lo, hi) of one segment that index `i` of `parts` has. With at least as many groups as parts, a part gets
 * whole groups. With fewer, a group gets several parts, which split its units, or all hold its units where they are
 * shared. */
void sharding_cut(const struct graph_cut *cut, int parts, int i, int64_t *ret_lo, int64_t *ret_hi);
/* Parts with equal ranges are replicas of one box. Returns the number of index i's box among the distinct ones;
 * *ret_boxes is how many there are. */
int sharding_cut_box(const struct graph_cut *cut, int parts, int i, int *ret_boxes);
/* Elements of a dimension of `extent` that index `i` has, over all segments. */
int64_t sharding_cut_extent(const struct graph_cut *cut, int64_t extent, int parts, int i);

/* A pipeline stage: a contiguous range of nodes. placement.h has the rank that holds it. */
struct sharding_stage {
    int first_node, end_node;
};

/* A pipeline rank one of whose stages uses a parameter; next: another use of the same parameter, 0: none. */
struct sharding_use {
    int pp, next;
};

struct sharding_param {
    int use;            /* its first use, in sharding.use; 0: none */
    bool held;          /* one of this rank's stages uses it */
    int stages;         /* number of pipeline ranks that use it */
    bool chunks;        /* several of this rank's stages use it: a tied head and its table in a V */
    int64_t rows, cols; /* local tensor; also set for a parameter that is not held */
    int64_t lo, hi;     /* rows of the piece */
    int64_t grain;      /* rows; pieces begin at multiples of it. A grain has at most 1024 elements, or one row */
    int64_t slot;      /* elements of the largest piece of any rank, so that offsets of pieces are equal on all ranks */
    int64_t full_slot; /* elements of the largest local tensor of any rank */
    int box, boxes;    /* number of this rank's box among the distinct boxes of its cut, and their number */
    int pieces;     /* ZeRO divides the local tensor into so many over fsdp; 1: every rank's piece is the whole of it */
    int share;      /* so many consecutive fsdp ranks have other tensors (experts), else 1 */
    int64_t block0; /* first of its local tensor's blocks of squares in the array of all blocks (step_end.c) */
};

/* What a job chooses. */
struct sharding_choice {
    int zero;            /* parallel.zero */
    int chunks;          /* per pipeline rank */
    struct mesh_fold ep; /* of the experts */
    enum pipe_placement placement;
};

struct sharding {
    struct mesh mesh;
    int rank, coord[AXIS_COUNT];
    int zero;
    struct mesh_fold ep;
    struct sharding_param *param; /* by graph tensor; rows is 0 where the tensor is no parameter and no state */
    struct sharding_stage *stage; /* of the whole pipeline: pp * chunks stages */
    struct sharding_use *use;     /* of all parameters, from index 1 on; most have one use, a tied head has two */
    int n_uses, n_stages, chunks;
    enum pipe_placement placement;
    int64_t n_blocks; /* of squares, all parameters, all boxes */
};

/* Rows of a grain of a tensor with `cols` columns. A block of squares has grain * cols elements. */
int64_t sharding_grain(int64_t cols);

/* ERR_INVALID: `why` names the tensor or the layers that cannot be
 * cut in this way, and the nearest legal choice. Freed by sharding_fini. */
NODISCARD err_t sharding_init(struct sharding *p, const struct graph *g, const struct mesh *mesh, int rank,
                              struct sharding_choice choice, struct why *why);
void sharding_fini(struct sharding *p); /* legal on a zeroed one */

/* Over how many parts a tensor is cut, and the part of the rank at `coord`: of tp, or of the fold of expert
 * parallelism.
 */
int sharding_parts(const struct sharding *p, const struct graph_cut *cut);
int sharding_part(const struct sharding *p, const struct graph_cut *cut, const int coord[AXIS_COUNT]);
/* Whether the ranks at two coordinates, which use the parameter, hold the same box of it. */
bool sharding_same_box(const struct sharding *p, const struct graph *g, int t, const int a[AXIS_COUNT],
                       const int b[AXIS_COUNT]);
/* The axes over which the norm's blocks of squares are summed: those on which ranks hold different parts. */
unsigned sharding_norm_axes(const struct sharding *p);

/* The rows that the rank with fsdp coordinate i owns of parameter t's local tensor, which must be the same there. */
void sharding_piece(const struct sharding *p, int t, int i, int64_t *ret_lo, int64_t *ret_hi);

/* Rows [lo, hi) of the local tensor as boxes of the global one. In local memory a box begins `offset` elements after
 * the start of row lo, with `stride` elements from one of its rows to the next. Returns the number of boxes, at most
 * SHARDING_MAX_BOXES: one per segment of a cut. */
#define SHARDING_MAX_BOXES 8
struct sharding_box {
    struct box box;
    int64_t offset, stride;
};
int sharding_boxes(const struct sharding *p, const struct graph *g, int t, int64_t lo, int64_t hi,
                   struct sharding_box ret[SHARDING_MAX_BOXES]);

/* Whether a stage of pipeline rank `pp` uses parameter t. */
bool sharding_uses(const struct sharding *p, int pp, int t);

/* Whether this rank counts its piece in the norm and in sums over distinct elements: it is the first of the piece's
 * replicas in tp and pp. */
bool sharding_counts(const struct sharding *p, const struct graph *g, int t);

/* How many ranks of an axis have the same experts, and may be replicas or shards of them. */
int sharding_rest(const struct sharding *p, int axis);
/* The ranks that differ from this one only on the given axes (a set of 1 << axis), in ascending order. Returns their
 * number; the caller provides `ret` with room for all workers. */
int sharding_group(const struct sharding *p, unsigned axes, int *ret);

#endif
