/* The device interface over the CUDA runtime: memory, streams, events and copies of one GPU.
 *
 * Streams are non-blocking, so that our work never waits for the legacy stream. The few calls that use the legacy
 * stream (zeroing a new allocation) wait for it before they return. CUDA keeps the current device per thread, so every
 * call that may be the first on a thread sets it. The primary context is shared with other users of the GPU in this
 * process (NCCL) and is therefore never reset. */
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/gemm_cache.h"
#include "kernels/cuda/gemm_file.h"

#include "common/base/log.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>
#define HAVE_NVTX 1
#endif

#define OLDEST_MAJOR 8 /* oldest compute capability that the module's machine code and PTX support */
#define SCRATCH_GRAIN ((size_t)1 << 20)
#define GIB (1024.0 * 1024 * 1024)

struct dev_event {
    cudaEvent_t handle;
    struct cuda_dev *dev;
    struct cuda_stream *stream; /* stream of the newest record; NULL: none yet */
};

static struct cuda_dev *cuda_of(struct dev *d)
{
    return (struct cuda_dev *)d;
}

/* For calls without a stream: makes the device the thread's current one; fails if its context is broken. */
static err_t enter_device(struct cuda_dev *d, struct why *why)
{
    if (d->err != OK)
        return why_set(why, d->err, "%s", d->why.text);
    return CUDA_WHY(d, cudaSetDevice(d->base.index), why);
}

/* ---- the device ---- */

static err_t count(int *ret, struct why *why)
{
    int n = 0;
    cudaError_t code = cudaGetDeviceCount(&n);
    if (code == cudaErrorNoDevice) {
        cudaGetLastError();
        *ret = 0;
        return OK;
    }
    if (code != cudaSuccess)
        return cuda_absent(code, why);
    *ret = n;
    return OK;
}

static err_t check_index(int index, struct why *why)
{
    int n = 0;
    err_t err = count(&n, why);
    if (err != OK)
        return err;
    if (n == 0)
        return cuda_absent(cudaErrorNoDevice, why);
    if (index < 0 || index >= n)
        return why_set(why, ERR_NOTFOUND, "there is no CUDA device %d: this machine has %d, numbered from 0", index, n);
    return OK;
}

static err_t read_attributes(struct cuda_dev *d, struct why *why)
{
    int shared = 0;
    const struct {
        enum cudaDeviceAttr attr;
        int *value;
    } wanted[] = {
        {cudaDevAttrMultiProcessorCount, &d->processors},
        {cudaDevAttrComputeCapabilityMajor, &d->major},
        {cudaDevAttrComputeCapabilityMinor, &d->minor},
        {cudaDevAttrMaxSharedMemoryPerBlockOptin, &shared},
    };
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        err_t err = CUDA_WHY(d, cudaDeviceGetAttribute(wanted[i].value, wanted[i].attr, d->base.index), why);
        if (err != OK)
            return err;
    }
    d->shared_optin = (size_t)shared;
    if (d->major < OLDEST_MAJOR)
        return why_set(why, ERR_UNSUPPORTED,
                       "CUDA device %d has compute capability %d.%d: dtd's kernels need %d.0 (Ampere) or newer",
                       d->base.index, d->major, d->minor, OLDEST_MAJOR);
    return OK;
}

static void cuda_close(struct dev *base)
{
    struct cuda_dev *d = cuda_of(base);
    cudaSetDevice(base->index);
    gemm_cache_free(d->gemms);
    gemm_file_close(d->algorithms);
    if (d->blaslt)
        cublasLtDestroy(d->blaslt);
    free(d);
}

static err_t open_device(int index, struct dev **ret, struct why *why)
{
    log_init("dtd-cuda"); /* the module has its own copy of the logger */
    err_t err = check_index(index, why);
    if (err != OK)
        return err;
    struct cuda_dev *d = calloc(1, sizeof(*d));
    if (!d)
        return why_set(why, ERR_NOMEM, "out of memory");
    d->base = (struct dev){.ops = &cuda_device_ops, .index = index};
    if ((err = enter_device(d, why)) != OK || (err = read_attributes(d, why)) != OK)
        goto close;
    cublasStatus_t status = cublasLtCreate(&d->blaslt);
    if (status != CUBLAS_STATUS_SUCCESS) {
        d->blaslt = NULL;
        err = why_set(why, ERR_INTERNAL, "cannot start cuBLASLt on CUDA device %d: %s", index,
                      cublasLtGetStatusString(status));
        goto close;
    }
    d->gemms = gemm_cache_new();
    if (!d->gemms) {
        err = why_set(why, ERR_NOMEM, "out of memory");
        goto close;
    }
    *ret = &d->base;
    return OK;
close:
    cuda_close(&d->base);
    return err;
}

