/* dtctl resume: starts a new job from a checkpoint. The spec comes from the daemon (for a job's id) or from the
 * checkpoint itself (for a folder). Keys that the checkpoint fixes, such as the model's shape, cannot change; the error
 * shows both values. New checkpoints go to the folder of the old ones unless checkpoint.dir is set. */
#include "client/commands.h"
#include "client/follow.h"
#include "client/planner/planner.h"
#include "client/spec_args.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_COUNT 1000000000

struct resume_args {
    struct global *global;
    const char *from;
    struct spec_args spec;
    int64_t workers, steps, more, step; /* -1: not given */
    bool detach, take_over;
};

/* The checkpoint to start from, and its spec. */
struct origin {
    char job[32]; /* the job's id; "": a folder was given */
    char step_dir[PATH_MAX], root[PATH_MAX];
    char source[PATH_MAX + 64]; /* where the spec came from, for messages */
    struct buf yaml;
    int64_t step;
};

enum { KEY_STEP = 256, KEY_STEPS, KEY_MORE, KEY_TAKE_OVER };

static const struct argp_option options[] = {
    {"workers", 'w', "N", 0, "Use N workers", 0},
    {"steps", KEY_STEPS, "N", 0, "Train until step N", 0},
    {"more", KEY_MORE, "N", 0, "Train N more steps", 0},
    {"step", KEY_STEP, "S", 0, "Start from the checkpoint of step S (default: the newest)", 0},
    {"take-over", KEY_TAKE_OVER, 0, 0, "Take checkpoint.dir over from a job of another daemon that still runs", 0},
    {"detach", 'd', 0, 0, "Do not wait for the job: print its id and return", 0},
    {0}};

