/* Step times are smoothed, because a single evaluation or save would make the ETA jump. A new epoch or a different
 * number of workers restarts the mean, because the job then runs at a different speed. */
#include "client/view.h"

#include "client/field_text.h"
#include "client/out.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define SMOOTH 0.1     /* weight of the newest step: the mean covers about ten steps */
#define PLAIN_MS 10000 /* a line at least every 10 s, as long as steps are completed */
#define PLAIN_SHARE 20 /* a line per twentieth of the steps: some twenty lines for a short job */

static void text_set(char *ret, size_t size, const char *text)
{
    snprintf(ret, size, "%s", text);
}

void view_init(struct view *v, const char *job)
{
    *v = (struct view){.last = metric_none, .step_s = NAN, .printed_step = -1};
    text_set(v->job, sizeof(v->job), job);
    text_set(v->state, sizeof(v->state), "pending");
}

void view_metric(struct view *v, const struct metric *m)
{
    bool fresh = m->epoch != v->last.epoch || m->workers != v->workers || isnan(v->step_s);
    v->step_s = fresh ? m->step_s : (1 - SMOOTH) * v->step_s + SMOOTH * m->step_s;
    v->step = m->step;
    v->workers = m->workers;
    for (int i = 0; i < metric_fields.n; i++) {
        const struct field *f = &metric_fields.field[i];
        if (f->presence == FIELD_REQUIRED || !field_absent(f, m))
            field_set(f, &v->last, field_get(f, m));
    }
}

void view_status(struct view *v, const struct client_job *job)
{
    text_set(v->name, sizeof(v->name), job->name);
    text_set(v->state, sizeof(v->state), job->state);
    v->steps = job->steps;
    if (job->has_last && (job->last.step != v->step || isnan(v->step_s)))
        view_metric(v, &job->last);
    v->step = job->step;
    v->workers = job->workers;
}

double view_eta(const struct view *v)
{
    if (isnan(v->step_s) || strcmp(v->state, "running") != 0 || v->step > v->steps)
        return NAN;
    return (double)(v->steps - v->step) * v->step_s;
}

__attribute__((format(printf, 4, 5))) static void add(char *ret, size_t size, size_t *n, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int m = *n < size ? vsnprintf(ret + *n, size - *n, fmt, ap) : 0;
    va_end(ap);
    *n += m > 0 ? (size_t)m : 0;
}

/* "  loss 2.4120", "  3.4k tok/s": a real has four decimals here, so that the line keeps its width. */
static void add_field(char *ret, size_t size, size_t *n, const struct view *v, const struct field *f)
{
    char value[OUT_NUMBER], unit[OUT_NUMBER];
    struct field shown = *f;
    if (f->kind == FIELD_REAL && f->look != LOOK_COUNT) {
        shown.look = LOOK_FIXED;
        shown.digits = 4;
    }
    add(ret, size, n, "  %s%s%s%s", f->line, f->line[0] ? " " : "", field_text(&shown, &v->last, value),
        field_unit(f, unit));
}

/* What the line contains, from the widest form to the narrowest. Step, loss and ETA are in each. */
struct line_form {
    int bar; /* its width; 0: none */
    bool name, fields, workers, share, words;
};

static const struct line_form forms[] = {
    {22, true, true, true, true, true},     {0, true, true, true, true, true},    {0, true, true, false, true, true},
    {0, true, false, false, true, true},    {0, false, false, false, true, true}, {0, false, false, false, false, true},
    {0, false, false, false, false, false},
};

static void line_make(const struct view *v, const struct line_form *form, char *ret, size_t size)
{
    char number[OUT_NUMBER], drawn[32];
    size_t n = 0;
    double share = v->steps > 0 ? (double)v->step / (double)v->steps : 0;
    ret[0] = '\0';
    if (form->words)
        add(ret, size, &n, "job %s%s%s  ", v->job, form->name ? " " : "", form->name ? v->name : "");
    if (strcmp(v->state, "running") != 0)
        add(ret, size, &n, "%s  ", v->state);
    if (form->bar && v->steps) { /* command jobs have no steps */
        out_bar(share, form->bar, drawn, sizeof(drawn));
        add(ret, size, &n, "%s ", drawn);
    }
    if (v->steps)
        add(ret, size, &n, "%s%lld/%lld", form->words ? "step " : "", (long long)v->step, (long long)v->steps);
    if (v->steps && form->share)
        add(ret, size, &n, "  %.0f%%", 100 * share);
    for (int i = 0; i < metric_fields.n; i++) {
        const struct field *f = &metric_fields.field[i];
        bool is_loss = f->offset == offsetof(struct metric, loss);
        if (f->line && (form->fields || is_loss) && field_shown(f, &v->last))
            add_field(ret, size, &n, v, f);
    }
    if (!isnan(view_eta(v)))
        add(ret, size, &n, "  ETA %s", out_duration(view_eta(v), number));
    if (v->workers > 0 && form->workers)
        add(ret, size, &n, "  %lld worker%s", (long long)v->workers, v->workers == 1 ? "" : "s");
}

void view_line(const struct view *v, int columns, char *ret, size_t size)
{
    const int n_forms = sizeof(forms) / sizeof(forms[0]);
    int i = columns ? 0 : 1;
    line_make(v, &forms[i], ret, size);
    while (columns && out_text_width(ret) >= columns && ++i < n_forms)
        line_make(v, &forms[i], ret, size);
}

bool view_line_due(const struct view *v, int64_t now_ms)
{
    if (isnan(v->last.loss) || v->step == v->printed_step)
        return false;
    if (v->printed_step < 0 || v->step >= v->steps || now_ms - v->printed_ms >= PLAIN_MS)
        return true;
    int64_t part = v->steps / PLAIN_SHARE > 0 ? v->steps / PLAIN_SHARE : 1;
    return v->step / part > v->printed_step / part;
}

void view_line_printed(struct view *v, int64_t now_ms)
{
    v->printed_step = v->step;
    v->printed_ms = now_ms;
}
