/* Values that are computed or sent in parts: whose tokens a part has, which columns it has, and what an assembled value
 * still lacks.
 *
 * Rows. Own tokens that are passed round the tp group keep their owner. They may only be passed on, or be the input of
 * a matmul that writes the rows of the same tokens. When the rows of every member have been written, each once, the
 * result is whole.
 *
 * Columns. A matmul that reads some columns of a parameter computes the same columns of a share. They may only be
 * summed, once, and copied to their columns of the result. When all columns have been copied, one part after the other,
 * the sum is whole.
 *
 * An incomplete value must not be read. The distance of a part to its owner does not change in a shift, because all
 * ranks pass on parts with the same distance; world.c checks this. */
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

/* ---- what an op reads ---- */

static const struct value_part *part_of(const struct rank_check *c, int i)
{
    static const struct value_part whole = {0};
    bool read = c->mode[i] && c->mode[i] != 'w' && c->reach[i].n;
    return read ? &c->state[rank_interval(c, i, 0)].part : &whole;
}

/* Checks that all values that the op reads are whole, except operand `but` (-1: no exception). */
static err_t others_whole(const struct rank_check *c, int but)
{
    for (int i = 0; c->mode[i]; i++) {
        const struct value_part *x = part_of(c, i);
        if (i == but || (!x->away && !x->hi))
            continue;
        const char *name = rank_name(c, rank_interval(c, i, 0));
        if (x->away)
            return check_fail(&c->at, c->why, "reads %s, which has the own tokens of another rank", name);
        return check_fail(&c->at, c->why, "reads %s, which has only columns %lld to %lld of %lld", name,
                          (long long)x->lo, (long long)x->hi - 1, (long long)x->width);
    }
    return OK;
}

static bool operand_is_at(const struct op_operand *a, int64_t col, struct graph_dim offset)
{
    return a->buffer < 0 ||
           (a->col == col && a->offset.factor == offset.factor && (a->offset.sym == offset.sym || !offset.factor));
}

/* Whether the operand begins with the first token of `member`, with `per_token` elements per token. */
static bool begins_with(const struct program *p, const struct op_operand *a, int member, int64_t per_token)
{
    bool first;
    return a->buffer < 0 || (program_dim_member(p, a->offset.sym, &first) == member && first && a->col == 0 &&
                             a->offset.factor == per_token);
}

/* Checks a matmul that writes the rows of one member's tokens: it reads exactly these tokens. Over tp the result then
 * has the layout of a matmul of all tokens. */
static err_t parts_matmul_rows(struct rank_check *c, const struct op *op, int member, struct value_layout in[])
{
    const struct program *p = c->p;
    int n = tp_size(p), owner = (tp_index(p) + part_of(c, 0)->away) % n;
    const char *x = p->buffers[op->arg[0].buffer].name, *y = p->buffers[op->arg[3].buffer].name;
    static const struct graph_dim none = {SYM_ONE, 0};
    if (in[0].zero || in[0].on[AXIS_TP] != ON_ROWS || op->m.factor != 1 || op->flags & ~(OPF_TRANS_B | OPF_GELU) ||
        program_dim(p, op->n, 0) != p->buffers[op->arg[3].buffer].dim[1].factor || !operand_is_at(&op->arg[0], 0, none))
        return check_fail(&c->at, c->why, "writes some rows of %s, but is no matmul of the own tokens %s", y, x);
    if (owner != member)
        return check_fail(&c->at, c->why, "writes rows of member %d from %s, which has the tokens of member %d", member,
                          x, owner);
    if (!begins_with(p, &op->arg[3], member, op->ldc) || !begins_with(p, &op->arg[4], member, op->ldc))
        return check_fail(&c->at, c->why, "writes the rows of member %d to other rows of %s", member, y);
    in[0].on[AXIS_TP] = ON_WHOLE;
    return OK;
}

/* Checks a matmul that computes some columns of a share, with the same columns of the bias. */
static err_t parts_matmul_columns(struct rank_check *c, const struct op *op, const struct value_part *made)
{
    static const struct graph_dim none = {SYM_ONE, 0};
    if (op->flags & ~OPF_TRANS_B || op->m.sym != SYM_TOKENS || op->m.factor != 1 || op->ldc != made->hi - made->lo ||
        !operand_is_at(&op->arg[3], 0, none))
        return check_fail(
            &c->at, c->why,
            "reads some columns of %s, but is no matmul of all tokens into a matrix of exactly these columns",
            c->p->buffers[op->arg[1].buffer].name);
    if (!operand_is_at(&op->arg[2], made->lo, none))
        return check_fail(&c->at, c->why, "computes columns %lld to %lld but adds other columns of %s",
                          (long long)made->lo, (long long)made->hi - 1, c->p->buffers[op->arg[2].buffer].name);
    return OK;
}

