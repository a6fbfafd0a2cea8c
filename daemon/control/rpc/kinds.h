/* Tables that convert an enumeration of a protobuf message to that of a plain struct. */
#ifndef DTD_DAEMON_CONTROL_RPC_KINDS_H
#define DTD_DAEMON_CONTROL_RPC_KINDS_H

#include <stddef.h>

struct kind_pair {
    int wire, plain;
};

/* NULL: the value is unknown, because the sender has another version or is faulty. */
static inline const struct kind_pair *kind_pair_find(const struct kind_pair *kinds, size_t n, int wire)
{
    for (size_t i = 0; i < n; i++)
        if (kinds[i].wire == wire)
            return &kinds[i];
    return NULL;
}

#endif
