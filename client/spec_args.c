#include "client/spec_args.h"

#include "client/commands.h"

static const struct argp_option options[] = {
    {"set", 's', "KEY=VALUE", 0, "Override a key of the job file; the value is read as YAML", 0}, {0}};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct spec_args *a = state->input;
    switch (key) {
    case 's':
        if (a->n_sets == SPEC_SETS_MAX)
            argp_error(state, "--set was given more than %d times", SPEC_SETS_MAX);
        a->sets[a->n_sets++] = arg;
        return 0;
    case ARGP_KEY_ARG:
        if (a->file)
            argp_error(state, "one job file at a time");
        a->file = arg;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp spec_args_argp = {.options = options, .parser = parse};
const struct argp_child spec_args_children[] = {
    {&global_argp, 0, "Options of every command:", 10}, {&spec_args_argp, 0, NULL, 0}, {0}};

err_t spec_args_read(const struct spec_args *a, struct job_spec *ret, struct why *why)
{
    return spec_read(a->file, a->sets, a->n_sets, ret, why);
}
