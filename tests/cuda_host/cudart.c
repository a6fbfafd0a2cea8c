/* cudart's functions over the queues, with the vendor's prototypes: exactly those that kernels/cuda and
 * worker/comm/nccl use.
 *
 * Calls are really asynchronous: a copy reads host memory when it runs, not when it is queued, and even a fill on the
 * legacy stream is only queued. Streams are non-blocking, as ours are, so they are not ordered with the legacy stream.
 */
#include "tests/cuda_host/block.h"
#include "tests/cuda_host/queue.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DEVICES 64
#define DRIVER 13000

static __thread int device;
static __thread cudaError_t last;

/* ---- errors ---- */

#define ERRORS(X)                                                                                          \
    X(cudaSuccess, "no error")                                                                             \
    X(cudaErrorInvalidValue, "invalid argument")                                                           \
    X(cudaErrorMemoryAllocation, "out of memory")                                                          \
    X(cudaErrorInvalidConfiguration, "invalid configuration argument")                                     \
    X(cudaErrorInvalidDevice, "invalid device ordinal")                                                    \
    X(cudaErrorNoDevice, "no CUDA-capable device is detected")                                             \
    X(cudaErrorInvalidDeviceFunction, "invalid device function")                                           \
    X(cudaErrorInvalidResourceHandle, "invalid resource handle")                                           \
    X(cudaErrorNotReady, "device not ready")                                                               \
    X(cudaErrorIllegalAddress, "an illegal memory access was encountered")                                 \
    X(cudaErrorLaunchOutOfResources, "too many resources requested for launch")                            \
    X(cudaErrorHostMemoryAlreadyRegistered, "part or all of the requested memory range is already mapped") \
    X(cudaErrorHostMemoryNotRegistered, "pointer does not correspond to a registered memory region")

static const struct {
    cudaError_t code;
    const char *name, *text;
} errors[] = {
#define X(code, text) {code, #code, text},
    ERRORS(X)
#undef X
};

const char *cudaGetErrorName(cudaError_t code)
{
    for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
        if (errors[i].code == code)
            return errors[i].name;
    return "unrecognized error code";
}

