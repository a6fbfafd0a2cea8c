/* Invariants: An output file is read only after the process with our token has exited with status 0. A worker on a GPU
 * that has become sick is killed by its own node, whether the node leads, follows or has no leader. The report about
 * the GPU is sent to the leader before the report about the worker's exit. */
#include "daemon/control/local/probe.h"

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "daemon/control/local/local.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

/* From the end of a health check to the next one. Each check is a process that loads the driver's library, so checks
 * should be rare; a worker that fails triggers one at once. DTD_HEALTH_MS in the environment replaces the value. */
#define HEALTH_MS 30000
#define HEALTH_FAILED_TIMES 10 /* after a failed check the pause is so many times longer: the driver may hang */
#define SLOW_MS 10000  /* a probe rarely takes so long if driver and libraries are in memory: a warning follows */
#define REFUSED_MS 500 /* from a refusal to the next request: time for the killed process to exit */
/* The longest time that the exit of a worker waits for a health check. The job's recovery waits as long. */
#define HOLD_MS 3000

struct probe_held {
    struct probe_held *next;
    uint64_t needs;   /* it is released when the health check with this number (probe_run.begun) has ended .. */
    int64_t until_ms; /* .. and at this time at the latest */
    struct channel_msg m;
};

static err_t gpus_output(struct local *l, const char *text, size_t len, struct why *why);
static void gpus_failed(struct local *l, const char *why);
static err_t health_output(struct local *l, const char *text, size_t len, struct why *why);
static void health_failed(struct local *l, const char *why);

/* The limits end a process that waits for a hanging driver. Only jobs for GPUs wait for the probe, so the limits are
 * far above what a cold machine needs. The probe loads dtd-cuda.so and with it cuBLASLt; loading reads 204 MB of its
 * 540 MB (tens of seconds from a slow network file system). It also starts the driver if that is not loaded (some
 * seconds per GPU), and opens every GPU. A health check only starts the driver. */
static const struct {
    int64_t limit_ms; /* DTD_PROBE_LIMIT_MS in the environment replaces it */
    err_t (*take_output)(struct local *l, const char *text, size_t len, struct why *why);
    void (*take_failure)(struct local *l, const char *why); /* there is no output, or it is invalid */
} kinds[CHANNEL_PROBE_SLOTS] = {
    [CHANNEL_SLOT_GPUS] = {180000, gpus_output, gpus_failed},
    [CHANNEL_SLOT_HEALTH] = {30000, health_output, health_failed},
};

static int64_t from_environment(const char *name, int64_t otherwise)
{
    const char *text = getenv(name);
    int64_t ms = text ? strtoll(text, NULL, 10) : 0;
    return ms > 0 ? ms : otherwise;
}

static int64_t limit_ms(int kind)
{
    return from_environment("DTD_PROBE_LIMIT_MS", kinds[kind].limit_ms);
}

static bool under_way(const struct probe_run *r)
{
    return r->deadline_ms != 0;
}

/* ---- the state machine ---- */

static void go_idle(struct local *l, int kind)
{
    struct probe_run *r = &l->probe.run[kind];
    if (under_way(r))
        r->took_ms = clock_mono_ms() - r->began_ms;
    r->asked = false;
    r->deadline_ms = r->due_ms = 0;
}

