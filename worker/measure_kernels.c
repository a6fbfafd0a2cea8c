/* Kernels one by one, over grids of sizes: products and attention, whose rates depend on their shape, and passes that
 * are part of a product in a step. Operands lie at changing places of a large array, so that they are not in a cache
 * from the call before. They are zeros, for which no processor takes another time. */
#include "worker/measure_part.h"

#include <string.h>
#include <time.h>

#define ARENA ((size_t)48 << 20) /* more than a core's share of any cache, and than the largest three operands */
#define REPEATS 3

static const enum dtype types[MEASURE_TYPES] = {DT_F32, DT_BF16};
const int measure_types = MEASURE_TYPES;

int64_t measure_thread_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

void measure_add(struct measure *m, const struct measure_sample *s)
{
    if (m->samples && m->samples->n < MEASURE_SAMPLES)
        m->samples->list[m->samples->n++] = *s;
}

struct trial {
    struct measure *m;
    const struct kern_ops *k;
    uint8_t *arena;
    size_t at;
};

/* The next part of the arena. */
static void *take(struct trial *t, int64_t bytes)
{
    const size_t size = ((size_t)bytes + 4095) & ~(size_t)4095;
    if (t->at + size > ARENA)
        t->at = 0;
    uint8_t *ret = t->arena + t->at;
    t->at += size;
    return ret;
}

static err_t trial_init(struct trial *t, struct measure *m)
{
    void *arena = NULL;
    *t = (struct trial){.m = m, .k = dev_kernels(m->dev, types[m->turn])};
    if (!t->k)
        return ERR_UNSUPPORTED;
    err_t err = dev_alloc(m->dev, ARENA, "operands", &arena, m->why);
    if (!err) {
        memset(arena, 0, ARENA); /* touches all pages */
        t->arena = arena;
    }
    return err;
}

static void trial_fini(struct trial *t)
{
    dev_free(t->m->dev, t->arena, ARENA);
}

typedef err_t trial_fn(struct trial *t, const struct measure_sample *s);

/* Long enough that the time of one call is exact, and so long that what prepares the kernel does not count (about 1
 * ms). */
#define LONG_S 5e-3
#define VERY_LONG_S 20e-3

/* A first call prepares the kernel. `parts`: how many times a call does the work of the size. */
static err_t repeat(struct trial *t, struct measure_sample *s, double parts, trial_fn *fn)
{
    const int calls = 1 + (t->m->hurried ? 1 : REPEATS);
    double seconds = 0;
    err_t err = OK;
    for (int i = 0; !err && i < calls && (i < 2 || seconds <= LONG_S); i++) {
        const int64_t start = measure_thread_ns();
        err = fn(t, s);
        seconds = (double)(measure_thread_ns() - start) * 1e-9;
        s->seconds = seconds / parts;
        if (!err && (i > 0 || seconds > VERY_LONG_S))
            measure_add(t->m, s);
        if (seconds > VERY_LONG_S)
            break;
    }
    return err;
}

/* ---- products ---- */

/* Widths up to those of middle models. Multiples of TABLE_ALIAS are a class of their own, and have two of them. */
static const int64_t tokens[] = {32, 128, 256, 512};
static const int64_t widths[] = {64, 128, 256, 384, 576, 768, 1024, 1152, 2048, 2304};
#define N_TOKENS ((int)(sizeof(tokens) / sizeof(tokens[0])))
#define N_WIDTHS ((int)(sizeof(widths) / sizeof(widths[0])))

static err_t product(struct trial *t, const struct measure_sample *s)
{
    const int64_t m = (int64_t)s->size[0], n = (int64_t)s->size[1], k = (int64_t)s->size[2];
    const int64_t type = (int64_t)dtype_bytes(s->key.dtype);
    const bool ta = s->key.form & TABLE_TRANS_A, tb = s->key.form & TABLE_TRANS_B;
    const struct kern_gemm g = {.trans_a = ta,
                                .trans_b = tb,
                                .accumulate = s->key.form & TABLE_ACC,
                                .wide_c = ta,
                                .m = m,
                                .n = n,
                                .k = k,
                                .lda = ta ? m : k,
                                .ldb = tb ? k : n,
                                .ldc = n,
                                .a = take(t, m * k * type),
                                .b = take(t, k * n * type),
                                .c = take(t, m * n * 4)};
    return t->k->gemm(t->m->stream, &g);
}

