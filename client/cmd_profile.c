/* dtctl profile: records the next steps of a running job, gathers the files that its workers write beside the
 * checkpoints, and makes a trace of them. The request has a random number and is repeated until the answer is final, so
 * it may be repeated across a restart of control too. */
#include "client/client.h"
#include "client/commands.h"
#include "client/follow.h"
#include "client/profile/profile.h"
#include "common/base/clock.h"
#include "proto/client.pb-c.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define POLL_MS 200 /* steps take tenths of seconds to minutes, and the answer is small */
#define ROWS 64     /* of the printed table; JSON has all ranks */
#define MAX_STEPS 64

struct profile_args {
    struct global *global;
    const char *job, *to;
    int64_t steps;
};

static const struct argp_option options[] = {
    {"steps", 'n', "N", 0, "Record N steps, 1 to 64 (default: 3)", 0},
    {"to", 't', "FILE", 0,
     "Write the trace to FILE, a gzipped JSON file of all ranks; into a folder, or into FILE.tar: one file for each "
     "rank (default: job-JOB-step-STEP.json.gz)",
     0},
    {0}};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct profile_args *a = state->input;
    switch (key) {
    case 'n':
        if (!arg_number(arg, MAX_STEPS, &a->steps) || a->steps < 1)
            argp_error(state, "--steps %s: expected a number of steps from 1 to %d", arg, MAX_STEPS);
        return 0;
    case 't':
        a->to = arg;
        return 0;
    default:
        return parse_job(key, arg, state, a->global, &a->job);
    }
}

/* ---- where to ---- */

enum target { TARGET_FILE, TARGET_DIR, TARGET_TAR };

static bool ends_in(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && strcmp(text + n - m, end) == 0;
}

static enum target target_of(const char *to)
{
    struct stat st;
    if (to && (ends_in(to, "/") || (stat(to, &st) == 0 && S_ISDIR(st.st_mode))))
        return TARGET_DIR;
    return to && ends_in(to, ".tar") ? TARGET_TAR : TARGET_FILE;
}

/* Before the job is asked: its steps are not recorded for a file that cannot be written. */
static err_t check_target(const char *to, struct why *why)
{
    char dir[PATH_MAX];
    if (target_of(to) == TARGET_DIR)
        return OK;
    const char *slash = to ? strrchr(to, '/') : NULL;
    if (slash && slash != to)
        snprintf(dir, sizeof(dir), "%.*s", (int)(slash - to), to);
    else
        snprintf(dir, sizeof(dir), "%s", slash ? "/" : ".");
    if (access(dir, W_OK) == 0)
        return OK;
    return why_set(why, err_from_errno(errno), "no file can be written in %s: %s; name another place with --to", dir,
                   strerror(errno));
}

/* ---- the request ---- */

struct profile_call {
    const char *job;
    uint64_t request;
    int steps;
    Dtd__ProfileReply *reply;
};

static err_t call_profile(struct client *c, void *arg, struct why *why)
{
    struct profile_call *k = arg;
    Dtd__ProfileRequest q = DTD__PROFILE_REQUEST__INIT;
    q.job = (char *)k->job;
    q.request = k->request;
    q.has_steps = true;
    q.steps = k->steps;
    return client_call(c, CLIENT_PROFILE, &q.base, &k->reply, why);
}

static void draw(struct out_progress *line, const Dtd__ProfileReply *r)
{
    char text[128];
    const int64_t now = clock_mono_ms();
    if (!out_progress_due(line, now))
        return;
    snprintf(text, sizeof(text), "step %" PRId64 ", recording %d steps: %d of %d workers have written", r->step,
             r->steps, r->written, r->workers);
    out_progress_draw(line, now, text);
}

/* Waits until all ranks have written their files. The caller frees k->reply. */
static err_t record_steps(struct global *g, struct profile_call *k, struct why *why)
{
    struct out_progress line;
    err_t err = OK;
    out_progress_init(&line, stderr);
    for (;;) {
        err = follow_call(g, call_profile, k, why);
        if (err || k->reply->done)
            break;
        if (k->reply->error) {
            err = why_set(why, ERR_CANCELED, "%s", k->reply->error);
            break;
        }
        draw(&line, k->reply);
        client_reply_free(k->reply);
        k->reply = NULL;
        usleep(POLL_MS * 1000);
    }
    out_progress_clear(&line);
    return err;
}

/* ---- results ---- */

struct profile_result {
    const struct profile *p;
    const char *job; /* its number */
    struct rank_summary *ranks;
    struct profile_difference most;
    struct trace_facts facts;
    char path[PATH_MAX];
    struct why no_forecast; /* "": there is one */
};

