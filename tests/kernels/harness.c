/* See harness.h. A guard is a NaN, so that a kernel that reads too far is found as well as one that writes too far. */
#include "tests/kernels/harness.h"
#include "common/base/rng.h"
#include "tests/lib/test.h"

#include <math.h>

#define GUARD 64           /* elements on both sides */
#define HOLE32 0x7fc0ab1du /* quiet NaNs that no arithmetic makes */
#define HOLE64 UINT64_C(0x7ff8abcd1234ef01)

struct guarded {
    uint8_t *memory, *data;
    size_t size, bytes; /* of an element; of the data */
};

const char *case_text(const struct kcase *c)
{
    static char text[256];
    snprintf(
        text, sizeof(text),
        "%s t=%lld d=%lld seq=%lld vocab=%lld m=%lld n=%lld k=%lld heads=%lld/%lld x %lld pad=%lld flags=%u alias=%d",
        c->op, (long long)c->t, (long long)c->d, (long long)c->seq, (long long)c->vocab, (long long)c->m,
        (long long)c->n, (long long)c->k, (long long)c->heads, (long long)c->kv_heads, (long long)c->head_dim,
        (long long)c->pad, c->flags, c->alias);
    return text;
}

static bool is_real(enum content content)
{
    return content == REALS || content == WEIGHTS || content == POSITIVE;
}

static size_t value_size(enum content content)
{
    return content == IDS || content == TARGETS ? sizeof(int32_t) : sizeof(double);
}

static double random_value(enum content content, uint64_t stream, uint64_t i)
{
    double x = rng_normal(11, stream, i);
    switch (content) {
    case WEIGHTS:
        return 1 + 0.2 * x;
    case POSITIVE:
        return 0.01 + x * x;
    default:
        return x;
    }
}

static int32_t random_id(enum content content, int64_t vocab, uint64_t stream, uint64_t i)
{
    double u = rng_uniform(11, stream, i);
    if (content == TARGETS && i % 5 == 3)
        return -1;
    return (int32_t)(u * (double)vocab);
}

static void fill(struct values *v, int i, const struct kcase *c, bool round)
{
    uint64_t stream = rng_stream(c->op) + (uint64_t)i * 977;
    for (int64_t j = 0; j < v->o[i].n; j++) {
        if (!is_real(v->o[i].content) && v->o[i].content != DOUBLES) {
            ((int32_t *)v->p[i])[j] = random_id(v->o[i].content, c->vocab, stream, (uint64_t)j);
            continue;
        }
        double x = random_value(v->o[i].content, stream, (uint64_t)j);
        ((double *)v->p[i])[j] = round ? (double)(float)x : x;
    }
}

static void round_all(struct values *v)
{
    for (int i = 0; i < MAX_OPERANDS; i++)
        for (int64_t j = 0; is_real(v->o[i].content) && j < v->o[i].n; j++)
            ((double *)v->p[i])[j] = (double)(float)((double *)v->p[i])[j];
}

static void link_of(const struct op_desc *op, const struct kcase *c, struct link *l)
{
    memset(l, 0xff, sizeof(*l)); /* every entry NONE */
    l->forward = NULL;
    if (op->link)
        op->link(c, l);
}

/* Operands that the forward made. */
static void take_forward(struct values *v, const struct kcase *c, const struct link *l, bool round)
{
    struct values f;
    struct kcase forward = *c;
    forward.op = l->forward;
    forward.alias = 0;
    values_init(&f, &forward, round);
    values_run(&f, kern_find("ref", DT_F64), 1, 0, &forward, NULL);
    for (int i = 0; i < MAX_OPERANDS; i++)
        if (l->from[i] >= 0 && v->o[i].n)
            memcpy(v->p[i], f.p[l->from[i]], (size_t)v->o[i].n * value_size(v->o[i].content));
    values_fini(&f);
}

