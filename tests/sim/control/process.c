#include "tests/sim/control/process.h"

#include "common/rpc/link.h"
#include "common/rpc/methods.h"
#include "proto/io.pb-c.h"
#include "proto/worker.pb-c.h"
#include "tests/sim/control/ledger.h"
#include "tests/sim/control/machine.h"
#include "tests/sim/stream.h"

#include <assert.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_JOBS 64 /* of a run */
#define MAX_FOLDERS 256
#define RETRY_US (30 * US_PER_MS) /* interval for testing whether other ranks have arrived */
#define ORPHAN_US (20 * US_PER_S) /* run.orphan_seconds of the jobs in people.c */
#define HANG_US (3600 * US_PER_S) /* longer than any run: the process hangs until it is killed */
#define MEET_MS 300000            /* longer than any start of an epoch */
#define LEFT_US (150 * US_PER_S)  /* a job that leaves a drained node gives its ranks 120 s */

enum doing { IDLE, LOADING, LEFT, MEETING, STEPPING, SAVING, OVER, FAILED };

struct report {
    TAILQ_ENTRY(report) link;
    struct process *process;
    bool is_sent;
    int kind;
    uint64_t epoch;
    int64_t step;
};

struct process {
    LIST_ENTRY(process) link;
    struct host *host;
    struct machine *machine;
    uint64_t job, nth; /* nth: ledger_nth */
    int slot, pid;
    uint8_t token[CHANNEL_TOKEN_BYTES];
    uv_loop_t loop;
    struct rpc_link *control;
    bool is_ready; /* the Hello has been answered */
    int64_t alone_since;
    TAILQ_HEAD(, report) reports;
    enum doing doing;
    uint64_t epoch; /* worker: the epoch it is in; dtd-io: the epoch that control named last */
    int rank, world;
    int64_t step, steps, every;
    bool is_committer, stops;
    int met; /* number of ranks whose key it has read */
    int64_t left_since;
    Dtd__WorkerCommand *next; /* a START for a later epoch, obeyed after this epoch is left */
    struct event *work;
    bool is_command;
};

static LIST_HEAD(, process) living;

/* Shared by all computers of a branch of the log: one folder for each job. In reality one directory is for all, and its
 * lease keeps those out that were lost in a recovery. */
static struct folder {
    struct {
        int64_t step;
        uint64_t epoch;
    } steps[MAX_FOLDERS];
    int n;
    int64_t asked_step;          /* a save that waits for its dtd-io; 0: none */
    uint64_t asked_epoch, fence; /* saves of older epochs than `fence` are refused */
} folders[CHECK_MAX_BRANCHES][MAX_JOBS];

/* Number of a command's ranks that have started its newest epoch. */
static struct arrived_ranks {
    uint64_t epoch;
    int n;
} arrived_ranks[CHECK_MAX_BRANCHES][MAX_JOBS];

static bool they_meet;

void process_init(bool meets)
{
    they_meet = meets;
    LIST_INIT(&living);
    memset(folders, 0, sizeof(folders));
    memset(arrived_ranks, 0, sizeof(arrived_ranks));
}

void process_fork(int from, int to)
{
    memcpy(folders[to], folders[from], sizeof(folders[to]));
    memcpy(arrived_ranks[to], arrived_ranks[from], sizeof(arrived_ranks[to]));
}

static struct folder *folder_of(const struct process *p)
{
    return &folders[p->machine->branch][p->nth];
}

static struct arrived_ranks *arrived_of(const struct process *p)
{
    return &arrived_ranks[p->machine->branch][p->nth];
}

static bool is_io(const struct process *p)
{
    return p->slot == CHANNEL_SLOT_IO;
}

static int64_t draw_ms(int64_t low_ms, int64_t high_ms)
{
    return world_between(FROM_WORKERS, low_ms * US_PER_MS, high_ms * US_PER_MS);
}

static void process_work(void *arg);

static void work_in(struct process *p, int64_t us)
{
    if (p->work)
        world_cancel(p->work);
    p->work = world_after(p->host, us, process_work, p);
}

