/* A client lives on no host: it sends a proposal to a process there and notices when that is gone. */
#include "tests/sim/client.h"

#include "tests/sim/check.h"
#include "tests/sim/voter.h"

#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PATIENCE_US (30 * US_PER_S)
#define MAX_CLIENTS 8
#define ENOUGH_JOBS (STATE_MAX_JOBS / 2) /* the state forgets ended jobs beyond its limit, the model does not */

/* What a client wants once; `number` is its request id. */
struct wish {
    uint64_t number;
    struct record record;
    uint64_t known;  /* the last index that had been answered to anybody when it began */
    uint64_t effect; /* index where it took effect, 0: has not */
    int accepted;    /* proposals that were taken */
    bool is_answered;
};

/* One proposal of it, at one process. */
struct attempt {
    struct wish *wish;
    struct client *client;
    struct host *host;
    unsigned life;
    int64_t since_us;
    bool was_sent, is_over;
};

struct client {
    struct wish *wish;
    struct attempt *attempt;
    int host; /* where it asks next */
};

static struct {
    struct client clients[MAX_CLIENTS];
    int n;
    struct wish **wishes;
    uint64_t n_wishes, known, answered;
    uint64_t last_job;
    bool is_finishing;
} all;

/* ---- what is wished ---- */

static void fill(struct record *r)
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
        r->ended.reason = "a worker died";
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

static void begin_wish(struct client *c)
{
    struct wish *w = calloc(1, sizeof(*w));
    all.wishes = realloc(all.wishes, (all.n_wishes + 1) * sizeof(*all.wishes));
    assert(w && all.wishes);
    all.wishes[all.n_wishes++] = w;
    w->number = all.n_wishes;
    w->known = all.known;
    fill(&w->record);
    w->record.has_request = true;
    memcpy(w->record.request_id, &w->number, sizeof(w->number));
    c->wish = w;
}

static struct wish *wish_of(const struct record *r)
{
    uint64_t number;
    memcpy(&number, r->request_id, sizeof(number));
    if (!number || number > all.n_wishes)
        broken("a record under a request id that nobody made");
    return all.wishes[number - 1];
}

void client_applied(uint64_t index, const struct record *record, const struct state_result *result)
{
    struct wish *w = wish_of(record);
    if (!w->accepted)
        broken("request %" PRIu64 " was refused whenever it was proposed, and is done at %" PRIu64, w->number, index);
    if (!result->repeated && w->effect)
        broken("request %" PRIu64 " is done at %" PRIu64 " and again at %" PRIu64, w->number, w->effect, index);
    if (result->repeated && !w->effect)
        broken("request %" PRIu64 " counts as repeated at %" PRIu64 " and was never done", w->number, index);
    if (!w->effect)
        w->effect = index;
    if (record->kind == RECORD_SUBMITTED && result->job > all.last_job)
        all.last_job = result->job;
}

/* ---- answers ---- */

static void check_answer(const struct wish *w, uint64_t index, const struct state_result *result)
{
    const struct fact *f = check_fact(index), *first = check_fact(w->effect);
    if (!f || !f->is_applied)
        broken("request %" PRIu64 " is answered at %" PRIu64 ", which is not committed", w->number, index);
    if (f->result.err != result->err || f->result.job != result->job || f->result.repeated != result->repeated)
        broken("request %" PRIu64 " at %" PRIu64 " is answered by something else than happened", w->number, index);
    if (!first)
        broken("request %" PRIu64 " is answered and was never done", w->number);
    if (first->result.err != result->err || first->result.job != result->job)
        broken("request %" PRIu64 " was repeated and got another answer than the first", w->number);
    if (w->effect <= w->known)
        broken("request %" PRIu64 " was done at %" PRIu64 ", before %" PRIu64 ", which was answered before it was made",
               w->number, w->effect, w->known);
}

static void answered(void *arg, err_t err, uint64_t index, const void *result)
{
    struct attempt *a = arg;
    struct wish *w = a->wish;
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

/* ---- asking ---- */

static void propose(void *arg)
{
    struct attempt *a = arg;
    struct voter *v = &voters[a->host->id];
    struct buf bytes = {0};
    if (!voter_is_open(v)) {
        a->is_over = true;
        return;
    }
    a->wish->record.wall_ms = host_wall_us(a->host) / US_PER_MS;
    err_t err = record_encode(&a->wish->record, &bytes);
    assert(!err);
    a->was_sent = true;
    a->wish->accepted++; /* it may be done before the call returns, as far as we know */
    err = log_propose(v->log, bytes.data, bytes.len, answered, a);
    buf_fini(&bytes);
    if (!err)
        return;
    a->wish->accepted--;
    a->is_over = true;
    if (err != ERR_AGAIN && err != ERR_NOSPACE && err != ERR_LIMIT && !a->host->is_dying)
        broken("request %" PRIu64 " is refused by %s", a->wish->number, err_name(err));
    uint64_t leader = log_leader(v->log);
    a->client->host = leader ? (int)leader : 0;
}

static void ask(struct client *c)
{
    int at = c->host && world_chance(FROM_CLIENTS, 0.8) ? c->host : (int)world_between(FROM_CLIENTS, 1, world.n_hosts);
    struct host *host = &world.hosts[at];
    if (!host->is_up) {
        c->host = 0;
        return;
    }
    struct attempt *a = calloc(1, sizeof(*a));
    assert(a);
    *a = (struct attempt){.wish = c->wish, .client = c, .host = host, .life = host->life, .since_us = world.now_us};
    c->attempt = a;
    c->host = at;
    world_after(host, world_between(FROM_CLIENTS, 0, 2000), propose, a);
}

/* True when it has ended, one way or another. */
static bool is_over(const struct attempt *a)
{
    if (a->is_over || a->host->life != a->life)
        return true;
    int64_t since = a->since_us > a->host->stalled_until ? a->since_us : a->host->stalled_until;
    if (world.now_us - since > PATIENCE_US)
        broken("request %" PRIu64 " waits at host %d for more than %d s", a->wish->number, a->host->id,
               (int)(PATIENCE_US / US_PER_S));
    return false;
}

static void step(void *arg)
{
    struct client *c = arg;
    world_after(&world.hosts[0], world_between(FROM_CLIENTS, 1000, 60000), step, c);
    if (c->attempt && !is_over(c->attempt))
        return;
    c->attempt = NULL;
    if (c->wish && c->wish->is_answered)
        c->wish = NULL;
    if (!c->wish && !all.is_finishing)
        begin_wish(c);
    if (c->wish)
        ask(c);
}

void clients_start(int n)
{
    assert(n <= MAX_CLIENTS);
    memset(&all, 0, sizeof(all));
    all.n = n;
    for (int i = 0; i < n; i++)
        world_after(&world.hosts[0], world_between(FROM_CLIENTS, 0, US_PER_S), step, &all.clients[i]);
}

void clients_finish(void)
{
    all.is_finishing = true;
}

bool clients_are_done(void)
{
    for (int i = 0; i < all.n; i++)
        if (all.clients[i].wish)
            return false;
    return true;
}

uint64_t clients_answered(void)
{
    return all.answered;
}
