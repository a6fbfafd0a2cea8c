/* Training throughput without a daemon: forks the workers over one segment, binds each to a core of its own (on GPUs:
 * to a device, in turn), runs a few steps and prints JSON lines.
 *
 *   bench_train [--model gpt2-124m|llama-160m|llama-1b] [--device cpu|cuda] [--dtype float32|bfloat16] [--workers N]
 *               [--threads N] [--alone] [--batch B] [--seq T] [--steps S] [--layers L] [--peak GFLOPS] [--peak-side N]
 *               [--algorithms FILE] [--set KEY=VALUE]... [--ops] [--save]
 *
 * Each worker processes B samples of T tokens per step (weak scaling), in the layout of --set. Every worker reports the
 * median and its shortest step; the slowest worker counts. FLOP per token are 6 N + 12 L h s (PaLM appendix B; full
 * square of the attention) and 6 N + 6 L h s (its causal half). Both are printed as shares of the rate of products
 * measured on one worker's device, and on a GPU also of the vendor's figure (MFU). Another JSON line has the time for
 * filling the initial parameters. --ops adds a JSON line for every kind of op and of action of rank 0: its time, and
 * the least time for its operations and bytes at the measured rates (common/plan/estimate/cost.c). --save adds a JSON
 * line for what a save costs the training (tests/bench/stall.h).
 *
 * With parallel.pp equal to the workers --ops also prints a line `train_pipeline`: the time of each stage per
 * microbatch in the measured steps, the time that these stages need in the schedule if nothing else is lost, and that
 * as a share of the measured step. It does not depend on how fast the machine is at that moment.
 *
 * --threads gives each worker as many cores and compute threads. With --alone the workers are jobs of one worker each
 * that run at the same time and exchange nothing: what the machine gives to so many workers before any communication.
 *
 * On GPUs products use the algorithms in FILE. The first step times those that FILE lacks and adds them
 * (docs/internals/kernels.md); without the option the library's first proposals are used. The JSON line has the file's
 * name, the number of its choices and a hash of its bytes: runs with the same hash used the same algorithms.
 * `logits_row` is the number of elements from one row of logits to the next; a rank has all columns of the vocabulary
 * or a part. */
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/hash.h"
#include "common/base/rng.h"
#include "common/plan/estimate/cost.h"
#include "common/plan/models/build.h"
#include "tests/bench/median.h"
#include "tests/bench/peak.h"
#include "tests/bench/peak_dev.h"
#include "tests/bench/stall.h"
#include "worker/nvml.h"
#include "worker/step/engine.h"

#include <getopt.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_WORKERS 64
#define MAX_STEPS 100
#define MAX_SETS 16

/* Published shapes; llama-160m is JackFram/llama-160m, llama-1b is Llama 3.2 1B. */
static const struct model {
    const char *name, *yaml;
    int layers;
} models[] = {
    {"gpt2-124m", "arch: gpt2, dim: 768, heads: 12, vocab: 50257", 12},
    {"llama-160m", "arch: llama, dim: 768, heads: 12, ffn: 3072, vocab: 32000", 12},
    {"llama-1b",
     "arch: llama, dim: 2048, heads: 32, kv_heads: 8, ffn: 8192, vocab: 128256, tied: true, rope_theta: 500000.0", 16},
};

struct options {
    const struct model *model;
    const char *device, *dtype, *algorithms; /* algorithms: a file; NULL: none */
    int workers, threads, batch, seq, steps, layers, peak_side;
    double peak;
    bool ops, alone, save;
    const char *sets[MAX_SETS];
    int n_sets;
};

/* The seconds of one profiled step on a rank of a pipeline. */
struct stage {
    double step, forward, backward, weight, end; /* backward: with the one for inputs; end: sums, norm and update */
};

struct shared {
    double step_s[MAX_WORKERS][MAX_STEPS], fill_s[MAX_WORKERS], loss[MAX_WORKERS];
    int64_t logits_row[MAX_WORKERS]; /* 0: the rank has no logits */
    struct nvml_facts
        gpu; /* of rank 0, read directly after the measured steps, while the clocks are those of the steps */
    struct peak_dev peak; /* of rank 0's device */
    struct stage stages[MAX_WORKERS];
};

/* Random tokens, generated before the first step, so that a step copies them like tokens of a file. Samples begin at
 * different places of the same tokens. */
