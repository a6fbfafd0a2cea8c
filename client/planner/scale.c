/* How a job scales: the best layout on each of several numbers of nodes, what a run on them costs, and which of them a
 * goal or a budget prefers. */
#include "client/planner/money.h"
#include "client/planner/picture.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define MAX_BETWEEN 3  /* numbers of nodes between two rows that a budget looks at */
#define MAX_ROWS 32    /* numbers of nodes are doubled, and there are at most 10^6 */
#define USUAL_NODES 64 /* up to which a goal or a budget looks where neither a flag nor the machine limits it */

struct scale_row {
    int64_t nodes, workers;
    bool fits, any;         /* any: there is a layout, if it fits or not */
    struct plan_found best; /* the fastest that fits, or the smallest that does not */
    double missing;         /* bytes */
    struct planner_bill bill;
};

struct scale {
    struct scale_row row[MAX_ROWS];
    int n;
    double first; /* tokens per second and node of the first row that fits */
};

static err_t scale_add(struct planning *p, int64_t nodes, struct scale *ret)
{
    struct plan_results results = {0};
    planning_set_nodes(p, nodes);
    err_t err = plan_search(&p->search, &results);
    if (err)
        return err;
    struct scale_row *row = &ret->row[ret->n++];
    *row = (struct scale_row){.nodes = nodes,
                              .workers = p->search.workers,
                              .fits = results.n_fit > 0,
                              .any = results.n_fit || results.n_unfit};
    if (row->any)
        row->best = row->fits ? results.fit[0] : results.unfit[0];
    row->missing = row->best.bytes.total - p->search.memory;
    if (row->fits && p->tokens > 0)
        planner_bill_of(p, &row->best, &row->bill);
    if (row->fits && ret->first <= 0)
        ret->first = planning_tokens_per_s(p, &row->best.time) / (double)nodes;
    plan_results_fini(&results);
    return OK;
}

static err_t scale_find(struct planning *p, int64_t from, int64_t to, struct scale *ret)
{
    err_t err = OK;
    for (int64_t nodes = from; !err && nodes <= to && ret->n < MAX_ROWS - MAX_BETWEEN; nodes *= 2)
        err = scale_add(p, nodes, ret);
    return err;
}

/* ---- the choice ---- */

static int list_choices(const struct scale *s, struct planner_choice ret[MAX_ROWS])
{
    int n = 0;
    for (int i = 0; i < s->n; i++)
        if (s->row[i].fits)
            ret[n++] = (struct planner_choice){s->row[i].nodes, s->row[i].bill};
    return n;
}

static err_t nothing_fits(struct why *why)
{
    return why_set(why, ERR_INVALID,
                   "no layout fits on these numbers of nodes: --search shows what is missing, and on "
                   "how many nodes one fits");
}

static int by_nodes(const void *a, const void *b)
{
    const int64_t x = ((const struct scale_row *)a)->nodes, y = ((const struct scale_row *)b)->nodes;
    return (x > y) - (x < y);
}

/* A budget may pay for a number of nodes between two powers of two. */
static err_t scale_refine(struct planning *p, const struct planner_money *m, int64_t to, struct scale *s)
{
    struct planner_choice list[MAX_ROWS];
    struct why ignored = {0};
    const int best = planner_budget_pick(m, list, list_choices(s, list), &ignored);
    if (best < 0)
        return OK;
    const int64_t from = list[best].nodes, step = from > MAX_BETWEEN ? from / (MAX_BETWEEN + 1) : 1;
    err_t err = OK;
    for (int64_t nodes = from + step; !err && nodes < 2 * from && nodes <= to && s->n < MAX_ROWS; nodes += step)
        err = scale_add(p, nodes, s);
    qsort(s->row, (size_t)s->n, sizeof(s->row[0]), by_nodes);
    return err;
}

/* ---- text ---- */

