/* dtctl plan: the report of `submit --dry-run`, for any job: it need not fit on this node, and its checkpoint folder is
 * not checked. It needs a daemon only to find the folder of a job's measured step. */
#include "client/commands.h"
#include "client/follow.h"
#include "client/json.h"
#include "client/measured.h"
#include "client/plan_report.h"
#include "client/planner/planner.h"
#include "client/spec_args.h"
#include "client/timeline.h"
#include "common/plan/compile/compile.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

struct plan_args {
    struct global *global;
    struct spec_args spec;
    const char *timeline, *measured, *schedule_csv, *size;
    bool search, strategies, calibrate, brief, forecast;
    struct planner_args planner;
};

enum {
    KEY_SCHEDULE = 256,
    KEY_SEARCH,
    KEY_FORECAST,
    KEY_STRATEGIES,
    KEY_MACHINE,
    KEY_NODES,
    KEY_GOAL,
    KEY_WRITE,
    KEY_TOP,
    KEY_MEMORY,
    KEY_DAYS,
    KEY_PARETO,
    KEY_CALIBRATE,
    KEY_OPERATIONS,
    KEY_STEPS,
    KEY_SEED,
    KEY_SPARES,
    KEY_OWN,
    KEY_PICTURE,
    KEY_BRIEF
};

static const struct argp_option options[] = {
    {"timeline", 't', "FILE", 0, "Draw the forecast of a step as an SVG file, with a row per rank and stream", 0},
    {"measured", 'm', "JOB|FOLDER", 0,
     "Show the measured step of a job beside the forecast (run.timeline_step); a job's id, or its checkpoint.dir", 0},
    {"schedule-csv", KEY_SCHEDULE, "FORM", 0,
     "Print only the order of the pipeline's ranks as CSV: in the form of PyTorch's schedules (pytorch), or in dtd's "
     "own "
     "(dtd); parallel.schedule_csv takes both",
     0},
    {"search", KEY_SEARCH, NULL, 0, "Look at every layout of the job on a machine, and show the best ones", 1},
    {"strategies", KEY_STRATEGIES, NULL, 0,
     "Compare DDP, ZeRO 1 to 3, tensor, pipeline, context and expert parallelism, and 3D, for this job", 1},
    {"forecast", KEY_FORECAST, NULL, 0,
     "Forecast the job's own layout: a step, the run, and what is lost; with --nodes also on more nodes, with the "
     "batch "
     "of each worker kept",
     1},
    {"machine", KEY_MACHINE, "NAME|FILE", 0,
     "The machine to plan for: one that dtd brings along, a file, or here (default: this node). Alone: whether the "
     "job's "
     "own layout fits there, its step, and else the nearest layouts that fit",
     1},
    {"nodes", KEY_NODES, "N|FROM:TO", 0,
     "Number of nodes; of a range, the best layout on FROM, twice as many, and so on up to TO", 1},
    {"goal", KEY_GOAL, "GOAL", 0,
     "What to look for: the least time (default) or memory of a step, the least cost of the run, or most "
     "tokens-per-dollar; without --search and --nodes, over numbers of nodes",
     1},
    {"pareto", KEY_PARETO, NULL, 0,
     "With --search: show the fastest layout, the fastest one that needs less memory, and so on", 1},
    {"picture", KEY_PICTURE, "FILE", 0,
     "With --pareto, --strategies, --memory or --nodes FROM:TO: draw the report as an SVG file, too", 1},
    {"top", KEY_TOP, "N", 0, "Number of layouts that --search shows (default 10)", 1},
    {"write", KEY_WRITE, "FILE", 0,
     "With --search, --goal cost or --budget: write the job file with the best layout there", 1},
    {"days", KEY_DAYS, "N", 0,
     "Simulate a step of the best layout with every rank's own speed, and a run of N days with failures: goodput, and "
     "how often to save",
     1},
    {"operations", KEY_OPERATIONS, NULL, 0,
     "Simulate steps of the best layout at the level of operations: each product and collective of every rank, and "
     "where ranks wait",
     1},
    {"own", KEY_OWN, NULL, 0, "With --days or --operations: the layout of the job file, not the best one", 1},
    {"steps", KEY_STEPS, "N", 0,
     "With --days or --operations: number of simulated steps (default: as many as take about a second)", 1},
    {"seed", KEY_SEED, "N", 0, "With --days or --operations: seed of the simulations (default 1)", 1},
    {"spares", KEY_SPARES, "N", 0,
     "With --days: number of spare nodes, beyond those of the job (default: cost.spares of the machine)", 1},
    {"memory", KEY_MEMORY, "SIZE", 0,
     "Without a job file: plan a model of a usual size, such as 7b, as --strategies does", 1},
    {"calibrate", KEY_CALIBRATE, NULL, 0,
     "Measure the processors of this node, and write a machine file: FILE, or dtd/machine.yaml in $XDG_CONFIG_HOME or "
     "~/.config, which plans for jobs on this node then use; beside it a table of the times of operations",
     1},
    {"brief", KEY_BRIEF, NULL, 0, "With --calibrate: measure only rates, in a few seconds, and no table", 1},
    {0}};

