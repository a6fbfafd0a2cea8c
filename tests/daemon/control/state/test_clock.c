/* The clock of the cluster: it follows records and this machine's monotonic clock, and no date. */
#include "common/base/clock.h"
#include "common/base/file.h"
#include "daemon/control/state/clock.h"
#include "daemon/control/state/features.h"
#include "daemon/control/state/replica.h"
#include "tests/lib/test.h"

#include <unistd.h>

#define HOUR_MS (3600 * INT64_C(1000))
#define SLACK_MS 20000 /* a busy machine */

static void assert_about(int64_t expected, int64_t ms)
{
    assert_in_range(ms, expected, expected + SLACK_MS);
}

TEST(it_begins_and_runs)
{
    struct state_clock c;
    state_clock_open(&c, test_tmpdir());
    assert_about(1, state_clock_ms(&c));
    int64_t first = state_clock_ms(&c);
    usleep(30000);
    assert_in_range(state_clock_ms(&c) - first, 29, SLACK_MS);
}

/* Records arrive late, and those of a slower leader are behind: the clock never goes back. */
TEST(it_follows_records_and_never_goes_back)
{
    struct state_clock c;
    state_clock_open(&c, test_tmpdir());
    state_clock_seen(&c, 5 * HOUR_MS);
    assert_about(5 * HOUR_MS, state_clock_ms(&c));
    state_clock_seen(&c, 4 * HOUR_MS);
    state_clock_seen(&c, 0); /* of an older version */
    assert_about(5 * HOUR_MS, state_clock_ms(&c));
    state_clock_seen(&c, 6 * HOUR_MS);
    assert_about(6 * HOUR_MS, state_clock_ms(&c));
}

/* dtd-control exits and starts again an hour after the newest record: the hour counts. */
TEST(a_restart_on_this_boot_continues)
{
    struct state_clock c, again;
    state_clock_open(&c, test_tmpdir());
    if (!c.boot[0])
        TEST_SKIP("this kernel has no boot id");
    state_clock_seen(&c, 2 * HOUR_MS);
    state_clock_save(&c);
    state_clock_open(&again, test_tmpdir());
    state_clock_seen(&again, 1 * HOUR_MS);
    assert_about(2 * HOUR_MS, state_clock_ms(&again));
}

static void write_file(const char *text)
{
    char path[512];
    snprintf(path, sizeof(path), "%s/clock", test_tmpdir());
    assert_ok(file_replace(path, text, strlen(text), 0600));
}

/* A clock that has been read wrong would be recorded, and no node would ever be behind it again. */
TEST(a_changed_bit_makes_no_clock)
{
    struct state_clock c;
    char path[300];
    struct buf text = {0};
    snprintf(path, sizeof(path), "%s/clock", test_tmpdir());
    state_clock_open(&c, test_tmpdir());
    if (!c.boot[0])
        TEST_SKIP("this kernel has no boot id");
    state_clock_seen(&c, 2 * HOUR_MS);
    state_clock_save(&c);
    assert_ok(file_read(path, 200, &text));
    for (size_t bit = 0; bit < 8 * text.len; bit++) {
        text.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_ok(file_replace(path, text.data, text.len, 0600));
        text.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        state_clock_open(&c, test_tmpdir());
        assert_about(1, state_clock_ms(&c));
    }
    for (size_t len = 0; len < text.len; len++) {
        assert_ok(file_replace(path, text.data, len, 0600));
        state_clock_open(&c, test_tmpdir());
        assert_about(1, state_clock_ms(&c));
    }
    buf_fini(&text);
}

TEST(a_file_of_another_boot_or_without_sense_is_ignored)
{
    struct state_clock c;
    char text[128];
    state_clock_open(&c, test_tmpdir());
    snprintf(text, sizeof(text), "%s 99999999999", c.boot); /* torn: no newline */
    const char *const bad[] = {"", "x", "0f0f0f0f-0000-0000-0000-000000000000 99999999999\n", text};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        write_file(bad[i]);
        state_clock_open(&c, test_tmpdir());
        assert_about(1, state_clock_ms(&c));
    }
}

static int64_t stamped(struct state *s)
{
    struct state_clock c;
    struct buf bytes = {0};
    struct record back, r = {.kind = RECORD_DESIRED, .wall_ms = 5, .job = 1, .desired = {.desired = DESIRED_CANCELED}};
    const struct replica replica = {.state = s, .clock = &c};
    state_clock_open(&c, test_tmpdir());
    state_clock_seen(&c, HOUR_MS);
    assert_ok(replica_encode(&replica, &r, &bytes));
    assert_ok(record_decode(bytes.data, bytes.len, &back));
    int64_t ret = back.clock_ms;
    record_fini(&back);
    buf_fini(&bytes);
    return ret;
}

/* A voter of the version before would go by dates, and its state would differ. */
TEST(records_have_it_when_all_nodes_understand_it)
{
    struct state *s;
    struct state_result result;
    struct record r = {.kind = RECORD_NODE, .wall_ms = 5, .node = {.name = "a", .address = "a:1", .domain = ""}};
    struct record rises = {.kind = RECORD_CLUSTER_VERSION,
                           .cluster_version = {.version = FEATURE_CLOCK, .next_node = 2}};
    memset(r.node.instance, 7, sizeof(r.node.instance));
    assert_ok(state_new(&s));
    assert_about(HOUR_MS, stamped(s));
    assert_ok(state_apply(s, &r, &result));
    assert_int_equal(1, state_version(s));
    assert_int_equal(0, stamped(s));
    assert_ok(state_apply(s, &rises, &result));
    assert_err(OK, result.err);
    assert_about(HOUR_MS, stamped(s));
    state_free(s);
}
