/* Context parallelism: each rank has two pieces of the sequence, and keys and values go round a ring (ring attention).
 *
 *   piece   0   1   2   3   4   5        cp = 3: piece j belongs to rank min(j, 2 cp - 1 - j)
 *   rank    0   1   2   2   1   0
 *
 * With this assignment every rank has the same work in every step under a causal mask. A pair (own queries, visiting
 * keys) is one attention op: whole where the keys' piece comes before the queries', causal where it is the same piece,
 * and skipped where it comes after. The first pair of a piece of queries, with its own keys, writes o and lse; every
 * later one is joined to them.
 *
 * In step s a rank holds the keys and values that originated s ranks before it, laid out as [piece][sample][token] with
 * k | v in a row. Two buffers alternate: one is read and sent on while the next block arrives in the other. The
 * backward sends the same blocks round again, each followed by its gradient: a rank adds its contribution to the sum
 * that arrives from the rank before and sends it on, and after step cp - 1 the sum reaches the owner. The sum may
 * arrive while the rank still computes its contribution. */
#include "common/plan/compile/internal.h"
#include "common/plan/mutant.h"

#include <assert.h>
#include <stdio.h>

struct seq_piece {
    int part; /* of 2 cp */
    struct segment seg;
};

static int64_t pieces_of(int64_t seq, int cp, int index, struct seq_piece ret[PLAN_MAX_SEGMENTS])
{
    int64_t before = 0;
    for (int i = 0; i < 2; i++) {
        int part = i ? 2 * cp - 1 - index : index;
        int64_t lo, hi;
        layout_split(seq, 2 * cp, part, &lo, &hi);
        ret[i] = (struct seq_piece){part, {lo, hi - lo, before}};
        before += hi - lo;
    }
    return before;
}

void cp_init_segments(struct compiler *c)
{
    struct program *p = c->p;
    int cp = p->mesh.size[AXIS_CP], coord[AXIS_COUNT];
    struct seq_piece pieces[PLAN_MAX_SEGMENTS];
    p->segments[0] = (struct segment){0, p->seq, 0};
    p->n_segments = 1;
    p->own_seq = p->seq;
    if (p->mode == MODE_DECODE) {
        p->segments[0].len = p->own_seq = 1;
        return;
    }
    if (cp == 1)
        return;
    mesh_coords(&p->mesh, p->rank, coord);
    p->own_seq = pieces_of(p->seq, cp, coord[AXIS_CP], pieces);
    p->n_segments = 2;
    for (int i = 0; i < 2; i++)
        p->segments[i] = pieces[i].seg;
}

static struct graph_dim dim_samples(int64_t per_sample)
{
    return (struct graph_dim){SYM_SAMPLES, per_sample};
}

void cp_set_segment(const struct compiler *c, struct op *op, int s)
{
    const struct segment *seg = &c->p->segments[s];
    op->m = dim_tokens(1);
    if (c->p->n_segments == 1)
        return;
    op->m = dim_samples(seg->len);
    op->seq = seg->len;
    op->pos0 = seg->pos0;
}

struct graph_dim cp_segment_offset(const struct compiler *c, int s, int64_t per_token)
{
    int64_t before = c->p->segments[s].before * per_token;
    return before ? dim_samples(before) : dim_one(0);
}

struct op *cp_attention_op(struct compiler *c, enum op_kind kind, int node)
{
    const struct graph_node *n = &c->g->nodes[node];
    struct op *op = compile_op(c, kind, node);
    op->flags = n->causal ? OPF_CAUSAL : 0;
    op->m = dim_samples(1);
    op->heads = tp_heads(c, n->in[0], n->heads);
    op->kv_heads = tp_heads(c, n->in[1], n->kv_heads);
    op->head_dim = n->head_dim;
    op->lda = pitch_of(c, n->in[0]);
    op->ldb = pitch_of(c, n->in[1]);
    op->ldc = tp_cols(c, n->out[0]);
    op->window = n->window;
    op->softcap = n->softcap;
    op->scale = n->scale;
    if (n->in[3] >= 0)
        op_arg(op, ATTENTION_BEGIN(kind), c->p->begin_buffer);
    return op;
}

