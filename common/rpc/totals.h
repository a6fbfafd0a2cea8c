/* What a job did since its leader began to lead: sums that only rise, and histograms of durations. The leader counts
 * (daemon/control/job/totals.h); dtd-web shows them at /metrics, where a scraper forms rates and expects that a new
 * leader begins with 0.
 *
 * A new sum is a row here, and the code that counts it. */
#ifndef DTD_COMMON_RPC_TOTALS_H
#define DTD_COMMON_RPC_TOTALS_H

#include "common/rpc/fields.h"

/* Seconds are those of all workers together: 4 workers for 10 s are 40 s. allocated_s goes on while the job has
 * workers. The other three are the parts that control knows: steps that ran for the first time, steps that had run
 * before, and starts and recoveries until the first step is complete. */
// clang-format off
#define TOTALS_FIELDS(X) \
    X(INT, steps, FIELD_REQUIRED) /* also repeated ones */ \
    X(INT, recomputed_steps, FIELD_REQUIRED) /* steps that had been complete before a failure */ \
    X(INT, not_finite_steps, FIELD_REQUIRED) /* their loss is not finite */ \
    X(REAL, tokens, FIELD_REQUIRED) /* also of repeated steps */ \
    X(REAL, recomputed_tokens, FIELD_REQUIRED) \
    X(INT, checkpoints, FIELD_REQUIRED) \
    X(INT, checkpoints_failed, FIELD_REQUIRED) \
    X(REAL, checkpoint_bytes, FIELD_REQUIRED) \
    X(INT, failures, FIELD_REQUIRED) /* that ended an epoch */ \
    X(REAL, allocated_s, FIELD_REQUIRED) \
    X(REAL, productive_s, FIELD_REQUIRED) \
    X(REAL, recompute_s, FIELD_REQUIRED) \
    X(REAL, restart_s, FIELD_REQUIRED)
// clang-format on

/* Bounds contain the limits of the alerts in deploy/prometheus/rules.yml. */
#define TOTALS_BUCKETS 18
enum totals_duration { TOTALS_STEP, TOTALS_SAVE, TOTALS_RECOVERY, TOTALS_DURATIONS };
struct totals_bounds {
    const char *name;
    int n;
    double s[TOTALS_BUCKETS]; /* ascending */
};
extern const struct totals_bounds totals_bounds[TOTALS_DURATIONS];

/* n[i]: durations up to s[i] and above s[i - 1]; the last element counts those above all bounds. */
struct totals_histogram {
    int64_t n[TOTALS_BUCKETS + 1];
    double sum;
};

struct totals {
    TOTALS_FIELDS(FIELD_MEMBER)
    struct totals_histogram duration[TOTALS_DURATIONS];
};

extern const struct field_table totals_fields;

void totals_count(struct totals *t, enum totals_duration d, double seconds);

#endif
