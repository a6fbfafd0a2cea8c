/* Results of parts combine to the result of the whole: attention over parts of the keys, a loss over parts of the
 * vocabulary, an embedding over parts of its table, squares and dropout over any split. On every table of the
 * processor; in float64 to 1e-12. In bfloat16 a whole is rounded once and its parts up to four times. */
#include "common/base/rng.h"
#include "kernels/variants.h"
#include "tests/kernels/values.h"
#include "tests/lib/test.h"

#include <math.h>

struct table {
    const struct kern_ops *k;
    struct kern_stream *s;
    size_t size, wide_size;
    double near, wide_near; /* the allowed difference between two computations of the same number near 1 */
    const char *isa;
};

static struct dev *cpu(void)
{
    static struct dev *d;
    if (!d)
        assert_ok(dev_open("cpu", 0, &d, NULL));
    return d;
}

static void each_table(void (*check)(const struct table *t))
{
    struct table t = {0};
    for (int i = 0; (t.k = kern_variant(i, &t.isa)); i++) {
        t.size = dtype_bytes(t.k->dtype);
        t.wide_size = dtype_bytes(t.k->wide);
        t.wide_near = t.k->wide == DT_F64 ? 1e-12 : 4e-6;
        t.near = t.k->dtype == DT_BF16 ? 4 * 0x1p-8 : t.wide_near;
        assert_ok(dev_stream_new(cpu(), 2, false, &t.s, NULL));
        check(&t);
        dev_stream_free(t.s);
    }
}

/* An array that is large enough for n elements of either type. */
static void *array_new(const struct table *t, int64_t n)
{
    void *p = calloc((size_t)n + 1, t->wide_size);
    assert_non_null(p);
    return p;
}

static void *array_of(const struct table *t, int64_t n, const char *name)
{
    char *p = array_new(t, n);
    for (int64_t i = 0; i < n; i++)
        element_put(t->k->dtype, p + (size_t)i * t->size, rng_normal(5, rng_stream(name), (uint64_t)i));
    return p;
}

static void *wide_of(const struct table *t, int64_t n, const char *name)
{
    char *p = array_new(t, n);
    for (int64_t i = 0; i < n; i++)
        element_put(t->k->wide, p + (size_t)i * t->wide_size, rng_normal(5, rng_stream(name), (uint64_t)i));
    return p;
}

static void *at(const struct table *t, const void *p, int64_t i)
{
    return (char *)p + i * (int64_t)t->size;
}

static void *wide_at(const struct table *t, const void *p, int64_t i)
{
    return (char *)p + i * (int64_t)t->wide_size;
}

static void compare_number(const struct table *t, const char *what, int64_t i, double near, double got, double whole)
{
    if (!(fabs(got - whole) <= near * fmax(1, fabs(whole))))
        fail_msg("%s %s %s: %s[%lld] is %.17g, whole %.17g", t->k->name, dtype_name(t->k->dtype), t->isa, what,
                 (long long)i, got, whole);
}

static void expect_near(const struct table *t, const char *what, int64_t n, const void *got, const void *want)
{
    for (int64_t i = 0; i < n; i++)
        compare_number(t, what, i, t->near, element_get(t->k->dtype, at(t, got, i)),
                       element_get(t->k->dtype, at(t, want, i)));
}

static void expect_near_wide(const struct table *t, const char *what, int64_t n, const void *got, const void *want)
{
    for (int64_t i = 0; i < n; i++)
        compare_number(t, what, i, t->wide_near, element_get(t->k->wide, wide_at(t, got, i)),
                       element_get(t->k->wide, wide_at(t, want, i)));
}

/* ---- attention ---- */

enum { BATCH = 2, SEQ = 12, HEADS = 4, KV_HEADS = 2, DIM = 5, Q = HEADS * DIM, KV = KV_HEADS * DIM };

/* Tensors of a part of the tokens of every sample. */
struct token_part {
    int64_t first, n;
    void *q, *k, *v, *o, *lse, *d_o, *d_q, *d_k, *d_v;
};

