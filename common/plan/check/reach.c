/* Finds the intervals that an operand covers, checks whether the op may access them now, and tracks the state of
 * values.
 *
 * The order between streams is kept with vector clocks. The clock of an op counts, for each stream, the ops that are
 * certain to be complete when it runs; an event passes the clock of its record to the ops that wait for it. An access
 * is legal when the op's clock covers the last write, and for a write also the last reads, of the interval and of every
 * interval that shares bytes with it. */
#include "common/plan/check/operands.h"
#include "common/plan/check/rank.h"

#include <string.h>

static bool alias_allowed(const struct op *op, int written, int other)
{
    if (op->kind == OP_ATTENTION_GRAD && written >= 6 && other >= 6 && other < 9) /* column ranges of one matrix */
        return op->arg[written].col != op->arg[other].col;
    const struct operand_rules *rules = &check_operands[op->kind];
    for (int i = 0; i < OPERAND_MAX_ALIASES && rules->alias[i].written; i++)
        if (rules->alias[i].written == written && rules->alias[i].read == other)
            return true;
    return false;
}

/* ---- intervals of an operand ---- */

static void reach_add(struct rank_check *c, struct reach *r, int interval)
{
    c->reached[c->n_reached++] = interval; /* has room for all intervals of every operand */
    r->n++;
}

/* Whether the interval belongs to a tensor in the unit's table. */
static bool in_unit(const struct rank_check *c, const struct op *op, int interval)
{
    const struct fsdp_unit *u = &c->p->units[op->unit];
    for (int i = 0; i < u->n; i++)
        if (u->parts[i].tensor == rank_buffer(c, interval)->tensor)
            return true;
    return false;
}

/* Room that stays empty: a run for pieces of which this rank has none. */
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
    for (int k = c->intervals.under_first[b]; k < c->intervals.under_first[b + 1]; k++) {
        const struct interval *s = &c->intervals.at[c->intervals.under[k]];
        bool other = c->p->buffers[s->buffer].slot_index == SLOT_ACTION && s->slot != slot;
        if (s->lo < hi && lo < s->hi && !other && !is_empty(&c->p->buffers[s->buffer]) &&
            (!unit || in_unit(c, op, c->intervals.under[k])))
            reach_add(c, r, c->intervals.under[k]);
    }
}

void rank_reach_buffer(struct rank_check *c, int b, struct reach *r)
{
    const struct action *action = &c->p->actions[c->at.action];
    int first = c->intervals.first[b], slots = is_empty(&c->p->buffers[b]) ? 0 : c->p->buffers[b].slots, only = -1;
    if (c->p->buffers[b].slot_index == SLOT_ACTION)
        only = action->slot;
    else if (c->p->buffers[b].slot_index == SLOT_MICRO)
        only = action->micro;
    for (int s = only < 0 ? 0 : only; s < (only < 0 ? slots : only + 1) && s < slots; s++)
        reach_add(c, r, first + s);
}

void rank_reach(struct rank_check *c, const struct op *op)
{
    c->n_reached = 0;
    memset(c->mode, 0, sizeof(c->mode));
    for (int i = 0; i < OP_MAX_OPERANDS && (c->mode[i] = op_mode(op, i)); i++) {
        c->reach[i] = (struct reach){c->n_reached, 0};
        if (op->arg[i].buffer < 0)
            continue;
        if (c->intervals.first[op->arg[i].buffer] < 0)
            reach_run(c, op, i, &c->reach[i]);
        else
            rank_reach_buffer(c, op->arg[i].buffer, &c->reach[i]);
    }
}

/* ---- order between streams ---- */

static err_t order_fail(const struct rank_check *c, int interval, int other, const char *what)
{
    return check_fail(&c->at, c->why,
                      "%s %s while %s %s may still be running on another stream; it must wait for an event", what,
                      rank_name(c, interval), other == interval ? "an earlier op on" : "an op on the same bytes as",
                      rank_name(c, other));
}

