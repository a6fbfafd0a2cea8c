/* The compiler's own parts. Private to common/plan.
 *
 *   sharding.c       who holds what of every parameter           groups.c    the groups that collectives go over
 *   buffers.c     what lives as long as the job               once.c      norm, clip, update, snapshot
 *   forward.c     a node's forward as ops, with what          backward.c  the same backwards, whole or split
 *                 tensor and context parallelism need           ring.c      attention over a cut sequence
 *   overlap.c     products in parts, whose collectives travel meanwhile
 *   pitch.c       matrices whose rows stand apart
 *   units.c       ZeRO: gathers into a list of ops, scatters  recompute.c what the backward computes again
 *   compile.c     the driver: every pass in its turn          pipeline.c  a schedule's slots as actions
 *   exchange.c    what goes over between two slots
 *   stages.c      the model cut into stages, chunks' lists    mesh.c      which mesh a job asks for, and what cannot be
 *   pack.c        places for what lives shorter               sync.c      events, from who touches which bytes when
 *
 * The order: sharding_init, groups, compile_buffers; for every chunk compile_forward and compile_backward, each a list
 * of ops, which zero_rewrite_list rewrites; actions name lists; memory_plan_place gives places; events_assign gives
 * events, so that no rule thinks of any. */
#ifndef DTD_COMMON_PLAN_COMPILE_INTERNAL_H
#define DTD_COMMON_PLAN_COMPILE_INTERNAL_H

#include "common/plan/program.h"
#include "common/plan/schedule/schedule.h"

#define AXES_DATA (1u << AXIS_DP | 1u << AXIS_FSDP) /* ranks with different microbatches */
#define AXES_ALL ((1u << AXIS_COUNT) - 1)

/* What the programs of all ranks have in common: when which rank of a replica's pipeline does what, and where values
 * pass. It takes as long as all ranks have slots, so that it is made once for all of them. */
struct pipeline_order {
    struct mesh mesh;
    enum program_mode mode;
    struct schedule schedule;    /* of the replica with most microbatches */
    struct schedule_posts posts; /* none where a pipeline is one rank */
};

/* The whole backward, or its halves: for inputs, which leaves in weight_dy what the other half, for weights, takes. */
enum pass_half { PASS_WHOLE, PASS_INPUTS, PASS_WEIGHTS };

struct compiler {
    const struct job_spec *job;
    const struct graph *g;
    const struct pipeline_order *order;
    struct program *p;
    struct why *why;
    int cap_buffers, cap_ops, cap_actions;
    err_t err;       /* the first failure; everything is harmless after it */
    bool sizes_only; /* nobody will run it: no events, no groups of others */
    struct op sink;  /* what compile_op answers after a failure */

    /* By graph tensor. */
    int *act;           /* the buffer that holds an activation or statistic, -1 */
    int *grad;          /* the buffer with its gradient while the backward still needs it, -1 */
    int *consumers;     /* nodes that read it; rope, which works in place, is none */
    int *producer;      /* the last node that makes it: a rope that turns it in place, else its own; -1 */
    int *reader;        /* a node that reads it, the only one where consumers is 1; -1 */
    int *value;         /* what a parameter is computed with: its own buffer, its copy in the compute type, the local
                           tensor that is gathered; -1: this rank has none. ZeRO 3: of the list that is compiled next */
    int *piece_grad;    /* the gradient that the update reads, where it is a buffer of its own (ZeRO); -1: the own rows
                           of grad_buffer */
    bool *grad_started; /* a parameter's gradient has been written in this backward */
    /* Tensor and sequence parallelism. An activation that the model does not cut is "own" where program.mesh has tp > 1
     * and parallel.sp is set: a rank has SYM_OWN rows of it. */
    bool own;                      /* the job cuts such activations by tokens */
    bool async;                    /* and overlaps products with their collectives */
    struct sharding_stage forward; /* the nodes whose forward is under way; none in a backward */
    int *parts;                    /* by member of the tp group, or part: a buffer of the product under way */
    int *full;           /* by graph tensor: an own activation gathered to all tokens in the list under way; -1 */
    int *shares;         /* by graph tensor: its gradient on all tokens, a share of a sum over tp; -1: there is none */
    bool *tp_shares;     /* by graph tensor: a parameter's gradient is a share over tp: it came from own tokens, or the
                            ranks of one key-value head have different query heads. Set by backward.c, read by once.c */
    int *weight_dy;      /* by node: what a split backward's second half multiplies with; -1 */
    enum pass_half half; /* of the backward under way */
    bool *discarded;     /* by graph tensor: not there in the backward under way until it is made again */
    bool *pitched;       /* by graph tensor: rows of it, and of its gradient, stand apart */

