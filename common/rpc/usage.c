/* A sample stores its values by field, so that a line of JSON is a list of columns: most readers want one number of all
 * ranks. */
#include "common/rpc/usage.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define ROW(mean_, name_, ...)                \
    {.name = #name_,                          \
     .offset = offsetof(struct usage, name_), \
     .kind = FIELD_REAL,                      \
     .presence = FIELD_OPTIONAL,              \
     __VA_ARGS__},
#define MEAN(mean_, name_, ...) USAGE_##mean_,
#define NONE(mean_, name_, ...) .name_ = NAN,

static const struct field rows[] = {USAGE_FIELDS(ROW)};
static const enum usage_mean means[] = {USAGE_FIELDS(MEAN)};

const struct field_table usage_fields = {rows, USAGE_COUNT, sizeof(struct usage), 0};
const struct usage usage_none = {USAGE_FIELDS(NONE)};

#define MS_MAX 1000000000000000 /* the year 33658; sums of windows cannot overflow */
#define REPORTS_PER_S 100       /* a report costs the leader some 10 us */

int64_t usage_window_ms(int ranks)
{
    const int64_t ms = (int64_t)ranks * 1000 / REPORTS_PER_S;
    return ms > USAGE_WINDOW_MS ? ms : USAGE_WINDOW_MS;
}

/* ---- samples ---- */

err_t usage_sample_init(struct usage_sample *s, int ranks)
{
    *s = (struct usage_sample){.ranks = ranks};
    if (ranks < 1 || ranks > USAGE_RANKS_MAX)
        return ERR_LIMIT;
    const size_t n = (size_t)ranks * USAGE_COUNT;
    s->node = calloc((size_t)ranks, sizeof(*s->node));
    s->value = malloc(n * sizeof(*s->value));
    err_t err = s->node && s->value ? OK : ERR_NOMEM;
    for (size_t i = 0; !err && i < n; i++)
        s->value[i] = NAN;
    for (int r = 0; !err && r < ranks; r++)
        err = usage_sample_set_node(s, r, "");
    if (err)
        usage_sample_fini(s);
    return err;
}

void usage_sample_fini(struct usage_sample *s)
{
    for (int r = 0; s->node && r < s->ranks; r++)
        free(s->node[r]);
    free(s->node);
    free(s->value);
    *s = (struct usage_sample){0};
}

err_t usage_sample_copy(const struct usage_sample *s, struct usage_sample *ret)
{
    struct usage_sample copy;
    err_t err = usage_sample_init(&copy, s->ranks);
    for (int r = 0; !err && r < s->ranks; r++)
        err = usage_sample_set_node(&copy, r, s->node[r]);
    if (err) {
        usage_sample_fini(&copy);
        return err;
    }
    memcpy(copy.value, s->value, (size_t)s->ranks * USAGE_COUNT * sizeof(*s->value));
    copy.wall_ms = s->wall_ms;
    copy.window_ms = s->window_ms;
    copy.step = s->step;
    copy.epoch = s->epoch;
    *ret = copy;
    return OK;
}

err_t usage_sample_set_node(struct usage_sample *s, int rank, const char *node)
{
    if (s->node[rank] && strcmp(s->node[rank], node) == 0)
        return OK;
    char *copy = strdup(node);
    if (!copy)
        return ERR_NOMEM;
    free(s->node[rank]);
    s->node[rank] = copy;
    return OK;
}

struct usage usage_of_rank(const struct usage_sample *s, int rank)
{
    struct usage u;
    for (int f = 0; f < USAGE_COUNT; f++)
        field_set(&rows[f], &u, (struct field_value){.real = *usage_at(s, (enum usage_field)f, rank)});
    return u;
}

void usage_set_rank(struct usage_sample *s, int rank, const struct usage *usage)
{
    for (int f = 0; f < USAGE_COUNT; f++)
        *usage_at(s, (enum usage_field)f, rank) = field_get(&rows[f], usage).real;
}

static double weighted(double a, double weight_a, double b, double weight_b)
{
    const double sum = weight_a + weight_b;
    return sum > 0 ? (a * weight_a + b * weight_b) / sum : (a + b) / 2;
}

struct usage usage_join(const struct usage *a, double steps_a, double ms_a, const struct usage *b, double steps_b,
                        double ms_b)
{
    struct usage ret = usage_none;
    for (int f = 0; f < USAGE_COUNT; f++) {
        const double x = field_get(&rows[f], a).real, y = field_get(&rows[f], b).real;
        double joined = fmax(x, y); /* the other one if one of them is NAN */
        if (!isnan(x) && !isnan(y) && means[f] == USAGE_BY_STEP)
            joined = weighted(x, steps_a, y, steps_b);
        if (!isnan(x) && !isnan(y) && means[f] == USAGE_BY_TIME)
            joined = weighted(x, ms_a, y, ms_b);
        field_set(&rows[f], &ret, (struct field_value){.real = joined});
    }
    return ret;
}

bool usage_sample_fits(const struct usage_sample *s, const struct usage_sample *next)
{
    bool same = s->epoch == next->epoch && s->ranks == next->ranks;
    for (int r = 0; same && r < s->ranks; r++)
        same = strcmp(s->node[r], next->node[r]) == 0;
    return same;
}

