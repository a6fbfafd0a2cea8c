/* Events between streams, derived from the bytes that each op accesses. No operator's rule deals with events.
 *
 * The pass simulates two steps of the rank's actions op by op, with vector clocks. A stream's clock has, for every
 * stream, the number of its ops that are known to be complete; an event carries the clock of its stream. Before an op
 * reads or writes bytes that another stream wrote, or writes bytes that another stream read, the op's stream must know
 * that the other op is complete. If it does not, the op gets a wait for the other op, which records an event.
 *
 *   compute   | gemm: writes x, records event 7 |                           | add: waits for event 8
 *   comm                                          | all_reduce: waits for event 7, records event 8 |
 *
 * Both kinds of steps are simulated, with and without a save, because a run saves only in some steps and no order may
 * depend on one. Two steps are enough: from the second on, every step accesses the same bytes in the same order.
 *
 * Actions share lists of ops, so the waits of an op are the union of what its actions need. A wait refers to the latest
 * record before it, so a wait that only one action needs is harmless in the others. Where an op needs more than
 * OP_MAX_WAITS waits, ops of the same stream record one common event.
 *
 * Memory is divided at every start and end of an instance of a buffer; the bytes between two such cuts, an atom, are
 * tracked together. A message belongs to send or recv from its post until its wait, which counts as a write. The host
 * writes its batch on the compute stream before a forward, and no other stream accesses those buffers. */
#include "common/plan/compile/internal.h"
#include "common/plan/mutant.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct stream_clock {
    int t[STREAM_COUNT];
};

struct atom {
    int write_stream, write_time;
    int read_time[STREAM_COUNT]; /* since the write */
};

/* The atoms of an instance of a buffer. */
struct atom_range {
    int lo, hi; /* atoms */
};

struct event_pass {
    struct compiler *c;
    const struct program *p;
    int64_t *cuts[SPACE_COUNT]; /* ascending, without equal ones */
    int n_cuts[SPACE_COUNT];
    int base[SPACE_COUNT]; /* the space's first atom */
    struct atom *atoms;
    int n_atoms;
    int *first;                /* by buffer: its first range; -1: no op uses it */
    struct atom_range *ranges; /* by buffer and instance */
    struct stream_clock stream[STREAM_COUNT];
    struct stream_clock *known; /* by event: its stream's clock after the latest record; zeros: none */
    int *log[STREAM_COUNT];     /* by time: the op */
    int cap_log;
    bool *recorded; /* by op: another op waits for it */
    int *same;      /* by op: another op that records the same event; the op itself: it names the event */
    int *number;    /* by event */
};

/* ---- atoms ---- */

/* Instances that are tracked separately. The losses of all microbatches count as one instance: each is a few bytes, and
 * there may be many. */
static int instances(const struct buffer *b)
{
    return b->slot_index == SLOT_MICRO ? 1 : b->slots;
}

static int64_t instance_lo(const struct buffer *b, int i)
{
    return b->offset + i * b->slot_bytes;
}

static int64_t instance_hi(const struct buffer *b, int i)
{
    return b->slot_index == SLOT_MICRO ? b->offset + (b->slots - 1) * b->slot_bytes + b->bytes
                                       : instance_lo(b, i) + b->bytes;
}

static int by_value(const void *x, const void *y)
{
    const int64_t *a = x, *b = y;
    return (*a > *b) - (*a < *b);
}

