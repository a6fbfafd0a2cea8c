#include "daemon/control/leadership.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "daemon/control/control.h"
#include "daemon/control/job/job.h"
#include "daemon/control/local/error_file.h"
#include "daemon/control/rpc/adapters.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LEAVE_MS 18000 /* below the 20 s after which the supervisor ends a shutdown */
/* How long a new leader waits for the nodes' process lists. A live node connects at once; one that does not is declared
 * lost before this time is over. */
#define LISTS_MS (4 * CLUSTER_LOST_MS)
#define SLICE_MS 10 /* of the loop, for jobs of the log that are made */

static void make_more_jobs(uv_timer_t *timer);

/* ---- this node's processes ---- */

/* The processes reconnect at once, send Hello and repeat the calls that were not answered. */
static void drop_processes(struct control *n)
{
    for (struct child *c = n->local.children.head; c; c = c->next) {
        if (c->peer)
            rpc_server_drop(c->peer);
        c->peer = NULL;
    }
}

static struct child *next_unreported(struct control *n)
{
    for (struct child *c = n->local.children.head; c; c = c->next)
        if (!c->said)
            return c;
    return NULL;
}

/* Starts again from the head after each report: a report may end the job here and remove entries of the list. */
static void report_own_processes(struct control *n)
{
    struct child *c;
    for (c = n->local.children.head; c; c = c->next)
        c->said = false;
    while ((c = next_unreported(n))) {
        c->said = true;
        node_view_child(&n->jobs, &n->jobs.self, c);
    }
    node_view_listed(&n->jobs, &n->jobs.self);
}

void leadership_listed(struct control *n)
{
    n->listed = true;
    if (n->jobs.leads)
        report_own_processes(n);
    else
        rpc_node_list(&n->rpc);
}

void leadership_child(struct control *n, const struct child *c)
{
    char log[CHILD_LOG_BYTES + 1], path[PATH_MAX];
    struct error_file error;
    struct child said = *c;
    if (child_failed(c) && rpc_log_tail(&n->rpc, c->job, c->slot, log, sizeof(log)))
        said.log = log;
    error_file_path(n->local.dir, c->job, c->slot, c->epoch, path);
    if (child_failed(c) && c->epoch && error_file_read(path, &error) == OK) {
        said.recorded = error.text;
        said.recorded_ago_ms = error_file_age_ms(&error);
    }
    if (n->jobs.leads && n->listed)
        node_view_child(&n->jobs, &n->jobs.self, &said);
    else if (!n->jobs.leads)
        rpc_node_child(&n->rpc, &said);
}

void leadership_facts(struct control *n)
{
    if (!n->jobs.leads)
        rpc_node_facts(&n->rpc);
}

void leadership_load(struct control *n)
{
    if (!n->jobs.leads)
        rpc_node_load(&n->rpc);
}

void leadership_leave(struct control *n)
{
    n->leave_ms = clock_mono_ms() + LEAVE_MS;
    n->jobs.self.leaving = true;
    leadership_facts(n);
}

/* ---- leading ---- */

/* The jobs are not acted on until every node has listed its live processes. */
static void adopt_jobs(struct control *n)
{
    jobs_take_made(&n->jobs);
    for (struct job *j = n->jobs.head; j; j = job_next(j)) {
        err_t err = job_adopt_begin(j);
        if (err)
            log_error("job not adopted id=%" PRIu64 " error=%s", job_view_of(j).id, err_text(err));
        if (err == ERR_NOMEM)
            exit(1); /* a job that is half adopted would be started again beside its processes; another node leads */
    }
}

/* Reading the job files of thousands of jobs takes a second. Heartbeats must go out meanwhile, or another node would be
 * elected. So the jobs are made in slices, and until the last one this node answers as one that does not lead. */
static void make_jobs(struct control *n)
{
    if (!jobs_make(&n->jobs, clock_mono_ms() + SLICE_MS)) {
        uv_timer_start(&n->lead_timer, make_more_jobs, 1, 0);
        return;
    }
    log_info("this node leads");
    n->begins = false;
    n->jobs.leads = true;
    n->jobs.lists_due_ms = clock_mono_ms() + LISTS_MS;
    jobs_take_nodes(&n->jobs);
    drop_processes(n);
    adopt_jobs(n);
    if (n->listed)
        report_own_processes(n);
    jobs_tick(&n->jobs);
}

static void make_more_jobs(uv_timer_t *timer)
{
    make_jobs(timer->data);
}

static void on_lead(void *owner)
{
    struct control *n = owner;
    n->begins = true;
    node_views_begin(&n->jobs);
    c10d_owners_end(&n->c10d_owners);
    c10d_owners_begin(&n->c10d_owners);
    jobs_take_nodes(&n->jobs);
    make_jobs(n);
}

static void forget_watches(struct job *j)
{
    rpc_watch_forget(j);
}

static void on_follow(void *owner)
{
    struct control *n = owner;
    if (!n->jobs.leads && !n->begins)
        return;
    log_info("this node no longer leads");
    uv_timer_stop(&n->lead_timer);
    n->begins = false;
    n->jobs.leads = false;
    n->jobs.lists_due_ms = 0;
    rpc_client_forget(&n->rpc);
    rpc_events_forget(&n->rpc);
    outbox_fini(&n->jobs.outbox);
    outbox_init(&n->jobs.outbox, &n->replica, &n->jobs);
    jobs_clear(&n->jobs, forget_watches);
    node_views_end(&n->jobs);
    c10d_owners_end(&n->c10d_owners);
    drop_processes(n);
}

