/* Tables that assign a handler to each method, and an adapter to each outbound function of the job room. */
#include "daemon/control/rpc/adapters.h"

#define ROW(where, id, handler) {where, {id, handler}},

static const struct rpc_server_row rows[] = {RPC_CONTROL_METHODS(ROW)};
#define N_ROWS ((int)(sizeof(rows) / sizeof(rows[0])))
#define MAX_ROWS RPC_METHOD_COUNT

/* Row i of this file's rows followed by the cluster's; NULL: there are no more. */
static const struct rpc_server_row *row_at(int i)
{
    int n;
    const struct rpc_server_row *more = rpc_cluster_rows(&n);
    return i < N_ROWS ? &rows[i] : i < N_ROWS + n ? &more[i - N_ROWS] : NULL;
}

static void serve_or_forward(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct rpc_server *server = owner;
    uint16_t id = rpc_call_method(call);
    if (!server->jobs->leads) {
        rpc_server_pass_on(server, call, request);
        return;
    }
    const struct rpc_server_row *row;
    for (int i = 0; (row = row_at(i)); i++)
        if (row->binding.id == id) {
            row->binding.handler(owner, call, request);
            return;
        }
}

void rpc_server_bind(struct rpc_server *server)
{
    struct rpc_binding here[MAX_ROWS], all[MAX_ROWS];
    const struct rpc_server_row *row;
    int count = 0;
    for (; (row = row_at(count)) && count < MAX_ROWS; count++) {
        all[count] = here[count] = row->binding;
        if (row->where == SERVED_BY_LEADER)
            here[count].handler = serve_or_forward;
    }
    rpc_methods_bind(here, count, server->methods);
    rpc_methods_bind(all, count, server->served);
}

const struct job_outbound rpc_job_outbound = {
    .worker_start = rpc_worker_start,
    .worker_end = rpc_worker_end,
    .worker_stop = rpc_worker_stop,
    .worker_profile = rpc_worker_profile,
    .worker_quit = rpc_worker_quit,
    .io_scan = rpc_io_scan,
    .io_epoch = rpc_io_epoch,
    .io_remove = rpc_io_remove,
    .io_metrics = rpc_io_metrics,
    .io_history = rpc_io_history,
    .io_usage = rpc_io_usage,
    .io_usage_history = rpc_io_usage_history,
    .io_quit = rpc_io_quit,
    .node_spawn = rpc_node_spawn,
    .node_kill = rpc_node_kill,
    .node_release = rpc_node_release,
    .node_look = rpc_node_look,
    .node_forgotten = rpc_peer_forgotten,
    .watch_changed = rpc_watch_changed,
    .watch_metric = rpc_watch_metric,
    .watch_usage = rpc_usage_sample,
};
