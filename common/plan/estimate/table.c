/* A table is read once and searched some thousand times for a forecast: its rows are sorted, so that a group is found
 * by halving, and a group is a full grid, so that the neighbours of a size are found by their places. */
#include "common/plan/estimate/table.h"

#include "common/plan/estimate/cost.h"
#include "common/plan/estimate/forecast.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    int bit;
    const char *name;
} forms[] = {{TABLE_TRANS_A, "trans_a"},
             {TABLE_TRANS_B, "trans_b"},
             {TABLE_ACC, "acc"},
             {TABLE_CAUSAL, "causal"},
             {TABLE_SHARED, "shared"}};
#define N_FORMS (sizeof(forms) / sizeof(forms[0]))

static bool is_product(enum op_kind kind)
{
    return kind == OP_GEMM || kind == OP_GROUPED_GEMM;
}

static bool is_attention(enum op_kind kind)
{
    return kind == OP_ATTENTION || kind == OP_ATTENTION_GRAD;
}

/* ---- the shape of an op ---- */

static double dim(const struct program *p, struct graph_dim d, int64_t samples)
{
    if (d.sym == SYM_ARRIVED) /* as many rows as if all experts are equally busy */
        return (double)d.factor * (double)p->mean_arrived * (double)samples / (double)p->max_samples;
    return (double)program_dim(p, d, samples);
}

static int product_form(const struct op *op)
{
    return (op->flags & OPF_TRANS_A ? TABLE_TRANS_A : 0) | (op->flags & OPF_TRANS_B ? TABLE_TRANS_B : 0) |
           (op->flags & OPF_ACC ? TABLE_ACC : 0);
}

static void product_shape(const struct program *p, const struct op *op, int64_t samples, struct table_row *ret,
                          double *ret_parts)
{
    *ret_parts = op->kind == OP_GROUPED_GEMM && op->seq > 0 ? (double)op->seq : 1;
    ret->key.form = product_form(op);
    ret->size[0] = dim(p, op->m, samples) / *ret_parts;
    ret->size[1] = dim(p, op->n, samples);
    ret->size[2] = dim(p, op->k, samples);
}

/* The part of all pairs that the mask leaves is in the number of parts. */
static void attention_shape(const struct program *p, const struct op *op, int64_t samples, struct table_row *ret,
                            double *ret_parts)
{
    struct op_cost cost;
    const double seq = (double)(op->seq ? op->seq : p->seq), keys = op->seq_kv ? (double)op->seq_kv : seq;
    const double pairs = op->flags & OPF_CAUSAL ? keys * (keys + 1) / 2 : keys * keys;
    plan_op_cost(p, op, samples, &cost);
    ret->key.form = op->flags & OPF_CAUSAL ? TABLE_CAUSAL : 0;
    ret->size[0] = keys;
    ret->size[1] = (double)op->head_dim;
    *ret_parts = cost.flops / (op->kind == OP_ATTENTION ? 4 : 10) / pairs / (double)op->head_dim;
}

static void collective_shape(const struct program *p, const struct op *op, int64_t samples, struct table_row *ret)
{
    const struct buffer *b = &p->buffers[op->arg[0].buffer];
    const bool shared = b->space == SPACE_GRAD || b->space == SPACE_SHARED || b->space == SPACE_SENT;
    ret->key.dtype = b->dtype;
    ret->key.form = shared ? TABLE_SHARED : 0;
    ret->key.ranks = p->groups[op->group].n;
    ret->size[0] = (double)plan_op_wire(p, op, samples);
}

bool plan_table_shape(const struct program *p, const struct op *op, int64_t samples, struct table_row *ret,
                      double *ret_parts)
{
    struct op_cost cost;
    *ret = (struct table_row){.key = {op->kind, p->dtype, 0, 1}};
    *ret_parts = 1;
    if (op->kind == OP_SEND || op->kind == OP_RECV || op->kind == OP_PUSH || op->kind == OP_WAIT || op->round > 1)
        return false;
    if (op->group >= 0 && op->arg[0].buffer >= 0) {
        collective_shape(p, op, samples, ret);
    } else if (is_product(op->kind)) {
        product_shape(p, op, samples, ret, ret_parts);
    } else if (is_attention(op->kind)) {
        attention_shape(p, op, samples, ret, ret_parts);
    } else {
        plan_op_cost(p, op, samples, &cost);
        ret->size[0] = cost.bytes;
    }
    return true;
}

/* ---- search ---- */

static int by_key(const struct table_key *a, const struct table_key *b)
{
    const int x[] = {(int)a->kind - (int)b->kind, (int)a->dtype - (int)b->dtype, a->form - b->form,
                     a->ranks - b->ranks};
    for (int i = 0; i < 4; i++)
        if (x[i])
            return x[i];
    return 0;
}

