/* Tables of measured times: what they refuse, how they interpolate, and that a forecast takes them. Expected times are
 * computed by hand. */
#include "common/plan/estimate/forecast.h"
#include "common/plan/estimate/table.h"
#include "tests/common/plan/plan_fixture.h"

#include <math.h>
#include <string.h>

#define FIRST "dtd times 1\n"

static void table_of(const char *text, struct plan_table *ret)
{
    struct why why = {""};
    if (plan_table_read(text, strlen(text), "x", ret, &why))
        fail_msg("%s", why.text);
}

static void expect_near(double x, double expected)
{
    if (!(fabs(x - expected) <= 1e-9 * fabs(expected)))
        fail_msg("%.12g, not %.12g", x, expected);
}

static struct op op_of(enum op_kind kind, int64_t m, int64_t n, int64_t k)
{
    struct op op = {.kind = kind,
                    .m = {.sym = SYM_ONE, .factor = m},
                    .n = {.sym = SYM_ONE, .factor = n},
                    .k = {.sym = SYM_ONE, .factor = k},
                    .group = -1};
    for (int i = 0; i < OP_MAX_OPERANDS; i++)
        op.arg[i].buffer = -1;
    return op;
}

static double product_seconds(const struct plan_table *t, int64_t m, int64_t n, int64_t k)
{
    const struct program p = {.dtype = DT_F32, .max_samples = 1};
    const struct op op = op_of(OP_GEMM, m, n, k);
    return plan_table_seconds(t, &p, &op, 1, TABLE_MEDIAN);
}

TEST(a_product_between_measured_sizes_has_a_rate_between_theirs)
{
    struct plan_table t;
    /* 1000 and 100,000 units of work a second in the corners of m; n and k change nothing. */
    table_of(FIRST "gemm float32 - 1  10 10 10  1 1 1\ngemm float32 - 1  10 1000 10  100 100 100\n"
                   "gemm float32 - 1  1000 10 10  1 1 1\ngemm float32 - 1  1000 1000 10  100 100 100\n",
             &t);
    expect_near(product_seconds(&t, 10, 10, 10), 1);
    expect_near(product_seconds(&t, 1000, 10, 10), 1);
    expect_near(product_seconds(&t, 100, 10, 10), 1); /* the middle of 10 and 1000: 10,000 a second */
    expect_near(product_seconds(&t, 100, 100, 10), 10);
    expect_near(product_seconds(&t, 10, 10, 70), 7);       /* outside the grid the edge's rate */
    expect_near(product_seconds(&t, 100000, 10, 10), 100); /* 10^7 units at 10^5 */
    plan_table_fini(&t);
}

/* At a width of 1024 the rate is a tenth. */
TEST(widths_that_fall_into_the_same_sets_of_a_cache_are_apart)
{
    struct plan_table t;
    table_of(FIRST "gemm float32 - 1  10 10 10  1 1 1\ngemm float32 - 1  10 1000 10  100 100 100\n"
                   "gemm float32 - 1  10 1024 10  1024 1024 1024\ngemm float32 - 1  10 1100 10  110 110 110\n",
             &t);
    expect_near(product_seconds(&t, 10, 1010, 10), 101);
    expect_near(product_seconds(&t, 10, 1024, 10), 1024);
    expect_near(product_seconds(&t, 10, 4096, 10), 4096);
    expect_near(product_seconds(&t, 10, 4097, 10), 409.7);
    expect_near(product_seconds(&t, 1024, 1000, 10), 10240); /* no row has 1024 tokens */
    plan_table_fini(&t);
}

