/* Every screen has a title line, a body and two lines at the bottom: a sentence (what the selected job waits for, or
 * that dtd does not answer), and the keys, or the question that a key has asked.
 *
 * Tables drop columns where a terminal is narrow, those with the highest `late` first, and give what is left to one
 * column. A value that is unknown is "-". */
#include "client/top/draw.h"

#include "client/out.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#define CELL 256 /* bytes of a cell's text */

/* ---- tables ---- */

struct top_column {
    const char *title;
    int width;
    bool right, flexible; /* flexible: gets the columns that are left; one in a table */
    int late;             /* 0: always shown */
};

struct top_table {
    const struct top_column *column;
    int n;
    int width[20]; /* 0: not shown */
};

static int sum_widths(const struct top_table *t, int late)
{
    int sum = -1;
    for (int i = 0; i < t->n; i++)
        if (t->column[i].late <= late && t->width[i] >= 0)
            sum += t->column[i].width + 1;
    return sum;
}

/* Columns whose width is -1 stay away. */
static void table_fit(struct top_table *t, int columns)
{
    int late = 9;
    while (late > 0 && sum_widths(t, late) > columns)
        late--;
    int rest = columns - sum_widths(t, late);
    for (int i = 0; i < t->n; i++) {
        bool shown = t->width[i] >= 0 && t->column[i].late <= late;
        t->width[i] = shown ? t->column[i].width + (t->column[i].flexible ? rest : 0) : 0;
        t->width[i] = t->width[i] < 0 ? 0 : t->width[i];
    }
}

static int column_start(const struct top_table *t, int column)
{
    int at = 0;
    for (int i = 0; i < column; i++)
        at += t->width[i] ? t->width[i] + 1 : 0;
    return at;
}

static void put_cell(struct glyphs *c, const struct top_table *t, int row, int column, enum glyphs_style style,
                     const char *text)
{
    int at = column_start(t, column), width = t->width[column];
    if (width && t->column[column].right)
        glyphs_put_right(c, row, at, width, style, text);
    else if (width)
        glyphs_put(c, row, at, width, style, text);
}

/* `sorted`: the column that the rows are sorted by; -1: none. */
static void put_titles(struct glyphs *c, const struct top_table *t, int row, int sorted)
{
    char text[64];
    for (int i = 0; i < t->n; i++) {
        snprintf(text, sizeof(text), "%s%s", t->column[i].title, i == sorted ? "*" : "");
        put_cell(c, t, row, i, STYLE_TITLE, text);
    }
    glyphs_row_style(c, row, STYLE_TITLE);
}

/* ---- numbers ---- */

static const char *ratio(int a, int b, char ret[CELL])
{
    if (b < 0)
        return "-";
    if (a < 0)
        snprintf(ret, CELL, "-/%d", b);
    else
        snprintf(ret, CELL, "%d/%d", a, b);
    return ret;
}

static const char *real(double v, const char *fmt, char ret[CELL])
{
    if (!isfinite(v))
        return "-";
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(ret, CELL, fmt, v);
#pragma GCC diagnostic pop
    return ret;
}

/* "1.2G": shorter than out_bytes. */
static const char *bytes(double v, char ret[CELL])
{
    static const char units[] = "BKMGTP";
    int k = 0;
    if (!isfinite(v) || v < 0)
        return "-";
    for (; v >= 999.5 && units[k + 1]; k++)
        v /= 1024;
    snprintf(ret, CELL, v < 9.95 && k ? "%.1f%c" : "%.0f%c", v, units[k]);
    return ret;
}

/* Seconds of a step at the present speed; NAN: unknown. */
static double step_seconds(const struct client_job *j)
{
    return j->has_last && j->last.step_s > 0 ? j->last.step_s : NAN;
}

/* The mean of the newest steps, where they are known: single steps vary. */
static double mean_seconds(const struct top_job *j)
{
    int n = j->step_s.n < 50 ? j->step_s.n : 50;
    double sum = 0;
    for (int i = j->step_s.n - n; i < j->step_s.n; i++)
        sum += j->step_s.v[i];
    return n ? sum / n : step_seconds(&j->job);
}

static double left_seconds(const struct client_job *j, double step_s)
{
    bool runs = strcmp(j->state, "running") == 0 && j->steps > 0;
    return runs ? (double)(j->steps - j->step) * step_s : NAN;
}

static double eta_seconds(const struct client_job *j)
{
    return left_seconds(j, step_seconds(j));
}

static double progress_of(const struct client_job *j)
{
    return j->steps > 0 ? (double)j->step / (double)j->steps : NAN;
}

static enum glyphs_style state_style(const char *state)
{
    static const struct {
        const char *state;
        enum glyphs_style style;
    } styles[] = {{"running", STYLE_GOOD}, {"done", STYLE_GOOD},   {"up", STYLE_GOOD},         {"failed", STYLE_BAD},
                  {"lost", STYLE_BAD},     {"away", STYLE_WARN},   {"recovering", STYLE_WARN}, {"stopping", STYLE_WARN},
                  {"pending", STYLE_WARN}, {"drained", STYLE_WARN}};
    for (size_t i = 0; i < sizeof(styles) / sizeof(styles[0]); i++)
        if (strcmp(styles[i].state, state) == 0)
            return styles[i].style;
    return STYLE_PLAIN;
}