/* ---- the ring ---- */

struct kv_ring {
    int node, n, me;       /* attention node; ranks of the ring; this rank's index */
    int64_t kv_cols, row;  /* columns of k, of k | v */
    int64_t heads, o_cols; /* of the queries */
    int64_t longest;       /* most tokens of a sample on any rank */
    int kv[2];
    struct seq_piece own[PLAN_MAX_SEGMENTS];
};

/* The rank that owns the block which is here in step s. */
static int origin_rank(const struct kv_ring *r, int s)
{
    return (r->me - s % r->n + r->n) % r->n;
}

static int64_t pieces_in_step(const struct compiler *c, const struct kv_ring *r, int s,
                              struct seq_piece ret[PLAN_MAX_SEGMENTS])
{
    return pieces_of(c->p->seq, r->n, origin_rank(r, s), ret);
}

static int travel_buffer(struct compiler *c, const struct kv_ring *r, const char *suffix)
{
    struct buffer b = {.tensor = -1, .dtype = c->p->dtype, .ndim = 2, .space = SPACE_WORK, .run = -1, .slots = 1};
    b.dim[0] = dim_samples(r->longest);
    b.dim[1] = dim_one(r->row);
    snprintf(b.name, sizeof(b.name), "%s%s", c->g->tensors[c->g->nodes[r->node].out[0]].name, suffix);
    return compile_buffer(c, &b);
}

/* Copies all tokens of k or v between its own matrix and a block of the ring. */
static void copy_cols(struct compiler *c, const struct kv_ring *r, int from, int64_t ld_from, int64_t col_from, int to,
                      int64_t ld_to, int64_t col_to)
{
    struct op *op = compile_op(c, OP_COPY_COLS, r->node);
    op->m = dim_tokens(1);
    op->n = dim_one(r->kv_cols);
    op->lda = ld_from;
    op->ldb = ld_to;
    op_arg(op, 0, from);
    op->arg[0].col = col_from;
    op_arg(op, 1, to);
    op->arg[1].col = col_to;
}

static struct kv_ring ring_begin(struct compiler *c, int node)
{
    const struct graph_node *n = &c->g->nodes[node];
    struct kv_ring r = {.node = node, .n = c->p->mesh.size[AXIS_CP], .me = c->p->sharding.coord[AXIS_CP]};
    struct seq_piece any[PLAN_MAX_SEGMENTS];
    r.heads = tp_heads(c, n->in[0], n->heads);
    r.o_cols = tp_cols(c, n->out[0]);
    r.kv_cols = tp_heads(c, n->in[1], n->kv_heads) * n->head_dim;
    r.row = 2 * r.kv_cols;
    for (int s = 0; s < r.n; s++) {
        int64_t len = pieces_in_step(c, &r, s, any);
        r.longest = len > r.longest ? len : r.longest;
    }
    pieces_in_step(c, &r, 0, r.own);
    r.kv[0] = travel_buffer(c, &r, ".kv.0");
    r.kv[1] = travel_buffer(c, &r, ".kv.1");
    for (int k = 1; k < 3; k++)
        copy_cols(c, &r, compile_value(c, n->in[k]), pitch_of(c, n->in[k]), tp_col(c, n->in[k], n->in_col[k]), r.kv[0],
                  r.row, (k - 1) * r.kv_cols);
    return r;
}

