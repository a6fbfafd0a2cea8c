/* The queue of waiting jobs: orders against a table and against the definition, overtaking against a table and, in
 * random courses of events, against what it promises. */
#include "daemon/control/job/queue.h"
#include "tests/lib/test.h"

#include <stdio.h>
#include <string.h>

static uint64_t below(uint64_t *seed, uint64_t n)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (*seed >> 33) % n;
}

/* ---- the order ---- */

#define JOBS 200
#define USERS 12

/* A job is written as user, number of workers and priority: "a1:0". Numbers of jobs ascend from 1. */
struct order_case {
    const char *name, *running, *waiting, *order;
};

static const struct order_case orders[] = {
    {"age", "", "a1:0 a1:0 a1:0", "123"},
    {"priority among the jobs of a user", "", "a1:0 a1:5 a1:-1 a1:5", "2413"},
    {"priority does not count against another user", "", "a1:0 b1:1000 b1:0", "123"},
    {"users take turns", "", "a1:0 a1:0 a1:0 b1:0", "1423"},
    {"a user with slots waits", "a8", "a1:0 a1:0 b1:0 b1:0", "3412"},
    {"until the other has as many", "a2", "a1:0 a1:0 b1:0 b1:0 b1:0", "34152"},
    {"a large job counts", "", "a8:0 a1:0 b2:0 b2:0 b2:0 b2:0", "134562"},
    {"three users", "c1", "a1:0 a1:0 b1:0 b1:0 c1:0 c1:0", "132456"},
};

static int parse_jobs(const char *text, struct queue_job *ret)
{
    int n = 0, workers, priority, used;
    char user;
    for (; sscanf(text, " %c%d:%d%n", &user, &workers, &priority, &used) == 3; text += used, n++)
        ret[n] =
            (struct queue_job){.id = (uint64_t)n + 1, .uid = (uint32_t)user, .priority = priority, .workers = workers};
    return n;
}

static int parse_users(const char *text, struct queue_user *ret)
{
    int n = 0, slots, used;
    char user;
    for (; sscanf(text, " %c%d%n", &user, &slots, &used) == 2; text += used, n++)
        ret[n] = (struct queue_user){.uid = (uint32_t)user, .slots = slots};
    return n;
}

TEST(orders_of_a_table)
{
    for (size_t i = 0; i < sizeof(orders) / sizeof(orders[0]); i++) {
        struct queue_job jobs[16];
        struct queue_user users[4];
        char got[17] = "";
        int n = parse_jobs(orders[i].waiting, jobs), n_users = parse_users(orders[i].running, users);
        assert_ok(queue_sort(jobs, n, users, n_users));
        for (int k = 0; k < n; k++)
            got[k] = (char)('0' + jobs[k].id);
        if (strcmp(got, orders[i].order) != 0)
            fail_msg("%s: %s, expected %s", orders[i].name, got, orders[i].order);
    }
}

/* The definition, word by word: of the user with the fewest slots (then of the one whose oldest job is older) the job
 * with the highest priority (then the oldest). */
static int next_by_definition(const struct queue_job *jobs, const bool *taken, int n, const int64_t *slots,
                              const uint64_t *oldest)
{
    int best = -1;
    for (int i = 0; i < n; i++) {
        if (taken[i])
            continue;
        const struct queue_job *a = &jobs[i], *b = best < 0 ? NULL : &jobs[best];
        bool before =
            !b || slots[a->uid] < slots[b->uid] ||
            (slots[a->uid] == slots[b->uid] &&
             (oldest[a->uid] < oldest[b->uid] ||
              (a->uid == b->uid && (a->priority > b->priority || (a->priority == b->priority && a->id < b->id)))));
        best = before ? i : best;
    }
    return best;
}

TEST(orders_of_random_jobs_are_the_definition)
{
    uint64_t seed = 7;
    for (int round = 0; round < 200; round++) {
        struct queue_job jobs[JOBS], sorted[JOBS];
        struct queue_user users[USERS];
        int64_t slots[USERS] = {0};
        uint64_t oldest[USERS];
        bool taken[JOBS] = {0};
        int n = 1 + (int)below(&seed, JOBS), n_users = 0;
        memset(oldest, 0xff, sizeof(oldest));
        for (uint32_t u = 0; u < USERS; u++)
            if (below(&seed, 2)) {
                slots[u] = (int64_t)below(&seed, 20);
                users[n_users++] = (struct queue_user){.uid = u, .slots = slots[u]};
            }
        for (int i = 0; i < n; i++) {
            jobs[i] = (struct queue_job){.id = (uint64_t)i + 1,
                                         .uid = (uint32_t)below(&seed, USERS),
                                         .priority = (int64_t)below(&seed, 3),
                                         .workers = 1 + (int)below(&seed, 9)};
            oldest[jobs[i].uid] = jobs[i].id < oldest[jobs[i].uid] ? jobs[i].id : oldest[jobs[i].uid];
            sorted[i] = jobs[i];
        }
        assert_ok(queue_sort(sorted, n, users, n_users));
        for (int i = 0; i < n; i++) {
            int k = next_by_definition(jobs, taken, n, slots, oldest);
            assert_int_equal(jobs[k].id, sorted[i].id);
            taken[k] = true;
            slots[jobs[k].uid] += jobs[k].workers;
        }
    }
}

