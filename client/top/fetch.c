/* One connection, which is opened again at the next call after an error. All calls are short: a list that is long is
 * asked for once, and then only what is new. */
#include "client/top/fetch.h"

#include "client/step_parts.h"
#include "common/base/clock.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Keys wait for an answer, so it is waited for only a little; an election takes about a second. */
#define DEADLINE_MS 2000
/* A user who cancels a job would rather wait for a new leader than press the key again. The request has one id, so that
 * it counts once. */
#define CANCEL_MS 5000

static bool is_lost(err_t err)
{
    return err == ERR_CLOSED || err == ERR_TIMEOUT || err == ERR_AGAIN || err == ERR_BUSY || err == ERR_PROTO;
}

static void disconnect(struct top_fetch *f)
{
    client_close(f->client);
    f->client = NULL;
}

static err_t connect_to(struct top_fetch *f, struct why *why)
{
    if (f->client)
        return OK;
    err_t err = client_open(f->dir, &f->client, why);
    if (!err)
        client_set_deadline(f->client, DEADLINE_MS);
    return err;
}

/* ---- nodes ---- */

static void copy_text(char *to, size_t size, const char *from)
{
    size_t n = strnlen(from, size - 1);
    memcpy(to, from, n);
    to[n] = '\0';
}

static void take_node(const struct client_cluster_node *x, struct top_node *ret)
{
    const struct client_node_use *use = &x->use;
    bool up = strcmp(x->state, "up") == 0;
    const struct node_load *load = x->load ? x->load : &node_load_none;
    bool memory = load->memory_bytes >= 0 && load->memory_used_bytes >= 0;
    *ret = (struct top_node){.slots = use->slots,
                             .used = use->slots_used,
                             .cores = load->cores >= 0 ? (int)load->cores : -1,
                             .gpus = use->gpus,
                             .gpus_free = use->gpus_free,
                             .memory_bytes = load->memory_bytes,
                             .memory_free_bytes = memory ? load->memory_bytes - load->memory_used_bytes : -1,
                             .load = load->load};
    copy_text(ret->name, sizeof(ret->name), x->name);
    copy_text(ret->state, sizeof(ret->state), up && x->drained[0] ? "drained" : x->state);
    copy_text(ret->role, sizeof(ret->role), x->role);
    copy_text(ret->health, sizeof(ret->health), use->warning[0] ? use->warning : x->drained);
}

/* A node that is in no cluster. */
static err_t take_single(struct top_fetch *f, struct top_node *ret, struct why *why)
{
    static char up[] = "up", none[] = "";
    struct client_node node;
    err_t err = client_node_get(f->client, &node, why);
    if (err)
        return err;
    struct client_cluster_node x = {
        .name = node.node, .state = up, .role = none, .drained = none, .load = node.load, .use = node.use};
    x.use.slots = node.slots; /* also of an older version */
    take_node(&x, ret);
    client_node_fini(&node);
    return OK;
}

static err_t fetch_nodes(struct top_fetch *f, struct top_model *m, struct why *why)
{
    struct client_cluster k;
    err_t err = client_cluster_status(f->client, &k, why);
    if (err)
        return err;
    int n = k.n_node ? k.n_node : 1;
    struct top_node *nodes = calloc((size_t)n, sizeof(*nodes));
    err = !nodes ? ERR_NOMEM : k.n_node ? OK : take_single(f, nodes, why);
    for (int i = 0; nodes && i < k.n_node; i++)
        take_node(&k.node[i], &nodes[i]);
    if (!err) {
        free(m->nodes);
        m->nodes = nodes;
        m->n_nodes = n;
        m->term = k.log_term;
        copy_text(m->leader, sizeof(m->leader), k.n_node ? k.leader : "");
    } else {
        free(nodes);
    }
    client_cluster_fini(&k);
    return err;
}

/* ---- jobs ---- */

static err_t fetch_jobs(struct top_fetch *f, struct top_model *m, struct why *why)
{
    struct client_job *jobs;
    int n;
    err_t err = client_list(f->client, &jobs, &n, why);
    if (err)
        return err;
    client_jobs_free(m->jobs, m->n_jobs);
    m->jobs = jobs;
    m->n_jobs = n;
    return OK;
}

static void series_add(struct top_series *s, double v)
{
    if (s->n == TOP_SERIES)
        memmove(s->v, s->v + 1, (size_t)--s->n * sizeof(s->v[0]));
    s->v[s->n++] = v;
}

struct top_history {
    struct top_fetch *fetch;
    struct top_job *job;
    int64_t until_ms;
};

static void take_metric(struct top_fetch *f, struct top_job *j, const struct metric *x)
{
    if (x->step <= f->series_step)
        return;
    f->series_step = x->step;
    series_add(&j->loss, x->loss);
    series_add(&j->step_s, x->step_s);
}

static bool on_metric(void *arg, const struct metric *x)
{
    struct top_history *h = arg;
    take_metric(h->fetch, h->job, x);
    return true;
}

