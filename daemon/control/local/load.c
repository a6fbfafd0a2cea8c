/* Rates are differences of counters, so that the first measurement has none. Temperatures are those that the kernel's
 * drivers of processors report; other sensors (boards, disks) may take milliseconds to answer and are left out. */
#include "daemon/control/local/load.h"

#include "common/base/buf.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/paths.h"
#include "daemon/control/local/gpus.h"
#include "daemon/control/local/health.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define TICK_MS 5000        /* a person who watches sees changes, and the files cost less than a millisecond each */
#define PROC_MAX (1u << 20) /* bytes of one file; /proc/stat grows with processors and interrupts */
#define NAME_BYTES 64

_Static_assert(NODE_LOAD_GPUS >= GPUS_MAX, "each GPU of a node has an entry");

/* Drivers of processors: the hwmon name, and the types of thermal zones where there is no such driver (ARM boards). */
static const char *const drivers[] = {"coretemp", "k10temp", "zenpower", "cpu_thermal", "soc_thermal"};
static const char *const zones[] = {"x86_pkg_temp", "cpu-thermal", "cpu_thermal", "soc-thermal"};

/* ---- files ---- */

/* The text of a file, "" if it cannot be read. The caller frees it with buf_fini. */
static const char *text_of(const char *path, struct buf *b)
{
    if (file_read(path, PROC_MAX, b) || buf_append(b, "", 1))
        return "";
    return (const char *)b->data;
}

static void line_of(const char *path, char *ret, size_t size)
{
    struct buf b = {0};
    snprintf(ret, size, "%s", text_of(path, &b));
    ret[strcspn(ret, "\n")] = '\0';
    buf_fini(&b);
}

static bool one_of(const char *name, const char *const *list, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(name, list[i]) == 0)
            return true;
    return false;
}

/* Adds `value` of each folder in `class` whose file `name` has one of these texts. */
static void find_sensors(struct load *l, const char *class, const char *name, const char *value,
                         const char *const *list, size_t n)
{
    char path[300], text[NAME_BYTES];
    DIR *dir = opendir(class);
    for (struct dirent *d; dir && (d = readdir(dir)) && l->n_sensors < LOAD_SENSORS;) {
        if (d->d_name[0] == '.' || strlen(class) + strlen(d->d_name) + NAME_BYTES > sizeof(path))
            continue;
        snprintf(path, sizeof(path), "%.150s/%.80s/%.40s", class, d->d_name, name);
        line_of(path, text, sizeof(text));
        if (one_of(text, list, n))
            snprintf(l->sensor[l->n_sensors++], sizeof(l->sensor[0]), "%.150s/%.80s/%.40s", class, d->d_name, value);
    }
    if (dir)
        closedir(dir);
}

void load_init(struct load *l)
{
    char class[200];
    *l = (struct load){.now = node_load_none};
    snprintf(class, sizeof(class), "%.140s/class/hwmon", path_sysfs());
    find_sensors(l, class, "name", "temp1_input", drivers, sizeof(drivers) / sizeof(drivers[0]));
    snprintf(class, sizeof(class), "%.140s/class/thermal", path_sysfs());
    if (!l->n_sensors)
        find_sensors(l, class, "type", "temp", zones, sizeof(zones) / sizeof(zones[0]));
}

/* ---- counters ---- */

bool load_read_cpu(const char *stat, struct load_counters *ret)
{
    uint64_t user, nice, system, idle, wait, irq, soft, stolen;
    if (sscanf(stat, "cpu %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64,
               &user, &nice, &system, &idle, &wait, &irq, &soft, &stolen) != 8)
        return false;
    ret->busy = user + nice + system + irq + soft + stolen;
    ret->all = ret->busy + idle + wait;
    return true;
}

static bool has_device(const char *sysfs, const char *name)
{
    char path[300];
    snprintf(path, sizeof(path), "%.140s/class/net/%.60s/device", sysfs, name);
    return access(path, F_OK) == 0;
}

