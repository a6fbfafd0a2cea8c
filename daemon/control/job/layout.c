/* The layout of a job with parallel.auto: chosen for each placement of its workers (common/plan/choose), and recorded
 * with the epoch, so that a new leader sends the same one.
 *
 * A search may take a second, so it runs on a thread. Until its answer is there, the job has no slots and stays in its
 * phase; the answer is kept, because the job asks again at every tick, and when it grows or shrinks. */
#include "daemon/control/job/internal.h"

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/conf/machine.h"
#include "common/plan/choose/choose.h"
#include "daemon/control/local/pool.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Answers that a job keeps: numbers of workers and nodes between which a job changes. More of them are asked again. */
#define MAX_ANSWERS 64

struct layout_answer {
    struct plan_place place;
    bool fits;
    struct plan_choice choice; /* if it fits */
    struct why why;            /* else */
};

struct layout_task {
    struct pool_task task; /* first */
    struct jobs *jobs;
    uint64_t job;
    char *yaml;
    err_t err;
    struct layout_answer answer;
};

/* ---- the search ---- */

static err_t choose(struct layout_task *t, const struct job_spec *job)
{
    struct layout_answer *a = &t->answer;
    struct machine m = {0};
    const char *text = job->parallel.machine;
    err_t err = machine_parse("parallel.machine", text, strlen(text), NULL, 0, &m, &a->why);
    if (err)
        return err;
    err = plan_choose(job, &m, &a->place, &a->choice, &a->why);
    machine_fini(&m);
    return err;
}

static void task_run(struct pool_task *task)
{
    struct layout_task *t = (struct layout_task *)task;
    struct job_spec job = {0};
    t->err = job_parse("job", t->yaml, strlen(t->yaml), NULL, 0, &job, &t->answer.why);
    if (t->err)
        return;
    t->err = choose(t, &job);
    t->answer.fits = !t->err;
    job_fini(&job);
}

static void answer_keep(struct job *j, const struct layout_task *t)
{
    struct job_layout *l = &j->layout;
    log_info("layout job=%" PRIu64 " workers=%" PRId64 " nodes=%" PRId64 " why=\"%s\"", j->id, t->answer.place.workers,
             t->answer.place.nodes, t->err ? t->answer.why.text : t->answer.choice.why);
    if (t->err == ERR_NOMEM) /* the next tick asks again */
        return;
    if (l->n == MAX_ANSWERS)
        memmove(l->answers, l->answers + 1, (size_t)--l->n * sizeof(*l->answers));
    struct layout_answer *grown = realloc(l->answers, ((size_t)l->n + 1) * sizeof(*grown));
    if (!grown)
        return;
    l->answers = grown;
    l->answers[l->n++] = t->answer;
}

static void task_free(struct layout_task *t)
{
    free(t->yaml);
    free(t);
}

/* The job may have gone meanwhile, or be another one of the same id, after this node has led once more. */
static void task_done(struct pool_task *task)
{
    struct layout_task *t = (struct layout_task *)task;
    struct jobs *jobs = t->jobs;
    struct job *j = jobs_find(jobs, t->job);
    const bool ours = j && j->layout.task == t;
    if (ours) {
        j->layout.task = NULL;
        answer_keep(j, t);
    }
    task_free(t);
    if (ours)
        jobs_tick(jobs);
}

static void task_start(struct job *j, const struct plan_place *place)
{
    struct layout_task *t = calloc(1, sizeof(*t));
    if (!t)
        return;
    *t = (struct layout_task){
        .task = {.run = task_run, .done = task_done}, .jobs = j->jobs, .job = j->id, .answer = {.place = *place}};
    t->yaml = strdup(j->yaml);
    if (!t->yaml || (j->jobs->parses && pool_add(j->jobs->parses, &t->task, j->uid))) {
        task_free(t); /* the next tick asks again */
    } else if (j->jobs->parses) {
        j->layout.task = t;
    } else { /* the simulation has no threads */
        task_run(&t->task);
        answer_keep(j, t);
        task_free(t);
    }
}

static const struct layout_answer *answer_find(const struct job *j, const struct plan_place *p)
{
    for (int i = 0; i < j->layout.n; i++) {
        const struct plan_place *a = &j->layout.answers[i].place;
        if (a->workers == p->workers && a->nodes == p->nodes && a->per_node == p->per_node)
            return &j->layout.answers[i];
    }
    return NULL;
}

