/* Chrome's JSON, with the names that PyTorch's profiler uses, so that scripts for its traces find steps, collectives
 * and their arguments. A rank is a process, its rows are threads, and the forecast of its step is a process of its own
 * that begins with each measured step, or after the step before it if the forecast of that takes longer.
 *
 * Times are written in microseconds with three decimals, so nothing is rounded. An arrow leads from the op that posts a
 * message to the op of the other rank that waits for it; it is drawn only where both were recorded. */
#include "client/profile/profile.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#define MESSAGES 4096 /* of a step from one rank to another; later ones have no arrow */
#define LIST_MAX 32   /* ranks of a group that are written out */
#define CHUNK ((size_t)1 << 20)

/* ---- output ---- */

/* A gzipped file, or memory. */
struct sink {
    gzFile file;
    struct buf *whole;
    struct buf text;
    bool any; /* an event has been written: the next one needs a comma */
    err_t err;
};

static void sink_flush(struct sink *s)
{
    if (!s->err && s->file && s->text.len && gzwrite(s->file, s->text.data, (unsigned)s->text.len) <= 0)
        s->err = errno == ENOSPC ? ERR_NOSPACE : ERR_IO;
    if (!s->err && s->whole)
        s->err = buf_append(s->whole, s->text.data, s->text.len);
    s->text.len = 0;
}

#define PUT(s, ...)                                         \
    do {                                                    \
        if (!(s)->err)                                      \
            (s)->err = buf_printf(&(s)->text, __VA_ARGS__); \
    } while (0)

static void put_text(struct sink *s, const char *text)
{
    PUT(s, "\"");
    for (; *text; text++) {
        const unsigned char c = (unsigned char)*text;
        if (c == '"' || c == '\\')
            PUT(s, "\\%c", c);
        else if (c < ' ')
            PUT(s, "\\u%04x", c);
        else
            PUT(s, "%c", c);
    }
    PUT(s, "\"");
}

static void event_begin(struct sink *s)
{
    if (s->text.len > CHUNK)
        sink_flush(s);
    PUT(s, s->any ? ",\n" : "\n");
    s->any = true;
}

/* Nanoseconds as microseconds. */
static void put_us(struct sink *s, const char *key, int64_t ns)
{
    const uint64_t x = ns < 0 ? (uint64_t)-ns : (uint64_t)ns;
    PUT(s, ",\"%s\":%s%" PRIu64 ".%03u", key, ns < 0 ? "-" : "", x / 1000, (unsigned)(x % 1000));
}

/* ---- processes and threads ---- */

static int pid_measured(int rank)
{
    return 2 * rank + 1;
}

static int pid_forecast(int rank)
{
    return 2 * rank + 2;
}

static void put_meta(struct sink *s, const char *what, int pid, int tid, const char *name)
{
    event_begin(s);
    PUT(s, "{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,\"args\":{\"%s\":", what, pid, tid,
        strcmp(what, "process_labels") ? "name" : "labels");
    put_text(s, name);
    PUT(s, "}}");
}

static void put_order(struct sink *s, const char *what, int pid, int tid, int order)
{
    event_begin(s);
    PUT(s, "{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,\"args\":{\"sort_index\":%d}}", what, pid, tid, order);
}

static const char *node_of(const struct profile *p, int rank)
{
    return p->node && p->node[rank] ? p->node[rank] : "";
}

static void put_process(struct sink *s, const struct profile *p, int rank, const struct lanes *l)
{
    char text[256];
    const int pid = pid_measured(rank);
    snprintf(text, sizeof(text), "rank %03d", rank);
    put_meta(s, "process_name", pid, 0, text);
    snprintf(text, sizeof(text), "%s%spid %d, clock +-%.1f us", node_of(p, rank), node_of(p, rank)[0] ? ", " : "",
             p->rank[rank].pid, (double)p->error_ns[rank] * 1e-3);
    put_meta(s, "process_labels", pid, 0, text);
    put_order(s, "process_sort_index", pid, 0, pid);
    for (int i = 0; i < l->n; i++) {
        put_meta(s, "thread_name", pid, i + 1, l->lane[i].name);
        put_order(s, "thread_sort_index", pid, i + 1, i + 1);
    }
}

/* ---- slices ---- */

