/* All usage samples of a job (common/rpc/usage.h), and numbers of them. Pure, except usage_read. */
#ifndef DTD_CLIENT_REPORT_USAGE_SAMPLES_H
#define DTD_CLIENT_REPORT_USAGE_SAMPLES_H

#include "common/rpc/usage.h"

/* The fields that a report shows. X(field, title, unit, factor to the unit, warm). `warm`: another colour map, since
 * high values are bad. */
#define USAGE_SHOWN(X)                                                               \
    X(step_s, "Time of a step, by rank", "s", 1, 0)                                  \
    X(compute_s, "Computing, per step", "s", 1, 0)                                   \
    X(comm_s, "Communication, per step", "s", 1, 0)                                  \
    X(data_s, "Waiting for data, per step", "s", 1, 0)                               \
    X(save_s, "Stalled by checkpoints, per step", "s", 1, 0)                         \
    X(cpu, "Use of the processor", "cores", 1, 0)                                    \
    X(rss_bytes, "Memory of the process", "GiB", 1.0 / (1 << 30), 0)                 \
    X(planned_bytes, "Planned memory", "GiB", 1.0 / (1 << 30), 0)                    \
    X(read_bytes_per_s, "Reads of files and sockets", "MiB/s", 1.0 / (1 << 20), 0)   \
    X(write_bytes_per_s, "Writes of files and sockets", "MiB/s", 1.0 / (1 << 20), 0) \
    X(gpu_util, "Use of the GPU", "%", 100, 0)                                       \
    X(gpu_bytes, "GPU memory", "GiB", 1.0 / (1 << 30), 0)                            \
    X(gpu_celsius, "Temperature of the GPU", "°C", 1, 1)                             \
    X(gpu_watts, "Power of the GPU", "W", 1, 1)

struct usage_shown {
    enum usage_field field;
    const char *title, *unit;
    double factor;
    int warm;
};
extern const struct usage_shown usage_shown[];
extern const int n_usage_shown;
const struct usage_shown *usage_shown_of(enum usage_field field); /* NULL: it is not shown */

struct usage_samples {
    struct usage_sample *row; /* ascending by wall_ms */
    size_t n;
    int ranks;   /* the most of all rows */
    char **node; /* by rank, of the newest row that names it; never NULL */
    size_t bad;  /* lines or samples that were left out */
};

/* Adds a copy. One that goes back in time or has an impossible time is left out. */
NODISCARD err_t usage_samples_add(struct usage_samples *u, const struct usage_sample *s);
/* Reads lines. Those that are damaged are counted and left out; the only error is ERR_NOMEM. */
NODISCARD err_t usage_parse(const char *text, size_t len, struct usage_samples *ret);
/* The file in a checkpoint folder. A missing one has no samples. */
NODISCARD err_t usage_read(const char *folder, struct usage_samples *ret);
void usage_samples_fini(struct usage_samples *u);

/* The mean of a field over all rows, or of one rank (rank >= 0). NAN: it has no value. */
double usage_mean(const struct usage_samples *u, enum usage_field field, int rank);
double usage_least(const struct usage_samples *u, enum usage_field field);
double usage_most(const struct usage_samples *u, enum usage_field field);
/* The part of a step that ranks on average wait until the slowest one has computed, at this time; 0: unknown. `arg`: a
 * struct usage_samples. */
double usage_wait_at(const void *arg, int64_t wall_ms);

#endif
