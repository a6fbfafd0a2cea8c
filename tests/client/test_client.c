/* dtctl against a control that exits at bad moments: every job and every metric appears once, and dtctl returns the
 * job's exit code. */
#include "client/client.h"
#include "common/base/holder.h"
#include "proto/client.pb-c.h"
#include "tests/client/fake_control.h"
#include "tests/client/run.h"
#include "tests/lib/test.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

static struct fake_control *start(const struct fake_script *script)
{
    char dir[256];
    snprintf(dir, sizeof(dir), "%s/dtd", test_tmpdir());
    return fake_start(dir, script);
}

static struct fake_seen stop(struct fake_control *f)
{
    fake_stop(f);
    struct fake_seen seen = fake_seen(f);
    fake_free(f);
    return seen;
}

static void job_write(void)
{
    char text[2048] = "";
    for (int i = 0; i < 40; i++)
        strcat(text, "a quick brown fox jumps over it\n");
    run_write("text.txt", text);
    run_write("job.yaml", "name: small\nmodel: {dim: 32, layers: 2, heads: 4}\ndata: {train: [text.txt]}\n"
                          "train: {steps: 10, seq: 16, global_batch: 4, micro_batch: 2, lr: 1.0e-3}\n"
                          "checkpoint: {dir: ckpt}\n");
}

TEST(status_metrics_logs_cancel)
{
    const struct fake_script script = {.steps = 20, .end_state = "done"};
    struct fake_control *f = start(&script);
    struct run_result r;
    run_expect(&r, 0, "dtctl status");
    expect_text(r.out, "JOB  NAME  STATE");
    expect_text(r.out, "  7  fake  done   20/20");
    run_expect(&r, 0, "dtctl status 7 -o json");
    expect_text(r.out, "\"state\": \"done\"");
    run_expect(&r, 0, "dtctl status 7");
    expect_text(r.out, "Next       dtctl resume 7 --more N");
    run_expect(&r, 3, "dtctl status 8");
    expect_text(r.err, "there is no job 8");
    run_expect(&r, 0, "dtctl status -o jsonl");
    assert_memory_equal(r.out, "{\"job\": \"7\"", 11);
    run_expect(&r, 0, "dtctl logs 7 --rank 1");
    assert_string_equal(r.out, "[rank 1] hello from 1\n[rank 1] bye\xff\n");
    run_expect(&r, 0, "dtctl logs 7 -o jsonl | tail -n 1");
    assert_string_equal(r.out, "{\"rank\": 1, \"line\": \"bye\xef\xbf\xbd\"}\n");
    run_expect(&r, 0, "dtctl cancel 7");
    expect_text(r.out, "is stopping");
    run_expect(&r, 0, "dtctl metrics 7 | tail -n 1");
    expect_text(r.out, "      20    0.250000");
    struct fake_seen seen = stop(f);
    assert_int_equal(seen.cancels, 1);
}

TEST(a_reply_outlives_its_call)
{
    const struct fake_script script = {.steps = 20, .end_state = "done"};
    struct fake_control *f = start(&script);
    char dir[256], job[] = "7", none[] = "8";
    struct client *c;
    struct why why = {0};
    Dtd__JobRequest q = DTD__JOB_REQUEST__INIT;
    Dtd__JobStatus *first, *second = NULL;
    snprintf(dir, sizeof(dir), "%s/dtd", test_tmpdir());
    assert_ok(client_open(dir, &c, &why));
    q.job = job;
    assert_ok(client_call(c, CLIENT_STATUS, &q.base, &first, &why));
    assert_ok(client_call(c, CLIENT_STATUS, &q.base, NULL, &why));
    q.job = none;
    assert_err(ERR_NOTFOUND, client_call(c, CLIENT_STATUS, &q.base, &second, &why));
    assert_string_equal(why.text, "there is no job 8");
    assert_null(second);
    client_close(c);
    assert_string_equal(first->name, "fake");
    assert_int_equal(first->steps, 20);
    client_reply_free(first);
    stop(f);
}

