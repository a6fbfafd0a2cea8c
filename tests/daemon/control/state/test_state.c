/* The replicated state: the effect and the refusals of each record, and that a snapshot's bytes are the whole state. */
#include "daemon/control/state/state.h"
#include "proto/log.pb-c.h"
#include "tests/lib/test.h"

#include <math.h>

static struct state *fresh(void)
{
    struct state *s;
    assert_ok(state_new(&s));
    return s;
}

static struct state_result apply(struct state *s, const struct record *r)
{
    struct state_result result;
    assert_ok(state_apply(s, r, &result));
    return result;
}

/* Every record is encoded and decoded, as in the log. */
static struct state_result apply_bytes(struct state *s, const struct record *r)
{
    struct buf bytes = {0};
    struct record back;
    assert_ok(record_encode(r, &bytes));
    assert_ok(record_decode(bytes.data, bytes.len, &back));
    struct state_result result = apply(s, &back);
    record_fini(&back);
    buf_fini(&bytes);
    return result;
}

static struct record submit(const char *spec, uint8_t request, int64_t wall_ms)
{
    struct record r = {.kind = RECORD_SUBMITTED, .wall_ms = wall_ms, .has_request = request != 0};
    memset(r.request_id, request, sizeof(r.request_id));
    r.submitted.spec = spec;
    r.submitted.uid = 1000;
    return r;
}

static uint64_t submitted(struct state *s)
{
    struct record r = submit("name: x\n", 0, 5);
    return apply_bytes(s, &r).job;
}

static struct record epoch(uint64_t job, uint64_t number, int64_t wall_ms)
{
    static const struct state_member members[] = {{"node-1", 0}, {"node-1", 1}, {"node-2", 0}};
    struct record r = {.kind = RECORD_EPOCH, .job = job, .wall_ms = wall_ms};
    r.epoch.epoch = number;
    r.epoch.members = members;
    r.epoch.n_members = 3;
    r.epoch.resume_step = 100;
    r.epoch.restarts = 1;
    return r;
}

static struct record checkpoint(uint64_t job, int64_t step, const char *path)
{
    struct record r = {.kind = RECORD_CHECKPOINT, .job = job, .wall_ms = 9};
    r.checkpoint = (struct state_checkpoint){step, 2, path, 12345, 999, step % 2 ? NAN : 1.5};
    return r;
}

static struct record incident(uint64_t job, int64_t wall_ms, double recover_ms)
{
    struct record r = {.kind = RECORD_INCIDENT, .job = job, .wall_ms = wall_ms};
    r.incident = incident_none;
    r.incident.epoch = 1;
    r.incident.wall_ms = wall_ms;
    r.incident.seen = "worker rank 1 was killed";
    r.incident.decided = "epoch 2 from step 100";
    r.incident.detect_ms = 3.5;
    r.incident.recover_ms = recover_ms;
    r.incident.log = wall_ms % 2 ? "its last words" : NULL;
    r.incident.restarts = wall_ms % 3 - 1;
    return r;
}

static struct record ended(uint64_t job, enum state_end end)
{
    struct record r = {.kind = RECORD_ENDED, .job = job, .wall_ms = 77};
    r.ended.end = end;
    r.ended.reason = "because";
    return r;
}

static void assert_same_state(const struct state *a, const struct state *b)
{
    struct buf x = {0}, y = {0};
    assert_ok(state_snapshot(a, &x));
    assert_ok(state_snapshot(b, &y));
    assert_int_equal(x.len, y.len);
    assert_memory_equal(x.data, y.data, x.len);
    buf_fini(&x);
    buf_fini(&y);
}

TEST(submit_counts_from_one)
{
    struct state *s = fresh();
    struct record r = submit("name: a\n", 0, 10);
    r.submitted.parent = 7;
    struct state_result first = apply_bytes(s, &r);
    assert_err(OK, first.err);
    assert_int_equal(first.job, 1);
    assert_int_equal(apply_bytes(s, &r).job, 2);
    const struct state_job *job = state_job_find(s, 1);
    assert_string_equal(job->spec, "name: a\n");
    assert_int_equal(job->parent, 7);
    assert_int_equal(job->uid, 1000);
    assert_int_equal(job->submitted_ms, 10);
    assert_int_equal(job->desired, DESIRED_RUN);
    assert_int_equal(job->end, END_NONE);
    assert_null(state_job_find(s, 3));
    state_free(s);
}

TEST(repeated_request_gets_the_first_answer)
{
    struct state *s = fresh();
    struct record r = submit("name: a\n", 0x11, 1000), other = submit("name: b\n", 0x22, 1001);
    struct state_result a = apply_bytes(s, &r), b = apply_bytes(s, &other), again;
    assert_false(a.repeated);
    assert_int_equal(b.job, 2);
    r.wall_ms = 50000;
    again = apply_bytes(s, &r);
    assert_true(again.repeated);
    assert_int_equal(again.job, a.job);
    const struct state_job *const *jobs;
    assert_int_equal(state_jobs(s, &jobs), 2);
    assert_true(state_request_find(s, r.request_id, &again));
    assert_int_equal(again.job, 1);
    state_free(s);
}