enum { SCALE_NODES, SCALE_WORKERS, SCALE_STEP, SCALE_TOKENS, SCALE_MFU, SCALE_EFFICIENCY, SCALE_MEMORY, SCALE_LAYOUT };
static const struct out_column scale_columns[] = {
    [SCALE_NODES] = {"NODES", true, 0},   [SCALE_WORKERS] = {"WORKERS", true, 2},
    [SCALE_STEP] = {"STEP", true, 0},     [SCALE_TOKENS] = {"TOK/S", true, 0},
    [SCALE_MFU] = {"MFU", true, 1},       [SCALE_EFFICIENCY] = {"EFFICIENCY", true, 0},
    [SCALE_MEMORY] = {"MEMORY", true, 0}, [SCALE_LAYOUT] = {"LAYOUT", false, OUT_CUT}};

enum { BILL_NODES, BILL_STEP, BILL_TIME, BILL_PRICE, BILL_TOKENS, BILL_ENERGY, BILL_MEMORY, BILL_LAYOUT, BILL_COLUMNS };
/* With a budget, a column in front of the layout shows whether it suffices. */
#define BILL_START                                                                                              \
    [BILL_NODES] = {"NODES", true, 0}, [BILL_STEP] = {"STEP", true, 2}, [BILL_TIME] = {"TIME", true, 0},        \
    [BILL_PRICE] = {"PRICE", true, 0}, [BILL_TOKENS] = {"TOK/$", true, 0}, [BILL_ENERGY] = {"ENERGY", true, 1}, \
    [BILL_MEMORY] = {"MEMORY", true, 3}
static const struct out_column bill_columns[] = {BILL_START, {"LAYOUT", false, OUT_CUT}};
static const struct out_column budget_columns[] = {BILL_START, {"WITHIN", false, 0}, {"LAYOUT", false, OUT_CUT}};
enum { BILL_WITHIN = BILL_LAYOUT };

static void set_scale_cells(struct out_table *t, int row, const struct planning *p, const struct scale *s,
                            const struct scale_row *r)
{
    char a[OUT_NUMBER];
    const double tokens = planning_tokens_per_s(p, &r->best.time);
    out_table_set(t, row, SCALE_WORKERS, "%" PRId64, r->workers);
    out_table_set(t, row, SCALE_STEP, "%.4g s", r->best.time.seconds);
    out_table_set(t, row, SCALE_TOKENS, "%s", out_count(tokens, a));
    out_table_set(t, row, SCALE_MFU, "%.1f %%", 100 * planning_mfu(p, &r->best.time));
    out_table_set(t, row, SCALE_EFFICIENCY, "%.0f %%", 100 * tokens / (double)r->nodes / s->first);
    out_table_set(t, row, SCALE_MEMORY, "~%s", out_bytes((int64_t)r->best.bytes.total, a));
}

static void set_bill_cells(struct out_table *t, int row, const struct planner_money *m, const struct scale_row *r)
{
    char a[OUT_NUMBER];
    out_table_set(t, row, BILL_STEP, "%.4g s", r->best.time.seconds);
    out_table_set(t, row, BILL_TIME, "%s", out_duration(r->bill.seconds, a));
    out_table_set(t, row, BILL_PRICE, "%s", planner_price_text(r->bill.price, a));
    out_table_set(t, row, BILL_TOKENS, "%s", out_count(r->bill.per_price, a));
    out_table_set(t, row, BILL_ENERGY, "%s", planner_energy_text(r->bill.kwh, a));
    if (m->budget) {
        const bool holds = planner_budget_holds(m, &r->bill);
        out_table_set(t, row, BILL_WITHIN, "%s", holds ? "yes" : "no");
        t->row_color[row] = holds ? OUT_GREEN : OUT_RED;
    }
    out_table_set(t, row, BILL_MEMORY, "~%s", out_bytes((int64_t)r->best.bytes.total, a));
}

