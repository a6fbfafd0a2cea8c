/* A round: faults, as in any run; an end of all faults, after which there are three voters; two of them lose their
 * power, sometimes after the third has been cut off for a moment, so that it lacks the newest records. With faults
 * again, the administrator recovers the cluster on the third, and the lost ones are switched on, sometimes where they
 * only reach each other, so that they elect a leader. After the last fault they have to report that they were left out.
 * Then each leaves, and joins with a token. In half of the seeds there is a second round. */
#include "tests/sim/control/recovery.h"

#include "tests/sim/bugs.h"
#include "tests/sim/check.h"
#include "tests/sim/control/admin.h"
#include "tests/sim/control/branches.h"
#include "tests/sim/control/trouble.h"
#include "tests/sim/net.h"
#include "tests/sim/voter.h"

#include <inttypes.h>
#include <stdio.h>

#define VOTERS 3
#define CALM_US (120 * US_PER_S)      /* limit for three voters after the last fault */
#define RECOVERED_US (180 * US_PER_S) /* limit for the recovery, with faults */
#define LEFT_OUT_US (60 * US_PER_S)   /* limit for a lost voter to notice, without faults */
#define ANEW_US (120 * US_PER_S)      /* limit for a node to be taken in anew */

static struct {
    struct machine *survivor, *lost[VOTERS - 1], *away; /* away: no voter, and switched off meanwhile; NULL: none */
    uint64_t generation;                                /* before the recovery */
} round_;

static int64_t ms_between(int64_t low, int64_t high)
{
    return world_between(FROM_FAULTS, low, high) * US_PER_MS;
}

static uint64_t generation_at(const struct machine *m)
{
    uint64_t ret = cluster_known(m->node->cluster)->lineage.generation;
    return ret ? ret : 1;
}

/* Stores the voters in the log of this computer; returns their number. */
static int voters_at(const struct machine *m, struct machine *ret[VOTERS])
{
    struct log_member members[LOG_MAX_MEMBERS];
    int n = log_members(m->node->replica.log, members), n_voters = 0;
    for (int i = 0; i < n; i++) {
        int host = branch_host(voters[m->host->id].branch, members[i].id);
        if (members[i].role == LOG_VOTER && host && n_voters < VOTERS)
            ret[n_voters++] = &machines[host];
    }
    return n_voters;
}

static bool is_calm(void)
{
    struct machine *of[VOTERS];
    const struct machine *leader = branch_leader();
    for (int id = 1; id <= world.n_hosts; id++)
        if (!machine_is_well(&machines[id]) || !cluster_named(machines[id].node->cluster))
            return false;
    return leader && voters_at(leader, of) == VOTERS;
}

static void await(const char *what, int64_t limit_us, bool (*is_done)(void))
{
    world_run(world.now_us + limit_us, is_done);
    if (is_done())
        return;
    check_print();
    broken("%s, after %d s", what, (int)(limit_us / US_PER_S));
}

/* ---- the loss ---- */

static void choose_survivor(void)
{
    struct machine *of[VOTERS] = {NULL};
    int n = voters_at(branch_leader(), of), left = (int)world_between(FROM_FAULTS, 0, n - 1), n_lost = 0;
    round_.generation = generation_at(branch_leader());
    round_.survivor = of[left];
    for (int i = 0; i < n; i++)
        if (i != left)
            round_.lost[n_lost++] = of[i];
    round_.away = NULL;
    for (int id = 1; id <= world.n_hosts; id++) {
        struct machine *m = &machines[id];
        if (m != of[0] && m != of[1] && m != of[2] && world_chance(FROM_FAULTS, 0.3))
            round_.away = m;
    }
}

static void cut_off(const struct machine *m, bool is_cut)
{
    for (int id = 1; id <= world.n_hosts; id++)
        if (&machines[id] != m)
            net.is_cut[id][m->host->id] = net.is_cut[m->host->id][id] = is_cut;
}

static void lose_majority(void)
{
    if (world_chance(FROM_FAULTS, 0.5)) {
        cut_off(round_.survivor, true);
        world_run(world.now_us + ms_between(50, 2000), NULL);
    }
    for (int i = 0; i < VOTERS - 1; i++)
        machine_hold(round_.lost[i]);
    if (round_.away)
        machine_hold(round_.away);
    cut_off(round_.survivor, false);
    trace("only the voter %d is left", round_.survivor->host->id);
}

