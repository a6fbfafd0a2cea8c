/* A new leader has the log and, from the nodes' lists, the live processes. A job whose workers are all alive and in its
 * epoch continues in it. Any other job continues in a new epoch, under the incident that ended the last one, if there
 * is one. The start of a job without an epoch is continued. */
#include "daemon/control/job/internal.h"

#include "common/base/clock.h"
#include "common/base/log.h"

#include <inttypes.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

/* ---- slots ---- */

/* A node without a configured name is node-1 in its log. If a single node has got a name since, node-1 is this node. If
 * the cluster has had other nodes, node-1 may be one of them, which has left or was lost in a recovery. */
static struct node_view *node_view_of(struct jobs *jobs, const char *name)
{
    bool is_first = state_cluster(jobs->replica->state)->next_node <= 2;
    bool unnamed = is_first && !node_view_find(jobs, name) && !jobs->nodes->next && strcmp(name, "node-1") == 0;
    return unnamed ? &jobs->self : node_find_or_add(jobs, name);
}

err_t job_adopt_begin(struct job *j)
{
    const struct state_job *s = state_job_find(j->jobs->replica->state, j->id);
    if (job_over(j) || !s)
        return OK;
    if (s->epoch.epoch && (s->epoch.n_members < 1 || s->epoch.n_members > j->max_workers))
        return ERR_CORRUPT;
    j->adopting = true;
    if (j->jobs->nodes->next) { /* another node may have led and received metrics that are not in our file */
        j->history = HISTORY_DUE;
        j->known_epoch = j->metrics.has_last ? j->metrics.last.epoch : 0;
        j->known_step = j->metrics.has_last ? j->metrics.last.step : 0;
        metrics_hold(&j->metrics);
        j->usage_history = HISTORY_DUE;
        usage_file_hold(&j->usage);
    }
    if (s->epoch.epoch == 0)
        return OK;
    j->state.state = JOB_RECOVERING;
    j->n_workers = s->epoch.n_members;
    for (int k = 0; k < j->n_workers; k++) {
        struct job_process *p = &j->workers[k].p;
        p->node = node_view_of(j->jobs, s->epoch.members[k].node);
        p->slot = s->epoch.members[k].slot;
        if (!p->node)
            return ERR_NOMEM;
    }
    err_t err = job_layout_adopt(j, &s->epoch);
    return err ? err : job_ios_assign(j);
}

struct job_process *job_adopt_process(struct job *j, struct node_view *a, int slot)
{
    bool claim = j->adopting && j->epoch == 0 && slot < j->n_workers;
    if (claim && slot >= 0 && !j->workers[slot].p.node) {
        j->workers[slot].p.node = a;
        j->workers[slot].p.slot = slot;
    }
    if (claim && slot < 0)
        for (int k = 0; k < j->n_workers && !j->workers[0].p.node; k++) /* its io is listed before its workers */
            j->workers[k].p = (struct job_process){.node = a, .slot = k};
    if (claim && job_ios_assign(j))
        return NULL;
    return job_process_find(j, a, slot);
}

/* Without an epoch the log names no slots. A job on one node takes those of its live processes. */
static bool complete_places(struct job *j)
{
    struct node_view *a = NULL;
    for (int k = 0; k < j->n_workers; k++) {
        struct node_view *b = j->workers[k].p.node;
        if (a && b && a != b)
            return false;
        a = b ? b : a;
    }
    /* With several nodes, only a dtd-io may have been started on one of them; then its rank slots are unknown. */
    int per_node = job_want(&j->spec).per_node;
    if (!a || a->state != NODE_UP || j->n_workers > a->slots - a->used || (per_node && j->n_workers > per_node))
        return false;
    for (int k = 0; k < j->n_workers; k++) {
        j->workers[k].p.node = a;
        j->workers[k].p.slot = k;
    }
    return job_ios_assign(j) == OK;
}

