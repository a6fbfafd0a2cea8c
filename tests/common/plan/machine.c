/* Runs ops in the order of the program, one at a time. A buffer that two operands of an op share is widened once, so
 * that an op that works in place in the plan does so here. */
#include "tests/common/plan/machine.h"

/* ---- elements ---- */

static double element_get(enum dtype dtype, const char *at, int64_t i)
{
    uint32_t bits = 0;
    uint16_t half;
    float f;
    switch (dtype) {
    case DT_F64:
        return ((const double *)at)[i];
    case DT_I32:
        return ((const int32_t *)at)[i];
    case DT_F32:
        return (double)((const float *)at)[i];
    case DT_BF16:
        memcpy(&half, at + 2 * i, sizeof(half));
        bits = (uint32_t)half << 16;
        memcpy(&f, &bits, sizeof(f));
        return (double)f;
    default:
        fail_msg("no arithmetic in %s", dtype_name(dtype));
    }
    return 0;
}

/* bfloat16 from float32, rounded to nearest, ties to even. Infinities do not occur here; NaN stays NaN. */
static void element_set(enum dtype dtype, char *at, int64_t i, double value)
{
    uint32_t bits;
    float f = (float)value;
    switch (dtype) {
    case DT_F64:
        ((double *)at)[i] = value;
        break;
    case DT_I32:
        ((int32_t *)at)[i] = (int32_t)value;
        break;
    case DT_F32:
        ((float *)at)[i] = f;
        break;
    case DT_BF16:
        memcpy(&bits, &f, sizeof(bits));
        if (f == f)
            bits += 0x7fff + (bits >> 16 & 1);
        ((uint16_t *)at)[i] = (uint16_t)(bits >> 16);
        break;
    default:
        fail_msg("no arithmetic in %s", dtype_name(dtype));
    }
}

static const struct kern_rope *rope_of(const struct machine *m, const struct op *op)
{
    static struct kern_rope ret;
    const struct graph_rope *r = &m->g->ropes[m->g->nodes[op->node].rope];
    ret = (struct kern_rope){r->pairs, r->frequency, r->factor};
    return &ret;
}

static char *buffer_at(const struct machine *m, int buffer)
{
    const struct buffer *b = &m->p->buffers[buffer];
    return m->space[b->space] + b->offset;
}

double machine_get(const struct machine *m, int buffer, int64_t i)
{
    return element_get(m->p->buffers[buffer].dtype, buffer_at(m, buffer), i);
}

void machine_set(const struct machine *m, int buffer, int64_t i, double value)
{
    element_set(m->p->buffers[buffer].dtype, buffer_at(m, buffer), i, value);
}

/* ---- operands ---- */

static double *widen(struct machine *m, int buffer, char *at, bool written)
{
    const struct buffer *b = &m->p->buffers[buffer];
    for (int i = 0; i < m->n_widened; i++)
        if (m->widened[i].buffer == buffer && m->widened[i].at == at) {
            m->widened[i].written |= written;
            return m->widened[i].value;
        }
    struct widened w = {buffer, at, NULL, b->bytes / (int64_t)dtype_bytes(b->dtype), written};
    w.value = calloc((size_t)w.n + 1, sizeof(double));
    assert_non_null(w.value);
    for (int64_t i = 0; i < w.n; i++)
        w.value[i] = element_get(b->dtype, at, i);
    m->widened[m->n_widened++] = w;
    return w.value;
}

static void narrow_all(struct machine *m)
{
    for (int k = 0; k < m->n_widened; k++) {
        struct widened *w = &m->widened[k];
        for (int64_t i = 0; i < w->n && w->written; i++)
            element_set(m->p->buffers[w->buffer].dtype, w->at, i, w->value[i]);
        free(w->value);
    }
    m->n_widened = 0;
}

static void *arg_slot(struct machine *m, const struct op *op, int i, int64_t slot)
{
    if (op->arg[i].buffer < 0)
        return NULL;
    const struct buffer *b = &m->p->buffers[op->arg[i].buffer];
    char *at = buffer_at(m, op->arg[i].buffer) + slot * b->slot_bytes;
    int64_t offset = program_dim(m->p, op->arg[i].offset, m->samples) + op->arg[i].col;
    if (b->dtype == DT_F64 || b->dtype == DT_I32)
        return at + offset * (int64_t)dtype_bytes(b->dtype);
    return widen(m, op->arg[i].buffer, at, op_mode(op, i) != 'r') + offset;
}

