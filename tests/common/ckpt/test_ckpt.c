/* Round trips: any number of ranks reads what another number of ranks wrote, box by box, against the fixture's oracle.
 */
#include "tests/common/ckpt/ckpt_fixture.h"

#include <limits.h>
#include <math.h>
#include <sys/stat.h>

static struct fixture model(void)
{
    return (struct fixture){.tensors = fixture_model, .n_tensors = fixture_n_model};
}

static struct ckpt *open_step(const char *root, int64_t step)
{
    char dir[PATH_MAX];
    struct why why = {{0}};
    struct ckpt *c = NULL;
    assert_ok(ckpt_step_dir(root, step, dir, sizeof(dir)));
    err_t err = ckpt_open(dir, &c, &why);
    if (err)
        print_error("%s\n", why.text);
    assert_ok(err);
    return c;
}

TEST(one_rank)
{
    struct fixture f = model();
    fixture_shard(&f, 1);
    fixture_save(&f, test_tmpdir(), 100, 3, 1);
    struct ckpt *c = open_step(test_tmpdir(), 100);
    fixture_check_all(&f, c);
    assert_true(ckpt_has_manifest(c));
    assert_int_equal(ckpt_step(c), 100);
    assert_int_equal(ckpt_epoch(c), 3);
    assert_true(ckpt_loss(c) == 2.25);
    ckpt_close(c);
    fixture_free(&f);
}

TEST(tensors_are_listed_sorted)
{
    struct fixture f = model();
    fixture_shard(&f, 3);
    fixture_save(&f, test_tmpdir(), 1, 1, 3);
    struct ckpt *c = open_step(test_tmpdir(), 1);
    const struct ckpt_tensor *t;
    int n = ckpt_tensors(c, &t);
    assert_int_equal(n, fixture_n_model);
    for (int i = 1; i < n; i++)
        assert_true(strcmp(t[i - 1].fqn, t[i].fqn) < 0);
    t = ckpt_find(c, "layers.0.cube");
    assert_non_null(t);
    assert_int_equal(t->dtype, DT_BF16);
    assert_int_equal(t->ndim, 3);
    assert_int_equal(t->shape[2], 7);
    assert_int_equal(t->n_chunks, 3);
    assert_null(ckpt_find(c, "layers.0.cub"));
    ckpt_close(c);
    fixture_free(&f);
}

TEST(four_ranks_read_by_one_two_three)
{
    struct fixture f = model();
    fixture_shard(&f, 4);
    fixture_save(&f, test_tmpdir(), 8, 1, 4);
    struct ckpt *c = open_step(test_tmpdir(), 8);
    for (int ranks = 1; ranks <= 3; ranks++) {
        struct fixture shares = model();
        fixture_shard(&shares, ranks);
        for (int i = 0; i < shares.n_pieces; i++)
            for (int t = 0; t < shares.n_tensors; t++)
                if (shares.pieces[i].piece.fqn == shares.tensors[t].fqn)
                    fixture_check_box(&shares, c, t, &shares.pieces[i].piece.box, shares.tensors[t].dtype);
        fixture_free(&shares);
    }
    ckpt_close(c);
    fixture_free(&f);
}

static struct box random_box(const struct fixture_tensor *t, unsigned *seed)
{
    struct box b = fixture_whole(t);
    for (int d = 0; d < b.ndim; d++) {
        b.offset[d] = t->shape[d] ? rand_r(seed) % t->shape[d] : 0;
        b.size[d] = t->shape[d] ? 1 + rand_r(seed) % (t->shape[d] - b.offset[d]) : 0;
    }
    return b;
}

TEST(random_boxes)
{
    for (unsigned seed = 1; seed <= 20; seed++) {
        struct fixture f = model();
        int ranks = 1 + (int)seed % 5;
        unsigned s = seed * 977;
        fixture_scatter(&f, ranks, s);
        fixture_save(&f, test_tmpdir(), seed, 1, ranks);
        struct ckpt *c = open_step(test_tmpdir(), seed);
        fixture_check_all(&f, c);
        for (int k = 0; k < 60; k++) {
            int t = rand_r(&s) % f.n_tensors;
            struct box b = random_box(&f.tensors[t], &s);
            fixture_check_box(&f, c, t, &b, f.tensors[t].dtype);
        }
        ckpt_close(c);
        fixture_free(&f);
    }
}

