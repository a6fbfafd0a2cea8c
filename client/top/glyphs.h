/* A screen of characters in memory: `dtctl top` draws on it, and then it is shown with curses or printed. Nothing here
 * knows a terminal, so that tests can compare whole screens. One thread. */
#ifndef DTD_CLIENT_TOP_GLYPHS_H
#define DTD_CLIENT_TOP_GLYPHS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* How a character looks. Colour never carries a meaning alone: each style is used with a word or a sign that means the
 * same. */
enum glyphs_style {
    STYLE_PLAIN,
    STYLE_BOLD,
    STYLE_DIM,
    STYLE_TITLE,  /* of a table */
    STYLE_CURSOR, /* the selected row */
    STYLE_GOOD,
    STYLE_WARN,
    STYLE_BAD,
    STYLE_REPEAT, /* parts of the bar of time */
    STYLE_START,
    STYLE_WAIT,
    STYLE_COUNT
};

#define GLYPHS_BYTES 20 /* of a letter with its marks */

struct glyphs_cell {
    char text[GLYPHS_BYTES]; /* "": the second column of a wide character */
    uint8_t style;
};

struct glyphs {
    int rows, columns;
    bool utf8; /* else ASCII only */
    struct glyphs_cell *cells;
};

/* Blank. The program exits when out of memory: there is nothing to undo. */
void glyphs_init(struct glyphs *c, int rows, int columns, bool utf8);
void glyphs_fini(struct glyphs *c);

/* Writes safe text (client/safe_text.h) from (row, column) on, at most `width` columns and not beyond the edge. Rows
 * and columns outside of the screen are ignored. Returns the column behind the text. */
int glyphs_put(struct glyphs *c, int row, int column, int width, enum glyphs_style style, const char *text);
int glyphs_format(struct glyphs *c, int row, int column, int width, enum glyphs_style style, const char *fmt, ...)
    __attribute__((format(printf, 6, 7)));
/* The same, ending in column + width. */
void glyphs_put_right(struct glyphs *c, int row, int column, int width, enum glyphs_style style, const char *text);
/* Sets the style of a whole row. */
void glyphs_row_style(struct glyphs *c, int row, enum glyphs_style style);
/* A bar: `share` of `width` columns, in eighths of a column where UTF-8 is possible. */
void glyphs_bar(struct glyphs *c, int row, int column, int width, enum glyphs_style style, double share);
/* The newest values as one character each, between `low` and `high`; a value that is not finite is a space. */
void glyphs_sparkline(struct glyphs *c, int row, int column, int width, enum glyphs_style style, const double *values,
                      int n, double low, double high);

/* The row as text without trailing spaces. `ret` has columns * GLYPHS_BYTES + 1 bytes. */
void glyphs_row_text(const struct glyphs *c, int row, char *ret);

#endif
