/* The cores that workers get on recorded machines: hwloc's files of machines/, which its script `make` describes.
 * libhwloc reads a file; its result becomes the files of sysfs that the same machine would have, and control's own code
 * reads those. */
#include "common/base/cpus.h"
#include "daemon/control/local/cores.h"
#include "tests/daemon/control/local/sysfs_tree.h"
#include "tests/lib/test.h"

#include <hwloc.h>
#include <hwloc/distances.h>

#define LIST 1024
#define MAX_BOUND 6

static const struct machine {
    const char *name;
    int cpus, cores, nodes; /* that workers may use; physical; NUMA nodes with such CPUs */
    int threads;            /* of every physical core; 0: not the same for all */
} machines[] = {
    {"cores64", 64, 64, 4, 1}, {"nps4", 64, 32, 8, 2},   {"smt2", 16, 8, 1, 2},  {"hybrid", 16, 12, 1, 0},
    {"offline", 29, 15, 2, 0}, {"cpuset", 32, 32, 3, 1}, {"bare", 12, 12, 3, 1},
};
#define N_MACHINES ((int)(sizeof(machines) / sizeof(machines[0])))

static struct cores s;

/* ---- from hwloc to sysfs ---- */

static const char *list_of(hwloc_const_cpuset_t set)
{
    static char text[LIST];
    hwloc_bitmap_list_snprintf(text, sizeof(text), set);
    return text;
}

static void write_distances(hwloc_topology_t h, const char *root)
{
    struct hwloc_distances_s *d;
    unsigned n = 1;
    if (hwloc_distances_get_by_name(h, "NUMALatency", &n, &d, 0) || n == 0)
        return;
    for (unsigned i = 0; i < d->nbobjs; i++) {
        char folder[64], text[LIST];
        size_t at = 0;
        for (unsigned k = 0; k < d->nbobjs; k++)
            at +=
                (size_t)snprintf(text + at, sizeof(text) - at, "%s%d", k ? " " : "", (int)d->values[i * d->nbobjs + k]);
        snprintf(folder, sizeof(folder), "node/node%u", d->objs[i]->os_index);
        sysfs_tree_write_line(root, folder, "distance", text);
    }
    hwloc_distances_release(h, d);
}

static void write_machine(hwloc_topology_t h, const char *root)
{
    hwloc_obj_t node = NULL, pu = NULL;
    sysfs_tree_write_line(root, "node", "online", list_of(hwloc_topology_get_topology_nodeset(h)));
    while ((node = hwloc_get_next_obj_by_type(h, HWLOC_OBJ_NUMANODE, node))) {
        char folder[64];
        snprintf(folder, sizeof(folder), "node/node%u", node->os_index);
        sysfs_tree_write_line(root, folder, "cpulist", list_of(node->cpuset));
    }
    while ((pu = hwloc_get_next_obj_by_type(h, HWLOC_OBJ_PU, pu))) {
        hwloc_obj_t core = hwloc_get_ancestor_obj_by_type(h, HWLOC_OBJ_CORE, pu);
        char folder[64];
        snprintf(folder, sizeof(folder), "cpu/cpu%u/topology", pu->os_index);
        sysfs_tree_write_line(root, folder, "thread_siblings_list", list_of((core ? core : pu)->cpuset));
    }
    write_distances(h, root);
}

static void on(const char *name)
{
    char path[4096], root[4096];
    uint8_t cpus[CHANNEL_MAX_CPUS / 8];
    struct why why = {""};
    hwloc_topology_t h;
    snprintf(path, sizeof(path), "%s/tests/daemon/control/local/machines/%s.xml", getenv("DTD_SOURCE"), name);
    snprintf(root, sizeof(root), "%s/%s", test_tmpdir(), name);
    assert_int_equal(0, hwloc_topology_init(&h));
    assert_int_equal(0, hwloc_topology_set_xml(h, path));
    assert_int_equal(0, hwloc_topology_set_flags(h, HWLOC_TOPOLOGY_FLAG_INCLUDE_DISALLOWED));
    assert_int_equal(0, hwloc_topology_load(h));
    write_machine(h, root);
    const char *allowed = list_of(hwloc_topology_get_allowed_cpuset(h));
    assert_ok(cpus_parse(allowed, strlen(allowed), CHANNEL_MAX_CPUS, cpus));
    memset(&s, 0, sizeof(s));
    topology_init(&s.at, cpus);
    if (topology_read(&s.at, root, &why))
        fail_msg("%s: %s", name, why.text);
    hwloc_topology_destroy(h);
}

