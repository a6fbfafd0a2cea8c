/* dtd-io: reads and writes the checkpoints of one job, as the job's user. Workers call it on its own socket; control
 * sends it commands over a link that reconnects automatically. dtd-io makes no scheduling decisions.
 *
 * One uv loop owns every struct here. Only work in uv's thread pool, and the thread of curves.c, access files. Such
 * work uses nothing but its own operation: its inputs were copied into the operation, and the loop takes over the
 * results afterwards. Work that changes the checkpoint directory (scan, epoch, commit, remove, metrics) runs one after
 * another in a queue, dirwork. Writing parts, loading, and looking for the files of other nodes run in parallel to it.
 */
#ifndef DTD_DAEMON_IO_IO_H
#define DTD_DAEMON_IO_IO_H

#include "common/base/ticket.h"
#include "common/ckpt/lease.h"
#include "common/ckpt/read_claims.h"
#include "common/rpc/methods.h"

#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct io;

/* ---- the job's spec (spec.c) ---- */

struct io_spec {
    char *yaml;                /* NULL: control has not sent it yet */
    char *root;                /* the checkpoint directory */
    char *cache, *data_hash;   /* of the prepared training data */
    char *tensorboard, *wandb; /* folders for curves; "": none */
    char *report;              /* file or folder for the report of the job; "": none */
    char *resume_from;         /* the step folder of another job from which this one started; "": none */
    char **map;                /* rules for ckpt_rename, for resume_from only */
    int n_map;
    uint64_t take_over; /* incarnation of the job whose lease may be taken although it lives; 0: none */
    int64_t orphan_ms;  /* dtd-io exits when control has been unreachable for this long */
    int umask;          /* of the process, while it has this spec */
};
/* Replaces *s; on an error *s is unchanged. */
NODISCARD err_t io_spec_parse(struct io_spec *s, const char *yaml, struct why *why);
void io_spec_fini(struct io_spec *s);
/* Appends the tokenizer's vocabulary; nothing for the byte tokenizer. Blocking. */
NODISCARD err_t io_spec_vocab(const char *cache, const char *hash, struct buf *ret, struct why *why);
/* Copies *from; ERR_NOMEM leaves nothing behind. */
NODISCARD err_t io_spec_copy(const struct io_spec *from, struct io_spec *ret);
/* Appends the CKPT_HF_FILE of the checkpoint from which step `step` descends: the newest one before it in the job's own
 * folder, else the one that it resumed from. Nothing if the model was not imported. Blocking. */
NODISCARD err_t io_spec_hf(const struct io_spec *s, int64_t step, struct buf *ret, struct why *why);

/* ---- work in uv's threads (work.c) ---- */

struct io_work {
    uv_work_t uv;
    struct io *io;
    void (*run)(struct io_work *w);  /* in a thread */
    void (*done)(struct io_work *w); /* on the loop; frees the work */
    struct io_work *next;
    err_t err;
    struct why why;
};
void io_work_start(struct io *io, struct io_work *w);
/* The same through dirwork: one after another, in the order of the calls. */
void io_work_start_dir(struct io *io, struct io_work *w);

/* ---- requests of workers, as plain structs ---- */

struct io_request {
    enum io_request_kind { IO_REQUEST_HELLO, IO_REQUEST_SAVE, IO_REQUEST_LOAD, IO_REQUEST_STAGE } kind;
    struct rpc_call *call; /* NULL: the caller has disconnected or canceled */
    int slot;
    uint64_t epoch;
    int64_t step;
    int rank, world;
    double loss;
    char *path;         /* of a load */
    int64_t need_bytes; /* of a stage */
    struct ckpt_piece *pieces;
    uint64_t *arena_offsets;
    int n_pieces;
    struct ckpt_scalar *scalars;
    int n_scalars;
    char **names; /* of scalars to load */
    int n_names;
    struct io_request *next; /* in the list of deferred requests */
};
void io_request_free(struct io_request *r);
/* Takes a request over: starts it, refuses it, or defers it until io_retry. */
void io_take(struct io *io, struct io_request *r);
void io_defer(struct io *io, struct io_request *r);
/* Tries the deferred requests again, after a change of any condition for which they wait. */
void io_retry(struct io *io);

/* ---- arenas (arena.c) ---- */