/* ---- end of a process ---- */

static void end_process(struct process *p, bool power)
{
    if (p->host->is_up) {
        host_down(p->host);
        stream_forget(p->host, !power);
    }
    p->work = NULL;
    LIST_REMOVE(p, link);
    ledger_left(p->job, p->pid);
}

static void end_now(struct process *p, int status, int sig)
{
    end_process(p, false);
    trace("process %d of job %d slot %d ends (%d, signal %d)", p->pid, (int)p->job, p->slot, status, sig);
    machine_child_ended(p->machine, p, status, sig);
}

static void quit_process(void *arg)
{
    struct process *p = arg;
    end_now(p, 0, 0);
}

static void terminated(void *arg)
{
    end_now(arg, 0, SIGTERM);
}

void process_signal(struct process *p, int sig)
{
    if (p->is_command && sig == SIGTERM) { /* some commands ignore SIGTERM */
        if (world_chance(FROM_WORKERS, 0.9))
            world_after(p->host, draw_ms(1, 3000), terminated, p);
        return;
    }
    if (sig == SIGKILL || sig == SIGTERM)
        end_now(p, 0, sig);
}

void process_forget(struct process *p, bool power)
{
    end_process(p, power);
}

/* ---- reports ---- */

static void report_answered(void *arg, const struct rpc_result *result);

static err_t send_worker(struct process *p, struct rpc_conn *conn, struct report *r)
{
    Dtd__WorkerReport m = DTD__WORKER_REPORT__INIT;
    Dtd__Metric metric = DTD__METRIC__INIT;
    m.kind = (Dtd__WorkerReport__Kind)r->kind;
    m.epoch = r->epoch;
    m.rank = p->rank;
    m.text = "as the simulation has it";
    m.has_step = true;
    m.step = r->step;
    if (r->kind == DTD__WORKER_REPORT__KIND__METRIC) {
        metric.step = r->step;
        metric.epoch = r->epoch;
        metric.loss = 1;
        metric.workers = p->world;
        metric.wall_ms = host_wall_us(p->host) / US_PER_MS;
        m.metric = &metric;
    }
    return rpc_send(conn, WORKER_REPORT, &m.base, 0, report_answered, r, NULL);
}

static err_t send_io(struct rpc_conn *conn, struct report *r)
{
    Dtd__IoReport m = DTD__IO_REPORT__INIT;
    Dtd__Checkpoint c = DTD__CHECKPOINT__INIT;
    char job[24], path[64];
    const struct process *p = r->process;
    m.kind = (Dtd__IoReport__Kind)r->kind;
    m.epoch = r->epoch;
    m.text = "";
    snprintf(job, sizeof(job), "%d", (int)p->job);
    snprintf(path, sizeof(path), "/c/%d/step-%d", (int)p->job, (int)r->step);
    c.job = job;
    c.path = path;
    c.step = r->step;
    c.bytes = 1000;
    c.committed_ms = host_wall_us(p->host) / US_PER_MS;
    const struct folder *f = folder_of(p);
    for (int i = 0; i < f->n; i++)
        if (f->steps[i].step == r->step)
            c.epoch = f->steps[i].epoch;
    if (r->step)
        m.checkpoint = &c;
    return rpc_send(conn, IO_CONTROL_REPORT, &m.base, 0, report_answered, r, NULL);
}

static void send_next_report(struct process *p)
{
    struct rpc_conn *conn = rpc_link_conn(p->control);
    struct report *r;
    if (!p->is_ready || !conn)
        return;
    TAILQ_FOREACH(r, &p->reports, link)
    {
        if (r->is_sent)
            continue;
        if (is_io(p) ? send_io(conn, r) : send_worker(p, conn, r))
            return;
        r->is_sent = true;
        if (is_io(p))
            return; /* one report at a time */
    }
}

