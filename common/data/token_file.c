/* The files are mapped, and arrays of an index are read where they are: they are unaligned, so every number is copied
 * out. An index is checked once, completely, so that later readers need no checks. */
#include "common/data/token_file.h"

#include "common/base/file.h"

#include <endian.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* ---- files ---- */

err_t file_map_open(const char *path, struct file_map *ret, struct why *why)
{
    struct file_map m = {.data = (const uint8_t *)""};
    int fd = file_open_plain(path);
    err_t err = OK;
    if (fd < 0 || fstat(fd, &m.st)) {
        err = why_set(why, err_from_errno(errno), "%s: %s", path, strerror(errno));
    } else if (m.st.st_size) {
        m.len = (size_t)m.st.st_size;
        void *data = mmap(NULL, m.len, PROT_READ, MAP_SHARED, fd, 0);
        if (data == MAP_FAILED)
            err = why_set(why, err_from_errno(errno), "%s: %s", path, strerror(errno));
        else
            m.data = data;
    }
    if (fd >= 0)
        close(fd);
    if (!err && !(m.path = strdup(path))) {
        if (m.len)
            munmap((void *)m.data, m.len);
        err = why_set(why, ERR_NOMEM, "%s", err_text(ERR_NOMEM));
    }
    if (!err)
        *ret = m;
    return err;
}

void file_map_close(struct file_map *m)
{
    if (m->path && m->len)
        munmap((void *)m->data, m->len);
    free(m->path);
    *m = (struct file_map){0};
}

static uint32_t u32_at(const struct file_map *m, size_t at)
{
    uint32_t x;
    memcpy(&x, m->data + at, sizeof(x));
    return le32toh(x);
}

static uint64_t u64_at(const struct file_map *m, size_t at)
{
    uint64_t x;
    memcpy(&x, m->data + at, sizeof(x));
    return le64toh(x);
}

static err_t fail(const struct file_map *m, err_t err, const char *text, struct why *why)
{
    return why_set(why, err, "%s: %s", m->path, text);
}

static bool has_suffix(const char *path, const char *suffix)
{
    size_t n = strlen(path), k = strlen(suffix);
    return n > k && strcmp(path + n - k, suffix) == 0;
}

/* The path with its suffix of `drop` bytes replaced. */
static err_t sibling(const char *path, size_t drop, const char *suffix, char ret[PATH_MAX], struct why *why)
{
    int n = snprintf(ret, PATH_MAX, "%.*s%s", (int)(strlen(path) - drop), path, suffix);
    return n < PATH_MAX ? OK : why_set(why, ERR_LIMIT, "%s: the path is too long", path);
}

