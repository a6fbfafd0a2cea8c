/* Checks that the case table cannot express: AdamW against its formula, the rotation and the loss against their
 * mathematical properties, NaNs, and the threads of a stream. */
#include "common/base/rng.h"
#include "kernels/variants.h"
#include "tests/lib/test.h"

#include <dirent.h>
#include <math.h>
#include <pthread.h>

static struct dev *cpu(void)
{
    static struct dev *d;
    if (!d)
        assert_ok(dev_open("cpu", 0, &d, NULL));
    return d;
}

static struct kern_stream *new_stream(void)
{
    struct kern_stream *s = NULL;
    assert_ok(dev_stream_new(cpu(), 0, false, &s, NULL));
    return s;
}

/* Two updates of one number, computed from the documentation of torch.optim.AdamW, line by line. */
TEST(adamw_follows_its_formula)
{
    const struct kern_ops *k = kern_find("ref", DT_F64);
    struct kern_stream *s = new_stream();
    const double lr = 0.01, b1 = 0.9, b2 = 0.99, eps = 1e-8, wd = 0.1;
    double p = 0.5, m = 0, v = 0, want_p = 0.5, want_m = 0, want_v = 0, g[2] = {0.3, -2.0};
    for (int t = 1; t <= 2; t++) {
        double clipped = g[t - 1] * 0.5;
        want_p -= lr * wd * want_p;
        want_m = b1 * want_m + (1 - b1) * clipped;
        want_v = b2 * want_v + (1 - b2) * clipped * clipped;
        want_p -= lr * (want_m / (1 - pow(b1, t))) / (sqrt(want_v / (1 - pow(b2, t))) + eps);
        struct kern_adamw a = {.n = 1,
                               .p = &p,
                               .m = &m,
                               .v = &v,
                               .g = &g[t - 1],
                               .lr = lr,
                               .beta1 = b1,
                               .beta2 = b2,
                               .eps = eps,
                               .weight_decay = wd,
                               .grad_scale = &(double){0.5},
                               .step = t};
        k->adamw(s, &a);
        assert_true(fabs(p - want_p) < 1e-15 && fabs(m - want_m) < 1e-15 && fabs(v - want_v) < 1e-15);
    }
    dev_stream_free(s);
}

/* Steps of biases as multiples of the rate, by arithmetic. In the first two the signs have mean 0, in the third 1/2; in
 * the fourth all experts are equally busy; a factor that is not finite leaves the bias. */
TEST(balance_follows_its_formula)
{
    static const struct {
        double counts[4], factor, steps[4];
    } rows[] = {{{10, 0, 5, 5}, 1, {-1, 1, 0, 0}},
                {{8, 4, 4, 0}, 0.25, {-1, 0, 0, 1}},
                {{9, 1, 1, 1}, 1, {-1.5, 0.5, 0.5, 0.5}},
                {{0x1p52, 0x1p52, 0x1p52, 0x1p52}, 1, {0}},
                {{0x1p52, 0x1p52 + 1, 0x1p52, 0x1p52}, 1, {0.5, -1.5, 0.5, 0.5}},
                {{9, 1, 1, 1}, NAN, {0}}};
    const struct kern_ops *k;
    const char *isa;
    struct kern_stream *s = new_stream();
    for (int i = 0; (k = kern_variant(i, &isa)); i++)
        for (size_t j = 0; j < sizeof(rows) / sizeof(rows[0]); j++) {
            double wide[4] = {1, 2, 3, 4};
            float narrow[4] = {1, 2, 3, 4};
            const struct kern_balance b = {4, 0.25, rows[j].counts, &rows[j].factor,
                                           k->wide == DT_F64 ? (void *)wide : narrow};
            k->balance(s, &b);
            for (int e = 0; e < 4; e++) {
                double is = k->wide == DT_F64 ? wide[e] : (double)narrow[e];
                if (is != e + 1 + 0.25 * rows[j].steps[e])
                    fail_msg("%s %s, row %zu: bias %d is %g", k->name, isa, j, e, is);
            }
        }
    dev_stream_free(s);
}

