#include "client/report/sections.h"

#include "client/field_text.h"
#include "client/out.h"
#include "client/report/advice.h"
#include "client/report/series.h"
#include "client/report/step_section.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define SPAN_ROWS 40  /* of the picture of incidents, which has to fit on a page */
#define TABLE_ROWS 60 /* of checkpoints or incidents: the newest ones, on at most two pages */

static const enum ink part_inks[LEDGER_COUNT] = {
    [LEDGER_PRODUCTIVE] = INK_GOOD, [LEDGER_WAITING] = INK_5,   [LEDGER_EVALUATION] = INK_9,
    [LEDGER_RECOMPUTED] = INK_BAD,  [LEDGER_SKIPPED] = INK_8,   [LEDGER_STARTING] = INK_1,
    [LEDGER_STALL] = INK_2,         [LEDGER_DETECTION] = INK_4, [LEDGER_RESTART] = INK_7,
    [LEDGER_ENDING] = INK_6,        [LEDGER_OTHER] = INK_LINE};

static double hours(int64_t ms)
{
    return (double)ms / 3600e3;
}

/* "1.25 GPU-hours", "12 worker-seconds" */
static const char *work_text(const struct report *r, int64_t ms, char ret[OUT_NUMBER])
{
    const bool long_job = r->ledger.total_ms >= 3600000;
    snprintf(ret, OUT_NUMBER, "%.*f", long_job ? 3 : 1, long_job ? hours(ms) : (double)ms * 1e-3);
    return ret;
}

static const char *work_unit(const struct report *r, char ret[OUT_NUMBER])
{
    snprintf(ret, OUT_NUMBER, "%s-%s", report_unit(r), r->ledger.total_ms >= 3600000 ? "hours" : "seconds");
    return ret;
}

static const char *share_text(int64_t part, int64_t all, char ret[OUT_NUMBER])
{
    snprintf(ret, OUT_NUMBER, "%.1f %%", all ? 100.0 * (double)part / (double)all : 0.0);
    return ret;
}

/* ---- the job ---- */

static const char *const item_titles[] = {"item", "value"};
static const bool item_right[] = {false, false};

static void item(struct doc *d, const char *name, const char *value)
{
    if (!value || !value[0])
        return;
    doc_cell(d, "%s", name);
    doc_cell(d, "%s", value);
}

/* The distinct nodes of the workers: "a, b and 3 more" */
static int nodes_text(const struct report *r, char *ret, size_t size)
{
    int n = 0, shown = 0;
    size_t len = 0;
    ret[0] = 0;
    for (int i = 0; i < r->job->n_worker; i++) {
        const char *node = r->job->worker[i].node;
        bool again = !node || !node[0];
        for (int k = 0; k < i && !again; k++)
            again = r->job->worker[k].node && strcmp(node, r->job->worker[k].node) == 0;
        n += !again;
        if (again || len + strlen(node) + 24 > size)
            continue;
        len += (size_t)snprintf(ret + len, size - len, "%s%s", shown ? ", " : "", node);
        shown++;
    }
    if (shown < n)
        snprintf(ret + len, size - len, " and %d more", n - shown);
    return n;
}

static void layout_text(const struct report *r, char *ret, size_t size)
{
    const struct job_parallel *p = &r->spec.parallel;
    snprintf(ret, size,
             "tp %" PRId64 ", pp %" PRId64 ", cp %" PRId64 ", fsdp %" PRId64 ", ep %" PRId64 ", zero %" PRId64, p->tp,
             p->pp, p->cp, p->fsdp, p->ep, p->zero);
}

