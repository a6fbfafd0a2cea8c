/* Converts failures of CUDA to a code and a sentence where they enter.
 *
 * CUDA reports a failed kernel to the next call on any stream of the device. The sentence therefore names that call and
 * the newest work that its stream had queued before. A failure that makes the context unusable is kept with the device:
 * every later call repeats that first sentence instead of a consequence of it. */
#include "kernels/cuda/cuda.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Codes that headers before CUDA 12.8 do not define; a newer driver may still report them. */
#define CONTAINED ((cudaError_t)226)
#define TENSOR_MEMORY_LEAK ((cudaError_t)721)

/* The meaning of a code for the caller; other codes are ERR_INTERNAL. `breaks`: the context is unusable afterwards.
 * This holds for the codes after which, by the vendor's driver_types.h, the process must be terminated, for hardware
 * errors, for a lost context, and for the unnamed code. */
static const struct {
    cudaError_t code;
    err_t err;
    bool breaks;
} codes[] = {
    {cudaErrorMemoryAllocation, ERR_NOMEM, false},
    {cudaErrorNoDevice, ERR_UNSUPPORTED, false},
    {cudaErrorInsufficientDriver, ERR_UNSUPPORTED, false},
    {cudaErrorNoKernelImageForDevice, ERR_UNSUPPORTED, false},
    {cudaErrorUnsupportedPtxVersion, ERR_UNSUPPORTED, false},
    {cudaErrorSystemNotReady, ERR_UNSUPPORTED, false},
    {cudaErrorSystemDriverMismatch, ERR_UNSUPPORTED, false},
    {cudaErrorNotSupported, ERR_UNSUPPORTED, false},
    {cudaErrorInvalidDevice, ERR_NOTFOUND, false},
    {cudaErrorDevicesUnavailable, ERR_BUSY, false},
    {cudaErrorHostMemoryAlreadyRegistered, ERR_EXISTS, false},
    {cudaErrorIllegalAddress, ERR_INTERNAL, true},
    {cudaErrorMisalignedAddress, ERR_INTERNAL, true},
    {cudaErrorInvalidAddressSpace, ERR_INTERNAL, true},
    {cudaErrorInvalidPc, ERR_INTERNAL, true},
    {cudaErrorIllegalInstruction, ERR_INTERNAL, true},
    {cudaErrorHardwareStackError, ERR_INTERNAL, true},
    {cudaErrorAssert, ERR_INTERNAL, true},
    {cudaErrorLaunchFailure, ERR_INTERNAL, true},
    {TENSOR_MEMORY_LEAK, ERR_INTERNAL, true},
    {cudaErrorLaunchTimeout, ERR_TIMEOUT, true},
    {cudaErrorECCUncorrectable, ERR_IO, true},
    {cudaErrorNvlinkUncorrectable, ERR_IO, true},
    {CONTAINED, ERR_IO, true},
    {cudaErrorMpsClientTerminated, ERR_IO, true},
    {cudaErrorExternalDevice, ERR_IO, true},
    {cudaErrorContextIsDestroyed, ERR_INTERNAL, true},
    {cudaErrorUnknown, ERR_INTERNAL, true},
};

static err_t code_err(cudaError_t code, bool *ret_breaks)
{
    *ret_breaks = false;
    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
        if (codes[i].code != code)
            continue;
        *ret_breaks = codes[i].breaks;
        return codes[i].err;
    }
    return ERR_INTERNAL;
}

/* The path relative to the source tree, for any build folder. */
static const char *place_of(const char *file)
{
    const char *p = strstr(file, "kernels/cuda/");
    return p ? p : file;
}

static int name_length(const char *call)
{
    return (int)strcspn(call, "(");
}

static void sentence(const struct dev *d, const char *call, const char *file, int line, const char *what,
                     struct why *why)
{
    why_set(why, OK, "CUDA device %d: %.*s at %s:%d: %s", d->index, name_length(call), call, place_of(file), line,
            what);
}

static void words_of(cudaError_t code, struct why *ret)
{
    why_set(ret, OK, "%s (%s)", cudaGetErrorString(code), cudaGetErrorName(code));
}

