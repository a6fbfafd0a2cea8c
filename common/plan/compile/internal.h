/* The compiler's own functions, grouped by the file that defines them. Only common/plan/compile includes this header.
 *
 *   compile.c            the driver, which runs the passes         groups.c           groups of ranks
 *   mesh.c               the mesh of a job                         buffers.c          long-lived buffers
 *   forward.c            forward rules of the operators            recompute.c        activation recomputation
 *   backward.c           backward rules, whole or split            async_tp.c         overlapped matmuls
 *   tensor_parallel.c    sharded tensors, their collectives        pitch.c            matrices with padded rows
 *   context_parallel.c   ring attention                            step_end.c         reduce, norm, clip, update
 *   zero.c               ZeRO's gathers and scatters               pipeline.c         slots of a schedule as actions
 *   stages.c             stages of the graph, lists of a chunk     memory_plan.c      offsets by lifetime
 *   pipeline_exchange.c  messages between two slots                events.c           events between streams
 *   experts.c            routers, and the products of experts
 *   dispatch.c           rows of experts, from the tokens to their sums
 *   borrow.c             experts of other ranks, for balance
 *
 * Order of the passes:
 *
 *   sharding_init -> stages_cut_graph -> pipeline_init -> compile_buffers
 *     -> pipeline_emit: for each chunk compile_forward, compile_backward -> zero_rewrite_list; then actions
 *     -> step_end_reduce, step_end_norm, step_end_update, step_end_snapshot
 *     -> memory_plan_place -> events_assign
 *
 * compile_forward and compile_backward append ops to the program; an action names a range of them. Offsets and events
 * follow from the finished list of actions, so no operator's rule has to care about either. */
#ifndef DTD_COMMON_PLAN_COMPILE_INTERNAL_H
#define DTD_COMMON_PLAN_COMPILE_INTERNAL_H

#include "common/plan/compile/compile.h"

#define AXES_DATA (1u << AXIS_DP | 1u << AXIS_FSDP) /* ranks with different microbatches */
#define AXES_ALL ((1u << AXIS_COUNT) - 1)

/* A whole backward, or one of its halves. The half for inputs leaves in weight_dy what the half for weights reads. */
enum pass_half { PASS_WHOLE, PASS_INPUTS, PASS_WEIGHTS };

/* One compilation of one rank. "list" is the list of ops that is being emitted. Arrays are indexed by graph tensor
 * where nothing else is stated, and -1 means "none". */
struct compiler {
    /* Given by the caller. */
    const struct job_spec *job;
    const struct graph *g;
    const struct pipeline_order *order;
    struct program *p;
    struct why *why;
    bool sizes_only; /* the program will not be run: no events, and no groups without this rank */

    /* Growth and failure. */
    int cap_buffers, cap_ops, cap_actions;
    err_t err;      /* the first failure; every function returns without effect after it */
    struct op sink; /* what compile_op returns after a failure */

    /* The graph, read backwards. */
    int *consumers; /* number of nodes that read the tensor; rope, which works in place, does not count */
    int *producer;  /* the last node that writes it: the rope that rotates it in place, else the node that makes it */
    int head, head_end; /* decoding: the last linear node, which reads the last row of each run, and the end of the
                         * nodes after it; else head is head_end */
    int *reader;        /* a node that reads it; the only one where consumers is 1 */

    /* Values and gradients: buffers. */
    int *act;           /* of an activation or statistic */
    int *grad;          /* of its gradient, from the first consumer's backward until its producer's */
    int *value;         /* of a parameter, as ops read it: its own buffer, its copy in the compute type, or the gathered
                         * local tensor; with ZeRO 3 of the next list to be compiled */
    int *piece_grad;    /* of the gradient that the update reads, where that has its own buffer (ZeRO); -1: the rows of
                         * this rank's piece in grad_buffer */
    bool *grad_started; /* this backward has written the parameter's gradient */
    bool *discarded;    /* recompute.c: the value does not exist in this backward until recompute_emit makes it */
    bool *pitched;      /* pitch.c: rows of the tensor and of its gradient are padded */
    int *home;          /* by node, with expert parallelism: the home rows that a combine has summed or a dispatch has
                         * sent; their gradients, in the backward of rounds */
    int round;          /* dispatch.c: the round that is being emitted; 0: none */
    int *weight_dy;     /* by node: the dy that the second half of a split backward multiplies with */
    enum pass_half half; /* of the backward that is being emitted */

