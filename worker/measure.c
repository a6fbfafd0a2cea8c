/* Each part runs in processes of its own, one per core, like the workers of a job: threads would share an allocator and
 * could not open a comm. They write their figures into shared memory, and the median over processes counts.
 *
 * Kernels are timed by the processor time of their thread, so that other programs on a shared machine count little.
 * Collectives wait for each other, which takes no processor time, so they are timed by the clock; the best of several
 * turns counts for the same reason. */
#include "worker/measure.h"

#include "common/base/clock.h"
#include "common/base/cpus.h"
#include "common/base/file.h"
#include "kernels/core_peak.h"
#include "kernels/kernels.h"
#include "worker/comm/comm.h"
#include "worker/measure_part.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_PROCESSES 256 /* the most ranks of a shared-memory comm */

enum figure {
    PEAK_F32,
    PRODUCT_F32,
    PRODUCT_BF16,
    PRODUCT_F64,
    MEMORY,
    COPY,
    OPERATION,
    LINK,
    LATENCY,
    STORAGE,
    FIGURES
};

static const char *const figure_names[FIGURES] = {[PEAK_F32] = "peak_float32",
                                                  [PRODUCT_F32] = "product_float32",
                                                  [PRODUCT_F64] = "product_float64",
                                                  [PRODUCT_BF16] = "product_bfloat16",
                                                  [MEMORY] = "memory",
                                                  [COPY] = "copy",
                                                  [OPERATION] = "operation_s",
                                                  [LINK] = "link",
                                                  [LATENCY] = "collective_s",
                                                  [STORAGE] = "storage"};

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *x, int n)
{
    qsort(x, (size_t)n, sizeof(*x), by_value);
    return x[n / 2];
}

/* ---- products ---- */

/* Loops of one or two milliseconds; one of a third of a second rarely has no other program beside it. */
#define PEAK_TRIES 150
#define PRODUCT_TURNS 5

static err_t peak(struct measure *m)
{
    m->figures[PEAK_F32] = kern_core_flops(DT_F32, PEAK_TRIES);
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
    *ret = median(took, PRODUCT_TURNS);
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

static err_t products(struct measure *m)
{
    err_t err = products_of(m, DT_F32, 0, N_LAYERS, &m->figures[PRODUCT_F32]);
    return err ? err : products_of(m, DT_BF16, 0, N_LAYERS, &m->figures[PRODUCT_BF16]);
}

/* The kernels of float64 are plain C, so that a small layer takes long enough. */
static err_t products_f64(struct measure *m)
{
    return products_of(m, DT_F64, SMALL_LAYER, 1, &m->figures[PRODUCT_F64]);
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
    return median(rates, MEMORY_TURNS);
}

static err_t memory(struct measure *m)
{
    const size_t bytes = (size_t)(MEMORY_PASSES * PASS) * 4;
    void *x = NULL;
    err_t err = dev_alloc(m->dev, bytes, "arrays", &x, m->why);
    if (err)
        return err;
    memset(x, 0, bytes); /* touches all pages */
    m->figures[MEMORY] = pass_rate(m, dev_kernels(m->dev, DT_F32), x, false);
    m->figures[COPY] = pass_rate(m, dev_kernels(m->dev, DT_F32), x, true);
    dev_free(m->dev, x, bytes);
    return OK;
}

/* ---- the least time of an operation ---- */

#define TINY 64
#define TINY_CALLS 20000

/* A sum, a norm and a product of a few numbers. */
static err_t operations(struct measure *m)
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
    m->figures[OPERATION] = (double)(measure_thread_ns() - start) * 1e-9 / (3.0 * TINY_CALLS);
    return err;
}

/* ---- collectives ---- */

#define LINK_ELEMENTS ((int64_t)1 << 20) /* 4 MB: a usual activation or gradient */
#define LINK_NS 800000000 /* on a busy machine the ranks seldom run at the same time, so there are many turns */
#define LATENCY_CALLS 50
#define LATENCY_TURNS 2000

struct link_buffers {
    struct comm_group *g;
    float *shared, *private, *gathered;
    int64_t counts[MAX_PROCESSES];
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
    double best = 1e9;
    err_t err = OK;
    for (int turn = 0; !err && turn < LATENCY_TURNS; turn++) {
        const int64_t start = clock_mono_ns();
        for (int i = 0; !err && i < LATENCY_CALLS; i++)
            err = comm_all_reduce(b->g, NULL, b->private, 1, DT_F32, REDUCE_SUM);
        const double took = (double)(clock_mono_ns() - start) * 1e-9 / LATENCY_CALLS;
        best = took < best ? took : best;
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
        seconds += one - latency;
    }
    m->figures[LATENCY] = latency;
    m->figures[LINK] = sent / seconds;
    return err;
}

