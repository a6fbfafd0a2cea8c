/* The usage of single ranks: how long a rank computes, waits and reads in a step, and what it uses of its node, over
 * one window of time. Each worker measures its own usage (worker/usage.h) and reports it every few seconds; the leader
 * joins the reports of all ranks into samples, stores them and passes them on to clients.
 *
 * A new number is a row here, and the code that measures it (worker/usage.c). The file, `dtctl metrics --ranks` and all
 * JSON output contain it without further changes. Pure; no thread owns anything. */
#ifndef DTD_COMMON_RPC_USAGE_H
#define DTD_COMMON_RPC_USAGE_H

#include "common/base/buf.h"
#include "common/rpc/fields.h"

/* How the values of two windows become one: the mean over their steps, the mean over their time, or the larger. */
enum usage_mean { USAGE_BY_STEP, USAGE_BY_TIME, USAGE_LARGEST };

/* Seconds are means over the steps of the window. step_s: from the beginning of a step to the end of what follows it,
 * such as a save; the next four are parts of it. compute_s: in kernels, and on the host between them. comm_s: in
 * collectives and messages, with the time in which the rank waits for its peers in them, but without communication that
 * happens beside computation. data_s: until the samples are read. save_s: until the checkpoint is handed over.
 * cpu: cores that the process uses. rss_bytes: its memory on the node. planned_bytes: device memory that the plan has
 * computed for the rank. read and write: of its files and sockets. planned_flop: floating-point operations of one step
 * of this rank by its plan; ranks with the same number have the same work. gpu_util: share of the time in which a
 * kernel ran. tp_s to grads_s: parts of comm_s by their purpose (common/plan/estimate/traffic_part.h), absent where
 * the rank has no such communication; what comm_s has beyond them is waiting between steps. update_s: the part of
 * compute_s in the norm of gradients and the optimizer.
 *
 * In the order of the columns. One row is one line. */
// clang-format off
#define USAGE_FIELDS(X) \
    X(BY_STEP, step_s,            .column = "STEP_S", .width = 8, .look = LOOK_FIXED, .digits = 4, .unit = "s") \
    X(BY_STEP, compute_s,         .column = "COMPUTE", .width = 8, .look = LOOK_FIXED, .digits = 4, .unit = "s") \
    X(BY_STEP, comm_s,            .column = "COMM", .width = 8, .look = LOOK_FIXED, .digits = 4, .unit = "s") \
    X(BY_STEP, data_s,            .column = "DATA", .width = 8, .late = 2, .look = LOOK_FIXED, .digits = 4, .unit = "s") \
    X(BY_STEP, save_s,            .column = "SAVE", .width = 8, .late = 3, .look = LOOK_FIXED, .digits = 4, .unit = "s") \
    X(BY_TIME, cpu,               .column = "CPU", .width = 6, .late = 1, .digits = 3) \
    X(LARGEST, rss_bytes,         .column = "RSS", .width = 7, .late = 1, .look = LOOK_COUNT, .unit = "B") \
    X(LARGEST, planned_bytes,     .column = "PLANNED", .width = 7, .late = 4, .look = LOOK_COUNT, .unit = "B") \
    X(BY_TIME, read_bytes_per_s,  .column = "READ/S", .width = 7, .late = 5, .look = LOOK_COUNT, .unit = "B/s") \
    X(BY_TIME, write_bytes_per_s, .column = "WRITE/S", .width = 7, .late = 5, .look = LOOK_COUNT, .unit = "B/s") \
    X(LARGEST, planned_flop) \
    X(BY_STEP, tp_s,              .column = "TP", .width = 8, .late = 7, .look = LOOK_FIXED, .digits = 4, .unit = "s") \
    X(BY_STEP, cp_s,              .column = "CP", .width = 8, .late = 7, .look = LOOK_FIXED, .digits = 4, .unit = "s") \
    X(BY_STEP, ep_s,              .column = "EP", .width = 8, .late = 7, .look = LOOK_FIXED, .digits = 4, .unit = "s") \
    X(BY_STEP, pp_s,              .column = "PP", .width = 8, .late = 7, .look = LOOK_FIXED, .digits = 4, .unit = "s") \
    X(BY_STEP, params_s,          .column = "PARAMS", .width = 8, .late = 7, .look = LOOK_FIXED, .digits = 4, .unit = "s") \
    X(BY_STEP, grads_s,           .column = "GRADS", .width = 8, .late = 7, .look = LOOK_FIXED, .digits = 4, .unit = "s") \
    X(BY_STEP, update_s,          .column = "UPDATE", .width = 8, .late = 7, .look = LOOK_FIXED, .digits = 4, .unit = "s") \
    X(BY_TIME, gpu_util,          .column = "GPU", .width = 5, .late = 2, .digits = 3) \
    X(LARGEST, gpu_bytes,         .column = "GPU_MEM", .width = 7, .late = 4, .look = LOOK_COUNT, .unit = "B") \
    X(LARGEST, gpu_celsius,       .column = "GPU_C", .width = 5, .late = 6, .digits = 3) \
    X(BY_TIME, gpu_watts,         .column = "GPU_W", .width = 6, .late = 6, .digits = 4)
