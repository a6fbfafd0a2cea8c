/* Slots and GPUs for a job: a slot on some node for each of its workers. A job gets all of them or none, and its reason
 * names what it waits for. CPU cores are assigned by the node itself (local/cores.c). */
#include "daemon/control/job/internal.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "daemon/control/job/placement.h"

#include <assert.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ROOM_MS 1000 /* how often to look for more slots: nodes join and jobs end more rarely */

int job_gpus(const struct job_spec *spec)
{
    bool cuda = spec->run.device == DEVICE_CUDA;
    return cuda ? gpus_needed((int)spec->parallel.workers, (int)spec->run.workers_per_gpu) : 0;
}

/* ---- requirements ---- */

/* Ranks that differ only in the innermost axes of the mesh exchange the most data, so their groups stay on one node if
 * possible. The planner chooses its axes for the nodes that the job gets, so they want nothing. */
static void want_groups(const struct job_spec *spec, int workers, int ret[PLACEMENT_GROUPS])
{
    const struct job_parallel *p = &spec->parallel;
    const int64_t tp = job_keeps(spec, "tp") ? p->tp : 1, cp = job_keeps(spec, "cp") ? p->cp : 1;
    const bool experts = p->ep > 1 && job_keeps(spec, "ep") && job_keeps(spec, "fsdp");
    const int64_t sizes[PLACEMENT_GROUPS] = {experts ? p->fsdp * cp * tp : 0, cp * tp, tp};
    for (int i = 0; i < PLACEMENT_GROUPS; i++)
        ret[i] = sizes[i] > 1 && sizes[i] <= workers ? (int)sizes[i] : 0;
}

struct placement_want job_want(const struct job_spec *spec)
{
    const struct job_parallel *p = &spec->parallel;
    int workers = (int)p->workers, nodes = (int)spec->run.nodes, replica = (int)job_replica_workers(spec);
    bool ranged = p->min_workers && p->min_workers < p->workers;
    if (ranged && nodes)
        replica = workers / nodes % replica == 0 ? workers / nodes : workers;
    struct placement_want w = {.max = workers,
                               .min = ranged ? (int)p->min_workers : workers,
                               .unit = ranged ? replica : workers,
                               .per_gpu = spec->run.device == DEVICE_CUDA ? (int)spec->run.workers_per_gpu : 0,
                               .per_node = nodes ? (workers + nodes - 1) / nodes : 0};
    want_groups(spec, workers, w.group);
    return w;
}

int job_nodes(struct jobs *jobs, const struct job *j, struct placement_node **ret)
{
    int count = 0, i = 0;
    for (const struct node_view *a = jobs->nodes; a; a = a->next)
        count++;
    *ret = calloc((size_t)count + 1, sizeof(**ret));
    for (const struct node_view *a = jobs->nodes; a && *ret; a = a->next, i++) {
        int mine = 0;
        for (int k = 0; j && j->placed && k < j->n_workers; k++)
            mine += j->workers[k].p.node == a;
        node_capacity(a, j ? j->id : 0, mine, &(*ret)[i]);
    }
    return i;
}

/* ---- slots and GPUs ---- */

static bool is_worker_on(const struct job_worker *w, const struct node_view *a)
{
    return w->p.node == a;
}

/* Assigns GPUs to the workers on one node that have none. */
static bool take_gpus_on(struct job *j, struct node_view *a)
{
    int device[CHANNEL_MAX_SLOTS], rank[CHANNEL_MAX_SLOTS], n = 0;
    for (int k = 0; k < j->n_workers && n < CHANNEL_MAX_SLOTS; k++)
        if (is_worker_on(&j->workers[k], a)) {
            rank[n] = k;
            device[n++] = j->workers[k].device;
        }
    if (n == 0)
        return true;
    if (!a->gpus->known || !gpus_take(a->gpus, j->id, n, (int)j->spec.run.workers_per_gpu, device))
        return false;
    for (int i = 0; i < n; i++)
        j->workers[rank[i]].device = device[i];
    return true;
}

bool job_worker_is_sick(const struct job_worker *w)
{
    return w->p.node && *gpus_sick(w->p.node->gpus, w->device);
}

bool job_take_gpus(struct job *j)
{
    bool all = true;
    for (struct node_view *a = j->jobs->nodes; a && job_gpus(&j->spec); a = a->next)
        all = take_gpus_on(j, a) && all;
    return all;
}

void job_place(struct job *j)
{
    assert(!j->placed);
    j->placed = true;
    for (int k = 0; k < j->n_workers; k++) {
        struct job_worker *w = &j->workers[k];
        w->p.node->used++;
        if (w->device >= 0)
            gpus_adopt(w->p.node->gpus, j->id, w->device);
    }
}

