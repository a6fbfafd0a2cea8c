/* How many things of a limited number (descriptors) each user holds. A user gets at most his own maximum, and never
 * more than are left for all others: so there is always some left for another user, however many users ask for all they
 * can get. Root is counted and never refused; the number is lower than what exists, and the rest is for root and for
 * the program itself. One thread. */
#ifndef DTD_COMMON_BASE_SHARES_H
#define DTD_COMMON_BASE_SHARES_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/queue.h>

struct shares_user;

struct shares {
    int64_t max; /* of all users together */
    int64_t all; /* in use */
    LIST_HEAD(, shares_user) users;
};

void shares_init(struct shares *s, int64_t max);
/* False: the user has `max_user` or as many as are left, or there is no memory; nothing is taken. */
bool shares_take(struct shares *s, uint32_t uid, int64_t max_user);
void shares_give(struct shares *s, uint32_t uid);
int64_t shares_of(const struct shares *s, uint32_t uid);

#endif