TEST(a_product_has_the_passes_that_belong_to_it)
{
    const struct program p = {.dtype = DT_F32, .max_samples = 1};
    struct op op = op_of(OP_GEMM, 10, 10, 10);
    struct plan_table t;
    table_of(FIRST "zero float32 - 1  400 0 0  0.1 0.1 0.1\ngemm float32 - 1  10 10 10  1 0.5 4\n"
                   "gelu float32 - 1  800 0 0  0.01 0.01 0.01\n",
             &t);
    expect_near(plan_table_seconds(&t, &p, &op, 1, TABLE_MEDIAN), 1);
    expect_near(plan_table_seconds(&t, &p, &op, 1, TABLE_LOW), 0.5);
    expect_near(plan_table_seconds(&t, &p, &op, 1, TABLE_HIGH), 4);
    op.arg[2].buffer = 0;
    expect_near(plan_table_seconds(&t, &p, &op, 1, TABLE_MEDIAN), 1.1);
    op.flags = OPF_GELU;
    expect_near(plan_table_seconds(&t, &p, &op, 1, TABLE_MEDIAN), 1.11);
    op.flags = OPF_TRANS_B;
    assert_true(plan_table_seconds(&t, &p, &op, 1, TABLE_MEDIAN) < 0); /* there is no such row */
    plan_table_fini(&t);
}

static double forecast_of(const struct job_spec *job, const struct plan_rates *rates)
{
    struct fixture f;
    struct forecast c;
    fixture_init(&f, job, MODE_TRAIN);
    if (plan_forecast(f.programs, f.n, rates, &c, &f.why) != OK)
        fail_msg("%s", f.why.text);
    const double seconds = c.seconds;
    forecast_fini(&c);
    fixture_fini(&f);
    return seconds;
}

/* A table in which every product has 5e8 multiply-adds a second is the rate of 1e9 operations a second, and nothing
 * else takes time. Of an attention, a pair and element takes two multiply-adds forward and five backward. */
TEST(a_forecast_takes_the_times_of_the_table)
{
    struct plan_table t;
    struct plan_rates rates = {.flops = 1e9, .memory = 1e30, .link = 1e30};
    const struct job_spec job = job_small(ARCH_LLAMA, 2);
    const double expected = forecast_of(&job, &rates);
    table_of(FIRST "gemm float32 - 1  100 100 10  2e-4 2e-4 4e-4\ngemm float32 trans_a 1  100 100 10  2e-4 2e-4 4e-4\n"
                   "gemm float32 trans_b 1  100 100 10  2e-4 2e-4 4e-4\n"
                   "gemm float32 acc 1  100 100 10  2e-4 2e-4 4e-4\n"
                   "gemm float32 trans_a+acc 1  100 100 10  2e-4 2e-4 4e-4\n"
                   "attention float32 causal 1  9 100 0  1.8e-5 1.8e-5 3.6e-5\n"
                   "attention_grad float32 causal 1  9 100 0  4.5e-5 4.5e-5 9e-5\n",
             &t);
    rates.flops = 1e30;
    assert_true(forecast_of(&job, &rates) < 1e-9 * expected);
    rates.table = &t;
    const double measured = forecast_of(&job, &rates);
    if (fabs(measured - expected) > 1e-6 * expected)
        fail_msg("%.12g, not %.12g", measured, expected);
    rates.figure = TABLE_HIGH;
    if (fabs(forecast_of(&job, &rates) - 2 * expected) > 1e-6 * expected)
        fail_msg("the upper quartile is not twice the median");
    plan_table_fini(&t);
}

static double one_second_a_product(void *arg, int rank, int action, const struct op *op)
{
    return op->kind == OP_GEMM ? 1 : -1;
}

static int count_products(const struct job_spec *job)
{
    struct fixture f;
    int n = 0;
    fixture_init(&f, job, MODE_TRAIN);
    const struct program *p = &f.programs[0];
    for (int a = 0; a < p->n_actions; a++)
        for (int i = 0; i < p->actions[a].n_ops; i++)
            n += p->ops[p->actions[a].first_op + i].kind == OP_GEMM;
    fixture_fini(&f);
    return n;
}

