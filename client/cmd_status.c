/* dtctl status: prints the table of jobs, or one job in full. A row of a job that waits or has failed shows the reason.
 * The page of a job ends with the next command to run. */
#include "client/client.h"
#include "client/commands.h"
#include "client/field_text.h"
#include "client/follow.h"
#include "client/json.h"
#include "client/step_parts.h"

#include <math.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct status_args {
    struct global *global;
    const char *job;
    const char *states; /* separated by commas; NULL: all */
    const char *user;   /* NULL: all */
};

static const struct argp_option options[] = {
    {"state", 't', "STATE,..", 0, "List only jobs in one of these states; active: all that have not ended", 0},
    {"user", 'u', "USER", 0, "List only jobs of this user", 0},
    {0},
};

static bool is_state(const char *word, size_t len)
{
    static const char *const states[] = {"pending", "starting", "running",  "recovering", "stopping",
                                         "done",    "failed",   "canceled", "active"};
    for (size_t i = 0; i < sizeof(states) / sizeof(states[0]); i++)
        if (strlen(states[i]) == len && strncasecmp(states[i], word, len) == 0)
            return true;
    return false;
}

static void check_states(const char *list, struct argp_state *state)
{
    for (const char *word = list;; word++) {
        size_t len = strcspn(word, ",");
        if (!is_state(word, len))
            argp_error(state,
                       "--state %s: expected pending, starting, running, recovering, stopping, done, failed, canceled "
                       "or active",
                       list);
        word += len;
        if (!*word)
            return;
    }
}

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct status_args *a = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = a->global;
        return 0;
    case 't':
        check_states(arg, state);
        a->states = arg;
        return 0;
    case 'u':
        a->user = arg;
        return 0;
    case ARGP_KEY_END:
        if (a->job && (a->states || a->user))
            argp_error(state, "--state and --user select from the list; give them without a job");
        return 0;
    case ARGP_KEY_ARG:
        if (a->job)
            argp_error(state, "one job at a time; dtctl status without argument lists all");
        a->job = arg;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static double age_of(const struct client_job *job)
{
    return (double)(job->now_ms - job->submitted_ms) / 1000;
}

/* ---- the table ---- */

/* The table has a column of users only if the jobs have different ones. */
static bool many_users(const struct client_job *jobs, int n)
{
    for (int i = 1; i < n; i++)
        if (strcmp(jobs[i].user, jobs[0].user) != 0)
            return true;
    return false;
}

/* It runs with fewer workers than it wants. */
static bool has_fewer(const struct client_job *job)
{
    return job->workers < job->max_workers && job->workers > 0;
}

static void row_add(struct out_table *t, const struct client_job *job, bool users)
{
    char number[OUT_NUMBER];
    int r = out_table_row(t), c = 0;
    t->row_color[r] = out_state_color(job->state);
    out_table_set(t, r, c++, "%s", job->job);
    if (users)
        out_table_set(t, r, c++, "%s", job->user);
    out_table_set(t, r, c++, "%s", job->name);
    out_table_set(t, r, c++, "%s", job->state);
    if (job->steps) /* 0: a command, or another user's job, whose steps control does not send */
        out_table_set(t, r, c, "%lld/%lld", (long long)job->step, (long long)job->steps);
    c++;
    if (job->has_last)
        out_table_set(t, r, c, "%.4f", job->last.loss);
    c++;
    if (has_fewer(job))
        out_table_set(t, r, c, "%d/%d", job->workers, job->max_workers);
    else
        out_table_set(t, r, c, "%d", job->workers);
    c++;
    out_table_set(t, r, c++, "%llu", (unsigned long long)job->epoch);
    out_table_set(t, r, c++, "%d", job->restarts);
    out_table_set(t, r, c++, "%s", out_duration(age_of(job), number));
    if (job->reason[0])
        out_table_set(t, r, c, "%s", job->reason);
    else if (job->checkpoint_error[0])
        out_table_set(t, r, c, "checkpoint: %s", job->checkpoint_error);
}

static bool has_state(const struct client_job *job, const char *states)
{
    for (const char *word = states;; word++) {
        size_t len = strcspn(word, ",");
        bool is_active = len == strlen("active") && strncasecmp(word, "active", len) == 0;
        if (is_active ? !client_job_ended(job) : strlen(job->state) == len && strncasecmp(job->state, word, len) == 0)
            return true;
        word += len;
        if (!*word)
            return false;
    }
}

