/* The forecast of a job that is submitted. It goes into the job's own file (struct job_forecast), which control, the
 * checkpoints and every report have: so a report that another machine makes later compares with the same numbers. */
#include "client/planner/planner.h"

#include "client/spec.h"
#include "common/plan/estimate/forecast.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define PER_NODE 8                    /* GPUs of a usual node, where nothing is known of it */
#define NETWORK_GB 1.25               /* 10 Gbit/s: the slowest network between nodes that is usual for training */
#define ASSUMED_NETWORK_LATENCY_US 50 /* of TCP in a data centre */

/* The rates of common/plan/estimate, which are the same on every machine. */
static err_t assumed_gpu(const struct job_spec *job, struct machine *ret, struct why *why)
{
    const struct plan_rates r = plan_rates_of(job);
    char text[512];
    const int n = snprintf(text, sizeof(text),
                           "name: this node\nsource: assumed, not measured (forecast.machine names a machine)\n"
                           "device: {per_node: %d, memory_gib: 80, bandwidth_gb: %.17g, bf16_tflops: %.17g, "
                           "f32_tflops: %.17g, product: 1, copy: 1}\nlink: {bandwidth_gb: %.17g, latency_us: %.17g}\n",
                           PER_NODE, r.memory / 1e9, r.flops / 1e12, r.flops / 1e12, r.link / 1e9, r.latency * 1e6);
    return machine_parse("this node", text, (size_t)n, NULL, 0, ret, why);
}

/* A calibrated file that cannot be read any more must not keep a job from starting. */
static err_t find_machine(const struct job_spec *job, struct machine *ret, bool *ret_assumed, struct why *why)
{
    const bool gpu = job->run.device == DEVICE_CUDA;
    *ret_assumed = false;
    if (job->forecast.machine[0])
        return why_prefix(why, planner_machine(job->forecast.machine, job, ret, why), "forecast.machine");
    *ret_assumed = gpu || !planner_is_calibrated();
    if (gpu)
        return assumed_gpu(job, ret, why);
    return planner_machine(NULL, job, ret, why);
}

/* A worker on processors has a share of the node's cores, or run.threads of them; several may share a GPU. */
static void share_devices(const struct job_spec *job, struct machine *m)
{
    const double workers = (double)job->parallel.workers;
    const double nodes = job->run.nodes                ? (double)job->run.nodes
                         : m->network.bandwidth_gb > 0 ? ceil(workers / (double)m->device.per_node)
                                                       : 1;
    const double per_node = ceil(workers / nodes);
    double share = 1 / (double)job->run.workers_per_gpu;
    if (job->run.device == DEVICE_CPU) {
        share = (double)m->device.per_node / per_node;
        share = job->run.threads ? fmin(share, (double)job->run.threads) : share;
    }
    m->device.bf16_tflops *= share;
    m->device.f32_tflops *= share;
    m->device.f64_tflops *= share;
    m->device.bandwidth_gb *= share;
    m->device.per_node = job->run.nodes || job->run.device == DEVICE_CPU || per_node > (double)m->device.per_node
                             ? (int64_t)per_node
                             : m->device.per_node;
}

/* Between nodes of a machine that names no network. */
static bool assume_network(const struct job_spec *job, struct machine *m)
{
    if (m->network.bandwidth_gb > 0 || job->run.nodes <= 1)
        return false;
    m->network.bandwidth_gb = NETWORK_GB;
    m->network.latency_us = ASSUMED_NETWORK_LATENCY_US;
    return true;
}

/* Four digits, since the formulas have fewer, and job files are read by people. */
static double rounded(double seconds)
{
    char text[32];
    snprintf(text, sizeof(text), "%.4g", isfinite(seconds) && seconds > 0 ? seconds : 0);
    return strtod(text, NULL);
}

static void take_times(const struct plan_time *t, struct job_forecast *f)
{
    f->compute_s = rounded(t->compute);
    f->recompute_s = rounded(t->recompute);
    f->tp_s = rounded(t->tp);
    f->cp_s = rounded(t->cp);
    f->ep_s = rounded(t->ep);
    f->pp_s = rounded(t->pp);
    f->bubble_s = rounded(t->bubble);
    f->wait_s = rounded(t->wait);
    f->params_s = rounded(t->params);
    f->grads_s = rounded(t->grads);
    f->update_s = rounded(t->update);
}

err_t planner_record(struct job_spec *job, struct why *why)
{
    struct machine m = {0};
    struct plan_shape shape;
    struct plan_layout layout;
    struct plan_time time;
    char source[1024];
    bool assumed = false;
    if (job_is_command(job))
        return OK;
    err_t err = find_machine(job, &m, &assumed, why);
    if (err)
        return err;
    const bool network = assume_network(job, &m);
    share_devices(job, &m);
    plan_shape_of(job, &shape);
    plan_layout_of(job, &layout);
    const struct plan_overlap overlap = planner_overlap(&m);
    plan_step_time(&shape, &layout, &m, &overlap, &time);
    snprintf(source, sizeof(source), "%s: %s%s", m.name, m.source, network ? "; network assumed" : "");
    err = spec_text_set(&job->forecast.source, source);
    job->forecast.workers = job->parallel.workers;
    job->forecast.assumed = assumed || network;
    take_times(&time, &job->forecast);
    machine_fini(&m);
    return err ? why_set(why, err, "out of memory for the forecast") : OK;
}
