/* A fault that lasts has an end of its own, an event of nobody's; faults_end is all ends at once. */
#include "tests/sim/faults.h"

#include "tests/sim/disk.h"
#include "tests/sim/net.h"
#include "tests/sim/operator.h"
#include "tests/sim/voter.h"

#include <stdint.h>

static struct {
    bool is_over;
    uint32_t chosen; /* bits of the table that this seed has */
    int64_t pause_us;
    uint64_t happened;
} faults;

static int64_t span(int64_t low_ms, int64_t high_ms)
{
    return world_between(FROM_FAULTS, low_ms * US_PER_MS, high_ms * US_PER_MS);
}

static struct host *some_host(void)
{
    return &world.hosts[world_between(FROM_FAULTS, 1, world.n_hosts)];
}

/* The leader half of the time: that is where it hurts. */
static struct host *some_victim(void)
{
    int leader = operator_leader();
    return leader && world_chance(FROM_FAULTS, 0.5) ? &world.hosts[leader] : some_host();
}

static void end_after(int64_t us, event_fn fn, void *arg)
{
    world_after(&world.hosts[0], us, fn, arg);
}

/* ---- processes ---- */

static void restart(void *arg)
{
    struct host *host = arg;
    if (!host->is_up)
        voter_start(host);
}

static void kill_one(void)
{
    struct host *host = some_victim();
    voter_kill(host);
    end_after(span(5, world_chance(FROM_FAULTS, 0.2) ? 8000 : 800), restart, host);
}

static void kill_all(void)
{
    for (int id = 1; id <= world.n_hosts; id++) {
        voter_kill(&world.hosts[id]);
        end_after(span(5, 1000), restart, &world.hosts[id]);
    }
}

/* In the middle of what it does: some of an event's effects are there, the others are not. */
static void kill_in_the_middle(void)
{
    struct host *host = some_victim();
    if (host->is_up)
        host->dies_after = (int)world_between(FROM_FAULTS, 1, 12);
}

static void on_death(struct host *host)
{
    voter_kill(host);
    end_after(span(5, 2000), restart, host);
}

static void stop_one(void)
{
    voter_stop(some_victim());
}

static void stall_one(void)
{
    struct host *host = some_victim();
    trace("host %d is stalled", host->id);
    host_stall(host, span(10, world_chance(FROM_FAULTS, 0.2) ? 4000 : 600));
}

/* ---- the network ---- */

static void heal(void *arg)
{
    (void)arg;
    trace("the network is whole");
    net_heal();
}

static void isolate_one(void)
{
    struct host *host = some_victim();
    trace("host %d is cut off", host->id);
    for (int id = 1; id <= world.n_hosts; id++) {
        net_cut(host->id, id);
        net_cut(id, host->id);
    }
    end_after(span(50, 4000), heal, NULL);
}

static void split(void)
{
    uint64_t side = world_draw(FROM_FAULTS);
    trace("the network is split");
    for (int a = 1; a <= world.n_hosts; a++)
        for (int b = 1; b <= world.n_hosts; b++)
            if ((side >> a & 1) != (side >> b & 1))
                net_cut(a, b);
    end_after(span(50, 4000), heal, NULL);
}

static void half_open(void)
{
    struct host *from = some_victim(), *to = some_host();
    trace("from host %d nothing comes to host %d", from->id, to->id);
    net_cut(from->id, to->id);
    end_after(span(50, 4000), heal, NULL);
}

static void deaf(void)
{
    struct host *host = some_victim();
    bool hears = world_chance(FROM_FAULTS, 0.5);
    trace("host %d %s", host->id, hears ? "hears only" : "is deaf");
    for (int id = 1; id <= world.n_hosts; id++)
        hears ? net_cut(host->id, id) : net_cut(id, host->id);
    end_after(span(50, 4000), heal, NULL);
}

static void bad_network(void)
{
    net.loss = (double)world_between(FROM_FAULTS, 0, 40) / 100;
    net.twice = (double)world_between(FROM_FAULTS, 0, 30) / 100;
    net.late = (double)world_between(FROM_FAULTS, 0, 10) / 100;
    net.delay_us = span(1, 120);
    trace("network: loss %.2f, twice %.2f, late %.2f, delay %d ms", net.loss, net.twice, net.late,
          (int)(net.delay_us / US_PER_MS));
    end_after(span(100, 5000), heal, NULL);
}

