/* Values that are made, or travel, in parts: whose tokens a part is of, which columns it has, and what is missing of a
 * value that is put together from parts.
 *
 * Own tokens that travel round the tp group keep their owner, and may only be passed on, or be the rows of a product
 * which makes the rows of the same tokens: with those of every member, each once, the result is whole. A product that
 * takes some columns of a parameter makes those columns of a share; they may only be summed, once, and be put to the
 * others in their place: with all columns, one part after the other, the sum is whole. Nothing reads what lacks parts.
 * What a shift brings is as far from its owner as it was where it comes from, because all ranks pass on what is equally
 * far from home; check_world.c sees to that. */
#include "common/plan/check/rank.h"

#include <string.h>

static int tp_size(const struct program *p)
{
    return p->mesh.size[AXIS_TP];
}

static int tp_index(const struct program *p)
{
    return p->sharding.coord[AXIS_TP];
}

int parts_rows(const struct program *p, const struct op *op)
{
    bool first;
    int member = program_dim_member(p, op->m.sym, &first);
    const struct buffer *y = &p->buffers[op->arg[3].buffer];
    return first || y->ndim == 0 || y->dim[0].sym != SYM_TOKENS ? -1 : member;
}

bool parts_columns(const struct program *p, const struct graph *g, const struct op *op, int64_t *lo, int64_t *hi,
                   int64_t *width)
{
    const struct buffer *w = &p->buffers[op->arg[1].buffer];
    bool by_rows = op->flags & OPF_TRANS_B;
    if (w->tensor < 0 || g->tensors[w->tensor].kind != GT_PARAM || op->flags & OPF_TRANS_A || op->ldb <= 0)
        return false;
    const struct sharding_param *q = &p->sharding.param[w->tensor];
    int64_t at = op->arg[1].offset.factor + op->arg[1].col;
    *width = by_rows ? q->rows : q->cols;
    *lo = by_rows ? at / op->ldb : at;
    *hi = *lo + op->n.factor;
    return op->n.sym == SYM_ONE && op->n.factor < *width && op->ldb == q->cols && op->arg[1].offset.sym == SYM_ONE &&
           (!by_rows || (at % op->ldb == 0 && op->k.sym == SYM_ONE && op->k.factor == q->cols)) &&
           (by_rows || (op->k.sym == SYM_ONE && op->k.factor == q->rows)) && *hi <= *width;
}

/* ---- what is taken ---- */

static const struct value_part *part_of(const struct rank_check *c, int i)
{
    static const struct value_part whole = {0};
    bool read = c->mode[i] && c->mode[i] != 'w' && c->reach[i].n;
    return read ? &c->state[rank_place(c, i, 0)].part : &whole;
}

/* What the op takes besides the operand `but` is whole. */
static err_t others_whole(const struct rank_check *c, int but)
{
    for (int i = 0; c->mode[i]; i++) {
        const struct value_part *x = part_of(c, i);
        if (i == but || (!x->away && !x->hi))
            continue;
        const char *name = rank_name(c, rank_place(c, i, 0));
        if (x->away)
            return check_fail(&c->at, c->why, "reads %s, which is of the own tokens of another rank", name);
        return check_fail(&c->at, c->why, "reads %s, which has columns %lld to %lld of %lld alone", name,
                          (long long)x->lo, (long long)x->hi - 1, (long long)x->width);
    }
    return OK;
}

static bool at(const struct op_operand *a, int64_t col, struct graph_dim offset)
{
    return a->buffer < 0 ||
           (a->col == col && a->offset.factor == offset.factor && (a->offset.sym == offset.sym || !offset.factor));
}

/* Operand i begins with the first token of `member`, of `per_token` elements each. */
static bool begins_with(const struct program *p, const struct op_operand *a, int member, int64_t per_token)
{
    bool first;
    return a->buffer < 0 || (program_dim_member(p, a->offset.sym, &first) == member && first && a->col == 0 &&
                             a->offset.factor == per_token);
}