void load_read_network(const char *dev, const char *sysfs, struct load_counters *ret)
{
    uint64_t real[2] = {0, 0}, any[2] = {0, 0}, received, sent;
    bool is_real = false;
    char name[NAME_BYTES];
    for (const char *line = dev; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        if (sscanf(line, " %60[^:]: %" SCNu64 " %*u %*u %*u %*u %*u %*u %*u %" SCNu64, name, &received, &sent) != 3 ||
            strcmp(name, "lo") == 0)
            continue;
        bool device = has_device(sysfs, name);
        is_real = is_real || device;
        any[0] += received;
        any[1] += sent;
        real[0] += device ? received : 0;
        real[1] += device ? sent : 0;
    }
    ret->received = is_real ? real[0] : any[0];
    ret->sent = is_real ? real[1] : any[1];
}

/* A counter that went back, as of an interface that is gone, gives no rate. */
static double rate(uint64_t before, uint64_t after, double seconds)
{
    return seconds > 0 && after >= before ? (double)(after - before) / seconds : NAN;
}

void load_rates(const struct load_counters *before, const struct load_counters *after, double seconds, int64_t cores,
                struct node_load *ret)
{
    if (after->all > before->all && after->busy >= before->busy)
        ret->cores_used = (double)(after->busy - before->busy) / (double)(after->all - before->all) * (double)cores;
    ret->received_bytes_per_s = rate(before->received, after->received, seconds);
    ret->sent_bytes_per_s = rate(before->sent, after->sent, seconds);
}

/* ---- a measurement ---- */

static void read_memory(struct node_load *ret)
{
    struct buf b = {0};
    const char *text = text_of("/proc/meminfo", &b);
    const int64_t all = health_number(text, "MemTotal"), free = health_number(text, "MemAvailable");
    if (all > 0 && free >= 0) {
        ret->memory_bytes = all * 1024;
        ret->memory_used_bytes = (all - free) * 1024;
    }
    buf_fini(&b);
}

static void read_counters(struct load *l, struct node_load *ret)
{
    struct buf stat = {0}, dev = {0};
    struct load_counters now = {0};
    int64_t at = clock_mono_ms();
    bool known = load_read_cpu(text_of("/proc/stat", &stat), &now);
    load_read_network(text_of("/proc/net/dev", &dev), path_sysfs(), &now);
    if (known && l->before.all)
        load_rates(&l->before, &now, (double)(at - l->at_ms) / 1000, ret->cores, ret);
    l->before = now;
    l->at_ms = at;
    buf_fini(&stat);
    buf_fini(&dev);
}

static void read_load(struct node_load *ret)
{
    struct buf b = {0};
    double average;
    if (sscanf(text_of("/proc/loadavg", &b), "%lf", &average) == 1)
        ret->load = average;
    buf_fini(&b);
}

/* The kernel has thousandths of a degree. */
static void read_temperature(const struct load *l, struct node_load *ret)
{
    char text[NAME_BYTES], *end;
    for (int i = 0; i < l->n_sensors; i++) {
        line_of(l->sensor[i], text, sizeof(text));
        const double celsius = (double)strtol(text, &end, 10) / 1000;
        if (end > text && !(ret->temperature_c >= celsius))
            ret->temperature_c = celsius;
    }
}

static void read_gpus(const struct gpus *g, struct node_load *ret)
{
    for (int i = 0; i < g->n && i < GPUS_MAX; i++) {
        struct gpu_load *to = &ret->gpu[ret->n_gpu++];
        *to = g->gpu[i].load;
        to->gpu = i;
        to->sick = NULL; /* the leader has it from the node's facts */
    }
}

bool load_tick(struct load *l, const struct gpus *g)
{
    int64_t now = clock_mono_ms();
    if (now < l->due_ms)
        return false;
    l->due_ms = now + TICK_MS;
    l->now = node_load_none;
    l->now.cores = sysconf(_SC_NPROCESSORS_ONLN);
    read_counters(l, &l->now);
    read_load(&l->now);
    read_memory(&l->now);
    read_temperature(l, &l->now);
    read_gpus(g, &l->now);
    return true;
}
