/* dtctl cancel: stops jobs. Their workers finish their step; committed checkpoints remain. Each job is reported on its
 * own, and one that cannot be canceled does not keep the others running. */
#include "client/client.h"
#include "client/commands.h"
#include "client/follow.h"
#include "client/json.h"

#include <stdlib.h>

struct cancel_args {
    struct global *global;
    const char **jobs; /* the caller's memory, for as many as there are arguments */
    int n_jobs;
    bool save;
};

static const struct argp_option options[] = {{"save", 's', 0, 0, "Save a checkpoint first, so that no step is lost", 0},
                                             {0}};

struct cancel {
    uint8_t id[16]; /* the same for every repetition of the request */
    const char *job;
    bool save;
    struct client_job ret;
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct cancel_args *a = state->input;
    if (key == 's') {
        a->save = true;
        return 0;
    }
    return parse_jobs(key, arg, state, a->global, a->jobs, &a->n_jobs);
}

static err_t cancel_call(struct client *c, void *arg, struct why *why)
{
    struct cancel *k = arg;
    return client_cancel(c, k->id, k->job, k->save, &k->ret, why);
}

static int cancel_one(const struct cancel_args *a, const char *job, json_t *list)
{
    struct cancel cancel = {.job = job, .save = a->save};
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
        printf("job %s %s is %s at step %lld\n", cancel.ret.job, cancel.ret.name, cancel.ret.state,
               (long long)cancel.ret.step);
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
        .doc = "Stops jobs. Their checkpoints remain; `dtctl resume JOB` continues from the newest one. The exit "
               "status is that of the first job that could not be canceled."
               "\vExamples:\n  dtctl cancel 4\n  dtctl cancel --save 4 5 resnet"};
    struct cancel_args args = {.global = g, .jobs = calloc((size_t)argc, sizeof(*args.jobs))};
    if (!args.jobs)
        return command_fail(ERR_NOMEM, NULL);
    command_parse(&argp, argc, argv, &args);
    int code = cancel_all(&args);
    free(args.jobs);
    return code;
}