/* A decay so small that 1 - lr wd is 1 in float32 still has an effect, on average at the right rate. */
TEST(adamw_keeps_a_small_decay)
{
    const struct kern_ops *k = kern_find("cpu", DT_F32);
    struct kern_stream *s = new_stream();
    enum { N = 4096, STEPS = 20 };
    static float p[N], m[N], v[N], g[N];
    double before = 0, after = 0;
    for (int i = 0; i < N; i++)
        before += (double)(p[i] = 1 + (float)rng_uniform(1, 2, (uint64_t)i));
    for (int t = 1; t <= STEPS; t++) {
        struct kern_adamw a = {.n = N,
                               .p = p,
                               .m = m,
                               .v = v,
                               .g = g,
                               .lr = 1e-6,
                               .beta1 = 0.9,
                               .beta2 = 0.95,
                               .eps = 1e-8,
                               .weight_decay = 0.09,
                               .grad_scale = &(double){1},
                               .step = t};
        k->adamw(s, &a);
    }
    for (int i = 0; i < N; i++)
        after += (double)p[i];
    /* 9e-8 of p in (1, 2) is at most three quarters of its last place: it is rounded up or down, but has an effect on
     * average */
    assert_true(after < before);
    dev_stream_free(s);
}

/* <rope(x), y> = <x, inverse(y)>: the inverse is the gradient. Rotating and rotating back is the identity. */
TEST(inverse_rope_is_its_adjoint)
{
    const struct kern_ops *k = kern_find("ref", DT_F64);
    struct kern_stream *s = new_stream();
    enum { T = 6, SEQ = 3, H = 2, D = 8, N = T * H * D };
    double x[N], y[N], rx[N], ry[N], left = 0, right = 0;
    for (int i = 0; i < N; i++) {
        rx[i] = x[i] = rng_normal(1, 1, (uint64_t)i);
        ry[i] = y[i] = rng_normal(1, 2, (uint64_t)i);
    }
    static const double frequency[] = {1, 0.1, 0.01};
    const struct kern_rope stretched = {3, frequency, 1.5}, plain = {3, frequency, 1};
    k->rope(s, T, SEQ, 5, H, D, H * D, &stretched, false, rx);
    k->rope(s, T, SEQ, 5, H, D, H * D, &stretched, true, ry);
    for (int i = 0; i < N; i++) {
        left += rx[i] * y[i];
        right += x[i] * ry[i];
    }
    assert_true(fabs(left - right) < 1e-12);
    for (int i = 0; i < N; i++)
        rx[i] = x[i];
    k->rope(s, T, SEQ, 5, H, D, H * D, &plain, false, rx);
    k->rope(s, T, SEQ, 5, H, D, H * D, &plain, true, rx);
    for (int i = 0; i < N; i++)
        assert_true(fabs(rx[i] - x[i]) < 1e-13);
    dev_stream_free(s);
}

/* At a position where float32 angles have no correct digit. */
TEST(rope_is_exact_far_out)
{
    const struct kern_ops *k = kern_find("cpu", DT_F32);
    struct kern_stream *s = new_stream();
    float x[2] = {1, 0};
    k->rope(s, 1, 1, 1000003, 1, 2, 2, &(struct kern_rope){1, &(double){1}, 1}, false, x);
    assert_true(fabs((double)x[0] - cos(1000003.0)) < 1e-7 && fabs((double)x[1] - sin(1000003.0)) < 1e-7);
    dev_stream_free(s);
}

TEST(loss_gradient_agrees_with_finite_differences)
{
    const struct kern_ops *k = kern_find("ref", DT_F64);
    struct kern_stream *s = new_stream();
    enum { T = 3, V = 5 };
    const int32_t targets[T] = {2, -1, 0};
    double x[T * V], g[T * V], loss = 0;
    for (int i = 0; i < T * V; i++)
        g[i] = x[i] = rng_normal(3, 3, (uint64_t)i);
    k->cross_entropy(s, T, V, V, targets, true, 0.5, g, &loss);
    for (int i = 0; i < T * V; i++) {
        double side[2] = {0, 0}, keep = x[i];
        for (int d = 0; d < 2; d++) {
            x[i] = keep + (d ? 1e-5 : -1e-5);
            k->cross_entropy(s, T, V, V, targets, false, 1, x, &side[d]);
        }
        x[i] = keep;
        assert_true(fabs((side[1] - side[0]) / 2e-5 * 0.5 - g[i]) < 1e-9);
    }
    dev_stream_free(s);
}

