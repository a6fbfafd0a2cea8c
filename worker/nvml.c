/* See nvml.h. Prototypes follow the vendor's reference of the library. Functions are looked up by the names that exist
 * since driver 450; the facts of a missing function are unknown. */
#include "worker/nvml.h"

#include <ctype.h>
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LIBRARY "libnvidia-ml.so.1"
#define MAX_LINKS 18
#define IS_LOST 15 /* code of every function for a GPU that is no longer on the bus or hangs */

typedef void *device;
struct pci_info {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem_id;
    char address[32];
};

struct utilization {
    unsigned gpu, memory; /* percent of the time */
};
struct memory {
    unsigned long long total, available, used;
};

struct nvml {
    void *library;
    char driver[80];
    unsigned count;

    int (*init)(void);
    int (*shutdown)(void);
    const char *(*error)(int code);
    int (*driver_version)(char *ret, unsigned size);
    int (*device_count)(unsigned *ret);
    int (*by_index)(unsigned index, device *ret);
    int (*by_uuid)(const char *uuid, device *ret);
    int (*uuid)(device d, char *ret, unsigned size);
    int (*pci)(device d, struct pci_info *ret);
    int (*link_state)(device d, unsigned link, unsigned *ret);
    int (*temperature)(device d, int sensor, unsigned *ret);
    int (*clock)(device d, int domain, unsigned *ret);
    int (*power)(device d, unsigned *ret);
    int (*power_limit)(device d, unsigned *ret);
    int (*ecc_total)(device d, int uncorrected, int aggregate, unsigned long long *ret);
    int (*throttle)(device d, unsigned long long *ret);
    int (*retired)(device d, int cause, unsigned *n, unsigned long long *addresses);
    int (*utilization)(device d, struct utilization *ret);
    int (*memory)(device d, struct memory *ret);
    int (*remapped)(device d, unsigned *correctable, unsigned *uncorrectable, unsigned *pending, unsigned *failed);
};

static const struct {
    const char *name;
    size_t offset;
} functions[] = {
    {"nvmlInit_v2", offsetof(struct nvml, init)},
    {"nvmlShutdown", offsetof(struct nvml, shutdown)},
    {"nvmlErrorString", offsetof(struct nvml, error)},
    {"nvmlSystemGetDriverVersion", offsetof(struct nvml, driver_version)},
    {"nvmlDeviceGetCount_v2", offsetof(struct nvml, device_count)},
    {"nvmlDeviceGetHandleByIndex_v2", offsetof(struct nvml, by_index)},
    {"nvmlDeviceGetHandleByUUID", offsetof(struct nvml, by_uuid)},
    {"nvmlDeviceGetUUID", offsetof(struct nvml, uuid)},
    {"nvmlDeviceGetPciInfo_v3", offsetof(struct nvml, pci)},
    {"nvmlDeviceGetNvLinkState", offsetof(struct nvml, link_state)},
    {"nvmlDeviceGetTemperature", offsetof(struct nvml, temperature)},
    {"nvmlDeviceGetClockInfo", offsetof(struct nvml, clock)},
    {"nvmlDeviceGetPowerUsage", offsetof(struct nvml, power)},
    {"nvmlDeviceGetEnforcedPowerLimit", offsetof(struct nvml, power_limit)},
    {"nvmlDeviceGetTotalEccErrors", offsetof(struct nvml, ecc_total)},
    {"nvmlDeviceGetCurrentClocksThrottleReasons", offsetof(struct nvml, throttle)},
    {"nvmlDeviceGetRetiredPages", offsetof(struct nvml, retired)},
    {"nvmlDeviceGetUtilizationRates", offsetof(struct nvml, utilization)},
    {"nvmlDeviceGetMemoryInfo", offsetof(struct nvml, memory)},
    {"nvmlDeviceGetRemappedRows", offsetof(struct nvml, remapped)},
};

const char *nvml_throttle_name(int bit)
{
    static const char *const names[] = {
        "idle",          "application clocks", "power cap (software)", "slowdown (hardware)",
        "sync boost",    "thermal (software)", "thermal (hardware)",   "power brake (hardware)",
        "display clocks"};
    return bit >= 0 && bit < (int)(sizeof(names) / sizeof(names[0])) ? names[bit] : NULL;
}

/* ---- loading ---- */

