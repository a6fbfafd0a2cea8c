/* One node is out of the cluster at a time, so that the others keep a majority. At the end, when all nodes have the
 * current view, a thief tries an identity that a node had before, with the current key. */
#include "tests/sim/control/members.h"

#include "daemon/control/cluster/internal.h"
#include "tests/sim/check.h"
#include "tests/sim/control/admin.h"
#include "tests/sim/control/branches.h"
#include "tests/sim/control/thief.h"
#include "tests/sim/control/trouble.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#define OUT_US (60 * US_PER_S)   /* limit for a node to be out, with faults */
#define ANEW_US (180 * US_PER_S) /* limit for it to be in again, with faults */
#define THIEF_US (5 * US_PER_S)
#define CALM_US (120 * US_PER_S) /* limit for all to be well after the last fault */

static struct {
    struct machine *out; /* NULL: all nodes are in the cluster */
    uint64_t id;         /* which it had, and its identity */
    uint8_t public_key[IDENTITY_BYTES], former_key[IDENTITY_BYTES];
    int times, former; /* former: the node that had `former_key` before it has joined again; 0: none */
} members;

static int64_t ms_between(int64_t low, int64_t high)
{
    return world_between(FROM_FAULTS, low, high) * US_PER_MS;
}

static const struct state_node *node_at_leader(const struct machine *m)
{
    const struct machine *leader = branch_leader();
    char name[16];
    snprintf(name, sizeof(name), "node-%d", m->host->id);
    return leader ? state_node_find(leader->node->replica.state, name) : NULL;
}

/* ---- out ---- */

static bool is_out(void)
{
    return branch_leader() && !node_at_leader(members.out);
}

static bool is_ready_to_go(const struct machine *m)
{
    return machine_is_well(m) && machine_is_member(m) && node_at_leader(m);
}

static void remember(struct machine *m)
{
    members.out = m;
    members.id = cluster_self_id(m->node->cluster);
    memcpy(members.public_key, m->node->cluster->identity.public_key, IDENTITY_BYTES);
}

/* One step towards its end, which faults may prevent. */
static void push_out(bool evicts)
{
    char name[16];
    const struct machine *leader = branch_leader();
    snprintf(name, sizeof(name), "node-%d", members.out->host->id);
    if (leader)
        (void)admin_remove(leader, name, evicts);
}

static void take_out(void)
{
    enum { LEAVES, REMOVED, EVICTED } how = (int)world_between(FROM_FAULTS, LEAVES, EVICTED);
    const int64_t end_us = world.now_us + OUT_US;
    if (how == REMOVED)
        machine_hold(members.out);
    while (!is_out() && world.now_us < end_us) {
        if (how == LEAVES)
            (void)admin_leave(members.out);
        else
            push_out(how == EVICTED);
        world_run(world.now_us + ms_between(100, 1000), is_out);
    }
    trace("node %d is %s (%d)", members.out->host->id, is_out() ? "out" : "still in", (int)how);
    if (how == REMOVED)
        machine_release(members.out);
}

/* ---- in again ---- */

static void check_new(const struct machine *m)
{
    const struct cluster *c = m->node->cluster;
    const struct state_node *x = node_at_leader(m);
    if (!x)
        return; /* the leader has just changed */
    if (c->self.id == members.id)
        return; /* it was never out */
    if (c->self.id < members.id)
        broken("node %d has joined with the number %" PRIu64 " after %" PRIu64, m->host->id, c->self.id, members.id);
    if (memcmp(c->identity.public_key, members.public_key, IDENTITY_BYTES) == 0)
        broken("node %d has joined again with its former identity", m->host->id);
    if (x->id == c->self.id && memcmp(x->public_key, c->identity.public_key, IDENTITY_BYTES) != 0)
        broken("the cluster has another identity for node %d than that with which it has joined", m->host->id);
    members.times++;
    members.former = m->host->id;
    memcpy(members.former_key, members.public_key, IDENTITY_BYTES);
}

/* Faults that never stop may keep a small cluster without a leader, so they end before a node must be in. */
static void take_in(void)
{
    if (!admin_take_anew(members.out, ANEW_US)) {
        trouble_end();
        trace("node %d is not in yet: no faults any more", members.out->host->id);
    }
    if (!admin_take_anew(members.out, ANEW_US)) {
        check_print();
        broken("node %d, which was out of the cluster, has not joined again after %d s: %s", members.out->host->id,
               (int)(ANEW_US / US_PER_S), admin_answer());
    }
    check_new(members.out);
    members.out = NULL;
}

/* ---- a run ---- */

static void step(void)
{
    struct machine *m = &machines[world_between(FROM_FAULTS, 1, world.n_hosts)];
    const struct machine *leader = branch_leader();
    if (leader && world_chance(FROM_FAULTS, 0.4))
        (void)admin_rotate(leader); /* refused while a rotation is under way */
    if (is_ready_to_go(m) && m != leader) {
        remember(m);
        take_out();
        world_run(world.now_us + ms_between(0, 4000), NULL);
        take_in();
    }
    world_run(world.now_us + ms_between(200, 4000), NULL);
}

static bool are_all_in(void)
{
    for (int id = 1; id <= world.n_hosts; id++)
        if (!is_ready_to_go(&machines[id]))
            return false;
    return true;
}

void members_run(bool disks_fail)
{
    const int64_t end_us = world.now_us + ms_between(15000, 40000);
    memset(&members, 0, sizeof(members));
    trouble_start(disks_fail);
    while (world.now_us < end_us)
        step();
    trouble_end();
    world_run(world.now_us + CALM_US, are_all_in);
    if (!are_all_in()) {
        check_print();
        broken("not all nodes are in the cluster %d s after the last fault", (int)(CALM_US / US_PER_S));
    }
    trace("nodes have joined again %d times", members.times);
    if (!members.former)
        return;
    thief_start();
    thief_has(members.former, members.former_key);
    world_run(world.now_us + THIEF_US, NULL);
    thief_end();
}
