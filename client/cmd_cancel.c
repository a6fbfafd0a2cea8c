/* dtctl cancel: stops a job. Its workers finish their step; committed checkpoints remain. */
#include "client/client.h"
#include "client/commands.h"
#include "client/follow.h"
#include "client/json.h"

struct cancel_args {
    struct global *global;
    const char *job;
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
    return parse_job(key, arg, state, a->global, &a->job);
}

static err_t cancel_call(struct client *c, void *arg, struct why *why)
{
    struct cancel *k = arg;
    return client_cancel(c, k->id, k->job, k->save, &k->ret, why);
}

int cmd_cancel(struct global *g, int argc, char **argv)
{
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .children = global_children,
        .args_doc = "JOB",
        .doc = "Stops a job. Its checkpoints remain; `dtctl resume JOB` continues from the newest one."
               "\vExamples:\n  dtctl cancel 4\n  dtctl cancel --save 4"};
    struct cancel_args args = {.global = g};
    struct cancel cancel = {0};
    struct why why = {0};
    int code = EXIT_DONE;
    char number[32];
    command_parse(&argp, argc, argv, &args);
    err_t err = follow_name(g, &args.job, number, &why);
    cancel.job = args.job;
    cancel.save = args.save;
    err = err ? err : client_request_id(cancel.id);
    if (!err)
        err = follow_call(g, cancel_call, &cancel, &why);
    if (err)
        return command_fail(err, &why);
    if (g->format != OUT_TEXT)
        code = command_json(g, json_of_job(&cancel.ret));
    else
        printf("job %s %s is %s at step %lld\n", cancel.ret.job, cancel.ret.name, cancel.ret.state,
               (long long)cancel.ret.step);
    client_job_fini(&cancel.ret);
    return code;
}
