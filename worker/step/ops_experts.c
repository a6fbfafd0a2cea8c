/* Ops of mixtures of experts. common/plan/program.h states the order of their operands and fields;
 * common/plan/exchange.h has the order of the rows that go from rank to rank. */
#include "worker/step/run.h"

#include "common/base/log.h"
#include "common/plan/exchange.h"
#include "worker/step/routing.h"

#define KERN(r) ((r)->engine->kernels)

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

static const struct graph_router *router(const struct run *r, const struct op *op)
{
    return &r->engine->config.graph->nodes[op->node].router;
}

static struct kern_route route_of(const struct run *r, const struct op *op)
{
    const struct graph_router *x = router(r, op);
    const struct micro *micro = &r->program->micros[r->action->micro];
    return (struct kern_route){.router = router_of(x),
                               .t = run_dim(r, op->m),
                               .seq = r->program->seq,
                               .sets = x->scope == AUX_SAMPLE ? micro->samples : 1,
                               .set0 = micro->first,
                               .logits = run_arg(r, op, 0)};
}

static err_t op_route(const struct run *r, const struct op *op)
{
    struct kern_route k = route_of(r, op);
    k.rows = run_arg(r, op, 1);
    k.ids = run_arg(r, op, 2);
    k.weights = run_arg(r, op, 3);
    k.sums = run_arg(r, op, 4);
    k.totals = run_arg(r, op, 5);
    k.closeness = run_arg(r, op, 6);
    k.bias = run_arg(r, op, 7);
    k.given = routing_given(r, op);
    KERN(r)->route(run_stream(r, op), &k);
    routing_made(r, op, k.ids);
    return OK;
}

static err_t op_balance(const struct run *r, const struct op *op)
{
    const struct kern_balance b = {.experts = run_dim(r, op->m),
                                   .rate = op->rate,
                                   .counts = run_arg(r, op, 0),
                                   .factor = run_arg(r, op, 1),
                                   .bias = run_arg(r, op, 2)};
    KERN(r)->balance(run_stream(r, op), &b);
    return OK;
}

static err_t op_keep(const struct run *r, const struct op *op)
{
    KERN(r)->keep(run_stream(r, op), run_dim(r, op->m), run_arg(r, op, 0), run_arg(r, op, 1), run_arg(r, op, 2));
    return OK;
}

static err_t op_aux_loss(const struct run *r, const struct op *op)
{
    KERN(r)->aux_loss(run_stream(r, op), run_dim(r, op->m), run_dim(r, op->n), run_arg(r, op, 0),
                      op->rate * r->program->loss_scale, run_arg(r, op, 1));
    return OK;
}

static err_t op_route_grad(const struct run *r, const struct op *op)
{
    struct kern_route_grad k = {.fwd = route_of(r, op),
                                .aux = router(r, op)->aux,
                                .z = router(r, op)->z,
                                .scale = r->program->loss_scale,
                                .d_weights = run_arg(r, op, 3),
                                .d_logits = run_arg(r, op, 6)};
    k.fwd.ids = run_arg(r, op, 1);
    k.fwd.weights = run_arg(r, op, 2);
    k.fwd.rows = run_arg(r, op, 4);
    k.fwd.sums = run_arg(r, op, 5);
    KERN(r)->route_grad(run_stream(r, op), &k);
    return OK;
}

static struct kern_drop drop_of(const struct run *r, const struct op *op)
{
    const struct graph_router *x = router(r, op);
    const struct micro *micro = &r->program->micros[r->action->micro];
    return (struct kern_drop){.t = run_dim(r, op->m),
                              .k = x->k,
                              .experts = x->experts,
                              .seq = r->program->seq,
                              .sets = micro->samples,
                              .set0 = micro->first,
                              .capacity = graph_capacity(x, r->program->seq),
                              .by_weight = x->drop == DROP_PROBABILITY,
                              .ids = run_arg(r, op, 0)};
}

static err_t op_choices(const struct run *r, const struct op *op)
{
    struct kern_drop k = drop_of(r, op);
    k.weights = run_arg(r, op, 1);
    k.rows = run_arg(r, op, 2);
    k.table = run_arg(r, op, 3);
    KERN(r)->choices(run_stream(r, op), &k);
    return OK;
}

