/* Control groups (cgroup v2) for the processes of jobs, in the subtree that the service manager or the user's systemd
 * delegates to this process:
 *
 *   OWN/dtd-RANDOM/daemon         the supervisor, dtd-control, dtd-web and the probes
 *   OWN/dtd-RANDOM/job-7          the limits of the job
 *   OWN/dtd-RANDOM/job-7/rank-0   a process of the job, with everything that it starts
 *   OWN/dtd-RANDOM/job-7/io
 *
 * A process cannot leave its group by setsid or fork, so that a group names what a process of a job has started.
 * Without a delegated subtree, descend.h finds the processes, and there are no limits. Owned by the supervisor, one
 * thread. */
#ifndef DTD_DAEMON_SUPERVISOR_CGROUP_H
#define DTD_DAEMON_SUPERVISOR_CGROUP_H

#include "daemon/supervisor/channel.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum cgroup_controller {
    CGROUP_MEMORY = 1,
    CGROUP_CPU = 2,
    CGROUP_PIDS = 4,
};

struct cgroup_tree {
    int dir;                /* of dtd-RANDOM; -1: there are no groups */
    unsigned controllers;   /* of the jobs' groups: a set of enum cgroup_controller */
    char path[PATH_MAX];    /* of dtd-RANDOM */
    char record[PATH_MAX];  /* the file in the state directory that names the path for the next supervisor */
    char missing[PATH_MAX]; /* why there is no group, or which controllers are missing; "": nothing is */
};

/* Creates the groups and moves this process into `daemon`, if the group of this process is delegated to it: always with
 * `system`, else if it belongs to this user, who is not root, or has the mark of systemd's Delegate=. Processes that a
 * previous supervisor of the state directory left in its groups are killed first. */
void cgroup_start(struct cgroup_tree *t, bool system, const char *state_dir);
/* Kills all processes of jobs and removes the groups, as far as they are empty. */
void cgroup_stop(struct cgroup_tree *t);
bool cgroup_exists(const struct cgroup_tree *t);

/* Each returns 0 or an errno. Without groups they do nothing and return 0, except that a required limit is EOPNOTSUPP.
 */
/* Creates the job's group, unless it exists, and sets its limits. EOPNOTSUPP: a required limit needs a controller that
 * is not delegated. */
int cgroup_job(const struct cgroup_tree *t, uint64_t job, const struct channel_limits *limits);
/* Creates an empty group for a process. `ret`: its cgroup.procs, open for writing; 0: there are no groups. */
int cgroup_process(const struct cgroup_tree *t, uint64_t job, int slot, int *ret);

/* Lets the processes of the job open only these GPUs (device_guard.h). */
int cgroup_job_guard(const struct cgroup_tree *t, uint64_t job, uint64_t gpu_minors);

/* Kills what is in the group of a process. Returns true when nothing runs there any more. */
bool cgroup_process_kill(const struct cgroup_tree *t, uint64_t job, int slot);
/* Removes the empty group of a process, or of the job with those of its processes. False: something runs there. */
void cgroup_process_remove(const struct cgroup_tree *t, uint64_t job, int slot);
bool cgroup_job_remove(const struct cgroup_tree *t, uint64_t job);

/* How often the job reached its memory limit. 0: never, or it has none. */
int64_t cgroup_job_oom(const struct cgroup_tree *t, uint64_t job);
/* Number of processes in the group that the kernel has killed for lack of memory. */
int64_t cgroup_process_oom(const struct cgroup_tree *t, uint64_t job, int slot);

/* The path of the cgroup v2 of this process; `mounts` is /proc/self/mountinfo and `own` /proc/self/cgroup as text.
 * False: there is none. */
bool cgroup_own_path(const char *mounts, const char *own, char *ret, size_t size);

#endif
