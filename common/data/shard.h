/* Writes a stream of tokens as shards of a bounded size into one folder. Inside common/data only; one thread. */
#ifndef DTD_COMMON_DATA_SHARD_H
#define DTD_COMMON_DATA_SHARD_H

#include "common/base/buf.h"
#include "common/data/index.h"
#include "common/data/sha.h"

struct shard_writer {
    const char *dir;
    bool wide;
    int64_t cap;    /* tokens of a shard */
    int fd;         /* of the shard under way; -1 between shards */
    int64_t tokens; /* in all */
    struct sha sha;
    struct index_shard *shards;
    int n_shards, cap_shards;
    struct buf out;
};

void shard_writer_init(struct shard_writer *w, const char *dir, bool wide, int64_t cap);
NODISCARD err_t shard_writer_put(struct shard_writer *w, const int32_t *ids, int64_t n, struct why *why);
/* Makes the last shard durable. The shards stay in `w` until fini. */
NODISCARD err_t shard_writer_finish(struct shard_writer *w, struct why *why);
void shard_writer_fini(struct shard_writer *w);
/* Makes one whole file durable. */
NODISCARD err_t shard_file_write(const char *dir, const char *name, const void *data, size_t len, struct why *why);

#endif
