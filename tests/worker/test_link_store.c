/* The rendezvous store over a fake control that exits and restarts empty. Two links in one process are two ranks. The
 * fake runs on a loop in a thread; a test passes small functions to be run there. */
#include "tests/lib/test.h"

#include "common/base/clock.h"
#include "common/rpc/methods.h"
#include "daemon/control/job/rendezvous.h"
#include "proto/worker.pb-c.h"
#include "worker/link/link.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/socket.h>
#include <sys/un.h>

#define RANKS 2

struct pending_get {
    struct rendezvous_wait wait; /* first */
    struct fake *fake;
    struct rpc_call *call;
};

struct fake {
    pthread_t thread;
    uv_loop_t loop;
    uv_async_t wake;
    int fd;
    struct rpc_listener *listener;
    struct rpc_method methods[RPC_METHOD_COUNT];
    struct rpc_conn *conns[16];
    int n_conns, n_puts, n_gets;
    bool ignores_puts; /* puts get no answer */
    struct rpc_call *attend[RANKS];
    struct rendezvous store;

    pthread_mutex_t mu;
    pthread_cond_t done;
    void (*fn)(struct fake *f, int64_t arg);
    int64_t arg;
    bool stop;
    struct link *link[RANKS];
};

/* ---- handlers of the fake ---- */

static void on_hello(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    (void)owner;
    const Dtd__WorkerHello *h = (const Dtd__WorkerHello *)(const void *)request;
    Dtd__Empty empty = DTD__EMPTY__INIT;
    rpc_conn_set_data(rpc_call_conn(call), (void *)(intptr_t)h->slot);
    rpc_reply(call, &empty.base);
}

static void attend_gone(void *arg)
{
    *(struct rpc_call **)arg = NULL;
}

static void on_attend(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    (void)request;
    struct fake *f = owner;
    intptr_t slot = (intptr_t)rpc_conn_data(rpc_call_conn(call));
    f->attend[slot] = call;
    rpc_call_on_cancel(call, attend_gone, &f->attend[slot]);
}

static void on_report(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    (void)owner, (void)request;
    Dtd__Empty empty = DTD__EMPTY__INIT;
    rpc_reply(call, &empty.base);
}

static void put_gone(void *arg)
{
    (void)arg;
}

static void on_put(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct fake *f = owner;
    const Dtd__StorePutRequest *m = (const Dtd__StorePutRequest *)(const void *)request;
    Dtd__Empty empty = DTD__EMPTY__INIT;
    f->n_puts++;
    if (f->ignores_puts) {
        rpc_call_on_cancel(call, put_gone, NULL);
        return;
    }
    err_t err = rendezvous_put(&f->store, (struct rendezvous_bytes){m->key, strlen(m->key)},
                               (struct rendezvous_bytes){m->value.data, m->value.len});
    if (err)
        rpc_fail(call, err, "refused %s", m->key);
    else
        rpc_reply(call, &empty.base);
}

static void reply_value(struct rpc_call *call, struct rendezvous_bytes value)
{
    Dtd__StoreValue v = DTD__STORE_VALUE__INIT;
    v.value = (ProtobufCBinaryData){value.len, (uint8_t *)(uintptr_t)value.data};
    rpc_reply(call, &v.base);
}

static void get_done(struct rendezvous_wait *w, err_t err, struct rendezvous_bytes value)
{
    struct pending_get *g = (struct pending_get *)w;
    if (err)
        rpc_fail(g->call, err, "nobody came");
    else
        reply_value(g->call, value);
    free(g);
}

static void get_gone(void *arg)
{
    struct pending_get *g = arg;
    rendezvous_wait_drop(&g->fake->store, &g->wait);
    free(g);
}

static void on_get(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct fake *f = owner;
    const Dtd__StoreGetRequest *m = (const Dtd__StoreGetRequest *)(const void *)request;
    const struct rendezvous_bytes key = {m->key, strlen(m->key)};
    struct rendezvous_bytes value;
    f->n_gets++;
    if (rendezvous_get(&f->store, key, &value) == OK) {
        reply_value(call, value);
        return;
    }
    struct pending_get *g = calloc(1, sizeof(*g));
    *g = (struct pending_get){.wait = {.deadline_ms = clock_mono_ms() + m->timeout_ms, .done = get_done}, f, call};
    if (rendezvous_wait(&f->store, key, &g->wait))
        abort();
    rpc_call_on_cancel(call, get_gone, g);
}

static const struct rpc_binding bindings[] = {{WORKER_HELLO, on_hello},
                                              {WORKER_COMMANDS, on_attend},
                                              {WORKER_REPORT, on_report},
                                              {WORKER_STORE_PUT, on_put},
                                              {WORKER_STORE_GET, on_get}};

