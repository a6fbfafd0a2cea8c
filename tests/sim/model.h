/* What a record must be answered: the rules of docs/formats/replicated-log.md said a second time, as short as they can
 * be. */
#ifndef DTD_TESTS_SIM_MODEL_H
#define DTD_TESTS_SIM_MODEL_H

#include "daemon/control/state/state.h"

void model_init(void);
/* The next record in the log's order and the answer that it got. */
void model_check(uint64_t index, const struct record *record, const struct state_result *result);

#endif
