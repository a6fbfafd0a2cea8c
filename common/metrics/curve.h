/* What TensorBoard and W&B show of a job: a curve per metric, and a card with the job's settings. Both writers take
 * names and values from here, so a new row of common/rpc/metric.h appears in both without further changes. */
#ifndef DTD_COMMON_METRICS_CURVE_H
#define DTD_COMMON_METRICS_CURVE_H

#include "common/base/buf.h"
#include "common/conf/job.h"
#include "common/rpc/metric.h"

#define CURVE_NAME 64
#define CURVES_MAX 64

struct curve {
    char name[CURVE_NAME]; /* "train/loss": viewers group by the part before the slash */
    double value;          /* may be NaN */
};
/* The curves of one step. A required metric that is not a number is a NaN; an absent one has no curve. */
int curves_of(const struct metric *m, struct curve ret[CURVES_MAX]);

/* A key of the job file: "train.lr". */
struct card_setting {
    const char *key; /* of the schema, never freed */
    enum card_kind { CARD_NUMBER, CARD_BOOL, CARD_WORD } kind;
    double number; /* also of a bool: 0 or 1 */
    char *text;    /* as the job file has it, without quotes */
};

/* The job as a card: whose curves they are. */
struct card {
    char *job, *name; /* number and name */
    int64_t submitted_ms, steps;
    struct card_setting *setting;
    int n_setting;
    char *file;      /* the job file without run.env, which may hold secrets */
    char host[256];  /* of the writer */
    char run_id[16]; /* of W&B: 8 characters that depend on the job's number and submission */
};
/* Numbers, switches and choices of the sections model, data, train and parallel become settings. */
NODISCARD err_t card_make(const char *job, int64_t submitted_ms, const char *spec_yaml, struct card *ret,
                          struct why *why);
void card_fini(struct card *c);

/* A step that a viewer has already: the time of its report distinguishes it from the same step of another epoch. */
struct curve_point {
    int64_t step, wall_ms;
    uint64_t at, num; /* of the W&B log: the offset and the number of its record */
};
/* Points ascending by step. */
struct curve_points {
    struct curve_point *point;
    size_t n, cap;
};
/* Removes the points with this step and later ones first. */
NODISCARD err_t curve_points_add(struct curve_points *p, const struct curve_point *point);
/* Number of points before `step`. */
size_t curve_points_before(const struct curve_points *p, int64_t step);
bool curve_points_have(const struct curve_points *p, const struct metric *row);
void curve_points_fini(struct curve_points *p);

#endif
