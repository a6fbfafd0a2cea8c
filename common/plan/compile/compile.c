/* The driver of the compiler: sets up the tables of one rank, then runs each pass in order (internal.h).
 *
 * Microbatch i is samples [i b, (i+1) b) of the global batch, whichever rank it runs on, and data ranks (dp x fsdp) get
 * contiguous ranges of microbatches. The leaves of the gradient's sum are therefore the same for every number of
 * workers. In canonical numerics each leaf is computed separately and added to a fixed tree; otherwise a rank adds its
 * microbatches in place, and the ranks' sums are reduced.
 *
 * All microbatches share the ops of their forward and backward; only the actions differ (pipeline.c). */
#include "common/plan/compile/internal.h"
#include "common/plan/mutant.h"

#include <stdlib.h>
#include <string.h>

/* ---- ops and actions ---- */

static void op_clear(struct op *op, enum op_kind kind, int node)
{
    memset(op, 0, sizeof(*op));
    op->kind = kind;
    op->node = node;
    op->layer = op->group = op->event = -1;
    op->m = op->n = op->k = dim_one(1);
    for (int i = 0; i < OP_MAX_OPERANDS; i++)
        op->arg[i].buffer = -1;
    for (int i = 0; i < OP_MAX_WAITS; i++)
        op->wait[i] = -1;
}

struct op *compile_op(struct compiler *c, enum op_kind kind, int node)
{
    struct program *p = c->p;
    if (!c->err && p->n_ops == c->cap_ops) {
        int cap = c->cap_ops ? 2 * c->cap_ops : 256;
        struct op *grown = realloc(p->ops, (size_t)cap * sizeof(*grown));
        if (grown) {
            p->ops = grown;
            c->cap_ops = cap;
        } else {
            c->err = ERR_NOMEM;
        }
    }
    struct op *op = c->err ? &c->sink : &p->ops[p->n_ops++];
    op_clear(op, kind, node);
    if (node >= 0)
        op->layer = c->g->nodes[node].layer;
    op->round = c->round;
    return op;
}

void compile_action(struct compiler *c, struct action a, struct op_range ops)
{
    struct program *p = c->p;
    if (!c->err && p->n_actions == c->cap_actions) {
        int cap = c->cap_actions ? 2 * c->cap_actions : 64;
        struct action *grown = realloc(p->actions, (size_t)cap * sizeof(*grown));
        if (grown) {
            p->actions = grown;
            c->cap_actions = cap;
        } else {
            c->err = ERR_NOMEM;
        }
    }
    if (c->err)
        return;
    a.first_op = ops.first;
    a.n_ops = ops.n;
    p->actions[p->n_actions++] = a;
}

/* ---- queries of the operators' rules ---- */

int compile_value(const struct compiler *c, int t)
{
    if (t < 0)
        return -1;
    switch (c->g->tensors[t].kind) {
    case GT_PARAM:
        return c->value[t];
    case GT_STATE:
        return c->p->param_buffer[t];
    case GT_IDS:
        return c->p->ids_buffer;
    case GT_TARGETS:
        return c->p->targets_buffer;
    case GT_BEGIN:
        return c->p->begin_buffer;
    case GT_ACTIVATION:
    case GT_STAT:
    case GT_INDEX:
    case GT_NUMBERS:
        break;
    }
    return c->act[t];
}

bool compile_may_overwrite(const struct compiler *c, int t)
{
    int producer = c->producer[t];
    if (producer < 0 || c->consumers[t] != 1)
        return false;
    enum graph_op op = c->g->nodes[producer].op;
    return op == GO_LINEAR || op == GO_EMBED || op == GO_ADD || op == GO_POSITIONS || op == GO_DROPOUT ||
           op == GO_SCALE || op == GO_EXPERTS || op == GO_COMBINE ||
           op == GO_GATE; /* their backward does not read their output */
}

