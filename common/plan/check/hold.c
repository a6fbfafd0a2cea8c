/* Compares what a program declares that its rank holds with sharding.h: buffers of parameters, tables of units,
 * segments of the sequence. */
#include "common/plan/check/check.h"

#include <string.h>

static int64_t elements_of(const struct buffer *b)
{
    int64_t size = (int64_t)dtype_bytes(b->dtype);
    return size ? b->bytes / size : -1;
}

static err_t check_buffer(const struct graph *g, const struct program *p, int t, int buffer, int64_t elements,
                          const char *what, struct why *why)
{
    const char *name = g->tensors[t].name;
    if (buffer < 0 && elements == 0)
        return OK;
    if (buffer < 0 || buffer >= p->n_buffers || p->buffers[buffer].tensor != t)
        return why_set(why, ERR_INVALID, "rank %d: %s has no buffer of its own for its %s", p->rank, name, what);
    if (elements_of(&p->buffers[buffer]) != elements)
        return why_set(why, ERR_INVALID, "rank %d: %s has room for %lld elements of the %s of %s; this rank holds %lld",
                       p->rank, p->buffers[buffer].name, (long long)elements_of(&p->buffers[buffer]), what, name,
                       (long long)elements);
    return OK;
}

static err_t check_param(const struct graph *g, const struct program *p, int t, struct why *why)
{
    const struct sharding_param *q = &p->sharding.param[t];
    const struct {
        const char *what;
        const int *index;
        bool local;
    } rows[] = {{"value", p->param_buffer, false},
                {"gradient", p->grad_buffer, true},
                {"first moment", p->m_buffer, false},
                {"second moment", p->v_buffer, false}};
    for (int i = 0; i < (p->mode == MODE_TRAIN ? 4 : 1); i++) {
        int64_t held = rows[i].local ? q->rows * q->cols : (q->hi - q->lo) * q->cols;
        err_t e = check_buffer(g, p, t, rows[i].index[t], q->held ? held : 0, rows[i].what, why);
        if (e)
            return e;
        if (!q->held && rows[i].index[t] >= 0)
            return why_set(why, ERR_INVALID, "rank %d holds the %s of %s, which none of its stages uses", p->rank,
                           rows[i].what, g->tensors[t].name);
    }
    return OK;
}

/* A state is whole on every rank that uses it, and has no gradient and no moments. */
static err_t check_state(const struct graph *g, const struct program *p, int t, struct why *why)
{
    const int *const none[] = {p->grad_buffer, p->m_buffer, p->v_buffer};
    const int64_t elements = p->sharding.param[t].held ? g->tensors[t].dim[0].factor : 0;
    for (int i = 0; i < 3; i++)
        if (none[i][t] >= 0)
            return why_set(why, ERR_INVALID, "rank %d holds %s, but no gradient changes %s", p->rank,
                           p->buffers[none[i][t]].name, g->tensors[t].name);
    return check_buffer(g, p, t, p->param_buffer[t], elements, "value", why);
}

/* Checks that segments are in ascending order, do not overlap, and have the declared lengths. */
static err_t check_segments(const struct program *p, struct why *why)
{
    int64_t before = 0, end = 0;
    if (p->n_segments < 1 || p->n_segments > PLAN_MAX_SEGMENTS)
        return why_set(why, ERR_INVALID, "rank %d has %d segments of the sequence", p->rank, p->n_segments);
    for (int i = 0; i < p->n_segments; i++) {
        const struct segment *s = &p->segments[i];
        if (s->len < 0 || s->pos0 < end || s->before != before || s->pos0 + s->len > p->seq)
            return why_set(why, ERR_INVALID,
                           "rank %d: segment %d of the sequence does not follow the segment before it", p->rank, i);
        before += s->len;
        end = s->pos0 + s->len;
    }
    if (before != p->own_seq)
        return why_set(why, ERR_INVALID, "rank %d: its segments have %lld tokens of a sample; own_seq is %lld", p->rank,
                       (long long)before, (long long)p->own_seq);
    return OK;
}

