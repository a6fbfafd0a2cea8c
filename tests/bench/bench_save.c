/* Measures saves and loads by real dtd-io processes: from Io.Save to COMMITTED, and from Io.Load of files that are not
 * in the page cache to the reply. Beside them: write and fsync of the same bytes by one thread per rank, and direct
 * reads and writes by many threads, which is what the disk can do. It is a case of the test library, because it needs
 * the test harness; its results are the lines that begin with a brace. tests/bench/save runs it. */
#include "tests/daemon/io/io_harness.h"

#include "common/base/clock.h"
#include "common/base/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>

#define RANKS 2
#define MAX_ROUNDS 25
#define COLUMNS 1024

struct bench {
    struct io_test t[RANKS];
    struct io_worker w[RANKS];
    int n_ios, mib, rounds;
    struct fixture f;
    struct fixture_tensor tensor;
    double save_s[MAX_ROUNDS], load_s[MAX_ROUNDS], plain_s[MAX_ROUNDS], write_s[MAX_ROUNDS], read_s[MAX_ROUNDS];
};

static int env_setting(const char *name, int fallback, int most)
{
    const char *text = getenv(name);
    int value = text ? atoi(text) : fallback;
    if (value < 1 || value > most)
        fail_msg("%s must be 1 to %d", name, most);
    return value;
}

static double now_s(void)
{
    return (double)clock_mono_ns() / 1e9;
}

static int compare_doubles(const void *x, const void *y)
{
    const double *a = x, *b = y;
    return *a < *b ? -1 : *a > *b;
}

static double median(double *v, int n)
{
    qsort(v, (size_t)n, sizeof(*v), compare_doubles);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

/* ---- write and fsync ---- */

struct plain {
    char path[PATH_MAX];
    const void *data;
    size_t bytes;
};

static void *plain_run(void *arg)
{
    const struct plain *p = arg;
    int fd = open(p->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0 || file_write_all(fd, p->data, p->bytes) || fsync(fd) || close(fd)) {
        perror(p->path);
        abort();
    }
    return NULL;
}

static double plain_once(const struct bench *b)
{
    pthread_t thread[RANKS];
    struct plain p[RANKS];
    for (int r = 0; r < RANKS; r++) {
        const struct io_worker *w = &b->w[r];
        p[r] = (struct plain){.data = w->test->maps[w->slot], .bytes = ((size_t)b->mib << 20) / RANKS};
        snprintf(p[r].path, sizeof(p[r].path), "%s/plain-%d", b->t[0].root, r);
    }
    double from = now_s();
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(pthread_create(&thread[r], NULL, plain_run, &p[r]), 0);
    for (int r = 0; r < RANKS; r++)
        pthread_join(thread[r], NULL);
    double took = now_s() - from;
    for (int r = 0; r < RANKS; r++)
        unlink(p[r].path);
    return took;
}

/* ---- the disk: direct reads and writes of 4 MiB by several threads, each its own part of a file ---- */

#define DISK_THREADS 8
#define DISK_BYTES ((size_t)4 << 20)

struct disk {
    int fd;
    bool write;
    size_t from, to;
    char *block;
};

static void *disk_run(void *arg)
{
    const struct disk *d = arg;
    for (size_t at = d->from; at < d->to; at += DISK_BYTES) {
        size_t n = d->to - at < DISK_BYTES ? d->to - at : DISK_BYTES;
        ssize_t done = d->write ? pwrite(d->fd, d->block, n, (off_t)at) : pread(d->fd, d->block, n, (off_t)at);
        if (done != (ssize_t)n) {
            perror("a direct read or write");
            abort();
        }
    }
    return NULL;
}

static double disk_once(const struct bench *b, bool write)
{
    pthread_t thread[DISK_THREADS];
    struct disk d[DISK_THREADS];
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/disk", b->t[0].root);
    int fd = open(path, O_RDWR | O_CREAT | O_DIRECT | O_CLOEXEC, 0666);
    size_t bytes = (size_t)b->mib << 20;
    assert_true(fd >= 0);
    if (write)
        assert_int_equal(posix_fallocate(fd, 0, (off_t)bytes), 0);
    for (int i = 0; i < DISK_THREADS; i++) {
        size_t part = bytes / DISK_THREADS;
        d[i] = (struct disk){fd, write, (size_t)i * part, (size_t)(i + 1) * part, aligned_alloc(4096, DISK_BYTES)};
        assert_non_null(d[i].block);
        memset(d[i].block, i + 1, DISK_BYTES);
    }
    double from = now_s();
    for (int i = 0; i < DISK_THREADS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, disk_run, &d[i]), 0);
    for (int i = 0; i < DISK_THREADS; i++)
        pthread_join(thread[i], NULL);
    if (write)
        assert_int_equal(fsync(fd), 0);
    double took = now_s() - from;
    for (int i = 0; i < DISK_THREADS; i++)
        free(d[i].block);
    close(fd);
    if (!write)
        unlink(path);
    return took;
}

