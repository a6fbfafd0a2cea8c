/* dtctl help: prints the list of commands, or the output of `dtctl COMMAND --help`. */
#include "client/commands.h"

#include <string.h>

void help_print(FILE *f)
{
    fputs("Usage: dtctl [--dtd-dir DIR] [-o FORMAT] COMMAND [ARGUMENT...]\n\nCommands:\n", f);
    command_list(commands, n_commands, f);
    fputs("\n  -D, --dtd-dir=DIR     state directory of the daemon (default: $DTD_DIR, else\n"
          "                        $XDG_STATE_HOME/dtd, else ~/.local/state/dtd)\n"
          "  -o, --output=FORMAT   text, json, or jsonl (one object per line, for streams)\n"
          "\nExit status: 0 ok, 1 error, 2 invalid request, 3 not found, 4 job failed,\n"
          "  5 job canceled, 75 try again\n"
          "First steps: dtctl up; dtctl submit job.yaml; dtctl status\n"
          "Help on a command: dtctl help COMMAND\n",
          f);
}

int cmd_help(struct global *g, int argc, char **argv)
{
    char program[] = "dtctl", help[] = "--help";
    if (argc < 2 || argv[1][0] == '-' || strcmp(argv[1], "help") == 0) {
        help_print(stdout);
        return EXIT_DONE;
    }
    char *line[] = {program, argv[1], help, NULL};
    return command_dispatch(commands, n_commands, "dtctl", g, 3, line);
}
