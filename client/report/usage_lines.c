/* The file is written by other programs of this version or an older one, on a disk that may be full, so nothing of a
 * line is trusted: every number may be missing, and unknown keys are skipped. */
#include "client/report/usage_lines.h"

#include "common/base/file.h"

#include <jansson.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_BYTES ((size_t)256 << 20) /* control bounds the number of samples; this only keeps a wrong file out */
#define WALL_MAX_MS (INT64_C(1) << 50) /* far beyond any date; sums of a few such times do not overflow */
#define VALUE_MAX 1e30                 /* beyond any quantity; differences and squares of such values are finite */
#define RANKS_MAX (1 << 20)            /* JOB_MAX_WORKERS */

#define X(name, title, unit, factor, warm) [USAGE_##name] = {#name, title, unit, factor, warm},
const struct usage_column_row usage_columns[USAGE_COLUMNS] = {USAGE_FIELDS_SHOWN(X)};
#undef X

static void row_fini(struct usage_row *row)
{
    for (int c = 0; c < USAGE_COLUMNS; c++)
        free(row->value[c]);
}

void usage_samples_fini(struct usage_samples *u)
{
    for (size_t i = 0; i < u->n; i++)
        row_fini(&u->row[i]);
    for (int r = 0; r < u->ranks; r++)
        free(u->node[r]);
    free(u->row);
    free(u->node);
    *u = (struct usage_samples){0};
}

/* ---- lines ---- */

static int64_t whole_of(const json_t *line, const char *name)
{
    const json_t *v = json_object_get(line, name);
    return json_is_integer(v) ? json_integer_value(v) : -1;
}

static int ranks_of(const json_t *line)
{
    size_t most = json_array_size(json_object_get(line, "node"));
    for (int c = 0; c < USAGE_COLUMNS; c++) {
        size_t n = json_array_size(json_object_get(line, usage_columns[c].name));
        most = n > most ? n : most;
    }
    return most <= RANKS_MAX ? (int)most : 0;
}

static err_t columns_read(const json_t *line, struct usage_row *row)
{
    for (int c = 0; c < USAGE_COLUMNS; c++) {
        const json_t *list = json_object_get(line, usage_columns[c].name);
        if (!json_is_array(list))
            continue;
        row->value[c] = malloc((size_t)row->ranks * sizeof(double));
        if (!row->value[c])
            return ERR_NOMEM;
        for (int r = 0; r < row->ranks; r++) {
            const json_t *v = json_array_get(list, (size_t)r);
            const double value = json_is_number(v) ? json_number_value(v) : NAN;
            row->value[c][r] = fabs(value) < VALUE_MAX ? value : NAN;
        }
    }
    return OK;
}

/* Names of nodes; the array grows with the ranks. */
static err_t nodes_read(const json_t *line, int ranks, struct usage_samples *u)
{
    const json_t *list = json_object_get(line, "node");
    if (ranks > u->ranks) {
        char **more = realloc(u->node, (size_t)ranks * sizeof(*more));
        if (!more)
            return ERR_NOMEM;
        u->node = more;
        for (; u->ranks < ranks; u->ranks++)
            if (!(u->node[u->ranks] = strdup("")))
                return ERR_NOMEM;
    }
    for (int r = 0; r < ranks; r++) {
        const char *name = json_string_value(json_array_get(list, (size_t)r));
        if (!name || strcmp(name, u->node[r]) == 0)
            continue;
        char *copy = strdup(name);
        if (!copy)
            return ERR_NOMEM;
        free(u->node[r]);
        u->node[r] = copy;
    }
    return OK;
}

static err_t rows_room(struct usage_samples *u)
{
    if (u->n & (u->n - 1)) /* the room is the next power of two */
        return OK;
    struct usage_row *more = realloc(u->row, (u->n ? 2 * u->n : 1) * sizeof(*more));
    if (!more)
        return ERR_NOMEM;
    u->row = more;
    return OK;
}

