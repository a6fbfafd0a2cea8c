/* The bubble of a pipeline's schedule in the worker, with simulated computation: matrix products sleep as long as their
 * operations would need at a rate at which the forward of a layer takes --slot ms. A sleeping rank needs no core, so
 * the figures do not depend on how many cores the machine has, and hardly on its load.
 *
 *   bench_pipeline [--slot MS] [--steps S] [--set KEY=VALUE]...
 *
 * By default a stage has one layer. Table and head are negligible, so forward, backward for inputs and backward for
 * weights of a stage cost the same. Prints one JSON line with the median time of a step from norm to norm, and the
 * bubble: the share of that time in which a rank does not compute. */
#include "common/base/clock.h"
#include "tests/bench/peak.h"
#include "tests/parity/harness.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#define MAX_SETS 32
#define MAX_STEPS PARITY_MAX_STEPS

static const char yaml[] =
    "name: bench\n"
    "model: {arch: llama, dim: 64, layers: 4, heads: 2, ffn: 128, vocab: 4}\n"
    "data: {train: [/nothing], tokenizer: words}\n"
    "train: {steps: 1000, seq: 8, global_batch: 7, micro_batch: 1, lr: 1.0e-3, warmup: 0, clip: 0, verify_every: 0}\n"
    "parallel: {workers: 4, pp: 4, schedule: zb-h2}\n"
    "checkpoint: {dir: /nowhere}\n";

struct options {
    double slot_ms;
    int steps, n_sets;
    const char *sets[MAX_SETS];
};

/* Of the rank that runs in this process. */
static struct {
    const struct kern_ops *kernels; /* the device's own */
    struct kern_ops slow;
    double ns_per_product; /* of a multiplication and an addition */
    int64_t late_ns;       /* by how much the last sleep was too long */
    int64_t now_ns;        /* time in products since the second step began */
    int64_t *computing_ns; /* shared: by rank, the same when the last step began */
    int64_t *begin_ns;     /* shared: by step, on rank 0 */
    int rank, steps;
} sim;

/* A sleep that ended late shortens the next ones. */
static err_t slow_gemm(struct kern_stream *s, const struct kern_gemm *g)
{
    const int64_t ns = (int64_t)((double)g->m * (double)g->n * (double)g->k * sim.ns_per_product);
    const int64_t want = ns - sim.late_ns, start = clock_mono_ns();
    const struct timespec t = {want / 1000000000, want % 1000000000};
    if (want > 0)
        nanosleep(&t, NULL);
    sim.late_ns = want > 0 ? clock_mono_ns() - start - want : -want;
    sim.now_ns += ns;
    return sim.kernels->gemm(s, g);
}

static err_t replace_kernels(void *arg, struct engine *e, struct why *why)
{
    (void)arg;
    (void)why;
    sim.rank = e->config.rank;
    sim.kernels = e->kernels;
    sim.slow = *e->kernels;
    sim.slow.gemm = slow_gemm;
    e->kernels = &sim.slow;
    return OK;
}

static void note_step(void *arg, struct engine *e)
{
    (void)arg;
    if (e->step == 1) /* in the first step nothing has run ahead, and in the last nothing does */
        sim.now_ns = 0;
    if (e->step == sim.steps - 1)
        sim.computing_ns[sim.rank] = sim.now_ns;
    if (sim.rank == 0)
        sim.begin_ns[e->step] = clock_mono_ns();
}

/* Products of a layer's forward on a microbatch of one sample: queries, keys, values, output; gate, up and down. */
static double products_of_layer(const struct parity_model *m)
{
    const struct job_model *j = &m->job.model;
    return (double)m->job.train.seq * (double)m->job.train.micro_batch *
           (4.0 * (double)(j->dim * j->dim) + 3.0 * (double)(j->dim * j->ffn));
}

static int by_value(const void *a, const void *b)
{
    const int64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static void print_result(const struct options *o, const struct parity_model *m, const struct parity_result *r)
{
    int64_t step[MAX_STEPS];
    double computing = 0, micros = (double)m->job.train.global_batch / (double)m->job.train.micro_batch;
    const int n = o->steps - 2; /* between the begins of steps 2 and last */
    for (int i = 0; i < n; i++)
        step[i] = sim.begin_ns[i + 2] - sim.begin_ns[i + 1];
    for (int i = 0; i < m->job.parallel.workers; i++)
        computing += (double)sim.computing_ns[i] / (double)m->job.parallel.workers / n;
    const double layers = (double)m->job.model.layers / (double)m->job.parallel.pp;
    qsort(step, (size_t)n, sizeof(*step), by_value);
    const int64_t median = step[n / 2];
    printf("{\"bench\": \"pipeline\", \"schedule\": \"%s\", \"workers\": %d, \"pp\": %d, \"micros\": %d, "
           "\"post_validation\": %s, \"slot_ms\": %.1f, \"step_ms\": %.1f, \"ideal_ms\": %.1f, \"bubble\": %.3f, "
           "\"repeated\": %d, \"commit\": \"%s\"}\n",
           job_schedule_row(m->job.parallel.schedule)->name, (int)m->job.parallel.workers, (int)m->job.parallel.pp,
           (int)micros, m->job.parallel.post_validation ? "true" : "false", o->slot_ms, (double)median * 1e-6,
           3 * micros * o->slot_ms * layers, 1 - computing / (double)median, (int)r->repeated, peak_commit());
}

static bool read_options(int argc, char **argv, struct options *o)
{
    static const struct option longs[] = {{"slot", 1, NULL, 'm'}, {"steps", 1, NULL, 's'}, {"set", 1, NULL, 'k'}, {0}};
    int c;
    *o = (struct options){.slot_ms = 20, .steps = 12};
    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1) {
        if (c == 'm')
            o->slot_ms = atof(optarg);
        else if (c == 's')
            o->steps = atoi(optarg);
        else if (c == 'k' && o->n_sets < MAX_SETS - 1)
            o->sets[o->n_sets++] = optarg;
        else
            return false;
    }
    return o->slot_ms > 0 && o->steps > 3 && o->steps <= MAX_STEPS;
}

int main(int argc, char **argv)
{
    struct options o;
    struct parity_model m;
    if (!read_options(argc, argv, &o)) {
        fprintf(stderr, "usage: bench_pipeline [--slot MS] [--steps S (4 to %d)] [--set KEY=VALUE]...\n", MAX_STEPS);
        return 2;
    }
    parity_model_init(&m, yaml, o.sets);
    const size_t bytes = (MAX_STEPS + PARITY_MAX_WORKERS) * sizeof(int64_t);
    sim.begin_ns = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (sim.begin_ns == MAP_FAILED)
        return 1;
    sim.computing_ns = sim.begin_ns + MAX_STEPS;
    sim.ns_per_product = o.slot_ms * 1e6 / products_of_layer(&m);
    sim.steps = o.steps;
    const struct parity_options options = {.before = replace_kernels, .each = note_step};
    struct parity_result *r = parity_run(&m, o.steps, &options);
    print_result(&o, &m, r);
    parity_result_free(r);
    parity_model_fini(&m);
    return 0;
}
