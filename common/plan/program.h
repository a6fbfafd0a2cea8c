/* The program of one training step on one rank: actions in order, each a range of ops over planned buffers.
 *
 * plan_compile (compile/compile.h) makes it from a job and a graph, plan_check checks it, worker/step runs it, dtctl
 * draws and forecasts it. It does not change after compilation, so any thread may read it. docs/internals/program.md
 * explains the design and tests it on paper against overlapped tensor parallelism, a ring step, an all-to-all and a
 * split backward. */
#ifndef DTD_COMMON_PLAN_PROGRAM_H
#define DTD_COMMON_PLAN_PROGRAM_H

#include "common/base/dtype.h"
#include "common/base/err.h"
#include "common/conf/job.h"
#include "common/mesh/mesh.h"
#include "common/plan/graph.h"
#include "common/plan/sharding.h"
#include "common/plan/sumtree.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

/* ---- buffers ---- */

enum buffer_space {
    SPACE_PARAM, /* this rank's pieces of the parameters (sharding.h), unit by unit; float32 when the compute type is
                  * bfloat16. Then states, whole, and where ZeRO is used with bfloat16, copies of the pieces. With ZeRO
                  * other ranks gather from it, so it lies in the segment that the node's ranks share */
    SPACE_OPT,   /* exp_avg and exp_avg_sq, laid out like the pieces */
    SPACE_GRAD,  /* gradients of local tensors, and with ZeRO of pieces; lies in the shared segment */
    SPACE_WORK,  /* activations and their gradients; bytes are reused by lifetime. It starts with the local tensors that
                  * ops read in place of the parameters (bfloat16, ZeRO 1 and 2), which live as long as the program.
                  * Those of ZeRO 3 have lifetimes like activations */
    SPACE_SENT,  /* messages to other stages of a pipeline, until they are received; lies in the shared segment */
    SPACE_SHARED, /* on CPUs: values of SPACE_WORK that other ranks read in collectives; lies in the shared segment, so
                   * that they are read in place */
    SPACE_HOST,  /* written or read by the host: token ids, targets, scalars in float64; on a GPU the device has it, and
                  * the host a mirror */
    SPACE_CACHE, /* decoding: keys and values of earlier tokens, [sequences * seq, columns of the rank's heads] for each
                  * attention; they outlive an execution of the program. No job has it */
    SPACE_COUNT
};

/* Which instance of a buffer an op accesses. The address of an operand is
 * base of the space + offset + index * slot_bytes + (program_dim(operand.offset) + operand.col) * bytes of the dtype.
 */
enum slot_index {
    SLOT_ONE,    /* the only one: index 0 */
    SLOT_ACTION, /* action.slot */
    SLOT_MICRO,  /* action.micro; in actions without a microbatch the op accesses all instances, from index 0 */
    SLOT_TREE,   /* chosen by OP_TREE_LEAF and OP_TREE_REDUCE (below) */
};

/* Padded rows begin at multiples of this many bytes (compile/pitch.c gives the reasons). */
#define PLAN_ROW_BYTES 128

/* The worker places the spaces one after another. Each begins at a multiple of this many bytes, as memory from
 * cudaMalloc does, so it shares no line of a cache with another. */
#define PLAN_SPACE_ALIGN 256

/* Bytes that the worker reserves for a space of `bytes`. */
static inline int64_t plan_space_reserved(int64_t bytes)
{
    return (bytes + PLAN_SPACE_ALIGN - 1) / PLAN_SPACE_ALIGN * PLAN_SPACE_ALIGN;
}

struct buffer {
    int tensor;                     /* graph tensor; -1: none, the compiler added the buffer */
    char name[GRAPH_NAME_MAX + 16]; /* "layers.0.attention.wq.weight.grad" */
    enum dtype dtype;
    int ndim;
    struct graph_dim dim[GRAPH_MAX_DIMS]; /* this rank's part */
    int64_t pitch; /* elements from one row of a matrix to the next where rows are padded; no op accesses the padding.
                    * 0: dense. Only in SPACE_WORK */
    bool is_share; /* this rank's share of a sum over tp that has not been reduced yet */
    enum buffer_space space;
    int run;        /* the buffer that contains this one (such as all gradients of a unit), -1: none */
    bool planned;   /* has its offset as long as the program runs. memory_plan.c assigns offsets to the others of
                     * SPACE_WORK, SPACE_SHARED and SPACE_GRAD by lifetime; a buffer in a run moves with it, and until
                     * then its offset   counts from the start of the run */
    int64_t bytes;  /* of one instance, at the symbols' bounds */
    int64_t offset; /* bytes from the start of its space; 64-aligned, elements of the tree too; with a pitch aligned as
                     * its rows */
    int64_t slot_bytes; /* distance between instances; 0 where there is one */
    int slots;          /* instances, >= 1 */
    enum slot_index slot_index;
};

