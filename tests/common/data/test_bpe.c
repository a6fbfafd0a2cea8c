/* Byte-pair encoding, compared with a slow implementation, for complete texts and for streams cut anywhere; and the
 * tokenizer files in all their forms and with all kinds of errors. */
#include "common/data/tokenizer.h"
#include "tests/common/data/bpe_vocab.h"

#include <time.h>

static struct tokenizer *of_pair(const struct small *s)
{
    struct tokenizer *t = NULL;
    struct why why = {0};
    char *files[] = {file_make("vocab.json", s->vocab.data, s->vocab.len),
                     file_make("merges.txt", s->merges.data, s->merges.len)};
    if (tokenizer_bpe_files(files, 2, &t, &why))
        fail_msg("%s", why.text);
    return t;
}

static struct tokenizer *of_json(const struct buf *json)
{
    struct tokenizer *t = NULL;
    struct why why = {0};
    if (tokenizer_bpe_new(json->data, json->len, &t, &why))
        fail_msg("%s", why.text);
    return t;
}

static void check_decodes(const struct tokenizer *t, const struct buf *ids, const void *text, size_t n)
{
    struct buf found = {0};
    for (size_t i = 0; i < ids->len / sizeof(int32_t); i++)
        assert_ok(tokenizer_decode(t, ((const int32_t *)(const void *)ids->data)[i], &found));
    assert_int_equal(found.len, n);
    if (n)
        assert_memory_equal(found.data, text, n);
    buf_fini(&found);
}

/* Tokens of a text, as "the|re|..". */
static void check_cut(const struct tokenizer *t, const char *text, const char *tokens)
{
    struct buf ids = {0}, found = {0};
    assert_ok(tokenizer_encode(t, text, strlen(text), &ids));
    for (size_t i = 0; i < ids.len / sizeof(int32_t); i++) {
        if (i)
            assert_ok(buf_append(&found, "|", 1));
        assert_ok(tokenizer_decode(t, ((const int32_t *)(const void *)ids.data)[i], &found));
    }
    assert_ok(buf_append(&found, "", 1));
    assert_string_equal((char *)found.data, tokens);
    buf_fini(&ids);
    buf_fini(&found);
}

TEST(a_trained_vocabulary)
{
    struct small *s = small_new();
    struct tokenizer *t = of_pair(s);
    if (s->n < 40)
        fail_msg("%d merges", s->n);
    assert_int_equal(tokenizer_vocab(t), SMALL_END_ID + 1);
    check_cut(t, "the there", "the| there");
    check_cut(t, "the  there", "the| | there");
    check_cut(t, "there'll", "the|re|'|l|l");
    check_cut(t, "a" SMALL_END "b", "a|" SMALL_END "|b");
    check_cut(t, SMALL_END SMALL_END, SMALL_END "|" SMALL_END);
    check_cut(t, "", "");
    tokenizer_free(t);
    small_free(s);
}

/* ---- comparison with the slow implementation ---- */

static const char *const parts[] = {"a",
                                    "the",
                                    "there",
                                    " ",
                                    " ",
                                    "  ",
                                    "\n",
                                    "'s",
                                    "'ll",
                                    "'",
                                    "1",
                                    "2024",
                                    "!",
                                    "...",
                                    "\t",
                                    "\xff",
                                    "\xe2",
                                    "\xe2\x82",
                                    "\xc3\xa9",
                                    "\xe4\xb8\xad",
                                    "\xc2\xb2",
                                    "Z",
                                    SMALL_END,
                                    "<|end",
                                    "<|endoftex",
                                    "\xc2\xa0",
                                    "\xe2\x80\x83",
                                    "\xe1\xa0\x8e",
                                    "\r\n",
                                    "\xe2\x82\xac",
                                    "\xf0\x9f\x98\x80",
                                    "\xc2\x85",
                                    "\xf0\x9d\x94\x84",
                                    "\x80"};

static void text_make(uint64_t *state, int n, struct buf *ret)
{
    ret->len = 0;
    for (int i = 0; i < n; i++) {
        const char *part = parts[random_next(state) % (sizeof(parts) / sizeof(parts[0]))];
        assert_ok(buf_append(ret, part, strlen(part)));
    }
    assert_ok(buf_append(ret, "", 1)); /* utf8_len may read one byte beyond the end */
    ret->len--;
}

