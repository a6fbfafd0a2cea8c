/* A CPU core and its memory are known well enough to plan on this node without a machine file. Without a calibration
 * the rates are those of the forecast, so that both agree. A machine with GPUs needs a file. */
#include "client/planner/planner.h"

#include "client/spec.h"
#include "common/base/cpus.h"
#include "common/base/file.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NAMES_TEXT 512
#define ASSUMED_TEXT 1024
#define MAX_FILE_BYTES (1u << 16) /* of a job file's text */

static void list_names(char *ret, size_t size)
{
    size_t n = 0;
    ret[0] = 0;
    for (const struct planner_file *f = planner_files; f->name; f++)
        n += (size_t)snprintf(ret + n, n < size ? size - n : 0, "%s%s", n ? ", " : "", f->name);
}

/* The file of --calibrate. */
static err_t calibrated(struct machine *ret, struct why *why)
{
    char path[PATH_MAX];
    err_t err = planner_calibrated_path(path, sizeof(path), why);
    if (err)
        return err;
    if (access(path, F_OK))
        return why_set(why, ERR_NOTFOUND, "--machine here: %s is missing; `dtctl plan --calibrate` writes it", path);
    return machine_read(path, NULL, 0, ret, why);
}

bool planner_is_calibrated(void)
{
    char path[PATH_MAX];
    struct why ignored = {0};
    return !planner_calibrated_path(path, sizeof(path), &ignored) && access(path, F_OK) == 0;
}

static err_t gpus_need_name(struct why *why)
{
    char names[NAMES_TEXT];
    list_names(names, sizeof(names));
    return why_set(why, ERR_INVALID, "run.device is cuda: name the machine with --machine, a file or one of %s", names);
}

/* The machine file of this node with the rates of the forecast. */
static int assumed_text(const struct job_spec *job, char *ret, size_t size)
{
    const struct plan_rates r = plan_rates_of(job);
    const double pages = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    return snprintf(ret, size,
                    "name: this node\nsource: assumed, not measured (dtctl plan --calibrate measures them)\n"
                    "device: {per_node: %ld, memory_gib: %.17g, bandwidth_gb: %.17g, bf16_tflops: %.17g, f32_tflops: "
                    "%.17g, product: 1, copy: 1, launch_us: 1, call_us: 0, one_thread: true}\n"
                    "link: {bandwidth_gb: %.17g, latency_us: %.17g}\nnetwork: {bandwidth_gb: 0}\n",
                    cores, pages / (double)cores / (1 << 30), r.memory / 1e9, r.flops / 1e12, r.flops / 1e12,
                    r.link / 1e9, r.latency * 1e6);
}

static err_t this_node(const struct job_spec *job, struct machine *ret, struct why *why)
{
    char text[ASSUMED_TEXT];
    if (job->run.device != DEVICE_CPU)
        return gpus_need_name(why);
    if (planner_is_calibrated())
        return calibrated(ret, why);
    const int n = assumed_text(job, text, sizeof(text));
    return machine_parse("this node", text, (size_t)n, NULL, 0, ret, why);
}

err_t planner_machine(const char *name, const struct job_spec *job, struct machine *ret, struct why *why)
{
    char names[NAMES_TEXT];
    if (!name)
        return this_node(job, ret, why);
    if (strcmp(name, "here") == 0)
        return calibrated(ret, why);
    for (const struct planner_file *f = planner_files; f->name; f++)
        if (strcmp(f->name, name) == 0)
            return machine_parse(name, f->text, strlen(f->text), NULL, 0, ret, why);
    if (strchr(name, '/') || strchr(name, '.'))
        return machine_read(name, NULL, 0, ret, why);
    list_names(names, sizeof(names));
    return why_set(why, ERR_NOTFOUND, "--machine %s: there is no such machine; write a file's path, or one of here, %s",
                   name, names);
}

/* The file of a name: its path. */
static err_t path_of(const char *name, char *ret, size_t size, struct why *why)
{
    if (name && strcmp(name, "here") != 0) {
        snprintf(ret, size, "%s", name);
        return OK;
    }
    return planner_calibrated_path(ret, size, why);
}

err_t planner_machine_text(const char *name, const struct job_spec *job, struct buf *ret, struct why *why)
{
    char text[ASSUMED_TEXT], path[PATH_MAX];
    struct machine checked = {0};
    err_t err = planner_machine(name, job, &checked, why);
    machine_fini(&checked);
    if (err)
        return err;
    for (const struct planner_file *f = planner_files; name && f->name; f++)
        if (strcmp(f->name, name) == 0)
            return buf_append(ret, f->text, strlen(f->text) + 1);
    if (!name && !planner_is_calibrated()) {
        assumed_text(job, text, sizeof(text));
        return buf_append(ret, text, strlen(text) + 1);
    }
    err = path_of(name, path, sizeof(path), why);
    err = err ? err : file_read(path, MAX_FILE_BYTES, ret);
    if (err)
        return why_set(why, err, "%s: %s", path, err_text(err));
    return buf_append(ret, "", 1);
}
