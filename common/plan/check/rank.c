/* Follows two steps of one rank, op by op, without numbers. For every interval it records the state of its value, its
 * layout over each axis of the mesh, and the last accesses on each stream. Two steps are needed because a mistake may
 * lie between the end of one and the start of the next: a gradient that is added to and never zeroed, or a snapshot
 * that is still being copied.
 *
 * A value carries the number of its microbatch, so a wrong instance of a buffer is detected whatever rule assigns the
 * instances. A message occupies its interval from its post until its wait.
 *
 * The host writes the batch on the compute stream before a forward, and reads results only after all streams have
 * finished. The check assumes no other order between two steps. A job saves in some steps and not in others, so both
 * cases are followed: no order may depend on a save. */
#include "common/plan/check/rank.h"

#include <stdlib.h>
#include <string.h>

static void clock_merge(struct clock *now, const struct clock *other)
{
    for (int s = 0; s < STREAM_COUNT; s++)
        if (other->t[s] > now->t[s])
            now->t[s] = other->t[s];
}

static err_t op_check(struct rank_check *c, const struct op *op)
{
    struct clock now = c->streams[op->stream];
    for (int i = 0; i < OP_MAX_WAITS; i++)
        if (op->wait[i] >= 0)
            clock_merge(&now, &c->event[op->wait[i]]);
    now.t[op->stream]++;
    err_t e = OK;
    rank_reach(c, op);
    bool wait = op->kind == OP_WAIT; /* until the wait is done, the message occupies its interval */
    for (int i = 0; c->mode[i] && !e && !wait; i++)
        e = rank_operand(c, op, &now, i);
    for (int i = 0; c->mode[i] && !e && !wait; i++)
        for (int k = 0; k < c->reach[i].n; k++)
            rank_touch(c, &now, op->stream, rank_interval(c, i, k), c->mode[i]);
    if (!e)
        e = wait ? rank_message_over(c, &now, op->stream) : rank_apply(c, op);
    if (!e && c->wasted >= 0)
        e = check_fail(&c->at, c->why,
                       "overwrites the bytes of %s, a share of a sum that no reduce or scatter has used",
                       rank_name(c, c->wasted));
    c->streams[op->stream] = now;
    if (op->event >= 0)
        c->event[op->event] = now;
    return e;
}

/* ---- steps ---- */

/* Parameters, moments, states and caches outlive a step. Everything else, gathered and cast parameters too, must be
 * computed again. */
static bool outlives(const struct rank_check *c, int interval)
{
    const struct buffer *b = rank_buffer(c, interval);
    int buffer = c->intervals.at[interval].buffer;
    if (b->tensor < 0 || !rank_is_param(c, b))
        return b->space == SPACE_OPT || b->space == SPACE_PARAM || b->space == SPACE_CACHE;
    return buffer == c->p->param_buffer[b->tensor] || buffer == c->p->m_buffer[b->tensor] ||
           buffer == c->p->v_buffer[b->tensor];
}

static void start_step(struct rank_check *c)
{
    c->blocks_zeroed = false;
    c->n_messages = 0;
    for (int i = 0; i < c->intervals.n; i++) {
        struct value_state *s = &c->state[i];
        s->leaves = 0;
        if (!outlives(c, i) && s->value != VALUE_NONE)
            s->value = VALUE_STALE;
    }
}

/* Checks that an interval was updated once in the step, if this rank has any part of the parameter. */
static err_t check_updates(const struct rank_check *c, int interval, int step)
{
    const struct buffer *b = rank_buffer(c, interval);
    bool stored = b->tensor >= 0 && graph_is_stored(&c->g->tensors[b->tensor]);
    bool train = c->p->mode == MODE_TRAIN && stored && outlives(c, interval) && b->bytes > 0;
    if (!train || c->state[interval].updates == step + 1)
        return OK;
    return why_set(c->why, ERR_INVALID, "rank %d: the step updates %s %d times instead of once", c->p->rank, b->name,
                   c->state[interval].updates - step);
}

static err_t step_end(struct rank_check *c, int step)
{
    const struct program *p = c->p;
    for (int i = 0; i < c->intervals.n; i++) {
        const struct value_state *s = &c->state[i];
        const struct buffer *b = rank_buffer(c, i);
        const int buffer = c->intervals.at[i].buffer;
        bool loss = buffer == p->loss_buffer || program_number(p, buffer) != NUMBER_COUNT;
        int axis = s->value == VALUE_SET ? layout_partial(&s->layout) : -1;
        if (axis >= 0 && !s->spent && (loss || (rank_is_grad(c, i) && rank_has_piece(c, i))))
            return why_set(c->why, ERR_INVALID,
                           "rank %d: the step ends before %s, a share of a sum over %s, has been reduced", p->rank,
                           b->name, mesh_axis_name((enum mesh_axis)axis));
        if (s->sending || s->receiving)
            return why_set(c->why, ERR_INVALID, "rank %d: the step ends and no op has waited for the message in %s",
                           p->rank, b->name);
        err_t e = check_updates(c, i, step);
        if (e)
            return e;
    }
    return OK;
}

/* Whether an op of the action has this buffer as an operand. */
static bool action_names(const struct rank_check *c, const struct action *a, int buffer)
{
    for (int i = a->first_op; i < a->first_op + a->n_ops; i++)
        for (int k = 0; k < OP_MAX_OPERANDS; k++)
            if (c->p->ops[i].arg[k].buffer == buffer)
                return true;
    return false;
}

