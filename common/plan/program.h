/* A step as a program: per rank, actions in order, each expanded into ops over planned buffers.
 *
 * Compiled by plan_compile (pure) from a job and a graph; checked by plan_check; run by worker/step; drawn and forecast
 * by dtctl. After compilation it never changes and may be read by any thread. docs/internals/program.md explains the shape and
 * tries it on paper against overlapped tensor parallelism, a ring step, an all-to-all and a split backward. */
#ifndef DTD_COMMON_PLAN_PROGRAM_H
#define DTD_COMMON_PLAN_PROGRAM_H

#include "common/base/dtype.h"
#include "common/base/err.h"
#include "common/conf/job.h"
#include "common/plan/graph.h"
#include "common/mesh/mesh.h"
#include "common/plan/sharding.h"
#include "common/plan/sumtree.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* ---- buffers ---- */

enum buffer_space {
    SPACE_PARAM, /* this rank's pieces of the parameters (sharding.h; float32 when bfloat16 is computed in), unit by unit.
                  * With ZeRO other ranks gather from it: then it lies in the segment that the node's ranks share, and
                  * behind the pieces are, where bfloat16 is computed in, their copies in that type */
    SPACE_OPT,   /* exp_avg and exp_avg_sq, laid out like the pieces */
    SPACE_GRAD,  /* gradients of local tensors, and with ZeRO of pieces; lies in the shared segment */
    SPACE_WORK,  /* activations and their gradients, reused by life time; first of all what is computed with where it is
                  * not the parameter itself (bfloat16, ZeRO 1 and 2): local tensors that live as long as the program
                  * runs. ZeRO 3's come and go like activations */
    SPACE_SENT,  /* what other stages of a pipeline are sent, until they have it; lies in the shared segment */
    SPACE_HOST, /* what the host fills or reads: token ids, targets, scalars in float64; on a GPU its mirror is there */
    SPACE_COUNT
};

/* Which instance of a buffer an op means; its address is
 * base of the space + offset + index * slot_bytes + (program_dim(operand.offset) + operand.col) * bytes of the dtype.
 */
enum slot_index {
    SLOT_ONE,    /* there is one: index 0 */
    SLOT_ACTION, /* action.slot */
    SLOT_MICRO,  /* action.micro; 0 in actions without a microbatch, which then mean all instances */
    SLOT_TREE,   /* chosen by OP_TREE_*, see there */
};

/* Rows that stand apart begin at multiples of so many bytes (pitch.c has the reasons). */
#define PLAN_ROW_BYTES 128

struct buffer {
    int tensor;                     /* graph tensor, -1 for one that the compiler made */
    char name[GRAPH_NAME_MAX + 16]; /* "layers.0.attention.wq.weight.grad" */
    enum dtype dtype;
    int ndim;
    struct graph_dim dim[GRAPH_MAX_DIMS]; /* this rank's part */
    int64_t pitch; /* elements from one row of a matrix to the next, where these stand apart: nobody reads or writes
                    * what is between them. 0: dense. Of SPACE_WORK only */
    bool is_share; /* of a sum over tp that nobody has made yet */
    enum buffer_space space;
    int run;        /* the buffer that contains this one (all gradients of a unit), -1: none */
    bool planned;   /* has its place for as long as the program runs; others of SPACE_WORK and SPACE_GRAD get one
                     * by life time (pack.c), those in such a run with it: until then they stand from its start */
    int64_t bytes;  /* of one instance, at the symbols' bounds */
    int64_t offset; /* in its space, bytes; 64-aligned, the tree's elements included; with a pitch aligned as rows */
    int64_t slot_bytes; /* distance between the instances; 0 where there is one */
    int slots;          /* instances, >= 1 */
    enum slot_index slot_index;
};

/* ---- ops ---- */

