/* The choice of the next token from logits. Pure; a room belongs to one thread. */
#ifndef DTD_WORKER_CHOOSE_H
#define DTD_WORKER_CHOOSE_H

#include "common/base/err.h"

#include <stdint.h>

/* In this order, as transformers does: the penalty changes the logits of tokens that are in the text; the temperature
 * divides them; then only some tokens can be drawn. */
struct choose_rule {
    double penalty;     /* a logit above 0 is divided by it, one below multiplied (Keskar et al. 2019); 0 or 1: none */
    double temperature; /* 0: always the most likely token */
    int64_t top_k;      /* the most likely tokens; 0: all */
    double top_p; /* the fewest most likely tokens whose probabilities, among the top_k, have this sum (Holtzman et
                   * al. 2019); 0 or 1: all */
    double min_p; /* tokens at least this fraction as likely as the most likely one (Nguyen et al. 2024); 0: all */
    uint64_t seed;
};

struct choose_room {
    int64_t n;
    int32_t *order;
    float *logits;
};
NODISCARD err_t choose_room_init(struct choose_room *r, int64_t n);
void choose_room_fini(struct choose_room *r); /* legal on a zeroed one */

/* One of the tokens 0 .. r->n - 1, drawn with the random number of (rule->seed, position) from their probabilities.
 * Equal logits are ordered by index. `text` is the text so far, for the penalty; ids beyond r->n in it are ignored. */
int32_t choose_token(const struct choose_rule *rule, const float *logits, const int32_t *text, int64_t n_text,
                     uint64_t position, struct choose_room *r);

#endif
