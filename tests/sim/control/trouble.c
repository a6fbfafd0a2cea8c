/* As tests/sim/faults.c has it: a fault that lasts has an end of its own, an event of nobody's. */
#include "tests/sim/control/trouble.h"

#include "tests/sim/control/machine.h"
#include "tests/sim/control/process.h"
#include "tests/sim/disk.h"
#include "tests/sim/net.h"
#include "tests/sim/stream.h"

static struct {
    bool is_over;
    uint32_t chosen;
    int64_t pause_us;
    uint64_t happened;
} trouble;

static int64_t span(int64_t low_ms, int64_t high_ms)
{
    return world_between(FROM_FAULTS, low_ms * US_PER_MS, high_ms * US_PER_MS);
}

static struct machine *some_machine(void)
{
    return &machines[world_between(FROM_FAULTS, 1, world.n_hosts)];
}

/* The one that leads, half of the time. */
static struct machine *some_victim(void)
{
    for (int id = 1; id <= world.n_hosts && world_chance(FROM_FAULTS, 0.8); id++)
        if (machines[id].node && machines[id].host->is_up && machines[id].node->leads)
            return &machines[id];
    return some_machine();
}

static void after(int64_t us, event_fn fn, void *arg)
{
    world_after(&world.hosts[0], us, fn, arg);
}

/* ---- processes and computers ---- */

static void start_again(void *arg)
{
    machine_start(arg);
}

static void kill_control(void)
{
    struct machine *m = some_victim();
    if (m->host->is_up)
        machine_kill_control(m);
}

static void kill_in_the_middle(void)
{
    struct host *host = some_victim()->host;
    if (host->is_up)
        host->dies_after = (int)world_between(FROM_FAULTS, 1, 12);
}

static void power_off(void)
{
    struct machine *m = some_victim();
    machine_kill(m, true);
    after(span(200, world_chance(FROM_FAULTS, 0.4) ? 15000 : 3000), start_again, m);
}

static void kill_dtd(void)
{
    struct machine *m = some_victim();
    machine_kill(m, false);
    after(span(10, 3000), start_again, m);
}

static void power_off_all(void)
{
    for (int id = 1; id <= world.n_hosts; id++) {
        machine_kill(&machines[id], true);
        after(span(100, 4000), start_again, &machines[id]);
    }
}

static void stop_dtd(void)
{
    struct machine *m = some_machine();
    machine_stop(m);
    after(span(20000, 25000), start_again, m);
}

static void stall(void)
{
    struct machine *m = some_victim();
    trace("control of host %d is stalled", m->host->id);
    host_stall(m->host, span(10, world_chance(FROM_FAULTS, 0.3) ? 4000 : 700));
}

static void kill_process(void)
{
    process_kill_one(some_machine());
}

static void hang_process(void)
{
    process_hang_one(some_machine());
}

static void fail_process(void)
{
    process_fail_one(some_machine());
}

/* ---- the network ---- */

static void heal(void *arg)
{
    (void)arg;
    trace("the network is whole");
    net_heal();
}

static void isolate(void)
{
    struct machine *m = some_victim();
    trace("host %d is cut off", m->host->id);
    for (int id = 1; id <= world.n_hosts; id++) {
        net_cut(m->host->id, id);
        net_cut(id, m->host->id);
    }
    after(span(100, world_chance(FROM_FAULTS, 0.3) ? 14000 : 4000), heal, NULL);
}

static void split(void)
{
    uint64_t side = world_draw(FROM_FAULTS);
    trace("the network is split");
    for (int a = 1; a <= world.n_hosts; a++)
        for (int b = 1; b <= world.n_hosts; b++)
            if ((side >> a & 1) != (side >> b & 1))
                net_cut(a, b);
    after(span(100, 6000), heal, NULL);
}

static void half_open(void)
{
    struct machine *from = some_victim(), *to = some_machine();
    if (from == to)
        return;
    trace("from host %d nothing comes to host %d", from->host->id, to->host->id);
    net_cut(from->host->id, to->host->id);
    after(span(100, 6000), heal, NULL);
}

