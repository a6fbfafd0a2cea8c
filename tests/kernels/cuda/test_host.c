/* Tests the module's C code on the stand-ins of tests/cuda_host where the case table does not reach it. Products that
 * are cut run in a module built with a small GEMM_SPAN. */
#include "tests/lib/test.h"

#include "kernels/kernels.h"
#include "tests/cuda_host/counts.h"

#include <math.h>
#include <stdbool.h>

struct fixture {
    struct dev *dev, *cpu;
    struct kern_stream *s, *cpu_stream;
    const struct kern_ops *ops, *ref;
};

/* The environment variable `variable` gives DTD_MODULE_DIR; products are float32, so the oracle is near. */
static struct fixture fixture_open(const char *variable)
{
    struct fixture f = {0};
    struct why why = {""};
    assert_int_equal(setenv("DTD_MODULE_DIR", getenv(variable), 1), 0);
    err_t err = dev_open("cuda", 0, &f.dev, &why);
    if (err != OK)
        fail_msg("%s", why.text);
    assert_ok(dev_open("cpu", 0, &f.cpu, &why));
    assert_ok(dev_stream_new(f.dev, 0, false, &f.s, &why));
    assert_ok(dev_stream_new(f.cpu, 1, false, &f.cpu_stream, &why));
    f.ops = dev_kernels(f.dev, DT_F32);
    f.ref = kern_find("ref", DT_F32);
    return f;
}

static void fixture_close(struct fixture *f)
{
    dev_stream_free(f->cpu_stream);
    dev_stream_free(f->s);
    dev_close(f->cpu);
    dev_close(f->dev);
}

/* ---- products ---- */

enum { A, B, BIAS, C, AUX, A_SUM, B_SUM, ARRAYS };

struct arrays {
    float *at[ARRAYS];
    size_t n[ARRAYS];
};

static float value(size_t i, int array)
{
    return (float)((i * 2654435761u + (size_t)array * 40503u) >> 7 & 1023) / 512 - 1;
}

static struct arrays arrays_new(struct dev *d, const struct kern_gemm *g)
{
    struct arrays r = {.n = {(size_t)((g->trans_a ? g->k : g->m) * g->lda),
                             (size_t)((g->trans_b ? g->n : g->k) * g->ldb), (size_t)g->n, (size_t)(g->m * g->ldc),
                             (size_t)(g->m * g->ldc), (size_t)g->m, (size_t)g->n}};
    for (int i = 0; i < ARRAYS; i++)
        assert_ok(dev_alloc(d, r.n[i] * sizeof(float), "a test", (void **)&r.at[i], NULL));
    return r;
}

static void arrays_free(struct dev *d, struct arrays *r)
{
    for (int i = 0; i < ARRAYS; i++)
        dev_free(d, r->at[i], r->n[i] * sizeof(float));
}

/* The optional operands of a product. */
struct form {
    bool bias, sums;
    enum kern_act act;
};

static void run(const struct kern_ops *ops, struct kern_stream *s, const struct kern_gemm *shape,
                const struct form *form, const struct arrays *r)
{
    struct kern_gemm g = *shape;
    struct why why = {""};
    float *host = malloc(1 << 20);
    for (int i = 0; i < ARRAYS; i++) {
        assert_true(r->n[i] * sizeof(float) <= 1 << 20);
        for (size_t j = 0; j < r->n[i]; j++)
            host[j] = value(j, i);
        assert_ok(dev_copy(s, r->at[i], host, r->n[i] * sizeof(float)));
        assert_ok(dev_stream_sync(s, &why));
    }
    free(host);
    g.a = r->at[A], g.b = r->at[B], g.c = r->at[C];
    g.act = form->act;
    g.bias = form->bias ? r->at[BIAS] : NULL;
    g.aux = form->act != KERN_ACT_NONE ? r->at[AUX] : NULL;
    g.a_sum = form->sums ? r->at[A_SUM] : NULL;
    g.b_sum = form->sums ? r->at[B_SUM] : NULL;
    assert_ok(ops->gemm(s, &g));
    if (dev_stream_sync(s, &why) != OK)
        fail_msg("%s", why.text);
}

