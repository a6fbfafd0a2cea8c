/* Tests of the stand-in for cudart: work is deferred, host memory is read when a copy runs, and objects that are leaked
 * or misused, as well as injected failures, are counted or named. */
#include "tests/cuda_host/counts.h"
#include "tests/cuda_host/selftest.h"
#include "tests/lib/test.h"

#include <signal.h>
#include <sys/wait.h>

static cudaStream_t stream(void)
{
    cudaStream_t s;
    assert_int_equal(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), 0);
    return s;
}

static int *memory(void)
{
    void *p;
    assert_int_equal(cudaMalloc(&p, sizeof(int)), 0);
    return p;
}

static cudaEvent_t event(void)
{
    cudaEvent_t e;
    assert_int_equal(cudaEventCreateWithFlags(&e, cudaEventDisableTiming), 0);
    return e;
}

static struct cuda_host_counts counts(void)
{
    struct cuda_host_counts c;
    cuda_host_counts_read(&c);
    return c;
}

TEST(host_memory_is_read_when_the_copy_runs)
{
    cudaStream_t s = stream();
    int *x = memory(), host = 1, back = 0;
    assert_int_equal(cudaMemcpyAsync(x, &host, sizeof(int), cudaMemcpyHostToDevice, s), 0);
    host = 2;
    assert_int_equal(cudaMemcpyAsync(&back, x, sizeof(int), cudaMemcpyDeviceToHost, s), 0);
    assert_int_equal(back, 0);
    assert_int_equal(cudaStreamSynchronize(s), 0);
    assert_int_equal(back, 2);
    assert_int_equal(counts().pageable_copies, 2);
    assert_int_equal(cudaFree(x), 0);
    assert_int_equal(cudaStreamDestroy(s), 0);
    assert_int_equal(counts().live_allocations + counts().live_streams, 0);
}

/* Counts, over many orders, how often b's copy reads the old value of a's target: never with the wait, sometimes
 * without it. */
static int stale(bool wait)
{
    cudaStream_t a = stream(), b = stream();
    cudaEvent_t e = event();
    int *x = memory(), one = 1, two = 2, back, ret = 0;
    for (int i = 0; i < 40; i++) {
        cuda_host_seed((uint64_t)i);
        assert_int_equal(cudaMemcpyAsync(x, &one, sizeof(int), cudaMemcpyDefault, a), 0);
        assert_int_equal(cudaStreamSynchronize(a), 0);
        assert_int_equal(cudaMemcpyAsync(x, &two, sizeof(int), cudaMemcpyDefault, a), 0);
        assert_int_equal(cudaEventRecord(e, a), 0);
        if (wait)
            assert_int_equal(cudaStreamWaitEvent(b, e, 0), 0);
        assert_int_equal(cudaMemcpyAsync(&back, x, sizeof(int), cudaMemcpyDefault, b), 0);
        assert_int_equal(cudaStreamSynchronize(b), 0);
        assert_int_equal(cudaStreamSynchronize(a), 0);
        ret += back == 1;
    }
    assert_int_equal(cudaEventDestroy(e), 0);
    assert_int_equal(cudaFree(x), 0);
    assert_int_equal(cudaStreamDestroy(a), 0);
    assert_int_equal(cudaStreamDestroy(b), 0);
    return ret;
}

TEST(a_missing_wait_shows)
{
    int without = stale(false);
    assert_true(without > 0 && without < 40);
    assert_int_equal(counts().unwaited_events, 1);
    assert_int_equal(stale(true), 0);
    assert_int_equal(counts().unwaited_events, 1);
}

TEST(an_event_that_was_never_recorded_is_complete)
{
    cudaStream_t s = stream();
    cudaEvent_t e = event();
    assert_int_equal(cudaStreamWaitEvent(s, e, 0), 0);
    assert_int_equal(cudaStreamSynchronize(s), 0);
    assert_int_equal(cudaEventQuery(e), 0);
    assert_int_equal(counts().fresh_waits, 1);
    assert_int_equal(cudaEventDestroy(e), 0);
    assert_int_equal(cudaStreamDestroy(s), 0);
}

TEST(injected_failures)
{
    cudaStream_t s = stream();
    void *p;
    int *x = memory();
    cuda_host_inject("malloc", 2);
    assert_int_equal(cudaMalloc(&p, 8), 0);
    assert_int_equal(cudaFree(p), 0);
    assert_int_equal(cudaMalloc(&p, 8), cudaErrorMemoryAllocation);
    assert_int_equal(cudaGetLastError(), cudaErrorMemoryAllocation);
    cuda_host_inject("launch", 1);
    assert_int_equal(selftest_launch(s, SELF_INDEX, 1, 1, 0, x), cudaErrorLaunchOutOfResources);
    assert_int_equal(cudaStreamSynchronize(s), 0);
    cuda_host_inject("kernel", 1);
    assert_int_equal(selftest_launch(s, SELF_INDEX, 1, 1, 0, x), 0);
    assert_int_equal(cudaStreamSynchronize(s), cudaErrorIllegalAddress);
    assert_int_equal(cudaMalloc(&p, 8), cudaErrorIllegalAddress); /* every call from then on */
    cuda_host_inject("", 0);
    assert_int_equal(cudaFree(x), 0);
    assert_int_equal(cudaStreamDestroy(s), 0);
}

/* ---- errors that end the process ---- */

static void copies_behind_the_end(void)
{
    int host[2] = {0};
    cudaMemcpyAsync(memory(), host, sizeof(host), cudaMemcpyDefault, stream());
}

static void copies_to_freed_memory(void)
{
    int host = 0, *x = memory();
    cudaFree(x);
    cudaMemcpyAsync(x, &host, sizeof(host), cudaMemcpyDefault, stream());
}

static void uses_a_destroyed_event(void)
{
    cudaEvent_t e = event();
    cudaEventDestroy(e);
    cudaEventRecord(e, stream());
}

static void leaves_memory_behind(void)
{
    setenv("DTD_CUDA_HOST_STRICT", "1", 1);
    memory();
    exit(0);
}

static void ends_badly(void (*fn)(void))
{
    int status;
    pid_t pid = fork();
    if (pid == 0) {
        signal(SIGABRT, SIG_DFL);
        close(2);
        fn();
        _exit(0);
    }
    waitpid(pid, &status, 0);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
}

TEST(misuse_ends_the_process)
{
    ends_badly(copies_behind_the_end);
    ends_badly(copies_to_freed_memory);
    ends_badly(uses_a_destroyed_event);
    ends_badly(leaves_memory_behind);
}
