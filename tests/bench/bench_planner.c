/* bench_planner TABLE JOB STEPS: how near the forecast of a job from a table of `dtctl plan --calibrate` is to its
 * steps, on a machine that need not be idle. Prints a JSON line. tests/bench/planner calls it for many layouts.
 *
 * The ranks run the job's programs by the engine, over a comm of shared memory, and record the processor time of every
 * operation, which other programs on the same cores disturb little. `replayed_s` plays the step with these times: each
 * operation of each rank takes the median over the steps, a collective the lower quartile of the time of the rank that
 * arrived last; ranks wait for each other as in the forecast. So it is the step's time on an idle machine. `forecast_s`
 * plays it with the times of the table. `least_s` is the shortest step by the clock; `load` has the number of programs
 * that could run. `ops` has the time of each kind of operation of rank 0, measured and from the table.
 *
 * Memory: `planned_bytes` is the plan's size of a rank's spaces (rank 0), `used_bytes` what the engine allocates. */
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/rng.h"
#include "common/plan/compile/compile.h"
#include "common/plan/estimate/memory.h"
#include "common/plan/estimate/table.h"
#include "common/plan/models/build.h"
#include "worker/step/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MAX_WORLD 8
#define MAX_CALLS 65536 /* of a rank in a step */
#define MAX_STEPS 64

/* Shared by the ranks: by rank and call, the seconds in each step. */
struct shared {
    double least[MAX_WORLD], bytes[MAX_WORLD];
    float seconds[MAX_WORLD][MAX_CALLS][MAX_STEPS];
};

struct bench {
    struct job_spec job;
    struct graph graph;
    struct plan_table table;
    struct program programs[MAX_WORLD];
    struct recorded calls[MAX_WORLD]; /* what the programs call */
    int *first_call[MAX_WORLD];
    double *replay[MAX_WORLD]; /* by call */
    int world, steps;
    struct shared *shared;
    struct why why;
};

/* ---- input ---- */

static err_t read_file(const char *path, struct buf *ret, struct why *why)
{
    err_t err = file_read(path, TABLE_MAX_BYTES, ret);
    return err ? why_set(why, err, "%s: %s", path, err_text(err)) : OK;
}

static err_t bench_init(struct bench *b, char **argv)
{
    struct buf table = {0}, job = {0};
    err_t err = read_file(argv[1], &table, &b->why);
    err = err ? err : read_file(argv[2], &job, &b->why);
    err = err ? err : plan_table_read((const char *)table.data, table.len, argv[1], &b->table, &b->why);
    err = err ? err : job_parse(argv[2], (const char *)job.data, job.len, NULL, 0, &b->job, &b->why);
    err = err ? err : graph_build(&b->job.model, b->job.train.seq, &b->graph, &b->why);
    b->steps = atoi(argv[3]);
    b->world = (int)b->job.parallel.workers;
    if (!err && (b->world > MAX_WORLD || b->steps < 1 || b->steps > MAX_STEPS))
        err = why_set(&b->why, ERR_INVALID, "at most %d workers and 1 to %d steps", MAX_WORLD, MAX_STEPS);
    err = err ? err : plan_compile_all(&b->job, &b->graph, MODE_TRAIN, b->world, b->programs, &b->why);
    for (int r = 0; !err && r < b->world; r++)
        err = recorded_program(&b->programs[r], &b->calls[r], &b->first_call[r]);
    buf_fini(&table);
    buf_fini(&job);
    return err;
}

/* ---- a rank ---- */

static err_t any_sample(void *arg, int64_t index, int32_t *ret_ids, int32_t *ret_targets)
{
    const struct job_spec *job = arg;
    for (int64_t i = 0; i < job->train.seq; i++) {
        const uint64_t at = (uint64_t)(index * job->train.seq + i);
        ret_ids[i] = (int32_t)(rng_uniform(1, 1, at) * (double)job->model.vocab);
        ret_targets[i] = (int32_t)(rng_uniform(1, 1, at + 1) * (double)job->model.vocab);
    }
    return OK;
}

static err_t start_engine(struct bench *b, struct engine *e, int fd, int rank)
{
    struct dev *dev = NULL;
    struct comm *comm = NULL;
    err_t err = dev_open("cpu", 0, &dev, &b->why);
    const struct engine_config config = {
        .dev = dev, .job = &b->job, .graph = &b->graph, .rank = rank, .world = b->world, .threads = 1};
    err = err ? err : engine_init(e, &config, &b->why);
    const struct comm_config cc = {.backend = "shm",
                                   .fd = fd,
                                   .rank = rank,
                                   .world = b->world,
                                   .numa_node = -1,
                                   .epoch = 1,
                                   .shared_bytes = err ? 0 : engine_shared_bytes(e),
                                   .timeout_ms = 60000};
    err = err ? err : comm_open(&cc, &comm, &b->why);
    err = err ? err : engine_start(e, comm, &b->why);
    return err ? err : engine_fill_state(e, &b->why);
}

