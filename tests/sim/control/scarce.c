/* Only what the daemon itself allocates can fail: the sources of the simulation are compiled with the names of the real
 * functions (CMakeLists.txt), and the heap of libraft is left out, because its defects are not the daemon's. */
#include "tests/sim/control/scarce.h"

#include "tests/sim/control/machine.h"
#include "tests/sim/stream.h"

#include <raft.h>
#include <stdlib.h>
#include <string.h>

void *__wrap_malloc(size_t size);
void *__wrap_calloc(size_t n, size_t size);
void *__wrap_realloc(void *old, size_t size);
char *__wrap_strdup(const char *text);

#define ENDED_US (5 * US_PER_S) /* how long afterwards control may still exit because of it */

enum scarce_kind { MEMORY, DESCRIPTORS, THREADS };

static struct {
    bool is_over;
    const struct host *host; /* NULL: nothing is scarce */
    enum scarce_kind kind, first, last;
    double p; /* of a failure */
    int64_t end_us, ended_us[MAX_HOSTS + 1];
    int is_paused; /* above 0: allocations do not fail */
} all;

static bool is_scarce(enum scarce_kind kind)
{
    return all.host && all.host == world.current && all.kind == kind && world.now_us < all.end_us;
}

static bool may_end(const struct host *host)
{
    return host->id <= MAX_HOSTS && all.ended_us[host->id] && world.now_us < all.ended_us[host->id] + ENDED_US;
}

static bool fails(void)
{
    return is_scarce(MEMORY) && !all.is_paused && world_chance(FROM_FAULTS, all.p);
}

void *__wrap_malloc(size_t size)
{
    return fails() ? NULL : malloc(size);
}

void *__wrap_calloc(size_t n, size_t size)
{
    return fails() ? NULL : calloc(n, size);
}

void *__wrap_realloc(void *old, size_t size)
{
    return fails() ? NULL : realloc(old, size);
}

char *__wrap_strdup(const char *text)
{
    return fails() ? NULL : strdup(text);
}

/* ---- libraft's heap: the daemon's, whose memory is never scarce ---- */

static struct raft_heap inner;

static void *heap_malloc(void *data, size_t size)
{
    all.is_paused++;
    void *ret = inner.malloc(data, size);
    all.is_paused--;
    return ret;
}

static void *heap_calloc(void *data, size_t n, size_t size)
{
    all.is_paused++;
    void *ret = inner.calloc(data, n, size);
    all.is_paused--;
    return ret;
}

static void *heap_realloc(void *data, void *old, size_t size)
{
    all.is_paused++;
    void *ret = inner.realloc(data, old, size);
    all.is_paused--;
    return ret;
}

static void *heap_aligned(void *data, size_t alignment, size_t size)
{
    all.is_paused++;
    void *ret = inner.aligned_alloc(data, alignment, size);
    all.is_paused--;
    return ret;
}

void __real_raft_heap_set(struct raft_heap *heap);
void __wrap_raft_heap_set(struct raft_heap *heap);

void __wrap_raft_heap_set(struct raft_heap *heap)
{
    static struct raft_heap outer;
    if (heap->calloc != heap_calloc) /* else it is a copy of `outer` */
        inner = *heap;
    inner.malloc = heap->malloc;
    outer = inner;
    outer.malloc = heap_malloc;
    outer.calloc = heap_calloc;
    outer.realloc = heap_realloc;
    outer.aligned_alloc = heap_aligned;
    __real_raft_heap_set(&outer);
}

/* ---- descriptors and threads ---- */

static bool has_no_descriptor(void)
{
    return is_scarce(DESCRIPTORS);
}

/* A task ends after the threads are free again. */
static int64_t blocked_us(void)
{
    return is_scarce(THREADS) ? all.end_us - world.now_us : 0;
}

/* ---- a run ---- */

static void choose(void)
{
    const struct machine *m = &machines[world_between(FROM_FAULTS, 1, world.n_hosts)];
    for (int id = 1; id <= world.n_hosts && world_chance(FROM_FAULTS, 0.7); id++)
        if (machines[id].node && machines[id].host->is_up && machines[id].node->jobs.leads)
            m = &machines[id];
    all.host = m->host;
    all.kind = (enum scarce_kind)world_between(FROM_FAULTS, all.first, all.last);
    all.p = 1.0 / (double)world_between(FROM_FAULTS, 2, 400);
    all.end_us = world.now_us + world_between(FROM_FAULTS, 10, 6000) * US_PER_MS;
    all.ended_us[m->host->id] = all.end_us;
    trace("host %d has no %s for %d ms", m->host->id,
          all.kind == MEMORY        ? "memory"
          : all.kind == DESCRIPTORS ? "descriptors"
                                    : "threads",
          (int)((all.end_us - world.now_us) / US_PER_MS));
}

static void step(void *arg)
{
    if (all.is_over)
        return;
    if (world.now_us >= all.end_us)
        choose();
    world_after(&world.hosts[0], world_between(FROM_FAULTS, 50, 3000) * US_PER_MS, step, arg);
}

void scarce_start(bool is_others, bool is_memory)
{
    memset(&all, 0, sizeof(all));
    all.first = is_memory ? MEMORY : DESCRIPTORS;
    all.last = is_others ? THREADS : MEMORY;
    stream_has_no_descriptor = has_no_descriptor;
    libuv_blocked_us = blocked_us;
    machine_may_end = may_end;
    world_after(&world.hosts[0], world_between(FROM_FAULTS, 0, 2000) * US_PER_MS, step, NULL);
}

void scarce_end(void)
{
    all.is_over = true;
    all.host = NULL;
}