static err_t parts_matmul(struct rank_check *c, const struct op *op, struct value_layout in[], struct value_part *made)
{
    int member = parts_rows(c->p, op);
    err_t e = others_whole(c, member >= 0 ? 0 : -1);
    if (!e && parts_columns(c->p, c->g, op, &made->lo, &made->hi, &made->width))
        return member >= 0 ? check_fail(&c->at, c->why, "writes only some columns of only some rows")
                           : parts_matmul_columns(c, op, made);
    made->lo = made->hi = made->width = 0;
    return e || member < 0 ? e : parts_matmul_rows(c, op, member, in);
}

static err_t parts_shift(struct rank_check *c, const struct op *op, const struct value_layout *x,
                         struct value_part *made)
{
    int n = tp_size(c->p), away = part_of(c, 0)->away;
    if (x->on[AXIS_TP] != ON_ROWS || part_of(c, 0)->hi)
        return check_fail(&c->at, c->why, "passes on %s, which does not have own tokens",
                          c->p->buffers[op->arg[0].buffer].name);
    made->away = ((op->from + away - tp_index(c->p)) % n + n) % n;
    return OK;
}

/* Checks that the sum covers the columns that the share has, and that the share is summed once. */
static err_t parts_scatter(struct rank_check *c, const struct op *op, struct value_part *made)
{
    const char *name = c->p->buffers[op->arg[0].buffer].name;
    if (!c->reach[0].n)
        return OK;
    struct value_state *x = &c->state[rank_interval(c, 0, 0)];
    *made = x->part;
    if (x->spent)
        return check_fail(&c->at, c->why, "sums %s a second time", name);
    if (made->hi && program_dim(c->p, op->n, 0) != made->hi - made->lo)
        return check_fail(&c->at, c->why, "sums only some of the columns of %s", name);
    x->spent = true;
    return OK;
}

/* Checks a copy of some columns, all rows, to their columns of the result. */
static err_t parts_copy_columns(struct rank_check *c, const struct op *op, struct value_part *made)
{
    static const struct graph_dim none = {SYM_ONE, 0};
    const struct buffer *x = &c->p->buffers[op->arg[0].buffer];
    *made = *part_of(c, 0);
    if (op->m.sym != x->dim[0].sym || op->m.factor != x->dim[0].factor || op->lda != made->hi - made->lo ||
        op->n.factor != op->lda || op->ldb != made->width || !operand_is_at(&op->arg[0], 0, none) ||
        !operand_is_at(&op->arg[1], made->lo, none))
        return check_fail(&c->at, c->why, "copies %s, columns %lld to %lld of %lld, to other columns", x->name,
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
        return parts_matmul(c, op, in, made);
    bool takes = passes || (x->hi && !x->away && (op->kind == OP_OWN_SCATTER || op->kind == OP_COPY_COLS));
    e = others_whole(c, takes ? 0 : -1);
    if (e)
        return e;
    if (passes)
        return parts_shift(c, op, &in[0], made);
    if (op->kind == OP_OWN_SCATTER)
        return parts_scatter(c, op, made);
    return takes ? parts_copy_columns(c, op, made) : OK;
}

/* ---- what an op writes ---- */

/* Whether the value still lacks parts of this microbatch. */
static bool is_incomplete(const struct rank_check *c, const struct value_state *before)
{
    return before->value == VALUE_SET && before->part.due && before->micro == c->p->actions[c->at.action].micro;
}

static err_t parts_put_rows(struct rank_check *c, int interval, const struct value_state *before, int member)
{
    const int n = tp_size(c->p);
    unsigned char *rows = &c->rows[(size_t)interval * (size_t)n];
    const bool more = is_incomplete(c, before);
    if (!more)
        memset(rows, 0, (size_t)n);
    if (rows[member])
        return check_fail(&c->at, c->why, "writes the rows of member %d of %s a second time", member,
                          rank_name(c, interval));
    rows[member] = 1;
    c->state[interval].part.due = (more ? before->part.due : n) - 1;
    return OK;
}

static err_t parts_put_columns(struct rank_check *c, int interval, const struct value_state *before,
                               const struct value_part *made)
{
    const int64_t next = is_incomplete(c, before) ? made->width - before->part.due : 0;
    if (made->lo != next)
        return check_fail(&c->at, c->why,
                          "copies columns %lld to %lld into %s, which expects columns from %lld on next",
                          (long long)made->lo, (long long)made->hi - 1, rank_name(c, interval), (long long)next);
    c->state[interval].part.due = made->width - made->hi;
    return OK;
}

err_t rank_part_put(struct rank_check *c, const struct op *op, int i, int interval, const struct value_state *before,
                    const struct value_part *made)
{
    int member = op->kind == OP_GEMM && (i == 3 || i == 4) ? parts_rows(c->p, op) : -1;
    if (member >= 0)
        return parts_put_rows(c, interval, before, member);
    if (op->kind == OP_COPY_COLS && made->hi)
        return parts_put_columns(c, interval, before, made);
    if (op->kind != OP_GEMM || i == 3)
        c->state[interval].part = *made;
    return OK;
}
