/* All ranks' programs before a job may start.
 *
 * First each program's structure (indices, required operands, groups), then what it does by itself (check_rank.c), then
 * all of them together: that their microbatches make up the batch, and that they run to the end. For the latter every
 * rank's streams are queues; an op goes when the events it waits for are recorded, a collective when it is at the head
 * of a queue on every rank of its group. What cannot move any more is a deadlock, and is named. Only ops that wait,
 * record or meet other ranks take part. Two steps, for waits that reach back into the step before. */
#include "common/plan/check.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define MAX_SLOTS 4096

/* ---- messages ---- */

err_t check_fail(const struct check_at *at, struct why *why, const char *fmt, ...)
{
    char text[512], micro[32] = "";
    const struct action *a = &at->p->actions[at->action];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    if (a->micro >= 0)
        snprintf(micro, sizeof(micro), " micro %d", a->micro);
    else if (a->unit >= 0)
        snprintf(micro, sizeof(micro), " unit %d", a->unit);
    return why_set(why, ERR_INVALID, "rank %d, action %d (%s%s), op %d (%s): %s", at->p->rank, at->action,
                   action_name(a->kind), micro, at->op, op_name(at->p->ops[at->op].kind), text);
}

bool check_is_collective(const struct op *op)
{
    return op->kind == OP_ALL_REDUCE || op->kind == OP_TREE_REDUCE;
}

/* ---- structure ---- */

/* Bit i: operand i may be absent. */
static const unsigned optional[OP_KIND_COUNT] = {
    [OP_EMBED] = 1 << 2,          [OP_EMBED_GRAD] = 1 << 3,
    [OP_GEMM] = 1 << 2 | 7 << 4,  [OP_RMSNORM] = 1 << 1 | 1 << 3,
    [OP_RMSNORM_GRAD] = 1 << 4,   [OP_LAYERNORM] = 1 << 1 | 1 << 4,
    [OP_LAYERNORM_GRAD] = 1 << 5,
};

static err_t check_operands(const struct check_at *at, const struct op *op, struct why *why)
{
    for (int i = 0; op_mode(op, i); i++) {
        int b = op->arg[i].buffer;
        if (b >= at->p->n_buffers)
            return check_fail(at, why, "operand %d is buffer %d of %d", i, b, at->p->n_buffers);
        if (b < 0 && !(optional[op->kind] >> i & 1))
            return check_fail(at, why, "operand %d is missing", i);
        if (b >= 0 && (op->arg[i].col < 0 || op->arg[i].offset.factor < 0))
            return check_fail(at, why, "operand %d starts before %s", i, at->p->buffers[b].name);
    }
    return OK;
}

/* An activation needs aux, and is of the whole result: nothing is added to it before or behind. */
static err_t check_gemm(const struct check_at *at, const struct op *op, struct why *why)
{
    uint32_t act = op->flags & (OPF_GELU | OPF_GELU_GRAD);
    if (act == (OPF_GELU | OPF_GELU_GRAD) || (act && op->flags & OPF_ACC))
        return check_fail(at, why, "does two things at once with its result");
    if (!act != (op->arg[4].buffer < 0))
        return check_fail(at, why, "%s", act ? "has an activation but no aux" : "has an aux but no activation");
    if (op->flags & OPF_ACC && op->arg[2].buffer >= 0)
        return check_fail(at, why, "adds to what it writes and has a bias: it would be added more than once");
    return OK;
}

/* Elements from the start of a run to a buffer in it. */
static int64_t element_of(const struct program *p, const struct buffer *b)
{
    return (b->offset - p->buffers[b->run].offset) / (int64_t)dtype_bytes(b->dtype);
}

