/* Applies an op to the values of its operands: kernels and collectives of one value by the layouts of layout.c, ring
 * attention, messages, zeroes and casts, norm, clip and update. */
#include "common/plan/check/rank.h"

#include <stdlib.h>
#include <string.h>

/* ---- rings ---- */

/* Whether operand i may belong to another rank's tokens: keys and values of an attention and their gradients, and what
 * is passed on, copied or added. */
static bool takes_travelling(enum op_kind kind, int i)
{
    bool keys = (kind == OP_ATTENTION && (i == 1 || i == 2)) ||
                (kind == OP_ATTENTION_GRAD && (i == 1 || i == 2 || i == 7 || i == 8));
    return keys || kind == OP_SHIFT || kind == OP_COPY_COLS || kind == OP_COPY || kind == OP_ADD;
}

static int away_of(const struct rank_check *c, int operand)
{
    return c->reach[operand].n ? c->state[rank_interval(c, operand, 0)].away : 0;
}

/* Checks that all operands from another rank's tokens belong to the same rank; *ret: the distance to it. */
static err_t check_travelling(const struct rank_check *c, const struct op *op, int *ret)
{
    int first = -1;
    *ret = 0;
    for (int i = 0; c->mode[i]; i++) {
        bool read = c->mode[i] != 'w' && c->reach[i].n && !c->state[rank_interval(c, i, 0)].layout.zero;
        if (!read || (!takes_travelling(op->kind, i) && away_of(c, i) == 0))
            continue;
        if (!takes_travelling(op->kind, i))
            return check_fail(&c->at, c->why, "reads %s, which belongs to the tokens of another rank",
                              rank_name(c, rank_interval(c, i, 0)));
        if (first >= 0 && away_of(c, i) != *ret)
            return check_fail(&c->at, c->why, "combines %s and %s, which belong to the tokens of different ranks",
                              rank_name(c, rank_interval(c, i, 0)), rank_name(c, rank_interval(c, first, 0)));
        first = first < 0 ? i : first;
        *ret = away_of(c, i);
    }
    return OK;
}

static err_t follow_ring(struct rank_check *c, const struct op *op, int *ret_away)
{
    struct check_op at = rank_op(c);
    int grad = op->kind == OP_ATTENTION_GRAD;
    err_t e = check_travelling(c, op, ret_away);
    if (!e && (op->kind == OP_ATTENTION || grad) && op->node >= 0 && c->p->mesh.size[AXIS_CP] <= RING_MAX) {
        e = ring_pair(&at, *ret_away, &c->pairs[grad][op->node]);
        c->pairs_op[grad][op->node] = c->at.op;
    }
    if (op->kind == OP_SHIFT && check_group_axes(c->p, op->group) == 1u << AXIS_CP)
        *ret_away = ring_shifted(c->p, *ret_away, op->from);
    return e;
}

