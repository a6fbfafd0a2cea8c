/* `dt-worker --generate`: continues a prompt with the model of a checkpoint. Reads the step folder itself, read-only;
 * needs no daemon. A thread for each of the tp x pp parts that the model is cut in; the
 * text is that of one part, but for rounding. */
#ifndef DTD_WORKER_GENERATE_H
#define DTD_WORKER_GENERATE_H

#include "common/base/err.h"

#include <stdint.h>

#define GENERATE_MAX_WAYS 64 /* of tp, and of pp */

struct generate {
    const char *checkpoint, *prompt;
    int64_t tokens, top_k; /* top_k 0: all */
    double temperature;    /* 0: always the likeliest */
    uint64_t seed;
    int64_t tp, pp; /* ways of tensor parallelism, stages; 1 x 1: the whole model in one */
};

/* Writes prompt and continuation to standard output as they come. */
NODISCARD err_t generate_run(const struct generate *g, struct why *why);

/* The next token from `n` logits: the argument of the largest when the temperature is 0, else drawn from
 * softmax(logits / temperature) over the top_k largest, by the number at (seed, position). `order` is scratch for n.
 * Equal logits rank by their index. */
int32_t generate_choose(const float *logits, int64_t n, const struct generate *g, int64_t position, int32_t *order);

struct ckpt;
struct engine;
/* The parameters of a checkpoint into an engine that generates, one worker's. */
NODISCARD err_t generate_load(struct engine *e, struct ckpt *ckpt, struct why *why);

#endif
