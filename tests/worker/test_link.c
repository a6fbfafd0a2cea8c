/* The worker's link against a fake control and a fake io: the messages it sends, and its behaviour when they
 * disconnect. The fakes run on a loop in a second thread; a test passes small functions to be run there. */
#include "tests/lib/test.h"

#include "common/base/clock.h"
#include "common/rpc/methods.h"
#include "common/rpc/rpc.h"
#include "proto/io.pb-c.h"
#include "proto/worker.pb-c.h"
#include "worker/link/link.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>

#define MAX_SEEN 4096
#define MAX_CONNS 64

struct seen_report {
    int kind;
    uint64_t epoch;
    int64_t step;
    bool fatal;
    double plan_ms; /* of a READY; -1: it has no parts */
    char text[128];
    uint64_t profile; /* 0: none */
};

struct fake {
    pthread_t thread;
    uv_loop_t loop;
    uv_async_t wake;
    int fds[2];
    char paths[2][108];
    struct rpc_listener *listeners[2];
    struct rpc_method methods[RPC_METHOD_COUNT];
    struct rpc_conn *conns[MAX_CONNS];
    int n_conns;
    struct rpc_call *attend, *saves[16];
    int64_t save_steps[16];
    int n_saves, n_hellos, n_loads;
    uint64_t hello_epoch;
    bool token_right;
    struct rpc_call *load;
    struct seen_report reports[MAX_SEEN];
    int n_reports;

    pthread_mutex_t mu;
    pthread_cond_t done;
    void (*fn)(struct fake *f, int64_t arg);
    int64_t arg;
    bool stop;
    struct link *link;
};

/* ---- handlers of the fakes ---- */

static void answer(struct rpc_call *call)
{
    Dtd__Empty empty = DTD__EMPTY__INIT;
    rpc_reply(call, &empty.base);
}

static void on_hello(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct fake *f = owner;
    const Dtd__WorkerHello *h = (const Dtd__WorkerHello *)(const void *)request;
    f->token_right = h->token.len == TICKET_TOKEN_BYTES && h->token.data[31] == 31 && strcmp(h->job, "7") == 0;
    f->hello_epoch = h->has_epoch ? h->epoch : 0;
    f->n_hellos++;
    answer(call);
}

static void attend_gone(void *arg)
{
    ((struct fake *)arg)->attend = NULL;
}

static void on_attend(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    (void)request;
    struct fake *f = owner;
    f->attend = call;
    rpc_call_on_cancel(call, attend_gone, f);
}

static void on_report(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct fake *f = owner;
    const Dtd__WorkerReport *r = (const Dtd__WorkerReport *)(const void *)request;
    if (f->n_reports < MAX_SEEN) {
        struct seen_report *s = &f->reports[f->n_reports++];
        *s = (struct seen_report){
            (int)r->kind, r->epoch,  r->step, r->fatal, r->n_part_ms == LOAD_PARTS ? r->part_ms[LOAD_PLAN] : -1,
            "",           r->profile};
        snprintf(s->text, sizeof(s->text), "%s", r->text ? r->text : "");
    }
    answer(call);
}

static void on_io_hello(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    (void)owner, (void)request;
    answer(call);
}

static void save_gone(void *arg)
{
    *(struct rpc_call **)arg = NULL;
}

static void on_save(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct fake *f = owner;
    const Dtd__SaveRequest *s = (const Dtd__SaveRequest *)(const void *)request;
    if (f->n_saves == 16 || s->n_piece != 2 || strcmp(s->piece[1]->fqn, "b") != 0 || s->n_scalar != 1) {
        rpc_fail(call, ERR_INVALID, "unexpected save");
        return;
    }
    f->save_steps[f->n_saves] = s->step;
    f->saves[f->n_saves] = call;
    rpc_call_on_cancel(call, save_gone, &f->saves[f->n_saves++]);
}

static void load_gone(void *arg)
{
    ((struct fake *)arg)->load = NULL;
}

