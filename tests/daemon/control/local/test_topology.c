/* Reading the topology from /sys: trees of machines with different topologies, and trees that contradict themselves. */
#include "tests/daemon/control/local/sysfs_tree.h"

#include "common/base/cpus.h"
#include "common/base/file.h"
#include "tests/lib/test.h"

static struct topology t;

static void expect_node(int node, int number, const char *cpus)
{
    uint8_t set[CHANNEL_MAX_CPUS / 8];
    char list[256];
    topology_node_cpus(&t, node, set);
    cpus_print(set, CHANNEL_MAX_CPUS, list, sizeof(list));
    assert_int_equal(number, t.node[node]);
    assert_string_equal(cpus, list);
    assert_int_equal(node, topology_find(&t, number));
}

static int core_of(int number)
{
    for (int i = 0; i < t.n_cpus; i++)
        if (t.cpu[i].number == number)
            return t.cpu[t.cpu[i].core].number;
    fail_msg("CPU %d is not in the topology", number);
    return -1;
}

static int count_cores(void)
{
    int n = 0;
    for (int i = 0; i < t.n_cpus; i++)
        n += t.cpu[i].core == i;
    return n;
}

TEST(one_node)
{
    sysfs_tree_read(&sysfs_one, "", &t);
    assert_true(t.n_nodes == 1 && t.n_cpu_nodes == 1 && t.n_cpus == 8 && count_cores() == 8);
    expect_node(0, 0, "0-7");
    sysfs_tree_read(&sysfs_one_smt, "", &t);
    assert_true(t.n_cpu_nodes == 1 && t.n_cpus == 8 && count_cores() == 4);
    assert_int_equal(1, core_of(5));
}

TEST(two_sockets_with_smt)
{
    sysfs_tree_read(&sysfs_two_sockets, "", &t);
    assert_true(t.n_nodes == 2 && t.n_cpu_nodes == 2 && t.n_cpus == 64 && count_cores() == 32);
    expect_node(0, 0, "0-15,32-47");
    expect_node(1, 1, "16-31,48-63");
    assert_true(t.distance[0][0] == 10 && t.distance[0][1] == 21 && t.distance[1][0] == 21);
    assert_int_equal(15, core_of(47));
    assert_int_equal(16, core_of(48));
}

TEST(four_nodes_a_socket)
{
    sysfs_tree_read(&sysfs_four_nodes, "", &t);
    assert_true(t.n_nodes == 8 && t.n_cpu_nodes == 8 && t.n_cpus == 256 && count_cores() == 128);
    expect_node(5, 5, "80-95,208-223");
    assert_true(t.distance[5][4] == 12 && t.distance[5][3] == 32);
}

TEST(nodes_without_cpus)
{
    sysfs_tree_read(&sysfs_memory_only, "", &t);
    assert_true(t.n_nodes == 9 && t.n_cpu_nodes == 1 && t.n_cpus == 72);
    expect_node(1, 1, "");
    assert_true(t.distance[1][0] == 80 && t.distance[1][2] == 255);
}

TEST(numbers_of_nodes_have_gaps)
{
    sysfs_tree_read(&sysfs_gaps, "", &t);
    assert_true(t.n_nodes == 6 && t.n_cpu_nodes == 2 && t.n_cpus == 160 && count_cores() == 40);
    expect_node(1, 8, "80-159");
    expect_node(5, 255, "");
    assert_true(t.distance[5][1] == 60 && t.distance[5][0] == 80);
    assert_int_equal(84, core_of(87));
    assert_int_equal(-1, topology_find(&t, 1));
}

/* A list of siblings contains only CPUs that are online. */
TEST(offline_cpus)
{
    sysfs_tree_read(&sysfs_offline, "", &t);
    assert_true(t.n_cpu_nodes == 2 && t.n_cpus == 47);
    expect_node(0, 0, "0-7,32-39");
    expect_node(1, 1, "16-23,25-31,48-63");
    assert_int_equal(56, core_of(56)); /* 24 is offline */
    assert_int_equal(25, core_of(57));
}

TEST(the_affinity_cuts_nodes_and_cores)
{
    sysfs_tree_read(&sysfs_two_sockets, "12-19,48-49", &t);
    assert_true(t.n_nodes == 2 && t.n_cpu_nodes == 2 && t.n_cpus == 10 && count_cores() == 8);
    expect_node(0, 0, "12-15");
    expect_node(1, 1, "16-19,48-49");
    assert_int_equal(16, core_of(48));
    sysfs_tree_read(&sysfs_two_sockets, "48-51", &t);
    assert_true(t.n_nodes == 2 && t.n_cpu_nodes == 1 && count_cores() == 4);
    expect_node(1, 1, "48-51");
}

