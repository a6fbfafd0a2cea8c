/* Ops of mixtures of experts. common/plan/program.h states the order of their operands and fields;
 * common/plan/exchange.h has the order of the rows that go from rank to rank. */
#include "worker/step/run.h"

#include "common/plan/exchange.h"

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
    KERN(r)->route(run_stream(r, op), &k);
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

static err_t op_route_sort(const struct run *r, const struct op *op)
{
    KERN(r)->route_sort(run_stream(r, op), run_dim(r, op->m), run_dim(r, op->k), run_dim(r, op->n), run_arg(r, op, 0),
                        run_arg(r, op, 1), run_arg(r, op, 2), run_arg(r, op, 3));
    return OK;
}

static err_t op_rows_gather(const struct run *r, const struct op *op)
{
    KERN(r)->rows_gather(run_stream(r, op), run_rows(r, op), run_dim(r, op->k), run_dim(r, op->n), run_arg(r, op, 1),
                         run_arg(r, op, 0), run_arg(r, op, 2));
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
                                   .rows = run_dim(r, op->m),
                                   .m = ta ? run_dim(r, op->k) : 0,
                                   .n = run_dim(r, op->n),
                                   .k = ta ? 0 : run_dim(r, op->k),
                                   .offsets = run_arg(r, op, 3),
                                   .a = run_arg(r, op, 0),
                                   .b = run_arg(r, op, 1),
                                   .c = run_arg(r, op, 2)};
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

static struct exchange exchange_of(const struct run *r, const struct op *op, int all)
{
    const struct sharding *s = &r->program->sharding;
    const struct graph_cut experts = {.experts = true};
    return (struct exchange){.members = sharding_parts(s, &experts),
                             .me = sharding_part(s, &experts, s->coord),
                             .experts = router(r, op)->experts,
                             .offsets = run_arg(r, op, all)};
}

static int64_t *arrived_of(const struct run *r, const struct op *op)
{
    return &r->bindings->arrived[op->layer * r->bindings->slots + r->action->slot];
}

int64_t run_rows(const struct run *r, const struct op *op)
{
    return op->m.sym == SYM_ARRIVED ? op->m.factor * *arrived_of(r, op) : run_dim(r, op->m);
}

/* The device is the processor: expert parallelism on GPUs is refused before a job starts. */
static err_t op_arrive(const struct run *r, const struct op *op)
{
    const struct exchange x = exchange_of(r, op, 0);
    exchange_order(&x, run_arg(r, op, 1), run_arg(r, op, 2), run_arg(r, op, 3));
    *arrived_of(r, op) = exchange_arrived(&x);
    return OK;
}

err_t run_exchange(const struct run *r, const struct op *op)
{
    const struct exchange x = exchange_of(r, op, 1);
    const bool back = op->flags & OPF_INVERSE;
    const int64_t cols = run_dim(r, op->n);
    int64_t *send = r->bindings->counts, *recv = send + x.members;
    for (int i = 0; i < x.members; i++) {
        int64_t out = exchange_rows(&x, x.me, i) * cols, in = exchange_rows(&x, i, x.me) * cols;
        send[i] = back ? in : out;
        recv[i] = back ? out : in;
    }
    return comm_all_to_all(r->bindings->groups[op->group], run_stream(r, op), run_arg(r, op, 0), send,
                           run_arg(r, op, 2), recv, r->program->buffers[op->arg[0].buffer].dtype);
}

const run_op_fn run_expert_ops[OP_KIND_COUNT] = {
    [OP_ROUTE] = op_route,
    [OP_ROUTE_GRAD] = op_route_grad,
    [OP_AUX_LOSS] = op_aux_loss,
    [OP_BALANCE] = op_balance,
    [OP_KEEP] = op_keep,
    [OP_ROUTE_SORT] = op_route_sort,
    [OP_ROWS_GATHER] = op_rows_gather,
    [OP_ROWS_SUM] = op_rows_sum,
    [OP_ROWS_SUM_GRAD] = op_rows_sum_grad,
    [OP_GROUPED_GEMM] = op_grouped_gemm,
    [OP_GATE] = op_gate,
    [OP_GATE_GRAD] = op_gate_grad,
    [OP_ARRIVE] = op_arrive,
};
