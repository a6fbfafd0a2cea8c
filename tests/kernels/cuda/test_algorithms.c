/* Tests which algorithm a product uses (docs/internals/kernels.md), with the stand-ins of tests/cuda_host. Their
 * algorithms give different bits in float32, and each test sets how long they take. */
#include "tests/lib/test.h"

#include "kernels/cuda/gemm_file.h"
#include "kernels/kernels.h"
#include "tests/cuda_host/counts.h"
#include "tests/kernels/gelu.h"

#include <math.h>
#include <stdbool.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define FIRST 101 /* the stand-in's first proposal */
#define MAGIC UINT64_C(0x6c745f686f737400)
#define GPU "processor in the place of a GPU, 4 processors"
#define LIBRARY 130001
#define SLOW_MS 500 /* longer than any product here takes, even on a busy machine */

static const int algorithms[] = {101, 102, 103, 104, 105, 106};

static const char *path_of(const char *name)
{
    static char path[4][512];
    static int next;
    char *p = path[next++ % 4];
    snprintf(p, sizeof(path[0]), "%s/%s", test_tmpdir(), name);
    return p;
}

/* Makes all algorithms but one slow. */
static void plant_fastest(int fastest)
{
    for (size_t i = 0; i < sizeof(algorithms) / sizeof(algorithms[0]); i++) {
        char what[32];
        snprintf(what, sizeof(what), "algorithm %d", algorithms[i]);
        cuda_host_plant_ms(what, algorithms[i] == fastest ? 0 : SLOW_MS);
    }
}

/* ---- a device, and products on it ---- */

struct bench {
    struct dev *dev;
    struct kern_stream *s;
};

/* `path`: an algorithm file, or NULL. */
static struct bench bench_open(const char *path)
{
    struct bench b;
    struct why why = {""};
    if (dev_open("cuda", 0, &b.dev, &why) || dev_stream_new(b.dev, 0, false, &b.s, &why) ||
        dev_algorithms(b.dev, path, &why))
        fail_msg("%s", why.text);
    return b;
}

static void bench_close(struct bench *b)
{
    dev_stream_free(b->s);
    dev_close(b->dev);
}

enum { A, B, BIAS, C, AUX, A_SUM, B_SUM, ARRAYS };

struct product_form {
    enum dtype dtype;
    int64_t m, n, k;
    bool trans_a, wide_c, accumulate, bias, sum;
    enum kern_act act;
};

static size_t bytes_of(const struct product_form *f, int array)
{
    const size_t elem = f->dtype == DT_F32 ? 4 : 2;
    const size_t n[] = {(size_t)(f->m * f->k), (size_t)(f->k * f->n), (size_t)f->n, (size_t)(f->m * f->n),
                        (size_t)(f->m * f->n), (size_t)f->m,          (size_t)f->n};
    return n[array] * (array >= A_SUM || (array == C && f->wide_c) ? 4 : elem);
}

