/* The recorded steps of all ranks of a job, and what `dtctl profile` makes of them: a trace for Perfetto and Chrome,
 * and a summary. Blocking; needs no daemon. */
#ifndef DTD_CLIENT_PROFILE_PROFILE_H
#define DTD_CLIENT_PROFILE_PROFILE_H

#include "common/plan/estimate/forecast.h"
#include "common/plan/estimate/recorded.h"

#include <stdio.h>

/* Times of all ranks are nanoseconds since the same moment, after profile_align. */
struct profile {
    const char *job;       /* its name */
    struct recorded *rank; /* by rank */
    int n;
    const char *const *node;  /* by rank: name of its node; NULL: unknown */
    int64_t *error_ns;        /* by rank: its times are at most so far from those of rank 0 */
    struct forecast forecast; /* of a step; n 0: none */
};

/* ---- load.c ---- */

/* Reads the files of all ranks. `folder`: the job's checkpoint.dir. `id`: of the profile; 0: that of rank 0's file. The
 * times are aligned. The caller frees *ret with profile_fini. */
NODISCARD err_t profile_load(const char *folder, uint64_t id, struct profile *ret, struct why *why);
void profile_fini(struct profile *p); /* legal on a zeroed one; job and node are the caller's */

/* ---- forecast.c ---- */

/* Fills p->forecast. `spec_yaml`: the complete job file. ERR_LIMIT: the plan is too large. */
NODISCARD err_t profile_forecast(struct profile *p, const char *spec_yaml, struct why *why);

/* ---- align.c ---- */

/* Converts the times of all ranks to nanoseconds since the first clock reading of rank 0, and fills error_ns. */
void profile_align(struct profile *p);

/* ---- lanes.c: the rows of a rank ---- */

enum lane_kind {
    LANE_STEP,
    LANE_COMPUTE,
    LANE_COMM,
    LANE_SEND,
    LANE_RECV,
    LANE_COPY,
    LANE_DATA,
    LANE_SAVE,
    LANE_CONTROL
};

struct lane {
    enum lane_kind kind;
    unsigned axes;         /* of the groups of LANE_COMM, _SEND, _RECV */
    enum op_stream stream; /* of its ops */
    char name[64];
};

/* What a slice is: an op, an action around its ops, work that is not an op, or a step. */
enum slice_kind { SLICE_OP, SLICE_ACTION, SLICE_HOST, SLICE_STEP };

struct slice {
    int lane;
    enum slice_kind kind;
    int index; /* of the event, of the action in the program, of the host work, of the step */
    int step;  /* minus the number of the first one */
    int64_t from, to;
};

struct lanes {
    struct lane *lane;
    int n;
    struct slice *slices; /* by lane, then by time; on a lane they nest or are disjoint, and none is empty */
    int n_slices;
};

NODISCARD err_t lanes_of(const struct recorded *r, struct lanes *ret);
void lanes_fini(struct lanes *l);
/* Whether the op moves data between ranks. */
bool call_is_comm(const struct recorded_call *c);

/* ---- trace.c ---- */

struct trace_facts {
    int64_t slices, flows;
    int files;
};

/* More slices than this make a file that a browser cannot open. */
#define TRACE_MAX_SLICES 2000000
/* The number of slices of all ranks, about. */
int64_t profile_slices(const struct profile *p);
/* Writes one gzipped Chrome JSON file of all ranks. */
NODISCARD err_t trace_write(const struct profile *p, const char *path, struct trace_facts *ret, struct why *why);
/* Writes the trace of one rank, with the forecast of its step, into memory. */
NODISCARD err_t trace_rank(const struct profile *p, int rank, struct buf *ret, struct trace_facts *facts,
                           struct why *why);

/* ---- archive.c ---- */

/* Writes one file per rank and perfetto_manifest.json into a folder, which may exist. */
NODISCARD err_t trace_write_dir(const struct profile *p, const char *dir, struct trace_facts *ret, struct why *why);
/* The same as a tar. */
NODISCARD err_t trace_write_tar(const struct profile *p, const char *path, struct trace_facts *ret, struct why *why);

/* ---- summary.c ---- */

struct rank_summary {
    double step_s, compute_s,
        comm_s; /* of a step, the mean of all: its duration; in kernels; in messages and collectives */
    double exposed_s, data_s, save_s; /* in comm while nothing is computed; reading batches; saving */
    double bubble;                    /* part of the step in which nothing is computed */
};

/* Where measured and forecast time of a step differ most, by kind of action on the compute stream. */
struct profile_difference {
    int rank; /* -1: there is no forecast */
    enum action_kind kind;
    double measured_s, forecast_s;
};

/* `ret` has room for p->n. */
NODISCARD err_t profile_sum(const struct profile *p, struct rank_summary *ret, struct profile_difference *ret_most);

#endif
