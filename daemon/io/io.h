/* dtd-io: the bytes of one job's checkpoints, as the job's user. Workers call it on its own socket; control tells it
 * what to do over a link that comes back by itself. It decides nothing.
 *
 * One uv loop owns every struct here. Files are touched only by work that runs in uv's threads, and such work sees
 * nothing but its own operation: what it needs was copied into it, what it found is taken over when it is back on the
 * loop. Work that changes the checkpoint directory (scan, epoch, commit, remove, metrics) goes one after another
 * through dirwork; writing parts, loading and looking for what other nodes have written run beside it. */
#ifndef DTD_DAEMON_IO_IO_H
#define DTD_DAEMON_IO_IO_H

#include "common/base/ticket.h"
#include "common/ckpt/shared.h"
#include "common/rpc/methods.h"

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <uv.h>

struct io;

/* ---- what the job says (spec.c) ---- */

struct io_spec {
    char *yaml;              /* NULL: control has not told yet */
    char *root;              /* the checkpoint directory */
    char *cache, *data_hash; /* of the prepared training data */
    int64_t orphan_ms;
};
/* Replaces *s; on error it stays as it was. */
NODISCARD err_t io_spec_parse(struct io_spec *s, const char *yaml, struct why *why);
void io_spec_fini(struct io_spec *s);
/* The tokenizer's vocabulary, appended; nothing for bytes. Blocking. */
NODISCARD err_t io_spec_vocab(const char *cache, const char *hash, struct buf *ret, struct why *why);

/* ---- work in uv's threads (work.c) ---- */

struct io_work {
    uv_work_t uv;
    struct io *io;
    void (*run)(struct io_work *w);  /* in a thread */
    void (*done)(struct io_work *w); /* on the loop; frees */
    struct io_work *next;
    err_t err;
    struct why why;
};
void io_work_start(struct io *io, struct io_work *w);
/* The same, one after another in this order. */
void io_work_start_dir(struct io *io, struct io_work *w);

/* ---- requests of workers, in plain structs ---- */

struct io_request {
    enum io_request_kind { IO_REQUEST_HELLO, IO_REQUEST_SAVE, IO_REQUEST_LOAD } kind;
    struct rpc_call *call; /* NULL: the caller has gone */
    int slot;
    uint64_t epoch;
    int64_t step;
    int rank, world;
    double loss;
    char *path; /* of a load */
    struct ckpt_piece *pieces;
    uint64_t *arena_offsets;
    int n_pieces;
    struct ckpt_scalar *scalars;
    int n_scalars;
    char **names; /* of scalars to load */
    int n_names;
    struct io_request *next; /* among the deferred */
};
void io_request_free(struct io_request *r);
/* Takes a request over: starts it, refuses it, or keeps it for io_retry. */
void io_take(struct io *io, struct io_request *r);
void io_defer(struct io *io, struct io_request *r);
/* Takes up what had to wait: something has changed. */
void io_retry(struct io *io);

/* ---- arenas (arena.c) ---- */

struct io_arena {
    uint8_t *map;
    size_t bytes;
};
/* Maps what the worker has made of descriptor 5 + slot and gives every piece its address. ERR_INVALID: a piece outside.
 */
NODISCARD err_t io_arena_map(int fd, bool write, struct io_request *r, struct io_arena *ret, struct why *why);
void io_arena_unmap(struct io_arena *a);

/* ---- the job's other dtd-ios (share.c) ---- */

/* Something that is looked for again and again, with longer pauses each time. */
struct io_poll {
    bool on, running;
    int pause_ms;
    int64_t next_ms, deadline_ms;
};
void io_poll_begin(struct io *io, struct io_poll *p, int64_t wait_ms);
void io_poll_again(struct io *io, struct io_poll *p);

/* What EPOCH has said of this dtd-io among those of the job. */
struct io_share {
    bool on;        /* there are others, and one checkpoint directory */
    bool committer; /* the others write their parts and wait */
    int *ranks;     /* whose workers are here, ascending; none: all */
    int n_ranks;
    struct ckpt_writer_id me;
    char node[64], committer_node[64];
    struct io_poll ready; /* the directory, for this epoch */
    err_t refusal;        /* why saves are not taken; OK: they are, or wait until the directory is ready */
    struct why why;
};
struct io_command;
NODISCARD err_t io_share_take(struct io *io, const struct io_command *c);
/* The committer makes the directory ready for the epoch, the others wait until it is; tried until it succeeds. */
void io_share_prepare(struct io *io);
bool io_share_owns(const struct io_share *s, int rank);
int io_share_count(const struct io_share *s, int world); /* of those that it owns among ranks below world */
NODISCARD err_t io_share_start(struct io *io);
void io_share_stop(struct io *io);
void io_share_fini(struct io *io);

/* ---- saves (save.c, gather.c) ---- */

struct io_part {
    enum io_part_state { PART_NONE, PART_WRITING, PART_WRITTEN } state;
    struct rpc_call *call; /* NULL: nobody waits */
    struct ckpt_part *part;
    bool spoilt; /* its arena was taken for something else while it was read */
    bool lost;   /* the call's owner has gone */
    struct io_save *save;
};

