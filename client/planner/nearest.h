/* What to change where a job does not fit: found by trying, so each proposal works. Pure but for the machine files that
 * dtd brings along; one thread. */
#ifndef DTD_CLIENT_PLANNER_NEAREST_H
#define DTD_CLIENT_PLANNER_NEAREST_H

#include "client/planner/internal.h"

/* Whether the layout fits, with memory that is exact where it can be. */
typedef bool nearest_fits_fn(void *arg, const struct plan_layout *l);

/* Layouts near `own` that fit: "it fits with parallel.zero=3 (2 % more time), with parallel.recompute=full (30 % more
 * time), or on 4 nodes with parallel.workers=32 and parallel.fsdp=32". Empty if there is none. */
void planner_nearest_text(const struct planning *p, const struct plan_layout *own, nearest_fits_fn *fits, void *arg,
                          char *ret, size_t size);
/* For a model of which no layout fits: the fewest nodes on which one does, a machine with more memory, and a shorter
 * sequence. */
void planner_elsewhere_text(const struct planning *p, const struct job_spec *job, char *ret, size_t size);
/* For a number of workers of which there is no layout at all: the most nodes below on which there is one, and the least
 * batch of twice, four times .. as many samples. */
void planner_any_text(const struct planning *p, char *ret, size_t size);

#endif
