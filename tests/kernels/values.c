/* See values.h. A hole is a NaN that no arithmetic produces, so it detects both reads and writes where there must be
 * none. It is a signalling NaN, which arithmetic always quiets, so it also detects a kernel that writes back the result
 * of reading a hole. */
#include "tests/kernels/values.h"
#include "common/base/rng.h"
#include "tests/kernels/harness.h"
#include "tests/lib/test.h"

#include <float.h>
#include <math.h>

#define HOLE16 0x7fa5u
#define HOLE32 0x7f80ab1du
#define HOLE64 UINT64_C(0x7ff0abcd1234ef01)

const char *case_text(const struct kcase *c)
{
    static char text[320];
    snprintf(text, sizeof(text),
             "%s t=%lld d=%lld seq=%lld/%lld vocab=%lld[%lld,+%lld) m=%lld n=%lld k=%lld heads=%lld/%lld x %lld "
             "pad=%lld parts=%lld window=%lld ahead=%lld softcap=%g limit=%g flags=%u alias=%d",
             c->op, (long long)c->t, (long long)c->d, (long long)c->seq, (long long)c->seq_kv, (long long)c->vocab,
             (long long)c->lo, (long long)c->cols, (long long)c->m, (long long)c->n, (long long)c->k,
             (long long)c->heads, (long long)c->kv_heads, (long long)c->head_dim, (long long)c->pad,
             (long long)c->parts, (long long)c->window, (long long)c->ahead, c->softcap, c->limit, c->flags, c->alias);
    return text;
}

/* ---- elements ---- */

static bool is_int(enum content content)
{
    return content >= IDS && content < DOUBLES;
}

static size_t value_size(enum content content)
{
    return is_int(content) ? sizeof(int32_t) : sizeof(double);
}

enum dtype operand_type(const struct case_operand *o, const struct kern_ops *k)
{
    if (is_int(o->content))
        return DT_I32;
    if (o->content >= DOUBLES)
        return DT_F64;
    return o->wide ? k->wide : k->dtype;
}

/* Rounds to nearest, ties to even: adds half of the truncated unit before truncation, less one bit if the rest is even.
 */
