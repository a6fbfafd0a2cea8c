/* Planted bugs. A proof that never fails proves nothing, so tests/common/plan/test_mutants.c builds this folder once
 * more with DTD_MUTANTS: there the environment variable DTD_MUTANT=NAME makes MUTANT(NAME) true and the compiler wrong
 * in one place, and checker or comparison must say so. In every other build MUTANT is the constant false. */
#ifndef DTD_COMMON_PLAN_MUTANT_H
#define DTD_COMMON_PLAN_MUTANT_H

#include <stdbool.h>

/* X(NAME, what it does wrong) */
#define MUTANT_LIST(X)                                                        \
    X(LOSS_SCALED_BY_SHARE, "losses are scaled by the rank's own batch")      \
    X(PIECE_OFF_BY_ONE, "a piece begins a grain early")                       \
    X(NORM_COUNTS_REPLICAS, "every replica counts its squares in the norm")   \
    X(BLOCKS_OF_THE_FIRST_BOX, "all tp ranks put their squares in one place") \
    X(KV_HEAD_OF_THE_NEIGHBOUR, "shared key-value heads are dealt out wrong")

#define X(name, what) MUTANT_##name,
enum mutant { MUTANT_LIST(X) MUTANT_COUNT };
#undef X

#ifdef DTD_MUTANTS
bool mutant_is(enum mutant m);
#define MUTANT(name) mutant_is(MUTANT_##name)
#else
#define MUTANT(name) false
#endif

#endif