#define TOKENS (INT64_C(1) << 20)
struct feed {
    int64_t seq;
    int32_t *tokens; /* TOKENS + seq + 1 */
};

static err_t feed_init(struct feed *f, const struct job_spec *job, struct why *why)
{
    f->seq = job->train.seq;
    f->tokens = malloc((size_t)(TOKENS + f->seq + 1) * sizeof(int32_t));
    if (!f->tokens)
        return why_set(why, ERR_NOMEM, "no memory for tokens");
    for (int64_t i = 0; i <= TOKENS + f->seq; i++)
        f->tokens[i] = (int32_t)(rng_uniform(1, 1, (uint64_t)i) * (double)job->model.vocab);
    return OK;
}

static err_t copy_sample(void *arg, int64_t index, int32_t *ret_ids, int32_t *ret_targets)
{
    const struct feed *f = arg;
    const int32_t *first = f->tokens + index * f->seq % TOKENS;
    memcpy(ret_ids, first, (size_t)f->seq * sizeof(int32_t));
    memcpy(ret_targets, first + 1, (size_t)f->seq * sizeof(int32_t));
    return OK;
}

/* Worker k gets the cores k * threads to (k + 1) * threads - 1 of those that this process may use, in turn. */
static void bind_to_cores(int worker, int threads)
{
    cpu_set_t all, mine;
    CPU_ZERO(&mine);
    if (sched_getaffinity(0, sizeof(all), &all))
        return;
    const int n = CPU_COUNT(&all);
    for (int c = 0, at = 0; c < CPU_SETSIZE; c++)
        if (CPU_ISSET(c, &all)) {
            if ((at - worker * threads % n + n) % n < threads)
                CPU_SET(c, &mine);
            at++;
        }
    if (sched_setaffinity(0, sizeof(mine), &mine))
        perror("sched_setaffinity");
}

static int run_steps(struct engine *e, const struct options *o, struct feed *f, double *ret_s, double *ret_loss,
                     struct why *why)
{
    const struct engine_feed feed = {.sample = copy_sample, .arg = f};
    struct engine_result r = {0};
    for (int s = 0; s < o->steps; s++) {
        int64_t start_engine = clock_mono_ns();
        if (engine_step(e, &feed, &r, why))
            return 1;
        ret_s[s] = (double)(clock_mono_ns() - start_engine) * 1e-9;
    }
    *ret_loss = r.loss;
    return 0;
}

/* Unknown if the device is no GPU or NVML is missing. */
static void read_clocks(struct dev *dev, struct nvml_facts *ret)
{
    struct dev_facts facts;
    struct nvml *n = NULL;
    struct why why = {""};
    if (dev->ops->host_memory || dev_facts(dev, &facts, &why) || nvml_open(&n, &why))
        return;
    if (!nvml_read(n, facts.uuid, ret))
        fprintf(stderr, "NVML does not list the GPU %s, so no clocks are printed\n", facts.uuid);
    nvml_close(n);
}

static void print_time(const char *what, const char *name, double calls, double ms, double floor_ms)
{
    printf("{\"bench\": \"train_%s\", \"name\": \"%s\", \"calls\": %.1f, \"ms\": %.4f", what, name, calls, ms);
    if (floor_ms > 0)
        printf(", \"floor_ms\": %.4f, \"share\": %.3f", floor_ms, floor_ms / ms);
    puts("}");
}

static double op_floor_ms(const struct program *p, const struct action *a, const struct op *op,
                          const struct peak_dev *peak)
{
    struct op_cost cost;
    plan_op_cost(p, op, a->micro >= 0 ? p->micros[a->micro].samples : p->max_samples, &cost);
    double by_flops = cost.flops / (peak->gflops * 1e6), by_bytes = cost.bytes / (peak->gbs * 1e6);
    return by_flops > by_bytes ? by_flops : by_bytes;
}

/* The least time of the step's ops of a kind: each is limited by its products or by its bytes. */
static double floor_ms(const struct program *p, enum op_kind kind, const struct peak_dev *peak)
{
    double ms = 0;
    for (int a = 0; a < p->n_actions; a++)
        for (int i = 0; i < p->actions[a].n_ops; i++) {
            const struct op *op = &p->ops[p->actions[a].first_op + i];
            ms += op->kind == kind ? op_floor_ms(p, &p->actions[a], op, peak) : 0;
        }
    return ms;
}