static void job_table(const struct report *r, struct doc *d)
{
    const struct client_job *j = r->job;
    char text[512], a[OUT_NUMBER], b[OUT_NUMBER];
    doc_table(d, "", 2, item_titles, item_right);
    snprintf(text, sizeof(text), "%s%s%s", j->state, j->reason[0] ? ": " : "", j->reason);
    item(d, "State", text);
    snprintf(text, sizeof(text), "%" PRId64 " of %" PRId64, j->step, j->steps);
    if (j->steps > 0)
        item(d, "Step", text);
    snprintf(text, sizeof(text), "%d%s%s", report_workers(r), r->gpus ? " on GPUs" : "",
             report_workers(r) < j->max_workers ? " (fewer than the job file wants)" : "");
    item(d, "Workers", text);
    nodes_text(r, text, sizeof(text));
    item(d, "Nodes", text);
    item(d, "User", j->user);
    item(d, "Submitted", out_time(j->submitted_ms, a));
    item(d, "Started", j->started_ms ? out_time(j->started_ms, a) : "");
    item(d, r->ended ? "Ended" : "Report of", out_time(r->end_ms, a));
    snprintf(text, sizeof(text), "%s, after %s in the queue", out_duration((double)r->ledger.wall_ms * 1e-3, a),
             out_duration((double)r->ledger.queued_ms * 1e-3, b));
    item(d, "Ran for", text);
    if (r->has_spec && !job_is_command(&r->spec)) {
        layout_text(r, text, sizeof(text));
        item(d, "Layout", text);
        item(d, "Chosen by dtd", j->layout_why);
        snprintf(text, sizeof(text), "%s parameters, sequence %" PRId64 ", global batch %" PRId64,
                 r->plan.made ? out_count((double)r->plan.facts.params, a) : "?", r->spec.train.seq,
                 r->spec.train.global_batch);
        item(d, "Model", text);
    }
    item(d, "Checkpoints", j->checkpoint_dir);
    item(d, "Failed save", j->checkpoint_error);
    item(d, "Continues job", j->parent);
    snprintf(text, sizeof(text), "%d, with %d restart%s", j->n_incident, j->restarts, j->restarts == 1 ? "" : "s");
    item(d, "Incidents", text);
}

/* ---- the ledger ---- */

static char *copy_format(struct doc *d, const char *a, const char *b)
{
    char *ret = NULL;
    if (asprintf(&ret, "%s%s", a, b) < 0) {
        d->err = ERR_NOMEM;
        return NULL;
    }
    return ret;
}

static struct plot *ledger_plot(const struct report *r, struct doc *d)
{
    struct plot *p = plot_new(PLOT_STACK, "Where the time of the workers went", "");
    char a[OUT_NUMBER];
    if (!p || !(p->part = calloc(LEDGER_COUNT, sizeof(*p->part)))) {
        plot_free(p);
        return NULL;
    }
    for (int i = 0; i < LEDGER_COUNT; i++) {
        if (!r->ledger.part_ms[i])
            continue;
        struct plot_part *part = &p->part[p->n_parts++];
        *part = (struct plot_part){.label = copy_format(d, ledger_rows[i].label, ""),
                                   .value_text =
                                       copy_format(d, share_text(r->ledger.part_ms[i], r->ledger.total_ms, a), ""),
                                   .ink = part_inks[i],
                                   .value = (double)r->ledger.part_ms[i]};
        if (!part->label || !part->value_text) {
            plot_free(p);
            return NULL;
        }
    }
    return p;
}

static void ledger_section(const struct report *r, struct doc *d)
{
    static const bool right[] = {false, true, true, false};
    char unit[OUT_NUMBER], a[OUT_NUMBER], b[OUT_NUMBER];
    const char *titles[] = {"part", work_unit(r, unit), "share", "meaning"};
    const struct ledger *l = &r->ledger;
    if (!l->total_ms) {
        doc_text(d, "The job has had no workers: it was in the queue for %s.",
                 out_duration((double)l->queued_ms * 1e-3, a));
        return;
    }
    doc_plot(d, ledger_plot(r, d));
    doc_table(d, "", 4, titles, right);
    for (int i = 0; i < LEDGER_COUNT; i++) {
        if (!l->part_ms[i])
            continue;
        doc_cell(d, "%s", ledger_rows[i].label);
        doc_cell(d, "%s", work_text(r, l->part_ms[i], a));
        doc_cell(d, "%s", share_text(l->part_ms[i], l->total_ms, b));
        doc_cell(d, "%s", ledger_rows[i].meaning);
    }
    doc_cell(d, "Total");
    doc_cell(d, "%s", work_text(r, l->total_ms, a));
    doc_cell(d, "100.0 %%");
    doc_cell(d, "every worker from its slots to the end; the queue (%s) is not in it",
             out_duration((double)l->queued_ms * 1e-3, b));
}