/* ---- its thread ---- */

static void conn_closed(void *owner, struct rpc_conn *conn)
{
    struct fake *f = owner;
    for (int i = 0; i < f->n_conns; i++)
        if (f->conns[i] == conn)
            f->conns[i] = f->conns[--f->n_conns];
}

static void accepted(void *owner, int fd, const struct rpc_peer *peer)
{
    (void)peer;
    struct fake *f = owner;
    const struct rpc_conn_config config = {
        .loop = &f->loop, .methods = f->methods, .n_methods = RPC_METHOD_COUNT, .owner = f, .on_close = conn_closed};
    if (f->n_conns == 16 || rpc_conn_open(&config, fd, RPC_ROLE_ANY | RPC_ROLE_WORKER, &f->conns[f->n_conns]) != OK)
        abort();
    f->n_conns++;
}

static void drop_conns(struct fake *f, int64_t arg)
{
    (void)arg;
    for (int i = 0; i < f->n_conns; i++)
        rpc_conn_close(f->conns[i]);
}

/* Starts a new control, with none of the state of the last one. */
static void restart_empty(struct fake *f, int64_t arg)
{
    drop_conns(f, arg);
    rendezvous_clear(&f->store, ERR_CLOSED);
}

static void expire(struct fake *f, int64_t arg)
{
    rendezvous_expire(&f->store, clock_mono_ms() + arg);
}

static void be_deaf(struct fake *f, int64_t arg)
{
    f->ignores_puts = arg != 0;
}

static void send_command(struct fake *f, Dtd__WorkerCommand__Kind kind, uint64_t epoch)
{
    Dtd__WorkerCommand c = DTD__WORKER_COMMAND__INIT;
    c.kind = kind;
    c.has_epoch = c.has_rank = c.has_world = true;
    c.epoch = epoch;
    c.world = RANKS;
    c.spec_yaml = "name: x";
    for (c.rank = 0; c.rank < RANKS; c.rank++)
        if (f->attend[c.rank] && rpc_item(f->attend[c.rank], &c.base))
            abort();
}

static void send_start(struct fake *f, int64_t epoch)
{
    send_command(f, DTD__WORKER_COMMAND__KIND__START, (uint64_t)epoch);
}

/* Ends the epoch as control does: waiting gets receive an error. */
static void send_end(struct fake *f, int64_t epoch)
{
    send_command(f, DTD__WORKER_COMMAND__KIND__END, (uint64_t)epoch);
    rendezvous_clear(&f->store, ERR_STALE);
}

static void only_stale(struct fake *f, int64_t arg)
{
    (void)arg;
    rendezvous_clear(&f->store, ERR_STALE);
}

static void woken(uv_async_t *wake)
{
    struct fake *f = wake->data;
    pthread_mutex_lock(&f->mu);
    if (f->fn)
        f->fn(f, f->arg);
    f->fn = NULL;
    if (f->stop) {
        rpc_listener_close(f->listener);
        restart_empty(f, 0);
        uv_close((uv_handle_t *)wake, NULL);
    }
    pthread_cond_broadcast(&f->done);
    pthread_mutex_unlock(&f->mu);
}

static void *fake_main(void *arg)
{
    struct fake *f = arg;
    uv_run(&f->loop, UV_RUN_DEFAULT);
    return NULL;
}

static void fake_do(struct fake *f, void (*fn)(struct fake *f, int64_t arg), int64_t arg)
{
    pthread_mutex_lock(&f->mu);
    f->fn = fn;
    f->arg = arg;
    uv_async_send(&f->wake);
    while (f->fn)
        pthread_cond_wait(&f->done, &f->mu);
    pthread_mutex_unlock(&f->mu);
}

static int64_t looked;

static void look_attended(struct fake *f, int64_t arg)
{
    (void)arg;
    looked = (f->attend[0] != NULL) + (f->attend[1] != NULL);
}

static void look_keys(struct fake *f, int64_t arg)
{
    (void)arg;
    looked = f->store.n_keys;
}

static void look_gets(struct fake *f, int64_t arg)
{
    (void)arg;
    looked = f->n_gets;
}

static void look_puts(struct fake *f, int64_t arg)
{
    (void)arg;
    looked = f->n_puts;
}

static void wait_until(struct fake *f, void (*look)(struct fake *f, int64_t arg), int64_t value)
{
    for (int64_t deadline = clock_mono_ms() + 10000; clock_mono_ms() < deadline; usleep(2000)) {
        fake_do(f, look, 0);
        if (looked >= value)
            return;
    }
    fail_msg("timed out: %lld instead of %lld", (long long)looked, (long long)value);
}