static void on_load(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    (void)request;
    struct fake *f = owner;
    f->load = call;
    f->n_loads++;
    rpc_call_on_cancel(call, load_gone, f);
}

static const struct rpc_binding bindings[] = {{WORKER_HELLO, on_hello},   {WORKER_COMMANDS, on_attend},
                                              {WORKER_REPORT, on_report}, {IO_HELLO, on_io_hello},
                                              {IO_SAVE, on_save},         {IO_LOAD, on_load}};

/* ---- the fakes' thread ---- */

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
    if (f->n_conns == MAX_CONNS ||
        rpc_conn_open(&config, fd, RPC_ROLE_ANY | RPC_ROLE_WORKER, &f->conns[f->n_conns]) != OK)
        abort();
    f->n_conns++;
}

static void drop_conns(struct fake *f, int64_t arg)
{
    (void)arg;
    for (int i = 0; i < f->n_conns; i++)
        rpc_conn_close(f->conns[i]);
}

/* Stops listening and closes all connections. */
static void close_all(struct fake *f, int64_t arg)
{
    for (int i = 0; i < 2; i++) {
        if (f->listeners[i])
            rpc_listener_close(f->listeners[i]);
        f->listeners[i] = NULL;
        close(f->fds[i]);
        unlink(f->paths[i]);
    }
    drop_conns(f, arg);
}

static void woken(uv_async_t *wake)
{
    struct fake *f = wake->data;
    pthread_mutex_lock(&f->mu);
    if (f->fn)
        f->fn(f, f->arg);
    f->fn = NULL;
    if (f->stop) {
        if (f->listeners[0])
            close_all(f, 0);
        drop_conns(f, 0);
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

/* Runs fn on the fakes' thread, and waits for it. */
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

static void fake_listen(struct fake *f, int i, const char *name)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof(a.sun_path), "%s/%s", test_tmpdir(), name);
    snprintf(f->paths[i], sizeof(f->paths[i]), "%s", a.sun_path);
    f->fds[i] = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(f->fds[i], (struct sockaddr *)&a, sizeof(a)), 0);
    assert_int_equal(listen(f->fds[i], 16), 0);
    assert_ok(rpc_listen(&f->loop, f->fds[i], accepted, f, &f->listeners[i]));
}

static struct fake *fake_start(void)
{
    struct fake *f = calloc(1, sizeof(*f));
    signal(SIGPIPE, SIG_IGN); /* as every program with sockets does */
    rpc_methods_bind(bindings, 6, f->methods);
    uv_loop_init(&f->loop);
    uv_async_init(&f->loop, &f->wake, woken);
    f->wake.data = f;
    pthread_mutex_init(&f->mu, NULL);
    pthread_cond_init(&f->done, NULL);
    fake_listen(f, 0, "control.sock");
    fake_listen(f, 1, "io.sock");
    assert_int_equal(pthread_create(&f->thread, NULL, fake_main, f), 0);
    struct link_config config = {.job = "7", .slot = 2};
    for (int i = 0; i < TICKET_TOKEN_BYTES; i++)
        config.ticket.token[i] = (uint8_t)i;
    snprintf(config.ticket.control, sizeof(config.ticket.control), "%s", f->paths[0]);
    snprintf(config.ticket.io, sizeof(config.ticket.io), "%s", f->paths[1]);
    assert_ok(link_start(&config, &f->link));
    return f;
}

static void fake_stop(struct fake *f)
{
    link_stop(f->link);
    pthread_mutex_lock(&f->mu);
    f->stop = true;
    uv_async_send(&f->wake);
    pthread_mutex_unlock(&f->mu);
    pthread_join(f->thread, NULL);
    assert_int_equal(uv_loop_close(&f->loop), 0);
    free(f);
}

/* ---- actions of the fakes, run on their thread ---- */

static int64_t looked;