/* ---- numbers ---- */

static void number_row(struct doc *d, const char *name, const char *unit, double low, double mean, double high)
{
    char text[PLOT_NUMBER];
    doc_cell(d, "%s", name);
    doc_cell(d, "%s", plot_number(low, text));
    doc_cell(d, "%s", plot_number(mean, text));
    doc_cell(d, "%s", plot_number(high, text));
    doc_cell(d, "%s", unit);
}

static const struct {
    const char *field, *name, *unit;
    double factor;
} metric_numbers[] = {{"loss", "Loss", "", 1},
                      {"valid_loss", "Validation loss", "", 1},
                      {"grad_norm", "Gradient norm", "", 1},
                      {"step_s", "Time of a step", "s", 1},
                      {"tokens_per_s", "Tokens per second", "", 1},
                      {"mfu", "Model FLOP utilisation", "%", 100}};

static void metric_number(const struct report *r, struct doc *d, int i)
{
    const struct field *f = field_find(&metric_fields, metric_numbers[i].field);
    double low = INFINITY, high = -INFINITY, sum = 0;
    size_t n = 0;
    for (size_t k = 0; f && k < r->in.n_rows; k++) {
        const double v = field_get(f, &r->in.row[k]).real;
        if (!isfinite(v))
            continue;
        low = fmin(low, v);
        high = fmax(high, v);
        sum += v;
        n++;
    }
    const double factor = metric_numbers[i].factor;
    if (n)
        number_row(d, metric_numbers[i].name, metric_numbers[i].unit, low * factor, sum / (double)n * factor,
                   high * factor);
}

static void usage_number(const struct report *r, struct doc *d, const struct usage_shown *c)
{
    const double mean = usage_mean(&r->usage, c->field, -1);
    if (isfinite(mean))
        number_row(d, c->title, c->unit, usage_least(&r->usage, c->field) * c->factor, mean * c->factor,
                   usage_most(&r->usage, c->field) * c->factor);
}

static void numbers_table(const struct report *r, struct doc *d)
{
    static const char *const titles[] = {"number", "min", "avg", "max", "unit"};
    static const bool right[] = {false, true, true, true, false};
    if (!r->in.n_rows) {
        doc_text(d, "No step is complete yet, so there are no numbers of steps.");
        return;
    }
    doc_table(d, "Numbers over all steps and ranks", 5, titles, right);
    for (size_t i = 0; i < sizeof(metric_numbers) / sizeof(metric_numbers[0]); i++)
        metric_number(r, d, (int)i);
    for (int i = 0; i < n_usage_shown; i++)
        usage_number(r, d, &usage_shown[i]);
}

/* ---- advice ---- */

static void advice_section(const struct report *r, struct doc *d)
{
    char text[ADVICE_TEXT];
    int n = 0;
    doc_page(d);
    doc_heading(d, "Advice");
    for (int i = 0; i < n_advice_rules; i++)
        if (advice_rules[i].applies(r, text)) {
            doc_item(d, advice_rules[i].title, text);
            n++;
        }
    if (n == 0)
        doc_text(d, "None of the %d rules of this report finds anything to change.", n_advice_rules);
}

/* ---- curves ---- */