/* ---- the lines at top and bottom ---- */

static void clock_text(int64_t wall_ms, char ret[16])
{
    time_t t = (time_t)(wall_ms / 1000);
    struct tm tm;
    ret[0] = '\0';
    if (localtime_r(&t, &tm))
        strftime(ret, 16, "%H:%M:%S", &tm);
}

static void draw_clock(const struct top_model *m, struct glyphs *c)
{
    char text[16];
    clock_text(m->now_ms, text);
    glyphs_put_right(c, 0, c->columns - 8, 8, STYLE_BOLD, text);
}

static const char *keys_of(enum top_screen screen)
{
    switch (screen) {
    case TOP_OVERVIEW:
        return "?help Enter:open s:sort /:filter u:user e:events l:logs k:cancel q:quit";
    case TOP_JOB:
        return "?help Esc:back s:sort m:map e:events l:logs k:cancel d:delay q:quit";
    case TOP_EVENTS:
    case TOP_LOGS:
        return "?help Esc:back Up,Down,PgUp,PgDn:scroll q:quit";
    case TOP_HELP:
        break;
    }
    return "Any key: back";
}

static const char *prompt_of(const struct top_view *v, char ret[CELL])
{
    static const char *const words[] = {
        [TOP_FILTER] = "filter", [TOP_USER] = "user", [TOP_DELAY] = "seconds between updates"};
    if (v->prompt == TOP_CANCEL)
        snprintf(ret, CELL, "cancel job %s? y: yes, s: save a checkpoint first, any other key: no", v->job);
    else
        snprintf(ret, CELL, "%s: %s_", words[v->prompt], v->input);
    return ret;
}

static void draw_bottom(const struct top_model *m, struct glyphs *c, const char *sentence)
{
    char text[CELL + 64];
    const struct top_view *v = &m->view;
    int row = c->rows - 2;
    if (m->lost[0]) {
        snprintf(text, sizeof(text), "! no answer from dtd, trying again: %s", m->lost);
        glyphs_put(c, row, 0, c->columns, STYLE_BAD, text);
    } else if (v->message[0]) {
        glyphs_put(c, row, 0, c->columns, STYLE_BOLD, v->message);
    } else {
        glyphs_put(c, row, 0, c->columns, STYLE_PLAIN, sentence);
    }
    if (v->prompt)
        glyphs_put(c, row + 1, 0, c->columns, STYLE_BOLD, prompt_of(v, text));
    else
        glyphs_put(c, row + 1, 0, c->columns, STYLE_DIM, keys_of(v->screen));
}

/* First row that is shown, so that the cursor is. */
static int first_shown(int cursor, int n, int room)
{
    int first = cursor - room / 2;
    first = first > n - room ? n - room : first;
    return first < 0 ? 0 : first;
}

/* ---- the overview: nodes ---- */

enum { NODE_NAME, NODE_STATE, NODE_SLOTS, NODE_CORES, NODE_LOAD, NODE_MEMORY, NODE_GPUS, NODE_HEALTH };
static const struct top_column node_columns[] = {
    [NODE_NAME] = {"NODE", 12},
    [NODE_STATE] = {"STATE", 8},
    [NODE_SLOTS] = {"SLOTS", 7, true},
    [NODE_CORES] = {"CORES", 5, true, false, 3},
    [NODE_LOAD] = {"LOAD", 5, true, false, 2},
    [NODE_MEMORY] = {"MEMORY", 11, true, false, 2},
    [NODE_GPUS] = {"GPUS", 5, true, false, 1},
    [NODE_HEALTH] = {"HEALTH", 6, false, true, 0},
};

static void draw_node(const struct top_node *n, struct glyphs *c, const struct top_table *t, int row)
{
    char text[CELL], used[CELL], whole[CELL];
    bool leads = strcmp(n->role, "leader") == 0;
    snprintf(text, sizeof(text), "%s%s", n->name, leads ? " *" : "");
    put_cell(c, t, row, NODE_NAME, STYLE_PLAIN, text);
    put_cell(c, t, row, NODE_STATE, state_style(n->state), n->state);
    put_cell(c, t, row, NODE_SLOTS, STYLE_PLAIN, ratio(n->used, n->slots, text));
    put_cell(c, t, row, NODE_CORES, STYLE_PLAIN, real(n->cores < 0 ? NAN : n->cores, "%.0f", text));
    put_cell(c, t, row, NODE_LOAD, STYLE_PLAIN, real(n->load, "%.1f", text));
    bool memory = n->memory_bytes >= 0 && n->memory_free_bytes >= 0;
    snprintf(text, sizeof(text), "%.20s/%.20s", bytes((double)(n->memory_bytes - n->memory_free_bytes), used),
             bytes((double)n->memory_bytes, whole));
    put_cell(c, t, row, NODE_MEMORY, STYLE_PLAIN, memory ? text : "-");
    put_cell(c, t, row, NODE_GPUS, STYLE_PLAIN, ratio(n->gpus_free < 0 ? -1 : n->gpus - n->gpus_free, n->gpus, text));
    bool up = strcmp(n->state, "up") == 0;
    put_cell(c, t, row, NODE_HEALTH, n->health[0] ? STYLE_BAD : STYLE_GOOD, n->health[0] ? n->health : up ? "ok" : "-");
}

