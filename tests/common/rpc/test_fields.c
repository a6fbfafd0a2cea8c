/* Structs with a table of fields: through messages and back, with fields that the message or this version does not
 * have. */
#include "common/rpc/field_codec.h"
#include "common/rpc/incident.h"
#include "proto/log.pb-c.h"
#include "tests/lib/test.h"

#include <math.h>
#include <stdlib.h>

/* A table of a newer version: rows of all kinds, of which the message has only `epoch` and `seen`. */
#define NEWER_FIELDS(X)                 \
    X(UINT, epoch, FIELD_REQUIRED)      \
    X(TEXT, seen, FIELD_OPTIONAL)       \
    X(TEXT, added_text, FIELD_OPTIONAL) \
    X(INT, added_int, FIELD_OPTIONAL)   \
    X(UINT, added_uint, FIELD_OPTIONAL) \
    X(REAL, added_real, FIELD_OPTIONAL) \
    X(BOOL, added_bool, FIELD_OPTIONAL) \
    X(INT, added_internal, FIELD_INTERNAL)

struct newer {
    NEWER_FIELDS(FIELD_MEMBER)
    struct field_rest rest;
};
#define ROW(...) FIELD_ROW(struct newer, __VA_ARGS__)
static const struct field newer_rows[] = {NEWER_FIELDS(ROW)};
static const struct field_table newer_fields = {newer_rows, sizeof(newer_rows) / sizeof(newer_rows[0]),
                                                sizeof(struct newer), offsetof(struct newer, rest)};
static const struct newer newer_none = {NEWER_FIELDS(FIELD_NONE)};

static struct newer newer_filled(void)
{
    struct newer n = newer_none;
    n.epoch = UINT64_MAX;
    n.seen = "seen";
    n.added_text = "words";
    n.added_int = INT64_MAX;
    n.added_uint = UINT64_MAX;
    n.added_real = 2.5;
    n.added_bool = true;
    n.added_internal = 7;
    return n;
}

static void assert_same(const struct newer *a, const struct newer *b)
{
    assert_true(a->epoch == b->epoch && a->added_int == b->added_int && a->added_uint == b->added_uint);
    assert_true(a->added_real == b->added_real && a->added_bool == b->added_bool);
    assert_string_equal(a->seen, b->seen);
    assert_string_equal(a->added_text, b->added_text);
}

static Dtd__RecordIncident *through_bytes(const Dtd__RecordIncident *m)
{
    uint8_t bytes[1024];
    assert_true(dtd__record_incident__get_packed_size(m) <= sizeof(bytes));
    size_t n = dtd__record_incident__pack(m, bytes);
    Dtd__RecordIncident *ret = dtd__record_incident__unpack(NULL, n, bytes);
    assert_non_null(ret);
    return ret;
}

static Dtd__RecordIncident *newer_sent(const struct newer *n, enum field_reader reader)
{
    static char empty[] = "";
    Dtd__RecordIncident m = DTD__RECORD_INCIDENT__INIT;
    m.seen = m.decided = empty;
    assert_ok(fields_encode(&newer_fields, n, reader, &m.base));
    Dtd__RecordIncident *ret = through_bytes(&m);
    fields_encoded_fini(&m.base);
    return ret;
}

TEST(every_kind_comes_back)
{
    const struct newer in = newer_filled();
    struct newer out;
    Dtd__RecordIncident *m = newer_sent(&in, FIELDS_FOR_DAEMONS);
    assert_true(m->epoch == UINT64_MAX);
    assert_int_equal(6, m->n_more);
    fields_decode(&newer_fields, &m->base, &out);
    assert_same(&in, &out);
    assert_int_equal(7, out.added_internal);
    dtd__record_incident__free_unpacked(m, NULL);
}

TEST(absent_fields_are_not_sent_and_come_back_absent)
{
    struct newer out = newer_filled();
    Dtd__RecordIncident *m = newer_sent(&newer_none, FIELDS_FOR_DAEMONS);
    assert_int_equal(0, m->n_more);
    fields_decode(&newer_fields, &m->base, &out);
    for (int i = 2; i < newer_fields.n; i++)
        assert_true(field_absent(&newer_fields.field[i], &out));
    dtd__record_incident__free_unpacked(m, NULL);
}

TEST(clients_do_not_get_internal_fields)
{
    const struct newer in = newer_filled();
    struct newer out;
    Dtd__RecordIncident *m = newer_sent(&in, FIELDS_FOR_CLIENTS);
    fields_decode(&newer_fields, &m->base, &out);
    assert_same(&in, &out);
    assert_true(out.added_internal < 0);
    dtd__record_incident__free_unpacked(m, NULL);
}

