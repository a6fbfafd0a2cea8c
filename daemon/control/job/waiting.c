/* Jobs that wait for slots, as the queue (queue.h) sees them. The order is computed once per tick of all jobs; while
 * that tick gives slots to some, the others keep their turn. */
#include "daemon/control/job/internal.h"

#include "common/base/clock.h"
#include "common/base/hash.h"
#include "common/base/log.h"
#include "daemon/control/job/placement.h"
#include "daemon/control/job/queue.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* So many jobs behind the first are looked at, each at most every OVERTAKE_MS: a look plans all nodes anew, which takes
 * some microseconds a node. */
#define OVERTAKE_DEPTH 64
#define OVERTAKE_MS 1000

static bool is_waiting(const struct job *j)
{
    return j->phase.state == PHASE_WAITING && !j->stopping && !job_over(j);
}

/* ---- the order ---- */

static int count_users(const struct jobs *jobs, struct queue_user *users)
{
    int n = 0, i;
    for (const struct job *j = jobs->head; j; j = j->next) {
        if (!j->placed)
            continue;
        for (i = 0; i < n && users[i].uid != j->uid; i++)
            ;
        if (i == n)
            users[n++] = (struct queue_user){.uid = j->uid};
        users[i].slots += j->n_workers;
    }
    return n;
}

static void list_waiting(struct jobs *jobs, const struct queue_user *users, int n_users)
{
    for (struct job *j = jobs->head; j; j = j->next) {
        if (!is_waiting(j))
            continue;
        j->user_slots = queue_slots_of(users, n_users, j->uid);
        jobs->queue[jobs->n_queue++] = (struct queue_job){
            .job = j, .id = j->id, .uid = j->uid, .priority = j->spec.run.priority, .workers = job_want(&j->spec).min};
    }
}

/* What the order depends on, as a hash; also finds the job that adopts, and counts. */
static uint64_t look_at_jobs(struct jobs *jobs, int *ret_all, int *ret_waiting)
{
    struct hash h;
    hash_init(&h);
    *ret_all = *ret_waiting = 0;
    jobs->adopting = NULL;
    for (const struct job *j = jobs->head; j; j = j->next, ++*ret_all) {
        const uint64_t seen[] = {j->id, j->uid, is_waiting(j), j->placed ? (uint64_t)j->n_workers : 0}; /* 32 bytes */
        hash_add(&h, seen, sizeof(seen));
        *ret_waiting += is_waiting(j);
        jobs->adopting = j->adopting ? j : jobs->adopting;
    }
    return hash_end(&h);
}

static void number_jobs(struct jobs *jobs)
{
    for (struct job *j = jobs->head; j; j = j->next)
        j->queue_at = -1;
    for (int i = 0; i < jobs->n_queue; i++)
        jobs->queue[i].job->queue_at = i;
}

/* Without memory there is no queue, and the jobs of this tick start in the order of their age. */
void jobs_queue_sort(struct jobs *jobs)
{
    int all, waiting;
    const uint64_t seen = look_at_jobs(jobs, &all, &waiting);
    jobs->queue_first = 0;
    if (jobs->queue && seen == jobs->queue_seen)
        return;
    jobs_queue_drop(jobs);
    jobs->queue = calloc((size_t)waiting + 1, sizeof(*jobs->queue));
    struct queue_user *users = calloc((size_t)all + 1, sizeof(*users));
    err_t err = jobs->queue && users ? OK : ERR_NOMEM;
    if (!err) {
        int n_users = count_users(jobs, users);
        list_waiting(jobs, users, n_users);
        err = queue_sort(jobs->queue, jobs->n_queue, users, n_users);
    }
    free(users);
    if (err) {
        log_error("the queue of jobs is not sorted error=%s", err_text(err));
        jobs_queue_drop(jobs);
    }
    jobs->queue_seen = seen;
    number_jobs(jobs);
}

void jobs_queue_drop(struct jobs *jobs)
{
    free(jobs->queue);
    jobs->queue = NULL;
    jobs->n_queue = jobs->queue_first = 0;
}

/* The first job in the queue that waits still; NULL: none. One that could never fit is passed over. */
static struct job *first_waiting(struct jobs *jobs)
{
    for (; jobs->queue_first < jobs->n_queue; jobs->queue_first++) {
        struct job *j = jobs->queue[jobs->queue_first].job;
        if (is_waiting(j) && !j->never)
            return j;
    }
    return NULL;
}

