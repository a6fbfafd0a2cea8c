/* The cores that workers are bound to, on machines with different topologies. */
#include "daemon/control/local/cores.h"

#include "common/base/cpus.h"
#include "tests/daemon/control/local/sysfs_tree.h"
#include "tests/lib/test.h"

static struct cores s;

static void on(const struct sysfs_tree *tree, const char *mine)
{
    memset(&s, 0, sizeof(s));
    sysfs_tree_read(tree, mine, &s.at);
}

/* A machine with one node and the CPUs 1, 3, 8, 9. */
static void on_four_cores(void)
{
    const uint8_t cpus[CHANNEL_MAX_CPUS / 8] = {1 << 1 | 1 << 3, 3};
    memset(&s, 0, sizeof(s));
    topology_init(&s.at, cpus);
}

static const char *bind_n(int workers, int threads, int home, int elsewhere)
{
    static char list[1024];
    uint8_t cpus[CHANNEL_MAX_CPUS / 8];
    int n = cores_bind(&s, workers, threads, home, cpus);
    cpus_print(cpus, CHANNEL_MAX_CPUS, list, sizeof(list));
    if (n != elsewhere)
        fail_msg("%d of %s are outside the home node, expected %d", n, list, elsewhere);
    return list;
}

/* The cores of the job's next worker; all of them must be in its home node. */
#define EXPECT(cores, workers, threads, home) assert_string_equal(cores, bind_n(workers, threads, home, 0))

static int count(const uint8_t *cpus)
{
    int n = 0;
    for (int i = 0; i < CHANNEL_MAX_CPUS / 8; i++)
        n += __builtin_popcount(cpus[i]);
    return n;
}

/* ---- one node ---- */

TEST(cores_are_shared_out)
{
    uint8_t a[CHANNEL_MAX_CPUS / 8], b[CHANNEL_MAX_CPUS / 8], both[CHANNEL_MAX_CPUS / 8];
    on_four_cores();
    cores_bind(&s, 2, 0, CORES_ANY, a);
    cores_bind(&s, 2, 0, CORES_ANY, b);
    assert_int_equal(2, count(a));
    for (int i = 0; i < CHANNEL_MAX_CPUS / 8; i++)
        both[i] = a[i] | b[i];
    assert_int_equal(4, count(both)); /* no core is used twice */
    cores_unbind(&s, a);
    cores_bind(&s, 4, 1, CORES_ANY, both); /* gets a core that was returned */
    assert_int_equal(1, count(both));
    assert_true(both[0] & a[0]);
}

TEST(too_many_workers_are_not_bound)
{
    on_four_cores();
    EXPECT("", 5, 0, CORES_ANY);
    EXPECT("", 1, 9, CORES_ANY);
    on(&sysfs_two_sockets, "");
    EXPECT("", 65, 0, CORES_ANY);
    EXPECT("", 65, 0, 1);
    EXPECT("", 1, 65, 0);
}

TEST(run_cores_is_a_maximum)
{
    on_four_cores();
    assert_int_equal(0, cores_width(&s, 2, 0, 0));
    assert_int_equal(2, cores_width(&s, 2, 0, 2));
    assert_int_equal(1, cores_width(&s, 2, 1, 2)); /* run.threads goes before it */
    assert_int_equal(0, cores_width(&s, 2, 0, 3)); /* both together would need six */
    assert_int_equal(0, cores_width(&s, 1, 0, 4096));
}

/* Two jobs of two workers with run.cores: 4 and GPUs on both sockets. */
TEST(run_cores_are_beside_the_gpu_and_nobody_elses)
{
    uint8_t all[CHANNEL_MAX_CPUS / 8] = {0}, one[CHANNEL_MAX_CPUS / 8];
    on(&sysfs_two_sockets, "");
    for (int worker = 0; worker < 4; worker++) {
        assert_int_equal(0, cores_bind(&s, 2, cores_width(&s, 2, 0, 4), cores_home(&s, worker % 2), one));
        assert_int_equal(4, count(one));
        for (int i = 0; i < CHANNEL_MAX_CPUS / 8; i++) {
            assert_int_equal(0, all[i] & one[i]);
            all[i] |= one[i];
        }
    }
}

/* Several jobs have more workers than there are cores: each core gets a second worker before one gets a third. */
TEST(jobs_share_cores_evenly)
{
    on(&sysfs_two_sockets, "0-1,16-17");
    EXPECT("0-1", 2, 0, CORES_ANY);
    EXPECT("16-17", 2, 0, CORES_ANY);
    EXPECT("16-17", 2, 2, 1);
    EXPECT("0-1", 2, 2, CORES_ANY);
    for (int i = 0; i < 4; i++)
        assert_int_equal(2, s.users[i]);
}