static err_t line_read(const char *text, size_t len, struct usage_samples *u)
{
    json_t *line = json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL);
    struct usage_row row = {.wall_ms = whole_of(line, "wall_ms"),
                            .window_ms = whole_of(line, "window_ms"),
                            .step = whole_of(line, "step"),
                            .ranks = ranks_of(line)};
    const int64_t epoch = whole_of(line, "epoch");
    row.window_ms = row.window_ms > 0 ? row.window_ms : 0;
    row.epoch = epoch > 0 ? (uint64_t)epoch : 0;
    err_t err = OK;
    if (row.wall_ms < 0 || row.wall_ms > WALL_MAX_MS || row.window_ms > row.wall_ms || row.ranks == 0 ||
        (u->n && row.wall_ms < u->row[u->n - 1].wall_ms)) {
        u->bad++;
    } else {
        err = rows_room(u);
        err = err ? err : nodes_read(line, row.ranks, u);
        err = err ? err : columns_read(line, &row);
        if (err)
            row_fini(&row);
        else
            u->row[u->n++] = row;
    }
    json_decref(line);
    return err;
}

err_t usage_parse(const char *text, size_t len, struct usage_samples *ret)
{
    struct usage_samples u = {0};
    const char *end = text + len, *nl;
    err_t err = OK;
    for (const char *p = text; !err && p < end; p = nl + 1) {
        nl = memchr(p, '\n', (size_t)(end - p));
        nl = nl ? nl : end;
        if (nl > p)
            err = line_read(p, (size_t)(nl - p), &u);
    }
    if (err)
        usage_samples_fini(&u);
    else
        *ret = u;
    return err;
}

err_t usage_read(const char *folder, struct usage_samples *ret)
{
    char path[PATH_MAX];
    struct buf text = {0};
    *ret = (struct usage_samples){0};
    if (!folder[0] || snprintf(path, sizeof(path), "%s/usage.jsonl", folder) >= (int)sizeof(path))
        return OK;
    err_t err = file_read_plain(path, FILE_BYTES, &text);
    if (!err)
        err = usage_parse((const char *)text.data, text.len, ret);
    buf_fini(&text);
    return err == ERR_NOMEM ? err : OK;
}

/* ---- numbers ---- */

double usage_mean(const struct usage_samples *u, enum usage_column column, int rank)
{
    double sum = 0;
    size_t n = 0;
    for (size_t i = 0; i < u->n; i++) {
        const struct usage_row *row = &u->row[i];
        const int first = rank < 0 ? 0 : rank, last = rank < 0 ? row->ranks - 1 : rank;
        for (int r = first; row->value[column] && r <= last && r < row->ranks; r++)
            if (isfinite(row->value[column][r])) {
                sum += row->value[column][r];
                n++;
            }
    }
    return n ? sum / (double)n : NAN;
}

double usage_most(const struct usage_samples *u, enum usage_column column)
{
    double most = NAN;
    for (size_t i = 0; i < u->n; i++)
        for (int r = 0; u->row[i].value[column] && r < u->row[i].ranks; r++)
            most = fmax(most, u->row[i].value[column][r]);
    return most;
}

/* The first row that ends at or after the time, or the last row. NULL: there is none. */
static const struct usage_row *row_at(const struct usage_samples *u, int64_t wall_ms)
{
    size_t low = 0, high = u->n;
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (u->row[mid].wall_ms < wall_ms)
            low = mid + 1;
        else
            high = mid;
    }
    return u->n ? &u->row[low < u->n ? low : u->n - 1] : NULL;
}

double usage_wait_at(const void *arg, int64_t wall_ms)
{
    const struct usage_row *row = row_at(arg, wall_ms);
    if (!row || !row->value[USAGE_compute_s] || !row->value[USAGE_step_s])
        return 0;
    double slowest = 0, wait = 0;
    int n = 0;
    for (int r = 0; r < row->ranks; r++)
        slowest = fmax(slowest, row->value[USAGE_compute_s][r]);
    for (int r = 0; r < row->ranks; r++) {
        const double step = row->value[USAGE_step_s][r], computed = row->value[USAGE_compute_s][r];
        const double comm = row->value[USAGE_comm_s] ? row->value[USAGE_comm_s][r] : NAN;
        if (!(step > 0) || isnan(computed))
            continue;
        wait += fmin(slowest - computed, fmin(isnan(comm) ? step : comm, step)) / step;
        n++;
    }
    return n ? wait / n : 0;
}
