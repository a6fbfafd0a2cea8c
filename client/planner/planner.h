/* dtctl plan --search, --strategies and --nodes: which layout a job should have, on a machine that need not be this
 * one. The search itself is pure (common/plan/search); here are machine files, exact memory of the best layouts, and
 * reports. Blocking; needs no daemon. */
#ifndef DTD_CLIENT_PLANNER_PLANNER_H
#define DTD_CLIENT_PLANNER_PLANNER_H

#include "client/commands.h"
#include "common/plan/choose/choose.h"
#include "common/plan/estimate/forecast.h"
#include "common/plan/estimate/table.h"

enum money_goal { MONEY_NONE, MONEY_COST, MONEY_TOKENS };

/* 0: not given. */
struct planner_money {
    enum money_goal goal;
    double price;       /* of a device for an hour */
    double tokens;      /* of the run */
    double budget;      /* in the currency of the price */
    double budget_days; /* within which the run ends */
};

struct spec_facts;

struct planner_args {
    const char *machine;          /* the name of a file that dtd brings along, here, or a path; NULL: this node */
    const char *write;            /* write the best layout as a job file there; NULL: do not */
    const char *picture;          /* draw the report as an SVG file there; NULL: do not */
    int64_t nodes_from, nodes_to; /* 0: those of the machine, else one */
    int64_t top, days;
    int64_t steps, seed; /* of simulations; steps 0: as many as take about a second */
    int64_t spares;      /* nodes; -1: those of the machine file */
    bool own;            /* simulate the job file's layout, not the best one */
    bool operations;     /* simulate steps at the level of operations */
    enum plan_goal goal;
    struct planner_money money;
    bool no_length; /* the job has no number of steps of its own (--memory) */
    bool pareto;    /* --search: layouts of which none other is both faster and smaller */
};

/* --price, --tokens and --budget; the input is a struct planner_money. */
extern const struct argp planner_money_argp;
/* Reads --goal. False: there is no such goal. */
bool planner_goal_parse(const char *text, struct planner_args *ret);

/* Each prints its report, or returns an error with `why`. The job's layout is ignored; its model and batch count. */
NODISCARD err_t planner_search(struct global *g, const struct planner_args *a, struct job_spec *job, struct why *why);
NODISCARD err_t planner_scale(struct global *g, const struct planner_args *a, struct job_spec *job, struct why *why);
/* The best layout on all ranks with their noise, and over `days` with failures; with --own, the job's `own`. */
NODISCARD err_t planner_days(struct global *g, const struct planner_args *a, struct job_spec *job,
                             const struct plan_layout *own, struct why *why);
NODISCARD err_t planner_strategies(struct global *g, const struct planner_args *a, struct job_spec *job,
                                   struct why *why);
/* The job's own layout on the machine. ERR_INVALID: it does not fit; `why` proposes the nearest ones that do. */
NODISCARD err_t planner_fit(struct global *g, const struct planner_args *a, const struct job_spec *job,
                            const struct plan_layout *own, struct why *why);
/* For a job on processors that needs more than the `node_bytes` of this node: adds the nearest layouts that fit to the
 * sentence in `why`, if there are any. */
void planner_nearest_here(const struct job_spec *job, int64_t node_bytes, struct why *why);
/* How long the job takes in its own layout; with nodes_from also on so many nodes, with the batch of a worker kept. */
NODISCARD err_t planner_own(struct global *g, const struct planner_args *a, struct job_spec *job, struct why *why);
/* The job of a model of a usual size ("7b"): without data, for --memory. ERR_NOTFOUND: `why` lists the sizes. */
NODISCARD err_t planner_size(const char *name, struct job_spec *ret, struct why *why);

/* ---- parts (machines.c) ---- */

struct planner_file {
    const char *name, *text;
};
extern const struct planner_file planner_files[]; /* ends with a NULL name */

/* Measures this node and writes a machine file: `file`, or that of planner_calibrated_path if it is NULL, and unless
 * `brief` a table of times beside it, with the ending .times. *ret_code is
 * the exit status of dt-worker; if it is not 0, dt-worker has printed its reason. */
NODISCARD err_t planner_calibrate(struct global *g, const char *file, bool brief, int *ret_code, struct why *why);
/* The text of that machine's file, NUL-terminated. */
NODISCARD err_t planner_machine_text(const char *name, const struct job_spec *job, struct buf *ret, struct why *why);
/* For a job with parallel.auto; others stay as they are. Asks the daemon for the slots of the nodes, sets the number of
 * workers if the file leaves it out, and on GPUs the machine by the name of their model. */
NODISCARD err_t planner_auto_nodes(struct global *g, struct job_spec *job, struct why *why);
/* Puts the text of the machine file and the best layout for all workers into a job with parallel.auto, whose vocabulary
 * is known. ERR_INVALID: none fits; `why` has the missing amount. */
NODISCARD err_t planner_auto_complete(struct job_spec *job, struct plan_choice *ret, struct why *why);
/* $XDG_CONFIG_HOME/dtd/machine.yaml, or ~/.config/dtd/machine.yaml. */
NODISCARD err_t planner_calibrated_path(char *ret, size_t size, struct why *why);

/* Whether there is such a machine, and its file names measured times of operations. */
bool planner_is_measured(const char *name);
bool planner_is_calibrated(void); /* whether this file exists */

/* Sets the keys `forecast` of a complete training job (common/conf/job.h) that is about to be submitted; leaves a job
 * with a command as it is. Errors are those of the machine that forecast.machine names. */
NODISCARD err_t planner_record(struct job_spec *job, struct why *why);

/* The machine that --machine names ("here": the calibrated file). NULL: this node, as the calibrated file describes it
 * if there is one, else with the rates of the forecast. ERR_NOTFOUND: `why` lists the names. */
NODISCARD err_t planner_machine(const char *name, const struct job_spec *job, struct machine *ret, struct why *why);

/* ---- the forecast of a compiled program (times.c) ---- */

struct planner_rates {
    struct plan_rates rates;
    struct plan_table table; /* no rows: nothing was measured */
    char source[256];        /* of the machine file; "": there is none */
};
/* Those of the machine that `name` names as for planner_machine. NULL: of the calibrated file if there is one and the
 * job runs on processors, else assumed ones. Freed by planner_rates_fini. */
NODISCARD err_t planner_rates(const char *name, const struct job_spec *job, struct planner_rates *ret, struct why *why);
void planner_rates_fini(struct planner_rates *r);
/* Fills what the facts have of a forecast. */
NODISCARD err_t planner_forecast(const struct planner_rates *r, const struct program *programs, int n,
                                 struct spec_facts *ret, struct why *why);

#endif
