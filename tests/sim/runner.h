/* Runs seeds. Each seed is a process of its own, so that a crash, a hang or a leak affects only that seed.
 *
 * NAME --seeds N [--from S] [--nodes K] [--commands] [--mixed] [--images [--blind]] [--disks] [--identity] [--slices]
 * [--recover] [--members] [--damage] [--scarce] [--memory] [--trace] [--twice] [--expect-broken]
 *
 * --from 0 (the default) starts at a seed derived from the time. --nodes 0 (the default) draws the number. --commands
 * makes some jobs of sim-control commands; --mixed gives its computers dtds of two versions; with --identity keys are
 * rotated, a thief uses stolen keys, and a node is evicted; with --slices a node that begins to lead makes one job at a
 * time; with --disks disks fail; with --recover a majority is lost, and the cluster is recovered; with --members nodes
 * leave and join again; with --damage files are damaged; with --scarce descriptors and threads run out; with --memory
 * allocations fail; with --images an old copy of a voter's disk comes back (sim; image.h). --twice runs
 * each seed twice and compares the runs. --expect-broken succeeds if one of the seeds fails (planted bugs).
 * DTD_SIM_BUG=NAME plants a bug; --bugs lists them. */
#ifndef DTD_TESTS_SIM_RUNNER_H
#define DTD_TESTS_SIM_RUNNER_H

#include <stdbool.h>
#include <stdint.h>

struct summary {
    uint64_t events, records, answered, faults, deaths, print;
    int64_t virtual_us;
    uint64_t takeovers, to_newer, to_older; /* of sim-control: changes of the leader; between dtds of two versions */
};

struct shape {
    int nodes; /* 0: drawn from the seed */
    bool commands;
    bool images, blind; /* of sim: image.h */
    bool mixed;         /* dtds of two versions */
    bool disks;         /* disks fail */
    bool slices;        /* a node that begins to lead makes one job at a time */
    bool identity;      /* keys are rotated and stolen, and a node is evicted */
    bool recover;       /* of sim-control: a majority is lost (recovery.h) */
    bool members;       /* of sim-control: nodes leave and join again (members.h) */
    bool damage;        /* of sim-control: files are damaged (damage.h) */
    bool scarce;        /* of sim-control: descriptors and threads run out (scarce.h) */
    bool memory;        /* of sim-control: allocations fail */
};

struct simulation {
    const char *name; /* name of the program */
    void (*run)(uint64_t seed, const struct shape *shape, struct summary *ret);
    int first_bug, last_bug;   /* the bugs that can be planted in it */
    int more_first, more_last; /* others; 0: none */
};

/* The end of a run, after the last fault. is_well must return true within `quiet_us`; otherwise print_why_not_well is
 * called and the seed fails. Fills the summary except `answered`. */
void runner_settle(int64_t quiet_us, bool (*is_well)(void), void (*print_why_not_well)(void), struct summary *ret);

int runner_main(const struct simulation *simulation, int argc, char **argv);

#endif