static int64_t slot_of(const struct machine *m, int buffer)
{
    enum slot_index index = buffer >= 0 ? m->p->buffers[buffer].slot_index : SLOT_ONE;
    if (index == SLOT_ACTION)
        return m->action->slot;
    return index == SLOT_MICRO && m->action->micro >= 0 ? m->action->micro : 0;
}

static void *arg(struct machine *m, const struct op *op, int i)
{
    return arg_slot(m, op, i, slot_of(m, op->arg[i].buffer));
}

/* The first element of an operand, in the buffer's own type. */
static char *operand_at(const struct machine *m, const struct op *op, int i, int64_t slot)
{
    const struct buffer *b = &m->p->buffers[op->arg[i].buffer];
    int64_t offset = program_dim(m->p, op->arg[i].offset, m->samples) + op->arg[i].col;
    return buffer_at(m, op->arg[i].buffer) + slot * b->slot_bytes + offset * (int64_t)dtype_bytes(b->dtype);
}

static enum dtype operand_dtype(const struct machine *m, const struct op *op, int i)
{
    return m->p->buffers[op->arg[i].buffer].dtype;
}

double machine_operand_get_slot(const struct machine *m, const struct op *op, int i, int64_t slot, int64_t at)
{
    return element_get(operand_dtype(m, op, i), operand_at(m, op, i, slot), at);
}

double machine_operand_get(const struct machine *m, const struct op *op, int i, int64_t at)
{
    return machine_operand_get_slot(m, op, i, slot_of(m, op->arg[i].buffer), at);
}

void machine_operand_set(const struct machine *m, const struct op *op, int i, int64_t at, double value)
{
    element_set(operand_dtype(m, op, i), operand_at(m, op, i, slot_of(m, op->arg[i].buffer)), at, value);
}

double machine_round(const struct machine *m, const struct op *op, int i, double value)
{
    double kept;
    char room[8] = {0};
    element_set(operand_dtype(m, op, i), room, 0, value);
    kept = element_get(operand_dtype(m, op, i), room, 0);
    return kept;
}

#define A(i) arg(m, op, i)

/* ---- ops ---- */

static void tree_leaf(struct machine *m, const struct op *op, int64_t n)
{
    const struct program *p = m->p;
    int micro = m->action->micro, h = sumtree_height(p->n_micros, p->first_micro, micro);
    int c = sumtree_merges(p->n_micros, p->first_micro, micro);
    const double *from = arg(m, op, 0);
    if (c == 0)
        memcpy(arg_slot(m, op, 1, h), from, (size_t)n * sizeof(double));
    for (int i = 1; i <= c; i++) {
        double *to = arg_slot(m, op, 1, h - i);
        for (int64_t k = 0; k < n; k++)
            to[k] = machine_round(m, op, 1, to[k] + from[k]); /* each node is kept as such */
        from = to;
    }
}

/* The input of a norm: the sum is rounded to the type of its buffer, as in all kernels. */
static double *norm_input(struct machine *m, const struct op *op, int sum, int64_t n)
{
    const double *x = A(0), *res = A(1);
    double *r = A(sum);
    if (!res)
        return A(0);
    for (int64_t i = 0; i < n; i++)
        r[i] = machine_round(m, op, sum, x[i] + res[i]);
    return r;
}

static void run_norms(struct machine *m, const struct op *op, int64_t t, int64_t n)
{
    const struct kern_ops *k = m->k;
    struct kern_stream *s = m->s;
    if (op->kind == OP_RMSNORM)
        k->rmsnorm(s, t, n, op->eps, op->flags & OPF_PLUS_ONE, norm_input(m, op, 3, t * n), NULL, A(2), NULL, A(4),
                   A(5));
    else if (op->kind == OP_RMSNORM_GRAD)
        k->rmsnorm_grad(s, t, n, op->flags & OPF_PLUS_ONE, A(0), A(1), A(2), A(3), A(4), A(5), A(6));
    else if (op->kind == OP_ROW_DOTS)
        k->row_dots(s, t, n, op->flags & OPF_PLUS_ONE, A(0), A(1), A(2), A(3));
    else if (op->kind == OP_RMSNORM_PART)
        k->rmsnorm_part(s, t, n, op->k.factor, op->eps, op->flags & OPF_PLUS_ONE, A(0), A(1), A(2), A(3), A(4));
    else if (op->kind == OP_RMSNORM_PART_GRAD)
        k->rmsnorm_part_grad(s, t, n, op->k.factor, op->flags & OPF_PLUS_ONE, A(0), A(1), A(2), A(3), A(4), A(5), A(6));
    else if (op->kind == OP_LAYERNORM)
        k->layernorm(s, t, n, op->eps, norm_input(m, op, 4, t * n), NULL, A(2), A(3), NULL, A(5), A(6), A(7));
    else
        k->layernorm_grad(s, t, n, A(0), A(1), A(2), A(3), A(4), A(5), A(6), A(7), A(8));
}

