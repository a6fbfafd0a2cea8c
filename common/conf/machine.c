/* The table of machine files. A file names what a vendor's sheet or a measurement gives; the rest has defaults that are
 * usual for a GPU cluster, so that a first file is short. */
#include "common/conf/machine.h"

#include "common/base/file.h"
#include "common/conf/schema.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_FILE_BYTES (1u << 20)

#define ROW(field, kind, default_, help_) \
    .key = #field, .type = (kind), .offset = offsetof(struct machine, field), .def = (default_), .help = (help_)
#define NUMBER(field, low_, high_, default_, help_)                               \
    {                                                                             \
        ROW(field, SCHEMA_FLOAT, default_, help_), .low = (low_), .high = (high_) \
    }
#define COUNT(field, min_, max_, default_, help_)                                                 \
    {                                                                                             \
        ROW(field, SCHEMA_INT, default_, help_), .min = (min_), .max = (max_), .unit = UNIT_COUNT \
    }

static const struct schema_row rows[] = {
    {ROW(name, SCHEMA_TEXT, NULL, "Name of the machine.")},
    {ROW(source, SCHEMA_TEXT, "\"\"", "Where the numbers are from.")},
    {ROW(times, SCHEMA_TEXT, "\"\"",
         "File of measured times of operations; a relative path starts at the machine file's folder. \"\": none, and "
         "times follow from the rates. `dtctl plan --calibrate` writes it.")},
    COUNT(nodes, 0, 1000000, "0", "Number of nodes. 0: as many as a plan asks for."),
    COUNT(device.per_node, 1, 4096, NULL, "Number of GPUs of a node; of cores, on a machine without GPUs."),
    COUNT(device.units, 1, 100000, "1", "Streaming multiprocessors of a GPU, which work on the tiles of a product."),
    NUMBER(device.memory_gib, 0.001, 1e6, NULL, "Memory of a device in GiB."),
    NUMBER(device.bandwidth_gb, 0.001, 1e5, NULL, "Bandwidth of this memory in 1e9 bytes per second."),
    NUMBER(device.bf16_tflops, 1e-6, 1e5, NULL, "Peak of dense products in bfloat16, 1e12 operations per second."),
    NUMBER(device.f32_tflops, 1e-6, 1e5, NULL, "Peak of dense products in float32."),
    NUMBER(device.f64_tflops, 0, 1e5, "0", "Peak of dense products in float64. 0: half of that in float32."),
    NUMBER(device.product, 0.01, 1, "0.8", "Part of the peak that large products reach."),
    NUMBER(device.copy, 0.01, 1, "0.85", "Part of the bandwidth that large copies reach."),
    NUMBER(device.launch_us, 0, 1e4, "4", "The least time of an operation on the device, in microseconds."),
    NUMBER(device.call_us, 0, 1e5, "4",
           "The least time in which a worker issues an operation. dtd issues a compiled program; a framework that "
           "issues operations from Python takes longer."),
    {ROW(device.one_thread, SCHEMA_BOOL, "false", "Whether communication takes the core that computes (CPUs).")},
    NUMBER(link.bandwidth_gb, 0.001, 1e6, NULL,
           "Bandwidth between the devices of a node, per device and direction, in 1e9 bytes per second, as an "
           "all-gather of large buffers reaches it."),
    NUMBER(link.latency_us, 0, 1e6, "30", "The least time of a collective of all devices of a node."),
    NUMBER(link.ramp_us, 0, 1e6, "0",
           "Additional microseconds of a collective, times the square root of its size in MB: buffers of middle size "
           "reach less than the full bandwidth."),
    NUMBER(link.switch_gb, 0, 1e6, "0",
           "Bytes of a buffer that an all-reduce inside the node's switches (NVLS) sums in a second, in 1e9. 0: they "
           "cannot add."),
    COUNT(link.switch_ranks, 2, 4096, "5", "The least number of ranks of a group for which the library does so."),
    NUMBER(network.bandwidth_gb, 0, 1e6, "50",
           "Bandwidth of a node's network adapters together, per direction, in 1e9 bytes per second. 0: there is no "
           "network."),
    NUMBER(network.share, 0.01, 1, "0.8", "Part of it that collectives reach."),
    NUMBER(network.latency_us, 0, 1e6, "12", "Time of a message between nodes."),
    COUNT(network.pod, 0, 1000000, "0", "Number of nodes behind switches without oversubscription. 0: all."),
    NUMBER(network.oversubscription, 1, 1000, "1", "Ratio of bandwidth inside a pod to that between pods."),
    COUNT(network.adapters, 0, 4096, "0", "Number of a node's network adapters. 0: one for each device."),
    NUMBER(cost.failures, 0, 1e6, "4", "Failures of a node in 1000 days."),
    NUMBER(cost.restart_s, 0, 1e6, "180", "Seconds from a failure to the next step."),
    NUMBER(cost.taken, 0, 1, "0.8",
           "Share of failures after which the node has to be repaired; 78 % of the interruptions of Llama 3's training "
           "were confirmed or suspected hardware."),
    NUMBER(cost.repair_days, 0, 1000, "1", "Days until a node is repaired."),
    COUNT(cost.spares, 0, 1000000, "0", "Spare nodes, which take the place of those in repair. --spares sets it."),
    NUMBER(cost.start_s, 0, 1e6, "0", "Seconds from the start of a job to its first step."),
    NUMBER(cost.price, 0, 1e6, "0", "Price of a device for an hour. 0: unknown."),
    NUMBER(cost.watts, 0, 1e6, "0", "Power of a device with its share of the node. 0: unknown."),
    NUMBER(noise.spread, 0, 0.5, "0.015", "Relative standard deviation of the speed of devices, which stays the same."),
    NUMBER(noise.jitter, 0, 0.5, "0.01",
           "Relative standard deviation of a pipeline slot's time, from one to the next."),
    NUMBER(noise.operation, 0, 0.5, "0.02",
           "Relative standard deviation of an operation's time within a slot (dtctl plan --operations)."),
    NUMBER(noise.stragglers, 0, 1, "0", "Share of devices that are slow, beyond the spread."),
    NUMBER(noise.slowdown, 0, 100, "0.1", "How much longer such a device takes; 0.1: ten percent."),
    NUMBER(error.less, 0, 0.99, "0.10",
           "Part by which nine of ten measured steps were at most shorter than forecasts for this machine. The default "
           "is that of public measurements on GPUs with rates of data sheets (docs/internals/planner.md)."),
    NUMBER(error.more, 0, 100, "0.28", "Part by which they were at most longer."),
    NUMBER(storage.bandwidth_gb, 0.001, 1e6, "50",
           "Bandwidth of the file system for checkpoints, of all nodes together, in 1e9 bytes per second."),
    NUMBER(storage.copy_gb, 0.001, 1e6, "20",
           "Bandwidth with which a device copies its state into its node's memory while the step waits."),
    NUMBER(recovery.detect_s, 0, 1e6, "2", "Seconds until dtd detects the loss of a node (docs/operate/cluster.md)."),
    NUMBER(
        recovery.epoch_s, 0, 1e6, "5",
        "Seconds until dtd has started the workers again, without loading; the goal of docs/operate/cluster.md, where "
        "small clusters take less than one."),
};

