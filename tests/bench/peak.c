/* What benchmarks compare with. */
#include "tests/bench/peak.h"

#include "kernels/core_peak.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define TRIES 8
#define MEMORY_FLOATS (INT64_C(48) << 20)

/* Time of this thread only, so that other programs on a shared machine do not count. */
static int64_t thread_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

double peak_fma_loop(void)
{
    return kern_core_loop() * 1e-9;
}

double peak_fma_gflops(void)
{
    return kern_core_flops(DT_F32, TRIES) * 1e-9;
}

double peak_bf16_gflops(void)
{
    return kern_core_flops(DT_BF16, TRIES) * 1e-9;
}

double peak_memory_gbs(void)
{
    size_t bytes = MEMORY_FLOATS * sizeof(float);
    double best = 0;
    float *y = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (y == MAP_FAILED)
        return 0;
    madvise(y, bytes, MADV_HUGEPAGE);
    memset(y, 0, bytes);
    for (int i = 0; i < TRIES; i++) {
        int64_t start = thread_ns();
        for (int64_t j = 0; j < MEMORY_FLOATS; j++)
            y[j] = y[j] * 0.5f + 1;
        double rate = 2.0 * (double)bytes / (double)(thread_ns() - start);
        best = rate > best ? rate : best;
    }
    munmap(y, bytes);
    return best;
}

const char *peak_cpu_name(void)
{
    static char name[128] = "unknown";
    char line[512];
    FILE *f = fopen("/proc/cpuinfo", "r");
    while (f && fgets(line, sizeof(line), f)) {
        char *value = strncmp(line, "model name", 10) == 0 ? strchr(line, ':') : NULL;
        if (!value)
            continue;
        snprintf(name, sizeof(name), "%.*s", (int)strcspn(value + 2, "\n\"\\"), value + 2);
        break;
    }
    if (f)
        fclose(f);
    return name;
}

const char *peak_commit(void)
{
    static char commit[64] = "unknown";
    const char *bundle = getenv("DTD_COMMIT"); /* a bundle has no repository */
    if (bundle)
        return bundle;
    FILE *f = popen("git -C '" DTD_BENCH_SOURCE "' rev-parse --short=12 HEAD 2>/dev/null", "r");
    char line[64];
    if (f && fgets(line, sizeof(line), f))
        snprintf(commit, sizeof(commit), "%.*s", (int)strcspn(line, "\n"), line);
    if (f)
        pclose(f);
    return commit;
}
