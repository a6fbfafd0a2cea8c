/* Measures saves and loads by real dtd-io processes, beside PyTorch and the disk itself; tests/bench/save describes the
 * figures and runs it. It is a case of the test library, because it needs the test harness; its results are the lines
 * that begin with a brace. */
#include "tests/bench/median.h"
#include "tests/daemon/io/io_harness.h"

#include "common/base/clock.h"
#include "common/base/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/wait.h>

#define RANKS 2
#define MAX_ROUNDS 26 /* the last is not counted */
#define COLUMNS 1024

enum figure {
    SAVE,
    LOAD,
    LOAD_WARM,
    PLAIN,
    DISK_WRITE,
    DISK_READ,
    CACHE_READ,
    TORCH_SAVE,
    TORCH_LOAD,
    TORCH_LOAD_WARM,
    N_FIGURES
};
static const char *const figure_names[N_FIGURES] = {"save",       "load",           "load_warm",  "plain",
                                                    "disk_write", "disk_read",      "cache_read", "torch_save",
                                                    "torch_load", "torch_load_warm"};
static const struct ratio {
    const char *name;
    enum figure of, to; /* seconds of `of` divided by those of `to` */
} ratios[] = {
    {"save_of_plain", PLAIN, SAVE},
    {"save_of_disk", DISK_WRITE, SAVE},
    {"load_of_disk", DISK_READ, LOAD},
    {"load_of_cache", CACHE_READ, LOAD_WARM},
    {"save_of_torch", TORCH_SAVE, SAVE},
    {"load_of_torch", TORCH_LOAD, LOAD},
    {"load_warm_of_torch", TORCH_LOAD_WARM, LOAD_WARM},
};

struct torch { /* save_torch.py */
    pid_t pid; /* 0: there is none */
    FILE *to, *from;
    char version[64];
};

struct bench {
    struct io_test t[RANKS];
    struct io_worker w[RANKS];
    int n_ios, mib, rounds;
    struct fixture f;
    struct fixture_tensor tensor;
    struct torch torch;
    double s[N_FIGURES][MAX_ROUNDS]; /* seconds */
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

/* ---- write and fsync ---- */

struct plain {
    char path[PATH_MAX];
    void *data;
    size_t bytes;
};

static void *plain_write(void *arg)
{
    const struct plain *p = arg;
    int fd = open(p->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0 || file_write_all(fd, p->data, p->bytes) || fsync(fd) || close(fd)) {
        perror(p->path);
        abort();
    }
    return NULL;
}

static void *plain_read(void *arg)
{
    const struct plain *p = arg;
    int fd = open(p->path, O_RDONLY | O_CLOEXEC);
    if (fd < 0 || file_pread_all(fd, p->data, p->bytes, 0) || close(fd)) {
        perror(p->path);
        abort();
    }
    return NULL;
}

static double plain_all(struct plain p[RANKS], void *(*run)(void *))
{
    pthread_t thread[RANKS];
    double from = now_s();
    for (int r = 0; r < RANKS; r++)
        assert_int_equal(pthread_create(&thread[r], NULL, run, &p[r]), 0);
    for (int r = 0; r < RANKS; r++)
        pthread_join(thread[r], NULL);
    return now_s() - from;
}

/* After the writes the files are in the page cache. */
static void plain_once(const struct bench *b, double *ret_write_s, double *ret_read_s)
{
    struct plain p[RANKS];
    for (int r = 0; r < RANKS; r++) {
        const struct io_worker *w = &b->w[r];
        p[r] = (struct plain){.data = w->test->maps[w->slot], .bytes = ((size_t)b->mib << 20) / RANKS};
        snprintf(p[r].path, sizeof(p[r].path), "%s/plain-%d", b->t[0].dir, r);
    }
    *ret_write_s = plain_all(p, plain_write);
    *ret_read_s = plain_all(p, plain_read);
    for (int r = 0; r < RANKS; r++)
        unlink(p[r].path);
}

/* ---- the disk: direct reads and writes of 1 MiB by several threads, each its own part of a file ---- */

#define DISK_THREADS 8
#define DISK_BYTES ((size_t)1 << 20) /* faster than 4 MiB here, since the blocks stay in the cache */

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
    snprintf(path, sizeof(path), "%s/disk", b->t[0].dir);
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

/* Brings all files of the folder into the page cache, or drops them from it. */
static void cache(const char *folder, bool wanted)
{
    static char block[1 << 20];
    char path[PATH_MAX + 300];
    DIR *dir = opendir(folder);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        snprintf(path, sizeof(path), "%s/%s", folder, e->d_name);
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        assert_true(fd >= 0);
        while (wanted && e->d_type == DT_REG && read(fd, block, sizeof(block)) > 0)
            ;
        if (!wanted)
            (void)posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
        close(fd);
    }
    closedir(dir);
}