/* ---- ops ---- */

/* X(kind, name, operands): operands in the order of the kernel (kernels/kernels.h) or collective (worker/comm/comm.h).
 * r = read, w = written, a = added to (read and written); an operand in [] may be absent (buffer -1).
 * Two operands may name one buffer where the kernel allows the alias.
 *
 * The list below names the fields of struct op that each kind uses; all others are 0, -1 or empty. program_dim resolves
 * dims with the samples of the action's microbatch. "Elements" is m * n. A matrix without a stride in the list is dense
 * with n columns; a stride is the pitch of the operand's buffer, or its row length where it has no pitch:
 *
 *   zero                  m * n elements of the buffer's own dtype
 *   copy, gelu*, relu*,
 *   add, swiglu*, geglu*  m rows, n columns, dense: elements
 *   scale, cap*           the same; rate: the factor
 *   embed, embed_grad     m tokens, n columns (d); seq is program.seq
 *   gemm                  m, n, k, lda, ldb, ldc, OPF_TRANS_A, OPF_TRANS_B, OPF_ACC, OPF_GELU, OPF_GELU_GRAD as
 *                         kern_gemm; wide_c where c's dtype is not the program's. aux is present with OPF_GELU and
 *                         OPF_GELU_GRAD, which exclude OPF_ACC
 *   cast                  m elements: all parameters, with the gaps between them
 *   bias_grad             m tokens, n columns
 *   rmsnorm*, layernorm*  m tokens, n columns, eps; OPF_PLUS_ONE: w is added to 1. [res] absent: [r] absent too, the
 *                         kernel gets NULL. rmsnorm* of heads: m is tokens * heads, n the columns of a head
 *   row_dots, rmsnorm_part*
 *                         m tokens, n columns of this rank, k columns of all ranks, eps, OPF_PLUS_ONE: an rmsnorm whose
 *                         columns are sharded. The sums are those of all ranks once they are reduced
 *   rope                  m tokens, heads, head_dim, lda (row stride), OPF_INVERSE; pos0 0, seq is program.seq
 *   attention, _grad      m samples, heads, kv_heads, head_dim, OPF_CAUSAL; lda: stride of q and d_q, ldb: of k, v,
 *                         d_k and d_v, ldc: of o and d_o; seq is program.seq. Where q, k and v are columns of one
 *                         matrix, operand.col selects them. window, softcap and scale as kern_attention. begin: the
 *                         position in its sample at which the document of each query begins
 *   attention_cached      decoding: m tokens of all runs, heads, kv_heads, head_dim, strides as attention. Keys and
 *                         values enter the cache of their sequence; then each token sees the cache up to itself. The
 *                         cache has dense rows, seq for each of seq_kv sequences
 *   last_rows             decoding: m runs, n columns: the last row of each run; lda between rows of x
 *   cross_entropy         m tokens, n vocabulary, lda (of the logits), OPF_GRAD; scale is program.loss_scale; the loss
 *                         is one f64
 *   all_reduce            m elements of the buffer's own dtype, group, reduce
 *   own_gather            sequence parallelism, all-gather: the own tokens of each member of the tp group (op.m is all
 *                         tokens; layout_split gives the counts) by n columns to all tokens
 *   own_scatter           sequence parallelism, reduce-scatter: shares of a sum on all tokens by n columns to the sum
 *                         on own tokens
 *   gather                all-gather: m elements of every member, in the order of the group; y receives all
 *   unit_gather           all-gather of op.unit: pieces to local tensors, over the fsdp group, by the table of parts in
 *                         program.units
 *   unit_scatter          reduce-scatter of op.unit: gradients of local tensors to the summed gradients of the own
 *                         pieces; added to with OPF_ACC
 *   send, recv            m elements to or from member `peer` of the group. The op only posts the message: x must not
 *                         be accessed until a `wait` names it, in the same action or a later one
 *   push                  follows the posts of an action: from here on they complete without this rank (comm_push)
 *   wait                  m elements: returns when the message in x is complete
 *   shift                 a step of a ring: m elements to member `peer`, k elements from member `from`
 *   copy_cols             m rows of n columns, row strides lda and ldb
 *   embed*                the table has vocabulary rows [vocab_lo, vocab_hi); other ids give zeros and get no
 *                         gradient; positions begin at pos0, samples are op.seq long
 *   attention, _grad,
 *   rope                  seq_kv and op.seq where not 0 replace program.seq, pos0 as given; pos0_kv is that of the
 *                         keys, and both are given with a window or `begin`; OPF_ACC_Q, OPF_ACC_KV in the gradient:
 *                         d_q, or d_k and d_v, are added to. o and lse of attention_grad are those of the whole row,
 *                         even where k and v have only a part of the keys
 *   attention_join        m samples, heads, head_dim, op.seq, ldc: o and lse become those of both parts (online
 *                         softmax)
 *   loss_part             m tokens, n columns of the vocabulary from vocab_lo on, lda: stats[3 t ..] = largest logit,
 *                         sum of exp(logit - it), the target's logit (-inf where another rank has it)
 *   loss_join             m tokens, n columns, lda, k parts of stats: the loss (absent: another rank counts it), and
 *                         with OPF_GRAD logits become their gradient
 *   dropout*              m tokens, n columns of op.k, from column col0 on; rate; site: number of the dropout in the
 *                         model. `rows` has the index of each token in the global batch
 *   route*                m tokens, n experts, k choices, by the router of op.node. `rows` has the index of each token
 *                         in the global batch; absent: all tokens are one set. numbers, totals and closeness are
 *                         absent where nothing reads them, biases where the router has none
 *   aux_loss              m sets of tokens, n experts, rate: the coefficient. The loss is multiplied by
 *                         program.loss_scale, so the sum over all microbatches is that of the step
 *   balance               m experts, rate; totals begin at those of the router of op.node
 *   keep                  m experts; totals as for balance
 *   choices, drop         m tokens, n experts, k choices, by the router of op.node (kern_drop). `rows` has the index of
 *                         each token in the global batch. The table has all samples of the microbatch, in which other
 *                         ranks may have tokens: it is summed over them in between. weights are absent if the experts
 *                         keep the choices of the first tokens, dropped where nothing reads it
 *   route_sort            m tokens, n experts, k choices
 *   rows_*                m tokens, n columns, k choices; m k rows
 *   grouped_gemm          as kern_grouped: m rows of all experts, n, k of each product, seq experts, of which the last
 *                         seq_kv are borrowed, with matrices or results in `more`; OPF_TRANS_A (m is then the inner
 *                         dimension, k the rows of each result), OPF_TRANS_B, OPF_ACC
 *   exchange              all-to-all of rows of experts: m rows of x, k rows of y, n columns; how many go to each
 *                         member follows from `all` (exchange.h). OPF_INVERSE: back to the ranks that have the tokens
 *   arrive                m elements of `all`, n experts of the model: the order of the rows that arrive here
 *   arrange               m tokens, k choices: home rows, sorted by expert, are put into the order of the ranks that
 *                         compute them; `place` and `source` follow
 *   borrow                k own experts with matrices of n elements: y receives those that this rank borrows, at most m
 *   give_back             the same: adds the gradients of borrowed experts to those of their ranks. room: one matrix
 *   gather_tokens         all-gather of n elements of each token: the m tokens that this rank sends to experts, with k
 *                         choices each. How many the other members have follows from `all`; y receives those of all
 *                         members, at most `seq` tokens
 *   sources               m elements of `all`, n experts of the model; sources of seq rows: the choice of each row of
 *                         this rank's experts, counted over the tokens of all members (kern_arrive)
 *   rows_pick             m rows of n columns: row r is that of token choices[r] / k of x, which has seq tokens
 *   gate*                 m tokens, n columns
 *   tree_leaf             m elements. h = sumtree_height(n_micros, first_micro, micro), c = sumtree_merges(the same):
 *                         when c is 0 instance h of `tree` = x; else instance h-1 += x, then instance h-2 += instance
 *                         h-1, and so on, c additions in all (sumtree.h)
 *   tree_reduce           m elements, group (-1: this rank has all leaves, so it has the root). Node j of
 *                         sumtree_nodes(n_micros, first_micro, end_micro) is instance j of `tree`, from element
 *                         operand.offset on; x receives the root on every rank
 *   norm                  m elements in blocks of n: blocks[i] = sum of squares of x[n i .. min(n (i+1), m))
 *   clip                  m blocks, n losses, as kern_clip with the limit train.clip
 *   adamw                 m elements; lr, betas, eps and step are given at run time; weight decay only with
 *                         OPF_DECAY; g is multiplied by the clip factor
 *   snapshot              no field: the worker copies its plan_save_items into the arena */
