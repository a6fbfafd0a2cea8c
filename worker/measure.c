/* Runs the parts of a measurement and prints what they found.
 *
 * Each part runs in processes of its own, one per core, like the workers of a job: threads would share an allocator and
 * could not open a comm. They write their figures into shared memory, and the median over processes counts.
 *
 * Other programs on the cores: processes that only compute take as much time by the clock as of their core if they are
 * alone, so the difference is what other programs had. A measurement that is late for this reason repeats less often,
 * so that it ends in time on most machines; the client reports both. */
#include "worker/measure.h"

#include "common/base/clock.h"
#include "common/base/cpus.h"
#include "worker/measure_part.h"

#include <errno.h>
#include <jansson.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static const char *const figure_names[FIGURES] = {[FIGURE_PEAK_F32] = "peak_float32",
                                                  [FIGURE_PRODUCT_F32] = "product_float32",
                                                  [FIGURE_PRODUCT_F64] = "product_float64",
                                                  [FIGURE_PRODUCT_BF16] = "product_bfloat16",
                                                  [FIGURE_MEMORY] = "memory",
                                                  [FIGURE_COPY] = "copy",
                                                  [FIGURE_OPERATION] = "operation_s",
                                                  [FIGURE_LINK] = "link",
                                                  [FIGURE_LATENCY] = "collective_s",
                                                  [FIGURE_STORAGE] = "storage",
                                                  [FIGURE_STORAGE_READ] = "storage_read",
                                                  [FIGURE_STORAGE_CACHED] = "storage_cached"};

static err_t storage(struct measure *m)
{
    return measure_storage(m, &m->figures[FIGURE_STORAGE], &m->figures[FIGURE_STORAGE_READ],
                           &m->figures[FIGURE_STORAGE_CACHED]);
}

/* ---- the parts ---- */

/* `seconds`: about how long all turns take on two idle cores of a server, for the progress and to see what is late. */
static const struct measure_part {
    const char *name;
    err_t (*run)(struct measure *m);
    enum { ONE, ALL, GROUP } processes; /* GROUP: all, and at least two */
    int first, last;                    /* figures; none if first > last */
    double seconds;
    bool computes;    /* no process waits for another one or for a disk */
    const int *turns; /* NULL: one */
    int most;         /* processes of one comm; more of them form several; 0: all form one */
} parts[] = {
    {"peak of a core", measure_rate_peak, ONE, FIGURE_PEAK_F32, FIGURE_PEAK_F32, 0.5, true, NULL, 0},
    {"products of layers", measure_rate_products, ALL, FIGURE_PRODUCT_F32, FIGURE_PRODUCT_BF16, 2, true, NULL, 0},
    {"products in float64", measure_rate_products_f64, ALL, FIGURE_PRODUCT_F64, FIGURE_PRODUCT_F64, 1.5, true, NULL, 0},
    {"memory", measure_rate_memory, ALL, FIGURE_MEMORY, FIGURE_COPY, 0.5, true, NULL, 0},
    {"operations", measure_rate_operations, ONE, FIGURE_OPERATION, FIGURE_OPERATION, 0.3, true, NULL, 0},
    {"collectives", measure_rate_links, GROUP, FIGURE_LINK, FIGURE_LATENCY, 3.5, false, NULL, 0},
    {"storage", storage, ONE, FIGURE_STORAGE, FIGURE_STORAGE_CACHED, 2, false, NULL, 0},
    {"steps that are held out", measure_held, GROUP, 0, -1, 9, false, &measure_held_turns, MEASURE_SAMPLED},
    {"products by shape", measure_products, ALL, 0, -1, 28, true, &measure_types, 0},
    {"attention and experts", measure_kernels, ALL, 0, -1, 13, true, &measure_types, 0},
    {"steps of small models", measure_steps, GROUP, 0, -1, 17, false, &measure_steps_turns, 0},
};
#define N_PARTS ((int)(sizeof(parts) / sizeof(parts[0])))
#define N_RATES 8 /* the first parts: all but the table */

/* How much longer than `seconds` a measurement may take before it repeats less often, and how much longer still at its
 * begin, when a few seconds say little. */
