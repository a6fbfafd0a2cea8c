/* See probe.h. */
#include "daemon/control/probe.h"

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "daemon/control/node.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define PROBE_MS 20000

static void over(struct node *n)
{
    n->probe.over = true;
    n->probe.deadline_ms = 0;
    log_info("gpus n=%d model=\"%s\" missing=\"%s\"", n->self.gpus.n, n->self.gpus.model, n->self.gpus.missing);
    if (n->self.gpus.sick[0])
        log_warn("%s", n->self.gpus.sick);
    node_gpus_known(n);
}

static void fail(struct node *n, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static void fail(struct node *n, const char *fmt, ...)
{
    char why[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(why, sizeof(why), fmt, ap);
    va_end(ap);
    log_error("probe failed why=\"%s\"", why);
    gpus_fail(&n->self.gpus, why);
    over(n);
}

/* A deadline that stands from the first word on: one that is refused again and again is late, too. */
static void ask(struct node *n)
{
    struct probe *p = &n->probe;
    struct sup_spawn x = {.job = CHANNEL_JOB_PROBE, .slots = 1, .token = p->token, .device = -1};
    if (getrandom(p->token, sizeof(p->token), 0) != sizeof(p->token) || sup_spawn(&n->sup, &x)) {
        fail(n, "`dt-worker --probe` cannot be asked for");
        return;
    }
    p->asked = true;
    if (!p->deadline_ms)
        p->deadline_ms = clock_mono_ms() + PROBE_MS;
}

void probe_start(struct node *n)
{
    if (strcmp(n->conf.gpus, "auto") != 0) {
        gpus_set(&n->self.gpus, atoi(n->conf.gpus));
        over(n);
    } else {
        ask(n);
    }
}

static void take_words(struct node *n)
{
    char path[PATH_MAX];
    struct buf text = {0};
    struct why why = {""};
    snprintf(path, sizeof(path), "%s/probe.json", n->dir);
    err_t err = file_read(path, GPUS_PROBE_MAX, &text);
    if (err)
        why_set(&why, err, "%s: %s", path, err_text(err));
    else
        err = gpus_read(&n->self.gpus, (const char *)text.data, text.len, &why);
    buf_fini(&text);
    if (err)
        fail(n, "%s; try `dt-worker --probe`", why.text);
    else
        over(n);
}

void probe_child(struct node *n, const struct channel_msg *m)
{
    struct probe *p = &n->probe;
    bool ours = p->asked && memcmp(p->token, m->token, sizeof(p->token)) == 0;
    if (p->over)
        return;
    if (!ours) { /* of the control before us */
        if (m->state == CHANNEL_RUNNING && sup_kill(&n->sup, m->job, m->slot, SIGKILL))
            log_error("an old probe was not killed pid=%d", m->pid);
        else if (m->state != CHANNEL_RUNNING && p->deadline_ms && !p->asked)
            ask(n);
        return;
    }
    if (m->state == CHANNEL_REFUSED) {
        p->asked = false; /* again when the other one has ended, or the deadline has passed */
        if (sup_kill(&n->sup, m->job, m->slot, SIGKILL))
            log_error("an old probe was not killed");
    } else if (m->state == CHANNEL_EXITED && m->exit_signal) {
        fail(n, "`dt-worker --probe` was killed by signal %d; see %s/probe.log", m->exit_signal, n->dir);
    } else if (m->state == CHANNEL_EXITED && m->exit_status) {
        fail(n, "`dt-worker --probe` ended with status %d; see %s/probe.log", m->exit_status, n->dir);
    } else if (m->state == CHANNEL_EXITED) {
        take_words(n);
    }
}

void probe_tick(struct node *n)
{
    struct probe *p = &n->probe;
    if (p->over || !p->deadline_ms || clock_mono_ms() < p->deadline_ms)
        return;
    if (sup_kill(&n->sup, CHANNEL_JOB_PROBE, 0, SIGKILL))
        log_error("the probe was not killed");
    fail(n, "`dt-worker --probe` did not end within %d s: the driver may hang (try nvidia-smi, see dmesg)",
         PROBE_MS / 1000);
}