static void bad_network(void)
{
    net.loss = (double)world_between(FROM_FAULTS, 0, 30) / 100;
    net.twice = (double)world_between(FROM_FAULTS, 0, 30) / 100;
    net.late = (double)world_between(FROM_FAULTS, 0, 10) / 100;
    net.delay_us = span(1, 120);
    trace("network: loss %.2f, delay %d ms", net.loss, (int)(net.delay_us / US_PER_MS));
    after(span(100, 5000), heal, NULL);
}

static void reset(void)
{
    stream_reset_one(some_victim()->host);
}

static void stall_stream(void)
{
    stream_stall_one(some_victim()->host, span(100, 12000));
}

/* ---- disks and clocks ---- */

static void disk_well(void *arg)
{
    struct disk *disk = arg;
    disk->latency_us = 4000;
    disk_empty(disk);
}

static void slow_disk(void)
{
    struct disk *disk = &disks[some_victim()->host->id];
    disk->latency_us = span(10, 700);
    trace("the disk of host %d takes up to %d ms", disk->host->id, (int)(disk->latency_us / US_PER_MS));
    after(span(200, 5000), disk_well, disk);
}

static void full_disk(void)
{
    struct disk *disk = &disks[some_victim()->host->id];
    trace("the disk of host %d is full", disk->host->id);
    disk_fill(disk);
    after(span(100, world_chance(FROM_FAULTS, 0.3) ? 15000 : 3000), disk_well, disk);
}

static void clock_jump(void)
{
    struct machine *m = some_machine();
    m->host->wall_offset_us = world_between(FROM_FAULTS, -3600, 3600) * US_PER_S;
    trace("the wall clock of host %d jumps", m->host->id);
}

/* ---- the schedule ---- */

static const struct {
    const char *name;
    void (*happen)(void);
    int weight;
} table[] = {
    {"kill control", kill_control, 4},
    {"kill control in the middle", kill_in_the_middle, 4},
    {"power off", power_off, 3},
    {"kill dtd", kill_dtd, 2},
    {"power off all", power_off_all, 1},
    {"stop dtd", stop_dtd, 1},
    {"stall control", stall, 2},
    {"kill a process", kill_process, 5},
    {"hang a process", hang_process, 2},
    {"a rank fails", fail_process, 2},
    {"isolate", isolate, 3},
    {"split", split, 2},
    {"half-open", half_open, 2},
    {"bad network", bad_network, 2},
    {"reset a stream", reset, 4},
    {"stall a stream", stall_stream, 2},
    {"slow disk", slow_disk, 2},
    {"full disk", full_disk, 2},
    {"clock jump", clock_jump, 1},
};
#define N_TROUBLES (sizeof(table) / sizeof(table[0]))

static void one(void)
{
    int sum = 0;
    for (size_t i = 0; i < N_TROUBLES; i++)
        sum += trouble.chosen >> i & 1 ? table[i].weight : 0;
    if (!sum)
        return;
    int64_t at = world_between(FROM_FAULTS, 0, sum - 1);
    for (size_t i = 0; i < N_TROUBLES; i++) {
        at -= trouble.chosen >> i & 1 ? table[i].weight : 0;
        if (at >= 0)
            continue;
        trouble.happened++;
        table[i].happen();
        return;
    }
}

static void step(void *arg)
{
    if (trouble.is_over)
        return;
    one();
    after(world_between(FROM_FAULTS, 0, trouble.pause_us), step, arg);
}

void trouble_start(void)
{
    trouble.is_over = false;
    trouble.happened = 0;
    trouble.chosen = (uint32_t)world_draw(FROM_FAULTS) | (uint32_t)world_draw(FROM_FAULTS);
    if (world_chance(FROM_FAULTS, 0.3))
        trouble.chosen = UINT32_MAX;
    trouble.pause_us = span(400, 6000);
    for (size_t i = 0; i < N_TROUBLES; i++)
        if (trouble.chosen >> i & 1)
            trace("this run has: %s", table[i].name);
    after(span(0, 2000), step, NULL);
}

void trouble_end(void)
{
    trace("no more trouble");
    trouble.is_over = true;
    net_heal();
    for (int id = 1; id <= world.n_hosts; id++) {
        disk_well(&disks[id]);
        world.hosts[id].dies_after = 0;
        machine_start(&machines[id]);
    }
}

uint64_t trouble_happened(void)
{
    return trouble.happened;
}