static void print_ops(const struct engine *e, const struct engine_profile *p, int steps, const struct peak_dev *peak)
{
    for (int k = 0; k < OP_KIND_COUNT; k++)
        if (p->calls[k])
            print_time("op", op_name((enum op_kind)k), (double)p->calls[k] / steps, (double)p->ns[k] * 1e-6 / steps,
                       floor_ms(&e->train, (enum op_kind)k, peak));
    for (int a = 0; a < ACT_COUNT; a++)
        if (p->action_ns[a])
            print_time("action", action_name((enum action_kind)a), 1, (double)p->action_ns[a] * 1e-6 / steps, 0);
    fflush(stdout);
}

static void note_stage(const struct engine_profile *p, double step_s, int steps, struct stage *ret)
{
    const double per_step = 1e-9 / steps;
    ret->step = step_s / steps;
    ret->forward = (double)p->action_ns[ACT_FORWARD] * per_step;
    ret->backward = (double)(p->action_ns[ACT_BACKWARD] + p->action_ns[ACT_INPUT]) * per_step;
    ret->weight = (double)p->action_ns[ACT_WEIGHT] * per_step;
    ret->end = (double)(p->action_ns[ACT_REDUCE] + p->action_ns[ACT_NORM] + p->action_ns[ACT_UPDATE]) * per_step;
}

/* Runs after the measured steps, so that neither the work of the first step nor the profiling is part of their times.
 */
static int print_profile(struct engine *e, const struct options *o, struct feed *f, bool print, struct shared *sh,
                         struct stage *stage, struct why *why)
{
    enum { STEPS = 2 };
    struct engine_profile p = {.trace = NULL};
    const struct engine_feed feed = {.sample = copy_sample, .arg = f};
    struct engine_result r;
    err_t err = o->ops ? engine_profile_start(e, &p, why) : OK;
    const int64_t start = clock_mono_ns();
    for (int s = 0; !err && o->ops && s < STEPS; s++)
        err = engine_step(e, &feed, &r, why);
    note_stage(&p, (double)(clock_mono_ns() - start) * 1e-9, STEPS, stage);
    if (!err && o->ops && print)
        print_ops(e, &p, STEPS, &sh->peak);
    return err != 0;
}

/* Fills the initial parameters twice, because a GPU loads the kernel in the first call. The faster call counts. */
static err_t time_fill(struct engine *e, double *ret_s, struct why *why)
{
    int64_t best = INT64_MAX;
    for (int i = 0; i < 2; i++) {
        int64_t start_engine = clock_mono_ns();
        err_t err = engine_fill_state(e, why);
        if (err)
            return err;
        int64_t took = clock_mono_ns() - start_engine;
        best = took < best ? took : best;
    }
    *ret_s = (double)best * 1e-9;
    return OK;
}

static err_t start_engine(struct engine *e, const struct engine_config *config, struct comm **comm, int fd,
                          struct why *why)
{
    err_t err = engine_init(e, config, why);
    if (err)
        return err;
    const struct comm_config cc = {.backend = config->dev->ops->host_memory ? "shm" : "staged",
                                   .fd = fd,
                                   .dev = config->dev,
                                   .rank = config->rank,
                                   .world = config->world,
                                   .epoch = 1,
                                   .shared_bytes = engine_shared_bytes(e),
                                   .timeout_ms = 60000};
    err = comm_open(&cc, comm, why);
    return err ? err : engine_start(e, *comm, why);
}

static int64_t logits_row(const struct program *p)
{
    return p->logits_buffer < 0 ? 0 : buffer_row(&p->buffers[p->logits_buffer]);
}

static err_t open_device(const struct options *o, int rank, struct dev **ret, struct why *why)
{
    int n;
    err_t err = dev_count(o->device, &n, why);
    err = err ? err : dev_open(o->device, rank % (n > 0 ? n : 1), ret, why);
    return err ? err : dev_algorithms(*ret, o->algorithms, why);
}