static void compare(struct fixture *f, const struct kern_gemm *g, const struct form *form)
{
    struct arrays ours = arrays_new(f->dev, g), oracle = arrays_new(f->cpu, g);
    run(f->ops, f->s, g, form, &ours);
    run(f->ref, f->cpu_stream, g, form, &oracle);
    for (int i = C; i < ARRAYS; i++) {
        float *host = malloc(ours.n[i] * sizeof(float) + 1);
        assert_ok(dev_copy(f->s, host, ours.at[i], ours.n[i] * sizeof(float)));
        assert_ok(dev_stream_sync(f->s, NULL));
        for (size_t j = 0; j < ours.n[i]; j++)
            if (!(fabsf(host[j] - oracle.at[i][j]) <= 1e-4f))
                fail_msg("array %d, element %zu: %g, not %g (%lld x %lld x %lld, trans %d%d, act %d, bias %d, sums %d)",
                         i, j, (double)host[j], (double)oracle.at[i][j], (long long)g->m, (long long)g->n,
                         (long long)g->k, g->trans_a, g->trans_b, form->act, form->bias, form->sums);
        free(host);
    }
    arrays_free(f->dev, &ours);
    arrays_free(f->cpu, &oracle);
}

static struct kern_gemm shape_of(int64_t m, int64_t n, int64_t k, int transposed, int64_t pad)
{
    struct kern_gemm g = {.trans_a = transposed & 1, .trans_b = transposed & 2, .m = m, .n = n, .k = k, .ldc = n + pad};
    g.lda = (g.trans_a ? m : k) + pad;
    g.ldb = (g.trans_b ? k : n) + pad;
    return g;
}

/* Which layouts of A and B allow a form with an activation in the comparison. */
enum lie { NEVER, A_AS_IT_IS, ANYHOW };

static void compare_forms(struct fixture *f, int64_t m, int64_t n, int64_t k, int64_t pad, enum lie acts)
{
    const struct form forms[] = {{.sums = true},
                                 {.bias = true},
                                 {.bias = true, .sums = true},
                                 {.act = KERN_ACT_GELU},
                                 {.act = KERN_ACT_GELU, .bias = true, .sums = true},
                                 {.act = KERN_ACT_GELU_GRAD, .sums = true},
                                 {.act = KERN_ACT_GELU_GRAD, .bias = true}};
    for (int transposed = 0; transposed < 4; transposed++) {
        struct kern_gemm g = shape_of(m, n, k, transposed, pad);
        for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++)
            if (forms[i].act == KERN_ACT_NONE || acts == ANYHOW || (acts == A_AS_IT_IS && !g.trans_a))
                compare(f, &g, &forms[i]);
        g.accumulate = true;
        compare(f, &g, &forms[0]);
    }
}

/* GEMM_SPAN is 600 in this module: every matrix here is cut, some along all three dimensions and several times. */
TEST(products_that_span_too_much_are_cut)
{
    struct fixture f = fixture_open("DTD_MODULE_CUT");
    compare_forms(&f, 40, 30, 50, 0, NEVER);
    compare_forms(&f, 37, 41, 29, 3, NEVER);
    compare_forms(&f, 250, 3, 4, 0, NEVER);
    compare_forms(&f, 64, 20, 20, 0, A_AS_IT_IS); /* the cut is along rows, which is compatible with an activation */
    fixture_close(&f);
}

TEST(a_sum_that_cannot_be_cut_is_refused)
{
    struct fixture f = fixture_open("DTD_MODULE_CUT");
    struct kern_gemm g = shape_of(8, 40, 50, 0, 0);
    struct why why = {""};
    struct arrays r = arrays_new(f.dev, &g);
    g.a = r.at[A], g.b = r.at[B], g.c = r.at[C], g.aux = r.at[AUX], g.act = KERN_ACT_GELU;
    assert_err(ERR_UNSUPPORTED, f.ops->gemm(f.s, &g));
    assert_err(ERR_UNSUPPORTED, dev_stream_sync(f.s, &why));
    assert_non_null(strstr(why.text, "2^31"));
    assert_non_null(strstr(why.text, "8 x 40 x 50"));
    arrays_free(f.dev, &r);
    fixture_close(&f);
}

TEST(products_without_terms_and_without_results)
{
    struct fixture f = fixture_open("DTD_MODULE_HOST");
    compare_forms(&f, 5, 7, 0, 0, ANYHOW);
    compare_forms(&f, 5, 7, 0, 9, ANYHOW);
    compare_forms(&f, 0, 7, 3, 1, NEVER);
    compare_forms(&f, 5, 0, 3, 1, NEVER);
    compare_forms(&f, 1, 1, 1, 0, ANYHOW);
    fixture_close(&f);
}