void values_init(struct values *v, const struct kcase *c, bool round)
{
    const struct op_desc *op = op_find(c->op);
    struct link l;
    memset(v, 0, sizeof(*v));
    assert_non_null(op);
    op->shape(c, v->o);
    for (int i = 0; i < MAX_OPERANDS; i++) {
        if (v->o[i].role == ABSENT)
            continue;
        v->p[i] = calloc((size_t)v->o[i].n + 1, value_size(v->o[i].content));
        assert_non_null(v->p[i]);
        if (v->o[i].role != OUT)
            fill(v, i, c, round);
    }
    link_of(op, c, &l);
    if (l.forward)
        take_forward(v, c, &l, round);
    if (round)
        round_all(v);
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

static void put_hole(uint8_t *p, size_t size)
{
    const uint32_t narrow = HOLE32;
    const uint64_t wide = HOLE64;
    memcpy(p, size == 4 ? (const void *)&narrow : (const void *)&wide, size);
}

static bool is_hole(const uint8_t *p, size_t size)
{
    uint8_t hole[8];
    put_hole(hole, size);
    return memcmp(p, hole, size) == 0;
}

static void guarded_init(struct guarded *g, int64_t n, size_t size, int shift)
{
    size_t total = ((size_t)n + 2 * GUARD + 16) * size;
    g->size = size;
    g->bytes = (size_t)n * size;
    g->memory = aligned_alloc(64, (total + 63) / 64 * 64);
    assert_non_null(g->memory);
    g->data = g->memory + (GUARD + (size_t)(shift % 16)) * size;
    for (size_t at = 0; at + size <= total; at += size)
        put_hole(g->memory + at, size);
}

static void guarded_check(const struct guarded *g, const struct kcase *c, int operand)
{
    for (size_t i = 1; i <= GUARD; i++)
        if (!is_hole(g->data - i * g->size, g->size) || !is_hole(g->data + g->bytes + (i - 1) * g->size, g->size))
            fail_msg("%s: wrote outside operand %d", case_text(c), operand);
}

/* To the kernel's type; OUT stays holes. */
static void send(const struct values *v, int i, enum dtype dtype, struct guarded *g)
{
    if (v->o[i].role == OUT)
        return;
    if (!is_real(v->o[i].content) || dtype == DT_F64) {
        memcpy(g->data, v->p[i], g->bytes);
        return;
    }
    for (int64_t j = 0; j < v->o[i].n; j++)
        ((float *)g->data)[j] = (float)((const double *)v->p[i])[j];
}

static void receive(struct values *v, int i, const struct guarded *g)
{
    for (int64_t j = 0; j < v->o[i].n; j++) {
        const uint8_t *p = g->data + (size_t)j * g->size;
        double x = g->size == 4 ? (double)*(const float *)p : *(const double *)p;
        memcpy((double *)v->p[i] + j, &x, sizeof(x));
        if (is_hole(p, g->size))
            put_hole((uint8_t *)((double *)v->p[i] + j), sizeof(double));
    }
}

static uint64_t hash_of(uint64_t h, const struct guarded *g)
{
    for (size_t i = 0; i < g->bytes; i++)
        h = (h ^ g->data[i]) * 0x100000001b3u;
    return h;
}

static void apply_alias(const struct op_desc *op, const struct kcase *c, void **p)
{
    if (c->alias)
        p[op->aliases[c->alias - 1][0]] = p[op->aliases[c->alias - 1][1]];
}

void values_run(struct values *v, const struct kern_ops *k, int threads, int shift, const struct kcase *c,
                uint64_t *bits)
{
    const struct op_desc *op = op_find(c->op);
    struct guarded g[MAX_OPERANDS] = {{0}};
    void *p[MAX_OPERANDS] = {0};
    struct kern_stream *s = NULL;
    uint64_t hash = 0xcbf29ce484222325u;
    for (int i = 0; i < MAX_OPERANDS; i++) {
        if (v->o[i].role == ABSENT)
            continue;
        size_t size = is_real(v->o[i].content) ? dtype_bytes(k->dtype) : value_size(v->o[i].content);
        guarded_init(&g[i], v->o[i].n, size, shift * (2 * i + 1));
        send(v, i, k->dtype, &g[i]);
        p[i] = g[i].data;
    }
    apply_alias(op, c, p);
    assert_ok(kern_stream_new(k, threads, &s));
    assert_ok(op->call(k, s, c, p));
    assert_ok(kern_stream_sync(s));
    kern_stream_free(s);
    for (int i = 0; i < MAX_OPERANDS; i++) {
        if (v->o[i].role == ABSENT)
            continue;
        guarded_check(&g[i], c, i);
        struct guarded result = g[i];
        result.data = p[i];
        if (v->o[i].role != IN) {
            receive(v, i, &result);
            hash = hash_of(hash, &result);
        }
    }
    for (int i = 0; i < MAX_OPERANDS; i++)
        free(g[i].memory);
    if (bits)
        *bits = hash;
}

/* Root of the mean square of what was written. */
static double rms_of(const struct values *v, int i)
{
    const double *x = v->p[i];
    double sum = 0;
    int64_t n = 0;
    for (int64_t j = 0; j < v->o[i].n; j++)
        if (!isnan(x[j])) {
            sum += x[j] * x[j];
            n++;
        }
    return n ? sqrt(sum / (double)n) : 0;
}

void values_compare(const struct values *got, const struct values *want, double multiple, const struct kcase *c,
                    const char *backend)
{
    const struct op_desc *op = op_find(c->op);
    double eps = multiple * 0x1p-24 * sqrt(op->terms ? (double)op->terms(c) : 1);
    for (int i = 0; i < MAX_OPERANDS; i++) {
        if (want->o[i].role != OUT && want->o[i].role != ACC)
            continue;
        double rms = rms_of(want, i);
        for (int64_t j = 0; j < want->o[i].n; j++) {
            double a = ((double *)got->p[i])[j], b = ((double *)want->p[i])[j],
                   bound = eps * fmax(fabs(b), fmax(rms, op->floor));
            bool hole = is_hole((uint8_t *)((double *)want->p[i] + j), 8);
            bool good = hole ? is_hole((uint8_t *)((double *)got->p[i] + j), 8) : fabs(a - b) <= bound;
            if (!good)
                fail_msg("%s: %s: operand %d element %lld is %.9g, wanted %.9g +- %.2g", backend, case_text(c), i,
                         (long long)j, a, hole ? NAN : b, bound);
        }
    }
}
