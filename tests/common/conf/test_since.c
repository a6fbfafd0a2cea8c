/* Keys of newer versions: a spec that does not use them is read by dtds that do not have them. */
#include "common/conf/schema.h"
#include "tests/lib/test.h"

#include <stddef.h>
#include <string.h>

struct spec {
    int64_t old, count;
    char *text;
};

#define OLD                                                                                                         \
    {                                                                                                               \
        .key = "a.old", .type = SCHEMA_INT, .offset = offsetof(struct spec, old), .max = 9, .def = "1", .help = "." \
    }
#define TEXT_OF(name)                                                                                       \
    {                                                                                                       \
        .key = name, .type = SCHEMA_TEXT, .offset = offsetof(struct spec, text), .def = "\"\"", .since = 3, \
        .help = "."                                                                                         \
    }

static const struct schema_section sections[] = {{"a", "."}};
static const struct schema_row old_rows[] = {OLD};
static const struct schema_row new_rows[] = {OLD,
                                             {.key = "a.count",
                                              .type = SCHEMA_INT,
                                              .offset = offsetof(struct spec, count),
                                              .max = 9,
                                              .def = "4",
                                              .since = 2,
                                              .help = "."},
                                             TEXT_OF("a.text")};
static const struct schema older = {
    .sections = sections, .n_sections = 1, .rows = old_rows, .n_rows = 1, .size = sizeof(struct spec)};
static const struct schema newer = {
    .sections = sections, .n_sections = 1, .rows = new_rows, .n_rows = 3, .size = sizeof(struct spec)};

static err_t read_as(const struct schema *schema, const char *text, size_t len, struct spec *ret)
{
    struct schema_reader r;
    struct why why = {""};
    assert_ok(schema_start(&r, schema, "spec", ret, &why));
    return schema_read(&r, text, len, &why);
}

static void check(const char *text, const char *printed, uint32_t version, const char *key)
{
    struct spec spec, back;
    struct buf out = {0};
    const char *found;
    uint32_t since;
    assert_ok(read_as(&newer, text, strlen(text), &spec));
    assert_ok(schema_since(&newer, &spec, &since, &found));
    assert_int_equal(since, version);
    if (key)
        assert_string_equal(found, key);
    else
        assert_null(found);
    assert_ok(schema_print(&newer, &spec, &out));
    assert_int_equal(out.len, strlen(printed));
    assert_memory_equal(out.data, printed, out.len);
    err_t err = read_as(&older, (const char *)out.data, out.len, &back);
    assert_int_equal(err, version == 1 ? OK : ERR_INVALID);
    schema_fini(&older, &back);
    schema_fini(&newer, &spec);
    buf_fini(&out);
}

TEST(unused_keys_are_not_printed)
{
    check("a: {old: 2}\n", "a:\n  old: 2\n", 1, NULL);
    check("a: {old: 2, count: 4, text: ''}\n", "a:\n  old: 2\n", 1, NULL);
}

TEST(used_keys_need_their_version)
{
    check("a: {count: 5}\n", "a:\n  old: 1\n  count: 5\n", 2, "a.count");
    check("a: {count: 5, text: x}\n", "a:\n  old: 1\n  count: 5\n  text: \"x\"\n", 3, "a.text");
    check("a: {text: x}\n", "a:\n  old: 1\n  text: \"x\"\n", 3, "a.text");
}