TEST(machines_are_read_as_hwloc_recorded_them)
{
    for (int i = 0; i < N_MACHINES; i++) {
        int cores = 0;
        on(machines[i].name);
        for (int k = 0; k < s.at.n_cpus; k++)
            cores += s.at.cpu[k].core == k;
        if (s.at.n_cpus != machines[i].cpus || cores != machines[i].cores || s.at.n_cpu_nodes != machines[i].nodes)
            fail_msg("%s: %d CPUs, %d cores, %d nodes", machines[i].name, s.at.n_cpus, cores, s.at.n_cpu_nodes);
    }
    on("nps4");
    assert_true(s.at.distance[5][5] == 10 && s.at.distance[5][6] == 12 && s.at.distance[5][3] == 32);
}

/* ---- examples ---- */

/* The cores of the workers of a job in the order of their slots, which is that of the job's ranks on this machine. */
static const struct placed {
    const char *machine;
    int workers, threads;
    const char *cores[MAX_BOUND];
} examples[] = {
    /* a worker on each node; two; four: pairs of the innermost axis share a node */
    {"cores64", 4, 0, {"0-15", "16-31", "32-47", "48-63"}},
    {"cores64", 8, 0, {"0-7", "8-15", "16-23", "24-31", "32-39", "40-47"}},
    {"cores64", 16, 0, {"0-3", "4-7", "8-11", "12-15", "16-19"}},
    /* 21 cores fit into no node: as few as possible are outside, in the same socket */
    {"cores64", 3, 0, {"0-20", "32-52", "21-31,53-62"}},
    {"nps4", 8, 0, {"0-3,32-35", "4-7,36-39", "8-11,40-43"}},
    {"nps4", 16, 0, {"0-1,32-33", "2-3,34-35", "4-5,36-37"}},
    {"nps4", 8, 4, {"0-3", "4-7", "8-11"}}, /* a physical core for each thread */
    {"smt2", 2, 0, {"0-3,8-11", "4-7,12-15"}},
    {"smt2", 2, 4, {"0-3", "4-7"}},
    {"smt2", 16, 0, {"0", "8", "1", "9"}},
    /* fast cores come first, as the kernel numbers them */
    {"hybrid", 1, 4, {"0,2,4,6"}},
    {"hybrid", 2, 0, {"0-7", "8-15"}},
    {"hybrid", 2, 6, {"0,2,4,6,8-9", "10-15"}},
    /* CPU 19 has lost its sibling 3; 12 and 28 are gone */
    {"offline", 2, 0, {"0-2,4-7,16-18,20-23", "8-11,13-15,24-27,29-31"}},
    {"offline", 14, 1, {"0", "1", "2", "4", "5", "6"}},
    {"cpuset", 3, 0, {"20-29", "32-41", "42-51"}},
    {"cpuset", 8, 0, {"20-23", "24-27", "28-31", "32-35", "36-39", "40-43"}},
    {"bare", 3, 0, {"0-3", "4-7", "8-11"}}, /* a node without memory still has cores */
};

TEST(examples_of_placement)
{
    for (size_t i = 0; i < sizeof(examples) / sizeof(examples[0]); i++) {
        const struct placed *x = &examples[i];
        on(x->machine);
        for (int w = 0; w < MAX_BOUND && x->cores[w]; w++) {
            uint8_t cpus[CHANNEL_MAX_CPUS / 8];
            char list[LIST];
            cores_bind(&s, x->workers, x->threads, CORES_ANY, cpus);
            cpus_print(cpus, CHANNEL_MAX_CPUS, list, sizeof(list));
            if (strcmp(x->cores[w], list))
                fail_msg("%s, %d workers of %d: worker %d has %s, expected %s", x->machine, x->workers, x->threads, w,
                         list, x->cores[w]);
        }
    }
}