struct io_save {
    struct io *io;
    char low[200]; /* committed, and there is hardly room for another one: says so; "": there is */
    uint64_t epoch;
    int64_t step;
    int world, n_own; /* n_own: ranks of this node */
    double loss;
    enum io_save_state { SAVE_OPEN, SAVE_WAITING, SAVE_COMMITTING, SAVE_DONE } state;
    bool shared, committer;
    bool told; /* failed by the committer's word */
    struct ckpt_writer_id me;
    struct io_poll look; /* of WAITING */
    bool removing;       /* failed: what it left is being removed */
    err_t err;           /* of DONE */
    struct why why;
    int n_written, n_writing;
    struct io_part *parts; /* by rank */
    struct io_save *next;
};
void io_save_take(struct io *io, struct io_request *r);
/* For gather.c: how a save goes on when it has waited. `told`: control hears of it from the committer. */
void io_save_commit(struct io_save *s);
void io_save_succeed(struct io_save *s, const struct ckpt_info *info, const char *path);
void io_save_fail(struct io_save *s, err_t err, const char *text, bool told);
void io_save_sweep(struct io *io);
/* OPEN -> WAITING: the committer for the other nodes' parts, the others for its commit. */
void io_gather_begin(struct io_save *s);
/* A look is due. */
void io_gather_look(struct io_save *s);
/* Fails what belongs to older epochs. */
void io_save_expire(struct io *io);
void io_save_fini(struct io *io);

/* ---- loads (load.c) ---- */

void io_load_take(struct io *io, struct io_request *r);

/* ---- workers (server.c, rpc_worker.c) ---- */

struct io_conn {
    struct rpc_conn *conn;
    int slot; /* -1: no Hello yet */
    struct io_conn *next;
};
NODISCARD err_t io_server_start(struct io *io, int listen_fd);
void io_server_stop(struct io *io);
void io_server_hello(struct io *io, struct io_request *r); /* of a checked token */
void rpc_worker_hello(void *owner, struct rpc_call *call, const ProtobufCMessage *request);
void rpc_worker_save(void *owner, struct rpc_call *call, const ProtobufCMessage *request);
void rpc_worker_load(void *owner, struct rpc_call *call, const ProtobufCMessage *request);
void rpc_worker_say(struct rpc_call *call, bool committed); /* an item of Save */
void rpc_worker_hello_done(struct rpc_call *call);
void rpc_worker_load_done(struct rpc_call *call, const struct ckpt_read_stats *stats, const struct ckpt_scalar *scalars,
                          int n_scalars);

/* ---- control (control.c, rpc_control.c) ---- */

enum io_command_kind { IO_CMD_EPOCH, IO_CMD_REMOVE, IO_CMD_METRICS, IO_CMD_QUIT, IO_CMD_SCAN, IO_CMD_HISTORY };
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
    int64_t submitted_ms;
    const char *node, *committer_node;
};
void io_command(struct io *io, const struct io_command *c);

enum io_report_kind { IO_COMMITTED, IO_SAVE_FAILED, IO_SCANNED, IO_REMOVED, IO_HISTORY };
struct io_queued_report {
    enum io_report_kind kind;
    uint64_t epoch;
    bool has_checkpoint;
    struct ckpt_info checkpoint;
    char *path, *text;
    bool sent; /* and not answered yet */
    struct io *io;
    struct io_queued_report *next;
};
NODISCARD err_t io_control_start(struct io *io);
void io_control_stop(struct io *io);
/* Copies path and text; kept until control has answered. info may be NULL. */
void io_report(struct io *io, enum io_report_kind kind, uint64_t epoch, const struct ckpt_info *info, const char *path,
               const char *text);
/* The adapter's side: one message each. */
NODISCARD err_t rpc_control_hello(struct io *io, struct rpc_conn *conn, rpc_callback cb);
NODISCARD err_t rpc_control_attend(struct io *io, struct rpc_conn *conn, rpc_callback cb);
NODISCARD err_t rpc_control_report(struct io *io, struct rpc_conn *conn, const struct io_queued_report *r,
                                   rpc_callback cb);
/* False when the message is no command. */
bool rpc_control_command(const ProtobufCMessage *m, struct io_command *ret);

/* ---- the program ---- */

struct io {
    uv_loop_t loop;
    const char *job;
    struct ticket ticket;
    struct io_spec spec;
    bool epoch_known;
    uint64_t epoch;
    bool
        prepared; /* the directory has been made ready for `epoch`: before, an older epoch's step may still lie there */
    int64_t resume_step;
    struct io_share share;
    uv_timer_t poll_timer;
    int64_t word_wait_ms, save_wait_ms;

    int *arenas;              /* descriptor by slot */
    int *loading;             /* loads in flight by slot */
    struct io_part **writing; /* by slot: the part that is being written from its arena, or NULL */
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

    int n_work; /* in uv's threads or waiting for one */
    struct io_work *dir_first, *dir_last;
    bool dir_busy;

    uv_signal_t term;
    bool quitting, stopped;
};

/* Finishes what is being written, then ends the loop. */
void io_quit(struct io *io);
void io_check_quit(struct io *io);

#endif
