/* Launches: what the driver would refuse ends the process here, since no launch of ours may ever be refused; then the
 * grid waits in its stream like any other work. */
#include "tests/cuda_host/block.h"
#include "tests/cuda_host/queue.h"

#include <stdlib.h>

#define MAX_FUNCTIONS 1024

/* What cudaFuncSetAttribute allowed. */
static struct {
    const void *function;
    int shared;
} allowed[MAX_FUNCTIONS];
static int n_allowed;

static size_t shared_limit(const void *function)
{
    for (int i = 0; i < n_allowed; i++)
        if (allowed[i].function == function)
            return (size_t)allowed[i].shared > CUDA_HOST_SHARED_PLAIN ? (size_t)allowed[i].shared
                                                                      : CUDA_HOST_SHARED_PLAIN;
    return CUDA_HOST_SHARED_PLAIN;
}

cudaError_t cudaFuncSetAttribute(const void *function, enum cudaFuncAttribute attribute, int value)
{
    int i = 0;
    if (attribute == cudaFuncAttributePreferredSharedMemoryCarveout)
        return cudaSuccess;
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 || value > (int)CUDA_HOST_SHARED_OPTIN)
        return cudaErrorInvalidValue;
    host_lock();
    while (i < n_allowed && allowed[i].function != function)
        i++;
    if (i == MAX_FUNCTIONS)
        cuda_host_fail("more than %d kernels", MAX_FUNCTIONS);
    allowed[i].function = function;
    allowed[i].shared = value;
    n_allowed += i == n_allowed;
    host_unlock();
    return cudaSuccess;
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
    if (l->shared > shared_limit(l->function))
        cuda_host_fail("%s: %zu bytes of shared memory, and %zu were allowed", l->name, l->shared,
                       shared_limit(l->function));
}

static bool run_launch(void *arg)
{
    if (host_sticky)
        return true;
    if (host_injected("kernel")) {
        host_sticky = cudaErrorIllegalAddress;
        return true;
    }
    cuda_host_run(arg);
    host_pass_ms(host_planted_ms("launch"));
    return true;
}

static void drop_launch(void *arg)
{
    struct cuda_host_launch *l = arg;
    l->drop(l->args);
    free(l);
}

bool cuda_host_submit(cudaStream_t handle, const struct cuda_host_launch *l)
{
    struct cuda_host_launch *copy = malloc(sizeof(*copy));
    int device = 0;
    if (!copy)
        abort();
    *copy = *l;
    cudaGetDevice(&device);
    host_lock();
    check(l);
    host_counts.launches++;
    bool refused = host_injected("launch");
    if (refused)
        drop_launch(copy);
    else
        host_submit(host_stream_of(handle, device), &(struct host_work){l->name, run_launch, drop_launch, copy});
    host_unlock();
    return !refused;
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
