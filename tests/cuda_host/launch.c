/* Launches. A grid or block that the driver would reject ends the process, because our code must never launch one.
 * Otherwise the grid waits in its stream like any other work.
 *
 * A device gives a block 48 KiB of shared memory, static and dynamic together, or as much dynamic shared memory as
 * cudaFuncSetAttribute allowed if both fit the device; a larger launch is rejected. The static size is known only after
 * running the kernel, so the first launch of each kernel with dynamic shared memory runs at once. If that launch is
 * rejected, it has run nevertheless: its caller gets the same error as on a device, and no results. */
#include "tests/cuda_host/block.h"
#include "tests/cuda_host/queue.h"

#include <stdlib.h>

#define MAX_FUNCTIONS 1024

/* The known properties of a kernel. */
struct function {
    const void *function;
    size_t allowed; /* limit of dynamic shared memory from cudaFuncSetAttribute */
    size_t fixed;   /* static shared memory: the maximum over all runs */
    bool seen;      /* it has run */
};

static struct function functions[MAX_FUNCTIONS];
static int n_functions;

/* The caller holds the lock. */
static struct function *function_of(const void *function)
{
    int i = 0;
    while (i < n_functions && functions[i].function != function)
        i++;
    if (i == MAX_FUNCTIONS)
        cuda_host_fail("more than %d kernels", MAX_FUNCTIONS);
    if (i == n_functions)
        functions[n_functions++].function = function;
    return &functions[i];
}

static bool fits(const struct function *f, size_t dynamic)
{
    return f->fixed + dynamic <= CUDA_HOST_SHARED_PLAIN ||
           (dynamic <= f->allowed && f->fixed + dynamic <= CUDA_HOST_SHARED_OPTIN);
}

cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute, int value)
{
    if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout)
        return cudaSuccess;
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0)
        return cudaErrorInvalidValue;
    host_lock();
    struct function *f = function_of(function);
    bool good = f->fixed + (size_t)value <= CUDA_HOST_SHARED_OPTIN;
    if (good)
        f->allowed = (size_t)value;
    host_unlock();
    return good ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *ret, const void *function, int block, size_t shared)
{
    *ret = shared > CUDA_HOST_SHARED_OPTIN / 2 ? 1 : 2048 / (block > 0 ? block : 1);
    return cudaSuccess;
}

static void check(const struct cuda_host_launch *l)
{
    uint64_t threads = (uint64_t)l->block.x * l->block.y * l->block.z;
    if (!threads || threads > 1024 || l->block.z > 64)
        cuda_host_fail("%s: a block of %u x %u x %u threads", l->name, l->block.x, l->block.y, l->block.z);
    if (!l->grid.x || !l->grid.y || !l->grid.z || l->grid.x > 0x7fffffffu || l->grid.y > 65535 || l->grid.z > 65535)
        cuda_host_fail("%s: a grid of %u x %u x %u blocks", l->name, l->grid.x, l->grid.y, l->grid.z);
}

/* If a later run uses more static shared memory than earlier ones, it is too late to reject the launch, so the process
 * ends. */
static bool run_launch(void *arg)
{
    const struct cuda_host_launch *l = arg;
    if (host_sticky)
        return true;
    if (host_injected("kernel")) {
        host_sticky = cudaErrorIllegalAddress;
        return true;
    }
    size_t fixed = cuda_host_run(l);
    struct function *f = function_of(l->function);
    f->fixed = fixed > f->fixed ? fixed : f->fixed;
    if (f->seen && !fits(f, l->shared))
        cuda_host_fail("%s: %zu bytes of static and %zu of dynamic shared memory", l->name, f->fixed, l->shared);
    f->seen = true;
    host_pass_ms(host_planted_ms("launch"));
    return true;
}

static void drop_launch(void *arg)
{
    struct cuda_host_launch *l = arg;
    l->drop(l->args);
    free(l);
}

static cudaError_t queue_launch(cudaStream_t handle, struct cuda_host_launch *l)
{
    int device = 0;
    struct function *f = function_of(l->function);
    size_t dynamic = l->shared;
    if (host_injected("launch") || !fits(f, dynamic)) {
        drop_launch(l);
        return fits(f, dynamic) ? cudaErrorLaunchOutOfResources : cudaErrorInvalidValue;
    }
    cudaGetDevice(&device);
    struct CUstream_st *s = host_stream_of(handle, device);
    host_submit(s, &(struct host_work){l->name, run_launch, drop_launch, l});
    if (dynamic && !f->seen)
        host_run_stream(s);
    return fits(f, dynamic) ? cudaSuccess : cudaErrorInvalidValue;
}

cudaError_t cuda_host_submit(cudaStream_t handle, const struct cuda_host_launch *l)
{
    struct cuda_host_launch *copy = malloc(sizeof(*copy));
    if (!copy)
        abort();
    *copy = *l;
    host_lock();
    check(l);
    host_counts.launches++;
    cudaError_t code = queue_launch(handle, copy);
    host_unlock();
    return code;
}

void cuda_host_check_pointer(const char *kernel, int argument, const void *p)
{
    if (!p)
        return;
    host_lock();
    enum host_memory kind = host_memory_of(p, 1, kernel);
    host_unlock();
    if (kind == HOST_PAGEABLE)
        cuda_host_fail("%s: argument %d is %p, which is not the device's memory", kernel, argument, p);
}