    /* Tensor and sequence parallelism. With tp > 1 and parallel.sp an activation that the model does not cut is
     * sharded by tokens: a rank has SYM_OWN rows of it, its own tokens. */
    bool own;                      /* the job shards such activations by tokens */
    bool async;                    /* parallel.async_tp: matmuls overlap their collectives */
    struct sharding_stage forward; /* the nodes whose forward is being emitted; empty in a backward */
    int *parts;      /* async_tp.c, by member of the tp group or by part: a buffer of the current matmul */
    int *full;       /* an activation that is sharded by tokens, gathered in this list */
    int *shares;     /* its gradient on all tokens, this rank's share of a sum over tp */
    bool *tp_shares; /* a parameter's gradient is a share of a sum over tp: it was computed from own
                      * tokens, or from some of the query heads of a key-value head. Set by backward.c,
                      * read by step_end.c */

    /* Pipelines. */
    struct pipeline *pipeline; /* pipeline.c */
    int input_slots;           /* instances of ids, targets and rows: one per slot, or with several chunks one per
                                * microbatch */
    enum slot_index input_index;

    /* Parameters by FSDP unit. This rank holds the parameters held[held_from[u]] to held[held_from[u + 1] - 1] of u. */
    int *held, *held_from;
    int *unit_run;    /* the run of all gradients of local tensors; -1: this rank has nothing of the unit */
    int *unit_grads;  /* the same of pieces, where these have their own gradients */
    int *unit_pieces; /* what a gather sends: pieces, or their copies in the compute type */
    int *unit_values; /* where a gather writes; with ZeRO 3 of the next list to be compiled */
    bool *unit_used;  /* ZeRO 3: a list uses the buffers of unit_values */
    bool *unit_waits; /* a list has added to its gradients, which have not been scattered yet */
    int *unit_tree;   /* its nodes of the canonical tree */

    /* groups.c, by set of axes: 1 + the group; 0: not looked up yet; -1: the rank is alone */
    int group_of[AXES_ALL + 1], group_of_fold[2][AXES_ALL + 1]; /* of fold: of experts, of the rest */
    int all_grads, all_params, all_copies, all_states, all_m, all_v;
    int kept[3]; /* post-validation: what the update overwrites, of params, m and v; -1: none */
    int blocks;  /* of squares, over all parameters as the buffers before it */
};

/* A range of ops, which actions name. */
struct op_range {
    int first, n;
};

static inline struct graph_dim dim_one(int64_t n)
{
    return (struct graph_dim){SYM_ONE, n};
}

static inline struct graph_dim dim_tokens(int64_t per_token)
{
    return (struct graph_dim){SYM_TOKENS, per_token};
}

static inline void op_arg(struct op *op, int i, int buffer)
{
    op->arg[i].buffer = buffer;
}

/* ---- compile.c ---- */

/* A new op on the compute stream without operands, waits or event; valid until the next call. */
struct op *compile_op(struct compiler *c, enum op_kind kind, int node);
void compile_action(struct compiler *c, struct action a, struct op_range ops);
/* The buffer with tensor t's value in the compute type: of a parameter or its copy, an input, an activation, a
 * statistic; -1 for an absent tensor. */
int compile_value(const struct compiler *c, int t);
/* Whether t's consumer may overwrite t's buffer: it is the only reader, and the backward of t's producer does not read
 * t. */
bool compile_may_overwrite(const struct compiler *c, int t);
/* Fusion of GELU with linear node i: the GELU that is the only reader of i's output, or the GELU that makes i's input
 * for i alone; -1: none. The matmul then does the GELU's work (OPF_GELU, OPF_GELU_GRAD), and the GELU emits no op. */
int compile_gelu_after(const struct compiler *c, int i);
int compile_gelu_before(const struct compiler *c, int i);

/* Post-validation: how many of this rank's slots run ahead of the step before; 0: none, or the job does not use it. */
int compile_ahead(const struct compiler *c);
/* Adds the action that zeroes sums at the start of a step, after the slots that run ahead. */
void compile_zeroes(struct compiler *c);

/* Decoding: whether t has a row for each run instead of each token. */
bool compile_of_runs(const struct compiler *c, int t);

/* Whether a unit holds experts: their matrices have units of their own. The same on all ranks. */
bool compile_unit_of_experts(const struct compiler *c, int unit);

