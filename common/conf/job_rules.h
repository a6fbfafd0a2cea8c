/* What no single key of a job file can say: rules over several keys, and what this version cannot do yet. One table in
 * job_rules.c; called by job_parse only. */
#ifndef DTD_COMMON_CONF_JOB_RULES_H
#define DTD_COMMON_CONF_JOB_RULES_H

#include "common/conf/job.h"
#include "common/conf/schema.h"

/* The first broken rule, at the line of its key, with the remedy. */
NODISCARD err_t job_rules_check(const struct schema_reader *r, const struct job_spec *job, struct why *why);

#endif
