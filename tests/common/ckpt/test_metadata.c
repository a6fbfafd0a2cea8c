/* .metadata: files of CPython and torch are read, errors are reported, and no file can make the reader execute code,
 * recurse, or allocate more than its size. */
#include "common/ckpt/metadata.h"
#include "common/ckpt/pickle.h"
#include "tests/common/ckpt/golden.h"
#include "tests/lib/test.h"

static void check_worked_example(const struct meta *m)
{
    assert_int_equal(m->n_tensors, 1);
    assert_int_equal(m->n_leaves, 1);
    const struct ckpt_tensor *t = &m->tensors[0];
    assert_string_equal(t->fqn, "model.w");
    assert_int_equal(t->dtype, DT_F32);
    assert_int_equal(t->ndim, 2);
    assert_int_equal(t->shape[0], 2);
    assert_int_equal(t->shape[1], 3);
    assert_int_equal(t->n_chunks, 1);
    assert_string_equal(t->chunks[0].file, "__0_0.distcp");
    assert_int_equal(t->chunks[0].offset, 704);
    assert_int_equal(t->chunks[0].length, 1300);
    assert_string_equal(m->leaves[0].fqn, "step");
    assert_int_equal(m->leaves[0].offset, 0);
    assert_int_equal(m->leaves[0].length, 704);
    assert_false(m->ours);
}

TEST(golden_streams)
{
    static const char *const names[] = {"metadata_memo", "metadata_plain"};
    for (int i = 0; i < 2; i++) {
        struct buf b;
        struct meta m;
        struct why why = {{0}};
        golden_read(names[i], &b);
        if (metadata_read(b.data, b.len, &m, &why))
            fail_msg("%s: %s", names[i], why.text);
        check_worked_example(&m);
        metadata_fini(&m);
        buf_fini(&b);
    }
}

TEST(every_prefix_is_refused)
{
    struct buf b;
    struct meta m;
    struct why why;
    golden_read("metadata_memo", &b);
    for (size_t n = 0; n < b.len; n++) {
        uint8_t *exact = malloc(n + 1); /* so that the sanitizer detects a read beyond the end */
        memcpy(exact, b.data, n);
        exact = realloc(exact, n ? n : 1);
        err_t err = metadata_read(exact, n, &m, &why);
        if (err == OK)
            fail_msg("the first %zu of %zu bytes are accepted", n, b.len);
        free(exact);
    }
    buf_fini(&b);
}

/* Two tensors, three chunks, one leaf: written and read again. */
static struct meta small(struct ckpt_tensor *t, struct ckpt_chunk *k, struct meta_leaf *l)
{
    k[0] = (struct ckpt_chunk){{2, {0, 0}, {2, 6}}, "__0_0.distcp", 0, 1000};
    k[1] = (struct ckpt_chunk){{2, {2, 0}, {2, 6}}, "__1_0.distcp", 0, 1000};
    k[2] = (struct ckpt_chunk){{0, {0}, {0}}, "__0_0.distcp", 1024, ((int64_t)1 << 40)};
    t[0] = (struct ckpt_tensor){(char *)(uintptr_t) "a.weight", DT_BF16, 2, {4, 6}, k, 2};
    t[1] = (struct ckpt_tensor){(char *)(uintptr_t) "optimizer.state.a.weight.step", DT_F32, 0, {0}, k + 2, 1};
    l[0] = (struct meta_leaf){"train_state.step", "__0_0.distcp", 70000, 700};
    return (struct meta){.tensors = t, .leaves = l, .n_tensors = 2, .n_leaves = 1};
}

static err_t round_trip(const struct meta *m, struct meta *ret, struct why *why)
{
    struct buf b = {0};
    err_t err = metadata_write(m, &b);
    if (!err)
        err = metadata_read(b.data, b.len, ret, why);
    buf_fini(&b);
    return err;
}