err_t rank_rings_over(struct rank_check *c)
{
    err_t e = OK;
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < c->g->n_nodes && !e; i++) {
            if (!c->pairs[k][i])
                continue;
            c->at.op = c->pairs_op[k][i];
            struct check_op at = rank_op(c);
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

/* In an action without a microbatch, a result has the microbatch of the value from which it was computed. */
static void pass_micro(struct rank_check *c, const struct op *op)
{
    int micro = c->reach[0].n ? c->state[rank_interval(c, 0, 0)].micro : NO_MICRO;
    for (int i = 1; c->mode[i]; i++)
        for (int k = 0; k < c->reach[i].n && c->mode[i] != 'r'; k++)
            c->state[rank_interval(c, i, k)].micro = micro;
}

/* Calls rank_write, then records which part of the value was written. */
static err_t write_part(struct rank_check *c, const struct op *op, int i, int interval, struct value_layout made,
                        const struct value_part *part)
{
    const struct value_state before = c->state[interval];
    err_t e = rank_write(c, interval, c->mode[i], made);
    return e || c->p->mesh.size[AXIS_TP] == 1 ? e : rank_part_put(c, op, i, interval, &before, part);
}

static err_t apply_kernel(struct rank_check *c, const struct op *op)
{
    struct value_layout in[OP_MAX_OPERANDS], out[OP_MAX_OPERANDS];
    struct check_op at = rank_op(c);
    struct value_part part = {0};
    int away = 0;
    memset(in, 0, sizeof(in));
    for (int i = 0; c->mode[i]; i++) {
        const int b = op->arg[i].buffer;
        if (c->reach[i].n)
            in[i] = c->state[rank_interval(c, i, 0)].layout;
        in[i].zero |= b >= 0 && c->p->buffers[b].bytes == 0; /* no rows fit every layout */
    }
    err_t e = c->p->mesh.size[AXIS_CP] > 1 ? follow_ring(c, op, &away) : OK;
    if (!e && c->p->mesh.size[AXIS_TP] > 1)
        e = rank_parts(c, op, in, &part);
    if (!e)
        e = layout_of_op(&at, in, out);
    if (!e && op->kind == OP_COPY_COLS && c->reach[1].n && c->state[rank_interval(c, 1, 0)].among_zeros)
        out[1] = layout_among_zeros(&out[1]);
    for (int i = 0; c->mode[i] && !e; i++)
        for (int k = 0; k < c->reach[i].n && !e && c->mode[i] != 'r'; k++)
            e = write_part(c, op, i, rank_interval(c, i, k), out[i], &part);
    if (!e && c->p->actions[c->at.action].micro < 0)
        pass_micro(c, op);
    for (int i = 0; away && c->mode[i] && !e; i++)
        for (int k = 0; k < c->reach[i].n && c->mode[i] != 'r' && takes_travelling(op->kind, i); k++)
            c->state[rank_interval(c, i, k)].away = away;
    if (!e && (op->kind == OP_CROSS_ENTROPY || op->kind == OP_LOSS_JOIN))
        loss_counted(c, op);
    return e;
}

/* ---- ops on many values ---- */

bool rank_is_blocks(const struct rank_check *c, int buffer)
{
    const struct buffer *b = &c->p->buffers[buffer];
    return b->space == SPACE_HOST && b->dtype == DT_F64 && buffer != c->p->loss_buffer && buffer != c->p->norm_buffer &&
           buffer != c->p->clip_buffer && program_number(c->p, buffer) == NUMBER_COUNT;
}

/* Whether the op zeroes only a part of a value to which this microbatch has already written. The rest keeps its state.
 */
static bool zeroes_part(const struct rank_check *c, const struct op *op, int interval)
{
    const struct value_state *s = &c->state[interval];
    int64_t size = (int64_t)dtype_bytes(rank_buffer(c, interval)->dtype);
    return s->value == VALUE_SET && s->micro >= 0 && s->micro == c->p->actions[c->at.action].micro &&
           check_extent(c->p, op, 0) * size < rank_buffer(c, interval)->bytes;
}

static err_t apply_zero(struct rank_check *c, const struct op *op)
{
    static const struct value_layout zero = {{0}, true};
    err_t e = OK;
    for (int k = 0; k < c->reach[0].n && !e; k++) {
        int interval = rank_interval(c, 0, k);
        e = rank_overwrite(c, interval);
        if (!e && zeroes_part(c, op, interval))
            rank_lose(c, interval);
        else if (!e)
            rank_put(c, interval, &zero, 0);
        if (rank_is_blocks(c, c->intervals.at[interval].buffer))
            c->blocks_zeroed = true;
    }
    return e;
}

/* The interval of operand `operand` that belongs to the same tensor as `interval`; -1: none. */
int rank_same_tensor(const struct rank_check *c, int operand, int interval)
{
    for (int k = 0; k < c->reach[operand].n; k++)
        if (rank_buffer(c, rank_interval(c, operand, k))->tensor == rank_buffer(c, interval)->tensor)
            return rank_interval(c, operand, k);
    return -1;
}

/* A cast: each interval of y gets the layout of the same tensor's interval in x. */
static err_t apply_cast(struct rank_check *c)
{
    for (int k = 0; k < c->reach[1].n; k++) {
        int y = rank_interval(c, 1, k), x = rank_same_tensor(c, 0, y);
        if (x < 0)
            return check_fail(&c->at, c->why, "casts to %s from elements that are not its parameter", rank_name(c, y));
        rank_put(c, y, &c->state[x].layout, 0);
    }
    return OK;
}

/* ---- once a step ---- */

static err_t apply_norm(struct rank_check *c)
{
    struct check_op at = rank_op(c);
    static const struct value_layout whole = {{0}, false};
    for (int k = 0; k < c->reach[0].n; k++) {
        const struct value_state *s = &c->state[rank_interval(c, 0, k)];
        err_t e = check_summed(&at, 0, &s->layout, s->reduced);
        if (e)
            return e;
    }
    for (int k = 0; k < c->reach[1].n; k++)
        rank_put(c, rank_interval(c, 1, k), &whole, 0);
    return c->first_step ? check_norm(&at, c->facts) : OK;
}

static err_t apply_clip(struct rank_check *c)
{
    static const struct value_layout whole = {{0}, false};
    for (int k = 0; k < c->reach[1].n; k++) {
        int interval = rank_interval(c, 1, k), axis = layout_partial(&c->state[interval].layout);
        if (axis >= 0)
            return check_fail(&c->at, c->why,
                              "reads %s, which is this rank's share of a sum over %s and has not "
                              "been reduced",
                              rank_name(c, interval), mesh_axis_name((enum mesh_axis)axis));
    }
    for (int i = 2; i < 4; i++)
        for (int k = 0; k < c->reach[i].n; k++)
            rank_put(c, rank_interval(c, i, k), &whole, 0);
    c->facts->clips = true;
    c->facts->total_blocks = c->p->ops[c->at.op].m.factor;
    return OK;
}

/* Checks that the bytes of the gradient that operand i reads were summed. */
static err_t check_range(const struct rank_check *c, const struct op *op, int i)
{
    const struct buffer *b = &c->p->buffers[op->arg[i].buffer];
    int64_t size = (int64_t)dtype_bytes(b->dtype);
    int64_t lo = b->offset + program_dim(c->p, op->arg[i].offset, c->p->max_samples) * size;
    for (int k = 0; k < c->reach[i].n; k++) {
        const struct value_state *s = &c->state[rank_interval(c, i, k)];
        if (lo < s->sum_lo || lo + check_extent(c->p, op, i) * size > s->sum_hi)
            return check_fail(&c->at, c->why, "reads elements of %s that have not been reduced", b->name);
    }
    return OK;
}

static err_t apply_adamw(struct rank_check *c, const struct op *op)
{
    struct check_op at = rank_op(c);
    err_t e = check_update(&at);
    if (!e)
        e = check_range(c, op, 3);
    for (int k = 0; k < c->reach[3].n && !e; k++) {
        struct value_state *s = &c->state[rank_interval(c, 3, k)];
        int t = rank_buffer(c, rank_interval(c, 3, k))->tensor;
        e = check_summed(&at, 3, &s->layout, s->reduced);
        if (!e && t >= 0)
            c->facts->reduced[t] = (unsigned char)(s->reduced & ~(1u << AXIS_COUNT));
        s->spent = true;
    }
    for (int i = 0; i < 3 && !e; i++)
        for (int k = 0; k < c->reach[i].n; k++)
            c->state[rank_interval(c, i, k)].updates++;
    return e;
}

/* Numbers of routers are complete when they are summed over all ranks that have tokens, and over those that have none
 * but zeros. */
static err_t check_counted(struct rank_check *c, const struct value_state *s)
{
    int axis = layout_partial(&s->layout);
    for (int a = 0; a < AXIS_COUNT && axis < 0 && s->layout.zero; a++)
        axis = a != AXIS_PP && c->p->mesh.size[a] > 1 && !(s->reduced >> a & 1) ? a : -1;
    return axis < 0 ? OK
                    : check_fail(&c->at, c->why,
                                 "reads the numbers of tokens of experts, which are this rank's share of a sum over %s "
                                 "and have not been reduced",
                                 mesh_axis_name((enum mesh_axis)axis));
}

/* Checks that the op changes a state of its router, by the numbers of that router. */
static err_t check_balance(struct rank_check *c, const struct op *op)
{
    const struct graph_node *n = op->node >= 0 ? &c->g->nodes[op->node] : NULL;
    int64_t at = 0;
    const int t = !n || n->op != GO_ROUTE ? -1 : n->in[op->kind == OP_BALANCE ? 1 : 2];
    if (t < 0 || op->arg[2].buffer != c->p->param_buffer[t] || op->arg[2].offset.factor)
        return check_fail(&c->at, c->why, "changes another state than its router's");
    for (int i = 0; i < op->node; i++)
        at += c->g->nodes[i].op == GO_ROUTE ? 2 * c->g->nodes[i].router.experts + 2 : 0;
    if (op->arg[0].buffer != c->p->number_buffer[NUMBER_TOTALS] || op->arg[0].offset.factor != at ||
        op->m.factor != n->router.experts)
        return check_fail(&c->at, c->why, "changes a state of a router by the numbers of another one");
    if (op->arg[1].buffer != c->p->clip_buffer || (op->kind == OP_BALANCE && op->rate != n->router.bias))
        return check_fail(&c->at, c->why, "moves biases at another rate than its router's, or in a skipped step");
    return OK;
}

static err_t apply_balance(struct rank_check *c, const struct op *op)
{
    err_t e = check_balance(c, op);
    for (int k = 0; k < c->reach[0].n && !e; k++)
        e = check_counted(c, &c->state[rank_interval(c, 0, k)]);
    for (int k = 0; k < c->reach[2].n && !e; k++)
        c->state[rank_interval(c, 2, k)].updates++;
    return e;
}

/* ---- borrowed experts ---- */

/* The op that wrote operand i; NULL: none. */
static const struct op *writer_of(const struct rank_check *c, int i)
{
    return c->reach[i].n ? &c->p->ops[c->state[rank_interval(c, i, 0)].writer] : NULL;
}

/* Checks that a product of rows of borrowed experts has copies of the matrices that it multiplies other rows with. */
static err_t check_borrowed(const struct rank_check *c, const struct op *op)
{
    const bool reads = op->arg[4].buffer >= 0 && !(op->flags & OPF_TRANS_A);
    const struct op *w = reads ? writer_of(c, 4) : NULL;
    return !reads || (w && w->kind == OP_BORROW && w->arg[0].buffer == op->arg[1].buffer)
               ? OK
               : check_fail(&c->at, c->why, "multiplies rows of borrowed experts with other matrices than those of %s",
                            c->p->buffers[op->arg[1].buffer].name);
}

static err_t apply_grouped(struct rank_check *c, const struct op *op)
{
    err_t e = check_borrowed(c, op);
    return e ? e : apply_kernel(c, op);
}

/* The gradients of own experts become complete: they get the parts of the product that wrote both. */
static err_t apply_give_back(struct rank_check *c, const struct op *op)
{
    const struct op *w = writer_of(c, 0);
    const unsigned axes = c->p->sharding.ep.axes;
    if (!w || w->kind != OP_GROUPED_GEMM || !(w->flags & OPF_TRANS_A) || w->arg[2].buffer != op->arg[3].buffer)
        return check_fail(&c->at, c->why, "gives back gradients of other experts than those of %s",
                          c->p->buffers[op->arg[3].buffer].name);
    for (int k = 0; k < c->reach[2].n; k++)
        rank_lose(c, rank_interval(c, 2, k));
    for (int k = 0; k < c->reach[3].n; k++) {
        struct value_layout *l = &c->state[rank_interval(c, 3, k)].layout;
        for (int a = 0; a < AXIS_COUNT && !l->zero; a++) {
            if (axes >> a & 1 && !(l->on[a] & ON_LENT))
                return check_fail(&c->at, c->why, "gives gradients back to %s a second time",
                                  rank_name(c, rank_interval(c, 3, k)));
            l->on[a] &= (unsigned char)~ON_LENT;
        }
    }
    return OK;
}

/* ---- messages ---- */

static err_t post_add(struct rank_check *c, int interval, bool send)
{
    if (c->n_posts == c->cap_posts) {
        int cap = c->cap_posts ? 2 * c->cap_posts : 16;
        struct message_post *grown = realloc(c->posts, (size_t)cap * sizeof(*grown));
        if (!grown)
            return ERR_NOMEM;
        c->posts = grown;
        c->cap_posts = cap;
    }
    c->posts[c->n_posts++] = (struct message_post){interval, send};
    return OK;
}

/* Records a message and its microbatch. That of a send is known; that of a receive follows from its first reader. */
static err_t message_add(struct rank_check *c, const struct op *op, int *ret)
{
    struct rank_facts *f = c->facts;
    int is = c->reach[0].n ? c->state[rank_interval(c, 0, 0)].micro : NO_MICRO;
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
        int interval = rank_interval(c, 0, k);
        if (op->kind == OP_SEND) {
            c->state[interval].sending++;
        } else {
            c->state[interval].receiving = true;
            c->state[interval].micro = FIRST_MESSAGE - message;
        }
        e = post_add(c, interval, op->kind == OP_SEND);
    }
    return e;
}

