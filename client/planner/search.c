/* The best layouts by the closed form are compiled in their order, until there are enough that fit by their exact
 * memory. */
#include "client/planner/internal.h"

#include "common/base/clock.h"
#include "common/plan/models/build.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST_TRIES 6 /* for each layout that is wanted: how many are compiled at most */
#define MAX_TOP 50
#define PARETO_STEP 0.95 /* a layout that saves less than this is not worth a row */

struct ranked {
    const struct plan_found *found;
    double exact; /* bytes; 0: too many workers to compile */
};

struct ranking {
    struct ranked best[MAX_TOP];
    int n;
    struct plan_found pareto[MAX_TOP]; /* what `best` of --pareto points to */
    int too_large, refused;            /* layouts that a compilation ruled out */
    char refusal[sizeof(((struct why *)0)->text)];
    double seconds; /* of the search itself */
};

/* ---- ranking ---- */

/* Whether the list has a better layout that differs in how replicas are sharded only. */
static bool is_listed(const struct ranking *r, const struct plan_layout *l)
{
    for (int i = 0; i < r->n; i++) {
        const struct plan_layout *b = &r->best[i].found->layout;
        if (b->tp == l->tp && b->cp == l->cp && b->pp == l->pp && b->ep == l->ep)
            return true;
    }
    return false;
}

/* A layout that dtd does not have is no error of the user: the closed form looks at more than the compiler accepts. */
static void rank_one(struct ranking *r, const struct planning *p, const struct job_spec *job, const struct graph *g,
                     const struct plan_found *f)
{
    struct why why = {0};
    double exact = 0;
    if (plan_layout_workers(&f->layout) / f->layout.dp <= PLAN_COMPILED_WORKERS) {
        if (planner_exact(job, g, &f->layout, &exact, &why)) {
            r->refused++;
            snprintf(r->refusal, sizeof(r->refusal), "%s", why.text);
            return;
        }
        if (exact > p->search.memory) {
            r->too_large++;
            return;
        }
    }
    r->best[r->n++] = (struct ranked){f, exact};
}

static err_t rank_all(struct ranking *r, const struct planning *p, const struct job_spec *job,
                      const struct plan_results *results, int64_t top, struct why *why)
{
    struct graph g = {0};
    err_t err = graph_build(&job->model, job->train.seq, &g, why);
    int64_t tries = top * MOST_TRIES;
    for (int i = 0; !err && i < results->n_fit && r->n < top && tries > 0; i++)
        if (!is_listed(r, &results->fit[i].layout)) {
            rank_one(r, p, job, &g, &results->fit[i]);
            tries--;
        }
    graph_fini(&g);
    return err;
}

/* The fastest layout, then the fastest of those that need less memory, and so on. Each is found by a search of its own,
 * because a search keeps only the fastest variant of a mesh. */
static err_t rank_pareto(struct ranking *r, struct planning *p, const struct job_spec *job, int64_t top,
                         struct why *why)
{
    const double memory = p->search.memory;
    struct graph g = {0};
    err_t err = graph_build(&job->model, job->train.seq, &g, why);
    for (int tries = 0; !err && r->n < top && tries < 2 * top; tries++) {
        struct plan_results results = {0};
        err = plan_search(&p->search, &results);
        const bool found = !err && results.n_fit;
        if (found) {
            r->pareto[r->n] = results.fit[0];
            p->search.memory = PARETO_STEP * results.fit[0].bytes.total;
        }
        plan_results_fini(&results);
        if (!found)
            break;
        const double below = p->search.memory;
        p->search.memory = memory;
        rank_one(r, p, job, &g, &r->pareto[r->n]);
        p->search.memory = below;
    }
    p->search.memory = memory;
    graph_fini(&g);
    return err;
}

/* ---- text ---- */

/* Which part makes the first faster than the second: "0.21 s (4.0 %) faster than the next: bubble -0.15 s, tp -0.10 s".
 */
