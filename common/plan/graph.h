/* A model as a graph of operators over named tensors: what a step computes, independent of ranks and devices.
 *
 * graph_build (models/build.h) makes it with one function per architecture; the plan compiler reads it. It is pure data
 * and does not change afterwards, so any thread may read it. */
#ifndef DTD_COMMON_PLAN_GRAPH_H
#define DTD_COMMON_PLAN_GRAPH_H

#include "common/base/box.h"
#include "common/base/dtype.h"
#include "common/base/err.h"
#include "common/conf/job.h"

#include <stdbool.h>
#include <stdint.h>

/* Extents that depend on the microbatch: a dimension is factor * symbol. A graph describes the whole model. In a rank's
 * program, tokens are those of the rank's part of the sequence (cp). With sequence parallelism its own tokens are the
 * part of these that it holds between matmuls (layout_split over tp). */
enum graph_sym {
    SYM_ONE,
    SYM_TOKENS, /* samples * tokens of a sample on this rank */
    SYM_SAMPLES,
    SYM_OWN,        /* programs only: number of this rank's own tokens, a part of all that the tp group has */
    SYM_ARRIVED,    /* programs only: rows that arrived at this rank for its experts, in this layer and microbatch */
    SYM_OWN0,       /* programs only: index of the first of them */
    SYM_RUNS,       /* decoding programs only: runs of tokens, each of one sequence (program.h, MODE_DECODE) */
    SYM_MEMBER = 8, /* programs only, and all values from here on: SYM_MEMBER + 2 j is the number of own tokens of
                     * member j of the tp group, SYM_MEMBER + 2 j + 1 the index of the first of them */
};

struct graph_dim {
    enum graph_sym sym;
    int64_t factor;
};

enum graph_tensor_kind {
    GT_PARAM,
    GT_STATE, /* a vector that no gradient changes: the biases of a router's choice, its numbers of the last step. Of
               * the wide type, or float64 (`exact`); whole on each rank whose stages use it; without moments */
    GT_ACTIVATION, /* has a gradient */
    GT_STAT,       /* rstd, mean, lse: computed by a forward for its backward; has no gradient */
    GT_INDEX,      /* int32, chosen by a router: experts, rows; kept for the backward, has no gradient */
    GT_NUMBERS,    /* float64, numbers of sets of tokens: kept for the backward, has no gradient */
    GT_IDS,        /* int32 token ids, an input */
    GT_TARGETS,    /* int32, an input */
    GT_BEGIN,      /* int32, an input: the position in its sample at which each token's document begins */
};

enum graph_init { INIT_NONE, INIT_ZERO, INIT_ONE, INIT_NORMAL };

/* How tensor parallelism cuts a tensor. The model sets it; sharding_cut (sharding.h) derives the ranges, and the
 * operators' rules the collectives.
 *
 *   dimension `dim`:  | segment 0 (q)   | segment 1 (k)   | segment 2 (v)   |   segments = 3
 *   each segment:     | u u u | u u u |                                         units = 6, groups = 2
 *
 * A tensor that is not cut (segments 0) is replicated over tp; with sequence parallelism such an activation is sharded
 * by tokens instead. */
struct graph_cut {
    int dim, segments; /* dimension `dim` consists of this many segments of equal length */
    int64_t units;     /* of each segment: heads, columns of a feed-forward, rows of a vocabulary; never cut */
    int64_t groups;    /* of units. A rank gets whole groups where there are at least as many groups as ranks. Query
                        * heads have as many groups as there are key-value heads, other tensors one group per unit */
    bool experts;      /* units are experts, cut over the axes of expert parallelism instead of tp */
    bool shared;       /* with fewer units than ranks several ranks hold the same unit (key-value heads) */
};

#define GRAPH_NAME_MAX 96
#define GRAPH_MAX_DIMS 4

