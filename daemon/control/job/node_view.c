/* See agent.h. What is said of a process finds its job here; a process that no job has is ended, and when the last one
 * of a job that is not there any more has ended its descriptors go. So a node that comes back with workers of an older
 * epoch needs no path of its own. */
#include "daemon/control/job/node_view.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "daemon/control/job/internal.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void agent_self_init(struct jobs *jobs, const char *name, int slots)
{
    struct agent *a = &jobs->self;
    a->name = name;
    a->is_self = true;
    a->state = AGENT_UP;
    a->gpus = &jobs->local->gpus;
    a->slots = slots ? slots : slots_default(&jobs->local->children.cores);
    jobs->agents = a;
}

struct agent *agent_find(struct jobs *jobs, const char *name)
{
    for (struct agent *a = jobs->agents; a; a = a->next)
        if (strcmp(a->name, name) == 0)
            return a;
    return NULL;
}

struct agent *agent_by_conn(struct jobs *jobs, const struct rpc_conn *conn)
{
    for (struct agent *a = jobs->agents; a; a = a->next)
        if (conn && a->conn == conn)
            return a;
    return NULL;
}

struct agent *agent_need(struct jobs *jobs, const char *name)
{
    struct agent *a = agent_find(jobs, name), **at = &jobs->agents;
    if (a)
        return a;
    a = calloc(1, sizeof(*a));
    char *copy = strdup(name);
    struct gpus *gpus = calloc(1, sizeof(*gpus));
    if (!a || !copy || !gpus) {
        free(a);
        free(copy);
        free(gpus);
        return NULL;
    }
    a->name = copy;
    a->gpus = gpus;
    a->slots = 0;
    while (*at && strcmp((*at)->name, name) < 0)
        at = &(*at)->next;
    a->next = *at;
    *at = a;
    return a;
}

/* ---- coming and going ---- */

void agents_begin(struct jobs *jobs)
{
    jobs->self.used = 0;
    gpus_forget(&jobs->local->gpus);
    jobs->self.listed = false;
}

static void agent_free(struct jobs *jobs, struct agent *a)
{
    jobs->out->node_forgotten(a);
    free(a->gpus);
    free((char *)a->name);
    free(a);
}

void agents_end(struct jobs *jobs)
{
    struct agent *next;
    for (struct agent *a = jobs->agents; a; a = next) {
        next = a->next;
        if (!a->is_self)
            agent_free(jobs, a);
    }
    jobs->self.next = NULL;
    jobs->agents = &jobs->self;
    agents_begin(jobs);
}

void agent_set_facts(struct agent *a, const struct agent_facts *f)
{
    struct gpus *g = a->gpus;
    a->slots = f->slots;
    a->leaving = f->leaving;
    gpus_set(g, f->gpus < 0 ? 0 : f->gpus > GPUS_MAX ? GPUS_MAX : f->gpus);
    g->known = f->gpus >= 0;
    snprintf(g->model, sizeof(g->model), "%s", f->model);
    snprintf(g->missing, sizeof(g->missing), "%s", f->missing);
    for (int i = 0; i < f->n_broken; i++)
        gpus_mark_broken(g, f->broken[i]);
    for (int i = 0; i < f->n_sick; i++)
        gpus_mark_sick(g, f->sick[i].gpu, f->sick[i].what);
}

void agent_up(struct agent *a, struct rpc_call *attend)
{
    log_info("node attends name=%s slots=%d", a->name, a->slots);
    a->state = AGENT_UP;
    a->attend = attend;
    a->listed = false;
    a->life++;
    a->heard_ms = clock_mono_ms();
}

void agent_away(struct agent *a)
{
    a->attend = NULL;
    a->conn = NULL;
    if (a->state == AGENT_UP)
        a->state = AGENT_AWAY;
}

void agent_lost(struct jobs *jobs, struct agent *a, int64_t silent_ms, const char *seen)
{
    log_warn("%s", seen);
    agent_away(a);
    a->state = AGENT_LOST;
    a->listed = true; /* there is nothing to wait for */
    a->silent_ms = (double)silent_ms;
    for (struct job *j = jobs->head; j; j = j->next) {
        if (job_over(j))
            continue;
        job_adopt(j, false);
        job_node_lost(j, a, (double)silent_ms, seen);
    }
}

/* ---- asking ---- */

