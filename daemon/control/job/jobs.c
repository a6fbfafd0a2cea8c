#include "daemon/control/job/jobs.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "daemon/control/job/internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void jobs_init(struct jobs *jobs, const char *name, int slots)
{
    node_view_self_init(jobs, name, slots);
    outbox_init(&jobs->outbox, jobs->replica, jobs);
}

uint64_t jobs_generation(const struct jobs *jobs)
{
    return state_cluster(jobs->replica->state)->lineage.generation;
}

/* The last one is asked for most: a job is looked for when it may be new. */
struct job *jobs_find(struct jobs *jobs, uint64_t id)
{
    if (!jobs->last || id >= jobs->last->id)
        return jobs->last && id == jobs->last->id ? jobs->last : NULL;
    for (struct job *j = jobs->head; j && j->id <= id; j = j->next)
        if (j->id == id)
            return j;
    return NULL;
}

bool jobs_is_unread(const struct jobs *jobs, uint64_t id)
{
    const struct state_job *s = state_job_find(jobs->replica->state, id);
    return s && s->end == END_NONE;
}

uint64_t jobs_unread(const struct jobs *jobs)
{
    return jobs->unread && jobs_is_unread(jobs, jobs->unread) ? jobs->unread : 0;
}

static err_t new_job(struct jobs *jobs, const struct state_job *s, struct job **ret)
{
    err_t err = job_new(jobs, s, ret);
    if (err && err != ERR_NOMEM && s->end == END_NONE)
        jobs->unread = s->id;
    return err;
}

bool jobs_make(struct jobs *jobs, int64_t until_ms)
{
    const struct state_job *const *all;
    int count = state_jobs(jobs->replica->state, &all);
    if (!jobs->made)
        jobs->made_end = &jobs->made;
    while (jobs->n_made < count) {
        const struct state_job *s = all[jobs->n_made++];
        err_t err = new_job(jobs, s, jobs->made_end);
        if (err)
            log_error("job not created id=%" PRIu64 " error=%s", s->id, err_text(err));
        else
            jobs->made_end = &(*jobs->made_end)->next;
        if (clock_mono_ms() >= until_ms)
            break;
    }
    return jobs->n_made >= count;
}

static void find_last(struct jobs *jobs)
{
    jobs->last = jobs->head;
    while (jobs->last && jobs->last->next)
        jobs->last = jobs->last->next;
}

void jobs_take_made(struct jobs *jobs)
{
    jobs->head = jobs->made;
    find_last(jobs);
    jobs->made = NULL;
    jobs->n_made = 0;
}

err_t jobs_add(struct jobs *jobs, const struct state_job *s)
{
    struct job *j = NULL;
    err_t err = new_job(jobs, s, &j);
    if (err)
        return err;
    *(jobs->last ? &jobs->last->next : &jobs->head) = j;
    jobs->last = j;
    return OK;
}

void jobs_clear(struct jobs *jobs, void (*each)(struct job *j))
{
    jobs_queue_drop(jobs);
    jobs->unread = 0;
    if (jobs->made)
        jobs_take_made(jobs);
    jobs->n_made = 0;
    while (jobs->head) {
        struct job *j = jobs->head;
        jobs->head = j->next;
        jobs->last = j->next ? jobs->last : NULL;
        each(j);
        job_free(j);
    }
}

void jobs_remove(struct jobs *jobs, uint64_t id)
{
    for (struct node_view *a = jobs->nodes; a; a = a->next)
        if (node_view_release(a, jobs, id, true))
            log_warn("logs of a removed job remain, the node cannot be reached job=%" PRIu64 " node=%s", id, a->name);
    jobs_forget(jobs);
}

void jobs_forget(struct jobs *jobs)
{
    jobs_queue_drop(jobs);
    for (struct job **at = &jobs->head; *at;) {
        struct job *j = *at;
        if (job_over(j) && !j->watches && !state_job_find(jobs->replica->state, j->id)) {
            *at = j->next;
            job_free(j);
        } else {
            at = &j->next;
        }
    }
    find_last(jobs);
}

