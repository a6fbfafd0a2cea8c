/* Notifications to the service manager, and the watchdogs. Control sends HEARTBEAT every half second while its loop
 * runs. The supervisor forwards each one as WATCHDOG=1, so that the service manager watches both processes:
 *
 *   time without a heartbeat                  meaning                                 action
 *   a third of WatchdogSec, at most HANG_MS   control hangs                           the supervisor restarts control;
 *                                                                                     jobs continue
 *   WatchdogSec                               the supervisor hangs too, or control    the service manager ends
 *                                             cannot be started                       everything
 *
 * A new control process has START_MS for its first heartbeat, because it first reads its snapshot. A private dtd
 * without a watchdog never kills its control: a debugger may have stopped it. */
#include "daemon/supervisor/supervisor.h"

#include "common/base/clock.h"
#include "common/base/log.h"

#include <inttypes.h>
#include <signal.h>

#define HANG_MS 10000  /* 20 heartbeats: a busy machine delays control by seconds */
#define START_MS 30000 /* includes reading the snapshot and the log, with a wide margin */

void sv_service_start(struct supervisor *s)
{
    notify_init(&s->notify);
    int64_t third = s->notify.watchdog_ms / 3;
    s->hang_ms = third && third < HANG_MS ? third : s->system || third ? HANG_MS : 0;
}

void sv_service_expect(struct supervisor *s)
{
    s->reloads = 0;
    s->reload_due = false;
    s->heartbeat_deadline_ms = clock_mono_ms() + START_MS;
}

void sv_heartbeat(struct supervisor *s, const struct channel_msg *m)
{
    s->heartbeat_deadline_ms = clock_mono_ms() + s->hang_ms;
    notify_send(&s->notify, "WATCHDOG=1");
    notify_status(&s->notify, m->env, m->env_bytes);
    if (m->state != 1 || m->job != s->reloads || s->ready || s->phase != SV_SERVING)
        return;
    s->ready = true;
    notify_send(&s->notify, "READY=1");
    log_info("ready");
}

/* A RELOAD is not repeated for the next control process, which reads the configuration at its start. */
void sv_service_reload(struct supervisor *s)
{
    if (s->phase != SV_SERVING)
        return;
    log_info("reload requested");
    notify_send(&s->notify, "RELOADING=1\nMONOTONIC_USEC=%" PRId64, clock_mono_ns() / 1000);
    s->ready = false;
    s->reload_due = s->channel >= 0;
    s->reloads += s->channel >= 0;
}

void sv_service_stop(struct supervisor *s)
{
    notify_send(&s->notify, "STOPPING=1\nSTATUS=stopping the jobs");
}

void sv_service_tick(struct supervisor *s)
{
    int64_t now = clock_mono_ms();
    if (!s->hang_ms || s->control < 0 || s->phase != SV_SERVING || now < s->heartbeat_deadline_ms)
        return;
    log_error("control hangs, killed pid=%d silent_ms=%" PRId64, s->control, s->hang_ms);
    notify_status(&s->notify, "control hung and is being restarted", NOTIFY_STATUS_MAX);
    kill(s->control, SIGKILL);
    s->heartbeat_deadline_ms = now + START_MS;
}