/* Returns the row behind. */
static int draw_nodes(const struct top_model *m, struct glyphs *c, int row, int room)
{
    struct top_table t = {.column = node_columns, .n = sizeof(node_columns) / sizeof(node_columns[0])};
    table_fit(&t, c->columns);
    put_titles(c, &t, row++, -1);
    int shown = m->n_nodes > room ? room - 1 : m->n_nodes;
    for (int i = 0; i < shown; i++)
        draw_node(&m->nodes[i], c, &t, row++);
    if (shown < m->n_nodes) {
        int up = 0;
        for (int i = shown; i < m->n_nodes; i++)
            up += strcmp(m->nodes[i].state, "up") == 0 && !m->nodes[i].health[0];
        glyphs_format(c, row++, 0, c->columns, STYLE_PLAIN, "and %d more, %d of them up and healthy",
                      m->n_nodes - shown, up);
    }
    return row;
}

/* ---- the overview: jobs ---- */

enum {
    JOB_ID,
    JOB_NAME,
    JOB_USER,
    JOB_STATE,
    JOB_PROGRESS,
    JOB_PERCENT,
    JOB_LEFT,
    JOB_LOSS,
    JOB_SPEED,
    JOB_WORKERS,
    JOB_REASON
};
static const struct top_column job_columns[] = {
    [JOB_ID] = {"JOB", 5, true},
    [JOB_NAME] = {"NAME", 10, false, true},
    [JOB_USER] = {"USER", 8, false, false, 4},
    [JOB_STATE] = {"STATE", 10},
    [JOB_PROGRESS] = {"PROGRESS", 9, false, false, 1},
    [JOB_PERCENT] = {"%", 4, true},
    [JOB_LEFT] = {"LEFT", 7, true, false, 2},
    [JOB_LOSS] = {"LOSS", 8, true, false, 3},
    [JOB_SPEED] = {"TOK/S", 7, true, false, 3},
    [JOB_WORKERS] = {"WORKERS", 7, true, false, 5},
    [JOB_REASON] = {"REASON", 40, false, false, 6},
};
static const int job_sort_columns[] = {JOB_ID, JOB_STATE, JOB_PERCENT, JOB_LEFT, JOB_SPEED, JOB_USER, JOB_NAME};
const int top_job_sorts = sizeof(job_sort_columns) / sizeof(job_sort_columns[0]);

static bool contains(const char *text, const char *part)
{
    return strcasestr(text, part) != NULL;
}

static bool job_shown(const struct top_view *v, const struct client_job *j)
{
    bool found = !v->filter[0] || contains(j->name, v->filter) || contains(j->user, v->filter) ||
                 contains(j->state, v->filter) || contains(j->job, v->filter);
    return found && (!v->user[0] || strcmp(j->user, v->user) == 0);
}

/* Numbers descend, and unknown ones are last. */
static int compare_reals(double a, double b)
{
    if (isnan(a) || isnan(b))
        return isnan(a) - isnan(b);
    return (a < b) - (a > b);
}

static int compare_jobs(const void *x, const void *y, void *arg)
{
    const struct top_model *m = arg;
    const struct client_job *a = &m->jobs[*(const int *)x], *b = &m->jobs[*(const int *)y];
    int order = 0;
    switch (job_sort_columns[m->view.job_sort % top_job_sorts]) {
    case JOB_STATE:
        order = strcmp(a->state, b->state);
        break;
    case JOB_PERCENT:
        order = compare_reals(progress_of(a), progress_of(b));
        break;
    case JOB_LEFT:
        order = compare_reals(eta_seconds(b), eta_seconds(a));
        order = isnan(eta_seconds(a)) != isnan(eta_seconds(b)) ? -order : order;
        break;
    case JOB_SPEED:
        order = compare_reals(a->has_last ? a->last.tokens_per_s : NAN, b->has_last ? b->last.tokens_per_s : NAN);
        break;
    case JOB_USER:
        order = strcmp(a->user, b->user);
        break;
    case JOB_NAME:
        order = strcmp(a->name, b->name);
        break;
    }
    return order ? order : *(const int *)y - *(const int *)x; /* the newest first */
}

int top_jobs_shown(const struct top_model *m, int *ret)
{
    int n = 0;
    for (int i = 0; i < m->n_jobs; i++)
        if (job_shown(&m->view, &m->jobs[i]))
            ret[n++] = i;
    if (n)
        qsort_r(ret, (size_t)n, sizeof(*ret), compare_jobs, (void *)m);
    return n;
}

static void draw_job_row(const struct client_job *j, struct glyphs *c, const struct top_table *t, int row)
{
    char text[CELL], number[OUT_NUMBER];
    double left = eta_seconds(j);
    put_cell(c, t, row, JOB_ID, STYLE_PLAIN, j->job);
    put_cell(c, t, row, JOB_NAME, STYLE_BOLD, j->name);
    put_cell(c, t, row, JOB_USER, STYLE_PLAIN, j->user);
    put_cell(c, t, row, JOB_STATE, state_style(j->state), j->state);
    if (t->width[JOB_PROGRESS] && isfinite(progress_of(j)))
        glyphs_bar(c, row, column_start(t, JOB_PROGRESS), t->width[JOB_PROGRESS], STYLE_GOOD, progress_of(j));
    put_cell(c, t, row, JOB_PERCENT, STYLE_PLAIN, real(100 * progress_of(j), "%.0f%%", text));
    put_cell(c, t, row, JOB_LEFT, STYLE_PLAIN, isnan(left) ? "-" : out_duration(left, number));
    put_cell(c, t, row, JOB_LOSS, STYLE_PLAIN, j->has_last ? real(j->last.loss, "%.4f", text) : "-");
    put_cell(c, t, row, JOB_SPEED, STYLE_PLAIN, j->has_last ? out_count(j->last.tokens_per_s, number) : "-");
    put_cell(c, t, row, JOB_WORKERS, STYLE_PLAIN, ratio(j->workers, j->max_workers ? j->max_workers : -1, text));
    put_cell(c, t, row, JOB_REASON, STYLE_PLAIN, j->reason);
}

