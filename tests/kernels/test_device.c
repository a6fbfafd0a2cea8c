/* Tests of the processor as a device and of the search for modules. */
#include "common/base/module.h"
#include "kernels/device.h"
#include "kernels/kernels.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <pthread.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

static struct dev *cpu(void)
{
    struct dev *d;
    assert_ok(dev_open("cpu", 0, &d, NULL));
    return d;
}

/* A copy of this program also searches for a module in its own folder; its exit status is the number of devices. */
__attribute__((constructor)) static void child(void)
{
    int n = 0;
    if (!getenv("DTD_TEST_COUNT"))
        return;
    _exit(dev_count("cuda", &n, NULL) == OK ? n : 77);
}

TEST(memory_is_zero_and_aligned)
{
    struct dev *d = cpu();
    const size_t sizes[] = {1, 4096, (5 << 20) + 3};
    for (size_t i = 0; i < 3; i++) {
        uint8_t *p[2];
        assert_ok(dev_alloc(d, sizes[i], "a test", (void **)&p[0], NULL));
        assert_ok(dev_host_alloc(d, sizes[i], "a test", (void **)&p[1], NULL));
        for (int k = 0; k < 2; k++) {
            assert_int_equal((uintptr_t)p[k] % 256, 0);
            for (size_t j = 0; j < sizes[i]; j++)
                assert_int_equal(p[k][j], 0);
        }
        dev_free(d, p[0], sizes[i]);
        dev_host_free(d, p[1], sizes[i]);
    }
    dev_close(d);
}

TEST(too_much_memory_is_an_error_with_its_use)
{
    struct dev *d = cpu();
    struct why why;
    void *p;
    assert_err(ERR_NOMEM, dev_alloc(d, (size_t)1 << 60, "parameters", &p, &why));
    assert_non_null(strstr(why.text, "parameters"));
    assert_non_null(strstr(why.text, "micro_batch"));
    dev_close(d);
}

TEST(nothing_is_legal)
{
    struct dev *d = cpu();
    struct kern_stream *s;
    void *p = d;
    assert_ok(dev_alloc(d, 0, "nothing", &p, NULL));
    assert_null(p);
    p = d;
    assert_ok(dev_host_alloc(d, 0, "nothing", &p, NULL));
    assert_null(p);
    dev_free(d, NULL, 0);
    dev_host_free(d, NULL, 0);
    assert_ok(dev_stream_new(d, 0, false, &s, NULL));
    assert_ok(dev_zero(s, NULL, 0));
    assert_ok(dev_copy(s, NULL, NULL, 0));
    assert_ok(dev_host_pin(d, NULL, 0, NULL));
    dev_stream_free(s);
    dev_stream_free(NULL);
    dev_event_free(d, NULL);
    dev_close(d);
    dev_close(NULL);
}

TEST(copies_and_zeros_are_in_bytes)
{
    struct dev *d = cpu();
    struct kern_stream *s;
    uint8_t a[9] = {1, 2, 3, 4, 5, 6, 7, 8, 9}, b[9] = {0};
    assert_ok(dev_stream_new(d, 2, true, &s, NULL));
    assert_ok(dev_copy(s, b + 1, a, 7));
    assert_memory_equal(b, ((const uint8_t[]){0, 1, 2, 3, 4, 5, 6, 7, 0}), 9);
    assert_ok(dev_zero(s, b + 2, 3));
    assert_memory_equal(b, ((const uint8_t[]){0, 1, 0, 0, 0, 5, 6, 7, 0}), 9);
    assert_ok(dev_stream_sync(s, NULL));
    assert_null(dev_stream_native(s));
    dev_stream_free(s);
    dev_close(d);
}

