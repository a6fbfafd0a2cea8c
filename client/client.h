/* A connection to control, with blocking calls. All commands of dtctl use it. A command that alone makes a call fills
 * its messages itself and uses client_call; what several commands need is a function here, with plain structs.
 *
 * A client owns a uv loop and one connection to `<state dir>/control.sock`. One thread uses it. Every call runs the
 * loop until the reply arrives, the deadline passes or the connection closes; a stream passes its items to a callback
 * while it runs. Results are plain structs, which the caller frees with their _fini.
 *
 * Errors: ERR_CLOSED and ERR_TIMEOUT mean that control exited or does not answer, and that the caller may repeat the
 * call on a new client. All other codes come from control's reply. */
#ifndef DTD_CLIENT_CLIENT_H
#define DTD_CLIENT_CLIENT_H

#include "common/base/err.h"
#include "common/rpc/incident.h"
#include "common/rpc/methods.h"
#include "common/rpc/metric.h"
#include "common/rpc/metric_point.h"
#include "common/rpc/node_load.h"
#include "common/rpc/totals.h"
#include "common/rpc/usage.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct client_worker {
    int rank, pid;
    char *state, *node;           /* node: name of the node; "": unknown */
    int exit_status, exit_signal; /* -1: none */
};

/* A rank that computes longer than ranks with the same work. */
struct client_straggler {
    int rank;
    double ratio; /* its compute time over the median */
    int64_t since_ms;
    char *node, *text; /* text: all of this as a sentence without its full stop */
};

struct client_job {
    char *job, *name, *state;
    char *reason; /* this and the strings below: "" when absent */
    uint64_t epoch;
    int64_t step, steps;
    int workers, max_workers, restarts;         /* max_workers: what the job wants; a daemon of an older version: 0 */
    int64_t submitted_ms, started_ms, ended_ms; /* 0: not yet */
    int64_t now_ms;                             /* the present, by the date at which it was submitted */
    int64_t last_age_ms, saved_age_ms;          /* of `last`, and of the checkpoint of checkpoint_step; -1: unknown */
    int64_t grace_left_ms; /* while it stops: until workers that still run are killed; 0: no such wait */
    char *checkpoint_dir, *checkpoint_error;
    int64_t checkpoint_step; /* -1: none */
    bool has_last;
    struct metric last;
    struct client_worker *worker;
    int n_worker;
    char *parent, *spec_yaml; /* spec_yaml: with the layout of the newest epoch */
    char *layout_why;         /* parallel.auto: that layout, and why */
    char *user;               /* owner of the job */
    struct incident *incident;
    int n_incident;
    struct client_straggler *straggler;
    int n_straggler;
    struct incident start; /* durations of the first start; epoch 0: unknown */
    bool has_totals;       /* the job has not ended, and the leader counts */
    struct totals totals;
};

struct client_checkpoint {
    char *job, *path;
    int64_t step, bytes, committed_ms;
    uint64_t epoch;
    double loss; /* NAN: unknown */
};

/* How much of a node jobs use, and what is wrong there; -1: unknown. */
struct client_node_use {
    int slots, slots_used, gpus, gpus_free;
    char *warning; /* never NULL */
};

/* Strings are "" when absent. */
struct client_cluster_node {
    char *name, *address, *state, *role, *domain, *drained, *version, *identity;
    uint32_t newest; /* the newest cluster version of its dtd; 0: unknown */
    uint64_t id, log_index;
    int64_t silent_ms;
    struct client_node_use use;
    struct node_load *load; /* how busy it is; NULL: unknown */
};

struct client_cluster {
    char *self, *leader, *note;
    struct client_cluster_node *node;
    int n_node; /* 0: the node is not part of a cluster */
    uint64_t log_index, log_term;
    uint32_t key, keys;
    uint64_t id, generation; /* 0: it has no id yet */
    int64_t recovered_ms;
    char *recovered_by;             /* "": it was not recovered; never NULL */
    uint32_t version, next_version; /* the cluster version, 0: unknown; the one that some nodes have already, 0: none */
    char **held_back;               /* n_held_back names of nodes for which next_version waits */
    int n_held_back;
};

struct client_numa_node {
    int number;  /* the kernel's */
    char *cores; /* "0-15,32-47", "": none; never NULL */
    int *gpu;    /* n_gpu indices */
    int n_gpu;
};

struct client_node {
    char *version, *node, *state_dir, *raft_state, *warning;
    char *drained; /* why no new job starts on it, "": it is not drained; never NULL */
    int supervisor_pid, control_pid, slots;
    int *io_pid;
    int n_io;
    uint64_t raft_term, raft_index;
    int gpus, gpus_free;           /* gpus -1: the probe has not finished */
    int64_t gpu_probe_ms;          /* duration of the probe, so far if it still runs; 0: there was none */
    char *gpu_model, *gpu_missing; /* model of the first GPU; why there is none; never NULL */
    struct client_numa_node *numa_node;
    struct client_node_use use;
    struct node_load *load; /* how busy it is; NULL: unknown */
    int n_numa_node;        /* 0: the workers' cores lie in one NUMA node */
};

void client_job_fini(struct client_job *job);
void client_jobs_free(struct client_job *jobs, int n);
void client_checkpoints_free(struct client_checkpoint *list, int n);
void client_node_fini(struct client_node *node);
void client_load_free(struct node_load *load); /* NULL is legal */
/* True in the states done, failed and canceled. */
bool client_job_ended(const struct client_job *job);