static void piece_free(struct token_part *p)
{
    void *all[] = {p->q, p->k, p->v, p->o, p->lse, p->d_o, p->d_q, p->d_k, p->d_v};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        free(all[i]);
}

/* Copies the piece's rows of every sample to the piece or from it. */
static void rows_move(const struct table *t, const struct token_part *p, int64_t width, void *whole, void *part,
                      bool out)
{
    for (int64_t b = 0; b < BATCH; b++) {
        void *w = at(t, whole, (b * SEQ + p->first) * width), *x = at(t, part, b * p->n * width);
        t->k->copy_cols(t->s, p->n, width, out ? x : w, width, out ? w : x, width);
    }
}

static struct token_part piece_of(const struct table *t, const struct token_part *whole, int64_t first, int64_t n)
{
    struct token_part p = {.first = first, .n = n};
    int64_t rows = BATCH * n;
    p.q = array_new(t, rows * Q);
    p.k = array_new(t, rows * KV);
    p.v = array_new(t, rows * KV);
    p.o = array_new(t, rows * Q);
    p.lse = array_new(t, rows * HEADS);
    p.d_o = array_new(t, rows * Q);
    p.d_q = array_new(t, rows * Q);
    p.d_k = array_new(t, rows * KV);
    p.d_v = array_new(t, rows * KV);
    if (!whole)
        return p;
    rows_move(t, &p, Q, whole->q, p.q, false);
    rows_move(t, &p, KV, whole->k, p.k, false);
    rows_move(t, &p, KV, whole->v, p.v, false);
    rows_move(t, &p, Q, whole->d_o, p.d_o, false);
    return p;
}

static struct kern_attention attention_of(const struct token_part *q, const struct token_part *k, bool causal)
{
    return (struct kern_attention){.batch = BATCH,
                                   .seq = q->n,
                                   .seq_kv = k->n,
                                   .heads = HEADS,
                                   .kv_heads = KV_HEADS,
                                   .head_dim = DIM,
                                   .q_stride = Q,
                                   .k_stride = KV,
                                   .v_stride = KV,
                                   .o_stride = Q,
                                   .causal = causal,
                                   .q = q->q,
                                   .k = k->k,
                                   .v = k->v,
                                   .o = q->o,
                                   .lse = q->lse};
}

/* The work of one rank of a ring for its queries `p[i]`: it joins the results of one part of the keys after another. */
static void forward_parts(const struct table *t, const struct token_part *p, int n, int i, bool causal)
{
    void *o2 = array_new(t, BATCH * p[i].n * Q), *lse2 = array_new(t, BATCH * p[i].n * HEADS);
    struct kern_attention_join join = {.batch = BATCH,
                                       .seq = p[i].n,
                                       .heads = HEADS,
                                       .head_dim = DIM,
                                       .o_stride = Q,
                                       .o2_stride = Q,
                                       .o = p[i].o,
                                       .lse = p[i].lse,
                                       .o2 = o2,
                                       .lse2 = lse2};
    for (int step = 0; step < n; step++) {
        int j = (i + step) % n; /* its own keys first */
        struct kern_attention a = attention_of(&p[i], &p[j], causal && i == j);
        if (causal && j > i)
            continue;
        a.o = step ? o2 : p[i].o;
        a.lse = step ? lse2 : p[i].lse;
        assert_ok(t->k->attention(t->s, &a));
        if (step)
            t->k->attention_join(t->s, &join);
    }
    free(o2);
    free(lse2);
}

static void backward_parts(const struct table *t, const struct token_part *p, int n, int i, bool causal)
{
    for (int step = 0; step < n; step++) {
        int j = (i + step) % n;
        struct kern_attention_grad g = {.fwd = attention_of(&p[i], &p[j], causal && i == j),
                                        .d_o = p[i].d_o,
                                        .d_q = p[i].d_q,
                                        .d_k = p[j].d_k,
                                        .d_v = p[j].d_v,
                                        .acc_q = step > 0,
                                        .acc_kv = true};
        if (!causal || j <= i)
            assert_ok(t->k->attention_grad(t->s, &g));
    }
}