const struct job *job_ahead_of(const struct job *j)
{
    const struct job *o = j->jobs->adopting;
    if (o && o != j)
        return o;
    o = first_waiting(j->jobs);
    return o == j || !o || (j->queue_at >= 0 && j->queue_at < o->queue_at) ? NULL : o;
}

/* ---- overtaking ---- */

static int64_t limit_ms(const struct job *j)
{
    return j->spec.run.max_seconds ? (j->spec.run.max_seconds + j->spec.run.grace_seconds) * 1000 : 0;
}

/* By the monotonic clock. */
static int64_t ends_ms(struct job *j)
{
    return j->spec.run.max_seconds ? clock_mono_ms() + limit_ms(j) - job_ran_ms(j) : INT64_MAX;
}

/* The workers and GPUs of a job on each node. */
static void count_on_nodes(const struct job *j, int *workers, int *gpus)
{
    int i = 0;
    for (const struct node_view *a = j->jobs->nodes; a; a = a->next, i++) {
        for (int k = 0; k < j->n_workers; k++)
            workers[i] += j->workers[k].p.node == a;
        gpus[i] = job_gpus(&j->spec) ? gpus_held(a->gpus, j->id) : 0;
    }
}

/* `cells`: 2 per job and node. */
static int list_running(const struct job *first, struct queue_running *ret, int *cells, int n_nodes)
{
    int n = 0;
    for (struct job *o = first->jobs->head; o; o = o->next) {
        if (!o->placed)
            continue;
        int *workers = cells + (size_t)n * 2 * (size_t)n_nodes, *gpus = workers + n_nodes;
        count_on_nodes(o, workers, gpus);
        ret[n++] = (struct queue_running){
            .ends_ms = ends_ms(o), .is_later = o->id > first->id, .workers = workers, .gpus = gpus};
    }
    return n;
}

static bool asks_to_overtake(const struct job *j, const struct job *first)
{
    struct placement_node *nodes = NULL;
    int n = job_nodes(j->jobs, j, &nodes), placed, waiting;
    jobs_count(j->jobs, &placed, &waiting);
    struct queue_running *running = calloc((size_t)placed + 1, sizeof(*running));
    int *cells = calloc(((size_t)placed + 1) * 2 * (size_t)(n + 1), sizeof(*cells));
    bool may = false;
    err_t err = nodes && running && cells ? OK : ERR_NOMEM;
    if (!err) {
        const struct queue_claim a = {job_want(&first->spec), limit_ms(first)}, b = {job_want(&j->spec), limit_ms(j)};
        int n_running = list_running(first, running, cells, n);
        err = queue_may_overtake(nodes, n, running, n_running, &a, &b, clock_mono_ms(), &may);
    }
    free(nodes);
    free(running);
    free(cells);
    return !err && may;
}

bool job_may_overtake(struct job *j, const struct job *first)
{
    int64_t now = clock_mono_ms();
    if (first->adopting || j->queue_at < 0 || j->queue_at - first->queue_at > OVERTAKE_DEPTH || now < j->room_ms)
        return false;
    j->room_ms = now + OVERTAKE_MS;
    return asks_to_overtake(j, first);
}

/* ---- the reason ---- */

void job_set_reason(struct job *j, const char *text)
{
    if (strcmp(text, j->reason) == 0)
        return;
    snprintf(j->reason, sizeof(j->reason), "%s", text);
    j->dirty = true;
}

void job_set_reason_behind(struct job *j, const struct job *o)
{
    char text[sizeof(j->reason)], share[96] = "";
    if (o->adopting) {
        job_set_reason(j, "waits until all nodes have reported their processes");
        return;
    }
    if (o->uid != j->uid)
        snprintf(share, sizeof(share),
                 " of another user, whose jobs have %" PRId64 " slots (this owner's have %" PRId64 "),", o->user_slots,
                 j->user_slots);
    snprintf(text, sizeof(text), "waits behind job %" PRIu64 " (%s)%s which %.600s", o->id, o->spec.name,
             share[0] ? share : ",", o->reason);
    job_set_reason(j, text);
}
