/* The disk of an only node fails or hangs under the real programs: refusals at once, with the reason; running jobs go
 * on; after a restart on a sound disk nothing acknowledged is lost. */
#include "common/base/clock.h"
#include "tests/daemon/control/log/disk_faults.h"
#include "tests/daemon/programs/harness.h"

#include <fcntl.h>
#include <sys/mman.h>

#define SOON_MS 5000

static struct dtd d;
static struct disk_faults *disk;

static void start(void)
{
    static char file[512], library[4096], asan[1024];
    const char *options = getenv("ASAN_OPTIONS");
    snprintf(file, sizeof(file), "%s/disk", test_tmpdir());
    int fd = open(file, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    assert_true(fd >= 0);
    assert_int_equal(0, ftruncate(fd, sizeof(*disk)));
    disk = mmap(NULL, sizeof(*disk), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    assert_true(disk != MAP_FAILED);
    close(fd);
    snprintf(library, sizeof(library), "%s/../tests/libdisk_faults.so", getenv("DTD_BIN"));
    snprintf(asan, sizeof(asan), "%s%sverify_asan_link_order=0", options ? options : "", options ? ":" : "");
    setenv("ASAN_OPTIONS", asan, 1); /* a sanitizer's library wants to be the first one otherwise */
    setenv("DTD_TEST_DISK", file, 1);
    setenv("LD_PRELOAD", library, 1);
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
    disk->hangs = 0;
    for (int64_t until = clock_mono_ms() + SOON_MS; submit("d", a, &why) != OK; sleep_ms(100))
        assert_true(clock_mono_ms() < until);
    job_wait(&d, a, "done", 30000);
    assert_int_equal(pid, control_pid(NULL));
    assert_int_equal(0, dtd_down(&d));
}
