/* Clients: each proposes one record after another, under a request id, at whatever host it likes, until it has an
 * answer; an answer that nobody knows makes it ask again under the same id. Their histories are checked against the
 * ledger: done once, answered once and truthfully, in an order that agrees with time. */
#ifndef DTD_TESTS_SIM_CLIENT_H
#define DTD_TESTS_SIM_CLIENT_H

#include "daemon/control/state/state.h"
#include "tests/sim/world.h"

void clients_start(int n);
void clients_finish(void); /* nothing new is begun */
bool clients_are_done(void);
uint64_t clients_answered(void);
/* check.c's: the record took effect for the first time anywhere. */
void client_applied(uint64_t index, const struct record *record, const struct state_result *result);

#endif
