/* See io_harness.h. All waits run the loop; nothing sleeps. */
#include "tests/daemon/io/io_harness.h"

#include "common/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>

/* ---- the loop ---- */

static void timer_fired(uv_timer_t *timer)
{
    struct io_test *t = timer->data;
    t->timed_out = true;
}

void io_until(struct io_test *t, const bool *flag, int ms, const char *what)
{
    t->timed_out = false;
    uv_timer_start(&t->timer, timer_fired, (uint64_t)ms, 0);
    while (!*flag && !t->timed_out)
        uv_run(t->on, UV_RUN_ONCE);
    uv_timer_stop(&t->timer);
    if (!*flag)
        fail_msg("%s did not happen within %d ms", what, ms);
}

void io_run_ms(struct io_test *t, int ms)
{
    t->timed_out = false;
    uv_timer_start(&t->timer, timer_fired, (uint64_t)ms, 0);
    while (!t->timed_out)
        uv_run(t->on, UV_RUN_ONCE);
}

/* ---- control ---- */

static void control_hello(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    const struct io_test *t = owner;
    const Dtd__IoControlHello *h = (const Dtd__IoControlHello *)request;
    Dtd__Empty empty = DTD__EMPTY__INIT;
    assert_string_equal(h->job, "7");
    assert_int_equal(h->token.len, TICKET_TOKEN_BYTES);
    assert_memory_equal(h->token.data, t->ticket.token, TICKET_TOKEN_BYTES);
    rpc_conn_set_roles(rpc_call_conn(call), RPC_ROLE_ANY | RPC_ROLE_IO);
    rpc_reply(call, &empty.base);
}

static void attend_gone(void *arg)
{
    ((struct io_test *)arg)->attend = NULL;
}

static void control_attend(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct io_test *t = owner;
    t->attend = call;
    rpc_call_on_cancel(call, attend_gone, t);
}

static void control_report(void *owner, struct rpc_call *call, const ProtobufCMessage *request)
{
    struct io_test *t = owner;
    const Dtd__IoReport *m = (const Dtd__IoReport *)request;
    Dtd__Empty empty = DTD__EMPTY__INIT;
    assert_true(t->n_reports < IO_MAX_REPORTS);
    struct io_seen *r = &t->reports[t->n_reports++];
    *r = (struct io_seen){.kind = (int)m->kind, .epoch = m->epoch, .step = -1};
    snprintf(r->text, sizeof(r->text), "%s", m->text ? m->text : "");
    if (m->checkpoint) {
        r->step = m->checkpoint->step;
        r->bytes = m->checkpoint->bytes;
        snprintf(r->path, sizeof(r->path), "%s", m->checkpoint->path);
    }
    rpc_reply(call, &empty.base);
}

static void control_closed(void *owner, struct rpc_conn *conn)
{
    struct io_test *t = owner;
    if (t->control == conn)
        t->control = NULL;
}

static void control_accepted(void *owner, int fd, const struct rpc_peer *peer)
{
    struct io_test *t = owner;
    const struct rpc_conn_config config = {
        .loop = t->on, .methods = t->methods, .n_methods = RPC_METHOD_COUNT, .owner = t, .on_close = control_closed};
    if (t->deny) {
        close(fd);
        return;
    }
    assert_ok(rpc_conn_open(&config, fd, RPC_ROLE_ANY, &t->control));
}

static void attend_wait(struct io_test *t)
{
    t->timed_out = false;
    uv_timer_start(&t->timer, timer_fired, 10000, 0);
    while (!t->attend && !t->timed_out)
        uv_run(t->on, UV_RUN_ONCE);
    uv_timer_stop(&t->timer);
    assert_non_null(t->attend);
}

void io_say(struct io_test *t, Dtd__IoCommand__Kind kind, uint64_t epoch, int64_t step, const char *text)
{
    attend_wait(t);
    Dtd__IoCommand m = DTD__IO_COMMAND__INIT;
    m.kind = kind;
    m.has_epoch = true;
    m.epoch = epoch;
    m.has_step = true;
    m.step = step;
    m.has_at = true; /* of HISTORY */
    m.at = step;
    m.text = (char *)(uintptr_t)text;
    assert_ok(rpc_item(t->attend, &m.base));
}