/* Tensor t is made by a `from` node, and a `to` node is its only reader. */
static bool only_between(const struct compiler *c, int t, enum graph_op from, enum graph_op to)
{
    return t >= 0 && c->producer[t] >= 0 && c->g->nodes[c->producer[t]].op == from && c->consumers[t] == 1 &&
           c->g->nodes[c->reader[t]].op == to;
}

int compile_gelu_after(const struct compiler *c, int i)
{
    int y = c->g->nodes[i].out[0];
    bool whole = tp_linear_cut(c, i) != LINEAR_BY_IN; /* else y is a share of a sum */
    return whole && only_between(c, y, GO_LINEAR, GO_GELU) ? c->reader[y] : -1;
}

int compile_gelu_before(const struct compiler *c, int i)
{
    int x = c->g->nodes[i].in[0];
    bool whole = tp_linear_cut(c, i) != LINEAR_BY_OUT; /* else x's gradient is a share of a sum */
    return whole && only_between(c, x, GO_GELU, GO_LINEAR) ? c->producer[x] : -1;
}

static void count_uses(struct compiler *c)
{
    for (int i = 0; i < c->g->n_nodes; i++) {
        const struct graph_node *n = &c->g->nodes[i];
        for (int k = 0; k < GRAPH_MAX_IN && n->op != GO_ROPE; k++) {
            if (n->in[k] < 0)
                continue;
            c->consumers[n->in[k]]++;
            c->reader[n->in[k]] = i;
        }
        for (int k = 0; k < GRAPH_MAX_OUT; k++)
            if (n->out[k] >= 0)
                c->producer[n->out[k]] = i;
    }
}

/* The last product and what follows it are computed for the last token of each run alone. */
static void find_head(struct compiler *c)
{
    const int stages = c->p->sharding.n_stages, end = c->g->n_nodes - (stages > 1 ? stages - 1 : 0);
    c->head = c->head_end = end; /* stages_cut_graph adds its nodes behind all others */
    for (int i = end - 1; i >= 0 && c->p->mode == MODE_DECODE && c->head == end; i--)
        c->head = c->g->nodes[i].op == GO_LINEAR ? i : c->head;
}

bool compile_of_runs(const struct compiler *c, int t)
{
    return c->producer[t] >= c->head && c->producer[t] < c->head_end;
}

bool compile_unit_of_experts(const struct compiler *c, int unit)
{
    for (int t = 0; t < c->g->n_tensors; t++)
        if (c->g->tensors[t].kind == GT_PARAM && c->g->tensors[t].unit == unit)
            return c->g->tensors[t].cut.experts;
    return false;
}

/* ---- set-up ---- */

static int *index_new(struct compiler *c, int n)
{
    int *index = malloc((size_t)(n + 1) * sizeof(*index));
    if (!index) {
        c->err = ERR_NOMEM;
        return NULL;
    }
    for (int i = 0; i < n; i++)
        index[i] = -1;
    return index;
}

static void micros_new(struct compiler *c)
{
    struct program *p = c->p;
    const struct job_train *t = &c->job->train;
    const bool generates = mode_generates(p->mode);
    int64_t b = generates ? 1 : t->micro_batch, batch = generates ? 1 : t->global_batch;
    int64_t lo, hi;
    if (p->mode == MODE_DECODE) { /* each token is a sample */
        b = batch = t->global_batch;
        p->sequences = t->micro_batch;
    }
    p->n_micros = (int)((batch + b - 1) / b);
    p->micros = calloc((size_t)p->n_micros, sizeof(*p->micros));
    if (!p->micros) {
        c->err = ERR_NOMEM;
        return;
    }
    for (int i = 0; i < p->n_micros; i++)
        p->micros[i] = (struct micro){i * b, batch - i * b < b ? batch - i * b : b};
    int coord[AXIS_COUNT], ranks = p->mesh.size[AXIS_DP] * p->mesh.size[AXIS_FSDP];
    mesh_coords(&p->mesh, p->rank, coord);
    int index = coord[AXIS_DP] * p->mesh.size[AXIS_FSDP] + coord[AXIS_FSDP];
    layout_split(p->n_micros, generates ? 1 : ranks, generates ? 0 : index, &lo, &hi);
    p->first_micro = (int)lo;
    p->end_micro = (int)hi;
    p->max_samples = p->micros[0].samples;
    p->loss_scale = 1.0 / ((double)batch * (double)p->seq);
    if (MUTANT(LOSS_SCALED_BY_SHARE))
        p->loss_scale *= (double)p->n_micros / (double)(hi - lo > 0 ? hi - lo : 1);
}

