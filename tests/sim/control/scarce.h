/* --scarce: for a time, control on one computer gets no descriptors, or no thread: accept and socket report EMFILE, and
 * what a thread does takes seconds. --memory: allocations fail by chance. */
#ifndef DTD_TESTS_SIM_CONTROL_SCARCE_H
#define DTD_TESTS_SIM_CONTROL_SCARCE_H

#include <stdbool.h>

void scarce_start(bool is_others, bool is_memory);
void scarce_end(void);

#endif
