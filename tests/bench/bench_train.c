/* Training throughput of GPT-2 124M in float32, without a daemon: forks the workers over one segment, each bound to a
 * core of its own, runs a few steps and prints one JSON line.
 *
 *     bench_train [--workers N] [--batch B] [--seq T] [--steps S] [--layers L] [--peak GFLOPS] [--ops]
 *
 * B samples of T tokens for each worker and step (weak scaling). Every worker reports the median of its step times; the
 * slowest counts. FLOP per token are 6 N + 12 L h s (PaLM appendix B; the full attention square) and 6 N + 6 L h s (its
 * causal half): both shares are printed. --ops adds rank 0's time per kind of op to standard error. */
#include "common/base/clock.h"
#include "common/base/rng.h"
#include "tests/bench/peak.h"
#include "worker/step/engine.h"

#include <getopt.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_WORKERS 64
#define MAX_STEPS 100

struct options {
    int workers, batch, seq, steps, layers;
    double peak;
    bool ops;
};

struct shared {
    double step_s[MAX_WORKERS][MAX_STEPS], loss;
};

struct feed {
    int64_t seq, vocab;
};

static err_t sample(void *arg, int64_t index, int32_t *ret_ids, int32_t *ret_targets)
{
    const struct feed *f = arg;
    for (int64_t i = 0; i < f->seq; i++) {
        ret_ids[i] = (int32_t)(rng_uniform(1, 1, (uint64_t)(index * f->seq + i)) * (double)f->vocab);
        ret_targets[i] = (int32_t)(rng_uniform(1, 1, (uint64_t)(index * f->seq + i + 1)) * (double)f->vocab);
    }
    return OK;
}

static void bind_to_core(int rank)
{
    cpu_set_t all, one;
    CPU_ZERO(&one);
    if (sched_getaffinity(0, sizeof(all), &all))
        return;
    int want = rank % CPU_COUNT(&all);
    for (int c = 0; c < CPU_SETSIZE; c++)
        if (CPU_ISSET(c, &all) && want-- == 0)
            CPU_SET(c, &one);
    if (sched_setaffinity(0, sizeof(one), &one))
        perror("sched_setaffinity");
}

static int train(struct engine *e, const struct options *o, struct shared *sh, struct why *why)
{
    struct feed f = {e->config.job->train.seq, e->config.job->model.vocab};
    const struct engine_feed feed = {sample, &f};
    struct engine_result r;
    for (int s = 0; s < o->steps; s++) {
        int64_t start = clock_mono_ns();
        if (engine_step(e, &feed, &r, why))
            return 1;
        sh->step_s[e->config.rank][s] = (double)(clock_mono_ns() - start) * 1e-9;
    }
    sh->loss = r.loss;
    return 0;
}

static void print_ops(const struct engine_profile *p, int steps)
{
    for (int k = 0; k < OP_KIND_COUNT; k++)
        if (p->calls[k])
            fprintf(stderr, "%-16s %6.1f calls a step %10.2f ms a step\n", op_name((enum op_kind)k),
                    (double)p->calls[k] / steps, (double)p->ns[k] * 1e-6 / steps);
}

static int run_rank(const struct job_spec *job, const struct graph *g, const struct options *o, int fd, int rank,
                    struct shared *sh)
{
    struct engine e;
    struct comm *comm = NULL;
    struct why why = {""};
    struct engine_profile profile = {{0}, {0}, {0}};
    struct dev *dev = NULL;
    err_t err = dev_open("cpu", 0, &dev, &why);
    const struct engine_config config = {.dev = dev, .job = job, .graph = g, .rank = rank, .world = o->workers};
    bind_to_core(rank);
    err = err ? err : engine_init(&e, &config, &why);
    const struct comm_config cc = {.backend = "shm",
                                   .fd = fd,
                                   .rank = rank,
                                   .world = o->workers,
                                   .epoch = 1,
                                   .shared_bytes = err ? 0 : engine_shared_bytes(&e),
                                   .timeout_ms = 60000};
    err = err ? err : comm_open(&cc, &comm, &why);
    err = err ? err : engine_start(&e, comm, &why);
    err = err ? err : engine_fill_state(&e, &why);
    if (!err && o->ops)
        err = engine_profile_start(&e, &profile, &why);
    err = err ? err : train(&e, o, sh, &why);
    if (err)
        fprintf(stderr, "rank %d: %s\n", rank, why.text);
    if (err && comm)
        comm_abort(comm);
    if (o->ops && rank == 0)
        print_ops(&profile, o->steps);
    return err != 0;
}

