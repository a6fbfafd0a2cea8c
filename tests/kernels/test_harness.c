/* Tests of the harness: it accepts correct results in every type and detects wrong ones. Tables built here stand for
 * backends of narrow types that this processor does not have. */
#include "tests/kernels/harness.h"
#include "tests/lib/test.h"

#include <math.h>

static const struct kern_ops types[] = {
    {.name = "half", .dtype = DT_BF16, .wide = DT_F32},
    {.name = "single", .dtype = DT_F32, .wide = DT_F32},
};

static struct dev *cpu(void)
{
    static struct dev *d;
    if (!d)
        assert_ok(dev_open("cpu", 0, &d, NULL));
    return d;
}

/* Two sets of values with the oracle's results: rounded to the types of `k`, and not rounded. */
static void results_of(const struct kcase *c, const struct kern_ops *k, struct values *rounded, struct values *whole)
{
    values_init(whole, c, k);
    oracle_run(whole, c);
    values_copy(rounded, whole);
    for (int i = 0; i < MAX_OPERANDS; i++) {
        enum dtype t = operand_type(&rounded->o[i], k);
        for (int64_t j = 0; t != DT_I32 && j < rounded->o[i].n; j++) {
            uint8_t memory[8];
            double *x = (double *)rounded->p[i] + j;
            if (hole_is(sizeof(*x), x))
                continue;
            element_put(t, memory, *x);
            *x = element_get(t, memory);
        }
    }
}

/* A wrong integer does not pass. */
static bool finds_int(struct values *got, const struct values *want, int i, const struct kern_ops *k,
                      const struct kcase *c)
{
    int32_t *x = (int32_t *)got->p[i] + want->o[i].n / 2;
    *x += 1;
    bool good = values_near(got, want, k, c, NULL);
    *x -= 1;
    return !good;
}

static int64_t written_element(const struct values *v, int i)
{
    const double *x = v->p[i];
    int64_t best = -1;
    for (int64_t j = 0; j < v->o[i].n; j++)
        if (isfinite(x[j]) && (best < 0 || fabs(x[j]) > fabs(x[best])))
            best = j;
    return best;
}

static bool finds(struct values *got, const struct values *want, int i, int64_t j, double wrong,
                  const struct kern_ops *k, const struct kcase *c)
{
    double *x = (double *)got->p[i] + j, keep;
    memcpy(&keep, x, sizeof(keep));
    memcpy(x, &wrong, sizeof(wrong));
    bool good = values_near(got, want, k, c, NULL);
    memcpy(x, &keep, sizeof(keep));
    return !good;
}

/* Correctly rounded results pass. The largest element with an error of 5 %, an unwritten one and a NaN do not. */
static void check_case(const struct kcase *c, const struct kern_ops *k)
{
    struct values got, want;
    double hole;
    hole_put(sizeof(hole), &hole);
    results_of(c, k, &got, &want);
    if (!values_near(&got, &want, k, c, k->name))
        fail_msg("%s: %s: the exact result is rejected", k->name, case_text(c));
    for (int i = 0; i < MAX_OPERANDS; i++) {
        bool result = (got.o[i].role == OUT || got.o[i].role == ACC) && got.o[i].n;
        if (result && operand_type(&got.o[i], k) == DT_I32) {
            if (!finds_int(&got, &want, i, k, c))
                fail_msg("%s: %s: a wrong integer in operand %d passes", k->name, case_text(c), i);
            continue;
        }
        int64_t j = result ? written_element(&got, i) : -1;
        if (j < 0)
            continue;
        double x = ((double *)got.p[i])[j];
        if ((x != 0 && !finds(&got, &want, i, j, x * 1.05, k, c)) || !finds(&got, &want, i, j, hole, k, c) ||
            !finds(&got, &want, i, j, NAN, k, c))
            fail_msg("%s: %s: a wrong operand %d passes", k->name, case_text(c), i);
    }
    values_fini(&got);
    values_fini(&want);
}

TEST(exact_results_pass_and_errors_do_not)
{
    for (int j = 0; j < n_kcases; j++)
        for (size_t t = 0; t < sizeof(types) / sizeof(types[0]) && kcases[j].effort != SLOW; t++)
            check_case(&kcases[j], &types[t]);
}

/* If the expected value is NaN, a number is an error, and vice versa. */
TEST(a_number_is_no_nan)
{
    const struct kcase poisoned = {"clip", .n = 9, .m = 2, .limit = 1, .flags = SOME_NAN};
    const struct kcase sound = {"clip", .n = 9, .m = 2, .limit = 1};
    struct values nans, numbers;
    const struct kern_ops *k = &types[1];
    values_init(&nans, &poisoned, k);
    oracle_run(&nans, &poisoned);
    values_init(&numbers, &sound, k);
    oracle_run(&numbers, &sound);
    assert_true(values_near(&nans, &nans, k, &poisoned, NULL));
    assert_false(values_near(&numbers, &nans, k, &poisoned, NULL));
    assert_false(values_near(&nans, &numbers, k, &sound, NULL));
    values_fini(&nans);
    values_fini(&numbers);
}

/* A cast that truncates instead of rounding is detected. */
TEST(a_truncated_cast_is_found)
{
    const struct kcase c = {"cast", .n = 100};
    struct values got, want;
    results_of(&c, &types[0], &got, &want);
    int found = 0;
    for (int64_t j = 0; j < c.n; j++) {
        float x = (float)((double *)want.p[0])[j];
        uint32_t bits;
        memcpy(&bits, &x, sizeof(bits));
        bits &= 0xffff0000u;
        memcpy(&x, &bits, sizeof(bits));
        found +=
            !isnan(x) && (double)x != ((double *)got.p[1])[j] && finds(&got, &want, 1, j, (double)x, &types[0], &c);
    }
    assert_true(found > 20);
    values_fini(&got);
    values_fini(&want);
}

