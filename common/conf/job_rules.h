/* Rules over several keys of a job file, and features that this version does not support. The rules are one table in
 * job_rules.c. Only job_parse calls job_rules_check. */
#ifndef DTD_COMMON_CONF_JOB_RULES_H
#define DTD_COMMON_CONF_JOB_RULES_H

#include "common/conf/job.h"
#include "common/conf/schema.h"

/* What the job file needs to know about an architecture; the rows of models.inc. */
enum arch_head { HEAD_FREE, HEAD_ALWAYS, HEAD_NEVER };
struct arch_rules {
    const char *name;
    bool rotary;         /* positions turn pairs */
    bool grouped;        /* fewer key-value heads than heads are legal */
    enum arch_head head; /* whether it shares the embedding table */
};
const struct arch_rules *job_arch_rules(enum model_arch arch);

/* Reports the first broken rule at the line of its key, with the remedy. */
NODISCARD err_t job_rules_check(const struct schema_reader *r, const struct job_spec *job, struct why *why);
/* Whether the job may compute rows of experts in as many rounds as its parallel.expert_rows requires. */
bool job_may_round(const struct job_spec *job);
/* Whether the job may have parallel.expert_load balanced, whatever it has now. */
bool job_may_balance(const struct job_spec *job);

#endif
