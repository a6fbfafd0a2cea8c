/* The events that the records of the log make: their texts, which are written here by hand, their bounds, and that a
 * snapshot keeps them. */
#include "daemon/control/state/state.h"
#include "tests/lib/test.h"

#include <math.h>

static struct state *fresh(void)
{
    struct state *s;
    assert_ok(state_new(&s));
    return s;
}

/* Every record is encoded and decoded, as in the log. */
static struct state_result apply(struct state *s, const struct record *r)
{
    struct buf bytes = {0};
    struct record back;
    struct state_result result;
    struct record stamped = *r;
    stamped.clock_ms = r->wall_ms + 7;
    assert_ok(record_encode(&stamped, &bytes));
    assert_ok(record_decode(bytes.data, bytes.len, &back));
    assert_ok(state_apply(s, &back, &result));
    record_fini(&back);
    buf_fini(&bytes);
    return result;
}

static void submit(struct state *s, uint64_t parent)
{
    struct record r = {.kind = RECORD_SUBMITTED, .wall_ms = 100};
    r.submitted.spec = "name: x\n";
    r.submitted.uid = 1000;
    r.submitted.parent = parent;
    assert_err(OK, apply(s, &r).err);
}

static void begin_epoch(struct state *s, uint64_t number, const char *const *nodes, int n, int64_t step)
{
    struct state_member members[8];
    struct record r = {.kind = RECORD_EPOCH, .job = 1, .wall_ms = 200};
    for (int i = 0; i < n; i++)
        members[i] = (struct state_member){nodes[i], i};
    r.epoch.epoch = number;
    r.epoch.members = members;
    r.epoch.n_members = n;
    r.epoch.resume_step = step;
    assert_err(OK, apply(s, &r).err);
}

static struct record incident(int64_t wall_ms, const char *seen, double recover_ms)
{
    struct record r = {.kind = RECORD_INCIDENT, .job = 1, .wall_ms = wall_ms, .incident = incident_none};
    r.incident.epoch = 1;
    r.incident.wall_ms = wall_ms;
    r.incident.seen = seen;
    r.incident.decided = "new epoch 2 from step 50";
    r.incident.recover_ms = recover_ms;
    r.incident.restarts = 1;
    return r;
}

static void save(struct state *s, int64_t step, int64_t committed_ms)
{
    struct record r = {.kind = RECORD_CHECKPOINT, .job = 1, .wall_ms = 900};
    r.checkpoint = (struct state_checkpoint){step, 1, "/c", 3 << 20, committed_ms, NAN};
    assert_err(OK, apply(s, &r).err);
}

static void node_event(struct state *s, enum event_kind kind, const char *node, const char *text)
{
    struct record r = {.kind = RECORD_INCIDENT, .wall_ms = 700, .incident = incident_none};
    r.incident.wall_ms = 700;
    r.incident.event = kind;
    r.incident.node = node;
    r.incident.seen = text;
    r.incident.decided = "";
    assert_err(OK, apply(s, &r).err);
}

struct expected {
    enum event_kind kind;
    uint64_t job;
    const char *node, *text;
};

static void assert_events(const struct state *s, const struct expected *x, int n)
{
    const struct state_event *const *events;
    assert_int_equal(n, state_events(s, &events));
    for (int i = 0; i < n; i++) {
        assert_string_equal(event_kind_name(x[i].kind), event_kind_name(events[i]->kind));
        assert_int_equal(x[i].job, events[i]->job);
        assert_string_equal(x[i].node, events[i]->node);
        assert_string_equal(x[i].text, events[i]->text);
        assert_int_equal(x[i].job ? 1000 : 0, events[i]->uid);
    }
}
#define ASSERT_EVENTS(s, ...)                                             \
    do {                                                                  \
        const struct expected rows_[] = {__VA_ARGS__};                    \
        assert_events(s, rows_, (int)(sizeof(rows_) / sizeof(rows_[0]))); \
    } while (0)

