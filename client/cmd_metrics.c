/* dtctl metrics: prints one row per step. Text columns have fixed widths, because each row is printed as it arrives.
 * JSON is a line per step with -o jsonl, and one array with -o json. With --to, the rows are written for another
 * program instead (client/export.c). */
#include "client/client.h"
#include "client/commands.h"
#include "client/export.h"
#include "client/field_text.h"
#include "client/follow.h"
#include "client/json.h"
#include "client/rank_usage.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define POINTS_MAX 10000 /* a limit of dtd-control (CURVE_POINTS_MAX) */

struct metrics_args {
    struct global *global;
    const char *job;
    bool follow, ranks;
    int64_t from_step, points, last;
    enum export_kind to;
    const char *dir;
};

/* Control stores each step once, so a step between two rows that has none was left out there. */
struct steps_seen {
    bool any;
    int64_t last, missing; /* steps */
};

struct sink {
    const struct global *global;
    const struct metrics_args *args;
    int64_t next; /* first step to request after a reconnect */
    json_t *array;
    int late; /* columns with a higher number are left out */
    bool titled;
    uint64_t rare;   /* by row of metric_fields: rare columns that are shown */
    int64_t printed; /* rows, or points */
    struct steps_seen seen;
    int code;
};

enum { KEY_LAST = 256, KEY_POINTS };

static const struct argp_option options[] = {
    {"follow", 'f', 0, 0, "Continue with new steps until the job ends or Ctrl-C", 0},
    {"from", 's', "STEP", 0, "Start with this step", 0},
    {"last", KEY_LAST, "N", OPTION_ARG_OPTIONAL, "Only the last N steps; without N, the last one", 0},
    {"points", KEY_POINTS, "N", 0,
     "All steps in at most N points: the newest values of each point, and the smallest, largest and mean ones", 0},
    {"ranks", 'r', 0, 0, "Show what each rank does: times of a step, memory, processor and GPU", 0},
    {"to", 't', "KIND", 0, "Write all steps for another program: tensorboard, wandb or csv", 0},
    {"dir", 'd', "DIR", 0,
     "Folder to write to (with --to). Default: that of the job file (run.tensorboard, run.wandb), else runs for "
     "TensorBoard, the current folder for W&B, and standard output for CSV",
     0},
    {0}};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct metrics_args *a = state->input;
    switch (key) {
    case 'f':
        a->follow = true;
        return 0;
    case 's':
        if (!arg_number(arg, INT64_MAX, &a->from_step))
            argp_error(state, "--from %s: expected the number of a step", arg);
        return 0;
    case KEY_LAST:
        a->last = 1;
        if (arg && (!arg_number(arg, INT64_MAX, &a->last) || !a->last))
            argp_error(state, "--last=%s: expected a number of steps from 1", arg);
        return 0;
    case KEY_POINTS:
        if (!arg_number(arg, POINTS_MAX, &a->points) || !a->points)
            argp_error(state, "--points %s: expected a number of points from 1 to %d", arg, POINTS_MAX);
        return 0;
        return 0;
    case 'r':
        a->ranks = true;
        return 0;
    case 't':
        a->to = export_kind_of(arg);
        if (!a->to)
            argp_error(state, "--to %s: expected tensorboard, wandb or csv", arg);
        return 0;
    case 'd':
        a->dir = arg;
        return 0;
    case ARGP_KEY_END:
        if (a->dir && !a->to)
            argp_error(state, "--dir needs --to tensorboard, wandb or csv");
        if (a->ranks && (a->to || a->from_step || a->last || a->points))
            argp_error(state, "--ranks takes none of --to, --from, --last and --points; -o jsonl prints all windows of "
                              "the job");
        if ((a->from_step > 0) + (a->last > 0) + (a->points > 0) > 1)
            argp_error(state, "of --from, --last and --points only one is possible");
        if (a->to && (a->follow || a->from_step || a->last || a->points))
            argp_error(state, "--to writes all steps: it takes none of --follow, --from, --last and --points. While a "
                              "job runs, its key "
                              "run.tensorboard or run.wandb writes each step");
        return parse_job(key, arg, state, a->global, &a->job);
    default:
        return parse_job(key, arg, state, a->global, &a->job);
    }
}

/* `steps` rows, of which the newest is of this step. */
static void seen_add(struct steps_seen *seen, int64_t step, int64_t steps)
{
    const int64_t missing = step - seen->last - steps;
    seen->missing += seen->any && missing > 0 ? missing : 0;
    seen->any = true;
    seen->last = step;
}

