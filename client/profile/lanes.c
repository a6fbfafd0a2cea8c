/* Sorts what a rank did into rows. Viewers drop a slice that overlaps another one of its row partly, so what runs at
 * the same time has rows of its own: streams, and on them the collectives of every set of axes, because a communication
 * thread or a device runs them beside the compute. The times of a device's events are rounded; an overlap that is left
 * is removed by a later begin. */
#include "client/profile/profile.h"

#include <stdlib.h>
#include <string.h>

bool call_is_comm(const struct recorded_call *c)
{
    return c->group >= 0 || c->role != ROLE_NONE;
}

static enum lane_kind kind_of(const struct recorded_call *c)
{
    static const enum lane_kind of_role[ROLE_COUNT] = {
        [ROLE_NONE] = LANE_COMM, [ROLE_SEND] = LANE_SEND,      [ROLE_RECV] = LANE_RECV,
        [ROLE_PUSH] = LANE_SEND, [ROLE_WAIT_SEND] = LANE_SEND, [ROLE_WAIT_RECV] = LANE_RECV,
    };
    if (call_is_comm(c))
        return of_role[c->role];
    return c->stream == STREAM_COPY ? LANE_COPY : LANE_COMPUTE;
}

static void name_lane(struct lane *l)
{
    static const char *const names[] = {
        [LANE_STEP] = "step", [LANE_COMPUTE] = "compute", [LANE_COMM] = "comm",
        [LANE_SEND] = "send", [LANE_RECV] = "recv",       [LANE_COPY] = "copy",
        [LANE_DATA] = "data", [LANE_SAVE] = "checkpoint", [LANE_CONTROL] = "control",
    };
    const bool message = l->kind == LANE_SEND || l->kind == LANE_RECV;
    char axes[32] = "";
    for (int a = 0; a < AXIS_COUNT; a++)
        if (l->axes & (1u << a)) {
            strcat(axes, axes[0] ? "+" : "");
            strcat(axes, mesh_axis_name((enum mesh_axis)a));
        }
    if (message)
        snprintf(l->name, sizeof(l->name), "%s%s%s", axes, axes[0] ? " " : "", names[l->kind]);
    else
        snprintf(l->name, sizeof(l->name), "%s%s%s", names[l->kind], axes[0] ? " " : "", axes);
}

/* Returns the lane, and adds it if it is new; -1: no memory. */
static int lane_find(struct lanes *l, enum lane_kind kind, unsigned axes, enum op_stream stream)
{
    for (int i = 0; i < l->n; i++)
        if (l->lane[i].kind == kind && l->lane[i].axes == axes && l->lane[i].stream == stream)
            return i;
    struct lane *p = realloc(l->lane, (size_t)(l->n + 1) * sizeof(*p));
    if (!p)
        return -1;
    l->lane = p;
    p[l->n] = (struct lane){.kind = kind, .axes = axes, .stream = stream};
    name_lane(&p[l->n]);
    return l->n++;
}

static unsigned axes_of(const struct recorded *r, const struct recorded_call *c)
{
    return c->group >= 0 ? r->groups[c->group].axes : 0;
}

/* Posts are passed on for all groups at once: on the row of the messages that they belong to. */
static unsigned axes_of_messages(const struct recorded *r)
{
    for (int i = 0; i < r->n_calls; i++)
        if (r->calls[i].role == ROLE_SEND || r->calls[i].role == ROLE_RECV)
            return axes_of(r, &r->calls[i]);
    return 0;
}

static bool add(struct lanes *l, struct slice s)
{
    if (s.lane < 0)
        return false;
    s.to = s.to > s.from ? s.to : s.from + 1; /* a flow needs a slice that is not empty */
    l->slices[l->n_slices++] = s;
    return true;
}

static bool add_ops(const struct recorded *r, struct lanes *l)
{
    const unsigned messages = axes_of_messages(r);
    bool ok = true;
    for (int i = 0; ok && i < r->n_events; i++) {
        const struct recorded_event *e = &r->events[i];
        const struct recorded_call *c = &r->calls[e->call];
        const bool push = c->role == ROLE_PUSH && c->group < 0;
        ok = add(l, (struct slice){.lane = lane_find(l, kind_of(c), push ? messages : axes_of(r, c), c->stream),
                                   .kind = SLICE_OP,
                                   .index = i,
                                   .step = e->step,
                                   .from = e->from,
                                   .to = e->to});
    }
    return ok;
}

