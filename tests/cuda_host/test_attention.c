/* Properties of attention that the case table's random numbers do not test: scores far from zero, NaNs, tiles copied in
 * chunks of 16 bytes compared with tiles copied by elements, and parts of the keys that combine to the whole. */
#include "kernels/kernels.h"
#include "tests/lib/test.h"

#include <math.h>

#define MAX_SEQ 100
#define MAX_ROW 512

/* A microbatch whose q, k and v lie side by side, with gradients in the same layout. */
struct attention_layer {
    int64_t seq, heads, kv_heads, head_dim;
    bool causal;
    float qkv[MAX_SEQ * MAX_ROW], o[MAX_SEQ * MAX_ROW], d_o[MAX_SEQ * MAX_ROW], d_qkv[MAX_SEQ * MAX_ROW];
    float lse[8 * MAX_SEQ];
};

static struct attention_layer near, far;

static int64_t width_of(const struct attention_layer *l)
{
    return (l->heads + 2 * l->kv_heads) * l->head_dim;
}

static void fill(struct attention_layer *l, int64_t seq, int64_t heads, int64_t kv_heads, int64_t head_dim, bool causal)
{
    *l = (struct attention_layer){
        .seq = seq, .heads = heads, .kv_heads = kv_heads, .head_dim = head_dim, .causal = causal};
    assert_true(seq <= MAX_SEQ && width_of(l) <= MAX_ROW && heads <= 8);
    for (int64_t i = 0; i < seq * width_of(l); i++)
        l->qkv[i] = (float)((i * 7919 + 13) % 257 - 128) / 64;
    for (int64_t i = 0; i < seq * heads * head_dim; i++)
        l->d_o[i] = (float)((i * 104729 + 5) % 251 - 125) / 100;
}

static struct kern_attention call_of(const struct attention_layer *l, char *qkv, char *o, float *lse, size_t size)
{
    size_t q = (size_t)(l->heads * l->head_dim) * size, kv = (size_t)(l->kv_heads * l->head_dim) * size;
    int64_t row = width_of(l);
    return (struct kern_attention){.batch = 1,
                                   .seq = l->seq,
                                   .heads = l->heads,
                                   .kv_heads = l->kv_heads,
                                   .head_dim = l->head_dim,
                                   .q_stride = row,
                                   .k_stride = row,
                                   .v_stride = row,
                                   .o_stride = l->heads * l->head_dim,
                                   .causal = l->causal,
                                   .q = qkv,
                                   .k = qkv + q,
                                   .v = qkv + q + kv,
                                   .o = o,
                                   .lse = lse};
}

static void *copied(struct dev *d, struct kern_stream *s, size_t bytes, size_t shift, const void *from)
{
    char *p;
    struct why why;
    assert_int_equal(dev_alloc(d, bytes + 64, "a test", (void **)&p, &why), OK);
    if (from)
        assert_int_equal(dev_copy(s, p + shift, from, bytes), OK);
    return p;
}

/* Runs attention with the keys in two parts, the second from key `cut` on: results are joined, gradients added. o2 has
 * o's layout, followed by lse. */
static void run_parts(const struct attention_layer *l, const struct kern_ops *k, struct kern_stream *s, int64_t cut,
                      const struct kern_attention_grad *g, float *o2)
{
    int64_t row = width_of(l), all = l->seq * l->heads * l->head_dim;
    struct kern_attention_grad low = *g, high = *g;
    low.fwd.seq_kv = cut;
    high.fwd.seq_kv = l->seq - cut;
    high.fwd.k = (const float *)g->fwd.k + cut * row;
    high.fwd.v = (const float *)g->fwd.v + cut * row;
    high.d_k = (float *)g->d_k + cut * row;
    high.d_v = (float *)g->d_v + cut * row;
    high.acc_q = true;
    assert_int_equal(k->attention(s, &low.fwd), OK);
    struct kern_attention second = high.fwd;
    second.o = o2;
    second.lse = o2 + all;
    assert_int_equal(k->attention(s, &second), OK);
    const struct kern_attention_join join = {.batch = 1,
                                             .seq = l->seq,
                                             .heads = l->heads,
                                             .head_dim = l->head_dim,
                                             .o_stride = g->fwd.o_stride,
                                             .o2_stride = g->fwd.o_stride,
                                             .o = g->fwd.o,
                                             .lse = g->fwd.lse,
                                             .o2 = second.o,
                                             .lse2 = second.lse};
    k->attention_join(s, &join);
    assert_int_equal(k->attention_grad(s, &low), OK);
    assert_int_equal(k->attention_grad(s, &high), OK);
}

