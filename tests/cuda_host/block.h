/* Runs kernels on a processor: the grid of one launch, block after block. Each thread of a block is a fibre that runs
 * until a barrier or a warp operation makes it wait; with CUDA_HOST_THREADS it is a system thread, for the thread
 * sanitizer. One block at a time runs in the whole process, so that static shared memory is ordinary static memory.
 *
 * Errors that would give wrong numbers, a hang or a fault on a GPU end the process and name kernel, block and thread: a
 * barrier or a warp operation that not all threads reach, and a launch that no device accepts. The order of blocks,
 * warps and lanes differs between launches, so code that depends on one order gives wrong numbers. */
#ifndef DTD_TESTS_CUDA_HOST_BLOCK_H
#define DTD_TESTS_CUDA_HOST_BLOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime_api.h>

#ifdef __cplusplus
extern "C" {
#endif

#define CUDA_HOST_WARP 32
#define CUDA_HOST_EXCHANGE_BYTES 256
#define CUDA_HOST_SHARED_PLAIN (48u << 10)  /* available to a block without a request */
#define CUDA_HOST_SHARED_OPTIN (227u << 10) /* the limit of sm_90 */

/* One launch. It owns `args`, which `drop` frees. */
struct cuda_host_launch {
    const char *name;
    const void *function;
    dim3 grid, block;
    size_t shared; /* dynamic, bytes */
    void (*body)(const void *args);
    void *args;
    void (*drop)(void *args);
};

/* The built-in variables of the running thread. */
struct cuda_host_thread {
    uint3 thread, block;
    dim3 block_dim, grid_dim;
    int index; /* index in its block; x varies fastest */
    void *shared;
};

#ifdef CUDA_HOST_THREADS
extern __thread struct cuda_host_thread *cuda_host_self;
#else
extern struct cuda_host_thread *cuda_host_self;
#endif

/* Runs the whole grid and returns the bytes of static shared memory that its threads used. Any thread; launches wait
 * for each other. */
size_t cuda_host_run(const struct cuda_host_launch *l);

/* Queues it on the stream. cudaErrorInvalidValue: its shared memory, static and dynamic, exceeds what the device allows
 * it; cudaErrorLaunchOutOfResources: an injected failure. (launch.c) */
cudaError_t cuda_host_submit(cudaStream_t s, const struct cuda_host_launch *l);
/* Ends the process when a kernel argument points to memory that is not the device's. */
void cuda_host_check_pointer(const char *kernel, int argument, const void *p);

/* ---- in a kernel ---- */

enum cuda_host_op { HOST_SYNCWARP, HOST_SHUFFLE, HOST_VOTE, HOST_MMA, HOST_OTHER };

/* Called when a thread reaches a declaration of static shared memory. */
void cuda_host_static_shared(void *at, size_t bytes);
/* All threads of the block must call it. */
void cuda_host_barrier(void);
/* All 32 lanes of a warp pass `bytes` (at most CUDA_HOST_EXCHANGE_BYTES, a multiple of 4) and get the values of all
 * lanes, lane i's at i * bytes. Valid until this lane's next warp operation. The mask must name the whole warp, and all
 * lanes must call with the same operation and size. */
const void *cuda_host_warp_exchange(enum cuda_host_op op, unsigned mask, const void *value, size_t bytes);
/* Ends the process with a sentence that begins with kernel, block and thread. */
void cuda_host_fail(const char *format, ...) __attribute__((noreturn, format(printf, 1, 2)));

/* One random sequence per process, from DTD_CUDA_HOST_SEED or cuda_host_seed (counts.h). */
uint64_t cuda_host_random(void);

#ifdef __cplusplus
}
#endif

#endif
