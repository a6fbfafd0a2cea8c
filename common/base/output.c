/* stdio reports an error of a buffered write only when the buffer is written, which is often within exit(). */
#include "common/base/output.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *name;

/* Whether standard output is a pipe whose reader has ended, as in `| head`. */
static bool is_closed_pipe(void)
{
    struct pollfd p = {.fd = STDOUT_FILENO, .events = POLLOUT};
    return errno == EPIPE || (poll(&p, 1, 0) == 1 && (p.revents & POLLERR));
}

static void output_check(void)
{
    errno = 0;
    int failed = ferror(stdout);
    if ((!fflush(stdout) && !failed) || is_closed_pipe())
        return;
    fprintf(stderr, "%s: cannot write the output: %s\n", name, errno ? strerror(errno) : "an earlier write failed");
    _exit(1);
}

void output_check_at_exit(const char *program)
{
    name = program;
    atexit(output_check);
}