/* ---- groups.c ---- */

/* This rank's group over a set of axes; -1: the rank would be alone. comm_group_new needs the same list of groups on
 * every rank, so the call adds the groups of all ranks over these axes. */
int compile_group(struct compiler *c, unsigned axes);
/* The ranks of the tp group that hold the same box of parameter t (shared key-value heads); -1: only this one. */
int compile_group_tp_box(struct compiler *c, int t);
/* The ranks of the pp group whose stages use parameter t (a tied head); -1: only this one. */
int compile_group_stages(struct compiler *c, int t);
/* This rank's group of expert parallelism; -1: none. */
int compile_group_experts(struct compiler *c);
/* The ranks that differ from this one on `axes` and have the same experts; -1: only this one. */
int compile_group_rest(struct compiler *c, unsigned axes);
/* A collective on the communication stream, over this rank's group on `axes`, or of expert parallelism. */
struct op *compile_collective(struct compiler *c, enum op_kind kind, int node, unsigned axes);
struct op *compile_collective_experts(struct compiler *c, enum op_kind kind, int node);

/* ---- buffers.c ---- */

/* Adds a buffer; computes its bytes from dims and dtype where they are 0. -1 after a failure. */
int compile_buffer(struct compiler *c, const struct buffer *b);
/* A buffer for a graph tensor in SPACE_WORK; suffix "" or ".grad". */
int compile_work_buffer(struct compiler *c, int tensor, const char *suffix);
/* The same with another type of element. */
int compile_typed_buffer(struct compiler *c, int tensor, const char *suffix, enum dtype dtype);
/* Decoding: a cache of input `in`, keys or values, of attention `node`. */
int compile_cache(struct compiler *c, int node, int in, const char *name);
/* A buffer in SPACE_SENT as large as one instance of buffer b; its name is "sent.<index>". */
int compile_sent_buffer(struct compiler *c, int b, int index);
/* ZeRO 3: new buffers for the gathered parameters of a unit, in c->value and c->unit_values. */
void compile_gathered_params(struct compiler *c, int unit);
/* All buffers that do not depend on lifetimes. In SPACE_WORK they come first, and their bytes are never reused. */
void compile_buffers(struct compiler *c);

/* ---- tensor_parallel.c ---- */

static inline int tp_size(const struct compiler *c)
{
    return c->p->mesh.size[AXIS_TP];
}

static inline int tp_index(const struct compiler *c)
{
    return c->p->sharding.coord[AXIS_TP];
}

/* How tensor parallelism cuts the weight of a linear: not at all, by output features (the result has some of the
 * columns), or by input features (the result is a share of a sum, from some of the columns of x). */
enum linear_cut { LINEAR_WHOLE, LINEAR_BY_OUT, LINEAR_BY_IN };
enum linear_cut tp_linear_cut(const struct compiler *c, int node);

/* Whether t is sharded by tokens: an activation or statistic that the model does not cut, under sequence parallelism.
 */
bool tp_is_own(const struct compiler *c, int t);
/* Whether t has the rows that arrived for this rank's experts, with expert parallelism. */
bool tp_is_arrived(const struct compiler *c, int t);
/* Extent of dimension d of tensor t on this rank. */
struct graph_dim tp_local_dim(const struct compiler *c, int t, int d);
/* Row length of a matrix on this rank; 1 for a vector. */
int64_t tp_cols(const struct compiler *c, int t);
/* Rows of an activation on this rank, one per own token, or per token of its part of the sequence; of the rows of
 * experts as many as a token chooses. */
struct graph_dim tp_rows(const struct compiler *c, int t);
/* Of `all` heads in the columns of t, the number on this rank. */
int64_t tp_heads(const struct compiler *c, int t, int64_t all);
/* Sets the op's rows and columns to those of norm i: tokens and all columns, or, where the norm is over heads, the
 * local heads of all tokens and the columns of one. */
void tp_set_norm(const struct compiler *c, struct op *op, int i);
/* Whether node i is a norm of all columns of a token, of which this rank has some. */
bool tp_norm_is_cut(const struct compiler *c, int i);
/* Whether this rank is the first of those that have its columns of t. */
bool tp_counts(const struct compiler *c, int t);
/* forward.c: the sums over all ranks, f64 for each token, of the squares of x, the input of node i, a norm; or, with
 * `dy` >= 0, the gradient of its result, of x times dy times the factors. */
