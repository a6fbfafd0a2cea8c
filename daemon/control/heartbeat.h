/* Control's signs of life to the supervisor, which watches it and tells the service manager. Loop thread. */
#ifndef DTD_DAEMON_CONTROL_HEARTBEAT_H
#define DTD_DAEMON_CONTROL_HEARTBEAT_H

#include <stdint.h>

struct control;

struct heartbeat {
    int64_t due_ms;
    uint64_t reloads; /* the last RELOAD that was done */
};

/* From the loop's own timer: says a BEAT twice a second, unless the log stands still. */
void heartbeat_tick(struct control *n);
/* Reads the configuration again: what may change while dtd runs does; a bad file changes nothing. */
void heartbeat_reload(struct control *n, uint64_t number);

#endif
