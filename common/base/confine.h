/* Confinement of a process that listens to strangers: dtd-control of a system-wide dtd, and dtd-web. Before it accepts
 * the first connection, it permanently gives up access to files that it does not need (Landlock), system calls that it
 * does not make (seccomp), and every way to gain privileges (no_new_privs). The function is called once, while there is
 * one thread; later threads inherit the restrictions. tests/systemd/exposure.sh measures the result. */
#ifndef DTD_COMMON_BASE_CONFINE_H
#define DTD_COMMON_BASE_CONFINE_H

#include "common/base/err.h"

#define CONFINE_MAX 4

/* Files and folders, with all that is below them, that the process needs beside the system's libraries and settings.
 * One that does not exist yet remains closed; NULL or "": none. Listening sockets, open files and sockets of other
 * processes are not concerned. */
struct confine_files {
    const char *readable[CONFINE_MAX];
    const char *writable[CONFINE_MAX]; /* folders: also for new files */
};

/* A kernel without Landlock causes a warning in the log; a kernel without seccomp is an error. */
NODISCARD err_t confine(const struct confine_files *files, struct why *why);

#endif