/* Tokens of a sample that the rank at `coord` has: parts i and 2 cp - 1 - i of the sequence. */
static int64_t seq_at(const struct program *p, const int coord[AXIS_COUNT])
{
    const int parts = 2 * p->mesh.size[AXIS_CP], i = coord[AXIS_CP];
    int64_t lo[2], hi[2];
    layout_split(p->seq, parts, i, &lo[0], &hi[0]);
    layout_split(p->seq, parts, parts - 1 - i, &lo[1], &hi[1]);
    return hi[0] - lo[0] + hi[1] - lo[1];
}

/* Tokens of all ranks that exchange rows with this one, in their largest microbatches; each sends its own tokens. */
static int64_t group_tokens(const struct program *p, int *ret_ranks)
{
    int own[AXIS_COUNT], at[AXIS_COUNT];
    int64_t n = 0, lo, hi;
    *ret_ranks = 0;
    mesh_coords(&p->mesh, p->rank, own);
    for (int r = 0; r < mesh_workers(&p->mesh); r++) {
        bool same = true;
        mesh_coords(&p->mesh, r, at);
        for (int a = 0; a < AXIS_COUNT; a++)
            same &= at[a] / p->sharding.ep.share[a] == own[a] / p->sharding.ep.share[a];
        layout_split(p->max_samples * seq_at(p, at), p->mesh.size[AXIS_TP], at[AXIS_TP], &lo, &hi);
        n += same ? hi - lo : 0;
        *ret_ranks += same;
    }
    return n;
}

/* The most rows that may arrive: for `experts` experts of this rank, every token of the ep group chooses as many of
 * them as there are, or as it chooses in all; where experts have a capacity, it holds in each sample of the group.
 * Balanced: this rank's part of the rows of all experts, rounded up. */
static int64_t rows_arriving(const struct program *p, const struct graph_router *r, int64_t experts)
{
    int ranks;
    const int64_t n = p->balanced ? r->experts : experts, rows = group_tokens(p, &ranks) * (r->k < n ? r->k : n);
    const int64_t kept = p->max_samples * p->sharding.ep.share[AXIS_FSDP] * n * graph_capacity(r, p->seq);
    const int64_t most = r->capacity > 0 && !mode_generates(p->mode) && kept < rows ? kept : rows;
    return p->balanced ? (most + ranks - 1) / ranks : most;
}

/* Checks that all rows which may come to the rank with most experts have a round, and that no round is unneeded. */
static err_t check_rounds_room(const struct program *p, int64_t most, struct why *why)
{
    const bool all = p->rounds == 1 && p->round_rows == 0, enough = p->round_rows * p->rounds >= most;
    if (all || (p->rounds > 1 && enough && p->round_rows * (p->rounds - 1) < most))
        return OK;
    return why_set(why, ERR_INVALID, "rank %d computes experts in %d rounds of %lld rows; %lld may come to a rank",
                   p->rank, p->rounds, (long long)p->round_rows, (long long)most);
}

static err_t check_arrived(const struct graph *g, const struct program *p, struct why *why)
{
    int64_t most = 0, of_any = 0;
    int ranks;
    for (int i = 0; i < g->n_nodes && p->sharding.ep.axes; i++) {
        const struct graph_tensor *w = &g->tensors[g->nodes[i].in[1] >= 0 ? g->nodes[i].in[1] : 0];
        if (g->nodes[i].op != GO_EXPERTS)
            continue;
        int64_t experts = p->sharding.param[g->nodes[i].in[1]].rows / (w->dim[0].factor / w->experts);
        int64_t rows = rows_arriving(p, &g->nodes[i].router, experts);
        most = rows > most ? rows : most;
        (void)group_tokens(p, &ranks);
        rows = rows_arriving(p, &g->nodes[i].router, (g->nodes[i].router.experts + ranks - 1) / ranks);
        of_any = rows > of_any ? rows : of_any;
    }
    err_t e = check_rounds_room(p, of_any, why);
    if (e)
        return e;
    most = p->rounds > 1 && p->round_rows < most ? p->round_rows : most;
    return p->max_arrived == most
               ? OK
               : why_set(why, ERR_INVALID, "rank %d has room for %lld rows of experts; %lld may arrive", p->rank,
                         (long long)p->max_arrived, (long long)most);
}

