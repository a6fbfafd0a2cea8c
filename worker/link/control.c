/* The connection to control. After connecting, the worker sends Hello, then opens the command stream (each command is
 * an item of one long call), and sends reports in parallel.
 *
 * A report stays in the list until control has answered it. After a lost connection it is sent again, so control may
 * receive a report twice but never misses one. The last state of the epoch (READY, DONE or FAILED) is sent again after
 * every Hello, because the previous control may have crashed after it received the report and before it recorded it. */
#include "worker/link/internal.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/rpc/methods.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define USAGE_REFUSED_MS 60000 /* the next leader may be newer; a refusal is a line in the log */

/* ---- reports ---- */

struct report *report_new(struct link *l, Dtd__WorkerReport__Kind kind, uint64_t epoch, const char *text)
{
    struct report *r = calloc(1, sizeof(*r));
    if (!r)
        return NULL;
    r->link = l;
    dtd__worker_report__init(&r->msg);
    r->msg.kind = kind;
    r->msg.epoch = epoch;
    r->msg.rank = l->rank;
    r->msg.text = text ? strdup(text) : NULL;
    return r;
}

void report_parts(struct report *r, const double *part_ms, size_t n)
{
    for (size_t i = 0; i < n; i++)
        r->part_ms[i] = part_ms[i];
    r->msg.part_ms = r->part_ms;
    r->msg.n_part_ms = n;
}

void report_free(struct report *r)
{
    if (!r)
        return;
    if (r->msg.metric)
        fields_encoded_fini(&r->metric_msg.base);
    if (r->msg.usage)
        fields_encoded_fini(&r->usage_msg.base);
    free(r->msg.text);
    free(r);
}

static struct report *report_unlink(struct report_list *list, struct report *r)
{
    for (struct report **at = &list->first; *at; at = &(*at)->next)
        if (*at == r) {
            *at = r->next;
            if (!*at)
                list->last = at;
            list->n--;
            return r;
        }
    return NULL;
}

static void drop_oldest(struct report_list *list, Dtd__WorkerReport__Kind kind)
{
    for (struct report *r = list->first; r; r = r->next)
        if (!r->sent && r->msg.kind == kind) {
            report_free(report_unlink(list, r));
            return;
        }
}

void control_drop_usage(struct link *l)
{
    drop_oldest(&l->reports, DTD__WORKER_REPORT__KIND__USAGE);
}

static bool is_state(Dtd__WorkerReport__Kind kind)
{
    return kind == DTD__WORKER_REPORT__KIND__READY || kind == DTD__WORKER_REPORT__KIND__DONE ||
           kind == DTD__WORKER_REPORT__KIND__FAILED;
}

static void report_append(struct report_list *list, struct report *r)
{
    if (!list->last)
        list->last = &list->first;
    *list->last = r;
    list->last = &r->next;
    list->n++;
}

static struct report *report_copy(struct link *l, const struct report *r)
{
    struct report *c = report_new(l, r->msg.kind, r->msg.epoch, r->msg.text);
    if (!c)
        return NULL;
    c->msg.rank = r->msg.rank;
    c->msg.has_fatal = r->msg.has_fatal;
    c->msg.fatal = r->msg.fatal;
    c->msg.has_step = r->msg.has_step;
    c->msg.step = r->msg.step;
    report_parts(c, r->part_ms, r->msg.n_part_ms);
    return c;
}

void control_push(struct link *l, struct report *r)
{
    if (!r) {
        log_error("report_lost why=\"out of memory\"");
        return;
    }
    if (is_state(r->msg.kind)) {
        report_free(l->state_report);
        l->state_report = report_copy(l, r);
    } else if (r->msg.kind == DTD__WORKER_REPORT__KIND__IDLE) {
        report_free(l->state_report);
        l->state_report = NULL;
    }
    if (l->reports.n >= REPORTS_MAX)
        drop_oldest(&l->reports, DTD__WORKER_REPORT__KIND__METRIC);
    report_append(&l->reports, r);
    if (!l->closing)
        uv_async_send(&l->wake);
}

static void on_report_reply(void *arg, const struct rpc_result *result)
{
    struct report *r = arg;
    struct link *l = r->link;
    l->reports_in_flight--;
    if (r->msg.kind == DTD__WORKER_REPORT__KIND__USAGE)
        l->usage_in_flight = false;
    pthread_mutex_lock(&l->mu);
    if (result->err == ERR_CLOSED) {
        r->sent = false;
    } else {
        if (result->err && r->msg.kind == DTD__WORKER_REPORT__KIND__USAGE)
            l->usage_ms = clock_mono_ms() + USAGE_REFUSED_MS;
        if (result->err)
            log_warn("report_refused kind=%d error=%s text=\"%s\"", (int)r->msg.kind, err_name(result->err),
                     result->text);
        report_free(report_unlink(&l->reports, r));
    }
    pthread_mutex_unlock(&l->mu);
    if (result->err != ERR_CLOSED)
        control_flush(l);
}

