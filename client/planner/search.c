/* The best layouts by the closed form are compiled in their order, until there are enough that fit by their exact
 * memory. */
#include "client/planner/money.h"
#include "client/planner/nearest.h"
#include "client/planner/picture.h"

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

#define AS_FAST 1.0005 /* prints as 0.0 % */

/* The last layout may need less memory than the one before it in the same time. Then the one before it is none to take.
 */
static void drop_dominated(struct ranking *r)
{
    const int n = r->n;
    if (n < 2 || r->pareto[n - 1].time.seconds > AS_FAST * r->pareto[n - 2].time.seconds)
        return;
    r->pareto[n - 2] = r->pareto[n - 1];
    r->best[n - 2].exact = r->best[n - 1].exact;
    r->n--;
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
        drop_dominated(r);
        p->search.memory = below;
    }
    p->search.memory = memory;
    graph_fini(&g);
    return err;
}

/* ---- text ---- */

enum { COLUMN_MONEY = 8 }; /* the first of those that are printed for a goal or budget of money only */
static const struct out_column columns[] = {{"#", true, 0},    {"STEP", true, 0},   {"TOK/S", true, 0},
                                            {"MFU", true, 0},  {"MEMORY", true, 0}, {"BUBBLE", true, 3},
                                            {"COMM", true, 2}, {"AGAIN", true, 4},  {"LAYOUT", false, OUT_CUT}};
static const struct out_column money_columns[] = {{"#", true, 0},     {"STEP", true, 1},   {"TOK/S", true, 0},
                                                  {"MFU", true, 3},   {"MEMORY", true, 0}, {"BUBBLE", true, 4},
                                                  {"COMM", true, 2},  {"AGAIN", true, 5},  {"TIME", true, 0},
                                                  {"PRICE", true, 0}, {"TOK/$", true, 0},  {"LAYOUT", false, OUT_CUT}};

static bool is_about_money(const struct planner_args *a)
{
    return a->money.goal || a->money.budget;
}

static void set_money_cells(struct out_table *t, int row, const struct planning *p, const struct plan_found *f)
{
    char a[OUT_NUMBER];
    struct planner_bill bill;
    planner_bill_of(p, f, &bill);
    out_table_set(t, row, COLUMN_MONEY, "%s", out_duration(bill.seconds, a));
    out_table_set(t, row, COLUMN_MONEY + 1, "%s", planner_price_text(bill.price, a));
    out_table_set(t, row, COLUMN_MONEY + 2, "%s", out_count(bill.per_price, a));
}

static void add_row(struct out_table *t, const struct planning *p, int i, const struct ranked *r, bool money)
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
    if (money)
        set_money_cells(t, row, p, r->found);
    out_table_set(t, row, t->n_columns - 1, "%s", planner_layout_text(&r->found->layout, text, sizeof(text)));
}

static void print_table(const struct planning *p, const struct ranking *r, bool money)
{
    struct out_table t;
    if (money)
        out_table_init(&t, money_columns, sizeof(money_columns) / sizeof(money_columns[0]));
    else
        out_table_init(&t, columns, sizeof(columns) / sizeof(columns[0]));
    for (int i = 0; i < r->n; i++)
        add_row(&t, p, i, &r->best[i], money);
    out_table_print(&t, stdout, -1);
    out_table_fini(&t);
}

/* Each row is compared with the next one, and the last with the first. */
static void print_reason(FILE *f, const struct planning *p, const struct ranking *r, bool pareto, int i)
{
    const int other = (i + 1) % r->n;
    planner_reason_print(f, r->best[i].found, other + 1, r->best[other].found, pareto || p->search.goal == PLAN_MEMORY);
}

static void print_reasons(FILE *f, const struct planning *p, const struct ranking *r, bool pareto)
{
    for (int i = 0; i < r->n && r->n > 1; i++) {
        fprintf(f, "%-4d", i + 1);
        print_reason(f, p, r, pareto, i);
        fputc('\n', f);
    }
}

