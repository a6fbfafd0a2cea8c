/* Events: a list of what happened, made from the records of the log as they are applied.
 *
 * Almost every event is a record that the log has for another reason, so the list costs no writes. Only what no other
 * record has (a node was lost or came back, a rank became slow) is a record of its own: an incident with the field
 * `event`. Older versions answer one without a job with `notfound`, and store one of a job as an incident.
 *
 * An event is built before its record is applied, because it compares the record with the state, and because an apply
 * that runs out of memory must change nothing. It is added only if the record was not refused.
 *
 * One job, or one noisy node, cannot push everything else out: of each job, and of all nodes together, only the newest
 * STATE_MAX_JOB_EVENTS are kept. */
#include "daemon/control/state/internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NODES_NAMED 4 /* nodes that the text of an epoch names */

/* A text that is being written. One that does not fit is cut. */
struct event_text {
    char bytes[STATE_EVENT_TEXT + 2]; /* one more byte shows whether the cut is inside a character */
    size_t len;
};

static void __attribute__((format(printf, 2, 3))) text_add(struct event_text *t, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(t->bytes + t->len, sizeof(t->bytes) - t->len, fmt, ap);
    va_end(ap);
    if (n < 0)
        return;
    t->len += (size_t)n;
    if (t->len <= STATE_EVENT_TEXT)
        return;
    t->len = STATE_EVENT_TEXT;
    while (t->len && ((unsigned char)t->bytes[t->len] & 0xc0) == 0x80) /* not inside a character */
        t->len--;
    t->bytes[t->len] = '\0';
}

/* What the functions below fill in. */
struct event_draft {
    struct state_event e;
    struct event_text text;
};

static int count_nodes(const struct state_member *m, int n)
{
    int nodes = 0;
    for (int i = 0; i < n; i++)
        nodes += i == 0 || strcmp(m[i].node, m[i - 1].node) != 0;
    return nodes;
}

static void describe_members(const struct record *r, struct event_text *t)
{
    const struct state_member *m = r->epoch.members;
    int n = r->epoch.n_members, nodes = count_nodes(m, n), named = 0;
    text_add(t, "epoch %" PRIu64 " with %d worker%s", r->epoch.epoch, n, n == 1 ? "" : "s");
    for (int i = 0; i < n && named < NODES_NAMED; i++)
        if (i == 0 || strcmp(m[i].node, m[i - 1].node) != 0)
            text_add(t, "%s%s", named++ ? ", " : " on ", m[i].node);
    if (nodes > named)
        text_add(t, " and %d more", nodes - named);
}

static void draft_epoch(const struct state *s, const struct state_job *job, const struct record *r,
                        struct event_draft *d)
{
    const struct incident *last = job->n_incidents ? &job->incidents[job->n_incidents - 1] : NULL;
    d->e.kind = job->epoch.epoch ? EVENT_EPOCH : EVENT_STARTED;
    d->e.epoch = r->epoch.epoch;
    d->e.step = r->epoch.resume_step;
    describe_members(r, &d->text);
    if (r->epoch.resume_step > 0)
        text_add(&d->text, " from step %" PRId64, r->epoch.resume_step);
    if (last && last->epoch == job->epoch.epoch && job->epoch.epoch)
        text_add(&d->text, ", because %s", last->seen);
    if (r->epoch.layout_why)
        text_add(&d->text, "; layout auto: %s", r->epoch.layout_why);
}

static void draft_desired(const struct state *s, const struct state_job *job, const struct record *r,
                          struct event_draft *d)
{
    if (job->desired != DESIRED_RUN)
        return;
    d->e.kind = EVENT_CANCEL;
    text_add(&d->text, r->desired.desired == DESIRED_SAVED ? "a user canceled the job, with a checkpoint"
                                                           : "a user canceled the job");
}

static void draft_ended(const struct state *s, const struct state_job *job, const struct record *r,
                        struct event_draft *d)
{
    static const char *const ends[] = {[END_DONE] = "done", [END_FAILED] = "failed", [END_CANCELED] = "canceled"};
    d->e.kind = EVENT_ENDED;
    text_add(&d->text, "%s%s%s", ends[r->ended.end], r->ended.reason ? ": " : "",
             r->ended.reason ? r->ended.reason : "");
}

