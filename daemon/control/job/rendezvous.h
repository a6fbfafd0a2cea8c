/* The key-value store of an epoch, through which its ranks exchange addresses. A key is written once; a reader of a key
 * that does not exist yet can wait for it. Keys and values are bytes.
 *
 * A pure data structure: it uses no clock, connection or job. Each job has one, which is cleared at the end of every
 * epoch. All sizes are limited, so that no process can exhaust the memory of control. */
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

/* One wait. It is in the caller's memory, which stays valid until its callback is called or rendezvous_wait_drop. */
struct rendezvous_wait {
    TAILQ_ENTRY(rendezvous_wait) link;
    uint8_t key[RENDEZVOUS_KEY_MAX];
    size_t key_len;
    uint32_t hash;
    int owner; /* number of the waiting process; RENDEZVOUS_WAITS_MAX holds for each owner */
    int64_t deadline_ms;
    /* Called once, with OK and the value, or with the error of rendezvous_expire or rendezvous_clear. It may free the
     * wait and must not call functions of the rendezvous. */
    void (*done)(struct rendezvous_wait *w, err_t err, struct rendezvous_bytes value);
};

struct rendezvous {
    struct store_entry *buckets[RENDEZVOUS_BUCKETS];
    int n_keys;
    TAILQ_HEAD(, rendezvous_wait) waits;
};

void rendezvous_init(struct rendezvous *s);
/* Removes all keys; all waits end with `err`. */
void rendezvous_clear(struct rendezvous *s, err_t err);

/* Adds a key and ends the waits for it. Writing the same value again returns OK, another value ERR_EXISTS. ERR_INVALID:
 * the key is empty, or key or value is too long. ERR_LIMIT: too many keys. */
NODISCARD err_t rendezvous_put(struct rendezvous *s, struct rendezvous_bytes key, struct rendezvous_bytes value);
/* ERR_NOTFOUND: the key does not exist. The value is valid until rendezvous_clear. */
NODISCARD err_t rendezvous_get(const struct rendezvous *s, struct rendezvous_bytes key, struct rendezvous_bytes *ret);
/* Waits for a key that does not exist; the caller has set owner, deadline_ms and done of `w`. Does not call `done`
 * itself. ERR_LIMIT: the owner has too many waits; ERR_INVALID: as in rendezvous_put; ERR_EXISTS: the key exists. */
NODISCARD err_t rendezvous_wait(struct rendezvous *s, struct rendezvous_bytes key, struct rendezvous_wait *w);
void rendezvous_wait_drop(struct rendezvous *s, struct rendezvous_wait *w);
/* Ends waits whose deadline is at or before `now_ms`, with ERR_TIMEOUT. */
void rendezvous_expire(struct rendezvous *s, int64_t now_ms);

#endif
