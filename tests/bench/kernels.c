/* Every kernel of a training step of GPT-2 124M, at its shapes there. Prints one JSON line per kernel, then one with
 * the sum over a whole step. `bench_kernels [BATCH SEQ]...` (default 4 64 and 4 512); float32, one thread.
 *
 * A step is a table of calls, with the number of calls per step and the work of each. Products and attention are
 * compared with the core's measured peak of multiply-adds, all others with its measured memory bandwidth. Their bytes
 * are those to move if nothing were cached, so data in a cache may exceed the bandwidth. Times are the thread's own,
 * the best of several runs. */
#include "kernels/kernels.h"
#include "tests/bench/peak.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

enum { DIM = 768, LAYERS = 12, HEADS = 12, FFN = 4 * DIM, VOCAB = 50257, POSITIONS = 1024 };
#define PARAMS (VOCAB * (int64_t)DIM + POSITIONS * DIM + LAYERS * (12 * (int64_t)DIM * DIM + 13 * DIM) + 2 * DIM)
#define VECTOR 4096 /* space for a bias or a sum of columns */
#define RUN_MS 150  /* a kernel is repeated for this long, but at least twice */

struct bench {
    const struct kern_ops *k;
    struct kern_stream *s;
    int64_t batch, seq, t;
    float *a, *b, *c, *d; /* four arrays, each as large as the largest operand */
    int32_t *ids;
    double peak_gflops, peak_gbs;
};

struct row {
    const char *name;
    int times; /* per step */
    err_t (*call)(struct bench *x, const struct row *r);
    int64_t m, n, k; /* sizes of products; other kernels: n elements, or t x n */
    bool trans_a, trans_b, accumulate, bias;
    int64_t flops, bytes; /* of one call; flops 0: limited by memory */
    enum kern_act act;    /* of a product */
    bool b_sum;
};

static err_t call_gemm(struct bench *x, const struct row *r)
{
    struct kern_gemm g = {.trans_a = r->trans_a,
                          .trans_b = r->trans_b,
                          .accumulate = r->accumulate,
                          .m = r->m,
                          .n = r->n,
                          .k = r->k,
                          .lda = r->trans_a ? r->m : r->k,
                          .ldb = r->trans_b ? r->k : r->n,
                          .ldc = r->n,
                          .a = x->a,
                          .b = x->b,
                          .c = x->c,
                          .bias = r->bias ? x->d : NULL,
                          .act = r->act,
                          .aux = r->act ? x->d + VECTOR : NULL,
                          .b_sum = r->b_sum ? x->d : NULL};
    return x->k->gemm(x->s, &g);
}

/* `window`: 0: none. */
static struct kern_attention attention_of(struct bench *x, int64_t window)
{
    return (struct kern_attention){.batch = x->batch,
                                   .seq = x->seq,
                                   .heads = HEADS,
                                   .kv_heads = HEADS,
                                   .head_dim = DIM / HEADS,
                                   .q_stride = 3 * DIM,
                                   .k_stride = 3 * DIM,
                                   .v_stride = 3 * DIM,
                                   .o_stride = DIM,
                                   .causal = true,
                                   .window = window,
                                   .q = x->a,
                                   .k = x->a + DIM,
                                   .v = x->a + 2 * DIM,
                                   .o = x->b,
                                   .lse = x->b + x->t * DIM};
}

static err_t call_attention(struct bench *x, const struct row *r)
{
    struct kern_attention a = attention_of(x, r->n);
    return x->k->attention(x->s, &a);
}

static err_t call_attention_grad(struct bench *x, const struct row *r)
{
    struct kern_attention_grad g = {
        .fwd = attention_of(x, r->n), .d_o = x->d, .d_q = x->c, .d_k = x->c + DIM, .d_v = x->c + 2 * DIM};
    return x->k->attention_grad(x->s, &g);
}

static err_t call_bias_grad(struct bench *x, const struct row *r)
{
    x->k->bias_grad(x->s, x->t, r->n, x->a, x->b);
    return OK;
}

static err_t call_embed(struct bench *x, const struct row *r)
{
    x->k->embed(x->s, x->t, DIM, x->seq, 0, INT32_MAX, x->ids, x->a, x->b, x->c);
    return OK;
}