TEST(types_are_converted)
{
    static const enum dtype floats[] = {DT_F32, DT_F64, DT_BF16, DT_F16};
    struct fixture f = model();
    fixture_shard(&f, 2);
    fixture_save(&f, test_tmpdir(), 5, 1, 2);
    struct ckpt *c = open_step(test_tmpdir(), 5);
    for (int t = 0; t < f.n_tensors; t++) {
        struct box b = fixture_whole(&f.tensors[t]);
        for (size_t k = 0; f.tensors[t].dtype <= DT_F16 && k < 4; k++)
            fixture_check_box(&f, c, t, &b, floats[k]);
    }
    char data[4096];
    struct why why;
    const struct ckpt_want bad = {"ids", {2, {0, 0}, {3, 5}}, DT_F32, data};
    assert_err(ERR_INVALID, ckpt_read(c, &bad, 1, NULL, &why));
    assert_non_null(strstr(why.text, "int64"));
    ckpt_close(c);
    fixture_free(&f);
}

TEST(scalars)
{
    struct fixture f = model();
    fixture_shard(&f, 2);
    fixture_save(&f, test_tmpdir(), 5, 1, 2);
    struct ckpt *c = open_step(test_tmpdir(), 5);
    for (int i = 0; i < fixture_n_scalars; i++) {
        const struct ckpt_scalar *want = &fixture_scalars[i];
        struct ckpt_scalar s;
        assert_ok(ckpt_scalar(c, want->fqn, &s, NULL));
        assert_string_equal(s.fqn, want->fqn);
        assert_int_equal(s.kind, want->kind);
        assert_int_equal(s.i, want->i);
        assert_true(s.f[0] == want->f[0] && s.f[1] == want->f[1]);
        if (want->s)
            assert_string_equal(s.s, want->s);
    }
    for (int i = 1; i < fixture_n_scalars; i++)
        assert_true(strcmp(ckpt_scalar_name(c, i - 1), ckpt_scalar_name(c, i)) < 0);
    assert_null(ckpt_scalar_name(c, fixture_n_scalars));
    struct ckpt_scalar s;
    struct why why;
    assert_err(ERR_NOTFOUND, ckpt_scalar(c, "train_state.nothing", &s, &why));
    ckpt_close(c);
    fixture_free(&f);
}

TEST(small_files)
{
    struct fixture f = model();
    fixture_shard(&f, 1);
    fixture_save(&f, test_tmpdir(), 5, 1, 1);
    struct ckpt *c = open_step(test_tmpdir(), 5);
    struct buf b = {0};
    assert_ok(ckpt_small_file(c, CKPT_JOB_FILE, &b, NULL));
    assert_int_equal(b.len, 14);
    assert_memory_equal(b.data, "name: fixture\n", 14);
    b.len = 0;
    assert_ok(ckpt_small_file(c, CKPT_VOCAB_FILE, &b, NULL));
    assert_int_equal(b.len, 4);
    assert_err(ERR_NOTFOUND, ckpt_small_file(c, "other", &b, NULL));
    assert_err(ERR_INVALID, ckpt_small_file(c, "../step-5/" CKPT_JOB_FILE, &b, NULL));
    buf_fini(&b);
    ckpt_close(c);
    fixture_free(&f);
}

TEST(wants_that_cannot_be)
{
    struct fixture f = model();
    fixture_shard(&f, 2);
    fixture_save(&f, test_tmpdir(), 5, 1, 2);
    struct ckpt *c = open_step(test_tmpdir(), 5);
    char data[64];
    struct why why;
    struct ckpt_want w = {"no.such", {1, {0}, {1}}, DT_F32, data};
    assert_err(ERR_NOTFOUND, ckpt_read(c, &w, 1, NULL, &why));
    assert_non_null(strstr(why.text, "no.such"));
    w = (struct ckpt_want){"double", {2, {0, 0}, {1, 1}}, DT_F64, data};
    assert_err(ERR_INVALID, ckpt_read(c, &w, 1, NULL, &why));
    w = (struct ckpt_want){"double", {1, {30}, {4}}, DT_F64, data};
    assert_err(ERR_INVALID, ckpt_read(c, &w, 1, NULL, &why));
    assert_non_null(strstr(why.text, "33"));
    ckpt_close(c);
    fixture_free(&f);
}

