/* Preparing sets: the tokens of all kinds of text, the names of sets, errors, and concurrent preparation. */
#include "common/base/clock.h"
#include "common/data/vocab.h"
#include "tests/common/data/files.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>

static err_t prepare(struct data_prepare p, int n, char *const *files, char ret_hash[65], struct why *why)
{
    p.files = files;
    p.n_files = n;
    if (!p.cache)
        p.cache = file_path("cache");
    return data_prepare(&p, ret_hash, why);
}

static struct data_set *prepare_open(struct data_prepare p, int n, char *const *files, char ret_hash[65])
{
    struct data_set *set = NULL;
    struct why why = {0};
    if (prepare(p, n, files, ret_hash, &why) || data_open(file_path("cache"), ret_hash, &set, &why))
        fail_msg("%s", why.text);
    return set;
}

static void check_tokens(const struct data_set *set, const int32_t *ids, int64_t n)
{
    assert_int_equal(data_tokens(set), n);
    for (int64_t i = 0; i + 1 < n; i++) {
        int32_t id, target;
        assert_ok(data_sample(set, 1, i, &id, &target));
        if (id != ids[i] || target != ids[i + 1])
            fail_msg("token %d: %d then %d, expected %d then %d", (int)i, id, target, ids[i], ids[i + 1]);
    }
}
#define CHECK_TOKENS(set, ...) \
    check_tokens(set, (const int32_t[]){__VA_ARGS__}, sizeof((const int32_t[]){__VA_ARGS__}) / sizeof(int32_t))

TEST(files_do_not_run_into_each_other)
{
    char *files[] = {file_make_text("1", "ab"), file_make_text("2", "c\n"), file_make_text("3", ""),
                     file_make_text("4", "d")};
    char hash[65];
    struct data_set *set = prepare_open((struct data_prepare){0}, 4, files, hash);
    CHECK_TOKENS(set, 'a', 'b', '\n', 'c', '\n', 'd', '\n');
    data_close(set);
    set = prepare_open((struct data_prepare){.tokenizer = TOKENIZER_WORDS}, 4, files, hash);
    /* <eos> 3, ab 1, c 1, d 1, <unk> 0 */
    CHECK_TOKENS(set, 1, 0, 2, 0, 3, 0);
    data_close(set);
}

TEST(words_make_a_vocabulary)
{
    char *files[] = {file_make_text("1", "the cat sat on the mat\n\nThe end")};
    char hash[65];
    size_t len;
    struct data_set *set = prepare_open((struct data_prepare){.tokenizer = TOKENIZER_WORDS}, 1, files, hash);
    const char *vocab = tokenizer_vocab_file(data_tokenizer(set), &len);
    const char *expected = "<eos>\nthe\nThe\ncat\nend\nmat\non\nsat\n<unk>\n";
    assert_int_equal(len, strlen(expected));
    assert_memory_equal(vocab, expected, len);
    assert_int_equal(data_vocab(set), 9);
    CHECK_TOKENS(set, 1, 3, 7, 6, 1, 5, 0, 0, 2, 4, 0);
    data_close(set);
}

TEST(validation_takes_the_training_vocabulary)
{
    char *train[] = {file_make_text("t", "a a b\n")}, *valid[] = {file_make_text("v", "b X a\n")};
    char hash[65], valid_hash[65], other[65];
    struct why why = {0};
    data_close(prepare_open((struct data_prepare){.tokenizer = TOKENIZER_WORDS}, 1, train, hash));
    struct data_set *set =
        prepare_open((struct data_prepare){.tokenizer = TOKENIZER_WORDS, .vocab_from = hash}, 1, valid, valid_hash);
    CHECK_TOKENS(set, 2, 3, 0, 1); /* a, <eos>, b, <unk> */
    data_close(set);
    data_close(prepare_open((struct data_prepare){.tokenizer = TOKENIZER_WORDS}, 1, valid, other));
    assert_string_not_equal(other, valid_hash);
    struct data_prepare folded = {.tokenizer = TOKENIZER_WORDS, .vocab_from = hash, .lowercase = true};
    assert_err(ERR_INVALID, prepare(folded, 1, valid, other, &why));
    data_close(prepare_open((struct data_prepare){0}, 1, train, hash));
    assert_err(ERR_INVALID,
               prepare((struct data_prepare){.tokenizer = TOKENIZER_WORDS, .vocab_from = hash}, 1, valid, other, &why));
    assert_non_null(strstr(why.text, "no vocabulary"));
}