struct graph_tensor {
    char name[GRAPH_NAME_MAX]; /* of a parameter as in the checkpoint: "layers.0.attention.wq.weight" */
    enum graph_tensor_kind kind;
    int ndim;
    struct graph_dim dim[GRAPH_MAX_DIMS];
    struct graph_cut cut;
    bool by_expert; /* rows of experts: on a rank those of its own experts, whichever rank has their tokens */
    bool exact;     /* a state of whole numbers: float64 */
    bool wide;      /* an activation whose value has the wide type: logits and weights of routers */
    /* parameters and states only: */
    /* Above 0: the matrices of so many experts, one below the other. A checkpoint shows the tensor with three
     * dimensions, [experts, dim[0] / experts, dim[1]]. */
    int64_t experts;
    enum graph_init init;
    double init_std;
    bool decay; /* weight decay applies: true for matrices and embedding tables, false for biases and norms */
    /* The exact gradient of elements [zero_lo, zero_hi) is zero, so the computed one is rounding error, which Adam
     * amplifies: comparisons skip these elements. It is the key part of gpt2's c_attn.bias, which adds the same number
     * to every score of a row. Both 0: no such elements. With zero_every above 0 it is so in each run of that many
     * elements, as in the unrotated columns of each head (graph_grad_is_zero). */
    int64_t zero_lo, zero_hi, zero_every;
    int unit; /* FSDP unit: 0 embedding, 1 + layer, last head */
};

/* X(op, name, activation): a row per kind of operator, with inputs -> outputs. `activation`: it is an activation
 * function, which `recompute: pointwise` computes again in the backward. The operator's ops are emitted by a rule in
 * compile/forward.c and one in compile/backward.c. */
#define GRAPH_OP_LIST(X)                                                                                               \
    X(GO_EMBED, "embed", false)   /* ids, table[, pos] -> y */                                                         \
    X(GO_LINEAR, "linear", false) /* x, w[, b] -> y; attr.trans_w: w is [in,out] (Hugging Face gpt2), else [out,in] */ \
    X(GO_RMSNORM, "rmsnorm", false)     /* x[, res], w -> y, rstd[, r]; with heads: each head's columns apart */       \
    X(GO_LAYERNORM, "layernorm", false) /* x[, res], w, b -> y, mean, rstd[, r] */                                     \
    X(GO_ROPE, "rope", false)           /* x -> x in place: in[0] == out[0] */                                         \
    X(GO_ATTENTION, "attention", false) /* q, k, v[, begin] -> o, lse (q, k, v may be column ranges of one tensor) */  \
    X(GO_SWIGLU, "swiglu", true)        /* a, b -> y */                                                                \
    X(GO_GEGLU, "geglu", true)          /* a, b -> y; GELU in its tanh form */                                         \
    X(GO_GELU, "gelu", true)            /* x -> y; the tanh form */                                                    \
    X(GO_GELU_ERF, "gelu_erf", true)    /* x -> y */                                                                   \
    X(GO_SCALE, "scale", false)         /* x -> y = factor x */                                                        \
    X(GO_CAP, "cap", false)             /* x -> y = factor tanh(x / factor) */                                         \
    X(GO_RELU, "relu", true)            /* x -> y */                                                                   \
    X(GO_POSITIONS, "positions", false) /* x -> y = x + sinusoids of the position (Vaswani et al. 2017, 3.5) */        \
    X(GO_DROPOUT, "dropout", false)     /* x -> y in training with train.dropout; else y is x */                       \
    X(GO_ADD, "add", false)             /* a, b -> y */                                                                \
    X(GO_ROUTE, "route", false)         /* logits[, biases][, numbers of the last step] -> ids, weights[, numbers of   \
                                         the sets of the auxiliary loss] */                                            \
    X(GO_DROP, "drop", false)           /* ids, weights -> the ids that experts with a capacity keep, -1 for others */ \
    X(GO_DISPATCH, "dispatch", false) /* x, ids -> rows by expert, place, source, offsets[, all, index, inverse: with  \
                                         expert parallelism, exchange.h] */                                            \
    X(GO_EXPERTS, "experts", false)   /* rows, w, offsets -> y: each expert's rows times its [out,in] matrix */        \
    X(GO_COMBINE, "combine", false)   /* rows, weights, place[, all, index, inverse] -> y: the sum over a token's      \
                                         experts, ascending */                                                         \
    X(GO_GATE, "gate", false)         /* x, z -> y = sigmoid(z) x, one z per token */                                  \
    X(GO_LOSS, "loss", false)         /* logits, targets -> loss; the logits' gradient replaces them */

#define X(op, name, activation) op,
enum graph_op { GRAPH_OP_LIST(X) GO_COUNT };
#undef X

#define GRAPH_MAX_IN 6
#define GRAPH_MAX_OUT 7

