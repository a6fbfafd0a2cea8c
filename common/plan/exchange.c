#include "common/plan/exchange.h"

#include "common/mesh/mesh.h"

#include <stdlib.h>
#include <string.h>

static int64_t most_experts(int members, int64_t experts)
{
    return (experts + members - 1) / members;
}

err_t exchange_init(struct exchange *x, int members, int64_t experts)
{
    const size_t n = (size_t)members, e = (size_t)experts;
    *x = (struct exchange){.members = members, .experts = experts};
    x->lender = calloc(n, sizeof(*x->lender));
    x->shares = calloc(n, sizeof(*x->shares));
    x->rows = calloc(n, sizeof(*x->rows));
    x->position = calloc(n, sizeof(*x->position));
    x->begin = calloc(e * (n + 1), sizeof(*x->begin));
    x->share = calloc(n * 2 * (size_t)most_experts(members, experts), sizeof(*x->share));
    if (x->lender && x->shares && x->rows && x->position && x->begin && x->share)
        return OK;
    exchange_fini(x);
    return ERR_NOMEM;
}

void exchange_fini(struct exchange *x)
{
    free(x->lender);
    free(x->shares);
    free(x->rows);
    free(x->position);
    free(x->begin);
    free(x->share);
    memset(x, 0, sizeof(*x));
}

void exchange_experts(const struct exchange *x, int member, int64_t *ret_lo, int64_t *ret_hi)
{
    layout_split(x->experts, x->members, member, ret_lo, ret_hi);
}

int64_t exchange_slots(int members, int64_t experts, int member)
{
    int64_t most = 0;
    for (int i = 0; i < members; i++) {
        int64_t lo, hi;
        layout_split(experts, members, i, &lo, &hi);
        most = i != member && hi - lo > most ? hi - lo : most;
    }
    return most;
}

static struct exchange_share *shares_of(const struct exchange *x, int member)
{
    return x->share + member * 2 * most_experts(x->members, x->experts);
}

const struct exchange_share *exchange_shares(const struct exchange *x, int member)
{
    return shares_of(x, member);
}

static int64_t *begin_of(const struct exchange *x, int64_t expert)
{
    return x->begin + expert * (x->members + 1);
}

/* Every member computes the rows of its own experts. */
static void plan_routed(struct exchange *x)
{
    for (int64_t e = 0; e < x->experts; e++) {
        int64_t *begin = begin_of(x, e);
        for (int i = 0; i < x->members; i++) {
            const int32_t *of = x->offsets + i * (x->experts + 1);
            begin[i + 1] = begin[i] + of[e + 1] - of[e];
        }
    }
    for (int i = 0; i < x->members; i++) {
        int64_t lo, hi;
        exchange_experts(x, i, &lo, &hi);
        x->lender[i] = -1;
        x->shares[i] = hi - lo;
        x->rows[i] = 0;
        for (int64_t e = lo; e < hi; e++) {
            shares_of(x, i)[e - lo] = (struct exchange_share){e, 0, begin_of(x, e)[x->members]};
            x->rows[i] += begin_of(x, e)[x->members];
        }
    }
}

/* Adds a share to those that a member borrows, which are sorted by expert. */
static void borrow(struct exchange *x, int member, struct exchange_share s)
{
    struct exchange_share *all = shares_of(x, member);
    int64_t lo, hi, k = x->shares[member]++;
    exchange_experts(x, member, &lo, &hi);
    for (; k > hi - lo && all[k - 1].expert > s.expert; k--)
        all[k] = all[k - 1];
    all[k] = s;
}

/* `to` takes `n` rows from `from`, which has that many of its own experts: of the expert with most rows, then of the
 * next. */
static void move_rows(struct exchange *x, int from, int to, int64_t n)
{
    struct exchange_share *own = shares_of(x, from);
    int64_t lo, hi;
    exchange_experts(x, from, &lo, &hi);
    x->lender[to] = from;
    x->rows[from] -= n;
    x->rows[to] += n;
    while (n > 0) {
        struct exchange_share *most = own;
        for (int64_t k = 1; k < hi - lo; k++)
            most = own[k].rows > most->rows ? &own[k] : most;
        int64_t taken = most->rows < n ? most->rows : n;
        most->rows -= taken;
        borrow(x, to, (struct exchange_share){most->expert, most->first + most->rows, taken});
        n -= taken;
    }
}

