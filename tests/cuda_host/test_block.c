/* Tests of the runner: kernels give correct results, and errors that would make a GPU hang or compute wrong numbers are
 * detected. */
#include "tests/cuda_host/counts.h"
#include "tests/cuda_host/selftest.h"
#include "tests/lib/test.h"

#include <signal.h>
#include <sys/wait.h>

#define N 64

static cudaStream_t stream;
static int *device_x;

static void start(void)
{
    int host[N];
    for (int i = 0; i < N; i++)
        host[i] = i * 3;
    assert_int_equal(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), 0);
    assert_int_equal(cudaMalloc((void **)&device_x, sizeof(host)), 0);
    assert_int_equal(cudaMemcpy(device_x, host, sizeof(host), cudaMemcpyHostToDevice), 0);
}

static void finish(int *ret)
{
    assert_int_equal(cudaStreamSynchronize(stream), 0);
    assert_int_equal(cudaMemcpy(ret, device_x, N * sizeof(int), cudaMemcpyDeviceToHost), 0);
    assert_int_equal(cudaFree(device_x), 0);
    assert_int_equal(cudaStreamDestroy(stream), 0);
}

static void run(enum selftest what, unsigned grid, unsigned block, size_t shared, int *ret)
{
    start();
    assert_int_equal(selftest_launch(stream, what, grid, block, shared, device_x), 0);
    finish(ret);
}

/* Prevents cmocka from running in the child. */
static void child_begin(void)
{
    signal(SIGABRT, SIG_DFL);
    signal(SIGSEGV, SIG_DFL);
}

/* Runs it in a separate process, which must end with this sentence. */
static void dies(const char *sentence, enum selftest what, unsigned grid, unsigned block, size_t shared)
{
    char text[4096] = "";
    size_t n = 0;
    int fd[2], status, x[N];
    assert_int_equal(pipe(fd), 0);
    pid_t pid = fork();
    if (pid == 0) {
        child_begin();
        dup2(fd[1], 2);
        run(what, grid, block, shared, x);
        _exit(0);
    }
    close(fd[1]);
    for (ssize_t k; n < sizeof(text) - 1 && (k = read(fd[0], text + n, sizeof(text) - 1 - n)) > 0;)
        n += (size_t)k;
    close(fd[0]);
    waitpid(pid, &status, 0);
    if (!strstr(text, sentence) || (WIFEXITED(status) && WEXITSTATUS(status) == 0))
        fail_msg("status %d, expected \"%s\", got: %s", status, sentence, text);
}

TEST(threads_have_their_indices)
{
    int x[N];
    run(SELF_INDEX, 4, 16, 0, x);
    for (int i = 0; i < N; i++)
        assert_int_equal(x[i], i + 4000);
}

TEST(a_barrier_separates)
{
    int x[N];
    for (int seed = 0; seed < 8; seed++) {
        cuda_host_seed((uint64_t)seed);
        run(SELF_REVERSE, 1, N, 0, x);
        for (int i = 0; i < N; i++)
            assert_int_equal(x[i], (N - 1 - i) * 3);
        run(SELF_DYNAMIC, 1, N, N * sizeof(int), x);
        for (int i = 0; i < N; i++)
            assert_int_equal(x[i], (N - 1 - i) * 3);
    }
}

#ifdef CUDA_HOST_THREADS
#define THREADS true
#else
#define THREADS false
#endif
#ifdef __SANITIZE_ADDRESS__
#define ASAN true
#else
#define ASAN false
#endif

TEST(a_barrier_left_out_gives_wrong_numbers)
{
    int x[N], wrong = 0;
    if (THREADS)
        TEST_SKIP("there is a race, which the thread sanitizer detects");
    run(SELF_NO_BARRIER, 1, N, 0, x);
    for (int i = 0; i < N; i++)
        wrong += x[i] != (N - 1 - i) * 3;
    assert_true(wrong > 0);
}

TEST(a_barrier_left_out_is_a_race)
{
    if (!THREADS)
        TEST_SKIP("the threads of a block are fibres here; they are system threads only under the thread sanitizer");
    dies("data race", SELF_NO_BARRIER, 1, N, 0);
}

static int within(int lane, int from, int width)
{
    return from >= lane / width * width && from < lane / width * width + width ? from : lane;
}

TEST(shuffles_and_votes)
{
    int x[N];
    run(SELF_SHUFFLES, 1, N, 0, x);
    for (int i = 0; i < N; i++) {
        int lane = i % 32;
        int want = (lane ^ 2) + 100 * (lane / 16 * 16 + 5) + 10000 * within(lane, lane - 3, 32) +
                   1000000 * within(lane, lane + 2, 8);
        assert_int_equal(x[i], want);
    }
}