static double steps_of(const struct usage *u, int64_t window_ms)
{
    return u->step_s > 0 ? (double)window_ms * 1e-3 / u->step_s : 0;
}

void usage_sample_join(struct usage_sample *s, const struct usage_sample *next)
{
    for (int r = 0; r < s->ranks; r++) {
        const struct usage a = usage_of_rank(s, r), b = usage_of_rank(next, r);
        const struct usage u = usage_join(&a, steps_of(&a, s->window_ms), (double)s->window_ms, &b,
                                          steps_of(&b, next->window_ms), (double)next->window_ms);
        usage_set_rank(s, r, &u);
    }
    s->window_ms += next->window_ms;
    s->wall_ms = next->wall_ms;
    s->step = next->step;
}

/* ---- lines ---- */

static bool has_field(const struct usage_sample *s, enum usage_field f)
{
    bool has = false;
    for (int r = 0; !has && r < s->ranks; r++)
        has = isfinite(*usage_at(s, f, r));
    return has;
}

static err_t put_column(struct buf *b, const struct usage_sample *s, enum usage_field f)
{
    err_t err = buf_printf(b, ", \"%s\": [", rows[f].name);
    for (int r = 0; !err && r < s->ranks; r++) {
        const double x = *usage_at(s, f, r);
        err = isfinite(x) ? buf_printf(b, "%s%.6g", r ? ", " : "", x) : buf_printf(b, "%snull", r ? ", " : "");
    }
    return err ? err : buf_printf(b, "]");
}

/* The name of a node consists of letters, digits, '.', '_' and '-', so that none needs an escape. */
static err_t put_nodes(struct buf *b, const struct usage_sample *s)
{
    err_t err = buf_printf(b, ", \"node\": [");
    for (int r = 0; !err && r < s->ranks; r++)
        err = buf_printf(b, "%s\"%s\"", r ? ", " : "", s->node[r]);
    return err ? err : buf_printf(b, "]");
}

err_t usage_line_format(const struct usage_sample *s, struct buf *ret)
{
    const size_t start = ret->len;
    err_t err = buf_printf(
        ret, "{\"wall_ms\": %" PRId64 ", \"window_ms\": %" PRId64 ", \"step\": %" PRId64 ", \"epoch\": %" PRIu64,
        s->wall_ms, s->window_ms, s->step, s->epoch);
    err = err ? err : put_nodes(ret, s);
    for (int f = 0; !err && f < USAGE_COUNT; f++)
        if (has_field(s, (enum usage_field)f))
            err = put_column(ret, s, (enum usage_field)f);
    err = err ? err : buf_printf(ret, "}\n");
    if (err)
        ret->len = start;
    return err;
}

static err_t get_columns(const json_t *o, struct usage_sample *s)
{
    for (int f = 0; f < USAGE_COUNT; f++) {
        const json_t *column = json_object_get(o, rows[f].name);
        if (column && json_array_size(column) != (size_t)s->ranks)
            return ERR_CORRUPT;
        for (int r = 0; column && r < s->ranks; r++) {
            const json_t *x = json_array_get(column, (size_t)r);
            *usage_at(s, (enum usage_field)f, r) = json_is_number(x) ? json_number_value(x) : NAN;
        }
    }
    return OK;
}

static bool is_node(const char *name)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    return name && strlen(name) < USAGE_NODE_BYTES && name[strspn(name, letters)] == '\0';
}

static err_t get_nodes(const json_t *nodes, struct usage_sample *s)
{
    err_t err = OK;
    for (int r = 0; !err && r < s->ranks; r++) {
        const char *name = json_string_value(json_array_get(nodes, (size_t)r));
        err = is_node(name) ? usage_sample_set_node(s, r, name) : ERR_CORRUPT;
    }
    return err;
}

static err_t get_sample(const json_t *o, struct usage_sample *ret)
{
    const json_t *nodes = json_object_get(o, "node");
    const json_int_t epoch = json_integer_value(json_object_get(o, "epoch"));
    if (!json_array_size(nodes) || json_array_size(nodes) > USAGE_RANKS_MAX || epoch < 1)
        return ERR_CORRUPT;
    err_t err = usage_sample_init(ret, (int)json_array_size(nodes));
    if (err)
        return err;
    ret->wall_ms = json_integer_value(json_object_get(o, "wall_ms"));
    ret->window_ms = json_integer_value(json_object_get(o, "window_ms"));
    ret->step = json_integer_value(json_object_get(o, "step"));
    ret->epoch = (uint64_t)epoch;
    const bool valid =
        ret->wall_ms > 0 && ret->wall_ms <= MS_MAX && ret->window_ms > 0 && ret->window_ms <= MS_MAX && ret->step >= 0;
    err = valid ? get_nodes(nodes, ret) : ERR_CORRUPT;
    err = err ? err : get_columns(o, ret);
    if (err)
        usage_sample_fini(ret);
    return err;
}

err_t usage_line_parse(const char *line, size_t len, struct usage_sample *ret)
{
    json_t *o = json_loadb(line, len, 0, NULL);
    struct usage_sample s;
    err_t err = get_sample(o, &s);
    json_decref(o);
    if (!err)
        *ret = s;
    return err;
}
