/* Jobs on several nodes: three dtds, each with its own supervisor, control and dtd-io, in a simple cluster (star.c). n1
 * is the leader. */
#include "tests/daemon/programs/harness.h"

#include "common/base/clock.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

static struct dtd n[3];

static const char *write_config(int k, int slots)
{
    static char path[300];
    snprintf(path, sizeof(path), "%s/n%d.yaml", test_tmpdir(), k + 1);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "name: n%d\nslots: %d\n", k + 1, slots);
    fclose(f);
    return path;
}

static void start_one(int k, int slots)
{
    char dir[16];
    snprintf(dir, sizeof(dir), "n%d", k + 1);
    dtd_start_with(&n[k], dir, write_config(k, slots));
}

/* A follower answers List as soon as it has a connection to the leader. */
static void await_nodes(int count)
{
    for (int k = 1; k < count; k++)
        for (int64_t until = clock_mono_ms() + 10000;; sleep_ms(20)) {
            struct client_job *jobs;
            int have;
            struct why why = {""};
            if (client_list(dtd_client(&n[k]), &jobs, &have, &why) == OK) {
                client_jobs_free(jobs, have);
                break;
            }
            if (clock_mono_ms() > until)
                fail_msg("n%d cannot reach n1: %s", k + 1, why.text);
        }
    sleep_ms(300); /* until the command streams are open */
}

static void start_nodes(int count, int slots)
{
    setenv("DTD_TEST_STAR", test_tmpdir(), 1);
    setenv("DTD_TEST_LEADER", "n1", 1);
    for (int k = 0; k < count; k++)
        start_one(k, slots);
    await_nodes(count);
}

static void stop_nodes(int count)
{
    for (int k = count - 1; k >= 0; k--)
        assert_int_equal(0, dtd_down(&n[k]));
}

static const char *begin_env(const char *more)
{
    static char env[400];
    snprintf(env, sizeof(env), "DOUBLE_BEGIN: %s/begin%s%s", test_tmpdir(), *more ? ", " : "", more);
    return env;
}

static int begun(const char *line)
{
    char path[300];
    snprintf(path, sizeof(path), "%s/begin", test_tmpdir());
    char *text = read_text(path);
    int count = count_text(text, line);
    free(text);
    return count;
}

static int children_of(int k)
{
    char log[400];
    snprintf(log, sizeof(log), "%s.log", n[k].dir);
    char *text = read_text(log);
    int count = count_text(text, "started job=");
    free(text);
    return count;
}

TEST(a_job_spans_nodes)
{
    char job[32];
    start_nodes(3, 2);
    job_submit(&n[1], spec_text("a", 4, 40, begin_env(""), ""), job); /* through a follower */
    job_wait(&n[2], job, "done", 30000);
    const struct client_job *s = job_status(&n[1], job);
    assert_int_equal(1, s->epoch);
    assert_int_equal(0, s->restarts);
    assert_int_equal(40, s->step);
    for (int rank = 0; rank < 4; rank++) {
        char line[32];
        snprintf(line, sizeof(line), "1 %d ", rank);
        assert_int_equal(1, begun(line));
    }
    stop_nodes(3);
}

struct lines {
    char text[4][200];
};

static bool see_log(void *arg, const struct client_log *chunk)
{
    snprintf(((struct lines *)arg)->text[chunk->rank], 200, "%.*s", (int)chunk->len, chunk->text);
    return true;
}

/* A rank is not a slot: rank 3 is the second one on n2. */
TEST(logs_are_where_the_rank_is)
{
    char job[32];
    struct lines lines = {0};
    struct why why = {""};
    start_nodes(2, 2);
    job_submit(&n[0], spec_text("a", 4, 5, "", ""), job);
    job_wait(&n[0], job, "done", 30000);
    assert_ok(client_logs(dtd_client(&n[0]), job, -1, false, -1, &(struct client_stream){.log = see_log, .arg = &lines},
                          &why));
    assert_string_equal("rank 1 begins epoch 1\n", lines.text[1]);
    assert_string_equal("rank 3 begins epoch 1\n", lines.text[3]); /* read from n2 */
    memset(&lines, 0, sizeof(lines));
    assert_ok(
        client_logs(dtd_client(&n[1]), job, 3, false, 1, &(struct client_stream){.log = see_log, .arg = &lines}, &why));
    assert_string_equal("rank 3 begins epoch 1\n", lines.text[3]);
    dtd_kill(&n[1]);
    memset(&lines, 0, sizeof(lines));
    for (int64_t until = clock_mono_ms() + 10000; !strstr(lines.text[3], "cannot be reached"); sleep_ms(20)) {
        assert_ok(client_logs(dtd_client(&n[0]), job, -1, false, -1,
                              &(struct client_stream){.log = see_log, .arg = &lines}, &why));
        if (clock_mono_ms() > until)
            fail_msg("the line for the log of a lost node is: %s", lines.text[3]);
    }
    assert_string_equal("(on node n2, which cannot be reached: jobs/1/rank-1.log in its state directory)\n",
                        lines.text[3]);
    stop_nodes(1);
}

