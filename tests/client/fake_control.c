/* Between start and stop the struct belongs to the loop's thread, except for the record of calls, which the lock
 * guards. */
#include "tests/client/fake_control.h"

#include "common/rpc/methods.h"
#include "proto/client.pb-c.h"
#include "tests/lib/test.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

struct fake_control {
    struct fake_script script;
    struct fake_seen seen;
    pthread_t thread;
    pthread_mutex_t lock; /* guards seen, ids, spec, parent */
    uv_loop_t loop;
    uv_async_t stop;
    int listen_fd, lock_fd;
    struct rpc_listener *listener;
    struct rpc_conn *conns[16];
    int n_conns;
    struct rpc_method methods[RPC_METHOD_COUNT];
    uint8_t ids[16][16];
    char spec[65536], parent[32];
    char spec_copy[65536], parent_copy[32]; /* copies for the test's thread */
};

static void conn_closed(void *owner, struct rpc_conn *conn)
{
    struct fake_control *f = owner;
    for (int i = 0; i < f->n_conns; i++)
        if (f->conns[i] == conn)
            f->conns[i] = f->conns[--f->n_conns];
}

static void accepted(void *owner, int fd, const struct rpc_peer *peer)
{
    struct fake_control *f = owner;
    const struct rpc_conn_config config = {
        .loop = &f->loop, .methods = f->methods, .n_methods = RPC_METHOD_COUNT, .owner = f, .on_close = conn_closed};
    (void)peer;
    if (f->n_conns == 16 || rpc_conn_open(&config, fd, RPC_ROLE_CLIENT, &f->conns[f->n_conns]))
        return;
    f->n_conns++;
}

static Dtd__Metric metric_of(int step)
{
    Dtd__Metric m = DTD__METRIC__INIT;
    m.step = step;
    m.loss = 5.0 / step;
    m.grad_norm = 1;
    m.lr = 1e-3;
    m.tokens_per_s = 1000;
    m.step_s = 0.01;
    m.workers = 2;
    m.epoch = 1;
    m.wall_ms = 1;
    return m;
}

static void status_fill(struct fake_control *f, Dtd__JobStatus *s, const char *state, int step)
{
    s->job = "7";
    s->name = "fake";
    s->state = (char *)state;
    s->reason = strcmp(state, "failed") == 0 ? "worker rank 1 exited with status 3" : NULL;
    s->epoch = 1;
    s->step = step;
    s->steps = f->script.steps;
    s->workers = 2;
    s->submitted_ms = 1;
    s->checkpoint_dir = (char *)(f->script.checkpoint_dir ? f->script.checkpoint_dir : "/nowhere");
    s->spec_yaml = (char *)f->script.spec_yaml;
    s->has_checkpoint_step = true;
    s->checkpoint_step = 10;
}

/* Records a Submit. Returns whether the connection is to be closed instead of a reply. */
static bool submit_record(struct fake_control *f, const Dtd__SubmitRequest *q)
{
    int i = 0;
    pthread_mutex_lock(&f->lock);
    snprintf(f->spec, sizeof(f->spec), "%s", q->spec_yaml);
    snprintf(f->parent, sizeof(f->parent), "%s", q->parent ? q->parent : "");
    while (i < f->seen.jobs && memcmp(f->ids[i], q->request_id.data, 16) != 0)
        i++;
    if (i == f->seen.jobs && i < 16)
        memcpy(f->ids[f->seen.jobs++], q->request_id.data, 16);
    bool drop = f->seen.submits++ < f->script.drop_submits;
    pthread_mutex_unlock(&f->lock);
    return drop;
}

static void on_submit(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    const Dtd__SubmitRequest *q = (const Dtd__SubmitRequest *)request;
    Dtd__SubmitReply reply = DTD__SUBMIT_REPLY__INIT;
    assert_int_equal(q->request_id.len, 16);
    if (submit_record(owner, q)) {
        struct rpc_conn *conn = rpc_call_conn(call);
        rpc_fail(call, ERR_CLOSED, "going down");
        rpc_conn_close(conn);
        return;
    }
    reply.job = "7";
    rpc_reply(call, &reply.base);
}