static void attention_in(const struct table *t, const struct token_part *whole, int n, const int64_t *sizes,
                         bool causal)
{
    struct token_part p[3], got = piece_of(t, NULL, 0, SEQ);
    for (int i = 0, first = 0; i < n; first += (int)sizes[i++])
        p[i] = piece_of(t, whole, first, sizes[i]);
    for (int i = 0; i < n; i++)
        forward_parts(t, p, n, i, causal);
    for (int i = 0; i < n; i++)
        backward_parts(t, p, n, i, causal);
    for (int i = 0; i < n; i++) {
        rows_move(t, &p[i], Q, got.o, p[i].o, true);
        rows_move(t, &p[i], Q, got.d_q, p[i].d_q, true);
        rows_move(t, &p[i], KV, got.d_k, p[i].d_k, true);
        rows_move(t, &p[i], KV, got.d_v, p[i].d_v, true);
        for (int64_t h = 0; h < BATCH * HEADS; h++)
            memcpy(wide_at(t, got.lse, h * SEQ + p[i].first), wide_at(t, p[i].lse, h * p[i].n),
                   (size_t)p[i].n * t->wide_size);
        piece_free(&p[i]);
    }
    expect_near(t, "o", BATCH * SEQ * Q, got.o, whole->o);
    expect_near_wide(t, "lse", BATCH * SEQ * HEADS, got.lse, whole->lse);
    expect_near(t, "d_q", BATCH * SEQ * Q, got.d_q, whole->d_q);
    expect_near(t, "d_k", BATCH * SEQ * KV, got.d_k, whole->d_k);
    expect_near(t, "d_v", BATCH * SEQ * KV, got.d_v, whole->d_v);
    piece_free(&got);
}

static void check_attention(const struct table *t)
{
    static const int64_t sizes[3][3] = {{SEQ}, {5, 7}, {3, 4, 5}};
    for (int causal = 0; causal < 2; causal++) {
        struct token_part whole = {.n = SEQ,
                                   .q = array_of(t, BATCH * SEQ * Q, "q"),
                                   .k = array_of(t, BATCH * SEQ * KV, "k"),
                                   .v = array_of(t, BATCH * SEQ * KV, "v"),
                                   .o = array_new(t, BATCH * SEQ * Q),
                                   .lse = array_new(t, BATCH * SEQ * HEADS),
                                   .d_o = array_of(t, BATCH * SEQ * Q, "d_o"),
                                   .d_q = array_new(t, BATCH * SEQ * Q),
                                   .d_k = array_new(t, BATCH * SEQ * KV),
                                   .d_v = array_new(t, BATCH * SEQ * KV)};
        struct kern_attention_grad g = {.fwd = attention_of(&whole, &whole, causal),
                                        .d_o = whole.d_o,
                                        .d_q = whole.d_q,
                                        .d_k = whole.d_k,
                                        .d_v = whole.d_v};
        assert_ok(t->k->attention(t->s, &g.fwd));
        assert_ok(t->k->attention_grad(t->s, &g));
        for (int n = 1; n <= 3; n++)
            attention_in(t, &whole, n, sizes[n - 1], causal);
        piece_free(&whole);
    }
}

TEST(attention_over_parts_of_the_keys_is_attention)
{
    each_table(check_attention);
}

/* If the two lse are far apart, the larger one is the result. A part without keys changes nothing. A NaN stays a NaN.
 */
static void check_join_extremes(const struct table *t)
{
    static const struct {
        double lse, lse2, want_o, want_lse;
    } cases[] = {{900, -900, 1, 900}, {-900, 900, 2, 900}, {3, -INFINITY, 1, 3},    {-INFINITY, 3, 2, 3},
                 {5, NAN, NAN, NAN},  {NAN, 5, NAN, NAN},  {0, 0, 1.5, 0.69314718}, {-1000, -1000, 1.5, -999.30685282}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        double memory[4];
        enum dtype type = t->k->dtype, wide = t->k->wide;
        struct kern_attention_join join = {1, 1, 1, 1, 1, 1, &memory[0], &memory[1], &memory[2], &memory[3]};
        element_put(type, &memory[0], 1);
        element_put(wide, &memory[1], cases[i].lse);
        element_put(type, &memory[2], 2);
        element_put(wide, &memory[3], cases[i].lse2);
        t->k->attention_join(t->s, &join);
        double o = element_get(type, &memory[0]), lse = element_get(wide, &memory[1]);
        assert_true(isnan(cases[i].want_o) ? isnan(o) : fabs(o - cases[i].want_o) < 1e-6);
        assert_true(isnan(cases[i].want_lse) ? isnan(lse) : fabs(lse - cases[i].want_lse) < 1e-7 * fabs(lse) + 1e-7);
    }
}

