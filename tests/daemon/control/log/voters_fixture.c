#include "tests/daemon/control/log/voters_fixture.h"

#include "common/base/clock.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/socket.h>

#define PATIENCE_MS 60000

/* libraft 0.22.1 leaks the configurations of its snapshots and changes; fixed after it. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libraft.so";
}

/* ---- the machine: the list of all numbers ---- */

static void check_prefix(struct voters *c, const struct voter *v)
{
    for (int i = 1; i <= VOTERS_MAX; i++) {
        const struct voter *w = &c->v[i];
        int n = v->n_history < w->n_history ? v->n_history : w->n_history;
        if (n && v->history[n - 1] != w->history[n - 1])
            fail_msg("histories differ at %d: %u and %u", n, v->history[n - 1], w->history[n - 1]);
    }
}

static err_t apply(void *arg, const void *record, size_t len, uint64_t index, void *result)
{
    struct voter *v = arg;
    uint32_t number;
    assert_true(len >= sizeof(number) && index > 0);
    memcpy(&number, record, sizeof(number));
    assert_true(v->n_history < HISTORY_MAX);
    v->history[v->n_history++] = number;
    check_prefix(v->all, v);
    memcpy(result, &number, sizeof(number));
    return OK;
}

struct numbers {
    size_t len;
    uint32_t history[];
};

static struct numbers *numbers_copy(const void *data, size_t len)
{
    struct numbers *n = malloc(sizeof(*n) + len);
    assert_non_null(n);
    n->len = len;
    memcpy(n->history, data, len);
    return n;
}

static err_t freeze(void *arg, void **ret)
{
    struct voter *v = arg;
    v->snapshots++;
    *ret = numbers_copy(v->history, (size_t)v->n_history * sizeof(v->history[0]));
    return OK;
}

static err_t write_frozen(const void *frozen, struct pieces *ret)
{
    const struct numbers *n = frozen;
    return pieces_borrow(ret, n->history, n->len);
}

static err_t read_state(const void *data, size_t len, void **ret)
{
    assert_true(len % sizeof(uint32_t) == 0 && len <= HISTORY_MAX * sizeof(uint32_t));
    *ret = numbers_copy(data, len);
    return OK;
}

static void adopt(void *arg, void *fresh)
{
    struct voter *v = arg;
    const struct numbers *n = fresh;
    v->restores++;
    memcpy(v->history, n->history, n->len);
    v->n_history = (int)(n->len / sizeof(v->history[0]));
    free(fresh);
    check_prefix(v->all, v);
}

static void on_ready(void *owner, err_t err, const char *why)
{
    struct voter *v = owner;
    if (err)
        fail_msg("%s does not open: %s", v->dir, why);
    v->ready = true;
}

static void on_role(void *owner)
{
    struct voter *v = owner;
    struct voters *c = v->all;
    v->roles++;
    if (!v->log || !log_leads(v->log)) {
        assert_int_equal(0, v->n_open); /* a former leader has answered all its proposals */
        return;
    }
    uint64_t term = log_term(v->log), id = (uint64_t)(v - c->v);
    assert_true(term < 4096);
    if (c->leader_of_term[term] && c->leader_of_term[term] != id)
        fail_msg("%d and %d lead term %d", (int)c->leader_of_term[term], (int)id, (int)term);
    c->leader_of_term[term] = id;
}

/* ---- the network ---- */

static void end_closed(uv_handle_t *handle)
{
    struct voter_link *l = handle->data;
    if (--l->handles == 0)
        free(l);
}

static void link_close(struct voter_link *l)
{
    if (l->closing)
        return;
    l->closing = true;
    LIST_REMOVE(l, entry);
    for (int k = 0; k < 2; k++)
        uv_close((uv_handle_t *)&l->ends[k], end_closed);
}

static void alloc(uv_handle_t *handle, size_t hint, uv_buf_t *buf)
{
    (void)handle;
    *buf = uv_buf_init(malloc(hint), (unsigned)hint);
}

static void written(uv_write_t *req, int status)
{
    struct voter_link *l = req->handle->data;
    free(req->data);
    free(req);
    if (status)
        link_close(l);
}

static void end_read(uv_stream_t *stream, ssize_t n, const uv_buf_t *buf)
{
    struct voter_link *l = stream->data;
    uv_stream_t *other = (uv_stream_t *)&l->ends[stream == (uv_stream_t *)&l->ends[0]];
    uv_write_t *req = n > 0 ? malloc(sizeof(*req)) : NULL;
    if (req) {
        uv_buf_t out = uv_buf_init(buf->base, (unsigned)n);
        req->data = buf->base;
        assert_int_equal(0, uv_write(req, other, &out, 1, written));
        return;
    }
    free(buf->base);
    if (n < 0)
        link_close(l);
}

