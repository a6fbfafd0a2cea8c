/* Changes of the cluster's view: made on the view before, a change gives the same bytes as the whole view after. */
#include "common/base/rng.h"
#include "daemon/control/state/state.h"
#include "tests/lib/test.h"

#include <stdio.h>
#include <string.h>

static uint32_t drawn;

static int draw(int n)
{
    uint32_t r[4];
    rng_at(7, 0, drawn++, r);
    return (int)(r[0] % (uint32_t)n);
}

static void apply(struct state *s, const struct record *r)
{
    struct state_result result;
    assert_ok(state_apply(s, r, &result));
}

static void add_node(struct state *s, int i, int port)
{
    char name[16], address[32];
    snprintf(name, sizeof(name), "node-%d", i);
    snprintf(address, sizeof(address), "%s:%d", name, port);
    struct record r = {.kind = RECORD_NODE,
                       .wall_ms = 10 + i,
                       .node = {.name = name, .address = address, .domain = i % 3 ? "rack" : ""}};
    if (i % 4 && port != 7811)
        memset(r.node.public_key, i, sizeof(r.node.public_key));
    apply(s, &r);
}

static void remove_node(struct state *s, int i)
{
    char name[16];
    snprintf(name, sizeof(name), "node-%d", i);
    struct record r = {.kind = RECORD_NODE_LEFT, .node_left = {.name = name}};
    apply(s, &r);
}

static void drain_node(struct state *s, int i, const char *reason)
{
    char name[16];
    snprintf(name, sizeof(name), "node-%d", i);
    struct record r = {.kind = RECORD_NODE_ADMIN, .wall_ms = 99, .node_admin = {name, reason}};
    apply(s, &r);
}

static void add_token(struct state *s, int i)
{
    struct record r = {.kind = RECORD_TOKEN, .wall_ms = 1, .token = {.id = (uint64_t)i, .expires_ms = 500, .uses = 3}};
    apply(s, &r);
}

static void add_key(struct state *s, int i, enum state_key_step step)
{
    struct record r = {.kind = RECORD_KEY, .key = {.version = (uint32_t)i, .step = step}};
    memset(r.key.secret, i, sizeof(r.key.secret));
    apply(s, &r);
}

static void change_somehow(struct state *s)
{
    static const char *const reasons[] = {NULL, "a disk is replaced", "why"};
    int i = draw(40);
    switch (draw(7)) {
    case 0:
    case 1:
        add_node(s, i, 7811);
        break;
    case 2:
        add_node(s, i, 7000 + draw(3));
        break;
    case 3:
        remove_node(s, i);
        break;
    case 4:
        drain_node(s, i, reasons[draw(3)]);
        break;
    case 5:
        add_token(s, 1 + draw(9));
        break;
    default:
        add_key(s, 1 + draw(4), (enum state_key_step)draw(3));
        break;
    }
}

static struct buf whole(const struct state *s)
{
    struct buf ret = {0};
    assert_ok(state_cluster_snapshot(s, &ret));
    return ret;
}

static bool is_same(const struct state *a, const struct state *b)
{
    struct buf x = whole(a), y = whole(b);
    bool ret = x.len == y.len && memcmp(x.data, y.data, x.len) == 0;
    buf_fini(&x);
    buf_fini(&y);
    return ret;
}

static struct state *copy_of(const struct state *s)
{
    struct state *ret;
    struct buf bytes = whole(s);
    assert_ok(state_new(&ret));
    assert_ok(state_restore(ret, bytes.data, bytes.len));
    buf_fini(&bytes);
    return ret;
}

TEST(a_change_gives_the_view_after_it)
{
    struct state *s, *view;
    assert_ok(state_new(&s));
    assert_ok(state_new(&view));
    for (int round = 0; round < 400; round++) {
        struct buf change = {0};
        for (int n = 1 + draw(6); n > 0; n--)
            change_somehow(s);
        assert_ok(state_cluster_change(view, s, &change));
        assert_ok(state_cluster_merge(view, change.data, change.len));
        assert_true(is_same(view, s));
        buf_fini(&change);
    }
    state_free(view);
    state_free(s);
}