/* A scan at the start of an epoch reports the folder's older checkpoints again. They are no news. */
static void draft_checkpoint(const struct state *s, const struct state_job *job, const struct record *r,
                             struct event_draft *d)
{
    const struct state_checkpoint *c = &r->checkpoint;
    bool known = c->committed_ms < job->submitted_ms;
    for (int i = 0; i < job->n_checkpoints && !known; i++)
        known = job->checkpoints[i].step == c->step && job->checkpoints[i].committed_ms == c->committed_ms;
    if (known)
        return;
    d->e.kind = EVENT_CHECKPOINT;
    d->e.step = c->step;
    d->e.epoch = c->epoch;
    text_add(&d->text, "step %" PRId64 ", %.1f MiB in %s", c->step, (double)c->bytes / (1 << 20), c->path);
}

static const struct incident *known_incident(const struct state_job *job, const struct incident *i)
{
    for (int k = job->n_incidents - 1; k >= 0; k--)
        if (job->incidents[k].epoch == i->epoch && job->incidents[k].wall_ms == i->wall_ms)
            return &job->incidents[k];
    return NULL;
}

static void draft_running(const struct incident *i, struct event_draft *d)
{
    d->e.kind = EVENT_RUNNING;
    text_add(&d->text, "first step %.1f s after the %s", i->recover_ms / 1e3, i->is_start ? "submit" : "failure");
    if (!i->is_start && i->lost_steps > 0)
        text_add(&d->text, "; %" PRId64 " step%s repeated", i->lost_steps, i->lost_steps == 1 ? " is" : "s are");
}

/* The event that the first record of an incident made; NULL: it is not kept any more. */
static const struct state_event *event_of(const struct state *s, const struct record *r)
{
    for (int i = s->n_events - 1; i >= 0; i--) {
        const struct state_event *e = s->events[i];
        bool opens = e->kind == EVENT_FAILURE || e->kind == EVENT_WARNING || e->kind == EVENT_CHECKPOINT_FAILED;
        if (opens && e->job == r->job && e->epoch == r->incident.epoch && e->wall_ms == r->incident.wall_ms)
            return e;
    }
    return NULL;
}

/* An incident has one record when it opens and more as its fields become known. The first is an event; the one with
 * the duration of the recovery is another; the others may correct the cause. */
static void draft_incident(const struct state *s, const struct state_job *job, const struct record *r,
                           struct event_draft *d)
{
    const struct incident *i = &r->incident, *known = known_incident(job, i);
    d->e.epoch = i->epoch;
    d->e.node = i->node ? i->node : "";
    if (i->is_start || (known && isnan(known->recover_ms) && !isnan(i->recover_ms))) {
        draft_running(i, d);
        return;
    }
    const struct state_event *first = known ? event_of(s, r) : NULL;
    if (known && !first)
        return;
    d->e.id = first ? first->id : 0;
    d->e.kind = i->event ? (enum event_kind)i->event : i->restarts >= 0 ? EVENT_FAILURE : EVENT_WARNING;
    text_add(&d->text, "%s%s%s", i->seen, i->decided[0] ? "; " : "", i->decided);
}

static void draft_removed(const struct state *s, const struct state_job *job, const struct record *r,
                          struct event_draft *d)
{
    d->e.kind = EVENT_REMOVED;
}

static void draft_node(const struct state *s, const struct record *r, struct event_draft *d)
{
    d->e.node = r->node.name;
    if (!state_node_find(s, r->node.name)) {
        d->e.kind = EVENT_NODE_JOINED;
        text_add(&d->text, "at %s", r->node.address);
    }
}

static void draft_node_left(const struct state *s, const struct record *r, struct event_draft *d)
{
    d->e.kind = EVENT_NODE_LEFT;
    d->e.node = r->node_left.name;
}

static void draft_node_admin(const struct state *s, const struct record *r, struct event_draft *d)
{
    const struct state_node *n = state_node_find(s, r->node_admin.name);
    d->e.node = r->node_admin.name;
    if (r->node_admin.drained || (n && n->drained))
        d->e.kind = r->node_admin.drained ? EVENT_NODE_DRAINED : EVENT_NODE_UNDRAINED;
    text_add(&d->text, "%s", r->node_admin.drained ? r->node_admin.drained : "");
}

static void draft_submitted(const struct state *s, const struct record *r, struct event_draft *d)
{
    d->e.kind = EVENT_SUBMITTED;
    d->e.job = s->next_job;
    d->e.uid = r->submitted.uid;
    if (r->submitted.parent)
        text_add(&d->text, "continues job %" PRIu64, r->submitted.parent);
}

/* An event of the nodes, which has no record of another kind. */
static void draft_own(const struct record *r, struct event_draft *d)
{
    d->e.kind = (enum event_kind)r->incident.event;
    d->e.node = r->incident.node ? r->incident.node : "";
    text_add(&d->text, "%s", r->incident.seen);
}