/* A layer's products: the gradient of its input, written and added to, forward, and the gradient of its weights. */
static const struct {
    int form, tokens; /* tokens: which of m, n, k */
} kinds[] = {{0, 0}, {TABLE_TRANS_B, 0}, {TABLE_ACC, 0}, {TABLE_TRANS_A, 2}, {TABLE_TRANS_A | TABLE_ACC, 2}};
#define N_KINDS ((int)(sizeof(kinds) / sizeof(kinds[0])))

static err_t products_of(struct trial *t, int64_t rows, int64_t in, int64_t out)
{
    err_t err = OK;
    for (int i = 0; !err && i < N_KINDS; i++) {
        struct measure_sample s = {.key = {OP_GEMM, types[t->m->turn], kinds[i].form, 1}};
        s.size[0] = (double)(kinds[i].tokens == 0 ? rows : in);
        s.size[1] = (double)out;
        s.size[2] = (double)(kinds[i].tokens == 0 ? in : rows);
        err = repeat(t, &s, 1, product);
    }
    return err;
}

/* A hurried measurement leaves out the largest number of tokens, whose products take half of the time. A forecast then
 * uses the rate of the next smaller number. */
err_t measure_products(struct measure *m)
{
    struct trial t;
    const int n = m->hurried ? N_TOKENS - 1 : N_TOKENS;
    err_t err = trial_init(&t, m);
    for (int i = 0; !err && i < n * N_WIDTHS * N_WIDTHS; i++)
        err = products_of(&t, tokens[i / N_WIDTHS / N_WIDTHS], widths[i / N_WIDTHS % N_WIDTHS], widths[i % N_WIDTHS]);
    trial_fini(&t);
    return err;
}

/* ---- products of experts ---- */

#define EXPERTS 4
static const int64_t expert_rows[] = {8, 32, 128, 512}, expert_widths[] = {64, 128, 256, 512, 1024};
#define N_EXPERT_ROWS 4
#define N_EXPERT_WIDTHS 5

static err_t grouped(struct trial *t, const struct measure_sample *s)
{
    static int32_t offsets[EXPERTS + 1];
    const bool ta = s->key.form & TABLE_TRANS_A;
    const int64_t rows = (int64_t)s->size[0], n = (int64_t)s->size[1], k = (int64_t)s->size[2];
    for (int e = 0; e <= EXPERTS; e++)
        offsets[e] = (int32_t)(e * rows);
    const struct kern_grouped g = {.trans_a = ta,
                                   .trans_b = s->key.form & TABLE_TRANS_B,
                                   .accumulate = s->key.form & TABLE_ACC,
                                   .wide_c = ta,
                                   .experts = EXPERTS,
                                   .rows = EXPERTS * rows,
                                   .m = ta ? k : 0,
                                   .n = n,
                                   .k = ta ? 0 : k,
                                   .offsets = offsets,
                                   .a = take(t, EXPERTS * rows * k * 4),
                                   .b = take(t, EXPERTS * (ta ? rows : k) * n * 4),
                                   .c = take(t, EXPERTS * (ta ? k : rows) * n * 4)};
    return t->k->grouped_gemm(t->m->stream, &g);
}

static err_t grouped_of(struct trial *t)
{
    err_t err = OK;
    for (int i = 0; !err && i < N_KINDS * N_EXPERT_ROWS * N_EXPERT_WIDTHS * N_EXPERT_WIDTHS; i++) {
        const int at = i / N_KINDS;
        struct measure_sample s = {.key = {OP_GROUPED_GEMM, types[t->m->turn], kinds[i % N_KINDS].form, 1}};
        s.size[0] = (double)expert_rows[at / N_EXPERT_WIDTHS / N_EXPERT_WIDTHS];
        s.size[1] = (double)expert_widths[at / N_EXPERT_WIDTHS % N_EXPERT_WIDTHS];
        s.size[2] = (double)expert_widths[at % N_EXPERT_WIDTHS];
        err = repeat(t, &s, EXPERTS, grouped);
    }
    return err;
}

/* ---- attention ---- */

#define HEADS 8
static const int64_t sequences[] = {32, 64, 128, 256, 512, 1024}, head_dims[] = {16, 32, 64, 96, 128};
#define N_SEQUENCES 6
#define N_HEAD_DIMS 5

static struct kern_attention attention_of(struct trial *t, const struct measure_sample *s)
{
    const int64_t seq = (int64_t)s->size[0], d = (int64_t)s->size[1], bytes = seq * HEADS * d * 4;
    return (struct kern_attention){.batch = 1,
                                   .seq = seq,
                                   .heads = HEADS,
                                   .kv_heads = HEADS,
                                   .head_dim = d,
                                   .q_stride = HEADS * d,
                                   .k_stride = HEADS * d,
                                   .v_stride = HEADS * d,
                                   .o_stride = HEADS * d,
                                   .causal = s->key.form & TABLE_CAUSAL,
                                   .q = take(t, bytes),
                                   .k = take(t, bytes),
                                   .v = take(t, bytes),
                                   .o = take(t, bytes),
                                   .lse = take(t, seq * HEADS * 4)};
}

