/* dtctl: what a person types. It owns nothing: everything is asked of a dtd or read from files. Global options may
 * stand before the command; the rest of the line belongs to the command. */
#include "client/commands.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

struct args {
    struct global *global;
    int first; /* index of the command in argv, 0: none */
};

static void print_commands(FILE *f)
{
    fputs("Usage: dtctl [--dtd-dir DIR] [-o FORMAT] COMMAND [ARGUMENT...]\n\nCommands:\n", f);
    command_list(commands, n_commands, f);
    fputs(
        "\n  -D, --dtd-dir=DIR     state directory of the daemon (default: $DTD_DIR, else the XDG place)\n"
        "  -o, --output=FORMAT   text, json, or jsonl (one object a line) for streams\n"
        "\nExit: 0 ok, 1 error, 2 cannot be done as written, 3 not found, 4 job failed, 5 job canceled, 75 try again\n"
        "First steps: dtctl up; dtctl submit job.yaml; dtctl status. Help on one command: dtctl help COMMAND\n",
        f);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct args *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = a->global;
        return 0;
    case 'h':
        print_commands(stdout);
        exit(EXIT_DONE);
    case 'V':
        printf("dtctl %s\n", DTD_VERSION);
        exit(EXIT_DONE);
    case ARGP_KEY_ARG:
        a->first = state->next - 1;
        state->next = state->argc;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static int command_help(struct global *g, char *name)
{
    char program[] = "dtctl", help[] = "--help";
    char *argv[] = {program, name, help, NULL};
    return command_dispatch(commands, n_commands, "dtctl", g, 3, argv);
}

int cmd_help(struct global *g, int argc, char **argv)
{
    if (argc < 2 || argv[1][0] == '-' || strcmp(argv[1], "help") == 0) {
        print_commands(stdout);
        return EXIT_DONE;
    }
    return command_help(g, argv[1]);
}

int main(int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"help", 'h', 0, 0, 0, 0}, {"usage", 'h', 0, OPTION_ALIAS, 0, 0}, {"version", 'V', 0, 0, 0, 0}, {0}};
    const struct argp argp = {.options = options, .parser = parse, .children = global_children};
    struct global global;
    struct why why = {0};
    struct args args = {.global = &global};
    char name[] = "dtctl";

    signal(SIGPIPE, SIG_IGN);
    argv[0] = name;
    err_t err = global_init(&global, &why);
    argp_err_exit_status = EXIT_REFUSED;
    if (argp_parse(&argp, argc, argv, ARGP_IN_ORDER | ARGP_NO_HELP, NULL, &args))
        return EXIT_ERROR;
    if (!args.first) {
        print_commands(stderr);
        return EXIT_REFUSED;
    }
    if (err && !global.state_dir[0])
        return command_fail(err, &why);
    argv[args.first - 1] = name;
    return command_dispatch(commands, n_commands, "dtctl", &global, argc - args.first + 1, argv + args.first - 1);
}