void control_flush(struct link *l)
{
    struct rpc_conn *conn = rpc_link_conn(l->control);
    if (!l->control_ready || !conn)
        return;
    pthread_mutex_lock(&l->mu);
    for (struct report *r = l->reports.first; r && l->reports_in_flight < REPORTS_IN_FLIGHT; r = r->next) {
        const bool usage = r->msg.kind == DTD__WORKER_REPORT__KIND__USAGE;
        if (r->sent || (usage && l->usage_in_flight))
            continue;
        if (rpc_send(conn, WORKER_REPORT, &r->msg.base, 0, on_report_reply, r, NULL))
            break; /* retried after the next reply or the next Hello */
        r->sent = true;
        l->usage_in_flight = l->usage_in_flight || usage;
        l->reports_in_flight++;
    }
    pthread_mutex_unlock(&l->mu);
}

/* ---- commands ---- */

void control_cancel(struct link *l)
{
    atomic_store(&l->cancel, 1);
    if (l->comm)
        comm_abort(l->comm);
    pthread_cond_broadcast(&l->changed);
}

static void epoch_end(struct link *l)
{
    l->ended = true;
    control_cancel(l);
    if (!l->running) {
        control_push(l, report_new(l, DTD__WORKER_REPORT__KIND__IDLE, l->epoch, NULL));
        l->epoch = 0;
    }
}

static char *copy_text(const char *s)
{
    return strdup(s ? s : "");
}

/* Copies the node number of each rank; a command without them means that all ranks are on one node. */
static void copy_nodes(struct link_epoch *e, const Dtd__WorkerCommand *c)
{
    e->n_nodes = 1;
    e->node_of = e->world > 0 ? calloc((size_t)e->world, sizeof(*e->node_of)) : NULL;
    for (size_t k = 0; e->node_of && k < c->n_node_of; k++) {
        e->node_of[k] = c->node_of[k];
        if (c->node_of[k] >= e->n_nodes)
            e->n_nodes = c->node_of[k] + 1;
    }
}

static bool start_is_valid(const Dtd__WorkerCommand *c)
{
    bool valid = (c->n_node_of == 0 || (int64_t)c->n_node_of == c->world) &&
                 (!c->has_secret || c->secret.len == LINK_SECRET_BYTES) && c->rank >= 0 && c->rank < c->world;
    for (size_t k = 0; k < c->n_node_of; k++)
        valid = valid && c->node_of[k] >= 0 && c->node_of[k] < c->world;
    return valid;
}

static void command_start(struct link *l, const Dtd__WorkerCommand *c)
{
    if (c->epoch <= l->epoch || c->epoch <= l->next.epoch)
        return; /* repeated by a new control */
    if (!start_is_valid(c)) {
        log_error("invalid START command ignored epoch=%" PRIu64 " rank=%d world=%d", c->epoch, c->rank, c->world);
        return;
    }
    link_epoch_fini(&l->next);
    l->next = (struct link_epoch){.epoch = c->epoch,
                                  .rank = c->rank,
                                  .world = c->world,
                                  .resume_step = c->has_resume_step ? c->resume_step : 0,
                                  .spec_yaml = copy_text(c->spec_yaml),
                                  .resume_path = copy_text(c->resume_path),
                                  .address = copy_text(c->address)};
    copy_nodes(&l->next, c);
    if (c->has_secret)
        memcpy(l->next.secret, c->secret.data, sizeof(l->next.secret));
    if (l->running)
        epoch_end(l);
    pthread_cond_broadcast(&l->changed);
}

static void command_end(struct link *l, const Dtd__WorkerCommand *c)
{
    if (l->epoch && c->epoch >= l->epoch)
        epoch_end(l);
    else if (!l->epoch)
        control_push(l, report_new(l, DTD__WORKER_REPORT__KIND__IDLE, c->epoch, NULL));
    if (l->next.epoch && c->epoch >= l->next.epoch)
        link_epoch_fini(&l->next);
}

static void command_quit(struct link *l, const Dtd__WorkerCommand *c)
{
    (void)c;
    l->quit = true;
    control_cancel(l);
}

static void command_stop(struct link *l, const Dtd__WorkerCommand *c)
{
    l->stop = c->has_save && c->save ? LINK_STOP_AND_SAVE : LINK_STOP;
    l->stop_epoch = c->has_epoch ? c->epoch : l->next.epoch ? l->next.epoch : l->epoch;
}

void control_push_profiled(struct link *l, uint64_t id, const char *text)
{
    struct report *r = report_new(l, DTD__WORKER_REPORT__KIND__PROFILED, l->epoch, text);
    if (r) {
        r->msg.has_profile = true;
        r->msg.profile = id;
    }
    control_push(l, r);
}

