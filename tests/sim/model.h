/* The expected result of each record: a second implementation of the rules of docs/formats/replicated-log.md, as short
 * as possible. */
#ifndef DTD_TESTS_SIM_MODEL_H
#define DTD_TESTS_SIM_MODEL_H

#include "daemon/control/state/state.h"

void model_init(void);
/* Checks the next record in the order of the log, and its result. */
void model_check(uint64_t index, const struct record *record, const struct state_result *result);

#endif
