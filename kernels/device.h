/* Devices: memory, streams and events, with one interface over the processor ("cpu") and CUDA ("cuda", a module that is
 * loaded when a program opens such a device).
 *
 * A stream is an ordered queue. Every call that takes a stream may return before the work is done, and no call
 * synchronises implicitly. Events order the work of different streams. On a CPU a stream is the calling thread, so work
 * is done when a call returns, and events are always complete.
 *
 * One thread at a time may use a device and everything that belongs to it. On the processor this rule holds per stream,
 * and a stream is whatever thread calls with it. Some failures cannot be returned by the call that caused them: a
 * kernel launch whose function returns void, and everything asynchronous. The stream keeps the first such failure with
 * its call and place; dev_stream_sync and dev_event_sync of that stream return it from then on. The owner closes
 * everything in reverse order of creation. */
#ifndef DTD_KERNELS_DEVICE_H
#define DTD_KERNELS_DEVICE_H

#include "common/base/dtype.h"
#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct kern_ops;
struct dev_ops;
struct dev_event;

/* The first member of every backend's device and stream. */
struct dev {
    const struct dev_ops *ops;
    int index;
};
struct kern_stream {
    struct dev *dev;
};

struct dev_facts {
    char model[128]; /* "NVIDIA H200", or the processor's name */
    char uuid[64];   /* "GPU-xxxxxxxx-..."; "" on a CPU */
    char driver[96]; /* "driver 580.95, CUDA 13.0"; "" on a CPU */
    int64_t memory_bytes, free_bytes;
    int processors;   /* number of streaming multiprocessors, or of cores */
    int major, minor; /* compute capability; 0 on a CPU */
};

/* An event is complete when the work queued before its last record is complete; an event that was never recorded is
 * complete. dev_event_ms returns the time between two events that were created with `timed`. */
struct dev_ops {
    const char *name;
    bool host_memory; /* the processor can read and write the device's memory */
    err_t (*count)(int *ret, struct why *why);
    err_t (*open)(int index, struct dev **ret, struct why *why);
    void (*close)(struct dev *d);
    err_t (*facts)(struct dev *d, struct dev_facts *ret, struct why *why);
    const struct kern_ops *(*kernels)(enum dtype dtype);
    err_t (*algorithms)(struct dev *d, const char *path, struct why *why); /* NULL: no choice of algorithms */

    err_t (*alloc)(struct dev *d, size_t bytes, const char *what, void **ret, struct why *why);
    void (*free)(struct dev *d, void *p, size_t bytes);
    err_t (*host_alloc)(struct dev *d, size_t bytes, const char *what, void **ret, struct why *why);
    void (*host_free)(struct dev *d, void *p, size_t bytes);
    err_t (*host_pin)(struct dev *d, void *p, size_t bytes, struct why *why);
    void (*host_unpin)(struct dev *d, void *p);

    err_t (*stream_new)(struct dev *d, int threads, bool urgent, struct kern_stream **ret, struct why *why);
    void (*stream_free)(struct kern_stream *s);
    err_t (*stream_sync)(struct kern_stream *s, struct why *why);
    void *(*stream_native)(struct kern_stream *s);
    err_t (*zero)(struct kern_stream *s, void *p, size_t bytes);
    err_t (*copy)(struct kern_stream *s, void *dst, const void *src, size_t bytes);

    err_t (*event_new)(struct dev *d, bool timed, struct dev_event **ret);
    void (*event_free)(struct dev_event *e);
    err_t (*event_record)(struct dev_event *e, struct kern_stream *s);
    err_t (*event_wait)(struct dev_event *e, struct kern_stream *s);
    err_t (*event_sync)(struct dev_event *e, struct why *why);
    bool (*event_over)(struct dev_event *e);
    double (*event_ms)(const struct dev_event *from, const struct dev_event *to);

    void (*range_begin)(const char *name);
    void (*range_end)(void);
};

/* Counts the devices of a kind on this machine. ERR_UNSUPPORTED when the module or the driver is missing, ERR_NOTFOUND
 * for an unknown kind; the sentence names what is missing and the remedy. */
