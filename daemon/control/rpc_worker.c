/* Adapter: workers' messages to plain structs and back. */
#include "daemon/control/node.h"
#include "daemon/control/rpc_adapters.h"
#include "daemon/control/rpc_server.h"
#include "proto/worker.pb-c.h"

#include <math.h>

/* ---- commands ---- */

static err_t say(struct rpc_call *attend, const Dtd__WorkerCommand *c)
{
    return rpc_item(attend, &c->base);
}

err_t rpc_worker_start(struct rpc_call *attend, const struct worker_start *s)
{
    Dtd__WorkerCommand c = DTD__WORKER_COMMAND__INIT;
    c.kind = DTD__WORKER_COMMAND__KIND__START;
    c.has_epoch = c.has_rank = c.has_world = c.has_resume_step = 1;
    c.epoch = s->epoch;
    c.rank = s->rank;
    c.world = s->world;
    c.spec_yaml = (char *)s->yaml;
    c.resume_path = (char *)s->resume_path;
    c.resume_step = s->resume_step;
    return say(attend, &c);
}

err_t rpc_worker_end(struct rpc_call *attend, uint64_t epoch)
{
    Dtd__WorkerCommand c = DTD__WORKER_COMMAND__INIT;
    c.kind = DTD__WORKER_COMMAND__KIND__END;
    c.has_epoch = 1;
    c.epoch = epoch;
    return say(attend, &c);
}

err_t rpc_worker_stop(struct rpc_call *attend, uint64_t epoch, bool save)
{
    Dtd__WorkerCommand c = DTD__WORKER_COMMAND__INIT;
    c.kind = DTD__WORKER_COMMAND__KIND__STOP;
    c.has_epoch = c.has_save = 1;
    c.epoch = epoch;
    c.save = save;
    return say(attend, &c);
}

err_t rpc_worker_quit(struct rpc_call *attend)
{
    Dtd__WorkerCommand c = DTD__WORKER_COMMAND__INIT;
    c.kind = DTD__WORKER_COMMAND__KIND__QUIT;
    return say(attend, &c);
}

/* ---- what workers say ---- */

void rpc_worker_hello(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    const Dtd__WorkerHello *h = (const Dtd__WorkerHello *)request;
    Dtd__Empty empty = DTD__EMPTY__INIT;
    if (h->slot < 0)
        rpc_fail(call, ERR_INVALID, "slot %d", h->slot);
    else if (rpc_server_hello(owner, call, h->job, h->slot, h->token.data, h->token.len, h->has_epoch ? h->epoch : 0,
                              RPC_ROLE_ANY | RPC_ROLE_WORKER) == OK)
        rpc_reply(call, &empty.base);
}

/* An Attend has no end of its own: it lives as long as its connection. */
static void attend_gone(void *arg)
{
    struct peer *p = arg;
    struct job *j = p->job ? node_job(p->node, p->job) : NULL;
    if (j && job_process(j, p->slot))
        job_process_lost(j, p->slot, p);
}

static void attend(void *owner, struct rpc_call *call, bool io)
{
    int slot;
    struct job *j = rpc_server_job(call, &slot);
    if (!j)
        return;
    if (job_process(j, slot)->attend) {
        rpc_fail(call, ERR_EXISTS, "it attends already");
        return;
    }
    if ((slot == CHANNEL_SLOT_IO) != io) {
        rpc_fail(call, ERR_DENIED, "not this process's method");
        return;
    }
    rpc_call_on_cancel(call, attend_gone, rpc_server_peer(call));
    job_process_attended(j, slot, call);
    node_tick(owner);
}

void rpc_worker_attend(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    attend(owner, call, false);
}

void rpc_io_attend(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    attend(owner, call, true);
}

static struct metric_row row_of(const Dtd__Metric *m)
{
    return (struct metric_row){.step = m->step,
                               .loss = m->loss,
                               .grad_norm = m->grad_norm,
                               .lr = m->lr,
                               .tokens_per_s = m->tokens_per_s,
                               .step_s = m->step_s,
                               .workers = m->workers,
                               .epoch = m->epoch,
                               .has_valid = m->has_valid_loss,
                               .valid_loss = m->has_valid_loss ? m->valid_loss : NAN,
                               .wall_ms = m->wall_ms};
}

static const struct {
    Dtd__WorkerReport__Kind wire;
    enum worker_report_kind kind;
} kinds[] = {
    {DTD__WORKER_REPORT__KIND__IDLE, REPORT_IDLE},     {DTD__WORKER_REPORT__KIND__READY, REPORT_READY},
    {DTD__WORKER_REPORT__KIND__METRIC, REPORT_METRIC}, {DTD__WORKER_REPORT__KIND__DONE, REPORT_DONE},
    {DTD__WORKER_REPORT__KIND__FAILED, REPORT_FAILED}, {DTD__WORKER_REPORT__KIND__SAVE_FAILED, REPORT_SAVE_FAILED},
};

void rpc_worker_report(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    const Dtd__WorkerReport *m = (const Dtd__WorkerReport *)request;
    Dtd__Empty empty = DTD__EMPTY__INIT;
    int slot;
    struct job *j = rpc_server_job(call, &slot);
    if (!j)
        return;
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (kinds[i].wire != m->kind)
            continue;
        struct metric_row row = m->metric ? row_of(m->metric) : (struct metric_row){0};
        const struct worker_report r = {.kind = kinds[i].kind,
                                        .epoch = m->epoch,
                                        .rank = m->rank,
                                        .metric = m->metric ? &row : NULL,
                                        .text = m->text ? m->text : "",
                                        .fatal = m->has_fatal && m->fatal};
        job_worker_report(j, slot, &r);
        rpc_reply(call, &empty.base); /* not before it is noted: an answered report is not said again */
        return;
    }
    rpc_fail(call, ERR_INVALID, "report of kind %d", (int)m->kind);
}
