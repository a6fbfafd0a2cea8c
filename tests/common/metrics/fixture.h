/* A card, rows of metrics and files for the tests of event files and W&B logs. */
#ifndef DTD_TESTS_COMMON_METRICS_FIXTURE_H
#define DTD_TESTS_COMMON_METRICS_FIXTURE_H

#include "common/metrics/curve.h"
#include "tests/lib/test.h"

/* Job 7 with 40 steps, submitted at 1700000000000 ms; run.env has the variable SECRET=hidden. */
struct card fixture_card(void);
/* A row of a job that steps twice a second: its time follows from step and epoch. */
struct metric fixture_row(int64_t step, uint64_t epoch, double loss);
/* "76 78 ..": the bytes that a document shows. */
struct buf fixture_hex(const char *text);
struct buf fixture_file(const char *path);
void fixture_write(const char *path, const void *data, size_t len);
/* "1:1 2:1 3:2": step and epoch of each point, by the times of fixture_row. */
const char *fixture_points(const struct curve_points *p);

#endif