/* The host's writes of a microbatch, which the worker queues on the compute stream before the first op of a forward. */
static err_t host_writes_inputs(struct rank_check *c, const struct action *a)
{
    const int inputs[] = {c->p->ids_buffer, c->p->targets_buffer, c->p->rows_buffer, c->p->begin_buffer};
    const struct value_layout l = layout_of_input(c->p);
    struct clock *now = &c->streams[STREAM_COMPUTE];
    err_t e = OK;
    now->t[STREAM_COMPUTE]++;
    for (size_t i = 0; i < sizeof(inputs) / sizeof(inputs[0]) && !e; i++) {
        struct reach r = {0, 0};
        if (inputs[i] < 0 || !action_names(c, a, inputs[i]))
            continue;
        c->n_reached = 0;
        rank_reach_buffer(c, inputs[i], &r);
        for (int k = 0; k < r.n && !e; k++) {
            e = rank_order(c, now, c->reached[k], c->reached[k], "lets the host write");
            rank_touch(c, now, STREAM_COMPUTE, c->reached[k], 'w');
            rank_put(c, c->reached[k], &l, 0);
        }
    }
    return e;
}

static err_t step_check(struct rank_check *c, int step, bool saves)
{
    err_t e = OK;
    start_step(c);
    for (int a = 0; a < c->p->n_actions && !e; a++) {
        const struct action *action = &c->p->actions[a];
        if (action->kind == ACT_RESTORE || (action->kind == ACT_SNAPSHOT && !saves)) /* ahead.c checks the restore */
            continue;
        c->at.action = a;
        c->at.op = action->first_op;
        if (action->kind == ACT_FORWARD)
            e = host_writes_inputs(c, action);
        for (int i = 0; i < action->n_ops && !e; i++) {
            c->at.op = action->first_op + i;
            e = op_check(c, &c->p->ops[c->at.op]);
        }
        if (!e && c->p->mesh.size[AXIS_CP] > 1)
            e = rank_rings_over(c);
    }
    return e ? e : step_end(c, step);
}

/* Before the first step only parameters and moments have values. */
static void state_init(struct rank_check *c)
{
    memset(c->state, 0, ((size_t)c->intervals.n + 1) * sizeof(*c->state));
    memset(c->event, 0, ((size_t)c->p->n_events + 1) * sizeof(*c->event));
    memset(c->streams, 0, sizeof(c->streams));
    c->n_posts = 0;
    for (int i = 0; i < c->intervals.n; i++) {
        const struct buffer *b = rank_buffer(c, i);
        if (!outlives(c, i))
            continue;
        struct value_layout l = {{0}, false};
        if (rank_is_param(c, b))
            l = layout_of_param(c->p, c->g, b->tensor, true);
        l.zero = b->space == SPACE_CACHE; /* empty: any layout may be written */
        c->state[i] = (struct value_state){.value = VALUE_SET, .layout = l, .micro = NO_MICRO, .sum_hi = INT64_MAX};
    }
}

static bool has_saves(const struct program *p)
{
    for (int a = 0; a < p->n_actions; a++)
        if (p->actions[a].kind == ACT_SNAPSHOT)
            return true;
    return false;
}

static err_t rank_facts_init(struct rank_facts *f, const struct graph *g, const struct program *p)
{
    *f = (struct rank_facts){.blocks_group = -1};
    f->reduced = calloc((size_t)g->n_tensors + 1, sizeof(*f->reduced));
    f->losses = calloc((size_t)p->n_micros + 1, sizeof(*f->losses));
    f->parts = calloc((size_t)p->n_ops + 1, sizeof(*f->parts));
    return f->reduced && f->losses && f->parts ? OK : ERR_NOMEM;
}

void rank_facts_fini(struct rank_facts *f)
{
    free(f->reduced);
    free(f->losses);
    free(f->parts);
    free(f->blocks);
    free(f->messages);
    memset(f, 0, sizeof(*f));
}

static err_t check_steps(struct rank_check *c)
{
    err_t e = OK;
    c->first_step = true;
    for (int saves = has_saves(c->p); saves >= 0 && !e; saves--) {
        state_init(c);
        for (int step = 0; step < 2 && !e; step++) {
            e = step_check(c, step, saves);
            c->first_step = false;
        }
    }
    return e;
}

err_t check_rank(const struct graph *g, const struct program *p, struct rank_facts *ret, struct why *why)
{
    struct rank_check c = {.g = g, .p = p, .at = {.p = p}, .why = why, .facts = ret, .wasted = -1};
    err_t e = rank_facts_init(ret, g, p);
    if (!e)
        e = intervals_check(p, &c.intervals, why);
    if (e)
        return e;
    c.state = calloc((size_t)c.intervals.n + 1, sizeof(*c.state));
    c.event = calloc((size_t)p->n_events + 1, sizeof(*c.event));
    c.rows = calloc((size_t)c.intervals.n * (size_t)p->mesh.size[AXIS_TP] + 1, sizeof(*c.rows));
    c.reached = calloc((size_t)c.intervals.n * OP_MAX_OPERANDS + 1, sizeof(*c.reached));
    for (int i = 0; i < 2; i++) {
        c.pairs[i] = calloc((size_t)g->n_nodes + 1, sizeof(*c.pairs[i]));
        c.pairs_op[i] = calloc((size_t)g->n_nodes + 1, sizeof(*c.pairs_op[i]));
    }
    bool room = c.pairs[0] && c.pairs[1] && c.pairs_op[0] && c.pairs_op[1];
    e = c.state && c.event && c.reached && c.rows && room ? check_steps(&c) : ERR_NOMEM;
    for (int i = 0; i < 2; i++) {
        free(c.pairs[i]);
        free(c.pairs_op[i]);
    }
    free(c.state);
    free(c.event);
    free(c.reached);
    free(c.rows);
    free(c.posts);
    intervals_fini(&c.intervals);
    return e;
}