static const char *collective_name(enum op_kind kind)
{
    static const char *const names[OP_KIND_COUNT] = {
        [OP_ALL_REDUCE] = "allreduce",
        [OP_TREE_REDUCE] = "allreduce",
        [OP_OWN_GATHER] = "_allgather_base",
        [OP_GATHER] = "_allgather_base",
        [OP_UNIT_GATHER] = "_allgather_base",
        [OP_OWN_SCATTER] = "_reduce_scatter_base",
        [OP_UNIT_SCATTER] = "_reduce_scatter_base",
        [OP_SEND] = "send",
        [OP_RECV] = "recv",
        [OP_SHIFT] = "all_to_allv",
        [OP_EXCHANGE] = "all_to_allv",
        [OP_BORROW] = "all_to_allv",
        [OP_GIVE_BACK] = "all_to_allv",
        [OP_GATHER_TOKENS] = "all_to_allv",
    };
    return names[kind];
}

/* As PyTorch's profiler names types. */
static const char *type_name(enum dtype t)
{
    switch (t) {
    case DT_F32:
        return "Float";
    case DT_F64:
        return "Double";
    case DT_BF16:
        return "BFloat16";
    case DT_I64:
        return "Long";
    case DT_I32:
        return "Int";
    default:
        return dtype_name(t);
    }
}

/* "[0, 1, 2, 3]"; of a large group "[0, 1, .., 255]". */
static void put_ranks(struct sink *s, const struct recorded_group *g)
{
    PUT(s, "[");
    for (int i = 0; i < g->n; i++) {
        if (g->n > LIST_MAX && i >= 2 && i < g->n - 1) {
            i = g->n - 1;
            PUT(s, ", ..");
        }
        PUT(s, "%s%d", i ? ", " : "", g->ranks[i]);
    }
    PUT(s, "]");
}

static void put_axes(struct sink *s, unsigned axes)
{
    bool any = false;
    for (int a = 0; a < AXIS_COUNT; a++)
        if (axes & (1u << a)) {
            PUT(s, "%s%s", any ? "+" : "", mesh_axis_name((enum mesh_axis)a));
            any = true;
        }
}

static void put_collective(struct sink *s, const struct recorded *r, const struct recorded_call *c)
{
    const char *name = collective_name(c->kind);
    if (name)
        PUT(s, ",\"Collective name\":\"%s\"", name);
    if (c->in || c->out)
        PUT(s, ",\"dtype\":\"%s\",\"In msg nelems\":%" PRId64 ",\"Out msg nelems\":%" PRId64 ",\"bytes\":%" PRId64,
            type_name(c->dtype), c->in, c->out, (c->in > c->out ? c->in : c->out) * (int64_t)dtype_bytes(c->dtype));
    if (c->group >= 0) {
        const struct recorded_group *g = &r->groups[c->group];
        PUT(s, ",\"Group size\":%d,\"Process Group Name\":\"%d\",\"Process Group Description\":\"", g->n, c->group);
        put_axes(s, g->axes);
        PUT(s, "\",\"Process Group Ranks\":\"");
        put_ranks(s, g);
        PUT(s, "\"");
    }
    if (c->role == ROLE_SEND || c->role == ROLE_WAIT_SEND)
        PUT(s, ",\"Src Rank\":%d,\"Dst Rank\":%d,\"message\":%" PRId64, r->rank, c->peer, c->message);
    if (c->role == ROLE_RECV || c->role == ROLE_WAIT_RECV)
        PUT(s, ",\"Src Rank\":%d,\"Dst Rank\":%d,\"message\":%" PRId64, c->peer, r->rank, c->message);
}

static void put_op_name(struct sink *s, const struct recorded_call *c)
{
    static const char *const of_role[ROLE_COUNT] = {
        [ROLE_SEND] = "send to",
        [ROLE_RECV] = "post recv from",
        [ROLE_WAIT_SEND] = "wait sent to",
        [ROLE_WAIT_RECV] = "wait recv from",
    };
    if (of_role[c->role])
        PUT(s, "%s %d", of_role[c->role], c->peer);
    else
        PUT(s, "%s", op_name(c->kind));
}

static void put_action_name(struct sink *s, const struct recorded_action *a)
{
    PUT(s, "%s", action_name(a->kind));
    if (a->micro >= 0)
        PUT(s, " mb%d", a->micro);
    if (a->chunk > 0)
        PUT(s, " chunk%d", a->chunk);
}

static void put_name(struct sink *s, const struct recorded *r, const struct slice *l)
{
    switch (l->kind) {
    case SLICE_OP:
        put_op_name(s, &r->calls[r->events[l->index].call]);
        break;
    case SLICE_ACTION:
        put_action_name(s, &r->actions[l->index]);
        break;
    case SLICE_HOST:
        PUT(s, "%s", recorded_host_name(r->hosts[l->index].kind));
        break;
    case SLICE_STEP:
        PUT(s, "ProfilerStep#%" PRId64, r->step[l->index].step);
        break;
    }
}