static err_t op_drop(const struct run *r, const struct op *op)
{
    struct kern_drop k = drop_of(r, op);
    k.rows = run_arg(r, op, 1);
    k.table = run_arg(r, op, 2);
    k.kept = run_arg(r, op, 3);
    k.dropped = run_arg(r, op, 4);
    return KERN(r)->drop(run_stream(r, op), &k);
}

static err_t op_route_sort(const struct run *r, const struct op *op)
{
    KERN(r)->route_sort(run_stream(r, op), run_dim(r, op->m), run_dim(r, op->k), run_dim(r, op->n), run_arg(r, op, 0),
                        run_arg(r, op, 1), run_arg(r, op, 2), run_arg(r, op, 3));
    return OK;
}

static err_t op_rows_gather(const struct run *r, const struct op *op)
{
    const int64_t k = run_dim(r, op->k);
    KERN(r)->rows_gather(run_stream(r, op), run_rows(r, op) * k, k, run_dim(r, op->n), run_arg(r, op, 1),
                         run_arg(r, op, 2), run_arg(r, op, 0), run_arg(r, op, 3));
    return OK;
}

static err_t op_rows_sum(const struct run *r, const struct op *op)
{
    KERN(r)->rows_sum(run_stream(r, op), run_dim(r, op->m), run_dim(r, op->k), run_dim(r, op->n), run_arg(r, op, 2),
                      run_arg(r, op, 1), run_arg(r, op, 0), run_arg(r, op, 3));
    return OK;
}

static err_t op_rows_sum_grad(const struct run *r, const struct op *op)
{
    KERN(r)->rows_sum_grad(run_stream(r, op), run_dim(r, op->m), run_dim(r, op->k), run_dim(r, op->n),
                           run_arg(r, op, 2), run_arg(r, op, 1), run_arg(r, op, 0), run_arg(r, op, 3),
                           run_arg(r, op, 4), run_arg(r, op, 5));
    return OK;
}

static err_t op_grouped_gemm(const struct run *r, const struct op *op)
{
    const bool ta = op->flags & OPF_TRANS_A;
    const struct kern_grouped g = {.trans_a = ta,
                                   .trans_b = op->flags & OPF_TRANS_B,
                                   .accumulate = op->flags & OPF_ACC,
                                   .wide_c = r->program->buffers[op->arg[2].buffer].dtype != r->program->dtype,
                                   .experts = op->seq,
                                   .rows = run_rows(r, op),
                                   .m = ta ? run_dim(r, op->k) : 0,
                                   .n = run_dim(r, op->n),
                                   .k = ta ? 0 : run_dim(r, op->k),
                                   .offsets = run_arg(r, op, 3),
                                   .a = run_arg(r, op, 0),
                                   .b = run_arg(r, op, 1),
                                   .c = run_arg(r, op, 2),
                                   .borrowed = op->seq_kv,
                                   .more = run_arg(r, op, 4)};
    return KERN(r)->grouped_gemm(run_stream(r, op), &g);
}

static err_t op_gate(const struct run *r, const struct op *op)
{
    KERN(r)->gate(run_stream(r, op), run_dim(r, op->m), run_dim(r, op->n), run_arg(r, op, 0), run_arg(r, op, 1),
                  run_arg(r, op, 2));
    return OK;
}

static err_t op_gate_grad(const struct run *r, const struct op *op)
{
    KERN(r)->gate_grad(run_stream(r, op), run_dim(r, op->m), run_dim(r, op->n), run_arg(r, op, 0), run_arg(r, op, 1),
                       run_arg(r, op, 2), run_arg(r, op, 3), run_arg(r, op, 4));
    return OK;
}

/* ---- expert parallelism ---- */

/* The index of the op's layer and the action's slot: of what is known of their exchange. */
static int exchange_index(const struct run *r, const struct op *op)
{
    return op->layer * r->bindings->slots + r->action->slot;
}

static int64_t *arrived_of(const struct run *r, const struct op *op)
{
    return &r->bindings->arrived[exchange_index(r, op)];
}

