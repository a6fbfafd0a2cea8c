/* A program on another computer that always has the cluster's current keys, and no identity of a node. It connects to
 * nodes under all names and for all purposes; the run fails if one of them opens a tunnel. */
#ifndef DTD_TESTS_SIM_CONTROL_THIEF_H
#define DTD_TESTS_SIM_CONTROL_THIEF_H

#include <stdint.h>

void thief_start(void);
uint64_t thief_attempts(void);

#endif
