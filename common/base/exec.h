/* Starting a program with exactly these descriptors, cores, environment and user, and with no other. */
#ifndef DTD_COMMON_BASE_EXEC_H
#define DTD_COMMON_BASE_EXEC_H

#include "common/base/user.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXEC_MAX_FDS 264
#define EXEC_MAX_CPUS 1024

struct exec {
    const char *path;
    const char *const *argv;
    const char *env; /* "K=V\0" .., in place of what we have ourselves; a PWD is entered, as the user */
    size_t env_bytes;
    int log;        /* becomes 1 and 2; -1: stay ours */
    int out;        /* becomes 1; 0: it is the log */
    const int *fds; /* become 3, 4, .. */
    int n_fds;
    const uint8_t *cpus;     /* EXEC_MAX_CPUS bits, or NULL: unbound */
    bool group;              /* a process group of its own */
    const struct user *user; /* NULL: as ourselves */
};

/* Returns the pid, or -1 with errno. The child dies with us. One that cannot become the program ends with 127 and says
 * why in its log. */
pid_t exec_start(const struct exec *x);

#endif