static uint16_t bf16_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    if (isnan(x))
        return (uint16_t)(bits >> 16 | 0x40);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static float bf16_value(uint16_t b)
{
    uint32_t bits = (uint32_t)b << 16;
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

void element_put(enum dtype t, void *to, double x)
{
    float narrow = (float)x;
    uint16_t half = bf16_of(narrow);
    if (hole_is(sizeof(x), &x))
        hole_put(dtype_bytes(t), to);
    else if (t == DT_F64)
        memcpy(to, &x, sizeof(x));
    else if (t == DT_F32)
        memcpy(to, &narrow, sizeof(narrow));
    else if (t == DT_BF16)
        memcpy(to, &half, sizeof(half));
    else
        fail_msg("no elements of type %s here", dtype_name(t));
}

double element_get(enum dtype t, const void *from)
{
    double x;
    float narrow;
    uint16_t half;
    if (hole_is(dtype_bytes(t), from)) {
        hole_put(sizeof(x), &x);
    } else if (t == DT_F64) {
        memcpy(&x, from, sizeof(x));
    } else if (t == DT_F32) {
        memcpy(&narrow, from, sizeof(narrow));
        x = (double)narrow;
    } else {
        memcpy(&half, from, sizeof(half));
        x = (double)bf16_value(half);
    }
    return x;
}

static double rounded(enum dtype t, double x)
{
    uint8_t memory[8];
    if (hole_is(sizeof(x), &x))
        return x;
    element_put(t, memory, x);
    return element_get(t, memory);
}

/* The largest relative error of rounding to a type. */
static double round_of(enum dtype t)
{
    return t == DT_BF16 ? 0x1p-8 : t == DT_F32 ? 0x1p-24 : 0x1p-53;
}

void hole_put(size_t size, void *to)
{
    const uint16_t half = HOLE16;
    const uint32_t narrow = HOLE32;
    const uint64_t wide = HOLE64;
    memcpy(to, size == 2 ? (const void *)&half : size == 4 ? (const void *)&narrow : (const void *)&wide, size);
}

bool hole_is(size_t size, const void *p)
{
    uint8_t hole[8];
    hole_put(size, hole);
    return memcmp(p, hole, size) == 0;
}

/* ---- contents ---- */

/* Values whose rounding to half their bits is most easily done wrong; all are exact in float32. */
static double awkward_value(uint64_t i, double x)
{
    static const double list[] = {1 + 0x1p-8,  1 + 0x3p-8, 1 + 0x1p-8 + 0x1p-20,
                                  -1 - 0x1p-8, 0x1.fffp3,  (double)FLT_MAX,
                                  -0.0,        INFINITY,   -INFINITY,
                                  0x1p-126,    0x1p-140,   0x1.ffp126,
                                  -0x1.fe8p-9, 0x1p-133,   65504.0};
    const uint64_t n = sizeof(list) / sizeof(list[0]);
    if (i % (2 * n) == 2 * n - 1)
        return NAN;
    return i % 2 ? list[i / 2 % n] : x;
}

/* Element i and element n - 1 - i add up to 10, so the mean is 5, which a third of the elements are. */
static double count_of(uint64_t n, uint64_t stream, uint64_t i)
{
    const uint64_t j = i < n - 1 - i ? i : n - 1 - i;
    const double x = rng_normal(11, stream, j), one = j % 3 == 0 || 2 * i == n - 1 ? 5 : fmin(10, floor(4 * x * x));
    return i == j ? one : 10 - one;
}

static double random_value(const struct case_operand *o, uint64_t stream, uint64_t i)
{
    double x = rng_normal(11, stream, i);
    bool middle = i == (uint64_t)o->n / 2;
    switch (o->content) {
    case WEIGHTS:
        return 1 + 0.2 * x;
    case POSITIVE:
    case SQUARES:
        return 0.01 + x * x;
    case CLOSENESS:
        return 1 / (0.01 + x * x);
    case AWKWARD:
        return awkward_value(i, x);
    case SQUARES_AND_NAN:
        return middle ? NAN : 0.01 + x * x;
    case DOUBLES_AND_INF:
        return middle ? INFINITY : x;
    case NONE_CHOSEN:
        return 0;
    case FACTOR:
        return 0.25;
    case COUNTS:
        return count_of((uint64_t)o->n, stream, i);
    case LOG_SUMS:
        return 3 + x * x;
    case HALVES:
        return nearbyint(2 * x) / 2;
    case ZEROS:
        return 0;
    case POISONED:
        return middle ? NAN : i == (uint64_t)o->n / 3 ? INFINITY : i == (uint64_t)o->n / 5 ? -INFINITY : x;
    case STATS:
        return i % 3 == 0 ? 2 + x : i % 3 == 1 ? 1 + x * x : x;
    default:
        return x;
    }
}

static int32_t random_id(enum content content, const struct kcase *c, uint64_t stream, uint64_t i)
{
    double u = rng_uniform(11, stream, i);
    if (content == TARGETS && i % 5 == 3)
        return -1;
    if (content == ROW_NUMBERS)
        return (int32_t)(c->lo * c->seq + (int64_t)(u * (double)(c->parts * c->seq)));
    return (int32_t)(u * (double)c->vocab);
}

static int32_t kept_or_not(const struct kcase *c, uint64_t stream, uint64_t i, int32_t id)
{
    return c->flags & DROPPED && rng_uniform(12, stream, i) < 0.3 ? -1 : id;
}

/* Chooses each expert with the probability that leaves all sets of k equally likely. */
static void fill_choices(const struct kcase *c, uint64_t stream, int32_t *ids)
{
    for (int64_t i = 0; i < c->t; i++)
        for (int64_t e = 0, n = 0; e < c->vocab; e++)
            if (rng_uniform(11, stream, (uint64_t)(i * c->vocab + e)) * (double)(c->vocab - e) < (double)(c->k - n)) {
                ids[i * c->k + n] = kept_or_not(c, stream, (uint64_t)(i * c->k + n), (int32_t)e);
                n++;
            }
}

static void fill_permutation(int64_t n, uint64_t stream, int32_t *to)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t other = (int64_t)(rng_uniform(11, stream, (uint64_t)i) * (double)(i + 1));
        to[i] = to[other];
        to[other] = (int32_t)i;
    }
}