static err_t call_embed_grad(struct bench *x, const struct row *r)
{
    x->k->embed_grad(x->s, x->t, DIM, x->seq, 0, INT32_MAX, x->ids, x->c, x->a, x->b);
    return OK;
}

/* x, res -> r, y as in a block of GPT-2; the statistics follow y */
static err_t call_layernorm(struct bench *x, const struct row *r)
{
    int64_t n = x->t * DIM;
    x->k->layernorm(x->s, x->t, DIM, 1e-5, x->a, x->b, x->c, x->c + DIM, x->b, x->d, x->d + n, x->d + n + x->t);
    return OK;
}

static err_t call_layernorm_grad(struct bench *x, const struct row *r)
{
    int64_t n = x->t * DIM;
    x->k->layernorm_grad(x->s, x->t, DIM, x->a, x->c, x->d + n, x->d + n + x->t, x->b, x->d, x->d, x->c + DIM,
                         x->c + 2 * DIM);
    return OK;
}

static err_t call_gelu(struct bench *x, const struct row *r)
{
    x->k->gelu(x->s, r->n, x->a, x->b);
    return OK;
}

static err_t call_gelu_grad(struct bench *x, const struct row *r)
{
    x->k->gelu_grad(x->s, r->n, x->a, x->b, x->b);
    return OK;
}

static err_t call_add(struct bench *x, const struct row *r)
{
    x->k->add(x->s, r->n, x->a, x->b, x->b);
    return OK;
}

static err_t call_loss(struct bench *x, const struct row *r)
{
    double loss = 0;
    x->k->cross_entropy(x->s, x->t, VOCAB, VOCAB, x->ids, true, 1.0 / (double)x->t, x->c, &loss);
    return OK;
}

/* A quarter of the vocabulary, as on one rank of four. */
static err_t call_loss_part(struct bench *x, const struct row *r)
{
    x->k->loss_part(x->s, x->t, VOCAB / 4, VOCAB / 4, 0, x->ids, x->c, (double *)x->d);
    return OK;
}

static err_t call_loss_join(struct bench *x, const struct row *r)
{
    double loss = 0;
    x->k->loss_join(x->s, x->t, VOCAB / 4, VOCAB / 4, 0, 1, x->ids, (double *)x->d, true, 1.0 / (double)x->t, x->c,
                    &loss);
    return OK;
}

static err_t call_join(struct bench *x, const struct row *r)
{
    const struct kern_attention_join a = {.batch = x->batch,
                                          .seq = x->seq,
                                          .heads = HEADS,
                                          .head_dim = DIM / HEADS,
                                          .o_stride = DIM,
                                          .o2_stride = DIM,
                                          .o = x->a,
                                          .lse = x->a + x->t * DIM,
                                          .o2 = x->b,
                                          .lse2 = x->b + x->t * DIM};
    x->k->attention_join(x->s, &a);
    return OK;
}

static err_t call_dropout(struct bench *x, const struct row *r)
{
    const struct kern_dropout d = {
        .t = x->t, .n = DIM, .cols = DIM, .rate = 0.1, .seed = 1, .step = 1, .rows = x->ids, .x = x->a, .y = x->b};
    x->k->dropout(x->s, &d);
    return OK;
}

/* Copies the middle third of three. */
static err_t call_copy(struct bench *x, const struct row *r)
{
    x->k->copy_cols(x->s, x->t, DIM, x->a + DIM, 3 * DIM, x->b, DIM);
    return OK;
}

static err_t call_adamw(struct bench *x, const struct row *r)
{
    struct kern_adamw a = {.n = r->n,
                           .p = x->a,
                           .m = x->b,
                           .v = x->c,
                           .g = x->d,
                           .lr = 1e-5,
                           .beta1 = 0.9,
                           .beta2 = 0.95,
                           .eps = 1e-8,
                           .weight_decay = 0.1,
                           .grad_scale = &(double){1},
                           .step = 10};
    x->k->adamw(x->s, &a);
    return OK;
}

static err_t call_sumsq(struct bench *x, const struct row *r)
{
    x->k->sumsq_blocks(x->s, r->n, 1024, x->a, (double *)x->b);
    return OK;
}