/* The offsets that `arrive` of the op's layer has read, where the host reads them. */
static int32_t *host_offsets(const struct run *r, const struct op *op, int all)
{
    const struct program_bindings *b = r->bindings;
    return b->offsets ? b->offsets + exchange_index(r, op) * b->offsets_each : run_arg(r, op, all);
}

/* Which rank computes which rows in the op's layer. Compute thread and communication thread may both ask, each for its
 * own ops. */
static struct exchange *exchange_of(const struct run *r, const struct op *op, int all)
{
    const struct sharding *s = &r->program->sharding;
    const struct graph_cut experts = {.experts = true};
    struct exchange *x = &r->bindings->exchange[op->stream];
    x->me = sharding_part(s, &experts, s->coord);
    exchange_plan(x, host_offsets(r, op, all), r->program->balanced);
    if (op->round)
        exchange_round(x, (op->round - 1) * r->program->round_rows, r->program->round_rows);
    return x;
}

int64_t run_rows(const struct run *r, const struct op *op)
{
    return op->m.sym == SYM_ARRIVED ? op->m.factor * *arrived_of(r, op) : run_dim(r, op->m);
}

/* The host needs the numbers of rows to queue their exchange, and waits for them here, once in a layer and microbatch.
 * After the end of an epoch the wait may succeed with meaningless numbers. */
static err_t fetch_offsets(const struct run *r, const struct op *op)
{
    struct kern_stream *s = run_stream(r, op);
    if (!r->bindings->offsets)
        return OK;
    struct why why = {""};
    err_t err = dev_copy(s, host_offsets(r, op, 0), run_arg(r, op, 0), (size_t)run_dim(r, op->m) * sizeof(int32_t));
    err = err ? err : dev_stream_sync(s, &why);
    if (run_canceled(r))
        return ERR_CANCELED;
    if (why.text[0])
        log_error("stream_failed error=%s why=\"%s\"", err_name(err), why.text);
    return err;
}

/* A round counts if a rank of the group has rows in it. */
static void count_round(const struct exchange *x, int round, double *most)
{
    for (int i = 0; most && i < x->members; i++)
        *most = x->rows[i] > 0 && round > *most ? round : *most;
}

static err_t op_arrive(const struct run *r, const struct op *op)
{
    err_t err = fetch_offsets(r, op);
    if (err)
        return err;
    const struct exchange *x = exchange_of(r, op, 0);
    struct kern_arrive a = {.members = x->members,
                            .experts = x->experts,
                            .all = run_arg(r, op, 0),
                            .index = run_arg(r, op, 1),
                            .inverse = run_arg(r, op, 2),
                            .offsets = run_arg(r, op, 3)};
    exchange_experts(x, x->me, &a.lo, &a.hi);
    *arrived_of(r, op) = x->rows[x->me];
    count_round(x, op->round, run_arg(r, op, 4));
    if (r->program->balanced || op->round) /* on CPUs only */
        exchange_order(x, a.index, a.inverse, a.offsets);
    else
        KERN(r)->arrive(run_stream(r, op), &a);
    return OK;
}

static err_t op_arrange(const struct run *r, const struct op *op)
{
    const int64_t rows = run_dim(r, op->m) * run_dim(r, op->k);
    const int32_t *by_expert = run_arg(r, op, 2);
    int32_t *place = run_arg(r, op, 1), *source = run_arg(r, op, 3), *moved = run_arg(r, op, 4);
    struct exchange *x = exchange_of(r, op, 0);
    const int64_t sent = exchange_home_rows(x, x->me); /* without dropped choices */
    for (int round = 0; round < r->program->rounds; round++) {
        exchange_plan(x, x->offsets, r->program->balanced);
        if (r->program->rounds > 1)
            exchange_round(x, round * r->program->round_rows, r->program->round_rows);
        exchange_home(x, moved);
    }
    for (int64_t i = 0; i < rows; i++) {
        place[i] = place[i] < 0 ? -1 : moved[place[i]];
        source[i < sent ? moved[i] : i] = by_expert[i];
    }
    return OK;
}

