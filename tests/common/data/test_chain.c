/* Tokenizers as chains of steps: ids and the bytes that they cover, on files small enough to follow by hand, streams
 * cut anywhere, work, and refusals. tests/interop/interop_tok.py compares with tokenizers itself. */
#include "common/data/chain.h"
#include "common/data/tokenizer.h"
#include "tests/common/data/bpe_vocab.h"
#include "tests/common/data/files.h"

#include <string.h>

#define MARK "\xe2\x96\x81"

/* A BPE of characters like Llama 2's. */
#define LLAMA(normalizer, pre, vocab, merges)                                                                          \
    "{\"added_tokens\": [{\"id\": 0, \"content\": \"<s>\", \"special\": true, \"normalized\": false}], "               \
    "\"normalizer\": " normalizer ", \"pre_tokenizer\": " pre                                                          \
    ", \"post_processor\": {\"type\": \"TemplateProcessing\","                                                         \
    "\"single\": [{\"SpecialToken\": {\"id\": \"<s>\", \"type_id\": 0}}, {\"Sequence\": {\"id\": \"A\", \"type_id\": " \
    "0}}], "                                                                                                           \
    "\"special_tokens\": {\"<s>\": {\"id\": \"<s>\", \"ids\": [0], \"tokens\": [\"<s>\"]}}}, "                         \
    "\"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Replace\", \"pattern\": {\"String\": \"" MARK   \
    "\"}, \"content\": \" \"}, {\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"}]}, "                                 \
    "\"model\": {\"type\": \"BPE\", \"unk_token\": \"?\", \"fuse_unk\": true, \"byte_fallback\": true, \"vocab\": {"   \
    "\"<s>\": 0, \"?\": 1, \"" MARK "\": 2, \"a\": 3, \"b\": 4, \"ab\": 5, \"" MARK "ab\": 6, \"<0xC3>\": 7, "         \
    "\"<0xA9>\": 8" vocab "}, \"merges\": [\"a b\", [\"" MARK "\", \"ab\"]" merges "]}}"
#define LEGACY                                                                                                   \
    "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Prepend\", \"prepend\": \"" MARK "\"}, {\"type\": " \
    "\"Replace\", \"pattern\": {\"String\": \" \"}, \"content\": \"" MARK "\"}]}"

static struct chain *of(const char *json)
{
    struct chain *c = NULL;
    struct why why = {0};
    const struct bpe_text text = {"tokenizer.json", (const uint8_t *)json, strlen(json)};
    if (chain_new(&text, &c, &why))
        fail_msg("%s", why.text);
    return c;
}

/* The ids with what they cover, as "6:0-2 0:2-5". */
static void check_ids(const struct chain *c, const char *text, const char *expected)
{
    struct chain_encoder *e;
    struct buf ids = {0}, spans = {0}, found = {0};
    assert_ok(chain_encoder_new(c, &e));
    assert_ok(chain_encode(e, (const uint8_t *)text, strlen(text), &ids, &spans));
    assert_int_equal(ids.len / sizeof(int32_t), spans.len / sizeof(struct chain_span));
    for (size_t i = 0; i < ids.len / sizeof(int32_t); i++) {
        const struct chain_span *s = (const struct chain_span *)(const void *)spans.data + i;
        assert_ok(buf_printf(&found, "%s%d:%u-%u", i ? " " : "", ((const int32_t *)(const void *)ids.data)[i], s->from,
                             s->to));
    }
    assert_ok(buf_append(&found, "", 1));
    assert_string_equal((char *)found.data, expected);
    buf_fini(&ids);
    buf_fini(&spans);
    buf_fini(&found);
    chain_encoder_free(e);
}

