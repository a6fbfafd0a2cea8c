/* The NUMA nodes of a worker's cores, from folders that imitate sysfs, and the policy of its memory. */
#include "worker/numa.h"

#include "common/base/cpus.h"
#include "tests/daemon/control/local/sysfs_tree.h"
#include "tests/lib/test.h"

#include <linux/mempolicy.h>
#include <sched.h>
#include <sys/syscall.h>

static char cores[2][256];

/* Divides this process's CPUs into two sets; returns their number. */
static int halve(void)
{
    uint8_t mine[CHANNEL_MAX_CPUS / 8], half[2][CHANNEL_MAX_CPUS / 8] = {0};
    int n = cpus_usable(mine, CHANNEL_MAX_CPUS), seen = 0;
    for (int c = 0; c < CHANNEL_MAX_CPUS; c++)
        if (cpus_has(mine, c))
            cpus_add(half[seen++ >= n / 2], c);
    for (int i = 0; i < 2; i++)
        cpus_print(half[i], CHANNEL_MAX_CPUS, cores[i], sizeof(cores[i]));
    return n;
}

static void on(const struct sysfs_tree *tree, struct numa *ret)
{
    static int n;
    char name[32];
    snprintf(name, sizeof(name), "sys%d", n++);
    setenv("DTD_SYSFS", sysfs_tree_write(tree, name), 1);
    memset(ret, 0x5a, sizeof(*ret));
    numa_init(ret);
}

TEST(the_nodes_of_the_cores)
{
    struct numa n;
    if (halve() < 2)
        TEST_SKIP("there is one core");
    on(&(const struct sysfs_tree){1, 0, {{0, cores[0], "10 21"}, {1, cores[1], "21 10"}}}, &n);
    assert_true(n.n_nodes == 2 && n.home == -1 && n.nodes[0] == 3);
    char all[520];
    snprintf(all, sizeof(all), "%s,%s", cores[0], cores[1]);
    on(&(const struct sysfs_tree){1, 0, {{0, "1000-1003", "10 21 21"}, {5, all, "21 10 21"}, {9, "", "21 21 10"}}}, &n);
    assert_true(n.n_nodes == 1 && n.home == 5 && n.nodes[0] == 1 << 5);
}

TEST(a_binding_decides)
{
    struct numa n;
    cpu_set_t one;
    if (halve() < 2)
        TEST_SKIP("there is one core");
    CPU_ZERO(&one);
    CPU_SET(atoi(cores[1]), &one);
    assert_int_equal(0, sched_setaffinity(0, sizeof(one), &one));
    on(&(const struct sysfs_tree){1, 0, {{0, cores[0], "10 21"}, {3, cores[1], "21 10"}}}, &n);
    assert_true(n.n_nodes == 1 && n.home == 3);
}

TEST(without_sysfs_nothing_is_known)
{
    struct numa n;
    setenv("DTD_SYSFS", "/nonexistent", 1);
    numa_init(&n);
    assert_true(n.n_nodes == 0 && n.home == -1);
    assert_ok(numa_interleave(&n));
}

static int policy(unsigned long *ret_nodes)
{
    int mode = -1;
    unsigned long nodes[NUMA_MAX_NODES / 64 + 1] = {0};
    assert_int_equal(0, syscall(SYS_get_mempolicy, &mode, nodes, NUMA_MAX_NODES + 64, NULL, 0));
    *ret_nodes = nodes[0];
    return mode;
}

/* The kernel ignores the nodes that this machine does not have. */
TEST(memory_of_several_nodes_is_interleaved)
{
    unsigned long nodes;
    struct numa n = {.nodes = {1}, .n_nodes = 1, .home = 0};
    assert_ok(numa_interleave(&n));
    assert_int_equal(MPOL_DEFAULT, policy(&nodes));
    n = (struct numa){.nodes = {3}, .n_nodes = 2, .home = -1};
    if (numa_interleave(&n))
        TEST_SKIP("set_mempolicy is not permitted here");
    assert_int_equal(MPOL_INTERLEAVE, policy(&nodes));
    assert_true(nodes & 1);
}