static uint16_t narrow(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* Values whose products are inexact in float32, in the array's type. */
static void fill(const struct product_form *f, int array, void *to)
{
    bool wide = f->dtype == DT_F32 || array >= A_SUM || (array == C && f->wide_c);
    size_t n = bytes_of(f, array) / (wide ? 4 : 2);
    for (size_t i = 0; i < n; i++) {
        float x = (float)((i * 2654435761u + (size_t)array * 40503u) >> 5 & 0xffff) / 40000 - 0.7f;
        if (wide)
            ((float *)to)[i] = x;
        else
            ((uint16_t *)to)[i] = narrow(x);
    }
}

/* Runs one product on new operands and copies the resulting `array` to `ret`. */
static void product(struct bench *b, const struct product_form *f, int array, void *ret)
{
    void *p[ARRAYS], *host = malloc(1 << 22);
    struct why why = {""};
    for (int i = 0; i < ARRAYS; i++) {
        assert_true(bytes_of(f, i) <= 1 << 22);
        assert_ok(dev_alloc(b->dev, bytes_of(f, i), "a test", &p[i], &why));
        fill(f, i, host);
        assert_ok(dev_copy(b->s, p[i], host, bytes_of(f, i)));
        assert_ok(dev_stream_sync(b->s, &why));
    }
    const struct kern_gemm g = {.trans_a = f->trans_a,
                                .accumulate = f->accumulate,
                                .wide_c = f->wide_c,
                                .act = f->act,
                                .m = f->m,
                                .n = f->n,
                                .k = f->k,
                                .lda = f->trans_a ? f->m : f->k,
                                .ldb = f->n,
                                .ldc = f->n,
                                .a = p[A],
                                .b = p[B],
                                .bias = f->bias ? p[BIAS] : NULL,
                                .c = p[C],
                                .aux = f->act ? p[AUX] : NULL,
                                .b_sum = f->sum ? p[B_SUM] : NULL};
    assert_ok(dev_kernels(b->dev, f->dtype)->gemm(b->s, &g));
    assert_ok(dev_copy(b->s, host, p[array], bytes_of(f, array)));
    if (dev_stream_sync(b->s, &why))
        fail_msg("%s", why.text);
    memcpy(ret, host, bytes_of(f, array));
    for (int i = 0; i < ARRAYS; i++)
        dev_free(b->dev, p[i], bytes_of(f, i));
    free(host);
}

/* Plain, with a bias, for a gradient, with a sum. */
static const struct product_form forms[] = {
    {.dtype = DT_F32, .m = 24, .n = 16, .k = 40},
    {.dtype = DT_F32, .m = 24, .n = 16, .k = 72, .bias = true},
    {.dtype = DT_F32, .m = 32, .n = 16, .k = 80, .trans_a = true, .accumulate = true},
    {.dtype = DT_F32, .m = 16, .n = 24, .k = 56, .accumulate = true, .sum = true}};
#define FORMS (sizeof(forms) / sizeof(forms[0]))
#define MOST (32 * 24)

struct algorithm_results {
    float c[FORMS][MOST];
};

/* Runs all forms on a newly opened device. */
static struct algorithm_results results_of(const char *path)
{
    struct algorithm_results r;
    struct bench b = bench_open(path);
    memset(&r, 0, sizeof(r));
    for (size_t i = 0; i < FORMS; i++)
        product(&b, &forms[i], C, r.c[i]);
    bench_close(&b);
    return r;
}

static bool same(const struct algorithm_results *a, const struct algorithm_results *b)
{
    return memcmp(a, b, sizeof(*a)) == 0;
}

/* ---- the content of a file ---- */

struct lines {
    int n;
    struct gemm_choice at[64];
};

static struct lines lines_of(const char *path)
{
    struct lines l = {0};
    char text[1024];
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    while (fgets(text, sizeof(text), f)) {
        text[strcspn(text, "\n")] = '\0';
        if (l.n < 64 && gemm_choice_parse(text, &l.at[l.n]))
            l.n++;
    }
    fclose(f);
    return l;
}

static int algorithm_of(const struct gemm_choice *c)
{
    return (int)(c->algo[0] - MAGIC);
}

/* ---- without a file ---- */

TEST(without_a_file_nothing_is_timed)
{
    plant_fastest(102);
    struct algorithm_results a = results_of(NULL);
    plant_fastest(103);
    struct algorithm_results b = results_of(NULL);
    assert_true(same(&a, &b));
    struct cuda_host_counts before, after;
    struct bench bench = bench_open(NULL);
    float c[MOST];
    cuda_host_counts_read(&before);
    product(&bench, &forms[0], C, c);
    cuda_host_counts_read(&after);
    assert_int_equal(after.products, before.products + 1);
    assert_int_equal(after.events, before.events);
    bench_close(&bench);
}

/* cuBLASLt's first proposal is used. Algorithms 101 and 102 sum in different ways, which the other tests depend on. */
TEST(another_algorithm_gives_other_bits)
{
    struct algorithm_results first = results_of(NULL);
    plant_fastest(102);
    struct algorithm_results second = results_of(path_of("second"));
    plant_fastest(101);
    struct algorithm_results again = results_of(path_of("first"));
    assert_false(same(&first, &second));
    assert_true(same(&first, &again));
}

/* ---- timing ---- */

TEST(the_fastest_algorithm_is_chosen)
{
    const int all[] = {101, 102, 103, 105, 106};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        char name[32];
        snprintf(name, sizeof(name), "of-%d", all[i]);
        plant_fastest(all[i]);
        results_of(path_of(name));
        struct lines l = lines_of(path_of(name));
        assert_true(l.n >= (int)FORMS);
        for (int j = 0; j < l.n; j++)
            assert_true(l.at[j].apart || algorithm_of(&l.at[j]) == all[i]);
    }
}