static void report_answered(void *arg, const struct rpc_result *result)
{
    struct report *r = arg;
    struct process *p = r->process;
    r->is_sent = false;
    if (result->err == ERR_CLOSED)
        return;
    TAILQ_REMOVE(&p->reports, r, link);
    free(r);
    send_next_report(p);
}

static void add_report(struct process *p, int kind, uint64_t epoch, int64_t step)
{
    struct report *r = calloc(1, sizeof(*r));
    assert(r);
    *r = (struct report){.process = p, .kind = kind, .epoch = epoch, .step = step};
    TAILQ_INSERT_TAIL(&p->reports, r, link);
    send_next_report(p);
}

/* Every new control gets the last state of the epoch. */
static void report_state(struct process *p)
{
    static const int kinds[] = {[STEPPING] = DTD__WORKER_REPORT__KIND__READY,
                                [SAVING] = DTD__WORKER_REPORT__KIND__READY,
                                [OVER] = DTD__WORKER_REPORT__KIND__DONE,
                                [FAILED] = DTD__WORKER_REPORT__KIND__FAILED};
    if (!is_io(p) && kinds[p->doing])
        add_report(p, kinds[p->doing], p->epoch, p->step);
}

/* ---- steps ---- */

static void begin_epoch(struct process *p, const Dtd__WorkerCommand *c);

static void leave_epoch(struct process *p)
{
    uint64_t epoch = p->epoch;
    p->epoch = 0;
    p->doing = IDLE;
    p->stops = false;
    ledger_left(p->job, p->pid);
    add_report(p, DTD__WORKER_REPORT__KIND__IDLE, epoch, 0);
    if (p->next) {
        begin_epoch(p, p->next);
        p->next = NULL;
    }
}

static bool is_peer(const struct process *p, const struct process *q)
{
    return q->job == p->job && !is_io(q) && q->epoch == p->epoch && q->host->is_up;
}

/* All ranks are in the epoch and have reached this step. */
static bool all_are_here(const struct process *p)
{
    const struct process *q;
    int n = 0;
    LIST_FOREACH(q, &living, link)
    {
        n += is_peer(p, q) && q->doing >= STEPPING && q->doing != FAILED && q->step >= p->step;
    }
    return n >= p->world;
}

static bool is_saved(const struct process *p)
{
    const struct folder *f = folder_of(p);
    for (int i = 0; i < f->n; i++)
        if (f->steps[i].step == p->step)
            return true;
    return false;
}

static void ask_save(const struct process *p)
{
    struct folder *f = folder_of(p);
    if (p->rank == 0 && p->epoch >= f->fence && !is_saved(p)) {
        f->asked_step = p->step;
        f->asked_epoch = p->epoch;
    }
}

static void step_worker(struct process *p)
{
    bool is_last = p->step >= p->steps;
    if (!is_last && !p->stops && !all_are_here(p)) {
        work_in(p, RETRY_US);
        return;
    }
    if (is_last || p->stops) {
        ask_save(p);
        p->doing = SAVING;
        work_in(p, RETRY_US);
        return;
    }
    p->step++;
    if (p->rank == 0)
        add_report(p, DTD__WORKER_REPORT__KIND__METRIC, p->epoch, p->step);
    if (p->step % p->every == 0)
        ask_save(p);
    work_in(p, draw_ms(30, 120));
}

/* A stop waits a limited time for its save; the end of the job waits without limit. */
static void save_worker(struct process *p)
{
    bool is_over = is_saved(p) || (p->stops && world_chance(FROM_WORKERS, 0.02));
    if (!is_over) {
        ask_save(p);
        work_in(p, RETRY_US);
        return;
    }
    p->doing = OVER;
    if (p->step >= p->steps)
        ledger_done(p->job, p->epoch, p->rank, p->machine);
    add_report(p, DTD__WORKER_REPORT__KIND__DONE, p->epoch, p->step);
}

/* ---- meeting: each rank puts a key into the epoch's store and reads the keys of all others ---- */

static void fail_process(void *arg);

static void meeting_done(struct process *p)
{
    p->doing = STEPPING;
    add_report(p, DTD__WORKER_REPORT__KIND__READY, p->epoch, p->step);
    work_in(p, draw_ms(10, 100));
}

