/* dtctl plan --search, --strategies and --nodes: which layout a job should have, on a machine that need not be this
 * one. The search itself is pure (common/plan/search); here are machine files, exact memory of the best layouts, and
 * reports. Blocking; needs no daemon. */
#ifndef DTD_CLIENT_PLANNER_PLANNER_H
#define DTD_CLIENT_PLANNER_PLANNER_H

#include "client/commands.h"
#include "common/plan/search/search.h"

struct planner_args {
    const char *machine;          /* the name of a file that dtd brings along, here, or a path; NULL: this node */
    const char *write;            /* write the best layout as a job file there; NULL: do not */
    int64_t nodes_from, nodes_to; /* 0: those of the machine, else one */
    int64_t top, days;
    enum plan_goal goal;
    bool pareto; /* --search: layouts of which none other is both faster and smaller */
};

/* Each prints its report, or returns an error with `why`. The job's layout is ignored; its model and batch count. */
NODISCARD err_t planner_search(struct global *g, const struct planner_args *a, struct job_spec *job, struct why *why);
NODISCARD err_t planner_scale(struct global *g, const struct planner_args *a, struct job_spec *job, struct why *why);
/* The best layout on all ranks with their noise, and over `days` with failures. */
NODISCARD err_t planner_days(struct global *g, const struct planner_args *a, struct job_spec *job, struct why *why);
NODISCARD err_t planner_strategies(struct global *g, const struct planner_args *a, struct job_spec *job,
                                   struct why *why);
/* How long the job takes in its own layout; with nodes_from also on so many nodes, with the batch of a worker kept. */
NODISCARD err_t planner_own(struct global *g, const struct planner_args *a, struct job_spec *job, struct why *why);
/* The job of a model of a usual size ("7b"): without data, for --memory. ERR_NOTFOUND: `why` lists the sizes. */
NODISCARD err_t planner_size(const char *name, struct job_spec *ret, struct why *why);

/* ---- parts (machines.c) ---- */

struct planner_file {
    const char *name, *text;
};
extern const struct planner_file planner_files[]; /* ends with a NULL name */

/* Measures this node and writes a machine file: `file`, or that of planner_calibrated_path if it is NULL. *ret_code is
 * the exit status of dt-worker; if it is not 0, dt-worker has printed its reason. */
NODISCARD err_t planner_calibrate(struct global *g, const char *file, int *ret_code, struct why *why);
/* $XDG_CONFIG_HOME/dtd/machine.yaml, or ~/.config/dtd/machine.yaml. */
NODISCARD err_t planner_calibrated_path(char *ret, size_t size, struct why *why);

bool planner_is_calibrated(void); /* whether this file exists */

/* Sets the keys `forecast` of a complete training job (common/conf/job.h) that is about to be submitted; leaves a job
 * with a command as it is. Errors are those of the machine that forecast.machine names. */
NODISCARD err_t planner_record(struct job_spec *job, struct why *why);

/* The machine that --machine names ("here": the calibrated file). NULL: this node, as the calibrated file describes it
 * if there is one, else with the rates of the forecast. ERR_NOTFOUND: `why` lists the names. */
NODISCARD err_t planner_machine(const char *name, const struct job_spec *job, struct machine *ret, struct why *why);
/* What the program that dtd runs overlaps there. */
struct plan_overlap planner_overlap(const struct machine *m);
/* Bytes of a device that a job may use: a CUDA context and libraries' workspaces take the rest. */
double planner_memory(const struct machine *m);
/* "tp 8, pp 16 (zb-v), fsdp 8 (zero 1), microbatch 1, recompute attention" */
const char *planner_layout_text(const struct plan_layout *l, char *ret, size_t size);

#endif