/* Moves the selected jobs to the front, in their order; returns their number. The others stay behind them, so that all
 * can be freed. */
static int select_jobs(const struct status_args *a, struct client_job *jobs, int n)
{
    int kept = 0;
    for (int i = 0; i < n; i++) {
        if ((a->states && !has_state(&jobs[i], a->states)) || (a->user && strcmp(jobs[i].user, a->user) != 0))
            continue;
        struct client_job job = jobs[i];
        memmove(&jobs[kept + 1], &jobs[kept], (size_t)(i - kept) * sizeof(job));
        jobs[kept++] = job;
    }
    return kept;
}

static int list_print(const struct client_job *jobs, int n, bool is_selection)
{
    static const struct out_column alone[] = {
        {"JOB", true, 0},     {"NAME", false, OUT_CUT}, {"STATE", false, 0},   {"STEP", true, 1}, {"LOSS", true, 2},
        {"WORKERS", true, 3}, {"EPOCH", true, 6},       {"RESTARTS", true, 5}, {"AGE", true, 4},  {"REASON", false, 0}};
    static const struct out_column shared[] = {{"JOB", true, 0},     {"USER", false, 2},  {"NAME", false, OUT_CUT},
                                               {"STATE", false, 0},  {"STEP", true, 1},   {"LOSS", true, 2},
                                               {"WORKERS", true, 3}, {"EPOCH", true, 6},  {"RESTARTS", true, 5},
                                               {"AGE", true, 4},     {"REASON", false, 0}};
    struct out_table t;
    if (!n && is_selection) {
        printf("no job is in the selection. List all: dtctl status\n");
        return EXIT_DONE;
    }
    if (!n) {
        printf("no jobs yet. Start one: dtctl submit job.yaml\n");
        return EXIT_DONE;
    }
    bool users = many_users(jobs, n);
    out_table_init(&t, users ? shared : alone, (int)(sizeof(alone) / sizeof(alone[0])) + users);
    for (int i = 0; i < n; i++)
        row_add(&t, &jobs[i], users);
    out_table_print(&t, stdout, 2 + users);
    out_table_fini(&t);
    return EXIT_DONE;
}

static int list_json(const struct global *g, const struct client_job *jobs, int n)
{
    json_t *array = json_array();
    for (int i = 0; i < n; i++) {
        json_t *job = json_of_job(&jobs[i]);
        if (g->format == OUT_JSONL) {
            int code = command_json(g, job);
            if (code) {
                json_decref(array);
                return code;
            }
        } else if (json_array_append_new(array, job)) {
            json_decref(array);
            return command_fail(ERR_NOMEM, NULL);
        }
    }
    if (g->format == OUT_JSON)
        return command_json(g, array);
    json_decref(array);
    return EXIT_DONE;
}

static int status_list(struct global *g, const struct status_args *args)
{
    struct client_job *jobs;
    int n;
    struct why why = {0};
    err_t err = client_job_list(g, &jobs, &n, &why);
    if (err)
        return command_fail(err, &why);
    int kept = select_jobs(args, jobs, n);
    int code = g->format == OUT_TEXT ? list_print(jobs, kept, kept < n) : list_json(g, jobs, kept);
    client_jobs_free(jobs, n);
    return code;
}

/* ---- one job ---- */

static void page_head(FILE *f, const struct client_job *job)
{
    const char *color = out_color(stdout, out_state_color(job->state)), *plain = out_color(stdout, OUT_PLAIN);
    double share = job->steps > 0 ? 100.0 * (double)job->step / (double)job->steps : 0;
    fprintf(f, "job %s %s  %s%s%s  epoch %llu", job->job, job->name, color, job->state, plain,
            (unsigned long long)job->epoch);
    if (job->steps) /* command jobs have no steps */
        fprintf(f, "  step %lld/%lld (%.1f%%)", (long long)job->step, (long long)job->steps, share);
    fputc('\n', f);
    if (job->reason[0])
        fprintf(f, "  Reason     %s\n", job->reason);
    if (job->parent[0])
        fprintf(f, "  Resumes    job %s\n", job->parent);
    const struct passwd *me = getpwuid(geteuid());
    if (job->user[0] && (!me || strcmp(job->user, me->pw_name) != 0))
        fprintf(f, "  User       %s\n", job->user);
}