static void parse_nodes(struct planner_args *p, const char *arg, struct argp_state *state)
{
    char from[32];
    const char *colon = strchr(arg, ':');
    snprintf(from, sizeof(from), "%.*s", (int)(colon ? colon - arg : (long)strlen(arg)), arg);
    if (!arg_number(from, 1000000, &p->nodes_from) || p->nodes_from < 1 ||
        (colon && (!arg_number(colon + 1, 1000000, &p->nodes_to) || p->nodes_to < p->nodes_from)))
        argp_error(state, "--nodes %s: write a number of nodes, or FROM:TO", arg);
}

/* Options that set one field: a flag, a text, or a number from `least` to `most`. */
#define AT(field) offsetof(struct plan_args, field)
static const struct {
    int key;
    enum { FLAG, TEXT, NUMBER } kind;
    size_t offset;
    int64_t least, most;
    const char *name, *wanted; /* of a number, for the message */
} fields[] = {
    {KEY_SEARCH, FLAG, AT(search), 0, 0, NULL, NULL},
    {KEY_FORECAST, FLAG, AT(forecast), 0, 0, NULL, NULL},
    {KEY_STRATEGIES, FLAG, AT(strategies), 0, 0, NULL, NULL},
    {KEY_PARETO, FLAG, AT(planner.pareto), 0, 0, NULL, NULL},
    {KEY_OPERATIONS, FLAG, AT(planner.operations), 0, 0, NULL, NULL},
    {KEY_OWN, FLAG, AT(planner.own), 0, 0, NULL, NULL},
    {KEY_CALIBRATE, FLAG, AT(calibrate), 0, 0, NULL, NULL},
    {KEY_BRIEF, FLAG, AT(brief), 0, 0, NULL, NULL},
    {KEY_MACHINE, TEXT, AT(planner.machine), 0, 0, NULL, NULL},
    {KEY_PICTURE, TEXT, AT(planner.picture), 0, 0, NULL, NULL},
    {KEY_WRITE, TEXT, AT(planner.write), 0, 0, NULL, NULL},
    {KEY_TOP, NUMBER, AT(planner.top), 1, 50, "top", "a number from 1 to 50"},
    {KEY_DAYS, NUMBER, AT(planner.days), 1, 3650, "days", "a number from 1 to 3650"},
    {KEY_STEPS, NUMBER, AT(planner.steps), 1, 10000, "steps", "a number from 1 to 10000"},
    {KEY_SPARES, NUMBER, AT(planner.spares), 0, 1000000, "spares", "a number of nodes"},
    {KEY_SEED, NUMBER, AT(planner.seed), 1, INT64_MAX, "seed", "a number from 1"},
};

static bool parse_field(int key, char *arg, struct argp_state *state, struct plan_args *a)
{
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++) {
        void *at = (char *)a + fields[i].offset;
        if (fields[i].key != key)
            continue;
        if (fields[i].kind == FLAG)
            *(bool *)at = true;
        else if (fields[i].kind == TEXT)
            *(const char **)at = arg;
        else if (!arg_number(arg, fields[i].most, at) || *(int64_t *)at < fields[i].least)
            argp_error(state, "--%s %s: write %s", fields[i].name, arg, fields[i].wanted);
        return true;
    }
    return false;
}

static error_t parse_planner(int key, char *arg, struct argp_state *state, struct plan_args *a)
{
    switch (key) {
    case KEY_NODES:
        parse_nodes(&a->planner, arg, state);
        return 0;
    case KEY_GOAL:
        if (!planner_goal_parse(arg, &a->planner))
            argp_error(state, "--goal %s: write time, memory, cost or tokens-per-dollar", arg);
        return 0;
    case KEY_MEMORY:
        a->size = arg;
        a->planner.no_length = true;
        return 0;
    default:
        return parse_field(key, arg, state, a) ? 0 : ARGP_ERR_UNKNOWN;
    }
}

