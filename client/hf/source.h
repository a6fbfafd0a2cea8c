/* A folder with a Hugging Face model, open for reading: its tensor files, its tokenizer and its small files. Used by
 * the import. Blocking, one thread.
 *
 * The contents of the folder are authoritative. If two of its files contradict each other, reading fails, or a warning
 * names both. */
#ifndef DTD_CLIENT_HF_SOURCE_H
#define DTD_CLIENT_HF_SOURCE_H

#include "client/hf/hf.h"
#include "common/ckpt/safetensors.h"
#include "common/data/data.h"

#include <limits.h>

struct hf_file {
    char *name; /* in the folder */
    struct safetensors file;
};

/* A tensor under the name that transformers gives it, without the prefixes of wrappers. */
struct hf_weight {
    char *name;
    const struct safetensor *tensor;
    const struct hf_file *file;
};

struct hf_source {
    const char *dir;
    struct hf_done *done; /* takes the warnings */
    struct why *why;
    struct hf_file *files;
    int n_files;
    struct hf_weight *weights; /* sorted by name */
    int n_weights;
};

/* ---- files (source.c) ---- */

/* Whether the folder has a regular file of this name; sets its path. */
bool hf_source_has(const struct hf_source *s, const char *name, char ret_path[PATH_MAX]);
/* Appends the file. Errors name it. */
NODISCARD err_t hf_source_load(const struct hf_source *s, const char *name, size_t most, struct buf *ret);
/* Parses a file of JSON; *ret is NULL if there is none. The caller owns *ret. */
NODISCARD err_t hf_source_json(const struct hf_source *s, const char *name, json_t **ret);
/* Opens model.safetensors, or the files that its index names. `prefix` may be missing in names other than the head's.
 */
NODISCARD err_t hf_source_open(struct hf_source *s, const char *prefix);
void hf_source_close(struct hf_source *s);
const struct hf_weight *hf_source_find(const struct hf_source *s, const char *name);
/* Adds a line to the warnings of the import. */
void hf_source_warn(const struct hf_source *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* ---- tokenizer (tokenizer.c) ---- */

struct hf_tokenizer {
    struct tokenizer *tokenizer; /* NULL: the folder has none */
    char paths[2][PATH_MAX];     /* the files that it was read from: tokenizer.json, or vocab.json and merges.txt */
    int n_paths;
    bool made; /* vocab.json and merges.txt lack tokens that other files add: the tokenizer exists in no file */
};
/* Reads the folder's tokenizer as transformers does: tokenizer.json if there is one, else vocab.json and merges.txt
 * with the tokens that added_tokens.json and tokenizer_config.json add. */
NODISCARD err_t hf_tokenizer_read(const struct hf_source *s, struct hf_tokenizer *ret);
void hf_tokenizer_fini(struct hf_tokenizer *t);

/* Appends a checkpoint's CKPT_HF_FILE: a JSON object with the texts of config.json and the folder's other small files,
 * for a later export. */
NODISCARD err_t hf_source_keep(const struct hf_source *s, struct buf *ret);

#endif
