/* A document on pages of paper (A4), drawn by the module dtd-report.so. */
#ifndef DTD_CLIENT_REPORT_PAGES_H
#define DTD_CLIENT_REPORT_PAGES_H

#include "client/report/doc.h"
#include "client/report/report_module.h"

/* Loads the module. ERR_UNSUPPORTED names the package that has it. */
NODISCARD err_t pages_module(const struct report_module **ret, struct why *why);
NODISCARD err_t pages_write(const struct doc *d, const struct report_module *module, struct buf *ret, struct why *why);

#endif