#define LATE 1.25
#define LATE_FROM_S 4
#define LIMIT_S 115 /* so that all of it takes less than two minutes */
#define POLL_NS 5000000
#define LEAST_LAYOUTS 3 /* the fewest by which forecasts can be judged (client/planner/judge.c) */

static int turns_of(const struct measure_part *part)
{
    return part->turns ? *part->turns : 1;
}

/* The memory that the processes of a part share with their parent. */
struct measure_shared {
    double figures[MEASURE_PROCESSES][FIGURES];
    double cpu_s[MEASURE_PROCESSES], wall_s[MEASURE_PROCESSES]; /* that the part took */
    struct why why[MEASURE_PROCESSES];
    err_t err[MEASURE_PROCESSES];
    struct measure_samples samples[MEASURE_SAMPLED];
    struct measure_held held[MEASURE_SAMPLED];
};

/* One measurement, in the parent. */
struct measure_run {
    struct measure_shared *shared;
    const char *folder;
    int cores, n_parts;
    double figures[FIGURES];
    struct measure_all all;
    struct measure_layout *layouts; /* measure_held_turns of them */
    int n_layouts;
    double cpu_s, wall_s; /* of processes that only compute */
    int64_t began_ns;
    int turns, hurried; /* hurried: how many of them repeated less often */
    int left_out;       /* turns for which there was no time */
};

/* A turn of a part. */
struct measure_turn {
    const struct measure_part *part;
    int turn, world, per;       /* per: processes of one comm */
    bool hurried, needed;       /* needed: it is measured, however late it is */
    int fds[MEASURE_PROCESSES]; /* the segment of each comm */
};

/* ---- processes ---- */

static double seconds_of(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int run_process(const struct measure_run *run, const struct measure_turn *t, int process)
{
    struct measure_shared *shared = run->shared;
    const bool sampled = process < MEASURE_SAMPLED;
    struct measure m = {.rank = process % t->per,
                        .world = t->per,
                        .fd = t->fds[process / t->per],
                        .turn = t->turn,
                        .hurried = t->hurried,
                        .folder = run->folder,
                        .figures = shared->figures[process],
                        .samples = sampled ? &shared->samples[process] : NULL,
                        .held = sampled ? &shared->held[process] : NULL,
                        .why = &shared->why[process]};
    err_t err = dev_open("cpu", 0, &m.dev, m.why);
    err = err ? err : dev_stream_new(m.dev, 1, false, &m.stream, m.why);
    const double wall_s = seconds_of(CLOCK_MONOTONIC), cpu_s = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    err = err ? err : t->part->run(&m);
    shared->cpu_s[process] = seconds_of(CLOCK_PROCESS_CPUTIME_ID) - cpu_s;
    shared->wall_s[process] = seconds_of(CLOCK_MONOTONIC) - wall_s;
    dev_stream_free(m.stream);
    dev_close(m.dev);
    shared->err[process] = err;
    return err ? 1 : 0;
}

static pid_t start_process(const struct measure_run *run, const struct measure_turn *t, int process)
{
    run->shared->err[process] = ERR_INTERNAL; /* until it has reported another result */
    if (process < MEASURE_SAMPLED)
        run->shared->samples[process].n = 0;
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        _exit(run_process(run, t, process));
    }
    return pid;
}

static err_t open_segments(struct measure_turn *t)
{
    for (int i = 0; i < t->world / t->per; i++) {
        t->fds[i] = memfd_create("dtd-measure", MFD_CLOEXEC);
        if (t->fds[i] < 0)
            return err_from_errno(errno);
    }
    return OK;
}

static void close_segments(const struct measure_turn *t)
{
    for (int i = 0; i < t->world / t->per; i++)
        if (t->fds[i] > 0)
            close(t->fds[i]);
}

static err_t first_error(const struct measure_run *run, const struct measure_turn *t, struct why *why)
{
    const struct measure_shared *shared = run->shared;
    for (int i = 0; i < t->world; i++)
        if (shared->err[i])
            return why_set(why, shared->err[i], "measuring %s: %s", t->part->name,
                           shared->why[i].text[0] ? shared->why[i].text : err_text(shared->err[i]));
    return OK;
}

static bool is_over(const struct measure_run *run, const struct measure_turn *t)
{
    return !t->needed && (double)(clock_mono_ns() - run->began_ns) * 1e-9 > LIMIT_S;
}

