/* The index contains the SHA-256 (the seal) of its own object without the seal, in jansson's compact form with sorted
 * keys, so reformatting the file does not invalidate it. The index has no names of shards. Readers derive them from
 * numbers, so a forged file cannot make a reader follow a path. */
#include "common/data/index.h"

#include "common/data/cache.h"
#include "common/data/sha.h"
#include "common/data/source.h"

#include <jansson.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#define FORMAT "dtd-data"
#define VERSION_MAX 2
#define TRIM_BYTES ((size_t)256 << 10) /* of some 2,000 shards; smaller trees are not worth the call */

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

void index_place_free(struct index_place *p)
{
    if (p)
        free(p->path);
    free(p);
}

void index_fini(struct data_index *x)
{
    for (int i = 0; x->shards && i < x->n_shards; i++)
        index_place_free(x->shards[i].place);
    for (int i = 0; x->sources && i < x->n_sources; i++) {
        free(x->sources[i].path);
        free(x->sources[i].format);
    }
    free(x->sources);
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

static json_t *shard_json(const struct index_shard *s)
{
    const struct index_place *p = s->place;
    if (!p)
        return json_pack("{s:I,s:s}", "tokens", (json_int_t)s->tokens, "sha256", s->sha256);
    return json_pack("{s:I,s:s,s:s,s:s,s:I,s:I,s:I}", "tokens", (json_int_t)s->tokens, "fingerprint", s->sha256, "file",
                     p->path, "dtype", token_types[p->type].name, "offset", (json_int_t)p->offset, "bytes",
                     (json_int_t)p->bytes, "mtime_ns", (json_int_t)p->mtime_ns);
}

static json_t *shards_json(const struct data_index *x)
{
    json_t *list = json_array();
    for (int i = 0; list && i < x->n_shards; i++)
        if (json_array_append_new(list, shard_json(&x->shards[i]))) {
            json_decref(list);
            return NULL;
        }
    return list;
}

static json_t *sources_json(const struct data_index *x)
{
    json_t *list = json_array();
    for (int i = 0; list && i < x->n_sources; i++) {
        const struct index_source *s = &x->sources[i];
        json_t *source =
            json_pack("{s:s,s:s,s:I,s:I,s:I}", "file", s->path, "format", s->format, "bytes", (json_int_t)s->bytes,
                      "documents", (json_int_t)s->documents, "tokens", (json_int_t)s->tokens);
        if (json_array_append_new(list, source)) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static int version_of(const struct data_index *x)
{
    bool newer = x->documents || x->documents_sha256[0] || x->weights_sha256[0] || x->n_sources;
    for (int i = 0; i < x->n_shards; i++)
        newer |= x->shards[i].place != NULL;
    return newer ? 2 : 1;
}

static err_t add_version_2(const struct data_index *x, json_t *object)
{
    json_t *sources = sources_json(x);
    json_t *more = sources ? json_pack("{s:I,s:s,s:s,s:o}", "documents", (json_int_t)x->documents, "documents_sha256",
                                       x->documents_sha256, "weights_sha256", x->weights_sha256, "sources", sources)
                           : NULL;
    int rc = more ? json_object_update(object, more) : -1;
    if (!rc && x->labels)
        rc = json_object_set_new(object, "labels", json_integer(x->labels));
    json_decref(more);
    return rc ? ERR_NOMEM : OK;
}

static json_t *index_json(const struct data_index *x)
{
    json_t *shards = shards_json(x);
    int version = version_of(x);
    if (!shards)
        return NULL;
    json_t *object =
        json_pack("{s:s,s:i,s:s,s:s,s:b,s:s,s:I,s:s,s:I,s:I,s:o}", "format", FORMAT, "version", version, "hash",
                  x->hash, "tokenizer", tokenizer_names[x->tokenizer], "lowercase", x->lowercase, "dtype",
                  x->wide ? "uint32" : "uint16", "vocab", (json_int_t)x->vocab, "vocab_sha256", x->vocab_sha256,
                  "tokens", (json_int_t)x->tokens, "source_bytes", (json_int_t)x->source_bytes, "shards", shards);
    if (object && version == 2 && add_version_2(x, object)) {
        json_decref(object);
        return NULL;
    }
    return object;
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

static err_t parse_place(const json_t *item, struct index_shard *ret, struct why *why)
{
    json_int_t tokens, offset, bytes, mtime_ns;
    const char *path, *type, *fingerprint;
    if (json_unpack((json_t *)item, "{s:I,s:s,s:s,s:s,s:I,s:I,s:I!}", "tokens", &tokens, "fingerprint", &fingerprint,
                    "file", &path, "dtype", &type, "offset", &offset, "bytes", &bytes, "mtime_ns", &mtime_ns))
        return corrupt(why, "the description of a shard is invalid");
    enum token_type t = token_type_find(type);
    if (t == TOKEN_TYPES || path[0] != '/' || !cache_hash_valid(fingerprint) || tokens < 1 ||
        tokens > INDEX_MAX_TOKENS || offset < 0 || bytes < 0 || offset > bytes ||
        tokens > (bytes - offset) / token_types[t].bytes)
        return corrupt(why, "the size, the type or the name of a file of tokens is out of range");
    ret->place = calloc(1, sizeof(*ret->place));
    char *copy = strdup(path);
    if (!ret->place || !copy) {
        free(copy);
        return why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    }
    *ret->place = (struct index_place){copy, t, offset, bytes, mtime_ns};
    ret->tokens = tokens;
    memcpy(ret->sha256, fingerprint, sizeof(ret->sha256));
    return OK;
}

static err_t parse_shard(const json_t *item, int version, struct index_shard *ret, struct why *why)
{
    json_int_t tokens;
    const char *sha256;
    if (version == 2 && json_object_get(item, "file"))
        return parse_place(item, ret, why);
    if (json_unpack((json_t *)item, "{s:I,s:s!}", "tokens", &tokens, "sha256", &sha256))
        return corrupt(why, "the description of a shard is invalid");
    if (tokens < 1 || tokens > INDEX_MAX_TOKENS || !cache_hash_valid(sha256))
        return corrupt(why, "the size or the hash of a shard is out of range");
    ret->tokens = tokens;
    memcpy(ret->sha256, sha256, sizeof(ret->sha256));
    return OK;
}

static err_t parse_shards(const json_t *list, int version, struct data_index *x, struct why *why)
{
    size_t n = json_array_size(list);
    int64_t sum = 0;
    if (!n || n > INDEX_MAX_SHARDS)
        return corrupt(why, "the number of shards is out of range");
    x->shards = calloc(n, sizeof(*x->shards));
    if (!x->shards)
        return why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    x->n_shards = (int)n;
    /* The sum stays below 2^61: each number is at most 2^60, and the loop ends above the total. */
    for (size_t i = 0; i < n && sum <= x->tokens; i++) {
        err_t err = parse_shard(json_array_get(list, i), version, &x->shards[i], why);
        if (err)
            return err;
        sum += x->shards[i].tokens;
    }
    return sum == x->tokens ? OK : corrupt(why, "the shards do not add up to the number of tokens");
}

static err_t parse_source(const json_t *item, struct index_source *ret, struct why *why)
{
    json_int_t bytes, documents, tokens;
    const char *path, *format;
    if (json_unpack((json_t *)item, "{s:s,s:s,s:I,s:I,s:I!}", "file", &path, "format", &format, "bytes", &bytes,
                    "documents", &documents, "tokens", &tokens) ||
        bytes < 0 || documents < 0 || tokens < 0)
        return corrupt(why, "the description of a source is invalid");
    *ret = (struct index_source){strdup(path), strdup(format), bytes, documents, tokens};
    return ret->path && ret->format ? OK : why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
}

static err_t parse_sources(const json_t *list, struct data_index *x, struct why *why)
{
    size_t n = json_array_size(list);
    err_t err = OK;
    if (!json_is_array(list) || n > INT32_MAX)
        return corrupt(why, "the list of sources is invalid");
    x->sources = calloc(n ? n : 1, sizeof(*x->sources));
    if (!x->sources)
        return why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    x->n_sources = (int)n;
    for (size_t i = 0; !err && i < n; i++)
        err = parse_source(json_array_get(list, i), &x->sources[i], why);
    return err;
}

/* "": there is no such file. */
static bool hash_or_none(const char *hash)
{
    return !hash[0] || cache_hash_valid(hash);
}

static err_t parse_version_2(json_t *object, struct data_index *x, struct why *why)
{
    json_int_t documents, labels = 0;
    const char *documents_sha256, *weights_sha256;
    json_t *sources;
    if (json_unpack(object, "{s:I,s:s,s:s,s:o,s?I}", "documents", &documents, "documents_sha256", &documents_sha256,
                    "weights_sha256", &weights_sha256, "sources", &sources, "labels", &labels))
        return corrupt(why, "a field is missing or has the wrong type");
    if (documents < 0 || documents > INDEX_MAX_DOCUMENTS || documents > x->tokens || !hash_or_none(documents_sha256) ||
        !hash_or_none(weights_sha256) || !documents != !documents_sha256[0])
        return corrupt(why, "the number of documents or a hash is out of range");
    if (labels < 0 || labels > DOC_MAX_LABEL + 1 || (labels && !documents))
        return corrupt(why, "the number of labels is out of range");
    x->labels = labels;
    x->documents = documents;
    memcpy(x->documents_sha256, documents_sha256, strlen(documents_sha256) + 1);
    memcpy(x->weights_sha256, weights_sha256, strlen(weights_sha256) + 1);
    return parse_sources(sources, x, why);
}

static err_t parse_fields(json_t *object, struct data_index *x, struct why *why)
{
    const char *format, *hash, *tokenizer, *dtype, *vocab_sha256;
    int version, lowercase;
    json_int_t vocab, tokens, source_bytes;
    json_t *shards;
    if (json_unpack(object, "{s:s,s:i}", "format", &format, "version", &version) || strcmp(format, FORMAT) != 0)
        return corrupt(why, "it is not the index of prepared data");
    if (version < 1 || version > VERSION_MAX)
        return why_set(why, ERR_UNSUPPORTED, "version %d is not supported; this dtd reads versions 1 to %d", version,
                       VERSION_MAX);
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
    err_t err = version == 2 ? parse_version_2(object, x, why) : OK;
    return err ? err : parse_shards(shards, version, x, why);
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
    if (len > TRIM_BYTES)
        malloc_trim(0); /* jansson's tree is made of small pieces, which do not go back to the system by themselves */
    if (err) {
        index_fini(&x);
        return err;
    }
    *ret = x;
    return OK;
}
