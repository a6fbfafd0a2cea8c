/* Which CPUs a worker is bound to ("cores", as jobs and documents call them). Pure book-keeping over the machine's
 * topology. */
#ifndef DTD_DAEMON_CONTROL_LOCAL_CORES_H
#define DTD_DAEMON_CONTROL_LOCAL_CORES_H

#include "daemon/control/local/topology.h"
#include "daemon/supervisor/channel.h"

struct cores {
    struct topology at;
    int users[CHANNEL_MAX_CPUS]; /* bound workers per at.cpu[i] */
};

/* Where a worker wants its CPUs, unless it is an index of a node in `at`. */
enum cores_home {
    CORES_ANY = -1,     /* in one node, whichever that is: the worker has no GPU */
    CORES_UNKNOWN = -2, /* its GPU's node is not known: by number, as on a machine with one node */
};

/* The CPUs are those of our own affinity, and lie as sysfs says; a line in the log where that is of no use. Blocks on
 * files. */
void cores_init(struct cores *s, const char *sysfs);
/* How many workers a node takes when nobody has said: 16, or one a core, whichever is more. */
int cores_default(const struct cores *s);

/* The CPUs of one worker out of `workers` that start together: `threads` of them, or an equal share when that is 0; the
 * least used first. Returns how many of them do not lie in the node `home`, for which a node index was given or chosen.
 *
 * All zero (unbound) when the job has more workers than there are CPUs: two workers bound to one CPU beside a free one
 * would wait for each other at every barrier.
 *
 * Where our CPUs lie in one node, or `home` is CORES_UNKNOWN, the order is ascending by number. On several nodes it is
 * `home`, then the other nodes by their distance from it; within a node:
 *   - where the workers together want more CPUs than there are physical cores: whole cores, all their threads;
 *   - where they do not: one thread of each core, those first that no worker uses. A worker without a GPU goes to such
 *     a core in another node rather than share one: a second thread on a core adds little.
 * With CORES_ANY the home is the node that gives the most of the CPUs, and of such nodes the one whose cores are shared
 * least with other workers; of equals the first, so that consecutive ranks lie in one node. */
int cores_bind(struct cores *s, int workers, int threads, int home, uint8_t ret_cpus[CHANNEL_MAX_CPUS / 8]);
/* A worker that is found bound to these. */
void cores_use(struct cores *s, const uint8_t cpus[CHANNEL_MAX_CPUS / 8]);
void cores_unbind(struct cores *s, const uint8_t cpus[CHANNEL_MAX_CPUS / 8]);
/* The home of a worker whose GPU lies in the kernel's NUMA node `number`; -1: not known. */
int cores_home(const struct cores *s, int number);

#endif
