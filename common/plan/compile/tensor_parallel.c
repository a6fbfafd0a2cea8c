/* Tensor and sequence parallelism: a rank's part of a tensor, and the collectives that combine parts.
 *
 * Where the weight of a linear is cut by its input features, or a table by its rows, each rank computes a share of a
 * sum on all tokens. A share has its own buffer (tp_new_share), marked as a share, and nothing but the sum is written
 * there:
 *
 *   without sequence parallelism    all-reduce in place             all tokens
 *   with sequence parallelism       reduce-scatter to a new buffer  own tokens */
#include "common/plan/compile/internal.h"
#include "common/plan/mutant.h"

#include <assert.h>
#include <stdio.h>

bool tp_norm_is_cut(const struct compiler *c, int i)
{
    const struct graph_node *n = &c->g->nodes[i];
    return n->op == GO_RMSNORM && !n->heads && tp_size(c) > 1 && c->g->tensors[n->in[0]].cut.segments;
}

bool tp_counts(const struct compiler *c, int t)
{
    const struct graph_cut *cut = &c->g->tensors[t].cut;
    int boxes, mine = sharding_cut_box(cut, tp_size(c), tp_index(c), &boxes);
    for (int i = 0; i < tp_index(c); i++)
        if (sharding_cut_box(cut, tp_size(c), i, &boxes) == mine)
            return false;
    return true;
}

/* Whether t is a number of each token from columns that are sharded: every rank has it for all tokens. */
static bool is_of_parts(const struct compiler *c, int t)
{
    return c->g->tensors[t].kind == GT_STAT && c->producer[t] >= 0 && tp_norm_is_cut(c, c->producer[t]);
}

bool tp_is_own(const struct compiler *c, int t)
{
    const struct graph_tensor *g = &c->g->tensors[t];
    bool by_token = g->kind == GT_ACTIVATION || g->kind == GT_STAT || g->kind == GT_INDEX;
    bool divided = experts_divide_tokens(c) && c->producer[t] >= 0 && c->g->nodes[c->producer[t]].op == GO_DISPATCH;
    return (c->own || divided) && !g->cut.segments && by_token && !tp_is_arrived(c, t) && !is_of_parts(c, t);
}

bool tp_is_arrived(const struct compiler *c, int t)
{
    return c->g->tensors[t].by_expert && c->p->sharding.ep.axes;
}

static enum graph_sym rows_sym(const struct compiler *c, int t)
{
    if (compile_of_runs(c, t))
        return SYM_RUNS;
    return tp_is_own(c, t) ? SYM_OWN : SYM_TOKENS;
}

struct graph_dim tp_local_dim(const struct compiler *c, int t, int d)
{
    const struct graph_tensor *g = &c->g->tensors[t];
    struct graph_dim dim = g->dim[d];
    if (g->cut.segments && g->cut.dim == d)
        dim.factor = sharding_cut_extent(&g->cut, dim.factor, sharding_parts(&c->p->sharding, &g->cut),
                                         sharding_part(&c->p->sharding, &g->cut, c->p->sharding.coord));
    if (tp_is_arrived(c, t) && d == 0)
        return (struct graph_dim){SYM_ARRIVED, 1};
    if (dim.sym == SYM_TOKENS)
        dim.sym = rows_sym(c, t);
    return dim;
}

int64_t tp_cols(const struct compiler *c, int t)
{
    return c->g->tensors[t].ndim > 1 ? tp_local_dim(c, t, 1).factor : 1;
}

struct graph_dim tp_rows(const struct compiler *c, int t)
{
    if (tp_is_arrived(c, t))
        return (struct graph_dim){SYM_ARRIVED, 1};
    int64_t per_token = c->g->tensors[t].ndim > 1 ? c->g->tensors[t].dim[0].factor : 1;
    return (struct graph_dim){rows_sym(c, t), per_token};
}

int64_t tp_heads(const struct compiler *c, int t, int64_t all)
{
    const struct graph_cut *cut = &c->g->tensors[t].cut;
    int64_t lo, hi;
    if (!cut->segments)
        return all;
    sharding_cut(cut, tp_size(c), tp_index(c), &lo, &hi);
    return hi - lo;
}