/* sorted(set(text.lower().split())) of the training text; other words of the validation text are dropped. */
TEST(split_as_python_does)
{
    char *train[] = {file_make_text("t", " = Title = \n b \xc3\x84 a\x1f"
                                         "B\n")},
         *valid[] = {file_make_text("v", "A X = b")};
    char hash[65], valid_hash[65];
    size_t len;
    struct data_prepare p = {.tokenizer = TOKENIZER_SPLIT, .lowercase = true};
    struct data_set *set = prepare_open(p, 1, train, hash);
    const char *vocab = tokenizer_vocab_file(data_tokenizer(set), &len), *expected = "=\na\nb\ntitle\n\xc3\xa4\n";
    assert_int_equal(len, strlen(expected));
    assert_memory_equal(vocab, expected, len);
    CHECK_TOKENS(set, 0, 3, 0, 2, 4, 1, 2);
    data_close(set);
    p.vocab_from = hash;
    set = prepare_open(p, 1, valid, valid_hash);
    CHECK_TOKENS(set, 1, 0, 2);
    data_close(set);
    p.lowercase = false;
    assert_err(ERR_INVALID, prepare(p, 1, valid, valid_hash, NULL));
}

/* Files that the system's own tools made of a text, and the formats of token ids that nanoGPT and llm.c read. */
TEST(files_that_are_no_text_are_refused)
{
    static const struct {
        const char *command, *part;
    } cases[] = {
        {"xz -c text > none", "none: it is compressed by xz; decompress it with xz -d"},
        {"bzip2 -c text > none", "it is compressed by bzip2"},
        {"iconv -f UTF-8 -t UTF-16 text > none", "it is UTF-16; convert it with iconv"},
        {"iconv -f UTF-8 -t UTF-16LE text > none", "it has too many NUL bytes for a text"},
        {"iconv -f UTF-8 -t UTF-32LE text > none", "it has too many NUL bytes for a text"},
        {"python3 -c 'import struct, sys; sys.stdout.buffer.write(struct.pack(\"<4000H\", *[i * 7919 % 50257 for i in "
         "range(3000)] + [13] * 1000))' > none",
         "it has too many NUL bytes for a text"},
        {"cp /bin/sh none", "it is a program"},
    };
    struct buf text = {0};
    char hash[65], command[PATH_MAX + 400], tool[16];
    int tried = 0;
    for (int i = 0; i < 400; i++)
        assert_ok(buf_printf(&text, "Line %d of an ordinary text.\n", i));
    assert_ok(buf_append(&text, "", 1));
    file_make_text("text", (const char *)text.data);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char *file = file_path("none");
        struct why why = {0};
        sscanf(cases[i].command, "%15s", tool);
        snprintf(command, sizeof(command), "command -v %s >/dev/null && cd '%s' && %s", tool, test_tmpdir(),
                 cases[i].command);
        if (system(command))
            continue; /* the tool is not installed */
        tried++;
        err_t err = prepare((struct data_prepare){0}, 1, &file, hash, &why);
        if (err != ERR_INVALID || !strstr(why.text, cases[i].part) || !strstr(why.text, "data.raw"))
            fail_msg("%s: %s: \"%s\"", cases[i].command, err_name(err), why.text);
        assert_ok(prepare((struct data_prepare){.raw = true}, 1, &file, hash, &why));
    }
    assert_true(tried >= 3);
    buf_fini(&text);
}

/* Bytes that are unusual in a text do not make it something else. */
TEST(unusual_texts_are_taken)
{
    static const char nuls[] = "a\0b\0\0c\n",
                      latin[] = "d\xe9j\xe0 vu, \xfc"
                                "ber\n",
                      bom[] = "\xef\xbb\xbfText\n";
    char hash[65], *files[] = {file_make("nuls", nuls, sizeof(nuls) - 1), file_make("latin", latin, sizeof(latin) - 1),
                               file_make("bom", bom, sizeof(bom) - 1)};
    struct why why = {0};
    assert_ok(prepare((struct data_prepare){0}, 3, files, hash, &why));
}