static void send_command(struct fake *f, Dtd__WorkerCommand__Kind kind, uint64_t epoch)
{
    Dtd__WorkerCommand c = DTD__WORKER_COMMAND__INIT;
    c.kind = kind;
    c.has_epoch = c.has_rank = c.has_world = c.has_resume_step = true;
    c.epoch = epoch;
    c.rank = 2;
    c.world = 5;
    c.resume_step = 30;
    c.spec_yaml = "name: x";
    c.has_save = c.save = true;
    if (f->attend && rpc_item(f->attend, &c.base))
        abort();
}

static void send_start(struct fake *f, int64_t epoch)
{
    send_command(f, DTD__WORKER_COMMAND__KIND__START, (uint64_t)epoch);
}

static void send_end(struct fake *f, int64_t epoch)
{
    send_command(f, DTD__WORKER_COMMAND__KIND__END, (uint64_t)epoch);
}

static void send_stop(struct fake *f, int64_t epoch)
{
    send_command(f, DTD__WORKER_COMMAND__KIND__STOP, (uint64_t)epoch);
}

/* Of epoch 3. */
static void send_profile(struct fake *f, int64_t id)
{
    Dtd__WorkerCommand c = DTD__WORKER_COMMAND__INIT;
    c.kind = DTD__WORKER_COMMAND__KIND__PROFILE;
    c.has_epoch = c.has_profile = c.has_profile_steps = true;
    c.epoch = 3;
    c.profile = (uint64_t)id;
    c.profile_steps = 5;
    if (f->attend && rpc_item(f->attend, &c.base))
        abort();
}

static void send_quit(struct fake *f, int64_t epoch)
{
    send_command(f, DTD__WORKER_COMMAND__KIND__QUIT, (uint64_t)epoch);
}

static void look_attended(struct fake *f, int64_t hellos)
{
    looked = f->attend && f->n_hellos >= hellos;
}

static void look_reports(struct fake *f, int64_t kind)
{
    looked = 0;
    for (int i = 0; i < f->n_reports; i++)
        looked += f->reports[i].kind == kind;
}

static void look_saves(struct fake *f, int64_t n)
{
    looked = f->n_saves >= n;
}

static void look_loads(struct fake *f, int64_t n)
{
    looked = f->n_loads >= n && f->load;
}

static void save_event(struct fake *f, int64_t i, Dtd__SaveEvent__Kind kind)
{
    Dtd__SaveEvent e = DTD__SAVE_EVENT__INIT;
    e.kind = kind;
    if (!f->saves[i] || rpc_item(f->saves[i], &e.base))
        abort();
}

static void save_written(struct fake *f, int64_t i)
{
    save_event(f, i, DTD__SAVE_EVENT__KIND__WRITTEN);
}

static void save_committed(struct fake *f, int64_t i)
{
    save_event(f, i, DTD__SAVE_EVENT__KIND__COMMITTED);
    rpc_end(f->saves[i]);
    f->saves[i] = NULL;
}

static void save_fails(struct fake *f, int64_t i)
{
    rpc_fail(f->saves[i], ERR_NOSPACE, "no space left in /full");
    f->saves[i] = NULL;
}

static void load_answered(struct fake *f, int64_t step)
{
    Dtd__LoadReply reply = DTD__LOAD_REPLY__INIT;
    Dtd__Scalar scalar = DTD__SCALAR__INIT, *list = &scalar;
    scalar.fqn = "train_state.step";
    scalar.has_i = true;
    scalar.i = step;
    reply.bytes_needed = 100;
    reply.bytes_read = 128;
    reply.n_scalar = 1;
    reply.scalar = &list;
    rpc_reply(f->load, &reply.base);
    f->load = NULL;
}

static void load_fails(struct fake *f, int64_t arg)
{
    (void)arg;
    rpc_fail(f->load, ERR_CORRUPT, "__0_0.distcp, extent 3");
    f->load = NULL;
}

static void wait_until(struct fake *f, void (*look)(struct fake *f, int64_t arg), int64_t arg, int64_t value)
{
    for (int64_t deadline = clock_mono_ms() + 10000; clock_mono_ms() < deadline; usleep(2000)) {
        fake_do(f, look, arg);
        if (looked >= value)
            return;
    }
    fail_msg("timed out: %lld instead of %lld", (long long)looked, (long long)value);
}

