/* Configuration of a dtd that Slurm has started (`dtd --slurm`), from the environment of the allocation. srun starts
 * one dtd on each node of the step. Together they are a cluster for the duration of the step: node 0 creates it, and
 * the others join with its key. The state directory contains the Slurm job's id and restart count in its name, so a
 * requeued job never reads state of an earlier run. Pure functions, except slurm_key and slurm_make. */
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
    int node, nodes; /* index of this node in the step, number of nodes */
    int cpus;        /* of this node in the step; 0: unknown */
    int port;        /* of node 0; node k listens on port + k, since nodes may share an address in a test */
    char **names;    /* of the nodes, by index; one block */
};

typedef const char *slurm_env(const char *name); /* getenv, or a test's */

/* ERR_INVALID: not started by srun, or not exactly once per node; `why` has the command to start it. */
NODISCARD err_t slurm_read(slurm_env *env, struct slurm *ret, struct why *why);
void slurm_fini(struct slurm *s);

/* The state directory of this node: $DTD_DIR/JOB.RESTART/NODE, else dtd-UID-JOB.RESTART/NODE in $TMPDIR or /tmp. */
NODISCARD err_t slurm_state_dir(const struct slurm *s, slurm_env *env, unsigned uid, char *ret, size_t size,
                                struct why *why);
/* Appends YAML: name, slots, cluster.*. */
NODISCARD err_t slurm_conf(const struct slurm *s, const char *key_file, struct buf *ret);

/* The cluster's key. The batch script has put it into DTD_SLURM_KEY as a MUNGE credential that only this user can
 * decode: users who may read Slurm's state can read the environment of a job, but cannot decode the credential.
 * libmunge is loaded on demand. ERR_UNSUPPORTED: no libmunge; ERR_DENIED: a credential of another user. */
NODISCARD err_t slurm_key(slurm_env *env, uint8_t ret[SLURM_KEY_BYTES], struct why *why);

struct slurm_state {
    char dir[PATH_STATE_DIR_MAX + 1], conf[PATH_STATE_DIR_MAX + 16], key_file[PATH_STATE_DIR_MAX + 16];
};

/* All of the above: creates the state directory, which only this user may enter, with the key and the configuration in
 * it, and removes the directories of earlier runs of the same Slurm job on this node. Blocking. */
NODISCARD err_t slurm_make(slurm_env *env, struct slurm_state *ret, struct why *why);

#endif
