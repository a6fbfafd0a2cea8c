/* See probe.h. Invariants: words are read only of the process that shows our token, when it has ended well; a worker on
 * a GPU that has become sick is killed here, whoever leads and whether anybody does, and what its node says of the GPU
 * goes to the node that leads before the worker's end does. */
#include "daemon/control/local/probe.h"

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "daemon/control/leadership.h"
#include "daemon/control/control.h"

#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define HEALTH_MS 30000 /* from the end of one to the next; DTD_HEALTH_MS in the environment wins */
#define HEALTH_FAILED_TIMES 10
#define SLOW_MS 10000 /* what a probe rarely takes where driver and files are in memory: people are told */
#define REFUSED_MS 500
#define HOLD_MS 3000

struct probe_held {
    struct probe_held *next;
    uint64_t needs;   /* it waits until health has been begun so often, and is over */
    int64_t until_ms; /* at the latest */
    struct channel_msg m;
};

static err_t gpus_said(struct node *n, const char *text, size_t len, struct why *why);
static void gpus_unknown(struct node *n, const char *why);
static err_t health_said(struct node *n, const char *text, size_t len, struct why *why);
static void health_unknown(struct node *n, const char *why);

/* The limits end a process that a hanging driver will never let end; nothing but jobs for GPUs waits for it, so they
 * are far above what a cold machine takes. The probe loads dtd-cuda.so and with it cuBLASLt, whose loading alone reads
 * 204 MB of its 540 MB (tens of seconds from a slow network file system), starts the driver where nothing keeps it
 * loaded (some seconds a GPU), and opens every GPU. What asks for health only starts the driver. */
