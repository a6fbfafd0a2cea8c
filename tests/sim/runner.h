/* Runs seeds. Each is a process of its own, so that one that crashes, hangs or leaks is that seed's matter.
 *
 *   NAME --seeds N [--from S] [--nodes K] [--trace] [--twice] [--expect-broken]
 *
 * --from 0 (the default) begins at a seed made of the time. --nodes 0 (the default): drawn. --twice runs each seed
 * twice and compares. --expect-broken turns the answer round: good when one of the seeds is broken (planted bugs).
 * DTD_SIM_BUG=N plants a bug; --bugs lists them. */
#ifndef DTD_TESTS_SIM_RUNNER_H
#define DTD_TESTS_SIM_RUNNER_H

#include <stdint.h>

struct summary {
    uint64_t events, records, answered, faults, deaths, print;
    int64_t virtual_us;
};

struct simulation {
    const char *name; /* of the program */
    void (*run)(uint64_t seed, int nodes, struct summary *ret);
    int first_bug, last_bug; /* that may be planted in it */
};

int runner_main(const struct simulation *simulation, int argc, char **argv);

#endif
