/* See ranks.h. */
#include "tests/worker/comm/nccl/ranks.h"

#include "common/base/clock.h"
#include "tests/cuda_host/counts.h"

#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define ARRIVE_MS 20000
#define PATIENCE_MS 90000

/* ---- the store ---- */

static int find(const struct shared *s, const char *key)
{
    for (int i = 0; i < s->n; i++)
        if (strcmp(s->word[i].key, key) == 0)
            return i;
    return -1;
}

static void name_of(const struct rank *r, const char *key, char ret[128])
{
    snprintf(ret, 128, "%llu/%s", (unsigned long long)r->epoch, key);
}

static err_t put(void *arg, const char *key, const void *value, size_t bytes, struct why *why)
{
    struct rank *r = arg;
    struct shared *s = r->shared;
    char name[128];
    name_of(r, key, name);
    pthread_mutex_lock(&s->mu);
    int at = find(s, name);
    err_t err = bytes > sizeof(s->word[0].value) || s->n == WORDS_MAX ? ERR_LIMIT : OK;
    if (at >= 0) {
        err = s->word[at].bytes == bytes && memcmp(s->word[at].value, value, bytes) == 0 ? OK : ERR_EXISTS;
    } else if (!err) {
        snprintf(s->word[s->n].key, sizeof(s->word[0].key), "%s", name);
        memcpy(s->word[s->n].value, value, bytes);
        s->word[s->n++].bytes = bytes;
    }
    pthread_mutex_unlock(&s->mu);
    return err ? why_set(why, err, "cannot put %s", key) : OK;
}

static bool look(struct shared *s, const char *name, void *ret, size_t *ret_bytes)
{
    pthread_mutex_lock(&s->mu);
    int at = find(s, name);
    if (at >= 0 && s->word[at].bytes <= *ret_bytes) {
        memcpy(ret, s->word[at].value, s->word[at].bytes);
        *ret_bytes = s->word[at].bytes;
    }
    pthread_mutex_unlock(&s->mu);
    return at >= 0;
}

static err_t get(void *arg, const char *key, int64_t timeout_ms, void *ret, size_t *ret_bytes, struct why *why)
{
    struct rank *r = arg;
    char name[128];
    int64_t deadline = clock_mono_ms() + timeout_ms;
    name_of(r, key, name);
    for (;; usleep(500)) {
        if (look(r->shared, name, ret, ret_bytes))
            return OK;
        if (atomic_load(&r->cancel))
            return why_set(why, ERR_CANCELED, "the epoch has ended");
        if (clock_mono_ms() >= deadline)
            return why_set(why, ERR_TIMEOUT, "no rank has written %s", key);
    }
}

/* ---- one rank ---- */

err_t rank_open(struct rank *r, uint64_t epoch, int64_t timeout_ms)
{
    int ranks[RANKS_MAX];
    r->epoch = epoch;
    r->store = (struct comm_store){r, put, get};
    const struct comm_config config = {.backend = "nccl",
                                       .fd = -1,
                                       .dev = r->dev,
                                       .store = &r->store,
                                       .rank = r->rank,
                                       .world = r->world,
                                       .epoch = epoch,
                                       .timeout_ms = timeout_ms,
                                       .cancel = &r->cancel};
    for (int i = 0; i < r->world; i++)
        ranks[i] = i;
    err_t err = comm_open(&config, &r->comm, &r->why);
    return err ? err : comm_group_new(r->comm, ranks, r->world, &r->all);
}

void rank_close(struct rank *r)
{
    comm_group_free(r->all);
    comm_close(r->comm);
    r->all = NULL;
    r->comm = NULL;
}

bool rank_wait(struct rank *r, int i, int64_t n)
{
    for (int64_t until = clock_mono_ms() + 20000; atomic_load(&r->shared->counter[i]) < n; usleep(200))
        if (clock_mono_ms() > until)
            return false;
    return true;
}

void *rank_upload(struct rank *r, const void *from, size_t bytes)
{
    void *p = NULL;
    if (dev_alloc(r->dev, bytes, "a test", &p, &r->why) || (from && dev_copy(r->stream, p, from, bytes)))
        return NULL;
    return dev_stream_sync(r->stream, &r->why) ? NULL : p;
}

err_t rank_download(struct rank *r, void *to, const void *from, size_t bytes)
{
    err_t err = dev_copy(r->stream, to, from, bytes);
    return err ? err : dev_stream_sync(r->stream, &r->why);
}

