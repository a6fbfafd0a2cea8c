/* Preparations that are killed or interrupted at many points, and continued: the set has the bytes of one that was not
 * interrupted. */
#include "common/data/cache.h"
#include "tests/common/data/bpe_vocab.h"
#include "tests/common/data/files.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define MARK "\xe2\x96\x81"

/* As Llama 2's older files: a text begins with a mark, and only there. */
static const char chain_json[] =
    "{\"added_tokens\": [], \"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Prepend\", "
    "\"prepend\": \"" MARK "\"}, {\"type\": \"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": \"" MARK
    "\"}]}, \"pre_tokenizer\": null, \"post_processor\": null, \"decoder\": null, \"model\": {\"type\": \"BPE\", "
    "\"unk_token\": \"?\", \"fuse_unk\": true, \"byte_fallback\": false, \"vocab\": {\"?\": 0, \"" MARK
    "\": 1, \"a\": 2, \"b\": 3, \"ab\": 4, \"" MARK "ab\": 5, \"" MARK "a\": 6}, \"merges\": [\"a b\", [\"" MARK
    "\", \"ab\"], [\"" MARK "\", \"a\"]]}}";

enum { FILES = 7 };

/* ---- inputs ---- */

static void put_words(struct buf *text, size_t bytes, uint64_t *state)
{
    static const char *const words[] = {"the ",     "there ",   "a ",       "ab ",   "\n",     "\n\n", "   ", "2024",
                                        "\xc3\xa9", "\xc2\xa0", "theory, ", "ab a ", "b ab\n", "x",    "'s ", "THE "};
    for (size_t end = text->len + bytes; text->len < end;) {
        const char *word = words[random_next(state) % 16];
        assert_ok(buf_append(text, word, strlen(word)));
    }
}

/* Files of text, some small and some empty, so that what an encoder holds back reaches over their borders. */
static void make_text(char *files[FILES])
{
    static const size_t bytes[FILES] = {900000, 0, 3, 2300000, 1, 0, 700000};
    uint64_t state = 7;
    for (int i = 0; i < FILES; i++) {
        char name[24];
        struct buf text = {0};
        put_words(&text, bytes[i], &state);
        snprintf(name, sizeof(name), "text-%d", i);
        files[i] = file_make(name, text.len ? text.data : (const void *)"", text.len);
        buf_fini(&text);
    }
}

static void put_line(struct buf *out, int file, uint64_t *state)
{
    size_t n = random_next(state) % 200;
    assert_ok(buf_printf(out, "{\"input_ids\": ["));
    for (size_t i = 0; i < n; i++)
        assert_ok(buf_printf(out, "%s%d", i ? "," : "", (int)(random_next(state) % 256)));
    assert_ok(buf_printf(out, "]"));
    if (file >= 2 && n) { /* weights begin in the third file */
        assert_ok(buf_printf(out, ", \"loss_mask\": ["));
        for (size_t i = 0; i < n; i++)
            assert_ok(buf_printf(out, "%s%d", i ? "," : "", (int)(random_next(state) % 2)));
        assert_ok(buf_printf(out, "]"));
    }
    assert_ok(buf_printf(out, "}\n"));
}

static void make_lines(char *files[FILES])
{
    static const size_t bytes[FILES] = {600000, 9000000, 900, 700000, 60, 9000000, 500000};
    uint64_t state = 9;
    for (int i = 0; i < FILES; i++) {
        char name[24];
        struct buf text = {0};
        while (text.len < bytes[i])
            put_line(&text, i, &state);
        snprintf(name, sizeof(name), "lines-%d", i);
        files[i] = file_make(name, text.data, text.len);
        buf_fini(&text);
    }
}

/* ---- runs ---- */

static char reported[1024];

struct run {
    double kill_at; /* part of all bytes; above 1: never */
    int signal;     /* SIGKILL, or 0: set `stop` */
};

static volatile sig_atomic_t stop;

static void on_progress(int64_t done, int64_t total, void *arg)
{
    struct run *run = arg;
    if ((double)done < run->kill_at * (double)total)
        return;
    run->kill_at = 2; /* once */
    if (run->signal)
        raise(run->signal);
    else
        stop = 1;
}

static void on_report(const char *sentence, void *arg)
{
    (void)arg;
    snprintf(reported, sizeof(reported), "%s", sentence);
}

static err_t prepare(struct data_prepare p, struct run *run, char ret_hash[65], struct why *why)
{
    reported[0] = '\0';
    stop = 0;
    p.progress = on_progress;
    p.report = on_report;
    p.arg = run;
    p.stop = &stop;
    p.save_ms = -1;
    p.shard_tokens = 100000;
    p.threads = 1;
    return data_prepare(&p, ret_hash, why);
}

