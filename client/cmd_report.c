/* dtctl report: all data that dtd has about a job, as one page of HTML or as a PDF to print. */
#include "client/commands.h"
#include "client/follow.h"
#include "client/report/html.h"
#include "client/report/pages.h"
#include "client/report/sections.h"
#include "common/base/clock.h"
#include "common/base/file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct report_args {
    struct global *global;
    const char *job, *to;
    bool pdf;
    int64_t wait_s; /* for the end of the job */
};

static const struct argp_option options[] = {
    {"to", 't', "FILE", 0,
     "File to write: FILE.html or FILE.pdf; or a folder, for job-JOB.html in it. Default: the current folder", 0},
    {"wait", 'w', "SECONDS", 0, "Wait up to so many seconds until the job has ended", 0},
    {0}};

#define WAIT_MAX_S (366 * 86400) /* a year: longer than any job */

static bool ends_in(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n > m && strcmp(text + n - m, end) == 0;
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct report_args *a = state->input;
    switch (key) {
    case 't':
        a->to = arg;
        a->pdf = ends_in(arg, ".pdf");
        return 0;
    case 'w':
        if (!arg_number(arg, WAIT_MAX_S, &a->wait_s))
            argp_error(state, "--wait %s: expected a number of seconds", arg);
        return 0;
    default:
        return parse_job(key, arg, state, a->global, &a->job);
    }
}

/* ---- what control knows ---- */

struct gathered {
    const char *id;
    struct client_job job;
    struct metric *row;
    size_t n_rows, cap;
    struct client_checkpoint *checkpoint;
    int n_checkpoints;
    struct usage_samples usage;
    char cluster[128];
    bool full; /* there is no memory for more rows */
};

static void gathered_fini(struct gathered *g)
{
    client_job_fini(&g->job);
    client_checkpoints_free(g->checkpoint, g->n_checkpoints);
    free(g->row);
    usage_samples_fini(&g->usage);
    *g = (struct gathered){.id = g->id};
}

static bool on_row(void *arg, const struct metric *m)
{
    struct gathered *g = arg;
    if (g->n_rows == g->cap) {
        const size_t cap = g->cap ? 2 * g->cap : 1024;
        struct metric *more = realloc(g->row, cap * sizeof(*more));
        g->full = !more;
        if (!more)
            return false;
        g->row = more;
        g->cap = cap;
    }
    g->row[g->n_rows++] = *m;
    return true;
}

static bool on_usage(void *arg, const struct usage_sample *sample)
{
    struct gathered *g = arg;
    g->full = usage_samples_add(&g->usage, sample) != OK;
    return !g->full;
}

/* The name of the cluster is that of its leader, since clusters have none of their own. */
static void cluster_take(struct client *c, struct gathered *g)
{
    struct client_cluster cluster;
    if (client_cluster_status(c, &cluster, NULL))
        return;
    if (cluster.n_node)
        snprintf(g->cluster, sizeof(g->cluster), "cluster of %d nodes, led by %s", cluster.n_node, cluster.leader);
    else
        snprintf(g->cluster, sizeof(g->cluster), "node %s", cluster.self);
    client_cluster_fini(&cluster);
}

/* Over one connection; after a lost one, all of it again. */
static err_t gather_call(struct client *c, void *arg, struct why *why)
{
    struct gathered *g = arg;
    const struct client_stream stream = {.metric = on_row, .usage = on_usage, .arg = g};
    gathered_fini(g);
    err_t err = client_status(c, g->id, &g->job, why);
    if (err)
        return err;
    if (!g->job.spec_yaml[0])
        return why_set(why, ERR_DENIED, "job %s belongs to %s: only its owner and root may read its report", g->id,
                       g->job.user);
    cluster_take(c, g);
    err = client_metrics(c, g->id, false, 0, &stream, why);
    err = err ? err : client_usage(c, g->id, false, 0, &stream, why);
    err = err == ERR_UNSUPPORTED ? OK : err; /* a leader of an older version has none */
    if (g->full)
        err = why_set(why, ERR_NOMEM, "out of memory after %zu steps", g->n_rows);
    return err ? err : client_checkpoints(c, g->id, &g->checkpoint, &g->n_checkpoints, why);
}

#define WAIT_POLL_US 200000

/* ERR_TIMEOUT: it has not ended. */
static err_t wait_for_end(const struct report_args *a, struct why *why)
{
    const int64_t until = clock_mono_ms() + a->wait_s * 1000;
    for (;;) {
        struct client_job job;
        err_t err = client_job_by_id(a->global, a->job, &job, why);
        if (err)
            return err;
        const bool ended = client_job_ended(&job);
        client_job_fini(&job);
        if (ended)
            return OK;
        if (clock_mono_ms() >= until)
            return why_set(why, ERR_TIMEOUT, "job %s has not ended within %lld s; there is no report of it", a->job,
                           (long long)a->wait_s);
        usleep(WAIT_POLL_US);
    }
}

