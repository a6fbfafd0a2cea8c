/* A document: headings, texts, tables and plots, in order. sections.c makes it, html.c and pages.c show it.
 *
 * Every text is copied and cleaned (doc_text_clean), so that no name of a user can break a page. When memory is short
 * the document keeps ERR_NOMEM in `err`, and further calls do nothing; html.c and pages.c check it once. */
#ifndef DTD_CLIENT_REPORT_DOC_H
#define DTD_CLIENT_REPORT_DOC_H

#include "client/report/plot.h"
#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>

enum block_kind {
    BLOCK_HEADING, /* of a section */
    BLOCK_TEXT,
    BLOCK_ITEM, /* a text with a title: one piece of advice */
    BLOCK_TABLE,
    BLOCK_PLOT,
    BLOCK_PAGE, /* what follows begins a new page on paper */
};

struct doc_table {
    int columns, rows;
    const bool *right; /* by column: numbers; the caller's, static */
    char **title;      /* columns */
    char **cell;       /* rows x columns */
    int filled;        /* cells of the last row */
};

struct doc_block {
    enum block_kind kind;
    char *title, *text; /* NULL: none */
    struct doc_table table;
    struct plot *plot;
};

struct doc {
    char *title, *header; /* header: on each page */
    struct doc_block *block;
    int n;
    err_t err;
};

void doc_fini(struct doc *d);
void doc_title(struct doc *d, const char *title, const char *header);
void doc_heading(struct doc *d, const char *title);
void doc_text(struct doc *d, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void doc_item(struct doc *d, const char *title, const char *text);
void doc_page(struct doc *d);
/* Begins a table; `titles` and `right` have `columns` members. Then doc_cell adds cells, row by row. */
void doc_table(struct doc *d, const char *caption, int columns, const char *const *titles, const bool *right);
void doc_cell(struct doc *d, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Takes the plot (from plot_new), also after an error. NULL is out of memory. */
void doc_plot(struct doc *d, struct plot *plot);

/* A copy in which bytes that are not UTF-8, control characters and characters that change the direction of text are
 * U+FFFD; a newline becomes a space. NULL: out of memory. */
char *doc_text_clean(const char *text);

#endif