/* X(kind, name, operands): operands in the order of the kernel (kernels/kernels.h) or collective (worker/comm/comm.h).
 * r = read, w = written, a = added to (read and written); an operand in [] may be absent (buffer -1).
 * One buffer may stand in two places where the kernel allows the alias.
 *
 * Which fields of struct op a kind uses (all others are 0, -1 or empty); dims are resolved with the samples of the
 * action's microbatch by program_dim; "elements" is m * n; a matrix without a stride below is dense, n columns;
 * a stride is the pitch of the operand's buffer, where that has none its row length:
 *
 *   zero                  m * n elements of the buffer's own dtype
 *   copy, gelu*, relu*,
 *   add, swiglu*          m rows, n columns, dense: elements
 *   embed, embed_grad     m tokens, n columns (d); seq is program.seq
 *   gemm                  m, n, k, lda, ldb, ldc, OPF_TRANS_A, OPF_TRANS_B, OPF_ACC, OPF_GELU, OPF_GELU_GRAD as
 *                         kern_gemm; wide_c where c's dtype is not the program's. aux is there with either of the two
 *                         activations, which OPF_ACC excludes
 *   cast                  m elements: all parameters, with the gaps between them
 *   bias_grad             m tokens, n columns
 *   rmsnorm*, layernorm*  m tokens, n columns, eps. [res] absent: [r] absent too, the kernel gets NULL
 *   rope                  m tokens, heads, head_dim, lda (row stride), theta, OPF_INVERSE; pos0 0, seq is program.seq
 *   attention*            m samples, heads, kv_heads, head_dim, OPF_CAUSAL; lda: stride of q and d_q, ldb: of k, v,
 *                         d_k and d_v, ldc: of o and d_o; seq is program.seq. operand.col tells q, k and v of one
 *                         matrix apart
 *   cross_entropy         m tokens, n vocabulary, lda (of the logits), OPF_GRAD; scale is program.loss_scale; the loss
 *                         is one f64
 *   all_reduce            m elements of the buffer's own dtype, group, reduce
 *   own_gather            sequence parallelism: the tp group's own tokens (op.m is all tokens; counts are layout_split
 *                         of them) by n columns to all tokens
 *   own_scatter           all tokens by n columns, shares of a sum, to the own tokens' sum
 *   gather                m elements of every member, in the order of the group; y has them all
 *   unit_gather           op.unit: pieces to local tensors, over the fsdp group; a table of parts in program.units
 *   unit_scatter          op.unit: gradients of local tensors to the sum of the own pieces' gradients; added with
 *                         OPF_ACC
 *   send, recv            m elements to or from member `peer` of the group. Only posted: x is the network's until a
 *                         `wait` names it, in the same action or a later one
 *   push                  behind the posts of an action: what they send needs its rank no more (comm_push)
 *   wait                  m elements: the message in x is over
 *   shift                 a ring's step: m elements to member `peer`, k elements from member `from`
 *   copy_cols             m rows of n columns, row strides lda and ldb
 *   embed*                vocabulary rows [vocab_lo, vocab_hi) are in the table, other ids give and get nothing;
 *                         positions begin at pos0, samples are op.seq long
 *   attention*, rope      seq_kv and op.seq where not 0 replace program.seq, pos0 as given; OPF_ACC_Q, OPF_ACC_KV in
 *                         the gradient: d_q, or d_k and d_v, are added to. o and lse of attention_grad are the whole
 *                         row's, whatever part of the keys k and v are
 *   attention_join        m samples, heads, head_dim, op.seq, ldc: o and lse become those of both parts (online
 *                         softmax)
 *   loss_part             m tokens, n columns of the vocabulary from vocab_lo on, lda: stats[3 t ..] = largest logit,
 *                         sum of exp(logit - it), the target's logit (-inf where it is not here)
 *   loss_join             m tokens, n columns, lda, k parts of stats: the loss (absent: somebody else counts it), and
 *                         with OPF_GRAD logits become their gradient
 *   dropout*              m tokens, n columns of op.k, from column col0 on; rate; site: which of the step's dropouts.
 *                         `rows` says which token of the global batch each is
 *   tree_leaf             m elements. h = sumtree_height(n_micros, first_micro, micro), c = sumtree_merges(the same):
 *                         when c is 0 instance h of `tree` = x; else instance h-1 += x, then instance h-2 += instance
 *                         h-1, and so on, c additions in all (sumtree.h)
 *   tree_reduce           m elements, group (-1: this rank has all leaves, so the root). Node j of
 *                         sumtree_nodes(n_micros, first_micro, end_micro) is instance j of `tree`, operand.offset
 *                         elements in; the root goes to x on every rank
 *   norm                  m elements in blocks of n: blocks[i] = sum of squares of x[n i .. min(n (i+1), m))
 *   clip                  m blocks, n losses, as kern_clip with the limit train.clip
 *   adamw                 m elements; lr, betas, eps, step at run time; weight decay only with OPF_DECAY; g is read
 *                         times the clip factor
 *   snapshot              nothing: the worker copies its plan_save_items into the arena */