static err_t write_trace(const struct profile_args *a, struct profile_result *r, struct why *why)
{
    const struct recorded *first = &r->p->rank[0];
    enum target target = target_of(a->to);
    const bool large = profile_slices(r->p) > TRACE_MAX_SLICES;
    if (!a->to && large)
        target = TARGET_TAR;
    if (a->to)
        snprintf(r->path, sizeof(r->path), "%s", a->to);
    else
        snprintf(r->path, sizeof(r->path), "job-%" PRIu64 "-step-%" PRId64 ".%s", first->job, first->first,
                 target == TARGET_TAR ? "tar" : "json.gz");
    if (target == TARGET_DIR)
        return trace_write_dir(r->p, r->path, &r->facts, why);
    if (target == TARGET_TAR)
        return trace_write_tar(r->p, r->path, &r->facts, why);
    if (large)
        return why_set(why, ERR_LIMIT,
                       "the trace has about %" PRId64
                       " slices, and a browser opens one file of at most %d: write one file for each rank by --to "
                       "FOLDER/ or --to FILE.tar, or record fewer steps",
                       profile_slices(r->p), TRACE_MAX_SLICES);
    return trace_write(r->p, r->path, &r->facts, why);
}

static int64_t worst_error(const struct profile *p)
{
    int64_t most = 0;
    for (int k = 0; k < p->n; k++)
        most = p->error_ns[k] > most ? p->error_ns[k] : most;
    return most;
}

static int64_t lost_ops(const struct profile *p)
{
    int64_t sum = 0;
    for (int k = 0; k < p->n; k++)
        sum += p->rank[k].lost;
    return sum;
}

/* NULL: unknown. */
static const char *node_name(const struct profile *p, int rank)
{
    return p->node && p->node[rank] && p->node[rank][0] ? p->node[rank] : NULL;
}

static void print_table(const struct profile_result *r)
{
    static const struct out_column columns[] = {
        {"RANK", true, 0},    {"NODE", false, 2},  {"STEP ms", true, 0}, {"COMPUTE", true, 0}, {"COMM", true, 1},
        {"EXPOSED", true, 0}, {"BUBBLE", true, 0}, {"DATA", true, 3},    {"SAVE", true, 3},
    };
    struct out_table t;
    out_table_init(&t, columns, sizeof(columns) / sizeof(columns[0]));
    for (int k = 0; k < r->p->n && k < ROWS; k++) {
        const struct rank_summary *s = &r->ranks[k];
        const int row = out_table_row(&t);
        out_table_set(&t, row, 0, "%d", k);
        if (node_name(r->p, k))
            out_table_set(&t, row, 1, "%s", node_name(r->p, k));
        out_table_set(&t, row, 2, "%.2f", s->step_s * 1e3);
        out_table_set(&t, row, 3, "%.2f", s->compute_s * 1e3);
        out_table_set(&t, row, 4, "%.2f", s->comm_s * 1e3);
        out_table_set(&t, row, 5, "%.2f", s->exposed_s * 1e3);
        out_table_set(&t, row, 6, "%.1f %%", s->bubble * 100);
        out_table_set(&t, row, 7, "%.2f", s->data_s * 1e3);
        out_table_set(&t, row, 8, "%.2f", s->save_s * 1e3);
    }
    out_table_print(&t, stdout, -1);
    out_table_fini(&t);
    if (r->p->n > ROWS)
        printf("and %d more ranks: -o json\n", r->p->n - ROWS);
}

static void print_difference(const struct profile_result *r)
{
    const struct profile_difference *d = &r->most;
    if (d->rank < 0) {
        printf("No forecast: %s\n", r->no_forecast.text);
        return;
    }
    printf("Largest difference from the forecast: %s of rank %d takes %.3g ms of a step, forecast %.3g ms",
           action_name(d->kind), d->rank, d->measured_s * 1e3, d->forecast_s * 1e3);
    if (d->forecast_s > 0 && d->measured_s > 0)
        printf(" (%.2f times)", d->measured_s / d->forecast_s);
    printf("\n");
}

static void print_result(const struct profile_result *r)
{
    const struct recorded *first = &r->p->rank[0];
    printf("steps %" PRId64 " to %" PRId64 " of job %" PRIu64 ", epoch %" PRIu64 "; times of a step in ms\n",
           first->first, first->first + first->steps - 1, first->job, first->epoch);
    print_table(r);
    print_difference(r);
    if (lost_ops(r->p))
        printf("%" PRId64 " ops had no room and are missing: record fewer steps\n", lost_ops(r->p));
    printf("%s: %" PRId64 " slices, %" PRId64 " messages. Open it in ui.perfetto.dev\n", r->path, r->facts.slices,
           r->facts.flows);
    if (worst_error(r->p))
        printf("Times of different nodes agree within %.1f us\n", (double)worst_error(r->p) * 1e-3);
}

static json_t *rank_json(const struct profile_result *r, int k)
{
    const struct rank_summary *s = &r->ranks[k];
    json_t *ret =
        json_pack("{s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f}", "rank", k, "step_s", s->step_s, "compute_s",
                  s->compute_s, "comm_s", s->comm_s, "exposed_s", s->exposed_s, "data_s", s->data_s, "save_s",
                  s->save_s, "bubble", s->bubble, "clock_error_s", (double)r->p->error_ns[k] * 1e-9);
    if (ret && node_name(r->p, k))
        json_object_set_new(ret, "node", json_string(node_name(r->p, k)));
    return ret;
}

