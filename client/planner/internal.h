/* What the files of client/planner share. */
#ifndef DTD_CLIENT_PLANNER_INTERNAL_H
#define DTD_CLIENT_PLANNER_INTERNAL_H

#include "client/planner/planner.h"
#include "common/plan/graph.h"

/* A search with everything that it needs. */
struct planning {
    struct machine machine;
    struct plan_shape shape;
    struct plan_search search;
    int64_t nodes;
};
NODISCARD err_t planning_init(struct planning *p, const struct planner_args *a, const struct job_spec *job,
                              struct why *why);
void planning_fini(struct planning *p);
void planning_set_nodes(struct planning *p, int64_t nodes);
double planning_mfu(const struct planning *p, const struct plan_time *t);
double planning_tokens_per_s(const struct planning *p, const struct plan_time *t);
double planning_comm(const struct plan_time *t); /* seconds of communication that are not hidden */
json_t *planning_layout_json(const struct plan_layout *l);
json_t *planning_found_json(const struct planning *p, const struct plan_found *f);

#endif
