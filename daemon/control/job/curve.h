/* The rows of a metrics file in few points, without reading the whole file: beside metrics/ID.jsonl, metrics/ID.curve
 * has points of 32, 1024, .. rows (curve.c). It is made from the metrics file alone and may be removed at any time; the
 * next call makes it again. All functions block; threads of a pool. */
#ifndef DTD_DAEMON_CONTROL_JOB_CURVE_H
#define DTD_DAEMON_CONTROL_JOB_CURVE_H

#include "common/base/buf.h"
#include "common/rpc/metric_point.h"

#include <stdatomic.h>

#define CURVE_POINTS_MAX 10000 /* some 10 MB of memory for a call */

/* The path of the curve file of a metrics file NAME.jsonl; ERR_LIMIT if it is too long. */
NODISCARD err_t curve_path(const char *metrics_path, char *ret, size_t bytes);
/* Extends the curve file by the rows that it lacks. A missing metrics file is no error. A file of a million rows
 * without a curve takes seconds, and nothing is lost if *stop becomes true meanwhile (ERR_CANCELED; NULL: never). */
NODISCARD err_t curve_update(const char *metrics_path, const atomic_bool *stop);
/* The rows that metrics_load returns, as at most `max` points (and at least half as many, if there are so many rows):
 * all points but the last have the same number of rows. Extends the curve file first; where it cannot be written, the
 * points are made in memory. The caller frees ret->point. */
NODISCARD err_t curve_load(const char *metrics_path, const struct buf *more, int64_t max, const atomic_bool *stop,
                           struct metric_points *ret);

#endif
