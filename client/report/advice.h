/* Plain advice from a job's numbers: a table of rules. Pure. */
#ifndef DTD_CLIENT_REPORT_ADVICE_H
#define DTD_CLIENT_REPORT_ADVICE_H

#include "client/report/report.h"

#define ADVICE_TEXT 640

struct advice_rule {
    const char *name;  /* in JSON */
    const char *title; /* the finding in a few words */
    /* Whether the rule applies; then ret_text is a sentence or two with its numbers and the remedy. */
    bool (*applies)(const struct report *r, char ret_text[ADVICE_TEXT]);
};
extern const struct advice_rule advice_rules[];
extern const int n_advice_rules;

#endif
