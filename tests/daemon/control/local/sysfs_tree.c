#include "tests/daemon/control/local/sysfs_tree.h"

#include "common/base/cpus.h"
#include "tests/lib/test.h"

#include <errno.h>
#include <sys/stat.h>

#define MAX 2048 /* CPUs */

const struct sysfs_tree sysfs_one = {1, 0, {{0, "0-7", "10"}}};
const struct sysfs_tree sysfs_one_smt = {2, 4, {{0, "0-7", "10"}}};
const struct sysfs_tree sysfs_two_sockets = {2, 32, {{0, "0-15,32-47", "10 21"}, {1, "16-31,48-63", "21 10"}}};
const struct sysfs_tree sysfs_four_nodes = {2,
                                            128,
                                            {{0, "0-15,128-143", "10 12 12 12 32 32 32 32"},
                                             {1, "16-31,144-159", "12 10 12 12 32 32 32 32"},
                                             {2, "32-47,160-175", "12 12 10 12 32 32 32 32"},
                                             {3, "48-63,176-191", "12 12 12 10 32 32 32 32"},
                                             {4, "64-79,192-207", "32 32 32 32 10 12 12 12"},
                                             {5, "80-95,208-223", "32 32 32 32 12 10 12 12"},
                                             {6, "96-111,224-239", "32 32 32 32 12 12 10 12"},
                                             {7, "112-127,240-255", "32 32 32 32 12 12 12 10"}}};
const struct sysfs_tree sysfs_four_sockets = {1,
                                              0,
                                              {{0, "0,4,8,12,16,20,24,28,32,36,40,44,48,52,56,60", "10 21 21 21"},
                                               {1, "1,5,9,13,17,21,25,29,33,37,41,45,49,53,57,61", "21 10 21 21"},
                                               {2, "2,6,10,14,18,22,26,30,34,38,42,46,50,54,58,62", "21 21 10 21"},
                                               {3, "3,7,11,15,19,23,27,31,35,39,43,47,51,55,59,63", "21 21 21 10"}}};
const struct sysfs_tree sysfs_memory_only = {1,
                                             0,
                                             {{0, "0-71", "10 80 80 80 80 80 80 80 80"},
                                              {1, "", "80 10 255 255 255 255 255 255 255"},
                                              {2, "", "80 255 10 255 255 255 255 255 255"},
                                              {3, "", "80 255 255 10 255 255 255 255 255"},
                                              {4, "", "80 255 255 255 10 255 255 255 255"},
                                              {5, "", "80 255 255 255 255 10 255 255 255"},
                                              {6, "", "80 255 255 255 255 255 10 255 255"},
                                              {7, "", "80 255 255 255 255 255 255 10 255"},
                                              {8, "", "80 255 255 255 255 255 255 255 10"}}};
const struct sysfs_tree sysfs_gaps = {4,
                                      1,
                                      {{0, "0-79", "10 40 80 80 80 80"},
                                       {8, "80-159", "40 10 80 80 80 80"},
                                       {252, "", "80 80 10 80 80 80"},
                                       {253, "", "80 80 80 10 80 80"},
                                       {254, "", "80 60 80 80 10 80"},
                                       {255, "", "80 60 80 80 80 10"}}};
const struct sysfs_tree sysfs_offline = {2, 32, {{0, "0-7,32-39", "10 21"}, {1, "16-23,25-31,48-63", "21 10"}}};
const struct sysfs_tree sysfs_large = {2,
                                       576,
                                       {{0, "0-71,576-647", "10 16 19 16 50 50 50 50"},
                                        {1, "72-143,648-719", "16 10 16 19 50 50 50 50"},
                                        {2, "144-215,720-791", "19 16 10 16 50 50 50 50"},
                                        {3, "216-287,792-863", "16 19 16 10 50 50 50 50"},
                                        {4, "288-359,864-935", "50 50 50 50 10 16 19 16"},
                                        {5, "360-431,936-1007", "50 50 50 50 16 10 16 19"},
                                        {6, "432-503,1008-1079", "50 50 50 50 19 16 10 16"},
                                        {7, "504-575,1080-1151", "50 50 50 50 16 19 16 10"}}};