static json_t *reason_json(const struct planning *p, const struct ranking *r, bool pareto, int i)
{
    char *text = NULL;
    size_t len;
    FILE *f = r->n > 1 ? open_memstream(&text, &len) : NULL;
    if (!f)
        return json_null();
    print_reason(f, p, r, pareto, i);
    json_t *value = fclose(f) == 0 ? json_string(text) : NULL;
    free(text);
    return value;
}

/* What the run costs with the first layout. */
static void print_run(FILE *f, const struct planning *p, const struct ranking *r)
{
    char a[OUT_NUMBER], b[OUT_NUMBER], c[OUT_NUMBER];
    struct planner_bill bill;
    if (!(p->tokens > 0))
        return;
    planner_bill_of(p, r->best[0].found, &bill);
    fprintf(f, "With the first, %s tokens take %s with failures and checkpoints", out_count(bill.tokens, a),
            out_duration(bill.seconds, b));
    if (bill.kwh > 0)
        fprintf(f, ", %s", planner_energy_text(bill.kwh, c));
    if (bill.price > 0)
        fprintf(f, ", and cost %s at %s per device and hour: %s tokens/$", planner_price_text(bill.price, a),
                planner_price_text(p->price, b), out_count(bill.per_price, c));
    fprintf(f, "\n");
}

static void print_header(FILE *f, const struct planning *p, const struct job_spec *job,
                         const struct plan_results *results, const struct ranking *r)
{
    char a[OUT_NUMBER], b[OUT_NUMBER];
    fprintf(f, "job %s, %s parameters, %s tokens a step, on %s: %" PRId64 " node%s with %" PRId64 " workers each\n",
            job->name, out_count(plan_shape_params(&p->shape, NULL), a),
            out_count(p->shape.global_batch * p->shape.seq, b), p->machine.name, p->nodes, p->nodes == 1 ? "" : "s",
            p->machine.device.per_node);
    fprintf(f, "%" PRId64 " layouts in %.2f s; %d meshes fit into %s per worker, %d do not\n", results->looked,
            r->seconds, results->n_fit, out_bytes((int64_t)p->search.memory, a), results->n_unfit);
}

static void print_unfit(FILE *f, const struct planning *p, const struct plan_results *results)
{
    char a[OUT_NUMBER], b[OUT_NUMBER], text[256];
    const struct plan_found *found = results->unfit;
    fprintf(f, "Of the meshes that do not fit, this one needs least: %s, which is %s more than there is: %s\n",
            out_bytes((int64_t)found->bytes.total, a), out_bytes((int64_t)(found->bytes.total - p->search.memory), b),
            planner_layout_text(&found->layout, text, sizeof(text)));
}

static void print_notes(FILE *f, const struct planning *p, const struct planner_args *a,
                        const struct plan_results *results, const struct ranking *r)
{
    print_reasons(f, p, r, a->pareto);
    print_run(f, p, r);
    if (results->n_unfit)
        print_unfit(f, p, results);
    if (r->too_large + r->refused)
        fprintf(f, "Left out: %d whose programs need more memory than estimated, %d that dtd does not have%s%s\n",
                r->too_large, r->refused, r->refused ? ", such as: " : "", r->refusal);
    planner_estimates_print(f, &p->machine);
    fprintf(f, "~: memory is an estimate (1 to 3 %%); else it is that of the compiled programs.\n");
}

static void print_text(const struct planning *p, const struct planner_args *a, const struct job_spec *job,
                       const struct plan_results *results, const struct ranking *r)
{
    struct out_page page;
    out_page_begin(&page);
    print_header(page.f, p, job, results, r);
    out_page_end(&page, stdout);
    print_table(p, r, is_about_money(a));
    out_page_begin(&page);
    print_notes(page.f, p, a, results, r);
    out_page_end(&page, stdout);
}

/* The order by time is that by price, so the first row decides. */
static err_t check_budget(const struct planning *p, const struct planner_args *a, const struct ranking *r,
                          struct why *why)
{
    struct planner_choice first = {.nodes = p->nodes};
    if (!a->money.budget)
        return OK;
    planner_bill_of(p, r->best[0].found, &first.bill);
    return planner_budget_pick(&a->money, &first, 1, why) < 0 ? ERR_INVALID : OK;
}

