/* dtctl plan: what `submit --dry-run` prints, for a job that need not be startable: the checkpoint folder is not looked
 * at, and no daemon is needed. */
#include "client/commands.h"
#include "client/spec.h"

#define MAX_SETS 256

struct args {
    struct global *global;
    const char *file;
    const char *sets[MAX_SETS];
    int n_sets;
};

static const struct argp_option options[] = {
    {"set", 's', "KEY=VALUE", 0, "Override a key of the job file; the value is read as YAML", 0}, {0}};

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

int cmd_plan(struct global *g, int argc, char **argv)
{
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .children = global_children,
        .args_doc = "FILE",
        .doc = "Compiles the plan of a job for every worker, checks it, and prints what it needs: parameters, data, "
               "compute, microbatches of each rank, memory by use. Starts nothing."
               "\vExample:\n  dtctl plan job.yaml --set parallel.workers=3"};
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
        err = spec_complete(&job, false, &progress, &facts, &why);
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
