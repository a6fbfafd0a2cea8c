/* A log with the real state, for folders of logs that are kept (formats/). */
#ifndef DTD_TESTS_DAEMON_CONTROL_LOG_FORMATS_LOG_H
#define DTD_TESTS_DAEMON_CONTROL_LOG_FORMATS_LOG_H

#include "daemon/control/state/replica.h"

#include <uv.h>

struct formats_log {
    uv_loop_t loop;
    struct replica replica;
#if __has_include("daemon/control/state/clock.h")
    struct state_clock clock;
#endif
    bool is_ready, is_closed;
    err_t err;
    char why[600];
    int waiting; /* proposals under way */
};

/* Opens the log in DIR/log, or creates it; `err` and `why` have the result. Exits after 30 s. */
void formats_log_open(struct formats_log *f, const char *dir);
/* Waits until the record is applied, and exits if it is refused. */
void formats_log_add(struct formats_log *f, struct record *r);
void formats_log_close(struct formats_log *f);

#endif