    /* Pipelines. */
    struct pipeline *pipeline;
    int input_slots; /* instances of ids, targets and rows: a slot's, or with several chunks a microbatch's */
    enum slot_index input_index;

    /* Buffers. */
    int *held,
        *held_from;   /* parameters that this rank holds, those of unit u: held[held_from[u] .. held_from[u + 1]) */
    int *unit_run;    /* by unit: all its gradients, of local tensors; -1: this rank has nothing of the unit */
    int *unit_grads;  /* the same of pieces, where they have their own */
    int *unit_pieces; /* what its gathers send: pieces, or their copies in the compute type */
    int *unit_values; /* where its gathers go; ZeRO 3: of the list that is compiled next */
    bool *unit_used;  /* ZeRO 3: a list has taken unit_values */
    bool *unit_waits; /* a list has added to its gradients, which are still to be scattered */
    int *unit_tree;   /* by unit: its nodes of the canonical tree, -1 */
    int group_of[AXES_ALL + 1]; /* groups.c: 1 + the group over a set of axes, 0: nobody has asked; -1: alone */
    int all_grads, all_params, all_copies, all_m, all_v, blocks;
};

/* plan_compile of a training program for its space_bytes alone: what takes longest, and the arena, are left out.
 * `order` is the job's. */
NODISCARD err_t compile_sizes(const struct job_spec *job, const struct graph *g, const struct pipeline_order *order,
                              int rank, struct program *ret, struct why *why);

/* A range of ops, which actions name. */
struct op_range {
    int first, n;
};

/* ---- groups.c ---- */

/* This rank's group over a set of axes. Every rank's list has the groups of all ranks in the same order, as
 * comm_group_new wants them; only the index differs. -1: the rank would be alone. */
int compile_group(struct compiler *c, unsigned axes);
/* Those of the tp group that hold parameter t's box with this rank (key-value heads); -1: nobody else does. */
int compile_group_tp_box(struct compiler *c, int t);
/* Those of the pp group that use parameter t (a tied head); -1: nobody else does. */
int compile_group_stages(struct compiler *c, int t);

static inline struct graph_dim dim_one(int64_t n)
{
    return (struct graph_dim){SYM_ONE, n};
}

static inline struct graph_dim dim_tokens(int64_t per_token)
{
    return (struct graph_dim){SYM_TOKENS, per_token};
}

/* A new op on the compute stream without operands, waits or event; valid until the next call. */
struct op *compile_op(struct compiler *c, enum op_kind kind, int node);
void compile_action(struct compiler *c, struct action a, struct op_range ops);
/* Adds a buffer and works out its bytes from dims and dtype, unless they are given. -1 after a failure. */
int compile_buffer(struct compiler *c, const struct buffer *b);
/* Room for what buffer b has, of one instance, in SPACE_SENT; `index` makes its name. */
int compile_sent_buffer(struct compiler *c, int b, int index);
/* A buffer for a graph tensor in SPACE_WORK; suffix "" or ".grad". */
int compile_work_buffer(struct compiler *c, int tensor, const char *suffix);

static inline void op_arg(struct op *op, int i, int buffer)
{
    op->arg[i].buffer = buffer;
}

/* The buffer with tensor t's value in the type that is computed in: a parameter or its copy, an input, an activation, a
 * statistic; -1 for an absent one. */
int compile_value(const struct compiler *c, int t);

/* ---- tensor.c: the part of a tensor that this rank has, and what brings parts together ---- */

static inline int tp_size(const struct compiler *c)
{
    return c->p->mesh.size[AXIS_TP];
}

static inline int tp_index(const struct compiler *c)
{
    return c->p->sharding.coord[AXIS_TP];
}

/* Whether t is cut by tokens: an activation or statistic that the model does not cut, under sequence parallelism. */
bool tp_is_own(const struct compiler *c, int t);
/* Dimension d of tensor t here. */
struct graph_dim tp_local_dim(const struct compiler *c, int t, int d);
/* Row length of a matrix here; 1 for a vector. */
int64_t tp_cols(const struct compiler *c, int t);
/* Rows of an activation: own tokens or all of this rank's. */
struct graph_dim tp_rows(const struct compiler *c, int t);
/* Of `all` heads whose columns t has, those that are here. */
int64_t tp_heads(const struct compiler *c, int t, int64_t all);
/* Where column `col` of the whole tensor, the first of one of its segments, begins here. */
int64_t tp_col(const struct compiler *c, int t, int64_t col);

/* How tensor parallelism cuts a product's weight: each rank has all of the result's columns, or some of them, or a
 * share of all of them, from its columns of x. */
