/* The reason of a difference is chosen among few candidates, each with a number that the measurement has. A process
 * that was not given a core comes first, because it makes everything else slow, too. */
#include "client/step_parts.h"

#include "client/json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SAME 0.05    /* forecasts are not better: docs/internals/planner.md */
#define SLOW 1.10    /* beyond the noise of healthy nodes, as in client/report/advice.c */
#define SHOWN 0.001  /* of the step: less is not seen in a picture */
#define STARVED 0.85 /* less is more than what reading clocks and system calls explain */

static double known(double v)
{
    return isfinite(v) ? v : 0;
}

static const struct {
    const char *name, *label;
} rows[] = {
#define X(id, name, label, ...) {#name, label},
    STEP_PARTS(X)
#undef X
};

const char *step_part_name(enum step_part part)
{
    return rows[part].name;
}

const char *step_part_label(enum step_part part)
{
    return rows[part].label;
}

bool step_has_forecast(const struct job_forecast *f)
{
    return f->workers > 0;
}

static void forecast_parts(const struct job_forecast *f, double ret[STEP_PART_COUNT])
{
#define X(id, name, label, forecast, measured) ret[STEP_##id] = forecast;
    STEP_PARTS(X)
#undef X
}

static void measured_parts(const struct usage *u, double ret[STEP_PART_COUNT])
{
#define X(id, name, label, forecast, measured) ret[STEP_##id] = measured;
    STEP_PARTS(X)
#undef X
}

/* ---- ranks ---- */

static double most_work(const struct usage_sample *s)
{
    double most = NAN;
    for (int r = 0; r < s->ranks; r++)
        most = fmax(most, *usage_at(s, USAGE_planned_flop, r));
    return most;
}

static bool counts(const struct usage_sample *s, int rank, double work)
{
    const double flop = *usage_at(s, USAGE_planned_flop, rank);
    return *usage_at(s, USAGE_step_s, rank) > 0 && (isnan(work) || flop == work);
}

/* The mean over the ranks that count and have a value. */
struct step_mean {
    double sum;
    int n;
};

static void mean_add(struct step_mean *m, double v)
{
    if (isfinite(v)) {
        m->sum += v;
        m->n++;
    }
}

static double mean_of(const struct step_mean *m)
{
    return m->n ? m->sum / m->n : NAN;
}

static void take_parts(const struct usage_sample *s, double work, struct step_compare *c)
{
    struct step_mean part[STEP_PART_COUNT] = {{0, 0}}, all = {0, 0};
    double of_rank[STEP_PART_COUNT];
    for (int r = 0; r < s->ranks; r++) {
        if (!counts(s, r, work))
            continue;
        const struct usage u = usage_of_rank(s, r);
        measured_parts(&u, of_rank);
        for (int i = 0; i < STEP_PART_COUNT; i++)
            mean_add(&part[i], of_rank[i]);
        mean_add(&all, u.step_s);
    }
    for (int i = 0; i < STEP_PART_COUNT; i++)
        c->measured[i] = mean_of(&part[i]);
    c->measured_s = mean_of(&all);
}

static double longest_compute(const struct usage_sample *s)
{
    double longest = NAN;
    for (int r = 0; r < s->ranks; r++)
        longest = fmax(longest, *usage_at(s, USAGE_compute_s, r));
    return longest;
}

