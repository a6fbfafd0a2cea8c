/* A device that records its calls. It uses the memory, streams and kernels of the CPU device, but `host_memory` is
 * false, so its users must behave as with a GPU. Work on the copy stream is delayed until it is needed (by a wait or a
 * sync for an event recorded after it, or by the end of its stream), as late as a device may run it. All other work is
 * done at once. One device at a time, one thread. */
#ifndef DTD_TESTS_WORKER_RECORD_DEVICE_H
#define DTD_TESTS_WORKER_RECORD_DEVICE_H

#include "kernels/device.h"

enum rec_kind {
    REC_ALLOC,
    REC_FREE,
    REC_HOST_ALLOC,
    REC_HOST_FREE,
    REC_PIN,
    REC_UNPIN,
    REC_EVENT_NEW,
    REC_EVENT_FREE,
    REC_STREAM_NEW,
    REC_STREAM_FREE,
    REC_STREAM_SYNC,
    REC_EVENT_SYNC,
    REC_RECORD,
    REC_WAIT,
    REC_COPY,
    REC_ZERO,
    REC_RANGE,
    REC_KINDS
};

struct rec_entry {
    enum rec_kind kind;
    const void *event; /* the user's handle */
    int stream;        /* number in order of creation: 0 compute, 1 comm, 2 copy */
    size_t bytes;
    char text[32]; /* of a range */
};

struct dev *rec_open(void);
void rec_close(struct dev *d); /* fails the test when something was not freed */

/* The calls since rec_forget. */
int rec_count(enum rec_kind kind);
const struct rec_entry *rec_log(int *ret_n);
void rec_forget(void);
/* Copies that wait on the copy stream. */
int rec_waiting(void);

/* Called once, by the next stream_sync, which returns its result. */
void rec_at_sync(err_t (*fn)(struct why *why));

#endif