TEST(metrics_survive_a_restart_of_control)
{
    const struct fake_script script = {.steps = 20, .drop_metrics = 1, .end_state = "done"};
    struct fake_control *f = start(&script);
    struct run_result r;
    run_expect(&r, 0, "dtctl metrics 7 -o jsonl >m && wc -l <m && sort -u m | wc -l");
    assert_string_equal(r.out, "20\n20\n");
    struct fake_seen seen = stop(f);
    assert_int_equal(seen.metrics, 2);
    assert_int_equal(seen.metrics_from, 11);
}

/* Steps 3, 5, 7 and 9 of 20 have no row. */
TEST(thinned_metrics_are_announced)
{
    const struct fake_script script = {.steps = 20, .end_state = "done", .thinned = true};
    struct fake_control *f = start(&script);
    struct run_result r;
    run_expect(&r, 0, "dtctl metrics 7 -o jsonl | wc -l");
    assert_string_equal(r.out, "16\n");
    expect_text(r.err, "dtctl: note: 4 steps have no row: rows of older steps were thinned out (disk.metrics_mib");
    run_expect(&r, 0, "dtctl metrics 7 --to csv | wc -l");
    expect_text(r.err, "note: 4 steps have no row");
    run_expect(&r, 0, "dtctl metrics 7 --from 11");
    assert_string_equal(r.err, "");
    stop(f);
}

/* The fake is like a daemon of an older version: it has no usage of ranks, and no status of a cluster. */
TEST(report_survives_a_restart_of_control_and_an_old_one)
{
    const struct fake_script script = {.steps = 20, .drop_metrics = 1, .end_state = "done", .spec_yaml = "name: fake"};
    struct fake_control *f = start(&script);
    struct run_result r;
    run_expect(&r, 0,
               "dtctl report 7 --to r.html -o json | jq -r .state; grep -c 'There are no samples' r.html; "
               "grep -c 'The job file is not available' r.html");
    assert_string_equal(r.out, "done\n1\n1\n");
    struct fake_seen seen = stop(f);
    assert_int_equal(seen.metrics, 2);
    assert_int_equal(seen.metrics_from, 1); /* all rows again: a report with some of them twice would be wrong */
}

TEST(report_of_another_user_is_refused)
{
    const struct fake_script script = {.steps = 20, .end_state = "done"}; /* only the owner gets the job file */
    struct fake_control *f = start(&script);
    struct run_result r;
    run_expect(&r, 1, "dtctl report 7 --to r.html; code=$?; test ! -e r.html; exit $code");
    expect_text(r.err, "only its owner and root may read its report");
    stop(f);
}

TEST(a_repeated_submit_is_one_job)
{
    const struct fake_script script = {.steps = 20, .drop_submits = 2, .end_state = "done"};
    struct fake_control *f = start(&script);
    struct run_result r;
    job_write();
    run_expect(&r, 0, "dtctl submit job.yaml --detach -o json");
    expect_text(r.out, "{\"job\": \"7\", ");
    assert_null(strchr(strchr(r.out, '\n') + 1, '\n')); /* one line */
    expect_text(r.err, "trying again");
    assert_int_equal(fake_seen(f).submits, 3);
    assert_int_equal(fake_seen(f).jobs, 1);
    run_expect(&r, 0, "dtctl submit job.yaml --detach");
    assert_int_equal(stop(f).jobs, 2); /* a second submit creates a second job */
}

