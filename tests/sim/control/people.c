#include "tests/sim/control/people.h"

#include "common/rpc/methods.h"
#include "proto/client.pb-c.h"
#include "tests/lib/versions.h"
#include "tests/sim/control/ledger.h"
#include "tests/sim/control/machine.h"
#include "tests/sim/control/versions.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_PEOPLE 4
#define ENOUGH_JOBS 12 /* more jobs would only wait for slots */
#define CALL_MS 8000   /* time limit of a call, after which the client repeats it */

enum person_request { NOTHING, SUBMIT, CANCEL, STATUS, DRAIN, ROTATE, EVICT };

struct person {
    struct host *host;
    uv_loop_t loop;
    struct rpc_conn *conn; /* NULL: not connected */
    bool waits;            /* for an answer or for the end of its connection */
    enum person_request kind;
    uint64_t number, job; /* number of the request; job that it names */
    char *yaml;
    char node[16];
    bool drains;
    int64_t asked_us;
};

static struct {
    struct person people[MAX_PEOPLE];
    int n, submits;
    uint64_t numbers, answered;
    bool is_finishing, large_is_submitted, commands, rotates, never_drains, has_evicted, is_wide_due;
    int evicts;     /* number of the node; 0: none */
    uint64_t large; /* the number of its request */
} all;

/* ---- choice of requests ---- */

static int draw_between(int low, int high)
{
    return (int)world_between(FROM_CLIENTS, low, high);
}

static char *make_job(uint64_t number, int workers, int least, bool is_command)
{
    char *yaml, recipe[400] = "command: [/bin/command]\n";
    int restarts = world_chance(FROM_CLIENTS, 0.1) ? 2 : 100000, priority = draw_between(0, 2);
    if (!is_command) {
        int every = draw_between(5, 20), steps = draw_between(5, 60);
        snprintf(recipe, sizeof(recipe),
                 "model: {arch: llama, dim: 64, layers: 2, heads: 4}\n"
                 "data: {train: [\"/data\"]}\n"
                 "train: {steps: %d, global_batch: 48, micro_batch: 1}\n"
                 "checkpoint: {dir: /c/%d, every: %d, keep_last: 2, keep_best: 0}\n",
                 steps, (int)number, every);
    }
    bool is_new = versions_are_mixed() && (all.is_finishing || world_chance(FROM_CLIENTS, 0.5));
    int n = asprintf(&yaml,
                     "name: job-%d\n"
                     "%s"
                     "parallel: {workers: %d, min_workers: %d}\n"
                     "run: {%srestarts: %d, priority: %d, workdir: /%s}\n"
                     "%s",
                     (int)number, recipe, workers, least, is_command ? "" : "orphan_seconds: 20, hang_seconds: 5, ",
                     restarts, priority, number % 4 == 3 ? ", max_seconds: " LEDGER_LIMIT_TEXT : "",
                     is_new ? VERSIONS_KEY : "");
    assert(n > 0);
    return yaml;
}

static int all_slots(void)
{
    int n = 0;
    for (int id = 1; id <= world.n_hosts; id++)
        n += machines[id].slots;
    return n;
}

static void choose_submit(struct person *p)
{
    static const int sizes[] = {1, 1, 2, 2, 3, 4, 6};
    int workers = sizes[world_between(FROM_CLIENTS, 0, 6)];
    bool is_ranged = workers > 1 && world_chance(FROM_CLIENTS, 0.3);
    p->kind = SUBMIT;
    bool is_command = all.commands && world_chance(FROM_CLIENTS, 0.5);
    p->yaml = make_job(p->number, workers, is_ranged ? 1 : 0, is_command);
    all.submits++;
}

static void choose_drain(struct person *p, int id, bool drains)
{
    p->kind = DRAIN;
    snprintf(p->node, sizeof(p->node), "node-%d", id);
    p->drains = drains;
}

static void choose_eviction(struct person *p)
{
    if (all.has_evicted)
        return;
    p->kind = EVICT;
    snprintf(p->node, sizeof(p->node), "node-%d", all.evicts);
}

static void choose_last_request(struct person *p)
{
    if (all.is_wide_due) {
        all.is_wide_due = false;
        p->kind = SUBMIT;
        p->yaml = make_job(p->number, all_slots(), 1, false);
        return;
    }
    if (all.evicts) {
        choose_eviction(p);
        return;
    }
    for (int id = 1; id <= world.n_hosts; id++)
        if (ledger_is_drained(id)) {
            choose_drain(p, id, false);
            return;
        }
    if (all.large_is_submitted)
        return;
    all.large_is_submitted = true;
    all.large = p->number;
    p->kind = SUBMIT;
    p->yaml = make_job(p->number, all_slots(), 0, false);
}

