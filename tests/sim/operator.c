/* One change at a time, each an event on the leader. It ends with its callback or with the host. */
#include "tests/sim/operator.h"

#include "tests/sim/voter.h"

#include <string.h>

#define MAX_VOTERS 5
#define PATIENCE_US (60 * US_PER_S) /* libraft gives a new voter ten rounds of five seconds */

enum wanted wanted[MAX_HOSTS + 1];
static struct {
    struct host *asked; /* NULL: no change under way */
    unsigned life;
    int64_t since_us;
    bool transfer;
} one;

static void changed(void *arg, err_t err)
{
    (void)arg;
    trace("change ends: %s", err_name(err));
    if (!world.current->is_dying)
        one.asked = NULL;
}

static const struct log_member *member(const struct log_member *members, int n, int id)
{
    for (int i = 0; i < n; i++)
        if (members[i].id == (uint64_t)id)
            return &members[i];
    return NULL;
}

static enum log_role role_of(enum wanted w)
{
    return w == WANTED_VOTER ? LOG_VOTER : LOG_STANDBY;
}

/* ERR_NOTFOUND: the member is already as wanted. */
static err_t change_one(struct log *log, const struct log_member *m, int id)
{
    bool is_self = id == world.current->id;
    if (!m && wanted[id] != WANTED_GONE)
        return log_add(log, (uint64_t)id, changed, NULL);
    if (!m || (wanted[id] != WANTED_GONE && m->role == role_of(wanted[id])))
        return ERR_NOTFOUND;
    if (is_self)
        return log_transfer(log, 0, changed, NULL);
    if (wanted[id] == WANTED_GONE)
        return log_remove(log, (uint64_t)id, changed, NULL);
    return log_assign(log, (uint64_t)id, role_of(wanted[id]), changed, NULL);
}

static err_t change(struct log *log)
{
    struct log_member members[LOG_MAX_MEMBERS];
    int n = log_members(log, members);
    if (one.transfer) {
        one.transfer = false;
        return log_transfer(log, 0, changed, NULL);
    }
    for (int id = 1; id <= world.n_hosts; id++) {
        err_t err = change_one(log, member(members, n, id), id);
        if (err != ERR_NOTFOUND)
            return err;
    }
    return ERR_NOTFOUND;
}

static void act(void *arg)
{
    struct voter *v = arg;
    err_t err = voter_is_open(v) && log_leads(v->log) ? change(v->log) : ERR_AGAIN;
    if (!err)
        return;
    if (err != ERR_NOTFOUND)
        trace("change refused: %s", err_name(err));
    one.asked = NULL;
}

int operator_leader(void)
{
    int best = 0;
    uint64_t term = 0;
    for (int id = 1; id <= world.n_hosts; id++) {
        const struct voter *v = &voters[id];
        if (voter_is_open(v) && log_leads(v->log) && log_term(v->log) > term) {
            best = id;
            term = log_term(v->log);
        }
    }
    return best;
}

static bool is_waiting(void)
{
    if (!one.asked || one.asked->life != one.life)
        return false;
    int64_t since = one.since_us > one.asked->stalled_until ? one.since_us : one.asked->stalled_until;
    if (world.now_us - since > PATIENCE_US)
        broken("a change of the members has not ended at host %d within %d s", one.asked->id,
               (int)(PATIENCE_US / US_PER_S));
    return true;
}

static void step(void *arg)
{
    world_after(&world.hosts[0], world_between(FROM_OPERATOR, 50 * US_PER_MS, 300 * US_PER_MS), step, arg);
    int leader = operator_leader();
    if (is_waiting() || !leader)
        return;
    one.asked = &world.hosts[leader];
    one.life = one.asked->life;
    one.since_us = world.now_us;
    world_after(one.asked, 100, act, &voters[leader]);
}

void operator_start(void)
{
    memset(&one, 0, sizeof(one));
    operator_want_all();
    step(NULL);
}

void operator_want_all(void)
{
    for (int id = 1; id <= world.n_hosts; id++)
        wanted[id] = id <= MAX_VOTERS ? WANTED_VOTER : WANTED_STANDBY;
}

void operator_transfer(void)
{
    one.transfer = true;
}

bool operator_is_content(void)
{
    struct log_member members[LOG_MAX_MEMBERS];
    int leader = operator_leader();
    if (!leader)
        return false;
    int n = log_members(voters[leader].log, members);
    for (int id = 1; id <= world.n_hosts; id++) {
        const struct log_member *m = member(members, n, id);
        if (!m ? wanted[id] != WANTED_GONE : wanted[id] == WANTED_GONE || m->role != role_of(wanted[id]))
            return false;
    }
    return true;
}