int compile_row_dots(struct compiler *c, int i, int x, int dy);
/* The local column at which column `col` of the whole tensor begins; `col` is the first of one of its segments. */
int64_t tp_col(const struct compiler *c, int t, int64_t col);
/* Sets the op's range of vocabulary rows to those of table t on this rank; leaves it 0 where the rank has all. */
void tp_set_vocab(const struct compiler *c, struct op *op, int t);

/* A buffer for this rank's share of t, a sum over tp, on all tokens. */
int tp_new_share(struct compiler *c, int t, const char *suffix);
/* Whether a buffer was made for a share. Only the sum may be written over a share. */
bool tp_is_share(const struct compiler *c, int buffer);
/* Emits the sum of the group's shares, sharded like t: own tokens in a new buffer, or all tokens in place. */
int tp_sum_shares(struct compiler *c, int t, int share, const char *suffix);
/* Emits the all-gather of buffer `own`, which is sharded like t. Returns a buffer with all tokens; `own` itself where
 * it has them. */
int tp_gather_tokens(struct compiler *c, int t, int own, const char *suffix);
/* The value of t on all tokens. A list gathers it once. */
int tp_all_tokens(struct compiler *c, int t);

/* ---- async_tp.c ---- */

/* Whether linear i multiplies the tokens of each member of the tp group as they arrive. The first linear that reads an
 * input emits the ring and the matmuls of all linears that read it; the call for the others emits nothing. */
bool async_tp_overlaps_gather(const struct compiler *c, int i);
void async_tp_emit_gather(struct compiler *c, int i);
/* Whether linear i overlaps its all-reduce column block by column block. async_tp_emit_sum emits matmul and sum and
 * returns the sum's buffer. */
bool async_tp_overlaps_sum(const struct compiler *c, int i);
int async_tp_emit_sum(struct compiler *c, int i);

/* ---- context_parallel.c ---- */

/* Fills program.segments and own_seq. */
void cp_init_segments(struct compiler *c);
/* Sets the op's rows and positions to the tokens of segment s; without cp to all tokens. */
void cp_set_segment(const struct compiler *c, struct op *op, int s);
/* Elements before segment s in a buffer with `per_token` elements a token. */
struct graph_dim cp_segment_offset(const struct compiler *c, int s, int64_t per_token);
/* An op of attention with the fields that forward and backward share, with a ring or without. */
struct op *cp_attention_op(struct compiler *c, enum op_kind kind, int node);
/* Ring attention: keys and values travel. The gradients of q, k and v go to the buffers d_in. */
void cp_emit_attention(struct compiler *c, int node);
void cp_emit_attention_grad(struct compiler *c, int node, int d_o, const int d_in[3]);

/* ---- pitch.c ---- */

/* Fills c->pitched, after the uses of all tensors are counted. */
void pitch_find(struct compiler *c);
/* Elements from one row of activation t, or of its gradient, to the next; the row length where rows are dense. */
int64_t pitch_of(const struct compiler *c, int t);

/* ---- forward.c ---- */

/* Emits the forward of a chunk's nodes. Before the call c->act has the buffer of the activation that comes from another
 * stage. */
void compile_forward(struct compiler *c, struct sharding_stage nodes);
/* Emits the forward of a node. */
void compile_node(struct compiler *c, int node);
/* Emits the whole matmul of linear i: y = x W; `aux` receives the input of a fused GELU, else -1. Valid until the next
 * op. */
struct op *compile_product(struct compiler *c, int i, int x, int y, int aux);
/* New buffers for y and aux of linear i. */
void compile_product_buffers(struct compiler *c, int i, int *ret_y, int *ret_aux);
/* Whether the program applies dropout; the op of node i, forward or backward. */
bool compile_drops(const struct compiler *c);
void compile_dropout(struct compiler *c, int i, int from, int to);
/* The node that computes t, together with what follows in place (rope) or is fused into it (GELU). */
int compile_producer(const struct compiler *c, int t);
/* Emits the forward of such a node once more, into new buffers (c->act changes). Its inputs must exist. A norm starts
 * from its sum where that has not been discarded. */
void compile_node_again(struct compiler *c, int node);