/* Forward and backward on a float32 table, with every array `shift` bytes past an aligned address; with `cut` the keys
 * are in two parts. */
static void run_cut(struct attention_layer *l, const char *device, const struct kern_ops *k, size_t shift, int64_t cut)
{
    struct dev *d;
    struct kern_stream *s;
    struct why why = {""};
    size_t qkv = (size_t)(l->seq * width_of(l)) * 4, o = (size_t)(l->seq * l->heads * l->head_dim) * 4;
    size_t lse = (size_t)(l->seq * l->heads) * 4;
    if (dev_open(device, 0, &d, &why))
        fail_msg("%s", why.text);
    k = k ? k : dev_kernels(d, DT_F32);
    assert_int_equal(dev_stream_new(d, 1, false, &s, &why), OK);
    char *p[6] = {copied(d, s, qkv, shift, l->qkv), copied(d, s, o, shift, NULL), copied(d, s, o, shift, l->d_o),
                  copied(d, s, qkv, shift, NULL),   copied(d, s, lse, 0, NULL),   copied(d, s, o + lse, 0, NULL)};
    struct kern_attention a = call_of(l, p[0] + shift, p[1] + shift, (float *)(void *)p[4], 4);
    struct kern_attention at = call_of(l, p[3] + shift, NULL, NULL, 4);
    struct kern_attention_grad g = {
        .fwd = a, .d_o = p[2] + shift, .d_q = (void *)at.q, .d_k = (void *)at.k, .d_v = (void *)at.v};
    if (cut) {
        run_parts(l, k, s, cut, &g, (float *)(void *)p[5]);
    } else {
        assert_int_equal(k->attention(s, &a), OK);
        assert_int_equal(k->attention_grad(s, &g), OK);
    }
    assert_int_equal(dev_copy(s, l->o, p[1] + shift, o), OK);
    assert_int_equal(dev_copy(s, l->d_qkv, p[3] + shift, qkv), OK);
    assert_int_equal(dev_copy(s, l->lse, p[4], lse), OK);
    assert_int_equal(dev_stream_sync(s, &why), OK);
    const size_t bytes[6] = {qkv, o, o, qkv, lse, o + lse};
    for (int i = 0; i < 6; i++)
        dev_free(d, p[i], bytes[i] + 64);
    dev_stream_free(s);
    dev_close(d);
}

static void run(struct attention_layer *l, const char *device, const struct kern_ops *k, size_t shift)
{
    run_cut(l, device, k, shift, 0);
}

static void expect_near(const char *what, int64_t n, const float *got, const float *want, float bound)
{
    for (int64_t i = 0; i < n; i++)
        if (!(fabsf(got[i] - want[i]) <= bound * fmaxf(1, fabsf(want[i]))))
            fail_msg("%s[%lld] is %.9g, expected %.9g", what, (long long)i, (double)got[i], (double)want[i]);
}

/* The error of scores is a few roundings of the numbers that they are summed from, and the error of weights is as
 * large: `bound` grows with those numbers. */
