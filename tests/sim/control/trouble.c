#include "tests/sim/control/trouble.h"

#include "tests/sim/control/machine.h"
#include "tests/sim/control/process.h"
#include "tests/sim/control/versions.h"
#include "tests/sim/schedule.h"
#include "tests/sim/stream.h"

static struct machine *some_machine(void)
{
    return &machines[world_between(FROM_FAULTS, 1, world.n_hosts)];
}

/* The leader half of the time: its faults affect most. */
static struct machine *some_victim(void)
{
    for (int id = 1; id <= world.n_hosts && world_chance(FROM_FAULTS, 0.8); id++)
        if (machines[id].node && machines[id].host->is_up && machines[id].node->jobs.leads)
            return &machines[id];
    return some_machine();
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

static void exchange_dtd(void)
{
    versions_exchange(world_chance(FROM_FAULTS, 0.5) ? some_victim() : some_machine());
}

static void power_off(void)
{
    struct machine *m = some_victim();
    machine_kill(m, true);
    fault_ends(fault_us(200, world_chance(FROM_FAULTS, 0.4) ? 15000 : 3000), start_again, m);
}

static void kill_dtd(void)
{
    struct machine *m = some_victim();
    machine_kill(m, false);
    fault_ends(fault_us(10, 3000), start_again, m);
}

static void power_off_all(void)
{
    for (int id = 1; id <= world.n_hosts; id++) {
        machine_kill(&machines[id], true);
        fault_ends(fault_us(100, 4000), start_again, &machines[id]);
    }
}

static void stop_dtd(void)
{
    struct machine *m = some_machine();
    machine_stop(m);
    fault_ends(fault_us(20000, 25000), start_again, m);
}

static void stall(void)
{
    struct machine *m = some_victim();
    trace("control of host %d is stalled", m->host->id);
    host_stall(m->host, fault_us(10, world_chance(FROM_FAULTS, 0.3) ? 4000 : 700));
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

/* ---- the network, disks, clocks ---- */

static void isolate(void)
{
    int id = some_victim()->host->id;
    fault_isolate(id, 100, world_chance(FROM_FAULTS, 0.3) ? 14000 : 4000);
}

static void split(void)
{
    fault_split(100, 6000);
}

static void half_open(void)
{
    struct machine *from = some_victim(), *to = some_machine();
    if (from != to)
        fault_half_open(from->host->id, to->host->id, 100, 6000);
}

static void bad_network(void)
{
    fault_bad_network(30);
}

static void reset(void)
{
    stream_reset_one(some_victim()->host);
}

static void stall_stream(void)
{
    stream_stall_one(some_victim()->host, fault_us(100, 12000));
}

static void slow_disk(void)
{
    fault_slow_disk(some_victim()->host->id);
}

static void full_disk(void)
{
    fault_full_disk(some_victim()->host->id);
}

static void clock_jump(void)
{
    fault_clock_jump(some_machine()->host->id, 30);
}

static const struct fault troubles[] = {
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
    {"another dtd", exchange_dtd, 8}, /* only with --mixed */
};

void trouble_start(void)
{
    size_t n = sizeof(troubles) / sizeof(troubles[0]);
    schedule_start(troubles, versions_are_mixed() ? n : n - 1, 2000, 400, 6000);
}

void trouble_end(void)
{
    schedule_end();
    for (int id = 1; id <= world.n_hosts; id++)
        machine_start(&machines[id]);
    versions_finish();
}
