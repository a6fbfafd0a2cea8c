/* What each rank used, as the lines of usage.jsonl beside a job's checkpoints have it. Pure, except usage_read. */
#ifndef DTD_CLIENT_REPORT_USAGE_LINES_H
#define DTD_CLIENT_REPORT_USAGE_LINES_H

#include "common/base/err.h"

#include <stddef.h>
#include <stdint.h>

/* X(name in the line, title, unit, factor to the unit, warm). `warm`: another colour map, since high values are bad. */
#define USAGE_FIELDS_SHOWN(X)                                            \
    X(step_s, "Time of a step", "s", 1, 0)                               \
    X(compute_s, "Time in kernels, per step", "s", 1, 0)                 \
    X(comm_s, "Time in communication, per step", "s", 1, 0)              \
    X(data_s, "Waiting for data, per step", "s", 1, 0)                   \
    X(save_s, "Stalled by checkpoints, per step", "s", 1, 0)             \
    X(cpu, "Use of the processor", "cores", 1, 0)                        \
    X(rss_bytes, "Memory of the process", "GiB", 1.0 / (1 << 30), 0)     \
    X(planned_bytes, "Planned memory", "GiB", 1.0 / (1 << 30), 0)        \
    X(read_bytes_per_s, "Reads from files", "MiB/s", 1.0 / (1 << 20), 0) \
    X(write_bytes_per_s, "Writes to files", "MiB/s", 1.0 / (1 << 20), 0) \
    X(gpu_util, "Use of the GPU", "%", 100, 0)                           \
    X(gpu_bytes, "GPU memory", "GiB", 1.0 / (1 << 30), 0)                \
    X(gpu_celsius, "Temperature of the GPU", "°C", 1, 1)                 \
    X(gpu_watts, "Power of the GPU", "W", 1, 1)

#define X(name, ...) USAGE_##name,
enum usage_column { USAGE_FIELDS_SHOWN(X) USAGE_COLUMNS };
#undef X

struct usage_column_row {
    const char *name, *title, *unit;
    double factor;
    int warm;
};
extern const struct usage_column_row usage_columns[USAGE_COLUMNS];

/* One window of all ranks. A column without any value is NULL; a missing value is NAN. */
struct usage_row {
    int64_t wall_ms, window_ms, step;
    uint64_t epoch;
    int ranks;
    double *value[USAGE_COLUMNS]; /* ranks each */
};

struct usage_samples {
    struct usage_row *row; /* ascending by wall_ms */
    size_t n;
    int ranks;   /* the most of all rows */
    char **node; /* by rank, of the newest row that names it; never NULL */
    size_t bad;  /* lines that could not be read */
};

/* Reads lines. Those that are damaged are counted and left out; the only error is ERR_NOMEM. */
NODISCARD err_t usage_parse(const char *text, size_t len, struct usage_samples *ret);
/* The file in a checkpoint folder. A missing one has no samples. */
NODISCARD err_t usage_read(const char *folder, struct usage_samples *ret);
void usage_samples_fini(struct usage_samples *u);

/* The mean of a column over all rows, or of one rank (rank >= 0). NAN: it has no value. */
double usage_mean(const struct usage_samples *u, enum usage_column column, int rank);
double usage_most(const struct usage_samples *u, enum usage_column column);
/* The part of a step that ranks on average wait until the slowest one has computed, at this time; 0: unknown. `arg`: a
 * struct usage_samples. */
double usage_wait_at(const void *arg, int64_t wall_ms);

#endif