TEST(the_name_is_the_content)
{
    char *a[] = {file_make_text("a", "one\n"), file_make_text("b", "two\n")};
    char *same[] = {file_make_text("c", "one\n"), file_make_text("d", "two\n")}, *swapped[] = {a[1], a[0]};
    char *other[] = {a[0], file_make_text("e", "Two\n")};
    char first[65], second[65];
    struct why why = {0};
    assert_ok(prepare((struct data_prepare){0}, 2, a, first, &why));
    assert_ok(prepare((struct data_prepare){0}, 2, same, second, &why));
    assert_string_equal(first, second);
    assert_ok(prepare((struct data_prepare){.shard_tokens = 3}, 2, a, second, &why));
    assert_string_equal(first, second);
    assert_int_equal(file_count(file_path("cache"), ""), 1);
    assert_ok(prepare((struct data_prepare){0}, 2, swapped, second, &why));
    assert_string_not_equal(first, second);
    assert_ok(prepare((struct data_prepare){0}, 2, other, second, &why));
    assert_string_not_equal(first, second);
    assert_ok(prepare((struct data_prepare){.tokenizer = TOKENIZER_WORDS}, 2, a, second, &why));
    assert_string_not_equal(first, second);
    assert_ok(prepare((struct data_prepare){.tokenizer = TOKENIZER_WORDS, .lowercase = true}, 2, a, first, &why));
    assert_string_not_equal(first, second);
    assert_int_equal(file_count(file_path("cache"), ""), 5);
}

/* The name never changes: jobs in the log refer to their data by it. */
TEST(the_name_is_pinned)
{
    char *files[] = {file_make_text("a", "hello\n")};
    char hash[65];
    struct why why = {0};
    assert_ok(prepare((struct data_prepare){0}, 1, files, hash, &why));
    assert_string_equal(hash, "803165e31d391af3e1acfb57d8cde0281428ecc28a5d511bd474946843f70423");
}

/* Lines of words of all kinds, compared with a slow implementation that splits in memory and looks up line by line. */
static int32_t look_up(const char *vocab, size_t len, const char *word, size_t n)
{
    int32_t id = 0;
    for (const char *line = vocab; line < vocab + len; id++) {
        const char *stop = memchr(line, '\n', (size_t)(vocab + len - line));
        if ((size_t)(stop - line) == n && memcmp(line, word, n) == 0)
            return id;
        line = stop + 1;
    }
    return -1;
}

TEST(random_words_against_the_slow_way)
{
    uint64_t state = 99;
    struct buf text = {0}, ids = {0};
    char hash[65];
    for (int i = 0; i < 4000; i++)
        assert_ok(buf_printf(&text, "%c%d%s", (char)(0x80 + random_next(&state) % 4), (int)(random_next(&state) % 90),
                             i % 7 == 6 ? "\n" : " "));
    char *files[] = {file_make("f", text.data, text.len)};
    struct data_set *set = prepare_open((struct data_prepare){.tokenizer = TOKENIZER_WORDS}, 1, files, hash);
    size_t len, start = 0;
    const char *vocab = tokenizer_vocab_file(data_tokenizer(set), &len);
    assert_ok(buf_append(&text, "\n", 1));
    for (size_t i = 0; i < text.len; i++) {
        if (text.data[i] != ' ' && text.data[i] != '\n')
            continue;
        int32_t id = look_up(vocab, len, (char *)text.data + start, i - start);
        if (i > start)
            assert_ok(buf_append(&ids, &id, sizeof(id)));
        id = look_up(vocab, len, "<eos>", 5);
        if (text.data[i] == '\n')
            assert_ok(buf_append(&ids, &id, sizeof(id)));
        start = i + 1;
    }
    check_tokens(set, (int32_t *)(void *)ids.data, (int64_t)(ids.len / sizeof(int32_t)));
    data_close(set);
    buf_fini(&text);
    buf_fini(&ids);
}

