/* In which exchange each value passes. With slots that all take one step, a schedule has a step for every slot, or its
 * ranks wait in a circle. A value is made at the end of a step, and at this moment its receiver too lies between two
 * slots: there it receives. So all exchanges can happen at the moments of that one clock, whatever the slots take in
 * truth, and no send needs a buffer: deadlock is left only where the order itself is a circle.
 *
 * Between two ranks values pass in the order of the sender's slots, so messages need no tags: an exchange that receives
 * several from one rank posts them in this order.
 *
 * schedule_posts_check believes nothing of this and plays the exchanges. The moves of one rank never take those of
 * another away, so every order of looking at ranks ends in the same place. */
#include "common/plan/schedule.h"

#include <assert.h>
#include <stdlib.h>

/* Which slot of its rank a work is: -1 where there is none. */
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

/* ---- where values are received ---- */

/* The first slot that starts at `when` or later; there is one. */
static int first_from(const struct schedule_span *spans, int n, double when)
{
    int lo = 0, hi = n;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (spans[mid].start < when)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

static void place_receives(struct schedule_posts *p, const struct slot_index *x, const struct schedule_times *t, int r)
{
    const struct schedule_row *row = &x->s->rows[r];
    for (int i = 0; i < row->n; i++) {
        struct schedule_work from;
        p->ranks[r].receive[i] = -1;
        if (!schedule_source(x->s, r, &row->slots[i], &from) || from.rank == r)
            continue;
        double made = t->ranks[from.rank].spans[index_work(x, &from)].end;
        p->ranks[r].receive[i] = first_from(t->ranks[r].spans, row->n, made);
    }
}

/* `arrivals`: zeroed, one element per slot and one more; how many values come in the exchange before it. */
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

static err_t place_all(struct schedule_posts *p, const struct slot_index *x, const struct schedule_times *t)
{
    for (int r = 0; r < x->s->ranks; r++) {
        size_t n = (size_t)x->s->rows[r].n + 1;
        int *arrivals = calloc(n, sizeof(int));
        p->ranks[r].receive = calloc(n, sizeof(int));
        if (!arrivals || !p->ranks[r].receive) {
            free(arrivals);
            return ERR_NOMEM;
        }
        place_receives(p, x, t, r);
        p->ranks[r].held = count_held(&p->ranks[r], x->s->rows[r].n, arrivals);
        free(arrivals);
    }
    return OK;
}

err_t schedule_posts_init(struct schedule_posts *p, const struct schedule *s, struct why *why)
{
    const struct schedule_cost step = {.seconds = {1, 1, 1, 1}, .last_scale = 1};
    struct schedule_times times = {0};
    struct slot_index index = {0};
    err_t err = schedule_simulate(s, &step, &times, why);
    if (err)
        return err;
    struct schedule_posts posts = {s->ranks, calloc((size_t)s->ranks, sizeof(*posts.ranks))};
    err = posts.ranks ? index_init(&index, s) : ERR_NOMEM;
    if (!err)
        err = place_all(&posts, &index, &times);
    free(index.slot);
    schedule_times_fini(&times);
    if (err) {
        schedule_posts_fini(&posts);
        return why_set(why, err, "no memory for the exchanges of %d ranks", s->ranks);
    }
    *p = posts;
    return OK;
}

void schedule_posts_fini(struct schedule_posts *p)
{
    for (int r = 0; p->ranks && r < p->n_ranks; r++)
        free(p->ranks[r].receive);
    free(p->ranks);
    *p = (struct schedule_posts){0};
}

/* ---- playing them ---- */

/* A rank in the exchange before slot `next`. */
struct stand {
    int next;
    bool has_give;             /* what slot next - 1 made is not received yet */
    int takes;                 /* receives of this exchange that are not over */
    struct schedule_work give; /* who takes it */
};

struct game {
    const struct schedule *s;
    const struct schedule_posts *posts;
    struct slot_index index;
    struct stand *stands; /* by rank */
    int **arrivals;       /* by rank and slot: receives of the exchange before it */
    bool **has;           /* by rank and slot: its input is there */
};

static void enter_exchange(struct game *g, int rank)
{
    struct stand *x = &g->stands[rank];
    const struct schedule_row *row = &g->s->rows[rank];
    x->has_give = x->next && schedule_target(g->s, rank, &row->slots[x->next - 1], &x->give);
    x->takes = x->next < row->n ? g->arrivals[rank][x->next] : 0;
    int slot = x->has_give ? index_work(&g->index, &x->give) : -1;
    if (slot >= 0 && x->give.rank == rank) {
        g->has[rank][slot] = true;
        x->has_give = false;
    }
}

/* Passes what this rank gives, if the one who takes it stands in the exchange that receives it. */
static bool pass(struct game *g, int rank)
{
    struct stand *x = &g->stands[rank];
    if (!x->has_give)
        return false;
    int to = x->give.rank, slot = index_work(&g->index, &x->give);
    if (slot < 0 || g->posts->ranks[to].receive[slot] != g->stands[to].next)
        return false;
    x->has_give = false;
    g->stands[to].takes--;
    g->has[to][slot] = true;
    return true;
}

static bool can_run(const struct game *g, int rank)
{
    const struct stand *x = &g->stands[rank];
    struct schedule_work from;
    assert(g->has[rank]);
    if (x->next == g->s->rows[rank].n || x->has_give || x->takes)
        return false;
    return g->has[rank][x->next] || !schedule_source(g->s, rank, &g->s->rows[rank].slots[x->next], &from);
}

/* Until the rank has to wait; false if it could not move at all. */
static bool advance(struct game *g, int rank)
{
    bool moved = pass(g, rank);
    while (can_run(g, rank)) {
        g->stands[rank].next++;
        enter_exchange(g, rank);
        (void)pass(g, rank);
        moved = true;
    }
    return moved;
}

/* Up the ranks and down again until nobody moves: a value runs through the whole pipeline in one of the two. */
static void play(struct game *g)
{
    bool moved = true;
    for (int r = 0; r < g->s->ranks; r++)
        enter_exchange(g, r);
    while (moved) {
        moved = false;
        for (int r = 0; r < g->s->ranks; r++)
            moved |= advance(g, r);
        for (int r = g->s->ranks - 1; r >= 0; r--)
            moved |= advance(g, r);
    }
}

static err_t verdict(const struct game *g, struct why *why)
{
    for (int r = 0; r < g->s->ranks; r++) {
        const struct stand *x = &g->stands[r];
        const struct schedule_row *row = &g->s->rows[r];
        if (x->next == row->n && !x->has_give)
            continue;
        const struct slot *slot = &row->slots[x->has_give ? x->next - 1 : x->next];
        return why_set(why, ERR_INVALID, "rank %d, slot %d: %s of chunk %d on microbatch %d waits for ever %s", r,
                       (int)(slot - row->slots), slot_name(slot->kind), slot->chunk, slot->micro,
                       x->has_give ? "for its output to be received" : "for what is received before it");
    }
    return OK;
}

static err_t game_init(struct game *g)
{
    size_t ranks = (size_t)g->s->ranks;
    g->stands = calloc(ranks, sizeof(*g->stands));
    g->arrivals = calloc(ranks, sizeof(*g->arrivals));
    g->has = calloc(ranks, sizeof(*g->has));
    if (!g->stands || !g->arrivals || !g->has || index_init(&g->index, g->s))
        return ERR_NOMEM;
    for (size_t r = 0; r < ranks; r++) {
        size_t n = (size_t)g->s->rows[r].n + 1;
        g->arrivals[r] = calloc(n, sizeof(int));
        g->has[r] = calloc(n, sizeof(bool));
        if (!g->arrivals[r] || !g->has[r])
            return ERR_NOMEM;
        for (size_t i = 0; i < n - 1; i++)
            if (g->posts->ranks[r].receive[i] >= 0)
                g->arrivals[r][g->posts->ranks[r].receive[i]]++;
    }
    return OK;
}

static void game_fini(struct game *g)
{
    for (int r = 0; r < g->s->ranks; r++) {
        if (g->arrivals)
            free(g->arrivals[r]);
        if (g->has)
            free(g->has[r]);
    }
    free(g->arrivals);
    free(g->has);
    free(g->stands);
    free(g->index.slot);
}

err_t schedule_posts_check(const struct schedule_posts *p, const struct schedule *s, struct why *why)
{
    struct game g = {.s = s, .posts = p};
    err_t err = game_init(&g);
    if (err) {
        (void)why_set(why, err, "no memory to check the exchanges of %d ranks", s->ranks);
    } else {
        play(&g);
        err = verdict(&g, why);
    }
    game_fini(&g);
    return err;
}
