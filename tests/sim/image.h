/* An old copy of one voter's disk comes back, as from the image of a virtual machine, in a cluster of three voters. */
#ifndef DTD_TESTS_SIM_IMAGE_H
#define DTD_TESTS_SIM_IMAGE_H

#include "tests/sim/world.h"

#define IMAGE_HOSTS 4 /* three voters, and one that replaces the old copy */

/* Called before the hosts start. `blind`: what the voters know of each other is not used. */
void image_init(bool blind);
/* Runs all of it; the clients run meanwhile. Afterwards the old copy has been refused and replaced. */
void image_run(void);
bool image_is_lost(int id); /* the host has no process any more */

#endif
