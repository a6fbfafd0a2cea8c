/* The limit that the machine itself sets to two workers: every processor runs the same loop on memory of its own, first
 * alone and then at the same time as the others. Nothing is shared but the machine, so a ratio below 1 has its cause in
 * the clock rate, in two hardware threads of one core, in a shared cache, in memory, or in the host of a virtual
 * machine.
 *
 *   bench_cores [--rounds N]
 *
 * Each round runs the loop alone on each processor in turn and then on all of them. Prints one JSON line per loop: the
 * median rate of a processor alone, that while all run, and the median of their ratios. The time is that of the thread,
 * so other programs count only by what they do to caches, memory and clock. `fma` uses registers only, the products
 * are dtd's own (the last one is that of a layer of GPT-2 124M with 2,048 tokens), and `memory` streams through far
 * more than the caches hold. */
#include "common/base/cpus.h"
#include "kernels/kernels.h"
#include "tests/bench/median.h"
#include "tests/bench/peak.h"

#include <getopt.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MAX_CORES 256
#define MAX_ROUNDS 51
#define LOOP_S 0.05 /* a loop is repeated for this long: many times the time in which the processes start */
#define MEMORY_FLOATS (INT64_C(48) << 20)

struct core {
    struct kern_stream *stream;
    const struct kern_ops *kernels;
    float *a, *b, *c; /* operands of the largest product */
    float *memory;    /* MEMORY_FLOATS */
};

/* ---- the loops: each returns its work in GFLOP or GB ---- */

static double run_fma(struct core *x)
{
    (void)x;
    return peak_fma_loop();
}

static double multiply(struct core *x, int64_t m, int64_t n, int64_t k)
{
    const struct kern_gemm g = {
        .m = m, .n = n, .k = k, .lda = k, .ldb = k, .ldc = n, .trans_b = true, .a = x->a, .b = x->b, .c = x->c};
    if (x->kernels->gemm(x->stream, &g))
        exit(1);
    return 2e-9 * (double)m * (double)n * (double)k;
}

static double run_small(struct core *x)
{
    return multiply(x, 192, 192, 192);
}

static double run_layer(struct core *x)
{
    return multiply(x, 2048, 3072, 768);
}

static double run_memory(struct core *x)
{
    for (int64_t j = 0; j < MEMORY_FLOATS; j++)
        x->memory[j] = x->memory[j] * 0.5f + 1;
    return 2e-9 * (double)MEMORY_FLOATS * sizeof(float);
}

static const struct {
    const char *name, *unit;
    double (*run)(struct core *x);
} loops[] = {
    {"fma", "GFLOP/s", run_fma},
    {"product 192 x 192 x 192", "GFLOP/s", run_small},
    {"product 2048 x 3072 x 768", "GFLOP/s", run_layer},
    {"memory", "GB/s", run_memory},
};
#define N_LOOPS ((int)(sizeof(loops) / sizeof(loops[0])))

/* ---- measuring ---- */

/* Shared by all processes. */
struct shared {
    _Atomic int arrived, turn;
    double alone[N_LOOPS][MAX_ROUNDS][MAX_CORES], together[N_LOOPS][MAX_ROUNDS][MAX_CORES];
};

/* Sleeps instead of polling, so that a waiting process does not slow down the one that is measured alone. */
static void wait_all(struct shared *sh, int n)
{
    const int turn = atomic_load(&sh->turn);
    if (atomic_fetch_add(&sh->arrived, 1) + 1 == n) {
        atomic_store(&sh->arrived, 0);
        atomic_store(&sh->turn, turn + 1);
    }
    while (atomic_load(&sh->turn) == turn)
        usleep(200);
}

