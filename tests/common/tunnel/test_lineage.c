/* The lineage behind the argument of a greeting, and what both ends do with it. */
#include "common/tunnel/lineage.h"
#include "tests/common/tunnel/net.h"

static const struct tunnel_lineage first = {.id = 0xabcdef, .generation = 1, .at_ms = 1000, .by = ""};
static const struct tunnel_lineage later = {.id = 0xabcdef, .generation = 2, .at_ms = 2000, .by = "n1"};

TEST(it_stands_behind_the_argument)
{
    char text[TUNNEL_ARGUMENT_MAX + 1] = "3 1";
    struct tunnel_lineage back;
    lineage_append(&later, text);
    assert_string_equal("3 1 ~0000000000abcdef.2.2000.n1", text);
    lineage_take(text, &back);
    assert_string_equal("3 1", text);
    assert_memory_equal(&later, &back, sizeof(back));
}

TEST(none_is_appended_without_an_id_or_room)
{
    static const struct tunnel_lineage none = {.generation = 1};
    char text[TUNNEL_ARGUMENT_MAX + 1] = "x";
    struct tunnel_lineage back;
    lineage_append(&none, text);
    assert_string_equal("x", text);
    memset(text, 'y', TUNNEL_ARGUMENT_MAX - 10);
    text[TUNNEL_ARGUMENT_MAX - 10] = '\0';
    lineage_append(&later, text);
    assert_int_equal(TUNNEL_ARGUMENT_MAX - 10, strlen(text));
    lineage_take(text, &back);
    assert_int_equal(0, back.id);
}

TEST(what_is_no_lineage_stays)
{
    static const char *const texts[] = {"",
                                        "3 1",
                                        "1000 ~name",
                                        "1 ~abc.1.1",
                                        "1 ~abc.x.1.n",
                                        "1 ~0.1.1.n",
                                        "1 ~abc.0.1.n",
                                        "1~abc.1.1.n",
                                        "1 ~abc.1.1.a b",
                                        "1 ~ABC.1.1.n",
                                        "1 ~00000000000000abc.1.1.n",
                                        "1 ~abc.1.99999999999999999999.n"};
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        char text[TUNNEL_ARGUMENT_MAX + 1];
        struct tunnel_lineage back;
        snprintf(text, sizeof(text), "%s", texts[i]);
        lineage_take(text, &back);
        assert_int_equal(0, back.id);
        assert_string_equal(texts[i], text);
    }
}

/* ---- two hosts ---- */

struct side {
    struct knows *knows;
    struct tunnel_lineage own, seen;
    enum tunnel_kinship verdict; /* for every node */
    int judged, refused;
    enum tunnel_kinship told;
};
static struct side sides[2];

static struct side *side_of(void *owner)
{
    return &sides[sides[1].knows == owner];
}

static void own(void *owner, struct tunnel_lineage *ret)
{
    *ret = side_of(owner)->own;
}

static enum tunnel_kinship judge(void *owner, const struct tunnel_peer *peer, bool answers)
{
    struct side *s = side_of(owner);
    assert_int_equal(answers, s == &sides[0]);
    s->seen = peer->lineage;
    s->judged++;
    return s->verdict;
}

static void refused(void *owner, const char *name, enum tunnel_kinship verdict, const struct tunnel_lineage *its)
{
    struct side *s = side_of(owner);
    assert_string_equal("b", name);
    s->refused++;
    s->told = verdict;
    s->seen = *its;
}

static void open_sides(struct tunnel_net *n)
{
    static const struct tunnel_kin kin = {own, judge, refused};
    net_open(n);
    sides[0] = (struct side){.knows = &n->a_knows, .own = first};
    sides[1] = (struct side){.knows = &n->b_knows, .own = later};
    n->a->config.kin = n->b->config.kin = kin;
}

TEST(both_ends_see_the_other_ones)
{
    struct tunnel_net n;
    struct net_answer a;
    open_sides(&n);
    struct tunnel_connect_config config = net_config(&n);
    config.argument = "3 1";
    net_connect(&n, n.a, &config, &a);
    net_wait(&n, &a);
    assert_ok(a.err);
    net_wait_accepted(&n, 1);
    assert_string_equal("3 1", n.peers[0].argument);
    assert_memory_equal(&first, &n.peers[0].lineage, sizeof(first));
    assert_memory_equal(&first, &sides[1].seen, sizeof(first));
    assert_memory_equal(&later, &sides[0].seen, sizeof(later));
    assert_string_equal("3 1", a.peer.argument);
    close(a.fd);
    close(n.fds[0]);
    net_close(&n);
}

TEST(a_refused_node_is_told_by_whom)
{
    static const enum tunnel_kinship verdicts[] = {TUNNEL_FOREIGN, TUNNEL_SUPERSEDED};
    static const char *const texts[] = {"another generation", "recovered without this node"};
    for (int i = 0; i < 2; i++) {
        struct tunnel_net n;
        open_sides(&n);
        sides[1].verdict = verdicts[i];
        struct tunnel_connect_config config = net_config(&n);
        net_expect(&n, &config, ERR_DENIED, texts[i]);
        assert_int_equal(1, sides[0].refused);
        assert_int_equal(verdicts[i], sides[0].told);
        assert_memory_equal(&later, &sides[0].seen, sizeof(later));
        assert_int_equal(0, n.n_accepted);
        net_close(&n);
    }
}

/* It was admitted, and refuses the answering node: an older version admits every node. */
TEST(the_connecting_end_refuses_too)
{
    struct tunnel_net n;
    open_sides(&n);
    sides[0].verdict = TUNNEL_FOREIGN;
    struct tunnel_connect_config config = net_config(&n);
    struct net_answer a;
    net_connect(&n, n.a, &config, &a);
    net_wait(&n, &a);
    assert_err(ERR_DENIED, a.err);
    assert_non_null(strstr(a.why, "an earlier generation of this cluster, or of another cluster"));
    assert_int_equal(0, sides[0].refused);
    net_pump_ms(&n, 50);
    for (int i = 0; i < n.n_accepted; i++)
        close(n.fds[i]);
    net_close(&n);
}