static void parse_count(struct argp_state *state, const char *option, const char *arg, int64_t least, int64_t *ret)
{
    if (!arg_number(arg, MAX_COUNT, ret) || *ret < least)
        argp_error(state, "--%s %s: expected a number from %" PRId64 " to %d", option, arg, least, MAX_COUNT);
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct resume_args *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = a->global;
        state->child_inputs[1] = &a->spec;
        return 0;
    case 'w':
        parse_count(state, "workers", arg, 1, &a->workers);
        return 0;
    case KEY_STEPS:
        parse_count(state, "steps", arg, 1, &a->steps);
        return 0;
    case KEY_MORE:
        parse_count(state, "more", arg, 1, &a->more);
        return 0;
    case KEY_STEP:
        parse_count(state, "step", arg, 0, &a->step);
        return 0;
    case 'd':
        a->detach = true;
        return 0;
    case KEY_TAKE_OVER:
        a->take_over = true;
        return 0;
    case ARGP_KEY_ARG:
        if (a->from)
            argp_error(state, "one job or checkpoint at a time");
        a->from = arg;
        return 0;
    case ARGP_KEY_END:
        if (!a->from)
            argp_error(state, "which job or checkpoint folder? See dtctl status");
        if (a->steps >= 0 && a->more >= 0)
            argp_error(state, "give either --steps or --more");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* ---- finding the checkpoint ---- */

static err_t job_origin(const struct client_job *job, int64_t step, struct origin *ret, struct why *why)
{
    snprintf(ret->job, sizeof(ret->job), "%.31s", job->job);
    snprintf(ret->source, sizeof(ret->source), "job %.31s", job->job);
    if (!client_job_ended(job))
        return why_set(why, ERR_INVALID, "job %s is %s. Wait until it has ended, or run dtctl cancel %s first",
                       job->job, job->state, job->job);
    if (!job->spec_yaml[0])
        return why_set(why, ERR_INVALID,
                       "the daemon does not have the file of job %s any more. Resume its folder: dtctl "
                       "resume %s",
                       job->job, job->checkpoint_dir);
    err_t err = buf_append(&ret->yaml, job->spec_yaml, strlen(job->spec_yaml));
    if (err)
        return why_set(why, err, "out of memory");
    return spec_find_step(job->checkpoint_dir, step, ret->step_dir, sizeof(ret->step_dir), ret->root, why);
}

static err_t origin_of_job(struct global *g, const char *id, int64_t step, struct origin *ret, struct why *why)
{
    struct client_job job;
    err_t err = client_job_by_id(g, id, &job, why);
    if (err)
        return err;
    err = job_origin(&job, step, ret, why);
    client_job_fini(&job);
    return err;
}

static err_t origin_of_folder(struct ckpt *ckpt, struct origin *ret, struct why *why)
{
    snprintf(ret->source, sizeof(ret->source), "%s/%s", ret->step_dir, CKPT_JOB_FILE);
    err_t err = ckpt_small_file(ckpt, CKPT_JOB_FILE, &ret->yaml, why);
    if (err == ERR_NOTFOUND)
        return why_set(why, ERR_INVALID,
                       "%s has no job file (was it written by PyTorch?). Pass one: dtctl submit FILE --set "
                       "checkpoint.resume_from=%s",
                       ret->step_dir, ret->step_dir);
    return err;
}

/* ---- the new spec ---- */

static err_t steps_decide(const struct resume_args *args, const struct job_spec *before, int64_t step, int64_t *ret,
                          struct why *why)
{
    *ret = args->more >= 0 ? step + args->more : args->steps >= 0 ? args->steps : before->train.steps;
    if (args->more < 0 && args->steps < 0 && spec_args_has(&args->spec, "train.steps"))
        *ret = -1; /* set by the override; spec_change checks it */
    if (*ret >= 0 && *ret <= step)
        return why_set(why, ERR_INVALID,
                       "the checkpoint is at step %" PRId64 " and train.steps is %" PRId64 ": there is "
                       "nothing to do. Add --more N or --steps N",
                       step, *ret);
    return OK;
}

/* An earlier resume may have made settings for its own checkpoint, which do not apply to this one. */
static err_t decisions_forget(const struct spec_args *a, struct job_spec *job)
{
    if (!spec_args_has(a, "checkpoint.optimizer"))
        job->checkpoint.optimizer = OPTIMIZER_AUTO;
    if (!spec_args_has(a, "checkpoint.map"))
        spec_map_clear(job);
    if (!spec_args_has(a, "data.order"))
        job->data.order = CHANGE_KEEP; /* it was for the resume that changed the order */
    return spec_args_has(a, "checkpoint.take_over") ? OK : spec_text_set(&job->checkpoint.take_over, "");
}

/* A step that the user named is resumed or nothing is; of a job or a folder, the newest step that can be read. */
static void decide_on_damage(const struct resume_args *args, const struct origin *from, struct job_spec *job)
{
    bool is_named =
        args->step >= 0 || (!follow_is_number(args->from) && follow_same_folder(args->from, from->step_dir));
    if (!spec_args_has(&args->spec, "checkpoint.on_damage"))
        job->checkpoint.on_damage = is_named ? DAMAGE_FAIL : DAMAGE_OLDER;
}

static err_t spec_change(struct resume_args *args, const struct origin *from, const struct job_spec *before,
                         struct job_spec *ret, struct why *why)
{
    char steps_set[48], workers_set[48];
    int64_t steps;
    err_t err = steps_decide(args, before, from->step, &steps, why);
    if (err)
        return err;
    int n = args->spec.n_sets;
    if (steps >= 0) {
        snprintf(steps_set, sizeof(steps_set), "train.steps=%" PRId64, steps);
        args->spec.sets[n++] = steps_set;
    }
    if (args->workers >= 0) {
        snprintf(workers_set, sizeof(workers_set), "parallel.workers=%" PRId64, args->workers);
        args->spec.sets[n++] = workers_set;
    }
    err = job_parse(from->source, (const char *)from->yaml.data, from->yaml.len, args->spec.sets, n, ret, why);
    if (!err && decisions_forget(&args->spec, ret))
        err = why_set(why, ERR_NOMEM, "out of memory");
    if (!err)
        decide_on_damage(args, from, ret);
    if (!err && ret->train.steps <= from->step)
        err = why_set(why, ERR_INVALID, "train.steps: %" PRId64 ", but the checkpoint is at step %" PRId64 " already",
                      ret->train.steps, from->step);
    return err;
}

static bool same_files(char *const *a, int n_a, char *const *b, int n_b)
{
    bool same = n_a == n_b;
    for (int i = 0; same && i < n_a; i++)
        same = strcmp(a[i], b[i]) == 0;
    return same;
}

/* Files that a --set names are resolved, relative to the current folder, and prepared again. Files that do not change
 * need not exist any more if their shards do. */
static err_t paths_change(const struct origin *from, const struct job_spec *before, struct job_spec *job,
                          bool *ret_new_train, struct why *why)
{
    char cwd[PATH_MAX];
    const struct job_data *old = &before->data, *new = &job->data;
    bool moved = strcmp(job->checkpoint.dir, before->checkpoint.dir) != 0;
    bool new_valid = !same_files(old->valid, old->n_valid, new->valid, new->n_valid);
    bool new_test = !same_files(old->test, old->n_test, new->test, new->n_test);
    *ret_new_train = !same_files(old->train, old->n_train, new->train, new->n_train);
    if (!getcwd(cwd, sizeof(cwd)))
        return why_set(why, ERR_IO, "the current folder does not exist any more");
    err_t err = spec_text_set(&job->checkpoint.resume_from, from->step_dir);
    if (!err && !moved)
        err = spec_text_set(&job->checkpoint.dir, from->root);
    if (!err && new_valid)
        err = spec_text_set(&job->data.valid_hash, "");
    if (!err && new_test)
        err = spec_text_set(&job->data.test_hash, "");
    if (err)
        return why_set(why, err, "out of memory");
    if (*ret_new_train || new_valid || new_test)
        return spec_resolve(job, cwd, why);
    if (!same_files(old->tokenizer_files, old->n_tokenizer_files, new->tokenizer_files, new->n_tokenizer_files))
        err = spec_resolve_tokenizer(job, cwd, why);
    return err ? err : job_paths_resolve(job, cwd, why);
}

static err_t spec_make(struct resume_args *args, const struct origin *from, struct ckpt *ckpt, struct job_spec *ret,
                       bool *ret_new_train, struct why *why)
{
    struct job_spec before = {0};
    err_t err = job_parse(from->source, (const char *)from->yaml.data, from->yaml.len, NULL, 0, &before, why);
    if (err)
        return err;
    err = spec_change(args, from, &before, ret, why);
    if (!err)
        err = paths_change(from, &before, ret, ret_new_train, why);
    if (!err)
        err = ckpt_rename(ckpt, ret->checkpoint.map, ret->checkpoint.n_map, why);
    if (!err)
        err = spec_check_resume(ret, ckpt, from->step_dir, why);
    if (!err)
        err = spec_check_dir(ret, from->root, why);
    job_fini(&before);
    return err;
}

/* ---- the command ---- */

static err_t origin_open(struct resume_args *args, struct origin *ret, struct ckpt **ret_ckpt, struct why *why)
{
    bool job = follow_is_number(args->from);
    err_t err = job ? origin_of_job(args->global, args->from, args->step, ret, why)
                    : spec_find_step(args->from, args->step, ret->step_dir, sizeof(ret->step_dir), ret->root, why);
    if (!err)
        err = ckpt_open(ret->step_dir, ret_ckpt, why);
    if (err)
        return err;
    ret->step = ckpt_step(*ret_ckpt);
    if (!job)
        err = origin_of_folder(*ret_ckpt, ret, why);
    if (err)
        ckpt_close(*ret_ckpt);
    return err;
}

static int resume_submit(struct resume_args *args, struct origin *from, struct ckpt *ckpt, struct job_spec *job,
                         bool new_train)
{
    struct out_progress progress;
    struct spec_facts facts = {0};
    struct buf yaml = {0};
    struct why why = {0};
    char newest[32];
    err_t err = follow_check_dir(args->global, job->checkpoint.dir, newest, &why);
    if (err)
        return command_fail(err, &why);
    out_progress_init(&progress, stderr);
    err = spec_complete(job, new_train, &progress, &facts, &why);
    if (!err)
        err = spec_check_vocab(job, ckpt, from->step_dir, &why);
    if (!err)
        err = spec_check_owner(job, args->take_over ? OWNER_TAKE_OVER : OWNER_REFUSE, &why);
    err = err ? err : planner_record(job, &why);
    if (!err)
        err = spec_print(job, &yaml);
    if (err) {
        buf_fini(&yaml);
        return command_refuse(err, &why);
    }
    if (args->global->format == OUT_TEXT)
        printf("from %s, step %" PRId64 " to %" PRId64 " on %d worker%s\n", from->step_dir, from->step,
               job->train.steps, facts.workers, facts.workers == 1 ? "" : "s");
    spec_facts_fini(&facts);
    if (!from->job[0])
        follow_check_parent(args->global, job, newest);
    const struct follow_how how = {.detach = args->detach};
    int code =
        follow_new_job(args->global, (const char *)yaml.data, from->job[0] ? from->job : newest, job->name, &how);
    buf_fini(&yaml);
    return code;
}

static int resume_run(struct resume_args *args)
{
    struct origin from = {0};
    struct job_spec job = {0};
    struct ckpt *ckpt;
    struct why why = {0};
    bool new_train = false;
    err_t err = origin_open(args, &from, &ckpt, &why);
    if (err) {
        buf_fini(&from.yaml);
        return command_fail(err, &why);
    }
    err = spec_make(args, &from, ckpt, &job, &new_train, &why);
    int code = err ? command_refuse(err, &why) : resume_submit(args, &from, ckpt, &job, new_train);
    ckpt_close(ckpt);
    job_fini(&job);
    buf_fini(&from.yaml);
    return code;
}

int cmd_resume(struct global *g, int argc, char **argv)
{
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .children = spec_args_children,
        .args_doc = "JOB|FOLDER",
        .doc =
            "Starts a new job from a checkpoint of a job that has ended, of a checkpoint folder, or of a step folder. "
            "The "
            "number of workers may differ; what the checkpoint fixes (the model's shape, the data) cannot change. The "
            "exit codes are those of submit."
            "\vExamples:\n  dtctl resume 4 --workers 3 --more 40\n  dtctl resume checkpoints/first-job --steps 600\n"
            "  dtctl resume checkpoints/first-job --step 100 --set train.lr=1e-4 --set checkpoint.dir=branch"};
    struct resume_args args = {.global = g, .workers = -1, .steps = -1, .more = -1, .step = -1};
    command_parse(&argp, argc, argv, &args);
    return resume_run(&args);
}
