/* Declarations that the files of this room share, and those for the rooms above. Loop thread. */
#ifndef DTD_DAEMON_CONTROL_RPC_ADAPTERS_H
#define DTD_DAEMON_CONTROL_RPC_ADAPTERS_H

#include "daemon/control/rpc/server.h"
#include "proto/client.pb-c.h"

struct job;

/* SERVED_BY_LEADER: the leader answers, and other nodes forward the call to it. SERVED_LOCALLY: the node that received
 * the call answers. */
struct rpc_server_row {
    enum { SERVED_BY_LEADER, SERVED_LOCALLY } where;
    struct rpc_binding binding;
};
/* The methods of the cluster. Separate, because a program may be linked with another implementation of the cluster. */
const struct rpc_server_row *rpc_cluster_rows(int *ret_n);
/* For jobs_init: the functions through which the job room reaches processes, nodes and clients. */
extern const struct job_outbound rpc_job_outbound;

/* ---- handlers, one per method ---- */
#define RPC_HANDLER(where, id, handler) \
    void handler(void *owner, struct rpc_call *call, const ProtobufCMessage *request);
RPC_CONTROL_METHODS(RPC_HANDLER)

/* Continues the submits that wait for the probe: all of them, or on a tick those that have waited for HELD_MS. */
void rpc_client_gpus_known(struct rpc_server *s);
void rpc_client_tick(struct rpc_server *s);
/* This node is no longer the leader: waiting submits fail with ERR_AGAIN. */
void rpc_client_forget(struct rpc_server *s);
/* Sends new events to those who follow them; ends their calls, because this node is no longer the leader. */
void rpc_events_tick(struct rpc_server *s);
void rpc_events_forget(struct rpc_server *s);
/* What is low or broken on this node; "": nothing. */
void rpc_client_warning(const struct rpc_server *s, char *ret, size_t size);
/* How much of a node is used; the message has its memory beside it. */
struct node_use_message {
    Dtd__NodeUse m;
    char warning[1200];
};
void rpc_use_fill(const struct rpc_server *s, const struct node_view *a, struct node_use_message *ret);
/* The job with this id. If there is none, or the caller does not own it, fails the call and returns NULL. */
struct job *rpc_client_job(struct rpc_server *s, struct rpc_call *call, const char *id);
/* The same for what only shows the job: also for an operator of the web page. */
struct job *rpc_client_job_to_see(struct rpc_server *server, struct rpc_call *call, const char *id);

/* ---- the functions of rpc_job_outbound ---- */
NODISCARD err_t rpc_worker_start(struct rpc_call *attend, const struct worker_start *start);
NODISCARD err_t rpc_worker_end(struct rpc_call *attend, uint64_t epoch);
NODISCARD err_t rpc_worker_stop(struct rpc_call *attend, uint64_t epoch, bool save);
NODISCARD err_t rpc_worker_profile(struct rpc_call *attend, uint64_t epoch, uint64_t id, int steps);
NODISCARD err_t rpc_worker_quit(struct rpc_call *attend);
NODISCARD err_t rpc_io_scan(struct rpc_call *attend, const char *yaml, int64_t submitted_ms, uint64_t generation);
NODISCARD err_t rpc_io_epoch(struct rpc_call *attend, const struct io_epoch *e);
NODISCARD err_t rpc_io_remove(struct rpc_call *attend, int64_t step);
NODISCARD err_t rpc_io_metrics(struct rpc_call *attend, const char *lines, size_t len);
NODISCARD err_t rpc_io_usage(struct rpc_call *attend, const char *lines, size_t len);
NODISCARD err_t rpc_io_usage_history(struct rpc_call *attend, int64_t at);
NODISCARD err_t rpc_io_history(struct rpc_call *attend, int64_t at);
NODISCARD err_t rpc_io_quit(struct rpc_call *attend);
NODISCARD err_t rpc_node_spawn(struct rpc_call *attend, const struct process_spawn *x);
NODISCARD err_t rpc_node_kill(struct rpc_call *attend, uint64_t job, int slot, int sig);
NODISCARD err_t rpc_node_release(struct rpc_call *attend, uint64_t job, bool remove);
NODISCARD err_t rpc_node_look(struct rpc_call *attend);
void rpc_peer_forgotten(struct node_view *a);
void rpc_watch_changed(struct job *j);
void rpc_watch_metric(struct job *j, const struct metric *row);
void rpc_usage_sample(struct job *j, const struct usage_sample *sample);
/* Extends the curve files of jobs whose metrics have grown; called about once a second. */
void rpc_curves_tick(struct rpc_server *server);

/* For c10d_owners: closes a store, or the port to it, on another node. */
NODISCARD err_t rpc_node_store_close(struct rpc_call *attend, uint32_t uid, const char *name);

/* ---- for leadership ---- */

/* Messages of this node to the leader; nothing is sent while there is no leader. */
void rpc_node_attend(struct rpc_server *s);                       /* opens the command stream */
void rpc_node_list(struct rpc_server *s);                         /* reports all processes and the facts */
void rpc_node_child(struct rpc_server *s, const struct child *c); /* reports one process */
void rpc_node_facts(struct rpc_server *s);                        /* reports slots and GPUs */
/* A node's load with what is wrong with its GPUs, whose texts are borrowed. */
struct node_load rpc_node_load_of(const struct node_load *load, const struct gpus *g);
void rpc_node_load(struct rpc_server *s); /* reports how busy the node is */
/* Reads the end of the log of a worker of this node: whole lines of the last process that wrote to it, at most
 * size - 1 bytes and a NUL. NUL bytes of the log become spaces. Returns the number of bytes. */
size_t rpc_log_tail(const struct rpc_server *s, uint64_t job, int slot, char *ret, size_t size);
/* This node is no longer the leader: Watch, Metrics and Usage calls of the job fail with ERR_AGAIN. */
void rpc_watch_forget(struct job *j);

#endif