static void print_reason(const struct plan_time *a, const struct plan_time *b)
{
    const struct {
        const char *name;
        double gain;
    } parts[] = {{"computation", (b->compute - b->recompute) - (a->compute - a->recompute)},
                 {"recomputation", b->recompute - a->recompute},
                 {"tp collectives", b->tp - a->tp},
                 {"cp ring", b->cp - a->cp},
                 {"expert exchange", b->ep - a->ep},
                 {"messages between stages", b->pp - a->pp},
                 {"bubble", b->bubble - a->bubble},
                 {"parameter gathers", b->params - a->params},
                 {"gradient sums", b->grads - a->grads},
                 {"optimizer", b->update - a->update}};
    const size_t n = sizeof(parts) / sizeof(parts[0]);
    const double gain = b->seconds - a->seconds;
    size_t best = 0, worst = 0;
    for (size_t i = 1; i < n; i++) {
        best = parts[i].gain > parts[best].gain ? i : best;
        worst = parts[i].gain < parts[worst].gain ? i : worst;
    }
    printf("       %.2g s (%.1f %%) faster than the next: %.2g s less for %s", gain, 100 * gain / b->seconds,
           parts[best].gain, parts[best].name);
    if (parts[worst].gain < 0 && -parts[worst].gain > 0.1 * parts[best].gain)
        printf(", %.2g s more for %s", -parts[worst].gain, parts[worst].name);
    printf("\n");
}

static const struct out_column columns[] = {{"#", true, 0},    {"STEP", true, 0},   {"TOK/S", true, 0},
                                            {"MFU", true, 0},  {"MEMORY", true, 0}, {"BUBBLE", true, 2},
                                            {"COMM", true, 1}, {"AGAIN", true, 3},  {"LAYOUT", false, OUT_CUT}};

static void add_row(struct out_table *t, const struct planning *p, int i, const struct ranked *r)
{
    char a[OUT_NUMBER], text[256];
    const struct plan_time *time = &r->found->time;
    int row = out_table_row(t);
    out_table_set(t, row, 0, "%d", i + 1);
    out_table_set(t, row, 1, "%.4g s", time->seconds);
    out_table_set(t, row, 2, "%s", out_count(planning_tokens_per_s(p, time), a));
    out_table_set(t, row, 3, "%.1f %%", 100 * planning_mfu(p, time));
    out_table_set(t, row, 4, "%s%s", r->exact > 0 ? "" : "~",
                  out_bytes((int64_t)(r->exact > 0 ? r->exact : r->found->bytes.total), a));
    out_table_set(t, row, 5, "%.1f %%", 100 * time->bubble / time->seconds);
    out_table_set(t, row, 6, "%.1f %%", 100 * planning_comm(time) / time->seconds);
    out_table_set(t, row, 7, "%.1f %%", 100 * time->recompute / time->seconds);
    out_table_set(t, row, 8, "%s", planner_layout_text(&r->found->layout, text, sizeof(text)));
}

static void print_header(const struct planning *p, const struct job_spec *job, const struct plan_results *results,
                         const struct ranking *r)
{
    char a[OUT_NUMBER], b[OUT_NUMBER];
    printf("job %s, %s parameters, %s tokens a step, on %s: %" PRId64 " node%s with %" PRId64 " workers each\n",
           job->name, out_count(plan_shape_params(&p->shape, NULL), a),
           out_count(p->shape.global_batch * p->shape.seq, b), p->machine.name, p->nodes, p->nodes == 1 ? "" : "s",
           p->machine.device.per_node);
    printf("%" PRId64 " layouts in %.2f s; %d meshes fit into %s per worker, %d do not\n", results->looked, r->seconds,
           results->n_fit, out_bytes((int64_t)p->search.memory, a), results->n_unfit);
}

static void print_unfit(const struct planning *p, const struct plan_results *results)
{
    char a[OUT_NUMBER], b[OUT_NUMBER], text[256];
    const struct plan_found *f = results->unfit;
    printf("Of the meshes that do not fit, this one needs least: %s, which is %s more than there is: %s\n",
           out_bytes((int64_t)f->bytes.total, a), out_bytes((int64_t)(f->bytes.total - p->search.memory), b),
           planner_layout_text(&f->layout, text, sizeof(text)));
}

