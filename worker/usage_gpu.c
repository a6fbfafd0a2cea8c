/* See usage_gpu.h. */
#include "worker/usage_gpu.h"

#include "common/base/log.h"
#include "worker/nvml.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct usage_gpu {
    char uuid[NVML_UUID_BYTES];
    pthread_t thread;
    pthread_mutex_t mu;
    pthread_cond_t ends;
    bool ending;
    struct nvml_use newest;
};

/* False: the thread is to end. */
static bool wait_a_window(struct usage_gpu *g)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += USAGE_WINDOW_MS / 1000;
    int code = 0;
    while (!g->ending && code != ETIMEDOUT)
        code = pthread_cond_timedwait(&g->ends, &g->mu, &until);
    return !g->ending;
}

static void *usage_gpu_run(void *arg)
{
    struct usage_gpu *g = arg;
    struct nvml *nvml = NULL;
    struct nvml_use use;
    struct why why = {""};
    if (nvml_open(&nvml, &why)) {
        log_info("usage of the GPU is not measured why=\"%s\"", why.text);
        return NULL;
    }
    pthread_mutex_lock(&g->mu);
    do {
        pthread_mutex_unlock(&g->mu);
        nvml_read_use(nvml, g->uuid, &use);
        pthread_mutex_lock(&g->mu);
        g->newest = use;
    } while (wait_a_window(g));
    pthread_mutex_unlock(&g->mu);
    nvml_close(nvml);
    return NULL;
}

struct usage_gpu *usage_gpu_start(const char *uuid)
{
    struct usage_gpu *g = calloc(1, sizeof(*g));
    if (!g)
        return NULL;
    strncpy(g->uuid, uuid, sizeof(g->uuid) - 1);
    g->newest = (struct nvml_use){NVML_UNKNOWN, NVML_UNKNOWN, NVML_UNKNOWN, NVML_UNKNOWN};
    pthread_mutex_init(&g->mu, NULL);
    pthread_cond_init(&g->ends, NULL);
    if (pthread_create(&g->thread, NULL, usage_gpu_run, g) == 0)
        return g;
    log_warn("usage of the GPU is not measured why=\"no thread\"");
    free(g);
    return NULL;
}

void usage_gpu_stop(struct usage_gpu *g)
{
    if (!g)
        return;
    pthread_mutex_lock(&g->mu);
    g->ending = true;
    pthread_cond_signal(&g->ends);
    pthread_mutex_unlock(&g->mu);
    pthread_join(g->thread, NULL);
    pthread_cond_destroy(&g->ends);
    pthread_mutex_destroy(&g->mu);
    free(g);
}

static double known(int64_t x, double unit)
{
    return x == NVML_UNKNOWN ? NAN : (double)x * unit;
}

void usage_gpu_fill(struct usage_gpu *g, struct usage *ret)
{
    if (!g)
        return;
    pthread_mutex_lock(&g->mu);
    const struct nvml_use use = g->newest;
    pthread_mutex_unlock(&g->mu);
    ret->gpu_util = known(use.busy_percent, 0.01);
    ret->gpu_bytes = known(use.memory_bytes, 1);
    ret->gpu_celsius = known(use.temperature_c, 1);
    ret->gpu_watts = known(use.power_mw, 1e-3);
}