/* Increments a counter of `seen` and returns its old value. */
static int count(struct fake_control *f, int *counter)
{
    pthread_mutex_lock(&f->lock);
    int before = (*counter)++;
    pthread_mutex_unlock(&f->lock);
    return before;
}

static void on_status(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct fake_control *f = owner;
    Dtd__JobStatus s = DTD__JOB_STATUS__INIT;
    if (strcmp(((const Dtd__JobRequest *)request)->job, "7") != 0) {
        rpc_fail(call, ERR_NOTFOUND, "there is no job %s", ((const Dtd__JobRequest *)request)->job);
        return;
    }
    status_fill(f, &s, f->script.end_state, f->script.steps);
    rpc_reply(call, &s.base);
}

static void on_list(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct fake_control *f = owner;
    Dtd__JobStatus s = DTD__JOB_STATUS__INIT, *jobs[] = {&s};
    Dtd__JobList list = DTD__JOB_LIST__INIT;
    (void)request;
    status_fill(f, &s, f->script.end_state, f->script.steps);
    list.n_job = 1;
    list.job = jobs;
    rpc_reply(call, &list.base);
}

static void on_cancel(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct fake_control *f = owner;
    Dtd__JobStatus s = DTD__JOB_STATUS__INIT;
    (void)request;
    count(f, &f->seen.cancels);
    status_fill(f, &s, "stopping", 1);
    rpc_reply(call, &s.base);
}

static void watch_item(struct rpc_call *call, Dtd__JobStatus *s, Dtd__Metric *m)
{
    Dtd__WatchItem item = DTD__WATCH_ITEM__INIT;
    item.status = s;
    item.metric = m;
    assert_int_equal(rpc_item(call, &item.base), OK);
}

static void watcher_gone(void *arg)
{
    (void)arg;
}

static void on_watch(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct fake_control *f = owner;
    Dtd__JobStatus s = DTD__JOB_STATUS__INIT;
    bool drop = count(f, &f->seen.watches) < f->script.drop_watches;
    int first = drop ? 1 : f->script.steps / 2, last = drop ? f->script.steps / 2 : f->script.steps;
    (void)request;
    status_fill(f, &s, "running", first);
    watch_item(call, &s, NULL);
    for (int step = first; step <= last; step++) {
        Dtd__Metric m = metric_of(step);
        watch_item(call, NULL, &m);
    }
    if (drop) {
        struct rpc_conn *conn = rpc_call_conn(call);
        rpc_fail(call, ERR_CLOSED, "going down");
        rpc_conn_finish(conn);
        return;
    }
    if (f->script.hang && !fake_seen(f).cancels) {
        rpc_call_on_cancel(call, watcher_gone, NULL);
        return;
    }
    Dtd__JobStatus end = DTD__JOB_STATUS__INIT;
    status_fill(f, &end, f->script.end_state, f->script.steps);
    watch_item(call, &end, NULL);
    rpc_end(call);
}

static void on_metrics(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct fake_control *f = owner;
    const Dtd__MetricsRequest *q = (const Dtd__MetricsRequest *)request;
    bool drop = count(f, &f->seen.metrics) < f->script.drop_metrics;
    int64_t from = q->has_from_step && q->from_step > 1 ? q->from_step : 1;
    int64_t last = drop ? f->script.steps / 2 : f->script.steps;
    pthread_mutex_lock(&f->lock);
    f->seen.metrics_from = from;
    pthread_mutex_unlock(&f->lock);
    for (int64_t step = from; step <= last; step++) {
        if (f->script.thinned && step > 1 && step <= f->script.steps / 2 && step % 2)
            continue;
        Dtd__Metric m = metric_of((int)step);
        assert_int_equal(rpc_item(call, &m.base), OK);
    }
    if (drop) {
        struct rpc_conn *conn = rpc_call_conn(call);
        rpc_fail(call, ERR_CLOSED, "going down");
        rpc_conn_finish(conn);
    } else {
        rpc_end(call);
    }
}

static void on_checkpoints(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    Dtd__CheckpointList list = DTD__CHECKPOINT_LIST__INIT;
    (void)owner;
    (void)request;
    rpc_reply(call, &list.base);
}

