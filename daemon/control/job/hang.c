/* Hang detection. The leader measures step durations from the METRIC reports. Time without a report counts as a hang
 * when it exceeds run.hang_seconds, ten times the median step and three times the longest step so far, which had an
 * evaluation or a save in it. The leader then asks the nodes for the /proc state of their processes, so that the
 * incident can name the blocked one. That process is killed, and the others leave the epoch as after any failure. */
#include "daemon/control/job/internal.h"

#include "common/base/clock.h"
#include "common/base/log.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A factor of ten separates a hang from a slow step: a busy machine or file system slows a step down by less. */
#define MEDIAN_TIMES 10
/* The longest step so far had an evaluation or a save, and the next step of that kind takes about as long. */
#define LONGEST_TIMES 3
/* Added when there is no earlier duration to compare with: the first step, the first one with an evaluation or a save,
 * and the time after the last step. */
#define UNKNOWN_MS 300000
#define LOOK_MS 1000 /* the nodes need one round trip to read /proc and reply */

/* ---- step durations ---- */

static int compare_ms(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static int64_t median_ms(const struct job_hang *h)
{
    int64_t sorted[JOB_HANG_STEPS];
    int n = h->n < JOB_HANG_STEPS ? h->n : JOB_HANG_STEPS;
    if (n == 0)
        return 0;
    memcpy(sorted, h->took_ms, (size_t)n * sizeof(sorted[0]));
    qsort(sorted, (size_t)n, sizeof(sorted[0]), compare_ms);
    return sorted[n / 2];
}

void job_hang_begin(struct job *j)
{
    j->hang = (struct job_hang){.since_ms = clock_mono_ms()};
}

/* Does `step`, the next one to be reported, contain an evaluation or follow a save? */
static bool is_slow(const struct job *j, int64_t step)
{
    int64_t eval = j->spec.train.eval_every, save = j->spec.checkpoint.every;
    return (eval > 0 && step % eval == 0) || (save > 0 && (step - 1) % save == 0);
}

void job_hang_step(struct job *j)
{
    struct job_hang *h = &j->hang;
    int64_t now = clock_mono_ms(), took = now - h->since_ms;
    h->slow = h->slow || (h->stepped && is_slow(j, j->metrics.last.step));
    if (h->stepped) { /* the first step has no earlier report to measure from */
        h->took_ms[h->n % JOB_HANG_STEPS] = took;
        h->n++;
        h->longest_ms = took > h->longest_ms ? took : h->longest_ms;
    }
    h->stepped = true;
    h->since_ms = now;
    h->asked_ms = 0;
}

/* The test split is read once, so there is no earlier duration to compare with. */
static bool is_test(const struct job *j, int64_t step)
{
    return j->spec.data.n_test > 0 && step == j->spec.train.steps;
}

/* Longest time without a report, in ms; 0: no limit. */
static int64_t limit_ms(const struct job *j)
{
    const struct job_hang *h = &j->hang;
    int64_t limit = j->spec.run.hang_seconds * 1000;
    bool last = j->metrics.has_last && j->metrics.last.epoch == j->epoch && j->metrics.last.step >= j->spec.train.steps;
    if (!limit)
        return 0;
    if (MEDIAN_TIMES * median_ms(h) > limit)
        limit = MEDIAN_TIMES * median_ms(h);
    if (LONGEST_TIMES * h->longest_ms > limit)
        limit = LONGEST_TIMES * h->longest_ms;
    bool unknown = h->n == 0 || last || is_test(j, job_step(j) + 1) || (!h->slow && is_slow(j, job_step(j) + 1));
    return unknown ? limit + UNKNOWN_MS : limit;
}

/* ---- detection ---- */

/* Stopped, or in an uninterruptible system call; the other workers wait for it. */
static bool is_blocked(const struct job_worker *w)
{
    return w->p.proc == 'T' || w->p.proc == 't' || w->p.proc == 'D';
}

static const char *proc_state_text(char proc)
{
    switch (proc) {
    case 'T':
    case 't':
        return "is stopped (T)";
    case 'D':
        return "waits in the kernel (D)";
    case 'R':
        return "runs (R)";
    case 'S':
        return "sleeps (S)";
    default:
        return "is in an unknown state";
    }
}

static void describe_ranks(const struct job *j, char *ret, size_t size)
{
    size_t at = 0;
    bool any = false;
    for (int k = 0; k < j->n_workers; k++)
        any = any || is_blocked(&j->workers[k]);
    for (int k = 0; k < j->n_workers && at < size; k++) {
        const struct job_process *p = &j->workers[k].p;
        if (any && !is_blocked(&j->workers[k]))
            continue;
        at += (size_t)snprintf(ret + at, size - at, "%s rank %d (pid %d, %s) %s", at ? "," : "", k, p->pid,
                               p->node->name, proc_state_text(p->proc));
    }
}

static void report_hang(struct job *j, int64_t silent_ms)
{
    char ranks[300];
    describe_ranks(j, ranks, sizeof(ranks));
    for (int k = 0; k < j->n_workers; k++)
        if (is_blocked(&j->workers[k]))
            job_process_kill(j, &j->workers[k].p, SIGKILL);
    job_epoch_lost(j, (double)silent_ms, true,
                   "no step for %.1f s after step %" PRId64 " (median step %.2f s; run.hang_seconds: %" PRId64 "):%s",
                   (double)silent_ms / 1e3, job_step(j), (double)median_ms(&j->hang) / 1e3, j->spec.run.hang_seconds,
                   ranks);
}

static void request_process_states(struct job *j)
{
    for (int k = 0; k < j->n_workers; k++)
        j->workers[k].p.proc = '\0';
    for (int i = 0; i < j->n_ios; i++)
        if (node_view_look(j->ios[i].p.node, j->jobs))
            log_warn("process states not requested node=%s", j->ios[i].p.node->name);
}

void job_hang_tick(struct job *j)
{
    struct job_hang *h = &j->hang;
    int64_t now = clock_mono_ms(), limit = limit_ms(j);
    bool has_reporter = j->workers[0].p.attend || j->workers[0].done;
    if (!limit || !has_reporter) { /* rank 0 reports the steps; without it, steps may be made and not reported */
        h->since_ms = limit ? now : h->since_ms;
        return;
    }
    if (now - h->since_ms < limit)
        return;
    if (!h->asked_ms) {
        h->asked_ms = now;
        request_process_states(j);
    } else if (now - h->asked_ms >= LOOK_MS) {
        report_hang(j, now - h->since_ms);
    }
}
