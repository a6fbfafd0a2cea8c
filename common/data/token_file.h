/* Token files of other programs: where the ids of a file are, their type, and where documents end. For common/data
 * only.
 *
 *   megatron   .idx and .bin of Megatron-LM (MMIDIDX, and the older TNTIDX of GPT-NeoX and fairseq)
 *   llmc       .bin of llm.c: a header of 1,024 bytes, then uint16 (GPT-2) or uint32 (Llama 3)
 *   datatrove  .ds, .ds.index and .ds.loss of datatrove
 *   npy        a NumPy array of one dimension
 *   uint16 ..  ids and nothing else: nanoGPT's .bin (uint16), OLMo's .npy without a header */
#ifndef DTD_COMMON_DATA_TOKEN_FILE_H
#define DTD_COMMON_DATA_TOKEN_FILE_H

#include "common/base/err.h"
#include "common/data/token_type.h"

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

/* A file in memory, read-only. */
struct file_map {
    char *path;
    const uint8_t *data; /* of an empty file: not NULL, but nothing */
    size_t len;
    struct stat st;
};
NODISCARD err_t file_map_open(const char *path, struct file_map *ret, struct why *why);
void file_map_close(struct file_map *m); /* may be called on a zeroed struct */

struct token_file {
    struct file_map ids; /* the file with the ids */
    enum token_type type;
    size_t offset; /* bytes before the first id */
    int64_t tokens;
    /* Ends of documents in tokens, ascending, the last one == tokens. */
    struct file_map index;  /* the file with them; path NULL: the format has none */
    struct file_map losses; /* one byte per token, 0 or 1; path NULL: none */
    int64_t n_ends;
    int64_t (*end)(const struct token_file *f, int64_t i);
    size_t sizes, pointers, breaks; /* megatron: places of the arrays in the index */
    int64_t n_sequences;
};

struct token_format {
    const char *name;
    bool (*is)(const uint8_t *head, size_t len, const char *path);
    err_t (*open)(const char *path, struct token_file *ret, struct why *why);
};
#define TOKEN_FORMATS 8
extern const struct token_format token_formats[TOKEN_FORMATS];

/* Opens and checks the file; all sizes and ends are then right. `path` may be any file of a pair. ERR_CORRUPT: it
 * contradicts itself. ERR_UNSUPPORTED: its ids are no integers, or a feature is not supported. */
NODISCARD err_t token_file_open(const struct token_format *format, const char *path, struct token_file *ret,
                                struct why *why);
void token_file_close(struct token_file *f);
/* If the file belongs to another one that names both (the .idx of a .bin, the .index of a .ds), writes that one's path.
 * False: it stands for itself. */
bool token_file_main(const char *path, const uint8_t *head, size_t len, char ret[PATH_MAX]);

#endif