static void seen_note(const struct steps_seen *seen)
{
    if (seen->missing)
        fprintf(stderr,
                "dtctl: note: %" PRId64
                " steps have no row: rows of older steps were thinned out (disk.metrics_mib and "
                "users.metrics_mib of dtd's configuration), or could not be stored\n",
                seen->missing);
}

/* Rare columns are shown only if the first row has a value. */
static bool has_column(const struct sink *s, int i)
{
    const struct field *f = &metric_fields.field[i];
    return f->column && (!f->rare || s->rare >> i & 1);
}

/* The largest `late` of the columns that fit into `columns`. */
static int columns_fit(const struct sink *s, int columns)
{
    int late = 0, width;
    do {
        width = -2;
        late++;
        for (int i = 0; i < metric_fields.n; i++)
            if (has_column(s, i) && metric_fields.field[i].late <= late)
                width += metric_fields.field[i].width + 2;
    } while (width < columns && late < metric_fields.n);
    return width < columns ? INT_MAX : late - 1;
}

/* On a terminal that is too narrow for all columns, some are left out, and a line reports it. */
static void choose_columns(struct sink *s, const struct metric *first)
{
    int n = 0;
    for (int i = 0; i < metric_fields.n && i < 64; i++)
        s->rare |= (uint64_t)!field_absent(&metric_fields.field[i], first) << i;
    s->late = out_is_terminal(stdout) ? columns_fit(s, out_columns(stdout)) : INT_MAX;
    for (int i = 0; i < metric_fields.n; i++)
        n += has_column(s, i) && metric_fields.field[i].late > s->late;
    if (n)
        printf("%d columns do not fit (-o jsonl)\n", n);
}

static bool is_shown(const struct sink *s, int i)
{
    return has_column(s, i) && metric_fields.field[i].late <= s->late;
}

/* Columns are aligned to the right, two spaces apart. */
static void row_print(struct sink *s, const struct metric *m)
{
    char text[OUT_NUMBER];
    const char *gap = "";
    if (!s->titled) {
        choose_columns(s, m);
        fputs(out_color(stdout, OUT_BOLD), stdout);
        for (int i = 0; i < metric_fields.n; i++) {
            const struct field *f = &metric_fields.field[i];
            if (is_shown(s, i))
                printf("%s%*s", gap, f->width, f->column);
            gap = "  ";
        }
        printf("%s\n", out_color(stdout, OUT_PLAIN));
    }
    s->titled = true;
    gap = "";
    for (int i = 0; i < metric_fields.n; i++) {
        const struct field *f = &metric_fields.field[i];
        if (is_shown(s, i))
            printf("%s%*s", gap, f->width, field_text(f, m, text));
        gap = "  ";
    }
    putchar('\n');
}

static bool on_metric(void *arg, const struct metric *m)
{
    struct sink *s = arg;
    s->next = m->step + 1;
    s->printed++;
    seen_add(&s->seen, m->step, 1);
    switch (s->global->format) {
    case OUT_TEXT:
        row_print(s, m);
        return !ferror(stdout);
    case OUT_JSONL:
        s->code = command_json(s->global, json_of_metric(m));
        return s->code == EXIT_DONE && !ferror(stdout);
    case OUT_JSON:
        if (json_array_append_new(s->array, json_of_metric(m)))
            s->code = command_fail(ERR_NOMEM, NULL);
        return s->code == EXIT_DONE;
    }
    return false;
}

/* The text of a point: the newest value of some metrics, and some numbers of their spread. */
static const struct {
    const char *title, *metric;
    int width;
    enum { POINT_STEPS, POINT_LAST, POINT_MIN, POINT_MAX, POINT_MEAN, POINT_NOT_FINITE } what;
} point_columns[] = {
    {"STEP", "step", 9, POINT_LAST},          {"STEPS", "step", 7, POINT_STEPS},
    {"LOSS", "loss", 10, POINT_MEAN},         {"LOSS_MIN", "loss", 10, POINT_MIN},
    {"LOSS_MAX", "loss", 10, POINT_MAX},      {"NOT_FINITE", "loss", 10, POINT_NOT_FINITE},
    {"VALID", "valid_loss", 10, POINT_LAST},  {"NORM", "grad_norm", 10, POINT_MEAN},
    {"NORM_MAX", "grad_norm", 10, POINT_MAX}, {"TOK/S", "tokens_per_s", 9, POINT_MEAN},
    {"STEP_S", "step_s", 9, POINT_MEAN},      {"STEP_S_MAX", "step_s", 10, POINT_MAX},
};
#define N_POINT_COLUMNS (sizeof(point_columns) / sizeof(point_columns[0]))

