/* `dt-worker --generate`: continues prompts, or answers questions, with the model of a checkpoint. It reads the step
 * folder directly and needs no daemon. There is one thread for each of the tp x pp parts of the model; except for
 * rounding, the text does not depend on the number of parts, nor on the other prompts. */
#ifndef DTD_WORKER_GENERATE_H
#define DTD_WORKER_GENERATE_H

#include "common/base/dtype.h"
#include "common/base/err.h"
#include "worker/choose.h"

#include <stdbool.h>
#include <stdint.h>

#define GENERATE_MAX_WAYS 64 /* of tp, and of pp */
#define GENERATE_MAX_STOPS 16
#define GENERATE_MAX_BATCH 256
#define GENERATE_TOKENS 100
#define GENERATE_ANSWER 1000 /* answers end by themselves; this bounds one that does not */

struct generate {
    const char *checkpoint;
    const char *prompt;   /* NULL: empty; with `chat`: questions come from standard input, one per line */
    const char *prompts;  /* file (worker/prompts.h); NULL: `prompt` is the only one */
    bool chat;            /* the prompt is the user's turn of a conversation */
    const char *template; /* with `chat`: name of the template; NULL: the checkpoint's */
    const char *system;   /* with `chat`: text of the system turn; NULL: none */
    int64_t tokens;       /* of each continuation at most; -1: GENERATE_TOKENS, or of answers GENERATE_ANSWER */
    struct choose_rule rule;
    const char *stops[GENERATE_MAX_STOPS]; /* a continuation ends before the first of these texts */
    int n_stops;
    bool ignore_eos;  /* it does not end at tokens that end a text */
    bool json;        /* a line of JSON for each prompt */
    int64_t batch;    /* prompts at a time */
    enum dtype dtype; /* of parameters, activations and the cache: DT_F32 or DT_BF16 */
    int64_t tp, pp;   /* degree of tensor parallelism, number of pipeline stages; 1 x 1: the model is not divided */
};

/* Writes to standard output: for a single prompt the prompt, and then each token of the continuation as it is chosen;
 * of several, each as soon as it and all before it are complete. With `chat`, only answers, each with a line break. */
NODISCARD err_t generate_run(const struct generate *g, struct why *why);

struct ckpt;
struct engine;
/* Loads the parameters of one rank from a checkpoint into an engine that generates. */
NODISCARD err_t generate_load(struct engine *e, struct ckpt *ckpt, struct why *why);

#endif
