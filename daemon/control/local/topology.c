/* The files are devices/system/node/{online,nodeN/{cpulist,distance}} and
 * devices/system/cpu/cpuN/topology/thread_siblings_list (Documentation/admin-guide/cputopology.rst,
 * Documentation/ABI/stable/sysfs-devices-node of Linux). They list the online CPUs of the whole machine, even inside a
 * container or a cpuset; only CPUs of this process's affinity are used. The result is never a partial topology: if a
 * CPU goes offline while the files are read, or the affinity contains a CPU that is in no node, the topology remains
 * the one of topology_init. */
#include "daemon/control/local/topology.h"

#include "common/base/buf.h"
#include "common/base/cpus.h"
#include "common/base/file.h"
#include "common/base/log.h"

#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NODE_NUMBERS 1024 /* the most that Linux can be built for (CONFIG_NODES_SHIFT 10) */
#define TEXT_MAX 65536    /* bytes of one file; a list of 1,024 single CPUs has 4 KiB */
#define FAR 20            /* REMOTE_DISTANCE of Linux, which it assumes if the firmware has no distances */
#define NEAR 10           /* LOCAL_DISTANCE of Linux */

void topology_init(struct topology *t, const uint8_t cpus[CHANNEL_MAX_CPUS / 8])
{
    *t = (struct topology){.n_nodes = 1, .n_cpu_nodes = 1, .distance = {{NEAR}}};
    for (int c = 0; c < CHANNEL_MAX_CPUS; c++)
        if (cpus_has(cpus, c)) {
            t->cpu[t->n_cpus] = (struct topology_cpu){.number = c, .core = t->n_cpus};
            t->n_cpus++;
        }
}

int topology_find(const struct topology *t, int number)
{
    for (int i = 0; i < t->n_nodes; i++)
        if (t->node[i] == number)
            return i;
    return -1;
}

void topology_node_cpus(const struct topology *t, int node, uint8_t ret[CHANNEL_MAX_CPUS / 8])
{
    memset(ret, 0, CHANNEL_MAX_CPUS / 8);
    for (int i = 0; i < t->n_cpus; i++)
        if (t->cpu[i].node == node)
            cpus_add(ret, t->cpu[i].number);
}

/* ---- reading ---- */

/* Appends a NUL to the text, which buf.len does not count. */
static err_t read_text(const char *path, struct buf *ret)
{
    err_t err = file_read(path, TEXT_MAX, ret);
    err = err ? err : buf_append(ret, "", 1);
    ret->len -= !err;
    return err;
}

static err_t read_list(const char *path, int max, uint8_t *ret, struct why *why)
{
    struct buf text = {0};
    err_t err = read_text(path, &text);
    if (!err)
        err = cpus_parse((const char *)text.data, text.len, max, ret);
    buf_fini(&text);
    return err ? why_set(why, err, "%s: %s", path, err_text(err)) : OK;
}

/* Reads the numbers of the online nodes, in ascending order: the order of the columns of a `distance` file. */
static err_t read_nodes(struct topology *t, const char *sysfs, struct why *why)
{
    uint8_t online[NODE_NUMBERS / 8];
    char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/devices/system/node/online", sysfs);
    err_t err = read_list(path, NODE_NUMBERS, online, why);
    if (err)
        return err;
    t->n_nodes = 0;
    for (int number = 0; number < NODE_NUMBERS; number++) {
        if (!cpus_has(online, number))
            continue;
        if (t->n_nodes == TOPOLOGY_MAX_NODES)
            return why_set(why, ERR_LIMIT, "%s names more than %d nodes", path, TOPOLOGY_MAX_NODES);
        t->node[t->n_nodes++] = number;
    }
    return OK;
}

static err_t read_node_cpus(struct topology *t, const char *sysfs, int node, struct why *why)
{
    uint8_t cpus[CHANNEL_MAX_CPUS / 8];
    char path[PATH_MAX];
    bool any = false;
    snprintf(path, sizeof(path), "%s/devices/system/node/node%d/cpulist", sysfs, t->node[node]);
    err_t err = read_list(path, CHANNEL_MAX_CPUS, cpus, why);
    if (err)
        return ERR_CORRUPT; /* also if the file does not exist, because the node is online */
    for (int i = 0; i < t->n_cpus; i++) {
        if (!cpus_has(cpus, t->cpu[i].number))
            continue;
        if (t->cpu[i].node >= 0)
            return why_set(why, ERR_CORRUPT, "CPU %d is in two NUMA nodes", t->cpu[i].number);
        t->cpu[i].node = node;
        any = true;
    }
    t->n_cpu_nodes += any;
    return OK;
}

err_t topology_parse_distances(const char *text, int n, uint8_t *ret)
{
    uint8_t row[TOPOLOGY_MAX_NODES];
    for (int i = 0; i < n; i++) {
        char *next;
        long d = strtol(text, &next, 10);
        if (next == text || d < NEAR || d > UINT8_MAX)
            return ERR_CORRUPT;
        row[i] = (uint8_t)d;
        text = next;
    }
    if (text[strspn(text, " \n")] != '\0')
        return ERR_CORRUPT;
    memcpy(ret, row, (size_t)n);
    return OK;
}

static void read_distances(struct topology *t, const char *sysfs, int node)
{
    struct buf text = {0};
    char path[PATH_MAX];
    for (int i = 0; i < t->n_nodes; i++)
        t->distance[node][i] = i == node ? NEAR : FAR;
    snprintf(path, sizeof(path), "%s/devices/system/node/node%d/distance", sysfs, t->node[node]);
    err_t err = read_text(path, &text);
    if (!err)
        err = topology_parse_distances((const char *)text.data, t->n_nodes, t->distance[node]);
    if (err)
        log_info("NUMA distances not readable, equal ones are assumed path=%s error=%s", path, err_text(err));
    buf_fini(&text);
}

static int find_cpu(const struct topology *t, const uint8_t *cpus)
{
    for (int i = 0; i < t->n_cpus; i++)
        if (cpus_has(cpus, t->cpu[i].number))
            return i;
    return -1;
}

static void read_siblings(struct topology *t, const char *sysfs, int i)
{
    uint8_t cpus[CHANNEL_MAX_CPUS / 8];
    char path[PATH_MAX];
    struct why none;
    snprintf(path, sizeof(path), "%s/devices/system/cpu/cpu%d/topology/thread_siblings_list", sysfs, t->cpu[i].number);
    bool told = read_list(path, CHANNEL_MAX_CPUS, cpus, &none) == OK && cpus_has(cpus, t->cpu[i].number);
    int first = told ? find_cpu(t, cpus) : i;
    bool agreed = t->cpu[first].core == first && t->cpu[first].node == t->cpu[i].node;
    t->cpu[i].core = agreed ? first : i;
}

err_t topology_read(struct topology *t, const char *sysfs, struct why *why)
{
    struct topology new = *t;
    err_t err = read_nodes(&new, sysfs, why);
    new.n_cpu_nodes = 0;
    for (int i = 0; i < new.n_cpus; i++)
        new.cpu[i].node = -1;
    for (int node = 0; node < new.n_nodes && !err; node++) {
        err = read_node_cpus(&new, sysfs, node, why);
        read_distances(&new, sysfs, node);
    }
    for (int i = 0; i < new.n_cpus && !err; i++)
        if (new.cpu[i].node < 0)
            err = why_set(why, ERR_CORRUPT, "CPU %d is in no NUMA node", new.cpu[i].number);
    if (err)
        return err;
    for (int i = 0; i < new.n_cpus; i++)
        read_siblings(&new, sysfs, i);
    *t = new;
    return OK;
}