static void begin(struct fake *f, uint64_t epoch)
{
    struct link_epoch e;
    wait_until(f, look_attended, 1, 1);
    fake_do(f, send_start, (int64_t)epoch);
    assert_ok(link_next(f->link, &e));
    assert_int_equal(e.epoch, epoch);
    assert_int_equal(e.rank, 2);
    assert_int_equal(e.world, 5);
    assert_int_equal(e.resume_step, 30);
    assert_string_equal(e.spec_yaml, "name: x");
    assert_string_equal(e.resume_path, "");
    link_epoch_fini(&e);
}

static void wait_cancel(struct fake *f)
{
    for (int i = 0; i < 5000 && !atomic_load(link_cancel(f->link)); i++)
        usleep(1000);
    assert_int_equal(atomic_load(link_cancel(f->link)), 1);
}

/* ---- epochs and reports ---- */

enum { IDLE = DTD__WORKER_REPORT__KIND__IDLE, READY, METRIC, DONE, FAILED, SAVE_FAILED };

TEST(an_epoch_from_start_to_idle)
{
    struct fake *f = fake_start();
    begin(f, 3);
    assert_true(f->token_right);
    link_report_ready(f->link, 30, (double[LOAD_PARTS]){0});
    for (int i = 1; i <= 200; i++)
        link_report_metric(f->link, &(struct metric){.step = 30 + i, .loss = 2.5, .valid_loss = NAN});
    wait_until(f, look_reports, METRIC, 200);
    for (int i = 0; i < 201; i++)
        assert_int_equal(f->reports[i].step, 30 + i); /* in order */
    assert_int_equal(atomic_load(link_cancel(f->link)), 0);
    fake_do(f, send_end, 3);
    wait_cancel(f);
    fake_do(f, look_reports, IDLE);
    assert_int_equal(looked, 0); /* not before the compute thread has left */
    link_leave(f->link);
    wait_until(f, look_reports, IDLE, 1);
    begin(f, 4);
    link_leave(f->link);
    fake_stop(f);
}

TEST(the_parts_of_loading_go_with_ready_also_to_a_new_control)
{
    struct fake *f = fake_start();
    const double parts[LOAD_PARTS] = {[LOAD_PLAN] = 2.5};
    begin(f, 3);
    link_report_ready(f->link, 30, parts);
    wait_until(f, look_reports, READY, 1);
    fake_do(f, drop_conns, 0);
    wait_until(f, look_reports, READY, 2);
    for (int i = 0; i < 2; i++)
        assert_true(f->reports[i].plan_ms == 2.5);
    link_leave(f->link);
    fake_stop(f);
}

TEST(a_repeated_start_is_the_same_epoch)
{
    struct fake *f = fake_start();
    begin(f, 3);
    fake_do(f, send_start, 3);
    fake_do(f, send_start, 2);
    usleep(50000);
    assert_int_equal(atomic_load(link_cancel(f->link)), 0);
    fake_do(f, send_start, 5); /* a START of a newer epoch ends this one */
    wait_cancel(f);
    link_leave(f->link);
    wait_until(f, look_reports, IDLE, 1);
    struct link_epoch e;
    assert_ok(link_next(f->link, &e));
    assert_int_equal(e.epoch, 5);
    link_epoch_fini(&e);
    link_leave(f->link);
    fake_stop(f);
}

TEST(reports_wait_until_control_is_back)
{
    struct fake *f = fake_start();
    begin(f, 3);
    link_report_ready(f->link, 0, (double[LOAD_PARTS]){0});
    for (int i = 1; i <= 500; i++) {
        link_report_metric(f->link, &(struct metric){.step = i, .valid_loss = 1.0});
        if (i % 100 == 50)
            fake_do(f, drop_conns, 0);
    }
    link_report_done(f->link, 500);
    wait_until(f, look_reports, DONE, 1);
    bool seen[501] = {false};
    for (int i = 0; i < f->n_reports; i++)
        if (f->reports[i].kind == METRIC)
            seen[f->reports[i].step] = true;
    for (int i = 1; i <= 500; i++)
        assert_true(seen[i]);
    fake_do(f, drop_conns, 0); /* the Hello to a new control has the epoch, and the last state is sent again */
    wait_until(f, look_reports, DONE, 2);
    assert_int_equal(f->hello_epoch, 3);
    link_leave(f->link);
    fake_stop(f);
}