TEST(joins_of_extremes)
{
    each_table(check_join_extremes);
}

/* ---- the loss ---- */

enum { TOKENS = 37, VOCAB = 61 };

static void targets_fill(int32_t *targets)
{
    for (int i = 0; i < TOKENS; i++)
        targets[i] = i % 5 == 3 ? -1 : (int32_t)(rng_uniform(1, 2, (uint64_t)i) * VOCAB);
    targets[0] = 0;
    targets[1] = VOCAB - 1;
}

/* Computes the loss with columns [edges[p], edges[p + 1]) in part p; writes the gradient to `out` and returns the loss.
 */
static double loss_in(const struct table *t, const void *logits, const int32_t *targets, int parts, const int *edges,
                      void *out)
{
    double *stats = calloc((size_t)parts * TOKENS * 3, sizeof(double)), loss = 7;
    void *part[4];
    for (int p = 0; p < parts; p++) {
        int64_t v = edges[p + 1] - edges[p];
        part[p] = array_new(t, TOKENS * v);
        t->k->copy_cols(t->s, TOKENS, v, at(t, logits, edges[p]), VOCAB, part[p], v);
        t->k->loss_part(t->s, TOKENS, v, v, edges[p], targets, part[p], stats + p * TOKENS * 3);
    }
    for (int p = 0; p < parts; p++) {
        int64_t v = edges[p + 1] - edges[p];
        t->k->loss_join(t->s, TOKENS, v, v, edges[p], parts, targets, stats, true, 0.5, part[p], p ? NULL : &loss);
        t->k->copy_cols(t->s, TOKENS, v, part[p], v, at(t, out, edges[p]), VOCAB);
        free(part[p]);
    }
    free(stats);
    return loss;
}

static void check_loss(const struct table *t)
{
    static const int edges[5][5] = {
        {0, VOCAB}, {0, 31, VOCAB}, {0, 20, 40, VOCAB}, {0, 0, 61, VOCAB}, {0, 1, 1, 60, 61}};
    static const int parts[] = {1, 2, 3, 3, 4};
    int32_t targets[TOKENS];
    void *logits = array_of(t, TOKENS * VOCAB, "logits"), *want = array_of(t, TOKENS * VOCAB, "logits");
    double whole = 7;
    targets_fill(targets);
    t->k->cross_entropy(t->s, TOKENS, VOCAB, VOCAB, targets, true, 0.5, want, &whole);
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        void *got = array_new(t, TOKENS * VOCAB);
        double loss = loss_in(t, logits, targets, parts[i], edges[i], got);
        assert_true(fabs(loss - whole) <= t->near * whole);
        expect_near(t, "gradient", TOKENS * VOCAB, got, want);
        if (parts[i] == 1)
            assert_true(loss == whole && memcmp(got, want, TOKENS * VOCAB * t->size) == 0);
        free(got);
    }
    free(logits);
    free(want);
}

TEST(a_loss_over_parts_of_the_vocabulary_is_the_loss)
{
    each_table(check_loss);
}

/* Columns of only -infinity have no effect; a NaN in any column makes the loss NaN. */
static void check_loss_extremes(const struct table *t)
{
    static const int edges[] = {0, 20, 40, VOCAB};
    int32_t targets[TOKENS];
    void *got = array_new(t, TOKENS * VOCAB), *logits = array_of(t, TOKENS * VOCAB, "logits");
    for (int i = 0; i < TOKENS; i++) {
        targets[i] = 3;
        for (int j = 20; j < 40; j++)
            element_put(t->k->dtype, at(t, logits, i * VOCAB + j), -INFINITY);
    }
    double loss = loss_in(t, logits, targets, 3, edges, got);
    assert_true(isfinite(loss));
    assert_true(element_get(t->k->dtype, at(t, got, 25)) == 0);
    element_put(t->k->dtype, at(t, logits, 45), NAN);
    assert_true(isnan(loss_in(t, logits, targets, 3, edges, got)));
    free(logits);
    free(got);
}

