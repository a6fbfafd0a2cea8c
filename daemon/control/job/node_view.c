/* A report about a process is passed to its job. A process without a job is killed; after the exit of the last process
 * of a job that is not on the node any more, the node releases the job's descriptors. Workers of an older epoch on a
 * node that reconnects therefore need no special handling. */
#include "daemon/control/job/node_view.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "daemon/control/job/internal.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void node_view_self_init(struct jobs *jobs, const char *name, int slots)
{
    struct node_view *a = &jobs->self;
    a->name = name;
    a->is_self = true;
    a->state = NODE_UP;
    a->gpus = &jobs->local->gpus;
    a->slots = slots ? slots : cores_default(&jobs->local->children.cores);
    jobs->nodes = a;
}

/* Position of `name` in the index, or where it would be inserted. */
static int index_position(const struct node_index *x, const char *name)
{
    int low = 0, high = x->n;
    while (low < high) {
        int at = (low + high) / 2;
        bool is_before = strcmp(x->by_name[at]->name, name) < 0;
        low = is_before ? at + 1 : low;
        high = is_before ? high : at;
    }
    return low;
}

struct node_view *node_view_find(struct jobs *jobs, const char *name)
{
    const struct node_index *x = &jobs->index;
    if (strcmp(jobs->self.name, name) == 0)
        return &jobs->self;
    int at = index_position(x, name);
    return at < x->n && strcmp(x->by_name[at]->name, name) == 0 ? x->by_name[at] : NULL;
}

static struct node_view *search_conn(struct jobs *jobs, const struct rpc_conn *conn)
{
    for (struct node_view *a = jobs->nodes; a; a = a->next)
        if (conn && a->conn == conn)
            return a;
    return NULL;
}

/* Where the index has the view of this connection, if it has. NULL: there is no index. */
static struct node_view **place_of_conn(struct jobs *jobs, const struct rpc_conn *conn)
{
    struct node_index *x = &jobs->index;
    size_t place = (((uintptr_t)conn >> 4) * UINT64_C(0x9e3779b97f4a7c15)) >> 48;
    _Static_assert(NODE_INDEX_CONNS == 1 << 16, "the hash has 16 bits");
    if (!x->by_conn)
        x->by_conn = calloc(NODE_INDEX_CONNS, sizeof(struct node_view *));
    return x->by_conn ? &x->by_conn[place] : NULL;
}

struct node_view *node_view_by_conn(struct jobs *jobs, const struct rpc_conn *conn)
{
    struct node_view **place = place_of_conn(jobs, conn);
    if (!place || !conn)
        return search_conn(jobs, conn);
    if (!*place || (*place)->conn != conn)
        *place = search_conn(jobs, conn);
    return *place;
}

void node_view_connected(struct jobs *jobs, struct node_view *a, struct rpc_conn *conn)
{
    struct node_view **place = place_of_conn(jobs, conn);
    a->conn = conn; /* it becomes available with its Attend call */
    if (place)
        *place = a;
}

static bool index_reserve(struct node_index *x)
{
    if (x->n < x->cap)
        return true;
    int cap = x->cap ? 2 * x->cap : 16;
    struct node_view **more = realloc(x->by_name, (size_t)cap * sizeof(struct node_view *));
    if (!more)
        return false;
    x->by_name = more;
    x->cap = cap;
    return true;
}

/* Into the index and into the list, after the last view whose name is smaller. */
static void insert_view(struct jobs *jobs, struct node_view *a)
{
    struct node_index *x = &jobs->index;
    int at = index_position(x, a->name);
    struct node_view *before = at ? x->by_name[at - 1] : NULL;
    if (strcmp(jobs->self.name, a->name) < 0 && (!before || strcmp(before->name, jobs->self.name) < 0))
        before = &jobs->self;
    struct node_view **link = before ? &before->next : &jobs->nodes;
    a->next = *link;
    *link = a;
    memmove(x->by_name + at + 1, x->by_name + at, (size_t)(x->n - at) * sizeof(struct node_view *));
    x->by_name[at] = a;
    x->n++;
}

