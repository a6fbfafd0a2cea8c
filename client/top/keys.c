/* The selection is an id, never a position, so that it stays on its job or rank while rows move. */
#include "client/top/keys.h"

#include "client/top/draw.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DELAY_MIN 0.2
#define DELAY_MAX 3600

static void note_set(struct top_view *v, const char *text)
{
    snprintf(v->message, sizeof(v->message), "%s", text);
}

/* ---- the selection ---- */

/* Where a key leads from `cursor` among `n` rows. */
static int moved(int key, int cursor, int n, int page)
{
    switch (key) {
    case TOP_KEY_UP:
        cursor--;
        break;
    case TOP_KEY_DOWN:
        cursor++;
        break;
    case TOP_KEY_PAGE_UP:
        cursor -= page;
        break;
    case TOP_KEY_PAGE_DOWN:
        cursor += page;
        break;
    case TOP_KEY_HOME:
        cursor = 0;
        break;
    case TOP_KEY_END:
        cursor = n - 1;
        break;
    }
    cursor = cursor >= n ? n - 1 : cursor;
    return cursor < 0 ? 0 : cursor;
}

static void move_job(struct top_model *m, int key, int page)
{
    int *shown = calloc((size_t)m->n_jobs + 1, sizeof(*shown)), cursor = 0;
    int n = shown ? top_jobs_shown(m, shown) : 0;
    for (int i = 0; i < n; i++)
        cursor = strcmp(m->jobs[shown[i]].job, m->view.job) == 0 ? i : cursor;
    if (n)
        snprintf(m->view.job, sizeof(m->view.job), "%.31s", m->jobs[shown[moved(key, cursor, n, page)]].job);
    free(shown);
}

static void move_rank(struct top_model *m, int key, int page)
{
    int *shown = calloc((size_t)m->job.job.n_worker + 1, sizeof(*shown)), cursor = 0;
    int n = shown ? top_ranks_shown(m, shown) : 0;
    for (int i = 0; i < n; i++)
        cursor = shown[i] == m->view.rank ? i : cursor;
    if (n)
        m->view.rank = shown[moved(key, cursor, n, page)];
    free(shown);
}

static void scroll(struct top_model *m, int key, int page)
{
    static const int lines = TOP_LINES;
    m->view.scroll = lines - 1 - moved(key, lines - 1 - m->view.scroll, lines, page);
}

static bool is_move(int key)
{
    return key >= TOP_KEY_UP && key <= TOP_KEY_END;
}

static enum top_action move(struct top_model *m, int key, int page)
{
    switch (m->view.screen) {
    case TOP_OVERVIEW:
        move_job(m, key, page);
        break;
    case TOP_JOB:
        move_rank(m, key, page);
        break;
    default:
        scroll(m, key, page);
        break;
    }
    return TOP_DRAW;
}

/* ---- screens ---- */

static enum top_action open_screen(struct top_view *v, enum top_screen screen)
{
    v->before = v->screen;
    v->screen = screen;
    v->scroll = 0;
    return TOP_FETCH;
}

static enum top_action back(struct top_view *v)
{
    static const enum top_screen above[] = {[TOP_OVERVIEW] = TOP_OVERVIEW, [TOP_JOB] = TOP_OVERVIEW};
    v->screen = v->screen <= TOP_JOB ? above[v->screen] : v->before;
    v->before = TOP_OVERVIEW;
    return TOP_FETCH;
}

/* Selects the first job if none is selected. */
static bool job_selected(struct top_model *m)
{
    if (m->view.screen == TOP_OVERVIEW)
        move_job(m, 0, 0);
    if (!m->view.job[0])
        note_set(&m->view, "there is no job");
    return m->view.job[0] != '\0';
}

static enum top_action open_job(struct top_model *m)
{
    if (m->view.screen != TOP_OVERVIEW || !job_selected(m))
        return TOP_DRAW;
    m->view.rank = 0;
    m->view.map = 0;
    return open_screen(&m->view, TOP_JOB);
}

static enum top_action ask_cancel(struct top_model *m)
{
    bool listed = m->view.screen == TOP_OVERVIEW || m->view.screen == TOP_JOB;
    if (listed && job_selected(m))
        m->view.prompt = TOP_CANCEL;
    return TOP_DRAW;
}

/* ---- questions ---- */

