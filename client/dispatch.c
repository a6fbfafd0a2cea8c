/* Shared by all commands: global options, dispatch, and error messages. A table maps errors to exit codes, because
 * scripts depend on the codes, and a table is easy to compare with the manual. */
#include "client/commands.h"
#include "client/daemon.h"

#include "common/base/paths.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

/* ---- global options ---- */

err_t global_init(struct global *g, struct why *why)
{
    *g = (struct global){.format = OUT_TEXT};
    const char *given = getenv("DTD_DIR");
    pid_t pid;
    err_t err = path_state_dir(NULL, g->private_dir, sizeof(g->private_dir), why);
    memcpy(g->state_dir, g->private_dir, sizeof(g->state_dir));
    if (!err && !(given && *given) && !daemon_running(g->private_dir, &pid) &&
        daemon_running(PATH_SYSTEM_RUN_DIR, &pid))
        snprintf(g->state_dir, sizeof(g->state_dir), "%s", PATH_SYSTEM_RUN_DIR);
    return err;
}

static error_t global_parse(int key, char *arg, struct argp_state *state)
{
    struct global *g = state->input;
    struct why why;
    switch (key) {
    case 'D':
        if (!arg[0])
            argp_error(state, "--dtd-dir: the path is empty");
        else if (path_state_dir(arg, g->state_dir, sizeof(g->state_dir), &why))
            argp_error(state, "--dtd-dir: %s", why.text);
        memcpy(g->private_dir, g->state_dir, sizeof(g->private_dir));
        return 0;
    case 'h': /* where argp has -? */
        argp_state_help(state, stdout, ARGP_HELP_STD_HELP);
        return 0;
    case 'o':
        if (!out_format_parse(arg, &g->format))
            argp_error(state, "-o %s: the formats are text, json and jsonl", arg);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_option global_options[] = {
    {"dtd-dir", 'D', "DIR", 0,
     "State directory of the daemon (default: $DTD_DIR, else $XDG_STATE_HOME/dtd, else /run/dtd)", 0},
    {0, 'h', 0, OPTION_HIDDEN, 0, 0},
    {"output", 'o', "FORMAT", 0, "text, json, or jsonl (one object per line, for streams)", 0},
    {0}};
const struct argp global_argp = {.options = global_options, .parser = global_parse};
const struct argp_child global_children[] = {{&global_argp, 0, "Options of every command:", 10}, {0}};

static void parse_with(const struct argp *argp, int argc, char **argv, unsigned flags, void *arg)
{
    argp_err_exit_status = EXIT_REFUSED;
    error_t r = argp_parse(argp, argc, argv, flags, NULL, arg);
    if (r) {
        fprintf(stderr, "dtctl: %s\n", strerror(r));
        exit(EXIT_ERROR);
    }
}

void command_parse(const struct argp *argp, int argc, char **argv, void *arg)
{
    parse_with(argp, argc, argv, 0, arg);
}

void command_parse_in_order(const struct argp *argp, int argc, char **argv, void *arg)
{
    parse_with(argp, argc, argv, ARGP_IN_ORDER, arg);
}

bool arg_number(const char *text, int64_t max, int64_t *ret)
{
    int64_t v = 0;
    if (!text[0])
        return false;
    for (const char *p = text; *p; p++) {
        if (*p < '0' || *p > '9' || v > (max - (*p - '0')) / 10)
            return false;
        v = 10 * v + (*p - '0');
    }
    *ret = v;
    return true;
}

error_t parse_job(int key, char *arg, struct argp_state *state, struct global *g, const char **job)
{
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = g;
        return 0;
    case ARGP_KEY_ARG:
        if (*job)
            argp_error(state, "one job at a time");
        *job = arg;
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "which job? See dtctl status");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

error_t parse_jobs(int key, char *arg, struct argp_state *state, struct global *g, const char **jobs, int *n_jobs)
{
    const char *one = NULL;
    error_t r = parse_job(key, arg, state, g, &one);
    if (one)
        jobs[(*n_jobs)++] = one;
    return r;
}

/* ---- finding a command ---- */

void command_list(const struct command *table, int n, FILE *f)
{
    for (int i = 0; i < n; i++)
        fprintf(f, "  %-9s %s\n", table[i].name, table[i].summary);
}

/* The Levenshtein distance. Names are short, so the row fits on the stack. */
static int edit_distance(const char *a, const char *b)
{
    int row[33], n = (int)strlen(b);
    if (n > 32 || strlen(a) > 32)
        return 99;
    for (int j = 0; j <= n; j++)
        row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            best = row[j] + 1 < best ? row[j] + 1 : best;
            row[j] = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
        }
    }
    return row[n];
}