static void format_uuid(const cudaUUID_t *u, char *text, size_t size)
{
    const unsigned char *b = (const unsigned char *)u->bytes;
    snprintf(text, size, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b[0], b[1], b[2],
             b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
}

/* The runtime reports only the newest CUDA that the driver supports; the driver's own version is that of the kernel
 * module. */
static void format_driver(char *text, size_t size)
{
    int driver = 0, runtime = 0;
    char version[16] = "?"; /* "580.159.04" */
    FILE *f = fopen("/sys/module/nvidia/version", "re");
    if (f) {
        if (fgets(version, sizeof(version), f))
            version[strcspn(version, "\n")] = '\0';
        fclose(f);
    }
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    snprintf(text, size, "driver %s, CUDA %d.%d, runtime %d.%d", version, driver / 1000, driver % 1000 / 10,
             runtime / 1000, runtime % 1000 / 10);
}

static err_t facts(struct dev *base, struct dev_facts *ret, struct why *why)
{
    struct cuda_dev *d = cuda_of(base);
    struct cudaDeviceProp p;
    size_t unused, total;
    err_t err = enter_device(d, why);
    if (err == OK)
        err = CUDA_WHY(d, cudaGetDeviceProperties(&p, base->index), why);
    if (err == OK)
        err = CUDA_WHY(d, cudaMemGetInfo(&unused, &total), why);
    if (err != OK)
        return err;
    struct dev_facts facts = {.memory_bytes = (int64_t)total,
                              .free_bytes = (int64_t)unused,
                              .processors = d->processors,
                              .major = d->major,
                              .minor = d->minor};
    snprintf(facts.model, sizeof(facts.model), "%.127s", p.name);
    format_uuid(&p.uuid, facts.uuid, sizeof(facts.uuid));
    format_driver(facts.driver, sizeof(facts.driver));
    *ret = facts;
    return OK;
}

/* Identifies the GPU by name and number of multiprocessors: on equal GPUs one version of cuBLASLt gives the same bits.
 */
static err_t algorithms(struct dev *base, const char *path, struct why *why)
{
    struct cuda_dev *d = cuda_of(base);
    struct cudaDeviceProp p;
    char gpu[192];
    gemm_cache_clear(d->gemms);
    gemm_file_close(d->algorithms);
    d->algorithms = NULL;
    err_t err = enter_device(d, why);
    if (err == OK && path)
        err = CUDA_WHY(d, cudaGetDeviceProperties(&p, base->index), why);
    if (err != OK || !path)
        return err;
    snprintf(gpu, sizeof(gpu), "%.127s, %d processors", p.name, d->processors);
    err = gemm_file_open(path, gpu, cublasLtGetVersion(), &d->algorithms, why);
    if (err == OK)
        log_info("algorithms file=%s", gemm_file_path(d->algorithms));
    return err;
}

/* ---- memory ---- */

static err_t no_memory(struct cuda_dev *d, size_t bytes, const char *what, struct why *why)
{
    size_t unused = 0, total = 0;
    if (cudaMemGetInfo(&unused, &total) != cudaSuccess)
        cudaGetLastError();
    return why_set(why, ERR_NOMEM,
                   "CUDA device %d has no memory for %s: %.2f GiB are needed, %.2f of %.2f GiB are free", d->base.index,
                   what, (double)bytes / GIB, (double)unused / GIB, (double)total / GIB);
}

static err_t device_alloc(struct dev *base, size_t bytes, const char *what, void **ret, struct why *why)
{
    struct cuda_dev *d = cuda_of(base);
    void *p = NULL;
    err_t err = enter_device(d, why);
    if (err != OK)
        return err;
    err = CUDA_WHY(d, cudaMalloc(&p, bytes), why);
    if (err == ERR_NOMEM)
        return no_memory(d, bytes, what, why);
    if (err == OK)
        err = CUDA_WHY(d, cudaMemset(p, 0, bytes), why);
    if (err == OK)
        err = CUDA_WHY(d, cudaStreamSynchronize(NULL), why);
    if (err != OK) {
        cudaFree(p);
        return err;
    }
    *ret = p;
    return OK;
}

static void device_free(struct dev *base, void *p, size_t bytes)
{
    (void)bytes;
    cudaSetDevice(base->index);
    cudaFree(p);
}

static err_t pinned_alloc(struct dev *base, size_t bytes, const char *what, void **ret, struct why *why)
{
    struct cuda_dev *d = cuda_of(base);
    void *p = NULL;
    err_t err = enter_device(d, why);
    if (err != OK)
        return err;
    err = CUDA_WHY(d, cudaHostAlloc(&p, bytes, cudaHostAllocPortable), why);
    if (err == ERR_NOMEM)
        return why_set(why, ERR_NOMEM, "%.2f GiB of host memory cannot be pinned for %s", (double)bytes / GIB, what);
    if (err != OK)
        return err;
    memset(p, 0, bytes);
    *ret = p;
    return OK;
}

static void pinned_free(struct dev *base, void *p, size_t bytes)
{
    (void)bytes;
    cudaSetDevice(base->index);
    cudaFreeHost(p);
}

static err_t pin(struct dev *base, void *p, size_t bytes, struct why *why)
{
    struct cuda_dev *d = cuda_of(base);
    err_t err = enter_device(d, why);
    return err == OK ? CUDA_WHY(d, cudaHostRegister(p, bytes, cudaHostRegisterPortable), why) : err;
}

static void unpin(struct dev *base, void *p)
{
    cudaSetDevice(base->index);
    cudaHostUnregister(p);
}

/* ---- streams ---- */

static err_t stream_new(struct dev *base, int threads, bool urgent, struct kern_stream **ret, struct why *why)
{
    struct cuda_dev *d = cuda_of(base);
    int least, greatest;
    (void)threads;
    err_t err = enter_device(d, why);
    if (err != OK)
        return err;
    struct cuda_stream *s = calloc(1, sizeof(*s));
    if (!s)
        return why_set(why, ERR_NOMEM, "out of memory");
    s->base.dev = base;
    err = CUDA_WHY(d, cudaDeviceGetStreamPriorityRange(&least, &greatest), why);
    if (err == OK)
        err = CUDA_WHY(d, cudaStreamCreateWithPriority(&s->handle, cudaStreamNonBlocking, urgent ? greatest : least),
                       why);
    if (err != OK) {
        free(s);
        return err;
    }
    *ret = &s->base;
    return OK;
}

static void stream_free(struct kern_stream *base)
{
    struct cuda_stream *s = cuda_stream_of(base);
    cudaSetDevice(base->dev->index);
    cudaStreamSynchronize(s->handle);
    cudaFree(s->scratch);
    cudaStreamDestroy(s->handle);
    free(s);
}

/* Returns the stream's recorded failure after `code`, the result of a call that waited for it. */
static err_t stream_result(struct cuda_stream *s, cudaError_t code, const char *call, int line, struct why *why)
{
    if (code != cudaSuccess) {
        err_t err = cuda_check(&s->base, code, call, __FILE__, line);
        return why_set(why, s->err != OK ? s->err : err, "%s", s->why.text);
    }
    return s->err == OK ? OK : why_set(why, s->err, "%s", s->why.text);
}

static err_t stream_sync(struct kern_stream *base, struct why *why)
{
    struct cuda_stream *s = cuda_stream_of(base);
    if (!cuda_enter(base))
        return why_set(why, s->err, "%s", s->why.text);
    return stream_result(s, cudaStreamSynchronize(s->handle), "cudaStreamSynchronize", __LINE__, why);
}

static void *stream_native(struct kern_stream *s)
{
    return cuda_stream_of(s)->handle;
}

static err_t zero(struct kern_stream *s, void *p, size_t bytes)
{
    if (!cuda_enter(s))
        return cuda_stream_of(s)->err;
    return CUDA_CHECK(s, cudaMemsetAsync(p, 0, bytes, cuda_stream_of(s)->handle));
}

static err_t copy(struct kern_stream *s, void *dst, const void *src, size_t bytes)
{
    if (!cuda_enter(s))
        return cuda_stream_of(s)->err;
    return CUDA_CHECK(s, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, cuda_stream_of(s)->handle));
}

