/* The order in which the ranks of a pipeline do their work: which chunk of the model on which microbatch, forward or
 * backward. A schedule knows nothing of models; a program is made from one later. It is built by a rule
 * (schedule_build) or read from text (schedule_read_csv, docs/internals/schedules.md), checked before anything is made
 * from it, and timed with given costs. Pure; the caller owns what is returned.
 *
 * The model is cut into ranks x chunks stages. Rank r holds the stages r, ranks + r, 2 ranks + r, ...: its chunks 0, 1,
 * 2, ... A stage's forward takes what the stage before made of the same microbatch, its backward what the stage behind
 * made. Everything here goes through schedule_source and schedule_target, so that another placement changes only those.
 *
 * Sends and receives follow from the order (struct schedule_posts). Between two slots of a rank lies one exchange: what
 * is sent and received there is posted together, and the rank goes on when all of it is over. No send is buffered: it
 * is over when the other rank receives. So much holds on any network; a program waits for less (exchange.c). */
#ifndef DTD_COMMON_PLAN_SCHEDULE_SCHEDULE_H
#define DTD_COMMON_PLAN_SCHEDULE_SCHEDULE_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#define SCHEDULE_MAX_RANKS 1024
#define SCHEDULE_MAX_CHUNKS 64
#define SCHEDULE_MAX_MICROS 65536
#define SCHEDULE_MAX_WORK (1 << 20)           /* ranks x chunks x microbatches */
#define SCHEDULE_MAX_BYTES ((size_t)64 << 20) /* of the text form */

/* X(kind, letter, what it does). A backward is one slot, or one for inputs and a later one for weights. */
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
    int chunk, micro; /* chunk: of this rank, 0 is the one nearest to the input; micro: of the replica's step */
};

struct schedule_row {
    struct slot *slots;
    int n;
};

struct schedule {
    int ranks, chunks, micros;
    struct schedule_row *rows; /* by rank */
};

/* SCHEDULE_1F1B, ... in the order of common/conf/schedules.inc, so that each equals the job file's PIPE_ value.
 * Zero-bubble schedules whose chunks run from both ends need a second placement; ZB-H1 does not. */
#define X(id, name, many_chunks, split, ahead) SCHEDULE_##id,
enum schedule_kind {
#include "common/conf/schedules.inc"
    SCHEDULE_KIND_COUNT
};
#undef X

const char *schedule_name(enum schedule_kind kind);
const char *slot_name(enum slot_kind kind);
char slot_letter(enum slot_kind kind);

/* The rules, with p ranks, v chunks, m microbatches, r the rank from 0:
 *   gpipe        all forwards, then all backwards
 *   1f1b         p - r - 1 forwards ahead, then forward and backward in turns
 *   interleaved  microbatches in groups of p; a group passes chunk after chunk. 2 (p - r - 1) + (v - 1) p forwards
 *                ahead. Where p does not divide m it is the schedule of the next multiple of p without the slots of
 *                the microbatches that are not there. With one chunk it is 1f1b
 *   zb-h1        1f1b with a split backward. Weights wait until a forward would make more than p activations live,
 *                and behind the last forward fill the gaps between the backwards for inputs
 * A microbatch that is smaller than the others changes the costs, not the order. ERR_INVALID names what is not legal
 * and the nearest legal choice. Freed by schedule_fini. */
NODISCARD err_t schedule_build(enum schedule_kind kind, int ranks, int chunks, int micros, struct schedule *ret,
                               struct why *why);
void schedule_fini(struct schedule *s); /* legal on a zeroed one; leaves it zeroed */

/* The limits above; what is outside is refused with the nearest legal choice. */
NODISCARD err_t schedule_check_size(int ranks, int chunks, int micros, struct why *why);

/* ---- where values come from and go to ---- */

int schedule_stage(const struct schedule *s, int rank, int chunk);

/* Work somewhere in the pipeline. Of a backward only SLOT_INPUT or SLOT_BACKWARD makes or takes a value; which of them
 * the other rank uses is its own business: `kind` is SLOT_FORWARD or SLOT_INPUT here. */
struct schedule_work {
    int rank;
    enum slot_kind kind;
    int chunk, micro;
};

