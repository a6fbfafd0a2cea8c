/* dtctl cancel: stops jobs. Workers of a training job finish their step; committed checkpoints remain. Those of a
 * command receive its signal. Control decides what a cancel means for a job that is stopping already. Each job is
 * reported on its own, and one that cannot be canceled does not keep the others running. */
#include "client/client.h"
#include "client/commands.h"
#include "client/follow.h"
#include "client/json.h"
#include "common/conf/job.h"

#include <stdlib.h>

struct cancel_args {
    struct global *global;
    const char **jobs; /* the caller's memory, for as many as there are arguments */
    int n_jobs;
    bool save, now;
    int64_t grace_seconds;
};

enum { KEY_GRACE = 256, KEY_NOW };

static const struct argp_option options[] = {
    {"save", 's', 0, 0, "Save a checkpoint first, so that no step is lost", 0},
    {"grace", KEY_GRACE, "SECONDS", 0, "Kill workers that still run after this time (default: run.grace_seconds)", 0},
    {"now", KEY_NOW, 0, 0, "Kill the workers at once. So does another cancel of a job that is stopping", 0},
    {0}};

struct cancel {
    uint8_t id[16]; /* the same for every repetition of the request */
    const char *job;
    bool save;
    int64_t grace_seconds;
    struct client_job ret;
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct cancel_args *a = state->input;
    switch (key) {
    case 's':
        a->save = true;
        return 0;
    case KEY_GRACE:
        if (!arg_number(arg, JOB_MAX_GRACE_SECONDS, &a->grace_seconds))
            argp_error(state, "--grace %s: expected a number of seconds from 0 to %d", arg, JOB_MAX_GRACE_SECONDS);
        return 0;
    case KEY_NOW:
        a->now = true;
        return 0;
    case ARGP_KEY_END:
        if (a->now && (a->save || a->grace_seconds != CLIENT_GRACE_DEFAULT))
            argp_error(state, "give either --now, or the time that --save and --grace leave to the workers");
        break;
    default:
        break;
    }
    return parse_jobs(key, arg, state, a->global, a->jobs, &a->n_jobs);
}

static err_t cancel_call(struct client *c, void *arg, struct why *why)
{
    struct cancel *k = arg;
    return client_cancel(c, k->id, k->job, k->save, k->grace_seconds, &k->ret, why);
}

static void print_canceled(const struct cancel *k)
{
    const struct client_job *job = &k->ret;
    printf("job %s %s is %s", job->job, job->name, job->state);
    if (job->steps)
        printf(" at step %lld", (long long)job->step);
    if (job->reason[0])
        printf(": %s", job->reason);
    putchar('\n');
    if (k->save && !job->steps)
        printf("--save has no effect: the job runs a command, which saves its own checkpoints\n");
    if (job->grace_left_ms > 0)
        printf("To end it at once: dtctl cancel --now %s\n", job->job);
}

static int cancel_one(const struct cancel_args *a, const char *job, json_t *list)
{
    struct cancel cancel = {.job = job, .save = a->save, .grace_seconds = a->now ? 0 : a->grace_seconds};
    struct why why = {0};
    char number[32];
    int code = EXIT_DONE;
    err_t err = follow_name(a->global, &cancel.job, number, &why);
    err = err ? err : client_request_id(cancel.id);
    if (!err)
        err = follow_call(a->global, cancel_call, &cancel, &why);
    if (err)
        return command_fail(err, &why);
    if (!list)
        print_canceled(&cancel);
    else if (json_array_append_new(list, json_of_job(&cancel.ret)))
        code = command_fail(ERR_NOMEM, NULL);
    client_job_fini(&cancel.ret);
    return code;
}

/* With one job the JSON is an object; with several it is an array of those that were canceled. */
static int cancel_all(const struct cancel_args *a)
{
    json_t *list = a->global->format == OUT_TEXT ? NULL : json_array();
    int code = EXIT_DONE;
    if (a->global->format != OUT_TEXT && !list)
        return command_fail(ERR_NOMEM, NULL);
    for (int i = 0; i < a->n_jobs; i++) {
        int one = cancel_one(a, a->jobs[i], list);
        code = code ? code : one;
    }
    if (list && a->n_jobs > 1) {
        int printed = command_json(a->global, json_incref(list));
        code = code ? code : printed;
    } else if (list && json_array_size(list)) {
        code = command_json(a->global, json_incref(json_array_get(list, 0)));
    }
    json_decref(list);
    return code;
}

int cmd_cancel(struct global *g, int argc, char **argv)
{
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .children = global_children,
        .args_doc = "JOB...",
        .doc = "Stops jobs. Their checkpoints remain; `dtctl resume JOB` continues from the newest one."
               " The workers of a command receive its run.stop_signal (default: SIGTERM), and SIGKILL after "
               "run.grace_seconds (default: 30). A second cancel of a job that is stopping kills its workers at once, "
               "unless it has --save or --grace. The exit status is that of the first job that could not be canceled."
               "\vExamples:\n  dtctl cancel 4\n  dtctl cancel --save 4 5 resnet\n  dtctl cancel --grace 5 4\n"
               "  dtctl cancel --now 4"};
    struct cancel_args args = {
        .global = g, .jobs = calloc((size_t)argc, sizeof(*args.jobs)), .grace_seconds = CLIENT_GRACE_DEFAULT};
    if (!args.jobs)
        return command_fail(ERR_NOMEM, NULL);
    command_parse(&argp, argc, argv, &args);
    int code = cancel_all(&args);
    free(args.jobs);
    return code;
}
