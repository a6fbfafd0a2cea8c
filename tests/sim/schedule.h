/* The faults of a run and their times. A seed selects some faults of a table, so that a run may be all about disks, or
 * all about the network. After each pause one of them happens, drawn by weight. The faults of networks, disks and
 * clocks, which every simulation has, are here too. The end of a lasting fault is an event of its own, on host 0. */
#ifndef DTD_TESTS_SIM_SCHEDULE_H
#define DTD_TESTS_SIM_SCHEDULE_H

#include "tests/sim/world.h"

struct fault {
    const char *name;
    void (*happen)(void);
    int weight;
};

/* At most 32 faults; the table is not copied. The first fault happens within `first_ms`. Each seed draws the longest
 * pause between the two bounds. */
void schedule_start(const struct fault *faults, int n, int64_t first_ms, int64_t pause_low_ms, int64_t pause_high_ms);
void schedule_end(void); /* no more faults; repairs networks and disks */
uint64_t schedule_happened(void);

int64_t fault_us(int64_t low_ms, int64_t high_ms); /* drawn at random, both ends included */
void fault_ends(int64_t after_us, event_fn fn, void *arg);

/* Each lasts for a random time between the two. */
void fault_isolate(int id, int64_t low_ms, int64_t high_ms);
void fault_split(int64_t low_ms, int64_t high_ms);
void fault_half_open(int from, int to, int64_t low_ms, int64_t high_ms); /* messages from `from` to `to` are lost */
/* The host only receives (`receives`), or only sends. */
void fault_one_way(int id, bool receives, int64_t low_ms, int64_t high_ms);
void fault_bad_network(int most_loss_percent);
void fault_slow_disk(int id);
void fault_full_disk(int id);
/* For `low_ms` to `high_ms`, or until something else ends it, the disk has these faults (enum disk_fault). */
void fault_sick_disk(int id, unsigned faults, int64_t low_ms, int64_t high_ms);
void fault_clock_jump(int id, int hours); /* the wall clock jumps by up to `hours`, permanently */

#endif
