/* The channel to control. There is no queue of messages: a `due` mark on a job or child means that its message must be
 * sent. The message is built from the current state when the socket accepts it, and no message is lost when control
 * exits. */
#include "daemon/supervisor/supervisor.h"

#include "common/base/clock.h"
#include "common/base/log.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static bool msg_send(struct supervisor *s, const struct channel_msg *m)
{
    return s->channel >= 0 && send(s->channel, m, channel_msg_bytes(m), MSG_NOSIGNAL | MSG_DONTWAIT) >= 0;
}

static bool child_send(struct supervisor *s, const struct sv_child *c)
{
    const struct sv_job *j = sv_job_find(s, c->job);
    struct channel_msg m = {.kind = CHANNEL_CHILD,
                            .job = c->job,
                            .slot = c->slot,
                            .pid = c->pid,
                            .state = (int32_t)c->state,
                            .exit_status = c->exit_status,
                            .exit_signal = c->exit_signal,
                            .error = c->error,
                            .gpu = c->gpu,
                            .epoch = c->epoch,
                            .log_bytes = c->log_bytes,
                            .uid = j ? j->owner.uid : 0,
                            .when_ns = c->when_ns,
                            .limits = j ? j->limits : (struct channel_limits){0},
                            .oom = (int32_t)c->oom};
    memcpy(m.token, c->token, sizeof(m.token));
    memcpy(m.cpus, c->cpus, sizeof(m.cpus));
    return msg_send(s, &m);
}

static bool kind_send(struct supervisor *s, enum channel_kind kind, uint64_t job, int slots)
{
    const struct channel_msg m = {.kind = kind, .job = job, .slots = slots};
    return msg_send(s, &m);
}

/* LISTED comes after all jobs and children, because it ends the list. */
bool sv_channel_flush(struct supervisor *s)
{
    for (struct sv_job *j = s->jobs; j < s->jobs + SV_MAX_JOBS; j++)
        if (j->id && j->due && (j->due = !kind_send(s, CHANNEL_JOB, j->id, j->slots)))
            return false;
    SV_EACH_CHILD (s, c)
        if (c->job && c->due && (c->due = !child_send(s, c)))
            return false;
    s->listed_due = s->listed_due && !kind_send(s, CHANNEL_LISTED, 0, 0);
    s->shutdown_due = s->shutdown_due && !kind_send(s, CHANNEL_SHUTDOWN, 0, 0);
    s->reload_due = s->reload_due && !kind_send(s, CHANNEL_RELOAD, s->reloads, 0);
    return !s->listed_due && !s->shutdown_due && !s->reload_due;
}

void sv_channel_close(struct supervisor *s)
{
    if (s->channel >= 0)
        close(s->channel);
    s->channel = -1;
    s->listed_due = false;
    for (int i = 0; i < SV_MAX_JOBS; i++)
        s->jobs[i].due = false;
    SV_EACH_CHILD (s, c)
        c->due = false;
}

static void on_kill(struct supervisor *s, const struct channel_msg *m)
{
    const struct sv_child *c = sv_child_find(s, m->job, m->slot);
    if (!c || c->is_reaped) /* the rest of it has got SIGKILL */
        return;
    log_info("signalled job=%" PRIu64 " slot=%d pid=%d signal=%d", c->job, c->slot, c->pid, m->signal);
    kill(-c->pid, m->signal);
}

static void on_ack(struct supervisor *s, const struct channel_msg *m)
{
    SV_EACH_CHILD (s, c)
        if (c->job == m->job && c->slot == m->slot && c->state != CHANNEL_RUNNING &&
            memcmp(c->token, m->token, sizeof(c->token)) == 0)
            *c = (struct sv_child){0};
}

static void on_list(struct supervisor *s, const struct channel_msg *m)
{
    for (int i = 0; i < SV_MAX_JOBS; i++)
        s->jobs[i].due = s->jobs[i].id != 0;
    SV_EACH_CHILD (s, c)
        c->due = c->job != 0;
    s->listed_due = true;
}

static void on_end(struct supervisor *s, const struct channel_msg *m)
{
    if (s->phase > SV_STOPPING)
        return;
    log_info("ending, control asked");
    sv_service_stop(s);
    s->phase = SV_STOPPING;
    s->deadline_ms = clock_mono_ms();
}

static void (*const handlers[])(struct supervisor *s, const struct channel_msg *m) = {
    [CHANNEL_SPAWN] = sv_child_spawn,   [CHANNEL_KILL] = on_kill,   [CHANNEL_RELEASE] = sv_job_release,
    [CHANNEL_LIST] = on_list,           [CHANNEL_ACK] = on_ack,     [CHANNEL_END] = on_end,
    [CHANNEL_HEARTBEAT] = sv_heartbeat, [CHANNEL_CUT] = sv_log_cut,
};

void sv_channel_read(struct supervisor *s)
{
    while (s->channel >= 0) {
        struct channel_msg m = {0};
        ssize_t n = recv(s->channel, &m, sizeof(m), MSG_DONTWAIT | MSG_TRUNC);
        if (n < 0 && (errno == EAGAIN || errno == EINTR))
            return;
        if (n <= 0) { /* control closed the channel but still runs, and is useless: its exit starts the next one */
            sv_channel_close(s);
            if (s->control > 0)
                kill(s->control, SIGKILL);
            return;
        }
        bool known = channel_msg_valid(&m, (size_t)n) && m.kind < sizeof(handlers) / sizeof(handlers[0]);
        if (known && handlers[m.kind])
            handlers[m.kind](s, &m);
        else
            log_error("malformed message ignored bytes=%zd kind=%u", n, m.kind);
    }
}
