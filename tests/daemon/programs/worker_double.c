/* A worker that uses the real protocol and trains nothing. It replaces dt-worker beside copies of the other programs,
 * so that tests of the daemon need no data and no kernels, and take seconds. Each step is a wait. The job's run.env
 * selects the behavior that differs from a normal worker:
 *
 *   DOUBLE_STEP_MS   length of a step (20)
 *   DOUBLE_BEGIN     FILE: the ranks write "epoch rank pid resume_step" lines to it when an epoch begins
 *   DOUBLE_LAYOUT    FILE: rank 0 writes "epoch workers tp*pp*cp*fsdp auto" of its spec to it when an epoch begins
 *   DOUBLE_FATAL     RANK: reports FAILED, fatal, at its third step
 *   DOUBLE_FAIL      RANK: reports FAILED, not fatal, at its third step of epoch 1
 *   DOUBLE_EXIT      RANK: exits with status 3 at its third step of epoch 1
 *   DOUBLE_DEVICES   FILE: every worker writes its "rank --device" to it when an epoch begins
 *   DOUBLE_DEAF      RANK: ignores the command to leave an epoch
 *   DOUBLE_STORE     FILE: the ranks exchange values in the epoch's rendezvous before they are ready, and write the
 *                    results to FILE
 *   DOUBLE_HOLD      FILE: rank 1 stores nothing until FILE exists
 *   DOUBLE_LATE      FILE: does not open its command stream while FILE exists
 *   DOUBLE_EAT       FILE: rank 1 allocates memory without end as soon as FILE exists
 *   DOUBLE_USAGE     N: each rank reports its usage N times at its third step; it computes 0.1 s in a step, rank 1 0.2
 * s. LIES: rank 1 reports a window that ends before it begins DOUBLE_MISS_MS   how long a rank waits for another rank's
 * value (20000)
 *   DOUBLE_PRINT     N: rank 0 prints N bytes in each step
 *   DOUBLE_FLOOD     FILE: from its third step on, rank 0 reports without a pause that a save has failed, and writes
 * the number of reports that were answered to FILE
 *
 * As a probe, it is controlled by the environment of dtd: DOUBLE_PROBE and DOUBLE_HEALTH name files with the text to
 * print. After a line "hangs" it does not exit; at a line "sleeps MS" it waits so long. It writes its pid to a file
 * with the same name and ".printed", or ".hangs".
 *
 * It has one thread with a loop, a link and a timer. */
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/ticket.h"
#include "common/conf/job.h"
#include "common/rpc/incident.h"
#include "common/rpc/link.h"
#include "common/rpc/methods.h"
#include "proto/worker.pb-c.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct report {
    struct report *next;
    Dtd__WorkerReport msg;
    Dtd__Metric metric;
    Dtd__Usage usage;
    Dtd__FieldValue value, *values[1];
    bool sent;
};

static struct {
    uv_loop_t loop;
    uv_timer_t timer;
    struct rpc_link *link;
    struct ticket ticket;
    const char *job, *device, *slot_text;
    int slot;
    bool ready; /* has opened its command stream */
    uint64_t epoch;
    int rank, world;
    int64_t step, steps;
    bool stepping, stop;
    struct report *reports, state; /* `state`: the epoch's last state report, repeated to a new control */
    bool has_state;
    bool meeting, held;
    int met; /* number of ranks whose values have arrived */
} w;

static int knob(const char *name, int otherwise)
{
    const char *v = getenv(name);
    return v ? atoi(v) : otherwise;
}

/* ---- reports: kept until they are answered ---- */

static void flush(void);

static void answered(void *arg, const struct rpc_result *result)
{
    struct report *r = arg;
    if (result->err == ERR_CLOSED && !r->msg.usage) {
        r->sent = false;
        return;
    }
    for (struct report **at = &w.reports; *at; at = &(*at)->next)
        if (*at == r) {
            *at = r->next;
            break;
        }
    free(r);
}

static void flush(void)
{
    struct rpc_conn *conn = rpc_link_conn(w.link);
    for (struct report *r = w.reports; r && conn && w.ready; r = r->next)
        if (!r->sent && rpc_send(conn, WORKER_REPORT, &r->msg.base, 0, answered, r, NULL) == OK)
            r->sent = true;
}

