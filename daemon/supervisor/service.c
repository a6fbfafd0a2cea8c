/* What the service manager hears, and the watchdogs. Control says every half second that its loop turns (BEAT); each is
 * passed on as WATCHDOG=1, so that the manager watches both of us. Who acts when:
 *
 *   a third of WatchdogSec without a beat, at most HANG_MS   control hangs: it is killed and started again, jobs go on
 *   WatchdogSec                                              so do we, or no control lives: the manager ends everything
 *
 * A fresh control has START_MS for its first beat: before that it reads its snapshot. A private dtd that no manager
 * watches never kills its control: somebody may be looking at it with a debugger. */
#include "daemon/supervisor/supervisor.h"

#include "common/base/clock.h"
#include "common/base/log.h"

#include <inttypes.h>
#include <signal.h>

#define HANG_MS 10000
#define START_MS 30000

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
    s->beat_deadline_ms = clock_mono_ms() + START_MS;
}

void sv_service_beat(struct supervisor *s, const struct channel_msg *m)
{
    s->beat_deadline_ms = clock_mono_ms() + s->hang_ms;
    notify_say(&s->notify, "WATCHDOG=1");
    notify_status(&s->notify, m->env, m->env_bytes);
    if (m->state != 1 || m->job != s->reloads || s->ready || s->phase != SV_SERVING)
        return;
    s->ready = true;
    notify_say(&s->notify, "READY=1");
    log_info("ready");
}

/* What was asked of a control that dies is not asked of the next: that one reads the configuration anyway. */
void sv_service_reload(struct supervisor *s)
{
    if (s->phase != SV_SERVING)
        return;
    log_info("reload asked");
    notify_say(&s->notify, "RELOADING=1\nMONOTONIC_USEC=%" PRId64, clock_mono_ns() / 1000);
    s->ready = false;
    s->reload_due = s->channel >= 0;
    s->reloads += s->channel >= 0;
}

void sv_service_stop(struct supervisor *s)
{
    notify_say(&s->notify, "STOPPING=1\nSTATUS=stopping the jobs");
}

void sv_service_tick(struct supervisor *s)
{
    int64_t now = clock_mono_ms();
    if (!s->hang_ms || s->control < 0 || s->phase != SV_SERVING || now < s->beat_deadline_ms)
        return;
    log_error("control hangs, killed pid=%d silent_ms=%" PRId64, s->control, s->hang_ms);
    notify_status(&s->notify, "control hung and is started again", NOTIFY_STATUS_MAX);
    kill(s->control, SIGKILL);
    s->beat_deadline_ms = now + START_MS;
}