static int by_value(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* The first step touches everything for the first time and does not count. */
static double median_step(const struct options *o, struct shared *sh, int rank)
{
    int first = o->steps > 1;
    qsort(sh->step_s[rank] + first, (size_t)(o->steps - first), sizeof(double), by_value);
    return sh->step_s[rank][first + (o->steps - first) / 2];
}

static void print_result(const struct options *o, const struct job_spec *job, const struct graph *g, struct shared *sh)
{
    double step = 0;
    for (int r = 0; r < o->workers; r++) {
        double m = median_step(o, sh, r);
        step = m > step ? m : step;
    }
    double peak = o->peak > 0 ? o->peak : peak_fma_gflops();
    double tokens = (double)o->workers * o->batch * o->seq / step;
    double full = tokens * graph_flops_per_token(g, &job->model, o->seq, false) * 1e-9;
    double half = tokens * graph_flops_per_token(g, &job->model, o->seq, true) * 1e-9;
    struct utsname u;
    uname(&u);
    printf("{\"bench\": \"train\", \"model\": \"gpt2-124m\", \"dtype\": \"float32\", \"workers\": %d, \"batch\": %d, "
           "\"seq\": %d, \"step_s\": %.4f, \"tokens_per_s\": %.1f, \"gflops\": %.1f, \"gflops_causal_half\": %.1f, "
           "\"peak_gflops_per_core\": %.1f, \"share_of_peak\": %.3f, \"share_causal_half\": %.3f, \"loss\": %.4f, "
           "\"kernel\": \"%s\", \"cpus\": %ld}\n",
           o->workers, o->batch, o->seq, step, tokens, full, half, peak, full / peak / o->workers,
           half / peak / o->workers, sh->loss, u.release, sysconf(_SC_NPROCESSORS_ONLN));
}

static int bench(const struct options *o)
{
    struct job_spec job;
    struct graph g;
    struct why why;
    char yaml[1024];
    int failed = 0, fd = memfd_create("bench", MFD_CLOEXEC);
    snprintf(yaml, sizeof(yaml),
             "name: bench\nmodel: {arch: gpt2, dim: 768, layers: %d, heads: 12, vocab: 50257}\n"
             "data: {train: [/nothing], tokenizer: words}\n"
             "train: {steps: 1000, seq: %d, global_batch: %d, micro_batch: %d, lr: 1.0e-4, clip: 1.0}\n"
             "parallel: {workers: %d}\ncheckpoint: {dir: /nowhere}\n",
             o->layers, o->seq, o->batch * o->workers, o->batch, o->workers);
    if (job_parse("bench", yaml, strlen(yaml), NULL, 0, &job, &why) || graph_build(&job.model, o->seq, &g, &why)) {
        fprintf(stderr, "%s\n", why.text);
        return 1;
    }
    struct shared *sh = mmap(NULL, sizeof(*sh), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (sh == MAP_FAILED || fd < 0) {
        perror("bench_train");
        return 1;
    }
    for (int r = 0; r < o->workers; r++)
        if (fork() == 0)
            _exit(run_rank(&job, &g, o, fd, r, sh));
    for (int status; wait(&status) > 0;)
        failed += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    if (!failed)
        print_result(o, &job, &g, sh);
    return failed != 0;
}

int main(int argc, char **argv)
{
    struct options o = {.workers = 1, .batch = 4, .seq = 64, .steps = 4, .layers = 12};
    static const struct option longs[] = {
        {"workers", 1, NULL, 'w'}, {"batch", 1, NULL, 'b'}, {"seq", 1, NULL, 't'}, {"steps", 1, NULL, 's'},
        {"layers", 1, NULL, 'l'},  {"peak", 1, NULL, 'p'},  {"ops", 0, NULL, 'o'}, {0}};
    for (int c; (c = getopt_long(argc, argv, "", longs, NULL)) != -1;) {
        int *number = c == 'w' ? &o.workers : c == 'b' ? &o.batch : c == 't' ? &o.seq : c == 's' ? &o.steps : &o.layers;
        if (c == 'p')
            o.peak = atof(optarg);
        else if (c == 'o')
            o.ops = true;
        else if (c == '?' || (*number = atoi(optarg)) < 1)
            return 2;
    }
    if (o.workers > MAX_WORKERS || o.steps > MAX_STEPS)
        return 2;
    return bench(&o);
}