/* Length of the character at p; 0: invalid. */
static size_t utf8_len(const uint8_t *p, size_t n)
{
    size_t len = p[0] < 0x80                   ? 1
                 : p[0] >= 0xc2 && p[0] < 0xe0 ? 2
                 : p[0] >= 0xe0 && p[0] < 0xf0 ? 3
                 : p[0] >= 0xf0                ? 4
                                               : 0;
    if (!len || len > n || p[0] > 0xf4)
        return 0;
    for (size_t i = 1; i < len; i++)
        if (p[i] >> 6 != 2)
            return 0;
    return len;
}

static bool special_here(const uint8_t *p, size_t n)
{
    return n >= strlen(SMALL_END) && memcmp(p, SMALL_END, strlen(SMALL_END)) == 0;
}

static void encode_slowly(const struct small *s, const uint8_t *p, size_t n, struct buf *ret)
{
    const int32_t end = SMALL_END_ID;
    for (size_t at = 0, run, len; at < n; at += run) {
        run = 0;
        if (special_here(p + at, n - at)) {
            assert_ok(buf_append(ret, &end, sizeof(end)));
            run = strlen(SMALL_END);
            continue;
        }
        while (at + run < n && !special_here(p + at + run, n - at - run) &&
               (len = utf8_len(p + at + run, n - at - run)))
            run += len;
        for (size_t i = 0; i < run; i += len) {
            len = small_piece((const char *)p + at + i, run - i);
            small_encode_piece(s, p + at + i, len, ret);
        }
        if (!run) {
            small_encode_piece(s, p + at, 1, ret);
            run = 1;
        }
    }
}

static void check_same(const struct buf *a, const struct buf *b, int round, const char *what)
{
    if (a->len != b->len || (a->len && memcmp(a->data, b->data, a->len) != 0))
        fail_msg("round %d, %s: %zu ids, %zu the slow way, or others", round, what, a->len / 4, b->len / 4);
}

static void encode_in_pieces(const struct tokenizer *t, const uint8_t *p, size_t n, uint64_t *state, size_t most,
                             struct buf *ret)
{
    struct encoder e;
    encoder_init(&e, t, ret);
    while (n) {
        size_t piece = 1 + random_next(state) % most;
        piece = piece < n ? piece : n;
        assert_ok(encoder_feed(&e, p, piece));
        p += piece;
        n -= piece;
    }
    assert_ok(encoder_finish(&e));
    encoder_fini(&e);
}

TEST(texts_are_encoded_like_the_slow_way)
{
    struct small *s = small_new();
    struct tokenizer *t = of_pair(s);
    struct buf text = {0};
    uint64_t state = 4242;
    for (int round = 0; round < 400; round++) {
        struct buf slow = {0}, whole = {0}, cut = {0};
        text_make(&state, (int)(random_next(&state) % 200), &text);
        encode_slowly(s, text.data, text.len, &slow);
        assert_ok(tokenizer_encode(t, text.data, text.len, &whole));
        check_same(&whole, &slow, round, "whole");
        encode_in_pieces(t, text.data, text.len, &state, round % 2 ? 3 : 90, &cut);
        check_same(&cut, &slow, round, "in pieces");
        check_decodes(t, &whole, text.data, text.len);
        buf_fini(&slow);
        buf_fini(&whole);
        buf_fini(&cut);
    }
    buf_fini(&text);
    tokenizer_free(t);
    small_free(s);
}

/* A long piece uses another algorithm, with the same result. */
TEST(long_pieces)
{
    static const char *const words[] = {"the", "re", "a", "theory", "z", "er", "ther"};
    struct small *s = small_new();
    struct tokenizer *t = of_pair(s);
    uint64_t state = 99;
    for (int round = 0; round < 40; round++) {
        struct buf text = {0}, slow = {0}, found = {0};
        for (int i = 0; i < 60 + round * 5; i++)
            assert_ok(buf_printf(&text, "%s", words[random_next(&state) % 7]));
        small_encode_piece(s, text.data, text.len, &slow);
        assert_ok(tokenizer_encode(t, text.data, text.len, &found));
        check_same(&found, &slow, round, "a long piece");
        buf_fini(&text);
        buf_fini(&slow);
        buf_fini(&found);
    }
    tokenizer_free(t);
    small_free(s);
}

