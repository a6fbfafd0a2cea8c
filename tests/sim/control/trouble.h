/* What goes wrong while the cluster works (schedule.h says how). */
#ifndef DTD_TESTS_SIM_CONTROL_TROUBLE_H
#define DTD_TESTS_SIM_CONTROL_TROUBLE_H

void trouble_start(void);
void trouble_end(void); /* everything is whole and stays so */

#endif
