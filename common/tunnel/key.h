/* The cluster's keys: a text file of one line per version, `kN <64 hex digits>`, mode 0600, its owner the one who reads
 * it. The newest is connected with, all are accepted, so that a key is rotated by adding one everywhere and dropping
 * the old one everywhere. A ring is plain memory of its owner: wipe it. */
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

/* A ring with one new key, k1. */
NODISCARD err_t key_ring_make(struct key_ring *ret, struct why *why);
/* A new key above all others. ERR_LIMIT when the ring is full. */
NODISCARD err_t key_ring_add(struct key_ring *ring, uint32_t *ret_version, struct why *why);
/* A key that another node made. The same again is no error; another secret for a known version is ERR_EXISTS. */
NODISCARD err_t key_ring_put(struct key_ring *ring, const struct key *key, struct why *why);
/* ERR_NOTFOUND; ERR_INVALID for the last one. */
NODISCARD err_t key_ring_drop(struct key_ring *ring, uint32_t version, struct why *why);
/* NULL where there is none. */
const struct key *key_ring_find(const struct key_ring *ring, uint32_t version);
const struct key *key_ring_newest(const struct key_ring *ring);
/* The same secret, in constant time. */
bool key_equal(const struct key *a, const struct key *b);
void key_ring_wipe(struct key_ring *ring);

/* For tunnel_keys.find of an owner that has a ring: ERR_NOTFOUND for other kinds and versions. */
NODISCARD err_t key_ring_secret(const struct key_ring *ring, struct tunnel_key_id id, struct tunnel_secret *ret);
struct tunnel_key_id key_id(const struct key *key);

/* Refuses a file that others may read or write, that is not ours or is no regular file, by its name, with the remedy;
 * ERR_NOTFOUND when there is none. Blocking. */
NODISCARD err_t key_file_read(const char *path, struct key_ring *ret, struct why *why);
/* Whole or not at all, fsynced, mode 0600. Blocking. */
NODISCARD err_t key_file_write(const char *path, const struct key_ring *ring, struct why *why);
/* The text of a file; `path` is for the sentence. What the fuzzer calls. */
NODISCARD err_t key_file_parse(const char *path, const char *text, size_t len, struct key_ring *ret, struct why *why);
/* Returns the length; `ret` has a 0 behind it. */
size_t key_file_print(const struct key_ring *ring, char ret[KEY_FILE_MAX]);

#endif