/* ---- updates from the log ---- */

static void update_node_view(struct node_view *a, const struct state_node *s)
{
    const int first = (int)strcspn(s->address, ","); /* of a list of addresses, workers use the first */
    const char *colon = memrchr(s->address, ':', (size_t)first);
    int host = colon ? (int)(colon - s->address) : first;
    bool bracketed = host > 1 && s->address[0] == '[';
    snprintf(a->address, sizeof(a->address), "%.*s", bracketed ? host - 2 : host, s->address + bracketed);
    a->drained[0] = '\0';
    if (s->drained)
        snprintf(a->drained, sizeof(a->drained), "is drained (%.100s)", s->drained);
}

void jobs_take_nodes(struct jobs *jobs)
{
    const struct state_cluster *c = state_cluster(jobs->replica->state);
    bool is_whole = true;
    jobs->state_index = log_index(jobs->replica->log);
    for (int i = 0; i < c->n_nodes && jobs->nodes_changes != c->changes; i++) {
        if (c->nodes[i].changed <= jobs->nodes_changes)
            continue;
        struct node_view *a = node_find_or_add(jobs, c->nodes[i].name);
        if (a)
            update_node_view(a, &c->nodes[i]);
        else
            log_error("no memory for a node name=%s", c->nodes[i].name);
        is_whole = is_whole && a;
    }
    if (is_whole)
        jobs->nodes_changes = c->changes;
}

/* Finds jobs by the state alone: a proposal that was abandoned because the log was full may be committed later,
 * although its submitter received an error. */
static void create_new_jobs(struct jobs *jobs)
{
    const struct state_job *const *all;
    int count = state_jobs(jobs->replica->state, &all), first = count;
    while (first > 0 && all[first - 1]->id > jobs->unread && !jobs_find(jobs, all[first - 1]->id))
        first--;
    for (int i = first; i < count; i++) {
        err_t err = jobs_add(jobs, all[i]);
        if (err)
            log_error("submitted job not created id=%" PRIu64 " error=%s", all[i]->id, err_text(err));
    }
}

/* Called before the jobs' ticks, which read the node views. */
static void update_from_log(struct jobs *jobs)
{
    if (!jobs->leads || jobs->state_index == log_index(jobs->replica->log))
        return;
    jobs_take_nodes(jobs);
    create_new_jobs(jobs);
}

void jobs_tick_soon(struct jobs *jobs, struct job *j)
{
    if (jobs->leads && log_is_superseded(jobs->replica->log))
        return;
    update_from_log(jobs);
    if (j)
        job_tick(j);
    if (!jobs->tick_is_due)
        jobs->tick_soon(jobs->owner);
    jobs->tick_is_due = true;
}

void jobs_tick(struct jobs *jobs)
{
    jobs->tick_is_due = false;
    if (jobs->leads && log_is_superseded(jobs->replica->log))
        return;
    update_from_log(jobs);
    jobs_queue_sort(jobs);
    for (struct job *j = jobs->head; j; j = j->next)
        job_tick(j);
    jobs->ticked(jobs->owner);
}

void jobs_tick_one(struct jobs *jobs, struct job *j)
{
    if (jobs->leads && log_is_superseded(jobs->replica->log))
        return;
    update_from_log(jobs);
    job_tick(j);
}

/* ---- operations on all jobs ---- */

void jobs_leave(struct jobs *jobs)
{
    for (struct job *j = jobs->head; j; j = j->next)
        job_leave(j);
}

bool jobs_are_over(const struct jobs *jobs)
{
    for (const struct job *j = jobs->head; j; j = j->next)
        if (!job_over(j) && j->phase.state != PHASE_WAITING)
            return false;
    return true;
}

bool jobs_await_leaving(const struct jobs *jobs)
{
    for (const struct job *j = jobs->leads ? jobs->head : NULL; j; j = j->next)
        for (int k = 0; !job_over(j) && k < j->n_workers; k++)
            if (j->workers[k].p.node && j->workers[k].p.node->leaving && job_process_running(&j->workers[k].p))
                return true;
    return false;
}