static const char *category(const struct recorded *r, const struct slice *l)
{
    if (l->kind != SLICE_OP)
        return "user_annotation";
    const struct recorded_call *c = &r->calls[r->events[l->index].call];
    return call_is_comm(c) ? "collective_comm" : r->device ? "kernel" : "cpu_op";
}

static void put_slice(struct sink *s, const struct recorded *r, const struct slice *l)
{
    event_begin(s);
    PUT(s, "{\"ph\":\"X\",\"cat\":\"%s\",\"name\":\"", category(r, l));
    put_name(s, r, l);
    PUT(s, "\",\"pid\":%d,\"tid\":%d", pid_measured(r->rank), l->lane + 1);
    put_us(s, "ts", l->from);
    put_us(s, "dur", l->to - l->from);
    PUT(s, ",\"args\":{\"step\":%" PRId64, r->first + l->step);
    if (l->kind == SLICE_OP) {
        const struct recorded_call *c = &r->calls[r->events[l->index].call];
        const struct recorded_action *a = &r->actions[c->action];
        PUT(s, ",\"action\":\"");
        put_action_name(s, a);
        PUT(s, "\"");
        if (c->layer >= 0)
            PUT(s, ",\"layer\":%d", c->layer);
        if (call_is_comm(c))
            put_collective(s, r, c);
    } else if (l->kind == SLICE_ACTION) {
        PUT(s, ",\"microbatch\":%d,\"chunk\":%d", r->actions[l->index].micro, r->actions[l->index].chunk);
    }
    PUT(s, "}}");
}

static void put_memory(struct sink *s, const struct recorded *r)
{
    for (int i = 0; i < 2 * r->n_step; i++) {
        const struct recorded_step *t = &r->step[i / 2];
        event_begin(s);
        PUT(s, "{\"ph\":\"C\",\"name\":\"memory\",\"pid\":%d", pid_measured(r->rank));
        put_us(s, "ts", i % 2 ? t->to : t->from);
        PUT(s, ",\"args\":{\"host\":%" PRId64, t->rss_bytes);
        if (r->device)
            PUT(s, ",\"GPU\":%" PRId64, t->device_bytes);
        PUT(s, "}}");
    }
}

/* ---- arrows ---- */

/* One end of a message, as a number that both ends compute. */
struct end {
    int64_t id;
    bool send;
};

struct ends {
    struct end *list;
    size_t n, cap;
};

/* -1: the op is not an end of an arrow. */
static int64_t arrow_of(const struct profile *p, const struct recorded *r, const struct recorded_event *e, bool *send)
{
    const struct recorded_call *c = &r->calls[e->call];
    *send = c->role == ROLE_SEND;
    if ((c->role != ROLE_SEND && c->role != ROLE_WAIT_RECV) || c->peer < 0 || c->message >= MESSAGES)
        return -1;
    const int64_t src = *send ? r->rank : c->peer, dst = *send ? c->peer : r->rank;
    return ((((int64_t)e->step + 1) * p->n + src) * p->n + dst) * MESSAGES + c->message;
}

static err_t ends_add(struct ends *ends, struct end e)
{
    if (ends->n == ends->cap) {
        size_t cap = ends->cap ? 2 * ends->cap : 1024;
        struct end *list = realloc(ends->list, cap * sizeof(*list));
        if (!list)
            return ERR_NOMEM;
        ends->list = list;
        ends->cap = cap;
    }
    ends->list[ends->n++] = e;
    return OK;
}

static int by_id(const void *a, const void *b)
{
    const struct end *x = a, *y = b;
    return x->id != y->id ? (x->id < y->id ? -1 : 1) : x->send - y->send;
}

/* Leaves one entry for each message of which exactly one send and one receive were recorded. */
static void ends_match(struct ends *ends)
{
    size_t kept = 0;
    if (ends->n)
        qsort(ends->list, ends->n, sizeof(*ends->list), by_id);
    for (size_t i = 0, next; i < ends->n; i = next) {
        for (next = i + 1; next < ends->n && ends->list[next].id == ends->list[i].id;)
            next++;
        if (next == i + 2 && ends->list[i].send != ends->list[i + 1].send)
            ends->list[kept++] = ends->list[i];
    }
    ends->n = kept;
}