TEST(byte_fallback_and_spans)
{
    struct chain *c = of(LLAMA(LEGACY, "null", "", ""));
    struct buf text = {0};
    size_t n;
    check_ids(c, "ab ab", "6:0-2 6:2-5");
    check_ids(c, "b<s>ab", "2:0-1 4:0-1 0:1-4 6:4-6");
    check_ids(c, "a\xc3\xa9", "2:0-1 3:0-1 7:1-3 8:1-3");
    check_ids(c, "axya", "2:0-1 3:0-1 1:1-3 3:3-4"); /* one unknown token for two characters */
    check_ids(c, "a\xff", "2:0-1 3:0-1 1:1-2");
    check_ids(c, "", "");
    assert_int_equal(chain_vocab(c), 9);
    assert_int_equal(chain_template(c, false, &n)[0], 0);
    assert_int_equal(n, 1);
    chain_template(c, true, &n);
    assert_int_equal(n, 0);
    assert_ok(chain_decode(c, 6, &text));
    assert_ok(chain_decode(c, 7, &text));
    assert_ok(chain_decode(c, 8, &text));
    assert_int_equal(text.len, 5);
    assert_memory_equal(text.data, " ab\xc3\xa9", 5);
    buf_fini(&text);
    chain_free(c);
}

TEST(metaspace_at_the_beginning)
{
    struct chain *first =
        of(LLAMA("null", "{\"type\": \"Metaspace\", \"prepend_scheme\": \"first\", \"split\": false}", "", ""));
    struct chain *never =
        of(LLAMA("null", "{\"type\": \"Metaspace\", \"add_prefix_space\": false, \"split\": true}", "", ""));
    check_ids(first, "ab<s>ab", "6:0-2 0:2-5 5:5-7");
    check_ids(first, " ab", "6:0-3");
    check_ids(never, "ab ab", "5:0-2 6:2-5");
    chain_free(first);
    chain_free(never);
}

#define UNIGRAM                                                                                                   \
    "{\"added_tokens\": [], \"normalizer\": null, \"pre_tokenizer\": null, \"model\": {\"type\": \"Unigram\", "   \
    "\"unk_id\": 0, "                                                                                             \
    "\"vocab\": [[\"<unk>\", 0], [\"a\", -1], [\"b\", -1], [\"ab\", -2], [\"c\", -3.5], [\"bc\", -4], [\"abc\", " \
    "-5.25]]}}"

TEST(unigram_by_hand)
{
    struct chain *c = of(UNIGRAM);
    check_ids(c, "ab", "3:0-2");        /* -2 = -1 - 1: the longest piece keeps a tie */
    check_ids(c, "abc", "1:0-1 5:1-3"); /* -5 > -5.25 > -5.5 */
    check_ids(c, "xyab", "0:0-2 3:2-4");
    check_ids(c, "a\xc3\xa9", "1:0-1 0:1-3");
    chain_free(c);
}

#define WORDPIECE                                                                                                    \
    "{\"added_tokens\": [], \"normalizer\": {\"type\": \"BertNormalizer\"}, \"pre_tokenizer\": {\"type\": "          \
    "\"BertPreTokenizer\"}, \"post_processor\": {\"type\": \"BertProcessing\", \"sep\": [\"[SEP]\", 7], \"cls\": "   \
    "[\"[CLS]\", 6]}, \"decoder\": {\"type\": \"WordPiece\", \"prefix\": \"##\", \"cleanup\": true}, \"model\": "    \
    "{\"type\": \"WordPiece\", \"unk_token\": \"[UNK]\", \"continuing_subword_prefix\": \"##\", "                    \
    "\"max_input_chars_per_word\": 10, \"vocab\": {\"[UNK]\": 0, \"un\": 1, \"##aff\": 2, \"##able\": 3, \"!\": 4, " \
    "\"\xe4\xb8\xad\": 5, \"[CLS]\": 6, \"[SEP]\": 7}}}"

TEST(wordpiece_by_hand)
{
    struct chain *c = of(WORDPIECE);
    size_t n;
    check_ids(c,
              "Un\xc3\xa4"
              "ffable!",
              "1:0-2 2:2-6 3:6-10 4:10-11"); /* the word of BERT's paper, with an accent */
    check_ids(c, "unaffx un", "0:0-6 1:7-9");
    check_ids(c, "un\xe4\xb8\xadun", "1:0-2 5:2-5 1:5-7");
    check_ids(c, "unaffableaffable", "0:0-16"); /* more than 10 characters */
    assert_int_equal(*chain_template(c, false, &n), 6);
    assert_int_equal(*chain_template(c, true, &n), 7);
    chain_free(c);
}

