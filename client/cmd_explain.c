/* dtctl explain: a page that animates the step of a job, or of a ready-made one. It needs a daemon only to find the
 * folder of a job's measured step. */
#include "client/commands.h"
#include "client/explain/explain.h"
#include "client/measured.h"
#include "client/spec_args.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct explain_args {
    struct global *global;
    struct spec_args spec;
    const char *html, *svg, *measured;
};

enum { KEY_SVG = 256 };

static const struct argp_option options[] = {
    {"html", 'w', "FILE", 0, "Write the page to FILE; else to explain-NAME.html in this folder", 0},
    {"svg", KEY_SVG, "FILE", 0,
     "Write one picture of the step as an SVG file, for documents; no page unless --html asks", 0},
    {"measured", 'm', "JOB|FOLDER", 0,
     "Show the measured step of a job (run.timeline_step) instead of the forecast; a job's id, or its checkpoint.dir",
     0},
    {0}};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct explain_args *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = a->global;
        state->child_inputs[1] = &a->spec;
        return 0;
    case 'w':
        a->html = arg;
        return 0;
    case KEY_SVG:
        a->svg = arg;
        return 0;
    case 'm':
        a->measured = arg;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void layouts_print(void)
{
    static const struct out_column columns[] = {{"LAYOUT", false, 0}, {"WHAT IT DOES", false, 0}};
    struct out_table t;
    out_table_init(&t, columns, 2);
    for (int i = 0; i < n_explain_layouts; i++) {
        int row = out_table_row(&t);
        out_table_set(&t, row, 0, "%s", explain_layouts[i].name);
        out_table_set(&t, row, 1, "%s", explain_layouts[i].about);
    }
    out_table_print(&t, stdout, -1);
    out_table_fini(&t);
    puts("\nWrite a page with 'dtctl explain LAYOUT', or of your own job with 'dtctl explain JOBFILE'.");
}

static json_t *layouts_json(void)
{
    json_t *ret = json_array();
    for (int i = 0; i < n_explain_layouts; i++)
        json_array_append_new(
            ret, json_pack("{s:s, s:s}", "name", explain_layouts[i].name, "about", explain_layouts[i].about));
    return ret;
}

/* ---- the job ---- */

/* The job that is explained, compiled. */
struct explained {
    struct job_spec job;
    struct measured_step measured;
    struct explain_job compiled;
    const char *about;
};

static void explained_fini(struct explained *e)
{
    explain_job_fini(&e->compiled);
    measured_step_fini(&e->measured);
    job_fini(&e->job);
}

/* A job file gets its vocabulary and its checks from the data, as for `dtctl plan`. */
static err_t job_of(const struct explain_args *a, struct explained *e, struct why *why)
{
    const struct explain_layout *l = explain_layout_find(a->spec.file);
    struct out_progress progress;
    struct spec_facts facts = {0};
    if (l && a->spec.n_sets)
        return why_set(why, ERR_INVALID,
                       "%s is a ready-made layout, which --set does not change; write a job file and name it instead",
                       l->name);
    if (l) {
        e->about = l->about;
        return explain_layout_job(l, &e->job, why);
    }
    e->about = "";
    err_t err = spec_args_read(&a->spec, &e->job, why);
    if (err == ERR_NOTFOUND && !strchr(a->spec.file, '/') && !strchr(a->spec.file, '.'))
        return why_set(why, err, "there is no layout and no job file '%s'; 'dtctl explain' lists the layouts",
                       a->spec.file);
    out_progress_init(&progress, stderr);
    err = err ? err : spec_plan(&e->job, NULL, &progress, &facts, why);
    spec_facts_fini(&facts);
    return err;
}

static err_t measured_of(const struct explain_args *a, struct explained *e, struct why *why)
{
    char folder[PATH_MAX];
    if (!a->measured)
        return OK;
    err_t err = measured_folder_find(a->global, a->measured, folder, why);
    err = err ? err : measured_load(folder, &e->measured, why);
    if (!err && e->measured.did.n != e->compiled.n)
        return why_set(why, ERR_INVALID,
                       "the measured step of %s has %d workers, but this job has %d. Add --set parallel.workers=%d and "
                       "the other overrides of that job",
                       a->measured, e->measured.did.n, e->compiled.n, e->measured.did.n);
    return err;
}

static err_t explained_init(const struct explain_args *a, struct explained *e, struct why *why)
{
    err_t err = job_of(a, e, why);
    err = err ? err : explain_job_compile(&e->job, &e->compiled, why);
    err = err ? err : measured_of(a, e, why);
    return err ? err : explain_job_animate(&e->job, a->measured ? &e->measured.did : NULL, &e->compiled, why);
}

/* ---- files ---- */

static err_t files_write(const struct explain_args *a, const struct explained *e, struct why *why)
{
    const struct explain_layout *l = explain_layout_find(a->spec.file);
    const char *name = l ? l->name : e->job.name;
    char path[PATH_MAX];
    err_t err = OK;
    if (a->svg)
        err = explain_svg_write(&e->compiled.animation, name, a->svg, why);
    if (err || (a->svg && !a->html))
        return err;
    snprintf(path, sizeof(path), "explain-%s.html", name);
    err = explain_page_write(&e->compiled.animation, name, e->about, a->html ? a->html : path, why);
    if (!err)
        printf("%s: open it in a browser\n", a->html ? a->html : path);
    return err;
}

int cmd_explain(struct global *g, int argc, char **argv)
{
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .children = spec_args_children,
        .args_doc = "[LAYOUT|FILE]",
        .doc = "Writes a page that animates a training step: what each rank holds, what moves between ranks, and how "
               "long it takes, from the job's own plan and its forecast. Without an argument it lists the ready-made "
               "layouts. With -o json it prints the data of the page. Starts nothing."
               "\vExamples:\n  dtctl explain zero3\n  dtctl explain job.yaml --set parallel.pp=2 --html step.html\n  "
               "dtctl explain 1f1b --svg 1f1b.svg"};
    struct explain_args args = {.global = g};
    struct explained e = {0};
    struct why why = {0};
    int code = EXIT_DONE;
    command_parse(&argp, argc, argv, &args);
    if (!args.spec.file) {
        if (g->format != OUT_TEXT)
            return command_json(g, layouts_json());
        layouts_print();
        return EXIT_DONE;
    }
    err_t err = explained_init(&args, &e, &why);
    if (!err && g->format != OUT_TEXT && !args.html && !args.svg)
        code = command_json(g, explain_json(&e.compiled.animation, e.job.name, e.about));
    else if (!err)
        err = files_write(&args, &e, &why);
    if (err)
        code = command_refuse(err, &why);
    explained_fini(&e);
    return code;
}