TEST(refusals_are_repeated_too)
{
    struct state *s = fresh();
    struct record r = ended(submitted(s), END_DONE);
    apply_bytes(s, &r);
    struct record cancel = {.kind = RECORD_DESIRED, .job = 1, .wall_ms = 9, .has_request = true, .request_id = {3}};
    cancel.desired.desired = DESIRED_CANCELED;
    assert_err(ERR_STALE, apply_bytes(s, &cancel).err);
    struct state_result again = apply_bytes(s, &cancel);
    assert_err(ERR_STALE, again.err);
    assert_true(again.repeated);
    state_free(s);
}

TEST(request_is_forgotten_after_a_day_of_the_log)
{
    struct state *s = fresh();
    struct record r = submit("name: a\n", 0x11, 1000), late = submit("name: b\n", 0x22, 1000 + STATE_REQUEST_MS);
    struct record later = submit("name: c\n", 0x33, 1001 + STATE_REQUEST_MS);
    struct state_result found;
    apply_bytes(s, &r);
    apply_bytes(s, &late);
    assert_true(state_request_find(s, r.request_id, &found));
    apply_bytes(s, &later);
    assert_false(state_request_find(s, r.request_id, &found));
    assert_true(state_request_find(s, late.request_id, &found));
    state_free(s);
}

/* Leaders whose dates are a day apart: the cluster's clock decides, and a record of an older version, which has none,
 * does not set it. */
TEST(request_is_kept_for_a_day_of_the_clock)
{
    const int64_t day = STATE_REQUEST_MS;
    struct state *s = fresh();
    struct record r = submit("name: a\n", 0x11, 1000), ahead = submit("name: b\n", 0x22, 1000 + 3 * day);
    struct record old = submit("name: c\n", 0x33, 1000), later = submit("name: d\n", 0x44, 1000 - 3 * day);
    struct state_result found;
    r.clock_ms = 500;
    ahead.clock_ms = 500 + day;
    later.clock_ms = 501 + day;
    apply_bytes(s, &r);
    apply_bytes(s, &ahead);
    assert_true(state_request_find(s, r.request_id, &found));
    assert_int_equal(500 + day, state_clock_of(s));
    apply_bytes(s, &old);
    assert_true(state_request_find(s, r.request_id, &found));
    assert_int_equal(500 + day, state_clock_of(s));
    apply_bytes(s, &later);
    assert_false(state_request_find(s, r.request_id, &found));
    assert_true(state_request_find(s, ahead.request_id, &found));
    state_free(s);
}

TEST(a_snapshot_contains_the_clock)
{
    struct state *s = fresh(), *t = fresh();
    struct state_frozen *frozen;
    struct buf bytes = {0};
    struct record r = submit("name: a\n", 0x11, 1000);
    r.clock_ms = 70;
    uint64_t job = apply_bytes(s, &r).job;
    struct record e = epoch(job, 1, 2000), again = epoch(job, 2, 3000);
    e.clock_ms = 80;
    again.clock_ms = 90;
    assert_err(OK, apply_bytes(s, &e).err);
    assert_err(OK, apply_bytes(s, &again).err);
    struct record i = {.kind = RECORD_INCIDENT, .clock_ms = 85, .job = job, .incident = incident_none};
    i.incident.epoch = 1;
    i.incident.wall_ms = 2500;
    i.incident.seen = i.incident.decided = "x";
    assert_err(OK, apply_bytes(s, &i).err);
    i.clock_ms = 95;                     /* more of the same incident */
    assert_ok(state_freeze(s, &frozen)); /* the record changes a copy of the job */
    assert_err(OK, apply_bytes(s, &i).err);
    state_thaw(frozen);
    assert_ok(state_snapshot(s, &bytes));
    assert_ok(state_restore(t, bytes.data, bytes.len));
    const struct state_job *back = state_job_find(t, job);
    assert_int_equal(95, state_clock_of(t));
    assert_int_equal(70, back->submitted_clock_ms);
    assert_int_equal(80, back->started_clock_ms);
    assert_int_equal(85, back->incident_clock_ms);
    buf_fini(&bytes);
    state_free(s);
    state_free(t);
}

TEST(epochs_only_ascend)
{
    struct state *s = fresh();
    submitted(s);
    struct record r = epoch(1, 2, 500);
    assert_err(OK, apply_bytes(s, &r).err);
    const struct state_job *job = state_job_find(s, 1);
    assert_int_equal(job->epoch.epoch, 2);
    assert_int_equal(job->epoch.n_members, 3);
    assert_string_equal(job->epoch.members[2].node, "node-2");
    assert_int_equal(job->epoch.members[1].slot, 1);
    assert_int_equal(job->epoch.resume_step, 100);
    assert_int_equal(job->started_ms, 500);
    assert_err(ERR_STALE, apply_bytes(s, &r).err);
    r.epoch.epoch = 1;
    assert_err(ERR_STALE, apply_bytes(s, &r).err);
    r = epoch(1, 3, 600);
    assert_err(OK, apply_bytes(s, &r).err);
    assert_int_equal(job->started_ms, 500);
    assert_int_equal(job->epoch.wall_ms, 600);
    r = epoch(9, 1, 600);
    assert_err(ERR_NOTFOUND, apply_bytes(s, &r).err);
    state_free(s);
}

