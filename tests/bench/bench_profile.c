/* What dtctl profile costs.
 *
 *   bench_profile record [--set KEY=VALUE]...   a step that is recorded, against one that is not
 *   bench_profile trace [--set KEY=VALUE]...    from the files of 64 ranks with 3 steps to the written trace
 *
 * `record` runs one worker whose steps are recorded in turn, and prints the median processor time of both kinds: other
 * load of the machine affects both equally, and what a recorded step adds is work of this thread alone. `trace` takes
 * the files from the programs of a layout (pp 4, fsdp 4, tp 4) with the times of their forecast, and measures what
 * dtctl does when all ranks have written: reading, aligning, the forecast, sums, and the trace. Each prints a JSON
 * line. */
#include "client/profile/profile.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/rng.h"
#include "common/plan/compile/compile.h"
#include "common/plan/models/build.h"
#include "tests/bench/median.h"
#include "tests/bench/peak.h"
#include "worker/step/engine.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define STEPS 3
#define PAIRS 60
#define MAX_SETS 16

static const char yaml[] = "name: bench\nmodel: {arch: llama, dim: 256, layers: 4, heads: 8, ffn: 1024, vocab: 256}\n"
                           "data: {train: [/nothing], tokenizer: bytes}\n"
                           "train: {steps: 1000, seq: 64, global_batch: 8, micro_batch: 1, lr: 1.0e-4, clip: 1.0, "
                           "dtype: float32, numerics: fast}\n"
                           "parallel: {workers: 1}\ncheckpoint: {dir: /nowhere}\nrun: {device: cpu}\n";

static const char *const layout[] = {"model.layers=16",     "parallel.workers=64",   "parallel.pp=4",
                                     "parallel.fsdp=4",     "parallel.tp=4",         "train.global_batch=64",
                                     "train.micro_batch=2", "parallel.schedule=1f1b"};
#define LAYOUT (int)(sizeof(layout) / sizeof(layout[0]))

static int failed(const struct why *why)
{
    fprintf(stderr, "bench_profile: %s\n", why->text);
    return 1;
}

/* ---- record ---- */

static err_t sample(void *arg, int64_t index, int32_t *ret_ids, int32_t *ret_targets)
{
    const int64_t seq = *(const int64_t *)arg;
    for (int64_t i = 0; i < seq; i++) {
        ret_ids[i] = (int32_t)(rng_uniform(1, 1, (uint64_t)(index * seq + i)) * 256);
        ret_targets[i] = (int32_t)(rng_uniform(1, 1, (uint64_t)(index * seq + i + 1)) * 256);
    }
    return OK;
}

static err_t start_engine(struct engine *e, const struct job_spec *job, const struct graph *g, struct why *why)
{
    struct dev *dev = NULL;
    struct comm *comm = NULL;
    err_t err = dev_open("cpu", 0, &dev, why);
    const struct engine_config config = {.dev = dev, .job = job, .graph = g, .world = 1, .threads = 1};
    err = err ? err : engine_init(e, &config, why);
    if (err)
        return err;
    const struct comm_config cc = {.backend = "shm",
                                   .fd = memfd_create("bench", MFD_CLOEXEC),
                                   .dev = dev,
                                   .world = 1,
                                   .epoch = 1,
                                   .shared_bytes = engine_shared_bytes(e),
                                   .timeout_ms = 60000};
    err = comm_open(&cc, &comm, why);
    err = err ? err : engine_start(e, comm, why);
    return err ? err : engine_fill_state(e, why);
}

static double thread_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static err_t time_step(struct engine *e, struct engine_record *record, const struct engine_feed *feed, bool on,
                       double *ret_ms, struct why *why)
{
    struct engine_profile p = {.record = record};
    struct engine_result r = {0};
    record->n = record->n_hosts = 0;
    err_t err = on ? engine_profile_start(e, &p, why) : OK;
    const double start = thread_ms();
    err = err ? err : engine_step(e, feed, &r, why);
    *ret_ms = thread_ms() - start;
    engine_profile_stop(e);
    return err;
}

