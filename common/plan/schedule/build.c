/* Builds schedules by their rules. A rule writes the row of one rank for as many microbatches as its order is made for;
 * the slots of those that do not exist are removed afterwards. An order without a cycle of waits stays one when all
 * work of a microbatch is removed.
 *
 * The rules of the loop are one function with different parameters: a number of forwards ahead, then forward and
 * backward in turns until no forward is left, then the remaining backwards. With a split backward, weights are computed
 * once a forward would keep more than a given number of activations. In interleaved schedules each group has as many
 * microbatches as there are ranks, so the last rank finishes a value just when the first rank needs it. If some groups
 * were smaller, the numbers of forwards ahead, which count whole groups, would no longer fit, and ranks would wait for
 * each other in cycles. So the order is that of the next multiple of the ranks.
 *
 * The rules of the V repeat short patterns, as their authors write them. */
#include "common/plan/schedule/schedule.h"

#include <stdlib.h>

/* The row that is being written, with room for padded(s) microbatches. */
struct row_writer {
    const struct schedule *s;
    int rank;
    struct schedule_row *row;
    int done[SLOT_KIND_COUNT][2]; /* slots of a kind so far; in a V by chunk, else of all chunks in [0] */
    int oldest; /* in a V: all backwards for inputs before this slot have had their weights from append_oldest */
};

/* Microbatches for which there is room: whole groups, and those that the longest pattern of a V is made for. */
static int padded(const struct schedule *s)
{
    int least = s->placement == PLACE_V ? 2 * s->ranks : 1, micros = s->micros > least ? s->micros : least;
    return (micros + s->ranks - 1) / s->ranks * s->ranks;
}

static void append_slot(struct row_writer *w, enum slot_kind kind, int chunk, int micro)
{
    w->row->slots[w->row->n++] = (struct slot){kind, chunk, micro};
}

/* ---- a loop: forward and backward in turns ---- */

/* Appends the next slot of a kind. Microbatches pass group after group, and within a group chunk after chunk, forwards
 * from the first chunk, backwards from the last. All ranks have the same orders. */
static void append_next(struct row_writer *w, enum slot_kind kind)
{
    const int ranks = w->s->ranks, chunks = w->s->chunks, i = w->done[kind][0]++;
    const int group = i / (ranks * chunks), chunk = i / ranks % chunks;
    append_slot(w, kind, kind == SLOT_FORWARD ? chunk : chunks - 1 - chunk, group * ranks + i % ranks);
}

/* `live`: most activations of a split backward; 0: the backward is whole. */
static void append_turns(struct row_writer *w, int ahead, int live)
{
    const int total = w->s->chunks * padded(w->s);
    const enum slot_kind backward = live ? SLOT_INPUT : SLOT_BACKWARD;
    const int *forwards = w->done[SLOT_FORWARD], *backwards = w->done[backward], *weights = w->done[SLOT_WEIGHT];
    while (*backwards < total) {
        while (*forwards < total && *forwards <= ahead + *backwards) {
            if (live && *forwards - *weights == live)
                append_next(w, SLOT_WEIGHT);
            append_next(w, SLOT_FORWARD);
        }
        append_next(w, backward);
        if (live && *forwards == total)
            append_next(w, SLOT_WEIGHT);
    }
    while (live && *weights < total)
        append_next(w, SLOT_WEIGHT);
}

static void row_gpipe(struct row_writer *w)
{
    append_turns(w, padded(w->s), 0);
}

static void row_1f1b(struct row_writer *w)
{
    append_turns(w, w->s->ranks - w->rank - 1, 0);
}

static void row_interleaved(struct row_writer *w)
{
    const int after = w->s->ranks - w->rank - 1, chunks = w->s->chunks;
    append_turns(w, chunks == 1 ? after : 2 * after + (chunks - 1) * w->s->ranks, 0);
}

static void row_zb_h1(struct row_writer *w)
{
    append_turns(w, w->s->ranks - w->rank - 1, w->s->ranks);
}

static void row_zb_h2(struct row_writer *w)
{
    append_turns(w, 2 * (w->s->ranks - w->rank - 1), 2 * w->s->ranks - 1);
}

/* ---- a V: repeated patterns ---- */

static enum slot_kind kind_of(char letter)
{
    enum slot_kind kind = SLOT_FORWARD;
    while (slot_letter(kind) != letter)
        kind++;
    return kind;
}

/* Appends the weights of the oldest backward for inputs that has had none, if there is one. */
static void append_oldest(struct row_writer *w)
{
    const struct schedule_row *row = w->row;
    while (w->oldest < row->n && row->slots[w->oldest].kind != SLOT_INPUT)
        w->oldest++;
    if (w->oldest == row->n)
        return;
    const struct slot *input = &row->slots[w->oldest++];
    append_slot(w, SLOT_WEIGHT, input->chunk, input->micro);
}

