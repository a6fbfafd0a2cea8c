/* The rows of op_desc for mixtures of experts. A case has `vocab` experts, of which each token chooses k. */
#include "tests/kernels/ops.h"

static int64_t exact(const struct kcase *c)
{
    return 0;
}

/* ---- routers ---- */

static struct kern_route route_of(const struct kcase *c)
{
    const struct kern_router router = {.experts = c->vocab,
                                       .k = c->k,
                                       .scores = c->flags & SIGMOID ? KERN_SCORES_SIGMOID
                                                 : c->flags & TOPK  ? KERN_SCORES_SOFTMAX_TOPK
                                                                    : KERN_SCORES_SOFTMAX,
                                       .norm = c->flags & NORM,
                                       .scale = c->limit,
                                       .groups = c->m ? c->m : 1,
                                       .groups_kept = c->n ? c->n : 1,
                                       .group_best = c->cols};
    return (struct kern_route){.router = router, .t = c->t, .seq = c->seq, .sets = c->parts, .set0 = c->lo};
}

static int64_t numbers_of(const struct kcase *c)
{
    return KERN_ROUTE_NUMBERS(c->vocab);
}

static struct case_operand logits_of(const struct kcase *c)
{
    enum content content = c->flags & TIES          ? HALVES
                           : c->flags & ZERO_LOGITS ? ZEROS
                           : c->flags & SOME_NAN    ? POISONED
                                                    : REALS;
    return operand_wide(operand_of(IN, content, c->t * c->vocab));
}

static void route_shape(const struct kcase *c, struct case_operand *o)
{
    const bool sums = !(c->flags & BARE);
    o[0] = logits_of(c);
    o[1] = operand_when(c->flags & BIAS, operand_wide(operand_in(c->vocab)));
    o[2] = operand_when(c->flags & BY_SET, operand_of(IN, ROW_NUMBERS, c->t));
    o[3] = operand_of(OUT, CHOICES, c->t * c->k);
    o[4] = operand_wide(operand_out(c->t * c->k));
    o[5] = operand_when(sums, operand_of(OUT, DOUBLES, c->parts * numbers_of(c)));
    o[6] = operand_when(sums, operand_of(ACC, DOUBLES, numbers_of(c)));
    o[7] = operand_when(sums, operand_of(ACC, CLOSENESS, 1));
    o[8] = operand_when(c->flags & GIVEN, operand_of(IN, CHOICES, c->t * c->k));
}

static err_t route_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    struct kern_route r = route_of(c);
    r.logits = p[0];
    r.bias = p[1];
    r.rows = p[2];
    r.ids = p[3];
    r.weights = p[4];
    r.sums = p[5];
    r.totals = p[6];
    r.closeness = p[7];
    r.given = p[8];
    k->route(s, &r);
    return OK;
}

/* The logits, rows, ids, weights and sums of the forward; d_weights, d_logits. */
static void route_grad_shape(const struct kcase *c, struct case_operand *o)
{
    o[0] = logits_of(c);
    o[1] = operand_when(c->flags & BY_SET, operand_of(IN, ROW_NUMBERS, c->t));
    o[2] = operand_of(IN, CHOICES, c->t * c->k);
    o[3] = operand_wide(operand_in(c->t * c->k));
    o[4] = operand_of(IN, SQUARES, c->parts * numbers_of(c));
    o[5] = operand_wide(operand_in(c->t * c->k));
    o[6] = operand_out(c->t * c->vocab);
}

static err_t route_grad_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    struct kern_route_grad g = {.fwd = route_of(c),
                                .aux = c->flags & LOSSES ? 0.3 : 0,
                                .z = c->flags & LOSSES ? 0.1 : 0,
                                .scale = 1 / (double)(c->t + 1),
                                .d_weights = p[5],
                                .d_logits = p[6]};
    g.fwd.logits = p[0];
    g.fwd.rows = p[1];
    g.fwd.ids = p[2];
    g.fwd.weights = p[3];
    g.fwd.sums = p[4];
    k->route_grad(s, &g);
    return OK;
}

/* Finite differences see the gradient through the weights; test_experts.c tests that of the losses. */
static void route_grad_link(const struct kcase *c, struct grad_link *l)
{
    static const int from[] = {0, 2, 3, 4, 5};
    l->forward = "route";
    for (int i = 0; i < 5; i++)
        l->from[i] = from[i];
    l->seed[5] = c->flags & LOSSES ? NONE : 4;
    l->target[6] = c->flags & LOSSES ? NONE : 0;
}