TEST(binary_junk_is_text_too)
{
    static uint8_t junk[3 << 20];
    uint64_t state = 5;
    char hash[65];
    for (size_t i = 0; i < sizeof(junk); i++)
        junk[i] = (uint8_t)random_next(&state);
    junk[sizeof(junk) - 1] = '\n';
    memset(junk + 1000000, 'x', 100000); /* one long word across the border of two chunks */
    char *files[] = {file_make("junk", junk, sizeof(junk))};
    struct data_set *set = prepare_open((struct data_prepare){.shard_tokens = 1000003}, 1, files, hash);
    static int32_t ids[1 << 20], targets[1 << 20];
    for (int64_t i = 0; i < 2; i++) {
        assert_ok(data_sample(set, 1 << 20, i, ids, targets));
        for (int k = 0; k < 1 << 20; k++)
            if (ids[k] != junk[(i << 20) + k] || targets[k] != junk[(i << 20) + k + 1])
                fail_msg("byte %d", (int)(i << 20) + k);
    }
    data_close(set);
    set = prepare_open((struct data_prepare){.tokenizer = TOKENIZER_WORDS}, 1, files, hash);
    assert_true(data_tokens(set) > 10000);
    assert_ok(data_verify(set, NULL));
    data_close(set);
}

TEST(large_vocabularies_take_four_bytes)
{
    struct buf text = {0};
    char hash[65];
    int32_t id, target;
    for (int i = 0; i < 70000; i++)
        assert_ok(buf_printf(&text, "%06d\n", i));
    char *files[] = {file_make("f", text.data, text.len)};
    struct data_set *set = prepare_open((struct data_prepare){.tokenizer = TOKENIZER_WORDS}, 1, files, hash);
    assert_int_equal(data_vocab(set), 70002);
    assert_ok(data_sample(set, 1, 2 * 69998, &id, &target));
    assert_int_equal(id, 69999); /* <eos> is the most frequent word, then the words in order */
    assert_int_equal(target, 0);
    data_close(set);
    buf_fini(&text);
}

TEST(missing_and_empty_files)
{
    char *missing[] = {file_make_text("a", "x"), file_path("gone.txt")};
    char *empty[] = {file_make_text("e1", ""), file_make_text("e2", "")}, *folder[] = {(char *)test_tmpdir()};
    char hash[65] = "";
    struct why why = {0};
    assert_err(ERR_NOTFOUND, prepare((struct data_prepare){0}, 2, missing, hash, &why));
    assert_non_null(strstr(why.text, "gone.txt"));
    assert_err(ERR_INVALID, prepare((struct data_prepare){0}, 2, empty, hash, &why));
    assert_non_null(strstr(why.text, "the files are empty"));
    assert_err(ERR_INVALID, prepare((struct data_prepare){0}, 0, empty, hash, &why));
    assert_err(ERR_INVALID, prepare((struct data_prepare){.lowercase = true}, 1, missing, hash, &why));
    assert_err(ERR_INVALID, prepare((struct data_prepare){0}, 1, folder, hash, &why));
    assert_int_equal(mkfifo(file_path("pipe"), 0600), 0);
    char *pipes[] = {file_path("pipe")};
    assert_err(ERR_INVALID, prepare((struct data_prepare){0}, 1, pipes, hash, &why));
    assert_string_equal(hash, "");
    assert_int_equal(file_count(file_path("cache"), ""), 0);
}

TEST(a_damaged_set_is_made_again)
{
    char *files[] = {file_make_text("a", "some text\n")};
    char hash[65], path[PATH_MAX];
    data_close(prepare_open((struct data_prepare){0}, 1, files, hash));
    snprintf(path, sizeof(path), "%s/%s/tokens-00000.bin", file_path("cache"), hash);
    assert_int_equal(truncate(path, 3), 0);
    struct data_set *set = prepare_open((struct data_prepare){0}, 1, files, hash);
    assert_int_equal(data_tokens(set), 10);
    data_close(set);
    assert_int_equal(file_count(file_path("cache"), ""), 1);
}

TEST(preparers_at_once_agree)
{
    static char text[1 << 20];
    enum { PREPARERS = 4 };
    memset(text, 'a', sizeof(text));
    char *files[] = {file_make("f", text, sizeof(text))};
    int go[2];
    pid_t pids[PREPARERS];
    char hash[65];
    file_path("cache");
    assert_int_equal(pipe(go), 0);
    for (int i = 0; i < PREPARERS; i++) {
        pids[i] = fork();
        assert_true(pids[i] >= 0);
        if (!pids[i]) {
            char byte;
            close(go[1]);
            if (read(go[0], &byte, 1) != 0) /* until the parent lets go */
                _exit(9);
            _exit(prepare((struct data_prepare){.shard_tokens = 10000}, 1, files, hash, NULL) ? 1 : 0);
        }
    }
    close(go[0]);
    close(go[1]);
    for (int i = 0; i < PREPARERS; i++) {
        int status;
        assert_int_equal(waitpid(pids[i], &status, 0), pids[i]);
        assert_int_equal(status, 0);
    }
    struct data_set *set = prepare_open((struct data_prepare){0}, 1, files, hash);
    assert_ok(data_verify(set, NULL));
    data_close(set);
    assert_int_equal(file_count(file_path("cache"), ""), 1);
}

