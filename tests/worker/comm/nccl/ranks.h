/* Ranks of an epoch over NCCL for tests: processes, or threads of this process, with a store in shared memory. The same
 * program runs over the stand-ins (tests/cuda_host) and on GPUs, depending on DTD_MODULE_DIR. */
#ifndef DTD_TESTS_WORKER_COMM_NCCL_RANKS_H
#define DTD_TESTS_WORKER_COMM_NCCL_RANKS_H

#include "kernels/device.h"
#include "tests/lib/test.h"
#include "worker/comm/backend.h"
#include "worker/comm/comm.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#define RANKS_MAX 8
#define WORDS_MAX 256

/* The memory that all ranks share. */
struct shared {
    pthread_mutex_t mu;
    int n;
    struct {
        char key[128];
        uint8_t value[512];
        size_t bytes;
    } word[WORDS_MAX];
    _Atomic int64_t counter[16]; /* free for use by a test */
};

struct rank {
    int rank, world;
    uint64_t epoch;
    struct shared *shared;
    struct comm_store store;
    _Atomic int cancel;
    struct dev *dev;
    struct kern_stream *stream;
    struct comm *comm;
    struct comm_group *all;
    struct why why;
};

/* Returns 0 on success. */
typedef int rank_fn(struct rank *r);

#define CHECK(condition)                                                                                          \
    do {                                                                                                          \
        if (!(condition)) {                                                                                       \
            fprintf(stderr, "%s:%d: rank %d of %d: %s (%s)\n", __FILE__, __LINE__, r->rank, r->world, #condition, \
                    r->why.text);                                                                                 \
            return 1;                                                                                             \
        }                                                                                                         \
    } while (0)

/* Skips the case if there is no device. */
void ranks_need_device(void);
/* Opens every rank's device and stream and calls fn; the second function also opens the comm and the group `all`, and
 * closes them afterwards. The test fails when one of the processes fails. */
void ranks_run(int world, rank_fn *fn);
void ranks_run_open(int world, rank_fn *fn);
/* The same with ranks as threads. Each needs its own device, so the case is skipped if there are too few. */
void ranks_run_threads(int world, rank_fn *fn);

/* Store keys of different epochs are separate. */
err_t rank_open(struct rank *r, uint64_t epoch, int64_t timeout_ms);
void rank_close(struct rank *r);
/* Waits in real time until counter[i] is at least n; false after 20 s. */
bool rank_wait(struct rank *r, int i, int64_t n);

/* Device memory with these bytes, or zeros when `from` is NULL; NULL after a failure. */
void *rank_upload(struct rank *r, const void *from, size_t bytes);
/* Waits for the stream. */
err_t rank_download(struct rank *r, void *to, const void *from, size_t bytes);

/* The counters of the stand-ins; false on a GPU. */
bool ranks_count_live(int64_t *ret_comms, int64_t *ret_allocations);

#endif