struct follow {
    int lines;
    char last[200];
    struct dtd *d;
    const char *job;
};

static bool see_more(void *arg, const struct client_log *chunk)
{
    struct follow *f = arg;
    struct client *c;
    struct client_job canceled;
    uint8_t id[16];
    struct why why = {""};
    const char *text = chunk->text, *end = text + chunk->len;
    for (const char *p = text; (p = memchr(p, '\n', (size_t)(end - p))); p++)
        f->lines++;
    snprintf(f->last, sizeof(f->last), "%.*s", (int)chunk->len, chunk->text);
    if (f->lines == 1) { /* the first line arrived while the rank runs; now the rank may end */
        assert_ok(client_open(f->d->dir, &c, &why));
        assert_ok(client_request_id(id));
        assert_ok(client_cancel(c, id, f->job, false, CLIENT_GRACE_DEFAULT, &canceled, &why));
        client_job_fini(&canceled);
        client_close(c);
    }
    return true;
}

/* A client of one node follows the log of a rank on another node, until the end of the job. */
TEST(logs_of_another_node_are_followed)
{
    char job[32];
    struct why why = {""};
    start_nodes(2, 2);
    job_submit(&n[0], spec_text("a", 4, 100000, "", ""), job);
    job_wait_step(&n[0], job, 1, 3, 20000);
    struct follow f = {.d = &n[0], .job = job};
    assert_ok(
        client_logs(dtd_client(&n[0]), job, 3, true, -1, &(struct client_stream){.log = see_more, .arg = &f}, &why));
    assert_int_equal(1, f.lines);
    assert_string_equal("rank 3 begins epoch 1\n", f.last);
    stop_nodes(2);
}

struct move {
    struct follow cancel;
    struct dtd *lost;
    int lines;
    char text[400];
};

/* At the rank's first line its node is killed; at the first line of the next epoch the job is canceled. */
static bool see_it_move(void *arg, const struct client_log *chunk)
{
    struct move *m = arg;
    size_t at = strlen(m->text);
    snprintf(m->text + at, sizeof(m->text) - at, "%.*s", (int)chunk->len, chunk->text);
    if (m->lines++ == 0)
        dtd_kill(m->lost);
    else if (strstr(m->text, "epoch 2") && m->cancel.lines == 0)
        see_more(&m->cancel, chunk);
    return true;
}

TEST(logs_follow_a_rank_to_another_node)
{
    char job[32];
    struct why why = {""};
    start_nodes(3, 2);
    job_submit(&n[0], spec_text("a", 4, 100000, "", ""), job);
    job_wait_step(&n[0], job, 1, 3, 20000);
    struct move m = {.cancel = {.d = &n[0], .job = job}, .lost = &n[1]};
    assert_ok(
        client_logs(dtd_client(&n[0]), job, 3, true, -1, &(struct client_stream){.log = see_it_move, .arg = &m}, &why));
    assert_non_null(strstr(m.text, "rank 3 begins epoch 1\n"));
    assert_non_null(strstr(m.text, "rank 3 begins epoch 2\n"));
    stop_nodes(1);
    dtd_kill(&n[2]);
}

/* A worker on another node is killed, then its node: the incident contains the end of the worker's log. */
TEST(end_of_log_outlives_the_node)
{
    char job[32];
    start_nodes(2, 2);
    job_submit(&n[0], spec_text("a", 4, 100000, "DOUBLE_EXIT: 3", ""), job);
    job_wait_step(&n[0], job, 2, 3, 20000);
    dtd_kill(&n[1]);
    const struct client_job *s = job_status(&n[0], job);
    assert_true(s->n_incident >= 1);
    if (!strstr(s->incident[0].seen, "worker rank 3 on n2") || !strstr(s->incident[0].seen, "exit status 3"))
        fail_msg("the incident is: %s", s->incident[0].seen);
    assert_string_equal("rank 3 begins epoch 1\n", s->incident[0].log);
    stop_nodes(1);
}

TEST(one_node_before_many)
{
    char a[32], b[32];
    start_nodes(2, 4);
    int before = children_of(1);
    job_submit(&n[0], spec_text("a", 4, 100000, "", ""), a);
    job_wait_step(&n[0], a, 1, 3, 20000);
    assert_int_equal(before, children_of(1));
    job_submit(&n[0], spec_text("b", 3, 10, "", ""), b);
    job_wait(&n[0], b, "done", 20000);
    assert_int_equal(before + 4, children_of(1)); /* three workers and their dtd-io */
    stop_nodes(2);
}