static const struct schema_section sections[] = {
    {"device", "What one worker runs on: a GPU, or a core."},
    {"link", "Between the devices of a node."},
    {"network", "Between nodes."},
    {"cost", "Failures, money and power."},
    {"noise", "How much times differ."},
    {"error", "How far forecasts for this machine were from measured steps."},
    {"storage", "Checkpoints."},
    {"recovery", "How dtd restarts a job, which `dtctl plan --days` compares with `cost.restart_s`."},
};

const struct schema machine_schema = {
    .title = "Machine files",
    .intro = "`dtctl plan --machine FILE` reads one YAML file, or the name of a file that dtd brings along.\n"
             "This page is generated from the table in `common/conf/machine.c` by `ninja manuals`.",
    .sections = sections,
    .n_sections = sizeof(sections) / sizeof(sections[0]),
    .rows = rows,
    .n_rows = sizeof(rows) / sizeof(rows[0]),
    .size = sizeof(struct machine),
    .explain = true,
};

/* A GPU's context, libraries and buffers of collectives take this much of it, so less is a slip of the unit. */
#define LEAST_GPU_GIB 3.0
/* GPUs do some 300 operations for a byte of their memory, cores some 10: far beyond that a unit is wrong, such as 3.35
 * TB/s in GB/s. */
#define MOST_OPS_PER_BYTE 1e4

static err_t check_machine(const struct schema_reader *r, const struct machine *m, struct why *why)
{
    const double ops = m->device.bf16_tflops * 1e3 / m->device.bandwidth_gb;
    if (!m->device.one_thread && m->device.memory_gib < LEAST_GPU_GIB)
        return schema_complain(r, "device.memory_gib", ERR_INVALID, why,
                               "%g GiB hold no more than the context and libraries of a GPU: write its memory in GiB, "
                               "such as 80, or device.one_thread true for a core",
                               m->device.memory_gib);
    if (ops > MOST_OPS_PER_BYTE)
        return schema_complain(r, "device.bf16_tflops", ERR_INVALID, why,
                               "%g x 1e12 operations a second are %.0f for each byte that device.bandwidth_gb (%g) "
                               "brings: write both in the units of the keys, such as 989 and 3350",
                               m->device.bf16_tflops, ops, m->device.bandwidth_gb);
    return OK;
}

err_t machine_parse(const char *name, const char *text, size_t len, const char *const *sets, int n_sets,
                    struct machine *ret, struct why *why)
{
    struct schema_reader r;
    struct machine m;
    err_t err = schema_start(&r, &machine_schema, name, &m, why);
    err = err ? err : schema_read(&r, text, len, why);
    for (int i = 0; !err && i < n_sets; i++)
        err = schema_set(&r, sets[i], why);
    err = err ? err : schema_finish(&r, why);
    err = err ? err : check_machine(&r, &m, why);
    if (err) {
        machine_fini(&m);
        return err;
    }
    if (m.device.f64_tflops == 0)
        m.device.f64_tflops = m.device.f32_tflops / 2;
    *ret = m;
    return OK;
}

/* A relative path of the table begins at the machine file's folder. */
static err_t resolve_times(const char *path, struct machine *m)
{
    const char *slash = strrchr(path, '/');
    char *resolved = NULL;
    if (!m->times[0] || m->times[0] == '/' || !slash)
        return OK;
    if (asprintf(&resolved, "%.*s/%s", (int)(slash - path), path, m->times) < 0)
        return ERR_NOMEM;
    free(m->times);
    m->times = resolved;
    return OK;
}

err_t machine_read(const char *path, const char *const *sets, int n_sets, struct machine *ret, struct why *why)
{
    struct buf text = {0};
    err_t err = file_read(path, MAX_FILE_BYTES, &text);
    if (err)
        why_set(why, err, "%s: %s", path, err_text(err));
    else
        err = machine_parse(path, (const char *)text.data, text.len, sets, n_sets, ret, why);
    if (!err && resolve_times(path, ret)) {
        machine_fini(ret);
        err = why_set(why, ERR_NOMEM, "%s: out of memory", path);
    }
    buf_fini(&text);
    return err;
}

void machine_fini(struct machine *m)
{
    schema_fini(&machine_schema, m);
}