/* 1 MB of letters in several chunks: neither merging nor matching may take quadratic time. */
TEST(a_megabyte_without_a_cut)
{
    struct small *s = small_new();
    struct tokenizer *t = of_pair(s);
    struct buf ids = {0};
    uint64_t state = 5;
    size_t n = 1 << 20;
    uint8_t *text = malloc(n);
    assert_non_null(text);
    for (size_t i = 0; i < n; i++)
        text[i] = (uint8_t) "thera"[random_next(&state) % 5];
    clock_t start = clock();
    encode_in_pieces(t, text, n, &state, 4096, &ids);
    double seconds = (double)(clock() - start) / CLOCKS_PER_SEC;
    check_decodes(t, &ids, text, n);
    if (seconds > 20)
        fail_msg("%.1f s of processor time", seconds);
    buf_fini(&ids);
    free(text);
    tokenizer_free(t);
    small_free(s);
}

TEST(a_piece_has_a_bound)
{
    struct small *s = small_new();
    struct tokenizer *t = of_pair(s);
    struct buf ids = {0};
    size_t n = BPE_MAX_PIECE + 10;
    char *text = malloc(n);
    assert_non_null(text);
    memset(text, 'z', n);
    assert_err(ERR_LIMIT, tokenizer_encode(t, text, n, &ids));
    assert_int_equal(ids.len, 0);
    buf_fini(&ids);
    free(text);
    tokenizer_free(t);
    small_free(s);
}

/* ---- the forms of the files ---- */

TEST(a_tokenizer_json_is_the_same)
{
    static const char gpt2[] =
        "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": "
        "\"'s|'t|'re|'ve|'m|'ll|'d| "
        "?\\\\p{L}+| ?\\\\p{N}+| ?[^\\\\s\\\\p{L}\\\\p{N}]+|\\\\s+(?!\\\\S)|\\\\s+\"}, \"behavior\": \"Isolated\", "
        "\"invert\": false}, {\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}]}";
    struct small *s = small_new();
    struct tokenizer *pair = of_pair(s), *forms[3];
    struct buf text = {0}, json = {0};
    uint64_t state = 77;
    forms[0] = of_json(&s->json);
    small_json(s, "\"dropout\": null, \"ignore_merges\": false, ", SMALL_BYTE_LEVEL, true, &json);
    forms[1] = of_json(&json);
    small_json(s, "", gpt2, false, &json);
    forms[2] = of_json(&json);
    for (int round = 0; round < 60; round++) {
        struct buf a = {0};
        text_make(&state, 100, &text);
        assert_ok(tokenizer_encode(pair, text.data, text.len, &a));
        for (int i = 0; i < 3; i++) {
            struct buf b = {0};
            assert_ok(tokenizer_encode(forms[i], text.data, text.len, &b));
            check_same(&b, &a, round, "another form");
            buf_fini(&b);
        }
        buf_fini(&a);
    }
    for (int i = 0; i < 3; i++)
        tokenizer_free(forms[i]);
    buf_fini(&json);
    buf_fini(&text);
    tokenizer_free(pair);
    small_free(s);
}