TEST(written_and_read)
{
    struct ckpt_tensor t[2];
    struct ckpt_chunk k[3];
    struct meta_leaf l[1];
    struct meta in = small(t, k, l), out;
    struct why why = {{0}};
    assert_ok(round_trip(&in, &out, &why));
    assert_true(out.ours);
    assert_int_equal(out.n_tensors, 2);
    assert_string_equal(out.tensors[0].fqn, "a.weight");
    assert_int_equal(out.tensors[0].dtype, DT_BF16);
    assert_int_equal(out.tensors[0].n_chunks, 2);
    assert_true(box_equal(&out.tensors[0].chunks[1].box, &k[1].box));
    assert_string_equal(out.tensors[0].chunks[1].file, "__1_0.distcp");
    assert_int_equal(out.tensors[1].ndim, 0);
    assert_int_equal(out.tensors[1].chunks[0].length, (int64_t)1 << 40);
    assert_string_equal(out.leaves[0].fqn, "train_state.step");
    metadata_fini(&out);
}

/* Layouts that a writer must not produce. */
TEST(bad_boxes_are_named)
{
    struct ckpt_tensor t[2];
    struct ckpt_chunk k[3];
    struct meta_leaf l[1];
    struct meta in = small(t, k, l), out;
    struct why why;
    k[1].box.offset[0] = 1;
    assert_err(ERR_CORRUPT, round_trip(&in, &out, &why));
    assert_non_null(strstr(why.text, "overlap"));
    assert_non_null(strstr(why.text, "a.weight"));
    k[1].box.offset[0] = 3;
    assert_err(ERR_CORRUPT, round_trip(&in, &out, &why));
    assert_non_null(strstr(why.text, "outside"));
    k[1].box.offset[0] = 0; /* two places for one box */
    assert_err(ERR_CORRUPT, round_trip(&in, &out, &why));
}

TEST(paths_that_lead_out_are_refused)
{
    static const char *const bad[] = {"/etc/passwd", "../x", "a/../../x", "", ".", "a//b", "a/"};
    struct ckpt_tensor t[2];
    struct ckpt_chunk k[3];
    struct meta_leaf l[1];
    struct meta out;
    struct why why;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct meta in = small(t, k, l);
        l[0].file = bad[i];
        if (round_trip(&in, &out, &why) != ERR_CORRUPT)
            fail_msg("\"%s\" is accepted", bad[i]);
    }
    struct meta in = small(t, k, l);
    l[0].file = "sub/__0_0.distcp";
    assert_ok(round_trip(&in, &out, &why));
    metadata_fini(&out);
}

/* ---- pickle alone ---- */

static err_t pickle_text_read(const char *hex, struct pickle *ret, struct why *why)
{
    struct buf b = {0};
    golden_parse(hex, strlen(hex), &b);
    err_t err = pickle_read(b.data, b.len, ret, why);
    buf_fini(&b);
    return err;
}

TEST(values_of_every_kind)
{
    struct pickle p;
    struct why why = {{0}};
    /* [0, 255, 65535, -1, 2**40, -2**63, 2**63, 1.5, 'a', b'\x01', None, True, False, (), (1,), {'k': 1}, 'long'] */
    static const char hex[] = "8004 5d28 4b00 4bff 4dffff 4affffffff 8a06000000000001 8a080000000000000080 "
                              "8a09000000000000008000 473ff8000000000000 8c0161 430101 4e 88 89 29 4b0185 "
                              "7d8c016b4b0173 58040000006c6f6e67 652e";
    if (pickle_text_read(hex, &p, &why))
        fail_msg("%s", why.text);
    const struct pickle_node *list = pickle_node(&p, p.root);
    static const int64_t ints[] = {0, 255, 65535, -1, (int64_t)1 << 40, INT64_MIN};
    assert_int_equal(list->kind, PK_LIST);
    assert_int_equal(list->len, 17);
    for (uint32_t i = 0; i < 6; i++) {
        assert_int_equal(pickle_item(&p, list, i)->kind, PK_INT);
        assert_int_equal(pickle_item(&p, list, i)->i, ints[i]);
    }
    static const uint8_t kinds[] = {PK_BIG,  PK_FLOAT, PK_STR,   PK_BYTES, PK_NONE, PK_BOOL,
                                    PK_BOOL, PK_TUPLE, PK_TUPLE, PK_DICT,  PK_STR};
    for (uint32_t i = 0; i < sizeof(kinds); i++)
        assert_int_equal(pickle_item(&p, list, 6 + i)->kind, kinds[i]);
    assert_true(pickle_item(&p, list, 7)->f == 1.5);
    assert_string_equal(pickle_text(pickle_item(&p, list, 8)), "a");
    assert_int_equal(pickle_get(&p, pickle_item(&p, list, 15), "k")->i, 1);
    assert_null(pickle_get(&p, pickle_item(&p, list, 15), "j"));
    assert_null(pickle_item(&p, list, 17));
    pickle_fini(&p);
}