static int bench_record(const struct job_spec *job, const struct graph *g)
{
    static double ms[2][PAIRS];
    struct engine e = {0};
    struct recorded program = {0};
    struct engine_record record = {0};
    struct why why = {""};
    int *first = NULL;
    int64_t seq = job->train.seq;
    const struct engine_feed feed = {.sample = sample, .arg = &seq};
    err_t err = start_engine(&e, job, g, &why);
    err = err ? err : recorded_program(&e.train, &program, &first);
    if (err)
        return failed(&why);
    record.cap = engine_record_room(&e);
    record.cap_hosts = 1 << 16;
    record.events = calloc((size_t)record.cap, sizeof(*record.events));
    record.hosts = calloc((size_t)record.cap_hosts, sizeof(*record.hosts));
    record.first_call = first;
    for (int i = -4; !err && i < 2 * PAIRS; i++) { /* some to warm up */
        double one = 0;
        err = time_step(&e, &record, &feed, i % 2, &one, &why);
        if (i >= 0)
            ms[i % 2][i / 2] = one;
    }
    if (err)
        return failed(&why);
    for (int k = 0; k < 2; k++)
        qsort(ms[k], PAIRS, sizeof(double), median_order);
    printf("{\"bench\": \"profile_record\", \"ops\": %d, \"plain_ms\": %.4f, \"recorded_ms\": %.4f, \"ratio\": %.4f, "
           "\"ratio_of_best\": %.4f, \"cpu\": \"%s\", \"commit\": \"%s\"}\n",
           record.n, ms[0][PAIRS / 2], ms[1][PAIRS / 2], ms[1][PAIRS / 2] / ms[0][PAIRS / 2], ms[1][0] / ms[0][0],
           peak_cpu_name(), peak_commit());
    return 0; /* the process exits, which frees the engine */
}

/* ---- trace ---- */

struct filler {
    struct recorded *ranks;
    int **first;
    const struct program *programs;
};

static void add_op(void *arg, int rank, int action, const struct op *op, double start, double end)
{
    const struct filler *f = arg;
    const struct program *p = &f->programs[rank];
    struct recorded *r = &f->ranks[rank];
    const int call = f->first[rank][action] + (int)(op - &p->ops[p->actions[action].first_op]);
    r->events[r->n_events++] = (struct recorded_event){(int64_t)(start * 1e9), (int64_t)(end * 1e9), call, 0};
}

/* The other steps are the first one again, later. */
static void repeat(struct recorded *r, double seconds)
{
    const int n = r->n_events;
    const int64_t length = (int64_t)(seconds * 1e9) + 1000000;
    for (int s = 1; s < STEPS; s++)
        for (int i = 0; i < n; i++) {
            struct recorded_event e = r->events[i];
            e.from += s * length;
            e.to += s * length;
            e.step = s;
            r->events[r->n_events++] = e;
        }
    for (int s = 0; s < STEPS; s++)
        r->step[r->n_step++] = (struct recorded_step){1 + s, s * length, (s + 1) * length - 1, 1 << 30, 0};
}

static err_t fill_ranks(struct filler *f, const struct job_spec *job, int n, struct why *why)
{
    const struct plan_rates rates = plan_rates_of(job);
    const struct forecast_watch watch = {add_op, f};
    struct forecast forecast = {0};
    err_t err = OK;
    for (int k = 0; !err && k < n; k++) {
        struct recorded *r = &f->ranks[k];
        *r = (struct recorded){.job = 1, .profile = 1, .epoch = 1, .rank = k, .world = n, .steps = STEPS, .first = 1};
        r->clock[1].at = 1000000000;
        err = recorded_program(&f->programs[k], r, &f->first[k]);
        r->events = calloc((size_t)r->n_calls * STEPS + 1, sizeof(*r->events));
        r->step = calloc(STEPS, sizeof(*r->step));
    }
    err = err ? err : plan_forecast_watched(f->programs, n, &rates, &watch, &forecast, why);
    for (int k = 0; !err && k < n; k++)
        repeat(&f->ranks[k], forecast.seconds);
    forecast_fini(&forecast);
    return err;
}

static err_t write_files(const struct filler *f, int n, const char *dir, int64_t *ret_bytes, struct why *why)
{
    char path[PATH_MAX];
    err_t err = recorded_path(dir, -1, path, sizeof(path)) ? file_make_dirs(path, 0755) : ERR_LIMIT;
    for (int k = 0; !err && k < n; k++) {
        struct buf text = {0};
        err = recorded_print(&f->ranks[k], &text);
        if (!err && recorded_path(dir, k, path, sizeof(path)))
            err = file_replace(path, text.data, text.len, 0644);
        *ret_bytes += (int64_t)text.len;
        buf_fini(&text);
    }
    return err ? why_set(why, err, "%s: %s", dir, err_text(err)) : OK;
}

