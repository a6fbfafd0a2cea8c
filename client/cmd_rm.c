/* dtctl rm: removes jobs that have ended from the list, with their logs. It never touches a checkpoint. */
#include "client/client.h"
#include "client/commands.h"
#include "client/follow.h"

#include <stdlib.h>

struct rm_args {
    struct global *global;
    const char **jobs; /* the caller's memory, for as many as there are arguments */
    int n_jobs;
};

struct rm {
    uint8_t id[16]; /* the same for every repetition of the request */
    const char *job;
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct rm_args *a = state->input;
    return parse_jobs(key, arg, state, a->global, a->jobs, &a->n_jobs);
}

static err_t rm_call(struct client *c, void *arg, struct why *why)
{
    struct rm *r = arg;
    return client_remove(c, r->id, r->job, why);
}

static int rm_one(struct global *g, const char *job)
{
    struct rm rm = {.job = job};
    struct why why = {0};
    char number[32];
    err_t err = follow_name(g, &rm.job, number, &why);
    err = err ? err : client_request_id(rm.id);
    if (!err)
        err = follow_call(g, rm_call, &rm, &why);
    if (err)
        return command_fail(err, &why);
    if (g->format != OUT_TEXT)
        return command_json(g, json_pack("{s:s, s:b}", "job", rm.job, "removed", 1));
    printf("job %s is removed, with its logs\n", rm.job);
    return EXIT_DONE;
}

int cmd_rm(struct global *g, int argc, char **argv)
{
    static const struct argp argp = {
        .parser = parse,
        .children = global_children,
        .args_doc = "JOB...",
        .doc =
            "Removes jobs that have ended from the list, with their logs and metrics. Checkpoints remain. A job that "
            "has not ended is refused. The exit status is that of the first job that could not be removed."
            "\vExamples:\n  dtctl rm 4\n  dtctl rm 4 5 resnet"};
    struct rm_args args = {.global = g, .jobs = calloc((size_t)argc, sizeof(*args.jobs))};
    int code = EXIT_DONE;
    if (!args.jobs)
        return command_fail(ERR_NOMEM, NULL);
    command_parse(&argp, argc, argv, &args);
    for (int i = 0; i < args.n_jobs; i++) {
        int one = rm_one(g, args.jobs[i]);
        code = code ? code : one;
    }
    free(args.jobs);
    return code;
}
