/* dtd's side of the interop test: writes a checkpoint of known values, and prints the hash of every tensor and every
 * scalar value of any checkpoint, as JSON lines that the PyTorch side compares with its own.
 *
 *   ckpt_tool write ROOT RANKS      step-1 under ROOT, cut into random boxes
 *   ckpt_tool hash DIR              {"fqn": .., "sha256": ..} and {"fqn": .., "value": ..} lines */
#include "tests/common/ckpt/ckpt_fixture.h"

static const struct fixture_tensor extra[] = {
    {"layers.0.attention.wq.weight", DT_F32, 2, {64, 48}},
    {"layers.0.attention.wk.weight", DT_BF16, 2, {64, 48}},
    {"layers.0.ffn.w1.weight", DT_F16, 2, {130, 48}},
    {"norm.weight", DT_F64, 1, {48}},
    {"freqs", DT_I32, 4, {2, 3, 4, 5}},
    {"counts", DT_I64, 1, {7}},
    {"mask", DT_BOOL, 2, {9, 9}},
    {"bytes", DT_U8, 1, {300}},
    {"small", DT_I8, 2, {3, 3}},
    {"short", DT_I16, 1, {11}},
    {"empty", DT_F32, 2, {0, 4}},
    {"big", DT_F32, 2, {1500, 700}},
    {"optimizer.state.layers.0.attention.wq.weight.exp_avg", DT_F32, 2, {64, 48}},
    {"optimizer.state.layers.0.attention.wq.weight.exp_avg_sq", DT_F32, 2, {64, 48}},
    {"optimizer.state.layers.0.attention.wq.weight.step", DT_F32, 0, {0}},
};

/* The fixture reports errors through the test library, whose main() this program replaces. */
void test_assert_err(err_t expected, err_t actual, const char *expression, const char *file, int line)
{
    if (expected == actual)
        return;
    fprintf(stderr, "%s:%d: %s is %s, expected %s\n", file, line, expression, err_name(actual), err_name(expected));
    exit(1);
}

static int write_one(const char *root, int ranks)
{
    struct fixture f = {.tensors = extra, .n_tensors = (int)(sizeof(extra) / sizeof(extra[0]))};
    fixture_scatter(&f, ranks, 4711);
    fixture_save(&f, root, 1, 1, ranks);
    fixture_free(&f);
    return 0;
}

static int complain(const char *what, const struct why *why)
{
    fprintf(stderr, "%s: %s\n", what, why->text);
    return 1;
}

static void print_scalar(const struct ckpt_scalar *s)
{
    static const char *const kinds[] = {"int", "float", "bool", "str", "none", "pair", "opaque"};
    printf("{\"fqn\": \"%s\", \"kind\": \"%s\", \"i\": %lld, \"f\": [\"%a\", \"%a\"], \"s\": \"%s\"}\n", s->fqn,
           kinds[s->kind], (long long)s->i, s->f[0], s->f[1], s->s ? s->s : "");
}

static int hash_all(const char *dir)
{
    struct ckpt *c;
    struct why why = {{0}};
    const struct ckpt_tensor *t;
    if (ckpt_open(dir, &c, &why))
        return complain(dir, &why);
    int n = ckpt_tensors(c, &t);
    for (int i = 0; i < n; i++) {
        char sha[65];
        if (ckpt_tensor_hash(c, t[i].fqn, sha, &why))
            return complain(t[i].fqn, &why);
        printf("{\"fqn\": \"%s\", \"sha256\": \"%s\", \"dtype\": \"%s\"}\n", t[i].fqn, sha, dtype_name(t[i].dtype));
    }
    for (int i = 0; ckpt_scalar_name(c, i); i++) {
        struct ckpt_scalar s;
        if (ckpt_scalar(c, ckpt_scalar_name(c, i), &s, &why))
            return complain(ckpt_scalar_name(c, i), &why);
        print_scalar(&s);
    }
    ckpt_close(c);
    if (ckpt_verify(dir, NULL, NULL, &why))
        return complain(dir, &why);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "write") == 0)
        return write_one(argv[2], atoi(argv[3]));
    if (argc == 3 && strcmp(argv[1], "hash") == 0)
        return hash_all(argv[2]);
    fprintf(stderr, "usage: ckpt_tool write ROOT RANKS | hash DIR\n");
    return 2;
}
