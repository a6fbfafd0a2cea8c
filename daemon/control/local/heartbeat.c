/* See beat.h. A beat means that the loop has turned and that the log's own timer has run, not merely that the process
 * is there; its status is one line for people. */
#include "daemon/control/local/heartbeat.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "daemon/control/cluster/cluster.h"
#include "daemon/control/control.h"

#include <stdio.h>
#include <string.h>

#define BEAT_MS 500
#define STATUS_BYTES 400

/* Who follows knows of jobs what runs on its own node: each has one dtd-io here. */
static int jobs_here(const struct node *n)
{
    int ret = 0;
    for (const struct child *c = n->children.head; c; c = c->next)
        ret += c->slot == CHANNEL_SLOT_IO && child_runs(c);
    return ret;
}

static void write_status(const struct node *n, char *ret, size_t size)
{
    int running = n->leads ? 0 : jobs_here(n), waiting = 0, nodes = cluster_nodes(n->cluster);
    const char *leader = cluster_leader(n->cluster);
    char role[100];
    snprintf(role, sizeof(role), "%s%.80s",
             n->leads ? "leader"
             : leader ? "follows "
                      : "nobody leads",
             n->leads || !leader ? "" : leader);
    for (const struct job *j = n->jobs; j; j = j->next) {
        running += !job_over(j) && j->placed;
        waiting += !job_over(j) && !j->placed;
    }
    int at = snprintf(ret, size, "%s, %d node%s, %d job%s running%s", role, nodes, nodes == 1 ? "" : "s", running,
                      running == 1 ? "" : "s", n->leads ? "" : " here");
    if (waiting)
        at += snprintf(ret + at, size - (size_t)at, ", %d waiting", waiting);
    const char *warning = log_warning(n->log) ? log_warning(n->log) : n->health.warning;
    if (*warning && (size_t)at < size)
        snprintf(ret + at, size - (size_t)at, "; %s", warning);
}

static void say(struct node *n)
{
    char status[STATUS_BYTES] = "starting";
    if (n->listener)
        write_status(n, status, sizeof(status));
    else if (n->stopping)
        snprintf(status, sizeof(status), "stopping");
    n->beat.due_ms = clock_mono_ms() + BEAT_MS;
    if (sup_beat(&n->sup, n->listener != NULL, n->beat.reloads, status))
        log_error("the supervisor was not told that we live");
}

void beat_tick(struct node *n)
{
    if (clock_mono_ms() >= n->beat.due_ms && (!n->log || log_ticks(n->log)))
        say(n);
}

void beat_reload(struct node *n, uint64_t number)
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
    n->beat.reloads = number;
    say(n);
}
