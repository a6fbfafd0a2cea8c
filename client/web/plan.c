/* The plan of a job and its pictures: a table, the timeline of a step, the page of `dtctl explain`, and the forecast of
 * a step beside its measurement.
 *
 * A child process computes each, because a plan takes up to a second and depends on what a user wrote. The child is a
 * copy of this process: it has the same limits on files and calls (confine), closes all sockets first, and has limits
 * of its own for time and memory. It sends one byte, the error code, and then the answer or the sentence of the error.
 * The loop collects them, and kills the child that takes too long. */
#include "client/web/web.h"

#include "client/convert.h"
#include "client/explain/explain.h"
#include "client/plan_report.h"
#include "client/spec.h"
#include "client/step_parts.h"
#include "client/timeline.h"

#include "common/base/log.h"
#include "proto/client.pb-c.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#define PLANS_MAX 2             /* children at once: they leave cores to the jobs of this node */
#define PLAN_MS 20000           /* a plan of the largest size takes about a second; the node may be busy */
#define PLAN_CPU_S 10           /* the same without the waiting */
#define PLAN_MEMORY (2LL << 30) /* address space; a plan of the largest size needs about a tenth */
#define PLAN_BYTES (32 << 20)   /* of an answer; pages of explain have at most about 10 MB */

/* ---- in the child ---- */

/* What is known beside the job's file. */
struct plan_input {
    const char *layout;               /* a ready-made one instead of the job's file; NULL: none */
    int workers;                      /* that the job has instead of those of its file; 0: no other number */
    const struct usage_sample *usage; /* NULL: none */
};

/* Prints the answer for a job. */
typedef err_t (*plan_maker)(const struct job_spec *job, const char *about, const struct plan_input *in, FILE *out,
                            struct why *why);

static err_t make_table(const struct job_spec *job, const char *about, const struct plan_input *in, FILE *out,
                        struct why *why)
{
    /* Left out: what the data and this node would add, which were not read. */
    static const char *const unknown[] = {"train_tokens", "train_samples", "valid_tokens", "valid_samples",
                                          "test_tokens",  "test_samples",  "sources",      "node_bytes"};
    struct spec_facts facts = {0};
    err_t err = spec_plan_model(job, &facts, why);
    if (err)
        return err;
    facts.vocab = job->model.vocab;
    json_t *plan = plan_report_json(job, &facts);
    for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++)
        json_object_del(plan, unknown[i]);
    if (!plan || json_dumpf(plan, out, JSON_COMPACT))
        err = why_set(why, ERR_NOMEM, "out of memory for the plan of %d workers", facts.workers);
    json_decref(plan);
    spec_facts_fini(&facts);
    return err;
}

static err_t make_timeline(const struct job_spec *job, const char *about, const struct plan_input *in, FILE *out,
                           struct why *why)
{
    struct spec_facts facts = {0};
    char title[256];
    err_t err = spec_plan_model(job, &facts, why);
    if (!err && !facts.forecast.n)
        err = why_set(why, ERR_LIMIT,
                      "the plan is too large for a forecast of every rank: lower train.global_batch or model.layers");
    if (!err) {
        const struct forecast *f = &facts.forecast;
        snprintf(title, sizeof(title), "%s: forecast of a step, %.4g s, bubble %.1f %%, exposed communication %.1f %%",
                 job->name, f->seconds, 100 * f->bubble, 100 * f->exposed);
        timeline_print(out, &(struct timeline_step){f, title}, &(struct timeline_step){NULL, ""});
    }
    spec_facts_fini(&facts);
    return err;
}

static err_t make_explain(const struct job_spec *job, const char *about, const struct plan_input *in, FILE *out,
                          struct why *why)
{
    struct explain_job e = {0};
    err_t err = explain_job_compile(job, &e, why);
    err = err ? err : explain_job_animate(job, NULL, &e, why);
    err = err ? err : explain_page_print(&e.animation, job->name, about, true, out, why);
    explain_job_fini(&e);
    return err;
}

