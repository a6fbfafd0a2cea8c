/* Asynchronous tensor parallelism: with sequence parallelism a product overlaps the collective in front of it, or
 * behind.
 *
 * In front of a product that needs all tokens their gathering is a ring: in step s a rank passes on the own tokens that
 * began s ranks before it. The products of one member's tokens, all that take them, are computed while the next are on
 * their way, the own ones first; what they make lies where one product of all tokens would put it. All steps of the
 * ring are queued at once, since every member's tokens have a buffer of their own: no step waits for a product. The
 * backward, whose products of weights sum over all tokens, gathers whole, and so does what it makes again.
 *
 * Behind a product that makes shares some columns of the sum are on their way while the next are computed; they are put
 * together when all are there.
 *
 * Either way each number is the same sum. Where a product's sums do not depend on how many rows and columns it has, as
 * in the reference kernels, no bit changes. */
#include "common/plan/compile/internal.h"
#include "common/plan/mutant.h"

#include <stdio.h>

#define ALIGN 64

/* A buffer of some rows and columns of activation t. */
static int part_buffer(struct compiler *c, int t, struct graph_dim rows, int64_t cols, const char *what, int part)
{
    struct buffer b = {.tensor = t, .dtype = c->p->dtype, .ndim = 2, .space = SPACE_WORK, .run = -1, .slots = 1};
    b.dim[0] = rows;
    b.dim[1] = dim_one(cols);
    snprintf(b.name, sizeof(b.name), "%.90s.%s.%d", c->g->tensors[t].name, what, part);
    return compile_buffer(c, &b);
}

/* ---- tokens, as they come ---- */

static struct graph_dim tokens_of(const struct compiler *c, int member, int64_t per_token)
{
    enum graph_sym sym = (enum graph_sym)(SYM_MEMBER + 2 * member);
    return (struct graph_dim){member == tp_index(c) ? SYM_OWN : sym, per_token};
}

static struct graph_dim tokens_before(const struct compiler *c, int member, int64_t per_token)
{
    enum graph_sym sym = (enum graph_sym)(SYM_MEMBER + 2 * member + 1);
    return (struct graph_dim){member == tp_index(c) ? SYM_OWN0 : sym, per_token};
}

/* Whose tokens come in step s - 1 of the ring; in front of it, this rank's own. */
static int origin_member(const struct compiler *c, int s)
{
    return (tp_index(c) - s + tp_size(c)) % tp_size(c);
}

/* As long on all ranks, so that all ranks' memory is alike: the first member has most. */
static int tokens_buffer(struct compiler *c, int t, int member)
{
    int b = part_buffer(c, t, tokens_of(c, member, 1), tp_cols(c, t), "of", member);
    const struct graph_dim most = {SYM_MEMBER, tp_cols(c, t) * (int64_t)dtype_bytes(c->p->dtype)};
    if (b >= 0)
        c->p->buffers[b].bytes = program_dim(c->p, most, c->p->max_samples);
    return b;
}

/* Brings x's tokens of all members, each into its buffer of c->parts. */
static void emit_ring(struct compiler *c, int x)
{
    int n = tp_size(c), step = MUTANT(TOKENS_BACKWARDS) ? n - 1 : 1;
    int64_t cols = tp_cols(c, x);
    c->parts[tp_index(c)] = compile_value(c, x);
    for (int s = 0; s + 1 < n; s++) {
        int goes = origin_member(c, s), comes = origin_member(c, s + 1);
        c->parts[comes] = tokens_buffer(c, x, comes);
        struct op *op = compile_collective(c, OP_SHIFT, c->producer[x], 1u << AXIS_TP);
        op->m = tokens_of(c, goes, cols);
        op->k = tokens_of(c, comes, cols);
        op->peer = (tp_index(c) + step) % n;
        op->from = (tp_index(c) + n - step) % n;
        op_arg(op, 0, c->parts[goes]);
        op_arg(op, 1, c->parts[comes]);
    }
}

bool async_tp_overlaps_gather(const struct compiler *c, int i)
{
    return c->async && i >= c->forward.first_node && i < c->forward.end_node && c->g->nodes[i].op == GO_LINEAR &&
           tp_linear_cut(c, i) == LINEAR_BY_OUT;
}

static bool is_overlapped(const struct compiler *c, int i, int x)
{
    return async_tp_overlaps_gather(c, i) && c->g->nodes[i].in[0] == x;
}

/* The rows of one member's tokens of product i. */
static void product_of(struct compiler *c, int i, int member)
{
    int gelu = compile_gelu_after(c, i), made = c->act[c->g->nodes[i].out[0]];
    int y = gelu >= 0 ? c->act[c->g->nodes[gelu].out[0]] : made;
    struct op *op = compile_product(c, i, c->parts[member], y, gelu >= 0 ? made : -1);
    int rows = MUTANT(ROWS_OF_THE_NEXT) ? (member + 1) % tp_size(c) : member;
    op->m = tokens_of(c, member, 1);
    op->arg[3].offset = tokens_before(c, rows, op->ldc);
    if (gelu >= 0)
        op->arg[4].offset = tokens_before(c, MUTANT(AUX_OF_THE_FIRST) ? 0 : rows, op->ldc);
}

