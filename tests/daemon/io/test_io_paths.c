/* Links and pipes in paths. dtd-io runs as the job's user and opens whatever that user may open, also through links and
 * `..`, up to and including checkpoint.dir, resume_from and data.cache. Inside checkpoint.dir, where other users may
 * have write access, it follows no link and waits for no pipe. */
#include "tests/daemon/io/io_harness.h"

#include "common/base/file.h"

#include <fcntl.h>
#include <sys/stat.h>

#define MIB ((size_t)1 << 20)
#define COMMITTED DTD__IO_REPORT__KIND__COMMITTED
#define SCANNED DTD__IO_REPORT__KIND__SCANNED
#define REMOVED DTD__IO_REPORT__KIND__REMOVED
#define PRECIOUS "not a checkpoint's"

struct alone {
    struct io_test t;
    struct io_worker w;
    struct fixture f;
    char precious[PATH_MAX];
};

static void alone_start(struct alone *a)
{
    *a = (struct alone){.f = {.tensors = fixture_model, .n_tensors = fixture_n_model}};
    fixture_shard(&a->f, 1);
    io_test_start(&a->t, 1, 1 * MIB);
    io_worker_open(&a->w, &a->t, 0);
    snprintf(a->precious, sizeof(a->precious), "%s/precious", a->t.dir);
    assert_ok(file_replace(a->precious, PRECIOUS, strlen(PRECIOUS), 0600));
}

static void alone_stop(struct alone *a)
{
    fixture_free(&a->f);
    io_worker_close(&a->w);
    io_test_stop(&a->t);
}

static const char *in_root(const struct alone *a, const char *name)
{
    static char path[2][PATH_MAX];
    static int at;
    at = !at;
    snprintf(path[at], sizeof(path[at]), "%s/%s", a->t.root, name);
    return path[at];
}

static void check_precious(const struct alone *a)
{
    struct buf b = {0};
    assert_ok(file_read(a->precious, 1000, &b));
    assert_int_equal(b.len, strlen(PRECIOUS));
    assert_memory_equal(b.data, PRECIOUS, b.len);
    buf_fini(&b);
}

static void save_in(struct alone *a, uint64_t epoch, int64_t step, struct io_op *op)
{
    io_save(&a->w, &a->f, epoch, step, 0, 1, op);
    io_until(&a->t, &op->done, 20000, "the end of the save");
}

static void save(struct alone *a, int64_t step, struct io_op *op)
{
    save_in(a, 1, step, op);
}

static void save_ok(struct alone *a, int64_t step)
{
    struct io_op op;
    char name[32];
    save(a, step, &op);
    if (op.err)
        print_error("text: %s\n", op.text);
    assert_ok(op.err);
    snprintf(name, sizeof(name), "step-%lld", (long long)step);
    assert_ok(ckpt_verify(in_root(a, name), NULL, NULL, NULL));
}

/* The directory exists and is ready for epoch 1. */
static void begin(struct alone *a)
{
    io_say_epoch(&a->t, 1, 0);
    save_ok(a, 1);
}

static bool is_link(const char *path)
{
    struct stat st;
    return lstat(path, &st) == 0 && S_ISLNK(st.st_mode);
}

/* ---- writing ---- */

TEST(partial_folder_is_a_link)
{
    struct alone a;
    struct io_op op;
    char target[PATH_MAX], inside[PATH_MAX + 16];
    alone_start(&a);
    begin(&a);
    snprintf(target, sizeof(target), "%s/home", a.t.dir);
    snprintf(inside, sizeof(inside), "%s/diary", target);
    assert_int_equal(mkdir(target, 0700), 0);
    assert_ok(file_replace(inside, PRECIOUS, strlen(PRECIOUS), 0600));
    assert_int_equal(symlink(target, in_root(&a, ".step-5.e1.partial")), 0);
    save(&a, 5, &op);
    assert_err(ERR_DENIED, op.err);
    assert_non_null(strstr(op.text, "/.step-5.e1.partial is a link"));
    assert_int_equal(access(inside, F_OK), 0); /* nothing was written or removed there */
    snprintf(inside, sizeof(inside), "%s/__0_0.distcp", target);
    assert_int_equal(access(inside, F_OK), -1);
    save_ok(&a, 9);
    alone_stop(&a);
}

