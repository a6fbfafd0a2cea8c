/* Slots that run ahead with post-validation. They are a set of slots at the start of the rows, such that every message
 * that one of them sends is received by another one, and the reverse. A rank that has finished a step can then run them
 * before it has the norm, and discard and repeat them together with all other ranks. */
#include "common/plan/schedule/schedule.h"

/* Whether the exchange before this slot of the rank's row belongs to the slots that run ahead. */
static bool is_ahead(int ahead, int rank, int exchange)
{
    return exchange < schedule_ahead_of(ahead, rank);
}

/* Checks one slot: it sends its output and receives its input on the same side of the cut as the other rank. */
static bool slot_fits(const struct schedule *s, const struct schedule_posts *posts, int ahead, int rank, int i)
{
    const struct slot *slot = &s->rows[rank].slots[i];
    const struct schedule_rank_posts *own = &posts->ranks[rank];
    struct schedule_work from;
    if (i < schedule_ahead_of(ahead, rank) && (slot->kind != SLOT_FORWARD || slot->chunk != 0))
        return false;
    if (own->receive[i] < 0 || !schedule_source(s, rank, slot, &from))
        return true;
    const bool sent = is_ahead(ahead, from.rank, posts->ranks[from.rank].send[own->made[i]]);
    return sent == is_ahead(ahead, rank, own->receive[i]) && sent == (i < schedule_ahead_of(ahead, rank));
}

static bool fits(const struct schedule *s, const struct schedule_posts *posts, int ahead)
{
    for (int r = 0; r < s->ranks; r++)
        for (int i = 0; i < s->rows[r].n; i++)
            if (s->rows[r].n < schedule_ahead_of(ahead, r) || !slot_fits(s, posts, ahead, r, i))
                return false;
    return true;
}

int schedule_ahead(const struct schedule *s, const struct schedule_posts *posts)
{
    int ahead = s->ranks - 1;
    while (ahead > 0 && !fits(s, posts, ahead))
        ahead--;
    return ahead;
}
