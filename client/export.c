/* TensorBoard and W&B have points from an earlier export, or from the job itself (run.tensorboard, run.wandb). They are
 * compared with the rows from the first step on, by step and time. Points that differ are replaced; the rest stays. */
#include "client/export.h"

#include "common/base/file.h"
#include "common/conf/job.h"
#include "common/conf/number.h"
#include "common/metrics/tfevents.h"
#include "common/metrics/wandb.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct export_row {
    const char *name, *key, *dir, *viewer; /* key of the job file; folder without it */
    err_t (*write)(const struct card *card, const struct client_job *job, const struct metric *rows, size_t n,
                   const char *dir, struct export_result *ret, struct why *why);
};

static err_t make_path(struct export_result *ret, struct why *why, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static err_t make_path(struct export_result *ret, struct why *why, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int n = vasprintf(&ret->path, fmt, args);
    va_end(args);
    if (n < 0)
        ret->path = NULL;
    return n < 0 ? why_set(why, ERR_NOMEM, "out of memory") : OK;
}

static err_t refuse_busy(const struct client_job *job, const char *key, const char *dir, struct why *why)
{
    return why_set(why, ERR_BUSY,
                   "job %s is writing to %s itself (%s). Repeat the command when the job has ended, or choose another "
                   "folder with --dir",
                   job->job, dir, key);
}

/* The first step from which the points differ from the rows. *ret_added: number of rows that are not among the points
 * before it. INT64_MAX: no point is wrong. */
static int64_t first_wrong(const struct curve_points *p, const struct metric *rows, size_t n, size_t *ret_added)
{
    size_t i = 0;
    while (i < n && i < p->n && p->point[i].step == rows[i].step && p->point[i].wall_ms == rows[i].wall_ms)
        i++;
    *ret_added = n - i;
    if (i == p->n)
        return INT64_MAX;
    return i < n && rows[i].step < p->point[i].step ? rows[i].step : p->point[i].step;
}

static bool has_failed(const struct client_job *job)
{
    return client_job_ended(job) && strcmp(job->state, "done") != 0;
}

static err_t write_tensorboard(const struct card *card, const struct client_job *job, const struct metric *rows,
                               size_t n, const char *dir, struct export_result *ret, struct why *why)
{
    struct tf_run run;
    err_t err = make_path(ret, why, "%s/job%s", dir, job->job);
    if (err)
        return err;
    err = tf_run_open(&run, ret->path, why);
    if (!err && run.busy)
        err = refuse_busy(job, "run.tensorboard", ret->path, why);
    int64_t wrong = err ? 0 : first_wrong(&run.points, rows, n, &ret->added);
    err = err ? err : tf_run_cut(&run, card, wrong, why);
    err = err ? err : tf_run_add(&run, card, rows, n, why);
    if (!err && client_job_ended(job))
        err = tf_run_end(&run, card, !has_failed(job), job->ended_ms, why);
    tf_run_close(&run);
    return err;
}

static err_t write_wandb(const struct card *card, const struct client_job *job, const struct metric *rows, size_t n,
                         const char *dir, struct export_result *ret, struct why *why)
{
    struct wandb_run run;
    err_t err = wandb_run_open(&run, dir, card, why);
    if (!err && run.busy)
        err = refuse_busy(job, "run.wandb", run.dir, why);
    int64_t wrong = err ? 0 : first_wrong(&run.points, rows, n, &ret->added);
    err = err ? err : wandb_run_cut(&run, wrong, why);
    err = err ? err : wandb_run_add(&run, card, rows, n, why);
    if (!err && client_job_ended(job))
        err = wandb_run_end(&run, !has_failed(job), why);
    err = err ? err : make_path(ret, why, "%s", run.dir ? run.dir : dir);
    wandb_run_close(&run);
    return err;
}

/* ---- CSV ---- */

/* Columns that are empty in every row are left out. */
static bool column_used(const struct field *f, const struct metric *rows, size_t n)
{
    bool used = f->presence == FIELD_REQUIRED;
    for (size_t i = 0; !used && i < n; i++)
        used = !field_absent(f, &rows[i]);
    return used;
}

static unsigned axes_used(const struct metric *rows, size_t n, unsigned after)
{
    unsigned next = 0;
    for (size_t i = 0; i < n; i++)
        for (int k = 0; k < rows[i].traffic.n; k++)
            if (rows[i].traffic.axes[k] > after && (!next || rows[i].traffic.axes[k] < next))
                next = rows[i].traffic.axes[k];
    return next;
}

static err_t put_value(struct buf *b, const struct field *f, const struct metric *m)
{
    const struct field_value v = field_get(f, m);
    char number[NUMBER_TEXT];
    if (f->presence != FIELD_REQUIRED && field_absent(f, m))
        return OK;
    if (f->kind != FIELD_REAL)
        return buf_printf(b, "%" PRId64, v.whole);
    if (!isfinite(v.real))
        return buf_printf(b, "%s", isnan(v.real) ? "nan" : v.real > 0 ? "inf" : "-inf");
    number_double_print(v.real, number);
    return buf_printf(b, "%s", number);
}

static err_t put_bytes(struct buf *b, const struct metric *m, unsigned axes)
{
    for (int i = 0; i < m->traffic.n; i++)
        if (m->traffic.axes[i] == axes)
            return buf_printf(b, ",%" PRId64, m->traffic.bytes[i]);
    return buf_printf(b, ",");
}

/* A line of the file: `m` NULL is the line of titles. */
static err_t put_line(struct buf *b, const struct metric *m, const bool *used, const struct metric *rows, size_t n)
{
    char name[MESH_AXES_NAME];
    const char *comma = "";
    err_t err = OK;
    for (int i = 0; !err && i < metric_fields.n; i++) {
        if (!used[i])
            continue;
        err = buf_printf(b, "%s%s", comma, m ? "" : metric_fields.field[i].name);
        if (!err && m)
            err = put_value(b, &metric_fields.field[i], m);
        comma = ",";
    }
    for (unsigned axes = axes_used(rows, n, 0); !err && axes; axes = axes_used(rows, n, axes))
        err = m ? put_bytes(b, m, axes) : buf_printf(b, ",bytes_%s", mesh_axes_name(axes, name));
    return err ? err : buf_printf(b, "\n");
}

err_t export_csv_format(const struct metric *rows, size_t n, struct buf *b)
{
    bool *used = calloc((size_t)metric_fields.n, sizeof(*used));
    if (!used)
        return ERR_NOMEM;
    for (int i = 0; i < metric_fields.n; i++)
        used[i] = column_used(&metric_fields.field[i], rows, n);
    err_t err = put_line(b, NULL, used, rows, n);
    for (size_t i = 0; !err && i < n; i++)
        err = put_line(b, &rows[i], used, rows, n);
    free(used);
    return err;
}

static err_t write_csv(const struct card *card, const struct client_job *job, const struct metric *rows, size_t n,
                       const char *dir, struct export_result *ret, struct why *why)
{
    struct buf b = {0};
    (void)card;
    ret->added = n;
    err_t err = export_csv_format(rows, n, &b);
    if (err)
        why_set(why, err, "%s", err_text(err));
    if (!err && dir)
        err = make_path(ret, why, "%s/job%s.csv", dir, job->job);
    if (!err && dir && file_make_dirs(dir, 0777))
        err = why_set(why, err_from_errno(errno), "%s: %s", dir, strerror(errno));
    if (!err && dir && (err = file_replace(ret->path, b.data, b.len, 0666)))
        why_set(why, err, "%s: %s", ret->path, err_text(err));
    if (!err && !dir) /* output_check_at_exit reports a failure */
        fwrite(b.data, 1, b.len, stdout);
    buf_fini(&b);
    return err;
}

/* ---- all kinds ---- */

static const struct export_row kinds[] = {
    [EXPORT_TENSORBOARD] = {"tensorboard", "run.tensorboard", "runs", "tensorboard --logdir", write_tensorboard},
    [EXPORT_WANDB] = {"wandb", "run.wandb", ".", "wandb sync", write_wandb},
    [EXPORT_CSV] = {"csv", NULL, NULL, NULL, write_csv},
};

enum export_kind export_kind_of(const char *name)
{
    for (size_t i = EXPORT_TENSORBOARD; i < sizeof(kinds) / sizeof(kinds[0]); i++)
        if (strcmp(name, kinds[i].name) == 0)
            return (enum export_kind)i;
    return EXPORT_NONE;
}

const char *export_viewer(enum export_kind kind)
{
    return kinds[kind].viewer;
}

static const char *folder_of(enum export_kind kind, const struct job_spec *spec)
{
    const char *own = kind == EXPORT_TENSORBOARD ? spec->run.tensorboard : kind == EXPORT_WANDB ? spec->run.wandb : "";
    return own && own[0] ? own : kinds[kind].dir;
}

err_t export_write(enum export_kind kind, const struct client_job *job, const struct metric *rows, size_t n,
                   const char *dir, struct export_result *ret, struct why *why)
{
    struct job_spec spec;
    struct card card = {0};
    struct export_result result = {.steps = n};
    if (!job->spec_yaml[0])
        return why_set(why, ERR_DENIED, "job %s belongs to %s, and its job file is needed", job->job, job->user);
    err_t err = job_parse("the job's file", job->spec_yaml, strlen(job->spec_yaml), NULL, 0, &spec, why);
    if (err)
        return err;
    if (job_is_command(&spec))
        err = why_set(why, ERR_INVALID, "job %s runs a command of its own: dtd has no metrics of it", job->job);
    err = err ? err : card_make(job->job, job->submitted_ms, job->spec_yaml, &card, why);
    err = err ? err : kinds[kind].write(&card, job, rows, n, dir ? dir : folder_of(kind, &spec), &result, why);
    card_fini(&card);
    job_fini(&spec);
    if (err)
        free(result.path);
    else
        *ret = result;
    return err;
}