#define OP_LIST(X)                                                                                                  \
    X(OP_ZERO, "zero", "w")                             /* x */                                                     \
    X(OP_COPY, "copy", "rw")                            /* x, y */                                                  \
    X(OP_EMBED, "embed", "rrrw")                        /* ids, table, [pos], y */                                  \
    X(OP_EMBED_GRAD, "embed_grad", "rraa")              /* ids, dy, d_table, [d_pos] */                             \
    X(OP_GEMM, "gemm", "rrrwaaa")                       /* a, b, [bias], c, [aux], [a_sum], [b_sum]; c is added to  \
                                                           with OPF_ACC; aux is written with OPF_GELU, read with    \
                                                           OPF_GELU_GRAD, absent else */                            \
    X(OP_CAST, "cast", "rw")                            /* x (a parameter), y (what is computed with) */            \
    X(OP_BIAS_GRAD, "bias_grad", "ra")                  /* dy, db */                                                \
    X(OP_RMSNORM, "rmsnorm", "rrrwww")                  /* x, [res], w, [r], y, rstd */                             \
    X(OP_RMSNORM_GRAD, "rmsnorm_grad", "rrrrrwa")       /* x, w, rstd, dy, [d_res], dx, dw */                       \
    X(OP_LAYERNORM, "layernorm", "rrrrwwww")            /* x, [res], w, b, [r], y, mean, rstd */                    \
    X(OP_LAYERNORM_GRAD, "layernorm_grad", "rrrrrrwaa") /* x, w, mean, rstd, dy, [d_res], dx, dw, db */             \
    X(OP_ROPE, "rope", "a")                             /* x in place; OPF_INVERSE for the gradient */              \
    X(OP_ATTENTION, "attention", "rrrww")               /* q, k, v, o, lse */                                       \
    X(OP_ATTENTION_GRAD, "attention_grad", "rrrrrrwww") /* q, k, v, o, lse, d_o, d_q, d_k, d_v */                   \
    X(OP_SWIGLU, "swiglu", "rrw")                       /* a, b, y */                                               \
    X(OP_SWIGLU_GRAD, "swiglu_grad", "rrrww")           /* a, b, dy, da, db */                                      \
    X(OP_GELU, "gelu", "rw")                            /* x, y */                                                  \
    X(OP_GELU_GRAD, "gelu_grad", "rrw")                 /* x, dy, dx */                                             \
    X(OP_RELU, "relu", "rw")                            /* x, y */                                                  \
    X(OP_RELU_GRAD, "relu_grad", "rrw")                 /* x, dy, dx */                                             \
    X(OP_ADD, "add", "rrw")                             /* a, b, y */                                               \
    X(OP_POSITIONS, "positions", "rrw")                 /* x, rows (i32), y; y may be x */                          \
    X(OP_DROPOUT, "dropout", "rrw")                     /* x, rows (i32), y: the gradient too; y may be x */        \
    X(OP_COPY_COLS, "copy_cols", "rw")                  /* x, y */                                                  \
    X(OP_ATTENTION_JOIN, "attention_join", "aarr")      /* o, lse, o of another part of the keys, its lse */        \
    X(OP_LOSS_PART, "loss_part", "rrw")                 /* logits, targets, stats (f64) */                          \
    X(OP_LOSS_JOIN, "loss_join", "arra")                /* logits, targets, stats of all parts, [loss] */           \
    X(OP_CROSS_ENTROPY, "cross_entropy", "ara") /* logits (OPF_GRAD: become their gradient), targets, loss (f64) */ \
    X(OP_OWN_GATHER, "own_gather", "rw")        /* x (own tokens), y (all) */                                       \
    X(OP_OWN_SCATTER, "own_scatter", "rw")      /* x (all tokens, shares), y (own) */                               \
    X(OP_GATHER, "gather", "rw")                /* x, y */                                                          \
    X(OP_UNIT_GATHER, "unit_gather", "rw")      /* pieces of a unit, its local tensors */                           \
    X(OP_UNIT_SCATTER, "unit_scatter", "rw")    /* gradients of local tensors, of pieces (added to with OPF_ACC) */ \
    X(OP_SEND, "send", "r")                     /* x */                                                             \
    X(OP_RECV, "recv", "w")                     /* x */                                                             \
    X(OP_PUSH, "push", "")                      /* what is posted goes on without this rank */                      \
    X(OP_WAIT, "wait", "a")                     /* x, which has been sent or received since its post */             \
    X(OP_SHIFT, "shift", "rw")                  /* x (goes), y (comes) */                                           \
    X(OP_ALL_REDUCE, "all_reduce", "a")         /* x over op.group with op.reduce */                                \
    X(OP_TREE_LEAF, "tree_leaf", "ra")          /* x, tree: the microbatch's gradient joins the canonical tree */   \
    X(OP_TREE_REDUCE, "tree_reduce", "rw")      /* tree, x: the sum over all microbatches of all ranks */           \
    X(OP_NORM, "norm", "rw")                    /* x, blocks (f64) */                                               \
    X(OP_CLIP, "clip", "rrww")                  /* blocks, losses, norm, factor (all f64) */                        \
    X(OP_ADAMW, "adamw", "aaarr")               /* p, m, v, g, clip factor */                                       \
    X(OP_SNAPSHOT, "snapshot", "rrr")           /* all p, all m, all v */

