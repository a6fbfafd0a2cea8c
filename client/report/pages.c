/* The layout is computed twice with the same code: the first time nothing is drawn and the pages are counted, because
 * each page has the number of all in its foot. */
#include "client/report/pages.h"

#include "common/base/module.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WIDTH 595.0 /* A4 portrait in points */
#define HEIGHT 842.0
#define MARGIN 42.0
#define INNER (WIDTH - 2 * MARGIN)
#define TOP 74.0 /* below the header */
#define BOTTOM (HEIGHT - 46.0)
#define BODY 9.0
#define LINE 12.5
#define CELL 8.0
#define ROW 12.0
#define GAP 7.0
#define COLUMN_GAP 10.0
#define CELL_LINE 9.5
#define CELL_LINES 8 /* of one cell; more would push the other rows off the page */
#define COLUMNS 16   /* of a table; the widest has 8 */

struct pages {
    const struct doc *d;
    const struct report_module *module;
    struct canvas *c;
    bool drawing;
    double y;
    int page, count; /* count: known while drawing */
};

err_t pages_module(const struct report_module **ret, struct why *why)
{
    void *symbol;
    err_t err = module_load("dtd-report.so", "dtd_report_module", &symbol, why);
    if (err)
        return why_prefix(why, err, "PDF needs the package dtd-report; --to FILE.html needs no package");
    const struct report_module *module = symbol;
    if (module->abi != REPORT_MODULE_ABI)
        return why_set(why, ERR_UNSUPPORTED,
                       "dtd-report.so has interface %d, this program needs %d: install both from one build of dtd",
                       module->abi, REPORT_MODULE_ABI);
    *ret = module;
    return OK;
}

/* ---- pages ---- */

static void text_at(struct pages *p, double x, double y, double size, enum anchor anchor, enum ink ink, bool bold,
                    const char *text)
{
    if (p->drawing)
        p->c->ops->text(p->c, x, y, size, anchor, ink, bold, text);
}

/* The text, or as much of its beginning as fits with an ellipsis. `ret` has room for the text and 4 bytes more. */
static const char *cut(struct pages *p, double size, bool bold, double width, const char *text, char *ret)
{
    size_t low = 0, high = strlen(text);
    if (p->c->ops->text_width(p->c, size, bold, text) <= width)
        return text;
    while (low < high) { /* the longest beginning that fits */
        size_t mid = (low + high + 1) / 2, end = mid;
        while (end > 0 && (text[end] & 0xc0) == 0x80)
            end--;
        snprintf(ret, end + 4, "%.*s…", (int)end, text);
        if (p->c->ops->text_width(p->c, size, bold, ret) <= width)
            low = mid;
        else
            high = mid - 1;
    }
    while (low > 0 && (text[low] & 0xc0) == 0x80)
        low--;
    snprintf(ret, low + 4, "%.*s…", (int)low, text);
    return ret;
}

static void cut_at(struct pages *p, double x, double y, double size, bool bold, enum ink ink, double width, bool right,
                   const char *text)
{
    char *room = malloc(strlen(text) + 4);
    if (room && p->drawing)
        text_at(p, right ? x + width : x, y, size, right ? ANCHOR_END : ANCHOR_START, ink, bold,
                cut(p, size, bold, width, text, room));
    free(room);
}

static void page_begin(struct pages *p)
{
    char number[48];
    p->page++;
    p->y = TOP;
    if (!p->drawing)
        return;
    snprintf(number, sizeof(number), "page %d of %d", p->page, p->count);
    cut_at(p, MARGIN, 38, 12, true, INK_TEXT, INNER - 80, false, p->d->title);
    text_at(p, WIDTH - MARGIN, 38, 8, ANCHOR_END, INK_DIM, false, number);
    cut_at(p, MARGIN, 52, 8, false, INK_DIM, INNER, false, p->d->header);
    p->c->ops->rect(p->c, (struct frame){MARGIN, 57, INNER, 1.2}, INK_1, 1);
}

static void page_next(struct pages *p)
{
    if (p->drawing)
        p->module->page_end(p->c);
    page_begin(p);
}

/* Moves to the next page if less than `height` is left. */
static void need(struct pages *p, double height)
{
    if (p->y + height > BOTTOM && p->y > TOP)
        page_next(p);
}

