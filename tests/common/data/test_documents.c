/* Sets with documents: boundaries and weights are compared with lists that the test makes itself, for every sample. */
#include "tests/common/data/expected.h"

TEST(each_line_is_a_document)
{
    static struct expected e;
    char *files[] = {
        file_make_text("a.jsonl", "{\"text\": \"one\"}\n\n{\"id\": 3, \"text\": \"two\\n\"}\r\n"),
        file_make_text("b.jsonl", "{\"text\": \"\"}\n{\"text\": null}\n  \n{\"text\":\"\\u00e9\\ud83d\\ude00\"}")};
    struct data_set *set = prepare_open((struct data_prepare){0}, 2, files);
    expect_text(&e, "one");
    expect_text(&e, "two\n");
    expect_text(&e, "\xc3\xa9\xf0\x9f\x98\x80");
    check_set(set, &e);
    assert_false(data_weighted(set));
    data_close(set);
}

TEST(text_files_have_no_documents)
{
    char *files[] = {file_make_text("a", "one\n"), file_make_text("b", "two\n")};
    struct data_set *set = prepare_open((struct data_prepare){0}, 2, files);
    struct data_document d;
    int32_t begins[7];
    uint8_t weights[7];
    assert_int_equal(data_documents(set), 0);
    assert_ok(data_document(set, 5, &d));
    assert_int_equal(d.begin, 0);
    assert_int_equal(d.end, 8);
    assert_ok(data_window_marks(set, 7, 0, true, begins, weights));
    for (int i = 0; i < 7; i++)
        assert_true(begins[i] == 0 && weights[i] == 1);
    data_close(set);
}
/* The value comes from sha256sum, of the five lines of text that docs/formats/prepared-data.md specifies. */
/* printf 'dtd-data 1\\ntokenizer bytes\\nlowercase 0\\nvocab -\\nfile %s\\n' $(printf 'one\\n' | sha256sum) gives it,
 * too. */
TEST(sets_of_text_keep_their_names)
{
    char *files[] = {file_make_text("a", "one\n")}, hash[65];
    struct why why = {0};
    assert_ok(prepare((struct data_prepare){0}, 1, files, hash, &why));
    assert_string_equal(hash, "0643761c670639274594932dea519409572d1dad37638d8823a62fdc1f4ee439");
}

TEST(weights_come_from_labels_and_masks)
{
    static struct expected e;
    char *files[] = {file_make_text("plain.jsonl", "{\"input_ids\": [1, 2, 3, 4, 5, 6, 7, 8, 9]}\n"),
                     file_make_text("labels.jsonl",
                                    "{\"input_ids\": [10, 11, 12], \"labels\": [-100, -100, 12]}\n"
                                    "{\"labels\": [20], \"input_ids\": [20], \"attention_mask\": [1]}\n"),
                     file_make_text("masks.jsonl", "{\"input_ids\": [30, 31], \"loss_mask\": [0, 1]}\n"
                                                   "{\"input_ids\": [], \"loss_mask\": []}\n"
                                                   "{\"input_ids\": [40, 41], \"loss_mask\": [true, false]}\n")};
    struct data_set *set = prepare_open((struct data_prepare){0}, 3, files);
    expect_document(&e, (const int32_t[]){1, 2, 3, 4, 5, 6, 7, 8, 9}, NULL, 9);
    expect_document(&e, (const int32_t[]){10, 11, 12}, (const uint8_t[]){0, 0, 1}, 3);
    expect_document(&e, (const int32_t[]){20}, NULL, 1);
    expect_document(&e, (const int32_t[]){30, 31}, (const uint8_t[]){0, 1}, 2);
    expect_document(&e, (const int32_t[]){40, 41}, (const uint8_t[]){1, 0}, 2);
    check_set(set, &e);
    assert_true(data_weighted(set));
    data_close(set);
}

