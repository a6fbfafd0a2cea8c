/* Writes a stream of tokens to one folder, as shards of bounded size. For common/data only; one thread. */
#ifndef DTD_COMMON_DATA_SHARD_H
#define DTD_COMMON_DATA_SHARD_H

#include "common/base/buf.h"
#include "common/data/index.h"
#include "common/data/sha.h"

struct shard_writer {
    const char *dir;
    bool wide;
    int64_t cap;    /* maximum tokens per shard */
    int fd;         /* of the current shard; -1: none */
    int64_t tokens; /* written so far, in all shards */
    struct sha sha;
    struct index_shard *shards;
    int n_shards, cap_shards;
    struct buf out;
};

void shard_writer_init(struct shard_writer *w, const char *dir, bool wide, int64_t cap);
/* Continues with the shards of a journal; n may be 0. Of the last one, if it has no hash, the bytes of its tokens are
 * kept. ERR_CORRUPT: a shard is shorter. */
NODISCARD err_t shard_writer_continue(struct shard_writer *w, const struct index_shard *shards, int n, struct why *why);
/* Makes what was put durable. */
NODISCARD err_t shard_writer_sync(struct shard_writer *w, struct why *why);
NODISCARD err_t shard_writer_put(struct shard_writer *w, const int32_t *ids, int64_t n, struct why *why);
/* Makes the last shard durable. w->shards stays valid until fini. */
NODISCARD err_t shard_writer_finish(struct shard_writer *w, struct why *why);
void shard_writer_fini(struct shard_writer *w);
/* Opens a file of which the first `bytes` are kept, and adds them to the hash. ERR_CORRUPT: it is shorter. */
NODISCARD err_t shard_file_continue(const char *dir, const char *name, int64_t bytes, struct sha *sha, int *ret_fd,
                                    struct why *why);
/* Writes one complete file durably. */
NODISCARD err_t shard_file_write(const char *dir, const char *name, const void *data, size_t len, struct why *why);

#endif
