/* See agent.h. What is said of a process finds its job here; a process that no job has is ended, and when the last one
 * of a job that is not there any more has ended its descriptors go. So a node that comes back with workers of an older
 * epoch needs no path of its own. */
#include "daemon/control/job/node_view.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "daemon/control/control.h"
#include "daemon/control/job/placement.h"

#include "daemon/control/job/outbound.h"
#include "daemon/control/rpc/server.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void agent_self_init(struct node *n, const char *name)
{
    struct agent *a = &n->self;
    a->name = name;
    a->is_self = true;
    a->state = AGENT_UP;
    a->slots = n->conf.slots ? (int)n->conf.slots : slots_default(&n->children.cores);
    n->agents = a;
}

struct agent *agent_find(struct node *n, const char *name)
{
    for (struct agent *a = n->agents; a; a = a->next)
        if (strcmp(a->name, name) == 0)
            return a;
    return NULL;
}

struct agent *agent_by_conn(struct node *n, const struct rpc_conn *conn)
{
    for (struct agent *a = n->agents; a; a = a->next)
        if (conn && a->conn == conn)
            return a;
    return NULL;
}

struct agent *agent_need(struct node *n, const char *name)
{
    struct agent *a = agent_find(n, name), **at = &n->agents;
    if (a)
        return a;
    a = calloc(1, sizeof(*a));
    char *copy = strdup(name);
    if (!a || !copy) {
        free(a);
        free(copy);
        return NULL;
    }
    a->name = copy;
    a->slots = 0;
    while (*at && strcmp((*at)->name, name) < 0)
        at = &(*at)->next;
    a->next = *at;
    *at = a;
    return a;
}

/* ---- coming and going ---- */

void agents_begin(struct node *n)
{
    n->self.used = 0;
    gpus_forget(&n->self.gpus);
    n->self.listed = false;
    store_names_end(n);
}

static void agent_free(struct agent *a)
{
    while (!LIST_EMPTY(&a->peers)) {
        struct peer *p = LIST_FIRST(&a->peers);
        LIST_REMOVE(p, link);
        free(p);
    }
    free((char *)a->name);
    free(a);
}

void agents_end(struct node *n)
{
    struct agent *next;
    for (struct agent *a = n->agents; a; a = next) {
        next = a->next;
        if (!a->is_self)
            agent_free(a);
    }
    n->self.next = NULL;
    n->agents = &n->self;
    agents_begin(n);
}

void agent_set_facts(struct agent *a, const struct agent_facts *f)
{
    struct gpus *g = &a->gpus;
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

void agent_lost(struct node *n, struct agent *a, int64_t silent_ms, const char *seen)
{
    log_warn("%s", seen);
    agent_away(a);
    a->state = AGENT_LOST;
    a->listed = true; /* there is nothing to wait for */
    store_names_lost(n, a);
    a->silent_ms = (double)silent_ms;
    for (struct job *j = n->jobs; j; j = j->next) {
        if (job_over(j))
            continue;
        job_adopt(j, false);
        job_node_lost(j, a, (double)silent_ms, seen);
    }
}

/* ---- asking ---- */

err_t agent_spawn(struct agent *a, struct node *n, const struct agent_spawn *x)
{
    if (a->is_self)
        return children_spawn(n, x);
    return a->attend ? rpc_agent_spawn(a->attend, x) : ERR_CLOSED;
}

err_t agent_kill(struct agent *a, struct node *n, uint64_t job, int slot, int sig)
{
    if (a->is_self)
        return sup_kill(&n->sup, job, slot, sig);
    return a->attend ? rpc_agent_kill(a->attend, job, slot, sig) : ERR_CLOSED;
}

err_t agent_release(struct agent *a, struct node *n, uint64_t job)
{
    if (a->is_self)
        return children_release(n, job);
    return a->attend ? rpc_agent_release(a->attend, job) : ERR_CLOSED;
}

/* For our own node the answer is a copy of the states: what else is known of its processes has been said. */
static err_t look_here(struct node *n)
{
    children_look(n);
    for (const struct child *c = n->children.head; c; c = c->next) {
        struct job *j = node_job(n, c->job);
        struct job_process *p = j ? job_process_find(j, &n->self, c->slot) : NULL;
        if (p && memcmp(p->token, c->token, sizeof(p->token)) == 0)
            p->proc = c->proc;
    }
    return OK;
}

err_t agent_look(struct agent *a, struct node *n)
{
    if (a->is_self)
        return look_here(n);
    return a->attend ? rpc_agent_look(a->attend) : ERR_CLOSED;
}

err_t agent_store_close(struct agent *a, struct node *n, uint32_t uid, const char *name)
{
    if (a->is_self)
        stores_close(n, uid, name);
    else
        return a->attend ? rpc_agent_store_close(a->attend, uid, name) : ERR_CLOSED;
    return OK;
}

/* ---- hearing ---- */

static bool is_on(const struct job *j, const struct agent *a)
{
    for (int k = 0; j && !job_over(j) && k < j->n_workers; k++)
        if (j->workers[k].p.agent == a)
            return true;
    return false;
}

static void stray(struct node *n, struct agent *a, const struct job *j, const struct child *c)
{
    log_warn("process of no job node=%s job=%" PRIu64 " slot=%d pid=%d runs=%d", a->name, c->job, c->slot, (int)c->pid,
             child_runs(c));
    err_t err = OK;
    if (child_runs(c))
        err = agent_kill(a, n, c->job, c->slot, SIGKILL);
    else if (!is_on(j, a))
        err = agent_release(a, n, c->job);
    if (err)
        log_error("stray process not ended node=%s pid=%d error=%s", a->name, (int)c->pid, err_text(err));
}

void agent_child(struct node *n, struct agent *a, const struct child *c)
{
    struct job *j = node_job(n, c->job);
    struct job_process *p = j && !job_over(j) ? job_adopt_process(j, a, c->slot) : NULL;
    a->heard_ms = clock_mono_ms();
    if (p)
        job_process_child(j, p, c);
    else
        stray(n, a, j, c);
    if (p &&
        memcmp(p->token, c->token, sizeof(p->token)) == 0) /* the word of an earlier one says nothing of this one */
        p->life = a->life;
    node_tick(n);
}

void agent_listed(struct node *n, struct agent *a)
{
    a->listed = true;
    a->heard_ms = clock_mono_ms();
    for (struct job *j = n->jobs; j; j = j->next) {
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
                                   .gpus = a->gpus.known ? gpus_count(&a->gpus) : -1,
                                   .busy = gpus_busy(&a->gpus, job),
                                   .sick = a->gpus.sick,
                                   .mine = mine,
                                   .out = out};
}