#define OP_LIST(X)                                                                                                     \
    X(OP_ZERO, "zero", "w")                                 /* x */                                                    \
    X(OP_COPY, "copy", "rw")                                /* x, y */                                                 \
    X(OP_EMBED, "embed", "rrrw")                            /* ids, table, [pos], y */                                 \
    X(OP_EMBED_GRAD, "embed_grad", "rraa")                  /* ids, dy, d_table, [d_pos] */                            \
    X(OP_GEMM, "gemm", "rrrwaaa")                           /* a, b, [bias], c, [aux], [a_sum], [b_sum]; c is added to \
                                                               with OPF_ACC; aux is written with OPF_GELU, read with   \
                                                               OPF_GELU_GRAD, absent else */                           \
    X(OP_CAST, "cast", "rw")                                /* x (a parameter), y (in the compute type) */             \
    X(OP_BIAS_GRAD, "bias_grad", "ra")                      /* dy, db */                                               \
    X(OP_RMSNORM, "rmsnorm", "rrrwww")                      /* x, [res], w, [r], y, rstd */                            \
    X(OP_RMSNORM_GRAD, "rmsnorm_grad", "rrrrrwa")           /* x, w, rstd, dy, [d_res], dx, dw */                      \
    X(OP_ROW_DOTS, "row_dots", "rrrw")                      /* a, b, [w], sums (f64) */                                \
    X(OP_RMSNORM_PART, "rmsnorm_part", "rrrww")             /* x, w, sums (f64), y, rstd */                            \
    X(OP_RMSNORM_PART_GRAD, "rmsnorm_part_grad", "rrrrrwa") /* x, w, rstd, [sums] (f64), dy, dx, dw */                 \
    X(OP_LAYERNORM, "layernorm", "rrrrwwww")                /* x, [res], w, b, [r], y, mean, rstd */                   \
    X(OP_LAYERNORM_GRAD, "layernorm_grad", "rrrrrrwaa")     /* x, w, mean, rstd, dy, [d_res], dx, dw, db */            \
    X(OP_ROPE, "rope", "a")                                 /* x in place; OPF_INVERSE for the gradient */             \
    X(OP_ATTENTION, "attention", "rrrwwr")                  /* q, k, v, o, lse, [begin] (i32) */                       \
    X(OP_ATTENTION_GRAD, "attention_grad", "rrrrrrwwwr")    /* q, k, v, o, lse, d_o, d_q, d_k, d_v, [begin] (i32) */   \
    X(OP_ATTENTION_CACHE, "attention_cached", "rrraaw")     /* q, k, v, cached keys, cached values, o */               \
    X(OP_LAST_ROWS, "last_rows", "rw")                      /* x, y */                                                 \
    X(OP_SWIGLU, "swiglu", "rrw")                           /* a, b, y */                                              \
    X(OP_SWIGLU_GRAD, "swiglu_grad", "rrrww")               /* a, b, dy, da, db */                                     \
    X(OP_GEGLU, "geglu", "rrw")                             /* a, b, y */                                              \
    X(OP_GEGLU_GRAD, "geglu_grad", "rrrww")                 /* a, b, dy, da, db */                                     \
    X(OP_GELU_ERF, "gelu_erf", "rw")                        /* x, y */                                                 \
    X(OP_GELU_ERF_GRAD, "gelu_erf_grad", "rrw")             /* x, dy, dx */                                            \
    X(OP_SCALE, "scale", "rw")                              /* x, y: the gradient too; y may be x */                   \
    X(OP_CAP, "cap", "rw")                                  /* x, y */                                                 \
    X(OP_CAP_GRAD, "cap_grad", "rrw")                       /* x, dy, dx; dx may be dy */                              \
    X(OP_GELU, "gelu", "rw")                                /* x, y */                                                 \
    X(OP_GELU_GRAD, "gelu_grad", "rrw")                     /* x, dy, dx */                                            \
    X(OP_RELU, "relu", "rw")                                /* x, y */                                                 \
    X(OP_RELU_GRAD, "relu_grad", "rrw")                     /* x, dy, dx */                                            \
    X(OP_ADD, "add", "rrw")                                 /* a, b, y */                                              \
    X(OP_ROUTE, "route", "rrwwwaar")          /* logits, [rows], ids, weights, [numbers], [totals], [closeness] (f64), \
                                                 [biases] */                                                           \
    X(OP_ROUTE_GRAD, "route_grad", "rrrrrrw") /* logits, ids, weights, d_weights, [rows], [numbers],                   \
                                                 d_logits */                                                           \
    X(OP_AUX_LOSS, "aux_loss", "ra")          /* numbers of the whole sets, losses (f64) */                            \
    X(OP_CHOICES, "choices", "rrrw")          /* ids, [weights], rows, table (f64) */                                  \
    X(OP_DROP, "drop", "rrrwa")               /* ids, rows, table, kept ids, [dropped] (f64) */                        \
    X(OP_ROUTE_SORT, "route_sort", "rwww")    /* ids, place, source, offsets */                                        \
    X(OP_ROWS_GATHER, "rows_gather", "rrrw")  /* x, source, [weights of all choices], rows */                          \
    X(OP_ROWS_SUM, "rows_sum", "rrrw")        /* rows, [weights], place, y */                                          \
    X(OP_ROWS_SUM_GRAD, "rows_sum_grad", "rrrrww") /* rows, weights, place, dy, [d_rows], d_weights */                 \
    X(OP_GROUPED_GEMM, "grouped_gemm", "rrwrr")    /* a, b, c, offsets, [more]: written with OPF_TRANS_A */            \
    X(OP_EXCHANGE, "exchange", "rrw")              /* x, all, y */                                                     \
    X(OP_ARRIVE, "arrive", "rwwwa")                /* all, [index], inverse, offsets, [rounds] (f64) */                \
    X(OP_ARRANGE, "arrange", "rarww")              /* all, place, source by expert, source, moved */                   \
    X(OP_BORROW, "borrow", "rrw")                  /* matrices of own experts, all, matrices of borrowed ones */       \
    X(OP_GIVE_BACK, "give_back", "rrwa")           /* gradients of borrowed experts, all, room, those of own ones */   \
    X(OP_GATHER_TOKENS, "gather_tokens", "rrw")    /* x, all, y */                                                     \
    X(OP_SOURCES, "sources", "rrw")                /* all, sources of all members, choices */                          \
    X(OP_ROWS_PICK, "rows_pick", "rrrw")           /* x, choices, [weights of all choices], rows */                    \
    X(OP_GATE, "gate", "rrw")                      /* x, z, y */                                                       \
    X(OP_GATE_GRAD, "gate_grad", "rrrww")          /* x, z, dy, dx, dz */                                              \
    X(OP_POSITIONS, "positions", "rrw")            /* x, rows (i32), y; y may be x */                                  \
    X(OP_DROPOUT, "dropout", "rrw")                /* x, rows (i32), y: the gradient too; y may be x */                \
    X(OP_COPY_COLS, "copy_cols", "rw")             /* x, y */                                                          \
    X(OP_ATTENTION_JOIN, "attention_join", "aarr") /* o, lse; o and lse of another part of the keys */                 \
    X(OP_LOSS_PART, "loss_part", "rrw")            /* logits, targets, stats (f64) */                                  \
    X(OP_LOSS_JOIN, "loss_join", "arra")           /* logits, targets, stats of all parts, [loss] */                   \
    X(OP_CROSS_ENTROPY, "cross_entropy", "ara")    /* logits (OPF_GRAD: become their gradient), targets, loss (f64) */ \
    X(OP_OWN_GATHER, "own_gather", "rw")           /* x (own tokens), y (all) */                                       \
    X(OP_OWN_SCATTER, "own_scatter", "rw")         /* x (all tokens, shares), y (own) */                               \
    X(OP_GATHER, "gather", "rw")                   /* x, y */                                                          \
    X(OP_UNIT_GATHER, "unit_gather", "rw")         /* pieces of a unit, its local tensors */                           \
    X(OP_UNIT_SCATTER, "unit_scatter", "rw")       /* gradients of local tensors, of pieces (added to with OPF_ACC) */ \
    X(OP_SEND, "send", "r")                        /* x */                                                             \
    X(OP_RECV, "recv", "w")                        /* x */                                                             \
    X(OP_PUSH, "push", "")                         /* posted messages complete without this rank */                    \
    X(OP_WAIT, "wait", "a")                        /* x, a message that was posted before */                           \
    X(OP_SHIFT, "shift", "rw")                     /* x (sent), y (received) */                                        \
    X(OP_ALL_REDUCE, "all_reduce", "a")            /* x over op.group with op.reduce */                                \
    X(OP_TREE_LEAF, "tree_leaf", "ra")             /* x, tree: the microbatch's gradient joins the canonical tree */   \
    X(OP_TREE_REDUCE, "tree_reduce", "rw")         /* tree, x: the sum over all microbatches of all ranks */           \
    X(OP_NORM, "norm", "rw")                       /* x, blocks (f64) */                                               \
    X(OP_CLIP, "clip", "rrww")                     /* blocks, losses, norm, factor (all f64) */                        \
    X(OP_ADAMW, "adamw", "aaarr")                  /* p, m, v, g, clip factor */                                       \
    X(OP_BALANCE, "balance", "rra")                /* totals, clip factor (f64), biases of the router */               \
    X(OP_KEEP, "keep", "rrw")                      /* totals, clip factor (f64), numbers of the router's last step */  \
    X(OP_SNAPSHOT, "snapshot", "rrrr")             /* all p, all m, all v, [all states] */