void jobs_adopt_late(struct jobs *jobs)
{
    for (struct job *j = jobs->head; j; j = j->next)
        if (!job_over(j))
            job_adopt(j, true);
}

void jobs_event_record(struct jobs *jobs, uint64_t job, enum event_kind kind, const char *node, const char *text)
{
    struct record r = {.kind = RECORD_INCIDENT, .wall_ms = clock_wall_ms(), .job = job, .incident = incident_none};
    r.incident.wall_ms = r.wall_ms;
    r.incident.event = kind;
    r.incident.node = node[0] ? node : NULL;
    r.incident.seen = text;
    r.incident.decided = "";
    if (outbox_add(&jobs->outbox, &r, NULL))
        log_error("event not logged kind=%s node=%s text=%s", event_kind_name(kind), node, text);
}

void jobs_incident_record(struct jobs *jobs, const char *seen, const char *decided)
{
    for (struct job *j = jobs->head; j; j = j->next)
        if (j->placed && !job_over(j))
            job_incident_record(j, 0, seen, decided);
}

void jobs_flush_metrics(struct jobs *jobs)
{
    for (struct job *j = jobs->head; j; j = j->next) {
        metrics_flush(&j->metrics);
        usage_file_flush(&j->usage);
        job_totals_tick(&j->totals, j->placed && !job_over(j) ? j->n_workers : 0, clock_mono_ms());
    }
}

int jobs_unwritten(const struct jobs *jobs)
{
    int n = 0;
    for (const struct job *j = jobs->head; j; j = j->next)
        n += j->metrics.err != OK;
    return n;
}

void jobs_count(const struct jobs *jobs, int *ret_placed, int *ret_waiting)
{
    *ret_placed = *ret_waiting = 0;
    for (const struct job *j = jobs->head; j; j = j->next)
        *(j->placed ? ret_placed : ret_waiting) += !job_over(j);
}

const struct job *jobs_with_folder(const struct jobs *jobs, const char *dir, uint32_t uid)
{
    for (const struct job *j = jobs->head; j; j = j->next)
        if (!job_over(j) && j->kind->saves && (j->uid == uid || j->epoch) && strcmp(j->spec.checkpoint.dir, dir) == 0)
            return j;
    return NULL;
}

void jobs_count_of(const struct jobs *jobs, uint32_t uid, int *ret_his, int *ret_all)
{
    *ret_his = *ret_all = 0;
    for (const struct job *j = jobs->head; j; j = j->next)
        if (!job_over(j)) {
            *ret_his += j->uid == uid;
            ++*ret_all;
        }
}

void jobs_spec_bytes_of(const struct jobs *jobs, uint32_t uid, size_t *ret_live, size_t *ret_over)
{
    *ret_live = *ret_over = 0;
    for (const struct job *j = jobs->head; j; j = j->next)
        if (j->uid == uid && !j->removing)
            *(job_over(j) ? ret_over : ret_live) += j->yaml_bytes;
}

static void ended_removed(void *owner, uint64_t job, const struct state_result *result)
{
    if (!result->err)
        jobs_remove(owner, job);
}

void jobs_remove_ended(struct jobs *jobs, uint32_t uid, size_t bytes)
{
    for (struct job *j = jobs->head; j && bytes; j = j->next) {
        if (j->uid != uid || !job_over(j) || j->removing)
            continue;
        const struct record r = {.kind = RECORD_JOB_REMOVED, .wall_ms = clock_wall_ms(), .job = j->id};
        if (outbox_add(&jobs->outbox, &r, ended_removed))
            return; /* the next submit tries again */
        log_info("a job that has ended is removed, because its owner's job files have too many bytes job=%" PRIu64,
                 j->id);
        j->removing = true;
        bytes -= j->yaml_bytes < bytes ? j->yaml_bytes : bytes;
    }
}
