/* Chooses the CPUs that a worker is bound to (job files and documents call them "cores"). The module only does
 * bookkeeping over the machine's topology; the supervisor binds the process. */
#ifndef DTD_DAEMON_CONTROL_LOCAL_CORES_H
#define DTD_DAEMON_CONTROL_LOCAL_CORES_H

#include "daemon/control/local/topology.h"
#include "daemon/supervisor/channel.h"

struct cores {
    struct topology at;
    int users[CHANNEL_MAX_CPUS]; /* number of workers that are bound to at.cpu[i] */
};

/* The NUMA node in which a worker's CPUs should be: the index of a node in `at`, or one of these. */
enum cores_home {
    CORES_ANY = -1,     /* any node, but the same one for all its CPUs: the worker has no GPU */
    CORES_UNKNOWN = -2, /* the node of its GPU is not known: CPUs by number */
};

/* Reads the CPUs of this process's own affinity, and their topology from sysfs. If the topology is not usable, logs a
 * warning and works without it. Blocks on files. */
void cores_init(struct cores *s, const char *sysfs);
/* Slots of this node if its configuration does not set them: 16, or one per CPU, whichever is more. */
int cores_default(const struct cores *s);

/* The number of CPUs for each of `workers` workers whose job has these keys (0: not given); 0: an equal share.
 * run.cores is a maximum: it counts only if there are so many CPUs for all of them. */
int cores_width(const struct cores *s, int workers, int run_threads, int64_t run_cores);
/* Chooses the CPUs of one of `workers` workers that start together: `threads` CPUs, or an equal share if that is 0.
 * CPUs with the fewest users come first. Returns how many of them are outside the home node, which is `home` or, with
 * CORES_ANY, the node that was chosen.
 *
 * The set is empty (the worker is not bound) if the job has more workers than there are CPUs: two workers bound to one
 * CPU would wait for each other at every barrier, even if another CPU were idle.
 *
 * If our CPUs are in one node, `home` has no effect. On several nodes, CPUs of the home node come first, then those of
 * other nodes by their distance from it; with CORES_UNKNOWN, CPUs are used in ascending order of their numbers. Within
 * a node:
 *   - If the workers together want more CPUs than there are physical cores, a worker gets whole cores with all their
 *     threads.
 *   - Otherwise a worker gets one thread of each core, starting with cores that no worker uses. A worker without a GPU
 *     gets an unused core in another node rather than a second thread on a shared core, which adds little.
 * With CORES_ANY the home is the node that has the most of the wanted CPUs; among equals, the node whose cores are
 * shared least with other workers, apart from an odd last thread; among equals of both, the first node, so that
 * consecutive ranks are in one node. */
int cores_bind(struct cores *s, int workers, int threads, int home, uint8_t ret_cpus[CHANNEL_MAX_CPUS / 8]);
/* Counts a worker that an earlier control bound to these CPUs. */
void cores_use(struct cores *s, const uint8_t cpus[CHANNEL_MAX_CPUS / 8]);
/* Counts the worker no longer. */
void cores_unbind(struct cores *s, const uint8_t cpus[CHANNEL_MAX_CPUS / 8]);
/* The home of a worker whose GPU is in the NUMA node that the kernel numbers `number` (-1: not known). */
int cores_home(const struct cores *s, int number);

#endif