/* Thousands of documents of random length, in batches of several threads, in shards of a few tokens. */
TEST(the_set_does_not_depend_on_threads)
{
    static struct expected e;
    static char text[1 << 20];
    uint64_t state = 99;
    size_t at = 0;
    for (int i = 0; i < 300; i++) {
        uint8_t weights[16];
        int32_t ids[16];
        int n = 1 + (int)(random_next(&state) % 15);
        at += (size_t)sprintf(text + at, "{\"input_ids\": [");
        for (int k = 0; k < n; k++)
            at += (size_t)sprintf(text + at, "%s%d", k ? ", " : "", ids[k] = (int)(random_next(&state) % 256));
        at += (size_t)sprintf(text + at, "], \"loss_mask\": [");
        for (int k = 0; k < n; k++)
            at += (size_t)sprintf(text + at, "%s%d", k ? ", " : "", weights[k] = random_next(&state) % 2);
        at += (size_t)sprintf(text + at, "]}\n");
        expect_document(&e, ids, weights, n);
    }
    char *files[] = {file_make("many.jsonl", text, at)};
    for (int threads = 1; threads <= 3; threads++) {
        struct data_set *set =
            prepare_open((struct data_prepare){.threads = threads, .shard_tokens = 1000 + threads}, 1, files);
        check_set(set, &e);
        data_close(set);
        char command[PATH_MAX + 16];
        snprintf(command, sizeof(command), "rm -r %s", file_path("cache"));
        assert_int_equal(system(command), 0);
    }
}

TEST(words_get_one_end_of_line_per_document)
{
    char *files[] = {file_make_text("a.jsonl", "{\"text\": \"a b\"}\n{\"text\": \"a\\n\"}\n")};
    struct data_set *set = prepare_open((struct data_prepare){.tokenizer = TOKENIZER_WORDS}, 1, files);
    static struct expected e;
    expect_document(&e, (const int32_t[]){1, 2, 0}, NULL, 3); /* a b <eos> */
    expect_document(&e, (const int32_t[]){1, 0}, NULL, 2);
    check_set(set, &e);
    data_close(set);
}

static const struct {
    const char *name, *text, *part;
    err_t err;
} refused[] = {
    {"both.jsonl", "{\"text\": \"a\", \"input_ids\": [1]}\n", "has the keys text and input_ids", ERR_INVALID},
    {"two.jsonl", "{\"text\": \"a\"}\n{\"input_ids\": [1]}\n", "line 2 has the key input_ids, but the lines before",
     ERR_INVALID},
    {"none.jsonl", "{\"content\": \"a\"}\n", "line 1 has none of the keys", ERR_INVALID},
    {"twice.jsonl", "{\"text\": \"a\", \"text\": \"b\"}\n", "the key text occurs twice", ERR_INVALID},
    {"number.jsonl", "{\"text\": 7}\n", "the value of text is not a string", ERR_INVALID},
    {"list.jsonl", "{\"text\": \"a\"}\n[1]\n", "line 2: it is not a JSON object", ERR_INVALID},
    {"cut.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b", "line 2, byte 12: a string does not end", ERR_INVALID},
    {"behind.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\"} x\n", "something follows the value", ERR_INVALID},
    {"control.jsonl", "{\"text\": \"a\"}\n{\"text\": \"b\tc\"}\n", "a control character in a string", ERR_INVALID},
    {"shift.jsonl", "{\"input_ids\": [1, 2], \"labels\": [2, 3]}\n", "labels are not shifted", ERR_INVALID},
    {"short.jsonl", "{\"input_ids\": [1, 2], \"labels\": [1]}\n", "labels has 1 elements, but input_ids has 2",
     ERR_INVALID},
    {"masks.jsonl", "{\"input_ids\": [1], \"labels\": [1], \"loss_mask\": [1]}\n", "labels and loss_mask", ERR_INVALID},
    {"padded.jsonl", "{\"input_ids\": [1, 0], \"attention_mask\": [1, 0]}\n", "the line is padded", ERR_UNSUPPORTED},
    {"fraction.jsonl", "{\"input_ids\": [1.0]}\n", "an integer is expected", ERR_INVALID},
    {"vocab.jsonl", "{\"input_ids\": [1]}\n{\"input_ids\": [300]}\n", "row 1: token id 300, but the tokenizer has 256",
     ERR_INVALID},
    {"turns.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}]}\n", "row 0 is a conversation",
     ERR_UNSUPPORTED},
    {"prompt.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\"}\n", "is a conversation (prompt", ERR_UNSUPPORTED},
    {"parts.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\"}]}]}\n", "a list of parts",
     ERR_UNSUPPORTED},
    {"role.jsonl", "{\"messages\": [{\"content\": \"hi\"}]}\n", "needs the keys role and content", ERR_INVALID},
    {"tools.jsonl", "{\"messages\": [{\"role\": \"a\", \"content\": \"b\", \"tool_calls\": [1]}]}\n", "tool_calls",
     ERR_UNSUPPORTED},
    {"empty.jsonl", "{\"text\": \"\"}\n", "the files are empty", ERR_INVALID},
};