/* ---- texts ---- */

/* Bytes of the words that fit into one line; at least one letter, and a word that is too long is cut. */
static size_t line_len(struct pages *p, const char *text, double size, double width, char *room)
{
    size_t fits = 0;
    for (size_t end = 0; text[end];) {
        end += strspn(text + end, " ");
        end += strcspn(text + end, " ");
        snprintf(room, end + 1, "%s", text);
        if (p->c->ops->text_width(p->c, size, false, room) > width)
            break;
        fits = end;
    }
    if (fits)
        return fits;
    do {
        fits++;
        while ((text[fits] & 0xc0) == 0x80)
            fits++;
        snprintf(room, fits + 1, "%s", text);
    } while (text[fits] && text[fits] != ' ' && p->c->ops->text_width(p->c, size, false, room) < width - size);
    return fits;
}

static void draw_text(struct pages *p, const char *text, double x, double width)
{
    char *room = malloc(strlen(text) + 1);
    while (room && *text) {
        const size_t n = line_len(p, text, BODY, width, room);
        need(p, LINE);
        snprintf(room, n + 1, "%s", text);
        text_at(p, x, p->y + BODY, BODY, ANCHOR_START, INK_TEXT, false, room);
        p->y += LINE;
        text += n;
        text += strspn(text, " ");
    }
    free(room);
}

static void draw_heading(struct pages *p, const char *title)
{
    need(p, 170); /* a heading stays with the picture or the rows after it */
    p->y += p->y > TOP ? GAP : 0;
    text_at(p, MARGIN, p->y + 12, 12.5, ANCHOR_START, INK_1, true, title);
    if (p->drawing)
        p->module->outline(p->c, p->page, title);
    p->y += 22;
}

static void draw_item(struct pages *p, const struct doc_block *b)
{
    need(p, 4 * LINE);
    if (p->drawing)
        p->c->ops->rect(p->c, (struct frame){MARGIN, p->y + 1, 3, LINE - 2}, INK_2, 1);
    cut_at(p, MARGIN + 9, p->y + BODY, BODY + 0.5, true, INK_TEXT, INNER - 9, false, b->title);
    p->y += LINE + 1;
    draw_text(p, b->text, MARGIN + 9, INNER - 9);
    p->y += GAP;
}

/* ---- tables ---- */

static double widest(struct pages *p, const struct doc_table *t, int column)
{
    double most = p->c->ops->text_width(p->c, CELL, false, t->title[column]);
    for (int r = 0; r < t->rows; r++) {
        const double w = p->c->ops->text_width(p->c, CELL, false, t->cell[r * t->columns + column]);
        most = w > most ? w : most;
    }
    return most + 0.5;
}

/* Widths as the texts need them; if that is too wide, the widest columns get less. */
static void column_widths(struct pages *p, const struct doc_table *t, double ret[COLUMNS])
{
    double sum = COLUMN_GAP * (t->columns - 1);
    for (int k = 0; k < t->columns; k++)
        sum += ret[k] = widest(p, t, k);
    while (sum > INNER) {
        int most = 0;
        for (int k = 1; k < t->columns; k++)
            most = ret[k] > ret[most] ? k : most;
        const double less = sum - INNER < 8 ? sum - INNER + 0.1 : 8;
        ret[most] -= less;
        sum -= less;
    }
}

/* Lines that a cell needs; a number is cut instead, because it has no words. */
static int cell_lines(struct pages *p, const char *text, double width, bool right, char *room)
{
    int n = 1;
    while (!right && p->c->ops->text_width(p->c, CELL, false, text) > width && n < CELL_LINES) {
        text += line_len(p, text, CELL, width, room);
        text += strspn(text, " ");
        n += *text != 0;
    }
    return n;
}

static int row_lines(struct pages *p, const struct doc_table *t, char **cells, const double width[COLUMNS], char *room)
{
    int most = 1;
    for (int k = 0; k < t->columns; k++) {
        const int n = cell_lines(p, cells[k], width[k], t->right[k], room);
        most = n > most ? n : most;
    }
    return most;
}

