/* See lead.h. */
#include "daemon/control/leadership.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "daemon/control/job/node_view.h"
#include "daemon/control/control.h"
#include "daemon/control/job/outbound.h"
#include "daemon/control/rpc/server.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define LEAVE_MS 18000 /* below the supervisor's patience */
/* How long a new leader waits for the nodes' lists: a node that is there comes at once, and one that is not is lost. */
#define LISTS_MS (4 * CLUSTER_LOST_MS)

/* ---- this node's processes ---- */

/* They come back at once, say who they are, and what was not answered is said again. */
static void drop_processes(struct node *n)
{
    for (struct child *c = n->children.head; c; c = c->next) {
        if (c->peer)
            rpc_server_drop(c->peer);
        c->peer = NULL;
    }
}

static struct child *next_unsaid(struct node *n)
{
    for (struct child *c = n->children.head; c; c = c->next)
        if (!c->said)
            return c;
    return NULL;
}

/* Entries come and go meanwhile: what is said of a process may end its job here. */
static void say_own(struct node *n)
{
    struct child *c;
    for (c = n->children.head; c; c = c->next)
        c->said = false;
    while ((c = next_unsaid(n))) {
        c->said = true;
        agent_child(n, &n->self, c);
    }
    agent_listed(n, &n->self);
}

void lead_listed(struct node *n)
{
    n->listed = true;
    if (n->leads)
        say_own(n);
    else
        rpc_agent_list(n);
}

void lead_child(struct node *n, const struct child *c)
{
    char log[CHILD_LOG_BYTES + 1];
    struct child said = *c;
    if (child_failed(c) && rpc_log_tail(n, c->job, c->slot, log, sizeof(log)))
        said.log = log;
    if (n->leads && n->listed)
        agent_child(n, &n->self, &said);
    else if (!n->leads)
        rpc_agent_child(n, &said);
}

void lead_facts(struct node *n)
{
    if (!n->leads)
        rpc_agent_facts(n);
}

void lead_leave(struct node *n)
{
    n->leave_ms = clock_mono_ms() + LEAVE_MS;
    n->self.leaving = true;
    lead_facts(n);
}

/* ---- leading ---- */

/* Nothing is decided about them before it is known what of them lives. */
static void take_jobs_up(struct node *n)
{
    const struct state_job *const *jobs;
    int count = state_jobs(n->state, &jobs);
    for (int i = 0; i < count; i++) {
        err_t err = node_job_add(n, jobs[i]);
        if (!err)
            err = job_adopt_begin(node_job(n, jobs[i]->id));
        if (err)
            log_error("job not taken up id=%" PRIu64 " error=%s", jobs[i]->id, err_text(err));
    }
}

static void take_node(struct agent *a, const struct state_node *s)
{
    const char *colon = strrchr(s->address, ':');
    int host = colon ? (int)(colon - s->address) : (int)strlen(s->address);
    bool bracketed = host > 1 && s->address[0] == '[';
    snprintf(a->address, sizeof(a->address), "%.*s", bracketed ? host - 2 : host, s->address + bracketed);
    a->drained[0] = '\0';
    if (s->drained)
        snprintf(a->drained, sizeof(a->drained), "is drained (%.100s)", s->drained);
}

static void take_nodes(struct node *n)
{
    const struct state_cluster *c = state_cluster(n->state);
    for (int i = 0; i < c->n_nodes; i++) {
        struct agent *a = agent_need(n, c->nodes[i].name);
        if (a)
            take_node(a, &c->nodes[i]);
        else
            log_error("no memory for a node name=%s", c->nodes[i].name);
    }
}

/* Also those whose proposal was given up when the log was closed as full, and is in it: nobody is told of them. */
static void take_new_jobs(struct node *n)
{
    const struct state_job *const *jobs;
    int count = state_jobs(n->state, &jobs), first = count;
    while (first > 0 && !node_job(n, jobs[first - 1]->id))
        first--;
    for (int i = first; i < count; i++) {
        err_t err = node_job_add(n, jobs[i]);
        if (err)
            log_error("submitted job not taken up id=%" PRIu64 " error=%s", jobs[i]->id, err_text(err));
    }
}

void lead_state(struct node *n)
{
    if (!n->leads || n->state_index == log_index(n->log))
        return;
    n->state_index = log_index(n->log);
    take_nodes(n);
    take_new_jobs(n);
}

static void on_lead(struct node *n)
{
    log_info("this node leads");
    n->leads = true;
    n->lists_due_ms = clock_mono_ms() + LISTS_MS;
    agents_begin(n);
    store_names_begin(n);
    n->state_index = log_index(n->log);
    take_nodes(n);
    drop_processes(n);
    take_jobs_up(n);
    if (n->listed)
        say_own(n);
    node_tick(n);
}

static void on_follow(struct node *n)
{
    if (!n->leads)
        return;
    log_info("this node leads no more");
    n->leads = false;
    n->lists_due_ms = 0;
    rpc_client_forget(n);
    outbox_fini(&n->outbox);
    outbox_init(&n->outbox, n);
    while (n->jobs) {
        struct job *j = n->jobs;
        n->jobs = j->next;
        rpc_watch_forget(j);
        job_free(j);
    }
    agents_end(n);
    drop_processes(n);
}

/* ---- following ---- */

static void on_leader_up(struct node *n, struct rpc_conn *conn)
{
    n->attend_ms = 0;
    n->leader = conn;
    drop_processes(n);
    rpc_agent_attend(n);
    if (n->listed)
        rpc_agent_list(n);
}

/* Processes stay: what they ask waits until their connections are dropped for the next one that leads. */
static void on_leader_down(struct node *n)
{
    log_info("the connection to the node that leads has gone");
    n->leader = NULL;
    n->attend_ms = 0;
    n->list_due = false;
}

void lead_tick(struct node *n)
{
    if (!n->leads && n->attend_ms && clock_mono_ms() >= n->attend_ms)
        on_leader_up(n, n->leader);
    if (!n->leads || !n->lists_due_ms || clock_mono_ms() < n->lists_due_ms)
        return;
    n->lists_due_ms = 0;
    for (struct job *j = n->jobs; j; j = j->next)
        if (!job_over(j))
            job_adopt(j, true);
}

/* ---- other nodes ---- */

static void on_member_up(struct node *n, const char *name, struct rpc_conn *conn)
{
    struct agent *a = agent_need(n, name);
    if (!a)
        log_error("no memory for a node name=%s", name);
    else
        a->conn = conn; /* it is there when its Attend comes */
}

static void on_member_down(struct node *n, const char *name)
{
    struct agent *a = agent_find(n, name);
    if (a)
        agent_away(a);
}

static void on_member_lost(struct node *n, const char *name, int64_t silent_ms, const char *why)
{
    struct agent *a = agent_find(n, name);
    if (!a || a->is_self)
        return;
    char seen[400];
    snprintf(seen, sizeof(seen), "node %s was lost (%s, no word for %.1f s)", name, why, (double)silent_ms / 1e3);
    agent_lost(n, a, silent_ms, seen);
    node_tick(n);
}

const struct cluster_events lead_events = {
    .lead = on_lead,
    .follow = on_follow,
    .leader_up = on_leader_up,
    .leader_down = on_leader_down,
    .member_up = on_member_up,
    .member_down = on_member_down,
    .member_lost = on_member_lost,
};