static void kill_at(struct data_prepare p, double part)
{
    struct run run = {part, SIGKILL};
    char hash[65];
    int status;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (!pid)
        _exit(prepare(p, &run, hash, NULL) ? 1 : 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
}

static void check_equal(const char *cache, const char *expected, const char *hash)
{
    char dir[PATH_MAX + 100], path[PATH_MAX + 400];
    snprintf(dir, sizeof(dir), "%s/%s", expected, hash);
    DIR *d = opendir(dir);
    assert_non_null(d);
    int n = 0;
    for (struct dirent *e; (e = readdir(d));) {
        struct buf a = {0}, b = {0};
        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
        assert_ok(file_read(path, SIZE_MAX, &a));
        snprintf(path, sizeof(path), "%s/%s/%s", cache, hash, e->d_name);
        assert_ok(file_read(path, SIZE_MAX, &b));
        if (a.len != b.len || memcmp(a.data, b.data, a.len) != 0)
            fail_msg("%s differs", e->d_name);
        buf_fini(&a);
        buf_fini(&b);
        n++;
    }
    closedir(d);
    snprintf(path, sizeof(path), "%s/%s", cache, hash);
    assert_int_equal(file_count(path, ""), n);
    assert_int_equal(file_count(cache, ""), 1);
}

/* Kills a run at `first`, the next one at `second` of all bytes, and lets the third finish. Returns whether that one
 * continued. */
static bool killed_twice(struct data_prepare p, double first, double second)
{
    struct run whole = {2, 0};
    struct why why = {0};
    char hash[65], expected[65], cache[PATH_MAX], other[PATH_MAX];
    snprintf(cache, sizeof(cache), "%s", file_path("cache"));
    snprintf(other, sizeof(other), "%s", file_path("whole"));
    assert_ok(file_remove_tree(cache));
    p.cache = other;
    assert_ok(prepare(p, &whole, expected, &why));
    p.cache = cache;
    kill_at(p, first);
    kill_at(p, second);
    if (prepare(p, &whole, hash, &why))
        fail_msg("%s", why.text);
    bool continued = strstr(reported, "continues: ") != NULL;
    assert_string_equal(hash, expected);
    check_equal(cache, other, hash);
    return continued;
}

static void killed_everywhere(struct data_prepare p)
{
    int continued = 0;
    for (double at = 0.3; at < 0.92; at += 0.15)
        continued += killed_twice(p, at, at + 0.07);
    printf("%d of 5 runs continued\n", continued);
    assert_true(continued >= 2);
}

/* ---- cases ---- */

TEST(text_of_bytes)
{
    char *files[FILES];
    make_text(files);
    killed_everywhere((struct data_prepare){.files = files, .n_files = FILES});
}

TEST(text_of_words)
{
    char *files[FILES];
    make_text(files);
    killed_everywhere((struct data_prepare){.files = files, .n_files = FILES, .tokenizer = TOKENIZER_WORDS});
}

TEST(text_of_split)
{
    char *files[FILES];
    make_text(files);
    killed_everywhere(
        (struct data_prepare){.files = files, .n_files = FILES, .tokenizer = TOKENIZER_SPLIT, .lowercase = true});
}

TEST(text_of_byte_pairs)
{
    char *files[FILES];
    struct small *s = small_new();
    make_text(files);
    char *tokenizer[] = {file_make("vocab.json", s->vocab.data, s->vocab.len),
                         file_make("merges.txt", s->merges.data, s->merges.len)};
    killed_everywhere((struct data_prepare){.files = files,
                                            .n_files = FILES,
                                            .tokenizer = TOKENIZER_BPE,
                                            .tokenizer_files = tokenizer,
                                            .n_tokenizer_files = 2});
    small_free(s);
}

TEST(text_of_a_chain)
{
    char *files[FILES], *tokenizer = file_make_text("tokenizer.json", chain_json);
    make_text(files);
    killed_everywhere((struct data_prepare){.files = files,
                                            .n_files = FILES,
                                            .tokenizer = TOKENIZER_BPE,
                                            .tokenizer_files = &tokenizer,
                                            .n_tokenizer_files = 1});
}

TEST(documents)
{
    char *files[FILES];
    make_lines(files);
    killed_everywhere((struct data_prepare){.files = files, .n_files = FILES});
}

/* The largest label is in the first file, so a run that continues after it has to know it. */
TEST(documents_with_labels)
{
    static const size_t bytes[FILES] = {600000, 5000000, 900, 700000, 60, 5000000, 500000};
    char *files[FILES];
    uint64_t state = 11;
    for (int i = 0; i < FILES; i++) {
        char name[24];
        struct buf text = {0};
        while (text.len < bytes[i])
            assert_ok(buf_printf(&text, "{\"text\": \"%.*s\", \"label\": %d}\n", (int)(random_next(&state) % 60),
                                 "the theory of a text that is long enough for any of the lengths", i ? i % 3 : 9));
        snprintf(name, sizeof(name), "line-%d", i);
        files[i] = file_make(name, text.data, text.len);
        buf_fini(&text);
    }
    killed_everywhere((struct data_prepare){.files = files, .n_files = FILES, .label = "label"});
}

/* stop: the run ends by itself, and what it encoded is not encoded again. */
TEST(an_interrupted_run_says_how_to_continue)
{
    char *files[FILES], hash[65], *cache = file_path("cache");
    struct why why = {0};
    struct run run = {0.9, 0}, whole = {2, 0};
    make_lines(files);
    struct data_prepare p = {.files = files, .n_files = FILES, .cache = cache};
    assert_err(ERR_CANCELED, prepare(p, &run, hash, &why));
    assert_non_null(strstr(why.text, "run the same command again to continue"));
    assert_int_equal(file_count(cache, CACHE_UNFINISHED), 1);
    assert_ok(prepare(p, &whole, hash, &why));
    assert_string_equal(reported, "continues: 5 of 7 files were done");
    assert_int_equal(file_count(cache, CACHE_UNFINISHED), 0);
    assert_ok(prepare(p, &whole, hash, &why));
    assert_string_equal(reported, "");
}

/* Ends a run, changes something, and compares what the next one reports. */
static void check_anew(struct data_prepare p, const char *expected)
{
    struct run whole = {2, 0};
    struct why why = {0};
    char hash[65];
    assert_ok(prepare(p, &whole, hash, &why));
    assert_string_equal(reported, expected);
}

TEST(other_inputs_begin_anew)
{
    char *files[FILES], hash[65], expected[PATH_MAX + 100];
    struct run run = {0.97, 0};
    make_text(files);
    struct data_prepare p = {.files = files, .n_files = FILES, .cache = file_path("cache")}, q;
    p.tokenizer = TOKENIZER_WORDS;
    q = p;
    assert_err(ERR_CANCELED, prepare(p, &run, hash, NULL));
    q.lowercase = true;
    check_anew(q, "starts anew: the run that was interrupted had another tokenizer");
    file_make_text("text-3", "the end\n");
    snprintf(expected, sizeof(expected), "starts anew: %s has changed since the run that was interrupted", files[3]);
    check_anew(p, expected);
    p.n_files = 4; /* other files: nothing to compare with */
    check_anew(p, "");
}

static char *only_unfinished(const char *cache, const char *name)
{
    static char path[PATH_MAX + 400];
    DIR *d = opendir(cache);
    for (struct dirent *e; (e = readdir(d));)
        if (strncmp(e->d_name, CACHE_UNFINISHED, strlen(CACHE_UNFINISHED)) == 0)
            snprintf(path, sizeof(path), "%s/%s/%s", cache, e->d_name, name);
    closedir(d);
    return path;
}

TEST(a_damaged_journal_is_not_continued)
{
    char *files[FILES], hash[65], *cache = file_path("cache");
    struct run run = {0.9, 0};
    make_lines(files);
    struct data_prepare p = {.files = files, .n_files = FILES, .cache = cache};
    assert_err(ERR_CANCELED, prepare(p, &run, hash, NULL));
    struct buf text = {0};
    char *path = only_unfinished(cache, "journal");
    assert_ok(file_read(path, 1 << 20, &text));
    char *at = strstr((char *)text.data, "\nat ");
    assert_non_null(at);
    at[4]--;
    assert_ok(file_replace(path, text.data, text.len, 0644));
    check_anew(p, "starts anew: the journal of the run that was interrupted is damaged, or of another version");
    buf_fini(&text);
}

/* A shard that is shorter than in the journal is never published. */
TEST(a_shard_that_lost_its_end_is_refused_once)
{
    char *files[FILES], hash[65], *cache = file_path("cache");
    struct why why = {0};
    struct run run = {0.9, 0}, whole = {2, 0};
    make_lines(files);
    struct data_prepare p = {.files = files, .n_files = FILES, .cache = cache};
    assert_err(ERR_CANCELED, prepare(p, &run, hash, NULL));
    assert_int_equal(truncate(only_unfinished(cache, "tokens-00001.bin"), 1000), 0);
    assert_err(ERR_CORRUPT, prepare(p, &whole, hash, &why));
    assert_non_null(strstr(why.text, "tokens-00001.bin"));
    check_anew(p, "");
}

/* Another process has the folder: this one does not touch it. */
TEST(a_folder_in_use_is_left_alone)
{
    char *files[FILES], hash[65], *cache = file_path("cache");
    struct run run = {0.9, SIGSTOP};
    make_lines(files);
    struct data_prepare p = {.files = files, .n_files = FILES, .cache = cache};
    pid_t pid = fork();
    if (!pid)
        _exit(prepare(p, &run, hash, NULL) ? 1 : 0);
    int status;
    assert_int_equal(waitpid(pid, &status, WUNTRACED), pid);
    assert_true(WIFSTOPPED(status));
    check_anew(p, "another process prepares this set, or the file system of the cache has no locks: this run cannot be "
                  "continued if it is interrupted");
    kill(pid, SIGCONT);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(file_count(cache, ""), 1);
}
