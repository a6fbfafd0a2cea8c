/* Events from outside (messages of the supervisor, the timer, the log) enter here, are passed to their job, and are
 * followed by a tick of all jobs. */
#include "daemon/control/control.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "daemon/control/job/job.h"
#include "daemon/control/job/metrics_limit.h"
#include "daemon/control/leadership.h"
#include "daemon/control/local/pool.h"
#include "daemon/control/rpc/adapters.h"
#include "daemon/control/rpc/turn.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define THREADS_AT_START 8 /* 4 of libuv, with which the log writes, and one of each pool */
#define RETRY_MS 1000      /* for records and metrics that a full disk refused; each try costs a write */

/* ---- shutdown ---- */

/* The log is complete on disk, so the supervisor may end the processes that still run. */
static void log_is_closed(void *owner)
{
    struct control *n = owner;
    n->replica.log = NULL;
    if (supervisor_link_end(&n->local.supervisor))
        log_error("the request to shut down was not sent to the supervisor");
    uv_stop(&n->loop);
}

/* The log is closed already if control was about to start again. */
static void cluster_is_closed(void *owner)
{
    const struct control *n = owner;
    if (!n->log_closed)
        log_close(n->replica.log, log_is_closed);
}

/* May this node exit? The leader first hands over and waits until its processes have ended (on a full shutdown, the
 * other nodes' too). A voter waits until the remaining voters are a majority. */
static bool has_left(const struct control *n)
{
    if (clock_mono_ms() >= n->leave_ms)
        return true;
    if (n->jobs.leads ? cluster_has_successor(n->cluster) || jobs_await_leaving(&n->jobs)
                      : cluster_is_needed(n->cluster))
        return false;
    for (const struct child *c = n->local.children.head; c; c = c->next)
        if (child_runs(c))
            return false;
    return true;
}

static void jobs_ticked(void *owner)
{
    struct control *n = owner;
    if (n->jobs.stopping && (n->jobs.leaving ? has_left(n) : jobs_are_over(&n->jobs)) && !n->ended) {
        log_info("all jobs have stopped or moved to other nodes");
        n->ended = true;
        rpc_server_finish(&n->rpc);
        cluster_close(n->cluster, cluster_is_closed);
    }
}

static void tick_is_due(uv_timer_t *timer)
{
    struct control *n = timer->data;
    if (n->jobs.tick_is_due)
        jobs_tick(&n->jobs);
}

/* A timer that is due at once runs in the next turn of the loop. */
static void tick_jobs_soon(void *owner)
{
    struct control *n = owner;
    uv_timer_start(&n->tick_timer, tick_is_due, 0, 0);
}

/* ---- the log ---- */

static void log_is_ready(void *owner, err_t err, const char *why)
{
    struct control *n = owner;
    if (err) {
        log_error("the log cannot start error=%s why=%s", err_name(err), why ? why : "");
        exit(1);
    }
    log_info("log ready term=%llu index=%llu", (unsigned long long)log_term(n->replica.log),
             (unsigned long long)log_index(n->replica.log));
    if (supervisor_link_list(&n->local.supervisor))
        log_error("the request for the list of processes was not sent to the supervisor");
    probe_start(&n->local);
}

/* The leader shows the warning, and makes another node a voter if the disk has failed. */
static void log_has_warning(void *owner, const char *warning)
{
    struct control *n = owner;
    (void)warning;
    if (n->rpc.listener)
        leadership_facts(n);
}

static void log_has_role(void *owner)
{
    struct control *n = owner;
    cluster_role(n->cluster);
}

static void gpus_known(void *owner)
{
    struct control *n = owner;
    rpc_client_gpus_known(&n->rpc);
    leadership_facts(n);
    if (n->rpc.listener)
        jobs_tick(&n->jobs);
}

static void facts_changed(void *owner)
{
    struct control *n = owner;
    n->jobs.self.disk_full = n->local.log_watch.is_full;
    leadership_facts(n);
}

/* ---- the supervisor ---- */

static void acknowledge(struct control *n, const struct channel_msg *m)
{
    if (m->state != CHANNEL_RUNNING && supervisor_link_ack(&n->local.supervisor, m))
        log_error("exit not acknowledged pid=%d", m->pid);
}