static double seconds_of(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double rate_of(struct core *x, int loop)
{
    double work = 0, start = seconds_of(CLOCK_THREAD_CPUTIME_ID), end = seconds_of(CLOCK_MONOTONIC) + LOOP_S;
    do
        work += loops[loop].run(x);
    while (seconds_of(CLOCK_MONOTONIC) < end);
    return work / (seconds_of(CLOCK_THREAD_CPUTIME_ID) - start);
}

static void measure(struct core *x, struct shared *sh, int me, int n, int rounds)
{
    for (int k = 0; k < N_LOOPS; k++) {
        (void)loops[k].run(x); /* touches its memory */
        for (int r = 0; r < rounds; r++) {
            for (int i = 0; i < n; i++) {
                wait_all(sh, n);
                if (i == me)
                    sh->alone[k][r][me] = rate_of(x, k);
            }
            wait_all(sh, n);
            sh->together[k][r][me] = rate_of(x, k);
        }
    }
}

static int run_core(struct shared *sh, int cpu, int me, int n, int rounds)
{
    struct core x = {.kernels = kern_find("cpu", DT_F32)};
    struct dev *dev;
    cpu_set_t one;
    const size_t largest = (size_t)2048 * 3072 * sizeof(float);
    CPU_ZERO(&one);
    CPU_SET((size_t)cpu, &one);
    if (sched_setaffinity(0, sizeof(one), &one) || dev_open("cpu", 0, &dev, NULL) ||
        dev_stream_new(dev, 1, false, &x.stream, NULL))
        return 1;
    x.a = calloc(1, largest);
    x.b = calloc(1, largest);
    x.c = calloc(1, largest);
    x.memory = calloc((size_t)MEMORY_FLOATS, sizeof(float));
    if (!x.a || !x.b || !x.c || !x.memory)
        return 1;
    for (size_t i = 0; i < largest / sizeof(float); i++)
        x.a[i] = x.b[i] = 1.0f + (float)(i % 251) / 256; /* zeros draw less power */
    measure(&x, sh, me, n, rounds);
    return 0;
}

static void print_loop(const struct shared *sh, int k, int n, int rounds)
{
    static double alone[MAX_ROUNDS * MAX_CORES], together[MAX_ROUNDS * MAX_CORES], ratio[MAX_ROUNDS * MAX_CORES];
    int at = 0;
    for (int r = 0; r < rounds; r++)
        for (int i = 0; i < n; i++, at++) {
            alone[at] = sh->alone[k][r][i];
            together[at] = sh->together[k][r][i];
            ratio[at] = together[at] / alone[at];
        }
    printf("{\"bench\": \"cores\", \"loop\": \"%s\", \"cpus\": %d, \"rounds\": %d, \"unit\": \"%s\", \"alone\": %.1f, "
           "\"together\": %.1f, \"ratio\": %.3f, \"on\": \"%s\", \"commit\": \"%s\"}\n",
           loops[k].name, n, rounds, loops[k].unit, median_of_all(alone, (size_t)at),
           median_of_all(together, (size_t)at), median_of_all(ratio, (size_t)at), peak_cpu_name(), peak_commit());
}

static int run_bench(int rounds)
{
    uint8_t usable[MAX_CORES / 8];
    struct shared *sh = mmap(NULL, sizeof(*sh), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    int n = cpus_usable(usable, MAX_CORES), failed = 0, me = 0;
    if (sh == MAP_FAILED || n < 1 || n > MAX_CORES)
        return 1;
    for (int c = 0; c < MAX_CORES && me < n; c++)
        if (cpus_has(usable, c) && fork() == 0)
            _exit(run_core(sh, c, me, n, rounds));
        else
            me += cpus_has(usable, c);
    for (int status; wait(&status) > 0;)
        failed += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    for (int k = 0; !failed && k < N_LOOPS; k++)
        print_loop(sh, k, n, rounds);
    return failed != 0;
}

int main(int argc, char **argv)
{
    static const struct option longs[] = {{"rounds", 1, NULL, 'r'}, {0}};
    int c, rounds = 11;
    while ((c = getopt_long(argc, argv, "", longs, NULL)) != -1)
        rounds = c == 'r' ? atoi(optarg) : 0;
    if (rounds < 1 || rounds > MAX_ROUNDS) {
        fprintf(stderr, "usage: bench_cores [--rounds N (1 to %d)]\n", MAX_ROUNDS);
        return 2;
    }
    return run_bench(rounds);
}
