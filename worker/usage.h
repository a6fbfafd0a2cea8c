/* Measures the usage of this rank (common/rpc/usage.h) while it trains, at no cost that can be noticed: two readings of
 * the clock around each communication, and some files of /proc once per window. The host does not see the work of a
 * GPU, so one step of USAGE_SAMPLE_EVERY, and more of the first ones, is run with a profile. All ranks take the same
 * steps. Compute thread. */
#ifndef DTD_WORKER_USAGE_H
#define DTD_WORKER_USAGE_H

#include "common/rpc/usage.h"
#include "worker/step/engine.h"
#include "worker/usage_gpu.h"

#define USAGE_SAMPLE_EVERY 100 /* a profile costs a percent or two of its step, so this costs some 0.02 % */

struct usage_config {
    struct engine *engine;
    int ranks;
    int64_t planned_bytes;
    const char *gpu;  /* uuid; NULL or "": the device is no GPU, or is not known to its driver */
    int sample_every; /* 0: no step is sampled */
};

/* Since the process began; -1: unknown. */
struct usage_process {
    int64_t cpu_ns, read_bytes, write_bytes;
};

struct usage_meter {
    struct usage_config config;
    double planned_flop;
    int64_t window_ns;
    /* The open window. */
    int64_t begin_ns;
    struct usage_process at_begin;
    int64_t steps, step_ns, comm_ns, data_ns, save_ns, update_ns;
    int64_t part_ns[TRAFFIC_COUNT]; /* of comm_ns */
    /* The newest sample of a GPU. */
    struct engine_profile *profile; /* NULL: none is needed */
    int until_sample, gap;          /* steps until the next sample; and from that one to the next */
    bool sampling;
    double compute_s, comm_s, update_s, part_s[TRAFFIC_COUNT]; /* NAN: not known yet */
    struct usage_gpu *gpu;                                     /* NULL: none */
};

/* Parts of a step that happen outside of engine_step; all are included in step_ns. */
struct usage_step {
    int64_t step_ns;
    int64_t agree_ns; /* waiting for peers */
    int64_t save_ns;
};

/* Opens the first window. The engine must have been started. Values that cannot be measured remain absent. */
void usage_meter_init(struct usage_meter *m, const struct usage_config *config);
void usage_meter_fini(struct usage_meter *m); /* legal on a zeroed one; before engine_fini */
/* Before and after each engine_step. */
void usage_meter_before(struct usage_meter *m);
void usage_meter_after(struct usage_meter *m);
/* Adds the step that has just ended. True: the window is over, and `ret` is to be reported. */
bool usage_meter_add(struct usage_meter *m, const struct usage_step *step, struct usage_report *ret);

/* The same with a given clock, for tests. */
bool usage_meter_add_at(struct usage_meter *m, const struct usage_step *step, int64_t now_ns, struct usage_report *ret);

#endif