TEST(hash_does_not_depend_on_the_shards)
{
    char one[65], three[65];
    struct fixture a = model(), b = model();
    fixture_shard(&a, 1);
    fixture_scatter(&b, 3, 42);
    fixture_save(&a, test_tmpdir(), 1, 1, 1);
    fixture_save(&b, test_tmpdir(), 2, 1, 3);
    struct ckpt *x = open_step(test_tmpdir(), 1), *y = open_step(test_tmpdir(), 2);
    for (int t = 0; t < a.n_tensors; t++) {
        assert_ok(ckpt_tensor_hash(x, a.tensors[t].fqn, one, NULL));
        assert_ok(ckpt_tensor_hash(y, a.tensors[t].fqn, three, NULL));
        assert_string_equal(one, three);
    }
    ckpt_close(x);
    ckpt_close(y);
    fixture_free(&a);
    fixture_free(&b);
}

/* 3 x 4 MiB tensors of two ranks: only the requested bytes are read, rounded to extents. */
TEST(reads_little_more_than_needed)
{
    static const struct fixture_tensor big[] = {
        {"a", DT_F32, 2, {1024, 1024}}, {"b", DT_F32, 2, {1024, 1024}}, {"c", DT_F32, 2, {1024, 1024}}};
    struct fixture f = {.tensors = big, .n_tensors = 3};
    fixture_shard(&f, 2);
    fixture_save(&f, test_tmpdir(), 1, 1, 2);
    struct ckpt *c = open_step(test_tmpdir(), 1);
    struct ckpt_want wants[3];
    char *data = malloc(3 * (4 << 20));
    struct ckpt_read_stats stats;
    for (int i = 0; i < 3; i++)
        wants[i] = (struct ckpt_want){big[i].fqn, fixture_whole(&big[i]), DT_F32, data + (size_t)i * (4 << 20)};
    assert_ok(ckpt_read(c, wants, 3, &stats, NULL));
    assert_int_equal(stats.bytes_needed, 3 * (4 << 20));
    print_message("whole: %.4f\n", (double)stats.bytes_read / (double)stats.bytes_needed);
    assert_true(stats.bytes_read < stats.bytes_needed + stats.bytes_needed / 50);
    for (int i = 0; i < 3; i++) { /* the middle third of the rows */
        wants[i].box.offset[0] = 341;
        wants[i].box.size[0] = 342;
    }
    assert_ok(ckpt_read(c, wants, 3, &stats, NULL));
    print_message("third: %.4f\n", (double)stats.bytes_read / (double)stats.bytes_needed);
    assert_true(stats.bytes_read < 3 * stats.bytes_needed);
    free(data);
    ckpt_close(c);
    fixture_free(&f);
}

/* The worker passes parameters and moments interleaved, 320 KiB each; a load of only the parameters reads little more
 * than those. */
TEST(parameters_lie_together)
{
    static struct fixture_tensor tensors[60];
    static char names[60][64];
    struct fixture f = {.tensors = tensors, .n_tensors = 60};
    struct ckpt_want wants[20];
    struct ckpt_read_stats stats;
    for (int i = 0; i < 60; i++) {
        char param[32];
        snprintf(param, sizeof(param), "layers.%d.w", i / 3);
        assert_ok(ckpt_state_name((enum ckpt_state)(i % 3), param, names[i], sizeof(names[i])));
        tensors[i] = (struct fixture_tensor){names[i], DT_F32, 2, {80, 1024}};
        struct box whole = fixture_whole(&tensors[i]);
        fixture_add(&f, i, 0, &whole);
    }
    fixture_save(&f, test_tmpdir(), 1, 1, 1);
    struct ckpt *c = open_step(test_tmpdir(), 1);
    float *data = malloc(20 * 80 * 1024 * sizeof(float));
    for (int i = 0; i < 20; i++)
        wants[i] =
            (struct ckpt_want){names[3 * i], fixture_whole(&tensors[3 * i]), DT_F32, data + (size_t)i * 80 * 1024};
    assert_ok(ckpt_read(c, wants, 20, &stats, NULL));
    print_message("parameters: %.4f\n", (double)stats.bytes_read / (double)stats.bytes_needed);
    assert_true(stats.bytes_read < stats.bytes_needed + stats.bytes_needed / 4);
    free(data);
    ckpt_close(c);
    fixture_free(&f);
}

