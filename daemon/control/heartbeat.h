/* Heartbeats of dtd-control to the supervisor, which supervises it and reports its status to the service manager. Loop
 * thread. */
#ifndef DTD_DAEMON_CONTROL_HEARTBEAT_H
#define DTD_DAEMON_CONTROL_HEARTBEAT_H

#include <stdint.h>

struct control;

struct heartbeat {
    int64_t due_ms;
    uint64_t reloads; /* number of the last RELOAD that was carried out */
};

/* Called from the loop's timer. Sends a heartbeat twice a second, unless the log's own timer has stopped. */
void heartbeat_tick(struct control *n);
/* Reads the configuration file again and applies the settings that may change while dtd runs. An invalid file is logged
 * and changes nothing. */
void heartbeat_reload(struct control *n, uint64_t number);

#endif
