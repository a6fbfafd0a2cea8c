/* dtctl run: runs a command as every worker of a job (docs/use/pytorch.md), with the caller's folder, environment,
 * umask, limits and ignored signals. It makes an ordinary job spec and submits it.
 *
 * The spec is YAML and therefore UTF-8. If an argument or a variable is not, all of them are percent-encoded, and
 * dt-worker decodes them. */
#include "client/commands.h"
#include "client/follow.h"
#include "client/log_files.h"
#include "client/run_hints.h"
#include "client/spec.h"

#include "common/base/caller.h"
#include "common/base/env_file.h"
#include "common/base/utf8.h"
#include "common/conf/number.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Times that --env may be given; far more than anyone types. */
#define MAX_ENV 4096
/* Bounds that catch typing errors; control places only as many workers as there are slots. */
#define MAX_NODES 1024
#define MAX_PER_NODE 256
#define MAX_CORES 4096 /* of run.cores and run.memory */
#define MAX_MEMORY (INT64_C(1) << 48)

struct run_args {
    struct global *global;
    const char *name;
    int64_t min_nodes, max_nodes, per_node, restarts, grace_seconds;
    int64_t memory_bytes, cores; /* 0: no limit */
    int stop_signal;
    const char *env[MAX_ENV]; /* --env */
    int n_env;
    const char *env_path;                                    /* --env-file; NULL: none */
    char env_file[sizeof(ENV_FILE_VARIABLE "=") + PATH_MAX]; /* the variable with its absolute path; "": none */
    char **command;
    int n_command;
    const char *log_dir;     /* NULL: none */
    const char *master_addr; /* "": none */
    int64_t master_port;     /* 0: chosen by dtd */
    bool detach, quiet, batch, gpus, no_grow;
};

enum {
    KEY_NODES = 256,
    KEY_LOG_DIR,
    KEY_PER_NODE,
    KEY_RESTARTS,
    KEY_GPUS,
    KEY_NO_GROW,
    KEY_MASTER,
    KEY_PORT,
    KEY_RENDEZVOUS,
    KEY_GRACE,
    KEY_SIGNAL,
    KEY_ENV_FILE,
    KEY_MEMORY,
    KEY_CORES
};