TEST(attached_submit_comes_back_and_returns_the_jobs_code)
{
    static const struct {
        const char *state, *message;
        int code;
    } table[] = {{"done", "job 7 fake is done: step 20", 0},
                 {"failed", "has failed at step 20: worker rank 1 exited with status 3", 4},
                 {"canceled", "is canceled at step 20", 5}};
    struct run_result r;
    job_write();
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        const struct fake_script script = {.steps = 20, .drop_watches = 1, .end_state = table[i].state};
        struct fake_control *f = start(&script);
        run_expect(&r, table[i].code, "dtctl submit job.yaml");
        expect_text(r.out, "job 7 small is submitted");
        expect_text(r.out, "step 1/20  5%  loss 5.0000");
        expect_text(r.out, "the connection to dtd is lost");
        expect_text(r.out, "connected again");
        expect_text(r.out, "step 20/20  100%  loss 0.2500");
        expect_text(r.out, table[i].message);
        assert_null(strchr(r.out, '\r'));
        assert_null(strchr(r.out, '\033'));
        assert_int_equal(stop(f).watches, 2);
    }
}

TEST(attached_submit_with_json_ends_with_the_status)
{
    const struct fake_script script = {.steps = 20, .end_state = "done"};
    struct fake_control *f = start(&script);
    struct run_result r;
    job_write();
    run_expect(&r, 0, "dtctl submit job.yaml -o json");
    assert_memory_equal(r.out, "{", 1);
    expect_text(r.out, "\"state\": \"done\"");
    expect_text(r.err, "step 20/20");
    stop(f);
}

/* Ctrl-C while watching, and while waiting for control to return. */
TEST(interrupt_detaches)
{
    const struct fake_script scripts[] = {{.steps = 20, .hang = true, .end_state = "running"},
                                          {.steps = 20, .drop_watches = 1 << 30, .end_state = "running"}};
    struct run_result r;
    job_write();
    for (size_t i = 0; i < sizeof(scripts) / sizeof(scripts[0]); i++) {
        struct fake_control *f = start(&scripts[i]);
        run_expect(&r, 130,
                   "rm -f log; \"$DTD_BIN\"/dtctl submit job.yaml >log & p=$!; until grep -qs 'step 10/20' log; do "
                   "sleep 0.02; "
                   "done; "
                   "sleep 0.15; kill -INT $p; wait $p; rc=$?; cat log; exit $rc");
        expect_text(r.out, "detached; job 7 continues");
        assert_int_equal(stop(f).cancels, 0);
    }
}

/* A batch system's signal: dtctl sends one cancel request, and waits until the job has ended. */
TEST(a_signal_stops_a_batch_job)
{
    static const struct {
        const char *signal, *end_state;
        int code;
    } table[] = {{"USR1", "canceled", 75}, {"TERM", "canceled", 75}, {"USR1", "done", 0}, {"USR1", "failed", 4}};
    struct run_result r;
    char line[512];
    job_write();
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        const struct fake_script script = {.steps = 20, .hang = true, .end_state = table[i].end_state};
        struct fake_control *f = start(&script);
        snprintf(line, sizeof(line),
                 "rm -f log; \"$DTD_BIN\"/dtctl submit --batch job.yaml >log & p=$!; until grep -qs 'step 10/20' log; "
                 "do sleep 0.02; "
                 "done; kill -%s $p; wait $p; rc=$?; cat log; exit $rc",
                 table[i].signal);
        run_expect(&r, table[i].code, line);
        snprintf(line, sizeof(line), "received SIG%s; job 7 is saving a checkpoint and stopping", table[i].signal);
        expect_text(r.out, line);
        assert_int_equal(stop(f).cancels, 1);
    }
    const struct fake_script script = {.steps = 20, .end_state = "canceled"};
    struct fake_control *f = start(&script);
    run_expect(&r, 5, "dtctl submit --batch job.yaml"); /* canceled by another client */
    assert_int_equal(stop(f).cancels, 0);
}

TEST(a_folder_in_use_is_refused)
{
    const struct fake_script script = {.steps = 20, .end_state = "running"};
    struct fake_control *f = start(&script);
    struct run_result r;
    job_write();
    run_expect(&r, 2, "dtctl submit job.yaml --detach --set checkpoint.dir=/nowhere");
    expect_text(r.err, "job 7 is running and writes its checkpoints to /nowhere");
    assert_int_equal(stop(f).submits, 0);
}

