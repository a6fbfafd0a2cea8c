/* dtd under a service manager, which the test simulates: the notifications and both watchdogs. */
#include "tests/daemon/programs/harness.h"

#include "common/base/clock.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

static struct dtd d;

/* The socket of the service manager; dtd inherits its name. */
static int manager(const char *watchdog_us)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    const struct timeval wait = {.tv_sec = 30};
    snprintf(a.sun_path, sizeof(a.sun_path), "%.90s/notify", test_tmpdir());
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    assert_int_equal(0, bind(fd, (struct sockaddr *)&a, sizeof(a)));
    assert_int_equal(0, setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait)));
    setenv("NOTIFY_SOCKET", a.sun_path, 1);
    if (watchdog_us)
        setenv("WATCHDOG_USEC", watchdog_us, 1);
    return fd;
}

/* Receives until a message begins with `what`; returns it. */
static const char *hear(int fd, const char *what)
{
    static char text[1024];
    ssize_t n;
    do {
        n = recv(fd, text, sizeof(text) - 1, 0);
        text[n > 0 ? n : 0] = '\0';
    } while (n >= 0 && strncmp(text, what, strlen(what)) != 0);
    if (n < 0)
        fail_msg("no message has %s", what);
    return text;
}

static int control_pid(void)
{
    struct client_node node;
    struct why why = {""};
    assert_ok(client_node_get(dtd_client(&d), &node, &why));
    int pid = node.control_pid;
    client_node_fini(&node);
    assert_true(pid > 1);
    return pid;
}

TEST(ready_status_beats_stopping)
{
    char job[32];
    int fd = manager("90000000");
    dtd_start(&d, "state");
    hear(fd, "READY=1");
    hear(fd, "WATCHDOG=1");
    assert_string_equal("STATUS=leader, 1 node, 0 jobs running", hear(fd, "STATUS=leader"));
    job_submit(&d, spec_text("a", 1, 100000, "", ""), job);
    job_wait(&d, job, "running", 20000);
    while (!strstr(hear(fd, "STATUS=leader"), "1 job running"))
        ;
    kill(d.pid, SIGTERM);
    hear(fd, "STOPPING=1");
    assert_int_equal(d.pid, waitpid(d.pid, NULL, 0));
}

/* The variables of the service manager are only for dtd: a job that used them could make the manager end dtd. */
TEST(jobs_cannot_speak_to_the_manager)
{
    char job[32], path[64];
    int fd = manager("90000000");
    dtd_start(&d, "state");
    job_submit(&d, spec_text("a", 1, 100000, "", ""), job);
    job_wait(&d, job, "running", 20000);
    snprintf(path, sizeof(path), "/proc/%d/environ", job_status(&d, job)->worker[0].pid);
    FILE *f = fopen(path, "r");
    char *text = calloc(1, 1 << 20);
    assert_non_null(f);
    size_t n = fread(text, 1, (1 << 20) - 1, f);
    fclose(f);
    assert_true(n > 0);
    assert_null(memmem(text, n, "NOTIFY_SOCKET", 13));
    assert_null(memmem(text, n, "WATCHDOG_USEC", 13));
    free(text);
    close(fd);
    assert_int_equal(0, dtd_down(&d));
}

/* After a third of WatchdogSec (3 s) without a heartbeat control is restarted; workers continue their epoch. */
TEST(control_that_hangs_is_replaced)
{
    char job[32];
    int fd = manager("3000000");
    dtd_start(&d, "state");
    hear(fd, "READY=1");
    job_submit(&d, spec_text("a", 2, 100000, "", ""), job);
    job_wait(&d, job, "running", 20000);
    int before = control_pid(), worker = job_status(&d, job)->worker[1].pid;
    client_close(d.client);
    d.client = NULL;
    assert_int_equal(0, kill(before, SIGSTOP));
    hear(fd, "STATUS=control hung");
    assert_int_not_equal(before, control_pid());
    hear(fd, "WATCHDOG=1");
    job_wait(&d, job, "running", 20000);
    assert_int_equal(worker, job_status(&d, job)->worker[1].pid);
    assert_int_equal(1, job_status(&d, job)->epoch);
    assert_int_equal(0, kill(d.pid, 0));
    assert_int_equal(0, dtd_down(&d));
}

/* A private dtd has no watchdog: a debugger may stop its control for any time. */
TEST(control_of_a_private_dtd_may_be_held)
{
    dtd_start(&d, "state");
    int before = control_pid();
    assert_int_equal(0, kill(before, SIGSTOP));
    sleep_ms(12000);
    assert_int_equal(0, kill(before, SIGCONT));
    assert_int_equal(before, control_pid());
    assert_int_equal(0, dtd_down(&d));
}

TEST(hangup_reads_the_configuration_again)
{
    char path[512];
    int fd = manager("90000000");
    if (geteuid() != 0)
        TEST_SKIP("a system-wide dtd is started by root");
    unsetenv("DTD_LOG");
    dtd_start_system(&d);
    hear(fd, "READY=1");
    snprintf(path, sizeof(path), "%s/dtd.yaml", test_tmpdir());
    FILE *f = fopen(path, "a");
    fputs("log: {level: debug}\n", f);
    fclose(f);
    kill(d.pid, SIGHUP);
    assert_non_null(strstr(hear(fd, "RELOADING=1"), "\nMONOTONIC_USEC="));
    hear(fd, "READY=1");
    snprintf(path, sizeof(path), "%s.log", d.dir);
    char *text = read_text(path);
    assert_non_null(strstr(text, "configuration read again log.level=3"));
    free(text);
    assert_int_equal(0, dtd_down(&d));
}
