/* dtctl plan FILE --machine NAME: the job's own layout on a machine, before it is rented. Whether it fits follows from
 * its programs, as the memory of --search does. */
#include "client/planner/money.h"
#include "client/planner/nearest.h"

#include "common/plan/estimate/memory.h"
#include "common/plan/models/build.h"

#include <inttypes.h>
#include <stdio.h>

struct own {
    const struct planning *p;
    const struct job_spec *job;
    const struct graph *graph;
    struct plan_found found;
    double bytes; /* of the worker that needs most */
    bool exact;
};

/* The exact memory, or the estimate where the layout is too large to compile. */
static err_t own_bytes(const struct own *o, const struct plan_layout *l, double *ret, bool *ret_exact, struct why *why)
{
    struct plan_bytes bytes;
    *ret_exact = plan_layout_workers(l) / l->dp <= PLAN_COMPILED_WORKERS;
    if (*ret_exact)
        return planner_exact(o->job, o->graph, l, ret, why);
    plan_step_bytes(&o->p->shape, l, &bytes);
    *ret = bytes.total;
    return OK;
}

/* By how much an estimate may be too high: it is within a tenth of the largest worker, and workers differ. */
#define UNSURE 1.3

/* The estimate comes first, because a compilation takes longer. */
static bool own_fits(void *arg, const struct plan_layout *l)
{
    const struct own *o = arg;
    struct plan_bytes bytes;
    struct why ignored = {0};
    double exact;
    bool is_exact;
    plan_step_bytes(&o->p->shape, l, &bytes);
    return bytes.total < UNSURE * o->p->search.memory && !own_bytes(o, l, &exact, &is_exact, &ignored) &&
           exact <= o->p->search.memory;
}

static err_t complain(const struct own *o, struct why *why)
{
    char nearest[600], layout[256], a[OUT_NUMBER], b[OUT_NUMBER], c[OUT_NUMBER];
    planner_nearest_text(o->p, &o->found.layout, own_fits, (void *)o, nearest, sizeof(nearest));
    return why_set(why, ERR_INVALID, "the layout of job %s needs %s on each worker, %s more than %s has (%s): %s; %s",
                   o->job->name, out_bytes((int64_t)o->bytes, a),
                   out_bytes((int64_t)(o->bytes - o->p->search.memory), b), o->p->machine.name,
                   out_bytes((int64_t)o->p->search.memory, c),
                   planner_layout_text(&o->found.layout, layout, sizeof(layout)),
                   nearest[0] ? nearest : "no layout near it fits: --search looks at all");
}

/* ---- text ---- */

static void print_memory(FILE *f, const struct own *o)
{
    const struct plan_bytes *b = &o->found.bytes;
    char a[6][OUT_NUMBER];
    fprintf(f, "  Memory     %s%s of %s per worker; about %s parameters, %s gradients, %s optimizer, %s activations\n",
            o->exact ? "" : "~", out_bytes((int64_t)o->bytes, a[0]), out_bytes((int64_t)o->p->search.memory, a[1]),
            out_bytes((int64_t)b->params, a[2]), out_bytes((int64_t)b->grads, a[3]),
            out_bytes((int64_t)b->optimizer, a[4]), out_bytes((int64_t)(b->activations + b->buffers), a[5]));
}

static void print_step(FILE *f, const struct own *o)
{
    const struct plan_time *t = &o->found.time;
    char a[OUT_NUMBER];
    fprintf(f,
            "  Step       %.4g s, %s tokens/s, MFU %.1f %%; bubble %.1f %%, exposed communication %.1f %%, computed "
            "again %.1f %%\n",
            t->seconds, out_count(planning_tokens_per_s(o->p, t), a), 100 * planning_mfu(o->p, t),
            100 * t->bubble / t->seconds, 100 * planning_comm(t) / t->seconds, 100 * t->recompute / t->seconds);
}

static void print_run(FILE *f, const struct own *o)
{
    char a[OUT_NUMBER], b[OUT_NUMBER], c[OUT_NUMBER];
    struct planner_bill bill;
    planner_bill_of(o->p, &o->found, &bill);
    fprintf(f, "  Run        %s tokens in %s with failures and checkpoints", out_count(bill.tokens, a),
            out_duration(bill.seconds, b));
    if (bill.kwh > 0)
        fprintf(f, ", %s", planner_energy_text(bill.kwh, c));
    if (bill.price > 0)
        fprintf(f, ", %s at %s per device and hour", planner_price_text(bill.price, a),
                planner_price_text(o->p->price, b));
    fputc('\n', f);
}

/* The best layout of as many workers, if it differs by more than the estimates do. */
static err_t print_best(FILE *f, const struct own *o)
{
    char text[256];
    struct plan_results r = {0};
    err_t err = plan_search(&o->p->search, &r);
    const double gain = !err && r.n_fit ? 1 - r.fit[0].time.seconds / o->found.time.seconds : 0;
    if (!err && gain > 0.05)
        fprintf(f, "  Best       %s is %.0f %% faster; --search shows why\n",
                planner_layout_text(&r.fit[0].layout, text, sizeof(text)), 100 * gain);
    else if (!err)
        fprintf(f, "  Best       no layout of these workers is more than 5 %% faster\n");
    plan_results_fini(&r);
    return err;
}