TEST(a_worker_on_another_node_is_replaced)
{
    char job[32];
    start_nodes(2, 2);
    job_submit(&n[0], spec_text("a", 4, 100000, "", ""), job);
    job_wait_step(&n[0], job, 1, 3, 20000);
    const struct client_job *s = job_status(&n[0], job);
    int victim = s->worker[3].pid, other = s->worker[2].pid;
    kill(victim, SIGKILL);
    job_wait_step(&n[0], job, 2, 3, 20000);
    s = job_status(&n[0], job);
    assert_int_equal(other, s->worker[2].pid);
    assert_int_not_equal(victim, s->worker[3].pid);
    assert_int_equal(1, s->n_incident);
    if (!strstr(s->incident[0].seen, "worker rank 3 on n2") || !strstr(s->incident[0].seen, "signal 9"))
        fail_msg("the incident names neither rank nor node: %s", s->incident[0].seen);
    stop_nodes(2);
}

/* One of three nodes is killed, and two are enough for the job: one incident, one new epoch. */
TEST(a_lost_node_costs_one_epoch)
{
    char job[32];
    start_nodes(3, 2);
    job_submit(&n[0], spec_text("a", 4, 100000, begin_env(""), ""), job);
    job_wait_step(&n[0], job, 1, 3, 20000);
    dtd_kill(&n[1]);
    job_wait_step(&n[0], job, 2, 3, 30000);
    job_wait(&n[0], job, "running", 20000); /* rank 0 may step before another rank's ready report arrives */
    const struct client_job *s = job_status(&n[0], job);
    assert_int_equal(2, s->epoch);
    assert_int_equal(1, s->restarts);
    assert_int_equal(1, s->n_incident);
    if (!strstr(s->incident[0].seen, "node n2 was lost"))
        fail_msg("the incident does not name the node: %s", s->incident[0].seen);
    assert_int_equal(4, s->n_worker);
    dtd_kill(&n[2]);
    stop_nodes(1);
}

/* The remaining nodes have too few slots: the job waits with a reason, and continues when the node is back. */
TEST(a_job_waits_for_a_lost_node)
{
    char job[32];
    start_nodes(2, 2);
    job_submit(&n[0], spec_text("a", 4, 100000, "", ""), job);
    job_wait_step(&n[0], job, 1, 3, 20000);
    dtd_kill(&n[1]);
    for (int64_t until = clock_mono_ms() + 20000;; sleep_ms(20)) {
        const struct client_job *s = job_status(&n[0], job);
        if (strstr(s->reason, "waits for 4 slots: n1 has 2 of 2 free, n2 is lost"))
            break;
        if (clock_mono_ms() > until)
            fail_msg("job is %s: %s", s->state, s->reason);
    }
    start_one(1, 2);
    job_wait_step(&n[0], job, 2, 3, 30000);
    assert_int_equal(1, job_status(&n[0], job)->n_incident);
    stop_nodes(2);
}

/* When a node shuts down regularly, its jobs move to other nodes without using a restart and without stopping. */
TEST(jobs_leave_a_node_that_goes_down)
{
    char job[32];
    start_nodes(3, 2);
    job_submit(&n[0], spec_text("a", 4, 100000, begin_env(""), ""), job);
    job_wait_step(&n[0], job, 1, 3, 20000);
    assert_int_equal(0, dtd_down(&n[1]));
    job_wait_step(&n[0], job, 2, 3, 20000);
    const struct client_job *s = job_status(&n[0], job);
    assert_string_equal("running", s->state);
    assert_int_equal(0, s->restarts);
    assert_int_equal(1, s->n_incident);
    assert_string_equal("node n2 is shutting down", s->incident[0].seen);
    assert_int_equal(4, s->n_worker);
    for (int rank = 0; rank < 4; rank++) {
        char line[32];
        snprintf(line, sizeof(line), "2 %d ", rank);
        assert_int_equal(1, begun(line));
    }
    stop_nodes(1);
    dtd_kill(&n[2]);
}

/* The same without room on other nodes: the job waits with a reason, and continues when the node is back. */
TEST(a_job_waits_for_a_node_that_went_down)
{
    char job[32];
    start_nodes(2, 2);
    job_submit(&n[0], spec_text("a", 4, 100000, "", ""), job);
    job_wait_step(&n[0], job, 1, 3, 20000);
    assert_int_equal(0, dtd_down(&n[1]));
    const struct client_job *s = job_status(&n[0], job);
    if (!strstr(s->reason, "waits for 4 slots: n1 has 2 of 2 free, n2 is "))
        fail_msg("job is %s: %s", s->state, s->reason);
    start_one(1, 2);
    job_wait_step(&n[0], job, 2, 3, 30000);
    assert_int_equal(0, job_status(&n[0], job)->restarts);
    stop_nodes(2);
}