static bool is_about_money(const struct plan_args *a)
{
    return a->planner.money.goal || a->planner.money.budget;
}

/* Looks at many layouts, of which the job's own need not be one. */
static bool is_about_many(const struct plan_args *a)
{
    return a->search || a->strategies || a->forecast || a->size || a->planner.nodes_to || a->planner.days ||
           a->planner.operations || is_about_money(a);
}

/* With a machine alone, the closed form decides whether the job's own layout fits there. Where the operations of the
 * machine have been measured one by one, the job's programs are forecast instead. */
static bool is_planner(const struct plan_args *a)
{
    return is_about_many(a) || (a->planner.machine && !planner_is_measured(a->planner.machine));
}

/* The options of the planner need each other. */
static void check_planner(const struct plan_args *a, struct argp_state *state)
{
    const bool planner = is_planner(a), many = is_about_many(a), simulates = a->planner.days || a->planner.operations;
    if ((a->planner.steps || a->planner.seed || a->planner.own) && !simulates)
        argp_error(state, "--steps, --seed and --own need --days or --operations");
    if (a->planner.own && a->size)
        argp_error(state, "--own needs a job file with a layout: leave --memory out");
    if (a->planner.spares >= 0 && !a->planner.days)
        argp_error(state, "--spares needs --days");
    if (!many && !a->calibrate && (a->planner.nodes_from || a->planner.write))
        argp_error(state, "--nodes and --write need --search, --strategies, --forecast, --days or --operations");
    if (a->brief && !a->calibrate)
        argp_error(state, "--brief needs --calibrate");
    if (!planner && (a->planner.money.price || a->planner.money.tokens))
        argp_error(state, "--price and --tokens need --search, --nodes FROM:TO, --days, --goal cost or --budget");
    if (a->strategies && is_about_money(a))
        argp_error(state, "--strategies compares one step: leave --goal and --budget out, or write --search instead");
    if (a->planner.pareto && !a->search)
        argp_error(state, "--pareto needs --search");
    if (a->planner.write && (a->planner.days || (!a->search && !is_about_money(a))))
        argp_error(state, "--write needs --search, --goal cost or --budget, which choose a layout");
    if (a->planner.picture && (a->planner.days || !many || (a->search && !a->planner.pareto)))
        argp_error(state, "--picture draws --search --pareto, --strategies, --memory or --nodes FROM:TO: add one");
    if (planner && (a->timeline || a->measured || a->schedule_csv))
        argp_error(state,
                   "--timeline, --measured and --schedule-csv show one layout: leave --search, --strategies, --nodes "
                   "and --memory out");
    if (a->size && a->spec.file)
        argp_error(state, "--memory needs no job file");
    if (a->calibrate && (planner || a->planner.machine || a->timeline || a->measured || a->schedule_csv))
        argp_error(state, "--calibrate plans nothing: leave the other options out");
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct plan_args *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = a->global;
        state->child_inputs[1] = &a->spec;
        state->child_inputs[2] = &a->planner.money;
        return 0;
    case 't':
        a->timeline = arg;
        return 0;
    case 'm':
        a->measured = arg;
        return 0;
    case KEY_SCHEDULE:
        a->schedule_csv = arg;
        if (strcmp(arg, "pytorch") != 0 && strcmp(arg, "dtd") != 0)
            argp_error(state, "--schedule-csv: there is no form '%s'; write pytorch or dtd", arg);
        return 0;
    case ARGP_KEY_END:
        if (!a->spec.file && !a->size && !a->calibrate)
            argp_error(state, "which job file?");
        check_planner(a, state);
        return 0;
    default:
        return parse_planner(key, arg, state, a);
    }
}

/* ---- the measured step ---- */

err_t measured_folder_find(struct global *g, const char *text, char ret[PATH_MAX], struct why *why)
{
    struct client_job job;
    int64_t id;
    if (!arg_number(text, INT64_MAX, &id)) {
        snprintf(ret, PATH_MAX, "%s", text);
        return OK;
    }
    err_t err = client_job_by_id(g, text, &job, why);
    if (err)
        return err;
    snprintf(ret, PATH_MAX, "%s", job.checkpoint_dir);
    client_job_fini(&job);
    return OK;
}