static int run_on(struct rank *r, int device, rank_fn *fn, bool open)
{
    CHECK(dev_open("cuda", device, &r->dev, &r->why) == OK);
    CHECK(dev_stream_new(r->dev, 0, false, &r->stream, &r->why) == OK);
    if (open)
        CHECK(rank_open(r, 1, ARRIVE_MS) == OK);
    int rc = fn(r);
    if (rc && r->comm)
        comm_abort(r->comm); /* the others must not wait for a rank that has failed */
    if (open)
        rank_close(r);
    dev_stream_free(r->stream);
    dev_close(r->dev);
    return rc;
}

/* ---- all of them ---- */

static int devices(void)
{
    int n = 0;
    struct why why = {""};
    return dev_count("cuda", &n, &why) ? 0 : n;
}

/* In a child process, because a process that has called CUDA must not fork. */
void ranks_need_device(void)
{
    int status;
    pid_t pid = fork();
    if (pid == 0)
        _exit(devices());
    if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) == 0)
        TEST_SKIP("no GPU, or no module for one");
}

static struct shared *shared_new(void)
{
    struct shared *s = mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_mutexattr_t attr;
    assert_true(s != MAP_FAILED);
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    pthread_mutex_init(&s->mu, &attr);
    return s;
}

static int wait_for(pid_t pid, int64_t deadline)
{
    int status = 0;
    while (waitpid(pid, &status, WNOHANG) == 0) {
        if (clock_mono_ms() > deadline) {
            fprintf(stderr, "killed: a rank did not end\n");
            kill(pid, SIGKILL);
            waitpid(pid, &status, 0);
            return 1;
        }
        usleep(1000);
    }
    return !WIFEXITED(status) || WEXITSTATUS(status) != 0;
}

static void run(int world, rank_fn *fn, bool open)
{
    struct shared *shared = shared_new();
    pid_t pid[RANKS_MAX];
    int failed = 0;
    for (int k = 0; k < world; k++) {
        pid[k] = fork();
        assert_true(pid[k] >= 0);
        if (pid[k] == 0) {
            struct rank r = {.rank = k, .world = world, .shared = shared};
            int n = devices();
            _exit(n ? run_on(&r, k % n, fn, open) : 1);
        }
    }
    int64_t deadline = clock_mono_ms() + PATIENCE_MS;
    for (int k = 0; k < world; k++)
        failed += wait_for(pid[k], deadline);
    munmap(shared, sizeof(*shared));
    assert_int_equal(0, failed);
}

void ranks_run(int world, rank_fn *fn)
{
    run(world, fn, false);
}

void ranks_run_open(int world, rank_fn *fn)
{
    run(world, fn, true);
}

struct thread {
    struct rank r;
    rank_fn *fn;
    pthread_t id;
    int rc;
};

static void *thread_main(void *arg)
{
    struct thread *t = arg;
    t->rc = run_on(&t->r, t->r.rank, t->fn, true);
    return NULL;
}

void ranks_run_threads(int world, rank_fn *fn)
{
    static struct thread t[RANKS_MAX];
    struct shared *shared = shared_new();
    int failed = 0;
    if (devices() < world)
        TEST_SKIP("%d devices are needed, one for each thread", world);
    for (int k = 0; k < world; k++) {
        t[k] = (struct thread){.r = {.rank = k, .world = world, .shared = shared}, .fn = fn};
        assert_int_equal(0, pthread_create(&t[k].id, NULL, thread_main, &t[k]));
    }
    for (int k = 0; k < world; k++) {
        pthread_join(t[k].id, NULL);
        failed += t[k].rc;
    }
    munmap(shared, sizeof(*shared));
    assert_int_equal(0, failed);
}

bool ranks_count_live(int64_t *ret_comms, int64_t *ret_allocations)
{
    char path[4096];
    struct cuda_host_counts counts;
    void (*read_counts)(struct cuda_host_counts * ret);
    snprintf(path, sizeof(path), "%s/libcuda_host.so", getenv("DTD_MODULE_DIR") ? getenv("DTD_MODULE_DIR") : ".");
    void *library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    if (!library)
        return false;
    *(void **)&read_counts = dlsym(library, "cuda_host_counts_read");
    read_counts(&counts);
    dlclose(library);
    *ret_comms = counts.live_comms;
    *ret_allocations = counts.live_allocations;
    return true;
}