TEST(a_forecast_can_be_played_with_given_times)
{
    const struct plan_rates rates = {.flops = 1e30, .memory = 1e30, .link = 1e30, .seconds = one_second_a_product};
    const struct job_spec job = job_small(ARCH_LLAMA, 1);
    assert_true(count_products(&job) > 10);
    if (fabs(forecast_of(&job, &rates) - count_products(&job)) > 1e-6)
        fail_msg("%.12g, not %d", forecast_of(&job, &rates), count_products(&job));
}

static const struct {
    const char *text, *message;
} bad[] = {
    {"gemm float32 - 1  1 1 1  1 1 1\n", "x:1: the first line must be: dtd times 1"},
    {FIRST "gemm float32 - 1  10 10 10  0 0 0\n", "x:2: the three times must be above 0"},
    {FIRST "\n# c\ngemm float32 - 1  10 10 10  1 2 3\n", "x:4: the three times must be above 0 and in the order"},
    {FIRST "gemm float32 - 1  10 10 10  nan 1 1\n", "x:2: the three times"},
    {FIRST "gemm float32 - 1  10 10 10  1 1 1e9\n", "x:2: no operation takes more than an hour"},
    {FIRST "gemm float32 - 1  1e9 1e9 10  1 1 1\n", "x:2: no processor is so fast"},
    {FIRST "gemm float32 - 1  10 10 0  1 1 1\n", "x:2: the size must not be 0"},
    {FIRST "gemm float32 - 1  10 10 -1  1 1 1\n", "x:2: a size must be from 0 to 1e15"},
    {FIRST "gemm float32 - 1  10 10 10  1 1\n", "x:2: a row is: operation type form ranks"},
    {FIRST "gemm float32 - 1  10 10 10  1 1 1 1\n", "x:2: a row is: operation type form ranks"},
    {FIRST "gem float32 - 1  10 10 10  1 1 1\n", "x:2: there is no such operation"},
    {FIRST "gemm float - 1  10 10 10  1 1 1\n", "x:2: there is no such type"},
    {FIRST "gemm float32 trans_c 1  10 10 10  1 1 1\n", "x:2: the form is -, or some of trans_a"},
    {FIRST "gemm float32 - 0  10 10 10  1 1 1\n", "x:2: the number of ranks is at least 1"},
    {FIRST "add float32 - 1  10 0 0  1 1 1\nadd float32 - 1  9 0 0  1 1 1\n", "x:3: the row must come after the row"},
    {FIRST "add float32 - 1  10 0 0  1 1 1\nadd float32 - 1  10 0 0  1 1 1\n", "x:3: the row must come after the row"},
    {FIRST "gemm float32 - 1  1 1 1  1 1 1\ngemm float32 - 1  1 2 1  1 1 1\ngemm float32 - 1  2 1 1  1 1 1\n",
     "x:2: the sizes of this operation are no full grid"},
};

TEST(a_table_that_cannot_be_true_is_refused_by_line)
{
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct plan_table t = {0};
        struct why why = {""};
        if (plan_table_read(bad[i].text, strlen(bad[i].text), "x", &t, &why) != ERR_INVALID ||
            strncmp(why.text, bad[i].message, strlen(bad[i].message)) != 0)
            fail_msg("'%s': %s", bad[i].text, why.text);
        assert_null(t.rows);
    }
}

TEST(a_table_reads_what_it_prints)
{
    static const char text[] = FIRST "zero float32 - 1  400 0 0  0.1 0.1 0.1\n"
                                     "gemm bfloat16 trans_a+acc 1  10 10 10  1 0.5 4\n"
                                     "all_reduce float32 shared 2  1000 0 0  0.25 0.125 0.5\n";
    struct plan_table t;
    struct buf b = {0};
    table_of(text, &t);
    assert_int_equal(plan_table_print(t.rows, t.n, &b), OK);
    assert_int_equal(b.len, strlen(text) - strlen(FIRST));
    assert_memory_equal(b.data, text + strlen(FIRST), b.len);
    buf_fini(&b);
    plan_table_fini(&t);
}
