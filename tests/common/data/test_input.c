/* Compressed files are read as what they contain. The files are made by the programs gzip and zstd, where they are
 * installed, and by hand. */
#include "tests/common/data/expected.h"

#define LINES 20000

static char *plain_file(void)
{
    struct buf text = {0};
    for (int i = 0; i < LINES; i++)
        assert_ok(buf_printf(&text, "{\"text\": \"line %d of %d\"}\n", i, i * 7919 % 10007));
    char *path = file_make("plain.jsonl", text.data, text.len);
    buf_fini(&text);
    return path;
}

/* Runs a command in the test's folder. False: the program is not installed. */
static bool run(const char *command)
{
    char line[PATH_MAX + 600], tool[16];
    sscanf(command, "%15s", tool);
    snprintf(line, sizeof(line), "command -v %s >/dev/null", tool);
    if (system(line))
        return false;
    snprintf(line, sizeof(line), "cd '%s' && %s", test_tmpdir(), command);
    assert_int_equal(system(line), 0);
    return true;
}

static const char *const commands[] = {
    "gzip -c plain.jsonl > packed", "gzip -1 -c plain.jsonl > packed && head -c 300 /dev/zero >> packed",
    /* members and frames that follow each other */
    "gzip -c plain.jsonl > packed && : | gzip -c > empty && cat empty >> packed",
    "split -n 3 plain.jsonl part && gzip -c partaa > packed && gzip -c partab >> packed && gzip -c partac >> packed",
    "zstd -q -c plain.jsonl > packed", "zstd -q -19 --long=27 -c plain.jsonl > packed",
    "zstd -q -c partaa > packed && zstd -q -c partab >> packed && zstd -q -c partac >> packed",
    /* a skippable frame of three bytes before and between */
    "zstd -q -c partaa > a && zstd -q -c partab > b && zstd -q -c partac > c && "
    "printf 'P*M\\030\\003\\000\\000\\000abc' > skip && cat skip a skip b c > packed"};

TEST(compressed_documents)
{
    char *plain = plain_file(), *packed = file_path("packed");
    int32_t *expected = malloc((size_t)1 << 22), *found = malloc((size_t)1 << 22);
    struct data_set *set = prepare_open((struct data_prepare){0}, 1, &plain);
    int64_t n = data_tokens(set);
    assert_ok(data_copy(set, 0, n, expected));
    assert_int_equal(data_documents(set), LINES);
    data_close(set);
    assert_true(run("split -n 3 plain.jsonl part"));
    int tried = 0;
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        if (!run(commands[i]))
            continue;
        tried++;
        set = prepare_open((struct data_prepare){0}, 1, &packed);
        assert_int_equal(data_tokens(set), n);
        assert_int_equal(data_documents(set), LINES);
        assert_ok(data_copy(set, 0, n, found));
        assert_memory_equal(found, expected, (size_t)n * sizeof(*found));
        data_close(set);
    }
    assert_true(tried >= 4);
    free(expected);
    free(found);
}

TEST(compressed_text)
{
    char *files[] = {file_make_text("a", "one"), file_path("a.gz")};
    assert_true(run("gzip -c a > a.gz"));
    struct data_set *set = prepare_open((struct data_prepare){0}, 2, files);
    int32_t ids[8];
    assert_int_equal(data_tokens(set), 8);
    assert_ok(data_copy(set, 0, 8, ids));
    for (int i = 0; i < 8; i++)
        assert_int_equal(ids[i], "one\none\n"[i]);
    assert_int_equal(data_documents(set), 0);
    data_close(set);
    /* As they are, the bytes are another set. */
    set = prepare_open((struct data_prepare){.raw = true}, 1, files + 1);
    assert_true(data_tokens(set) > 20);
    data_close(set);
}

static void check_refused(const char *command, err_t expected, const char *part)
{
    char *file = file_path("packed"), hash[65];
    struct why why = {0};
    if (!run(command))
        return;
    err_t err = prepare((struct data_prepare){0}, 1, &file, hash, &why);
    if (err != expected || !strstr(why.text, part) || !strstr(why.text, "packed"))
        fail_msg("%s: %s: \"%s\"", command, err_name(err), why.text);
}