/* The loss of equal logits is log V, however large they are. */
TEST(loss_survives_large_logits)
{
    const struct kern_ops *k;
    const char *isa;
    for (int v = 0; (k = kern_variant(v, &isa)); v++) {
        if (k->dtype != DT_F32)
            continue;
        struct kern_stream *s = new_stream();
        enum { V = 1000 };
        float x[V];
        int32_t target = 7;
        double loss = 0;
        for (int i = 0; i < V; i++)
            x[i] = 3e30f;
        k->cross_entropy(s, 1, V, V, &target, true, 1, x, &loss);
        assert_true(fabs(loss - log(V)) < 1e-6);
        assert_true(fabs((double)x[0] - 1.0 / V) < 1e-8 && fabs((double)x[7] - 1.0 / V + 1) < 1e-7);
        dev_stream_free(s);
    }
}

/* ---- masks of attention ---- */

enum { MASK_SEQ = 500, MASK_WIDTH = 8 };

/* One head of one sample, and its gradients. */
struct mask_run {
    float q[MASK_SEQ * MASK_WIDTH], k[MASK_SEQ * MASK_WIDTH], v[MASK_SEQ * MASK_WIDTH], d_o[MASK_SEQ * MASK_WIDTH];
    float o[MASK_SEQ * MASK_WIDTH], lse[MASK_SEQ];
    float d_q[MASK_SEQ * MASK_WIDTH], d_k[MASK_SEQ * MASK_WIDTH], d_v[MASK_SEQ * MASK_WIDTH];
};

/* Inputs are random; those of rows [lo, hi) depend on `other`. */
static void mask_run(const struct kern_ops *k, struct kern_stream *s, int64_t window, const int32_t *begin, int other,
                     int64_t lo, int64_t hi, struct mask_run *r)
{
    float *const in[] = {r->q, r->k, r->v, r->d_o};
    for (int64_t i = 0; i < MASK_SEQ * MASK_WIDTH; i++)
        for (int j = 0; j < 4; j++) {
            bool changed = other && i / MASK_WIDTH >= lo && i / MASK_WIDTH < hi;
            in[j][i] = (float)rng_normal(7, (uint64_t)(j + (changed ? 4 * other : 0)), (uint64_t)i);
        }
    const struct kern_attention_grad g = {.fwd = {.batch = 1,
                                                  .seq = MASK_SEQ,
                                                  .heads = 1,
                                                  .kv_heads = 1,
                                                  .head_dim = MASK_WIDTH,
                                                  .q_stride = MASK_WIDTH,
                                                  .k_stride = MASK_WIDTH,
                                                  .v_stride = MASK_WIDTH,
                                                  .o_stride = MASK_WIDTH,
                                                  .causal = true,
                                                  .window = window,
                                                  .softcap = window ? 0 : 20,
                                                  .begin = begin,
                                                  .q = r->q,
                                                  .k = r->k,
                                                  .v = r->v,
                                                  .o = r->o,
                                                  .lse = r->lse},
                                          .d_o = r->d_o,
                                          .d_q = r->d_q,
                                          .d_k = r->d_k,
                                          .d_v = r->d_v};
    assert_ok(k->attention(s, &g.fwd));
    assert_ok(k->attention_grad(s, &g));
}

static bool rows_equal(const float *a, const float *b, int64_t lo, int64_t hi)
{
    return memcmp(a + lo * MASK_WIDTH, b + lo * MASK_WIDTH, (size_t)((hi - lo) * MASK_WIDTH) * sizeof(float)) == 0;
}

static bool results_equal(const struct mask_run *a, const struct mask_run *b, int64_t lo, int64_t hi)
{
    return rows_equal(a->o, b->o, lo, hi) && rows_equal(a->d_q, b->d_q, lo, hi) && rows_equal(a->d_k, b->d_k, lo, hi) &&
           rows_equal(a->d_v, b->d_v, lo, hi) &&
           memcmp(a->lse + lo, b->lse + lo, (size_t)(hi - lo) * sizeof(float)) == 0;
}

