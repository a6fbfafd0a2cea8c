/* The files `recovery` and `superseded`: printed and read again, and what is refused. */
#include "daemon/control/cluster/lineage_file.h"
#include "tests/lib/test.h"

static err_t parse(const char *text, struct lineage_file *ret)
{
    struct why why;
    return lineage_file_parse("recovery", text, strlen(text), ret, &why);
}

TEST(a_file_comes_back)
{
    struct lineage_file f = {
        .generation = 3, .at_ms = 1795820097000, .uid = 1000, .by = "n1", .gone = {2, 17}, .n_gone = 2};
    struct lineage_file back;
    char text[LINEAGE_FILE_MAX];
    size_t len = lineage_file_print(&f, text);
    assert_string_equal("generation=3\nat_ms=1795820097000\nuid=1000\nby=n1\ngone=2 17\nsum=61604f24\n", text);
    assert_int_equal(strlen(text), len);
    assert_ok(parse(text, &back));
    assert_memory_equal(&f, &back, sizeof(f));
}

TEST(the_largest_file_comes_back)
{
    struct lineage_file f = {.generation = INT64_MAX, .at_ms = INT64_MAX, .uid = UINT32_MAX, .n_gone = LOG_MAX_MEMBERS};
    struct lineage_file back;
    char text[LINEAGE_FILE_MAX];
    memset(f.by, 'n', NODE_NAME_MAX);
    for (int i = 0; i < f.n_gone; i++)
        f.gone[i] = (uint64_t)INT64_MAX - (uint64_t)i;
    lineage_file_print(&f, text);
    assert_ok(parse(text, &back));
    assert_memory_equal(&f, &back, sizeof(f));
}

TEST(all_others_may_be_gone)
{
    struct lineage_file f;
    assert_ok(parse("generation=0\nat_ms=1\nuid=0\nby=\ngone=all\n", &f));
    assert_true(f.all_gone);
    assert_int_equal(0, f.n_gone);
    assert_int_equal(0, f.generation);
    assert_string_equal("", f.by);
}

TEST(other_texts_are_refused)
{
    static const char *const texts[] = {
        "",
        "generation=1\nat_ms=1\nuid=0\nby=a\n",                      /* a line is missing */
        "generation=1\nat_ms=1\nuid=0\nby=a\ngone=\nnew=1\n",        /* of a newer version */
        "generation=1\ngeneration=1\nat_ms=1\nuid=0\nby=a\ngone=\n", /* twice */
        "generation=-1\nat_ms=1\nuid=0\nby=a\ngone=\n",              /* no number */
        "generation=1\nat_ms=x\nuid=0\nby=a\ngone=\n",
        "generation=1\nat_ms=1\nuid=4294967296\nby=a\ngone=\n", /* no uid */
        "generation=1\nat_ms=1\nuid=0\nby=a b\ngone=\n",        /* no name */
        "generation=1\nat_ms=1\nuid=0\nby=a\ngone=1  2\n",
        "generation=1\nat_ms=1\nuid=0\nby=a\ngone=99999999999999999999\n",
    };
    struct lineage_file f;
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        if (parse(texts[i], &f) != ERR_CORRUPT)
            fail_msg("accepted: %s", texts[i]);
}

/* Any change of one bit, and any loss of the end that is more than the checksum. */
TEST(damage_is_refused)
{
    const struct lineage_file f = {.generation = 3, .at_ms = 7, .uid = 1000, .by = "n1", .gone = {2, 17}, .n_gone = 2};
    struct lineage_file back;
    struct why why;
    char text[LINEAGE_FILE_MAX];
    size_t len = lineage_file_print(&f, text);
    for (size_t bit = 0; bit < 8 * len; bit++) {
        text[bit / 8] ^= (char)(1 << bit % 8);
        if (lineage_file_parse("recovery", text, len, &back, &why) != ERR_CORRUPT)
            fail_msg("accepted with bit %zu changed: %s", bit, text);
        text[bit / 8] ^= (char)(1 << bit % 8);
    }
    for (size_t left = 0; left < len; left++)
        if (lineage_file_parse("recovery", text, left, &back, &why) == OK)
            assert_memory_equal(&f, &back, sizeof(f)); /* the whole line of the checksum is missing */
}

TEST(a_file_on_the_disk)
{
    struct lineage_file f = {.generation = 2, .by = "n1"}, back;
    struct why why;
    char path[300];
    snprintf(path, sizeof(path), "%s/recovery", test_tmpdir());
    assert_err(ERR_NOTFOUND, lineage_file_read(path, &back, &why));
    assert_ok(lineage_file_write(path, &f, &why));
    assert_ok(lineage_file_read(path, &back, &why));
    assert_memory_equal(&f, &back, sizeof(f));
}