/* ---- the file ---- */

static err_t folder_make(const char *folder, struct why *why)
{
    if (file_make_dirs(folder, 0777))
        return why_set(why, err_from_errno(errno), "--to %s: %s. Name a file that ends in .html or .pdf, or a folder",
                       folder, strerror(errno));
    return OK;
}

/* Where the report goes: --to, or the file job-JOB.html in the folder that --to names. An absent folder is made, since
 * no user can make it when run.report finds it missing. */
static err_t path_choose(const struct report_args *a, char ret[PATH_MAX], struct why *why)
{
    const char *to = a->to ? a->to : ".";
    const bool file = a->to && (a->pdf || ends_in(a->to, ".html"));
    const int n = file ? snprintf(ret, PATH_MAX, "%s", to) : snprintf(ret, PATH_MAX, "%s/job-%s.html", to, a->job);
    if (n >= PATH_MAX)
        return why_set(why, ERR_LIMIT, "--to %s: the path is too long", to);
    char *slash = strrchr(ret, '/');
    if (!slash || slash == ret)
        return OK;
    *slash = 0;
    err_t err = folder_make(ret, why);
    *slash = '/';
    return err;
}

static err_t report_write(const struct report_args *a, const struct report *r, const char *path, struct why *why)
{
    const struct report_module *module = NULL;
    struct buf out = {0};
    struct doc d = {0};
    err_t err = a->pdf ? pages_module(&module, why) : OK;
    if (!err) {
        report_document(r, &d);
        err = a->pdf ? pages_write(&d, module, &out, why) : html_write(&d, &out);
        if (err && !a->pdf)
            why_set(why, err, "%s", err_text(err));
    }
    if (!err && (err = file_replace(path, out.data, out.len, 0666)))
        why_set(why, err, "%s: %s", path, err_text(err));
    doc_fini(&d);
    buf_fini(&out);
    return err;
}

static int result_print(const struct report_args *a, const struct report *r, const char *path)
{
    if (a->global->format != OUT_TEXT) {
        json_t *value = report_json(r);
        if (value)
            json_object_set_new(value, "path", json_string(path));
        return command_json(a->global, value);
    }
    char *quoted = out_quoted(path);
    printf("%s\n", quoted ? quoted : path);
    free(quoted);
    return EXIT_DONE;
}

static int report_run(const struct report_args *a, struct gathered *g)
{
    struct report r;
    struct why why = {0};
    char path[PATH_MAX];
    const struct report_input in = {.job = &g->job,
                                    .row = g->row,
                                    .n_rows = g->n_rows,
                                    .checkpoint = g->checkpoint,
                                    .n_checkpoints = g->n_checkpoints,
                                    .usage = &g->usage,
                                    .cluster = g->cluster,
                                    .now_ms = clock_wall_ms()};
    err_t err = path_choose(a, path, &why);
    err = err ? err : report_init(&in, &r, &why);
    if (err)
        return command_fail(err, &why);
    err = report_write(a, &r, path, &why);
    const int code = err ? command_fail(err, &why) : result_print(a, &r, path);
    report_fini(&r);
    return code;
}

int cmd_report(struct global *g, int argc, char **argv)
{
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .children = global_children,
        .args_doc = "JOB",
        .doc =
            "Writes a report of a job: where the time of its workers went, loss and speed, what each rank used, the "
            "forecast beside what was measured, checkpoints, incidents, and advice. An HTML report is one file that "
            "opens without a network; PDF needs the package dtd-report. With -o json, also prints the ledger and the "
            "advice."
            "\vExamples:\n  dtctl report 4\n  dtctl report 4 --to job4.pdf\n  dtctl report 4 --to /tmp/4.html -o json "
            "| "
            "jq .ledger"};
    struct report_args args = {.global = g};
    struct why why = {0};
    char number[32];
    command_parse(&argp, argc, argv, &args);
    err_t err = follow_name(g, &args.job, number, &why);
    if (err)
        return command_fail(err, &why);
    struct gathered gathered = {.id = args.job};
    err = args.wait_s ? wait_for_end(&args, &why) : OK;
    err = err ? err : follow_call(g, gather_call, &gathered, &why);
    const int code = err ? command_fail(err, &why) : report_run(&args, &gathered);
    gathered_fini(&gathered);
    return code;
}