/* One op casts all parameters, so each copy must stand where its parameter does. */
static err_t check_cast(const struct check_at *at, const struct op *op, struct why *why)
{
    const struct program *p = at->p;
    const struct operand *x = &op->arg[0], *y = &op->arg[1];
    for (int i = 0; i < p->n_buffers; i++) {
        const struct buffer *b = &p->buffers[i];
        if (b->run != y->buffer)
            continue;
        int from = b->tensor >= 0 ? p->param_buffer[b->tensor] : -1;
        if (from < 0 || p->buffers[from].run != x->buffer || !dtype_bytes(b->dtype) ||
            !dtype_bytes(p->buffers[from].dtype) || element_of(p, b) != element_of(p, &p->buffers[from]))
            return check_fail(at, why, "casts what is not its parameter to %s", b->name);
    }
    return OK;
}

/* The group that sums a partial is the set of ranks that differ from this one on partial axes only. */
static err_t check_group(const struct check_at *at, const struct op *op, struct why *why)
{
    const struct program *p = at->p;
    const struct buffer *b = &p->buffers[op->arg[op->kind == OP_TREE_REDUCE].buffer];
    int own[AXIS_COUNT], n = 0;
    if (op->group < 0 || op->group >= p->n_groups)
        return check_fail(at, why, "is over group %d of %d", op->group, p->n_groups);
    const struct group *g = &p->groups[op->group];
    mesh_coords(&p->mesh, p->rank, own);
    for (int r = 0; r < mesh_workers(&p->mesh); r++) {
        int other[AXIS_COUNT];
        bool same = true;
        mesh_coords(&p->mesh, r, other);
        for (int a = 0; a < AXIS_COUNT; a++) {
            if (other[a] != own[a] && b->layout.axis[a].kind != LAYOUT_PARTIAL)
                same = false;
            if (b->layout.axis[a].kind == LAYOUT_PARTIAL && b->layout.axis[a].op != op->reduce)
                return check_fail(at, why, "combines %s in another way than its layout says", b->name);
        }
        if (same && (n >= g->n || g->ranks[n++] != r))
            return check_fail(at, why, "leaves rank %d out, which holds a share of %s", r, b->name);
    }
    return n == g->n ? OK : check_fail(at, why, "is over ranks that hold no share of %s", b->name);
}

static err_t check_op(const struct check_at *at, const struct op *op, const bool *recorded, struct why *why)
{
    if ((unsigned)op->kind >= OP_KIND_COUNT || (unsigned)op->stream >= STREAM_COUNT || op->event >= at->p->n_events)
        return check_fail(at, why, "is of no known kind, stream or event");
    err_t e = check_operands(at, op, why);
    for (int i = 0; i < OP_MAX_WAITS && !e; i++)
        if (op->wait[i] >= at->p->n_events || (op->wait[i] >= 0 && !recorded[op->wait[i]]))
            e = check_fail(at, why, "waits for event %d, which nothing records", op->wait[i]);
    if (!e && op->kind == OP_GEMM)
        e = check_gemm(at, op, why);
    if (!e && op->kind == OP_CAST)
        e = check_cast(at, op, why);
    if (!e && check_is_collective(op))
        e = check_group(at, op, why);
    return e ? e : check_operand_shapes(at, op, why);
}

static err_t check_structure(const struct program *p, struct why *why)
{
    bool *recorded = calloc((size_t)p->n_events + 1, sizeof(*recorded));
    err_t e = recorded ? OK : ERR_NOMEM;
    for (int a = 0; a < p->n_actions && !e; a++) {
        const struct action *action = &p->actions[a];
        if ((unsigned)action->kind >= ACT_COUNT || action->first_op < 0 || action->n_ops < 0 ||
            action->first_op > p->n_ops - action->n_ops || action->micro >= p->n_micros || action->slot < 0 ||
            action->slot > MAX_SLOTS)
            e = why_set(why, ERR_INVALID, "rank %d: action %d is of no known kind, microbatch or ops", p->rank, a);
        for (int i = 0; i < action->n_ops && !e; i++)
            if (p->ops[action->first_op + i].event >= 0 && p->ops[action->first_op + i].event < p->n_events)
                recorded[p->ops[action->first_op + i].event] = true;
    }
    for (int a = 0; a < p->n_actions && !e; a++)
        for (int i = 0; i < p->actions[a].n_ops && !e; i++) {
            struct check_at at = {p, a, p->actions[a].first_op + i};
            e = check_op(&at, &p->ops[at.op], recorded, why);
        }
    free(recorded);
    return e;
}