static const struct {
    int64_t limit_ms; /* DTD_PROBE_LIMIT_MS in the environment wins */
    err_t (*said)(struct node *n, const char *text, size_t len, struct why *why);
    void (*unknown)(struct node *n, const char *why); /* it has said nothing, or no words of its kind */
} kinds[CHANNEL_PROBE_SLOTS] = {
    [CHANNEL_SLOT_GPUS] = {180000, gpus_said, gpus_unknown},
    [CHANNEL_SLOT_HEALTH] = {30000, health_said, health_unknown},
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

/* ---- the machine ---- */

static void go_idle(struct node *n, int kind)
{
    struct probe_run *r = &n->probe.run[kind];
    if (under_way(r))
        r->took_ms = clock_mono_ms() - r->began_ms;
    r->asked = false;
    r->deadline_ms = r->due_ms = 0;
}

static void fail(struct node *n, int kind, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

static void fail(struct node *n, int kind, const char *fmt, ...)
{
    char why[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, sizeof(why), fmt, ap);
    va_end(ap);
    go_idle(n, kind);
    kinds[kind].unknown(n, why);
}

/* The deadline stands from the first word on: one that is refused again and again is late, too. */
static void ask(struct node *n, int kind)
{
    struct probe_run *r = &n->probe.run[kind];
    struct sup_spawn x = {
        .job = CHANNEL_JOB_PROBE, .slot = kind, .slots = CHANNEL_PROBE_SLOTS, .token = r->token, .device = -1};
    r->begun += !under_way(r);
    if (!under_way(r)) {
        r->began_ms = clock_mono_ms();
        r->deadline_ms = r->began_ms + limit_ms(kind);
    }
    r->due_ms = 0;
    if (getrandom(r->token, sizeof(r->token), 0) != sizeof(r->token) || sup_spawn(&n->sup, &x))
        fail(n, kind, "`dt-worker %s` cannot be asked for", channel_probe(kind));
    else
        r->asked = true;
}

static void take_words(struct node *n, int kind, const char *option)
{
    char path[PATH_MAX];
    struct buf text = {0};
    struct why why = {""};
    snprintf(path, sizeof(path), "%s/%s.json", n->dir, option + strlen("--"));
    go_idle(n, kind);
    err_t err = file_read(path, GPUS_PROBE_MAX, &text);
    if (err)
        why_set(&why, err, "%s: %s", path, err_text(err));
    else
        err = kinds[kind].said(n, (const char *)text.data, text.len, &why);
    buf_fini(&text);
    int64_t took_ms = n->probe.run[kind].took_ms;
    if (took_ms >= SLOW_MS)
        log_warn("`dt-worker %s` took %.1f s: the driver, or the disk with the libraries, is slow", option,
                 (double)took_ms / 1000);
    if (err)
        fail(n, kind, "%s; try `dt-worker %s`", why.text, option);
}

static void kill_it(struct node *n, int kind)
{
    if (sup_kill(&n->sup, CHANNEL_JOB_PROBE, kind, SIGKILL))
        log_error("`dt-worker %s` was not killed", channel_probe(kind));
}

static void refused(struct node *n, int kind, int error)
{
    if (error != EEXIST) {
        fail(n, kind, "`dt-worker %s` was not started: %s", channel_probe(kind), strerror(error));
        return;
    }
    kill_it(n, kind);
    n->probe.run[kind].asked = false;
    n->probe.run[kind].due_ms = clock_mono_ms() + REFUSED_MS;
}

void probe_child(struct node *n, const struct channel_msg *m)
{
    int kind = m->slot;
    if (!channel_probe(kind))
        return;
    const char *option = channel_probe(kind);
    const struct probe_run *r = &n->probe.run[kind];
    bool ours = r->asked && memcmp(r->token, m->token, sizeof(r->token)) == 0;
    if (!ours && m->state == CHANNEL_RUNNING && !under_way(r)) /* of the control before us */
        kill_it(n, kind);
    if (!ours || m->state == CHANNEL_RUNNING)
        return;
    if (m->state == CHANNEL_REFUSED)
        refused(n, kind, m->error);
    else if (m->exit_signal)
        fail(n, kind, "`dt-worker %s` was killed by signal %d; see %s/probe.log", option, m->exit_signal, n->dir);
    else if (m->exit_status)
        fail(n, kind, "`dt-worker %s` ended with status %d; see %s/probe.log", option, m->exit_status, n->dir);
    else
        take_words(n, kind, option);
}

static void tick_kind(struct node *n, int kind)
{
    struct probe_run *r = &n->probe.run[kind];
    int64_t now = clock_mono_ms();
    if (under_way(r) && now >= r->deadline_ms) {
        kill_it(n, kind);
        fail(n, kind, "`dt-worker %s` did not end within %d s: the driver may hang (try nvidia-smi, see dmesg)",
             channel_probe(kind), (int)(limit_ms(kind) / 1000));
    } else if (r->due_ms && now >= r->due_ms && !n->stopping) {
        ask(n, kind);
    }
}

/* ---- what GPUs there are ---- */

static int64_t health_ms(void)
{
    return from_environment("DTD_HEALTH_MS", HEALTH_MS);
}

/* A new control may find workers on GPUs that are sick by now. */
static void kill_on_sick(struct node *n)
{
    for (const struct child *c = n->children.head; c; c = c->next) {
        const char *sick = child_runs(c) ? gpus_sick(&n->self.gpus, c->device) : "";
        if (!*sick)
            continue;
        log_warn("killed, its GPU is sick job=%" PRIu64 " slot=%d pid=%d gpu=%d why=\"%s\"", c->job, c->slot, c->pid,
                 c->device, sick);
        if (sup_kill(&n->sup, c->job, c->slot, SIGKILL))
            log_error("not killed job=%" PRIu64 " slot=%d", c->job, c->slot);
    }
}

static void gpus_over(struct node *n)
{
    log_info("gpus n=%d model=\"%s\" missing=\"%s\"", n->self.gpus.n, n->self.gpus.model, n->self.gpus.missing);
    if (n->self.gpus.sick[0])
        log_warn("%s", n->self.gpus.sick);
    node_gpus_known(n);
    kill_on_sick(n);
}

static err_t gpus_said(struct node *n, const char *text, size_t len, struct why *why)
{
    err_t err = gpus_read(&n->self.gpus, text, len, why);
    if (err)
        return err;
    if (n->self.gpus.watched)
        n->probe.run[CHANNEL_SLOT_HEALTH].due_ms = clock_mono_ms() + health_ms();
    gpus_over(n);
    return OK;
}

static void gpus_unknown(struct node *n, const char *why)
{
    log_error("probe failed why=\"%s\"", why);
    gpus_fail(&n->self.gpus, why);
    gpus_over(n);
}

int64_t probe_gpus_ms(const struct node *n)
{
    const struct probe_run *r = &n->probe.run[CHANNEL_SLOT_GPUS];
    return under_way(r) ? clock_mono_ms() - r->began_ms : r->took_ms;
}

void probe_start(struct node *n)
{
    n->probe.held_end = &n->probe.held;
    if (strcmp(n->conf.gpus, "auto") == 0) {
        ask(n, CHANNEL_SLOT_GPUS);
    } else {
        gpus_set(&n->self.gpus, atoi(n->conf.gpus));
        gpus_over(n);
    }
}

/* ---- ends that wait for words on health ---- */

static bool is_suspect(const struct channel_msg *m)
{
    return m->slot >= 0 && m->gpu > 0 && m->state == CHANNEL_EXITED && (m->exit_status || m->exit_signal);
}

bool probe_hold(struct node *n, const struct channel_msg *m)
{
    struct probe *p = &n->probe;
    struct probe_run *r = &p->run[CHANNEL_SLOT_HEALTH];
    if (!is_suspect(m) || !n->self.gpus.watched || p->warning[0] || n->stopping || !n->listener)
        return false;
    struct probe_held *h = malloc(sizeof(*h));
    if (!h)
        return false;
    *h = (struct probe_held){.needs = r->begun + 1, .until_ms = clock_mono_ms() + HOLD_MS, .m = *m};
    *p->held_end = h;
    p->held_end = &h->next;
    /* One that is under way may have looked at this GPU already: another one follows. */
    if (!under_way(r))
        ask(n, CHANNEL_SLOT_HEALTH);
    return true;
}

/* The first ones, those that need no more than `begun` times of health. */
static void let_go(struct node *n, uint64_t begun)
{
    struct probe *p = &n->probe;
    for (struct probe_held *h; (h = p->held) && (h->needs <= begun || clock_mono_ms() >= h->until_ms);) {
        p->held = h->next;
        if (!p->held)
            p->held_end = &p->held;
        node_child(n, &h->m);
        free(h);
    }
}

/* ---- whether they are well ---- */

static err_t health_said(struct node *n, const char *text, size_t len, struct why *why)
{
    struct probe_run *r = &n->probe.run[CHANNEL_SLOT_HEALTH];
    uint64_t sick = 0;
    err_t err = gpus_health_read(&n->self.gpus, text, len, &sick, why);
    if (err)
        return err;
    if (n->probe.warning[0])
        log_info("the health of the GPUs is known again");
    n->probe.warning[0] = '\0';
    if (sick) {
        log_warn("%s", n->self.gpus.sick);
        lead_facts(n);
        kill_on_sick(n);
    }
    r->due_ms = clock_mono_ms() + health_ms();
    let_go(n, r->begun);
    if (n->probe.held && !under_way(r) && !n->stopping)
        ask(n, CHANNEL_SLOT_HEALTH);
    return OK;
}

static void health_unknown(struct node *n, const char *why)
{
    if (!n->probe.warning[0])
        log_warn("the health of the GPUs is not known: %s", why);
    snprintf(n->probe.warning, sizeof(n->probe.warning), "the health of the GPUs is not known: %s", why);
    n->probe.run[CHANNEL_SLOT_HEALTH].due_ms = clock_mono_ms() + HEALTH_FAILED_TIMES * health_ms();
    let_go(n, UINT64_MAX);
}

void probe_tick(struct node *n)
{
    for (int kind = 0; kind < CHANNEL_PROBE_SLOTS; kind++)
        tick_kind(n, kind);
    let_go(n, 0);
}
