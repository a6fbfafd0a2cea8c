/* A job's share is the larger one of two parts: its slots of the node's slots, and its GPUs of the node's GPUs. A job
 * on all GPUs often has few workers, and leaves nothing that another job could use. */
#include "daemon/control/local/limits.h"

#include "common/base/buf.h"
#include "common/base/file.h"
#include "daemon/control/local/health.h"
#include "daemon/control/local/processes.h"

#include <stdio.h>

#define MEMINFO_MAX (64u << 10)
#define IO_PROCESSES 256 /* threads of the job's dtd-io: one for each file that it reads or writes at a time */

static int64_t lesser(int64_t a, int64_t b)
{
    return !a || (b && b < a) ? b : a; /* 0: no limit */
}

/* part of `whole` parts; 0: there are none. The node may have fewer slots than workers after a change of `slots`. */
static int64_t part_of(int64_t bytes, int part, int whole)
{
    if (whole <= 0)
        return 0;
    return (int64_t)((double)bytes * (part < whole ? part : whole) / whole);
}

static int64_t share_of(const struct limits_node *n, const struct limits_job *j)
{
    int64_t all = n->memory_bytes / 100 * n->memory_percent;
    int64_t slots = part_of(all, j->workers, n->slots), gpus = part_of(all, j->gpus, n->gpus);
    return !n->system ? 0 : gpus > slots ? gpus : slots;
}

void limits_compute(const struct limits_node *n, const struct limits_job *j, struct channel_limits *ret)
{
    int64_t own = j->memory_bytes * j->workers, share = share_of(n, j);
    int64_t processes = n->system && n->processes ? n->processes * j->workers + IO_PROCESSES : 0;
    *ret = (struct channel_limits){.memory_bytes = lesser(own, share),
                                   .memory_required = own > 0,
                                   .memory_is_share = share && (!own || share < own),
                                   .cores = (int32_t)(j->cores * j->workers),
                                   .workers = j->workers,
                                   .processes = (int32_t)processes};
}

int64_t limits_memory(void)
{
    struct buf text = {0};
    bool ok = file_read("/proc/meminfo", MEMINFO_MAX, &text) == OK && buf_append(&text, "", 1) == OK;
    int64_t kib = ok ? health_number((const char *)text.data, "MemTotal") : -1;
    buf_fini(&text);
    return kib > 0 ? kib * 1024 : 0;
}

static void print_bytes(int64_t bytes, char ret[32])
{
    bool large = bytes >= INT64_C(1) << 30;
    snprintf(ret, 32, "%.2f %s", (double)bytes / (large ? 1 << 30 : 1 << 20), large ? "GiB" : "MiB");
}

void limits_why_killed(enum channel_oom oom, const struct channel_limits *x, bool by_child, char *ret, size_t size)
{
    char bytes[32];
    const char *it = by_child ? "a process that it had started" : "it";
    print_bytes(x->memory_bytes, bytes);
    if (oom == CHANNEL_OOM_MACHINE)
        snprintf(ret, size, "the kernel killed %s for lack of memory", it);
    else if (x->memory_is_share)
        snprintf(
            ret, size,
            "the kernel killed %s because the job had used up its share of the node's memory, %s (memory.max); use "
            "more workers or nodes, or let the administrator raise jobs.memory_percent",
            it, bytes);
    else
        snprintf(
            ret, size,
            "the kernel killed %s because the job's memory limit on this node, %s, was reached (memory.max); raise "
            "run.memory (dtctl run --memory), which is for each worker",
            it, bytes);
}