static err_t measured_step_load(const struct plan_args *a, const struct spec_facts *f, struct measured_step *ret,
                                struct why *why)
{
    struct measured_step m;
    char folder[PATH_MAX];
    err_t err = measured_folder_find(a->global, a->measured, folder, why);
    err = err ? err : measured_load(folder, &m, why);
    if (err)
        return err;
    if (m.did.n != f->workers) {
        why_set(why, ERR_INVALID,
                "the measured step of %s has %d workers, but this plan has %d. Add --set parallel.workers=%d and the "
                "other overrides of that job",
                a->measured, m.did.n, f->workers, m.did.n);
        measured_step_fini(&m);
        return ERR_INVALID;
    }
    *ret = m;
    return OK;
}

/* "0.0123 s, bubble 12.3 %, exposed communication 4.5 %" */
static const char *figures_text(const struct forecast *f, char *text, size_t size)
{
    snprintf(text, size, "%.4g s, bubble %.1f %%, exposed communication %.1f %%", f->seconds, 100 * f->bubble,
             100 * f->exposed);
    return text;
}

static void measured_print_text(const struct measured_step *m)
{
    char text[96];
    if (m->did.n)
        printf("  Measured   step %" PRId64 " of epoch %" PRIu64 ": %s\n", m->step, m->epoch,
               figures_text(&m->did, text, sizeof(text)));
}

static json_t *measured_json(const struct measured_step *m)
{
    json_t *ranks = json_array();
    for (int r = 0; r < m->did.n; r++)
        json_array_append_new(
            ranks, json_pack("{s:f, s:f}", "busy", m->did.ranks[r].busy, "exposed", m->did.ranks[r].exposed));
    return json_pack("{s:I, s:I, s:f, s:f, s:f, s:o}", "step", (json_int_t)m->step, "epoch", (json_int_t)m->epoch,
                     "seconds", m->did.seconds, "bubble", m->did.bubble, "exposed", m->did.exposed, "ranks", ranks);
}

static err_t timeline_draw(const struct job_spec *job, const struct spec_facts *f, const struct measured_step *m,
                           const char *path, struct why *why)
{
    char forecast[256], measured[256], text[96];
    if (!f->forecast.n)
        return why_set(why, ERR_INVALID,
                       "--timeline: the plan is too large for a forecast; lower train.global_batch or model.layers");
    snprintf(forecast, sizeof(forecast), "%s: forecast of a step, %s", job->name,
             figures_text(&f->forecast, text, sizeof(text)));
    snprintf(measured, sizeof(measured), "measured: step %" PRId64 " of epoch %" PRIu64 ", %s", m->step, m->epoch,
             figures_text(&m->did, text, sizeof(text)));
    return timeline_write(&(struct timeline_step){&f->forecast, forecast},
                          &(struct timeline_step){m->did.n ? &m->did : NULL, measured}, path, why);
}

static err_t schedule_print(const struct job_spec *job, const char *form, struct why *why)
{
    struct pipeline_order order;
    if (job->parallel.pp < 2)
        return why_set(why, ERR_INVALID,
                       "--schedule-csv: parallel.pp is 1, so there is no pipeline; write parallel.pp of at least 2");
    err_t err = pipeline_order_init(job, MODE_TRAIN, &order, why);
    if (err)
        return err;
    err = schedule_print_csv(&order.schedule, strcmp(form, "pytorch") ? SCHEDULE_OWN : SCHEDULE_PYTORCH, stdout);
    pipeline_order_fini(&order);
    return err ? why_set(why, err, "--schedule-csv: the schedule could not be written") : OK;
}

static json_t *plan_json(const struct job_spec *job, const struct spec_facts *f, const struct measured_step *m)
{
    json_t *plan = plan_report_json(job, f);
    if (plan && m->did.n)
        json_object_set_new(plan, "measured", measured_json(m));
    return plan;
}

/* ---- the planner ---- */

/* Only a vocabulary that the job file leaves open needs the data. */
static err_t vocabulary_of_data(struct job_spec *job, struct why *why)
{
    struct out_progress progress;
    struct spec_facts facts = {0};
    if (job->model.vocab)
        return OK;
    out_progress_init(&progress, stderr);
    err_t err = spec_plan(job, NULL, &progress, &facts, why);
    job->model.vocab = facts.vocab;
    spec_facts_fini(&facts);
    return err;
}

