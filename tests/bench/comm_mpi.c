/* The cases of comm.c over MPI, compiled with mpicc by tests/bench/comm. It prints lines "name ranks bytes seconds"
 * with the median time between two barriers on rank 0. Ranks are bound to processors in turn, as in comm.c. */
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define MAX_TURNS 41
#define BUDGET_S 0.25

static float *src, *dst;
static int rank, ranks;

static void all_reduce(int n)
{
    MPI_Allreduce(MPI_IN_PLACE, src, n, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void all_gather(int n)
{
    MPI_Allgather(src, n / ranks, MPI_FLOAT, dst, n / ranks, MPI_FLOAT, MPI_COMM_WORLD);
}

static void reduce_scatter(int n)
{
    MPI_Reduce_scatter_block(src, dst, n / ranks, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}

static void broadcast(int n)
{
    MPI_Bcast(src, n, MPI_FLOAT, 0, MPI_COMM_WORLD);
}

static void all_to_all(int n)
{
    MPI_Alltoall(src, n / ranks, MPI_FLOAT, dst, n / ranks, MPI_FLOAT, MPI_COMM_WORLD);
}

static void sendrecv(int n)
{
    MPI_Sendrecv(src, n, MPI_FLOAT, (rank + 1) % ranks, 0, dst, n, MPI_FLOAT, (rank + ranks - 1) % ranks, 0,
                 MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

static const struct {
    const char *name;
    void (*run)(int n);
} cases[] = {
    {"all_reduce", all_reduce}, {"all_gather", all_gather}, {"reduce_scatter", reduce_scatter},
    {"broadcast", broadcast},   {"all_to_all", all_to_all}, {"sendrecv", sendrecv},
};

static double time_one(int i, int n)
{
    MPI_Barrier(MPI_COMM_WORLD);
    double start = MPI_Wtime();
    cases[i].run(n);
    MPI_Barrier(MPI_COMM_WORLD);
    return MPI_Wtime() - start;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure_case(int i, int bytes)
{
    double seconds[MAX_TURNS];
    int turns = (int)(BUDGET_S / time_one(i, bytes / 4));
    turns = turns < 3 ? 3 : turns > MAX_TURNS ? MAX_TURNS : turns;
    MPI_Bcast(&turns, 1, MPI_INT, 0, MPI_COMM_WORLD);
    for (int t = 0; t < turns; t++)
        seconds[t] = time_one(i, bytes / 4);
    qsort(seconds, (size_t)turns, sizeof(seconds[0]), by_value);
    if (rank == 0)
        printf("%s %d %d %.9f\n", cases[i].name, ranks, bytes, seconds[turns / 2]);
}

static void bind_rank(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET((size_t)rank % (size_t)sysconf(_SC_NPROCESSORS_ONLN), &set);
    (void)sched_setaffinity(0, sizeof(set), &set);
}

int main(int argc, char **argv)
{
    static const int sizes[] = {64 << 10, 1 << 20, 64 << 20};
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    bind_rank();
    src = calloc(1, 64 << 20);
    dst = calloc(1, 64 << 20);
    if (!src || !dst)
        MPI_Abort(MPI_COMM_WORLD, 1);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (size_t k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++)
            measure_case((int)i, sizes[k]);
    free(src);
    free(dst);
    MPI_Finalize();
    return 0;
}
