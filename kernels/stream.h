/* A CPU stream: the calling thread, the helper threads of libgomp, and scratch memory that only grows.
 *
 * Shared by `ref`, `cpu` and the CPU device; private to kernels/. One thread at a time may call into a stream. oneDNN
 * runs on libgomp, so our own loops use the same thread pool, through libgomp's ABI, which builds by gcc and clang can
 * both call; two pools would compete for the cores. */
#ifndef DTD_KERNELS_STREAM_H
#define DTD_KERNELS_STREAM_H

#include "kernels/device.h"

#include <stddef.h>
#include <stdint.h>

struct cpu_stream {
    struct kern_stream base; /* first */
    int threads;             /* at least 1 */
    void *scratch;
    size_t scratch_bytes;
    struct matmul_cache *matmuls; /* prepared products (matmul.h), NULL before the first */
};

/* threads 0: one */
NODISCARD err_t cpu_stream_new(struct dev *d, int threads, struct kern_stream **ret);
void cpu_stream_free(struct kern_stream *s);

static inline int kern_stream_threads(const struct kern_stream *s)
{
    return ((const struct cpu_stream *)s)->threads;
}

/* Returns at least `bytes` of memory aligned to 64 bytes, valid until the next call. Allocates only when `bytes`
 * exceeds every earlier request. */
NODISCARD err_t kern_stream_scratch(struct kern_stream *s, size_t bytes, void **ret);

/* Limits the threads of the calling thread's next parallel region, which is oneDNN's next product. Returns the limit:
 * `threads`, or the process's limit if that is less. */
int kern_stream_limit(int threads);

/* Calls fn(arg, part, lo, hi) on parts of [0, n) that are split at multiples of `grain`, part < threads. The value that
 * fn computes for an index must not depend on the split. Returns when all parts are done. */
typedef void kern_range_fn(void *arg, int part, int64_t lo, int64_t hi);
void kern_stream_run(const struct kern_stream *s, int64_t n, int64_t grain, kern_range_fn *fn, void *arg);

#endif
