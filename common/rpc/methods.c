/* The owner of a listener decides the roles of a connection without a token (docs/formats/wire.md). */
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

#define STREAM_ONE false
#define STREAM_STREAM true
#define ROW(id_, number_, service_, method_, roles_, request_, reply_, answer_) \
    {.id = number_,                                                             \
     .name = #service_ "." #method_,                                            \
     .roles = roles_,                                                           \
     .max_request_bytes = (request_)*1024u,                                     \
     .max_reply_bytes = (reply_)*1024u,                                         \
     .stream = STREAM_##answer_},

_Static_assert(RPC_FORWARD_BYTES == 4 * 1024u, "the limits of Peer.Forward are 2 and 16 MiB and this");
static struct rpc_method table[RPC_METHOD_COUNT] = {RPC_METHODS(ROW)};

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
