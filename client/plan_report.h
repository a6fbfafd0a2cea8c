/* The report of `dtctl plan` and `dtctl submit --dry-run`: what a checked job needs. */
#ifndef DTD_CLIENT_PLAN_REPORT_H
#define DTD_CLIENT_PLAN_REPORT_H

#include "client/spec.h"

#include <jansson.h>

/* Prints the report as text on standard output. */
void plan_report_print(const struct job_spec *job, const struct spec_facts *f);
/* The same facts as JSON: a new reference, or NULL when out of memory. */
json_t *plan_report_json(const struct job_spec *job, const struct spec_facts *f);

#endif
