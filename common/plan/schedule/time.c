/* Times of all slots for given costs. Each rank runs as long as its inputs have been computed; a rank that computes a
 * value wakes the rank that reads it. Every slot is visited once or twice, so the time is linear in their number.
 *
 * `ready` has, for each (stage, microbatch), the times at which the forward and the gradient of the input were
 * complete; -1 before.
 *
 * With slots that run ahead, the play is one step of many: it begins when all ranks have the norm of the step before,
 * and ends when they have this one's. A rank's first slots then come last, for the next step, and those of this step
 * have run before time 0. */
#include "common/plan/schedule/schedule.h"

#include <stdlib.h>
#include <string.h>

struct schedule_clock {
    const struct schedule *s;
    const struct schedule_cost *cost;
    struct schedule_times *times;
    double *ready[3]; /* forward, gradient of the input, forward of the next step */
    int ahead;        /* slots of rank 0 that run ahead */
    int *next;        /* by rank: slots that have run */
    int *awake;       /* a stack of ranks; each is in it at most once */
    bool *is_awake;
    int n_awake;
};

/* The slot of the row that runs as the rank's i-th. */
static int slot_at(const struct schedule_clock *k, int rank, int i)
{
    const int n = k->s->rows[rank].n;
    return n ? (i + schedule_ahead_of(k->ahead, rank)) % n : 0;
}

/* Whether the rank's next slot belongs to the next step. */
static bool is_next_step(const struct schedule_clock *k, int rank)
{
    return k->next[rank] >= k->s->rows[rank].n - schedule_ahead_of(k->ahead, rank);
}

static double *ready_of(struct schedule_clock *k, const struct schedule_work *w, bool next_step)
{
    size_t stage = (size_t)schedule_stage(k->s, w->rank, w->chunk);
    const int list = w->kind != SLOT_FORWARD ? 1 : next_step ? 2 : 0;
    return &k->ready[list][stage * (size_t)k->s->micros + (size_t)w->micro];
}

static void wake_rank(struct schedule_clock *k, int rank)
{
    if (!k->is_awake[rank])
        k->awake[k->n_awake++] = rank;
    k->is_awake[rank] = true;
}

/* The time at which the slot's inputs are on its rank; false while one of them is not computed. The rank's own forward,
 * and for weights its own backward for inputs, come earlier in the order. */
static bool values_at(struct schedule_clock *k, int rank, const struct slot *slot, double *ret)
{
    struct schedule_work from;
    *ret = 0;
    if (!schedule_source(k->s, rank, slot, &from))
        return true;
    double made = *ready_of(k, &from, is_next_step(k, rank));
    *ret = made + (from.rank == rank ? 0 : k->cost->latency);
    return made >= 0;
}

static double seconds_of(const struct schedule_clock *k, const struct slot *slot)
{
    return k->cost->seconds[slot->kind] * (slot->micro == k->s->micros - 1 ? k->cost->last_scale : 1);
}

static void run_slot(struct schedule_clock *k, int rank, double values)
{
    struct schedule_rank_times *t = &k->times->ranks[rank];
    const bool next_step = is_next_step(k, rank);
    const int i = k->next[rank]++, at = slot_at(k, rank, i);
    const struct slot *slot = &k->s->rows[rank].slots[at];
    struct schedule_span *span = &t->spans[at];
    double idle_since = i ? t->spans[slot_at(k, rank, i - 1)].end : 0;
    struct schedule_work self = {rank, slot->kind, slot->chunk, slot->micro}, to;
    span->start = values > idle_since ? values : idle_since;
    span->end = span->start + seconds_of(k, slot);
    t->busy += seconds_of(k, slot);
    if (span->end > k->times->makespan)
        k->times->makespan = span->end;
    if (slot->kind != SLOT_WEIGHT)
        *ready_of(k, &self, next_step) = span->end;
    if (schedule_target(k->s, rank, slot, &to))
        wake_rank(k, to.rank);
}

static const struct slot *slot_next(const struct schedule_clock *k, int rank)
{
    return k->next[rank] < k->s->rows[rank].n ? &k->s->rows[rank].slots[slot_at(k, rank, k->next[rank])] : NULL;
}

static void run_all(struct schedule_clock *k)
{
    double values;
    for (int r = 0; r < k->s->ranks; r++)
        wake_rank(k, r);
    while (k->n_awake) {
        int r = k->awake[--k->n_awake];
        k->is_awake[r] = false;
        const struct slot *slot;
        while ((slot = slot_next(k, r)) && values_at(k, r, slot, &values))
            run_slot(k, r, values);
    }
}

/* The rank for which this one's next slot waits; the slot must be waiting. */
static int waits_for(const struct schedule_clock *k, int rank)
{
    struct schedule_work from = {.rank = rank};
    (void)schedule_source(k->s, rank, slot_next(k, rank), &from);
    return from.rank;
}

static void print_wait(const struct schedule_clock *k, int rank, char *ret, size_t size)
{
    const struct slot *slot = slot_next(k, rank);
    size_t at = strlen(ret);
    snprintf(ret + at, size - at,
             "%srank %d, slot %d: %s of chunk %d on microbatch %d waits for its input from rank %d", at ? "; " : "",
             rank, slot_at(k, rank, k->next[rank]), slot_name(slot->kind), slot->chunk, slot->micro,
             waits_for(k, rank));
}