/* Sends the block of step s to the next rank and receives the block of step s + 1 from the previous one. */
static void emit_shift(struct compiler *c, const struct kv_ring *r, int s, int from, int to)
{
    struct seq_piece any[PLAN_MAX_SEGMENTS];
    struct op *op = compile_collective(c, OP_SHIFT, r->node, 1u << AXIS_CP);
    op->m = dim_samples(pieces_in_step(c, r, s, any) * r->row);
    op->k = dim_samples(pieces_in_step(c, r, s + 1, any) * r->row);
    int step = MUTANT(RING_BACKWARDS) ? r->n - 1 : 1;
    op->peer = (r->me + step) % r->n;
    op->from = (r->me + r->n - step) % r->n;
    op_arg(op, 0, from);
    op_arg(op, 1, to);
}

static struct graph_dim rows_before(const struct seq_piece *piece, int64_t per_token)
{
    int64_t before = piece->seg.before * per_token;
    return before ? dim_samples(before) : dim_one(0);
}

static void op_at(struct op *op, int i, int buffer, int64_t col, struct graph_dim offset)
{
    op_arg(op, i, buffer);
    op->arg[i].col = col;
    op->arg[i].offset = offset;
}

/* Whether queries of piece q attend to any key of piece k: whether the first query sees the last key through a window.
 * Where documents begin is known only when the program runs. */
static bool may_attend(const struct compiler *c, const struct kv_ring *r, const struct seq_piece *q,
                       const struct seq_piece *k)
{
    const struct graph_node *n = &c->g->nodes[r->node];
    bool near = !n->window || k->seg.pos0 + k->seg.len > q->seg.pos0 - n->window + 1 + MUTANT(WINDOW_CUT);
    return q->seg.len > 0 && k->seg.len > 0 && near && (!n->causal || k->part <= q->part + MUTANT(FUTURE_SEEN));
}

/* The attention op of a pair. It is causal only on the diagonal. */
static struct op *pair_op(struct compiler *c, const struct kv_ring *r, enum op_kind kind, const struct seq_piece *q,
                          const struct seq_piece *k, int kv)
{
    const struct graph_node *n = &c->g->nodes[r->node];
    struct op *op = cp_attention_op(c, kind, r->node);
    if (k->part != q->part || MUTANT(DIAGONAL_UNMASKED))
        op->flags &= ~(uint32_t)OPF_CAUSAL;
    op->seq = q->seg.len;
    op->seq_kv = k->seg.len;
    if (n->window || n->in[3] >= 0) {
        op->pos0 = q->seg.pos0;
        op->pos0_kv = MUTANT(KEYS_MISPLACED) ? 0 : k->seg.pos0;
    }
    if (n->in[3] >= 0)
        op->arg[ATTENTION_BEGIN(kind)].offset = rows_before(q, 1);
    op->ldb = r->row;
    op_at(op, 0, compile_value(c, n->in[0]), tp_col(c, n->in[0], n->in_col[0]), rows_before(q, op->lda));
    op_at(op, 1, kv, 0, rows_before(k, r->row));
    op_at(op, 2, kv, r->kv_cols, rows_before(k, r->row));
    return op;
}

/* ---- forward ---- */

struct attention_results {
    int o, lse;           /* of all own queries */
    int o_more, lse_more; /* of one piece of queries with one more piece of keys; -1: no buffer yet */
};

static void more_new(struct compiler *c, const struct kv_ring *r, struct attention_results *res)
{
    const struct graph_node *n = &c->g->nodes[r->node];
    struct buffer o = {.tensor = -1, .dtype = c->p->dtype, .ndim = 2, .space = SPACE_WORK, .run = -1, .slots = 1};
    int64_t len = r->own[0].seg.len > r->own[1].seg.len ? r->own[0].seg.len : r->own[1].seg.len;
    o.dim[0] = dim_samples(len);
    o.dim[1] = dim_one(r->o_cols);
    struct buffer lse = o;
    lse.dtype = c->p->wide;
    lse.dim[1] = dim_one(r->heads);
    snprintf(o.name, sizeof(o.name), "%s.more", c->g->tensors[n->out[0]].name);
    snprintf(lse.name, sizeof(lse.name), "%s.more", c->g->tensors[n->out[1]].name);
    res->o_more = compile_buffer(c, &o);
    res->lse_more = compile_buffer(c, &lse);
}

