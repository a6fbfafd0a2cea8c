#include "worker/numa.h"

#include "common/base/buf.h"
#include "common/base/cpus.h"
#include "common/base/file.h"
#include "common/base/paths.h"

#include <limits.h>
#include <linux/mempolicy.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define MAX_CPUS 8192  /* the most that Linux can be built for on x86 */
#define TEXT_MAX 65536 /* bytes of one file; a list of 8,192 single CPUs has 40 KiB */

static bool read_list(const char *path, int max, uint8_t *ret)
{
    struct buf text = {0};
    err_t err = file_read(path, TEXT_MAX, &text);
    err = err ? err : cpus_parse((const char *)text.data, text.len, max, ret);
    buf_fini(&text);
    return !err;
}

static bool has_any(const uint8_t *a, const uint8_t *b)
{
    for (int i = 0; i < MAX_CPUS / 8; i++)
        if (a[i] & b[i])
            return true;
    return false;
}

void numa_init(struct numa *n)
{
    uint8_t online[NUMA_MAX_NODES / 8], mine[MAX_CPUS / 8] = {0}, cpus[MAX_CPUS / 8];
    char path[PATH_MAX];
    *n = (struct numa){.home = -1};
    snprintf(path, sizeof(path), "%s/devices/system/node/online", path_sysfs());
    if (!read_list(path, NUMA_MAX_NODES, online) || !cpus_usable(mine, MAX_CPUS))
        return;
    for (int node = 0; node < NUMA_MAX_NODES; node++) {
        snprintf(path, sizeof(path), "%s/devices/system/node/node%d/cpulist", path_sysfs(), node);
        if (!cpus_has(online, node) || !read_list(path, MAX_CPUS, cpus) || !has_any(mine, cpus))
            continue;
        cpus_add(n->nodes, node);
        n->home = n->n_nodes++ ? -1 : node;
    }
}

err_t numa_interleave(const struct numa *n)
{
    unsigned long mask[NUMA_MAX_NODES / (8 * sizeof(unsigned long))];
    if (n->n_nodes < 2)
        return OK;
    memcpy(mask, n->nodes, sizeof(mask)); /* bit sets have the same layout on a little-endian machine */
    return syscall(SYS_set_mempolicy, MPOL_INTERLEAVE, mask, NUMA_MAX_NODES + 1) ? ERR_UNSUPPORTED : OK;
}