static bool history_tick(void *arg)
{
    return clock_mono_ms() < ((const struct top_history *)arg)->until_ms;
}

/* The fields of common/rpc/usage.h that a column shows. */
static const enum usage_field use_fields[TOP_USES] = {
    [TOP_STEP_S] = USAGE_step_s,   [TOP_COMPUTE_S] = USAGE_compute_s, [TOP_COMM_S] = USAGE_comm_s,
    [TOP_CPU] = USAGE_cpu,         [TOP_RSS] = USAGE_rss_bytes,       [TOP_PLANNED] = USAGE_planned_bytes,
    [TOP_GPU] = USAGE_gpu_util,    [TOP_GPU_BYTES] = USAGE_gpu_bytes, [TOP_CELSIUS] = USAGE_gpu_celsius,
    [TOP_WATTS] = USAGE_gpu_watts,
};

static void usage_clear(struct top_usage *u)
{
    for (int i = 0; i < TOP_USES; i++)
        free(u->value[i]);
    *u = (struct top_usage){0};
}

static void job_clear(struct top_job *j)
{
    client_job_fini(&j->job);
    usage_clear(&j->usage);
    *j = (struct top_job){0};
}

/* The steps before the first look at the job. Those that take too long to arrive are left out. */
static err_t fetch_history(struct top_fetch *f, struct top_job *j, struct why *why)
{
    struct top_history h = {.fetch = f, .job = j, .until_ms = clock_mono_ms() + DEADLINE_MS};
    const struct client_stream stream = {.metric = on_metric, .tick = history_tick, .arg = &h};
    int64_t from = j->job.step > TOP_SERIES ? j->job.step - TOP_SERIES : 0;
    err_t err = client_metrics(f->client, j->job.job, false, from, &stream, why);
    return err == ERR_CANCELED || err == ERR_BUSY ? OK : err;
}

static bool on_usage(void *arg, const struct usage_sample *s)
{
    struct top_job *j = arg;
    struct top_usage *u = &j->usage;
    usage_clear(u);
    step_line_of(j->job.spec_yaml ? j->job.spec_yaml : "", s, j->forecast);
    u->ranks = s->ranks;
    for (int i = 0; i < TOP_USES; i++) {
        u->value[i] = malloc((size_t)s->ranks * sizeof(double) + 1);
        if (u->value[i])
            memcpy(u->value[i], usage_at(s, use_fields[i], 0), (size_t)s->ranks * sizeof(double));
    }
    return true;
}

/* A daemon of an older version has no usage. */
static err_t fetch_usage(struct top_fetch *f, struct top_job *j, struct why *why)
{
    const struct client_stream stream = {.usage = on_usage, .arg = j};
    err_t err = client_usage_newest(f->client, j->job.job, &stream, why);
    return err == ERR_UNSUPPORTED ? OK : err;
}

static err_t fetch_job(struct top_fetch *f, struct top_model *m, struct why *why)
{
    struct client_job job;
    struct top_job *j = &m->job;
    bool another = strcmp(f->job, m->view.job) != 0;
    err_t err = client_status(f->client, m->view.job, &job, why);
    if (err)
        return err;
    if (another)
        job_clear(j);
    else
        client_job_fini(&j->job);
    j->job = job;
    j->known = true;
    if (another) {
        copy_text(f->job, sizeof(f->job), m->view.job);
        f->series_step = -1;
        err = fetch_history(f, j, why);
    } else if (job.has_last) {
        take_metric(f, j, &job.last);
    }
    return err ? err : fetch_usage(f, j, why);
}

/* ---- events and logs ---- */

static void lines_clear(struct top_lines *l)
{
    for (int i = 0; i < l->n; i++)
        free(l->line[i].text);
    l->n = 0;
}

static struct top_line *lines_add(struct top_lines *l, const char *text, size_t len)
{
    char *copy = strndup(text, len);
    if (!copy)
        return NULL;
    if (l->n == TOP_LINES) {
        free(l->line[0].text);
        memmove(l->line, l->line + 1, (size_t)--l->n * sizeof(l->line[0]));
    }
    struct top_line *line = &l->line[l->n++];
    *line = (struct top_line){.text = copy};
    return line;
}

struct top_reading {
    struct top_fetch *fetch;
    struct top_lines *lines;
    int64_t until_ms;
};

static bool reading_tick(void *arg)
{
    return clock_mono_ms() < ((const struct top_reading *)arg)->until_ms;
}

static bool on_event(void *arg, const struct client_event *e)
{
    struct top_reading *r = arg;
    struct top_line *line = lines_add(r->lines, e->text, strlen(e->text));
    r->fetch->last_event = e->id;
    if (!line)
        return false;
    line->wall_ms = e->wall_ms;
    snprintf(line->who, sizeof(line->who), "%s%.60s", e->job[0] ? "job " : "", e->job[0] ? e->job : e->node);
    snprintf(line->kind, sizeof(line->kind), "%s", e->type);
    return true;
}

