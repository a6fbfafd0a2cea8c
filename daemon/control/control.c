/* See node.h. What comes from outside (the supervisor's words, the timer, the log) enters here, finds its job and
 * ticks. */
#include "daemon/control/control.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "daemon/control/leadership.h"
#include "daemon/control/rpc/server.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define RETRY_MS 1000

/* ---- jobs ---- */

struct job *node_job(struct node *n, uint64_t id)
{
    for (struct job *j = n->jobs; j; j = j->next)
        if (j->id == id)
            return j;
    return NULL;
}

err_t node_job_add(struct node *n, const struct state_job *s)
{
    struct job *j = NULL, **at = &n->jobs;
    err_t err = job_new(n, s, &j);
    if (err)
        return err;
    while (*at)
        at = &(*at)->next;
    *at = j;
    return OK;
}

/* Jobs that the state has forgotten go from memory too. */
static void forget_jobs(struct node *n)
{
    for (struct job **at = &n->jobs; *at;) {
        struct job *j = *at;
        if (job_over(j) && !j->watches && !state_job_find(n->state, j->id)) {
            *at = j->next;
            job_free(j);
        } else {
            at = &j->next;
        }
    }
}

/* The log is whole on disk; what the supervisor still has is nobody's any more. */
static void log_is_closed(void *owner)
{
    struct node *n = owner;
    n->log = NULL;
    if (sup_end(&n->sup))
        log_error("the supervisor was not told to end");
    uv_stop(&n->loop);
}

static void cluster_is_closed(struct node *n)
{
    log_close(n->log, log_is_closed);
}

/* Leading: processes of jobs live on nodes that go down, ours among them. */
static bool awaits_leaving(const struct node *n)
{
    for (const struct job *j = n->leads ? n->jobs : NULL; j; j = j->next)
        for (int k = 0; !job_over(j) && k < j->n_workers; k++)
            if (j->workers[k].p.agent && j->workers[k].p.agent->leaving && job_process_running(&j->workers[k].p))
                return true;
    return false;
}

/* Whoever may lead does; who leads lets everything here end, and where all nodes go down, on the others as well. A
 * voter goes when the others are a majority without it. */
static bool has_left(const struct node *n)
{
    if (clock_mono_ms() >= n->leave_ms)
        return true;
    if (n->leads ? cluster_has_heir(n->cluster) || awaits_leaving(n) : cluster_is_needed(n->cluster))
        return false;
    for (const struct child *c = n->children.head; c; c = c->next)
        if (child_runs(c))
            return false;
    return true;
}

void node_tick(struct node *n)
{
    bool over = true;
    lead_state(n);
    for (struct job *j = n->jobs; j; j = j->next) {
        job_tick(j);
        over = over && (job_over(j) || j->phase.state == PHASE_WAITING);
    }
    if (n->stopping && (n->leaving ? has_left(n) : over) && !n->ended) {
        log_info("all jobs have left");
        n->ended = true;
        rpc_server_finish(n);
        cluster_close(n->cluster, cluster_is_closed);
    }
}

/* ---- the log ---- */

static err_t machine_apply(void *arg, const void *bytes, size_t len, uint64_t index, void *result)
{
    struct node *n = arg;
    struct record r;
    err_t err = record_decode(bytes, len, &r);
    if (err)
        return err;
    _Static_assert(sizeof(struct state_result) <= LOG_RESULT_BYTES, "an answer fits into the log's room for it");
    err = state_apply(n->state, &r, result);
    record_fini(&r);
    return err;
}

static err_t machine_snapshot(void *arg, struct buf *ret)
{
    return state_snapshot(((struct node *)arg)->state, ret);
}

static err_t machine_restore(void *arg, const void *data, size_t len)
{
    return state_restore(((struct node *)arg)->state, data, len);
}

err_t node_propose(struct node *n, const struct record *r, log_callback cb, void *arg)
{
    struct buf bytes = {0};
    err_t err = record_encode(r, &bytes);
    if (!err)
        err = log_propose(n->log, bytes.data, bytes.len, cb, arg);
    buf_fini(&bytes);
    return err;
}

static void log_is_ready(void *owner, err_t err, const char *why)
{
    struct node *n = owner;
    if (err) {
        log_error("the log cannot start error=%s why=%s", err_name(err), why ? why : "");
        exit(1);
    }
    log_info("log ready term=%llu index=%llu", (unsigned long long)log_term(n->log),
             (unsigned long long)log_index(n->log));
    if (sup_list(&n->sup))
        log_error("the supervisor was not asked");
    probe_start(n);
}

static void log_has_role(void *owner)
{
    struct node *n = owner;
    cluster_role(n->cluster);
}

void node_gpus_known(struct node *n)
{
    rpc_client_gpus_known(n);
    lead_facts(n);
    if (n->listener)
        node_tick(n);
}

/* ---- the supervisor ---- */

static void acknowledge(struct node *n, const struct channel_msg *m)
{
    if (m->state != CHANNEL_RUNNING && sup_ack(&n->sup, m))
        log_error("exit not acknowledged pid=%d", m->pid);
}

void node_child(struct node *n, const struct channel_msg *m)
{
    acknowledge(n, m);
    const struct child *c = children_word(n, m);
    if (c)
        lead_child(n, c);
    node_tick(n);
}

static void on_child(void *owner, const struct channel_msg *m)
{
    struct node *n = owner;
    if (m->job == CHANNEL_JOB_PROBE) {
        acknowledge(n, m);
        probe_child(n, m);
        node_tick(n);
    } else if (!probe_hold(n, m)) {
        node_child(n, m);
    }
}

