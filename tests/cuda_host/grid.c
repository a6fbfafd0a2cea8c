/* Runs the blocks of a launch one after another: forwards, backwards, or from the middle, chosen at random, so that a
 * kernel whose blocks depend on each other gives wrong numbers.
 *
 * Dynamic shared memory is a heap block of exactly the requested size. Static shared memory is the kernel's own static
 * memory; the pieces that a launch uses become known when its threads reach them. All bytes of both are 0xff (a NaN in
 * every type) when a block begins; for a static piece this holds from the launch's second block on. */
#include "tests/cuda_host/counts.h"
#include "tests/cuda_host/inner.h"

#include <malloc.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static pthread_mutex_t running = PTHREAD_MUTEX_INITIALIZER;
static const char *kernel; /* the kernel that runs, for messages; owned by the holder of the lock */

static _Atomic uint64_t dice;

void cuda_host_seed(uint64_t seed)
{
    dice = 0x9e3779b97f4a7c15u * (seed + 1);
}

__attribute__((constructor)) static void seed_of_environment(void)
{
    const char *seed = getenv("DTD_CUDA_HOST_SEED");
    cuda_host_seed(seed ? strtoull(seed, NULL, 10) : 0);
}

/* splitmix64 (Steele, Lea and Flood 2014) */
uint64_t cuda_host_random(void)
{
    uint64_t z = atomic_fetch_add_explicit(&dice, 0x9e3779b97f4a7c15u, memory_order_relaxed);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

void cuda_host_fail(const char *format, ...)
{
    va_list ap;
    const struct cuda_host_thread *t = cuda_host_self;
    fprintf(stderr, "cuda-host: ");
    if (t)
        fprintf(stderr, "%s, block (%u,%u,%u), thread (%u,%u,%u): ", kernel ? kernel : "?", t->block.x, t->block.y,
                t->block.z, t->thread.x, t->thread.y, t->thread.z);
    va_start(ap, format);
    vfprintf(stderr, format, ap);
    va_end(ap);
    fputc('\n', stderr);
    fflush(NULL);
    abort();
}

struct cuda_host_thread host_thread_of(const struct cuda_host_launch *l, uint3 block, int index, void *shared)
{
    unsigned i = (unsigned)index;
    return (struct cuda_host_thread){
        .thread = {i % l->block.x, i / l->block.x % l->block.y, i / l->block.x / l->block.y},
        .block = block,
        .block_dim = l->block,
        .grid_dim = l->grid,
        .index = index,
        .shared = shared,
    };
}

/* ---- static shared memory ---- */

#define MAX_PIECES 32

/* The pieces of the current launch in the order in which they were reached; the first NULL ends them. System threads
 * may reach them at the same time, and nothing here may order those for the sanitizer. */
static struct {
    _Atomic(void *) at;
    _Atomic size_t bytes;
} pieces[MAX_PIECES];

void cuda_host_static_shared(void *at, size_t bytes)
{
    for (int i = 0; i < MAX_PIECES; i++) {
        void *there = NULL;
        if (atomic_compare_exchange_strong_explicit(&pieces[i].at, &there, at, memory_order_relaxed,
                                                    memory_order_relaxed))
            atomic_store_explicit(&pieces[i].bytes, bytes, memory_order_relaxed);
        if (!there || there == at)
            return;
    }
    cuda_host_fail("more than %d pieces of static shared memory", MAX_PIECES);
}

static void pieces_spoil(void)
{
    for (int i = 0; i < MAX_PIECES && pieces[i].at; i++)
        memset(pieces[i].at, 0xff, pieces[i].bytes);
}

static size_t pieces_forget(void)
{
    size_t sum = 0;
    for (int i = 0; i < MAX_PIECES && pieces[i].at; i++) {
        sum += pieces[i].bytes;
        pieces[i].at = NULL;
    }
    return sum;
}

static void run_blocks(const struct cuda_host_launch *l, void *shared)
{
    uint64_t n = (uint64_t)l->grid.x * l->grid.y * l->grid.z, d = cuda_host_random();
    uint64_t first = d & 1 ? 0 : (d >> 8) % n;
    bool back = d & 2;
    for (uint64_t k = 0; k < n; k++) {
        uint64_t i = (first + (back ? n - k : k)) % n;
        const uint3 block = {(unsigned)(i % l->grid.x), (unsigned)(i / l->grid.x % l->grid.y),
                             (unsigned)(i / l->grid.x / l->grid.y)};
        if (l->shared)
            memset(shared, 0xff, l->shared);
        pieces_spoil();
        host_block_run(l, block, shared, d & 4);
    }
}

size_t cuda_host_run(const struct cuda_host_launch *l)
{
    void *shared = l->shared ? memalign(128, l->shared) : NULL;
    if (l->shared && !shared)
        cuda_host_fail("%s: cannot allocate %zu bytes of shared memory", l->name, l->shared);
    pthread_mutex_lock(&running);
    kernel = l->name;
    run_blocks(l, shared);
    kernel = NULL;
    size_t fixed = pieces_forget();
    pthread_mutex_unlock(&running);
    free(shared);
    return fixed;
}
