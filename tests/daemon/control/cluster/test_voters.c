/* The choice of voters: a table of situations with the one change that each requires, and random situations in which
 * repeated changes lead to the wanted number of voters. */
#include "daemon/control/cluster/voters.h"
#include "tests/lib/test.h"

/* One character per node, in the order of their ids:
 *   L  leader, a voter              l  the same, drained
 *   V  voter                        v  voter that has just disconnected
 *   X  voter that is dead           D  voter that is drained
 *   G  voter that has left the cluster
 *   s  spare: added to the log, no voter
 *   c  up, not in the log           d  the same, drained
 *   a  away, not in the log */
static int parse(const char *text, const char *domains, struct voters_node *ret)
{
    static char names[32][2];
    int n = (int)strlen(text);
    for (int i = 0; i < n; i++) {
        char k = text[i];
        names[i][0] = domains ? domains[i] : '\0';
        ret[i] = (struct voters_node){
            .id = (uint64_t)i + 1,
            .listed = k != 'G',
            .in_log = strchr("LVvXDlGs", k) != NULL,
            .role = k == 's' ? LOG_SPARE : LOG_VOTER,
            .self = k == 'L' || k == 'l',
            .up = strchr("LVDlcds", k) != NULL,
            .drained = strchr("Dld", k) != NULL,
            .away_ms = strchr("Xa", k) ? 60000
                       : k == 'v'      ? 1000
                                       : 0,
            .domain = names[i],
        };
    }
    return n;
}

static const struct {
    const char *nodes, *domains;
    enum voters_step step;
    uint64_t id;
} table[] = {
    {"L", NULL, VOTERS_NOTHING, 0},
    {"Lc", NULL, VOTERS_NOTHING, 0},
    {"Lcc", NULL, VOTERS_ADD, 2},
    {"Lsc", NULL, VOTERS_PROMOTE, 2},
    {"LVc", NULL, VOTERS_ADD, 3},
    {"LVV", NULL, VOTERS_NOTHING, 0},
    {"LVVc", NULL, VOTERS_NOTHING, 0},
    {"LVVs", NULL, VOTERS_REMOVE, 4},
    {"LVvc", NULL, VOTERS_NOTHING, 0}, /* the voter may reconnect */
    {"LVXc", NULL, VOTERS_ADD, 4},
    {"LVXV", NULL, VOTERS_REMOVE, 3},
    {"LVX", NULL, VOTERS_NOTHING, 0}, /* no node could replace it */
    {"LVXa", NULL, VOTERS_NOTHING, 0},
    {"LVXd", NULL, VOTERS_NOTHING, 0},
    {"LVDc", NULL, VOTERS_ADD, 4},
    {"LVDV", NULL, VOTERS_REMOVE, 3},
    {"LVD", NULL, VOTERS_NOTHING, 0},
    {"lVV", NULL, VOTERS_HAND_OVER, 2},
    {"l", NULL, VOTERS_NOTHING, 0},
    {"lc", NULL, VOTERS_ADD, 2},
    {"lV", NULL, VOTERS_HAND_OVER, 2},
    {"DL", NULL, VOTERS_REMOVE, 1},
    {"LVG", NULL, VOTERS_REMOVE, 3},
    {"LV", NULL, VOTERS_REMOVE, 2}, /* with two voters both would be needed */
    {"LVVVV", NULL, VOTERS_REMOVE, 5},
    {"LXVVV", NULL, VOTERS_REMOVE, 2},
    {"LVVcccccccccccccc", NULL, VOTERS_ADD, 4}, /* 17 nodes */
    {"LVVVVcccccccccccc", NULL, VOTERS_NOTHING, 0},
    {"LVVVVccccccccccc", NULL, VOTERS_REMOVE, 5}, /* 16 */
    {"Lcccc", "aabbc", VOTERS_ADD, 3},
    {"LcVcc", "aabbc", VOTERS_ADD, 5},
    {"LVVVc", "aabcd", VOTERS_REMOVE, 2},
    {"Lcc", "aaa", VOTERS_ADD, 2},
};