static void free_slots(struct job *j)
{
    if (!j->placed)
        return;
    j->placed = false;
    for (struct node_view *a = j->jobs->nodes; a; a = a->next)
        gpus_give(a->gpus, j->id);
    for (int k = 0; k < j->n_workers; k++) {
        struct job_worker *w = &j->workers[k];
        assert(w->p.node->used > 0);
        w->p.node->used--;
    }
}

void job_release(struct job *j)
{
    free_slots(j);
    for (int k = 0; k < j->n_workers; k++) {
        j->workers[k] = (struct job_worker){.p = j->workers[k].p, .device = -1};
        j->workers[k].p.attend = NULL;
    }
    for (int i = 0; i < j->n_ios; i++)
        if (node_view_release(j->ios[i].p.node, j->jobs, j->id, false))
            log_warn("job not released, the node cannot be reached job=%" PRIu64 " node=%s", j->id,
                     j->ios[i].p.node->name);
}

/* ---- allocation ---- */

static struct node_view *node_view_at(struct jobs *jobs, int i)
{
    struct node_view *a = jobs->nodes;
    while (i--)
        a = a->next;
    return a;
}

/* A process that already runs in the slot of rank `w` continues as that rank. */
static void keep_process(struct job_worker *w, struct job_worker *old, int n_old)
{
    for (int k = 0; k < n_old; k++)
        if (old[k].p.node == w->p.node && old[k].p.slot == w->p.slot && old[k].p.node) {
            *w = old[k];
            w->device = job_worker_is_sick(w) ? -1 : w->device;
            old[k].p.node = NULL;
            return;
        }
}

/* Kills processes that are no rank any more. Their exits are then handled as those of stray processes. */
static void kill_unassigned(struct job *j, const struct job_worker *old, int n_old)
{
    for (int k = 0; k < n_old; k++)
        if (old[k].p.node && job_process_running(&old[k].p) &&
            node_view_kill(old[k].p.node, j->jobs, j->id, old[k].p.slot, SIGKILL))
            log_info("worker not killed, the node cannot be reached job=%" PRIu64 " node=%s", j->id,
                     old[k].p.node->name);
}

/* Assigns ranks to nodes, with slots from 0 on each, and a dtd-io to each node. The first dtd-io commits. */
static err_t assign_ranks(struct job *j, const int *node, int workers)
{
    int n_old = j->n_workers;
    struct job_worker *old = j->workers, *w = calloc((size_t)j->max_workers, sizeof(*w));
    if (!w)
        return ERR_NOMEM;
    for (int k = 0; k < workers; k++) {
        w[k].device = -1;
        w[k].p.node = node_view_at(j->jobs, node[k]);
        w[k].p.slot = k && node[k] == node[k - 1] ? w[k - 1].p.slot + 1 : 0;
        keep_process(&w[k], old, n_old);
    }
    kill_unassigned(j, old, n_old);
    free(old);
    j->workers = w;
    j->n_workers = workers;
    return job_ios_assign(j);
}

static void set_reason_waiting(struct job *j, const struct placement_node *nodes, int n, const struct placement_want *w,
                               enum placement_answer answer)
{
    char text[900];
    const struct gpus *g = &j->jobs->local->gpus;
    placement_lack(nodes, n, w, text, sizeof(text));
    size_t at = strlen(text);
    if (w->per_gpu && !j->jobs->nodes->next && g->known && g->n == 0) /* submitted before the GPUs were known */
        snprintf(text + at, sizeof(text) - at, ": %s", g->missing);
    snprintf(j->reason, sizeof(j->reason), answer == PLACEMENT_NEVER ? "can never start: it needs %s" : "waits for %s",
             text);
}

/* As placement_find; with parallel.auto only numbers of workers count for which there is a layout. */
static enum placement_answer find_slots(struct job *j, const struct placement_node *nodes, int n,
                                        const struct placement_want *want, int *ret_node, int *ret_workers)
{
    struct placement_want w = *want;
    j->layout.pending = false;
    j->layout.none[0] = '\0';
    for (;;) {
        enum placement_answer answer = placement_find(nodes, n, &w, ret_node, ret_workers);
        if (answer != PLACEMENT_FITS || !j->spec.parallel.automatic)
            return answer;
        enum job_layout_known known = job_layout_look(j, ret_node, *ret_workers);
        if (known != LAYOUT_NONE)
            return known == LAYOUT_FITS ? PLACEMENT_FITS : PLACEMENT_WAITS;
        w.max = *ret_workers - w.unit;
        if (w.max < w.min)
            return PLACEMENT_NEVER;
    }
}

