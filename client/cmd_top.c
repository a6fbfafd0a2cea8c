/* dtctl top: shows nodes and jobs, updated in place. The loop waits for a key or for the next update; everything that
 * is shown is computed by top_draw from the model. In batch mode the same screens are printed. */
#include "client/client.h"
#include "client/commands.h"
#include "client/follow.h"
#include "client/json.h"
#include "client/top/draw.h"
#include "client/top/fetch.h"
#include "client/top/keys.h"
#include "client/top/terminal.h"
#include "common/base/clock.h"

#include <errno.h>
#include <locale.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct top_args {
    struct global *global;
    const char *job, *user;
    double delay_s;
    bool batch, once;
    int64_t times; /* 0: without end */
};

static const struct argp_option options[] = {
    {"delay", 'd', "SECONDS", 0, "Time between updates. Default: 1", 0},
    {"batch", 'b', 0, 0, "Print the screens instead of drawing them, for files and pipes", 0},
    {"iterations", 'n', "N", 0, "End after N updates", 0},
    {"once", '1', 0, 0, "Print one screen, or with -o json one object, and end", 0},
    {"user", 'u', "USER", 0, "Show only jobs of this user", 0},
    {0}};

static error_t parse(int key, char *arg, struct argp_state *state)
{
    struct top_args *a = state->input;
    char *end;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = a->global;
        return 0;
    case 'd':
        a->delay_s = strtod(arg, &end);
        if (*end || !(a->delay_s >= 0.2 && a->delay_s <= 3600))
            argp_error(state, "--delay %s: expected a number of seconds from 0.2 to 3600", arg);
        return 0;
    case 'b':
        a->batch = true;
        return 0;
    case 'n':
        if (!arg_number(arg, 1 << 30, &a->times) || !a->times)
            argp_error(state, "--iterations %s: expected a number of updates", arg);
        return 0;
    case '1':
        a->once = true;
        return 0;
    case 'u':
        a->user = arg;
        return 0;
    case ARGP_KEY_ARG:
        if (a->job)
            argp_error(state, "expected one JOB");
        a->job = arg;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* ---- batch mode ---- */

static bool output_is_utf8(void)
{
    setlocale(LC_CTYPE, "");
    return terminal_is_utf8();
}

/* Prints the screen without its last line, which names keys, and without empty lines before that. */
static void screen_print(const struct top_model *m, int columns, bool utf8)
{
    struct glyphs c;
    int workers = m->job.known ? m->job.job.n_worker : 0;
    int rows = m->view.screen == TOP_JOB ? workers + 10 : 4 * m->n_nodes + m->n_jobs + 20;
    char *text = malloc((size_t)columns * GLYPHS_BYTES + 1);
    glyphs_init(&c, rows, columns, utf8);
    top_draw(m, &c);
    for (int i = 0; text && i < rows - 1; i++) {
        glyphs_row_text(&c, i, text);
        if (text[0])
            puts(text);
    }
    glyphs_fini(&c);
    free(text);
}

static json_t *json_of_number(double v)
{
    return v < 0 || !isfinite(v) ? json_null() : json_real(v);
}

static json_t *json_of_top_node(const struct top_node *n)
{
    json_t *o = json_pack("{s:o, s:s, s:s*, s:s*}", "name", json_of_text(n->name, strlen(n->name)), "state", n->state,
                          "role", n->role[0] ? n->role : NULL, "health", n->health[0] ? n->health : NULL);
    const struct {
        const char *key;
        int64_t value;
    } numbers[] = {{"slots", n->slots},
                   {"used", n->used},
                   {"cores", n->cores},
                   {"gpus", n->gpus},
                   {"gpus_free", n->gpus_free},
                   {"memory_bytes", n->memory_bytes},
                   {"memory_free_bytes", n->memory_free_bytes}};
    for (size_t i = 0; o && i < sizeof(numbers) / sizeof(numbers[0]); i++)
        if (numbers[i].value >= 0)
            json_object_set_new(o, numbers[i].key, json_integer(numbers[i].value));
    if (o && isfinite(n->load))
        json_object_set_new(o, "load", json_of_number(n->load));
    return o;
}

static int json_print(const struct global *g, const struct top_model *m)
{
    json_t *nodes = json_array(), *jobs = json_array();
    int *shown = calloc((size_t)m->n_jobs + 1, sizeof(*shown));
    int n = shown ? top_jobs_shown(m, shown) : 0;
    for (int i = 0; i < m->n_nodes; i++)
        json_array_append_new(nodes, json_of_top_node(&m->nodes[i]));
    for (int i = 0; i < n; i++)
        json_array_append_new(jobs, json_of_job(&m->jobs[shown[i]]));
    free(shown);
    json_t *o = json_pack("{s:I, s:o, s:o}", "wall_ms", (json_int_t)m->now_ms, "nodes", nodes, "jobs", jobs);
    if (o && m->leader[0])
        json_object_set_new(o, "leader", json_of_text(m->leader, strlen(m->leader)));
    if (o && m->view.screen == TOP_JOB && m->job.known)
        json_object_set_new(o, "job", json_of_job(&m->job.job));
    return command_json(g, o);
}

static int top_print(const struct top_args *a, struct top_model *m, struct top_fetch *f)
{
    const struct timespec pause = {.tv_sec = (time_t)m->view.delay_s,
                                   .tv_nsec = (long)(fmod(m->view.delay_s, 1) * 1e9)};
    bool json = a->global->format != OUT_TEXT, utf8 = output_is_utf8();
    int64_t times = a->once || json ? 1 : a->times;
    const enum top_screen wanted = m->view.screen;
    for (int64_t i = 0; times == 0 || i < times; i++) {
        if (i) {
            putchar('\n');
            nanosleep(&pause, NULL);
        }
        top_fetch(f, m);
        if (m->lost[0] && times == 1)
            return command_complain(EXIT_RETRY, "%s", m->lost);
        if (m->view.screen != wanted)
            return command_complain(EXIT_NOT_FOUND, "%s", m->view.message);
        if (json)
            return json_print(a->global, m);
        screen_print(m, out_is_terminal(stdout) ? out_columns(stdout) : 120, utf8);
        if (fflush(stdout))
            return EXIT_DONE; /* the reader of the output has ended */
    }
    return EXIT_DONE;
}

/* ---- on the terminal ---- */

static void show(const struct top_model *m)
{
    struct glyphs c;
    int rows, columns;
    terminal_size(&rows, &columns);
    glyphs_init(&c, rows, columns, terminal_is_utf8());
    top_draw(m, &c);
    terminal_show(&c);
    glyphs_fini(&c);
}

static void update(struct top_model *m, struct top_fetch *f)
{
    top_fetch(f, m);
    terminal_catch();
}

/* Handles all keys that were pressed. False: quit. */
static bool handle_keys(struct top_model *m, struct top_fetch *f)
{
    int rows, columns, key;
    terminal_size(&rows, &columns);
    while ((key = terminal_key()) >= 0) {
        enum top_action action = key ? top_key(m, key, rows / 2) : TOP_DRAW;
        if (action == TOP_QUIT)
            return false;
        if (action == TOP_CANCEL_JOB || action == TOP_SAVE_CANCEL)
            top_fetch_cancel(f, m, action == TOP_SAVE_CANCEL);
        if (action != TOP_DRAW)
            update(m, f);
        show(m);
    }
    return true;
}

/* Waits for a key, a signal or the next update. False: the terminal is gone. */
static bool wait_until(int64_t due_ms)
{
    struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
    int64_t left = due_ms - clock_mono_ms();
    int n = poll(&in, 1, left > 0 ? (int)left : 0);
    return n <= 0 || !(in.revents & (POLLHUP | POLLERR | POLLNVAL));
}

static int top_run(const struct top_args *a, struct top_model *m, struct top_fetch *f)
{
    struct why why = {0};
    err_t err = terminal_start(&why);
    if (err)
        return command_fail(err, &why);
    for (int64_t i = 0; !terminal_signal() && (!a->times || i < a->times); i++) {
        update(m, f);
        int64_t began = clock_mono_ms();
        show(m);
        bool stay = true;
        for (int64_t due = began; stay && !terminal_signal() && clock_mono_ms() < due + 1;) {
            due = began + (int64_t)(m->view.delay_s * 1000);
            stay = wait_until(due) && handle_keys(m, f);
        }
        if (!stay)
            break;
    }
    terminal_stop();
    if (terminal_signal()) {
        signal(terminal_signal(), SIG_DFL);
        raise(terminal_signal());
    }
    return EXIT_DONE;
}

int cmd_top(struct global *g, int argc, char **argv)
{
    static const struct argp argp = {
        .options = options,
        .parser = parse,
        .children = global_children,
        .args_doc = "[JOB]",
        .doc = "Shows nodes and jobs, or one job with its ranks, and updates the screen until q is pressed. The key ? "
               "lists the keys. With -b, or if the output is no terminal, prints the screens one after another."
               "\vExamples:\n  dtctl top\n  dtctl top 4 -d 5\n  dtctl top --once -o json | jq .nodes"};
    struct top_args args = {.global = g, .delay_s = 1};
    struct why why = {0};
    char number[32];
    command_parse(&argp, argc, argv, &args);
    err_t err = args.job ? follow_name(g, &args.job, number, &why) : OK;
    if (err)
        return command_fail(err, &why);
    struct top_model *m = calloc(1, sizeof(*m));
    if (!m)
        return command_fail(ERR_NOMEM, NULL);
    struct top_fetch fetch = {.dir = g->state_dir};
    m->view.delay_s = args.delay_s;
    m->view.screen = args.job ? TOP_JOB : TOP_OVERVIEW;
    snprintf(m->view.job, sizeof(m->view.job), "%.31s", args.job ? args.job : "");
    snprintf(m->view.user, sizeof(m->view.user), "%.63s", args.user ? args.user : "");
    bool print = args.batch || args.once || g->format != OUT_TEXT || !isatty(STDOUT_FILENO) || !isatty(STDIN_FILENO);
    int code = print ? top_print(&args, m, &fetch) : top_run(&args, m, &fetch);
    top_fetch_fini(&fetch);
    top_model_fini(m);
    free(m);
    return code;
}
