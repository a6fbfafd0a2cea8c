/* Forecasts a step: the times of a program's ops, and the bytes that they bring to each rank.
 *
 * Bytes are exact: they equal what worker/comm counts per group. Times assume a device with given rates, on which a
 * stream runs one op after another and streams do not slow each other down (on a CPU they are one thread). This is good
 * enough to compare layouts and schedules and to see where ranks wait. Pure. */
#ifndef DTD_COMMON_PLAN_ESTIMATE_FORECAST_H
#define DTD_COMMON_PLAN_ESTIMATE_FORECAST_H

#include "common/plan/program.h"

struct plan_table;

/* Rates of one worker, per second. */
struct plan_rates {
    double flops, memory, link; /* operations; bytes of memory; bytes from peers */
    double latency;             /* the least seconds that a collective or message takes */
    bool one_thread;            /* all streams are one thread */
    bool one_call; /* a push passes all posts on as one operation, which occupies the stream until it is complete */
    const struct plan_table *table; /* measured times (table.h); the rates count where it has none. NULL: none */
    int figure;                     /* enum table_figure */
    /* Seconds of an op of a rank, before the table; negative: it has none. NULL: there is no such function. */
    double (*seconds)(void *arg, int rank, int action, const struct op *op);
    void *arg;
};
/* Approximate rates of a device of the job's kind. run.comm_thread auto counts as off, because only a worker can count
 * its cores. */
struct plan_rates plan_rates_of(const struct job_spec *job);

/* The most floating-point operations per second that a GPU can reach in the job's compute type, for the metric mfu.
 * `gpu`: the model by its driver. 0: not known. */
double plan_peak_flops(const struct job_spec *job, const char *gpu);

/* Adjacent ops of one action on one stream. */
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
    double busy;    /* seconds in which the compute stream is busy */
    double exposed; /* seconds in which the comm stream is busy or waits for peers, and the compute stream is idle */
};

#define FORECAST_AXES (1 << AXIS_COUNT)

struct forecast {
    struct forecast_rank *ranks;
    int n;
    double seconds;               /* end of the last op */
    double bubble, exposed;       /* fractions of the step: compute streams idle; exposed time of the ranks */
    int64_t bytes[FORECAST_AXES]; /* received by all ranks, by the set of axes over which the groups go */
};

/* Bytes that the op brings to this rank from its peers, as comm_group_bytes counts them. */
int64_t plan_op_wire(const struct program *p, const struct op *op, int64_t samples);
/* Forecasts one step of all ranks, without a save. plan_check must have accepted the programs. ERR_INVALID where the
 * ranks wait for each other. Freed by forecast_fini. */
NODISCARD err_t plan_forecast(const struct program *programs, int n, const struct plan_rates *rates,
                              struct forecast *ret, struct why *why);
/* The same. watch->op receives each op of the step with its times, in the program's order on each rank. The members of
 * a collective come one after another, in the order of the group. */
struct forecast_watch {
    void (*op)(void *arg, int rank, int action, const struct op *op, double start, double end);
    void *arg;
};
NODISCARD err_t plan_forecast_watched(const struct program *programs, int n, const struct plan_rates *rates,
                                      const struct forecast_watch *watch, struct forecast *ret, struct why *why);
void forecast_fini(struct forecast *f); /* legal on a zeroed one */
/* Computes all seconds and fractions from the boxes. */
void forecast_sum(struct forecast *f);

#endif