/* ---- dtd-io ---- */

/* Nothing of the step may be in the page cache. */
static void forget(const char *folder)
{
    char path[PATH_MAX + 300];
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        snprintf(path, sizeof(path), "%s/%s", folder, e->d_name);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        assert_true(fd >= 0);
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        close(fd);
    }
    closedir(dir);
}

static double load_once(struct bench *b, const char *path)
{
    struct io_op op[RANKS];
    forget(path);
    for (int r = 0; r < RANKS; r++)
        io_load(&b->w[r], &b->f, path, r, &op[r]); /* fills the arenas with other bytes; the loop sends it */
    double from = now_s();
    for (int r = 0; r < RANKS; r++) {
        io_until(&b->t[0], &op[r].done, 600000, "the load");
        assert_ok(op[r].err);
    }
    double took = now_s() - from;
    for (int r = 0; r < RANKS; r++)
        io_check_loaded(&b->w[r], &b->f, r);
    return took;
}

static double save_once(struct bench *b, int64_t step, double *ret_load_s)
{
    struct io_op op[RANKS];
    char path[PATH_MAX];
    for (int r = 0; r < RANKS; r++)
        io_save(&b->w[r], &b->f, 1, step, r, RANKS, &op[r]); /* copied into the arenas; the loop sends it */
    double from = now_s();
    for (int r = 0; r < RANKS; r++) {
        io_until(&b->t[0], &op[r].done, 600000, "the save");
        assert_ok(op[r].err);
    }
    double took = now_s() - from;
    assert_ok(ckpt_step_dir(b->t[0].root, step, path, sizeof(path)));
    assert_ok(ckpt_verify(path, NULL, NULL, NULL));
    *ret_load_s = load_once(b, path);
    assert_ok(ckpt_remove(b->t[0].root, step, NULL));
    return took;
}

static void start(struct bench *b)
{
    int slots = RANKS / b->n_ios;
    b->tensor = (struct fixture_tensor){"weights", DT_F32, 2, {(int64_t)b->mib * 256, COLUMNS}};
    b->f = (struct fixture){.tensors = &b->tensor, .n_tensors = 1};
    fixture_shard(&b->f, RANKS);
    io_test_start(&b->t[0], slots, ((size_t)b->mib << 20) / RANKS);
    for (int k = 1; k < b->n_ios; k++)
        io_test_join(&b->t[k], &b->t[0], k);
    for (int k = 0; k < b->n_ios; k++) {
        struct io_part_of part = {.committer = k == 0, .n_ios = b->n_ios, .n_ranks = slots, .submitted_ms = 1};
        for (int s = 0; s < slots; s++) {
            part.ranks[s] = k * slots + s;
            io_worker_open(&b->w[k * slots + s], &b->t[k], s);
        }
        io_say_share(&b->t[k], 1, 0, &part);
    }
}

static void stop(struct bench *b)
{
    for (int r = 0; r < RANKS; r++)
        io_worker_close(&b->w[r]);
    for (int k = b->n_ios - 1; k >= 0; k--)
        io_test_stop(&b->t[k]);
    fixture_free(&b->f);
}

/* The two take turns, so that both run under the same load. The first turn is not counted. */
static void measure_saves(int n_ios)
{
    static struct bench b;
    b = (struct bench){.n_ios = n_ios,
                       .mib = env_setting("BENCH_MIB", 256, 16384),
                       .rounds = env_setting("BENCH_ROUNDS", 5, MAX_ROUNDS)};
    start(&b);
    double once;
    (void)save_once(&b, 1, &once);
    (void)plain_once(&b);
    for (int i = 0; i < b.rounds; i++) {
        b.save_s[i] = save_once(&b, i + 2, &b.load_s[i]);
        b.plain_s[i] = plain_once(&b);
        b.write_s[i] = disk_once(&b, true);
        b.read_s[i] = disk_once(&b, false);
    }
    double save_s = median(b.save_s, b.rounds), load_s = median(b.load_s, b.rounds),
           plain_s = median(b.plain_s, b.rounds), write_s = median(b.write_s, b.rounds),
           read_s = median(b.read_s, b.rounds);
    printf("{\"bench\": \"save\", \"ios\": %d, \"ranks\": %d, \"mib\": %d, \"tensors\": %d, \"rounds\": %d, "
           "\"save_s\": %.4f, \"load_s\": %.4f, \"plain_s\": %.4f, \"disk_write_s\": %.4f, \"disk_read_s\": %.4f, "
           "\"save_of_plain\": %.3f, \"save_of_disk\": %.3f, \"load_of_disk\": %.3f}\n",
           n_ios, RANKS, b.mib, b.f.n_tensors, b.rounds, save_s, load_s, plain_s, write_s, read_s, plain_s / save_s,
           write_s / save_s, read_s / load_s);
    fflush(stdout);
    stop(&b);
}

TEST(one_io)
{
    measure_saves(1);
}

TEST(two_ios)
{
    measure_saves(2);
}