/* The rule of a router (kernels/kernels.h, struct kern_router), and its losses. */
struct graph_router {
    int64_t experts, k, groups, groups_kept, group_best;
    enum router_kind kind;
    bool norm;
    double scale, aux, z;
    double bias; /* rate of the biases of the choice (struct kern_balance); 0: none */
    enum aux_scope scope;
    double capacity; /* factor; 0: no choice is dropped */
    enum drop_rule drop;
    int index; /* among the model's routers */
};

/* The most tokens of a sample of `seq` tokens that an expert of the router computes: seq k / experts * capacity,
 * rounded up. A product that is above a whole number by less than a billionth of itself is that number, so that factors
 * with decimals have their exact meaning (10 * 1.1 in float64 is above 11). */
int64_t graph_capacity(const struct graph_router *r, int64_t seq);

struct graph_node {
    enum graph_op op;
    int layer;                         /* -1 outside the layers */
    int in[GRAPH_MAX_IN];              /* tensor indices, -1 where an optional input is absent */
    int out[GRAPH_MAX_OUT];            /* same */
    int64_t in_col[GRAPH_MAX_IN];      /* first column of the input in its tensor (q, k, v in one matrix); else 0 */
    int64_t heads, kv_heads, head_dim; /* rmsnorm: heads 0: over all columns */
    int site;                          /* dropout: number of the dropout in the model */
    int rope;                          /* rope: index in graph.ropes */
    bool plus_one;                     /* rmsnorm: its factors are 1 + w */
    double factor;                     /* scale, cap */
    double eps;
    bool causal, trans_w;
    int64_t window;             /* attention: struct kern_attention; 0: none */
    double softcap, scale;      /* the same; 0: none, head_dim^-0.5 */
    struct graph_router router; /* route, drop, dispatch, experts, combine */
};

/* The rotation of positions (models/rope.c): pair i of the first `pairs` of a head turns by frequency[i] radians per
 * position, and is multiplied by `factor`. */
struct graph_rope {
    int64_t pairs;
    double *frequency;
    double factor;
};

/* By model.rope_theta and rope_type; by model.rope_local_theta. */
#define GRAPH_ROPES 2

struct graph {
    struct graph_rope ropes[GRAPH_ROPES]; /* no pairs: no node has this one */
    struct graph_tensor *tensors;
    int n_tensors;
    struct graph_node *nodes; /* each after the nodes that make its inputs */
    int n_nodes;
    int logits, loss_node, ids, targets;
    int begin; /* -1: attention reads across documents */
    int n_units, n_routers;
    int64_t n_params;        /* elements */
    int64_t n_params_matmul; /* elements that a token's matmuls read, for FLOPs: a tied head once, embeddings not; of
                              * experts the number that a token uses */
};

void graph_fini(struct graph *g);

/* Whether the exact gradient of element i is zero (zero_lo). */
static inline bool graph_grad_is_zero(const struct graph_tensor *t, int64_t i)
{
    const int64_t at = t->zero_every ? i % t->zero_every : i;
    return at >= t->zero_lo && at < t->zero_hi;
}

/* Whether a checkpoint has a value of the tensor. */
static inline bool graph_is_stored(const struct graph_tensor *t)
{
    return t->kind == GT_PARAM || t->kind == GT_STATE;
}

/* The shape of a parameter in a checkpoint. Returns the number of dimensions. */
#define GRAPH_SHAPE_MAX 3
int graph_shape(const struct graph_tensor *t, int64_t ret[GRAPH_SHAPE_MAX]);
/* A box of a parameter in its own two dimensions as boxes of the shape in a checkpoint, in the order of its rows. A box
 * of rows of several experts is the end of the first expert, whole experts, and the beginning of the last. Returns the
 * number of boxes. */
#define GRAPH_BOXES_MAX 3
int graph_boxes(const struct graph_tensor *t, const struct box *box, struct box ret[GRAPH_BOXES_MAX]);

const char *graph_op_name(enum graph_op op);
bool graph_op_is_activation(enum graph_op op);

/* FLOPs of one training token, forward and backward: 6 N + {12 | 6} L h s, with the attention's full square or its
 * causal half; N = n_params_matmul. In a layer with a window of W < s the half is W - W^2 / 2s in place of s / 2, and
 * the full square twice that. Source: PaLM, appendix B. docs/internals/program.md has the formulas of parallel
 * training. */
double graph_flops_per_token(const struct graph *g, const struct job_model *model, int64_t seq, bool causal_half);

#endif
