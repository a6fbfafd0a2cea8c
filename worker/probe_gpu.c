/* The GPU part of the probe. A GPU that the CUDA module can open can be used for training. The driver's management
 * library (NVML) and sysfs add its location and health; --health uses that library alone, while jobs run. If there is
 * no GPU, the message names what is missing: a driver, a device, or dtd's module. */
#include "worker/probe_gpu.h"

#include "common/base/buf.h"
#include "common/base/file.h"
#include "common/base/paths.h"
#include "kernels/device.h"
#include "worker/nvml.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define XID_NOTE \
    "Xid errors stand in the kernel's log (dmesg | grep NVRM): the driver's library reports them only to listeners"

struct gpu_probe {
    struct nvml *nvml; /* NULL: `nvml_why` has the reason */
    err_t nvml_err;
    struct why nvml_why;
};

static json_t *number(int64_t x)
{
    return x == NVML_UNKNOWN ? json_null() : json_integer(x);
}

/* ---- one GPU ---- */

static json_t *throttle_names(int64_t bits)
{
    json_t *list = json_array();
    if (bits == NVML_UNKNOWN) {
        json_decref(list);
        return json_null();
    }
    for (int bit = 0; nvml_throttle_name(bit); bit++)
        if (bits >> bit & 1)
            json_array_append_new(list, json_string(nvml_throttle_name(bit)));
    return list;
}

static json_t *health(const struct nvml *n, const char *uuid, const struct nvml_facts *f)
{
    struct nvml_use use;
    nvml_read_use(n, uuid, &use);
    json_t *ret = json_pack(
        "{s:b, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:{s:o, s:o, s:o, s:o}}", "lost", f->lost, "temperature_c",
        number(f->temperature_c), "sm_mhz", number(f->sm_mhz), "memory_mhz", number(f->memory_mhz), "power_mw",
        number(f->power_mw), "power_limit_mw", number(f->power_limit_mw), "ecc_uncorrected_volatile",
        number(f->ecc_uncorrected_volatile), "ecc_uncorrected_aggregate", number(f->ecc_uncorrected_aggregate),
        "throttle", throttle_names(f->throttle), "retired_pages", number(f->retired_pages), "remapped_rows",
        "correctable", number(f->remapped_correctable), "uncorrectable", number(f->remapped_uncorrectable), "pending",
        number(f->remap_pending), "failed", number(f->remap_failed));
    json_object_set_new(ret, "busy_percent", number(use.busy_percent));
    json_object_set_new(ret, "memory_used_bytes", number(use.memory_bytes));
    return ret;
}

/* -1 in sysfs: a machine without nodes. */
static json_t *numa_node(const char *pci)
{
    char path[PATH_MAX];
    struct buf text = {0};
    json_t *ret = json_null();
    snprintf(path, sizeof(path), "%s/bus/pci/devices/%s/numa_node", path_sysfs(), pci);
    if (pci[0] && file_read(path, 64, &text) == OK && buf_append(&text, "", 1) == OK && atoi((char *)text.data) >= 0)
        ret = json_integer(atoi((char *)text.data));
    buf_fini(&text);
    return ret;
}

/* M of /dev/nvidiaM, which the driver counts in an order of its own. */
static json_t *minor_number(const char *pci)
{
    char path[PATH_MAX];
    struct buf text = {0};
    json_t *ret = json_null();
    snprintf(path, sizeof(path), "/proc/driver/nvidia/gpus/%s/information", pci);
    const bool is_read = pci[0] && file_read(path, 4096, &text) == OK && buf_append(&text, "", 1) == OK;
    const char *line = is_read ? strstr((char *)text.data, "Device Minor:") : NULL;
    int minor;
    if (line && sscanf(line, "Device Minor: %d", &minor) == 1)
        ret = json_integer(minor);
    buf_fini(&text);
    return ret;
}

static void add_driver_facts(const struct gpu_probe *p, const char *uuid, json_t *gpu)
{
    struct nvml_facts f;
    if (!p->nvml || !nvml_read(p->nvml, uuid, &f))
        return;
    json_object_set_new(gpu, "pci", f.pci[0] ? json_string(f.pci) : json_null());
    json_object_set_new(gpu, "numa_node", numa_node(f.pci));
    json_object_set_new(gpu, "minor", minor_number(f.pci));
    json_object_set_new(gpu, "nvlinks_up", number(f.nvlinks));
    json_object_set_new(gpu, "health", health(p->nvml, uuid, &f));
}

static json_t *one_gpu(const struct gpu_probe *p, int index)
{
    struct dev *d = NULL;
    struct dev_facts f;
    struct why why = {""};
    char capability[16];
    err_t err = dev_open("cuda", index, &d, &why);
    if (!err)
        err = dev_facts(d, &f, &why);
    dev_close(d);
    if (err)
        return json_pack("{s:i, s:s}", "index", index, "error", why.text);
    snprintf(capability, sizeof(capability), "%d.%d", f.major, f.minor);
    json_t *gpu = json_pack("{s:i, s:s, s:s, s:s, s:s, s:i, s:I, s:I}", "index", index, "model", f.model, "uuid",
                            f.uuid, "driver", f.driver, "compute_capability", capability, "processors", f.processors,
                            "memory_bytes", (json_int_t)f.memory_bytes, "free_bytes", (json_int_t)f.free_bytes);
    if (gpu)
        add_driver_facts(p, f.uuid, gpu);
    return gpu;
}