/* Llama 3's pattern, and a piece that is a token although no merge produces it. */
TEST(a_pattern_of_its_own)
{
    static const char llama3[] =
        "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": "
        "\"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?\\\\p{L}+|\\\\p{N}{1,3}| "
        "?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*|"
        "\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+\"}, \"behavior\": \"Isolated\", \"invert\": false}, {\"type\": "
        "\"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}]}";
    struct small *s = small_new();
    struct buf json = {0};
    s->n = 0; /* without merges only whole pieces can be tokens, which shows the cuts */
    memcpy(s->text[255], "\xff", 1);
    small_json(s, "\"ignore_merges\": true, ", llama3, false, &json);
    char *vocab = strstr((char *)json.data, "\"vocab\": {");
    struct buf more = {0};
    assert_non_null(vocab);
    assert_ok(buf_append(&more, json.data, (size_t)(vocab - (char *)json.data) + 10));
    assert_ok(buf_printf(&more,
                         "\"123\": 900, \"\xc4\xa0the\": 901, \"'LL\": 902, \"!!\xc4\x8a\": 903, \"(the\": 904, %.*s",
                         (int)(json.len - (size_t)(vocab - (char *)json.data) - 10), vocab + 10));
    struct tokenizer *t = of_json(&more);
    check_cut(t, "12345 the", "123|4|5| the");
    check_cut(t, "I'LL(the!!\nx", "I|'LL|(the|!!\n|x");
    assert_int_equal(tokenizer_vocab(t), 905);
    tokenizer_free(t);
    buf_fini(&json);
    buf_fini(&more);
    small_free(s);
}

TEST(the_vocab_file_makes_the_tokenizer_again)
{
    struct small *s = small_new();
    struct tokenizer *t = of_pair(s), *again;
    struct why why = {0};
    size_t len;
    const void *file = tokenizer_vocab_file(t, &len);
    assert_int_equal(len, s->vocab.len + s->merges.len + strlen("dtd-bpe 1 1 1\n") - 2 +
                              (size_t)snprintf(NULL, 0, "%zu%zu", s->vocab.len, s->merges.len));
    assert_ok(tokenizer_new_from(TOKENIZER_BPE, file, len, false, &again, &why));
    check_cut(again, "the there", "the| there");
    assert_int_equal(tokenizer_vocab(again), tokenizer_vocab(t));
    tokenizer_free(again);
    assert_err(ERR_INVALID, tokenizer_new_from(TOKENIZER_BPE, file, len - 1, false, &again, &why));
    assert_non_null(strstr(why.text, "the sizes in its first line are wrong"));
    tokenizer_free(t);
    small_free(s);
}

/* A pair and the tokenizer.json that is made of it are the same; an added token makes another, and cuts the text. */
TEST(a_pair_becomes_a_tokenizer_json)
{
    const struct tokenizer_added chat = {.content = "<|im_start|>", .id = SMALL_END_ID + 1, .special = true};
    const struct tokenizer_added wrong = {.content = "<|im_start|>", .id = 7};
    struct small *s = small_new();
    struct tokenizer *pair = of_pair(s), *same, *more;
    struct buf json = {0}, longer = {0};
    struct why why = {0};
    size_t len;
    const void *file = tokenizer_vocab_file(pair, &len);
    assert_ok(tokenizer_pair_json(file, len, NULL, 0, &json, &why));
    same = of_json(&json);
    assert_true(tokenizer_same(pair, same) && tokenizer_same(same, pair));
    assert_ok(tokenizer_pair_json(file, len, &chat, 1, &longer, &why));
    more = of_json(&longer);
    assert_false(tokenizer_same(pair, more) || tokenizer_same(more, pair));
    check_cut(more, "the" SMALL_END "<|im_start|>the", "the|" SMALL_END "|<|im_start|>|the");
    assert_err(ERR_INVALID, tokenizer_pair_json(file, len, &wrong, 1, &longer, &why));
    assert_non_null(strstr(why.text, "another token has its id 7 already"));
    s->merges.len -= 1; /* without the last merge */
    while (s->merges.len && s->merges.data[s->merges.len - 1] != '\n')
        s->merges.len--;
    tokenizer_free(same);
    same = of_pair(s);
    assert_false(tokenizer_same(pair, same) || tokenizer_same(same, pair));
    buf_fini(&json);
    buf_fini(&longer);
    tokenizer_free(more);
    tokenizer_free(same);
    tokenizer_free(pair);
    small_free(s);
}

/* ---- faults ---- */

static void refuse_pair(const char *vocab, const char *merges, const char *part)
{
    struct tokenizer *t;
    struct why why = {0};
    char *files[] = {file_make_text("v", vocab), file_make_text("m", merges)};
    err_t err = tokenizer_bpe_files(files, 2, &t, &why);
    if (err != ERR_INVALID || !strstr(why.text, part))
        fail_msg("%s: \"%s\", not \"%s\"", err_name(err), why.text, part);
}

