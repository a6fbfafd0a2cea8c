/* One client's request must not delay others: while it runs, another client calls the same control, and the longest
 * answer is printed. The limit is far above what a loaded machine needs, and far below the seconds that a search or a
 * parse on the loop, or on the log's threads, takes. */
#include "tests/daemon/programs/harness.h"

#include "common/base/clock.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>

#define HOLD_MS 1000

static struct dtd d;

static void file_of(char ret[512], const char *format, const char *job)
{
    int n = snprintf(ret, 512, "%s/", d.dir);
    snprintf(ret + n, 512 - (size_t)n, format, job);
}

/* Calls control until all `n` processes have ended with status 0. `logged`: each call appends a record to the log. */
static int64_t longest_answer(const pid_t *pids, int n, const char *logged)
{
    int64_t longest = 0, since = clock_mono_ms();
    for (int left = n; left > 0;) {
        struct client_node node;
        struct client_job job;
        struct why why = {""};
        uint8_t id[16];
        int64_t begin = clock_mono_ms();
        if (logged) {
            assert_ok(client_request_id(id));
            assert_ok(client_cancel(dtd_client(&d), id, logged, false, CLIENT_GRACE_DEFAULT, &job, &why));
            client_job_fini(&job);
        } else {
            assert_ok(client_node_get(dtd_client(&d), &node, &why));
            client_node_fini(&node);
        }
        int64_t took = clock_mono_ms() - begin;
        longest = took > longest ? took : longest;
        for (int i = 0, status; i < n; i++)
            if (waitpid(pids[i], &status, WNOHANG) == pids[i]) {
                assert_true(WIFEXITED(status));
                assert_int_equal(0, WEXITSTATUS(status));
                left--;
            }
        assert_true(clock_mono_ms() - since < 100000);
    }
    printf("requests: %d, in %d ms; longest answer to another client: %d ms\n", n, (int)(clock_mono_ms() - since),
           (int)longest);
    return longest;
}

/* ---- logs ---- */

struct tail_seen {
    char note[300];
    int64_t bytes;
    char last;
};

static bool see_log(void *arg, const struct client_log *chunk)
{
    struct tail_seen *s = arg;
    const char *bytes = chunk->text;
    size_t len = chunk->len;
    if (bytes[0] == '(') {
        snprintf(s->note, sizeof(s->note), "%.*s", (int)len, bytes);
        return true;
    }
    s->bytes += (int64_t)len;
    s->last = bytes[len - 1];
    return true;
}

static pid_t ask_tail(const char *job, int64_t lines, const char *note, int64_t bytes)
{
    pid_t pid = fork();
    if (pid)
        return pid;
    struct client *c;
    struct why why = {""};
    struct tail_seen seen = {.note = ""};
    const struct client_stream stream = {.log = see_log, .arg = &seen};
    if (client_open(d.dir, &c, &why) || client_logs(c, job, -1, false, lines, &stream, &why))
        _exit(1);
    if (seen.bytes != bytes || seen.last != 'e' || !strstr(seen.note, note))
        printf("received %d bytes and \"%s\"\n", (int)seen.bytes, seen.note);
    fflush(stdout);
    _exit(seen.bytes == bytes && seen.last == 'e' && strstr(seen.note, note) ? 0 : 2);
}

static void finished_job(char ret[32])
{
    dtd_start(&d, "state");
    job_submit(&d, spec_text("a", 1, 3, "", ""), ret);
    job_wait(&d, ret, "done", 30000);
}

/* A line of 200 GB: one letter after a hole, which is no text and is not sent. */
TEST(tail_of_one_long_line)
{
    char job[32], path[512];
    const int64_t size = (int64_t)200 << 30;
    finished_job(job);
    file_of(path, "jobs/%s/rank-0.log", job);
    int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
    assert_true(fd >= 0);
    if (ftruncate(fd, size))
        TEST_SKIP("this file system has no files of 200 GB");
    assert_int_equal(1, pwrite(fd, "e", 1, size - 1));
    close(fd);
    const pid_t pid = ask_tail(job, 5, "shown from byte 214748364799;", 1);
    assert_true(longest_answer(&pid, 1, NULL) < HOLD_MS);
    assert_int_equal(0, dtd_down(&d));
}

/* Two lines after a long one are shown, and no note about lines that are complete. */
TEST(lines_after_a_long_line)
{
    char job[32], path[512];
    const int64_t size = (int64_t)1 << 30;
    finished_job(job);
    file_of(path, "jobs/%s/rank-0.log", job);
    int fd = open(path, O_WRONLY | O_TRUNC | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_int_equal(11, pwrite(fd, "\nfirst\nlaste", 11, size - 11)); /* without its last letter */
    assert_int_equal(1, pwrite(fd, "e", 1, size));
    close(fd);
    const pid_t pids[] = {ask_tail(job, 2, "", 11), ask_tail(job, 3, "shown from byte 1073741814;", 11)};
    assert_true(longest_answer(pids, 2, NULL) < HOLD_MS);
    assert_int_equal(0, dtd_down(&d));
}

/* ---- metrics ---- */

/* With the thread sanitizer the daemon parses a twentieth as fast. */
#ifdef __SANITIZE_THREAD__
#define ROWS 15000
#else
#define ROWS 300000
#endif

static bool see_metric(void *arg, const struct metric *m)
{
    int64_t *steps = arg;
    return m->step == (*steps)++;
}

static pid_t ask_metrics(const char *job)
{
    pid_t pid = fork();
    if (pid)
        return pid;
    struct client *c;
    struct why why = {""};
    int64_t steps = 0;
    const struct client_stream stream = {.metric = see_metric, .arg = &steps};
    if (client_open(d.dir, &c, &why) || client_metrics(c, job, false, 0, &stream, &why))
        _exit(1);
    _exit(steps == ROWS ? 0 : 2);
}

/* Six clients ask for the metrics of a long job, while another one's calls need records in the log. */
TEST(metrics_of_a_long_job)
{
    char job[32], path[512];
    pid_t pids[6];
    finished_job(job);
    file_of(path, "metrics/%s.jsonl", job);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    for (int i = 0; i < ROWS; i++)
        fprintf(
            f,
            "{\"step\": %d, \"loss\": 2.5, \"grad_norm\": 1, \"lr\": 0.001, \"tokens_per_s\": 1e5, \"step_s\": 0.1, "
            "\"workers\": 1, \"epoch\": 1, \"wall_ms\": 1700000000000}\n",
            i);
    fclose(f);
    for (int i = 0; i < 6; i++)
        pids[i] = ask_metrics(job);
    assert_true(longest_answer(pids, 6, job) < HOLD_MS);
    assert_int_equal(0, dtd_down(&d));
}