/* All nodes shut down at once: the leader waits until jobs have left the other nodes. */
TEST(all_nodes_go_down_at_once)
{
    char job[32];
    start_nodes(2, 2);
    job_submit(&n[0], spec_text("a", 4, 100000, "", ""), job);
    job_wait_step(&n[0], job, 1, 3, 20000);
    for (int k = 0; k < 2; k++)
        kill(n[k].pid, SIGTERM);
    for (int k = 0; k < 2; k++) {
        int status = -1;
        assert_int_equal(n[k].pid, waitpid(n[k].pid, &status, 0));
        assert_int_equal(0, status);
        client_close(n[k].client);
    }
    start_nodes(2, 2);
    job_wait_step(&n[0], job, 2, 3, 30000);
    const struct client_job *s = job_status(&n[0], job);
    assert_int_equal(0, s->restarts);
    if (!strstr(s->incident[0].seen, "is shutting down"))
        fail_msg("the workers were not told to stop: %s", s->incident[0].seen);
    stop_nodes(2);
}

static const char *ranged(const char *name, int min, int every)
{
    static char text[4096];
    char key[64];
    const char *spec = spec_text(name, 4, 100000, "", "");
    const char *at = strstr(spec, "{workers: 4}");
    snprintf(key, sizeof(key), "{workers: 4, min_workers: %d}", min);
    snprintf(text, sizeof(text), "%.*s%s%s", (int)(at - spec), spec, key, at + strlen("{workers: 4}"));
    at = strstr(text, "every: 1000");
    assert_non_null(at);
    snprintf(key, sizeof(key), "every: %-4d", every);
    memcpy((char *)at, key, strlen("every: 1000"));
    return text;
}

/* A job with a range of workers continues with fewer, and has as many as before when the node is back. */
TEST(a_range_shrinks_and_grows)
{
    char job[32];
    start_nodes(2, 2);
    job_submit(&n[0], ranged("a", 2, 20), job);
    job_wait_step(&n[0], job, 1, 3, 20000);
    assert_int_equal(4, job_status(&n[0], job)->n_worker);
    dtd_kill(&n[1]);
    job_wait_step(&n[0], job, 2, 3, 20000);
    const struct client_job *s = job_status(&n[0], job);
    assert_int_equal(2, s->n_worker);
    assert_int_equal(2, s->workers);
    bool said = false; /* a worker's report about its lost peer may be an incident of its own */
    for (int64_t until = clock_mono_ms() + 10000; !said; sleep_ms(20)) {
        s = job_status(&n[0], job);
        for (int i = 0; i < (int)s->n_incident; i++)
            said = said || strstr(s->incident[i].decided, "with 2 of 4 workers");
        if (clock_mono_ms() > until)
            fail_msg("no incident has the new number of workers: %d incidents, the first: %s; %s", s->n_incident,
                     s->n_incident ? s->incident[0].seen : "", s->n_incident ? s->incident[0].decided : "");
    }
    for (int64_t until = clock_mono_ms() + 10000; !strstr(s->reason, "2 of 4 workers; all of them need 4 slots: n1");
         sleep_ms(20)) {
        s = job_status(&n[0], job);
        if (clock_mono_ms() > until)
            fail_msg("the reason does not explain the number of workers: %s", s->reason);
    }
    start_one(1, 2);
    for (int64_t until = clock_mono_ms() + 10000; !strstr(s->reason, "it continues with 4 after the next checkpoint");
         sleep_ms(20)) {
        s = job_status(&n[0], job);
        if (clock_mono_ms() > until)
            fail_msg("the job does not use the returned node: %s", s->reason);
    }
    stop_nodes(2);
}

static const char *automatic(int workers, const char *train, const char *machine)
{
    static char text[4096];
    snprintf(text, sizeof(text),
             "name: a\n"
             "model: {arch: llama, dim: 64, layers: 1, heads: 2, ffn: 128, vocab: 256}\n"
             "data: {train: [/etc/passwd]}\n"
             "train: {steps: 100000, seq: 16, global_batch: 4, warmup: 0%s}\n"
             "parallel: {auto: true, workers: %d, min_workers: 1, cp: 1, pp: 1, machine: \"%s\"}\n"
             "checkpoint: {dir: %s/a, every: 1000}\n"
             "run: {env: {DOUBLE_LAYOUT: %s/layout}}\n",
             train, workers, machine, test_tmpdir(), test_tmpdir());
    return text;
}