static void fail_run(struct local *l, int kind, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

static void fail_run(struct local *l, int kind, const char *fmt, ...)
{
    char why[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, sizeof(why), fmt, ap);
    va_end(ap);
    go_idle(l, kind);
    kinds[kind].take_failure(l, why);
}

/* The deadline counts from the first request, so that repeated refusals also end at it. */
static void request_run(struct local *l, int kind)
{
    struct probe_run *r = &l->probe.run[kind];
    struct supervisor_link_spawn x = {
        .job = CHANNEL_JOB_PROBE, .slot = kind, .slots = CHANNEL_PROBE_SLOTS, .token = r->token, .device = -1};
    r->begun += !under_way(r);
    if (!under_way(r)) {
        r->began_ms = clock_mono_ms();
        r->deadline_ms = r->began_ms + limit_ms(kind);
    }
    r->due_ms = 0;
    if (getrandom(r->token, sizeof(r->token), 0) != sizeof(r->token) || supervisor_link_spawn(&l->supervisor, &x))
        fail_run(l, kind, "`dt-worker %s` cannot be requested from the supervisor", channel_probe(kind));
    else
        r->asked = true;
}

static void read_output(struct local *l, int kind, const char *option)
{
    char path[PATH_MAX];
    struct buf text = {0};
    struct why why = {""};
    snprintf(path, sizeof(path), "%s/%s.json", l->dir, option + strlen("--"));
    go_idle(l, kind);
    err_t err = file_read(path, GPUS_PROBE_MAX, &text);
    if (err)
        why_set(&why, err, "%s: %s", path, err_text(err));
    else
        err = kinds[kind].take_output(l, (const char *)text.data, text.len, &why);
    buf_fini(&text);
    int64_t took_ms = l->probe.run[kind].took_ms;
    if (took_ms >= SLOW_MS)
        log_warn("`dt-worker %s` took %.1f s: the driver, or the disk with the libraries, is slow", option,
                 (double)took_ms / 1000);
    if (err)
        fail_run(l, kind, "%s; try `dt-worker %s`", why.text, option);
}

static void kill_run(struct local *l, int kind)
{
    if (supervisor_link_kill(&l->supervisor, CHANNEL_JOB_PROBE, kind, SIGKILL))
        log_error("`dt-worker %s` was not killed", channel_probe(kind));
}

static void run_refused(struct local *l, int kind, int error)
{
    if (error != EEXIST) {
        fail_run(l, kind, "`dt-worker %s` was not started: %s", channel_probe(kind), strerror(error));
        return;
    }
    kill_run(l, kind);
    l->probe.run[kind].asked = false;
    l->probe.run[kind].due_ms = clock_mono_ms() + REFUSED_MS;
}

void probe_child(struct local *l, const struct channel_msg *m)
{
    int kind = m->slot;
    if (!channel_probe(kind))
        return;
    const char *option = channel_probe(kind);
    const struct probe_run *r = &l->probe.run[kind];
    bool ours = r->asked && memcmp(r->token, m->token, sizeof(r->token)) == 0;
    if (!ours && m->state == CHANNEL_RUNNING && !under_way(r)) /* an earlier control started it */
        kill_run(l, kind);
    if (!ours || m->state == CHANNEL_RUNNING)
        return;
    if (m->state == CHANNEL_REFUSED)
        run_refused(l, kind, m->error);
    else if (m->exit_signal)
        fail_run(l, kind, "`dt-worker %s` was killed by signal %d; see %s/probe.log", option, m->exit_signal, l->dir);
    else if (m->exit_status)
        fail_run(l, kind, "`dt-worker %s` ended with status %d; see %s/probe.log", option, m->exit_status, l->dir);
    else
        read_output(l, kind, option);
}

static void tick_kind(struct local *l, int kind)
{
    struct probe_run *r = &l->probe.run[kind];
    int64_t now = clock_mono_ms();
    if (under_way(r) && now >= r->deadline_ms) {
        kill_run(l, kind);
        fail_run(l, kind, "`dt-worker %s` did not end within %d s: the driver may hang (try nvidia-smi, see dmesg)",
                 channel_probe(kind), (int)(limit_ms(kind) / 1000));
    } else if (r->due_ms && now >= r->due_ms && !l->probe.stopped) {
        request_run(l, kind);
    }
}

/* ---- the probe: which GPUs this node has ---- */

static int64_t health_ms(void)
{
    return from_environment("DTD_HEALTH_MS", HEALTH_MS);
}

/* Also called after the probe: a new control may adopt workers whose GPU has become sick meanwhile. */
static void kill_on_sick(struct local *l)
{
    for (const struct child *c = l->children.head; c; c = c->next) {
        const char *sick = child_runs(c) ? gpus_sick(&l->gpus, c->device) : "";
        if (!*sick)
            continue;
        log_warn("killed, its GPU is sick job=%" PRIu64 " slot=%d pid=%d gpu=%d why=\"%s\"", c->job, c->slot, c->pid,
                 c->device, sick);
        if (supervisor_link_kill(&l->supervisor, c->job, c->slot, SIGKILL))
            log_error("not killed job=%" PRIu64 " slot=%d", c->job, c->slot);
    }
}

static void gpus_done(struct local *l)
{
    log_info("gpus n=%d model=\"%s\" missing=\"%s\"", l->gpus.n, l->gpus.model, l->gpus.missing);
    if (l->gpus.sick[0])
        log_warn("%s", l->gpus.sick);
    l->events->gpus_known(l->owner);
    kill_on_sick(l);
}

static err_t gpus_output(struct local *l, const char *text, size_t len, struct why *why)
{
    err_t err = gpus_read(&l->gpus, text, len, why);
    if (err)
        return err;
    if (l->gpus.watched)
        l->probe.run[CHANNEL_SLOT_HEALTH].due_ms = clock_mono_ms() + health_ms();
    gpus_done(l);
    return OK;
}

static void gpus_failed(struct local *l, const char *why)
{
    log_error("probe failed why=\"%s\"", why);
    gpus_fail(&l->gpus, why);
    gpus_done(l);
}

int64_t probe_gpus_ms(const struct local *l)
{
    const struct probe_run *r = &l->probe.run[CHANNEL_SLOT_GPUS];
    return under_way(r) ? clock_mono_ms() - r->began_ms : r->took_ms;
}

void local_init(struct local *l)
{
    local_processes_init(&l->children, l->dir);
    health_init(&l->health);
    load_init(&l->load);
    l->probe.held_end = &l->probe.held;
}

void probe_start(struct local *l)
{
    if (strcmp(l->conf->gpus, "auto") == 0) {
        request_run(l, CHANNEL_SLOT_GPUS);
    } else {
        gpus_set(&l->gpus, atoi(l->conf->gpus));
        gpus_done(l);
    }
}

/* ---- exits that wait for a health check ---- */

static bool is_suspect(const struct channel_msg *m)
{
    return m->slot >= 0 && m->gpu > 0 && m->state == CHANNEL_EXITED && (m->exit_status || m->exit_signal);
}

bool probe_delay_exit(struct local *l, const struct channel_msg *m)
{
    struct probe *p = &l->probe;
    struct probe_run *r = &p->run[CHANNEL_SLOT_HEALTH];
    if (!is_suspect(m) || !l->gpus.watched || p->warning[0] || l->probe.stopped)
        return false;
    struct probe_held *h = malloc(sizeof(*h));
    if (!h)
        return false;
    *h = (struct probe_held){.needs = r->begun + 1, .until_ms = clock_mono_ms() + HOLD_MS, .m = *m};
    *p->held_end = h;
    p->held_end = &h->next;
    /* A check that is under way may have read this GPU before it failed; then health_output starts another one. */
    if (!under_way(r))
        request_run(l, CHANNEL_SLOT_HEALTH);
    return true;
}

/* Releases the exits at the front of the list that wait for no later health check than number `begun`, or whose time
 * is up. */
static void release_held(struct local *l, uint64_t begun)
{
    struct probe *p = &l->probe;
    for (struct probe_held *h; (h = p->held) && (h->needs <= begun || clock_mono_ms() >= h->until_ms);) {
        p->held = h->next;
        if (!p->held)
            p->held_end = &p->held;
        l->events->process(l->owner, &h->m);
        free(h);
    }
}

/* ---- health checks ---- */

static err_t health_output(struct local *l, const char *text, size_t len, struct why *why)
{
    struct probe_run *r = &l->probe.run[CHANNEL_SLOT_HEALTH];
    uint64_t sick = 0;
    err_t err = gpus_health_read(&l->gpus, text, len, &sick, why);
    if (err)
        return err;
    if (l->probe.warning[0])
        log_info("the health check of the GPUs works again");
    l->probe.warning[0] = '\0';
    if (sick) {
        log_warn("%s", l->gpus.sick);
        l->events->facts_changed(l->owner);
        kill_on_sick(l);
    }
    r->due_ms = clock_mono_ms() + health_ms();
    release_held(l, r->begun);
    if (l->probe.held && !under_way(r) && !l->probe.stopped)
        request_run(l, CHANNEL_SLOT_HEALTH);
    return OK;
}

static void health_failed(struct local *l, const char *why)
{
    if (!l->probe.warning[0])
        log_warn("the health of the GPUs is not known: %s", why);
    snprintf(l->probe.warning, sizeof(l->probe.warning), "the health of the GPUs is not known: %s", why);
    l->probe.run[CHANNEL_SLOT_HEALTH].due_ms = clock_mono_ms() + HEALTH_FAILED_TIMES * health_ms();
    release_held(l, UINT64_MAX);
}

void probe_stop(struct local *l)
{
    l->probe.stopped = true;
}

void probe_tick(struct local *l)
{
    for (int kind = 0; kind < CHANNEL_PROBE_SLOTS; kind++)
        tick_kind(l, kind);
    release_held(l, 0);
}
