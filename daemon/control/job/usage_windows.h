/* Joins the reports of single ranks to windows of all ranks. The ranks report at slightly different times, and the
 * windows of a rank follow each other without a gap. Embedded in its owner; loop thread. */
#ifndef DTD_DAEMON_CONTROL_JOB_USAGE_WINDOWS_H
#define DTD_DAEMON_CONTROL_JOB_USAGE_WINDOWS_H

#include "common/rpc/usage.h"

/* What the open window has of a rank. */
struct usage_part {
    struct usage usage;
    double steps;
    int64_t ms;
    int reports;
};

struct usage_windows {
    uint64_t epoch;
    int ranks, present; /* ranks that have reported */
    int64_t step;
    struct usage_part *parts; /* by rank; NULL: none yet */
};

void usage_windows_fini(struct usage_windows *w);
/* Adds a report of `rank` in `epoch`, which has `ranks` ranks. If a window is now complete, *ret is it, without times
 * and nodes, to be freed by usage_sample_fini; otherwise ret->ranks is 0. A window is complete when every rank has
 * reported, and at the latest when a rank reports for the third time; ranks that have not reported are absent then. A
 * report of another epoch or number of ranks begins a new window. */
NODISCARD err_t usage_windows_add(struct usage_windows *w, uint64_t epoch, int ranks, int rank,
                                  const struct usage_report *report, struct usage_sample *ret);

#endif