static void file_is_a_link(const char *file)
{
    struct alone a;
    struct io_op op;
    char name[100];
    alone_start(&a);
    begin(&a);
    assert_int_equal(mkdir(in_root(&a, ".step-5.e1.partial"), 0700), 0);
    snprintf(name, sizeof(name), ".step-5.e1.partial/%s", file);
    assert_int_equal(symlink(a.precious, in_root(&a, name)), 0);
    save(&a, 5, &op);
    assert_err(ERR_DENIED, op.err);
    assert_non_null(strstr(op.text, file));
    check_precious(&a);
    save_ok(&a, 9);
    alone_stop(&a);
}

TEST(part_is_a_link)
{
    file_is_a_link("__0_0.distcp");
}

TEST(job_file_is_a_link)
{
    file_is_a_link("dtd.job.yaml");
}

TEST(metadata_is_a_link)
{
    file_is_a_link(".metadata");
}

/* The manifest is written last, after everything that it does not list has been removed, including the link. */
TEST(manifest_is_a_link)
{
    struct alone a;
    alone_start(&a);
    begin(&a);
    assert_int_equal(mkdir(in_root(&a, ".step-9.e1.partial"), 0700), 0);
    assert_int_equal(symlink(a.precious, in_root(&a, ".step-9.e1.partial/dtd.manifest")), 0);
    save_ok(&a, 9);
    check_precious(&a);
    assert_false(is_link(in_root(&a, "step-9/dtd.manifest")));
    alone_stop(&a);
}

static void metrics_at(struct alone *a)
{
    int seen = 0;
    io_say_epoch(&a->t, 1, 0);
    io_say(&a->t, DTD__IO_COMMAND__KIND__METRICS, 0, 0, "{\"step\": 1}\n");
    io_say(&a->t, DTD__IO_COMMAND__KIND__REMOVE, 0, 77, NULL); /* queued after it, and answered */
    io_report_wait(&a->t, REMOVED, &seen, 10000);
    check_precious(a);
    save_ok(a, 9);
}

TEST(metrics_file_is_a_link)
{
    struct alone a;
    alone_start(&a);
    assert_int_equal(mkdir(a.t.root, 0700), 0);
    assert_int_equal(symlink(a.precious, in_root(&a, "metrics.jsonl")), 0);
    metrics_at(&a);
    alone_stop(&a);
}

TEST(metrics_file_is_a_pipe)
{
    struct alone a;
    alone_start(&a);
    assert_int_equal(mkdir(a.t.root, 0700), 0);
    assert_int_equal(mkfifo(in_root(&a, "metrics.jsonl"), 0600), 0);
    metrics_at(&a);
    alone_stop(&a);
}

/* ---- renaming and removing ---- */

TEST(step_is_a_link)
{
    struct alone a;
    struct io_op op;
    char target[PATH_MAX], inside[PATH_MAX + 16];
    int seen = 0;
    alone_start(&a);
    io_say_epoch(&a.t, 1, 0);
    save_ok(&a, 9);
    snprintf(target, sizeof(target), "%s/home", a.t.dir);
    snprintf(inside, sizeof(inside), "%s/diary", target);
    assert_int_equal(mkdir(target, 0700), 0);
    assert_ok(file_replace(inside, PRECIOUS, strlen(PRECIOUS), 0600));
    assert_int_equal(symlink(target, in_root(&a, "step-5")), 0);
    save(&a, 5, &op);
    assert_err(ERR_EXISTS, op.err);
    io_report_wait(&a.t, COMMITTED, &seen, 10000);
    io_say(&a.t, DTD__IO_COMMAND__KIND__REMOVE, 0, 5, NULL);
    io_report_wait(&a.t, REMOVED, &seen, 10000);
    assert_false(is_link(in_root(&a, "step-5")));
    assert_int_equal(access(inside, F_OK), 0); /* only the link has been removed */
    assert_int_equal(symlink(target, in_root(&a, ".trash-1")), 0);
    assert_int_equal(symlink(target, in_root(&a, ".step-3.e1.partial")), 0);
    io_say(&a.t, DTD__IO_COMMAND__KIND__EPOCH, 2, 9, a.t.yaml);
    save_in(&a, 2, 10, &op); /* when it is answered, the directory is ready */
    assert_ok(op.err);
    assert_false(is_link(in_root(&a, ".trash-1")) || is_link(in_root(&a, ".step-3.e1.partial")));
    assert_int_equal(access(inside, F_OK), 0);
    alone_stop(&a);
}

/* ---- reading ---- */

static void load(struct alone *a, const char *path, struct io_op *op)
{
    io_load(&a->w, &a->f, path, 0, op);
    io_until(&a->t, &op->done, 10000, "the end of the load");
}

