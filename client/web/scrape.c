/* GET /metrics, for Prometheus: the present state as OpenMetrics 1.0 or as its older text format, whichever the scraper
 * accepts. Names and units follow Prometheus' conventions. Jobs that have ended have no series, so that their number is
 * bounded. Values of a job come from the leader of the cluster, so every node shows the same. */
#include "client/web/web.h"

#include "client/convert.h"
#include "common/base/clock.h"
#include "common/rpc/methods.h"
#include "proto/client.pb-c.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define JOBS_MAX 1000
/* Series of single ranks are bounded: jobs with more workers, and further jobs, have none. */
#define USAGE_JOBS_MAX 32
#define USAGE_WORKERS_MAX 64
#define USAGE_AGE_MS 30000 /* several windows; clocks of nodes differ */

/* The newest window of a job's ranks. */
struct rank_usage {
    struct scrape *scrape;
    const char *job;
    struct usage_sample sample; /* without ranks: there is none */
};

struct scrape {
    struct request *request;
    int outstanding;
    bool open_metrics, has_node, has_cluster;
    err_t err; /* of the list of jobs */
    struct client_node node;
    struct client_cluster cluster;
    struct client_job *jobs;
    int n_jobs;
    struct rank_usage usage[USAGE_JOBS_MAX];
    int n_usage;
    int stores; /* -1: not known */
    struct buf text;
};

/* ---- text ---- */

static void put(struct scrape *s, const char *text)
{
    if (!s->err)
        s->err = buf_append(&s->text, text, strlen(text));
}

static void put_label(struct scrape *s, const char *name, const char *value)
{
    put(s, name);
    put(s, "=\"");
    for (const char *p = value; *p && !s->err; p++) {
        const char one[2] = {*p, '\0'};
        put(s, *p == '\n' ? "\\n" : *p == '"' ? "\\\"" : *p == '\\' ? "\\\\" : one);
    }
    put(s, "\"");
}

struct family {
    const char *name, *type, *unit, *help; /* unit: the name's last part; "": none */
};

static bool is_total(const struct family *f)
{
    return strcmp(f->type, "counter") == 0;
}

/* OpenMetrics names the family of a counter without _total, and knows the type info. */
static void put_head(struct scrape *s, const struct family *f)
{
    static const char *const keys[] = {"HELP", "TYPE", "UNIT"};
    const bool info = strcmp(f->type, "info") == 0;
    const char *suffix = s->open_metrics ? "" : is_total(f) ? "_total" : info ? "_info" : "";
    const char *values[] = {f->help, info && !s->open_metrics ? "gauge" : f->type,
                            s->open_metrics && f->unit[0] ? f->unit : NULL};
    for (int i = 0; i < 3; i++)
        if (values[i] && !s->err)
            s->err = buf_printf(&s->text, "# %s %s%s %s\n", keys[i], f->name, suffix, values[i]);
}

static void begin_sample(struct scrape *s, const struct family *f)
{
    put(s, f->name);
    put(s, is_total(f) ? "_total" : strcmp(f->type, "info") == 0 ? "_info" : "");
}

static void end_sample(struct scrape *s, double value)
{
    if (isnan(value))
        put(s, " NaN\n");
    else if (isinf(value))
        put(s, value > 0 ? " +Inf\n" : " -Inf\n");
    else if (!s->err)
        s->err = buf_printf(&s->text, " %.17g\n", value);
}

/* A sample with one label; name NULL: with none. */
static void put_sample(struct scrape *s, const struct family *f, const char *name, const char *label, double value)
{
    begin_sample(s, f);
    if (name) {
        put(s, "{");
        put_label(s, name, label);
        put(s, "}");
    }
    end_sample(s, value);
}

/* ---- nodes ---- */

