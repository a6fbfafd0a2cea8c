/* Watching does not affect the job: it continues when dtctl loses its connection or terminal, or exits.
 *
 *   submit --no answer--> wait --connected--> submit (same request id: at most one job) --id--> watch
 *   watch --connection lost--> wait --connected--> watch;   watch --job ended--> last status --> exit code
 *   watch, wait --Ctrl-C--> detached: exit 130
 *   watch, wait --SIGUSR1 or SIGTERM, if follow_stop_on_signals was called--> cancel request with save --> watch
 *
 * The wait ends with exit 75 after WAIT_MS. The job then continues when a dtd runs again. */
#include "client/follow.h"

#include "client/client.h"
#include "client/daemon.h"
#include "client/json.h"
#include "client/view.h"
#include "client/worker_lines.h"
#include "common/base/clock.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

/* How long to wait for control while its supervisor runs. The supervisor restarts control within seconds, but control
 * may have to read a long log first. */
#define WAIT_MS 60000
/* How long to wait if no supervisor runs, but control has answered before: a service manager may be restarting dtd. */
#define ABSENT_MS 3000
/* Pause between two attempts: short for a person, and cheap for the daemon. */
#define RETRY_MS 100

struct job_follow {
    struct global *global;
    const char *job;
    const struct follow_how *how;
    struct out_progress progress;
    struct view view;
    struct worker_lines lines;
    int streamed; /* number of ranks whose output the stream delivers */
    FILE *out;
    bool ended, lost_printed, stopping;
    int broken; /* errno of a failed write of the workers' output; 0: none */
    int n_incidents;
    int64_t checkpoint_step;
    char *checkpoint_error;
};

static volatile sig_atomic_t interrupted, stop_requested; /* stop_requested: the signal, 0: none */

static void on_interrupt(int signum)
{
    (void)signum;
    interrupted = 1;
}

/* libuv restores the default action when a stream ends, so the handler is installed again before each wait. */
static void catch_interrupt(void)
{
    const struct sigaction action = {.sa_handler = on_interrupt};
    sigaction(SIGINT, &action, NULL);
}

static void on_stop(int signum)
{
    stop_requested = signum;
}