static int by_row(const void *a, const void *b)
{
    const struct table_row *x = a, *y = b;
    int order = by_key(&x->key, &y->key);
    for (int d = 0; !order && d < TABLE_DIMS; d++)
        order = (x->size[d] > y->size[d]) - (x->size[d] < y->size[d]);
    return order;
}

void plan_table_sort(struct table_row *rows, int n)
{
    if (n)
        qsort(rows, (size_t)n, sizeof(*rows), by_row);
}

/* Index of the first row that is not before `key`; with `after`, of the first behind it. */
static int bound(const struct plan_table *t, const struct table_key *key, bool after)
{
    int lo = 0, hi = t->n;
    while (lo < hi) {
        const int middle = lo + (hi - lo) / 2;
        const int order = by_key(&t->rows[middle].key, key);
        if (order < 0 || (after && order == 0))
            lo = middle + 1;
        else
            hi = middle;
    }
    return lo;
}

/* A group as a grid: row [i][j][k] is rows[(i n[1] + j) n[2] + k]. */
struct grid {
    const struct table_row *rows;
    int n[TABLE_DIMS];
};

static int equal_until(const struct table_row *rows, int n, int d)
{
    int i = 1;
    while (i < n && rows[i].size[d] == rows[0].size[d])
        i++;
    return i;
}

static bool grid_of(const struct table_row *rows, int n, struct grid *ret)
{
    const int plane = equal_until(rows, n, 0), line = equal_until(rows, plane, 1);
    *ret = (struct grid){rows, {n / plane, plane / line, line}};
    for (int i = 0; i < n; i++)
        if (rows[i].size[0] != rows[i / plane * plane].size[0] ||
            rows[i].size[1] != rows[i % plane / line * line].size[1] || rows[i].size[2] != rows[i % line].size[2])
            return false;
    return n % plane == 0 && plane % line == 0;
}

/* The work of a row in a unit that its group has in common. */
static double work_of(const struct table_key *k, const double size[TABLE_DIMS])
{
    if (is_product(k->kind))
        return size[0] * size[1] * size[2];
    if (is_attention(k->kind))
        return (k->form & TABLE_CAUSAL ? size[0] * (size[0] + 1) / 2 : size[0] * size[0]) * size[1];
    return size[0];
}

static bool is_aliased(double size)
{
    return fmod(size, TABLE_ALIAS) == 0;
}

/* The two points of an axis between which a size lies, as distances of rows, and the part of the way to the second. */
struct place {
    int at, next;
    double part;
};

/* Of an axis of a product only points of the size's class count, if there are any. */
static struct place place_on(const struct grid *g, int d, double x)
{
    const int step = d == 0 ? g->n[1] * g->n[2] : d == 1 ? g->n[2] : 1;
    const bool product = is_product(g->rows[0].key.kind), aliased = is_aliased(x);
    int below = -1, above = -1;
    for (int i = 0; i < g->n[d]; i++) {
        const double size = g->rows[i * step].size[d];
        if (product && is_aliased(size) != aliased)
            continue;
        if (size <= x)
            below = i;
        else if (above < 0)
            above = i;
    }
    if (below < 0 && above < 0) /* one class only */
        below = x < g->rows[0].size[d] ? 0 : g->n[d] - 1;
    if (below < 0 || above < 0)
        return (struct place){(below < 0 ? above : below) * step, 0, 0};
    const double here = g->rows[below * step].size[d], next = g->rows[above * step].size[d];
    return (struct place){below * step, above * step, log(x / here) / log(next / here)};
}

static double rate_of(const struct table_row *r, enum table_figure figure)
{
    return log(work_of(&r->key, r->size) / r->seconds[figure]);
}

/* Interpolates between the eight points around the size. */
static double interpolate(const struct grid *g, const double size[TABLE_DIMS], enum table_figure figure)
{
    struct place place[TABLE_DIMS];
    double rate = 0;
    for (int d = 0; d < TABLE_DIMS; d++)
        place[d] = place_on(g, d, size[d]);
    for (int corner = 0; corner < 1 << TABLE_DIMS; corner++) {
        double weight = 1;
        int row = 0;
        for (int d = 0; d < TABLE_DIMS; d++) {
            const bool next = corner >> d & 1;
            weight *= next ? place[d].part : 1 - place[d].part;
            row += next ? place[d].next : place[d].at;
        }
        if (weight > 0)
            rate += weight * rate_of(&g->rows[row], figure);
    }
    return exp(rate);
}

