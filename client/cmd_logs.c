/* dtctl logs: prints the output of workers, each line with its rank. */
#include "client/client.h"
#include "client/commands.h"
#include "client/follow.h"
#include "client/worker_lines.h"

struct logs_args {
    struct global *global;
    const char *job;
    bool follow;
    int64_t rank, tail;
};

static const struct argp_option options[] = {
    {"follow", 'f', 0, 0, "Continue with new output until the job ends or Ctrl-C", 0},
    {"rank", 'r', "K", 0, "Only the output of this rank", 0},
    {"tail", 'n', "N", 0, "Start with the last N lines of each rank", 0},
    {0}};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct logs_args *a = state->input;
    switch (key) {
    case 'f':
        a->follow = true;
        return 0;
    case 'r':
        if (!arg_number(arg, 1 << 20, &a->rank))
            argp_error(state, "--rank %s: expected a rank: 0, 1, 2, ..", arg);
        return 0;
    case 'n':
        if (!arg_number(arg, 1 << 30, &a->tail))
            argp_error(state, "--tail %s: expected a number of lines", arg);
        return 0;
    default:
        return parse_job(key, arg, state, a->global, &a->job);
    }
}

static bool on_log(void *arg, const struct client_log *chunk)
{
    return worker_lines_print(arg, chunk);
}

int cmd_logs(struct global *g, int argc, char **argv)
{
    static const struct argp argp = {.options = options,
                                     .parser = parse,
                                     .children = global_children,
                                     .args_doc = "JOB",
                                     .doc = "Prints the output of a job's workers, each line with its rank. With -o "
                                            "jsonl, prints objects with rank and line."
                                            "\vExamples:\n  dtctl logs 4 --tail 20\n  dtctl logs 4 -f --rank 0"};
    struct logs_args args = {.global = g, .rank = -1, .tail = -1};
    struct worker_lines lines;
    const struct client_stream stream = {.log = on_log, .arg = &lines};
    struct client *c;
    struct why why = {0};
    char number[32];
    command_parse(&argp, argc, argv, &args);
    err_t err = follow_name(g, &args.job, number, &why);
    err = err ? err : client_open(g->state_dir, &c, &why);
    if (err)
        return command_fail(err, &why);
    worker_lines_init(&lines, stdout, g->format, true);
    err = client_logs(c, args.job, (int)args.rank, args.follow, args.tail, &stream, &why);
    worker_lines_fini(&lines);
    client_close(c);
    if (err == ERR_CANCELED) /* Ctrl-C, or the reader of the output has ended */
        return ferror(stdout) ? EXIT_DONE : EXIT_INTERRUPTED;
    return err ? command_fail(err, &why) : EXIT_DONE;
}