static void process_changed(void *owner, const struct channel_msg *m)
{
    struct control *n = owner;
    acknowledge(n, m);
    const struct child *c = local_process_event(&n->local, m);
    if (c)
        leadership_child(n, c);
    jobs_tick(&n->jobs);
}

static void on_child(void *owner, const struct channel_msg *m)
{
    struct control *n = owner;
    if (m->job == CHANNEL_JOB_PROBE) {
        acknowledge(n, m);
        probe_child(&n->local, m);
        jobs_tick(&n->jobs);
    } else if (!n->rpc.listener || !probe_delay_exit(&n->local, m)) {
        process_changed(n, m);
    }
}

static void on_job(void *owner, const struct channel_msg *m)
{
    struct control *n = owner;
    const struct job *j = jobs_find(&n->jobs, m->job);
    if (n->jobs.leads && (j ? job_over(j) : !jobs_is_unread(&n->jobs, m->job)) &&
        supervisor_link_release(&n->local.supervisor, m->job, false))
        log_error("job not released");
}

static void on_listed(void *owner)
{
    struct control *n = owner;
    if (n->rpc.listener)
        return;
    leadership_listed(n);
    err_t err = rpc_server_start(&n->rpc, CHANNEL_LISTENER_FD);
    if (err) {
        log_error("control.sock cannot be served error=%s", err_text(err));
        exit(1);
    }
    n->heartbeat.due_ms = 0;
    log_info("serving dir=%s slots=%d cores=%d numa_nodes=%d", n->dir, n->jobs.self.slots,
             n->local.children.cores.at.n_cpus, n->local.children.cores.at.n_cpu_nodes);
    jobs_tick(&n->jobs);
}

static void on_shutdown(void *owner)
{
    control_stop(owner);
}

static void on_reload(void *owner, uint64_t number)
{
    heartbeat_reload(owner, number);
}

static void on_lost(void *owner)
{
    log_error("the supervisor has exited; dtd-control exits too");
    exit(1);
}

/* The leader names the node that has the epoch's store. */
static err_t command_port(void *owner, const struct process_spawn *x, uint16_t *ret_port)
{
    struct control *n = owner;
    bool here = strcmp(x->store_node, n->local.name) == 0;
    return c10d_open_epoch(&n->c10d, x->uid, x->job, x->epoch, here ? NULL : x->store_node, ret_port);
}

static void released(void *owner, uint64_t job)
{
    c10d_close_job(&((struct control *)owner)->c10d, job, NULL);
}

static const struct local_events local_events = {.process = process_changed,
                                                 .gpus_known = gpus_known,
                                                 .facts_changed = facts_changed,
                                                 .command_port = command_port,
                                                 .released = released,
                                                 .disconnect = rpc_server_drop};

static const struct supervisor_link_events supervisor_link_events = {on_child,    on_job,    on_listed,
                                                                     on_shutdown, on_reload, on_lost};

/* ---- time ---- */

/* Records an incident that explains gaps in a job's history; it enters the log when there is space again. */
static void record_full_log(struct control *n)
{
    const char *warning = n->replica.log ? log_warning(n->replica.log) : NULL;
    bool news = warning && !n->log_warned;
    char seen[400];
    n->log_warned = warning != NULL;
    if (news)
        snprintf(seen, sizeof(seen), "on %.64s: %.300s", n->jobs.self.name, warning);
    if (news)
        jobs_incident_record(&n->jobs, seen, "training continues; events are recorded when the log takes them again");
}

static uint64_t newest_job(const struct control *n)
{
    const struct state_job *const *jobs;
    int count = state_jobs(n->replica.state, &jobs);
    return count ? jobs[count - 1]->id : 0;
}

static void on_timer(uv_timer_t *timer)
{
    struct control *n = timer->data;
    int64_t now = clock_mono_ms();
    if (now >= n->retry_ms) {
        n->retry_ms = now + RETRY_MS;
        record_full_log(n);
        outbox_retry(&n->jobs.outbox);
        jobs_flush_metrics(&n->jobs);
        metrics_limit_tick(&n->jobs);
        rpc_curves_tick(&n->rpc);
        jobs_forget(&n->jobs);
    }
    state_clock_save(&n->clock);
    probe_tick(&n->local);
    rpc_client_tick(&n->rpc);
    rpc_turn_tick(&n->rpc);
    rpc_events_tick(&n->rpc);
    c10d_tick(&n->c10d);
    log_watch_tick(&n->local, newest_job(n));
    health_tick(&n->local.health, n->dir, &n->local.log_watch);
    if (load_tick(&n->local.load, &n->local.gpus))
        leadership_load(n);
    leadership_tick(n);
    if (n->rpc.listener)
        jobs_tick(&n->jobs);
    heartbeat_tick(n);
}

