/* The commands of dtctl: a row each, and what all of them share (global options, exit codes, how an error is said).
 *
 * A command is a file client/cmd_<verb>.c with one function, and a row in commands.c; nothing else knows it. The row
 * makes `dtctl help`; argp makes the command's own --help; a test holds man page and completions to the table. */
#ifndef DTD_CLIENT_COMMANDS_H
#define DTD_CLIENT_COMMANDS_H

#include "client/out.h"
#include "common/base/err.h"

#include <argp.h>
#include <limits.h>
#include <stdbool.h>

/* Scripts rely on these. */
enum exit_code {
    EXIT_DONE = 0,
    EXIT_ERROR = 1,
    EXIT_REFUSED = 2, /* what was asked cannot be done as written */
    EXIT_NOT_FOUND = 3,
    EXIT_JOB_FAILED = 4,
    EXIT_JOB_CANCELED = 5,
    EXIT_RETRY = 75, /* no daemon, or not ready */
};

/* What may stand before or after a command. */
struct global {
    char state_dir[PATH_MAX];   /* absolute: where the daemon that is asked has its control.sock */
    char private_dir[PATH_MAX]; /* what up and down are about */
    enum out_format format;
};

struct command {
    const char *name, *summary;
    int (*run)(struct global *g, int argc, char **argv); /* argv[0]: "dtctl submit"; returns an exit code */
};

extern const struct command commands[];
extern const int n_commands;

/* DTD_DIR, else $XDG_STATE_HOME/dtd, else ~/.local/state/dtd; without DTD_DIR the system-wide dtd where one answers and
 * no private one runs. */
NODISCARD err_t global_init(struct global *g, struct why *why);
/* --dtd-dir and -o, as a child of every command's argp: its input is a struct global. */
extern const struct argp global_argp;
extern const struct argp_child global_children[];

/* Parses a command's own line; ends the program on --help and on a usage error (exit 2). `arg` is handed to the parser
 * as state->input; its first member must be `struct global *`. */
void command_parse(const struct argp *argp, int argc, char **argv, void *arg);
/* Runs the row that argv[1] names: for `dtctl VERB` and for `dtctl ckpt VERB`. `prefix` is "dtctl" or "dtctl ckpt". */
int command_dispatch(const struct command *table, int n, const char *prefix, struct global *g, int argc, char **argv);
/* A command that has commands of its own: lists them when none is named or --help is asked for. */
int command_group(const struct command *table, int n, const char *name, struct global *g, int argc, char **argv);
/* What `dtctl --help` prints. */
void help_print(FILE *f);
void command_list(const struct command *table, int n, FILE *f);
/* The row's name nearest to `name` by edit distance, NULL when none is near. */
const char *command_nearest(const struct command *table, int n, const char *name);

/* Says "dtctl: why" on standard error and returns the exit code that belongs to the error. */
int command_fail(err_t err, const struct why *why);
/* The same for what is refused before anything was started: a missing file is then 2, not 3. */
int command_refuse(err_t err, const struct why *why);
int command_complain(enum exit_code code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* out_json and its error. */
int command_json(const struct global *g, json_t *value);

/* ---- arguments ---- */

/* A job's id or a number of steps: digits only. False for anything else, and above `max`. */
bool arg_number(const char *text, int64_t max, int64_t *ret);
/* What a parser leaves to this one when its command takes exactly one JOB and the options of every command. */
error_t parse_job(int key, char *arg, struct argp_state *state, struct global *g, const char **job);

int cmd_up(struct global *g, int argc, char **argv);
int cmd_down(struct global *g, int argc, char **argv);
int cmd_run(struct global *g, int argc, char **argv);
int cmd_submit(struct global *g, int argc, char **argv);
int cmd_status(struct global *g, int argc, char **argv);
int cmd_metrics(struct global *g, int argc, char **argv);
int cmd_logs(struct global *g, int argc, char **argv);
int cmd_why(struct global *g, int argc, char **argv);
int cmd_cancel(struct global *g, int argc, char **argv);
int cmd_resume(struct global *g, int argc, char **argv);
int cmd_plan(struct global *g, int argc, char **argv);
int cmd_ckpt(struct global *g, int argc, char **argv);
/* The step folder that `path` (a step, a folder of steps, or a job's id) stands for. */
NODISCARD err_t ckpt_step_find(struct global *g, const char *path, char ret[PATH_MAX], struct why *why);
int cmd_ckpt_export(struct global *g, int argc, char **argv);
int cmd_ckpt_import(struct global *g, int argc, char **argv);
int cmd_data(struct global *g, int argc, char **argv);
int cmd_generate(struct global *g, int argc, char **argv);
int cmd_store(struct global *g, int argc, char **argv);
int cmd_cluster(struct global *g, int argc, char **argv);
int cmd_node(struct global *g, int argc, char **argv);
int cmd_version(struct global *g, int argc, char **argv);
int cmd_help(struct global *g, int argc, char **argv);

#endif