/* ---- overtaking ---- */

#define NODES 3
#define RUNNING 4
#define NEVER INT64_MAX

struct overtake_case {
    const char *name;
    int slots[NODES];
    struct {
        int on[NODES];
        int64_t ends;
        bool is_later;
    } running[RUNNING];
    int first, later;
    int64_t limit; /* of the later job; the time is 100 */
    bool may;
};

static const struct overtake_case overtakes[] = {
    {"it does not fit", {4}, {{{3}, NEVER, false}}, 4, 2, 10, false},
    {"the first needs all slots, and nobody knows when", {4}, {{{3}, NEVER, false}}, 4, 1, 10, false},
    {"the first fits beside it", {4}, {{{3}, NEVER, false}}, 2, 1, 0, true},
    {"it ends before", {4}, {{{3}, 200, false}}, 4, 1, 100, true},
    {"it ends too late", {4}, {{{3}, 200, false}}, 4, 1, 101, false},
    {"without a limit it ends too late", {4}, {{{3}, 200, false}}, 4, 1, 0, false},
    {"it ends too late, but the first fits beside it", {4}, {{{3}, 200, false}}, 3, 1, 500, true},
    {"of two ends the second counts", {4}, {{{1}, 150, false}, {{2}, 200, false}}, 4, 1, 100, true},
    {"of two ends the first is enough", {4}, {{{2}, 150, false}, {{1}, 200, false}}, 3, 1, 100, false},
    {"one has overtaken, and there is room for another", {8}, {{{5}, NEVER, false}, {{1}, NEVER, true}}, 6, 1, 0, true},
    {"one has overtaken, and there is no room", {8}, {{{5}, NEVER, false}, {{1}, NEVER, true}}, 7, 1, 0, false},
    {"one with a limit has overtaken", {8}, {{{5}, NEVER, false}, {{1}, 900, true}}, 7, 1, 0, false},
    {"the end of one that has overtaken does not count", {4}, {{{1}, NEVER, false}, {{2}, 200, true}}, 3, 1, 90, false},
    {"on another node", {4, 4}, {{{4}, NEVER, false}, {{0, 2}, NEVER, false}}, 6, 2, 0, true},
    {"two nodes, the first needs both", {4, 4}, {{{4}, NEVER, false}}, 8, 4, 0, false},
};

static struct placement_want fixed(int n)
{
    return (struct placement_want){.max = n, .min = n, .unit = n};
}

TEST(overtaking_of_a_table)
{
    static const char *const names[NODES] = {"a", "b", "c"};
    static const int none[NODES];
    for (size_t i = 0; i < sizeof(overtakes) / sizeof(overtakes[0]); i++) {
        const struct overtake_case *c = &overtakes[i];
        struct placement_node nodes[NODES] = {0};
        struct queue_running running[RUNNING];
        const struct queue_claim first = {fixed(c->first), 0}, later = {fixed(c->later), c->limit};
        int n = 0;
        bool may = !c->may;
        for (int k = 0; k < NODES; k++)
            nodes[k] = (struct placement_node){.name = names[k], .slots = c->slots[k]};
        for (; n < RUNNING && c->running[n].ends; n++) {
            running[n] = (struct queue_running){.ends_ms = c->running[n].ends,
                                                .is_later = c->running[n].is_later,
                                                .workers = c->running[n].on,
                                                .gpus = none};
            for (int k = 0; k < NODES; k++)
                nodes[k].used += c->running[n].on[k];
        }
        assert_ok(queue_may_overtake(nodes, NODES, running, n, &first, &later, 100, &may));
        if (may != c->may)
            fail_msg("%s: %s", c->name, may ? "it may overtake" : "it may not overtake");
    }
}