static const struct argp_option options[] = {
    {"nodes", KEY_NODES, "N[:M]", 0, "Number of nodes, or the minimum and maximum (default 1)", 0},
    {"workers-per-node", KEY_PER_NODE, "K", 0, "Number of workers on each node (default 1)", 0},
    {"gpus", KEY_GPUS, "K", 0, "The same, each with a GPU of its own", 0},
    {"memory", KEY_MEMORY, "BYTES", 0,
     "Maximum memory of each worker, such as 16G (default: as dtd on the node limits it)", 0},
    {"cores", KEY_CORES, "N", 0,
     "Maximum number of CPU cores of each worker, and the number that it is bound to (default: no limit)", 0},
    {"max-restarts", KEY_RESTARTS, "N", 0, "Maximum number of restarts (default 0)", 0},
    {"no-grow", KEY_NO_GROW, 0, 0, "With --nodes N:M: do not restart on more nodes when there is room again", 0},
    {"master-addr", KEY_MASTER, "ADDR|auto", 0,
     "MASTER_ADDR of the workers; auto: the address at which other nodes reach rank 0's node. Rank 0 then opens the "
     "rendezvous (default: 127.0.0.1 on each node, where dtd serves it)",
     0},
    {"master-port", KEY_PORT, "PORT", 0, "With --master-addr: MASTER_PORT (default: another one for each attempt)", 0},
    {"grace", KEY_GRACE, "SECONDS", 0, "When workers are stopped: time until SIGKILL (default 30)", 0},
    {"stop-signal", KEY_SIGNAL, "NAME", 0, "Signal that asks workers to stop, such as USR1 (default TERM)", 0},
    {"name", 'n', "NAME", 0, "Name of the job (default: the script's name)", 0},
    {"env", 'e', "KEY=VALUE", 0, "Set a variable for the workers, in addition to the current environment", 0},
    {"env-file", KEY_ENV_FILE, "FILE", 0,
     "Set the variables of a file (KEY=VALUE lines), which only you may read and which all nodes see: for secrets", 0},
    {"detach", 'd', 0, 0, "Do not wait for the job: print its id and return", 0},
    {"log-dir", KEY_LOG_DIR, "DIR", 0, "Also write the output to DIR/attempt-A/rank-R.log", 0},
    {"quiet", 'q', 0, 0, "Do not show the output of the workers", 0},
    {"batch", 'b', 0, 0, "For batch systems: on SIGUSR1 or SIGTERM stop the job and exit with 75", 0},
    {"nnodes", KEY_NODES, "N[:M]", 0, "torchrun's name of --nodes", 1},
    {"nproc-per-node", KEY_PER_NODE, "K", 0, "torchrun's name of --workers-per-node", 1},
    {"nproc_per_node", KEY_PER_NODE, "K", OPTION_HIDDEN, 0, 1},
    {"max_restarts", KEY_RESTARTS, "N", OPTION_HIDDEN, 0, 1},
    {"standalone", KEY_RENDEZVOUS, 0, OPTION_HIDDEN, 0, 1},
    {"rdzv-backend", KEY_RENDEZVOUS, "X", OPTION_HIDDEN, 0, 1},
    {"rdzv-endpoint", KEY_RENDEZVOUS, "X", OPTION_HIDDEN, 0, 1},
    {"rdzv-id", KEY_RENDEZVOUS, "X", OPTION_HIDDEN, 0, 1},
    {"rdzv-conf", KEY_RENDEZVOUS, "X", OPTION_HIDDEN, 0, 1},
    {"node-rank", KEY_RENDEZVOUS, "X", OPTION_HIDDEN, 0, 1},
    {"master_addr", KEY_MASTER, "ADDR", OPTION_HIDDEN, 0, 1},
    {"master_port", KEY_PORT, "PORT", OPTION_HIDDEN, 0, 1},
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

static void parse_per_node(struct run_args *a, int key, const char *arg, struct argp_state *state)
{
    bool devices = strcmp(arg, "gpu") == 0 || strcmp(arg, "auto") == 0;
    a->gpus = a->gpus || key == KEY_GPUS;
    if (!arg_number(arg, MAX_PER_NODE, &a->per_node) || a->per_node < 1)
        argp_error(state, "%s %s: expected a number from 1 to %d%s", key == KEY_GPUS ? "--gpus" : "--workers-per-node",
                   arg, MAX_PER_NODE, devices ? ". For a worker on each of 4 GPUs: --gpus 4" : "");
}

/* The options that limit the workers. */
static error_t parse_limits(int key, const char *arg, struct run_args *a, struct argp_state *state)
{
    static const int64_t factors[] = {1000, 1000000, 1000000000};
    switch (key) {
    case KEY_MEMORY:
        if (number_scaled_parse(arg, "kMG", factors, &a->memory_bytes) || a->memory_bytes < 1 ||
            a->memory_bytes > MAX_MEMORY)
            argp_error(state, "--memory %s: expected a number of bytes such as 16G or 512M", arg);
        return 0;
    case KEY_CORES:
        if (!arg_number(arg, MAX_CORES, &a->cores) || a->cores < 1)
            argp_error(state, "--cores %s: expected a number from 1 to %d", arg, MAX_CORES);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* The options of how workers are stopped. */
static error_t parse_stopping(int key, const char *arg, struct run_args *a, struct argp_state *state)
{
    switch (key) {
    case KEY_GRACE:
        if (!arg_number(arg, JOB_MAX_GRACE_SECONDS, &a->grace_seconds))
            argp_error(state, "--grace %s: expected a number of seconds from 0 to %d", arg, JOB_MAX_GRACE_SECONDS);
        return 0;
    case KEY_SIGNAL:
        if (!job_stop_signal(arg, &a->stop_signal))
            argp_error(state, "--stop-signal %s: expected one of %s", arg, JOB_STOP_SIGNALS);
        return 0;
    default:
        return parse_limits(key, arg, a, state);
    }
}

/* The options without a value, those of the rendezvous, and those that concern the watching. */
static error_t parse_others(int key, char *arg, struct run_args *a, struct argp_state *state)
{
    switch (key) {
    case KEY_LOG_DIR:
        a->log_dir = arg;
        return 0;
    case KEY_MASTER:
        a->master_addr = arg;
        return 0;
    case KEY_PORT:
        if (!arg_number(arg, 65535, &a->master_port) || !a->master_port)
            argp_error(state, "--master-port %s: expected a port from 1 to 65535", arg);
        return 0;
    case 'd':
        a->detach = true;
        return 0;
    case KEY_NO_GROW:
        a->no_grow = true;
        return 0;
    case 'q':
        a->quiet = true;
        return 0;
    case 'b':
        a->batch = true;
        return 0;
    case ARGP_KEY_END:
        if (a->batch && a->detach)
            argp_error(state, "give either --batch, which waits for the job, or --detach");
        if (a->master_port && !a->master_addr[0])
            argp_error(state, "--master-port needs --master-addr, for example --master-addr auto. Without it dtd opens "
                              "the rendezvous and chooses the port");
        if (a->log_dir && a->detach)
            argp_error(state, "give either --log-dir, which dtctl writes while it waits for the job, or --detach");
        return 0;
    default:
        return parse_stopping(key, arg, a, state);
    }
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
    case KEY_GPUS:
        parse_per_node(a, key, arg, state);
        return 0;
    case KEY_RENDEZVOUS:
        argp_error(state, "torchrun's options of the rendezvous are not needed: dtd opens a store for each attempt, "
                          "and dtctl run is started once, on any node. Leave them out");
        return 0;
    case KEY_RESTARTS:
        if (!arg_number(arg, 1000000, &a->restarts))
            argp_error(state, "--max-restarts %s: expected a number from 0 to 1000000", arg);
        return 0;
    case 'n':
        a->name = arg;
        return 0;
    case KEY_ENV_FILE:
        a->env_path = arg;
        return 0;
    case 'e':
        if (!strchr(arg, '=') || a->n_env == MAX_ENV)
            argp_error(state, "--env %s: expected KEY=VALUE, at most 4096 times", arg);
        a->env[a->n_env++] = arg;
        return 0;
    case ARGP_KEY_ARGS:
        a->command = state->argv + state->next;
        a->n_command = state->argc - state->next;
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "which command? An example: dtctl run --workers-per-node 2 -- python train.py");
        return 0;
    default:
        return parse_others(key, arg, a, state);
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

static bool is_given(const struct run_args *a, const char *word)
{
    bool given = false;
    for (int i = 0; i < a->n_env && !given; i++)
        given = caller_same_key(a->env[i], word);
    return given;
}

/* The current environment without secrets, with the variables of --env and the path of --env-file. The strings are not
 * copied; the caller frees the list. NULL: out of memory. */
static char **environment_merge(const struct run_args *a, int *ret_n)
{
    extern char **environ;
    int n = 0, count = a->n_env + 1;
    for (char **e = environ; *e; e++)
        count++;
    char **ret = calloc((size_t)count + 1, sizeof(*ret));
    for (char **e = environ; ret && *e; e++)
        if (!is_given(a, *e) && !env_is_secret(*e))
            ret[n++] = *e;
    for (int i = 0; ret && i < a->n_env; i++)
        ret[n++] = (char *)a->env[i];
    if (ret && a->env_file[0])
        ret[n++] = (char *)a->env_file;
    *ret_n = n;
    return ret;
}

/* ---- secrets ---- */

/* The file is read again where the command starts; here a mistake is noticed before anything starts. */
static err_t env_file_check(struct run_args *a, const char *path, struct env_file *ret, struct why *why)
{
    char full[PATH_MAX];
    if (!realpath(path, full))
        return why_set(why, ERR_INVALID, "--env-file %s: %s", path, strerror(errno));
    snprintf(a->env_file, sizeof(a->env_file), ENV_FILE_VARIABLE "=%s", full);
    return env_file_read(full, ret, why);
}

static bool is_in_file(const struct env_file *f, const char *word)
{
    bool found = false;
    for (int i = 0; i < f->n && !found; i++)
        found = caller_same_key(f->words[i], word);
    return found;
}

/* The environment of a job is in the replicated log, so that its command can start on any node. */
static void name_left_out(const struct run_args *a, const struct env_file *f)
{
    extern char **environ;
    int n = 0;
    for (char **e = environ; *e; e++)
        if (env_is_secret(*e) && !is_given(a, *e) && !is_in_file(f, *e))
            fprintf(stderr, "%s%.*s",
                    n++ ? ", " : "dtctl: not passed on, because dtd would keep it in its log: ", (int)strcspn(*e, "="),
                    *e);
    if (n)
        fprintf(stderr, "; write what the command needs into a file that only you may read, and add --env-file FILE\n");
}

static err_t secrets_take(struct run_args *a, struct why *why)
{
    struct env_file f = {0};
    err_t err = a->env_path ? env_file_check(a, a->env_path, &f, why) : OK;
    if (!err)
        name_left_out(a, &f);
    env_file_fini(&f);
    return err;
}

static bool all_utf8(char *const *words, int n)
{
    bool good = true;
    for (int i = 0; i < n && good; i++)
        good = utf8_valid(words[i]);
    return good;
}

static void words_free(char **words, int n)
{
    for (int i = 0; words && i < n; i++)
        free(words[i]);
    free(words);
}

/* Copies the words, encoded if `percent`. NULL: out of memory. */
static char **words_copy(char *const *words, int n, bool percent)
{
    char **ret = calloc((size_t)n + 1, sizeof(*ret));
    for (int i = 0; ret && i < n; i++)
        if (!(ret[i] = percent ? caller_percent_encode(words[i]) : strdup(words[i]))) {
            words_free(ret, n);
            return NULL;
        }
    return ret;
}

/* Sets what the command inherits; run_spec_fini frees it. */
static err_t run_spec_inherit(const struct global *g, const struct run_args *a, struct job_spec *job)
{
    struct caller caller;
    struct buf settings = {0};
    struct job_run *run = &job->run;
    const uint64_t pipe = UINT64_C(1) << (SIGPIPE - 1);
    caller_take(&caller);
    caller.ignored = g->sigpipe_ignored ? caller.ignored | pipe : caller.ignored & ~pipe;
    caller.env = true;
    char **env = environment_merge(a, &run->n_caller_env);
    if (!env)
        return ERR_NOMEM;
    caller.percent = !all_utf8(env, run->n_caller_env) || !all_utf8(a->command, a->n_command);
    job->command = words_copy(a->command, a->n_command, caller.percent);
    job->n_command = a->n_command;
    run->caller_env = words_copy(env, run->n_caller_env, caller.percent);
    free(env);
    err_t err = caller_print(&caller, &settings);
    if (!err)
        err = buf_append(&settings, "", 1);
    run->caller = (char *)settings.data;
    return !err && (!job->command || !run->caller_env) ? ERR_NOMEM : err;
}

static void run_spec_fini(struct job_spec *job)
{
    words_free(job->command, job->n_command);
    words_free(job->run.caller_env, job->run.n_caller_env);
    free(job->run.caller);
}

static int run_submit(struct global *g, const struct run_args *a)
{
    char folder[PATH_MAX], name[65];
    struct buf yaml = {0};
    struct why why = {0};
    name_of(a, name, sizeof(name));
    if (!getcwd(folder, sizeof(folder)))
        return command_complain(EXIT_ERROR, "the current folder does not exist any more");
    struct job_spec job = {
        .name = (char *)(a->name ? a->name : name),
        .parallel = {.workers = a->max_nodes * a->per_node, .min_workers = a->min_nodes * a->per_node},
        .run = {.nodes = a->max_nodes,
                .device = a->gpus ? DEVICE_CUDA : DEVICE_CPU,
                .workers_per_gpu = 1,
                .restarts = a->restarts,
                .memory = a->memory_bytes,
                .cores = a->cores,
                .orphan_seconds = 60,
                .grow = !a->no_grow,
                .master_addr = (char *)a->master_addr,
                .master_port = a->master_port,
                .grace_seconds = a->grace_seconds,
                .stop_signal = a->stop_signal,
                .workdir = folder}};
    struct job_spec checked = {0};
    err_t err = run_spec_inherit(g, a, &job);
    if (!err)
        err = spec_print(&job, &yaml);
    if (err == ERR_INVALID)
        why_set(&why, err,
                "the path of the current folder, or --name, is not UTF-8; run the command in another folder");
    else if (err)
        why_set(&why, err, "%s", err_text(err));
    else /* reports errors before anything is started */
        err = job_parse("dtctl run", (const char *)yaml.data, strlen((const char *)yaml.data), NULL, 0, &checked, &why);
    struct log_files files = {0};
    const struct follow_how how = {
        .detach = a->detach, .command = true, .output = !a->quiet, .files = a->log_dir ? &files : NULL};
    if (!err && a->log_dir)
        err = log_files_init(&files, a->log_dir, &why);
    if (a->batch)
        follow_stop_on_signals();
    int code = err ? command_refuse(err, &why) : follow_new_job(g, (const char *)yaml.data, NULL, job.name, &how);
    log_files_fini(&files);
    job_fini(&checked);
    run_spec_fini(&job);
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
            "are stopped, and restarted while restarts are left. Shows the workers' output, each line with its rank if "
            "there are several. Ctrl-C leaves the job running, with exit code 130, and so does SIGTERM or SIGHUP "
            "without --batch. Otherwise the exit code is the job's: 0 done, 4 failed, 5 canceled."
            "\vExamples:\n  dtctl run --workers-per-node 2 -- python train.py\n"
            "  dtctl run --nodes 1:3 --workers-per-node 2 --max-restarts 3 -- python train.py --epochs 4\n"
            "  dtctl run --gpus 8 --batch -- python train.py"};
    struct run_args args = {.global = g,
                            .min_nodes = 1,
                            .max_nodes = 1,
                            .per_node = 1,
                            .master_addr = "",
                            .grace_seconds = 30,
                            .stop_signal = SIGTERM};
    command_parse_in_order(&argp, argc, argv, &args); /* the script's options are the script's */
    int code = run_hints_check(args.command, args.n_command);
    if (code)
        return code;
    struct why why = {0};
    err_t err = secrets_take(&args, &why);
    return err ? command_refuse(err, &why) : run_submit(g, &args);
}
