/* The acceptor on real sockets: two sockets at once, pause and resume, no descriptors left, closing from a callback. */
#include "common/loop/acceptor.h"
#include "tests/lib/test.h"

#include "common/base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/un.h>

#define CONNECTIONS_MAX 64

struct bench {
    uv_loop_t loop;
    struct acceptor acceptor;
    int fds[ACCEPTOR_SOCKETS_MAX]; /* listening */
    int accepted[CONNECTIONS_MAX], n_accepted;
    int limit;            /* may_accept is true below it */
    bool close_at_accept; /* the callback closes the acceptor */
    int n_closed;
};

static int listen_on(const char *dir, int i, struct sockaddr_un *ret)
{
    *ret = (struct sockaddr_un){.sun_family = AF_UNIX};
    snprintf(ret->sun_path, sizeof(ret->sun_path), "%s/%d.sock", dir, i);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)ret, sizeof(*ret)), 0);
    assert_int_equal(listen(fd, CONNECTIONS_MAX), 0);
    return fd;
}

static int connect_to(const struct sockaddr_un *to)
{
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (const struct sockaddr *)to, sizeof(*to)), 0);
    return fd;
}

static bool may_accept(void *owner)
{
    const struct bench *b = owner;
    return b->n_accepted < b->limit;
}

static void acceptor_closed(void *owner)
{
    ((struct bench *)owner)->n_closed++;
}

static void accepted(void *owner, int fd, const struct sockaddr_storage *from)
{
    struct bench *b = owner;
    assert_int_equal(from->ss_family, AF_UNIX);
    assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
    assert_true(fcntl(fd, F_GETFL) & O_NONBLOCK);
    b->accepted[b->n_accepted++] = fd;
    if (b->close_at_accept)
        acceptor_close(&b->acceptor, acceptor_closed);
}

static void bench_open(struct bench *b, int n_sockets, struct sockaddr_un *ret_addresses)
{
    const char *dir = test_tmpdir();
    *b = (struct bench){.limit = CONNECTIONS_MAX};
    assert_int_equal(uv_loop_init(&b->loop), 0);
    const struct acceptor_config config = {.loop = &b->loop,
                                           .name = "test",
                                           .accepts_per_turn = 4,
                                           .may_accept = may_accept,
                                           .accepted = accepted,
                                           .owner = b};
    acceptor_init(&b->acceptor, &config);
    for (int i = 0; i < n_sockets; i++) {
        b->fds[i] = listen_on(dir, i, &ret_addresses[i]);
        assert_ok(acceptor_add(&b->acceptor, b->fds[i]));
    }
}

/* Runs the loop for `ms` and returns the number of its turns. The timer of an idle loop wakes it about every 5 ms. */
static void tick(uv_timer_t *timer)
{
    (void)timer;
}

static int turns_in(struct bench *b, int ms)
{
    uv_timer_t timer;
    int turns = 0;
    uv_timer_init(&b->loop, &timer);
    uv_timer_start(&timer, tick, 5, 5);
    for (int64_t end = clock_mono_ms() + ms; clock_mono_ms() < end; turns++)
        uv_run(&b->loop, UV_RUN_ONCE);
    uv_close((uv_handle_t *)&timer, NULL);
    uv_run(&b->loop, UV_RUN_NOWAIT);
    return turns;
}

static void run_until_accepted(struct bench *b, int n)
{
    for (int64_t end = clock_mono_ms() + 30000; b->n_accepted < n;) {
        assert_true(clock_mono_ms() < end);
        uv_run(&b->loop, UV_RUN_ONCE);
    }
}

static void bench_close(struct bench *b)
{
    if (!b->acceptor.closing)
        acceptor_close(&b->acceptor, acceptor_closed);
    assert_int_equal(b->n_closed, 0); /* never inside the call */
    uv_run(&b->loop, UV_RUN_DEFAULT);
    assert_int_equal(b->n_closed, 1);
    assert_int_equal(uv_loop_close(&b->loop), 0);
    for (int i = 0; i < b->n_accepted; i++)
        close(b->accepted[i]);
}

TEST(two_sockets)
{
    struct bench b;
    struct sockaddr_un at[2];
    bench_open(&b, 2, at);
    for (int i = 0; i < 20; i++)
        connect_to(&at[i % 2]);
    run_until_accepted(&b, 20);
    bench_close(&b);
}

TEST(a_full_owner_leaves_connections_in_the_backlog)
{
    struct bench b;
    struct sockaddr_un at[2];
    bench_open(&b, 2, at);
    b.limit = 3;
    for (int i = 0; i < 8; i++)
        connect_to(&at[i % 2]);
    run_until_accepted(&b, 3);
    assert_in_range(turns_in(&b, 300), 1, 150); /* a readable socket that is still polled makes thousands */
    assert_int_equal(b.n_accepted, 3);
    b.limit = CONNECTIONS_MAX;
    acceptor_resume(&b.acceptor);
    run_until_accepted(&b, 8);
    bench_close(&b);
}

TEST(without_descriptors_it_tries_again_later)
{
    struct bench b;
    struct sockaddr_un at[1];
    struct rlimit was, few;
    bench_open(&b, 1, at);
    connect_to(&at[0]);
    run_until_accepted(&b, 1); /* libuv has opened whatever it needs */
    int last = connect_to(&at[0]);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &was), 0);
    few = (struct rlimit){.rlim_cur = (rlim_t)last + 1, .rlim_max = was.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    assert_int_equal(dup(last), -1);
    assert_int_equal(errno, EMFILE);
    assert_in_range(turns_in(&b, 350), 1, 175);
    assert_int_equal(b.n_accepted, 1);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &was), 0);
    run_until_accepted(&b, 2); /* nothing but its own timer resumes it */
    bench_close(&b);
}

TEST(closed_from_its_callback_it_accepts_nothing_more)
{
    struct bench b;
    struct sockaddr_un at[1];
    bench_open(&b, 1, at);
    b.close_at_accept = true;
    for (int i = 0; i < 3; i++)
        connect_to(&at[0]);
    run_until_accepted(&b, 1);
    uv_run(&b.loop, UV_RUN_DEFAULT);
    assert_int_equal(b.n_accepted, 1);
    assert_int_equal(b.n_closed, 1);
    assert_int_equal(uv_loop_close(&b.loop), 0);
}

TEST(a_regular_file_is_an_error_and_the_acceptor_can_be_closed)
{
    struct bench b;
    struct sockaddr_un at[1];
    char path[256];
    bench_open(&b, 1, at);
    snprintf(path, sizeof(path), "%s/file", test_tmpdir());
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_true(acceptor_add(&b.acceptor, fd) != OK);
    connect_to(&at[0]);
    run_until_accepted(&b, 1); /* the first socket still works */
    bench_close(&b);
    close(fd);
}