/* Reductions that round, or whose order is not specified, are never used, however fast they are. */
TEST(a_forbidden_reduction_is_never_chosen)
{
    const struct product_form narrow_c = {.dtype = DT_BF16, .m = 24, .n = 16, .k = 40};
    uint16_t c[MOST];
    float wide[MOST];
    plant_fastest(104);
    struct bench b = bench_open(path_of("in-place"));
    product(&b, &forms[0], C, wide);
    bench_close(&b);
    assert_int_equal(algorithm_of(&lines_of(path_of("in-place")).at[0]), FIRST);
    plant_fastest(105);
    b = bench_open(path_of("output-type"));
    product(&b, &narrow_c, C, c);
    bench_close(&b);
    assert_int_equal(algorithm_of(&lines_of(path_of("output-type")).at[0]), FIRST);
}

/* The fastest algorithm for c = x is the slowest for c += x: each is timed in the way it is used, and stored
 * separately. */
TEST(adding_is_timed_by_adding)
{
    struct product_form f = forms[0];
    float c[MOST];
    plant_fastest(102);
    cuda_host_plant_ms("algorithm 103", SLOW_MS / 2.0);
    cuda_host_plant_ms("adding 102", 2 * SLOW_MS);
    struct bench b = bench_open(path_of("beta"));
    product(&b, &f, C, c);
    f.accumulate = true;
    product(&b, &f, C, c);
    bench_close(&b);
    struct lines l = lines_of(path_of("beta"));
    assert_int_equal(l.n, 2);
    assert_true(l.at[0].key.accumulate == 0 && algorithm_of(&l.at[0]) == 102);
    assert_true(l.at[1].key.accumulate == 1 && algorithm_of(&l.at[1]) == 103);
}

static const struct product_form gelu_form = {
    .dtype = DT_BF16, .m = 32, .n = 16, .k = 8, .bias = true, .act = KERN_ACT_GELU};

/* Whether the fused form, which is stored last, is marked "apart". */
static bool gelu_is_apart(const char *path)
{
    uint16_t c[MOST];
    struct bench b = bench_open(path);
    product(&b, &gelu_form, C, c);
    bench_close(&b);
    struct lines l = lines_of(path);
    assert_true(l.n > 0);
    return l.at[l.n - 1].apart;
}

TEST(an_epilogue_is_fused_where_that_is_faster)
{
    cuda_host_plant_ms("launch", SLOW_MS);
    assert_false(gelu_is_apart(path_of("fused")));
    cuda_host_plant_ms("launch", 0);
    cuda_host_plant_ms("fused", SLOW_MS);
    assert_true(gelu_is_apart(path_of("apart")));
}

/* A sum is added exactly once, fused or not. */
TEST(sums_are_not_disturbed)
{
    float fused[MOST], apart[MOST];
    cuda_host_plant_ms("launch", SLOW_MS);
    struct bench b = bench_open(path_of("fused"));
    product(&b, &forms[3], B_SUM, fused);
    product(&b, &forms[3], B_SUM, fused); /* chooses the algorithm */
    bench_close(&b);
    cuda_host_plant_ms("launch", 0);
    cuda_host_plant_ms("fused", SLOW_MS);
    b = bench_open(path_of("apart"));
    product(&b, &forms[3], B_SUM, apart);
    bench_close(&b);
    for (int i = 0; i < forms[3].n; i++)
        assert_true(fabsf(fused[i] - apart[i]) < 1e-5f);
    bool one = false, other = false;
    struct lines l = lines_of(path_of("fused")), m = lines_of(path_of("apart"));
    for (int i = 0; i < l.n; i++)
        one |= !l.at[i].apart && l.at[i].key.vector_align > 0;
    for (int i = 0; i < m.n; i++)
        other |= m.at[i].apart && m.at[i].key.vector_align > 0;
    assert_true(one && other);
}

