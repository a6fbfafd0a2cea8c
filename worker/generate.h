/* `dt-worker --generate`: continues a prompt with the model of a checkpoint. It reads the step folder directly and
 * needs no daemon. There is one thread for each of the tp x pp parts of the model; except for rounding, the text does
 * not depend on the number of parts. */
#ifndef DTD_WORKER_GENERATE_H
#define DTD_WORKER_GENERATE_H

#include "common/base/err.h"

#include <stdint.h>

#define GENERATE_MAX_WAYS 64 /* of tp, and of pp */

struct generate {
    const char *checkpoint, *prompt;
    int64_t tokens, top_k; /* top_k 0: choose among all tokens */
    double temperature;    /* 0: always choose the most likely token */
    uint64_t seed;
    int64_t tp, pp; /* degree of tensor parallelism, number of pipeline stages; 1 x 1: the model is not divided */
};

/* Writes the prompt, and then each token of the continuation as it is chosen, to standard output. */
NODISCARD err_t generate_run(const struct generate *g, struct why *why);

/* The next token from `n` logits: the argument of the largest when the temperature is 0, else drawn from
 * softmax(logits / temperature) over the top_k largest, with the random number of (seed, position). `order` is scratch
 * memory for n numbers. Equal logits are ordered by index. */
int32_t generate_choose(const float *logits, int64_t n, const struct generate *g, int64_t position, int32_t *order);

struct ckpt;
struct engine;
/* Loads the parameters of one rank from a checkpoint into an engine that generates. */
NODISCARD err_t generate_load(struct engine *e, struct ckpt *ckpt, struct why *why);

#endif