static void put_nodes(struct scrape *s)
{
    static const struct family build = {"dtd_build", "info", "", "Version of this node's dtd."},
                               slots = {"dtd_node_slots", "gauge", "", "Workers that this node can run."},
                               gpus = {"dtd_node_gpus", "gauge", "", "GPUs of this node."},
                               gpus_free = {"dtd_node_gpus_free", "gauge", "", "GPUs of this node without a worker."},
                               leader = {"dtd_raft_is_leader", "gauge", "", "Whether this node leads the cluster."},
                               term = {"dtd_raft_term", "gauge", "", "Term of the replicated log."},
                               index = {"dtd_raft_commit_index", "gauge", "", "Last entry of the replicated log."},
                               nodes = {"dtd_nodes", "gauge", "", "Nodes of the cluster by state."};
    static const char *const states[] = {"up", "away", "lost", "unknown", "drained"};
    if (s->has_node) {
        const struct {
            const struct family *family;
            double value;
        } rows[] = {{&slots, s->node.slots},
                    {&gpus, s->node.gpus < 0 ? NAN : s->node.gpus},
                    {&gpus_free, s->node.gpus < 0 ? NAN : s->node.gpus_free},
                    {&leader, strcmp(s->node.raft_state, "leader") == 0},
                    {&term, (double)s->node.raft_term},
                    {&index, (double)s->node.raft_index}};
        put_head(s, &build);
        put_sample(s, &build, "version", s->node.version, 1);
        for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
            put_head(s, rows[i].family);
            put_sample(s, rows[i].family, NULL, NULL, rows[i].value);
        }
    }
    put_head(s, &nodes);
    for (size_t k = 0; k < sizeof(states) / sizeof(states[0]); k++) {
        int n = k == 0 && s->has_cluster && !s->cluster.n_node; /* a node that is in no cluster */
        for (int i = 0; s->has_cluster && i < s->cluster.n_node; i++) {
            const struct client_cluster_node *node = &s->cluster.node[i];
            n += strcmp(node->drained[0] ? "drained" : node->state, states[k]) == 0;
        }
        put_sample(s, &nodes, "state", states[k], n);
    }
}

/* ---- jobs ---- */

static double epoch(const struct client_job *j)
{
    return (double)j->epoch;
}

static double workers(const struct client_job *j)
{
    return j->workers;
}

static double restarts(const struct client_job *j)
{
    return j->restarts;
}

static double started(const struct client_job *j)
{
    return j->started_ms ? (double)j->started_ms / 1000 : NAN;
}

static double step(const struct client_job *j)
{
    return (double)j->step;
}

static double steps(const struct client_job *j)
{
    return (double)j->steps;
}

static double step_time(const struct client_job *j)
{
    return j->has_last ? (double)j->last.wall_ms / 1000 : NAN;
}

static double step_s(const struct client_job *j)
{
    return j->has_last ? j->last.step_s : NAN;
}

static double loss(const struct client_job *j)
{
    return j->has_last ? j->last.loss : NAN;
}

static double grad_norm(const struct client_job *j)
{
    return j->has_last ? j->last.grad_norm : NAN;
}

static double lr(const struct client_job *j)
{
    return j->has_last ? j->last.lr : NAN;
}

static double tokens_per_s(const struct client_job *j)
{
    return j->has_last ? j->last.tokens_per_s : NAN;
}

static double mfu(const struct client_job *j)
{
    return j->has_last ? j->last.mfu : NAN;
}

static double checkpoint_step(const struct client_job *j)
{
    return j->checkpoint_step >= 0 ? (double)j->checkpoint_step : NAN;
}

static double checkpoint_failed(const struct client_job *j)
{
    return j->checkpoint_error[0] != '\0';
}

