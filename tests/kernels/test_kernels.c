/* Runs every case on every table that this processor can run. */
#include "kernels/variants.h"
#include "tests/kernels/harness.h"
#include "tests/lib/test.h"

#include <math.h>

static struct dev *cpu(void)
{
    static struct dev *d;
    if (!d)
        assert_ok(dev_open("cpu", 0, &d, NULL));
    return d;
}

/* Runs all compiled variants of a name and type. */
static void compare_all(const char *name, enum dtype dtype)
{
    const struct kern_ops *k;
    const char *isa;
    for (int i = 0; (k = kern_variant(i, &isa)); i++) {
        char label[32];
        struct cases_options o = {.label = label};
        if (strcmp(k->name, name) != 0 || k->dtype != dtype)
            continue;
        snprintf(label, sizeof(label), "%s %s", name, isa);
        assert_int_equal(cases_run(cpu(), k, &o), n_kcases);
    }
}

TEST(cpu_agrees_with_the_oracle)
{
    compare_all("cpu", DT_F32);
}

TEST(cpu_in_bfloat16_agrees_with_the_oracle)
{
    compare_all("cpu", DT_BF16);
}

TEST(float32_oracle_agrees_with_float64)
{
    compare_all("ref", DT_F32);
}

/* Each kernel has a TINY case, for runs that can afford only one. */
TEST(every_kernel_has_cases)
{
    const struct cases_options o = {.tiny = true};
    const struct op_desc *lists[] = {ops_matrix, ops_flat, ops_part, ops_experts};
    const int lengths[] = {n_ops_matrix, n_ops_flat, n_ops_part, n_ops_experts};
    int n = 0;
    for (int list = 0; list < 4; list++)
        for (int i = 0; i < lengths[list]; i++, n++) {
            struct cases_options one = o;
            one.op = lists[list][i].name;
            if (cases_run(cpu(), kern_find("cpu", DT_F32), &one) < 1)
                fail_msg("%s has no small case", one.op);
        }
    assert_int_equal(n, (sizeof(struct kern_ops) - offsetof(struct kern_ops, gemm)) / sizeof(void *));
}

static uint64_t bits_of(const struct values *v, const struct kern_ops *k, int threads, int shift, const struct kcase *c)
{
    struct values own;
    struct kernel_setup r;
    uint64_t bits = 0;
    values_copy(&own, v);
    kernel_setup_init(&r, cpu(), k, threads);
    assert_true(values_run(&own, &r, shift, c, &bits));
    kernel_setup_fini(&r);
    values_fini(&own);
    return bits;
}

/* The bits do not depend on the address of buffers, also with aliases, and repeat on every run. */
TEST(bits_do_not_depend_on_alignment)
{
    const struct kern_ops *k;
    const char *isa;
    for (int j = 0; j < n_kcases; j++) {
        struct values v;
        values_init(&v, &kcases[j], kern_find("cpu", DT_F32));
        for (int i = 0; (k = kern_variant(i, &isa)); i++) {
            if (strcmp(k->name, "cpu") != 0)
                continue;
            uint64_t first = bits_of(&v, k, 1, 0, &kcases[j]);
            for (int shift = 0; shift < 8; shift += 3)
                if (bits_of(&v, k, 1, shift, &kcases[j]) != first)
                    fail_msg("%s %s: %s: different bits at shift %d", k->name, isa, case_text(&kcases[j]), shift);
        }
        values_fini(&v);
    }
}

/* oneDNN may split products along k when it has several threads; our own kernels never do. */
static void compare_threads(const struct kern_ops *k)
{
    const struct cases_options products = {.op = "gemm", .label = "cpu, 3 threads", .threads = 3};
    assert_true(cases_run(cpu(), k, &products) > 20);
    for (int j = 0; j < n_kcases; j++) {
        struct values v;
        if (strcmp(kcases[j].op, "gemm") == 0)
            continue;
        values_init(&v, &kcases[j], k);
        if (bits_of(&v, k, 1, 0, &kcases[j]) != bits_of(&v, k, 3, 0, &kcases[j]))
            fail_msg("%s: different bits with 3 threads", case_text(&kcases[j]));
        values_fini(&v);
    }
}