TEST(damaged_files_are_refused)
{
    plain_file();
    check_refused("gzip -c plain.jsonl | head -c 20000 > packed", ERR_CORRUPT, "the file ends within its gzip data");
    check_refused("gzip -c plain.jsonl > packed && printf x >> packed", ERR_CORRUPT,
                  "bytes that are not gzip's follow");
    check_refused("gzip -c plain.jsonl > packed && printf abc | dd of=packed bs=1 seek=9000 conv=notrunc status=none",
                  ERR_CORRUPT, "the gzip data is damaged");
    check_refused("zstd -q -c plain.jsonl | head -c 20000 > packed", ERR_CORRUPT, "the file ends within its zstd data");
    check_refused("zstd -q -c plain.jsonl > packed && printf abcd >> packed", ERR_CORRUPT, "the zstd data is damaged");
    check_refused(
        "zstd -q -c plain.jsonl > packed && printf abc | dd of=packed bs=1 seek=9000 conv=notrunc status=none",
        ERR_CORRUPT, "zstd data is damaged");
    check_refused("gzip -c plain.jsonl | gzip -c > packed", ERR_UNSUPPORTED, "it is compressed twice");
}

/* The header of a frame asks for a window of 2 GiB: one byte, so no file of that size is needed. */
TEST(the_window_is_bounded)
{
    static const uint8_t frame[] = {0x28, 0xb5, 0x2f, 0xfd, 0x00, 0xa8, 0x01, 0x00, 0x00};
    char *file = file_make("packed", frame, sizeof(frame)), hash[65];
    struct why why = {0};
    assert_err(ERR_UNSUPPORTED, prepare((struct data_prepare){0}, 1, &file, hash, &why));
    assert_non_null(strstr(why.text, "a window of more than 128 MiB"));
}

/* A JSON file, a text with a name of 200 characters, an empty file, a folder, a link, and what is not the user's. */
static const char make_tree[] =
    "rm -rf t && mkdir -p t/d && printf '{\"text\": \"one\"}\\n{\"text\": \"two\"}\\n' > t/a.jsonl && "
    "printf 'a text\\n' > t/d/$(printf '%0200d' 7).txt && : > t/empty && ln -s a.jsonl t/link && "
    "printf x > t/._a && printf y > t/__key__ && printf z > t/z";

TEST(archives)
{
    static const char *const commands_of_tar[] = {
        "tar -C t --sort=name --format=pax -cf packed .",
        "tar -C t --sort=name --format=gnu -cf packed .",
        "tar -C t --sort=name --format=ustar --transform 's/0000*//' -cf packed .",
        "tar -C t --sort=name --format=gnu -czf packed .",
        "tar -C t --sort=name --format=pax -cf - . | zstd -q > packed",
    };
    static struct expected e;
    char *packed = file_path("packed");
    e = (struct expected){0};
    assert_true(run(make_tree));
    expect_text(&e, "one");
    expect_text(&e, "two");
    expect_text(&e, "a text\n");
    expect_text(&e, "z");
    for (size_t i = 0; i < sizeof(commands_of_tar) / sizeof(commands_of_tar[0]); i++) {
        if (i == 4 && !run("zstd -q --version > /dev/null"))
            continue;
        assert_true(run(commands_of_tar[i]));
        struct data_set *set = prepare_open((struct data_prepare){0}, 1, &packed);
        check_set(set, &e);
        data_close(set);
    }
}

TEST(damaged_archives)
{
    assert_true(run(make_tree));
    check_refused("tar -C t --sort=name -cf - a.jsonl z | head -c 520 > packed", ERR_CORRUPT, "ends within a member");
    check_refused("tar -C t --sort=name -cf - a.jsonl z | head -c 1100 > packed", ERR_CORRUPT, "ends within a header");
    check_refused("tar -C t --sort=name -cf packed a.jsonl z && printf 9 | dd of=packed bs=1 seek=1150 conv=notrunc "
                  "status=none",
                  ERR_CORRUPT, "a header has a wrong checksum");
    check_refused("tar -C t --sort=name -cf packed . && gzip -c packed > t/y.gz && tar -C t -cf packed y.gz",
                  ERR_INVALID, "packed:/y.gz");
    check_refused("printf '{\"text\": 3}\\n' > t/b.jsonl && tar -C t -cf packed b.jsonl", ERR_INVALID,
                  "packed:/b.jsonl: line 1");
}
