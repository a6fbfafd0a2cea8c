/* Fault injection. A job must survive a worker that crashes in any action and any op. For this, the tests build the
 * worker a second time with DTD_FAULTS; a table in tests/parity/fault.c lists at which op of which step the process
 * kills itself. In all other builds these functions are empty. Called on the thread that runs the op. */
#ifndef DTD_WORKER_STEP_FAULT_H
#define DTD_WORKER_STEP_FAULT_H

#include "worker/step/run.h"

/* BEFORE: the other members of a collective wait in it until they are aborted. AFTER: this rank has contributed its
 * part, and some members may have it. WITHIN: in a snapshot, after half of its pieces. */
enum fault_side { FAULT_BEFORE, FAULT_WITHIN, FAULT_AFTER };

#ifdef DTD_FAULTS
void fault_point(const struct run *r, const struct op *op, enum fault_side side);
#else
static inline void fault_point(const struct run *r, const struct op *op, enum fault_side side)
{
}
#endif

#endif