/* Rows, of which only `left` exist. */
static void fill_rows(int64_t n, int64_t left, bool packed, uint64_t stream, int32_t *to)
{
    fill_permutation(packed ? left : n, stream, to);
    for (int64_t i = 0; i < n; i++)
        to[i] = (packed ? i : to[i]) < left ? to[i] : -1;
}

static void fill_token_rows(const struct kcase *c, int64_t n, uint64_t stream, int32_t *to)
{
    const int64_t all = c->parts * c->seq;
    int32_t *rows = calloc((size_t)all + 1, sizeof(*rows));
    assert_non_null(rows);
    assert_true(n <= all);
    fill_permutation(all, stream, rows);
    for (int64_t i = 0; i < n; i++)
        to[i] = rows[i] + (int32_t)(c->lo * c->seq);
    free(rows);
}

/* Random boundaries in ascending order; every fourth expert has no rows, unless it is the only one. */
static void fill_offsets(const struct kcase *c, uint64_t stream, int32_t *to)
{
    const int64_t rows = used_rows(c);
    to[0] = 0;
    for (int64_t e = 1; e <= c->vocab; e++) {
        double share = ((double)(e - 1) + rng_uniform(11, stream, (uint64_t)e)) / (double)c->vocab;
        to[e] = e == c->vocab ? (int32_t)rows : e % 4 == 2 ? to[e - 1] : (int32_t)(share * (double)rows);
    }
}

/* All rows of every fourth member are for one expert. */
static void fill_all_offsets(const struct kcase *c, uint64_t stream, int32_t *to)
{
    for (int64_t i = 0; i < c->parts; i++, to += c->vocab + 1) {
        const int64_t rows = member_rows(c, i), only = i % 4 == 2 ? c->vocab / 2 : -1;
        to[0] = 0;
        for (int64_t e = 1; e <= c->vocab; e++) {
            double share = rng_uniform(11, stream, (uint64_t)(i * c->vocab + e));
            int32_t left = (int32_t)rows - to[e - 1], n = (int32_t)(share * share * (double)(left + 1));
            n = only == e - 1 ? left : only >= 0 ? 0 : n;
            to[e] = e == c->vocab ? (int32_t)rows : to[e - 1] + n;
        }
    }
}

/* Each sample begins in a document that may begin before its first query, among the keys or before them. Documents have
 * about a quarter of a sample's tokens; some have one. */
static void fill_begins(const struct kcase *c, uint64_t stream, int32_t *to)
{
    for (int64_t i = 0, begin = 0; i < c->t; i++) {
        const int64_t at = CASE_POS0 + c->ahead + i % c->seq;
        const double u = rng_uniform(11, stream, (uint64_t)i);
        if (i % c->seq == 0)
            begin = at - (int64_t)(u * (double)(c->ahead + CASE_POS0));
        else if (u * (double)c->seq < 4)
            begin = at;
        to[i] = (int32_t)begin;
    }
}

