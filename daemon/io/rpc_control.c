/* Adapter: converts the messages of IoControl to and from plain structs. */
#include "daemon/io/io.h"

#include "proto/io.pb-c.h"

#include <math.h>
#include <unistd.h>

#define HELLO_MS 10000

err_t rpc_control_hello(struct io *io, struct rpc_conn *conn, rpc_callback cb)
{
    Dtd__IoControlHello m = DTD__IO_CONTROL_HELLO__INIT;
    m.job = (char *)(uintptr_t)io->job;
    m.token = (ProtobufCBinaryData){TICKET_TOKEN_BYTES, io->ticket.token};
    m.pid = (int32_t)getpid();
    return rpc_send(conn, IO_CONTROL_HELLO, &m.base, HELLO_MS, cb, io, NULL);
}

err_t rpc_control_commands(struct io *io, struct rpc_conn *conn, rpc_callback cb)
{
    Dtd__Empty m = DTD__EMPTY__INIT;
    return rpc_send(conn, IO_CONTROL_COMMANDS, &m.base, 0, cb, io, NULL);
}

static const struct {
    Dtd__IoCommand__Kind wire;
    enum io_command_kind kind;
} commands[] = {
    {DTD__IO_COMMAND__KIND__EPOCH, IO_CMD_EPOCH},     {DTD__IO_COMMAND__KIND__REMOVE, IO_CMD_REMOVE},
    {DTD__IO_COMMAND__KIND__METRICS, IO_CMD_METRICS}, {DTD__IO_COMMAND__KIND__QUIT, IO_CMD_QUIT},
    {DTD__IO_COMMAND__KIND__SCAN, IO_CMD_SCAN},       {DTD__IO_COMMAND__KIND__HISTORY, IO_CMD_HISTORY},
    {DTD__IO_COMMAND__KIND__USAGE, IO_CMD_USAGE},     {DTD__IO_COMMAND__KIND__USAGE_HISTORY, IO_CMD_USAGE_HISTORY},
};

bool rpc_control_command(const ProtobufCMessage *message, struct io_command *ret)
{
    const Dtd__IoCommand *m = (const Dtd__IoCommand *)message;
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        if (commands[i].wire == m->kind) {
            *ret = (struct io_command){.kind = commands[i].kind,
                                       .epoch = m->epoch,
                                       .step = m->has_step ? m->step : 0,
                                       .at = m->has_at && m->at > 0 ? m->at : 0,
                                       .text = m->text ? m->text : "",
                                       .committer = m->committer,
                                       .ranks = m->rank,
                                       .n_ranks = m->n_rank,
                                       .n_ios = m->n_ios,
                                       .submitted_ms = m->submitted_ms,
                                       .generation = m->generation,
                                       .node = m->node ? m->node : "",
                                       .committer_node = m->committer_node ? m->committer_node : ""};
            return true;
        }
    return false;
}

err_t rpc_control_report(struct io *io, struct rpc_conn *conn, const struct io_queued_report *r, rpc_callback cb)
{
    static const Dtd__IoReport__Kind kinds[] = {
        [IO_COMMITTED] = DTD__IO_REPORT__KIND__COMMITTED,
        [IO_SAVE_FAILED] = DTD__IO_REPORT__KIND__SAVE_FAILED,
        [IO_SCANNED] = DTD__IO_REPORT__KIND__SCANNED,
        [IO_REMOVED] = DTD__IO_REPORT__KIND__REMOVED,
        [IO_HISTORY] = DTD__IO_REPORT__KIND__HISTORY,
        [IO_LOST] = DTD__IO_REPORT__KIND__LOST,
        [IO_USAGE_HISTORY] = DTD__IO_REPORT__KIND__USAGE_HISTORY,
    };
    Dtd__IoReport m = DTD__IO_REPORT__INIT;
    Dtd__Checkpoint c = DTD__CHECKPOINT__INIT;
    m.kind = kinds[r->kind];
    m.epoch = r->epoch;
    m.text = r->text;
    if (r->has_checkpoint) {
        c.job = (char *)(uintptr_t)io->job;
        c.step = r->checkpoint.step;
        c.epoch = r->checkpoint.epoch;
        c.path = r->path;
        c.bytes = r->checkpoint.bytes;
        c.committed_ms = r->checkpoint.committed_ms;
        c.has_loss = !isnan(r->checkpoint.loss);
        c.loss = r->checkpoint.loss;
        m.checkpoint = &c;
    }
    return rpc_send(conn, IO_CONTROL_REPORT, &m.base, 0, cb, (void *)(uintptr_t)r, NULL);
}