static const char *point_text(size_t column, const struct metric_point *p, char ret[OUT_NUMBER])
{
    const struct field *f = field_find(&metric_fields, point_columns[column].metric);
    const struct metric_spread *s = &p->of[f - metric_fields.field];
    const double values[] = {[POINT_MIN] = s->min, [POINT_MAX] = s->max, [POINT_MEAN] = s->sum / (double)s->n};
    struct metric shown = p->last;
    switch (point_columns[column].what) {
    case POINT_STEPS:
    case POINT_NOT_FINITE:
        snprintf(ret, OUT_NUMBER, "%" PRId64, point_columns[column].what == POINT_STEPS ? p->steps : p->steps - s->n);
        return ret;
    case POINT_MIN:
    case POINT_MAX:
    case POINT_MEAN:
        field_set(f, &shown, (struct field_value){.real = s->n ? values[point_columns[column].what] : NAN});
        break;
    case POINT_LAST:
        break;
    }
    return field_text(f, &shown, ret);
}

static void point_print(struct sink *s, const struct metric_point *p)
{
    char text[OUT_NUMBER];
    if (!s->titled) {
        fputs(out_color(stdout, OUT_BOLD), stdout);
        for (size_t i = 0; i < N_POINT_COLUMNS; i++)
            printf("%s%*s", i ? "  " : "", point_columns[i].width, point_columns[i].title);
        printf("%s\n", out_color(stdout, OUT_PLAIN));
    }
    s->titled = true;
    for (size_t i = 0; i < N_POINT_COLUMNS; i++)
        printf("%s%*s", i ? "  " : "", point_columns[i].width, point_text(i, p, text));
    putchar('\n');
}

static bool on_point(void *arg, const struct metric_point *p)
{
    struct sink *s = arg;
    s->next = p->last.step + 1;
    s->printed++;
    seen_add(&s->seen, p->last.step, p->steps);
    switch (s->global->format) {
    case OUT_TEXT:
        point_print(s, p);
        return !ferror(stdout);
    case OUT_JSONL:
        s->code = command_json(s->global, json_of_point(p));
        return s->code == EXIT_DONE && !ferror(stdout);
    case OUT_JSON:
        if (json_array_append_new(s->array, json_of_point(p)))
            s->code = command_fail(ERR_NOMEM, NULL);
        return s->code == EXIT_DONE;
    }
    return false;
}

static bool on_tick(void *arg)
{
    (void)arg;
    return fflush(stdout) == 0;
}

/* Streams over one connection, starting after the last step that was printed. */
static err_t metrics_call(struct client *c, void *arg, struct why *why)
{
    struct sink *s = arg;
    const struct metrics_args *a = s->args;
    const struct client_stream stream = {
        .metric = on_metric, .point = a->points ? on_point : NULL, .tick = on_tick, .arg = s};
    struct client_metrics_part part = {.follow = a->follow, .from_step = s->next};
    if (!s->printed) {
        part.points = a->points;
        part.last = a->last;
    }
    return client_metrics_part(c, a->job, &part, &stream, why);
}

static int metrics_print(struct global *g, const struct metrics_args *args)
{
    struct sink sink = {.global = g, .args = args, .next = args->from_step, .array = json_array()};
    struct why why = {0};
    err_t err = follow_call(g, metrics_call, &sink, &why);
    if (!sink.code && g->format == OUT_JSON && (!err || err == ERR_CANCELED))
        sink.code = command_json(g, json_incref(sink.array));
    json_decref(sink.array);
    seen_note(&sink.seen);
    if (sink.code)
        return sink.code;
    if (err == ERR_CANCELED) /* Ctrl-C, or the reader of the output has ended */
        return ferror(stdout) ? EXIT_DONE : EXIT_INTERRUPTED;
    return err ? command_fail(err, &why) : EXIT_DONE;
}

/* ---- --to ---- */

struct rows {
    const struct metrics_args *args;
    struct metric *row;
    size_t n, cap;
    bool full; /* there is no memory for more */
};