static void run_attention(struct machine *m, const struct op *op, int64_t batch)
{
    struct kern_attention a = {.batch = batch,
                               .seq = op->seq ? op->seq : m->p->seq,
                               .seq_kv = op->seq_kv,
                               .heads = op->heads,
                               .kv_heads = op->kv_heads,
                               .head_dim = op->head_dim,
                               .q_stride = op->lda,
                               .k_stride = op->ldb,
                               .v_stride = op->ldb,
                               .o_stride = op->ldc,
                               .causal = (op->flags & OPF_CAUSAL) != 0,
                               .window = op->window,
                               .q_pos0 = op->pos0,
                               .k_pos0 = op->pos0_kv,
                               .scale = op->scale,
                               .softcap = op->softcap,
                               .begin = A(ATTENTION_BEGIN(op->kind)),
                               .q = A(0),
                               .k = A(1),
                               .v = A(2),
                               .o = A(3),
                               .lse = A(4)};
    struct kern_attention_grad g = {
        .fwd = a, .acc_q = (op->flags & OPF_ACC_Q) != 0, .acc_kv = (op->flags & OPF_ACC_KV) != 0};
    if (op->kind == OP_ATTENTION) {
        assert_ok(m->k->attention(m->s, &a));
        return;
    }
    g.d_o = A(5);
    g.d_q = A(6);
    g.d_k = A(7);
    g.d_v = A(8);
    assert_ok(m->k->attention_grad(m->s, &g));
}

static void run_join(struct machine *m, const struct op *op, int64_t batch)
{
    const struct kern_attention_join a = {.batch = batch,
                                          .seq = op->seq,
                                          .heads = op->heads,
                                          .head_dim = op->head_dim,
                                          .o_stride = op->ldc,
                                          .o2_stride = op->ldc,
                                          .o = A(0),
                                          .lse = A(1),
                                          .o2 = A(2),
                                          .lse2 = A(3)};
    m->k->attention_join(m->s, &a);
}

/* Positions begin at row pos0 of their table. */
static void run_embed(struct machine *m, const struct op *op, int64_t t, int64_t n)
{
    bool grad = op->kind == OP_EMBED_GRAD;
    int64_t seq = op->seq ? op->seq : m->p->seq, hi = op->vocab_hi ? op->vocab_hi : INT32_MAX;
    double *pos = A(grad ? 3 : 2);
    pos = pos ? pos + op->pos0 * n : NULL;
    if (grad)
        m->k->embed_grad(m->s, t, n, seq, op->vocab_lo, hi, A(0), A(1), A(2), pos);
    else
        m->k->embed(m->s, t, n, seq, op->vocab_lo, hi, A(0), A(1), pos, A(3));
}

static void run_loss(struct machine *m, const struct op *op, int64_t t, int64_t n)
{
    bool grad = (op->flags & OPF_GRAD) != 0;
    double scale = m->p->loss_scale;
    if (op->kind == OP_CROSS_ENTROPY)
        m->k->cross_entropy(m->s, t, n, op->lda, A(1), grad, scale, A(0), A(2));
    else if (op->kind == OP_LOSS_PART)
        m->k->loss_part(m->s, t, n, op->lda, op->vocab_lo, A(1), A(0), A(2));
    else
        m->k->loss_join(m->s, t, n, op->lda, op->vocab_lo, op->k.factor, A(1), A(2), grad, scale, A(0), A(3));
}

static void run_gemm(struct machine *m, const struct op *op)
{
    struct kern_gemm g = {
        .trans_a = op->flags & OPF_TRANS_A,
        .trans_b = op->flags & OPF_TRANS_B,
        .accumulate = op->flags & OPF_ACC,
        .act = op->flags & OPF_GELU        ? KERN_ACT_GELU
               : op->flags & OPF_GELU_GRAD ? KERN_ACT_GELU_GRAD
                                           : KERN_ACT_NONE,
        .m = program_dim(m->p, op->m, m->samples),
        .n = program_dim(m->p, op->n, m->samples),
        .k = program_dim(m->p, op->k, m->samples),
        .lda = op->lda,
        .ldb = op->ldb,
        .ldc = op->ldc,
        .a = A(0),
        .b = A(1),
        .bias = A(2),
        .c = A(3),
        .aux = A(4),
        .a_sum = A(5),
        .b_sum = A(6),
    };
    assert_ok(m->k->gemm(m->s, &g));
    if (g.act == KERN_ACT_GELU) { /* of the stored values, in the buffer's type */
        double *x = g.aux;
        for (int64_t i = 0; i < g.m * g.n; i++)
            x[i] = machine_round(m, op, 4, x[i]);
        m->k->gelu(m->s, g.m * g.n, x, g.c);
    }
}

