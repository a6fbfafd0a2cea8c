/* Health, addresses and links of GPUs from the driver's management library, NVML (libnvidia-ml.so.1). The library is
 * loaded at run time if it exists, with prototypes of our own, so nothing of the vendor is needed to build or to start.
 * One thread. */
#ifndef DTD_WORKER_NVML_H
#define DTD_WORKER_NVML_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stdint.h>

#define NVML_UNKNOWN INT64_MIN /* not supported by this GPU or not reported by the library */
#define NVML_UUID_BYTES 96

struct nvml;

struct nvml_facts {
    bool lost;       /* the driver cannot access the GPU any more; facts that were not read before are unknown */
    char pci[32];    /* "0000:18:00.0" as in sysfs; "" unknown */
    int64_t nvlinks; /* number of NVLinks that are up */
    int64_t temperature_c, power_mw, power_limit_mw;
    int64_t sm_mhz, memory_mhz;                                  /* current clocks */
    int64_t ecc_uncorrected_volatile, ecc_uncorrected_aggregate; /* since the driver was loaded; ever */
    int64_t throttle;                                            /* bits, see nvml_throttle_name */
    int64_t retired_pages;
    int64_t remapped_correctable, remapped_uncorrectable, remap_pending, remap_failed;
};

/* ERR_NOTFOUND: the library does not exist; for other errors `why` has the library's message. */
NODISCARD err_t nvml_open(struct nvml **ret, struct why *why);
void nvml_close(struct nvml *n);
const char *nvml_driver(const struct nvml *n); /* "580.95.05"; "" unknown */
int nvml_count(const struct nvml *n);
/* The uuid of GPU `index`, 0 .. count - 1, in the library's order; uses no GPU memory. ERR_CLOSED: the GPU is lost; for
 * other errors `why` has the library's message. */
NODISCARD err_t nvml_uuid(const struct nvml *n, int index, char ret[NVML_UUID_BYTES], struct why *why);
/* Unknown facts are NVML_UNKNOWN. Returns false when no GPU has this uuid. */
bool nvml_read(const struct nvml *n, const char *uuid, struct nvml_facts *ret);
/* How much of a GPU is in use. Only what changes while it computes, because reading all facts takes longer. */
struct nvml_use {
    int64_t busy_percent; /* of the driver's last interval, in which a kernel ran */
    int64_t memory_bytes; /* of all processes */
    int64_t temperature_c, power_mw;
};
/* Unknown values are NVML_UNKNOWN; all are if no GPU has this uuid. */
void nvml_read_use(const struct nvml *n, const char *uuid, struct nvml_use *ret);
/* The name of throttle bit 0, 1, ..; NULL after the last. */
const char *nvml_throttle_name(int bit);

#endif
