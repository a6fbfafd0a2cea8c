/* Finds the exchange in which each value passes. Slots are grouped into steps that all take one tick of a common clock.
 * Either every step has a tick, or the ranks wait for each other in a cycle. A value is complete at the end of a step,
 * and at this moment its receiver is between two steps too, so it receives the value then. All exchanges can thus
 * happen at moments of one clock, whatever time the slots really take, and no send needs a buffer. A deadlock is
 * possible only where the order itself has a cycle.
 *
 * A step is one slot. With several chunks in a loop it is, where possible, a forward and the whole backward after it:
 * adjacent ranks compute a forward and a backward, which takes twice as long, at the same time, and if they exchanged
 * values after each slot, each would wait for the slower of the two. With one exchange after both, no rank waits. A
 * backward for inputs takes about as long as a forward, so it is a step of its own, and its gradient leaves earlier. In
 * a V every slot is a step: the next rank needs the forward's output while this one computes the backward.
 *
 * Values between two ranks pass in the order of the sender's slots, so messages need no tags: an exchange that receives
 * several values from one rank posts them in this order.
 *
 * schedule_posts_check does not rely on any of this and simulates the exchanges. A move of one rank never disables a
 * move of another, so the order in which ranks are visited does not change the result. */
#include "common/plan/schedule/schedule.h"

#include <assert.h>
#include <stdlib.h>

/* The slot of each piece of work in its rank's row; -1: none. */
struct slot_index {
    const struct schedule *s;
    int *slot;
};

static int *index_of(const struct slot_index *x, int rank, bool forward, int chunk, int micro)
{
    size_t stage = (size_t)schedule_stage(x->s, rank, chunk), micros = (size_t)x->s->micros;
    return &x->slot[(stage * micros + (size_t)micro) * 2 + !forward];
}

static int index_work(const struct slot_index *x, const struct schedule_work *w)
{
    return *index_of(x, w->rank, w->kind == SLOT_FORWARD, w->chunk, w->micro);
}

static err_t index_init(struct slot_index *x, const struct schedule *s)
{
    size_t n = (size_t)s->ranks * (size_t)s->chunks * (size_t)s->micros * 2;
    *x = (struct slot_index){s, malloc(n * sizeof(int))};
    for (size_t i = 0; x->slot && i < n; i++)
        x->slot[i] = -1;
    for (int r = 0; x->slot && r < s->ranks; r++)
        for (int i = 0; i < s->rows[r].n; i++) {
            const struct slot *slot = &s->rows[r].slots[i];
            if (slot->kind != SLOT_WEIGHT)
                *index_of(x, r, slot->kind == SLOT_FORWARD, slot->chunk, slot->micro) = i;
        }
    return x->slot ? OK : ERR_NOMEM;
}

/* ---- the clock ---- */

/* By rank and slot: the first slot of its step, and the tick at which the step begins; -1: not known yet. */
struct ticks {
    const struct slot_index *index;
    int **first, **begins;
};

static bool is_pair(const struct schedule_row *row, int i)
{
    return i + 1 < row->n && row->slots[i].kind == SLOT_FORWARD && row->slots[i + 1].kind == SLOT_BACKWARD;
}

static void make_steps(const struct schedule_row *row, bool pairs, int *first, int *begins)
{
    for (int i = 0; i < row->n; i++) {
        first[i] = pairs && i && first[i - 1] == i - 1 && is_pair(row, i - 1) ? i - 1 : i;
        begins[i] = -1;
    }
}

/* The tick at which all inputs of the step at slot i exist; -1: some are not computed yet. */
static int inputs_at(const struct ticks *t, int rank, int i)
{
    const struct schedule *s = t->index->s;
    int at = 0;
    for (int k = i; k < s->rows[rank].n && t->first[rank][k] == i; k++) {
        struct schedule_work from;
        if (!schedule_source(s, rank, &s->rows[rank].slots[k], &from))
            continue;
        int slot = index_work(t->index, &from), begins = slot < 0 ? -1 : t->begins[from.rank][slot];
        if (begins < 0)
            return -1;
        at = begins + 1 > at ? begins + 1 : at;
    }
    return at;
}

/* Runs as many of the rank's steps as can begin; *next: its first slot that has not. */
static bool run_steps(const struct ticks *t, int rank, int *next)
{
    const int n = t->index->s->rows[rank].n, from = *next;
    int at;
    while (*next < n && (at = inputs_at(t, rank, *next)) >= 0) {
        int first = *next, free_at = first ? t->begins[rank][first - 1] + 1 : 0;
        for (; *next < n && t->first[rank][*next] == first; (*next)++)
            t->begins[rank][*next] = at > free_at ? at : free_at;
    }
    return *next > from;
}