static void fill_ints(const struct kcase *c, const struct case_operand *o, uint64_t stream, int32_t *to)
{
    if (o->content == CHOICES)
        fill_choices(c, stream, to);
    else if (o->content == PERMUTATION || o->content == PACKED)
        fill_rows(o->n, rows_left(c), o->content == PACKED, stream, to);
    else if (o->content == TOKEN_ROWS)
        fill_token_rows(c, o->n, stream, to);
    else if (o->content == BEGINS)
        fill_begins(c, stream, to);
    else if (o->content == OFFSETS)
        fill_offsets(c, stream, to);
    else if (o->content == ALL_OFFSETS)
        fill_all_offsets(c, stream, to);
    else
        for (int64_t j = 0; j < o->n; j++)
            to[j] = random_id(o->content, c, stream, (uint64_t)j);
}

static bool is_gap(const struct case_operand *o, int64_t j)
{
    return (o->stride && j % o->stride >= o->cols) || j >= o->n - o->unused;
}

static void fill(struct values *v, int i, const struct kcase *c)
{
    const struct case_operand *o = &v->o[i];
    uint64_t stream = rng_stream(c->op) + (uint64_t)i * 977;
    if (is_int(o->content))
        fill_ints(c, o, stream, v->p[i]);
    for (int64_t j = 0; j < o->n && !is_int(o->content); j++)
        if (is_gap(o, j))
            hole_put(sizeof(double), (double *)v->p[i] + j);
        else
            ((double *)v->p[i])[j] = random_value(o, stream, (uint64_t)j);
}

static void round_all(struct values *v, const struct kern_ops *k)
{
    for (int i = 0; i < MAX_OPERANDS; i++)
        for (int64_t j = 0; !is_int(v->o[i].content) && j < v->o[i].n; j++)
            ((double *)v->p[i])[j] = rounded(operand_type(&v->o[i], k), ((double *)v->p[i])[j]);
}

/* Fills operands with results of the forward. */
static void take_forward(struct values *v, const struct kcase *c, const struct grad_link *l, const struct kern_ops *k)
{
    struct values f;
    struct kcase forward = *c;
    forward.op = l->forward;
    forward.alias = 0;
    values_init(&f, &forward, k);
    oracle_run(&f, &forward);
    for (int i = 0; i < MAX_OPERANDS; i++)
        if (l->from[i] >= 0 && v->o[i].n)
            memcpy(v->p[i], f.p[l->from[i]], (size_t)v->o[i].n * value_size(v->o[i].content));
    values_fini(&f);
}

void values_init(struct values *v, const struct kcase *c, const struct kern_ops *k)
{
    const struct op_desc *op = op_find(c->op);
    struct grad_link l;
    memset(v, 0, sizeof(*v));
    memset(&l, 0xff, sizeof(l)); /* every entry NONE */
    l.forward = NULL;
    assert_non_null(op);
    op->shape(c, v->o);
    for (int i = 0; i < MAX_OPERANDS; i++) {
        if (v->o[i].role == ABSENT)
            continue;
        v->p[i] = calloc((size_t)v->o[i].n + 1, value_size(v->o[i].content));
        assert_non_null(v->p[i]);
        if (v->o[i].role != OUT)
            fill(v, i, c);
    }
    if (op->link)
        op->link(c, &l);
    if (l.forward)
        take_forward(v, c, &l, k);
    if (k)
        round_all(v, k);
}

void values_copy(struct values *to, const struct values *from)
{
    *to = *from;
    for (int i = 0; i < MAX_OPERANDS; i++) {
        size_t bytes = (size_t)(from->o[i].n + 1) * value_size(from->o[i].content);
        to->p[i] = from->p[i] ? malloc(bytes) : NULL;
        if (to->p[i])
            memcpy(to->p[i], from->p[i], bytes);
    }
}

void values_fini(struct values *v)
{
    for (int i = 0; i < MAX_OPERANDS; i++)
        free(v->p[i]);
}

/* ---- comparison ---- */

/* Element j as it is compared; a hole stays a hole. */
static double compared(const struct values *v, int i, int64_t j)
{
    double x = ((const double *)v->p[i])[j];
    return v->o[i].content == CLOSENESS && !hole_is(sizeof(x), &x) ? 1 / x : x;
}

