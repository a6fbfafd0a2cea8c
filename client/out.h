/* The output of dtctl: tables, JSON, a progress line. Results go to standard output, errors to standard error. ANSI
 * sequences are written only to a terminal, and colours only if NO_COLOR is not set. One thread. */
#ifndef DTD_CLIENT_OUT_H
#define DTD_CLIENT_OUT_H

#include "common/base/err.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#define OUT_CUT (-1)
#define OUT_LATE_MAX 6     /* the highest `late` of a column */
#define OUT_COLUMNS_MAX 16 /* columns of a table; the longest have 11 */

enum out_format { OUT_TEXT, OUT_JSON, OUT_JSONL };

/* False for an unknown name. */
bool out_format_parse(const char *name, enum out_format *ret);

/* ---- numbers as text; every function returns `ret` ---- */

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
/* Number of code points, which is the number of columns of most texts. */
int out_text_width(const char *s);
int out_columns(FILE *f); /* of the terminal; 80 when unknown */
/* The sequence that switches the colour on, or "" for streams without colours. OUT_PLAIN switches it off. */
const char *out_color(FILE *f, enum out_color color);
enum out_color out_state_color(const char *job_state);

/* ---- text that is broken at spaces where a terminal is too narrow; a file or pipe gets it as it is ---- */

#define OUT_LABEL 13 /* columns before the text in a line of a page: "  Workers    2" */

/* The lines of a page are written to `f`, by any function. One that begins with two spaces has a label. */
struct out_page {
    FILE *f;
    char *text;
    size_t len;
};
/* Prints one line; on a terminal, what does not fit continues in the next ones, behind `indent` spaces. */
void out_wrapped(FILE *f, const char *line, int indent);
/* The program exits when out of memory, here and at the end. */
void out_page_begin(struct out_page *p);
void out_page_end(struct out_page *p, FILE *to);

/* ---- tables: columns as wide as their widest cell, two spaces between ---- */

struct out_column {
    const char *title;
    bool right; /* numbers */
    int late;   /* where a terminal is narrow, columns with higher numbers are left out first; 0: never; OUT_CUT: never,
                   but where it is still too narrow, the ends of the cells are */
};
struct out_table {
    const struct out_column *columns;
    int n_columns, n_rows, cap; /* n_columns: at most OUT_COLUMNS_MAX */
    char **cells;               /* n_rows * n_columns */
    enum out_color *row_color;
};
void out_table_init(struct out_table *t, const struct out_column *columns, int n_columns);
void out_table_fini(struct out_table *t);
/* Adds a row of "-" cells and returns its index. The program exits when out of memory: there is nothing to undo. */
int out_table_row(struct out_table *t);
void out_table_set(struct out_table *t, int row, int column, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* The cells of `color_column` (-1: none) have the colour row_color of their row. On a terminal, text of the last column
 * that does not fit continues in the next lines. */
void out_table_print(const struct out_table *t, FILE *f, int color_column);

/* ---- JSON ---- */

/* A JSON number that reads back bit for bit; null for NAN and infinities, which JSON cannot represent. */
json_t *out_json_real(double value);
/* Prints one object or array, ends the line and flushes. Takes the reference. `lines`: on a single line. ERR_NOMEM for
 * NULL; ERR_CLOSED when standard output is a closed pipe; else ERR_IO. */
NODISCARD err_t out_json(json_t *value, bool lines);

/* ---- the progress line, which is redrawn in place ---- */

struct out_progress {
    FILE *file;
    bool terminal;
    bool drawn; /* the cursor is behind a line that has not been ended */
    int64_t drawn_ms;
};
void out_progress_init(struct out_progress *p, FILE *f);
/* True when a redraw is due (every 200 ms), so that callers format the text only then. Always false for a pipe. */
bool out_progress_due(const struct out_progress *p, int64_t now_ms);
/* On a terminal: replaces the line, cut to the terminal's width. On a pipe: prints the text as a line. */
void out_progress_draw(struct out_progress *p, int64_t now_ms, const char *text);
/* Erases the line, so that the caller can print something else; the next draw restores it. */
void out_progress_clear(struct out_progress *p);
/* Keeps the line and moves to the next one. */
void out_progress_end(struct out_progress *p);

/* "[#####-----]", `width` characters in total. */
void out_bar(double share, int width, char *ret, size_t size);

/* The word as a POSIX shell reads it back, quoted if need be, so that a printed command can be pasted. The caller frees
 * it. NULL: out of memory. */
char *out_quoted(const char *word);

#endif
