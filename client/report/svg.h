/* A canvas that writes SVG elements, for a page of HTML whose style has the classes of the inks. */
#ifndef DTD_CLIENT_REPORT_SVG_H
#define DTD_CLIENT_REPORT_SVG_H

#include "client/report/canvas.h"
#include "common/base/buf.h"
#include "common/base/err.h"

struct svg {
    struct canvas base;
    struct buf *out;
    err_t err; /* the first one; later calls write nothing */
};

void svg_init(struct svg *s, struct buf *out);
/* The style of the classes, with the colours of the dark where a reader prefers them. The variables belong to the root,
 * so that a page or a picture has one such style. */
NODISCARD err_t svg_put_inks(struct buf *out);
/* Text in which no character ends an element or an attribute. */
NODISCARD err_t svg_escape(struct buf *out, const char *text);

#endif
