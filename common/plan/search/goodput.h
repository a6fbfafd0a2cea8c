/* A training run of weeks with failures: which part of the time makes progress, and how often to save. In closed form,
 * and as a simulation of single failures that checks it. Pure; any thread. */
#ifndef DTD_COMMON_PLAN_SEARCH_GOODPUT_H
#define DTD_COMMON_PLAN_SEARCH_GOODPUT_H

#include <stdint.h>

/* All times in seconds. */
struct plan_run {
    double length; /* of the run, failures included */
    double nodes;
    double node_failures; /* of one node, per second */
    double restart;       /* from a failure to the next step: detection, new processes, loading */
    double stall;         /* of all ranks while a checkpoint is taken */
    double save;          /* until it is complete; a failure before that goes back to the one before */
    double interval; /* between checkpoints, raised to the time of a save, because one begins when the one before is
                        complete; 0: the best one */
};

struct plan_goodput {
    double interval;                  /* that was given, or the best one */
    double failures;                  /* in the run, expected */
    double mean_time;                 /* between two failures of the job */
    double share;                     /* of the run that makes progress which lasts */
    double stalled, lost, restarting; /* the other parts; the four sum to 1 */
};

/* E[progress] with exponential times between failures (Young 1974, Daly 2006; with the terms of Kokolis et al. 2024).
 */
void plan_goodput(const struct plan_run *run, struct plan_goodput *ret);
/* The same shares from `runs` simulated ones. */
void plan_goodput_simulate(const struct plan_run *run, int runs, uint64_t seed, struct plan_goodput *ret);

#endif