static void grow_file(int64_t done, int64_t total, void *arg)
{
    if (done > 1000000) /* the first reading is over */
        file_make_text(arg, "changed\n");
}

TEST(a_file_that_changes_meanwhile_is_caught)
{
    static char text[1000000];
    memset(text, 'a', sizeof(text));
    char *files[] = {file_make("f", text, sizeof(text)), file_make("g", text, 10)};
    char hash[65];
    struct why why = {0};
    struct data_prepare p = {.progress = grow_file, .arg = "g"};
    assert_err(ERR_AGAIN, prepare(p, 2, files, hash, &why));
    assert_non_null(strstr(why.text, "changed"));
    assert_int_equal(file_count(file_path("cache"), ""), 0);
}

static int64_t last_done, last_total;

static void watch(int64_t done, int64_t total, void *arg)
{
    assert_true(done >= last_done && done <= total);
    assert_true(!last_total || total == last_total);
    last_done = done;
    last_total = total;
    ++*(int *)arg;
}

TEST(progress_arrives)
{
    static char text[3000000];
    memset(text, 'a', sizeof(text));
    char *files[] = {file_make("f", text, sizeof(text))};
    char hash[65];
    int calls = 0;
    struct why why = {0};
    struct data_prepare p = {.tokenizer = TOKENIZER_WORDS, .progress = watch, .arg = &calls};
    assert_ok(prepare(p, 1, files, hash, &why));
    assert_true(calls >= 9);
    assert_int_equal(last_total, 9000000);
    assert_int_equal(last_done, last_total);
    last_done = last_total = 0;
    assert_ok(prepare(p, 1, files, hash, &why));
    assert_int_equal(last_done, last_total);
}

TEST(a_write_that_fails_leaves_nothing)
{
    static char text[300000];
    memset(text, 'a', sizeof(text));
    char *files[] = {file_make("f", text, sizeof(text))};
    char hash[65];
    struct why why = {0};
    struct rlimit limit = {.rlim_cur = 100000, .rlim_max = RLIM_INFINITY};
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
    err_t err = prepare((struct data_prepare){0}, 1, files, hash, &why);
    limit.rlim_cur = RLIM_INFINITY;
    setrlimit(RLIMIT_FSIZE, &limit);
    assert_err(ERR_LIMIT, err);
    assert_non_null(strstr(why.text, "tokens-00000.bin"));
    assert_int_equal(file_count(file_path("cache"), ""), 0);
    assert_ok(prepare((struct data_prepare){0}, 1, files, hash, &why));
}

/* A small disk at the cache's place, in a mount namespace of this process. */
static void mount_small_cache(const char *options)
{
    if (unshare(CLONE_NEWNS) || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL))
        TEST_SKIP("needs a mount namespace of its own (root): %s", strerror(errno));
    mkdir(file_path("cache"), 0755);
    if (mount("none", file_path("cache"), "tmpfs", 0, options))
        TEST_SKIP("no tmpfs can be mounted: %s", strerror(errno));
}

static void keep_warning(const char *text, void *arg)
{
    snprintf(arg, 1024, "%s", text);
}

static void check_full(const char *options, size_t len, int64_t shard_tokens, const char *expected_warning)
{
    static char text[2 << 20];
    memset(text, 'a', sizeof(text));
    mount_small_cache(options);
    char *files[] = {file_make("f", text, len)};
    char hash[65], warning[1024] = "";
    struct why why = {0};
    struct data_prepare p = {.shard_tokens = shard_tokens, .warn = keep_warning, .arg = warning};
    assert_err(ERR_NOSPACE, prepare(p, 1, files, hash, &why));
    if (!strstr(warning, expected_warning) || !strstr(warning, "--cache"))
        fail_msg("the warning: %s", warning);
    if (!strstr(why.text, "/tokens-0") || !strstr(why.text, "is full") || !strstr(why.text, "--cache"))
        fail_msg("the error: %s", why.text);
    assert_int_equal(file_count(file_path("cache"), ""), 0);
    warning[0] = '\0';
    p.cache = file_path("other");
    assert_ok(prepare(p, 1, files, hash, &why));
    assert_string_equal(warning, "");
}

