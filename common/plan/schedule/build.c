/* Builds schedules by their rules. All rules are one loop with different parameters: a number of forwards ahead, then
 * forward and backward in turns until no forward is left, then the remaining backwards. The table has the parameters:
 * how many forwards go ahead, and whether the backward is split. With a split backward, weights are computed once a
 * forward would keep more activations than there are ranks.
 *
 * In interleaved schedules each group has as many microbatches as there are ranks, so the last rank finishes a value
 * just when the first rank needs it. If some groups were smaller, the numbers of forwards ahead, which count whole
 * groups, would no longer fit, and ranks would wait for each other in cycles. So where the ranks do not divide the
 * microbatches, the order is that of the next multiple, without the slots of the microbatches that do not exist. That
 * order has no cycle of waits, and removing all work of a microbatch creates none. */
#include "common/plan/schedule/schedule.h"

#include <stdlib.h>

struct family {
    bool many_chunks;
    bool split;
    int (*ahead)(const struct schedule *s, int rank);
};

/* Number of slots of one kind in a row, including those of microbatches that do not exist. */
static int padded(const struct schedule *s)
{
    return s->chunks * ((s->micros + s->ranks - 1) / s->ranks * s->ranks);
}

static int ahead_gpipe(const struct schedule *s, int rank)
{
    (void)rank;
    return padded(s);
}

static int ahead_1f1b(const struct schedule *s, int rank)
{
    return s->ranks - rank - 1;
}

static int ahead_interleaved(const struct schedule *s, int rank)
{
    return s->chunks == 1 ? ahead_1f1b(s, rank) : 2 * (s->ranks - rank - 1) + (s->chunks - 1) * s->ranks;
}

static const struct family families[] = {
#define X(id, name, many_chunks, split, ahead) [SCHEDULE_##id] = {many_chunks, split, ahead},
#include "common/conf/schedules.inc"
#undef X
};

/* The orders in which a rank's chunks process the microbatches: group after group, and within a group chunk after
 * chunk, forwards from the first chunk, backwards from the last. All ranks have the same orders. */
struct slot_orders {
    struct slot *forward, *backward;
    int n; /* padded to whole groups */
};

static void fill_orders(const struct schedule *s, struct slot_orders *o)
{
    for (int i = 0; i < o->n; i++) {
        int group = i / (s->ranks * s->chunks), chunk = i / s->ranks % s->chunks,
            micro = group * s->ranks + i % s->ranks;
        o->forward[i] = (struct slot){SLOT_FORWARD, chunk, micro};
        o->backward[i] = (struct slot){SLOT_BACKWARD, s->chunks - 1 - chunk, micro};
    }
}

/* A row that is being written, and how many slots of each kind have been passed. */
struct row_writer {
    const struct slot_orders *orders;
    int micros; /* microbatches that exist */
    struct schedule_row *row;
    int forwards, backwards, weights;
};

static void append_slot(struct row_writer *w, enum slot_kind kind, struct slot slot)
{
    slot.kind = kind;
    if (slot.micro < w->micros)
        w->row->slots[w->row->n++] = slot;
}

static void append_weight(struct row_writer *w)
{
    append_slot(w, SLOT_WEIGHT, w->orders->backward[w->weights++]);
}

static void append_row_slots(struct row_writer *w, bool split, int ahead, int live)
{
    const int total = w->orders->n;
    while (w->backwards < total) {
        while (w->forwards < total && w->forwards <= ahead + w->backwards) {
            if (split && w->forwards - w->weights == live)
                append_weight(w);
            append_slot(w, SLOT_FORWARD, w->orders->forward[w->forwards++]);
        }
        append_slot(w, split ? SLOT_INPUT : SLOT_BACKWARD, w->orders->backward[w->backwards++]);
        if (split && w->forwards == total)
            append_weight(w);
    }
    while (split && w->weights < total)
        append_weight(w);
}

static err_t fill_rows(struct schedule *s, const struct family *family, const struct slot_orders *o)
{
    size_t kinds = family->split ? 3 : 2, n = (size_t)s->chunks * (size_t)s->micros * kinds;
    for (int r = 0; r < s->ranks; r++) {
        s->rows[r].slots = calloc(n, sizeof(struct slot));
        if (!s->rows[r].slots)
            return ERR_NOMEM;
        struct row_writer w = {.orders = o, .micros = s->micros, .row = &s->rows[r]};
        append_row_slots(&w, family->split, family->ahead(s, r), s->ranks);
    }
    return OK;
}

static err_t check_kind(enum schedule_kind kind, int chunks, struct why *why)
{
    if ((unsigned)kind >= SCHEDULE_KIND_COUNT)
        return why_set(why, ERR_INVALID, "there is no schedule number %d", (int)kind);
    if (chunks > 1 && !families[kind].many_chunks)
        return why_set(why, ERR_INVALID,
                       "schedule %s has one chunk per rank, not %d; the nearest legal choice is 1, or schedule %s",
                       schedule_name(kind), chunks, schedule_name(SCHEDULE_INTERLEAVED));
    return OK;
}

err_t schedule_build(enum schedule_kind kind, int ranks, int chunks, int micros, struct schedule *ret, struct why *why)
{
    struct schedule s = {.ranks = ranks, .chunks = chunks, .micros = micros};
    err_t err = schedule_check_size(ranks, chunks, micros, why);
    if (!err)
        err = check_kind(kind, chunks, why);
    if (err)
        return err;
    struct slot_orders o = {.n = padded(&s)};
    o.forward = calloc((size_t)o.n, sizeof(struct slot));
    o.backward = calloc((size_t)o.n, sizeof(struct slot));
    s.rows = calloc((size_t)ranks, sizeof(*s.rows));
    err = ERR_NOMEM;
    if (o.forward && o.backward && s.rows) {
        fill_orders(&s, &o);
        err = fill_rows(&s, &families[kind], &o);
    }
    free(o.forward);
    free(o.backward);
    if (err) {
        schedule_fini(&s);
        return why_set(why, err, "out of memory for a schedule of %d ranks", ranks);
    }
    *ret = s;
    return OK;
}
