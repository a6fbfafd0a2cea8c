/* Operations by which jobs reach processes, nodes and clients, with plain structs. rpc/bindings.c fills the table, so
 * that no protobuf type enters daemon/control/job. `commands` is the call on which a process or a node receives
 * commands. Every operation fails with ERR_CLOSED or ERR_LIMIT if nothing can be sent now; its caller retries by its
 * next tick. Loop thread. */
#ifndef DTD_DAEMON_CONTROL_JOB_OUTBOUND_H
#define DTD_DAEMON_CONTROL_JOB_OUTBOUND_H

#include "common/base/err.h"
#include "common/rpc/usage.h"
#include "daemon/control/job/metrics.h"

#include <stdbool.h>
#include <stdint.h>

struct node_view;
struct job;
struct process_spawn;
struct rpc_call;

#define EPOCH_SECRET_BYTES 32

struct worker_start {
    uint64_t epoch;
    int rank, world;
    const char *yaml, *resume_path; /* resume_path NULL: none */
    int64_t resume_step;
    const int *node_of;    /* of each rank, from 0; NULL: all are on one */
    const uint8_t *secret; /* EPOCH_SECRET_BYTES, NULL: none */
    const char *address;   /* of the worker's node; NULL: none */
};

struct io_epoch {
    uint64_t epoch;
    int64_t resume_step, submitted_ms;
    uint64_t generation; /* of the cluster */
    const char *yaml;
    bool committer;
    int32_t *ranks; /* of its node; none: all */
    int n_ranks, n_ios;
    const char *node, *committer_node;
};

struct job_outbound {
    err_t (*worker_start)(struct rpc_call *commands, const struct worker_start *start);
    err_t (*worker_end)(struct rpc_call *commands, uint64_t epoch);
    err_t (*worker_stop)(struct rpc_call *commands, uint64_t epoch, bool save);
    err_t (*worker_profile)(struct rpc_call *commands, uint64_t epoch, uint64_t id, int steps);
    err_t (*worker_quit)(struct rpc_call *commands);

    err_t (*io_scan)(struct rpc_call *commands, const char *yaml, int64_t submitted_ms, uint64_t generation);
    err_t (*io_epoch)(struct rpc_call *commands, const struct io_epoch *e);
    err_t (*io_remove)(struct rpc_call *commands, int64_t step);
    err_t (*io_metrics)(struct rpc_call *commands, const char *lines, size_t len);
    /* Lines of the metrics beside the checkpoints, from byte `at` on. */
    err_t (*io_history)(struct rpc_call *commands, int64_t at);
    /* The same for usage. */
    err_t (*io_usage)(struct rpc_call *commands, const char *lines, size_t len);
    err_t (*io_usage_history)(struct rpc_call *commands, int64_t at);
    err_t (*io_quit)(struct rpc_call *commands);

    /* To another node. */
    err_t (*node_spawn)(struct rpc_call *commands, const struct process_spawn *x);
    err_t (*node_kill)(struct rpc_call *commands, uint64_t job, int slot, int sig);
    err_t (*node_release)(struct rpc_call *commands, uint64_t job, bool remove);
    err_t (*node_look)(struct rpc_call *commands);
    /* The node view is about to be freed: frees its peers. */
    void (*node_forgotten)(struct node_view *a);

    /* To clients that watch the job: its status has changed; a metric has arrived. */
    void (*watch_changed)(struct job *j);
    void (*watch_metric)(struct job *j, const struct metric *row);
    /* To clients that follow its usage: a window is complete. */
    void (*watch_usage)(struct job *j, const struct usage_sample *sample);
};

#endif
