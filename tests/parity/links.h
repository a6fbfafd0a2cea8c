/* Two network namespaces, connected by a pair of virtual links: ranks in different namespaces are on two nodes, as far
 * as the network is concerned. The namespaces exist as long as the process. To be used by one thread at a time. */
#ifndef DTD_TESTS_PARITY_LINKS_H
#define DTD_TESTS_PARITY_LINKS_H

#include <stdbool.h>

/* Creates the namespaces in the first call. Returns false if they cannot be created, and prints that on stdout; root
 * and `ip` are needed. */
bool links_make(void);
/* Moves the thread, and processes that it forks afterwards, to the namespace of node 0 or 1. */
bool links_enter(int node);
/* The address of the node, valid in both namespaces. */
const char *links_address(int node);

#endif