/* The process exits here, which frees the memory of the engine. */
static int run_worker(const struct job_spec *job, const struct graph *g, const struct options *o, int fd, int worker,
                      struct shared *sh)
{
    struct engine e;
    struct feed f;
    struct comm *comm = NULL;
    struct why why = {""};
    struct dev *dev = NULL;
    bind_to_cores(worker, o->threads);
    err_t err = open_device(o, worker, &dev, &why);
    const struct engine_config config = {.dev = dev,
                                         .job = job,
                                         .graph = g,
                                         .rank = o->alone ? 0 : worker,
                                         .world = o->alone ? 1 : o->workers,
                                         .threads = o->threads,
                                         .comm_thread = job->run.comm_thread == COMM_THREAD_ON};
    if (!err && worker == 0)
        err = peak_dev_measure(dev, (enum dtype)job->train.dtype, o->peak_side, &sh->peak, &why);
    err = err ? err : start_engine(&e, &config, &comm, fd, &why);
    err = err ? err : time_fill(&e, &sh->fill_s[worker], &why);
    err = err ? err : feed_init(&f, job, &why);
    if (!err)
        sh->logits_row[worker] = logits_row(&e.train);
    int failed = err || run_steps(&e, o, &f, sh->step_s[worker], &sh->loss[worker], &why);
    if (!failed && worker == 0)
        read_clocks(dev, &sh->gpu);
    failed = failed || print_profile(&e, o, &f, worker == 0, sh, &sh->stages[worker], &why);
    if (!failed && o->save && worker == 0)
        failed = stall_print(&e, &why) != OK;
    if (failed)
        fprintf(stderr, "worker %d: %s\n", worker, why.text);
    if (failed && comm)
        comm_abort(comm);
    return failed;
}

/* Sorts a worker's step times and returns their median; `ret_best` gets the shortest. The first step is not counted: it
 * touches all memory for the first time. */
static double median_step(const struct options *o, struct shared *sh, int worker, double *ret_best)
{
    int first = o->steps > 1;
    qsort(sh->step_s[worker] + first, (size_t)(o->steps - first), sizeof(double), median_order);
    *ret_best = sh->step_s[worker][first];
    return sh->step_s[worker][first + (o->steps - first) / 2];
}

/* Prints the time of the slowest worker. Each worker fills the parameters of its layout with as many threads as its
 * kernels have: one. */
static void print_fill(const struct options *o, const struct graph *g, const struct shared *sh)
{
    double s = 0;
    for (int r = 0; r < o->workers; r++)
        s = sh->fill_s[r] > s ? sh->fill_s[r] : s;
    printf("{\"bench\": \"train_fill\", \"model\": \"%s\", \"device\": \"%s\", \"workers\": %d, \"params\": %lld, "
           "\"s\": %.5f, \"ns_per_param\": %.3f, \"on\": \"%s\", \"commit\": \"%s\"}\n",
           o->model->name, o->device, o->workers, (long long)g->n_params, s, s * 1e9 / (double)g->n_params,
           sh->peak.name, peak_commit());
}

/* The file at the end of the run. A line with a choice begins with a digit; no other line does. */
static void print_algorithms(const char *path)
{
    struct buf text = {0};
    struct hash h;
    int choices = 0;
    if (!path || file_read(path, (size_t)16 << 20, &text)) {
        printf("\"algorithms\": null, ");
        return;
    }
    for (size_t i = 0; i < text.len; i++)
        choices += text.data[i] >= '0' && text.data[i] <= '9' && (i == 0 || text.data[i - 1] == '\n');
    hash_init(&h);
    hash_add(&h, text.data, text.len);
    printf("\"algorithms\": \"%s\", \"algorithm_choices\": %d, \"algorithm_hash\": \"%016llx\", ", path, choices,
           (unsigned long long)hash_end(&h));
    buf_fini(&text);
}

