/* What goes wrong while the cluster works. */
#ifndef DTD_TESTS_SIM_CONTROL_TROUBLE_H
#define DTD_TESTS_SIM_CONTROL_TROUBLE_H

#include <stdint.h>

void trouble_start(void);
void trouble_end(void); /* everything is whole and stays so */
uint64_t trouble_happened(void);

#endif