TEST(losses_of_extremes)
{
    each_table(check_loss_extremes);
}

/* ---- embeddings ---- */

enum { WIDTH = 21, ROWS = 30, POSITIONS = 9 };

static void check_embed(const struct table *t)
{
    static const int edges[] = {0, 7, 7, 29, ROWS};
    int32_t ids[TOKENS];
    void *table = array_of(t, ROWS * WIDTH, "table"), *pos = array_of(t, POSITIONS * WIDTH, "pos");
    void *dy = array_of(t, TOKENS * WIDTH, "dy"), *whole = array_new(t, TOKENS * WIDTH);
    void *d_whole = wide_of(t, ROWS * WIDTH, "before"), *d_parts = wide_of(t, ROWS * WIDTH, "before");
    void *sum = array_new(t, TOKENS * WIDTH), *part = array_new(t, TOKENS * WIDTH);
    for (int i = 0; i < TOKENS; i++)
        ids[i] = (int32_t)(rng_uniform(1, 3, (uint64_t)i) * ROWS);
    t->k->embed(t->s, TOKENS, WIDTH, POSITIONS, 0, ROWS, ids, table, pos, whole);
    t->k->embed_grad(t->s, TOKENS, WIDTH, POSITIONS, 0, ROWS, ids, dy, d_whole, NULL);
    for (int p = 0; p < 4; p++) {
        t->k->embed(t->s, TOKENS, WIDTH, POSITIONS, edges[p], edges[p + 1], ids, at(t, table, edges[p] * WIDTH),
                    p ? NULL : pos, part);
        t->k->add(t->s, TOKENS * WIDTH, sum, part, sum);
        t->k->embed_grad(t->s, TOKENS, WIDTH, POSITIONS, edges[p], edges[p + 1], ids, dy,
                         wide_at(t, d_parts, edges[p] * WIDTH), NULL);
    }
    expect_near(t, "embedding", TOKENS * WIDTH, sum, whole);
    assert_memory_equal(d_parts, d_whole, ROWS * WIDTH * t->wide_size);
    void *all[] = {table, pos, dy, whole, d_whole, d_parts, sum, part};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        free(all[i]);
}

TEST(an_embedding_over_parts_of_its_table_is_the_embedding)
{
    each_table(check_embed);
}

/* ---- norms ---- */

enum { NORM_PARTS = 3 };

/* Columns [lo, hi) of a norm, and the results there. */
struct norm_part {
    int64_t lo, n;
    void *x, *dy, *y, *dx, *rstd;
    double sums[TOKENS];
};

static void *columns_of(const struct table *t, const void *x, int64_t lo, int64_t n)
{
    void *ret = array_new(t, TOKENS * n);
    t->k->copy_cols(t->s, TOKENS, n, at(t, x, lo), WIDTH, ret, n);
    return ret;
}

static void join_sums(struct norm_part *parts)
{
    for (int i = 0; i < TOKENS; i++) {
        double sum = 0;
        for (int p = 0; p < NORM_PARTS; p++)
            sum += parts[p].sums[i];
        for (int p = 0; p < NORM_PARTS; p++)
            parts[p].sums[i] = sum;
    }
}