static err_t run_steps(struct bench *b, struct engine *e, int rank)
{
    const struct engine_feed feed = {.sample = any_sample, .arg = &b->job};
    struct engine_result result = {0};
    struct engine_record record = {.cap = engine_record_room(e) * b->steps, .first_call = b->first_call[rank]};
    struct engine_profile profile = {.record = &record, .processor_time = true};
    double least = 1e9;
    err_t err = engine_step(e, &feed, &result, &b->why); /* touches all memory for the first time */
    record.events = calloc((size_t)record.cap + 1, sizeof(*record.events));
    record.first = e->step + 1;
    err = err ? err : !record.events ? ERR_NOMEM : engine_profile_start(e, &profile, &b->why);
    for (int i = 0; !err && i < b->steps; i++) {
        const int64_t start = clock_mono_ns();
        err = engine_step(e, &feed, &result, &b->why);
        const double took = (double)(clock_mono_ns() - start) * 1e-9;
        least = took < least ? took : least;
    }
    for (int i = 0; i < record.n; i++) {
        const struct recorded_event *x = &record.events[i];
        b->shared->seconds[rank][x->call][x->step] = (float)((double)(x->to - x->from) * 1e-9);
    }
    b->shared->least[rank] = least;
    b->shared->bytes[rank] = (double)engine_device_bytes(e);
    return err;
}

/* The process exits here, which frees the memory of the engine. */
static int run_rank(struct bench *b, int fd, int rank)
{
    struct engine e = {0};
    err_t err = start_engine(b, &e, fd, rank);
    err = err ? err : run_steps(b, &e, rank);
    if (err)
        fprintf(stderr, "rank %d: %s\n", rank, b->why.text);
    return err ? 1 : 0;
}

static int run_ranks(struct bench *b)
{
    int failed = 0, fd = memfd_create("bench", MFD_CLOEXEC);
    for (int r = 0; r < b->world; r++)
        if (fork() == 0)
            _exit(run_rank(b, fd, r));
    for (int status; wait(&status) > 0;)
        failed += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    close(fd);
    return failed;
}

/* ---- the replay ---- */

static const struct op *op_of_call(const struct bench *b, int rank, int call)
{
    const int action = b->calls[rank].calls[call].action;
    const struct program *p = &b->programs[rank];
    return &p->ops[p->actions[action].first_op + call - b->first_call[rank][action]];
}

