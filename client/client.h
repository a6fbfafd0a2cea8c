/* A connection to a dtd, as blocking calls: what the commands of dtctl use, and the only place in it that knows
 * protobuf.
 *
 * A client owns a uv loop and one connection to `<state dir>/control.sock`. One thread. Every call runs the loop until
 * its answer, its deadline or the end of the connection; streams hand their items to a callback meanwhile. What comes
 * back is plain structs that the caller frees with their _fini. Codes: ERR_CLOSED and ERR_TIMEOUT mean that control
 * went away or does not answer and that the same call may be made again on a new client; the others are control's own
 * words. */
#ifndef DTD_CLIENT_CLIENT_H
#define DTD_CLIENT_CLIENT_H

#include "common/base/err.h"
#include "common/plan/layout.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct client_metric {
    int64_t step;
    double loss, grad_norm, lr, tokens_per_s, step_s;
    double valid_loss, test_loss; /* NAN when the step did not evaluate */
    int workers;
    uint64_t epoch;
    int64_t wall_ms;
    bool skipped; /* the update changed nothing: loss or norm was not a number */
    struct traffic traffic;
};

struct client_worker {
    int rank, pid;
    char *state, *node;           /* node: its name, "": not known */
    int exit_status, exit_signal; /* -1: none */
};

struct client_incident {
    int64_t wall_ms;
    uint64_t epoch;
    char *seen, *decided;
    double detect_ms, recover_ms;        /* NAN: not known (yet) */
    double restart_ms, load_ms, step_ms; /* parts of recover_ms */
    int64_t lost_steps;                  /* that are made again; -1: not known (yet) */
    char *log;                           /* the end of what the worker wrote that failed; "": nothing */
};

struct client_job {
    char *job, *name, *state;
    char *reason; /* this and the other strings below: "" when there is none */
    uint64_t epoch;
    int64_t step, steps;
    int workers, restarts;
    int64_t submitted_ms, started_ms, ended_ms; /* 0: not yet */
    char *checkpoint_dir, *checkpoint_error;
    int64_t checkpoint_step; /* -1: none */
    bool has_last;
    struct client_metric last;
    struct client_worker *worker;
    int n_worker;
    char *parent, *spec_yaml;
    char *user; /* whose it is */
    struct client_incident *incident;
    int n_incident;
};

struct client_checkpoint {
    char *job, *path;
    int64_t step, bytes, committed_ms;
    uint64_t epoch;
    double loss; /* NAN: unknown */
};

/* Strings: "" when there is none. */
struct client_cluster_node {
    char *name, *address, *state, *role, *domain, *drained, *version;
    uint64_t id, log_index;
    int64_t silent_ms;
};

struct client_cluster {
    char *self, *leader, *note;
    struct client_cluster_node *node;
    int n_node; /* 0: the daemon's node is in no cluster */
    uint64_t log_index, log_term;
    uint32_t key, keys;
};

struct client_cluster_options { /* of a node that begins or joins a cluster; NULL: as configured */
    const char *name, *listen, *advertise, *domain;
};

struct client_node {
    char *version, *node, *state_dir, *raft_state, *warning;
    int supervisor_pid, control_pid, slots;
    int *io_pid;
    int n_io;
    uint64_t raft_term, raft_index;
    int gpus, gpus_free;           /* gpus -1: it is not known yet */
    char *gpu_model, *gpu_missing; /* of the first one; why there are none; never NULL */
};

void client_job_fini(struct client_job *job);
void client_jobs_free(struct client_job *jobs, int n);
void client_checkpoints_free(struct client_checkpoint *list, int n);
void client_node_fini(struct client_node *node);
/* done, failed or canceled. */
bool client_job_ended(const struct client_job *job);

struct client;
/* ERR_CLOSED when nobody listens there. */
NODISCARD err_t client_open(const char *state_dir, struct client **ret, struct why *why);
void client_close(struct client *c); /* NULL is legal */

/* `request_id`: 16 bytes from client_request_id; the same one when the same submit is tried again. ret_job: the new id.
 */
NODISCARD err_t client_request_id(uint8_t ret[16]);
NODISCARD err_t client_submit(struct client *c, const uint8_t request_id[16], const char *spec_yaml, const char *parent,
                              char ret_job[32], struct why *why);
NODISCARD err_t client_status(struct client *c, const char *job, struct client_job *ret, struct why *why);
NODISCARD err_t client_list(struct client *c, struct client_job **ret, int *ret_n, struct why *why);
/* `save`: its workers save first. */
NODISCARD err_t client_cancel(struct client *c, const uint8_t request_id[16], const char *job, bool save,
                              struct client_job *ret, struct why *why);
NODISCARD err_t client_checkpoints(struct client *c, const char *job, struct client_checkpoint **ret, int *ret_n,
                                   struct why *why);
NODISCARD err_t client_node_get(struct client *c, struct client_node *ret, struct why *why);
NODISCARD err_t client_shutdown(struct client *c, struct why *why);

/* What a stream calls, all on the caller's thread; a NULL one is not called. Returning false ends the stream, which
 * then returns ERR_CANCELED; so does SIGINT while a stream runs. `tick` comes about five times a second. */
struct client_stream {
    bool (*log)(void *arg, int rank, const void *text, size_t len);
    bool (*metric)(void *arg, const struct client_metric *metric);
    bool (*status)(void *arg, const struct client_job *job);
    bool (*tick)(void *arg);
    void *arg;
};
/* rank -1: all. tail_lines -1: from the start. */
NODISCARD err_t client_logs(struct client *c, const char *job, int rank, bool follow, int64_t tail_lines,
                            const struct client_stream *stream, struct why *why);
NODISCARD err_t client_metrics(struct client *c, const char *job, bool follow, int64_t from_step,
                               const struct client_stream *stream, struct why *why);
/* A status whenever it changes and every metric, until the job has ended. */
NODISCARD err_t client_watch(struct client *c, const char *job, const struct client_stream *stream, struct why *why);

/* ---- stores ---- */

struct client_store {
    char *name, *node, *user;
};
/* The caller's store of that name, where there is none yet a new one: its port on this node. */
NODISCARD err_t client_store_open(struct client *c, const char *name, int *ret_port, struct why *why);
NODISCARD err_t client_store_close(struct client *c, const char *name, struct why *why);
NODISCARD err_t client_store_list(struct client *c, struct client_store **ret, int *ret_n, struct why *why);
void client_stores_free(struct client_store *list, int n);

/* ---- the cluster ---- */

NODISCARD err_t client_cluster_status(struct client *c, struct client_cluster *ret, struct why *why);
void client_cluster_fini(struct client_cluster *c);
NODISCARD err_t client_cluster_init(struct client *c, const struct client_cluster_options *options, struct why *why);
NODISCARD err_t client_cluster_join(struct client *c, const char *token, const struct client_cluster_options *options,
                                    struct why *why);
/* The token is a secret; the caller frees it. */
NODISCARD err_t client_cluster_token(struct client *c, unsigned uses, unsigned hours, char **ret,
                                     int64_t *ret_expires_ms, struct why *why);
NODISCARD err_t client_cluster_remove(struct client *c, const char *node, struct why *why);
NODISCARD err_t client_cluster_leave(struct client *c, struct why *why);
NODISCARD err_t client_cluster_recover(struct client *c, struct why *why);
NODISCARD err_t client_cluster_rotate(struct client *c, struct why *why);
/* `reason` NULL: it is drained no more. */
NODISCARD err_t client_node_drain(struct client *c, const char *node, const char *reason, struct why *why);

#endif
