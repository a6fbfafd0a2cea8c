/* The header may list tensors in any order. Sorted by offset they must tile the data: every byte belongs to exactly one
 * tensor. */
#include "common/ckpt/safetensors.h"

#include "common/base/file.h"
#include "common/ckpt/ckpt_priv.h"

#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_TENSORS (1 << 20)
#define METADATA "__metadata__"
#define WINDOW ((size_t)1 << 20)

static const struct {
    const char *name;
    int bytes;
    enum dtype dtype;
} types[] = {{"F32", 4, DT_F32},     {"BF16", 2, DT_BF16}, {"F16", 2, DT_F16},      {"F64", 8, DT_F64},
             {"I64", 8, DT_I64},     {"I32", 4, DT_I32},   {"I16", 2, DT_I16},      {"I8", 1, DT_I8},
             {"U8", 1, DT_U8},       {"BOOL", 1, DT_BOOL}, {"U16", 2, DT_NONE},     {"U32", 4, DT_NONE},
             {"U64", 8, DT_NONE},    {"C64", 8, DT_NONE},  {"F8_E4M3", 1, DT_NONE}, {"F8_E5M2", 1, DT_NONE},
             {"F8_E8M0", 1, DT_NONE}};
#define N_TYPES (sizeof(types) / sizeof(types[0]))

void safetensors_close(struct safetensors *s)
{
    for (int i = 0; i < s->n; i++)
        free(s->list[i].name);
    free(s->list);
    if (s->fd > 0)
        close(s->fd);
    *s = (struct safetensors){0};
}

int64_t safetensor_elements(const struct safetensor *t)
{
    int64_t n = 1;
    for (int d = 0; d < t->ndim; d++)
        n *= t->shape[d];
    return n;
}

/* ---- the header ---- */

static err_t corrupt(struct why *why, const char *name, const char *what)
{
    return why_set(why, ERR_CORRUPT, "tensor \"%.200s\": %s", name, what);
}

/* Size of the tensor in bytes, by its type and shape; false if it overflows. */
static bool bytes_of(const struct safetensor *t, int element, uint64_t *ret)
{
    uint64_t n = (uint64_t)element;
    for (int d = 0; d < t->ndim; d++)
        if (t->shape[d] < 0 || __builtin_mul_overflow(n, (uint64_t)t->shape[d], &n))
            return false;
    *ret = n;
    return n <= INT64_MAX;
}

static err_t type_parse(const json_t *object, struct safetensor *t, int *ret_bytes, struct why *why)
{
    const char *type = json_string_value(json_object_get(object, "dtype"));
    for (size_t i = 0; type && i < N_TYPES; i++)
        if (strcmp(types[i].name, type) == 0) {
            t->dtype = types[i].dtype;
            snprintf(t->type, sizeof(t->type), "%s", type);
            *ret_bytes = types[i].bytes;
            return OK;
        }
    return why_set(why, ERR_CORRUPT, "tensor \"%.200s\": unknown type \"%.32s\"", t->name, type ? type : "");
}

static err_t shape_parse(const json_t *list, struct safetensor *t, struct why *why)
{
    size_t n = json_array_size(list), d;
    const json_t *item;
    if (!json_is_array(list) || n > BOX_MAX_DIMS)
        return corrupt(why, t->name, "its shape is not a list of at most 8 numbers");
    json_array_foreach(list, d, item)
    {
        if (!json_is_integer(item) || json_integer_value(item) < 0)
            return corrupt(why, t->name, "its shape is not a list of at most 8 numbers");
        t->shape[d] = json_integer_value(item);
    }
    t->ndim = (int)n;
    return OK;
}

static err_t tensor_parse(const json_t *object, uint64_t data_bytes, struct safetensor *t, struct why *why)
{
    const json_t *offsets = json_object_get(object, "data_offsets");
    const json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    int element = 0;
    uint64_t bytes;
    if (!json_is_object(object))
        return corrupt(why, t->name, "its description is not an object");
    err_t err = type_parse(object, t, &element, why);
    if (!err)
        err = shape_parse(json_object_get(object, "shape"), t, why);
    if (err)
        return err;
    if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end) ||
        json_integer_value(begin) < 0 || json_integer_value(end) < json_integer_value(begin))
        return corrupt(why, t->name, "its data_offsets are not two ascending numbers");
    t->begin = (uint64_t)json_integer_value(begin);
    t->end = (uint64_t)json_integer_value(end);
    if (t->end > data_bytes)
        return corrupt(why, t->name, "it ends after the end of the file");
    if (!bytes_of(t, element, &bytes) || bytes != t->end - t->begin)
        return corrupt(why, t->name, "its data_offsets do not match its type and shape");
    return OK;
}