TEST(shared_memory_is_nothing_when_a_block_begins)
{
    int x[N];
    for (int i = 0; i < 2; i++) {
        run(SELF_DYNAMIC, 1, N, N * sizeof(int), x);
        run(SELF_UNWRITTEN, 1, N, N * sizeof(int), x);
        for (int k = 0; k < N; k++)
            assert_int_equal(x[k], -1);
    }
}

TEST(blocks_run_in_any_order)
{
    int x[N], differs = 0;
    for (int k = 0; k < 8; k++) {
        run(SELF_ORDER, N, 1, 0, x);
        for (int i = 0; i < N; i++)
            differs += x[i] != i;
    }
    assert_true(differs > 0);
}

TEST(missing_ranks_are_named)
{
    dies("have ended", SELF_HALF_BARRIER, 1, N, 0);
    dies("selftest, block (0,0,0), thread (", SELF_HALF_BARRIER, 1, N, 0);
}

TEST(a_warp_operation_needs_the_whole_warp)
{
    if (THREADS)
        TEST_SKIP("system threads that wait forever are detected only after a minute");
    dies("they have ended", SELF_HALF_SHUFFLE, 1, 32, 0);
    dies("not whole", SELF_SHUFFLES, 1, 33, 0);
    dies("different operations", SELF_MIXED_WARP, 1, 32, 0);
    dies("not all threads arrive", SELF_CROSSED, 1, 64, 0);
}

TEST(a_launch_that_no_device_takes)
{
    dies("a block of 1025", SELF_INDEX, 1, 1025, 0);
    dies("a grid of 0", SELF_INDEX, 0, 32, 0);
}

static cudaError_t answer(enum selftest what, size_t shared)
{
    int x[N];
    start();
    cudaError_t code = selftest_launch(stream, what, 1, N, shared, device_x);
    finish(x);
    for (int i = 0; i < N && code == cudaSuccess && what == SELF_REVERSE; i++)
        assert_int_equal(x[i], (N - 1 - i) * 3);
    return code;
}

/* SELF_REVERSE has 4096 bytes of static memory, SELF_DYNAMIC none. The first launch of a kernel returns the same
 * results as later ones. */
TEST(a_block_has_48_kib_of_static_and_dynamic_shared_memory)
{
    const size_t all = 48 << 10, rest = all - 4096;
    assert_int_equal(answer(SELF_REVERSE, rest + 1), cudaErrorInvalidValue);
    assert_int_equal(answer(SELF_REVERSE, rest + 1), cudaErrorInvalidValue);
    assert_int_equal(answer(SELF_REVERSE, rest), cudaSuccess);
    assert_int_equal(answer(SELF_DYNAMIC, all), cudaSuccess);
    assert_int_equal(answer(SELF_DYNAMIC, all + 1), cudaErrorInvalidValue);
}

TEST(a_kernel_may_be_given_what_a_device_has)
{
    const size_t all = 227 << 10, rest = all - 4096;
    assert_int_equal(selftest_allow(SELF_REVERSE, (int)all),
                     cudaSuccess); /* it has not run, so its static memory is unknown */
    assert_int_equal(answer(SELF_REVERSE, rest + 1), cudaErrorInvalidValue);
    assert_int_equal(answer(SELF_REVERSE, rest), cudaSuccess);
    assert_int_equal(selftest_allow(SELF_REVERSE, (int)all), cudaErrorInvalidValue);
    assert_int_equal(selftest_allow(SELF_REVERSE, 60000), cudaSuccess);
    assert_int_equal(answer(SELF_REVERSE, 60000), cudaSuccess);
    assert_int_equal(answer(SELF_REVERSE, 60001), cudaErrorInvalidValue);
}

TEST(static_shared_memory_is_nothing_when_a_block_begins)
{
    int x[N], old = 0;
    run(SELF_LEFT_OVER, 4, N / 4, 0, x);
    for (int i = 0; i < N; i++)
        old += x[i] == 7;
    assert_int_equal(old, 0);
}

TEST(an_overrun_of_shared_memory_is_found)
{
    if (!ASAN)
        TEST_SKIP("the address sanitizer detects it");
    dies("heap-buffer-overflow", SELF_OVERRUN, 1, N, N * sizeof(int));
}

TEST(a_host_access_to_device_memory_is_fatal)
{
    int status;
    start();
    pid_t pid = fork();
    if (pid == 0) {
        child_begin();
        device_x[0] = 1;
        _exit(0);
    }
    waitpid(pid, &status, 0);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    assert_int_equal(cudaFree(device_x), 0);
    assert_int_equal(cudaStreamDestroy(stream), 0);
}

TEST(host_memory_is_refused_as_an_argument)
{
    int x[N], status;
    start();
    pid_t pid = fork();
    if (pid == 0) {
        child_begin();
        close(2);
        selftest_launch(stream, SELF_INDEX, 1, 1, 0, x);
        _exit(0);
    }
    waitpid(pid, &status, 0);
    assert_true(WIFSIGNALED(status));
    finish(x);
}
