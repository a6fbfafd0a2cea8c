/* dtctl report: everything that dtd knows of a job, as one page of HTML or as a PDF to print. */
#include "client/commands.h"
#include "client/follow.h"
#include "client/report/html.h"
#include "client/report/pages.h"
#include "client/report/sections.h"
#include "common/base/clock.h"
#include "common/base/file.h"

#include <stdlib.h>
#include <string.h>

struct report_args {
    struct global *global;
    const char *job, *to;
    bool pdf;
};

static const struct argp_option options[] = {
    {"to", 't', "FILE", 0, "File to write: FILE.html or FILE.pdf. Default: job-JOB.html in this folder", 0}, {0}};

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
        if (!a->pdf && !ends_in(arg, ".html"))
            argp_error(state, "--to %s: the name must end in .html or .pdf", arg);
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
    char cluster[128];
    bool full; /* there is no memory for more rows */
};

static void gathered_fini(struct gathered *g)
{
    client_job_fini(&g->job);
    client_checkpoints_free(g->checkpoint, g->n_checkpoints);
    free(g->row);
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
    const struct client_stream stream = {.metric = on_row, .arg = g};
    gathered_fini(g);
    err_t err = client_status(c, g->id, &g->job, why);
    if (err)
        return err;
    if (!g->job.spec_yaml[0])
        return why_set(why, ERR_DENIED, "job %s belongs to %s: only its owner and root may read its report", g->id,
                       g->job.user);
    cluster_take(c, g);
    err = client_metrics(c, g->id, false, 0, &stream, why);
    if (g->full)
        err = why_set(why, ERR_NOMEM, "out of memory after %zu steps", g->n_rows);
    return err ? err : client_checkpoints(c, g->id, &g->checkpoint, &g->n_checkpoints, why);
}

/* ---- the file ---- */

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
                                    .cluster = g->cluster,
                                    .now_ms = clock_wall_ms()};
    snprintf(path, sizeof(path), "job-%s.html", g->id);
    err_t err = report_init(&in, &r, &why);
    if (err)
        return command_fail(err, &why);
    err = report_write(a, &r, a->to ? a->to : path, &why);
    const int code = err ? command_fail(err, &why) : result_print(a, &r, a->to ? a->to : path);
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
    err = follow_call(g, gather_call, &gathered, &why);
    const int code = err ? command_fail(err, &why) : report_run(&args, &gathered);
    gathered_fini(&gathered);
    return code;
}
