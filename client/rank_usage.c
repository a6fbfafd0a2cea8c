/* See rank_usage.h. Without --follow only the newest window is a table: earlier ones are for programs (-o jsonl). */
#include "client/rank_usage.h"

#include "client/client.h"
#include "client/field_text.h"
#include "client/follow.h"
#include "client/json.h"

#include <stdlib.h>

struct usage_sink {
    const struct global *global;
    const char *job;
    bool follow;
    int64_t next_ms; /* first time to request after a reconnect */
    json_t *array;
    struct usage_sample newest; /* ranks 0: none yet */
    int tables;                 /* that were printed */
    int code;
};

/* ---- the table ---- */

#define FIRST 2 /* columns before those of usage_fields */

/* Columns that any rank has; returns their number. */
static int choose_columns(const struct usage_sample *s, struct out_column columns[FIRST + USAGE_COUNT],
                          int fields[USAGE_COUNT])
{
    int n = 0;
    columns[0] = (struct out_column){"RANK", true, 0};
    columns[1] = (struct out_column){"NODE", false, 0};
    for (int f = 0; f < USAGE_COUNT; f++) {
        const struct field *field = &usage_fields.field[f];
        bool any = false;
        for (int r = 0; r < s->ranks; r++)
            any = any || isfinite(*usage_at(s, (enum usage_field)f, r));
        if (!any || !field->column)
            continue;
        columns[FIRST + n] = (struct out_column){field->column, true, field->late};
        fields[n++] = f;
    }
    return n;
}

static void table_print(struct usage_sink *sink, const struct usage_sample *s)
{
    struct out_column columns[FIRST + USAGE_COUNT];
    struct out_table t;
    int fields[USAGE_COUNT];
    char text[OUT_NUMBER];
    const int n = choose_columns(s, columns, fields);
    printf("%sstep %lld, the %.1f s until %s\n", sink->tables++ ? "\n" : "", (long long)s->step,
           (double)s->window_ms / 1000, out_time(s->wall_ms, text));
    out_table_init(&t, columns, FIRST + n);
    for (int r = 0; r < s->ranks; r++) {
        const struct usage u = usage_of_rank(s, r);
        const int row = out_table_row(&t);
        out_table_set(&t, row, 0, "%d", r);
        out_table_set(&t, row, 1, "%s", s->node[r]);
        for (int c = 0; c < n; c++)
            out_table_set(&t, row, FIRST + c, "%s", field_text(&usage_fields.field[fields[c]], &u, text));
    }
    out_table_print(&t, stdout, -1);
    out_table_fini(&t);
}

/* ---- the stream ---- */

static bool keep_newest(struct usage_sink *sink, const struct usage_sample *s)
{
    usage_sample_fini(&sink->newest);
    if (usage_sample_copy(s, &sink->newest))
        sink->code = command_fail(ERR_NOMEM, NULL);
    return sink->code == EXIT_DONE;
}

static bool on_usage(void *arg, const struct usage_sample *s)
{
    struct usage_sink *sink = arg;
    sink->next_ms = s->wall_ms + 1;
    switch (sink->global->format) {
    case OUT_TEXT:
        if (!sink->tables)
            return keep_newest(sink, s);
        table_print(sink, s);
        return !ferror(stdout);
    case OUT_JSONL:
        sink->code = command_json(sink->global, json_of_usage(s));
        return sink->code == EXIT_DONE && !ferror(stdout);
    case OUT_JSON:
        if (json_array_append_new(sink->array, json_of_usage(s)))
            sink->code = command_fail(ERR_NOMEM, NULL);
        return sink->code == EXIT_DONE;
    }
    return false;
}

/* The windows of the past have arrived at the first tick after them: the newest is the first table. */
static bool on_tick(void *arg)
{
    struct usage_sink *sink = arg;
    if (sink->follow && sink->newest.ranks && !sink->tables && sink->global->format == OUT_TEXT) {
        table_print(sink, &sink->newest);
        usage_sample_fini(&sink->newest);
    }
    return fflush(stdout) == 0;
}

static err_t usage_call(struct client *c, void *arg, struct why *why)
{
    struct usage_sink *sink = arg;
    const struct client_stream stream = {.usage = on_usage, .tick = on_tick, .arg = sink};
    return client_usage(c, sink->job, sink->follow, sink->next_ms, &stream, why);
}

static int finish(struct usage_sink *sink, err_t err, const struct why *why)
{
    const struct global *g = sink->global;
    if (sink->code)
        return sink->code;
    if (!err && g->format == OUT_TEXT && sink->newest.ranks)
        table_print(sink, &sink->newest);
    else if (!err && g->format == OUT_TEXT && !sink->tables)
        printf(
            "no rank of job %s has reported its usage yet; the first reports come some seconds after its first step\n",
            sink->job);
    if (g->format == OUT_JSON && (!err || err == ERR_CANCELED))
        sink->code = command_json(g, json_incref(sink->array));
    if (sink->code)
        return sink->code;
    if (err == ERR_CANCELED) /* Ctrl-C, or the reader of the output has ended */
        return ferror(stdout) ? EXIT_DONE : EXIT_INTERRUPTED;
    return err ? command_fail(err, why) : EXIT_DONE;
}

int rank_usage_print(struct global *g, const char *job, bool follow)
{
    struct usage_sink sink = {.global = g, .job = job, .follow = follow, .array = json_array()};
    struct why why = {0};
    err_t err = follow_call(g, usage_call, &sink, &why);
    int code = finish(&sink, err, &why);
    json_decref(sink.array);
    usage_sample_fini(&sink.newest);
    return code;
}