/* All ranks skip a round in which none has rows. */
err_t run_exchange(const struct run *r, const struct op *op)
{
    const struct exchange *x = exchange_of(r, op, 1);
    const bool back = op->flags & OPF_INVERSE;
    const int64_t cols = run_dim(r, op->n);
    const enum dtype dtype = r->program->buffers[op->arg[0].buffer].dtype;
    const int64_t before = x->before * cols * (int64_t)dtype_bytes(dtype); /* of home rows */
    int64_t *send = r->bindings->counts, *recv = send + x->members, all = 0;
    for (int i = 0; i < x->members; i++) {
        int64_t out = exchange_rows(x, x->me, i) * cols, in = exchange_rows(x, i, x->me) * cols;
        send[i] = back ? in : out;
        recv[i] = back ? out : in;
        all += x->rows[i];
    }
    if (op->round && all == 0)
        return OK;
    return comm_all_to_all(r->bindings->groups[op->group], run_stream(r, op),
                           (char *)run_arg(r, op, 0) + (back ? 0 : before), send,
                           (char *)run_arg(r, op, 2) + (back ? before : 0), recv, dtype);
}

/* ---- borrowed experts ---- */

/* The matrices of one op: which of them go between two ranks follows from the exchange. */
struct borrowing {
    const struct exchange *x;
    struct comm_group *group;
    struct kern_stream *stream;
    int64_t matrix; /* elements */
    enum dtype dtype;
};

static struct borrowing borrowing_of(const struct run *r, const struct op *op)
{
    return (struct borrowing){.x = exchange_of(r, op, 1),
                              .group = r->bindings->groups[op->group],
                              .stream = run_stream(r, op),
                              .matrix = run_dim(r, op->n),
                              .dtype = r->program->buffers[op->arg[0].buffer].dtype};
}

/* Calls back for each expert that `borrower` borrows, in the order of its slots, with the bytes before the expert's
 * matrix in the buffers of both ranks. */
typedef err_t (*borrowed_fn)(const struct borrowing *b, int borrower, int64_t at_lender, int64_t at_borrower,
                             void *arg);

static err_t each_borrowed(const struct borrowing *b, int borrower, borrowed_fn fn, void *arg)
{
    const int64_t bytes = b->matrix * (int64_t)dtype_bytes(b->dtype);
    int64_t lo, hi, lender_lo = 0, lender_hi;
    err_t e = OK;
    exchange_experts(b->x, borrower, &lo, &hi);
    if (b->x->lender[borrower] >= 0)
        exchange_experts(b->x, b->x->lender[borrower], &lender_lo, &lender_hi);
    for (int64_t k = hi - lo; k < b->x->shares[borrower] && !e; k++)
        e = fn(b, borrower, (exchange_shares(b->x, borrower)[k].expert - lender_lo) * bytes, (k - (hi - lo)) * bytes,
               arg);
    return e;
}

static err_t lend(const struct borrowing *b, int borrower, int64_t at_lender, int64_t at_borrower, void *arg)
{
    (void)at_borrower;
    return comm_send(b->group, b->stream, (char *)arg + at_lender, b->matrix * (int64_t)dtype_bytes(b->dtype),
                     borrower);
}

static err_t receive_lent(const struct borrowing *b, int borrower, int64_t at_lender, int64_t at_borrower, void *arg)
{
    (void)at_lender;
    return comm_recv(b->group, b->stream, (char *)arg + at_borrower, b->matrix * (int64_t)dtype_bytes(b->dtype),
                     b->x->lender[borrower]);
}

/* A rank lends before it borrows. A lender has lent all before it borrows itself (exchange_plan), so no ranks wait for
 * each other in a circle. */
err_t run_borrow(const struct run *r, const struct op *op)
{
    const struct borrowing b = borrowing_of(r, op);
    err_t e = OK;
    for (int i = 0; i < b.x->members && !e; i++)
        if (b.x->lender[i] == b.x->me)
            e = each_borrowed(&b, i, lend, run_arg(r, op, 0));
    return e ? e : each_borrowed(&b, b.x->me, receive_lent, run_arg(r, op, 2));
}