TEST(rows_that_do_not_follow_each_other)
{
    struct fixture f = fixture_open("DTD_MODULE_HOST");
    compare_forms(&f, 9, 16, 8, 8, ANYHOW);
    compare_forms(&f, 9, 13, 8, 5, ANYHOW);
    fixture_close(&f);
}

/* More shapes than the cache holds, twice; the device frees all of them. */
TEST(the_cache_of_shapes_is_bounded)
{
    struct cuda_host_counts before, full, after;
    cuda_host_counts_read(&before);
    struct fixture f = fixture_open("DTD_MODULE_HOST");
    const struct form form = {0};
    for (int round = 0; round < 2; round++)
        for (int64_t k = 1; k <= 500; k++) {
            struct kern_gemm g = shape_of(2, 3, k, (int)(k % 4), 0);
            compare(&f, &g, &form);
        }
    cuda_host_counts_read(&full);
    assert_true(full.live_handles - before.live_handles <= 4 * 384 + 1);
    fixture_close(&f);
    cuda_host_counts_read(&after);
    assert_int_equal(after.live_handles, before.live_handles);
    assert_int_equal(after.live_allocations, before.live_allocations);
    assert_int_equal(after.live_streams, before.live_streams);
}

TEST(a_known_shape_allocates_nothing)
{
    struct cuda_host_counts first, second;
    struct fixture f = fixture_open("DTD_MODULE_HOST");
    struct kern_gemm g = shape_of(24, 16, 8, 1, 0);
    const struct form form = {.sums = true};
    struct arrays r = arrays_new(f.dev, &g);
    run(f.ops, f.s, &g, &form, &r);
    cuda_host_counts_read(&first);
    run(f.ops, f.s, &g, &form, &r);
    cuda_host_counts_read(&second);
    assert_int_equal(second.allocations, first.allocations);
    assert_int_equal(second.live_handles, first.live_handles);
    assert_int_equal(second.products, first.products + 1); /* one sum is fused, bias_grad computes the other */
    arrays_free(f.dev, &r);
    fixture_close(&f);
}

/* ---- failures ---- */

/* The first wait after a kernel's failure reports it, and then every call does. */
TEST(a_broken_context_repeats_its_first_failure)
{
    struct fixture f = fixture_open("DTD_MODULE_HOST");
    struct why first = {""}, why = {""};
    void *p, *q = NULL;
    struct dev_event *e;
    assert_ok(dev_alloc(f.dev, 4096, "a test", &p, &why));
    assert_ok(dev_event_new(f.dev, false, &e));
    cuda_host_inject("kernel", 1);
    f.ops->add(f.s, 1024, p, p, p);
    assert_ok(dev_event_record(f.dev, e, f.s));
    err_t err = dev_stream_sync(f.s, &first);
    assert_err(ERR_INTERNAL, err);
    assert_non_null(strstr(first.text, "CUDA device 0: cudaStreamSynchronize at kernels/cuda/device.c:"));
    assert_non_null(strstr(first.text, "the newest work of its stream was map_elements"));
    assert_non_null(strstr(first.text, "kernels/cuda/activation.cu:"));
    assert_err(err, dev_stream_sync(f.s, &why));
    assert_string_equal(why.text, first.text);
    assert_true(dev_event_over(f.dev, e));
    assert_err(err, dev_event_sync(f.dev, e, &why));
    assert_string_equal(why.text, first.text);
    assert_err(err, dev_alloc(f.dev, 64, "more", &q, &why));
    assert_string_equal(why.text, first.text);
    assert_err(err, dev_zero(f.s, p, 64));
    struct kern_stream *s = NULL;
    assert_err(err, dev_stream_new(f.dev, 0, false, &s, &why));
    assert_string_equal(why.text, first.text);
    dev_event_free(f.dev, e);
    dev_free(f.dev, p, 4096);
    fixture_close(&f);
}