void async_tp_emit_gather(struct compiler *c, int first)
{
    int x = c->g->nodes[first].in[0], y, aux;
    for (int i = c->forward.first_node; i < first; i++)
        if (is_overlapped(c, i, x))
            return;
    emit_ring(c, x);
    for (int i = first; i < c->forward.end_node; i++)
        if (is_overlapped(c, i, x))
            compile_product_buffers(c, i, &y, &aux);
    for (int s = 0; s < tp_size(c) - MUTANT(LAST_TOKENS_LEFT); s++)
        for (int i = first; i < c->forward.end_node && !c->err; i++)
            if (is_overlapped(c, i, x))
                product_of(c, i, origin_member(c, s));
}

/* ---- columns, as they are ready ---- */

bool async_tp_overlaps_sum(const struct compiler *c, int i)
{
    const struct graph_node *n = &c->g->nodes[i];
    return c->async && tp_linear_cut(c, i) == LINEAR_BY_IN && tp_cols(c, n->out[0]) >= tp_size(c);
}

/* Bytes of `cols` columns of a share. */
static int64_t share_bytes(const struct compiler *c, int64_t cols)
{
    int64_t bytes = program_dim(c->p, dim_tokens(cols * (int64_t)dtype_bytes(c->p->dtype)), c->p->max_samples);
    return (bytes + ALIGN - 1) / ALIGN * ALIGN;
}

/* One run for the columns of all parts: if two shared bytes, the product of the one would wait for the other's sum. */
static int share_run(struct compiler *c, int t)
{
    struct buffer b = {.tensor = -1, .dtype = c->p->dtype, .ndim = 1, .space = SPACE_WORK, .run = -1, .slots = 1};
    const int64_t size = (int64_t)dtype_bytes(b.dtype);
    int64_t lo, hi;
    for (int k = 0; k < tp_size(c); k++) {
        layout_split(tp_cols(c, t), tp_size(c), k, &lo, &hi);
        b.bytes += share_bytes(c, hi - lo);
    }
    b.dim[0] = dim_one(size ? b.bytes / size : 0);
    snprintf(b.name, sizeof(b.name), "%s.share", c->g->tensors[t].name);
    return compile_buffer(c, &b);
}

/* Columns [lo, hi) of this rank's share, `at` bytes from the start of the run. */
static int share_of(struct compiler *c, int i, int part, int64_t lo, int64_t hi, int run, int64_t at)
{
    const struct graph_node *n = &c->g->nodes[i];
    int share = part_buffer(c, n->out[0], dim_tokens(1), hi - lo, "share", part);
    if (share >= 0) {
        c->p->buffers[share].is_share = true;
        c->p->buffers[share].run = run;
        c->p->buffers[share].offset = at;
    }
    struct op *op = compile_product(c, i, compile_value(c, n->in[0]), share, -1);
    op->n = dim_one(hi - lo);
    op->ldc = hi - lo;
    if (n->trans_w)
        op->arg[1].col = lo;
    else
        op->arg[1].offset = dim_one(lo * op->ldb);
    if (op->arg[2].buffer >= 0 && !MUTANT(BIAS_OF_THE_FIRST_COLUMNS))
        op->arg[2].col = lo;
    return share;
}

/* Their sum, for own tokens. */
static int sum_of(struct compiler *c, int t, int share, int part, int64_t cols)
{
    int y = part_buffer(c, t, tokens_of(c, tp_index(c), 1), cols, "sum", part);
    if (y >= 0 && c->p->buffers[y].bytes == 0) /* without own tokens: a place by which ops are ordered */
        c->p->buffers[y].bytes = ALIGN;
    struct op *op = compile_collective(c, OP_OWN_SCATTER, c->producer[t], 1u << AXIS_TP);
    op->m = dim_tokens(1);
    op->n = dim_one(cols);
    op->reduce = REDUCE_SUM;
    op_arg(op, 0, share);
    op_arg(op, 1, y);
    return y;
}

static void copy_columns(struct compiler *c, int node, int from, int to, int64_t lo, int64_t hi)
{
    struct op *op = compile_op(c, OP_COPY_COLS, node);
    op->m = tokens_of(c, tp_index(c), 1);
    op->n = dim_one(hi - lo);
    op->lda = hi - lo;
    op->ldb = tp_cols(c, c->g->nodes[node].out[0]);
    op_arg(op, 0, from);
    op_arg(op, 1, to);
    op->arg[1].col = lo;
}

int async_tp_emit_sum(struct compiler *c, int i)
{
    int t = c->g->nodes[i].out[0], n = tp_size(c), y = compile_work_buffer(c, t, ""), run = share_run(c, t), shares[2];
    int64_t cols = tp_cols(c, t), lo, hi, at = 0;
    for (int k = 0; k < n; k++) {
        layout_split(cols, n, k, &lo, &hi);
        shares[k % 2] = share_of(c, i, k, lo, hi, run, at);
        c->parts[k] = sum_of(c, t, shares[(k - (k && MUTANT(COLUMNS_SUMMED_TWICE))) % 2], k, hi - lo);
        at += share_bytes(c, hi - lo);
    }
    for (int k = 0; k < n - MUTANT(LAST_COLUMNS_LEFT); k++) {
        layout_split(cols, n, k, &lo, &hi);
        copy_columns(c, i, c->parts[k], y, lo, hi);
    }
    return y;
}