static const struct {
    const char *title, *unit;
    struct {
        const char *field, *label;
        enum ink ink;
        bool band;
    } curve[3];
} pictures[] = {
    {"Loss",
     "",
     {{"loss", "training", INK_1, true},
      {"valid_loss", "validation", INK_2, false},
      {"test_loss", "test", INK_3, false}}},
    {"Gradient norm", "", {{"grad_norm", "norm before clipping", INK_1, true}}},
    {"Learning rate", "", {{"lr", "learning rate", INK_1, false}}},
    {"Tokens per second", "", {{"tokens_per_s", "of all workers", INK_1, true}}},
    {"Model FLOP utilisation", "share of the peak", {{"mfu", "utilisation", INK_1, true}}},
    {"Time of a step", "s", {{"step_s", "step", INK_1, true}}},
};

static void curve_plot(const struct report *r, struct doc *d, int i)
{
    struct plot *p = plot_new(PLOT_CURVES, pictures[i].title, pictures[i].unit);
    bool ok = p != NULL;
    for (int k = 0; k < 3 && pictures[i].curve[k].field && ok; k++)
        ok = series_metric(r, pictures[i].curve[k].field, pictures[i].curve[k].label, pictures[i].curve[k].ink,
                           pictures[i].curve[k].band, p);
    ok = ok && series_marks(r, p);
    if (ok && p->n_curves == 0) {
        plot_free(p);
        return;
    }
    if (!ok) {
        plot_free(p);
        p = NULL;
    }
    doc_plot(d, p);
}

static void training_section(const struct report *r, struct doc *d)
{
    doc_page(d);
    doc_heading(d, "Training");
    if (!r->in.n_rows) {
        doc_text(d, "No step is complete yet: there are no curves.");
        return;
    }
    if (r->in.row[r->in.n_rows - 1].step - r->in.row[0].step >= SERIES_BINS)
        doc_text(d,
                 "Each point is the mean of the steps at its place; a band goes from the least to the most of them.");
    for (size_t i = 0; i < sizeof(pictures) / sizeof(pictures[0]); i++)
        curve_plot(r, d, (int)i);
}

/* ---- utilisation ---- */

/* A part of the step that is never a thousandth of it. */
static bool is_negligible(const struct report *r, enum usage_field field)
{
    const bool part = field == USAGE_data_s || field == USAGE_save_s || field == USAGE_comm_s;
    return part && usage_most(&r->usage, field) < 1e-3 * usage_mean(&r->usage, USAGE_step_s, -1);
}

static void grid_plot(const struct report *r, struct doc *d, const struct usage_shown *c)
{
    struct plot *p;
    bool any = false;
    if (!isfinite(usage_mean(&r->usage, c->field, -1)) || is_negligible(r, c->field))
        return;
    p = plot_new(PLOT_GRID, c->title, c->unit);
    if (p && !series_grid(r, c->field, p, &any)) {
        plot_free(p);
        p = NULL;
    }
    if (p && !any) { /* nothing but zeros */
        plot_free(p);
        return;
    }
    doc_plot(d, p);
}

/* ---- nodes ---- */

static const struct {
    enum usage_field column;
    const char *title;
} node_columns[] = {{USAGE_compute_s, "kernels s"},         {USAGE_cpu, "cores"},
                    {USAGE_rss_bytes, "memory GiB"},        {USAGE_gpu_util, "GPU %"},
                    {USAGE_gpu_bytes, "GPU GiB"},           {USAGE_gpu_celsius, "GPU °C"},
                    {USAGE_read_bytes_per_s, "read MiB/s"}, {USAGE_write_bytes_per_s, "write MiB/s"}};
#define NODE_COLUMNS (sizeof(node_columns) / sizeof(node_columns[0]))
#define NODE_RANKS_MAX 4096 /* each is compared with all: more would take seconds, for a table too long to read */
#define NODES_MAX 256       /* rows; `dtctl metrics --ranks` has all */