TEST(default_is_generous)
{
    cores_init(&s, "/sys");
    assert_true(s.at.n_cpus >= 1 && cores_default(&s) >= 16 && cores_default(&s) >= s.at.n_cpus);
}

/* Workers that an earlier control bound count like those that this one binds. */
TEST(found_workers_keep_their_cores)
{
    uint8_t a[CHANNEL_MAX_CPUS / 8], b[CHANNEL_MAX_CPUS / 8];
    on(&sysfs_two_sockets, "0-3,16-19");
    struct cores found = s;
    cores_bind(&s, 2, 0, 1, a);
    cores_use(&found, a);
    assert_memory_equal(s.users, found.users, sizeof(s.users));
    cores_bind(&found, 2, 0, 1, b);
    for (int i = 0; i < CHANNEL_MAX_CPUS / 8; i++)
        assert_int_equal(0, a[i] & b[i]);
    cores_unbind(&found, a);
    cores_unbind(&found, b);
    for (int i = 0; i < CHANNEL_MAX_CPUS; i++)
        assert_int_equal(0, found.users[i]);
}

/* The oracle for one node: `width` times, the first CPU among those with the fewest users. */
static void bind_by_number(int *users, int workers, int threads, uint8_t *ret)
{
    int n = s.at.n_cpus, width = threads ? threads : n / workers;
    memset(ret, 0, CHANNEL_MAX_CPUS / 8);
    for (int k = 0; workers <= n && width <= n && k < width; k++) {
        int best = -1;
        for (int i = 0; i < n; i++)
            if (!cpus_has(ret, s.at.cpu[i].number) && (best < 0 || users[i] < users[best]))
                best = i;
        users[best]++;
        cpus_add(ret, s.at.cpu[best].number);
    }
}

static unsigned draw(unsigned n)
{
    static uint32_t x = 2463534242;
    x ^= x << 13;
    x ^= x >> 17;
    x ^= x << 5;
    return x % n;
}

/* Jobs start and end at random; `home`: one of n_homes. */
static void compare(const int *homes, unsigned n_homes)
{
    uint8_t held[64][CHANNEL_MAX_CPUS / 8], right[CHANNEL_MAX_CPUS / 8];
    int users[CHANNEL_MAX_CPUS] = {0};
    for (int turn = 0; turn < 3000; turn++) {
        uint8_t *mine = held[turn % 64];
        if (turn >= 64) {
            cores_unbind(&s, mine);
            for (int i = 0; i < s.at.n_cpus; i++)
                users[i] -= cpus_has(mine, s.at.cpu[i].number);
        }
        int workers = 1 + (int)draw(10), threads = (int)draw(6);
        assert_int_equal(0, cores_bind(&s, workers, threads, homes[draw(n_homes)], mine));
        bind_by_number(users, workers, threads, right);
        assert_memory_equal(right, mine, sizeof(right));
        assert_memory_equal(users, s.users, sizeof(users));
    }
}

/* The same inside a cpuset (Slurm, a container) that contains CPUs of only one of several nodes. */
TEST(on_one_node_cores_go_by_their_numbers)
{
    const int homes[] = {CORES_ANY, CORES_UNKNOWN, 0};
    on(&sysfs_one, "");
    compare(homes, 3);
    on(&sysfs_memory_only, "");
    compare(homes, 3);
    on(&sysfs_two_sockets, "16-23,56-59");
    assert_int_equal(CORES_UNKNOWN, cores_home(&s, 0)); /* a GPU in the other node */
    compare(homes, 3);
}

TEST(where_a_gpus_node_is_not_known_cores_go_by_their_numbers)
{
    const int unknown[] = {CORES_UNKNOWN};
    on(&sysfs_four_nodes, "");
    compare(unknown, 1);
    assert_int_equal(CORES_UNKNOWN, cores_home(&s, -1));
    assert_int_equal(CORES_UNKNOWN, cores_home(&s, 99));
}

/* Workers of one node, too, do not share physical cores. */
TEST(on_one_node_siblings_belong_to_one_worker)
{
    on(&sysfs_one_smt, "");
    EXPECT("0-1,4-5", 2, 0, CORES_ANY);
    EXPECT("2-3,6-7", 2, 0, CORES_UNKNOWN);
    on(&sysfs_one_smt, "");
    EXPECT("0-3", 1, 4, CORES_ANY); /* four threads on four cores */
    on(&sysfs_gaps, "0-79");        /* siblings have consecutive numbers */
    EXPECT("0,4,8", 4, 3, CORES_ANY);
    EXPECT("12,16,20", 4, 3, CORES_ANY);
    on(&sysfs_two_sockets, "16-23,48-55");
    EXPECT("16-19,48-51", 2, 0, cores_home(&s, 0));
}