static void draw_cell(struct pages *p, const char *text, double x, double width, bool right, enum ink ink, char *room)
{
    const int lines = cell_lines(p, text, width, right, room);
    for (int i = 0; i + 1 < lines; i++) {
        const size_t n = line_len(p, text, CELL, width, room);
        snprintf(room, n + 1, "%s", text);
        text_at(p, x, p->y + 8.5 + i * CELL_LINE, CELL, ANCHOR_START, ink, false, room);
        text += n;
        text += strspn(text, " ");
    }
    cut_at(p, x, p->y + 8.5 + (lines - 1) * CELL_LINE, CELL, false, ink, width, right, text);
}

/* The room that any cell of the row needs for a part of it. */
static char *row_room(const struct doc_table *t, char **cells)
{
    size_t most = 0;
    for (int k = 0; k < t->columns; k++)
        most = strlen(cells[k]) > most ? strlen(cells[k]) : most;
    return malloc(most + 4);
}

static void draw_row(struct pages *p, const struct doc_table *t, char **cells, const double width[COLUMNS],
                     enum ink ink)
{
    double x = MARGIN;
    char *room = row_room(t, cells);
    if (!room)
        return;
    const double height = ROW + (row_lines(p, t, cells, width, room) - 1) * CELL_LINE;
    if (p->y + height > BOTTOM && p->y > TOP + 2 * ROW) {
        page_next(p);
        if (cells != t->title)
            draw_row(p, t, t->title, width, INK_DIM);
    }
    for (int k = 0; k < t->columns; k++) {
        if (p->drawing)
            draw_cell(p, cells[k], x, width[k], t->right[k], ink, room);
        x += width[k] + COLUMN_GAP;
    }
    p->y += height;
    if (p->drawing)
        p->c->ops->rect(p->c, (struct frame){MARGIN, p->y - 0.6, x - COLUMN_GAP - MARGIN, 0.4}, INK_LINE, 1);
    free(room);
}

static void draw_table(struct pages *p, const struct doc_table *t, const char *caption)
{
    double width[COLUMNS] = {0};
    column_widths(p, t, width);
    need(p, 4 * ROW);
    if (caption && caption[0]) {
        text_at(p, MARGIN, p->y + 9, CELL + 0.5, ANCHOR_START, INK_TEXT, true, caption);
        p->y += ROW + 1;
    }
    draw_row(p, t, t->title, width, INK_DIM);
    for (int r = 0; r < t->rows; r++)
        draw_row(p, t, &t->cell[r * t->columns], width, INK_TEXT);
    p->y += GAP;
}

/* ---- all of it ---- */

static void draw_plot(struct pages *p, const struct plot *plot)
{
    const double height = plot_height(plot, INNER);
    need(p, height);
    if (p->drawing)
        plot_draw(plot, p->c, (struct frame){MARGIN, p->y, INNER, height});
    p->y += height + GAP;
}

static void draw_block(struct pages *p, const struct doc_block *b)
{
    switch (b->kind) {
    case BLOCK_HEADING:
        draw_heading(p, b->title);
        return;
    case BLOCK_TEXT:
        draw_text(p, b->text, MARGIN, INNER);
        p->y += GAP;
        return;
    case BLOCK_ITEM:
        draw_item(p, b);
        return;
    case BLOCK_TABLE:
        draw_table(p, &b->table, b->title);
        return;
    case BLOCK_PLOT:
        draw_plot(p, b->plot);
        return;
    case BLOCK_PAGE:
        if (p->y > TOP)
            page_next(p);
        return;
    }
}

static void draw_all(struct pages *p, bool drawing)
{
    p->drawing = drawing;
    p->page = 0;
    page_begin(p);
    for (int i = 0; i < p->d->n; i++)
        draw_block(p, &p->d->block[i]);
    p->count = p->page;
    if (drawing)
        p->module->page_end(p->c);
}

err_t pages_write(const struct doc *d, const struct report_module *module, struct buf *ret, struct why *why)
{
    struct pages p = {.d = d, .module = module};
    err_t err = d->err ? why_set(why, d->err, "out of memory for the report")
                       : module->open(WIDTH, HEIGHT, d->title, ret, &p.c, why);
    if (err)
        return err;
    assert(p.c); /* the module has promised it */
    draw_all(&p, false);
    draw_all(&p, true);
    return module->close(p.c, why);
}