/* ---- the recovery ---- */

static bool is_recovered(void)
{
    const struct machine *m = round_.survivor;
    return m->host->is_up && m->node && m->node->jobs.leads && generation_at(m) > round_.generation;
}

static void recover(void)
{
    const int64_t end_us = world.now_us + RECOVERED_US;
    while (!is_recovered() && world.now_us < end_us) {
        if (world_chance(FROM_FAULTS, 0.7))
            (void)admin_recover(round_.survivor); /* repeated until the cluster is recovered */
        world_run(world.now_us + ms_between(200, 4000), is_recovered);
    }
    if (!is_recovered())
        broken("node %d has not recovered the cluster after %d s: %s", round_.survivor->host->id,
               (int)(RECOVERED_US / US_PER_S), admin_answer());
    trace("node %d has recovered the cluster: generation %" PRIu64, round_.survivor->host->id,
          generation_at(round_.survivor));
}

/* ---- the return ---- */

static void release(void *arg)
{
    machine_release(arg);
}

/* Network faults that end restore these links, too. */
static void cut_lost_ones(void)
{
    for (int i = 0; i < VOTERS - 1; i++)
        cut_off(round_.lost[i], true);
    int a = round_.lost[0]->host->id, b = round_.lost[1]->host->id;
    net.is_cut[a][b] = net.is_cut[b][a] = false;
}

static void come_back(void)
{
    if (world_chance(FROM_FAULTS, 0.6))
        cut_lost_ones();
    for (int i = 0; i < VOTERS - 1; i++)
        world_after(&world.hosts[0], ms_between(0, 5000), release, round_.lost[i]);
    if (round_.away)
        world_after(&world.hosts[0], ms_between(0, 10000), release, round_.away);
    world_run(world.now_us + ms_between(6000, 20000), NULL);
}

static bool is_left_out(const struct machine *m)
{
    return m->host->is_up && m->node && m->node->rpc.listener && cluster_superseded(m->node->cluster) &&
           !cluster_leader(m->node->cluster);
}

static bool has_followed(const struct machine *m)
{
    return machine_is_well(m) && m->branch == branch_newest() && voters[m->host->id].branch == branch_newest();
}

/* The lost voters report it, and the others follow the recovered cluster. If the survivor's copy of the log has another
 * node as a member, that one was left out, too. */
static bool all_know(void)
{
    for (int id = 1; id <= world.n_hosts; id++) {
        const struct machine *m = &machines[id];
        bool is_lost = m == round_.lost[0] || m == round_.lost[1];
        if (!is_left_out(m) && (is_lost || !has_followed(m)))
            return false;
    }
    return true;
}

static void check_left_out(const struct machine *m)
{
    if (admin_recover(m) == OK)
        broken("node %d was left out of the recovery, and recovers itself", m->host->id);
}

static void take_anew(struct machine *m)
{
    if (!admin_take_anew(m, ANEW_US))
        broken("node %d, which was left out of the recovery, has not joined anew after %d s: %s", m->host->id,
               (int)(ANEW_US / US_PER_S), admin_answer());
}

static void run_round(bool disks_fail)
{
    trouble_start(disks_fail);
    world_run(world.now_us + ms_between(2000, 12000), NULL);
    trouble_end();
    await("there are not three voters", CALM_US, is_calm);
    world_run(world.now_us + ms_between(0, 3000), NULL);
    if (!is_calm())
        await("there are not three voters", CALM_US, is_calm);
    choose_survivor();
    lose_majority();
    trouble_start(disks_fail);
    recover();
    come_back();
    trouble_end();
    await("not all nodes know of the recovery", LEFT_OUT_US, all_know);
    struct machine *left_out[MAX_HOSTS];
    int n = 0;
    for (int id = 1; id <= world.n_hosts; id++)
        if (is_left_out(&machines[id]))
            left_out[n++] = &machines[id];
    for (int i = 0; i < n; i++) /* time passes here, in which another one's control may start again */
        check_left_out(left_out[i]);
    for (int i = 0; i < n; i++)
        take_anew(left_out[i]);
    await("there are not three voters after a recovery", CALM_US, is_calm);
}

void recovery_run(bool disks_fail)
{
    int rounds = (int)world_between(FROM_FAULTS, 1, 2);
    for (int i = 0; i < rounds; i++)
        run_round(disks_fail);
}