static void draw_jobs(const struct top_model *m, struct glyphs *c, int row, int room, const struct client_job **ret)
{
    struct top_table t = {.column = job_columns, .n = sizeof(job_columns) / sizeof(job_columns[0])};
    int *shown = calloc((size_t)m->n_jobs + 1, sizeof(*shown)), cursor = 0;
    table_fit(&t, c->columns);
    put_titles(c, &t, row++, job_sort_columns[m->view.job_sort % top_job_sorts]);
    int n = shown ? top_jobs_shown(m, shown) : 0;
    for (int i = 0; i < n; i++)
        cursor = strcmp(m->jobs[shown[i]].job, m->view.job) == 0 ? i : cursor;
    int first = first_shown(cursor, n, room - 1);
    for (int i = first; i < n && i < first + room - 1; i++, row++) {
        draw_job_row(&m->jobs[shown[i]], c, &t, row);
        if (i == cursor)
            glyphs_row_style(c, row, STYLE_CURSOR);
    }
    if (n == 0)
        glyphs_put(c, row, 0, c->columns, STYLE_PLAIN, m->n_jobs ? "no job matches" : "no jobs");
    *ret = n ? &m->jobs[shown[cursor]] : NULL;
    free(shown);
}

static void describe_filter(const struct top_view *v, char *ret, size_t size)
{
    snprintf(ret, size, "%s%s%s%s", v->filter[0] ? "  filter: " : "", v->filter, v->user[0] ? "  user: " : "", v->user);
}

static void draw_overview(const struct top_model *m, struct glyphs *c)
{
    char sentence[600] = "", filter[200], head[400];
    int up = 0, live = 0, row = 1;
    const struct client_job *selected;
    for (int i = 0; i < m->n_nodes; i++)
        up += strcmp(m->nodes[i].state, "up") == 0;
    for (int i = 0; i < m->n_jobs; i++)
        live += !client_job_ended(&m->jobs[i]);
    describe_filter(&m->view, filter, sizeof(filter));
    snprintf(head, sizeof(head), "dtd  nodes up %d/%d  jobs %d, %d not ended%s%s%s", up, m->n_nodes, m->n_jobs, live,
             m->leader[0] ? "  leader " : "", m->leader, filter);
    glyphs_put(c, 0, 0, c->columns - 9, STYLE_BOLD, head);
    if (c->rows >= 10)
        row = draw_nodes(m, c, row, (c->rows - 6) / 3) + (c->rows >= 14);
    draw_jobs(m, c, row, c->rows - 2 - row, &selected);
    if (selected)
        snprintf(sentence, sizeof(sentence), "job %s: %s", selected->job,
                 selected->reason[0] ? selected->reason : selected->state);
    draw_bottom(m, c, sentence);
}

/* ---- a job: head ---- */

void top_ledger(const struct client_job *j, double step_s, struct top_ledger *ret)
{
    struct top_ledger l = {0};
    int64_t end = j->ended_ms ? j->ended_ms : j->now_ms, began = j->started_ms ? j->started_ms : end;
    double *s = l.seconds;
    s[TOP_QUEUE] = (double)(began - j->submitted_ms) / 1e3;
    if (j->start.epoch && isfinite(j->start.recover_ms))
        s[TOP_START] = j->start.recover_ms / 1e3 - s[TOP_QUEUE];
    else if (j->started_ms && j->step == 0)
        s[TOP_START] = (double)(end - began) / 1e3;
    for (int i = 0; i < j->n_incident; i++) {
        const struct incident *x = &j->incident[i];
        bool last = i == j->n_incident - 1, waits = last && strcmp(j->state, "recovering") == 0;
        s[TOP_DETECT] += isfinite(x->detect_ms) ? x->detect_ms / 1e3 : 0;
        if (isfinite(x->recover_ms))
            s[TOP_RESTART] += x->recover_ms / 1e3;
        else if (waits)
            s[TOP_RESTART] += (double)(end - x->wall_ms) / 1e3;
        if (x->lost_steps > 0 && isfinite(step_s))
            s[TOP_REPEAT] += (double)x->lost_steps * step_s;
    }
    l.total = (double)(end - j->submitted_ms) / 1e3;
    double rest = l.total;
    for (int i = 0; i < TOP_TIMES; i++) {
        s[i] = s[i] > 0 ? s[i] : 0;
        rest -= s[i];
    }
    s[TOP_WORK] = rest > 0 ? rest : 0;
    *ret = l;
}