static void ask(struct top_view *v, enum top_prompt prompt, const char *value)
{
    v->prompt = prompt;
    snprintf(v->input, sizeof(v->input), "%s", value);
}

static void take_input(struct top_view *v)
{
    char *end;
    double seconds = strtod(v->input, &end);
    switch (v->prompt) {
    case TOP_FILTER:
        snprintf(v->filter, sizeof(v->filter), "%s", v->input);
        break;
    case TOP_USER:
        snprintf(v->user, sizeof(v->user), "%s", v->input);
        break;
    case TOP_DELAY:
        if (*end || !(seconds >= DELAY_MIN && seconds <= DELAY_MAX))
            note_set(v, "expected a number of seconds from 0.2 to 3600");
        else
            v->delay_s = seconds;
        break;
    default:
        break;
    }
    v->prompt = TOP_NONE;
}

static void type(struct top_view *v, int key)
{
    size_t n = strlen(v->input);
    if (key >= 32 && key < 256 && key != TOP_KEY_BACKSPACE && n + 1 < sizeof(v->input)) {
        v->input[n] = (char)key;
        v->input[n + 1] = '\0';
        return;
    }
    while (key == TOP_KEY_BACKSPACE && n && ((unsigned char)v->input[n - 1] & 0xc0) == 0x80)
        v->input[--n] = '\0'; /* the rest of a character of several bytes */
    if (key == TOP_KEY_BACKSPACE && n)
        v->input[n - 1] = '\0';
}

static enum top_action answer(struct top_view *v, int key)
{
    if (v->prompt == TOP_CANCEL) {
        v->prompt = TOP_NONE;
        if (key != 'y' && key != 's')
            note_set(v, "not canceled");
        return key == 'y' ? TOP_CANCEL_JOB : key == 's' ? TOP_SAVE_CANCEL : TOP_DRAW;
    }
    if (key == TOP_KEY_ESC)
        v->prompt = TOP_NONE;
    else if (key == TOP_KEY_ENTER)
        take_input(v);
    else
        type(v, key);
    return TOP_DRAW;
}

/* ---- letters ---- */

static enum top_action sort(struct top_view *v)
{
    if (v->screen == TOP_JOB)
        v->rank_sort = (v->rank_sort + 1) % top_rank_sorts;
    else
        v->job_sort = (v->job_sort + 1) % top_job_sorts;
    return TOP_DRAW;
}

static enum top_action letter(struct top_model *m, int key)
{
    struct top_view *v = &m->view;
    char seconds[32];
    switch (key) {
    case 'q':
        return TOP_QUIT;
    case '?':
    case 'h':
        v->help_from = v->screen;
        v->screen = TOP_HELP;
        return TOP_DRAW;
    case TOP_KEY_ENTER:
        return open_job(m);
    case TOP_KEY_ESC:
    case TOP_KEY_BACKSPACE:
        return back(v);
    case 's':
        return sort(v);
    case 'm':
        v->map = v->screen == TOP_JOB ? (v->map + 1) % (top_maps + 1) : v->map;
        return TOP_DRAW;
    case '/':
        ask(v, TOP_FILTER, v->filter);
        return TOP_DRAW;
    case 'u':
        ask(v, TOP_USER, v->user);
        return TOP_DRAW;
    case 'd':
        snprintf(seconds, sizeof(seconds), "%g", v->delay_s);
        ask(v, TOP_DELAY, seconds);
        return TOP_DRAW;
    case 'e':
        return v->screen <= TOP_JOB ? open_screen(v, TOP_EVENTS) : TOP_DRAW;
    case 'l':
        return v->screen <= TOP_JOB && job_selected(m) ? open_screen(v, TOP_LOGS) : TOP_DRAW;
    case 'k':
        return ask_cancel(m);
    }
    return TOP_DRAW;
}

enum top_action top_key(struct top_model *m, int key, int page)
{
    struct top_view *v = &m->view;
    v->message[0] = '\0';
    if (v->prompt)
        return answer(v, key);
    if (v->screen == TOP_HELP) {
        v->screen = v->help_from;
        return key == 'q' ? TOP_QUIT : TOP_DRAW;
    }
    if (key == 'j')
        key = TOP_KEY_DOWN;
    return is_move(key) ? move(m, key, page) : letter(m, key);
}