#define MACHINE(memory)                                                                                           \
    "name: m\\ndevice: {per_node: 2, memory_gib: " memory ", bandwidth_gb: 10, bf16_tflops: 1, f32_tflops: 0.1, " \
    "one_thread: true}\\nlink: {bandwidth_gb: 5}\\nnetwork: {bandwidth_gb: 1}\\n"

/* The last layout that rank 0 was sent: its epoch, and whether it is a layout of so many workers. */
static void expect_layout(uint64_t epoch, int64_t workers)
{
    char path[300];
    unsigned long long e = 0;
    long long have = 0, axes = 0;
    int automatic_too = 1;
    snprintf(path, sizeof(path), "%s/layout", test_tmpdir());
    char *text = read_text(path), *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        assert_int_equal(4, sscanf(line, "%llu %lld %lld %d", &e, &have, &axes, &automatic_too));
    free(text);
    assert_int_equal(epoch, e);
    assert_int_equal(workers, have);
    assert_true(axes >= 1 && workers % axes == 0);
    assert_int_equal(0, automatic_too);
}

/* Each number of workers has its own layout, which is in the status with its reason. A new leader keeps it. */
TEST(an_automatic_layout_follows_the_nodes)
{
    char job[32], first[400], second[400];
    struct client_node node;
    struct why why = {""};
    start_nodes(2, 2);
    job_submit(&n[0], automatic(4, "", MACHINE("8")), job);
    job_wait_step(&n[0], job, 1, 3, 20000);
    snprintf(first, sizeof(first), "%s", job_status(&n[0], job)->layout_why);
    assert_non_null(strstr(first, " s a step"));
    expect_layout(1, 4);
    const int pid = job_status(&n[0], job)->worker[0].pid;
    dtd_kill(&n[1]);
    job_wait_step(&n[0], job, 2, 3, 20000);
    const struct client_job *s = job_status(&n[0], job);
    assert_int_equal(2, s->workers);
    assert_int_equal(pid, s->worker[0].pid); /* it waited for the planner, too */
    snprintf(second, sizeof(second), "%s", s->layout_why);
    assert_string_not_equal(first, second);
    expect_layout(s->epoch, 2);
    const uint64_t epoch = s->epoch;
    assert_ok(client_node_get(dtd_client(&n[0]), &node, &why));
    kill(node.control_pid, SIGKILL);
    client_node_fini(&node);
    int64_t step = s->step;
    job_wait_step(&n[0], job, epoch, step + 50, 20000);
    assert_string_equal(second, job_status(&n[0], job)->layout_why);
    stop_nodes(1);
}

/* Four workers fit, two do not: without the second node the job waits, and its reason names what is missing. */
TEST(an_automatic_job_waits_where_it_does_not_fit)
{
    char job[32];
    start_nodes(2, 2);
    job_submit(&n[0], automatic(4, "", MACHINE("0.001")), job);
    job_wait_step(&n[0], job, 1, 3, 20000);
    dtd_kill(&n[1]);
    const struct client_job *s = job_status(&n[0], job);
    for (int64_t until = clock_mono_ms() + 15000; !strstr(s->reason, "parallel.auto: the model does not fit into");
         sleep_ms(20)) {
        s = job_status(&n[0], job);
        if (clock_mono_ms() > until)
            fail_msg("the reason does not explain what is missing: %s %s", s->state, s->reason);
    }
    start_one(1, 2);
    job_wait_step(&n[0], job, 2, 3, 30000);
    assert_int_equal(4, job_status(&n[0], job)->workers);
    stop_nodes(2);
}

/* Two samples for each of three replicas are more than the batch has, and three do not share two heads. */
TEST(numbers_without_a_layout_are_left_out)
{
    char job[32];
    start_nodes(1, 3);
    job_submit(&n[0], automatic(3, ", micro_batch: 2", MACHINE("8")), job);
    job_wait_step(&n[0], job, 1, 100, 20000); /* the third slot is seen, and not taken, after a second */
    const struct client_job *s = job_status(&n[0], job);
    assert_int_equal(2, s->workers);
    assert_int_equal(3, s->max_workers);
    assert_int_equal(1, s->epoch);
    expect_layout(1, 2);
    stop_nodes(1);
}

/* Leader and node run but cannot communicate: the job continues on other nodes, and its old workers are killed when the
 * node is back. */