static void print_table(const struct planning *p, const struct planner_args *a, const struct scale *s, bool bills)
{
    char text[256], number[OUT_NUMBER];
    struct out_table t;
    if (a->money.budget)
        out_table_init(&t, budget_columns, BILL_COLUMNS + 1);
    else
        out_table_init(&t, bills ? bill_columns : scale_columns, bills ? BILL_COLUMNS : SCALE_LAYOUT + 1);
    const int last = t.n_columns - 1;
    for (int i = 0; i < s->n; i++) {
        const struct scale_row *r = &s->row[i];
        const int row = out_table_row(&t);
        out_table_set(&t, row, 0, "%" PRId64, r->nodes);
        if (r->fits && bills)
            set_bill_cells(&t, row, &a->money, r);
        else if (r->fits)
            set_scale_cells(&t, row, p, s, r);
        if (r->fits)
            out_table_set(&t, row, last, "%s", planner_layout_text(&r->best.layout, text, sizeof(text)));
        else if (r->any)
            out_table_set(&t, row, last, "does not fit: needs %s more", out_bytes((int64_t)r->missing, number));
        else
            out_table_set(&t, row, last, "no layout: the batch has fewer samples than there are replicas");
    }
    out_table_print(&t, stdout, a->money.budget ? BILL_WITHIN : -1);
    out_table_fini(&t);
}

static void print_choice(FILE *f, const char *what, const struct planner_choice *c)
{
    char a[OUT_NUMBER], b[OUT_NUMBER], d[OUT_NUMBER];
    fprintf(f, "%s: %" PRId64 " node%s, %s for %s, %s tokens/$", what, c->nodes, c->nodes == 1 ? "" : "s",
            out_duration(c->bill.seconds, a), planner_price_text(c->bill.price, b), out_count(c->bill.per_price, d));
}

static int cheapest_of(const struct planner_choice *list, int n)
{
    int cheap = 0;
    for (int i = 1; i < n; i++)
        cheap = list[i].bill.price < list[cheap].bill.price ? i : cheap;
    return cheap;
}

/* The cheapest number of nodes is also that with most tokens for the money, since all of them train the same run. */
static void print_cheapest(FILE *f, const struct planner_choice *list, int n, const char *what)
{
    const int cheap = cheapest_of(list, n);
    int fast = 0;
    char a[OUT_NUMBER];
    for (int i = 1; i < n; i++)
        fast = list[i].bill.seconds < list[fast].bill.seconds ? i : fast;
    print_choice(f, what, &list[cheap]);
    if (fast != cheap)
        fprintf(f, "; %" PRId64 " nodes finish in %s for %.0f %% more", list[fast].nodes,
                out_duration(list[fast].bill.seconds, a), 100 * (list[fast].bill.price / list[cheap].bill.price - 1));
    fprintf(f, "\n");
}

static err_t print_choices(FILE *f, const struct planning *p, const struct planner_args *a, const struct scale *s,
                           struct why *why)
{
    char number[OUT_NUMBER], price[OUT_NUMBER];
    struct planner_choice list[MAX_ROWS];
    const int n = list_choices(s, list);
    if (!n)
        return nothing_fits(why);
    fprintf(f, "A run of %s tokens at %s per device and hour, with failures and checkpoints:\n",
            out_count(p->tokens, number), planner_price_text(p->price, price));
    if (a->money.goal || !a->money.budget)
        print_cheapest(f, list, n, a->money.goal == MONEY_TOKENS ? "Most tokens for the money" : "Cheapest");
    if (!a->money.budget)
        return OK;
    const int best = planner_budget_pick(&a->money, list, n, why);
    if (best < 0)
        return ERR_INVALID;
    print_choice(f, "Fastest within the budget", &list[best]);
    fprintf(f, "; %s is left\n", planner_price_text(a->money.budget - list[best].bill.price, price));
    return OK;
}

/* ---- JSON ---- */