/* The life of a job with a failure: its cause becomes better known after the event was made. */
static void live(struct state *s)
{
    static const char *const nodes[] = {"a", "a", "b"};
    submit(s, 0);
    begin_epoch(s, 1, nodes, 3, 0);
    save(s, 50, 300);
    struct record r = incident(400, "rank 0 lost its peer", NAN);
    apply(s, &r);
    r = incident(400, "worker rank 1 was killed by signal 9", NAN);
    apply(s, &r);
    begin_epoch(s, 2, nodes, 2, 50);
    r = incident(400, "worker rank 1 was killed by signal 9", 1234);
    r.incident.lost_steps = 7;
    apply(s, &r);
    apply(s, &r); /* a log that is attached later */
    struct record cancel = {.kind = RECORD_DESIRED, .job = 1, .desired = {.desired = DESIRED_SAVED}};
    apply(s, &cancel);
    apply(s, &cancel);
    struct record end = {.kind = RECORD_ENDED, .job = 1, .ended = {.end = END_CANCELED, .reason = "by a user"}};
    assert_err(OK, apply(s, &end).err);
    assert_err(ERR_STALE, apply(s, &end).err);
}

#define LIFE                                                                                        \
    {EVENT_SUBMITTED, 1, "", ""}, {EVENT_STARTED, 1, "", "epoch 1 with 3 workers on a, b"},         \
        {EVENT_CHECKPOINT, 1, "", "step 50, 3.0 MiB in /c"},                                        \
        {EVENT_FAILURE, 1, "", "worker rank 1 was killed by signal 9; new epoch 2 from step 50"},   \
        {EVENT_EPOCH, 1, "",                                                                        \
         "epoch 2 with 2 workers on a from step 50, because worker rank 1 was killed by signal 9"}, \
        {EVENT_RUNNING, 1, "", "first step 1.2 s after the failure; 7 steps are repeated"},         \
        {EVENT_CANCEL, 1, "", "a user canceled the job, with a checkpoint"},                        \
    {                                                                                               \
        EVENT_ENDED, 1, "", "canceled: by a user"                                                   \
    }

TEST(the_records_of_a_job_are_its_events)
{
    struct state *s = fresh();
    live(s);
    ASSERT_EVENTS(s, LIFE);
    const struct state_event *const *events;
    state_events(s, &events);
    assert_int_equal(1, events[0]->id);
    assert_int_equal(100, events[0]->wall_ms);
    assert_int_equal(4, events[3]->id);
    assert_int_equal(9, state_event_next(s));
    state_free(s);
}

TEST(a_removed_job_keeps_its_events)
{
    struct state *s = fresh();
    live(s);
    struct record r = {.kind = RECORD_JOB_REMOVED, .job = 1};
    assert_err(OK, apply(s, &r).err);
    ASSERT_EVENTS(s, LIFE, {EVENT_REMOVED, 1, "", ""});
    state_free(s);
}

TEST(a_start_and_incidents_that_end_no_epoch)
{
    struct state *s = fresh();
    submit(s, 0);
    submit(s, 1);
    struct record start = incident(100, "submitted", 3210), low = incident(5, "the disk is nearly full", NAN),
                  failed = incident(6, "no space", NAN);
    start.incident.is_start = true;
    low.incident.restarts = failed.incident.restarts = -1;
    failed.incident.event = EVENT_CHECKPOINT_FAILED;
    apply(s, &start);
    apply(s, &low);
    apply(s, &failed);
    ASSERT_EVENTS(s, {EVENT_SUBMITTED, 1, "", ""}, {EVENT_SUBMITTED, 2, "", "continues job 1"},
                  {EVENT_RUNNING, 1, "", "first step 3.2 s after the submit"},
                  {EVENT_WARNING, 1, "", "the disk is nearly full; new epoch 2 from step 50"},
                  {EVENT_CHECKPOINT_FAILED, 1, "", "no space; new epoch 2 from step 50"});
    assert_int_equal(2, state_job_find(s, 1)->n_incidents);
    state_free(s);
}