/* Whether an earlier rank is on the same node. */
static bool node_again(const struct usage_samples *u, int rank)
{
    for (int k = 0; k < rank; k++)
        if (strcmp(u->node[k], u->node[rank]) == 0)
            return true;
    return false;
}

static void node_cell(const struct report *r, struct doc *d, int first, enum usage_field column)
{
    double sum = 0;
    char text[PLOT_NUMBER];
    int n = 0;
    for (int k = first; k < r->usage.ranks; k++) {
        const double v = usage_mean(&r->usage, column, k);
        if (strcmp(r->usage.node[k], r->usage.node[first]) != 0 || !isfinite(v))
            continue;
        sum += v;
        n++;
    }
    doc_cell(d, "%s", n ? plot_number(sum / n * usage_shown_of(column)->factor, text) : "-");
}

/* The mean over time and over the ranks of each node. */
static void node_table(const struct report *r, struct doc *d)
{
    static const bool right[] = {false, true, true, true, true, true, true, true, true, true};
    const char *titles[NODE_COLUMNS + 2] = {"node", "ranks"};
    bool used[NODE_COLUMNS];
    int columns = 2, rows = 0;
    if (r->usage.ranks > NODE_RANKS_MAX)
        return;
    for (size_t i = 0; i < NODE_COLUMNS; i++) {
        used[i] = isfinite(usage_mean(&r->usage, node_columns[i].column, -1));
        if (used[i])
            titles[columns++] = node_columns[i].title;
    }
    doc_table(d, "Mean of the ranks of each node", columns, titles, right);
    for (int first = 0; first < r->usage.ranks && rows < NODES_MAX; first++) {
        int ranks = 0;
        if (node_again(&r->usage, first))
            continue;
        for (int k = first; k < r->usage.ranks; k++)
            ranks += strcmp(r->usage.node[k], r->usage.node[first]) == 0;
        doc_cell(d, "%s", r->usage.node[first][0] ? r->usage.node[first] : "unknown");
        doc_cell(d, "%d", ranks);
        for (size_t i = 0; i < NODE_COLUMNS; i++)
            if (used[i])
                node_cell(r, d, first, node_columns[i].column);
        rows++;
    }
}

/* Ranks that are slow now, of a job that runs. */
static void straggler_table(const struct report *r, struct doc *d)
{
    static const char *const titles[] = {"rank", "node", "over the median", "since", "finding"};
    static const bool right[] = {true, false, true, false, false};
    char text[OUT_NUMBER];
    if (!r->job->n_straggler)
        return;
    doc_table(d, "Slow ranks", 5, titles, right);
    for (int i = 0; i < r->job->n_straggler; i++) {
        const struct client_straggler *s = &r->job->straggler[i];
        doc_cell(d, "%d", s->rank);
        doc_cell(d, "%s", s->node);
        doc_cell(d, "%.2f", s->ratio);
        doc_cell(d, "%s", out_time(s->since_ms, text));
        doc_cell(d, "%s", s->text);
    }
}

static void usage_section(const struct report *r, struct doc *d)
{
    doc_page(d);
    doc_heading(d, "Utilisation");
    if (!r->usage.n) {
        doc_text(d, "There are no samples of what each rank used.");
        return;
    }
    doc_text(d,
             "For each quantity: the mean of all ranks over time with a band from the least to the most; below it each "
             "rank over time; right of it the mean of each rank. Values that are missing are grey.");
    for (int i = 0; i < n_usage_shown; i++)
        grid_plot(r, d, &usage_shown[i]);
    node_table(r, d);
    straggler_table(r, d);
}

/* ---- the plan ---- */

static void plan_row(struct doc *d, const char *name, const char *unit, double factor, double forecast, double measured)
{
    char text[PLOT_NUMBER];
    doc_cell(d, "%s", name);
    doc_cell(d, "%s", plot_number(forecast * factor, text));
    doc_cell(d, "%s", plot_number(measured * factor, text));
    doc_cell(d, "%s", unit);
}