static err_t links(struct measure *m)
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
    int ranks[MAX_PROCESSES];
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

/* ---- storage ---- */

#define BLOCK ((size_t)16 << 20)
#define MAX_BLOCKS 16
#define STORAGE_NS 1500000000 /* a slow file system gets fewer blocks */

/* A file without a name, so that nothing remains of it. */
static err_t write_blocks(int fd, const void *block, double *ret)
{
    const int64_t start = clock_mono_ns();
    size_t written = 0;
    err_t err = OK;
    for (int i = 0; !err && i < MAX_BLOCKS && clock_mono_ns() - start < STORAGE_NS; i++) {
        err = file_write_all(fd, block, BLOCK);
        if (!err && fdatasync(fd))
            err = err_from_errno(errno);
        written += BLOCK;
    }
    *ret = (double)written / (double)(clock_mono_ns() - start) * 1e9;
    return err;
}

static err_t storage(struct measure *m)
{
    char path[] = "./.dtd-measure-XXXXXX";
    void *block = calloc(1, BLOCK);
    int fd = block ? mkostemp(path, O_CLOEXEC) : -1;
    err_t err = !block ? ERR_NOMEM : fd < 0 ? err_from_errno(errno) : OK;
    if (fd >= 0) {
        unlink(path);
        memset(block, 0x5a, BLOCK);
        err = write_blocks(fd, block, &m->figures[STORAGE]);
        close(fd);
    }
    free(block);
    return err ? why_set(m->why, err,
                         "cannot write a file in the current folder, to measure storage: %s. Call it in a "
                         "folder for checkpoints",
                         err_text(err))
               : OK;
}

/* ---- the parts ---- */

static const struct measure_part {
    const char *name;
    err_t (*run)(struct measure *m);
    enum { ONE, ALL, GROUP } processes; /* GROUP: all, and at least two */
    int first, last;                    /* figures; none if first > last */
    int turns;
} parts[] = {
    {"peak of a core", peak, ONE, PEAK_F32, PEAK_F32, 1},
    {"products of layers", products, ALL, PRODUCT_F32, PRODUCT_BF16, 1},
    {"products in float64", products_f64, ALL, PRODUCT_F64, PRODUCT_F64, 1},
    {"memory", memory, ALL, MEMORY, COPY, 1},
    {"operations", operations, ONE, OPERATION, OPERATION, 1},
    {"collectives", links, GROUP, LINK, LATENCY, 1},
    {"storage", storage, ONE, STORAGE, STORAGE, 1},
    {"products by shape", measure_products, ALL, 0, -1, MEASURE_TYPES},
    {"attention and experts", measure_kernels, ALL, 0, -1, MEASURE_TYPES},
    {"steps of small models", measure_steps, GROUP, 0, -1, 0 /* measure_steps_turns */},
};
#define N_PARTS ((int)(sizeof(parts) / sizeof(parts[0])))
#define N_RATES 7 /* the first parts: figures, no table */

static int turns_of(const struct measure_part *part)
{
    return part->turns ? part->turns : measure_steps_turns;
}

/* Processes whose times enter the table; more would not make medians better. */
#define MAX_SAMPLED 8

/* The memory that the processes of a part share with their parent. */
struct measure_shared {
    double figures[MAX_PROCESSES][FIGURES];
    struct why why[MAX_PROCESSES];
    err_t err[MAX_PROCESSES];
    struct measure_samples samples[MAX_SAMPLED];
};

static int run_process(const struct measure_part *part, int turn, struct measure_shared *shared, int fd, int rank,
                       int world)
{
    struct measure m = {.rank = rank,
                        .world = world,
                        .fd = fd,
                        .turn = turn,
                        .figures = shared->figures[rank],
                        .samples = rank < MAX_SAMPLED ? &shared->samples[rank] : NULL,
                        .why = &shared->why[rank]};
    err_t err = dev_open("cpu", 0, &m.dev, m.why);
    err = err ? err : dev_stream_new(m.dev, 1, false, &m.stream, m.why);
    err = err ? err : part->run(&m);
    dev_stream_free(m.stream);
    dev_close(m.dev);
    shared->err[rank] = err;
    return err ? 1 : 0;
}

static pid_t start_process(const struct measure_part *part, int turn, struct measure_shared *shared, int fd, int rank,
                           int world)
{
    shared->err[rank] = ERR_INTERNAL; /* until it has reported its own */
    if (rank < MAX_SAMPLED)
        shared->samples[rank].n = 0;
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(run_process(part, turn, shared, fd, rank, world));
    }
    return pid;
}