#define X(kind, name, operands) kind,
enum op_kind { OP_LIST(X) OP_KIND_COUNT };
#undef X

enum op_flags {
    OPF_TRANS_A = 1,
    OPF_TRANS_B = 2,
    OPF_ACC = 4,     /* gemm: c += */
    OPF_INVERSE = 8, /* rope backwards */
    OPF_GRAD = 16,   /* cross_entropy with gradient */
    OPF_CAUSAL = 32,
    OPF_DECAY = 64, /* adamw: weight decay applies */
    OPF_GELU = 128, /* gemm: kern_act */
    OPF_GELU_GRAD = 256,
    OPF_ACC_Q = 512,
    OPF_ACC_KV = 1024,
};

enum op_stream { STREAM_COMPUTE, STREAM_COMM, STREAM_COPY, STREAM_COUNT };

#define OP_MAX_OPERANDS 9
#define OP_MAX_WAITS 6

/* An operand: a buffer, and where in it. Both are simply added to its address. */
struct operand {
    int buffer;              /* -1: absent */
    int64_t col;             /* elements from the start of each row: a column range, whose row stride is in the op */
    struct graph_dim offset; /* elements from the start of the buffer; rows of later tokens depend on the microbatch */
};

struct op {
    enum op_kind kind;
    uint32_t flags;
    enum op_stream stream;
    int node;  /* graph node it came from, -1 */
    int layer; /* -1 */
    int group; /* program.groups, -1 */
    enum reduce_op reduce;
    struct operand arg[OP_MAX_OPERANDS];
    struct graph_dim m, n, k; /* gemm; other kernels: m = tokens or elements, n = columns */
    int64_t lda, ldb, ldc;    /* row strides in elements: gemm; attention uses lda, ldb, ldc for q, kv, o; losses lda */
    int64_t heads, kv_heads, head_dim;
    int64_t seq, seq_kv, pos0; /* 0: program.seq, as seq, 0. embed's operand pos is the table of all positions: the
                                  kernel gets row pos0 of it */
    int64_t vocab_lo, vocab_hi, col0; /* vocab_hi 0: the table has the whole vocabulary */
    double eps, theta, rate;
    int site;       /* dropout */
    int unit;       /* unit_gather, unit_scatter */
    int peer, from; /* indices in the group: send, recv, shift */
    /* Events, -1: none; needed only across streams. A wait means the latest record before it in the order of actions,
     * whatever slot that was in, of the step before when this step has none yet, and passes when there never was one.
     * What is waited for is behind everything earlier on its stream, so the latest is right for every microbatch. */
    int wait[OP_MAX_WAITS];
    int event; /* recorded after the op, -1 */
};