void io_say_epoch(struct io_test *t, uint64_t epoch, int64_t step)
{
    io_say(t, DTD__IO_COMMAND__KIND__SCAN, 0, 0, t->yaml);
    io_say(t, DTD__IO_COMMAND__KIND__EPOCH, epoch, step, t->yaml);
}

void io_say_scan(struct io_test *t, int64_t submitted_ms)
{
    attend_wait(t);
    Dtd__IoCommand m = DTD__IO_COMMAND__INIT;
    m.kind = DTD__IO_COMMAND__KIND__SCAN;
    m.text = t->yaml;
    m.has_submitted_ms = true;
    m.submitted_ms = submitted_ms;
    assert_ok(rpc_item(t->attend, &m.base));
}

void io_say_share(struct io_test *t, uint64_t epoch, int64_t step, const struct io_part_of *part)
{
    attend_wait(t);
    Dtd__IoCommand m = DTD__IO_COMMAND__INIT;
    m.kind = DTD__IO_COMMAND__KIND__EPOCH;
    m.has_epoch = m.has_step = m.has_committer = m.has_n_ios = m.has_submitted_ms = true;
    m.epoch = epoch;
    m.step = step;
    m.text = t->yaml;
    m.committer = part->committer;
    m.n_ios = part->n_ios;
    m.rank = (int32_t *)(uintptr_t)part->ranks;
    m.n_rank = (size_t)part->n_ranks;
    m.submitted_ms = part->submitted_ms;
    m.node = t->joined ? (char *)(uintptr_t) "b" : (char *)(uintptr_t) "a";
    m.committer_node = (char *)(uintptr_t) "a";
    assert_ok(rpc_item(t->attend, &m.base));
}

const struct io_seen *io_report_wait(struct io_test *t, int kind, int *from, int ms)
{
    t->timed_out = false;
    uv_timer_start(&t->timer, timer_fired, (uint64_t)ms, 0);
    for (;;) {
        while (*from < t->n_reports)
            if (t->reports[(*from)++].kind == kind) {
                uv_timer_stop(&t->timer);
                return &t->reports[*from - 1];
            }
        if (t->timed_out)
            fail_msg("no report of kind %d within %d ms", kind, ms);
        uv_run(t->on, UV_RUN_ONCE);
    }
}

/* ---- the process ---- */

