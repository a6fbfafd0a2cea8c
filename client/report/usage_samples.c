/* Samples come from control, or from a file beside the checkpoints that any program of the user may have changed. So
 * times and values that no job has are left out here, and sums of the others cannot overflow. */
#include "client/report/usage_samples.h"

#include "common/base/file.h"

#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FILE_BYTES ((size_t)256 << 20) /* control bounds the number of samples; this only keeps a wrong file out */
#define WALL_MAX_MS (INT64_C(1) << 50) /* far beyond any date; sums of a few such times do not overflow */
#define VALUE_MAX 1e30                 /* beyond any quantity; differences and squares of such values are finite */

#define X(name, title, unit, factor, warm) {USAGE_##name, title, unit, factor, warm},
const struct usage_shown usage_shown[] = {USAGE_SHOWN(X)};
#undef X
const int n_usage_shown = sizeof(usage_shown) / sizeof(usage_shown[0]);

const struct usage_shown *usage_shown_of(enum usage_field field)
{
    for (int i = 0; i < n_usage_shown; i++)
        if (usage_shown[i].field == field)
            return &usage_shown[i];
    return NULL;
}

void usage_samples_fini(struct usage_samples *u)
{
    for (size_t i = 0; i < u->n; i++)
        usage_sample_fini(&u->row[i]);
    for (int r = 0; r < u->ranks; r++)
        free(u->node[r]);
    free(u->row);
    free(u->node);
    *u = (struct usage_samples){0};
}

/* ---- adding ---- */

static err_t nodes_room(struct usage_samples *u, int ranks)
{
    if (ranks <= u->ranks)
        return OK;
    char **more = realloc(u->node, (size_t)ranks * sizeof(*more));
    if (!more)
        return ERR_NOMEM;
    u->node = more;
    for (; u->ranks < ranks; u->ranks++)
        if (!(u->node[u->ranks] = strdup("")))
            return ERR_NOMEM;
    return OK;
}

static err_t nodes_take(struct usage_samples *u, const struct usage_sample *s)
{
    err_t err = nodes_room(u, s->ranks);
    for (int r = 0; !err && r < s->ranks; r++) {
        const char *name = s->node[r] ? s->node[r] : "";
        if (!name[0] || strcmp(name, u->node[r]) == 0)
            continue;
        char *copy = strdup(name);
        if (!copy)
            return ERR_NOMEM;
        free(u->node[r]);
        u->node[r] = copy;
    }
    return err;
}

static err_t rows_room(struct usage_samples *u)
{
    if (u->n & (u->n - 1)) /* the room is the next power of two */
        return OK;
    struct usage_sample *more = realloc(u->row, (u->n ? 2 * u->n : 1) * sizeof(*more));
    if (!more)
        return ERR_NOMEM;
    u->row = more;
    return OK;
}

static bool is_possible(const struct usage_samples *u, const struct usage_sample *s)
{
    return s->ranks > 0 && s->wall_ms >= 0 && s->wall_ms <= WALL_MAX_MS && s->window_ms <= s->wall_ms &&
           (u->n == 0 || s->wall_ms >= u->row[u->n - 1].wall_ms);
}

err_t usage_samples_add(struct usage_samples *u, const struct usage_sample *s)
{
    struct usage_sample copy;
    if (!is_possible(u, s)) {
        u->bad++;
        return OK;
    }
    err_t err = rows_room(u);
    err = err ? err : nodes_take(u, s);
    err = err ? err : usage_sample_copy(s, &copy);
    if (err)
        return err;
    copy.window_ms = copy.window_ms > 0 ? copy.window_ms : 0;
    for (size_t i = 0; i < (size_t)USAGE_COUNT * (size_t)copy.ranks; i++)
        copy.value[i] = fabs(copy.value[i]) < VALUE_MAX ? copy.value[i] : NAN;
    u->row[u->n++] = copy;
    return OK;
}

static err_t line_add(const char *text, size_t len, struct usage_samples *u)
{
    struct usage_sample s;
    err_t err = usage_line_parse(text, len, &s);
    if (err) {
        u->bad++;
        return err == ERR_NOMEM ? err : OK;
    }
    err = usage_samples_add(u, &s);
    usage_sample_fini(&s);
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
            err = line_add(p, (size_t)(nl - p), &u);
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

double usage_mean(const struct usage_samples *u, enum usage_field field, int rank)
{
    double sum = 0;
    size_t n = 0;
    for (size_t i = 0; i < u->n; i++) {
        const struct usage_sample *row = &u->row[i];
        const int first = rank < 0 ? 0 : rank, last = rank < 0 ? row->ranks - 1 : rank;
        for (int r = first; r <= last && r < row->ranks; r++)
            if (isfinite(*usage_at(row, field, r))) {
                sum += *usage_at(row, field, r);
                n++;
            }
    }
    return n ? sum / (double)n : NAN;
}

static double usage_end(const struct usage_samples *u, enum usage_field field, double (*of)(double, double))
{
    double end = NAN;
    for (size_t i = 0; i < u->n; i++)
        for (int r = 0; r < u->row[i].ranks; r++)
            end = of(end, *usage_at(&u->row[i], field, r));
    return end;
}

double usage_least(const struct usage_samples *u, enum usage_field field)
{
    return usage_end(u, field, fmin);
}

double usage_most(const struct usage_samples *u, enum usage_field field)
{
    return usage_end(u, field, fmax);
}

/* The first row that ends at or after the time, or the last row. NULL: there is none. */
static const struct usage_sample *row_at(const struct usage_samples *u, int64_t wall_ms)
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
    const struct usage_sample *row = row_at(arg, wall_ms);
    double slowest = NAN, wait = 0;
    int n = 0;
    for (int r = 0; row && r < row->ranks; r++)
        slowest = fmax(slowest, *usage_at(row, USAGE_compute_s, r));
    for (int r = 0; row && r < row->ranks; r++) {
        const double step = *usage_at(row, USAGE_step_s, r), computed = *usage_at(row, USAGE_compute_s, r);
        if (!(step > 0) || isnan(computed))
            continue;
        wait += fmin(slowest - computed, fmin(*usage_at(row, USAGE_comm_s, r), step)) / step; /* fmin ignores NAN */
        n++;
    }
    return n ? wait / n : 0;
}