/* The file's own layout does not count, except for the fixed keys of parallel.auto. */
static err_t vocabulary_find(struct job_spec *job, struct why *why)
{
    const struct plan_layout one = {
        .dp = 1, .fsdp = 1, .tp = 1, .cp = 1, .pp = 1, .ep = 1, .chunks = 1, .micro_batch = 1};
    const struct job_parallel kept = job->parallel;
    const int64_t micro_batch = job->train.micro_batch;
    plan_layout_apply(&one, job);
    job->parallel.async_tp = job->parallel.post_validation = job->parallel.automatic = false;
    job->parallel.min_workers = 0;
    err_t err = vocabulary_of_data(job, why);
    if (kept.automatic) {
        job->parallel = kept;
        job->train.micro_batch = micro_batch;
    }
    return err;
}

static int run_calibrate(const struct plan_args *a)
{
    struct why why = {0};
    int code = EXIT_DONE;
    err_t err = planner_calibrate(a->global, a->spec.file, a->brief, &code, &why);
    return code != EXIT_DONE ? code : err ? command_fail(err, &why) : EXIT_DONE;
}

static int run_planner(const struct plan_args *a)
{
    struct job_spec job = {0};
    struct plan_layout own = {0};
    struct why why = {0};
    err_t err = a->size ? planner_size(a->size, &job, &why) : spec_args_read(&a->spec, &job, &why);
    if (!err)
        plan_layout_of(&job, &own);
    err = err ? err : vocabulary_find(&job, &why);
    if (!err && a->forecast) {
        plan_layout_apply(&own, &job);
        err = planner_own(a->global, &a->planner, &job, &why);
    } else if (!err && (a->planner.days || a->planner.operations))
        err = planner_days(a->global, &a->planner, &job, &own, &why);
    else if (!err && (a->planner.nodes_to || (is_about_money(a) && !a->search)))
        err = planner_scale(a->global, &a->planner, &job, &why);
    else if (!err && a->search)
        err = planner_search(a->global, &a->planner, &job, &why);
    else if (!err && !is_about_many(a))
        err = planner_fit(a->global, &a->planner, &job, &own, &why);
    else if (!err)
        err = planner_strategies(a->global, &a->planner, &job, &why);
    job_fini(&job);
    return err ? command_refuse(err, &why) : EXIT_DONE;
}

int cmd_plan(struct global *g, int argc, char **argv)
{
    const struct argp_child children[] = {
        spec_args_children[0], spec_args_children[1], {&planner_money_argp, 0, NULL, 2}, {0}};
    const struct argp argp = {
        .options = options,
        .parser = parse,
        .children = children,
        .args_doc = "FILE",
        .doc =
            "Compiles the plan of a job for every worker, checks it, and prints what the job needs: parameters, data, "
            "compute, microbatches of each rank, bytes between ranks, the forecast of a step, and the memory of each "
            "rank by use. Starts nothing."
            "\vExamples:\n  dtctl plan job.yaml --set parallel.workers=3 --timeline step.svg\n  dtctl submit job.yaml "
            "--set run.timeline_step=20\n  dtctl plan job.yaml --measured 4 --timeline step.svg\n  dtctl plan "
            "job.yaml --search --machine h100 --nodes 16 --write best.yaml\n  dtctl plan job.yaml --machine h100 "
            "--price 2.5 "
            "--budget 50000:30\n  dtctl plan --memory 7b --machine "
            "a100\n  dtctl plan --calibrate"};
    struct plan_args args = {.global = g, .planner.top = 10, .planner.spares = -1};
    struct job_spec job = {0};
    struct spec_facts facts = {0};
    struct measured_step measured = {0};
    struct out_progress progress;
    struct why why = {0};
    int code = EXIT_DONE;
    command_parse(&argp, argc, argv, &args);
    if (args.calibrate)
        return run_calibrate(&args);
    if (is_planner(&args))
        return run_planner(&args);
    out_progress_init(&progress, stderr);
    err_t err = spec_args_read(&args.spec, &job, &why);
    if (!err)
        err = spec_plan(&job, args.planner.machine, &progress, &facts, &why);
    if (!err && args.measured)
        err = measured_step_load(&args, &facts, &measured, &why);
    if (!err && args.timeline)
        err = timeline_draw(&job, &facts, &measured, args.timeline, &why);
    if (!err && args.schedule_csv)
        err = schedule_print(&job, args.schedule_csv, &why);
    if (err) {
        code = command_refuse(err, &why);
    } else if (!args.schedule_csv && g->format != OUT_TEXT) {
        code = command_json(g, plan_json(&job, &facts, &measured));
    } else if (!args.schedule_csv) {
        plan_report_print(&job, &facts);
        measured_print_text(&measured);
    }
    measured_step_fini(&measured);
    spec_facts_fini(&facts);
    job_fini(&job);
    return code;
}