/* ---- SentencePiece ---- */

/* A piece: its text, score and type. */
static void piece_put(struct buf *b, const char *text, float score, int type)
{
    size_t n = strlen(text);
    assert_ok(buf_printf(b, "\n%c\n%c%s%c", (char)(n + 9), (char)n, text, 0x15));
    assert_ok(buf_append(b, &score, sizeof(score)));
    assert_ok(buf_printf(b, "%c%c", 0x18, type));
}

/* Ends the model: its kind, whether it has byte fallback, and a normalizer without a prefix. */
static struct chain *model_of(struct buf *b, int kind, bool fallback)
{
    struct chain *c = NULL;
    struct why why = {0};
    const uint8_t end[] = {0x12, 5, 0x18, (uint8_t)kind, 0x98, 0x02, fallback, 0x1a, 4, 0x18, 0, 0x20, 0};
    assert_ok(buf_append(b, end, sizeof(end)));
    const struct bpe_text text = {"x.model", b->data, b->len};
    if (chain_sentencepiece_new(&text, &c, &why))
        fail_msg("%s", why.text);
    return c;
}

TEST(a_sentencepiece_bpe_by_hand)
{
    struct buf b = {0};
    piece_put(&b, "<unk>", 0, 2);
    piece_put(&b, "a", -9, 1);
    piece_put(&b, "b", -9, 1);
    piece_put(&b, "bb", -2, 1);
    piece_put(&b, "ab", -2, 1); /* the same score: the leftmost pair merges first */
    piece_put(&b, "aX", -1, 1); /* X alone is no piece */
    piece_put(&b, "u:", 0, 4);
    piece_put(&b, "<0x58>", 0, 6);
    piece_put(&b, "<s>", 0, 3);
    struct chain *c = model_of(&b, 2, true);
    check_ids(c, "abb", "4:0-2 2:2-3");
    check_ids(c, "bbab", "3:0-2 4:2-4");
    check_ids(c, "aX", "5:0-2");
    check_ids(c, "XX", "7:0-1 7:1-2");
    check_ids(c, "au:b", "1:0-1 6:1-3 2:3-4");
    check_ids(c, "zz", "0:0-2");  /* no bytes for z */
    check_ids(c, "<s>", "0:0-3"); /* a text never gives a control piece */
    chain_free(c);
    buf_fini(&b);
}

TEST(a_sentencepiece_unigram_by_hand)
{
    struct buf b = {0};
    piece_put(&b, "<unk>", 0, 2);
    piece_put(&b, "a", -1, 1);
    piece_put(&b, "aa", -2, 1);
    piece_put(&b, MARK, -1, 1);
    piece_put(&b, "ab", -50, 4); /* user-defined: its score does not count */
    struct chain *c = model_of(&b, 1, false);
    check_ids(c, "aa", "2:0-2");
    check_ids(c, "aab a", "1:0-1 4:1-3 3:3-4 1:4-5");
    check_ids(c, "a<unk>", "1:0-1 0:1-6");
    chain_free(c);
    buf_fini(&b);
}