static err_t ends_collect(const struct profile *p, struct ends *ends)
{
    err_t err = OK;
    for (int k = 0; k < p->n; k++)
        for (int i = 0; !err && i < p->rank[k].n_events; i++) {
            struct end e;
            e.id = arrow_of(p, &p->rank[k], &p->rank[k].events[i], &e.send);
            err = e.id < 0 ? OK : ends_add(ends, e);
        }
    ends_match(ends);
    return err;
}

/* The number of the arrow, from 1; 0: its other end was not recorded. */
static size_t ends_find(const struct ends *ends, int64_t id)
{
    size_t lo = 0, hi = ends->n;
    while (lo < hi) {
        const size_t mid = (lo + hi) / 2;
        if (ends->list[mid].id < id)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo < ends->n && ends->list[lo].id == id ? lo + 1 : 0;
}

static void put_arrow(struct sink *s, const struct profile *p, const struct recorded *r, const struct slice *l,
                      const struct ends *ends, struct trace_facts *facts)
{
    bool send;
    const int64_t id = l->kind == SLICE_OP ? arrow_of(p, r, &r->events[l->index], &send) : -1;
    const size_t number = id < 0 ? 0 : ends_find(ends, id);
    if (!number)
        return;
    event_begin(s);
    PUT(s, "{\"ph\":\"%s\",\"cat\":\"p2p\",\"name\":\"message\",\"id\":%zu,\"pid\":%d,\"tid\":%d", send ? "s" : "f",
        number, pid_measured(r->rank), l->lane + 1);
    put_us(s, "ts", send ? l->from : l->to - 1);
    PUT(s, "%s}", send ? "" : ",\"bp\":\"e\"");
    facts->flows += send;
}

/* ---- the forecast ---- */

/* The begin of a step: that of its first op on any rank. */
static int64_t begin_of(const struct profile *p, int step)
{
    int64_t first = INT64_MAX;
    for (int k = 0; k < p->n; k++)
        for (int i = 0; i < p->rank[k].n_step; i++)
            if (p->rank[k].step[i].step == p->rank[0].first + step && p->rank[k].step[i].from < first)
                first = p->rank[k].step[i].from;
    return first;
}

static void put_forecast_process(struct sink *s, int rank)
{
    static const char *const rows[STREAM_COUNT] = {"compute", "comm", "copy"};
    char text[64];
    snprintf(text, sizeof(text), "forecast, rank %03d", rank);
    put_meta(s, "process_name", pid_forecast(rank), 0, text);
    put_order(s, "process_sort_index", pid_forecast(rank), 0, pid_forecast(rank));
    for (int i = 0; i < STREAM_COUNT; i++) {
        put_meta(s, "thread_name", pid_forecast(rank), i + 1, rows[i]);
        put_order(s, "thread_sort_index", pid_forecast(rank), i + 1, i + 1);
    }
}

static void put_forecast_step(struct sink *s, const struct profile *p, int rank, int64_t begin, int64_t step,
                              struct trace_facts *facts)
{
    const struct forecast_rank *f = &p->forecast.ranks[rank];
    int64_t last[STREAM_COUNT] = {0};
    for (int i = 0; i < f->n; i++) {
        const struct forecast_box *b = &f->boxes[i];
        int64_t from = (int64_t)(b->start * 1e9 + 0.5), to = (int64_t)(b->end * 1e9 + 0.5);
        from = from > last[b->stream] ? from : last[b->stream];
        to = to > from ? to : from + 1;
        last[b->stream] = to;
        event_begin(s);
        PUT(s, "{\"ph\":\"X\",\"cat\":\"user_annotation\",\"name\":\"");
        put_action_name(s, &(struct recorded_action){b->kind, b->micro, b->chunk});
        PUT(s, "\",\"pid\":%d,\"tid\":%d", pid_forecast(rank), (int)b->stream + 1);
        put_us(s, "ts", begin + from);
        put_us(s, "dur", to - from);
        PUT(s, ",\"args\":{\"step\":%" PRId64 "}}", step);
        facts->slices++;
    }
}

static void put_forecast(struct sink *s, const struct profile *p, int rank, struct trace_facts *facts)
{
    if (!p->forecast.n)
        return;
    put_forecast_process(s, rank);
    int64_t last = INT64_MIN;
    for (int i = 0; i < p->rank[0].n_step; i++) {
        const int64_t begin = begin_of(p, i) > last ? begin_of(p, i) : last;
        put_forecast_step(s, p, rank, begin, p->rank[0].first + i, facts);
        last = begin + (int64_t)(p->forecast.seconds * 1e9) + p->forecast.ranks[rank].n + 1; /* no box is empty */
    }
}

/* ---- files ---- */

static int64_t worst_error(const struct profile *p)
{
    int64_t most = 0;
    for (int k = 0; k < p->n; k++)
        most = p->error_ns[k] > most ? p->error_ns[k] : most;
    return most;
}

/* `rank` -1: all ranks. */
static void put_head(struct sink *s, const struct profile *p, int rank)
{
    const struct recorded *r = &p->rank[rank < 0 ? 0 : rank];
    PUT(s,
        "{\"schemaVersion\":1,\"displayTimeUnit\":\"ms\",\"baseTimeNanoseconds\":%" PRId64
        ",\"deviceProperties\":[],\"distributedInfo\":{\"backend\":\"dtd\",\"rank\":%d,\"world_size\":%d,"
        "\"pg_count\":%d},\"traceName\":",
        p->rank[0].clock[0].wall, r->rank, p->n, r->n_groups);
    put_text(s, p->job ? p->job : "");
    PUT(s,
        ",\"dtd\":{\"job\":%" PRIu64 ",\"epoch\":%" PRIu64 ",\"first_step\":%" PRId64
        ",\"steps\":%d,\"clock_error_ns\":%" PRId64 ",\"lost_ops\":%" PRId64 "},\"traceEvents\":[",
        r->job, r->epoch, r->first, r->steps, rank < 0 ? worst_error(p) : p->error_ns[rank], r->lost);
}

static err_t put_rank(struct sink *s, const struct profile *p, int rank, const struct ends *ends,
                      struct trace_facts *facts)
{
    const struct recorded *r = &p->rank[rank];
    struct lanes l = {0};
    err_t err = lanes_of(r, &l);
    if (err)
        return err;
    put_process(s, p, rank, &l);
    for (int i = 0; i < l.n_slices; i++) {
        put_slice(s, r, &l.slices[i]);
        put_arrow(s, p, r, &l.slices[i], ends, facts);
    }
    put_memory(s, r);
    facts->slices += l.n_slices;
    lanes_fini(&l);
    put_forecast(s, p, rank, facts);
    return s->err;
}

/* Ranks first .. end - 1. */
static err_t put_trace(struct sink *s, const struct profile *p, int first, int end, struct trace_facts *ret)
{
    struct trace_facts facts = {.files = 1};
    struct ends ends = {0};
    err_t err = ends_collect(p, &ends);
    if (!err)
        put_head(s, p, end - first == p->n && p->n > 1 ? -1 : first);
    for (int k = first; !err && k < end; k++)
        err = put_rank(s, p, k, &ends, &facts);
    PUT(s, "\n]}\n");
    sink_flush(s);
    free(ends.list);
    buf_fini(&s->text);
    err = err ? err : s->err;
    if (!err)
        *ret = facts;
    return err;
}

int64_t profile_slices(const struct profile *p)
{
    int64_t n = 0;
    for (int k = 0; k < p->n; k++)
        n += 2 * (int64_t)p->rank[k].n_events + p->rank[k].n_hosts + 3 * (int64_t)p->rank[k].n_step +
             (p->forecast.n ? (int64_t)p->forecast.ranks[k].n * p->rank[k].n_step : 0);
    return n;
}

err_t trace_rank(const struct profile *p, int rank, struct buf *ret, struct trace_facts *facts, struct why *why)
{
    struct sink s = {.whole = ret};
    err_t err = put_trace(&s, p, rank, rank + 1, facts);
    return err ? why_set(why, err, "the trace of rank %d could not be made: %s", rank, err_text(err)) : OK;
}

/* Level 1 takes a third of the time of the default, and its file is a fifth larger. */
static err_t write_gzip(const struct profile *p, const char *path, struct trace_facts *ret)
{
    struct sink s = {.file = gzopen(path, "wb1")};
    if (!s.file)
        return err_from_errno(errno ? errno : EIO);
    err_t err = put_trace(&s, p, 0, p->n, ret);
    errno = 0;
    if (gzclose(s.file) != Z_OK && !err)
        err = errno == ENOSPC ? ERR_NOSPACE : ERR_IO;
    return err;
}

err_t trace_write(const struct profile *p, const char *path, struct trace_facts *ret, struct why *why)
{
    struct buf part = {0};
    err_t err = buf_printf(&part, "%s.part", path);
    const char *name = (const char *)part.data;
    err = err ? err : write_gzip(p, name, ret);
    if (!err && rename(name, path))
        err = err_from_errno(errno);
    if (err && name)
        (void)unlink(name);
    buf_fini(&part);
    return err ? why_set(why, err, "%s could not be written: %s; name another place with --to", path, err_text(err))
               : OK;
}