/* Every parameter has its buffers, which then are what check_rank.c follows. */
static err_t check_params(const struct graph *g, const struct program *p, struct why *why)
{
    const int *const lists[] = {p->param_buffer, p->grad_buffer, p->m_buffer, p->v_buffer};
    for (int t = 0; t < g->n_tensors; t++)
        for (int i = 0; i < (p->mode == MODE_TRAIN ? 4 : 1) && g->tensors[t].kind == GT_PARAM; i++)
            if (lists[i][t] < 0 || lists[i][t] >= p->n_buffers || p->buffers[lists[i][t]].tensor != t)
                return why_set(why, ERR_INVALID, "rank %d: %s has no buffer of its own for value, gradient or moments",
                               p->rank, g->tensors[t].name);
    return OK;
}

/* ---- the batch ---- */

static err_t check_micro_once(const struct program *p, int micro, struct why *why)
{
    int forwards = 0, backwards = 0;
    for (int a = 0; a < p->n_actions; a++) {
        if (p->actions[a].micro != micro)
            continue;
        forwards += p->actions[a].kind == ACT_FORWARD;
        backwards += p->actions[a].kind == ACT_BACKWARD;
    }
    int want = micro >= p->first_micro && micro < p->end_micro;
    if (forwards != want || backwards != (p->mode == MODE_TRAIN ? want : 0))
        return why_set(why, ERR_INVALID,
                       "rank %d: microbatch %d has %d forwards and %d backwards; its share is %d to %d", p->rank, micro,
                       forwards, backwards, p->first_micro, p->end_micro - 1);
    return OK;
}

/* Ranks' microbatches are consecutive ranges, and all ranks agree what they are. */
static err_t check_batch(const struct program *programs, int n, struct why *why)
{
    int next = 0;
    for (int r = 0; r < n; r++) {
        const struct program *p = &programs[r];
        if (p->n_micros != programs->n_micros || p->loss_scale != programs->loss_scale ||
            memcmp(p->micros, programs->micros, (size_t)p->n_micros * sizeof(*p->micros)) != 0)
            return why_set(why, ERR_INVALID, "ranks 0 and %d differ about the microbatches of the global batch", r);
        if (p->mode != MODE_GENERATE && p->first_micro != next)
            return why_set(why, ERR_INVALID, "rank %d begins with microbatch %d, but %d is next", r, p->first_micro,
                           next);
        next = p->end_micro;
        for (int m = 0; m < p->n_micros; m++) {
            err_t e = check_micro_once(p, m, why);
            if (e)
                return e;
        }
    }
    if (next != programs->n_micros)
        return why_set(why, ERR_INVALID, "no rank has microbatches %d to %d", next, programs->n_micros - 1);
    return OK;
}

static err_t check_same_gradients(const struct program *programs, int n, struct why *why)
{
    for (int r = 1; r < n; r++)
        if (programs[r].space_bytes[SPACE_GRAD] != programs->space_bytes[SPACE_GRAD] ||
            programs[r].space_bytes[SPACE_PARAM] != programs->space_bytes[SPACE_PARAM])
            return why_set(why, ERR_INVALID, "ranks 0 and %d lay out gradients or parameters differently", r);
    return OK;
}

/* ---- to the end ---- */

struct item {
    int action, op;
    int wait[OP_MAX_WAITS]; /* instances of events, -1 */
    int event;              /* instance, -1 */
    int need[OP_MAX_WAITS]; /* which record of each event it waits for, counted from 1; 0: none yet, so it passes */
    int records;            /* which record of its own event it makes */
};

struct queue {
    struct item *items;
    int n, cap, head;
};

struct rank_run {
    const struct program *p;
    struct queue queues[STREAM_COUNT];
    int *recorded; /* by instance of an event: records made */
};

