/* One rank's two steps, op by op, without numbers: for every place what its value is worth now, what it is over each
 * axis of the mesh, and who touched it last on which stream. Two steps, because a mistake may lie between the end of
 * one and the start of the next (a gradient that is added to and never zeroed, a save that still copies).
 *
 * Values of a microbatch carry its number, so an instance that another microbatch has taken shows, however the slots
 * are dealt. A message keeps its place from its post until all posts are waited for.
 *
 * Order between streams is kept with vector clocks: an op knows how far it is behind every stream, an event carries
 * that knowledge to who waits. An access is right when the op knows of the last write, and for a write also of the last
 * reads, of the place and of every place that shares bytes with it. The host's batch is a write on the compute stream
 * before a forward; what it reads it reads behind all streams. Nothing else is taken for granted between two steps. A
 * run saves in some steps and not in others, so both are followed: no order may hang on a save. */
#include "common/plan/check.h"

#include <stdlib.h>
#include <string.h>

#define NO_MICRO (-1)
#define FIRST_MESSAGE \
    (-2) /* the n-th message of a step: of the microbatch that reads it, FIRST_MESSAGE - n till then */

enum value {
    VALUE_NONE,  /* never written */
    VALUE_STALE, /* of the step before, or of a microbatch that is over */
    VALUE_LOST,  /* its bytes were written as another buffer */
    VALUE_SET,
};

struct state {
    enum value value;
    struct value_layout layout;
    unsigned reduced;       /* axes over which it has been summed in this step */
    int64_t sum_lo, sum_hi; /* bytes of the space that were */
    bool among_zeros;       /* zero but for the parts that copies have put into it */
    bool spent;             /* a gradient that a scatter, the tree or the update has taken */
    int micro;              /* whose value it is */
    int away;               /* context parallelism: how far in the ring the rank is whose tokens these are of */
    int lost_to;            /* VALUE_LOST: the buffer */
    int updates;            /* parameters: optimizer ops */
    int leaves;             /* trees in canonical numerics: leaves that joined */
    int writer;             /* op, for messages */
    int sending;            /* posts that read it and are not waited for */
    bool receiving;
    int write_stream;
    int64_t write_time, read_time[STREAM_COUNT];
};

struct clock {
    int64_t t[STREAM_COUNT];
};

struct post {
    int place;
    bool send;
};

/* Which places an operand means, in c->reached. */
struct reach {
    int first, n;
};