TEST(models_that_are_refused)
{
    static const struct {
        const char *bytes;
        size_t n;
        const char *part;
    } cases[] = {
        {"\n\x05\n\x03"
         "abc",
         6, "it is damaged"},
        {"\n\x05\n\x03"
         "abc",
         7, "no piece for unknown"},
        {"\n\x02\n\x00", 4, "piece 0: it is empty"},
        {"\x12\x02\x18\x02", 4, "it is damaged, or not a SentencePiece model"},
        {"\n\x05\n\x03"
         "abc\x12\x02\x18\x03",
         11, "neither unigram nor bpe"},
        {"\n\x05\n\x03"
         "abc\x1a\x04\x12\x02zz",
         13, "map of characters is damaged"},
        {"\xff\xff\xff\xff", 4, "it is damaged"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct chain *c;
        struct why why = {0};
        const struct bpe_text text = {"x.model", (const uint8_t *)cases[i].bytes, cases[i].n};
        if (chain_sentencepiece_new(&text, &c, &why) == OK || !strstr(why.text, cases[i].part))
            fail_msg("case %zu: \"%s\", not \"%s\"", i, why.text, cases[i].part);
    }
}

/* ---- vocabularies with ranks ---- */

static void base64_put(struct buf *b, const uint8_t *p, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint32_t v = (uint32_t)p[0] << 16 | (n > 1 ? (uint32_t)p[1] << 8 : 0) | (n > 2 ? p[2] : 0);
    assert_ok(buf_printf(b, "%c%c%c%c", digits[v >> 18], digits[v >> 12 & 63], n > 1 ? digits[v >> 6 & 63] : '=',
                         n > 2 ? digits[v & 63] : '='));
}

/* 256 bytes, then "bc", "ab" and "abc", with 2 special tokens in front. */
static void tekken_make(struct buf *b, int size)
{
    static const char *const more[] = {"bc", "ab", "abc"};
    assert_ok(buf_printf(b,
                         "{\"config\": {\"pattern\": \"\\\\p{L}+|\\\\s+$|.\", \"default_vocab_size\": %d, "
                         "\"default_num_special_tokens\": 2}, \"vocab\": [",
                         size));
    for (int i = 0; i < 259; i++) {
        uint8_t byte = (uint8_t)i;
        assert_ok(buf_printf(b, "%s{\"rank\": %d, \"token_bytes\": \"", i ? ", " : "", i));
        base64_put(b, i < 256 ? &byte : (const uint8_t *)more[i - 256], i < 256 ? 1 : strlen(more[i - 256]));
        assert_ok(buf_printf(b, "\"}"));
    }
    assert_ok(buf_printf(b, "]}"));
}

TEST(a_tekken_file)
{
    struct buf b = {0}, ids = {0};
    struct tokenizer *t;
    struct why why = {0};
    tekken_make(&b, 261);
    if (tokenizer_bpe_new(b.data, b.len, &t, &why))
        fail_msg("%s", why.text);
    assert_int_equal(tokenizer_vocab(t), 261);
    assert_ok(tokenizer_encode(t, "abc bca", 7, &ids));
    const int32_t expected[] = {260, 2 + ' ', 258, 2 + 'a'};
    assert_int_equal(ids.len, sizeof(expected));
    assert_memory_equal(ids.data, expected, sizeof(expected));
    tokenizer_free(t);
    buf_fini(&b);
    tekken_make(&b, 262);
    assert_err(ERR_INVALID, tokenizer_bpe_new(b.data, b.len, &t, &why));
    assert_non_null(strstr(why.text, "default_vocab_size"));
    buf_fini(&b);
    buf_fini(&ids);
}

TEST(tiktoken_files_that_are_refused)
{
    static const struct {
        const char *text, *part;
    } cases[] = {{"YQ== 0\nYg== 1\n", "no known vocabulary has 2 tokens"},
                 {"YQ== 0\nYg==\n", "no known vocabulary has 2"}};
    for (size_t i = 0; i < 2; i++) {
        struct tokenizer *t;
        struct why why = {0};
        assert_err(ERR_UNSUPPORTED, tokenizer_bpe_new(cases[i].text, strlen(cases[i].text), &t, &why));
        if (!strstr(why.text, cases[i].part))
            fail_msg("%s", why.text);
    }
}

/* ---- streams ---- */

static void stream(const struct chain *c, const struct buf *text, size_t chunk, struct buf *ids)
{
    struct chain_encoder *e;
    assert_ok(chain_encoder_new(c, &e));
    chain_encoder_cut(e, 1);
    for (size_t at = 0, n; at < text->len; at += n) {
        n = chunk < text->len - at ? chunk : text->len - at;
        assert_ok(chain_encoder_feed(e, text->data + at, n, false, ids));
    }
    assert_ok(chain_encoder_feed(e, NULL, 0, true, ids));
    chain_encoder_free(e);
}

static void check_stream(const char *json)
{
    static const char *const parts[] = {"a",        "b",    "ab",           " ",  "  ",  "\n", MARK, "<s>",
                                        "\xc3\xa9", "\xff", "\xe4\xb8\xad", " a", "b a", "1",  "-",  "e\xcc\x81"};
    struct chain *c = of(json);
    struct chain_encoder *e;
    uint64_t state = 5;
    assert_true(chain_cuts(c));
    assert_ok(chain_encoder_new(c, &e));
    for (int i = 0; i < 300; i++) {
        struct buf text = {0}, ids = {0}, cut = {0}, spans = {0};
        for (size_t k = random_next(&state) % 60 + 1; k; k--) {
            const char *part = parts[random_next(&state) % (sizeof(parts) / sizeof(parts[0]))];
            assert_ok(buf_append(&text, part, strlen(part)));
        }
        assert_ok(chain_encode(e, text.data, text.len, &ids, &spans));
        stream(c, &text, 1 + (size_t)i % 7, &cut);
        assert_int_equal(ids.len, cut.len);
        assert_memory_equal(ids.data, cut.data, ids.len);
        buf_fini(&text);
        buf_fini(&ids);
        buf_fini(&cut);
        buf_fini(&spans);
    }
    chain_encoder_free(e);
    chain_free(c);
}

#define METASPACE(scheme) "{\"type\": \"Metaspace\", \"prepend_scheme\": \"" scheme "\", \"split\": true}"

TEST(a_stream_gives_the_ids_of_the_whole)
{
    check_stream(LLAMA(LEGACY, "null", "", ""));
    check_stream(LLAMA("null", METASPACE("first"), "", ""));
    check_stream(LLAMA("{\"type\": \"NFKC\"}", METASPACE("always"), "", ""));
    check_stream(
        LLAMA("{\"type\": \"Strip\", \"strip_left\": true, \"strip_right\": true}", METASPACE("always"), "", ""));
    check_stream(WORDPIECE);
}

/* What reaches across a space between letters forbids to cut there. */
TEST(what_forbids_to_cut_a_stream)
{
    static const char *const cases[] = {
        LLAMA(LEGACY, "null", ", \"b" MARK "\": 9, \"ab" MARK "\": 10", ", [\"b\", \"" MARK "\"]"),
        LLAMA("{\"type\": \"Replace\", \"pattern\": {\"String\": \"b a\"}, \"content\": \"x\"}", METASPACE("first"), "",
              ""),
        LLAMA("{\"type\": \"Replace\", \"pattern\": {\"Regex\": \"\\\\s+\"}, \"content\": \"x\"}", METASPACE("first"),
              "", ""),
        LLAMA("null", "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"a b\"}, \"behavior\": \"Isolated\"}", "", ""),
        LLAMA("null", "{\"type\": \"Split\", \"pattern\": {\"String\": \" \"}, \"behavior\": \"MergedWithPrevious\"}",
              "", ""),
        UNIGRAM,
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct chain *c = of(cases[i]);
        if (chain_cuts(c))
            fail_msg("case %zu", i);
        chain_free(c);
    }
}

/* ---- work ---- */

static uint64_t work_of(const struct chain *c, const char *part, size_t n)
{
    struct chain_encoder *e;
    struct buf text = {0}, ids = {0};
    for (size_t i = 0; i < n; i++)
        assert_ok(buf_append(&text, part, strlen(part)));
    assert_ok(chain_encoder_new(c, &e));
    assert_ok(chain_encoder_feed(e, text.data, text.len, true, &ids));
    uint64_t work = chain_encoder_work(e);
    chain_encoder_free(e);
    buf_fini(&text);
    buf_fini(&ids);
    return work;
}

/* Twice the text is at most a little more than twice the work: n log n, with n = 2^14 and 2^15. */
TEST(work_is_n_log_n)
{
    static const char *const files[] = {LLAMA(LEGACY, "null", "", ""), LLAMA("{\"type\": \"NFC\"}", "null", "", ""),
                                        UNIGRAM, WORDPIECE},
                             *const parts[] = {"a",        "ab",   " ",        MARK,
                                               "x",        "<s>",  "\xcc\x81", "\xcc\xa3\xcc\x81",
                                               "\xc3\xa9", "\xff", "<",        "abc"};
    for (size_t f = 0; f < sizeof(files) / sizeof(files[0]); f++) {
        struct chain *c = of(files[f]);
        for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
            uint64_t half = work_of(c, parts[i], 1 << 14), all = work_of(c, parts[i], 1 << 15);
            if (!half || all > half * 9 / 4 || all > (uint64_t)400 << 15)
                fail_msg("file %zu, \"%s\": %llu, then %llu", f, parts[i], (unsigned long long)half,
                         (unsigned long long)all);
        }
        chain_free(c);
    }
}

