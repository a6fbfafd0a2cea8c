/* What goes wrong, and when: a seed takes some faults of a table, so that a run may be all about disks, or all about
 * the network, and one of them, drawn by weight, happens after each pause. Also the faults of networks, disks and
 * clocks, which every simulation has. A fault that lasts has an end of its own, an event of nobody's. */
#ifndef DTD_TESTS_SIM_SCHEDULE_H
#define DTD_TESTS_SIM_SCHEDULE_H

#include "tests/sim/world.h"

struct fault {
    const char *name;
    void (*happen)(void);
    int weight;
};

/* At most 32 faults, kept by the caller. The first happens within `first_ms`; pauses are up to a time that each seed
 * draws between the two. */
void schedule_start(const struct fault *faults, int n, int64_t first_ms, int64_t pause_low_ms, int64_t pause_high_ms);
void schedule_end(void); /* no more; networks and disks are well again */
uint64_t schedule_happened(void);

int64_t fault_us(int64_t low_ms, int64_t high_ms); /* drawn, both included */
void fault_ends(int64_t after_us, event_fn fn, void *arg);

/* Each lasts for a time drawn between the two. */
void fault_isolate(int id, int64_t low_ms, int64_t high_ms);
void fault_split(int64_t low_ms, int64_t high_ms);
void fault_half_open(int from, int to, int64_t low_ms, int64_t high_ms); /* what `from` sends `to` is lost */
void fault_one_way(int id, bool hears, int64_t low_ms, int64_t high_ms); /* it only hears, or is deaf */
void fault_bad_network(int most_loss_percent);
void fault_slow_disk(int id);
void fault_full_disk(int id);
void fault_clock_jump(int id, int hours); /* of the wall clock, for ever, by up to `hours` */

#endif
