/* Finds what a process of a job has started, on machines without a control group for it. The supervisor is the
 * subreaper of its descendants: when a process ends, its children become the supervisor's. So everything that a process
 * has started is either below it, or below an orphan that the supervisor has got. An orphan names the process that it
 * descends from by a variable of its environment, DESCEND_VARIABLE.
 *
 * A process that clears its environment is not recognised by it. Such an orphan is ended as soon as no other process of
 * a job runs for its user. */
#ifndef DTD_DAEMON_SUPERVISOR_DESCEND_H
#define DTD_DAEMON_SUPERVISOR_DESCEND_H

#include "common/base/exec.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define DESCEND_VARIABLE EXEC_MARK_VARIABLE
#define DESCEND_MARK_BYTES 64

/* Makes this process the subreaper. `ret_sole`: this process had no children yet, and is not process 1 of a container,
 * so that every orphan it gets descends from a job. Returns 0 or an errno. */
int descend_start(bool *ret_sole);
/* "VARIABLE=PID/JOB/SLOT" for a process that this process starts. */
void descend_mark(uint64_t job, int slot, char ret[DESCEND_MARK_BYTES]);

struct descend {
    const char *mark; /* of the process that has ended */
    uid_t uid;        /* its user */
    bool alone;       /* orphans of this user without a mark are ended, too: no other program can have started them */
    /* Whether a child of this process is one that it started itself, and no orphan. */
    bool (*is_own)(void *owner, pid_t pid);
    void *owner;
};

/* The processes of the machine, by their numbers. Zero-initialized; it keeps its memory. */
struct descend_process {
    pid_t pid, parent;
    bool is_zombie, chosen;
};
struct descend_list {
    struct descend_process *p;
    int n, room;
};

/* Reads the list from /proc. False: it cannot be read, or memory is exhausted. */
bool descend_look(struct descend_list *l);
/* Sends SIGKILL to all that descends from the process. It has ended before the list was read. Returns how many of them
 * ran; the caller looks again until it returns 0, because they may have started others meanwhile. */
int descend_kill(const struct descend *x, struct descend_list *l);

#endif
