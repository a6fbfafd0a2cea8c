/* Placement: a table of nodes and requirements with the expected assignment, and random nodes against the definition.
 */
#include "daemon/control/job/placement.h"
#include "tests/lib/test.h"

#include <stdio.h>

#define NODES 4
#define RANKS 64

struct placement_case {
    const char *name;
    struct placement_node nodes[NODES];
    struct placement_want want;
    enum placement_answer answer;
    const char *ranks; /* the node of each rank, as an index into `nodes` */
};

#define FIXED(n) .max = (n), .min = (n), .unit = (n)

static const struct placement_case cases[] = {
    {"one node", {{.name = "a", .slots = 4}}, {FIXED(4)}, PLACEMENT_FITS, "0000"},
    {"the fullest node that has enough slots",
     {{.name = "a", .slots = 8}, {.name = "b", .slots = 8, .used = 4}, {.name = "c", .slots = 8, .used = 7}},
     {FIXED(4)},
     PLACEMENT_FITS,
     "1111"},
    {"few nodes",
     {{.name = "a", .slots = 2}, {.name = "b", .slots = 4}, {.name = "c", .slots = 2}},
     {FIXED(6)},
     PLACEMENT_FITS,
     "001111"},
    {"ranks in the order of nodes",
     {{.name = "a", .slots = 1}, {.name = "b", .slots = 3}},
     {FIXED(4)},
     PLACEMENT_FITS,
     "0111"},
    {"all workers or none",
     {{.name = "a", .slots = 4, .used = 1}, {.name = "b", .slots = 4, .used = 1}},
     {FIXED(7)},
     PLACEMENT_WAITS,
     ""},
    {"never", {{.name = "a", .slots = 4}, {.name = "b", .slots = 4}}, {FIXED(9)}, PLACEMENT_NEVER, ""},
    {"waits for a drained node",
     {{.name = "a", .slots = 4}, {.name = "b", .slots = 4, .out = "is drained"}},
     {FIXED(5)},
     PLACEMENT_WAITS,
     ""},
    {"not on a drained node",
     {{.name = "a", .slots = 4, .out = "is drained"}, {.name = "b", .slots = 4}},
     {FIXED(4)},
     PLACEMENT_FITS,
     "1111"},
    {"the node that the job uses",
     {{.name = "a", .slots = 4}, {.name = "b", .slots = 4, .mine = 2}},
     {FIXED(4)},
     PLACEMENT_FITS,
     "1111"},
    {"one node is better than the two that the job uses",
     {{.name = "a", .slots = 4}, {.name = "b", .slots = 2, .mine = 2}, {.name = "c", .slots = 2}},
     {FIXED(4)},
     PLACEMENT_FITS,
     "0000"},
    {"the two nodes that the job uses",
     {{.name = "a", .slots = 2, .mine = 2}, {.name = "b", .slots = 3}, {.name = "c", .slots = 2, .mine = 2}},
     {FIXED(4)},
     PLACEMENT_FITS,
     "0022"},
    /* Groups of ranks stay on one node if possible. */
    {"tp inside nodes",
     {{.name = "a", .slots = 3}, {.name = "b", .slots = 3}},
     {FIXED(4), .group = {2}},
     PLACEMENT_FITS,
     "0011"},
    {"cp x tp, else tp",
     {{.name = "a", .slots = 3}, {.name = "b", .slots = 5}},
     {FIXED(8), .group = {4, 2}},
     PLACEMENT_FITS,
     "00011111"},
    {"the larger group first",
     {{.name = "a", .slots = 6}, {.name = "b", .slots = 6}},
     {FIXED(8), .group = {4, 2}},
     PLACEMENT_FITS,
     "00001111"},
    {"the smaller group fits",
     {{.name = "a", .slots = 2}, {.name = "b", .slots = 6}},
     {FIXED(8), .group = {4, 2}},
     PLACEMENT_FITS,
     "00111111"},
    /* A range of workers. */
    {"as many as fit",
     {{.name = "a", .slots = 3}, {.name = "b", .slots = 2}},
     {.max = 8, .min = 2, .unit = 2},
     PLACEMENT_FITS,
     "0001"},
    {"whole units only", {{.name = "a", .slots = 5}}, {.max = 6, .min = 3, .unit = 3}, PLACEMENT_FITS, "000"},
    {"fewer than the minimum are free",
     {{.name = "a", .slots = 5, .used = 4}},
     {.max = 6, .min = 3, .unit = 3},
     PLACEMENT_WAITS,
     ""},
    {"the minimum never fits", {{.name = "a", .slots = 2}}, {.max = 6, .min = 3, .unit = 3}, PLACEMENT_NEVER, ""},
    /* GPUs. */
    {"one GPU per worker",
     {{.name = "a", .slots = 8, .gpus = 2}, {.name = "b", .slots = 8, .gpus = 4}},
     {FIXED(4), .per_gpu = 1},
     PLACEMENT_FITS,
     "1111"},
    {"two workers share a GPU",
     {{.name = "a", .slots = 8, .gpus = 2}, {.name = "b", .slots = 8, .gpus = 4}},
     {FIXED(4), .per_gpu = 2},
     PLACEMENT_FITS,
     "0000"},
    {"busy GPUs",
     {{.name = "a", .slots = 8, .gpus = 2, .busy = 1}, {.name = "b", .slots = 8, .gpus = 2, .busy = 2}},
     {FIXED(2), .per_gpu = 1},
     PLACEMENT_WAITS,
     ""},
    {"too few slots, enough GPUs",
     {{.name = "a", .slots = 2, .used = 1, .gpus = 8}},
     {FIXED(2), .per_gpu = 1},
     PLACEMENT_WAITS,
     ""},
    {"no GPUs", {{.name = "a", .slots = 8, .gpus = 0}}, {FIXED(1), .per_gpu = 1}, PLACEMENT_NEVER, ""},
    {"GPUs not reported yet", {{.name = "a", .slots = 8, .gpus = -1}}, {FIXED(1), .per_gpu = 1}, PLACEMENT_WAITS, ""},
    {"a fixed number per node",
     {{.name = "a", .slots = 8}, {.name = "b", .slots = 8}},
     {FIXED(4), .per_node = 2},
     PLACEMENT_FITS,
     "0011"},
    {"a fixed number per node that no node has",
     {{.name = "a", .slots = 3}, {.name = "b", .slots = 3}},
     {FIXED(4), .per_node = 4},
     PLACEMENT_NEVER,
     ""},
};

