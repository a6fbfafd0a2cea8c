/* The index contains the SHA-256 (the seal) of its own object without the seal, in jansson's compact form with sorted
 * keys, so reformatting the file does not invalidate it. The index has no names of shards. Readers derive them from
 * numbers, so a forged file cannot make a reader follow a path. */
#include "common/data/index.h"

#include "common/data/cache.h"
#include "common/data/sha.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define FORMAT "dtd-data"
#define VERSION 1

static const char *const tokenizer_names[] = {
    [TOKENIZER_BYTES] = "bytes", [TOKENIZER_WORDS] = "words", [TOKENIZER_BPE] = "bpe", [TOKENIZER_SPLIT] = "split"};
#define N_TOKENIZERS ((int)(sizeof(tokenizer_names) / sizeof(tokenizer_names[0])))

const char *index_tokenizer_name(enum tokenizer_kind kind)
{
    return tokenizer_names[kind];
}

/* Returns N_TOKENIZERS if there is none of that name. */
static int tokenizer_find(const char *name)
{
    int i = 0;
    while (i < N_TOKENIZERS && strcmp(tokenizer_names[i], name) != 0)
        i++;
    return i;
}

void index_fini(struct data_index *x)
{
    free(x->shards);
    *x = (struct data_index){0};
}

static err_t seal_of(const json_t *object, char ret[65])
{
    char *text = json_dumps(object, JSON_COMPACT | JSON_SORT_KEYS);
    if (!text)
        return ERR_NOMEM;
    err_t err = sha_of(text, strlen(text), ret);
    free(text);
    return err;
}

/* ---- writing ---- */