static int find_cut(const struct event_pass *s, enum buffer_space space, int64_t at)
{
    int lo = 0, hi = s->n_cuts[space];
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (s->cuts[space][mid] < at)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static void make_cuts(struct event_pass *s, enum buffer_space space, size_t room)
{
    const struct program *p = s->p;
    int64_t *cuts = malloc((2 * room + 1) * sizeof(*cuts));
    int n = 0, kept = 0;
    s->cuts[space] = cuts;
    if (!cuts) {
        s->c->err = ERR_NOMEM;
        return;
    }
    for (int b = 0; b < p->n_buffers; b++)
        for (int i = 0; s->first[b] >= 0 && p->buffers[b].space == space && i < instances(&p->buffers[b]); i++) {
            cuts[n++] = instance_lo(&p->buffers[b], i);
            cuts[n++] = instance_hi(&p->buffers[b], i);
        }
    qsort(cuts, (size_t)n, sizeof(*cuts), by_value);
    for (int i = 0; i < n; i++)
        if (!kept || cuts[kept - 1] != cuts[i])
            cuts[kept++] = cuts[i];
    s->n_cuts[space] = kept;
    s->base[space] = s->n_atoms;
    s->n_atoms += kept;
}

/* Numbers the instances of all buffers that ops use; returns their number. */
static int number_instances(struct event_pass *s)
{
    const struct program *p = s->p;
    int n = 0;
    for (int b = 0; b < p->n_buffers; b++)
        s->first[b] = -1;
    for (int i = 0; i < p->n_ops; i++)
        for (int k = 0; k < OP_MAX_OPERANDS; k++)
            if (p->ops[i].arg[k].buffer >= 0)
                s->first[p->ops[i].arg[k].buffer] = 0;
    for (int b = 0; b < p->n_buffers; b++) {
        if (s->first[b] < 0)
            continue;
        s->first[b] = n;
        n += instances(&p->buffers[b]);
    }
    return n;
}

static void make_atoms(struct event_pass *s)
{
    const struct program *p = s->p;
    int n = number_instances(s);
    s->ranges = malloc(((size_t)n + 1) * sizeof(*s->ranges));
    if (!s->ranges)
        s->c->err = ERR_NOMEM;
    for (int space = 0; space < SPACE_COUNT && !s->c->err; space++)
        make_cuts(s, (enum buffer_space)space, (size_t)n);
    for (int b = 0; b < p->n_buffers && !s->c->err; b++) {
        const struct buffer *buffer = &p->buffers[b];
        for (int i = 0; s->first[b] >= 0 && i < instances(buffer); i++)
            s->ranges[s->first[b] + i] = (struct atom_range){
                s->base[buffer->space] + find_cut(s, buffer->space, instance_lo(buffer, i)),
                s->base[buffer->space] + find_cut(s, buffer->space, instance_hi(buffer, i)),
            };
    }
}

/* ---- waits ---- */

static int event_of(const struct event_pass *s, int op)
{
    while (s->same[op] != op)
        op = s->same[op];
    return op;
}

static void merge_clock(struct stream_clock *now, const struct stream_clock *of)
{
    for (int k = 0; k < STREAM_COUNT; k++)
        now->t[k] = of->t[k] > now->t[k] ? of->t[k] : now->t[k];
}

/* Two ops of one stream record one event: a wait for its latest record covers both. */
static void join_events(struct event_pass *s, int x, int y)
{
    x = event_of(s, x);
    y = event_of(s, y);
    s->same[y] = x;
    merge_clock(&s->known[x], &s->known[y]);
}

/* Replaces the op's waits for a stream by one. */
static void join_waits(struct event_pass *s, struct op *op, enum op_stream stream)
{
    int first = -1, n = 0;
    for (int i = 0; i < OP_MAX_WAITS; i++) {
        int y = op->wait[i];
        if (y >= 0 && s->p->ops[y].stream == stream && first >= 0) {
            join_events(s, first, y);
            continue;
        }
        if (y >= 0 && s->p->ops[y].stream == stream)
            first = y;
        op->wait[n++] = y;
    }
    while (n < OP_MAX_WAITS)
        op->wait[n++] = -1;
}

/* op.wait holds ops, not events, until number_events. */
static void add_wait(struct event_pass *s, int x, int y)
{
    struct op *op = &s->p->ops[x];
    int n = 0;
    s->recorded[y] = true;
    for (int k = 0; k < STREAM_COUNT && op->wait[OP_MAX_WAITS - 1] >= 0; k++)
        join_waits(s, op, (enum op_stream)k);
    while (op->wait[n] >= 0)
        n++;
    op->wait[n] = MUTANT(WAIT_LEFT_OUT) && op->stream == STREAM_COMM ? -1 : y;
}

/* ---- one op ---- */

/* Sets `need` to the latest op of each stream that must be complete before this access. */
static void find_needs(const struct event_pass *s, struct atom_range r, bool writes, struct stream_clock *need)
{
    for (int i = r.lo; i < r.hi; i++) {
        const struct atom *a = &s->atoms[i];
        if (a->write_time > need->t[a->write_stream])
            need->t[a->write_stream] = a->write_time;
        for (int k = 0; k < STREAM_COUNT && writes; k++)
            if (a->read_time[k] > need->t[k])
                need->t[k] = a->read_time[k];
    }
}

static void record_access(struct event_pass *s, struct atom_range r, bool writes, int stream, int time)
{
    for (int i = r.lo; i < r.hi; i++) {
        struct atom *a = &s->atoms[i];
        if (writes)
            *a = (struct atom){.write_stream = stream, .write_time = time};
        else
            a->read_time[stream] = time;
    }
}

/* Calls find_needs (need not NULL) or record_access on every instance that an operand of `op` accesses in the action.
 */
static void each_operand(struct event_pass *s, const struct op *op, const struct action *a, struct stream_clock *need,
                         int stream, int time)
{
    for (int i = 0; op_mode(op, i); i++) {
        int b = op->arg[i].buffer;
        if (b < 0)
            continue;
        const struct buffer *buffer = &s->p->buffers[b];
        bool writes = op_mode(op, i) != 'r';
        int lo = buffer->slot_index == SLOT_ACTION ? a->slot : 0;
        int hi = buffer->slot_index == SLOT_ACTION ? a->slot + 1 : instances(buffer);
        for (int k = lo; k < hi && k < instances(buffer); k++) {
            if (need)
                find_needs(s, s->ranges[s->first[b] + k], writes, need);
            else
                record_access(s, s->ranges[s->first[b] + k], writes, stream, time);
        }
    }
}

static void follow_op(struct event_pass *s, int x, const struct action *a)
{
    const struct op *op = &s->p->ops[x];
    struct stream_clock *now = &s->stream[op->stream], need = {{0}};
    for (int i = 0; i < OP_MAX_WAITS && op->wait[i] >= 0; i++)
        merge_clock(now, &s->known[event_of(s, op->wait[i])]);
    each_operand(s, op, a, &need, (int)op->stream, 0);
    for (int k = 0; k < STREAM_COUNT; k++) {
        if (k == (int)op->stream || need.t[k] <= now->t[k])
            continue;
        int y = s->log[k][need.t[k]];
        add_wait(s, x, y);
        merge_clock(now, &s->known[event_of(s, y)]);
    }
    int time = ++now->t[op->stream];
    assert(time <= s->cap_log);
    s->log[op->stream][time] = x;
    each_operand(s, op, a, NULL, (int)op->stream, time);
    s->known[event_of(s, x)] = *now;
}

static void follow_steps(struct event_pass *s, bool saves)
{
    const struct program *p = s->p;
    memset(s->atoms, 0, (size_t)s->n_atoms * sizeof(*s->atoms));
    memset(s->known, 0, (size_t)p->n_ops * sizeof(*s->known));
    memset(s->stream, 0, sizeof(s->stream));
    for (int step = 0; step < 2; step++)
        for (int a = 0; a < p->n_actions; a++) {
            const struct action *action = &p->actions[a];
            const bool runs = !action_is_rare(action->kind) || (saves && action->kind == ACT_SNAPSHOT);
            for (int i = 0; i < action->n_ops && runs && !s->c->err; i++)
                follow_op(s, action->first_op + i, action);
        }
}

/* ---- events ---- */

/* Replaces ops in the waits by numbers of events, in the order of ops. */
static void number_events(struct event_pass *s)
{
    struct program *p = s->c->p;
    p->n_events = 0;
    for (int i = 0; i < p->n_ops; i++)
        s->number[i] = -1;
    for (int i = 0; i < p->n_ops; i++) {
        int *number = &s->number[event_of(s, i)];
        if (s->recorded[i] && *number < 0)
            *number = p->n_events++;
        p->ops[i].event = s->recorded[i] ? *number : -1;
    }
    for (int i = 0; i < p->n_ops; i++)
        for (int k = 0; k < OP_MAX_WAITS; k++)
            if (p->ops[i].wait[k] >= 0)
                p->ops[i].wait[k] = p->ops[p->ops[i].wait[k]].event;
}

static void clear_events(struct program *p)
{
    for (int i = 0; i < p->n_ops; i++) {
        p->ops[i].event = -1;
        for (int k = 0; k < OP_MAX_WAITS; k++)
            p->ops[i].wait[k] = -1;
    }
}

static int unrolled(const struct program *p)
{
    int n = 0;
    for (int a = 0; a < p->n_actions; a++)
        n += p->actions[a].n_ops;
    return 2 * n;
}

void events_assign(struct compiler *c)
{
    struct program *p = c->p;
    struct event_pass s = {.c = c, .p = p};
    if (c->err)
        return;
    size_t ops = (size_t)p->n_ops + 1;
    clear_events(p);
    s.cap_log = unrolled(p);
    s.first = malloc(((size_t)p->n_buffers + 1) * sizeof(*s.first));
    s.known = malloc(ops * sizeof(*s.known));
    s.recorded = calloc(ops, sizeof(*s.recorded));
    s.same = malloc(ops * sizeof(*s.same));
    s.number = malloc(ops * sizeof(*s.number));
    bool room = s.first && s.known && s.recorded && s.same && s.number;
    for (int i = 0; s.same && i < p->n_ops; i++)
        s.same[i] = i;
    for (int k = 0; k < STREAM_COUNT; k++) {
        s.log[k] = malloc(((size_t)s.cap_log + 1) * sizeof(*s.log[k]));
        room &= s.log[k] != NULL;
    }
    if (!room)
        c->err = ERR_NOMEM;
    else
        make_atoms(&s);
    s.atoms = calloc((size_t)s.n_atoms + 1, sizeof(*s.atoms));
    if (!s.atoms)
        c->err = c->err ? c->err : ERR_NOMEM;
    for (int saves = 1; saves >= 0 && !c->err; saves--)
        follow_steps(&s, saves);
    if (!c->err)
        number_events(&s);
    for (int k = 0; k < STREAM_COUNT; k++)
        free(s.log[k]);
    for (int k = 0; k < SPACE_COUNT; k++)
        free(s.cuts[k]);
    free(s.first);
    free(s.ranges);
    free(s.known);
    free(s.recorded);
    free(s.same);
    free(s.number);
    free(s.atoms);
}