static err_t print_json(struct global *g, const struct planning *p, const struct planner_args *a, const struct scale *s,
                        struct why *why)
{
    struct planner_choice list[MAX_ROWS];
    json_t *rows = json_array();
    for (int i = 0; i < s->n; i++) {
        const struct scale_row *r = &s->row[i];
        if (!r->fits)
            continue;
        json_t *row = planning_found_json(p, &r->best);
        json_object_set_new(row, "nodes", json_integer(r->nodes));
        if (p->tokens > 0)
            json_object_set_new(row, "run", planner_bill_json(&r->bill));
        if (a->money.budget)
            json_object_set_new(row, "within_budget", json_boolean(planner_budget_holds(&a->money, &r->bill)));
        json_array_append_new(rows, row);
    }
    const int n = list_choices(s, list);
    err_t err = out_json(rows, g->format == OUT_JSONL);
    if (!err && !n && (a->money.goal || a->money.budget))
        err = nothing_fits(why);
    else if (!err && a->money.budget && planner_budget_pick(&a->money, list, n, why) < 0)
        err = ERR_INVALID;
    return err;
}

/* A goal or a budget without --nodes looks at all nodes that the machine has. */
static int64_t last_node(const struct planning *p, const struct planner_args *a)
{
    if (a->nodes_from)
        return a->nodes_to ? a->nodes_to : a->nodes_from;
    return p->machine.nodes ? p->machine.nodes : p->machine.network.bandwidth_gb > 0 ? USUAL_NODES : 1;
}

static err_t print_text(const struct planning *p, const struct planner_args *a, const struct scale *s, struct why *why)
{
    const bool bills = a->money.goal || a->money.budget;
    struct out_page page;
    err_t err = OK;
    print_table(p, a, s, bills);
    out_page_begin(&page);
    fprintf(page.f, "Times are estimates; rates: %s\n", p->machine.source);
    if (bills)
        err = print_choices(page.f, p, a, s, why);
    out_page_end(&page, stdout);
    return err;
}

/* Writes the layout that the budget or the goal prefers. */
static err_t write_choice(const struct planner_args *a, const struct job_spec *job, const struct scale *s,
                          struct why *why)
{
    struct planner_choice list[MAX_ROWS];
    const int n = list_choices(s, list);
    if (!n)
        return nothing_fits(why);
    const int best = a->money.budget ? planner_budget_pick(&a->money, list, n, why) : cheapest_of(list, n);
    for (int i = 0; best >= 0 && i < s->n; i++)
        if (s->row[i].nodes == list[best].nodes)
            return planner_write_job(a->write, job, &s->row[i].best.layout, why);
    return ERR_INVALID;
}

static err_t draw(const struct planning *p, const struct planner_args *a, const struct job_spec *job,
                  const struct scale *s, struct why *why)
{
    struct picture_nodes list[MAX_ROWS];
    int n = 0;
    for (int i = 0; i < s->n; i++)
        if (s->row[i].fits)
            list[n++] = (struct picture_nodes){s->row[i].nodes, planning_tokens_per_s(p, &s->row[i].best.time)};
    if (!n)
        return nothing_fits(why);
    return planner_picture_nodes(a->picture, p, job, list, n, why);
}

err_t planner_scale(struct global *g, const struct planner_args *a, struct job_spec *job, struct why *why)
{
    struct planning p;
    struct scale s = {0};
    err_t err = planning_init(&p, a, job, why);
    if (err)
        return err;
    const int64_t to = last_node(&p, a);
    err = scale_find(&p, a->nodes_from ? a->nodes_from : 1, to, &s);
    if (!err && a->money.budget)
        err = scale_refine(&p, &a->money, to, &s);
    if (!err && a->picture)
        err = draw(&p, a, job, &s, why);
    if (!err && g->format != OUT_TEXT)
        err = print_json(g, &p, a, &s, why);
    else if (!err)
        err = print_text(&p, a, &s, why);
    if (!err && a->write)
        err = write_choice(a, job, &s, why);
    planning_fini(&p);
    return err;
}
