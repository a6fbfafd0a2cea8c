/* The disk of an only node fails or hangs under the real programs: refusals at once, with the reason; running jobs go
 * on; after a restart on a sound disk nothing acknowledged is lost. */
#include "common/base/clock.h"
#include "tests/daemon/control/log/disk_faults.h"
#include "tests/daemon/programs/harness.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define SOON_MS 5000

static struct dtd d;
static struct disk_faults *disk;
static int notified; /* socket that gets what systemd would get */

static void listen_as_systemd(void)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    snprintf(a.sun_path, sizeof(a.sun_path), "%.90s/notify", test_tmpdir());
    notified = socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    assert_true(notified >= 0);
    assert_int_equal(0, bind(notified, (struct sockaddr *)&a, sizeof(a)));
    setenv("NOTIFY_SOCKET", a.sun_path, 1);
}

static void expect_status_line(const char *part)
{
    char text[2048];
    for (int64_t until = clock_mono_ms() + SOON_MS; clock_mono_ms() < until;) {
        ssize_t n = recv(notified, text, sizeof(text) - 1, 0);
        text[n > 0 ? n : 0] = '\0';
        if (strstr(text, "STATUS=") && strstr(text, part))
            return;
        if (n <= 0)
            sleep_ms(20);
    }
    fail_msg("no status line has \"%s\"", part);
}

static void start(void)
{
    listen_as_systemd();
    disk = dtd_preload("disk_faults", "DTD_TEST_DISK", sizeof(*disk));
    dtd_start(&d, "state");
    snprintf(disk->folder, sizeof(disk->folder), "%s/raft/", d.dir);
}

static err_t submit(const char *name, char ret[32], struct why *why)
{
    uint8_t id[16];
    assert_ok(client_request_id(id));
    return client_submit(dtd_client(&d), id, spec_text(name, 1, 3, "", ""), NULL, ret, why);
}

/* Time until a submit is refused; `why` has the reason. */
static int64_t refused_after(struct why *why)
{
    char job[32];
    int64_t since = clock_mono_ms();
    while (submit("b", job, why) == OK)
        assert_true(clock_mono_ms() - since < SOON_MS);
    return clock_mono_ms() - since;
}

static void expect_text(const char *text, const char *part)
{
    if (!text || !strstr(text, part))
        fail_msg("\"%s\" is not in \"%s\"", part, text ? text : "(none)");
}

static int control_pid(const char *warning)
{
    struct client_node node;
    struct why why = {""};
    assert_ok(client_node_get(dtd_client(&d), &node, &why));
    if (warning)
        expect_text(node.warning, warning);
    int pid = node.control_pid;
    client_node_fini(&node);
    return pid;
}

static void expect_progress(const char *job)
{
    int64_t step = job_status(&d, job)->step;
    job_wait_step(&d, job, 1, (int)step + 20, 20000);
    assert_string_equal("running", job_status(&d, job)->state);
}

TEST(a_failed_write)
{
    char a[32];
    uint8_t id[16];
    struct why why = {""};
    struct client_job job;
    start();
    job_submit(&d, spec_text("a", 1, 1000000, "DOUBLE_STEP_MS: \"10\"", ""), a);
    job_wait_step(&d, a, 1, 2, 20000);
    int pid = control_pid(NULL);
    disk->write = disk->sync = EIO;
    int64_t took = refused_after(&why);
    printf("refused after %d ms: %s\n", (int)took, why.text);
    assert_true(took < SOON_MS);
    why = (struct why){""};
    int64_t since = clock_mono_ms();
    assert_err(ERR_IO, submit("c", (char[32]){""}, &why));
    assert_true(clock_mono_ms() - since < 1000); /* at once from now on */
    expect_text(why.text, "an entry cannot be written: Input/output error");
    expect_text(why.text, "Replace the disk");
    assert_ok(client_request_id(id));
    assert_err(ERR_IO, client_cancel(dtd_client(&d), id, a, false, CLIENT_GRACE_DEFAULT, &job, &why));
    expect_progress(a);
    assert_int_equal(pid, control_pid("the disk of the state directory has failed")); /* control has not restarted */
    expect_status_line("an entry cannot be written: Input/output error");
    dtd_kill(&d);
    disk->write = disk->sync = 0;
    dtd_start(&d, "state");
    job_wait_step(&d, a, 1, 20, 30000);
    job_submit(&d, spec_text("d", 1, 3, "", ""), a);
    job_wait(&d, a, "done", 30000);
    assert_int_equal(0, dtd_down(&d));
}

TEST(a_disk_that_hangs)
{
    char a[32];
    struct why why = {""};
    start();
    job_submit(&d, spec_text("a", 1, 1000000, "DOUBLE_STEP_MS: \"10\"", ""), a);
    job_wait_step(&d, a, 1, 2, 20000);
    int pid = control_pid(NULL);
    disk->hangs = 1;
    int64_t took = refused_after(&why);
    printf("refused after %d ms: %s\n", (int)took, why.text);
    assert_true(took < SOON_MS);
    expect_text(why.text, "has not answered for 4 s");
    why = (struct why){""};
    assert_err(ERR_TIMEOUT, submit("c", (char[32]){""}, &why));
    expect_text(why.text, "has not answered for 4 s");
    expect_progress(a);
    assert_int_equal(pid, control_pid("has not answered"));
    expect_status_line("has not answered for 4 s");
    disk->hangs = 0;
    for (int64_t until = clock_mono_ms() + SOON_MS; submit("d", a, &why) != OK; sleep_ms(100))
        assert_true(clock_mono_ms() < until);
    job_wait(&d, a, "done", 30000);
    assert_int_equal(pid, control_pid(NULL));
    assert_int_equal(0, dtd_down(&d));
}