/* Who makes what this slot takes from another stage, and who takes what it makes; false where there is none. */
bool schedule_source(const struct schedule *s, int rank, const struct slot *slot, struct schedule_work *ret);
bool schedule_target(const struct schedule *s, int rank, const struct slot *slot, struct schedule_work *ret);
/* Whether this slot is that work, whole or split. */
bool schedule_is(const struct slot *slot, const struct schedule_work *work);

/* ---- check ---- */

/* Every chunk has one forward on every microbatch, one backward (whole, or inputs and weights), in this order, and all
 * ranks come to their ends by the exchanges of struct schedule_posts. Otherwise ERR_INVALID, and the sentence names
 * rank, slot (from 0), chunk and microbatch. `ret_peaks`, when not NULL, has an element for each rank: the most (chunk,
 * microbatch) whose activations are live at once, from the forward to the end of the backward for weights. */
NODISCARD err_t schedule_check(const struct schedule *s, int *ret_peaks, struct why *why);

/* ---- time ---- */

struct schedule_cost {
    double seconds[SLOT_KIND_COUNT]; /* of one slot: one chunk on one microbatch */
    double latency;                  /* from the end of a slot to the value being on another rank */
    double last_scale;               /* of the last microbatch, as a part of the others' cost; 1 where it is full */
};

struct schedule_span {
    double start, end;
};

struct schedule_rank_times {
    struct schedule_span *spans; /* by slot */
    double busy, bubble;         /* bubble: makespan - busy */
};

struct schedule_times {
    double makespan; /* from the first start, 0, to the last end */
    int n_ranks;
    struct schedule_rank_times *ranks;
};

/* Each slot as early as its rank and its values allow, with transfers that keep nobody busy. ERR_INVALID when the order
 * of a schedule that nobody checked has no such times. Freed by schedule_times_fini. */
NODISCARD err_t schedule_simulate(const struct schedule *s, const struct schedule_cost *cost,
                                  struct schedule_times *ret, struct why *why);
void schedule_times_fini(struct schedule_times *t); /* legal on a zeroed one */

/* ---- sends and receives ---- */

/* What slot i of a rank makes for another rank is sent in the exchange before slot send[i] > i, which may be the row's
 * end: right behind it, or with several chunks behind the backward that follows it. What slot i takes from another rank
 * is received in the exchange before slot receive[i] <= i, -1 where it takes nothing from one: where, with all steps
 * equally long, the value has just been made. It keeps its place until slot i is over. Several from one rank in one
 * exchange are sent and received in the order of that rank's slots. */
struct schedule_rank_posts {
    int *send, *receive; /* by slot */
    int *made;           /* by slot: where in its rank's row what is received is made, -1 as receive */
    int held;            /* the most received values that wait for their slots at once, the one in use included */
};

struct schedule_posts {
    int n_ranks;
    struct schedule_rank_posts *ranks;
};

/* ERR_INVALID where the ranks wait for each other in a circle. Freed by schedule_posts_fini. */
NODISCARD err_t schedule_posts_init(struct schedule_posts *p, const struct schedule *s, struct why *why);
void schedule_posts_fini(struct schedule_posts *p); /* legal on a zeroed one */
/* Plays the exchanges through, sends blocking until they are received: ERR_INVALID names the first rank that does not
 * come to its end. */
NODISCARD err_t schedule_posts_check(const struct schedule_posts *p, const struct schedule *s, struct why *why);

/* ---- text ---- */

/* One line per rank (docs/internals/schedules.md). `name` goes before errors, as in "NAME:LINE:COLUMN: ...". The counts
 * of ranks, chunks and microbatches are those of the lines and the largest numbers in them. What is read is within the
 * limits but not checked. ERR_INVALID, ERR_LIMIT. */
NODISCARD err_t schedule_read_csv(const char *text, size_t len, const char *name, struct schedule *ret,
                                  struct why *why);
/* Columns are steps when every slot takes one step; a rank that waits has "-". Where no such steps exist the slots
 * stand without gaps. */
NODISCARD err_t schedule_print_csv(const struct schedule *s, FILE *out);

#endif