/* Records of older versions have no layout, and neither has a job without parallel.auto. */
TEST(an_epoch_has_its_layout)
{
    struct state *a = fresh(), *b = fresh();
    struct buf bytes = {0};
    submitted(a);
    struct record r = epoch(1, 1, 500);
    assert_err(OK, apply_bytes(a, &r).err);
    assert_null(state_job_find(a, 1)->epoch.layout);
    assert_null(state_job_find(a, 1)->epoch.layout_why);
    r = epoch(1, 2, 600);
    r.epoch.layout = "parallel.tp=2 parallel.fsdp=1";
    r.epoch.layout_why = "tp 2, microbatch 4: 0.5 s a step";
    assert_err(OK, apply_bytes(a, &r).err);
    assert_ok(state_snapshot(a, &bytes));
    assert_ok(state_restore(b, bytes.data, bytes.len));
    const struct state *const states[] = {a, b};
    for (int i = 0; i < 2; i++) {
        assert_string_equal("parallel.tp=2 parallel.fsdp=1", state_job_find(states[i], 1)->epoch.layout);
        assert_string_equal("tp 2, microbatch 4: 0.5 s a step", state_job_find(states[i], 1)->epoch.layout_why);
    }
    r = epoch(1, 3, 700);
    assert_err(OK, apply_bytes(a, &r).err);
    assert_null(state_job_find(a, 1)->epoch.layout);
    buf_fini(&bytes);
    state_free(a);
    state_free(b);
}

static void assert_left(const struct state_job *job, int i, int rank, const char *node, int slot)
{
    assert_true(i < job->n_left);
    assert_int_equal(rank, job->left[i].rank);
    assert_string_equal(node, job->left[i].node);
    assert_int_equal(slot, job->left[i].slot);
}

TEST(places_that_the_job_has_left_are_known)
{
    static const struct state_member moved[] = {{"node-1", 1}, {"node-3", 0}};
    struct state *a = fresh(), *b = fresh();
    struct buf bytes = {0};
    submitted(a);
    struct record r = epoch(1, 1, 500);
    assert_err(OK, apply_bytes(a, &r).err);
    const struct state_job *job = state_job_find(a, 1);
    assert_int_equal(0, job->n_left);
    r = epoch(1, 2, 600);
    r.epoch.members = moved;
    r.epoch.n_members = 2;
    assert_err(OK, apply_bytes(a, &r).err);
    assert_int_equal(2, job->n_left); /* rank 1 of the first epoch ran where rank 0 runs now */
    assert_left(job, 0, 0, "node-1", 0);
    assert_left(job, 1, 2, "node-2", 0);
    assert_ok(state_snapshot(a, &bytes));
    assert_ok(state_restore(b, bytes.data, bytes.len));
    assert_int_equal(2, state_job_find(b, 1)->n_left);
    assert_left(state_job_find(b, 1), 1, 2, "node-2", 0);
    r = epoch(1, 3, 700); /* the places of the first one again */
    assert_err(OK, apply_bytes(b, &r).err);
    assert_err(OK, apply_bytes(a, &r).err);
    assert_int_equal(1, job->n_left);
    assert_left(job, 0, 1, "node-3", 0);
    assert_same_state(a, b);
    buf_fini(&bytes);
    state_free(a);
    state_free(b);
}

static struct record epoch_at(uint64_t number, const struct state_member *member)
{
    struct record r = epoch(1, number, 500);
    r.epoch.members = member;
    r.epoch.n_members = 1;
    return r;
}

TEST(of_many_places_the_newest_are_known)
{
    struct state *s = fresh();
    submitted(s);
    for (int i = 0; i < STATE_MAX_LEFT + 3; i++) {
        const struct state_member at = {"node-1", i};
        struct record r = epoch_at((uint64_t)i + 1, &at);
        assert_err(OK, apply_bytes(s, &r).err);
        assert_int_equal(i < STATE_MAX_LEFT ? i : STATE_MAX_LEFT, state_job_find(s, 1)->n_left);
    }
    const struct state_job *job = state_job_find(s, 1);
    assert_int_equal(STATE_MAX_LEFT, job->n_left);
    assert_left(job, 0, 0, "node-1", 2);
    assert_left(job, STATE_MAX_LEFT - 1, 0, "node-1", STATE_MAX_LEFT + 1);
    state_free(s);
}

TEST(an_ended_job_stays_ended)
{
    struct state *s = fresh();
    submitted(s);
    struct record done = ended(1, END_DONE), failed = ended(1, END_FAILED), next = epoch(1, 5, 1);
    assert_err(OK, apply_bytes(s, &done).err);
    assert_err(ERR_STALE, apply_bytes(s, &failed).err);
    assert_err(ERR_STALE, apply_bytes(s, &next).err);
    const struct state_job *job = state_job_find(s, 1);
    assert_int_equal(job->end, END_DONE);
    assert_int_equal(job->ended_ms, 77);
    assert_string_equal(job->reason, "because");
    state_free(s);
}

TEST(only_an_ended_job_is_removed)
{
    struct state *s = fresh();
    submitted(s);
    submitted(s);
    struct record end = ended(1, END_DONE), remove = {.kind = RECORD_JOB_REMOVED, .job = 1};
    assert_err(ERR_AGAIN, apply_bytes(s, &remove).err);
    assert_err(OK, apply_bytes(s, &end).err);
    assert_err(OK, apply_bytes(s, &remove).err);
    assert_null(state_job_find(s, 1));
    assert_non_null(state_job_find(s, 2));
    assert_err(ERR_NOTFOUND, apply_bytes(s, &remove).err);
    assert_int_equal(submitted(s), 3);
    state_free(s);
}

