/* Tests which algorithm file a job's device uses (run.algorithms), with the stand-ins of tests/cuda_host. */
#include "tests/lib/test.h"

#include "kernels/kernels.h"
#include "worker/device.h"

#include <dirent.h>
#include <stdbool.h>
#include <sys/stat.h>

static struct job_spec job_of(const char *const sets[], int n)
{
    static const char yaml[] = "name: x\nmodel: {dim: 32, layers: 1, heads: 1}\ndata: {train: [/nothing]}\n"
                               "train: {steps: 1}\nrun: {device: cuda}\n";
    struct job_spec job;
    struct why why = {""};
    if (job_parse("x", yaml, strlen(yaml), sets, n, &job, &why))
        fail_msg("%s", why.text);
    return job;
}

/* Computes a product; a file in use then contains a choice. */
static void compute(struct dev *d)
{
    struct kern_stream *s;
    struct why why = {""};
    float *p;
    assert_ok(dev_stream_new(d, 0, false, &s, &why));
    assert_ok(dev_alloc(d, 3 * 64 * sizeof(float), "a test", (void **)&p, &why));
    const struct kern_gemm g = {
        .m = 8, .n = 8, .k = 8, .lda = 8, .ldb = 8, .ldc = 8, .a = p, .b = p + 64, .c = p + 128};
    assert_ok(dev_kernels(d, DT_F32)->gemm(s, &g));
    assert_ok(dev_stream_sync(s, &why));
    dev_free(d, p, 3 * 64 * sizeof(float));
    dev_stream_free(s);
}

/* The size of the only file in a folder; 0: the folder does not exist or is empty. */
static int64_t bytes_in(const char *folder)
{
    int64_t bytes = 0;
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d));) {
        char path[1024];
        struct stat st;
        snprintf(path, sizeof(path), "%s/%s", folder, e->d_name);
        if (stat(path, &st) == 0 && S_ISREG(st.st_mode)) {
            assert_int_equal(bytes, 0);
            bytes = st.st_size;
        }
    }
    if (d)
        closedir(d);
    return bytes;
}

static char cache[512], folder[600], file[600], in_cache[512 + 32], named[600 + 32];

static void set_up(void)
{
    char module[600];
    snprintf(module, sizeof(module), "%s/dtd-cuda.so", getenv("DTD_MODULE_DIR"));
    if (access(module, R_OK))
        TEST_SKIP("this build has no %s", module);
    snprintf(cache, sizeof(cache), "%s/cache", test_tmpdir());
    snprintf(folder, sizeof(folder), "%s/algorithms", cache);
    snprintf(file, sizeof(file), "%s/named", test_tmpdir());
    snprintf(in_cache, sizeof(in_cache), "data.cache=%s", cache);
    snprintf(named, sizeof(named), "run.algorithms=%s", file);
}

static void use_with(struct worker_device *d, const char *const sets[], int n, enum numerics numerics)
{
    struct job_spec job = job_of(sets, n);
    struct why why = {""};
    job.train.numerics = numerics;
    if (worker_device_need(d, &job, &why))
        fail_msg("%s", why.text);
    compute(d->dev);
    job_fini(&job);
}

static void use(struct worker_device *d, const char *const sets[], int n)
{
    use_with(d, sets, n, NUMERICS_FAST);
}

TEST(algorithms_are_kept_in_the_cache_unless_named)
{
    struct worker_device d = {0};
    struct stat st;
    set_up();
    assert_int_equal(chdir(test_tmpdir()), 0);
    use(&d, (const char *[]){in_cache, "run.algorithms=none"}, 2);
    assert_true(access("none", F_OK) != 0);
    assert_int_equal(bytes_in(folder), 0);
    use(&d, (const char *[]){in_cache}, 1); /* next epoch on the same device */
    int64_t bytes = bytes_in(folder);
    assert_true(bytes > 0);
    use(&d, (const char *[]){in_cache, named}, 2);
    assert_int_equal(stat(file, &st), 0);
    assert_true(st.st_size > 300 && bytes_in(folder) == bytes);
    worker_device_close(&d);
}

/* Job files cannot select canonical numerics on a GPU today. If they could, no bit of the result would depend on
 * timing. */
TEST(canonical_numerics_use_no_file)
{
    struct worker_device d = {0};
    struct stat st;
    set_up();
    use_with(&d, (const char *[]){in_cache, named}, 2, NUMERICS_CANONICAL);
    assert_int_equal(bytes_in(folder), 0);
    assert_true(stat(file, &st) != 0);
    worker_device_close(&d);
}

TEST(a_job_goes_on_where_nothing_can_be_kept)
{
    struct worker_device d = {0};
    set_up();
    use(&d, (const char *[]){"data.cache=/dev/null"}, 1);
    use(&d, (const char *[]){"run.algorithms=/dev/null"}, 1);
    worker_device_close(&d);
}