/* Rows of one member's tokens, of just these tokens; on tp the result is then what a product of all tokens would be. */
static err_t product_of_rows(struct rank_check *c, const struct op *op, int member, struct value_layout in[])
{
    const struct program *p = c->p;
    int n = tp_size(p), owner = (tp_index(p) + part_of(c, 0)->away) % n;
    const char *x = p->buffers[op->arg[0].buffer].name, *y = p->buffers[op->arg[3].buffer].name;
    static const struct graph_dim none = {SYM_ONE, 0};
    if (in[0].zero || in[0].on[AXIS_TP] != ON_ROWS || op->m.factor != 1 || op->flags & ~(OPF_TRANS_B | OPF_GELU) ||
        program_dim(p, op->n, 0) != p->buffers[op->arg[3].buffer].dim[1].factor || !at(&op->arg[0], 0, none))
        return check_fail(&c->at, c->why, "makes some rows of %s, which only a product of own tokens, %s, can", y, x);
    if (owner != member)
        return check_fail(&c->at, c->why, "makes rows of member %d from %s, which is of the tokens of member %d",
                          member, x, owner);
    if (!begins_with(p, &op->arg[3], member, op->ldc) || !begins_with(p, &op->arg[4], member, op->ldc))
        return check_fail(&c->at, c->why, "puts the rows of member %d where others of %s belong", member, y);
    in[0].on[AXIS_TP] = ON_WHOLE;
    return OK;
}

/* Some columns of a share: with their part of the bias. */
static err_t product_of_columns(struct rank_check *c, const struct op *op, const struct value_part *made)
{
    static const struct graph_dim none = {SYM_ONE, 0};
    if (op->flags & ~OPF_TRANS_B || op->m.sym != SYM_TOKENS || op->m.factor != 1 || op->ldc != made->hi - made->lo ||
        !at(&op->arg[3], 0, none))
        return check_fail(
            &c->at, c->why,
            "takes some columns of %s, which only a product of all tokens can, into a matrix of just these",
            c->p->buffers[op->arg[1].buffer].name);
    if (!at(&op->arg[2], made->lo, none))
        return check_fail(&c->at, c->why, "makes columns %lld to %lld and adds other columns of %s",
                          (long long)made->lo, (long long)made->hi - 1, c->p->buffers[op->arg[2].buffer].name);
    return OK;
}

static err_t product(struct rank_check *c, const struct op *op, struct value_layout in[], struct value_part *made)
{
    int member = parts_rows(c->p, op);
    err_t e = others_whole(c, member >= 0 ? 0 : -1);
    if (!e && parts_columns(c->p, c->g, op, &made->lo, &made->hi, &made->width))
        return member >= 0 ? check_fail(&c->at, c->why, "makes some columns of some rows")
                           : product_of_columns(c, op, made);
    made->lo = made->hi = made->width = 0;
    return e || member < 0 ? e : product_of_rows(c, op, member, in);
}

static err_t shift(struct rank_check *c, const struct op *op, const struct value_layout *x, struct value_part *made)
{
    int n = tp_size(c->p), away = part_of(c, 0)->away;
    if (x->on[AXIS_TP] != ON_ROWS || part_of(c, 0)->hi)
        return check_fail(&c->at, c->why, "passes on %s, which is not of own tokens",
                          c->p->buffers[op->arg[0].buffer].name);
    made->away = ((op->from + away - tp_index(c->p)) % n + n) % n;
    return OK;
}

/* The sum is of the columns that the share has. */
static err_t scatter(struct rank_check *c, const struct op *op, struct value_part *made)
{
    const char *name = c->p->buffers[op->arg[0].buffer].name;
    if (!c->reach[0].n)
        return OK;
    struct state *x = &c->state[rank_place(c, 0, 0)];
    *made = x->part;
    if (x->spent)
        return check_fail(&c->at, c->why, "sums %s a second time", name);
    if (made->hi && program_dim(c->p, op->n, 0) != made->hi - made->lo)
        return check_fail(&c->at, c->why, "sums some of the columns of %s", name);
    x->spent = true;
    return OK;
}