/* Growing waits for the stream, because queued work may still use the old block. It happens only in the first steps. */
void *cuda_scratch(struct kern_stream *base, size_t bytes)
{
    struct cuda_stream *s = cuda_stream_of(base);
    if (bytes <= s->scratch_bytes)
        return s->scratch;
    size_t rounded = (bytes + SCRATCH_GRAIN - 1) / SCRATCH_GRAIN * SCRATCH_GRAIN;
    void *more = NULL;
    if (!cuda_enter(base))
        return NULL;
    cudaError_t code = cudaStreamSynchronize(s->handle);
    if (code != cudaSuccess) {
        (void)cuda_check(base, code, "cudaStreamSynchronize", __FILE__, __LINE__);
        return NULL;
    }
    cudaFree(s->scratch);
    s->scratch = NULL;
    s->scratch_bytes = 0;
    code = cudaMalloc(&more, rounded);
    if (code == cudaErrorMemoryAllocation) {
        struct why why;
        cudaGetLastError();
        no_memory(cuda_dev_of(base), rounded, "a stream's scratch", &why);
        cuda_fail(base, ERR_NOMEM, "cudaMalloc", __FILE__, __LINE__, why.text);
        return NULL;
    }
    if (code != cudaSuccess) {
        (void)cuda_check(base, code, "cudaMalloc", __FILE__, __LINE__);
        return NULL;
    }
    s->scratch = more;
    s->scratch_bytes = rounded;
    return more;
}