static err_t attention(struct trial *t, const struct measure_sample *s)
{
    const struct kern_attention a = attention_of(t, s);
    return t->k->attention(t->m->stream, &a);
}

static err_t attention_grad(struct trial *t, const struct measure_sample *s)
{
    struct kern_attention_grad a = {.fwd = attention_of(t, s)};
    const int64_t bytes = a.fwd.seq * a.fwd.q_stride * 4;
    a.d_o = take(t, bytes);
    a.d_q = take(t, bytes);
    a.d_k = take(t, bytes);
    a.d_v = take(t, bytes);
    return t->k->attention_grad(t->m->stream, &a);
}

static err_t attentions(struct trial *t)
{
    const int n = t->m->hurried ? N_SEQUENCES - 1 : N_SEQUENCES; /* the longest one takes half of the time */
    err_t err = OK;
    for (int i = 0; !err && i < 2 * n * N_HEAD_DIMS; i++) {
        struct measure_sample s = {.key = {OP_ATTENTION, types[t->m->turn], i % 2 ? TABLE_CAUSAL : 0, 1}};
        s.size[0] = (double)sequences[i / 2 / N_HEAD_DIMS];
        s.size[1] = (double)head_dims[i / 2 % N_HEAD_DIMS];
        err = repeat(t, &s, HEADS, attention);
        s.key.kind = OP_ATTENTION_GRAD;
        err = err ? err : repeat(t, &s, HEADS, attention_grad);
    }
    return err;
}

/* ---- passes ---- */

/* In a step these are parts of products, so that measure_steps.c sees no operation of their kind. A sample's size is
 * the bytes that plan_op_cost counts. */
#define PASS_COLUMNS 512

static int64_t rows_of(const struct measure_sample *s, int times)
{
    return (int64_t)s->size[0] / times / PASS_COLUMNS / (int64_t)dtype_bytes(s->key.dtype);
}

static err_t pass_zero(struct trial *t, const struct measure_sample *s)
{
    return dev_zero(t->m->stream, take(t, (int64_t)s->size[0]), (size_t)s->size[0]);
}

static err_t pass_gelu(struct trial *t, const struct measure_sample *s)
{
    const int64_t bytes = (int64_t)s->size[0] / 2;
    t->k->gelu(t->m->stream, rows_of(s, 2) * PASS_COLUMNS, take(t, bytes), take(t, bytes));
    return OK;
}

static err_t pass_gelu_grad(struct trial *t, const struct measure_sample *s)
{
    const int64_t bytes = (int64_t)s->size[0] / 3;
    t->k->gelu_grad(t->m->stream, rows_of(s, 3) * PASS_COLUMNS, take(t, bytes), take(t, bytes), take(t, bytes));
    return OK;
}

static err_t pass_bias_grad(struct trial *t, const struct measure_sample *s)
{
    t->k->bias_grad(t->m->stream, rows_of(s, 1), PASS_COLUMNS, take(t, (int64_t)s->size[0]), take(t, PASS_COLUMNS * 4));
    return OK;
}

static const struct {
    enum op_kind kind;
    int times; /* operands */
    trial_fn *fn;
} passes[] = {{OP_ZERO, 1, pass_zero},
              {OP_GELU, 2, pass_gelu},
              {OP_GELU_GRAD, 3, pass_gelu_grad},
              {OP_BIAS_GRAD, 1, pass_bias_grad}};
#define N_PASSES ((int)(sizeof(passes) / sizeof(passes[0])))
#define PASS_SIZES 7 /* 16 KB to 64 times as much in steps of 2 */

static err_t passes_of(struct trial *t)
{
    err_t err = OK;
    for (int i = 0; !err && i < N_PASSES * PASS_SIZES; i++) {
        struct measure_sample s = {.key = {passes[i % N_PASSES].kind, types[t->m->turn], 0, 1}};
        s.size[0] = (double)(passes[i % N_PASSES].times * ((int64_t)32768 << i / N_PASSES));
        err = repeat(t, &s, 1, passes[i % N_PASSES].fn);
    }
    return err;
}

err_t measure_kernels(struct measure *m)
{
    struct trial t;
    err_t err = trial_init(&t, m);
    err = err ? err : attentions(&t);
    err = err ? err : grouped_of(&t);
    err = err ? err : passes_of(&t);
    trial_fini(&t);
    return err;
}
