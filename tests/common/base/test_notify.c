/* The messages that a service manager would receive, on a socket of the test. */
#include "common/base/notify.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <stdbool.h>

static int listen_at(const char *name)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    size_t len = strlen(name);
    memcpy(a.sun_path, name, len);
    if (name[0] == '@')
        a.sun_path[0] = '\0';
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0);
    assert_int_equal(0, bind(fd, (struct sockaddr *)&a, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len)));
    setenv("NOTIFY_SOCKET", name, 1);
    return fd;
}

static const char *receive(int fd)
{
    static char text[1024];
    ssize_t n = recv(fd, text, sizeof(text) - 1, 0);
    text[n > 0 ? n : 0] = '\0';
    return text;
}

static void check_messages(const char *name)
{
    struct notify n;
    int fd = listen_at(name);
    notify_init(&n);
    notify_send(&n, "READY=%d", 1);
    assert_string_equal("READY=1", receive(fd));
    notify_fini(&n);
    notify_send(&n, "READY=1");
    assert_string_equal("", receive(fd));
    close(fd);
}

TEST(path)
{
    char path[256];
    snprintf(path, sizeof(path), "%s/notify", test_tmpdir());
    check_messages(path);
}

TEST(abstract)
{
    char name[64];
    snprintf(name, sizeof(name), "@dtd-test-notify-%d", getpid());
    check_messages(name);
}

TEST(children_inherit_nothing)
{
    struct notify n;
    char pid[24];
    snprintf(pid, sizeof(pid), "%d", getpid());
    setenv("NOTIFY_SOCKET", "/nowhere", 1);
    setenv("WATCHDOG_USEC", "90000000", 1);
    setenv("WATCHDOG_PID", pid, 1);
    notify_init(&n);
    assert_int_equal(90000, n.watchdog_ms);
    assert_null(getenv("NOTIFY_SOCKET"));
    assert_null(getenv("WATCHDOG_USEC"));
    assert_null(getenv("WATCHDOG_PID"));
    notify_send(&n, "READY=1"); /* no process reads the socket: no error */
    notify_fini(&n);
}

TEST(watchdog_of_another_process)
{
    struct notify n;
    setenv("WATCHDOG_USEC", "90000000", 1);
    setenv("WATCHDOG_PID", "1", 1);
    notify_init(&n);
    assert_int_equal(0, n.watchdog_ms);
}

TEST(bad_values_are_no_values)
{
    char longest[300] = "/";
    const char *const bad[] = {"", "@", "/", "relative/path", longest};
    memset(longest + 1, 'x', sizeof(longest) - 2);
    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        struct notify n;
        setenv("NOTIFY_SOCKET", bad[i], 1);
        setenv("WATCHDOG_USEC", i % 2 ? "-5" : "99999999999999999999", 1);
        notify_init(&n);
        assert_int_equal(-1, n.fd);
        assert_int_equal(0, n.watchdog_ms);
        notify_send(&n, "READY=1");
    }
}

TEST(status_adds_no_line)
{
    struct notify n;
    char name[64], big[1000];
    snprintf(name, sizeof(name), "@dtd-test-status-%d", getpid());
    int fd = listen_at(name);
    notify_init(&n);
    notify_status(&n, "leader\nMAINPID=1\x1b[2J\0hidden", 27);
    assert_string_equal("STATUS=leader MAINPID=1 [2J", receive(fd));
    memset(big, 'x', sizeof(big));
    notify_status(&n, big, sizeof(big));
    assert_int_equal(7 + NOTIFY_STATUS_MAX - 1, strlen(receive(fd)));
    notify_fini(&n);
    close(fd);
}

TEST(a_full_queue_blocks_nobody)
{
    struct notify n;
    char name[64];
    snprintf(name, sizeof(name), "@dtd-test-full-%d", getpid());
    int fd = listen_at(name);
    notify_init(&n);
    for (int i = 0; i < 10000; i++)
        notify_send(&n, "WATCHDOG=1");
    assert_string_equal("WATCHDOG=1", receive(fd));
    notify_fini(&n);
    close(fd);
}