static void get_next_key(struct process *p);

/* If control answers that the epoch has ended, the worker leaves it and waits for the command to do so. A closed
 * connection counts as no answer. */
static bool is_refused(struct process *p, const struct rpc_result *result)
{
    if (p->doing != MEETING || !result->err)
        return p->doing != MEETING;
    if (result->err == ERR_STALE) {
        p->doing = LEFT;
        p->left_since = world.now_us;
    } else if (result->err != ERR_CLOSED) {
        fail_process(p);
    }
    return true;
}

static void key_put(void *arg, const struct rpc_result *result)
{
    is_refused(arg, result);
}

static void key_read(void *arg, const struct rpc_result *result)
{
    struct process *p = arg;
    if (is_refused(p, result))
        return;
    if (++p->met == p->world)
        meeting_done(p);
    else
        get_next_key(p);
}

/* Returns false if the call was not sent; it is sent after the next Hello. */
static bool send_call(struct process *p, uint16_t method, const ProtobufCMessage *m, rpc_callback cb)
{
    struct rpc_conn *conn = rpc_link_conn(p->control);
    bool is_sent = conn && p->is_ready && rpc_send(conn, method, m, 0, cb, p, NULL) == OK;
    if (conn && p->is_ready && !is_sent)
        rpc_link_reset(p->control);
    return is_sent;
}

static void get_next_key(struct process *p)
{
    char key[16];
    snprintf(key, sizeof(key), "here/%d", p->met);
    Dtd__StoreGetRequest m = DTD__STORE_GET_REQUEST__INIT;
    m.epoch = p->epoch;
    m.key = key;
    m.timeout_ms = MEET_MS;
    (void)send_call(p, WORKER_STORE_GET, &m.base, key_read);
}

/* The key goes to every control of the epoch, because a new control has an empty store. */
static void start_meeting(struct process *p)
{
    Dtd__StorePutRequest m = DTD__STORE_PUT_REQUEST__INIT;
    char key[16];
    snprintf(key, sizeof(key), "here/%d", p->rank);
    m.value = (ProtobufCBinaryData){1, (uint8_t *)"!"};
    m.epoch = p->epoch;
    m.key = key;
    if (send_call(p, WORKER_STORE_PUT, &m.base, key_put) && p->doing == MEETING)
        get_next_key(p);
}

static void work_worker(struct process *p)
{
    if (p->doing == LOADING && they_meet) {
        p->doing = MEETING;
        p->met = 0;
        start_meeting(p);
    } else if (p->doing == LOADING) {
        meeting_done(p);
    } else if (p->doing == LEFT && world.now_us - p->left_since > LEFT_US) {
        broken("rank %d of job %" PRIu64 " was answered that epoch %" PRIu64
               " has ended, but got no command to leave it",
               p->rank, p->job, p->epoch);
    } else if (p->doing == STEPPING) {
        step_worker(p);
    } else if (p->doing == SAVING) {
        save_worker(p);
    }
}

/* dtd-io commits the saves that its epoch has requested. */
static void work_io(struct process *p)
{
    struct folder *f = folder_of(p);
    if (p->is_committer && f->asked_step && f->asked_epoch == p->epoch && p->epoch >= f->fence) {
        assert(f->n < MAX_FOLDERS);
        f->steps[f->n].step = f->asked_step;
        f->steps[f->n++].epoch = p->epoch;
        add_report(p, DTD__IO_REPORT__KIND__COMMITTED, p->epoch, f->asked_step);
        f->asked_step = 0;
    }
    work_in(p, draw_ms(20, 80));
}

static void work_command(struct process *p)
{
    if (arrived_of(p)->epoch != p->epoch || arrived_of(p)->n < p->world) {
        work_in(p, RETRY_US);
    } else if (++p->step < p->steps) {
        work_in(p, draw_ms(30, 120));
    } else if (world_chance(FROM_WORKERS, 0.97)) {
        ledger_done(p->job, p->epoch, p->rank, p->machine);
        end_now(p, 0, 0);
    } else {
        end_now(p, 1, 0);
    }
}

