/* Each picture has a table of its numbers beside it, which a reader opens: screen readers and people who copy numbers
 * need no picture. The policy in the head allows neither scripts nor any address. */
#include "client/report/html.h"

#include "client/report/svg.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define WIDTH 640.0    /* of a picture; narrower screens scroll it, so that its texts stay readable */
#define NUMBER_ROWS 24 /* of the table of a curve: enough to see its course */
#define RANK_ROWS 1024 /* of the table of a grid */

#define PUT(err, out, ...) ((err) = (err) ? (err) : buf_printf(out, __VA_ARGS__))

static const char style[] =
    "body{font:15px/1.5 system-ui,sans-serif;margin:0 auto;max-width:60rem;padding:0 1rem 3rem;background:var(--iw);"
    "color:var(--it)}"
    "header{border-bottom:2px solid var(--i1);margin-bottom:1rem}h1{font-size:1.5rem;margin:1rem 0 .2rem}"
    "header p{color:var(--id);margin:.2rem 0 .6rem}h1,h2,h3,p,td{overflow-wrap:anywhere}"
    "h2{font-size:1.2rem;margin:2rem 0 .6rem;border-bottom:1px solid var(--il)}h3{font-size:1rem;margin:.8rem 0 .1rem}"
    ".w{overflow-x:auto;margin:.6rem 0}table{border-collapse:collapse;font-size:.87rem}"
    "caption{text-align:left;font-weight:bold;padding:.2rem 0}"
    "th,td{padding:.15rem .7rem .15rem 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--il)}"
    "th{color:var(--id);font-weight:normal}.r{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}"
    ".w td{overflow-wrap:normal}"
    "figure{margin:1rem 0}svg{display:block;width:100%;min-width:36rem;height:auto;font-family:system-ui,sans-serif}"
    "summary{cursor:pointer;color:var(--id);font-size:.87rem}article{border-left:4px solid "
    "var(--i2);padding-left:.8rem;"
    "margin:1rem 0}article p{margin:.1rem 0}nav a{color:var(--i1);margin-right:1rem}"
    "a:focus-visible,summary:focus-visible,.w:focus-visible{outline:2px solid var(--i1)}"
    "@media print{body{max-width:none;font-size:10pt}details,nav{display:none}figure,article,tr{break-inside:avoid}"
    "h2,h3,h2+p{break-after:avoid}svg{min-width:0}.w{overflow:visible}}";

static err_t put_style(struct buf *out)
{
    err_t err = buf_printf(out, "<style>");
    err = err ? err : svg_put_inks(out);
    PUT(err, out, "%s</style>", style);
    return err;
}

static err_t put_text(struct buf *out, const char *tag, const char *text)
{
    err_t err = buf_printf(out, "<%s>", tag);
    err = err ? err : svg_escape(out, text ? text : "");
    PUT(err, out, "</%s>\n", tag);
    return err;
}

/* ---- tables ---- */

static err_t put_cell(struct buf *out, const char *tag, bool right, const char *text)
{
    err_t err = buf_printf(out, right ? "<%s class=\"r\">" : "<%s>", tag);
    err = err ? err : svg_escape(out, text ? text : "");
    PUT(err, out, "</%s>", *tag == 't' && tag[1] == 'd' ? "td" : "th");
    return err;
}

static err_t put_table(struct buf *out, const struct doc_table *t, const char *caption)
{
    err_t err = buf_printf(out, "<div class=\"w\" tabindex=\"0\"><table>");
    if (!err && caption && caption[0])
        err = put_text(out, "caption", caption);
    PUT(err, out, "<thead><tr>");
    for (int k = 0; !err && k < t->columns; k++)
        err = put_cell(out, "th scope=\"col\"", t->right[k], t->title[k]);
    PUT(err, out, "</tr></thead><tbody>\n");
    for (int r = 0; r < t->rows; r++) {
        PUT(err, out, "<tr>");
        for (int k = 0; !err && k < t->columns; k++)
            err = put_cell(out, "td", t->right[k], t->cell[r * t->columns + k]);
        PUT(err, out, "</tr>\n");
    }
    PUT(err, out, "</tbody></table></div>\n");
    return err;
}

/* ---- the numbers of plots ---- */

static void add_x(struct doc *d, const struct plot *p, double x)
{
    char text[PLOT_NUMBER];
    if (p->time)
        doc_cell(d, "%s", plot_time(x, p->x1 - p->x0, text));
    else
        doc_cell(d, "%.0f", x);
}

static void curve_numbers(struct doc *d, const struct plot *p, const struct plot_curve *k)
{
    static const char *const titles[] = {NULL, "mean", "least", "most"};
    static const bool right[] = {true, true, true, true};
    const char *own[4] = {p->time ? "time" : "step", titles[1], titles[2], titles[3]};
    const bool band = k->lo && k->hi;
    const int every = (k->n + NUMBER_ROWS - 1) / NUMBER_ROWS;
    char text[PLOT_NUMBER];
    doc_table(d, k->label, band ? 4 : 2, own, right);
    for (int i = 0; i < k->n; i += every ? every : 1) {
        add_x(d, p, k->x[i]);
        doc_cell(d, "%s", plot_number(k->mean[i], text));
        if (band)
            doc_cell(d, "%s", plot_number(k->lo[i], text));
        if (band)
            doc_cell(d, "%s", plot_number(k->hi[i], text));
    }
}