static err_t post_over(struct rank_check *c, int interval, const struct clock *now, enum op_stream stream)
{
    int kept = 0, n = c->n_posts;
    for (int i = 0; i < n; i++) {
        if (c->posts[i].interval != interval) {
            c->posts[kept++] = c->posts[i];
            continue;
        }
        rank_touch(c, now, stream, interval, c->posts[i].send ? 'r' : 'w');
        c->state[interval].sending -= c->posts[i].send;
        c->state[interval].receiving &= c->posts[i].send;
    }
    c->n_posts = kept;
    return kept < n ? OK
                    : check_fail(&c->at, c->why, "waits for %s, to or from which no message was posted",
                                 rank_name(c, interval));
}

err_t rank_message_over(struct rank_check *c, const struct clock *now, enum op_stream stream)
{
    err_t e = OK;
    for (int k = 0; k < c->reach[0].n && !e; k++)
        e = post_over(c, rank_interval(c, 0, k), now, stream);
    return e;
}

/* ---- one op ---- */

/* Whether a copy writes what post-validation keeps: no value of the step (ahead.c). */
static bool is_keep(const struct rank_check *c, const struct op *op)
{
    const struct buffer *to = &c->p->buffers[op->arg[1].buffer];
    return op->kind == OP_COPY && to->space == SPACE_OPT && to->tensor < 0;
}