/* Checks that what is gathered of all tokens of the group has room for those of their largest microbatches. */
static err_t check_gathered(const struct graph *g, const struct program *p, struct why *why)
{
    int ranks;
    const int64_t all = group_tokens(p, &ranks);
    for (int i = 0; i < p->n_ops; i++) {
        const struct op *op = &p->ops[i];
        const int64_t each = op->kind == OP_SOURCES && op->node >= 0 ? g->nodes[op->node].router.k : 1;
        if (op->kind != OP_GATHER_TOKENS && op->kind != OP_SOURCES && op->kind != OP_ROWS_PICK)
            continue;
        if (op->seq != each * all)
            return why_set(why, ERR_INVALID, "op %d (%s) of rank %d has room for %lld of %lld elements of all tokens",
                           i, op_name(op->kind), p->rank, (long long)op->seq, (long long)(each * all));
    }
    return OK;
}

err_t check_holdings(const struct graph *g, const struct program *p, struct why *why)
{
    err_t e = check_segments(p, why);
    e = e ? e : check_arrived(g, p, why);
    e = e ? e : check_gathered(g, p, why);
    for (int t = 0; t < g->n_tensors && !e; t++)
        if (g->tensors[t].kind == GT_PARAM)
            e = check_param(g, p, t, why);
        else if (g->tensors[t].kind == GT_STATE)
            e = check_state(g, p, t, why);
    return e;
}

/* ---- units ---- */

/* The element of the operand at which the tensor's buffer begins; -1: it is not in it. */
static int64_t starts_at(const struct program *p, int operand, int t)
{
    const struct buffer *run = &p->buffers[operand];
    for (int i = 0; i < p->n_buffers; i++)
        if (p->buffers[i].tensor == t && check_in_run(p, i, operand) && dtype_bytes(p->buffers[i].dtype))
            return (p->buffers[i].offset - run->offset) / (int64_t)dtype_bytes(p->buffers[i].dtype);
    return -1;
}

static err_t check_part(const struct check_at *at, const struct graph *g, const struct op *op,
                        const struct unit_part *part, struct why *why)
{
    const struct program *p = at->p;
    bool gather = op->kind == OP_UNIT_GATHER;
    const char *name = g->tensors[part->tensor].name;
    int pieces = op->arg[gather ? 0 : 1].buffer, locals = op->arg[gather ? 1 : 0].buffer;
    const struct sharding_param *q = &p->sharding.param[part->tensor];
    if (starts_at(p, locals, part->tensor) != part->local)
        return check_fail(at, why, "expects the local tensor of %s at element %lld of %s, where it does not begin",
                          name, (long long)part->local, p->buffers[locals].name);
    if (q->lo < q->hi && starts_at(p, pieces, part->tensor) != part->piece)
        return check_fail(at, why, "expects the piece of %s at element %lld of %s, where it does not begin", name,
                          (long long)part->piece, p->buffers[pieces].name);
    for (int i = 0; i < q->pieces; i++) {
        int64_t lo, hi;
        sharding_piece(&p->sharding, part->tensor, i * q->share, &lo, &hi);
        if (part->counts[i] != (hi - lo) * q->cols)
            return check_fail(at, why, "counts %lld elements of %s for member %d, which has %lld",
                              (long long)part->counts[i], name, i, (hi - lo) * (long long)q->cols);
    }
    return OK;
}

/* Checks that every tensor of the unit that this rank holds is in the unit's table once, and no other tensor. */
static err_t check_complete(const struct check_at *at, const struct graph *g, const struct op *op, struct why *why)
{
    const struct fsdp_unit *u = &at->p->units[op->unit];
    for (int t = 0; t < g->n_tensors; t++) {
        int times = 0;
        bool due = g->tensors[t].kind == GT_PARAM && g->tensors[t].unit == op->unit && at->p->sharding.param[t].held;
        for (int i = 0; i < u->n; i++)
            times += u->parts[i].tensor == t;
        if (times != due)
            return check_fail(at, why, "has %s %d times in its table instead of %d times", g->tensors[t].name, times,
                              (int)due);
    }
    return OK;
}