/* Whether the device stays unusable once a call has returned `code`, although later calls would succeed. */
static bool breaks(int code, err_t *ret_err)
{
    struct fixture f = fixture_open("DTD_MODULE_HOST");
    struct why why = {""};
    void *p = NULL;
    cuda_host_break(code);
    *ret_err = dev_alloc(f.dev, 64, "a test", &p, &why);
    assert_true(*ret_err != OK);
    cuda_host_break(0);
    err_t later = dev_alloc(f.dev, 64, "a test", &p, &why);
    if (later != OK)
        assert_err(*ret_err, later);
    else
        dev_free(f.dev, p, 64);
    fixture_close(&f);
    return later != OK;
}

TEST(codes_after_which_a_context_is_lost)
{
    /* By number, because headers of CUDA 12 do not name all of them. */
    const struct {
        int code;
        err_t err;
    } lost[] = {{214, ERR_IO},       {220, ERR_IO},       {226, ERR_IO}, {702, ERR_TIMEOUT}, {709, ERR_INTERNAL},
                {719, ERR_INTERNAL}, {721, ERR_INTERNAL}, {810, ERR_IO}, {911, ERR_IO},      {999, ERR_INTERNAL}};
    const int kept[] = {1, 2, 46, 101, 400, 701, 712, 720, 801, 900};
    err_t err;
    for (size_t i = 0; i < sizeof(lost) / sizeof(lost[0]); i++) {
        if (!breaks(lost[i].code, &err))
            fail_msg("code %d leaves the context usable", lost[i].code);
        assert_err(lost[i].err, err);
    }
    for (size_t i = 0; i < sizeof(kept) / sizeof(kept[0]); i++)
        if (breaks(kept[i], &err))
            fail_msg("code %d leaves the context broken", kept[i]);
}

/* driver_types.h documents each code in the comment before it; this reads which codes require that the process ends. */
TEST(codes_after_which_the_process_must_end)
{
    FILE *file = fopen(getenv("DTD_DRIVER_TYPES"), "r");
    char line[1024], name[128];
    bool ends = false;
    int code, n = 0;
    err_t err;
    assert_non_null(file);
    while (fgets(line, sizeof(line), file)) {
        ends = strstr(line, "/**") ? false : ends;
        ends = ends || strstr(line, "be terminated");
        if (sscanf(line, " cudaError%127[A-Za-z] = %d", name, &code) != 2)
            continue;
        if (ends && !breaks(code, &err))
            fail_msg("cudaError%s leaves the context usable", name);
        n += ends;
        ends = false;
    }
    fclose(file);
    assert_true(n >= 10);
}

TEST(a_refused_launch_stays_with_its_stream)
{
    struct fixture f = fixture_open("DTD_MODULE_HOST");
    struct kern_stream *other;
    struct why why = {""};
    void *p;
    assert_ok(dev_stream_new(f.dev, 0, true, &other, &why));
    assert_ok(dev_alloc(f.dev, 4096, "a test", &p, &why));
    cuda_host_inject("launch", 1);
    f.ops->add(f.s, 1024, p, p, p);
    f.ops->add(other, 1024, p, p, p);
    assert_ok(dev_stream_sync(other, &why));
    assert_true(dev_stream_sync(f.s, &why) != OK);
    assert_non_null(strstr(why.text, "map_elements"));
    assert_true(dev_stream_sync(f.s, &why) != OK); /* the context is broken from here on */
    dev_free(f.dev, p, 4096);
    dev_stream_free(other);
    fixture_close(&f);
}

TEST(memory_that_is_not_there_is_named)
{
    struct fixture f = fixture_open("DTD_MODULE_HOST");
    struct why why = {""};
    void *p = NULL;
    cuda_host_inject("malloc", 1);
    assert_err(ERR_NOMEM, dev_alloc(f.dev, (size_t)3 << 29, "the activations", &p, &why));
    assert_null(p);
    assert_non_null(strstr(why.text, "for the activations: 1.50 GiB are needed"));
    assert_ok(dev_alloc(f.dev, 64, "a test", &p, &why)); /* and the context still works */
    dev_free(f.dev, p, 64);

    struct kern_gemm g = shape_of(4, 4, 4, 0, 0);
    struct arrays r = arrays_new(f.dev, &g);
    g.a = r.at[A], g.b = r.at[B], g.c = r.at[C];
    cuda_host_inject("malloc", 1);
    assert_err(ERR_NOMEM, f.ops->gemm(f.s, &g));
    assert_err(ERR_NOMEM, dev_stream_sync(f.s, &why));
    assert_non_null(strstr(why.text, "a stream's scratch"));
    arrays_free(f.dev, &r);
    fixture_close(&f);
}
