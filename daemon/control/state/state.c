/* A table has one apply function per kind of record. Each first does what can fail (copies) and then changes the state
 * in statements that cannot, so ERR_NOMEM means that nothing has changed. Verdicts (ERR_STALE ...) are part of the
 * state machine: they depend only on the state and the record, and are kept with the request id.
 *
 * A job that a frozen state has, too, is copied before a record changes it (own_job). */
#include "daemon/control/state/internal.h"

#include "daemon/control/state/spec.h"

#include <stdlib.h>
#include <string.h>

/* ---- memory ---- */

static void free_checkpoint(struct state_checkpoint *c)
{
    free((char *)c->path);
}

static void free_incident(struct incident *i)
{
    fields_fini(&incident_fields, i);
}

static void epoch_fini(struct state_epoch *e)
{
    for (int i = 0; i < e->n_members; i++)
        free((char *)e->members[i].node);
    free(e->members);
    free(e->layout);
    free(e->layout_why);
}

static err_t text_copy(const char *text, char **ret)
{
    *ret = text ? strdup(text) : NULL;
    return text && !*ret ? ERR_NOMEM : OK;
}

static void left_free(struct state_left *left, int n)
{
    for (int i = 0; i < n; i++)
        free(left[i].node);
    free(left);
}

void state_job_unref(struct state_job *job)
{
    if (!job || --job->refs > 0)
        return;
    left_free(job->left, job->n_left);
    for (int i = 0; i < job->n_checkpoints; i++)
        free_checkpoint(&job->checkpoints[i]);
    for (int i = 0; i < job->n_incidents; i++)
        free_incident(&job->incidents[i]);
    free_incident(&job->start);
    epoch_fini(&job->epoch);
    free(job->checkpoints);
    free(job->incidents);
    spec_unref(job->spec);
    free(job->reason);
    free(job);
}

void state_clear(struct state *s)
{
    for (int i = 0; i < s->n_jobs; i++)
        state_job_unref(s->jobs[i]);
    free(s->requests);
    state_nodes_clear(&s->cluster);
    state_events_clear(s);
    *s = (struct state){.next_job = 1, .next_event = 1, .cluster = {.next_node = 1}};
}

err_t state_new(struct state **ret)
{
    struct state *s = malloc(sizeof(*s));
    if (!s)
        return ERR_NOMEM;
    *s = (struct state){.next_job = 1, .next_event = 1, .cluster = {.next_node = 1}};
    *ret = s;
    return OK;
}

void state_free(struct state *s)
{
    if (s)
        state_clear(s);
    free(s);
}

/* Makes room for one more after `n` elements. The capacity is the next power of two, at least 4. */
static err_t reserve_one(void **array, int n, size_t size)
{
    bool is_full = n < 4 ? n == 0 : (n & (n - 1)) == 0;
    if (!is_full)
        return OK;
    void *more = realloc(*array, (n ? (size_t)n * 2 : 4) * size);
    if (!more)
        return ERR_NOMEM;
    *array = more;
    return OK;
}

err_t state_checkpoint_reserve(struct state_job *job)
{
    return reserve_one((void **)&job->checkpoints, job->n_checkpoints, sizeof(job->checkpoints[0]));
}

err_t state_incident_reserve(struct state_job *job)
{
    return reserve_one((void **)&job->incidents, job->n_incidents, sizeof(job->incidents[0]));
}

/* ---- lookup ---- */