TEST(load_by_other_names)
{
    struct alone a;
    struct io_op op;
    char path[PATH_MAX + 32];
    alone_start(&a);
    io_say_epoch(&a.t, 1, 0);
    save_ok(&a, 9);
    snprintf(path, sizeof(path), "%s/../ckpt/./step-9", a.t.root);
    load(&a, path, &op); /* opened with the user's own rights under any name */
    assert_ok(op.err);
    io_check_loaded(&a.w, &a.f, 0);
    load(&a, "ckpt/step-9", &op);
    assert_err(ERR_INVALID, op.err);
    load(&a, "", &op);
    assert_err(ERR_INVALID, op.err);
    load(&a, "/proc/self/mem", &op);
    assert_true(op.err != OK);
    alone_stop(&a);
}

/* A pipe instead of a file is an error and does not block a thread. */
static void pipe_as(const char *name)
{
    struct alone a;
    struct io_op op;
    int seen = 0;
    alone_start(&a);
    io_say_epoch(&a.t, 1, 0);
    save_ok(&a, 9);
    assert_int_equal(unlink(in_root(&a, name)), 0);
    assert_int_equal(mkfifo(in_root(&a, name), 0600), 0);
    load(&a, in_root(&a, "step-9"), &op);
    assert_true(op.err != OK && op.err != ERR_TIMEOUT);
    io_say(&a.t, DTD__IO_COMMAND__KIND__SCAN, 0, 0, a.t.yaml);
    io_report_wait(&a.t, SCANNED, &seen, 10000);
    io_report_wait(&a.t, SCANNED, &seen, 10000);
    alone_stop(&a);
}

TEST(part_is_a_pipe)
{
    pipe_as("step-9/__0_0.distcp");
}

TEST(metadata_is_a_pipe)
{
    pipe_as("step-9/.metadata");
}

TEST(manifest_is_a_pipe)
{
    pipe_as("step-9/dtd.manifest");
}

/* The vocabulary is read from data.cache at every commit: with a pipe there, only the vocabulary is missing. */
TEST(cache_has_a_pipe)
{
    static const char hash[] = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
    struct alone a;
    char path[PATH_MAX + 100], more[PATH_MAX + 200];
    alone_start(&a);
    snprintf(path, sizeof(path), "%s/cache", a.t.dir);
    assert_int_equal(mkdir(path, 0700), 0);
    snprintf(path, sizeof(path), "%s/cache/%s", a.t.dir, hash);
    assert_int_equal(mkdir(path, 0700), 0);
    strcat(path, "/index.json");
    assert_int_equal(mkfifo(path, 0600), 0);
    snprintf(more, sizeof(more), "tokenizer: words, cache: %s/cache, train_hash: %s}", a.t.dir, hash);
    char *at = strstr(a.t.yaml, "tokenizer: bytes}"), *rest = strdup(at + strlen("tokenizer: bytes}"));
    snprintf(at, sizeof(a.t.yaml) - (size_t)(at - a.t.yaml), "%s%s", more, rest);
    free(rest);
    io_say_epoch(&a.t, 1, 0);
    save_ok(&a, 9);
    assert_int_equal(access(in_root(&a, "step-9/dtd.vocab"), F_OK), -1);
    alone_stop(&a);
}

/* ---- checkpoint.dir itself ---- */

TEST(checkpoint_dir_is_a_link)
{
    struct alone a;
    char target[PATH_MAX];
    alone_start(&a);
    snprintf(target, sizeof(target), "%s/scratch", a.t.dir);
    assert_int_equal(mkdir(target, 0700), 0);
    assert_int_equal(symlink(target, a.t.root), 0); /* made by the user; a common setup */
    io_say_epoch(&a.t, 1, 0);
    save_ok(&a, 9);
    strcat(target, "/step-9");
    assert_ok(ckpt_verify(target, NULL, NULL, NULL));
    alone_stop(&a);
}

TEST(checkpoint_dir_is_relative)
{
    struct alone a;
    int seen = 0;
    alone_start(&a);
    char *at = strstr(a.t.yaml, a.t.root);
    memmove(at, at + 1, strlen(at));
    io_say(&a.t, DTD__IO_COMMAND__KIND__SCAN, 0, 0, a.t.yaml);
    assert_non_null(strstr(io_report_wait(&a.t, SCANNED, &seen, 10000)->text, "must be an absolute path"));
    alone_stop(&a);
}
