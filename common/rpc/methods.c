/* Permitted roles and sizes are columns of the table. RPC_ROLE_ANY is for the Hello methods, which exchange a token for
 * a role. The owner of a listener decides the roles of a connection without a token (docs/formats/wire.md). */
#include "common/rpc/methods.h"

#include "common/base/log.h"
#include "proto/client.pb-c.h"
#include "proto/io.pb-c.h"
#include "proto/peer.pb-c.h"
#include "proto/worker.pb-c.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KIB 1024u
#define MIB (1024u * KIB)

/* A job's spec is at most 1 MiB of YAML (submit), so that messages that carry one fit into 2 MiB. */
static struct rpc_method table[RPC_METHOD_COUNT] = {
    /* id, name, roles, request, reply, stream */
    {CLIENT_SUBMIT, "Client.Submit", RPC_ROLE_CLIENT, 2 * MIB, 1 * KIB, .stream = false},
    {CLIENT_STATUS, "Client.Status", RPC_ROLE_CLIENT, 1 * KIB, 4 * MIB, .stream = false},
    {CLIENT_LIST, "Client.List", RPC_ROLE_CLIENT, 1 * KIB, 16 * MIB, .stream = false},
    {CLIENT_CANCEL, "Client.Cancel", RPC_ROLE_CLIENT, 1 * KIB, 4 * MIB, .stream = false},
    {CLIENT_LOGS, "Client.Logs", RPC_ROLE_CLIENT, 1 * KIB, 1 * MIB, .stream = true},
    {CLIENT_METRICS, "Client.Metrics", RPC_ROLE_CLIENT, 1 * KIB, 4 * KIB, .stream = true},
    {CLIENT_WATCH, "Client.Watch", RPC_ROLE_CLIENT, 1 * KIB, 4 * MIB, .stream = true},
    {CLIENT_CHECKPOINTS, "Client.Checkpoints", RPC_ROLE_CLIENT, 1 * KIB, 16 * MIB, .stream = false},
    {CLIENT_NODE, "Client.Node", RPC_ROLE_CLIENT, 1 * KIB, 64 * KIB, .stream = false},
    {CLIENT_SHUTDOWN, "Client.Shutdown", RPC_ROLE_CLIENT, 1 * KIB, 1 * KIB, .stream = false},
    {CLIENT_CLUSTER_INIT, "Client.ClusterInit", RPC_ROLE_CLIENT, 4 * KIB, 1 * KIB, .stream = false},
    {CLIENT_CLUSTER_JOIN, "Client.ClusterJoin", RPC_ROLE_CLIENT, 4 * KIB, 1 * KIB, .stream = false},
    {CLIENT_CLUSTER_STATUS, "Client.ClusterStatus", RPC_ROLE_CLIENT, 1 * KIB, 4 * MIB, .stream = false},
    {CLIENT_CLUSTER_TOKEN, "Client.ClusterToken", RPC_ROLE_CLIENT, 1 * KIB, 4 * KIB, .stream = false},
    {CLIENT_CLUSTER_REMOVE, "Client.ClusterRemove", RPC_ROLE_CLIENT, 1 * KIB, 1 * KIB, .stream = false},
    {CLIENT_CLUSTER_LEAVE, "Client.ClusterLeave", RPC_ROLE_CLIENT, 1 * KIB, 1 * KIB, .stream = false},
    {CLIENT_CLUSTER_RECOVER, "Client.ClusterRecover", RPC_ROLE_CLIENT, 1 * KIB, 1 * KIB, .stream = false},
    {CLIENT_CLUSTER_ROTATE, "Client.ClusterRotate", RPC_ROLE_CLIENT, 1 * KIB, 1 * KIB, .stream = false},
    {CLIENT_NODE_DRAIN, "Client.NodeDrain", RPC_ROLE_CLIENT, 2 * KIB, 1 * KIB, .stream = false},
    {CLIENT_STORE_OPEN, "Client.StoreOpen", RPC_ROLE_CLIENT, 1 * KIB, 1 * KIB, .stream = false},
    {CLIENT_STORE_CLOSE, "Client.StoreClose", RPC_ROLE_CLIENT, 1 * KIB, 1 * KIB, .stream = false},
    {CLIENT_STORE_LIST, "Client.StoreList", RPC_ROLE_CLIENT, 1 * KIB, 4 * MIB, .stream = false},
    {WORKER_HELLO, "Worker.Hello", RPC_ROLE_ANY, 1 * KIB, 1 * KIB, .stream = false},
    {WORKER_COMMANDS, "Worker.Commands", RPC_ROLE_WORKER, 1 * KIB, 2 * MIB, .stream = true},
    {WORKER_REPORT, "Worker.Report", RPC_ROLE_WORKER, 64 * KIB, 1 * KIB, .stream = false},
    {WORKER_STORE_PUT, "Worker.StorePut", RPC_ROLE_WORKER, 8 * KIB, 1 * KIB, .stream = false},
    {WORKER_STORE_GET, "Worker.StoreGet", RPC_ROLE_WORKER, 1 * KIB, 8 * KIB, .stream = false},
    {IO_HELLO, "Io.Hello", RPC_ROLE_ANY, 1 * KIB, 1 * KIB, .stream = false},
    {IO_SAVE, "Io.Save", RPC_ROLE_WORKER, 16 * MIB, 1 * KIB, .stream = true},
    {IO_LOAD, "Io.Load", RPC_ROLE_WORKER, 16 * MIB, 16 * MIB, .stream = false},
    {IO_CONTROL_HELLO, "IoControl.Hello", RPC_ROLE_ANY, 1 * KIB, 1 * KIB, .stream = false},
    {IO_CONTROL_COMMANDS, "IoControl.Commands", RPC_ROLE_IO, 1 * KIB, 2 * MIB, .stream = true},
    {IO_CONTROL_REPORT, "IoControl.Report", RPC_ROLE_IO, 64 * KIB, 1 * KIB, .stream = false},
    {PEER_HELLO, "Peer.Hello", RPC_ROLE_PEER, 1 * KIB, 4 * KIB, .stream = false},
    {PEER_FORWARD, "Peer.Forward", RPC_ROLE_PEER, 2 * MIB + RPC_FORWARD_BYTES, 16 * MIB + RPC_FORWARD_BYTES,
     .stream = true},
    {PEER_WINDOW_UPDATE, "Peer.WindowUpdate", RPC_ROLE_PEER, 1 * KIB, 1 * KIB, .stream = false},
    {PEER_COMMANDS, "Peer.Commands", RPC_ROLE_PEER, 256 * KIB, 256 * KIB, .stream = true},
    {PEER_REPORT, "Peer.Report", RPC_ROLE_PEER, 256 * KIB, 1 * KIB, .stream = false},
    {PEER_BEAT, "Peer.Beat", RPC_ROLE_PEER, 1 * KIB, 4 * MIB, .stream = false},
    {PEER_JOIN, "Peer.Join", RPC_ROLE_PEER | RPC_ROLE_JOIN, 4 * KIB, 4 * MIB, .stream = false},
    {PEER_LEAVE, "Peer.Leave", RPC_ROLE_PEER, 1 * KIB, 1 * KIB, .stream = false},
    {PEER_STORE_CLAIM, "Peer.StoreClaim", RPC_ROLE_PEER, 1 * KIB, 1 * KIB, .stream = false},
    {PEER_READ_LOG, "Peer.ReadLog", RPC_ROLE_PEER, 1 * KIB, 64 * KIB, .stream = false},
};

