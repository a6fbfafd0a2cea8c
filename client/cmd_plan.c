/* dtctl plan: what `submit --dry-run` prints, for a job that need not be startable: the checkpoint folder is not looked
 * at, and no daemon is needed. */
#include "client/commands.h"
#include "client/spec.h"
#include "client/timeline.h"

#include <stdio.h>

#define MAX_SETS 256

struct args {
    struct global *global;
    const char *file, *timeline;
    const char *sets[MAX_SETS];
    int n_sets;
};

static const struct argp_option options[] = {
    {"set", 's', "KEY=VALUE", 0, "Override a key of the job file; the value is read as YAML", 0},
    {"timeline", 't', "FILE", 0, "Draw the forecast of a step as an SVG file: a row for each rank and stream", 0},
    {0}};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct args *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = a->global;
        return 0;
    case 's':
        if (a->n_sets == MAX_SETS)
            argp_error(state, "more than %d times --set", MAX_SETS);
        a->sets[a->n_sets++] = arg;
        return 0;
    case 't':
        a->timeline = arg;
        return 0;
    case ARGP_KEY_ARG:
        if (a->file)
            argp_error(state, "one job file at a time");
        a->file = arg;
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "which job file?");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static err_t draw(const struct job_spec *job, const struct spec_facts *f, const char *path, struct why *why)
{
    char title[256];
    if (!f->forecast.n)
        return why_set(why, ERR_INVALID,
                       "--timeline: the plan is too large for a forecast; lower train.global_batch or model.layers");
    snprintf(title, sizeof(title), "%s: forecast of a step, %.4g s, bubble %.1f %%", job->name, f->forecast.seconds,
             100 * f->forecast.bubble);
    return timeline_write(&f->forecast, title, path, why);
}

int cmd_plan(struct global *g, int argc, char **argv)
{
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .children = global_children,
        .args_doc = "FILE",
        .doc = "Compiles the plan of a job for every worker, checks it, and prints what it needs: parameters, data, "
               "compute, microbatches of each rank, bytes between ranks, the forecast of a step, memory by use of each "
               "rank. Starts nothing."
               "\vExample:\n  dtctl plan job.yaml --set parallel.workers=3 --timeline step.svg"};
    struct args args = {.global = g};
    struct job_spec job = {0};
    struct spec_facts facts = {0};
    struct out_progress progress;
    struct why why = {0};
    int code = EXIT_DONE;
    command_parse(&argp, argc, argv, &args);
    out_progress_init(&progress, stderr);
    err_t err = spec_read(args.file, args.sets, args.n_sets, &job, &why);
    if (!err)
        err = spec_plan(&job, &progress, &facts, &why);
    if (!err && args.timeline)
        err = draw(&job, &facts, args.timeline, &why);
    if (err)
        code = command_refuse(err, &why);
    else if (g->format != OUT_TEXT)
        code = command_json(g, spec_facts_json(&job, &facts));
    else
        spec_facts_print(&job, &facts);
    spec_facts_fini(&facts);
    job_fini(&job);
    return code;
}
