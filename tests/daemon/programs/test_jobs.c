/* Jobs that complete, jobs that their owner cancels, and jobs that their workers end. */
#include "tests/daemon/programs/harness.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "daemon/control/state/state.h"

#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <sys/stat.h>

static struct dtd d;

TEST(job_runs_to_its_end)
{
    char job[32], path[512];
    dtd_start(&d, "state");
    job_submit(&d, spec_text("a", 3, 10, "", ""), job);
    job_wait(&d, job, "done", 20000);
    const struct client_job *s = job_status(&d, job);
    assert_int_equal(10, s->step);
    assert_int_equal(1, s->epoch);
    assert_int_equal(0, s->restarts);
    assert_int_equal(3, s->n_worker);
    for (int k = 0; k < 3; k++)
        assert_int_equal(0, s->worker[k].exit_status);
    snprintf(path, sizeof(path), "%s/metrics/%s.jsonl", d.dir, job);
    char *text = read_text(path);
    assert_int_equal(10, count_text(text, "\"step\""));
    assert_int_equal(10, count_text(text, "\"grad_norm\": null"));
    free(text);
    assert_int_equal(0, dtd_down(&d));
}

struct seen_usage {
    int n;
    struct usage_sample newest;
};

static bool see_usage(void *arg, const struct usage_sample *s)
{
    struct seen_usage *seen = arg;
    seen->n++;
    usage_sample_fini(&seen->newest);
    assert_ok(usage_sample_copy(s, &seen->newest));
    return true;
}

static struct seen_usage usage_of(const char *job)
{
    struct seen_usage seen = {0};
    struct why why = {""};
    const struct client_stream stream = {.usage = see_usage, .arg = &seen};
    assert_ok(client_usage(dtd_client(&d), job, false, 0, &stream, &why));
    return seen;
}

TEST(ranks_report_their_usage)
{
    char job[32];
    dtd_start(&d, "state");
    job_submit(&d, spec_text("a", 2, 10, "DOUBLE_USAGE: \"2\"", ""), job);
    job_wait(&d, job, "done", 20000);
    struct seen_usage seen = usage_of(job);
    assert_true(seen.n >= 1);
    assert_int_equal(2, seen.newest.ranks);
    assert_true(*usage_at(&seen.newest, USAGE_compute_s, 0) == 0.1);
    assert_true(*usage_at(&seen.newest, USAGE_compute_s, 1) == 0.2);
    assert_true(isnan(*usage_at(&seen.newest, USAGE_step_s, 0)));
    assert_string_equal(seen.newest.node[0], seen.newest.node[1]);
    assert_int_equal(3, seen.newest.step);
    usage_sample_fini(&seen.newest);
    assert_int_equal(0, dtd_down(&d));
}

/* Its connection is closed, and its next one works. */
static void expect_closed(const char *how, const char *what)
{
    char job[32], path[512], env[64];
    dtd_start(&d, "state");
    snprintf(env, sizeof(env), "DOUBLE_USAGE: \"%s\"", how);
    job_submit(&d, spec_text("a", 2, 20, env, ""), job);
    job_wait(&d, job, "done", 20000);
    assert_int_equal(0, job_status(&d, job)->restarts);
    snprintf(path, sizeof(path), "%s/control.log", d.dir);
    char *text = read_text(path);
    if (count_text(text, what) < 1)
        fail_msg("the log has no \"%s\"", what);
    assert_true(count_text(text, "usage refused") <= 2); /* once for each worker */
    free(text);
    assert_int_equal(0, dtd_down(&d));
}

TEST(a_worker_that_reports_without_limit_is_disconnected)
{
    expect_closed("500", "why=\"reports come too often\" connection=closed");
}

TEST(a_worker_that_reports_nonsense_is_disconnected)
{
    expect_closed("LIES", "rank=1 why=\"the report has impossible numbers\" connection=closed");
}

