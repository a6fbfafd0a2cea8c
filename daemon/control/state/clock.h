/* The clock of the cluster: milliseconds, for durations that outlive a leader, such as run.max_seconds, the hours of a
 * join token and the day for which request ids are kept.
 *
 * It is no date. Every node carries it on with its own monotonic clock, and every record has its leader's reading, so a
 * step of a wall clock, or a wrong one on one node, changes no duration. Time during which no node of the cluster
 * ran does not count, except after a restart of dtd-control on a machine that stayed up: the folder of the log has a
 * file with the difference to the monotonic clock of this boot. Loop thread. */
#ifndef DTD_DAEMON_CONTROL_STATE_CLOCK_H
#define DTD_DAEMON_CONTROL_STATE_CLOCK_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

struct state_clock {
    bool runs;
    int64_t ahead_ms;              /* reading less the monotonic clock */
    char path[PATH_MAX], boot[40]; /* of the file, and of this boot; "": nothing is kept */
    bool is_saved;
    int64_t saved_ms; /* ahead_ms in the file */
};

/* `dir` is the folder of the log. */
void state_clock_open(struct state_clock *c, const char *dir);
/* The reading, at least 1. */
int64_t state_clock_ms(struct state_clock *c);
/* A record with this reading has been applied. The clock never goes back. */
void state_clock_seen(struct state_clock *c, int64_t clock_ms);
/* Called at each tick. Writes the file if it is missing or wrong by more than 0.1 s: at the start, and seldom later. A
 * failure is not an error, as the file only serves the next start. */
void state_clock_save(struct state_clock *c);

#endif
