#include "client/report/doc.h"

#include "common/base/utf8.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Marks that reverse or isolate the direction of the text after them: a name could show another one with them. */
static bool is_direction(uint32_t c)
{
    return c == 0x61c || c == 0x200e || c == 0x200f || (c >= 0x202a && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
}

char *doc_text_clean(const char *text)
{
    char *ret = malloc(3 * strlen(text) + 1), *to = ret;
    if (!ret)
        return NULL;
    while (*text) {
        uint32_t c = 0;
        const int len = utf8_decode(text, &c);
        if (c == '\n' || c == '\t') {
            *to++ = ' ';
        } else if (!len || c < 0x20 || (c >= 0x7f && c < 0xa0) || c == 0xfffe || c == 0xffff || is_direction(c)) {
            memcpy(to, "\xef\xbf\xbd", 3);
            to += 3;
        } else {
            memcpy(to, text, (size_t)len);
            to += len;
        }
        text += len ? len : 1;
    }
    *to = 0;
    return ret;
}

static char *clean(struct doc *d, const char *text)
{
    char *ret = text && !d->err ? doc_text_clean(text) : NULL;
    if (text && !d->err && !ret)
        d->err = ERR_NOMEM;
    return ret;
}

void doc_fini(struct doc *d)
{
    for (int i = 0; i < d->n; i++) {
        struct doc_block *b = &d->block[i];
        for (int k = 0; k < b->table.columns && b->table.title; k++)
            free(b->table.title[k]);
        for (int k = 0; k < b->table.columns * b->table.rows; k++)
            free(b->table.cell[k]);
        free(b->table.title);
        free(b->table.cell);
        free(b->title);
        free(b->text);
        plot_free(b->plot);
    }
    free(d->block);
    free(d->title);
    free(d->header);
    *d = (struct doc){0};
}

void doc_title(struct doc *d, const char *title, const char *header)
{
    d->title = clean(d, title);
    d->header = clean(d, header);
}

/* NULL after an error. */
static struct doc_block *block_add(struct doc *d, enum block_kind kind)
{
    if (d->err)
        return NULL;
    if ((d->n & (d->n - 1)) == 0) { /* the room is the next power of two */
        struct doc_block *more = realloc(d->block, (size_t)(d->n ? 2 * d->n : 1) * sizeof(*more));
        if (!more) {
            d->err = ERR_NOMEM;
            return NULL;
        }
        d->block = more;
    }
    d->block[d->n] = (struct doc_block){.kind = kind};
    return &d->block[d->n++];
}

void doc_heading(struct doc *d, const char *title)
{
    struct doc_block *b = block_add(d, BLOCK_HEADING);
    if (b)
        b->title = clean(d, title);
}

static char *clean_format(struct doc *d, const char *fmt, va_list args)
{
    char *raw = NULL;
    if (vasprintf(&raw, fmt, args) < 0) {
        d->err = ERR_NOMEM;
        return NULL;
    }
    char *ret = clean(d, raw);
    free(raw);
    return ret;
}

void doc_text(struct doc *d, const char *fmt, ...)
{
    struct doc_block *b = block_add(d, BLOCK_TEXT);
    va_list args;
    if (!b)
        return;
    va_start(args, fmt);
    b->text = clean_format(d, fmt, args);
    va_end(args);
}

void doc_item(struct doc *d, const char *title, const char *text)
{
    struct doc_block *b = block_add(d, BLOCK_ITEM);
    if (!b)
        return;
    b->title = clean(d, title);
    b->text = clean(d, text);
}

void doc_page(struct doc *d)
{
    block_add(d, BLOCK_PAGE);
}

void doc_table(struct doc *d, const char *caption, int columns, const char *const *titles, const bool *right)
{
    struct doc_block *b = block_add(d, BLOCK_TABLE);
    if (!b)
        return;
    b->title = clean(d, caption);
    b->table = (struct doc_table){
        .columns = columns, .right = right, .title = calloc((size_t)columns, sizeof(char *)), .filled = columns};
    if (!b->table.title)
        d->err = ERR_NOMEM;
    for (int i = 0; i < columns && !d->err; i++)
        b->table.title[i] = clean(d, titles[i]);
}

static bool row_add(struct doc_table *t)
{
    const size_t cells = (size_t)t->rows * (size_t)t->columns, row = (size_t)t->columns;
    char **more = realloc(t->cell, (cells + row) * sizeof(*more));
    if (!more)
        return false;
    memset(more + cells, 0, row * sizeof(*more));
    t->cell = more;
    t->rows++;
    t->filled = 0;
    return true;
}

void doc_cell(struct doc *d, const char *fmt, ...)
{
    va_list args;
    if (d->err)
        return;
    struct doc_table *t = &d->block[d->n - 1].table;
    if (t->filled == t->columns && !row_add(t)) {
        d->err = ERR_NOMEM;
        return;
    }
    va_start(args, fmt);
    t->cell[(t->rows - 1) * t->columns + t->filled++] = clean_format(d, fmt, args);
    va_end(args);
}

void doc_plot(struct doc *d, struct plot *plot)
{
    struct doc_block *b = plot ? block_add(d, BLOCK_PLOT) : NULL;
    if (b)
        b->plot = plot;
    else
        plot_free(plot);
    if (!plot)
        d->err = ERR_NOMEM;
}