/* Sets operand i to the batch index of each row of t. */
void compile_op_rows(struct compiler *c, struct op *op, int i, int t);
/* From here on the value of t is in `buffer`, which is returned. */
int compile_set_value(struct compiler *c, int t, int buffer);
/* A new buffer for the value of t; -1 for an absent tensor. */
int compile_new_value(struct compiler *c, int t);

/* ---- experts.c: rules of the operators of a mixture of experts ---- */

/* An op of router i on the rows of `tokens`. */
struct op *experts_router_op(struct compiler *c, int i, enum op_kind kind, int tokens);
/* Whether the ranks of tp, which have all tokens, divide them among them for the experts: with expert parallelism and
 * without sequence parallelism. */
bool experts_divide_tokens(const struct compiler *c);
/* Whether ranks with other microbatches exchange rows: expert parallelism is folded over fsdp. */
bool experts_cross_micros(const struct compiler *c);
/* Elements before the numbers of router `node` in the buffer of all. */
int64_t experts_totals_before(const struct compiler *c, int node);
void experts_route(struct compiler *c, int node, enum op_kind kind);
void experts_drop(struct compiler *c, int node, enum op_kind kind);
void experts_dispatch(struct compiler *c, int node, enum op_kind kind);
void experts_product(struct compiler *c, int node, enum op_kind kind);
void experts_combine(struct compiler *c, int node, enum op_kind kind);
void experts_gate(struct compiler *c, int node, enum op_kind kind);
void experts_route_grad(struct compiler *c, int node, enum op_kind kind);
void experts_dispatch_grad(struct compiler *c, int node, enum op_kind kind);
void experts_product_grad(struct compiler *c, int node, enum op_kind kind);
void experts_combine_grad(struct compiler *c, int node, enum op_kind kind);
void experts_gate_grad(struct compiler *c, int node, enum op_kind kind);
/* The weight gradient of a product whose dy is given. */
void experts_weight_grad(struct compiler *c, int node, int dy);
/* Whether experts with a capacity drop choices: in training and evaluation. A generator runs a sample that is not
 * complete, so it computes all choices. */
bool experts_have_limits(const struct compiler *c);
/* Whether routers add to the numbers of the step: in training, where the model has experts. */
bool experts_count(const struct compiler *c);

/* ---- dispatch.c ---- */

/* Sets max_arrived, rounds and balance of the program. */
void dispatch_init(struct compiler *c);
/* Whether node i belongs to rounds, so that the rule of its combine emits it, in each of them. */
bool dispatch_waits(const struct compiler *c, int i);

/* ---- borrow.c: experts of other ranks, where every rank computes equally many rows ---- */

/* Experts that this rank may borrow; 0 without balance. */
int64_t borrow_slots(const struct compiler *c, int64_t experts);
/* Of product i: a new buffer with the matrices of borrowed experts; -1 without balance. */
int borrow_matrices(struct compiler *c, int i);
/* Of product i: a new buffer for the gradients of borrowed experts; -1 without balance. Once they are computed,
 * borrow_give_back adds them to those of the ranks that have the experts. */
int borrow_gradients(struct compiler *c, int i);
void borrow_give_back(struct compiler *c, int i, int gradients);

/* ---- backward.c ---- */

/* Emits the backward of a node. */
void compile_node_backward(struct compiler *c, int node);
/* The value of t from the forward, computed again where it was discarded. */
int compile_forward_value(struct compiler *c, int t);
/* Adds one consumer's part of t's gradient, in `buffer`. */
void compile_add_gradient(struct compiler *c, int t, int buffer);
/* Whether `buffer`, a gradient, has no other user. */
bool compile_grad_may_overwrite(const struct compiler *c, int buffer);
/* Marks the gradient of parameter t as a share over tp where it is one; own_tokens: it was computed from own tokens. */
void compile_mark_shares(struct compiler *c, int t, bool own_tokens);

/* Emits the backward of a chunk's nodes. Before the call c->grad has the buffer of every gradient that comes from
 * another stage. */
void compile_backward(struct compiler *c, struct sharding_stage nodes, enum pass_half half);
/* Removes the gradient of activation t from c->grad and returns its buffer, sharded like t and with all shares summed.
 * t's producer calls it, or the end of a stage. */
int compile_take_grad(struct compiler *c, int t);

/* ---- recompute.c ---- */

