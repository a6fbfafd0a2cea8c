/* Rates of a processor, one for each kind of work that a machine file names.
 *
 * Kernels are timed by the processor time of their thread, so that other programs on a shared machine count little.
 * Collectives wait for each other, which takes no processor time, so they are timed by the clock; the best of several
 * turns counts for the same reason. */
#include "worker/measure_part.h"

#include "common/base/clock.h"
#include "kernels/core_peak.h"
#include "worker/comm/comm.h"

#include <stdlib.h>
#include <string.h>

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double measure_median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof(*x), by_value);
    return x[n / 2];
}

/* ---- products ---- */

/* Loops of one or two milliseconds; one of a third of a second rarely has no other program beside it. */
#define PEAK_TRIES 150
#define PRODUCT_TURNS 5

err_t measure_rate_peak(struct measure *m)
{
    m->figures[FIGURE_PEAK_F32] = kern_core_flops(DT_F32, PEAK_TRIES);
    return OK;
}

/* Layers of usual small and middle models: forward, and the gradients of input and weights. */
static const struct {
    int64_t rows, in, out;
} layers[] = {{512, 768, 2304}, {512, 3072, 768}, {512, 1024, 2816}, {128, 768, 768}};
#define N_LAYERS 3
#define SMALL_LAYER 3
#define OPERAND ((int64_t)4 << 20) /* elements; more than the largest operand */

static struct kern_gemm product_of(size_t layer, int kind, void *const x[3])
{
    const int64_t t = layers[layer].rows, in = layers[layer].in, out = layers[layer].out;
    const struct kern_gemm rows[3] = {
        {.m = t, .n = out, .k = in, .lda = in, .ldb = out, .ldc = out},
        {.trans_b = true, .m = t, .n = in, .k = out, .lda = out, .ldb = out, .ldc = in},
        {.trans_a = true,
         .accumulate = true,
         .wide_c = true,
         .m = in,
         .n = out,
         .k = t,
         .lda = in,
         .ldb = out,
         .ldc = out},
    };
    struct kern_gemm g = rows[kind];
    g.a = x[0];
    g.b = x[1];
    g.c = x[2];
    return g;
}

/* Seconds of a product: the median of several turns, after one that prepares it. */
static err_t time_product(struct measure *m, const struct kern_ops *k, const struct kern_gemm *g, double *ret)
{
    double took[PRODUCT_TURNS] = {0};
    err_t err = k->gemm(m->stream, g);
    for (int i = 0; !err && i < PRODUCT_TURNS; i++) {
        const int64_t start = measure_thread_ns();
        err = k->gemm(m->stream, g);
        took[i] = (double)(measure_thread_ns() - start) * 1e-9;
    }
    *ret = measure_median(took, PRODUCT_TURNS);
    return err;
}

static err_t time_layers(struct measure *m, const struct kern_ops *k, size_t first, size_t n, void *const x[3],
                         double *ret)
{
    double flops = 0, seconds = 0, one = 0;
    err_t err = OK;
    for (size_t i = 3 * first; !err && i < 3 * (first + n); i++) {
        const struct kern_gemm g = product_of(i / 3, (int)(i % 3), x);
        err = time_product(m, k, &g, &one);
        flops += 2.0 * (double)g.m * (double)g.n * (double)g.k;
        seconds += one;
    }
    if (!err)
        *ret = flops / seconds;
    return err;
}

/* Operations per second of `n` layers. The operands are zeros, for which no processor takes another time. */
static err_t products_of(struct measure *m, enum dtype dtype, size_t first, size_t n, double *ret)
{
    const struct kern_ops *k = dev_kernels(m->dev, dtype);
    void *x[3] = {NULL};
    err_t err = k ? OK : ERR_UNSUPPORTED;
    for (int i = 0; !err && i < 3; i++)
        err = dev_alloc(m->dev, OPERAND * 8, "operands", &x[i], m->why);
    err = err ? err : time_layers(m, k, first, n, x, ret);
    for (int i = 0; i < 3; i++)
        dev_free(m->dev, x[i], OPERAND * 8);
    return err;
}

err_t measure_rate_products(struct measure *m)
{
    err_t err = products_of(m, DT_F32, 0, N_LAYERS, &m->figures[FIGURE_PRODUCT_F32]);
    return err ? err : products_of(m, DT_BF16, 0, N_LAYERS, &m->figures[FIGURE_PRODUCT_BF16]);
}

