/* The YAML reader: lines, bounds, and the parts of YAML that are refused. */
#include "common/conf/tree.h"
#include "tests/lib/test.h"

static struct tree_node *parse(const char *text)
{
    struct tree_node *root = NULL;
    struct tree_error error = {0};
    err_t err = tree_parse(text, strlen(text), &root, &error);
    if (err)
        fail_msg("%s: line %d: %s", err_name(err), error.line, error.text);
    return root;
}

static void refuse(err_t code, const char *text, size_t len, int line, const char *part)
{
    struct tree_node *root = NULL;
    struct tree_error error = {0};
    err_t err = tree_parse(text, len, &root, &error);
    if (err != code || error.line != line || !strstr(error.text, part) || root)
        fail_msg("%.60s: %s, line %d, \"%s\"; expected line %d and \"%s\"", text, err_name(err), error.line, error.text,
                 line, part);
}

TEST(maps_lists_and_lines)
{
    struct tree_node *root = parse("a: 1\nb:\n  - x\n  - 'y'\nc: {d: \"e\",\n    f: [ ]}\n");
    struct tree_node *a = root->first, *b = a->next, *c = b->next;
    assert_int_equal(root->kind, TREE_MAP);
    assert_string_equal(a->key, "a");
    assert_string_equal(a->text, "1");
    assert_int_equal(a->line, 1);
    assert_true(a->plain);
    assert_int_equal(b->kind, TREE_LIST);
    assert_int_equal(b->line, 2);
    assert_int_equal(b->first->line, 3);
    assert_string_equal(b->first->next->text, "y");
    assert_false(b->first->next->plain);
    assert_null(b->first->next->next);
    assert_int_equal(c->kind, TREE_MAP);
    assert_string_equal(c->first->text, "e");
    assert_int_equal(c->first->next->line, 6);
    assert_null(c->first->next->first);
    assert_null(c->next);
    tree_free(root);
}

TEST(nothing_is_null)
{
    static const char *const empty[] = {"", "# a comment\n", "~", "null", "---\n", "\xef\xbb\xbf"};
    for (size_t i = 0; i < sizeof(empty) / sizeof(empty[0]); i++) {
        struct tree_node *root = parse(empty[i]);
        assert_true(tree_is_null(root));
        tree_free(root);
    }
    struct tree_node *root = parse("a: ''\nb:\n");
    assert_false(tree_is_null(root->first));
    assert_true(tree_is_null(root->first->next));
    tree_free(root);
}

TEST(refused_parts)
{
    static const struct {
        const char *text;
        int line;
        const char *part;
    } cases[] = {
        {"a: &x 1\nb: *x\n", 1, "anchors"},
        {"a: 1\nb: *x\n", 2, "alias"},
        {"a: *.txt\n", 1, "in quotes"},
        {"a: !!int 3\n", 1, "tags"},
        {"a: !x [1]\n", 1, "tags"},
        {"a: &x {b: 1}\n", 1, "anchors"},
        {"a: 1\nb: 2\na: 3\n", 3, "first given in line 1"},
        {"a: 1\n---\nb: 2\n", 2, "second YAML document"},
        {"a: [1, 2\n", 2, "flow sequence"},
        {"a: 1\n\tb: 2\n", 2, "tab"},
        {"a: \"\\0\"\n", 1, "zero byte"},
        {"{[a]: 1}\n", 1, "a key must be a string"},
        {"? \n: 1\n", 1, "a key must be a string"},
        {"a: 1\nb\n", 3, "not YAML"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        refuse(ERR_INVALID, cases[i].text, strlen(cases[i].text), cases[i].line, cases[i].part);
    refuse(ERR_INVALID, "a: \xff\n", 5, 1, "UTF-8");
    refuse(ERR_INVALID,
           "\xff\xfe"
           "a\0:\0",
           6, 1, "UTF-8");
    refuse(ERR_INVALID, "a\0b", 3, 1, "control characters");
}

TEST(depth_is_bounded)
{
    char text[4096];
    memset(text, '[', sizeof(text));
    refuse(ERR_LIMIT, text, sizeof(text), 1, "nested deeper");
    struct tree_node *root = parse("[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]"); /* 15 lists and a number */
    tree_free(root);
    refuse(ERR_LIMIT, "[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]", 33, 1, "nested deeper");
}

TEST(number_of_keys_is_bounded)
{
    char *text = malloc(32 * (TREE_MAX_KEYS + 1)), *at = text;
    for (int i = 0; i <= TREE_MAX_KEYS; i++)
        at += sprintf(at, "k%d: 1\n", i);
    refuse(ERR_LIMIT, text, (size_t)(at - text), TREE_MAX_KEYS + 1, "more than 1024 keys");
    free(text);
}

TEST(number_of_values_is_bounded)
{
    size_t len = 2 * (size_t)TREE_MAX_NODES + 2;
    char *text = malloc(len);
    for (size_t i = 0; i < len; i++)
        text[i] = i % 2 ? ',' : '1';
    text[0] = '[';
    text[1] = '1';
    for (size_t i = 2; i < len; i++)
        text[i] = i % 2 ? '1' : ',';
    text[len - 1] = ']';
    refuse(ERR_LIMIT, text, len, 1, "values");
    free(text);
}

TEST(size_is_bounded)
{
    char *text = calloc(1, (size_t)TREE_MAX_BYTES + 1);
    refuse(ERR_LIMIT, text, (size_t)TREE_MAX_BYTES + 1, 0, "at most");
    free(text);
}
