/* The module dtd-report.so. DejaVu Sans is named, so that reports look the same on every machine; without it,
 * fontconfig chooses another font, and the layout follows the widths that it measures. */
#include "client/report/report_module.h"

#include <cairo-pdf.h>
#include <pango/pangocairo.h>
#include <stdlib.h>

#define FONT "DejaVu Sans"

struct pdf {
    struct canvas base;
    cairo_surface_t *surface;
    cairo_t *cr;
    PangoLayout *layout;
    PangoFontDescription *font;
    struct buf *out;
    err_t err; /* of a write */
};

static cairo_status_t pdf_write(void *arg, const unsigned char *data, unsigned len)
{
    struct pdf *p = arg;
    p->err = p->err ? p->err : buf_append(p->out, data, len);
    return p->err ? CAIRO_STATUS_WRITE_ERROR : CAIRO_STATUS_SUCCESS;
}

static void ink_set(struct pdf *p, enum ink ink, double opacity)
{
    const uint32_t v = inks[ink].light;
    cairo_set_source_rgba(p->cr, (v >> 16) / 255.0, (v >> 8 & 255) / 255.0, (v & 255) / 255.0, opacity);
}

static void path(struct pdf *p, const struct point *q, int n)
{
    for (int i = 0; i < n; i++)
        (i ? cairo_line_to : cairo_move_to)(p->cr, q[i].x, q[i].y);
}

static void pdf_line(struct canvas *c, const struct point *q, int n, enum ink ink, double width, bool dashed)
{
    struct pdf *p = (struct pdf *)c;
    static const double dashes[] = {3, 2};
    ink_set(p, ink, 1);
    cairo_set_line_width(p->cr, width);
    cairo_set_line_join(p->cr, CAIRO_LINE_JOIN_ROUND);
    cairo_set_dash(p->cr, dashes, dashed ? 2 : 0, 0);
    path(p, q, n);
    cairo_stroke(p->cr);
}

static void pdf_area(struct canvas *c, const struct point *q, int n, enum ink ink, double opacity)
{
    struct pdf *p = (struct pdf *)c;
    ink_set(p, ink, opacity);
    path(p, q, n);
    cairo_close_path(p->cr);
    cairo_fill(p->cr);
}

static void pdf_rect(struct canvas *c, struct frame f, enum ink ink, double opacity)
{
    struct pdf *p = (struct pdf *)c;
    ink_set(p, ink, opacity);
    cairo_rectangle(p->cr, f.x, f.y, f.w, f.h);
    cairo_fill(p->cr);
}

static void layout_set(struct pdf *p, double size, bool bold, const char *text)
{
    pango_font_description_set_absolute_size(p->font, size * PANGO_SCALE);
    pango_font_description_set_weight(p->font, bold ? PANGO_WEIGHT_BOLD : PANGO_WEIGHT_NORMAL);
    pango_layout_set_font_description(p->layout, p->font);
    pango_layout_set_text(p->layout, text, -1);
}

static double layout_width(struct pdf *p)
{
    int width, height;
    pango_layout_get_size(p->layout, &width, &height);
    return (double)width / PANGO_SCALE;
}

static void pdf_text(struct canvas *c, double x, double y, double size, enum anchor anchor, enum ink ink, bool bold,
                     const char *text)
{
    struct pdf *p = (struct pdf *)c;
    layout_set(p, size, bold, text);
    const double width = layout_width(p);
    ink_set(p, ink, 1);
    cairo_move_to(p->cr,
                  anchor == ANCHOR_END      ? x - width
                  : anchor == ANCHOR_MIDDLE ? x - width / 2
                                            : x,
                  y - (double)pango_layout_get_baseline(p->layout) / PANGO_SCALE);
    pango_cairo_show_layout(p->cr, p->layout);
}

static double pdf_text_width(struct canvas *c, double size, bool bold, const char *text)
{
    struct pdf *p = (struct pdf *)c;
    layout_set(p, size, bold, text);
    return layout_width(p);
}

