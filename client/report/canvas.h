/* What pictures and pages are drawn on. There are two kinds: svg.c writes SVG into a page, and the module dtd-report.so
 * (report_module.h) draws pages of a PDF. Lengths are points (1/72 inch), y grows downwards, and a text stands on its
 * y. Texts are valid UTF-8 without control characters (doc_text_clean). */
#ifndef DTD_CLIENT_REPORT_CANVAS_H
#define DTD_CLIENT_REPORT_CANVAS_H

#include <stdbool.h>
#include <stdint.h>

/* Colours by their use: a page has others in the dark. X(id, class in SVG, light, dark) */
#define INKS(X)                       \
    X(TEXT, "it", 0x1d2733, 0xe6ebf0) \
    X(DIM, "id", 0x5a6775, 0x9caab8)  \
    X(LINE, "il", 0xc9d1d9, 0x3d4957) \
    X(FACE, "if", 0xf2f5f8, 0x212a34) \
    X(1, "i1", 0x2166ac, 0x6fb1f0)    \
    X(2, "i2", 0xd95f02, 0xf59a4c)    \
    X(3, "i3", 0x1b8a5a, 0x4fc795)    \
    X(4, "i4", 0x7b52ab, 0xb595e0)    \
    X(5, "i5", 0xb8860b, 0xe0b84c)    \
    X(6, "i6", 0x6b7b8c, 0x8899aa)    \
    X(7, "i7", 0x3aa6b9, 0x6fd3e3)    \
    X(8, "i8", 0xc2417c, 0xf080b0)    \
    X(9, "i9", 0x9ccc65, 0xb7e07f)    \
    X(GOOD, "ig", 0x1b8a5a, 0x4fc795) \
    X(BAD, "ib", 0xc62828, 0xff7b72)  \
    X(WHITE, "iw", 0xffffff, 0x161c23)

#define X(id, ...) INK_##id,
enum ink { INKS(X) INK_COUNT };
#undef X

struct ink_row {
    const char *class;
    uint32_t light, dark; /* 0xRRGGBB */
};
extern const struct ink_row inks[INK_COUNT];

enum anchor { ANCHOR_START, ANCHOR_MIDDLE, ANCHOR_END };

struct point {
    double x, y;
};
struct frame {
    double x, y, w, h;
};

struct canvas;
struct canvas_ops {
    void (*line)(struct canvas *c, const struct point *p, int n, enum ink ink, double width, bool dashed);
    void (*area)(struct canvas *c, const struct point *p, int n, enum ink ink, double opacity);
    void (*rect)(struct canvas *c, struct frame f, enum ink ink, double opacity);
    void (*text)(struct canvas *c, double x, double y, double size, enum anchor anchor, enum ink ink, bool bold,
                 const char *text);
    double (*text_width)(struct canvas *c, double size, bool bold, const char *text);
    /* rgb: columns x rows pixels, row after row, each 0xRRGGBB; they are scaled to the frame without blending. */
    void (*image)(struct canvas *c, struct frame f, int columns, int rows, const uint32_t *rgb);
};
/* The first member of each kind. */
struct canvas {
    const struct canvas_ops *ops;
};

#endif