static bool exists(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

/* Sets the number of ids from the file's size. */
static err_t count_tokens(struct token_file *f, struct why *why)
{
    size_t bytes = (size_t)token_types[f->type].bytes, n = f->ids.len - f->offset;
    if (n % bytes)
        return why_set(why, ERR_CORRUPT,
                       "%s: %zu bytes of ids are not a multiple of %zu (%s): the file is cut off, or "
                       "has another type",
                       f->ids.path, n, bytes, token_types[f->type].name);
    f->tokens = (int64_t)(n / bytes);
    return OK;
}

/* ---- ids and nothing else ---- */

static bool is_never(const uint8_t *head, size_t len, const char *path)
{
    return false;
}

static err_t plain_open(const char *path, enum token_type type, struct token_file *f, struct why *why)
{
    f->type = type;
    err_t err = file_map_open(path, &f->ids, why);
    return err ? err : count_tokens(f, why);
}

static err_t uint16_open(const char *path, struct token_file *f, struct why *why)
{
    return plain_open(path, TOKEN_U16, f, why);
}

static err_t uint32_open(const char *path, struct token_file *f, struct why *why)
{
    return plain_open(path, TOKEN_U32, f, why);
}

static err_t int32_open(const char *path, struct token_file *f, struct why *why)
{
    return plain_open(path, TOKEN_I32, f, why);
}

static err_t int64_open(const char *path, struct token_file *f, struct why *why)
{
    return plain_open(path, TOKEN_I64, f, why);
}

/* ---- NumPy ---- */

#define NPY_MAGIC "\x93NUMPY"

static bool npy_is(const uint8_t *head, size_t len, const char *path)
{
    return len >= 6 && memcmp(head, NPY_MAGIC, 6) == 0;
}

/* The value behind 'key': in the header, a Python dictionary in the one spelling that NumPy writes. */
static const char *npy_value(const char *header, const char *key)
{
    const char *at = strstr(header, key);
    at = at ? at + strlen(key) : NULL;
    while (at && (*at == ' ' || *at == ':'))
        at++;
    return at;
}

static err_t npy_header(const char *header, struct token_file *f, struct why *why)
{
    static const struct {
        const char *name;
        enum token_type type;
    } types[] = {{"'|u1'", TOKEN_U8},  {"'|i1'", TOKEN_I8},  {"'<u2'", TOKEN_U16}, {"'<i2'", TOKEN_I16},
                 {"'<u4'", TOKEN_U32}, {"'<i4'", TOKEN_I32}, {"'<i8'", TOKEN_I64}};
    const char *type = npy_value(header, "'descr'"), *shape = npy_value(header, "'shape'");
    long long n;
    int used = 0;
    if (!type || !shape || !npy_value(header, "'fortran_order'"))
        return fail(&f->ids, ERR_CORRUPT, "the NumPy header is damaged", why);
    size_t i = 0;
    while (i < sizeof(types) / sizeof(types[0]) && strncmp(type, types[i].name, strlen(types[i].name)) != 0)
        i++;
    if (i == sizeof(types) / sizeof(types[0]))
        return why_set(why, ERR_UNSUPPORTED,
                       "%s: elements of type %.6s are no token ids; the types are uint8 to uint32 "
                       "and int8 to int64, little-endian",
                       f->ids.path, type);
    f->type = types[i].type;
    if (sscanf(shape, "(%lld,)%n", &n, &used) != 1 || !used)
        return fail(
            &f->ids, ERR_UNSUPPORTED,
            "the array has not one dimension; write it flat (array.reshape(-1)), with a token at the end of each "
            "document",
            why);
    err_t err = count_tokens(f, why);
    if (!err && n != f->tokens)
        err = why_set(why, ERR_CORRUPT, "%s: the header announces %lld ids, but the file has %lld", f->ids.path, n,
                      (long long)f->tokens);
    return err;
}

static err_t npy_open(const char *path, struct token_file *f, struct why *why)
{
    char header[4096];
    err_t err = file_map_open(path, &f->ids, why);
    if (err)
        return err;
    const uint8_t *d = f->ids.data;
    if (f->ids.len < 12 || !npy_is(d, f->ids.len, path) || d[6] < 1 || d[6] > 3)
        return fail(&f->ids, ERR_CORRUPT, "the NumPy header is damaged", why);
    size_t at = d[6] == 1 ? 10 : 12, n = d[6] == 1 ? d[8] | (size_t)d[9] << 8 : u32_at(&f->ids, 8);
    if (n >= sizeof(header) || n > f->ids.len - at)
        return fail(&f->ids, ERR_CORRUPT, "the NumPy header is damaged", why);
    memcpy(header, d + at, n);
    header[n] = '\0';
    f->offset = at + n;
    return npy_header(header, f, why);
}

/* ---- llm.c ---- */

#define LLMC_HEADER 1024
#define LLMC_GPT2 20240520
#define LLMC_LLAMA3 20240801

static bool llmc_is(const uint8_t *head, size_t len, const char *path)
{
    const struct file_map m = {.data = head, .len = len};
    uint32_t magic = len < LLMC_HEADER ? 0 : u32_at(&m, 0);
    return magic == LLMC_GPT2 || magic == LLMC_LLAMA3;
}

static err_t llmc_open(const char *path, struct token_file *f, struct why *why)
{
    err_t err = file_map_open(path, &f->ids, why);
    if (err)
        return err;
    if (!llmc_is(f->ids.data, f->ids.len, path))
        return fail(&f->ids, ERR_CORRUPT, "it has no header of llm.c", why);
    bool wide = u32_at(&f->ids, 0) == LLMC_LLAMA3;
    uint32_t version = u32_at(&f->ids, 4), n = u32_at(&f->ids, 8);
    if (version != (wide ? 7u : 1u))
        return why_set(why, ERR_UNSUPPORTED, "%s: version %u of llm.c's format is not supported", path, version);
    f->type = wide ? TOKEN_U32 : TOKEN_U16;
    f->offset = LLMC_HEADER;
    err = count_tokens(f, why);
    if (!err && n != f->tokens)
        err = why_set(why, ERR_CORRUPT, "%s: the header announces %u ids, but the file has %lld", path, n,
                      (long long)f->tokens);
    return err;
}

/* ---- Megatron-LM ---- */

#define MMIDIDX "MMIDIDX\0\0"
#define TNTIDX "TNTIDX\0\0"
#define MMIDIDX_HEADER 34
#define TNTIDX_HEADER 56

static bool idx_is(const uint8_t *head, size_t len)
{
    return len >= 9 && (memcmp(head, MMIDIDX, 9) == 0 || memcmp(head, TNTIDX, 8) == 0);
}

static bool file_is_idx(const char *path)
{
    uint8_t head[9];
    int fd = file_open_plain(path);
    bool is = fd >= 0 && read(fd, head, sizeof(head)) == (ssize_t)sizeof(head) && idx_is(head, sizeof(head));
    if (fd >= 0)
        close(fd);
    return is;
}

/* The .bin of an .idx has no mark of its own. */
static bool is_bin_of_idx(const char *path)
{
    char idx[PATH_MAX];
    return has_suffix(path, ".bin") && !sibling(path, 4, ".idx", idx, NULL) && file_is_idx(idx);
}

static bool megatron_is(const uint8_t *head, size_t len, const char *path)
{
    return idx_is(head, len) || is_bin_of_idx(path);
}

/* Codes of NumPy types, the same in both versions. */
static err_t megatron_type(struct token_file *f, uint64_t code, struct why *why)
{
    static const enum token_type types[] = {[1] = TOKEN_U8, TOKEN_I8, TOKEN_I16, TOKEN_I32, TOKEN_I64, [8] = TOKEN_U16};
    if (code < 1 || code > 8)
        return fail(&f->index, ERR_CORRUPT, "the type of the ids is unknown", why);
    if (code == 6 || code == 7)
        return fail(&f->index, ERR_UNSUPPORTED, "the elements are floating-point numbers, and no token ids", why);
    f->type = types[code];
    return OK;
}

/* n x size, or SIZE_MAX. */
static size_t times(uint64_t n, size_t size)
{
    size_t bytes;
    return __builtin_mul_overflow(n, size, &bytes) ? SIZE_MAX : bytes;
}

/* Sets where the arrays of these sizes lie, one after the other from `at` on. */
static err_t megatron_arrays(struct token_file *f, size_t at, const size_t bytes[4], struct why *why)
{
    size_t places[5] = {at};
    for (int i = 0; i < 4; i++)
        if (__builtin_add_overflow(places[i], bytes[i], &places[i + 1]))
            return fail(&f->index, ERR_CORRUPT, "its counts are out of range", why);
    if (places[4] != f->index.len)
        return why_set(why, ERR_CORRUPT,
                       "%s: its counts announce %zu bytes, but it has %zu; files with more arrays (modes of multimodal "
                       "data) are not supported",
                       f->index.path, places[4], f->index.len);
    f->sizes = places[1]; /* places[0]: what only one of the versions has in front */
    f->pointers = places[2];
    f->breaks = places[3];
    return OK;
}

static err_t mmididx_header(struct token_file *f, struct why *why)
{
    const struct file_map *m = &f->index;
    if (m->len < MMIDIDX_HEADER)
        return fail(m, ERR_CORRUPT, "the file is cut off", why);
    if (u64_at(m, 9) != 1)
        return fail(m, ERR_UNSUPPORTED, "only version 1 of the format MMIDIDX is supported", why);
    uint64_t n = u64_at(m, 18), ends = u64_at(m, 26);
    const size_t bytes[4] = {0, times(n, 4), times(n, 8), times(ends, 8)};
    f->n_sequences = (int64_t)n;
    f->n_ends = (int64_t)ends - 1;
    err_t err = megatron_type(f, m->data[17], why);
    return err ? err : megatron_arrays(f, MMIDIDX_HEADER, bytes, why);
}

static bool is_old(const struct token_file *f)
{
    return f->index.data[0] == 'T';
}

/* In this version the arrays of places come first, have an end, and count elements; lengths are 64-bit. */
static err_t tntidx_header(struct token_file *f, struct why *why)
{
    const struct file_map *m = &f->index;
    if (m->len < TNTIDX_HEADER)
        return fail(m, ERR_CORRUPT, "the file is cut off", why);
    if (u64_at(m, 8) != 1)
        return fail(m, ERR_UNSUPPORTED, "only version 1 of the format TNTIDX is supported", why);
    uint64_t n = u64_at(m, 32), sizes = u64_at(m, 40), ends = u64_at(m, 48);
    if (n != sizes || n == UINT64_MAX)
        return fail(m, ERR_UNSUPPORTED, "its elements have more than one dimension, so they are no token ids", why);
    const size_t bytes[4] = {times(n + 1, 8), times(n + 1, 8), times(n, 8), times(ends, 8)};
    f->n_sequences = (int64_t)n;
    f->n_ends = (int64_t)ends - 1;
    err_t err = megatron_type(f, u64_at(m, 16), why);
    err = err ? err : megatron_arrays(f, TNTIDX_HEADER, bytes, why);
    if (err)
        return err;
    size_t places = f->sizes; /* the second array is that of places here, the third that of lengths */
    f->sizes = f->pointers;
    f->pointers = places;
    return OK;
}

static int64_t sequence_size(const struct token_file *f, int64_t i)
{
    return is_old(f) ? (int64_t)u64_at(&f->index, f->sizes + (size_t)i * 8)
                     : (int32_t)u32_at(&f->index, f->sizes + (size_t)i * 4);
}

/* The first token of sequence i, after the places have been checked. */
static int64_t sequence_begin(const struct token_file *f, int64_t i)
{
    if (i == f->n_sequences)
        return f->tokens;
    int64_t place = (int64_t)u64_at(&f->index, f->pointers + (size_t)i * 8);
    return is_old(f) ? place : place / token_types[f->type].bytes;
}

static int64_t megatron_end(const struct token_file *f, int64_t i)
{
    return sequence_begin(f, (int64_t)u64_at(&f->index, f->breaks + (size_t)(i + 1) * 8));
}

/* Sequences lie in order without gaps, so the file is one run of tokens. */
static err_t megatron_sequences(struct token_file *f, struct why *why)
{
    int64_t sum = 0, unit = is_old(f) ? 1 : token_types[f->type].bytes;
    for (int64_t i = 0; i < f->n_sequences; i++) {
        int64_t n = sequence_size(f, i), place = (int64_t)u64_at(&f->index, f->pointers + (size_t)i * 8);
        if (n < 0 || place != sum * unit)
            return why_set(why, n < 0 ? ERR_CORRUPT : ERR_UNSUPPORTED,
                           "%s: sequence %lld does not begin where the one before it ends", f->index.path,
                           (long long)i);
        if (n > f->tokens - sum)
            return why_set(why, ERR_CORRUPT, "%s: its sequences have more tokens than %s", f->index.path, f->ids.path);
        sum += n;
    }
    return sum == f->tokens ? OK
                            : why_set(why, ERR_CORRUPT, "%s: its sequences have %lld tokens, but %s has %lld",
                                      f->index.path, (long long)sum, f->ids.path, (long long)f->tokens);
}

static err_t megatron_documents(const struct token_file *f, struct why *why)
{
    uint64_t before = 0;
    bool ok = f->n_ends >= 0 && u64_at(&f->index, f->breaks) == 0;
    for (int64_t i = 1; ok && i <= f->n_ends; i++) {
        uint64_t sequence = u64_at(&f->index, f->breaks + (size_t)i * 8);
        ok = sequence >= before && sequence <= (uint64_t)f->n_sequences;
        before = sequence;
    }
    return ok && before == (uint64_t)f->n_sequences
               ? OK
               : fail(&f->index, ERR_CORRUPT, "its list of documents is damaged", why);
}

static err_t megatron_open(const char *path, struct token_file *f, struct why *why)
{
    char idx[PATH_MAX], bin[PATH_MAX];
    if (!has_suffix(path, ".bin") && !has_suffix(path, ".idx"))
        return why_set(why, ERR_INVALID, "%s: files of Megatron-LM are a pair NAME.idx and NAME.bin", path);
    err_t err = sibling(path, 4, ".idx", idx, why);
    err = err ? err : sibling(path, 4, ".bin", bin, why);
    err = err ? err : file_map_open(idx, &f->index, why);
    err = err ? err : file_map_open(bin, &f->ids, why);
    if (err)
        return err;
    if (!idx_is(f->index.data, f->index.len))
        return fail(&f->index, ERR_CORRUPT, "it is no index of Megatron-LM", why);
    err = is_old(f) ? tntidx_header(f, why) : mmididx_header(f, why);
    err = err ? err : count_tokens(f, why);
    err = err ? err : megatron_sequences(f, why);
    f->end = megatron_end;
    return err ? err : megatron_documents(f, why);
}

/* ---- datatrove ---- */

static bool datatrove_is(const uint8_t *head, size_t len, const char *path)
{
    char index[PATH_MAX];
    return has_suffix(path, ".ds") && !sibling(path, 0, ".index", index, NULL) && exists(index);
}

static int64_t datatrove_end(const struct token_file *f, int64_t i)
{
    return (int64_t)u64_at(&f->index, (size_t)i * 8);
}

/* The width of the ids is not written anywhere; the last end gives it. */
static err_t datatrove_type(struct token_file *f, struct why *why)
{
    f->n_ends = (int64_t)(f->index.len / 8);
    uint64_t end = f->n_ends ? (uint64_t)datatrove_end(f, f->n_ends - 1) : 0;
    if (f->index.len % 8 || !end || f->ids.len / end * end != f->ids.len ||
        (f->ids.len / end != 2 && f->ids.len / end != 4))
        return why_set(why, ERR_CORRUPT,
                       "%s: its last document ends at token %llu, which does not fit to the %zu bytes "
                       "of %s",
                       f->index.path, (unsigned long long)end, f->ids.len, f->ids.path);
    f->type = f->ids.len / end == 2 ? TOKEN_U16 : TOKEN_U32;
    return count_tokens(f, why);
}

static err_t datatrove_losses(struct token_file *f, struct why *why)
{
    if ((int64_t)f->losses.len != f->tokens)
        return why_set(why, ERR_CORRUPT, "%s: it has %zu bytes, but one for each of %lld tokens is expected",
                       f->losses.path, f->losses.len, (long long)f->tokens);
    for (size_t i = 0; i < f->losses.len; i++)
        if (f->losses.data[i] > 1)
            return fail(&f->losses, ERR_CORRUPT, "a byte is neither 0 nor 1", why);
    return OK;
}

static err_t datatrove_open(const char *path, struct token_file *f, struct why *why)
{
    char index[PATH_MAX], losses[PATH_MAX];
    err_t err = sibling(path, 0, ".index", index, why);
    err = err ? err : sibling(path, 0, ".loss", losses, why);
    err = err ? err : file_map_open(path, &f->ids, why);
    err = err ? err : file_map_open(index, &f->index, why);
    err = err ? err : datatrove_type(f, why);
    f->end = datatrove_end;
    for (int64_t i = 1; !err && i < f->n_ends; i++)
        if (datatrove_end(f, i) < datatrove_end(f, i - 1))
            err = fail(&f->index, ERR_CORRUPT, "the ends of its documents do not ascend", why);
    if (!err && datatrove_end(f, 0) < 0)
        err = fail(&f->index, ERR_CORRUPT, "the ends of its documents do not ascend", why);
    if (!err && exists(losses)) {
        err = file_map_open(losses, &f->losses, why);
        err = err ? err : datatrove_losses(f, why);
    }
    return err;
}

/* ---- all formats ---- */

const struct token_format token_formats[TOKEN_FORMATS] = {
    {"megatron", megatron_is, megatron_open},
    {"llmc", llmc_is, llmc_open},
    {"datatrove", datatrove_is, datatrove_open},
    {"npy", npy_is, npy_open},
    {"uint16", is_never, uint16_open},
    {"uint32", is_never, uint32_open},
    {"int32", is_never, int32_open},
    {"int64", is_never, int64_open},
};

err_t token_file_open(const struct token_format *format, const char *path, struct token_file *ret, struct why *why)
{
    struct token_file f = {0};
    err_t err = format->open(path, &f, why);
    if (!err && !f.tokens)
        err = why_set(why, ERR_INVALID, "%s: it has no tokens", path);
    if (err) {
        token_file_close(&f);
        return err;
    }
    *ret = f;
    return OK;
}

void token_file_close(struct token_file *f)
{
    file_map_close(&f->ids);
    file_map_close(&f->index);
    file_map_close(&f->losses);
}

bool token_file_main(const char *path, const uint8_t *head, size_t len, char ret[PATH_MAX])
{
    static const char *const suffixes[] = {".ds.index", ".ds.loss", ".ds.metadata"};
    for (size_t i = 0; i < sizeof(suffixes) / sizeof(suffixes[0]); i++)
        if (has_suffix(path, suffixes[i]) && !sibling(path, strlen(suffixes[i]), ".ds", ret, NULL) && exists(ret))
            return true;
    return idx_is(head, len) && has_suffix(path, ".idx") && !sibling(path, 4, ".bin", ret, NULL) && exists(ret);
}
