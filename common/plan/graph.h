/* A model as a graph of operators over named tensors: what a step computes, before anybody asks where.
 *
 * Built by one function per architecture (common/plan/models/<arch>.c), read by the plan compiler. Pure data, no I/O;
 * after graph_build it never changes. */
#ifndef DTD_COMMON_PLAN_GRAPH_H
#define DTD_COMMON_PLAN_GRAPH_H

#include "common/base/dtype.h"
#include "common/base/err.h"
#include "common/conf/job.h"

#include <stdbool.h>
#include <stdint.h>

/* Extents that are known only per microbatch. A dimension is factor * symbol. A graph speaks of the whole model; in a
 * rank's program the tokens are those of its part of the sequence (cp), and with sequence parallelism its own tokens
 * are the part of these that it holds between products (layout_split over tp). */
enum graph_sym {
    SYM_ONE,
    SYM_TOKENS, /* samples * the tokens of a sample that this rank has */
    SYM_SAMPLES,
    SYM_OWN,        /* programs only: this rank's own tokens; all tokens without sequence parallelism */
    SYM_OWN0,       /* programs only: the first of them; 0 without */
    SYM_MEMBER = 8, /* programs only, and all behind it: SYM_MEMBER + 2 j are the own tokens of member j of the tp
                     * group, SYM_MEMBER + 2 j + 1 the first of them */
};

struct graph_dim {
    enum graph_sym sym;
    int64_t factor;
};

enum graph_tensor_kind {
    GT_PARAM,
    GT_ACTIVATION, /* has a gradient */
    GT_STAT,       /* kept by a forward for its backward: rstd, mean, lse; no gradient */
    GT_IDS,        /* int32 token ids, an input */
    GT_TARGETS,    /* int32, an input */
};

enum graph_init { INIT_NONE, INIT_ZERO, INIT_ONE, INIT_NORMAL };

/* How tensor parallelism cuts a tensor, said once, by the model; ranges follow from sharding_cut (sharding.h),
 * collectives from the operators' rules. Dimension `dim` is `segments` equal segments (q, k and v side by side: 3),
 * each of them `units` units (heads, columns of a feed-forward, rows of a vocabulary) that are never cut. Units come in
 * `groups` that a rank holds whole where there are enough of them: query heads in as many groups as there are key-value
 * heads, all else a group per unit. `shared`: with fewer units than ranks several ranks hold one (key-value heads).
 * segments 0: not cut; activations of such a kind are cut by tokens under sequence parallelism, parameters replicated.
 */
struct graph_cut {
    int dim, segments;
    int64_t units, groups;
    bool shared;
};

#define GRAPH_NAME_MAX 96
#define GRAPH_MAX_DIMS 4

struct graph_tensor {
    char name[GRAPH_NAME_MAX]; /* a parameter's is its name in the checkpoint: "layers.0.attention.wq.weight" */
    enum graph_tensor_kind kind;
    int ndim;
    struct graph_dim dim[GRAPH_MAX_DIMS];
    struct graph_cut cut;
    /* parameters only: */
    enum graph_init init;
    double init_std;
    bool decay; /* weight decay applies: matrices and embedding tables yes, biases and norms no */
    /* Elements [zero_lo, zero_hi) have an exact gradient of zero and computed gradients of pure rounding, which Adam
     * makes large: comparisons leave them out. The key part of gpt2's c_attn.bias: it adds the same to every score of a
     * row. Both 0: none. */
    int64_t zero_lo, zero_hi;
    int unit; /* FSDP unit: 0 embedding, 1 + layer, last head */
};

/* X(op, name, in, out): a row per kind of operator; what each does is written at its compile rule in compile.c. */
#define GRAPH_OP_LIST(X)                                                                                              \
    X(GO_EMBED, "embed")         /* ids, table[, pos] -> y */                                                         \
    X(GO_LINEAR, "linear")       /* x, w[, b] -> y; attr.trans_w: w is [in,out] (Hugging Face gpt2), else [out,in] */ \
    X(GO_RMSNORM, "rmsnorm")     /* x[, res], w -> y, rstd[, r] */                                                    \
    X(GO_LAYERNORM, "layernorm") /* x[, res], w, b -> y, mean, rstd[, r] */                                           \
    X(GO_ROPE, "rope")           /* x -> x in place: in[0] == out[0] */                                               \
    X(GO_ATTENTION, "attention") /* q, k, v -> o, lse (q, k, v may be column ranges of one tensor) */                 \
    X(GO_SWIGLU, "swiglu")       /* a, b -> y */                                                                      \
    X(GO_GELU, "gelu")           /* x -> y */                                                                         \
    X(GO_RELU, "relu")           /* x -> y */                                                                         \
    X(GO_POSITIONS, "positions") /* x -> y = x + sinusoids of the position (Vaswani et al. 2017, 3.5) */              \
    X(GO_DROPOUT, "dropout")     /* x -> y, in training with train.dropout; else y is x */                            \
    X(GO_ADD, "add")             /* a, b -> y */                                                                      \
    X(GO_LOSS, "loss")           /* logits, targets -> loss; the logits' gradient replaces them */

#define X(op, name) op,
enum graph_op { GRAPH_OP_LIST(X) GO_COUNT };
#undef X

#define GRAPH_MAX_IN 5
#define GRAPH_MAX_OUT 4

struct graph_node {
    enum graph_op op;
    int layer;                    /* -1 outside the layers */
    int in[GRAPH_MAX_IN];         /* tensor indices, -1 where an optional input is absent */
    int out[GRAPH_MAX_OUT];       /* same */
    int64_t in_col[GRAPH_MAX_IN]; /* first column of the input that is meant (q, k, v in one matrix); 0 else */
    int64_t heads, kv_heads, head_dim;
    int site; /* dropout: its number in the model */
    double eps, theta;
    bool causal, trans_w;
};

struct graph {
    struct graph_tensor *tensors;
    int n_tensors;
    struct graph_node *nodes; /* in an order that computes */
    int n_nodes;
    int logits, loss_node, ids, targets;
    int n_units;
    int64_t n_params;        /* elements */
    int64_t n_params_matmul; /* of them, those that a product reads (for FLOPs: a tied head once, embeddings not) */
};

void graph_fini(struct graph *g);

const char *graph_op_name(enum graph_op op);

/* FLOPs of one training token, forward and backward: 6 N + {12 | 6} L h s (the attention's full square, or its causal
 * half); N = n_params_matmul. PaLM appendix B; parallel-training formulas in docs/internals/program.md. */
double graph_flops_per_token(const struct graph *g, const struct job_model *model, int64_t seq, bool causal_half);

#endif