TEST(bad_lines_are_refused)
{
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        char *file = file_make_text(refused[i].name, refused[i].text), hash[65];
        struct why why = {0};
        err_t err = prepare((struct data_prepare){0}, 1, &file, hash, &why);
        if (err != refused[i].err || !strstr(why.text, refused[i].part) || !strstr(why.text, refused[i].name))
            fail_msg("%s: %s: \"%s\"", refused[i].name, err_name(err), why.text);
    }
}

TEST(text_and_documents_do_not_mix)
{
    char *files[] = {file_make_text("a.jsonl", "{\"text\": \"a\"}\n"), file_make_text("b.txt", "b\n")}, hash[65];
    struct why why = {0};
    assert_err(ERR_INVALID, prepare((struct data_prepare){0}, 2, files, hash, &why));
    assert_non_null(strstr(why.text, "b.txt is text"));
    assert_err(ERR_INVALID, prepare((struct data_prepare){.format = "xml"}, 1, files, hash, &why));
    assert_non_null(strstr(why.text, "the formats are auto, megatron"));
    assert_err(ERR_INVALID, prepare((struct data_prepare){.eos = "none"}, 1, files + 1, hash, &why));
    assert_non_null(strstr(why.text, "data.eos"));
    /* As text, the lines are what they are. */
    struct data_set *set = prepare_open((struct data_prepare){.format = "text"}, 2, files);
    assert_int_equal(data_tokens(set), 14 + 2);
    data_close(set);
}

TEST(the_key_of_the_text_can_be_named)
{
    static struct expected e;
    char *files[] = {file_make_text("a.jsonl", "{\"body\": \"x\", \"text\": 3, \"messages\": []}\n")}, hash[65];
    struct why why = {0};
    struct data_set *set = prepare_open((struct data_prepare){.field = "body"}, 1, files);
    expect_text(&e, "x");
    assert_int_equal(data_documents(set), 1);
    assert_int_equal(data_tokens(set), 1);
    data_close(set);
    assert_err(ERR_INVALID, prepare((struct data_prepare){.field = "title"}, 1, files, hash, &why));
    assert_non_null(strstr(why.text, "no key \"title\" (data.field)"));
}

/* The files of marks are covered by the checks of the set. */
TEST(damaged_marks_are_noticed)
{
    static const char *const names[] = {"documents.bin", "weights.bin"};
    char *files[] = {file_make_text("a.jsonl", "{\"input_ids\": [1, 2, 3, 4], \"loss_mask\": [1, 0, 1, 0]}\n"
                                               "{\"input_ids\": [1, 2, 3, 4, 5]}\n")};
    for (int i = 0; i < 2; i++) {
        char hash[65], path[PATH_MAX];
        struct why why = {0};
        struct data_set *set;
        assert_ok(prepare((struct data_prepare){0}, 1, files, hash, &why));
        snprintf(path, sizeof(path), "%s/%s/%s", file_path("cache"), hash, names[i]);
        int fd = open(path, O_RDWR);
        uint8_t byte;
        assert_int_equal(pread(fd, &byte, 1, 0), 1);
        byte ^= 0x80;
        assert_int_equal(pwrite(fd, &byte, 1, 0), 1);
        assert_ok(data_open(file_path("cache"), hash, &set, &why));
        assert_err(ERR_CORRUPT, data_verify(set, &why));
        assert_non_null(strstr(why.text, names[i]));
        if (i == 0) { /* the first document would end behind the second */
            int32_t begins[8];
            uint8_t weights[8];
            assert_err(ERR_CORRUPT, data_window_marks(set, 8, 0, true, begins, weights));
        }
        data_close(set);
        assert_int_equal(ftruncate(fd, 1), 0);
        close(fd);
        assert_err(ERR_CORRUPT, data_open(file_path("cache"), hash, &set, &why));
        assert_non_null(strstr(why.text, names[i]));
    }
}

/* ? 0, to 1, be 2, <s> 3, </s> 4; the post-processor puts <s> before a text. */
static const char tokenizer_json[] =
    "{\"added_tokens\": [{\"id\": 3, \"content\": \"<s>\", \"special\": true}, {\"id\": 4, \"content\": \"</s>\", "
    "\"special\": true}], \"pre_tokenizer\": {\"type\": \"Whitespace\"}, \"post_processor\": {\"type\": "
    "\"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"<s>\", \"type_id\": 0}}, {\"Sequence\": "
    "{\"id\": \"A\", \"type_id\": 0}}], \"pair\": [], \"special_tokens\": {\"<s>\": {\"id\": \"<s>\", \"ids\": [3], "
    "\"tokens\": [\"<s>\"]}}}, \"model\": {\"type\": \"WordLevel\", \"unk_token\": \"?\", \"vocab\": {\"?\": 0, "
    "\"to\": 1, \"be\": 2, \"<s>\": 3, \"</s>\": 4}}}";