/* Connects the fixture's ends of two socketpairs. */
static void link_open(struct voters *c, int from, int to, const int fds[2])
{
    struct voter_link *l = calloc(1, sizeof(*l));
    assert_non_null(l);
    l->from = from;
    l->to = to;
    l->handles = 2;
    for (int k = 0; k < 2; k++) {
        assert_int_equal(0, uv_pipe_init(&c->loop, &l->ends[k], 0));
        assert_int_equal(0, uv_pipe_open(&l->ends[k], fds[k]));
        l->ends[k].data = l;
        assert_int_equal(0, uv_read_start((uv_stream_t *)&l->ends[k], alloc, end_read));
    }
    LIST_INSERT_HEAD(&c->links, l, entry);
}

/* Closes the links between a and b; b 0: between a and all others. */
static void links_cut(struct voters *c, int a, int b)
{
    struct voter_link *next;
    for (struct voter_link *l = LIST_FIRST(&c->links); l; l = next) {
        next = LIST_NEXT(l, entry);
        bool ours = b ? (l->from == a && l->to == b) || (l->from == b && l->to == a) : l->from == a || l->to == a;
        if (ours)
            link_close(l);
    }
}

struct connecting {
    uv_timer_t timer;
    struct voters *c;
    struct log_connect *request;
    int from, to;
};

static void connecting_closed(uv_handle_t *handle)
{
    free(handle->data);
}

static void connecting_over(uv_timer_t *timer)
{
    struct connecting *x = timer->data;
    struct voters *c = x->c;
    struct voter *to = &c->v[x->to];
    int near[2], far[2]; /* 0: libraft's end, 1: the fixture's */
    assert_int_equal(0, socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, near));
    assert_int_equal(0, socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, far));
    bool fits = !c->cut[x->from][x->to] && to->log && !to->closing;
    if (fits && log_accept(to->log, (uint64_t)x->from, (uint64_t)x->to, far[0]) == OK) {
        link_open(c, x->from, x->to, (int[2]){near[1], far[1]});
        log_connected(x->request, near[0]);
    } else {
        for (int k = 0; k < 2; k++) {
            close(near[k]);
            close(far[k]);
        }
        log_connected(x->request, -1);
    }
    uv_close((uv_handle_t *)timer, connecting_closed);
}

static err_t connect_to(void *arg, struct log_connect *request, uint64_t id)
{
    struct voter *v = arg;
    struct connecting *x = calloc(1, sizeof(*x));
    assert_non_null(x);
    *x = (struct connecting){.c = v->all, .request = request, .from = (int)(v - v->all->v), .to = (int)id};
    uv_timer_init(&v->all->loop, &x->timer);
    x->timer.data = x;
    return uv_timer_start(&x->timer, connecting_over, 1, 0) ? ERR_INTERNAL : OK;
}

void voters_cut(struct voters *c, int a, int b, bool is_cut)
{
    c->cut[a][b] = c->cut[b][a] = is_cut;
    if (is_cut)
        links_cut(c, a, b);
}

void voters_isolate(struct voters *c, int id, bool is_cut)
{
    for (int i = 1; i <= VOTERS_MAX; i++)
        if (i != id)
            voters_cut(c, id, i, is_cut);
}

/* ---- start, crash ---- */

void voters_open(struct voters *c)
{
    signal(SIGPIPE, SIG_IGN);
    assert_int_equal(0, uv_loop_init(&c->loop));
    c->next = 1;
    LIST_INIT(&c->links);
    for (int i = 1; i <= VOTERS_MAX; i++) {
        c->v[i].all = c;
        c->v[i].history = calloc(HISTORY_MAX, sizeof(uint32_t));
        if (!c->v[i].dir[0])
            snprintf(c->v[i].dir, sizeof(c->v[i].dir), "%s/%d", test_tmpdir(), i);
    }
}

void voter_start(struct voters *c, int id)
{
    struct voter *v = &c->v[id];
    assert_true(!v->log);
    v->ready = v->closing = false;
    v->n_history = 0; /* its history is on its disk */
    const struct log_config config = {
        .loop = &c->loop,
        .dir = v->dir,
        .id = (uint64_t)id,
        .joins = id > 1,
        .peers = {v, connect_to},
        .machine = {v, apply, freeze, write_frozen, free, read_state, adopt, free},
        .owner = v,
        .on_ready = on_ready,
        .on_role = on_role,
        .segment_bytes = 256u << 10,
        .reserve_bytes = 512u << 10,
        .snapshot_threshold = c->threshold,
        .snapshot_trailing = c->threshold / 4,
    };
    assert_ok(log_start(&config, &v->log));
}