static void emit_join(struct compiler *c, const struct kv_ring *r, const struct attention_results *res,
                      const struct seq_piece *q)
{
    struct op *op = compile_op(c, OP_ATTENTION_JOIN, r->node);
    op->m = dim_samples(1);
    op->heads = r->heads;
    op->head_dim = c->g->nodes[r->node].head_dim;
    op->seq = q->seg.len;
    op->ldc = r->o_cols;
    op_at(op, 0, res->o, 0, rows_before(q, r->o_cols));
    op_at(op, 1, res->lse, 0, rows_before(q, r->heads));
    op_arg(op, 2, res->o_more);
    op_arg(op, 3, res->lse_more);
}

static void attend(struct compiler *c, const struct kv_ring *r, struct attention_results *res,
                   const struct seq_piece *q, const struct seq_piece *k, int kv, bool first)
{
    if (!first && res->o_more < 0)
        more_new(c, r, res);
    struct op *op = pair_op(c, r, OP_ATTENTION, q, k, kv);
    op_at(op, 3, first ? res->o : res->o_more, 0, first ? rows_before(q, r->o_cols) : dim_one(0));
    op_at(op, 4, first ? res->lse : res->lse_more, 0, first ? rows_before(q, r->heads) : dim_one(0));
    if (!first && !(MUTANT(PART_NOT_JOINED) && k->part == 0))
        emit_join(c, r, res, q);
}

void cp_emit_attention(struct compiler *c, int node)
{
    const struct graph_node *n = &c->g->nodes[node];
    struct kv_ring r = ring_begin(c, node);
    struct attention_results res = {compile_value(c, n->out[0]), compile_value(c, n->out[1]), -1, -1};
    bool begun[PLAN_MAX_SEGMENTS] = {false};
    for (int s = 0; s < r.n; s++) {
        struct seq_piece keys[PLAN_MAX_SEGMENTS];
        int kv = r.kv[s % 2];
        pieces_in_step(c, &r, s, keys);
        if (s + 1 < r.n)
            emit_shift(c, &r, s, kv, r.kv[1 - s % 2]);
        for (int q = 0; q < 2; q++)
            for (int k = 0; k < 2; k++) {
                if (!may_attend(c, &r, &r.own[q], &keys[k]))
                    continue;
                attend(c, &r, &res, &r.own[q], &keys[k], kv, !begun[q]);
                begun[q] = true;
            }
    }
}

/* ---- backward ---- */

struct attention_gradients {
    int d_o, d_q;
    int d_kv[2], arrived;
    bool q_begun[PLAN_MAX_SEGMENTS];
};

static void attend_grad(struct compiler *c, const struct kv_ring *r, struct attention_gradients *g, int q,
                        const struct seq_piece *k, int kv, int d_kv, bool k_begun)
{
    const struct graph_node *n = &c->g->nodes[r->node];
    const struct seq_piece *own = &r->own[q];
    struct op *op = pair_op(c, r, OP_ATTENTION_GRAD, own, k, kv);
    op->flags |= (g->q_begun[q] ? OPF_ACC_Q : 0) | (k_begun ? OPF_ACC_KV : 0);
    op_at(op, 3, compile_value(c, n->out[0]), 0, rows_before(own, r->o_cols));
    op_at(op, 4, compile_value(c, n->out[1]), 0, rows_before(own, r->heads));
    op_at(op, 5, g->d_o, 0, rows_before(own, r->o_cols));
    op_at(op, 6, g->d_q, op->arg[0].col, op->arg[0].offset);
    op_at(op, 7, d_kv, op->arg[1].col, op->arg[1].offset);
    op_at(op, 8, d_kv, op->arg[2].col, op->arg[2].offset);
    g->q_begun[q] = true;
}