struct io_arena {
    uint8_t *map;
    size_t bytes;
    int refs;
    bool touched; /* its pages are being mapped, or have been */
};
struct io_arena_slot {
    int fd;          /* 5 + slot */
    uv_mutex_t lock; /* of the newest mapping and of all references; operations run in threads */
    struct io_arena *newest;
};
/* The mapping of the worker's arena at its present size; sets the address of every piece. ERR_INVALID: a piece lies
 * outside the arena. */
NODISCARD err_t io_arena_get(struct io_arena_slot *slot, struct io_request *r, struct io_arena **ret, struct why *why);
void io_arena_put(struct io_arena_slot *slot, struct io_arena *a);
/* Maps the pages of the arena in a thread, unless that has been done: without that a load, which starts beside it,
 * would take a page fault for every 4 KiB. */
void io_arena_touch(struct io *io, int slot);
void io_arena_slot_fini(struct io_arena_slot *slot);

/* ---- the job's other dtd-ios (share.c) ---- */

/* A file that is looked for repeatedly, with increasing pauses. */
struct io_poll {
    bool on, running;
    int64_t since_ms, next_ms, deadline_ms;
};
void io_poll_begin(struct io *io, struct io_poll *p, int64_t wait_ms);
void io_poll_again(struct io *io, struct io_poll *p);

/* The role of this dtd-io among those of the job, as given by the EPOCH command. */
struct io_share {
    bool on;        /* the job has several dtd-ios and one shared checkpoint directory */
    bool committer; /* this one commits; the others (followers) write their parts and wait */
    int *ranks;     /* ranks whose workers are on this node, ascending; none: all ranks */
    int n_ranks;
    struct ckpt_writer_id me;
    char node[64], committer_node[64];
    struct io_poll ready; /* looks whether the directory is ready for this epoch */
    err_t refusal;        /* why saves are refused; OK: they are accepted, or wait until the directory is ready */
    struct why why;
};
struct io_command;
NODISCARD err_t io_share_take(struct io *io, const struct io_command *c);
/* The committer prepares the directory for the epoch, the others wait until it is ready. Repeated until it succeeds. */
void io_share_prepare(struct io *io);
bool io_share_owns(const struct io_share *s, int rank);
int io_share_count(const struct io_share *s, int world); /* number of ranks below `world` on this node */
NODISCARD err_t io_share_start(struct io *io);
void io_share_stop(struct io *io);
void io_share_fini(struct io *io);

/* ---- the lease of the checkpoint directory (owner.c) ---- */

struct io_owner {
    uv_mutex_t lock; /* of the lease, the watch and `told`, which threads use */
    struct ckpt_lease lease;
    struct ckpt_lease_watch watch;
    bool told;                          /* the log has the owner for whose end this dtd-io waits */
    char dtd_dir[CKPT_LEASE_DIR_BYTES]; /* for messages of other jobs; "": of a system-wide dtd */
    int64_t renew_ms;                   /* option, see main.c */
    uv_timer_t renew, look;
    bool renewing;
    err_t warned;            /* of the last renewal */
    struct io_work *waiting; /* the SCAN that waits until it is known whether the owner lives, or NULL */
};
/* In a thread. `scan`: before the epoch is in the log. ERR_AGAIN: another job has the lease, and it is not known yet
 * whether that job lives; repeat. ERR_OWNED: it lives. ERR_STALE: a later epoch of this job has the lease. */
NODISCARD err_t io_owner_take(struct io_owner *o, const char *root, const struct ckpt_writer_id *me, uint64_t take_over,
                              bool scan, struct why *why);
/* Renews the lease from now on, if it is held. */
void io_owner_keep(struct io *io);
/* Starts the work again in dirwork after a pause. io_owner_forget ends it with ERR_CANCELED instead. */
void io_owner_wait(struct io *io, struct io_work *w);
void io_owner_forget(struct io *io);
/* Another job has taken the directory over: reports it, and refuses all saves. */
void io_owner_lost(struct io *io, const char *text);
void io_owner_release(struct io *io);
NODISCARD err_t io_owner_start(struct io *io);
void io_owner_stop(struct io *io);
void io_owner_fini(struct io *io);

/* ---- saves (save.c, gather.c) ---- */

struct io_part {
    enum io_part_state { PART_NONE, PART_WRITING, PART_WRITTEN } state;
    struct rpc_call *call; /* NULL: no worker waits for it */
    struct ckpt_part *part;
    bool spoilt; /* the worker used its arena for another request while the part was being written from it */
    struct io_save *save;
};