static void group_new(struct compiler *c)
{
    struct program *p = c->p;
    int n = mesh_workers(&p->mesh);
    p->groups = calloc(1, sizeof(*p->groups));
    if (!p->groups) {
        c->err = ERR_NOMEM;
        return;
    }
    p->n_groups = 1;
    p->groups[0] = (struct group){.n = n, .ranks = index_new(c, n), .axes = AXES_ALL};
    for (int i = 0; i < n && !c->err; i++)
        p->groups[0].ranks[i] = i;
}

/* The most nodes that any rank keeps, because all ranks must have the same layout. */
static int tree_depth_of_ranks(const struct program *p)
{
    int depth = 0, ranks = p->mesh.size[AXIS_DP] * p->mesh.size[AXIS_FSDP];
    for (int r = 0; r < ranks; r++) {
        int64_t lo, hi;
        layout_split(p->n_micros, ranks, r, &lo, &hi);
        int d = sumtree_depth(p->n_micros, lo, hi);
        depth = d > depth ? d : depth;
    }
    return depth;
}

static bool is_held_param(const struct compiler *c, int t)
{
    return c->g->tensors[t].kind == GT_PARAM && c->p->sharding.param[t].held;
}

/* Counting sort by unit. held_from[u + 2] first counts the parameters of unit u; after the prefix sum, held_from[u + 1]
 * is where the next one of unit u is stored. */
static void held_new(struct compiler *c)
{
    c->held = calloc((size_t)c->g->n_tensors + 1, sizeof(*c->held));
    c->held_from = calloc((size_t)c->g->n_units + 2, sizeof(*c->held_from));
    if (!c->held || !c->held_from) {
        c->err = ERR_NOMEM;
        return;
    }
    for (int t = 0; t < c->g->n_tensors; t++)
        if (is_held_param(c, t))
            c->held_from[c->g->tensors[t].unit + 2]++;
    for (int u = 0; u < c->g->n_units; u++)
        c->held_from[u + 2] += c->held_from[u + 1];
    for (int t = 0; t < c->g->n_tensors; t++)
        if (is_held_param(c, t))
            c->held[c->held_from[c->g->tensors[t].unit + 1]++] = t;
}

