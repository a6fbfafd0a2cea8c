/* Training data: text is converted to memory-mapped token shards with an index; a sample is a function of seed and
 * position.
 *
 * A prepared set is a folder `<cache>/<hash>/` with shards `tokens-NNNNN.bin` (little-endian u16, or u32 if the
 * vocabulary has more than 65,535 tokens), `index.json` and, for words and bpe, `vocab`. The hash covers the files'
 * contents and the tokenizer's options, so a set is prepared once and all processes use the same name.
 * docs/formats/prepared-data.md describes the format. */
#ifndef DTD_COMMON_DATA_DATA_H
#define DTD_COMMON_DATA_DATA_H

#include "common/base/buf.h"
#include "common/base/err.h"
#include "common/conf/job.h"

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

/* ---- tokenizers: bytes (ids 0..255), words (WikiText style: split at white space, one <eos> per line, <unk>), bpe
 * (GPT-2's byte-pair encoding, from files in Hugging Face's formats) ---- */

struct tokenizer;
NODISCARD err_t tokenizer_bytes_new(struct tokenizer **ret);
/* From the content of a `vocab` file: one word per line, the line number is the id. Bounded. */
NODISCARD err_t tokenizer_words_new(const void *vocab, size_t len, bool lowercase, struct tokenizer **ret,
                                    struct why *why);
/* From vocab.json and merges.txt, in any order, or from a tokenizer.json, a .model of SentencePiece, a .tiktoken or a
 * tekken.json; recognized by the content. Errors name file, line or field, and cause. */
NODISCARD err_t tokenizer_bpe_files(char *const *files, int n, struct tokenizer **ret, struct why *why);
/* From the content of a `vocab` file: any of these files, or "dtd-bpe 1 N M\n", N bytes of vocab.json, M of merges.txt.
 */
NODISCARD err_t tokenizer_bpe_new(const void *vocab, size_t len, struct tokenizer **ret, struct why *why);
/* True if such a `vocab` file contains two files: the first has ret_n[0] bytes at *ret_at, and the second, of ret_n[1]
 * bytes, follows. */
bool tokenizer_bpe_parts(const void *vocab, size_t len, size_t *ret_at, size_t ret_n[2]);
/* The usual name of a file with this content: "tokenizer.json", "tokenizer.model", "tekken.json" or
 * "tokenizer.tiktoken".
 */
const char *tokenizer_file_name(const void *vocab, size_t len);
/* A tokenizer of any kind, from the content of its `vocab` file. */
NODISCARD err_t tokenizer_new_from(enum tokenizer_kind kind, const void *vocab, size_t len, bool lowercase,
                                   struct tokenizer **ret, struct why *why);
void tokenizer_free(struct tokenizer *t);
/* False for a tokenizer.json with a normalizer or another model than byte-level BPE: a pair of vocab.json and
 * merges.txt does not describe such a tokenizer completely. */
bool tokenizer_plain(const struct tokenizer *t);
/* Whether a text never gives a control token, whatever it contains (a .model of SentencePiece). */
bool tokenizer_controls_hidden(const struct tokenizer *t);
/* Whether both have the same tokens, merges, special tokens and pattern, so that every text gets the same ids. */
bool tokenizer_same(const struct tokenizer *a, const struct tokenizer *b);

/* A token that vocab.json lacks: added_tokens.json and tokenizer_config.json list such tokens. */
struct tokenizer_added {
    const char *content; /* matched literally */
    int64_t id;
    bool normalized, special, single_word, lstrip, rstrip; /* as in tokenizer.json; the last three are refused there */
};
/* Appends a tokenizer.json that is equal to vocab.json and merges.txt with `added` tokens. `vocab`: a `vocab` file that
 * contains the two. ERR_INVALID: an added token has the id of another. ERR_UNSUPPORTED: a flag is not supported. */
NODISCARD err_t tokenizer_pair_json(const void *vocab, size_t len, const struct tokenizer_added *added, int n,
                                    struct buf *ret, struct why *why);
int64_t tokenizer_vocab(const struct tokenizer *t);
/* The content of the `vocab` file; empty for the tokenizer bytes. Valid as long as t. */
const void *tokenizer_vocab_file(const struct tokenizer *t, size_t *ret_len);
/* Appends int32 ids. */
NODISCARD err_t tokenizer_encode(const struct tokenizer *t, const void *text, size_t len, struct buf *ret_ids);
/* The same, but no special token is found in the text: its spelling is encoded like other text, as transformers does
 * with split_special_tokens. */
NODISCARD err_t tokenizer_encode_plain(const struct tokenizer *t, const void *text, size_t len, struct buf *ret_ids);
/* Bytes of a text that a token covers. */
struct tokenizer_span {
    uint32_t from, to;
};
/* Like tokenizer_encode, for a text of at most 64 MiB, and appends a struct tokenizer_span for each id. `special`: with
 * the ids that the file's post-processor puts before and behind a text; they cover nothing. */
