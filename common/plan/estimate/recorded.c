/* Reads and writes recordings. A reader of all ranks parses millions of numbers, so it takes them apart itself instead
 * of by sscanf. Every index of a line refers to lines before it, so code that uses a recording needs no checks. */
#include "common/plan/estimate/recorded.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_NS ((int64_t)1 << 50) /* 13 days: a recording is shorter */
#define MAX_NAME 32

const char *recorded_role_name(enum recorded_role role)
{
#define X(role, name) name,
    static const char *const names[ROLE_COUNT] = {RECORDED_ROLES(X)};
#undef X
    return names[role];
}

const char *recorded_host_name(enum recorded_host_kind kind)
{
#define X(kind, name) name,
    static const char *const names[HOST_COUNT] = {RECORDED_HOSTS(X)};
#undef X
    return names[kind];
}

bool recorded_path(const char *folder, int rank, char *ret, size_t size)
{
    int n =
        rank < 0 ? snprintf(ret, size, "%s/profile", folder) : snprintf(ret, size, "%s/profile/rank-%d", folder, rank);
    return n >= 0 && (size_t)n < size;
}

void recorded_fini(struct recorded *r)
{
    for (int i = 0; r->groups && i < r->n_groups; i++)
        free(r->groups[i].ranks);
    free(r->groups);
    free(r->actions);
    free(r->calls);
    free(r->step);
    free(r->hosts);
    free(r->events);
    *r = (struct recorded){0};
}

/* ---- writing ---- */

static err_t print_head(const struct recorded *r, struct buf *b)
{
    err_t err = buf_printf(b,
                           "dtd profile 1\njob %" PRIu64 " profile %" PRIu64 " epoch %" PRIu64
                           " rank %d world %d node %d pid %d first %" PRId64 " steps %d lost %" PRId64 " device %d\n",
                           r->job, r->profile, r->epoch, r->rank, r->world, r->node, r->pid, r->first, r->steps,
                           r->lost, r->device);
    for (int i = 0; !err && i < 2; i++) {
        const struct recorded_clock *c = &r->clock[i];
        err = buf_printf(b, "clock %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 "\n", c->at, c->wall,
                         c->lo, c->best, c->hi);
    }
    for (int i = 0; !err && i < OP_KIND_COUNT; i++)
        err = buf_printf(b, "op %s\n", op_name((enum op_kind)i));
    return err;
}

static err_t print_groups(const struct recorded *r, struct buf *b)
{
    err_t err = OK;
    for (int i = 0; !err && i < r->n_groups; i++) {
        err = buf_printf(b, "group %u", r->groups[i].axes);
        for (int k = 0; !err && k < r->groups[i].n; k++)
            err = buf_printf(b, " %d", r->groups[i].ranks[k]);
        err = err ? err : buf_append(b, "\n", 1);
    }
    return err;
}

static err_t print_calls(const struct recorded *r, struct buf *b)
{
    err_t err = OK;
    for (int i = 0; !err && i < r->n_actions; i++)
        err = buf_printf(b, "action %s %d %d\n", action_name(r->actions[i].kind), r->actions[i].micro,
                         r->actions[i].chunk);
    for (int i = 0; !err && i < r->n_calls; i++) {
        const struct recorded_call *c = &r->calls[i];
        err = buf_printf(b, "call %d %d %d %d %d %s %d %" PRId64 " %" PRId64 " %" PRId64 " %s\n", c->action,
                         (int)c->kind, (int)c->stream, c->layer, c->group, recorded_role_name(c->role), c->peer,
                         c->message, c->in, c->out, dtype_name(c->dtype));
    }
    return err;
}