static void print_text(const struct planning *p, const struct job_spec *job, const struct plan_results *results,
                       const struct ranking *r)
{
    struct out_table t;
    print_header(p, job, results, r);
    out_table_init(&t, columns, sizeof(columns) / sizeof(columns[0]));
    for (int i = 0; i < r->n; i++)
        add_row(&t, p, i, &r->best[i]);
    out_table_print(&t, stdout, -1);
    out_table_fini(&t);
    if (r->n > 1 && p->search.goal == PLAN_TIME && !r->pareto[0].time.seconds)
        for (int i = 0; i + 1 < r->n && i < 3; i++) {
            printf("  %d  ", i + 1);
            print_reason(&r->best[i].found->time, &r->best[i + 1].found->time);
        }
    if (results->n_unfit)
        print_unfit(p, results);
    if (r->too_large + r->refused)
        printf("Left out: %d whose programs need more memory than estimated, %d that dtd does not have%s%s\n",
               r->too_large, r->refused, r->refused ? ", such as: " : "", r->refusal);
    printf("Times are estimates; rates: %s\n~: memory is an estimate (1 to 3 %%); else it is that of "
           "the compiled programs.\n",
           p->machine.source);
}

static err_t print_json(struct global *g, const struct planning *p, const struct plan_results *results,
                        const struct ranking *r)
{
    json_t *list = json_array();
    for (int i = 0; i < r->n; i++) {
        json_t *row = planning_found_json(p, r->best[i].found);
        if (r->best[i].exact > 0)
            json_object_set_new(row, "exact_bytes", out_json_real(r->best[i].exact));
        json_array_append_new(list, row);
    }
    return out_json(json_pack("{s:s,s:I,s:I,s:I,s:i,s:i,s:f,s:o}", "machine", p->machine.name, "nodes",
                              (json_int_t)p->nodes, "workers", (json_int_t)p->search.workers, "looked",
                              (json_int_t)results->looked, "fit", results->n_fit, "unfit", results->n_unfit, "memory",
                              p->search.memory, "best", list),
                    g->format == OUT_JSONL);
}

/* ---- the job file ---- */

static err_t write_job(const char *path, const struct job_spec *job, const struct plan_layout *l, struct why *why)
{
    struct job_spec best = *job; /* borrows all strings */
    struct buf text = {0};
    plan_layout_apply(l, &best);
    best.parallel.automatic = false;
    best.parallel.n_fixed = 0;
    best.parallel.machine = (char *)"";
    err_t err = job_print(&best, &text);
    FILE *f = err ? NULL : fopen(path, "wx");
    if (!err && !f)
        err = why_set(why, ERR_IO, "--write %s: %s", path, strerror(errno));
    if (f && (fwrite(text.data, 1, text.len, f) != text.len || fflush(f) != 0))
        err = why_set(why, ERR_IO, "--write %s: %s", path, strerror(errno));
    if (f && fclose(f) != 0 && !err)
        err = why_set(why, ERR_IO, "--write %s: %s", path, strerror(errno));
    buf_fini(&text);
    return err;
}

static err_t nothing_fits(const struct planning *p, const struct plan_results *results, const struct ranking *r,
                          struct why *why)
{
    char a[OUT_NUMBER], b[OUT_NUMBER], text[256];
    if (!results->n_fit && !results->n_unfit)
        return why_set(why, ERR_INVALID,
                       "no layout has %" PRId64 " workers: raise train.global_batch (%.0f), or take fewer nodes",
                       p->search.workers, p->shape.global_batch);
    if (results->n_fit && r->refused)
        return why_set(why, ERR_INVALID, "dtd has none of the layouts that fit; the last one was refused because: %s",
                       r->refusal);
    if (!results->n_unfit)
        return why_set(why, ERR_INVALID, "none of the layouts that were estimated to fit does: take more nodes");
    const struct plan_found *f = results->unfit;
    return why_set(why, ERR_INVALID,
                   "the model does not fit into %s per worker on %" PRId64
                   " workers; the layout that needs least needs %s "
                   "more (%s): take more nodes, or devices with more memory",
                   out_bytes((int64_t)p->search.memory, a), p->search.workers,
                   out_bytes((int64_t)(f->bytes.total - p->search.memory), b),
                   planner_layout_text(&f->layout, text, sizeof(text)));
}