static void process_work(void *arg)
{
    struct process *p = arg;
    p->work = NULL;
    if (p->is_command) {
        work_command(p);
        return;
    }
    if (!p->is_ready && world.now_us - p->alone_since > ORPHAN_US) {
        end_now(p, 1, 0);
        return;
    }
    if (is_io(p))
        work_io(p);
    else
        work_worker(p);
    if (!p->work && p->host->is_up)
        work_in(p, US_PER_S);
}

/* ---- commands ---- */

static int64_t yaml_number(const char *yaml, const char *key)
{
    const char *at = strstr(yaml, key);
    assert(at);
    return atoi(at + strlen(key));
}

static void begin_epoch(struct process *p, const Dtd__WorkerCommand *c)
{
    ledger_begun(p->job, p->pid, c->epoch, c->rank, p->machine, p->slot, c->resume_step);
    p->epoch = c->epoch;
    p->rank = c->rank;
    p->world = c->world;
    p->step = c->resume_step;
    p->steps = yaml_number(c->spec_yaml, "steps: ");
    p->every = yaml_number(c->spec_yaml, "every: ");
    p->doing = LOADING;
    work_in(p, draw_ms(20, 600));
}

static Dtd__WorkerCommand *copy_of(const Dtd__WorkerCommand *c)
{
    uint8_t *bytes = malloc(dtd__worker_command__get_packed_size(c));
    return dtd__worker_command__unpack(NULL, dtd__worker_command__pack(c, bytes), bytes);
}

static void later_leave(void *arg)
{
    struct process *p = arg;
    if (p->epoch)
        leave_epoch(p);
}

static void worker_command(void *arg, const struct rpc_result *result)
{
    struct process *p = arg;
    const Dtd__WorkerCommand *c = (const Dtd__WorkerCommand *)(const void *)result->reply;
    if (!c) {
        if (result->err != ERR_CLOSED)
            rpc_link_reset(p->control);
        return;
    }
    trace("process %d of job %d gets command %d, epoch %d", p->pid, (int)p->job, (int)c->kind, (int)c->epoch);
    switch (c->kind) {
    case DTD__WORKER_COMMAND__KIND__START:
        if (c->epoch <= p->epoch || (p->next && c->epoch <= p->next->epoch))
            return;
        if (!p->epoch) {
            begin_epoch(p, c);
            return;
        }
        p->next = copy_of(c);
        world_after(p->host, draw_ms(1, 200), later_leave, p);
        return;
    case DTD__WORKER_COMMAND__KIND__END:
        if (p->epoch && c->epoch >= p->epoch)
            world_after(p->host, draw_ms(1, 300), later_leave, p);
        else if (!p->epoch)
            add_report(p, DTD__WORKER_REPORT__KIND__IDLE, c->epoch, 0);
        return;
    case DTD__WORKER_COMMAND__KIND__STOP:
        p->stops = true;
        return;
    case DTD__WORKER_COMMAND__KIND__QUIT:
        world_after(p->host, draw_ms(1, 100), quit_process, p);
        return;
    default:
        return;
    }
}

static void scan_folder(struct process *p)
{
    const struct folder *f = folder_of(p);
    for (int i = 0; i < f->n; i++)
        add_report(p, DTD__IO_REPORT__KIND__COMMITTED, 0, f->steps[i].step);
    add_report(p, DTD__IO_REPORT__KIND__SCANNED, 0, 0);
}

/* Steps after the one from which the epoch resumes belong to a discarded history. */
static void take_epoch(struct process *p, const Dtd__IoCommand *c)
{
    struct folder *f = folder_of(p);
    if (c->epoch <= p->epoch)
        return;
    p->epoch = c->epoch;
    p->is_committer = !c->has_committer || c->committer;
    if (!p->is_committer || c->epoch <= f->fence)
        return;
    f->fence = c->epoch;
    int n = 0;
    for (int i = 0; i < f->n; i++)
        if (f->steps[i].step <= c->step)
            f->steps[n++] = f->steps[i];
    f->n = n;
}