/* A job without the value has no sample, except of the loss: its NaN is information. */
static const struct {
    struct family family;
    double (*value)(const struct client_job *j);
    bool shows_nan; /* of a job that has made a step */
} job_families[] = {
    {{"dtd_job_epoch", "gauge", "", "Epoch: how often the set of workers was formed."}, epoch, false},
    {{"dtd_job_world_size", "gauge", "", "Workers of the job."}, workers, false},
    {{"dtd_job_restarts", "counter", "", "Restarts after failures."}, restarts, false},
    {{"dtd_job_start_timestamp_seconds", "gauge", "seconds", "Time of the job's start."}, started, false},
    {{"dtd_train_step", "gauge", "", "Last complete step."}, step, false},
    {{"dtd_train_planned_steps", "gauge", "", "Steps that the job is to make."}, steps, false},
    {{"dtd_train_last_step_timestamp_seconds", "gauge", "seconds", "Time of the last complete step."},
     step_time,
     false},
    {{"dtd_train_last_step_seconds", "gauge", "seconds", "Duration of the last complete step."}, step_s, false},
    {{"dtd_train_loss", "gauge", "", "Loss of the last complete step."}, loss, true},
    {{"dtd_train_grad_norm", "gauge", "", "Norm of the gradient."}, grad_norm, true},
    {{"dtd_train_learning_rate", "gauge", "", "Learning rate."}, lr, false},
    {{"dtd_train_tokens_per_second", "gauge", "", "Tokens per second of the last complete step."}, tokens_per_s, false},
    {{"dtd_train_mfu_ratio", "gauge", "ratio", "Share of the workers' peak rate that the model uses."}, mfu, false},
    {{"dtd_checkpoint_last_step", "gauge", "", "Step of the last committed checkpoint."}, checkpoint_step, false},
    {{"dtd_checkpoint_failing", "gauge", "", "Whether the last save failed."}, checkpoint_failed, false},
};

/* Counters of a job begin with 0 when another node leads, as rate() and increase() expect. */
static const struct {
    struct family family;
    const char *total; /* row of totals_fields */
} counters[] = {
    {{"dtd_train_steps", "counter", "", "Complete steps, also those that ran again after a failure."}, "steps"},
    {{"dtd_train_recomputed_steps", "counter", "", "Steps that ran again after a failure."}, "recomputed_steps"},
    {{"dtd_train_nonfinite_steps", "counter", "", "Steps whose loss is not finite."}, "not_finite_steps"},
    {{"dtd_train_tokens", "counter", "", "Tokens of the complete steps, also of those that ran again."}, "tokens"},
    {{"dtd_train_recomputed_tokens", "counter", "", "Tokens of steps that ran again."}, "recomputed_tokens"},
    {{"dtd_checkpoints", "counter", "", "Committed checkpoints."}, "checkpoints"},
    {{"dtd_checkpoints_failed", "counter", "", "Checkpoints that could not be saved."}, "checkpoints_failed"},
    {{"dtd_checkpoint_written_bytes", "counter", "bytes", "Bytes of the committed checkpoints."}, "checkpoint_bytes"},
    {{"dtd_failures", "counter", "", "Failures that ended an epoch."}, "failures"},
    {{"dtd_job_allocated_worker_seconds", "counter", "seconds", "Seconds of all workers that the job had."},
     "allocated_s"},
};

/* Parts of the allocated seconds. The rest are those of validation, saving and waiting between steps. */
static const struct family ledger = {
    "dtd_job_worker_seconds", "counter", "seconds",
    "Seconds of workers in steps that ran for the first time, in repeated steps, and in "
    "starts and recoveries."};
static const struct {
    const char *state, *total;
} ledger_parts[] = {{"productive", "productive_s"}, {"recompute", "recompute_s"}, {"restart", "restart_s"}};

static const struct family durations[TOTALS_DURATIONS] = {
    [TOTALS_STEP] = {"dtd_train_step_seconds", "histogram", "seconds", "Durations of complete steps."},
    [TOTALS_SAVE] = {"dtd_checkpoint_duration_seconds", "histogram", "seconds",
                     "From the end of a step to the commit of its checkpoint."},
    [TOTALS_RECOVERY] = {"dtd_recovery_seconds", "histogram", "seconds",
                         "From the decision after a failure to the next complete step."},
};

static double total_of(const struct client_job *j, const char *name)
{
    const struct field *f = field_find(&totals_fields, name);
    if (!j->has_totals || field_absent(f, &j->totals)) /* the leader is of an older version */
        return NAN;
    const struct field_value v = field_get(f, &j->totals);
    return f->kind == FIELD_REAL ? v.real : (double)v.whole;
}

/* A sample of a job with one more label; `name` NULL: without. `suffix`: of a histogram's sample. */
static void put_job_sample(struct scrape *s, const struct family *f, const char *suffix, const struct client_job *j,
                           const char *name, const char *label, double value)
{
    if (isnan(value))
        return;
    put(s, f->name);
    put(s, is_total(f) ? "_total" : suffix);
    put(s, "{");
    put_label(s, "job_id", j->job);
    if (name) {
        put(s, ",");
        put_label(s, name, label);
    }
    put(s, "}");
    end_sample(s, value);
}