static void choose_request(struct person *p)
{
    int64_t chance = world_between(FROM_CLIENTS, 0, 99);
    p->number = ++all.numbers;
    p->kind = NOTHING;
    if (all.is_finishing) {
        choose_last_request(p);
        return;
    }
    if (all.rotates && world_chance(FROM_CLIENTS, 0.06)) {
        p->kind = ROTATE;
        return;
    }
    p->job = ledger_jobs() ? ledger_number((uint64_t)world_between(FROM_CLIENTS, 1, (int64_t)ledger_jobs())) : 0;
    if (!p->job || (chance < 30 && all.submits < ENOUGH_JOBS))
        choose_submit(p);
    else if (chance < 37)
        p->kind = CANCEL;
    else if (chance < 92)
        p->kind = STATUS;
    else if (!all.never_drains)
        choose_drain(p, (int)world_between(FROM_CLIENTS, 1, world.n_hosts), world_chance(FROM_CLIENTS, 0.5));
}

/* ---- answers ---- */

static void close_conn(struct person *p)
{
    if (p->conn)
        rpc_conn_close(p->conn);
    p->conn = NULL;
}

static const struct machine *machine_asked(const struct person *p)
{
    return &machines[p->host->on->id];
}

/* A node that is in no cluster would make the job its own. */
static bool is_of_cluster(const struct machine *m)
{
    return !machines_join_by_token || machine_is_member(m);
}

static void record_answer(struct person *p, const struct rpc_result *result)
{
    const struct machine *m = machine_asked(p);
    if (p->kind == SUBMIT)
        ledger_answered_submitted(m, p->number, strtoull(((const Dtd__SubmitReply *)result->reply)->job, NULL, 10));
    else if (p->kind == CANCEL)
        ledger_answered_canceled(m, p->job);
    else if (p->kind == STATUS)
        ledger_answered_status(m, p->job, ((const Dtd__JobStatus *)result->reply)->state, p->asked_us);
}

/* The answer is final, so the request is not repeated. */
static bool is_final(const struct person *p, const struct rpc_result *result)
{
    if ((result->err == ERR_INVALID || result->err == ERR_UNSUPPORTED) && p->kind == SUBMIT) {
        ledger_answered_refused(machine_asked(p), p->number, result->text);
        all.large_is_submitted =
            all.large_is_submitted && p->number != all.large; /* again, until all dtds have its key */
        return true;
    }
    if (result->err == ERR_UNSUPPORTED && p->kind == DRAIN)
        return true; /* the reason is of a newer version */
    if (result->err == ERR_NOTFOUND && (p->kind == STATUS || p->kind == CANCEL)) {
        ledger_answered_no_job(machine_asked(p), p->job, p->asked_us);
        return true;
    }
    /* Another one rotates, or the answer to an earlier request was lost. */
    if ((result->err == ERR_BUSY && p->kind == ROTATE) || (result->err == ERR_NOTFOUND && p->kind == EVICT))
        return true;
    return result->err == ERR_STALE && p->kind == CANCEL;
}

static void answered(void *arg, const struct rpc_result *result)
{
    struct person *p = arg;
    p->waits = false;
    trace("person %d: request %d (%d) ends: %s %s", (int)(p - all.people), (int)p->number, (int)p->kind,
          err_name(result->err), result->text);
    bool counts = is_of_cluster(machine_asked(p));
    if (!result->err && counts)
        record_answer(p, result);
    if (counts && (!result->err || is_final(p, result))) {
        all.has_evicted |= p->kind == EVICT;
        p->kind = NOTHING;
        all.answered++;
    }
    if (result->err != ERR_CLOSED && (result->err || world_chance(FROM_CLIENTS, 0.3)))
        close_conn(p);
}

/* ---- sending ---- */

static void connection_closed(void *owner, struct rpc_conn *conn)
{
    struct person *p = owner;
    if (p->conn == conn)
        p->conn = NULL;
}

static void request_id(const struct person *p, uint8_t ret[REQUEST_ID_BYTES])
{
    memset(ret, 0, REQUEST_ID_BYTES);
    memcpy(ret, &p->number, sizeof(p->number));
    ret[15] = 1;
}

