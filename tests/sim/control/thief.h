/* A program on another computer that always has the cluster's current keys, and no identity of a node. It connects to
 * nodes under all names and for all purposes; the run fails if one of them opens a tunnel. */
#ifndef DTD_TESTS_SIM_CONTROL_THIEF_H
#define DTD_TESTS_SIM_CONTROL_THIEF_H

#include <stdint.h>

void thief_start(void);
/* From now on he has this identity, which the node has had before it left, and uses its name. */
void thief_has(int node, const uint8_t public_key[32]);
void thief_end(void);
uint64_t thief_attempts(void);

#endif
