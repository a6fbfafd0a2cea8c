/* The record codec: bytes of records that are in existing logs, and bytes that are no valid record. */
#include "daemon/control/state/features.h"
#include "tests/lib/example.h"

#include <math.h>

static void assert_bytes(const struct record *r, const uint8_t *golden, size_t len)
{
    struct buf bytes = {0};
    assert_ok(record_encode(r, &bytes));
    if (bytes.len != len || memcmp(bytes.data, golden, len) != 0) {
        for (size_t i = 0; i < bytes.len; i++)
            print_error("0x%02x, ", bytes.data[i]);
        fail_msg("the bytes of a record have changed: old logs cannot be read");
    }
    buf_fini(&bytes);
}

/* docs/formats/replicated-log.md's example: 39 bytes. */
static uint8_t golden_submitted[39];

static void read_golden(void)
{
    assert_int_equal(
        example_bytes("formats/replicated-log.md", "submitted", golden_submitted, sizeof(golden_submitted)),
        sizeof(golden_submitted));
}

TEST(submitted_is_golden)
{
    read_golden();
    struct record r = {.kind = RECORD_SUBMITTED, .wall_ms = 1000, .has_request = true};
    for (int i = 0; i < REQUEST_ID_BYTES; i++)
        r.request_id[i] = (uint8_t)i;
    r.submitted.spec = "name: x";
    r.submitted.parent = 3;
    r.submitted.uid = 1000;
    assert_bytes(&r, golden_submitted, sizeof(golden_submitted));
    struct record back;
    assert_ok(record_decode(golden_submitted, sizeof(golden_submitted), &back));
    assert_int_equal(back.kind, RECORD_SUBMITTED);
    assert_int_equal(back.wall_ms, 1000);
    assert_true(back.has_request);
    assert_memory_equal(back.request_id, r.request_id, REQUEST_ID_BYTES);
    assert_string_equal(back.submitted.spec, "name: x");
    assert_int_equal(back.submitted.parent, 3);
    record_fini(&back);
}

/* An incident with every field that has a number in proto/log.proto, encoded by hand from these numbers. */
TEST(incident_is_golden)
{
    static const uint8_t golden[] = {0x08, 0x01, 0x10, 0x02, 0x82, 0x01, 0x4b, 0x08, 0x04, 0x10, 0x02, 0x18, 0x63, 0x22,
                                     0x04, 0x73, 0x65, 0x65, 0x6e, 0x2a, 0x07, 0x64, 0x65, 0x63, 0x69, 0x64, 0x65, 0x64,
                                     0x31, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xf8, 0x3f, 0x39, 0x00, 0x00, 0x00, 0x00,
                                     0x00, 0x00, 0x04, 0x40, 0x41, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xe0, 0x3f, 0x49,
                                     0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xf0, 0x3f, 0x51, 0x00, 0x00, 0x00, 0x00, 0x00,
                                     0x00, 0xf0, 0x3f, 0x58, 0x0c, 0x62, 0x03, 0x6c, 0x6f, 0x67, 0x68, 0x03};
    struct record r = {.kind = RECORD_INCIDENT, .job = 4, .wall_ms = 2}, back;
    r.incident = incident_none;
    r.incident.epoch = 2;
    r.incident.wall_ms = 99;
    r.incident.seen = "seen";
    r.incident.decided = "decided";
    r.incident.detect_ms = 1.5;
    r.incident.recover_ms = 2.5;
    r.incident.restart_ms = 0.5;
    r.incident.load_ms = r.incident.step_ms = 1;
    r.incident.lost_steps = 12;
    r.incident.log = "log";
    r.incident.restarts = 3;
    assert_bytes(&r, golden, sizeof(golden));
    assert_ok(record_decode(golden, sizeof(golden), &back));
    assert_true(back.incident.epoch == 2 && back.incident.wall_ms == 99 && back.incident.restart_ms == 0.5);
    assert_true(back.incident.lost_steps == 12 && back.incident.restarts == 3);
    record_fini(&back);
}