static const struct {
    char letter;
    const char *word;
    enum glyphs_style style;
} times[TOP_TIMES] = {
    [TOP_QUEUE] = {'q', "queue", STYLE_WAIT},   [TOP_START] = {'s', "start", STYLE_START},
    [TOP_WORK] = {'=', "work", STYLE_GOOD},     [TOP_REPEAT] = {'r', "repeat", STYLE_REPEAT},
    [TOP_DETECT] = {'d', "detect", STYLE_WARN}, [TOP_RESTART] = {'x', "restart", STYLE_BAD},
};

static void draw_ledger(const struct top_model *m, struct glyphs *c, int row)
{
    struct top_ledger l;
    const struct client_job *j = &m->job.job;
    top_ledger(j, mean_seconds(&m->job), &l);
    int width = c->columns / 3, at = 0;
    bool words = c->columns >= 120;
    double ran = l.total - l.seconds[TOP_QUEUE], sum = 0;
    if (!(l.total > 0))
        return;
    for (int i = 0; i < TOP_TIMES; i++) {
        const char letter[2] = {times[i].letter, '\0'};
        sum += l.seconds[i];
        int until = (int)lround(sum / l.total * width);
        for (; at < until; at++)
            glyphs_put(c, row, 6 + at, 1, times[i].style, letter);
    }
    glyphs_put(c, row, 0, 6, STYLE_PLAIN, "time [");
    at = glyphs_put(c, row, 6 + width, 1, STYLE_PLAIN, "]");
    if (ran > 0)
        at = glyphs_format(c, row, at, 20, STYLE_BOLD, " ETTR %.1f%%", 100 * l.seconds[TOP_WORK] / ran);
    for (int i = 0; i < TOP_TIMES; i++)
        if (l.seconds[i] / l.total >= 0.005)
            at = glyphs_format(c, row, at, 40, times[i].style, " %c%s%s %.0f%%", times[i].letter, words ? ":" : "",
                               words ? times[i].word : "", 100 * l.seconds[i] / l.total);
}

static int ranks_up(const struct client_job *j)
{
    int up = 0;
    for (int i = 0; i < j->n_worker; i++)
        up += strcmp(j->worker[i].state, "running") == 0;
    return up;
}

static void draw_job_title(const struct top_model *m, struct glyphs *c)
{
    char elapsed[OUT_NUMBER], left[OUT_NUMBER], text[600];
    const struct client_job *j = &m->job.job;
    int64_t end = j->ended_ms ? j->ended_ms : j->now_ms;
    double eta = left_seconds(j, mean_seconds(&m->job));
    snprintf(text, sizeof(text), "job %s %.60s  %s%s%s  epoch %llu  ranks %d/%d  %s%s%s", j->job, j->name, j->state,
             j->user[0] ? "  " : "", j->user, (unsigned long long)j->epoch, ranks_up(j), j->n_worker,
             out_duration((double)(end - j->submitted_ms) / 1e3, elapsed), isnan(eta) ? "" : ", left ",
             isnan(eta) ? "" : out_duration(eta, left));
    glyphs_put(c, 0, 0, c->columns - 9, STYLE_BOLD, text);
}

static void draw_steps(const struct top_model *m, struct glyphs *c, int row)
{
    char number[OUT_NUMBER];
    const struct client_job *j = &m->job.job;
    double share = progress_of(j);
    int at = glyphs_format(c, row, 0, 40, STYLE_PLAIN, "step %lld/%lld ", (long long)j->step, (long long)j->steps);
    if (!isnan(share)) {
        glyphs_bar(c, row, at, 12, STYLE_GOOD, share);
        at = glyphs_format(c, row, at + 12, 8, STYLE_PLAIN, " %.0f%%", 100 * share);
    }
    if (!j->has_last)
        return;
    at = glyphs_format(c, row, at, 30, STYLE_BOLD, "  %s tok/s", out_count(j->last.tokens_per_s, number));
    if (isfinite(j->last.mfu))
        at = glyphs_format(c, row, at, 16, STYLE_PLAIN, "  MFU %.1f%%", 100 * j->last.mfu);
    if (j->last_age_ms >= 0 && !client_job_ended(j))
        glyphs_format(c, row, at, 40, STYLE_PLAIN, "  last step %s ago",
                      out_duration((double)j->last_age_ms / 1e3, number));
}

/* What a failure now would cost. */
static void draw_checkpoint(const struct top_model *m, struct glyphs *c, int row)
{
    char age[OUT_NUMBER], cost[OUT_NUMBER];
    const struct client_job *j = &m->job.job;
    int64_t saved = j->checkpoint_step < 0 ? 0 : j->checkpoint_step, risk = j->step - saved;
    int at = 0;
    if (j->checkpoint_step < 0)
        at = glyphs_put(c, row, 0, c->columns, STYLE_WARN, "checkpoint: none");
    else
        at = glyphs_format(c, row, 0, c->columns, STYLE_PLAIN, "checkpoint: step %lld", (long long)saved);
    if (j->checkpoint_step >= 0 && j->saved_age_ms >= 0)
        at = glyphs_format(c, row, at, 30, STYLE_PLAIN, ", %s ago", out_duration((double)j->saved_age_ms / 1e3, age));
    if (risk > 0 && !client_job_ended(j))
        at = glyphs_format(c, row, at, 60, STYLE_PLAIN, "; at risk: %lld steps, %s", (long long)risk,
                           out_duration((double)risk * mean_seconds(&m->job), cost));
    if (j->checkpoint_error[0])
        glyphs_format(c, row, at, c->columns, STYLE_BAD, "; FAILED: %s", j->checkpoint_error);
}