static void run_zero(struct machine *m, const struct op *op, int64_t n)
{
    memset(operand_at(m, op, 0, slot_of(m, op->arg[0].buffer)), 0, (size_t)n * dtype_bytes(operand_dtype(m, op, 0)));
}

static void run_once(struct machine *m, const struct op *op, int64_t n)
{
    const struct kern_clip clip = {.n_blocks = n,
                                   .n_losses = op->n.factor,
                                   .blocks = A(0),
                                   .losses = A(1),
                                   .limit = m->limit,
                                   .norm = A(2),
                                   .factor = A(3)};
    const struct kern_adamw adamw = {.n = n,
                                     .p = A(0),
                                     .m = A(1),
                                     .v = A(2),
                                     .g = A(3),
                                     .lr = m->lr,
                                     .beta1 = 0.9,
                                     .beta2 = 0.95,
                                     .eps = 1e-8,
                                     .grad_scale = A(4),
                                     .step = m->step};
    if (op->kind == OP_CLIP)
        m->k->clip(m->s, &clip);
    else
        m->k->adamw(m->s, &adamw);
}

static void run_dropout(struct machine *m, const struct op *op, int64_t t, int64_t n)
{
    const struct kern_dropout d = {.t = t,
                                   .n = n,
                                   .cols = program_dim(m->p, op->k, m->samples),
                                   .col0 = op->col0,
                                   .rate = op->rate,
                                   .seed = 7,
                                   .step = m->step,
                                   .site = op->site,
                                   .rows = A(1),
                                   .x = A(0),
                                   .y = A(2)};
    m->k->dropout(m->s, &d);
}

static struct kern_router router_of(const struct graph_router *r)
{
    static const enum kern_scores scores[] = {[ROUTER_SOFTMAX] = KERN_SCORES_SOFTMAX,
                                              [ROUTER_SOFTMAX_TOPK] = KERN_SCORES_SOFTMAX_TOPK,
                                              [ROUTER_SIGMOID] = KERN_SCORES_SIGMOID,
                                              [ROUTER_SWITCH] = KERN_SCORES_SOFTMAX};
    return (struct kern_router){.experts = r->experts,
                                .k = r->k,
                                .scores = scores[r->kind],
                                .norm = r->norm,
                                .scale = r->scale,
                                .groups = r->groups,
                                .groups_kept = r->groups_kept,
                                .group_best = r->group_best};
}

static void run_route(struct machine *m, const struct op *op, int64_t t)
{
    const struct graph_router *r = &m->g->nodes[op->node].router;
    const bool grad = op->kind == OP_ROUTE_GRAD;
    struct kern_route route = {.router = router_of(r),
                               .t = t,
                               .seq = m->p->seq,
                               .sets = r->scope == AUX_SAMPLE ? m->samples : 1,
                               .set0 = m->p->micros[m->action->micro].first,
                               .logits = A(0),
                               .rows = A(grad ? 4 : 1),
                               .ids = A(grad ? 1 : 2),
                               .weights = A(grad ? 2 : 3),
                               .sums = A(grad ? 5 : 4)};
    if (!grad) {
        route.bias = A(7);
        route.totals = A(5);
        route.closeness = A(6);
        m->k->route(m->s, &route);
        return;
    }
    const struct kern_route_grad g = {
        .fwd = route, .aux = r->aux, .z = r->z, .scale = m->p->loss_scale, .d_weights = A(3), .d_logits = A(6)};
    m->k->route_grad(m->s, &g);
}

static void run_drop(struct machine *m, const struct op *op, int64_t t)
{
    const struct graph_router *r = &m->g->nodes[op->node].router;
    const struct micro *micro = &m->p->micros[m->action->micro];
    struct kern_drop d = {.t = t,
                          .k = r->k,
                          .experts = r->experts,
                          .seq = m->p->seq,
                          .sets = m->samples,
                          .set0 = micro->first,
                          .capacity = graph_capacity(r, m->p->seq),
                          .by_weight = r->drop == DROP_PROBABILITY,
                          .ids = A(0)};
    if (op->kind == OP_CHOICES) {
        d.weights = A(1);
        d.rows = A(2);
        d.table = A(3);
        m->k->choices(m->s, &d);
        return;
    }
    d.rows = A(1);
    d.table = A(2);
    d.kept = A(3);
    d.dropped = A(4);
    assert_int_equal(m->k->drop(m->s, &d), OK);
}