void tp_set_norm(const struct compiler *c, struct op *op, int i)
{
    const struct graph_node *n = &c->g->nodes[i];
    op->m = tp_rows(c, n->in[0]);
    op->n = dim_one(n->heads ? n->head_dim : tp_cols(c, n->in[0]));
    if (n->heads && !MUTANT(FIRST_HEAD_NORMED))
        op->m.factor = tp_heads(c, n->in[0], n->heads);
}

int64_t tp_col(const struct compiler *c, int t, int64_t col)
{
    const struct graph_tensor *g = &c->g->tensors[t];
    if (!g->cut.segments || !col)
        return col;
    int64_t width = g->dim[1].factor / g->cut.segments;
    assert(g->cut.dim == 1 && col % width == 0);
    return MUTANT(COLUMN_OF_THE_WHOLE) ? col : col / width * (tp_cols(c, t) / g->cut.segments);
}

enum linear_cut tp_linear_cut(const struct compiler *c, int node)
{
    const struct graph_node *n = &c->g->nodes[node];
    const struct graph_cut *cut = &c->g->tensors[n->in[1]].cut;
    if (tp_size(c) == 1 || !cut->segments)
        return LINEAR_WHOLE;
    return cut->dim == (n->trans_w ? 1 : 0) ? LINEAR_BY_OUT : LINEAR_BY_IN;
}

void tp_set_vocab(const struct compiler *c, struct op *op, int t)
{
    const struct graph_cut *cut = &c->g->tensors[t].cut;
    if (tp_size(c) > 1 && cut->segments)
        sharding_cut(cut, tp_size(c), tp_index(c), &op->vocab_lo, &op->vocab_hi);
    if (MUTANT(VOCABULARY_OFF_BY_ONE) && op->vocab_lo > 0) {
        op->vocab_lo++;
        op->vocab_hi++;
    }
}

/* ---- shares and own tokens ---- */

static struct buffer all_tokens(const struct compiler *c, int t, const char *suffix, const char *more)
{
    const struct graph_tensor *g = &c->g->tensors[t];
    struct buffer b = {.tensor = t, .dtype = c->p->dtype, .ndim = 2, .space = SPACE_WORK, .run = -1, .slots = 1};
    b.dim[0] = dim_tokens(1);
    b.dim[1] = dim_one(tp_cols(c, t));
    snprintf(b.name, sizeof(b.name), "%s%s%s", g->name, suffix, more);
    return b;
}

int tp_new_share(struct compiler *c, int t, const char *suffix)
{
    struct buffer b = all_tokens(c, t, suffix, c->own ? ".share" : "");
    b.is_share = true;
    return compile_buffer(c, &b);
}

bool tp_is_share(const struct compiler *c, int buffer)
{
    return buffer >= 0 && c->p->buffers[buffer].is_share;
}

int tp_sum_shares(struct compiler *c, int t, int share, const char *suffix)
{
    int y = c->own ? compile_work_buffer(c, t, suffix) : share;
    if (MUTANT(SHARE_NOT_SUMMED) && !c->own)
        return y;
    struct op *op = compile_collective(c, c->own ? OP_OWN_SCATTER : OP_ALL_REDUCE, c->producer[t], 1u << AXIS_TP);
    op->m = dim_tokens(c->own ? 1 : tp_cols(c, t));
    op->n = dim_one(c->own ? tp_cols(c, t) : 1);
    op->reduce = REDUCE_SUM;
    op_arg(op, 0, share);
    if (c->own)
        op_arg(op, 1, y);
    return y;
}

int tp_gather_tokens(struct compiler *c, int t, int own, const char *suffix)
{
    if (!tp_is_own(c, t))
        return own;
    struct buffer b = all_tokens(c, t, suffix, "");
    int all = compile_buffer(c, &b);
    struct op *op = compile_collective(c, OP_OWN_GATHER, c->producer[t], 1u << AXIS_TP);
    op->m = dim_tokens(1);
    op->n = dim_one(tp_cols(c, t));
    op_arg(op, 0, own);
    op_arg(op, 1, all);
    return all;
}

int tp_all_tokens(struct compiler *c, int t)
{
    if (!tp_is_own(c, t))
        return compile_value(c, t);
    if (c->full[t] < 0)
        c->full[t] = tp_gather_tokens(c, t, compile_value(c, t), ".all");
    return c->full[t];
}