static err_t print_json(struct global *g, const struct planning *p, bool pareto, const struct plan_results *results,
                        const struct ranking *r)
{
    struct planner_bill bill;
    json_t *list = json_array();
    for (int i = 0; i < r->n; i++) {
        json_t *row = planning_found_json(p, r->best[i].found);
        if (r->best[i].exact > 0)
            json_object_set_new(row, "exact_bytes", out_json_real(r->best[i].exact));
        json_object_set_new(row, "reason", reason_json(p, r, pareto, i));
        if (p->tokens > 0) {
            planner_bill_of(p, r->best[i].found, &bill);
            json_object_set_new(row, "run", planner_bill_json(&bill));
        }
        json_array_append_new(list, row);
    }
    return out_json(json_pack("{s:s,s:I,s:I,s:I,s:i,s:i,s:f,s:o}", "machine", p->machine.name, "nodes",
                              (json_int_t)p->nodes, "workers", (json_int_t)p->search.workers, "looked",
                              (json_int_t)results->looked, "fit", results->n_fit, "unfit", results->n_unfit, "memory",
                              p->search.memory, "best", list),
                    g->format == OUT_JSONL);
}

/* ---- no layout ---- */

static err_t nothing_fits(const struct planning *p, const struct job_spec *job, const struct plan_results *results,
                          const struct ranking *r, struct why *why)
{
    char a[OUT_NUMBER], b[OUT_NUMBER], text[256];
    char elsewhere[512];
    if (!results->n_fit && !results->n_unfit) {
        planner_any_text(p, elsewhere, sizeof(elsewhere));
        return why_set(why, ERR_INVALID,
                       "no layout has %" PRId64 " workers: the other axes leave more replicas than train.global_batch "
                       "has samples (%.0f); %s",
                       p->search.workers, p->shape.global_batch, elsewhere);
    }
    if (results->n_fit && r->refused)
        return why_set(why, ERR_INVALID, "dtd has none of the layouts that fit; the last one was refused because: %s",
                       r->refusal);
    if (!results->n_unfit)
        return why_set(why, ERR_INVALID, "none of the layouts that were estimated to fit does: take more nodes");
    const struct plan_found *f = results->unfit;
    planner_elsewhere_text(p, job, elsewhere, sizeof(elsewhere));
    return why_set(
        why, ERR_INVALID,
        "the model does not fit into %s per worker on %" PRId64 " workers; the layout that needs least needs %s "
        "more (%s); %s",
        out_bytes((int64_t)p->search.memory, a), p->search.workers,
        out_bytes((int64_t)(f->bytes.total - p->search.memory), b), planner_layout_text(&f->layout, text, sizeof(text)),
        elsewhere[0] ? elsewhere : "take more nodes, or devices with more memory");
}

static err_t draw(const struct planning *p, const struct planner_args *a, const struct job_spec *job,
                  const struct ranking *r, struct why *why)
{
    struct picture_point list[MAX_TOP];
    for (int i = 0; i < r->n; i++)
        list[i] = (struct picture_point){r->best[i].found,
                                         r->best[i].exact > 0 ? r->best[i].exact : r->best[i].found->bytes.total};
    return planner_picture_pareto(a->picture, p, job, list, r->n, why);
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
        err = nothing_fits(&p, job, &results, &ranking, why);
    if (!err && g->format != OUT_TEXT)
        err = print_json(g, &p, a->pareto, &results, &ranking);
    else if (!err)
        print_text(&p, a, job, &results, &ranking);
    if (!err && a->picture)
        err = draw(&p, a, job, &ranking, why);
    if (!err && a->write)
        err = planner_write_job(a->write, job, &ranking.best[0].found->layout, why);
    if (!err)
        err = check_budget(&p, a, &ranking, why);
    plan_results_fini(&results);
    planning_fini(&p);
    return err;
}
