/* Devices: memory, streams and events of what computes, one interface over the processor ("cpu") and over CUDA ("cuda",
 * a module that is loaded when somebody opens one).
 *
 * A stream is a queue in order; every call that takes one may return before the work is done, and nothing synchronises
 * behind the caller's back. Events order streams among each other. On a CPU a stream is the calling thread, so work is
 * done when a call returns and events are always over.
 *
 * A device and what belongs to it are used by one thread at a time; of the processor that holds of each stream alone,
 * and a stream is whatever thread calls with it. Failures that a call cannot return (a launch of a
 * kernel whose function returns void, anything asynchronous) stay with the stream: the first one, with its call and
 * place, is what dev_stream_sync and dev_event_sync of that stream answer from
 * then on. The owner closes everything in the reverse order. */
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

/* What every backend's device and stream begin with. */
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
    int processors;   /* streaming multiprocessors; cores */
    int major, minor; /* compute capability; 0 on a CPU */
};

/* One event is over when the work queued before its last record is; a fresh one is over. `timed` ones can be asked
 * how long apart they were. */
struct dev_ops {
    const char *name;
    bool host_memory; /* its memory can be read and written by the processor */
    err_t (*count)(int *ret, struct why *why);
    err_t (*open)(int index, struct dev **ret, struct why *why);
    void (*close)(struct dev *d);
    err_t (*facts)(struct dev *d, struct dev_facts *ret, struct why *why);
    const struct kern_ops *(*kernels)(enum dtype dtype);
    err_t (*algorithms)(struct dev *d, const char *path, struct why *why); /* NULL: it has no choice of them */

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

/* How many devices of a kind this machine has. ERR_UNSUPPORTED when there is no module or no driver, ERR_NOTFOUND for
 * an unknown kind: the sentence says what is missing and what to do. */
NODISCARD err_t dev_count(const char *name, int *ret, struct why *why);
NODISCARD err_t dev_open(const char *name, int index, struct dev **ret, struct why *why);
void dev_close(struct dev *d); /* NULL is legal */
NODISCARD err_t dev_facts(struct dev *d, struct dev_facts *ret, struct why *why);
/* The fastest kernels of the device for a compute type, NULL when it has none. */
const struct kern_ops *dev_kernels(const struct dev *d, enum dtype dtype);

/* Products choose their algorithms by timing from now on, once for each, and what was chosen is kept in the algorithm
 * file `path`, or in one in the folder `path` that is named after the GPU and its library (docs/internals/kernels.md). NULL, as
 * in the beginning: nothing is timed, and products do what the library proposes first. After a failure (ERR_STALE: the
 * file is another GPU's or library's) it is as after NULL. Waits for nothing, but no product may run on another thread.
 * A device without a choice (the processor) takes any path and opens none. */
NODISCARD err_t dev_algorithms(struct dev *d, const char *path, struct why *why);

/* `bytes` of zeroed device memory, 256-aligned; NULL for 0 bytes. `what` is for the sentence of ERR_NOMEM. */
NODISCARD err_t dev_alloc(struct dev *d, size_t bytes, const char *what, void **ret, struct why *why);
void dev_free(struct dev *d, void *p, size_t bytes);
/* The same in the processor's memory, pinned: copies to and from it are asynchronous. */
NODISCARD err_t dev_host_alloc(struct dev *d, size_t bytes, const char *what, void **ret, struct why *why);
void dev_host_free(struct dev *d, void *p, size_t bytes);
/* Pins memory that is mapped already (an arena). */
NODISCARD err_t dev_host_pin(struct dev *d, void *p, size_t bytes, struct why *why);
void dev_host_unpin(struct dev *d, void *p);

/* `threads`: of a CPU stream, 0: one. `urgent`: of the device's highest priority (communication). */
NODISCARD err_t dev_stream_new(struct dev *d, int threads, bool urgent, struct kern_stream **ret, struct why *why);
void dev_stream_free(struct kern_stream *s); /* NULL is legal; waits for what is queued */
/* Returns when everything queued is done; the stream's first failure if there was one. */
NODISCARD err_t dev_stream_sync(struct kern_stream *s, struct why *why);
void *dev_stream_native(struct kern_stream *s); /* cudaStream_t; NULL on a CPU */
NODISCARD err_t dev_zero(struct kern_stream *s, void *p, size_t bytes);
/* Device or host memory on either side. Host memory must stay as it is until the copy is done. */
NODISCARD err_t dev_copy(struct kern_stream *s, void *dst, const void *src, size_t bytes);

NODISCARD err_t dev_event_new(struct dev *d, bool timed, struct dev_event **ret);
void dev_event_free(struct dev *d, struct dev_event *e); /* NULL is legal */
NODISCARD err_t dev_event_record(struct dev *d, struct dev_event *e, struct kern_stream *s);
/* What is queued on `s` from now on begins after the event is over; passes at once when it never was recorded. */
NODISCARD err_t dev_event_wait(struct dev *d, struct dev_event *e, struct kern_stream *s);
NODISCARD err_t dev_event_sync(struct dev *d, struct dev_event *e, struct why *why);
bool dev_event_over(struct dev *d, struct dev_event *e);
/* Milliseconds between two recorded timed events that are over. */
double dev_event_ms(struct dev *d, const struct dev_event *from, const struct dev_event *to);

/* Named ranges for a profiler; they nest. */
void dev_range_begin(struct dev *d, const char *name);
void dev_range_end(struct dev *d);

/* A loadable module exports this: `struct dev_module dtd_cuda_module`. `abi` is checked before anything is called. */
#define DEV_MODULE_ABI 5
struct dev_module {
    int abi;
    const struct dev_ops *device;
};

/* Where modules are looked for, in this order: the folder named by DTD_MODULE_DIR, the program's own folder,
 * ../lib/dtd beside it. Loads `file` ("dtd-cuda.so") once and returns the address of `symbol`; the sentence of
 * ERR_UNSUPPORTED has all places and the loader's own words. Never unloaded. */
NODISCARD err_t dev_module_load(const char *file, const char *symbol, void **ret, struct why *why);

#ifdef __cplusplus
}
#endif

#endif