static void on_closed(void *owner)
{
    ((struct voter *)owner)->log = NULL;
}

static bool none_closes(struct voters *c)
{
    for (int i = 1; i <= VOTERS_MAX; i++)
        if (c->v[i].closing && c->v[i].log)
            return false;
    return true;
}

void voter_crash(struct voters *c, int id)
{
    c->v[id].closing = true;
    links_cut(c, id, 0);
    log_close(c->v[id].log, on_closed);
    voters_wait(c, none_closes, "a log to close");
}

static void tick(uv_timer_t *timer)
{
    (void)timer;
}

static bool run(struct voters *c, bool (*done)(struct voters *c), int ms)
{
    uv_timer_t timer;
    uv_timer_init(&c->loop, &timer);
    uv_timer_start(&timer, tick, 1, 1);
    int64_t end = clock_mono_ms() + ms;
    bool is_done;
    while (!(is_done = done && done(c)) && clock_mono_ms() < end)
        uv_run(&c->loop, UV_RUN_ONCE);
    uv_close((uv_handle_t *)&timer, NULL);
    uv_run(&c->loop, UV_RUN_NOWAIT);
    return is_done;
}

void voters_wait(struct voters *c, bool (*done)(struct voters *c), const char *what)
{
    if (run(c, done, PATIENCE_MS))
        return;
    for (int i = 1; i <= VOTERS_MAX; i++)
        if (c->v[i].log)
            print_message("%d: %s term %d index %d leads %d leader %d, %d numbers; %s\n", i, log_state(c->v[i].log),
                          (int)log_term(c->v[i].log), (int)log_index(c->v[i].log), log_leads(c->v[i].log),
                          (int)log_leader(c->v[i].log), c->v[i].n_history,
                          log_warning(c->v[i].log) ? log_warning(c->v[i].log) : "no warning");
    fail_msg("waited too long for %s", what);
}

void voters_run_ms(struct voters *c, int ms)
{
    run(c, NULL, ms);
}

int voters_leader(struct voters *c)
{
    int leader = 0, n = 0;
    uint64_t term = 0;
    for (int i = 1; i <= VOTERS_MAX; i++) {
        const struct voter *v = &c->v[i];
        if (!v->log || v->closing || !log_leads(v->log))
            continue;
        n++;
        if (log_term(v->log) > term) { /* an isolated leader needs a moment to step down */
            leader = i;
            term = log_term(v->log);
        }
    }
    return n ? leader : 0;
}

static bool has_leader(struct voters *c)
{
    return voters_leader(c) != 0;
}

void voters_wait_leader(struct voters *c)
{
    voters_wait(c, has_leader, "a leader");
}

/* ---- changes ---- */

static void changed(void *arg, err_t err)
{
    struct voters *c = arg;
    assert_false(c->change_done);
    c->change_done = true;
    c->change_err = err;
}

static bool change_is_done(struct voters *c)
{
    return c->change_done;
}

err_t change_add(struct voters *c, struct log *log, int id)
{
    return log_add(log, (uint64_t)id, changed, c);
}

err_t change_voter(struct voters *c, struct log *log, int id)
{
    return log_assign(log, (uint64_t)id, LOG_VOTER, changed, c);
}

err_t change_spare(struct voters *c, struct log *log, int id)
{
    return log_assign(log, (uint64_t)id, LOG_SPARE, changed, c);
}

err_t change_remove(struct voters *c, struct log *log, int id)
{
    return log_remove(log, (uint64_t)id, changed, c);
}

err_t change_transfer(struct voters *c, struct log *log, int id)
{
    return log_transfer(log, (uint64_t)id, changed, c);
}

void voters_change(struct voters *c, err_t (*change)(struct voters *c, struct log *log, int id), int id)
{
    for (int attempt = 0; attempt < 200; attempt++) {
        voters_wait_leader(c);
        c->change_done = false;
        err_t err = change(c, c->v[voters_leader(c)].log, id);
        if (!err) {
            voters_wait(c, change_is_done, "a change of the voters");
            if (!c->change_err)
                return;
            err = c->change_err;
        }
        /* The change may have been committed, or the leader may have changed; the next attempt's result decides. */
        if (attempt && (err == ERR_EXISTS || err == ERR_INVALID || err == ERR_NOTFOUND))
            return;
        if (err != ERR_CANCELED && err != ERR_AGAIN && err != ERR_BUSY && err != ERR_TIMEOUT)
            fail_msg("change: %s", err_name(err));
        voters_run_ms(c, 50);
    }
    fail_msg("200 attempts to change the voters");
}