static void draw_series(const struct top_series *s, struct glyphs *c, int row, const char *name, const char *fmt)
{
    double low = INFINITY, high = -INFINITY;
    char text[CELL];
    int width = c->columns - 36, shown = s->n < width ? s->n : width;
    for (int i = s->n - (shown > 0 ? shown : 0); i < s->n; i++) {
        low = s->v[i] < low ? s->v[i] : low;
        high = s->v[i] > high ? s->v[i] : high;
    }
    glyphs_put(c, row, 0, 6, STYLE_PLAIN, name);
    glyphs_put_right(c, row, 6, 9, STYLE_BOLD, s->n ? real(s->v[s->n - 1], fmt, text) : "-");
    if (!isfinite(low) || width < 1)
        return;
    glyphs_sparkline(c, row, 16, width, STYLE_GOOD, s->v, s->n, low, high);
    char a[CELL], b[CELL];
    snprintf(text, sizeof(text), "%.30s to %.30s", real(low, fmt, a), real(high, fmt, b));
    glyphs_put_right(c, row, c->columns - 19, 19, STYLE_DIM, text);
}

/* ---- a job: its ranks ---- */

enum {
    RANK_RANK,
    RANK_MARK,
    RANK_NODE,
    RANK_STATE,
    RANK_STEP,
    RANK_COMPUTE,
    RANK_WAIT,
    RANK_CPU,
    RANK_MEMORY,
    RANK_GPU,
    RANK_GPU_MEMORY,
    RANK_CELSIUS,
    RANK_WATTS,
    RANK_NOTE
};
static const struct top_column rank_columns[] = {
    [RANK_RANK] = {"RANK", 5, true},
    [RANK_MARK] = {"!", 1},
    [RANK_NODE] = {"NODE", 10},
    [RANK_STATE] = {"STATE", 8},
    [RANK_STEP] = {"STEP_S", 7, true, false, 1},
    [RANK_COMPUTE] = {"COMP_S", 7, true, false, 2},
    [RANK_WAIT] = {"WAIT%", 6, true, false, 1},
    [RANK_CPU] = {"CPU", 5, true, false, 3},
    [RANK_MEMORY] = {"MEM", 6, true, false, 3},
    [RANK_GPU] = {"GPU%", 5, true, false, 2},
    [RANK_GPU_MEMORY] = {"GMEM", 6, true, false, 4},
    [RANK_CELSIUS] = {"C", 4, true, false, 5},
    [RANK_WATTS] = {"W", 5, true, false, 5},
    [RANK_NOTE] = {"", 1, false, true, 0},
};
static const int rank_sort_columns[] = {RANK_RANK, RANK_STEP, RANK_COMPUTE, RANK_WAIT, RANK_CPU, RANK_MEMORY, RANK_GPU};
const int top_rank_sorts = sizeof(rank_sort_columns) / sizeof(rank_sort_columns[0]);

static double use_of(const struct top_job *j, enum top_use use, int rank)
{
    return j->usage.value[use] && rank < j->usage.ranks ? j->usage.value[use][rank] : NAN;
}

/* Any column of numbers. */
static double rank_value(const struct top_job *j, int column, int rank)
{
    switch (column) {
    case RANK_STEP:
        return use_of(j, TOP_STEP_S, rank);
    case RANK_COMPUTE:
        return use_of(j, TOP_COMPUTE_S, rank);
    case RANK_WAIT:
        return 100 * use_of(j, TOP_COMM_S, rank) / use_of(j, TOP_STEP_S, rank);
    case RANK_CPU:
        return use_of(j, TOP_CPU, rank);
    case RANK_MEMORY:
        return use_of(j, TOP_RSS, rank);
    case RANK_GPU:
        return 100 * use_of(j, TOP_GPU, rank);
    case RANK_GPU_MEMORY:
        return use_of(j, TOP_GPU_BYTES, rank);
    case RANK_CELSIUS:
        return use_of(j, TOP_CELSIUS, rank);
    case RANK_WATTS:
        return use_of(j, TOP_WATTS, rank);
    }
    return NAN;
}

static const char *rank_text(int column, double v, char ret[CELL])
{
    static const char *const formats[] = {
        [RANK_STEP] = "%.3f", [RANK_COMPUTE] = "%.3f", [RANK_WAIT] = "%.0f", [RANK_CPU] = "%.1f",
        [RANK_GPU] = "%.0f",  [RANK_CELSIUS] = "%.0f", [RANK_WATTS] = "%.0f"};
    if (column == RANK_MEMORY || column == RANK_GPU_MEMORY)
        return bytes(v, ret);
    return real(v, formats[column], ret);
}

static const struct client_straggler *slow_of(const struct top_job *j, int rank)
{
    for (int i = 0; i < j->job.n_straggler; i++)
        if (j->job.straggler[i].rank == rank)
            return &j->job.straggler[i];
    return NULL;
}

static int compare_ranks(const void *x, const void *y, void *arg)
{
    const struct top_model *m = arg;
    int a = *(const int *)x, b = *(const int *)y, column = rank_sort_columns[m->view.rank_sort % top_rank_sorts];
    int order = column == RANK_RANK ? 0 : compare_reals(rank_value(&m->job, column, a), rank_value(&m->job, column, b));
    return order ? order : a - b;
}