/* null: the job has none, since an older version submitted it. */
static err_t make_forecast(const struct job_spec *job, const char *about, const struct plan_input *in, FILE *out,
                           struct why *why)
{
    struct step_compare c;
    if (!step_has_forecast(&job->forecast))
        return fputs("null", out) < 0 ? ERR_NOMEM : OK;
    step_compare(&job->forecast, in->usage, &c);
    json_t *value = step_json(&job->forecast, &c);
    const bool failed = !value || json_dumpf(value, out, JSON_COMPACT);
    json_decref(value);
    return failed ? why_set(why, ERR_NOMEM, "out of memory for the forecast") : OK;
}

enum plan_kind { PLAN_TABLE, PLAN_TIMELINE, PLAN_EXPLAIN, PLAN_FORECAST, PLAN_KINDS };

static const struct {
    plan_maker make;
    const char *type;
} kinds[PLAN_KINDS] = {
    [PLAN_TABLE] = {make_table, "application/json"},
    [PLAN_TIMELINE] = {make_timeline, "image/svg+xml"},
    [PLAN_EXPLAIN] = {make_explain, "text/html; charset=utf-8"},
    [PLAN_FORECAST] = {make_forecast, "application/json"},
};

struct plan {
    LIST_ENTRY(plan) entry;
    struct request *request;
    struct web *web;
    enum plan_kind kind;
    pid_t pid;
    uv_pipe_t pipe;
    uv_timer_t timer;
    int open_handles;
    bool late, failed; /* it was killed; there was no memory for its answer, or it is too long */
    struct buf answer;
};

static err_t answer_make(enum plan_kind kind, const char *yaml, const struct plan_input *in, FILE *out, struct why *why)
{
    struct job_spec job = {0};
    char set[64];
    const char *const sets[] = {set};
    const struct explain_layout *l = in->layout ? explain_layout_find(in->layout) : NULL;
    snprintf(set, sizeof(set), "parallel.workers=%d", in->workers);
    if (in->layout && !l)
        return why_set(why, ERR_NOTFOUND, "there is no layout %s", in->layout);
    err_t err = l ? explain_layout_job(l, &job, why)
                  : job_parse("the job file", yaml, strlen(yaml), sets, in->workers ? 1 : 0, &job, why);
    if (err)
        return err;
    err = kinds[kind].make(&job, l ? l->about : "", in, out, why);
    job_fini(&job);
    return err;
}

static void limit(int resource, rlim_t max)
{
    const struct rlimit r = {max, max};
    if (setrlimit(resource, &r))
        _exit(1);
}

static void send_all(int fd, const char *data, size_t len)
{
    while (len) {
        ssize_t n = write(fd, data, len);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            _exit(1);
        data += n;
        len -= (size_t)n;
    }
}

_Noreturn static void child_run(int fd, enum plan_kind kind, const char *yaml, const struct plan_input *in)
{
    char *text = NULL;
    size_t len = 0;
    struct why why = {0};
    if (dup2(fd, STDIN_FILENO) < 0 || close_range(STDERR_FILENO + 1, ~0U, 0))
        _exit(1);
    signal(SIGTERM, SIG_DFL);
    signal(SIGINT, SIG_DFL);
    limit(RLIMIT_CPU, PLAN_CPU_S);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* they reserve terabytes of address space */
    limit(RLIMIT_AS, PLAN_MEMORY);
#endif
    FILE *out = open_memstream(&text, &len);
    err_t err = out ? answer_make(kind, yaml, in, out, &why) : ERR_NOMEM;
    if (out && fclose(out) && !err)
        err = ERR_NOMEM;
    const char code = (char)err, *sentence = why.text[0] ? why.text : err_text(err);
    send_all(STDIN_FILENO, &code, 1);
    send_all(STDIN_FILENO, err ? sentence : text, err ? strlen(sentence) : len);
    _exit(0);
}

/* ---- in the parent ---- */

