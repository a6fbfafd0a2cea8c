/* The two take turns, into the same arena, so that both find the same pages and run under the same load. The source of
 * the plain copy is memory that nothing else uses, as the state is after a step. */
#include "tests/bench/stall.h"
#include "tests/bench/median.h"

#include "common/base/clock.h"
#include "tests/bench/peak.h"
#include "worker/step/snapshot.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ROUNDS 11

static void *memory_new(size_t bytes, int flags)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return NULL;
    memset(p, 1, bytes);
    return p;
}

static err_t measure(struct snapshot *s, struct engine *e, void *arena, const void *other, struct why *why)
{
    double stall[ROUNDS], copy[ROUNDS], ratio[ROUNDS];
    for (int i = 0; i < ROUNDS; i++) {
        int64_t a = clock_mono_ns();
        err_t err = snapshot_copy(s, e, arena);
        err = err ? err : snapshot_wait(e, why);
        int64_t b = clock_mono_ns();
        if (err)
            return err;
        memcpy(arena, other, s->bytes);
        stall[i] = (double)(b - a) * 1e-9;
        copy[i] = (double)(clock_mono_ns() - b) * 1e-9;
        ratio[i] = stall[i] / copy[i];
    }
    qsort(stall, ROUNDS, sizeof(double), median_order);
    qsort(copy, ROUNDS, sizeof(double), median_order);
    qsort(ratio, ROUNDS, sizeof(double), median_order);
    printf("{\"bench\": \"train_save\", \"bytes\": %zu, \"pieces\": %d, \"rounds\": %d, \"stall_s\": %.5f, "
           "\"memcpy_s\": %.5f, \"stall_of_memcpy\": %.3f, \"spread\": [%.3f, %.3f], \"commit\": \"%s\"}\n",
           s->bytes, s->n, ROUNDS, stall[ROUNDS / 2], copy[ROUNDS / 2], ratio[ROUNDS / 2], ratio[0], ratio[ROUNDS - 1],
           peak_commit());
    fflush(stdout); /* a worker ends with _exit */
    return OK;
}

err_t stall_print(struct engine *e, struct why *why)
{
    struct snapshot s;
    err_t err = snapshot_plan_save(e, &s);
    if (err)
        return why_set(why, err, "cannot plan the save: %s", err_text(err));
    void *arena = memory_new(s.bytes, MAP_SHARED), *other = memory_new(s.bytes, MAP_PRIVATE);
    err = arena && other ? measure(&s, e, arena, other, why) : why_set(why, ERR_NOMEM, "out of memory for an arena");
    if (arena)
        munmap(arena, s.bytes);
    if (other)
        munmap(other, s.bytes);
    snapshot_fini(&s);
    return err;
}
