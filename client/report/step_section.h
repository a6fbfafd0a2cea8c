/* The section of a report that compares the forecast of a step with its measurement. Pure. */
#ifndef DTD_CLIENT_REPORT_STEP_SECTION_H
#define DTD_CLIENT_REPORT_STEP_SECTION_H

#include "client/report/doc.h"
#include "client/report/report.h"

void step_section(const struct report *r, struct doc *d);

#endif
