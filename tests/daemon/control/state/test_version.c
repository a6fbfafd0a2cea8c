/* The cluster version: when it rises, what it refuses, and that older dtds refuse what is newer than they are. */
#include "daemon/control/state/features.h"
#include "daemon/control/state/replica.h"
#include "tests/lib/example.h"

#include <string.h>

/* A kind of record that only dtds of version NEXT have: a drain with this reason. */
#define NEXT (FEATURES_NEWEST + 1)
#define NEXT_REASON "next"

uint32_t __real_feature_of_record(const struct record *r);
uint32_t __wrap_feature_of_record(const struct record *r);
uint32_t __real_features_newest(void);
uint32_t __wrap_features_newest(void);

static uint32_t own = FEATURES_NEWEST;

uint32_t __wrap_features_newest(void)
{
    return own;
}

uint32_t __wrap_feature_of_record(const struct record *r)
{
    bool is_next = r->kind == RECORD_NODE_ADMIN && r->node_admin.drained && !strcmp(r->node_admin.drained, NEXT_REASON);
    return is_next ? NEXT : __real_feature_of_record(r);
}

static struct state *fresh(void)
{
    struct state *s;
    assert_ok(state_new(&s));
    return s;
}

static err_t apply(struct state *s, const struct record *r)
{
    struct state_result result;
    assert_ok(state_apply(s, r, &result));
    return result.err;
}

static err_t add_node(struct state *s, const char *name, uint32_t newest)
{
    struct record r = {.kind = RECORD_NODE, .node = {.name = name, .address = "h:1", .domain = "", .newest = newest}};
    return apply(s, &r);
}

static struct record rise(uint32_t version, uint64_t next_node)
{
    return (struct record){.kind = RECORD_CLUSTER_VERSION,
                           .wall_ms = 1000,
                           .cluster_version = {.version = version, .next_node = next_node}};
}

TEST(record_is_golden)
{
    uint8_t golden[16];
    struct record r = rise(2, 4), back;
    struct buf bytes = {0};
    assert_int_equal(example_bytes("formats/replicated-log.md", "cluster_version", golden, sizeof(golden)), 12);
    assert_ok(record_encode(&r, &bytes));
    assert_int_equal(bytes.len, 12);
    assert_memory_equal(bytes.data, golden, 12);
    assert_ok(record_decode(golden, 12, &back));
    assert_int_equal(back.cluster_version.version, 2);
    assert_int_equal(back.cluster_version.next_node, 4);
    record_fini(&back);
    buf_fini(&bytes);
}

TEST(it_rises_once_all_nodes_are_counted)
{
    struct state *s = fresh();
    assert_int_equal(add_node(s, "a", 2), OK);
    assert_int_equal(state_version(s), 1);
    struct record early = rise(2, 2);
    assert_int_equal(add_node(s, "b", 1), OK); /* it joins after the leader has counted */
    assert_int_equal(apply(s, &early), ERR_STALE);
    assert_int_equal(state_version(s), 1);
    struct record now = rise(2, 3);
    assert_int_equal(apply(s, &now), OK);
    assert_int_equal(state_version(s), 2);
    assert_int_equal(apply(s, &now), ERR_STALE);
    state_free(s);
}

TEST(an_older_node_cannot_join)
{
    struct state *s = fresh();
    struct record r = rise(2, 2);
    assert_int_equal(add_node(s, "a", 2), OK);
    assert_int_equal(apply(s, &r), OK);
    assert_int_equal(add_node(s, "b", 1), ERR_UNSUPPORTED);
    assert_null(state_node_find(s, "b"));
    assert_int_equal(add_node(s, "b", 2), OK);
    assert_int_equal(add_node(s, "b", 1), ERR_UNSUPPORTED); /* nor come back with an older dtd */
    state_free(s);
}

TEST(a_node_alone_has_its_newest_version)
{
    struct state *s = fresh();
    assert_int_equal(state_version(s), FEATURES_NEWEST);
    state_free(s);
}

TEST(snapshots_and_changes_keep_it)
{
    struct state *s = fresh(), *copy = fresh(), *follower = fresh();
    struct buf all = {0}, first = {0}, change = {0};
    struct record r = rise(2, 2);
    assert_int_equal(add_node(s, "a", 2), OK);
    assert_ok(state_cluster_snapshot(s, &first));
    assert_ok(state_restore(follower, first.data, first.len));
    assert_int_equal(state_version(follower), 1);
    assert_int_equal(apply(s, &r), OK);
    assert_ok(state_cluster_change(follower, s, &change));
    assert_ok(state_cluster_merge(follower, change.data, change.len));
    assert_int_equal(state_version(follower), 2);
    assert_ok(state_snapshot(s, &all));
    assert_ok(state_restore(copy, all.data, all.len));
    assert_int_equal(state_version(copy), 2);
    buf_fini(&all);
    buf_fini(&first);
    buf_fini(&change);
    state_free(s);
    state_free(copy);
    state_free(follower);
}

/* A dtd that is put back to an older version does not start, instead of misreading the state. */
TEST(an_older_dtd_refuses_a_newer_state)
{
    struct state *s = fresh(), *old = fresh();
    struct buf all = {0}, change = {0};
    struct record r = rise(NEXT, 2);
    assert_int_equal(add_node(s, "a", NEXT), OK);
    assert_int_equal(apply(s, &r), OK);
    assert_ok(state_snapshot(s, &all));
    assert_ok(state_cluster_change(old, s, &change));
    assert_err(ERR_UNSUPPORTED, state_restore(old, all.data, all.len));
    assert_err(ERR_UNSUPPORTED, state_cluster_merge(old, change.data, change.len));
    assert_int_equal(state_cluster(old)->n_nodes, 0);
    own = NEXT;
    assert_ok(state_restore(old, all.data, all.len));
    buf_fini(&all);
    buf_fini(&change);
    state_free(s);
    state_free(old);
}

TEST(an_older_dtd_refuses_a_newer_record)
{
    struct record version = rise(NEXT, 2), back;
    struct record next = {.kind = RECORD_NODE_ADMIN, .node_admin = {.name = "a", .drained = NEXT_REASON}};
    struct buf a = {0}, b = {0};
    own = NEXT;
    assert_ok(record_encode(&version, &a));
    assert_ok(record_encode(&next, &b));
    own = FEATURES_NEWEST;
    assert_err(ERR_UNSUPPORTED, record_decode(a.data, a.len, &back));
    assert_err(ERR_UNSUPPORTED, record_decode(b.data, b.len, &back));
    buf_fini(&a);
    buf_fini(&b);
}

TEST(nothing_is_recorded_before_the_version_has_risen)
{
    struct state_clock clock = {.runs = true};
    struct replica r = {.state = fresh(), .clock = &clock};
    struct buf bytes = {0};
    const struct record next = {.kind = RECORD_NODE_ADMIN, .node_admin = {.name = "a", .drained = NEXT_REASON}};
    const struct record old = {.kind = RECORD_NODE_ADMIN, .node_admin = {.name = "a", .drained = "other"}};
    struct record version = rise(NEXT, 2);
    own = NEXT;
    assert_int_equal(add_node(r.state, "a", NEXT), OK);
    assert_err(ERR_UNSUPPORTED, replica_encode(&r, &next, &bytes));
    assert_int_equal(bytes.len, 0);
    assert_ok(replica_encode(&r, &old, &bytes));
    assert_ok(replica_encode(&r, &version, &bytes));
    assert_int_equal(apply(r.state, &version), OK);
    assert_ok(replica_encode(&r, &next, &bytes));
    buf_fini(&bytes);
    state_free(r.state);
}
