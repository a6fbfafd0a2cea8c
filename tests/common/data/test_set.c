/* Reading a prepared set: every sample is compared with the flat list of tokens; damage of all kinds is detected. */
#include "tests/common/data/files.h"

#include <pthread.h>

static uint8_t text[1000];

static char *random_file(void)
{
    uint64_t state = 4242;
    for (size_t i = 0; i < sizeof(text); i++)
        text[i] = (uint8_t)random_next(&state);
    text[sizeof(text) - 1] = '\n'; /* so that nothing is added */
    return file_make("junk", text, sizeof(text));
}

static void check_samples(const struct data_set *set, int64_t seq)
{
    int32_t ids[64], targets[64];
    int64_t n = data_samples(set, seq);
    assert_int_equal(n, ((int64_t)sizeof(text) - 1) / seq);
    for (int64_t i = 0; i < n; i++) {
        assert_ok(data_sample(set, seq, i, ids, targets));
        for (int64_t k = 0; k < seq; k++)
            if (ids[k] != text[i * seq + k] || targets[k] != text[i * seq + k + 1])
                fail_msg("seq %d, sample %d, token %d: %d -> %d, expected %d -> %d", (int)seq, (int)i, (int)k, ids[k],
                         targets[k], text[i * seq + k], text[i * seq + k + 1]);
    }
    assert_err(ERR_INVALID, data_sample(set, seq, n, ids, targets));
    assert_err(ERR_INVALID, data_sample(set, seq, -1, ids, targets));
}

TEST(samples_cross_shards)
{
    static const int64_t cuts[] = {0, 1, 7, 64, 333, 999, 1000, 1001};
    char *path = random_file(), hash[65];
    for (size_t c = 0; c < sizeof(cuts) / sizeof(cuts[0]); c++) {
        char dir[PATH_MAX];
        struct data_set *set = set_make(path, TOKENIZER_BYTES, cuts[c], hash);
        assert_int_equal(data_tokens(set), sizeof(text));
        assert_int_equal(data_vocab(set), 256);
        snprintf(dir, sizeof(dir), "%s/%s", file_path("cache"), hash);
        if (c == 0)
            assert_int_equal(file_count(dir, "tokens-"), 1);
        for (int64_t seq = 1; seq <= 64; seq += seq < 8 ? 1 : 7)
            check_samples(set, seq);
        assert_ok(data_verify(set, NULL));
        data_close(set);
        /* The cut into shards is not part of the name: remove the set, so that the next round creates it again. */
        char command[PATH_MAX + 16];
        snprintf(command, sizeof(command), "rm -r %s", dir);
        assert_int_equal(system(command), 0);
    }
}

TEST(shards_have_the_size_that_was_asked)
{
    char hash[65], dir[PATH_MAX];
    struct stat st;
    struct data_set *set = set_make(random_file(), TOKENIZER_BYTES, 64, hash);
    snprintf(dir, sizeof(dir), "%s/%s", file_path("cache"), hash);
    assert_int_equal(file_count(dir, "tokens-"), 16);
    strcat(dir, "/tokens-00000.bin");
    assert_int_equal(stat(dir, &st), 0);
    assert_int_equal(st.st_size, 128);
    data_close(set);
}

TEST(a_set_shorter_than_a_sample_has_none)
{
    char hash[65];
    struct data_set *set = set_make(file_make_text("short", "abc\n"), TOKENIZER_BYTES, 0, hash);
    assert_int_equal(data_samples(set, 3), 1);
    assert_int_equal(data_samples(set, 4), 0);
    data_close(set);
}

/* Damages one file of a new set and returns the result of data_open. */
static err_t open_damaged(const char *file, void (*damage)(const char *path), struct data_set **ret, struct why *why)
{
    char hash[65], path[PATH_MAX];
    data_close(set_make(file_make_text("words", "a b c\na b\n"), TOKENIZER_WORDS, 4, hash));
    snprintf(path, sizeof(path), "%s/%s/%s", file_path("cache"), hash, file);
    damage(path);
    err_t err = data_open(file_path("cache"), hash, ret, why);
    if (err && !strstr(why->text, file))
        fail_msg("the message does not name %s: %s", file, why->text);
    return err;
}

static void damage_remove(const char *path)
{
    assert_int_equal(unlink(path), 0);
}

static void damage_cut(const char *path)
{
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(truncate(path, st.st_size - 2), 0);
}

static void damage_flip(const char *path)
{
    struct buf b = {0};
    assert_ok(file_read(path, 1 << 20, &b));
    b.data[1] ^= 0x40;
    int fd = open(path, O_WRONLY);
    assert_ok(file_pwrite_all(fd, b.data, b.len, 0));
    close(fd);
    buf_fini(&b);
}

TEST(damaged_files_are_named)
{
    static const struct {
        const char *file;
        void (*damage)(const char *path);
    } cases[] = {
        {"tokens-00000.bin", damage_remove},
        {"tokens-00001.bin", damage_cut},
        {"vocab", damage_remove},
        {"vocab", damage_cut},
        {"vocab", damage_flip},
        {"index.json", damage_cut},
        {"index.json", damage_flip},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct data_set *set;
        struct why why = {0};
        assert_err(ERR_CORRUPT, open_damaged(cases[i].file, cases[i].damage, &set, &why));
    }
}

TEST(a_token_outside_of_the_vocabulary_is_refused)
{
    struct data_set *set;
    struct why why = {0};
    int32_t ids[2], targets[2];
    assert_ok(open_damaged("tokens-00001.bin", damage_flip, &set, &why));
    assert_ok(data_sample(set, 2, 0, ids, targets));
    assert_err(ERR_CORRUPT, data_sample(set, 2, 2, ids, targets));
    assert_err(ERR_CORRUPT, data_verify(set, &why));
    assert_non_null(strstr(why.text, "tokens-00001.bin"));
    data_close(set);
}

TEST(names_that_are_none)
{
    struct data_set *set;
    struct why why = {0};
    assert_err(ERR_INVALID, data_open(test_tmpdir(), "../../etc", &set, &why));
    assert_err(ERR_INVALID, data_open(test_tmpdir(), "", &set, &why));
    assert_err(ERR_NOTFOUND, data_open(test_tmpdir(),
                                       "0000000000000000000000000000000000000000000000000000000000000000", &set, &why));
    assert_non_null(strstr(why.text, "dtctl data prepare"));
}

static void *read_all(void *arg)
{
    check_samples(arg, 5);
    return NULL;
}

TEST(threads_read_together)
{
    char hash[65];
    pthread_t threads[4];
    struct data_set *set = set_make(random_file(), TOKENIZER_BYTES, 64, hash);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, read_all, set), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    data_close(set);
}