TEST(a_name_may_belong_to_another_node)
{
    struct state *s, *view;
    struct buf change = {0};
    assert_ok(state_new(&s));
    for (int i = 0; i < 5; i++)
        add_node(s, i, 7811);
    view = copy_of(s);
    remove_node(s, 2);
    add_node(s, 2, 7811);
    assert_ok(state_cluster_change(view, s, &change));
    assert_ok(state_cluster_merge(view, change.data, change.len));
    assert_int_equal(state_node_find(view, "node-2")->id, 6);
    assert_int_equal(state_cluster(view)->n_nodes, 5);
    assert_true(is_same(view, s));
    buf_fini(&change);
    state_free(view);
    state_free(s);
}

/* It has the new node, and of the 1,000 others nothing. */
TEST(a_change_is_as_large_as_what_has_changed)
{
    struct state *s, *view;
    struct buf change = {0}, all;
    assert_ok(state_new(&s));
    for (int i = 0; i < 1000; i++)
        add_node(s, i, 7811);
    view = copy_of(s);
    add_node(s, 1000, 7811);
    assert_ok(state_cluster_change(view, s, &change));
    all = whole(s);
    assert_true(all.len > 50000);
    assert_true(change.len < 100);
    buf_fini(&change);
    buf_fini(&all);
    state_free(view);
    state_free(s);
}

/* Some of the nodes, with all keys and tokens: what a node gets as the answer to its Join. */
TEST(an_excerpt_has_some_of_the_nodes)
{
    struct state *s, *view;
    const struct state_node *nodes[3];
    struct buf part = {0}, all = {0};
    assert_ok(state_new(&s));
    for (int i = 0; i < 100; i++)
        add_node(s, i, 7811);
    add_key(s, 3, KEY_ADDED);
    add_token(s, 5);
    nodes[0] = state_node_find(s, "node-17");
    nodes[1] = state_node_find(s, "node-4");
    nodes[2] = state_node_find(s, "node-99");
    assert_ok(state_cluster_excerpt(s, nodes, 3, &part));
    assert_ok(state_new(&view));
    assert_ok(state_restore(view, part.data, part.len));
    assert_int_equal(state_cluster(view)->n_nodes, 3);
    assert_int_equal(state_node_find(view, "node-4")->id, nodes[1]->id);
    assert_null(state_node_find(view, "node-5"));
    assert_int_equal(state_cluster(view)->next_node, 101);
    assert_int_equal(state_cluster(view)->key_used, 3);
    assert_int_equal(state_cluster(view)->n_tokens, 1);
    /* The nodes that it lacks come as a change. */
    assert_ok(state_cluster_change(view, s, &all));
    assert_ok(state_cluster_merge(view, all.data, all.len));
    assert_true(is_same(view, s));
    buf_fini(&part);
    buf_fini(&all);
    state_free(view);
    state_free(s);
}

/* After an error nothing has changed; a damaged change that is accepted gives a view whose nodes are in order. */
TEST(a_damaged_change_does_no_harm)
{
    struct state *s, *view;
    struct buf change = {0};
    assert_ok(state_new(&s));
    for (int i = 0; i < 6; i++)
        add_node(s, i, 7811);
    add_key(s, 1, KEY_ADDED);
    view = copy_of(s);
    add_node(s, 7, 7811);
    remove_node(s, 3);
    drain_node(s, 4, "why");
    assert_ok(state_cluster_change(view, s, &change));
    for (size_t bit = 0; bit < 8 * change.len; bit++) {
        struct state *damaged = copy_of(view);
        change.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        err_t err = state_cluster_merge(damaged, change.data, change.len);
        if (err)
            assert_true(is_same(damaged, view));
        const struct state_cluster *c = state_cluster(damaged);
        for (int i = 1; i < c->n_nodes; i++)
            assert_true(strcmp(c->nodes[i - 1].name, c->nodes[i].name) < 0);
        change.data[bit / 8] ^= (uint8_t)(1 << bit % 8);
        state_free(damaged);
    }
    for (size_t len = 0; len < change.len; len++) {
        struct state *cut = copy_of(view);
        if (state_cluster_merge(cut, change.data, len))
            assert_true(is_same(cut, view));
        state_free(cut);
    }
    buf_fini(&change);
    state_free(view);
    state_free(s);
}