/* All rows of some columns, to their place. */
static err_t put(struct rank_check *c, const struct op *op, struct value_part *made)
{
    static const struct graph_dim none = {SYM_ONE, 0};
    const struct buffer *x = &c->p->buffers[op->arg[0].buffer];
    *made = *part_of(c, 0);
    if (op->m.sym != x->dim[0].sym || op->m.factor != x->dim[0].factor || op->lda != made->hi - made->lo ||
        op->n.factor != op->lda || op->ldb != made->width || !at(&op->arg[0], 0, none) ||
        !at(&op->arg[1], made->lo, none))
        return check_fail(&c->at, c->why, "puts %s, columns %lld to %lld of %lld, where others belong", x->name,
                          (long long)made->lo, (long long)made->hi - 1, (long long)made->width);
    return OK;
}

err_t rank_parts(struct rank_check *c, const struct op *op, struct value_layout in[OP_MAX_OPERANDS],
                 struct value_part *made)
{
    const struct value_part *x = part_of(c, 0);
    bool passes = op->kind == OP_SHIFT && check_group_axes(c->p, op->group) == 1u << AXIS_TP;
    err_t e = OK;
    if (op->kind == OP_SHIFT || op->kind == OP_OWN_SCATTER)
        c->facts->parts[c->at.op] = (struct part_fact){x->away, x->lo, x->hi};
    if (op->kind == OP_GEMM)
        return product(c, op, in, made);
    bool takes = passes || (x->hi && !x->away && (op->kind == OP_OWN_SCATTER || op->kind == OP_COPY_COLS));
    e = others_whole(c, takes ? 0 : -1);
    if (e)
        return e;
    if (passes)
        return shift(c, op, &in[0], made);
    if (op->kind == OP_OWN_SCATTER)
        return scatter(c, op, made);
    return takes ? put(c, op, made) : OK;
}

/* ---- what is made ---- */

/* The value lacks parts of this microbatch still. */
static bool goes_on(const struct rank_check *c, const struct state *before)
{
    return before->value == VALUE_SET && before->part.due && before->micro == c->p->actions[c->at.action].micro;
}

static err_t rows_put(struct rank_check *c, int place, const struct state *before, int member)
{
    const int n = tp_size(c->p);
    unsigned char *rows = &c->rows[(size_t)place * (size_t)n];
    const bool more = goes_on(c, before);
    if (!more)
        memset(rows, 0, (size_t)n);
    if (rows[member])
        return check_fail(&c->at, c->why, "makes the rows of member %d of %s a second time", member,
                          rank_name(c, place));
    rows[member] = 1;
    c->state[place].part.due = (more ? before->part.due : n) - 1;
    return OK;
}

static err_t columns_put(struct rank_check *c, int place, const struct state *before, const struct value_part *made)
{
    const int64_t next = goes_on(c, before) ? made->width - before->part.due : 0;
    if (made->lo != next)
        return check_fail(&c->at, c->why, "puts columns %lld to %lld into %s, where those from %lld on are next",
                          (long long)made->lo, (long long)made->hi - 1, rank_name(c, place), (long long)next);
    c->state[place].part.due = made->width - made->hi;
    return OK;
}

err_t rank_part_put(struct rank_check *c, const struct op *op, int i, int place, const struct state *before,
                    const struct value_part *made)
{
    int member = op->kind == OP_GEMM && (i == 3 || i == 4) ? parts_rows(c->p, op) : -1;
    if (member >= 0)
        return rows_put(c, place, before, member);
    if (op->kind == OP_COPY_COLS && made->hi)
        return columns_put(c, place, before, made);
    if (op->kind != OP_GEMM || i == 3)
        c->state[place].part = *made;
    return OK;
}
