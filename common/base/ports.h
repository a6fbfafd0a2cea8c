/* Ranges of TCP ports, "7900-7999", for sites whose firewalls let nothing else through. Pure. */
#ifndef DTD_COMMON_BASE_PORTS_H
#define DTD_COMMON_BASE_PORTS_H

#include <stdbool.h>
#include <stdint.h>

/* Environment of a worker: cluster.ports and cluster.fabric of its node. */
#define PORTS_ENV "DTD_PORTS"
#define FABRIC_ENV "DTD_FABRIC"
#define PORTS_NEED "two ports from 1024 to 65535 with a dash between, such as 7900-7999"

struct ports {
    uint16_t first, last; /* 0: any that the kernel chooses */
};

/* "" and NULL are any port. False: the text is no range. */
bool ports_parse(const char *text, struct ports *ret);
int ports_count(const struct ports *p); /* 0: any */

#endif