/* ---- refusals ---- */

#define WITH(field, value) \
    "{\"" field "\": " value ", \"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1}, \"merges\": []}}"

TEST(files_that_are_refused)
{
    static const struct {
        const char *json;
        err_t code;
        const char *part;
    } cases[] = {
        {"{", ERR_INVALID, "tokenizer.json, line 1"},
        {"{}", ERR_INVALID, "model: it is missing"},
        {WITH("normalizer", "{\"type\": \"Nmt\"}"), ERR_UNSUPPORTED, "normalizer.type: \"Nmt\""},
        {WITH("normalizer", "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFC\"}, {\"type\": \"X\"}]}"),
         ERR_UNSUPPORTED, "normalizer.normalizers[1].type: \"X\""},
        {WITH("normalizer", "{\"type\": \"NFC\", \"form\": 2}"), ERR_UNSUPPORTED, "normalizer.form: 2"},
        {WITH("normalizer", "{\"type\": \"Precompiled\", \"precompiled_charsmap\": \"AAAA\"}"), ERR_INVALID,
         "is damaged"},
        {WITH("normalizer", "{\"type\": \"Replace\", \"pattern\": {\"Regex\": \"(?<=a)b\"}, \"content\": \"\"}"),
         ERR_UNSUPPORTED, "normalizer: byte 0 of the pattern"},
        {WITH("decoder", "{\"type\": \"CTC\"}"), ERR_UNSUPPORTED, "decoder.type: \"CTC\""},
        {WITH("post_processor",
              "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"x\"}}, {\"Sequence\": "
              "{\"id\": \"A\"}}], \"special_tokens\": {}}"),
         ERR_INVALID, "special_tokens lacks a token"},
        {WITH("", "1"), ERR_UNSUPPORTED, "the file: 1 is not supported"},
        {WITH("surprise", "1"), ERR_UNSUPPORTED, "the file.surprise: 1"},
        {WITH("added_tokens", "[{\"id\": 7, \"content\": \"x\"}]"), ERR_INVALID,
         "\"x\" has the id 7, but tokenizers gives it 2"},
        {WITH("added_tokens", "[{\"id\": 2, \"content\": \"x\", \"glow\": true}]"), ERR_UNSUPPORTED,
         "added_tokens[0].glow: true"},
        {"{\"normalizer\": {\"type\": \"Strip\"}, \"added_tokens\": [{\"id\": 1, \"content\": \"  \"}], \"model\": "
         "{\"type\": \"BPE\", \"vocab\": {\"a\": 0}, \"merges\": []}}",
         ERR_UNSUPPORTED, "nothing is left of \"  \" by the normalizer"},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 0}, \"merges\": []}}", ERR_INVALID,
         "has its id already"},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 99999999999}, \"merges\": []}}", ERR_INVALID,
         "its id is not a number"},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1}, \"merges\": [\"a b\"]}}", ERR_INVALID,
         "model.merges[0]: \"a\" and \"b\": the vocabulary lacks the merged token"},
        {"{\"model\": {\"type\": \"BPE\", \"dropout\": 0.1, \"vocab\": {}, \"merges\": []}}", ERR_UNSUPPORTED,
         "model.dropout: 0.1"},
        {"{\"model\": {\"type\": \"Unigram\", \"vocab\": [[\"a\"]]}}", ERR_INVALID, "model.vocab[0]"},
        {"{\"model\": {\"type\": \"Unigram\", \"unk_id\": 5, \"vocab\": [[\"a\", 0]]}}", ERR_INVALID, "model.unk_id"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct chain *c;
        struct why why = {0};
        const struct bpe_text text = {"tokenizer.json", (const uint8_t *)cases[i].json, strlen(cases[i].json)};
        err_t err = chain_new(&text, &c, &why);
        if (err != cases[i].code || !strstr(why.text, cases[i].part))
            fail_msg("%s: %s: \"%s\", not \"%s\"", cases[i].json, err_name(err), why.text, cases[i].part);
    }
}