static void run_grouped(struct machine *m, const struct op *op, int64_t t)
{
    const bool ta = op->flags & OPF_TRANS_A;
    const struct kern_grouped g = {.trans_a = ta,
                                   .trans_b = op->flags & OPF_TRANS_B,
                                   .accumulate = op->flags & OPF_ACC,
                                   .experts = op->seq,
                                   .rows = t,
                                   .m = ta ? op->k.factor : 0,
                                   .n = op->n.factor,
                                   .k = ta ? 0 : op->k.factor,
                                   .offsets = A(3),
                                   .borrowed = op->seq_kv,
                                   .a = A(0),
                                   .b = A(1),
                                   .c = A(2),
                                   .more = A(4)};
    assert_int_equal(m->k->grouped_gemm(m->s, &g), OK);
}

struct exchange *machine_exchange(struct machine *m, const struct op *op, int all)
{
    const struct sharding *s = &m->p->sharding;
    const struct graph_cut experts = {.experts = true};
    struct exchange *x = &m->exchange;
    if (!x->members)
        assert_int_equal(exchange_init(x, sharding_parts(s, &experts), m->g->nodes[op->node].router.experts), OK);
    x->me = sharding_part(s, &experts, s->coord);
    exchange_plan(x, (const int32_t *)(const void *)machine_operand_at(m, op, all), m->p->balanced);
    if (op->round)
        exchange_round(x, (op->round - 1) * m->p->round_rows, m->p->round_rows);
    return x;
}

static void run_arrive(struct machine *m, const struct op *op)
{
    const struct exchange *x = machine_exchange(m, op, 0);
    assert_true(x->rows[x->me] <= m->p->max_arrived);
    int32_t *unused = calloc((size_t)m->p->max_arrived + 1, sizeof(*unused));
    exchange_order(x, op->arg[1].buffer >= 0 ? A(1) : unused, A(2), A(3));
    free(unused);
    assert_in_range(m->action->slot, 0, MACHINE_SLOTS - 1);
    m->arrived[op->layer][m->action->slot] = x->rows[x->me];
    double *rounds = A(4);
    for (int i = 0; rounds && i < x->members; i++)
        if (x->rows[i] > 0 && op->round > *rounds)
            *rounds = op->round;
}

static void run_arrange(struct machine *m, const struct op *op, int64_t rows)
{
    int32_t *place = A(1), *by_expert = A(2), *source = A(3), *moved = A(4);
    struct exchange *x = machine_exchange(m, op, 0);
    for (int round = 0; round < m->p->rounds; round++) {
        exchange_plan(x, x->offsets, m->p->balanced);
        if (m->p->rounds > 1)
            exchange_round(x, round * m->p->round_rows, m->p->round_rows);
        exchange_home(x, moved);
    }
    for (int64_t i = 0; i < rows; i++) { /* dropped choices are -1, behind the others */
        place[i] = place[i] < 0 ? -1 : moved[place[i]];
        source[by_expert[i] < 0 ? i : moved[i]] = by_expert[i];
    }
}

/* By the definition: row by row, in the order of experts, then members. */
static void run_sources(struct machine *m, const struct op *op)
{
    const struct exchange *x = machine_exchange(m, op, 0);
    const int32_t *sources = A(1);
    int32_t *choices = A(2);
    int64_t lo, hi, row = 0;
    exchange_experts(x, x->me, &lo, &hi);
    for (int64_t e = lo; e < hi; e++)
        for (int i = 0, base = 0; i < x->members; base += (int)exchange_home_rows(x, i++)) {
            const int32_t *first = x->offsets + i * (x->experts + 1);
            for (int32_t h = first[e]; h < first[e + 1]; h++)
                choices[row++] = base + sources[base + h];
        }
    assert_int_equal(row, m->arrived[op->layer][m->action->slot]);
}