static void page_speed(FILE *f, const struct client_job *job)
{
    char a[OUT_NUMBER], b[OUT_NUMBER], c[OUT_NUMBER];
    const struct metric *m = &job->last;
    if (!job->has_last)
        return;
    fprintf(f, "  Loss       %.5f  gradient norm %s  lr %s", m->loss, out_real(m->grad_norm, 4, a),
            out_real(m->lr, 4, b));
    if (m->valid_loss == m->valid_loss)
        fprintf(f, "  validation %.5f", m->valid_loss);
    if (m->test_loss == m->test_loss)
        fprintf(f, "  test %.5f", m->test_loss);
    fprintf(f, "\n  Speed      %s tok/s  %s s/step", out_count(m->tokens_per_s, a), out_real(m->step_s, 3, b));
    if (strcmp(job->state, "running") == 0)
        fprintf(f, "  ETA %s", out_duration((double)(job->steps - job->step) * m->step_s, c));
    fputc('\n', f);
    for (int i = 0; i < metric_fields.n; i++) {
        const struct field *field = &metric_fields.field[i];
        if (field->label && field_shown(field, m))
            fprintf(f, "  %-10s %s%s\n", field->label, field_text(field, m, a), field_unit(field, b));
    }
}

static bool keep_sample(void *arg, const struct usage_sample *s)
{
    struct usage_sample *ret = arg;
    usage_sample_fini(ret);
    return usage_sample_copy(s, ret) == OK;
}

struct usage_request {
    const char *job;
    struct usage_sample *ret;
};

static err_t usage_call(struct client *c, void *arg, struct why *why)
{
    const struct usage_request *r = arg;
    const struct client_stream stream = {.usage = keep_sample, .arg = r->ret};
    return client_usage_newest(c, r->job, &stream, why);
}

/* Of the newest window. Without any, the forecast stands alone. */
static void page_forecast(struct global *g, FILE *f, const struct client_job *job)
{
    struct usage_sample s = {0};
    struct usage_request request = {job->job, &s};
    struct why why = {0};
    char line[STEP_TEXT];
    if (!job->steps || !job->spec_yaml || !job->spec_yaml[0])
        return;
    if (follow_call(g, usage_call, &request, &why))
        usage_sample_fini(&s);
    if (step_line_of(job->spec_yaml, &s, line)[0])
        fprintf(f, "  Forecast   %s\n", line);
    usage_sample_fini(&s);
}

static void page_times(FILE *f, const struct client_job *job)
{
    char a[OUT_NUMBER], b[OUT_NUMBER], c[OUT_NUMBER];
    fprintf(f, "  Times      submitted %s  started %s  ended %s\n", out_time(job->submitted_ms, a),
            out_time(job->started_ms, b), out_time(job->ended_ms, c));
    if (job->checkpoint_dir[0] && job->checkpoint_step >= 0)
        fprintf(f, "  Checkpoint %s/step-%lld\n", job->checkpoint_dir, (long long)job->checkpoint_step);
    else if (job->checkpoint_dir[0])
        fprintf(f, "  Checkpoint none yet in %s\n", job->checkpoint_dir);
    if (job->checkpoint_error[0])
        fprintf(f, "  %sLast save failed: %s. The next save is attempted on schedule%s\n", out_color(stdout, OUT_RED),
                job->checkpoint_error, out_color(stdout, OUT_PLAIN));
}

/* The list of workers names nodes only if there is more than one. */
static bool many_nodes(const struct client_job *job)
{
    for (int i = 1; i < job->n_worker; i++)
        if (strcmp(job->worker[i].node, job->worker[0].node) != 0)
            return true;
    return false;
}