static json_t *difference_json(const struct profile_difference *d)
{
    return json_pack("{s:i, s:s, s:f, s:f}", "rank", d->rank, "action", action_name(d->kind), "measured_s",
                     d->measured_s, "forecast_s", d->forecast_s);
}

static json_t *result_json(const struct profile_result *r)
{
    const struct recorded *first = &r->p->rank[0];
    json_t *ranks = json_array();
    for (int k = 0; ranks && k < r->p->n; k++)
        json_array_append_new(ranks, rank_json(r, k));
    json_t *ret = json_pack("{s:s, s:I, s:I, s:i, s:f, s:s, s:i, s:I, s:I, s:I, s:o}", "job", r->job, "epoch",
                            (json_int_t)first->epoch, "first_step", (json_int_t)first->first, "steps", first->steps,
                            "clock_error_s", (double)worst_error(r->p) * 1e-9, "file", r->path, "files", r->facts.files,
                            "slices", (json_int_t)r->facts.slices, "messages", (json_int_t)r->facts.flows, "lost_ops",
                            (json_int_t)lost_ops(r->p), "ranks", ranks);
    if (ret && r->most.rank >= 0)
        json_object_set_new(ret, "difference", difference_json(&r->most));
    return ret;
}

static err_t make_result(const struct profile_args *a, struct profile *p, const struct client_job *job,
                         struct profile_result *r, struct why *why)
{
    r->p = p;
    if (profile_forecast(p, job->spec_yaml, &r->no_forecast))
        p->forecast = (struct forecast){0};
    r->ranks = calloc((size_t)p->n, sizeof(*r->ranks));
    err_t err = r->ranks ? profile_sum(p, r->ranks, &r->most) : ERR_NOMEM;
    if (err)
        return why_set(why, err, "%s", err_text(err));
    return write_trace(a, r, why);
}

/* The names of the ranks' nodes; NULL: no memory, then the trace has none. */
static const char **nodes_of(const struct client_job *job, int n)
{
    const char **ret = calloc((size_t)n + 1, sizeof(*ret));
    for (int i = 0; ret && i < job->n_worker; i++)
        if (job->worker[i].rank >= 0 && job->worker[i].rank < n)
            ret[job->worker[i].rank] = job->worker[i].node;
    return ret;
}

static err_t gather(const struct profile_args *a, const Dtd__ProfileReply *reply, const struct client_job *job,
                    int *ret_code, struct why *why)
{
    struct profile_result r = {.job = job->job, .most = {.rank = -1}};
    struct profile p = {0};
    const char **node = NULL;
    err_t err = profile_load(reply->dir, reply->id, &p, why);
    if (!err && !p.rank[0].steps)
        err = why_set(why, ERR_INVALID, "job %s ended before a step was recorded", job->job);
    if (!err) {
        node = nodes_of(job, p.n);
        p.node = node;
        p.job = job->name;
        err = make_result(a, &p, job, &r, why);
    }
    if (!err && a->global->format == OUT_TEXT)
        print_result(&r);
    else if (!err)
        *ret_code = command_json(a->global, result_json(&r));
    free(r.ranks);
    free(node);
    profile_fini(&p);
    return err;
}

static err_t profile_job(struct profile_args *a, int *ret_code, struct why *why)
{
    struct profile_call call = {.steps = (int)a->steps};
    struct client_job job = {0};
    uint8_t id[16];
    char number[32];
    err_t err = check_target(a->to, why);
    err = err ? err : follow_name(a->global, &a->job, number, why);
    err = err ? err : client_request_id(id);
    if (err)
        return err;
    memcpy(&call.request, id, sizeof(call.request));
    call.job = a->job;
    err = record_steps(a->global, &call, why);
    err = err ? err : client_job_by_id(a->global, a->job, &job, why);
    err = err ? err : gather(a, call.reply, &job, ret_code, why);
    client_reply_free(call.reply);
    client_job_fini(&job);
    return err;
}

int cmd_profile(struct global *g, int argc, char **argv)
{
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .children = global_children,
        .args_doc = "JOB",
        .doc =
            "Records the next steps of a running training job: every kernel, collective, message, read of a batch and "
            "save of every rank, on one time axis, beside the forecast of the step. Prints where the time goes, and "
            "writes a trace that ui.perfetto.dev and chrome://tracing open. The job continues; steps that are not "
            "recorded cost nothing."
            "\vExamples:\n  dtctl profile 4\n  dtctl profile 4 --steps 10 --to trace.json.gz\n"
            "  dtctl profile 4 --to traces/"};
    struct profile_args args = {.global = g, .steps = 3};
    struct why why = {0};
    int code = EXIT_DONE;
    command_parse(&argp, argc, argv, &args);
    err_t err = profile_job(&args, &code, &why);
    return err ? command_fail(err, &why) : code;
}