/* Returns false if the time was over before the process was; then it has been ended. */
static bool wait_process(const struct measure_run *run, const struct measure_turn *t, pid_t pid)
{
    const struct timespec pause = {.tv_nsec = POLL_NS};
    pid_t ended;
    while ((ended = waitpid(pid, NULL, WNOHANG)) == 0 && !is_over(run, t))
        nanosleep(&pause, NULL);
    if (ended)
        return true;
    kill(pid, SIGKILL);
    while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
        ;
    return false;
}

/* ERR_TIMEOUT: the time was over. */
static err_t run_processes(const struct measure_run *run, struct measure_turn *t, struct why *why)
{
    pid_t pids[MEASURE_PROCESSES];
    int started = 0, ended = 0;
    err_t err = open_segments(t);
    while (!err && started < t->world) {
        pids[started] = start_process(run, t, started);
        if (pids[started] < 0)
            err = err_from_errno(errno);
        else
            started++;
    }
    for (int i = 0; i < started; i++)
        ended += wait_process(run, t, pids[i]);
    close_segments(t);
    if (!err && ended < started)
        return ERR_TIMEOUT;
    return err ? err : first_error(run, t, why);
}

/* ---- what they found ---- */

static void take_medians(const struct measure_turn *t, struct measure_run *run)
{
    double x[MEASURE_PROCESSES];
    for (int f = t->part->first; f <= t->part->last; f++) {
        for (int i = 0; i < t->world; i++)
            x[i] = run->shared->figures[i][f];
        run->figures[f] = measure_median(x, t->world);
    }
}

static void take_times(const struct measure_turn *t, struct measure_run *run)
{
    for (int i = 0; t->part->computes && i < t->world; i++) {
        run->cpu_s += run->shared->cpu_s[i];
        run->wall_s += run->shared->wall_s[i];
    }
}

static err_t take_layout(const struct measure_turn *t, struct measure_run *run, struct why *why)
{
    const struct plan_rates rates = {.flops = run->figures[FIGURE_PRODUCT_F32],
                                     .memory = run->figures[FIGURE_MEMORY],
                                     .link = run->figures[FIGURE_LINK],
                                     .latency = run->figures[FIGURE_LATENCY],
                                     .one_thread = true};
    if (t->part->run != measure_held)
        return OK;
    err_t err = measure_held_replay(t->turn, t->per, run->shared->held, &rates, &run->layouts[run->n_layouts], why);
    run->n_layouts += !err;
    return err;
}

static err_t take_samples(const struct measure_turn *t, struct measure_run *run)
{
    return measure_collect(&run->all, run->shared->samples, t->world < MEASURE_SAMPLED ? t->world : MEASURE_SAMPLED);
}

/* ---- all parts ---- */

/* The part of the time in which other programs had the cores. */
static double busy_part(const struct measure_run *run)
{
    const double part = run->wall_s > 0 ? 1 - run->cpu_s / run->wall_s : 0;
    return part > 0 ? part : 0;
}

/* Seconds that the turns before this one take on an idle machine. */
static double seconds_before(int part, int turn)
{
    double sum = 0;
    for (int i = 0; i < part; i++)
        sum += parts[i].seconds;
    return part < N_PARTS ? sum + parts[part].seconds * turn / turns_of(&parts[part]) : sum;
}

/* The client shows what is printed, and a child must not print it again. */
static void print_progress(const struct measure_run *run, int part, int turn)
{
    printf("{\"doing\": \"%s\", \"share\": %.4f, \"limit_s\": %d}\n", parts[part].name,
           seconds_before(part, turn) / seconds_before(run->n_parts, 0), LIMIT_S);
    fflush(stdout);
}

static bool is_late(const struct measure_run *run, int part, int turn)
{
    return (double)(clock_mono_ns() - run->began_ns) * 1e-9 > LATE_FROM_S + LATE * seconds_before(part, turn);
}

/* Rates must be there, and some of the steps that are held out, however long that takes. */
static bool is_needed(const struct measure_run *run, const struct measure_part *part)
{
    return part->first <= part->last || run->n_layouts < LEAST_LAYOUTS;
}