static void compiler_init(struct compiler *c)
{
    struct program *p = c->p;
    int n = c->g->n_tensors, units = c->g->n_units;
    int **const by_tensor[] = {&c->act,  &c->grad,   &c->producer,     &c->reader,      &c->value,    &c->piece_grad,
                               &c->full, &c->shares, &p->param_buffer, &p->grad_buffer, &p->m_buffer, &p->v_buffer};
    for (size_t i = 0; i < sizeof(by_tensor) / sizeof(by_tensor[0]); i++)
        *by_tensor[i] = index_new(c, n);
    c->weight_dy = index_new(c, c->g->n_nodes);
    c->home = index_new(c, c->g->n_nodes);
    c->parts = index_new(c, p->mesh.size[AXIS_TP]);
    c->unit_run = index_new(c, units);
    c->unit_grads = index_new(c, units);
    c->unit_pieces = index_new(c, units);
    c->unit_values = index_new(c, units);
    c->unit_tree = index_new(c, units);
    c->consumers = calloc((size_t)n + 1, sizeof(*c->consumers));
    c->grad_started = calloc((size_t)n + 1, sizeof(*c->grad_started));
    c->tp_shares = calloc((size_t)n + 1, sizeof(*c->tp_shares));
    c->discarded = calloc((size_t)n + 1, sizeof(*c->discarded));
    c->pitched = calloc((size_t)n + 1, sizeof(*c->pitched));
    c->unit_waits = calloc((size_t)units + 1, sizeof(*c->unit_waits));
    c->unit_used = calloc((size_t)units + 1, sizeof(*c->unit_used));
    p->units = calloc((size_t)units + 1, sizeof(*p->units));
    c->own = p->mesh.size[AXIS_TP] > 1 && c->job->parallel.sp && p->mode != MODE_DECODE; /* one token: no parts */
    c->async = c->own && c->job->parallel.async_tp;
    if (!c->consumers || !c->grad_started || !c->tp_shares || !c->discarded || !c->pitched || !c->unit_waits ||
        !c->unit_used || !p->units)
        c->err = ERR_NOMEM;
    p->ids_buffer = p->targets_buffer = p->logits_buffer = p->loss_buffer = p->norm_buffer = p->clip_buffer = -1;
    p->rows_buffer = p->begin_buffer = -1;
    for (int i = 0; i < NUMBER_COUNT; i++)
        p->number_buffer[i] = -1;
    cp_init_segments(c);
    c->all_grads = c->all_params = c->all_copies = c->all_states = c->all_m = c->all_v = c->blocks = -1;
    c->kept[0] = c->kept[1] = c->kept[2] = -1;
    if (c->err)
        return;
    count_uses(c);
    find_head(c);
    pitch_find(c);
    held_new(c);
    micros_new(c);
    dispatch_init(c);
    group_new(c);
}

static void compiler_fini(struct compiler *c)
{
    free(c->act);
    free(c->grad);
    free(c->producer);
    free(c->reader);
    free(c->value);
    free(c->piece_grad);
    free(c->full);
    free(c->shares);
    free(c->tp_shares);
    free(c->discarded);
    free(c->pitched);
    free(c->weight_dy);
    free(c->home);
    free(c->parts);
    free(c->consumers);
    free(c->grad_started);
    free(c->held);
    free(c->held_from);
    free(c->unit_run);
    free(c->unit_tree);
    free(c->unit_grads);
    free(c->unit_pieces);
    free(c->unit_values);
    free(c->unit_waits);
    free(c->unit_used);
    pipeline_fini(c);
}

/* ---- passes ---- */

static struct op_range pass_end(const struct compiler *c, int first)
{
    return (struct op_range){first, c->p->n_ops - first};
}

static void zero_losses(struct compiler *c)
{
    struct program *p = c->p;
    struct op *op = compile_op(c, OP_ZERO, -1);
    op->m = dim_one(p->n_micros);
    op_arg(op, 0, p->loss_buffer);
    for (int i = 0; i < NUMBER_COUNT; i++) {
        const int b = p->number_buffer[i];
        if (b < 0)
            continue;
        op = compile_op(c, OP_ZERO, -1);
        op->m = c->err ? dim_one(0) : p->buffers[b].dim[0];
        op_arg(op, 0, b);
    }
}

/* The copies are stale: the update or a load has changed the parameters, or another program has used their bytes. */
static void cast_params(struct compiler *c)
{
    struct op *op = compile_op(c, OP_CAST, -1);
    op->m = c->err ? dim_one(0) : c->p->buffers[c->all_params].dim[0];
    op_arg(op, 0, c->all_params);
    op_arg(op, 1, c->all_copies);
}

/* A gradient to which two chunks add, or the piece into which the sums of both are scattered: neither chunk is always
 * the first, so it starts from zero. */