TEST(broken_pairs)
{
    struct small *s = small_new();
    struct buf v = {0};
    assert_ok(buf_append(&s->vocab, "", 1));
    const char *vocab = (char *)s->vocab.data;
    refuse_pair(vocab, "#version: 0.2\n\xc4\xa0 t\nq \xc4\xa0\n",
                "/m, line 3: \"q\" and \"\xc4\xa0\": the vocabulary lacks the merged token");
    refuse_pair(vocab, "\xc4\xa0 t\nxyz a\n", "/m, line 2: \"xyz\" and \"a\": the vocabulary lacks the first token");
    refuse_pair(vocab, "\xc4\xa0 t\na b c\n", "/m, line 2: \"a b c\": a merge must be two tokens with one space");
    refuse_pair(vocab, "\xc4\xa0 t\n\n\xc4\xa0 t\n", "/m, line 2: \"\": a merge must be two tokens");
    refuse_pair("{\"a\": 1,\n \"b\": }", "\xc4\xa0 t\n", "/v, line 2: ");
    refuse_pair("{\"a\": 1, \"a\": 2}", "\xc4\xa0 t\n", "/v, line 1: duplicate");
    refuse_pair("{\"a\": 1, \"b\": 1}", "\xc4\xa0 t\n", "token \"b\": another token has its id 1");
    refuse_pair("{\"a\": -1}", "\xc4\xa0 t\n", "token \"a\": its id is not a number from 0");
    refuse_pair("{\"a\": \"x\"}", "\xc4\xa0 t\n", "token \"a\": its id is not a number from 0");
    refuse_pair("{\"a\": 1}", "\xc4\xa0 t\n", "it has no token for byte 0x00");
    refuse_pair("{\"\": 1}", "\xc4\xa0 t\n", "the token is empty");
    refuse_pair("{}", "{}", "one JSON file");
    refuse_pair((small_json(s, "", SMALL_BYTE_LEVEL, false, &v), assert_ok(buf_append(&v, "", 1)), (char *)v.data),
                "\xc4\xa0 t\n", "needs no separate merges file");
    buf_fini(&v);
    small_free(s);
}

static void refuse_json(err_t code, const struct buf *json, const char *part)
{
    struct tokenizer *t;
    struct why why = {0};
    err_t err = tokenizer_bpe_new(json->data, json->len, &t, &why);
    if (err != code || !strstr(why.text, part))
        fail_msg("%s: \"%s\", not \"%s\"", err_name(err), why.text, part);
}

TEST(fields_that_are_refused)
{
    static const struct {
        const char *model, *pre, *part;
    } cases[] = {
        {"\"continuing_subword_prefix\": \"##\", ", SMALL_BYTE_LEVEL, "model.continuing_subword_prefix: \"##\""},
        {"\"end_of_word_suffix\": \"</w>\", ", SMALL_BYTE_LEVEL, "model.end_of_word_suffix: \"</w>\""},
        {"\"dropout\": 0.1, ", SMALL_BYTE_LEVEL, "model.dropout: 0.1"},
        {"", "{\"type\": \"UnicodeScripts\"}", "pre_tokenizer.type: \"UnicodeScripts\""},
        {"", "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"FixedLength\", \"length\": 0}]}",
         "pre_tokenizer.pretokenizers[0].type: \"FixedLength\""},
        {"", "{\"type\": \"ByteLevel\", \"use_regex\": false, \"cut\": 3}", "pre_tokenizer.cut: 3"},
        {"", "{\"type\": \"Metaspace\", \"prepend_scheme\": \"last\"}", "pre_tokenizer.prepend_scheme: \"last\""},
    };
    static const struct {
        const char *pattern;
        err_t code;
        const char *part;
    } patterns[] = {{"(?<=a)b", ERR_UNSUPPORTED, "byte 0 of the pattern, \"(?<=\""},
                    {"a|^b", ERR_UNSUPPORTED, "byte 2 of the pattern, \"^\""},
                    {"\\\\bword", ERR_UNSUPPORTED, "byte 0 of the pattern, \"\\b\""},
                    {"[[:alpha:]]", ERR_UNSUPPORTED, "POSIX classes"},
                    {"a*", ERR_UNSUPPORTED, "can match the empty string"},
                    {"\\\\p{N}{1,3}+", ERR_UNSUPPORTED, "PCRE2 and Oniguruma differ"},
                    {"(*LIMIT_MATCH=1)a", ERR_UNSUPPORTED, "byte 0"},
                    {"(a", ERR_INVALID, "byte 0 of the pattern: the group has no end"}};
    struct small *s = small_new();
    struct buf json = {0};
    char pre[400];
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        small_json(s, cases[i].model, cases[i].pre, false, &json);
        refuse_json(ERR_UNSUPPORTED, &json, cases[i].part);
    }
    for (size_t i = 0; i < sizeof(patterns) / sizeof(patterns[0]); i++) {
        snprintf(pre, sizeof(pre),
                 "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": {\"Regex\": \"%s\"}, "
                 "\"behavior\": \"Isolated\", \"invert\": false}, {\"type\": \"ByteLevel\", \"add_prefix_space\": "
                 "false, \"use_regex\": false}]}",
                 patterns[i].pattern);
        small_json(s, "", pre, false, &json);
        refuse_json(patterns[i].code, &json, patterns[i].part);
    }
    buf_fini(&json);
    small_free(s);
}