static err_t run_turn(struct measure_run *run, int part, int turn, struct why *why)
{
    struct measure_turn t = {.part = &parts[part], .turn = turn, .hurried = is_late(run, part, turn)};
    const int all = parts[part].processes == ONE                       ? 1
                    : parts[part].processes == GROUP && run->cores < 2 ? 2
                                                                       : run->cores;
    t.per = parts[part].most && all > parts[part].most ? parts[part].most : all;
    t.world = all / t.per * t.per;
    run->turns++;
    t.needed = is_needed(run, t.part);
    if (!is_over(run, &t))
        print_progress(run, part, turn);
    err_t err = is_over(run, &t) ? ERR_TIMEOUT : run_processes(run, &t, why);
    if (err == ERR_TIMEOUT)
        run->left_out++;
    if (err)
        return err == ERR_TIMEOUT ? OK : err;
    run->hurried += t.hurried;
    take_medians(&t, run);
    take_times(&t, run);
    err = take_layout(&t, run, why);
    return err ? err : take_samples(&t, run);
}

static err_t run_parts(struct measure_run *run, struct why *why)
{
    err_t err = OK;
    run->began_ns = clock_mono_ns();
    for (int i = 0; !err && i < run->n_parts; i++)
        for (int turn = 0; !err && turn < turns_of(&parts[i]); turn++)
            err = run_turn(run, i, turn, why);
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

static json_t *layouts_json(const struct measure_run *run)
{
    json_t *list = json_array();
    for (int i = 0; i < run->n_layouts; i++) {
        const struct measure_layout *l = &run->layouts[i];
        json_array_append_new(list, json_pack("{s:s, s:f, s:f}", "job", (const char *)l->yaml.data, "replay_s",
                                              l->replay_s, "clock_s", l->clock_s));
    }
    return list;
}

static json_t *run_json(struct measure_run *run, const struct dev_facts *facts)
{
    char folder[PATH_MAX];
    json_t *list = json_object();
    for (int f = 0; f < FIGURES; f++)
        json_object_set_new(list, figure_names[f], json_real(run->figures[f]));
    return json_pack("{s:s, s:s, s:i, s:I, s:s, s:f, s:i, s:i, s:i, s:f, s:o, s:o, s:o*}", "version", DTD_VERSION,
                     "cpu", facts->model, "cores", run->cores, "memory_bytes",
                     (json_int_t)sysconf(_SC_PHYS_PAGES) * (json_int_t)sysconf(_SC_PAGESIZE), "folder",
                     realpath(run->folder, folder) ? folder : run->folder, "busy", busy_part(run), "turns", run->turns,
                     "hurried", run->hurried, "left_out", run->left_out, "seconds",
                     (double)(clock_mono_ns() - run->began_ns) * 1e-9, "figures", list, "layouts", layouts_json(run),
                     "table", run->all.n ? table_json(&run->all) : NULL);
}

static err_t print_run(struct measure_run *run, struct why *why)
{
    struct dev_facts facts = {0};
    struct dev *dev = NULL;
    err_t err = dev_open("cpu", 0, &dev, why);
    err = err ? err : dev_facts(dev, &facts, why);
    dev_close(dev);
    if (err)
        return err;
    json_t *root = run_json(run, &facts);
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

static void run_fini(struct measure_run *run)
{
    for (int i = 0; i < run->n_layouts; i++)
        buf_fini(&run->layouts[i].yaml);
    free(run->layouts);
    measure_all_fini(&run->all);
    if (run->shared != MAP_FAILED)
        munmap(run->shared, sizeof(*run->shared));
}

err_t measure_print(bool brief, const char *folder, struct why *why)
{
    const int usable = cpus_usable(NULL, 0);
    err_t err = refuse_gpus(why);
    if (err)
        return err;
    struct measure_run run = {
        .shared = mmap(NULL, sizeof(*run.shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0),
        .folder = folder,
        .cores = usable < 1                   ? 1
                 : usable < MEASURE_PROCESSES ? usable
                                              : MEASURE_PROCESSES,
        .n_parts = brief ? N_RATES : N_PARTS,
        .layouts = calloc((size_t)measure_held_turns, sizeof(*run.layouts))};
    if (run.shared == MAP_FAILED || !run.layouts)
        err = why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    err = err ? err : run_parts(&run, why);
    err = err ? err : print_run(&run, why);
    run_fini(&run);
    return err;
}