static double load_once(struct bench *b, const char *path, bool warm)
{
    struct io_op op[RANKS];
    for (int r = 0; r < RANKS; r++)
        memset(b->w[r].test->maps[b->w[r].slot], 0xee, b->w[r].test->arena_bytes);
    cache(path, warm);
    double from = now_s();
    for (int r = 0; r < RANKS; r++)
        io_load_into(&b->w[r], &b->f, path, r, &op[r]);
    for (int r = 0; r < RANKS; r++) {
        io_until(&b->t[0], &op[r].done, 600000, "the load");
        assert_ok(op[r].err);
    }
    double took = now_s() - from;
    for (int r = 0; r < RANKS; r++)
        io_check_loaded(&b->w[r], &b->f, r);
    return took;
}

static double save_once(struct bench *b, int64_t step)
{
    struct io_op op[RANKS];
    for (int r = 0; r < RANKS; r++)
        io_fill(&b->w[r], &b->f, r);
    double from = now_s();
    for (int r = 0; r < RANKS; r++)
        io_save_filled(&b->w[r], &b->f, 1, step, r, RANKS, &op[r]);
    for (int r = 0; r < RANKS; r++) {
        io_until(&b->t[0], &op[r].done, 600000, "the save");
        assert_ok(op[r].err);
    }
    return now_s() - from;
}

static void dtd_round(struct bench *b, int i)
{
    char path[PATH_MAX];
    b->s[SAVE][i] = save_once(b, i + 1);
    assert_ok(ckpt_step_dir(b->t[0].root, i + 1, path, sizeof(path)));
    b->s[LOAD][i] = load_once(b, path, false);
    b->s[LOAD_WARM][i] = load_once(b, path, true);
    assert_ok(ckpt_remove(b->t[0].root, i + 1, NULL));
}

/* ---- PyTorch ---- */

static void torch_start(struct bench *b, const char *python)
{
    struct torch *t = &b->torch;
    int to[2], from[2];
    char script[PATH_MAX], mib[16];
    if (!python || !*python)
        return;
    snprintf(script, sizeof(script), "%s/tests/bench/save_torch.py", getenv("DTD_SOURCE"));
    snprintf(mib, sizeof(mib), "%d", b->mib);
    assert_int_equal(pipe2(to, O_CLOEXEC), 0);
    assert_int_equal(pipe2(from, O_CLOEXEC), 0);
    t->pid = fork();
    assert_true(t->pid >= 0);
    if (t->pid == 0) {
        if (dup2(to[0], 0) == 0 && dup2(from[1], 1) == 1)
            execl(python, python, script, mib, (char *)NULL);
        _exit(127);
    }
    close(to[0]);
    close(from[1]);
    t->to = fdopen(to[1], "w");
    t->from = fdopen(from[0], "r");
    assert_true(t->to && t->from);
    if (fscanf(t->from, "ready %63s", t->version) != 1)
        fail_msg("%s does not start with %s", script, python);
}