TEST(a_node_that_comes_back_is_fenced)
{
    char job[32], cut[300];
    start_nodes(3, 2);
    job_submit(&n[0], spec_text("a", 4, 100000, "", ""), job);
    job_wait_step(&n[0], job, 1, 3, 20000);
    const struct client_job *s = job_status(&n[0], job);
    int stale[2] = {s->worker[2].pid, s->worker[3].pid};
    snprintf(cut, sizeof(cut), "%s/cut-n2", test_tmpdir());
    fclose(fopen(cut, "w"));
    job_wait_step(&n[0], job, 2, 3, 30000);
    for (int i = 0; i < 2; i++)
        assert_int_equal(0, kill(stale[i], 0)); /* they still run: the leader cannot reach them */
    unlink(cut);
    for (int64_t until = clock_mono_ms() + 10000; kill(stale[0], 0) == 0 || kill(stale[1], 0) == 0; sleep_ms(20))
        if (clock_mono_ms() > until)
            fail_msg("workers of an older epoch still run");
    s = job_status(&n[0], job);
    assert_int_equal(2, s->epoch);
    assert_string_equal("running", s->state);
    stop_nodes(3);
}

/* The control of a follower is killed: its workers continue, and so does the epoch. */
TEST(workers_survive_a_control_that_follows)
{
    char job[32];
    struct client_node node;
    struct why why = {""};
    start_nodes(2, 2);
    job_submit(&n[0], spec_text("a", 4, 100000, "", ""), job);
    job_wait_step(&n[0], job, 1, 3, 20000);
    const struct client_job *s = job_status(&n[0], job);
    int pids[4];
    for (int k = 0; k < 4; k++)
        pids[k] = s->worker[k].pid;
    assert_ok(client_node_get(dtd_client(&n[1]), &node, &why));
    kill(node.control_pid, SIGKILL);
    client_node_fini(&node);
    int64_t step = job_status(&n[0], job)->step;
    job_wait_step(&n[0], job, 1, step + 50, 20000);
    s = job_status(&n[1], job);
    assert_int_equal(1, s->epoch);
    for (int k = 0; k < 4; k++)
        assert_int_equal(pids[k], s->worker[k].pid);
    stop_nodes(2);
}

TEST(workers_survive_a_control_that_leads)
{
    char job[32];
    struct client_node node;
    struct why why = {""};
    start_nodes(2, 2);
    job_submit(&n[0], spec_text("a", 4, 100000, "", ""), job);
    job_wait_step(&n[0], job, 1, 3, 20000);
    const struct client_job *s = job_status(&n[0], job);
    int pids[4];
    for (int k = 0; k < 4; k++)
        pids[k] = s->worker[k].pid;
    assert_ok(client_node_get(dtd_client(&n[0]), &node, &why));
    kill(node.control_pid, SIGKILL);
    client_node_fini(&node);
    int64_t step = job_status(&n[0], job)->step;
    job_wait_step(&n[0], job, 1, step + 50, 20000);
    job_wait(&n[0], job, "running", 10000); /* until the other node has reported its processes, too */
    s = job_status(&n[0], job);
    assert_int_equal(1, s->epoch);
    for (int k = 0; k < 4; k++)
        assert_int_equal(pids[k], s->worker[k].pid);
    stop_nodes(2);
}

/* While this file exists, new workers of the job do not open their command stream. */
static const char *late_file(void)
{
    static char path[300];
    snprintf(path, sizeof(path), "%s/late", test_tmpdir());
    return path;
}

static const char *late_env(void)
{
    static char env[400];
    snprintf(env, sizeof(env), "DOUBLE_LATE: %s", late_file());
    return env;
}

/* Starts `nodes` nodes and a job on the first two of them, whose next workers will be late. */
static void begin_job_with_late_workers(int nodes, const char *run, char job[32])
{
    start_nodes(nodes, 2);
    job_submit(&n[0], spec_text("a", 4, 100000, late_env(), run), job);
    job_wait_step(&n[0], job, 1, 3, 20000);
    FILE *f = fopen(late_file(), "w");
    assert_non_null(f);
    fclose(f);
}

/* The leader has ended epoch 1 with one incident, and is killed before epoch 2 is in the log. */
static void lose_the_lead_between_epochs(const char *job)
{
    struct client_node node;
    struct why why = {""};
    for (int64_t until = clock_mono_ms() + 20000; job_status(&n[0], job)->n_incident < 1; sleep_ms(5))
        if (clock_mono_ms() > until)
            fail_msg("epoch 1 has not ended");
    sleep_ms(300);
    assert_int_equal(1, job_status(&n[0], job)->epoch);
    assert_ok(client_node_get(dtd_client(&n[0]), &node, &why));
    kill(node.control_pid, SIGKILL);
    client_node_fini(&node);
    sleep_ms(300);
    assert_int_equal(0, unlink(late_file()));
}

