/* The document of a report: its sections in order. Pure. */
#ifndef DTD_CLIENT_REPORT_SECTIONS_H
#define DTD_CLIENT_REPORT_SECTIONS_H

#include "client/report/doc.h"
#include "client/report/report.h"

#include <jansson.h>

/* The caller frees *ret, also after an error, which is in ret->err. */
void report_document(const struct report *r, struct doc *ret);
/* Ledger and advice; a new reference, or NULL when out of memory. */
json_t *report_json(const struct report *r);

#endif