static void grid_numbers(struct doc *d, const struct plot *p)
{
    static const char *const titles[] = {"rank", "min", "avg", "max"};
    static const bool right[] = {false, true, true, true};
    char text[PLOT_NUMBER];
    double low, mean, high;
    doc_table(d, p->unit, 4, titles, right);
    for (int r = 0; r < p->ranks && r < RANK_ROWS; r++) {
        if (!plot_grid_range(p, r, &low, &mean, &high))
            continue;
        doc_cell(d, "%s", p->rank_label[r]);
        doc_cell(d, "%s", plot_number(low, text));
        doc_cell(d, "%s", plot_number(mean, text));
        doc_cell(d, "%s", plot_number(high, text));
    }
}

static void span_numbers(struct doc *d, const struct plot *p)
{
    static const char *const titles[] = {"row", "part", "from", "until"};
    static const bool right[] = {false, false, true, true};
    char text[PLOT_NUMBER];
    doc_table(d, "", 4, titles, right);
    for (int i = 0; i < p->n_spans && i < RANK_ROWS; i++) {
        doc_cell(d, "%s", p->row_label[p->span[i].row]);
        doc_cell(d, "%s", p->span[i].meaning);
        doc_cell(d, "%s", plot_time(p->span[i].from, p->x1 - p->x0, text));
        doc_cell(d, "%s", plot_time(p->span[i].until, p->x1 - p->x0, text));
    }
}

/* A stack has its table in the document itself. */
static void plot_numbers(struct doc *d, const struct plot *p)
{
    for (int i = 0; p->form == PLOT_CURVES && i < p->n_curves; i++)
        curve_numbers(d, p, &p->curve[i]);
    if (p->form == PLOT_GRID)
        grid_numbers(d, p);
    if (p->form == PLOT_SPANS)
        span_numbers(d, p);
}

static err_t put_numbers(struct buf *out, const struct plot *p)
{
    struct doc d = {0};
    plot_numbers(&d, p);
    err_t err = d.err;
    if (!err && d.n) {
        PUT(err, out, "<details><summary>Numbers of this picture</summary>\n");
        for (int i = 0; !err && i < d.n; i++)
            err = put_table(out, &d.block[i].table, d.block[i].title);
        PUT(err, out, "</details>");
    }
    doc_fini(&d);
    return err;
}

static err_t put_plot(struct buf *out, const struct plot *p)
{
    const double height = plot_height(p, WIDTH);
    struct svg svg;
    err_t err = buf_printf(
        out, "<figure><div class=\"w\" tabindex=\"0\"><svg viewBox=\"0 0 %.0f %.0f\" role=\"img\" aria-label=\"", WIDTH,
        ceil(height));
    err = err ? err : svg_escape(out, p->title);
    PUT(err, out, "\">");
    svg_init(&svg, out);
    svg.err = err;
    plot_draw(p, &svg.base, (struct frame){0, 0, WIDTH, height});
    err = svg.err;
    PUT(err, out, "</svg></div>");
    err = err ? err : put_numbers(out, p);
    PUT(err, out, "</figure>\n");
    return err;
}

/* ---- the page ---- */

static err_t put_block(struct buf *out, const struct doc_block *b, int number)
{
    err_t err = OK;
    switch (b->kind) {
    case BLOCK_HEADING:
        PUT(err, out, "<h2 id=\"s%d\">", number);
        err = err ? err : svg_escape(out, b->title);
        PUT(err, out, "</h2>\n");
        return err;
    case BLOCK_TEXT:
        return put_text(out, "p", b->text);
    case BLOCK_ITEM:
        err = buf_printf(out, "<article>");
        err = err ? err : put_text(out, "h3", b->title);
        err = err ? err : put_text(out, "p", b->text);
        PUT(err, out, "</article>\n");
        return err;
    case BLOCK_TABLE:
        return put_table(out, &b->table, b->title);
    case BLOCK_PLOT:
        return put_plot(out, b->plot);
    case BLOCK_PAGE:
        return OK;
    }
    return OK;
}

static err_t put_contents(struct buf *out, const struct doc *d)
{
    err_t err = buf_printf(out, "<nav aria-label=\"Contents\">");
    for (int i = 0; i < d->n; i++)
        if (d->block[i].kind == BLOCK_HEADING) {
            PUT(err, out, "<a href=\"#s%d\">", i);
            err = err ? err : svg_escape(out, d->block[i].title);
            PUT(err, out, "</a>\n");
        }
    PUT(err, out, "</nav>\n");
    return err;
}

err_t html_write(const struct doc *d, struct buf *ret)
{
    err_t err =
        d->err
            ? d->err
            : buf_printf(
                  ret, "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
                       "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
                       "'unsafe-inline'; "
                       "img-src data:\">\n<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n");
    err = err ? err : put_text(ret, "title", d->title);
    err = err ? err : put_style(ret);
    PUT(err, ret, "</head><body>\n<header>");
    err = err ? err : put_text(ret, "h1", d->title);
    err = err ? err : put_text(ret, "p", d->header);
    PUT(err, ret, "</header>\n");
    err = err ? err : put_contents(ret, d);
    PUT(err, ret, "<main>\n");
    for (int i = 0; !err && i < d->n; i++)
        err = put_block(ret, &d->block[i], i);
    PUT(err, ret, "</main></body></html>\n");
    return err;
}