static void remove_step(struct process *p, int64_t step)
{
    struct folder *f = folder_of(p);
    int n = 0;
    add_report(p, DTD__IO_REPORT__KIND__REMOVED, p->epoch, step);
    for (int i = 0; i < f->n; i++)
        if (f->steps[i].step != step)
            f->steps[n++] = f->steps[i];
    f->n = n;
}

static void io_command(void *arg, const struct rpc_result *result)
{
    struct process *p = arg;
    const Dtd__IoCommand *c = (const Dtd__IoCommand *)(const void *)result->reply;
    if (!c) {
        if (result->err != ERR_CLOSED)
            rpc_link_reset(p->control);
        return;
    }
    switch (c->kind) {
    case DTD__IO_COMMAND__KIND__SCAN:
        scan_folder(p);
        return;
    case DTD__IO_COMMAND__KIND__EPOCH:
        take_epoch(p, c);
        return;
    case DTD__IO_COMMAND__KIND__REMOVE:
        remove_step(p, c->step);
        return;
    case DTD__IO_COMMAND__KIND__QUIT:
        world_after(p->host, draw_ms(1, 100), quit_process, p);
        return;
    default:
        return;
    }
}

/* ---- the connection ---- */

static void hello_answered(void *arg, const struct rpc_result *result)
{
    struct process *p = arg;
    struct rpc_conn *conn = rpc_link_conn(p->control);
    Dtd__Empty empty = DTD__EMPTY__INIT;
    if (result->err || !conn) {
        rpc_link_reset(p->control);
        return;
    }
    if (rpc_send(conn, is_io(p) ? IO_CONTROL_COMMANDS : WORKER_COMMANDS, &empty.base, 0,
                 is_io(p) ? io_command : worker_command, p, NULL)) {
        rpc_link_reset(p->control);
        return;
    }
    rpc_link_healthy(p->control);
    p->is_ready = true;
    report_state(p);
    send_next_report(p);
    if (they_meet && !is_io(p) && p->epoch && p->doing >= MEETING)
        start_meeting(p);
}

static void link_up(void *owner, struct rpc_conn *conn)
{
    struct process *p = owner;
    Dtd__WorkerHello w = DTD__WORKER_HELLO__INIT;
    Dtd__IoControlHello i = DTD__IO_CONTROL_HELLO__INIT;
    char job[24];
    snprintf(job, sizeof(job), "%d", (int)p->job);
    w.job = i.job = job;
    w.token = i.token = (ProtobufCBinaryData){sizeof(p->token), p->token};
    w.pid = i.pid = p->pid;
    w.slot = p->slot;
    w.has_epoch = p->epoch != 0;
    w.epoch = p->epoch;
    if (rpc_send(conn, is_io(p) ? IO_CONTROL_HELLO : WORKER_HELLO, is_io(p) ? &i.base : &w.base, 10000, hello_answered,
                 p, NULL))
        rpc_link_reset(p->control);
}

static void link_down(void *owner, err_t err)
{
    struct process *p = owner;
    (void)err;
    if (p->is_ready)
        p->alone_since = world.now_us;
    p->is_ready = false;
}

static void start_worker(void *arg)
{
    struct process *p = arg;
    uv_loop_init(&p->loop);
    const struct rpc_link_config config = {.loop = &p->loop,
                                           .path = "/control.sock",
                                           .methods = rpc_methods(),
                                           .n_methods = RPC_METHOD_COUNT,
                                           .roles = RPC_ROLE_ANY,
                                           .owner = p,
                                           .on_up = link_up,
                                           .on_down = link_down};
    err_t err = rpc_link_open(&config, &p->control);
    assert(!err);
    p->alone_since = world.now_us;
    work_in(p, draw_ms(10, 50));
}

