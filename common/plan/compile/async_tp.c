/* Asynchronous tensor parallelism (with sequence parallelism): a matmul overlaps the collective before or after it.
 *
 * All-gather before a matmul. The all-gather runs as a ring: in step s each rank forwards the block of tokens that
 * originated s ranks before it. The matmuls on one rank's block run while the next block is in flight, starting with
 * the rank's own block; results go to where a single matmul over all tokens would write them. All ring steps are queued
 * at once, because every block has its own buffer. The backward pass gathers everything first, since weight gradients
 * sum over all tokens; so does the recomputation in it.
 *
 * Reduce-scatter after a matmul. Column blocks of the result are reduced while the next block is computed, and copied
 * into one matrix at the end.
 *
 *   rank 1 of 3:
 *   compute  | block 1   | block 0   | block 2 |    | cols 0 | cols 1     | cols 2     |            | copies |
 *   comm     | receive 0 | receive 2 |                       | sum cols 0 | sum cols 1 | sum cols 2 |
 *
 * Both produce the same sums. They are bit-identical if a matmul's summation order does not depend on its number of
 * rows and columns, as in the reference kernels. */
#include "common/plan/compile/internal.h"
#include "common/plan/mutant.h"

#include <stdio.h>

#define ALIGN 64

/* A buffer for a block of activation t. */
static int part_buffer(struct compiler *c, int t, struct graph_dim rows, int64_t cols, const char *what, int part)
{
    struct buffer b = {.tensor = t, .dtype = c->p->dtype, .ndim = 2, .space = SPACE_WORK, .run = -1, .slots = 1};
    b.dim[0] = rows;
    b.dim[1] = dim_one(cols);
    snprintf(b.name, sizeof(b.name), "%.90s.%s.%d", c->g->tensors[t].name, what, part);
    return compile_buffer(c, &b);
}

/* ---- all-gather before a matmul ---- */

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

/* The member whose tokens arrive in step s - 1 of the ring; for s = 0 this rank. */
static int origin_member(const struct compiler *c, int s)
{
    return (tp_index(c) - s + tp_size(c)) % tp_size(c);
}

/* As large as for the first member, which has most tokens, so that all ranks need equal memory. */
static int tokens_buffer(struct compiler *c, int t, int member)
{
    int b = part_buffer(c, t, tokens_of(c, member, 1), tp_cols(c, t), "of", member);
    const struct graph_dim most = {SYM_MEMBER, tp_cols(c, t) * (int64_t)dtype_bytes(c->p->dtype)};
    if (b >= 0)
        c->p->buffers[b].bytes = program_dim(c->p, most, c->p->max_samples);
    return b;
}

/* Emits the ring: x's tokens of every member, each into its buffer of c->parts. */
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

/* The matmul of linear i on one member's tokens. */
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

/* ---- reduce-scatter after a matmul ---- */

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

/* One run for all column blocks. If two blocks shared bytes, the matmul of one would wait for the other's sum. */
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

/* Computes columns [lo, hi) of this rank's share, `at` bytes from the start of the run. */
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

/* The sum of a column block over the group, on own tokens. */
static int sum_of(struct compiler *c, int t, int share, int part, int64_t cols)
{
    int y = part_buffer(c, t, tokens_of(c, tp_index(c), 1), cols, "sum", part);
    if (y >= 0 && c->p->buffers[y].bytes == 0) /* without own tokens: bytes for the order of ops to follow from */
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