/* A connection that is lost starts again with the first step. */
static bool on_row(void *arg, const struct metric *m)
{
    struct rows *rows = arg;
    if (rows->n == rows->cap) {
        size_t cap = rows->cap ? 2 * rows->cap : 1024;
        struct metric *more = realloc(rows->row, cap * sizeof(*more));
        rows->full = !more;
        if (!more)
            return false;
        rows->row = more;
        rows->cap = cap;
    }
    rows->row[rows->n++] = *m;
    return true;
}

static err_t rows_call(struct client *c, void *arg, struct why *why)
{
    struct rows *rows = arg;
    const struct client_stream stream = {.metric = on_row, .arg = rows};
    rows->n = 0;
    return client_metrics(c, rows->args->job, false, 0, &stream, why);
}

static int result_print(struct global *g, const struct metrics_args *args, const struct export_result *r)
{
    const char *viewer = export_viewer(args->to);
    if (g->format != OUT_TEXT)
        return command_json(g, json_pack("{s:s?, s:I, s:I}", "path", r->path, "steps", (json_int_t)r->steps, "added",
                                         (json_int_t)r->added));
    char *path = r->path ? out_quoted(r->path) : NULL;
    if (path && viewer)
        printf("%zu steps, %zu of them new, in %s; to show them: %s %s\n", r->steps, r->added, r->path, viewer, path);
    else if (path)
        printf("%zu steps in %s\n", r->steps, r->path);
    free(path);
    return EXIT_DONE;
}

static int metrics_export(struct global *g, const struct metrics_args *args)
{
    struct rows rows = {.args = args};
    struct steps_seen seen = {0};
    struct export_result result = {0};
    struct client_job job;
    struct why why = {0};
    err_t err = client_job_by_id(g, args->job, &job, &why);
    if (err)
        return command_fail(err, &why);
    err = follow_call(g, rows_call, &rows, &why);
    for (size_t i = 0; i < rows.n; i++)
        seen_add(&seen, rows.row[i].step, 1);
    seen_note(&seen);
    if (rows.full)
        err = why_set(&why, ERR_NOMEM, "out of memory after %zu steps", rows.n);
    if (err == ERR_CANCELED)
        why_set(&why, err, "interrupted; nothing was written");
    err = err ? err : export_write(args->to, &job, rows.row, rows.n, args->dir, &result, &why);
    free(rows.row);
    client_job_fini(&job);
    int code = err ? command_fail(err, &why) : result.path ? result_print(g, args, &result) : EXIT_DONE;
    free(result.path);
    return code;
}

int cmd_metrics(struct global *g, int argc, char **argv)
{
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .children = global_children,
        .args_doc = "JOB",
        .doc =
            "Prints a job's metrics, one row per step. A step that was repeated after a failure appears once, with the "
            "values of the newest epoch. With -o jsonl, prints one object per line: step, loss, grad_norm, lr, "
            "tokens_per_s, step_s, mfu (the share of the peak rate of the workers that the model uses), workers, "
            "epoch, wall_ms; valid_loss if the step evaluated; test_loss of the last "
            "step; skipped if the optimizer skipped the step because loss or norm was not finite; and bytes: the "
            "bytes that all workers received from each other in the step, by mesh axes, as dtctl plan forecasts "
            "them. With --last or --points, a job of millions of steps answers as fast as a short one. A point has the "
            "values of its newest step, and in JSON also steps, NAME_min, NAME_max and NAME_mean of the finite values, "
            "and not_finite: how many of its steps have a loss that is not finite. With --ranks, prints the newest "
            "window of a few seconds of all ranks: means of their steps, of which COMPUTE is not spent waiting; with "
            "-o "
            "jsonl all windows, one object per line with a list for each number."
            "\vExamples:\n  dtctl metrics 4 -f\n  dtctl metrics 4 -o jsonl | jq -r '[.step, .loss] | @tsv'\n"
            "  dtctl metrics 4 --last -o json\n"
            "  dtctl metrics 4 --points 1000 -o jsonl | jq -r '[.step, .loss_min, .loss_max] | @tsv'\n"
            "  dtctl metrics 4 --ranks\n  dtctl metrics 4 --to tensorboard --dir runs\n"
            "  dtctl metrics 4 --to csv >loss.csv"};
    struct metrics_args args = {.global = g};
    struct why why = {0};
    char number[32];
    command_parse(&argp, argc, argv, &args);
    err_t err = follow_name(g, &args.job, number, &why);
    if (err)
        return command_fail(err, &why);
    if (args.ranks)
        return rank_usage_print(g, args.job, args.follow);
    return args.to ? metrics_export(g, &args) : metrics_print(g, &args);
}
