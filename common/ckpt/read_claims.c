/* The list is short: it has one entry for each file that is open at this moment. */
#include "common/ckpt/read_claims.h"

#include <stdlib.h>

struct read_claim {
    dev_t dev;
    ino_t ino;
    int users;
    bool shared;
    uint64_t n_units;
    struct read_claim *next;
    uint8_t taken[]; /* by unit */
};

err_t read_claims_init(struct read_claims *c)
{
    *c = (struct read_claims){.first = NULL};
    return pthread_mutex_init(&c->lock, NULL) ? ERR_NOMEM : OK;
}

void read_claims_fini(struct read_claims *c)
{
    pthread_mutex_destroy(&c->lock);
}

static struct read_claim *claim_find(const struct read_claims *c, dev_t dev, ino_t ino)
{
    for (struct read_claim *f = c->first; f; f = f->next)
        if (f->dev == dev && f->ino == ino)
            return f;
    return NULL;
}

static struct read_claim *claim_new(struct read_claims *c, dev_t dev, ino_t ino, uint64_t n_units)
{
    struct read_claim *f = calloc(1, sizeof(*f) + n_units);
    if (!f)
        return NULL;
    f->dev = dev;
    f->ino = ino;
    f->n_units = n_units;
    f->next = c->first;
    c->first = f;
    return f;
}

struct read_claim *read_claims_enter(struct read_claims *c, dev_t dev, ino_t ino, uint64_t n_units)
{
    pthread_mutex_lock(&c->lock);
    struct read_claim *f = claim_find(c, dev, ino);
    f = f ? f : claim_new(c, dev, ino, n_units);
    if (f)
        f->users++;
    pthread_mutex_unlock(&c->lock);
    return f;
}

void read_claims_leave(struct read_claims *c, struct read_claim *claim)
{
    pthread_mutex_lock(&c->lock);
    if (--claim->users == 0) {
        struct read_claim **at = &c->first;
        while (*at != claim)
            at = &(*at)->next;
        *at = claim->next;
        free(claim);
    }
    pthread_mutex_unlock(&c->lock);
}

bool read_claims_take(struct read_claims *c, struct read_claim *claim, uint64_t unit)
{
    pthread_mutex_lock(&c->lock);
    claim->shared = claim->shared || unit >= claim->n_units || claim->taken[unit];
    bool mine = !claim->shared;
    if (mine)
        claim->taken[unit] = 1;
    pthread_mutex_unlock(&c->lock);
    return mine;
}