static void each_f32(void (*check)(const struct kern_ops *k, struct kern_stream *s, const char *isa))
{
    const struct kern_ops *k;
    const char *isa;
    for (int v = 0; (k = kern_variant(v, &isa)); v++) {
        if (k->dtype != DT_F32)
            continue;
        struct kern_stream *s = new_stream();
        check(k, s, isa);
        dev_stream_free(s);
    }
}

/* Documents of 3, 97, 1, 250 and 149 tokens. */
static void leak_case(const struct kern_ops *k, struct kern_stream *s, const char *isa)
{
    static const int64_t ends[] = {3, 100, 101, 351, MASK_SEQ};
    static struct mask_run a, b;
    int32_t begin[MASK_SEQ];
    for (int64_t d = 0, i = 0; d < 5; d++)
        for (; i < ends[d]; i++)
            begin[i] = (int32_t)(d ? ends[d - 1] : 0);
    mask_run(k, s, 0, begin, 0, 0, 0, &a);
    for (int64_t d = 0; d < 5; d++) {
        const int64_t lo = d ? ends[d - 1] : 0, hi = ends[d];
        mask_run(k, s, 0, begin, 1, lo, hi, &b);
        if (!results_equal(&a, &b, 0, lo) || !results_equal(&a, &b, hi, MASK_SEQ))
            fail_msg("%s %s: document %d changes another one", k->name, isa, (int)d);
        assert_false(results_equal(&a, &b, lo, hi));
    }
}

/* A token changes no bit of the results of another document in the same row, forward and backward. */
TEST(documents_do_not_change_each_other)
{
    each_f32(leak_case);
}

/* Through a window of 200 tokens, token 150 is seen by the queries up to 349. */
static void window_case(const struct kern_ops *k, struct kern_stream *s, const char *isa)
{
    static struct mask_run a, b;
    mask_run(k, s, 200, NULL, 0, 0, 0, &a);
    mask_run(k, s, 200, NULL, 1, 150, 151, &b);
    if (!rows_equal(a.o, b.o, 0, 150) || !rows_equal(a.o, b.o, 350, MASK_SEQ))
        fail_msg("%s %s: a token is seen outside the window", k->name, isa);
    for (int64_t i = 150; i < 350; i++)
        if (rows_equal(a.o, b.o, i, i + 1))
            fail_msg("%s %s: query %d does not see token 150", k->name, isa, (int)i);
}

TEST(a_window_has_as_many_keys_as_it_says)
{
    each_f32(window_case);
}

/* Three keys, by arithmetic: with q = 1 and scale 1 the scores are the keys 0, ln 2, ln 4, so the weights are as 1 : 2
 * : 4. A window of 2 leaves the last two; a scale of 2 squares the weights; a softcap c replaces ln 4 by c tanh(ln 4 /
 * c). */
TEST(cached_attention_follows_its_formula)
{
    const float q[1] = {1}, keys[3] = {0, 0.69314718f, 1.38629436f}, values[3] = {10, 20, 40};
    const double capped = exp(tanh(log(4))), half = exp(tanh(log(2)));
    const struct {
        double window, scale, softcap, want;
    } rows[] = {{0, 1, 0, (10 + 2 * 20 + 4 * 40) / 7.0},
                {2, 1, 0, (2 * 20 + 4 * 40) / 6.0},
                {1, 1, 0, 40},
                {3, 2, 0, (10 + 4 * 20 + 16 * 40) / 21.0},
                {0, 0, 0, (10 + 2 * 20 + 4 * 40) / 7.0},
                {0, 1, 1, (10 + half * 20 + capped * 40) / (1 + half + capped)}};
    const struct kern_ops *k;
    const char *isa;
    struct kern_stream *s = new_stream();
    for (int v = 0; (k = kern_variant(v, &isa)); v++)
        for (size_t i = 0; k->dtype == DT_F32 && i < sizeof(rows) / sizeof(rows[0]); i++) {
            float o[1];
            const struct kern_attention_cached a = {.n = 1,
                                                    .pos0 = 2,
                                                    .heads = 1,
                                                    .kv_heads = 1,
                                                    .head_dim = 1,
                                                    .q_stride = 1,
                                                    .k_stride = 1,
                                                    .v_stride = 1,
                                                    .o_stride = 1,
                                                    .window = (int64_t)rows[i].window,
                                                    .scale = rows[i].scale,
                                                    .softcap = rows[i].softcap,
                                                    .q = q,
                                                    .k = keys,
                                                    .v = values,
                                                    .o = o};
            assert_ok(k->attention_cached(s, &a));
            if (fabs((double)o[0] - rows[i].want) > 2e-5)
                fail_msg("%s %s: row %zu is %g, expected %g", k->name, isa, i, (double)o[0], rows[i].want);
        }
    dev_stream_free(s);
}