static void print_result(const struct options *o, const struct job_spec *job, const struct graph *g, struct shared *sh)
{
    double step = 0, best = 0, peak = o->peak > 0 ? o->peak : sh->peak.gflops, nominal = sh->peak.nominal_gflops;
    int64_t row = 0;
    for (int r = 0; r < o->workers; r++) {
        double b, m = median_step(o, sh, r, &b);
        step = m > step ? m : step;
        best = b > best ? b : best;
        row = sh->logits_row[r] > row ? sh->logits_row[r] : row;
    }
    double tokens = (double)o->workers * o->batch * o->seq / step;
    double full = tokens * graph_flops_per_token(g, &job->model, o->seq, false) * 1e-9;
    const double cores = (double)o->workers * o->threads;
    double half = tokens * graph_flops_per_token(g, &job->model, o->seq, true) * 1e-9;
    printf("{\"bench\": \"train\", \"model\": \"%s\", \"device\": \"%s\", \"dtype\": \"%s\", \"workers\": %d, "
           "\"threads\": %d, \"alone\": %s, \"batch\": %d, \"seq\": %d, \"vocab\": %lld, \"logits_row\": %lld, "
           "\"step_s\": %.5f, \"best_step_s\": %.5f, \"tokens_per_s\": "
           "%.1f, \"gflops\": %.1f, "
           "\"gflops_causal_half\": %.1f, \"peak_gflops\": %.1f, \"peak_gbs\": %.1f, \"share_of_peak\": %.3f, "
           "\"share_causal_half\": %.3f, ",
           o->model->name, o->device, o->dtype, o->workers, o->threads, o->alone ? "true" : "false", o->batch, o->seq,
           (long long)job->model.vocab, (long long)row, step, best, tokens, full, half, peak, sh->peak.gbs,
           full / peak / cores, half / peak / cores);
    for (int i = 0; i < o->n_sets; i++)
        printf("%s%s%s", i ? " " : "\"sets\": \"", o->sets[i], i + 1 < o->n_sets ? "" : "\", ");
    if (job->run.device == DEVICE_CUDA)
        print_algorithms(o->algorithms);
    if (nominal > 0)
        printf("\"mfu\": %.3f, \"mfu_causal_half\": %.3f, ", full / nominal / o->workers, half / nominal / o->workers);
    if (sh->gpu.sm_mhz > 0)
        printf("\"sm_mhz\": %lld, \"memory_mhz\": %lld, \"power_w\": %.0f, \"throttle\": %lld, ",
               (long long)sh->gpu.sm_mhz, (long long)sh->gpu.memory_mhz, (double)sh->gpu.power_mw * 1e-3,
               (long long)sh->gpu.throttle);
    printf("\"loss\": %.4f, \"on\": \"%s\", \"cpus\": %ld, \"commit\": \"%s\"}\n", sh->loss[0], sh->peak.name,
           sysconf(_SC_NPROCESSORS_ONLN), peak_commit());
}

/* What a rank of a pipeline needs besides the work of its own stage. Stages before it pass one microbatch forward
 * before its first slot and one backward after its last. Those after it do both twice, at the begin and at the end of
 * the step, while the rank computes as many of its own slots as there are such stages. With equal stages the sum is the
 * bubble of docs/internals/schedules.md, "The rules"; in zero-bubble schedules a rank that waits computes gradients of
 * weights. */
static double bubble_of(const struct options *o, const struct shared *sh, int rank, int micros)
{
    double before = 0, after = 0;
    for (int i = 0; i < o->workers; i++) {
        const struct stage *x = &sh->stages[i], *own = &sh->stages[rank];
        const double one = (x->forward + x->backward - x->weight) / micros;
        before += i < rank ? one : 0;
        after += i > rank ? 2 * one - (own->forward + own->backward - own->weight) / micros : 0;
    }
    return before + (after > 0 ? after : 0);
}

/* The step if nothing is lost but the bubble: that of the rank that needs most. */
static double ideal_step(const struct options *o, const struct shared *sh, int micros)
{
    double most = 0, end = 1e30;
    for (int r = 0; r < o->workers; r++) {
        const struct stage *own = &sh->stages[r];
        double s = own->forward + own->backward + own->weight + bubble_of(o, sh, r, micros);
        most = s > most ? s : most;
        end = own->end < end ? own->end : end; /* the others wait in their sums */
    }
    return most + end;
}

/* Only schedules with one chunk per rank, whose formula ideal_step has. */
static void print_pipeline(const struct options *o, const struct job_spec *job, const struct shared *sh)
{
    const int64_t micros = job->train.global_batch / job->train.micro_batch;
    if (!o->ops || o->workers < 2 || job->parallel.pp != o->workers || job->parallel.chunks != 1)
        return;
    const double ideal = ideal_step(o, sh, (int)micros);
    printf("{\"bench\": \"train_pipeline\", \"schedule\": \"%s\", \"micros\": %lld, \"stage_ms\": [",
           job_schedule_row(job->parallel.schedule)->name, (long long)micros);
    for (int r = 0; r < o->workers; r++)
        printf("%s%.2f", r ? ", " : "",
               (sh->stages[r].forward + sh->stages[r].backward + sh->stages[r].weight) * 1e3 / (double)micros);
    printf("], \"step_s\": %.5f, \"ideal_s\": %.5f, \"share\": %.3f}\n", sh->stages[0].step, ideal,
           ideal / sh->stages[0].step);
}