/* The next leader completes the one incident, and keeps the number of restarts that the first leader counted. */
static const struct client_job *begun_by_another(const char *job, int restarts)
{
    job_wait_step(&n[0], job, 2, 3, 30000);
    job_wait(&n[0], job, "running", 20000);
    const struct client_job *s = job_status(&n[0], job);
    for (int i = 0; i < s->n_incident; i++)
        printf("%s; %s\n", s->incident[i].seen, s->incident[i].decided);
    assert_int_equal(2, s->epoch);
    assert_int_equal(restarts, s->restarts);
    assert_int_equal(1, s->n_incident);
    if (!(s->incident[0].recover_ms >= 300))
        fail_msg("the job stepped again %.0f ms after the incident", s->incident[0].recover_ms);
    return s;
}

TEST(leaving_a_node_is_no_restart_when_the_lead_is_lost)
{
    char job[32];
    begin_job_with_late_workers(3, "", job);
    kill(n[1].pid, SIGTERM);
    lose_the_lead_between_epochs(job);
    assert_string_equal("node n2 is shutting down", begun_by_another(job, 0)->incident[0].seen);
    int status = -1;
    assert_int_equal(n[1].pid, waitpid(n[1].pid, &status, 0));
    assert_int_equal(0, status);
    client_close(n[1].client);
    stop_nodes(1);
    dtd_kill(&n[2]);
}

/* The same if all workers except the killed one are ready for epoch 2. */
TEST(a_lost_worker_is_one_restart_when_the_lead_is_lost)
{
    char job[32];
    begin_job_with_late_workers(2, "restarts: 1", job);
    kill(job_status(&n[0], job)->worker[3].pid, SIGKILL);
    lose_the_lead_between_epochs(job);
    const char *seen = begun_by_another(job, 1)->incident[0].seen;
    if (!strstr(seen, "worker rank 3 on n2") || !strstr(seen, "signal 9"))
        fail_msg("the incident is: %s", seen);
    stop_nodes(2);
}

/* A stopped worker (SIGSTOP) blocks all ranks. It is named and killed, and the job continues. With `elsewhere` the
 * worker is on the second node, so the leader has to get its state from there. */
static void stop_a_worker(bool elsewhere)
{
    char job[32], other[32];
    start_nodes(2, 2);
    if (elsewhere) {
        job_submit(&n[0], spec_text("b", 2, 100000, "", ""), other);
        job_wait_step(&n[0], other, 1, 1, 20000);
    }
    job_submit(&n[0], spec_text("a", 2, 100000, "", "hang_seconds: 1"), job);
    job_wait_step(&n[0], job, 1, 10, 20000);
    int victim = job_status(&n[0], job)->worker[0].pid;
    kill(victim, SIGSTOP);
    job_wait_step(&n[0], job, 2, 3, 60000);
    const struct client_job *s = job_status(&n[0], job);
    assert_int_equal(1, s->restarts);
    assert_int_equal(1, s->n_incident);
    char text[64];
    snprintf(text, sizeof(text), "rank 0 (pid %d, n%d) is stopped (T)", victim, elsewhere ? 2 : 1);
    if (!strstr(s->incident[0].seen, "no step for") || !strstr(s->incident[0].seen, text))
        fail_msg("the incident does not contain '%s': %s", text, s->incident[0].seen);
    assert_true(s->incident[0].detect_ms >= 1000);
    assert_int_not_equal(victim, s->worker[0].pid);
    stop_nodes(2);
}

TEST(a_stopped_worker_is_named)
{
    stop_a_worker(false);
}

TEST(a_stopped_worker_of_another_node_is_named)
{
    stop_a_worker(true);
}

/* ---- GPUs that become sick on another node ---- */

