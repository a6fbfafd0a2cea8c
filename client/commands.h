/* The commands of dtctl, one table row each, and what all commands share: global options, exit codes, error messages.
 *
 * A command is a file client/cmd_<verb>.c with one function, and a row in commands.c; no other file names it. `dtctl
 * help` is printed from the rows, and argp generates each command's --help. Tests compare the manual page and the shell
 * completions with both. */
#ifndef DTD_CLIENT_COMMANDS_H
#define DTD_CLIENT_COMMANDS_H

#include "client/out.h"
#include "common/base/err.h"

#include <argp.h>
#include <limits.h>
#include <stdbool.h>

/* Scripts depend on these values; dtctl(1) documents them. */
enum exit_code {
    EXIT_DONE = 0,
    EXIT_ERROR = 1,
    EXIT_REFUSED = 2, /* invalid request; nothing was started */
    EXIT_NOT_FOUND = 3,
    EXIT_JOB_FAILED = 4,
    EXIT_JOB_CANCELED = 5,
    EXIT_RETRY = 75,        /* no daemon answers, or it is not ready: try again */
    EXIT_INTERRUPTED = 130, /* Ctrl-C ended the watching; the job continues. 128 + SIGINT, as shells report it */
};

/* The options of every command, which may precede or follow its name. */
struct global {
    char state_dir[PATH_MAX];   /* absolute: the folder of the daemon's control.sock */
    char private_dir[PATH_MAX]; /* the private dtd's, which up and down use */
    enum out_format format;
    bool sigpipe_ignored; /* by the caller of dtctl, which ignores the signal itself */
};

struct command {
    const char *name, *summary;
    int (*run)(struct global *g, int argc, char **argv); /* argv[0]: "dtctl submit"; returns an exit code */
};

extern const struct command commands[];
extern const int n_commands;

/* Sets the directories: DTD_DIR, else $XDG_STATE_HOME/dtd, else ~/.local/state/dtd (see path_state_dir). Without
 * DTD_DIR, state_dir is that of the system-wide dtd if it runs and no private dtd does. */
NODISCARD err_t global_init(struct global *g, struct why *why);
/* --dtd-dir and -o, a child of every command's argp. Its input is a struct global. */
extern const struct argp global_argp;
extern const struct argp_child global_children[];

/* Parses a command's arguments. Exits on --help and on a usage error (exit 2). The parser gets `arg` as state->input;
 * its first member must be `struct global *`. */
void command_parse(const struct argp *argp, int argc, char **argv, void *arg);
/* The same for a command line that ends in another program's: options end at the first word that is none. */
void command_parse_in_order(const struct argp *argp, int argc, char **argv, void *arg);
/* Runs the command that argv[1] names, of dtctl or of a group such as `dtctl ckpt`. `prefix`: "dtctl", "dtctl ckpt". */
int command_dispatch(const struct command *table, int n, const char *prefix, struct global *g, int argc, char **argv);
/* A command with subcommands: runs the one that is named, or prints the list (for --help, or when none is named). */
int command_group(const struct command *table, int n, const char *name, struct global *g, int argc, char **argv);
/* Prints the output of `dtctl --help`. */
void help_print(FILE *f);
/* The command that an alias (ls, ps, stop ..) means, or the word itself. */
char *command_alias(char *word);
void command_list(const struct command *table, int n, FILE *f);
/* The command name nearest to `name` by edit distance; NULL when none is near. */
const char *command_nearest(const struct command *table, int n, const char *name);

/* Prints "dtctl: <why>" on standard error and returns the error's exit code. */
int command_fail(err_t err, const struct why *why);
/* The same for a request that is refused before anything was started: a missing file gives 2, not 3. */
int command_refuse(err_t err, const struct why *why);
int command_complain(enum exit_code code, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Prints a value as JSON (see out_json), and the error if that fails; returns an exit code. */
int command_json(const struct global *g, json_t *value);

/* ---- arguments ---- */

/* Parses a job's id or a count: digits only. Returns false for any other text and for numbers above `max`. */
bool arg_number(const char *text, int64_t max, int64_t *ret);
/* The default case of a parser whose command takes exactly one JOB: stores it, and passes the global options on. */
error_t parse_job(int key, char *arg, struct argp_state *state, struct global *g, const char **job);
/* The same for one JOB or several. `jobs` has room for all of the command's arguments. */
error_t parse_jobs(int key, char *arg, struct argp_state *state, struct global *g, const char **jobs, int *n_jobs);

int cmd_up(struct global *g, int argc, char **argv);
int cmd_down(struct global *g, int argc, char **argv);
int cmd_run(struct global *g, int argc, char **argv);
int cmd_submit(struct global *g, int argc, char **argv);
int cmd_status(struct global *g, int argc, char **argv);
int cmd_metrics(struct global *g, int argc, char **argv);
int cmd_logs(struct global *g, int argc, char **argv);
int cmd_why(struct global *g, int argc, char **argv);
int cmd_events(struct global *g, int argc, char **argv);
int cmd_top(struct global *g, int argc, char **argv);
int cmd_profile(struct global *g, int argc, char **argv);
int cmd_report(struct global *g, int argc, char **argv);
int cmd_cancel(struct global *g, int argc, char **argv);
int cmd_rm(struct global *g, int argc, char **argv);
int cmd_resume(struct global *g, int argc, char **argv);
int cmd_rerun(struct global *g, int argc, char **argv);
int cmd_plan(struct global *g, int argc, char **argv);
int cmd_explain(struct global *g, int argc, char **argv);
int cmd_ckpt(struct global *g, int argc, char **argv);
/* Resolves `path` (a step folder, a folder of steps, or a job's id) to a step folder: the newest where it is a choice.
 */
NODISCARD err_t ckpt_step_find(struct global *g, const char *path, char ret[PATH_MAX], struct why *why);
/* The argument of --measured itself, or the checkpoint folder of the job whose id it is. */
NODISCARD err_t measured_folder_find(struct global *g, const char *text, char ret[PATH_MAX], struct why *why);
int cmd_ckpt_export(struct global *g, int argc, char **argv);
int cmd_ckpt_import(struct global *g, int argc, char **argv);
int cmd_ckpt_upcycle(struct global *g, int argc, char **argv);
int cmd_data(struct global *g, int argc, char **argv);
int data_show(struct global *g, int argc, char **argv);
int data_tokenize(struct global *g, int argc, char **argv);
int cmd_generate(struct global *g, int argc, char **argv);
int cmd_store(struct global *g, int argc, char **argv);
int cmd_cluster(struct global *g, int argc, char **argv);
int cmd_node(struct global *g, int argc, char **argv);
int cmd_web(struct global *g, int argc, char **argv);
int cmd_version(struct global *g, int argc, char **argv);
int cmd_help(struct global *g, int argc, char **argv);

#endif
