/* What the stand-ins have counted in this process since its start, for tests to read: made, live, and what is legal but
 * should not happen. */
#ifndef DTD_TESTS_CUDA_HOST_COUNTS_H
#define DTD_TESTS_CUDA_HOST_COUNTS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

/* X(name, text). Live ones go down again; the others only grow. */
#define CUDA_HOST_COUNTS(X)                                                             \
    X(launches, "kernels launched")                                                     \
    X(products, "products queued")                                                      \
    X(copies, "copies and fills queued")                                                \
    X(collectives, "collectives queued")                                                \
    X(allocations, "allocations of device or pinned memory")                            \
    X(live_allocations, "allocations that live")                                        \
    X(streams, "streams made")                                                          \
    X(live_streams, "streams that live")                                                \
    X(events, "events made")                                                            \
    X(live_events, "events that live")                                                  \
    X(live_handles, "handles and descriptors of the products that live")                \
    X(live_comms, "communicators that live")                                            \
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

/* From now on products have no fused forms: the kernels behind them must do. */
void cuda_host_refuse_fused(bool refuse);
/* From now on no algorithm takes an operand whose address or leading dimension, in bytes, is not a multiple of this; 1
 * takes any. */
void cuda_host_require_aligned(uint32_t bytes);
/* From now on fused GELUs have a tanh that is good to eleven bits, as some GPUs have. */
void cuda_host_rough_gelu(bool rough);
/* From now on every run of `what` takes so much longer, as events measure it: "algorithm 102" (a product by it),
 * "adding 102" (one that also adds to c), "fused" (one with an epilogue), "launch" (a kernel). */
void cuda_host_plant_ms(const char *what, double ms);
/* Another seed for the order of work, from now on. */
void cuda_host_seed(uint64_t seed);
/* The context of every device is lost: from now on all functions answer `code`, a cudaError_t; 0: no longer. */
void cuda_host_break(int code);
/* The k-th next "malloc" (refused), "launch" (refused), or "kernel" (fails when it runs, and all that follows) fails;
 * 0: none. As DTD_CUDA_HOST_FAIL=kernel:7. */
void cuda_host_inject(const char *what, int64_t k);

#ifdef __cplusplus
}
#endif

#endif