/* Half of a bfloat16's last place rounds correctly, with ties to even. */
TEST(elements_round_as_they_should)
{
    const struct {
        double x, want;
    } cases[] = {{1 + 0x1p-8, 1},   {1 + 0x3p-8, 1 + 0x1p-6},   {1 + 0x1p-8 + 0x1p-20, 1 + 0x1p-7},
                 {-1 - 0x1p-8, -1}, {0x1.fffffep127, INFINITY}, {0x1p-133, 0x1p-133},
                 {0x1p-140, 0}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint8_t memory[2];
        element_put(DT_BF16, memory, cases[i].x);
        if (element_get(DT_BF16, memory) != cases[i].want)
            fail_msg("%a becomes %a", cases[i].x, element_get(DT_BF16, memory));
    }
}

/* ---- tables with one kernel that is wrong ---- */

static void add_one_more(struct kern_stream *s, int64_t n, const void *a, const void *b, void *y)
{
    kern_find("ref", DT_F32)->add(s, n, a, b, y);
    ((float *)y)[n] = 0;
}

static void add_one_before(struct kern_stream *s, int64_t n, const void *a, const void *b, void *y)
{
    kern_find("ref", DT_F32)->add(s, n, a, b, y);
    ((float *)y)[-3] = 0;
}

static void add_one_less(struct kern_stream *s, int64_t n, const void *a, const void *b, void *y)
{
    kern_find("ref", DT_F32)->add(s, n - 1, a, b, y);
}

static void add_what_is_behind(struct kern_stream *s, int64_t n, const void *a, const void *b, void *y)
{
    kern_find("ref", DT_F32)->add(s, n, a, b, y);
    ((float *)y)[n - 1] += ((const float *)a)[n] * 0;
}

static void add_by_chance(struct kern_stream *s, int64_t n, const void *a, const void *b, void *y)
{
    static int calls;
    kern_find("ref", DT_F32)->add(s, n, a, b, y);
    ((float *)y)[n / 2] *= calls++ % 2 ? 1 : 1 + 0x1p-22f;
}

static bool run_case(const struct kern_ops *k, const struct kcase *c)
{
    struct kernel_setup r;
    struct values got, want;
    kernel_setup_init(&r, cpu(), k, 1);
    values_init(&want, c, k);
    values_copy(&got, &want);
    oracle_run(&want, c);
    bool good = values_run(&got, &r, 0, c, NULL) && values_near(&got, &want, k, c, NULL);
    values_fini(&got);
    values_fini(&want);
    kernel_setup_fini(&r);
    return good;
}

static bool run_add(void (*add)(struct kern_stream *, int64_t, const void *, const void *, void *))
{
    struct kern_ops k = *kern_find("ref", DT_F32);
    k.add = add;
    return run_case(&k, &(struct kcase){"add", .n = 40});
}

TEST(memory_around_operands_is_guarded)
{
    assert_true(run_add(kern_find("ref", DT_F32)->add));
    assert_false(run_add(add_one_more));
    assert_false(run_add(add_one_before));
    assert_false(run_add(add_one_less));
    assert_false(run_add(add_what_is_behind));
}

static void loss_of_more_columns(struct kern_stream *s, int64_t t, int64_t v, int64_t ld, const int32_t *targets,
                                 bool grad, double scale, void *logits, double *loss)
{
    kern_find("ref", DT_F32)->cross_entropy(s, t, v + 1, ld, targets, grad, scale, logits, loss);
}

static void loss_of_dense_rows(struct kern_stream *s, int64_t t, int64_t v, int64_t ld, const int32_t *targets,
                               bool grad, double scale, void *logits, double *loss)
{
    kern_find("ref", DT_F32)->cross_entropy(s, t, v, v, targets, grad, scale, logits, loss);
}

static void loss_that_clears(struct kern_stream *s, int64_t t, int64_t v, int64_t ld, const int32_t *targets, bool grad,
                             double scale, void *logits, double *loss)
{
    kern_find("ref", DT_F32)->cross_entropy(s, t, v, ld, targets, grad, scale, logits, loss);
    for (int64_t i = 0; i + 1 < t; i++)
        ((float *)logits)[i * ld + v] = 0;
}

static bool run_loss(void (*loss)(struct kern_stream *, int64_t, int64_t, int64_t, const int32_t *, bool, double,
                                  void *, double *))
{
    struct kern_ops k = *kern_find("ref", DT_F32);
    k.cross_entropy = loss;
    return run_case(&k, &(struct kcase){"cross_entropy", .t = 9, .vocab = 37, .pad = 27, .flags = GRAD});
}

TEST(gaps_between_rows_are_guarded)
{
    assert_true(run_loss(kern_find("ref", DT_F32)->cross_entropy));
    assert_false(run_loss(loss_of_more_columns));
    assert_false(run_loss(loss_of_dense_rows));
    assert_false(run_loss(loss_that_clears));
}

TEST(other_bits_the_second_time_are_seen)
{
    struct kern_ops k = *kern_find("ref", DT_F32);
    struct kernel_setup r;
    struct values v[2];
    const struct kcase c = {"add", .n = 40};
    uint64_t bits[2];
    k.add = add_by_chance;
    kernel_setup_init(&r, cpu(), &k, 1);
    for (int i = 0; i < 2; i++) {
        values_init(&v[i], &c, &k);
        assert_true(values_run(&v[i], &r, 0, &c, &bits[i]));
        values_fini(&v[i]);
    }
    assert_true(bits[0] != bits[1]);
    kernel_setup_fini(&r);
}