/* NULL: it is not known yet. One search at a time runs for a job; then the request of the last tick counts. */
static const struct layout_answer *answer_of(struct job *j, const struct plan_place *p)
{
    const struct layout_answer *a = answer_find(j, p);
    if (!a && !j->layout.task) {
        task_start(j, p);
        a = answer_find(j, p);
    }
    return a;
}

/* ---- places ---- */

static void place_add(struct plan_place *p, bool same, int64_t *here)
{
    *here = same ? *here + 1 : 1;
    p->nodes += !same;
    p->per_node = *here > p->per_node ? *here : p->per_node;
    p->workers++;
}

static struct plan_place place_of_slots(const struct job *j)
{
    struct plan_place p = {0};
    int64_t here = 0;
    for (int k = 0; k < j->n_workers; k++)
        place_add(&p, k && j->workers[k].p.node == j->workers[k - 1].p.node, &here);
    return p;
}

enum job_layout_known job_layout_look(struct job *j, const int *node, int workers)
{
    struct plan_place p = {0};
    int64_t here = 0;
    for (int k = 0; k < workers; k++)
        place_add(&p, k && node[k] == node[k - 1], &here);
    const struct layout_answer *a = answer_of(j, &p);
    j->layout.pending = !a;
    snprintf(j->layout.none, sizeof(j->layout.none), "%.*s", (int)sizeof(j->layout.none) - 1,
             a && !a->fits ? a->why.text : "");
    return !a ? LAYOUT_PENDING : a->fits ? LAYOUT_FITS : LAYOUT_NONE;
}

/* ---- the layout of the job ---- */

static void layout_clear(struct job_layout *l)
{
    free(l->keys);
    free(l->why);
    free(l->yaml);
    free(l->shown);
    l->keys = l->why = l->yaml = l->shown = NULL;
}

static err_t print(const struct job_spec *job, char **ret)
{
    struct buf text = {0};
    err_t err = job_print(job, &text);
    err = err ? err : buf_append(&text, "", 1);
    if (err)
        buf_fini(&text);
    else
        *ret = (char *)text.data;
    return err;
}

/* The job as it was submitted, with the layout of `with`. */
static err_t print_shown(const struct job *j, const struct job_spec *with, char **ret)
{
    struct job_spec shown = j->spec; /* borrows all strings */
    plan_choice_copy(with, &shown);
    shown.parallel.workers = j->spec.parallel.workers;
    return print(&shown, ret);
}

static err_t layout_set(struct job *j, const char *keys, const char *why)
{
    struct job_layout *l = &j->layout;
    struct job_spec with = {0};
    struct why reason = {0};
    layout_clear(l);
    err_t err = plan_choice_apply(j->yaml, keys, j->n_workers, &with, &reason);
    if (err)
        log_error("layout not applied job=%" PRIu64 " layout=\"%s\" why=%s", j->id, keys, reason.text);
    l->keys = err ? NULL : strdup(keys);
    l->why = err ? NULL : strdup(why);
    err = err ? err : l->keys && l->why ? OK : ERR_NOMEM;
    err = err ? err : print(&with, &l->yaml);
    err = err ? err : print_shown(j, &with, &l->shown);
    if (err)
        layout_clear(l);
    job_fini(&with);
    return err;
}

err_t job_layout_take(struct job *j)
{
    if (!j->spec.parallel.automatic)
        return OK;
    const struct plan_place p = place_of_slots(j);
    const struct layout_answer *a = answer_find(j, &p);
    return a && a->fits ? layout_set(j, a->choice.layout, a->choice.why) : ERR_NOTFOUND;
}

bool job_layout_ready(struct job *j)
{
    if (!j->spec.parallel.automatic || j->layout.yaml)
        return true;
    const struct plan_place p = place_of_slots(j);
    const struct layout_answer *a = answer_of(j, &p);
    if (a && !a->fits)
        job_epoch_fatal(j, "parallel.auto: %s", a->why.text);
    else if (a && layout_set(j, a->choice.layout, a->choice.why))
        job_epoch_fatal(j, "parallel.auto: the layout of the planner cannot be used; see the log of dtd-control");
    return j->layout.yaml != NULL;
}

err_t job_layout_adopt(struct job *j, const struct state_epoch *e)
{
    if (!j->spec.parallel.automatic || !e->layout)
        return OK;
    return layout_set(j, e->layout, e->layout_why ? e->layout_why : "");
}

void job_layout_fini(struct job *j)
{
    layout_clear(&j->layout);
    free(j->layout.answers);
}