TEST(cancel_cannot_be_withdrawn)
{
    struct state *s = fresh();
    submitted(s);
    struct record r = {.kind = RECORD_DESIRED, .job = 1, .wall_ms = 1};
    r.desired.desired = DESIRED_CANCELED;
    apply_bytes(s, &r);
    r.desired.desired = DESIRED_RUN;
    apply_bytes(s, &r);
    r.desired.desired = DESIRED_SAVED;
    apply_bytes(s, &r);
    assert_int_equal(state_job_find(s, 1)->desired, DESIRED_CANCELED);
    state_free(s);
}

TEST(catalog_is_sorted_and_replaced)
{
    struct state *s = fresh();
    submitted(s);
    static const int64_t steps[] = {300, 100, 200, 500, 400, 50};
    for (int i = 0; i < 6; i++) {
        struct record r = checkpoint(1, steps[i], "/ckpt/step");
        assert_err(OK, apply_bytes(s, &r).err);
    }
    const struct state_job *job = state_job_find(s, 1);
    assert_int_equal(job->n_checkpoints, 6);
    for (int i = 1; i < 6; i++)
        assert_true(job->checkpoints[i - 1].step < job->checkpoints[i].step);
    assert_int_equal(state_newest_checkpoint(job)->step, 500);
    struct record again = checkpoint(1, 300, "/other/step-300");
    apply_bytes(s, &again);
    assert_int_equal(job->n_checkpoints, 6);
    assert_string_equal(job->checkpoints[3].path, "/other/step-300");
    struct record removed = {.kind = RECORD_CHECKPOINT_REMOVED, .job = 1, .wall_ms = 1};
    removed.removed.step = 500;
    assert_err(OK, apply_bytes(s, &removed).err);
    assert_err(ERR_NOTFOUND, apply_bytes(s, &removed).err);
    assert_int_equal(state_newest_checkpoint(job)->step, 400);
    state_free(s);
}

TEST(incident_is_completed_in_place)
{
    struct state *s = fresh();
    submitted(s);
    struct record seen = incident(1, 1000, NAN), recovered = incident(1, 1000, 812.5);
    apply_bytes(s, &seen);
    const struct state_job *job = state_job_find(s, 1);
    assert_true(isnan(job->incidents[0].recover_ms));
    apply_bytes(s, &recovered);
    assert_int_equal(job->n_incidents, 1);
    assert_true(job->incidents[0].recover_ms == 812.5);
    for (int i = 0; i < STATE_MAX_INCIDENTS + 5; i++) {
        struct record r = incident(1, 2000 + i, 1);
        apply_bytes(s, &r);
    }
    assert_int_equal(job->n_incidents, STATE_MAX_INCIDENTS);
    assert_int_equal(job->incidents[0].wall_ms, 2005);
    int logs = 0; /* every second incident came with the tail of a log */
    for (int i = STATE_MAX_INCIDENTS - 1; i >= 0; i--) {
        const struct incident *x = &job->incidents[i];
        assert_int_equal(x->log != NULL, x->wall_ms % 2 && logs < STATE_MAX_INCIDENT_LOGS);
        logs += x->log != NULL;
    }
    assert_int_equal(logs, STATE_MAX_INCIDENT_LOGS);
    state_free(s);
}

/* The durations of the first start are kept beside the incidents, also in a snapshot; a later record replaces them. */
TEST(the_first_start_is_no_incident)
{
    struct state *a = fresh(), *b = fresh();
    struct buf bytes = {0};
    submitted(a);
    assert_int_equal(0, state_job_find(a, 1)->start.epoch);
    for (int i = 1; i <= 2; i++) {
        struct record r = incident(1, 1000, 100 * i);
        r.incident.is_start = true;
        r.incident.slots_ms = 12.5;
        assert_err(OK, apply_bytes(a, &r).err);
    }
    assert_ok(state_snapshot(a, &bytes));
    assert_ok(state_restore(b, bytes.data, bytes.len));
    const struct state_job *jobs[] = {state_job_find(a, 1), state_job_find(b, 1)};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(0, jobs[i]->n_incidents);
        assert_true(jobs[i]->start.recover_ms == 200);
        assert_true(jobs[i]->start.slots_ms == 12.5);
        assert_string_equal(jobs[i]->start.decided, "epoch 2 from step 100");
    }
    buf_fini(&bytes);
    state_free(a);
    state_free(b);
}

TEST(jobs_are_bounded_and_the_oldest_ended_one_is_removed)
{
    struct state *s = fresh();
    for (int i = 0; i < STATE_MAX_JOBS; i++)
        assert_int_equal(submitted(s), i + 1);
    struct record r = submit("name: full\n", 0, 1);
    assert_err(ERR_LIMIT, apply_bytes(s, &r).err);
    struct record done = ended(17, END_FAILED);
    apply_bytes(s, &done);
    assert_int_equal(submitted(s), STATE_MAX_JOBS + 1);
    assert_null(state_job_find(s, 17));
    assert_non_null(state_job_find(s, 1));
    assert_non_null(state_job_find(s, STATE_MAX_JOBS + 1));
    state_free(s);
}