int top_ranks_shown(const struct top_model *m, int *ret)
{
    int n = m->job.known ? m->job.job.n_worker : 0;
    for (int i = 0; i < n; i++)
        ret[i] = i;
    if (n)
        qsort_r(ret, (size_t)n, sizeof(*ret), compare_ranks, (void *)m);
    return n;
}

static void draw_rank(const struct top_model *m, struct glyphs *c, const struct top_table *t, int row, int rank)
{
    char text[CELL];
    const struct client_worker *w = &m->job.job.worker[rank];
    const struct client_straggler *slow = slow_of(&m->job, rank);
    snprintf(text, sizeof(text), "%d", w->rank);
    put_cell(c, t, row, RANK_RANK, STYLE_PLAIN, text);
    put_cell(c, t, row, RANK_MARK, STYLE_BAD, slow ? "!" : "");
    put_cell(c, t, row, RANK_NODE, STYLE_PLAIN, w->node);
    put_cell(c, t, row, RANK_STATE, state_style(w->state), w->state);
    for (int i = RANK_STEP; i <= RANK_WATTS; i++)
        put_cell(c, t, row, i, STYLE_PLAIN, rank_text(i, rank_value(&m->job, i, rank), text));
    if (slow) {
        snprintf(text, sizeof(text), "slow x%.2f", slow->ratio);
        put_cell(c, t, row, RANK_NOTE, STYLE_BAD, text);
    } else if (w->exit_signal > 0) {
        snprintf(text, sizeof(text), "signal %d", w->exit_signal);
        put_cell(c, t, row, RANK_NOTE, STYLE_BAD, text);
    } else if (w->exit_status > 0) {
        snprintf(text, sizeof(text), "exit %d", w->exit_status);
        put_cell(c, t, row, RANK_NOTE, STYLE_BAD, text);
    }
}

/* Columns of GPUs are there if a rank has one. */
static void hide_columns(const struct top_job *j, struct top_table *t)
{
    for (int i = RANK_GPU; i <= RANK_WATTS; i++) {
        bool any = false;
        for (int r = 0; r < j->usage.ranks && !any; r++)
            any = isfinite(rank_value(j, i, r));
        t->width[i] = any ? 0 : -1;
    }
}

static void draw_ranks(const struct top_model *m, struct glyphs *c, int row, int room)
{
    struct top_table t = {.column = rank_columns, .n = sizeof(rank_columns) / sizeof(rank_columns[0])};
    int *shown = calloc((size_t)m->job.job.n_worker + 1, sizeof(*shown)), cursor = 0;
    hide_columns(&m->job, &t);
    table_fit(&t, c->columns);
    put_titles(c, &t, row++, rank_sort_columns[m->view.rank_sort % top_rank_sorts]);
    int n = shown ? top_ranks_shown(m, shown) : 0;
    for (int i = 0; i < n; i++)
        cursor = shown[i] == m->view.rank ? i : cursor;
    int first = first_shown(cursor, n, room - 1);
    for (int i = first; i < n && i < first + room - 1; i++, row++) {
        draw_rank(m, c, &t, row, shown[i]);
        if (i == cursor)
            glyphs_row_style(c, row, STYLE_CURSOR);
    }
    free(shown);
}

/* ---- a job: the map, one cell per rank ---- */

#define MAP_ROW 8 /* ranks in a row: nodes often have eight */
#define MAP_COLUMNS 9

static const struct {
    int column;
    const char *name;
} maps[] = {{RANK_STEP, "seconds of a step"},
            {RANK_COMPUTE, "seconds of a step in kernels"},
            {RANK_WAIT, "waiting for others, % of a step"},
            {RANK_CPU, "cores used"},
            {RANK_MEMORY, "memory"},
            {RANK_GPU, "GPU, %"},
            {RANK_CELSIUS, "GPU, degrees C"}};
const int top_maps = sizeof(maps) / sizeof(maps[0]);

static void draw_map(const struct top_model *m, struct glyphs *c, int row, int room)
{
    char text[CELL], least[CELL], most[CELL];
    int column = maps[(m->view.map - 1) % top_maps].column, n = m->job.job.n_worker;
    int in_row = c->columns / MAP_COLUMNS < MAP_ROW ? c->columns / MAP_COLUMNS : MAP_ROW;
    double low = INFINITY, high = -INFINITY;
    for (int i = 0; i < n; i++) {
        double v = rank_value(&m->job, column, i);
        low = v < low ? v : low;
        high = v > high ? v : high;
    }
    glyphs_format(c, row, 0, c->columns, STYLE_TITLE, "%s, %s to %s", maps[(m->view.map - 1) % top_maps].name,
                  rank_text(column, isfinite(low) ? low : NAN, least),
                  rank_text(column, isfinite(high) ? high : NAN, most));
    glyphs_row_style(c, row++, STYLE_TITLE);
    for (int i = 0; in_row > 0 && i < n && i / in_row < room - 1; i++) {
        double v = rank_value(&m->job, column, i);
        int y = row + i / in_row, x = i % in_row * MAP_COLUMNS;
        enum glyphs_style style = slow_of(&m->job, i) ? STYLE_BAD : STYLE_GOOD;
        glyphs_sparkline(c, y, x, 1, style, &v, 1, low, high);
        glyphs_put(c, y, x + 1, MAP_COLUMNS - 2, STYLE_PLAIN, rank_text(column, v, text));
        if (slow_of(&m->job, i))
            glyphs_put(c, y, x + MAP_COLUMNS - 2, 1, STYLE_BAD, "!");
    }
}

