/* An incident of a job: what was detected, what control decided, and how long the recovery took. The same struct is
 * used by the job, the record of the log, the replicated state and the client. The first start of a job has the same
 * fields: its durations are those of a recovery that begins with the submit.
 *
 * A new field is a row here, and the code that sets it (daemon/control/job/epoch.c). `dtctl why` and `-o json` print it
 * without further changes. A field that has no number of its own in proto/log.proto or proto/client.proto travels there
 * as a named value (FieldValue), which older versions store and pass on. */
#ifndef DTD_COMMON_RPC_INCIDENT_H
#define DTD_COMMON_RPC_INCIDENT_H

#include "common/rpc/fields.h"

/* In the order of the lines of `dtctl why`. recover_ms is the sum of restart_ms (until the new epoch is announced),
 * load_ms (until all workers have loaded the checkpoint) and step_ms (until the first step is complete). The rows from
 * slots_ms to log_ms are parts of restart_ms; those from data_ms to state_ms are parts of load_ms, measured by the
 * worker that took longest. One row is one line: a new row changes no other. */
// clang-format off
#define INCIDENT_FIELDS(X) \
    X(UINT, epoch, FIELD_REQUIRED) /* the epoch that the incident ended */ \
    X(INT, wall_ms, FIELD_REQUIRED) /* with `epoch`, identifies the incident of a job */ \
    X(TEXT, seen, FIELD_REQUIRED, .label = "seen") \
    X(TEXT, decided, FIELD_REQUIRED, .label = "decided") \
    X(REAL, detect_ms, FIELD_OPTIONAL, .label = "detection", .digits = 4, .unit = "ms") /* from exit to decision */ \
    X(REAL, recover_ms, FIELD_OPTIONAL, .label = "recovery", .digits = 4, .unit = "ms") \
    X(REAL, restart_ms, FIELD_OPTIONAL, .label = "  restart", .digits = 4, .unit = "ms") \
    X(REAL, slots_ms, FIELD_OPTIONAL, .label = "    slots", .digits = 4, .unit = "ms") /* wait for them */ \
    X(REAL, connect_ms, FIELD_OPTIONAL, .label = "    connect", .digits = 4, .unit = "ms") /* processes start */ \
    X(REAL, scan_ms, FIELD_OPTIONAL, .label = "    scan", .digits = 4, .unit = "ms") /* of the checkpoint folder */ \
    X(REAL, log_ms, FIELD_OPTIONAL, .label = "    log", .digits = 4, .unit = "ms") /* commit of the epoch's record */ \
    X(REAL, load_ms, FIELD_OPTIONAL, .label = "  loading", .digits = 4, .unit = "ms") \
    X(REAL, data_ms, FIELD_OPTIONAL, .label = "    data", .digits = 4, .unit = "ms") /* job file, data, device */ \
    X(REAL, plan_ms, FIELD_OPTIONAL, .label = "    program", .digits = 4, .unit = "ms") /* compiled and checked */ \
    X(REAL, join_ms, FIELD_OPTIONAL, .label = "    joining", .digits = 4, .unit = "ms") /* of the ranks */ \
    X(REAL, memory_ms, FIELD_OPTIONAL, .label = "    memory", .digits = 4, .unit = "ms") \
    X(REAL, state_ms, FIELD_OPTIONAL, .label = "    state", .digits = 4, .unit = "ms") /* loaded or drawn */ \
    X(REAL, step_ms, FIELD_OPTIONAL, .label = "  first step", .digits = 4, .unit = "ms") \
    X(INT, lost_steps, FIELD_OPTIONAL, .label = "steps lost") /* steps that are repeated */ \
    X(TEXT, error, FIELD_OPTIONAL, .label = "error", .look = LOOK_LINES) /* of the first worker that recorded one */ \
    X(TEXT, log, FIELD_OPTIONAL, .label = "last log lines", .look = LOOK_LINES) /* of the failed worker */ \
    X(BOOL, is_start, FIELD_INTERNAL) /* the first start of the job, which is no incident */ \
    X(INT, restarts, FIELD_INTERNAL) /* restarts of the job, including this one; absent: no epoch ended */ \
    X(UINT, event, FIELD_INTERNAL) /* enum event_kind, where it does not follow from the other fields */ \
    X(TEXT, node, FIELD_INTERNAL) /* the node of an event that belongs to no job */
// clang-format on

/* Parts of loading, in the order of a worker's READY report. */
enum load_part { LOAD_DATA, LOAD_PLAN, LOAD_JOIN, LOAD_MEMORY, LOAD_STATE, LOAD_PARTS };

struct incident {
    INCIDENT_FIELDS(FIELD_MEMBER)
    struct field_rest rest;
};

extern const struct field_table incident_fields;
extern const struct incident incident_none; /* every field is absent */

#endif