static err_t print_text(const struct own *o)
{
    char text[256];
    struct out_page page;
    const int64_t workers = o->p->search.workers;
    out_page_begin(&page);
    fprintf(page.f, "job %s fits on %s: %" PRId64 " worker%s on %" PRId64 " node%s\n", o->job->name, o->p->machine.name,
            workers, workers == 1 ? "" : "s", o->p->nodes, o->p->nodes == 1 ? "" : "s");
    fprintf(page.f, "  Layout     %s\n", planner_layout_text(&o->found.layout, text, sizeof(text)));
    print_memory(page.f, o);
    print_step(page.f, o);
    print_run(page.f, o);
    err_t err = print_best(page.f, o);
    fprintf(page.f, "  Rates      %s\n", o->p->machine.source);
    out_page_end(&page, stdout);
    return err;
}

static err_t print_json(struct global *g, const struct own *o)
{
    struct planner_bill bill;
    json_t *value = planning_found_json(o->p, &o->found);
    planner_bill_of(o->p, &o->found, &bill);
    json_object_set_new(value, "machine", json_string(o->p->machine.name));
    json_object_set_new(value, "memory", out_json_real(o->p->search.memory));
    json_object_set_new(value, "run", planner_bill_json(&bill));
    if (o->exact)
        json_object_set_new(value, "exact_bytes", out_json_real(o->bytes));
    return out_json(value, g->format == OUT_JSONL);
}

err_t planner_fit(struct global *g, const struct planner_args *a, const struct job_spec *job,
                  const struct plan_layout *own, struct why *why)
{
    struct planning p;
    struct graph graph = {0};
    err_t err = planning_init(&p, a, job, why);
    if (err)
        return err;
    struct own o = {.p = &p, .job = job, .graph = &graph, .found.layout = *own};
    const int64_t workers = plan_layout_workers(own), per_node = p.machine.device.per_node;
    const int64_t nodes = (workers + per_node - 1) / per_node;
    if (p.machine.nodes && nodes > p.machine.nodes)
        err = why_set(why, ERR_INVALID,
                      "parallel.workers: %" PRId64 " workers are %" PRId64 " nodes, but %s has %" PRId64
                      ": write at most %" PRId64,
                      workers, nodes, p.machine.name, p.machine.nodes, p.machine.nodes * per_node);
    planning_set_nodes(&p, nodes);
    p.search.workers = workers;
    err = err ? err : graph_build(&job->model, job->train.seq, &graph, why);
    err = err ? err : own_bytes(&o, own, &o.bytes, &o.exact, why);
    if (!err) {
        plan_step_bytes(&p.shape, own, &o.found.bytes);
        plan_step_time(&p.shape, own, &p.machine, &p.search.overlap, &o.found.time);
    }
    if (!err && o.bytes > p.search.memory)
        err = complain(&o, why);
    else if (!err)
        err = g->format != OUT_TEXT ? print_json(g, &o) : print_text(&o);
    graph_fini(&graph);
    planning_fini(&p);
    return err;
}

/* ---- jobs that are submitted here ---- */

struct here {
    const struct planning *p;
    const struct job_spec *job;
    int64_t node_bytes;
};

/* The estimate first, since a job may have many workers, and each proposal compiles a rank of each kind. */
static bool here_fits(void *arg, const struct plan_layout *l)
{
    const struct here *h = arg;
    struct job_spec other = *h->job; /* borrows all strings */
    struct plan_bytes bytes;
    struct why ignored = {0};
    plan_step_bytes(&h->p->shape, l, &bytes);
    if (bytes.total * (double)plan_layout_workers(l) > UNSURE * (double)h->node_bytes)
        return false;
    plan_layout_apply(l, &other);
    return !planner_rules_check(&other, &ignored) && !plan_fits(&other, h->node_bytes, &ignored);
}

void planner_nearest_here(const struct job_spec *job, int64_t node_bytes, struct why *why)
{
    const struct planner_args none = {0};
    struct planning p;
    struct plan_layout own;
    struct why ignored = {0};
    char nearest[400], sentence[sizeof(why->text)];
    if (job->run.device != DEVICE_CPU || !job->model.vocab || planning_init(&p, &none, job, &ignored))
        return;
    struct here here = {&p, job, node_bytes};
    plan_layout_of(job, &own);
    planner_nearest_text(&p, &own, here_fits, &here, nearest, sizeof(nearest));
    planning_fini(&p);
    if (!nearest[0])
        return;
    snprintf(sentence, sizeof(sentence), "%s", why->text);
    (void)!why_set(why, ERR_INVALID, "%s; %s", sentence, nearest);
}