/* Copies that several threads share are complete, wherever they are split. */
TEST(large_copies_are_whole)
{
    enum { N = (9 << 20) + 13 }; /* larger than the caches on one thread and on two */
    static uint8_t a[N + 2], b[N + 2], zeros[N];
    struct dev *d = cpu();
    for (int threads = 1; threads <= 3; threads++) {
        struct kern_stream *s;
        assert_ok(dev_stream_new(d, threads, false, &s, NULL));
        for (int i = 0; i < N + 2; i++)
            a[i] = (uint8_t)(i * 7 + threads);
        memset(b, 0xee, sizeof(b));
        assert_ok(dev_copy(s, b + 1, a + 1, N));
        assert_memory_equal(b + 1, a + 1, N);
        assert_true(b[0] == 0xee && b[N + 1] == 0xee);
        assert_ok(dev_zero(s, b + 1, N));
        assert_memory_equal(b + 1, zeros, N);
        assert_true(b[0] == 0xee && b[N + 1] == 0xee);
        dev_stream_free(s);
    }
    dev_close(d);
}

TEST(events_are_over_and_timed_ones_take_the_clock)
{
    struct dev *d = cpu();
    struct kern_stream *s;
    struct dev_event *from, *to;
    assert_ok(dev_stream_new(d, 0, false, &s, NULL));
    assert_ok(dev_event_new(d, true, &from));
    assert_ok(dev_event_new(d, true, &to));
    assert_true(dev_event_over(d, from)); /* it was never recorded */
    assert_ok(dev_event_wait(d, from, s));
    assert_ok(dev_event_record(d, from, s));
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    assert_ok(dev_event_record(d, to, s));
    assert_ok(dev_event_wait(d, to, s));
    assert_ok(dev_event_sync(d, to, NULL));
    assert_true(dev_event_over(d, to));
    double ms = dev_event_ms(d, from, to);
    assert_true(ms >= 20 && ms < 10000);
    dev_event_free(d, from);
    dev_event_free(d, to);
    dev_stream_free(s);
    dev_close(d);
}

TEST(the_processor_reports_its_facts)
{
    struct dev_facts f;
    struct dev *d = cpu();
    int n = 0;
    assert_ok(dev_count("cpu", &n, NULL));
    assert_int_equal(n, 1);
    assert_ok(dev_facts(d, &f, NULL));
    assert_true(f.model[0] && f.processors > 0);
    assert_true(f.memory_bytes > 1 << 20 && f.free_bytes > 0 && f.free_bytes <= f.memory_bytes);
    assert_true(f.uuid[0] == 0 && f.driver[0] == 0 && f.major == 0);
    assert_string_equal(dev_kernels(d, DT_F32)->name, "cpu");
    assert_string_equal(dev_kernels(d, DT_F64)->name, "ref");
    assert_string_equal(dev_kernels(d, DT_BF16)->name, "cpu");
    dev_close(d);
}

TEST(devices_that_are_not_there_are_named)
{
    struct dev *d;
    struct why why;
    assert_err(ERR_NOTFOUND, dev_open("tpu", 0, &d, &why));
    assert_non_null(strstr(why.text, "\"tpu\""));
    assert_non_null(strstr(why.text, "cuda"));
    assert_err(ERR_NOTFOUND, dev_open("cpu", 1, &d, &why));
    assert_non_null(strstr(why.text, "1"));
}

/* ---- modules ---- */

static const char *modules(const char *which)
{
    static char path[1024];
    snprintf(path, sizeof(path), "%s/%s", getenv("DTD_TEST_MODULES"), which);
    return path;
}

TEST(a_missing_module_names_the_searched_paths)
{
    struct dev *d;
    struct why why;
    char place[2048];
    setenv("DTD_MODULE_DIR", test_tmpdir(), 1);
    assert_err(ERR_UNSUPPORTED, dev_open("cuda", 0, &d, &why));
    snprintf(place, sizeof(place), "%s/dtd-cuda.so", test_tmpdir());
    const char *first = strstr(why.text, place), *third = strstr(why.text, "/../lib/dtd/dtd-cuda.so");
    const char *second = strstr(why.text, "tests/dtd-cuda.so");
    assert_true(first && second && third && first < second && second < third);
    assert_non_null(strstr(why.text, strerror(ENOENT)));
    assert_non_null(strstr(why.text, "run.device: cpu"));
}