/* At the start of a backward: marks the values of these nodes that the job's policy discards. */
void recompute_discard(struct compiler *c, struct sharding_stage nodes);
/* Whether the value of t is discarded and has not been computed again. */
bool recompute_discarded(const struct compiler *c, int t);
/* The outputs of a node, which was emitted again, exist for the rest of the backward. */
void recompute_keep(struct compiler *c, int node);
/* Emits the forward of a node again, after everything discarded that it reads. */
void recompute_emit(struct compiler *c, int node);

/* ---- zero.c ---- */

/* parallel.zero where it has an effect; 0 where the fsdp group has one rank. */
int zero_stage(const struct compiler *c);
/* Whether ZeRO divides the tensors of a unit: not those of experts, where expert parallelism is folded over all of
 * fsdp. Their parameters, gradients and moments are local tensors, as without ZeRO. */
bool zero_divides(const struct compiler *c, int unit);
/* Whether the gradients of every microbatch are scattered (ZeRO 2 and 3, unless canonical). Local gradients then live
 * for one backward: each backward writes them, and only the scatters of later microbatches add. */
bool zero_scatters(const struct compiler *c);
/* Rewrites `list`, the last ops of the program. Inserts a gather before the first use of a unit's parameters,
 * parallel.prefetch units ahead (ZeRO 3), and a scatter after the last write of a unit's gradients (zero_scatters;
 * `again`: it adds). `backward`: the list completes gradients, so it is not the half for inputs. A copy of a rewritten
 * list only gets `again`. Called for the lists of all modes. */
struct op_range zero_rewrite_list(struct compiler *c, struct op_range list, bool backward, bool again);
/* What a rank without a microbatch runs where other ranks of its fsdp group have one: the gathers and scatters of a
 * rewritten list, from zeroed gradients. */
struct op_range zero_join_list(struct compiler *c, struct op_range list);
/* How often this rank runs or joins a list: the microbatches of the rank of its fsdp group with most, where lists
 * gather or scatter; else its own. */
int zero_rounds(const struct compiler *c);
/* Removes the ops from `ops` on except the `n` ranges, which move there, and the buffers from `buffers` on that these
 * do not need. A rank without microbatches compiles lists only to derive what it joins. */
void zero_keep_ranges(struct compiler *c, int ops, int buffers, struct op_range *const ranges[], int n);
/* Sums the unit's local gradients into the gradients of the pieces. */
void zero_emit_scatter(struct compiler *c, int unit, bool add);
/* After the begin action: ZeRO 1 and 2 gather all units. */
void zero_emit_gathers(struct compiler *c);

/* ---- step_end.c ---- */

/* Adds the groups that the end of a step and zero.c may need, in the same order on every rank. */
void step_end_groups(struct compiler *c);
void step_end_reduce(struct compiler *c);
void step_end_norm(struct compiler *c);
void step_end_update(struct compiler *c);
void step_end_restore(struct compiler *c);
void step_end_snapshot(struct compiler *c);

/* ---- stages.c ---- */

/* Cuts the graph between stages. Where a norm would add outputs of layers of two stages, the earlier stage adds them (a
 * node after all others), so that one tensor passes from each stage to the next. `ret` has a copy of the nodes, which
 * the caller frees. ERR_INVALID where more than one tensor would pass. */
NODISCARD err_t stages_cut_graph(const struct graph *g, const struct sharding *p, struct graph *ret, struct why *why);

/* ---- pipeline.c ---- */

/* The schedule of a job's pipeline in a mode, with the microbatches of the replica that has most. Freed by
 * schedule_fini. */
NODISCARD err_t pipeline_schedule(const struct job_spec *job, const struct mesh *mesh, enum program_mode mode,
                                  struct schedule *ret, struct why *why);
/* Assigns the instances that microbatches use; before compile_buffers. */
void pipeline_init(struct compiler *c);
/* Emits the lists of this rank's chunks and the actions of all its microbatches. */
void pipeline_emit(struct compiler *c);
void pipeline_fini(struct compiler *c);

/* ---- memory_plan.c ---- */

/* Assigns offsets to the buffers of SPACE_WORK and SPACE_GRAD that live shorter than the job, by their lifetimes in the
 * order of actions; sets space_bytes. */
void memory_plan_place(struct compiler *c);

/* ---- events.c ---- */

/* Gives an event to every op that an op of another stream must wait for, and the wait to that op, over two steps. */
void events_assign(struct compiler *c);

#endif
