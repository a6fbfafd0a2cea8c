/* Where ops are complete when they return, a step consists of communication, reading of samples, saving, and the rest:
 * kernels, and the work of the host between them. The rest is compute_s, so that the parts always add up to step_s. A
 * rank that waits for a slow one waits in communication, and only the slow one computes longer. */
#include "worker/usage.h"

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define PROC_BYTES 4096 /* more than the files below have */

/* ---- the process ---- */

/* The number after `name` at the beginning of a line; -1: there is none. */
static int64_t number_after(const char *text, const char *name)
{
    const char *at = strstr(text, name);
    while (at && at != text && at[-1] != '\n')
        at = strstr(at + 1, name);
    return at ? strtoll(at + strlen(name), NULL, 10) : -1;
}

static struct usage_process read_process(void)
{
    struct usage_process ret = {-1, -1, -1};
    struct rusage r;
    struct buf text = {0};
    if (getrusage(RUSAGE_SELF, &r) == 0)
        ret.cpu_ns = ((int64_t)r.ru_utime.tv_sec + r.ru_stime.tv_sec) * 1000000000 +
                     ((int64_t)r.ru_utime.tv_usec + r.ru_stime.tv_usec) * 1000;
    if (file_read("/proc/self/io", PROC_BYTES, &text) == OK && buf_append(&text, "", 1) == OK) {
        ret.read_bytes = number_after((const char *)text.data, "read_bytes: ");
        ret.write_bytes = number_after((const char *)text.data, "write_bytes: ");
    }
    buf_fini(&text);
    return ret;
}

static double read_rss(void)
{
    struct buf text = {0};
    double ret = NAN;
    long long total, resident;
    if (file_read("/proc/self/statm", PROC_BYTES, &text) == OK && buf_append(&text, "", 1) == OK &&
        sscanf((const char *)text.data, "%lld %lld", &total, &resident) == 2)
        ret = (double)resident * (double)sysconf(_SC_PAGESIZE);
    buf_fini(&text);
    return ret;
}

/* ---- a GPU ---- */

static void sample_begin(struct usage_meter *m)
{
    struct why why = {""};
    if (!m->profile || --m->until_sample > 0 || m->config.engine->profile)
        return;
    *m->profile = (struct engine_profile){0};
    m->sampling = engine_profile_start(m->config.engine, m->profile, &why) == OK;
    m->until_sample = m->gap;
    m->gap = 2 * m->gap < m->config.sample_every ? 2 * m->gap : m->config.sample_every;
    if (!m->sampling)
        log_warn("usage sample not taken why=\"%s\"", why.text);
}

static void sample_end(struct usage_meter *m)
{
    if (!m->sampling)
        return;
    int64_t compute = 0, comm = 0;
    m->sampling = false;
    if (m->config.engine->profile != m->profile)
        return; /* run.timeline_step has measured this step for itself */
    for (int k = 0; k < OP_KIND_COUNT; k++)
        *(engine_op_communicates((enum op_kind)k) ? &comm : &compute) += m->profile->ns[k];
    engine_profile_stop(m->config.engine);
    m->compute_s = (double)compute * 1e-9;
    m->comm_s = (double)comm * 1e-9;
    m->update_s = (double)m->profile->update_ns * 1e-9;
    for (int i = 0; i < TRAFFIC_COUNT; i++)
        m->part_s[i] = m->profile->part_ns[i] ? (double)m->profile->part_ns[i] * 1e-9 : NAN;
}

/* ---- windows ---- */

static void window_open(struct usage_meter *m, int64_t now_ns)
{
    m->begin_ns = now_ns;
    m->at_begin = read_process();
    m->steps = m->step_ns = m->comm_ns = m->data_ns = m->save_ns = m->update_ns = 0;
    memset(m->part_ns, 0, sizeof(m->part_ns));
}

void usage_meter_init(struct usage_meter *m, const struct usage_config *config)
{
    const bool by_clock = config->engine->config.dev->ops->host_memory;
    *m = (struct usage_meter){.config = *config,
                              .planned_flop = engine_planned_flop(config->engine),
                              .window_ns = usage_window_ms(config->ranks) * 1000000,
                              .until_sample = 2, /* the first step is slower than others */
                              .gap = 2,          /* long steps are measured some times in their first hours, too */
                              .compute_s = NAN,
                              .comm_s = NAN,
                              .update_s = NAN};
    for (int i = 0; i < TRAFFIC_COUNT; i++)
        m->part_s[i] = NAN;
    if (!by_clock && config->sample_every)
        m->profile = calloc(1, sizeof(*m->profile));
    if (!by_clock && config->gpu && config->gpu[0])
        m->gpu = usage_gpu_start(config->gpu);
    window_open(m, clock_mono_ns());
}

