/* A heartbeat shows that the event loop and the log's own timer have run, not merely that the process
 * exists. Its status is one line for users. */
#include "daemon/control/heartbeat.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "daemon/control/control.h"
#include "daemon/control/job/job.h"

#include <stdio.h>
#include <string.h>

#define HEARTBEAT_MS 500 /* 20 of them within the 10 s after which the supervisor restarts control */
#define STATUS_BYTES 400

/* Number of jobs on this node, for a follower, which has no list of jobs: each job has one dtd-io per node. */
static int jobs_here(const struct control *n)
{
    int ret = 0;
    for (const struct child *c = n->local.children.head; c; c = c->next)
        ret += c->slot == CHANNEL_SLOT_IO && child_runs(c);
    return ret;
}

static void write_status(const struct control *n, char *ret, size_t size)
{
    int running, waiting, nodes = cluster_nodes(n->cluster);
    const char *leader = cluster_leader(n->cluster);
    char role[100];
    snprintf(role, sizeof(role), "%s%.80s",
             n->jobs.leads ? "leader"
             : leader      ? "follows "
                           : "no leader",
             n->jobs.leads || !leader ? "" : leader);
    jobs_count(&n->jobs, &running, &waiting);
    if (!n->jobs.leads)
        running = jobs_here(n);
    int at = snprintf(ret, size, "%s, %d node%s, %d job%s running%s", role, nodes, nodes == 1 ? "" : "s", running,
                      running == 1 ? "" : "s", n->jobs.leads ? "" : " here");
    if (waiting)
        at += snprintf(ret + at, size - (size_t)at, ", %d waiting", waiting);
    const char *warning = log_warning(n->replica.log) ? log_warning(n->replica.log) : n->local.health.warning;
    if (*warning && (size_t)at < size)
        snprintf(ret + at, size - (size_t)at, "; %.350s", warning);
}

static void send_heartbeat(struct control *n)
{
    char status[STATUS_BYTES] = "starting";
    if (n->rpc.listener)
        write_status(n, status, sizeof(status));
    else if (n->jobs.stopping)
        snprintf(status, sizeof(status), "stopping");
    n->heartbeat.due_ms = clock_mono_ms() + HEARTBEAT_MS;
    if (supervisor_link_heartbeat(&n->local.supervisor, n->rpc.listener != NULL, n->heartbeat.reloads, status))
        log_error("the heartbeat was not sent to the supervisor");
}

void heartbeat_tick(struct control *n)
{
    if (clock_mono_ms() >= n->heartbeat.due_ms && (!n->replica.log || log_ticks(n->replica.log)))
        send_heartbeat(n);
}

void heartbeat_reload(struct control *n, uint64_t number)
{
    struct node_conf conf;
    struct why why = {""};
    err_t err = node_conf_read(n->config, &conf, &why);
    if (err) {
        log_error("configuration not read again: %s", why.text);
    } else {
        log_level_set(conf.log.level);
        log_info("configuration read again log.level=%d", (int)conf.log.level);
        node_conf_fini(&conf);
    }
    n->heartbeat.reloads = number;
    send_heartbeat(n);
}
