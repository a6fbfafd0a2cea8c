/* One rank's two steps, op by op, without numbers: for every place what its value is worth now, and who touched it last
 * on which stream. Two steps, because a mistake may lie between the end of one and the start of the next (a gradient
 * that is added to and never zeroed, a save that still copies).
 *
 * Order between streams is kept with vector clocks: an op knows how far it is behind every stream, an event carries
 * that knowledge to who waits. An access is right when the op knows of the last write, and for a write also of the last
 * reads, of the place and of every place that shares bytes with it. The host's batch is a write on the compute stream
 * before a forward; what it reads it reads behind all streams. Nothing else is taken for granted between two steps. A
 * run saves in some steps and not in others, so both are followed: no order may hang on a save. */
#include "common/plan/check.h"

#include <stdlib.h>
#include <string.h>

enum value {
    VALUE_NONE,    /* never written */
    VALUE_STALE,   /* of the step or microbatch before */
    VALUE_LOST,    /* its bytes were written as another buffer */
    VALUE_SET,     /* what the layout says */
    VALUE_PARTIAL, /* this rank's share of a sum */
    VALUE_REDUCED, /* summed over the group */
};

struct state {
    enum value value;
    int lost_to; /* VALUE_LOST: the buffer */
    int updates; /* parameters: optimizer ops */
    int leaves;  /* gradients in canonical numerics: leaves that joined the tree */
    int writer;  /* op, for messages */
    int write_stream;
    int64_t write_time, read_time[STREAM_COUNT];
};

struct clock {
    int64_t t[STREAM_COUNT];
};

struct rank_check {
    const struct program *p;
    struct spots places;
    struct state *state; /* by place */
    struct clock *event; /* by event: what its last record knows */
    struct clock streams[STREAM_COUNT];
    struct check_at at;
    struct why *why;
};

/* Pairs of operands that a kernel lets lie on one buffer: (written, read). */
static const struct {
    enum op_kind kind;
    int written, read;
} aliases[] = {
    {OP_RMSNORM, 3, 0},   {OP_RMSNORM, 3, 1},        {OP_RMSNORM_GRAD, 5, 4}, {OP_LAYERNORM, 4, 0},
    {OP_LAYERNORM, 4, 1}, {OP_LAYERNORM_GRAD, 6, 5}, {OP_SWIGLU_GRAD, 3, 0},  {OP_SWIGLU_GRAD, 4, 1},
    {OP_GELU_GRAD, 2, 1}, {OP_RELU_GRAD, 2, 1},      {OP_ADD, 2, 0},          {OP_ADD, 2, 1},
};

static bool alias_allowed(const struct op *op, int written, int other)
{
    if (op->kind == OP_ATTENTION_GRAD && written >= 6 && other >= 6) /* column ranges of one matrix */
        return op->arg[written].col != op->arg[other].col;
    for (size_t i = 0; i < sizeof(aliases) / sizeof(aliases[0]); i++)
        if (aliases[i].kind == op->kind && aliases[i].written == written && aliases[i].read == other)
            return true;
    return false;
}

static const char *name_of(const struct rank_check *c, int place)
{
    return c->p->buffers[c->places.place[place].buffer].name;
}

static bool is_partial(const struct buffer *b)
{
    for (int a = 0; a < AXIS_COUNT; a++)
        if (b->layout.axis[a].kind == LAYOUT_PARTIAL)
            return true;
    return false;
}

/* Whether operand `a` in the present action means `place`. */
static bool means(const struct rank_check *c, const struct operand *a, int place)
{
    const struct spot *pl = &c->places.place[place];
    const struct action *action = &c->p->actions[c->at.action];
    if (!spots_in_run(c->p, pl->buffer, a->buffer))
        return false;
    switch (c->p->buffers[pl->buffer].slot_index) {
    case SLOT_ACTION:
        return pl->slot == action->slot;
    case SLOT_MICRO:
        return action->micro < 0 || pl->slot == action->micro;
    case SLOT_ONE:
    case SLOT_TREE:
        break;
    }
    return true;
}

/* ---- order between streams ---- */

static err_t order_fail(const struct rank_check *c, int place, int other, const char *what)
{
    return check_fail(
        &c->at, c->why, "%s %s while %s %s may still be running on another stream; it must wait for an event", what,
        name_of(c, place), other == place ? "an earlier op on" : "an op on the same bytes as", name_of(c, other));
}

/* `writes`: the words for a write, NULL for a read. */
static err_t order_check(const struct rank_check *c, const struct clock *now, int place, int other, const char *writes)
{
    const struct state *s = &c->state[other];
    if (s->write_time > now->t[s->write_stream])
        return order_fail(c, place, other, writes ? writes : "reads");
    for (int k = 0; k < STREAM_COUNT && writes; k++)
        if (s->read_time[k] > now->t[k])
            return order_fail(c, place, other, writes);
    return OK;
}

