/* From n ratios of a step to its forecast to the interval in which nine of ten further ones are expected. With so few
 * of them their quantiles say little, so the interval is the prediction interval of a normal distribution of their
 * logarithms (of one further value, with unknown mean and deviation): mean +- t s sqrt(1 + 1/n), where t is the 95 %
 * quantile of Student's distribution with n - 1 degrees of freedom. */
#include "client/planner/judge.h"

#include "client/spec.h"
#include "common/plan/compile/compile.h"
#include "common/plan/models/build.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define LEAST_LAYOUTS 3 /* fewer have no deviation that means anything */
#define MOST_LAYOUTS 64
#define MOST_LESS 0.99 /* limits of the keys */
#define MOST_MORE 100.0

/* ---- statistics ---- */

/* The 95 % quantile: the expansion of Cornish and Fisher, 1 % too low for 3 degrees of freedom and exact to 0.1 % from
 * 8 on. */
static double student_95(int freedom)
{
    const double z = 1.6448536, z3 = z * z * z, z5 = z3 * z * z, v = freedom;
    return z + (z3 + z) / (4 * v) + (5 * z5 + 16 * z3 + 3 * z) / (96 * v * v);
}

/* The parts by which a value is expected to be below and above 1. */
static void parts_of(const double *ratios, int n, double *ret_less, double *ret_more)
{
    double mean = 0, squares = 0;
    for (int i = 0; i < n; i++)
        mean += log(ratios[i]) / n;
    for (int i = 0; i < n; i++)
        squares += pow(log(ratios[i]) - mean, 2);
    const double half = student_95(n - 1) * sqrt(squares / (n - 1) * (1 + 1.0 / n));
    *ret_less = fmin(fmax(1 - exp(mean - half), 0), MOST_LESS);
    *ret_more = fmin(fmax(exp(mean + half) - 1, 0), MOST_MORE);
}

/* ---- forecasts of one layout ---- */

static double closed_form(const struct job_spec *job, const struct machine *m)
{
    const struct plan_overlap overlap = planner_overlap(m);
    struct plan_shape shape;
    struct plan_layout layout;
    struct plan_time time;
    plan_shape_of(job, &shape);
    plan_layout_of(job, &layout);
    plan_step_time(&shape, &layout, m, &overlap, &time);
    return time.seconds;
}

static err_t forecast_programs(const struct job_spec *job, const struct graph *g, const struct machine *m, double *ret,
                               struct why *why)
{
    const int n = (int)job->parallel.workers;
    struct program *programs = calloc((size_t)n, sizeof(*programs));
    struct planner_rates rates = {0};
    struct spec_facts facts = {0};
    err_t err = programs ? plan_compile_all(job, g, MODE_TRAIN, n, programs, why) : ERR_NOMEM;
    err = err ? err : planner_rates_of(m, job, &rates, why);
    err = err ? err : planner_forecast(&rates, programs, n, &facts, why);
    *ret = facts.forecast.seconds;
    for (int i = 0; programs && i < n; i++)
        program_fini(&programs[i]);
    free(programs);
    spec_facts_fini(&facts);
    planner_rates_fini(&rates);
    return err;
}

static err_t forecast_job(const char *yaml, const struct machine *m, double *ret_closed, double *ret_programs,
                          struct why *why)
{
    struct job_spec job = {0};
    struct graph graph = {0};
    err_t err = job_parse("a job of dt-worker --measure", yaml, strlen(yaml), NULL, 0, &job, why);
    err = err ? err : graph_build(&job.model, job.train.seq, &graph, why);
    err = err ? err : forecast_programs(&job, &graph, m, ret_programs, why);
    if (!err)
        *ret_closed = closed_form(&job, m);
    graph_fini(&graph);
    job_fini(&job);
    return err;
}

/* ---- all layouts ---- */

err_t planner_judge(const json_t *layouts, bool by_clock, const struct machine *machine, struct planner_errors *ret,
                    struct why *why)
{
    double closed[MOST_LAYOUTS], programs[MOST_LAYOUTS];
    struct planner_errors errors = {.layouts = (int)json_array_size(layouts), .by_clock = by_clock};
    if (errors.layouts < LEAST_LAYOUTS || errors.layouts > MOST_LAYOUTS)
        return why_set(why, ERR_INVALID,
                       "dt-worker --measure held out %d layouts instead of %d to %d: dtctl and "
                       "dt-worker are of different versions",
                       errors.layouts, LEAST_LAYOUTS, MOST_LAYOUTS);
    for (int i = 0; i < errors.layouts; i++) {
        const json_t *l = json_array_get(layouts, (size_t)i);
        const char *yaml = json_string_value(json_object_get(l, "job"));
        const double took = json_number_value(json_object_get(l, by_clock ? "clock_s" : "replay_s"));
        err_t err = yaml ? forecast_job(yaml, machine, &closed[i], &programs[i], why) : ERR_INVALID;
        if (err)
            return err;
        closed[i] = took / closed[i];
        programs[i] = took / programs[i];
    }
    parts_of(closed, errors.layouts, &errors.less, &errors.more);
    parts_of(programs, errors.layouts, &errors.program_less, &errors.program_more);
    *ret = errors;
    return OK;
}