static err_t print_times(const struct recorded *r, struct buf *b)
{
    err_t err = OK;
    for (int i = 0; !err && i < r->n_step; i++) {
        const struct recorded_step *s = &r->step[i];
        err = buf_printf(b, "step %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64 "\n", s->step, s->from,
                         s->to, s->rss_bytes, s->device_bytes);
    }
    for (int i = 0; !err && i < r->n_hosts; i++) {
        const struct recorded_host *h = &r->hosts[i];
        err = buf_printf(b, "host %d %d %" PRId64 " %" PRId64 "\n", (int)h->kind, h->step, h->from, h->to - h->from);
    }
    for (int i = 0; !err && i < r->n_events; i++) {
        const struct recorded_event *e = &r->events[i];
        err = buf_printf(b, "%d %d %" PRId64 " %" PRId64 "\n", e->call, e->step, e->from, e->to - e->from);
    }
    for (int i = 0; !err && i < OP_KIND_COUNT; i++)
        if (r->total_calls[i])
            err = buf_printf(b, "total %d %" PRId64 " %" PRId64 "\n", i, r->total_calls[i], r->total_ns[i]);
    return err ? err : buf_printf(b, "end\n");
}

err_t recorded_print(const struct recorded *r, struct buf *ret)
{
    err_t err = print_head(r, ret);
    err = err ? err : print_groups(r, ret);
    err = err ? err : print_calls(r, ret);
    return err ? err : print_times(r, ret);
}

/* ---- reading ---- */

/* A growing list; `n` and `at` are those of struct recorded. */
static void *grow(void *list, int n, size_t size)
{
    if (n & (n - 1)) /* the room is the next power of two */
        return list;
    return realloc(list, (n ? 2 * (size_t)n : 1) * size);
}

struct reader {
    const char *at; /* the rest of the text; every line ends in '\n' */
    int line;
    int clocks, n_ops;
    bool head, ended, out_of_memory;
    enum op_kind ops[OP_KIND_COUNT]; /* by the file's index */
    struct recorded *r;
};

/* Reads an integer and the space before it. */
static bool take(struct reader *f, int64_t lo, int64_t hi, int64_t *ret)
{
    const char *c = f->at;
    bool minus;
    uint64_t x = 0;
    if (*c == ' ')
        c++;
    minus = *c == '-';
    c += minus;
    if (*c < '0' || *c > '9')
        return false;
    for (; *c >= '0' && *c <= '9'; c++) {
        if (x > (uint64_t)INT64_MAX / 10 - 1)
            return false;
        x = 10 * x + (uint64_t)(*c - '0');
    }
    *ret = minus ? -(int64_t)x : (int64_t)x;
    f->at = c;
    return *ret >= lo && *ret <= hi;
}

static bool take_int(struct reader *f, int64_t lo, int64_t hi, int *ret)
{
    int64_t x;
    if (!take(f, lo, hi, &x))
        return false;
    *ret = (int)x;
    return true;
}

/* Reads a word and the space before it. */
static bool take_word(struct reader *f, char ret[MAX_NAME])
{
    size_t n;
    if (*f->at == ' ')
        f->at++;
    n = strcspn(f->at, " \n");
    if (!n || n >= MAX_NAME)
        return false;
    memcpy(ret, f->at, n);
    ret[n] = '\0';
    f->at += n;
    return true;
}

static bool take_this(struct reader *f, const char *word)
{
    char found[MAX_NAME];
    return take_word(f, found) && strcmp(found, word) == 0;
}

/* Reads one of `n` words. */
static bool take_name(struct reader *f, int n, const char *(*name_of)(int), int *ret)
{
    char word[MAX_NAME];
    if (!take_word(f, word))
        return false;
    for (*ret = 0; *ret < n; ++*ret)
        if (strcmp(name_of(*ret), word) == 0)
            return true;
    return false;
}

static const char *op_at(int i)
{
    return op_name((enum op_kind)i);
}
static const char *action_at(int i)
{
    return action_name((enum action_kind)i);
}
static const char *role_at(int i)
{
    return recorded_role_name((enum recorded_role)i);
}

static bool take_field(struct reader *f, const char *name, int64_t lo, int64_t hi, int64_t *ret)
{
    return take_this(f, name) && take(f, lo, hi, ret);
}

