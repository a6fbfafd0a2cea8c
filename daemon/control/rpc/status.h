/* A job's status as the message that clients get; borrowed from the job and the state, to be packed at once. */
#ifndef DTD_DAEMON_CONTROL_RPC_STATUS_H
#define DTD_DAEMON_CONTROL_RPC_STATUS_H

#include "daemon/control/job/job.h"
#include "proto/client.pb-c.h"

struct job_status {
    Dtd__JobStatus msg;
    Dtd__Metric last;
    char id[24], parent[24], user[80];
    Dtd__WorkerStatus *workers;
    Dtd__WorkerStatus **worker_refs;
    Dtd__Incident *incidents;
    Dtd__Incident **incident_refs;
};

/* `full`: with workers, incidents and the spec. On an error nothing is to be freed. */
NODISCARD err_t job_status_fill(struct job_status *ret, struct job *j, bool full);
/* Leaves what everybody may know of a job: name, state, owner, size, times. */
void job_status_hide(struct job_status *s);
void job_status_fini(struct job_status *s);

#endif