static double seconds_of(const struct plan_table *t, const struct table_row *x, enum table_figure figure)
{
    const int first = bound(t, &x->key, false), end = bound(t, &x->key, true);
    const double work = work_of(&x->key, x->size);
    struct grid g;
    if (work <= 0)
        return 0;
    if (first == end || !grid_of(&t->rows[first], end - first, &g))
        return -1;
    const double seconds = work / interpolate(&g, x->size, figure), least = g.rows[0].seconds[figure];
    return x->key.ranks > 1 && seconds < least ? least : seconds;
}

/* ---- passes that belong to a product ---- */

static double pass(const struct plan_table *t, enum op_kind kind, enum dtype dtype, double bytes,
                   enum table_figure figure)
{
    const struct table_row x = {.key = {kind, dtype, 0, 1}, .size = {bytes}};
    const double seconds = seconds_of(t, &x, figure);
    return seconds > 0 ? seconds : 0;
}

/* The bias is written before the product; sums over an operand read it once more; activations pass over the result. */
static double passes_of(const struct plan_table *t, const struct op *op, const struct table_row *x,
                        enum table_figure figure)
{
    const enum dtype dtype = x->key.dtype;
    const double type = (double)dtype_bytes(dtype), m = x->size[0] * type, n = x->size[1], k = x->size[2];
    double sum = op->arg[2].buffer >= 0 ? pass(t, OP_ZERO, dtype, m * n, figure) : 0;
    if (op->flags & OPF_GELU)
        sum += pass(t, OP_GELU, dtype, 2 * m * n, figure);
    if (op->flags & OPF_GELU_GRAD)
        sum += pass(t, OP_GELU_GRAD, dtype, 3 * m * n, figure);
    if (op->arg[5].buffer >= 0)
        sum += pass(t, OP_BIAS_GRAD, dtype, m * k, figure);
    if (op->arg[6].buffer >= 0)
        sum += pass(t, OP_BIAS_GRAD, dtype, type * n * k, figure);
    return sum;
}

double plan_table_seconds(const struct plan_table *t, const struct program *p, const struct op *op, int64_t samples,
                          enum table_figure figure)
{
    struct table_row x;
    double parts;
    if (!plan_table_shape(p, op, samples, &x, &parts))
        return op->round > 1 ? 0 : -1;
    const double seconds = seconds_of(t, &x, figure);
    if (seconds < 0)
        return seconds;
    return parts * seconds + (op->kind == OP_GEMM ? passes_of(t, op, &x, figure) : 0);
}

/* ---- the file ---- */

static const char *form_text(int form, char *ret, size_t size)
{
    size_t n = 0;
    snprintf(ret, size, "-");
    for (size_t i = 0; i < N_FORMS; i++)
        if (form & forms[i].bit)
            n += (size_t)snprintf(ret + n, size - n, "%s%s", n ? "+" : "", forms[i].name);
    return ret;
}

err_t plan_table_print(const struct table_row *rows, int n, struct buf *ret)
{
    char form[64];
    err_t err = OK;
    for (int i = 0; !err && i < n; i++) {
        const struct table_row *r = &rows[i];
        err =
            buf_printf(ret, "%s %s %s %d  %.17g %.17g %.17g  %.4g %.4g %.4g\n", op_name(r->key.kind),
                       dtype_name(r->key.dtype), form_text(r->key.form, form, sizeof(form)), r->key.ranks, r->size[0],
                       r->size[1], r->size[2], r->seconds[TABLE_MEDIAN], r->seconds[TABLE_LOW], r->seconds[TABLE_HIGH]);
    }
    return err;
}

static bool form_parse(char *text, int *ret)
{
    char *rest = text;
    *ret = 0;
    if (strcmp(text, "-") == 0)
        return true;
    for (const char *word; (word = strsep(&rest, "+"));) {
        size_t i = 0;
        while (i < N_FORMS && strcmp(forms[i].name, word) != 0)
            i++;
        if (i == N_FORMS)
            return false;
        *ret |= forms[i].bit;
    }
    return true;
}

static bool kind_parse(const char *text, enum op_kind *ret)
{
    int k = 0;
    while (k < OP_KIND_COUNT && strcmp(op_name((enum op_kind)k), text) != 0)
        k++;
    *ret = (enum op_kind)k;
    return k < OP_KIND_COUNT;
}

/* The reason why a row cannot be true; NULL: none. An hour, and a thousandth of a nanosecond for a byte, are beyond any
 * machine. */
static const char *absurd(const struct table_row *r)
{
    const double *s = r->seconds;
    if (!(s[TABLE_LOW] > 0 && s[TABLE_LOW] <= s[TABLE_MEDIAN] && s[TABLE_MEDIAN] <= s[TABLE_HIGH]))
        return "the three times must be above 0 and in the order median, low, high with low <= median <= high";
    if (s[TABLE_HIGH] > 3600)
        return "no operation takes more than an hour";
    for (int d = 0; d < TABLE_DIMS; d++)
        if (!(r->size[d] >= 0 && r->size[d] < 1e15))
            return "a size must be from 0 to 1e15";
    if (work_of(&r->key, r->size) <= 0)
        return "the size must not be 0";
    if (work_of(&r->key, r->size) / s[TABLE_MEDIAN] > 1e18)
        return "no processor is so fast";
    return NULL;
}