/* The words of a command's environment are within one variable, separated by bytes 1 (common/base/caller.h). */
static int64_t env_number(const struct channel_msg *spawn, const char *key)
{
    int64_t value = -1; /* a later entry overrides an earlier one */
    const char *end = spawn->env + spawn->env_bytes;
    size_t len = strlen(key);
    for (const char *at = spawn->env; at + len < end; at++) {
        bool is_word = at == spawn->env || at[-1] == '\0' || at[-1] == '\1' || at[-1] == '=';
        if (is_word && memcmp(at, key, len) == 0)
            value = atoi(at + len);
    }
    assert(value >= 0);
    return value;
}

static void first_of_command(void *arg)
{
    struct process *p = arg;
    ledger_begun(p->job, p->pid, p->epoch, p->rank, p->machine, p->slot, 0);
    struct arrived_ranks *a = arrived_of(p);
    if (a->epoch < p->epoch)
        *a = (struct arrived_ranks){.epoch = p->epoch};
    a->n += a->epoch == p->epoch;
    work_in(p, draw_ms(10, 50));
}

struct process *process_start(struct machine *m, const struct channel_msg *spawn, int pid)
{
    uint64_t job = spawn->job;
    int slot = spawn->slot;
    struct process *p = calloc(1, sizeof(*p));
    assert(p);
    *p = (struct process){.host = host_beside(m->host), .machine = m, .job = job, .slot = slot, .pid = pid, .every = 1};
    p->nth = ledger_nth(m, job);
    assert(p->nth < MAX_JOBS);
    memcpy(p->token, spawn->token, sizeof(p->token));
    TAILQ_INIT(&p->reports);
    LIST_INSERT_HEAD(&living, p, link);
    host_up(p->host);
    trace("host %d starts process %d of job %d slot %d", m->host->id, pid, (int)job, slot);
    p->is_command = spawn->n_args > 0;
    if (p->is_command) {
        p->rank = (int)env_number(spawn, "RANK=");
        p->world = (int)env_number(spawn, "WORLD_SIZE=");
        p->epoch = (uint64_t)env_number(spawn, "MASTER_PORT="); /* stores.c uses the epoch as the port */
        p->steps = world_between(FROM_WORKERS, 1, 60);
    }
    world_after(p->host, draw_ms(1, 300), p->is_command ? first_of_command : start_worker, p);
    return p;
}

/* ---- faults ---- */

static struct process *one_on(const struct machine *m)
{
    struct process *p, *found = NULL;
    int n = 0;
    LIST_FOREACH(p, &living, link)
    {
        if (p->machine == m && world_between(FROM_FAULTS, 0, n++) == 0)
            found = p;
    }
    return found;
}

void process_kill_one(const struct machine *m)
{
    struct process *p = one_on(m);
    if (p)
        end_now(p, world_chance(FROM_FAULTS, 0.5) ? 1 : 0, SIGSEGV);
}

void process_hang_one(const struct machine *m)
{
    struct process *p = one_on(m);
    if (p)
        host_stall(p->host, world_chance(FROM_FAULTS, 0.5) && !p->is_command ? HANG_US : draw_ms(100, 8000));
}

static void fail_process(void *arg)
{
    struct process *p = arg;
    if (p->is_command) {
        end_now(p, 1, 0);
        return;
    }
    if (is_io(p) || p->doing == IDLE || p->doing == OVER)
        return;
    p->doing = FAILED;
    add_report(p, DTD__WORKER_REPORT__KIND__FAILED, p->epoch, 0);
}

void process_fail_one(const struct machine *m)
{
    struct process *p = one_on(m);
    if (p && !is_io(p))
        world_after(p->host, 0, fail_process, p);
}

int process_count_on(const struct machine *m)
{
    const struct process *p;
    int n = 0;
    LIST_FOREACH(p, &living, link)
    {
        n += p->machine == m;
    }
    return n;
}

int process_count(uint64_t job)
{
    const struct process *p;
    int n = 0;
    LIST_FOREACH(p, &living, link)
    {
        n += !job || p->job == job;
    }
    return n;
}
