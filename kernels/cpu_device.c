/* The processor as a device. Allocation provides all pages: this puts them on the NUMA node of the thread that will use
 * them, and a machine that is short of memory fails before the first step. A stream is the calling thread, so queued
 * work is already done and events are always complete. */
#include "common/base/clock.h"
#include "kernels/devices.h"
#include "kernels/kernels.h"
#include "kernels/stream.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

struct dev_event {
    bool timed;
    int64_t ns; /* time of the last record */
};

static err_t cpu_count(int *ret, struct why *why)
{
    *ret = 1;
    return OK;
}

static err_t cpu_open(int index, struct dev **ret, struct why *why)
{
    if (index != 0)
        return why_set(why, ERR_NOTFOUND, "there is no cpu device %d: the processor is device 0", index);
    struct dev *d = malloc(sizeof(*d));
    if (!d)
        return why_set(why, ERR_NOMEM, "out of memory for a device");
    *d = (struct dev){.ops = &cpu_device_ops, .index = index};
    *ret = d;
    return OK;
}

static void cpu_close(struct dev *d)
{
    free(d);
}

/* Reads the text after the colon of the first line that begins with `key`; false when there is no such line. */
static bool file_value(const char *path, const char *key, char *ret, size_t size)
{
    FILE *f = fopen(path, "re");
    char line[512];
    bool found = false;
    while (f && !found && fgets(line, sizeof(line), f)) {
        char *colon = strchr(line, ':');
        if (!colon || strncmp(line, key, strlen(key)) != 0)
            continue;
        char *value = colon + 1 + strspn(colon + 1, " \t");
        value[strcspn(value, "\n")] = 0;
        snprintf(ret, size, "%s", value);
        found = true;
    }
    if (f)
        fclose(f);
    return found;
}

static err_t cpu_facts(struct dev *d, struct dev_facts *ret, struct why *why)
{
    int64_t page = sysconf(_SC_PAGESIZE);
    char available[64];
    *ret = (struct dev_facts){.memory_bytes = sysconf(_SC_PHYS_PAGES) * page,
                              .free_bytes = sysconf(_SC_AVPHYS_PAGES) * page,
                              .processors = (int)sysconf(_SC_NPROCESSORS_ONLN)};
    if (file_value("/proc/meminfo", "MemAvailable", available, sizeof(available)))
        ret->free_bytes = strtoll(available, NULL, 10) * 1024; /* includes caches that can be reclaimed */
    if (!file_value("/proc/cpuinfo", "model name", ret->model, sizeof(ret->model)))
        snprintf(ret->model, sizeof(ret->model), "processor"); /* not every architecture reports a name */
    return OK;
}

static const struct kern_ops *cpu_kernels(enum dtype dtype)
{
    const struct kern_ops *fast = kern_find("cpu", dtype);
    return fast ? fast : kern_find("ref", dtype);
}

/* Provides zeroed pages by writes. A page that is read first would be a page of the shared zeros; its first write then
 * splits a huge page into small ones. The operating system's kernel clears pages itself; before Linux 5.14 only a write
 * makes it do so. Returns false without memory. */
static bool populate(void *p, size_t bytes)
{
    if (madvise(p, bytes, MADV_POPULATE_WRITE) == 0)
        return true;
    if (errno == ENOMEM)
        return false;
    memset(p, 0, bytes);
    return true;
}

static err_t cpu_alloc(struct dev *d, size_t bytes, const char *what, void **ret, struct why *why)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return why_set(why, ERR_NOMEM, "cannot allocate %zu bytes of %s: %s; use a smaller micro_batch or model", bytes,
                       what, strerror(errno));
    madvise(p, bytes, MADV_HUGEPAGE); /* advice only: an operating system kernel without huge pages uses small ones */
    if (!populate(p, bytes)) {
        munmap(p, bytes);
        return why_set(why, ERR_NOMEM, "no memory for %zu bytes of %s; use a smaller micro_batch or model", bytes,
                       what);
    }
    *ret = p;
    return OK;
}

static void cpu_free(struct dev *d, void *p, size_t bytes)
{
    munmap(p, bytes);
}

static err_t cpu_host_pin(struct dev *d, void *p, size_t bytes, struct why *why)
{
    return OK;
}

static void cpu_host_unpin(struct dev *d, void *p)
{
}

static err_t cpu_stream_open(struct dev *d, int threads, bool urgent, struct kern_stream **ret, struct why *why)
{
    err_t err = cpu_stream_new(d, threads, ret);
    return err == OK ? OK : why_set(why, err, "out of memory for a stream");
}

