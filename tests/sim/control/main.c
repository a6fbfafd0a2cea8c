/* sim-control: all of control on the computers of a cluster, with the jobs' processes and clients. runner.h describes
 * the arguments. */
#include "tests/sim/bugs.h"
#include "tests/sim/check.h"
#include "tests/sim/control/admin.h"
#include "tests/sim/control/branches.h"
#include "tests/sim/control/damage.h"
#include "tests/sim/control/ledger.h"
#include "tests/sim/control/machine.h"
#include "tests/sim/control/members.h"
#include "tests/sim/control/people.h"
#include "tests/sim/control/process.h"
#include "tests/sim/control/recovery.h"
#include "tests/sim/control/saved.h"
#include "tests/sim/control/scarce.h"
#include "tests/sim/control/thief.h"
#include "tests/sim/control/trouble.h"
#include "tests/sim/control/versions.h"
#include "tests/sim/disk.h"
#include "tests/sim/net.h"
#include "tests/sim/runner.h"
#include "tests/sim/stream.h"

#include <inttypes.h>
#include <stdio.h>

#define FORM_US (20 * US_PER_S)    /* limit for a node to join */
#define STOP_US (25 * US_PER_S)    /* limit for a stopped node to end and for another to lead */
#define ELECTED_US (10 * US_PER_S) /* limit for another election after the leader is lost: votes may be split */
#define LOSS_US                                                                                                    \
    (2500 * US_PER_MS)           /* limit, counted from the election, for the leader to declare the lost node lost \
                                  */
#define EVICT_US (30 * US_PER_S) /* limit for a node to be evicted and to notice it */
#define QUIET_US \
    (1500 * US_PER_S) /* limit for all jobs to end and all clients to get answers; loading has a timeout of 900 s */

static void after_event(struct host *host)
{
    check_event(host);
    if (host->id && host->on == host)
        branch_note(&machines[host->id]);
    ledger_tick();
    versions_count();
}

/* ---- beginning ---- */

static int joining, stopped, lost;

static bool has_joined(void)
{
    return machine_is_well(&machines[joining]) && cluster_named(machines[joining].node->cluster);
}

/* Nodes join one after the other, so that a node's id in the log is its computer's number. */
static void form_cluster(void)
{
    for (joining = 1; joining <= world.n_hosts; joining++) {
        machine_start(&machines[joining]);
        world_run(world.now_us + FORM_US, has_joined);
        if (!has_joined())
            broken("node %d has not joined in %d s", joining, (int)(FORM_US / US_PER_S));
    }
}

/* ---- the end ---- */

static bool is_well(void)
{
    int leaders = 0;
    for (int id = 1; id <= world.n_hosts; id++) {
        if (!machine_is_well(&machines[id]))
            return false;
        leaders += machines[id].node->jobs.leads;
    }
    return versions_are_even() && people_are_done() && ledger_all_ended() && process_count(0) == 0 && leaders == 1;
}

static void print_why_not_well(void)
{
    printf("people %s, processes of jobs %d\n", people_are_done() ? "are done" : "wait", process_count(0));
    ledger_print();
    check_print();
    for (int id = 1; id <= world.n_hosts; id++) {
        const struct machine *m = &machines[id];
        printf("host %d: version %d, %s, %s%s; follows %s; %d slots\n", id, (int)m->running,
               m->host->is_up ? "up" : "down",
               !m->node              ? "no control"
               : m->node->jobs.leads ? "leads"
               : m->node->rpc.leader ? "follows"
                                     : "follows no leader",
               m->node && m->node->rpc.listener ? "" : ", does not serve",
               m->node && cluster_leader(m->node->cluster) ? cluster_leader(m->node->cluster) : "-", m->slots);
    }
}

/* ---- an orderly stop ---- */

static bool has_gone;

static bool is_led(void)
{
    int leaders = 0;
    for (int id = 1; id <= world.n_hosts; id++)
        leaders += machines[id].node && machines[id].node->jobs.leads;
    return leaders == 1;
}

static bool is_led_without_it(void)
{
    has_gone |= !machines[stopped].has_dtd; /* it may run again if an earlier fault ends with its start */
    return has_gone && is_led();
}

/* With no other fault, one random node is stopped, and the others must keep a leader. */
static void stop_one(void)
{
    stopped = (int)world_between(FROM_FAULTS, 1, world.n_hosts);
    has_gone = false;
    machine_stop(&machines[stopped]);
    world_run(world.now_us + STOP_US, is_led_without_it);
    if (is_led_without_it())
        world_run(world.now_us + 3 * US_PER_S, NULL);
    if (!is_led_without_it()) {
        print_why_not_well();
        broken("node %d was stopped, and no other node leads within %d s", stopped, (int)(STOP_US / US_PER_S));
    }
}

/* ---- a lost node ---- */

static bool is_known(void)
{
    char name[16];
    snprintf(name, sizeof(name), "node-%d", lost);
    for (int id = 1; id <= world.n_hosts; id++) {
        struct control *n = machines[id].has_dtd ? machines[id].node : NULL;
        if (n && n->jobs.leads && node_view_find(&n->jobs, name)->state == NODE_LOST)
            return true;
    }
    return machines[lost].has_dtd; /* it may run again if an earlier fault ends with its start */
}

