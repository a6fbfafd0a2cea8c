#include "client/report/step_section.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool span_add(struct plot *p, int row, double seconds, enum ink ink, const char *meaning)
{
    if (!(seconds > 0))
        return true;
    struct plot_span *more = realloc(p->span, (size_t)(p->n_spans + 1) * sizeof(*more));
    if (!more)
        return false;
    p->span = more;
    p->span[p->n_spans++] = (struct plot_span){row, 0, seconds, ink, meaning};
    p->x1 = fmax(p->x1, seconds);
    return true;
}

/* Two rows for each part; the upper one has the label. */
static bool part_add(struct plot *p, const struct step_compare *c, enum step_part part)
{
    const int row = p->n_rows;
    p->row_label[row] = strdup(step_part_label(part));
    p->row_label[row + 1] = strdup("");
    p->n_rows += 2;
    return p->row_label[row] && p->row_label[row + 1] && span_add(p, row, c->forecast[part], INK_6, "forecast") &&
           span_add(p, row + 1, c->measured[part], INK_1, "measured");
}

static struct plot *step_plot(const struct step_compare *c)
{
    struct plot *p = plot_new(PLOT_SPANS, "Forecast and measurement of a step", "");
    bool ok = p && (p->row_label = calloc(2 * STEP_PART_COUNT, sizeof(char *)));
    for (int i = 0; ok && i < STEP_PART_COUNT; i++)
        if (step_part_shown(c, (enum step_part)i))
            ok = part_add(p, c, (enum step_part)i);
    if (ok) {
        p->time = true;
        return p;
    }
    plot_free(p);
    return NULL;
}

static void row(struct doc *d, const char *label, double forecast, double measured)
{
    char a[PLOT_NUMBER], b[PLOT_NUMBER], c[PLOT_NUMBER];
    doc_cell(d, "%s", label);
    doc_cell(d, "%s", plot_number(forecast, a));
    doc_cell(d, "%s", isfinite(measured) ? plot_number(measured, b) : "-");
    doc_cell(d, "%s%s", measured > forecast ? "+" : "", isfinite(measured) ? plot_number(measured - forecast, c) : "-");
}

static void step_table(const struct step_compare *c, struct doc *d)
{
    static const char *const titles[] = {"part of a step", "forecast s", "measured s", "difference s"};
    static const bool right[] = {false, true, true, true};
    doc_table(d, "", 4, titles, right);
    for (int i = 0; i < STEP_PART_COUNT; i++)
        if (step_part_shown(c, (enum step_part)i))
            row(d, step_part_label((enum step_part)i), c->forecast[i], c->measured[i]);
    row(d, "Step", c->forecast_s, c->measured_s);
}

void step_section(const struct report *r, struct doc *d)
{
    const struct step_compare *c = &r->step;
    char line[STEP_TEXT], cause[STEP_TEXT];
    if (!r->has_step)
        return;
    step_line(c, line);
    step_cause(c, cause);
    doc_heading(d, "Forecast and measurement");
    doc_text(d, "%c%s.%s%s", line[0] - 'a' + 'A', line + 1, cause[0] ? " " : "", cause);
    doc_text(d, "The forecast was made when the job was submitted, for %s.%s", r->spec.forecast.source,
             c->other_workers ? " The job ran with another number of workers." : "");
    doc_plot(d, step_plot(c));
    step_table(c, d);
}
