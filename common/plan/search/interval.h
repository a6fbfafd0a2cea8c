/* Between which times a step is expected when it is forecast for a machine. Pure; any thread. */
#ifndef DTD_COMMON_PLAN_SEARCH_INTERVAL_H
#define DTD_COMMON_PLAN_SEARCH_INTERVAL_H

#include "common/conf/machine.h"

struct plan_interval {
    double low, high; /* seconds */
};

/* Nine of ten steps are in it. Its width is that of the machine's file (error.less, error.more); the default is how far
 * measured steps of other programs on GPUs were from forecasts with rates of data sheets, out-of-sample
 * (tests/common/plan/test_planner_corpus.c). */
struct plan_interval plan_forecast_interval(const struct machine *m, double seconds);

#endif