/* In a cluster of three and more nodes, one loses its power, possibly the leader. */
static void lose_one(void)
{
    lost = (int)world_between(FROM_FAULTS, 1, world.n_hosts);
    machine_kill(&machines[lost], true);
    world_run(world.now_us + ELECTED_US, is_led);
    world_run(world.now_us + LOSS_US, is_known);
    if (!is_known()) {
        print_why_not_well();
        broken("node %d was lost, and the leader did not declare it lost within %d ms", lost,
               (int)(LOSS_US / US_PER_MS));
    }
}

/* ---- an eviction ---- */

static int evicted;

/* The others have one leader, who does not list the node. */
static bool is_evicted(void)
{
    char name[16];
    int leaders = 0;
    snprintf(name, sizeof(name), "node-%d", evicted);
    for (int id = 1; id <= world.n_hosts; id++) {
        const struct control *n = machines[id].node;
        if (id != evicted && n && n->jobs.leads)
            leaders += state_node_find(n->replica.state, name) == NULL;
    }
    const struct control *self = machines[evicted].node;
    return people_have_evicted() && leaders == 1 && self && !self->jobs.leads && cluster_is_removed(self->cluster);
}

static bool runs_there(void)
{
    return process_count_on(&machines[evicted]) > 0;
}

static bool has_ended(void)
{
    return ledger_all_ended() && process_count(0) == 0;
}

static bool follows_again(void)
{
    return machines[evicted].node && cluster_leader(machines[evicted].node->cluster) != NULL;
}

/* With no other fault, one random node is evicted, possibly the leader. It notices, has no worker any more, and never
 * follows again, also after a new start. */
static void evict_one(void)
{
    evicted = (int)world_between(FROM_FAULTS, 1, world.n_hosts);
    people_submit_wide();
    world_run(world.now_us + EVICT_US, runs_there);
    if (!runs_there())
        broken("a job for all slots does not start");
    people_evict(evicted);
    world_run(world.now_us + EVICT_US, is_evicted);
    if (!is_evicted()) {
        print_why_not_well();
        broken("node %d was not evicted within %d s", evicted, (int)(EVICT_US / US_PER_S));
    }
    world_run(world.now_us + US_PER_S, NULL);
    if (runs_there())
        broken("node %d was evicted and has processes", evicted);
    world_run(world.now_us + QUIET_US, has_ended);
    if (!has_ended())
        broken("the job of an evicted node does not end on the others");
    machine_kill(&machines[evicted], false);
    machine_start(&machines[evicted]);
    world_run(world.now_us + 20 * US_PER_S, follows_again);
    if (follows_again())
        broken("node %d was evicted and follows a leader again", evicted);
}

static void run_faults(bool disks_fail)
{
    trouble_start(disks_fail);
    world_run(world.now_us + world_between(FROM_FAULTS, 10, 40) * US_PER_S, NULL);
    trouble_end();
}

/* Nodes may have to leave the cluster and to join it anew. */
static bool anew(const struct shape *shape)
{
    return shape->recover || shape->members || shape->damage;
}

static void run_seed(uint64_t seed, const struct shape *shape, struct summary *ret)
{
    static const int sizes[] = {3, 3, 4, 5, 3, 6, 3, 5, 4, 7};
    world_init(seed, shape->nodes ? shape->nodes : sizes[seed % 10]);
    net_init();
    stream_init();
    process_init(seed % 3 == 0);
    ledger_init();
    check_init(ledger_record);
    admin_init();
    if (anew(shape))
        branches_init();
    if (shape->damage)
        saved_keep_clocks();
    world.after_event = after_event;
    world.on_death = machine_died;
    versions_init(shape->mixed);
    for (int id = 1; id <= world.n_hosts; id++) {
        disk_init(&disks[id], &world.hosts[id]);
        machine_init(id, (int)world_between(FROM_CLIENTS, 1, 4));
    }
    machines_make_slices = shape->slices;
    form_cluster();
    people_start((int)world_between(FROM_CLIENTS, 1, 3), shape->commands);
    if (shape->identity) {
        people_rotate();
        thief_start();
    }
    machines_join_by_token = anew(shape);
    if (anew(shape))
        people_never_drain();
    if (shape->damage)
        damage_start();
    if (shape->scarce || shape->memory)
        scarce_start(shape->scarce, shape->memory);
    if (shape->recover)
        recovery_run(shape->disks);
    else if (shape->members)
        members_run(shape->disks);
    else
        run_faults(shape->disks);
    scarce_end();
    if (shape->damage)
        damage_end();
    world_run(world.now_us + 3 * US_PER_S, NULL);
    people_finish();
    runner_settle(QUIET_US, is_well, print_why_not_well, ret);
    if (shape->identity)
        evict_one();
    else if (world.n_hosts > 2 && world_chance(FROM_FAULTS, 0.5))
        lose_one();
    else
        stop_one();
    if (shape->identity && thief_attempts() < 20)
        broken("the thief has tried only %d times", (int)thief_attempts());
    ret->answered = people_answered();
    versions_report(ret);
}

int main(int argc, char **argv)
{
    static const struct simulation simulation = {"sim-control", run_seed, N_LOG_BUGS + 1, N_CONTROL_BUGS, 0, 0};
    return runner_main(&simulation, argc, argv);
}
