/* What Slurm says of the allocation that this dtd was started in (`dtd --slurm`), as dtd's configuration. srun starts
 * one dtd on each node of the step; together they are a cluster that lives as long as the step: node 0 makes it, the
 * others are admitted by its key. State is keyed by the Slurm job and its restart count, so that a requeued job never
 * meets what an earlier life has left. Pure, except slurm_key and slurm_make. */
#ifndef DTD_DAEMON_CONTROL_SLURM_SLURM_H
#define DTD_DAEMON_CONTROL_SLURM_SLURM_H

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/base/paths.h"

#include <stdint.h>

#define SLURM_KEY_BYTES 32

struct slurm {
    uint64_t job;
    unsigned restart;
    int node, nodes; /* of the step */
    int cpus;        /* of this node that the step has; 0: Slurm does not say */
    int port;        /* of node 0; node k listens on port + k, since nodes may share an address in a test */
    char **names;    /* of the nodes, by index; one block */
};

typedef const char *slurm_env(const char *name); /* getenv, or a test's */

/* ERR_INVALID: not under srun, or started otherwise than once per node; the sentence says how. */
NODISCARD err_t slurm_read(slurm_env *env, struct slurm *ret, struct why *why);
void slurm_fini(struct slurm *s);

/* Where this node's state lies: $DTD_DIR/JOB.RESTART/NODE, else dtd-UID-JOB.RESTART/NODE in $TMPDIR or /tmp. */
NODISCARD err_t slurm_state_dir(const struct slurm *s, slurm_env *env, unsigned uid, char *ret, size_t size,
                                struct why *why);
/* Appends YAML: name, slots, cluster.*. */
NODISCARD err_t slurm_conf(const struct slurm *s, const char *key_file, struct buf *ret);

/* The cluster's key, which the batch script has put into DTD_SLURM_KEY as a MUNGE credential that only our user can
 * open: the environment of a job can be read by whoever may read Slurm's state, the credential says nothing to them.
 * libmunge is loaded when it is needed. ERR_UNSUPPORTED without it, ERR_DENIED for a credential that is not ours. */
NODISCARD err_t slurm_key(slurm_env *env, uint8_t ret[SLURM_KEY_BYTES], struct why *why);

struct slurm_state {
    char dir[PATH_STATE_DIR_MAX + 1], conf[PATH_STATE_DIR_MAX + 16], key_file[PATH_STATE_DIR_MAX + 16];
};

/* All of the above: makes the state directory, which nobody else may enter, with the key and the configuration in it,
 * and removes what earlier lives of the same Slurm job have left on this node. Blocking. */
NODISCARD err_t slurm_make(slurm_env *env, struct slurm_state *ret, struct why *why);

#endif