/* Appends a pattern `times` times: letters of slots with their chunks, each on the next microbatch of its kind. "W-" is
 * append_oldest. */
static void repeat(struct row_writer *w, int times, const char *pattern)
{
    for (int i = 0; i < times; i++)
        for (const char *at = pattern; *at; at += 2) {
            const enum slot_kind kind = kind_of(at[0]), count = kind == SLOT_BACKWARD ? SLOT_INPUT : kind;
            const int chunk = at[1] - '0';
            if (at[1] == '-')
                append_oldest(w);
            else
                append_slot(w, kind, chunk, w->done[count][chunk]++);
        }
}

static void row_zb_v(struct row_writer *w)
{
    const int p = w->s->ranks, r = w->rank, m = w->s->micros > 2 * p - 1 ? w->s->micros : 2 * p - 1;
    repeat(w, 2 * (p - r) - 1, "F0");
    repeat(w, r, "F1F0");
    repeat(w, p - r, "F1I1W1");
    repeat(w, m - (2 * p - r - 1), "F0I0W0F1I1W1");
    repeat(w, p - r - 1, "I0W0F1I1W1");
    repeat(w, r, "I0I1");
    repeat(w, p - r, "I0W0");
    repeat(w, r, "W1");
    repeat(w, r, "W0");
}

/* "F0B1" and "F1B0" are the pairs that the schedule's authors run at the same time. */
static void row_dualpipe_v(struct row_writer *w)
{
    const int p = w->s->ranks, r = w->rank, m = w->s->micros > 2 * p ? w->s->micros : 2 * p;
    repeat(w, 2 * (p - r - 1), "F0");
    repeat(w, r + 1, "F0F1");
    repeat(w, p - r - 1, "I1W-F1");
    repeat(w, m - 2 * p + r + 1, "F0B1F1B0");
    repeat(w, p - r - 1, "B1F1B0");
    repeat(w, (r + 1) / 2, "B1B0");
    repeat(w, (r + 1) % 2, "B1I0"); /* the second half of these backwards is split */
    repeat(w, (r + 1) / 2, "I1I0");
    repeat(w, p - r - 1, "W-I0");
    repeat(w, r + 1, "W-");
}

/* ---- schedules ---- */

static const struct {
    int fewest, most;
    enum pipe_placement placement;
    void (*row)(struct row_writer *w);
} rules[] = {
#define X(id, name, fewest, most, placement, row) [SCHEDULE_##id] = {fewest, most, placement, row},
#include "common/conf/schedules.inc"
#undef X
};

static void remove_missing(struct schedule_row *row, int micros)
{
    int n = 0;
    for (int i = 0; i < row->n; i++)
        if (row->slots[i].micro < micros)
            row->slots[n++] = row->slots[i];
    row->n = n;
}

enum pipe_placement schedule_placement(enum schedule_kind kind)
{
    return rules[kind].placement;
}

static err_t fill_rows(struct schedule *s, enum schedule_kind kind)
{
    size_t kinds = 3, n = (size_t)s->chunks * (size_t)padded(s) * kinds; /* a forward, a backward in two halves */
    s->rows = calloc((size_t)s->ranks, sizeof(*s->rows));
    for (int r = 0; s->rows && r < s->ranks; r++) {
        s->rows[r].slots = calloc(n, sizeof(struct slot));
        if (!s->rows[r].slots)
            return ERR_NOMEM;
        struct row_writer w = {.s = s, .rank = r, .row = &s->rows[r]};
        rules[kind].row(&w);
        remove_missing(&s->rows[r], s->micros);
    }
    return s->rows ? OK : ERR_NOMEM;
}

static err_t check_kind(enum schedule_kind kind, int chunks, struct why *why)
{
    if ((unsigned)kind >= SCHEDULE_KIND_COUNT)
        return why_set(why, ERR_INVALID, "there is no schedule number %d", (int)kind);
    if (chunks < rules[kind].fewest || chunks > rules[kind].most)
        return why_set(why, ERR_INVALID,
                       "schedule %s has %d chunks per rank, not %d; the nearest legal choice is %d, or schedule %s",
                       schedule_name(kind), rules[kind].most, chunks, rules[kind].most,
                       schedule_name(chunks > 1 ? SCHEDULE_INTERLEAVED : SCHEDULE_1F1B));
    return OK;
}

err_t schedule_build(enum schedule_kind kind, int ranks, int chunks, int micros, struct schedule *ret, struct why *why)
{
    err_t err = schedule_check_size(ranks, chunks, micros, why);
    if (!err)
        err = check_kind(kind, chunks, why);
    if (err)
        return err;
    struct schedule s = {.placement = rules[kind].placement, .ranks = ranks, .chunks = chunks, .micros = micros};
    err = fill_rows(&s, kind);
    if (err) {
        schedule_fini(&s);
        return why_set(why, err, "out of memory for a schedule of %d ranks", ranks);
    }
    *ret = s;
    return OK;
}