/* ---- a worker has a GPU ---- */

TEST(gpus_of_two_sockets)
{
    static const char *const cores[2][4] = {{"0-3,32-35", "4-7,36-39", "8-11,40-43", "12-15,44-47"},
                                            {"16-19,48-51", "20-23,52-55", "24-27,56-59", "28-31,60-63"}};
    on(&sysfs_two_sockets, "");
    for (int gpu = 0; gpu < 8; gpu++) /* consecutive GPUs are on alternating sockets */
        EXPECT(cores[gpu % 2][gpu / 2], 8, 0, cores_home(&s, gpu % 2));
}

TEST(one_worker_has_its_whole_node)
{
    on(&sysfs_two_sockets, "");
    EXPECT("16-31,48-63", 2, 0, 1);
    EXPECT("0-15,32-47", 2, 0, 0);
}

/* With few threads, each thread gets a physical core of its own, and the next worker gets other cores. */
TEST(threads_stand_on_cores_of_their_own)
{
    on(&sysfs_two_sockets, "");
    EXPECT("16-19", 8, 4, 1);
    EXPECT("20-23", 8, 4, 1);
    EXPECT("24-27", 8, 4, 1);
    EXPECT("28-31", 8, 4, 1);
    EXPECT("48-51", 8, 4, 1); /* all cores of the node are in use, so their siblings follow */
    EXPECT("0-3", 8, 4, 0);
    on(&sysfs_gaps, ""); /* here siblings have consecutive numbers */
    EXPECT("0,4,8", 4, 3, 0);
    EXPECT("12,16,20", 4, 3, CORES_ANY);
}

TEST(gpus_that_are_all_on_one_node)
{
    on(&sysfs_two_sockets, "");
    EXPECT("0-7,32-39", 4, 0, 0);
    EXPECT("8-15,40-47", 4, 0, 0);
    assert_string_equal("16-23,48-55", bind_n(4, 0, 0, 16)); /* the home node has no free CPUs left */
    assert_string_equal("24-31,56-63", bind_n(4, 0, 0, 16));
    on(&sysfs_two_sockets, "");
    EXPECT("16-26,48-57", 3, 0, 1);
    assert_string_equal("0-4,27-36,58-63", bind_n(3, 0, 1, 10)); /* the rest of the home node, then another node */
}

TEST(the_nearest_node_comes_next)
{
    on(&sysfs_four_nodes, "");
    EXPECT("80-95,208-223", 8, 0, 5);
    assert_string_equal("64-79,192-207", bind_n(8, 0, 5, 32)); /* a node of the same socket, not the next number */
    assert_string_equal("96-111,224-239", bind_n(8, 0, 5, 32));
    assert_string_equal("112-127,240-255", bind_n(8, 0, 5, 32));
    assert_string_equal("0-15,128-143", bind_n(8, 0, 5, 32));
}

TEST(a_gpu_of_a_node_without_cpus)
{
    on(&sysfs_gaps, "");
    assert_int_equal(CORES_UNKNOWN, cores_home(&s, 1));
    assert_string_equal("80-119", bind_n(4, 0, cores_home(&s, 255), 40)); /* node 8 is nearest */
    assert_string_equal("0-39", bind_n(4, 0, cores_home(&s, 252), 40));   /* both nodes are equally far */
    EXPECT("120-159", 4, 0, cores_home(&s, 8));
}

TEST(an_affinity_that_cuts_a_node)
{
    on(&sysfs_two_sockets, "12-31,44-63");
    EXPECT("12-15,44-47", 5, 0, 0);
    assert_string_equal("16-19,48-51", bind_n(5, 0, 0, 8));
    EXPECT("20-23,52-55", 5, 0, 1);
    on(&sysfs_two_sockets, "0-15,48-63"); /* one thread of each core */
    EXPECT("48-55", 4, 0, 1);
    EXPECT("0-7", 4, 0, 0);
}

TEST(nodes_with_offline_cpus)
{
    on(&sysfs_offline, "");
    EXPECT("0-5,32-36", 4, 0, 0);
    EXPECT("16-20,48-52,56", 4, 0, 1); /* 56 has no sibling, so the odd last thread splits no core */
    assert_string_equal("6-7,21-23,37-39,53-55", bind_n(4, 0, 0, 6));
}

