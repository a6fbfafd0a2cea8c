/* Colour maps are PNG images within the picture, because a rectangle for each cell would make a page slow. Widths of
 * texts are estimated: only a browser knows its fonts. */
#include "client/report/svg.h"

#include "common/base/utf8.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#define LETTER 0.6 /* mean width of a letter of a sans-serif font, by its size; bold ones are wider */
#define LETTER_BOLD 0.66

err_t svg_escape(struct buf *out, const char *text)
{
    err_t err = OK;
    while (*text && !err) {
        const size_t plain = strcspn(text, "<>&\"'");
        err = buf_append(out, text, plain);
        text += plain;
        if (!*text || err)
            break;
        const char *as = *text == '<'   ? "&lt;"
                         : *text == '>' ? "&gt;"
                         : *text == '&' ? "&amp;"
                         : *text == '"' ? "&quot;"
                                        : "&#39;";
        err = buf_printf(out, "%s", as);
        text++;
    }
    return err;
}

static err_t put_colors(struct buf *out, bool dark)
{
    err_t err = OK;
    for (int i = 0; i < INK_COUNT && !err; i++)
        err = buf_printf(out, "--%s:#%06x;", inks[i].class, dark ? inks[i].dark : inks[i].light);
    return err;
}

err_t svg_put_inks(struct buf *out)
{
    err_t err = buf_printf(out, ":root{color-scheme:light dark;");
    err = err ? err : put_colors(out, false);
    err = err ? err : buf_printf(out, "}@media screen and (prefers-color-scheme:dark){:root{");
    err = err ? err : put_colors(out, true);
    err = err ? err : buf_printf(out, "}}");
    for (int i = 0; i < INK_COUNT && !err; i++)
        err = buf_printf(out, ".%s{fill:var(--%s)}.%ss{stroke:var(--%s);fill:none}", inks[i].class, inks[i].class,
                         inks[i].class, inks[i].class);
    return err;
}

#define PUT(s, ...) ((s)->err = (s)->err ? (s)->err : buf_printf((s)->out, __VA_ARGS__))

static void svg_points(struct svg *s, const struct point *p, int n)
{
    for (int i = 0; i < n; i++)
        PUT(s, "%s%.1f,%.1f", i ? " " : "", p[i].x, p[i].y);
}

static void svg_line(struct canvas *c, const struct point *p, int n, enum ink ink, double width, bool dashed)
{
    struct svg *s = (struct svg *)c;
    PUT(s, "<polyline class=\"%ss\" stroke-width=\"%.1f\"%s points=\"", inks[ink].class, width,
        dashed ? " stroke-dasharray=\"3 2\"" : "");
    svg_points(s, p, n);
    PUT(s, "\"/>");
}

static void svg_area(struct canvas *c, const struct point *p, int n, enum ink ink, double opacity)
{
    struct svg *s = (struct svg *)c;
    PUT(s, "<polygon class=\"%s\" opacity=\"%.2f\" points=\"", inks[ink].class, opacity);
    svg_points(s, p, n);
    PUT(s, "\"/>");
}

static void svg_rect(struct canvas *c, struct frame f, enum ink ink, double opacity)
{
    struct svg *s = (struct svg *)c;
    PUT(s, "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"%.2f\" height=\"%.2f\"", inks[ink].class, f.x, f.y, f.w,
        f.h);
    if (opacity < 1)
        PUT(s, " opacity=\"%.2f\"", opacity);
    PUT(s, "/>");
}

static void svg_text(struct canvas *c, double x, double y, double size, enum anchor anchor, enum ink ink, bool bold,
                     const char *text)
{
    static const char *const anchors[] = {"", " text-anchor=\"middle\"", " text-anchor=\"end\""};
    struct svg *s = (struct svg *)c;
    PUT(s, "<text class=\"%s\" x=\"%.1f\" y=\"%.1f\" font-size=\"%.1f\"%s%s>", inks[ink].class, x, y, size,
        anchors[anchor], bold ? " font-weight=\"bold\"" : "");
    s->err = s->err ? s->err : svg_escape(s->out, text);
    PUT(s, "</text>");
}

static double svg_text_width(struct canvas *c, double size, bool bold, const char *text)
{
    int n = 0;
    (void)c;
    for (; *text; text++)
        n += (*text & 0xc0) != 0x80;
    return n * size * (bold ? LETTER_BOLD : LETTER);
}