static void name_last_queued(const struct cuda_stream *s, struct why *why)
{
    struct why first = *why;
    if (s->call)
        why_set(why, OK, "%.*s; the newest work of its stream was %.*s at %s:%d", 700, first.text, name_length(s->call),
                s->call, place_of(s->file), s->line);
}

static err_t record_failure(struct cuda_stream *s, err_t err, const struct why *why)
{
    if (s->err == OK) {
        s->err = err;
        s->why = *why;
    }
    return err;
}

err_t cuda_check(struct kern_stream *base, cudaError_t code, const char *call, const char *file, int line)
{
    struct cuda_stream *s = cuda_stream_of(base);
    struct cuda_dev *d = cuda_dev_of(base);
    if (code == cudaSuccess) {
        s->call = call;
        s->file = file;
        s->line = line;
        return OK;
    }
    cudaGetLastError(); /* else the next launch would report this failure */
    if (d->err != OK)
        return record_failure(s, d->err, &d->why);
    bool breaks;
    err_t err = code_err(code, &breaks);
    struct why words, why;
    words_of(code, &words);
    sentence(base->dev, call, file, line, words.text, &why);
    if (breaks) {
        name_last_queued(s, &why);
        d->err = err;
        d->why = why;
    }
    return record_failure(s, err, &why);
}

err_t cuda_fail(struct kern_stream *s, err_t err, const char *call, const char *file, int line, const char *what)
{
    struct why why;
    sentence(s->dev, call, file, line, what, &why);
    return record_failure(cuda_stream_of(s), err, &why);
}

err_t cuda_why(struct cuda_dev *d, cudaError_t code, const char *call, const char *file, int line, struct why *why)
{
    if (code == cudaSuccess)
        return OK;
    cudaGetLastError();
    if (d->err == OK) {
        bool breaks;
        struct why words, first;
        err_t err = code_err(code, &breaks);
        words_of(code, &words);
        sentence(&d->base, call, file, line, words.text, &first);
        if (!breaks)
            return why_set(why, err, "%s", first.text);
        d->err = err;
        d->why = first;
    }
    return why_set(why, d->err, "%s", d->why.text);
}

bool cuda_enter(struct kern_stream *s)
{
    struct cuda_dev *d = cuda_dev_of(s);
    if (d->err != OK) {
        record_failure(cuda_stream_of(s), d->err, &d->why);
        return false;
    }
    cudaError_t code = cudaSetDevice(d->base.index);
    return code == cudaSuccess || cuda_check(s, code, "cudaSetDevice", __FILE__, __LINE__) == OK;
}

/* The oldest driver that a runtime of this version works with, from the vendor's compatibility table. */
static int driver_wanted(void)
{
    return CUDART_VERSION >= 13000 ? 580 : 525;
}

err_t cuda_absent(cudaError_t code, struct why *why)
{
    int driver = 0;
    cudaGetLastError();
    if (cudaDriverGetVersion(&driver) != cudaSuccess)
        driver = 0;
    if (code == cudaErrorInsufficientDriver && driver == 0)
        return why_set(
            why, ERR_UNSUPPORTED,
            "no NVIDIA driver responds on this machine: libcuda.so.1 or the kernel's driver is missing; install "
            "driver %d or newer (nvidia-smi then lists the GPUs)",
            driver_wanted());
    if (code == cudaErrorInsufficientDriver)
        return why_set(
            why, ERR_UNSUPPORTED,
            "the NVIDIA driver is too old: it supports CUDA %d.%d and this build needs CUDA %d.%d; install driver "
            "%d or newer",
            driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10, driver_wanted());
    if (code == cudaErrorNoDevice) {
        const char *visible = getenv("CUDA_VISIBLE_DEVICES");
        return why_set(why, ERR_UNSUPPORTED, "the NVIDIA driver (CUDA %d.%d) reports no GPU%s%s%s", driver / 1000,
                       driver % 1000 / 10, visible ? "; CUDA_VISIBLE_DEVICES is \"" : "", visible ? visible : "",
                       visible ? "\"" : ": nvidia-smi should list one, and /dev/nvidia* must be open to this user");
    }
    bool breaks;
    return why_set(why, code_err(code, &breaks), "CUDA cannot be used: %s (%s)", cudaGetErrorString(code),
                   cudaGetErrorName(code));
}
