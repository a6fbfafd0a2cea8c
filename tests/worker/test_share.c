/* A worker's threads follow the number of workers on its node, and kernels compute the same values on fewer threads. */
#include "kernels/device.h"
#include "kernels/stream.h"
#include "tests/lib/test.h"
#include "worker/share.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#define N 64
#define THREADS 4

struct record {
    pthread_mutex_t mutex;
    pthread_t threads[N];
    int n_threads;
    int parts; /* bit set */
    double values[N];
};

static void note_range(void *arg, int part, int64_t lo, int64_t hi)
{
    struct record *r = arg;
    pthread_mutex_lock(&r->mutex);
    int known = 0;
    for (int i = 0; i < r->n_threads; i++)
        known |= pthread_equal(r->threads[i], pthread_self());
    if (!known)
        r->threads[r->n_threads++] = pthread_self();
    r->parts |= 1 << part;
    pthread_mutex_unlock(&r->mutex);
    for (int64_t i = lo; i < hi; i++)
        r->values[i] = 1.0 / (double)(i + 1);
}

static struct record run_region(struct kern_stream *s)
{
    struct record r = {.mutex = PTHREAD_MUTEX_INITIALIZER};
    kern_stream_run(s, N, 1, note_range, &r);
    for (int i = 0; i < N; i++)
        assert_true(r.values[i] == 1.0 / (double)(i + 1));
    assert_int_equal(r.parts, (1 << THREADS) - 1); /* work is divided as before */
    return r;
}

static _Atomic uint32_t *map_file(void)
{
    static char variable[400];
    snprintf(variable, sizeof(variable), "%s/workers", test_tmpdir());
    int fd = open(variable, O_RDWR | O_CREAT, 0600);
    assert_int_equal(ftruncate(fd, sizeof(uint32_t)), 0);
    void *map = mmap(NULL, sizeof(uint32_t), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(map != MAP_FAILED);
    close(fd);
    assert_int_equal(setenv("DTD_WORKERS_FILE", variable, 1), 0);
    return map;
}

TEST(threads_follow_the_number_of_workers)
{
    static const struct {
        uint32_t workers;
        int expected; /* of 4 threads on 8 cores */
    } cases[] = {{0, 4}, {1, 4}, {2, 4}, {3, 2}, {4, 2}, {5, 1}, {8, 1}, {100, 1}, {1, 4}};
    struct core_share share;
    struct kern_stream *s;
    _Atomic uint32_t *workers = map_file();
    core_share_init(&share);
    share.cores = 8;
    assert_ok(cpu_stream_new(NULL, THREADS, &s));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        atomic_store(workers, cases[i].workers);
        core_share_follow(&share, THREADS);
        assert_int_equal(share.threads, cases[i].expected);
        struct record r = run_region(s);
        assert_true(r.n_threads <= cases[i].expected); /* libgomp may provide fewer */
    }
    cpu_stream_free(s);
}

TEST(without_the_file_all_threads_are_used)
{
    struct core_share share;
    assert_int_equal(unsetenv("DTD_WORKERS_FILE"), 0);
    core_share_init(&share);
    core_share_follow(&share, THREADS);
    assert_int_equal(share.threads, THREADS);
    assert_int_equal(setenv("DTD_WORKERS_FILE", "/nonexistent/workers", 1), 0);
    core_share_init(&share);
    core_share_follow(&share, THREADS);
    assert_int_equal(share.threads, THREADS);
}