/* By the library's order, which is not CUDA's; the uuid is what joins them. */
static json_t *health_of(const struct nvml *n, int index)
{
    char uuid[NVML_UUID_BYTES];
    struct nvml_facts f;
    struct why why = {""};
    err_t err = nvml_uuid(n, index, uuid, &why);
    if (err == ERR_CLOSED) /* NVML may not return the uuid of a lost GPU */
        return json_pack("{s:b, s:s}", "lost", 1, "error", why.text);
    if (err || !nvml_read(n, uuid, &f))
        return json_pack("{s:s}", "error", err ? why.text : "NVML does not find the GPU by its uuid");
    return json_pack("{s:s, s:o, s:o}", "uuid", uuid, "pci", f.pci[0] ? json_string(f.pci) : json_null(), "health",
                     health(n, uuid, &f));
}

/* ---- what is missing ---- */

static bool has_library(const char *name)
{
    void *library = dlopen(name, RTLD_LAZY | RTLD_LOCAL);
    if (library)
        dlclose(library);
    return library != NULL;
}

/* `cause`: the module's or the runtime's words; OK and no devices when `err` is OK. */
static void say_missing(const struct gpu_probe *p, err_t err, const char *cause, char *ret, size_t size)
{
    bool cuda = has_library("libcuda.so.1");
    int n = p->nvml ? nvml_count(p->nvml) : 0;
    const char *driver = p->nvml && nvml_driver(p->nvml)[0] ? nvml_driver(p->nvml) : "of unknown version";
    if (!cuda && p->nvml_err == ERR_NOTFOUND)
        snprintf(ret, size,
                 "there is no NVIDIA driver: libcuda.so.1 and libnvidia-ml.so.1 were not found; install the driver (in "
                 "a container: start it with its GPUs), or run with run.device: cpu");
    else if (p->nvml_err && p->nvml_err != ERR_NOTFOUND)
        snprintf(ret, size,
                 "the NVIDIA driver does not answer: %.900s; load its kernel module (nvidia-smi reports more)",
                 p->nvml_why.text);
    else if (p->nvml && n == 0)
        snprintf(ret, size,
                 "the NVIDIA driver %s sees no device: look at `lspci`, CUDA_VISIBLE_DEVICES, the kernel's "
                 "log; in a container start it with its GPUs",
                 driver);
    else if (err)
        snprintf(ret, size, "%s%s%s%d GPUs, but %s", p->nvml ? "the NVIDIA driver " : "there is libcuda.so.1",
                 p->nvml ? driver : "", p->nvml ? " has " : ", which may have ", n, cause);
    else
        snprintf(ret, size,
                 "the NVIDIA driver %s has %d GPUs and CUDA shows none of them: look at "
                 "CUDA_VISIBLE_DEVICES",
                 driver, n);
}

/* ---- all ---- */

static json_t *driver_of(const struct gpu_probe *p)
{
    return p->nvml && nvml_driver(p->nvml)[0] ? json_string(nvml_driver(p->nvml)) : json_null();
}

err_t probe_gpus(json_t *root)
{
    struct gpu_probe p = {0};
    struct why why = {""};
    char missing[2 * sizeof(why.text)] = "";
    int n = 0;
    json_t *list = json_array();
    p.nvml_err = nvml_open(&p.nvml, &p.nvml_why);
    err_t err = dev_count("cuda", &n, &why);
    for (int i = 0; !err && i < n; i++)
        json_array_append_new(list, one_gpu(&p, i));
    if (json_array_size(list) == 0)
        say_missing(&p, err, why.text, missing, sizeof(missing));
    int rc = json_object_set_new(root, "driver", driver_of(&p)) | json_object_set_new(root, "gpus", list);
    if (missing[0])
        rc |= json_object_set_new(root, "gpu_missing", json_string(missing));
    else if (!p.nvml)
        rc |= json_object_set_new(root, "health_missing", json_string(p.nvml_why.text));
    else
        rc |= json_object_set_new(root, "health_note", json_string(XID_NOTE));
    nvml_close(p.nvml);
    return rc ? ERR_NOMEM : OK;
}

err_t probe_health(json_t *root)
{
    struct gpu_probe p = {0};
    char missing[2 * sizeof(p.nvml_why.text)] = "";
    json_t *list = json_array();
    p.nvml_err = nvml_open(&p.nvml, &p.nvml_why);
    int rc = 0, n = p.nvml ? nvml_count(p.nvml) : 0;
    for (int i = 0; i < n; i++)
        rc |= json_array_append_new(list, health_of(p.nvml, i));
    if (n == 0)
        say_missing(&p, OK, "", missing, sizeof(missing));
    rc |= json_object_set_new(root, "driver", driver_of(&p)) | json_object_set_new(root, "gpus", list);
    if (missing[0])
        rc |= json_object_set_new(root, "gpu_missing", json_string(missing));
    nvml_close(p.nvml);
    return rc ? ERR_NOMEM : OK;
}
