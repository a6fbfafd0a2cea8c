/* The order in which the ranks of a pipeline process their chunks of the model and the microbatches, forward and
 * backward. A schedule does not depend on the model; the compiler turns it into a program. It is built by a rule
 * (schedule_build) or read from text (schedule_read_csv, docs/internals/schedules.md), checked before it is used, and
 * timed with given costs. Pure; the caller owns what is returned.
 *
 * The model is cut into ranks x chunks stages, which placement.h assigns to ranks. A stage's forward reads the output
 * of the previous stage for the same microbatch; its backward reads the gradient from the next stage. With the V
 * placement two adjacent stages may be on one rank. Only schedule_source and schedule_target depend on the placement.
 *
 * Sends and receives follow from the order (struct schedule_posts). Between two slots of a rank there is one exchange.
 * All its sends and receives are posted together, and the rank continues when all of them are complete. Sends are not
 * buffered: a send is complete when the other rank receives. This works on any network; a program waits for less
 * (compile/pipeline_exchange.c). */
#ifndef DTD_COMMON_PLAN_SCHEDULE_SCHEDULE_H
#define DTD_COMMON_PLAN_SCHEDULE_SCHEDULE_H

#include "common/base/err.h"
#include "common/plan/placement.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* These limits bound the memory and time that a schedule from a user's file can cost. */
#define SCHEDULE_MAX_RANKS 1024
#define SCHEDULE_MAX_CHUNKS 64
#define SCHEDULE_MAX_MICROS 65536
#define SCHEDULE_MAX_WORK (1 << 20)           /* ranks x chunks x microbatches */
#define SCHEDULE_MAX_BYTES ((size_t)64 << 20) /* of the text form */

/* X(kind, letter, description). A backward is one slot, or two: one for inputs and a later one for weights. */
#define SLOT_LIST(X)                          \
    X(SLOT_FORWARD, 'F', "forward")           \
    X(SLOT_BACKWARD, 'B', "backward")         \
    X(SLOT_INPUT, 'I', "backward for inputs") \
    X(SLOT_WEIGHT, 'W', "backward for weights")

#define X(kind, letter, name) kind,
enum slot_kind { SLOT_LIST(X) SLOT_KIND_COUNT };
#undef X

struct slot {
    enum slot_kind kind;
    int chunk, micro; /* chunk: its index on this rank, from 0, the nearest to the input; micro: its index in the
                         replica's step */
};

struct schedule_row {
    struct slot *slots;
    int n;
};

struct schedule {
    enum pipe_placement placement;
    int ranks, chunks, micros;
    struct schedule_row *rows; /* by rank */
};

/* SCHEDULE_1F1B, ... in the order of common/conf/schedules.inc, so that each equals the job file's PIPE_ value. */
#define X(id, name, fewest, most, placement, row) SCHEDULE_##id,
enum schedule_kind {
#include "common/conf/schedules.inc"
    SCHEDULE_KIND_COUNT
};
#undef X

const char *schedule_name(enum schedule_kind kind);
enum pipe_placement schedule_placement(enum schedule_kind kind);
const char *slot_name(enum slot_kind kind);
char slot_letter(enum slot_kind kind);

/* The rules, with p ranks, v chunks, m microbatches and r the rank from 0:
 *
 *   gpipe        all forwards, then all backwards
 *   1f1b         p - r - 1 forwards ahead, then forward and backward in turns
 *   interleaved  microbatches in groups of p; a group passes chunk after chunk. 2 (p - r - 1) + (v - 1) p forwards
 *                ahead. Where p does not divide m, it is the schedule of the next multiple of p without the slots of
 *                the microbatches that do not exist. With one chunk it is 1f1b
 *   zb-h1        1f1b with a split backward. A backward for weights waits until one more forward would keep more than
 *                p activations; after the last forward they fill the gaps between the backwards for inputs
 *   zb-h2        the same with 2 (p - r - 1) forwards ahead and at most 2 p - 1 activations
 *   zb-v         two chunks per rank in a V. 2 (p - r) - 1 forwards of chunk 0 ahead, then both chunks in turns,
 * forward, backward for inputs, backward for weights. Where m is less than 2 p - 1, it is the schedule of 2 p - 1
 *                without the slots of the microbatches that do not exist. The order is that of PyTorch's
 *                ScheduleZBVZeroBubble
 *   dualpipe-v   a V whose ranks compute a forward of one chunk and a backward of the other in turns, for pairs that a
 *                device could overlap; backwards are split only at the beginning and at the end. Made for at least 2 p
 *                microbatches. The order is that of PyTorch's ScheduleDualPipeV
 *
 * A microbatch that is smaller than the others changes the costs, not the order. ERR_INVALID: `why` names what is
 * illegal and the nearest legal choice. Freed by schedule_fini. */
NODISCARD err_t schedule_build(enum schedule_kind kind, int ranks, int chunks, int micros, struct schedule *ret,
                               struct why *why);
void schedule_fini(struct schedule *s); /* legal on a zeroed one; leaves it zeroed */

/* Checks the limits above. ERR_INVALID: `why` names the nearest legal choice. */
NODISCARD err_t schedule_check_size(int ranks, int chunks, int micros, struct why *why);

/* ---- sources and targets of values ---- */

int schedule_stage(const struct schedule *s, int rank, int chunk);

/* A piece of work of the pipeline that produces or reads a value. Of a backward only SLOT_INPUT or SLOT_BACKWARD does
 * so; which of them the other rank uses does not matter, so `kind` is SLOT_FORWARD or SLOT_INPUT here. */
struct schedule_work {
    int rank;
    enum slot_kind kind;
    int chunk, micro;
};