static int run_bench(const struct options *o)
{
    struct job_spec job;
    struct graph g;
    struct why why;
    char yaml[1024];
    const int world = o->alone ? 1 : o->workers;
    int failed = 0, fd = memfd_create("bench", MFD_CLOEXEC);
    snprintf(yaml, sizeof(yaml),
             "name: bench\nmodel: {%s, layers: %d}\ndata: {train: [/nothing], tokenizer: words}\n"
             "train: {steps: 1000, seq: %d, global_batch: %d, micro_batch: %d, lr: 1.0e-4, clip: 1.0, dtype: %s}\n"
             "parallel: {workers: %d}\ncheckpoint: {dir: /nowhere}\nrun: {device: %s, workers_per_gpu: %d}\n",
             o->model->yaml, o->layers > 0 ? o->layers : o->model->layers, o->seq, o->batch * world, o->batch, o->dtype,
             world, o->device, world);
    if (job_parse("bench", yaml, strlen(yaml), o->sets, o->n_sets, &job, &why) ||
        graph_build(&job.model, o->seq, &g, &why)) {
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
            _exit(run_worker(&job, &g, o, o->alone ? memfd_create("bench", MFD_CLOEXEC) : fd, r, sh));
    for (int status; wait(&status) > 0;)
        failed += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    if (!failed) {
        print_fill(o, &g, sh);
        print_pipeline(o, &job, sh);
        print_result(o, &job, &g, sh);
    }
    return failed != 0;
}

static const struct model *model_find(const char *name)
{
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++)
        if (strcmp(models[i].name, name) == 0)
            return &models[i];
    return NULL;
}

int main(int argc, char **argv)
{
    struct options o = {.model = models,
                        .device = "cpu",
                        .dtype = "float32",
                        .workers = 1,
                        .threads = 1,
                        .batch = 4,
                        .seq = 64,
                        .steps = 4,
                        .peak_side = 8192};
    static const struct option longs[] = {{"workers", 1, NULL, 'w'},
                                          {"batch", 1, NULL, 'b'},
                                          {"seq", 1, NULL, 't'},
                                          {"steps", 1, NULL, 's'},
                                          {"layers", 1, NULL, 'l'},
                                          {"peak", 1, NULL, 'p'},
                                          {"ops", 0, NULL, 'o'},
                                          {"model", 1, NULL, 'm'},
                                          {"device", 1, NULL, 'd'},
                                          {"dtype", 1, NULL, 'y'},
                                          {"set", 1, NULL, 'e'},
                                          {"peak-side", 1, NULL, 'k'},
                                          {"algorithms", 1, NULL, 'a'},
                                          {"threads", 1, NULL, 'n'},
                                          {"alone", 0, NULL, 'i'},
                                          {"save", 0, NULL, 'v'},
                                          {0}};
    for (int c; (c = getopt_long(argc, argv, "", longs, NULL)) != -1;) {
        int *number = c == 'w'   ? &o.workers
                      : c == 'b' ? &o.batch
                      : c == 't' ? &o.seq
                      : c == 's' ? &o.steps
                      : c == 'n' ? &o.threads
                      : c == 'k' ? &o.peak_side
                                 : &o.layers;
        if (c == 'p')
            o.peak = atof(optarg);
        else if (c == 'o')
            o.ops = true;
        else if (c == 'i')
            o.alone = true;
        else if (c == 'v')
            o.save = true;
        else if (c == 'm')
            o.model = model_find(optarg);
        else if (c == 'd')
            o.device = optarg;
        else if (c == 'a')
            o.algorithms = optarg;
        else if (c == 'y')
            o.dtype = optarg;
        else if (c == 'e' && o.n_sets < MAX_SETS)
            o.sets[o.n_sets++] = optarg;
        else if (c == '?' || (*number = atoi(optarg)) < 1)
            return 2;
    }
    if (!o.model || o.workers > MAX_WORKERS || o.steps > MAX_STEPS)
        return 2;
    return run_bench(&o);
}