static void on_job(void *owner, const struct channel_msg *m)
{
    struct node *n = owner;
    const struct job *j = node_job(n, m->job);
    if (n->leads && (!j || job_over(j)) && sup_release(&n->sup, m->job))
        log_error("job not released");
}

static void on_listed(void *owner)
{
    struct node *n = owner;
    if (n->listener)
        return;
    lead_listed(n);
    err_t err = rpc_server_start(n, CHANNEL_LISTENER_FD);
    if (err) {
        log_error("control.sock cannot be served error=%s", err_text(err));
        exit(1);
    }
    n->beat.due_ms = 0;
    log_info("serving dir=%s slots=%d cores=%d numa_nodes=%d", n->dir, n->self.slots, n->children.cores.at.n_cpus,
             n->children.cores.at.n_cpu_nodes);
    node_tick(n);
}

static void on_shutdown(void *owner)
{
    node_stop(owner);
}

static void on_reload(void *owner, uint64_t number)
{
    beat_reload(owner, number);
}

static void on_lost(void *owner)
{
    log_error("the supervisor is gone");
    exit(1);
}

static const struct sup_events sup_events = {on_child, on_job, on_listed, on_shutdown, on_reload, on_lost};

/* ---- time ---- */

/* Who asks later why a job was not recorded finds it among its incidents, which come into the log when there is space.
 */
static void note_full_log(struct node *n)
{
    const char *warning = n->log ? log_warning(n->log) : NULL;
    bool news = warning && !n->log_warned;
    char seen[400];
    n->log_warned = warning != NULL;
    if (news)
        snprintf(seen, sizeof(seen), "on %.64s: %.300s", n->self.name, warning);
    for (struct job *j = n->jobs; news && j; j = j->next)
        if (j->placed && !job_over(j))
            job_note(j, 0, seen, "training goes on, and what happens is recorded when there is space");
}

static void on_timer(uv_timer_t *timer)
{
    struct node *n = timer->data;
    int64_t now = clock_mono_ms();
    if (now >= n->retry_ms) {
        n->retry_ms = now + RETRY_MS;
        note_full_log(n);
        outbox_retry(&n->outbox);
        for (struct job *j = n->jobs; j; j = j->next)
            metrics_flush(&j->metrics);
        forget_jobs(n);
    }
    probe_tick(n);
    rpc_client_tick(n);
    stores_tick(n);
    health_tick(&n->health, n->dir);
    lead_tick(n);
    if (n->listener)
        node_tick(n);
    beat_tick(n);
}

static void on_sigterm(uv_signal_t *signal, int number)
{
    log_info("ended by a signal number=%d", number);
    uv_stop(signal->loop);
}

/* ---- start and end ---- */

static err_t start_log(struct node *n, struct why *why)
{
    char dir[PATH_MAX];
    snprintf(dir, sizeof(dir), "%s/raft", n->dir);
    struct log_config config = {
        .loop = &n->loop,
        .dir = dir,
        .machine = {n, machine_apply, machine_snapshot, machine_restore},
        .owner = n,
        .on_ready = log_is_ready,
        .on_role = log_has_role,
        .reserve_bytes = (uint64_t)n->conf.disk.reserve_mib << 20,
        .snapshot_threshold = (unsigned)n->conf.snapshot.entries,
        .snapshot_trailing = (unsigned)n->conf.snapshot.trailing,
    };
    cluster_log_config(n->cluster, &config);
    err_t err = log_start(&config, &n->log);
    return err ? why_set(why, err, "%s: %s", dir, err_text(err)) : OK;
}

err_t node_start(struct node *n, struct why *why)
{
    children_init(&n->children);
    health_init(&n->health);
    agent_self_init(n, n->conf.name[0] ? n->conf.name : "node-1"); /* in a cluster: the name that it has there */
    outbox_init(&n->outbox, n);
    rpc_server_bind(n);
    int rc = uv_loop_init(&n->loop);
    if (!rc)
        rc = uv_timer_init(&n->loop, &n->timer);
    if (!rc)
        rc = uv_signal_init(&n->loop, &n->sigterm);
    if (!rc)
        rc = uv_signal_start(&n->sigterm, on_sigterm, SIGTERM);
    if (rc)
        return why_set(why, err_from_errno(-rc), "event loop: %s", uv_strerror(rc));
    n->timer.data = n;
    rc = uv_timer_start(&n->timer, on_timer, NODE_TICK_MS, NODE_TICK_MS);
    if (rc)
        return why_set(why, err_from_errno(-rc), "timer: %s", uv_strerror(rc));
    err_t err = state_new(&n->state);
    if (err)
        return why_set(why, err, "state: %s", err_text(err));
    err = sup_start(&n->sup, &n->loop, CHANNEL_FD, &sup_events, n);
    if (err)
        return why_set(why, err, "descriptor %d is no channel: dtd-control is started by dtd, not by hand", CHANNEL_FD);
    err = cluster_start(n, &lead_events, &n->cluster, why);
    if (err)
        return err;
    n->self.name = cluster_self(n->cluster);
    return start_log(n, why);
}

void node_stop(struct node *n)
{
    if (n->stopping)
        return;
    n->stopping = true;
    n->leaving = n->listener && (!n->leads || n->agents->next || cluster_has_heir(n->cluster));
    log_info(n->leaving ? "leaving" : "stopping");
    if (n->leaving)
        lead_leave(n);
    for (struct job *j = n->leaving ? NULL : n->jobs; j; j = j->next)
        job_leave(j);
    if (n->listener) {
        node_tick(n);
        return;
    }
    /* Nobody has been adopted, so nobody can be asked to save. */
    if (sup_end(&n->sup))
        log_error("the supervisor was not told to end");
    uv_stop(&n->loop);
}
