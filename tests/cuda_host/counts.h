/* The counts of the stand-ins in this process since its start, for tests: objects created, objects alive, and actions
 * that are legal but should not happen. */
#ifndef DTD_TESTS_CUDA_HOST_COUNTS_H
#define DTD_TESTS_CUDA_HOST_COUNTS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, text). Counts of live objects decrease again; the others only grow. */
#define CUDA_HOST_COUNTS(X)                                                             \
    X(launches, "kernels launched")                                                     \
    X(products, "products queued")                                                      \
    X(copies, "copies and fills queued")                                                \
    X(collectives, "collectives queued")                                                \
    X(allocations, "allocations of device or pinned memory")                            \
    X(live_allocations, "live allocations")                                             \
    X(streams, "streams made")                                                          \
    X(live_streams, "live streams")                                                     \
    X(events, "events made")                                                            \
    X(live_events, "live events")                                                       \
    X(live_handles, "live handles and descriptors of products")                         \
    X(live_comms, "live communicators")                                                 \
    X(records, "events recorded")                                                       \
    X(waits, "waits for events")                                                        \
    X(fresh_waits, "waits for events that were never recorded")                         \
    X(unwaited_events, "events that were recorded more than once and never waited for") \
    X(host_syncs, "times that the host waited")                                         \
    X(pageable_copies, "asynchronous copies of host memory that is not pinned")         \
    X(dropped_work, "work that was queued on a stream when it was destroyed")

struct cuda_host_counts {
#define X(name, text) int64_t name;
    CUDA_HOST_COUNTS(X)
#undef X
};

void cuda_host_counts_read(struct cuda_host_counts *ret);
/* One line per count that is not 0. */
void cuda_host_counts_print(const struct cuda_host_counts *c, FILE *to);

/* From now on products have no fused forms, so the separate kernels run. */
void cuda_host_refuse_fused(bool refuse);
/* From now on no algorithm accepts an operand whose address or leading dimension, in bytes, is not a multiple of this;
 * 1 accepts any. */
void cuda_host_require_aligned(uint32_t bytes);
/* From now on fused GELUs use a tanh with eleven correct bits, like some GPUs. */
void cuda_host_rough_gelu(bool rough);
/* From now on events measure every run of `what` as longer by `ms`. "algorithm 102": a product by it; "adding 102": one
 * that also adds to c; "fused": one with an epilogue; "launch": a kernel. */
void cuda_host_plant_ms(const char *what, double ms);
/* Sets a new seed for the order of work. */
void cuda_host_seed(uint64_t seed);
/* Simulates a lost context of every device: from now on all functions return `code`, a cudaError_t; 0 ends this. */
void cuda_host_break(int code);
/* Makes the k-th next "malloc" (rejected), "launch" (rejected) or "kernel" (fails when it runs, and so do all later
 * calls) fail; 0: none. The same as DTD_CUDA_HOST_FAIL=kernel:7. */
void cuda_host_inject(const char *what, int64_t k);

#ifdef __cplusplus
}
#endif

#endif