/* A leader takes an id from its wall clock. The ranks would ignore one that is below an earlier id, so the caller gets
 * an error. */
static void command_profile(struct link *l, const Dtd__WorkerCommand *c)
{
    if (!c->has_epoch || !c->has_profile || !c->has_profile_steps || c->profile_steps < 1 ||
        c->profile_steps > LINK_PROFILE_STEPS || c->profile >= LINK_PROFILE_IDS)
        return;
    if (l->profile_epoch == c->epoch && c->profile < l->profile.id) {
        control_push_profiled(l, c->profile,
                              "an earlier leader's clock is ahead of this one's: profile the job again when this clock "
                              "has passed it, and let NTP set the clocks of all nodes");
        return;
    }
    l->profile = (struct link_profile){.id = c->profile, .steps = c->profile_steps};
    l->profile_epoch = c->epoch;
}

static void (*const commands[])(struct link *l, const Dtd__WorkerCommand *c) = {
    [DTD__WORKER_COMMAND__KIND__START] = command_start,     [DTD__WORKER_COMMAND__KIND__END] = command_end,
    [DTD__WORKER_COMMAND__KIND__QUIT] = command_quit,       [DTD__WORKER_COMMAND__KIND__STOP] = command_stop,
    [DTD__WORKER_COMMAND__KIND__PROFILE] = command_profile,
};

static void on_command(void *arg, const struct rpc_result *result)
{
    struct link *l = arg;
    if (result->err || !result->reply) {
        if (result->last && result->err != ERR_CLOSED)
            rpc_link_reset(l->control); /* without the command stream the connection is useless */
        return;
    }
    const Dtd__WorkerCommand *c = (const Dtd__WorkerCommand *)(const void *)result->reply;
    size_t kind = (size_t)c->kind;
    log_info("command kind=%zu epoch=%" PRIu64, kind, c->epoch);
    if (kind >= sizeof(commands) / sizeof(commands[0]) || !commands[kind])
        return;
    pthread_mutex_lock(&l->mu);
    commands[kind](l, c);
    pthread_mutex_unlock(&l->mu);
}

/* ---- connected and disconnected ---- */

static void on_orphan_timeout(uv_timer_t *timer)
{
    struct link *l = timer->data;
    pthread_mutex_lock(&l->mu);
    log_error("orphaned why=\"not connected to control for %" PRId64 " s\"", l->orphan_ms / 1000);
    l->quit = true;
    control_cancel(l);
    pthread_mutex_unlock(&l->mu);
}

static void on_hello_reply(void *arg, const struct rpc_result *result)
{
    struct link *l = arg;
    struct rpc_conn *conn = rpc_link_conn(l->control);
    Dtd__Empty empty = DTD__EMPTY__INIT;
    if (result->err || !conn) {
        if (result->err != ERR_CLOSED) {
            log_at(l->control_refused ? LOG_DEBUG : LOG_WARN, "hello_refused error=%s text=\"%s\"",
                   err_name(result->err), result->text);
            l->control_refused = true;
        }
        rpc_link_reset(l->control);
        return;
    }
    if (rpc_send(conn, WORKER_COMMANDS, &empty.base, 0, on_command, l, NULL)) {
        rpc_link_reset(l->control);
        return;
    }
    rpc_link_healthy(l->control);
    uv_timer_stop(&l->orphan);
    l->control_ready = true;
    l->control_refused = false;
    pthread_mutex_lock(&l->mu);
    if (l->state_report)
        report_append(&l->reports, report_copy(l, l->state_report));
    pthread_mutex_unlock(&l->mu);
    control_flush(l);
    link_store_up(l);
}

void control_up(void *owner, struct rpc_conn *conn)
{
    struct link *l = owner;
    Dtd__WorkerHello hello = DTD__WORKER_HELLO__INIT;
    hello.job = l->job;
    hello.slot = l->slot;
    hello.token = (ProtobufCBinaryData){TICKET_TOKEN_BYTES, l->ticket.token};
    hello.pid = (int32_t)getpid();
    pthread_mutex_lock(&l->mu);
    hello.has_epoch = l->epoch != 0;
    hello.epoch = l->epoch;
    pthread_mutex_unlock(&l->mu);
    if (rpc_send(conn, WORKER_HELLO, &hello.base, 10000, on_hello_reply, l, NULL))
        rpc_link_reset(l->control);
}

void control_down(void *owner, err_t err)
{
    (void)err;
    struct link *l = owner;
    l->control_ready = false;
    pthread_mutex_lock(&l->mu);
    int64_t wait_ms = l->orphan_ms;
    pthread_mutex_unlock(&l->mu);
    if (!uv_is_active((uv_handle_t *)&l->orphan))
        uv_timer_start(&l->orphan, on_orphan_timeout, (uint64_t)wait_ms, 0);
}