static void zero_between_chunks(struct compiler *c, int t)
{
    struct op *op = compile_op(c, OP_ZERO, -1);
    const int run = c->unit_grads[c->g->tensors[t].unit], b = zero_scatters(c) ? run : c->p->grad_buffer[t];
    op->m = zero_scatters(c) ? c->p->buffers[run].dim[0] : tp_local_dim(c, t, 0);
    op->n = zero_scatters(c) ? op->n : dim_one(tp_cols(c, t));
    op_arg(op, 0, b);
}

int compile_ahead(const struct compiler *c)
{
    const int rank = c->p->sharding.coord[AXIS_PP];
    return schedule_ahead_of(c->order->ahead, rank) + (rank == 0 && c->order->ahead && MUTANT(ONE_AHEAD_TOO_MANY));
}

static void zero_gradients(struct compiler *c)
{
    struct program *p = c->p;
    struct op *op;
    bool idle = p->first_micro == p->end_micro && p->mode == MODE_TRAIN && !p->tree_depth;
    for (int unit = c->g->n_units - 1; unit >= 0 && idle && !c->err;
         unit--) { /* a rank without microbatches adds zero */
        const bool joins = compile_unit_of_experts(c, unit) && experts_cross_micros(c) && zero_rounds(c) > 0;
        if (c->unit_run[unit] < 0 || joins || (zero_scatters(c) && zero_divides(c, unit)))
            continue;
        op = compile_op(c, OP_ZERO, -1);
        op->m = p->buffers[c->unit_run[unit]].dim[0];
        op_arg(op, 0, c->unit_run[unit]);
    }
    for (int t = 0; t < c->g->n_tensors && p->mode == MODE_TRAIN && !idle && !c->err; t++)
        if (p->sharding.param[t].chunks && !MUTANT(CHUNKS_FROM_THE_STEP_BEFORE))
            zero_between_chunks(c, t);
}

static void begin(struct compiler *c, int first)
{
    compile_action(c, (struct action){.kind = ACT_BEGIN, .micro = -1, .unit = -1}, pass_end(c, first));
}

void compile_zeroes(struct compiler *c)
{
    const int first = c->p->n_ops;
    zero_losses(c);
    zero_gradients(c);
    begin(c, first);
}

/* Losses and gradients are those of the step before while slots run ahead, so they are zeroed after these. */
static void pass_begin(struct compiler *c)
{
    const int first = c->p->n_ops;
    const bool later = compile_ahead(c) > 0 && !MUTANT(ZEROED_AHEAD);
    if (!mode_generates(c->p->mode) && !later)
        zero_losses(c);
    if (c->all_copies >= 0)
        cast_params(c);
    if (!later)
        zero_gradients(c);
    if (!later || c->p->n_ops > first)
        begin(c, first);
}

static void compile_program(struct compiler *c)
{
    struct program *p = c->p;
    if (p->mode == MODE_TRAIN && c->job->train.numerics == NUMERICS_CANONICAL)
        p->tree_depth = tree_depth_of_ranks(p);
    pipeline_init(c);
    compile_buffers(c);
    compile_group(c, 1u << AXIS_PP); /* groups that only some ranks use are added here, in the same order on all */
    if (mode_generates(p->mode))     /* only the last stage gathers logits */
        compile_group(c, 1u << AXIS_CP | 1u << AXIS_TP);
    if (!mode_generates(p->mode) || c->all_copies >= 0)
        pass_begin(c);
    zero_emit_gathers(c);
    pipeline_emit(c);
    if (!mode_generates(p->mode))
        step_end_reduce(c);
    if (p->mode == MODE_TRAIN) {
        step_end_norm(c);
        step_end_update(c);
        step_end_restore(c);
        step_end_snapshot(c);
    }
    memory_plan_place(c);
    if (!c->sizes_only)
        events_assign(c);
}

/* Ops of the nodes that stages_cut_graph added name no node, because the caller's graph does not have them. */
static void forget_cut(struct compiler *c, const struct graph *g)
{
    for (int i = 0; i < c->p->n_ops; i++)
        if (c->p->ops[i].node >= g->n_nodes)
            c->p->ops[i].node = -1;
}