NODISCARD err_t tokenizer_explain(const struct tokenizer *t, const void *text, size_t len, bool special,
                                  struct buf *ids, struct buf *spans, struct why *why);
/* Appends the text of one id (words: followed by a space, <eos> as a newline). ERR_INVALID: the id is out of range. */
NODISCARD err_t tokenizer_decode(const struct tokenizer *t, int32_t id, struct buf *ret);

/* ---- preparing ---- */

/* Names that stand for several files. dtd_tables has them (tables.h), because it links what daemons must not. */
struct byte_source;
struct data_containers {
    /* Folders of Hugging Face datasets (datasets.h): they stand for their files. */
    bool (*is_folder)(const char *dir);
    err_t (*folder_files)(const char *dir, char ***ret, int *ret_n, struct why *why);
    /* Images (image.h). "IMAGE:/PATTERN" -> IMAGE (of PATH_MAX bytes) and "/PATTERN". */
    bool (*split)(const char *name, char *ret_image, const char **ret_pattern);
    err_t (*image_files)(const char *image, const char *pattern, char ***ret, int *ret_n, struct why *why);
    err_t (*image_open)(const char *image, const char *path, struct byte_source **ret, struct why *why);
};

/* Expands patterns (glob(7); relative ones start at `dir`, which is absolute) to absolute paths of regular files,
 * sorted by byte value and unique; folders are skipped, except those of `containers` (NULL: none). Symbolic links are
 * followed and keep their names. A pattern that is the exact name of a file means that file. IMAGE:/PATTERN means the
 * files of an image, named IMAGE:/PATH. ERR_NOTFOUND: the sentence names a pattern without a match. ERR_INVALID: it
 * names a file whose name is not UTF-8. ret_repeated (of PATH_MAX bytes, or NULL): a file that more than one pattern
 * names and that is listed once; "": none. The caller owns ret_paths and its strings: it moves them into a job_spec, or
 * calls data_paths_free. */
NODISCARD err_t data_resolve(const char *dir, char *const *patterns, int n, const struct data_containers *containers,
                             char ***ret_paths, int *ret_n, char *ret_repeated, struct why *why);
void data_paths_free(char **paths, int n);

struct format_row;

struct data_prepare {
    char *const *files; /* absolute paths */
    int n_files;
    enum tokenizer_kind tokenizer;
    bool lowercase;
    bool raw;                     /* accept files that are no text (compressed, UTF-16, numbers) */
    char *const *tokenizer_files; /* bpe: as tokenizer_bpe_files takes them, unless vocab_from is given */
    int n_tokenizer_files;
    const char *vocab_from; /* words, bpe: hash of the prepared set whose vocabulary is used (validation data); NULL:
                               words builds one from the files */
    const char *cache;      /* folder; NULL or "": $XDG_CACHE_HOME/dtd/data, else ~/.cache/dtd/data */
    const char *format;     /* of the files (formats.h); NULL, "" or "auto": by content */
    /* Formats of dtd_tables: table_rows (tables.h); NULL: they are not known. */
    const struct format_row *tables;
    const struct data_containers *containers; /* for files in images; NULL: none */
    const char *field;                        /* key or column of the text; NULL or "": the format's default */
    /* Key or column of each document's class. The set then has the class as one more token behind the document's, and
     * is for models with labels only. NULL or "": none is read. */
    const char *label;
    enum chat_template template; /* of conversations; CHAT_NONE: they are refused */
    const char *bos, *eos; /* tokens around each document, as doc_ends.h defines them; NULL or "": file and auto */
    int threads;           /* that encode documents; 0: one per usable CPU */
    void (*progress)(int64_t done_bytes, int64_t total_bytes, void *arg); /* may be NULL */
    /* Called with a sentence where the run continues an interrupted one, or begins anew although there is one; may be
     * NULL. */
    void (*report)(const char *sentence, void *arg);
    void (*warn)(const char *text, void *arg); /* before a set is written that will hardly fit; may be NULL */
    void *arg;
    const volatile sig_atomic_t *stop; /* not 0: end with ERR_CANCELED, so that a later run continues; may be NULL */
    int64_t save_ms;      /* between two points from which a later run continues; 0: 10 s, -1: as often as possible */
    int64_t shard_tokens; /* maximum tokens per shard; 0: 2^30. Not part of the hash, because the data is the same */
};
/* Creates the set atomically, unless it exists already, possibly by another process. A run that was interrupted is
 * continued by the next one with the same inputs. ret_hash: 64 hex digits and a NUL.
 * ERR_NOTFOUND: the sentence names a missing file. ERR_INVALID: the set would be empty, or a file is no text.
 * ERR_CANCELED: `stop`; the error has the command that continues. */
NODISCARD err_t data_prepare(const struct data_prepare *p, char ret_hash[65], struct why *why);

/* ---- reading ---- */