static void begin(struct fake *f, uint64_t epoch)
{
    struct link_epoch e;
    wait_until(f, look_attended, RANKS);
    fake_do(f, send_start, (int64_t)epoch);
    for (int r = 0; r < RANKS; r++) {
        assert_ok(link_next(f->link[r], &e));
        assert_int_equal(e.epoch, epoch);
        link_epoch_fini(&e);
    }
}

static struct fake *fake_start(void)
{
    struct fake *f = calloc(1, sizeof(*f));
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    signal(SIGPIPE, SIG_IGN);
    rendezvous_init(&f->store);
    rpc_methods_bind(bindings, 5, f->methods);
    uv_loop_init(&f->loop);
    uv_async_init(&f->loop, &f->wake, woken);
    f->wake.data = f;
    pthread_mutex_init(&f->mu, NULL);
    pthread_cond_init(&f->done, NULL);
    snprintf(a.sun_path, sizeof(a.sun_path), "%s/control.sock", test_tmpdir());
    f->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(f->fd, (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(listen(f->fd, 16), 0);
    assert_ok(rpc_listen(&f->loop, f->fd, accepted, f, &f->listener));
    assert_int_equal(pthread_create(&f->thread, NULL, fake_main, f), 0);
    for (int r = 0; r < RANKS; r++) {
        struct link_config config = {.job = "7", .slot = r};
        snprintf(config.ticket.control, sizeof(config.ticket.control), "%s", a.sun_path);
        snprintf(config.ticket.io, sizeof(config.ticket.io), "%s/no.sock", test_tmpdir());
        assert_ok(link_start(&config, &f->link[r]));
    }
    begin(f, 3);
    return f;
}

static void fake_stop(struct fake *f)
{
    for (int r = 0; r < RANKS; r++) {
        link_leave(f->link[r]);
        link_stop(f->link[r]);
    }
    pthread_mutex_lock(&f->mu);
    f->stop = true;
    uv_async_send(&f->wake);
    pthread_mutex_unlock(&f->mu);
    pthread_join(f->thread, NULL);
    assert_int_equal(uv_loop_close(&f->loop), 0);
    close(f->fd);
    free(f);
}

/* ---- calls of a rank ---- */

static err_t put(struct fake *f, int rank, const char *key, const char *value, struct why *why)
{
    const struct comm_store *s = link_store(f->link[rank]);
    return s->put(s->arg, key, value, strlen(value), why);
}

static err_t get(struct fake *f, int rank, const char *key, int64_t timeout_ms, char ret[64], struct why *why)
{
    const struct comm_store *s = link_store(f->link[rank]);
    size_t bytes = 63;
    err_t err = s->get(s->arg, key, timeout_ms, ret, &bytes, why);
    ret[err ? 0 : bytes] = '\0';
    return err;
}

/* A get in its own thread, in place of a rank's compute thread. */
struct getter {
    struct fake *fake;
    int rank;
    bool puts;
    pthread_t thread;
    char value[64];
    struct why why;
    err_t err;
};

static void *ask(void *arg)
{
    struct getter *a = arg;
    a->err = a->puts ? put(a->fake, a->rank, "key", "value", &a->why)
                     : get(a->fake, a->rank, "key", 20000, a->value, &a->why);
    return NULL;
}

static void getter_start(struct getter *a, struct fake *f, int rank, bool puts)
{
    *a = (struct getter){.fake = f, .rank = rank, .puts = puts};
    assert_int_equal(pthread_create(&a->thread, NULL, ask, a), 0);
}

/* ---- cases ---- */

TEST(one_rank_gets_what_another_puts)
{
    struct fake *f = fake_start();
    struct getter a;
    char value[64];
    struct why why;
    assert_ok(put(f, 0, "nccl/id", "an id", &why));
    assert_ok(get(f, 1, "nccl/id", 1000, value, &why));
    assert_string_equal("an id", value);
    assert_ok(put(f, 0, "nccl/id", "an id", &why));
    assert_err(ERR_EXISTS, put(f, 1, "nccl/id", "another", &why));
    assert_string_equal("refused nccl/id", why.text);
    getter_start(&a, f, 1, false);
    wait_until(f, look_gets, 2);
    assert_ok(put(f, 0, "key", "late", &why));
    pthread_join(a.thread, NULL);
    assert_ok(a.err);
    assert_string_equal("late", a.value);
    fake_stop(f);
}

TEST(a_control_that_restarts_empty_gets_all_puts_again)
{
    struct fake *f = fake_start();
    struct getter a;
    struct why why;
    char key[32], value[64];
    for (int i = 0; i < 200; i++) { /* more than are in flight at a time */
        snprintf(key, sizeof(key), "key/%d", i);
        assert_ok(put(f, 0, key, key, &why));
    }
    getter_start(&a, f, 1, false);
    wait_until(f, look_gets, 1);
    fake_do(f, restart_empty, 0);
    wait_until(f, look_keys, 200);
    wait_until(f, look_gets, 2); /* the get is repeated too */
    assert_ok(put(f, 0, "key", "after", &why));
    pthread_join(a.thread, NULL);
    assert_ok(a.err);
    assert_string_equal("after", a.value);
    assert_ok(get(f, 1, "key/7", 1000, value, &why));
    assert_string_equal("key/7", value);
    fake_do(f, restart_empty, 0);
    assert_ok(get(f, 1, "key/7", 10000, value, &why)); /* the order of put and get does not matter */
    fake_stop(f);
}

TEST(a_put_without_an_answer_is_repeated)
{
    struct fake *f = fake_start();
    struct getter a;
    char value[64];
    fake_do(f, be_deaf, 1);
    getter_start(&a, f, 0, true);
    wait_until(f, look_puts, 1);
    fake_do(f, be_deaf, 0);
    fake_do(f, restart_empty, 0);
    pthread_join(a.thread, NULL);
    assert_ok(a.err);
    assert_ok(get(f, 1, "key", 1000, value, NULL));
    assert_string_equal("value", value);
    fake_stop(f);
}

TEST(the_end_of_the_epoch_ends_the_waiting)
{
    struct fake *f = fake_start();
    struct getter a, b;
    char value[64];
    struct why why;
    assert_ok(put(f, 0, "old", "of epoch 3", &why));
    getter_start(&a, f, 1, false);
    wait_until(f, look_gets, 1);
    fake_do(f, be_deaf, 1);
    getter_start(&b, f, 0, true);
    wait_until(f, look_puts, 2);
    fake_do(f, send_end, 3);
    pthread_join(a.thread, NULL);
    pthread_join(b.thread, NULL);
    assert_err(ERR_CANCELED, a.err);
    assert_err(ERR_CANCELED, b.err);
    assert_err(ERR_CANCELED, put(f, 0, "x", "y", &why));
    for (int r = 0; r < RANKS; r++)
        link_leave(f->link[r]);
    fake_do(f, be_deaf, 0);
    begin(f, 4);
    fake_do(f, restart_empty, 0); /* puts of epoch 3 are not sent in epoch 4 */
    wait_until(f, look_attended, RANKS);
    assert_ok(put(f, 0, "new", "of epoch 4", &why));
    fake_do(f, look_keys, 0);
    assert_int_equal(1, looked);
    assert_ok(get(f, 1, "new", 1000, value, &why));
    fake_stop(f);
}

/* Control's reply that the epoch has ended may arrive before END. */
TEST(a_stale_epoch_is_a_canceled_one)
{
    struct fake *f = fake_start();
    struct getter a;
    getter_start(&a, f, 1, false);
    wait_until(f, look_gets, 1);
    fake_do(f, only_stale, 0);
    pthread_join(a.thread, NULL);
    assert_err(ERR_CANCELED, a.err);
    fake_stop(f);
}

TEST(a_get_waits_for_its_time)
{
    struct fake *f = fake_start();
    struct getter a;
    char value[64];
    struct why why;
    getter_start(&a, f, 1, false);
    wait_until(f, look_gets, 1);
    fake_do(f, expire, 19000);
    usleep(20000);
    fake_do(f, expire, 21000);
    pthread_join(a.thread, NULL);
    assert_err(ERR_TIMEOUT, a.err);
    assert_string_equal("nobody came", a.why.text);
    int64_t start = clock_mono_ms();
    assert_err(ERR_TIMEOUT, get(f, 0, "never", 100, value, &why)); /* the fake's own deadlines never expire */
    assert_in_range(clock_mono_ms() - start, 100, 6000);
    assert_non_null(strstr(why.text, "never"));
    fake_stop(f);
}

TEST(keys_and_values_that_are_too_long_are_refused)
{
    struct fake *f = fake_start();
    const struct comm_store *s = link_store(f->link[0]);
    static char big[4200];
    char value[64];
    size_t small = 2;
    struct why why;
    memset(big, 'k', sizeof(big) - 1);
    assert_err(ERR_INVALID, put(f, 0, big, "v", &why));
    assert_err(ERR_INVALID, put(f, 0, "", "v", &why));
    assert_err(ERR_INVALID, put(f, 0, "a b", "v", &why));
    assert_err(ERR_INVALID, put(f, 0, "big", big, &why));
    assert_err(ERR_INVALID, get(f, 0, "\n", 100, value, &why));
    assert_ok(put(f, 0, "key", "value", &why));
    assert_err(ERR_LIMIT, s->get(s->arg, "key", 100, value, &small, &why));
    assert_non_null(strstr(why.text, "5 bytes"));
    fake_stop(f);
}
