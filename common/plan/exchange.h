/* The exchange of rows between the ranks of expert parallelism: who sends how many rows to whom, and the order of the
 * rows that arrive. Pure functions of the offsets that all ranks have gathered.
 *
 *   home     rows sorted by expert, then by token: those for one rank are contiguous
 *   arrived  the rows from rank 0, from rank 1, ..; those of one rank sorted by expert
 *   rows     the same rows sorted by expert, then by sender, then by token: those of one expert are contiguous
 *
 * The experts of a rank are those that sharding_cut gives to its part. */
#ifndef DTD_COMMON_PLAN_EXCHANGE_H
#define DTD_COMMON_PLAN_EXCHANGE_H

#include <stdint.h>

struct exchange {
    int members, me;        /* of the group */
    int64_t experts;        /* of the model */
    const int32_t *offsets; /* [members][experts + 1]: of each member, the first of its home rows for each expert */
};

/* The experts [lo, hi) of a member. */
void exchange_experts(const struct exchange *x, int member, int64_t *ret_lo, int64_t *ret_hi);
/* Rows that member `from` sends to member `to`. */
int64_t exchange_rows(const struct exchange *x, int from, int to);
/* Rows that arrive at this member. */
int64_t exchange_arrived(const struct exchange *x);
/* index[r]: where row r stands among the arrived ones; inverse: the inverse of it; offsets: the first row of each of
 * this member's experts, and the number of rows. */
void exchange_order(const struct exchange *x, int32_t *index, int32_t *inverse, int32_t *offsets);

#endif