err_t agent_spawn(struct agent *a, struct jobs *jobs, const struct process_spawn *x)
{
    if (a->is_self)
        return children_spawn(jobs->local, x);
    return a->attend ? jobs->out->node_spawn(a->attend, x) : ERR_CLOSED;
}

err_t agent_kill(struct agent *a, struct jobs *jobs, uint64_t job, int slot, int sig)
{
    if (a->is_self)
        return sup_kill(&jobs->local->sup, job, slot, sig);
    return a->attend ? jobs->out->node_kill(a->attend, job, slot, sig) : ERR_CLOSED;
}

err_t agent_release(struct agent *a, struct jobs *jobs, uint64_t job)
{
    if (a->is_self)
        return children_release(jobs->local, job);
    return a->attend ? jobs->out->node_release(a->attend, job) : ERR_CLOSED;
}

/* For our own node the answer is a copy of the states: what else is known of its processes has been said. */
static err_t look_here(struct jobs *jobs)
{
    children_look(jobs->local);
    for (const struct child *c = jobs->local->children.head; c; c = c->next) {
        struct job *j = jobs_find(jobs, c->job);
        struct job_process *p = j ? job_process_find(j, &jobs->self, c->slot) : NULL;
        if (p && memcmp(p->token, c->token, sizeof(p->token)) == 0)
            p->proc = c->proc;
    }
    return OK;
}

err_t agent_look(struct agent *a, struct jobs *jobs)
{
    if (a->is_self)
        return look_here(jobs);
    return a->attend ? jobs->out->node_look(a->attend) : ERR_CLOSED;
}

/* ---- hearing ---- */

static bool is_on(const struct job *j, const struct agent *a)
{
    for (int k = 0; j && !job_over(j) && k < j->n_workers; k++)
        if (j->workers[k].p.agent == a)
            return true;
    return false;
}

static void stray(struct jobs *jobs, struct agent *a, const struct job *j, const struct child *c)
{
    log_warn("process of no job node=%s job=%" PRIu64 " slot=%d pid=%d runs=%d", a->name, c->job, c->slot, (int)c->pid,
             child_runs(c));
    err_t err = OK;
    if (child_runs(c))
        err = agent_kill(a, jobs, c->job, c->slot, SIGKILL);
    else if (!is_on(j, a))
        err = agent_release(a, jobs, c->job);
    if (err)
        log_error("stray process not ended node=%s pid=%d error=%s", a->name, (int)c->pid, err_text(err));
}

void agent_child(struct jobs *jobs, struct agent *a, const struct child *c)
{
    struct job *j = jobs_find(jobs, c->job);
    struct job_process *p = j && !job_over(j) ? job_adopt_process(j, a, c->slot) : NULL;
    a->heard_ms = clock_mono_ms();
    if (p)
        job_process_child(j, p, c);
    else
        stray(jobs, a, j, c);
    if (p &&
        memcmp(p->token, c->token, sizeof(p->token)) == 0) /* the word of an earlier one says nothing of this one */
        p->life = a->life;
    jobs_tick(jobs);
}

void agent_listed(struct jobs *jobs, struct agent *a)
{
    a->listed = true;
    a->heard_ms = clock_mono_ms();
    for (struct job *j = jobs->head; j; j = j->next) {
        if (job_over(j))
            continue;
        job_node_listed(j, a);
        job_adopt(j, false);
    }
}

/* ---- room ---- */

const char *agent_out(const struct agent *a)
{
    static const char *const states[] = {
        [AGENT_ABSENT] = "has not been seen", [AGENT_UP] = NULL, [AGENT_AWAY] = "is away", [AGENT_LOST] = "is lost"};
    if (states[a->state])
        return states[a->state];
    return a->leaving ? "is going down" : a->drained[0] ? a->drained : NULL;
}

/* A node that has just come up may have processes of before, in the very places that a job would be given. */
void agent_room(const struct agent *a, uint64_t job, int mine, struct placement_node *ret)
{
    const char *out = agent_out(a);
    if (!out && !a->listed)
        out = "has not said yet what lives there";
    *ret = (struct placement_node){.name = a->name,
                                   .slots = a->slots < CHANNEL_MAX_SLOTS ? a->slots : CHANNEL_MAX_SLOTS,
                                   .used = a->used - mine,
                                   .gpus = a->gpus->known ? gpus_count(a->gpus) : -1,
                                   .busy = gpus_busy(a->gpus, job),
                                   .sick = a->gpus->sick,
                                   .mine = mine,
                                   .out = out};
}