static void pdf_image(struct canvas *c, struct frame f, int columns, int rows, const uint32_t *rgb)
{
    struct pdf *p = (struct pdf *)c;
    cairo_surface_t *image = cairo_image_surface_create(CAIRO_FORMAT_RGB24, columns, rows);
    const int stride = cairo_image_surface_get_stride(image);
    unsigned char *data = cairo_image_surface_get_data(image);
    if (!data) {
        p->err = p->err ? p->err : ERR_NOMEM;
        cairo_surface_destroy(image);
        return;
    }
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < columns; i++)
            ((uint32_t *)(void *)(data + r * stride))[i] = rgb[r * columns + i];
    cairo_surface_mark_dirty(image);
    cairo_save(p->cr);
    cairo_translate(p->cr, f.x, f.y);
    cairo_scale(p->cr, f.w / columns, f.h / rows);
    cairo_set_source_surface(p->cr, image, 0, 0);
    cairo_pattern_set_filter(cairo_get_source(p->cr), CAIRO_FILTER_NEAREST);
    cairo_rectangle(p->cr, 0, 0, columns, rows);
    cairo_fill(p->cr);
    cairo_restore(p->cr);
    cairo_surface_destroy(image);
}

static void pdf_page_end(struct canvas *c)
{
    cairo_show_page(((struct pdf *)c)->cr);
}

static void pdf_outline(struct canvas *c, int page, const char *title)
{
    char place[32];
    snprintf(place, sizeof(place), "page=%d", page);
    cairo_pdf_surface_add_outline(((struct pdf *)c)->surface, CAIRO_PDF_OUTLINE_ROOT, title, place,
                                  CAIRO_PDF_OUTLINE_FLAG_OPEN);
}

static err_t pdf_close(struct canvas *c, struct why *why)
{
    struct pdf *p = (struct pdf *)c;
    cairo_surface_finish(p->surface);
    const cairo_status_t status = cairo_surface_status(p->surface), drawn = cairo_status(p->cr);
    err_t err = p->err;
    if (!err && (status || drawn))
        err =
            why_set(why, status == CAIRO_STATUS_NO_MEMORY || drawn == CAIRO_STATUS_NO_MEMORY ? ERR_NOMEM : ERR_INTERNAL,
                    "cairo cannot draw the report: %s", cairo_status_to_string(status ? status : drawn));
    else if (err)
        why_set(why, err, "%s", err_text(err));
    g_object_unref(p->layout);
    pango_font_description_free(p->font);
    cairo_destroy(p->cr);
    cairo_surface_destroy(p->surface);
    free(p);
    return err;
}

static err_t pdf_open(double width, double height, const char *title, struct buf *out, struct canvas **ret,
                      struct why *why)
{
    static const struct canvas_ops ops = {pdf_line, pdf_area, pdf_rect, pdf_text, pdf_text_width, pdf_image};
    struct pdf *p = calloc(1, sizeof(*p));
    if (!p)
        return why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    p->base.ops = &ops;
    p->out = out;
    p->surface = cairo_pdf_surface_create_for_stream(pdf_write, p, width, height);
    cairo_pdf_surface_set_metadata(p->surface, CAIRO_PDF_METADATA_TITLE, title);
    cairo_pdf_surface_set_metadata(p->surface, CAIRO_PDF_METADATA_CREATOR, "dtd " DTD_VERSION);
    p->cr = cairo_create(p->surface);
    p->layout = pango_cairo_create_layout(p->cr);
    p->font = pango_font_description_from_string(FONT);
    /* Printers have no pixels to fit letters to: their widths must not be rounded. */
    cairo_font_options_t *options = cairo_font_options_create();
    cairo_font_options_set_hint_metrics(options, CAIRO_HINT_METRICS_OFF);
    cairo_font_options_set_hint_style(options, CAIRO_HINT_STYLE_NONE);
    pango_cairo_context_set_font_options(pango_layout_get_context(p->layout), options);
    pango_context_set_round_glyph_positions(pango_layout_get_context(p->layout), FALSE);
    pango_layout_context_changed(p->layout);
    cairo_font_options_destroy(options);
    pango_layout_set_single_paragraph_mode(p->layout, TRUE);
    *ret = &p->base;
    return OK;
}

__attribute__((visibility("default")))
const struct report_module dtd_report_module = {REPORT_MODULE_ABI, pdf_open, pdf_page_end, pdf_outline, pdf_close};