/* The sentence contains the loader's message about a file that exists. */
TEST(a_module_that_cannot_be_loaded_reports_the_cause)
{
    struct why why;
    char place[2048];
    int n;
    setenv("DTD_MODULE_DIR", test_tmpdir(), 1);
    snprintf(place, sizeof(place), "%s/dtd-cuda.so", test_tmpdir());
    FILE *f = fopen(place, "w");
    assert_non_null(f);
    fputs("no library\n", f);
    fclose(f);
    assert_err(ERR_UNSUPPORTED, dev_count("cuda", &n, &why));
    assert_non_null(strstr(why.text, "dtd-cuda.so: file too short"));
}

TEST(a_module_of_another_version_is_refused)
{
    struct dev *d;
    struct why why;
    setenv("DTD_MODULE_DIR", modules("old"), 1);
    assert_err(ERR_UNSUPPORTED, dev_open("cuda", 0, &d, &why));
    assert_non_null(strstr(why.text, "another version"));
}

TEST(a_library_that_is_no_module_is_refused)
{
    struct dev *d;
    struct why why;
    setenv("DTD_MODULE_DIR", modules("foreign"), 1);
    assert_err(ERR_UNSUPPORTED, dev_open("cuda", 0, &d, &why));
    assert_non_null(strstr(why.text, "dtd_cuda_module"));
}

TEST(a_module_reports_its_own_error)
{
    struct dev *d;
    struct why why;
    setenv("DTD_MODULE_DIR", modules("good"), 1);
    assert_err(ERR_INVALID, dev_open("cuda", 2, &d, &why));
    assert_string_equal(why.text, "device 2 of the stand-in does not exist");
}

/* A failed search does not affect a later one, and a loaded module stays, whatever the search path is then. */
TEST(a_module_is_loaded_once)
{
    void *first = NULL, *again = NULL;
    setenv("DTD_MODULE_DIR", test_tmpdir(), 1);
    assert_err(ERR_UNSUPPORTED, module_load("dtd-cuda.so", "dtd_cuda_module", &first, NULL));
    setenv("DTD_MODULE_DIR", modules("good"), 1);
    assert_ok(module_load("dtd-cuda.so", "dtd_cuda_module", &first, NULL));
    setenv("DTD_MODULE_DIR", modules("old"), 1);
    assert_ok(module_load("dtd-cuda.so", "dtd_cuda_module", &again, NULL));
    assert_ptr_equal(first, again);
}

static void *load(void *ret)
{
    struct why why;
    if (module_load("dtd-cuda.so", "dtd_cuda_module", ret, &why) != OK)
        *(void **)ret = NULL;
    return NULL;
}

TEST(threads_may_load_at_once)
{
    enum { N = 8 };
    pthread_t threads[N];
    void *found[N];
    setenv("DTD_MODULE_DIR", modules("good"), 1);
    for (int i = 0; i < N; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, load, &found[i]), 0);
    for (int i = 0; i < N; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < N; i++)
        assert_true(found[i] && found[i] == found[0]);
}

/* Runs a copy of this program in tmp/bin and returns its status. */
static int count_in_copy(void)
{
    char command[2048];
    snprintf(command, sizeof(command), "DTD_TEST_COUNT=1 %s/bin/copy", test_tmpdir());
    int status = system(command); /* a path of our own */
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void shell(const char *format, const char *a, const char *b)
{
    char command[4096];
    snprintf(command, sizeof(command), format, a, b);
    assert_int_equal(system(command), 0);
}

TEST(modules_lie_beside_the_program_or_in_lib)
{
    const char *tmp = test_tmpdir();
    unsetenv("DTD_MODULE_DIR");
    shell("mkdir -p %s/bin %s/lib/dtd", tmp, tmp);
    shell("cp %s %s/bin/copy", "/proc/$PPID/exe", tmp);
    assert_int_equal(count_in_copy(), 77);
    shell("cp %s/dtd-cuda.so %s/lib/dtd", modules("good"), tmp);
    assert_int_equal(count_in_copy(), 3);
    shell("cp %s/dtd-cuda.so %s/bin", modules("old"), tmp);
    assert_int_equal(count_in_copy(), 77); /* the program's own folder comes first */
    setenv("DTD_MODULE_DIR", modules("good"), 1);
    assert_int_equal(count_in_copy(), 3); /* and the folder of DTD_MODULE_DIR before that */
}
