/* Finds out which GPUs this node has and whether they are healthy. `dt-worker --probe` runs once. `dt-worker --health`
 * runs every 30 s, and at once when a worker with a GPU fails. The supervisor starts both as separate processes, so
 * that a hanging driver stops neither dtd-control nor the supervisor. They write probe.json and health.json in the
 * state directory. Loop thread.
 *
 *   idle -- due --> asked --> running --> idle: the process has exited, and its output is read
 *                   ^  |         |
 *            0.5 s  |  | refused: the process of an earlier control still runs; it is killed
 *                   +--+         |
 *                   asked or running at its deadline: killed, idle, no output
 *
 * Each kind is a row of a table in probe.c. If the probe fails, the node has no GPUs. If a health check fails, no GPU
 * and no job is affected: a warning is shown, and the pause until the next check is ten times longer. There are no
 * health checks if the configuration sets the number of GPUs, or if the probe could read no data about health. */
#ifndef DTD_DAEMON_CONTROL_LOCAL_PROBE_H
#define DTD_DAEMON_CONTROL_LOCAL_PROBE_H

#include "daemon/supervisor/channel.h"

#include <stdbool.h>

struct local;
struct probe_held; /* the exit of a worker that waits until a health check shows whether its GPU was the cause */

struct probe {
    struct probe_run {
        bool asked; /* a process with `token` was requested, and its end has not been reported yet */
        uint8_t token[CHANNEL_TOKEN_BYTES];
        int64_t deadline_ms; /* 0: idle */
        int64_t began_ms;    /* start of the newest run; undefined before the first one */
        int64_t took_ms;     /* duration of the newest run that has ended or timed out */
        int64_t due_ms;      /* time of the next request, when idle or after a refusal; 0: none */
        uint64_t begun;      /* number of runs so far; when idle, all of them have ended */
    } run[CHANNEL_PROBE_SLOTS];
    char warning[600]; /* why the newest health check failed; "": it succeeded, or there are no checks */
    struct probe_held *held, **held_end;
    bool stopped; /* this dtd shuts down: no new runs */
};

/* Starts the probe. If the configuration sets the number of GPUs, uses that instead. local->gpus is valid when
 * local_events.gpus_known is called, which may happen during this call. */
void probe_start(struct local *l);
/* The duration of the probe, so far if it still runs; 0: there was none. */
int64_t probe_gpus_ms(const struct local *l);
/* Handles a message of the supervisor about a probe or health check. */
void probe_child(struct local *l, const struct channel_msg *m);
/* Looks at a message of the supervisor about a job's process. True: the message is the exit of a worker whose GPU may
 * be sick. A health check follows, and local_events.process is called with the message after it, within 3 s. Until then
 * the process counts as running, and its GPU is not assigned to another one. False: handle the message now. */
bool probe_delay_exit(struct local *l, const struct channel_msg *m);
void probe_tick(struct local *l);
/* This dtd shuts down: no new runs start. */
void probe_stop(struct local *l);

#endif