static bool is_visible(const struct compiler *c, const struct kv_ring *r, const struct seq_piece *k)
{
    return may_attend(c, r, &r->own[0], k) || may_attend(c, r, &r->own[1], k);
}

static void zero_rows(struct compiler *c, const struct kv_ring *r, int buffer, int64_t rows, struct graph_dim offset)
{
    struct op *op = compile_op(c, OP_ZERO, r->node);
    op->m = dim_samples(rows);
    op->n = dim_one(r->row);
    op_at(op, 0, buffer, 0, offset);
}

/* The gradient of one piece of keys from all own queries; zero where none of them attends to it. */
static void piece_grad(struct compiler *c, const struct kv_ring *r, struct attention_gradients *g,
                       const struct seq_piece *k, int kv, int d_kv)
{
    bool begun = false;
    if (!is_visible(c, r, k) && k->seg.len > 0)
        zero_rows(c, r, d_kv, k->seg.len, rows_before(k, r->row));
    for (int q = 0; q < 2; q++)
        if (may_attend(c, r, &r->own[q], k)) {
            attend_grad(c, r, g, q, k, kv, d_kv, begun);
            begun = true;
        }
}

static void step_grad(struct compiler *c, const struct kv_ring *r, struct attention_gradients *g, int s)
{
    struct seq_piece keys[PLAN_MAX_SEGMENTS];
    int d_kv = g->d_kv[s % 2];
    pieces_in_step(c, r, s, keys);
    if (!is_visible(c, r, &keys[0]) && !is_visible(c, r, &keys[1])) {
        zero_rows(c, r, d_kv, r->longest, dim_one(0));
        return;
    }
    for (int k = 0; k < 2; k++)
        piece_grad(c, r, g, &keys[k], r->kv[s % 2], d_kv);
}

/* Receives the previous rank's sum up to its step s - 1 and adds it. */
static void add_arrived(struct compiler *c, const struct kv_ring *r, const struct attention_gradients *g, int s)
{
    emit_shift(c, r, s - 1, g->d_kv[(s - 1) % 2], g->arrived);
    struct seq_piece any[PLAN_MAX_SEGMENTS];
    struct op *op = compile_op(c, OP_ADD, r->node);
    op->m = dim_samples(pieces_in_step(c, r, s, any));
    op->n = dim_one(r->row);
    op_arg(op, 0, g->d_kv[s % 2]);
    op_arg(op, 1, g->arrived);
    op_arg(op, 2, g->d_kv[s % 2]);
}

void cp_emit_attention_grad(struct compiler *c, int node, int d_o, const int d_in[3])
{
    const struct graph_node *n = &c->g->nodes[node];
    struct kv_ring r = ring_begin(c, node);
    struct attention_gradients g = {.d_o = d_o, .d_q = d_in[0]};
    g.d_kv[0] = travel_buffer(c, &r, ".d_kv.0");
    g.d_kv[1] = travel_buffer(c, &r, ".d_kv.1");
    g.arrived = travel_buffer(c, &r, ".d_kv.sum");
    for (int s = 0; s < r.n; s++) {
        if (s + 1 < r.n)
            emit_shift(c, &r, s, r.kv[s % 2], r.kv[1 - s % 2]);
        step_grad(c, &r, &g, s);
        if (s > 0) /* after the step's attention, which writes another buffer than the one that is sent */
            add_arrived(c, &r, &g, s);
    }
    if (MUTANT(NOT_HOME))
        g.arrived = g.d_kv[(r.n - 1) % 2];
    else
        emit_shift(c, &r, r.n - 1, g.d_kv[(r.n - 1) % 2], g.arrived);
    for (int k = 1; k < 3; k++)
        copy_cols(c, &r, g.arrived, r.row, (k - 1) * r.kv_cols, d_in[k], pitch_of(c, n->in[k]),
                  tp_col(c, n->in[k], n->in_col[k]));
}
