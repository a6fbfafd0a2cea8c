/* Text, so that a person can read it; the last line has the hash of those before it, so nothing else needs to be
 * checked but sums. The journal belongs to one version of dtd: another version may encode otherwise, and its line
 * differs. */
#include "common/data/journal.h"

#include "common/data/sha.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VERSION 1 /* increase it also when an encoder is corrected */

/* ---- writing ---- */

err_t journal_print(const struct journal *j, struct buf *ret)
{
    char sha256[65];
    size_t from = ret->len;
    err_t err = buf_printf(ret, "dtd-journal %d " DTD_VERSION "\nset %s\ncap %" PRId64 "\nat %d %" PRId64 "\n", VERSION,
                           j->hash, j->cap, j->source, j->offset);
    if (!err)
        err = buf_printf(ret, "documents %" PRId64 " %d %d %" PRId64 "\nshards %d\n", j->documents, j->weighted,
                         j->bits, j->labels, j->n_shards);
    for (int i = 0; !err && i < j->n_shards; i++)
        err = buf_printf(ret, "%" PRId64 " %s\n", j->shards[i].tokens,
                         j->shards[i].sha256[0] ? j->shards[i].sha256 : "-");
    err = err ? err : buf_printf(ret, "counts %d\n", j->n_counts);
    for (int i = 0; !err && i < j->n_counts; i++)
        err = buf_printf(ret, "%" PRId64 " %" PRId64 "\n", j->counts[i].documents, j->counts[i].tokens);
    if (!err)
        err = sha_of(ret->data + from, ret->len - from, sha256);
    return err ? err : buf_printf(ret, "end %s\n", sha256);
}

/* ---- reading ---- */

/* Whether the last line has the hash of the others. */
static bool is_whole(const char *text, size_t len)
{
    char sha256[65];
    const size_t end = strlen("end ") + 64 + 1;
    if (len <= end || memcmp(text + len - end, "end ", 4) != 0 || text[len - 1] != '\n')
        return false;
    return !sha_of(text, len - end, sha256) && memcmp(text + len - 65, sha256, 64) == 0;
}

/* A list of n elements of `size` bytes, n in [0, max]. */
static bool list_new(int n, int max, size_t size, void **ret)
{
    if (n < 0 || n > max)
        return false;
    *ret = calloc((size_t)n + 1, size);
    return *ret != NULL;
}

/* Reads one line by a pattern that ends with "%n"; moves *at behind it. */
#define SCAN(at, fields, pattern, ...) \
    (sscanf(*(at), pattern "%n", __VA_ARGS__, &used) == (fields) && used && (*(at) += used))

static bool parse_shards(const char **at, struct journal *j)
{
    int used = 0;
    bool good = SCAN(at, 1, " shards %d", &j->n_shards) &&
                list_new(j->n_shards, INDEX_MAX_SHARDS, sizeof(*j->shards), (void **)&j->shards);
    for (int i = 0; good && i < j->n_shards; i++) {
        struct index_shard *s = &j->shards[i];
        used = 0;
        good = SCAN(at, 2, "%" SCNd64 " %64s", &s->tokens, s->sha256) && s->tokens > 0 && s->tokens <= j->cap;
        bool open = good && strcmp(s->sha256, "-") == 0;
        good = good && (open ? i == j->n_shards - 1 : strlen(s->sha256) == 64 && (s->tokens == j->cap));
        if (open)
            s->sha256[0] = '\0';
    }
    return good;
}

static bool parse_counts(const char **at, struct journal *j)
{
    int used = 0;
    bool good = SCAN(at, 1, " counts %d", &j->n_counts) && (!j->n_counts || j->n_counts == j->source + 1) &&
                list_new(j->n_counts, j->source + 1, sizeof(*j->counts), (void **)&j->counts);
    for (int i = 0; good && i < j->n_counts; i++) {
        used = 0;
        good = SCAN(at, 2, "%" SCNd64 " %" SCNd64, &j->counts[i].documents, &j->counts[i].tokens);
    }
    return good;
}

static bool parse(const char *at, struct journal *j)
{
    int used = 0, version = 0, weighted = 0, bits = 0;
    bool good = SCAN(&at, 5, "dtd-journal %d " DTD_VERSION " set %64s cap %" SCNd64 " at %d %" SCNd64, &version,
                     j->hash, &j->cap, &j->source, &j->offset) &&
                version == VERSION && j->cap > 0 && j->source >= 0 && j->source < 1 << 24 && j->offset >= 0;
    used = 0;
    good = good && SCAN(&at, 4, " documents %" SCNd64 " %d %d %" SCNd64, &j->documents, &weighted, &bits, &j->labels) &&
           j->documents >= 0 && j->labels >= 0;
    j->weighted = good && weighted;
    j->bits = good ? (uint8_t)bits : 0;
    return good && parse_shards(&at, j) && parse_counts(&at, j);
}

err_t journal_parse(const void *text, size_t len, struct journal *ret)
{
    struct journal j = {0};
    char *copy = is_whole(text, len) ? malloc(len + 1) : NULL;
    if (!copy)
        return ERR_CORRUPT;
    memcpy(copy, text, len);
    copy[len] = '\0';
    bool good = parse(copy, &j);
    free(copy);
    if (!good) {
        journal_fini(&j);
        return ERR_CORRUPT;
    }
    *ret = j;
    return OK;
}

void journal_fini(struct journal *j)
{
    free(j->shards);
    free(j->counts);
    *j = (struct journal){0};
}
