/* The lists of ops of a pipeline rank's chunks. Private to common/plan. */
#ifndef DTD_COMMON_PLAN_COMPILE_STAGES_H
#define DTD_COMMON_PLAN_COMPILE_STAGES_H

#include "common/plan/compile/internal.h"

enum chunk_list { LIST_FORWARD, LIST_BACKWARD, LIST_INPUT, LIST_WEIGHT, CHUNK_LISTS };

struct pipeline_chunk {
    struct op_range lists[CHUNK_LISTS][2]; /* the first of a step, and later ones */
    struct op_range joins[CHUNK_LISTS][2]; /* the same where the microbatch is not there */
    int runs[CHUNK_LISTS];                 /* how often a list has been an action */
    bool split;                            /* its backward is in halves */
    /* Buffers of what comes from and goes to other stages; -1: there is none. */
    int input, output, input_grad, output_grad;
};

struct pipeline_chunk_spec {
    int chunk, slots, rounds;
    bool split;
};

void chunk_compile(struct compiler *c, const struct pipeline_chunk_spec *want, struct pipeline_chunk *ret);
/* Its joins. */
void chunk_join(struct compiler *c, struct pipeline_chunk *chunk);
/* Forgets all but the joins of n chunks: ops and buffers from these numbers on. */
void chunks_forget(struct compiler *c, struct pipeline_chunk *chunks, int n, int ops, int buffers);

#endif
