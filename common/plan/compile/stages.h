/* The lists of ops of a pipeline rank's chunks. Private to stages.c, pipeline.c and pipeline_exchange.c. */
#ifndef DTD_COMMON_PLAN_COMPILE_STAGES_H
#define DTD_COMMON_PLAN_COMPILE_STAGES_H

#include "common/plan/compile/internal.h"

enum chunk_list { LIST_FORWARD, LIST_BACKWARD, LIST_INPUT, LIST_WEIGHT, CHUNK_LISTS };

struct pipeline_chunk {
    struct op_range lists[CHUNK_LISTS][2]; /* of the first microbatch of a step, and of later ones */
    struct op_range joins[CHUNK_LISTS][2]; /* the same for a replica that does not have the microbatch */
    int runs[CHUNK_LISTS];                 /* number of actions so far that run the list */
    bool split;                            /* its backward is in halves */
    /* Buffers of values from and for other stages; -1: none. */
    int input, output, input_grad, output_grad;
};

struct pipeline_chunk_spec {
    int chunk, slots, rounds; /* slots: microbatches in flight; rounds: microbatches of a step (zero_rounds) */
    bool split;
};

/* Emits the lists of a chunk; all fields but joins. */
void chunk_compile(struct compiler *c, const struct pipeline_chunk_spec *want, struct pipeline_chunk *ret);
/* Emits its joins. */
void chunk_join(struct compiler *c, struct pipeline_chunk *chunk);
/* For a rank without microbatches: removes all ops from `ops` on but the joins of n chunks, and the buffers from
 * `buffers` on that these do not need. */
void chunks_forget(struct compiler *c, struct pipeline_chunk *chunks, int n, int ops, int buffers);

#endif
