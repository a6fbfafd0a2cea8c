/* The worker's link to its node's control process and to its job's dtd-io: a thread with a uv loop of its own, so that
 * the compute thread never waits for a socket and a socket never waits for a kernel.
 *
 * Everything here is called by the compute thread unless said otherwise; between the threads lie one mutex and one
 * condition. Connections come back by themselves: reports wait until somebody takes them, unfinished saves and loads
 * are repeated. When control stays away for longer than the job's orphan_seconds, the epoch is canceled and link_next
 * says ERR_CLOSED. Plain structs only: protobuf ends in this folder. */
#ifndef DTD_WORKER_LINK_LINK_H
#define DTD_WORKER_LINK_LINK_H

#include "common/base/ticket.h"
#include "common/ckpt/ckpt.h"
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
/* Sends what is queued (for at most 5 s) and ends the thread. */
void link_stop(struct link *l);

/* ---- epochs ---- */

struct link_epoch {
    uint64_t epoch;
    int rank, world;
    int64_t resume_step;
    char *spec_yaml, *resume_path; /* freed by link_epoch_fini, as all below; resume_path "" when there is none */
    int n_nodes;
    int *node_of;                      /* of each rank, 0 .. n_nodes - 1 */
    uint8_t secret[LINK_SECRET_BYTES]; /* of this epoch's workers alone; zero where they are on one node */
    char *address;                     /* host on which other nodes reach this worker; "": none */
};
void link_epoch_fini(struct link_epoch *e);
/* Waits for the next epoch to join. ERR_CLOSED: the process is to end. */
NODISCARD err_t link_next(struct link *l, struct link_epoch *ret);
/* This thread has left the epoch: comm closed, nothing of it is touched any more. */
void link_leave(struct link *l);
/* Not 0 once the epoch is over or the process is to end. Any thread. */
const _Atomic int *link_cancel(const struct link *l);
/* The comm that the end of the epoch must abort; NULL before it is closed. */
void link_set_comm(struct link *l, struct comm *comm);
/* The store of the present epoch; as long as `l`. Calls block the compute thread; they end with ERR_CANCELED when the
 * epoch does. */
const struct comm_store *link_store(struct link *l);
void link_set_orphan_seconds(struct link *l, int64_t seconds);

/* What control has asked for: 0 nothing, 1 stop after this step, 2 and save before. */
enum link_stop_kind { LINK_GO_ON, LINK_STOP, LINK_STOP_AND_SAVE };
enum link_stop_kind link_stop_asked(struct link *l);

/* ---- reports ---- */

struct link_metric {
    int64_t step;
    double loss, grad_norm, lr, tokens_per_s, step_s;
    double valid_loss, test_loss; /* NAN when it was not measured */
    int workers;
    bool skipped;
    struct traffic traffic;
};

void link_report_ready(struct link *l, int64_t step);
void link_report_metric(struct link *l, const struct link_metric *m);
void link_report_done(struct link *l, int64_t step);
void link_report_failed(struct link *l, int64_t step, bool fatal, const char *text);

/* ---- checkpoints ---- */

struct link_save {
    int64_t step;
    int world;
    double loss;
    const struct snapshot *snapshot;
    const struct ckpt_scalar *scalars;
    int n_scalars;
};
/* Hands the arena's contents over; returns at once. The arena must be free: link_save_wait. */
NODISCARD err_t link_save(struct link *l, const struct link_save *s);
/* Waits until the last save has let go of the arena or, with `committed`, until it is a checkpoint. OK when there was
 * none. ERR_CANCELED when the epoch ends; else the save's own error, with its sentence. */
NODISCARD err_t link_save_wait(struct link *l, bool committed, struct why *why);

/* Reads pieces first .. end-1 of `s` into the arena. values[i] and found[i] for each of the names; n_names may be 0. */
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

#endif