/* Reports the waits that begin at a rank that cannot continue: the cycle to which they lead, or the wait for a rank
 * that has finished. At most four waits are printed. */
static err_t refuse_wait(const struct schedule_clock *k, int rank, struct why *why)
{
    char text[800] = "";
    int first = rank, n = 0;
    for (int i = 0; i < k->s->ranks && slot_next(k, first); i++)
        first = waits_for(k, first);
    if (!slot_next(k, first)) {
        print_wait(k, rank, text, sizeof(text));
        return why_set(why, ERR_INVALID, "%s, which never computes it", text);
    }
    rank = first;
    do {
        if (n++ < 4)
            print_wait(k, rank, text, sizeof(text));
        rank = waits_for(k, rank);
    } while (rank != first);
    return why_set(why, ERR_INVALID, "the ranks wait for each other: %s%s", text, n > 4 ? "; and so on" : "");
}

static err_t set_bubbles(const struct schedule_clock *k, struct why *why)
{
    for (int r = 0; r < k->s->ranks; r++) {
        if (slot_next(k, r))
            return refuse_wait(k, r, why);
        k->times->ranks[r].bubble = k->times->makespan - k->times->ranks[r].busy;
    }
    return OK;
}

static err_t times_init(struct schedule_times *t, const struct schedule *s)
{
    t->ranks = calloc((unsigned)s->ranks, sizeof(*t->ranks));
    if (!t->ranks)
        return ERR_NOMEM;
    t->n_ranks = s->ranks;
    for (int r = 0; r < s->ranks; r++) {
        t->ranks[r].spans = calloc((size_t)s->rows[r].n + 1, sizeof(struct schedule_span));
        if (!t->ranks[r].spans)
            return ERR_NOMEM;
    }
    return OK;
}

static err_t schedule_clock_init(struct schedule_clock *k)
{
    size_t ranks = (size_t)k->s->ranks, work = ranks * (size_t)k->s->chunks * (size_t)k->s->micros;
    k->next = calloc(ranks, sizeof(int));
    k->awake = calloc(ranks, sizeof(int));
    k->is_awake = calloc(ranks, sizeof(bool));
    for (int i = 0; i < 3; i++) {
        k->ready[i] = malloc(work * sizeof(double));
        for (size_t j = 0; k->ready[i] && j < work; j++)
            k->ready[i][j] = -1;
    }
    return k->next && k->awake && k->is_awake && k->ready[0] && k->ready[1] && k->ready[2] ? OK : ERR_NOMEM;
}

static void schedule_clock_fini(struct schedule_clock *k)
{
    free(k->next);
    free(k->awake);
    free(k->is_awake);
    free(k->ready[0]);
    free(k->ready[1]);
    free(k->ready[2]);
}

/* The slots that ran ahead were complete at the start. */
static void set_ahead(struct schedule_clock *k)
{
    for (int r = 0; r < k->s->ranks; r++)
        for (int i = 0; i < schedule_ahead_of(k->ahead, r); i++) {
            const struct slot *slot = &k->s->rows[r].slots[i];
            *ready_of(k, &(struct schedule_work){r, slot->kind, slot->chunk, slot->micro}, false) = 0;
        }
}

/* The slots of a schedule that was not checked may have any values. */
static err_t check_ranges(const struct schedule *s, struct why *why)
{
    for (int r = 0; r < s->ranks; r++)
        for (int i = 0; i < s->rows[r].n; i++) {
            const struct slot *x = &s->rows[r].slots[i];
            if ((unsigned)x->kind >= SLOT_KIND_COUNT || (unsigned)x->chunk >= (unsigned)s->chunks ||
                (unsigned)x->micro >= (unsigned)s->micros)
                return why_set(why, ERR_INVALID, "rank %d, slot %d: chunk %d on microbatch %d is outside the schedule",
                               r, i, x->chunk, x->micro);
        }
    return OK;
}

err_t schedule_simulate_ahead(const struct schedule *s, int ahead, const struct schedule_cost *cost,
                              struct schedule_times *ret, struct why *why)
{
    struct schedule_times times = {0};
    struct schedule_clock k = {.s = s, .cost = cost, .times = &times, .ahead = ahead};
    err_t err = schedule_check_size(s->ranks, s->chunks, s->micros, why);
    if (!err)
        err = check_ranges(s, why);
    if (err)
        return err;
    err = times_init(&times, s);
    if (!err)
        err = schedule_clock_init(&k);
    if (err)
        (void)why_set(why, err, "out of memory for the times of a schedule of %d ranks", s->ranks);
    if (!err) {
        set_ahead(&k);
        run_all(&k);
        err = set_bubbles(&k, why);
    }
    schedule_clock_fini(&k);
    if (err)
        schedule_times_fini(&times);
    else
        *ret = times;
    return err;
}

err_t schedule_simulate(const struct schedule *s, const struct schedule_cost *cost, struct schedule_times *ret,
                        struct why *why)
{
    return schedule_simulate_ahead(s, 0, cost, ret, why);
}

void schedule_times_fini(struct schedule_times *t)
{
    for (int r = 0; r < t->n_ranks; r++)
        free(t->ranks[r].spans);
    free(t->ranks);
    *t = (struct schedule_times){0};
}
