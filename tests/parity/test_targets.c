/* Targets that do not count in the loss. The mean is over those that count, of all ranks and microbatches, so losses
 * and gradients of complementary masks add up to those without a mask, and no layout and no microbatch changes them. */
#include "tests/parity/compare.h"

#include <math.h>

#define STEPS 3
#define LAYOUT(...) ((const char *const[]){__VA_ARGS__, NULL})

struct masked_run {
    struct parity_model m;
    struct parity_result *r;
    double counts; /* targets of the first batch that count */
};

static struct masked_run run(const char *yaml, const char *numerics, enum parity_mask mask, const char *const *layout,
                             int64_t last)
{
    struct masked_run x = {0};
    char n[48];
    const char *sets[16] = {n, "model.layers=4", "train.clip=100"}; /* never clips: slots that ran ahead count */
    snprintf(n, sizeof(n), "train.numerics=%s", numerics);
    for (int i = 0; layout[i]; i++)
        sets[i + 3] = layout[i];
    parity_model_init(&x.m, yaml, sets);
    struct parity_feed data = {.seq = x.m.job.train.seq, .vocab = x.m.job.model.vocab, .mask = mask};
    const struct engine_feed feed = {.sample = parity_sample, .arg = &data, .count = parity_count};
    const struct parity_options o = {.feed = &feed};
    x.r = parity_run(&x.m, last, &o);
    for (int64_t i = 0, one; i < x.m.job.train.global_batch; i++) {
        assert_int_equal(parity_count(&data, i, &one), OK);
        x.counts += (double)one;
    }
    return x;
}

static void end(struct masked_run *x)
{
    parity_result_free(x->r);
    parity_model_fini(&x->m);
}

/* The sums over all targets are those over the targets of a mask and of its complement. */
static void check_complements(const char *yaml, const char *const *layout)
{
    struct masked_run all = run(yaml, "proof", PARITY_ALL, LAYOUT("parallel.workers=1"), 1),
                      some = run(yaml, "proof", PARITY_SOME, layout, 1),
                      others = run(yaml, "proof", PARITY_OTHERS, layout, 1);
    double largest = 0;
    assert_true(some.counts > 0 && others.counts > 0 && some.counts + others.counts == all.counts);
    assert_true(fabs(all.r->loss[0] * all.counts - some.r->loss[0] * some.counts - others.r->loss[0] * others.counts) <
                1e-9);
    for (int64_t i = 0; i < all.r->n; i++)
        largest = fmax(largest, fabs(all.r->grad[i]));
    for (int64_t i = 0; i < all.r->n; i++)
        assert_true(fabs(all.r->grad[i] * all.counts - some.r->grad[i] * some.counts -
                         others.r->grad[i] * others.counts) < 1e-10 * largest * all.counts);
    end(&all);
    end(&some);
    end(&others);
}

TEST(complementary_masks_add_up)
{
    check_complements(parity_llama, LAYOUT("parallel.workers=1"));
    check_complements(parity_llama, LAYOUT("parallel.workers=2", "parallel.tp=2"));
    check_complements(parity_llama, LAYOUT("parallel.workers=2", "parallel.cp=2"));
    check_complements(parity_llama, LAYOUT("parallel.workers=2", "parallel.pp=2"));
    check_complements(parity_gpt2, LAYOUT("parallel.workers=4", "parallel.tp=2", "parallel.fsdp=2", "parallel.zero=3"));
    check_complements(parity_gpt2, LAYOUT("parallel.workers=2", "parallel.pp=2", "parallel.schedule=zb-h1"));
}

TEST(no_layout_changes_a_bit)
{
    const char *const *const list[] = {
        LAYOUT("parallel.workers=2"),
        LAYOUT("parallel.workers=3", "parallel.fsdp=3", "parallel.zero=3"),
        LAYOUT("parallel.workers=2", "parallel.pp=2"),
        LAYOUT("parallel.workers=2", "parallel.pp=2", "parallel.schedule=zb-h2", "parallel.post_validation=true"),
        LAYOUT("parallel.workers=2", "parallel.pp=2", "parallel.chunks=2", "parallel.schedule=zb-v",
               "parallel.post_validation=true"),
    };
    struct masked_run one = run(parity_llama, "canonical", PARITY_SOME, LAYOUT("parallel.workers=1"), STEPS);
    for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++) {
        struct masked_run other = run(parity_llama, "canonical", PARITY_SOME, list[i], STEPS);
        print_message("layout %zu\n", i);
        parity_compare_bits(one.r, other.r, STEPS);
        end(&other);
    }
    end(&one);
}

/* Gradients are summed by microbatch, so only the losses of equal parameters have equal bits. Below about 64 tokens
 * the library's products choose other code for other numbers of rows. */
TEST(no_microbatch_changes_a_bit_of_the_loss)
{
    const char *const *const list[] = {
        LAYOUT("train.micro_batch=2"),
        LAYOUT("train.micro_batch=3"),
        LAYOUT("train.micro_batch=6", "train.global_batch=6"),
        LAYOUT("train.micro_batch=1", "parallel.workers=2"),
        LAYOUT("train.micro_batch=2", "parallel.workers=3"),
        LAYOUT("train.micro_batch=2", "parallel.workers=2", "parallel.pp=2"),
    };
    struct masked_run one = run(parity_llama, "canonical", PARITY_SOME,
                                LAYOUT("train.global_batch=6", "train.micro_batch=1", "train.seq=64"), 1);
    for (size_t i = 0; i < sizeof(list) / sizeof(list[0]); i++) {
        const char *sets[8] = {"train.global_batch=6", "train.seq=64"};
        for (int k = 0; list[i][k]; k++)
            sets[k + 2] = list[i][k];
        struct masked_run other = run(parity_llama, "canonical", PARITY_SOME, sets, 1);
        print_message("layout %zu\n", i);
        assert_memory_equal(&one.r->loss[0], &other.r->loss[0], sizeof(double));
        end(&other);
    }
    end(&one);
}

/* Weights do not decay here, and the moments are 0, so an update with a gradient of 0 changes nothing. */
TEST(a_batch_without_targets_that_count_has_no_gradient)
{
    const char *const layout[] = {"parallel.workers=2", "train.weight_decay=0", NULL};
    struct masked_run before = run(parity_llama, "canonical", PARITY_NONE, layout, 0),
                      after = run(parity_llama, "canonical", PARITY_NONE, layout, STEPS);
    for (int i = 0; i < STEPS; i++)
        assert_true(after.r->loss[i] == 0 && after.r->norm[i] == 0);
    for (int64_t i = 0; i < after.r->n; i++)
        assert_true(after.r->grad[i] == 0);
    assert_memory_equal(before.r->param, after.r->param, (size_t)after.r->n * sizeof(double));
    assert_true(isnan(after.r->valid));
    end(&before);
    end(&after);
}