/* With just enough memory for the product and its workspace, the first proposal is used, untimed. */
TEST(without_memory_to_time_on_the_first_is_kept)
{
    const struct product_form f = {.dtype = DT_F32, .m = 512, .n = 512, .k = 8, .accumulate = true};
    float *c = malloc((size_t)(f.m * f.n) * 4);
    plant_fastest(102);
    setenv("DTD_CUDA_HOST_MEMORY", "37000000", 1);
    struct bench b = bench_open(path_of("short"));
    product(&b, &f, C, c);
    bench_close(&b);
    struct lines l = lines_of(path_of("short"));
    assert_int_equal(l.n, 1);
    assert_int_equal(algorithm_of(&l.at[0]), FIRST);
    assert_true(l.at[0].us == 0);
    free(c);
}

TEST(timing_leaves_nothing_behind)
{
    struct cuda_host_counts c;
    results_of(path_of("file"));
    cuda_host_counts_read(&c);
    assert_int_equal(c.live_allocations + c.live_streams + c.live_events + c.live_handles, 0);
}

/* ---- the file decides ---- */

TEST(the_same_file_gives_the_same_bits)
{
    plant_fastest(102);
    struct algorithm_results chosen = results_of(path_of("file"));
    plant_fastest(103);
    struct algorithm_results kept = results_of(path_of("file")), other = results_of(path_of("another"));
    assert_true(same(&chosen, &kept));
    assert_false(same(&chosen, &other));
    struct cuda_host_counts before, after;
    struct bench b = bench_open(path_of("file"));
    float c[MOST];
    cuda_host_counts_read(&before);
    product(&b, &forms[0], C, c);
    cuda_host_counts_read(&after);
    assert_int_equal(after.products, before.products + 1); /* nothing was timed */
    bench_close(&b);
}

/* Runs children with different times for each algorithm and collects the bits that they get. */
static void race(int fastest, int to)
{
    plant_fastest(fastest);
    struct algorithm_results r = results_of(path_of("race"));
    _exit(write(to, &r, sizeof(r)) != sizeof(r));
}

