/* The id and the generation of the cluster: what a recovery changes, and what it leaves to the old voters. */
#include "daemon/control/state/state.h"
#include "tests/lib/test.h"

#include <string.h>

static const uint8_t instance[NODE_INSTANCE_BYTES] = {7};

/* Encoded and decoded, as in the log. */
static struct state_result put(struct state *s, const struct record *r)
{
    struct buf bytes = {0};
    struct record back;
    struct state_result ret;
    assert_ok(record_encode(r, &bytes));
    assert_ok(record_decode(bytes.data, bytes.len, &back));
    assert_ok(state_apply(s, &back, &ret));
    record_fini(&back);
    buf_fini(&bytes);
    return ret;
}

static void put_node(struct state *s, const char *name)
{
    struct record r = {.kind = RECORD_NODE, .node = {.name = name, .address = "h:1", .domain = ""}};
    memcpy(r.node.instance, instance, sizeof(instance));
    assert_ok(put(s, &r).err);
}

static void put_key(struct state *s, uint32_t version, enum state_key_step step)
{
    struct record r = {.kind = RECORD_KEY, .key = {.version = version, .step = step}};
    memset(r.key.secret, (int)version, sizeof(r.key.secret));
    assert_ok(put(s, &r).err);
}

static uint64_t submit(struct state *s)
{
    struct record r = {.kind = RECORD_SUBMITTED, .submitted = {.spec = "a: 1"}};
    return put(s, &r).job;
}

static struct record lineage(uint64_t id, uint64_t generation, int64_t at_ms)
{
    return (struct record){
        .kind = RECORD_LINEAGE, .wall_ms = at_ms, .lineage = {.id = id, .generation = generation, .by = ""}};
}

static struct record recovery(uint64_t generation, uint32_t key, const uint64_t *gone, int n_gone)
{
    struct record r = lineage(0xabc, generation, 5000);
    r.lineage.by = "n1";
    r.lineage.uid = 12;
    r.lineage.gone = gone;
    r.lineage.n_gone = n_gone;
    r.lineage.key = key;
    memset(r.lineage.secret, 0x42, sizeof(r.lineage.secret));
    return r;
}

/* n1, n2, n3 with key 1, a token, id 0xabc, and job 1. */
static struct state *cluster(void)
{
    struct state *s;
    struct record token = {.kind = RECORD_TOKEN, .token = {.id = 9, .expires_ms = 99999, .uses = 1}};
    struct record first = lineage(0xabc, 1, 1000);
    assert_ok(state_new(&s));
    put_key(s, 1, KEY_ADDED);
    put_node(s, "n1");
    put_node(s, "n2");
    put_node(s, "n3");
    assert_ok(put(s, &token).err);
    assert_ok(put(s, &first).err);
    assert_int_equal(1, submit(s));
    return s;
}

static struct state *copied(const struct state *s)
{
    struct state *ret;
    struct buf bytes = {0};
    assert_ok(state_snapshot(s, &bytes));
    assert_ok(state_new(&ret));
    assert_ok(state_restore(ret, bytes.data, bytes.len));
    buf_fini(&bytes);
    return ret;
}

TEST(a_cluster_keeps_its_first_id)
{
    struct state *s = cluster();
    struct record again = lineage(0xabc, 1, 2000), other = lineage(0xdef, 2, 2000);
    assert_err(ERR_STALE, put(s, &again).err);
    assert_err(ERR_STALE, put(s, &other).err); /* of another cluster */
    const struct state_lineage *l = &state_cluster(s)->lineage;
    assert_int_equal(0xabc, l->id);
    assert_int_equal(1, l->generation);
    assert_int_equal(1000, l->at_ms);
    assert_int_equal(2, submit(s)); /* the first generation leaves no gap */
    state_free(s);
}