static void find_functions(struct nvml *n)
{
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        void *f = dlsym(n->library, functions[i].name);
        memcpy((char *)n + functions[i].offset, &f, sizeof(f));
    }
}

static err_t nvml_load(struct nvml *n, struct why *why)
{
    find_functions(n);
    if (!n->init || !n->shutdown || !n->device_count || !n->by_uuid)
        return why_set(why, ERR_UNSUPPORTED, LIBRARY " belongs to a driver older than 450");
    int code = n->init();
    if (code)
        return why_set(why, ERR_UNSUPPORTED, LIBRARY ": %s (code %d)",
                       n->error ? n->error(code) : "cannot be initialized", code);
    if (!n->driver_version || n->driver_version(n->driver, sizeof(n->driver)))
        n->driver[0] = '\0';
    if (n->device_count(&n->count))
        n->count = 0;
    return OK;
}

err_t nvml_open(struct nvml **ret, struct why *why)
{
    struct nvml *n = calloc(1, sizeof(*n));
    if (!n)
        return why_set(why, ERR_NOMEM, "out of memory");
    n->library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    err_t err = n->library ? nvml_load(n, why) : why_set(why, ERR_NOTFOUND, LIBRARY " was not found");
    if (err) {
        if (n->library)
            dlclose(n->library);
        free(n);
        return err;
    }
    *ret = n;
    return OK;
}

void nvml_close(struct nvml *n)
{
    if (!n)
        return;
    n->shutdown();
    dlclose(n->library);
    free(n);
}

const char *nvml_driver(const struct nvml *n)
{
    return n->driver;
}

int nvml_count(const struct nvml *n)
{
    return (int)n->count;
}

static err_t convert_error(const struct nvml *n, int code, const char *of, struct why *why)
{
    return why_set(why, code == IS_LOST ? ERR_CLOSED : ERR_UNSUPPORTED, "%s: %s (code %d)", of,
                   n->error ? n->error(code) : "failed", code);
}

err_t nvml_uuid(const struct nvml *n, int index, char ret[NVML_UUID_BYTES], struct why *why)
{
    device d;
    if (!n->by_index || !n->uuid)
        return why_set(why, ERR_UNSUPPORTED, LIBRARY " cannot list the GPUs");
    int code = n->by_index((unsigned)index, &d);
    if (code)
        return convert_error(n, code, "nvmlDeviceGetHandleByIndex", why);
    code = n->uuid(d, ret, NVML_UUID_BYTES);
    if (code)
        return convert_error(n, code, "nvmlDeviceGetUUID", why);
    ret[NVML_UUID_BYTES - 1] = '\0';
    return OK;
}

/* ---- facts ---- */

/* Records whether the GPU is lost; returns whether the function succeeded. */
static bool has_answer(struct nvml_facts *f, int code)
{
    f->lost = f->lost || code == IS_LOST;
    return code == 0;
}

static int64_t read_unsigned(struct nvml_facts *f, int (*get)(device d, unsigned *ret), device d)
{
    unsigned x;
    return get && has_answer(f, get(d, &x)) ? (int64_t)x : NVML_UNKNOWN;
}

/* `domain` is an nvmlClockType_t: 1 the multiprocessors, 2 the memory. */
static int64_t read_clock(const struct nvml *n, struct nvml_facts *f, device d, int domain)
{
    unsigned mhz;
    return n->clock && has_answer(f, n->clock(d, domain, &mhz)) ? (int64_t)mhz : NVML_UNKNOWN;
}

static int64_t read_ecc(const struct nvml *n, struct nvml_facts *f, device d, int aggregate)
{
    unsigned long long x;
    return n->ecc_total && has_answer(f, n->ecc_total(d, 1, aggregate, &x)) ? (int64_t)x : NVML_UNKNOWN;
}

static int64_t count_links(const struct nvml *n, struct nvml_facts *f, device d)
{
    int64_t up = 0;
    bool any = false;
    for (unsigned link = 0; n->link_state && link < MAX_LINKS; link++) {
        unsigned state;
        if (!has_answer(f, n->link_state(d, link, &state)))
            continue;
        any = true;
        up += state == 1;
    }
    return any ? up : NVML_UNKNOWN;
}