TEST(submit_repeated_is_one_job)
{
    uint8_t id[16];
    char first[32], second[32];
    struct why why = {""};
    struct client_job *jobs;
    int n;
    dtd_start(&d, "state");
    const char *spec = spec_text("a", 1, 100000, "", "");
    assert_ok(client_request_id(id));
    assert_ok(client_submit(dtd_client(&d), id, spec, NULL, first, &why));
    job_wait(&d, first, "running", 20000);
    assert_ok(client_submit(dtd_client(&d), id, spec, NULL, second, &why));
    assert_string_equal(first, second);
    assert_ok(client_list(dtd_client(&d), &jobs, &n, &why));
    assert_int_equal(1, n);
    client_jobs_free(jobs, n);
    assert_int_equal(0, dtd_down(&d));
}

/* The state machine refuses a submit above the limit of jobs, and records the refusal with the request id. */
TEST(a_repeated_refusal_is_a_refusal)
{
    uint8_t id[16];
    char name[16], job[32];
    struct why first = {""}, second = {""};
    dtd_start(&d, "state");
    for (int i = 0; i < STATE_MAX_JOBS; i++) {
        snprintf(name, sizeof(name), "j%d", i);
        job_submit(&d, spec_text(name, 15, 100000, "", ""), job);
    }
    const char *spec = spec_text("one-more", 15, 100000, "", "");
    assert_ok(client_request_id(id));
    assert_err(ERR_LIMIT, client_submit(dtd_client(&d), id, spec, NULL, job, &first));
    assert_non_null(strstr(first.text, "there are 2048 jobs already"));
    assert_err(ERR_LIMIT, client_submit(dtd_client(&d), id, spec, NULL, job, &second));
    assert_string_equal(first.text, second.text);
    assert_int_equal(0, dtd_down(&d));
}

static void expect_refused(const char *spec, const char *what)
{
    uint8_t id[16];
    char job[32];
    struct why why = {""};
    assert_ok(client_request_id(id));
    assert_err(ERR_INVALID, client_submit(dtd_client(&d), id, spec, NULL, job, &why));
    if (!strstr(why.text, what))
        fail_msg("the refusal does not say \"%s\": %s", what, why.text);
}

TEST(submit_refuses)
{
    char job[32];
    struct client_job *jobs;
    struct why why = {""};
    int n;
    dtd_start(&d, "state");
    expect_refused("name: a\nmodell: {}\n", "modell");
    expect_refused(spec_text("a", 200, 10, "", ""), "slots");
    job_submit(&d, spec_text("a", 1, 100000, "", ""), job);
    expect_refused(spec_text("a", 1, 10, "", ""), "in use by job");
    assert_ok(client_list(dtd_client(&d), &jobs, &n, &why));
    assert_int_equal(1, n);
    client_jobs_free(jobs, n);
    assert_int_equal(0, dtd_down(&d));
}

TEST(cancel_stops_a_job)
{
    uint8_t id[16];
    char job[32];
    struct why why = {""};
    struct client_job s;
    dtd_start(&d, "state");
    job_submit(&d, spec_text("a", 2, 100000, "", ""), job);
    job_wait_step(&d, job, 1, 3, 20000);
    assert_ok(client_request_id(id));
    assert_ok(client_cancel(dtd_client(&d), id, job, false, CLIENT_GRACE_DEFAULT, &s, &why));
    client_job_fini(&s);
    job_wait(&d, job, "canceled", 10000);
    assert_int_equal(0, job_status(&d, job)->worker[1].exit_status);
    assert_err(ERR_NOTFOUND, client_cancel(dtd_client(&d), id, "77", false, CLIENT_GRACE_DEFAULT, &s, &why));
    assert_int_equal(0, dtd_down(&d));
}

static uint64_t log_index_now(void)
{
    struct client_cluster c;
    struct why why = {""};
    assert_ok(client_cluster_status(dtd_client(&d), &c, &why));
    uint64_t index = c.log_index;
    client_cluster_fini(&c);
    assert_true(index > 0);
    return index;
}