static int listen_at(const char *path)
{
    struct sockaddr_un addr = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true((size_t)snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", path) < sizeof(addr.sun_path));
    assert_int_equal(bind(fd, (struct sockaddr *)&addr, sizeof(addr)), 0);
    assert_int_equal(listen(fd, 64), 0);
    return fd;
}

static void child(const struct io_test *t, uint64_t fsize)
{
    char path[PATH_MAX];
    int fds[2 + IO_MAX_SLOTS] = {t->ticket_fd, t->io_listen}, n = 2 + t->slots;
    const struct rlimit limit = {fsize, RLIM_INFINITY};
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    memcpy(fds + 2, t->arenas, sizeof(int) * (size_t)t->slots);
    for (int i = 0; i < n; i++)
        fds[i] = fcntl(fds[i], F_DUPFD, 100);
    for (int i = 0; i < n; i++)
        dup2(fds[i], 3 + i);
    if (fsize)
        setrlimit(RLIMIT_FSIZE, &limit);
    const char *argv[16] = {"dtd-io", "--job", "7"};
    for (int i = 0; t->args && t->args[i] && i < 12; i++)
        argv[3 + i] = t->args[i];
    snprintf(path, sizeof(path), "%s/dtd-io", getenv("DTD_BIN"));
    execv(path, (char *const *)(uintptr_t)argv);
    _exit(126);
}

void io_spawn(struct io_test *t, uint64_t fsize)
{
    t->pid = fork();
    assert_true(t->pid >= 0);
    if (t->pid == 0)
        child(t, fsize);
}

int io_wait_exit(struct io_test *t, int ms)
{
    int status = 0;
    for (int waited = 0; waitpid(t->pid, &status, WNOHANG) == 0; waited += 5) {
        if (waited > ms)
            fail_msg("dtd-io did not end within %d ms", ms);
        io_run_ms(t, 5);
    }
    t->pid = 0;
    return status;
}

void io_kill(struct io_test *t)
{
    kill(t->pid, SIGKILL);
    assert_int_equal(waitpid(t->pid, NULL, 0), t->pid);
    t->pid = 0;
    while (t->control) /* dtd-io has closed its end; this end must be closed before the next dtd-io connects */
        uv_run(t->on, UV_RUN_ONCE);
}

static void spec_make(struct io_test *t)
{
    snprintf(t->yaml, sizeof(t->yaml),
             "name: io\nmodel: {arch: llama, dim: 64, layers: 1, heads: 2}\n"
             "data: {train: [/etc/passwd], tokenizer: bytes}\n"
             "train: {steps: 10, seq: 16, global_batch: 4, micro_batch: 2, lr: 1.0e-3}\n"
             "parallel: {workers: %d}\ncheckpoint: {dir: %s}\nrun: {orphan_seconds: 1}\n",
             t->slots, t->root);
}

static void sockets_make(struct io_test *t)
{
    for (int i = 0; i < TICKET_TOKEN_BYTES; i++)
        t->ticket.token[i] = t->ticket.io_token[i] = (uint8_t)(i * 7);
    t->ticket.slots = t->slots;
    snprintf(t->ticket.control, sizeof(t->ticket.control), "%s/control.sock", t->dir);
    snprintf(t->ticket.io, sizeof(t->ticket.io), "%s/io.sock", t->dir);
    assert_ok(ticket_make(&t->ticket, &t->ticket_fd));
    t->io_listen = listen_at(t->ticket.io);
    t->control_listen = listen_at(t->ticket.control);
    for (int k = 0; k < t->slots; k++) {
        t->arenas[k] = memfd_create("arena", MFD_CLOEXEC);
        assert_int_equal(ftruncate(t->arenas[k], (off_t)t->arena_bytes), 0);
        t->maps[k] = mmap(NULL, t->arena_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, t->arenas[k], 0);
        assert_true(t->maps[k] != MAP_FAILED);
    }
}

static void listen_start(struct io_test *t)
{
    static const struct rpc_binding bindings[] = {
        {IO_CONTROL_HELLO, control_hello}, {IO_CONTROL_COMMANDS, control_attend}, {IO_CONTROL_REPORT, control_report}};
    signal(SIGPIPE, SIG_IGN);
    uv_timer_init(t->on, &t->timer);
    t->timer.data = t;
    rpc_methods_bind(bindings, 3, t->methods);
    assert_ok(rpc_listen(t->on, t->control_listen, control_accepted, t, &t->listener));
    io_spawn(t, 0);
}

void io_test_start(struct io_test *t, int slots, size_t arena_bytes)
{
    io_test_start_with(t, slots, arena_bytes, NULL);
}

void io_test_start_with(struct io_test *t, int slots, size_t arena_bytes, const char *const *args)
{
    *t = (struct io_test){.slots = slots, .arena_bytes = arena_bytes, .on = &t->loop, .args = args};
    snprintf(t->dir, sizeof(t->dir), "%s", test_tmpdir());
    snprintf(t->root, sizeof(t->root), "%s/ckpt", t->dir);
    spec_make(t);
    sockets_make(t);
    assert_int_equal(uv_loop_init(&t->loop), 0);
    listen_start(t);
}

void io_test_join(struct io_test *t, struct io_test *first, int number)
{
    *t = (struct io_test){
        .slots = first->slots, .arena_bytes = first->arena_bytes, .on = first->on, .joined = true, .args = first->args};
    snprintf(t->dir, sizeof(t->dir), "%.180s/n%d", first->dir, number);
    assert_int_equal(mkdir(t->dir, 0700), 0);
    memcpy(t->root, first->root, sizeof(t->root));
    spec_make(t);
    sockets_make(t);
    listen_start(t);
}

static void timer_closed(uv_handle_t *h)
{
    ((struct io_test *)h->data)->timer_is_closed = true;
}

void io_test_stop(struct io_test *t)
{
    if (t->pid)
        io_kill(t);
    rpc_listener_close(t->listener);
    if (t->control)
        rpc_conn_close(t->control);
    uv_close((uv_handle_t *)&t->timer, timer_closed);
    if (!t->joined) {
        uv_run(t->on, UV_RUN_DEFAULT);
        assert_int_equal(uv_loop_close(t->on), 0);
    }
    while (!t->timer_is_closed || t->control)
        uv_run(t->on, UV_RUN_ONCE);
    for (int k = 0; k < t->slots; k++) {
        munmap(t->maps[k], t->arena_bytes);
        close(t->arenas[k]);
    }
    close(t->ticket_fd);
    close(t->io_listen);
    close(t->control_listen);
}

/* ---- workers ---- */

static void hello_came(void *arg, const struct rpc_result *result)
{
    struct io_worker *w = arg;
    w->hello = true;
    w->hello_err = result->err;
}

static void worker_closed(void *owner, struct rpc_conn *conn)
{
    struct io_worker *w = owner;
    w->conn = NULL;
    w->closed = true;
}

void io_worker_open(struct io_worker *w, struct io_test *t, int slot)
{
    int fd;
    const struct rpc_conn_config config = {
        .loop = t->on, .methods = rpc_methods(), .n_methods = RPC_METHOD_COUNT, .owner = w, .on_close = worker_closed};
    *w = (struct io_worker){.test = t, .slot = slot};
    assert_ok(rpc_connect_unix(t->ticket.io, &fd));
    assert_ok(rpc_conn_open(&config, fd, RPC_ROLE_ANY, &w->conn));
    Dtd__IoHello m = DTD__IO_HELLO__INIT;
    m.job = (char *)(uintptr_t) "7";
    m.slot = slot;
    m.token = (ProtobufCBinaryData){TICKET_TOKEN_BYTES, t->ticket.io_token};
    assert_ok(rpc_send(w->conn, IO_HELLO, &m.base, 10000, hello_came, w, NULL));
    io_until(t, &w->hello, 10000, "Hello");
    assert_ok(w->hello_err);
}

void io_worker_close(struct io_worker *w)
{
    if (!w->conn)
        return;
    rpc_conn_close(w->conn);
    io_until(w->test, &w->closed, 5000, "close");
}

/* One rank's pieces as messages, laid out consecutively in the arena. */
struct pieces {
    Dtd__Piece piece[FIXTURE_MAX_PIECES], *pointer[FIXTURE_MAX_PIECES];
    Dtd__BoxMsg box[FIXTURE_MAX_PIECES];
    size_t n, bytes;
};

static void pieces_make(struct pieces *p, const struct fixture *f, int rank)
{
    p->n = p->bytes = 0;
    for (int i = 0; i < f->n_pieces; i++) {
        const struct ckpt_piece *k = &f->pieces[i].piece;
        if (f->pieces[i].rank != rank)
            continue;
        Dtd__Piece *m = &p->piece[p->n];
        Dtd__BoxMsg *b = &p->box[p->n];
        dtd__piece__init(m);
        dtd__box_msg__init(b);
        m->fqn = (char *)(uintptr_t)k->fqn;
        m->dtype = (int)k->dtype;
        m->shape = (int64_t *)(uintptr_t)k->shape;
        b->offset = (int64_t *)(uintptr_t)k->box.offset;
        b->size = (int64_t *)(uintptr_t)k->box.size;
        m->n_shape = b->n_offset = b->n_size = (size_t)k->ndim;
        m->box = b;
        m->arena_offset = (int64_t)p->bytes;
        p->pointer[p->n++] = m;
        p->bytes += ((size_t)box_elements(&k->box) * dtype_bytes(k->dtype) + 63) & ~(size_t)63;
    }
}

static size_t piece_bytes(const struct ckpt_piece *k)
{
    return (size_t)box_elements(&k->box) * dtype_bytes(k->dtype);
}

static void save_came(void *arg, const struct rpc_result *result)
{
    struct io_op *op = arg;
    if (result->reply) {
        const Dtd__SaveEvent *e = (const Dtd__SaveEvent *)result->reply;
        op->written |= e->kind == DTD__SAVE_EVENT__KIND__WRITTEN;
        op->committed |= e->kind == DTD__SAVE_EVENT__KIND__COMMITTED;
    }
    if (!result->last)
        return;
    op->done = true;
    op->err = result->err;
    snprintf(op->text, sizeof(op->text), "%s", result->text);
}

void io_fill(struct io_worker *w, const struct fixture *f, int rank)
{
    static struct pieces p;
    pieces_make(&p, f, rank);
    assert_true(p.bytes <= w->test->arena_bytes);
    size_t n = 0;
    for (int i = 0; i < f->n_pieces; i++)
        if (f->pieces[i].rank == rank)
            memcpy((char *)w->test->maps[w->slot] + p.piece[n++].arena_offset, f->pieces[i].piece.data,
                   piece_bytes(&f->pieces[i].piece));
}

void io_save_filled(struct io_worker *w, const struct fixture *f, uint64_t epoch, int64_t step, int rank, int world,
                    struct io_op *ret)
{
    static struct pieces p;
    Dtd__SaveRequest m = DTD__SAVE_REQUEST__INIT;
    Dtd__Scalar s = DTD__SCALAR__INIT, *scalars[] = {&s};
    *ret = (struct io_op){0};
    pieces_make(&p, f, rank);
    m.epoch = epoch;
    m.step = step;
    m.rank = rank;
    m.world = world;
    m.piece = p.pointer;
    m.n_piece = p.n;
    m.has_loss = true;
    m.loss = 1.5;
    s.fqn = (char *)(uintptr_t) "train_state.step";
    s.has_i = true;
    s.i = step;
    m.scalar = scalars;
    m.n_scalar = rank == 0;
    assert_ok(rpc_send(w->conn, IO_SAVE, &m.base, 0, save_came, ret, NULL));
}

void io_save(struct io_worker *w, const struct fixture *f, uint64_t epoch, int64_t step, int rank, int world,
             struct io_op *ret)
{
    io_fill(w, f, rank);
    io_save_filled(w, f, epoch, step, rank, world, ret);
}

static void load_came(void *arg, const struct rpc_result *result)
{
    struct io_op *op = arg;
    const Dtd__LoadReply *r = (const Dtd__LoadReply *)result->reply;
    op->done = result->last;
    op->err = result->err;
    snprintf(op->text, sizeof(op->text), "%s", result->text);
    if (!r)
        return;
    op->needed = r->bytes_needed;
    op->read = r->bytes_read;
    op->step = r->n_scalar == 1 && r->scalar[0]->has_i ? r->scalar[0]->i : -1;
}

void io_load_into(struct io_worker *w, const struct fixture *f, const char *path, int rank, struct io_op *ret)
{
    static struct pieces p;
    Dtd__LoadRequest m = DTD__LOAD_REQUEST__INIT;
    char *names[] = {(char *)(uintptr_t) "train_state.step", (char *)(uintptr_t) "no.such"};
    *ret = (struct io_op){0};
    pieces_make(&p, f, rank);
    m.path = (char *)(uintptr_t)path;
    m.piece = p.pointer;
    m.n_piece = p.n;
    m.scalar = names;
    m.n_scalar = 2;
    assert_ok(rpc_send(w->conn, IO_LOAD, &m.base, 0, load_came, ret, NULL));
}

void io_load(struct io_worker *w, const struct fixture *f, const char *path, int rank, struct io_op *ret)
{
    memset(w->test->maps[w->slot], 0xee, w->test->arena_bytes);
    io_load_into(w, f, path, rank, ret);
}

void io_check_loaded(const struct io_worker *w, const struct fixture *f, int rank)
{
    static struct pieces p;
    size_t n = 0;
    pieces_make(&p, f, rank);
    for (int i = 0; i < f->n_pieces; i++) {
        const struct ckpt_piece *k = &f->pieces[i].piece;
        if (f->pieces[i].rank != rank)
            continue;
        if (memcmp((char *)w->test->maps[w->slot] + p.piece[n++].arena_offset, k->data, piece_bytes(k)) != 0)
            fail_msg("%s of rank %d came back wrong", k->fqn, rank);
    }
}