#define X(kind, name, operands) kind,
enum op_kind { OP_LIST(X) OP_KIND_COUNT };
#undef X

enum op_flags {
    OPF_TRANS_A = 1,
    OPF_TRANS_B = 2,
    OPF_ACC = 4,     /* gemm: c += */
    OPF_INVERSE = 8, /* rope: rotates by the negative angle */
    OPF_GRAD = 16,   /* cross_entropy with gradient */
    OPF_CAUSAL = 32,
    OPF_DECAY = 64, /* adamw: weight decay applies */
    OPF_GELU = 128, /* gemm: kern_act */
    OPF_GELU_GRAD = 256,
    OPF_ACC_Q = 512,
    OPF_ACC_KV = 1024,
    OPF_PLUS_ONE = 2048, /* rmsnorm: 1 + w */
};

enum op_stream { STREAM_COMPUTE, STREAM_COMM, STREAM_COPY, STREAM_COUNT };

#define OP_MAX_OPERANDS 10
#define ATTENTION_BEGIN(kind) ((kind) == OP_ATTENTION ? 5 : 9) /* the operand `begin` of both kinds */
#define OP_MAX_WAITS 6

/* An operand: a buffer and a position in it. Column and offset are both added to the buffer's address. */
struct op_operand {
    int buffer;              /* -1: absent */
    int64_t col;             /* elements from the start of each row: a column range; the op has the row stride */
    struct graph_dim offset; /* elements from the start of the buffer; symbolic, since it may depend on the
                              * microbatch's number of tokens */
};