static void on_sigterm(uv_signal_t *signal, int number)
{
    log_info("received a signal, exiting number=%d", number);
    uv_stop(signal->loop);
}

/* ---- start and stop ---- */

static err_t start_log(struct control *n, struct why *why)
{
    char dir[PATH_MAX];
    snprintf(dir, sizeof(dir), "%s/raft", n->dir);
    struct log_config config = {
        .loop = &n->loop,
        .dir = dir,
        .machine = replica_machine(&n->replica),
        .owner = n,
        .on_ready = log_is_ready,
        .on_role = log_has_role,
        .on_warning = log_has_warning,
        .reserve_bytes = (uint64_t)n->conf.disk.reserve_mib << 20,
        .snapshot_threshold = (unsigned)n->conf.snapshot.entries,
        .snapshot_trailing = (unsigned)n->conf.snapshot.trailing,
    };
    cluster_log_config(n->cluster, &config);
    err_t err = log_start(&config, &n->replica.log);
    return err ? why_set(why, err, "%s: %s", dir, err_text(err)) : OK;
}

/* Gives each part its callbacks and the parts that it uses. start_cluster replaces the name by the cluster's. */
/* The supervisor holds a descriptor for each worker of a job and two for the job, and this process one for each
 * connection. Without jobs both have fewer than OWN_DESCRIPTORS open, and some are left for clients. */
#define DESCRIPTORS_PER_SLOT 4
#define OWN_DESCRIPTORS 32

static void limit_slots(struct control *n)
{
    struct rlimit files;
    int *slots = &n->jobs.self.slots;
    if (getrlimit(RLIMIT_NOFILE, &files) ||
        files.rlim_max >= OWN_DESCRIPTORS + CHANNEL_MAX_WORKERS * DESCRIPTORS_PER_SLOT)
        return;
    int most = ((int)files.rlim_max - OWN_DESCRIPTORS) / DESCRIPTORS_PER_SLOT;
    most = most < 1 ? 1 : most;
    if (*slots <= most)
        return;
    snprintf(n->local.health.limit, sizeof(n->local.health.limit),
             "%d of %d slots are used, because at most %d files may be open (ulimit -Hn)", most, *slots,
             (int)files.rlim_max);
    log_warn("%s", n->local.health.limit);
    *slots = most;
}

/* A quarter of the descriptors is for root, for connections to other nodes, and for this node's own files. */
static void limit_users(struct control *n)
{
    struct rlimit files;
    int64_t all = getrlimit(RLIMIT_NOFILE, &files) || files.rlim_cur > (1u << 20) ? 1 << 20 : (int64_t)files.rlim_cur;
    shares_init(&n->descriptors, all - all / 4);
}

static void connect_parts(struct control *n)
{
    const char *name = n->conf.name[0] ? n->conf.name : "node-1";
    n->local = (struct local){
        .events = &local_events, .owner = n, .name = name, .dir = n->dir, .conf = &n->conf, .system = n->system};
    n->jobs = (struct jobs){.out = &rpc_job_outbound,
                            .parses = &n->rpc.parses,
                            .ticked = jobs_ticked,
                            .tick_soon = tick_jobs_soon,
                            .owner = n,
                            .local = &n->local,
                            .replica = &n->replica,
                            .dir = n->dir};
    n->c10d = (struct c10d_registry){.loop = &n->loop,
                                     .system = n->system,
                                     .limits = {.stores = n->conf.users.stores,
                                                .connections = n->conf.users.store_connections,
                                                .bytes = (size_t)n->conf.users.store_mib << 20},
                                     .descriptors = &n->descriptors};
    n->c10d_owners = (struct c10d_owners){.jobs = &n->jobs, .c10d = &n->c10d, .close_there = rpc_node_store_close};
    n->rpc = (struct rpc_server){.loop = &n->loop,
                                 .local = &n->local,
                                 .replica = &n->replica,
                                 .jobs = &n->jobs,
                                 .c10d = &n->c10d,
                                 .c10d_owners = &n->c10d_owners,
                                 .descriptors = &n->descriptors,
                                 .system = n->system,
                                 .stop = on_shutdown,
                                 .owner = n};
    local_init(&n->local);
    jobs_init(&n->jobs, name, (int)n->conf.slots);
    limit_slots(n);
    limit_users(n);
    rpc_server_bind(&n->rpc);
}