/* The root mean square of the elements that were written and are finite. */
static double rms_of(const struct values *v, int i)
{
    double sum = 0;
    int64_t n = 0;
    for (int64_t j = 0; j < v->o[i].n; j++) {
        double x = compared(v, i, j);
        if (isfinite(x)) {
            sum += x * x;
            n++;
        }
    }
    return n ? sqrt(sum / (double)n) : 0;
}

/* The float32 oracle rounds only when it stores. */
static double multiple_of(const struct kern_ops *k)
{
    return strcmp(k->name, "ref") == 0 ? 2 : 8;
}

/* The allowed error of an element: `near` times itself or times `size`, whichever is larger, plus `stored` times
 * itself. */
struct bound {
    bool exact;
    double near, stored, size;
};

static struct bound bound_of(const struct values *want, int i, const struct kern_ops *k, const struct kcase *c)
{
    const struct op_desc *op = op_find(c->op);
    enum dtype t = operand_type(&want->o[i], k);
    double terms = op->terms ? (double)op->terms(c) : 1;
    double eps = op->exact_doubles && t == DT_F64 ? 0x1p-53 : 0x1p-24;
    return (struct bound){.exact = terms == 0,
                          .near = multiple_of(k) * eps * sqrt(terms) +
                                  (op->between ? op->between(c) * round_of(k->dtype) : 0),
                          .stored = round_of(t),
                          .size = fmax(rms_of(want, i), op->floor)};
}

static bool element_near(double a, double b, const struct bound *bound)
{
    if (hole_is(sizeof(b), &b) || hole_is(sizeof(a), &a))
        return hole_is(sizeof(b), &b) && hole_is(sizeof(a), &a);
    if (isnan(b) || a == b)
        return isnan(b) == isnan(a);
    return !bound->exact && fabs(a - b) <= bound->near * fmax(fabs(b), bound->size) + bound->stored * fabs(b);
}

static bool ints_equal(const struct values *got, const struct values *want, int i, const struct kcase *c,
                       const char *label)
{
    const int32_t *a = got->p[i], *b = want->p[i];
    for (int64_t j = 0; j < want->o[i].n; j++) {
        if (a[j] == b[j])
            continue;
        if (label)
            print_error("%s: %s: operand %d element %lld of %lld is %d, expected %d\n", label, case_text(c), i,
                        (long long)j, (long long)want->o[i].n, a[j], b[j]);
        return false;
    }
    return true;
}

static bool operand_near(const struct values *got, const struct values *want, int i, const struct kern_ops *k,
                         const struct kcase *c, const char *label)
{
    if (is_int(want->o[i].content))
        return ints_equal(got, want, i, c, label);
    struct bound bound = bound_of(want, i, k, c);
    enum dtype t = operand_type(&want->o[i], k);
    for (int64_t j = 0; j < want->o[i].n; j++) {
        double a = compared(got, i, j), b = compared(want, i, j);
        b = bound.exact ? rounded(t, b) : b;
        if (element_near(a, b, &bound))
            continue;
        if (!label)
            return false;
        print_error("%s: %s: operand %d element %lld of %lld is %.9g%s, expected %.9g%s +- %.2g\n", label, case_text(c),
                    i, (long long)j, (long long)want->o[i].n, a, hole_is(8, &a) ? " (not written)" : "", b,
                    hole_is(8, &b) ? " (not written)" : "",
                    bound.exact ? 0 : bound.near * fmax(fabs(b), bound.size) + bound.stored * fabs(b));
        return false;
    }
    return true;
}

bool values_near(const struct values *got, const struct values *want, const struct kern_ops *k, const struct kcase *c,
                 const char *label)
{
    bool good = true;
    for (int i = 0; i < MAX_OPERANDS; i++)
        if (want->o[i].role == OUT || want->o[i].role == ACC)
            good &= operand_near(got, want, i, k, c, label);
    return good;
}