static int64_t route_terms(const struct kcase *c)
{
    return c->t + c->vocab + GATE_TERMS;
}

/* ---- capacity ---- */

static struct kern_drop drop_of(const struct kcase *c)
{
    return (struct kern_drop){.t = c->t,
                              .k = c->k,
                              .experts = c->vocab,
                              .seq = c->seq,
                              .sets = c->parts,
                              .set0 = c->lo,
                              .capacity = c->n,
                              .by_weight = c->flags & BIAS};
}

/* ids, weights, rows, table; of `drop` also the kept ids and the number of the others */
static void choices_shape(const struct kcase *c, struct case_operand *o)
{
    enum content content = c->flags & TIES ? HALVES : c->flags & SOME_NAN ? POISONED : REALS;
    o[0] = operand_of(IN, CHOICES, c->t * c->k);
    o[1] = operand_when(c->flags & BIAS, operand_wide(operand_of(IN, content, c->t * c->k)));
    o[2] = operand_of(IN, TOKEN_ROWS, c->t);
    o[3] = operand_of(OUT, DOUBLES, c->parts * (c->flags & BIAS ? 2 : 1) * c->seq * c->k);
}

static err_t choices_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    struct kern_drop d = drop_of(c);
    d.ids = p[0];
    d.weights = p[1];
    d.rows = p[2];
    d.table = p[3];
    k->choices(s, &d);
    return OK;
}

static void drop_shape(const struct kcase *c, struct case_operand *o)
{
    choices_shape(c, o);
    o[4] = operand_of(OUT, CHOICES, c->m * c->k);
    o[5] = operand_of(ACC, COUNTS, 1);
}

/* The table of all tokens of the sets, then the choices of the first m. */
static err_t drop_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    struct kern_drop d = drop_of(c);
    err_t err = choices_call(k, s, c, p);
    d.t = c->m;
    d.ids = p[0];
    d.rows = p[2];
    d.table = p[3];
    d.kept = p[4];
    d.dropped = p[5];
    return err ? err : k->drop(s, &d);
}

/* ---- rows by expert ---- */

static struct case_operand rows_of(enum role role, const struct kcase *c)
{
    struct case_operand o = operand_of(role, REALS, c->t * c->k * c->d);
    o.unused = (c->t * c->k - rows_left(c)) * c->d;
    return o;
}

static void route_sort_shape(const struct kcase *c, struct case_operand *o)
{
    o[0] = operand_of(IN, CHOICES, c->t * c->k);
    o[1] = o[2] = operand_of(OUT, PERMUTATION, c->t * c->k);
    o[3] = operand_of(OUT, OFFSETS, c->vocab + 1);
}

static err_t route_sort_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    k->route_sort(s, c->t, c->k, c->vocab, p[0], p[1], p[2], p[3]);
    return OK;
}

/* `parts` members; the experts of the rank are the `cols` ones from `lo` on. GRAD: only the choices. */
static int64_t home_rows(const struct kcase *c)
{
    int64_t n = 0;
    for (int64_t i = 0; i < c->parts; i++)
        n += member_rows(c, i);
    return n;
}

static void arrive_shape(const struct kcase *c, struct case_operand *o)
{
    const bool choices = c->flags & GRAD;
    o[0] = operand_of(IN, ALL_OFFSETS, c->parts * (c->vocab + 1));
    o[1] = operand_when(choices, operand_of(IN, PERMUTATION, home_rows(c)));
    o[2] = o[3] = operand_when(!choices, operand_of(OUT, PERMUTATION, home_rows(c)));
    o[4] = operand_when(!choices, operand_of(OUT, OFFSETS, c->cols + 1));
    o[5] = operand_when(choices, operand_of(OUT, PERMUTATION, home_rows(c)));
}

static err_t arrive_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    const struct kern_arrive a = {.members = c->parts,
                                  .experts = c->vocab,
                                  .lo = c->lo,
                                  .hi = c->lo + c->cols,
                                  .all = p[0],
                                  .sources = p[1],
                                  .index = p[2],
                                  .inverse = p[3],
                                  .offsets = p[4],
                                  .choices = p[5]};
    k->arrive(s, &a);
    return OK;
}