static const ProtobufCServiceDescriptor *const services[] = {
    &dtd__client__descriptor,     &dtd__worker__descriptor, &dtd__io__descriptor,
    &dtd__io_control__descriptor, &dtd__peer__descriptor,
};
#define N_SERVICES (sizeof(services) / sizeof(services[0]))

static void require(bool holds, const char *what, const char *name)
{
    if (holds)
        return;
    log_error("method table broken why=\"%s\" method=%s", what, name);
    abort();
}

static const ProtobufCMethodDescriptor *find_generated(const char *name)
{
    const char *dot = strchr(name, '.');
    for (size_t s = 0; dot && s < N_SERVICES; s++)
        if (strncmp(services[s]->short_name, name, (size_t)(dot - name)) == 0 &&
            services[s]->short_name[dot - name] == '\0')
            return protobuf_c_service_descriptor_get_method_by_name(services[s], dot + 1);
    return NULL;
}

static void check_row(int i)
{
    const struct rpc_method *m = &table[i];
    require(m->name && (i == 0 || table[i - 1].id < m->id), "rows are missing or not ascending",
            m->name ? m->name : "?");
    require(m->max_request_bytes <= RPC_MAX_BODY_BYTES && m->max_reply_bytes <= RPC_MAX_BODY_BYTES,
            "a limit above RPC_MAX_BODY_BYTES", m->name);
    require(m->request && m->reply, "no such method in proto/", m->name);
    for (int j = 0; j < i; j++)
        require(strcmp(table[j].name, m->name) != 0, "two rows of one name", m->name);
}

static void build(void)
{
    unsigned generated = 0;
    for (int i = 0; i < RPC_METHOD_COUNT; i++) {
        const ProtobufCMethodDescriptor *g = table[i].name ? find_generated(table[i].name) : NULL;
        if (g) {
            table[i].request = g->input;
            table[i].reply = g->output;
        }
        check_row(i);
    }
    for (size_t s = 0; s < N_SERVICES; s++)
        generated += services[s]->n_methods;
    /* All names are distinct and were found. If the counts are equal, every method of proto/ has its row. */
    require(generated == RPC_METHOD_COUNT, "a method of proto/ without a row", "?");
}

const struct rpc_method *rpc_methods(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, build);
    return table;
}

void rpc_methods_bind(const struct rpc_binding *bindings, int n, struct rpc_method ret[RPC_METHOD_COUNT])
{
    memcpy(ret, rpc_methods(), sizeof(table));
    for (int b = 0; b < n; b++) {
        struct rpc_method *row = NULL;
        for (int i = 0; i < RPC_METHOD_COUNT; i++)
            if (ret[i].id == bindings[b].id)
                row = &ret[i];
        require(row && !row->handler, "a handler for no method, or a second one", row ? row->name : "?");
        row->handler = bindings[b].handler;
    }
}
