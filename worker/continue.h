/* Continues prompts with an open model: the loop over tokens. Private to worker/generate.c. */
#ifndef DTD_WORKER_CONTINUE_H
#define DTD_WORKER_CONTINUE_H

#include "common/base/buf.h"
#include "common/data/data.h"
#include "worker/generate.h"
#include "worker/step/engine.h"

/* The most tokens of prompts that are processed at a time: enough rows for matrix products at full speed, and little
 * memory for activations. */
#define CONTINUE_ROWS 256

/* Of one rank. All ranks have the same prompts, choose the same tokens, and rank 0 writes. */
struct continuation {
    const struct generate *ask;
    int rank;
    struct engine *engine;  /* of MODE_DECODE */
    struct comm *comm;      /* NULL: a single rank */
    struct comm_group *all; /* the same */
    const struct tokenizer *tokenizer;
    bool words;    /* the tokenizer is one of words */
    int64_t vocab; /* tokens that can be chosen */
    char *const *prompts;
    const struct buf *ids; /* by prompt: its tokens, int32 */
    int n;
};
NODISCARD err_t continue_prompts(const struct continuation *c, struct why *why);

#endif
