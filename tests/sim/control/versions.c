/* In a mixed seed the older version is 1 (dtds that do not report one) or the present one. Two computers or more never
 * exchange the last older dtd while another is put back: an operator who does that may raise the version under it. */
#include "tests/sim/control/versions.h"

#include "daemon/control/state/features.h"
#include "tests/lib/versions.h"
#include "tests/sim/bugs.h"
#include "tests/sim/control/ledger.h"

#include <string.h>

static struct {
    bool is_mixed, slips;
    uint32_t old; /* the older version */
    int keeper;   /* the computer that keeps it */
    int leader;   /* the last one that began to lead; 0: none yet */
    bool leads[MAX_HOSTS + 1];
    uint32_t leader_version;
    uint64_t takeovers, to_newer, to_older;
} all;

void versions_init(bool mixed)
{
    memset(&all, 0, sizeof(all));
    all.is_mixed = mixed;
    all.old = mixed && world.seed % 2 ? 1 : FEATURES_NEWEST;
    all.slips = mixed && world.seed % 4 >= 2;
    all.keeper = mixed ? (int)world_between(FROM_WORLD, 1, world.n_hosts) : 0;
    for (int id = 1; id <= world.n_hosts; id++)
        machines[id].version = all.old; /* a first node with the newer dtd would keep the older ones out */
}

bool versions_are_mixed(void)
{
    return all.is_mixed;
}

bool versions_slip(void)
{
    return all.slips;
}

uint32_t versions_own(void)
{
    uint32_t running = machines[world.current->on->id].running;
    return running ? running : all.old + all.is_mixed; /* computers of sim-scale, and what is on none */
}

uint32_t versions_next(void)
{
    return all.old + 1;
}

bool versions_have_clock(void)
{
    return all.old >= FEATURE_CLOCK;
}

bool versions_can_read(const struct machine *m)
{
    return !all.is_mixed || m->running >= versions_next();
}

void versions_exchange(struct machine *m)
{
    if (!all.is_mixed || m->host->id == all.keeper)
        return;
    m->version = m->version == all.old ? versions_next() : all.old;
    trace("host %d gets dtd of version %d", m->host->id, (int)m->version);
    if (m->host->is_up)
        machine_kill_control(m);
}

void versions_finish(void)
{
    for (int id = 1; all.is_mixed && id <= world.n_hosts; id++) {
        struct machine *m = &machines[id];
        bool runs_old = m->host->is_up && m->running != versions_next();
        m->version = versions_next();
        if (runs_old)
            machine_kill_control(m);
    }
}

bool versions_are_even(void)
{
    for (int id = 1; all.is_mixed && id <= world.n_hosts; id++) {
        const struct control *n = machines[id].node;
        if (!n || cluster_version(n->cluster) != versions_next())
            return false;
    }
    return true;
}

void versions_count(void)
{
    for (int id = 1; id <= world.n_hosts; id++) {
        const struct machine *m = &machines[id];
        const bool leads = m->host->is_up && m->node && m->node->jobs.leads, led = all.leads[id];
        all.leads[id] = leads;
        if (!leads || led || id == all.leader)
            continue;
        all.takeovers++;
        all.to_newer += all.leader && m->running > all.leader_version;
        all.to_older += all.leader && m->running < all.leader_version;
        all.leader = id;
        all.leader_version = m->running;
    }
}

void versions_report(struct summary *ret)
{
    ret->takeovers = all.takeovers;
    ret->to_newer = all.to_newer;
    ret->to_older = all.to_older;
}

/* ---- the planted defects ---- */

err_t __real_cluster_may_use(const struct cluster *c, uint32_t version, const char *what, struct why *why);
err_t __wrap_cluster_may_use(const struct cluster *c, uint32_t version, const char *what, struct why *why);
uint32_t __real_state_version(const struct state *s);
uint32_t __wrap_state_version(const struct state *s);
bool __real_jobs_is_unread(const struct jobs *jobs, uint64_t id);
bool __wrap_jobs_is_unread(const struct jobs *jobs, uint64_t id);

err_t __wrap_cluster_may_use(const struct cluster *c, uint32_t version, const char *what, struct why *why)
{
    bool is_key = strcmp(what, "next") == 0;
    if (bug(BUG_FEATURE_EARLY) || (all.slips && is_key && versions_own() >= version))
        return OK;
    return __real_cluster_may_use(c, version, what, why);
}

uint32_t __wrap_state_version(const struct state *s)
{
    return bug(BUG_FEATURE_EARLY) ? features_newest() : __real_state_version(s);
}

bool __wrap_jobs_is_unread(const struct jobs *jobs, uint64_t id)
{
    return !bug(BUG_UNREAD_KILLED) && __real_jobs_is_unread(jobs, id);
}