/* ---- actions ---- */

#define ACTION_LIST(X)                                                                                                 \
    X(ACT_BEGIN, "begin")       /* once per step: losses become zero, and gradients whose first writer adds */         \
    X(ACT_FORWARD, "forward")   /* of a chunk on a microbatch */                                                       \
    X(ACT_BACKWARD, "backward") /* the first of a step writes gradients where the later ones add: two ranges of ops */ \
    X(ACT_INPUT, "input")       /* backward for inputs only: a split backward's first half */                          \
    X(ACT_WEIGHT, "weight")     /* backward for weights: its second */                                                 \
    X(ACT_EXCHANGE, "exchange") /* sends and receives between two slots of a pipeline's schedule: exchange.c */        \
    X(ACT_GATHER, "gather")     /* parameters that the step computes with, from their pieces: ZeRO 1 and 2 */          \
    X(ACT_REDUCE, "reduce")     /* the unit's gradient over its group; unit -1: the losses */                          \
    X(ACT_NORM, "norm")                                                                                                \
    X(ACT_UPDATE, "update")                                                                                            \
    X(ACT_SNAPSHOT, "snapshot") /* only on steps that save */

#define X(kind, name) kind,
enum action_kind { ACTION_LIST(X) ACT_COUNT };
#undef X

struct action {
    enum action_kind kind;
    int chunk, micro,
        slot;            /* micro: the global microbatch index, -1 where there is none; slot: instance of its buffers */
    int unit;            /* -1 where there is none */
    int first_op, n_ops; /* in program.ops; actions that do the same share one range */
};

struct group {
    int n;
    int *ranks;    /* ascending */
    unsigned axes; /* that its members differ on: a set of 1 << axis; what bytes are counted by */
};

/* A tensor of a unit, for unit_gather and unit_scatter. Element offsets in the two operands' buffers, the same on all
 * ranks of the fsdp group; member i's piece begins behind those of the members before it in the local tensor, and at
 * `piece` in its own pieces. */
struct unit_part {
    int tensor;
    int64_t local, piece;
    int64_t *counts; /* by member of the fsdp group: elements of its piece */
};

struct unit {
    struct unit_part *parts; /* of the tensors that this rank's stages use */
    int n;
};

/* Tokens of a sample that a context-parallel rank has: segments of the sequence, in order; a microbatch has them one
 * after the other, each with all samples: [segment][sample][token]. Without cp one segment. With it the sequence is cut
 * into 2 cp parts by layout_split, and rank i has the i-th from either end (which balances the causal mask). */
#define PLAN_MAX_SEGMENTS 2
struct segment {
    int64_t pos0, len, before; /* first position; tokens; tokens of a sample in the segments before it */
};

/* Microbatch i of the step is samples [first, first + samples) of the global batch. */
struct micro {
    int64_t first, samples;
};

enum program_mode { MODE_TRAIN, MODE_EVAL, MODE_GENERATE };

