/* The interface of the module dtd-report.so, which draws pages as PDF. It alone links cairo and pango, so that dtctl
 * starts without them and their libraries for windows. */
#ifndef DTD_CLIENT_REPORT_REPORT_MODULE_H
#define DTD_CLIENT_REPORT_REPORT_MODULE_H

#include "client/report/canvas.h"
#include "common/base/buf.h"
#include "common/base/err.h"

#define REPORT_MODULE_ABI 1

struct report_module {
    int abi;
    /* Begins a file of pages of the size, which is appended to `out` until `close`. */
    err_t (*open)(double width, double height, const char *title, struct buf *out, struct canvas **ret,
                  struct why *why);
    void (*page_end)(struct canvas *c);                             /* the next call draws on a new page */
    void (*outline)(struct canvas *c, int page, const char *title); /* an entry of the table of contents; page from 1 */
    /* Ends the file and frees the canvas. An error of any call before is returned here. */
    err_t (*close)(struct canvas *c, struct why *why);
};

#endif
