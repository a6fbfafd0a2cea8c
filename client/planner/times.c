/* The forecast of a compiled program: from the rates of a machine file, and where the file names measured times of
 * operations, from these. */
#include "client/planner/planner.h"

#include "client/spec.h"
#include "common/base/file.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- rates ---- */

static struct plan_rates rates_of(const struct machine *m, const struct job_spec *job)
{
    const enum dtype dtype = (enum dtype)job->train.dtype;
    const double peak = dtype == DT_BF16  ? m->device.bf16_tflops
                        : dtype == DT_F64 ? m->device.f64_tflops
                                          : m->device.f32_tflops;
    return (struct plan_rates){.flops = peak * m->device.product * 1e12,
                               .memory = m->device.bandwidth_gb * m->device.copy * 1e9,
                               .link = m->link.bandwidth_gb * 1e9,
                               .latency = m->link.latency_us * 1e-6,
                               .one_thread = m->device.one_thread && job->run.comm_thread != COMM_THREAD_ON,
                               .one_call = !m->device.one_thread};
}

static err_t read_times(const char *path, struct plan_table *ret, struct why *why)
{
    struct buf text = {0};
    err_t err = file_read(path, TABLE_MAX_BYTES, &text);
    if (err)
        why_set(why, err, "%s: %s; `dtctl plan --calibrate` writes it, with the machine file that names it", path,
                err_text(err));
    else
        err = plan_table_read((const char *)text.data, text.len, path, ret, why);
    buf_fini(&text);
    return err;
}

/* Cores of a worker on processors, as the leader counts them (plan_machine_share); a part of one where workers share
 * it. 1 for a GPU. */
static double cores_of_worker(const struct machine *m, const struct job_spec *job)
{
    const int64_t workers = job->parallel.workers, per_node = m->device.per_node;
    const int64_t nodes = job->run.nodes ? job->run.nodes : m->nodes == 1 ? 1 : (workers + per_node - 1) / per_node;
    const double share = (double)per_node / (double)((workers + nodes - 1) / nodes);
    if (!m->device.one_thread || workers < 1)
        return 1;
    return job->run.threads ? fmin((double)job->run.threads, share) : share > 1 ? floor(share) : share;
}

/* Measured times are those of a worker on one core. With more or less of them only rates are left, and the interval is
 * that of forecasts from rates. */
static void share_cores(double cores, const struct machine *m, struct planner_rates *ret)
{
    if (cores == 1)
        return;
    ret->rates.flops *= cores;
    ret->rates.memory *= cores;
    ret->less = ret->more > 0 ? m->error.less : 0;
    ret->more = ret->more > 0 ? m->error.more : 0;
    if (m->times[0])
        snprintf(ret->unused, sizeof(ret->unused),
                 "measured times are those of one core, but a worker of this job has %.3g: all times follow from rates",
                 cores);
}

err_t planner_rates_of(const struct machine *machine, const struct job_spec *job, struct planner_rates *ret,
                       struct why *why)
{
    const double cores = cores_of_worker(machine, job);
    ret->rates = rates_of(machine, job);
    snprintf(ret->source, sizeof(ret->source), "%s", machine->source);
    ret->less = machine->error.program_less;
    ret->more = machine->error.program_more;
    snprintf(ret->error_source, sizeof(ret->error_source), "%s", machine->error.source);
    share_cores(cores, machine, ret);
    return machine->times[0] && cores == 1 ? read_times(machine->times, &ret->table, why) : OK;
}

err_t planner_rates(const char *name, const struct job_spec *job, struct planner_rates *ret, struct why *why)
{
    struct machine m = {0};
    err_t err = OK;
    *ret = (struct planner_rates){.rates = plan_rates_of(job)};
    if (!name && (job->run.device != DEVICE_CPU || !planner_is_calibrated()))
        return OK;
    err = planner_machine(name, job, &m, why);
    err = err ? err : planner_rates_of(&m, job, ret, why);
    machine_fini(&m);
    return err;
}

void planner_rates_fini(struct planner_rates *r)
{
    plan_table_fini(&r->table);
}

/* ---- the forecast ---- */

