/* dtctl logs: prints the output of workers, each line with its rank. Control sends chunks of whole lines, so that lines
 * of two ranks never mix. */
#include "client/client.h"
#include "client/commands.h"
#include "client/follow.h"
#include "client/json.h"

#include <stdlib.h>
#include <string.h>

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

static bool line_print(const struct global *g, int rank, const char *line, size_t len)
{
    static const enum out_color colors[] = {OUT_BLUE, OUT_GREEN, OUT_YELLOW, OUT_RED};
    if (g->format != OUT_TEXT) {
        json_t *object = json_pack("{s:i, s:o}", "rank", rank, "line", json_of_text(line, len));
        return object && out_json(object, true) == OK;
    }
    printf("%s[rank %d]%s %.*s\n", rank >= 0 ? out_color(stdout, colors[rank % 4]) : "", rank,
           rank >= 0 ? out_color(stdout, OUT_PLAIN) : "", (int)len, line);
    return !ferror(stdout);
}

static bool on_log(void *arg, int rank, const void *text, size_t len)
{
    const char *line = text, *end = line + len;
    while (line < end) {
        const char *stop = memchr(line, '\n', (size_t)(end - line));
        size_t n = (size_t)((stop ? stop : end) - line);
        if (!line_print(arg, rank, line, n))
            return false;
        line += n + (stop != NULL);
    }
    return fflush(stdout) == 0;
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
    const struct client_stream stream = {.log = on_log, .arg = g};
    struct client *c;
    struct why why = {0};
    char number[32];
    command_parse(&argp, argc, argv, &args);
    err_t err = follow_name(g, &args.job, number, &why);
    err = err ? err : client_open(g->state_dir, &c, &why);
    if (err)
        return command_fail(err, &why);
    err = client_logs(c, args.job, (int)args.rank, args.follow, args.tail, &stream, &why);
    client_close(c);
    return err && err != ERR_CANCELED ? command_fail(err, &why) : EXIT_DONE;
}