/* The slots are there, but no layout yet, or none at all. */
static bool set_reason_layout(struct job *j)
{
    if (j->layout.pending)
        snprintf(j->reason, sizeof(j->reason), "waits for the planner to choose the layout (parallel.auto)");
    else if (j->layout.none[0])
        snprintf(j->reason, sizeof(j->reason), "parallel.auto: %s", j->layout.none);
    return j->layout.pending || j->layout.none[0];
}

/* For a job with fewer workers than requested: whether slots for more are free now. Sets the reason accordingly. */
static bool has_more_room(struct job *j, const char *after)
{
    struct placement_node *nodes = NULL;
    struct placement_want want = job_want(&j->spec);
    char text[600];
    int n = job_nodes(j->jobs, j, &nodes), workers = 0;
    int *node = calloc((size_t)want.max, sizeof(*node));
    if (nodes && node && find_slots(j, nodes, n, &want, node, &workers) != PLACEMENT_FITS)
        workers = 0;
    bool more = workers > j->n_workers;
    want.min = want.max;
    if (more && !j->spec.run.grow)
        snprintf(text, sizeof(text), "there is room for %d, but run.grow is false", workers);
    else if (more)
        snprintf(text, sizeof(text), "it continues with %d after %s", workers, after);
    else if (nodes)
        placement_lack(nodes, n, &want, text, sizeof(text));
    if (nodes)
        snprintf(j->reason, sizeof(j->reason), "runs with %d of %d workers; %s%s", j->n_workers, j->max_workers,
                 more ? "" : "all of them need ", text);
    free(nodes);
    free(node);
    return more;
}

static bool is_any_job_waiting(const struct job *j)
{
    for (const struct job *o = j->jobs->head; o; o = o->next)
        if (o != j && o->phase.state == PHASE_WAITING && !o->stopping && !o->never && !o->adopting)
            return true;
    return false;
}

/* Waiting jobs come first: a running job takes more slots only if no job is waiting. */
void job_look_for_room(struct job *j, const char *after)
{
    int64_t now = clock_mono_ms();
    if (j->n_workers == j->max_workers || now < j->room_ms)
        return;
    char before[sizeof(j->reason)];
    snprintf(before, sizeof(before), "%s", j->reason);
    bool could = j->may_grow;
    j->room_ms = now + ROOM_MS;
    j->may_grow = has_more_room(j, after) && j->spec.run.grow && !is_any_job_waiting(j);
    if (j->may_grow && !could)
        j->room_since_ms = now;
    if (strcmp(before, j->reason) != 0)
        j->dirty = true;
}

void job_grow(struct job *j)
{
    char seen[128];
    snprintf(seen, sizeof(seen), "slots for more than the %d workers of epoch %" PRIu64 " are free", j->n_workers,
             j->epoch);
    job_epoch_resize(j, seen);
}

/* Processes of a job that this leader cannot read have slots and GPUs that it does not count. */
static bool waits_for_unread(struct job *j)
{
    uint64_t unread = jobs_unread(j->jobs);
    if (unread)
        snprintf(j->reason, sizeof(j->reason),
                 "waits for another leader: dtd on %s is too old to read job %" PRIu64
                 ", whose workers may be running. "
                 "Upgrade it",
                 j->jobs->self.name, unread);
    return unread != 0;
}

bool job_allocate(struct job *j)
{
    struct placement_node *nodes = NULL;
    const struct placement_want want = job_want(&j->spec);
    int n = job_nodes(j->jobs, j, &nodes), workers = 0;
    int *node = calloc((size_t)want.max, sizeof(*node));
    enum placement_answer answer = PLACEMENT_WAITS;
    bool memory = nodes && node, waits = waits_for_unread(j);
    if (memory && !waits && (!j->jobs->stopping || j->jobs->leaving))
        answer = find_slots(j, nodes, n, &want, node, &workers);
    j->never = answer == PLACEMENT_NEVER;
    bool taken = answer == PLACEMENT_FITS;
    if (taken) {
        free_slots(j);
        taken = assign_ranks(j, node, workers) == OK && job_layout_take(j) == OK;
    }
    if (taken)
        job_place(j);
    else if (memory && !waits && !set_reason_layout(j))
        set_reason_waiting(j, nodes, n, &want, answer);
    if (taken && !job_take_gpus(j)) { /* placement has counted free GPUs from the same data, so this is a bug */
        log_error("GPUs not taken job=%" PRIu64, j->id);
        free_slots(j);
        taken = false;
    }
    free(nodes);
    free(node);
    return taken;
}