struct data_set;
/* Opens and checks a prepared set (sizes, hash of the index). Any number of threads may read it. */
NODISCARD err_t data_open(const char *cache, const char *hash, struct data_set **ret, struct why *why);
void data_close(struct data_set *d);
const char *data_name(const struct data_set *d); /* its hash; valid as long as d */
int64_t data_tokens(const struct data_set *d);
int64_t data_vocab(const struct data_set *d);
const struct tokenizer *data_tokenizer(const struct data_set *d);
/* Tokens [at, at + seq) as ids[seq], and the tokens behind each of them as targets[seq]. ERR_INVALID: the set has
 * fewer. ERR_CORRUPT: as for data_sample. */
NODISCARD err_t data_window(const struct data_set *d, int64_t seq, int64_t at, int32_t *ret_ids, int32_t *ret_targets);
/* Number of samples of seq inputs and seq targets that do not overlap: floor((tokens - 1) / seq). */
int64_t data_samples(const struct data_set *d, int64_t seq);
/* Writes ids[seq] and targets[seq] (the next tokens) of sample `index`. ERR_INVALID: there is no such sample.
 * ERR_CORRUPT: a token is outside the vocabulary (a damaged shard); the check keeps kernels from reading beyond the
 * embedding table. */
NODISCARD err_t data_sample(const struct data_set *d, int64_t seq, int64_t index, int32_t *ret_ids,
                            int32_t *ret_targets);

/* ---- documents and weights: version 2 of the format ---- */

/* Number of documents; 0: the set has no boundaries, because its text files are joined. */
int64_t data_documents(const struct data_set *d);
/* The largest class and one; 0: the documents have no labels. */
int64_t data_labels(const struct data_set *d);
/* Document `number`. With labels its last token is its class. ERR_INVALID: there is none. ERR_CORRUPT: as for
 * data_document. */
struct data_document;
NODISCARD err_t data_document_at(const struct data_set *d, int64_t number, struct data_document *ret);
/* Whether the source gave weights: tokens whose prediction does not count in the loss (prompts). */
bool data_weighted(const struct data_set *d);
/* For n tokens from token `at` on: 1 if the prediction of the token counts in the loss, else 0. ERR_INVALID: as for
 * data_copy. */
NODISCARD err_t data_weights(const struct data_set *d, int64_t at, int64_t n, uint8_t *ret);

struct data_document {
    int64_t number, begin, end; /* tokens [begin, end) of the set */
};
/* The document that contains token `at`; a set without boundaries is one document. ERR_INVALID: there is no such token.
 * ERR_CORRUPT: the index of documents is damaged. */
NODISCARD err_t data_document(const struct data_set *d, int64_t at, struct data_document *ret);
/* For the window at token `at`, which is sample at / seq where samples do not overlap, what data_window leaves out.
 * ret_begins[seq]: the place in the sample, from 0, where the document of each input begins; 0 if it begins before the
 * sample. So attention of place i takes places ret_begins[i] to i, and its position in the document is i -
 * ret_begins[i]. ret_weights[seq]: 1 if the target at this place counts in the loss, else 0. `documents` false:
 * boundaries have no effect, all begins are 0, and weights are the source's. True: the weight is 0 also for a target
 * that is the first token of a document, because nothing before it belongs to that document. */
NODISCARD err_t data_window_marks(const struct data_set *d, int64_t seq, int64_t at, bool documents,
                                  int32_t *ret_begins, uint8_t *ret_weights);

/* Copies n tokens from token `at` on. ERR_INVALID: the set has fewer. ERR_CORRUPT: as for data_sample. */
NODISCARD err_t data_copy(const struct data_set *d, int64_t at, int64_t n, int32_t *ret);

/* A file from which the set was made. Its strings are valid as long as d. */
struct data_source {
    const char *path, *format;
    int64_t bytes, documents, tokens;
};
/* Number of files; 0: the set does not list them, because it is of version 1. */
int data_sources(const struct data_set *d);
struct data_source data_source(const struct data_set *d, int i);

/* Tokens [at, at + n) of the set, and whether the prediction of each counts in the source. */
NODISCARD err_t data_read(const struct data_set *d, int64_t at, int64_t n, int32_t *ret_ids, uint8_t *ret_weights);

/* Reads every byte (of files that the set uses in place: a fingerprint) and compares the SHA-256 hashes with the index.
 * ERR_CORRUPT: the sentence names the file. */
NODISCARD err_t data_verify(const struct data_set *d, struct why *why);

/* ---- the sampler: position -> sample, a bijection of [0, n) in every pass over the data ---- */

/* Index of the sample at global `position` (0, 1, 2, .. over the whole training). The pass is position / n. Within a
 * pass the order is a seeded permutation that is evaluated in O(1): a 6-round Feistel network over ceil(log2 n) bits
 * with cycle walking. */
int64_t data_sampler(uint64_t seed, int64_t n, int64_t position);

#endif