static err_t queue_push(struct queue *q, const struct item *item)
{
    if (q->n == q->cap) {
        int cap = q->cap ? 2 * q->cap : 64;
        struct item *grown = realloc(q->items, (size_t)cap * sizeof(*grown));
        if (!grown)
            return ERR_NOMEM;
        q->items = grown;
        q->cap = cap;
    }
    q->items[q->n++] = *item;
    return OK;
}

static err_t run_push(struct rank_run *r, int *count, int action, int op_index)
{
    const struct op *op = &r->p->ops[op_index];
    struct item item = {.action = action, .op = op_index, .event = -1};
    bool takes_part = check_is_collective(op) || op->event >= 0;
    for (int i = 0; i < OP_MAX_WAITS; i++) {
        item.wait[i] = op->wait[i] >= 0 ? op->wait[i] : -1;
        item.need[i] = item.wait[i] >= 0 ? count[item.wait[i]] : 0;
        takes_part |= item.wait[i] >= 0;
    }
    if (op->event >= 0) {
        item.event = op->event;
        item.records = ++count[item.event];
    }
    return takes_part ? queue_push(&r->queues[op->stream], &item) : OK;
}

static err_t run_init(struct rank_run *r, const struct program *p)
{
    r->p = p;
    r->recorded = calloc((size_t)p->n_events + 1, sizeof(*r->recorded));
    int *count = calloc((size_t)p->n_events + 1, sizeof(*count));
    err_t e = r->recorded && count ? OK : ERR_NOMEM;
    for (int step = 0; step < 2; step++)
        for (int a = 0; a < p->n_actions; a++)
            for (int i = 0; i < p->actions[a].n_ops && !e; i++)
                e = run_push(r, count, a, p->actions[a].first_op + i);
    free(count);
    return e;
}

static void run_fini(struct rank_run *r)
{
    for (int s = 0; s < STREAM_COUNT; s++)
        free(r->queues[s].items);
    free(r->recorded);
}

static const struct item *head(const struct rank_run *r, int stream)
{
    const struct queue *q = &r->queues[stream];
    return q->head < q->n ? &q->items[q->head] : NULL;
}

static bool waits_done(const struct rank_run *r, const struct item *item)
{
    for (int i = 0; i < OP_MAX_WAITS; i++)
        if (item->wait[i] >= 0 && r->recorded[item->wait[i]] < item->need[i])
            return false;
    return true;
}

static void pop(struct rank_run *r, int stream)
{
    const struct item *item = head(r, stream);
    if (item->event >= 0 && r->recorded[item->event] < item->records)
        r->recorded[item->event] = item->records;
    r->queues[stream].head++;
}

/* The stream of `r` whose head is a collective over a group with these ranks, ready to go; -1. */
static int at_collective(const struct rank_run *r, const struct group *g)
{
    for (int s = 0; s < STREAM_COUNT; s++) {
        const struct item *item = head(r, s);
        if (!item || !check_is_collective(&r->p->ops[item->op]) || !waits_done(r, item))
            continue;
        const struct group *other = &r->p->groups[r->p->ops[item->op].group];
        if (other->n == g->n && memcmp(other->ranks, g->ranks, (size_t)g->n * sizeof(*g->ranks)) == 0)
            return s;
    }
    return -1;
}

static const struct buffer *reduced(const struct rank_run *r, const struct op *op)
{
    return &r->p->buffers[op->arg[op->kind == OP_TREE_REDUCE].buffer];
}

static err_t same_collective(const struct rank_run *a, const struct item *x, const struct rank_run *b,
                             const struct item *y, struct why *why)
{
    const struct op *p = &a->p->ops[x->op], *q = &b->p->ops[y->op];
    const struct buffer *u = reduced(a, p), *v = reduced(b, q);
    if (p->kind == q->kind && p->reduce == q->reduce && p->m.factor == q->m.factor && u->space == v->space &&
        u->offset == v->offset && u->dtype == v->dtype)
        return OK;
    struct check_at at = {b->p, y->action, y->op};
    return check_fail(&at, why, "comes to %s of %s when rank %d comes to %s of %s; all ranks of a group need one order",
                      op_name(q->kind), v->name, a->p->rank, op_name(p->kind), u->name);
}

