/* Parts that a report lacks (a job file that this version cannot read, a plan that is too large, samples on another
 * machine's disk) are left out with a sentence, because a report of a failed job is needed most when parts of it are
 * missing. */
#include "client/report/report.h"

#include "common/base/paths.h"

#include <stdio.h>
#include <string.h>

const char *report_unit(const struct report *r)
{
    return r->gpus ? "GPU" : "worker";
}

int report_workers(const struct report *r)
{
    if (r->in.n_rows)
        return (int)r->in.row[r->in.n_rows - 1].workers;
    return r->job->max_workers ? r->job->max_workers : r->job->workers;
}

static void spec_take(struct report *r)
{
    struct why why = {""};
    const char *yaml = r->job->spec_yaml;
    r->has_spec = yaml[0] && job_parse("the job's file", yaml, strlen(yaml), NULL, 0, &r->spec, &why) == OK;
    if (!r->has_spec) {
        r->spec = (struct job_spec){0};
        snprintf(r->plan.missing, sizeof(r->plan.missing), "The job file is not available%s%s",
                 why.text[0] ? ": " : ".", why.text);
        return;
    }
    r->gpus = !job_is_command(&r->spec) && r->spec.run.device == DEVICE_CUDA && r->spec.run.workers_per_gpu <= 1;
    if (r->spec.data.cache && r->spec.data.cache[0])
        r->data_network = path_shared_fs(r->spec.data.cache);
}

/* The plan of the number of workers that trained last. */
static err_t plan_take(struct report *r)
{
    struct why why = {""};
    const int64_t workers = r->spec.parallel.workers;
    if (!r->has_spec || job_is_command(&r->spec)) {
        if (r->has_spec)
            snprintf(r->plan.missing, sizeof(r->plan.missing), "The job runs a command of its own, which has no plan.");
        return OK;
    }
    r->spec.parallel.workers = report_workers(r) ? report_workers(r) : workers;
    err_t err = spec_plan_model(&r->spec, NULL, &r->plan.facts, &why);
    r->spec.parallel.workers = workers;
    r->plan.made = err == OK;
    snprintf(r->plan.missing, sizeof(r->plan.missing), "%s%s", err ? "The plan cannot be made here: " : "", why.text);
    return err == ERR_NOMEM ? err : OK;
}

/* Control has the samples of the job's own time; beside the checkpoints may be those of a job before it. */
static err_t usage_take(struct report *r)
{
    if (r->in.usage && r->in.usage->n) {
        r->usage = *r->in.usage;
        return OK;
    }
    r->own_usage = true;
    err_t err = usage_read(r->job->checkpoint_dir, &r->usage);
    if (!err && r->usage.n && r->usage.row[r->usage.n - 1].wall_ms < r->job->submitted_ms)
        usage_samples_fini(&r->usage);
    return err;
}

static err_t step_take(struct report *r)
{
    struct step_windows w = {0};
    err_t err = OK;
    if (!r->has_spec || job_is_command(&r->spec) || !step_has_forecast(&r->spec.forecast))
        return OK;
    for (size_t i = 0; !err && i < r->usage.n; i++)
        err = step_windows_add(&w, &r->usage.row[i]);
    if (!err)
        step_compare(&r->spec.forecast, &w.mean, &r->step);
    r->has_step = !err;
    step_windows_fini(&w);
    return err;
}

err_t report_init(const struct report_input *in, struct report *ret, struct why *why)
{
    struct report r = {.in = *in, .job = in->job};
    struct ledger_waits waits = {usage_wait_at, &r.usage};
    r.ended = client_job_ended(in->job);
    r.end_ms = r.ended && in->job->ended_ms ? in->job->ended_ms : in->now_ms;
    spec_take(&r);
    err_t err = usage_take(&r);
    err = err ? err : plan_take(&r);
    err = err ? err : step_take(&r);
    if (!err && in->job->checkpoint_dir[0] && measured_load(in->job->checkpoint_dir, &r.measured, NULL) == ERR_NOMEM)
        err = ERR_NOMEM;
    const struct ledger_saves saves = {in->checkpoint, in->n_checkpoints,
                                       r.has_spec && !job_is_command(&r.spec) ? r.spec.checkpoint.every : 0};
    if (!err)
        err = ledger_make(in->job, in->row, in->n_rows, &saves, r.end_ms, r.usage.n ? &waits : NULL, &r.ledger);
    if (err) {
        report_fini(&r);
        return why_set(why, err, "%s for the report of %zu steps", err_text(err), in->n_rows);
    }
    *ret = r;
    return OK;
}

void report_fini(struct report *r)
{
    job_fini(&r->spec);
    if (r->own_usage)
        usage_samples_fini(&r->usage);
    spec_facts_fini(&r->plan.facts);
    measured_step_fini(&r->measured);
}