static int count_nodes(const struct placement_case *w)
{
    int n = 0;
    while (n < NODES && w->nodes[n].name)
        n++;
    return n;
}

TEST(workers_go_where_the_table_says)
{
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct placement_case *w = &cases[i];
        int node[RANKS], n = 0;
        char ranks[RANKS + 1] = "";
        enum placement_answer answer = placement_find(w->nodes, count_nodes(w), &w->want, node, &n);
        for (int k = 0; answer == PLACEMENT_FITS && k < n; k++) {
            ranks[k] = (char)('0' + node[k]);
            ranks[k + 1] = '\0';
        }
        if (answer != w->answer || strcmp(ranks, w->ranks) != 0)
            fail_msg("%s: answer %d with '%s', expected %d with '%s'", w->name, answer, ranks, w->answer, w->ranks);
    }
}

/* Random nodes: no node gets more than its free slots, ranks ascend, units stay whole, and no larger number would fit.
 */
TEST(no_node_gets_more_than_its_free_slots)
{
    unsigned seed = 7;
    for (int round = 0; round < 20000; round++) {
        struct placement_node nodes[NODES] = {0};
        static const char *const names[NODES] = {"a", "b", "c", "d"};
        int node[RANKS], n = 0, free_all = 0, have[NODES] = {0};
        for (int i = 0; i < NODES; i++) {
            seed = seed * 1103515245u + 12345u;
            nodes[i] = (struct placement_node){.name = names[i], .slots = (int)(seed >> 16 & 7)};
            nodes[i].used = nodes[i].slots ? (int)(seed >> 20) % (nodes[i].slots + 1) : 0;
            nodes[i].mine = (int)(seed >> 24 & 1);
            nodes[i].out = (seed >> 28 & 3) == 0 ? "is out" : NULL;
            free_all += nodes[i].out ? 0 : nodes[i].slots - nodes[i].used;
        }
        int unit = 1 + (int)(seed >> 8 & 3);
        const struct placement_want want = {
            .max = unit * 4, .min = unit, .unit = unit, .group = {(int)(seed >> 10 & 1) ? 2 : 0}};
        enum placement_answer answer = placement_find(nodes, NODES, &want, node, &n);
        int most = free_all < want.max ? free_all / unit * unit : want.max;
        assert_int_equal(most >= unit, answer == PLACEMENT_FITS);
        if (answer != PLACEMENT_FITS)
            continue;
        assert_int_equal(most, n);
        for (int k = 0; k < n; k++) {
            have[node[k]]++;
            assert_true(k == 0 || node[k] >= node[k - 1]);
        }
        for (int i = 0; i < NODES; i++)
            assert_true(have[i] == 0 || (!nodes[i].out && have[i] <= nodes[i].slots - nodes[i].used));
    }
}

TEST(message_names_each_node)
{
    char text[512];
    const struct placement_node nodes[] = {
        {.name = "n1", .slots = 4, .used = 2, .gpus = 2, .busy = 1},
        {.name = "n2", .slots = 4, .used = 4, .gpus = -1},
        {.name = "n3", .slots = 4, .out = "is drained (disk)"},
    };
    placement_lack(nodes, 3, &(struct placement_want){FIXED(8)}, text, sizeof(text));
    assert_string_equal("8 slots: n1 has 2 of 4 free, n2 has none of 4 free, n3 is drained (disk)", text);
    placement_lack(nodes, 3, &(struct placement_want){FIXED(2), .per_gpu = 1}, text, sizeof(text));
    assert_string_equal("2 GPUs: n1 has 1 of 2 free, n2 has not reported its GPUs yet, n3 is drained (disk)", text);
    const struct placement_node ill[] = {
        {.name = "n1", .slots = 4, .gpus = 1, .sick = "GPU 0 is not used: it is lost"},
        {.name = "n2", .slots = 4, .gpus = 2, .busy = 2, .sick = ""},
        {.name = "n3", .slots = 4, .gpus = 1, .sick = "GPU 0 is not used: it is lost", .out = "is lost"},
    };
    placement_lack(ill, 3, &(struct placement_want){FIXED(2), .per_gpu = 1}, text, sizeof(text));
    assert_string_equal("2 GPUs: n1 has 1 of 1 free (GPU 0 is not used: it is lost), n2 has none of 2 free, n3 is lost",
                        text);
    placement_lack(ill, 3, &(struct placement_want){FIXED(20), .per_gpu = 1}, text, sizeof(text));
    assert_string_equal("20 slots: n1 has 4 of 4 free, n2 has 4 of 4 free, n3 is lost", text);
    assert_int_equal(12, placement_most(nodes, 3, &(struct placement_want){.max = 16, .min = 16, .unit = 4}));
    placement_all(nodes, 1, &(struct placement_want){FIXED(8), .per_node = 4}, text, sizeof(text));
    assert_memory_equal("need 4 slots on one node, but n1 has ", text, 37);
}