/* The member that has most rows above its part of all; with sign -1 the one that lacks most. */
static int furthest(const struct exchange *x, int64_t all, int sign, int64_t *ret_by)
{
    int found = 0;
    *ret_by = 0;
    for (int i = 0; i < x->members; i++) {
        int64_t lo, hi, by;
        layout_split(all, x->members, i, &lo, &hi);
        by = sign * (x->rows[i] - (hi - lo));
        if (by > *ret_by) {
            *ret_by = by;
            found = i;
        }
    }
    return found;
}

int64_t exchange_home_rows(const struct exchange *x, int member)
{
    return x->offsets[member * (x->experts + 1) + x->experts];
}

static void plan_balanced(struct exchange *x)
{
    int64_t all = 0, lacks, has;
    for (int i = 0; i < x->members; i++)
        all += x->rows[i];
    for (int to = furthest(x, all, -1, &lacks); lacks > 0; to = furthest(x, all, -1, &lacks))
        move_rows(x, furthest(x, all, 1, &has), to, lacks);
}

void exchange_plan(struct exchange *x, const int32_t *offsets, bool balanced)
{
    x->offsets = offsets;
    x->before = 0;
    plan_routed(x);
    if (balanced)
        plan_balanced(x);
}

/* The rows [*lo, *hi) of the share's expert that `from` sends for it. */
static int64_t rows_from(const struct exchange *x, const struct exchange_share *s, int from, int64_t *lo, int64_t *hi)
{
    const int64_t *begin = begin_of(x, s->expert);
    *lo = s->first > begin[from] ? s->first : begin[from];
    *hi = s->first + s->rows < begin[from + 1] ? s->first + s->rows : begin[from + 1];
    return *hi > *lo ? *hi - *lo : 0;
}

static int64_t limit(int64_t n, int64_t most)
{
    return n < 0 ? 0 : n < most ? n : most;
}

void exchange_round(struct exchange *x, int64_t first, int64_t rows)
{
    x->before = 0;
    for (int to = 0; to < x->members; to++) {
        int64_t at = 0, lo, hi;
        for (int64_t k = 0; k < x->shares[to]; k++) {
            struct exchange_share *s = &shares_of(x, to)[k];
            const int64_t n = s->rows, skipped = limit(first - at, n), end = limit(first + rows - at, n);
            const struct exchange_share earlier = {s->expert, s->first, skipped};
            x->before += rows_from(x, &earlier, x->me, &lo, &hi);
            s->first += skipped;
            s->rows = end - skipped;
            at += n;
        }
        x->rows[to] = limit(at - first, rows);
    }
}

int64_t exchange_rows(const struct exchange *x, int from, int to)
{
    int64_t n = 0, lo, hi;
    for (int64_t k = 0; k < x->shares[to]; k++)
        n += rows_from(x, &shares_of(x, to)[k], from, &lo, &hi);
    return n;
}

void exchange_order(const struct exchange *x, int32_t *index, int32_t *inverse, int32_t *offsets)
{
    const int64_t slots = exchange_slots(x->members, x->experts, x->me);
    int64_t row = 0, first = 0, lo, hi;
    for (int i = 0; i < x->members; i++) {
        x->position[i] = first;
        first += exchange_rows(x, i, x->me);
    }
    exchange_experts(x, x->me, &lo, &hi);
    const int64_t all = hi - lo + slots;
    for (int64_t k = 0; k < all; k++) {
        offsets[k] = (int32_t)row;
        for (int i = 0; i < x->members && k < x->shares[x->me]; i++)
            for (int64_t n = rows_from(x, &shares_of(x, x->me)[k], i, &lo, &hi); n > 0; n--, row++) {
                index[row] = (int32_t)x->position[i];
                inverse[x->position[i]++] = (int32_t)row;
            }
    }
    offsets[all] = (int32_t)row;
}

void exchange_home(const struct exchange *x, int32_t *moved)
{
    const int32_t *mine = x->offsets + x->me * (x->experts + 1);
    int64_t home = x->before;
    for (int to = 0; to < x->members; to++)
        for (int64_t k = 0; k < x->shares[to]; k++) {
            const struct exchange_share *s = &shares_of(x, to)[k];
            int64_t lo, hi, n = rows_from(x, s, x->me, &lo, &hi);
            for (int64_t i = 0; i < n; i++, home++)
                moved[mine[s->expert] + lo - begin_of(x, s->expert)[x->me] + i] = (int32_t)home;
        }
}
