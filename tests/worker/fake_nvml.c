/* A stand-in for the driver's libnvidia-ml.so.1, with FAKE_NVML_GPUS (default 2) GPUs of one kind. FAKE_NVML_INIT is
 * the code that nvmlInit returns (default 0); with FAKE_NVML_OLD only few facts of the GPUs are supported.
 * FAKE_NVML_LOST is the index of a lost GPU, FAKE_NVML_FALLS of a GPU that is lost after its first calls,
 * FAKE_NVML_RIDDLE of a GPU whose calls are refused. The prototypes follow the vendor's reference and are written
 * independently of worker/nvml.c, so that they do not repeat its mistakes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GPUS 8
#define INVALID 2
#define NOT_SUPPORTED 3
#define NO_PERMISSION 4
#define NOT_FOUND 6
#define TOO_SMALL 7
#define GPU_IS_LOST 15

struct pci {
    char legacy[16];
    unsigned int domain, bus, device, device_id, subsystem;
    char bus_id[32];
};

int nvmlInit_v2(void);
int nvmlShutdown(void);
const char *nvmlErrorString(int code);
int nvmlSystemGetDriverVersion(char *version, unsigned int length);
int nvmlDeviceGetCount_v2(unsigned int *count);
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **handle);
int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle);
int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned int length);
int nvmlDeviceGetPciInfo_v3(void *handle, struct pci *pci);
int nvmlDeviceGetNvLinkState(void *handle, unsigned int link, unsigned int *active);
int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned int *celsius);
int nvmlDeviceGetClockInfo(void *handle, int domain, unsigned int *mhz);
int nvmlDeviceGetPowerUsage(void *handle, unsigned int *milliwatts);
int nvmlDeviceGetEnforcedPowerLimit(void *handle, unsigned int *milliwatts);
int nvmlDeviceGetTotalEccErrors(void *handle, int type, int counter, unsigned long long *count);
int nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, unsigned long long *reasons);
int nvmlDeviceGetRetiredPages(void *handle, int cause, unsigned int *count, unsigned long long *addresses);
int nvmlDeviceGetRemappedRows(void *handle, unsigned int *correctable, unsigned int *uncorrectable,
                              unsigned int *pending, unsigned int *failed);

struct utilization {
    unsigned int gpu, memory;
};

struct memory_info {
    unsigned long long total, free_bytes, used;
};

int nvmlDeviceGetUtilizationRates(void *handle, struct utilization *rates);
int nvmlDeviceGetMemoryInfo(void *handle, struct memory_info *info);

static char the_gpus[GPUS];

static int knob(const char *name, int otherwise)
{
    return getenv(name) ? atoi(getenv(name)) : otherwise;
}

static int index_of(const void *handle)
{
    long i = (const char *)handle - the_gpus;
    if (i < 0 || i >= GPUS)
        abort();
    return (int)i;
}

static int answer(const void *handle)
{
    if (index_of(handle) == knob("FAKE_NVML_FALLS", -1))
        return GPU_IS_LOST;
    return getenv("FAKE_NVML_OLD") ? NOT_SUPPORTED : 0;
}

int nvmlInit_v2(void)
{
    return knob("FAKE_NVML_INIT", 0);
}

int nvmlShutdown(void)
{
    return 0;
}

const char *nvmlErrorString(int code)
{
    return code == 18 ? "Driver/library version mismatch" : code == GPU_IS_LOST ? "GPU is lost" : "Unknown Error";
}

int nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    if (length < sizeof("580.95.05"))
        return TOO_SMALL;
    strcpy(version, "580.95.05");
    return 0;
}

int nvmlDeviceGetCount_v2(unsigned int *count)
{
    *count = (unsigned int)knob("FAKE_NVML_GPUS", 2);
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **handle)
{
    if (index >= GPUS || index >= (unsigned int)knob("FAKE_NVML_GPUS", 2))
        return INVALID;
    if ((int)index == knob("FAKE_NVML_LOST", -1))
        return GPU_IS_LOST;
    if ((int)index == knob("FAKE_NVML_RIDDLE", -1))
        return NO_PERMISSION;
    *handle = &the_gpus[index];
    return 0;
}

/* "GPU-fake-1" is the second one; any other is the first. */
int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle)
{
    int i = 0;
    if (uuid && sscanf(uuid, "GPU-fake-%d", &i) == 1 && (i < 0 || i >= GPUS))
        return NOT_FOUND;
    *handle = &the_gpus[i];
    return uuid && *uuid ? 0 : NOT_FOUND;
}

int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned int length)
{
    return snprintf(uuid, length, "GPU-fake-%d", index_of(handle)) < (int)length ? 0 : TOO_SMALL;
}

int nvmlDeviceGetPciInfo_v3(void *handle, struct pci *pci)
{
    memset(pci, 0x5a, sizeof(*pci));
    strcpy(pci->bus_id, "00000000:1B:00.0");
    return answer(handle);
}

int nvmlDeviceGetNvLinkState(void *handle, unsigned int link, unsigned int *active)
{
    *active = link != 4;
    return link >= 18 ? 2 : answer(handle);
}

int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned int *celsius)
{
    *celsius = 41;
    return sensor == 0 ? answer(handle) : 2;
}

int nvmlDeviceGetClockInfo(void *handle, int domain, unsigned int *mhz)
{
    static const unsigned int clocks[] = {1111, 1755, 2619};
    *mhz = domain >= 0 && domain < 3 ? clocks[domain] : 0;
    return domain >= 0 && domain < 3 ? answer(handle) : 2;
}

int nvmlDeviceGetPowerUsage(void *handle, unsigned int *milliwatts)
{
    *milliwatts = 98765;
    return answer(handle);
}

int nvmlDeviceGetUtilizationRates(void *handle, struct utilization *rates)
{
    rates->gpu = 73;
    rates->memory = 12;
    return answer(handle);
}

int nvmlDeviceGetMemoryInfo(void *handle, struct memory_info *info)
{
    info->total = 85899345920ull;
    info->free_bytes = 64424509440ull;
    info->used = 21474836480ull;
    return answer(handle);
}

int nvmlDeviceGetEnforcedPowerLimit(void *handle, unsigned int *milliwatts)
{
    *milliwatts = 700000;
    return answer(handle);
}

int nvmlDeviceGetTotalEccErrors(void *handle, int type, int counter, unsigned long long *count)
{
    *count = type == 1 ? (counter == 0 ? 3 : 5000000000ull) : 77;
    return answer(handle);
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, unsigned long long *reasons)
{
    *reasons = 0x4 | 0x40;
    return answer(handle);
}

/* Like the real library: a call without a buffer returns the number and an error, unless the number is 0. */
int nvmlDeviceGetRetiredPages(void *handle, int cause, unsigned int *count, unsigned long long *addresses)
{
    unsigned int n = cause == 1 ? 2 : 0;
    if (answer(handle))
        return answer(handle);
    int code = n > *count ? TOO_SMALL : 0;
    if (addresses && !code)
        addresses[0] = 0;
    *count = n;
    return code;
}

int nvmlDeviceGetRemappedRows(void *handle, unsigned int *correctable, unsigned int *uncorrectable,
                              unsigned int *pending, unsigned int *failed)
{
    *correctable = 1;
    *uncorrectable = 2;
    *pending = 1;
    *failed = 0;
    return answer(handle);
}
