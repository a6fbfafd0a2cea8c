/* Metrics of several steps in a row in one point of a curve: the newest values, and the spread of each metric, so that
 * peaks stay visible and a loss that was not finite is counted. Pure; any thread. */
#ifndef DTD_COMMON_RPC_METRIC_POINT_H
#define DTD_COMMON_RPC_METRIC_POINT_H

#include "common/rpc/metric.h"

#define METRIC_POINT_ONE(...) +1
enum { METRIC_COLUMNS = 0 METRIC_FIELDS(METRIC_POINT_ONE) };

/* Of the finite values. n: their number; 0: there are none, and the other members are 0. */
struct metric_spread {
    double min, max, sum;
    int64_t n;
};

/* A plain struct without pointers, which control keeps in files (daemon/control/job/curve.c). */
struct metric_point {
    /* The row of the newest step. An optional metric that this row does not have is that of the newest row which has
     * it: validation is rare. */
    struct metric last;
    int64_t steps;                           /* number of rows */
    struct metric_spread of[METRIC_COLUMNS]; /* by row of metric_fields */
};

struct metric_points {
    struct metric_point *point;
    size_t n, cap;
};

/* Fills a point with one row. */
void metric_point_set(struct metric_point *p, const struct metric *row);
/* Adds the rows of `newer` to `p`. */
void metric_point_merge(struct metric_point *p, const struct metric_point *newer);
NODISCARD err_t metric_points_add(struct metric_points *points, const struct metric_point *p);

/* Whether the spread of this metric informs more than the last value: step, epoch and times only rise. */
bool metric_has_spread(const struct field *f);

#endif