/* ---- one operand ---- */

static err_t value_fail(const struct rank_check *c, int place)
{
    const struct state *s = &c->state[place];
    const char *name = name_of(c, place);
    switch (s->value) {
    case VALUE_NONE:
        return check_fail(&c->at, c->why, "reads %s before anything has written it", name);
    case VALUE_STALE:
        return check_fail(&c->at, c->why, "reads %s, which still holds the value of the pass before", name);
    case VALUE_LOST:
        return check_fail(&c->at, c->why, "reads %s, whose bytes were overwritten as %s by op %d", name,
                          c->p->buffers[s->lost_to].name, s->writer);
    case VALUE_PARTIAL:
        return check_fail(&c->at, c->why, "reads %s, which is this rank's share of a sum: nothing has reduced it",
                          name);
    case VALUE_SET:
    case VALUE_REDUCED:
        break;
    }
    return OK;
}

static err_t check_reduce(const struct rank_check *c, int place)
{
    const struct state *s = &c->state[place];
    if (s->value == VALUE_REDUCED)
        return check_fail(&c->at, c->why, "reduces %s a second time in this step", name_of(c, place));
    if (s->value == VALUE_SET)
        return check_fail(&c->at, c->why, "reduces %s, which is not partial", name_of(c, place));
    return s->value == VALUE_PARTIAL ? OK : value_fail(c, place);
}

/* Reading before the op: mode 'r', or 'a' which reads too. */
static err_t operand_read(struct rank_check *c, const struct op *op, int place, char mode)
{
    const struct state *s = &c->state[place];
    if (op->kind == OP_ALL_REDUCE)
        return check_reduce(c, place);
    if (op->kind == OP_TREE_LEAF || op->kind == OP_TREE_REDUCE) /* their own rules, in tree_check */
        return OK;
    if (mode == 'a' && s->value == VALUE_REDUCED)
        return check_fail(&c->at, c->why, "adds to %s behind its reduce", name_of(c, place));
    if (mode == 'a' && s->value == VALUE_PARTIAL)
        return OK;
    return value_fail(c, place);
}

static err_t operand_write(struct rank_check *c, const struct op *op, int place, char mode)
{
    const struct buffer *b = &c->p->buffers[c->places.place[place].buffer];
    struct state *s = &c->state[place];
    bool reduces = op->kind == OP_ALL_REDUCE || op->kind == OP_TREE_REDUCE;
    if (mode == 'w' && s->value == VALUE_REDUCED && !reduces)
        return check_fail(&c->at, c->why, "overwrites %s behind its reduce", b->name);
    bool share = b->space == SPACE_GRAD && (s->value == VALUE_PARTIAL || s->value == VALUE_SET);
    if (mode == 'w' && share && !reduces)
        return check_fail(&c->at, c->why, "overwrites %s, which earlier ops of this step have added to", b->name);
    if (op->kind == OP_ADAMW)
        s->updates++;
    s->value = reduces ? VALUE_REDUCED : is_partial(b) ? VALUE_PARTIAL : VALUE_SET;
    s->writer = c->at.op;
    const int *list = c->places.overlaps;
    for (int i = c->places.overlap_first[place]; i < c->places.overlap_first[place + 1]; i++) {
        struct state *o = &c->state[list[i]];
        if (o->value == VALUE_NONE)
            continue;
        o->value = VALUE_LOST;
        o->lost_to = c->places.place[place].buffer;
        o->writer = c->at.op;
    }
    return OK;
}

static err_t order_operand(struct rank_check *c, const struct clock *now, int place, bool write)
{
    err_t e = order_check(c, now, place, place, write ? "writes" : NULL);
    for (int i = c->places.overlap_first[place]; write && !e && i < c->places.overlap_first[place + 1]; i++)
        e = order_check(c, now, place, c->places.overlaps[i], "writes");
    return e;
}

static void touch(struct rank_check *c, const struct clock *now, enum op_stream stream, int place, char mode)
{
    struct state *s = &c->state[place];
    if (mode != 'w')
        s->read_time[stream] = now->t[stream];
    if (mode != 'r') {
        s->write_stream = (int)stream;
        s->write_time = now->t[stream];
    }
}

/* ---- one op ---- */

/* Places that operand i means: [lo, hi) of all of them must be asked with means(); a buffer's own are dense. */
static void place_range(const struct rank_check *c, const struct operand *a, int *ret_lo, int *ret_hi)
{
    int first = c->places.first[a->buffer];
    *ret_lo = first < 0 ? 0 : first;
    *ret_hi = first < 0 ? c->places.n : first + c->p->buffers[a->buffer].slots;
}

