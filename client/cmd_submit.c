/* dtctl submit: checks a job completely before anything is started (exit 2 if a check fails), sends one Submit, which
 * is safe to repeat, and shows the progress until the job ends. */
#include "client/commands.h"
#include "client/follow.h"
#include "client/plan_report.h"
#include "client/planner/planner.h"
#include "client/spec_args.h"
#include "client/spec_keys.h"
#include "client/submit.h"
#include "common/base/caller.h"
#include "common/base/file.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define LIMITS_MAX (64u << 10) /* bytes of /proc/1/limits, which has 17 lines */

struct submit_args {
    struct global *global;
    struct spec_args spec;
    bool detach, dry_run, keys, batch, take_over;
    bool again; /* rerun: as with `batch`, but without its signals */
};

enum { KEY_TAKE_OVER = 256 };

static const struct argp_option options[] = {
    {"detach", 'd', 0, 0, "Do not wait for the job: print its id and return", 0},
    {"batch", 'b', 0, 0,
     "For batch systems: continue from the newest step in checkpoint.dir; on SIGUSR1 save, stop and exit with 75", 0},
    {"dry-run", 'n', 0, 0, "Check everything and print the plan, but start nothing", 0},
    {"take-over", KEY_TAKE_OVER, 0, 0, "Take checkpoint.dir over from a job of another daemon that still runs", 0},
    {"help-keys", 'k', 0, 0, "List every key of a job file with its type, range and default", 0},
    {0}};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct submit_args *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = a->global;
        state->child_inputs[1] = &a->spec;
        return 0;
    case 'd':
        a->detach = true;
        return 0;
    case 'n':
        a->dry_run = true;
        return 0;
    case 'b':
        a->batch = true;
        return 0;
    case 'k':
        a->keys = true;
        return 0;
    case KEY_TAKE_OVER:
        a->take_over = true;
        return 0;
    case ARGP_KEY_END:
        if (!a->spec.file && !a->keys)
            argp_error(state, "which job file? An example: deploy/examples/first-job.yaml");
        if (a->batch && a->detach)
            argp_error(state, "give either --batch, which waits for the job, or --detach");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* Checks the checkpoint that the file names (checkpoint.resume_from), and replaces the key by its step folder.
 * ret_root: the folder that holds it; "": the file names none. */
static err_t resume_check(struct job_spec *job, bool batch, char ret_root[PATH_MAX], int64_t *ret_step, struct why *why)
{
    char step[PATH_MAX];
    struct ckpt *ckpt;
    ret_root[0] = '\0';
    if (!job->checkpoint.resume_from[0])
        return OK;
    err_t err = spec_find_step(job->checkpoint.resume_from, -1, step, sizeof(step), ret_root, why);
    if (!err)
        err = spec_open_step(job, step, &ckpt, why);
    if (err)
        return why_prefix(why, err, batch ? "checkpoint.dir" : "checkpoint.resume_from");
    *ret_step = ckpt_step(ckpt);
    err = spec_check_resume(job, ckpt, step, why);
    if (!err)
        err = spec_check_vocab(job, ckpt, step, why);
    if (!err && !batch && job->train.steps <= *ret_step)
        err = why_set(why, ERR_INVALID,
                      "train.steps: %" PRId64 ", but %s is at step %" PRId64
                      " already: there is nothing to do. Set it to more",
                      job->train.steps, step, *ret_step);
    ckpt_close(ckpt);
    return err ? err : spec_text_set(&job->checkpoint.resume_from, step);
}

/* With --batch: if an earlier run of this job has left steps in checkpoint.dir, the job resumes from the newest. They
 * are newer than the checkpoint that the file may name, and the file's settings for that checkpoint do not apply to
 * them. */
static err_t batch_find(struct job_spec *job, bool *ret, struct why *why)
{
    char step[PATH_MAX], root[PATH_MAX];
    err_t err = spec_find_step(job->checkpoint.dir, -1, step, sizeof(step), root, why);
    *ret = !err;
    if (err == ERR_NOTFOUND)
        return OK;
    if (err)
        return why_prefix(why, err, "checkpoint.dir");
    job->checkpoint.optimizer = OPTIMIZER_AUTO;
    spec_map_clear(job);
    return spec_text_set(&job->checkpoint.resume_from, step);
}