static struct report *add_report(Dtd__WorkerReport__Kind kind, uint64_t epoch)
{
    struct report *r = calloc(1, sizeof(*r)), **at = &w.reports;
    if (!r)
        abort();
    dtd__worker_report__init(&r->msg);
    r->msg.kind = kind;
    r->msg.epoch = epoch;
    r->msg.rank = w.rank;
    r->msg.text = (char *)(kind == DTD__WORKER_REPORT__KIND__FAILED ? "DOUBLE_FAIL asked for it" : "");
    while (*at)
        at = &(*at)->next;
    *at = r;
    if (kind == DTD__WORKER_REPORT__KIND__USAGE)
        return r;
    w.has_state = kind != DTD__WORKER_REPORT__KIND__METRIC && kind != DTD__WORKER_REPORT__KIND__IDLE;
    if (w.has_state)
        w.state = *r;
    return r;
}

static void report_done(void)
{
    struct report *r = add_report(DTD__WORKER_REPORT__KIND__DONE, w.epoch);
    w.state.msg.has_step = r->msg.has_step = true;
    w.state.msg.step = r->msg.step = w.step;
}

static void report_metric(void)
{
    struct report *r = add_report(DTD__WORKER_REPORT__KIND__METRIC, w.epoch);
    dtd__metric__init(&r->metric);
    r->metric.step = w.step;
    r->metric.loss = 1.0 / (double)w.step;
    r->metric.grad_norm = NAN;
    r->metric.workers = w.world;
    r->metric.epoch = w.epoch;
    r->metric.wall_ms = clock_wall_ms();
    r->msg.metric = &r->metric;
    w.has_state = false;
}

/* Not kept when the connection is lost: else a refused report would be sent again. */
static void report_usage(void)
{
    const char *how = getenv("DOUBLE_USAGE");
    const bool lies = how && strcmp(how, "LIES") == 0 && w.rank == 1;
    for (int i = 0; how && w.step == 3 && i < (lies ? 1 : atoi(how)); i++) {
        struct report *r = add_report(DTD__WORKER_REPORT__KIND__USAGE, w.epoch);
        dtd__usage__init(&r->usage);
        dtd__field_value__init(&r->value);
        r->usage.window_ms = lies ? -5 : 2000;
        r->usage.steps = 10;
        r->usage.step = w.step;
        r->value.name = (char *)"compute_s";
        r->value.has_real = true;
        r->value.real = w.rank == 1 ? 0.2 : 0.1;
        r->values[0] = &r->value;
        r->usage.more = r->values;
        r->usage.n_more = 1;
        r->msg.usage = &r->usage;
    }
}

/* ---- a flood of reports ---- */

static void flood_answered(void *arg, const struct rpc_result *result);

static void flood_send(void)
{
    struct rpc_conn *conn = rpc_link_conn(w.link);
    Dtd__WorkerReport m = DTD__WORKER_REPORT__INIT;
    m.kind = DTD__WORKER_REPORT__KIND__SAVE_FAILED;
    m.epoch = w.epoch;
    m.rank = w.rank;
    m.text = (char *)"the same again";
    if (conn && w.ready)
        (void)!rpc_send(conn, WORKER_REPORT, &m.base, 0, flood_answered, NULL, NULL);
}

static void flood_answered(void *arg, const struct rpc_result *result)
{
    static int n;
    static int64_t written_ms;
    (void)arg;
    n += !result->err;
    if (clock_mono_ms() - written_ms >= 100) {
        FILE *f = fopen(getenv("DOUBLE_FLOOD"), "w");
        if (f) {
            fprintf(f, "%d\n", n);
            fclose(f);
        }
        written_ms = clock_mono_ms();
    }
    flood_send();
}

/* 100 reports are under way at any time. */
static void flood_begin(void)
{
    for (int i = 0; getenv("DOUBLE_FLOOD") && w.step == 3 && w.rank == 0 && i < 100; i++)
        flood_send();
}

/* ---- steps ---- */

static void meet_begin(void);

static void misbehave(void)
{
    if (w.step != 3)
        return;
    if (knob("DOUBLE_FATAL", -1) == w.rank) {
        struct report *r = add_report(DTD__WORKER_REPORT__KIND__FAILED, w.epoch);
        r->msg.has_fatal = r->msg.fatal = 1;
        w.stepping = false;
    } else if (w.epoch == 1 && knob("DOUBLE_FAIL", -1) == w.rank) {
        add_report(DTD__WORKER_REPORT__KIND__FAILED, w.epoch);
        w.stepping = false;
    } else if (w.epoch == 1 && knob("DOUBLE_EXIT", -1) == w.rank) {
        exit(3);
    }
}