void follow_stop_on_signals(void)
{
    const struct sigaction action = {.sa_handler = on_stop};
    sigaction(SIGUSR1, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

static bool worth_retrying(err_t err)
{
    return err == ERR_CLOSED || err == ERR_TIMEOUT || err == ERR_AGAIN || err == ERR_BUSY;
}

static void retry_sleep(void)
{
    const struct timespec t = {.tv_nsec = RETRY_MS * 1000000};
    nanosleep(&t, NULL);
}

/* ---- calls that are made again ---- */

static err_t call_once(struct global *g, err_t (*call)(struct client *, void *, struct why *), void *arg,
                       struct why *why)
{
    struct client *c;
    err_t err = client_open(g->state_dir, &c, why);
    if (err)
        return err;
    err = call(c, arg, why);
    client_close(c);
    return err;
}

err_t follow_call(struct global *g, err_t (*call)(struct client *, void *, struct why *), void *arg, struct why *why)
{
    static bool answered;
    int64_t since = clock_mono_ms();
    pid_t holder;
    for (bool printed = false;; printed = true) {
        err_t err = call_once(g, call, arg, why);
        answered = answered || !err;
        if (!err || !worth_retrying(err))
            return err;
        int64_t limit_ms = daemon_running(g->state_dir, &holder) ? WAIT_MS : answered ? ABSENT_MS : 0;
        if (clock_mono_ms() - since >= limit_ms)
            return err;
        if (!printed)
            fprintf(stderr, "dtctl: %s; trying again\n", why->text);
        retry_sleep();
    }
}

struct submit_request {
    uint8_t id[16];
    const char *spec_yaml, *parent;
    char job[32];
};

static err_t submit_call(struct client *c, void *arg, struct why *why)
{
    struct submit_request *s = arg;
    return client_submit(c, s->id, s->spec_yaml, s->parent, s->job, why);
}

struct status_request {
    const char *id;
    struct client_job *ret;
};

static err_t status_call(struct client *c, void *arg, struct why *why)
{
    struct status_request *s = arg;
    return client_status(c, s->id, s->ret, why);
}

err_t client_job_by_id(struct global *g, const char *id, struct client_job *ret, struct why *why)
{
    struct status_request s = {id, ret};
    return follow_call(g, status_call, &s, why);
}

struct list_request {
    struct client_job *jobs;
    int n;
};

static err_t list_call(struct client *c, void *arg, struct why *why)
{
    struct list_request *list = arg;
    return client_list(c, &list->jobs, &list->n, why);
}

err_t client_job_list(struct global *g, struct client_job **ret, int *ret_n, struct why *why)
{
    struct list_request list = {0};
    err_t err = follow_call(g, list_call, &list, why);
    if (err)
        return err;
    *ret = list.jobs;
    *ret_n = list.n;
    return OK;
}

/* A name, or a folder, that consists of digits is taken for a number; a folder is given as ./NUMBER. */
bool follow_is_number(const char *word)
{
    return word[0] && word[strspn(word, "0123456789")] == '\0';
}

/* Returns the job that the name means, by index; -1: none. `ret_live`: the number of jobs with it that have not ended.
 */
static int find_by_name(const struct client_job *jobs, int n, const char *name, int *ret_live)
{
    int newest = -1, live = -1;
    *ret_live = 0;
    for (int i = 0; i < n; i++) {
        if (strcmp(jobs[i].name, name) != 0)
            continue;
        newest = i;
        if (!client_job_ended(&jobs[i])) {
            live = i;
            ++*ret_live;
        }
    }
    return live >= 0 ? live : newest;
}

err_t follow_name(struct global *g, const char **job, char number[32], struct why *why)
{
    struct client_job *jobs;
    int n, live;
    if (follow_is_number(*job))
        return OK;
    err_t err = client_job_list(g, &jobs, &n, why);
    if (err)
        return err;
    int found = find_by_name(jobs, n, *job, &live);
    if (live > 1)
        err =
            why_set(why, ERR_INVALID, "%d jobs called %.200s have not ended; use the number: dtctl status", live, *job);
    else if (found < 0)
        err = why_set(why, ERR_NOTFOUND, "no job is called %.200s; see dtctl status", *job);
    else
        snprintf(number, 32, "%.31s", jobs[found].job);
    client_jobs_free(jobs, n);
    if (!err)
        *job = number;
    return err;
}

/* Two names may lead to one folder. A folder that does not exist on this machine is compared by its name only. */
bool follow_same_folder(const char *a, const char *b)
{
    struct stat x, y;
    return strcmp(a, b) == 0 || (stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino);
}

err_t follow_check_dir(struct global *g, const char *dir, char ret_newest[32], struct why *why)
{
    struct client_job *jobs;
    int n;
    char newest[32] = "";
    err_t err = client_job_list(g, &jobs, &n, why);
    if (err)
        return err;
    for (int i = 0; i < n; i++) {
        const struct client_job *job = &jobs[i];
        if (!follow_same_folder(job->checkpoint_dir, dir))
            continue;
        snprintf(newest, sizeof(newest), "%.31s", job->job);
        bool same_name = strcmp(job->checkpoint_dir, dir) == 0;
        if (!client_job_ended(job))
            err = why_set(
                why, ERR_EXISTS,
                "job %s is %s and writes its checkpoints to %s%s. Wait until it has ended, or stop it with dtctl "
                "cancel %s, or choose another checkpoint.dir",
                job->job, job->state, dir, same_name ? "" : ", under another name", job->job);
    }
    client_jobs_free(jobs, n);
    if (!err && ret_newest)
        strcpy(ret_newest, newest);
    return err;
}

void follow_check_parent(struct global *g, const struct job_spec *job, char newest[32])
{
    struct client_job parent;
    struct job_spec before = {0};
    if (!newest[0] || client_job_by_id(g, newest, &parent, NULL))
        return;
    const char *yaml = parent.spec_yaml;
    if (yaml[0] && job_parse("job", yaml, strlen(yaml), NULL, 0, &before, NULL) == OK &&
        job_resume_check(&before, job, NULL))
        newest[0] = '\0';
    job_fini(&before);
    client_job_fini(&parent);
}

/* ---- callbacks of the stream ---- */

static void __attribute__((format(printf, 2, 3))) line_print(struct job_follow *f, const char *fmt, ...)
{
    va_list ap;
    out_progress_clear(&f->progress);
    va_start(ap, fmt);
    vfprintf(f->out, fmt, ap);
    va_end(ap);
    fputc('\n', f->out);
    fflush(f->out);
}

static void progress_draw(struct job_follow *f)
{
    char line[512];
    int64_t now = clock_mono_ms();
    if (f->progress.terminal ? !out_progress_due(&f->progress, now) : !view_line_due(&f->view, now))
        return;
    view_line(&f->view, f->progress.terminal ? out_columns(f->out) : 0, line, sizeof(line));
    out_progress_draw(&f->progress, now, f->lines.bar[0] ? f->lines.bar : line);
    view_line_printed(&f->view, now);
}

static bool stop_due(const struct job_follow *f)
{
    return stop_requested && !f->stopping;
}

static bool streams(const struct job_follow *f)
{
    return f->how->output || f->how->files;
}

/* The job has more workers than the stream delivers: a new stream delivers all of them. */
static bool more_ranks(const struct job_follow *f)
{
    return streams(f) && f->streamed && f->view.workers > f->streamed;
}

static bool on_tick(void *arg)
{
    struct job_follow *f = arg;
    if (f->progress.terminal)
        progress_draw(f);
    return !stop_due(f) && !more_ranks(f);
}

static bool on_log(void *arg, const struct client_log *chunk)
{
    struct job_follow *f = arg;
    out_progress_clear(&f->progress);
    errno = 0;
    if (worker_lines_print(&f->lines, chunk))
        return true;
    f->broken = errno ? errno : EIO;
    return false;
}

static bool on_metric(void *arg, const struct metric *m)
{
    struct job_follow *f = arg;
    view_metric(&f->view, m);
    progress_draw(f);
    return true;
}

static void print_incidents(struct job_follow *f, const struct client_job *job)
{
    for (; f->n_incidents < job->n_incident; f->n_incidents++) {
        const struct incident *in = &job->incident[f->n_incidents];
        line_print(f, "%s%s: %s%s", out_color(f->out, OUT_YELLOW), in->seen, in->decided, out_color(f->out, OUT_PLAIN));
    }
}

static void print_checkpoint(struct job_follow *f, const struct client_job *job)
{
    if (job->checkpoint_error[0] && (!f->checkpoint_error || strcmp(job->checkpoint_error, f->checkpoint_error) != 0)) {
        line_print(f, "%scheckpoint failed: %s. Training continues; the previous checkpoint remains%s",
                   out_color(f->out, OUT_RED), job->checkpoint_error, out_color(f->out, OUT_PLAIN));
        free(f->checkpoint_error);
        f->checkpoint_error = strdup(job->checkpoint_error);
    }
    if (job->checkpoint_step > f->checkpoint_step && f->progress.terminal)
        line_print(f, "%scheckpoint %s/step-%lld%s", out_color(f->out, OUT_DIM), job->checkpoint_dir,
                   (long long)job->checkpoint_step, out_color(f->out, OUT_PLAIN));
    f->checkpoint_step = job->checkpoint_step;
}

static bool on_status(void *arg, const struct client_job *job)
{
    struct job_follow *f = arg;
    bool moved = strcmp(f->view.state, job->state) != 0;
    f->lines.prefix = f->lines.prefix || job->workers > 1;
    f->streamed = f->streamed ? f->streamed : job->workers;
    view_status(&f->view, job);
    print_incidents(f, job);
    print_checkpoint(f, job);
    if (moved && !f->progress.terminal && strcmp(job->state, "running") != 0 && !client_job_ended(job))
        line_print(f, "job %s %s is %s%s%s", job->job, job->name, job->state, job->reason[0] ? ": " : "", job->reason);
    f->ended = client_job_ended(job);
    progress_draw(f);
    return true;
}

/* ---- the end ---- */

/* Prints the final losses of a job that evaluates. */
static void print_losses(struct job_follow *f)
{
    char valid[OUT_NUMBER], test[OUT_NUMBER];
    const struct view *v = &f->view;
    if (!isnan(v->last.valid_loss) || !isnan(v->last.test_loss))
        line_print(f, "loss: training %.4f, validation %s, test %s", v->last.loss,
                   out_real(v->last.valid_loss, 5, valid), out_real(v->last.test_loss, 5, test));
}

static void print_done(struct job_follow *f, const struct client_job *job)
{
    char number[OUT_NUMBER];
    double seconds = (double)(job->ended_ms - (job->started_ms ? job->started_ms : job->submitted_ms)) / 1000;
    char step[48] = "";
    if (job->steps)
        snprintf(step, sizeof(step), "step %lld, ", (long long)job->step);
    line_print(f, "%sjob %s %s is done%s: %safter %s", out_color(f->out, OUT_GREEN), job->job, job->name,
               out_color(f->out, OUT_PLAIN), step, out_duration(seconds, number));
    print_losses(f);
    if (job->checkpoint_step < 0)
        return;
    char *dir = out_quoted(job->checkpoint_dir);
    line_print(
        f,
        "checkpoint: %s/step-%lld\nnext:\n  dtctl generate %s --prompt 'Once upon a time'\n  dtctl resume %s --more "
        "%lld",
        job->checkpoint_dir, (long long)job->checkpoint_step, dir ? dir : job->job, job->job, (long long)job->steps);
    free(dir);
}

static void print_lines(struct job_follow *f, const char *title, const char *text)
{
    line_print(f, "%s", title);
    for (const char *at = text; *at;) {
        int len = (int)strcspn(at, "\n");
        line_print(f, "  %.*s", len, at);
        at += len + (at[len] == '\n');
    }
}

/* Prints the error that the script recorded, else the last lines of the worker whose failure ended the job. These lines
 * have been printed before if it is the only worker and its output is shown. */
static void print_last_lines(struct job_follow *f, const struct client_job *job)
{
    const struct incident *last = job->n_incident ? &job->incident[job->n_incident - 1] : NULL;
    if (!f->how->command || strcmp(job->state, "failed") != 0 || !last)
        return;
    if (last->error && last->error[0])
        print_lines(f, "the first error of a worker:", last->error);
    else if (last->log && last->log[0] && (!f->how->output || f->lines.prefix))
        print_lines(f, "last lines of the failed worker:", last->log);
}

static void print_end(struct job_follow *f, const struct client_job *job)
{
    if (strcmp(job->state, "done") == 0) {
        print_done(f, job);
        return;
    }
    char step[48] = "";
    if (job->steps)
        snprintf(step, sizeof(step), " at step %lld", (long long)job->step);
    line_print(f, "%sjob %s %s %s%s%s%s%s%s", out_color(f->out, out_state_color(job->state)), job->job, job->name,
               strcmp(job->state, "failed") == 0 ? "has " : "is ", job->state, out_color(f->out, OUT_PLAIN), step,
               job->reason[0] ? ": " : "", job->reason);
    print_last_lines(f, job);
    if (job->checkpoint_step >= 0)
        line_print(f, "checkpoint: %s/step-%lld\nnext:\n  dtctl logs %s --tail 20\n  dtctl resume %s",
                   job->checkpoint_dir, (long long)job->checkpoint_step, job->job, job->job);
    else
        line_print(f, "next:\n  dtctl logs %s --tail 20", job->job);
}

static int exit_of_state(const char *state)
{
    return strcmp(state, "done") == 0 ? EXIT_DONE : strcmp(state, "failed") == 0 ? EXIT_JOB_FAILED : EXIT_JOB_CANCELED;
}

static int job_finish(struct job_follow *f, const struct client_job *job)
{
    char line[512];
    view_status(&f->view, job);
    print_incidents(f, job);
    if ((f->view.steps && f->view.step != f->view.printed_step) || f->progress.terminal) {
        view_line(&f->view, f->progress.terminal ? out_columns(f->out) : 0, line, sizeof(line));
        out_progress_draw(&f->progress, clock_mono_ms(), line);
    }
    out_progress_end(&f->progress);
    print_end(f, job);
    if (f->global->format != OUT_TEXT && command_json(f->global, json_of_job(job)))
        return EXIT_ERROR;
    int code = exit_of_state(job->state);
    return f->stopping && code == EXIT_JOB_CANCELED ? EXIT_RETRY : code;
}

static int job_detach(struct job_follow *f)
{
    out_progress_end(&f->progress);
    line_print(f,
               "detached; job %s continues. To show it, follow it, or stop it:\n  dtctl status %s\n  dtctl %s %s "
               "-f\n  dtctl cancel %s",
               f->job, f->job, f->how->command ? "logs" : "metrics", f->job, f->job);
    return EXIT_INTERRUPTED;
}

static int output_broken(struct job_follow *f)
{
    out_progress_end(&f->progress);
    return command_complain(EXIT_ERROR,
                            "cannot write the output of the workers: %s. The job does not depend on dtctl: "
                            "dtctl status %s",
                            strerror(f->broken), f->job);
}

/* ---- stopping on a signal ---- */

struct cancel_request {
    uint8_t id[16];
    const char *job;
    bool save;
    char reason[512]; /* of the answer: how the job stops */
};

static err_t stop_call(struct client *c, void *arg, struct why *why)
{
    struct cancel_request *s = arg;
    struct client_job job;
    err_t err = client_cancel(c, s->id, s->job, s->save, CLIENT_GRACE_DEFAULT, &job, why);
    if (err)
        return err;
    snprintf(s->reason, sizeof(s->reason), "%s", job.reason);
    client_job_fini(&job);
    return OK;
}

/* If the job has ended meanwhile, the request has no effect, and the stream delivers the last status. */
static void job_stop(struct job_follow *f)
{
    struct cancel_request s = {.job = f->job, .save = !f->how->command};
    struct why why = {0};
    f->stopping = true;
    err_t err = client_request_id(s.id);
    if (!err)
        err = follow_call(f->global, stop_call, &s, &why);
    const char *name = stop_requested == SIGTERM ? "SIGTERM" : "SIGUSR1";
    if (err)
        line_print(f, "received %s, but job %s could not be stopped: %s", name, f->job, why.text);
    else if (f->how->command)
        line_print(f, "received %s; job %s is stopping: %s", name, f->job, s.reason);
    else
        line_print(f, "received %s; job %s is saving a checkpoint and stopping. Run the same command again to continue",
                   name, f->job);
}

/* A batch system that ends a job may end its dtds as well. Then there is nothing to wait for. */
static int64_t wait_limit_ms(const struct job_follow *f)
{
    pid_t holder;
    return f->stopping && !daemon_running(f->global->state_dir, &holder) ? 0 : WAIT_MS;
}

/* ---- the loop over connections ---- */

/* Watches the job over one connection. OK when the job has ended; *ret is its last status. */
static err_t watch_once(struct job_follow *f, struct client_job *ret, struct why *why)
{
    const struct client_stream stream = {
        .metric = on_metric, .status = on_status, .log = streams(f) ? on_log : NULL, .tick = on_tick, .arg = f};
    struct client *c;
    err_t err = client_open(f->global->state_dir, &c, why);
    if (err)
        return err;
    if (f->lost_printed)
        line_print(f, "connected again");
    f->lost_printed = false;
    f->streamed = 0;
    worker_lines_again(&f->lines);
    err = client_watch(c, f->job, &stream, why);
    if (!err)
        err = client_status(c, f->job, ret, why);
    if (!err && !client_job_ended(ret)) { /* the stream ended early: control is exiting */
        client_job_fini(ret);
        err = why_set(why, ERR_CLOSED, "dtd ended the stream");
    }
    client_close(c);
    return err;
}

static void print_connection_lost(struct job_follow *f, const struct why *why)
{
    if (!f->lost_printed)
        line_print(f, "the connection to dtd is lost (%s); reconnecting. The job continues meanwhile", why->text);
    f->lost_printed = true;
}

static int follow_run(struct job_follow *f)
{
    struct client_job last;
    struct why why = {0};
    int64_t since = clock_mono_ms();
    for (;;) {
        if (stop_due(f))
            job_stop(f);
        err_t err = watch_once(f, &last, &why);
        if (!err) {
            int code = f->broken ? output_broken(f) : job_finish(f, &last);
            client_job_fini(&last);
            return code;
        }
        if (f->broken)
            return output_broken(f);
        if (stop_due(f) || (err == ERR_CANCELED && !interrupted && more_ranks(f)))
            continue;
        if (err == ERR_CANCELED || interrupted)
            return job_detach(f);
        if (!worth_retrying(err))
            return command_fail(err, &why);
        catch_interrupt();
        if (!f->lost_printed)
            since = clock_mono_ms();
        print_connection_lost(f, &why);
        int64_t waited_ms = clock_mono_ms() - since;
        if (waited_ms >= wait_limit_ms(f))
            return command_complain(EXIT_RETRY,
                                    "dtd did not answer for %d s. After `dtctl up` the job continues from its "
                                    "checkpoint: dtctl status %s",
                                    (int)(waited_ms / 1000), f->job);
        retry_sleep();
    }
}

int follow_job(struct global *g, const char *job, const struct follow_how *how)
{
    FILE *out = g->format == OUT_TEXT ? stdout : stderr;
    struct job_follow f = {.global = g, .job = job, .how = how, .out = out, .checkpoint_step = -1};
    out_progress_init(&f.progress, out);
    worker_lines_init(&f.lines, out, OUT_TEXT, false);
    f.lines.keep_bar = f.progress.terminal;
    f.lines.silent = !how->output;
    f.lines.files = how->files;
    view_init(&f.view, job);
    catch_interrupt();
    int code = follow_run(&f);
    worker_lines_fini(&f.lines);
    free(f.checkpoint_error);
    return code;
}

int follow_new_job(struct global *g, const char *spec_yaml, const char *parent, const char *name,
                   const struct follow_how *how)
{
    struct submit_request s = {.spec_yaml = spec_yaml, .parent = parent};
    struct why why = {0};
    err_t err = client_request_id(s.id);
    if (!err)
        err = follow_call(g, submit_call, &s, &why);
    if (err)
        return command_fail(err, &why);
    if (g->format != OUT_TEXT) {
        json_t *answer = json_pack("{s:s, s:o, s:s}", "job", s.job, "name", json_of_text(name, strlen(name)),
                                   "state_dir", g->state_dir);
        if (how->detach) {
            err = out_json(answer, true);
            return err ? command_fail(err, NULL) : EXIT_DONE;
        }
        json_decref(answer);
    } else {
        printf("job %s %s is submitted%s\n", s.job, name, how->detach ? "" : "; Ctrl-C leaves it running");
        fflush(stdout);
        if (how->detach)
            printf("next:\n  dtctl status %s\n", s.job);
    }
    return how->detach ? EXIT_DONE : follow_job(g, s.job, how);
}