static err_t fetch_events(struct top_fetch *f, struct top_model *m, struct why *why)
{
    struct top_reading r = {.fetch = f, .lines = &m->events, .until_ms = clock_mono_ms() + DEADLINE_MS};
    const struct client_stream stream = {.event = on_event, .tick = reading_tick, .arg = &r};
    const char *job = m->view.before == TOP_JOB ? m->view.job : "";
    if (!f->has_events || strcmp(f->events_job, job) != 0) {
        lines_clear(&m->events);
        copy_text(f->events_job, sizeof(f->events_job), job);
        f->last_event = 0;
        f->has_events = true;
    }
    err_t err = client_events(f->client, job[0] ? job : NULL, false, f->last_event, 0, &stream, why);
    return err == ERR_CANCELED ? OK : err;
}

static bool on_log(void *arg, const struct client_log *chunk)
{
    struct top_reading *r = arg;
    for (size_t at = 0; at < chunk->len;) {
        const char *end = memchr(chunk->text + at, '\n', chunk->len - at);
        size_t len = end ? (size_t)(end - chunk->text) - at : chunk->len - at;
        struct top_line *line = lines_add(r->lines, chunk->text + at, len);
        if (!line)
            return false;
        snprintf(line->who, sizeof(line->who), chunk->rank < 0 ? "dtd" : "rank %d", chunk->rank);
        at += len + 1;
    }
    return true;
}

/* The ends of all ranks' logs, with the same number of lines of each. */
static err_t fetch_logs(struct top_fetch *f, struct top_model *m, struct why *why)
{
    struct top_reading r = {.fetch = f, .lines = &m->logs, .until_ms = clock_mono_ms() + DEADLINE_MS};
    const struct client_stream stream = {.log = on_log, .tick = reading_tick, .arg = &r};
    int ranks = 1;
    for (int i = 0; i < m->n_jobs; i++)
        if (strcmp(m->jobs[i].job, m->view.job) == 0 && m->jobs[i].workers > 1)
            ranks = m->jobs[i].workers;
    lines_clear(&m->logs);
    err_t err = client_logs(f->client, m->view.job, -1, false, TOP_LINES / ranks + 1, &stream, why);
    return err == ERR_CANCELED ? OK : err;
}

/* ---- all ---- */

static err_t fetch_screen(struct top_fetch *f, struct top_model *m, struct why *why)
{
    switch (m->view.screen) {
    case TOP_JOB:
        return fetch_job(f, m, why);
    case TOP_EVENTS:
        return fetch_events(f, m, why);
    case TOP_LOGS:
        return fetch_logs(f, m, why);
    default:
        return OK;
    }
}

void top_fetch(struct top_fetch *f, struct top_model *m)
{
    struct why why = {0};
    err_t err = connect_to(f, &why);
    err = err ? err : fetch_jobs(f, m, &why);
    err = err ? err : fetch_nodes(f, m, &why);
    m->now_ms = clock_wall_ms();
    err_t screen = err ? OK : fetch_screen(f, m, &why);
    if (screen && !is_lost(screen)) { /* the job was removed, or belongs to another user */
        copy_text(m->view.message, sizeof(m->view.message), why.text);
        m->view.screen = TOP_OVERVIEW;
        f->job[0] = '\0';
    }
    err = err ? err : is_lost(screen) ? screen : OK;
    copy_text(m->lost, sizeof(m->lost), err ? why.text[0] ? why.text : err_text(err) : "");
    if (err)
        disconnect(f);
}

void top_fetch_cancel(struct top_fetch *f, struct top_model *m, bool save)
{
    struct why why = {0};
    struct client_job job;
    uint8_t id[16];
    int64_t until_ms = clock_mono_ms() + CANCEL_MS;
    const struct timespec pause = {.tv_nsec = 100000000};
    err_t err = client_request_id(id);
    for (bool again = !err; again; again = is_lost(err) && clock_mono_ms() < until_ms) {
        if (err)
            nanosleep(&pause, NULL);
        err = connect_to(f, &why);
        err = err ? err : client_cancel(f->client, id, m->view.job, save, CLIENT_GRACE_DEFAULT, &job, &why);
        if (is_lost(err))
            disconnect(f);
    }
    if (err) {
        snprintf(m->view.message, sizeof(m->view.message), "not canceled: %.200s", why.text);
        return;
    }
    snprintf(m->view.message, sizeof(m->view.message), "job %.30s is %.20s", job.job, job.state);
    client_job_fini(&job);
}

void top_fetch_fini(struct top_fetch *f)
{
    disconnect(f);
}

void top_model_fini(struct top_model *m)
{
    free(m->nodes);
    client_jobs_free(m->jobs, m->n_jobs);
    job_clear(&m->job);
    lines_clear(&m->events);
    lines_clear(&m->logs);
}