struct rank_check {
    const struct graph *g;
    const struct program *p;
    struct spots places;
    struct state *state; /* by place */
    struct clock *event; /* by event: what its last record knows */
    struct clock streams[STREAM_COUNT];
    struct rank_facts *facts;
    bool first_step;
    bool blocks_zeroed;
    int wasted; /* a share that has been overwritten before anybody took it, -1 */
    int *reached, n_reached, cap_reached;
    struct reach reach[OP_MAX_OPERANDS];
    char mode[OP_MAX_OPERANDS + 1]; /* of the op's operands, 0 behind the last */
    struct post *posts;
    int n_posts, cap_posts;
    int n_messages; /* of this step so far */
    uint64_t
        *pairs[2];    /* by node: pairs of a ring's pieces that this action's list has computed, and their gradients */
    int *pairs_op[2]; /* the last op that did */
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
    {OP_POSITIONS, 2, 0}, {OP_DROPOUT, 2, 0},
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

static const struct buffer *buffer_of(const struct rank_check *c, int place)
{
    return &c->p->buffers[c->places.place[place].buffer];
}

static const char *name_of(const struct rank_check *c, int place)
{
    return buffer_of(c, place)->name;
}

static bool is_param(const struct rank_check *c, const struct buffer *b)
{
    return b->tensor >= 0 && c->g->tensors[b->tensor].kind == GT_PARAM;
}

static bool is_grad(const struct rank_check *c, int place)
{
    return buffer_of(c, place)->space == SPACE_GRAD && is_param(c, buffer_of(c, place));
}

static struct check_op op_at(const struct rank_check *c)
{
    return (struct check_op){&c->at, c->g, &c->p->ops[c->at.op], c->why};
}

/* ---- which places an operand means ---- */

static void reach_add(struct rank_check *c, struct reach *r, int place)
{
    c->reached[c->n_reached++] = place; /* room for all places of every operand */
    r->n++;
}

/* Of a unit's run the tensors of its table. */
static bool in_unit(const struct rank_check *c, const struct op *op, int place)
{
    const struct unit *u = &c->p->units[op->unit];
    for (int i = 0; i < u->n; i++)
        if (u->parts[i].tensor == buffer_of(c, place)->tensor)
            return true;
    return false;
}

/* Room for pieces of which this rank has none: a run without parts. */
static bool is_empty(const struct buffer *b)
{
    bool state = b->space == SPACE_PARAM || b->space == SPACE_OPT || b->space == SPACE_GRAD;
    return b->bytes == 0 || (state && b->tensor < 0 && b->slot_index != SLOT_TREE);
}

static void reach_run(struct rank_check *c, const struct op *op, int i, struct reach *r)
{
    int b = op->arg[i].buffer;
    int64_t size = (int64_t)dtype_bytes(c->p->buffers[b].dtype), extent = check_extent(c->p, op, i);
    int slot = c->p->actions[c->at.action].slot;
    int64_t lo = c->p->buffers[b].offset + program_dim(c->p, op->arg[i].offset, c->p->max_samples) * size;
    int64_t hi = extent ? lo + extent * size : INT64_MAX;
    bool unit = op->kind == OP_UNIT_GATHER || op->kind == OP_UNIT_SCATTER;
    if (c->p->buffers[b].slot_index == SLOT_ACTION) {
        lo += slot * c->p->buffers[b].slot_bytes;
        hi = extent ? lo + extent * size : hi;
    }
    for (int k = c->places.under_first[b]; k < c->places.under_first[b + 1]; k++) {
        const struct spot *s = &c->places.place[c->places.under[k]];
        bool other = c->p->buffers[s->buffer].slot_index == SLOT_ACTION && s->slot != slot;
        if (s->lo < hi && lo < s->hi && !other && !is_empty(&c->p->buffers[s->buffer]) &&
            (!unit || in_unit(c, op, c->places.under[k])))
            reach_add(c, r, c->places.under[k]);
    }
}

static void reach_buffer(struct rank_check *c, int b, struct reach *r)
{
    const struct action *action = &c->p->actions[c->at.action];
    int first = c->places.first[b], slots = is_empty(&c->p->buffers[b]) ? 0 : c->p->buffers[b].slots, only = -1;
    if (c->p->buffers[b].slot_index == SLOT_ACTION)
        only = action->slot;
    else if (c->p->buffers[b].slot_index == SLOT_MICRO)
        only = action->micro;
    for (int s = only < 0 ? 0 : only; s < (only < 0 ? slots : only + 1) && s < slots; s++)
        reach_add(c, r, first + s);
}

static void reach_all(struct rank_check *c, const struct op *op)
{
    c->n_reached = 0;
    memset(c->mode, 0, sizeof(c->mode));
    for (int i = 0; i < OP_MAX_OPERANDS && (c->mode[i] = op_mode(op, i)); i++) {
        c->reach[i] = (struct reach){c->n_reached, 0};
        if (op->arg[i].buffer < 0)
            continue;
        if (c->places.first[op->arg[i].buffer] < 0)
            reach_run(c, op, i, &c->reach[i]);
        else
            reach_buffer(c, op->arg[i].buffer, &c->reach[i]);
    }
}

static int place_at(const struct rank_check *c, int operand, int i)
{
    return c->reached[c->reach[operand].first + i];
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

static err_t flying_check(const struct rank_check *c, int place, int other, bool write)
{
    const struct state *s = &c->state[other];
    if (s->receiving)
        return check_fail(&c->at, c->why, "uses %s while %s is being received: nothing has waited for it",
                          name_of(c, place), name_of(c, other));
    if (write && s->sending)
        return check_fail(&c->at, c->why, "writes %s while %s is being sent: nothing has waited for it",
                          name_of(c, place), name_of(c, other));
    return OK;
}

static err_t order_operand(struct rank_check *c, const struct clock *now, int place, bool write)
{
    err_t e = order_check(c, now, place, place, write ? "writes" : NULL);
    if (!e)
        e = flying_check(c, place, place, write);
    for (int i = c->places.overlap_first[place]; write && !e && i < c->places.overlap_first[place + 1]; i++) {
        e = order_check(c, now, place, c->places.overlaps[i], "writes");
        if (!e)
            e = flying_check(c, place, c->places.overlaps[i], true);
    }
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

/* ---- reading ---- */

static err_t micro_check(struct rank_check *c, int place)
{
    int micro = c->p->actions[c->at.action].micro, is = c->state[place].micro;
    if (micro < 0 || is == NO_MICRO)
        return OK;
    if (is <= FIRST_MESSAGE) { /* what has been received for it */
        int *of = &c->facts->messages[FIRST_MESSAGE - is];
        is = *of = *of < 0 ? micro : *of;
    }
    if (micro == is)
        return OK;
    return check_fail(&c->at, c->why, "reads %s, which is of microbatch %d", name_of(c, place), is);
}

static err_t value_check(struct rank_check *c, int place)
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
    case VALUE_SET:
        break;
    }
    return micro_check(c, place);
}

static err_t operand_read(struct rank_check *c, const struct op *op, int place, char mode)
{
    const struct state *s = &c->state[place];
    if (op->kind == OP_TREE_LEAF || op->kind == OP_TREE_REDUCE) /* their own rules, in tree_check */
        return OK;
    err_t e = value_check(c, place);
    if (!e && mode == 'a' && s->spent && op->kind != OP_ADAMW)
        e = check_fail(&c->at, c->why, "adds to %s behind its reduce", name_of(c, place));
    return e;
}

static err_t check_aliases(const struct rank_check *c, const struct op *op, int i)
{
    for (int k = 0; c->mode[k]; k++) {
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
    char mode = c->mode[i];
    err_t e = mode != 'r' && op->kind != OP_TREE_LEAF ? check_aliases(c, op, i) : OK;
    for (int k = 0; k < c->reach[i].n && !e; k++) {
        int place = place_at(c, i, k);
        e = order_operand(c, now, place, mode != 'r');
        if (!e && mode != 'w')
            e = operand_read(c, op, place, mode);
    }
    return e;
}

/* ---- writing ---- */

static err_t overwrite_check(const struct rank_check *c, int place)
{
    const struct state *s = &c->state[place];
    if (s->value != VALUE_SET || s->spent || buffer_of(c, place)->space != SPACE_GRAD || s->layout.zero)
        return OK;
    if (s->reduced)
        return check_fail(&c->at, c->why, "overwrites %s behind its reduce", name_of(c, place));
    return check_fail(&c->at, c->why, "overwrites %s, which earlier ops of this step have added to", name_of(c, place));
}

/* A share of a gradient that nobody has taken yet. */
static bool is_due(const struct rank_check *c, int place)
{
    const struct state *s = &c->state[place];
    return s->value == VALUE_SET && !s->spent && is_grad(c, place) && layout_partial(&s->layout) >= 0;
}

/* What lies on the same bytes is gone. */
static void lose_others(struct rank_check *c, int place)
{
    for (int i = c->places.overlap_first[place]; i < c->places.overlap_first[place + 1]; i++) {
        struct state *o = &c->state[c->places.overlaps[i]];
        if (o->value == VALUE_NONE)
            continue;
        c->wasted = is_due(c, c->places.overlaps[i]) ? c->places.overlaps[i] : c->wasted;
        o->value = VALUE_LOST;
        o->lost_to = c->places.place[place].buffer;
        o->writer = c->at.op;
    }
}

/* A new value stands in `place`. */
static void put(struct rank_check *c, int place, const struct value_layout *l, unsigned reduced)
{
    const struct buffer *b = buffer_of(c, place);
    struct state *s = &c->state[place];
    bool of_micro = !is_param(c, b) && (b->space == SPACE_WORK || b->space == SPACE_HOST);
    s->value = VALUE_SET;
    s->layout = *l;
    s->reduced = reduced;
    s->sum_lo = INT64_MIN;
    s->sum_hi = INT64_MAX;
    s->spent = false;
    s->away = 0;
    s->among_zeros = l->zero || (s->among_zeros && c->p->ops[c->at.op].kind == OP_COPY_COLS);
    s->micro = of_micro ? c->p->actions[c->at.action].micro : NO_MICRO;
    s->writer = c->at.op;
    lose_others(c, place);
}

/* mode 'w' or 'a', with what the op makes. */
static err_t write_value(struct rank_check *c, int place, char mode, struct value_layout made)
{
    struct check_op op = op_at(c);
    struct state *s = &c->state[place];
    int buffer = c->places.place[place].buffer;
    err_t e = is_grad(c, place) ? layout_of_grad(&op, buffer, &made) : OK;
    if (!e && mode == 'w')
        e = overwrite_check(c, place);
    if (!e && mode == 'a') {
        struct value_layout sum = s->layout;
        e = layout_add(&op, buffer, &sum, s->reduced, &made);
        made = sum;
    }
    if (!e)
        put(c, place, &made, mode == 'a' ? s->reduced : 0);
    return e;
}

/* ---- rings ---- */

/* What another rank's tokens may be used for: to attend to, to be passed on, and their gradients to be added up. */
static bool takes_travelling(enum op_kind kind, int i)
{
    bool keys =
        (kind == OP_ATTENTION && (i == 1 || i == 2)) || (kind == OP_ATTENTION_GRAD && (i == 1 || i == 2 || i > 6));
    return keys || kind == OP_SHIFT || kind == OP_COPY_COLS || kind == OP_COPY || kind == OP_ADD;
}

static int away_of(const struct rank_check *c, int operand)
{
    return c->reach[operand].n ? c->state[place_at(c, operand, 0)].away : 0;
}

/* All travelling operands of an op are of one rank's tokens. */
static err_t check_travelling(const struct rank_check *c, const struct op *op, int *ret)
{
    int first = -1;
    *ret = 0;
    for (int i = 0; c->mode[i]; i++) {
        bool read = c->mode[i] != 'w' && c->reach[i].n && !c->state[place_at(c, i, 0)].layout.zero;
        if (!read || (!takes_travelling(op->kind, i) && away_of(c, i) == 0))
            continue;
        if (!takes_travelling(op->kind, i))
            return check_fail(&c->at, c->why, "reads %s, which is of the tokens of another rank",
                              name_of(c, place_at(c, i, 0)));
        if (first >= 0 && away_of(c, i) != *ret)
            return check_fail(&c->at, c->why, "takes %s with %s, which are of the tokens of different ranks",
                              name_of(c, place_at(c, i, 0)), name_of(c, place_at(c, first, 0)));
        first = first < 0 ? i : first;
        *ret = away_of(c, i);
    }
    return OK;
}

static err_t follow_ring(struct rank_check *c, const struct op *op, int *ret_away)
{
    struct check_op at = op_at(c);
    int grad = op->kind == OP_ATTENTION_GRAD;
    err_t e = check_travelling(c, op, ret_away);
    if (!e && (op->kind == OP_ATTENTION || grad) && op->node >= 0 && c->p->mesh.size[AXIS_CP] <= RING_MAX) {
        e = ring_pair(&at, *ret_away, &c->pairs[grad][op->node]);
        c->pairs_op[grad][op->node] = c->at.op;
    }
    if (op->kind == OP_SHIFT)
        *ret_away = ring_shifted(c->p, *ret_away, op->from);
    return e;
}

static err_t rings_over(struct rank_check *c)
{
    err_t e = OK;
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < c->g->n_nodes && !e; i++) {
            if (!c->pairs[k][i])
                continue;
            c->at.op = c->pairs_op[k][i];
            struct check_op at = op_at(c);
            e = ring_complete(&at, c->pairs[k][i]);
            c->pairs[k][i] = 0;
        }
    return e;
}

/* ---- kernels, and collectives of one value ---- */

static void loss_counted(struct rank_check *c, const struct op *op)
{
    int operand = op->kind == OP_LOSS_JOIN ? 3 : 2, micro = c->p->actions[c->at.action].micro;
    if (c->first_step && op->arg[operand].buffer >= 0 && micro >= 0)
        c->facts->losses[micro]++;
}

/* In an action without a microbatch what is made of a value is of its microbatch. */
static void pass_micro(struct rank_check *c, const struct op *op)
{
    int micro = c->reach[0].n ? c->state[place_at(c, 0, 0)].micro : NO_MICRO;
    for (int i = 1; c->mode[i]; i++)
        for (int k = 0; k < c->reach[i].n && c->mode[i] != 'r'; k++)
            c->state[place_at(c, i, k)].micro = micro;
}

static err_t apply_kernel(struct rank_check *c, const struct op *op)
{
    struct value_layout in[OP_MAX_OPERANDS], out[OP_MAX_OPERANDS];
    struct check_op at = op_at(c);
    int away = 0;
    memset(in, 0, sizeof(in));
    for (int i = 0; c->mode[i]; i++)
        if (c->reach[i].n)
            in[i] = c->state[place_at(c, i, 0)].layout;
    err_t e = c->p->mesh.size[AXIS_CP] > 1 ? follow_ring(c, op, &away) : OK;
    if (!e)
        e = layout_of_op(&at, in, out);
    if (!e && op->kind == OP_COPY_COLS && c->reach[1].n && c->state[place_at(c, 1, 0)].among_zeros)
        out[1] = layout_among_zeros(&out[1]);
    for (int i = 0; c->mode[i] && !e; i++)
        for (int k = 0; k < c->reach[i].n && !e && c->mode[i] != 'r'; k++)
            e = write_value(c, place_at(c, i, k), c->mode[i], out[i]);
    if (!e && c->p->actions[c->at.action].micro < 0)
        pass_micro(c, op);
    for (int i = 0; away && c->mode[i] && !e; i++)
        for (int k = 0; k < c->reach[i].n && c->mode[i] != 'r' && takes_travelling(op->kind, i); k++)
            c->state[place_at(c, i, k)].away = away;
    if (!e && (op->kind == OP_CROSS_ENTROPY || op->kind == OP_LOSS_JOIN))
        loss_counted(c, op);
    return e;
}

/* ---- what takes many values at once ---- */

static bool is_blocks(const struct rank_check *c, int buffer)
{
    const struct buffer *b = &c->p->buffers[buffer];
    return b->space == SPACE_HOST && b->dtype == DT_F64 && buffer != c->p->loss_buffer && buffer != c->p->norm_buffer &&
           buffer != c->p->clip_buffer;
}

/* The op zeroes some of a value that this microbatch has begun: the rest stays what it is. */
static bool zeroes_part(const struct rank_check *c, const struct op *op, int place)
{
    const struct state *s = &c->state[place];
    int64_t size = (int64_t)dtype_bytes(buffer_of(c, place)->dtype);
    return s->value == VALUE_SET && s->micro >= 0 && s->micro == c->p->actions[c->at.action].micro &&
           check_extent(c->p, op, 0) * size < buffer_of(c, place)->bytes;
}

static err_t apply_zero(struct rank_check *c, const struct op *op)
{
    static const struct value_layout zero = {{0}, true};
    err_t e = OK;
    for (int k = 0; k < c->reach[0].n && !e; k++) {
        int place = place_at(c, 0, k);
        e = overwrite_check(c, place);
        if (!e && zeroes_part(c, op, place))
            lose_others(c, place);
        else if (!e)
            put(c, place, &zero, 0);
        if (is_blocks(c, c->places.place[place].buffer))
            c->blocks_zeroed = true;
    }
    return e;
}

/* The place of operand `operand` with the tensor that is in `place`; -1. */
static int same_tensor(const struct rank_check *c, int operand, int place)
{
    for (int k = 0; k < c->reach[operand].n; k++)
        if (buffer_of(c, place_at(c, operand, k))->tensor == buffer_of(c, place)->tensor)
            return place_at(c, operand, k);
    return -1;
}

/* Copies: each place of y gets what the place of the same tensor in x is. */
static err_t apply_cast(struct rank_check *c)
{
    for (int k = 0; k < c->reach[1].n; k++) {
        int y = place_at(c, 1, k), x = same_tensor(c, 0, y);
        if (x < 0)
            return check_fail(&c->at, c->why, "casts what is not its parameter to %s", name_of(c, y));
        put(c, y, &c->state[x].layout, 0);
    }
    return OK;
}

static err_t reduce_blocks(struct rank_check *c, const struct op *op)
{
    if (!c->first_step)
        return OK;
    if (c->facts->blocks_group >= 0)
        return check_fail(&c->at, c->why, "reduces the blocks of squares a second time in this step");
    if (!c->blocks_zeroed)
        return check_fail(&c->at, c->why, "reduces blocks of squares that still hold the sums of the step before");
    c->facts->blocks_group = op->group;
    return OK;
}

static err_t apply_all_reduce(struct rank_check *c, const struct op *op)
{
    struct check_op at = op_at(c);
    unsigned axes = check_group_axes(c->p, op->group);
    int64_t size = (int64_t)dtype_bytes(c->p->buffers[op->arg[0].buffer].dtype);
    int64_t lo =
        c->p->buffers[op->arg[0].buffer].offset + program_dim(c->p, op->arg[0].offset, c->p->max_samples) * size;
    if (op->reduce != REDUCE_SUM)
        return check_fail(&c->at, c->why, "does not sum %s, of which every rank has a share",
                          c->p->buffers[op->arg[0].buffer].name);
    if (is_blocks(c, op->arg[0].buffer))
        return reduce_blocks(c, op);
    for (int k = 0; k < c->reach[0].n; k++) {
        int place = place_at(c, 0, k), b = c->places.place[place].buffer;
        struct state *s = &c->state[place];
        err_t e = layout_reduce(&at, b, axes, &s->layout, &s->reduced);
        if (!e)
            e = check_group_is(&c->at, c->g, op->group, axes, is_grad(c, place) ? c->p->buffers[b].tensor : -1,
                               c->p->buffers[b].name, c->why);
        if (e)
            return e;
        s->sum_lo = lo > s->sum_lo ? lo : s->sum_lo;
        s->sum_hi =
            lo + check_extent(c->p, op, 0) * size < s->sum_hi ? lo + check_extent(c->p, op, 0) * size : s->sum_hi;
        lose_others(c, place);
    }
    return OK;
}

/* Whether this rank has any rows of the local tensor. */
static bool has_piece(const struct rank_check *c, int place)
{
    const struct place_param *q = &c->p->place.param[buffer_of(c, place)->tensor];
    return q->lo < q->hi;
}

/* Pieces become local tensors. */
static err_t apply_unit_gather(struct rank_check *c)
{
    for (int k = 0; k < c->reach[1].n; k++) {
        int y = place_at(c, 1, k);
        struct value_layout l = layout_of_param(c->p, c->g, buffer_of(c, y)->tensor, false);
        if (has_piece(c, y) && same_tensor(c, 0, y) < 0)
            return check_fail(&c->at, c->why, "gathers %s, of which it sends no piece", name_of(c, y));
        put(c, y, &l, 0);
    }
    return OK;
}

/* Local gradient x is summed into the piece's y, which a rank without a piece does not have. */
static err_t scatter_one(struct rank_check *c, const struct op *op, int x, int y)
{
    struct check_op at = op_at(c);
    struct value_layout l = c->state[x].layout;
    unsigned reduced = c->state[x].reduced;
    err_t e = c->state[x].spent ? check_fail(&c->at, c->why, "reduces %s a second time in this step", name_of(c, x))
                                : layout_reduce(&at, c->places.place[x].buffer, 1u << AXIS_FSDP, &l, &reduced);
    c->state[x].spent = true;
    if (e || y < 0)
        return e;
    l.on[AXIS_FSDP] = ON_PIECE;
    struct value_layout sum = c->state[y].layout;
    if (!(op->flags & OPF_ACC))
        e = overwrite_check(c, y);
    else if (!(e = layout_add(&at, c->places.place[y].buffer, &sum, c->state[y].reduced, &l)))
        l = sum;
    if (!e)
        put(c, y, &l, op->flags & OPF_ACC ? c->state[y].reduced : reduced);
    return e;
}

static err_t apply_unit_scatter(struct rank_check *c, const struct op *op)
{
    err_t e = OK;
    for (int k = 0; k < c->reach[0].n && !e; k++) {
        int x = place_at(c, 0, k), y = same_tensor(c, 1, x);
        if (has_piece(c, x) && y < 0)
            e = check_fail(&c->at, c->why, "scatters %s, of whose piece it has no gradient", name_of(c, x));
        else
            e = scatter_one(c, op, x, y);
    }
    return e;
}

/* ---- the canonical tree ---- */

/* Leaves join once each, in ascending order. */
static err_t apply_leaf(struct rank_check *c)
{
    const struct program *p = c->p;
    int micro = p->actions[c->at.action].micro;
    struct value_layout leaf = {{0}, true};
    for (int k = 0; k < c->reach[0].n; k++) {
        int x = place_at(c, 0, k);
        struct state *s = &c->state[x];
        err_t e = value_check(c, x);
        if (!e && micro != p->first_micro + s->leaves)
            e = check_fail(&c->at, c->why, "puts microbatch %d of %s into the tree when %d is next", micro,
                           name_of(c, x), p->first_micro + s->leaves);
        if (!e && s->reduced)
            e = check_fail(&c->at, c->why, "puts %s into the tree, which has been reduced", name_of(c, x));
        if (e)
            return e;
        s->leaves++;
        leaf = s->layout;
        s->value = VALUE_STALE; /* the next microbatch starts its own */
    }
    for (int k = 0; k < c->reach[1].n; k++)
        put(c, place_at(c, 1, k), &leaf, 0);
    return OK;
}

/* What the leaves of this gradient were: its parameter's, with shares on the axes of the batch, and what tp adds. The
 * leaf's own layout is kept in its state. */
static err_t apply_tree_reduce(struct rank_check *c, const struct op *op)
{
    struct check_op at = op_at(c);
    const struct program *p = c->p;
    unsigned axes = op->group >= 0 ? check_group_axes(p, op->group) : 0;
    unsigned due =
        (p->mesh.size[AXIS_DP] > 1 ? 1u << AXIS_DP : 0) | (p->mesh.size[AXIS_FSDP] > 1 ? 1u << AXIS_FSDP : 0);
    if (axes != due)
        return check_fail(&c->at, c->why, "joins trees over other axes than dp and fsdp, which have the microbatches");
    for (int k = 0; k < c->reach[1].n; k++) {
        int x = place_at(c, 1, k), b = c->places.place[x].buffer;
        struct state *s = &c->state[x];
        unsigned reduced = s->value == VALUE_SET ? s->reduced : 0;
        err_t e = OK;
        if (s->value == VALUE_SET && reduced)
            e = check_fail(&c->at, c->why, "reduces %s a second time in this step", name_of(c, x));
        else if (s->leaves != p->end_micro - p->first_micro)
            e = check_fail(&c->at, c->why, "reduces %s when %d of this rank's %d leaves are in the tree", name_of(c, x),
                           s->leaves, p->end_micro - p->first_micro);
        struct value_layout l = s->leaves ? s->layout : (struct value_layout){{0}, true};
        if (!e)
            e = layout_reduce(&at, b, axes, &l, &reduced);
        if (!e && axes)
            e = check_group_is(&c->at, c->g, op->group, axes, -1, name_of(c, x), c->why);
        if (e)
            return e;
        put(c, x, &l, reduced | due | 1u << AXIS_COUNT); /* summed over this rank's own microbatches too */
    }
    return OK;
}

/* ---- once a step ---- */

static err_t apply_norm(struct rank_check *c)
{
    struct check_op at = op_at(c);
    static const struct value_layout whole = {{0}, false};
    for (int k = 0; k < c->reach[0].n; k++) {
        const struct state *s = &c->state[place_at(c, 0, k)];
        err_t e = check_summed(&at, 0, &s->layout, s->reduced);
        if (e)
            return e;
    }
    for (int k = 0; k < c->reach[1].n; k++)
        put(c, place_at(c, 1, k), &whole, 0);
    return c->first_step ? check_norm(&at, c->facts) : OK;
}

static err_t apply_clip(struct rank_check *c)
{
    static const struct value_layout whole = {{0}, false};
    for (int k = 0; k < c->reach[1].n; k++) {
        int place = place_at(c, 1, k), axis = layout_partial(&c->state[place].layout);
        if (axis >= 0)
            return check_fail(&c->at, c->why,
                              "reads %s, which is this rank's share of a sum over %s: nothing has "
                              "reduced it",
                              name_of(c, place), mesh_axis_name((enum mesh_axis)axis));
    }
    for (int i = 2; i < 4; i++)
        for (int k = 0; k < c->reach[i].n; k++)
            put(c, place_at(c, i, k), &whole, 0);
    c->facts->clips = true;
    c->facts->total_blocks = c->p->ops[c->at.op].m.factor;
    return OK;
}

/* The bytes of the gradient that are read lie in those that were summed. */
static err_t check_range(const struct rank_check *c, const struct op *op, int i)
{
    const struct buffer *b = &c->p->buffers[op->arg[i].buffer];
    int64_t size = (int64_t)dtype_bytes(b->dtype);
    int64_t lo = b->offset + program_dim(c->p, op->arg[i].offset, c->p->max_samples) * size;
    for (int k = 0; k < c->reach[i].n; k++) {
        const struct state *s = &c->state[place_at(c, i, k)];
        if (lo < s->sum_lo || lo + check_extent(c->p, op, i) * size > s->sum_hi)
            return check_fail(&c->at, c->why, "reads elements of %s that no reduce has summed", b->name);
    }
    return OK;
}

static err_t apply_adamw(struct rank_check *c, const struct op *op)
{
    struct check_op at = op_at(c);
    err_t e = check_update(&at);
    if (!e)
        e = check_range(c, op, 3);
    for (int k = 0; k < c->reach[3].n && !e; k++) {
        struct state *s = &c->state[place_at(c, 3, k)];
        int t = buffer_of(c, place_at(c, 3, k))->tensor;
        e = check_summed(&at, 3, &s->layout, s->reduced);
        if (!e && t >= 0)
            c->facts->reduced[t] = (unsigned char)(s->reduced & ~(1u << AXIS_COUNT));
        s->spent = true;
    }
    for (int i = 0; i < 3 && !e; i++)
        for (int k = 0; k < c->reach[i].n; k++)
            c->state[place_at(c, i, k)].updates++;
    return e;
}

/* ---- messages ---- */

static err_t post_add(struct rank_check *c, int place, bool send)
{
    if (c->n_posts == c->cap_posts) {
        int cap = c->cap_posts ? 2 * c->cap_posts : 16;
        struct post *grown = realloc(c->posts, (size_t)cap * sizeof(*grown));
        if (!grown)
            return ERR_NOMEM;
        c->posts = grown;
        c->cap_posts = cap;
    }
    c->posts[c->n_posts++] = (struct post){place, send};
    return OK;
}

/* Which microbatch the message is of: a send's is known, a receive's when somebody reads it. */
static err_t message_add(struct rank_check *c, const struct op *op, int *ret)
{
    struct rank_facts *f = c->facts;
    int is = c->reach[0].n ? c->state[place_at(c, 0, 0)].micro : NO_MICRO;
    if (c->n_messages >= f->n_messages) {
        int n = f->n_messages ? 2 * f->n_messages : 64;
        int *grown = realloc(f->messages, (size_t)n * sizeof(*grown));
        if (!grown)
            return ERR_NOMEM;
        f->messages = grown;
        f->n_messages = n;
    }
    *ret = c->n_messages++;
    f->messages[*ret] = op->kind == OP_RECV ? NO_MICRO : is <= FIRST_MESSAGE ? f->messages[FIRST_MESSAGE - is] : is;
    return OK;
}

static err_t apply_post(struct rank_check *c, const struct op *op)
{
    int message = 0;
    err_t e = message_add(c, op, &message);
    if (!e)
        e = apply_kernel(c, op);
    for (int k = 0; k < c->reach[0].n && !e; k++) {
        int place = place_at(c, 0, k);
        if (op->kind == OP_SEND) {
            c->state[place].sending++;
        } else {
            c->state[place].receiving = true;
            c->state[place].micro = FIRST_MESSAGE - message;
        }
        e = post_add(c, place, op->kind == OP_SEND);
    }
    return e;
}

/* Only here the messages are over: who waits for an event of a post knows nothing. */
static void posts_over(struct rank_check *c, const struct clock *now, enum op_stream stream)
{
    for (int i = 0; i < c->n_posts; i++) {
        struct state *s = &c->state[c->posts[i].place];
        touch(c, now, stream, c->posts[i].place, c->posts[i].send ? 'r' : 'w');
        if (c->posts[i].send)
            s->sending--;
        else
            s->receiving = false;
    }
    c->n_posts = 0;
}

/* ---- one op ---- */

static err_t op_apply(struct rank_check *c, const struct op *op)
{
    switch (op->kind) {
    case OP_ZERO:
        return apply_zero(c, op);
    case OP_CAST:
        return apply_cast(c);
    case OP_ALL_REDUCE:
        return apply_all_reduce(c, op);
    case OP_UNIT_GATHER:
        return apply_unit_gather(c);
    case OP_UNIT_SCATTER:
        return apply_unit_scatter(c, op);
    case OP_TREE_LEAF:
        return apply_leaf(c);
    case OP_TREE_REDUCE:
        return apply_tree_reduce(c, op);
    case OP_NORM:
        return apply_norm(c);
    case OP_CLIP:
        return apply_clip(c);
    case OP_ADAMW:
        return apply_adamw(c, op);
    case OP_SEND:
    case OP_RECV:
        return apply_post(c, op);
    case OP_SNAPSHOT:
    case OP_WAIT_ALL:
        return OK;
    default:
        return apply_kernel(c, op);
    }
}

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
    reach_all(c, op);
    for (int i = 0; c->mode[i] && !e; i++)
        e = operand_check(c, op, &now, i);
    for (int i = 0; c->mode[i] && !e; i++)
        for (int k = 0; k < c->reach[i].n; k++)
            touch(c, &now, op->stream, place_at(c, i, k), c->mode[i]);
    if (!e)
        e = op_apply(c, op);
    if (!e && c->wasted >= 0)
        e = check_fail(&c->at, c->why, "overwrites the bytes of %s, a share of a sum that nothing has taken",
                       name_of(c, c->wasted));
    if (op->kind == OP_WAIT_ALL)
        posts_over(c, &now, op->stream);
    c->streams[op->stream] = now;
    if (op->event >= 0)
        c->event[op->event] = now;
    return e;
}