/* ---- prepared sets ---- */

TEST(a_prepared_set)
{
    struct small *s = small_new();
    struct tokenizer *t = of_pair(s);
    struct why why = {0};
    struct data_set *set = NULL;
    struct buf ids = {0};
    char hash[65], again[65], other[65], valid[65], *cache = file_path("cache");
    char *text = file_make_text("text", "the there" SMALL_END "the 2024"), *more = file_make_text("more", "theory\n");
    char *files[] = {file_path("vocab.json"), file_path("merges.txt")}, *swapped[] = {files[1], files[0]};
    struct data_prepare p = {.files = &text,
                             .n_files = 1,
                             .tokenizer = TOKENIZER_BPE,
                             .tokenizer_files = files,
                             .n_tokenizer_files = 2,
                             .cache = cache};
    if (data_prepare(&p, hash, &why) || data_open(cache, hash, &set, &why))
        fail_msg("%s", why.text);
    assert_ok(
        tokenizer_encode(t, "the there" SMALL_END "the 2024\n", strlen("the there" SMALL_END "the 2024\n"), &ids));
    assert_int_equal(data_tokens(set), ids.len / sizeof(int32_t));
    assert_int_equal(data_vocab(set), tokenizer_vocab(t));
    int32_t found[4], targets[4];
    assert_ok(data_sample(set, 4, 0, found, targets));
    assert_memory_equal(found, ids.data, sizeof(found));
    assert_ok(data_verify(set, &why));
    check_cut(data_tokenizer(set), "the there", "the| there");
    data_close(set);

    p.tokenizer_files = swapped;
    assert_ok(data_prepare(&p, again, &why));
    assert_string_equal(again, hash);
    p.files = &more;
    p.n_tokenizer_files = 0;
    p.vocab_from = hash;
    assert_ok(data_prepare(&p, valid, &why));
    p.tokenizer = TOKENIZER_WORDS;
    assert_err(ERR_INVALID, data_prepare(&p, other, &why));
    assert_non_null(strstr(why.text, "another tokenizer: bpe"));

    /* one merge fewer gives another set */
    size_t shorter = s->merges.len - 1;
    while (s->merges.data[shorter - 1] != '\n')
        shorter--;
    file_make("merges.txt", s->merges.data, shorter);
    p = (struct data_prepare){.files = &text,
                              .n_files = 1,
                              .tokenizer = TOKENIZER_BPE,
                              .tokenizer_files = files,
                              .n_tokenizer_files = 2,
                              .cache = cache};
    if (data_prepare(&p, other, &why))
        fail_msg("%s", why.text);
    assert_string_not_equal(other, hash);
    buf_fini(&ids);
    tokenizer_free(t);
    small_free(s);
}