static void (*const of_jobs[])(const struct state *s, const struct state_job *job, const struct record *r,
                               struct event_draft *d) = {
    [RECORD_DESIRED] = draft_desired,       [RECORD_ENDED] = draft_ended,       [RECORD_EPOCH] = draft_epoch,
    [RECORD_CHECKPOINT] = draft_checkpoint, [RECORD_INCIDENT] = draft_incident, [RECORD_JOB_REMOVED] = draft_removed,
};
static void (*const of_others[])(const struct state *s, const struct record *r, struct event_draft *d) = {
    [RECORD_SUBMITTED] = draft_submitted,
    [RECORD_NODE] = draft_node,
    [RECORD_NODE_LEFT] = draft_node_left,
    [RECORD_NODE_ADMIN] = draft_node_admin,
};
#define N_OF(table) (sizeof(table) / sizeof((table)[0]))

struct state_event *state_event_copy(const struct state_event *e)
{
    size_t node = strlen(e->node) + 1, text = strlen(e->text) + 1;
    struct state_event *copy = malloc(sizeof(*copy) + node + text);
    if (!copy)
        return NULL;
    *copy = *e;
    copy->node = memcpy((char *)(copy + 1), e->node, node);
    copy->text = memcpy((char *)(copy + 1) + node, e->text, text);
    return copy;
}

err_t state_event_prepare(const struct state *s, const struct record *r, struct state_event **ret)
{
    struct event_draft d = {.e = {.wall_ms = r->wall_ms, .job = r->job, .step = -1, .node = ""}};
    const struct state_job *job = r->job ? state_job_find(s, r->job) : NULL;
    *ret = NULL;
    if (job && r->kind < N_OF(of_jobs) && of_jobs[r->kind]) {
        d.e.uid = job->uid;
        of_jobs[r->kind](s, job, r, &d);
    } else if (r->kind < N_OF(of_others) && of_others[r->kind]) {
        of_others[r->kind](s, r, &d);
    } else if (r->kind == RECORD_INCIDENT && !r->job && r->incident.event) {
        draft_own(r, &d);
    }
    if (d.e.kind == EVENT_NONE)
        return OK;
    d.e.text = d.text.bytes;
    *ret = state_event_copy(&d.e);
    return *ret ? OK : ERR_NOMEM;
}

static void remove_at(struct state *s, int at)
{
    free(s->events[at]);
    s->n_events--;
    memmove(&s->events[at], &s->events[at + 1], (size_t)(s->n_events - at) * sizeof(s->events[0]));
}

/* The event takes the place of one with its number. */
static void replace(struct state *s, struct state_event *e)
{
    for (int i = s->n_events - 1; i >= 0; i--)
        if (s->events[i]->id == e->id) {
            free(s->events[i]);
            s->events[i] = e;
            return;
        }
}

void state_event_add(struct state *s, struct state_event *e)
{
    if (e->id) {
        replace(s, e);
        return;
    }
    int same = 0, oldest = 0, checkpoint = -1;
    for (int i = s->n_events - 1; i >= 0; i--)
        if (s->events[i]->job == e->job) {
            same++;
            oldest = i;
            checkpoint = s->events[i]->kind == EVENT_CHECKPOINT ? i : checkpoint;
        }
    if (same >= STATE_MAX_JOB_EVENTS)
        remove_at(s, checkpoint >= 0 ? checkpoint : oldest); /* so that frequent saves leave failures in the list */
    else if (s->n_events == STATE_MAX_EVENTS)
        remove_at(s, 0);
    e->id = s->next_event++;
    s->events[s->n_events++] = e;
}

int state_events(const struct state *s, const struct state_event *const **ret)
{
    *ret = (const struct state_event *const *)s->events;
    return s->n_events;
}

uint64_t state_event_next(const struct state *s)
{
    return s->next_event;
}

bool state_node_is_lost(const struct state *s, const char *node)
{
    for (int i = s->n_events - 1; i >= 0; i--) {
        const struct state_event *e = s->events[i];
        bool news = e->kind == EVENT_NODE_LOST || e->kind == EVENT_NODE_BACK || e->kind == EVENT_NODE_JOINED;
        if (news && strcmp(e->node, node) == 0)
            return e->kind == EVENT_NODE_LOST;
    }
    return false;
}

void state_events_clear(struct state *s)
{
    for (int i = 0; i < s->n_events; i++)
        free(s->events[i]);
    s->n_events = 0;
}