/* Checkpoints from before the submit, and those that a scan reports again. */
TEST(known_checkpoints_are_no_news)
{
    struct state *s = fresh();
    submit(s, 0);
    save(s, 1, 99);
    save(s, 2, 101);
    save(s, 2, 101);
    save(s, 2, 102); /* the step was repeated */
    ASSERT_EVENTS(s, {EVENT_SUBMITTED, 1, "", ""}, {EVENT_CHECKPOINT, 1, "", "step 2, 3.0 MiB in /c"},
                  {EVENT_CHECKPOINT, 1, "", "step 2, 3.0 MiB in /c"});
    state_free(s);
}

TEST(slow_ranks_are_events_and_no_incidents)
{
    struct state *s = fresh();
    submit(s, 0);
    struct record r = incident(5, "rank 3 on node b computes 1.18 times as long as the median", NAN);
    r.incident.event = EVENT_STRAGGLER;
    r.incident.node = "b";
    r.incident.decided = "";
    apply(s, &r);
    ASSERT_EVENTS(s, {EVENT_SUBMITTED, 1, "", ""},
                  {EVENT_STRAGGLER, 1, "b", "rank 3 on node b computes 1.18 times as long as the median"});
    assert_int_equal(0, state_job_find(s, 1)->n_incidents);
    state_free(s);
}

static void join(struct state *s, const char *name, const char *address, uint8_t instance)
{
    struct record r = {.kind = RECORD_NODE, .wall_ms = 1};
    r.node.name = name;
    r.node.address = address;
    r.node.domain = "";
    memset(r.node.instance, instance, sizeof(r.node.instance));
    apply(s, &r);
}

static void drain(struct state *s, const char *name, const char *reason)
{
    struct record r = {.kind = RECORD_NODE_ADMIN, .node_admin = {.name = name, .drained = reason}};
    apply(s, &r);
}

TEST(nodes_have_events)
{
    struct state *s = fresh();
    join(s, "a", "10.0.0.1:7", 1);
    join(s, "a", "10.0.0.2:7", 1); /* another address */
    join(s, "a", "10.0.0.3:7", 2); /* refused */
    drain(s, "a", NULL);           /* was not drained */
    drain(s, "a", "fans");
    drain(s, "a", NULL);
    drain(s, "unknown", "fans");
    assert_false(state_node_is_lost(s, "a"));
    node_event(s, EVENT_NODE_LOST, "a", "no heartbeat");
    assert_true(state_node_is_lost(s, "a"));
    assert_false(state_node_is_lost(s, "b"));
    node_event(s, EVENT_NODE_BACK, "a", "");
    assert_false(state_node_is_lost(s, "a"));
    struct record r = {.kind = RECORD_NODE_LEFT, .node_left = {.name = "a", .how = "it left the cluster"}};
    apply(s, &r);
    ASSERT_EVENTS(s, {EVENT_NODE_JOINED, 0, "a", "at 10.0.0.1:7"}, {EVENT_NODE_DRAINED, 0, "a", "fans"},
                  {EVENT_NODE_UNDRAINED, 0, "a", ""}, {EVENT_NODE_LOST, 0, "a", "no heartbeat"},
                  {EVENT_NODE_BACK, 0, "a", ""}, {EVENT_NODE_LEFT, 0, "a", "it left the cluster"});
    state_free(s);
}

