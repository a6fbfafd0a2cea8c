/* Whether a schedule does all work once and in order on each rank, and whether the ranks together come to their ends.
 *
 * The first is a table per rank of where each work stands. The second is schedule_post.c's: an order of exchanges
 * exists only where no circle of waits does, and what it made is played through before anybody relies on it. */
#include "common/plan/schedule/schedule.h"

#include <stdlib.h>
#include <string.h>

/* Where each (chunk, microbatch) has its slot of each kind in the row that is looked at: index + 1, 0 where none. */
struct places {
    int *at[SLOT_KIND_COUNT];
    size_t n;
};

static int *place(const struct places *p, const struct schedule *s, enum slot_kind kind, const struct slot *slot)
{
    return &p->at[kind][(size_t)slot->chunk * (size_t)s->micros + (size_t)slot->micro];
}

static err_t refuse(int rank, int i, const struct slot *slot, struct why *why, const char *reason)
{
    return why_set(why, ERR_INVALID, "rank %d, slot %d: %s of chunk %d on microbatch %d: %s", rank, i,
                   slot_name(slot->kind), slot->chunk, slot->micro, reason);
}

static err_t check_range(const struct schedule *s, int rank, int i, const struct slot *slot, struct why *why)
{
    if ((unsigned)slot->kind >= SLOT_KIND_COUNT)
        return refuse(rank, i, slot, why, "there is no such kind of work");
    if (slot->chunk < 0 || slot->chunk >= s->chunks)
        return refuse(rank, i, slot, why, "there is no such chunk on a rank");
    if (slot->micro < 0 || slot->micro >= s->micros)
        return refuse(rank, i, slot, why, "there is no such microbatch");
    return OK;
}

/* What must be before a slot of this kind, and what must not; the slot itself not twice goes without saying. */
static const struct {
    int after, not_with;
    const char *text_after, *text_with;
} orders[SLOT_KIND_COUNT] = {
    [SLOT_FORWARD] = {-1, -1, NULL, NULL},
    [SLOT_BACKWARD] = {SLOT_FORWARD, SLOT_INPUT, "its forward is not before it",
                       "a backward for inputs is before it already"},
    [SLOT_INPUT] = {SLOT_FORWARD, SLOT_BACKWARD, "its forward is not before it",
                    "a whole backward is before it already"},
    [SLOT_WEIGHT] = {SLOT_INPUT, -1, "its backward for inputs is not before it", NULL},
};

static err_t check_slot(const struct schedule *s, const struct places *p, int rank, int i, struct why *why)
{
    const struct slot *slot = &s->rows[rank].slots[i];
    char text[64];
    err_t err = check_range(s, rank, i, slot, why);
    if (err)
        return err;
    int before = *place(p, s, slot->kind, slot), after = orders[slot->kind].after, with = orders[slot->kind].not_with;
    snprintf(text, sizeof(text), "slot %d is the same already", before - 1);
    if (before)
        return refuse(rank, i, slot, why, text);
    if (after >= 0 && !*place(p, s, (enum slot_kind)after, slot))
        return refuse(rank, i, slot, why, orders[slot->kind].text_after);
    if (with >= 0 && *place(p, s, (enum slot_kind)with, slot))
        return refuse(rank, i, slot, why, orders[slot->kind].text_with);
    *place(p, s, slot->kind, slot) = i + 1;
    return OK;
}

static err_t check_missing(const struct schedule *s, const struct places *p, int rank, int chunk, int micro,
                           struct why *why)
{
    struct slot slot = {SLOT_FORWARD, chunk, micro};
    int n = s->rows[rank].n, input = *place(p, s, SLOT_INPUT, &slot);
    if (!*place(p, s, SLOT_FORWARD, &slot))
        return refuse(rank, n, &slot, why, "the row ends without it");
    slot.kind = SLOT_BACKWARD;
    if (!input && !*place(p, s, SLOT_BACKWARD, &slot))
        return refuse(rank, n, &slot, why, "the row ends without it");
    slot.kind = SLOT_WEIGHT;
    if (input && !*place(p, s, SLOT_WEIGHT, &slot))
        return refuse(rank, n, &slot, why, "the row ends without it, though inputs and weights are split");
    return OK;
}

/* Activations live from the forward to the whole backward, or to the one for weights. */
static int peak_of(const struct schedule_row *row)
{
    int live = 0, peak = 0;
    for (int i = 0; i < row->n; i++) {
        enum slot_kind kind = row->slots[i].kind;
        live += kind == SLOT_FORWARD ? 1 : kind == SLOT_INPUT ? 0 : -1;
        peak = live > peak ? live : peak;
    }
    return peak;
}

static err_t check_row(const struct schedule *s, const struct places *p, int rank, struct why *why)
{
    err_t err = OK;
    for (int k = 0; k < SLOT_KIND_COUNT; k++)
        memset(p->at[k], 0, p->n * sizeof(int));
    for (int i = 0; !err && i < s->rows[rank].n; i++)
        err = check_slot(s, p, rank, i, why);
    for (int c = 0; c < s->chunks; c++)
        for (int m = 0; !err && m < s->micros; m++)
            err = check_missing(s, p, rank, c, m, why);
    return err;
}

static err_t check_rows(const struct schedule *s, struct why *why)
{
    struct places p = {.n = (size_t)s->chunks * (size_t)s->micros};
    int *all = calloc(p.n * SLOT_KIND_COUNT, sizeof(int));
    if (!all)
        return why_set(why, ERR_NOMEM, "no memory to check a schedule of %d ranks", s->ranks);
    for (int k = 0; k < SLOT_KIND_COUNT; k++)
        p.at[k] = all + p.n * (size_t)k;
    err_t err = OK;
    for (int r = 0; !err && r < s->ranks; r++)
        err = check_row(s, &p, r, why);
    free(all);
    return err;
}

err_t schedule_check(const struct schedule *s, int *ret_peaks, struct why *why)
{
    struct schedule_posts posts = {0};
    err_t err = schedule_check_size(s->ranks, s->chunks, s->micros, why);
    if (!err)
        err = check_rows(s, why);
    if (!err)
        err = schedule_posts_init(&posts, s, why);
    if (!err)
        err = schedule_posts_check(&posts, s, why);
    for (int r = 0; !err && ret_peaks && r < s->ranks; r++)
        ret_peaks[r] = peak_of(&s->rows[r]);
    schedule_posts_fini(&posts);
    return err;
}
