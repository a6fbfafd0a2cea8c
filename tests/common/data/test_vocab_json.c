/* Tokenizer files beside jansson: the tables have what its tree has, and a file that it refuses is refused with its
 * sentence. */
#include "common/data/vocab_json.h"
#include "tests/common/data/files.h"

static void compare_words(const struct vocab_json *v, const json_t *words)
{
    const char *key;
    json_t *value;
    int32_t i = 0;
    assert_int_equal(v->words.n, json_object_size(words));
    assert_int_equal(v->ids.len, json_object_size(words) * sizeof(int64_t));
    json_object_foreach((json_t *)words, key, value)
    {
        assert_int_equal(v->words.list[i].len, strlen(key));
        assert_memory_equal(vocab_text(&v->words, i), key, strlen(key));
        assert_int_equal(vocab_json_id(v, i), json_is_integer(value) ? json_integer_value(value) : -1);
        assert_int_equal(vocab_json_find(v, key, strlen(key)), vocab_json_id(v, i));
        i++;
    }
}

static void compare_text(const struct vocab_json *v, uint32_t at, uint32_t n, const json_t *text)
{
    assert_int_equal(n, json_string_length(text));
    assert_memory_equal(v->text.data + at, json_string_value(text), n);
}

static void compare_merges(const struct vocab_json *v, const json_t *list)
{
    assert_int_equal(vocab_json_merges(v), json_array_size(list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const struct vocab_json_merge *m = vocab_json_merge(v, i);
        const json_t *item = json_array_get(list, i), *left = json_array_get(item, 0), *right = json_array_get(item, 1);
        bool pair = json_array_size(item) == 2 && json_is_string(left) && json_is_string(right);
        assert_int_equal(m->kind, json_is_string(item) ? VOCAB_JSON_TEXT : pair ? VOCAB_JSON_PAIR : VOCAB_JSON_NONE);
        if (m->kind != VOCAB_JSON_NONE)
            compare_text(v, m->left, m->n_left, pair ? left : item);
        if (m->kind == VOCAB_JSON_PAIR)
            compare_text(v, m->right, m->n_right, right);
    }
}

static void compare_pieces(const struct vocab_json *v, const json_t *list)
{
    assert_int_equal(vocab_json_pieces(v), json_array_size(list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const struct vocab_json_piece *p = vocab_json_piece(v, i);
        const json_t *item = json_array_get(list, i), *text = json_array_get(item, 0), *score = json_array_get(item, 1);
        assert_int_equal(p->valid, json_is_string(text) && json_is_number(score));
        if (!p->valid)
            continue;
        const double expected = json_number_value(score);
        compare_text(v, p->text, p->n, text);
        assert_memory_equal(&p->score, &expected, sizeof(expected));
    }
}

/* The tree with empty values in place of the two that became tables. */
static void compare_rest(const struct vocab_json *v, json_t *root)
{
    json_t *model = json_object_get(root, "model");
    json_t *vocab = json_object_get(model, "vocab"), *merges = json_object_get(model, "merges");
    compare_words(v, json_is_object(vocab) ? vocab : NULL);
    compare_pieces(v, json_is_array(vocab) ? vocab : NULL);
    compare_merges(v, json_is_array(merges) ? merges : NULL);
    if (json_is_object(vocab))
        json_object_clear(vocab);
    json_array_clear(vocab);
    json_array_clear(merges);
    assert_true(json_equal(v->root, root));
}

static void check_kind(const char *text, size_t len, enum vocab_json_kind kind)
{
    struct bpe_text file = {"/f", (const uint8_t *)text, len};
    struct vocab_json v;
    struct why why = {{0}};
    json_error_t error;
    char expected[400];
    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, &error);
    err_t err = vocab_json_read(&file, kind, &v, &why);
    if ((err == OK) != json_is_object(root))
        fail_msg("%.*s: %s %s", (int)len, text, err_text(err), why.text);
    if (!root) {
        snprintf(expected, sizeof(expected), "/f, line %d: %s", error.line, error.text);
        assert_string_equal(why.text, expected);
    } else if (err) {
        assert_string_equal(why.text, "/f: it is not a JSON object");
    } else if (kind == VOCAB_JSON_WORDS) {
        assert_null(v.root);
        assert_int_equal(v.model, json_is_object(json_object_get(root, "model")));
        compare_words(&v, root);
    } else {
        compare_rest(&v, root);
    }
    json_decref(root);
    if (!err)
        vocab_json_fini(&v);
}

static void check(const char *text, size_t len)
{
    check_kind(text, len, VOCAB_JSON_TOKENIZER);
    check_kind(text, len, VOCAB_JSON_WORDS);
}

static const char *const texts[] = {
    "{\"a\": 1, \"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"\": 2,\n\"ab\": 3}, \"x\": [1, 2.5],\n"
    "\"merges\": [\"a b\", [\"a\", \"b\"], [\"a\"], [1, \"b\"], 5, [\"a\", \"b\", \"c\"], {\"0\": 1}, []]}, \"z\": {}}",
    "{\"model\": {\"merges\": [\"a b\"], \"vocab\": {\"a\": -1, \"b\": 1.5, \"c\": \"d\", \"d\": [1]}}}",
    "{\"model\": {\"vocab\": [[\"a\", -1.5]], \"merges\": {\"a\": 1}}, \"vocab\": {\"a\": 1}, \"merges\": [1]}",
    "{\"model\": {\"vocab\": {\"\\u00e9\\n\": 1, \"\\ud83d\\ude00\": 2, \"\xc3\xa9\": 3}, \"merges\": [\"\\\\ "
    "\\\"\"]}}",
    "{\"model\": {\"vocab\": [[\"a\", -1.25], [\"\\u00e9\", 2, 3], [\"\", 1e-400], [1, \"a\"], [\"a\"], 7, [\"a\", "
    "0.1]]}}",
    "{\"model\": {\"vocab\": [[\"a\", 1e999]]}}",
    "{\"model\": {\"vocab\": [[\"a\", 9223372036854775808]]}}",
    "{\"model\": {\"vocab\": [[\"a\", 1, {\"a\": 1, \"a\": 2}]]}}",
    "{\"model\": {\"vocab\": [], \"vocab\": {}}}",
    "{\"model\": {\"vocab\": {}, \"merges\": []}}",
    "{\"model\": [], \"vocab\": {\"a\": 1}}",
    "{\"vocab\": {\"vocab\": {\"a\": 1}}, \"model\": {\"model\": {\"vocab\": {\"a\": 1}}}}",
    "{}",
    "[]",
    "",
    "{\"model\": {\"vocab\": {\"a\": 0, \"a\": 1}}}",
    "{\"model\": {\"vocab\": {\"a\": 0},\n\"vocab\": {\"b\": 1}}}",
    "{\"model\": {\"merges\": [], \"merges\": []}}",
    "{\"model\": {\"vocab\": {\"a\": 0}}, \"model\": {}}",
    "{\"model\": {\"vocab\": {\"a\": 9223372036854775808}}}",
    "{\"model\": {\"vocab\": {\"a\\u0000b\": 1}}}",
    "{\"model\": {\"vocab\": {\"\\ud83d\": 1}}}",
    "{\"model\": {\"merges\": [\"a\\u0000b\"]}}",
    "{\"model\": {\"merges\": [[\"\\udc00\", \"a\"]]}}",
    "{\"model\": {\"vocab\": {\"\xc3\": 1, \"\xa9\": 2}}}",
    "{\"model\": {\"merges\": [\"\xe2\x82\"]}}",
    "{\"added\": [1,\n2,, 3], \"model\": {}}",
    "{\"model\": {\"vocab\": {\"a\": 0}}} x",
    "{\"a\": 1, \"a\": 2}",
    "{\"model\": {\"vocab\": {\"a\": 1e999}, \"merges\": [[{\"a\": 1, \"a\": 2}], 1e999]}}",
};

TEST(agrees_with_jansson)
{
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
        check(texts[i], strlen(texts[i]));
}

/* Changed and cut texts. */
TEST(agrees_with_jansson_on_changed_texts)
{
    static const char bytes[] = " \t\r\n{}[]:,\"\\/+-.abcdeu0129\xc3\xa9\x01";
    uint64_t state = 3;
    for (int round = 0; round < 60000; round++) {
        char text[512];
        const char *from = texts[random_next(&state) % (sizeof(texts) / sizeof(texts[0]))];
        size_t len = strlen(from);
        memcpy(text, from, len);
        for (int k = 0; len && k < 1 + round % 2; k++)
            text[random_next(&state) % len] = bytes[random_next(&state) % (sizeof(bytes) - 1)];
        check(text, len && random_next(&state) % 8 == 0 ? random_next(&state) % len : len);
    }
}

TEST(a_file_may_have_64_mib)
{
    struct vocab_json v;
    struct why why = {{0}};
    const struct bpe_text file = {"/f", (const uint8_t *)"", BPE_MAX_BYTES + 1};
    assert_int_equal(vocab_json_read(&file, VOCAB_JSON_TOKENIZER, &v, &why), ERR_LIMIT);
    assert_string_equal(why.text, "/f: more than 64 MiB");
}