TEST(column_shards)
{
    static const struct fixture_tensor wide[] = {{"w", DT_F32, 2, {700, 900}}};
    struct fixture f = {.tensors = wide, .n_tensors = 1};
    for (int r = 0; r < 3; r++) {
        struct box b = {2, {0, r * 300}, {700, 300}};
        fixture_add(&f, 0, r, &b);
    }
    fixture_save(&f, test_tmpdir(), 1, 1, 3);
    struct ckpt *c = open_step(test_tmpdir(), 1);
    fixture_check_all(&f, c);
    struct box b = {2, {13, 250}, {600, 111}};
    fixture_check_box(&f, c, 0, &b, DT_F64);
    ckpt_close(c);
    fixture_free(&f);
}

/* Long names, many dimensions, more than a thousand tensors. */
/* Rules of ckpt_rename: a prefix, a component in the middle, moments, and the first rule that fits. */
TEST(other_names)
{
    static char *const rules[] = {"layers.*.attention.w=blocks.*.attn.",
                                  "tok_embeddings.=wte.",
                                  "layers.*.=never.",
                                  "h*=whole",
                                  "flag*.=x",
                                  "double*=y"};
    static const char *const names[] = {"wte.weight",
                                        "blocks.0.attn.q.weight",
                                        "never.attention_norm.weight",
                                        "never.cube",
                                        "whole",
                                        "double",
                                        "flags",
                                        "optimizer.state.wte.weight.exp_avg",
                                        "optimizer.state.wte.weight.step"};
    struct fixture f = model();
    struct why why = {""};
    fixture_shard(&f, 1);
    fixture_save(&f, test_tmpdir(), 1, 1, 1);
    struct ckpt *c = open_step(test_tmpdir(), 1);
    assert_ok(ckpt_rename(c, rules, 6, &why));
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (!ckpt_find(c, names[i]))
            fail_msg("there is no %s", names[i]);
    assert_null(ckpt_find(c, "layers.0.cube"));
    static char *const clash[] = {"*=one"};
    assert_err(ERR_INVALID, ckpt_rename(c, clash, 1, &why));
    assert_non_null(strstr(why.text, "two tensors have the name one"));
    ckpt_close(c);
    fixture_free(&f);
}

TEST(many_and_long)
{
    static char names[1200][700];
    struct ckpt_piece *pieces = calloc(1200, sizeof(*pieces));
    struct ckpt_part *part;
    struct why why;
    char dir[PATH_MAX];
    float v[1200];
    for (int i = 0; i < 1200; i++) {
        int n = snprintf(names[i], sizeof(names[i]), "%04d.", i);
        memset(names[i] + n, 'x', i % 600);
        v[i] = (float)i;
        pieces[i] = (struct ckpt_piece){.fqn = names[i], .dtype = DT_F32, .ndim = i % 9, .data = &v[i]};
        pieces[i].box.ndim = i % 9;
        for (int d = 0; d < i % 9; d++)
            pieces[i].shape[d] = pieces[i].box.size[d] = 1;
    }
    assert_ok(ckpt_partial_dir(test_tmpdir(), 7, 1, dir, sizeof(dir)));
    assert_ok(ckpt_part_write(dir, 0, pieces, 1200, NULL, 0, &part, &why));
    const struct ckpt_commit commit = {.root = test_tmpdir(), .step = 7, .epoch = 1, .loss = (double)NAN};
    assert_ok(ckpt_commit(&commit, &part, 1, &why));
    struct ckpt *c = open_step(test_tmpdir(), 7);
    struct ckpt_want wants[1200];
    float back[1200];
    for (int i = 0; i < 1200; i++)
        wants[i] = (struct ckpt_want){names[i], pieces[i].box, DT_F32, &back[i]};
    struct ckpt_read_stats stats;
    assert_ok(ckpt_read(c, wants, 1200, &stats, &why));
    assert_memory_equal(v, back, sizeof(v));
    assert_true(isnan(ckpt_loss(c)));
    ckpt_part_free(part);
    ckpt_close(c);
    free(pieces);
}