/* A supervisor without control: it holds the lock, and SIGTERM ends it. `text` (NULL: none) replaces what it has
 * written into the lock file. */
static pid_t mute_supervisor(const char *text)
{
    char path[256];
    int fd, ready[2];
    snprintf(path, sizeof(path), "%s/dtd", test_tmpdir());
    assert_int_equal(pipe(ready), 0);
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (holder_take_lock(path, 0700, &fd, NULL))
            _exit(1);
        if (text && (ftruncate(fd, 0) || pwrite(fd, text, strlen(text), 0) < 0))
            _exit(1);
        close(ready[0]);
        close(ready[1]);
        pause();
        _exit(0);
    }
    close(ready[1]);
    assert_int_equal(read(ready[0], path, 1), 0);
    close(ready[0]);
    return pid;
}

TEST(down_falls_back_to_sigterm)
{
    struct run_result r;
    int status;
    pid_t pid = mute_supervisor(NULL);
    run_expect(&r, 0, "dtctl down");
    expect_text(r.err, "sent SIGTERM to pid");
    expect_text(r.out, "dtd is down");
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGTERM);
}

static pid_t sleeper_start(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        sleep(600);
        _exit(0);
    }
    return pid;
}

static bool still_runs(pid_t pid)
{
    int status;
    bool runs = waitpid(pid, &status, WNOHANG) == 0;
    kill(pid, SIGKILL);
    return runs;
}

/* A home that two hosts share: the lock is held, by a dtd of another host or of another kernel, and the process that
 * has its number here is not the dtd. */
TEST(a_dtd_of_another_host_is_named_at_once)
{
    static const char *const lines[] = {"dtctl status", "dtctl up", "dtctl down", "dtctl node", "dtctl run -- true"};
    char text[200];
    struct run_result r;
    pid_t mine = sleeper_start();
    snprintf(text, sizeof(text), "%d\n4711\nlogin-b\n00000000-1111-4222-8333-444444444444\n", mine);
    pid_t holder = mute_supervisor(text);
    for (size_t i = 0; i < sizeof(lines) / sizeof(*lines); i++) {
        run_expect(&r, 2, lines[i]);
        expect_text(r.err, "runs on host login-b");
        expect_text(r.err, "set DTD_DIR to a local folder");
        assert_null(strstr(r.err, "trying again"));
    }
    assert_true(still_runs(mine));
    kill(holder, SIGKILL);
}

/* dtd 1.0 recorded only its number. Its supervisor listens on the socket as long as it runs. */
TEST(a_lock_without_a_host_is_not_of_this_one)
{
    char text[32];
    struct run_result r;
    pid_t mine = sleeper_start();
    snprintf(text, sizeof(text), "%d\n", mine);
    pid_t holder = mute_supervisor(text);
    run_expect(&r, 2, "dtctl down");
    expect_text(r.err, "another host, which its older version does not record");
    assert_true(still_runs(mine));
    kill(holder, SIGKILL);
}

/* The same kernel, as in another container of this machine, but not the same process. */
TEST(down_spares_a_process_that_is_not_dtd)
{
    char text[200], boot[40] = "";
    struct run_result r;
    pid_t mine = sleeper_start();
    FILE *f = fopen("/proc/sys/kernel/random/boot_id", "r");
    assert_int_equal(1, fscanf(f, "%39s", boot));
    fclose(f);
    snprintf(text, sizeof(text), "%d\n1\nlogin-a\n%s\n", mine, boot);
    pid_t holder = mute_supervisor(text);
    run_expect(&r, 1, "dtctl down");
    expect_text(r.err, "No signal was sent");
    expect_text(r.err, "started at another time");
    assert_true(still_runs(mine));
    kill(holder, SIGKILL);
}

TEST(request_ids_differ)
{
    uint8_t a[16], b[16];
    assert_ok(client_request_id(a));
    assert_ok(client_request_id(b));
    assert_memory_not_equal(a, b, 16);
}