static void on_logs(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    const Dtd__LogsRequest *q = (const Dtd__LogsRequest *)request;
    (void)owner;
    for (int rank = 0; rank < 2; rank++) {
        Dtd__LogChunk chunk = DTD__LOG_CHUNK__INIT;
        char text[64];
        snprintf(text, sizeof(text), "hello from %d\nbye\xff\n", rank);
        chunk.rank = rank;
        chunk.text.data = (uint8_t *)text;
        chunk.text.len = strlen(text);
        if (q->rank < 0 || q->rank == rank)
            assert_int_equal(rpc_item(call, &chunk.base), OK);
    }
    rpc_end(call);
}

static void on_stop(uv_async_t *handle)
{
    struct fake_control *f = handle->data;
    rpc_listener_close(f->listener);
    for (int i = 0; i < f->n_conns; i++)
        rpc_conn_close(f->conns[i]);
    uv_close((uv_handle_t *)handle, NULL);
}

static void *fake_run(void *arg)
{
    struct fake_control *f = arg;
    uv_run(&f->loop, UV_RUN_DEFAULT);
    return NULL;
}

static void lock_take(struct fake_control *f, const char *state_dir)
{
    char path[256];
    mkdir(state_dir, 0700);
    snprintf(path, sizeof(path), "%s/dtd.lock", state_dir);
    f->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(f->lock_fd >= 0 && flock(f->lock_fd, LOCK_EX | LOCK_NB) == 0);
    dprintf(f->lock_fd, "%d\n", getpid());
}

static void listen_at(struct fake_control *f, const char *state_dir)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof(at.sun_path), "%s/control.sock", state_dir);
    unlink(at.sun_path);
    f->listen_fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(f->listen_fd, (struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(listen(f->listen_fd, 16), 0);
}

struct fake_control *fake_start(const char *state_dir, const struct fake_script *script)
{
    static const struct rpc_binding bindings[] = {{CLIENT_SUBMIT, on_submit}, {CLIENT_STATUS, on_status},
                                                  {CLIENT_LIST, on_list},     {CLIENT_CANCEL, on_cancel},
                                                  {CLIENT_WATCH, on_watch},   {CLIENT_METRICS, on_metrics},
                                                  {CLIENT_LOGS, on_logs},     {CLIENT_CHECKPOINTS, on_checkpoints}};
    struct fake_control *f = calloc(1, sizeof(*f));
    assert_non_null(f);
    f->script = *script;
    pthread_mutex_init(&f->lock, NULL);
    rpc_methods_bind(bindings, sizeof(bindings) / sizeof(bindings[0]), f->methods);
    lock_take(f, state_dir);
    listen_at(f, state_dir);
    uv_loop_init(&f->loop);
    uv_async_init(&f->loop, &f->stop, on_stop);
    f->stop.data = f;
    assert_ok(rpc_listen(&f->loop, f->listen_fd, accepted, f, &f->listener));
    pthread_create(&f->thread, NULL, fake_run, f);
    return f;
}

void fake_stop(struct fake_control *f)
{
    uv_async_send(&f->stop);
    pthread_join(f->thread, NULL);
    assert_int_equal(uv_loop_close(&f->loop), 0);
    close(f->listen_fd);
    close(f->lock_fd);
}

struct fake_seen fake_seen(struct fake_control *f)
{
    pthread_mutex_lock(&f->lock);
    struct fake_seen seen = f->seen;
    pthread_mutex_unlock(&f->lock);
    return seen;
}

const char *fake_spec(struct fake_control *f)
{
    pthread_mutex_lock(&f->lock);
    memcpy(f->spec_copy, f->spec, sizeof(f->spec));
    pthread_mutex_unlock(&f->lock);
    return f->spec_copy;
}

const char *fake_parent(struct fake_control *f)
{
    pthread_mutex_lock(&f->lock);
    memcpy(f->parent_copy, f->parent, sizeof(f->parent));
    pthread_mutex_unlock(&f->lock);
    return f->parent_copy;
}

void fake_free(struct fake_control *f)
{
    pthread_mutex_destroy(&f->lock);
    free(f);
}