struct node_view *node_find_or_add(struct jobs *jobs, const char *name)
{
    struct node_view *a = node_view_find(jobs, name);
    if (a)
        return a;
    a = calloc(1, sizeof(*a));
    char *copy = strdup(name);
    struct gpus *gpus = calloc(1, sizeof(*gpus));
    if (!a || !copy || !gpus || !index_reserve(&jobs->index)) {
        free(a);
        free(copy);
        free(gpus);
        return NULL;
    }
    a->name = copy;
    a->gpus = gpus;
    a->load = node_load_none;
    a->slots = 0;
    insert_view(jobs, a);
    return a;
}

/* ---- state of a node ---- */

void node_views_begin(struct jobs *jobs)
{
    jobs->self.used = 0;
    gpus_forget(&jobs->local->gpus);
    jobs->self.listed = false;
    jobs->nodes_changes = 0;
}

static void node_view_free(struct jobs *jobs, struct node_view *a)
{
    jobs->out->node_forgotten(a);
    free(a->gpus);
    free((char *)a->name);
    free(a);
}

void node_views_end(struct jobs *jobs)
{
    struct node_view *next;
    for (struct node_view *a = jobs->nodes; a; a = next) {
        next = a->next;
        if (!a->is_self)
            node_view_free(jobs, a);
    }
    jobs->self.next = NULL;
    jobs->nodes = &jobs->self;
    free(jobs->index.by_name);
    free(jobs->index.by_conn);
    jobs->index = (struct node_index){.n = 0};
    node_views_begin(jobs);
}

void node_view_set_facts(struct node_view *a, const struct node_view_facts *f)
{
    struct gpus *g = a->gpus;
    a->slots = f->slots;
    a->leaving = f->leaving;
    a->disk_full = f->disk_full;
    a->log_failed = f->log_failed;
    snprintf(a->log_warning, sizeof(a->log_warning), "%s", f->log_warning);
    gpus_set(g, f->gpus < 0 ? 0 : f->gpus > GPUS_MAX ? GPUS_MAX : f->gpus);
    g->known = f->gpus >= 0;
    snprintf(g->model, sizeof(g->model), "%s", f->model);
    snprintf(g->missing, sizeof(g->missing), "%s", f->missing);
    for (int i = 0; i < f->n_broken; i++)
        gpus_mark_broken(g, f->broken[i]);
    for (int i = 0; i < f->n_sick; i++)
        gpus_mark_sick(g, f->sick[i].gpu, f->sick[i].what);
}

void node_view_up(struct node_view *a, struct rpc_call *attend)
{
    log_info("node connected name=%s slots=%d", a->name, a->slots);
    a->state = NODE_UP;
    a->attend = attend;
    a->listed = false;
    a->load = node_load_none;
    a->incarnation++;
    a->heard_ms = clock_mono_ms();
}

void node_view_away(struct node_view *a)
{
    a->attend = NULL;
    a->conn = NULL;
    if (a->state == NODE_UP)
        a->state = NODE_AWAY;
}

void node_view_lost(struct jobs *jobs, struct node_view *a, int64_t silent_ms, const char *seen)
{
    log_warn("%s", seen);
    node_view_away(a);
    a->state = NODE_LOST;
    a->listed = true; /* its list will not arrive, so nothing waits for it */
    a->silent_ms = (double)silent_ms;
    for (struct job *j = jobs->head; j; j = j->next) {
        if (job_over(j))
            continue;
        job_adopt(j, false);
        job_node_lost(j, a, (double)silent_ms, seen);
    }
}

/* ---- commands to a node ---- */

err_t node_view_spawn(struct node_view *a, struct jobs *jobs, const struct process_spawn *x)
{
    if (a->is_self)
        return local_process_spawn(jobs->local, x);
    return a->attend ? jobs->out->node_spawn(a->attend, x) : ERR_CLOSED;
}

err_t node_view_kill(struct node_view *a, struct jobs *jobs, uint64_t job, int slot, int sig)
{
    if (a->is_self)
        return supervisor_link_kill(&jobs->local->supervisor, job, slot, sig);
    return a->attend ? jobs->out->node_kill(a->attend, job, slot, sig) : ERR_CLOSED;
}

