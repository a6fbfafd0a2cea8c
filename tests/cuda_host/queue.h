/* The core of the stand-ins: streams are queues of work that runs only when a thread waits for it.
 *
 * One lock for the whole process. A thread that synchronises runs work, its own and others', one item at a time. The
 * next item is the first one of a stream that the seed chooses, so work that a missing wait leaves unordered runs in a
 * wrong order with some seed. Items that cannot continue yet (a wait for an event, a collective whose peers have not
 * joined) return false and are tried again. The processor can access device memory only while work runs. */
#ifndef DTD_TESTS_CUDA_HOST_QUEUE_H
#define DTD_TESTS_CUDA_HOST_QUEUE_H

#include "tests/cuda_host/counts.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime_api.h>

/* One item, owned by the stream. `drop` (may be NULL) frees arg after the item is done or the stream is destroyed. */
struct host_work {
    const char *name;
    bool (*run)(void *arg); /* false: cannot continue yet, call again; the caller holds the lock */
    void (*drop)(void *arg);
    void *arg;
};

struct CUstream_st {
    struct CUstream_st *next;
    int device;
    bool legacy;
    unsigned priority; /* drawn at random; unrelated to the program's priorities */
    struct host_item *head, **tail;
    size_t n;
    uint64_t queued, done; /* number of items so far */
};

struct CUevent_st {
    struct CUevent_st *next;
    int device;
    bool timed;
    uint64_t recorded, done; /* versions */
    int64_t waits;           /* waits, synchronisations and queries that referred to a record */
    double ms;
};

/* The caller of each function except host_queue_lock holds the lock. */
void host_lock(void);
void host_unlock(void);
extern struct cuda_host_counts host_counts;

struct CUstream_st *host_stream_new(int device, bool legacy);
void host_stream_free(struct CUstream_st *s);
bool host_stream_known(const struct CUstream_st *s);
/* Finds the stream of a program's handle; NULL is the device's legacy stream. Ends the process if the handle is stale.
 */
struct CUstream_st *host_stream_of(cudaStream_t s, int device);
void host_submit(struct CUstream_st *s, const struct host_work *w);
/* Runs work until over(arg); releases the lock while no stream can continue. Ends the process after a minute without
 * progress. */
void host_run_until(bool (*over)(void *arg), void *arg, const char *what);
void host_run_stream(struct CUstream_st *s);
void host_run_device(int device);
/* Runs a few items or none, as a device does while the host is busy. */
void host_run_some(void);

struct CUevent_st *host_event_new(int device, bool timed);
void host_event_free(struct CUevent_st *e);
bool host_event_known(const struct CUevent_st *e);
void host_event_record(struct CUevent_st *e, struct CUstream_st *s);
void host_event_wait(struct CUevent_st *e, struct CUstream_st *s);

/* Adds time that events of this work's stream measure although it did not pass. */
void host_pass_ms(double ms);

/* The first failure of a kernel, which every function returns from then on. cudaSuccess: none. */
extern cudaError_t host_sticky;
/* The duration set by cuda_host_plant_ms for `what`; 0: none. */
double host_planted_ms(const char *what);
/* Whether this call of its kind must fail. */
bool host_injected(const char *what);

/* ---- memory.c ---- */

enum host_memory { HOST_PAGEABLE, HOST_DEVICE, HOST_PINNED, HOST_REGISTERED };

/* NULL when the device is out of memory. */
void *host_memory_new(enum host_memory kind, int device, size_t bytes);
/* False when `p` is not an allocation. Registered memory is only unregistered. */
bool host_memory_free(enum host_memory kind, void *p);
bool host_memory_register(void *p, size_t bytes);
/* The kind of memory of [p, p + bytes). Ends the process when the range begins in an allocation and extends past its
 * end, or when it was freed. */
enum host_memory host_memory_of(const void *p, size_t bytes, const char *what);
int64_t host_memory_live(int device);
int64_t host_memory_total(void);
void host_memory_open(bool open);

#endif
