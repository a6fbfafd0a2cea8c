#include "client/spec_args.h"

#include "client/commands.h"

#include <string.h>

enum { KEY_OPTIMIZER = 512, KEY_MAP }; /* above the keys of the commands' own options */

static const struct argp_option options[] = {
    {"set", 's', "KEY=VALUE", 0,
     "Override a key of the job file; the value is read as YAML, and a path is relative to the current folder", 0},
    {"optimizer", KEY_OPTIMIZER, "HOW", 0,
     "Optimizer state of the checkpoint: require it, start fresh, or auto (default): require it if there is any", 0},
    {"map", KEY_MAP, "FROM=TO", 0,
     "Read tensors of the checkpoint whose names begin with FROM under names that begin with TO; a * in both stands "
     "for "
     "one component of a name; may be repeated",
     0},
    {0}};

static void set_add(struct spec_args *a, const char *set, struct argp_state *state)
{
    if (a->n_sets == SPEC_SETS_MAX)
        argp_error(state, "--set was given more than %d times", SPEC_SETS_MAX);
    a->sets[a->n_sets++] = set;
}

/* Adds a rule to the list, which is one override. */
static void map_add(struct spec_args *a, const char *rule, struct argp_state *state)
{
    size_t n = strlen(a->map);
    if (strpbrk(rule, "\"\\") || n + strlen(rule) + 8 > sizeof(a->map) - sizeof("checkpoint.map="))
        argp_error(state, "--map %s: expected FROM=TO without quotes, and fewer rules than fill 4 KiB", rule);
    if (!n)
        set_add(a, a->map, state);
    n = n ? n - 1 : (size_t)snprintf(a->map, sizeof(a->map), "checkpoint.map=[");
    snprintf(a->map + n, sizeof(a->map) - n, "%s\"%s\"]", a->map[n - 1] == '[' ? "" : ", ", rule);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct spec_args *a = state->input;
    switch (key) {
    case 's':
        set_add(a, arg, state);
        return 0;
    case KEY_OPTIMIZER:
        if (strlen(arg) > 16)
            argp_error(state, "--optimizer %s: expected require, fresh or auto", arg);
        if (!a->optimizer[0])
            set_add(a, a->optimizer, state);
        snprintf(a->optimizer, sizeof(a->optimizer), "checkpoint.optimizer=%s", arg);
        return 0;
    case KEY_MAP:
        map_add(a, arg, state);
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

bool spec_args_has(const struct spec_args *a, const char *key)
{
    size_t n = strlen(key);
    for (int i = 0; i < a->n_sets; i++)
        if (strncmp(a->sets[i], key, n) == 0 && a->sets[i][n] == '=')
            return true;
    return false;
}

err_t spec_args_read(const struct spec_args *a, struct job_spec *ret, struct why *why)
{
    return spec_read(a->file, a->sets, a->n_sets, ret, why);
}