void usage_meter_fini(struct usage_meter *m)
{
    if (m->sampling)
        engine_profile_stop(m->config.engine);
    usage_gpu_stop(m->gpu);
    free(m->profile);
    *m = (struct usage_meter){0};
}

void usage_meter_before(struct usage_meter *m)
{
    m->config.engine->spent = (struct engine_spent){0};
    sample_begin(m);
}

void usage_meter_after(struct usage_meter *m)
{
    m->comm_ns += m->config.engine->spent.comm_ns;
    m->data_ns += m->config.engine->spent.data_ns;
    m->update_ns += m->config.engine->spent.update_ns;
    for (int i = 0; i < TRAFFIC_COUNT; i++)
        m->part_ns[i] += m->config.engine->spent.part_ns[i];
    sample_end(m);
}

static double per_step(const struct usage_meter *m, int64_t ns)
{
    return (double)ns * 1e-9 / (double)m->steps;
}

static double per_second(int64_t from, int64_t to, int64_t ns)
{
    return from >= 0 && to >= from && ns > 0 ? (double)(to - from) * 1e9 / (double)ns : NAN;
}

/* A part without any time is absent: the rank has no such communication. */
static double part_seconds(const struct usage_meter *m, enum traffic_part part)
{
    if (!m->config.engine->config.dev->ops->host_memory)
        return m->part_s[part];
    return m->part_ns[part] ? per_step(m, m->part_ns[part]) : NAN;
}

static void fill_parts(const struct usage_meter *m, struct usage *u)
{
#define X(id, name) u->name##_s = part_seconds(m, TRAFFIC_##id);
    TRAFFIC_PARTS(X)
#undef X
    u->update_s = m->config.engine->config.dev->ops->host_memory ? per_step(m, m->update_ns) : m->update_s;
}

static void fill_times(const struct usage_meter *m, struct usage *u)
{
    u->step_s = per_step(m, m->step_ns);
    u->data_s = per_step(m, m->data_ns);
    u->save_s = per_step(m, m->save_ns);
    u->comm_s = per_step(m, m->comm_ns);
    u->compute_s = fmax(0, per_step(m, m->step_ns - m->comm_ns - m->data_ns - m->save_ns));
    fill_parts(m, u);
    if (m->config.engine->config.dev->ops->host_memory)
        return;
    u->comm_s += m->comm_s;
    u->compute_s = m->compute_s;
}

static void fill_process(const struct usage_meter *m, int64_t ns, struct usage *u)
{
    const struct usage_process now = read_process();
    u->cpu = per_second(m->at_begin.cpu_ns, now.cpu_ns, ns) * 1e-9;
    u->rss_bytes = read_rss();
    u->read_bytes_per_s = per_second(m->at_begin.read_bytes, now.read_bytes, ns);
    u->write_bytes_per_s = per_second(m->at_begin.write_bytes, now.write_bytes, ns);
}

bool usage_meter_add_at(struct usage_meter *m, const struct usage_step *step, int64_t now_ns, struct usage_report *ret)
{
    const int64_t ns = now_ns - m->begin_ns;
    m->steps++;
    m->step_ns += step->step_ns;
    m->comm_ns += step->agree_ns;
    m->save_ns += step->save_ns;
    if (ns < m->window_ns)
        return false;
    *ret = (struct usage_report){
        .window_ms = ns / 1000000, .steps = m->steps, .step = m->config.engine->step, .usage = usage_none};
    fill_times(m, &ret->usage);
    fill_process(m, ns, &ret->usage);
    ret->usage.planned_bytes = (double)m->config.planned_bytes;
    ret->usage.planned_flop = m->planned_flop;
    usage_gpu_fill(m->gpu, &ret->usage);
    window_open(m, now_ns);
    return true;
}

bool usage_meter_add(struct usage_meter *m, const struct usage_step *step, struct usage_report *ret)
{
    return usage_meter_add_at(m, step, clock_mono_ns(), ret);
}