static void torch_stop(struct torch *t)
{
    if (!t->pid)
        return;
    fclose(t->to);
    waitpid(t->pid, NULL, 0);
    fclose(t->from);
}

static double torch_once(struct torch *t, const char *verb, const char *folder)
{
    double took = 0;
    fprintf(t->to, "%s %s\n", verb, folder);
    fflush(t->to);
    if (fscanf(t->from, "%lf", &took) != 1)
        fail_msg("save_torch.py ended before it answered %s", verb);
    return took;
}

static void torch_round(struct bench *b, int i)
{
    char path[PATH_MAX];
    if (!b->torch.pid)
        return;
    snprintf(path, sizeof(path), "%s/torch-%d", b->t[0].dir, i);
    b->s[TORCH_SAVE][i] = torch_once(&b->torch, "save", path);
    cache(path, false);
    b->s[TORCH_LOAD][i] = torch_once(&b->torch, "load", path);
    cache(path, true);
    b->s[TORCH_LOAD_WARM][i] = torch_once(&b->torch, "load", path);
    assert_ok(file_remove_tree(path));
}

/* ---- all ---- */

static void floor_round(struct bench *b, int i)
{
    plain_once(b, &b->s[PLAIN][i], &b->s[CACHE_READ][i]);
    b->s[DISK_WRITE][i] = disk_once(b, true);
    b->s[DISK_READ][i] = disk_once(b, false);
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

static void figures_print(const struct bench *b)
{
    for (int k = 0; k < N_FIGURES; k++) {
        double v[MAX_ROUNDS];
        if (b->s[k][0] == 0)
            continue; /* without PyTorch */
        memcpy(v, b->s[k], sizeof(v));
        double middle = median_of_all(v, (size_t)b->rounds); /* sorts */
        printf(", \"%s_s\": %.3f, \"%s_spread_s\": [%.3f, %.3f]", figure_names[k], middle, figure_names[k], v[0],
               v[b->rounds - 1]);
    }
}

static void ratios_print(const struct bench *b)
{
    for (size_t k = 0; k < sizeof(ratios) / sizeof(ratios[0]); k++) {
        double v[MAX_ROUNDS];
        if (b->s[ratios[k].of][0] == 0)
            continue;
        for (int i = 0; i < b->rounds; i++)
            v[i] = b->s[ratios[k].of][i] / b->s[ratios[k].to][i];
        printf(", \"%s\": %.3f", ratios[k].name, median_of_all(v, (size_t)b->rounds));
    }
}

/* All sides run under the same load, since they take turns, and each is the first one in a third of the rounds. The
 * round before the first is not counted. */
static void measure_saves(int n_ios)
{
    static void (*const side[])(struct bench *, int) = {dtd_round, torch_round, floor_round};
    static struct bench b;
    b = (struct bench){.n_ios = n_ios,
                       .mib = env_setting("BENCH_MIB", 256, 16384),
                       .rounds = env_setting("BENCH_ROUNDS", 5, MAX_ROUNDS - 1)};
    torch_start(&b, getenv("BENCH_PYTHON"));
    start(&b);
    for (int k = 0; k < 3; k++)
        side[k](&b, MAX_ROUNDS - 1);
    for (int i = 0; i < b.rounds; i++)
        for (int k = 0; k < 3; k++)
            side[(i + k) % 3](&b, i);
    printf("{\"bench\": \"save\", \"ios\": %d, \"ranks\": %d, \"mib\": %d, \"tensors\": %d, \"rounds\": %d", n_ios,
           RANKS, b.mib, b.f.n_tensors, b.rounds);
    if (b.torch.pid)
        printf(", \"torch\": \"%s\"", b.torch.version);
    figures_print(&b);
    ratios_print(&b);
    printf("}\n");
    fflush(stdout);
    stop(&b);
    torch_stop(&b.torch);
}

TEST(one_io)
{
    measure_saves(1);
}

TEST(two_ios)
{
    measure_saves(2);
}