TEST(bits_do_not_depend_on_threads)
{
    compare_threads(kern_find("cpu", DT_F32));
    compare_threads(kern_find("cpu", DT_BF16));
}

/* A stream keeps a limited number of prepared products, so the first ones have been dropped when they return. */
TEST(products_of_many_shapes_are_prepared_again)
{
    const struct kern_ops *k = kern_find("cpu", DT_BF16);
    const uint16_t one = 0x3f80, two = 0x4000;
    uint16_t a[700], b[700], c;
    struct kernel_setup r;
    for (int i = 0; i < 700; i++) {
        a[i] = one;
        b[i] = two;
    }
    kernel_setup_init(&r, cpu(), k, 1);
    for (int i = 0; i < 1400; i++) {
        int terms = 1 + i % 700;
        struct kern_gemm g = {.m = 1, .n = 1, .k = terms, .lda = terms, .ldb = 1, .ldc = 1, .a = a, .b = b, .c = &c};
        assert_ok(k->gemm(r.s, &g));
        double want = 2.0 * terms, got = element_get(DT_BF16, &c);
        if (fabs(got - want) > want * 0x1p-8)
            fail_msg("%d terms of 2 are %g", terms, got);
    }
    kernel_setup_fini(&r);
}

/* ---- finite differences ---- */

#define STEP 1e-5
#define PROBES 12          /* coordinates tried per gradient */
#define FD_MAX_WORK 200000 /* larger cases would take seconds */

struct fd {
    const struct kcase *c;
    struct kcase forward;
    const struct op_desc *op;
    struct grad_link l;
    struct values before, after; /* the gradient's operands */
};

/* Sum over the forward's outputs of cotangent times output, with element j of input i changed by `step`. */
static double fd_loss(const struct fd *f, int i, int64_t j, double step)
{
    struct values v;
    double loss = 0;
    values_init(&v, &f->forward, NULL);
    ((double *)v.p[i])[j] += step;
    oracle_run(&v, &f->forward);
    for (int g = 0; g < MAX_OPERANDS; g++) {
        int o = f->l.seed[g];
        if (o < 0)
            continue;
        for (int64_t e = 0; e < v.o[o].n; e++) {
            double y = ((double *)v.p[o])[e];
            loss += isnan(y) ? 0 : y * ((double *)f->before.p[g])[e];
        }
    }
    values_fini(&v);
    return loss;
}

static void fd_probe(const struct fd *f, int g, int64_t j)
{
    int i = f->l.target[g];
    double slope = (fd_loss(f, i, j, STEP) - fd_loss(f, i, j, -STEP)) / (2 * STEP);
    double want = slope + (f->after.o[g].role == ACC ? ((double *)f->before.p[g])[j] : 0);
    double got = ((double *)f->after.p[g])[j];
    if (isnan(got) && slope == 0)
        return; /* between rows: the forward does not read this element and the gradient does not write it */
    if (!(fabs(got - want) <= 1e-6 * (1 + fabs(want))))
        fail_msg("%s: gradient %d element %lld is %.9g, finite differences give %.9g", case_text(f->c), g, (long long)j,
                 got, want);
}

static bool fd_case(const struct kcase *c)
{
    struct fd f = {.c = c, .forward = *c, .op = op_find(c->op)};
    int64_t work =
        c->t * c->d + c->t * c->seq * c->heads * c->head_dim + c->m * c->n + c->vocab * c->d + c->t * c->vocab;
    if (!f.op->link || work > FD_MAX_WORK)
        return false;
    memset(&f.l, 0xff, sizeof(f.l));
    f.l.forward = NULL;
    f.op->link(c, &f.l);
    if (!f.l.forward)
        return false;
    f.forward.op = f.l.forward;
    f.forward.alias = 0;
    values_init(&f.before, c, NULL);
    values_init(&f.after, c, NULL);
    oracle_run(&f.after, c);
    for (int g = 0; g < MAX_OPERANDS; g++)
        for (int64_t p = 0; f.l.target[g] >= 0 && f.after.o[g].n && p < PROBES; p++)
            fd_probe(&f, g, p * 7919 % f.after.o[g].n);
    values_fini(&f.before);
    values_fini(&f.after);
    return true;
}

