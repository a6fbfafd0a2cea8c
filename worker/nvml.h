/* What the driver's management library (libnvidia-ml.so.1) says of GPUs: health, addresses, links. It is loaded when it
 * is there, by prototypes of our own, so that nothing of the vendor's is needed to build or to start. One thread. */
#ifndef DTD_WORKER_NVML_H
#define DTD_WORKER_NVML_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stdint.h>

#define NVML_UNKNOWN INT64_MIN /* not supported by this GPU, or the library does not say */
#define NVML_UUID_BYTES 96

struct nvml;

struct nvml_facts {
    bool lost;       /* the driver does not reach it any more; what it has not said before that is not known */
    char pci[32];    /* "0000:18:00.0" as in sysfs; "" unknown */
    int64_t nvlinks; /* that are up */
    int64_t temperature_c, power_mw, power_limit_mw;
    int64_t sm_mhz, memory_mhz; /* clocks at this moment */
    int64_t ecc_uncorrected_volatile, ecc_uncorrected_aggregate; /* since the driver was loaded; ever */
    int64_t throttle;                                            /* bits, see nvml_throttle_name */
    int64_t retired_pages;
    int64_t remapped_correctable, remapped_uncorrectable, remap_pending, remap_failed;
};

/* ERR_NOTFOUND: there is no such library; else its own words. */
NODISCARD err_t nvml_open(struct nvml **ret, struct why *why);
void nvml_close(struct nvml *n);
const char *nvml_driver(const struct nvml *n); /* "580.95.05"; "" unknown */
int nvml_count(const struct nvml *n);
/* Of its GPU `index`, 0 .. count - 1, in the library's own order; no memory of the GPU is taken. ERR_CLOSED: that GPU
 * is lost; else its own words. */
NODISCARD err_t nvml_uuid(const struct nvml *n, int index, char ret[NVML_UUID_BYTES], struct why *why);
/* What is not known is NVML_UNKNOWN. False when no GPU has this uuid. */
bool nvml_read(const struct nvml *n, const char *uuid, struct nvml_facts *ret);
/* Of bit 0, 1, ..; NULL behind the last. */
const char *nvml_throttle_name(int bit);

#endif