static void fill(struct state *s)
{
    for (uint8_t i = 1; i <= 5; i++) {
        struct record r = submit("name: some\nmodel: {dim: 64}\n", i, 1000 + i);
        apply_bytes(s, &r);
    }
    struct record records[] = {epoch(2, 1, 20),          epoch(2, 4, 30),          checkpoint(2, 7, "/c/step-7"),
                               checkpoint(2, 8, "/c/8"), checkpoint(3, 1, "/d/1"), incident(2, 40, NAN),
                               incident(2, 41, 17.25),   ended(3, END_CANCELED),   ended(4, END_DONE)};
    for (size_t i = 0; i < sizeof(records) / sizeof(records[0]); i++)
        assert_err(OK, apply_bytes(s, &records[i]).err);
}

TEST(a_snapshot_has_the_restarts_of_incidents)
{
    struct state *a = fresh(), *b = fresh();
    struct buf bytes = {0};
    submitted(a);
    for (int i = 0; i < 3; i++) {
        struct record r = incident(1, 3000 + i, 1);
        assert_err(OK, apply_bytes(a, &r).err);
    }
    assert_ok(state_snapshot(a, &bytes));
    assert_ok(state_restore(b, bytes.data, bytes.len));
    const struct state_job *job = state_job_find(b, 1);
    assert_int_equal(job->n_incidents, 3);
    for (int i = 0; i < 3; i++)
        assert_int_equal(job->incidents[i].restarts, i - 1);
    buf_fini(&bytes);
    state_free(a);
    state_free(b);
}

/* A record with a field of a newer version, as that version writes it. */
static void append_newer_incident(uint64_t job, struct buf *ret)
{
    char seen[] = "seen", decided[] = "decided", name[] = "not_known_here", text[] = "the value";
    Dtd__FieldValue value = DTD__FIELD_VALUE__INIT, *more = &value;
    Dtd__RecordIncident i = DTD__RECORD_INCIDENT__INIT;
    Dtd__Record m = DTD__RECORD__INIT;
    value.name = name;
    value.text = text;
    i.job = job;
    i.seen = seen;
    i.decided = decided;
    i.n_more = 1;
    i.more = &more;
    m.version = 1;
    m.kind_case = DTD__RECORD__KIND_INCIDENT;
    m.incident = &i;
    assert_ok(buf_reserve(ret, dtd__record__get_packed_size(&m)));
    ret->len += dtd__record__pack(&m, ret->data + ret->len);
}

TEST(a_field_of_a_newer_version_survives_a_snapshot)
{
    struct state *a = fresh(), *b = fresh();
    struct record decoded;
    struct buf record = {0}, first = {0}, second = {0};
    submitted(a);
    append_newer_incident(1, &record);
    assert_ok(record_decode(record.data, record.len, &decoded));
    assert_ok(apply(a, &decoded).err);
    record_fini(&decoded);
    assert_ok(state_snapshot(a, &first));
    assert_ok(state_restore(b, first.data, first.len));
    assert_ok(state_snapshot(b, &second));
    Dtd__Snapshot *m = dtd__snapshot__unpack(NULL, second.len, second.data);
    assert_non_null(m);
    const Dtd__RecordIncident *i = m->job[0]->incident[0];
    assert_int_equal(1, i->n_more);
    assert_string_equal("not_known_here", i->more[0]->name);
    assert_string_equal("the value", i->more[0]->text);
    dtd__snapshot__free_unpacked(m, NULL);
    buf_fini(&record);
    buf_fini(&first);
    buf_fini(&second);
    state_free(a);
    state_free(b);
}

TEST(snapshot_and_restore_are_the_same_state)
{
    struct state *a = fresh(), *b = fresh();
    struct buf bytes = {0};
    fill(a);
    assert_ok(state_snapshot(a, &bytes));
    submitted(b); /* to be replaced */
    assert_ok(state_restore(b, bytes.data, bytes.len));
    assert_same_state(a, b);
    /* Both change alike afterwards. */
    struct record r = epoch(2, 5, 60), s = submit("name: next\n", 3, 2000), t = submit("name: next\n", 99, 2000);
    assert_err(OK, apply_bytes(a, &r).err);
    assert_err(OK, apply_bytes(b, &r).err);
    assert_true(apply_bytes(b, &s).repeated);
    assert_int_equal(apply_bytes(a, &t).job, 6);
    assert_int_equal(apply_bytes(b, &t).job, 6);
    assert_same_state(a, b);
    buf_fini(&bytes);
    state_free(a);
    state_free(b);
}

TEST(empty_state_has_a_snapshot)
{
    struct state *a = fresh(), *b = fresh();
    struct buf bytes = {0};
    assert_ok(state_snapshot(a, &bytes));
    assert_ok(state_restore(b, bytes.data, bytes.len));
    assert_int_equal(submitted(b), 1);
    buf_fini(&bytes);
    state_free(a);
    state_free(b);
}

TEST(damaged_snapshot_changes_nothing)
{
    struct state *a = fresh(), *b = fresh();
    struct buf bytes = {0};
    fill(a);
    fill(b);
    assert_ok(state_snapshot(a, &bytes));
    assert_err(ERR_CORRUPT, state_restore(a, bytes.data, bytes.len - 1));
    assert_err(ERR_CORRUPT, state_restore(a, "nonsense", 8));
    assert_err(ERR_CORRUPT, state_restore(a, "", 0));
    assert_same_state(a, b);
    buf_fini(&bytes);
    state_free(a);
    state_free(b);
}

