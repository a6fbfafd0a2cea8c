/* A frozen state: another thread writes it while records change the state, and its bytes are the snapshot of the moment
 * in which it was frozen. The expected bytes were written at that moment, by state_snapshot. */
#include "daemon/control/state/state.h"
#include "tests/lib/test.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#define JOBS 12
#define SPEC_BYTES 5000 /* large enough to be borrowed */

static void put(struct state *s, const struct record *r)
{
    struct state_result result;
    assert_ok(state_apply(s, r, &result));
}

static void submit(struct state *s, int i)
{
    char spec[SPEC_BYTES];
    memset(spec, '#', sizeof(spec));
    memcpy(spec, "name: x\n", 8);
    spec[(i % 3 ? SPEC_BYTES : 100) - 1] = '\0'; /* some are copied */
    struct record r = {.kind = RECORD_SUBMITTED, .wall_ms = i, .clock_ms = i + 1, .has_request = true};
    memcpy(r.request_id, &i, sizeof(i));
    r.submitted.spec = spec;
    r.submitted.uid = 1000;
    put(s, &r);
}

/* A record of any kind that changes a job, or the nodes. */
static void change(struct state *s, uint32_t x, int i)
{
    static const struct state_member members[2][2] = {{{"a", 0}, {"a", 1}}, {{"b", 0}, {"a", 1}}};
    uint64_t job = 1 + (x >> 16) % (JOBS + 2);
    char path[32];
    struct record r[] = {
        {.kind = RECORD_DESIRED, .desired = {.desired = DESIRED_CANCELED}},
        {.kind = RECORD_ENDED, .ended = {.end = END_DONE, .reason = "because"}},
        {.kind = RECORD_EPOCH, .epoch = {.epoch = (uint64_t)i + 1, .members = members[i % 2], .n_members = 2}},
        {.kind = RECORD_CHECKPOINT, .checkpoint = {.step = i, .epoch = 1, .path = path, .loss = i % 2 ? NAN : 2.5}},
        {.kind = RECORD_CHECKPOINT_REMOVED, .removed = {.step = i - 20}},
        {.kind = RECORD_INCIDENT, .incident = incident_none},
        {.kind = RECORD_INCIDENT, .incident = incident_none},
        {.kind = RECORD_JOB_REMOVED},
        {.kind = RECORD_NODE, .node = {.name = path, .address = "10.0.0.1:7811", .domain = ""}},
    };
    struct record *one = &r[(x >> 8) % (sizeof(r) / sizeof(r[0]))];
    snprintf(path, sizeof(path), "p%d", i);
    r[5].incident.epoch = r[6].incident.epoch = 1;
    r[5].incident.wall_ms = i;
    r[5].incident.log = path;
    r[5].incident.seen = r[5].incident.decided = r[6].incident.seen = r[6].incident.decided = path;
    r[6].incident.is_start = true;
    one->wall_ms = i;
    one->clock_ms = i + 1;
    one->job = one->kind < RECORD_NODE || one->kind == RECORD_JOB_REMOVED ? job : 0;
    put(s, one);
}

static struct state *filled(void)
{
    struct state *s;
    assert_ok(state_new(&s));
    for (int i = 0; i < JOBS; i++)
        submit(s, i);
    return s;
}

struct freeze {
    struct state_frozen *frozen;
    struct buf expected;
    struct pieces pieces;
    err_t err;
    pthread_t thread;
};

static void begin(struct freeze *f, const struct state *s)
{
    *f = (struct freeze){0};
    assert_ok(state_snapshot(s, &f->expected));
    assert_ok(state_freeze(s, &f->frozen));
}

static void *write_pieces(void *arg)
{
    struct freeze *f = arg;
    f->err = state_frozen_write(f->frozen, &f->pieces);
    return NULL;
}

static void end(struct freeze *f)
{
    struct buf bytes = {0};
    assert_ok(f->err);
    for (size_t i = 0; i < f->pieces.n; i++)
        assert_ok(buf_append(&bytes, f->pieces.at[i].data, f->pieces.at[i].len));
    assert_int_equal(bytes.len, f->pieces.bytes);
    assert_int_equal(bytes.len, f->expected.len);
    assert_memory_equal(bytes.data, f->expected.data, bytes.len);
    buf_fini(&bytes);
    buf_fini(&f->expected);
    pieces_fini(&f->pieces);
    state_thaw(f->frozen);
}

TEST(records_do_not_change_a_frozen_state)
{
    struct state *s = filled(), *plain = filled();
    struct freeze f[3];
    uint32_t x = 1;
    for (int i = 0; i < 400; i++) {
        if (i % 100 == 50 && i < 300)
            begin(&f[i / 100], s);
        x = x * 1664525 + 1013904223;
        change(s, x, i);
        change(plain, x, i);
        if (i % 40 == 0) {
            submit(s, i + JOBS);
            submit(plain, i + JOBS);
        }
    }
    struct freeze now = {0};
    assert_ok(state_snapshot(plain, &now.expected)); /* as if nothing had been frozen */
    assert_ok(state_freeze(s, &now.frozen));
    for (int i = 0; i < 3; i++) {
        write_pieces(&f[i]);
        end(&f[i]);
    }
    write_pieces(&now);
    end(&now);
    state_free(s);
    state_free(plain);
}

TEST(a_frozen_state_outlives_the_state)
{
    struct state *s = filled();
    struct freeze f;
    begin(&f, s);
    state_free(s);
    write_pieces(&f);
    end(&f);
}

TEST(it_is_written_while_records_are_applied)
{
    struct state *s = filled();
    uint32_t x = 7;
    for (int round = 0; round < 20; round++) {
        struct freeze f;
        begin(&f, s);
        assert_int_equal(0, pthread_create(&f.thread, NULL, write_pieces, &f));
        for (int i = 0; i < 50; i++) {
            x = x * 1664525 + 1013904223;
            change(s, x, 50 * round + i);
        }
        assert_int_equal(0, pthread_join(f.thread, NULL));
        end(&f);
    }
    state_free(s);
}

TEST(long_texts_are_not_copied)
{
    struct state *s = filled();
    const struct state_job *const *jobs;
    struct freeze f;
    int n = state_jobs(s, &jobs), borrowed = 0;
    begin(&f, s);
    write_pieces(&f);
    for (size_t i = 0; i < f.pieces.n; i++)
        for (int k = 0; k < n; k++)
            borrowed += f.pieces.at[i].data == jobs[k]->spec;
    assert_int_equal(borrowed, JOBS * 2 / 3);
    end(&f);
    state_free(s);
}