TEST(many_nodes_are_counted_and_long_texts_cut)
{
    struct state *s = fresh();
    char text[1000];
    submit(s, 0);
    begin_epoch(s, 1, (const char *const[]){"a", "b", "c", "d", "e", "f"}, 6, 0);
    memset(text, 'x', sizeof(text));
    memcpy(text + STATE_EVENT_TEXT - 1, "\xc3\xa9", 3); /* a character of two bytes, of which one has room */
    node_event(s, EVENT_NODE_LOST, "a", text);
    const struct state_event *const *events;
    assert_int_equal(3, state_events(s, &events));
    assert_string_equal("epoch 1 with 6 workers on a, b, c, d and 2 more", events[1]->text);
    assert_int_equal(STATE_EVENT_TEXT - 1, strlen(events[2]->text));
    state_free(s);
}

/* A job that saves often pushes out its own events only. All in all there are STATE_MAX_EVENTS. */
TEST(events_are_bounded)
{
    struct state *s = fresh();
    const struct state_event *const *events;
    submit(s, 0);
    submit(s, 0);
    for (int i = 1; i <= STATE_MAX_JOB_EVENTS + 10; i++)
        save(s, i, 1000);
    assert_int_equal(STATE_MAX_JOB_EVENTS + 1, state_events(s, &events));
    assert_int_equal(1, events[0]->job); /* submitted: it stays, and old checkpoints go */
    assert_int_equal(-1, events[0]->step);
    assert_int_equal(2, events[1]->job);
    assert_int_equal(12, events[2]->step);
    for (int i = 2; i < STATE_MAX_JOBS; i++)
        submit(s, 0);
    assert_int_equal(STATE_MAX_EVENTS, state_events(s, &events));
    assert_int_equal(STATE_MAX_JOB_EVENTS + 9, events[0]->step);
    assert_int_equal(STATE_MAX_JOB_EVENTS + 10, events[1]->step);
    assert_int_equal(3, events[2]->job);
    assert_int_equal(state_event_next(s), events[STATE_MAX_EVENTS - 1]->id + 1);
    state_free(s);
}

TEST(a_snapshot_has_the_events)
{
    struct state *a = fresh(), *b = fresh();
    struct buf bytes = {0}, again = {0};
    live(a);
    node_event(a, EVENT_NODE_LOST, "a", "no heartbeat");
    assert_ok(state_snapshot(a, &bytes));
    assert_ok(state_restore(b, bytes.data, bytes.len));
    ASSERT_EVENTS(b, LIFE, {EVENT_NODE_LOST, 0, "a", "no heartbeat"});
    const struct state_event *const *before, *const *after;
    const int n = state_events(a, &before);
    assert_int_equal(n, state_events(b, &after));
    for (int i = 0; i < n; i++) {
        assert_int_equal(before[i]->clock_ms, before[i]->wall_ms + 7);
        assert_int_equal(before[i]->clock_ms, after[i]->clock_ms);
    }
    assert_int_equal(state_event_next(a), state_event_next(b));
    assert_ok(state_snapshot(b, &again));
    assert_int_equal(bytes.len, again.len);
    assert_memory_equal(bytes.data, again.data, bytes.len);
    buf_fini(&bytes);
    buf_fini(&again);
    state_free(a);
    state_free(b);
}

TEST(the_event_of_an_epoch_names_its_layout)
{
    struct state *s = fresh();
    submit(s, 0);
    struct state_member members[] = {{"a", 0}, {"b", 0}};
    struct record r = {.kind = RECORD_EPOCH, .job = 1, .wall_ms = 200};
    r.epoch.epoch = 1;
    r.epoch.members = members;
    r.epoch.n_members = 2;
    r.epoch.layout = "parallel.tp=2";
    r.epoch.layout_why = "tp 2, microbatch 4: 0.5 s a step; next best dp 2, microbatch 4: 0.6 s";
    assert_err(OK, apply(s, &r).err);
    ASSERT_EVENTS(s, {EVENT_SUBMITTED, 1, "", ""},
                  {EVENT_STARTED, 1, "",
                   "epoch 1 with 2 workers on a, b; layout auto: tp 2, microbatch 4: 0.5 s a step; next best dp 2, "
                   "microbatch 4: 0.6 s"});
    state_free(s);
}