/* Fills initial parameters. */
static err_t call_normal(struct bench *x, const struct row *r)
{
    const struct kern_normal k = {
        .rows = 1, .n = r->n, .stride = r->n, .cols = r->n, .seed = 1, .stream = 1, .std = 0.02, .y = x->a};
    x->k->normal(x->s, &k);
    return OK;
}

static err_t call_zero(struct bench *x, const struct row *r)
{
    return dev_zero(x->s, x->d, (size_t)r->n * sizeof(float));
}

/* The three products of y[t,out] = x[t,in] w[in,out] + b, `times` layers. With a bias, the third product also sums its
 * gradient. */
static int linear_rows(struct row *r, const char *const names[3], int times, int64_t t, int64_t in, int64_t out,
                       bool bias, bool w_is_out_in)
{
    int64_t flops = 2 * t * in * out;
    r[0] = (struct row){names[0], times, call_gemm, t, out, in, false, w_is_out_in, false, bias, .flops = flops};
    r[1] = (struct row){names[1], times, call_gemm, t, in, out, false, !w_is_out_in, false, false, .flops = flops};
    r[2] = (struct row){names[2], times, call_gemm, in, out, t, true, false, true, false, .flops = flops};
    r[2].b_sum = bias;
    if (w_is_out_in) {
        r[2].m = out;
        r[2].n = in;
    }
    return 3;
}

/* A step fuses GELU with the product before it, and its gradient with the one after it. These rows have the same
 * products, and the sum of a bias, as separate calls (0 times per step). */
static int alone_rows(struct row *r, int n)
{
    struct row *more = r + n;
    for (int i = 0; i < n; i++) {
        const struct {
            const char *name, *alone;
            enum kern_act act;
        } fused[] = {{"up", "up_alone", KERN_ACT_GELU},
                     {"down_dx", "down_dx_alone", KERN_ACT_GELU_GRAD},
                     {"up_dw", "up_dw_alone", KERN_ACT_NONE}};
        for (int f = 0; f < 3; f++) {
            if (strcmp(r[i].name, fused[f].name) != 0)
                continue;
            *more = r[i];
            more->name = fused[f].alone;
            more->times = 0;
            more++->b_sum = false;
            r[i].act = fused[f].act;
        }
    }
    return (int)(more - r) - n;
}