static void cancel_as(const char *job, const uint8_t id[16])
{
    struct why why = {""};
    struct client_job s;
    assert_ok(client_cancel(dtd_client(&d), id, job, false, CLIENT_GRACE_DEFAULT, &s, &why));
    client_job_fini(&s);
}

TEST(cancels_that_change_nothing_are_not_logged)
{
    uint8_t id[16], other[16];
    char job[32];
    dtd_start(&d, "state");
    job_submit(&d, spec_text("a", 2, 100000, "", ""), job);
    job_wait_step(&d, job, 1, 3, 20000);
    assert_ok(client_request_id(id));
    cancel_as(job, id);
    job_wait(&d, job, "canceled", 10000);
    uint64_t index = log_index_now();
    for (int i = 0; i < 20; i++) {
        assert_ok(client_request_id(other));
        cancel_as(job, i % 2 ? id : other);
    }
    assert_int_equal(index, log_index_now());
    assert_int_equal(0, dtd_down(&d));
}

TEST(fatal_failure_ends_a_job)
{
    char job[32];
    dtd_start(&d, "state");
    job_submit(&d, spec_text("a", 2, 100000, "DOUBLE_FATAL: \"1\"", ""), job);
    job_wait(&d, job, "failed", 20000);
    const struct client_job *s = job_status(&d, job);
    assert_int_equal(0, s->restarts);
    assert_non_null(strstr(s->reason, "worker rank 1"));
    assert_int_equal(0, dtd_down(&d));
}

TEST(time_limit_ends_a_job)
{
    char job[32];
    dtd_start(&d, "state");
    job_submit(&d, spec_text("a", 1, 100000, "", "max_seconds: 1"), job);
    job_wait(&d, job, "failed", 20000);
    assert_non_null(strstr(job_status(&d, job)->reason, "run.max_seconds (1) reached"));
    assert_int_equal(0, dtd_down(&d));
}

/* All slots but one are in use. A job that needs all of them waits, and so does one of 1 worker behind it, which would
 * delay it: the end of neither is known. */
TEST(jobs_wait_their_turn)
{
    uint8_t id[16];
    char big[32], all[32], one[32];
    struct client_job s;
    struct client_node node;
    struct why why = {""};
    dtd_start(&d, "state");
    assert_ok(client_node_get(dtd_client(&d), &node, &why));
    int slots = node.slots;
    client_node_fini(&node);
    job_submit(&d, spec_text("big", slots - 1, 100000, "", ""), big);
    job_submit(&d, spec_text("all", slots, 3, "", ""), all);
    job_submit(&d, spec_text("one", 1, 3, "", ""), one);
    job_wait(&d, big, "running", 30000);
    assert_string_equal("pending", job_status(&d, all)->state);
    assert_non_null(strstr(job_status(&d, all)->reason, "slots"));
    assert_string_equal("pending", job_status(&d, one)->state);
    assert_ok(client_request_id(id));
    assert_ok(client_cancel(dtd_client(&d), id, big, false, CLIENT_GRACE_DEFAULT, &s, &why));
    client_job_fini(&s);
    job_wait(&d, all, "done", 20000);
    job_wait(&d, one, "done", 20000);
    assert_int_equal(0, dtd_down(&d));
}

/* Jobs wait behind one that uses all slots but one. The job with the higher priority starts first, although it was
 * submitted last; the reason of the other job names the job that it waits for. */
