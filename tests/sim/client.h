/* Clients of the log. Each proposes one record after another, with a request id, at any host, until it gets an answer;
 * after an answer of unknown outcome it proposes again with the same id. Their histories are checked against the
 * ledger: each request takes effect once and gets one answer, which is true, in an order that agrees with time. */
#ifndef DTD_TESTS_SIM_CLIENT_H
#define DTD_TESTS_SIM_CLIENT_H

#include "daemon/control/state/state.h"
#include "tests/sim/world.h"

void clients_start(int n);
void clients_finish(void); /* no new requests */
bool clients_are_done(void);
uint64_t clients_answered(void);
/* Called by check.c when a record is applied for the first time on any host. */
void client_applied(uint64_t index, const struct record *record, const struct state_result *result);

#endif