struct op {
    enum op_kind kind;
    uint32_t flags;
    enum op_stream stream;
    int node;  /* the graph node that it implements, -1 */
    int layer; /* -1 */
    int group; /* program.groups, -1 */
    enum reduce_op reduce;
    struct op_operand arg[OP_MAX_OPERANDS];
    struct graph_dim m, n, k; /* gemm; other kernels: m = tokens or elements, n = columns */
    int64_t lda, ldb, ldc;    /* row strides in elements: gemm; attention uses lda, ldb, ldc for q, kv, o; losses lda */
    int64_t heads, kv_heads, head_dim;
    int64_t seq, seq_kv, pos0; /* 0: program.seq, the same as seq, 0. embed's operand pos is the table of all positions,
                                  and the kernel gets a pointer to its row pos0 */
    int64_t pos0_kv, window;   /* attention */
    int64_t vocab_lo, vocab_hi, col0; /* vocab_hi 0: the table has the whole vocabulary */
    double eps, rate, softcap, scale; /* softcap, scale: attention */
    int site;                         /* dropout */
    int round;                        /* of the rounds in which a layer computes rows of experts, from 1; 0: of none */
    int unit;                         /* unit_gather, unit_scatter */
    int peer, from;                   /* indices in the group: send, recv, shift */
    /* Events, -1: none; needed only between streams. A wait refers to the latest record before it in the order of
     * actions, of any slot; to the previous step's when this step has none yet; and returns at once when there never
     * was one. A stream runs in order, so the latest record also covers all earlier microbatches. */
    int wait[OP_MAX_WAITS];
    int event; /* recorded after the op, -1 */
};

