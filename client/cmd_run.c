/* dtctl run: runs a command as every worker of a job (docs/use/pytorch.md), in the caller's folder and environment. It
 * makes an ordinary job spec and submits it. */
#include "client/commands.h"
#include "client/follow.h"
#include "client/spec.h"

#include "common/base/utf8.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Variables; far more than any environment has. Control limits their total size. */
#define MAX_ENV 4096
/* Bounds that catch typing errors; control places only as many workers as there are slots. */
#define MAX_NODES 1024
#define MAX_PER_NODE 256

struct run_args {
    struct global *global;
    const char *name;
    int64_t min_nodes, max_nodes, per_node, restarts;
    const char *env[MAX_ENV]; /* --env */
    int n_env;
    char **command;
    int n_command;
    bool detach;
};

enum { KEY_NODES = 256, KEY_PER_NODE, KEY_RESTARTS };

static const struct argp_option options[] = {
    {"nodes", KEY_NODES, "N[:M]", 0, "Number of nodes, or the minimum and maximum (default 1)", 0},
    {"workers-per-node", KEY_PER_NODE, "K", 0, "Number of workers on each node (default 1)", 0},
    {"max-restarts", KEY_RESTARTS, "N", 0, "Maximum number of restarts (default 0)", 0},
    {"name", 'n', "NAME", 0, "Name of the job (default: the script's name)", 0},
    {"env", 'e', "KEY=VALUE", 0, "Set a variable for the workers, in addition to the current environment", 0},
    {"detach", 'd', 0, 0, "Do not wait for the job: print its id and return", 0},
    {0}};

static void parse_nodes(struct run_args *a, char *arg, struct argp_state *state)
{
    char *colon = strchr(arg, ':');
    if (colon)
        *colon = '\0';
    bool good =
        arg_number(arg, MAX_NODES, &a->min_nodes) && arg_number(colon ? colon + 1 : arg, MAX_NODES, &a->max_nodes);
    if (!good || a->min_nodes < 1 || a->max_nodes < a->min_nodes)
        argp_error(state, "--nodes: expected a number of nodes such as 2, or a minimum and maximum such as 1:3");
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct run_args *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = a->global;
        return 0;
    case KEY_NODES:
        parse_nodes(a, arg, state);
        return 0;
    case KEY_PER_NODE:
        if (!arg_number(arg, MAX_PER_NODE, &a->per_node) || a->per_node < 1)
            argp_error(state, "--workers-per-node %s: expected a number from 1 to %d", arg, MAX_PER_NODE);
        return 0;
    case KEY_RESTARTS:
        if (!arg_number(arg, 1000000, &a->restarts))
            argp_error(state, "--max-restarts %s: expected a number from 0 to 1000000", arg);
        return 0;
    case 'n':
        a->name = arg;
        return 0;
    case 'e':
        if (!strchr(arg, '=') || a->n_env == MAX_ENV)
            argp_error(state, "--env %s: expected KEY=VALUE, at most 4096 times", arg);
        a->env[a->n_env++] = arg;
        return 0;
    case 'd':
        a->detach = true;
        return 0;
    case ARGP_KEY_ARGS:
        a->command = state->argv + state->next;
        a->n_command = state->argc - state->next;
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "which command? An example: dtctl run --workers-per-node 2 -- python train.py");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* ---- the spec ---- */

/* Derives the job's name from the first argument that looks like a script, else from the program: "train" for
 * "python -u train.py". */
static void name_of(const struct run_args *a, char *ret, size_t size)
{
    const char *word = a->command[0];
    for (int i = 1; i < a->n_command && word == a->command[0]; i++)
        if (a->command[i][0] != '-' && strchr(a->command[i], '.'))
            word = a->command[i];
    const char *slash = strrchr(word, '/');
    size_t n = 0;
    for (const char *p = slash ? slash + 1 : word; *p && (*p != '.' || !n) && n + 1 < size; p++)
        if (isalnum((unsigned char)*p) || (n && strchr("_-", *p)))
            ret[n++] = *p;
    snprintf(ret + n, size - n, "%s", n ? "" : "run");
}

