/* The compiler: a job and a graph to one program per rank. Pure; any thread may call it.
 *
 * The compiler and the checker (common/plan/check) share nothing but the base files of common/plan. */
#ifndef DTD_COMMON_PLAN_COMPILE_COMPILE_H
#define DTD_COMMON_PLAN_COMPILE_COMPILE_H

#include "common/plan/program.h"
#include "common/plan/schedule/schedule.h"

/* The mesh of a job. ERR_INVALID: `why` names the key, its value and the nearest legal value (workers = dp x fsdp x tp
 * x pp x cp, from which dp is derived). */
NODISCARD err_t plan_mesh(const struct job_spec *job, struct mesh *ret, struct why *why);
/* Compiles the program of one rank. The caller keeps `g` and `job` unchanged while it uses the program, and frees the
 * program with program_fini. */
NODISCARD err_t plan_compile(const struct job_spec *job, const struct graph *g, enum program_mode mode, int rank,
                             struct program *ret, struct why *why);
/* Compiles the programs of ranks 0 to n - 1, which is faster than n calls of plan_compile. After an error there is no
 * program to free. */
NODISCARD err_t plan_compile_all(const struct job_spec *job, const struct graph *g, enum program_mode mode, int n,
                                 struct program *ret, struct why *why);

/* ---- many ranks of one job ---- */

/* The part of a compilation that all ranks of a job share: the order of the pipeline's slots, and the exchanges in
 * which values pass between ranks. Its cost grows with the slots of all ranks, so it is computed once per job. */
struct pipeline_order {
    struct mesh mesh;
    enum program_mode mode;
    struct schedule schedule;    /* of the replica with most microbatches */
    struct schedule_posts posts; /* empty where a pipeline has one rank */
    int ahead;                   /* schedule_ahead; 0: no post-validation */
};

/* `ret` keeps no pointer into `job`. Freed by pipeline_order_fini. */
NODISCARD err_t pipeline_order_init(const struct job_spec *job, enum program_mode mode, struct pipeline_order *ret,
                                    struct why *why);
void pipeline_order_fini(struct pipeline_order *o); /* legal on a zeroed one */
/* How a job shards tensors on its mesh; `order` is the job's. */
struct sharding_choice plan_sharding_choice(const struct job_spec *job, const struct pipeline_order *order);
/* Compiles a training program for its space_bytes alone; `order` is the job's. The program has neither events nor an
 * arena size, which take most of the time, so it must not be run. Freed by program_fini. */
NODISCARD err_t compile_sizes(const struct job_spec *job, const struct graph *g, const struct pipeline_order *order,
                              int rank, struct program *ret, struct why *why);

#endif