static err_t list_parse(json_t *root, uint64_t data_bytes, struct safetensors *s, struct why *why)
{
    const char *name;
    json_t *object;
    json_object_foreach(root, name, object)
    {
        if (strcmp(name, METADATA) == 0)
            continue;
        struct safetensor *t = &s->list[s->n];
        *t = (struct safetensor){.name = strdup(name)};
        if (!t->name)
            return why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
        s->n++;
        err_t err = tensor_parse(object, data_bytes, t, why);
        if (err)
            return err;
    }
    return OK;
}

static int by_offset(const void *a, const void *b)
{
    const struct safetensor *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    return (x->end > y->end) - (x->end < y->end);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct safetensor *)a)->name, ((const struct safetensor *)b)->name);
}

static err_t tiles_check(struct safetensors *s, uint64_t data_bytes, struct why *why)
{
    uint64_t at = 0;
    if (s->n)
        qsort(s->list, (size_t)s->n, sizeof(*s->list), by_offset);
    for (int i = 0; i < s->n; i++) {
        if (s->list[i].begin != at)
            return corrupt(why, s->list[i].name,
                           s->list[i].begin < at ? "it overlaps another tensor"
                                                 : "bytes before it belong to no tensor");
        at = s->list[i].end;
    }
    if (at != data_bytes)
        return why_set(why, ERR_CORRUPT, "%llu bytes at its end belong to no tensor",
                       (unsigned long long)(data_bytes - at));
    return OK;
}

err_t safetensors_parse(const void *header, size_t len, uint64_t data_bytes, struct safetensors *ret, struct why *why)
{
    struct safetensors s = {0};
    json_error_t error;
    json_t *root = json_loadb(header, len, JSON_REJECT_DUPLICATES, &error);
    err_t err = OK;
    if (!json_is_object(root) || json_object_size(root) > MAX_TENSORS) {
        err = root ? why_set(why, ERR_CORRUPT, "its header is not an object of at most %d tensors", MAX_TENSORS)
                   : why_set(why, ERR_CORRUPT, "its header, line %d: %s", error.line, error.text);
        json_decref(root);
        return err;
    }
    s.list = calloc(json_object_size(root) + 1, sizeof(*s.list));
    err = s.list ? list_parse(root, data_bytes, &s, why) : why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    json_decref(root);
    err = err ? err : tiles_check(&s, data_bytes, why);
    if (err) {
        safetensors_close(&s);
        return err;
    }
    if (s.n)
        qsort(s.list, (size_t)s.n, sizeof(*s.list), by_name);
    *ret = s;
    return OK;
}

/* ---- the file ---- */

static err_t header_read(int fd, uint64_t size, struct buf *ret, struct why *why)
{
    uint64_t n;
    if (size < sizeof(n) || file_pread_all(fd, &n, sizeof(n), 0))
        return why_set(why, ERR_CORRUPT, "it is not a safetensors file: it has %llu bytes", (unsigned long long)size);
    n = le64toh(n);
    if (n > SAFETENSORS_MAX_HEADER || n > size - sizeof(n))
        return why_set(why, ERR_CORRUPT, "it is not a safetensors file: its header would have %llu bytes",
                       (unsigned long long)n);
    err_t err = buf_reserve(ret, (size_t)n + 1);
    if (!err)
        err = file_pread_all(fd, ret->data, (size_t)n, sizeof(n));
    ret->len = (size_t)n;
    return err ? why_set(why, err, "%s", err_text(err)) : OK;
}