static int step_rows(struct row *r, int64_t t, int64_t seq)
{
    static const char *const qkv[3] = {"qkv", "qkv_dx", "qkv_dw"}, *const proj[3] = {"proj", "proj_dx", "proj_dw"};
    static const char *const up[3] = {"up", "up_dx", "up_dw"}, *const down[3] = {"down", "down_dx", "down_dw"};
    static const char *const head[3] = {"head", "head_dx", "head_dw"};
    int64_t td = t * DIM, f = 4, pairs = t * (seq + 1) / 2 * DIM; /* causal: only this part must be computed */
    int n = 0;
    n += linear_rows(r + n, qkv, LAYERS, t, DIM, 3 * DIM, true, false);
    n += linear_rows(r + n, proj, LAYERS, t, DIM, DIM, true, false);
    n += linear_rows(r + n, up, LAYERS, t, DIM, FFN, true, false);
    n += linear_rows(r + n, down, LAYERS, t, FFN, DIM, true, false);
    n += linear_rows(r + n, head, 1, t, DIM, VOCAB, false, true);
    n += alone_rows(r, n);
    r[n++] = (struct row){.name = "attention", .times = LAYERS, .call = call_attention, .flops = 4 * pairs};
    r[n++] = (struct row){.name = "attention_grad", .times = LAYERS, .call = call_attention_grad, .flops = 8 * pairs};
    const int64_t window = seq / 4; /* which leaves 7/16 of the causal half */
    r[n++] = (struct row){"attention_window", 0, call_attention, .n = window, .flops = 4 * pairs * 7 / 16};
    r[n++] = (struct row){"attention_window_grad", 0, call_attention_grad, .n = window, .flops = 8 * pairs * 7 / 16};
    r[n++] = (struct row){"bias_grad_768", 0, call_bias_grad, .n = DIM, .bytes = f * td};
    r[n++] = (struct row){"bias_grad_2304", 0, call_bias_grad, .n = 3 * DIM, .bytes = f * 3 * td};
    r[n++] = (struct row){"bias_grad_3072", 0, call_bias_grad, .n = FFN, .bytes = f * 4 * td};
    r[n++] = (struct row){"layernorm", 2 * LAYERS + 1, call_layernorm, .bytes = f * 4 * td};
    r[n++] = (struct row){"layernorm_grad", 2 * LAYERS + 1, call_layernorm_grad, .bytes = f * 4 * td};
    r[n++] = (struct row){"gelu", 0, call_gelu, .n = t * FFN, .bytes = f * 2 * t * FFN};
    r[n++] = (struct row){"gelu_grad", 0, call_gelu_grad, .n = t * FFN, .bytes = f * 3 * t * FFN};
    r[n++] = (struct row){"add", 0, call_add, .n = td, .bytes = f * 3 * td};
    r[n++] = (struct row){"embed", 1, call_embed, .bytes = f * 3 * td};
    r[n++] = (struct row){"embed_grad", 1, call_embed_grad, .bytes = f * 5 * td};
    r[n++] = (struct row){"cross_entropy", 1, call_loss, .bytes = f * 2 * t * VOCAB};
    r[n++] = (struct row){"loss_part", 0, call_loss_part, .bytes = f * t * (VOCAB / 4)};
    r[n++] = (struct row){"loss_join", 0, call_loss_join, .bytes = f * 2 * t * (VOCAB / 4)};
    r[n++] = (struct row){"attention_join", 0, call_join, .bytes = f * 3 * td};
    r[n++] = (struct row){"dropout", 0, call_dropout, .bytes = f * 2 * td};
    r[n++] = (struct row){"copy_cols", 0, call_copy, .bytes = f * 2 * td};
    r[n++] = (struct row){"adamw", 1, call_adamw, .n = PARAMS, .bytes = f * 7 * PARAMS};
    r[n++] = (struct row){"sumsq_blocks", 1, call_sumsq, .n = PARAMS, .bytes = f * PARAMS};
    r[n++] = (struct row){"normal", 0, call_normal, .n = 1 << 20, .bytes = f << 20};
    r[n++] = (struct row){"zero", 1, call_zero, .n = PARAMS, .bytes = f * PARAMS};
    return n;
}

/* Time of this thread only, so that other programs on the machine do not count. */
static int64_t thread_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Best time of a call in seconds; negative on an error. */
static double time_row(struct bench *x, const struct row *r)
{
    int64_t begin = thread_ns(), best = INT64_MAX;
    for (int i = 0; i < 3 || thread_ns() - begin < RUN_MS * INT64_C(1000000); i++) {
        int64_t start = thread_ns();
        if (r->call(x, r) != OK)
            return -1;
        int64_t took = thread_ns() - start;
        best = took < best ? took : best;
    }
    return (double)best * 1e-9;
}

static void print_row(const struct bench *x, const struct row *r, double seconds)
{
    double rate = (double)(r->flops ? r->flops : r->bytes) / seconds * 1e-9;
    printf("{\"bench\": \"kernels\", \"kernel\": \"%s\", \"batch\": %lld, \"seq\": %lld, \"times\": %d, \"ms\": %.4f, "
           "\"%s\": %.1f, \"share\": %.3f}\n",
           r->name, (long long)x->batch, (long long)x->seq, r->times, seconds * 1e3, r->flops ? "gflops" : "gbs", rate,
           rate / (r->flops ? x->peak_gflops : x->peak_gbs));
    fflush(stdout);
}

/* FLOPs of a step as papers count them: six per parameter of a product and token, and the full square of the attention.
 */
static double model_flops(int64_t t, int64_t seq)
{
    double products = (double)LAYERS * 12 * DIM * DIM + (double)VOCAB * DIM;
    return (double)t * (6 * products + 12.0 * LAYERS * DIM * (double)seq);
}