/* Buckets are cumulative; the last one counts all. */
static void put_histogram(struct scrape *s, enum totals_duration d, const struct client_job *j)
{
    const struct totals_histogram *h = &j->totals.duration[d];
    int64_t sum = 0;
    char bound[32];
    if (!j->has_totals)
        return;
    for (int i = 0; i <= totals_bounds[d].n; i++) {
        sum += h->n[i];
        snprintf(bound, sizeof(bound), "%g", totals_bounds[d].s[i]);
        if (!strpbrk(bound, ".e")) /* OpenMetrics: bounds are floats */
            strcat(bound, ".0");
        put_job_sample(s, &durations[d], "_bucket", j, "le", i < totals_bounds[d].n ? bound : "+Inf", (double)sum);
    }
    put_job_sample(s, &durations[d], "_sum", j, NULL, NULL, h->sum);
    put_job_sample(s, &durations[d], "_count", j, NULL, NULL, (double)sum);
}

static void put_totals(struct scrape *s, int n)
{
    for (size_t k = 0; k < sizeof(counters) / sizeof(counters[0]); k++) {
        put_head(s, &counters[k].family);
        for (int i = 0; i < n; i++)
            put_job_sample(s, &counters[k].family, "", &s->jobs[i], NULL, NULL,
                           total_of(&s->jobs[i], counters[k].total));
    }
    put_head(s, &ledger);
    for (int i = 0; i < n; i++)
        for (size_t k = 0; k < sizeof(ledger_parts) / sizeof(ledger_parts[0]); k++)
            put_job_sample(s, &ledger, "", &s->jobs[i], "state", ledger_parts[k].state,
                           total_of(&s->jobs[i], ledger_parts[k].total));
    for (int d = 0; d < TOTALS_DURATIONS; d++) {
        put_head(s, &durations[d]);
        for (int i = 0; i < n; i++)
            put_histogram(s, d, &s->jobs[i]);
    }
}

static void put_states(struct scrape *s)
{
    static const struct family jobs = {"dtd_jobs", "gauge", "", "Jobs in the list by state."};
    static const char *const states[] = {"pending",  "starting", "running", "recovering",
                                         "stopping", "done",     "failed",  "canceled"};
    put_head(s, &jobs);
    for (size_t k = 0; k < sizeof(states) / sizeof(states[0]); k++) {
        int n = 0;
        for (int i = 0; i < s->n_jobs; i++)
            n += strcmp(s->jobs[i].state, states[k]) == 0;
        put_sample(s, &jobs, "state", states[k], n);
    }
}

static void put_jobs(struct scrape *s)
{
    static const struct family info = {"dtd_job", "info", "", "Name, user and state of a job."};
    put_states(s);
    int n = 0; /* jobs that have not ended come first */
    for (int i = 0; i < s->n_jobs && n < JOBS_MAX; i++)
        if (!client_job_ended(&s->jobs[i])) {
            const struct client_job j = s->jobs[n];
            s->jobs[n++] = s->jobs[i];
            s->jobs[i] = j;
        }
    put_head(s, &info);
    for (int i = 0; i < n; i++) {
        begin_sample(s, &info);
        put(s, "{");
        put_label(s, "job_id", s->jobs[i].job);
        put(s, ",");
        put_label(s, "name", s->jobs[i].name);
        put(s, ",");
        put_label(s, "user", s->jobs[i].user);
        put(s, ",");
        put_label(s, "state", s->jobs[i].state);
        put(s, "}");
        end_sample(s, 1);
    }
    for (size_t k = 0; k < sizeof(job_families) / sizeof(job_families[0]); k++) {
        put_head(s, &job_families[k].family);
        for (int i = 0; i < n; i++) {
            const double value = job_families[k].value(&s->jobs[i]);
            if (!isnan(value) || (job_families[k].shows_nan && s->jobs[i].has_last))
                put_sample(s, &job_families[k].family, "job_id", s->jobs[i].job, value);
        }
    }
    put_totals(s, n);
}

