/* dtctl: the command-line client. It has no state of its own: it sends requests to a dtd, or reads files. Global
 * options may precede the command; the command parses the rest of the line. */
#include "client/commands.h"

#include "common/base/log.h"
#include "common/base/output.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

struct dtctl_args {
    struct global *global;
    int first; /* index of the command in argv, 0: none */
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct dtctl_args *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = a->global;
        return 0;
    case 'h':
        help_print(stdout);
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

int main(int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"help", 'h', 0, 0, 0, 0}, {"usage", 'h', 0, OPTION_ALIAS, 0, 0}, {"version", 'V', 0, 0, 0, 0}, {0}};
    const struct argp argp = {.options = options, .parser = parse, .children = global_children};
    struct global global;
    struct why why = {0};
    struct dtctl_args args = {.global = &global};
    char name[] = "dtctl";

    bool ignored = signal(SIGPIPE, SIG_IGN) == SIG_IGN;
    output_check_at_exit("dtctl");
    log_init("dtctl");
    argv[0] = name;
    err_t err = global_init(&global, &why);
    global.sigpipe_ignored = ignored;
    argp_err_exit_status = EXIT_REFUSED;
    if (argp_parse(&argp, argc, argv, ARGP_IN_ORDER | ARGP_NO_HELP, NULL, &args))
        return EXIT_ERROR;
    if (!args.first) {
        help_print(stderr);
        return EXIT_REFUSED;
    }
    if (err && !global.state_dir[0])
        return command_fail(err, &why);
    argv[args.first - 1] = name;
    argv[args.first] = command_alias(argv[args.first]);
    return command_dispatch(commands, n_commands, "dtctl", &global, argc - args.first + 1, argv + args.first - 1);
}