static err_t cpu_stream_sync(struct kern_stream *s, struct why *why)
{
    return OK;
}

static void *cpu_stream_native(struct kern_stream *s)
{
    return NULL;
}

/* Bytes are split among the stream's threads, because a single thread cannot saturate a memory channel. */
#define BYTES_GRAIN (INT64_C(1) << 18)
#define STREAM_BYTES (INT64_C(4) << 20)

struct byte_range {
    char *dst;
    const char *src;
};

/* Ranges larger than the caches are written with non-temporal stores, which saves reading them first (20 GB/s; memset
 * reaches 9). */
static void zero_past_caches(char *p, size_t bytes)
{
#ifdef __SSE2__
    size_t head = -(uintptr_t)p % sizeof(__m128i), vectors = (bytes - head) / sizeof(__m128i);
    memset(p, 0, head);
    for (size_t i = 0; i < vectors; i++)
        _mm_stream_si128((__m128i *)(p + head) + i, _mm_setzero_si128());
    _mm_sfence();
    size_t done = head + vectors * sizeof(__m128i);
    memset(p + done, 0, bytes - done);
#else
    memset(p, 0, bytes);
#endif
}

static void zero_bytes(void *arg, int part, int64_t lo, int64_t hi)
{
    const struct byte_range *b = arg;
    if (hi - lo >= STREAM_BYTES)
        zero_past_caches(b->dst + lo, (size_t)(hi - lo));
    else
        memset(b->dst + lo, 0, (size_t)(hi - lo));
}

static void copy_bytes(void *arg, int part, int64_t lo, int64_t hi)
{
    const struct byte_range *b = arg;
    memcpy(b->dst + lo, b->src + lo, (size_t)(hi - lo));
}

static err_t cpu_zero(struct kern_stream *s, void *p, size_t bytes)
{
    struct byte_range b = {.dst = p};
    kern_stream_run(s, (int64_t)bytes, BYTES_GRAIN, zero_bytes, &b);
    return OK;
}

static err_t cpu_copy(struct kern_stream *s, void *dst, const void *src, size_t bytes)
{
    struct byte_range b = {.dst = dst, .src = src};
    kern_stream_run(s, (int64_t)bytes, BYTES_GRAIN, copy_bytes, &b);
    return OK;
}

static err_t cpu_event_new(struct dev *d, bool timed, struct dev_event **ret)
{
    struct dev_event *e = calloc(1, sizeof(*e));
    if (!e)
        return ERR_NOMEM;
    e->timed = timed;
    *ret = e;
    return OK;
}

static void cpu_event_free(struct dev_event *e)
{
    free(e);
}

static err_t cpu_event_record(struct dev_event *e, struct kern_stream *s)
{
    if (e->timed)
        e->ns = clock_mono_ns();
    return OK;
}

static err_t cpu_event_wait(struct dev_event *e, struct kern_stream *s)
{
    return OK;
}

static err_t cpu_event_sync(struct dev_event *e, struct why *why)
{
    return OK;
}

static bool cpu_event_over(struct dev_event *e)
{
    return true;
}

static double cpu_event_ms(const struct dev_event *from, const struct dev_event *to)
{
    return (double)(to->ns - from->ns) * 1e-6;
}

static void cpu_range_begin(const char *name)
{
}

static void cpu_range_end(void)
{
}

const struct dev_ops cpu_device_ops = {
    .name = "cpu",
    .host_memory = true,
    .count = cpu_count,
    .open = cpu_open,
    .close = cpu_close,
    .facts = cpu_facts,
    .kernels = cpu_kernels,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .host_alloc = cpu_alloc,
    .host_free = cpu_free,
    .host_pin = cpu_host_pin,
    .host_unpin = cpu_host_unpin,
    .stream_new = cpu_stream_open,
    .stream_free = cpu_stream_free,
    .stream_sync = cpu_stream_sync,
    .stream_native = cpu_stream_native,
    .zero = cpu_zero,
    .copy = cpu_copy,
    .event_new = cpu_event_new,
    .event_free = cpu_event_free,
    .event_record = cpu_event_record,
    .event_wait = cpu_event_wait,
    .event_sync = cpu_event_sync,
    .event_over = cpu_event_over,
    .event_ms = cpu_event_ms,
    .range_begin = cpu_range_begin,
    .range_end = cpu_range_end,
};
