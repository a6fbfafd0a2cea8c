/* What a step will take, before it is run: a program's ops in time, and the bytes that they bring to each rank.
 *
 * Bytes are exact: what worker/comm counts per group. Times are those of a device with given rates, on which a stream
 * does one op after another and streams do not slow each other down (on a processor they are one thread): good for
 * comparing layouts and schedules, and for seeing where ranks wait. Pure. */
#ifndef DTD_COMMON_PLAN_ESTIMATE_FORECAST_H
#define DTD_COMMON_PLAN_ESTIMATE_FORECAST_H

#include "common/plan/program.h"

/* Of one worker. */
struct plan_rates {
    double flops, memory, link; /* operations, bytes, bytes from peers, a second */
    double latency;             /* seconds that a collective or message takes at least */
    bool one_thread;            /* all streams are */
    bool one_call;              /* a push gives all that was posted as one, which holds the stream until it is over */
};
/* What a device of the job's kind does, roughly. run.comm_thread auto counts as off: only a worker knows its cores. */
struct plan_rates plan_rates_of(const struct job_spec *job);

/* The ops of an action on a stream. */
struct forecast_box {
    int action; /* in program.actions */
    enum action_kind kind;
    enum op_stream stream;
    int chunk, micro; /* micro -1: none */
    double start, end;
};

/* Boxes of one stream are in the order of time and do not overlap. */
struct forecast_rank {
    struct forecast_box *boxes;
    int n, cap;
    double busy;    /* seconds in which the compute stream does something */
    double exposed; /* seconds in which the comm stream does something, waiting for others included, and it does not */
};

#define FORECAST_AXES (1 << AXIS_COUNT)

struct forecast {
    struct forecast_rank *ranks;
    int n;
    double seconds;               /* the last end */
    double bubble, exposed;       /* parts of the step: compute streams have nothing to do; ranks' exposed time */
    int64_t bytes[FORECAST_AXES]; /* to all ranks from their peers, by the set of axes that the groups go over */
};

/* Bytes that the op brings to this rank from its peers, as comm_group_bytes counts them. */
int64_t plan_op_wire(const struct program *p, const struct op *op, int64_t samples);
/* One step of all ranks, whose programs plan_check has passed; without a save. ERR_INVALID where they wait for each
 * other. Freed by forecast_fini. */
NODISCARD err_t plan_forecast(const struct program *programs, int n, const struct plan_rates *rates,
                              struct forecast *ret, struct why *why);
void forecast_fini(struct forecast *f); /* legal on a zeroed one */
/* Fills in what follows from the boxes: all seconds and parts. */
void forecast_sum(struct forecast *f);

#endif