/* The kernels of float64 are plain C, so that a small layer takes long enough. */
err_t measure_rate_products_f64(struct measure *m)
{
    return products_of(m, DT_F64, SMALL_LAYER, 1, &m->figures[FIGURE_PRODUCT_F64]);
}

/* ---- memory ---- */

#define PASS ((int64_t)1 << 20)     /* elements of one pass: a usual activation, 4 MB */
#define MEMORY_PASSES ((int64_t)32) /* arrays; together more than a core's share of any cache */
#define MEMORY_TURNS 6

/* Sums of two arrays, and copies of one, in turn over all arrays: nothing is in a cache when its turn comes. */
static double pass_rate(struct measure *m, const struct kern_ops *k, float *x, bool copy)
{
    double rates[MEMORY_TURNS];
    for (int turn = 0; turn < MEMORY_TURNS; turn++) {
        const int64_t start = measure_thread_ns();
        for (int64_t i = 0; i + 3 <= MEMORY_PASSES; i += 3) {
            float *a = x + i * PASS;
            if (copy)
                memcpy(a + 2 * PASS, a, (size_t)PASS * 4);
            else
                k->add(m->stream, PASS, a, a + PASS, a + 2 * PASS);
        }
        rates[turn] =
            (double)(MEMORY_PASSES / 3 * PASS * 4 * (copy ? 1 : 3)) / (double)(measure_thread_ns() - start) * 1e9;
    }
    return measure_median(rates, MEMORY_TURNS);
}

err_t measure_rate_memory(struct measure *m)
{
    const size_t bytes = (size_t)(MEMORY_PASSES * PASS) * 4;
    void *x = NULL;
    err_t err = dev_alloc(m->dev, bytes, "arrays", &x, m->why);
    if (err)
        return err;
    memset(x, 0, bytes); /* touches all pages */
    m->figures[FIGURE_MEMORY] = pass_rate(m, dev_kernels(m->dev, DT_F32), x, false);
    m->figures[FIGURE_COPY] = pass_rate(m, dev_kernels(m->dev, DT_F32), x, true);
    dev_free(m->dev, x, bytes);
    return OK;
}

/* ---- the least time of an operation ---- */

#define TINY 64
#define TINY_CALLS 20000

/* A sum, a norm and a product of a few numbers. */
err_t measure_rate_operations(struct measure *m)
{
    static float x[4][TINY * TINY] __attribute__((aligned(64)));
    const struct kern_ops *k = dev_kernels(m->dev, DT_F32);
    const struct kern_gemm g = {
        .m = 1, .n = TINY, .k = TINY, .lda = TINY, .ldb = TINY, .ldc = TINY, .a = x[0], .b = x[1], .c = x[2]};
    err_t err = k->gemm(m->stream, &g);
    const int64_t start = measure_thread_ns();
    for (int i = 0; !err && i < TINY_CALLS; i++) {
        k->add(m->stream, TINY, x[0], x[1], x[2]);
        k->rmsnorm(m->stream, 1, TINY, 1e-5, false, x[0], NULL, x[1], NULL, x[2], x[3]);
        err = k->gemm(m->stream, &g);
    }
    m->figures[FIGURE_OPERATION] = (double)(measure_thread_ns() - start) * 1e-9 / (3.0 * TINY_CALLS);
    return err;
}

/* ---- collectives ---- */

#define LINK_ELEMENTS ((int64_t)1 << 20) /* 4 MB: a usual activation or gradient */
#define LINK_NS 800000000 /* on a busy machine the ranks seldom run at the same time, so there are many turns */
#define LATENCY_CALLS 50

struct link_buffers {
    struct comm_group *g;
    float *shared, *private, *gathered;
    int64_t counts[MEASURE_PROCESSES];
};

static err_t reduce_shared(const struct link_buffers *b)
{
    return comm_all_reduce(b->g, NULL, b->shared, LINK_ELEMENTS, DT_F32, REDUCE_SUM);
}

static err_t reduce_private(const struct link_buffers *b)
{
    return comm_all_reduce(b->g, NULL, b->private, LINK_ELEMENTS, DT_F32, REDUCE_SUM);
}

static err_t gather_private(const struct link_buffers *b)
{
    return comm_all_gather(b->g, NULL, b->private, b->gathered, b->counts, DT_F32);
}

