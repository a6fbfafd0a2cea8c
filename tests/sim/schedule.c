#include "tests/sim/schedule.h"

#include "tests/sim/disk.h"
#include "tests/sim/net.h"

#include <assert.h>

static struct {
    const struct fault *faults;
    int n;
    bool is_over;
    uint32_t chosen; /* bit set: faults of the table that this seed uses */
    int64_t pause_us;
    uint64_t happened;
} schedule;

int64_t fault_us(int64_t low_ms, int64_t high_ms)
{
    return world_between(FROM_FAULTS, low_ms * US_PER_MS, high_ms * US_PER_MS);
}

void fault_ends(int64_t after_us, event_fn fn, void *arg)
{
    world_after(&world.hosts[0], after_us, fn, arg);
}

/* ---- the network ---- */

static void heal(void *arg)
{
    (void)arg;
    trace("the network is whole");
    net_heal();
}

void fault_isolate(int id, int64_t low_ms, int64_t high_ms)
{
    trace("host %d is cut off", id);
    for (int other = 1; other <= world.n_hosts; other++) {
        net_cut(id, other);
        net_cut(other, id);
    }
    fault_ends(fault_us(low_ms, high_ms), heal, NULL);
}

void fault_split(int64_t low_ms, int64_t high_ms)
{
    uint64_t side = world_draw(FROM_FAULTS);
    trace("the network is split");
    for (int a = 1; a <= world.n_hosts; a++)
        for (int b = 1; b <= world.n_hosts; b++)
            if ((side >> a & 1) != (side >> b & 1))
                net_cut(a, b);
    fault_ends(fault_us(low_ms, high_ms), heal, NULL);
}

void fault_half_open(int from, int to, int64_t low_ms, int64_t high_ms)
{
    trace("messages from host %d to host %d are lost", from, to);
    net_cut(from, to);
    fault_ends(fault_us(low_ms, high_ms), heal, NULL);
}

void fault_one_way(int id, bool receives, int64_t low_ms, int64_t high_ms)
{
    trace("host %d %s", id, receives ? "only receives" : "only sends");
    for (int other = 1; other <= world.n_hosts; other++)
        receives ? net_cut(id, other) : net_cut(other, id);
    fault_ends(fault_us(low_ms, high_ms), heal, NULL);
}

void fault_bad_network(int most_loss_percent)
{
    net.loss = (double)world_between(FROM_FAULTS, 0, most_loss_percent) / 100;
    net.twice = (double)world_between(FROM_FAULTS, 0, 30) / 100;
    net.late = (double)world_between(FROM_FAULTS, 0, 10) / 100;
    net.delay_us = fault_us(1, 120);
    trace("network: loss %.2f, twice %.2f, late %.2f, delay %d ms", net.loss, net.twice, net.late,
          (int)(net.delay_us / US_PER_MS));
    fault_ends(fault_us(100, 5000), heal, NULL);
}

/* ---- disks and clocks ---- */

static void disk_well(void *arg)
{
    struct disk *disk = arg;
    disk->latency_us = 4000;
}

static void disk_has_space(void *arg)
{
    struct disk *disk = arg;
    trace("the disk of host %d has space", disk->host->id);
    disk_empty(disk);
}

void fault_slow_disk(int id)
{
    disks[id].latency_us = fault_us(10, 700);
    trace("the disk of host %d takes up to %d ms", id, (int)(disks[id].latency_us / US_PER_MS));
    fault_ends(fault_us(200, 5000), disk_well, &disks[id]);
}

void fault_full_disk(int id)
{
    trace("the disk of host %d is full", id);
    disk_fill(&disks[id]);
    fault_ends(fault_us(100, world_chance(FROM_FAULTS, 0.3) ? 15000 : 3000), disk_has_space, &disks[id]);
}

static void disk_is_mended(void *arg)
{
    struct disk *disk = arg;
    trace("the disk of host %d is mended", disk->host->id);
    disk->faults = 0;
}

void fault_sick_disk(int id, unsigned faults, int64_t low_ms, int64_t high_ms)
{
    trace("the disk of host %d fails: %x", id, faults);
    disks[id].faults |= faults;
    fault_ends(fault_us(low_ms, high_ms), disk_is_mended, &disks[id]);
}

void fault_clock_jump(int id, int hours)
{
    world.hosts[id].wall_offset_us = world_between(FROM_FAULTS, -hours * 3600, hours * 3600) * US_PER_S;
    trace("the wall clock of host %d jumps", id);
}

/* ---- the schedule ---- */

static int weight(int fault)
{
    return schedule.chosen >> fault & 1 ? schedule.faults[fault].weight : 0;
}

static void one_fault(void)
{
    int sum = 0;
    for (int i = 0; i < schedule.n; i++)
        sum += weight(i);
    if (!sum)
        return;
    int i = 0;
    for (int64_t at = world_between(FROM_FAULTS, 0, sum - 1) - weight(0); at >= 0; at -= weight(i))
        i++;
    schedule.happened++;
    schedule.faults[i].happen();
}

static void step(void *arg)
{
    (void)arg;
    if (schedule.is_over)
        return;
    one_fault();
    world_after(&world.hosts[0], world_between(FROM_FAULTS, 0, schedule.pause_us), step, NULL);
}

void schedule_start(const struct fault *faults, int n, int64_t first_ms, int64_t pause_low_ms, int64_t pause_high_ms)
{
    assert(n <= 32);
    schedule.faults = faults;
    schedule.n = n;
    schedule.is_over = false;
    schedule.happened = 0;
    schedule.chosen = (uint32_t)world_draw(FROM_FAULTS) | (uint32_t)world_draw(FROM_FAULTS);
    if (world_chance(FROM_FAULTS, 0.3))
        schedule.chosen = UINT32_MAX;
    schedule.pause_us = fault_us(pause_low_ms, pause_high_ms);
    for (int i = 0; i < n; i++)
        if (schedule.chosen >> i & 1)
            trace("this run has: %s", faults[i].name);
    world_after(&world.hosts[0], fault_us(0, first_ms), step, NULL);
}

void schedule_end(void)
{
    trace("no more faults");
    schedule.is_over = true;
    net_heal();
    for (int id = 1; id <= world.n_hosts; id++) {
        disk_well(&disks[id]);
        disk_empty(&disks[id]);
        disks[id].faults = 0;
        world.hosts[id].dies_after = 0;
    }
}

uint64_t schedule_happened(void)
{
    return schedule.happened;
}