static double mean_of(const struct report *r, const char *field)
{
    const struct field *f = field_find(&metric_fields, field);
    double sum = 0;
    size_t n = 0;
    for (size_t i = 0; f && i < r->in.n_rows; i++) {
        const double v = field_get(f, &r->in.row[i]).real;
        sum += isfinite(v) ? v : 0;
        n += isfinite(v);
    }
    return n ? sum / (double)n : NAN;
}

static void traffic_rows(const struct report *r, struct doc *d)
{
    char name[MESH_AXES_NAME];
    const struct traffic *t = r->in.n_rows ? &r->in.row[r->in.n_rows - 1].traffic : NULL;
    for (unsigned axes = 1; axes < FORECAST_AXES; axes++) {
        double measured = NAN;
        for (int i = 0; t && i < t->n; i++)
            measured = t->axes[i] == axes ? (double)t->bytes[i] : measured;
        if (!r->plan.facts.forecast.bytes[axes])
            continue;
        char label[MESH_AXES_NAME + 32];
        snprintf(label, sizeof(label), "Traffic over %s", mesh_axes_name(axes, name));
        plan_row(d, label, "MiB", 1.0 / (1 << 20), (double)r->plan.facts.forecast.bytes[axes], measured);
    }
}

static void plan_section(const struct report *r, struct doc *d)
{
    static const char *const titles[] = {"of one step", "forecast", "measured", "unit"};
    static const bool right[] = {false, true, true, false};
    const struct forecast *f = &r->plan.facts.forecast, *m = &r->measured.did;
    const bool has = f->n > 0, did = m->n > 0;
    doc_heading(d, "Bubble and communication");
    if (!r->plan.made && r->plan.missing[0])
        doc_text(d, "%s", r->plan.missing);
    if (r->plan.made && !has)
        doc_text(d, "The plan is too large for a forecast here.");
    if (!has && !did)
        return;
    if (did)
        doc_text(d, "Measured: step %" PRId64 " of epoch %" PRIu64 " (run.timeline_step).", r->measured.step,
                 r->measured.epoch);
    else
        doc_text(
            d, "No step was timed; with run.timeline_step the bubble and the exposed communication are measured, too.");
    doc_table(d, "", 4, titles, right);
    plan_row(d, "Time", "s", 1, has ? f->seconds : NAN, did ? m->seconds : mean_of(r, "step_s"));
    plan_row(d, "Bubble", "%", 100, has ? f->bubble : NAN, did ? m->bubble : NAN);
    plan_row(d, "Exposed communication", "%", 100, has ? f->exposed : NAN, did ? m->exposed : NAN);
    if (has)
        traffic_rows(r, d);
}

/* ---- checkpoints ---- */

/* When the step of a checkpoint was complete; 0: unknown. */
static int64_t step_wall(const struct report *r, int64_t step)
{
    size_t low = 0, high = r->in.n_rows;
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        if (r->in.row[mid].step < step)
            low = mid + 1;
        else
            high = mid;
    }
    return low < r->in.n_rows && r->in.row[low].step == step ? r->in.row[low].wall_ms : 0;
}

static int by_step(const void *a, const void *b)
{
    const struct client_checkpoint *x = *(const struct client_checkpoint *const *)a,
                                   *y = *(const struct client_checkpoint *const *)b;
    return x->step < y->step ? -1 : x->step > y->step;
}