err_t rank_apply(struct rank_check *c, const struct op *op)
{
    switch (op->kind) {
    case OP_ZERO:
        return apply_zero(c, op);
    case OP_CAST:
        return apply_cast(c);
    case OP_ALL_REDUCE:
        return rank_all_reduce(c, op);
    case OP_UNIT_GATHER:
        return rank_unit_gather(c);
    case OP_UNIT_SCATTER:
        return rank_unit_scatter(c, op);
    case OP_TREE_LEAF:
        return rank_leaf(c);
    case OP_TREE_REDUCE:
        return rank_tree_reduce(c, op);
    case OP_NORM:
        return apply_norm(c);
    case OP_CLIP:
        return apply_clip(c);
    case OP_ADAMW:
        return apply_adamw(c, op);
    case OP_BALANCE:
    case OP_KEEP:
        return apply_balance(c, op);
    case OP_GROUPED_GEMM:
        return apply_grouped(c, op);
    case OP_GIVE_BACK:
        return apply_give_back(c, op);
    case OP_SEND:
    case OP_RECV:
        return apply_post(c, op);
    case OP_SNAPSHOT:
    case OP_PUSH:
        return OK;
    case OP_COPY:
        return is_keep(c, op) ? OK : apply_kernel(c, op);
    default:
        return apply_kernel(c, op);
    }
}