TEST(processes_that_time_at_once_compute_the_same)
{
    static struct algorithm_results r[3];
    int pipes[3][2];
    test_tmpdir(); /* created before the fork, so that all children share it */
    for (int i = 0; i < 3; i++) {
        assert_int_equal(pipe(pipes[i]), 0);
        if (fork() == 0)
            race(101 + i, pipes[i][1]);
    }
    for (int i = 0; i < 3; i++) {
        int status;
        assert_int_equal(read(pipes[i][0], &r[i], sizeof(r[i])), sizeof(r[i]));
        assert_true(wait(&status) > 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    assert_true(same(&r[0], &r[1]) && same(&r[0], &r[2]));
    plant_fastest(106);
    struct algorithm_results later = results_of(path_of("race"));
    assert_true(same(&r[0], &later));
    struct lines l = lines_of(path_of("race"));
    for (int i = 0; i < l.n; i++)
        for (int j = 0; j < i; j++)
            assert_true(memcmp(&l.at[i].key, &l.at[j].key, sizeof(l.at[i].key)) != 0);
}

/* Rewrites the file's choice for the first form by `change` and returns the line that is used afterwards. */
static struct lines after_change(const char *name, void (*change)(struct gemm_choice *c))
{
    const char *path = path_of(name);
    struct gemm_file *f;
    struct why why;
    float c[MOST];
    plant_fastest(102);
    struct bench b = bench_open(path_of("model"));
    product(&b, &forms[0], C, c);
    bench_close(&b);
    struct gemm_choice choice = lines_of(path_of("model")).at[0];
    change(&choice);
    assert_ok(gemm_file_open(path, GPU, LIBRARY, &f, &why));
    assert_true(gemm_file_add(f, &choice));
    gemm_file_close(f);
    plant_fastest(103);
    b = bench_open(path);
    product(&b, &forms[0], C, c);
    bench_close(&b);
    return lines_of(path);
}

static void to_another(struct gemm_choice *c)
{
    c->algo[0] = MAGIC + 106;
    c->algo[1] = 2; /* the stand-in's encoding of COMPUTE_TYPE in two parts */
    c->algo[2] = 2;
}

static void to_forbidden(struct gemm_choice *c)
{
    c->algo[0] = MAGIC + 104;
    c->algo[1] = 1;
    c->algo[2] = 2;
}

static void to_unknown(struct gemm_choice *c)
{
    c->algo[3] = 1;
}

static void to_apart(struct gemm_choice *c)
{
    memset(c->algo, 0, sizeof(c->algo));
    c->apart = true;
}

/* A line with a valid checksum may still contain an algorithm that is impossible or not allowed. */
TEST(algorithms_of_the_file_are_checked)
{
    struct lines l = after_change("another", to_another);
    assert_true(l.n == 1 && algorithm_of(&l.at[0]) == 106);
    l = after_change("forbidden", to_forbidden);
    assert_true(l.n == 2 && algorithm_of(&l.at[1]) == 103);
    l = after_change("unknown", to_unknown);
    assert_true(l.n == 2 && algorithm_of(&l.at[1]) == 103);
    l = after_change("apart", to_apart); /* for a product that has nothing to fuse */
    assert_true(l.n == 2 && algorithm_of(&l.at[1]) == 103);
}

TEST(another_gpus_file_is_not_used)
{
    struct bench b = bench_open(NULL);
    struct algorithm_results first = results_of(NULL);
    struct gemm_file *f;
    struct why why = {""};
    float c[MOST];
    assert_ok(gemm_file_open(path_of("theirs"), "another GPU, 4 processors", LIBRARY, &f, &why));
    gemm_file_close(f);
    plant_fastest(102);
    assert_err(ERR_STALE, dev_algorithms(b.dev, path_of("theirs"), &why));
    product(&b, &forms[0], C, c);
    assert_memory_equal(c, first.c[0], bytes_of(&forms[0], C));
    assert_int_equal(lines_of(path_of("theirs")).n, 0);
    bench_close(&b);
}

/* Between epochs a device may change its file: it then discards the choices of the earlier one. */
TEST(a_device_goes_from_file_to_file)
{
    float before[MOST], with[MOST], after[MOST];
    struct why why = {""};
    plant_fastest(102);
    struct bench b = bench_open(NULL);
    product(&b, &forms[0], C, before);
    assert_ok(dev_algorithms(b.dev, path_of("file"), &why));
    product(&b, &forms[0], C, with);
    assert_ok(dev_algorithms(b.dev, NULL, &why));
    product(&b, &forms[0], C, after);
    bench_close(&b);
    assert_memory_equal(before, after, bytes_of(&forms[0], C));
    assert_true(memcmp(before, with, bytes_of(&forms[0], C)) != 0);
}

/* ---- GELU ---- */

static double worst_gelu(const char *path, enum kern_act act)
{
    struct bench b = bench_open(path);
    double worst = gelu_worst(b.dev, act);
    bench_close(&b);
    return worst;
}

/* With and without a file, a library whose tanh is inexact is not used for GELU. A library with an exact one is. */
TEST(a_rough_gelu_is_not_used)
{
    struct cuda_host_counts before, after;
    for (int with_file = 0; with_file < 2; with_file++) {
        cuda_host_rough_gelu(true);
        assert_true(worst_gelu(with_file ? path_of("rough") : NULL, KERN_ACT_GELU) <= 1.1);
        assert_true(worst_gelu(with_file ? path_of("rough") : NULL, KERN_ACT_GELU_GRAD) <= 1.1);
        cuda_host_rough_gelu(false);
        cuda_host_counts_read(&before);
        assert_true(worst_gelu(with_file ? path_of("good") : NULL, KERN_ACT_GELU) <= 1.1);
        cuda_host_counts_read(&after);
        assert_true(with_file || after.launches == before.launches);
    }
    struct lines l = lines_of(path_of("rough"));
    for (int i = 0; i < l.n; i++)
        assert_true(l.at[i].apart == (l.at[i].key.aux_align > 0));
}

/* The check of GELU does not change the operands. */
TEST(the_check_of_gelu_leaves_aux_unchanged)
{
    const struct product_form f = {.dtype = DT_BF16, .m = 32, .n = 16, .k = 8, .act = KERN_ACT_GELU_GRAD};
    uint16_t before[MOST], after[MOST];
    fill(&f, AUX, before);
    struct bench b = bench_open(NULL);
    product(&b, &f, AUX, after);
    bench_close(&b);
    assert_memory_equal(before, after, bytes_of(&f, AUX));
}