/* The same records give the same bytes, also if one of the two states was restored from a snapshot in between. */
TEST(replay_is_deterministic)
{
    for (int cut = 0; cut < 40; cut += 7) {
        struct state *a = fresh(), *b = fresh();
        uint32_t x = 12345;
        for (int i = 0; i < 40; i++) {
            x = x * 1664525 + 1013904223;
            uint64_t job = x >> 28;
            struct record r[] = {submit("s", (uint8_t)(x >> 12), i), epoch(job, 1 + (x >> 30), i),
                                 checkpoint(job, x >> 29, "p"), incident(job, x >> 30, 1), ended(job, END_DONE)};
            const struct record *one = &r[(x >> 8) % 5];
            apply_bytes(a, one);
            apply_bytes(b, one);
            if (i == cut) {
                struct buf bytes = {0};
                assert_ok(state_snapshot(b, &bytes));
                assert_ok(state_restore(b, bytes.data, bytes.len));
                buf_fini(&bytes);
            }
        }
        assert_same_state(a, b);
        state_free(a);
        state_free(b);
    }
}

/* ---- the cluster ---- */

static struct record node(const char *name, uint8_t instance, uint64_t token, int64_t wall_ms)
{
    struct record r = {.kind = RECORD_NODE, .wall_ms = wall_ms};
    r.node.name = name;
    r.node.address = "10.0.0.1:7811";
    r.node.domain = "rack-1";
    memset(r.node.instance, instance, sizeof(r.node.instance));
    r.node.token = token;
    return r;
}

static struct record token(uint64_t id, int64_t expires_ms, uint32_t uses)
{
    struct record r = {.kind = RECORD_TOKEN, .wall_ms = 100};
    r.token.id = id;
    r.token.expires_ms = expires_ms;
    r.token.uses = uses;
    memset(r.token.secret, 0x42, sizeof(r.token.secret));
    return r;
}

static struct record key(uint32_t version, enum state_key_step step, uint8_t secret)
{
    struct record r = {.kind = RECORD_KEY, .wall_ms = 100};
    r.key.version = version;
    r.key.step = step;
    memset(r.key.secret, secret, sizeof(r.key.secret));
    return r;
}

static struct state_result put(struct state *s, struct record r)
{
    return apply_bytes(s, &r);
}

TEST(numbers_of_nodes_are_never_reused)
{
    struct state *s = fresh();
    assert_int_equal(1, put(s, node("b", 1, 0, 5)).node);
    assert_int_equal(2, put(s, node("a", 2, 0, 6)).node);
    assert_int_equal(2, put(s, node("a", 2, 0, 7)).node); /* again: the same node */
    assert_err(ERR_EXISTS, put(s, node("a", 3, 0, 8)).err);
    const struct state_cluster *c = state_cluster(s);
    assert_int_equal(2, c->n_nodes);
    assert_string_equal("a", c->nodes[0].name);
    assert_string_equal("b", c->nodes[1].name);
    struct record left = {.kind = RECORD_NODE_LEFT, .node_left = {.name = "a"}};
    assert_int_equal(2, put(s, left).node);
    assert_err(ERR_NOTFOUND, put(s, left).err);
    assert_int_equal(3, put(s, node("a", 3, 0, 9)).node); /* 2 is not reused */
    assert_string_equal("a", state_node_by_id(s, 3)->name);
    assert_null(state_node_by_id(s, 2));
    state_free(s);
}

TEST(a_known_node_may_move)
{
    struct state *s = fresh();
    put(s, node("a", 1, 0, 5));
    struct record r = node("a", 1, 0, 6);
    r.node.address = "10.0.0.2:7811";
    r.node.domain = "";
    assert_err(OK, put(s, r).err);
    assert_string_equal("10.0.0.2:7811", state_node_find(s, "a")->address);
    assert_string_equal("", state_node_find(s, "a")->domain);
    assert_int_equal(5, state_node_find(s, "a")->joined_ms);
    state_free(s);
}

/* The first key that a node shows is its key: it cannot be taken away or replaced, also not after a restart. */
TEST(a_key_of_a_node_is_recorded_once)
{
    static const uint8_t none[NODE_KEY_BYTES];
    uint8_t first[NODE_KEY_BYTES];
    struct state *s = fresh(), *copy = fresh();
    struct buf bytes = {0};
    struct record r = node("a", 1, 0, 5);
    memset(first, 0x11, sizeof(first));
    put(s, r); /* by a version without keys */
    assert_memory_equal(none, state_node_find(s, "a")->public_key, NODE_KEY_BYTES);
    memcpy(r.node.public_key, first, sizeof(first));
    assert_err(OK, put(s, r).err);
    r.node.public_key[31] ^= 1;
    r.node.address = "10.0.0.2:7811";
    assert_err(ERR_EXISTS, put(s, r).err);
    assert_string_equal("10.0.0.1:7811", state_node_find(s, "a")->address);
    r = node("a", 1, 0, 6);
    r.node.address = "10.0.0.2:7811";
    assert_err(OK, put(s, r).err); /* moves, and keeps its key */
    assert_memory_equal(first, state_node_find(s, "a")->public_key, NODE_KEY_BYTES);
    assert_ok(state_snapshot(s, &bytes));
    assert_ok(state_restore(copy, bytes.data, bytes.len));
    assert_memory_equal(first, state_node_find(copy, "a")->public_key, NODE_KEY_BYTES);
    put(s, (struct record){.kind = RECORD_NODE_LEFT, .node_left = {.name = "a"}});
    r = node("a", 2, 0, 7);
    memset(r.node.public_key, 0x22, NODE_KEY_BYTES);
    assert_err(OK, put(s, r).err); /* removed and joined anew */
    assert_memory_equal(r.node.public_key, state_node_find(s, "a")->public_key, NODE_KEY_BYTES);
    buf_fini(&bytes);
    state_free(copy);
    state_free(s);
}