enum linear_cut { LINEAR_WHOLE, LINEAR_BY_OUT, LINEAR_BY_IN };
enum linear_cut tp_linear_cut(const struct compiler *c, int node);
/* The rows of table t's vocabulary that are here, for an op; nothing to say where all are. */
void tp_set_vocab(const struct compiler *c, struct op *op, int t);

/* A buffer for this rank's share of t, a sum over tp on all tokens. */
int tp_new_share(struct compiler *c, int t, const char *suffix);
/* Whether a buffer has been made for shares: once they are summed nobody writes over it. */
bool tp_is_share(const struct compiler *c, int buffer);
/* The sum of the group's shares as t is held: own tokens, in a new buffer, or all of them, in place. */
int tp_sum_shares(struct compiler *c, int t, int share, const char *suffix);
/* `own` is laid out like t: all tokens of it, `own` itself where they are all here. */
int tp_gather_tokens(struct compiler *c, int t, int own, const char *suffix);
/* The value of t on all tokens; one gather of it in a list. */
int tp_all_tokens(struct compiler *c, int t);
/* A collective on the communication stream, over the rank's group on these axes. */
struct op *compile_collective(struct compiler *c, enum op_kind kind, int node, unsigned axes);

/* ---- pitch.c ---- */

/* Fills c->pitched, once the nodes' uses are counted. */
void pitch_find(struct compiler *c);
/* Elements from a row of activation t, or of its gradient, to the next: the row length where rows are dense. */
int64_t pitch_of(const struct compiler *c, int t);

/* ---- overlap.c ---- */

/* Whether product i takes the own tokens of the tp group's members as they come; the first product that takes them is
 * emitted together with all others of the forward, so for these nothing is done. */
bool async_tp_overlaps_gather(const struct compiler *c, int i);
void async_tp_emit_gather(struct compiler *c, int i);
/* Whether of product i some columns are summed while the next are computed; with its sum. Returns the sum's buffer. */
bool async_tp_overlaps_sum(const struct compiler *c, int i);
int async_tp_emit_sum(struct compiler *c, int i);

/* ---- ring.c ---- */

/* Fills program.segments and own_seq. */
void cp_init_segments(struct compiler *c);
/* The tokens of segment s as the op's rows, with their positions; without cp all tokens. */
void cp_set_segment(const struct compiler *c, struct op *op, int s);
/* Elements in front of segment s where a token has `per_token`. */
struct graph_dim cp_segment_offset(const struct compiler *c, int s, int64_t per_token);
/* What an op of attention has in common forward and backward, ring or not. */
struct op *cp_attention_op(struct compiler *c, enum op_kind kind, int node);
/* Attention with keys and values that travel. The gradients go to d_in of q, k and v. */
void cp_emit_attention(struct compiler *c, int node);
void cp_emit_attention_grad(struct compiler *c, int node, int d_o, const int d_in[3]);

/* forward.c: product i of x into y, all of it; aux, where it does the work of the GELU behind it, else -1. Valid until
 * the next op. New buffers for y and aux. */
struct op *compile_product(struct compiler *c, int i, int x, int y, int aux);
void compile_product_buffers(struct compiler *c, int i, int *ret_y, int *ret_aux);

/* Whether a consumer may write into t's buffer: nobody else reads t, and its producer's backward does not either. */
bool compile_may_overwrite(const struct compiler *c, int t);

/* Node i is a linear. The GELU that alone reads what it makes, or that alone makes what it reads for nobody else: the
 * product does the GELU's work (OPF_GELU, OPF_GELU_GRAD), and the GELU's own rule emits nothing. -1: there is none. */
int compile_gelu_behind(const struct compiler *c, int i);
int compile_gelu_before(const struct compiler *c, int i);

/* The nodes of one chunk, appended to the program's ops. An activation that comes from another stage has its buffer in
 * c->act before; every gradient of what goes to another has its in c->grad. */
void compile_forward(struct compiler *c, struct sharding_stage nodes);
void compile_backward(struct compiler *c, struct sharding_stage nodes, enum pass_half half);
/* The whole gradient of activation t in its own layout, shares summed: what its producer, or another stage, takes. */
int compile_take_grad(struct compiler *c, int t);

/* Whether dropout does anything in this program; its op for node i, forward or backward. */
bool compile_drops(const struct compiler *c);
void compile_dropout(struct compiler *c, int i, int from, int to);

/* The node that makes t anew, with what is done in place behind it (rope) or together with it (GELU). */
int compile_producer(const struct compiler *c, int t);
/* Such a node's forward once more, into new buffers (c->act changes); its inputs are there. A norm starts from the sum
 * that it made, where that is not given up. */