/* ---- ranks ---- */

static const struct {
    struct family family;
    enum usage_field field;
} rank_families[] = {
    {{"dtd_train_rank_compute_seconds", "gauge", "seconds",
      "Seconds of a step that the rank computes, of the newest window."},
     USAGE_compute_s},
    {{"dtd_train_rank_gpu_utilization_ratio", "gauge", "ratio",
      "Share of the time in which a kernel ran on the rank's GPU."},
     USAGE_gpu_util},
    {{"dtd_train_rank_gpu_memory_used_bytes", "gauge", "bytes", "Memory in use on the rank's GPU."}, USAGE_gpu_bytes},
    {{"dtd_train_rank_gpu_temperature_celsius", "gauge", "celsius", "Temperature of the rank's GPU."},
     USAGE_gpu_celsius},
    {{"dtd_train_rank_gpu_power_watts", "gauge", "watts", "Power of the rank's GPU."}, USAGE_gpu_watts},
};

static void put_rank_sample(struct scrape *s, const struct family *f, const char *job, int rank, const char *node,
                            double value)
{
    char number[16];
    snprintf(number, sizeof(number), "%d", rank);
    begin_sample(s, f);
    put(s, "{");
    put_label(s, "job_id", job);
    put(s, ",");
    put_label(s, "rank", number);
    put(s, ",");
    put_label(s, "node", node);
    put(s, "}");
    end_sample(s, value);
}

static void put_ranks(struct scrape *s)
{
    static const struct family slow = {"dtd_train_straggler_ratio", "gauge", "ratio",
                                       "Compute time of a slow rank over that of the median."};
    put_head(s, &slow);
    for (int i = 0; i < s->n_jobs; i++)
        for (int k = 0; k < s->jobs[i].n_straggler && !client_job_ended(&s->jobs[i]); k++) {
            const struct client_straggler *one = &s->jobs[i].straggler[k];
            put_rank_sample(s, &slow, s->jobs[i].job, one->rank, one->node, one->ratio);
        }
    for (size_t f = 0; f < sizeof(rank_families) / sizeof(rank_families[0]); f++) {
        put_head(s, &rank_families[f].family);
        for (int i = 0; i < s->n_usage; i++)
            for (int rank = 0; rank < s->usage[i].sample.ranks; rank++) {
                const double value = *usage_at(&s->usage[i].sample, rank_families[f].field, rank);
                if (!isnan(value))
                    put_rank_sample(s, &rank_families[f].family, s->usage[i].job, rank, s->usage[i].sample.node[rank],
                                    value);
            }
    }
}

static void put_stores(struct scrape *s)
{
    static const struct family stores = {"dtd_stores", "gauge", "", "Open c10d stores of the cluster."};
    put_head(s, &stores);
    if (s->stores >= 0)
        put_sample(s, &stores, NULL, NULL, s->stores);
}

/* ---- the answer ---- */

static void finish(struct scrape *s)
{
    if (!s->err) {
        put_nodes(s);
        put_jobs(s);
        put_ranks(s);
        put_stores(s);
        if (s->open_metrics)
            put(s, "# EOF\n");
    }
    if (s->err) {
        request_fail(s->request, s->err, err_text(s->err));
        buf_fini(&s->text);
    } else {
        request_answer(s->request, 200,
                       s->open_metrics ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
                                       : "text/plain; version=0.0.4; charset=utf-8",
                       (char *)s->text.data, s->text.len);
    }
    if (s->has_node)
        client_node_fini(&s->node);
    if (s->has_cluster)
        client_cluster_fini(&s->cluster);
    for (int i = 0; i < s->n_usage; i++)
        usage_sample_fini(&s->usage[i].sample);
    client_jobs_free(s->jobs, s->n_jobs);
    free(s);
}

static void part_ended(struct scrape *s, const struct rpc_result *r)
{
    if (r->last && --s->outstanding == 0)
        finish(s);
}

static void node_answered(void *arg, const struct rpc_result *r)
{
    struct scrape *s = arg;
    if (r->reply)
        s->has_node = convert_node((const Dtd__NodeReply *)r->reply, &s->node) == OK;
    part_ended(s, r);
}