TEST(a_text_that_needs_an_unknown_token)
{
    struct chain *c = of("{\"model\": {\"type\": \"Unigram\", \"vocab\": [[\"a\", 0]]}}");
    struct chain_encoder *e;
    struct buf ids = {0};
    assert_ok(chain_encoder_new(c, &e));
    assert_err(ERR_UNSUPPORTED, chain_encoder_feed(e, (const uint8_t *)"ab", 2, true, &ids));
    buf_fini(&ids);
    chain_encoder_free(e);
    chain_free(c);
}

/* A byte-level file with a normalizer is a chain; without one bpe.c encodes it. All characters below U+0800 that NFC
 * keeps, and some above, have the same ids, with and without spans. */
TEST(byte_level_as_without_a_chain)
{
    struct small *s = small_new();
    struct buf json = {0}, text = {0}, ids = {0}, spans = {0}, expected = {0};
    struct tokenizer *plain = NULL, *chained = NULL;
    const char *null = strstr((char *)s->json.data, "null");
    size_t before = (size_t)(null - (char *)s->json.data);
    assert_ok(buf_append(&json, s->json.data, before));
    assert_ok(buf_printf(&json, "{\"type\": \"NFC\"}"));
    assert_ok(buf_append(&json, null + 4, s->json.len - before - 4));
    char id[32], *at = strstr((char *)json.data, "\"id\": 556");
    snprintf(id, sizeof(id), "\"id\": %03d", 256 + s->n); /* behind the vocabulary; the text does not have it */
    memcpy(at, id, strlen(id));
    for (uint32_t c = 1; c < 0x800; c++) {
        if (c == 0x340 || c == 0x341 || c == 0x343 || c == 0x344 || c == 0x374 || c == 0x37e || c == 0x387)
            continue; /* Python's unicodedata: NFC replaces these */
        assert_ok(c < 0x80 ? buf_printf(&text, "the %c ", (int)c)
                           : buf_printf(&text, "the %c%c ", (int)(0xc0 | c >> 6), (int)(0x80 | (c & 0x3f))));
    }
    assert_ok(buf_printf(&text, "\xe4\xb8\xad theory\n\n 2024 \xf0\x9f\x98\x80"));
    assert_ok(tokenizer_bpe_new(s->json.data, s->json.len, &plain, NULL));
    assert_ok(tokenizer_bpe_new(json.data, json.len, &chained, NULL));
    assert_null(tokenizer_chain(plain));
    assert_non_null(tokenizer_chain(chained));
    assert_ok(tokenizer_encode(plain, text.data, text.len, &expected));
    assert_ok(tokenizer_encode(chained, text.data, text.len, &ids));
    assert_int_equal(ids.len, expected.len);
    assert_memory_equal(ids.data, expected.data, ids.len);
    ids.len = 0;
    assert_ok(tokenizer_explain(chained, text.data, text.len, false, &ids, &spans, NULL));
    assert_int_equal(ids.len, expected.len);
    assert_memory_equal(ids.data, expected.data, ids.len);
    struct buf *bufs[] = {&json, &text, &ids, &spans, &expected};
    for (size_t i = 0; i < sizeof(bufs) / sizeof(bufs[0]); i++)
        buf_fini(bufs[i]);
    tokenizer_free(plain);
    tokenizer_free(chained);
    small_free(s);
}
