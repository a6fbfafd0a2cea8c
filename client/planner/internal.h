/* What the files of client/planner share. */
#ifndef DTD_CLIENT_PLANNER_INTERNAL_H
#define DTD_CLIENT_PLANNER_INTERNAL_H

#include "client/planner/planner.h"
#include "common/plan/graph.h"
#include "common/plan/search/goodput.h"
#include "common/plan/search/simulate.h"

/* A search with everything that it needs. */
struct planning {
    struct machine machine;
    struct plan_shape shape;
    struct plan_search search;
    int64_t nodes;
    double price;  /* of a device for an hour; 0: unknown */
    double tokens; /* of the whole run; 0: unknown */
};
/* ERR_INVALID: the machine cannot be read or has too few nodes, or a flag about money needs a price or a length. */
NODISCARD err_t planning_init(struct planning *p, const struct planner_args *a, const struct job_spec *job,
                              struct why *why);
void planning_fini(struct planning *p);
void planning_set_nodes(struct planning *p, int64_t nodes);
/* Memory of the worker that needs most. */
struct planned_memory {
    double bytes;
    bool exact; /* that of its program; else the layout is too large to compile, and it is an estimate */
};
/* Whether the job's own layout fits. ERR_INVALID: it does not; `why` proposes the nearest ones that do. */
NODISCARD err_t planner_fit(const struct planning *p, const struct job_spec *job, const struct plan_layout *own,
                            struct planned_memory *ret, struct why *why);
/* Steps of a layout on all ranks (step.c). */
enum { PLANNER_WITHOUT = 2 }; /* what-ifs: without the slowest device, without the slowest of a thousand */
#define PLANNER_SLOWEST 0.001
struct planned_step {
    struct plan_step_result all, without[PLANNER_WITHOUT];
    int steps;
    double sim_s; /* that `all` took */
};
NODISCARD err_t planner_step_simulate(const struct planning *p, const struct planner_args *a,
                                      const struct plan_found *f, struct planned_step *ret, struct why *why);
void planner_step_print(FILE *to, const struct planning *p, const struct planner_args *a, const struct plan_found *f,
                        const struct planned_step *s);
json_t *planner_step_json(const struct planned_step *s);
/* A run of `length` seconds with this layout: failures of the nodes, and checkpoints. */
void planning_run(const struct planning *p, const struct plan_layout *l, double length, struct plan_run *ret);
double planning_state_bytes(const struct planning *p); /* of a checkpoint */
double planning_load_s(const struct planning *p);      /* in which it is read from storage */
/* From a failure to the next step, if dtd restarts the job and loading takes so long. */
double planning_restart_s(const struct planning *p, double load_s);
double planning_mfu(const struct planning *p, const struct plan_time *t);
double planning_tokens_per_s(const struct planning *p, const struct plan_time *t);
double planning_comm(const struct plan_time *t); /* seconds of communication that are not hidden */
/* A line: how far steps are from forecasts in closed form for this machine, and where its rates are from. */
void planner_estimates_print(FILE *f, const struct machine *m);
const char *planner_seconds_text(double seconds, char ret[OUT_NUMBER]); /* "1.7 s", "12 ms"; without a sign */
/* Why layout `a` is faster or slower than layout `b`, the row `other`, and with `memory` also why it needs more or less
 * of it: one line without its end. */
void planner_reason_print(FILE *f, const struct plan_found *a, int other, const struct plan_found *b, bool memory);
/* Writes the job file with this layout. ERR_IO: the file exists, or cannot be written. */
NODISCARD err_t planner_write_job(const char *path, const struct job_spec *job, const struct plan_layout *l,
                                  struct why *why);
json_t *planning_layout_json(const struct plan_layout *l);
json_t *planning_found_json(const struct planning *p, const struct plan_found *f);

#endif