/* ret_step: step of the newest checkpoint of an earlier run; -1: there is none, or not --batch. */
static err_t submit_check(struct job_spec *job, const struct submit_args *args, struct spec_facts *facts,
                          int64_t *ret_step, struct why *why)
{
    struct out_progress progress;
    char root[PATH_MAX];
    int64_t step = -1;
    bool again = false;
    *ret_step = -1;
    out_progress_init(&progress, stderr);
    err_t err = spec_complete(job, false, &progress, facts, why);
    if (err)
        return err;
    if (args->batch)
        err = batch_find(job, &again, why);
    if (!err)
        err = resume_check(job, again, root, &step, why);
    if (again)
        *ret_step = step;
    if (!err)
        err = spec_check_dir(job, root[0] ? root : NULL, why);
    if (!err)
        err = planner_record(job, why);
    if (!err && *ret_step < job->train.steps) /* else there is nothing to write */
        err = spec_check_owner(job, args->take_over ? OWNER_TAKE_OVER : OWNER_REFUSE, why);
    if (err)
        spec_facts_fini(facts);
    return err;
}

static int print_dry_run(const struct global *g, const struct job_spec *job, const struct spec_facts *facts)
{
    if (g->format != OUT_TEXT)
        return command_json(g, plan_report_json(job, facts));
    plan_report_print(job, facts);
    printf("nothing was started. To start the job, run the same command without --dry-run\n");
    return EXIT_DONE;
}

/* An earlier run of a batch job has saved the last step, but was killed before it could report that. */
static int print_done(const struct global *g, const struct job_spec *job, int64_t step)
{
    if (g->format != OUT_TEXT)
        return command_json(g, json_pack("{s:s, s:s, s:I, s:s}", "name", job->name, "state", "done", "step",
                                         (json_int_t)step, "checkpoint_dir", job->checkpoint.dir));
    printf("%s is done already: step %" PRId64 " is in %s\n", job->name, step, job->checkpoint.dir);
    return EXIT_DONE;
}

static int submit_start(struct global *g, const struct submit_args *args, const struct job_spec *job,
                        const char *parent)
{
    struct buf yaml = {0};
    if (args->batch && !args->again)
        follow_stop_on_signals();
    err_t err = spec_print(job, &yaml);
    const struct follow_how how = {
        .detach = args->detach, .command = job_is_command(job), .output = job_is_command(job) && args->again};
    int code = err ? command_fail(err, NULL) : follow_new_job(g, (const char *)yaml.data, parent, job->name, &how);
    buf_fini(&yaml);
    return code;
}

static void print_again(const struct job_spec *job, int64_t step)
{
    if (step >= 0)
        printf("resumes from step %" PRId64 " in %s\n", step, job->checkpoint.dir);
    else if (job->checkpoint.resume_from[0])
        printf("starts from %s, as before\n", job->checkpoint.resume_from);
    else
        printf("starts afresh: there is no checkpoint in %s\n", job->checkpoint.dir);
}

/* Files of the job get the rights that files of the caller get. The owner keeps all: the job has to read its own. */
static err_t keep_umask(struct job_spec *job)
{
    char text[8];
    mode_t mask = umask(022);
    (void)umask(mask);
    if (job->run.umask[0] || (mask & 077) == 022)
        return OK;
    snprintf(text, sizeof(text), "%04o", (unsigned)(mask & 077));
    char *copy = strdup(text);
    if (!copy)
        return ERR_NOMEM;
    free(job->run.umask);
    job->run.umask = copy;
    return OK;
}

/* The soft limit of open files is a default for shells. dt-worker opens many files, so it gets the hard limit. */
static void raise_files(struct caller *c)
{
    c->limit[RLIMIT_NOFILE].rlim_cur = c->limit[RLIMIT_NOFILE].rlim_max;
}

static err_t cluster_call(struct client *c, void *arg, struct why *why)
{
    return client_cluster_status(c, arg, why);
}