NODISCARD err_t dev_count(const char *name, int *ret, struct why *why);
NODISCARD err_t dev_open(const char *name, int index, struct dev **ret, struct why *why);
void dev_close(struct dev *d); /* NULL is legal */
NODISCARD err_t dev_facts(struct dev *d, struct dev_facts *ret, struct why *why);
/* The device's fastest kernels for a compute type; NULL if it has none. */
const struct kern_ops *dev_kernels(const struct dev *d, enum dtype dtype);

/* From now on each matrix product chooses its algorithm once, by timing candidates, and records it in the algorithm
 * file. `path` is that file, or a folder in which the file is named after the GPU and its library
 * (docs/internals/kernels.md). NULL, the initial state: nothing is timed, and products use the library's first
 * proposal. After a failure (ERR_STALE: the file was written for another GPU or library) the state is that after NULL.
 * The call waits for nothing, but no other thread may run a product during it. A device without a choice of algorithms
 * (the processor) accepts any path and opens no file. */
NODISCARD err_t dev_algorithms(struct dev *d, const char *path, struct why *why);

/* Allocates `bytes` of zeroed device memory, aligned to 256 bytes; NULL for 0 bytes. `what` appears in the sentence of
 * ERR_NOMEM. */
NODISCARD err_t dev_alloc(struct dev *d, size_t bytes, const char *what, void **ret, struct why *why);
void dev_free(struct dev *d, void *p, size_t bytes);
/* Allocates pinned host memory likewise; copies to and from it are asynchronous. */
NODISCARD err_t dev_host_alloc(struct dev *d, size_t bytes, const char *what, void **ret, struct why *why);
void dev_host_free(struct dev *d, void *p, size_t bytes);
/* Pins memory that is already mapped, such as an arena. */
NODISCARD err_t dev_host_pin(struct dev *d, void *p, size_t bytes, struct why *why);
void dev_host_unpin(struct dev *d, void *p);

/* From now on no CPU kernel of this process uses more than `threads` threads, whatever its stream was given; 0: no
 * limit. A stream divides its work as before, so that only oneDNN's products may round differently. Any thread. */
void dev_cpu_limit(int threads);
/* `threads`: number of threads of a CPU stream, 0: one. `urgent`: the stream gets the device's highest priority (for
 * communication). */
NODISCARD err_t dev_stream_new(struct dev *d, int threads, bool urgent, struct kern_stream **ret, struct why *why);
void dev_stream_free(struct kern_stream *s); /* NULL is legal; waits for queued work */
/* Waits until all queued work is done; returns the stream's first failure, if any. */
NODISCARD err_t dev_stream_sync(struct kern_stream *s, struct why *why);
void *dev_stream_native(struct kern_stream *s); /* cudaStream_t; NULL on a CPU */
NODISCARD err_t dev_zero(struct kern_stream *s, void *p, size_t bytes);
/* Source and destination are device or host memory. Host memory must not change until the copy is done. */
NODISCARD err_t dev_copy(struct kern_stream *s, void *dst, const void *src, size_t bytes);

NODISCARD err_t dev_event_new(struct dev *d, bool timed, struct dev_event **ret);
void dev_event_free(struct dev *d, struct dev_event *e); /* NULL is legal */
NODISCARD err_t dev_event_record(struct dev *d, struct dev_event *e, struct kern_stream *s);
/* Work queued on `s` from now on starts after the event is complete; at once if the event was never recorded. */
NODISCARD err_t dev_event_wait(struct dev *d, struct dev_event *e, struct kern_stream *s);
NODISCARD err_t dev_event_sync(struct dev *d, struct dev_event *e, struct why *why);
bool dev_event_over(struct dev *d, struct dev_event *e);
/* Milliseconds between two timed events that were recorded and are complete. */
double dev_event_ms(struct dev *d, const struct dev_event *from, const struct dev_event *to);

/* Named ranges for a profiler; ranges may be nested. */
void dev_range_begin(struct dev *d, const char *name);
void dev_range_end(struct dev *d);

/* A loadable module exports `struct dev_module dtd_cuda_module`. The loader checks `abi` before it calls anything. */
#define DEV_MODULE_ABI 10
struct dev_module {
    int abi;
    const struct dev_ops *device;
};

#ifdef __cplusplus
}
#endif

#endif