/* `writes`: the verb of the message for a write; NULL: the access is a read. */
err_t rank_order(const struct rank_check *c, const struct clock *now, int interval, int other, const char *writes)
{
    const struct value_state *s = &c->state[other];
    if (s->write_time > now->t[s->write_stream])
        return order_fail(c, interval, other, writes ? writes : "reads");
    for (int k = 0; k < STREAM_COUNT && writes; k++)
        if (s->read_time[k] > now->t[k])
            return order_fail(c, interval, other, writes);
    return OK;
}

static err_t flying_check(const struct rank_check *c, int interval, int other, bool write)
{
    const struct value_state *s = &c->state[other];
    if (s->receiving)
        return check_fail(&c->at, c->why, "uses %s while %s is being received; a wait must come first",
                          rank_name(c, interval), rank_name(c, other));
    if (write && s->sending)
        return check_fail(&c->at, c->why, "writes %s while %s is being sent; a wait must come first",
                          rank_name(c, interval), rank_name(c, other));
    return OK;
}

static err_t order_operand(struct rank_check *c, const struct clock *now, int interval, bool write)
{
    err_t e = rank_order(c, now, interval, interval, write ? "writes" : NULL);
    if (!e)
        e = flying_check(c, interval, interval, write);
    for (int i = c->intervals.overlap_first[interval]; write && !e && i < c->intervals.overlap_first[interval + 1];
         i++) {
        e = rank_order(c, now, interval, c->intervals.overlaps[i], "writes");
        if (!e)
            e = flying_check(c, interval, c->intervals.overlaps[i], true);
    }
    return e;
}

void rank_touch(struct rank_check *c, const struct clock *now, enum op_stream stream, int interval, char mode)
{
    struct value_state *s = &c->state[interval];
    if (mode != 'w')
        s->read_time[stream] = now->t[stream];
    if (mode != 'r') {
        s->write_stream = (int)stream;
        s->write_time = now->t[stream];
    }
}

/* ---- reading ---- */

static err_t micro_check(struct rank_check *c, int interval)
{
    int micro = c->p->actions[c->at.action].micro, is = c->state[interval].micro;
    if (micro < 0 || is == NO_MICRO)
        return OK;
    if (is <= FIRST_MESSAGE) { /* the first read of a received value determines its microbatch */
        int *of = &c->facts->messages[FIRST_MESSAGE - is];
        is = *of = *of < 0 ? micro : *of;
    }
    if (micro == is)
        return OK;
    return check_fail(&c->at, c->why, "reads %s, which belongs to microbatch %d", rank_name(c, interval), is);
}

err_t rank_readable(struct rank_check *c, int interval)
{
    const struct value_state *s = &c->state[interval];
    const char *name = rank_name(c, interval);
    switch (s->value) {
    case VALUE_NONE:
        return check_fail(&c->at, c->why, "reads %s before anything has written it", name);
    case VALUE_STALE:
        return check_fail(&c->at, c->why, "reads %s, which still holds a value of an earlier step or microbatch", name);
    case VALUE_LOST:
        return check_fail(&c->at, c->why, "reads %s, whose bytes were overwritten as %s by op %d", name,
                          c->p->buffers[s->lost_to].name, s->writer);
    case VALUE_SET:
        break;
    }
    if (s->part.due)
        return check_fail(&c->at, c->why, "reads %s before all parts of it have been written", name);
    return micro_check(c, interval);
}