static void draw_job(const struct top_model *m, struct glyphs *c)
{
    const struct client_job *j = &m->job.job;
    if (!m->job.known) {
        glyphs_format(c, 0, 0, c->columns - 9, STYLE_BOLD, "job %s", m->view.job);
        draw_bottom(m, c, "");
        return;
    }
    draw_job_title(m, c);
    glyphs_put(c, 1, 0, c->columns, STYLE_PLAIN,
               j->reason[0]         ? j->reason
               : m->job.forecast[0] ? m->job.forecast
                                    : j->state);
    draw_steps(m, c, 2);
    draw_checkpoint(m, c, 3);
    draw_ledger(m, c, 4);
    draw_series(&m->job.loss, c, 5, "loss", "%.4f");
    draw_series(&m->job.step_s, c, 6, "step s", "%.3f");
    int row = 7, room = c->rows - 2 - row;
    if (room >= 2 && m->view.map)
        draw_map(m, c, row, room);
    else if (room >= 2)
        draw_ranks(m, c, row, room);
    const struct incident *last = j->n_incident ? &j->incident[j->n_incident - 1] : NULL;
    draw_bottom(m, c, last ? last->seen : "");
}

/* ---- events and logs ---- */

static enum glyphs_style event_style(const char *kind)
{
    static const char *const bad[] = {"failure", "checkpoint-failed", "lost"};
    static const char *const warn[] = {"warning", "straggler", "drained", "cancel"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        if (strcmp(bad[i], kind) == 0)
            return STYLE_BAD;
    for (size_t i = 0; i < sizeof(warn) / sizeof(warn[0]); i++)
        if (strcmp(warn[i], kind) == 0)
            return STYLE_WARN;
    return STYLE_PLAIN;
}

static void draw_line(const struct top_line *l, struct glyphs *c, int row)
{
    char when[16];
    int at = 0;
    if (l->wall_ms) {
        clock_text(l->wall_ms, when);
        at = glyphs_format(c, row, at, 9, STYLE_DIM, "%s", when) + 1;
    }
    glyphs_put(c, row, at, 9, STYLE_BOLD, l->who);
    at += 10;
    if (l->kind[0]) {
        glyphs_put(c, row, at, 17, event_style(l->kind), l->kind);
        at += c->columns >= 60 ? 18 : (int)strlen(l->kind) + 1;
    }
    glyphs_put(c, row, at, c->columns, STYLE_PLAIN, l->text);
}

static void draw_lines(const struct top_model *m, struct glyphs *c, const struct top_lines *lines, const char *title)
{
    int room = c->rows - 3, most = lines->n > room ? lines->n - room : 0;
    int up = m->view.scroll < most ? m->view.scroll : most, first = most - up;
    glyphs_put(c, 0, 0, c->columns - 9, STYLE_BOLD, title);
    for (int i = 0; i < room && first + i < lines->n; i++)
        draw_line(&lines->line[first + i], c, 1 + i);
    if (!lines->n)
        glyphs_put(c, 1, 0, c->columns, STYLE_PLAIN, "nothing yet");
    draw_bottom(m, c, up ? "older lines; End: the newest" : "");
}

/* ---- help ---- */

static const char *const help[] = {
    "Up, Down, PgUp, PgDn, Home, End   choose a job or a rank, scroll",
    "Enter    open the job               Esc, Backspace  back",
    "s        sort by the next column    /  show only jobs with this text",
    "u        show only jobs of a user   d  seconds between updates",
    "e        events                     l  output of the workers",
    "k        cancel the job, after a question",
    "m        of a job: a map with a cell per rank; again: another number",
    "q        quit",
    "",
    "time: q queued, s started, = worked, r repeated steps, d detected failures,",
    "      x restarted.  ETTR: work, of the time since the first start",
    "!     a rank that computes longer than the others",
};

static void draw_help(const struct top_model *m, struct glyphs *c)
{
    glyphs_put(c, 0, 0, c->columns - 9, STYLE_BOLD, "dtctl top: keys");
    for (int i = 0; i < (int)(sizeof(help) / sizeof(help[0])) && i < c->rows - 3; i++)
        glyphs_put(c, 1 + i, 0, c->columns, STYLE_PLAIN, help[i]);
    draw_bottom(m, c, "");
}

void top_draw(const struct top_model *m, struct glyphs *c)
{
    char title[100];
    bool one = m->view.before == TOP_JOB;
    switch (m->view.screen) {
    case TOP_OVERVIEW:
        draw_overview(m, c);
        break;
    case TOP_JOB:
        draw_job(m, c);
        break;
    case TOP_EVENTS:
        snprintf(title, sizeof(title), one ? "events of job %s" : "events%.0s", m->view.job);
        draw_lines(m, c, &m->events, title);
        break;
    case TOP_LOGS:
        snprintf(title, sizeof(title), "output of job %s", m->view.job);
        draw_lines(m, c, &m->logs, title);
        break;
    case TOP_HELP:
        draw_help(m, c);
        break;
    }
    draw_clock(m, c);
}