static void take_waits(const struct usage_sample *s, double work, struct step_compare *c)
{
    const double longest = longest_compute(s);
    struct step_mean wait = {0, 0}, core = {0, 0};
    for (int r = 0; r < s->ranks; r++) {
        const struct usage u = usage_of_rank(s, r);
        if (!counts(s, r, work) || !(u.compute_s > 0))
            continue;
        mean_add(&wait, fmin(longest - u.compute_s, u.comm_s));
        if (isnan(u.gpu_util))
            mean_add(&core, u.cpu * u.step_s / u.compute_s);
    }
    c->wait_s = known(mean_of(&wait));
    c->starved = mean_of(&core) < STARVED ? mean_of(&core) : NAN;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The lower of two middle values, so that one of two ranks can be slow. */
static void take_slow(const struct usage_sample *s, double work, struct step_compare *c)
{
    double *v = calloc((size_t)s->ranks, sizeof(*v)), longest = 0;
    int n = 0, slow = -1;
    for (int r = 0; v && r < s->ranks; r++) {
        const double compute_s = *usage_at(s, USAGE_compute_s, r);
        if (!counts(s, r, work) || !(compute_s > 0))
            continue;
        slow = compute_s > longest ? r : slow;
        longest = fmax(longest, compute_s);
        v[n++] = compute_s;
    }
    if (n > 1) {
        qsort(v, (size_t)n, sizeof(*v), by_value);
        c->slow = longest / v[(n - 1) / 2];
        c->slow_rank = c->slow > SLOW ? slow : -1;
    }
    free(v);
}

err_t step_windows_add(struct step_windows *w, const struct usage_sample *s)
{
    struct usage_sample copy = {0};
    const bool same = w->n && usage_sample_fits(&w->mean, s);
    w->n = same ? w->n + 1 : 1;
    if (w->n > 2) {
        usage_sample_join(&w->mean, s);
        return OK;
    }
    err_t err = usage_sample_copy(s, &copy);
    usage_sample_fini(&w->mean);
    w->mean = err ? (struct usage_sample){0} : copy;
    w->n = err ? 0 : w->n;
    return err;
}

void step_windows_fini(struct step_windows *w)
{
    usage_sample_fini(&w->mean);
}

void step_compare(const struct job_forecast *f, const struct usage_sample *s, struct step_compare *ret)
{
    *ret = (struct step_compare){
        .measured_s = NAN, .assumed = f->assumed, .largest = -1, .slow_rank = -1, .slow = 1, .starved = NAN};
    forecast_parts(f, ret->forecast);
    for (int i = 0; i < STEP_PART_COUNT; i++) {
        ret->forecast_s += ret->forecast[i];
        ret->measured[i] = NAN;
    }
    if (!s || !s->ranks)
        return;
    const double work = most_work(s);
    ret->other_workers = s->ranks != f->workers;
    take_parts(s, work, ret);
    take_waits(s, work, ret);
    take_slow(s, work, ret);
    double most = 0;
    for (int i = 0; i < STEP_PART_COUNT; i++)
        if (fabs(ret->measured[i] - ret->forecast[i]) > most) {
            most = fabs(ret->measured[i] - ret->forecast[i]);
            ret->largest = i;
        }
}

bool step_part_shown(const struct step_compare *c, enum step_part part)
{
    return c->forecast[part] > 0 || c->measured[part] > SHOWN * c->measured_s;
}

/* ---- words ---- */

static double difference(const struct step_compare *c)
{
    return c->measured[c->largest] - c->forecast[c->largest];
}

/* A job whose step is as long as forecast may still have a part that is not: another one makes up for it. */
static bool differs(const struct step_compare *c)
{
    return c->largest >= 0 && fabs(difference(c)) > SAME * c->forecast_s;
}

/* All times of a line have one unit. */
static double unit(const struct step_compare *c, const char **ret_name)
{
    const bool small = c->forecast_s < 0.1 && !(c->measured_s >= 0.1);
    *ret_name = small ? "ms" : "s";
    return small ? 1e3 : 1;
}

static int put_ratio(const struct step_compare *c, char *ret, size_t size)
{
    const double ratio = c->measured_s / c->forecast_s;
    if (!isfinite(ratio))
        return snprintf(ret, size, "%s", "");
    return ratio > 2 ? snprintf(ret, size, " (%.3g times)", ratio)
                     : snprintf(ret, size, " (%+.0f %%)", 100 * (ratio - 1));
}

const char *step_line(const struct step_compare *c, char ret[STEP_TEXT])
{
    const char *name;
    const double k = unit(c, &name);
    if (!(c->measured_s > 0)) {
        snprintf(ret, STEP_TEXT, "forecast %.3g %s", k * c->forecast_s, name);
        return ret;
    }
    int n =
        snprintf(ret, STEP_TEXT, "step %.3g %s, forecast %.3g %s", k * c->measured_s, name, k * c->forecast_s, name);
    n += put_ratio(c, ret + n, STEP_TEXT - (size_t)n);
    if (differs(c))
        snprintf(ret + n, STEP_TEXT - (size_t)n, ": %s in %s, %+.2g %s",
                 difference(c) / (c->measured_s - c->forecast_s) > 0.5 ? "most of it" : "the largest difference",
                 step_part_label((enum step_part)c->largest), k * difference(c), name);
    return ret;
}

const char *step_line_of(const char *spec_yaml, const struct usage_sample *s, char ret[STEP_TEXT])
{
    struct job_spec job = {0};
    struct step_compare c;
    struct why why;
    ret[0] = 0;
    if (job_parse("the job's file", spec_yaml, strlen(spec_yaml), NULL, 0, &job, &why))
        return ret;
    if (step_has_forecast(&job.forecast)) {
        step_compare(&job.forecast, s, &c);
        step_line(&c, ret);
    }
    job_fini(&job);
    return ret;
}

static const char *rates(const struct step_compare *c)
{
    return c->assumed ? "assumed" : "measured";
}

static bool is_communication(int part)
{
    return part >= STEP_TP && part <= STEP_GRADS;
}

static void slower(const struct step_compare *c, char ret[STEP_TEXT])
{
    const double times = c->measured[c->largest] / c->forecast[c->largest];
    if (is_communication(c->largest) && c->wait_s > difference(c) / 2)
        snprintf(ret, STEP_TEXT, "Ranks wait %.2g s of a step for the one that computes longest.", c->wait_s);
    else if (is_communication(c->largest) && isfinite(times))
        snprintf(ret, STEP_TEXT, "Links take %.2g times as long as with the %s rates.", times, rates(c));
    else if (is_communication(c->largest))
        snprintf(ret, STEP_TEXT, "The forecast expects this communication to be hidden by computation.");
    else if (isfinite(times))
        snprintf(ret, STEP_TEXT, "Its operations take %.2g times as long as with the %s rates of products and memory.",
                 times, rates(c));
    else
        snprintf(ret, STEP_TEXT, "The forecast has nothing of this kind.");
}

const char *step_cause(const struct step_compare *c, char ret[STEP_TEXT])
{
    ret[0] = 0;
    if (!differs(c))
        return ret;
    if (difference(c) < 0)
        snprintf(ret, STEP_TEXT, "It is faster than with the %s rates.", rates(c));
    else if (isfinite(c->starved))
        snprintf(ret, STEP_TEXT,
                 "A worker had only %.2g of a core while it computed: other programs use this node's processors.",
                 c->starved);
    else if (c->slow_rank >= 0 && (c->largest == STEP_COMPUTE || is_communication(c->largest)))
        snprintf(ret, STEP_TEXT, "Rank %d computes %.2f times as long as the others with the same work.", c->slow_rank,
                 c->slow);
    else
        slower(c, ret);
    return ret;
}

/* ---- JSON ---- */

static json_t *real_or_null(double v)
{
    return isfinite(v) ? json_real(v) : json_null();
}

json_t *step_json(const struct job_forecast *f, const struct step_compare *c)
{
    char line[STEP_TEXT], cause[STEP_TEXT];
    json_t *parts = json_array();
    for (int i = 0; i < STEP_PART_COUNT; i++)
        if (step_part_shown(c, (enum step_part)i))
            json_array_append_new(parts,
                                  json_pack("{s:s, s:s, s:f, s:o}", "part", rows[i].name, "label", rows[i].label,
                                            "forecast_s", c->forecast[i], "measured_s", real_or_null(c->measured[i])));
    return json_pack(
        "{s:o, s:b, s:I, s:b, s:f, s:o, s:o, s:s*, s:s, s:s}", "source", json_of_text(f->source, strlen(f->source)),
        "assumed", c->assumed, "workers", (json_int_t)f->workers, "other_workers", c->other_workers, "forecast_s",
        c->forecast_s, "step_s", real_or_null(c->measured_s), "parts", parts, "largest",
        c->largest < 0 ? NULL : rows[c->largest].name, "text", step_line(c, line), "cause", step_cause(c, cause));
}
