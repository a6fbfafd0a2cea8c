/* The recorded steps of one rank (dtctl profile): every op of some steps in a row, with its begin and end. A worker
 * writes its own file beside the checkpoints; dtctl reads the files of all ranks and makes a trace of them.
 *
 *     dtd profile 1
 *     job 4 profile 1700000000000 epoch 1 rank 0 world 2 node 0 pid 4711 first 7 steps 3 lost 0 device 0
 *     clock 9000 1700000000000000000 -310 20 400   twice, before and after the steps: struct recorded_clock
 *     op gemm                                    names of ops; the lines that follow name them by index
 *     group 2 0 1                                set of axes, ranks
 *     action forward 0 0                         kind, microbatch, chunk; by index in the program
 *     call 0 3 0 1 -1 none -1 0 0 0 float32      struct recorded_call
 *     step 7 1042 5310 1000000 2000000           begin, end, resident bytes of the process, bytes on the device
 *     host data 7 1042 20                        work that is not an op: kind, step, begin, duration
 *     0 7 1042 310                               an op that ran: call, step, begin, duration
 *     total gemm 12 3720                         sums of the engine's own profile: calls, nanoseconds
 *     end
 *
 * Times are nanoseconds of this rank's monotonic clock, since the reading in the first `clock` line. Pure, except for
 * the files. */
#ifndef DTD_COMMON_PLAN_ESTIMATE_RECORDED_H
#define DTD_COMMON_PLAN_ESTIMATE_RECORDED_H

#include "common/base/buf.h"
#include "common/plan/program.h"

/* Limits for a file that may come from another machine. */
#define RECORDED_MAX_BYTES ((size_t)1 << 30)
#define RECORDED_MAX_WORLD 65536

/* How an op takes part in a message between two ranks. A wait is of the send or of the receive that it completes. */
#define RECORDED_ROLES(X)     \
    X(ROLE_NONE, "none")      \
    X(ROLE_SEND, "send")      \
    X(ROLE_RECV, "recv")      \
    X(ROLE_PUSH, "push")      \
    X(ROLE_WAIT_SEND, "sent") \
    X(ROLE_WAIT_RECV, "arrived")
#define X(role, name) role,
enum recorded_role { RECORDED_ROLES(X) ROLE_COUNT };
#undef X

/* An op in an action, as the program has it. */
struct recorded_call {
    int action;
    enum op_kind kind;
    enum op_stream stream;
    int layer, group; /* -1: none */
    enum recorded_role role;
    int peer;         /* the other rank of a message, -1: none */
    int64_t message;  /* its number among the messages of a step from one rank to the other, from 0 */
    int64_t in, out;  /* elements that this rank gives and receives in a collective; 0: none, or not known before */
    enum dtype dtype; /* of these elements */
};

struct recorded_action {
    enum action_kind kind;
    int micro, chunk;
};

struct recorded_group {
    unsigned axes;
    int n;
    int *ranks;
};

struct recorded_event {
    int64_t from, to;
    int32_t call;
    int32_t step; /* number of the step minus that of the first one; another step's ops may run ahead */
};

#define RECORDED_HOSTS(X)    \
    X(HOST_DATA, "data")     \
    X(HOST_AGREE, "agree")   \
    X(HOST_EVAL, "evaluate") \
    X(HOST_REPORT, "report") \
    X(HOST_SAVE, "save")     \
    X(HOST_POLL, "save poll")
#define X(kind, name) kind,
enum recorded_host_kind { RECORDED_HOSTS(X) HOST_COUNT };
#undef X

struct recorded_host {
    int64_t from, to;
    enum recorded_host_kind kind;
    int32_t step; /* as in recorded_event */
};

struct recorded_step {
    int64_t step, from, to;
    int64_t rss_bytes, device_bytes;
};

/* How far this rank's monotonic clock is ahead of rank 0's when it reads `at`: certainly lo to hi; best: the most
 * likely value. */
struct recorded_clock {
    int64_t at, wall; /* wall: the wall clock at the same time, nanoseconds since 1970 */
    int64_t lo, best, hi;
};

struct recorded {
    uint64_t job, profile, epoch;
    int rank, world, node, pid, steps; /* node: number of the node in the epoch; steps: recorded */
    int64_t first;                     /* number of the first step */
    int64_t lost;                      /* ops for which there was no room */
    bool device;                       /* times are those of a device's events */
    struct recorded_clock clock[2];
    struct recorded_group *groups;
    int n_groups;
    struct recorded_action *actions;
    int n_actions;
    struct recorded_call *calls;
    int n_calls;
    struct recorded_step *step;
    int n_step;
    struct recorded_host *hosts;
    int n_hosts;
    struct recorded_event *events;
    int n_events;
    int64_t total_ns[OP_KIND_COUNT], total_calls[OP_KIND_COUNT];
};

const char *recorded_role_name(enum recorded_role role);
const char *recorded_host_name(enum recorded_host_kind kind);

/* Fills groups, actions and calls from the program. ret_first (may be NULL): by action, the index of its first call;
 * the caller frees it. */
NODISCARD err_t recorded_program(const struct program *p, struct recorded *ret, int **ret_first);
NODISCARD err_t recorded_print(const struct recorded *r, struct buf *ret);
/* `name` begins error messages, as in "NAME:LINE: ...". ERR_INVALID, ERR_NOMEM. Freed by recorded_fini. */
NODISCARD err_t recorded_read(const char *text, size_t len, const char *name, struct recorded *ret, struct why *why);
void recorded_fini(struct recorded *r); /* legal on a zeroed one */
/* "FOLDER/profile/rank-3"; "FOLDER/profile" for rank -1. False when it does not fit. */
bool recorded_path(const char *folder, int rank, char *ret, size_t size);

#endif