static void checkpoint_rows(const struct report *r, struct doc *d, const struct client_checkpoint **sorted)
{
    const int n = r->in.n_checkpoints, from = n > TABLE_ROWS ? n - TABLE_ROWS : 0;
    char text[OUT_NUMBER];
    for (int i = from; i < n; i++) {
        const int64_t wall = step_wall(r, sorted[i]->step), took = sorted[i]->committed_ms - wall;
        doc_cell(d, "%" PRId64, sorted[i]->step);
        doc_cell(d, "%s", out_time(sorted[i]->committed_ms, text));
        doc_cell(d, "%s", out_bytes(sorted[i]->bytes, text));
        if (wall && took >= 0)
            doc_cell(d, "%.2f s", (double)took * 1e-3);
        else
            doc_cell(d, "-");
        doc_cell(d, "%s", out_real(sorted[i]->loss, 5, text));
    }
}

static void checkpoint_section(const struct report *r, struct doc *d)
{
    static const char *const titles[] = {"step", "committed", "size", "after the step", "loss"};
    static const bool right[] = {true, false, true, true, true};
    const int n = r->in.n_checkpoints;
    const struct client_checkpoint **sorted = calloc((size_t)n + 1, sizeof(*sorted));
    doc_heading(d, "Checkpoints");
    if (!sorted) {
        d->err = ERR_NOMEM;
        return;
    }
    for (int i = 0; i < n; i++)
        sorted[i] = &r->in.checkpoint[i];
    qsort(sorted, (size_t)n, sizeof(*sorted), by_step);
    if (r->ledger.saves)
        doc_text(d, "Training waited %.3f s for %" PRId64 " saves.", (double)r->ledger.stall_ms * 1e-3,
                 r->ledger.saves);
    if (n == 0)
        doc_text(d, "There is no checkpoint.");
    else
        doc_text(d, "%d checkpoint%s kept%s.", n, n == 1 ? " is" : "s are",
                 n > TABLE_ROWS ? "; the newest ones follow" : "");
    if (n) {
        doc_table(d, "", 5, titles, right);
        checkpoint_rows(r, d, sorted);
    }
    free(sorted);
}

/* ---- incidents ---- */

static const struct {
    const char *field, *meaning;
    enum ink ink;
} incident_parts[] = {{"detect_ms", "detection", INK_4},
                      {"restart_ms", "restart", INK_7},
                      {"load_ms", "loading", INK_1},
                      {"step_ms", "first step", INK_GOOD}};

static bool spans_of(const struct incident *in, int row, struct plot *p)
{
    double at = 0;
    for (size_t i = 0; i < sizeof(incident_parts) / sizeof(incident_parts[0]); i++) {
        const double s = field_get(field_find(&incident_fields, incident_parts[i].field), in).real * 1e-3;
        if (!(s > 0))
            continue;
        struct plot_span *more = realloc(p->span, (size_t)(p->n_spans + 1) * sizeof(*more));
        if (!more)
            return false;
        p->span = more;
        p->span[p->n_spans++] = (struct plot_span){row, at, at + s, incident_parts[i].ink, incident_parts[i].meaning};
        at += s;
    }
    p->x1 = fmax(p->x1, at);
    return true;
}

static struct plot *incidents_plot(const struct report *r, int from)
{
    struct plot *p = plot_new(PLOT_SPANS, "Recovery from each incident", "");
    const int n = r->job->n_incident - from;
    bool ok = p && (p->row_label = calloc((size_t)n + 1, sizeof(char *)));
    for (int i = 0; ok && i < n; i++) {
        ok = spans_of(&r->job->incident[from + i], i, p);
        if (asprintf(&p->row_label[i], "incident %d", from + i + 1) < 0) {
            p->row_label[i] = NULL;
            ok = false;
        }
        p->n_rows = i + 1;
    }
    if (ok) {
        p->time = true;
        p->x1 = p->x1 > 0 ? p->x1 : 1;
        return p;
    }
    plot_free(p);
    return NULL;
}

