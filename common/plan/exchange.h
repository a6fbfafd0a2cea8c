/* The exchange of rows between the ranks of expert parallelism: which rank computes which rows, how many rows each rank
 * sends to each other one, and the order of the rows that arrive. Pure functions of the offsets that all ranks have
 * gathered.
 *
 *   home     rows sorted by the rank that computes them, then by expert, then by token: those for one rank are
 *            contiguous
 *   arrived  the rows from rank 0, from rank 1, ..; those of one rank sorted by expert
 *   rows     the same rows sorted by expert, then by sender, then by token: those of one expert are contiguous
 *
 * A share is the rows of one expert that one rank computes. Rows of an expert are counted in the order of senders, then
 * tokens. The experts of a rank are those that sharding_cut gives to its part.
 *
 *   routed    a rank computes all rows of its own experts, however many the router sends there
 *   balanced  every rank computes equally many rows: a rank with few rows borrows the experts of a rank with many, at
 *             most all experts of one rank, and computes a share of their rows
 *
 * In rounds every rank computes so many of its rows at once, in their order, from the first on. Home rows are then
 * sorted by round first, so that those of one round stand together, for one rank after another.
 *
 * The balanced plan follows MoonEP: the emptiest rank takes exactly what it lacks from the fullest one, from the
 * experts with most rows, and is finished. So there are at most members - 1 moves, each rank borrows from one other at
 * most, and a copy is never copied. Ties go to the lower rank and to the lower expert. */
#ifndef DTD_COMMON_PLAN_EXCHANGE_H
#define DTD_COMMON_PLAN_EXCHANGE_H

#include "common/base/err.h"

#include <stdbool.h>
#include <stdint.h>

/* Rows [first, first + rows) of an expert. */
struct exchange_share {
    int64_t expert, first, rows;
};

struct exchange {
    int members, me;        /* of the group */
    int64_t experts;        /* of the model */
    const int32_t *offsets; /* [members][experts + 1]: of each member, the first of its rows for each expert, which it
                             * has sorted by expert */
    /* By member: */
    int *lender;       /* the member whose experts it borrows, -1: none */
    int64_t *shares;   /* number of its shares: first those of its own experts, all of them, then borrowed ones */
    int64_t *rows;     /* that it computes */
    int64_t before;    /* home rows of `me` in earlier rounds */
    int64_t *position; /* scratch */
    int64_t *begin;    /* [experts][members + 1]: of each expert, the first row of each sender */
    struct exchange_share *share; /* [members][2 * experts of the largest member] */
};

/* Memory for the exchanges of a group. The caller sets `me`. */
NODISCARD err_t exchange_init(struct exchange *x, int members, int64_t experts);
void exchange_fini(struct exchange *x); /* legal on a zeroed one */
/* Decides which member computes which rows. `offsets` must live as long as the functions below are called. */
void exchange_plan(struct exchange *x, const int32_t *offsets, bool balanced);

/* Limits a plan to one round: to rows [first, first + rows) of each member. */
void exchange_round(struct exchange *x, int64_t first, int64_t rows);

/* The experts [lo, hi) of a member, and the most that it may borrow. */
void exchange_experts(const struct exchange *x, int member, int64_t *ret_lo, int64_t *ret_hi);
int64_t exchange_slots(int members, int64_t experts, int member);
/* The shares of a member, x->shares[member] of them. */
const struct exchange_share *exchange_shares(const struct exchange *x, int member);
/* Rows that member `from` sends to member `to`. */
int64_t exchange_rows(const struct exchange *x, int from, int to);
/* Home rows of a member, for all experts. */
int64_t exchange_home_rows(const struct exchange *x, int member);
/* The obvious form of the kernel `arrive` (kernels/kernels.h), for borrowed experts too. index[r]: where row r stands
 * among the arrived ones; inverse: the inverse of it; offsets: the first row of each of this member's experts, then of
 * each expert that it may borrow, and the number of rows. Not borrowed: no rows. */
void exchange_order(const struct exchange *x, int32_t *index, int32_t *inverse, int32_t *offsets);
/* moved[r]: where row r of this member, sorted by expert, stands among its home rows; of a round, for its rows only. */
void exchange_home(const struct exchange *x, int32_t *moved);

#endif