/* dtd can bind workers to the first 1,024 CPUs. */
TEST(more_cpus_than_the_maximum)
{
    sysfs_tree_read(&sysfs_large, "", &t);
    assert_true(t.n_nodes == 8 && t.n_cpu_nodes == 8 && t.n_cpus == 1024 && count_cores() == 576);
    expect_node(6, 6, "432-503,1008-1023");
    expect_node(7, 7, "504-575");
    assert_int_equal(447, core_of(1023));
    assert_int_equal(448, core_of(448)); /* its sibling has the number 1,024 */
}

/* ---- invalid files ---- */

static const char *path_in(const char *root, const char *file)
{
    static char path[4096];
    snprintf(path, sizeof(path), "%s/devices/system/%s", root, file);
    return path;
}

static void put(const char *root, const char *file, const char *text)
{
    FILE *f = fopen(path_in(root, file), "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(0, fclose(f));
}

static void of_eight(void)
{
    const uint8_t cpus[CHANNEL_MAX_CPUS / 8] = {0xff};
    memset(&t, 0x5a, sizeof(t));
    topology_init(&t, cpus);
}

/* The topology is the assumed one: one node and eight cores. */
static void expect_flat(err_t expected, const char *root, const char *sentence)
{
    struct topology before;
    struct why why = {""};
    of_eight();
    before = t;
    assert_err(expected, topology_read(&t, root, &why));
    if (!strstr(why.text, sentence))
        fail_msg("'%s' is not in: %s", sentence, why.text);
    assert_memory_equal(&before, &t, sizeof(t));
    assert_true(t.n_cpus == 8 && t.n_cpu_nodes == 1 && count_cores() == 8);
    expect_node(0, 0, "0-7");
}

static const char *tree(const char *name)
{
    static const struct sysfs_tree two = {2, 4, {{0, "0-1,4-5", "10 20"}, {1, "2-3,6-7", "20 10"}}};
    static char root[1024];
    snprintf(root, sizeof(root), "%s", sysfs_tree_write(&two, name));
    return root;
}

TEST(no_nodes_in_sysfs)
{
    expect_flat(ERR_NOTFOUND, "/nonexistent", "node/online");
}

TEST(contradictory_files_are_not_used)
{
    const char *root = tree("a");
    put(root, "node/node1/cpulist", "1-3,6-7\n");
    expect_flat(ERR_CORRUPT, root, "CPU 1 is in two NUMA nodes");
    put(root, "node/node1/cpulist", "2-3,6\n");
    expect_flat(ERR_CORRUPT, root, "CPU 7 is in no NUMA node");
    put(root, "node/node1/cpulist", "2-3,6-\n");
    expect_flat(ERR_CORRUPT, root, "node1/cpulist");
    assert_int_equal(0, unlink(path_in(root, "node/node1/cpulist")));
    expect_flat(ERR_CORRUPT, root, "node1/cpulist");
    put(root, "node/online", "\n");
    expect_flat(ERR_CORRUPT, root, "CPU 0 is in no NUMA node");
    put(root, "node/online", "0-128\n");
    expect_flat(ERR_LIMIT, root, "more than 128 nodes");
}

static void read_again(const char *root)
{
    struct why why = {""};
    of_eight();
    assert_ok(topology_read(&t, root, &why));
}

TEST(missing_distances_are_equal)
{
    static const char *const bad[] = {"", "11\n", "11 30 30\n", "11 9\n", "11 256\n", "11 x\n", "11 30 x\n", "-1 30\n"};
    const char *root = tree("a");
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        put(root, "node/node0/distance", bad[i]);
        read_again(root);
        if (t.distance[0][0] != 10 || t.distance[0][1] != 20 || t.n_cpu_nodes != 2)
            fail_msg("'%s' is accepted", bad[i]);
    }
    put(root, "node/node0/distance", "11 77\n");
    read_again(root);
    assert_true(t.distance[0][0] == 11 && t.distance[0][1] == 77 && t.distance[1][0] == 20);
    assert_int_equal(0, unlink(path_in(root, "node/node0/distance")));
    read_again(root);
    assert_true(t.distance[0][0] == 10 && t.distance[0][1] == 20);
}

TEST(invalid_siblings_are_ignored)
{
    const char *root = tree("a");
    read_again(root);
    assert_true(core_of(4) == 0 && core_of(5) == 1 && core_of(6) == 2 && core_of(7) == 3);
    put(root, "cpu/cpu4/topology/thread_siblings_list", "0\n");                           /* not itself */
    put(root, "cpu/cpu5/topology/thread_siblings_list", "1,,5\n");                        /* no list */
    put(root, "cpu/cpu6/topology/thread_siblings_list", "0,6\n");                         /* of another node */
    assert_int_equal(0, unlink(path_in(root, "cpu/cpu7/topology/thread_siblings_list"))); /* offline by now */
    read_again(root);
    assert_true(core_of(4) == 4 && core_of(5) == 5 && core_of(6) == 6 && core_of(7) == 7);
}