static void run_experts(struct machine *m, const struct op *op, int64_t t, int64_t n)
{
    const struct kern_ops *k = m->k;
    struct kern_stream *s = m->s;
    int64_t choices = program_dim(m->p, op->k, m->samples);
    switch (op->kind) {
    case OP_ROUTE:
    case OP_ROUTE_GRAD:
        run_route(m, op, t);
        break;
    case OP_CHOICES:
    case OP_DROP:
        run_drop(m, op, t);
        break;
    case OP_KEEP:
        k->keep(s, t, A(0), A(1), A(2));
        break;
    case OP_AUX_LOSS:
        k->aux_loss(s, t, n, A(0), op->rate * m->p->loss_scale, A(1));
        break;
    case OP_BALANCE:
        k->balance(s, &(struct kern_balance){t, op->rate, A(0), A(1), A(2)});
        break;
    case OP_ROUTE_SORT:
        k->route_sort(s, t, choices, n, A(0), A(1), A(2), A(3));
        break;
    case OP_ARRIVE:
        run_arrive(m, op);
        break;
    case OP_ARRANGE:
        run_arrange(m, op, t * choices);
        break;
    case OP_SOURCES:
        run_sources(m, op);
        break;
    case OP_ROWS_PICK:
        k->rows_gather(s, t, choices, n, A(1), A(2), A(0), A(3));
        break;
    case OP_ROWS_GATHER:
        k->rows_gather(s, t * choices, choices, n, A(1), A(2), A(0), A(3));
        break;
    case OP_ROWS_SUM:
        k->rows_sum(s, t, choices, n, A(2), A(1), A(0), A(3));
        break;
    case OP_ROWS_SUM_GRAD:
        k->rows_sum_grad(s, t, choices, n, A(2), A(1), A(0), A(3), A(4), A(5));
        break;
    case OP_GROUPED_GEMM:
        run_grouped(m, op, t);
        break;
    case OP_GATE:
        k->gate(s, t, n, A(0), A(1), A(2));
        break;
    case OP_GATE_GRAD:
        k->gate_grad(s, t, n, A(0), A(1), A(2), A(3), A(4));
        break;
    default:
        fail_msg("%s is not an operator of experts", op_name(op->kind));
    }
}

static void run_elements(struct machine *m, const struct op *op, int64_t n)
{
    const struct kern_ops *k = m->k;
    struct kern_stream *s = m->s;
    switch (op->kind) {
    case OP_SWIGLU:
        k->swiglu(s, n, A(0), A(1), A(2));
        break;
    case OP_SWIGLU_GRAD:
        k->swiglu_grad(s, n, A(0), A(1), A(2), A(3), A(4));
        break;
    case OP_GELU:
        k->gelu(s, n, A(0), A(1));
        break;
    case OP_GELU_GRAD:
        k->gelu_grad(s, n, A(0), A(1), A(2));
        break;
    case OP_GEGLU:
        k->geglu(s, n, A(0), A(1), A(2));
        break;
    case OP_GEGLU_GRAD:
        k->geglu_grad(s, n, A(0), A(1), A(2), A(3), A(4));
        break;
    case OP_GELU_ERF:
        k->gelu_erf(s, n, A(0), A(1));
        break;
    case OP_GELU_ERF_GRAD:
        k->gelu_erf_grad(s, n, A(0), A(1), A(2));
        break;
    case OP_SCALE:
        k->scale(s, n, op->rate, A(0), A(1));
        break;
    case OP_CAP:
        k->cap(s, n, op->rate, A(0), A(1));
        break;
    case OP_CAP_GRAD:
        k->cap_grad(s, n, op->rate, A(0), A(1), A(2));
        break;
    case OP_RELU:
        k->relu(s, n, A(0), A(1));
        break;
    case OP_RELU_GRAD:
        k->relu_grad(s, n, A(0), A(1), A(2));
        break;
    case OP_ADD:
        k->add(s, n, A(0), A(1), A(2));
        break;
    default:
        fail_msg("%s is not element by element", op_name(op->kind));
    }
}

int64_t machine_dim(const struct machine *m, const struct op *op, struct graph_dim d)
{
    return d.sym == SYM_ARRIVED ? d.factor * m->arrived[op->layer][m->action->slot] : program_dim(m->p, d, m->samples);
}

char *machine_operand_at(const struct machine *m, const struct op *op, int i)
{
    return operand_at(m, op, i, slot_of(m, op->arg[i].buffer));
}