/* The library reports "00000000:18:00.0", sysfs has "0000:18:00.0". */
static void read_pci(const struct nvml *n, struct nvml_facts *f, device d)
{
    struct pci_info info = {0};
    char *ret = f->pci;
    if (!n->pci || !has_answer(f, n->pci(d, &info)))
        return;
    info.address[sizeof(info.address) - 1] = '\0';
    bool long_domain = strlen(info.address) == 16 && strncmp(info.address, "0000", 4) == 0;
    snprintf(ret, sizeof(f->pci), "%s", info.address + (long_domain ? 4 : 0));
    for (char *c = ret; *c; c++)
        *c = (char)tolower((unsigned char)*c);
}

/* Sums over both causes of retirement. A call with a buffer for no page returns the number of pages. */
static int64_t count_retired(const struct nvml *n, struct nvml_facts *f, device d)
{
    int64_t sum = 0;
    for (int cause = 0; cause < 2; cause++) {
        unsigned count = 0;
        int code = n->retired ? n->retired(d, cause, &count, NULL) : 3;
        if (!has_answer(f, code) && code != 7) /* 7: the buffer is too small; count is set */
            return NVML_UNKNOWN;
        sum += count;
    }
    return sum;
}

static void read_remapped(const struct nvml *n, struct nvml_facts *f, device d)
{
    unsigned correctable, uncorrectable, pending, failed;
    if (!n->remapped || !has_answer(f, n->remapped(d, &correctable, &uncorrectable, &pending, &failed)))
        return;
    f->remapped_correctable = correctable;
    f->remapped_uncorrectable = uncorrectable;
    f->remap_pending = pending;
    f->remap_failed = failed;
}

static const struct nvml_facts nothing = {
    .nvlinks = NVML_UNKNOWN,
    .temperature_c = NVML_UNKNOWN,
    .sm_mhz = NVML_UNKNOWN,
    .memory_mhz = NVML_UNKNOWN,
    .power_mw = NVML_UNKNOWN,
    .power_limit_mw = NVML_UNKNOWN,
    .ecc_uncorrected_volatile = NVML_UNKNOWN,
    .ecc_uncorrected_aggregate = NVML_UNKNOWN,
    .throttle = NVML_UNKNOWN,
    .retired_pages = NVML_UNKNOWN,
    .remapped_correctable = NVML_UNKNOWN,
    .remapped_uncorrectable = NVML_UNKNOWN,
    .remap_pending = NVML_UNKNOWN,
    .remap_failed = NVML_UNKNOWN,
};

bool nvml_read(const struct nvml *n, const char *uuid, struct nvml_facts *ret)
{
    device d;
    unsigned x;
    unsigned long long bits;
    int code = n->by_uuid(uuid, &d);
    *ret = nothing;
    if (!has_answer(ret, code))
        return ret->lost;
    ret->nvlinks = count_links(n, ret, d);
    ret->sm_mhz = read_clock(n, ret, d, 1);
    ret->memory_mhz = read_clock(n, ret, d, 2);
    ret->power_mw = read_unsigned(ret, n->power, d);
    ret->power_limit_mw = read_unsigned(ret, n->power_limit, d);
    ret->ecc_uncorrected_volatile = read_ecc(n, ret, d, 0);
    ret->ecc_uncorrected_aggregate = read_ecc(n, ret, d, 1);
    ret->retired_pages = count_retired(n, ret, d);
    if (n->temperature && has_answer(ret, n->temperature(d, 0, &x)))
        ret->temperature_c = x;
    if (n->throttle && has_answer(ret, n->throttle(d, &bits)))
        ret->throttle = (int64_t)(bits & INT64_MAX);
    read_pci(n, ret, d);
    read_remapped(n, ret, d);
    return true;
}

void nvml_read_use(const struct nvml *n, const char *uuid, struct nvml_use *ret)
{
    struct utilization busy;
    struct memory memory;
    unsigned x;
    device d;
    *ret = (struct nvml_use){NVML_UNKNOWN, NVML_UNKNOWN, NVML_UNKNOWN, NVML_UNKNOWN};
    if (n->by_uuid(uuid, &d))
        return;
    if (n->utilization && n->utilization(d, &busy) == 0)
        ret->busy_percent = busy.gpu;
    if (n->memory && n->memory(d, &memory) == 0)
        ret->memory_bytes = (int64_t)memory.used;
    if (n->temperature && n->temperature(d, 0, &x) == 0)
        ret->temperature_c = x;
    if (n->power && n->power(d, &x) == 0)
        ret->power_mw = x;
}