TEST(failed_is_reported_with_its_text)
{
    struct fake *f = fake_start();
    begin(f, 3);
    link_report_failed(f->link, 17, true, OK, "the loss is nan");
    link_leave(f->link);
    wait_until(f, look_reports, FAILED, 1);
    assert_int_equal(f->reports[0].step, 17);
    assert_true(f->reports[0].fatal);
    assert_string_equal(f->reports[0].text, "the loss is nan");
    fake_do(f, send_end, 3); /* the epoch has been left already: answered at once */
    wait_until(f, look_reports, IDLE, 1);
    fake_stop(f);
}

TEST(stop_is_for_its_epoch)
{
    struct fake *f = fake_start();
    begin(f, 3);
    assert_int_equal(link_stop_asked(f->link), LINK_GO_ON);
    fake_do(f, send_stop, 2);
    usleep(30000);
    assert_int_equal(link_stop_asked(f->link), LINK_GO_ON);
    fake_do(f, send_stop, 3);
    for (int i = 0; i < 1000 && link_stop_asked(f->link) == LINK_GO_ON; i++)
        usleep(1000);
    assert_int_equal(link_stop_asked(f->link), LINK_STOP_AND_SAVE);
    link_leave(f->link);
    fake_stop(f);
}

static void wait_for_profile(struct fake *f, uint64_t id)
{
    for (int i = 0; i < 1000 && link_profile_asked(f->link).id != id; i++)
        usleep(1000);
    assert_int_equal(link_profile_asked(f->link).id, id);
    assert_int_equal(link_profile_asked(f->link).steps, 5);
}

TEST(a_profile_is_for_its_epoch_and_ids_ascend)
{
    enum { PROFILED = DTD__WORKER_REPORT__KIND__PROFILED };
    struct fake *f = fake_start();
    begin(f, 3);
    assert_int_equal(link_profile_asked(f->link).steps, 0);
    fake_do(f, send_profile, 70);
    wait_for_profile(f, 70);
    fake_do(f, send_profile, 71);
    wait_for_profile(f, 71);
    fake_do(f, send_profile, 71); /* again, after a lost connection: no report */
    fake_do(f, send_profile, 69); /* by a leader whose clock is behind */
    wait_until(f, look_reports, PROFILED, 1);
    assert_int_equal(f->reports[0].profile, 69);
    assert_non_null(strstr(f->reports[0].text, "clock is ahead of this one's"));
    wait_for_profile(f, 71);
    link_report_profiled(f->link, 71, "");
    wait_until(f, look_reports, PROFILED, 2);
    assert_int_equal(f->reports[1].profile, 71);
    assert_string_equal(f->reports[1].text, "");
    link_leave(f->link);
    fake_do(f, send_end, 3);
    wait_until(f, look_reports, IDLE, 1);
    begin(f, 4);
    assert_int_equal(link_profile_asked(f->link).steps, 0);
    link_leave(f->link);
    fake_stop(f);
}

TEST(quit_ends_the_waiting)
{
    struct fake *f = fake_start();
    struct link_epoch e;
    wait_until(f, look_attended, 1, 1);
    fake_do(f, send_quit, 0);
    assert_err(ERR_CLOSED, link_next(f->link, &e));
    fake_stop(f);
}

TEST(orphans_end_after_their_timeout)
{
    struct fake *f = fake_start();
    struct link_epoch e;
    begin(f, 3);
    link_set_orphan_seconds(f->link, 1);
    int64_t start = clock_mono_ms();
    fake_do(f, close_all, 0);
    wait_cancel(f);
    assert_in_range(clock_mono_ms() - start, 900, 4000);
    link_leave(f->link);
    assert_err(ERR_CLOSED, link_next(f->link, &e));
    fake_stop(f);
}

