/* What an op does to values: kernels and collectives of one value by the layouts of layout.c, rings, messages,
 * zeroes and casts, norm, clip and update. */
#include "common/plan/check/rank.h"

#include <stdlib.h>
#include <string.h>

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
    return c->reach[operand].n ? c->state[rank_place(c, operand, 0)].away : 0;
}

/* All travelling operands of an op are of one rank's tokens. */
static err_t check_travelling(const struct rank_check *c, const struct op *op, int *ret)
{
    int first = -1;
    *ret = 0;
    for (int i = 0; c->mode[i]; i++) {
        bool read = c->mode[i] != 'w' && c->reach[i].n && !c->state[rank_place(c, i, 0)].layout.zero;
        if (!read || (!takes_travelling(op->kind, i) && away_of(c, i) == 0))
            continue;
        if (!takes_travelling(op->kind, i))
            return check_fail(&c->at, c->why, "reads %s, which is of the tokens of another rank",
                              rank_name(c, rank_place(c, i, 0)));
        if (first >= 0 && away_of(c, i) != *ret)
            return check_fail(&c->at, c->why, "takes %s with %s, which are of the tokens of different ranks",
                              rank_name(c, rank_place(c, i, 0)), rank_name(c, rank_place(c, first, 0)));
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

/* In an action without a microbatch what is made of a value is of its microbatch. */
static void pass_micro(struct rank_check *c, const struct op *op)
{
    int micro = c->reach[0].n ? c->state[rank_place(c, 0, 0)].micro : NO_MICRO;
    for (int i = 1; c->mode[i]; i++)
        for (int k = 0; k < c->reach[i].n && c->mode[i] != 'r'; k++)
            c->state[rank_place(c, i, k)].micro = micro;
}

/* rank_write, and what `part` says of the value. */
static err_t write_part(struct rank_check *c, const struct op *op, int i, int place, struct value_layout made,
                        const struct value_part *part)
{
    const struct state before = c->state[place];
    err_t e = rank_write(c, place, c->mode[i], made);
    return e || c->p->mesh.size[AXIS_TP] == 1 ? e : rank_part_put(c, op, i, place, &before, part);
}

static err_t apply_kernel(struct rank_check *c, const struct op *op)
{
    struct value_layout in[OP_MAX_OPERANDS], out[OP_MAX_OPERANDS];
    struct check_op at = rank_op(c);
    struct value_part part = {0};
    int away = 0;
    memset(in, 0, sizeof(in));
    for (int i = 0; c->mode[i]; i++)
        if (c->reach[i].n)
            in[i] = c->state[rank_place(c, i, 0)].layout;
    err_t e = c->p->mesh.size[AXIS_CP] > 1 ? follow_ring(c, op, &away) : OK;
    if (!e && c->p->mesh.size[AXIS_TP] > 1)
        e = rank_parts(c, op, in, &part);
    if (!e)
        e = layout_of_op(&at, in, out);
    if (!e && op->kind == OP_COPY_COLS && c->reach[1].n && c->state[rank_place(c, 1, 0)].among_zeros)
        out[1] = layout_among_zeros(&out[1]);
    for (int i = 0; c->mode[i] && !e; i++)
        for (int k = 0; k < c->reach[i].n && !e && c->mode[i] != 'r'; k++)
            e = write_part(c, op, i, rank_place(c, i, k), out[i], &part);
    if (!e && c->p->actions[c->at.action].micro < 0)
        pass_micro(c, op);
    for (int i = 0; away && c->mode[i] && !e; i++)
        for (int k = 0; k < c->reach[i].n && c->mode[i] != 'r' && takes_travelling(op->kind, i); k++)
            c->state[rank_place(c, i, k)].away = away;
    if (!e && (op->kind == OP_CROSS_ENTROPY || op->kind == OP_LOSS_JOIN))
        loss_counted(c, op);
    return e;
}

/* ---- what takes many values at once ---- */

bool rank_is_blocks(const struct rank_check *c, int buffer)
{
    const struct buffer *b = &c->p->buffers[buffer];
    return b->space == SPACE_HOST && b->dtype == DT_F64 && buffer != c->p->loss_buffer && buffer != c->p->norm_buffer &&
           buffer != c->p->clip_buffer;
}

/* The op zeroes some of a value that this microbatch has begun: the rest stays what it is. */
static bool zeroes_part(const struct rank_check *c, const struct op *op, int place)
{
    const struct state *s = &c->state[place];
    int64_t size = (int64_t)dtype_bytes(rank_buffer(c, place)->dtype);
    return s->value == VALUE_SET && s->micro >= 0 && s->micro == c->p->actions[c->at.action].micro &&
           check_extent(c->p, op, 0) * size < rank_buffer(c, place)->bytes;
}

static err_t apply_zero(struct rank_check *c, const struct op *op)
{
    static const struct value_layout zero = {{0}, true};
    err_t e = OK;
    for (int k = 0; k < c->reach[0].n && !e; k++) {
        int place = rank_place(c, 0, k);
        e = rank_overwrite(c, place);
        if (!e && zeroes_part(c, op, place))
            rank_lose(c, place);
        else if (!e)
            rank_put(c, place, &zero, 0);
        if (rank_is_blocks(c, c->places.place[place].buffer))
            c->blocks_zeroed = true;
    }
    return e;
}

/* The place of operand `operand` with the tensor that is in `place`; -1. */
int rank_same_tensor(const struct rank_check *c, int operand, int place)
{
    for (int k = 0; k < c->reach[operand].n; k++)
        if (rank_buffer(c, rank_place(c, operand, k))->tensor == rank_buffer(c, place)->tensor)
            return rank_place(c, operand, k);
    return -1;
}

/* Copies: each place of y gets what the place of the same tensor in x is. */
static err_t apply_cast(struct rank_check *c)
{
    for (int k = 0; k < c->reach[1].n; k++) {
        int y = rank_place(c, 1, k), x = rank_same_tensor(c, 0, y);
        if (x < 0)
            return check_fail(&c->at, c->why, "casts what is not its parameter to %s", rank_name(c, y));
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
        const struct state *s = &c->state[rank_place(c, 0, k)];
        err_t e = check_summed(&at, 0, &s->layout, s->reduced);
        if (e)
            return e;
    }
    for (int k = 0; k < c->reach[1].n; k++)
        rank_put(c, rank_place(c, 1, k), &whole, 0);
    return c->first_step ? check_norm(&at, c->facts) : OK;
}

static err_t apply_clip(struct rank_check *c)
{
    static const struct value_layout whole = {{0}, false};
    for (int k = 0; k < c->reach[1].n; k++) {
        int place = rank_place(c, 1, k), axis = layout_partial(&c->state[place].layout);
        if (axis >= 0)
            return check_fail(&c->at, c->why,
                              "reads %s, which is this rank's share of a sum over %s: nothing has "
                              "reduced it",
                              rank_name(c, place), mesh_axis_name((enum mesh_axis)axis));
    }
    for (int i = 2; i < 4; i++)
        for (int k = 0; k < c->reach[i].n; k++)
            rank_put(c, rank_place(c, i, k), &whole, 0);
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
        const struct state *s = &c->state[rank_place(c, i, k)];
        if (lo < s->sum_lo || lo + check_extent(c->p, op, i) * size > s->sum_hi)
            return check_fail(&c->at, c->why, "reads elements of %s that no reduce has summed", b->name);
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
        struct state *s = &c->state[rank_place(c, 3, k)];
        int t = rank_buffer(c, rank_place(c, 3, k))->tensor;
        e = check_summed(&at, 3, &s->layout, s->reduced);
        if (!e && t >= 0)
            c->facts->reduced[t] = (unsigned char)(s->reduced & ~(1u << AXIS_COUNT));
        s->spent = true;
    }
    for (int i = 0; i < 3 && !e; i++)
        for (int k = 0; k < c->reach[i].n; k++)
            c->state[rank_place(c, i, k)].updates++;
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
    int is = c->reach[0].n ? c->state[rank_place(c, 0, 0)].micro : NO_MICRO;
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
        int place = rank_place(c, 0, k);
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

static err_t post_over(struct rank_check *c, int place, const struct clock *now, enum op_stream stream)
{
    int kept = 0, n = c->n_posts;
    for (int i = 0; i < n; i++) {
        if (c->posts[i].place != place) {
            c->posts[kept++] = c->posts[i];
            continue;
        }
        rank_touch(c, now, stream, place, c->posts[i].send ? 'r' : 'w');
        c->state[place].sending -= c->posts[i].send;
        c->state[place].receiving &= c->posts[i].send;
    }
    c->n_posts = kept;
    return kept < n ? OK : check_fail(&c->at, c->why, "waits for %s, which no message is in", rank_name(c, place));
}

err_t rank_message_over(struct rank_check *c, const struct clock *now, enum op_stream stream)
{
    err_t e = OK;
    for (int k = 0; k < c->reach[0].n && !e; k++)
        e = post_over(c, rank_place(c, 0, k), now, stream);
    return e;
}

/* ---- one op ---- */

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
    case OP_SEND:
    case OP_RECV:
        return apply_post(c, op);
    case OP_SNAPSHOT:
    case OP_PUSH:
        return OK;
    default:
        return apply_kernel(c, op);
    }
}
