/* One rank's two steps, op by op, without numbers: for every place what its value is worth now, what it is over each
 * axis of the mesh, and who touched it last on which stream. Two steps, because a mistake may lie between the end of
 * one and the start of the next (a gradient that is added to and never zeroed, a save that still copies).
 *
 * Values of a microbatch carry its number, so an instance that another microbatch has taken shows, however the slots
 * are dealt. A message keeps its place from its post until its wait.
 *
 * The host's batch is a write on the compute stream before a forward; what the host reads it reads behind all streams.
 * Nothing else is taken for granted between two steps. A run saves in some steps and not in others, so both are
 * followed: no order may hang on a save. */
#include "common/plan/check/rank.h"

#include <stdlib.h>
#include <string.h>

static void know(struct clock *now, const struct clock *other)
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
            know(&now, &c->event[op->wait[i]]);
    now.t[op->stream]++;
    err_t e = OK;
    rank_reach(c, op);
    bool wait = op->kind == OP_WAIT; /* its place is the network's still */
    for (int i = 0; c->mode[i] && !e && !wait; i++)
        e = rank_operand(c, op, &now, i);
    for (int i = 0; c->mode[i] && !e && !wait; i++)
        for (int k = 0; k < c->reach[i].n; k++)
            rank_touch(c, &now, op->stream, rank_place(c, i, k), c->mode[i]);
    if (!e)
        e = wait ? rank_message_over(c, &now, op->stream) : rank_apply(c, op);
    if (!e && c->wasted >= 0)
        e = check_fail(&c->at, c->why, "overwrites the bytes of %s, a share of a sum that nothing has taken",
                       rank_name(c, c->wasted));
    c->streams[op->stream] = now;
    if (op->event >= 0)
        c->event[op->event] = now;
    return e;
}

/* ---- steps ---- */

/* What outlives a step: parameters and moments. All else, gathered and cast parameters too, must be made anew. */
static bool outlives(const struct rank_check *c, int place)
{
    const struct buffer *b = rank_buffer(c, place);
    int buffer = c->places.place[place].buffer;
    if (b->tensor < 0 || !rank_is_param(c, b))
        return b->space == SPACE_OPT || b->space == SPACE_PARAM;
    return buffer == c->p->param_buffer[b->tensor] || buffer == c->p->m_buffer[b->tensor] ||
           buffer == c->p->v_buffer[b->tensor];
}

static void age(struct rank_check *c)
{
    c->blocks_zeroed = false;
    c->n_messages = 0;
    for (int i = 0; i < c->places.n; i++) {
        struct state *s = &c->state[i];
        s->leaves = 0;
        if (!outlives(c, i) && s->value != VALUE_NONE)
            s->value = VALUE_STALE;
    }
}

/* Updates of a place in a step: one, where there is anything of the parameter here. */
static err_t check_updates(const struct rank_check *c, int place, int step)
{
    const struct buffer *b = rank_buffer(c, place);
    bool train = c->p->mode == MODE_TRAIN && rank_is_param(c, b) && outlives(c, place) && b->bytes > 0;
    if (!train || c->state[place].updates == step + 1)
        return OK;
    return why_set(c->why, ERR_INVALID, "rank %d: the step updates %s %d times instead of once", c->p->rank, b->name,
                   c->state[place].updates - step);
}

static err_t step_end(struct rank_check *c, int step)
{
    const struct program *p = c->p;
    for (int i = 0; i < c->places.n; i++) {
        const struct state *s = &c->state[i];
        const struct buffer *b = rank_buffer(c, i);
        bool loss = c->places.place[i].buffer == p->loss_buffer;
        int axis = s->value == VALUE_SET ? layout_partial(&s->layout) : -1;
        if (axis >= 0 && !s->spent && (loss || (rank_is_grad(c, i) && rank_has_piece(c, i))))
            return why_set(c->why, ERR_INVALID,
                           "rank %d: the step ends and nothing has reduced %s, a share of a sum over %s", p->rank,
                           b->name, mesh_axis_name((enum mesh_axis)axis));
        if (s->sending || s->receiving)
            return why_set(c->why, ERR_INVALID, "rank %d: the step ends and nothing has waited for the message in %s",
                           p->rank, b->name);
        err_t e = check_updates(c, i, step);
        if (e)
            return e;
    }
    return OK;
}

/* Whether an op of the action has this buffer as operand. */
static bool action_names(const struct rank_check *c, const struct action *a, int buffer)
{
    for (int i = a->first_op; i < a->first_op + a->n_ops; i++)
        for (int k = 0; k < OP_MAX_OPERANDS; k++)
            if (c->p->ops[i].arg[k].buffer == buffer)
                return true;
    return false;
}

/* The host brings the microbatch: what is put into the compute stream before the forward's first op. */
static err_t host_fills(struct rank_check *c, const struct action *a)
{
    const int inputs[] = {c->p->ids_buffer, c->p->targets_buffer, c->p->rows_buffer};
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
            e = rank_order(c, now, c->reached[k], c->reached[k], "finds the host writing");
            rank_touch(c, now, STREAM_COMPUTE, c->reached[k], 'w');
            rank_put(c, c->reached[k], &l, 0);
        }
    }
    return e;
}

static err_t step_check(struct rank_check *c, int step, bool saves)
{
    err_t e = OK;
    age(c);
    for (int a = 0; a < c->p->n_actions && !e; a++) {
        const struct action *action = &c->p->actions[a];
        if (action->kind == ACT_SNAPSHOT && !saves)
            continue;
        c->at.action = a;
        c->at.op = action->first_op;
        if (action->kind == ACT_FORWARD)
            e = host_fills(c, action);
        for (int i = 0; i < action->n_ops && !e; i++) {
            c->at.op = action->first_op + i;
            e = op_check(c, &c->p->ops[c->at.op]);
        }
        if (!e && c->p->mesh.size[AXIS_CP] > 1)
            e = rank_rings_over(c);
    }
    return e ? e : step_end(c, step);
}

/* Before the first step: parameters and moments are there, everything else is yet to be written. */
static void state_init(struct rank_check *c)
{
    memset(c->state, 0, ((size_t)c->places.n + 1) * sizeof(*c->state));
    memset(c->event, 0, ((size_t)c->p->n_events + 1) * sizeof(*c->event));
    memset(c->streams, 0, sizeof(c->streams));
    c->n_posts = 0;
    for (int i = 0; i < c->places.n; i++) {
        const struct buffer *b = rank_buffer(c, i);
        if (!outlives(c, i))
            continue;
        struct value_layout l = {{0}, false};
        if (rank_is_param(c, b))
            l = layout_of_param(c->p, c->g, b->tensor, true);
        c->state[i] = (struct state){.value = VALUE_SET, .layout = l, .micro = NO_MICRO, .sum_hi = INT64_MAX};
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
        e = spots_check(p, &c.places, why);
    if (e)
        return e;
    c.state = calloc((size_t)c.places.n + 1, sizeof(*c.state));
    c.event = calloc((size_t)p->n_events + 1, sizeof(*c.event));
    c.rows = calloc((size_t)c.places.n * (size_t)p->mesh.size[AXIS_TP] + 1, sizeof(*c.rows));
    c.reached = calloc((size_t)c.places.n * OP_MAX_OPERANDS + 1, sizeof(*c.reached));
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
    spots_fini(&c.places);
    return e;
}