static void rows_gather_shape(const struct kcase *c, struct case_operand *o)
{
    o[0] = operand_of(IN, PACKED, c->t * c->k);
    o[1] = operand_when(c->flags & BIAS, operand_wide(operand_in(c->t * c->k)));
    o[2] = operand_in(c->t * c->d);
    o[3] = rows_of(OUT, c);
}

static err_t rows_gather_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    k->rows_gather(s, c->t * c->k, c->k, c->d, p[0], p[1], p[2], p[3]);
    return OK;
}

static int64_t gathered_terms(const struct kcase *c)
{
    return c->flags & BIAS ? 1 : 0;
}

static void rows_sum_shape(const struct kcase *c, struct case_operand *o)
{
    o[0] = operand_of(IN, PERMUTATION, c->t * c->k);
    o[1] = operand_when(c->flags & BIAS, operand_wide(operand_in(c->t * c->k)));
    o[2] = rows_of(IN, c);
    o[3] = operand_out(c->t * c->d);
}

static err_t rows_sum_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    k->rows_sum(s, c->t, c->k, c->d, p[0], p[1], p[2], p[3]);
    return OK;
}

static int64_t rows_sum_terms(const struct kcase *c)
{
    return c->k;
}

static void rows_sum_grad_shape(const struct kcase *c, struct case_operand *o)
{
    o[0] = operand_of(IN, PERMUTATION, c->t * c->k);
    o[1] = operand_wide(operand_in(c->t * c->k));
    o[2] = rows_of(IN, c);
    o[3] = operand_in(c->t * c->d);
    o[4] = rows_of(OUT, c);
    o[5] = operand_wide(operand_out(c->t * c->k));
}

static err_t rows_sum_grad_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    k->rows_sum_grad(s, c->t, c->k, c->d, p[0], p[1], p[2], p[3], p[4], p[5]);
    return OK;
}

/* Its cases have BIAS: the forward then has weights. */
static void rows_sum_grad_link(const struct kcase *c, struct grad_link *l)
{
    l->forward = "rows_sum";
    l->from[0] = 0;
    l->from[1] = 1;
    l->from[2] = 2;
    l->seed[3] = 3;
    l->target[4] = 2;
    l->target[5] = 1;
}

static int64_t columns_terms(const struct kcase *c)
{
    return c->d;
}

/* ---- products by expert ---- */

static struct kern_grouped grouped_of(const struct kcase *c)
{
    return (struct kern_grouped){.trans_a = c->flags & TRANS_A,
                                 .trans_b = c->flags & TRANS_B,
                                 .accumulate = c->flags & ADD_TO,
                                 .wide_c = c->flags & WIDE_C,
                                 .experts = c->vocab,
                                 .borrowed = c->parts,
                                 .rows = c->t,
                                 .m = c->m,
                                 .n = c->n,
                                 .k = c->k};
}

static struct case_operand by_rows(enum role role, const struct kcase *c, int64_t columns)
{
    struct case_operand o = operand_of(role, REALS, c->t * columns);
    o.unused = (c->t - used_rows(c)) * columns;
    return o;
}

static void grouped_shape(const struct kcase *c, struct case_operand *o)
{
    const bool grad = c->flags & TRANS_A;
    const int64_t own = c->vocab - c->parts, each = c->n * (grad ? c->m : c->k);
    o[0] = operand_of(IN, OFFSETS, c->vocab + 1);
    o[1] = by_rows(IN, c, grad ? c->m : c->k);
    o[2] = grad ? by_rows(IN, c, c->n) : operand_in(own * each);
    o[3] = grad ? operand_of(c->flags & ADD_TO ? ACC : OUT, REALS, own * each) : by_rows(OUT, c, c->n);
    o[3].wide = c->flags & WIDE_C;
    if (c->parts)
        o[4] = grad ? operand_out(c->parts * each) : operand_in(c->parts * each);
    o[4].wide = grad && c->flags & WIDE_C;
}

static err_t grouped_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    struct kern_grouped g = grouped_of(c);
    g.offsets = p[0];
    g.a = p[1];
    g.b = p[2];
    g.c = p[3];
    g.more = p[4];
    return k->grouped_gemm(s, &g);
}

static int64_t grouped_terms(const struct kcase *c)
{
    return (c->flags & TRANS_A ? c->t : c->k) + 1;
}