err_t node_view_release(struct node_view *a, struct jobs *jobs, uint64_t job, bool remove)
{
    if (a->is_self)
        return local_process_release(jobs->local, job, remove);
    return a->attend ? jobs->out->node_release(a->attend, job, remove) : ERR_CLOSED;
}

/* For this node only the /proc states are copied: everything else was reported when it changed. */
static err_t copy_own_proc_states(struct jobs *jobs)
{
    local_processes_look(jobs->local);
    for (const struct child *c = jobs->local->children.head; c; c = c->next) {
        struct job *j = jobs_find(jobs, c->job);
        struct job_process *p = j ? job_process_find(j, &jobs->self, c->slot) : NULL;
        if (p && memcmp(p->token, c->token, sizeof(p->token)) == 0)
            p->proc = c->proc;
    }
    return OK;
}

err_t node_view_look(struct node_view *a, struct jobs *jobs)
{
    if (a->is_self)
        return copy_own_proc_states(jobs);
    return a->attend ? jobs->out->node_look(a->attend) : ERR_CLOSED;
}

/* ---- reports of a node ---- */

static bool is_job_on(const struct job *j, const struct node_view *a)
{
    for (int k = 0; j && !job_over(j) && k < j->n_workers; k++)
        if (j->workers[k].p.node == a)
            return true;
    return false;
}

static void end_stray_process(struct jobs *jobs, struct node_view *a, const struct job *j, const struct child *c)
{
    if (!j && jobs_is_unread(jobs, c->job)) {
        log_warn("process of a job that this dtd cannot read is left alone node=%s job=%" PRIu64 " slot=%d", a->name,
                 c->job, c->slot);
        return;
    }
    log_warn("process without a job node=%s job=%" PRIu64 " slot=%d pid=%d runs=%d", a->name, c->job, c->slot,
             (int)c->pid, child_runs(c));
    err_t err = OK;
    if (child_runs(c))
        err = node_view_kill(a, jobs, c->job, c->slot, SIGKILL);
    else if (!is_job_on(j, a))
        err = node_view_release(a, jobs, c->job, false);
    if (err)
        log_error("end_stray_process process not ended node=%s pid=%d error=%s", a->name, (int)c->pid, err_text(err));
}

void node_view_child(struct jobs *jobs, struct node_view *a, const struct child *c)
{
    struct job *j = jobs_find(jobs, c->job);
    struct job_process *p = j && !job_over(j) ? job_adopt_process(j, a, c->slot) : NULL;
    a->heard_ms = clock_mono_ms();
    if (p)
        job_process_child(j, p, c);
    else
        end_stray_process(jobs, a, j, c);
    /* A report about an earlier process in this slot does not show that the present one runs. */
    if (p && memcmp(p->token, c->token, sizeof(p->token)) == 0)
        p->incarnation = a->incarnation;
    jobs_tick(jobs);
}

void node_view_listed(struct jobs *jobs, struct node_view *a)
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

/* ---- capacity ---- */

_Static_assert(PLACEMENT_MAX_WORKERS == CHANNEL_MAX_SLOTS, "the supervisor starts as many workers as jobs are given");

const char *node_unavailable_reason(const struct node_view *a)
{
    static const char *const states[] = {[NODE_ABSENT] = "has not connected",
                                         [NODE_UP] = NULL,
                                         [NODE_AWAY] = "is not connected",
                                         [NODE_LOST] = "is lost"};
    if (states[a->state])
        return states[a->state];
    return a->leaving ? "is shutting down" : a->drained[0] ? a->drained : NULL;
}

/* A node that has just connected may still run earlier processes in its slots, so its list is awaited. */
void node_capacity(const struct node_view *a, uint64_t job, int mine, struct placement_node *ret)
{
    const char *out = node_unavailable_reason(a);
    if (!out && !a->listed)
        out = "has not listed its processes yet";
    if (!out && a->disk_full && !mine)
        out = "has no space left for its state (`dtctl node` there)";
    *ret = (struct placement_node){.name = a->name,
                                   .slots = a->slots,
                                   .used = a->used - mine,
                                   .gpus = a->gpus->known ? gpus_count(a->gpus) : -1,
                                   .busy = gpus_busy(a->gpus, job),
                                   .sick = a->gpus->sick,
                                   .mine = mine,
                                   .out = out};
}
