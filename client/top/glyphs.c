/* Each cell holds one character, so that text of any width can be overwritten at any column. */
#include "client/top/glyphs.h"

#include "client/safe_text.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const eighths[] = {" ",      "\u258f", "\u258e", "\u258d", "\u258c",
                                      "\u258b", "\u258a", "\u2589", "\u2588"};
static const char *const heights[] = {"\u2581", "\u2582", "\u2583", "\u2584", "\u2585", "\u2586", "\u2587", "\u2588"};
static const char *const ascii_heights[] = {"_", ".", ":", "-", "=", "+", "*", "#"};
#define HEIGHTS 8

void glyphs_init(struct glyphs *c, int rows, int columns, bool utf8)
{
    size_t n = (size_t)(rows > 0 ? rows : 0) * (size_t)(columns > 0 ? columns : 0);
    *c = (struct glyphs){.rows = rows, .columns = columns, .utf8 = utf8, .cells = calloc(n + 1, sizeof(*c->cells))};
    if (!c->cells)
        exit(1);
    for (size_t i = 0; i < n; i++)
        c->cells[i].text[0] = ' ';
}

void glyphs_fini(struct glyphs *c)
{
    free(c->cells);
    *c = (struct glyphs){0};
}

static struct glyphs_cell *cell_at(struct glyphs *c, int row, int column)
{
    bool inside = row >= 0 && row < c->rows && column >= 0 && column < c->columns;
    return inside ? &c->cells[(size_t)row * (size_t)c->columns + (size_t)column] : NULL;
}

static void set_cell(struct glyphs *c, int row, int column, enum glyphs_style style, const char *text, size_t len)
{
    struct glyphs_cell *cell = cell_at(c, row, column);
    if (!cell || len >= sizeof(cell->text))
        return;
    memcpy(cell->text, text, len);
    cell->text[len] = '\0';
    cell->style = (uint8_t)style;
}

/* Bytes of the character at `s` with the marks that follow it. */
static size_t character(const char *s, int *ret_width)
{
    char one[GLYPHS_BYTES];
    size_t n = 0;
    *ret_width = 0;
    while (s[n]) {
        size_t end = n + 1;
        while (((unsigned char)s[end] & 0xc0) == 0x80)
            end++;
        if (end - n >= sizeof(one))
            break;
        memcpy(one, s + n, end - n);
        one[end - n] = '\0';
        int width = safe_text_width(one);
        if (n && width)
            break;
        *ret_width += width;
        n = end;
    }
    return n;
}

int glyphs_put(struct glyphs *c, int row, int column, int width, enum glyphs_style style, const char *text)
{
    char safe[2048];
    int room = width < c->columns - column ? width : c->columns - column;
    if (row < 0 || row >= c->rows || column < 0 || room <= 0)
        return column;
    safe_text(text, room, c->utf8, safe, sizeof(safe));
    for (const char *s = safe; *s;) {
        int columns;
        size_t n = character(s, &columns);
        if (!n)
            break;
        set_cell(c, row, column, style, s, n);
        if (columns == 2)
            set_cell(c, row, column + 1, style, "", 0);
        column += columns ? columns : 1;
        s += n;
    }
    return column;
}

int glyphs_format(struct glyphs *c, int row, int column, int width, enum glyphs_style style, const char *fmt, ...)
{
    char text[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof(text), fmt, ap);
    va_end(ap);
    return glyphs_put(c, row, column, width, style, text);
}

void glyphs_put_right(struct glyphs *c, int row, int column, int width, enum glyphs_style style, const char *text)
{
    char safe[1024];
    int used = safe_text(text, width, c->utf8, safe, sizeof(safe));
    glyphs_put(c, row, column + width - used, used, style, safe);
}

void glyphs_row_style(struct glyphs *c, int row, enum glyphs_style style)
{
    for (int i = 0; i < c->columns; i++) {
        struct glyphs_cell *cell = cell_at(c, row, i);
        if (cell)
            cell->style = (uint8_t)style;
    }
}

static double between(double x, double low, double high)
{
    return !(x > low) ? low : x > high ? high : x;
}

void glyphs_bar(struct glyphs *c, int row, int column, int width, enum glyphs_style style, double share)
{
    int parts = (int)lround(between(share, 0, 1) * width * 8);
    for (int i = 0; i < width; i++) {
        int part = (int)between(parts - i * 8, 0, 8);
        const char *text = c->utf8 ? eighths[part] : part >= 4 ? "#" : ".";
        if (c->utf8 && !part)
            text = "\u00b7";
        set_cell(c, row, column + i, part ? style : STYLE_DIM, text, strlen(text));
    }
}

void glyphs_sparkline(struct glyphs *c, int row, int column, int width, enum glyphs_style style, const double *values,
                      int n, double low, double high)
{
    int shown = n < width ? n : width;
    for (int i = 0; i < shown; i++) {
        double v = values[n - shown + i];
        if (!isfinite(v))
            continue;
        double share = high > low ? between((v - low) / (high - low), 0, 1) : 0;
        int k = (int)lround(share * (HEIGHTS - 1));
        const char *text = c->utf8 ? heights[k] : ascii_heights[k];
        set_cell(c, row, column + i, style, text, strlen(text));
    }
}

void glyphs_row_text(const struct glyphs *c, int row, char *ret)
{
    size_t len = 0, end = 0;
    for (int i = 0; i < c->columns; i++) {
        const struct glyphs_cell *cell = &c->cells[(size_t)row * (size_t)c->columns + (size_t)i];
        size_t n = strlen(cell->text);
        memcpy(ret + len, cell->text, n);
        len += n;
        if (n && strcmp(cell->text, " ") != 0)
            end = len;
    }
    ret[end] = '\0';
}