static void incident_rows(const struct report *r, struct doc *d, int from)
{
    char text[OUT_NUMBER];
    for (int i = from; i < r->job->n_incident; i++) {
        const struct incident *in = &r->job->incident[i];
        doc_cell(d, "%d", i + 1);
        doc_cell(d, "%s", out_time(in->wall_ms, text));
        doc_cell(d, "%s", isnan(in->detect_ms) ? "-" : out_real(in->detect_ms * 1e-3, 3, text));
        doc_cell(d, "%s", isnan(in->recover_ms) ? "-" : out_real(in->recover_ms * 1e-3, 3, text));
        doc_cell(d, in->lost_steps < 0 ? "-" : "%" PRId64, in->lost_steps);
        doc_cell(d, "%s", in->seen ? in->seen : "");
        doc_cell(d, "%s", in->decided ? in->decided : "");
    }
}

static void incident_section(const struct report *r, struct doc *d)
{
    static const char *const titles[] = {"no.", "when", "detection s", "recovery s", "lost steps", "seen", "decided"};
    static const bool right[] = {true, false, true, true, true, false, false};
    const int n = r->job->n_incident, from = n > TABLE_ROWS ? n - TABLE_ROWS : 0;
    doc_heading(d, "Incidents");
    if (n == 0) {
        doc_text(d, "The job had no incident.");
        return;
    }
    if (from)
        doc_text(d, "The newest %d of %d incidents follow; dtctl why %s shows all.", n - from, n, r->job->job);
    struct plot *p = incidents_plot(r, n > SPAN_ROWS ? n - SPAN_ROWS : 0);
    if (p && p->n_spans == 0)
        plot_free(p);
    else
        doc_plot(d, p);
    doc_table(d, "", 7, titles, right);
    incident_rows(r, d, from);
}

/* ---- all of it ---- */

void report_document(const struct report *r, struct doc *d)
{
    const struct client_job *j = r->job;
    char title[256], header[512], nodes[128];
    const int n = nodes_text(r, nodes, sizeof(nodes));
    snprintf(title, sizeof(title), "Job %s: %s", j->job, j->name);
    snprintf(header, sizeof(header), "%s%s%s%s · %s%d worker%s%s%s · %s", j->user[0] ? "user " : "", j->user,
             j->user[0] ? " · " : "", r->in.cluster[0] ? r->in.cluster : "one node", "", report_workers(r),
             report_workers(r) == 1 ? "" : "s", n ? " on " : "", nodes, j->state);
    doc_title(d, title, header);
    doc_heading(d, "Job");
    job_table(r, d);
    ledger_section(r, d);
    numbers_table(r, d);
    advice_section(r, d);
    training_section(r, d);
    usage_section(r, d);
    step_section(r, d);
    plan_section(r, d);
    checkpoint_section(r, d);
    incident_section(r, d);
}

static json_t *ledger_json(const struct report *r)
{
    json_t *parts = json_object();
    for (int i = 0; i < LEDGER_COUNT; i++)
        json_object_set_new(parts, ledger_rows[i].name, json_integer(r->ledger.part_ms[i]));
    return json_pack("{s:s, s:I, s:I, s:I, s:o}", "unit", report_unit(r), "queued_ms", (json_int_t)r->ledger.queued_ms,
                     "wall_ms", (json_int_t)r->ledger.wall_ms, "total_ms", (json_int_t)r->ledger.total_ms, "parts_ms",
                     parts);
}

json_t *report_json(const struct report *r)
{
    json_t *advice = json_array();
    char text[ADVICE_TEXT];
    for (int i = 0; i < n_advice_rules; i++)
        if (advice_rules[i].applies(r, text))
            json_array_append_new(advice, json_pack("{s:s, s:s, s:s}", "rule", advice_rules[i].name, "title",
                                                    advice_rules[i].title, "text", text));
    json_t *step = r->has_step ? step_json(&r->spec.forecast, &r->step) : NULL; /* NULL: the key is left out */
    return json_pack("{s:s, s:s, s:o, s:o, s:o*}", "job", r->job->job, "state", r->job->state, "ledger", ledger_json(r),
                     "advice", advice, "step", step);
}
