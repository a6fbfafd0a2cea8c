/* Asks `dt-worker --probe` what GPUs this node has: a process of its own, started by the supervisor, so that a driver
 * that hangs hangs nobody. Its words lie in probe.json of the state directory. Loop thread.
 *
 *   due -> asked -> running -> over           refused (the one of the control before us still runs): killed, then due
 *                      | 20 s
 *                      +-> killed: over at once, without GPUs */
#ifndef DTD_DAEMON_CONTROL_PROBE_H
#define DTD_DAEMON_CONTROL_PROBE_H

#include "daemon/supervisor/channel.h"

#include <stdbool.h>

struct node;

struct probe {
    bool asked, over;
    uint8_t token[CHANNEL_TOKEN_BYTES];
    int64_t deadline_ms; /* 0: not under way */
};

/* Begins, or takes the configuration's word; node->gpus is known when it is over. */
void probe_start(struct node *n);
/* The supervisor's word on a probe. */
void probe_child(struct node *n, const struct channel_msg *m);
void probe_tick(struct node *n);

#endif
