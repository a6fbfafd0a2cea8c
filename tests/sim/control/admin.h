/* An administrator: root, who makes one call after the other on control.sock of a computer. The functions run the world
 * until the call is answered or ADMIN_CALL_US have passed, so they are called between events only. */
#ifndef DTD_TESTS_SIM_CONTROL_ADMIN_H
#define DTD_TESTS_SIM_CONTROL_ADMIN_H

#include "common/base/err.h"
#include "tests/sim/control/machine.h"

#include <stdbool.h>

#define ADMIN_CALL_US (8 * US_PER_S)
#define ADMIN_TOKEN_MAX 2048

void admin_init(void);
/* ERR_CLOSED: no control answers on this computer. */
err_t admin_recover(const struct machine *m);
err_t admin_leave(const struct machine *m);
err_t admin_remove(const struct machine *m, const char *node, bool evicts);
err_t admin_rotate(const struct machine *m);
err_t admin_token(const struct machine *m, char ret[ADMIN_TOKEN_MAX]);
err_t admin_join(const struct machine *m, const char *token);
const char *admin_answer(void); /* the sentence of the last error */

/* Takes the computer out of a cluster that does not list it any more, or asks to be taken out of its cluster, and lets
 * it join the cluster of the newest branch, with a token of its leader. Repeats what fails until `limit_us` have
 * passed. If the node cannot leave, because no node knows it or its key any more, its state directory is removed.
 * Returns whether it has joined. */
bool admin_take_anew(struct machine *m, int64_t limit_us);

#endif