err_t planner_search(struct global *g, const struct planner_args *a, struct job_spec *job, struct why *why)
{
    struct planning p;
    struct plan_results results = {0};
    struct ranking ranking = {0};
    const int64_t top = a->top < MAX_TOP ? a->top : MAX_TOP, began = clock_mono_ns();
    err_t err = planning_init(&p, a, job, why);
    if (err)
        return err;
    err = plan_search(&p.search, &results);
    ranking.seconds = (double)(clock_mono_ns() - began) * 1e-9;
    if (!err)
        err = a->pareto ? rank_pareto(&ranking, &p, job, top, why) : rank_all(&ranking, &p, job, &results, top, why);
    if (!err && !ranking.n)
        err = nothing_fits(&p, &results, &ranking, why);
    if (!err && g->format != OUT_TEXT)
        err = print_json(g, &p, &results, &ranking);
    else if (!err)
        print_text(&p, job, &results, &ranking);
    if (!err && a->write)
        err = write_job(a->write, job, &ranking.best[0].found->layout, why);
    plan_results_fini(&results);
    planning_fini(&p);
    return err;
}

/* ---- numbers of nodes ---- */

static const struct out_column scale_columns[] = {
    {"NODES", true, 0}, {"WORKERS", true, 0},    {"STEP", true, 0},   {"TOK/S", true, 0},
    {"MFU", true, 0},   {"EFFICIENCY", true, 0}, {"MEMORY", true, 0}, {"LAYOUT", false, OUT_CUT}};

static void add_scale_row(struct out_table *t, const struct planning *p, const struct plan_found *f, double first)
{
    char a[OUT_NUMBER], text[256];
    int row = out_table_row(t);
    const double each = planning_tokens_per_s(p, &f->time) / (double)p->nodes;
    out_table_set(t, row, 0, "%" PRId64, p->nodes);
    out_table_set(t, row, 1, "%" PRId64, p->search.workers);
    out_table_set(t, row, 2, "%.4g s", f->time.seconds);
    out_table_set(t, row, 3, "%s", out_count(planning_tokens_per_s(p, &f->time), a));
    out_table_set(t, row, 4, "%.1f %%", 100 * planning_mfu(p, &f->time));
    out_table_set(t, row, 5, "%.0f %%", 100 * each / first);
    out_table_set(t, row, 6, "~%s", out_bytes((int64_t)f->bytes.total, a));
    out_table_set(t, row, 7, "%s", planner_layout_text(&f->layout, text, sizeof(text)));
}

static void add_unfit_row(struct out_table *t, const struct planning *p, const struct plan_results *r)
{
    char a[OUT_NUMBER];
    int row = out_table_row(t);
    out_table_set(t, row, 0, "%" PRId64, p->nodes);
    out_table_set(t, row, 1, "%" PRId64, p->search.workers);
    if (r->n_unfit)
        out_table_set(t, row, 7, "does not fit: needs %s more",
                      out_bytes((int64_t)(r->unfit[0].bytes.total - p->search.memory), a));
    else
        out_table_set(t, row, 7, "no layout: the batch has fewer samples than there are replicas");
}

err_t planner_scale(struct global *g, const struct planner_args *a, struct job_spec *job, struct why *why)
{
    struct planning p;
    struct out_table t;
    double first = 0;
    json_t *list = json_array();
    err_t err = planning_init(&p, a, job, why);
    if (err)
        return err;
    out_table_init(&t, scale_columns, sizeof(scale_columns) / sizeof(scale_columns[0]));
    for (int64_t nodes = a->nodes_from; !err && nodes <= a->nodes_to; nodes *= 2) {
        struct plan_results results = {0};
        planning_set_nodes(&p, nodes);
        err = plan_search(&p.search, &results);
        if (!err && results.n_fit) {
            first = first > 0 ? first : planning_tokens_per_s(&p, &results.fit[0].time) / (double)nodes;
            add_scale_row(&t, &p, &results.fit[0], first);
            json_t *row = planning_found_json(&p, &results.fit[0]);
            json_object_set_new(row, "nodes", json_integer(nodes));
            json_array_append_new(list, row);
        } else if (!err) {
            add_unfit_row(&t, &p, &results);
        }
        plan_results_fini(&results);
    }
    if (!err && g->format != OUT_TEXT) {
        err = out_json(json_incref(list), g->format == OUT_JSONL);
    } else if (!err) {
        out_table_print(&t, stdout, -1);
        printf("Rates: %s\n", p.machine.source);
    }
    json_decref(list);
    out_table_fini(&t);
    planning_fini(&p);
    return err;
}