TEST(priority_goes_before_time)
{
    uint8_t id[16];
    char big[32], low[32], high[32], path[512];
    struct client_job s;
    struct why why = {""};
    dtd_start(&d, "state");
    snprintf(path, sizeof(path), "DOUBLE_BEGIN: %s/begin", test_tmpdir());
    job_submit(&d, spec_text("big", 16, 100000, "", ""), big);
    job_wait(&d, big, "running", 30000);
    job_submit(&d, spec_text("low", 16, 3, path, ""), low);
    job_submit(&d, spec_text("high", 16, 3, path, "priority: 1"), high);
    sleep_ms(200);
    assert_non_null(strstr(job_status(&d, low)->reason, "waits behind job 3 (high), which waits for 16 slots:"));
    assert_ok(client_request_id(id));
    assert_ok(client_cancel(dtd_client(&d), id, big, false, CLIENT_GRACE_DEFAULT, &s, &why));
    client_job_fini(&s);
    job_wait(&d, low, "done", 60000);
    job_wait(&d, high, "done", 60000);
    assert_true(job_status(&d, high)->started_ms > 0);
    int64_t started = job_status(&d, high)->started_ms;
    assert_true(started < job_status(&d, low)->started_ms);
    assert_int_equal(0, dtd_down(&d));
}

/* Half of the slots are in use by a job that ends within 1000 s, so one that needs all slots waits. Behind it, a job of
 * at most 100 s starts at once, and one without a limit does not. */
TEST(a_short_job_overtakes_one_that_has_to_wait_longer)
{
    uint8_t id[16];
    char half[32], all[32], endless[32], quick[32];
    struct client_job s;
    struct why why = {""};
    dtd_start(&d, "state");
    job_submit(&d, spec_text("half", 8, 100000, "", "max_seconds: 1000"), half);
    job_wait(&d, half, "running", 30000);
    job_submit(&d, spec_text("all", 16, 3, "", ""), all);
    job_submit(&d, spec_text("endless", 1, 3, "", ""), endless);
    job_submit(&d, spec_text("quick", 1, 3, "", "max_seconds: 100"), quick);
    job_wait(&d, quick, "done", 30000);
    assert_string_equal("pending", job_status(&d, all)->state);
    assert_string_equal("pending", job_status(&d, endless)->state);
    assert_non_null(strstr(job_status(&d, endless)->reason, "waits behind job 2 (all), which waits for 16 slots:"));
    assert_ok(client_request_id(id));
    assert_ok(client_cancel(dtd_client(&d), id, half, false, CLIENT_GRACE_DEFAULT, &s, &why));
    client_job_fini(&s);
    job_wait(&d, all, "done", 60000);
    job_wait(&d, endless, "done", 60000);
    assert_int_equal(0, dtd_down(&d));
}

/* ---- streams ---- */

struct seen {
    int64_t steps[64];
    int n, logs, bytes;
    char state[32];
};

static bool see_metric(void *arg, const struct metric *m)
{
    struct seen *s = arg;
    if (s->n < 64)
        s->steps[s->n++] = m->step;
    return true;
}

static bool see_status(void *arg, const struct client_job *job)
{
    snprintf(((struct seen *)arg)->state, sizeof(((struct seen *)arg)->state), "%s", job->state);
    return true;
}

static bool see_log(void *arg, const struct client_log *chunk)
{
    ((struct seen *)arg)->logs |= 1 << chunk->rank;
    ((struct seen *)arg)->bytes += (int)chunk->len;
    return true;
}

TEST(streams_follow_to_the_end)
{
    char job[32];
    struct why why = {""};
    struct seen watch = {0}, metrics = {0}, logs = {0};
    dtd_start(&d, "state");
    job_submit(&d, spec_text("a", 2, 30, "", ""), job);
    assert_ok(client_watch(dtd_client(&d), job,
                           &(struct client_stream){.metric = see_metric, .status = see_status, .arg = &watch}, &why));
    assert_string_equal("done", watch.state);
    assert_int_equal(30, watch.n);
    assert_ok(client_metrics(dtd_client(&d), job, true, 11,
                             &(struct client_stream){.metric = see_metric, .arg = &metrics}, &why));
    assert_int_equal(20, metrics.n);
    assert_int_equal(11, metrics.steps[0]);
    assert_int_equal(30, metrics.steps[19]);
    assert_ok(
        client_logs(dtd_client(&d), job, -1, true, -1, &(struct client_stream){.log = see_log, .arg = &logs}, &why));
    assert_int_equal(3, logs.logs);
    assert_int_equal(2 * (int)strlen("rank 0 begins epoch 1\n"), logs.bytes);
    assert_int_equal(0, dtd_down(&d));
}