const char *cudaGetErrorString(cudaError_t code)
{
    for (size_t i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
        if (errors[i].code == code)
            return errors[i].text;
    return "unrecognized error code";
}

/* The end of every function: once a kernel has failed, returns that failure. */
static cudaError_t answer(cudaError_t code)
{
    if (host_sticky)
        code = host_sticky;
    if (code && code != cudaErrorNotReady)
        last = code;
    return code;
}

static cudaError_t unlock(cudaError_t code)
{
    code = answer(code);
    host_unlock();
    return code;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t code = host_sticky ? host_sticky : last;
    last = cudaSuccess;
    return code;
}

cudaError_t cudaPeekAtLastError(void)
{
    return host_sticky ? host_sticky : last;
}

/* ---- devices ---- */

static int n_devices(void)
{
    const char *text = getenv("DTD_CUDA_HOST_DEVICES");
    return text ? atoi(text) : 1;
}

cudaError_t cudaGetDeviceCount(int *ret)
{
    *ret = n_devices();
    return answer(*ret ? cudaSuccess : cudaErrorNoDevice);
}

cudaError_t cudaSetDevice(int index)
{
    if (index < 0 || index >= n_devices())
        return answer(n_devices() ? cudaErrorInvalidDevice : cudaErrorNoDevice);
    device = index;
    return answer(cudaSuccess);
}

cudaError_t cudaGetDevice(int *ret)
{
    *ret = device;
    return answer(cudaSuccess);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *ret, int index)
{
    if (index < 0 || index >= n_devices())
        return answer(cudaErrorInvalidDevice);
    memset(ret, 0, sizeof(*ret));
    snprintf(ret->name, sizeof(ret->name), "processor in the place of a GPU");
    ret->totalGlobalMem = (size_t)host_memory_total();
    ret->sharedMemPerBlock = CUDA_HOST_SHARED_PLAIN;
    ret->sharedMemPerBlockOptin = CUDA_HOST_SHARED_OPTIN;
    ret->warpSize = CUDA_HOST_WARP;
    ret->maxThreadsPerBlock = 1024;
    ret->major = 9;
    ret->multiProcessorCount = 4;
    ret->uuid.bytes[0] = 'h';
    ret->uuid.bytes[15] = (char)index;
    return answer(cudaSuccess);
}

cudaError_t cudaDeviceGetAttribute(int *ret, enum cudaDeviceAttr attribute, int index)
{
    static const struct {
        enum cudaDeviceAttr attribute;
        int value;
    } table[] = {
        {cudaDevAttrMultiProcessorCount, 4},
        {cudaDevAttrMaxThreadsPerBlock, 1024},
        {cudaDevAttrMaxThreadsPerMultiProcessor, 2048},
        {cudaDevAttrWarpSize, CUDA_HOST_WARP},
        {cudaDevAttrComputeCapabilityMajor, 9},
        {cudaDevAttrComputeCapabilityMinor, 0},
        {cudaDevAttrMaxSharedMemoryPerBlock, CUDA_HOST_SHARED_PLAIN},
        {cudaDevAttrMaxSharedMemoryPerBlockOptin, CUDA_HOST_SHARED_OPTIN},
        {cudaDevAttrMaxSharedMemoryPerMultiprocessor, CUDA_HOST_SHARED_OPTIN + 1024},
        {cudaDevAttrMemoryPoolsSupported, 0},
    };
    if (index < 0 || index >= n_devices())
        return answer(cudaErrorInvalidDevice);
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        if (table[i].attribute == attribute) {
            *ret = table[i].value;
            return answer(cudaSuccess);
        }
    cuda_host_fail("the stand-in does not support attribute %d of a device", attribute);
}

cudaError_t cudaDeviceGetPCIBusId(char *ret, int bytes, int index)
{
    snprintf(ret, (size_t)bytes, "0000:%02x:00.0", index + 1);
    return answer(cudaSuccess);
}

cudaError_t cudaDriverGetVersion(int *ret)
{
    *ret = DRIVER;
    return answer(cudaSuccess);
}

cudaError_t cudaRuntimeGetVersion(int *ret)
{
    *ret = CUDART_VERSION;
    return answer(cudaSuccess);
}

cudaError_t cudaMemGetInfo(size_t *ret_free, size_t *ret_total)
{
    host_lock();
    *ret_total = (size_t)host_memory_total();
    *ret_free = *ret_total - (size_t)host_memory_live(device);
    return unlock(cudaSuccess);
}

cudaError_t cudaDeviceSynchronize(void)
{
    host_lock();
    host_counts.host_syncs++;
    host_run_device(device);
    return unlock(cudaSuccess);
}

/* ---- memory ---- */

static cudaError_t memory_new(enum host_memory kind, void **ret, size_t bytes)
{
    host_lock();
    *ret = NULL;
    if (bytes && !host_injected("malloc"))
        *ret = host_memory_new(kind, device, bytes);
    return unlock(*ret || !bytes ? cudaSuccess : cudaErrorMemoryAllocation);
}

static cudaError_t memory_free(enum host_memory kind, void *p)
{
    cudaError_t code = cudaSuccess;
    host_lock();
    host_run_device(device); /* the real function waits too */
    if (p && !host_memory_free(kind, p))
        code = cudaErrorInvalidValue;
    return unlock(code);
}

cudaError_t cudaMalloc(void **ret, size_t bytes)
{
    return memory_new(HOST_DEVICE, ret, bytes);
}

cudaError_t cudaFree(void *p)
{
    return memory_free(HOST_DEVICE, p);
}

static bool run_free(void *arg)
{
    if (!host_memory_free(HOST_DEVICE, arg))
        cuda_host_fail("memory at %p is freed in a stream's order, and is not an allocation", arg);
    return true;
}

/* Memory is available at once, whatever the stream waits for; it is freed when the stream reaches that point. */
cudaError_t cudaMallocAsync(void **ret, size_t bytes, cudaStream_t handle)
{
    return memory_new(HOST_DEVICE, ret, bytes);
}

cudaError_t cudaFreeAsync(void *p, cudaStream_t handle)
{
    host_lock();
    host_submit(host_stream_of(handle, device), &(struct host_work){"a free", run_free, NULL, p});
    return unlock(cudaSuccess);
}

cudaError_t cudaHostAlloc(void **ret, size_t bytes, unsigned flags)
{
    return memory_new(HOST_PINNED, ret, bytes);
}

cudaError_t cudaMallocHost(void **ret, size_t bytes)
{
    return memory_new(HOST_PINNED, ret, bytes);
}

cudaError_t cudaFreeHost(void *p)
{
    return memory_free(HOST_PINNED, p);
}

cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned flags)
{
    host_lock();
    bool ok = !host_injected("malloc") && host_memory_register(p, bytes);
    return unlock(ok ? cudaSuccess : cudaErrorHostMemoryAlreadyRegistered);
}

cudaError_t cudaHostUnregister(void *p)
{
    cudaError_t code = memory_free(HOST_REGISTERED, p);
    return code == cudaErrorInvalidValue ? cudaErrorHostMemoryNotRegistered : code;
}

/* ---- streams ---- */

cudaError_t cudaDeviceGetStreamPriorityRange(int *ret_least, int *ret_greatest)
{
    *ret_least = 0;
    *ret_greatest = -5;
    return answer(cudaSuccess);
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *ret, unsigned flags, int priority)
{
    if (flags != cudaStreamNonBlocking)
        cuda_host_fail("the stand-in supports only non-blocking streams");
    host_lock();
    *ret = host_stream_new(device, false);
    host_counts.streams++;
    host_counts.live_streams++;
    return unlock(cudaSuccess);
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *ret, unsigned flags)
{
    return cudaStreamCreateWithPriority(ret, flags, 0);
}

cudaError_t cudaStreamDestroy(cudaStream_t handle)
{
    host_lock();
    struct CUstream_st *s = host_stream_of(handle, device);
    host_counts.dropped_work += (int64_t)s->n;
    host_counts.live_streams--;
    host_run_stream(s); /* the real function lets the stream finish by itself */
    host_stream_free(s);
    return unlock(cudaSuccess);
}