static bool read_job(struct reader *f)
{
    struct recorded *r = f->r;
    int64_t job, profile = 0, epoch = 0, rank = 0, world = 0, node = 0, pid = 0, steps = 0, device = 0;
    bool ok = !f->head && take(f, 0, INT64_MAX, &job) && take_field(f, "profile", 0, INT64_MAX, &profile) &&
              take_field(f, "epoch", 0, INT64_MAX, &epoch) && take_field(f, "rank", 0, RECORDED_MAX_WORLD - 1, &rank) &&
              take_field(f, "world", rank + 1, RECORDED_MAX_WORLD, &world) && take_field(f, "node", 0, world, &node) &&
              take_field(f, "pid", 0, INT32_MAX, &pid) && take_field(f, "first", 0, INT64_MAX, &r->first) &&
              take_field(f, "steps", 0, 1 << 20, &steps) && take_field(f, "lost", 0, INT64_MAX, &r->lost) &&
              take_field(f, "device", 0, 1, &device);
    if (!ok)
        return false;
    r->job = (uint64_t)job;
    r->profile = (uint64_t)profile;
    r->epoch = (uint64_t)epoch;
    r->rank = (int)rank;
    r->world = (int)world;
    r->node = (int)node;
    r->pid = (int)pid;
    r->steps = (int)steps;
    r->device = device;
    f->head = true;
    return true;
}

static bool read_clock(struct reader *f)
{
    if (f->clocks == 2)
        return false;
    struct recorded_clock *c = &f->r->clock[f->clocks++];
    const int64_t most = INT64_MAX / 4; /* 73 years, and sums of two do not overflow */
    return take(f, 0, most, &c->at) && take(f, 0, INT64_MAX, &c->wall) && take(f, -most, most, &c->lo) &&
           take(f, -most, most, &c->best) && take(f, -most, most, &c->hi);
}

static bool read_op(struct reader *f)
{
    int kind;
    if (f->n_ops == OP_KIND_COUNT || !take_name(f, OP_KIND_COUNT, op_at, &kind))
        return false;
    f->ops[f->n_ops++] = (enum op_kind)kind;
    return true;
}

/* Makes room for one more element of a list; its `n` is not changed. */
#define ROOM(f, list, n)                                                    \
    do {                                                                    \
        void *grown = grow((f)->r->list, (f)->r->n, sizeof(*(f)->r->list)); \
        if (!grown) {                                                       \
            (f)->out_of_memory = true;                                      \
            return false;                                                   \
        }                                                                   \
        (f)->r->list = grown;                                               \
    } while (0)

static bool read_group(struct reader *f)
{
    struct recorded_group g = {0};
    int64_t axes;
    ROOM(f, groups, n_groups);
    bool ok = f->head && take(f, 0, (1 << AXIS_COUNT) - 1, &axes);
    while (ok && *f->at != '\n') {
        int *ranks = grow(g.ranks, g.n, sizeof(*ranks));
        f->out_of_memory = !ranks;
        g.ranks = ranks ? ranks : g.ranks;
        ok = ranks && take_int(f, 0, f->r->world - 1, &g.ranks[g.n]) && g.n < f->r->world;
        g.n++;
    }
    if (!ok) {
        free(g.ranks);
        return false;
    }
    g.axes = (unsigned)axes;
    f->r->groups[f->r->n_groups++] = g;
    return true;
}

static bool read_action(struct reader *f)
{
    int kind;
    ROOM(f, actions, n_actions);
    struct recorded_action *a = &f->r->actions[f->r->n_actions];
    if (!take_name(f, ACT_COUNT, action_at, &kind) || !take_int(f, -1, INT32_MAX, &a->micro) ||
        !take_int(f, -1, INT32_MAX, &a->chunk))
        return false;
    a->kind = (enum action_kind)kind;
    f->r->n_actions++;
    return true;
}

static bool read_call(struct reader *f)
{
    struct recorded *r = f->r;
    char type[MAX_NAME];
    int kind, stream, role;
    ROOM(f, calls, n_calls);
    struct recorded_call *c = &r->calls[r->n_calls];
    if (!take_int(f, 0, r->n_actions - 1, &c->action) || !take_int(f, 0, f->n_ops - 1, &kind) ||
        !take_int(f, 0, STREAM_COUNT - 1, &stream) || !take_int(f, -1, INT32_MAX, &c->layer) ||
        !take_int(f, -1, r->n_groups - 1, &c->group) || !take_name(f, ROLE_COUNT, role_at, &role) ||
        !take_int(f, -1, r->world - 1, &c->peer) || !take(f, 0, INT64_MAX, &c->message) ||
        !take(f, 0, INT64_MAX, &c->in) || !take(f, 0, INT64_MAX, &c->out) || !take_word(f, type) ||
        (c->dtype = dtype_parse(type)) == DT_NONE)
        return false;
    c->kind = f->ops[kind];
    c->stream = (enum op_stream)stream;
    c->role = (enum recorded_role)role;
    r->n_calls++;
    return true;
}

