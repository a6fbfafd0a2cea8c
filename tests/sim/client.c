/* A client runs on no host. It sends a proposal to a process on some host and notices when this process ends. */
#include "tests/sim/client.h"

#include "tests/sim/check.h"
#include "tests/sim/voter.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PATIENCE_US (30 * US_PER_S) /* a proposal must end within this time, not counting stalls */
#define MAX_CLIENTS 8
#define ENOUGH_JOBS (STATE_MAX_JOBS / 2) /* the state drops ended jobs beyond its limit, the model does not */

/* A record to be applied once; `number` is its request id. */
struct client_request {
    uint64_t number;
    struct record record;
    uint64_t known;  /* the last index that had been answered to any client when the request began */
    uint64_t effect; /* index at which it took effect; 0: not yet */
    int accepted;    /* number of accepted proposals */
    bool is_answered;
};

/* One proposal of a request, at one process. */
struct attempt {
    struct client_request *request;
    struct client *client;
    struct host *host;
    unsigned life;
    int64_t since_us;
    bool was_sent, is_over;
};

struct client {
    struct client_request *request;
    struct attempt *attempt;
    int host; /* where the next proposal goes; 0: any host */
};

static struct {
    struct client clients[MAX_CLIENTS];
    int n;
    struct client_request **requests;
    uint64_t n_requests, known, answered;
    uint64_t last_job;
    bool is_finishing;
} all;

/* ---- requests ---- */

static void fill_record(struct record *r)
{
    static const struct state_member members[] = {{"node-1", 0}, {"node-2", 1}};
    int64_t kind = all.last_job ? world_between(FROM_CLIENTS, 0, 9) : 0;
    r->job = all.last_job ? (uint64_t)world_between(FROM_CLIENTS, 1, (int64_t)all.last_job) : 0;
    if (kind <= 3 && all.last_job > ENOUGH_JOBS)
        kind = 6;
    if (kind <= 3) {
        r->kind = RECORD_SUBMITTED;
        r->submitted.spec = "name: job\nmodel: {arch: llama}\n";
        r->submitted.uid = 1000;
    } else if (kind <= 4) {
        r->kind = RECORD_DESIRED;
        r->desired.desired = DESIRED_CANCELED;
    } else if (kind <= 5) {
        r->kind = RECORD_ENDED;
        r->ended.end = END_FAILED;
        r->ended.reason = "a worker exited";
    } else if (kind <= 7) {
        r->kind = RECORD_EPOCH;
        r->epoch.epoch = (uint64_t)world_between(FROM_CLIENTS, 1, 20);
        r->epoch.members = members;
        r->epoch.n_members = 2;
    } else if (kind <= 8) {
        r->kind = RECORD_CHECKPOINT;
        r->checkpoint = (struct state_checkpoint){
            .step = world_between(FROM_CLIENTS, 1, 50), .epoch = 1, .path = "/c/step", .bytes = 9, .loss = NAN};
    } else {
        r->kind = RECORD_INCIDENT;
        r->incident = incident_none;
        r->incident.epoch = 1;
        r->incident.wall_ms = 5;
        r->incident.seen = "exit";
        r->incident.decided = "restart";
        r->incident.detect_ms = 1;
    }
}

static void begin_request(struct client *c)
{
    struct client_request *w = calloc(1, sizeof(*w));
    all.requests = realloc(all.requests, (all.n_requests + 1) * sizeof(*all.requests));
    assert(w && all.requests);
    all.requests[all.n_requests++] = w;
    w->number = all.n_requests;
    w->known = all.known;
    fill_record(&w->record);
    w->record.has_request = true;
    memcpy(w->record.request_id, &w->number, sizeof(w->number));
    c->request = w;
}

static struct client_request *request_of(const struct record *r)
{
    uint64_t number;
    memcpy(&number, r->request_id, sizeof(number));
    if (!number || number > all.n_requests)
        broken("a record has a request id that no client made");
    return all.requests[number - 1];
}

void client_applied(uint64_t index, const struct record *record, const struct state_result *result)
{
    struct client_request *w = request_of(record);
    if (!w->accepted)
        broken("request %" PRIu64 " was refused each time it was proposed, but took effect at %" PRIu64, w->number,
               index);
    if (!result->repeated && w->effect)
        broken("request %" PRIu64 " took effect at %" PRIu64 " and again at %" PRIu64, w->number, w->effect, index);
    if (result->repeated && !w->effect)
        broken("request %" PRIu64 " counts as repeated at %" PRIu64 " but never took effect", w->number, index);
    if (!w->effect)
        w->effect = index;
    if (record->kind == RECORD_SUBMITTED && result->job > all.last_job)
        all.last_job = result->job;
}

/* ---- answers ---- */