/* ---- actions ---- */

#define ACTION_LIST(X)                                                                                        \
    X(ACT_BEGIN, "begin")       /* once per step: zeroes losses, and gradients whose first writer adds */     \
    X(ACT_FORWARD, "forward")   /* a chunk on a microbatch */                                                 \
    X(ACT_BACKWARD, "backward") /* the first of a step writes gradients, later ones add: two ranges of ops */ \
    X(ACT_INPUT, "input")       /* first half of a split backward: gradients of inputs */                     \
    X(ACT_WEIGHT, "weight")     /* second half of a split backward: gradients of weights */                   \
    X(ACT_EXCHANGE, "exchange") /* sends and receives between two slots of a pipeline's schedule */           \
    X(ACT_GATHER, "gather")     /* parameters in the compute type, from their pieces: ZeRO 1 and 2 */         \
    X(ACT_REDUCE, "reduce")     /* the unit's gradient over its groups; unit -1: the losses */                \
    X(ACT_NORM, "norm")                                                                                       \
    X(ACT_UPDATE, "update")                                                                                   \
    X(ACT_RESTORE, "restore")   /* only after an update with a clip factor that was assumed and is wrong */   \
    X(ACT_SNAPSHOT, "snapshot") /* only on steps that save */

#define X(kind, name) kind,
enum action_kind { ACTION_LIST(X) ACT_COUNT };
#undef X

/* Whether only some steps run an action of this kind. */
static inline bool action_is_rare(enum action_kind kind)
{
    return kind == ACT_SNAPSHOT || kind == ACT_RESTORE;
}

struct action {
    enum action_kind kind;
    int chunk, micro, slot; /* micro: the global microbatch index, -1: none; slot: instance of its buffers */
    int unit;               /* -1: none */
    int first_op, n_ops;    /* in program.ops; equal actions share one range */
};

struct group {
    int n;
    int *ranks;    /* ascending */
    unsigned axes; /* on which its members differ, a set of 1 << axis; traffic is counted by this set */
};

/* A tensor of a unit, for unit_gather and unit_scatter. Offsets are elements in the two operands' buffers, equal on all
 * ranks of the fsdp group. In the local tensor the pieces follow each other in the order of the members; in the pieces
 * of member i its piece begins at `piece`. */
struct unit_part {
    int tensor;
    int64_t local, piece;
    int64_t *counts; /* by member of the fsdp group: elements of its piece */
};

struct fsdp_unit {
    struct unit_part *parts; /* one per tensor that this rank's stages use */
    int n;
};