static void exhaust_memory(void)
{
    const char *path = getenv("DOUBLE_EAT");
    if (!path || w.rank != 1 || w.epoch != 1 || access(path, F_OK))
        return;
    for (;;)
        memset(malloc(1 << 20), 1, 1 << 20);
}

static void print_much(void)
{
    static char line[64];
    memset(line, 'x', sizeof(line) - 1);
    for (int left = w.rank == 0 ? knob("DOUBLE_PRINT", 0) : 0; left > 0; left -= (int)sizeof(line))
        puts(line);
}

static void on_step(uv_timer_t *timer)
{
    if (w.meeting && w.held && w.ready)
        meet_begin();
    if (!w.stepping)
        return;
    w.step++;
    exhaust_memory();
    misbehave();
    if (!w.stepping) {
        flush();
        return;
    }
    report_usage();
    flood_begin();
    print_much();
    if (w.rank == 0)
        report_metric();
    if (w.step >= w.steps || w.stop) {
        w.stepping = false;
        report_done();
    }
    flush();
}

static void write_begin(int64_t resume_step)
{
    const char *path = getenv("DOUBLE_BEGIN");
    FILE *f = path ? fopen(path, "a") : NULL;
    if (!f)
        return;
    fprintf(f, "%llu %d %d %lld\n", (unsigned long long)w.epoch, w.rank, getpid(), (long long)resume_step);
    fclose(f);
}

static void write_layout(const struct job_spec *spec)
{
    const struct job_parallel *p = &spec->parallel;
    const char *path = getenv("DOUBLE_LAYOUT");
    FILE *f = path && w.rank == 0 ? fopen(path, "a") : NULL;
    if (!f)
        return;
    fprintf(f, "%llu %lld %lld %d\n", (unsigned long long)w.epoch, (long long)p->workers,
            (long long)(p->tp * p->pp * p->cp * p->fsdp), p->automatic);
    fclose(f);
}

/* ---- the rendezvous ---- */

static void begin_steps(void);
static void meet(void);

static void write_met(const char *what, int n)
{
    FILE *f = fopen(getenv("DOUBLE_STORE"), "a");
    if (!f)
        abort();
    fprintf(f, "epoch %llu rank %d %s %d\n", (unsigned long long)w.epoch, w.rank, what, n);
    fclose(f);
}

static void meet_failed(const struct rpc_result *result)
{
    static char text[1024];
    snprintf(text, sizeof(text), "%s: %s", err_name(result->err), result->text);
    add_report(DTD__WORKER_REPORT__KIND__FAILED, w.epoch)->msg.text = text;
    w.meeting = false;
    flush();
}

static void put_answered(void *arg, const struct rpc_result *result)
{
    if (result->err && result->err != ERR_CLOSED && w.meeting)
        meet_failed(result);
}

static void refusal_answered(void *arg, const struct rpc_result *result)
{
    if (result->err != ERR_CLOSED && w.meeting)
        write_met(arg, result->err);
}

static void store_put(uint64_t epoch, const char *key, int value, rpc_callback cb, const char *arg)
{
    char text[16];
    Dtd__StorePutRequest m = DTD__STORE_PUT_REQUEST__INIT;
    m.epoch = epoch;
    m.key = (char *)key;
    m.value.len = (size_t)snprintf(text, sizeof(text), "%d", value);
    m.value.data = (uint8_t *)text;
    if (rpc_send(rpc_link_conn(w.link), WORKER_STORE_PUT, &m.base, 0, cb, (void *)arg, NULL))
        abort();
}

static void get_answered(void *arg, const struct rpc_result *result)
{
    const Dtd__StoreValue *v = (const Dtd__StoreValue *)result->reply;
    char text[16];
    if (!w.meeting || result->err == ERR_CLOSED)
        return; /* repeated after the next Hello */
    if (result->err) {
        meet_failed(result);
        return;
    }
    snprintf(text, sizeof(text), "%d", w.met + 1000);
    if (v->value.len != strlen(text) || memcmp(v->value.data, text, v->value.len) != 0)
        abort();
    w.met++;
    meet();
}