static void check_answer(const struct client_request *w, uint64_t index, const struct state_result *result)
{
    const struct fact *f = check_fact(index), *first = check_fact(w->effect);
    if (!f || !f->is_applied)
        broken("request %" PRIu64 " is answered at %" PRIu64 ", which is not committed", w->number, index);
    if (f->result.err != result->err || f->result.job != result->job || f->result.repeated != result->repeated)
        broken("request %" PRIu64 " at %" PRIu64 " has an answer that differs from its result", w->number, index);
    if (!first)
        broken("request %" PRIu64 " was answered but never took effect", w->number);
    if (first->result.err != result->err || first->result.job != result->job)
        broken("request %" PRIu64 " was repeated and got a different answer than the first time", w->number);
    if (w->effect <= w->known)
        broken("request %" PRIu64 " took effect at %" PRIu64 ", before %" PRIu64
               ", which was answered before it was proposed",
               w->number, w->effect, w->known);
}

static void answered(void *arg, err_t err, uint64_t index, const void *result)
{
    struct attempt *a = arg;
    struct client_request *w = a->request;
    if (a->host->is_dying)
        return;
    if (a->is_over)
        broken("request %" PRIu64 " is answered twice by host %d", w->number, a->host->id);
    a->is_over = true;
    if (err && err != ERR_CANCELED)
        broken("request %" PRIu64 " is answered by %s", w->number, err_name(err));
    if (err)
        return;
    check_answer(w, index, result);
    w->is_answered = true;
    all.answered++;
    if (w->effect > all.known)
        all.known = w->effect;
}

/* ---- proposals ---- */

static void propose(void *arg)
{
    struct attempt *a = arg;
    struct voter *v = &voters[a->host->id];
    struct buf bytes = {0};
    if (!voter_is_open(v)) {
        a->is_over = true;
        return;
    }
    a->request->record.wall_ms = host_wall_us(a->host) / US_PER_MS;
    a->request->record.clock_ms = world.now_us / US_PER_MS + 1; /* every leader carries it on (clock.h) */
    err_t err = record_encode(&a->request->record, &bytes);
    assert(!err);
    a->was_sent = true;
    a->request->accepted++; /* counted before the call, because the record may be applied before it returns */
    err = log_propose(v->log, bytes.data, bytes.len, answered, a);
    buf_fini(&bytes);
    if (!err)
        return;
    a->request->accepted--;
    a->is_over = true;
    if (err != ERR_AGAIN && err != ERR_NOSPACE && err != ERR_TIMEOUT && err != ERR_LIMIT &&
        !(err == ERR_IO && log_warning(v->log)) && !a->host->is_dying)
        broken("request %" PRIu64 " is refused by %s", a->request->number, err_name(err));
    uint64_t leader = log_leader(v->log);
    a->client->host = leader ? (int)leader : 0;
}

static void start_attempt(struct client *c)
{
    int at = c->host && world_chance(FROM_CLIENTS, 0.8) ? c->host : (int)world_between(FROM_CLIENTS, 1, world.n_hosts);
    struct host *host = &world.hosts[at];
    if (!host->is_up) {
        c->host = 0;
        return;
    }
    struct attempt *a = calloc(1, sizeof(*a));
    assert(a);
    *a = (struct attempt){
        .request = c->request, .client = c, .host = host, .life = host->life, .since_us = world.now_us};
    c->attempt = a;
    c->host = at;
    world_after(host, world_between(FROM_CLIENTS, 0, 2000), propose, a);
}

/* Returns true if the attempt has ended, in whatever way. */
static bool is_over(const struct attempt *a)
{
    if (a->is_over || a->host->life != a->life)
        return true;
    int64_t since = a->since_us > a->host->stalled_until ? a->since_us : a->host->stalled_until;
    if (world.now_us - since > PATIENCE_US)
        broken("request %" PRIu64 " waits at host %d for more than %d s", a->request->number, a->host->id,
               (int)(PATIENCE_US / US_PER_S));
    return false;
}

static void client_step(void *arg)
{
    struct client *c = arg;
    world_after(&world.hosts[0], world_between(FROM_CLIENTS, 1000, 60000), client_step, c);
    if (c->attempt && !is_over(c->attempt))
        return;
    c->attempt = NULL;
    if (c->request && c->request->is_answered)
        c->request = NULL;
    if (!c->request && !all.is_finishing)
        begin_request(c);
    if (c->request)
        start_attempt(c);
}

void clients_start(int n)
{
    assert(n <= MAX_CLIENTS);
    memset(&all, 0, sizeof(all));
    all.n = n;
    for (int i = 0; i < n; i++)
        world_after(&world.hosts[0], world_between(FROM_CLIENTS, 0, US_PER_S), client_step, &all.clients[i]);
}

void clients_finish(void)
{
    all.is_finishing = true;
}

bool clients_are_done(void)
{
    for (int i = 0; i < all.n; i++)
        if (all.clients[i].request)
            return false;
    return true;
}

uint64_t clients_answered(void)
{
    return all.answered;
}
