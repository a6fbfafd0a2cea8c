/* See command.h. The supervisor may run as root and therefore starts only programs of dtd. This process runs as the
 * user, in the user's folder and with the user's PATH, so it looks up the program. The program is killed with the
 * supervisor, as this process is. */
#include "worker/command.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int command_become(char *const *argv)
{
    const char *path = getenv("PATH");
    if (!argv[0]) {
        fprintf(stderr, "dtd: no command was given\n");
        return 126;
    }
    execvp(argv[0], argv);
    int e = errno;
    if (e == ENOENT && !strchr(argv[0], '/'))
        fprintf(stderr, "dtd: %s: no such program in PATH, which is %s\n", argv[0], path ? path : "not set");
    else
        fprintf(stderr, "dtd: %s: %s\n", argv[0], strerror(e));
    return e == ENOENT ? 127 : 126;
}