static void write_text(const char *name, const char *text)
{
    char from[400], to[400];
    snprintf(from, sizeof(from), "%s/new", test_tmpdir());
    snprintf(to, sizeof(to), "%s/%s", test_tmpdir(), name);
    FILE *f = fopen(from, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
    assert_int_equal(0, rename(from, to));
}

static void write_health(int k, int errors)
{
    char name[32], text[200];
    snprintf(name, sizeof(name), "health%d", k);
    snprintf(text, sizeof(text), "{\"gpus\": [{\"uuid\": \"GPU-a\", \"health\": {\"ecc_uncorrected_volatile\": %d}}]}",
             errors);
    write_text(name, text);
}

static void start_gpu_node(int k)
{
    char path[400];
    write_health(k, 0);
    snprintf(path, sizeof(path), "%s/health%d", test_tmpdir(), k);
    setenv("DOUBLE_HEALTH", path, 1);
    start_one(k, 2);
}

/* One GPU on each node. The last node does not report the fields that `strip` names, as if it or the leader had an
 * older version. */
static void start_gpu_nodes(int count, const char *strip)
{
    char path[400];
    setenv("DTD_TEST_STAR", test_tmpdir(), 1);
    setenv("DTD_TEST_LEADER", "n1", 1);
    setenv("DTD_HEALTH_MS", "50", 1);
    write_text("probe", "{\"gpus\": [{\"index\": 0, \"model\": \"T\", \"uuid\": \"GPU-a\", \"health\": {}}]}");
    snprintf(path, sizeof(path), "%s/probe", test_tmpdir());
    setenv("DOUBLE_PROBE", path, 1);
    for (int k = 0; k < count; k++) {
        if (strip && k == count - 1)
            setenv("DTD_TEST_STRIP", strip, 1);
        start_gpu_node(k);
    }
    await_nodes(count);
}

static void expect_incident(const char *job, int n_incidents, const char *what)
{
    const struct client_job *s = job_status(&n[0], job);
    for (int64_t until = clock_mono_ms() + 10000; s->n_incident < n_incidents && clock_mono_ms() < until; sleep_ms(10))
        s = job_status(&n[0], job);
    assert_int_equal(n_incidents, s->n_incident);
    if (!strstr(s->incident[n_incidents - 1].seen, what))
        fail_msg("the incident does not contain '%s': %s", what, s->incident[n_incidents - 1].seen);
}

static void expect_reason(const char *job, const char *what)
{
    for (int64_t until = clock_mono_ms() + 20000; !strstr(job_status(&n[0], job)->reason, what); sleep_ms(20))
        if (clock_mono_ms() > until)
            fail_msg("the job's reason does not contain '%s': %s", what, job_status(&n[0], job)->reason);
}

TEST(a_sick_gpu_of_another_node_is_left)
{
    char job[32];
    struct client_node node;
    struct why why = {""};
    start_gpu_nodes(3, NULL);
    job_submit(&n[0], spec_text("a", 2, 100000, "", "device: cuda"), job);
    job_wait_step(&n[0], job, 1, 3, 20000);
    assert_string_equal("n2", job_status(&n[0], job)->worker[1].node);
    write_health(1, 4);
    job_wait_step(&n[0], job, 2, 3, 20000);
    assert_string_equal("n3", job_status(&n[0], job)->worker[1].node);
    assert_int_equal(1, job_status(&n[0], job)->restarts);
    expect_incident(job, 1, "worker rank 1 on n2 (pid");
    expect_incident(job, 1, "GPU 0 of n2 has uncorrectable memory errors (4)");
    assert_ok(client_node_get(dtd_client(&n[1]), &node, &why));
    assert_non_null(strstr(node.warning, "GPU 0 is not used: it has uncorrectable memory errors (4)"));
    client_node_fini(&node);
    write_health(2, 1);
    expect_reason(job, "it needs 2 GPUs: n1 has 1 of 1 free, n2 has none of 0 free (GPU 0 is not used: it has "
                       "uncorrectable memory errors (4)), n3 has none of 0 free (GPU 0 is not used");
    dtd_kill(&n[1]);
    start_gpu_node(1); /* as after a reset of the GPU */
    job_wait_step(&n[0], job, 3, 3, 30000);
    assert_string_equal("n2", job_status(&n[0], job)->worker[1].node);
    stop_nodes(3);
}

/* A leader of an older version, without the field for sick GPUs, assigns the GPU again; its node refuses the worker. */
TEST(node_refuses_sick_gpu_of_older_leader)
{
    char job[32];
    start_gpu_nodes(2, "sick");
    job_submit(&n[0], spec_text("a", 2, 100000, begin_env(""), "device: cuda, restarts: 2"), job);
    job_wait_step(&n[0], job, 1, 3, 20000);
    write_health(1, 1);
    job_wait(&n[0], job, "failed", 20000);
    const struct client_job *s = job_status(&n[0], job);
    assert_int_equal(2, s->restarts);
    expect_incident(job, s->n_incident, /* the last one; incidents within one millisecond become one */
                    "worker rank 1 on n2 could not be started: GPU 0 of n2 has uncorrectable memory errors (1)");
    assert_int_equal(1, begun(" 1 ")); /* lines "epoch rank pid step" */
    stop_nodes(2);
}

/* Versions before the field `cause` have a separate field for kills by the out-of-memory killer. It is read from an
 * older node, and sent to an older leader. */
TEST(out_of_memory_is_reported_between_versions)
{
    char job[32];
    setenv("DTD_TEST_OOM", "1", 1);
    start_gpu_nodes(2, "cause");
    job_submit(&n[0], spec_text("a", 2, 100000, "", "device: cuda"), job);
    job_wait_step(&n[0], job, 1, 3, 20000);
    kill(job_status(&n[0], job)->worker[1].pid, SIGKILL);
    job_wait_step(&n[0], job, 2, 3, 20000);
    expect_incident(job, 1, "worker rank 1 on n2 (pid");
    expect_incident(job, 1, "was killed by signal 9 (Killed): the kernel killed it for lack of memory");
    stop_nodes(2);
}