/* Unlike file_make_dirs, this does not fsync each folder: there are thousands. */
static void make_dirs(char *path)
{
    if (mkdir(path, 0700) == 0 || errno == EEXIST)
        return;
    for (char *at = path; (at = strchr(at + 1, '/')); *at = '/') {
        *at = '\0';
        (void)mkdir(path, 0700);
    }
    assert_int_equal(0, mkdir(path, 0700));
}

void sysfs_tree_write_line(const char *root, const char *folder, const char *file, const char *text)
{
    char path[4096];
    snprintf(path, sizeof(path), "%s/devices/system/%s", root, folder);
    make_dirs(path);
    strcat(strcat(path, "/"), file);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, "%s\n", text);
    assert_int_equal(0, fclose(f));
}

/* The number of the first thread of CPU c's physical core. */
static int core_of(const struct sysfs_tree *t, int c)
{
    return t->threads == 1 ? c : t->apart == 1 ? c / t->threads * t->threads : c % t->apart;
}

static void write_cpu(const struct sysfs_tree *t, const char *root, const uint8_t *online, int c)
{
    uint8_t siblings[MAX / 8] = {0};
    char folder[64], list[256];
    for (int k = 0; k < t->threads; k++) {
        int sibling = core_of(t, c) + k * t->apart;
        if (cpus_has(online, sibling))
            cpus_add(siblings, sibling);
    }
    cpus_print(siblings, MAX, list, sizeof(list));
    snprintf(folder, sizeof(folder), "cpu/cpu%d/topology", c);
    sysfs_tree_write_line(root, folder, "thread_siblings_list", list);
}

static void find_online(const struct sysfs_tree *t, uint8_t ret[MAX / 8])
{
    memset(ret, 0, MAX / 8);
    for (int i = 0; t->node[i].cpus; i++) {
        uint8_t cpus[MAX / 8];
        assert_ok(cpus_parse(t->node[i].cpus, strlen(t->node[i].cpus), MAX, cpus));
        for (int k = 0; k < MAX / 8; k++)
            ret[k] |= cpus[k];
    }
}

const char *sysfs_tree_write(const struct sysfs_tree *t, const char *name)
{
    static char root[1024];
    uint8_t online[MAX / 8], nodes[MAX / 8] = {0};
    char list[256];
    snprintf(root, sizeof(root), "%s/%s", test_tmpdir(), name);
    find_online(t, online);
    for (int i = 0; t->node[i].cpus; i++) {
        char folder[64];
        snprintf(folder, sizeof(folder), "node/node%d", t->node[i].number);
        sysfs_tree_write_line(root, folder, "cpulist", t->node[i].cpus);
        if (t->node[i].distance)
            sysfs_tree_write_line(root, folder, "distance", t->node[i].distance);
        cpus_add(nodes, t->node[i].number);
    }
    cpus_print(nodes, MAX, list, sizeof(list));
    sysfs_tree_write_line(root, "node", "online", list);
    for (int c = 0; c < MAX; c++)
        if (cpus_has(online, c))
            write_cpu(t, root, online, c);
    return root;
}

void sysfs_tree_read(const struct sysfs_tree *t, const char *mine, struct topology *ret)
{
    static const struct sysfs_tree *written;
    static char root[1024];
    uint8_t cpus[MAX / 8];
    struct why why = {""};
    if (t != written) { /* write each tree once in a row: the large one has more than a thousand files */
        char name[32];
        static int n;
        snprintf(name, sizeof(name), "sys%d", n++);
        snprintf(root, sizeof(root), "%s", sysfs_tree_write(t, name));
        written = t;
    }
    if (*mine)
        assert_ok(cpus_parse(mine, strlen(mine), CHANNEL_MAX_CPUS, cpus));
    else
        find_online(t, cpus);
    topology_init(ret, cpus);
    if (topology_read(ret, root, &why))
        fail_msg("%s", why.text);
}