void compile_node_again(struct compiler *c, int maker);

/* recompute.c: what the job's policy gives up of what these nodes make, for the backward that begins; whether the value
 * of t is given up still; its making again, before a backward rule asks for it, with all that it is made of. */
void recompute_discard(struct compiler *c, struct sharding_stage nodes);
bool recompute_discarded(const struct compiler *c, int t);
void recompute_emit(struct compiler *c, int node);

/* units.c. The stage that has an effect: 0 where nobody shares the shards. */
int zero_stage(const struct compiler *c);
/* Whether every microbatch's gradients are scattered, so that local ones live for one backward only (ZeRO 2 and 3,
 * unless canonical). Then later backwards write them as the first does: only their scatters add. */
bool zero_scatters(const struct compiler *c);
/* Rewrites the list at the end of the program's ops: in front of the first use of a unit's parameters, and
 * parallel.prefetch units ahead, its gather (ZeRO 3); behind the last touch of a unit's gradients their scatter, where
 * zero_scatters (`again`: it adds). `backward`: the list completes gradients (not the half for inputs). A list that
 * is a copy of one that has been rewritten gets `again` only. Called for forward lists too, in every mode. */
struct op_range zero_rewrite_list(struct compiler *c, struct op_range list, bool backward, bool again);
/* What a rank of the fsdp group does that has no microbatch where others have one: the gathers and scatters of a
 * rewritten list, from zeroed gradients. An action without a microbatch. */
struct op_range zero_join_list(struct compiler *c, struct op_range list);
/* How often this rank does so or has a microbatch: as often as the rank of its fsdp group with most microbatches, where
 * lists gather or scatter; else its own. */
int zero_rounds(const struct compiler *c);
/* Forgets all ops from `ops` on but the `n` ranges, which move there, and the buffers from `buffers` on that these do
 * not need: what a rank without microbatches has compiled to know what it joins. */
void zero_keep_ranges(struct compiler *c, int ops, int buffers, struct op_range *const ranges[], int n);
/* The unit's gradients to its pieces'. */
void zero_emit_scatter(struct compiler *c, int unit, bool add);
/* Behind the begin: ZeRO 1 and 2 gather all units. */
void zero_emit_gathers(struct compiler *c);

/* What a step does once, behind its microbatches; the groups that it and zero_rewrite_list may need, on every rank. */
void step_end_groups(struct compiler *c);
void step_end_reduce(struct compiler *c);
void step_end_norm(struct compiler *c);
void step_end_update(struct compiler *c);
void step_end_snapshot(struct compiler *c);

/* save.c: the sum of what the rank saves, every item at 64 bytes. */
NODISCARD err_t plan_arena_bytes(const struct program *p, const struct graph *g, int64_t *ret);

/* ZeRO 3: new buffers for the gathered parameters of a unit, in c->value and c->unit_values. */
void compile_gathered_params(struct compiler *c, int unit);
/* buffers.c: everything that does not depend on life times; SPACE_WORK begins with what may never be reused. */
void compile_buffers(struct compiler *c);

/* ---- pipeline.c ---- */

/* The order in which the ranks of a replica's pipeline work, of a job in a mode: as many microbatches as the replica
 * with most has. Freed by schedule_fini. */
NODISCARD err_t pipeline_schedule(const struct job_spec *job, const struct mesh *mesh, enum program_mode mode,
                                  struct schedule *ret, struct why *why);
/* The caller keeps nothing alive for it. Freed by pipeline_order_fini. */
NODISCARD err_t pipeline_order_init(const struct job_spec *job, enum program_mode mode, struct pipeline_order *ret,
                                    struct why *why);
void pipeline_order_fini(struct pipeline_order *o); /* legal on a zeroed one */
/* The graph with its stages cut apart: where a norm would add what two layers of different stages have made, the
 * earlier stage adds (a node behind all others), so that one tensor goes from each stage to the next. A copy of the
 * nodes, freed by the caller. ERR_INVALID where the model cannot be cut so. */
NODISCARD err_t stages_cut_graph(const struct graph *g, const struct sharding *p, struct graph *ret, struct why *why);
/* Who has which slot when; before compile_buffers. */
void pipeline_init(struct compiler *c);
/* The lists of this rank's chunks, and the actions of all its microbatches. */
void pipeline_emit(struct compiler *c);
void pipeline_fini(struct compiler *c);

/* Places the buffers of SPACE_WORK and SPACE_GRAD that live shorter than the job, in the order of the program's
 * actions; sets space_bytes. */
void memory_plan_place(struct compiler *c);
/* Gives every op that another stream's op must wait for an event, and that one the wait, over two steps. */
void events_assign(struct compiler *c);

#endif