static void plan_answer(struct plan *p)
{
    struct buf *b = &p->answer;
    if (p->late)
        request_fail(p->request, ERR_TIMEOUT, "the plan took longer than 20 s; use `dtctl plan` in a terminal");
    else if (p->failed || b->len < 1 || buf_append(b, "", 1))
        request_fail(p->request, ERR_LIMIT, "the plan needs too much time or memory; use `dtctl plan` in a terminal");
    else if (b->data[0])
        request_fail(p->request, (err_t)(signed char)b->data[0], (const char *)b->data + 1);
    else {
        size_t len = b->len - 2; /* without the code, and the 0 that was added */
        memmove(b->data, b->data + 1, len + 1);
        request_answer(p->request, 200, kinds[p->kind].type, (char *)b->data, len);
        *b = (struct buf){0};
    }
}

static void handle_closed(uv_handle_t *handle)
{
    struct plan *p = handle->data;
    struct web *w = p->web;
    if (--p->open_handles)
        return;
    buf_fini(&p->answer);
    free(p);
    web_part_closed(w);
}

/* Reaps the child, which has closed its end or is killed: it is gone in a moment in either case. */
static void plan_end(struct plan *p)
{
    if (uv_is_closing((uv_handle_t *)&p->pipe))
        return;
    LIST_REMOVE(p, entry);
    p->web->n_plans--;
    kill(p->pid, SIGKILL);
    while (waitpid(p->pid, NULL, 0) < 0 && errno == EINTR)
        ;
    plan_answer(p);
    uv_close((uv_handle_t *)&p->pipe, handle_closed);
    uv_close((uv_handle_t *)&p->timer, handle_closed);
}

static void plan_late(uv_timer_t *timer)
{
    struct plan *p = timer->data;
    p->late = true;
    plan_end(p);
}

void plans_stop(struct web *w)
{
    struct plan *p;
    while ((p = LIST_FIRST(&w->plans))) {
        p->failed = true;
        plan_end(p);
    }
}

static void give_block(uv_handle_t *handle, size_t wanted, uv_buf_t *ret)
{
    struct plan *p = handle->data;
    p->failed = p->failed || p->answer.len > PLAN_BYTES || buf_reserve(&p->answer, wanted);
    *ret = p->failed ? uv_buf_init(NULL, 0) : uv_buf_init((char *)p->answer.data + p->answer.len, (unsigned)wanted);
}

static void block_came(uv_stream_t *stream, ssize_t n, const uv_buf_t *block)
{
    struct plan *p = stream->data;
    if (n > 0)
        p->answer.len += (size_t)n;
    else if (n < 0)
        plan_end(p);
}

static err_t child_start(struct plan *p, const char *yaml, const struct plan_input *in)
{
    int ends[2];
    if (pipe2(ends, O_CLOEXEC))
        return err_from_errno(errno);
    p->pid = fork();
    if (p->pid == 0)
        child_run(ends[1], p->kind, yaml, in);
    close(ends[1]);
    if (p->pid < 0) {
        close(ends[0]);
        return ERR_LIMIT;
    }
    if (uv_pipe_open(&p->pipe, ends[0])) /* the child then ends at its first write */
        close(ends[0]);
    return OK;
}

/* Answers the request, now or later. The child has a copy of all that `in` names. */
static void plan_start(struct request *r, enum plan_kind kind, const char *yaml, const struct plan_input *in)
{
    struct web *w = request_web(r);
    struct plan *p = w->n_plans < PLANS_MAX ? calloc(1, sizeof(*p)) : NULL;
    if (!p) {
        request_fail(r, w->n_plans < PLANS_MAX ? ERR_NOMEM : ERR_LIMIT, "other plans are being made; try again");
        return;
    }
    *p = (struct plan){.request = r, .web = w, .kind = kind, .open_handles = 2};
    uv_pipe_init(&w->loop, &p->pipe, 0);
    uv_timer_init(&w->loop, &p->timer);
    p->pipe.data = p->timer.data = p;
    w->live++;
    LIST_INSERT_HEAD(&w->plans, p, entry);
    w->n_plans++;
    err_t err = child_start(p, yaml, in);
    if (!err)
        err = uv_timer_start(&p->timer, plan_late, PLAN_MS, 0) ? ERR_NOMEM : OK;
    if (!err)
        err = uv_read_start((uv_stream_t *)&p->pipe, give_block, block_came) ? ERR_IO : OK;
    if (!err)
        return;
    log_error("a plan's process was not started error=%s", err_text(err));
    p->failed = true;
    plan_end(p);
}