static void get_next(void)
{
    char key[32];
    Dtd__StoreGetRequest m = DTD__STORE_GET_REQUEST__INIT;
    snprintf(key, sizeof(key), "here/%d", w.met);
    m.epoch = w.epoch;
    m.key = key;
    m.timeout_ms = (uint32_t)knob("DOUBLE_MISS_MS", 20000);
    if (rpc_send(rpc_link_conn(w.link), WORKER_STORE_GET, &m.base, 0, get_answered, NULL, NULL))
        abort();
}

/* Stores this rank's value and gets the values that have not arrived yet: at the beginning, and again from each new
 * control. */
static void meet_begin(void)
{
    char key[32];
    const char *hold = getenv("DOUBLE_HOLD");
    w.held = hold && w.rank == 1 && access(hold, F_OK) != 0;
    if (w.held)
        return;
    snprintf(key, sizeof(key), "here/%d", w.rank);
    store_put(w.epoch, key, w.rank + 1000, put_answered, NULL);
    store_put(w.epoch, "one/of/us", w.rank, refusal_answered, "one");
    store_put(w.epoch + 1, key, 0, refusal_answered, "later");
    meet();
}

static void meet(void)
{
    if (w.met < w.world) {
        get_next();
        return;
    }
    write_met("met", w.met);
    w.meeting = false;
    begin_steps();
    flush();
}

/* ---- commands ---- */

static void write_device(void)
{
    const char *path = getenv("DOUBLE_DEVICES");
    FILE *f = path ? fopen(path, "a") : NULL;
    if (!f)
        return;
    fprintf(f, "%s %d on %s\n", w.job, w.rank, w.device ? w.device : "none");
    fclose(f);
}

/* Rank 1 takes longest, though not for its data. */
static const double load_parts[2][LOAD_PARTS] = {{9, 1, 1, 1, 1}, {1, 2, 4, 8, 16}};

static void begin_steps(void)
{
    w.stepping = w.step < w.steps;
    struct report *r = add_report(DTD__WORKER_REPORT__KIND__READY, w.epoch);
    w.state.msg.part_ms = r->msg.part_ms = (double *)load_parts[w.rank == 1];
    w.state.msg.n_part_ms = r->msg.n_part_ms = LOAD_PARTS;
    if (!w.stepping)
        report_done();
}

static void start(const Dtd__WorkerCommand *c)
{
    struct job_spec spec;
    struct why why;
    if (c->epoch <= w.epoch)
        return;
    if (job_parse("start", c->spec_yaml, strlen(c->spec_yaml), NULL, 0, &spec, &why)) {
        fprintf(stderr, "%s\n", why.text);
        exit(4);
    }
    w.steps = spec.train.steps;
    w.epoch = c->epoch;
    w.rank = c->rank;
    write_layout(&spec);
    job_fini(&spec);
    w.world = c->world;
    w.step = c->resume_step;
    w.stop = false;
    w.met = 0;
    write_begin(c->resume_step);
    write_device();
    printf("rank %d begins epoch %llu\n", w.rank, (unsigned long long)w.epoch);
    w.meeting = getenv("DOUBLE_STORE") != NULL;
    if (w.meeting)
        meet_begin();
    else
        begin_steps();
}

static void command_came(void *arg, const struct rpc_result *result)
{
    const Dtd__WorkerCommand *c = (const Dtd__WorkerCommand *)result->reply;
    if (!c)
        return;
    switch (c->kind) {
    case DTD__WORKER_COMMAND__KIND__START:
        start(c);
        break;
    case DTD__WORKER_COMMAND__KIND__END:
        if (knob("DOUBLE_DEAF", -1) == w.rank)
            break;
        w.stepping = w.meeting = false;
        add_report(DTD__WORKER_REPORT__KIND__IDLE, c->epoch);
        w.epoch = 0;
        break;
    case DTD__WORKER_COMMAND__KIND__STOP:
        w.stop = true;
        break;
    default:
        exit(0);
    }
    flush();
}

/* ---- the connection ---- */

