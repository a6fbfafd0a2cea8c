/* Two network namespaces joined by a pair of virtual links: ranks in one or the other are on two nodes, as far as a
 * network can tell. They live as long as the process. One thread at a time. */
#ifndef DTD_TESTS_PARITY_LINKS_H
#define DTD_TESTS_PARITY_LINKS_H

#include <stdbool.h>

/* Makes them at the first call, which says on stdout when they cannot be had (root and `ip` are needed); false then. */
bool links_make(void);
/* From here on the thread, and what it forks, is in the namespace of node 0 or 1. */
bool links_enter(int node);
/* Of the node, in both namespaces. */
const char *links_address(int node);

#endif
