/* Texts with a class: the label is the only target, at the last token that is left of the text. */
#include "common/data/view.h"
#include "tests/common/data/expected.h"

#define SEQ 8

static const char rows[] = "{\"text\": \"abc\", \"label\": 1}\n"
                           "{\"text\": \"\", \"label\": 0}\n"
                           "{\"label\": 4, \"text\": \"12345678\"}\n"
                           "{\"text\": \"0123456789\", \"label\": 0, \"labels\": [1]}\n"
                           "{\"text\": \"x\", \"label\": 2}";
static const struct {
    const char *text;
    int label;
} expected[] = {{"abc", 1}, {"12345678", 4}, {"01234567", 0}, {"x", 2}};

static struct data_view *view_make(const struct data_set *set, int64_t labels)
{
    struct data_view *v;
    struct why why = {0};
    const struct job_data d = {.documents = DOCUMENTS_JOINED};
    if (view_open(set, &d, SEQ, labels, &v, &why))
        fail_msg("%s", why.text);
    return v;
}

TEST(the_label_is_the_target_of_the_last_token)
{
    char *file = file_make_text("rows.jsonl", rows);
    struct data_set *set = prepare_open((struct data_prepare){.label = "label"}, 1, &file);
    struct data_view *v = view_make(set, 5);
    assert_int_equal(data_labels(set), 5);
    assert_true(view_masks(v));
    assert_int_equal(view_samples(v), 4);
    for (int s = 0; s < 4; s++) {
        int32_t ids[SEQ], targets[SEQ], begins[SEQ];
        int64_t count;
        const int n = (int)strlen(expected[s].text);
        assert_ok(view_sample(v, s, ids, targets));
        assert_ok(view_begins(v, s, begins));
        assert_ok(view_count(v, s, &count));
        assert_int_equal(count, 1);
        for (int i = 0; i < SEQ; i++) {
            assert_int_equal(ids[i], i < n ? expected[s].text[i] : 0);
            assert_int_equal(targets[i], i == n - 1 ? expected[s].label : -1);
            assert_int_equal(begins[i], 0);
        }
    }
    view_close(v);
    data_close(set);
}

TEST(tokens_with_a_label)
{
    char *file = file_make_text("ids.jsonl", "{\"input_ids\": [5, 6], \"class\": 3}\n");
    struct data_set *set = prepare_open((struct data_prepare){.label = "class"}, 1, &file);
    struct data_view *v = view_make(set, 4);
    int32_t ids[SEQ], targets[SEQ];
    assert_ok(view_sample(v, 0, ids, targets));
    assert_true(ids[0] == 5 && ids[1] == 6 && ids[2] == 0 && targets[0] == -1 && targets[1] == 3 && targets[2] == -1);
    view_close(v);
    data_close(set);
}

TEST(sets_and_models_must_agree)
{
    char *file = file_make_text("rows.jsonl", rows);
    struct data_set *with = prepare_open((struct data_prepare){.label = "label"}, 1, &file),
                    *without = prepare_open((struct data_prepare){0}, 1, &file);
    const struct {
        const struct data_set *set;
        int64_t labels;
        const char *text;
    } wrong[] = {{with, 0, "set model.labels to at least 5"},
                 {with, 4, "a document has the label 4, but model.labels is 4: write at least 5"},
                 {without, 2, "the set was prepared without labels"}};
    const struct job_data d = {.documents = DOCUMENTS_JOINED};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct data_view *v;
        struct why why = {0};
        assert_err(ERR_INVALID, view_open(wrong[i].set, &d, SEQ, wrong[i].labels, &v, &why));
        if (!strstr(why.text, wrong[i].text))
            fail_msg("%s", why.text);
    }
    data_close(with);
    data_close(without);
}

TEST(what_is_no_label)
{
    static const struct {
        const char *text, *why;
    } wrong[] = {
        {"{\"text\": \"a\"}", "line 1 has no key \"label\" (data.label)"},
        {"{\"text\": \"a\", \"label\": null}", "line 1: the value of label is no class"},
        {"{\"text\": \"a\", \"label\": \"1\"}", "line 1: the value of label is no class"},
        {"{\"text\": \"a\", \"label\": 1.5}", "line 1: the value of label is no class"},
        {"{\"text\": \"a\", \"label\": -1}", "line 1: the value of label is no class"},
        {"{\"text\": \"a\", \"label\": 65536}", "an integer from 0 to 65535"},
        {"{\"text\": \"a\", \"label\": 256}", "a tokenizer of 256 tokens allows labels below that"},
        {"{\"text\": \"a\", \"label\": 1, \"label\": 1}", "the key label occurs twice"},
        {"{\"input_ids\": [1], \"loss_mask\": [1], \"label\": 1}", "a label beside a mask of the loss"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}], \"label\": 1}", "a label beside a conversation"},
        {"plain text", "has no documents with labels"},
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        char *file = file_make_text("rows", wrong[i].text), hash[65];
        struct why why = {0};
        if (!prepare((struct data_prepare){.label = "label"}, 1, &file, hash, &why))
            fail_msg("%s: accepted", wrong[i].text);
        if (!strstr(why.text, wrong[i].why))
            fail_msg("%s: %s", wrong[i].text, why.text);
    }
}
