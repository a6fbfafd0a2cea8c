/* What dtctl writes: tables, JSON, one line of progress. Text goes to standard output, complaints to standard error;
 * ANSI sequences only to a terminal, colours only without NO_COLOR. One thread. */
#ifndef DTD_CLIENT_OUT_H
#define DTD_CLIENT_OUT_H

#include "common/base/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum out_format { OUT_TEXT, OUT_JSON, OUT_JSONL };

/* False for an unknown name. */
bool out_format_parse(const char *name, enum out_format *ret);

/* ---- numbers for people; every one returns `ret` ---- */

#define OUT_NUMBER 32
const char *out_bytes(int64_t bytes, char ret[OUT_NUMBER]);     /* "1.5 GiB" */
const char *out_count(double count, char ret[OUT_NUMBER]);      /* "12.3k" */
const char *out_duration(double seconds, char ret[OUT_NUMBER]); /* "1h 02m", "3m 07s", "12s"; "-" unless finite, >= 0 */
const char *out_real(double value, int digits, char ret[OUT_NUMBER]); /* "%.<digits>g"; "-" for NAN */
const char *out_time(int64_t wall_ms, char ret[OUT_NUMBER]);          /* local "2026-01-31 12:04:31"; "-" for 0 */

/* ---- colours ---- */

enum out_color { OUT_PLAIN, OUT_DIM, OUT_BOLD, OUT_RED, OUT_GREEN, OUT_YELLOW, OUT_BLUE };
bool out_is_terminal(FILE *f);
bool out_has_color(FILE *f); /* a terminal, not TERM=dumb, NO_COLOR not set */
int out_columns(FILE *f);    /* of the terminal; 80 when unknown */
/* The sequence that begins the colour, or "" where there are none; OUT_PLAIN ends one. */
const char *out_color(FILE *f, enum out_color color);
enum out_color out_state_color(const char *job_state);

/* ---- tables: columns as wide as their widest cell, two spaces between ---- */

struct out_column {
    const char *title;
    bool right; /* numbers */
};
struct out_table {
    const struct out_column *columns;
    int n_columns, n_rows, cap;
    char **cells; /* n_rows * n_columns */
    enum out_color *row_color;
};
void out_table_init(struct out_table *t, const struct out_column *columns, int n_columns);
void out_table_fini(struct out_table *t);
/* A new row of "-" cells. Out of memory ends the program: there is nobody left to tell and nothing to undo. */
int out_table_row(struct out_table *t);
void out_table_set(struct out_table *t, int row, int column, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* `color_column` (-1: none) is drawn in its row's row_color. */
void out_table_print(const struct out_table *t, FILE *f, int color_column);

/* ---- JSON ---- */

/* null for NAN and infinities, which JSON has no word for. Doubles are written so that they read back bit for bit. */
json_t *out_json_real(double value);
/* Takes the reference. One object or array on its own line(s), flushed; `lines` true: on exactly one. False when out of
 * memory or when standard output has gone. */
NODISCARD err_t out_json(json_t *value, bool lines);

/* ---- one line that is drawn again and again ---- */

struct out_progress {
    FILE *file;
    bool terminal;
    bool drawn; /* a line stands there without its end */
    int64_t drawn_ms;
};
void out_progress_init(struct out_progress *p, FILE *f);
/* True when a redraw is due (5 Hz); callers may then spend time on the text. Always false in a pipe. */
bool out_progress_due(const struct out_progress *p, int64_t now_ms);
/* On a terminal: replaces the line, cut to the width. In a pipe: writes it as a line. */
void out_progress_draw(struct out_progress *p, int64_t now_ms, const char *text);
/* Removes the line, so that something else can be written; the next draw puts it back. */
void out_progress_clear(struct out_progress *p);
/* Leaves the line as it is and goes to the next. */
void out_progress_end(struct out_progress *p);

/* "[#####-----]" of `width` characters in all. */
void out_bar(double share, int width, char *ret, size_t size);

#endif