TEST(unknown_numbers_stay_unknown)
{
    struct record r = {.kind = RECORD_INCIDENT, .job = 4, .wall_ms = 2}, back;
    r.incident = incident_none;
    r.incident.epoch = 2;
    r.incident.wall_ms = 99;
    r.incident.seen = "seen";
    r.incident.decided = "decided";
    r.incident.detect_ms = 1.5;
    r.incident.restart_ms = 2.5;
    r.incident.log = "its last words";
    struct buf bytes = {0};
    assert_ok(record_encode(&r, &bytes));
    assert_ok(record_decode(bytes.data, bytes.len, &back));
    assert_int_equal(back.kind, RECORD_INCIDENT);
    assert_int_equal(back.job, 4);
    assert_true(back.incident.detect_ms == 1.5);
    assert_true(isnan(back.incident.recover_ms));
    assert_true(back.incident.restart_ms == 2.5);
    assert_true(isnan(back.incident.load_ms) && isnan(back.incident.step_ms));
    assert_int_equal(-1, back.incident.lost_steps);
    assert_int_equal(-1, back.incident.restarts);
    assert_string_equal(back.incident.decided, "decided");
    assert_string_equal(back.incident.log, "its last words");
    record_fini(&back);
    buf_fini(&bytes);
}

TEST(newer_version_is_refused_as_such)
{
    read_golden();
    uint8_t bytes[sizeof(golden_submitted)];
    struct record back;
    memcpy(bytes, golden_submitted, sizeof(bytes));
    bytes[1] = (uint8_t)(features_newest() + 1);
    assert_err(ERR_UNSUPPORTED, record_decode(bytes, sizeof(bytes), &back));
}

TEST(every_truncation_is_refused)
{
    read_golden();
    struct record back;
    for (size_t n = 0; n < sizeof(golden_submitted); n++)
        assert_err(ERR_CORRUPT, record_decode(golden_submitted, n, &back));
}

TEST(values_are_checked)
{
    struct record back;
    static const uint8_t desired_9[] = {0x08, 0x01, 0x10, 0x05, 0x5a, 0x04, 0x08, 0x01, 0x10, 0x09};
    static const uint8_t end_0[] = {0x08, 0x01, 0x10, 0x05, 0x62, 0x04, 0x08, 0x01, 0x10, 0x00};
    static const uint8_t no_kind[] = {0x08, 0x01, 0x10, 0x05};
    static const uint8_t short_id[] = {0x08, 0x01, 0x10, 0x05, 0x1a, 0x01, 0x07, 0x5a, 0x04, 0x08, 0x01, 0x10, 0x02};
    assert_err(ERR_CORRUPT, record_decode(desired_9, sizeof(desired_9), &back));
    assert_err(ERR_CORRUPT, record_decode(end_0, sizeof(end_0), &back));
    assert_err(ERR_CORRUPT, record_decode(no_kind, sizeof(no_kind), &back));
    assert_err(ERR_CORRUPT, record_decode(short_id, sizeof(short_id), &back));
}

TEST(size_is_bounded)
{
    struct record r = {.kind = RECORD_SUBMITTED};
    struct buf bytes = {0};
    char *spec = malloc(RECORD_MAX_BYTES + 1);
    memset(spec, 'x', RECORD_MAX_BYTES);
    spec[RECORD_MAX_BYTES] = '\0';
    r.submitted.spec = spec;
    assert_err(ERR_LIMIT, record_encode(&r, &bytes));
    spec[RECORD_MAX_BYTES - 100] = '\0';
    assert_ok(record_encode(&r, &bytes));
    free(spec);
    buf_fini(&bytes);
}

TEST(no_such_kind)
{
    struct record r = {.kind = (enum record_kind)99};
    struct buf bytes = {0};
    assert_err(ERR_INVALID, record_encode(&r, &bytes));
}

/* A record that cannot be decoded would end every control that applies it. */
TEST(unreadable_record_is_not_written)
{
    struct record r = {.kind = RECORD_CHECKPOINT, .job = 1};
    struct buf bytes = {0};
    assert_ok(buf_append(&bytes, "before", 6));
    r.checkpoint = (struct state_checkpoint){.step = 1, .path = "/c/step-1", .bytes = -1};
    assert_err(ERR_INVALID, record_encode(&r, &bytes));
    r.checkpoint = (struct state_checkpoint){.step = -1, .path = "/c/step-1", .bytes = 1};
    assert_err(ERR_INVALID, record_encode(&r, &bytes));
    assert_int_equal(6, bytes.len);
    r.checkpoint.step = 1;
    assert_ok(record_encode(&r, &bytes));
    buf_fini(&bytes);
}