struct io_save {
    struct io *io;
    char low[200]; /* warning after a commit that leaves no room for another checkpoint; "": none */
    uint64_t epoch;
    int64_t step;
    int world, n_own; /* n_own: number of ranks on this node */
    double loss;
    enum io_save_state { SAVE_OPEN, SAVE_WAITING, SAVE_COMMITTING, SAVE_DONE } state;
    bool shared, committer;
    bool failed_by_committer; /* the committer's dtd-io has failed the save, and reports it to control */
    struct ckpt_writer_id me;
    struct io_poll look; /* while WAITING */
    bool removing;       /* the files of the failed save are being removed */
    err_t err;           /* of DONE */
    struct why reason;   /* of an error, without the name of the step: passed on to the other dtd-ios */
    struct why why;      /* of an error: the message for workers and control */
    int n_written, n_writing;
    struct io_part *parts; /* by rank */
    struct io_save *next;
};
void io_save_take(struct io *io, struct io_request *r);
/* For gather.c: the end of the wait. `reason` does not name the step. `failed_by_committer`: the committer's dtd-io has
 * failed the save and reports it to control. */
void io_save_commit(struct io_save *s);
void io_save_succeed(struct io_save *s, const struct ckpt_info *info, const char *path);
void io_save_fail(struct io_save *s, err_t err, const char *reason, bool failed_by_committer);
void io_save_sweep(struct io *io);
/* OPEN -> WAITING: the committer waits for the parts of the other nodes, the others wait for its commit. */
void io_gather_begin(struct io_save *s);
/* Looks for the files of the other dtd-ios. */
void io_gather_look(struct io_save *s);
/* Fails the open saves of older epochs. */
void io_save_expire(struct io *io);
void io_save_fini(struct io *io);

/* ---- loads (load.c) ---- */

void io_load_take(struct io *io, struct io_request *r);

/* ---- the copy of the job's data on this node (stage.c) ---- */

struct io_staged_set {
    char hash[65];
    int64_t offset;
};
struct io_copy {
    int fd; /* -1: the data is read in place */
    char path[64];
    uint64_t device, inode;
    struct io_staged_set *sets;
    int n;
    int64_t bytes;
};
struct io_stage {
    bool running;
    bool known;     /* `copy` is the answer for requests of `epoch`, or of all epochs if there is a copy */
    uint64_t epoch; /* in which it was made */
    struct io_copy copy;
    struct io_request *waiting; /* for the end of the work */
    atomic_bool cancel;         /* ends the work; threads read it */
};
void io_stage_take(struct io *io, struct io_request *r);
void io_stage_fini(struct io *io);

/* ---- workers (server.c, rpc_worker.c) ---- */

struct io_conn {
    struct rpc_conn *conn;
    int slot; /* -1: no Hello has been received */
    struct io_conn *next;
};
NODISCARD err_t io_server_start(struct io *io, int listen_fd);
void io_server_stop(struct io *io);
void io_server_hello(struct io *io, struct io_request *r); /* the token has been checked */
void rpc_worker_hello(void *owner, struct rpc_call *call, const ProtobufCMessage *request);
void rpc_worker_save(void *owner, struct rpc_call *call, const ProtobufCMessage *request);
void rpc_worker_load(void *owner, struct rpc_call *call, const ProtobufCMessage *request);
void rpc_worker_stage(void *owner, struct rpc_call *call, const ProtobufCMessage *request);
void rpc_worker_event(struct rpc_call *call, bool committed); /* sends an item of Save: WRITTEN or COMMITTED */
void rpc_worker_hello_done(struct rpc_call *call);
void rpc_worker_stage_done(struct rpc_call *call, const struct io_copy *copy, const char *note); /* note "": none */
void rpc_worker_load_done(struct rpc_call *call, const struct ckpt_read_stats *stats, const struct ckpt_scalar *scalars,
                          int n_scalars);

/* ---- control (control.c, rpc_control.c) ---- */

enum io_command_kind {
    IO_CMD_EPOCH,
    IO_CMD_REMOVE,
    IO_CMD_METRICS,
    IO_CMD_QUIT,
    IO_CMD_SCAN,
    IO_CMD_HISTORY,
    IO_CMD_USAGE,
    IO_CMD_USAGE_HISTORY,
};
struct io_command {
    enum io_command_kind kind;
    uint64_t epoch;
    int64_t step, at; /* at: of HISTORY */
    const char *text;
    /* of EPOCH */
    bool committer;
    const int32_t *ranks;
    size_t n_ranks;
    int n_ios;
    int64_t submitted_ms; /* also of SCAN */
    uint64_t generation;  /* of the cluster; also of SCAN */
    const char *node, *committer_node;
};
void io_command(struct io *io, const struct io_command *c);