/* The norm of x in parts, as ranks compute it; y, dx and the weight's gradient get the columns of all parts. */
static void norm_in_parts(const struct table *t, const void *x, const void *w, const void *dy, bool plus_one, void *y,
                          void *dx, void *dw)
{
    static const int edges[] = {0, 5, 13, WIDTH};
    struct norm_part parts[NORM_PARTS] = {0};
    for (int i = 0; i < NORM_PARTS; i++) {
        struct norm_part *p = &parts[i];
        p->lo = edges[i];
        p->n = edges[i + 1] - edges[i];
        p->x = columns_of(t, x, p->lo, p->n);
        p->dy = columns_of(t, dy, p->lo, p->n);
        p->y = array_new(t, TOKENS * p->n);
        p->dx = array_new(t, TOKENS * p->n);
        p->rstd = array_new(t, TOKENS);
        t->k->row_dots(t->s, TOKENS, p->n, false, p->x, p->x, NULL, p->sums);
    }
    join_sums(parts);
    for (struct norm_part *p = parts; p < parts + NORM_PARTS; p++) {
        t->k->rmsnorm_part(t->s, TOKENS, p->n, WIDTH, 1e-5, plus_one, p->x, at(t, w, p->lo), p->sums, p->y, p->rstd);
        t->k->row_dots(t->s, TOKENS, p->n, plus_one, p->x, p->dy, at(t, w, p->lo), p->sums);
    }
    join_sums(parts);
    for (struct norm_part *p = parts; p < parts + NORM_PARTS; p++) {
        t->k->rmsnorm_part_grad(t->s, TOKENS, p->n, WIDTH, plus_one, p->x, at(t, w, p->lo), p->rstd, p->sums, p->dy,
                                p->dx, wide_at(t, dw, p->lo));
        t->k->copy_cols(t->s, TOKENS, p->n, p->y, p->n, at(t, y, p->lo), WIDTH);
        t->k->copy_cols(t->s, TOKENS, p->n, p->dx, p->n, at(t, dx, p->lo), WIDTH);
        void *all[] = {p->x, p->dy, p->y, p->dx, p->rstd};
        for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
            free(all[i]);
    }
}

static void check_norm(const struct table *t)
{
    void *x = array_of(t, TOKENS * WIDTH, "x"), *w = array_of(t, WIDTH, "w"), *dy = array_of(t, TOKENS * WIDTH, "dy"),
         *rstd = array_new(t, TOKENS);
    for (int plus_one = 0; plus_one < 2; plus_one++) {
        void *y[2], *dx[2], *dw[2];
        for (int i = 0; i < 2; i++) {
            y[i] = array_new(t, TOKENS * WIDTH);
            dx[i] = array_new(t, TOKENS * WIDTH);
            dw[i] = wide_of(t, WIDTH, "dw");
        }
        t->k->rmsnorm(t->s, TOKENS, WIDTH, 1e-5, plus_one, x, NULL, w, NULL, y[0], rstd);
        t->k->rmsnorm_grad(t->s, TOKENS, WIDTH, plus_one, x, w, rstd, dy, NULL, dx[0], dw[0]);
        norm_in_parts(t, x, w, dy, plus_one, y[1], dx[1], dw[1]);
        expect_near(t, "y", TOKENS * WIDTH, y[1], y[0]);
        expect_near(t, "dx", TOKENS * WIDTH, dx[1], dx[0]);
        expect_near_wide(t, "dw", WIDTH, dw[1], dw[0]);
        for (int i = 0; i < 2; i++) {
            free(y[i]);
            free(dx[i]);
            free(dw[i]);
        }
    }
    void *all[] = {x, w, dy, rstd};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        free(all[i]);
}

TEST(a_norm_over_parts_of_its_columns_is_the_norm)
{
    each_table(check_norm);
}

/* ---- squares ---- */

/* A piece that begins and ends at block boundaries has the bits of its blocks, and so has a single block. */
static void check_squares(const struct table *t)
{
    enum { N = 10000 };
    void *x = wide_of(t, N, "x");
    for (int block = 1; block < 4000; block = block * 3 + 130) {
        static double whole[N], piece[N];
        int blocks = (N + block - 1) / block;
        t->k->sumsq_blocks(t->s, N, block, x, whole);
        for (int first = 0; first < blocks; first += 1 + first) {
            int64_t lo = (int64_t)first * block, hi = lo + 3 * block < N ? lo + 3 * block : N;
            t->k->sumsq_blocks(t->s, hi - lo, block, wide_at(t, x, lo), piece);
            assert_memory_equal(piece, whole + first, (size_t)((hi - lo + block - 1) / block) * sizeof(double));
        }
        double sum = 0, want = 0;
        for (int i = 0; i < blocks; i++)
            sum += whole[i];
        for (int i = 0; i < N; i++)
            want += pow(element_get(t->k->wide, wide_at(t, x, i)), 2);
        assert_true(fabs(sum - want) < 1e-12 * want);
    }
    free(x);
}

