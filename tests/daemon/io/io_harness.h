/* A real dtd-io; the test acts as its control process and its workers, on one uv loop. Descriptors are passed as by the
 * supervisor, so that dtd-io can be killed and restarted on the same socket and arenas. */
#ifndef DTD_TESTS_DAEMON_IO_IO_HARNESS_H
#define DTD_TESTS_DAEMON_IO_IO_HARNESS_H

#include "common/base/ticket.h"
#include "common/rpc/methods.h"
#include "proto/io.pb-c.h"
#include "tests/common/ckpt/ckpt_fixture.h"

#include <limits.h>
#include <uv.h>

#define IO_MAX_SLOTS 4
#define IO_MAX_REPORTS 64

struct io_seen { /* a received report */
    int kind;
    uint64_t epoch;
    int64_t step, bytes;
    char text[512], path[512];
};

struct io_test {
    uv_loop_t loop, *on; /* `on`: its own loop, or the loop of the test that it has joined */
    uv_timer_t timer;
    bool timed_out;
    char dir[200], root[300], yaml[2048];
    struct ticket ticket;
    int ticket_fd, io_listen, control_listen, slots, arenas[IO_MAX_SLOTS];
    void *maps[IO_MAX_SLOTS];
    size_t arena_bytes;
    pid_t pid;
    struct rpc_method methods[RPC_METHOD_COUNT];
    struct rpc_listener *listener;
    struct rpc_conn *control;
    struct rpc_call *attend;
    bool deny; /* refuse connections of io for now */
    bool joined, timer_is_closed;
    const char *const *args; /* further arguments of dtd-io, up to a NULL; or NULL */
    struct io_seen reports[IO_MAX_REPORTS];
    int n_reports;
};

/* Sockets, arenas of arena_bytes each, and the first dtd-io. */
void io_test_start(struct io_test *t, int slots, size_t arena_bytes);
void io_test_start_with(struct io_test *t, int slots, size_t arena_bytes, const char *const *args);
void io_test_stop(struct io_test *t);
/* One more node of the same job: sockets, arenas and a dtd-io of its own, the checkpoint directory and the loop of
 * `first`. It is stopped before `first` is. */
void io_test_join(struct io_test *t, struct io_test *first, int number);
/* Starts another dtd-io. fsize: its limit on file sizes, 0: none. */
void io_spawn(struct io_test *t, uint64_t fsize);
void io_kill(struct io_test *t);             /* kill -9, and waits for the exit */
int io_wait_exit(struct io_test *t, int ms); /* the wait status */

/* Runs the loop until *flag; fails the test after ms. */
void io_until(struct io_test *t, const bool *flag, int ms, const char *what);
void io_run_ms(struct io_test *t, int ms);

/* Waits until dtd-io has opened its command stream, then sends the command. */
void io_say(struct io_test *t, Dtd__IoCommand__Kind kind, uint64_t epoch, int64_t step, const char *text);
void io_say_epoch(struct io_test *t, uint64_t epoch, int64_t step); /* SCAN, then EPOCH */
void io_say_scan(struct io_test *t, int64_t submitted_ms);
struct io_part_of { /* contents of EPOCH for one of several dtd-ios */
    bool committer;
    int n_ios, n_ranks;
    int32_t ranks[IO_MAX_SLOTS];
    int64_t submitted_ms;
};
void io_say_share(struct io_test *t, uint64_t epoch, int64_t step, const struct io_part_of *part);
/* Waits for the next report of the kind from number *from on; *from becomes the one after it. */
const struct io_seen *io_report_wait(struct io_test *t, int kind, int *from, int ms);

struct io_worker {
    struct io_test *test;
    int slot;
    struct rpc_conn *conn;
    bool hello, closed;
    err_t hello_err;
};
/* Connects and sends Hello. */
void io_worker_open(struct io_worker *w, struct io_test *t, int slot);
void io_worker_close(struct io_worker *w);

struct io_op { /* a Save or Load in progress */
    bool written, committed, done;
    err_t err;
    char text[512];
    int64_t needed, read, step;
};
/* Copies rank's pieces into the arena of the worker's slot. */
void io_fill(struct io_worker *w, const struct fixture *f, int rank);
/* Calls Save with what is in the arena; the request is sent at once. */
void io_save_filled(struct io_worker *w, const struct fixture *f, uint64_t epoch, int64_t step, int rank, int world,
                    struct io_op *ret);
/* io_fill and io_save_filled. */
void io_save(struct io_worker *w, const struct fixture *f, uint64_t epoch, int64_t step, int rank, int world,
             struct io_op *ret);
/* Calls Load for the rank's pieces of `f`; the request is sent at once. io_check_loaded checks the result. */
void io_load_into(struct io_worker *w, const struct fixture *f, const char *path, int rank, struct io_op *ret);
/* The same after filling the arena with other bytes. */
void io_load(struct io_worker *w, const struct fixture *f, const char *path, int rank, struct io_op *ret);
void io_check_loaded(const struct io_worker *w, const struct fixture *f, int rank);

#endif
