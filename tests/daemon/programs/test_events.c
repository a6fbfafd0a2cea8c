/* The stream of events: of one job from submit to end, over restarts of control, on several nodes. */
#include "tests/daemon/programs/harness.h"

#include "common/base/clock.h"

#include <signal.h>
#include <unistd.h>

static struct dtd d, n[3];

/* Events that a call delivered, as text: "submitted started running". */
struct seen_events {
    char types[2000];
    uint64_t first, last;
    int n;
    bool ascending;
    const char *until; /* the stream is canceled after an event of this type; NULL: never */
};

static bool see_event(void *arg, const struct client_event *e)
{
    struct seen_events *s = arg;
    size_t len = strlen(s->types);
    snprintf(s->types + len, sizeof(s->types) - len, "%s%s%s%s", len ? " " : "", e->node, e->node[0] ? ":" : "",
             e->type);
    s->ascending = (s->n == 0 || s->ascending) && e->id > s->last;
    s->first = s->n++ ? s->first : e->id;
    s->last = e->id;
    return !s->until || strcmp(e->type, s->until) != 0;
}

static struct seen_events events_of(struct dtd *at, const char *job, bool follow, uint64_t after, const char *until)
{
    struct seen_events s = {.until = until};
    struct why why = {""};
    err_t err = client_events(dtd_client(at), job, follow, after, 0,
                              &(struct client_stream){.event = see_event, .arg = &s}, &why);
    if (err != OK && !(until && err == ERR_CANCELED))
        fail_msg("events: %s: %s", err_name(err), why.text);
    return s;
}

static void cancel(struct dtd *at, const char *job)
{
    uint8_t id[16];
    struct client_job status;
    struct why why = {""};
    assert_ok(client_request_id(id));
    assert_ok(client_cancel(dtd_client(at), id, job, false, CLIENT_GRACE_DEFAULT, &status, &why));
    client_job_fini(&status);
}

TEST(a_jobs_events_from_submit_to_end)
{
    char job[32];
    dtd_start(&d, "state");
    job_submit(&d, spec_text("a", 2, 100000, "", ""), job);
    job_wait_step(&d, job, 1, 3, 20000);
    kill(job_status(&d, job)->worker[1].pid, SIGKILL);
    job_wait_step(&d, job, 2, 3, 20000);
    cancel(&d, job);
    job_wait(&d, job, "canceled", 20000);
    struct seen_events s = events_of(&d, job, true, 0, NULL); /* a stream of an ended job ends */
    assert_string_equal("submitted started running failure epoch running cancel ended", s.types);
    assert_true(s.ascending);
    struct seen_events rest = events_of(&d, job, false, s.last - 2, NULL);
    assert_string_equal("cancel ended", rest.types);
    struct seen_events beyond = events_of(&d, job, false, s.last + 100, NULL); /* of another log: all again */
    assert_string_equal(s.types, beyond.types);
    assert_int_equal(0, dtd_down(&d));
}

/* The events that a restarted control reads from its log have the same numbers, and new ones follow. */
TEST(events_survive_control)
{
    char job[32];
    struct client_node node;
    struct why why = {""};
    dtd_start(&d, "state");
    job_submit(&d, spec_text("a", 1, 100000, "", ""), job);
    job_wait(&d, job, "running", 20000);
    struct seen_events before = events_of(&d, NULL, true, 0, "running");
    assert_string_equal("submitted started running", before.types);
    assert_ok(client_node_get(dtd_client(&d), &node, &why));
    kill(node.control_pid, SIGKILL);
    client_node_fini(&node);
    sleep_ms(500);
    job_wait(&d, job, "running", 20000);
    struct seen_events again = events_of(&d, NULL, false, 0, NULL);
    assert_string_equal(before.types, again.types);
    assert_int_equal(before.first, again.first);
    assert_int_equal(before.last, again.last);
    cancel(&d, job);
    assert_string_equal("cancel ended", events_of(&d, NULL, true, before.last, "ended").types);
    assert_int_equal(0, dtd_down(&d));
}

TEST(a_removed_job_has_events)
{
    char job[32];
    uint8_t id[16];
    struct why why = {""};
    dtd_start(&d, "state");
    job_submit(&d, spec_text("a", 1, 3, "", ""), job);
    job_wait(&d, job, "done", 20000);
    assert_ok(client_request_id(id));
    assert_ok(client_remove(dtd_client(&d), id, job, &why));
    assert_string_equal("submitted started running ended removed", events_of(&d, job, true, 0, NULL).types);
    static const struct client_stream stream;
    assert_err(ERR_NOTFOUND, client_events(dtd_client(&d), "77", false, 0, 0, &stream, &why));
    assert_err(ERR_NOTFOUND, client_events(dtd_client(&d), "a", false, 0, 0, &stream, &why));
    assert_int_equal(0, dtd_down(&d));
}

/* ---- nodes ---- */

static void start_node(int k)
{
    char dir[16], path[300];
    snprintf(dir, sizeof(dir), "n%d", k + 1);
    snprintf(path, sizeof(path), "%s/n%d.yaml", test_tmpdir(), k + 1);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "name: n%d\nslots: 2\n", k + 1);
    fclose(f);
    dtd_start_with(&n[k], dir, path);
}

/* Node n2 is killed and started again. A follower has the same events as the leader. */
TEST(nodes_are_lost_and_come_back)
{
    setenv("DTD_TEST_STAR", test_tmpdir(), 1);
    setenv("DTD_TEST_LEADER", "n1", 1);
    for (int k = 0; k < 3; k++)
        start_node(k);
    sleep_ms(1000);
    dtd_kill(&n[1]);
    assert_string_equal("n2:lost", events_of(&n[0], NULL, true, 0, "lost").types);
    start_node(1);
    assert_string_equal("n2:lost n2:back", events_of(&n[2], NULL, true, 0, "back").types);
    for (int k = 2; k >= 0; k--)
        assert_int_equal(0, dtd_down(&n[k]));
}
