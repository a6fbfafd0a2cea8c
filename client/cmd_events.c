/* dtctl events: prints what happened, one line per event, in the order of the replicated log. The lines have fixed
 * widths, because each one is printed as it arrives. A stream that breaks goes on after the last event that was
 * printed; every leader numbers the events alike. */
#include "client/client.h"
#include "client/commands.h"
#include "client/follow.h"
#include "client/json.h"
#include "client/safe_text.h"
#include "common/rpc/event.h"

#include <stdlib.h>
#include <string.h>

#define TEXT_INDENT 23 /* of a text's further lines: below the name, behind the time */

struct events_args {
    struct global *global;
    const char *job, *node;
    const char *types; /* separated by commas; NULL: all */
    int64_t since_s;   /* 0: from the oldest */
    bool follow;
};

struct event_sink {
    const struct events_args *args;
    uint64_t after;
    int code;
};

static const struct argp_option options[] = {
    {"follow", 'f', 0, 0, "Continue with new events until Ctrl-C; with JOB, until the job ends", 0},
    {"job", 'j', "JOB", 0, "Only events of this job; the same as the argument", 0},
    {"node", 'n', "NODE", 0, "Only events of this node", 0},
    {"since", 's', "TIME", 0, "Only events of the last TIME: 90s, 30m, 12h, 7d", 0},
    {"type", 't', "TYPE,..", 0, "Only events of these types", 0},
    {0}};

#define EVENT_LISTED(number, kind, name) " " name
static const char all_types[] = EVENT_KINDS(EVENT_LISTED);

/* Seconds; 0: the text is no duration. */
static int64_t duration_of(const char *text)
{
    static const struct {
        char unit;
        int64_t seconds;
    } units[] = {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}};
    char digits[20];
    int64_t number;
    size_t n = strspn(text, "0123456789");
    if (!n || n >= sizeof(digits) || strlen(text) != n + 1)
        return 0;
    memcpy(digits, text, n);
    digits[n] = '\0';
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++)
        if (units[i].unit == text[n] && arg_number(digits, 100000000, &number))
            return number * units[i].seconds;
    return 0;
}

static void check_types(const char *list, struct argp_state *state)
{
    for (const char *word = list;; word++) {
        char name[32];
        size_t len = strcspn(word, ",");
        snprintf(name, sizeof(name), "%.*s", len < sizeof(name) ? (int)len : 0, word);
        if (!event_kind_find(name))
            argp_error(state, "--type %s: expected some of%s", list, all_types);
        word += len;
        if (!*word)
            return;
    }
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct events_args *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = a->global;
        return 0;
    case 'f':
        a->follow = true;
        return 0;
    case 'n':
        a->node = arg;
        return 0;
    case 's':
        a->since_s = duration_of(arg);
        if (!a->since_s)
            argp_error(state, "--since %s: expected a number and a unit: 90s, 30m, 12h, 7d", arg);
        return 0;
    case 't':
        check_types(arg, state);
        a->types = arg;
        return 0;
    case 'j':
    case ARGP_KEY_ARG:
        if (a->job)
            argp_error(state, "expected one JOB");
        a->job = arg;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static bool has_type(const char *list, const char *type)
{
    for (const char *word = list;; word++) {
        size_t len = strcspn(word, ",");
        if (strlen(type) == len && strncmp(word, type, len) == 0)
            return true;
        word += len;
        if (!*word)
            return false;
    }
}

static bool is_wanted(const struct events_args *a, const struct client_event *e)
{
    return (!a->node || strcmp(a->node, e->node) == 0) && (!a->types || has_type(a->types, e->type));
}

static enum out_color color_of(const char *type)
{
    static const struct {
        enum event_kind kind;
        enum out_color color;
    } colors[] = {{EVENT_FAILURE, OUT_RED},          {EVENT_WARNING, OUT_YELLOW},   {EVENT_CHECKPOINT_FAILED, OUT_RED},
                  {EVENT_STRAGGLER, OUT_YELLOW},     {EVENT_NODE_LOST, OUT_RED},    {EVENT_NODE_BACK, OUT_GREEN},
                  {EVENT_STRAGGLER_GONE, OUT_GREEN}, {EVENT_CHECKPOINT, OUT_GREEN}, {EVENT_RUNNING, OUT_GREEN},
                  {EVENT_NODE_DRAINED, OUT_YELLOW}};
    for (size_t i = 0; i < sizeof(colors) / sizeof(colors[0]); i++)
        if (colors[i].kind == event_kind_find(type))
            return colors[i].color;
    return OUT_PLAIN;
}

static void event_print(const struct client_event *e)
{
    char time[OUT_NUMBER], who[80], safe_who[160], text[2048], line[2400];
    if (e->job[0])
        snprintf(who, sizeof(who), "job %s", e->job);
    else
        snprintf(who, sizeof(who), "%.70s", e->node);
    safe_text(who, 12, true, safe_who, sizeof(safe_who));
    safe_text(e->text, SAFE_TEXT_ALL, true, text, sizeof(text));
    snprintf(line, sizeof(line), "%s  %s%*s  %s%-17s%s  %s", out_time(e->wall_ms, time), safe_who,
             12 - safe_text_width(safe_who), "", out_color(stdout, color_of(e->type)), e->type,
             out_color(stdout, OUT_PLAIN), text);
    out_wrapped(stdout, line, TEXT_INDENT);
}

static bool on_event(void *arg, const struct client_event *e)
{
    struct event_sink *s = arg;
    s->after = e->id;
    if (!is_wanted(s->args, e))
        return true;
    if (s->args->global->format == OUT_TEXT)
        event_print(e);
    else if (out_json(json_of_event(e), true))
        s->code = EXIT_ERROR;
    return !s->code && !ferror(stdout);
}

static bool on_tick(void *arg)
{
    (void)arg;
    return fflush(stdout) == 0;
}

static err_t events_call(struct client *c, void *arg, struct why *why)
{
    struct event_sink *s = arg;
    const struct client_stream stream = {.event = on_event, .tick = on_tick, .arg = s};
    return client_events(c, s->args->job, s->args->follow, s->after, s->args->since_s * 1000, &stream, why);
}

int cmd_events(struct global *g, int argc, char **argv)
{
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .children = global_children,
        .args_doc = "[JOB]",
        .doc = "Lists what happened to jobs and nodes, oldest first: submits, starts, new epochs and their causes, "
               "failures, checkpoints, slow ranks, ends; nodes that joined, were lost, came back or were drained. The "
               "newest 2048 events are kept, of one job and of all nodes together the newest 256. A user's list has "
               "the own jobs and the nodes. With -o json or jsonl, prints one object per line."
               "\vExamples:\n  dtctl events 4 -f\n  dtctl events --since 12h --type failure,lost\n"
               "  dtctl events --node b -o json | jq -r .text"};
    struct events_args args = {.global = g};
    struct why why = {0};
    char number[32];
    command_parse(&argp, argc, argv, &args);
    err_t err = args.job ? follow_name(g, &args.job, number, &why) : OK;
    if (err)
        return command_fail(err, &why);
    struct event_sink sink = {.args = &args};
    err = follow_call(g, events_call, &sink, &why);
    if (sink.code)
        return sink.code;
    if (err == ERR_CANCELED) /* Ctrl-C, or the reader of the output has ended */
        return ferror(stdout) ? EXIT_DONE : EXIT_INTERRUPTED;
    return err ? command_fail(err, &why) : EXIT_DONE;
}