/* Runs all steps; false where some wait for ever. `next`: zeroed, by rank. */
static bool run_ticks(const struct ticks *t, int *next)
{
    const struct schedule *s = t->index->s;
    bool moved = true, over = true;
    while (moved) {
        moved = false;
        for (int r = 0; r < s->ranks; r++)
            moved |= run_steps(t, r, &next[r]);
        for (int r = s->ranks; r-- > 0;)
            moved |= run_steps(t, r, &next[r]);
    }
    for (int r = 0; r < s->ranks; r++)
        over &= next[r] == s->rows[r].n;
    return over;
}

/* ---- exchanges of values ---- */

/* The first slot of the first step that begins at tick `when` or later. Such a step must exist. */
static int first_from(const int *begins, int n, int when)
{
    int lo = 0, hi = n;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (begins[mid] < when)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static void place_rank(const struct schedule_posts *p, const struct ticks *t, int r)
{
    const struct schedule *s = t->index->s;
    const struct schedule_row *row = &s->rows[r];
    for (int i = 0, end; i < row->n; i = end) {
        for (end = i; end < row->n && t->first[r][end] == i;)
            end++;
        for (int k = i; k < end; k++) {
            struct schedule_work from;
            p->ranks[r].send[k] = end;
            p->ranks[r].receive[k] = p->ranks[r].made[k] = -1;
            if (!schedule_source(s, r, &row->slots[k], &from))
                continue;
            const int made = p->ranks[r].made[k] = index_work(t->index, &from);
            p->ranks[r].receive[k] = from.rank == r ? p->ranks[r].send[made]
                                                    : first_from(t->begins[r], row->n, t->begins[from.rank][made] + 1);
        }
    }
}

/* The largest number of received values that exist at once. `arrivals`: zeroed, one element per slot and one more; gets
 * the number of values received in the exchange before the slot. */
static int count_held(const struct schedule_rank_posts *p, int n, int *arrivals)
{
    int now = 0, most = 0;
    for (int i = 0; i < n; i++)
        if (p->receive[i] >= 0)
            arrivals[p->receive[i]]++;
    for (int i = 0; i < n; i++) {
        now += arrivals[i];
        most = now > most ? now : most;
        now -= p->receive[i] >= 0;
    }
    return most;
}

static err_t place_all(const struct schedule_posts *p, const struct ticks *t)
{
    const struct schedule *s = t->index->s;
    for (int r = 0; r < s->ranks; r++) {
        int *arrivals = calloc((size_t)s->rows[r].n + 1, sizeof(int));
        if (!arrivals)
            return ERR_NOMEM;
        place_rank(p, t, r);
        p->ranks[r].held = count_held(&p->ranks[r], s->rows[r].n, arrivals);
        free(arrivals);
    }
    return OK;
}

static err_t ticks_init(struct ticks *t, const struct slot_index *index)
{
    const struct schedule *s = index->s;
    *t = (struct ticks){index, calloc((size_t)s->ranks, sizeof(int *)), calloc((size_t)s->ranks, sizeof(int *))};
    if (!t->first || !t->begins)
        return ERR_NOMEM;
    for (int r = 0; r < s->ranks; r++) {
        t->first[r] = calloc((size_t)s->rows[r].n + 1, sizeof(int));
        t->begins[r] = calloc((size_t)s->rows[r].n + 1, sizeof(int));
        if (!t->first[r] || !t->begins[r])
            return ERR_NOMEM;
    }
    return OK;
}

static void ticks_fini(struct ticks *t)
{
    for (int r = 0; r < t->index->s->ranks; r++) {
        if (t->first)
            free(t->first[r]);
        if (t->begins)
            free(t->begins[r]);
    }
    free(t->first);
    free(t->begins);
}

/* ERR_INVALID where these steps, or their exchanges, do not finish. */
static err_t place_exchanges(const struct schedule_posts *p, struct ticks *t, bool pairs)
{
    const struct schedule *s = t->index->s;
    int *next = calloc((size_t)s->ranks, sizeof(int));
    if (!next)
        return ERR_NOMEM;
    for (int r = 0; r < s->ranks; r++)
        make_steps(&s->rows[r], pairs, t->first[r], t->begins[r]);
    err_t err = run_ticks(t, next) ? place_all(p, t) : ERR_INVALID;
    if (!err && pairs)
        err = schedule_posts_check(p, s, NULL);
    free(next);
    return err;
}

static err_t posts_new(struct schedule_posts *p, const struct schedule *s)
{
    *p = (struct schedule_posts){s->ranks, calloc((size_t)s->ranks, sizeof(*p->ranks))};
    for (int r = 0; p->ranks && r < s->ranks; r++) {
        p->ranks[r].receive = calloc((size_t)s->rows[r].n + 1, sizeof(int));
        p->ranks[r].send = calloc((size_t)s->rows[r].n + 1, sizeof(int));
        p->ranks[r].made = calloc((size_t)s->rows[r].n + 1, sizeof(int));
        if (!p->ranks[r].receive || !p->ranks[r].send || !p->ranks[r].made)
            return ERR_NOMEM;
    }
    return p->ranks ? OK : ERR_NOMEM;
}

/* Reports which rank waits for which. */
static err_t fail_with_waits(const struct schedule *s, struct why *why)
{
    const struct schedule_cost tick = {.seconds = {1, 1, 1, 1}, .last_scale = 1};
    struct schedule_times times = {0};
    err_t err = schedule_simulate(s, &tick, &times, why);
    schedule_times_fini(&times);
    return err ? err : why_set(why, ERR_INVALID, "the ranks wait for each other");
}

err_t schedule_posts_init(struct schedule_posts *p, const struct schedule *s, struct why *why)
{
    struct slot_index index = {0};
    struct ticks ticks = {.index = &index};
    struct schedule_posts posts = {0};
    err_t err = index_init(&index, s);
    if (!err)
        err = ticks_init(&ticks, &index);
    if (!err)
        err = posts_new(&posts, s);
    if (!err) {
        const bool pairs = s->chunks > 1 && s->placement == PLACE_LOOP;
        err = place_exchanges(&posts, &ticks, pairs);
        if (err == ERR_INVALID && pairs)
            err = place_exchanges(&posts, &ticks, false);
    }
    index.s = s;
    ticks_fini(&ticks);
    free(index.slot);
    if (!err) {
        *p = posts;
        return OK;
    }
    schedule_posts_fini(&posts);
    return err == ERR_INVALID ? fail_with_waits(s, why)
                              : why_set(why, err, "out of memory for the exchanges of %d ranks", s->ranks);
}

void schedule_posts_fini(struct schedule_posts *p)
{
    for (int r = 0; p->ranks && r < p->n_ranks; r++) {
        free(p->ranks[r].receive);
        free(p->ranks[r].send);
        free(p->ranks[r].made);
    }
    free(p->ranks);
    *p = (struct schedule_posts){0};
}

/* ---- simulation ---- */

#define STEP_SLOTS 2 /* most slots of a step: a forward and a backward */

/* State of a rank in the exchange before slot `next`. */
struct rank_position {
    int next;
    int gives, given; /* sends of this exchange, in the order of slots; how many of them are complete */
    int takes;        /* receives of this exchange that are not complete */
    struct schedule_work give[STEP_SLOTS]; /* the work that reads the value */
};

struct exchange_sim {
    const struct schedule *s;
    const struct schedule_posts *posts;
    struct slot_index index;
    struct rank_position *positions; /* by rank */
    int **arrivals;                  /* by rank and slot: receives in the exchange before it */
    bool **has;                      /* by rank and slot: whether its input has arrived */
};

static void enter_exchange(struct exchange_sim *g, int rank)
{
    struct rank_position *x = &g->positions[rank];
    const struct schedule_row *row = &g->s->rows[rank];
    x->gives = x->given = 0;
    x->takes = x->next < row->n ? g->arrivals[rank][x->next] : 0;
    for (int i = x->next < STEP_SLOTS ? 0 : x->next - STEP_SLOTS; i < x->next; i++) {
        struct schedule_work to;
        if (g->posts->ranks[rank].send[i] != x->next || !schedule_target(g->s, rank, &row->slots[i], &to))
            continue;
        int slot = index_work(&g->index, &to);
        if (slot >= 0 && to.rank == rank)
            g->has[rank][slot] = true;
        else
            x->give[x->gives++] = to;
    }
}

/* Completes this rank's next send, if the receiver is in the exchange that receives it. */
static bool pass_value(struct exchange_sim *g, int rank)
{
    struct rank_position *x = &g->positions[rank];
    if (x->given == x->gives)
        return false;
    const struct schedule_work *give = &x->give[x->given];
    int to = give->rank, slot = index_work(&g->index, give);
    if (slot < 0 || g->posts->ranks[to].receive[slot] != g->positions[to].next)
        return false;
    x->given++;
    g->positions[to].takes--;
    g->has[to][slot] = true;
    return true;
}

static bool can_run(const struct exchange_sim *g, int rank)
{
    const struct rank_position *x = &g->positions[rank];
    struct schedule_work from;
    assert(g->has[rank]);
    if (x->next == g->s->rows[rank].n || x->given < x->gives || x->takes)
        return false;
    return g->has[rank][x->next] || !schedule_source(g->s, rank, &g->s->rows[rank].slots[x->next], &from);
}

/* Advances the rank until it has to wait; false if it could not move at all. */
static bool advance_rank(struct exchange_sim *g, int rank)
{
    bool moved = false;
    for (bool more = true; more;) {
        more = pass_value(g, rank);
        if (!more && can_run(g, rank)) {
            g->positions[rank].next++;
            enter_exchange(g, rank);
            more = true;
        }
        moved |= more;
    }
    return moved;
}

/* Visits the ranks in ascending and then descending order until none moves. Both orders, because a value passes through
 * the whole pipeline in one of the two. */
static void simulate(struct exchange_sim *g)
{
    bool moved = true;
    for (int r = 0; r < g->s->ranks; r++)
        enter_exchange(g, r);
    while (moved) {
        moved = false;
        for (int r = 0; r < g->s->ranks; r++)
            moved |= advance_rank(g, r);
        for (int r = g->s->ranks - 1; r >= 0; r--)
            moved |= advance_rank(g, r);
    }
}

static err_t first_stuck_rank(const struct exchange_sim *g, struct why *why)
{
    for (int r = 0; r < g->s->ranks; r++) {
        const struct rank_position *x = &g->positions[r];
        const struct schedule_row *row = &g->s->rows[r];
        bool gives = x->given < x->gives;
        if (x->next == row->n && !gives)
            continue;
        const struct slot *slot = &row->slots[gives ? x->next - 1 : x->next];
        return why_set(why, ERR_INVALID, "rank %d, slot %d: %s of chunk %d on microbatch %d waits for ever %s", r,
                       (int)(slot - row->slots), slot_name(slot->kind), slot->chunk, slot->micro,
                       gives ? "until its output is received" : "for a value that is received before it");
    }
    return OK;
}

static err_t exchange_sim_init(struct exchange_sim *g)
{
    size_t ranks = (size_t)g->s->ranks;
    g->positions = calloc(ranks, sizeof(*g->positions));
    g->arrivals = calloc(ranks, sizeof(*g->arrivals));
    g->has = calloc(ranks, sizeof(*g->has));
    if (!g->positions || !g->arrivals || !g->has || index_init(&g->index, g->s))
        return ERR_NOMEM;
    for (size_t r = 0; r < ranks; r++) {
        size_t n = (size_t)g->s->rows[r].n + 1;
        g->arrivals[r] = calloc(n, sizeof(int));
        g->has[r] = calloc(n, sizeof(bool));
        if (!g->arrivals[r] || !g->has[r])
            return ERR_NOMEM;
        for (size_t i = 0; i < n - 1; i++) {
            struct schedule_work from;
            if (schedule_source(g->s, (int)r, &g->s->rows[r].slots[i], &from) && from.rank != (int)r)
                g->arrivals[r][g->posts->ranks[r].receive[i]]++;
        }
    }
    return OK;
}

static void exchange_sim_fini(struct exchange_sim *g)
{
    for (int r = 0; r < g->s->ranks; r++) {
        if (g->arrivals)
            free(g->arrivals[r]);
        if (g->has)
            free(g->has[r]);
    }
    free(g->arrivals);
    free(g->has);
    free(g->positions);
    free(g->index.slot);
}

err_t schedule_posts_check(const struct schedule_posts *p, const struct schedule *s, struct why *why)
{
    struct exchange_sim g = {.s = s, .posts = p};
    err_t err = exchange_sim_init(&g);
    if (err) {
        (void)why_set(why, err, "out of memory to check the exchanges of %d ranks", s->ranks);
    } else {
        simulate(&g);
        err = first_stuck_rank(&g, why);
    }
    exchange_sim_fini(&g);
    return err;
}