/* One NaN in the input must appear in every result that depends on it, because a run detects it only there. */
static void nan_case(const struct kern_ops *k, struct kern_stream *s, const char *isa)
{
    enum { N = 40 };
    for (int at = 0; at < N; at++) {
        float x[N], y[N], w[N], stat[1];
        int32_t target = 3;
        double loss = 0, blocks[1];
        for (int i = 0; i < N; i++)
            x[i] = (float)i / N, w[i] = 1;
        x[at] = NAN;
        k->gelu(s, N, x, y);
        assert_true(isnan(y[at]));
        k->relu(s, N, x, y);
        assert_true(isnan(y[at]));
        k->gelu_erf(s, N, x, y);
        assert_true(isnan(y[at]));
        k->scale(s, N, 2, x, y);
        assert_true(isnan(y[at]));
        k->cap(s, N, 2, x, y);
        assert_true(isnan(y[at]));
        k->geglu(s, N, x, w, y);
        assert_true(isnan(y[at]));
        k->swiglu(s, N, x, w, y);
        assert_true(isnan(y[at]));
        k->rmsnorm(s, 1, N, 1e-5, false, x, NULL, w, NULL, y, stat);
        assert_true(isnan(y[0]));
        k->sumsq_blocks(s, N, 1024, x, blocks);
        assert_true(isnan(blocks[0]));
        struct kern_attention a = {.batch = 1,
                                   .seq = N,
                                   .heads = 1,
                                   .kv_heads = 1,
                                   .head_dim = 1,
                                   .q_stride = 1,
                                   .k_stride = 1,
                                   .v_stride = 1,
                                   .o_stride = 1,
                                   .causal = true,
                                   .q = w,
                                   .k = x,
                                   .v = w,
                                   .o = y,
                                   .lse = (float[N]){0}};
        assert_ok(k->attention(s, &a));
        if (!isnan(y[N - 1]))
            fail_msg("%s %s: attention loses a NaN at key %d", k->name, isa, at);
        const struct kern_attention_cached c = {.n = 1,
                                                .pos0 = N - 1,
                                                .heads = 1,
                                                .kv_heads = 1,
                                                .head_dim = 1,
                                                .q_stride = 1,
                                                .k_stride = 1,
                                                .v_stride = 1,
                                                .o_stride = 1,
                                                .q = w,
                                                .k = x,
                                                .v = w,
                                                .o = y};
        y[0] = 0;
        assert_ok(k->attention_cached(s, &c));
        if (!isnan(y[0]))
            fail_msg("%s %s: attention over a cache loses a NaN at key %d", k->name, isa, at);
        k->cross_entropy(s, 1, N, N, &target, true, 1, x, &loss);
        if (!isnan(loss))
            fail_msg("%s %s: the loss loses a NaN at %d", k->name, isa, at);
    }
}

TEST(nans_are_not_lost)
{
    const struct kern_ops *k;
    const char *isa;
    for (int v = 0; (k = kern_variant(v, &isa)); v++) {
        if (k->dtype != DT_F32)
            continue;
        struct kern_stream *s = new_stream();
        nan_case(k, s, isa);
        dev_stream_free(s);
    }
}