static bool read_step(struct reader *f)
{
    ROOM(f, step, n_step);
    struct recorded_step *s = &f->r->step[f->r->n_step];
    if (!take(f, 0, INT64_MAX, &s->step) || !take(f, -MAX_NS, MAX_NS, &s->from) || !take(f, s->from, MAX_NS, &s->to) ||
        !take(f, 0, INT64_MAX, &s->rss_bytes) || !take(f, 0, INT64_MAX, &s->device_bytes))
        return false;
    f->r->n_step++;
    return true;
}

static bool take_span(struct reader *f, int32_t *ret_step, int64_t *ret_from, int64_t *ret_to)
{
    int64_t duration;
    if (!take_int(f, -1, 1 << 20, ret_step) || !take(f, -MAX_NS, MAX_NS, ret_from) || !take(f, 0, MAX_NS, &duration))
        return false;
    *ret_to = *ret_from + duration;
    return true;
}

static bool read_host(struct reader *f)
{
    int kind;
    ROOM(f, hosts, n_hosts);
    struct recorded_host *h = &f->r->hosts[f->r->n_hosts];
    if (!take_int(f, 0, HOST_COUNT - 1, &kind) || !take_span(f, &h->step, &h->from, &h->to))
        return false;
    h->kind = (enum recorded_host_kind)kind;
    f->r->n_hosts++;
    return true;
}

static bool read_event(struct reader *f)
{
    ROOM(f, events, n_events);
    struct recorded_event *e = &f->r->events[f->r->n_events];
    if (!take_int(f, 0, f->r->n_calls - 1, &e->call) || !take_span(f, &e->step, &e->from, &e->to))
        return false;
    f->r->n_events++;
    return true;
}

static bool read_total(struct reader *f)
{
    int kind;
    return take_int(f, 0, f->n_ops - 1, &kind) && take(f, 0, INT64_MAX, &f->r->total_calls[f->ops[kind]]) &&
           take(f, 0, INT64_MAX, &f->r->total_ns[f->ops[kind]]);
}

static bool read_end(struct reader *f)
{
    f->ended = f->head && f->clocks == 2;
    return f->ended;
}

static const struct {
    const char *word;
    bool (*read)(struct reader *f);
} lines[] = {{"call", read_call}, {"host", read_host},   {"step", read_step},   {"action", read_action},
             {"op", read_op},     {"group", read_group}, {"total", read_total}, {"clock", read_clock},
             {"job", read_job},   {"end", read_end}};

static bool read_line(struct reader *f)
{
    char word[MAX_NAME];
    if (*f->at >= '0' && *f->at <= '9')
        return read_event(f);
    if (!take_word(f, word))
        return false;
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
        if (strcmp(lines[i].word, word) == 0)
            return lines[i].read(f);
    return false;
}

err_t recorded_read(const char *text, size_t len, const char *name, struct recorded *ret, struct why *why)
{
    static const char head[] = "dtd profile 1\n";
    const size_t skip = sizeof(head) - 1;
    struct recorded r = {0};
    struct reader f = {.line = 2, .r = &r};
    if (len < skip || memcmp(text, head, skip) != 0 || text[len - 1] != '\n' || memchr(text, 0, len))
        return why_set(why, ERR_INVALID, "%s: not a complete profile; let `dtctl profile` write it again", name);
    for (f.at = text + skip; f.at < text + len && !f.ended; f.at++, f.line++)
        if (!read_line(&f) || *f.at != '\n')
            break;
    if (f.ended && f.at == text + len) {
        *ret = r;
        return OK;
    }
    recorded_fini(&r);
    if (f.out_of_memory)
        return why_set(why, ERR_NOMEM, "%s: out of memory for its lines", name);
    return why_set(why, ERR_INVALID, "%s:%d: not a line of a profile at this place; let `dtctl profile` write it again",
                   name, f.line);
}