TEST(gradients_agree_with_finite_differences)
{
    int done = 0;
    for (int j = 0; j < n_kcases; j++)
        done += fd_case(&kcases[j]);
    assert_true(done >= 20);
}

TEST(tables_are_found_by_name_and_type)
{
    assert_string_equal(kern_find("ref", DT_F64)->name, "ref");
    assert_int_equal(kern_find("ref", DT_F32)->dtype, DT_F32);
    assert_string_equal(kern_find("cpu", DT_F32)->name, "cpu");
    assert_null(kern_find("cpu", DT_F64));
    assert_int_equal(kern_find("cpu", DT_BF16)->wide, DT_F32);
    assert_null(kern_find("ref", DT_BF16));
    assert_null(kern_find("tpu", DT_F32));
}

/* A target of probability p = 1 / (1 + e^-6) has the gradient p - 1 = -0.00247, less than bfloat16 resolves near p. */
TEST(gradient_of_a_likely_target_is_rounded_once)
{
    const struct kern_ops *k = kern_find("cpu", DT_BF16);
    const int32_t target = 0;
    uint16_t logits[2] = {0x40c0, 0}; /* 6, 0 */
    double loss = 0, p = 1 / (1 + exp(-6.0));
    struct kernel_setup r;
    kernel_setup_init(&r, cpu(), k, 1);
    k->cross_entropy(r.s, 1, 2, 2, &target, true, 1, logits, &loss);
    kernel_setup_fini(&r);
    assert_true(fabs(loss + log(p)) < 1e-6);
    assert_true(fabs(element_get(DT_BF16, &logits[0]) - (p - 1)) < (1 - p) * 0x1p-8);
    assert_true(fabs(element_get(DT_BF16, &logits[1]) - (1 - p)) < (1 - p) * 0x1p-8);
}

/* With x = 1 and a residual of 0x1.8p-9 the sum 1.0029 is stored as 1. The statistics are those of
 * the stored sum, because the backward computes with it: rstd is 1 / sqrt(1 + eps), and the mean is 1. */
static void check_statistics(const struct kern_ops *k, const char *isa)
{
    enum { D = 37 };
    const double eps = 0.25, rstd = 1 / sqrt(1 + eps);
    uint16_t x[D], res[D], w[D], b[D] = {0}, r[D], y[D];
    float mean, scale;
    struct kernel_setup setup;
    for (int j = 0; j < D; j++) {
        element_put(DT_BF16, &x[j], 1);
        element_put(DT_BF16, &res[j], 0x1.8p-9);
        element_put(DT_BF16, &w[j], 1);
    }
    kernel_setup_init(&setup, cpu(), k, 1);
    k->rmsnorm(setup.s, 1, D, eps, false, x, res, w, r, y, &scale);
    if (element_get(DT_BF16, r) != 1 || fabs((double)scale - rstd) > 1e-6)
        fail_msg("%s: rmsnorm of %g has rstd %.9g instead of %.9g", isa, element_get(DT_BF16, r), (double)scale, rstd);
    k->layernorm(setup.s, 1, D, eps, x, res, w, b, r, y, &mean, &scale);
    if (fabs((double)mean - 1) > 1e-6 || fabs((double)scale - 2) > 1e-6 || element_get(DT_BF16, y) != 0)
        fail_msg("%s: layernorm has mean %.9g and rstd %.9g", isa, (double)mean, (double)scale);
    kernel_setup_fini(&setup);
}

TEST(statistics_of_a_norm_are_of_the_rounded_residual)
{
    const struct kern_ops *k;
    const char *isa;
    for (int i = 0; (k = kern_variant(i, &isa)); i++)
        if (k->dtype == DT_BF16)
            check_statistics(k, isa);
}