static err_t send_back(const struct borrowing *b, int borrower, int64_t at_lender, int64_t at_borrower, void *arg)
{
    (void)at_lender;
    return comm_send(b->group, b->stream, (char *)arg + at_borrower, b->matrix * (int64_t)dtype_bytes(b->dtype),
                     b->x->lender[borrower]);
}

struct returned {
    const struct kern_ops *kernels;
    void *room, *own;
};

static err_t add_returned(const struct borrowing *b, int borrower, int64_t at_lender, int64_t at_borrower, void *arg)
{
    const struct returned *returned = arg;
    void *to = (char *)returned->own + at_lender;
    (void)at_borrower;
    err_t e = comm_recv(b->group, b->stream, returned->room, b->matrix * (int64_t)dtype_bytes(b->dtype), borrower);
    if (!e)
        returned->kernels->add(b->stream, b->matrix, to, returned->room, to);
    return e;
}

/* A rank gives back what it has borrowed before it receives what it has lent: the other way round than run_borrow. */
err_t run_give_back(const struct run *r, const struct op *op)
{
    const struct borrowing b = borrowing_of(r, op);
    struct returned to = {run_wide_kernels(r), run_arg(r, op, 2), run_arg(r, op, 3)};
    err_t e = each_borrowed(&b, b.x->me, send_back, run_arg(r, op, 0));
    for (int i = 0; i < b.x->members && !e; i++)
        if (b.x->lender[i] == b.x->me)
            e = each_borrowed(&b, i, add_returned, &to);
    return e;
}

/* ---- all-gather of the tokens ---- */

/* The home rows of a member are k for each of its tokens. */
err_t run_gather_tokens(const struct run *r, const struct op *op)
{
    const struct exchange *x = exchange_of(r, op, 1);
    const int64_t n = run_dim(r, op->n), k = run_dim(r, op->k);
    for (int i = 0; i < x->members; i++)
        r->bindings->counts[i] = exchange_home_rows(x, i) / k * n;
    return comm_all_gather(r->bindings->groups[op->group], run_stream(r, op), run_arg(r, op, 0), run_arg(r, op, 2),
                           r->bindings->counts, r->program->buffers[op->arg[0].buffer].dtype);
}

static err_t op_sources(const struct run *r, const struct op *op)
{
    const struct exchange *x = exchange_of(r, op, 0);
    struct kern_arrive a = {.members = x->members,
                            .experts = x->experts,
                            .all = run_arg(r, op, 0),
                            .sources = run_arg(r, op, 1),
                            .choices = run_arg(r, op, 2)};
    exchange_experts(x, x->me, &a.lo, &a.hi);
    KERN(r)->arrive(run_stream(r, op), &a);
    return OK;
}

static err_t op_rows_pick(const struct run *r, const struct op *op)
{
    KERN(r)->rows_gather(run_stream(r, op), run_rows(r, op), run_dim(r, op->k), run_dim(r, op->n), run_arg(r, op, 1),
                         run_arg(r, op, 2), run_arg(r, op, 0), run_arg(r, op, 3));
    return OK;
}

const run_op_fn run_expert_ops[OP_KIND_COUNT] = {
    [OP_ROUTE] = op_route,
    [OP_ROUTE_GRAD] = op_route_grad,
    [OP_AUX_LOSS] = op_aux_loss,
    [OP_BALANCE] = op_balance,
    [OP_KEEP] = op_keep,
    [OP_CHOICES] = op_choices,
    [OP_DROP] = op_drop,
    [OP_ROUTE_SORT] = op_route_sort,
    [OP_ROWS_GATHER] = op_rows_gather,
    [OP_ROWS_SUM] = op_rows_sum,
    [OP_ROWS_SUM_GRAD] = op_rows_sum_grad,
    [OP_GROUPED_GEMM] = op_grouped_gemm,
    [OP_GATE] = op_gate,
    [OP_GATE_GRAD] = op_gate_grad,
    [OP_ARRIVE] = op_arrive,
    [OP_ARRANGE] = op_arrange,
    [OP_SOURCES] = op_sources,
    [OP_ROWS_PICK] = op_rows_pick,
};
