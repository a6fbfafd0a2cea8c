/* What a save costs the training: the copy of a rank's state into its arena, beside a plain copy of as many bytes. */
#ifndef DTD_TESTS_BENCH_STALL_H
#define DTD_TESTS_BENCH_STALL_H

#include "worker/step/engine.h"

/* Prints a JSON line. After a step of training. */
NODISCARD err_t stall_print(struct engine *e, struct why *why);

#endif
