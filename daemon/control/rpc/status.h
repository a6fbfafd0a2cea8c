/* A job's status as a message for clients. It borrows from the job and the state: send it before either changes. Loop
 * thread. */
#ifndef DTD_DAEMON_CONTROL_RPC_STATUS_H
#define DTD_DAEMON_CONTROL_RPC_STATUS_H

#include "common/rpc/field_codec.h"
#include "daemon/control/job/job.h"
#include "daemon/control/rpc/server.h"
#include "proto/client.pb-c.h"

struct job_status {
    Dtd__JobStatus msg;
    Dtd__Metric last;
    struct totals_message totals;
    char id[24], parent[24], user[80];
    Dtd__WorkerStatus *workers;
    Dtd__WorkerStatus **worker_refs;
    Dtd__Straggler stragglers[JOB_STRAGGLERS_MAX], *straggler_refs[JOB_STRAGGLERS_MAX];
    char straggler_texts[JOB_STRAGGLERS_MAX][400];
    Dtd__Incident start;
    Dtd__Incident *incidents;
    Dtd__Incident **incident_refs;
};

/* `full`: include workers, incidents and the spec. On an error (ERR_NOMEM) nothing is to be freed. */
NODISCARD err_t job_status_fill(struct job_status *ret, struct rpc_server *server, struct job *j, bool full);
/* Removes what only the owner may see. Name, state, owner, number of workers and times remain. */
void job_status_hide(struct job_status *s);
void job_status_fini(struct job_status *s);

#endif
