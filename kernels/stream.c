/* See stream.h. The thread sanitizer does not see libgomp's barriers, which are futexes, so we annotate the transfer of
 * a region's data to its threads and back. */
#include "kernels/stream.h"
#include "kernels/matmul.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdlib.h>

/* libgomp's interface, declared here because clang's header is for another runtime. */
void GOMP_parallel(void (*fn)(void *), void *data, unsigned threads, unsigned flags);
void omp_set_num_threads(int n);
int omp_get_num_threads(void);
int omp_get_thread_num(void);

#if defined(__SANITIZE_THREAD__)
#define REGION_SYNC 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define REGION_SYNC 1
#endif
#endif
#ifdef REGION_SYNC
void __tsan_acquire(void *addr);
void __tsan_release(void *addr);
#define region_acquire(r) __tsan_acquire(r)
#define region_release(r) __tsan_release(r)
#else
#define region_acquire(r) ((void)(r))
#define region_release(r) ((void)(r))
#endif

#define SCRATCH_ALIGN 64

struct parallel_region {
    kern_range_fn *fn;
    void *arg;
    int64_t n, grain;
    int parts;
};

err_t cpu_stream_new(struct dev *d, int threads, struct kern_stream **ret)
{
    struct cpu_stream *s = calloc(1, sizeof(*s));
    if (!s)
        return ERR_NOMEM;
    s->base.dev = d;
    s->threads = threads > 0 ? threads : 1;
    *ret = &s->base;
    return OK;
}

void cpu_stream_free(struct kern_stream *s)
{
    struct cpu_stream *c = (struct cpu_stream *)s;
#ifdef KERN_CPU
    matmul_cache_free(c->matmuls);
#endif
    free(c->scratch);
    free(c);
}

err_t kern_stream_scratch(struct kern_stream *s, size_t bytes, void **ret)
{
    struct cpu_stream *c = (struct cpu_stream *)s;
    if (bytes > c->scratch_bytes) {
        size_t rounded = (bytes + SCRATCH_ALIGN - 1) / SCRATCH_ALIGN * SCRATCH_ALIGN;
        void *more = rounded < bytes ? NULL : aligned_alloc(SCRATCH_ALIGN, rounded);
        if (!more)
            return ERR_NOMEM;
        free(c->scratch);
        c->scratch = more;
        c->scratch_bytes = rounded;
    }
    *ret = c->scratch;
    return OK;
}

static _Atomic int limit = INT_MAX;

void dev_cpu_limit(int threads)
{
    atomic_store_explicit(&limit, threads > 0 ? threads : INT_MAX, memory_order_relaxed);
}

static int limited(int threads)
{
    int most = atomic_load_explicit(&limit, memory_order_relaxed);
    return threads < most ? threads : most;
}

int kern_stream_limit(int threads)
{
    int most = limited(threads);
    omp_set_num_threads(most);
    return most;
}

static void region_part(const struct parallel_region *r, int part)
{
    int64_t grains = (r->n + r->grain - 1) / r->grain;
    int64_t lo = grains * part / r->parts * r->grain, hi = grains * (part + 1) / r->parts * r->grain;
    hi = hi < r->n ? hi : r->n;
    if (lo < hi)
        r->fn(r->arg, part, lo, hi);
}

/* libgomp may provide fewer threads than requested. */
static void region_thread(void *arg)
{
    struct parallel_region *r = arg;
    region_acquire(r);
    for (int part = omp_get_thread_num(); part < r->parts; part += omp_get_num_threads())
        region_part(r, part);
    region_release(r);
}

void kern_stream_run(const struct kern_stream *s, int64_t n, int64_t grain, kern_range_fn *fn, void *arg)
{
    struct parallel_region r = {.fn = fn, .arg = arg, .n = n, .grain = grain, .parts = kern_stream_threads(s)};
    if (r.parts == 1 || n <= grain) {
        if (n > 0)
            fn(arg, 0, 0, n);
        return;
    }
    int threads = limited(r.parts);
    if (threads == 1) {
        for (int part = 0; part < r.parts; part++)
            region_part(&r, part);
        return;
    }
    region_release(&r);
    GOMP_parallel(region_thread, &r, (unsigned)threads, 0);
    region_acquire(&r);
}