err_t safetensors_open(const char *path, struct safetensors *ret, struct why *why)
{
    struct buf header = {0};
    struct safetensors s = {0};
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return why_set(why, err_from_errno(errno), "%s: %s", path, strerror(errno));
    err_t err = OK;
    if (fstat(fd, &st) || !S_ISREG(st.st_mode))
        err = why_set(why, ERR_INVALID, "it is not a regular file");
    if (!err)
        err = header_read(fd, (uint64_t)st.st_size, &header, why);
    if (!err)
        err = safetensors_parse(header.data, header.len, (uint64_t)st.st_size - sizeof(uint64_t) - header.len, &s, why);
    if (err) {
        close(fd);
        why_prefix(why, err, "%s", path);
    } else {
        s.fd = fd;
        s.data = sizeof(uint64_t) + header.len;
        *ret = s;
    }
    buf_fini(&header);
    return err;
}

static int name_compare(const void *key, const void *t)
{
    return strcmp(key, ((const struct safetensor *)t)->name);
}

const struct safetensor *safetensors_find(const struct safetensors *s, const char *name)
{
    return s->n ? bsearch(name, s->list, (size_t)s->n, sizeof(*s->list), name_compare) : NULL;
}

err_t safetensors_read(const struct safetensors *s, const struct safetensor *t, int64_t first, int64_t n, enum dtype to,
                       void *dst, struct why *why)
{
    size_t element = dtype_bytes(t->dtype), room = element ? WINDOW / element : 0;
    if (!element || !convert_is_possible(t->dtype, to))
        return why_set(why, ERR_UNSUPPORTED, "tensor \"%.200s\": %s cannot be converted to %s", t->name, t->type,
                       dtype_name(to));
    if (first < 0 || n < 0 || first + n > safetensor_elements(t))
        return why_set(why, ERR_INVALID, "tensor \"%.200s\" has fewer elements than requested", t->name);
    uint8_t *window = malloc(WINDOW);
    err_t err = window ? OK : ERR_NOMEM;
    for (int64_t i = 0; !err && i < n;) {
        size_t part = (size_t)(n - i) < room ? (size_t)(n - i) : room;
        off_t at = (off_t)(s->data + t->begin + (uint64_t)(first + i) * element);
        err = file_pread_all(s->fd, window, part * element, at);
        if (!err)
            convert((uint8_t *)dst + (size_t)i * dtype_bytes(to), to, window, t->dtype, part);
        i += (int64_t)part;
    }
    free(window);
    return err ? why_set(why, err, "tensor \"%.200s\": %s", t->name, err_text(err)) : OK;
}

/* ---- writing ---- */

static const char *type_name(enum dtype dtype, int *ret_bytes)
{
    size_t i = 0;
    while (i + 1 < N_TYPES && types[i].dtype != dtype)
        i++;
    *ret_bytes = types[i].bytes;
    return types[i].name;
}

static json_t *tensor_json(struct safetensor *t, uint64_t *at)
{
    int element;
    const char *type = type_name(t->dtype, &element);
    json_t *shape = json_array();
    for (int d = 0; shape && d < t->ndim; d++)
        if (json_array_append_new(shape, json_integer(t->shape[d]))) {
            json_decref(shape);
            return NULL;
        }
    t->begin = *at;
    *at = t->end = t->begin + (uint64_t)safetensor_elements(t) * (uint64_t)element;
    snprintf(t->type, sizeof(t->type), "%s", type);
    return json_pack("{s:s, s:o, s:[I,I]}", "dtype", type, "shape", shape, "data_offsets", (json_int_t)t->begin,
                     (json_int_t)t->end);
}

err_t safetensors_header(struct safetensor *list, int n, struct buf *ret, uint64_t *ret_data)
{
    uint64_t at = 0, len;
    json_t *root = json_pack("{s:{s:s}}", METADATA, "format", "pt");
    err_t err = root ? OK : ERR_NOMEM;
    for (int i = 0; !err && i < n; i++)
        if (json_object_set_new(root, list[i].name, tensor_json(&list[i], &at)))
            err = ERR_NOMEM;
    char *text = err ? NULL : json_dumps(root, JSON_COMPACT | JSON_PRESERVE_ORDER);
    json_decref(root);
    if (!text)
        return ERR_NOMEM;
    size_t size = strlen(text), padded = (size + 7) / 8 * 8;
    len = htole64(padded);
    err = buf_append(ret, &len, sizeof(len));
    if (!err)
        err = buf_printf(ret, "%s%*s", text, (int)(padded - size), "");
    free(text);
    if (!err)
        *ret_data = at;
    return err;
}