static int count_threads(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/task");
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));)
        n += e->d_name[0] != '.';
    closedir(d);
    return n;
}

static void *do_nothing(void *arg)
{
    return arg;
}

/* A stream of one thread starts no thread, whatever the environment sets, and one of three uses three. */
TEST(streams_have_their_threads)
{
    enum { N = 400 };
    static float a[N * N], b[N * N], c[N * N];
    const struct kern_ops *k = kern_find("cpu", DT_F32);
    struct kern_gemm g = {.m = N, .n = N, .k = N, .lda = N, .ldb = N, .ldc = N, .a = a, .b = b, .c = c};
    pthread_t first; /* the thread sanitizer starts a helper with a process's first thread; do this before counting */
    assert_int_equal(pthread_create(&first, NULL, do_nothing, NULL), 0);
    pthread_join(first, NULL);
    for (int threads = 1; threads <= 3; threads += 2) {
        struct kern_stream *s = NULL;
        int before = count_threads();
        assert_ok(dev_stream_new(cpu(), threads, false, &s, NULL));
        assert_ok(k->gemm(s, &g));
        k->gelu(s, N * N, a, b);
        assert_int_equal(count_threads() - before, threads - 1);
        dev_stream_free(s);
    }
}

/* An element's update does not depend on where a shard begins or ends. */
TEST(adamw_does_not_depend_on_cuts)
{
    enum { N = 100 };
    const struct kern_ops *k;
    const char *isa;
    for (int variant = 0; (k = kern_variant(variant, &isa)); variant++) {
        if (k->dtype != DT_F32)
            continue;
        struct kern_stream *s = new_stream();
        float whole[4][N], cut[4][N];
        for (int i = 0; i < 4 * N; i++)
            whole[i / N][i % N] = fabsf((float)rng_normal(5, 5, (uint64_t)i));
        memcpy(cut, whole, sizeof(cut));
        for (int pass = 0; pass < 2; pass++)
            for (int64_t lo = 0; lo < N; lo += pass ? 37 : N) {
                float(*x)[N] = pass ? cut : whole;
                struct kern_adamw a = {.n = pass && N - lo > 37 ? 37 : N - lo,
                                       .p = x[0] + lo,
                                       .m = x[1] + lo,
                                       .v = x[2] + lo,
                                       .g = x[3] + lo,
                                       .lr = 0.01,
                                       .beta1 = 0.9,
                                       .beta2 = 0.95,
                                       .eps = 1e-8,
                                       .weight_decay = 0.1,
                                       .grad_scale = &(double){0.7},
                                       .step = 3};
                k->adamw(s, &a);
            }
        assert_memory_equal(whole, cut, sizeof(cut));
        dev_stream_free(s);
    }
}

/* Compares one product with an activation to the product followed by the activation's kernel. Returns whether the bits
 * are the same. */
static bool fused_agrees(const struct kern_ops *k, struct kern_stream *s, enum kern_act act, double bound)
{
    enum { M = 37, N = 50, K = 24, LD = 53 };
    static float a[M * K], b[K * N], bias[N], x[M * LD], c[M * LD], aux[M * LD], want[M * LD];
    struct kern_gemm g = {.m = M, .n = N, .k = K, .lda = K, .ldb = N, .ldc = LD, .a = a, .b = b, .bias = bias, .c = x};
    for (int i = 0; i < M * LD; i++)
        aux[i] = (float)rng_normal(7, 1, (uint64_t)i);
    for (int i = 0; i < M * K || i < K * N; i++) {
        a[i % (M * K)] = (float)rng_normal(7, 2, (uint64_t)i);
        b[i % (K * N)] = (float)rng_normal(7, 3, (uint64_t)i);
        bias[i % N] = (float)rng_normal(7, 4, (uint64_t)i);
    }
    assert_ok(k->gemm(s, &g));
    for (int i = 0; i < M; i++)
        if (act == KERN_ACT_GELU)
            k->gelu(s, N, x + i * LD, want + i * LD);
        else
            k->gelu_grad(s, N, aux + i * LD, x + i * LD, want + i * LD);
    g.act = act;
    g.c = c;
    g.aux = aux;
    assert_ok(k->gemm(s, &g));
    bool same = true;
    for (int i = 0; i < M * LD; i++) {
        same &= i % LD >= N || c[i] == want[i];
        assert_true(i % LD >= N || fabs((double)c[i] - (double)want[i]) <= bound * (1 + fabs((double)want[i])));
        assert_true(act != KERN_ACT_GELU || i % LD >= N || aux[i] == x[i]);
    }
    return same;
}

