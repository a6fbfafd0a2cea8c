/* Which cores a worker is bound to. Pure book-keeping. */
#ifndef DTD_DAEMON_CONTROL_SLOTS_H
#define DTD_DAEMON_CONTROL_SLOTS_H

#include "daemon/supervisor/channel.h"

#include <stdbool.h>

struct slots {
    int n_cores;
    int core[CHANNEL_MAX_CPUS];  /* that this node gives us, ascending */
    int users[CHANNEL_MAX_CPUS]; /* bound workers per core[i] */
};

/* The cores are those of our own affinity. */
void slots_init(struct slots *s);
/* How many workers a node takes when nobody has said: 16, or one a core, whichever is more. */
int slots_default(const struct slots *s);

/* The cores of one worker out of `workers` that start together: `threads` of them, or an equal share when that is 0;
 * the least used first. All zero (unbound) when the job has more workers than there are cores: two workers bound to one
 * core beside a free one would wait for each other at every barrier. */
void slots_bind(struct slots *s, int workers, int threads, uint8_t ret_cpus[CHANNEL_MAX_CPUS / 8]);
/* A worker that is found bound to these. */
void slots_use(struct slots *s, const uint8_t cpus[CHANNEL_MAX_CPUS / 8]);
void slots_unbind(struct slots *s, const uint8_t cpus[CHANNEL_MAX_CPUS / 8]);

#endif