static json_t *shards_json(const struct data_index *x)
{
    json_t *list = json_array();
    for (int i = 0; list && i < x->n_shards; i++) {
        json_t *shard =
            json_pack("{s:I,s:s}", "tokens", (json_int_t)x->shards[i].tokens, "sha256", x->shards[i].sha256);
        if (!shard || json_array_append_new(list, shard)) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static json_t *index_json(const struct data_index *x)
{
    json_t *shards = shards_json(x);
    if (!shards)
        return NULL;
    return json_pack("{s:s,s:i,s:s,s:s,s:b,s:s,s:I,s:s,s:I,s:I,s:o}", "format", FORMAT, "version", VERSION, "hash",
                     x->hash, "tokenizer", tokenizer_names[x->tokenizer], "lowercase", x->lowercase, "dtype",
                     x->wide ? "uint32" : "uint16", "vocab", (json_int_t)x->vocab, "vocab_sha256", x->vocab_sha256,
                     "tokens", (json_int_t)x->tokens, "source_bytes", (json_int_t)x->source_bytes, "shards", shards);
}

err_t index_print(const struct data_index *x, struct buf *ret)
{
    char seal[65];
    json_t *object = index_json(x);
    if (!object)
        return ERR_NOMEM;
    err_t err = seal_of(object, seal);
    if (!err && json_object_set_new(object, "sha256", json_string(seal)))
        err = ERR_NOMEM;
    char *text = err ? NULL : json_dumps(object, JSON_INDENT(2) | JSON_SORT_KEYS);
    if (!err)
        err = text ? buf_printf(ret, "%s\n", text) : ERR_NOMEM;
    free(text);
    json_decref(object);
    return err;
}

/* ---- reading ---- */

static err_t corrupt(struct why *why, const char *what)
{
    return why_set(why, ERR_CORRUPT, "%s", what);
}

static err_t check_seal(json_t *object, struct why *why)
{
    char seal[65], found[65] = "";
    const char *text = json_string_value(json_object_get(object, "sha256"));
    if (!text || !cache_hash_valid(text))
        return corrupt(why, "its own hash is missing");
    memcpy(found, text, sizeof(found));
    json_object_del(object, "sha256");
    err_t err = seal_of(object, seal);
    if (err)
        return why_set(why, err, "%s", err_text(err));
    return strcmp(seal, found) == 0 ? OK : corrupt(why, "it does not match its own hash");
}

static err_t parse_shards(const json_t *list, struct data_index *x, struct why *why)
{
    size_t n = json_array_size(list), i;
    const json_t *item;
    int64_t sum = 0;
    if (!n || n > INDEX_MAX_SHARDS)
        return corrupt(why, "the number of shards is out of range");
    x->shards = calloc(n, sizeof(*x->shards));
    if (!x->shards)
        return why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    json_array_foreach(list, i, item)
    {
        json_int_t tokens;
        const char *sha256;
        if (json_unpack((json_t *)item, "{s:I,s:s!}", "tokens", &tokens, "sha256", &sha256))
            return corrupt(why, "the description of a shard is invalid");
        if (tokens < 1 || tokens > INDEX_MAX_TOKENS || !cache_hash_valid(sha256))
            return corrupt(why, "the size or the hash of a shard is out of range");
        x->shards[i].tokens = tokens;
        memcpy(x->shards[i].sha256, sha256, sizeof(x->shards[i].sha256));
        sum += tokens; /* at most 2^14 x 2^60: checked against the total below, which is at most 2^60 */
        if (sum > x->tokens)
            break;
    }
    x->n_shards = (int)n;
    return sum == x->tokens ? OK : corrupt(why, "the shards do not add up to the number of tokens");
}

static err_t parse_fields(json_t *object, struct data_index *x, struct why *why)
{
    const char *format, *hash, *tokenizer, *dtype, *vocab_sha256;
    int version, lowercase;
    json_int_t vocab, tokens, source_bytes;
    json_t *shards;
    if (json_unpack(object, "{s:s,s:i}", "format", &format, "version", &version) || strcmp(format, FORMAT) != 0)
        return corrupt(why, "it is not the index of prepared data");
    if (version != VERSION)
        return why_set(why, ERR_UNSUPPORTED, "version %d is not supported; this dtd reads version %d", version,
                       VERSION);
    if (json_unpack(object, "{s:s,s:s,s:b,s:s,s:I,s:s,s:I,s:I,s:o}", "hash", &hash, "tokenizer", &tokenizer,
                    "lowercase", &lowercase, "dtype", &dtype, "vocab", &vocab, "vocab_sha256", &vocab_sha256, "tokens",
                    &tokens, "source_bytes", &source_bytes, "shards", &shards))
        return corrupt(why, "a field is missing or has the wrong type");
    int kind = tokenizer_find(tokenizer);
    if (!cache_hash_valid(hash) || kind == N_TOKENIZERS ||
        (kind != TOKENIZER_BYTES ? !cache_hash_valid(vocab_sha256) : vocab_sha256[0] != '\0'))
        return corrupt(why, "it has an invalid hash or an unknown tokenizer");
    if (vocab < 1 || vocab > INT32_MAX || tokens < 1 || tokens > INDEX_MAX_TOKENS || source_bytes < 0 ||
        strcmp(dtype, vocab > 65535 ? "uint32" : "uint16") != 0)
        return corrupt(why, "a number in it is out of range");
    memcpy(x->hash, hash, sizeof(x->hash));
    memcpy(x->vocab_sha256, vocab_sha256, strlen(vocab_sha256) + 1);
    x->tokenizer = (enum tokenizer_kind)kind;
    x->lowercase = lowercase;
    x->wide = vocab > 65535;
    x->vocab = vocab;
    x->tokens = tokens;
    x->source_bytes = source_bytes;
    return parse_shards(shards, x, why);
}

err_t index_parse(const void *text, size_t len, struct data_index *ret, struct why *why)
{
    struct data_index x = {0};
    json_error_t error;
    json_t *object = json_loadb(text, len, JSON_REJECT_DUPLICATES, &error);
    if (!object)
        return why_set(why, ERR_CORRUPT, "line %d: %s", error.line, error.text);
    err_t err = check_seal(object, why);
    if (!err)
        err = parse_fields(object, &x, why);
    json_decref(object);
    if (err) {
        index_fini(&x);
        return err;
    }
    *ret = x;
    return OK;
}
