/* Planted deaths. A job must survive a worker that dies in any action and any op, so the tests build the worker once
 * more with DTD_FAULTS (tests/parity/fault.c): there a table says at which op of which step the process kills itself.
 * In every other build there is nothing. On the thread that runs the op. */
#ifndef DTD_WORKER_STEP_FAULT_H
#define DTD_WORKER_STEP_FAULT_H

#include "worker/step/run.h"

/* BEFORE: the others of a collective wait in it for ever. AFTER: this rank's part is there, and some may have it.
 * WITHIN: a snapshot that is half copied. */
enum fault_side { FAULT_BEFORE, FAULT_WITHIN, FAULT_AFTER };

#ifdef DTD_FAULTS
void fault_point(const struct run *r, const struct op *op, enum fault_side side);
#else
static inline void fault_point(const struct run *r, const struct op *op, enum fault_side side)
{
}
#endif

#endif