TEST(fused_activations_are_the_kernels)
{
    const struct kern_ops *k;
    const char *isa;
    for (int v = 0; (k = kern_variant(v, &isa)); v++) {
        if (k->dtype != DT_F32)
            continue;
        struct kern_stream *s = new_stream();
        bool same = fused_agrees(k, s, KERN_ACT_GELU, 1e-6) && fused_agrees(k, s, KERN_ACT_GELU_GRAD, 1e-6);
        assert_true(same ||
                    strcmp(k->name, "cpu") != 0); /* cpu uses the same code for both; the oracle rounds once less */
        dev_stream_free(s);
    }
}

/* Sums of a bias' gradient have the bits of bias_grad, whichever operand of the product they are over. */
TEST(sums_in_a_product_are_bias_grad)
{
    enum { M = 20, N = 70, K = 100 };
    static float a[K * M], b[K * N], c[M * N];
    const struct kern_ops *k;
    const char *isa;
    for (int i = 0; i < K * N; i++)
        a[i % (K * M)] = b[i] = (float)rng_normal(8, 1, (uint64_t)i);
    for (int v = 0; (k = kern_variant(v, &isa)); v++) {
        if (k->dtype != DT_F32)
            continue;
        struct kern_stream *s = new_stream();
        float a_sum[M] = {1}, b_sum[N] = {1}, want_a[M] = {1}, want_b[N] = {1};
        struct kern_gemm g = {.trans_a = true,
                              .accumulate = true,
                              .wide_c = true,
                              .m = M,
                              .n = N,
                              .k = K,
                              .lda = M,
                              .ldb = N,
                              .ldc = N,
                              .a = a,
                              .b = b,
                              .c = c,
                              .a_sum = a_sum,
                              .b_sum = b_sum};
        assert_ok(k->gemm(s, &g));
        k->bias_grad(s, K, M, a, want_a);
        k->bias_grad(s, K, N, b, want_b);
        assert_memory_equal(a_sum, want_a, sizeof(want_a));
        assert_memory_equal(b_sum, want_b, sizeof(want_b));
        dev_stream_free(s);
    }
}

/* A step is skipped or done as a whole, and the norm is returned in either case. */
TEST(clip_follows_its_formula)
{
    const double blocks[3] = {1, 4, 4}, bad[3] = {1, NAN, 4}, losses[2] = {2, 3}, lost[2] = {2, -INFINITY};
    const struct {
        const double *blocks, *losses;
        int64_t n_losses;
        double limit, norm, factor;
    } cases[] = {{blocks, losses, 2, 0, 3, 1},  {blocks, losses, 2, 1.5, 3, 0.5}, {blocks, losses, 2, 3, 3, 1},
                 {blocks, losses, 2, 4, 3, 1},  {blocks, NULL, 0, 1.5, 3, 0.5},   {bad, losses, 2, 0, NAN, NAN},
                 {bad, losses, 2, 1, NAN, NAN}, {blocks, lost, 2, 0, 3, NAN},     {blocks, lost, 2, 1, 3, NAN}};
    struct kern_stream *s = new_stream();
    const struct kern_ops *k;
    const char *isa;
    for (int v = 0; (k = kern_variant(v, &isa)); v++)
        for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
            double norm = -1, factor = -1;
            struct kern_clip c = {3,      cases[i].n_losses, cases[i].blocks, cases[i].losses, cases[i].limit, &norm,
                                  &factor};
            k->clip(s, &c);
            assert_true(norm == cases[i].norm || (isnan(norm) && isnan(cases[i].norm)));
            assert_true(factor == cases[i].factor || (isnan(factor) && isnan(cases[i].factor)));
        }
    dev_stream_free(s);
}