/* ---- disks ---- */

static void disk_well(void *arg)
{
    struct disk *disk = arg;
    disk->latency_us = 4000;
}

static void slow_disk(void)
{
    struct disk *disk = &disks[some_victim()->id];
    disk->latency_us = span(10, 700);
    trace("the disk of host %d takes up to %d ms", disk->host->id, (int)(disk->latency_us / US_PER_MS));
    end_after(span(200, 5000), disk_well, disk);
}

static void disk_has_space(void *arg)
{
    trace("the disk of host %d has space", ((struct disk *)arg)->host->id);
    disk_empty(arg);
}

static void full_disk(void)
{
    struct disk *disk = &disks[some_victim()->id];
    trace("the disk of host %d is full", disk->host->id);
    disk_fill(disk);
    end_after(span(100, world_chance(FROM_FAULTS, 0.3) ? 15000 : 3000), disk_has_space, disk);
}

/* ---- clocks ---- */

static void clock_jump(void)
{
    struct host *host = some_host();
    host->wall_offset_us = world_between(FROM_FAULTS, -5 * 3600, 5 * 3600) * US_PER_S;
    trace("the wall clock of host %d jumps", host->id);
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
    end_after(span(500, 8000), want_back, NULL);
}

/* ---- the schedule ---- */

static const struct {
    const char *name;
    void (*happen)(void);
    int weight;
} table[] = {
    {"kill", kill_one, 6},
    {"kill in the middle", kill_in_the_middle, 8},
    {"kill all", kill_all, 1},
    {"stop", stop_one, 1},
    {"stall", stall_one, 3},
    {"isolate", isolate_one, 3},
    {"split", split, 3},
    {"half-open", half_open, 3},
    {"deaf", deaf, 2},
    {"bad network", bad_network, 3},
    {"slow disk", slow_disk, 3},
    {"full disk", full_disk, 2},
    {"clock jump", clock_jump, 1},
    {"members", other_members, 3},
    {"transfer", operator_transfer, 2},
};
#define N_FAULTS (sizeof(table) / sizeof(table[0]))

static void one_fault(void)
{
    int sum = 0;
    for (size_t i = 0; i < N_FAULTS; i++)
        sum += faults.chosen >> i & 1 ? table[i].weight : 0;
    if (!sum)
        return;
    int64_t at = world_between(FROM_FAULTS, 0, sum - 1);
    for (size_t i = 0; i < N_FAULTS; i++) {
        at -= faults.chosen >> i & 1 ? table[i].weight : 0;
        if (at >= 0)
            continue;
        faults.happened++;
        table[i].happen();
        return;
    }
}

static void step(void *arg)
{
    if (faults.is_over)
        return;
    one_fault();
    world_after(&world.hosts[0], world_between(FROM_FAULTS, 0, faults.pause_us), step, arg);
}

void faults_start(void)
{
    faults.is_over = false;
    faults.happened = 0;
    faults.chosen = (uint32_t)world_draw(FROM_FAULTS) | (uint32_t)world_draw(FROM_FAULTS);
    if (world_chance(FROM_FAULTS, 0.3))
        faults.chosen = UINT32_MAX;
    faults.pause_us = span(100, 3000);
    for (size_t i = 0; i < N_FAULTS; i++)
        if (faults.chosen >> i & 1)
            trace("this run has: %s", table[i].name);
    world.on_death = on_death;
    world_after(&world.hosts[0], span(0, 3000), step, NULL);
}

void faults_end(void)
{
    trace("no more faults");
    faults.is_over = true;
    net_heal();
    operator_want_all();
    for (int id = 1; id <= world.n_hosts; id++) {
        disk_well(&disks[id]);
        disk_empty(&disks[id]);
        world.hosts[id].dies_after = 0;
        restart(&world.hosts[id]);
    }
}

uint64_t faults_happened(void)
{
    return faults.happened;
}
