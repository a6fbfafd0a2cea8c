/* Checks that a schedule does all work on each rank once and in order, and that all ranks finish.
 *
 * The first check uses a table per rank with the slot of each piece of work. The second uses post.c: exchanges have an
 * order only where no cycle of waits exists, and the order that post.c finds is simulated before it is used. */
#include "common/plan/schedule/schedule.h"

#include <stdlib.h>
#include <string.h>

/* By kind and (chunk, microbatch): the slot in the row that is being checked, index + 1; 0: none. */
struct work_slots {
    int *at[SLOT_KIND_COUNT];
    size_t n;
};

static int *work_slot(const struct work_slots *p, const struct schedule *s, enum slot_kind kind,
                      const struct slot *slot)
{
    return &p->at[kind][(size_t)slot->chunk * (size_t)s->micros + (size_t)slot->micro];
}

static err_t slot_fail(int rank, int i, const struct slot *slot, struct why *why, const char *reason)
{
    return why_set(why, ERR_INVALID, "rank %d, slot %d: %s of chunk %d on microbatch %d: %s", rank, i,
                   slot_name(slot->kind), slot->chunk, slot->micro, reason);
}

static err_t check_range(const struct schedule *s, int rank, int i, const struct slot *slot, struct why *why)
{
    if ((unsigned)slot->kind >= SLOT_KIND_COUNT)
        return slot_fail(rank, i, slot, why, "there is no such kind of work");
    if (slot->chunk < 0 || slot->chunk >= s->chunks)
        return slot_fail(rank, i, slot, why, "there is no such chunk on a rank");
    if (slot->micro < 0 || slot->micro >= s->micros)
        return slot_fail(rank, i, slot, why, "there is no such microbatch");
    return OK;
}

/* By kind of slot: the kind that must come before it, and the kind that must not. A second slot of the same work is
 * always refused. */
static const struct {
    int after, not_with;
    const char *text_after, *text_with;
} orders[SLOT_KIND_COUNT] = {
    [SLOT_FORWARD] = {-1, -1, NULL, NULL},
    [SLOT_BACKWARD] = {SLOT_FORWARD, SLOT_INPUT, "its forward is not before it",
                       "a backward for inputs is already before it"},
    [SLOT_INPUT] = {SLOT_FORWARD, SLOT_BACKWARD, "its forward is not before it",
                    "a whole backward is already before it"},
    [SLOT_WEIGHT] = {SLOT_INPUT, -1, "its backward for inputs is not before it", NULL},
};

static err_t check_slot(const struct schedule *s, const struct work_slots *p, int rank, int i, struct why *why)
{
    const struct slot *slot = &s->rows[rank].slots[i];
    char text[64];
    err_t err = check_range(s, rank, i, slot, why);
    if (err)
        return err;
    int before = *work_slot(p, s, slot->kind, slot), after = orders[slot->kind].after,
        with = orders[slot->kind].not_with;
    snprintf(text, sizeof(text), "slot %d already does the same", before - 1);
    if (before)
        return slot_fail(rank, i, slot, why, text);
    if (after >= 0 && !*work_slot(p, s, (enum slot_kind)after, slot))
        return slot_fail(rank, i, slot, why, orders[slot->kind].text_after);
    if (with >= 0 && *work_slot(p, s, (enum slot_kind)with, slot))
        return slot_fail(rank, i, slot, why, orders[slot->kind].text_with);
    *work_slot(p, s, slot->kind, slot) = i + 1;
    return OK;
}

static err_t check_missing(const struct schedule *s, const struct work_slots *p, int rank, int chunk, int micro,
                           struct why *why)
{
    struct slot slot = {SLOT_FORWARD, chunk, micro};
    int n = s->rows[rank].n, input = *work_slot(p, s, SLOT_INPUT, &slot);
    if (!*work_slot(p, s, SLOT_FORWARD, &slot))
        return slot_fail(rank, n, &slot, why, "the row ends without it");
    slot.kind = SLOT_BACKWARD;
    if (!input && !*work_slot(p, s, SLOT_BACKWARD, &slot))
        return slot_fail(rank, n, &slot, why, "the row ends without it");
    slot.kind = SLOT_WEIGHT;
    if (input && !*work_slot(p, s, SLOT_WEIGHT, &slot))
        return slot_fail(rank, n, &slot, why, "the row ends without it, although the backward is split");
    return OK;
}

/* Activations exist from the forward to the end of the whole backward, or of the backward for weights. */
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

static err_t check_row(const struct schedule *s, const struct work_slots *p, int rank, struct why *why)
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
    struct work_slots p = {.n = (size_t)s->chunks * (size_t)s->micros};
    int *all = calloc(p.n * SLOT_KIND_COUNT, sizeof(int));
    if (!all)
        return why_set(why, ERR_NOMEM, "out of memory to check a schedule of %d ranks", s->ranks);
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
