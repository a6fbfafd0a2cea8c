/* Names of tensors: training wrappers add components ("module.", "_orig_mod."), and the base classes of transformers
 * save without their prefix ("model.", "transformer."). All of these name the same tensor. If an index assigns a tensor
 * to one file, copies in other files are ignored, with a warning. */
#include "client/hf_source.h"

#include "common/base/file.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Limits far above the sizes of real models, so that a damaged file cannot use up the memory. */
#define MAX_INDEX ((size_t)64 << 20)
#define MAX_JSON ((size_t)16 << 20) /* a tokenizer_config.json with a thousand added tokens has 200 KB */
#define MAX_FILES 4096

static err_t no_memory(const struct hf_source *s)
{
    return why_set(s->why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
}

void hf_source_warn(const struct hf_source *s, const char *fmt, ...)
{
    va_list args;
    if (s->done->n_warnings == HF_WARNINGS) /* the last entry reports that more warnings were left out */
        snprintf(s->done->warnings[HF_WARNINGS - 1], HF_WARNING_BYTES, "there are more warnings than these");
    if (s->done->n_warnings == HF_WARNINGS)
        return;
    va_start(args, fmt);
    vsnprintf(s->done->warnings[s->done->n_warnings++], HF_WARNING_BYTES, fmt, args);
    va_end(args);
}

/* ---- files ---- */

static err_t path_of(const struct hf_source *s, const char *name, char ret[PATH_MAX])
{
    if ((size_t)snprintf(ret, PATH_MAX, "%s/%s", s->dir, name) >= PATH_MAX)
        return why_set(s->why, ERR_LIMIT, "%s: the path is too long", s->dir);
    return OK;
}

bool hf_source_has(const struct hf_source *s, const char *name, char ret_path[PATH_MAX])
{
    struct stat st;
    return !path_of(s, name, ret_path) && !stat(ret_path, &st) && S_ISREG(st.st_mode);
}

err_t hf_source_load(const struct hf_source *s, const char *name, size_t most, struct buf *ret)
{
    char path[PATH_MAX];
    err_t err = path_of(s, name, path);
    if (!err && (err = file_read(path, most, ret)))
        why_set(s->why, err, "%s: %s", path, err_text(err));
    return err;
}

#define INTEGER_DIGITS 18 /* as many fit into 63 bits, whatever they are */

/* Copies JSON; an integer of more digits becomes a real number. transformers writes 1000000000000000019884624838656 as
 * model_max_length of a tokenizer without a limit, and jansson refuses an integer that 64 bits cannot hold. */
static err_t copy_json(const struct buf *text, struct buf *ret)
{
    bool quoted = false;
    err_t err = OK;
    for (size_t i = 0, n; !err && i < text->len; i += n) {
        const uint8_t *p = text->data + i;
        n = 1;
        if (*p == '"')
            quoted = !quoted;
        else if (quoted && *p == '\\' && i + 1 < text->len)
            n = 2;
        for (; !quoted && *p >= '0' && *p <= '9' && i + n < text->len && p[n] >= '0' && p[n] <= '9'; n++)
            ;
        const bool goes_on = i + n < text->len && (p[n] == '.' || p[n] == 'e' || p[n] == 'E');
        const bool follows = i > 0 && strchr(".eE+", p[-1]);
        err = buf_append(ret, p, n);
        if (!err && n > INTEGER_DIGITS && !goes_on && !follows)
            err = buf_append(ret, ".0", 2);
    }
    return err;
}

static err_t json_load(const struct hf_source *s, const char *name, size_t most, json_t **ret)
{
    struct buf file = {0}, text = {0};
    json_error_t error;
    err_t err = hf_source_load(s, name, most, &file);
    if (!err && copy_json(&file, &text))
        err = no_memory(s);
    if (!err && !(*ret = json_loadb((const char *)text.data, text.len, JSON_REJECT_DUPLICATES, &error)))
        err = why_set(s->why, ERR_INVALID, "%s/%s, line %d: %s", s->dir, name, error.line, error.text);
    buf_fini(&file);
    buf_fini(&text);
    return err;
}

err_t hf_source_json(const struct hf_source *s, const char *name, json_t **ret)
{
    char path[PATH_MAX];
    *ret = NULL;
    return hf_source_has(s, name, path) ? json_load(s, name, MAX_JSON, ret) : OK;
}

static err_t file_open(struct hf_source *s, const char *name)
{
    char path[PATH_MAX];
    for (int i = 0; i < s->n_files; i++)
        if (strcmp(s->files[i].name, name) == 0)
            return OK;
    if (strchr(name, '/') || s->n_files == MAX_FILES)
        return why_set(s->why, ERR_INVALID,
                       "%s: \"%.80s\" is not the name of a file in the same folder, or there are too many files",
                       HF_INDEX, name);
    struct hf_file *more = realloc(s->files, ((size_t)s->n_files + 1) * sizeof(*more));
    if (!more)
        return no_memory(s);
    s->files = more;
    more[s->n_files] = (struct hf_file){.name = strdup(name)};
    if (!more[s->n_files++].name)
        return no_memory(s);
    err_t err = path_of(s, name, path);
    return err ? err : safetensors_open(path, &more[s->n_files - 1].file, s->why);
}

static err_t index_open(struct hf_source *s, const json_t *index)
{
    json_t *map = json_object_get(index, "weight_map"), *value;
    const char *tensor;
    err_t err =
        json_is_object(map) ? OK : why_set(s->why, ERR_INVALID, "%s/%s: there is no weight_map", s->dir, HF_INDEX);
    json_object_foreach(map, tensor, value)
    {
        if (err)
            break;
        err = json_is_string(value)
                  ? file_open(s, json_string_value(value))
                  : why_set(s->why, ERR_INVALID, "%s/%s: %.80s has no file name", s->dir, HF_INDEX, tensor);
    }
    return err;
}

/* ---- names ---- */

/* Removes the components that wrappers add, and adds the prefix of the complete model. */
static char *name_clean(const char *name, const char *prefix)
{
    static const char *const wrappers[] = {"_orig_mod.", "module."};
    char *ret = malloc(strlen(name) + strlen(prefix) + 1), *to = ret;
    if (!ret)
        return NULL;
    for (bool start = true; *name; start = *name++ == '.') {
        for (size_t i = 0; start && i < 2; i++)
            if (strncmp(name, wrappers[i], strlen(wrappers[i])) == 0) {
                name += strlen(wrappers[i]);
                i = (size_t)-1; /* one may follow another */
            }
        *to++ = *name;
        if (!*name)
            break;
    }
    *to = '\0';
    if (strncmp(ret, prefix, strlen(prefix)) != 0 && strncmp(ret, "lm_head.", 8) != 0 && strcmp(ret, HF_SCORE) != 0 &&
        strncmp(ret, "embed_out.", 10) != 0) {
        memmove(ret + strlen(prefix), ret, strlen(ret) + 1);
        memcpy(ret, prefix, strlen(prefix));
    }
    return ret;
}

static int weight_compare(const void *a, const void *b)
{
    return strcmp(((const struct hf_weight *)a)->name, ((const struct hf_weight *)b)->name);
}

/* Whether the index assigns the tensor to another file than this one. */
static const char *assigned_elsewhere(const json_t *index, const struct hf_file *f, const char *tensor)
{
    const char *file = json_string_value(json_object_get(json_object_get(index, "weight_map"), tensor));
    return file && strcmp(file, f->name) != 0 ? file : NULL;
}

static err_t weights_add(struct hf_source *s, const json_t *index, const struct hf_file *f, const char *prefix)
{
    struct hf_weight *more = realloc(s->weights, (size_t)(s->n_weights + f->file.n + 1) * sizeof(*more));
    if (!more)
        return no_memory(s);
    s->weights = more;
    for (int i = 0; i < f->file.n; i++) {
        const char *other = assigned_elsewhere(index, f, f->file.list[i].name);
        if (other) {
            hf_source_warn(s, "%s/%s has a copy of %s, which is ignored: %s assigns the tensor to %s", s->dir, f->name,
                           f->file.list[i].name, HF_INDEX, other);
            continue;
        }
        struct hf_weight *w = &more[s->n_weights];
        *w = (struct hf_weight){name_clean(f->file.list[i].name, prefix), &f->file.list[i], f};
        if (!w->name)
            return no_memory(s);
        s->n_weights++;
    }
    return OK;
}

static err_t weights_list(struct hf_source *s, const json_t *index, const char *prefix)
{
    err_t err = OK;
    for (int i = 0; !err && i < s->n_files; i++)
        err = weights_add(s, index, &s->files[i], prefix);
    if (err || !s->n_weights)
        return err;
    qsort(s->weights, (size_t)s->n_weights, sizeof(*s->weights), weight_compare);
    for (int i = 1; i < s->n_weights; i++) {
        const struct hf_weight *a = &s->weights[i - 1], *b = &s->weights[i];
        if (strcmp(a->name, b->name) == 0)
            return why_set(s->why, ERR_INVALID,
                           "%s: %s (in %s) and %s (in %s) are the same tensor of the model. Remove one", s->dir,
                           a->tensor->name, a->file->name, b->tensor->name, b->file->name);
    }
    return OK;
}

err_t hf_source_open(struct hf_source *s, const char *prefix)
{
    char path[PATH_MAX];
    json_t *index = NULL;
    bool single = hf_source_has(s, HF_MODEL, path), many = hf_source_has(s, HF_INDEX, path);
    err_t err = OK;
    if (single && many)
        hf_source_warn(s, "%s has %s and %s; %s is read, as transformers does, and the index is ignored", s->dir,
                       HF_MODEL, HF_INDEX, HF_MODEL);
    if (single)
        err = file_open(s, HF_MODEL);
    else if (many)
        err = json_load(s, HF_INDEX, MAX_INDEX, &index);
    else
        err = why_set(s->why, ERR_NOTFOUND, "%s has neither %s nor %s", s->dir, HF_MODEL, HF_INDEX);
    if (!err && index)
        err = index_open(s, index);
    err = err ? err : weights_list(s, index, prefix);
    json_decref(index);
    return err;
}

void hf_source_close(struct hf_source *s)
{
    for (int i = 0; i < s->n_weights; i++)
        free(s->weights[i].name);
    free(s->weights);
    for (int i = 0; i < s->n_files; i++) {
        safetensors_close(&s->files[i].file);
        free(s->files[i].name);
    }
    free(s->files);
    s->weights = NULL;
    s->files = NULL;
    s->n_weights = s->n_files = 0;
}

const struct hf_weight *hf_source_find(const struct hf_source *s, const char *name)
{
    const struct hf_weight key = {.name = (char *)(uintptr_t)name};
    return s->n_weights ? bsearch(&key, s->weights, (size_t)s->n_weights, sizeof(*s->weights), weight_compare) : NULL;
}

/* ---- what an export gives back ---- */

err_t hf_source_keep(const struct hf_source *s, struct buf *ret)
{
    char path[PATH_MAX];
    json_t *files = json_object();
    err_t err = files ? OK : no_memory(s);
    for (const char *const *name = hf_small_files; !err && *name; name++) {
        struct buf text = {0};
        if (!hf_source_has(s, *name, path))
            continue;
        err = hf_source_load(s, *name, MAX_JSON, &text);
        if (!err && json_object_set_new(files, *name, json_stringn((const char *)text.data, text.len)))
            err = why_set(s->why, ERR_INVALID, "%s is not UTF-8", path);
        buf_fini(&text);
    }
    char *out = err ? NULL : json_dumps(files, JSON_COMPACT);
    if (!err && (!out || buf_append(ret, out, strlen(out))))
        err = no_memory(s);
    free(out);
    json_decref(files);
    return err;
}
