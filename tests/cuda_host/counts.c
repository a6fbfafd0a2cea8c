/* Counts, injected failures, and the report at the end of the process. */
#include "tests/cuda_host/counts.h"

#include "tests/cuda_host/queue.h"

#include <stdlib.h>
#include <string.h>

void cuda_host_counts_read(struct cuda_host_counts *ret)
{
    host_lock();
    *ret = host_counts;
    host_unlock();
}

void cuda_host_counts_print(const struct cuda_host_counts *c, FILE *to)
{
#define X(name, text) \
    if (c->name)      \
        fprintf(to, "%lld %s\n", (long long)c->name, text);
    CUDA_HOST_COUNTS(X)
#undef X
}

static struct {
    char what[16];
    int64_t left;
} injection;

void cuda_host_inject(const char *what, int64_t k)
{
    host_lock();
    snprintf(injection.what, sizeof(injection.what), "%s", what);
    injection.left = k;
    host_sticky = cudaSuccess;
    host_unlock();
}

void cuda_host_break(int code)
{
    host_lock();
    host_sticky = (cudaError_t)code;
    host_unlock();
}

bool host_injected(const char *what)
{
    return injection.left && strcmp(injection.what, what) == 0 && --injection.left == 0;
}

#define PLANTS 16

static struct {
    char what[32];
    double ms;
} plants[PLANTS];

void cuda_host_plant_ms(const char *what, double ms)
{
    int i = 0;
    host_lock();
    while (i < PLANTS - 1 && plants[i].what[0] && strcmp(plants[i].what, what) != 0)
        i++;
    snprintf(plants[i].what, sizeof(plants[i].what), "%s", what);
    plants[i].ms = ms;
    host_unlock();
}

double host_planted_ms(const char *what)
{
    for (int i = 0; i < PLANTS; i++)
        if (strcmp(plants[i].what, what) == 0)
            return plants[i].ms;
    return 0;
}

__attribute__((constructor)) static void read_environment(void)
{
    const char *text = getenv("DTD_CUDA_HOST_FAIL"), *colon = text ? strchr(text, ':') : NULL;
    if (!colon)
        return;
    snprintf(injection.what, sizeof(injection.what), "%.*s", (int)(colon - text), text);
    injection.left = strtoll(colon + 1, NULL, 10);
}

/* With DTD_CUDA_HOST_STRICT, a process that exits normally must have freed everything. */
__attribute__((destructor)) static void report_leaks(void)
{
    const struct cuda_host_counts *c = &host_counts;
    int64_t live = c->live_allocations + c->live_streams + c->live_events + c->live_handles + c->live_comms;
    if (!live || !getenv("DTD_CUDA_HOST_STRICT"))
        return;
    fprintf(stderr, "cuda-host: the process exits without freeing:\n");
    cuda_host_counts_print(c, stderr);
    abort();
}