/* ---- gates ---- */

static void gate_shape(const struct kcase *c, struct case_operand *o)
{
    o[0] = operand_in(c->t * c->d);
    o[1] = operand_in(c->t);
    o[2] = operand_out(c->t * c->d);
}

static err_t gate_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    k->gate(s, c->t, c->d, p[0], p[1], p[2]);
    return OK;
}

static void gate_grad_shape(const struct kcase *c, struct case_operand *o)
{
    gate_shape(c, o);
    o[2].role = IN;
    o[3] = operand_out(c->t * c->d);
    o[4] = operand_out(c->t);
}

static err_t gate_grad_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    k->gate_grad(s, c->t, c->d, p[0], p[1], p[2], p[3], p[4]);
    return OK;
}

static void gate_grad_link(const struct kcase *c, struct grad_link *l)
{
    l->forward = "gate";
    l->from[0] = 0;
    l->from[1] = 1;
    l->seed[2] = 2;
    l->target[3] = 0;
    l->target[4] = 1;
}

static int64_t gate_terms(const struct kcase *c)
{
    return c->d + GATE_TERMS;
}

/* ---- balance ---- */

static void balance_shape(const struct kcase *c, struct case_operand *o)
{
    o[0] = operand_of(IN, COUNTS, c->vocab);
    o[1] = operand_of(IN, c->flags & SOME_NAN ? SQUARES_AND_NAN : FACTOR, 1);
    o[2] = operand_wide(operand_acc(c->vocab));
}

static err_t balance_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    k->balance(s, &(struct kern_balance){c->vocab, 1e-3, p[0], p[1], p[2]});
    return OK;
}

static void keep_shape(const struct kcase *c, struct case_operand *o)
{
    o[0] = operand_of(IN, DOUBLES, c->n);
    o[1] = operand_of(IN, c->flags & SOME_NAN ? SQUARES_AND_NAN : FACTOR, 1);
    o[2] = operand_of(ACC, DOUBLES, c->n);
}

static err_t keep_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    k->keep(s, c->n, p[0], p[1], p[2]);
    return OK;
}

/* ---- the value of the auxiliary loss ---- */

static void aux_loss_shape(const struct kcase *c, struct case_operand *o)
{
    o[0] = operand_of(IN, c->flags & ZERO_LOGITS ? NONE_CHOSEN : SQUARES, c->parts * numbers_of(c));
    o[1] = operand_of(ACC, DOUBLES, 1);
}

static err_t aux_loss_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    k->aux_loss(s, c->parts, c->vocab, p[0], 0.1, p[1]);
    return OK;
}

static int64_t aux_loss_terms(const struct kcase *c)
{
    return 2 * c->vocab + c->parts;
}

const struct op_desc ops_experts[] = {
    {"route", route_shape, route_call, .terms = route_terms, .floor = 1, .exact_doubles = true},
    {"route_grad", route_grad_shape, route_grad_call, route_grad_link, .terms = route_terms},
    {"choices", choices_shape, choices_call, .terms = exact},
    {"drop", drop_shape, drop_call, .terms = exact},
    {"route_sort", route_sort_shape, route_sort_call, .terms = exact},
    {"arrive", arrive_shape, arrive_call, .terms = exact},
    {"rows_gather", rows_gather_shape, rows_gather_call, .terms = gathered_terms},
    {"rows_sum", rows_sum_shape, rows_sum_call, .terms = rows_sum_terms, .floor = 1},
    {"rows_sum_grad", rows_sum_grad_shape, rows_sum_grad_call, rows_sum_grad_link, .terms = columns_terms,
     .aliases = {{4, 2}}, .floor = 1},
    {"grouped_gemm", grouped_shape, grouped_call, .terms = grouped_terms},
    {"gate", gate_shape, gate_call, .terms = gate_terms},
    {"gate_grad", gate_grad_shape, gate_grad_call, gate_grad_link, .terms = gate_terms, .aliases = {{3, 2}},
     .floor = 1},
    {"balance", balance_shape, balance_call, .terms = exact},
    {"keep", keep_shape, keep_call, .terms = exact},
    {"aux_loss", aux_loss_shape, aux_loss_call, .terms = aux_loss_terms, .floor = 1, .exact_doubles = true},
};
const int n_ops_experts = sizeof(ops_experts) / sizeof(ops_experts[0]);