TEST(squares_do_not_depend_on_cuts)
{
    each_table(check_squares);
}

/* ---- dropout ---- */

/* Whether element `e` of an infinitely wide row is kept. */
static bool kept(const struct table *t, double rate, uint64_t seed, int64_t step, int site, int64_t e)
{
    int32_t row = (int32_t)(e >> 32);
    double memory[1];
    struct kern_dropout d = {.t = 1,
                             .n = 1,
                             .cols = INT64_C(1) << 32,
                             .col0 = e & 0xffffffff,
                             .rate = rate,
                             .seed = seed,
                             .step = step,
                             .site = site,
                             .rows = &row,
                             .x = memory,
                             .y = memory};
    element_put(t->k->dtype, memory, 3);
    t->k->dropout(t->s, &d);
    double y = element_get(t->k->dtype, memory);
    assert_true(y == 0 || fabs(y - 3 / (1 - rate)) <= t->near * y);
    return y != 0;
}

/* An element's random word is the rate at which it stops being kept, and equals the word that the header specifies. */
static void check_words(const struct table *t)
{
    static const struct {
        uint64_t seed;
        int64_t step;
        int site;
        int64_t e;
    } cases[] = {{0, 0, 0, 0},
                 {0, 0, 0, 1},
                 {0, 0, 0, 2},
                 {0, 0, 0, 3},
                 {0x299f31d0a4093822, 0x13198a2e, 0x03707344, 0x243f6a8885a308d3 >> 2},
                 {1, 2, 3, 4},
                 {UINT64_MAX, 0xffffffff, 0x7fffffff, 0x7fffffffffffffff}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint64_t quad = (uint64_t)cases[i].e / 4;
        const uint32_t key[2] = {(uint32_t)cases[i].seed, (uint32_t)(cases[i].seed >> 32)};
        const uint32_t counter[4] = {(uint32_t)quad, (uint32_t)(quad >> 32), (uint32_t)cases[i].step,
                                     (uint32_t)cases[i].site};
        uint32_t word[4];
        rng_philox4x32(key, counter, word);
        double edge = word[cases[i].e % 4];
        assert_true(kept(t, edge * 0x1p-32, cases[i].seed, cases[i].step, cases[i].site, cases[i].e));
        assert_false(kept(t, (edge + 1) * 0x1p-32, cases[i].seed, cases[i].step, cases[i].site, cases[i].e));
        if (i == 1)
            assert_true(edge == 0xe169c58d);
    }
}

TEST(dropout_is_philox_of_the_element)
{
    each_table(check_words);
}

enum { DROP_T = 64, DROP_N = 250 };

static struct kern_dropout dropout_of(const int32_t *rows, const void *x, void *y)
{
    return (struct kern_dropout){.t = DROP_T,
                                 .n = DROP_N,
                                 .cols = DROP_N,
                                 .rate = 0.25,
                                 .seed = 77,
                                 .step = 5,
                                 .site = 2,
                                 .rows = rows,
                                 .x = x,
                                 .y = y};
}

/* Ones become 0 or 1 / (1 - rate): mean 1, variance rate / (1 - rate), within five deviations of 16,000 samples. */
static void check_mean(const struct table *t)
{
    static const double rates[] = {0, 0.1, 0.5, 0.9};
    int32_t rows[DROP_T];
    void *x = array_new(t, DROP_T * DROP_N), *y = array_new(t, DROP_T * DROP_N);
    for (int i = 0; i < DROP_T * DROP_N; i++)
        element_put(t->k->dtype, at(t, x, i), 1);
    for (int i = 0; i < DROP_T; i++)
        rows[i] = i;
    for (int r = 0; r < 4; r++) {
        struct kern_dropout d = dropout_of(rows, x, y);
        double sum = 0, squares = 0, n = DROP_T * DROP_N, p = rates[r];
        d.rate = p;
        t->k->dropout(t->s, &d);
        for (int i = 0; i < DROP_T * DROP_N; i++) {
            double v = element_get(t->k->dtype, at(t, y, i));
            sum += v;
            squares += (v - 1) * (v - 1);
        }
        assert_true(fabs(sum / n - 1) <= 5 * sqrt(p / (1 - p) / n) + 1e-6);
        assert_true(fabs(squares / n - p / (1 - p)) <= 0.1 * p / (1 - p) + 1e-6);
    }
    free(x);
    free(y);
}

