/* The stand-ins' heart: streams as queues of work that nobody does until somebody waits for it.
 *
 * One lock for all of the process. Whoever synchronises runs work, its own and others', one item at a time: the first
 * item of any stream may be next, chosen by the seed. So what a missing wait leaves unordered happens in some wrong
 * order under some seed. Items that cannot go on yet (a wait for an event, a collective whose peers have not come) say
 * so and are tried again. Device memory is open to the processor only while work runs. */
#ifndef DTD_TESTS_CUDA_HOST_QUEUE_H
#define DTD_TESTS_CUDA_HOST_QUEUE_H

#include "tests/cuda_host/counts.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cuda_runtime_api.h>

/* One item. Owned by the stream; `drop` (may be NULL) frees arg after it is done or the stream is destroyed. */
struct host_work {
    const char *name;
    bool (*run)(void *arg); /* false: not yet, call again; the lock is held */
    void (*drop)(void *arg);
    void *arg;
};

struct CUstream_st {
    struct CUstream_st *next;
    int device;
    bool legacy;
    unsigned priority; /* of the dice, not of the program */
    struct host_item *head, **tail;
    size_t n;
    uint64_t queued, done; /* items so far */
};

struct CUevent_st {
    struct CUevent_st *next;
    int device;
    bool timed;
    uint64_t recorded, done; /* versions */
    int64_t waits;           /* that meant a record: waits, synchronisations, queries */
    double ms;
};

/* All but host_queue_lock are called with the lock held. */
void host_lock(void);
void host_unlock(void);
extern struct cuda_host_counts host_counts;

struct CUstream_st *host_stream_new(int device, bool legacy);
void host_stream_free(struct CUstream_st *s);
bool host_stream_known(const struct CUstream_st *s);
/* The handle as the program gave it: NULL is the device's legacy stream. Ends the process on a stale one. */
struct CUstream_st *host_stream_of(cudaStream_t s, int device);
void host_submit(struct CUstream_st *s, const struct host_work *w);
/* Runs work until over(arg); gives the lock away while nothing can go on. Ends the process after a minute of that. */
void host_run_until(bool (*over)(void *arg), void *arg, const char *what);
void host_run_stream(struct CUstream_st *s);
void host_run_device(int device);
/* A few items or none: what goes on while the host is busy. */
void host_run_some(void);

struct CUevent_st *host_event_new(int device, bool timed);
void host_event_free(struct CUevent_st *e);
bool host_event_known(const struct CUevent_st *e);
void host_event_record(struct CUevent_st *e, struct CUstream_st *s);
void host_event_wait(struct CUevent_st *e, struct CUstream_st *s);

/* Time that the events of this work's stream measure as well, though it did not pass. */
void host_pass_ms(double ms);

/* The first failure of a kernel: from then on everything answers it. cudaSuccess: none. */
extern cudaError_t host_sticky;
/* What cuda_host_plant_ms planted for this, 0 without. */
double host_planted_ms(const char *what);
/* Whether the k-th of a kind is to fail now. */
bool host_injected(const char *what);

/* ---- memory.c ---- */

enum host_memory { HOST_PAGEABLE, HOST_DEVICE, HOST_PINNED, HOST_REGISTERED };

/* NULL when the device has no more. */
void *host_memory_new(enum host_memory kind, int device, size_t bytes);
/* False when `p` is none. Registered memory is only forgotten. */
bool host_memory_free(enum host_memory kind, void *p);
bool host_memory_register(void *p, size_t bytes);
/* What [p, p + bytes) is; ends the process when it begins in an allocation and leaves it, or when it was freed. */
enum host_memory host_memory_of(const void *p, size_t bytes, const char *what);
int64_t host_memory_live(int device);
int64_t host_memory_total(void);
void host_memory_open(bool open);

#endif
