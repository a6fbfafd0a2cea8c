/* safetensors: round trips, and untrusted files are rejected before their data is used. */
#include "common/ckpt/safetensors.h"

#include "common/base/file.h"
#include "tests/lib/test.h"

#include <endian.h>
#include <fcntl.h>
#include <limits.h>

static char *path_of(const char *name)
{
    static char path[PATH_MAX];
    snprintf(path, sizeof(path), "%s/%s", test_tmpdir(), name);
    return path;
}

static char *file_make(const char *header, size_t padding, const void *data, size_t len)
{
    struct buf b = {0};
    uint64_t n = htole64(strlen(header) + padding);
    assert_ok(buf_append(&b, &n, sizeof(n)));
    assert_ok(buf_printf(&b, "%s%*s", header, (int)padding, ""));
    assert_ok(buf_append(&b, data, len));
    char *path = path_of("x.safetensors");
    assert_ok(file_replace(path, b.data, b.len, 0644));
    buf_fini(&b);
    return path;
}

TEST(what_is_written_is_read)
{
    static const float a[6] = {1, -2, 3.5, 0, 1e-3F, 7};
    static const uint16_t b[2] = {0x3f80, 0xc000}; /* bfloat16: 1, -2 */
    struct safetensor list[] = {{.name = (char *)"w", .dtype = DT_F32, .ndim = 2, .shape = {2, 3}},
                                {.name = (char *)"b", .dtype = DT_BF16, .ndim = 1, .shape = {2}},
                                {.name = (char *)"scalar", .dtype = DT_F32, .ndim = 0}};
    struct buf out = {0};
    struct safetensors s;
    struct why why = {0};
    uint64_t bytes;
    float f[6];
    double d[2];
    assert_ok(safetensors_header(list, 3, &out, &bytes));
    assert_int_equal(bytes, 32);
    assert_int_equal(out.len % 8, 0);
    assert_ok(buf_append(&out, a, sizeof(a)));
    assert_ok(buf_append(&out, b, sizeof(b)));
    assert_ok(buf_append(&out, a, 4));
    char *path = path_of("x.safetensors");
    assert_ok(file_replace(path, out.data, out.len, 0644));
    if (safetensors_open(path, &s, &why))
        fail_msg("%s", why.text);
    assert_int_equal(s.n, 3);
    assert_string_equal(s.list[0].name, "b");
    assert_null(safetensors_find(&s, "W"));
    const struct safetensor *w = safetensors_find(&s, "w");
    assert_true(w && w->ndim == 2 && w->shape[0] == 2 && w->shape[1] == 3 && w->dtype == DT_F32);
    assert_ok(safetensors_read(&s, w, 0, 6, DT_F32, f, &why));
    assert_memory_equal(f, a, sizeof(a));
    assert_ok(safetensors_read(&s, w, 4, 2, DT_F64, d, &why));
    assert_true(d[0] == (double)1e-3F && d[1] == 7);
    assert_ok(safetensors_read(&s, safetensors_find(&s, "b"), 0, 2, DT_F32, f, &why));
    assert_true(f[0] == 1 && f[1] == -2);
    assert_ok(safetensors_read(&s, safetensors_find(&s, "scalar"), 0, 1, DT_F32, f, &why));
    assert_err(ERR_INVALID, safetensors_read(&s, w, 5, 2, DT_F32, f, &why));
    safetensors_close(&s);
    buf_fini(&out);
}

TEST(types_that_we_have_not)
{
    static const uint8_t data[4] = {1, 2, 3, 4};
    struct safetensors s;
    struct why why = {0};
    float f[4];
    char *path = file_make("{\"q\":{\"dtype\":\"F8_E4M3\",\"shape\":[4],\"data_offsets\":[0,4]}}", 0, data, 4);
    assert_ok(safetensors_open(path, &s, &why));
    assert_err(ERR_UNSUPPORTED, safetensors_read(&s, &s.list[0], 0, 4, DT_F32, f, &why));
    assert_non_null(strstr(why.text, "F8_E4M3 cannot be converted to float32"));
    safetensors_close(&s);
}

TEST(files_that_are_rejected)
{
#define T(fields) "{\"w\":{" fields "}}"
    static const struct {
        const char *header, *part;
    } cases[] = {
        {"{", "its header, line 1"},
        {"[]", "not an object"},
        {"{\"w\":1}", "tensor \"w\": its description is not an object"},
        {T("\"dtype\":\"F31\",\"shape\":[2],\"data_offsets\":[0,8]"), "unknown type \"F31\""},
        {T("\"dtype\":\"F32\",\"shape\":2,\"data_offsets\":[0,8]"), "its shape"},
        {T("\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,2],\"data_offsets\":[0,8]"), "its shape"},
        {T("\"dtype\":\"F32\",\"shape\":[-2],\"data_offsets\":[0,8]"), "its shape"},
        {T("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0]"), "not two ascending"},
        {T("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[8,0]"), "not two ascending"},
        {T("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[-8,0]"), "not two ascending"},
        {T("\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,9]"), "ends after the end of the file"},
        {T("\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,8]"), "do not match its type and shape"},
        {T("\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]"),
         "do not match its type and shape"},
        {T("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]"), "4 bytes at its end belong to no tensor"},
        {T("\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,8]"), "bytes before it belong to no tensor"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"F32\",\"shape\":[1],"
         "\"data_offsets\":[4,8]}}",
         "tensor \"b\": it overlaps another"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},\"a\":1}", "its header, line 1: duplicate"},
    };
    static const char data[8];
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct safetensors s;
        struct why why = {0};
        err_t err = safetensors_open(file_make(cases[i].header, i % 3, data, sizeof(data)), &s, &why);
        if (err != ERR_CORRUPT || !strstr(why.text, cases[i].part) || !strstr(why.text, "x.safetensors: "))
            fail_msg("case %zu: %s: \"%s\", not \"%s\"", i, err_name(err), why.text, cases[i].part);
    }
}

TEST(wrong_header_lengths)
{
    static const uint64_t lengths[] = {9, 1u << 20, (uint64_t)1 << 40, UINT64_MAX, UINT64_MAX - 7};
    for (size_t i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++) {
        struct safetensors s;
        struct why why = {0};
        uint64_t file[2] = {htole64(lengths[i]), 0};
        assert_ok(file_replace(path_of("y"), file, sizeof(file), 0644));
        assert_err(ERR_CORRUPT, safetensors_open(path_of("y"), &s, &why));
        assert_non_null(strstr(why.text, "its header would have"));
    }
    struct safetensors s;
    struct why why = {0};
    assert_ok(file_replace(path_of("y"), "abc", 3, 0644));
    assert_err(ERR_CORRUPT, safetensors_open(path_of("y"), &s, &why));
    assert_err(ERR_NOTFOUND, safetensors_open(path_of("z"), &s, &why));
}