TEST(dropout_keeps_mean_and_variance)
{
    each_table(check_mean);
}

/* Seed, step, site and row each change the numbers: two of the results agree only as often as independent ones. */
static void check_strangers(const struct table *t)
{
    int32_t rows[DROP_T], others[DROP_T];
    void *x = array_of(t, DROP_T * DROP_N, "x"), *y = array_new(t, DROP_T * DROP_N);
    void *z = array_new(t, DROP_T * DROP_N);
    for (int i = 0; i < DROP_T; i++) {
        rows[i] = i;
        others[i] = i + DROP_T;
    }
    struct kern_dropout first = dropout_of(rows, x, y);
    t->k->dropout(t->s, &first);
    for (int which = 0; which < 5; which++) {
        struct kern_dropout d = dropout_of(rows, x, z);
        d.seed += which == 0;
        d.seed += which == 1 ? INT64_C(1) << 32 : 0;
        d.step += which == 2;
        d.site += which == 3;
        d.rows = which == 4 ? others : rows;
        t->k->dropout(t->s, &d);
        int same = 0;
        for (int i = 0; i < DROP_T * DROP_N; i++)
            same += (element_get(t->k->dtype, at(t, y, i)) == 0) == (element_get(t->k->dtype, at(t, z, i)) == 0);
        assert_true(fabs((double)same / (DROP_T * DROP_N) - (0.75 * 0.75 + 0.25 * 0.25)) < 0.02);
    }
    free(x);
    free(y);
    free(z);
}

TEST(dropouts_are_independent)
{
    each_table(check_strangers);
}

/* Applies dropout to rows lo .. and columns left .. of the matrix alone. */
static void drop_part(const struct table *t, const void *x, const int32_t *rows, int64_t lo, int64_t left,
                      int64_t height, int64_t width, void *out)
{
    void *part = array_new(t, height * width);
    int64_t first = lo * DROP_N + left;
    struct kern_dropout d = dropout_of(rows + lo, part, part);
    d.t = height;
    d.n = width;
    d.col0 = left;
    t->k->copy_cols(t->s, height, width, at(t, x, first), DROP_N, part, width);
    t->k->dropout(t->s, &d);
    t->k->copy_cols(t->s, height, width, part, width, at(t, out, first), DROP_N);
    free(part);
}

static void check_splits(const struct table *t)
{
    static const int64_t splits[][2] = {{1, 1}, {7, 64}, {64, 13}, {10, 33}, {64, 250}, {63, 249}};
    int32_t rows[DROP_T];
    void *x = array_of(t, DROP_T * DROP_N, "x"), *whole = array_new(t, DROP_T * DROP_N);
    for (int i = 0; i < DROP_T; i++)
        rows[i] = 3 * i + 1000;
    struct kern_dropout d = dropout_of(rows, x, whole);
    t->k->dropout(t->s, &d);
    for (size_t i = 0; i < sizeof(splits) / sizeof(splits[0]); i++) {
        int64_t height = splits[i][0], width = splits[i][1];
        void *got = array_new(t, DROP_T * DROP_N);
        for (int64_t lo = 0; lo < DROP_T; lo += height)
            for (int64_t left = 0; left < DROP_N; left += width)
                drop_part(t, x, rows, lo, left, DROP_T - lo < height ? DROP_T - lo : height,
                          DROP_N - left < width ? DROP_N - left : width, got);
        assert_memory_equal(got, whole, DROP_T * DROP_N * t->size);
        free(got);
    }
    free(x);
    free(whole);
}

TEST(dropout_does_not_depend_on_splits)
{
    each_table(check_splits);
}