static int pipe_fd[2];

static void *wait_in_barrier(void *arg)
{
    struct comm_group *g = arg;
    err_t err = comm_barrier(g);
    (void)!write(pipe_fd[1], &err, sizeof(err));
    return NULL;
}

TEST(the_end_of_an_epoch_aborts_its_collectives)
{
    struct fake *f = fake_start();
    struct comm *comm[2];
    struct comm_group *group;
    pthread_t thread;
    err_t err = OK;
    int fd = memfd_create("link", MFD_CLOEXEC), ranks[] = {0, 1};
    begin(f, 3);
    pid_t child = fork();
    struct comm_config config = {.backend = "shm", .fd = fd, .world = 2, .epoch = 3, .timeout_ms = 10000};
    config.rank = child == 0;
    if (comm_open(&config, &comm[0], NULL))
        _exit(1);
    if (child == 0)
        _exit(0); /* it joins, but never enters the barrier */
    assert_int_equal(pipe(pipe_fd), 0);
    assert_ok(comm_group_new(comm[0], ranks, 2, &group));
    link_set_comm(f->link, comm[0]);
    assert_int_equal(pthread_create(&thread, NULL, wait_in_barrier, group), 0);
    usleep(50000);
    fake_do(f, send_end, 3);
    assert_int_equal(read(pipe_fd[0], &err, sizeof(err)), sizeof(err));
    assert_err(ERR_CANCELED, err);
    pthread_join(thread, NULL);
    link_set_comm(f->link, NULL);
    comm_group_free(group);
    comm_close(comm[0]);
    link_leave(f->link);
    close(fd);
    fake_stop(f);
}

/* ---- saves and loads ---- */

static struct snapshot_piece pieces[2] = {{.fqn = "a", .dtype = DT_F32, .ndim = 1, .shape = {4}, .bytes = 16},
                                          {.fqn = "b", .dtype = DT_F32, .bytes = 4, .arena_offset = 64}};
static const struct snapshot snapshot = {.pieces = pieces, .n = 2, .bytes = 128};
static struct ckpt_scalar scalar = {.fqn = "train_state.step", .kind = CKPT_INT, .i = 1};

static void save(struct fake *f, int64_t step)
{
    pieces[0].box = (struct box){.ndim = 1, .size = {4}};
    const struct link_save s = {
        .step = step, .world = 5, .loss = 1.5, .snapshot = &snapshot, .scalars = &scalar, .n_scalars = 1};
    assert_ok(link_save(f->link, &s));
}

TEST(a_save_is_written_then_committed)
{
    struct fake *f = fake_start();
    begin(f, 3);
    assert_ok(link_save_wait(f->link, true, NULL)); /* there was no save */
    save(f, 10);
    wait_until(f, look_saves, 1, 1);
    fake_do(f, save_written, 0);
    assert_ok(link_save_wait(f->link, false, NULL));
    fake_do(f, save_committed, 0);
    assert_ok(link_save_wait(f->link, true, NULL));
    link_leave(f->link);
    fake_stop(f);
}

TEST(a_save_is_repeated_when_io_has_gone)
{
    struct fake *f = fake_start();
    begin(f, 3);
    save(f, 10);
    wait_until(f, look_saves, 1, 1);
    fake_do(f, drop_conns, 0);
    wait_until(f, look_saves, 2, 1);
    assert_int_equal(f->save_steps[1], 10);
    fake_do(f, save_written, 1);
    assert_ok(link_save_wait(f->link, false, NULL));
    fake_do(f, drop_conns, 0); /* written, not committed: the arena still has it */
    wait_until(f, look_saves, 3, 1);
    assert_int_equal(f->save_steps[2], 10);
    fake_do(f, save_committed, 2);
    assert_ok(link_save_wait(f->link, true, NULL));
    link_leave(f->link);
    fake_stop(f);
}

