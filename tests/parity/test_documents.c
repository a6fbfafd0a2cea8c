/* Documents that share a sample (data.documents: separate): none sees another, in any layout, and together they have
 * the loss that they have alone. */
#include "tests/parity/compare.h"

#include <math.h>

#define LAYOUT(...) ((const char *const[]){__VA_ARGS__, NULL})

/* A sample has two documents, A and B, of lengths that depend on its index. */
enum content {
    BOTH,     /* A, then B */
    COUNTS_B, /* the same, but only targets of B count */
    ONLY_A,   /* A, then padding */
    ONLY_B,   /* B at the begin, then padding */
};

struct two_documents {
    struct parity_feed made_up;
    enum content content;
    bool changed; /* another token in A */
};

static int64_t cut_of(const struct two_documents *d, int64_t index)
{
    return 2 + index % (d->made_up.seq - 4);
}

static err_t two_begins(void *arg, int64_t index, int32_t *ret)
{
    const struct two_documents *d = arg;
    int64_t a = cut_of(d, index), n = d->content == ONLY_B ? d->made_up.seq - a : a;
    for (int64_t i = 0; i < d->made_up.seq; i++)
        ret[i] = (int32_t)(i < n ? 0 : n);
    return OK;
}

static err_t two_sample(void *arg, int64_t index, int32_t *ids, int32_t *targets)
{
    struct two_documents *d = arg;
    const int64_t seq = d->made_up.seq, a = cut_of(d, index);
    err_t err = parity_sample(&d->made_up, index, ids, targets);
    if (d->changed)
        ids[index % (a - 1)] = (ids[index % (a - 1)] + 1) % (int32_t)d->made_up.vocab;
    for (int64_t i = 0; i < seq; i++)
        targets[i] = i + 1 == a || i + 1 == seq || (d->content == COUNTS_B && i < a) ? -1 : ids[i + 1];
    if (d->content == ONLY_B) {
        memmove(ids, ids + a, (size_t)(seq - a) * sizeof(*ids));
        memmove(targets, targets + a, (size_t)(seq - a) * sizeof(*targets));
    }
    const int64_t filled = d->content == ONLY_A ? a : d->content == ONLY_B ? seq - a : seq;
    for (int64_t i = filled; i < seq; i++) {
        ids[i] = 0;
        targets[i] = -1;
    }
    return err;
}

static err_t two_count(void *arg, int64_t index, int64_t *ret)
{
    int32_t ids[256], targets[256];
    const struct two_documents *d = arg;
    err_t err = two_sample(arg, index, ids, targets);
    *ret = 0;
    for (int64_t i = 0; i < d->made_up.seq; i++)
        *ret += targets[i] >= 0;
    return err;
}

struct two_run {
    struct parity_model m;
    struct parity_result *r;
    double counts; /* targets of the first batch that count */
};

static struct two_run run(const char *documents, const char *numerics, enum content content, bool changed,
                          const char *const *layout)
{
    struct two_run x = {0};
    char n[48], key[48];
    const char *sets[16] = {n, key};
    snprintf(n, sizeof(n), "train.numerics=%s", numerics);
    snprintf(key, sizeof(key), "data.documents=%s", documents);
    for (int i = 0; layout[i]; i++)
        sets[i + 2] = layout[i];
    parity_model_init(&x.m, parity_llama, sets);
    struct two_documents data = {
        .made_up = {.seq = x.m.job.train.seq, .vocab = x.m.job.model.vocab}, .content = content, .changed = changed};
    const struct engine_feed feed = {.sample = two_sample, .begins = two_begins, .count = two_count, .arg = &data};
    const struct parity_options o = {.feed = &feed};
    x.r = parity_run(&x.m, 1, &o);
    for (int64_t i = 0, one; i < x.m.job.train.global_batch; i++) {
        assert_int_equal(two_count(&data, i, &one), OK);
        x.counts += (double)one;
    }
    return x;
}

static void end(struct two_run *x)
{
    parity_result_free(x->r);
    parity_model_fini(&x->m);
}

static const char *const *const layouts[] = {
    LAYOUT("parallel.workers=1"),
    LAYOUT("parallel.workers=2", "parallel.tp=2"),
    LAYOUT("parallel.workers=2", "parallel.cp=2"),
    LAYOUT("parallel.workers=3", "parallel.cp=3"),
    LAYOUT("parallel.workers=2", "parallel.pp=2"),
    LAYOUT("parallel.workers=4", "parallel.fsdp=2", "parallel.zero=3", "parallel.cp=2"),
};
#define LAYOUTS (sizeof(layouts) / sizeof(layouts[0]))

/* Loss and gradients of B do not depend on any token of A, in no bit. */
static void check_leak(const char *numerics, const char *const *layout)
{
    struct two_run as_is = run("separate", numerics, COUNTS_B, false, layout),
                   changed = run("separate", numerics, COUNTS_B, true, layout);
    assert_memory_equal(&as_is.r->loss[0], &changed.r->loss[0], sizeof(double));
    for (int64_t i = 0; i < as_is.r->n; i++)
        if (as_is.r->grad[i] != changed.r->grad[i])
            fail_msg("gradient %lld: %a, and %a with another token", (long long)i, as_is.r->grad[i],
                     changed.r->grad[i]);
    end(&as_is);
    end(&changed);
}

TEST(no_bit_leaks_between_documents)
{
    for (size_t i = 0; i < LAYOUTS; i++) {
        print_message("layout %zu\n", i);
        check_leak("proof", layouts[i]);
        check_leak("fast", layouts[i]);
    }
}

/* The same test sees the leak where documents are joined. */
TEST(joined_documents_leak)
{
    struct two_run as_is = run("joined", "fast", COUNTS_B, false, layouts[0]),
                   changed = run("joined", "fast", COUNTS_B, true, layouts[0]);
    assert_true(fabs(as_is.r->loss[0] - changed.r->loss[0]) > 1e-6);
    end(&as_is);
    end(&changed);
}

/* The loss of a batch of both is the weighted mean of the losses of each alone. */
static void check_mean(const char *numerics, const char *const *layout, double bound)
{
    struct two_run both = run("separate", numerics, BOTH, false, layout),
                   a = run("separate", numerics, ONLY_A, false, layouts[0]),
                   b = run("separate", numerics, ONLY_B, false, layouts[0]);
    assert_true(a.counts > 0 && b.counts > 0 && both.counts == a.counts + b.counts);
    const double mean = (a.r->loss[0] * a.counts + b.r->loss[0] * b.counts) / both.counts;
    if (!(fabs(both.r->loss[0] - mean) < bound))
        fail_msg("%s: together %.12g, apart %.12g", numerics, both.r->loss[0], mean);
    double largest = 0, worst = 0;
    for (int64_t i = 0; i < both.r->n; i++) {
        double apart = (a.r->grad[i] * a.counts + b.r->grad[i] * b.counts) / both.counts;
        largest = fmax(largest, fabs(apart));
        worst = fmax(worst, fabs(both.r->grad[i] - apart));
    }
    assert_true(worst < bound * largest * 10);
    end(&both);
    end(&a);
    end(&b);
}

TEST(together_is_the_mean_of_apart)
{
    for (size_t i = 0; i < LAYOUTS; i++) {
        print_message("layout %zu\n", i);
        check_mean("proof", layouts[i], 1e-10);
        check_mean("fast", layouts[i], 1e-6);
    }
}