TEST(a_token_admits_as_many_nodes_as_it_has_uses)
{
    struct state *s = fresh();
    assert_err(OK, put(s, token(77, 1000, 2)).err);
    assert_err(ERR_EXISTS, put(s, token(77, 1000, 2)).err);
    assert_err(ERR_DENIED, put(s, node("x", 9, 78, 200)).err);
    assert_err(ERR_STALE, put(s, node("x", 9, 77, 1000)).err);
    assert_err(OK, put(s, node("a", 1, 77, 200)).err);
    assert_err(OK, put(s, node("a", 1, 77, 201)).err); /* a retry after a lost reply is no second use */
    assert_int_equal(1, state_cluster(s)->tokens[0].uses);
    assert_err(OK, put(s, node("b", 2, 77, 202)).err);
    assert_err(ERR_DENIED, put(s, node("c", 3, 77, 203)).err);
    assert_err(OK, put(s, node("b", 2, 77, 204)).err);
    assert_int_equal(0, state_cluster(s)->tokens[0].uses);
    state_free(s);
}

TEST(tokens_are_withdrawn_and_expire)
{
    struct state *s = fresh();
    put(s, token(1, 5000, 1));
    put(s, token(2, 50, 1)); /* expired at time 100 */
    assert_err(OK, put(s, token(3, 5000, 1)).err);
    assert_int_equal(2, state_cluster(s)->n_tokens);
    struct record back = {.kind = RECORD_TOKEN, .token = {.id = 1}};
    assert_err(OK, put(s, back).err);
    assert_err(ERR_NOTFOUND, put(s, back).err);
    for (uint64_t id = 10; state_cluster(s)->n_tokens < STATE_MAX_TOKENS; id++)
        assert_err(OK, put(s, token(id, 5000, 1)).err);
    assert_err(ERR_LIMIT, put(s, token(9999, 5000, 1)).err);
    state_free(s);
}

/* The maker's date is a day ahead of that of the leader that admits the node, and then a day behind it. */
TEST(tokens_expire_by_the_clock)
{
    const int64_t hour = 3600 * 1000, day = 24 * hour;
    for (int behind = 0; behind < 2; behind++) {
        struct state *s = fresh();
        struct record t = token(7, 2 * day, 2), n = node("a", 1, 7, behind ? 4 * day : 100);
        t.wall_ms = 2 * day - hour;
        t.clock_ms = 100;
        t.token.until_ms = 100 + hour;
        assert_err(OK, put(s, t).err);
        n.clock_ms = 100 + hour;
        assert_err(ERR_STALE, put(s, n).err);
        n.clock_ms = 99 + hour;
        assert_err(OK, put(s, n).err);
        state_free(s);
    }
}

TEST(keys_are_added_used_and_dropped)
{
    struct state *s = fresh();
    assert_err(OK, put(s, key(1, KEY_ADDED, 1)).err);
    assert_err(OK, put(s, key(1, KEY_ADDED, 1)).err);
    assert_err(ERR_EXISTS, put(s, key(1, KEY_ADDED, 2)).err);
    assert_int_equal(1, state_cluster(s)->key_used);
    assert_err(ERR_NOTFOUND, put(s, key(2, KEY_USED, 0)).err);
    assert_err(OK, put(s, key(2, KEY_ADDED, 2)).err);
    assert_int_equal(1, state_cluster(s)->key_used);
    assert_err(ERR_INVALID, put(s, key(1, KEY_DROPPED, 0)).err);
    assert_err(OK, put(s, key(2, KEY_USED, 0)).err);
    assert_err(OK, put(s, key(1, KEY_DROPPED, 0)).err);
    assert_err(ERR_NOTFOUND, put(s, key(1, KEY_DROPPED, 0)).err);
    assert_int_equal(1, state_cluster(s)->n_keys);
    assert_int_equal(2, state_cluster(s)->keys[0].version);
    state_free(s);
}

TEST(nodes_are_drained_with_a_reason)
{
    struct state *s = fresh();
    put(s, node("a", 1, 0, 5));
    struct record r = {.kind = RECORD_NODE_ADMIN, .wall_ms = 30, .node_admin = {"a", "memory is replaced"}};
    assert_err(OK, put(s, r).err);
    assert_string_equal("memory is replaced", state_node_find(s, "a")->drained);
    assert_int_equal(30, state_node_find(s, "a")->drained_ms);
    r.node_admin.drained = NULL;
    assert_err(OK, put(s, r).err);
    assert_null(state_node_find(s, "a")->drained);
    r.node_admin.name = "b";
    assert_err(ERR_NOTFOUND, put(s, r).err);
    state_free(s);
}

/* The oracle of state_is_idle is to apply the record. */
static void assert_idle(struct state *s, struct record r)
{
    struct buf before = {0}, after = {0};
    struct state_result answer;
    assert_ok(state_snapshot(s, &before));
    assert_true(state_is_idle(s, &r, &answer));
    const struct state_result applied = put(s, r);
    assert_err(applied.err, answer.err);
    assert_int_equal(applied.job, answer.job);
    assert_int_equal(applied.node, answer.node);
    assert_ok(state_snapshot(s, &after));
    assert_int_equal(before.len, after.len);
    assert_memory_equal(before.data, after.data, before.len);
    buf_fini(&before);
    buf_fini(&after);
}