static err_t check_aliases(const struct rank_check *c, const struct op *op, int i)
{
    for (int k = 0; op_mode(op, k); k++) {
        if (k == i || op->arg[k].buffer < 0 || op->arg[i].buffer < 0)
            continue;
        const struct buffer *a = &c->p->buffers[op->arg[i].buffer], *b = &c->p->buffers[op->arg[k].buffer];
        if (a->space != b->space || a->offset >= b->offset + b->bytes || b->offset >= a->offset + a->bytes)
            continue;
        if (op->arg[i].buffer != op->arg[k].buffer)
            return check_fail(&c->at, c->why, "writes %s, which shares bytes with its operand %s", a->name, b->name);
        if (!alias_allowed(op, i, k) && !alias_allowed(op, k, i))
            return check_fail(&c->at, c->why, "writes %s over operand %d, which this kernel does not allow", a->name,
                              k);
    }
    return OK;
}

static err_t operand_check(struct rank_check *c, const struct op *op, const struct clock *now, int i)
{
    char mode = op_mode(op, i);
    int lo, hi;
    err_t e = mode != 'r' && op->kind != OP_TREE_LEAF ? check_aliases(c, op, i) : OK;
    place_range(c, &op->arg[i], &lo, &hi);
    for (int pl = lo; pl < hi && !e; pl++) {
        if (!means(c, &op->arg[i], pl))
            continue;
        e = order_operand(c, now, pl, mode != 'r');
        if (!e && mode != 'w')
            e = operand_read(c, op, pl, mode);
    }
    return e;
}

static err_t operand_apply(struct rank_check *c, const struct op *op, const struct clock *now, int i)
{
    char mode = op_mode(op, i);
    int lo, hi;
    err_t e = OK;
    place_range(c, &op->arg[i], &lo, &hi);
    for (int pl = lo; pl < hi && !e; pl++) {
        if (!means(c, &op->arg[i], pl))
            continue;
        touch(c, now, op->stream, pl, mode);
        if (mode != 'r')
            e = operand_write(c, op, pl, mode);
    }
    return e;
}

/* Leaves join once each, in ascending order; the tree is reduced when all of this rank's have. */
static err_t tree_check(struct rank_check *c, const struct op *op)
{
    const struct program *p = c->p;
    const struct operand *x = &op->arg[op->kind == OP_TREE_LEAF ? 0 : 1];
    int lo, hi, micro = p->actions[c->at.action].micro;
    if (op->kind != OP_TREE_LEAF && op->kind != OP_TREE_REDUCE)
        return OK;
    place_range(c, x, &lo, &hi);
    for (int pl = lo; pl < hi; pl++) {
        struct state *s = &c->state[pl];
        if (!means(c, x, pl))
            continue;
        if (op->kind == OP_TREE_REDUCE) {
            if (s->value == VALUE_REDUCED)
                return check_fail(&c->at, c->why, "reduces %s a second time in this step", name_of(c, pl));
            if (s->leaves != p->end_micro - p->first_micro)
                return check_fail(&c->at, c->why, "reduces %s when %d of this rank's %d leaves are in the tree",
                                  name_of(c, pl), s->leaves, p->end_micro - p->first_micro);
            continue;
        }
        if (s->value != VALUE_PARTIAL)
            return value_fail(c, pl);
        if (micro != p->first_micro + s->leaves)
            return check_fail(&c->at, c->why, "puts microbatch %d of %s into the tree when %d is next", micro,
                              name_of(c, pl), p->first_micro + s->leaves);
        s->leaves++;
        s->value = VALUE_STALE; /* the next microbatch starts its own */
    }
    return OK;
}

static err_t op_check(struct rank_check *c, const struct op *op)
{
    struct clock now = c->streams[op->stream];
    for (int i = 0; i < OP_MAX_WAITS; i++)
        for (int s = 0; s < STREAM_COUNT && op->wait[i] >= 0; s++) {
            const struct clock *known = &c->event[op->wait[i]];
            if (known->t[s] > now.t[s])
                now.t[s] = known->t[s];
        }
    now.t[op->stream]++;
    err_t e = OK;
    for (int i = 0; op_mode(op, i) && !e; i++)
        if (op->arg[i].buffer >= 0)
            e = operand_check(c, op, &now, i);
    if (!e)
        e = tree_check(c, op);
    for (int i = 0; op_mode(op, i) && !e; i++)
        if (op->arg[i].buffer >= 0)
            e = operand_apply(c, op, &now, i);
    c->streams[op->stream] = now;
    if (op->event >= 0)
        c->event[op->event] = now;
    return e;
}

/* ---- steps ---- */