/* This version copies the struct after the message is gone, as the state does, and sends it on. */
TEST(an_older_version_passes_on_the_fields_of_a_newer_one)
{
    const struct newer in = newer_filled();
    struct newer out;
    struct incident borrowed, copy;
    Dtd__RecordIncident *m = newer_sent(&in, FIELDS_FOR_DAEMONS), again = DTD__RECORD_INCIDENT__INIT;
    fields_decode(&incident_fields, &m->base, &borrowed);
    assert_ok(fields_copy(&incident_fields, &borrowed, &copy));
    dtd__record_incident__free_unpacked(m, NULL);
    assert_string_equal("seen", copy.seen);
    assert_int_equal(6, copy.rest.n);
    assert_ok(fields_encode(&incident_fields, &copy, FIELDS_FOR_DAEMONS, &again.base));
    m = through_bytes(&again);
    fields_encoded_fini(&again.base);
    fields_fini(&incident_fields, &copy);
    fields_decode(&newer_fields, &m->base, &out);
    assert_same(&in, &out);
    assert_int_equal(7, out.added_internal);
    dtd__record_incident__free_unpacked(m, NULL);
}

TEST(a_value_of_the_wrong_kind_is_absent)
{
    struct newer out;
    Dtd__FieldValue v = DTD__FIELD_VALUE__INIT, *list = &v;
    Dtd__RecordIncident m = DTD__RECORD_INCIDENT__INIT;
    char name[] = "added_real";
    v.name = name;
    v.has_whole = true;
    v.whole = 5;
    m.n_more = 1;
    m.more = &list;
    fields_decode(&newer_fields, &m.base, &out);
    assert_true(isnan(out.added_real));
    assert_true(out.added_int < 0);
}

TEST(a_metric_comes_back_with_its_traffic)
{
    struct metric in = metric_none;
    Dtd__Metric m;
    in.step = 3;
    in.loss = NAN;
    in.test_loss = 2.5;
    in.workers = 4;
    in.epoch = 9;
    in.skipped = true;
    in.traffic = (struct traffic){2, {2, 20}, {5, 1234567890123456}};
    assert_ok(metric_encode(&in, &m));
    assert_int_equal(0, m.n_more);
    assert_true(m.has_test_loss && !m.has_valid_loss && m.has_skipped);
    struct metric out = metric_decode(&m);
    assert_true(out.step == 3 && isnan(out.loss) && isnan(out.valid_loss) && out.test_loss == 2.5);
    assert_true(out.workers == 4 && out.epoch == 9 && out.skipped);
    assert_true(out.traffic.n == 2 && out.traffic.axes[1] == 20 && out.traffic.bytes[1] == 1234567890123456);
    uint32_t axes[] = {0, 1u << AXIS_COUNT, 1};
    int64_t bytes[] = {1, 2, 3};
    m.traffic_axes = axes; /* sets that do not exist */
    m.traffic_bytes = bytes;
    m.n_traffic_axes = m.n_traffic_bytes = 3;
    out = metric_decode(&m);
    assert_true(out.traffic.n == 1 && out.traffic.axes[0] == 1 && out.traffic.bytes[0] == 3);
    fields_encoded_fini(&m.base);
}

/* A metric with every field that has a number in proto/client.proto, encoded by hand from these numbers. */
TEST(metric_is_golden)
{
    static const uint8_t golden[] = {0x08, 0x07, 0x11, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xf4, 0x3f, 0x19, 0x00, 0x00,
                                     0x00, 0x00, 0x00, 0x00, 0xe0, 0x3f, 0x21, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0xd0,
                                     0x3f, 0x29, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x40, 0x31, 0x00, 0x00, 0x00,
                                     0x00, 0x00, 0x00, 0x10, 0x40, 0x38, 0x02, 0x40, 0x09, 0x49, 0x00, 0x00, 0x00, 0x00,
                                     0x00, 0x00, 0x20, 0x40, 0x50, 0xe8, 0x07, 0x58, 0x01, 0x62, 0x02, 0x02, 0x14, 0x6a,
                                     0x02, 0x05, 0x06, 0x71, 0x00, 0x00, 0x00, 0x00, 0x00, 0x00, 0x30, 0x40};
    const struct metric in = {.step = 7,
                              .loss = 1.25,
                              .valid_loss = 8,
                              .test_loss = 16,
                              .grad_norm = 0.5,
                              .lr = 0.25,
                              .tokens_per_s = 2,
                              .step_s = 4,
                              .expert_load = NAN,
                              .expert_entropy = NAN,
                              .expert_gap = NAN,
                              .expert_dropped = -1,
                              .targets = -1,
                              .expert_rounds = -1,
                              .aux_loss = NAN,
                              .z_loss = NAN,
                              .mfu = NAN,
                              .workers = 2,
                              .epoch = 9,
                              .skipped = true,
                              .wall_ms = 1000,
                              .traffic = {2, {2, 20}, {5, 6}}};
    Dtd__Metric m;
    uint8_t bytes[256];
    assert_ok(metric_encode(&in, &m));
    assert_int_equal(sizeof(golden), dtd__metric__get_packed_size(&m));
    dtd__metric__pack(&m, bytes);
    assert_memory_equal(golden, bytes, sizeof(golden));
    fields_encoded_fini(&m.base);
}
