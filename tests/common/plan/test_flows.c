/* Rates of transfers that share links: by hand, and the two properties that define max-min fairness. */
#include "common/base/rng.h"
#include "common/plan/search/flows.h"
#include "tests/lib/test.h"

#include <math.h>
#include <stdbool.h>

static void assert_near(double a, double b)
{
    if (fabs(a - b) > 1e-9)
        fail_msg("%.12g instead of %.12g", a, b);
}

/* One link of capacity 1. The second transfer begins at 0.5: the first one has done half of its work by then, has half
 * of the link until 1.5, and the second one ends its other half alone. A third one waits for the first. */
TEST(transfers_share_a_link)
{
    static const struct flow_use use = {0, 1};
    static const double capacity = 1;
    struct flow flows[] = {{.ready = 0, .after = -1, .work = 1, .most = 10, .uses = &use, .n_uses = 1},
                           {.ready = 0.5, .after = -1, .work = 1, .most = 10, .uses = &use, .n_uses = 1},
                           {.ready = 0, .after = 0, .delay = 1, .work = 0.5, .most = 10, .uses = &use, .n_uses = 1}};
    assert_ok(flows_simulate(flows, 3, &capacity, 1));
    assert_near(flows[0].end, 1.5);
    assert_near(flows[1].end, 2);
    assert_near(flows[2].end, 3);
}

TEST(a_transfer_alone_is_as_fast_as_it_can)
{
    static const struct flow_use use = {0, 1};
    static const double capacity = 1;
    struct flow flows[] = {{.ready = 2, .after = -1, .delay = 1, .work = 1, .most = 0.25, .uses = &use, .n_uses = 1},
                           {.ready = 0, .after = 0, .delay = 3},
                           {.ready = 0, .after = 1, .work = 1, .most = 2}};
    assert_ok(flows_simulate(flows, 3, &capacity, 1));
    assert_near(flows[0].end, 7);
    assert_near(flows[1].end, 10);
    assert_near(flows[2].end, 10.5);
}

/* Links of capacity 1 and 2. The first transfer uses both, and has half of the narrow one; the last one has what is
 * left of the wide one (Bertsekas and Gallager's example of max-min fairness has the same form). */
TEST(a_transfer_over_two_links_has_the_rate_of_the_narrow_one)
{
    static const struct flow_use both[] = {{0, 1}, {1, 1}}, narrow = {0, 1}, wide = {1, 1};
    static const double capacities[] = {1, 2};
    const struct flow flows[] = {{.most = 10, .uses = both, .n_uses = 2},
                                 {.most = 10, .uses = &narrow, .n_uses = 1},
                                 {.most = 10, .uses = &wide, .n_uses = 1}};
    const struct flow *const moving[] = {&flows[0], &flows[1], &flows[2]};
    double rates[3], room[4];
    flows_share(moving, 3, capacities, 2, rates, room);
    assert_near(rates[0], 0.5);
    assert_near(rates[1], 0.5);
    assert_near(rates[2], 1.5);
}

#define FLOWS 20
#define LINKS 6

static double draw(uint64_t seed, uint64_t at)
{
    return rng_uniform(seed, 1, at);
}

/* No link carries more than its capacity; and each transfer has the most that it can use, or a full link on which no
 * other transfer is faster. */
TEST(rates_fill_links_and_are_fair)
{
    for (uint64_t seed = 1; seed <= 300; seed++) {
        struct flow flows[FLOWS];
        struct flow_use uses[FLOWS][LINKS];
        const struct flow *moving[FLOWS];
        double capacities[LINKS], rates[FLOWS], room[2 * LINKS], load[LINKS] = {0}, fastest[LINKS] = {0};
        for (int k = 0; k < LINKS; k++)
            capacities[k] = 0.2 + draw(seed, (uint64_t)k);
        for (int i = 0; i < FLOWS; i++) {
            flows[i] = (struct flow){.most = 0.02 + draw(seed, 100 + (uint64_t)i) / 3, .uses = uses[i]};
            for (int k = 0; k < LINKS; k++)
                if (draw(seed, 200 + (uint64_t)(i * LINKS + k)) < 0.3)
                    uses[i][flows[i].n_uses++] =
                        (struct flow_use){k, 0.5 + draw(seed, 500 + (uint64_t)(i * LINKS + k))};
            moving[i] = &flows[i];
        }
        flows_share(moving, FLOWS, capacities, LINKS, rates, room);
        for (int i = 0; i < FLOWS; i++)
            for (int u = 0; u < flows[i].n_uses; u++) {
                load[uses[i][u].link] += rates[i] * uses[i][u].weight;
                fastest[uses[i][u].link] = fmax(fastest[uses[i][u].link], rates[i]);
            }
        for (int k = 0; k < LINKS; k++)
            assert_true(load[k] <= capacities[k] * (1 + 1e-9));
        for (int i = 0; i < FLOWS; i++) {
            bool held = rates[i] >= flows[i].most * (1 - 1e-9);
            for (int u = 0; u < flows[i].n_uses; u++) {
                const int k = uses[i][u].link;
                held = held || (load[k] >= capacities[k] * (1 - 1e-9) && rates[i] >= fastest[k] * (1 - 1e-9));
            }
            assert_true(held);
        }
    }
}