/* The tokens of a sample on a context-parallel rank: segments of the sequence, in ascending order. A microbatch is laid
 * out as [segment][sample][token]. Without cp there is one segment. With cp the sequence is cut into 2 cp parts by
 * layout_split, and rank i has the i-th part from either end, which balances the work under the causal mask. */
#define PLAN_MAX_SEGMENTS 2
struct segment {
    int64_t pos0, len, before; /* first position; tokens; tokens of a sample in earlier segments */
};

/* Microbatch i of the step is samples [first, first + samples) of the global batch. */
struct micro {
    int64_t first, samples;
};

/* Numbers of the routers of a step, which the reduce gives to all ranks. */
enum number {
    NUMBER_TOTALS,    /* f64[routers][KERN_ROUTE_NUMBERS], sums over all tokens */
    NUMBER_CLOSENESS, /* f64[routers], the largest 1 / gap (kern_route) */
    NUMBER_AUX,       /* f64[routers], the auxiliary loss of each, times its coefficient; where one has such a loss */
    NUMBER_DROPPED,   /* f64[routers], the number of choices that each has dropped; where experts have a capacity */
    NUMBER_ROUNDS,    /* f64[routers], the most rounds in which experts computed rows; where there are rounds */
    NUMBER_COUNT
};
static inline enum reduce_op number_reduce(enum number i)
{
    return i == NUMBER_CLOSENESS || i == NUMBER_ROUNDS ? REDUCE_MAX : REDUCE_SUM;
}

/* MODE_DECODE generates with a cache. An execution of the program processes runs of tokens: a run is some tokens of one
 * sequence, next to each other, from any position on, and all keys and values before them are in the cache. So the
 * program serves for prompts, in as many executions as necessary, and then for one token of each sequence at a time.
 * SYM_TOKENS is the number of tokens of all runs, one after another, and SYM_RUNS the number of runs; the worker gives
 * both for each execution. The program computes the logits of the last token of each run. */
enum program_mode { MODE_TRAIN, MODE_EVAL, MODE_GENERATE, MODE_DECODE };

/* Whether there is neither a loss nor a batch. */
static inline bool mode_generates(enum program_mode mode)
{
    return mode == MODE_GENERATE || mode == MODE_DECODE;
}

struct program {
    enum program_mode mode;
    struct mesh mesh;
    int rank;
    enum dtype dtype; /* compute type: DT_F32, DT_BF16, or DT_F64 in proofs */
    enum dtype wide;  /* type of parameters (in MODE_DECODE: dtype), their gradients, moments, statistics: DT_F32 for
                       * DT_BF16, else dtype */
    int64_t seq;      /* tokens of a whole sample */
    struct sharding sharding;
    struct segment segments[PLAN_MAX_SEGMENTS]; /* of this rank */
    int n_segments;
    int64_t own_seq;     /* tokens of a sample on this rank */
    int64_t max_arrived; /* the bound of SYM_ARRIVED: every token of the ep group chooses as many of this rank's experts
                          * as it can; balanced: this rank's part of all choices; in rounds: those of one round. 0: no
                          * expert parallelism */
    int64_t mean_arrived; /* rows if all experts are equally busy, for the largest microbatches of the group */
    int rounds;           /* in which a layer computes rows of experts; 1: all at once */
    int64_t round_rows;   /* with more rounds: rows of each in the order of exchange.h, on every rank of the ep group */
    bool balanced;        /* every rank of an ep group computes equally many rows (exchange.h) */
    int64_t max_samples;  /* the bound of SYM_SAMPLES; SYM_TOKENS is bounded by max_samples * seq. Decoding: each token
                           * is a sample (own_seq is 1), and seq is the most tokens of a sequence */
    int64_t sequences;    /* decoding: the bound of SYM_RUNS, and the number of sequences in the cache; else 0 */
    double loss_scale; /* 1 / (tokens of the global batch). Losses multiply gradients with it, so gradients of ranks and
                        * microbatches are summed, never averaged. Where targets do not count (-1), the worker gives
                        * cross_entropy and loss_join 1 / (targets of the global batch that count) instead; losses of
                        * routers are means over all tokens */
    struct buffer *buffers;
    int n_buffers;
    struct op *ops;
    int n_ops;
    /* train: one whole step. eval: begin, the forwards of one global batch, the reduce of the losses. generate: begin
     * where parameters are cast, then one forward, micro 0, of one sample of seq tokens (attention is causal, so tokens
     * after the position of interest do not matter). decode: the same, on runs of tokens. */
    struct action *actions;
    int n_actions;
    /* Post-validation (parallel.post_validation), 0 and 0: this rank does not use it. Actions [0, n_ahead) may run
     * before the actions [validate, n_actions) of the step before, but after its update with an assumed clip factor
     * of 1. They overwrite nothing that these read. `validate` is the reduce of the losses; norm, update and restore
     * follow. */
    int n_ahead, validate;
    int64_t kept_bytes; /* of space_bytes[SPACE_OPT]: copies of what the update overwrites */
    struct group *groups;
    int n_groups;
    int n_events;
    struct micro *micros; /* of the whole global batch, on all ranks */
    int n_micros;
    int first_micro, end_micro; /* this rank's range; sizes of ranges differ by at most one microbatch */
    /* By graph tensor; -1: this rank has none. Of pieces (sharding.h), but grad_buffer of local tensors. */
    int *param_buffer, *grad_buffer, *m_buffer, *v_buffer;
    struct fsdp_unit *units; /* by unit; without ZeRO empty */
    int n_units;
    int number_buffer[NUMBER_COUNT]; /* -1: the program does not count them */
    int rows_buffer;  /* i32 per token of the microbatch: sample in the global batch * seq + position; -1: no op
                      reads it */
    int begin_buffer; /* i32 per token of the microbatch, in the order of ids: the position in its sample at which the
                     token's document begins; -1: attention reads across documents */
    /* Buffers; -1 where the mode has none.
     * loss: f64[n_micros]; element i is the sum over the tokens of microbatch i, 0 until it is computed. The reduce
     * gives all elements to all ranks. The loss of the step is their sum in ascending order * loss_scale, which has the
     * same bits for every number of workers. Where ranks compute a loss together (tp), one of them counts it.
     * norm, clip: f64[1].
     * ids, targets: int32[samples * own_seq] in the order of `segments`. Where the rank's chunks read them, the worker
     * fills them before the forward of each microbatch. */
    int ids_buffer, targets_buffer, logits_buffer, loss_buffer, norm_buffer, clip_buffer;
    int tree_depth; /* canonical numerics: instances of the tree's buffer, the most that any rank needs; else 0 */
    /* Exactly what the worker allocates for tensors. SPACE_PARAM has the same layout in all modes, so a worker runs its
     * train, eval and generate programs over one allocation, in which each space is as large as the largest needs. */
    int64_t space_bytes[SPACE_COUNT];
    int64_t arena_bytes; /* snapshot arena: the items that this rank saves, with alignment */
};