TEST(a_full_disk_and_its_remedy)
{
    check_full("size=1m", 2 << 20, 0, "the prepared data will have about 4.0 MiB, and 1.0 MiB are free");
}

TEST(a_disk_without_room_for_files)
{
    check_full("nr_inodes=10", 1000, 100, "the prepared data will have about 16 files, and 9 more");
}

TEST(leftovers_of_killed_preparers_go)
{
    const struct timespec old[2] = {{.tv_sec = 1000000}, {.tv_sec = 1000000}};
    char *files[] = {file_make_text("a", "x\n")};
    char hash[65];
    struct why why = {0};
    mkdir(file_path("cache"), 0755);
    mkdir(file_path("cache/.preparing-old"), 0755);
    mkdir(file_path("cache/.preparing-new"), 0755);
    file_make_text("cache/.preparing-old/tokens-00000.bin", "x");
    assert_int_equal(utimensat(AT_FDCWD, file_path("cache/.preparing-old"), old, 0), 0);
    assert_ok(prepare((struct data_prepare){0}, 1, files, hash, &why));
    assert_int_equal(file_count(file_path("cache"), ".preparing-old"), 0);
    assert_int_equal(file_count(file_path("cache"), ".preparing-new"), 1);
}

TEST(the_cache_is_in_the_users_folder)
{
    char *files[] = {file_make_text("a", "x\n")};
    char hash[65];
    struct why why = {0};
    struct data_set *set;
    setenv("XDG_CACHE_HOME", file_path("xdg"), 1);
    struct data_prepare p = {.files = files, .n_files = 1};
    assert_ok(data_prepare(&p, hash, &why));
    assert_int_equal(file_count(file_path("xdg/dtd/data"), ""), 1);
    assert_ok(data_open(NULL, hash, &set, &why));
    data_close(set);
    unsetenv("XDG_CACHE_HOME");
    setenv("HOME", file_path("home"), 1);
    p.cache = "";
    assert_ok(data_prepare(&p, hash, &why));
    assert_int_equal(file_count(file_path("home/.cache/dtd/data"), ""), 1);
}

/* The counts that the data set's authors published. */
TEST(wikitext_2_has_its_known_size)
{
    static const struct {
        const char *name;
        int64_t tokens;
    } cases[] = {{"test.txt", 245569}, {"valid.txt", 217646}};
    const char *source = getenv("DTD_SOURCE");
    for (int i = 0; i < 2; i++) {
        char path[PATH_MAX], hash[65];
        snprintf(path, sizeof(path), "%s/../shared/data/wikitext-2/%s", source ? source : ".", cases[i].name);
        if (access(path, R_OK))
            TEST_SKIP("%s is not there", cases[i].name);
        struct data_set *set = set_make(path, TOKENIZER_WORDS, 0, hash);
        assert_int_equal(data_tokens(set), cases[i].tokens);
        data_close(set);
    }
}

static void print_speed(enum tokenizer_kind kind, const char *name, char *path, size_t bytes)
{
    char hash[65];
    int64_t start = clock_mono_ns();
    data_close(set_make(path, kind, 0, hash));
    printf("%s: %.0f MB/s\n", name, (double)bytes * 1e3 / (double)(clock_mono_ns() - start));
}

TEST(speed)
{
    struct buf text = {0};
    uint64_t state = 3;
    while (text.len < 8 << 20)
        assert_ok(buf_printf(&text, "word%d%s", (int)(random_next(&state) % 30000 * random_next(&state) % 30000),
                             random_next(&state) % 12 ? " " : "\n"));
    char *path = file_make("f", text.data, text.len);
    print_speed(TOKENIZER_BYTES, "bytes", path, text.len);
    print_speed(TOKENIZER_WORDS, "words", path, text.len);
    buf_fini(&text);
}
