#include "common/data/table.h"
#include "tests/lib/test.h"

static const struct table_column columns[] = {{"id", TABLE_OTHER, "INT64"},      {"text", TABLE_BYTES, "string"},
                                              {"input_ids", TABLE_INTS, "list"}, {"labels", TABLE_INTS, "list"},
                                              {"loss_mask", TABLE_INTS, "list"}, {"attention_mask", TABLE_INTS, "list"},
                                              {"labels", TABLE_OTHER, "INT64"}};

static void assert_choice(int first, int n, const char *field, int text, int ids, int labels)
{
    struct table t = {0};
    struct doc_options o = {.field = field};
    struct why why = {0};
    err_t err = table_choose(&t, "t", columns + first, n, &o, &why);
    if (err)
        fail_msg("%s", why.text);
    assert_int_equal(t.column[TABLE_TEXT], text);
    assert_int_equal(t.column[TABLE_IDS], ids);
    assert_int_equal(t.column[TABLE_LABELS], labels);
}

static void assert_no_choice(int first, int n, const char *field, err_t want, const char *part)
{
    struct table t = {0};
    struct doc_options o = {.field = field};
    struct why why = {0};
    assert_err(want, table_choose(&t, "t", columns + first, n, &o, &why));
    if (!strstr(why.text, part))
        fail_msg("'%s' does not contain '%s'", why.text, part);
}

TEST(choice_of_columns)
{
    assert_choice(0, 2, NULL, 1, -1, -1);
    assert_choice(0, 3, "text", 1, -1, -1);
    assert_choice(2, 1, NULL, -1, 0, -1);
    assert_choice(2, 2, NULL, -1, 0, 1);
    assert_choice(0, 4, "input_ids", -1, 2, 3);
    assert_choice(0, 4, "labels", -1, 3, -1);
    assert_choice(0, 4, "text", 1, -1, -1); /* labels do not matter to text */
    assert_no_choice(0, 3, NULL, ERR_INVALID, "t: it has the columns text and input_ids; set data.field");
    assert_no_choice(0, 1, NULL, ERR_INVALID, "no column text or input_ids; the columns are: id. Set data.field");
    assert_no_choice(0, 2, "body", ERR_INVALID, "no column body; the columns are: id, text. Set data.field");
    assert_no_choice(0, 1, "id", ERR_UNSUPPORTED, "column id: its type is INT64");
    assert_no_choice(2, 3, NULL, ERR_INVALID, "labels and loss_mask");
}

/* A table of ids with one column beside it. */
static err_t make(enum table_role role, const int64_t *ids, const int64_t *beside, int64_t n, struct table *t,
                  struct document *ret, struct why *why)
{
    struct table_value v[TABLE_ROLES] = {[TABLE_IDS] = {.ints = ids, .n = n}};
    bool none;
    for (int i = 0; i < TABLE_ROLES; i++)
        t->column[i] = -1;
    t->file = "t";
    t->column[TABLE_IDS] = 0;
    if (role != TABLE_IDS) {
        t->column[role] = 1;
        v[role] = (struct table_value){.ints = beside, .n = n};
    }
    return table_document(t, 5, v, ret, &none, why);
}

TEST(weights_of_tokens)
{
    static const int64_t ids[] = {7, 8, INT32_MAX}, labels[] = {-100, 8, -100}, mask[] = {1, 0, 1};
    struct table t = {0};
    struct document d;
    struct why why;
    assert_ok(make(TABLE_IDS, ids, NULL, 3, &t, &d, &why));
    assert_true(d.n_ids == 3 && d.row == 5 && !d.weights && !d.text && d.ids[2] == INT32_MAX);
    assert_ok(make(TABLE_LABELS, ids, labels, 3, &t, &d, &why));
    assert_memory_equal(d.weights, "\0\1\0", 3);
    assert_ok(make(TABLE_LOSS_MASK, ids, mask, 3, &t, &d, &why));
    assert_memory_equal(d.weights, "\1\0\1", 3);
    assert_ok(make(TABLE_ATTENTION_MASK, ids, mask, 3, &t, &d, &why));
    assert_true(d.n_ids == 2 && d.ids[0] == 7 && d.ids[1] == INT32_MAX && !d.weights);
    assert_ok(make(TABLE_LOSS_MASK, ids, mask, 0, &t, &d, &why));
    assert_true(d.n_ids == 0 && d.ids && d.weights);
    table_fini(&t);
}

static void assert_wrong(enum table_role role, int64_t id, int64_t beside, const char *part)
{
    struct table t = {0};
    struct document d;
    struct why why = {0};
    assert_err(ERR_INVALID, make(role, &id, &beside, 1, &t, &d, &why));
    if (strncmp(why.text, "t: row 5: ", 10) != 0 || !strstr(why.text, part))
        fail_msg("'%s' does not contain '%s'", why.text, part);
    table_fini(&t);
}

TEST(values_that_make_no_sense)
{
    assert_wrong(TABLE_IDS, -1, 0, "token 0 is -1, which is no token id");
    assert_wrong(TABLE_IDS, (int64_t)INT32_MAX + 1, 0, "is 2147483648");
    assert_wrong(TABLE_LABELS, 3, 4, "label 0 is 4, but must be -100 or the token's id 3");
    assert_wrong(TABLE_LOSS_MASK, 3, 2, "of loss_mask is 2, but must be 0 or 1");
    assert_wrong(TABLE_ATTENTION_MASK, 3, -1, "of attention_mask is -1");
}

TEST(null_is_no_document)
{
    struct table_value v[TABLE_ROLES] = {[TABLE_TEXT] = {.null = true}};
    struct table t = {.file = "t", .column = {0, -1, -1, -1, -1, -1}};
    struct document d;
    bool none = false;
    assert_ok(table_document(&t, 0, v, &d, &none, NULL));
    assert_true(none);
    v[TABLE_TEXT] = (struct table_value){.bytes = (const uint8_t *)""};
    assert_ok(table_document(&t, 0, v, &d, &none, NULL));
    assert_true(!none && d.text && d.len == 0);
}

TEST(names_for_messages)
{
    char name[] = "a\033[2J\xff\xc3\xa4\x7f";
    table_clean_name(name);
    assert_string_equal(name, "a?[2J?\xc3\xa4?");
}