/* ---- PNG ---- */

static err_t png_chunk(struct buf *out, const char type[4], const uint8_t *data, size_t len)
{
    const uint32_t size = htonl((uint32_t)len);
    uint32_t sum = htonl((uint32_t)crc32(crc32(0, (const Bytef *)type, 4), data, (uInt)len));
    err_t err = buf_append(out, &size, 4);
    err = err ? err : buf_append(out, type, 4);
    err = err ? err : buf_append(out, data, len);
    return err ? err : buf_append(out, &sum, 4);
}

/* Rows of a filter byte and pixels. */
static err_t png_rows(int columns, int rows, const uint32_t *rgb, struct buf *ret)
{
    const size_t line = 1 + 3 * (size_t)columns;
    err_t err = buf_reserve(ret, line * (size_t)rows);
    if (err)
        return err;
    for (int r = 0; r < rows; r++) {
        uint8_t *p = ret->data + line * (size_t)r;
        *p++ = 0;
        for (int i = 0; i < columns; i++) {
            const uint32_t v = rgb[(size_t)r * (size_t)columns + (size_t)i];
            *p++ = (uint8_t)(v >> 16);
            *p++ = (uint8_t)(v >> 8);
            *p++ = (uint8_t)v;
        }
    }
    ret->len = line * (size_t)rows;
    return OK;
}

static err_t png_data(const struct buf *rows, struct buf *ret)
{
    uLongf len = compressBound(rows->len);
    err_t err = buf_reserve(ret, len);
    if (!err && compress(ret->data, &len, rows->data, rows->len) != Z_OK)
        err = ERR_NOMEM;
    if (!err)
        ret->len = len;
    return err;
}

static err_t png_write(int columns, int rows, const uint32_t *rgb, struct buf *out)
{
    const uint32_t size[2] = {htonl((uint32_t)columns), htonl((uint32_t)rows)};
    uint8_t head[13] = {[8] = 8, [9] = 2}; /* 8 bits for each of red, green and blue */
    struct buf raw = {0}, packed = {0};
    memcpy(head, size, sizeof(size));
    err_t err = png_rows(columns, rows, rgb, &raw);
    err = err ? err : png_data(&raw, &packed);
    err = err ? err : buf_append(out, "\x89PNG\r\n\x1a\n", 8);
    err = err ? err : png_chunk(out, "IHDR", head, sizeof(head));
    err = err ? err : png_chunk(out, "IDAT", packed.data, packed.len);
    err = err ? err : png_chunk(out, "IEND", NULL, 0);
    buf_fini(&raw);
    buf_fini(&packed);
    return err;
}

static err_t base64(const struct buf *in, struct buf *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    err_t err = buf_reserve(out, (in->len + 2) / 3 * 4);
    for (size_t i = 0; !err && i < in->len; i += 3) {
        const size_t left = in->len - i;
        const uint32_t v = (uint32_t)in->data[i] << 16 | (left > 1 ? (uint32_t)in->data[i + 1] << 8 : 0) |
                           (left > 2 ? in->data[i + 2] : 0);
        const char four[4] = {digits[v >> 18], digits[v >> 12 & 63], left > 1 ? digits[v >> 6 & 63] : '=',
                              left > 2 ? digits[v & 63] : '='};
        err = buf_append(out, four, 4);
    }
    return err;
}

static void svg_image(struct canvas *c, struct frame f, int columns, int rows, const uint32_t *rgb)
{
    struct svg *s = (struct svg *)c;
    struct buf png = {0};
    PUT(s,
        "<image x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\" preserveAspectRatio=\"none\" "
        "style=\"image-rendering:pixelated\" href=\"data:image/png;base64,",
        f.x, f.y, f.w, f.h);
    s->err = s->err ? s->err : png_write(columns, rows, rgb, &png);
    s->err = s->err ? s->err : base64(&png, s->out);
    PUT(s, "\"/>");
    buf_fini(&png);
}

void svg_init(struct svg *s, struct buf *out)
{
    static const struct canvas_ops ops = {svg_line, svg_area, svg_rect, svg_text, svg_text_width, svg_image};
    *s = (struct svg){.base = {&ops}, .out = out};
}