/* Position of `id` in the order of ids, or where it would be inserted. */
static int job_position(const struct state *s, uint64_t id)
{
    int lo = 0, hi = s->n_jobs;
    while (lo < hi) {
        int mid = (lo + hi) / 2;
        if (s->jobs[mid]->id < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static struct state_job *find_job(const struct state *s, uint64_t id)
{
    int at = job_position(s, id);
    return at < s->n_jobs && s->jobs[at]->id == id ? s->jobs[at] : NULL;
}

const struct state_job *state_job_find(const struct state *s, uint64_t id)
{
    return find_job(s, id);
}

int state_jobs(const struct state *s, const struct state_job *const **ret)
{
    *ret = (const struct state_job *const *)s->jobs;
    return s->n_jobs;
}

const struct state_checkpoint *state_newest_checkpoint(const struct state_job *job)
{
    return job->n_checkpoints ? &job->checkpoints[job->n_checkpoints - 1] : NULL;
}

/* ---- request ids ---- */

int64_t state_clock_of(const struct state *s)
{
    return s->clock_ms;
}

bool state_request_find(const struct state *s, const uint8_t id[REQUEST_ID_BYTES], struct state_result *ret)
{
    for (int i = s->n_requests - 1; i >= 0; i--) {
        const struct state_request *r = &s->requests[i];
        if (memcmp(r->id, id, REQUEST_ID_BYTES) != 0)
            continue;
        *ret = (struct state_result){.err = r->err, .job = r->job, .repeated = true};
        return true;
    }
    return false;
}

/* By the cluster's clock, which no one sets; by dates only where an older version wrote one of the records. */
static bool request_is_old(const struct state_request *q, const struct record *r)
{
    return q->clock_ms && r->clock_ms ? q->clock_ms < r->clock_ms - STATE_REQUEST_MS
                                      : q->wall_ms < r->wall_ms - STATE_REQUEST_MS;
}

/* Removes ids that are older than a day, and the oldest if there are too many. They are in the order of the log; it
 * ends at the first younger one. */
static void remove_old_requests(struct state *s, const struct record *r)
{
    int n = s->n_requests >= STATE_MAX_REQUESTS ? s->n_requests - STATE_MAX_REQUESTS + 1 : 0;
    while (n < s->n_requests && request_is_old(&s->requests[n], r))
        n++;
    s->n_requests -= n;
    memmove(s->requests, s->requests + n, (size_t)s->n_requests * sizeof(*s->requests));
}

err_t state_request_reserve(struct state *s)
{
    if (s->n_requests < s->cap_requests)
        return OK;
    int cap = s->cap_requests ? s->cap_requests * 2 : 16;
    struct state_request *more = realloc(s->requests, (size_t)cap * sizeof(*more));
    if (!more)
        return ERR_NOMEM;
    s->requests = more;
    s->cap_requests = cap;
    return OK;
}

static void keep_request(struct state *s, const struct record *r, const struct state_result *result)
{
    struct state_request *q = &s->requests[s->n_requests++];
    *q = (struct state_request){.wall_ms = r->wall_ms, .clock_ms = r->clock_ms, .job = result->job, .err = result->err};
    memcpy(q->id, r->request_id, REQUEST_ID_BYTES);
}

/* ---- submitted ---- */

static void remove_job(struct state *s, int at)
{
    state_job_unref(s->jobs[at]);
    s->n_jobs--;
    memmove(&s->jobs[at], &s->jobs[at + 1], (size_t)(s->n_jobs - at) * sizeof(struct state_job *));
}

static err_t apply_job_removed(struct state *s, const struct record *r, struct state_result *ret)
{
    const struct state_job *job = find_job(s, r->job);
    ret->job = r->job;
    if (!job)
        ret->err = ERR_NOTFOUND;
    else if (job->end == END_NONE)
        ret->err = ERR_AGAIN;
    else
        remove_job(s, job_position(s, r->job));
    return OK;
}

/* Removes the oldest job that has ended. False: none has ended. */
static bool remove_ended_job(struct state *s)
{
    for (int i = 0; i < s->n_jobs; i++) {
        if (s->jobs[i]->end == END_NONE)
            continue;
        remove_job(s, i);
        return true;
    }
    return false;
}

static err_t apply_submitted(struct state *s, const struct record *r, struct state_result *ret)
{
    struct state_job *job = calloc(1, sizeof(*job));
    const char *spec = spec_new(r->submitted.spec);
    if (!job || !spec) {
        free(job);
        spec_unref(spec);
        return ERR_NOMEM;
    }
    if (s->n_jobs >= STATE_MAX_JOBS && !remove_ended_job(s)) {
        free(job);
        spec_unref(spec);
        ret->err = ERR_LIMIT;
        return OK;
    }
    job->refs = 1;
    job->id = s->next_job++;
    job->spec = spec;
    job->parent = r->submitted.parent;
    job->uid = r->submitted.uid;
    job->submitted_ms = r->wall_ms;
    job->submitted_clock_ms = r->clock_ms;
    job->desired = DESIRED_RUN;
    s->jobs[s->n_jobs++] = job;
    ret->job = job->id;
    return OK;
}

/* ---- a job ---- */

static err_t apply_desired(struct state_job *job, const struct record *r, struct state_result *ret)
{
    if (job->end != END_NONE)
        ret->err = ERR_STALE;
    else if (job->desired == DESIRED_RUN) /* a cancel cannot be withdrawn */
        job->desired = r->desired.desired;
    return OK;
}

static err_t apply_ended(struct state_job *job, const struct record *r, struct state_result *ret)
{
    if (job->end != END_NONE) {
        ret->err = ERR_STALE;
        return OK;
    }
    if (r->ended.reason) {
        char *reason = strdup(r->ended.reason);
        if (!reason)
            return ERR_NOMEM;
        job->reason = reason;
    }
    job->end = r->ended.end;
    job->ended_ms = r->wall_ms;
    return OK;
}

err_t state_epoch_copy(const struct record *r, struct state_epoch *ret)
{
    struct state_epoch e = {
        .epoch = r->epoch.epoch,
        .resume_step = r->epoch.resume_step,
        .restarts = r->epoch.restarts,
        .wall_ms = r->wall_ms,
    };
    e.members = calloc((size_t)r->epoch.n_members + 1, sizeof(*e.members));
    if (!e.members)
        return ERR_NOMEM;
    for (int i = 0; i < r->epoch.n_members; i++) {
        e.members[i] =
            (struct state_member){.node = strdup(r->epoch.members[i].node), .slot = r->epoch.members[i].slot};
        e.n_members++;
        if (!e.members[i].node) {
            epoch_fini(&e);
            return ERR_NOMEM;
        }
    }
    err_t err = text_copy(r->epoch.layout, &e.layout);
    err = err ? err : text_copy(r->epoch.layout_why, &e.layout_why);
    if (err)
        epoch_fini(&e);
    else
        *ret = e;
    return err;
}

static bool runs_at(const struct state_epoch *e, const char *node, int slot)
{
    for (int i = 0; i < e->n_members; i++)
        if (e->members[i].slot == slot && strcmp(e->members[i].node, node) == 0)
            return true;
    return false;
}

struct left_list {
    struct state_left *left;
    int n;
};

static err_t left_add(struct left_list *l, const struct state_epoch *next, const char *node, int slot, int rank)
{
    if (runs_at(next, node, slot))
        return OK;
    char *copy = strdup(node);
    if (!copy)
        return ERR_NOMEM;
    l->left[l->n++] = (struct state_left){.node = copy, .slot = slot, .rank = rank};
    return OK;
}

/* The places that the job has left when its epoch is `next`. */
static err_t left_find(const struct state_job *job, const struct state_epoch *next, struct left_list *ret)
{
    const struct state_epoch *last = &job->epoch;
    struct left_list l = {.left = calloc((size_t)job->n_left + (size_t)last->n_members + 1, sizeof(*l.left))};
    err_t err = l.left ? OK : ERR_NOMEM;
    for (int i = 0; !err && i < job->n_left; i++)
        err = left_add(&l, next, job->left[i].node, job->left[i].slot, job->left[i].rank);
    for (int i = 0; !err && i < last->n_members; i++)
        err = left_add(&l, next, last->members[i].node, last->members[i].slot, i);
    if (err) {
        left_free(l.left, l.n);
        return err;
    }
    int old = l.n > STATE_MAX_LEFT ? l.n - STATE_MAX_LEFT : 0;
    for (int i = 0; i < old; i++)
        free(l.left[i].node);
    l.n -= old;
    memmove(l.left, l.left + old, (size_t)l.n * sizeof(*l.left));
    *ret = l;
    return OK;
}

static err_t apply_epoch(struct state_job *job, const struct record *r, struct state_result *ret)
{
    if (job->end != END_NONE || r->epoch.epoch <= job->epoch.epoch) {
        ret->err = ERR_STALE;
        return OK;
    }
    struct state_epoch e;
    struct left_list left;
    err_t err = state_epoch_copy(r, &e);
    if (err)
        return err;
    err = left_find(job, &e, &left);
    if (err) {
        epoch_fini(&e);
        return err;
    }
    left_free(job->left, job->n_left);
    epoch_fini(&job->epoch);
    job->left = left.left;
    job->n_left = left.n;
    job->epoch = e;
    if (!job->started_ms) {
        job->started_ms = r->wall_ms;
        job->started_clock_ms = r->clock_ms;
    }
    return OK;
}

/* ---- the catalog ---- */

static int checkpoint_position(const struct state_job *job, int64_t step)
{
    int i = job->n_checkpoints; /* the search starts at the newest, the most likely one */
    while (i > 0 && job->checkpoints[i - 1].step >= step)
        i--;
    return i;
}

static void remove_checkpoint(struct state_job *job, int at)
{
    free_checkpoint(&job->checkpoints[at]);
    job->n_checkpoints--;
    memmove(&job->checkpoints[at], &job->checkpoints[at + 1],
            (size_t)(job->n_checkpoints - at) * sizeof(job->checkpoints[0]));
}

/* The catalog is an index of the checkpoint directory, so a record is applied in every state of the job. A second
 * record for a step replaces the first: a later epoch wrote the step folder again, or a scan adopted it. */
static err_t apply_checkpoint(struct state_job *job, const struct record *r, struct state_result *ret)
{
    (void)ret;
    struct state_checkpoint c = r->checkpoint;
    c.path = strdup(r->checkpoint.path);
    if (!c.path)
        return ERR_NOMEM;
    int at = checkpoint_position(job, c.step);
    if (at < job->n_checkpoints && job->checkpoints[at].step == c.step) {
        free_checkpoint(&job->checkpoints[at]);
        job->checkpoints[at] = c;
        return OK;
    }
    err_t err = state_checkpoint_reserve(job);
    if (err) {
        free_checkpoint(&c);
        return err;
    }
    memmove(&job->checkpoints[at + 1], &job->checkpoints[at],
            (size_t)(job->n_checkpoints - at) * sizeof(job->checkpoints[0]));
    job->checkpoints[at] = c;
    if (++job->n_checkpoints > STATE_MAX_CHECKPOINTS)
        remove_checkpoint(job, 0);
    return OK;
}

static err_t apply_removed(struct state_job *job, const struct record *r, struct state_result *ret)
{
    int at = checkpoint_position(job, r->removed.step);
    if (at < job->n_checkpoints && job->checkpoints[at].step == r->removed.step)
        remove_checkpoint(job, at);
    else
        ret->err = ERR_NOTFOUND;
    return OK;
}

/* ---- incidents ---- */

static struct incident *find_incident(struct state_job *job, const struct incident *i)
{
    for (int k = job->n_incidents - 1; k >= 0; k--)
        if (job->incidents[k].epoch == i->epoch && job->incidents[k].wall_ms == i->wall_ms)
            return &job->incidents[k];
    return NULL;
}

static void remove_oldest_incident(struct state_job *job)
{
    free_incident(&job->incidents[0]);
    job->n_incidents--;
    memmove(&job->incidents[0], &job->incidents[1], (size_t)job->n_incidents * sizeof(job->incidents[0]));
}

static void remove_old_logs(struct state_job *job)
{
    int kept = 0;
    for (int k = job->n_incidents - 1; k >= 0; k--) {
        struct incident *i = &job->incidents[k];
        if (!i->log || ++kept <= STATE_MAX_INCIDENT_LOGS)
            continue;
        free((char *)i->log);
        free((char *)i->error);
        i->log = i->error = NULL;
    }
}

static err_t apply_start(struct state_job *job, const struct incident *start)
{
    struct incident copy;
    err_t err = fields_copy(&incident_fields, start, &copy);
    if (err)
        return err;
    free_incident(&job->start);
    job->start = copy;
    return OK;
}

static err_t apply_incident(struct state_job *job, const struct record *r, struct state_result *ret)
{
    (void)ret;
    if (r->incident.is_start)
        return apply_start(job, &r->incident);
    if (r->incident.event == EVENT_STRAGGLER || r->incident.event == EVENT_STRAGGLER_GONE)
        return OK; /* an event only */
    struct incident i, *same = find_incident(job, &r->incident);
    err_t err = same ? OK : state_incident_reserve(job);
    err = err ? err : fields_copy(&incident_fields, &r->incident, &i);
    if (err)
        return err;
    if (same) {
        free_incident(same);
        *same = i;
        remove_old_logs(job);
        return OK;
    }
    job->incidents[job->n_incidents++] = i;
    job->incident_clock_ms = r->clock_ms;
    if (job->n_incidents > STATE_MAX_INCIDENTS)
        remove_oldest_incident(job);
    remove_old_logs(job);
    return OK;
}

/* ---- jobs that are shared with a frozen state ---- */

static err_t clone_epoch(const struct state_epoch *from, struct state_epoch *ret)
{
    struct record r = {.kind = RECORD_EPOCH, .wall_ms = from->wall_ms};
    if (!from->epoch)
        return OK;
    r.epoch.epoch = from->epoch;
    r.epoch.members = from->members;
    r.epoch.n_members = from->n_members;
    r.epoch.resume_step = from->resume_step;
    r.epoch.restarts = from->restarts;
    r.epoch.layout = from->layout;
    r.epoch.layout_why = from->layout_why;
    return state_epoch_copy(&r, ret);
}

static err_t clone_left(const struct state_job *from, struct state_job *to)
{
    to->left = calloc((size_t)from->n_left + 1, sizeof(*to->left));
    err_t err = to->left ? OK : ERR_NOMEM;
    for (int i = 0; !err && i < from->n_left; i++) {
        to->left[i] = from->left[i];
        err = text_copy(from->left[i].node, &to->left[i].node);
        to->n_left++;
    }
    return err;
}

static err_t clone_checkpoints(const struct state_job *from, struct state_job *to)
{
    err_t err = OK;
    for (int i = 0; !err && i < from->n_checkpoints; i++) {
        char *path = NULL;
        err = state_checkpoint_reserve(to);
        err = err ? err : text_copy(from->checkpoints[i].path, &path);
        if (err)
            return err;
        to->checkpoints[i] = from->checkpoints[i];
        to->checkpoints[i].path = path;
        to->n_checkpoints++;
    }
    return err;
}

static err_t clone_incidents(const struct state_job *from, struct state_job *to)
{
    err_t err = fields_copy(&incident_fields, &from->start, &to->start);
    for (int i = 0; !err && i < from->n_incidents; i++) {
        err = state_incident_reserve(to);
        err = err ? err : fields_copy(&incident_fields, &from->incidents[i], &to->incidents[i]);
        to->n_incidents += !err;
    }
    return err;
}

static err_t clone_job(const struct state_job *from, struct state_job **ret)
{
    struct state_job *to = malloc(sizeof(*to));
    if (!to)
        return ERR_NOMEM;
    *to = *from; /* so that no number is left out; what has memory of its own follows */
    to->refs = 1;
    to->reason = NULL;
    to->epoch = (struct state_epoch){0};
    to->left = NULL;
    to->checkpoints = NULL;
    to->incidents = NULL;
    to->n_left = to->n_checkpoints = to->n_incidents = 0;
    to->start = (struct incident){0};
    to->spec = spec_ref(from->spec);
    err_t err = text_copy(from->reason, &to->reason);
    err = err ? err : clone_epoch(&from->epoch, &to->epoch);
    err = err ? err : clone_left(from, to);
    err = err ? err : clone_checkpoints(from, to);
    err = err ? err : clone_incidents(from, to);
    if (err)
        state_job_unref(to);
    else
        *ret = to;
    return err;
}

/* Makes the job at this position one that may be changed. */
static err_t own_job(struct state *s, int at)
{
    struct state_job *job = s->jobs[at], *own;
    if (job->refs == 1)
        return OK;
    err_t err = clone_job(job, &own);
    if (err)
        return err;
    s->jobs[at] = own;
    state_job_unref(job);
    return OK;
}

/* ---- apply ---- */

static err_t (*const appliers[])(struct state_job *job, const struct record *r, struct state_result *ret) = {
    [RECORD_DESIRED] = apply_desired,
    [RECORD_ENDED] = apply_ended,
    [RECORD_EPOCH] = apply_epoch,
    [RECORD_CHECKPOINT] = apply_checkpoint,
    [RECORD_CHECKPOINT_REMOVED] = apply_removed,
    [RECORD_INCIDENT] = apply_incident,
};

static err_t apply_kind(struct state *s, const struct record *r, struct state_result *ret)
{
    if (r->kind == RECORD_SUBMITTED)
        return apply_submitted(s, r, ret);
    if (r->kind == RECORD_JOB_REMOVED)
        return apply_job_removed(s, r, ret);
    if (r->kind == RECORD_LINEAGE)
        return state_lineage_apply(s, r, ret);
    if (r->kind >= RECORD_NODE)
        return state_nodes_apply(s, r, ret);
    if (r->kind == RECORD_INCIDENT && !r->job && r->incident.event)
        return OK; /* an event only */
    ret->job = r->job;
    if (!find_job(s, r->job)) {
        ret->err = ERR_NOTFOUND;
        return OK;
    }
    int at = job_position(s, r->job);
    err_t err = own_job(s, at);
    return err ? err : appliers[r->kind](s->jobs[at], r, ret);
}

bool state_is_idle(const struct state *s, const struct record *record, struct state_result *ret)
{
    if (record->kind != RECORD_DESIRED)
        return state_nodes_is_idle(s, record, ret);
    const struct state_job *job = find_job(s, record->job);
    if (job && job->end == END_NONE && job->desired == DESIRED_RUN)
        return false;
    *ret = (struct state_result){.err = !job                   ? ERR_NOTFOUND
                                        : job->end != END_NONE ? ERR_STALE
                                                               : OK,
                                 .job = record->job};
    return true;
}

err_t state_apply(struct state *s, const struct record *record, struct state_result *ret)
{
    struct state_result result = {0};
    struct state_event *event = NULL;
    err_t err = OK;
    if (record->has_request) {
        if (state_request_find(s, record->request_id, ret))
            return OK;
        err = state_request_reserve(s);
    }
    err = err ? err : state_event_prepare(s, record, &event);
    err = err ? err : apply_kind(s, record, &result);
    if (err || result.err)
        free(event);
    else if (event)
        state_event_add(s, event);
    if (err)
        return err;
    if (record->clock_ms > s->clock_ms)
        s->clock_ms = record->clock_ms;
    if (record->has_request) {
        remove_old_requests(s, record);
        keep_request(s, record, &result);
    }
    *ret = result;
    return OK;
}