static const char *row_parse(const char *line, struct table_row *ret)
{
    char kind[32], dtype[16], form[64];
    struct table_row r = {.key.ranks = 0};
    int end = 0;
    const int n = sscanf(line, "%31s %15s %63s %9d %lf %lf %lf %lf %lf %lf %n", kind, dtype, form, &r.key.ranks,
                         &r.size[0], &r.size[1], &r.size[2], &r.seconds[0], &r.seconds[1], &r.seconds[2], &end);
    if (n != 10 || line[end])
        return "a row is: operation type form ranks size size size median low high";
    if (!kind_parse(kind, &r.key.kind))
        return "there is no such operation";
    r.key.dtype = dtype_parse(dtype);
    if (r.key.dtype == DT_NONE)
        return "there is no such type";
    if (!form_parse(form, &r.key.form))
        return "the form is -, or some of trans_a, trans_b, acc, causal and shared joined by +";
    if (r.key.ranks < 1)
        return "the number of ranks is at least 1";
    *ret = r;
    return absurd(&r);
}

static err_t complain(const char *name, int line, const char *what, struct why *why)
{
    return why_set(why, ERR_INVALID, "%s:%d: %s; `dtctl plan --calibrate` writes the table anew", name, line, what);
}

struct table_reader {
    const char *name;
    struct plan_table t;
    int *lines; /* by row: its line */
    int cap;
};

static err_t add_row(struct table_reader *r, const char *text, int line, struct why *why)
{
    struct table_row row;
    const char *wrong = row_parse(text, &row);
    if (wrong)
        return complain(r->name, line, wrong, why);
    if (r->t.n == TABLE_MAX_ROWS)
        return complain(r->name, line, "a table has at most 65536 rows", why);
    if (r->t.n && by_row(&r->t.rows[r->t.n - 1], &row) >= 0)
        return complain(r->name, line,
                        "the row must come after the row before it, by operation, type, form, ranks and "
                        "size",
                        why);
    if (r->t.n == r->cap) {
        const int cap = r->cap ? 2 * r->cap : 256;
        struct table_row *rows = realloc(r->t.rows, (size_t)cap * sizeof(*rows));
        r->t.rows = rows ? rows : r->t.rows;
        int *lines = realloc(r->lines, (size_t)cap * sizeof(*lines));
        r->lines = lines ? lines : r->lines;
        if (!rows || !lines)
            return why_set(why, ERR_NOMEM, "%s: out of memory", r->name);
        r->cap = cap;
    }
    r->lines[r->t.n] = line;
    r->t.rows[r->t.n++] = row;
    return OK;
}

static err_t check_grids(const struct table_reader *r, struct why *why)
{
    struct grid g;
    for (int i = 0, end; i < r->t.n; i = end) {
        end = bound(&r->t, &r->t.rows[i].key, true);
        if (!grid_of(&r->t.rows[i], end - i, &g))
            return complain(r->name, r->lines[i], "the sizes of this operation are no full grid", why);
    }
    return OK;
}

static err_t read_lines(struct table_reader *r, char *text, struct why *why)
{
    err_t err = OK;
    int number = 0;
    for (char *line, *rest = text; !err && (line = strsep(&rest, "\n"));) {
        number++;
        if (number == 1 && strcmp(line, "dtd times 1") != 0)
            err = complain(r->name, number, "the first line must be: dtd times 1", why);
        else if (number > 1 && line[0] && line[0] != '#')
            err = add_row(r, line, number, why);
    }
    return err;
}

err_t plan_table_read(const char *text, size_t len, const char *name, struct plan_table *ret, struct why *why)
{
    struct table_reader r = {.name = name};
    char *copy = NULL;
    if (len > TABLE_MAX_BYTES || memchr(text, 0, len))
        return complain(name, 1, "this is no table of times", why);
    copy = malloc(len + 1);
    if (!copy)
        return why_set(why, ERR_NOMEM, "%s: out of memory", name);
    if (len)
        memcpy(copy, text, len);
    copy[len] = 0;
    err_t err = read_lines(&r, copy, why);
    err = err ? err : check_grids(&r, why);
    free(copy);
    free(r.lines);
    if (err)
        plan_table_fini(&r.t);
    else
        *ret = r.t;
    return err;
}

void plan_table_fini(struct plan_table *t)
{
    free(t->rows);
    *t = (struct plan_table){0};
}