/* What a pass must make anew: before a step gradients and scalars, before a forward the activations of its slot. */
static void age(struct rank_check *c, bool step, int slot)
{
    for (int i = 0; i < c->places.n; i++) {
        const struct spot *pl = &c->places.place[i];
        const struct buffer *b = &c->p->buffers[pl->buffer];
        bool input = pl->buffer == c->p->ids_buffer || pl->buffer == c->p->targets_buffer;
        bool copy = b->space == SPACE_WORK && b->run >= 0; /* of a parameter, which the update changes */
        bool of_step = copy || b->space == SPACE_GRAD || (b->space == SPACE_HOST && !input);
        bool of_slot = !copy && b->space == SPACE_WORK && (b->slot_index != SLOT_ACTION || pl->slot == slot);
        if (step ? of_step : of_slot) {
            c->state[i].value = c->state[i].value == VALUE_NONE ? VALUE_NONE : VALUE_STALE;
            c->state[i].leaves = 0;
        }
    }
}

static err_t step_end(struct rank_check *c, int step)
{
    const struct program *p = c->p;
    for (int i = 0; i < c->places.n; i++) {
        int b = c->places.place[i].buffer;
        if (is_partial(&p->buffers[b]) && p->buffers[b].slot_index != SLOT_TREE && c->state[i].value != VALUE_REDUCED)
            return why_set(c->why, ERR_INVALID, "rank %d: the step ends and nothing has reduced %s, a share of a sum",
                           p->rank, p->buffers[b].name);
        bool state = p->buffers[b].space == SPACE_PARAM || p->buffers[b].space == SPACE_OPT;
        if (p->mode == MODE_TRAIN && state && c->state[i].updates != step + 1)
            return why_set(c->why, ERR_INVALID, "rank %d: the step updates %s %d times instead of once", p->rank,
                           p->buffers[b].name, c->state[i].updates - step);
    }
    return OK;
}

/* The host brings the microbatch: what is put into the compute stream before the forward's first op. */
static err_t host_fills(struct rank_check *c)
{
    const int inputs[] = {c->p->ids_buffer, c->p->targets_buffer};
    struct clock *now = &c->streams[STREAM_COMPUTE];
    err_t e = OK;
    now->t[STREAM_COMPUTE]++;
    for (int i = 0; i < 2 && !e; i++) {
        int place = inputs[i] >= 0 ? c->places.first[inputs[i]] : -1;
        if (place < 0)
            continue;
        e = order_check(c, now, place, place, "finds the host writing");
        touch(c, now, STREAM_COMPUTE, place, 'w');
    }
    return e;
}

static err_t step_check(struct rank_check *c, int step, bool saves)
{
    err_t e = OK;
    age(c, true, 0);
    for (int a = 0; a < c->p->n_actions && !e; a++) {
        const struct action *action = &c->p->actions[a];
        if (action->kind == ACT_SNAPSHOT && !saves)
            continue;
        c->at.action = a;
        c->at.op = action->first_op;
        if (action->kind == ACT_FORWARD) {
            age(c, false, action->slot);
            e = host_fills(c);
        }
        for (int i = 0; i < action->n_ops && !e; i++) {
            c->at.op = action->first_op + i;
            e = op_check(c, &c->p->ops[c->at.op]);
        }
    }
    return e ? e : step_end(c, step);
}

/* Before the first step: parameters and moments are there, everything else is yet to be written. */
static void state_init(struct rank_check *c)
{
    const struct program *p = c->p;
    memset(c->state, 0, ((size_t)c->places.n + 1) * sizeof(*c->state));
    memset(c->event, 0, ((size_t)p->n_events + 1) * sizeof(*c->event));
    memset(c->streams, 0, sizeof(c->streams));
    for (int i = 0; i < c->places.n; i++) {
        int b = c->places.place[i].buffer;
        bool given = p->buffers[b].space == SPACE_PARAM || p->buffers[b].space == SPACE_OPT || b == p->ids_buffer ||
                     b == p->targets_buffer;
        c->state[i].value = given ? VALUE_SET : VALUE_NONE;
    }
}

static bool has_saves(const struct program *p)
{
    for (int a = 0; a < p->n_actions; a++)
        if (p->actions[a].kind == ACT_SNAPSHOT)
            return true;
    return false;
}

err_t check_rank(const struct program *p, struct why *why)
{
    struct rank_check c = {.p = p, .at = {.p = p}, .why = why};
    err_t e = spots_check(p, &c.places, why);
    if (e)
        return e;
    c.state = calloc((size_t)c.places.n + 1, sizeof(*c.state));
    c.event = calloc((size_t)p->n_events + 1, sizeof(*c.event));
    e = c.state && c.event ? OK : ERR_NOMEM;
    for (int saves = has_saves(p); saves >= 0 && !e; saves--) {
        state_init(&c);
        for (int step = 0; step < 2 && !e; step++)
            e = step_check(&c, step, saves);
    }
    free(c.state);
    free(c.event);
    spots_fini(&c.places);
    return e;
}