/* Whether a job spec can hold this variable. PWD and OLDPWD are dropped: control sets the working folder. */
static bool can_be_passed_on(const char *word)
{
    size_t name = strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
    return name && word[name] == '=' && !isdigit((unsigned char)word[0]) && utf8_valid(word) &&
           strncmp(word, "PWD=", 4) != 0 && strncmp(word, "OLDPWD=", 7) != 0;
}

static bool same_name(const char *a, const char *b)
{
    size_t n = strcspn(a, "=");
    return strncmp(a, b, n) == 0 && b[n] == '=';
}

/* The current environment with the variables of --env. The strings are not copied. */
static int environment_merge(const struct run_args *a, const char *ret[MAX_ENV])
{
    extern char **environ;
    int n = 0;
    for (char **e = environ; *e && n < MAX_ENV - a->n_env; e++) {
        bool replaced = !can_be_passed_on(*e);
        for (int i = 0; i < a->n_env && !replaced; i++)
            replaced = same_name(a->env[i], *e);
        if (!replaced)
            ret[n++] = *e;
    }
    for (int i = 0; i < a->n_env; i++)
        ret[n++] = a->env[i];
    return n;
}

static int run_submit(struct global *g, const struct run_args *a)
{
    char folder[PATH_MAX], name[65];
    const char *env[MAX_ENV];
    struct buf yaml = {0};
    struct why why = {0};
    name_of(a, name, sizeof(name));
    if (!getcwd(folder, sizeof(folder)))
        return command_complain(EXIT_ERROR, "the current folder does not exist any more");
    struct job_spec job = {
        .name = (char *)(a->name ? a->name : name),
        .command = a->command,
        .n_command = a->n_command,
        .parallel = {.workers = a->max_nodes * a->per_node, .min_workers = a->min_nodes * a->per_node},
        .run = {.nodes = a->max_nodes,
                .workers_per_gpu = 1,
                .restarts = a->restarts,
                .orphan_seconds = 60,
                .env = (char **)env,
                .n_env = environment_merge(a, env),
                .workdir = folder}};
    struct job_spec checked = {0};
    err_t err = spec_print(&job, &yaml);
    if (err)
        why_set(&why, err, "an argument or an environment variable cannot be written as YAML: %s", err_text(err));
    else /* reports errors before anything is started */
        err = job_parse("dtctl run", (const char *)yaml.data, strlen((const char *)yaml.data), NULL, 0, &checked, &why);
    int code = err ? command_refuse(err, &why) : follow_new_job(g, (const char *)yaml.data, NULL, job.name, a->detach);
    job_fini(&checked);
    buf_fini(&yaml);
    return code;
}

int cmd_run(struct global *g, int argc, char **argv)
{
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .children = global_children,
        .args_doc = "-- PROGRAM [ARGUMENT...]",
        .doc =
            "Runs a command as every worker of a job, in the current folder and environment, with the variables that "
            "torchrun sets. A script that calls init_process_group() needs no change. When a worker fails, all workers "
            "are stopped, and restarted while restarts are left. Ctrl-C leaves the job running; dtctl logs prints the "
            "workers' output. The exit code is the job's: 0 done, 4 failed, 5 canceled."
            "\vExamples:\n  dtctl run --workers-per-node 2 -- python train.py\n"
            "  dtctl run --nodes 1:3 --workers-per-node 2 --max-restarts 3 -- python train.py --epochs 4"};
    struct run_args args = {.global = g, .min_nodes = 1, .max_nodes = 1, .per_node = 1};
    command_parse_in_order(&argp, argc, argv, &args); /* the script's options are the script's */
    return run_submit(g, &args);
}