/* While a cluster is upgraded, a key that the job file does not set must not make it refuse the job. */
static bool have_all_limits(struct global *g)
{
    struct client_cluster s;
    struct why why = {""};
    if (follow_call(g, cluster_call, &s, &why))
        return false;
    bool have = s.version >= RUN_LIMITS_SINCE;
    client_cluster_fini(&s);
    if (!have)
        fprintf(stderr, "dtctl: the resource limits of this shell do not hold for the job until dtd is upgraded on all "
                        "nodes: dtctl cluster status\n");
    return have;
}

static err_t keep_limits(struct global *g, bool dry_run, struct job_spec *job)
{
    struct buf usual = {0}, text = {0};
    struct caller c;
    if (job->run.limits[0] || file_read("/proc/1/limits", LIMITS_MAX, &usual))
        return OK; /* without /proc nothing is known to be lower than usual */
    err_t err = buf_append(&usual, "", 1);
    caller_take(&c);
    raise_files(&c);
    if (!err)
        caller_keep_lower(&c, (const char *)usual.data);
    err = err ? err : caller_print_limits(&c, &text);
    err = err ? err : buf_append(&text, "", 1);
    if (!err && text.len > 1 && (dry_run || have_all_limits(g))) {
        free(job->run.limits);
        job->run.limits = (char *)text.data;
    } else {
        buf_fini(&text);
    }
    buf_fini(&usual);
    return err;
}

static int submit_job(struct global *g, const struct submit_args *args, struct job_spec *job)
{
    struct spec_facts facts = {0};
    struct why why = {0};
    char newest[32] = "";
    int64_t step;
    if (job_is_command(job) && args->dry_run)
        return command_complain(EXIT_REFUSED, "a job with a command has no plan to show");
    if (job_is_command(job))
        return submit_start(g, args, job, NULL);
    if (!args->dry_run) {
        err_t err = follow_check_dir(g, job->checkpoint.dir, newest, &why);
        if (err)
            return command_fail(err, &why);
    }
    err_t err = args->dry_run ? OK : planner_auto_nodes(g, job, &why);
    if (err)
        return command_fail(err, &why);
    err = keep_umask(job);
    err = err ? err : keep_limits(g, args->dry_run, job);
    err = err ? err : submit_check(job, args, &facts, &step, &why);
    if (err)
        return command_refuse(err, &why);
    if (step >= 0 && !args->dry_run)
        follow_check_parent(g, job, newest);
    if (args->again && step < job->train.steps && g->format == OUT_TEXT)
        print_again(job, step);
    int code = step >= job->train.steps ? print_done(g, job, step)
               : args->dry_run          ? print_dry_run(g, job, &facts)
                                        : submit_start(g, args, job, step >= 0 ? newest : NULL);
    spec_facts_fini(&facts);
    return code;
}

int submit_again(struct global *g, struct job_spec *job, bool detach)
{
    const struct submit_args args = {.global = g, .detach = detach, .batch = true, .again = true};
    return submit_job(g, &args, job);
}

int cmd_submit(struct global *g, int argc, char **argv)
{
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .children = spec_args_children,
        .args_doc = "FILE",
        .doc =
            "Checks a job file (keys, data, vocabulary, plan, memory, checkpoint folder), starts the job and shows its "
            "progress; Ctrl-C leaves it running. If a check fails, prints the reason, starts nothing and exits with 2. "
            "Otherwise the exit code is the job's: 0 done, 4 failed, 5 canceled. With --batch it is 75 after SIGUSR1 "
            "or SIGTERM, when the job has saved and stopped; the same command continues it later."
            "\vPaths and patterns in the file are relative to the file's folder.\n\nExamples:\n"
            "  dtctl submit job.yaml\n"
            "  dtctl submit job.yaml --set train.lr=1e-4 --set 'data.train=[a.txt, b.txt]'\n"
            "  dtctl submit job.yaml --detach -o json | jq -r .job\n"
            "  dtctl submit --batch job.yaml"};
    struct submit_args args = {.global = g};
    struct job_spec job = {0};
    struct why why = {0};
    command_parse(&argp, argc, argv, &args);
    if (args.keys) {
        spec_keys_print(stdout);
        return EXIT_DONE;
    }
    err_t err = spec_args_read(&args.spec, &job, &why);
    if (err)
        return command_refuse(err, &why);
    int code = submit_job(g, &args, &job);
    job_fini(&job);
    return code;
}
