/* `dt-worker --generate`: continues a prompt with the model of a checkpoint. Reads the step folder itself, read-only;
 * needs no daemon. One thread. */
#ifndef DTD_WORKER_GENERATE_H
#define DTD_WORKER_GENERATE_H

#include "common/base/err.h"

#include <stdint.h>

struct generate {
    const char *checkpoint, *prompt;
    int64_t tokens, top_k; /* top_k 0: all */
    double temperature;    /* 0: always the likeliest */
    uint64_t seed;
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