static int by_value(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static bool is_collective(const struct op *op)
{
    return op->group >= 0 && op->kind != OP_SEND && op->kind != OP_RECV;
}

/* Whether the call is a collective of these ranks. */
static bool is_of_group(const struct bench *b, int rank, int call, const struct group *g)
{
    const struct op *op = op_of_call(b, rank, call);
    const struct group *own = is_collective(op) ? &b->programs[rank].groups[op->group] : NULL;
    return own && own->n == g->n && own->axes == g->axes &&
           memcmp(own->ranks, g->ranks, (size_t)g->n * sizeof(*g->ranks)) == 0;
}

/* The other rank's call of the same collective: the k-th of its group. -1: there is none. */
static int same_call(const struct bench *b, int rank, int call, int other)
{
    const struct group *g = &b->programs[rank].groups[op_of_call(b, rank, call)->group];
    int k = 0;
    for (int i = 0; i < call; i++)
        k += is_of_group(b, rank, i, g);
    for (int i = 0; i < b->calls[other].n_calls; i++)
        if (is_of_group(b, other, i, g) && k-- == 0)
            return i;
    return -1;
}

static double median_of(struct bench *b, int rank, int call)
{
    float *x = b->shared->seconds[rank][call];
    qsort(x, (size_t)b->steps, sizeof(*x), by_value);
    return x[b->steps / 2];
}

static double collective_of(struct bench *b, int rank, int call)
{
    const struct group *g = &b->programs[rank].groups[op_of_call(b, rank, call)->group];
    float least[MAX_STEPS];
    for (int s = 0; s < b->steps; s++)
        least[s] = b->shared->seconds[rank][call][s];
    for (int i = 0; i < g->n; i++) {
        const int at = g->ranks[i] == rank ? -1 : same_call(b, rank, call, g->ranks[i]);
        for (int s = 0; at >= 0 && s < b->steps; s++) {
            const float other = b->shared->seconds[g->ranks[i]][at][s];
            least[s] = other < least[s] ? other : least[s];
        }
    }
    qsort(least, (size_t)b->steps, sizeof(*least), by_value);
    return least[b->steps / 4];
}

/* Collectives first, while the steps of all ranks are in order. */
static err_t make_replay(struct bench *b)
{
    for (int r = 0; r < b->world; r++) {
        b->replay[r] = calloc((size_t)b->calls[r].n_calls + 1, sizeof(double));
        if (!b->replay[r])
            return ERR_NOMEM;
        for (int c = 0; c < b->calls[r].n_calls; c++)
            if (is_collective(op_of_call(b, r, c)))
                b->replay[r][c] = collective_of(b, r, c);
    }
    for (int r = 0; r < b->world; r++)
        for (int c = 0; c < b->calls[r].n_calls; c++)
            if (!is_collective(op_of_call(b, r, c)))
                b->replay[r][c] = median_of(b, r, c);
    return OK;
}

static double replayed(void *arg, int rank, int action, const struct op *op)
{
    const struct bench *b = arg;
    const struct program *p = &b->programs[rank];
    if (op->kind == OP_SEND || op->kind == OP_RECV || op->kind == OP_PUSH || op->kind == OP_WAIT)
        return -1;
    return b->replay[rank][b->first_call[rank][action] + (int)(op - &p->ops[p->actions[action].first_op])];
}

/* Messages take the same assumed link in both. */
static const struct plan_rates rates = {
    .flops = 100e9, .memory = 20e9, .link = 5e9, .latency = 2e-6, .one_thread = true};

static double forecast_with(struct bench *b, const struct plan_rates *with)
{
    struct forecast f;
    if (plan_forecast(b->programs, b->world, with, &f, &b->why)) {
        fprintf(stderr, "%s\n", b->why.text);
        exit(1);
    }
    const double seconds = f.seconds;
    forecast_fini(&f);
    return seconds;
}

static void print_kinds(const struct bench *b)
{
    static double measured[OP_KIND_COUNT], table[OP_KIND_COUNT];
    const char *comma = "";
    for (int c = 0; c < b->calls[0].n_calls; c++) {
        const struct op *op = op_of_call(b, 0, c);
        const int micro = b->programs[0].actions[b->calls[0].calls[c].action].micro;
        const int64_t samples = micro >= 0 ? b->programs[0].micros[micro].samples : b->programs[0].max_samples;
        const double seconds = plan_table_seconds(&b->table, &b->programs[0], op, samples, TABLE_MEDIAN);
        measured[op->kind] += b->replay[0][c];
        table[op->kind] += seconds < 0 ? 0 : seconds;
    }
    printf("\"ops\": {");
    for (int k = 0; k < OP_KIND_COUNT; k++)
        if (measured[k] > 0) {
            printf("%s\"%s\": [%.6f, %.6f]", comma, op_name((enum op_kind)k), measured[k], table[k]);
            comma = ", ";
        }
    printf("}");
}

static void print_result(struct bench *b)
{
    struct plan_rates with = rates;
    struct plan_memory memory[MAX_WORLD];
    double load[1] = {0}, least = 0;
    int64_t spaces = 0;
    getloadavg(load, 1);
    for (int r = 0; r < b->world; r++)
        least = b->shared->least[r] > least ? b->shared->least[r] : least;
    if (plan_memory_of_ranks(&b->job, &b->graph, memory, &b->why))
        exit(1);
    for (int i = 0; i < SPACE_CACHE; i++)
        spaces += memory[0].bytes[i];
    with.table = &b->table;
    const double forecast = forecast_with(b, &with);
    with.figure = TABLE_LOW;
    const double low = forecast_with(b, &with);
    with.figure = TABLE_HIGH;
    const double high = forecast_with(b, &with);
    with = rates;
    with.seconds = replayed;
    with.arg = b;
    printf("{\"bench\": \"planner\", \"replayed_s\": %.6f, \"forecast_s\": %.6f, \"low_s\": %.6f, \"high_s\": %.6f, "
           "\"least_s\": %.6f, \"load\": %.2f, \"planned_bytes\": %lld, \"used_bytes\": %.0f, ",
           forecast_with(b, &with), forecast, low, high, least, load[0], (long long)spaces, b->shared->bytes[0]);
    print_kinds(b);
    puts("}");
}

int main(int argc, char **argv)
{
    static struct bench b;
    if (argc != 4)
        return 2;
    b.shared = mmap(NULL, sizeof(*b.shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (b.shared == MAP_FAILED)
        return 1;
    err_t err = bench_init(&b, argv);
    if (!err && run_ranks(&b))
        return 1;
    err = err ? err : make_replay(&b);
    if (err)
        fprintf(stderr, "%s\n", b.why.text[0] ? b.why.text : err_text(err));
    else
        print_result(&b);
    return err ? 1 : 0;
}