/* GPUs: one job on the CPUs beside one that waits for a GPU. */
TEST(a_job_on_processors_overtakes_one_that_waits_for_a_gpu)
{
    const int workers[1] = {1}, gpus[1] = {1};
    struct placement_node node = {.name = "a", .slots = 4, .used = 1, .gpus = 1, .busy = 1};
    const struct queue_running running = {.ends_ms = NEVER, .workers = workers, .gpus = gpus};
    struct queue_claim first = {fixed(1), 0}, later = {fixed(2), 0};
    bool may;
    first.want.per_gpu = 1;
    assert_ok(queue_may_overtake(&node, 1, &running, 1, &first, &later, 0, &may));
    assert_true(may);
    later.want = fixed(1);
    later.want.per_gpu = 1;
    assert_ok(queue_may_overtake(&node, 1, &running, 1, &first, &later, 0, &may));
    assert_false(may);
}

/* ---- the promise ---- */

#define COURSE 64

struct course_job {
    int at, workers;
    int64_t ends, limit_end; /* when it ends, and at the latest; NEVER: it has no limit */
    bool is_later;
};

struct course {
    struct course_job job[COURSE];
    int n, used, slots;
};

/* Asks for a job of one node, as the daemon does. */
static bool asks(const struct course *c, int first, int workers, int64_t limit, int64_t now)
{
    static const int none[1];
    struct queue_running running[COURSE];
    struct placement_node node = {.name = "a", .slots = c->slots, .used = c->used};
    const struct queue_claim a = {fixed(first), 0}, b = {fixed(workers), limit};
    bool may;
    for (int i = 0; i < c->n; i++)
        running[i] = (struct queue_running){.ends_ms = c->job[i].limit_end,
                                            .is_later = c->job[i].is_later,
                                            .workers = &c->job[i].workers,
                                            .gpus = none};
    assert_ok(queue_may_overtake(&node, 1, running, c->n, &a, &b, now, &may));
    return may;
}

static void start(struct course *c, uint64_t *seed, int workers, int64_t now, bool is_later)
{
    int64_t length = 1 + (int64_t)below(seed, 50);
    bool limited = below(seed, 2);
    c->job[c->n++] = (struct course_job){.workers = workers,
                                         .ends = now + length,
                                         .limit_end = limited ? now + length + (int64_t)below(seed, 20) : NEVER,
                                         .is_later = is_later};
    c->used += workers;
}

static void end_jobs(struct course *c, int64_t now)
{
    for (int i = 0; i < c->n; i++)
        if (c->job[i].ends <= now) {
            c->used -= c->job[i].workers;
            c->job[i--] = c->job[--c->n];
        }
}

/* When the first job would start at the latest if no job overtook it: when the jobs before it have reached their limits
 * (one without a limit: has ended), in this order. */
static int64_t promised(const struct course *c, int first)
{
    struct course left = *c;
    for (int64_t t = 0;; t++) {
        for (int i = 0; i < left.n; i++) {
            int64_t end = left.job[i].limit_end < NEVER ? left.job[i].limit_end : left.job[i].ends;
            if (end <= t) {
                left.used -= left.job[i].workers;
                left.job[i--] = left.job[--left.n];
            }
        }
        if (left.slots - left.used >= first)
            return t;
    }
}

/* One node, some running jobs, a first job that waits, and in each unit of time a small job that would like to
 * overtake. Only the jobs before it may delay the first one; an unknown end is promised only when all have a limit or
 * have ended. */
TEST(the_first_job_is_not_delayed)
{
    uint64_t seed = 11;
    int overtaken = 0;
    for (int round = 0; round < 3000; round++) {
        struct course c = {.slots = 8 + (int)below(&seed, 9)};
        while (c.used < c.slots - 2 && c.n < 8)
            start(&c, &seed, 1 + (int)below(&seed, (uint64_t)(c.slots - c.used - 1)), 0, false);
        int first = c.slots - c.used + 1 + (int)below(&seed, (uint64_t)c.used);
        int64_t all = 0, at = promised(&c, first), now = 0;
        bool all_limited = true;
        for (int i = 0; i < c.n; i++) {
            all_limited = all_limited && c.job[i].limit_end < NEVER;
            int64_t end = c.job[i].limit_end < NEVER ? c.job[i].limit_end : c.job[i].ends;
            all = end > all ? end : all;
        }
        for (; c.slots - c.used < first; now++) {
            assert_true(now <= (all_limited ? at : all));
            int workers = 1 + (int)below(&seed, 3);
            int64_t limit = below(&seed, 2) ? 1 + (int64_t)below(&seed, 30) : 0;
            if (c.n < COURSE && asks(&c, first, workers, limit, now)) {
                assert_true(workers <= c.slots - c.used);
                c.job[c.n++] = (struct course_job){.workers = workers,
                                                   .ends = limit ? now + limit : NEVER,
                                                   .limit_end = limit ? now + limit : NEVER,
                                                   .is_later = true};
                c.used += workers;
                overtaken++;
            }
            end_jobs(&c, now + 1);
        }
    }
    assert_true(overtaken > 500);
}