void program_fini(struct program *p);

/* Which numbers of the step the buffer has; NUMBER_COUNT: none. */
static inline enum number program_number(const struct program *p, int buffer)
{
    int i = 0;
    while (i < NUMBER_COUNT && (buffer < 0 || p->number_buffer[i] != buffer))
        i++;
    return (enum number)i;
}

/* Elements from one row of a matrix to the next. */
static inline int64_t buffer_row(const struct buffer *b)
{
    return b->pitch ? b->pitch : b->dim[1].factor;
}
/* The extent of a dimension for a microbatch of `samples` samples; of SYM_ARRIVED, which only the running program
 * knows, the bound. */
int64_t program_dim(const struct program *p, struct graph_dim d, int64_t samples);
/* Tokens that the ranks of this rank's group of expert parallelism have together, if each has a microbatch of `samples`
 * samples. */
int64_t program_group_tokens(const struct program *p, int64_t samples);
/* The member of the tp group to which a symbol of own tokens belongs; -1: it is another symbol. *ret_first: the symbol
 * is the index of the member's first token, not the number of its tokens. */
int program_dim_member(const struct program *p, enum graph_sym sym, bool *ret_first);
/* The index of the first action of a kind, from action `from` on; -1: none. */
int program_find(const struct program *p, enum action_kind kind, int from);
const char *op_name(enum op_kind kind);
const char *op_operands(enum op_kind kind); /* the r/w/a string of OP_LIST */
/* How this op accesses operand i: 'r', 'w' or 'a', with its flags applied; 0 after the last operand. */
char op_mode(const struct op *op, int i);
const char *action_name(enum action_kind kind);
/* The listing: one line per buffer, action and op, read by people and by golden tests. */
void program_print(const struct program *p, const struct graph *g, FILE *out);

/* The boxes that this rank writes in a save. Over all ranks, every element of every parameter, exp_avg and exp_avg_sq
 * is written exactly once. Replicas share the work evenly by bytes; large replicated tensors are cut by rows. */
struct save_item {
    int tensor; /* graph tensor */
    int state;  /* 0 parameter, 1 exp_avg, 2 exp_avg_sq */
    struct box box;
    int64_t buffer_offset; /* elements from the start of the tensor's buffer to the box */
    int64_t stride;        /* elements between its rows there */
};
NODISCARD err_t plan_save_items(const struct program *p, const struct graph *g, struct save_item **ret, int *ret_n);
#define PLAN_ARENA_ALIGN 4096 /* bytes: each item starts at a multiple, for direct I/O without a copy */
/* Bytes of the arena for the items that this rank saves, and on rank 0 for the optimizer's step. */
NODISCARD err_t plan_arena_bytes(const struct program *p, const struct graph *g, int64_t *ret);

#endif
