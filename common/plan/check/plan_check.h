/* The checker: an oracle for compiled programs that is independent of the compiler. Pure; any thread may call it. */
#ifndef DTD_COMMON_PLAN_CHECK_PLAN_CHECK_H
#define DTD_COMMON_PLAN_CHECK_PLAN_CHECK_H

#include "common/plan/program.h"

/* Checks the programs of all ranks of a job together; programs[i] is rank i's. It proves that every partial sum is
 * reduced exactly once before its use, that nothing is read before it is written, that live buffers are disjoint, that
 * all ranks of a group issue the same collectives in the same order, that every wait ends, and that the spaces are as
 * large as planned. ERR_INVALID: `why` names rank, action, op and buffer. */
NODISCARD err_t plan_check(const struct graph *g, const struct program *programs, int n, struct why *why);

#endif
