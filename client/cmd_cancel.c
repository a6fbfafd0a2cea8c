/* dtctl cancel: asks control to stop a job. Its workers finish their step and save; what is committed stays. */
#include "client/client.h"
#include "client/commands.h"
#include "client/json.h"

struct args {
    struct global *global;
    const char *job;
};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct args *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = a->global;
        return 0;
    case ARGP_KEY_ARG:
        if (a->job)
            argp_error(state, "one job at a time");
        a->job = arg;
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "which job? See dtctl status");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

int cmd_cancel(struct global *g, int argc, char **argv)
{
    static const struct argp argp = {
        .parser = parse,
        .children = global_children,
        .args_doc = "JOB",
        .doc = "Stops a job. Its checkpoints stay; `dtctl resume JOB` goes on from the newest."
               "\vExample:\n  dtctl cancel 4"};
    struct args args = {.global = g};
    struct client_job job;
    struct client *c;
    struct why why = {0};
    uint8_t id[16];
    int code = EXIT_DONE;
    command_parse(&argp, argc, argv, &args);
    err_t err = client_open(g->state_dir, &c, &why);
    if (err)
        return command_fail(err, &why);
    err = client_request_id(id);
    if (!err)
        err = client_cancel(c, id, args.job, &job, &why);
    client_close(c);
    if (err)
        return command_fail(err, &why);
    if (g->format != OUT_TEXT)
        code = command_json(g, json_of_job(&job));
    else
        printf("job %s %s is %s at step %lld\n", job.job, job.name, job.state, (long long)job.step);
    client_job_fini(&job);
    return code;
}