static void print_step(const struct bench *x, double seconds, double product_seconds, double flops)
{
    printf("{\"bench\": \"kernels_step\", \"model\": \"gpt2-124M\", \"dtype\": \"float32\", \"threads\": 1, "
           "\"batch\": %lld, \"seq\": %lld, \"s\": %.4f, \"products_s\": %.4f, \"tokens_per_s\": %.1f, "
           "\"gflops\": %.1f, \"share\": %.3f, \"share_paper\": %.3f, \"peak_gflops\": %.1f, \"peak_gbs\": %.1f, "
           "\"cpu\": \"%s\", \"commit\": \"%s\"}\n",
           (long long)x->batch, (long long)x->seq, seconds, product_seconds, (double)x->t / seconds,
           flops / seconds * 1e-9, flops / seconds * 1e-9 / x->peak_gflops,
           model_flops(x->t, x->seq) / seconds * 1e-9 / x->peak_gflops, x->peak_gflops, x->peak_gbs, peak_cpu_name(),
           peak_commit());
}

static int bench_step(struct bench *x)
{
    struct row rows[64];
    int n = step_rows(rows, x->t, x->seq);
    double seconds = 0, product_seconds = 0, flops = 0;
    for (int64_t i = 0; i < x->t; i++)
        x->ids[i] = (int32_t)(i * 7919 % VOCAB);
    for (int i = 0; i < n; i++) {
        double took = time_row(x, &rows[i]);
        if (took < 0)
            return 1;
        print_row(x, &rows[i], took);
        seconds += took * rows[i].times;
        product_seconds += rows[i].call == call_gemm ? took * rows[i].times : 0;
        flops += (double)rows[i].flops * rows[i].times;
        double peak = i % 4 == 0 ? peak_fma_gflops() : 0; /* clock rates vary; the peak is the best one measured */
        x->peak_gflops = peak > x->peak_gflops ? peak : x->peak_gflops;
    }
    print_step(x, seconds, product_seconds, flops);
    return 0;
}

static float *array_new(size_t elements)
{
    size_t bytes = elements * sizeof(float);
    float *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    madvise(p, bytes, MADV_HUGEPAGE);
    for (size_t i = 0; i < elements; i++)
        p[i] = (float)(i * 2654435761u % 1000) * 1e-3f - 0.4995f;
    return p;
}

static int bench_shape(struct bench *x, int64_t batch, int64_t seq)
{
    int64_t n = batch * seq * VOCAB;
    size_t elements = (size_t)(n > PARAMS ? n : PARAMS) + VECTOR;
    x->batch = batch;
    x->seq = seq;
    x->t = batch * seq;
    float **arrays[] = {&x->a, &x->b, &x->c, &x->d};
    int failed = !(x->ids = calloc((size_t)x->t, sizeof(int32_t)));
    for (int i = 0; i < 4; i++) {
        *arrays[i] = array_new(elements);
        failed |= !*arrays[i];
    }
    failed = failed || bench_step(x);
    for (int i = 0; i < 4; i++)
        if (*arrays[i])
            munmap(*arrays[i], elements * sizeof(float));
    free(x->ids);
    return failed;
}

int main(int argc, char **argv)
{
    struct bench x = {.k = kern_find("cpu", DT_F32)};
    int failed = 0;
    if (argc % 2 == 0) {
        fprintf(stderr, "usage: bench_kernels [BATCH SEQ]...\n");
        return 2;
    }
    x.peak_gflops = peak_fma_gflops();
    x.peak_gbs = peak_memory_gbs();
    struct dev *cpu;
    if (dev_open("cpu", 0, &cpu, NULL) != OK || dev_stream_new(cpu, 1, false, &x.s, NULL) != OK)
        return 1;
    if (argc == 1)
        failed = bench_shape(&x, 4, 64) || bench_shape(&x, 4, 512);
    for (int i = 1; i + 1 < argc && !failed; i += 2) {
        long batch = strtol(argv[i], NULL, 10), seq = strtol(argv[i + 1], NULL, 10);
        if (batch < 1 || seq < 1 || seq > POSITIONS || batch > 1024) {
            fprintf(stderr, "bench_kernels: BATCH is 1 to 1024, SEQ 1 to %d; found %s %s\n", POSITIONS, argv[i],
                    argv[i + 1]);
            failed = 2;
            break;
        }
        failed = bench_shape(&x, batch, seq);
    }
    dev_stream_free(x.s);
    dev_close(cpu);
    return failed;
}