enum io_report_kind {
    IO_COMMITTED,
    IO_SAVE_FAILED,
    IO_SCANNED,
    IO_REMOVED,
    IO_HISTORY,
    IO_LOST,
    IO_USAGE_HISTORY,
};
struct io_queued_report {
    enum io_report_kind kind;
    uint64_t epoch;
    bool has_checkpoint;
    struct ckpt_info checkpoint;
    char *path, *text;
    bool sent; /* sent and not acknowledged yet */
    struct io *io;
    struct io_queued_report *next;
};
NODISCARD err_t io_control_start(struct io *io);
void io_control_stop(struct io *io);
/* Queues a report, which is kept until control acknowledges it. Copies path and text. info may be NULL. */
void io_report(struct io *io, enum io_report_kind kind, uint64_t epoch, const struct ckpt_info *info, const char *path,
               const char *text);
/* The adapter; each function sends one message. */
NODISCARD err_t rpc_control_hello(struct io *io, struct rpc_conn *conn, rpc_callback cb);
NODISCARD err_t rpc_control_commands(struct io *io, struct rpc_conn *conn, rpc_callback cb);
NODISCARD err_t rpc_control_report(struct io *io, struct rpc_conn *conn, const struct io_queued_report *r,
                                   rpc_callback cb);
/* False: the message is not a known command. */
bool rpc_control_command(const ProtobufCMessage *m, struct io_command *ret);

/* ---- curves for TensorBoard and W&B (curves.c) ---- */

struct io_curves {
    uv_thread_t thread;
    bool tried, running; /* the thread starts with the first lines of a job that has run.tensorboard or run.wandb */
    uv_mutex_t lock;     /* of all members below */
    uv_cond_t more;
    struct buf lines;       /* that the thread has not taken yet */
    bool ending, lost;      /* no more lines come; some were dropped, so that the thread writes none after them */
    bool ended, late, left; /* the thread has ended; is not waited for any more; may not use `wake` any more */
    uv_async_t wake;        /* from the thread: it has ended */
    uv_timer_t timer;
};
NODISCARD err_t io_curves_start(struct io *io);
/* Lines of metrics; never waits for a file. */
void io_curves_take(struct io *io, const char *lines);
/* Lets the thread write what it has, for a few seconds. */
void io_curves_end(struct io *io);
bool io_curves_busy(struct io *io);
void io_curves_stop(struct io *io);

/* ---- the program ---- */

struct io {
    uv_loop_t loop;
    const char *job;
    struct ticket ticket;
    struct io_spec spec;
    bool epoch_known;
    uint64_t epoch;
    bool prepared; /* the directory is ready for `epoch`; before, it may still contain steps of an older epoch */
    int64_t resume_step;
    struct io_share share;
    struct io_owner owner;
    struct io_curves curves;
    uv_timer_t poll_timer;
    int64_t word_wait_ms, save_wait_ms; /* options, see main.c */

    struct io_arena_slot *arenas; /* by slot */
    struct read_claims claims;    /* of all loads; threads use it */
    int *loading;                 /* number of loads in progress by slot */
    struct io_part **writing;     /* by slot: the part that is being written from the slot's arena, or NULL */
    struct io_stage stage;
    struct io_request *deferred;
    struct io_save *saves;

    struct rpc_method methods[RPC_METHOD_COUNT];
    struct rpc_listener *listener;
    struct io_conn *conns;

    struct rpc_link *control;
    bool control_ready;
    struct io_queued_report *reports;
    int n_reports;
    uv_timer_t orphan, quit_timer;

    int n_work; /* work that runs in uv's thread pool or waits for it */
    struct io_work *dir_first, *dir_last;
    bool dir_busy;

    uv_signal_t term;
    bool quitting, stopped;
};

/* Starts `dtctl report` for a job with run.report, when control ends this dtd-io (job_report.c). */
void io_job_report_start(const struct io *io);

/* Finishes the work in progress, then ends the loop. */
void io_quit(struct io *io);
void io_check_quit(struct io *io);

#endif