TEST(tokens_around_documents)
{
    static const struct {
        const char *bos, *eos;
        int32_t ids[8];
        int n; /* of the first document, "to be" */
    } cases[] = {
        {NULL, NULL, {3, 1, 2, 4, 3, 2, 4}, 4},
        {"file", "none", {3, 1, 2, 3, 2}, 3},
        {"none", "none", {1, 2, 2}, 2},
        {"none", "always", {1, 2, 4, 2, 4}, 3},
        {"always", "auto", {3, 1, 2, 4, 3, 2, 4}, 4},
        {"to", "be", {0}, 0},
    };
    char *tokenizer[] = {file_make_text("tokenizer.json", tokenizer_json)};
    char *files[] = {file_make_text("a.jsonl", "{\"text\": \"to be\"}\n{\"text\": \"be\"}\n")};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        static struct expected e;
        struct data_prepare p = {.tokenizer = TOKENIZER_BPE,
                                 .tokenizer_files = tokenizer,
                                 .n_tokenizer_files = 1,
                                 .bos = cases[i].bos,
                                 .eos = cases[i].eos};
        if (i == 5)
            files[0] = file_make_text("b.jsonl", "{\"text\": \"be be\"}\n{\"text\": \"be be\"}\n");
        e = (struct expected){0};
        struct data_set *set = prepare_open(p, 1, files);
        if (i < 5) {
            expect_document(&e, cases[i].ids, NULL, cases[i].n);
            expect_document(&e, cases[i].ids + cases[i].n, NULL, cases[i].n - 1);
        } else { /* any token may be named */
            expect_document(&e, (const int32_t[]){1, 2, 2, 2}, NULL, 4);
            expect_document(&e, (const int32_t[]){1, 2, 2, 2}, NULL, 4);
        }
        check_set(set, &e);
        data_close(set);
    }
}

TEST(a_doubled_begin_is_refused)
{
    char *tokenizer[] = {file_make_text("tokenizer.json", tokenizer_json)}, hash[65];
    char *files[] = {file_make_text("a.jsonl", "{\"text\": \"to be\"}\n{\"text\": \"<s> be\"}\n")};
    struct data_prepare p = {.tokenizer = TOKENIZER_BPE, .tokenizer_files = tokenizer, .n_tokenizer_files = 1};
    struct why why = {0};
    assert_err(ERR_INVALID, prepare(p, 1, files, hash, &why));
    assert_non_null(strstr(why.text, "a.jsonl: row 1: the text begins with the token that data.bos puts before"));
    p.bos = "none";
    assert_ok(prepare(p, 1, files, hash, &why));
    p.bos = "<bos>";
    assert_err(ERR_INVALID, prepare(p, 1, files, hash, &why));
    assert_string_equal(why.text, "data.bos: the tokenizer has no token \"<bos>\"");
    assert_err(ERR_INVALID, prepare((struct data_prepare){.eos = "always"}, 1, files, hash, &why));
    assert_non_null(strstr(why.text, "data.eos: the tokenizer bytes has no such token; write none"));
}

/* Ids of other programs get no tokens; a token marks where documents of a file without an index begin or end. */
TEST(tokens_cut_files_of_ids)
{
    static const uint16_t ids[] = {3, 1, 4, 3, 2, 2, 4, 3, 1};
    static const int64_t ends[3][4] = {{3, 7, 9}, {3, 7, 9}, {9}};
    char *tokenizer[] = {file_make_text("tokenizer.json", tokenizer_json)};
    char *files[] = {file_make("train.bin", ids, sizeof(ids))};
    for (int i = 0; i < 3; i++) {
        static struct expected e;
        struct data_prepare p = {.tokenizer = TOKENIZER_BPE,
                                 .tokenizer_files = tokenizer,
                                 .n_tokenizer_files = 1,
                                 .format = "uint16",
                                 .bos = i == 1 ? "<s>" : NULL,
                                 .eos = i == 0 ? "always" : NULL};
        struct data_set *set = prepare_open(p, 1, files);
        e = (struct expected){0};
        for (int64_t k = 0, begin = 0; begin < 9; begin = ends[i][k++]) {
            int32_t wide[9];
            for (int64_t at = begin; at < ends[i][k]; at++)
                wide[at - begin] = ids[at];
            expect_document(&e, wide, NULL, ends[i][k] - begin);
        }
        e.documents = i < 2 ? 3 : 0;
        check_set(set, &e);
        data_close(set);
    }
}