struct parts {
    double load, forecast, sum, write;
};

static double since(int64_t *ns)
{
    const int64_t now = clock_mono_ns(), before = *ns;
    *ns = now;
    return (double)(now - before) * 1e-9;
}

static err_t make_trace(const char *dir, const char *spec, const char *path, struct parts *ret,
                        struct trace_facts *facts, struct why *why)
{
    struct profile p = {0};
    struct profile_difference most;
    int64_t at = clock_mono_ns();
    err_t err = profile_load(dir, 0, &p, why);
    ret->load = since(&at);
    err = err ? err : profile_forecast(&p, spec, why);
    ret->forecast = since(&at);
    struct rank_summary *sums = calloc((size_t)p.n + 1, sizeof(*sums));
    err = err ? err : profile_sum(&p, sums, &most);
    ret->sum = since(&at);
    err = err ? err : trace_write(&p, path, facts, why);
    ret->write = since(&at);
    free(sums);
    profile_fini(&p);
    return err;
}

static int bench_trace(const struct job_spec *job, const struct graph *g)
{
    const int n = (int)job->parallel.workers;
    struct program *programs = calloc((size_t)n, sizeof(*programs));
    struct filler f = {calloc((size_t)n, sizeof(*f.ranks)), calloc((size_t)n, sizeof(*f.first)), programs};
    struct why why = {""};
    struct parts t = {0};
    struct trace_facts facts = {0};
    struct stat st = {0};
    char dir[] = "/tmp/dtd-bench-profile-XXXXXX", path[64];
    struct buf spec = {0};
    int64_t bytes = 0;
    err_t err = plan_compile_all(job, g, MODE_TRAIN, n, programs, &why);
    err = err ? err : fill_ranks(&f, job, n, &why);
    err = err ? err : job_print(job, &spec);
    err = err ? err : buf_append(&spec, "", 1);
    if (err || !mkdtemp(dir))
        return failed(&why);
    snprintf(path, sizeof(path), "%s/trace.json.gz", dir);
    err = write_files(&f, n, dir, &bytes, &why);
    err = err ? err : make_trace(dir, (const char *)spec.data, path, &t, &facts, &why);
    stat(path, &st);
    if (file_remove_tree(dir))
        fprintf(stderr, "%s remains\n", dir);
    if (err)
        return failed(&why);
    printf("{\"bench\": \"profile_trace\", \"ranks\": %d, \"steps\": %d, \"slices\": %lld, \"messages\": %lld, "
           "\"file_bytes\": %lld, \"trace_bytes\": %lld, \"load_s\": %.3f, \"forecast_s\": %.3f, \"sum_s\": %.3f, "
           "\"write_s\": %.3f, \"all_s\": %.3f, \"cpu\": \"%s\", \"commit\": \"%s\"}\n",
           n, STEPS, (long long)facts.slices, (long long)facts.flows, (long long)bytes, (long long)st.st_size, t.load,
           t.forecast, t.sum, t.write, t.load + t.forecast + t.sum + t.write, peak_cpu_name(), peak_commit());
    return 0;
}

int main(int argc, char **argv)
{
    const char *sets[LAYOUT + MAX_SETS];
    int n_sets = 0;
    struct job_spec job;
    struct graph g;
    struct why why = {""};
    const bool trace = argc > 1 && strcmp(argv[1], "trace") == 0;
    if (argc < 2 || (!trace && strcmp(argv[1], "record") != 0)) {
        fprintf(stderr, "usage: bench_profile record|trace [--set KEY=VALUE]...\n");
        return 2;
    }
    for (int i = 0; trace && i < LAYOUT; i++)
        sets[n_sets++] = layout[i];
    for (int i = 2; i + 1 < argc && n_sets < LAYOUT + MAX_SETS; i += 2)
        sets[n_sets++] = argv[i + 1];
    if (job_parse("bench", yaml, strlen(yaml), sets, n_sets, &job, &why) ||
        graph_build(&job.model, job.train.seq, &g, &why))
        return failed(&why);
    return trace ? bench_trace(&job, &g) : bench_record(&job, &g);
}