/* The ops that have no relatives. */
static void run_other(struct machine *m, const struct op *op, int64_t t, int64_t n)
{
    const struct kern_ops *k = m->k;
    struct kern_stream *s = m->s;
    switch (op->kind) {
    case OP_ZERO:
        run_zero(m, op, t * n);
        break;
    case OP_COPY:
    case OP_CAST: /* to the buffer's type after the op */
        memcpy(A(1), A(0), (size_t)(t * n) * (operand_dtype(m, op, 0) == DT_I32 ? sizeof(int32_t) : sizeof(double)));
        break;
    case OP_GEMM:
        run_gemm(m, op);
        break;
    case OP_BIAS_GRAD:
        k->bias_grad(s, t, n, A(0), A(1));
        break;
    case OP_ROPE:
        k->rope(s, t, op->seq ? op->seq : m->p->seq, op->pos0, op->heads, op->head_dim, op->lda, rope_of(m, op),
                (op->flags & OPF_INVERSE) != 0, A(0));
        break;
    case OP_ATTENTION_JOIN:
        run_join(m, op, t);
        break;
    case OP_COPY_COLS:
        k->copy_cols(s, t, n, A(0), op->lda, A(1), op->ldb);
        break;
    case OP_POSITIONS:
        k->positions(s, t, n, m->p->seq, A(1), A(0), A(2));
        break;
    case OP_DROPOUT:
        run_dropout(m, op, t, n);
        break;
    case OP_TREE_LEAF:
        tree_leaf(m, op, t);
        break;
    case OP_TREE_REDUCE: /* one rank: the root is the only node */
        memcpy(A(1), A(0), (size_t)t * sizeof(double));
        break;
    case OP_NORM:
        k->sumsq_blocks(s, t, n, A(0), A(1));
        break;
    default:
        fail_msg("the test has no %s", op_name(op->kind));
    }
}

enum op_family { OTHER, EMBED, NORMS, ATTENTION, ELEMENTS, LOSS, ONCE, EXPERTS };

static const enum op_family families[OP_KIND_COUNT] = {
    [OP_EMBED] = EMBED,
    [OP_EMBED_GRAD] = EMBED,
    [OP_RMSNORM] = NORMS,
    [OP_RMSNORM_GRAD] = NORMS,
    [OP_ROW_DOTS] = NORMS,
    [OP_RMSNORM_PART] = NORMS,
    [OP_RMSNORM_PART_GRAD] = NORMS,
    [OP_LAYERNORM] = NORMS,
    [OP_LAYERNORM_GRAD] = NORMS,
    [OP_ATTENTION] = ATTENTION,
    [OP_ATTENTION_GRAD] = ATTENTION,
    [OP_SWIGLU] = ELEMENTS,
    [OP_SWIGLU_GRAD] = ELEMENTS,
    [OP_GELU] = ELEMENTS,
    [OP_GELU_GRAD] = ELEMENTS,
    [OP_GEGLU] = ELEMENTS,
    [OP_GEGLU_GRAD] = ELEMENTS,
    [OP_GELU_ERF] = ELEMENTS,
    [OP_GELU_ERF_GRAD] = ELEMENTS,
    [OP_SCALE] = ELEMENTS,
    [OP_CAP] = ELEMENTS,
    [OP_CAP_GRAD] = ELEMENTS,
    [OP_RELU] = ELEMENTS,
    [OP_RELU_GRAD] = ELEMENTS,
    [OP_ADD] = ELEMENTS,
    [OP_CROSS_ENTROPY] = LOSS,
    [OP_LOSS_PART] = LOSS,
    [OP_LOSS_JOIN] = LOSS,
    [OP_CLIP] = ONCE,
    [OP_ADAMW] = ONCE,
    [OP_ROUTE] = EXPERTS,
    [OP_ROUTE_GRAD] = EXPERTS,
    [OP_CHOICES] = EXPERTS,
    [OP_DROP] = EXPERTS,
    [OP_ROUTE_SORT] = EXPERTS,
    [OP_AUX_LOSS] = EXPERTS,
    [OP_KEEP] = EXPERTS,
    [OP_BALANCE] = EXPERTS,
    [OP_ROWS_GATHER] = EXPERTS,
    [OP_ROWS_SUM] = EXPERTS,
    [OP_ROWS_SUM_GRAD] = EXPERTS,
    [OP_GROUPED_GEMM] = EXPERTS,
    [OP_GATE] = EXPERTS,
    [OP_GATE_GRAD] = EXPERTS,
    [OP_SOURCES] = EXPERTS,
    [OP_ROWS_PICK] = EXPERTS,
    [OP_ARRIVE] = EXPERTS,
    [OP_ARRANGE] = EXPERTS,
};

void machine_op(struct machine *m, const struct op *op)
{
    int64_t t = machine_dim(m, op, op->m), n = program_dim(m->p, op->n, m->samples);
    switch (families[op->kind]) {
    case OTHER:
        run_other(m, op, t, n);
        break;
    case EMBED:
        run_embed(m, op, t, n);
        break;
    case NORMS:
        run_norms(m, op, t, n);
        break;
    case ATTENTION:
        run_attention(m, op, t);
        break;
    case ELEMENTS:
        run_elements(m, op, t * n);
        break;
    case LOSS:
        run_loss(m, op, t, n);
        break;
    case ONCE:
        run_once(m, op, t);
        break;
    case EXPERTS:
        run_experts(m, op, t, n);
        break;
    }
    narrow_all(m);
}

