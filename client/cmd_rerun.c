/* dtctl rerun: submits the job of an earlier one again, with its command or job file, its environment and its folder. A
 * training job continues from the newest checkpoint in its folder, as with `dtctl submit --batch`. */
#include "client/commands.h"
#include "client/follow.h"
#include "client/spec_args.h"
#include "client/submit.h"

#include <string.h>
#include <unistd.h>

struct rerun_args {
    struct global *global;
    const char *job;
    struct spec_args spec; /* its `file` is the JOB */
    bool detach;
};

static const struct argp_option options[] = {
    {"detach", 'd', 0, 0, "Do not wait for the job: print its id and return", 0}, {0}};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct rerun_args *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = a->global;
        state->child_inputs[1] = &a->spec;
        return 0;
    case 'd':
        a->detach = true;
        return 0;
    case ARGP_KEY_ARG:
        if (a->job)
            argp_error(state, "one job at a time");
        a->job = arg;
        return 0;
    case ARGP_KEY_END:
        if (!a->job)
            argp_error(state, "which job? See dtctl status");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* Paths of --set are relative to the current folder; those of the earlier job are absolute. Files that --set names are
 * prepared anew. */
static err_t paths_resolve(const struct spec_args *sets, struct job_spec *job, struct why *why)
{
    struct job_data *d = &job->data;
    const struct {
        const char *key;
        char **hash; /* of the prepared files; NULL: they have none */
    } files[] = {{"data.train", &d->train_hash},
                 {"data.valid", &d->valid_hash},
                 {"data.test", &d->test_hash},
                 {"data.tokenizer_files", NULL}};
    char cwd[PATH_MAX];
    bool new_files = false;
    err_t err = OK;
    if (!getcwd(cwd, sizeof(cwd)))
        return why_set(why, ERR_IO, "the current folder does not exist any more");
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++)
        if (spec_args_has(sets, files[i].key)) {
            new_files = true;
            err = err || !files[i].hash ? err : spec_text_set(files[i].hash, "");
        }
    if (err)
        return why_set(why, err, "out of memory");
    return new_files ? spec_resolve(job, cwd, why) : job_paths_resolve(job, cwd, why);
}

static err_t spec_again(const struct rerun_args *a, const struct client_job *job, struct job_spec *ret, struct why *why)
{
    char source[64];
    snprintf(source, sizeof(source), "job %.31s", job->job);
    if (!client_job_ended(job))
        return why_set(why, ERR_INVALID, "job %s is %s. Wait until it has ended, or run dtctl cancel %s first",
                       job->job, job->state, job->job);
    if (!job->spec_yaml[0])
        return why_set(why, ERR_INVALID, "the daemon does not have the file of job %s any more; submit it again",
                       job->job);
    err_t err = job_parse(source, job->spec_yaml, strlen(job->spec_yaml), a->spec.sets, a->spec.n_sets, ret, why);
    err = err ? err : paths_resolve(&a->spec, ret, why);
    if (err || job_is_command(ret) || spec_args_has(&a->spec, "checkpoint.take_over"))
        return err;
    return spec_text_set(&ret->checkpoint.take_over, ""); /* it was for the job that the earlier one replaced */
}

static int rerun(const struct rerun_args *a, const char *id)
{
    struct client_job before;
    struct job_spec job = {0};
    struct why why = {0};
    err_t err = client_job_by_id(a->global, id, &before, &why);
    if (err)
        return command_fail(err, &why);
    err = spec_again(a, &before, &job, &why);
    client_job_fini(&before);
    int code = err ? command_refuse(err, &why) : submit_again(a->global, &job, a->detach);
    job_fini(&job);
    return code;
}

int cmd_rerun(struct global *g, int argc, char **argv)
{
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .children = spec_args_children,
        .args_doc = "JOB",
        .doc = "Submits a job that has ended again, with the same command or job file, environment and folder, under a "
               "new number. A training job continues from the newest checkpoint in its folder, or starts afresh if "
               "there is none; which of both is printed. The exit codes are those of submit and run."
               "\vExamples:\n  dtctl rerun 4\n  dtctl rerun 4 --set run.restarts=3 --detach\n"
               "  dtctl rerun story --set checkpoint.dir=afresh"};
    struct rerun_args args = {.global = g};
    struct why why = {0};
    char number[32];
    command_parse(&argp, argc, argv, &args);
    err_t err = follow_name(g, &args.job, number, &why);
    return err ? command_fail(err, &why) : rerun(&args, args.job);
}
