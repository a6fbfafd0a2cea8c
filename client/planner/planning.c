#include "client/planner/internal.h"

#include "client/json.h"
#include "common/plan/search/interval.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

void planning_set_nodes(struct planning *p, int64_t nodes)
{
    p->nodes = nodes;
    p->search.workers = nodes * p->machine.device.per_node;
}

#define DAY_S 86400.0

/* Flags about money need a price, and a length of the run. */
static err_t money_find(struct planning *p, const struct planner_args *a, const struct job_spec *job, struct why *why)
{
    const char *flag = a->money.budget                 ? "--budget"
                       : a->money.goal == MONEY_COST   ? "--goal cost"
                       : a->money.goal == MONEY_TOKENS ? "--goal tokens-per-dollar"
                                                       : NULL;
    const double own = (double)job->train.steps * p->shape.global_batch * p->shape.seq;
    p->price = a->money.price > 0 ? a->money.price : p->machine.cost.price;
    p->tokens = a->money.tokens > 0 ? a->money.tokens : a->no_length ? 0 : own;
    if (flag && !(p->price > 0))
        return why_set(why, ERR_INVALID,
                       "%s: %s has no price: set cost.price in its machine file, the price of a device for an hour, or "
                       "write --price",
                       flag, p->machine.name);
    if (flag && !(p->tokens > 0))
        return why_set(
            why, ERR_INVALID,
            "%s: a model of --memory has no number of steps: write --tokens, such as %.0fG (20 tokens for each "
            "parameter)",
            flag, ceil(20e-9 * plan_shape_params(&p->shape, NULL)));
    return OK;
}

err_t planning_init(struct planning *p, const struct planner_args *a, const struct job_spec *job, struct why *why)
{
    memset(p, 0, sizeof(*p));
    err_t err = planner_machine(a->machine, job, &p->machine, why);
    if (err)
        return err;
    int64_t nodes = a->nodes_from ? a->nodes_from : p->machine.nodes ? p->machine.nodes : 1;
    int64_t most = a->nodes_to > nodes ? a->nodes_to : nodes;
    if (p->machine.nodes && most > p->machine.nodes)
        err = why_set(why, ERR_INVALID, "--nodes %" PRId64 ": %s has %" PRId64 " nodes", most, p->machine.name,
                      p->machine.nodes);
    else if (most > 1 && p->machine.network.bandwidth_gb == 0)
        err = why_set(why, ERR_INVALID,
                      "--nodes %" PRId64 ": %s has no network: set network.bandwidth_gb in a machine file", most,
                      p->machine.name);
    plan_shape_of(job, &p->shape);
    err = err ? err : money_find(p, a, job, why);
    if (err) {
        planning_fini(p);
        return err;
    }
    p->search = (struct plan_search){.shape = &p->shape,
                                     .machine = &p->machine,
                                     .overlap = planner_overlap(&p->machine),
                                     .memory = planner_memory(&p->machine),
                                     .goal = a->goal};
    if (job->parallel.automatic)
        plan_search_fix(&p->search, job);
    planning_set_nodes(p, nodes);
    return OK;
}

void planning_fini(struct planning *p)
{
    machine_fini(&p->machine);
}

double planning_state_bytes(const struct planning *p)
{
    return plan_shape_params(&p->shape, NULL) * (p->shape.keep_bytes + p->shape.state_bytes);
}

double planning_load_s(const struct planning *p)
{
    return planning_state_bytes(p) / (p->machine.storage.read_gb * 1e9);
}

double planning_restart_s(const struct planning *p, double load_s)
{
    return p->machine.recovery.detect_s + p->machine.recovery.epoch_s + load_s;
}

/* Each worker copies its own part of the state, once; replicas have the same. */
void planning_run(const struct planning *p, const struct plan_layout *l, double length, struct plan_run *ret)
{
    const struct machine *m = &p->machine;
    const double state = planning_state_bytes(p);
    const double replicas = (double)(l->dp * (l->zero ? 1 : l->fsdp) * l->cp);
    const double own = state * replicas / (double)p->search.workers;
    *ret = (struct plan_run){.length = length,
                             .nodes = (double)p->nodes,
                             .node_failures = m->cost.failures / (1000 * DAY_S),
                             .restart =
                                 m->cost.restart_s > 0 ? m->cost.restart_s : planning_restart_s(p, planning_load_s(p)),
                             .stall = own / replicas / (m->storage.copy_gb * 1e9),
                             .save = state / (m->storage.bandwidth_gb * 1e9),
                             .taken = m->cost.taken,
                             .repair = m->cost.repair_days * DAY_S,
                             .spares = m->cost.spares};
}

double planning_mfu(const struct planning *p, const struct plan_time *t)
{
    const struct machine *m = &p->machine;
    double peak = p->shape.type_bytes == 2   ? m->device.bf16_tflops
                  : p->shape.type_bytes == 8 ? m->device.f64_tflops
                                             : m->device.f32_tflops;
    return t->model_flops / t->seconds / (peak * 1e12);
}

double planning_tokens_per_s(const struct planning *p, const struct plan_time *t)
{
    return p->shape.global_batch * p->shape.seq / t->seconds;
}

double planning_comm(const struct plan_time *t)
{
    return t->tp + t->cp + t->ep + t->pp + t->params + t->grads;
}

void planner_estimates_print(FILE *f, const struct machine *m)
{
    const struct plan_interval part = plan_forecast_interval(m, 1);
    fprintf(f, "Times are estimates; nine of ten steps took %.2f to %.2f of theirs%s%s; rates: %s\n", part.low,
            part.high, m->error.source[0] ? ", " : "", m->error.source, m->source);
}

json_t *planning_layout_json(const struct plan_layout *l)
{
    return json_pack("{s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:s,s:I,s:I,s:s}", "dp", (json_int_t)l->dp, "fsdp",
                     (json_int_t)l->fsdp, "tp", (json_int_t)l->tp, "cp", (json_int_t)l->cp, "pp", (json_int_t)l->pp,
                     "ep", (json_int_t)l->ep, "zero", (json_int_t)l->zero, "schedule",
                     job_schedule_row(l->schedule)->name, "chunks", (json_int_t)l->chunks, "micro_batch",
                     (json_int_t)l->micro_batch, "recompute", planner_recompute_word(l->recompute));
}

json_t *planning_found_json(const struct planning *p, const struct plan_found *f)
{
    const struct plan_time *t = &f->time;
    const struct plan_bytes *b = &f->bytes;
    json_t *parts = json_pack("{s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f}", "compute", t->compute, "recompute",
                              t->recompute, "tp", t->tp, "cp", t->cp, "ep", t->ep, "pp", t->pp, "bubble", t->bubble,
                              "wait", t->wait, "params", t->params, "grads", t->grads, "update", t->update);
    json_t *bytes = json_pack("{s:f,s:f,s:f,s:f,s:f,s:f}", "params", b->params, "grads", b->grads, "optimizer",
                              b->optimizer, "activations", b->activations, "buffers", b->buffers, "total", b->total);
    const struct plan_interval of = plan_forecast_interval(&p->machine, t->seconds);
    return json_pack("{s:f,s:[f,f],s:f,s:f,s:o,s:o,s:o}", "step_s", t->seconds, "step_interval_s", of.low, of.high,
                     "tokens_per_s", planning_tokens_per_s(p, t), "mfu", planning_mfu(p, t), "parts", parts, "bytes",
                     bytes, "layout", planning_layout_json(&f->layout));
}