static void cluster_answered(void *arg, const struct rpc_result *r)
{
    struct scrape *s = arg;
    if (r->reply)
        s->has_cluster = convert_cluster((const Dtd__ClusterReport *)r->reply, &s->cluster) == OK;
    part_ended(s, r);
}

/* A leader of an older version has none, and then there are no series. */
static void usage_answered(void *arg, const struct rpc_result *r)
{
    struct rank_usage *u = arg;
    struct usage_sample sample;
    if (r->reply && !convert_usage((const Dtd__UsageSample *)r->reply, &sample)) {
        usage_sample_fini(&u->sample);
        u->sample = sample;
    }
    part_ended(u->scrape, r);
}

static void ask_usage(struct scrape *s)
{
    Dtd__UsageRequest q = DTD__USAGE_REQUEST__INIT;
    q.has_from_ms = true;
    q.from_ms = clock_wall_ms() - USAGE_AGE_MS;
    for (int i = 0; i < s->n_jobs && s->n_usage < USAGE_JOBS_MAX; i++) {
        const struct client_job *j = &s->jobs[i];
        if (strcmp(j->state, "running") != 0 || !j->has_last || j->workers > USAGE_WORKERS_MAX)
            continue;
        struct rank_usage *u = &s->usage[s->n_usage++];
        *u = (struct rank_usage){.scrape = s, .job = j->job};
        q.job = j->job;
        s->outstanding +=
            session_call(request_session(s->request), CLIENT_USAGE, &q.base, usage_answered, u, NULL) == OK;
    }
}

static void jobs_answered(void *arg, const struct rpc_result *r)
{
    struct scrape *s = arg;
    if (r->err)
        s->err = r->err;
    else if (r->reply)
        s->err = convert_jobs((const Dtd__JobList *)r->reply, &s->jobs, &s->n_jobs);
    if (r->reply && !s->err && request_session(s->request))
        ask_usage(s);
    part_ended(s, r);
}

static void stores_answered(void *arg, const struct rpc_result *r)
{
    struct scrape *s = arg;
    if (r->reply)
        s->stores = (int)((const Dtd__StoreReport *)r->reply)->n_store;
    part_ended(s, r);
}

static void scrape(struct request *r)
{
    static const struct {
        enum rpc_method_id method;
        rpc_callback cb;
    } parts[] = {{CLIENT_NODE, node_answered},
                 {CLIENT_CLUSTER_STATUS, cluster_answered},
                 {CLIENT_LIST, jobs_answered},
                 {CLIENT_STORE_LIST, stores_answered}};
    Dtd__Empty q = DTD__EMPTY__INIT;
    struct scrape *s = calloc(1, sizeof(*s));
    if (!s) {
        request_fail(r, ERR_NOMEM, err_text(ERR_NOMEM));
        return;
    }
    const char *accept = request_header(r, "Accept");
    *s = (struct scrape){
        .request = r, .stores = -1, .open_metrics = accept && strstr(accept, "application/openmetrics-text")};
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
        s->outstanding += session_call(request_session(r), parts[i].method, &q.base, parts[i].cb, s, NULL) == OK;
    if (s->outstanding)
        return;
    s->err = ERR_CLOSED;
    finish(s);
}

static void login_known(void *arg, enum session_state state, const char *text)
{
    if (state == SESSION_IN)
        scrape(arg);
    else
        request_fail(arg, state == SESSION_REFUSED ? ERR_DENIED : ERR_CLOSED, text);
}

/* Prometheus sends the token with each request (authorization in its configuration), and opens no session before. */
void scrape_serve(struct request *r)
{
    const char *token = request_cookie(r);
    struct session *s = session_find(request_web(r), token);
    err_t err = s ? OK : token[0] ? session_open(request_web(r), token, &s) : ERR_DENIED;
    if (!err)
        err = session_wait(s, login_known, r);
    if (err)
        request_fail(r, err,
                     err == ERR_DENIED ? "send `Authorization: Bearer TOKEN` with a token of `dtctl web`"
                                       : err_text(err));
}