const char *command_nearest(const struct command *table, int n, const char *name)
{
    const char *ret = NULL;
    int best = 3;
    for (int i = 0; i < n; i++) {
        int d = edit_distance(name, table[i].name);
        if (d < best && d < (int)strlen(table[i].name)) {
            best = d;
            ret = table[i].name;
        }
    }
    return ret;
}

int command_dispatch(const struct command *table, int n, const char *prefix, struct global *g, int argc, char **argv)
{
    char name[64];
    for (int i = 0; i < n; i++) {
        if (strcmp(argv[1], table[i].name) != 0)
            continue;
        snprintf(name, sizeof(name), "%s %s", prefix, table[i].name);
        argv[1] = name;
        return table[i].run(g, argc - 1, argv + 1);
    }
    const char *near = command_nearest(table, n, argv[1]);
    return command_complain(EXIT_REFUSED, "there is no command '%s %s'.%s%s%s See %s --help", prefix, argv[1],
                            near ? " Did you mean '" : "", near ? near : "", near ? "'?" : "", prefix);
}

int command_group(const struct command *table, int n, const char *name, struct global *g, int argc, char **argv)
{
    bool help = argc >= 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-?") == 0 ||
                              strcmp(argv[1], "help") == 0 || strcmp(argv[1], "-h") == 0);
    if (argc >= 2 && !help)
        return command_dispatch(table, n, name, g, argc, argv);
    FILE *f = help ? stdout : stderr;
    fprintf(f, "Usage: %s COMMAND [ARGUMENT...]\n\nCommands:\n", name);
    command_list(table, n, f);
    fprintf(f, "\nHelp on a command: %s COMMAND --help\n", name);
    return help ? EXIT_DONE : EXIT_REFUSED;
}

/* ---- errors ---- */

static int exit_of(err_t err)
{
    static const struct {
        err_t err;
        enum exit_code code;
    } table[] = {{OK, EXIT_DONE},           {ERR_INVALID, EXIT_REFUSED},     {ERR_EXISTS, EXIT_REFUSED},
                 {ERR_LIMIT, EXIT_REFUSED}, {ERR_UNSUPPORTED, EXIT_REFUSED}, {ERR_NOTFOUND, EXIT_NOT_FOUND},
                 {ERR_CLOSED, EXIT_RETRY},  {ERR_TIMEOUT, EXIT_RETRY},       {ERR_AGAIN, EXIT_RETRY},
                 {ERR_BUSY, EXIT_RETRY}};
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        if (table[i].err == err)
            return table[i].code;
    return EXIT_ERROR;
}

int command_fail(err_t err, const struct why *why)
{
    fflush(stdout);
    fprintf(stderr, "dtctl: %s\n", why && why->text[0] ? why->text : err_text(err));
    return exit_of(err);
}

int command_refuse(err_t err, const struct why *why)
{
    int code = command_fail(err, why);
    return err == ERR_NOMEM || err == ERR_INTERNAL ? code : EXIT_REFUSED;
}

int command_complain(enum exit_code code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fflush(stdout);
    fputs("dtctl: ", stderr);
    vfprintf(stderr, fmt, ap);
    fputc('\n', stderr);
    va_end(ap);
    return code;
}

int command_json(const struct global *g, json_t *value)
{
    err_t err = out_json(value, g->format == OUT_JSONL);
    if (err == ERR_CLOSED) /* the reader has exited, as in `| head` */
        return EXIT_DONE;
    if (err)
        clearerr(stdout); /* reported here, and not again at the end */
    return err ? command_complain(EXIT_ERROR, "cannot write the output: %s",
                                  err == ERR_IO ? strerror(errno) : err_text(err))
               : EXIT_DONE;
}