/* ---- every number of workers on every machine ---- */

struct job {
    int workers, share;
    int home[CHANNEL_MAX_CPUS];  /* of each worker: the index of its only node; -1: several */
    int cores[CHANNEL_MAX_CPUS]; /* of each physical core: workers that have a thread of it */
};

static void note_worker(struct job *j, int w, const uint8_t *cpus)
{
    bool counted[CHANNEL_MAX_CPUS] = {false};
    int n = 0;
    for (int i = 0; i < s.at.n_cpus; i++) {
        const struct topology_cpu *cpu = &s.at.cpu[i];
        if (!cpus_has(cpus, cpu->number))
            continue;
        j->home[w] = n++ == 0 || j->home[w] == cpu->node ? cpu->node : -1;
        j->cores[cpu->core] += !counted[cpu->core];
        counted[cpu->core] = true;
        assert_int_equal(1, s.users[i]); /* no two workers share a CPU */
    }
    assert_int_equal(j->share, n);
}

static void place(struct job *j, int workers)
{
    *j = (struct job){.workers = workers, .share = s.at.n_cpus / workers};
    memset(s.users, 0, sizeof(s.users));
    for (int w = 0; w < workers; w++) {
        uint8_t cpus[CHANNEL_MAX_CPUS / 8];
        cores_bind(&s, workers, 0, CORES_ANY, cpus);
        note_worker(j, w, cpus);
    }
}

static int room(const struct job *j, int node)
{
    int n = 0;
    for (int i = 0; i < s.at.n_cpus; i++)
        n += s.at.cpu[i].node == node;
    return n / j->share;
}

/* As many workers as fit into nodes have one node each, in the order of their ranks. */
static void expect_homes(const struct machine *m, const struct job *j)
{
    int fit = 0, within = 0, last = 0;
    for (int node = 0; node < s.at.n_nodes; node++)
        fit += room(j, node);
    for (int w = 0; w < j->workers; w++) {
        within += j->home[w] >= 0;
        if (j->home[w] >= 0 && j->home[w] < last)
            fail_msg("%s, %d workers: rank %d is in an earlier node than the rank before", m->name, j->workers, w);
        last = j->home[w] > last ? j->home[w] : last;
    }
    if (within != (j->workers < fit ? j->workers : fit))
        fail_msg("%s, %d workers of %d: %d are within a node, %d fit", m->name, j->workers, j->share, within, fit);
}

/* The ranks of the innermost axis, `axis` neighbors, share a node where its size divides the room of all nodes. */
static void expect_neighbors(const struct machine *m, const struct job *j, int axis)
{
    for (int node = 0; node < s.at.n_nodes; node++)
        if (room(j, node) % axis || j->workers % axis)
            return;
    for (int w = 0; w < j->workers; w++)
        if (j->home[w] >= 0 && j->home[w] != j->home[w / axis * axis])
            fail_msg("%s, %d workers: ranks %d and %d are in different nodes", m->name, j->workers, w / axis * axis, w);
}

TEST(any_number_of_workers)
{
    for (int i = 0; i < N_MACHINES; i++) {
        const struct machine *m = &machines[i];
        on(m->name);
        for (int workers = 1; workers <= m->cpus; workers++) {
            struct job j;
            place(&j, workers);
            expect_homes(m, &j);
            for (int axis = 2; axis <= 8; axis *= 2)
                expect_neighbors(m, &j, axis);
            for (int k = 0; k < s.at.n_cpus && m->threads && j.share % m->threads == 0; k++)
                if (j.cores[k] > 1)
                    fail_msg("%s, %d workers share a physical core", m->name, workers);
        }
    }
}