/* Time of the operations of all ranks, by whether it was measured. */
struct shares {
    const struct program *programs;
    const struct plan_table *table;
    double measured, formulas[OP_KIND_COUNT];
    bool messages; /* between stages; the time of a wait for one is that of its sender */
};

static void add_share(void *arg, int rank, int action, const struct op *op, double start, double end)
{
    struct shares *s = arg;
    const struct program *p = &s->programs[rank];
    const int micro = p->actions[action].micro;
    const int64_t samples = micro >= 0 ? p->micros[micro].samples : p->max_samples;
    s->messages |= op->kind == OP_RECV;
    if (op->kind == OP_WAIT || op->kind == OP_PUSH)
        return;
    if (plan_table_seconds(s->table, p, op, samples, TABLE_MEDIAN) >= 0)
        s->measured += end - start;
    else
        s->formulas[op->kind] += end - start;
}

/* Operations below a thousandth of the time are not worth a word. */
static void name_formulas(const struct shares *s, double all, struct spec_facts *ret)
{
    size_t n = (size_t)snprintf(ret->formulas, sizeof(ret->formulas), "%s", s->messages ? "messages" : "");
    for (int k = 0; k < OP_KIND_COUNT; k++)
        if (s->formulas[k] > all / 1000 && n < sizeof(ret->formulas))
            n += (size_t)snprintf(ret->formulas + n, sizeof(ret->formulas) - n, "%s%s", n ? ", " : "",
                                  op_name((enum op_kind)k));
}

static err_t forecast_figure(const struct planner_rates *r, enum table_figure figure, const struct program *programs,
                             int n, double *ret, struct why *why)
{
    struct plan_rates rates = r->rates;
    struct forecast f;
    rates.table = &r->table;
    rates.figure = (int)figure;
    err_t err = plan_forecast(programs, n, &rates, &f, why);
    if (err)
        return err;
    *ret = f.seconds;
    forecast_fini(&f);
    return OK;
}

/* The interval that the machine file states, else that of the operations' quartiles. */
static err_t interval_find(const struct planner_rates *r, const struct program *programs, int n, struct spec_facts *ret,
                           struct why *why)
{
    if (r->less > 0 || r->more > 0) {
        ret->low_s = ret->forecast.seconds * (1 - r->less);
        ret->high_s = ret->forecast.seconds * (1 + r->more);
        snprintf(ret->interval_source, sizeof(ret->interval_source), "nine of ten steps%s%s",
                 r->error_source[0] ? ", " : "", r->error_source);
        return OK;
    }
    if (!r->table.n)
        return OK;
    snprintf(ret->interval_source, sizeof(ret->interval_source),
             "if all operations take their lower or upper quartile");
    err_t err = forecast_figure(r, TABLE_LOW, programs, n, &ret->low_s, why);
    return err ? err : forecast_figure(r, TABLE_HIGH, programs, n, &ret->high_s, why);
}

/* The forecast with the table, and which part of it the table has. */
static err_t forecast_measured(const struct planner_rates *r, const struct program *programs, int n,
                               struct spec_facts *ret, struct why *why)
{
    struct plan_rates rates = r->rates;
    struct shares *s = calloc(1, sizeof(*s));
    const struct forecast_watch watch = {add_share, s};
    if (!s)
        return why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    rates.table = s->table = &r->table;
    s->programs = programs;
    err_t err = plan_forecast_watched(programs, n, &rates, &watch, &ret->forecast, why);
    double all = s->measured;
    for (int k = 0; k < OP_KIND_COUNT; k++)
        all += s->formulas[k];
    ret->measured = all > 0 ? s->measured / all : 0;
    name_formulas(s, all, ret);
    free(s);
    return err;
}

err_t planner_forecast(const struct planner_rates *r, const struct program *programs, int n, struct spec_facts *ret,
                       struct why *why)
{
    ret->rates = r->rates;
    snprintf(ret->rates_source, sizeof(ret->rates_source), "%s", r->source);
    snprintf(ret->formulas, sizeof(ret->formulas), "%s", r->unused);
    err_t err = r->table.n ? forecast_measured(r, programs, n, ret, why)
                           : plan_forecast(programs, n, &r->rates, &ret->forecast, why);
    return err ? err : interval_find(r, programs, n, ret, why);
}