static err_t operand_read(struct rank_check *c, const struct op *op, int interval, char mode)
{
    const struct value_state *s = &c->state[interval];
    if (op->kind == OP_TREE_LEAF || op->kind == OP_TREE_REDUCE) /* sums.c checks these */
        return OK;
    err_t e = rank_readable(c, interval);
    if (!e && mode == 'a' && s->spent && op->kind != OP_ADAMW)
        e = check_fail(&c->at, c->why, "adds to %s after its reduce", rank_name(c, interval));
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

err_t rank_operand(struct rank_check *c, const struct op *op, const struct clock *now, int i)
{
    char mode = c->mode[i];
    err_t e = mode != 'r' && op->kind != OP_TREE_LEAF ? check_aliases(c, op, i) : OK;
    for (int k = 0; k < c->reach[i].n && !e; k++) {
        int interval = rank_interval(c, i, k);
        e = order_operand(c, now, interval, mode != 'r');
        if (!e && mode != 'w')
            e = operand_read(c, op, interval, mode);
    }
    return e;
}

/* ---- writing ---- */

/* Numbers of routers are sums over all microbatches of the step. */
static bool is_of_step(const struct rank_check *c, int buffer)
{
    return program_number(c->p, buffer) != NUMBER_COUNT;
}

err_t rank_overwrite(const struct rank_check *c, int interval)
{
    const struct value_state *s = &c->state[interval];
    bool sum = rank_buffer(c, interval)->space == SPACE_GRAD || is_of_step(c, c->intervals.at[interval].buffer);
    if (s->value != VALUE_SET || s->spent || !sum || s->layout.zero)
        return OK;
    if (s->reduced)
        return check_fail(&c->at, c->why, "overwrites %s after its reduce", rank_name(c, interval));
    return check_fail(&c->at, c->why, "overwrites %s, which earlier ops of this step have added to",
                      rank_name(c, interval));
}

/* A share of a gradient that has not been used yet. */
static bool is_due(const struct rank_check *c, int interval)
{
    const struct value_state *s = &c->state[interval];
    return s->value == VALUE_SET && !s->spent && rank_is_grad(c, interval) && layout_partial(&s->layout) >= 0;
}

/* The values of intervals that share bytes with this one are lost. */
void rank_lose(struct rank_check *c, int interval)
{
    for (int i = c->intervals.overlap_first[interval]; i < c->intervals.overlap_first[interval + 1]; i++) {
        struct value_state *o = &c->state[c->intervals.overlaps[i]];
        if (o->value == VALUE_NONE)
            continue;
        c->wasted = is_due(c, c->intervals.overlaps[i]) ? c->intervals.overlaps[i] : c->wasted;
        o->value = VALUE_LOST;
        o->lost_to = c->intervals.at[interval].buffer;
        o->writer = c->at.op;
    }
}

/* Puts a new value into the interval. */
void rank_put(struct rank_check *c, int interval, const struct value_layout *l, unsigned reduced)
{
    const struct buffer *b = rank_buffer(c, interval);
    struct value_state *s = &c->state[interval];
    bool of_micro =
        !rank_is_param(c, b) && !is_of_step(c, c->intervals.at[interval].buffer) &&
        (b->space == SPACE_WORK || b->space == SPACE_SENT || b->space == SPACE_SHARED || b->space == SPACE_HOST);
    s->value = VALUE_SET;
    s->layout = *l;
    s->reduced = reduced;
    s->sum_lo = INT64_MIN;
    s->sum_hi = INT64_MAX;
    s->spent = false;
    s->away = 0;
    s->part = (struct value_part){0};
    s->among_zeros = l->zero || (s->among_zeros && c->p->ops[c->at.op].kind == OP_COPY_COLS);
    s->micro = of_micro ? c->p->actions[c->at.action].micro : NO_MICRO;
    s->writer = c->at.op;
    rank_lose(c, interval);
}

/* Writes (mode 'w') or adds (mode 'a') the result of the op. */
err_t rank_write(struct rank_check *c, int interval, char mode, struct value_layout made)
{
    struct check_op op = rank_op(c);
    struct value_state *s = &c->state[interval];
    int buffer = c->intervals.at[interval].buffer;
    err_t e = rank_is_grad(c, interval) ? layout_of_grad(&op, buffer, &made) : OK;
    if (!e && mode == 'w')
        e = rank_overwrite(c, interval);
    if (!e && mode == 'a') {
        struct value_layout sum = s->layout;
        e = layout_add(&op, buffer, &sum, s->reduced, &made);
        made = sum;
    }
    if (!e)
        rank_put(c, interval, &made, mode == 'a' ? s->reduced : 0);
    return e;
}
