/* The cluster's keys: a text file with one line per key version, `kN <64 hex digits>`, mode 0600, owned by the user who
 * reads it. A node connects with the newest key and accepts all of them, so that a key is rotated by adding a new one
 * on every node and then dropping the old one on every node. A ring is plain memory of its owner, who must wipe it. */
#ifndef DTD_COMMON_TUNNEL_KEY_H
#define DTD_COMMON_TUNNEL_KEY_H

#include "common/tunnel/tunnel.h"

#define KEY_BYTES 32
#define KEY_RING_MAX 16
#define KEY_FILE_MAX 2048

struct key {
    uint32_t version; /* from 1 */
    uint8_t secret[KEY_BYTES];
};

struct key_ring {
    int n; /* ascending by version */
    struct key keys[KEY_RING_MAX];
};

/* Makes a ring with one new key, k1. */
NODISCARD err_t key_ring_make(struct key_ring *ret, struct why *why);
/* Adds a new random key with the next version. ERR_LIMIT: the ring is full. */
NODISCARD err_t key_ring_add(struct key_ring *ring, uint32_t *ret_version, struct why *why);
/* Adds a key that another node made. Adding the same key again is not an error. ERR_EXISTS: the version is known with
 * another secret. */
NODISCARD err_t key_ring_put(struct key_ring *ring, const struct key *key, struct why *why);
/* ERR_NOTFOUND: no such version. ERR_INVALID: it is the only key. */
NODISCARD err_t key_ring_drop(struct key_ring *ring, uint32_t version, struct why *why);
/* NULL: there is none. */
const struct key *key_ring_find(const struct key_ring *ring, uint32_t version);
const struct key *key_ring_newest(const struct key_ring *ring);
/* Compares the secrets in constant time. */
bool key_equal(const struct key *a, const struct key *b);
void key_ring_wipe(struct key_ring *ring);

/* Implements tunnel_keys.find for an owner with a ring. ERR_NOTFOUND: another kind, or a version not in the ring. */
NODISCARD err_t key_ring_secret(const struct key_ring *ring, struct tunnel_key_id id, struct tunnel_secret *ret);
struct tunnel_key_id key_id(const struct key *key);

/* Refuses a file that other users may read or write, that belongs to another user, or that is not a regular file; `why`
 * names the file and the remedy. ERR_NOTFOUND: there is no file. Blocking. */
NODISCARD err_t key_file_read(const char *path, struct key_ring *ret, struct why *why);
/* Replaces the file atomically and durably, mode 0600. Blocking. */
NODISCARD err_t key_file_write(const char *path, const struct key_ring *ring, struct why *why);
/* Parses the text of a file; `path` is for the error message. The fuzzer calls it. */
NODISCARD err_t key_file_parse(const char *path, const char *text, size_t len, struct key_ring *ret, struct why *why);
/* Returns the length; `ret` is terminated by a 0. */
size_t key_file_print(const struct key_ring *ring, char ret[KEY_FILE_MAX]);

#endif