err_t check_unit(const struct check_at *at, const struct graph *g, const struct op *op, struct why *why)
{
    if (op->unit < 0 || op->unit >= at->p->n_units)
        return check_fail(at, why, "names unit %d of %d", op->unit, at->p->n_units);
    const struct fsdp_unit *u = &at->p->units[op->unit];
    for (int i = 0; i < u->n; i++)
        if (u->parts[i].tensor < 0 || u->parts[i].tensor >= g->n_tensors)
            return check_fail(at, why, "has tensor %d of %d in its table", u->parts[i].tensor, g->n_tensors);
    err_t e = check_complete(at, g, op, why);
    for (int i = 0; i < u->n && !e; i++)
        e = check_part(at, g, op, &u->parts[i], why);
    return e;
}

/* ---- all ranks ---- */

static err_t check_groups_alike(const struct program *a, const struct program *b, struct why *why)
{
    bool same = a->n_groups == b->n_groups;
    for (int i = 0; same && i < a->n_groups; i++)
        same = a->groups[i].n == b->groups[i].n &&
               !memcmp(a->groups[i].ranks, b->groups[i].ranks, (size_t)a->groups[i].n * sizeof(int));
    return same ? OK : why_set(why, ERR_INVALID, "ranks %d and %d have different lists of groups", a->rank, b->rank);
}

/* Checks that two ranks of an fsdp group have equal tables: the same tensors, with pieces at the same offsets. */
static err_t check_units_alike(const struct program *a, const struct program *b, struct why *why)
{
    for (int u = 0; u < a->n_units && u < b->n_units; u++) {
        bool same = a->units[u].n == b->units[u].n;
        for (int i = 0; same && i < a->units[u].n; i++)
            same = a->units[u].parts[i].tensor == b->units[u].parts[i].tensor &&
                   a->units[u].parts[i].piece == b->units[u].parts[i].piece;
        if (!same)
            return why_set(why, ERR_INVALID, "ranks %d and %d lay out the pieces of unit %d differently", a->rank,
                           b->rank, u);
    }
    return OK;
}

/* Checks that the ranks of a cp group together have every token of the sequence once. */
static err_t check_sequence(const struct program *programs, int n, int r, struct why *why)
{
    int own[AXIS_COUNT];
    int64_t tokens = 0;
    mesh_coords(&programs->mesh, r, own);
    for (int other = 0; other < n; other++) {
        int coord[AXIS_COUNT];
        mesh_coords(&programs->mesh, other, coord);
        coord[AXIS_CP] = own[AXIS_CP];
        if (memcmp(coord, own, sizeof(own)) != 0)
            continue;
        tokens += programs[other].own_seq;
        for (int i = 0; other != r && i < programs[r].n_segments; i++)
            for (int k = 0; k < programs[other].n_segments; k++) {
                const struct segment *a = &programs[r].segments[i], *b = &programs[other].segments[k];
                if (a->len && b->len && a->pos0 < b->pos0 + b->len && b->pos0 < a->pos0 + a->len)
                    return why_set(why, ERR_INVALID, "ranks %d and %d both have position %lld of the sequence", r,
                                   other, (long long)(a->pos0 > b->pos0 ? a->pos0 : b->pos0));
            }
    }
    if (tokens != programs->seq)
        return why_set(why, ERR_INVALID, "rank %d: its cp group has %lld tokens of a sample of %lld", r,
                       (long long)tokens, (long long)programs->seq);
    return OK;
}

err_t check_held_alike(const struct program *programs, int n, struct why *why)
{
    err_t e = OK;
    for (int r = 0; r < n && !e; r++) {
        int coord[AXIS_COUNT], stride = programs->mesh.size[AXIS_CP] * programs->mesh.size[AXIS_TP];
        mesh_coords(&programs->mesh, r, coord);
        e = check_groups_alike(programs, &programs[r], why);
        if (!e)
            e = check_units_alike(&programs[r - coord[AXIS_FSDP] * stride], &programs[r], why);
        if (!e && !mode_generates(programs->mode))
            e = check_sequence(programs, n, r, why);
    }
    return e;
}
