/* Starts a program with exactly the given descriptors, cores, environment and user. */
#ifndef DTD_COMMON_BASE_EXEC_H
#define DTD_COMMON_BASE_EXEC_H

#include "common/base/user.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EXEC_MAX_FDS 264
#define EXEC_MAX_CPUS 1024 /* CPU_SETSIZE of glibc */
/* The variable of `mark`. A program that replaces its environment keeps it (worker/command.c). */
#define EXEC_MARK_VARIABLE "DTD_PROCESS"

struct exec {
    const char *path;
    const char *const *argv;
    const char
        *env; /* "K=V\0" .., added to this process's environment; PWD is the working folder, entered as the user */
    size_t env_bytes;
    int log;        /* becomes descriptors 1 and 2; -1: they stay as in this process */
    int out;        /* becomes descriptor 1; 0: the log does */
    const int *fds; /* become descriptors 3, 4, .. */
    int n_fds;
    const uint8_t *cpus;     /* EXEC_MAX_CPUS bits; NULL: not bound */
    bool group;              /* start a new process group */
    int cgroup;              /* cgroup.procs of the control group to enter, open for writing; 0: this process's */
    const char *mark;        /* EXEC_MARK_VARIABLE "=.." for the environment; NULL: none */
    const struct user *user; /* NULL: the user of this process */
};

/* Returns the pid, or -1 with errno. The kernel kills the child when this process exits. A child that cannot execute
 * the program logs the reason and exits with status 127. */
pid_t exec_start(const struct exec *x);

#endif