struct client;
/* ERR_CLOSED when no daemon listens on the socket. */
NODISCARD err_t client_open(const char *state_dir, struct client **ret, struct why *why);
/* For callers that try again: a call without a reply ends after this time, in ms, with ERR_TIMEOUT; else after 30 s. */
void client_set_deadline(struct client *c, uint32_t ms);
void client_close(struct client *c); /* NULL is legal */

/* One call of a method that has one reply. `request`: the method's message (proto/client.proto). ret_reply: pointer to
 * a pointer to the reply's message, to be freed with client_reply_free; NULL: the reply is not needed. */
NODISCARD err_t client_call(struct client *c, enum rpc_method_id method, const ProtobufCMessage *request,
                            void *ret_reply, struct why *why);
void client_reply_free(void *reply); /* NULL is legal */

/* Submits a job. `request_id`: 16 bytes from client_request_id. A caller that repeats a submit passes the same id, so
 * that control creates at most one job. ret_job: the new job's id. */
NODISCARD err_t client_request_id(uint8_t ret[16]);
NODISCARD err_t client_submit(struct client *c, const uint8_t request_id[16], const char *spec_yaml, const char *parent,
                              char ret_job[32], struct why *why);
NODISCARD err_t client_status(struct client *c, const char *job, struct client_job *ret, struct why *why);
NODISCARD err_t client_list(struct client *c, struct client_job **ret, int *ret_n, struct why *why);
/* Removes a job that has ended, with its logs. */
NODISCARD err_t client_remove(struct client *c, const uint8_t request_id[16], const char *job, struct why *why);
#define CLIENT_GRACE_DEFAULT (-1) /* control decides: run.grace_seconds; at once if the job is canceled already */
/* Stops a job. `request_id`: as of a submit; another id is another cancel, which ends a job at once that is stopping.
 * `save`: the workers save a checkpoint first. `grace_seconds`: until workers that still run are killed, 0 to 86400, or
 * CLIENT_GRACE_DEFAULT. */
NODISCARD err_t client_cancel(struct client *c, const uint8_t request_id[16], const char *job, bool save,
                              int64_t grace_seconds, struct client_job *ret, struct why *why);
NODISCARD err_t client_checkpoints(struct client *c, const char *job, struct client_checkpoint **ret, int *ret_n,
                                   struct why *why);
NODISCARD err_t client_node_get(struct client *c, struct client_node *ret, struct why *why);
NODISCARD err_t client_shutdown(struct client *c, struct why *why);

/* A part of a worker's log: whole lines, or the part of a line up to a \r. */
struct client_log {
    int rank;
    const char *text;
    size_t len;
    const char *node; /* node and slot whose log it is, and the text's offset there; at -1: a line of control */
    int slot;
    int64_t at;
};

/* Something that happened. Strings are borrowed, and "" when absent. */
struct client_event {
    uint64_t id, epoch;    /* epoch 0: none */
    int64_t wall_ms, step; /* step -1: none */
    const char *type, *job, *name, *node, *text;
};

/* Callbacks of a stream. They run on the caller's thread; NULL callbacks are skipped. When one returns false, or when
 * SIGINT arrives, the stream ends and returns ERR_CANCELED. `tick` runs about five times a second. */
struct client_stream {
    bool (*log)(void *arg, const struct client_log *chunk);
    bool (*metric)(void *arg, const struct metric *metric);
    bool (*point)(void *arg, const struct metric_point *point); /* client_metrics_part: instead of `metric` */
    bool (*usage)(void *arg, const struct usage_sample *sample);
    bool (*status)(void *arg, const struct client_job *job);
    bool (*event)(void *arg, const struct client_event *event);
    bool (*tick)(void *arg);
    void *arg;
};
/* rank -1: all ranks. tail_lines -1: from the start of the log. */
NODISCARD err_t client_logs(struct client *c, const char *job, int rank, bool follow, int64_t tail_lines,
                            const struct client_stream *stream, struct why *why);
NODISCARD err_t client_metrics(struct client *c, const char *job, bool follow, int64_t from_step,
                               const struct client_stream *stream, struct why *why);
/* At most one of the numbers is above 0: the first step, the largest number of points that all steps are joined to, or
 * the number of the last steps. A leader of an older version sends all rows. */
struct client_metrics_part {
    bool follow;
    int64_t from_step, points, last;
};
NODISCARD err_t client_metrics_part(struct client *c, const char *job, const struct client_metrics_part *part,
                                    const struct client_stream *stream, struct why *why);
/* The usage of all ranks, in windows that end at `from_ms` or later; with `follow` until the job has ended. */
NODISCARD err_t client_usage(struct client *c, const char *job, bool follow, int64_t from_ms,
                             const struct client_stream *stream, struct why *why);
/* Passes on the newest sample, or none. */
NODISCARD err_t client_usage_newest(struct client *c, const char *job, const struct client_stream *stream,
                                    struct why *why);
/* Streams the job's status at every change, and every metric, until the job has ended; with a callback `log` also the
 * output of all workers, from the start of their logs to the end. */
NODISCARD err_t client_watch(struct client *c, const char *job, const struct client_stream *stream, struct why *why);

/* Streams what happened, oldest first. job NULL: all jobs, and the nodes. after: only events with a higher id.
 * age_ms: only events that are at most this old, by the clock of the cluster; 0: all. */
NODISCARD err_t client_events(struct client *c, const char *job, bool follow, uint64_t after, int64_t age_ms,
                              const struct client_stream *stream, struct why *why);

/* ---- the cluster ---- */

NODISCARD err_t client_cluster_status(struct client *c, struct client_cluster *ret, struct why *why);
void client_cluster_fini(struct client_cluster *c);
/* `reason` NULL: ends the drain. */
NODISCARD err_t client_node_drain(struct client *c, const char *node, const char *reason, struct why *why);

#endif
