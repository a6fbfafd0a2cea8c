/* Between the files of this room and for those above it. Loop thread. */
#ifndef DTD_DAEMON_CONTROL_RPC_ADAPTERS_H
#define DTD_DAEMON_CONTROL_RPC_ADAPTERS_H

#include "daemon/control/rpc/server.h"

struct job;

/* SERVED_BY_LEADER: the leader answers, other nodes forward the call to it. SERVED_LOCALLY: the node that was called.
 */
struct rpc_server_row {
    enum { SERVED_BY_LEADER, SERVED_LOCALLY } where;
    struct rpc_binding binding;
};
/* The cluster's own methods, of whichever cluster is linked in. */
const struct rpc_server_row *rpc_cluster_rows(int *ret_n);
/* For jobs_init: how the job room reaches processes, nodes and clients. */
extern const struct job_outbound rpc_job_outbound;

/* ---- handlers, one per method ---- */
#define RPC_HANDLER(where, id, handler) \
    void handler(void *owner, struct rpc_call *call, const ProtobufCMessage *request);
RPC_CONTROL_METHODS(RPC_HANDLER)

/* Takes up the submits that have waited for the probe; on a tick, those that have waited long enough. */
void rpc_client_gpus_known(struct rpc_server *s);
void rpc_client_tick(struct rpc_server *s);
/* This node leads no more: those that wait are told to ask again. */
void rpc_client_forget(struct rpc_server *s);
/* The job that a client names, or NULL after failing the call, also for a caller who does not own it. */
struct job *rpc_client_job(struct rpc_server *s, struct rpc_call *call, const char *id);

/* ---- what the rows of rpc_job_outbound are ---- */
NODISCARD err_t rpc_worker_start(struct rpc_call *attend, const struct worker_start *start);
NODISCARD err_t rpc_worker_end(struct rpc_call *attend, uint64_t epoch);
NODISCARD err_t rpc_worker_stop(struct rpc_call *attend, uint64_t epoch, bool save);
NODISCARD err_t rpc_worker_quit(struct rpc_call *attend);
NODISCARD err_t rpc_io_scan(struct rpc_call *attend, const char *yaml);
NODISCARD err_t rpc_io_epoch(struct rpc_call *attend, const struct io_epoch *e);
NODISCARD err_t rpc_io_remove(struct rpc_call *attend, int64_t step);
NODISCARD err_t rpc_io_metrics(struct rpc_call *attend, const char *lines, size_t len);
NODISCARD err_t rpc_io_history(struct rpc_call *attend, int64_t at);
NODISCARD err_t rpc_io_quit(struct rpc_call *attend);
NODISCARD err_t rpc_node_spawn(struct rpc_call *attend, const struct process_spawn *x);
NODISCARD err_t rpc_node_kill(struct rpc_call *attend, uint64_t job, int slot, int sig);
NODISCARD err_t rpc_node_release(struct rpc_call *attend, uint64_t job);
NODISCARD err_t rpc_node_look(struct rpc_call *attend);
void rpc_peer_forgotten(struct node_view *a);
void rpc_watch_changed(struct job *j);
void rpc_watch_metric(struct job *j, const struct metric *row);

/* For store_names: closes a store, or the port to it, on another node. */
NODISCARD err_t rpc_node_store_close(struct rpc_call *attend, uint32_t uid, const char *name);

/* ---- for leadership ---- */

/* To the leader, while there is one: this node attends; all its processes; one of them; its facts. */
void rpc_node_attend(struct rpc_server *s);
void rpc_node_list(struct rpc_server *s);
void rpc_node_child(struct rpc_server *s, const struct child *c);
void rpc_node_facts(struct rpc_server *s);
/* The end of what a worker of this node wrote, from the beginning of a line: at most size - 1 bytes, none of them 0;
 * returns how many. */
size_t rpc_log_tail(const struct rpc_server *s, uint64_t job, int slot, char *ret, size_t size);
/* This node leads no more: who watches the job is told to ask again. */
void rpc_watch_forget(struct job *j);

#endif
