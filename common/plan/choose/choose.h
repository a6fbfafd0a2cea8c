/* `parallel: auto`: which layout a job gets on the workers that there are. dtctl asks when a job is submitted, and the
 * leader for each number of workers that the job runs with. Equal arguments give equal answers on every machine, so
 * that a new leader continues with the layout of the one before. Pure; any thread; it may take a second or more for
 * thousands of workers, because the best layouts are compiled for their exact memory. */
#ifndef DTD_COMMON_PLAN_CHOOSE_CHOOSE_H
#define DTD_COMMON_PLAN_CHOOSE_CHOOSE_H

#include "common/plan/graph.h"
#include "common/plan/search/search.h"

#define PLAN_CHOICE_LAYOUT 256
#define PLAN_CHOICE_WHY 400

/* Where the workers are. */
struct plan_place {
    int64_t workers, nodes;
    int64_t per_node; /* most workers on one node */
};

struct plan_choice {
    struct plan_found found;
    char layout[PLAN_CHOICE_LAYOUT]; /* "parallel.tp=2 parallel.pp=1 ..": each as for --set, separated by spaces */
    char
        why[PLAN_CHOICE_WHY]; /* "tp 2, microbatch 4: 0.48 s a step; next best fsdp 2 (zero 1), microbatch 4: 0.52 s" */
};

/* The fastest layout that fits, among those that keep the job's fixed keys. `machine` describes one of the nodes.
 * ERR_LIMIT: no layout of so many workers fits; `why` has the missing memory. ERR_NOTFOUND: there is none. */
NODISCARD err_t plan_choose(const struct job_spec *job, const struct machine *machine, const struct plan_place *place,
                            struct plan_choice *ret, struct why *why);
/* The job with the layout of a choice, as a worker gets it: for exactly so many workers, and with no key of
 * parallel.auto. `yaml` is the job's spec. The caller frees *ret. */
NODISCARD err_t plan_choice_apply(const char *yaml, const char *layout, int64_t workers, struct job_spec *ret,
                                  struct why *why);
/* Sets the keys of a layout as plan_layout_apply does, except those that the search does not choose (sp, reshard). */
void plan_choice_set(const struct plan_layout *l, struct job_spec *job);
/* The same with the layout of another job. */
void plan_choice_copy(const struct job_spec *from, struct job_spec *to);
/* The search that looks at the layouts which keep the job's fixed keys only. */
void plan_search_fix(struct plan_search *search, const struct job_spec *job);
/* The machine as the job's workers see it in this place: their share of a node's cores and memory. */
void plan_machine_share(const struct job_spec *job, const struct plan_place *place, struct machine *m);

/* ---- parts that dtctl plan uses as well ---- */

/* plan_mesh takes so many workers. */
#define PLAN_COMPILED_WORKERS 4096
/* Bytes of the worker that needs most, on its GPU or in its share of the node. ERR_INVALID: dtd has no such layout
 * (`why` names the rule, or that a layout of more than 4096 workers is not compiled). */
NODISCARD err_t planner_exact(const struct job_spec *job, const struct graph *g, const struct plan_layout *l,
                              double *ret_bytes, struct why *why);
/* Whether the job is legal after its keys have changed. */
NODISCARD err_t planner_rules_check(const struct job_spec *job, struct why *why);
/* What the program that dtd runs overlaps there. */
struct plan_overlap planner_overlap(const struct machine *m);
/* Bytes of a device that a job may use: a CUDA context and libraries' workspaces take the rest. */
double planner_memory(const struct machine *m);
const char *planner_recompute_word(enum recompute r);
/* "tp 8, pp 16 (zb-v), fsdp 8 (zero 1), microbatch 1, recompute attention" */
const char *planner_layout_text(const struct plan_layout *l, char *ret, size_t size);

#endif