cudaError_t cudaStreamSynchronize(cudaStream_t handle)
{
    host_lock();
    host_counts.host_syncs++;
    host_run_stream(host_stream_of(handle, device));
    return unlock(cudaSuccess);
}

cudaError_t cudaStreamQuery(cudaStream_t handle)
{
    host_lock();
    struct CUstream_st *s = host_stream_of(handle, device);
    host_run_some();
    return unlock(s->n ? cudaErrorNotReady : cudaSuccess);
}

cudaError_t cudaStreamGetDevice(cudaStream_t handle, int *ret)
{
    host_lock();
    *ret = host_stream_of(handle, device)->device;
    return unlock(cudaSuccess);
}

/* ---- copies and fills ---- */

struct transfer {
    void *to;
    const void *from; /* NULL: fill with `byte` */
    int byte;
    size_t bytes;
};

static bool run_transfer(void *arg)
{
    const struct transfer *t = arg;
    if (host_sticky)
        return true;
    host_memory_of(t->to, t->bytes, "the target of a copy or fill");
    if (t->from) {
        host_memory_of(t->from, t->bytes, "the source of a copy");
        memmove(t->to, t->from, t->bytes);
    } else {
        memset(t->to, t->byte, t->bytes);
    }
    return true;
}

static cudaError_t transfer(cudaStream_t handle, const struct transfer *t, bool wait)
{
    host_lock();
    struct CUstream_st *s = host_stream_of(handle, device);
    enum host_memory to = host_memory_of(t->to, t->bytes, "the target of a copy or fill");
    enum host_memory from = t->from ? host_memory_of(t->from, t->bytes, "the source of a copy") : HOST_DEVICE;
    struct transfer *copy = malloc(sizeof(*copy));
    if (!copy)
        abort();
    *copy = *t;
    host_counts.copies++;
    if (!wait)
        host_counts.pageable_copies += to == HOST_PAGEABLE || from == HOST_PAGEABLE;
    if (!t->from && to == HOST_PAGEABLE)
        cuda_host_fail("a fill of memory that the device cannot access");
    host_submit(s, &(struct host_work){t->from ? "a copy" : "a fill", run_transfer, free, copy});
    if (wait)
        host_run_stream(s);
    return unlock(cudaSuccess);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t s)
{
    return transfer(s, &(struct transfer){.to = to, .from = from, .bytes = bytes}, false);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    return transfer(NULL, &(struct transfer){.to = to, .from = from, .bytes = bytes}, true);
}

cudaError_t cudaMemsetAsync(void *to, int byte, size_t bytes, cudaStream_t s)
{
    return transfer(s, &(struct transfer){.to = to, .byte = byte, .bytes = bytes}, false);
}

cudaError_t cudaMemset(void *to, int byte, size_t bytes)
{
    return transfer(NULL, &(struct transfer){.to = to, .byte = byte, .bytes = bytes}, false);
}

/* ---- events ---- */

static struct CUevent_st *event_of(cudaEvent_t e)
{
    if (!host_event_known(e))
        cuda_host_fail("an event that was destroyed or never created: %p", (void *)e);
    return e;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *ret, unsigned flags)
{
    host_lock();
    *ret = host_event_new(device, !(flags & cudaEventDisableTiming));
    return unlock(cudaSuccess);
}

cudaError_t cudaEventCreate(cudaEvent_t *ret)
{
    return cudaEventCreateWithFlags(ret, cudaEventDefault);
}

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    host_lock();
    host_event_free(event_of(e));
    return unlock(cudaSuccess);
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t handle)
{
    cudaError_t code = cudaSuccess;
    host_lock();
    struct CUstream_st *s = host_stream_of(handle, device);
    if (event_of(e)->device != s->device)
        code = cudaErrorInvalidResourceHandle;
    else
        host_event_record(e, s);
    return unlock(code);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t handle, cudaEvent_t e, unsigned flags)
{
    host_lock();
    host_event_wait(event_of(e), host_stream_of(handle, device));
    return unlock(cudaSuccess);
}

static bool event_over(void *arg)
{
    const struct CUevent_st *e = arg;
    return e->done >= e->recorded;
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    host_lock();
    host_counts.host_syncs++;
    event_of(e)->waits += e->recorded > 0;
    host_run_until(event_over, e, "waiting for an event");
    return unlock(cudaSuccess);
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
    host_lock();
    event_of(e)->waits += e->recorded > 0;
    if (!event_over(e))
        host_run_some();
    return unlock(event_over(e) ? cudaSuccess : cudaErrorNotReady);
}

cudaError_t cudaEventElapsedTime(float *ret, cudaEvent_t from, cudaEvent_t to)
{
    cudaError_t code = cudaSuccess;
    host_lock();
    if (!event_of(from)->timed || !event_of(to)->timed || !from->recorded || !to->recorded)
        code = cudaErrorInvalidResourceHandle;
    else if (!event_over(from) || !event_over(to))
        code = cudaErrorNotReady;
    else
        *ret = (float)(to->ms - from->ms);
    return unlock(code);
}
