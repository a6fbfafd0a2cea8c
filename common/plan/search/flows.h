/* Transfers that share links. Each takes the rate that max-min fairness gives it: all rates grow together until a link
 * is full or a transfer has the most that it can use; those stop, and the others go on. Rates change only when a
 * transfer begins or ends, so the simulation goes from one such time to the next. Pure; any thread. */
#ifndef DTD_COMMON_PLAN_SEARCH_FLOWS_H
#define DTD_COMMON_PLAN_SEARCH_FLOWS_H

#include "common/base/err.h"

/* Rate 1 moves one unit of work a second. A flow of rate x takes `weight` x of the capacity of a link. */
struct flow_use {
    int link;
    double weight;
};

struct flow {
    double ready; /* it begins no earlier */
    int after;    /* a flow before it in the array that must end first; -1: none */
    double delay; /* from its beginning until it moves bytes: latencies, links of its own */
    double work;
    double most; /* rate */
    const struct flow_use *uses;
    int n_uses;
    double end; /* result */
};

/* Sets the end of each flow. ERR_NOMEM. */
NODISCARD err_t flows_simulate(struct flow *flows, int n, const double *capacities, int n_links);
/* The rates of flows that move bytes at the same time. `room` is for 2 n_links numbers. */
void flows_share(const struct flow *const *moving, int n, const double *capacities, int n_links, double *ret_rates,
                 double *room);

#endif
