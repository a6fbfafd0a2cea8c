/* A machine to plan for, as a file (deploy/machines/NAME.yaml): what one worker runs on, the links between workers, and
 * what wears out. The schema in machine.c is its manual (docs/use/machines.md). A machine that was measured here
 * (`dtctl plan --calibrate`) and one from a vendor's sheet have the same keys; `source` is where the numbers are
 * from. */
#ifndef DTD_COMMON_CONF_MACHINE_H
#define DTD_COMMON_CONF_MACHINE_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct schema;

/* Units are those of the keys: a bandwidth in 1e9 bytes per second and direction, times in microseconds unless the name
 * has another unit. */
struct machine {
    char *name, *source;
    char *times;                 /* file of measured times (common/plan/estimate/table.h); "": none */
    int64_t nodes;               /* how many there are; 0: any number */
    struct {                     /* what one worker runs on: a GPU, or a core of a CPU */
        int64_t per_node, units; /* units: streaming multiprocessors; 1 on a CPU */
        double memory_gib, bandwidth_gb;
        double bf16_tflops, f32_tflops, f64_tflops; /* peaks of dense products */
        double product, copy; /* what large products reach of the peak, and large copies of bandwidth_gb */
        double launch_us;     /* the least time of an operation on the device */
        double call_us;       /* the least time in which a program issues an operation */
        bool one_thread;      /* communication takes the same core as computation */
    } device;
    struct { /* between the workers of a node; bus bandwidth, as nccl-tests count it */
        double bandwidth_gb, latency_us, ramp_us;
        double switch_gb;     /* bytes of a buffer that an all-reduce in the switch sums per second; 0: it cannot */
        int64_t switch_ranks; /* the least number of ranks for which the library uses it */
    } link;
    struct {                 /* between nodes */
        double bandwidth_gb; /* of a node, all adapters together */
        double share;        /* what collectives reach of it */
        double latency_us;
        int64_t pod;             /* nodes behind one level of switches without oversubscription; 0: all */
        double oversubscription; /* between pods */
        int64_t adapters;        /* of a node; 0: one for each device */
    } network;
    struct {
        double failures;    /* of a node, in 1000 days */
        double restart_s;   /* from a failure to the first repeated step */
        double start_s;     /* from the start of a job to its first step */
        double taken;       /* the share of failures after which a node is repaired */
        double repair_days; /* of a node */
        int64_t spares;     /* nodes */
        double price;       /* of a device for an hour */
        double watts;       /* of a device and its share of the node */
    } cost;
    struct {                         /* relative standard deviations of a device's times */
        double spread;               /* between devices */
        double jitter;               /* from one slot of a pipeline to the next */
        double operation;            /* from one operation to the next, in addition */
        double stragglers, slowdown; /* the share of slow devices, and how much longer they take */
    } noise;
    struct {               /* of forecasts for this machine, as parts of them; nine of ten steps are between */
        double less, more; /* how much less and more a step took */
    } error;
    struct {
        double bandwidth_gb; /* of the file system, all nodes together */
        double copy_gb;      /* of a device into its node's memory */
    } storage;
    struct { /* of a job that dtd restarts */
        double detect_s, epoch_s;
    } recovery;
};

extern const struct schema machine_schema;

/* `sets` are overrides such as "network.bandwidth_gb=100". Errors name file, line, key and what is accepted. The caller
 * frees `ret` with machine_fini. */
NODISCARD err_t machine_read(const char *path, const char *const *sets, int n_sets, struct machine *ret,
                             struct why *why);
NODISCARD err_t machine_parse(const char *name, const char *text, size_t len, const char *const *sets, int n_sets,
                              struct machine *ret, struct why *why);
void machine_fini(struct machine *m); /* legal on a zeroed one */

#endif
