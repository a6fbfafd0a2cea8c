/* Training data: text becomes memory-mapped token shards with an index; a sample is a function of seed and position.
 *
 * A prepared set is a folder `<cache>/<hash>/` with `tokens-NNNNN.bin` shards (little-endian u16, or u32 above 65,535
 * tokens of vocabulary), `index.json` and, for words, `vocab`. The hash covers the files' contents and the tokenizer's
 * options, so preparing twice is free and two preparers agree. docs/data.md is the format. */
#ifndef DTD_COMMON_DATA_DATA_H
#define DTD_COMMON_DATA_DATA_H

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/conf/job.h"

#include <stdbool.h>
#include <stdint.h>

/* ---- tokenizers: bytes (ids 0..255), words (WikiText style: split at white space, one <eos> a line, <unk>), bpe
 * (GPT-2's byte-pair encoding, from files of Hugging Face's formats) ---- */

struct tokenizer;
NODISCARD err_t tokenizer_bytes_new(struct tokenizer **ret);
/* A vocabulary as it stands in a `vocab` file: one word a line, the line number is the id. Bounded. */
NODISCARD err_t tokenizer_words_new(const void *vocab, size_t len, bool lowercase, struct tokenizer **ret,
                                    struct why *why);
/* Of vocab.json and merges.txt, in any order, or of a tokenizer.json. Messages name file, line or field, and cause. */
NODISCARD err_t tokenizer_bpe_files(char *const *files, int n, struct tokenizer **ret, struct why *why);
/* As it stands in a `vocab` file: a tokenizer.json, or "dtd-bpe 1 N M\n", N bytes of vocab.json, M of merges.txt. */
NODISCARD err_t tokenizer_bpe_new(const void *vocab, size_t len, struct tokenizer **ret, struct why *why);
/* True when such a `vocab` file is of two files: the first is ret_n[0] bytes at *ret_at, the second follows. */
bool tokenizer_bpe_parts(const void *vocab, size_t len, size_t *ret_at, size_t ret_n[2]);
/* Any of them, from the `vocab` file. */
NODISCARD err_t tokenizer_new_from(enum tokenizer_kind kind, const void *vocab, size_t len, bool lowercase,
                                   struct tokenizer **ret, struct why *why);
void tokenizer_free(struct tokenizer *t);
int64_t tokenizer_vocab(const struct tokenizer *t);
/* The `vocab` file's bytes; empty for bytes. Lives as long as t. */
const void *tokenizer_vocab_file(const struct tokenizer *t, size_t *ret_len);
/* Appends int32 ids. */
NODISCARD err_t tokenizer_encode(const struct tokenizer *t, const void *text, size_t len, struct buf *ret_ids);
/* Appends the text of one id (words: with a space after it, <eos> as a newline); ERR_INVALID out of range. */
NODISCARD err_t tokenizer_decode(const struct tokenizer *t, int32_t id, struct buf *ret);

/* ---- preparing ---- */

/* Turns patterns (glob(7); relative ones from `dir`, which is absolute) into absolute paths of regular files: sorted by
 * byte value, each once, folders skipped. Symbolic links are followed and keep their names. A pattern that names a file
 * as it stands is that file. ERR_NOTFOUND names the pattern that matches nothing; ERR_INVALID a name that is not UTF-8.
 * ret_paths[ret_n] and each text in it are malloced: swap them into a job_spec, or data_paths_free. */
NODISCARD err_t data_resolve(const char *dir, char *const *patterns, int n, char ***ret_paths, int *ret_n,
                             struct why *why);
void data_paths_free(char **paths, int n);

struct data_prepare {
    char *const *files; /* absolute paths */
    int n_files;
    enum tokenizer_kind tokenizer;
    bool lowercase;
    char *const *tokenizer_files; /* bpe: as tokenizer_bpe_files takes them, unless vocab_from is given */
    int n_tokenizer_files;
    const char *vocab_from; /* words, bpe: hash of the prepared set whose vocabulary to use (validation data); NULL:
                               words make one */
    const char *cache;      /* folder; NULL or "": $XDG_CACHE_HOME/dtd/data, else ~/.cache/dtd/data */
    void (*progress)(int64_t done_bytes, int64_t total_bytes, void *arg); /* may be NULL */
    void *arg;
    int64_t shard_tokens; /* tokens of a shard at most; 0: 2^30. No part of the hash: any cut is the same data */
};
/* Makes the set unless it is there (another preparer's counts), atomically. ret_hash: 64 hex digits and a NUL.
 * ERR_NOTFOUND names a missing file, ERR_INVALID an empty set. */
NODISCARD err_t data_prepare(const struct data_prepare *p, char ret_hash[65], struct why *why);

/* ---- reading ---- */

struct data_set;
/* Opens and checks a prepared set (sizes, hash of the index). Any number of threads may read it. */
NODISCARD err_t data_open(const char *cache, const char *hash, struct data_set **ret, struct why *why);
void data_close(struct data_set *d);
int64_t data_tokens(const struct data_set *d);
int64_t data_vocab(const struct data_set *d);
const struct tokenizer *data_tokenizer(const struct data_set *d);
/* Samples of seq inputs and seq targets: floor((tokens - 1) / seq). */
int64_t data_samples(const struct data_set *d, int64_t seq);
/* ids[seq], targets[seq] (the next tokens) of sample `index`. ERR_INVALID when there is no such sample; ERR_CORRUPT
 * when a token is outside of the vocabulary (a damaged shard), so that no kernel ever reads beyond its table. */
NODISCARD err_t data_sample(const struct data_set *d, int64_t seq, int64_t index, int32_t *ret_ids,
                            int32_t *ret_targets);
/* Reads every byte and compares it with the index's SHA-256; ERR_CORRUPT names the file. */
NODISCARD err_t data_verify(const struct data_set *d, struct why *why);

/* ---- the sampler: position -> sample, a bijection of [0, n) for every pass over the data ---- */

/* Where the sample at global `position` (0, 1, 2, .. over the whole training) lies: pass = position / n, and within a
 * pass a seeded permutation evaluated in O(1): a 6-round Feistel network over ceil(log2 n) bits with cycle walking. */
int64_t data_sampler(uint64_t seed, int64_t n, int64_t position);

#endif