/* ---- requests ---- */

struct plan_question {
    struct request *request;
    enum plan_kind kind;
    struct step_windows usage; /* PLAN_FORECAST */
};

static void question_free(struct plan_question *q)
{
    if (q)
        step_windows_fini(&q->usage);
    free(q);
}

/* A forecast is that of the job as it was submitted, whatever number of workers it has now. */
static void job_answered(void *arg, const struct rpc_result *result)
{
    struct plan_question *q = arg;
    const Dtd__JobStatus *s = (const Dtd__JobStatus *)result->reply;
    if (result->err || !s)
        request_fail(q->request, result->err ? result->err : ERR_CLOSED, result->text);
    else if (!s->spec_yaml || !s->steps)
        request_fail(q->request, ERR_NOTFOUND, "the job runs a command, so dtd has no plan of it");
    else
        plan_start(q->request, q->kind, s->spec_yaml,
                   &(struct plan_input){.workers = q->kind == PLAN_FORECAST ? 0 : s->workers, .usage = &q->usage.mean});
    question_free(q);
}

static void ask_job(struct plan_question *q)
{
    Dtd__JobRequest m = DTD__JOB_REQUEST__INIT;
    m.job = (char *)request_job(q->request);
    err_t err = session_call(request_session(q->request), CLIENT_STATUS, &m.base, job_answered, q, NULL);
    if (!err)
        return;
    request_fail(q->request, err, err_text(err));
    question_free(q);
}

static void job_plan(struct request *r, enum plan_kind kind)
{
    struct plan_question *q = calloc(1, sizeof(*q));
    if (!q) {
        request_fail(r, ERR_NOMEM, err_text(ERR_NOMEM));
        return;
    }
    q->request = r;
    q->kind = kind;
    ask_job(q);
}

/* Without any usage the forecast stands alone. */
static void usage_answered(void *arg, const struct rpc_result *r)
{
    struct plan_question *q = arg;
    struct usage_sample s;
    err_t err = OK;
    if (r->reply && convert_usage((const Dtd__UsageSample *)r->reply, &s) == OK) {
        err = step_windows_add(&q->usage, &s);
        usage_sample_fini(&s);
    }
    if (err)
        log_warn("a window of usage was left out error=%s", err_text(err));
    if (r->last)
        ask_job(q);
}

void plan_serve_forecast(struct request *r)
{
    struct plan_question *q = calloc(1, sizeof(*q));
    Dtd__UsageRequest m = DTD__USAGE_REQUEST__INIT;
    m.job = (char *)request_job(r);
    if (q)
        *q = (struct plan_question){.request = r, .kind = PLAN_FORECAST};
    err_t err = q ? session_call(request_session(r), CLIENT_USAGE, &m.base, usage_answered, q, NULL) : ERR_NOMEM;
    if (!err)
        return;
    request_fail(r, err, err_text(err));
    question_free(q);
}

void plan_serve_table(struct request *r)
{
    job_plan(r, PLAN_TABLE);
}

void plan_serve_timeline(struct request *r)
{
    job_plan(r, PLAN_TIMELINE);
}

void plan_serve_explain(struct request *r)
{
    job_plan(r, PLAN_EXPLAIN);
}

/* The ready-made layouts, or with ?layout=NAME the page of one. */
void plan_serve_layouts(struct request *r)
{
    const char *name = request_text(r, "layout");
    if (name) {
        plan_start(r, PLAN_EXPLAIN, "", &(struct plan_input){.layout = name});
        return;
    }
    json_t *all = json_array();
    for (int i = 0; i < n_explain_layouts; i++)
        json_array_append_new(
            all, json_pack("{s:s, s:s}", "name", explain_layouts[i].name, "about", explain_layouts[i].about));
    request_answer_json(r, 200, all);
}
