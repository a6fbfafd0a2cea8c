/* Asks what GPUs this node has (`dt-worker --probe`, once) and whether they are well (`dt-worker --health`, now and
 * then, and at once when a worker that has one ends badly): processes of their own, started by the supervisor, so that
 * a driver that hangs hangs nobody. Their words lie in probe.json and health.json of the state directory. Loop thread.
 *
 *   idle -- due --> asked --> running --> idle: it has ended, and its words are read
 *                   ^  |         |
 *            0.5 s  |  | refused: the one of the control before us still runs; that one is killed
 *                   +--+         |
 *                   asked or running at its deadline: killed, idle, no words
 *
 * What each kind means is a row in probe.c. Without words of the probe there are no GPUs. Without words on health
 * nobody's GPU is touched: a warning stands, and it is asked for less often. It is not asked for at all where the
 * configuration says what GPUs there are, or the probe could say nothing of it. */
#ifndef DTD_DAEMON_CONTROL_LOCAL_PROBE_H
#define DTD_DAEMON_CONTROL_LOCAL_PROBE_H

#include "daemon/supervisor/channel.h"

#include <stdbool.h>

struct local;
struct probe_held; /* the end of a worker, while it is asked whether its GPU was the cause */

struct probe {
    struct probe_run {
        bool asked; /* a process by our token: it runs, or its end is to come */
        uint8_t token[CHANNEL_TOKEN_BYTES];
        int64_t deadline_ms; /* 0: idle */
        int64_t began_ms;    /* the newest one; of no meaning before the first */
        int64_t took_ms;     /* from then to its end or deadline, of the newest one that is over */
        int64_t due_ms;      /* idle: when it is asked; refused: when again; 0: never */
        uint64_t begun;      /* how often it has left idle; when it is idle again, all of these are over */
    } run[CHANNEL_PROBE_SLOTS];
    char warning[600]; /* why health is not known by now; "": it is, or is not asked for */
    struct probe_held *held, **held_end;
    bool stopped; /* nothing is asked any more: the dtd ends */
};

/* Begins, or takes the configuration's word; local->gpus is known when the probe is over. */
void probe_start(struct local *l);
/* How long the probe has run by now, or took; 0: it was not asked for. */
int64_t probe_gpus_ms(const struct local *l);
/* The supervisor's word on a probe. */
void probe_child(struct local *l, const struct channel_msg *m);
/* The supervisor's word on a process of a job. True: its end says that a GPU may be sick, and local_events.process is
 * called when that is known, in 3 s at the latest; until then the process counts as running, and nobody is given its
 * GPU. */
bool probe_delay_exit(struct local *l, const struct channel_msg *m);
void probe_tick(struct local *l);
/* The dtd ends: nothing new is asked. */
void probe_stop(struct local *l);

#endif