TEST(a_save_whose_arena_is_taken_is_never_repeated)
{
    struct fake *f = fake_start();
    begin(f, 3);
    save(f, 10);
    wait_until(f, look_saves, 1, 1);
    fake_do(f, save_written, 0);
    assert_ok(link_save_wait(f->link, false, NULL));
    save(f, 20);
    wait_until(f, look_saves, 2, 1);
    fake_do(f, drop_conns, 0);
    wait_until(f, look_saves, 3, 1);
    assert_int_equal(f->save_steps[2], 20);
    wait_until(f, look_reports, SAVE_FAILED, 1);
    fake_do(f, save_committed, 2);
    assert_ok(link_save_wait(f->link, true, NULL));
    assert_int_equal(f->n_saves, 3);
    link_leave(f->link);
    fake_stop(f);
}

TEST(a_failed_save_is_reported_and_the_next_goes_on)
{
    struct fake *f = fake_start();
    struct why why;
    begin(f, 3);
    save(f, 10);
    wait_until(f, look_saves, 1, 1);
    fake_do(f, save_fails, 0);
    assert_err(ERR_NOSPACE, link_save_wait(f->link, true, &why));
    assert_string_equal(why.text, "no space left in /full");
    wait_until(f, look_reports, SAVE_FAILED, 1);
    save(f, 20);
    wait_until(f, look_saves, 2, 1);
    fake_do(f, save_committed, 1);
    assert_ok(link_save_wait(f->link, true, NULL));
    link_leave(f->link);
    fake_stop(f);
}

TEST(the_end_of_an_epoch_ends_the_wait_for_a_commit)
{
    struct fake *f = fake_start();
    begin(f, 3);
    save(f, 10);
    wait_until(f, look_saves, 1, 1);
    fake_do(f, send_end, 3);
    assert_err(ERR_CANCELED, link_save_wait(f->link, true, NULL));
    link_leave(f->link);
    begin(f, 4);
    assert_ok(link_save_wait(f->link, false, NULL)); /* a save of the last epoch is ignored */
    link_leave(f->link);
    fake_stop(f);
}

struct loader {
    struct fake *fake;
    struct link_load load;
    struct why why;
    err_t err;
};

static void *load_main(void *arg)
{
    struct loader *l = arg;
    l->err = link_load(l->fake->link, &l->load, &l->why);
    return NULL;
}

static void load(struct fake *f, struct loader *l, pthread_t *thread)
{
    static const char *const names[] = {"train_state.step", "dataloader.position"};
    static int64_t values[2];
    static bool found[2];
    found[0] = found[1] = false;
    *l = (struct loader){.fake = f,
                         .load = {.path = "/x/step-1",
                                  .snapshot = &snapshot,
                                  .end = 2,
                                  .names = names,
                                  .values = values,
                                  .found = found,
                                  .n_names = 2}};
    assert_int_equal(pthread_create(thread, NULL, load_main, l), 0);
}

TEST(a_load_survives_io_and_brings_scalars)
{
    struct fake *f = fake_start();
    struct loader l;
    pthread_t thread;
    begin(f, 3);
    load(f, &l, &thread);
    wait_until(f, look_loads, 1, 1);
    fake_do(f, drop_conns, 0);
    wait_until(f, look_loads, 2, 1);
    fake_do(f, load_answered, 30);
    pthread_join(thread, NULL);
    assert_ok(l.err);
    assert_true(l.load.found[0] && !l.load.found[1]);
    assert_int_equal(l.load.values[0], 30);
    assert_int_equal(l.load.bytes_read, 128);
    link_leave(f->link);
    fake_stop(f);
}

TEST(a_load_that_fails_names_the_cause)
{
    struct fake *f = fake_start();
    struct loader l;
    pthread_t thread;
    begin(f, 3);
    load(f, &l, &thread);
    wait_until(f, look_loads, 1, 1);
    fake_do(f, load_fails, 0);
    pthread_join(thread, NULL);
    assert_err(ERR_CORRUPT, l.err);
    assert_string_equal(l.why.text, "__0_0.distcp, extent 3");
    link_leave(f->link);
    fake_stop(f);
}
