/* What the core of control says through the rpc adapters, in plain structs: protobuf stops in rpc_*.c. Loop thread. */
#ifndef DTD_DAEMON_CONTROL_JOB_OUTBOUND_H
#define DTD_DAEMON_CONTROL_JOB_OUTBOUND_H

#include "common/base/err.h"
#include "daemon/control/job/metrics.h"

#include <stdbool.h>
#include <stdint.h>

struct job;
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
NODISCARD err_t rpc_worker_start(struct rpc_call *attend, const struct worker_start *start);
NODISCARD err_t rpc_worker_end(struct rpc_call *attend, uint64_t epoch);
NODISCARD err_t rpc_worker_stop(struct rpc_call *attend, uint64_t epoch, bool save);
NODISCARD err_t rpc_worker_quit(struct rpc_call *attend);

NODISCARD err_t rpc_io_scan(struct rpc_call *attend, const char *yaml);
struct io_epoch {
    uint64_t epoch;
    int64_t resume_step, submitted_ms;
    const char *yaml;
    bool committer;
    int32_t *ranks; /* of its node; none: all */
    int n_ranks, n_ios;
    const char *node, *committer_node;
};
NODISCARD err_t rpc_io_epoch(struct rpc_call *attend, const struct io_epoch *e);
NODISCARD err_t rpc_io_remove(struct rpc_call *attend, int64_t step);
NODISCARD err_t rpc_io_metrics(struct rpc_call *attend, const char *lines, size_t len);
/* Lines of the metrics beside the checkpoints, from byte `at` on. */
NODISCARD err_t rpc_io_history(struct rpc_call *attend, int64_t at);
NODISCARD err_t rpc_io_quit(struct rpc_call *attend);

struct agent_spawn;
struct child;
struct node;

/* To another node, by its Attend. */
NODISCARD err_t rpc_agent_spawn(struct rpc_call *attend, const struct agent_spawn *x);
NODISCARD err_t rpc_agent_kill(struct rpc_call *attend, uint64_t job, int slot, int sig);
NODISCARD err_t rpc_agent_release(struct rpc_call *attend, uint64_t job);
NODISCARD err_t rpc_agent_look(struct rpc_call *attend);
NODISCARD err_t rpc_agent_store_close(struct rpc_call *attend, uint32_t uid, const char *name);
/* To the node that leads, while there is one: this node attends; all its processes; one of them; its facts. */
void rpc_agent_attend(struct node *n);
void rpc_agent_list(struct node *n);
void rpc_agent_child(struct node *n, const struct child *c);
void rpc_agent_facts(struct node *n);

/* The end of what a worker of this node wrote, from the beginning of a line: at most size - 1 bytes, none of them 0;
 * returns how many. */
size_t rpc_log_tail(const struct node *n, uint64_t job, int slot, char *ret, size_t size);

/* To clients that watch the job: its status has changed, a metric has come. */
void rpc_watch_changed(struct job *j);
void rpc_watch_metric(struct job *j, const struct metric *row);
/* This node decides no more: who watches is told to ask again. */
void rpc_watch_forget(struct job *j);

#endif