static bool all_ready(struct voters *c)
{
    for (int i = 1; i <= VOTERS_MAX; i++)
        if (c->v[i].log && !c->v[i].ready)
            return false;
    return true;
}

void voters_form(struct voters *c, int n)
{
    for (int i = 1; i <= n; i++)
        voter_start(c, i);
    voters_wait(c, all_ready, "logs to open");
    for (int i = 2; i <= n; i++) {
        voters_change(c, change_add, i);
        voters_change(c, change_voter, i);
    }
}

/* ---- proposals ---- */

struct proposal_arg {
    struct voters *c;
    struct voter *to;
    uint32_t number;
};

static void proposed(void *arg, err_t err, uint64_t index, const void *result)
{
    struct proposal_arg *a = arg;
    struct voters *c = a->c;
    uint32_t number = a->number;
    a->to->n_open--;
    free(a);
    assert_int_equal(0, c->answered[number]++);
    c->n_open--;
    if (err) {
        assert_true(err == ERR_CANCELED || err == ERR_NOSPACE);
        c->n_canceled++;
        return;
    }
    assert_memory_equal(result, &number, sizeof(number));
    assert_true(index > 0);
    c->acknowledged[number] = 1;
    c->n_acknowledged++;
}

bool voters_propose(struct voters *c, size_t padding)
{
    char record[65536];
    int leader = voters_leader(c);
    struct proposal_arg *a = leader ? malloc(sizeof(*a)) : NULL;
    if (!a)
        return false;
    assert_true(c->next < HISTORY_MAX && padding <= sizeof(record) - sizeof(c->next));
    memset(record, 0x5a, sizeof(record));
    memcpy(record, &c->next, sizeof(c->next));
    *a = (struct proposal_arg){c, &c->v[leader], c->next};
    err_t err = log_propose(c->v[leader].log, record, sizeof(c->next) + padding, proposed, a);
    if (err) {
        free(a);
        return false;
    }
    c->proposed[c->next++] = 1;
    c->v[leader].n_open++;
    c->n_open++;
    return true;
}

void voters_write(struct voters *c, int n, size_t padding)
{
    int want = c->n_acknowledged + n;
    int64_t end = clock_mono_ms() + PATIENCE_MS;
    while (c->n_acknowledged < want && clock_mono_ms() < end)
        if (c->n_open >= 32 || c->n_acknowledged + c->n_open >= want || !voters_propose(c, padding))
            run(c, NULL, 1);
    if (c->n_acknowledged < want)
        fail_msg("%d of %d proposals acknowledged in a minute", n - (want - c->n_acknowledged), n);
}

static bool all_equal(struct voters *c)
{
    int n = -1;
    for (int i = 1; i <= VOTERS_MAX; i++) {
        const struct voter *v = &c->v[i];
        if (!v->log)
            continue;
        if (n >= 0 && v->n_history != n)
            return false;
        n = v->n_history;
    }
    return !c->n_open;
}

void voters_agree(struct voters *c)
{
    voters_write(c, 1, 0); /* the leader has committed an entry of its term */
    voters_wait(c, all_equal, "equal histories");
    for (int i = 1; i <= VOTERS_MAX; i++) {
        const struct voter *v = &c->v[i];
        if (!v->log)
            continue;
        static uint8_t there[HISTORY_MAX];
        memset(there, 0, sizeof(there));
        for (int k = 0; k < v->n_history; k++) {
            assert_int_equal(0, there[v->history[k]]);
            assert_true(c->proposed[v->history[k]]);
            there[v->history[k]] = 1;
        }
        for (uint32_t k = 1; k < c->next; k++) {
            if (c->acknowledged[k] && !there[k])
                fail_msg("%u was acknowledged and is not in voter %d's history", k, i);
            assert_int_equal(1, c->answered[k]);
        }
    }
}

void voters_close(struct voters *c)
{
    for (int i = 1; i <= VOTERS_MAX; i++)
        if (c->v[i].log)
            voter_crash(c, i);
    for (int i = 1; i <= VOTERS_MAX; i++)
        links_cut(c, i, 0);
    uv_run(&c->loop, UV_RUN_DEFAULT);
    assert_int_equal(0, uv_loop_close(&c->loop));
    for (int i = 1; i <= VOTERS_MAX; i++)
        free(c->v[i].history);
}