/* Moves the collective at the head of rank r's stream if its whole group is there; *ret_moved. */
static err_t meet(struct rank_run *runs, int r, int stream, bool *ret_moved, struct why *why)
{
    const struct item *item = head(&runs[r], stream);
    const struct group *g = &runs[r].p->groups[runs[r].p->ops[item->op].group];
    for (int i = 0; i < g->n; i++) {
        int s = at_collective(&runs[g->ranks[i]], g);
        if (s < 0)
            return OK;
        err_t e = same_collective(&runs[r], item, &runs[g->ranks[i]], head(&runs[g->ranks[i]], s), why);
        if (e)
            return e;
    }
    for (int i = 0; i < g->n; i++)
        pop(&runs[g->ranks[i]], at_collective(&runs[g->ranks[i]], g));
    *ret_moved = true;
    return OK;
}

/* Names a collective that others do not come to, if there is one: what waits for its event is a consequence. */
static err_t stuck(const struct rank_run *runs, int n, struct why *why)
{
    const struct rank_run *run = NULL;
    const struct item *found = NULL;
    bool alone = false;
    for (int r = 0; r < n && !alone; r++) {
        for (int s = 0; s < STREAM_COUNT && !alone; s++) {
            const struct item *item = head(&runs[r], s);
            alone = item && waits_done(&runs[r], item);
            if (!item || (found && !alone))
                continue;
            run = &runs[r];
            found = item;
        }
    }
    if (!found)
        return OK;
    struct check_at at = {run->p, found->action, found->op};
    if (!alone)
        return check_fail(&at, why, "waits for ever for an event whose op never comes to run");
    return check_fail(&at, why, "waits for ever on %s: not all ranks of its group come to it",
                      reduced(run, &run->p->ops[found->op])->name);
}

static err_t run_all(struct rank_run *runs, int n, struct why *why)
{
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < n; r++) {
            for (int s = 0; s < STREAM_COUNT; s++) {
                const struct item *item;
                while ((item = head(&runs[r], s)) && waits_done(&runs[r], item) &&
                       !check_is_collective(&runs[r].p->ops[item->op])) {
                    pop(&runs[r], s);
                    moved = true;
                }
                if (!item || !waits_done(&runs[r], item))
                    continue;
                err_t e = meet(runs, r, s, &moved, why);
                if (e)
                    return e;
            }
        }
    }
    return stuck(runs, n, why);
}

static err_t check_progress(const struct program *programs, int n, struct why *why)
{
    struct rank_run *runs = calloc((size_t)(unsigned)n, sizeof(*runs));
    err_t e = runs ? OK : ERR_NOMEM;
    for (int r = 0; r < n && !e; r++)
        e = run_init(&runs[r], &programs[r]);
    if (!e)
        e = run_all(runs, n, why);
    for (int r = 0; r < n && runs; r++)
        run_fini(&runs[r]);
    free(runs);
    return e;
}

err_t plan_check(const struct graph *g, const struct program *programs, int n, struct why *why)
{
    err_t e = n > 0 ? OK : why_set(why, ERR_INVALID, "no program to check");
    for (int r = 0; r < n && !e; r++) {
        const struct program *p = &programs[r];
        if (p->rank != r || mesh_workers(&p->mesh) != n || p->mode != programs->mode)
            return why_set(why, ERR_INVALID, "program %d of %d is of rank %d of %d, or of another mode", r, n, p->rank,
                           mesh_workers(&p->mesh));
        e = check_params(g, p, why);
        if (!e)
            e = check_structure(p, why);
        if (!e)
            e = check_rank(p, why);
    }
    if (!e)
        e = check_batch(programs, n, why);
    if (!e)
        e = check_same_gradients(programs, n, why);
    if (!e)
        e = check_progress(programs, n, why);
    return e;
}
