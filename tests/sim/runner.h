/* Runs seeds. Each is a process of its own, so that one that crashes, hangs or leaks is that seed's matter.
 *
 *   NAME --seeds N [--from S] [--nodes K] [--commands] [--trace] [--twice] [--expect-broken]
 *
 * --from 0 (the default) begins at a seed made of the time. --nodes 0 (the default): drawn. --commands: some jobs
 * of sim-control are commands. --twice runs each seed twice and compares. --expect-broken turns the answer round: good
 * when one of the seeds is broken (planted bugs). DTD_SIM_BUG=N plants a bug; --bugs lists them. */
#ifndef DTD_TESTS_SIM_RUNNER_H
#define DTD_TESTS_SIM_RUNNER_H

#include <stdbool.h>
#include <stdint.h>

struct summary {
    uint64_t events, records, answered, faults, deaths, print;
    int64_t virtual_us;
};

struct shape {
    int nodes; /* 0: by the seed */
    bool commands;
};

struct simulation {
    const char *name; /* of the program */
    void (*run)(uint64_t seed, const struct shape *shape, struct summary *ret);
    int first_bug, last_bug; /* that may be planted in it */
};

/* The end of a run, after the last fault: everything must be well within `quiet_us`, else the seed is broken, after
 * say_why_not. Fills the summary but for what was answered. */
void runner_settle(int64_t quiet_us, bool (*is_well)(void), void (*say_why_not)(void), struct summary *ret);

int runner_main(const struct simulation *simulation, int argc, char **argv);

#endif