TEST(more_cpus_than_the_maximum)
{
    char list[1024];
    on(&sysfs_large, "");
    EXPECT("0-63,576-639", 8, 0, 0);
    snprintf(list, sizeof(list), "%s", bind_n(8, 0, 7, 56)); /* 72 CPUs of this node have usable numbers */
    assert_non_null(strstr(list, "504-575"));
}

/* An odd number of threads: two workers share one core, and the last worker has as many whole cores as the others. */
TEST(odd_threads_pair_up)
{
    on(&sysfs_two_sockets, "0-25,32-57"); /* 16 and 10 cores of 2 */
    EXPECT("0-6,32-37", 4, 0, 0);
    EXPECT("7-12,38-44", 4, 0, 0);
}

/* ---- a worker has no GPU ---- */

TEST(a_worker_stays_in_one_node)
{
    on(&sysfs_two_sockets, "");
    EXPECT("0-9,32-41", 3, 20, CORES_ANY);
    EXPECT("16-25,48-57", 3, 20, CORES_ANY); /* in the order of numbers it would get CPUs of both nodes */
    assert_string_equal("10-15,26-29,42-47,58-61", bind_n(3, 20, CORES_ANY, 8));
    on(&sysfs_four_nodes, "");
    for (int k = 0; k < 8; k++) {
        char list[64];
        snprintf(list, sizeof(list), "%d-%d,%d-%d", 16 * k, 16 * k + 15, 128 + 16 * k, 128 + 16 * k + 15);
        EXPECT(list, 8, 0, CORES_ANY);
    }
}

/* Eight threads fit into a node, but it does not have a physical core for each. */
TEST(a_core_of_another_node_is_better_than_half_a_core)
{
    on(&sysfs_two_sockets, "0-3,16-19,32-35,48-51");
    assert_string_equal("0-3,16-19", bind_n(1, 8, CORES_ANY, 4));
    assert_string_equal("32-35,48-51", bind_n(1, 8, CORES_ANY, 4));
}

TEST(a_second_job_goes_where_cores_are_free)
{
    on(&sysfs_two_sockets, "");
    EXPECT("0-15", 1, 16, CORES_ANY);
    EXPECT("16-31", 1, 16, CORES_ANY);
    EXPECT("32-47", 1, 16, CORES_ANY); /* then the siblings */
    EXPECT("48-63", 1, 16, CORES_ANY);
    on(&sysfs_two_sockets, "0-3,16-19,32-35,48-51");
    EXPECT("0-3", 1, 4, CORES_ANY);
    EXPECT("16-17,48-49", 3, 4, CORES_ANY); /* whole cores, although node 0 also has four free CPUs */
}

TEST(all_cores_for_one)
{
    on(&sysfs_two_sockets, "");
    assert_string_equal("0-63", bind_n(1, 0, CORES_ANY, 32));
}

/* ---- invariants on any machine ---- */

static int core_users(const int *users, int core)
{
    int n = 0;
    for (int i = 0; i < s.at.n_cpus; i++)
        n += s.at.cpu[i].core == core && users[i] > 0;
    return n;
}

static void check(const int *before, const uint8_t *cpus, int width, int home, int elsewhere)
{
    int n = 0, far = 0, most = 0, least = 1 << 20, far_most = -1, near_least = 1 << 20;
    for (int i = 0; i < s.at.n_cpus; i++) {
        bool mine = cpus_has(cpus, s.at.cpu[i].number), near = s.at.cpu[i].node == home;
        n += mine;
        far += mine && !near;
        assert_int_equal(before[i] + mine, s.users[i]);
        if (mine && before[i] > most)
            most = before[i];
        if (!mine && before[i] < least)
            least = before[i];
        if (mine && !near && before[i] > far_most)
            far_most = before[i];
        if (!mine && near && before[i] < near_least)
            near_least = before[i];
    }
    assert_int_equal(width, n);
    assert_int_equal(width, count(cpus)); /* only CPUs of the affinity */
    assert_true(n == s.at.n_cpus || most <= least);
    if (home >= 0) { /* a worker with a GPU: no CPU elsewhere while one of the home node has as few users */
        assert_int_equal(far, elsewhere);
        assert_true(far_most < near_least);
    }
}