/* ---- following ---- */

static void on_leader_up(void *owner, struct rpc_conn *conn)
{
    struct control *n = owner;
    n->rpc.attend_ms = 0;
    n->rpc.leader = conn;
    drop_processes(n);
    rpc_node_attend(&n->rpc);
    if (n->listed)
        rpc_node_list(&n->rpc);
}

/* Processes stay connected. Their calls wait until on_leader_up drops the connections for the next leader. */
static void on_leader_down(void *owner)
{
    struct control *n = owner;
    log_info("the connection to the leader is closed");
    n->rpc.leader = NULL;
    n->rpc.attend_ms = 0;
    n->rpc.list_due = false;
}

void leadership_tick(struct control *n)
{
    if (!n->jobs.leads && n->rpc.attend_ms && clock_mono_ms() >= n->rpc.attend_ms)
        on_leader_up(n, n->rpc.leader);
    if (!n->jobs.leads || !n->jobs.lists_due_ms || clock_mono_ms() < n->jobs.lists_due_ms)
        return;
    n->jobs.lists_due_ms = 0;
    jobs_adopt_late(&n->jobs);
}

/* ---- other nodes ---- */

static void on_member_up(void *owner, const char *name, struct rpc_conn *conn)
{
    struct control *n = owner;
    struct node_view *a = node_find_or_add(&n->jobs, name);
    if (state_node_is_lost(n->replica.state, name))
        jobs_event_record(&n->jobs, 0, EVENT_NODE_BACK, name, "");
    if (!a)
        log_error("no memory for a node name=%s", name);
    else
        node_view_connected(&n->jobs, a, conn);
}

static void on_member_down(void *owner, const char *name)
{
    struct control *n = owner;
    struct node_view *a = node_view_find(&n->jobs, name);
    if (a)
        node_view_away(a);
}

static void on_member_lost(void *owner, const char *name, int64_t silent_ms, const char *why)
{
    struct control *n = owner;
    struct node_view *a = node_view_find(&n->jobs, name);
    if (!a || a->is_self)
        return;
    char seen[400];
    snprintf(seen, sizeof(seen), "node %s was lost (%s; last heartbeat %.1f s ago)", name, why,
             (double)silent_ms / 1e3);
    const struct state *state = n->replica.state;
    const bool has_left = state_cluster(state)->n_nodes && !state_node_find(state, name);
    if (!has_left && !state_node_is_lost(state, name))
        jobs_event_record(&n->jobs, 0, EVENT_NODE_LOST, name, why);
    node_view_lost(&n->jobs, a, silent_ms, seen);
    c10d_owners_lost(&n->c10d_owners, a);
    jobs_tick(&n->jobs);
}

static void on_stream(void *owner, const char *argument, int fd)
{
    c10d_take(&((struct control *)owner)->c10d, argument, fd);
}

static bool is_leaving(void *owner, const char *name)
{
    struct jobs *jobs = &((struct control *)owner)->jobs;
    const struct node_view *a = name ? node_view_find(jobs, name) : &jobs->self;
    return a && (a->leaving || a->log_failed);
}

static bool has_job(void *owner, uint64_t *ret_job)
{
    const struct job *j = ((struct control *)owner)->jobs.head;
    while (j && job_over(j))
        j = job_next(j);
    if (j)
        *ret_job = job_view_of(j).id;
    return j != NULL;
}

static bool is_unfit(void *owner)
{
    return jobs_unread(&((struct control *)owner)->jobs) != 0;
}

/* The cluster has placed the ranks elsewhere, or does so at present. */
static void on_removed(void *owner)
{
    struct control *n = owner;
    for (const struct child *c = n->local.children.head; c; c = c->next)
        if (child_runs(c) && supervisor_link_kill(&n->local.supervisor, c->job, c->slot, SIGKILL))
            log_error("a process of a cluster that this node is not in was not killed job=%" PRIu64 " slot=%d", c->job,
                      c->slot);
}

/* If this node is shutting down meanwhile, control does not start again. */
static void log_closed(void *owner)
{
    struct control *n = owner;
    if (n->ended && supervisor_link_end(&n->local.supervisor))
        log_error("the request to shut down was not sent to the supervisor");
    n->log_closed(n->log_closed_arg);
}

static void close_log(void *owner, void (*then)(void *arg), void *arg)
{
    struct control *n = owner;
    n->log_closed = then;
    n->log_closed_arg = arg;
    log_close(n->replica.log, log_closed);
}

const struct cluster_events leadership_events = {
    .lead = on_lead,
    .follow = on_follow,
    .leader_up = on_leader_up,
    .leader_down = on_leader_down,
    .member_up = on_member_up,
    .member_down = on_member_down,
    .member_lost = on_member_lost,
    .stream = on_stream,
    .is_leaving = is_leaving,
    .has_job = has_job,
    .is_unfit = is_unfit,
    .removed = on_removed,
    .close_log = close_log,
};