/* The work whose output this slot reads from another stage, and the work that reads this slot's output; false where
 * there is none. */
bool schedule_source(const struct schedule *s, int rank, const struct slot *slot, struct schedule_work *ret);
bool schedule_target(const struct schedule *s, int rank, const struct slot *slot, struct schedule_work *ret);
/* Whether this slot does that work, as a whole or a split backward. */
bool schedule_is(const struct slot *slot, const struct schedule_work *work);

/* ---- check ---- */

/* Checks that every chunk has one forward on every microbatch and then one backward (whole, or inputs and then
 * weights), and that all ranks finish with the exchanges of struct schedule_posts. ERR_INVALID: `why` names rank, slot
 * (from 0), chunk and microbatch. `ret_peaks`, when not NULL, has one element for each rank: the largest number of
 * (chunk, microbatch) whose activations exist at once, from the forward to the end of the backward for weights. */
NODISCARD err_t schedule_check(const struct schedule *s, int *ret_peaks, struct why *why);

/* ---- time ---- */

struct schedule_cost {
    double seconds[SLOT_KIND_COUNT]; /* seconds of one slot: one chunk on one microbatch */
    double latency;                  /* from the end of a slot until another rank has its output */
    double last_scale;               /* cost of the last microbatch relative to the others; 1 where it is full */
};

struct schedule_span {
    double start, end;
};

struct schedule_rank_times {
    struct schedule_span *spans; /* by slot */
    double busy, bubble;         /* bubble: makespan - busy */
};

struct schedule_times {
    double makespan; /* end of the last slot; the first starts at 0 */
    int n_ranks;
    struct schedule_rank_times *ranks;
};

/* Times of all slots, each as early as its rank and its inputs permit; transfers occupy no rank. ERR_INVALID when a
 * schedule that was not checked has no such times. Freed by schedule_times_fini. */
NODISCARD err_t schedule_simulate(const struct schedule *s, const struct schedule_cost *cost,
                                  struct schedule_times *ret, struct why *why);
/* The same for one of many steps with post-validation: `ahead` is that of schedule_ahead. The makespan is the time from
 * one norm to the next. Spans of slots that run ahead are those for the next step. */
NODISCARD err_t schedule_simulate_ahead(const struct schedule *s, int ahead, const struct schedule_cost *cost,
                                        struct schedule_times *ret, struct why *why);
void schedule_times_fini(struct schedule_times *t); /* legal on a zeroed one */

/* ---- sends and receives ---- */

/* The exchange in which each value is sent and received.
 *
 * A value that slot i of a rank computes for another rank is sent in the exchange before slot send[i] > i, which may be
 * the end of the row. This is right after slot i, or with several chunks in a loop after the whole
 * backward that follows it.
 *
 * A value that slot i reads from another stage is received in the exchange before slot receive[i] <= i; -1 where it
 * reads none. If all steps took equally long, the value would have just been computed at this point. It occupies its
 * buffer until slot i is over. Several values from one rank in one exchange are sent and received in the order of that
 * rank's slots. A value from another stage of the same rank is no message: it is kept from the exchange on in which it
 * would be sent. */
struct schedule_rank_posts {
    int *send, *receive; /* by slot */
    int *
        made; /* by slot: the slot of the sending rank (or this one) that computes what is received; -1 as in receive */
    int held; /* the largest number of received values that exist at once, the one in use included */
};

struct schedule_posts {
    int n_ranks;
    struct schedule_rank_posts *ranks;
};

/* ERR_INVALID where the ranks wait for each other in a cycle. Freed by schedule_posts_fini. */
NODISCARD err_t schedule_posts_init(struct schedule_posts *p, const struct schedule *s, struct why *why);
void schedule_posts_fini(struct schedule_posts *p); /* legal on a zeroed one */
/* Simulates the exchanges with sends that block until they are received. ERR_INVALID: `why` names the first rank that
 * does not finish. */
NODISCARD err_t schedule_posts_check(const struct schedule_posts *p, const struct schedule *s, struct why *why);

/* ---- post-validation ---- */

/* How many forwards rank 0 runs of the next step while the last rank finishes this one; each later rank runs one less.
 * That is one for each later rank, less where the row does not begin with so many forwards of chunk 0, or where a
 * message would be sent among these slots and received after them, or the other way round. So a rank that discards them
 * has no message in flight. `posts` are those of `s`. */
int schedule_ahead(const struct schedule *s, const struct schedule_posts *posts);
static inline int schedule_ahead_of(int ahead, int rank)
{
    return ahead > rank ? ahead - rank : 0;
}

/* ---- text ---- */

/* Forms of a cell: F0.3, with the rank's chunk; and that of PyTorch's pipelining schedules (compute_only), 0F3, with
 * the stage. The first one is always a loop; in the second one the placement follows from the stages of each line. */
enum schedule_form { SCHEDULE_OWN, SCHEDULE_PYTORCH };

/* Reads one line per rank (docs/internals/schedules.md), in either form. `name` begins error messages, as in
 * "NAME:LINE:COLUMN: ...". The number of ranks is that of the lines; the numbers of chunks and microbatches follow from
 * the largest in the text. The result is within the limits but not checked. ERR_INVALID, ERR_LIMIT. */
NODISCARD err_t schedule_read_csv(const char *text, size_t len, const char *name, struct schedule *ret,
                                  struct why *why);
/* Prints a column per step, as if every slot took one step; "-" is a step in which a rank waits. Where no such steps
 * exist, the slots have no gaps. */
NODISCARD err_t schedule_print_csv(const struct schedule *s, enum schedule_form form, FILE *out);

#endif