/* Gradients are reduced in shared memory, activations and parameters in private one. `times`: how often the buffer's
 * bytes go through the link. */
static const struct {
    err_t (*call)(const struct link_buffers *b);
    int times;
} collectives[] = {{reduce_shared, 2}, {reduce_private, 2}, {gather_private, 1}};
#define N_COLLECTIVES (sizeof(collectives) / sizeof(collectives[0]))

/* Before each call the ranks write what they send, as a step does: the bytes lie in the cache of their writer. `over`:
 * how many ranks have used up their time, so that all stop at the same turn. */
static err_t time_collective(const struct link_buffers *b, size_t which, double *ret)
{
    const int64_t begin = clock_mono_ns();
    double best = 1e9;
    int64_t over = 0;
    err_t err = OK;
    for (int turn = 0; !err && !over; turn++) {
        for (int64_t i = 0; i < LINK_ELEMENTS; i++)
            b->shared[i] = b->private[i] = (float)(turn & 7);
        err = comm_barrier(b->g);
        const int64_t start = clock_mono_ns();
        err = err ? err : collectives[which].call(b);
        err = err ? err : comm_barrier(b->g);
        const double took = (double)(clock_mono_ns() - start) * 1e-9;
        best = took < best ? took : best;
        over = clock_mono_ns() - begin > LINK_NS;
        err = err ? err : comm_agree(b->g, &over, REDUCE_SUM);
    }
    *ret = best;
    return err;
}

static err_t time_latency(const struct link_buffers *b, double *ret)
{
    const int64_t begin = clock_mono_ns();
    double best = 1e9;
    int64_t over = 0;
    err_t err = OK;
    while (!err && !over) {
        const int64_t start = clock_mono_ns();
        for (int i = 0; !err && i < LATENCY_CALLS; i++)
            err = comm_all_reduce(b->g, NULL, b->private, 1, DT_F32, REDUCE_SUM);
        const double took = (double)(clock_mono_ns() - start) * 1e-9 / LATENCY_CALLS;
        best = took < best ? took : best;
        over = clock_mono_ns() - begin > LINK_NS;
        err = err ? err : comm_agree(b->g, &over, REDUCE_SUM);
    }
    *ret = best;
    return err;
}

static err_t time_links(struct measure *m, const struct link_buffers *b)
{
    const double part = (double)(m->world - 1) / (double)m->world;
    double latency = 0, sent = 0, seconds = 0, one = 0;
    err_t err = time_latency(b, &latency);
    for (size_t i = 0; !err && i < N_COLLECTIVES; i++) {
        err = time_collective(b, i, &one);
        sent += collectives[i].times * part * (double)LINK_ELEMENTS * 4;
        seconds += one - latency > one / 2 ? one - latency : one / 2; /* where ranks seldom run at the same time */
    }
    m->figures[FIGURE_LATENCY] = latency;
    m->figures[FIGURE_LINK] = sent / seconds;
    return err;
}

err_t measure_rate_links(struct measure *m)
{
    const size_t bytes = (size_t)LINK_ELEMENTS * 4;
    const struct comm_config config = {.backend = "shm",
                                       .fd = m->fd,
                                       .rank = m->rank,
                                       .world = m->world,
                                       .numa_node = -1,
                                       .epoch = 1,
                                       .shared_bytes = bytes,
                                       .timeout_ms = 30000};
    struct link_buffers b = {0};
    struct comm *c = NULL;
    void *memory = NULL;
    int ranks[MEASURE_PROCESSES];
    for (int r = 0; r < m->world; r++) {
        ranks[r] = r;
        b.counts[r] = LINK_ELEMENTS * (r + 1) / m->world - LINK_ELEMENTS * r / m->world;
    }
    err_t err = dev_alloc(m->dev, 2 * bytes, "buffers", &memory, m->why);
    err = err ? err : comm_open(&config, &c, m->why);
    err = err ? err : comm_group_new(c, ranks, m->world, &b.g);
    if (!err) {
        b.shared = comm_shared(c);
        b.private = memory;
        b.gathered = b.private + LINK_ELEMENTS;
        err = time_links(m, &b);
    }
    if (err && c)
        comm_abort(c);
    comm_group_free(b.g);
    comm_close(c);
    dev_free(m->dev, memory, 2 * bytes);
    return err;
}