static err_t run_part(const struct measure_part *part, int turn, struct measure_shared *shared, int world,
                      struct why *why)
{
    pid_t pids[MAX_PROCESSES];
    int started = 0, fd = memfd_create("dtd-measure", MFD_CLOEXEC);
    err_t err = fd < 0 ? err_from_errno(errno) : OK;
    while (!err && started < world) {
        pids[started] = start_process(part, turn, shared, fd, started, world);
        if (pids[started] < 0)
            err = err_from_errno(errno);
        else
            started++;
    }
    for (int r = 0; r < started; r++)
        while (waitpid(pids[r], NULL, 0) < 0 && errno == EINTR)
            ;
    if (fd >= 0)
        close(fd);
    for (int r = 0; r < started; r++)
        if (!err && shared->err[r])
            err = why_set(why, shared->err[r], "measuring %s: %s", part->name,
                          shared->why[r].text[0] ? shared->why[r].text : err_text(shared->err[r]));
    return err;
}

static void take_medians(const struct measure_part *part, const struct measure_shared *shared, int world, double *ret)
{
    double x[MAX_PROCESSES];
    for (int f = part->first; f <= part->last; f++) {
        for (int r = 0; r < world; r++)
            x[r] = shared->figures[r][f];
        ret[f] = median(x, world);
    }
}

static int count_turns(int n)
{
    int sum = 0;
    for (int i = 0; i < n; i++)
        sum += turns_of(&parts[i]);
    return sum;
}

/* The client shows what is printed, and a child must not print it again. */
static void print_progress(int part, int turn, int n_parts)
{
    printf("{\"doing\": \"%s\", \"part\": %d, \"parts\": %d}\n", parts[part].name, count_turns(part) + turn,
           count_turns(n_parts));
    fflush(stdout);
}

static err_t measure_parts(struct measure_shared *shared, int cores, int n_parts, double ret[FIGURES],
                           struct measure_all *all, struct why *why)
{
    err_t err = OK;
    for (int i = 0; !err && i < n_parts; i++) {
        const int world = parts[i].processes == ONE ? 1 : parts[i].processes == GROUP && cores < 2 ? 2 : cores;
        for (int turn = 0; !err && turn < turns_of(&parts[i]); turn++) {
            print_progress(i, turn, n_parts);
            err = run_part(&parts[i], turn, shared, world, why);
            if (!err)
                take_medians(&parts[i], shared, world, ret);
            err = err ? err : measure_collect(all, shared->samples, world < MAX_SAMPLED ? world : MAX_SAMPLED);
        }
    }
    return err;
}

/* ---- the report ---- */

/* Only rates have no samples. */
static json_t *table_json(struct measure_all *all)
{
    struct buf text = {0};
    json_t *ret = measure_table(all, &text) ? NULL : json_stringn((const char *)text.data, text.len);
    buf_fini(&text);
    return ret;
}

static err_t print_figures(const double *figures, int cores, struct measure_all *all, struct why *why)
{
    struct dev_facts facts = {0};
    struct dev *dev = NULL;
    err_t err = dev_open("cpu", 0, &dev, why);
    err = err ? err : dev_facts(dev, &facts, why);
    dev_close(dev);
    if (err)
        return err;
    json_t *list = json_object();
    for (int f = 0; f < FIGURES; f++)
        json_object_set_new(list, figure_names[f], json_real(figures[f]));
    json_t *root =
        json_pack("{s:s, s:s, s:i, s:I, s:o, s:o*}", "version", DTD_VERSION, "cpu", facts.model, "cores", cores,
                  "memory_bytes", (json_int_t)sysconf(_SC_PHYS_PAGES) * (json_int_t)sysconf(_SC_PAGESIZE), "figures",
                  list, "table", all->n ? table_json(all) : NULL);
    if (!root || json_dumpf(root, stdout, 0) || puts("") < 0)
        err = why_set(why, ERR_IO, "cannot print the figures");
    json_decref(root);
    return err;
}

static err_t refuse_gpus(struct why *why)
{
    int gpus = 0;
    struct why ignored = {0};
    if (dev_count("cuda", &gpus, &ignored) || gpus == 0)
        return OK;
    return why_set(why, ERR_UNSUPPORTED,
                   "this node has %d GPU%s, but only processors are measured yet. Name a machine file with --machine",
                   gpus, gpus == 1 ? "" : "s");
}

err_t measure_print(bool brief, struct why *why)
{
    double figures[FIGURES] = {0};
    struct measure_all all = {0};
    const int usable = cpus_usable(NULL, 0), cores = usable < 1 ? 1 : usable < MAX_PROCESSES ? usable : MAX_PROCESSES;
    err_t err = refuse_gpus(why);
    if (err)
        return err;
    struct measure_shared *shared =
        mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        return why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    err = measure_parts(shared, cores, brief ? N_RATES : N_PARTS, figures, &all, why);
    munmap(shared, sizeof(*shared));
    err = err ? err : print_figures(figures, cores, &all, why);
    measure_all_fini(&all);
    return err;
}