/* The canonical tree has one leaf per microbatch and gradient, so two chunks of a rank cannot both add theirs. */
static err_t check_leaves(const struct job_spec *job, const struct graph *g, const struct program *p, struct why *why)
{
    for (int t = 0; t < g->n_tensors && p->mode == MODE_TRAIN && job->train.numerics == NUMERICS_CANONICAL; t++)
        if (p->sharding.param[t].chunks)
            return why_set(why, ERR_INVALID,
                           "parallel.schedule is %s, which has two stages that use %s on one rank, and "
                           "train.numerics canonical cannot add their gradients in the order of microbatches; the "
                           "nearest legal choice is interleaved, or model.tied false",
                           job_schedule_row(job->parallel.schedule)->name, g->tensors[t].name);
    return OK;
}

static err_t compile_rank(const struct job_spec *job, const struct graph *g, const struct pipeline_order *order,
                          int rank, bool sizes_only, struct program *ret, struct why *why)
{
    struct program p = {.mode = order->mode, .rank = rank, .seq = job->train.seq, .mesh = order->mesh};
    if (rank < 0 || rank >= mesh_workers(&p.mesh))
        return why_set(why, ERR_INVALID, "rank %d of a job with %d workers", rank, mesh_workers(&p.mesh));
    p.dtype = job->train.numerics == NUMERICS_PROOF ? DT_F64 : (enum dtype)job->train.dtype;
    p.wide = p.dtype == DT_BF16 ? DT_F32 : p.dtype;
    struct compiler c = {.job = job, .g = g, .order = order, .p = &p, .why = why, .sizes_only = sizes_only};
    if (why)
        why->text[0] = 0;
    struct graph cut = {0};
    c.err = sharding_init(&p.sharding, g, &p.mesh, rank, plan_sharding_choice(job, order), why);
    c.err = c.err ? c.err : check_leaves(job, g, &p, why);
    if (!c.err && p.sharding.n_stages > 1) {
        c.err = stages_cut_graph(g, &p.sharding, &cut, why);
        c.g = &cut; /* unused after an error */
    }
    if (!c.err)
        compiler_init(&c);
    if (!c.err)
        compile_program(&c);
    forget_cut(&c, g);
    if (!c.err && p.mode == MODE_TRAIN && !sizes_only)
        c.err = plan_arena_bytes(&p, g, &p.arena_bytes);
    compiler_fini(&c);
    free(cut.nodes);
    if (c.err) {
        program_fini(&p);
        return why && why->text[0] ? c.err : why_set(why, c.err, "no memory to compile the program of rank %d", rank);
    }
    *ret = p;
    return OK;
}

/* Compiles ranks [first, first + n). When one fails, frees those before it. */
static err_t compile_ranks(const struct job_spec *job, const struct graph *g, enum program_mode mode, int first, int n,
                           struct program *ret, struct why *why)
{
    struct pipeline_order order;
    int done = 0;
    err_t e = pipeline_order_init(job, mode, &order, why);
    if (e)
        return e;
    while (done < n && !(e = compile_rank(job, g, &order, first + done, false, &ret[done], why)))
        done++;
    while (e && done > 0)
        program_fini(&ret[--done]);
    pipeline_order_fini(&order);
    return e;
}

err_t plan_compile(const struct job_spec *job, const struct graph *g, enum program_mode mode, int rank,
                   struct program *ret, struct why *why)
{
    return compile_ranks(job, g, mode, rank, 1, ret, why);
}

err_t plan_compile_all(const struct job_spec *job, const struct graph *g, enum program_mode mode, int n,
                       struct program *ret, struct why *why)
{
    return compile_ranks(job, g, mode, 0, n, ret, why);
}

err_t compile_sizes(const struct job_spec *job, const struct graph *g, const struct pipeline_order *order, int rank,
                    struct program *ret, struct why *why)
{
    return compile_rank(job, g, order, rank, true, ret, why);
}