static err_t send_request(struct person *p)
{
    uint8_t id[REQUEST_ID_BYTES];
    char job[24];
    Dtd__SubmitRequest submit = DTD__SUBMIT_REQUEST__INIT;
    Dtd__CancelRequest cancel = DTD__CANCEL_REQUEST__INIT;
    Dtd__JobRequest status = DTD__JOB_REQUEST__INIT;
    Dtd__ClusterNodeRequest drain = DTD__CLUSTER_NODE_REQUEST__INIT;
    request_id(p, id);
    snprintf(job, sizeof(job), "%d", (int)p->job);
    submit.request_id = cancel.request_id = (ProtobufCBinaryData){sizeof(id), id};
    submit.spec_yaml = p->yaml;
    cancel.job = status.job = job;
    drain.name = p->node;
    drain.reason = !p->drains ? NULL : versions_are_mixed() && p->number % 2 ? VERSIONS_REASON : "the simulation";
    drain.has_evict = drain.evict = p->kind == EVICT;
    const Dtd__Empty empty = DTD__EMPTY__INIT;
    const struct {
        uint16_t method;
        const ProtobufCMessage *message;
    } calls[] = {[SUBMIT] = {CLIENT_SUBMIT, &submit.base},        [CANCEL] = {CLIENT_CANCEL, &cancel.base},
                 [STATUS] = {CLIENT_STATUS, &status.base},        [DRAIN] = {CLIENT_NODE_DRAIN, &drain.base},
                 [ROTATE] = {CLIENT_CLUSTER_ROTATE, &empty.base}, [EVICT] = {CLIENT_CLUSTER_REMOVE, &drain.base}};
    return rpc_send(p->conn, calls[p->kind].method, calls[p->kind].message, CALL_MS, answered, p, NULL);
}

static err_t open_conn(struct person *p)
{
    const struct rpc_conn_config config = {.loop = &p->loop,
                                           .methods = rpc_methods(),
                                           .n_methods = RPC_METHOD_COUNT,
                                           .owner = p,
                                           .on_close = connection_closed};
    int fd;
    p->host->on = &world.hosts[world_between(FROM_CLIENTS, 1, world.n_hosts)];
    if (!machine_asked(p)->has_dtd || !is_of_cluster(machine_asked(p)))
        return ERR_CLOSED;
    err_t err = rpc_connect_unix("/control.sock", &fd);
    return err ? err : rpc_conn_open(&config, fd, RPC_ROLE_ANY, &p->conn);
}

static void person_step(void *arg)
{
    struct person *p = arg;
    world_after(p->host, world_between(FROM_CLIENTS, 20 * US_PER_MS, all.is_finishing ? US_PER_S : 3 * US_PER_S),
                person_step, p);
    if (p->waits)
        return;
    if (p->kind == NOTHING)
        choose_request(p);
    if (p->conn && !is_of_cluster(machine_asked(p)))
        close_conn(p);
    if (p->kind == NOTHING || (!p->conn && open_conn(p)))
        return;
    p->asked_us = world.now_us;
    p->waits = send_request(p) == OK;
    if (!p->waits)
        close_conn(p);
}

static void person_start(void *arg)
{
    struct person *p = arg;
    uv_loop_init(&p->loop);
    person_step(p);
}

void people_start(int n, bool commands)
{
    assert(n <= MAX_PEOPLE);
    memset(&all, 0, sizeof(all));
    all.n = n;
    all.commands = commands;
    for (int i = 0; i < n; i++) {
        struct person *p = &all.people[i];
        p->host = host_beside(&world.hosts[1]);
        host_up(p->host);
        world_after(p->host, world_between(FROM_CLIENTS, 0, 3 * US_PER_S), person_start, p);
    }
}

void people_finish(void)
{
    all.is_finishing = true;
}

void people_rotate(void)
{
    all.rotates = true;
}

void people_never_drain(void)
{
    all.never_drains = true;
}

void people_submit_wide(void)
{
    all.is_wide_due = true;
}

void people_evict(int id)
{
    all.evicts = id;
}

bool people_have_evicted(void)
{
    return all.has_evicted;
}

bool people_are_done(void)
{
    for (int i = 0; i < all.n; i++)
        if (all.people[i].kind != NOTHING)
            return false;
    for (int id = 1; id <= world.n_hosts; id++)
        if (ledger_is_drained(id))
            return false;
    return all.large_is_submitted;
}

uint64_t people_answered(void)
{
    return all.answered;
}
