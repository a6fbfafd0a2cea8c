/* How much memory a job needs, from its programs, before anything is allocated. Pure; any thread may call it. */
#ifndef DTD_COMMON_PLAN_ESTIMATE_MEMORY_H
#define DTD_COMMON_PLAN_ESTIMATE_MEMORY_H

#include "common/plan/program.h"

/* Bytes of one worker. On a GPU the device holds all spaces; the node holds the arena and a mirror of SPACE_HOST.
 * Memory that libraries allocate (a CUDA context, the workspace of a matmul, NCCL's buffers) is not included. */
struct plan_memory {
    int64_t bytes[SPACE_COUNT], arena_bytes;
    int64_t kept_bytes;   /* of bytes[SPACE_OPT]: what post-validation keeps */
    int64_t device_bytes; /* 0 where the device's memory is the node's */
    int64_t host_bytes;
    int64_t total_bytes; /* device_bytes + host_bytes */
};
void plan_memory(const struct program *p, enum device device, struct plan_memory *ret);
/* The memory of every worker of the job; ret[i] is rank i's. Compiles one rank of each kind of equal ranks. */
NODISCARD err_t plan_memory_of_ranks(const struct job_spec *job, const struct graph *g, struct plan_memory *ret,
                                     struct why *why);
/* ERR_INVALID when all workers of the job together need more than `node_bytes` of the node's memory: `why` names need,
 * capacity, and what to change. GPU memory is not checked here, because only a worker can ask the device for its size.
 */
NODISCARD err_t plan_fits(const struct job_spec *job, int64_t node_bytes, struct why *why);
/* ERR_INVALID when run.workers_per_gpu workers with the training program `p` do not fit into `gpu_bytes` of one GPU:
 * `why` names need ("a worker needs X GiB on the GPU"), capacity, the parts, and what to change. */
NODISCARD err_t plan_fits_device(const struct job_spec *job, const struct program *p, int64_t gpu_bytes,
                                 struct why *why);

#endif
