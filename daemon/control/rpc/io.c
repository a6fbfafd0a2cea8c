/* Adapter: converts the messages of dtd-io to plain structs, and commands for dtd-io to messages. */
#include "daemon/control/job/job.h"
#include "daemon/control/rpc/adapters.h"
#include "daemon/control/rpc/caller.h"
#include "daemon/control/rpc/kinds.h"
#include "proto/io.pb-c.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- commands ---- */

static err_t send_command(struct rpc_call *attend, Dtd__IoCommand__Kind kind, int64_t step, const char *text)
{
    Dtd__IoCommand c = DTD__IO_COMMAND__INIT;
    c.kind = kind;
    c.has_step = step >= 0;
    c.step = step;
    c.text = (char *)text;
    return rpc_item(attend, &c.base);
}

err_t rpc_io_scan(struct rpc_call *attend, const char *yaml, int64_t submitted_ms, uint64_t generation)
{
    Dtd__IoCommand c = DTD__IO_COMMAND__INIT;
    c.kind = DTD__IO_COMMAND__KIND__SCAN;
    c.text = (char *)(uintptr_t)yaml;
    c.has_submitted_ms = true;
    c.submitted_ms = submitted_ms;
    c.has_generation = generation > 1;
    c.generation = generation;
    return rpc_item(attend, &c.base);
}

err_t rpc_io_epoch(struct rpc_call *attend, const struct io_epoch *e)
{
    Dtd__IoCommand c = DTD__IO_COMMAND__INIT;
    c.kind = DTD__IO_COMMAND__KIND__EPOCH;
    c.has_epoch = c.has_committer = c.has_n_ios = c.has_submitted_ms = true;
    c.epoch = e->epoch;
    c.has_step = e->resume_step >= 0;
    c.step = e->resume_step;
    c.text = (char *)(uintptr_t)e->yaml;
    c.committer = e->committer;
    c.rank = e->ranks;
    c.n_rank = (size_t)e->n_ranks;
    c.n_ios = e->n_ios;
    c.submitted_ms = e->submitted_ms;
    c.has_generation = e->generation > 1;
    c.generation = e->generation;
    c.node = (char *)(uintptr_t)e->node;
    c.committer_node = (char *)(uintptr_t)e->committer_node;
    return rpc_item(attend, &c.base);
}

err_t rpc_io_remove(struct rpc_call *attend, int64_t step)
{
    return send_command(attend, DTD__IO_COMMAND__KIND__REMOVE, step, NULL);
}

static err_t send_lines(struct rpc_call *attend, Dtd__IoCommand__Kind kind, const char *lines, size_t len)
{
    char *text = strndup(lines, len);
    if (!text)
        return ERR_NOMEM;
    err_t err = send_command(attend, kind, -1, text);
    free(text);
    return err;
}

static err_t ask_history(struct rpc_call *attend, Dtd__IoCommand__Kind kind, int64_t at)
{
    Dtd__IoCommand c = DTD__IO_COMMAND__INIT;
    c.kind = kind;
    c.has_at = true;
    c.at = at;
    return rpc_item(attend, &c.base);
}

err_t rpc_io_metrics(struct rpc_call *attend, const char *lines, size_t len)
{
    return send_lines(attend, DTD__IO_COMMAND__KIND__METRICS, lines, len);
}

err_t rpc_io_history(struct rpc_call *attend, int64_t at)
{
    return ask_history(attend, DTD__IO_COMMAND__KIND__HISTORY, at);
}

err_t rpc_io_usage(struct rpc_call *attend, const char *lines, size_t len)
{
    return send_lines(attend, DTD__IO_COMMAND__KIND__USAGE, lines, len);
}

err_t rpc_io_usage_history(struct rpc_call *attend, int64_t at)
{
    return ask_history(attend, DTD__IO_COMMAND__KIND__USAGE_HISTORY, at);
}

err_t rpc_io_quit(struct rpc_call *attend)
{
    return send_command(attend, DTD__IO_COMMAND__KIND__QUIT, -1, NULL);
}

/* ---- calls of dtd-io; worker.c serves IoControl.Commands, together with Worker.Commands ---- */

void rpc_io_hello(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    const Dtd__IoControlHello *m = (const Dtd__IoControlHello *)request;
    const struct hello h = {.job = m->job,
                            .slot = CHANNEL_SLOT_IO,
                            .token = m->token.data,
                            .token_bytes = m->token.len,
                            .role = RPC_ROLE_ANY | RPC_ROLE_IO};
    rpc_server_hello(owner, call, request, &h);
}

static const struct kind_pair kinds[] = {
    {DTD__IO_REPORT__KIND__COMMITTED, IO_COMMITTED},
    {DTD__IO_REPORT__KIND__SAVE_FAILED, IO_SAVE_FAILED},
    {DTD__IO_REPORT__KIND__SCANNED, IO_SCANNED},
    {DTD__IO_REPORT__KIND__REMOVED, IO_REMOVED},
    {DTD__IO_REPORT__KIND__HISTORY, IO_HISTORY},
    {DTD__IO_REPORT__KIND__LOST, IO_LOST},
    {DTD__IO_REPORT__KIND__USAGE_HISTORY, IO_USAGE_HISTORY},
};

static struct state_checkpoint checkpoint_of(const Dtd__Checkpoint *c)
{
    return (struct state_checkpoint){.step = c->step,
                                     .epoch = c->epoch,
                                     .path = c->path,
                                     .bytes = c->bytes,
                                     .committed_ms = c->committed_ms,
                                     .loss = c->has_loss ? c->loss : NAN};
}

/* Replies without waiting for the log, whose disk may be full: the checkpoint is complete in its folder, and its record
 * follows. The reply is sent after job_io_report, because dtd-io does not repeat a report that was answered. */
void rpc_io_report(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    const Dtd__IoReport *m = (const Dtd__IoReport *)request;
    Dtd__Empty empty = DTD__EMPTY__INIT;
    struct job_process *p;
    struct job *j = rpc_caller_job(call, &p);
    if (!j)
        return;
    const struct kind_pair *kind = kind_pair_find(kinds, sizeof(kinds) / sizeof(kinds[0]), m->kind);
    if (!kind) {
        rpc_fail(call, ERR_INVALID, "report of kind %d", (int)m->kind);
        return;
    }
    struct state_checkpoint c = m->checkpoint ? checkpoint_of(m->checkpoint) : (struct state_checkpoint){0};
    const struct io_report r = {.kind = (enum io_report_kind)kind->plain,
                                .epoch = m->epoch,
                                .checkpoint = m->checkpoint ? &c : NULL,
                                .text = m->text ? m->text : ""};
    job_io_report(j, p, &r);
    rpc_reply(call, &empty.base);
}