static void expect_oracle(float bound)
{
    far = near;
    run(&near, "cuda", NULL, 0);
    run(&far, "cpu", kern_find("ref", DT_F32), 0);
    expect_near("o", near.seq * near.heads * near.head_dim, near.o, far.o, bound);
    expect_near("lse", near.seq * near.heads, near.lse, far.lse, bound);
    expect_near("gradient", near.seq * width_of(&near), near.d_qkv, far.d_qkv, bound);
}

/* Keys that do not exist would have weights of 2^1000 relative to these. */
TEST(very_negative_scores_have_gradients)
{
    for (int causal = 0; causal < 2; causal++) {
        fill(&near, 21, 2, 1, 8, causal);
        for (int64_t i = 0; i < near.seq; i++)
            for (int64_t j = 0; j < 3 * 8; j++)
                near.qkv[i * width_of(&near) + j] = (j < 16 ? 18.0f : -18.0f) + 0.001f * (float)((i + j) % 7);
        expect_oracle(2e-3f);
        assert_true(near.lse[0] < -700);
    }
}

TEST(very_large_scores_do_not_overflow)
{
    fill(&near, 70, 1, 1, 16, true);
    for (int64_t i = 0; i < near.seq; i++)
        for (int64_t j = 0; j < 2 * 16; j++)
            near.qkv[i * width_of(&near) + j] = 15 + 0.001f * (float)((i * 3 + j) % 5);
    expect_oracle(2e-3f);
    assert_true(near.lse[0] > 700);
}

/* Copies in chunks of 16 bytes and by single elements transfer the same numbers, so the bits must be the same. */
TEST(bits_do_not_depend_on_how_tiles_are_copied)
{
#ifdef __SANITIZE_THREAD__
    TEST_SKIP("too slow with system threads");
#endif
    static const int64_t head_dims[] = {32, 64, 96};
    for (int i = 0; i < 3; i++) {
        fill(&near, 83, 2, 1, head_dims[i], i != 1);
        expect_oracle(2e-5f);
        far = near;
        run(&far, "cuda", NULL, 4);
        assert_memory_equal(near.o, far.o, sizeof(near.o));
        assert_memory_equal(near.lse, far.lse, sizeof(near.lse));
        assert_memory_equal(near.d_qkv, far.d_qkv, sizeof(near.d_qkv));
    }
}

#ifdef __SANITIZE_THREAD__
enum { SHAPES = 1, NEXT_CUT = 69 }; /* one system thread per CUDA thread: half a minute per cut */
#else
enum { SHAPES = 2, NEXT_CUT = 23 };
#endif

TEST(parts_of_the_keys_make_a_whole)
{
    static const int64_t head_dims[] = {16, 80};
    for (int i = 0; i < SHAPES; i++)
        for (int64_t cut = 1; cut < 70; cut += NEXT_CUT) {
            fill(&near, 70, 2, 1, head_dims[i], false);
            far = near;
            run_cut(&near, "cuda", NULL, 0, cut);
            run(&far, "cpu", kern_find("ref", DT_F32), 0);
            expect_near("o", near.seq * near.heads * near.head_dim, near.o, far.o, 2e-5f);
            expect_near("lse", near.seq * near.heads, near.lse, far.lse, 2e-5f);
            expect_near("gradient", near.seq * width_of(&near), near.d_qkv, far.d_qkv, 2e-5f);
        }
}

/* One NaN key makes the result of every query that sees it NaN. */
TEST(a_nan_is_seen)
{
    fill(&near, 75, 1, 1, 16, true);
    for (int64_t at = 0; at < 75; at += 37) {
        near.qkv[at * width_of(&near) + 16] = NAN;
        run(&near, "cuda", NULL, 0);
        for (int64_t i = at; i < 75; i++)
            assert_true(isnan(near.o[i * 16]) && isnan(near.lse[i]));
        assert_true(isnan(near.d_qkv[74 * width_of(&near)]));
        near.qkv[at * width_of(&near) + 16] = 1;
    }
}