/* ---- events ---- */

static err_t event_new(struct dev *base, bool timed, struct dev_event **ret)
{
    struct cuda_dev *d = cuda_of(base);
    err_t err = enter_device(d, NULL);
    if (err != OK)
        return err;
    struct dev_event *e = calloc(1, sizeof(*e));
    if (!e)
        return ERR_NOMEM;
    e->dev = d;
    err = CUDA_WHY(d, cudaEventCreateWithFlags(&e->handle, timed ? cudaEventDefault : cudaEventDisableTiming), NULL);
    if (err != OK) {
        free(e);
        return err;
    }
    *ret = e;
    return OK;
}

static void event_free(struct dev_event *e)
{
    cudaSetDevice(e->dev->base.index);
    cudaEventDestroy(e->handle);
    free(e);
}

static err_t event_record(struct dev_event *e, struct kern_stream *s)
{
    if (!cuda_enter(s))
        return cuda_stream_of(s)->err;
    /* Not through CUDA_CHECK: the record itself must not count as the newest work of the stream. */
    cudaError_t code = cudaEventRecord(e->handle, cuda_stream_of(s)->handle);
    if (code != cudaSuccess)
        return cuda_check(s, code, "cudaEventRecord", __FILE__, __LINE__);
    e->stream = cuda_stream_of(s);
    return OK;
}

static err_t event_wait(struct dev_event *e, struct kern_stream *s)
{
    if (!cuda_enter(s))
        return cuda_stream_of(s)->err;
    cudaError_t code = cudaStreamWaitEvent(cuda_stream_of(s)->handle, e->handle, 0);
    return code == cudaSuccess ? OK : cuda_check(s, code, "cudaStreamWaitEvent", __FILE__, __LINE__);
}

static err_t event_sync(struct dev_event *e, struct why *why)
{
    if (!e->stream)
        return OK;
    if (!cuda_enter(&e->stream->base))
        return why_set(why, e->stream->err, "%s", e->stream->why.text);
    return stream_result(e->stream, cudaEventSynchronize(e->handle), "cudaEventSynchronize", __LINE__, why);
}

/* A failed event counts as complete: the next wait for it returns the failure. */
static bool event_over(struct dev_event *e)
{
    if (!e->stream || !cuda_enter(&e->stream->base))
        return true;
    cudaError_t code = cudaEventQuery(e->handle);
    if (code == cudaErrorNotReady) {
        cudaGetLastError();
        return false;
    }
    if (code != cudaSuccess)
        (void)cuda_check(&e->stream->base, code, "cudaEventQuery", __FILE__, __LINE__);
    return true;
}

static double event_ms(const struct dev_event *from, const struct dev_event *to)
{
    float ms = 0;
    if (cudaEventElapsedTime(&ms, from->handle, to->handle) == cudaSuccess)
        return ms;
    cudaGetLastError();
    return NAN;
}

/* ---- ranges ---- */

static void range_begin(const char *name)
{
#ifdef HAVE_NVTX
    nvtxRangePushA(name);
#else
    (void)name;
#endif
}

static void range_end(void)
{
#ifdef HAVE_NVTX
    nvtxRangePop();
#endif
}

extern const struct kern_ops kern_cuda_f32_ops, kern_cuda_bf16_ops;

static const struct kern_ops *kernels(enum dtype dtype)
{
    return dtype == DT_F32 ? &kern_cuda_f32_ops : dtype == DT_BF16 ? &kern_cuda_bf16_ops : NULL;
}

const struct dev_ops cuda_device_ops = {
    .name = "cuda",
    .host_memory = false,
    .count = count,
    .open = open_device,
    .close = cuda_close,
    .facts = facts,
    .kernels = kernels,
    .algorithms = algorithms,
    .alloc = device_alloc,
    .free = device_free,
    .host_alloc = pinned_alloc,
    .host_free = pinned_free,
    .host_pin = pin,
    .host_unpin = unpin,
    .stream_new = stream_new,
    .stream_free = stream_free,
    .stream_sync = stream_sync,
    .stream_native = stream_native,
    .zero = zero,
    .copy = copy,
    .event_new = event_new,
    .event_free = event_free,
    .event_record = event_record,
    .event_wait = event_wait,
    .event_sync = event_sync,
    .event_over = event_over,
    .event_ms = event_ms,
    .range_begin = range_begin,
    .range_end = range_end,
};
