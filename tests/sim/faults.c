#include "tests/sim/faults.h"

#include "daemon/control/log/internal.h"
#include "tests/sim/disk.h"
#include "tests/sim/operator.h"
#include "tests/sim/schedule.h"
#include "tests/sim/voter.h"

static struct host *some_host(void)
{
    return &world.hosts[world_between(FROM_FAULTS, 1, world.n_hosts)];
}

/* The leader half of the time: its faults affect most. */
static struct host *some_victim(void)
{
    int leader = operator_leader();
    return leader && world_chance(FROM_FAULTS, 0.5) ? &world.hosts[leader] : some_host();
}

/* ---- processes ---- */

static void restart_host(void *arg)
{
    struct host *host = arg;
    if (!host->is_up)
        voter_start(host);
}

static void kill_one(void)
{
    struct host *host = some_victim();
    voter_kill(host);
    fault_ends(fault_us(5, world_chance(FROM_FAULTS, 0.2) ? 8000 : 800), restart_host, host);
}

static void kill_all(void)
{
    for (int id = 1; id <= world.n_hosts; id++) {
        voter_kill(&world.hosts[id]);
        fault_ends(fault_us(5, 1000), restart_host, &world.hosts[id]);
    }
}

/* Kills a process in the middle of an event: some of the event's effects happen, the others do not. */
static void kill_in_the_middle(void)
{
    struct host *host = some_victim();
    if (host->is_up)
        host->dies_after = (int)world_between(FROM_FAULTS, 1, 12);
}

static void on_death(struct host *host)
{
    voter_kill(host);
    fault_ends(fault_us(5, 2000), restart_host, host);
}

static void stop_one(void)
{
    voter_stop(some_victim());
}

static void stall_one(void)
{
    struct host *host = some_victim();
    trace("host %d is stalled", host->id);
    host_stall(host, fault_us(10, world_chance(FROM_FAULTS, 0.2) ? 4000 : 600));
}

/* ---- the network, disks, clocks ---- */

static void isolate_one(void)
{
    fault_isolate(some_victim()->id, 50, 4000);
}

static void split_network(void)
{
    fault_split(50, 4000);
}

static void half_open(void)
{
    int from = some_victim()->id;
    fault_half_open(from, some_host()->id, 50, 4000);
}

static void make_deaf(void)
{
    int id = some_victim()->id;
    fault_one_way(id, world_chance(FROM_FAULTS, 0.5), 50, 4000);
}

static void bad_network(void)
{
    fault_bad_network(40);
}

static void slow_disk(void)
{
    fault_slow_disk(some_victim()->id);
}

static void full_disk(void)
{
    fault_full_disk(some_victim()->id);
}

/* ---- disks that fail: world_between draws what they have ---- */

static unsigned some_faults(void)
{
    static const unsigned kinds[] = {DISK_WRITES, DISK_SEGMENTS, DISK_SNAPSHOTS, DISK_VOTES,
                                     DISK_WRITES | DISK_SEGMENTS | DISK_SNAPSHOTS | DISK_VOTES};
    return kinds[world_between(FROM_FAULTS, 0, sizeof(kinds) / sizeof(kinds[0]) - 1)];
}

static void sick_disk(void)
{
    fault_sick_disk(some_victim()->id, some_faults(), 500, 12000);
}

static void blocked_disk(void)
{
    fault_sick_disk(some_victim()->id, DISK_HANGS, 500, 12000);
}

static void no_descriptors(void)
{
    fault_sick_disk(some_victim()->id, DISK_DESCRIPTORS, 50, 8000);
}

static void no_memory(void)
{
    fault_sick_disk(some_victim()->id, DISK_MEMORY, 50, 3000);
}

#define NOTICE_US (5500 * US_PER_MS) /* 5 s, and the clock of a host may be slow */

/* A log reports within 5 s that its disk fails. */
static void check_notice(const struct voter *v)
{
    const struct disk *disk = &disks[v->host->id];
    if (!disk->failed_us || !disk->faults || world.now_us - disk->failed_us < NOTICE_US ||
        v->host->stalled_until + NOTICE_US > world.now_us || v->log->fsm.state == 0)
        return;
    if (!log_warning(v->log))
        broken("host %d does not report that its disk fails", v->host->id);
    if (log_leads(v->log) && !v->log->is_alone)
        broken("host %d leads although its disk fails", v->host->id);
}

/* A user replaces a disk that has failed, and starts dtd there again. */
static void mend_disks(void *arg)
{
    (void)arg;
    for (int id = 1; id <= world.n_hosts; id++) {
        const struct voter *v = &voters[id];
        if (!voter_is_open(v))
            continue;
        check_notice(v);
        if (v->log->faults.err == ERR_IO && !disks[id].faults) {
            voter_kill(&world.hosts[id]);
            fault_ends(fault_us(5, 2000), restart_host, &world.hosts[id]);
        }
    }
    world_after(&world.hosts[0], US_PER_S, mend_disks, NULL);
}

static void two_at_once(void);

static void clock_jump(void)
{
    fault_clock_jump(some_host()->id, 30);
}

/* ---- members ---- */

static void want_back(void *arg)
{
    (void)arg;
    operator_want_all();
}

static void other_members(void)
{
    int id = (int)world_between(FROM_FAULTS, 1, world.n_hosts), voters_left = 0;
    enum wanted before = wanted[id];
    wanted[id] = (enum wanted)world_between(FROM_FAULTS, WANTED_GONE, WANTED_VOTER);
    for (int i = 1; i <= world.n_hosts; i++)
        voters_left += wanted[i] == WANTED_VOTER;
    if (!voters_left)
        wanted[id] = before;
    trace("wanted of host %d: %d", id, wanted[id]);
    fault_ends(fault_us(500, 8000), want_back, NULL);
}

static const struct fault faults[] = {
    {"kill", kill_one, 6},
    {"kill in the middle", kill_in_the_middle, 8},
    {"kill all", kill_all, 1},
    {"stop", stop_one, 1},
    {"stall", stall_one, 3},
    {"isolate", isolate_one, 3},
    {"split", split_network, 3},
    {"half-open", half_open, 3},
    {"deaf", make_deaf, 2},
    {"bad network", bad_network, 3},
    {"slow disk", slow_disk, 3},
    {"full disk", full_disk, 2},
    {"clock jump", clock_jump, 1},
    {"members", other_members, 3},
    {"transfer", operator_transfer, 2},
    /* with failing disks only, so that earlier seeds stay what they were */
    {"failing disk", sick_disk, 4},
    {"blocked disk", blocked_disk, 3},
    {"no descriptors", no_descriptors, 2},
    {"no memory", no_memory, 2},
    {"two at once", two_at_once, 4},
};
#define N_FAULTS ((int)(sizeof(faults) / sizeof(faults[0])))
#define N_DISK_FAULTS 5

static void two_at_once(void)
{
    for (int i = 0; i < 2; i++)
        faults[world_between(FROM_FAULTS, 0, N_FAULTS - 2)].happen();
}

void faults_start(bool disks_fail)
{
    world.on_death = on_death;
    if (disks_fail)
        world_after(&world.hosts[0], US_PER_S, mend_disks, NULL);
    schedule_start(faults, disks_fail ? N_FAULTS : N_FAULTS - N_DISK_FAULTS, 3000, 100, 3000);
}

void faults_end(void)
{
    schedule_end();
    operator_want_all();
    for (int id = 1; id <= world.n_hosts; id++)
        restart_host(&world.hosts[id]);
}
