/* Looks at every layout of a job on a machine and keeps the best. Pure; any thread.
 *
 * A mesh (tp, cp, pp, fsdp, dp, ep) has many variants: ZeRO stages, schedules with their chunks, microbatch sizes, what
 * is recomputed. Of each mesh the search keeps the variant that fits and serves the goal best, and apart from it the
 * one that needs least memory, so that a list of results shows meshes that differ. */
#ifndef DTD_COMMON_PLAN_SEARCH_SEARCH_H
#define DTD_COMMON_PLAN_SEARCH_SEARCH_H

#include "common/plan/search/step_time.h"

enum plan_goal { PLAN_TIME, PLAN_MEMORY };

struct plan_search {
    const struct plan_shape *shape;
    const struct machine *machine;
    struct plan_overlap overlap;
    int64_t workers;
    double memory; /* bytes that a worker may use */
    enum plan_goal goal;
    int64_t micro_batch, chunks;                                 /* the only ones to look at; 0: powers of two */
    bool (*allow)(const void *arg, const struct plan_layout *l); /* false: do not look at it; NULL: look at all */
    const void *allow_arg;
};

struct plan_found {
    struct plan_layout layout;
    struct plan_time time;
    struct plan_bytes bytes;
};

#define PLAN_SEARCH_MESHES 4096

/* Sorted, the best first: by time, or by memory. */
struct plan_results {
    struct plan_found *fit; /* at most PLAN_SEARCH_MESHES */
    int n_fit;
    struct plan_found *unfit; /* of each mesh without a variant that fits, the variant that needs least memory */
    int n_unfit;
    int64_t looked; /* number of layouts */
};

/* ERR_NOMEM. Freed by plan_results_fini. Without any legal layout both lists are empty. */
NODISCARD err_t plan_search(const struct plan_search *search, struct plan_results *ret);
void plan_results_fini(struct plan_results *r); /* legal on a zeroed one */
/* The shape of a job whose vocabulary is known (model.vocab is not 0). */
void plan_shape_of(const struct job_spec *job, struct plan_shape *ret);
/* The layout that a job file asks for, and the other way round: sets the keys of `parallel` and train.micro_batch. */
void plan_layout_of(const struct job_spec *job, struct plan_layout *ret);
void plan_layout_apply(const struct plan_layout *l, struct job_spec *job);

#endif
