/* Words that processes leave for each other: keys are written once, and who asks for one that is not there yet waits.
 * A pure structure: it knows no clock, no connection and no job; keys and values are bytes. One belongs to the epoch of
 * a job and is emptied with it. Everything is bounded, so that no process can make control grow without end. */
#ifndef DTD_DAEMON_CONTROL_JOB_RENDEZVOUS_H
#define DTD_DAEMON_CONTROL_JOB_RENDEZVOUS_H

#include "common/base/err.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/queue.h>

#define RENDEZVOUS_KEY_MAX 128
#define RENDEZVOUS_VALUE_MAX 4096
#define RENDEZVOUS_KEYS_MAX 1024
#define RENDEZVOUS_WAITS_MAX 64 /* of one owner */
#define RENDEZVOUS_BUCKETS 256

struct rendezvous_bytes {
    const void *data;
    size_t len;
};

struct store_entry;

/* A waiting get, in the caller's memory until its callback was called or rendezvous_wait_drop. */
struct rendezvous_wait {
    TAILQ_ENTRY(rendezvous_wait) link;
    uint8_t key[RENDEZVOUS_KEY_MAX];
    size_t key_len;
    uint32_t hash;
    int owner; /* who waits: a number that the limit is counted by */
    int64_t deadline_ms;
    /* Once: OK with the value, or the error that rendezvous_expire or rendezvous_clear gives. It may free the wait, and
     * must not call the store. */
    void (*done)(struct rendezvous_wait *w, err_t err, struct rendezvous_bytes value);
};

struct rendezvous {
    struct store_entry *buckets[RENDEZVOUS_BUCKETS];
    int n_keys;
    TAILQ_HEAD(, rendezvous_wait) waits;
};

void rendezvous_init(struct rendezvous *s);
/* Forgets every key; who waits is told `err`. */
void rendezvous_clear(struct rendezvous *s, err_t err);

/* Wakes who waits for the key. The same value a second time is OK, another is ERR_EXISTS. ERR_INVALID: an empty key or
 * one, or a value, that is too long. ERR_LIMIT: too many keys. */
NODISCARD err_t rendezvous_put(struct rendezvous *s, struct rendezvous_bytes key, struct rendezvous_bytes value);
/* ERR_NOTFOUND: nobody has put it. The value is valid until rendezvous_clear. */
NODISCARD err_t rendezvous_get(const struct rendezvous *s, struct rendezvous_bytes key, struct rendezvous_bytes *ret);
/* Waits for a key that is not there; owner, deadline_ms and done of `w` are set. Never calls back from inside.
 * ERR_LIMIT: the owner waits for too many already; ERR_INVALID as in rendezvous_put; ERR_EXISTS: it is there. */
NODISCARD err_t rendezvous_wait(struct rendezvous *s, struct rendezvous_bytes key, struct rendezvous_wait *w);
void rendezvous_wait_drop(struct rendezvous *s, struct rendezvous_wait *w);
/* ERR_TIMEOUT for whose deadline is not after `now_ms`. */
void rendezvous_expire(struct rendezvous *s, int64_t now_ms);

#endif
