/* The limits of a job on this node: what it asks for (run.memory, run.cores), and in a system-wide dtd its share of the
 * node, so that it cannot take what other users' jobs need. Pure. */
#ifndef DTD_DAEMON_CONTROL_LOCAL_LIMITS_H
#define DTD_DAEMON_CONTROL_LOCAL_LIMITS_H

#include "daemon/supervisor/channel.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct limits_node {
    int64_t memory_bytes; /* of the machine; 0: not known */
    int slots, gpus;
    int64_t memory_percent; /* jobs.memory_percent: of the memory, for all jobs together; 0: no limit */
    int64_t processes;      /* jobs.processes: for each worker; 0: no limit */
    bool system;            /* only a system-wide dtd has shares */
};

struct limits_job {
    int64_t memory_bytes; /* run.memory: for each worker; 0: not given */
    int64_t cores;        /* run.cores: for each worker; 0: not given */
    int workers, gpus;    /* of the job on this node */
};

void limits_compute(const struct limits_node *n, const struct limits_job *j, struct channel_limits *ret);
/* MemTotal of /proc/meminfo; 0: not known. Reads a file. */
int64_t limits_memory(void);
/* Writes why the kernel killed a process for lack of memory, or one that it had started (`by_child`). */
void limits_why_killed(enum channel_oom oom, const struct channel_limits *x, bool by_child, char *ret, size_t size);

#endif