/* ---- steps ---- */

/* What outlives a step: parameters and moments. All else, gathered and cast parameters too, must be made anew. */
static bool outlives(const struct rank_check *c, int place)
{
    const struct buffer *b = buffer_of(c, place);
    int buffer = c->places.place[place].buffer;
    if (b->tensor < 0 || !is_param(c, b))
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
    const struct buffer *b = buffer_of(c, place);
    bool train = c->p->mode == MODE_TRAIN && is_param(c, b) && outlives(c, place) && b->bytes > 0;
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
        const struct buffer *b = buffer_of(c, i);
        bool loss = c->places.place[i].buffer == p->loss_buffer;
        int axis = s->value == VALUE_SET ? layout_partial(&s->layout) : -1;
        if (axis >= 0 && !s->spent && (loss || (is_grad(c, i) && has_piece(c, i))))
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
        reach_buffer(c, inputs[i], &r);
        for (int k = 0; k < r.n && !e; k++) {
            e = order_check(c, now, c->reached[k], c->reached[k], "finds the host writing");
            touch(c, now, STREAM_COMPUTE, c->reached[k], 'w');
            put(c, c->reached[k], &l, 0);
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
            e = rings_over(c);
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
        const struct buffer *b = buffer_of(c, i);
        if (!outlives(c, i))
            continue;
        struct value_layout l = {{0}, false};
        if (is_param(c, b))
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
    return f->reduced && f->losses ? OK : ERR_NOMEM;
}

void rank_facts_fini(struct rank_facts *f)
{
    free(f->reduced);
    free(f->losses);
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
    c.reached = calloc((size_t)c.places.n * OP_MAX_OPERANDS + 1, sizeof(*c.reached));
    for (int i = 0; i < 2; i++) {
        c.pairs[i] = calloc((size_t)g->n_nodes + 1, sizeof(*c.pairs[i]));
        c.pairs_op[i] = calloc((size_t)g->n_nodes + 1, sizeof(*c.pairs_op[i]));
    }
    bool room = c.pairs[0] && c.pairs[1] && c.pairs_op[0] && c.pairs_op[1];
    e = c.state && c.event && c.reached && room ? check_steps(&c) : ERR_NOMEM;
    for (int i = 0; i < 2; i++) {
        free(c.pairs[i]);
        free(c.pairs_op[i]);
    }
    free(c.state);
    free(c.event);
    free(c.reached);
    free(c.posts);
    spots_fini(&c.places);
    return e;
}
