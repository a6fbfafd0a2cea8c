/* The report of a job (`dtctl report`): what is known of it, as plain data.
 *
 * model.c gathers everything once. ledger.c, series.c and advice.c compute from it without any call; sections.c makes
 * the document of it (doc.h), which html.c writes as a page and pages.c lays out on paper. One thread. The job, its
 * rows and its checkpoints are borrowed: the caller of report_init keeps them until report_fini. */
#ifndef DTD_CLIENT_REPORT_REPORT_H
#define DTD_CLIENT_REPORT_REPORT_H

#include "client/client.h"
#include "client/measured.h"
#include "client/report/ledger.h"
#include "client/report/usage_samples.h"
#include "client/spec.h"
#include "client/step_parts.h"
#include "common/conf/job.h"

/* Numbers of the plan with which the job ran last. */
struct report_plan {
    bool made;          /* false: `missing` has the reason */
    char missing[1200]; /* a sentence */
    struct spec_facts facts;
};

struct report_input {
    const struct client_job *job;
    const struct metric *row; /* ascending by step */
    size_t n_rows;
    const struct client_checkpoint *checkpoint;
    int n_checkpoints;
    const struct usage_samples *usage; /* NULL, or without rows: those beside the checkpoints are read */
    const char *cluster;               /* name of the node that leads, or of this node; "": unknown */
    int64_t now_ms;                    /* end of the report for a job that has not ended */
};

struct report {
    struct report_input in;
    const struct client_job *job;
    int64_t end_ms; /* of the job, or of the report */
    bool ended, has_spec;
    struct job_spec spec;       /* empty unless has_spec */
    struct usage_samples usage; /* may belong to the input: own_usage */
    bool own_usage;
    struct report_plan plan;
    struct measured_step measured; /* did.n 0: no step was timed */
    bool has_step;                 /* the job has a forecast of its step */
    struct step_compare step;
    struct ledger ledger;
    const char *data_network; /* file system over which nodes read data.cache; NULL: a local one */
    bool gpus;                /* the workers compute on GPUs */
};

/* Parses the job's file, reads the usage samples and the measured step beside its checkpoints, and forecasts the plan.
 * What is absent is left out: only ERR_NOMEM is an error. */
NODISCARD err_t report_init(const struct report_input *in, struct report *ret, struct why *why);
void report_fini(struct report *r);
/* "GPU", or "worker" for a job on CPUs. */
const char *report_unit(const struct report *r);
/* The number of workers that a row names, or that the job has. */
int report_workers(const struct report *r);

#endif