struct program {
    enum program_mode mode;
    struct mesh mesh;
    int rank;
    enum dtype dtype; /* compute type: DT_F32, DT_BF16, or DT_F64 in proofs */
    enum dtype wide;  /* of parameters, gradients of parameters, moments, statistics: DT_F32 for DT_BF16, else dtype */
    int64_t seq;      /* of the sample, all of it */
    struct sharding sharding;
    struct segment segments[PLAN_MAX_SEGMENTS]; /* of this rank */
    int n_segments;
    int64_t own_seq;     /* tokens of a sample that this rank has */
    int64_t max_samples; /* the bound of SYM_SAMPLES; SYM_TOKENS is bounded by max_samples * seq */
    double loss_scale;   /* 1 / (tokens of the global batch): what cross_entropy multiplies gradients with, so that
                          * those of ranks and of microbatches are summed, never averaged */
    struct buffer *buffers;
    int n_buffers;
    struct op *ops;
    int n_ops;
    /* train: one whole step. eval: begin, the forwards of one global batch, the reduce of the losses. generate: begin
     * where parameters are cast, one forward, micro 0, of one sample of seq tokens (causal: what stands behind the
     * position of interest does not matter). */
    struct action *actions;
    int n_actions;
    struct group *groups;
    int n_groups;
    int n_events;
    struct micro *micros; /* of the whole global batch, all ranks */
    int n_micros;
    int first_micro, end_micro; /* this rank's: a contiguous range, shares differ by at most one microbatch */
    /* By graph tensor; -1: this rank has none. Pieces, as sharding.h has them; grad_buffer: of local tensors. */
    int *param_buffer, *grad_buffer, *m_buffer, *v_buffer;
    struct unit *units; /* by unit; without ZeRO empty */
    int n_units;
    int rows_buffer; /* i32: of each token of the microbatch, sample in the global batch * seq + position; -1: nobody
                        asks */
    /* loss: f64[n_micros], element i is the sum over the tokens of microbatch i, zero until it is computed; after the
     * reduce all ranks have all of them, and the loss of the step is their sum in ascending order * loss_scale: the
     * same bits for every number of workers. norm, clip: f64[1]. -1 where the mode has none. The worker fills ids and
     * targets before the forward of each microbatch, where the rank's chunks read them: [samples * own_seq] int32 in
     * the order of `segments`. Of the ranks that compute a loss together (tp) one counts it. */
    int ids_buffer, targets_buffer, logits_buffer, loss_buffer, norm_buffer, clip_buffer;
    int tree_depth; /* canonical numerics: instances of the tree's buffer, the largest that any rank needs; 0 else */
    /* Exact: what the worker allocates, and all it allocates, for tensors. SPACE_PARAM is laid out alike in all modes,
     * so that a worker runs its train, eval and generate programs over one allocation, each space as large as the
     * largest. */
    int64_t space_bytes[SPACE_COUNT];
    int64_t arena_bytes; /* snapshot arena: what this rank saves, with slack for alignment */
};

void program_fini(struct program *p);

/* Elements from one row of a matrix to the next. */
static inline int64_t buffer_row(const struct buffer *b)
{
    return b->pitch ? b->pitch : b->dim[1].factor;
}
/* The extent of a dimension when the microbatch has `samples` samples. */
int64_t program_dim(const struct program *p, struct graph_dim d, int64_t samples);
/* The member of the tp group whose own tokens a symbol counts, or with *ret_first those in front of whose; -1: it is no
 * such symbol. */
int program_dim_member(const struct program *p, enum graph_sym sym, bool *ret_first);
const char *op_name(enum op_kind kind);
const char *op_operands(enum op_kind kind); /* the r/w/a string of OP_LIST */
/* What this op does with operand i: 'r', 'w' or 'a', the flags of a product included; 0 behind the last. */
char op_mode(const struct op *op, int i);
const char *action_name(enum action_kind kind);
/* One line per action and op, for people and for golden tests. */
void program_print(const struct program *p, const struct graph *g, FILE *out);

/* Which boxes this rank writes in a save: every parameter, exp_avg and exp_avg_sq box exactly once over all ranks, the
 * work spread evenly by bytes over the replicas (large replicated tensors are cut by rows). */
struct save_item {
    int tensor; /* graph tensor */
    int state;  /* 0 parameter, 1 exp_avg, 2 exp_avg_sq */
    struct box box;
    int64_t buffer_offset; /* elements from the start of the tensor's buffer to the box */
    int64_t stride;        /* elements between its rows there */
};
NODISCARD err_t plan_save_items(const struct program *p, const struct graph *g, struct save_item **ret, int *ret_n);
/* Bytes of the arena for the items that this rank saves; each item starts at a multiple of 64 bytes. */
NODISCARD err_t plan_arena_bytes(const struct program *p, const struct graph *g, int64_t *ret);

#endif