static bool add_rest(const struct recorded *r, struct lanes *l)
{
    static const enum lane_kind lane_of[HOST_COUNT] = {
        [HOST_DATA] = LANE_DATA,      [HOST_AGREE] = LANE_CONTROL, [HOST_EVAL] = LANE_CONTROL,
        [HOST_REPORT] = LANE_CONTROL, [HOST_SAVE] = LANE_SAVE,     [HOST_POLL] = LANE_SAVE,
    };
    bool ok = true;
    for (int i = 0; ok && i < r->n_hosts; i++) {
        const struct recorded_host *h = &r->hosts[i];
        ok = add(l, (struct slice){.lane = lane_find(l, lane_of[h->kind], 0, STREAM_COMPUTE),
                                   .kind = SLICE_HOST,
                                   .index = i,
                                   .step = h->step,
                                   .from = h->from,
                                   .to = h->to});
    }
    for (int i = 0; ok && i < r->n_step; i++)
        ok = add(l, (struct slice){.lane = lane_find(l, LANE_STEP, 0, STREAM_COMPUTE),
                                   .kind = SLICE_STEP,
                                   .index = i,
                                   .step = i,
                                   .from = r->step[i].from,
                                   .to = r->step[i].to});
    return ok;
}

static int by_lane_and_time(const void *a, const void *b)
{
    const struct slice *x = a, *y = b;
    if (x->lane != y->lane)
        return x->lane < y->lane ? -1 : 1;
    if (x->from != y->from)
        return x->from < y->from ? -1 : 1;
    if (x->to != y->to)
        return x->to > y->to ? -1 : 1;
    return x->kind != y->kind ? (x->kind == SLICE_ACTION ? -1 : 1) : (x->index > y->index) - (x->index < y->index);
}

static void remove_overlaps(struct lanes *l)
{
    for (int i = 1; i < l->n_slices; i++) {
        const struct slice *before = &l->slices[i - 1];
        struct slice *s = &l->slices[i];
        if (s->lane != before->lane || s->from >= before->to)
            continue;
        s->from = before->to;
        s->to = s->to > s->from ? s->to : s->from + 1;
    }
}

/* Puts a slice around the neighbouring ops of an action on the compute row. `n`: slices before this call. */
static void add_actions(const struct recorded *r, struct lanes *l, int n)
{
    struct slice *around = NULL;
    for (int i = 0; i < n; i++) {
        const struct slice *s = &l->slices[i];
        if (l->lane[s->lane].kind != LANE_COMPUTE || s->kind != SLICE_OP)
            continue;
        const int action = r->calls[r->events[s->index].call].action;
        if (around && around->lane == s->lane && around->index == action && around->step == s->step) {
            around->to = s->to;
            continue;
        }
        around = &l->slices[l->n_slices++];
        *around = *s;
        around->kind = SLICE_ACTION;
        around->index = action;
    }
}

/* Rows that every job has come first, in this order; a rank without such work has no such row. */
static void sort_lanes(struct lanes *l)
{
    for (int i = 1; i < l->n; i++)
        for (int k = i; k > 0 && l->lane[k].kind < l->lane[k - 1].kind; k--) {
            const struct lane t = l->lane[k];
            l->lane[k] = l->lane[k - 1];
            l->lane[k - 1] = t;
        }
}

/* Collectives of the same axes on two streams have two rows. */
static void tell_apart(struct lanes *l)
{
    for (int i = 0; i < l->n; i++)
        for (int k = 0; k < l->n; k++)
            if (i != k && l->lane[i].kind == l->lane[k].kind && l->lane[i].axes == l->lane[k].axes &&
                l->lane[i].stream == STREAM_COMPUTE)
                snprintf(l->lane[i].name + strlen(l->lane[i].name), sizeof(l->lane[i].name) - strlen(l->lane[i].name),
                         " (compute stream)");
}

/* The lanes in their order, before there are slices. */
static bool make_lanes(const struct recorded *r, struct lanes *l)
{
    const bool ok = add_ops(r, l) && add_rest(r, l);
    l->n_slices = 0;
    sort_lanes(l);
    tell_apart(l);
    return ok;
}

err_t lanes_of(const struct recorded *r, struct lanes *ret)
{
    struct lanes l = {0};
    const size_t room = 2 * (size_t)r->n_events + (size_t)r->n_hosts + (size_t)r->n_step + 1;
    l.slices = malloc(room * sizeof(*l.slices));
    if (!l.slices || !make_lanes(r, &l) || !add_ops(r, &l) || !add_rest(r, &l)) {
        lanes_fini(&l);
        return ERR_NOMEM;
    }
    qsort(l.slices, (size_t)l.n_slices, sizeof(*l.slices), by_lane_and_time);
    remove_overlaps(&l);
    add_actions(r, &l, l.n_slices);
    qsort(l.slices, (size_t)l.n_slices, sizeof(*l.slices), by_lane_and_time);
    *ret = l;
    return OK;
}

void lanes_fini(struct lanes *l)
{
    free(l->lane);
    free(l->slices);
    *l = (struct lanes){0};
}