TEST(each_situation_requires_one_change)
{
    struct voters_node nodes[32];
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        int n = parse(table[i].nodes, table[i].domains, nodes);
        struct voters_change c = voters_next(nodes, n);
        if (c.step != table[i].step || c.id != table[i].id)
            fail_msg("%s: step %d of %d, expected %d of %d", table[i].nodes, c.step, (int)c.id, table[i].step,
                     (int)table[i].id);
    }
}

/* A leader that is shutting down stays until there is a new leader, but only if another node can lead. */
TEST(a_successor_is_a_voter_or_can_be_made_one)
{
    static const struct {
        const char *nodes;
        bool has;
    } heirs[] = {{"l", false},  {"lc", true},   {"lV", true},  {"lv", false}, {"lX", false},
                 {"la", false}, {"ld", false},  {"lD", false}, {"ls", true},  {"lVV", true},
                 {"lG", false}, {"lXa", false}, {"lDc", true}, {"LcX", true}};
    struct voters_node nodes[32];
    for (size_t i = 0; i < sizeof(heirs) / sizeof(heirs[0]); i++)
        if (voters_have_successor(nodes, parse(heirs[i].nodes, NULL, nodes)) != heirs[i].has)
            fail_msg("%s: successor expected: %d", heirs[i].nodes, heirs[i].has);
}

/* Applies changes until none is required, as the log would. */
static int settle(struct voters_node *nodes, int n)
{
    for (int rounds = 0; rounds < 100; rounds++) {
        struct voters_change c = voters_next(nodes, n);
        struct voters_node *x = NULL, *self = NULL;
        for (int i = 0; i < n; i++) {
            x = nodes[i].id == c.id ? &nodes[i] : x;
            self = nodes[i].self ? &nodes[i] : self;
        }
        switch (c.step) {
        case VOTERS_NOTHING:
            return rounds;
        case VOTERS_ADD:
            x->in_log = true;
            x->role = LOG_SPARE;
            break;
        case VOTERS_PROMOTE:
            assert_true(x->in_log && x->up);
            x->role = LOG_VOTER;
            break;
        case VOTERS_REMOVE:
            assert_false(x->self);
            x->in_log = false;
            break;
        case VOTERS_HAND_OVER:
            assert_true(x->in_log && x->role == LOG_VOTER && !x->drained);
            self->self = false;
            x->self = true;
        }
    }
    fail_msg("there is no end of changes");
    return 0;
}

static int voters_of(const struct voters_node *nodes, int n)
{
    int voters = 0;
    for (int i = 0; i < n; i++)
        voters += nodes[i].in_log && nodes[i].role == LOG_VOTER;
    return voters;
}

TEST(random_situations_settle)
{
    static const char kinds[] = "VvXDcdasG";
    struct voters_node nodes[32];
    uint32_t seed = 1;
    for (int round = 0; round < 20000; round++) {
        char text[32] = "", domains[32] = "";
        seed = seed * 1664525u + 1013904223u;
        int n = 1 + (int)(seed >> 8) % 20, listed = 0, usable = 0;
        for (int i = 0; i < n; i++) {
            seed = seed * 1664525u + 1013904223u;
            text[i] = i ? kinds[(seed >> 8) % (sizeof(kinds) - 1)] : (seed >> 16 & 1 ? 'L' : 'l');
            domains[i] = (char)('a' + (seed >> 20) % 4);
        }
        parse(text, domains, nodes);
        settle(nodes, n);
        for (int i = 0; i < n; i++) {
            listed += nodes[i].listed;
            usable += nodes[i].listed && !nodes[i].drained && (nodes[i].up || nodes[i].away_ms < VOTERS_DEAD_MS);
            assert_true(nodes[i].listed || !nodes[i].in_log || nodes[i].self);
        }
        int wanted = voters_wanted(listed), voters = voters_of(nodes, n);
        if (voters > wanted || (usable >= wanted && voters < wanted))
            if (!(nodes[0].self && nodes[0].drained)) /* as the only candidate it cannot be removed */
                fail_msg("%s ends with %d voters, %d wanted, %d usable", text, voters, wanted, usable);
    }
}

TEST(numbers_of_voters)
{
    static const int expected[][2] = {{1, 1}, {2, 1}, {3, 3}, {16, 3}, {17, 5}, {1000, 5}};
    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++)
        assert_int_equal(expected[i][1], voters_wanted(expected[i][0]));
}
