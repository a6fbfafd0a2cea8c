/* The worker's link to its node's dtd-control and to its job's dtd-io. It has its own thread with a uv loop, so the
 * compute thread never waits for a socket and a socket never waits for a compute kernel.
 *
 * The compute thread calls all functions, except where noted. The two threads share one mutex and one condition
 * variable. Lost connections are re-established automatically: reports are queued until control acknowledges them, and
 * unfinished saves and loads are repeated. If control is disconnected for longer than the job's orphan_seconds, the
 * epoch is canceled and link_next returns ERR_CLOSED. The interface has plain structs only: protobuf types are not used
 * outside this folder. */
#ifndef DTD_WORKER_LINK_LINK_H
#define DTD_WORKER_LINK_LINK_H

#include "common/base/ticket.h"
#include "common/ckpt/ckpt.h"
#include "common/rpc/incident.h"
#include "common/rpc/metric.h"
#include "common/rpc/usage.h"
#include "worker/comm/comm.h"
#include "worker/step/snapshot.h"

#include <stdbool.h>
#include <stdint.h>

#define LINK_SECRET_BYTES 32

struct link;

struct link_config {
    const char *job;
    int slot;
    struct ticket ticket;
};

NODISCARD err_t link_start(const struct link_config *config, struct link **ret);
/* Sends the queued messages (for at most 5 s) and ends the thread. */
void link_stop(struct link *l);

/* ---- epochs ---- */

struct link_epoch {
    uint64_t epoch;
    int rank, world;
    int64_t resume_step;
    char *spec_yaml, *resume_path; /* link_epoch_fini frees these and the pointers below; resume_path "": none */
    int n_nodes;
    int *node_of;                      /* node number of each rank, 0 .. n_nodes - 1 */
    uint8_t secret[LINK_SECRET_BYTES]; /* shared by this epoch's workers only; zero if they are on one node */
    char *address;                     /* host at which other nodes reach this worker; "": none */
};
void link_epoch_fini(struct link_epoch *e);
/* Waits for the next epoch to join. ERR_CLOSED: the process must exit. */
NODISCARD err_t link_next(struct link *l, struct link_epoch *ret);
/* Called when this thread has left the epoch: the comm is closed and nothing of the epoch is used any more. */
void link_leave(struct link *l);
/* Not 0 once the epoch has ended or the process must exit. Any thread. */
const _Atomic int *link_cancel(const struct link *l);
/* Sets the comm that is aborted at the end of the epoch; set NULL before closing it. */
void link_set_comm(struct link *l, struct comm *comm);
/* The rendezvous store of the current epoch; valid as long as `l`. Its calls block the compute thread and return
 * ERR_CANCELED when the epoch ends. */
const struct comm_store *link_store(struct link *l);
void link_set_orphan_seconds(struct link *l, int64_t seconds);

/* The request of control: continue, stop after this step, or save and stop after this step. The values are ordered:
 * ranks agree on the maximum. */
enum link_stop_kind { LINK_GO_ON, LINK_STOP, LINK_STOP_AND_SAVE };
enum link_stop_kind link_stop_asked(struct link *l);

/* A request of control to record the next steps. Ids ascend; the compute thread ignores one that it has served. */
#define LINK_PROFILE_STEPS 64
#define LINK_PROFILE_IDS ((uint64_t)1 << 48) /* ids are below: milliseconds of the wall clock, for 8,900 years */
struct link_profile {
    uint64_t id;
    int steps; /* 0: there is no request in this epoch */
};
struct link_profile link_profile_asked(struct link *l);

/* ---- reports ---- */

/* `part_ms`: durations of the parts of loading. */
void link_report_ready(struct link *l, int64_t step, const double part_ms[LOAD_PARTS]);
/* Sends the metric of a step. The link sets its epoch and time. */
void link_report_metric(struct link *l, const struct metric *m);
/* This rank's file of the profile is complete; `text`: the reason why there is none, NULL: none. */
void link_report_profiled(struct link *l, uint64_t id, const char *text);
/* Sends the usage of this rank. If earlier usage has not been sent yet, it is dropped: there is no connection. */
void link_report_usage(struct link *l, const struct usage_report *u);
void link_report_done(struct link *l, int64_t step);
void link_report_failed(struct link *l, int64_t step, bool fatal, err_t load_error, const char *text);

/* ---- checkpoints ---- */

struct link_save {
    int64_t step;
    int world;
    double loss;
    const struct snapshot *snapshot;
    const struct ckpt_scalar *scalars;
    int n_scalars;
};
/* Starts a save of the arena's contents; returns at once. No earlier save may be using the arena: see link_save_wait.
 */
NODISCARD err_t link_save(struct link *l, const struct link_save *s);
/* Waits until the last save no longer uses the arena or, with `committed`, until its checkpoint is committed. OK when
 * there was no save. ERR_CANCELED when the epoch ends; otherwise the error and message of the save. */
NODISCARD err_t link_save_wait(struct link *l, bool committed, struct why *why);

/* Reads pieces first .. end-1 of `snapshot` into the arena, and sets values[i] and found[i] for each scalar in `names`;
 * n_names may be 0. */
struct link_load {
    const char *path;
    const struct snapshot *snapshot;
    int first, end;
    const char *const *names;
    int64_t *values;
    bool *found;
    int n_names;
    int64_t bytes_needed, bytes_read; /* results */
};
NODISCARD err_t link_load(struct link *l, struct link_load *load, struct why *why);

/* Asks dtd-io for the copy of the job's data on this node (data.stage), and waits until it is complete. */
struct link_staged_set {
    char hash[65];
    int64_t offset;
};
struct link_stage {
    int world;
    int64_t need_bytes; /* of memory that this worker will take */
    /* Results. path "": there is no copy, and the data is read in place. */
    char path[64];
    uint64_t device, inode; /* of the file that must be found there */
    struct link_staged_set *sets;
    int n_sets;
    int64_t bytes;
    struct why note; /* for the log of this worker; "": none */
};
NODISCARD err_t link_stage(struct link *l, struct link_stage *stage, struct why *why);
void link_stage_fini(struct link_stage *stage);

#endif