/* ---- steps ---- */

/* The tokens of a microbatch on this rank: [segment][sample][token]; `rows`: their indices in the batch instead. */
static void fill_tokens(struct machine *m, int buffer, const int32_t *from)
{
    const struct program *p = m->p;
    const struct micro *micro = &p->micros[m->action->micro];
    const struct buffer *b = &p->buffers[buffer];
    int32_t *to = (int32_t *)(void *)(buffer_at(m, buffer) + slot_of(m, buffer) * b->slot_bytes);
    for (int s = 0; s < p->n_segments; s++)
        for (int64_t i = 0; i < micro->samples; i++)
            for (int64_t t = 0; t < p->segments[s].len; t++) {
                int64_t at = (micro->first + i) * p->seq + p->segments[s].pos0 + t;
                *to++ = from ? from[at] : (int32_t)at;
            }
}

static bool action_reads(const struct machine *m, int buffer)
{
    for (int i = 0; i < m->action->n_ops && buffer >= 0; i++)
        for (int k = 0; k < OP_MAX_OPERANDS; k++)
            if (m->p->ops[m->action->first_op + i].arg[k].buffer == buffer)
                return true;
    return false;
}

void begins_fill(int64_t samples, int64_t seq, int32_t *begin)
{
    for (int64_t i = 0, at = 0, length = 0; i < samples * seq; i++) {
        if (i % seq == 0 || i % seq == at + length) {
            at = i % seq;
            length++;
        }
        begin[i] = (int32_t)at;
    }
}

static void fill_inputs(struct machine *m)
{
    const struct program *p = m->p;
    if (action_reads(m, p->ids_buffer))
        fill_tokens(m, p->ids_buffer, m->ids);
    if (action_reads(m, p->targets_buffer))
        fill_tokens(m, p->targets_buffer, m->targets);
    if (action_reads(m, p->rows_buffer))
        fill_tokens(m, p->rows_buffer, NULL);
    if (action_reads(m, p->begin_buffer))
        fill_tokens(m, p->begin_buffer, m->begin);
}

int64_t machine_samples(const struct program *p, const struct action *a)
{
    return a->micro >= 0 ? p->micros[a->micro].samples : p->max_samples;
}

void machine_enter(struct machine *m, const struct action *a)
{
    m->action = a;
    m->samples = machine_samples(m->p, a);
    if (a->kind == ACT_FORWARD)
        fill_inputs(m);
}

static void run_actions(struct machine *m, enum action_kind first, enum action_kind last)
{
    const struct program *p = m->p;
    for (int a = 0; a < p->n_actions; a++) {
        if (p->actions[a].kind < first || p->actions[a].kind > last)
            continue;
        machine_enter(m, &p->actions[a]);
        for (int i = 0; i < m->action->n_ops; i++)
            machine_op(m, &p->ops[m->action->first_op + i]);
    }
}

double machine_run(struct machine *m)
{
    double loss = 0;
    run_actions(m, ACT_BEGIN, ACT_REDUCE);
    for (int i = 0; i < m->p->n_micros; i++)
        loss += ((double *)buffer_at(m, m->p->loss_buffer))[i];
    return loss * m->p->loss_scale;
}

double machine_update(struct machine *m)
{
    m->step++;
    run_actions(m, ACT_NORM, ACT_UPDATE);
    return machine_get(m, m->p->norm_buffer, 0);
}

void machine_init(struct machine *m, const struct program *p, const struct graph *g, const int32_t *ids,
                  const int32_t *targets)
{
    struct why why;
    *m = (struct machine){.p = p, .g = g, .k = kern_find("ref", DT_F64), .ids = ids, .targets = targets};
    assert_non_null(m->k);
    if (dev_open("cpu", 0, &m->dev, &why) != OK)
        fail_msg("%s", why.text);
    assert_ok(dev_stream_new(m->dev, 1, false, &m->s, &why));
    for (int s = 0; s < SPACE_COUNT; s++) {
        size_t bytes = (size_t)p->space_bytes[s] + 64;
        bool zero = s == SPACE_GRAD || s == SPACE_PARAM || s == SPACE_OPT;
        m->space[s] = malloc(bytes);
        memset(m->space[s], zero ? 0 : 0xff, bytes);
    }
}

void machine_fini(struct machine *m)
{
    for (int s = 0; s < SPACE_COUNT; s++)
        free(m->space[s]);
    exchange_fini(&m->exchange);
    dev_stream_free(m->s);
    dev_close(m->dev);
}
