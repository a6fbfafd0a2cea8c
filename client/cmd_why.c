/* dtctl why: prints the incidents of a job. For each: what was detected, what control decided, how long each part of
 * the recovery took, and the last log lines of the worker that failed. */
#include "client/client.h"
#include "client/commands.h"
#include "client/field_text.h"
#include "client/follow.h"
#include "client/json.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

struct why_args {
    struct global *global;
    const char *job;
    int64_t incident; /* 0: all */
};

static const struct argp_option options[] = {{"incident", 'i', "N", 0, "Only incident N, counted from 1", 0}, {0}};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct why_args *a = state->input;
    switch (key) {
    case 'i':
        if (!arg_number(arg, 1 << 20, &a->incident) || a->incident == 0)
            argp_error(state, "--incident %s: expected the number of an incident: 1, 2, 3, ..", arg);
        return 0;
    default:
        return parse_job(key, arg, state, a->global, &a->job);
    }
}

static void lines_print(const struct field *f, const char *text)
{
    printf("    %s\n", f->label);
    while (*text) {
        int len = (int)strcspn(text, "\n");
        printf("        %.*s\n", len, text);
        text += len + (text[len] == '\n');
    }
}

static void fields_print(const struct incident *in)
{
    char text[OUT_NUMBER], unit[OUT_NUMBER];
    for (int i = 0; i < incident_fields.n; i++) {
        const struct field *f = &incident_fields.field[i];
        if (!f->label || !field_shown(f, in))
            continue;
        if (f->look == LOOK_LINES)
            lines_print(f, field_text(f, in, text));
        else
            printf("    %-12s %s%s\n", f->label, field_text(f, in, text), field_unit(f, unit));
    }
}

static void incident_print(int number, const struct incident *in)
{
    char text[OUT_NUMBER];
    printf("%d  %s  epoch %" PRIu64 "\n", number, out_time(in->wall_ms, text), in->epoch);
    fields_print(in);
}

/* The line of the total has another label here. */
static void start_print(const struct incident *start)
{
    char when[OUT_NUMBER], total[OUT_NUMBER];
    struct incident parts = *start;
    parts.recover_ms = NAN;
    printf("start  %s  %s ms from submit to first step\n", out_time(start->wall_ms, when),
           out_real(start->recover_ms, 4, total));
    fields_print(&parts);
}

static int why_print(const struct why_args *a, const struct client_job *job)
{
    if (a->incident > job->n_incident) {
        struct why why = {0};
        return command_fail(why_set(&why, ERR_NOTFOUND, "job %s has %d incidents; `dtctl why %s` shows them", a->job,
                                    job->n_incident, a->job),
                            &why);
    }
    if (a->global->format != OUT_TEXT) {
        json_t *list = json_of_incidents(job, (int)a->incident);
        return list && out_json(list, false) == OK ? EXIT_DONE : EXIT_ERROR;
    }
    printf("job %s (%s) %s %s%s%s\n", job->job, job->name, strcmp(job->state, "failed") == 0 ? "has" : "is", job->state,
           job->reason[0] ? ": " : "", job->reason);
    if (job->start.epoch && a->incident == 0)
        start_print(&job->start);
    if (job->n_incident == 0)
        printf("no incidents\n");
    for (int i = 0; i < job->n_incident; i++)
        if (a->incident == 0 || a->incident == i + 1)
            incident_print(i + 1, &job->incident[i]);
    return EXIT_DONE;
}

int cmd_why(struct global *g, int argc, char **argv)
{
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .children = global_children,
        .args_doc = "JOB",
        .doc = "Shows the incidents of a job: what was detected, what was decided, how long each part of the recovery "
               "took, and the last log lines of the worker that failed, even if its node is lost."
               "\vExamples:\n  dtctl why 4\n  dtctl why 4 --incident 2 -o json"};
    struct why_args args = {.global = g};
    struct client_job job;
    struct why why = {0};
    char number[32];
    command_parse(&argp, argc, argv, &args);
    err_t err = follow_name(g, &args.job, number, &why);
    err = err ? err : client_job_by_id(g, args.job, &job, &why);
    if (err)
        return command_fail(err, &why);
    int rc = why_print(&args, &job);
    client_job_fini(&job);
    return rc;
}
