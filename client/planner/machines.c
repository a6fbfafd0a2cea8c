/* A CPU core and its memory are known well enough to plan on this node without a machine file. Without a calibration
 * the rates are those of the forecast, so that both agree. A machine with GPUs needs a file. */
#include "client/planner/planner.h"

#include "client/spec.h"
#include "common/base/cpus.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NAMES_TEXT 512

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

static err_t this_node(const struct job_spec *job, struct machine *ret, struct why *why)
{
    if (job->run.device != DEVICE_CPU) {
        char names[NAMES_TEXT];
        list_names(names, sizeof(names));
        return why_set(why, ERR_INVALID, "run.device is cuda: name the machine with --machine, a file or one of %s",
                       names);
    }
    if (planner_is_calibrated())
        return calibrated(ret, why);
    const struct plan_rates r = plan_rates_of(job);
    const double pages = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    char text[1024];
    int n = snprintf(text, sizeof(text),
                     "name: this node\nsource: assumed, not measured (dtctl plan --calibrate measures them)\n"
                     "device: {per_node: %ld, memory_gib: %.17g, bandwidth_gb: %.17g, bf16_tflops: %.17g, f32_tflops: "
                     "%.17g, product: 1, copy: 1, launch_us: 1, call_us: 0, one_thread: true}\n"
                     "link: {bandwidth_gb: %.17g, latency_us: %.17g}\nnetwork: {bandwidth_gb: 0}\n",
                     cores, pages / (double)cores / (1 << 30), r.memory / 1e9, r.flops / 1e12, r.flops / 1e12,
                     r.link / 1e9, r.latency * 1e6);
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

struct plan_overlap planner_overlap(const struct machine *m)
{
    const bool streams = !m->device.one_thread;
    return (struct plan_overlap){.gradients = streams, .parameters = streams, .messages = streams};
}

double planner_memory(const struct machine *m)
{
    const double bytes = m->device.memory_gib * (double)(1 << 30);
    return m->device.one_thread ? 0.9 * bytes : bytes - 2.0 * (1 << 30) - 0.02 * bytes;
}
