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

#include <stdlib.h>

struct metrics_args {
    struct global *global;
    const char *job;
    bool follow, ranks;
    int64_t from_step;
    enum export_kind to;
    const char *dir;
};

struct sink {
    const struct global *global;
    const struct metrics_args *args;
    int64_t next; /* first step to request after a reconnect */
    json_t *array;
    int late; /* columns with a higher number are left out */
    bool titled;
    uint64_t rare; /* by row of metric_fields: rare columns that are shown */
    int code;
};

static const struct argp_option options[] = {
    {"follow", 'f', 0, 0, "Continue with new steps until the job ends or Ctrl-C", 0},
    {"from", 's', "STEP", 0, "Start with this step", 0},
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
        if (a->ranks && (a->to || a->from_step))
            argp_error(state, "--ranks takes neither --to nor --from; -o jsonl prints all windows of the job");
        if (a->to && (a->follow || a->from_step))
            argp_error(state, "--to writes all steps: it takes neither --follow nor --from. While a job runs, its key "
                              "run.tensorboard or run.wandb writes each step");
        return parse_job(key, arg, state, a->global, &a->job);
    default:
        return parse_job(key, arg, state, a->global, &a->job);
    }
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

/* On a terminal that is too narrow for all columns, some are left out, and the user is told. */
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

static bool on_tick(void *arg)
{
    (void)arg;
    return fflush(stdout) == 0;
}

/* Streams over one connection, starting after the last step that was printed. */
static err_t metrics_call(struct client *c, void *arg, struct why *why)
{
    struct sink *s = arg;
    const struct client_stream stream = {.metric = on_metric, .tick = on_tick, .arg = s};
    return client_metrics(c, s->args->job, s->args->follow, s->next, &stream, why);
}

static int metrics_print(struct global *g, const struct metrics_args *args)
{
    struct sink sink = {.global = g, .args = args, .next = args->from_step, .array = json_array()};
    struct why why = {0};
    err_t err = follow_call(g, metrics_call, &sink, &why);
    if (!sink.code && g->format == OUT_JSON && (!err || err == ERR_CANCELED))
        sink.code = command_json(g, json_incref(sink.array));
    json_decref(sink.array);
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
    struct export_result result = {0};
    struct client_job job;
    struct why why = {0};
    err_t err = client_job_by_id(g, args->job, &job, &why);
    if (err)
        return command_fail(err, &why);
    err = follow_call(g, rows_call, &rows, &why);
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
            "them. With --ranks, prints the newest window of a few seconds of all ranks: means of their steps, of "
            "which "
            "COMPUTE is not spent waiting; with -o jsonl all windows, one object per line with a list for each number."
            "\vExamples:\n  dtctl metrics 4 -f\n  dtctl metrics 4 -o jsonl | jq -r '[.step, .loss] | @tsv'\n"
            "  dtctl metrics 4 --ranks\n  dtctl metrics 4 --to tensorboard --dir runs\n  dtctl metrics 4 --to csv "
            ">loss.csv"};
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