static void assert_busy(const struct state *s, struct record r)
{
    struct state_result answer;
    assert_false(state_is_idle(s, &r, &answer));
}

TEST(a_second_cancel_changes_nothing)
{
    struct state *s = fresh();
    struct record cancel = {.kind = RECORD_DESIRED, .wall_ms = 9, .job = 1, .desired = {DESIRED_SAVED}};
    assert_idle(s, cancel); /* there is no such job */
    submitted(s);
    submitted(s);
    assert_busy(s, cancel);
    assert_err(OK, put(s, cancel).err);
    assert_idle(s, cancel);
    cancel.desired.desired = DESIRED_CANCELED; /* the first one cannot be withdrawn */
    assert_idle(s, cancel);
    put(s, ended(1, END_CANCELED));
    assert_idle(s, cancel);
    cancel.job = 2;
    assert_busy(s, cancel);
    put(s, ended(2, END_DONE));
    assert_idle(s, cancel);
    state_free(s);
}

TEST(nodes_that_are_drained_already)
{
    struct state *s = fresh();
    struct record r = {.kind = RECORD_NODE_ADMIN, .wall_ms = 30, .node_admin = {"a", NULL}};
    struct state_result answer;
    assert_idle(s, r); /* there is no such node */
    put(s, node("a", 1, 0, 5));
    assert_idle(s, r);
    r.node_admin.drained = "memory";
    assert_busy(s, r);
    put(s, r);
    r.wall_ms = 99; /* if it were applied, it would be an event, and the node would be drained since now */
    assert_true(state_is_idle(s, &r, &answer));
    assert_err(OK, answer.err);
    assert_int_equal(1, answer.node);
    r.node_admin.drained = "memory is replaced";
    assert_busy(s, r);
    r.node_admin.drained = NULL;
    assert_busy(s, r);
    put(s, r);
    assert_idle(s, r);
    state_free(s);
}

TEST(nodes_that_have_joined_or_left_already)
{
    struct state *s = fresh();
    struct record left = {.kind = RECORD_NODE_LEFT, .node_left = {.name = "a"}};
    assert_idle(s, left);
    assert_busy(s, node("a", 1, 0, 5));
    put(s, node("a", 1, 0, 5));
    assert_busy(s, left);
    assert_idle(s, node("a", 1, 0, 6));
    assert_busy(s, node("a", 2, 0, 6)); /* it is refused, and that is the log's decision */
    struct record again = node("a", 1, 0, 7);
    for (int i = 0; i < 3; i++) { /* one thing is new each time */
        again.node.address = "10.0.0.2:7811";
        again.node.domain = i < 1 ? again.node.domain : "";
        memset(again.node.public_key, i < 2 ? 0 : 7, sizeof(again.node.public_key));
        assert_busy(s, again);
        put(s, again);
        assert_idle(s, again);
    }
    put(s, left);
    assert_idle(s, left);
    state_free(s);
}

/* The answers to these must be in the log. */
TEST(other_records_are_never_idle)
{
    struct state *s = fresh();
    assert_busy(s, submit("name: x\n", 1, 5));
    assert_busy(s, key(1, KEY_ADDED, 1));
    assert_busy(s, token(9, 1000, 1));
    put(s, token(9, 1000, 1));
    assert_busy(s, token(9, 1000, 0));
    state_free(s);
}

TEST(a_snapshot_contains_the_cluster)
{
    struct state *s = fresh(), *back = fresh();
    struct buf bytes = {0};
    char name[16];
    put(s, key(1, KEY_ADDED, 1));
    put(s, key(2, KEY_ADDED, 2));
    put(s, key(2, KEY_USED, 0));
    put(s, token(77, 1000, 9));
    for (int i = 0; i < 21; i++) {
        snprintf(name, sizeof(name), "n%02d", (i * 8) % 21);
        put(s, node(name, (uint8_t)i, i % 3 ? 0 : 77, 200 + i));
    }
    struct record r = {.kind = RECORD_NODE_ADMIN, .wall_ms = 30, .node_admin = {"n07", "why"}};
    put(s, r);
    assert_ok(state_snapshot(s, &bytes));
    assert_ok(state_restore(back, bytes.data, bytes.len));
    assert_same_state(s, back);
    assert_int_equal(21, state_cluster(back)->n_nodes);
    assert_int_equal(22, state_cluster(back)->next_node);
    assert_int_equal(2, state_cluster(back)->tokens[0].uses);
    assert_int_equal(2, state_cluster(back)->key_used);
    assert_string_equal("why", state_node_find(back, "n07")->drained);
    /* A damaged byte leads to an error or another value, never to a crash. */
    for (size_t i = 0; i < bytes.len; i++) {
        bytes.data[i] ^= 0x41;
        struct state *other = fresh();
        err_t err = state_restore(other, bytes.data, bytes.len);
        assert_true(err == OK || err == ERR_CORRUPT || err == ERR_UNSUPPORTED);
        state_free(other);
        bytes.data[i] ^= 0x41;
    }
    buf_fini(&bytes);
    state_free(s);
    state_free(back);
}
