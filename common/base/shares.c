/* See shares.h. A user without things is not in the list, so that the list is as long as the number of users who are
 * there now. */
#include "common/base/shares.h"

#include <assert.h>
#include <stdlib.h>

struct shares_user {
    LIST_ENTRY(shares_user) link;
    uint32_t uid;
    int64_t n;
};

void shares_init(struct shares *s, int64_t max)
{
    *s = (struct shares){.max = max};
    LIST_INIT(&s->users);
}

static struct shares_user *user_find(const struct shares *s, uint32_t uid)
{
    struct shares_user *u;
    LIST_FOREACH(u, &s->users, link)
    if (u->uid == uid)
        return u;
    return NULL;
}

bool shares_take(struct shares *s, uint32_t uid, int64_t max_user)
{
    struct shares_user *u = user_find(s, uid);
    int64_t his = u ? u->n : 0;
    if (uid && (his >= max_user || his >= s->max - s->all))
        return false;
    if (!u) {
        u = calloc(1, sizeof(*u));
        if (!u)
            return false;
        u->uid = uid;
        LIST_INSERT_HEAD(&s->users, u, link);
    }
    u->n++;
    s->all++;
    return true;
}

void shares_give(struct shares *s, uint32_t uid)
{
    struct shares_user *u = user_find(s, uid);
    assert(u && s->all > 0);
    s->all--;
    if (--u->n)
        return;
    LIST_REMOVE(u, link);
    free(u);
}

int64_t shares_of(const struct shares *s, uint32_t uid)
{
    const struct shares_user *u = user_find(s, uid);
    return u ? u->n : 0;
}
