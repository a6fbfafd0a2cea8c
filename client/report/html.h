/* A document as one page of HTML: no scripts, no outside resources, so that it can be sent to anyone. Pure. */
#ifndef DTD_CLIENT_REPORT_HTML_H
#define DTD_CLIENT_REPORT_HTML_H

#include "client/report/doc.h"
#include "common/base/buf.h"

NODISCARD err_t html_write(const struct doc *d, struct buf *ret);

#endif