static void forget_places(struct job *j)
{
    for (int i = 0; i < j->n_ios; i++)
        job_process_kill(j, &j->ios[i].p, SIGKILL);
    for (int k = 0; k < j->n_workers; k++) {
        job_process_kill(j, &j->workers[k].p, SIGKILL);
        j->workers[k] = (struct job_worker){.device = -1};
    }
    j->n_ios = 0;
}

/* ---- continuing jobs ---- */

static int count_workers(const struct job *j, enum process_state state)
{
    int n = 0;
    for (int k = 0; k < j->n_workers; k++)
        n += j->workers[k].p.state == state;
    return n;
}

/* A node of the job that is not UP; NULL: all are. */
static const struct node_view *lost_node(const struct job *j)
{
    for (int k = 0; k < j->n_workers; k++) {
        const struct node_view *a = j->workers[k].p.node;
        if (a && a->state != NODE_UP)
            return a;
    }
    return NULL;
}

/* The exit of the first worker that has ended is the most precise cause. */
static void lose_epoch(struct job *j)
{
    const struct node_view *a = lost_node(j);
    char text[512];
    for (int k = 0; k < j->n_workers; k++) {
        const struct job_process *p = &j->workers[k].p;
        if (p->state != PROCESS_ENDED)
            continue;
        job_process_describe_exit(j, p, text, sizeof(text));
        job_epoch_lost(j, (double)(clock_mono_ns() - p->exit_ns) / 1e6, true, "%s", text);
        return;
    }
    if (a)
        job_epoch_lost(j, a->silent_ms, true, "node %s was lost when a new leader took over", a->name);
    else
        job_epoch_lost(j, 0, true, "not all workers were running when a new dtd-control took over");
}

/* The incident by which the previous leader ended the newest epoch; NULL: the epoch continues. */
static const struct incident *ended_by(const struct job *j)
{
    const struct state_job *s = state_job_find(j->jobs->replica->state, j->id);
    for (int i = s ? s->n_incidents - 1 : -1; i >= 0; i--)
        if (s->incidents[i].epoch == j->epoch && s->incidents[i].restarts >= 0 && s->incidents[i].restarts <= INT_MAX)
            return &s->incidents[i];
    return NULL;
}

static void continue_start(struct job *j)
{
    if (!complete_places(j)) {
        forget_places(j);
        return;
    }
    job_place(j);
    if (!j->stopping) /* else it is canceled, and the first tick stops it */
        job_move(j, PHASE_GATHERING, "the interrupted start continues");
}

static bool awaits_list(const struct job *j)
{
    for (int k = 0; k < j->n_workers; k++) {
        const struct node_view *a = j->workers[k].p.node;
        if (a ? !a->listed : j->epoch == 0 && !j->jobs->self.listed)
            return true;
    }
    return false;
}

void job_adopt(struct job *j, bool late)
{
    if (!j->adopting || (!late && awaits_list(j)))
        return;
    int live = count_workers(j, PROCESS_LIVE), ended = count_workers(j, PROCESS_ENDED);
    j->adopting = false;
    log_info("job adopted job=%" PRIu64 " epoch=%" PRIu64 " live=%d ended=%d", j->id, j->epoch, live, ended);
    if (j->epoch == 0) {
        continue_start(j);
        return;
    }
    job_place(j);
    if (j->stopping)
        return;
    job_epoch_find_resume(j);
    const struct incident *by = ended_by(j);
    if (by)
        j->restarts = by->restarts;
    j->state.state = !by && (live || ended) ? JOB_RUNNING : JOB_RECOVERING;
    if (!by && !live && !ended && !lost_node(j)) {
        job_epoch_again(j, "dtd had exited, and with it all processes of the job");
        return;
    }
    job_move(j, PHASE_REJOINING, "a new dtd-control leads");
    if (by) {
        job_epoch_ended(j, by);
        return;
    }
    if (!j->kind->adopted(j))
        lose_epoch(j);
}