static err_t start_cluster(struct control *n, struct why *why)
{
    const struct cluster_config config = {.loop = &n->loop,
                                          .dir = n->dir,
                                          .conf = &n->conf,
                                          .replica = &n->replica,
                                          .methods = n->rpc.methods,
                                          .methods_owner = &n->rpc,
                                          .events = &leadership_events,
                                          .owner = n,
                                          .saves = &n->rpc.reads};
    err_t err = cluster_start(&config, &n->cluster, why);
    if (err)
        return err;
    n->rpc.cluster = n->c10d.cluster = n->cluster;
    n->local.name = n->jobs.self.name = cluster_self(n->cluster);
    return OK;
}

err_t control_start(struct control *n, struct why *why)
{
    char log_dir[PATH_MAX];
    connect_parts(n);
    int rc = uv_loop_init(&n->loop);
    if (!rc)
        rc = uv_timer_init(&n->loop, &n->timer);
    if (!rc)
        rc = uv_timer_init(&n->loop, &n->lead_timer);
    if (!rc)
        rc = uv_timer_init(&n->loop, &n->tick_timer);
    if (!rc)
        rc = uv_signal_init(&n->loop, &n->sigterm);
    if (!rc)
        rc = uv_signal_start(&n->sigterm, on_sigterm, SIGTERM);
    if (rc)
        return why_set(why, err_from_errno(-rc), "event loop: %s", uv_strerror(rc));
    err_t err = pool_check_threads(THREADS_AT_START);
    err = err ? err : rpc_server_init(&n->rpc);
    if (err)
        return why_set(
            why, err,
            "cannot start %d threads: %s. Raise the limit of processes and threads of this user (ulimit -u), "
            "or end some of them",
            THREADS_AT_START, err_text(err));
    n->timer.data = n->lead_timer.data = n->tick_timer.data = n;
    rc = uv_timer_start(&n->timer, on_timer, CONTROL_TICK_MS, CONTROL_TICK_MS);
    if (rc)
        return why_set(why, err_from_errno(-rc), "timer: %s", uv_strerror(rc));
    n->replica.clock = &n->clock;
    if (snprintf(log_dir, sizeof(log_dir), "%s/raft/log", n->dir) < (int)sizeof(log_dir))
        state_clock_open(&n->clock, log_dir);
    err = state_new(&n->replica.state);
    if (err)
        return why_set(why, err, "state: %s", err_text(err));
    err = supervisor_link_start(&n->local.supervisor, &n->loop, CHANNEL_FD, &supervisor_link_events, n);
    if (err)
        return why_set(why, err, "descriptor %d is no channel to the supervisor: dtd starts dtd-control; run `dtd`",
                       CHANNEL_FD);
    err = start_cluster(n, why);
    if (err)
        return err;
    return start_log(n, why);
}

void control_stop(struct control *n)
{
    if (n->jobs.stopping)
        return;
    n->jobs.stopping = true;
    probe_stop(&n->local);
    n->jobs.leaving = n->rpc.listener && (!n->jobs.leads || n->jobs.nodes->next || cluster_has_successor(n->cluster));
    log_info(n->jobs.leaving ? "leaving" : "stopping");
    if (n->jobs.leaving)
        leadership_leave(n);
    if (!n->jobs.leaving)
        jobs_leave(&n->jobs);
    if (n->rpc.listener) {
        jobs_tick(&n->jobs);
        return;
    }
    /* No job has been adopted yet, so no worker can be asked to save. */
    if (supervisor_link_end(&n->local.supervisor))
        log_error("the request to shut down was not sent to the supervisor");
    uv_stop(&n->loop);
}