TEST(what_is_no_pickle_is_said)
{
    static const struct {
        const char *hex;
        err_t err;
    } bad[] = {
        {"", ERR_CORRUPT},
        {"8004", ERR_CORRUPT},
        {"2e", ERR_CORRUPT},
        {"800652e", ERR_UNSUPPORTED},
        {"8004692e", ERR_UNSUPPORTED},
        {"80045d8c01612e", OK},
        {"800428652e", ERR_CORRUPT},
        {"80044e612e", ERR_CORRUPT},
        {"8004684e2e", ERR_CORRUPT},
        {"80048cff612e", ERR_CORRUPT},
        {"8004 8d ffffffffffffffff 2e", ERR_CORRUPT},
        {"8004 4e 72 ffffffff 2e", ERR_LIMIT},
        {"8004 28 4e 85 2e", OK},
        {"8004 4e 28 85 2e", ERR_CORRUPT},
        {"8004 63 6f73 0a 2e", ERR_CORRUPT},
        {"8004 8a 05 01 2e", ERR_CORRUPT},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct pickle p;
        struct why why = {{0}};
        err_t err = pickle_text_read(bad[i].hex, &p, &why);
        if (err != bad[i].err)
            fail_msg("%s gives %s (%s)", bad[i].hex, err_name(err), why.text);
        if (err)
            assert_true(why.text[0]);
        else
            pickle_fini(&p);
    }
}

/* os.system('...') becomes a node and is not executed. */
TEST(nothing_is_ever_called)
{
    struct pickle p;
    struct why why;
    struct meta m;
    static const char hex[] = "8004 8c026f73 8c0673797374656d 93 8c0474727565 85 52 2e";
    assert_ok(pickle_text_read(hex, &p, &why));
    const struct pickle_node *n = pickle_node(&p, p.root);
    assert_int_equal(n->kind, PK_CALL);
    assert_int_equal(pickle_node(&p, n->a)->global, PG_OPAQUE);
    pickle_fini(&p);
    struct buf b = {0};
    golden_parse(hex, strlen(hex), &b);
    assert_err(ERR_CORRUPT, metadata_read(b.data, b.len, &m, &why));
    buf_fini(&b);
}

/* A list that contains itself; and lists that contain the previous list twice, nested forty deep. */
TEST(shared_and_circular_trees_are_harmless)
{
    struct pickle p;
    struct why why;
    struct meta m;
    assert_ok(pickle_text_read("8004 5d 94 6800 61 2e", &p, &why));
    const struct pickle_node *n = pickle_node(&p, p.root);
    assert_ptr_equal(pickle_item(&p, n, 0), n);
    pickle_fini(&p);
    struct buf b = {0};
    golden_parse("80045d94", 8, &b);
    for (unsigned i = 0; i < 40; i++) {
        const uint8_t level[] = {']', 0x94, '(', 'h', (uint8_t)i, 'h', (uint8_t)i, 'e'};
        assert_ok(buf_append(&b, level, sizeof(level)));
    }
    assert_ok(buf_append(&b, ".", 1));
    assert_err(ERR_CORRUPT, metadata_read(b.data, b.len, &m, &why));
    buf_fini(&b);
}