/* A link into a missing folder simulates a full disk. Metrics that cannot be written wait in memory, are shown to
 * clients, and are written as soon as that is possible. */
TEST(metrics_wait_for_space)
{
    char job[32], path[512], text[1200];
    struct why why = {""};
    struct client_node node;
    struct seen metrics = {0};
    dtd_start(&d, "state");
    snprintf(path, sizeof(path), "%s/missing/metrics.jsonl", test_tmpdir());
    snprintf(text, sizeof(text), "mkdir -p '%s/metrics' && ln -s '%s' '%s/metrics/1.jsonl'", d.dir, path, d.dir);
    assert_int_equal(0, system(text));
    job_submit(&d, spec_text("a", 1, 100000, "", ""), job);
    job_wait_step(&d, job, 1, 5, 20000);
    assert_ok(client_node_get(dtd_client(&d), &node, &why));
    assert_non_null(strstr(node.warning, "metrics"));
    client_node_fini(&node);
    assert_ok(client_metrics(dtd_client(&d), job, false, 0,
                             &(struct client_stream){.metric = see_metric, .arg = &metrics}, &why));
    assert_true(metrics.n >= 5);
    *strrchr(path, '/') = '\0';
    assert_int_equal(0, mkdir(path, 0700));
    strcat(path, "/metrics.jsonl");
    struct stat st = {0};
    for (int64_t until = clock_mono_ms() + 5000; clock_mono_ms() < until && (stat(path, &st) || !st.st_size);
         sleep_ms(20))
        ;
    char *lines = read_text(path);
    assert_int_equal(0, strncmp(lines, "{\"step\": 1,", 11));
    free(lines);
    assert_int_equal(0, dtd_down(&d));
}

static off_t size_of(const char *dir, const char *job, const char *what)
{
    char path[512];
    struct stat st = {0};
    snprintf(path, sizeof(path), "%s/metrics/%s.%s", dir, job, what);
    return stat(path, &st) ? -1 : st.st_size;
}

struct row_count {
    int64_t n, first, last;
};

static bool count_row(void *arg, const struct metric *m)
{
    struct row_count *c = arg;
    c->first = c->n++ ? c->first : m->step;
    c->last = m->step;
    return true;
}

/* A row has some 230 bytes, so 12,000 rows have more than twice the limit. They arrive at up to 1,000 a second. */
TEST(metrics_of_a_long_job_are_thinned_out)
{
    enum { STEPS = 12000 };
    char job[32], conf[512];
    struct why why = {""};
    struct row_count rows = {0};
    off_t most = 0;
    snprintf(conf, sizeof(conf), "%s/node.yaml", test_tmpdir());
    assert_ok(file_replace(conf, "disk: {metrics_mib: 1}\n", 23, 0600));
    dtd_start_with(&d, "state", conf);
    job_submit(&d, spec_text("a", 1, STEPS, "DOUBLE_STEP_MS: \"1\"", ""), job);
    for (bool over = false; !over; sleep_ms(50)) {
        over = strcmp(job_status(&d, job)->state, "done") == 0;
        off_t size = size_of(d.dir, job, "jsonl");
        most = size > most ? size : most;
    }
    assert_ok(client_metrics(dtd_client(&d), job, false, 0, &(struct client_stream){.metric = count_row, .arg = &rows},
                             &why));
    print_message("%d steps left %d rows and %d KiB; the largest file had %d KiB\n", STEPS, (int)rows.n,
                  (int)(size_of(d.dir, job, "jsonl") >> 10), (int)(most >> 10));
    assert_int_equal(STEPS, rows.last);
    assert_int_equal(1, rows.first);
    assert_in_range(rows.n, STEPS / 16, STEPS * 2 / 3);
    assert_int_equal(-1, size_of(d.dir, job, "jsonl.tmp"));
    assert_int_equal(0, dtd_down(&d));
}