// clang-format on

#define USAGE_NUMBER(mean_, name_, ...) USAGE_##name_,
#define USAGE_MEMBER(mean_, name_, ...) double name_;
enum usage_field { USAGE_FIELDS(USAGE_NUMBER) USAGE_COUNT };

/* NAN: absent. */
struct usage {
    USAGE_FIELDS(USAGE_MEMBER)
};

extern const struct field_table usage_fields; /* row i is enum usage_field i; all are of kind FIELD_REAL */
extern const struct usage usage_none;         /* every value is absent */

/* What one rank reports. */
struct usage_report {
    int64_t window_ms; /* duration of the window */
    int64_t steps;     /* that ended in it */
    int64_t step;      /* the last of them */
    struct usage usage;
};

#define USAGE_WINDOW_MS 2000 /* the shortest window */
/* The window of a job of so many ranks: with more than 200 ranks it grows, so that the leader gets at most a hundred
 * reports of a job in a second. */
int64_t usage_window_ms(int ranks);

/* ---- samples ---- */

#define USAGE_RANKS_MAX 65536
#define USAGE_NODE_BYTES 256

/* All ranks of an epoch over one window. */
struct usage_sample {
    int64_t wall_ms; /* end of the window */
    int64_t window_ms;
    int64_t step; /* the last one of the window */
    uint64_t epoch;
    int ranks;
    char **node;   /* by rank: the name of its node; owned */
    double *value; /* [field][rank]; NAN: absent; owned */
};

/* Every value is absent and every node is "". ERR_LIMIT: more than USAGE_RANKS_MAX. */
NODISCARD err_t usage_sample_init(struct usage_sample *s, int ranks);
void usage_sample_fini(struct usage_sample *s); /* legal on a zeroed one */
NODISCARD err_t usage_sample_copy(const struct usage_sample *s, struct usage_sample *ret);
NODISCARD err_t usage_sample_set_node(struct usage_sample *s, int rank, const char *node);
static inline double *usage_at(const struct usage_sample *s, enum usage_field field, int rank)
{
    return &s->value[(size_t)field * (size_t)s->ranks + (size_t)rank];
}
/* The values of one rank. */
struct usage usage_of_rank(const struct usage_sample *s, int rank);
void usage_set_rank(struct usage_sample *s, int rank, const struct usage *usage);

/* Two successive windows of one rank as one. Means over steps are weighted with the numbers of steps, means over time
 * with the durations. A value that is absent in one window is that of the other. */
struct usage usage_join(const struct usage *a, double steps_a, double ms_a, const struct usage *b, double steps_b,
                        double ms_b);
/* Whether `next` can be joined to `s`: both are of the same epoch and have the same ranks. */
bool usage_sample_fits(const struct usage_sample *s, const struct usage_sample *next);
/* Adds the window after that of `s`. The number of steps of a rank is its window divided by its step_s. */
void usage_sample_join(struct usage_sample *s, const struct usage_sample *next);

/* ---- lines ---- */

/* A line of usage.jsonl with its newline, appended to ret: {"wall_ms": 1, "window_ms": 2000, "step": 7, "epoch": 1,
 * "node": ["a", "b"], "step_s": [0.1, null], ..}. A field that no rank has is left out. Numbers have six digits. */
NODISCARD err_t usage_line_format(const struct usage_sample *s, struct buf *ret);
/* ERR_CORRUPT: this is no such line. Unknown members are ignored. */
NODISCARD err_t usage_line_parse(const char *line, size_t len, struct usage_sample *ret);

#endif