static void hello_answered(void *arg, const struct rpc_result *result)
{
    struct rpc_conn *conn = rpc_link_conn(w.link);
    Dtd__Empty empty = DTD__EMPTY__INIT;
    if (result->err || !conn || rpc_send(conn, WORKER_COMMANDS, &empty.base, 0, command_came, NULL, NULL)) {
        rpc_link_reset(w.link);
        return;
    }
    rpc_link_healthy(w.link);
    w.ready = true;
    if (w.has_state) {
        struct report again = w.state;
        *add_report(again.msg.kind, again.msg.epoch) = (struct report){.msg = again.msg};
    }
    if (w.meeting)
        meet_begin();
    flush();
}

static void link_up(void *owner, struct rpc_conn *conn)
{
    Dtd__WorkerHello h = DTD__WORKER_HELLO__INIT;
    h.job = (char *)w.job;
    h.slot = w.slot;
    h.token.data = w.ticket.token;
    h.token.len = sizeof(w.ticket.token);
    h.pid = getpid();
    h.has_epoch = w.epoch != 0;
    h.epoch = w.epoch;
    if (rpc_send(conn, WORKER_HELLO, &h.base, 5000, hello_answered, NULL, NULL))
        rpc_link_reset(w.link);
}

static void link_down(void *owner, err_t err)
{
    w.ready = false;
}

/* Prints the text of the file that the environment variable names; without the variable, the text lists no GPUs. */
static int print_text(const char *variable)
{
    const char *path = getenv(variable), *none = "{\"gpus\": [], \"gpu_missing\": \"the double has none\"}";
    FILE *f = path ? fopen(path, "r") : NULL;
    char line[1024];
    if (!path)
        return puts(none) < 0;
    if (!f) {
        fprintf(stderr, "no %s\n", path);
        return 1;
    }
    char mark[4096];
    bool hangs = false;
    while (fgets(line, sizeof(line), f)) {
        unsigned ms;
        hangs = hangs || strcmp(line, "hangs\n") == 0;
        if (sscanf(line, "sleeps %u", &ms) == 1)
            usleep(1000 * ms);
        else
            fputs(line, stdout);
    }
    fclose(f);
    snprintf(mark, sizeof(mark), "%s.%s", path, hangs ? "hangs" : "printed");
    f = fopen(mark, "w");
    if (f) {
        fprintf(f, "%d\n", getpid());
        fclose(f);
    }
    if (hangs)
        pause();
    return 0;
}

static int probe(void)
{
    int rc = print_text("DOUBLE_PROBE");
    if (rc == 0 && getenv("DOUBLE_PROBE_HANGS"))
        pause();
    return rc;
}

static void take_arguments(int argc, char **argv)
{
    const struct {
        const char *name, **value;
    } options[] = {{"--job", &w.job}, {"--slot", &w.slot_text}, {"--device", &w.device}};
    for (int i = 1; i + 1 < argc; i += 2)
        for (size_t k = 0; k < sizeof(options) / sizeof(options[0]); k++)
            if (strcmp(argv[i], options[k].name) == 0)
                *options[k].value = argv[i + 1];
    if (argc % 2 == 0 || !w.job || !w.slot_text) {
        fprintf(stderr, "usage: --job ID --slot K [--device K]\n");
        exit(2);
    }
    w.slot = atoi(w.slot_text);
}

int main(int argc, char **argv)
{
    struct why why = {""};
    log_init("worker-double");
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (argc == 2 && strcmp(argv[1], "--probe") == 0)
        return probe();
    if (argc == 2 && strcmp(argv[1], "--health") == 0)
        return print_text("DOUBLE_HEALTH");
    take_arguments(argc, argv);
    if (ticket_read(3, &w.ticket, &why)) {
        fprintf(stderr, "%s\n", why.text);
        return 2;
    }
    const char *late = getenv("DOUBLE_LATE");
    while (late && access(late, F_OK) == 0)
        usleep(10000);
    const struct rpc_link_config config = {.loop = &w.loop,
                                           .path = w.ticket.control,
                                           .methods = rpc_methods(),
                                           .n_methods = RPC_METHOD_COUNT,
                                           .on_up = link_up,
                                           .on_down = link_down};
    uint64_t ms = (uint64_t)knob("DOUBLE_STEP_MS", 20);
    if (uv_loop_init(&w.loop) || uv_timer_init(&w.loop, &w.timer) || uv_timer_start(&w.timer, on_step, ms, ms) ||
        rpc_link_open(&config, &w.link))
        return 2;
    return uv_run(&w.loop, UV_RUN_DEFAULT);
}