TEST(a_recovery_removes_what_the_lost_voters_know)
{
    static const uint64_t gone[] = {1, 3};
    struct state *s = cluster();
    struct record r = recovery(2, 2, gone, 2);
    assert_ok(put(s, &r).err);
    assert_err(ERR_STALE, put(s, &r).err);
    const struct state_cluster *c = state_cluster(s);
    assert_int_equal(1, c->n_nodes);
    assert_string_equal("n2", c->nodes[0].name);
    assert_int_equal(0, c->n_tokens);
    assert_int_equal(2, c->n_keys);
    assert_int_equal(1, c->key_used); /* until all nodes have the new one */
    assert_int_equal(2, c->lineage.generation);
    assert_int_equal(5000, c->lineage.at_ms);
    assert_int_equal(12, c->lineage.uid);
    assert_string_equal("n1", c->lineage.by);
    assert_int_equal(1 + 1000 + 1, submit(s)); /* the lost voters may have given the numbers between */
    state_free(s);
}

TEST(a_key_of_the_generation_before_is_retired)
{
    struct state *s = cluster();
    struct record r = recovery(2, 2, NULL, 0);
    assert_ok(put(s, &r).err);
    put_key(s, 2, KEY_USED);
    put_key(s, 1, KEY_DROPPED);
    put_key(s, 3, KEY_ADDED);
    put_key(s, 3, KEY_USED);
    put_key(s, 2, KEY_DROPPED); /* of this generation: rotated, and forgotten */
    const struct state_cluster *c = state_cluster(s);
    assert_int_equal(1, c->n_keys);
    assert_int_equal(1, c->n_retired);
    assert_int_equal(1, c->retired[0].version);
    assert_int_equal(1, c->retired[0].secret[31]);
    state_free(s);
}

TEST(many_recoveries_keep_the_newest_retired_keys)
{
    struct state *s = cluster();
    for (uint32_t i = 2; i < 30; i++) {
        struct record r = recovery(i, i, NULL, 0);
        assert_ok(put(s, &r).err);
        put_key(s, i, KEY_USED);
        put_key(s, i - 1, KEY_DROPPED);
    }
    const struct state_cluster *c = state_cluster(s);
    assert_int_equal(1, c->n_keys);
    assert_int_equal(STATE_MAX_RETIRED, c->n_retired);
    assert_int_equal(28, c->retired[STATE_MAX_RETIRED - 1].version);
    state_free(s);
}

TEST(a_snapshot_has_the_lineage)
{
    struct state *s = cluster();
    struct record r = recovery(2, 2, NULL, 0);
    assert_ok(put(s, &r).err);
    put_key(s, 2, KEY_USED);
    put_key(s, 1, KEY_DROPPED);
    struct state *back = copied(s);
    const struct state_cluster *c = state_cluster(back);
    assert_memory_equal(&state_cluster(s)->lineage, &c->lineage, sizeof(c->lineage));
    assert_int_equal(2, c->lineage.first_key);
    assert_int_equal(1, c->n_retired);
    assert_int_equal(1, c->retired[0].version);
    assert_int_equal(1002, submit(back));
    state_free(back);
    state_free(s);
}

/* A machine of its own, restored from a backup, has a lineage and no nodes. */
TEST(a_state_without_nodes_has_a_lineage)
{
    struct state *s;
    struct record r = recovery(2, 0, NULL, 0);
    assert_ok(state_new(&s));
    assert_ok(put(s, &r).err);
    struct state *back = copied(s);
    assert_int_equal(2, state_cluster(back)->lineage.generation);
    assert_int_equal(0, state_cluster(back)->n_keys);
    state_free(back);
    state_free(s);
}

TEST(a_change_of_the_view_has_the_lineage)
{
    struct state *s = cluster(), *view = copied(s);
    struct buf change = {0};
    struct record r = recovery(2, 2, NULL, 0);
    assert_ok(put(s, &r).err);
    assert_ok(state_cluster_change(view, s, &change));
    assert_ok(state_cluster_merge(view, change.data, change.len));
    assert_int_equal(2, state_cluster(view)->lineage.generation);
    buf_fini(&change);
    state_free(view);
    state_free(s);
}

TEST(a_record_without_an_id_is_refused)
{
    struct buf bytes = {0};
    struct record r = lineage(0, 1, 1);
    assert_err(ERR_INVALID, record_encode(&r, &bytes));
    r = lineage(1, 0, 1);
    assert_err(ERR_INVALID, record_encode(&r, &bytes));
    buf_fini(&bytes);
}