/* The home that CORES_ANY chooses is optimal: no fixed home gives fewer CPUs outside it. */
static void check_any(const struct cores *before, int workers, int threads, int elsewhere)
{
    for (int home = 0; home < before->at.n_nodes; home++) {
        struct cores other = *before;
        uint8_t cpus[CHANNEL_MAX_CPUS / 8];
        if (workers * threads > 32) /* below that, a worker with a GPU follows another rule than one without */
            assert_true(elsewhere <= cores_bind(&other, workers, threads, home, cpus));
    }
}

static void churn(int n_homes)
{
    uint8_t held[16][CHANNEL_MAX_CPUS / 8];
    for (int turn = 0; turn < 800; turn++) {
        uint8_t *mine = held[turn % 16];
        if (turn >= 16)
            cores_unbind(&s, mine);
        struct cores before = s;
        int home = (int)draw((unsigned)n_homes + 1) - 1, workers = 1 + (int)draw(12), threads = 1 + (int)draw(20);
        int elsewhere = cores_bind(&s, workers, threads, home, mine);
        check(before.users, mine, threads, home, elsewhere);
        if (home == CORES_ANY)
            check_any(&before, workers, threads, elsewhere);
    }
}

TEST(no_core_is_shared_while_one_is_free)
{
    on(&sysfs_two_sockets, "");
    churn(2);
    on(&sysfs_two_sockets, "2-9,16-31,40-50");
    churn(2);
    on(&sysfs_offline, "");
    churn(2);
    on(&sysfs_gaps, "0-15,80-97");
    churn(6);
}

/* Equal shares of whole cores: no core is shared by two workers, wherever the GPUs are attached. */
TEST(no_physical_core_is_split)
{
    static const int workers[] = {1, 2, 4, 8, 16, 32};
    on(&sysfs_two_sockets, "");
    for (size_t k = 0; k < sizeof(workers) / sizeof(workers[0]); k++)
        for (int gpus = -1; gpus < 4; gpus++) {
            uint8_t cpus[CHANNEL_MAX_CPUS / 8];
            memset(s.users, 0, sizeof(s.users));
            for (int w = 0; w < workers[k]; w++) {
                int before[CHANNEL_MAX_CPUS];
                memcpy(before, s.users, sizeof(before));
                cores_bind(&s, workers[k], 0, gpus < 0 ? CORES_ANY : gpus < 2 ? gpus : w % 2, cpus);
                for (int i = 0; i < s.at.n_cpus; i++)
                    if (cpus_has(cpus, s.at.cpu[i].number))
                        assert_int_equal(0, core_users(before, s.at.cpu[i].core));
            }
        }
}

static bool spans_nodes(const uint8_t *cpus)
{
    int first = -1;
    for (int i = 0; i < s.at.n_cpus; i++) {
        if (!cpus_has(cpus, s.at.cpu[i].number))
            continue;
        if (first >= 0 && s.at.cpu[i].node != first)
            return true;
        first = s.at.cpu[i].node;
    }
    return false;
}

/* 64 cores in 4 nodes: any number of workers gets disjoint sets of equal size. As many of them as fit into the 16 cores
 * of a node stay in one; only the others span nodes. */
TEST(workers_divide_64_cores_of_4_nodes)
{
    on(&sysfs_four_sockets, "");
    for (int workers = 1; workers <= 64; workers++) {
        const int share = 64 / workers, fit = 4 * (16 / share);
        int spanning = 0;
        memset(s.users, 0, sizeof(s.users));
        for (int w = 0; w < workers; w++) {
            uint8_t cpus[CHANNEL_MAX_CPUS / 8];
            cores_bind(&s, workers, 0, CORES_ANY, cpus);
            assert_int_equal(share, count(cpus));
            spanning += spans_nodes(cpus);
        }
        for (int i = 0; i < s.at.n_cpus; i++)
            assert_true(s.users[i] <= 1);
        if (spanning != (workers > fit ? workers - fit : 0))
            fail_msg("%d workers of %d cores: %d span nodes, where %d fit", workers, share, spanning, fit);
    }
}

/* Ranks that follow each other are neighbors: rings and pairs of ranks exchange most of their bytes within a node. */
TEST(consecutive_ranks_are_in_one_of_4_nodes)
{
    on(&sysfs_four_sockets, "");
    EXPECT("0,4,8,12,16,20,24,28", 8, 0, CORES_ANY);
    EXPECT("32,36,40,44,48,52,56,60", 8, 0, CORES_ANY);
    EXPECT("1,5,9,13,17,21,25,29", 8, 0, CORES_ANY);
    EXPECT("33,37,41,45,49,53,57,61", 8, 0, CORES_ANY);
    EXPECT("2,6,10,14,18,22,26,30", 8, 0, CORES_ANY);
}