static void page_workers(FILE *f, const struct client_job *job)
{
    const bool nodes = many_nodes(job);
    if (has_fewer(job))
        fprintf(f, "  Workers    %d of %d, restarts %d\n", job->workers, job->max_workers, job->restarts);
    else
        fprintf(f, "  Workers    %d, restarts %d\n", job->workers, job->restarts);
    if (job->layout_why[0])
        fprintf(f, "  Layout     auto: %s\n", job->layout_why);
    for (int i = 0; i < job->n_worker; i++) {
        const struct client_worker *w = &job->worker[i];
        fprintf(f, "    rank %-3d pid %-8d %s", w->rank, w->pid, w->state);
        if (nodes)
            fprintf(f, "  on %s", w->node);
        if (w->exit_signal >= 0)
            fprintf(f, "  killed by signal %d (%s)", w->exit_signal, strsignal(w->exit_signal));
        else if (w->exit_status >= 0)
            fprintf(f, "  exit %d", w->exit_status);
        fputc('\n', f);
    }
}

static void page_stragglers(FILE *f, const struct client_job *job)
{
    const char *color = out_color(stdout, OUT_YELLOW), *plain = out_color(stdout, OUT_PLAIN);
    for (int i = 0; i < job->n_straggler; i++)
        fprintf(f, "  %s%-10s %s%s\n", color, i ? "" : "Straggler", job->straggler[i].text, plain);
}

static void page_incidents(FILE *f, const struct client_job *job)
{
    char when[OUT_NUMBER], number[OUT_NUMBER];
    if (job->n_incident)
        fprintf(f, "  Incidents\n");
    for (int i = 0; i < job->n_incident; i++) {
        const struct incident *in = &job->incident[i];
        fprintf(f, "    %s  %s: %s", out_time(in->wall_ms, when), in->seen, in->decided);
        if (!isnan(in->detect_ms))
            fprintf(f, " (decided in %s ms", out_real(in->detect_ms, 3, number));
        if (!isnan(in->recover_ms))
            fprintf(f, "%sback in %s ms", isnan(in->detect_ms) ? " (" : ", ", out_real(in->recover_ms, 4, number));
        fputs(isnan(in->detect_ms) && isnan(in->recover_ms) ? "\n" : ")\n", f);
    }
}

static void page_next(FILE *f, const struct client_job *job)
{
    static const struct {
        const char *state;
        bool checkpoint; /* only if the job has a checkpoint */
        const char *before, *after;
    } table[] = {{"done", true, "dtctl resume", " --more N"},
                 {"canceled", true, "dtctl resume", ""},
                 {"failed", false, "dtctl logs", " --tail 20"}};
    const char *before = "dtctl logs", *after = client_job_ended(job) ? "" : " -f";
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        if (strcmp(job->state, table[i].state) == 0 && (job->checkpoint_step >= 0 || !table[i].checkpoint)) {
            before = table[i].before;
            after = table[i].after;
        }
    fprintf(f, "  Next       %s %s%s\n", before, job->job, after);
}

static int status_one(struct global *g, const char *id)
{
    struct client_job job;
    struct out_page page;
    struct why why = {0};
    char number[32];
    int code = EXIT_DONE;
    err_t err = follow_name(g, &id, number, &why);
    err = err ? err : client_job_by_id(g, id, &job, &why);
    if (err)
        return command_fail(err, &why);
    if (g->format != OUT_TEXT) {
        code = command_json(g, json_of_job(&job));
    } else {
        out_page_begin(&page);
        page_head(page.f, &job);
        page_speed(page.f, &job);
        page_forecast(g, page.f, &job);
        page_times(page.f, &job);
        page_workers(page.f, &job);
        page_stragglers(page.f, &job);
        page_incidents(page.f, &job);
        page_next(page.f, &job);
        out_page_end(&page, stdout);
    }
    client_job_fini(&job);
    return code;
}

int cmd_status(struct global *g, int argc, char **argv)
{
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .children = global_children,
        .args_doc = "[JOB]",
        .doc =
            "Lists all jobs, or shows one job: state and reason, step and speed, checkpoints, workers with their "
            "process "
            "ids, incidents, and the next command to run. With -o json, prints an array, or the object of the one job. "
            "`state` is pending, starting, running, recovering, stopping, done, failed or canceled."
            " JOB is a number or a name; a name means the job that has not ended, else the newest one."
            "\vExamples:\n  dtctl status\n  dtctl status 4\n  dtctl status story\n  dtctl status -t running,failed\n  "
            "dtctl status 4 -o json | jq -r .state"};
    struct status_args args = {.global = g};
    command_parse(&argp, argc, argv, &args);
    return args.job ? status_one(g, args.job) : status_list(g, &args);
}
