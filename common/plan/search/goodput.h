/* A training run of weeks with failures: which part of the time makes progress, and how often to save. In closed form,
 * and as a simulation of single failures that checks it. Pure; any thread. */
#ifndef DTD_COMMON_PLAN_SEARCH_GOODPUT_H
#define DTD_COMMON_PLAN_SEARCH_GOODPUT_H

#include "common/base/err.h"

#include <stdbool.h>
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
    double taken;    /* the share of failures after which the node is repaired */
    double repair;   /* of a node, in the mean; 0: nodes are there again at once */
    int64_t spares;  /* nodes beyond `nodes` that take the place of those in repair */
    bool waits;      /* when too many are in repair: the job waits for one; else it goes on with fewer, as dtd does */
};

struct plan_goodput {
    double interval;                  /* that was given, or the best one */
    double failures;                  /* in the run, expected */
    double mean_time;                 /* between two failures of the job */
    double share;                     /* of the run that makes progress which lasts */
    double stalled, lost, restarting; /* the other parts of the time in which the job has its nodes */
    double missing;                   /* it waits for nodes, or the work of those that it lacks; the five sum to 1 */
    double deviation;                 /* of the share from one run to the next: only of simulated ones */
};

/* E[progress] with exponential times between failures (Young 1974, Daly 2006; with the terms of Kokolis et al. 2024).
 * Nodes in repair: Erlang's loss formula if the job waits, else a Poisson distribution, whatever the distribution of
 * the time of a repair is. */
void plan_goodput(const struct plan_run *run, struct plan_goodput *ret);
/* The same shares from `runs` simulated ones, with exponential times of repairs. ERR_NOMEM. */
NODISCARD err_t plan_goodput_simulate(const struct plan_run *run, int runs, uint64_t seed, struct plan_goodput *ret);
/* The fewest spares with which less than `share` of the run is missing. */
int64_t plan_goodput_spares(const struct plan_run *run, double share);

#endif
