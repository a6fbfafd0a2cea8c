/* Differing replicas are detected, whichever ranks hold them, with the same message on every rank; and the behaviour of
 * a job after steps with NaN results. Ranks are forked; each may flip a bit of its own memory. */
#include "tests/parity/rank.h"

#include "common/base/hash.h"

#include <math.h>
#include <sys/mman.h>

/* ---- the hash ---- */

TEST(no_flipped_bit_hashes_alike)
{
    uint8_t x[100];
    for (size_t n = 1; n <= sizeof(x); n += 9) {
        struct hash a, b;
        memset(x, 0x5a, sizeof(x));
        hash_init(&a);
        hash_add(&a, x, n);
        for (size_t bit = 0; bit < 8 * n; bit++) {
            x[bit / 8] ^= (uint8_t)(1u << bit % 8);
            hash_init(&b);
            hash_add(&b, x, n);
            assert_true(hash_end(&a) != hash_end(&b));
            x[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
    }
}

TEST(a_hash_of_parts_is_that_of_the_whole)
{
    uint8_t x[300];
    struct hash whole, parts;
    for (size_t i = 0; i < sizeof(x); i++)
        x[i] = (uint8_t)(i * 37);
    hash_init(&whole);
    hash_add(&whole, x, sizeof(x));
    hash_init(&parts);
    hash_add(&parts, x, 64);
    hash_add(&parts, x + 64, 32);
    hash_add(&parts, x + 96, sizeof(x) - 96);
    assert_true(hash_end(&whole) == hash_end(&parts));
    hash_init(&parts);
    hash_add(&parts, x, sizeof(x) - 1);
    assert_true(hash_end(&whole) != hash_end(&parts));
}

/* ---- replicas ---- */

static int find_tensor(const struct graph *g, const char *name)
{
    for (int t = 0; t < g->n_tensors; t++)
        if (strcmp(g->tensors[t].name, name) == 0)
            return t;
    fail_msg("no tensor %s", name);
    return -1;
}

/* Flips a low bit of the first element that survives an update: no visible result changes. */
static void flip(struct parity_rank *r, const char *name)
{
    const struct program *p = &r->e.train;
    const int buffer = p->param_buffer[find_tensor(&r->m->graph, name)];
    uint8_t *x = engine_buffer(&r->e, p, buffer);
    assert_int_equal(p->buffers[buffer].dtype, DT_F64);
    x[1] ^= 1;
}

struct flipping {
    int rank;         /* rank that flips a bit */
    const char *name; /* NULL: no rank flips */
    const char *said; /* part of the message; NULL: no rank reports an error */
    struct parity_model m;
};

/* 0 when the rank reports the expected message. */
static int rank_flips(void *arg, int fd, int rank)
{
    const struct flipping *f = arg;
    struct parity_rank r = {0};
    struct engine_result result;
    struct why why = {""};
    err_t err = parity_rank_open(&r, &f->m, fd, rank, &why);
    err = err ? err : parity_rank_step(&r, &result, &why);
    if (!err && f->name && rank == f->rank)
        flip(&r, f->name);
    err = err ? err : parity_rank_step(&r, &result, &why);
    bool right = f->said ? err == ERR_CORRUPT && strstr(why.text, f->name) && strstr(why.text, f->said) &&
                               strstr(why.text, "after step 2 ")
                         : err == OK;
    if (!right)
        fprintf(stderr, "rank %d: %s %s\n", rank, err_name(err), why.text);
    parity_rank_close(&r);
    return !right;
}

static void flipped(const char *const *sets, int rank, const char *name, const char *said)
{
    struct flipping f = {.rank = rank, .name = name, .said = said};
    parity_model_init(&f.m, parity_llama, sets);
    parity_fork((int)f.m.job.parallel.workers, rank_flips, &f);
    parity_model_fini(&f.m);
}

static const char *const three[] = {"parallel.workers=3", "train.verify_every=2", NULL};

TEST(replicas_stay_alike)
{
    flipped(three, -1, NULL, NULL);
}

TEST(a_flipped_bit_is_named_with_its_tensor_and_ranks)
{
    flipped(three, 1, "layers.0.attention.wq.weight", "on rank 0 2");
    flipped(three, 2, "norm.weight", "on rank 0 1");
    flipped(three, 0, "tok_embeddings.weight", "on rank 1 2");
}

/* With two replicas it is unknown which one is correct. */
TEST(with_two_ranks_both_are_named)
{
    static const char *const two[] = {"parallel.workers=2", "train.verify_every=1", NULL};
    flipped(two, 1, "layers.1.feed_forward.w2.weight", "on rank 1");
}

/* Copies along other axes: a norm on every rank of tp, everything on every rank of cp, a piece on every replica. */
TEST(replicas_of_every_axis_are_compared)
{
    static const char *const tp[] = {"parallel.workers=2", "parallel.tp=2", "train.verify_every=1", NULL};
    static const char *const cp[] = {"parallel.workers=2", "parallel.cp=2", "train.verify_every=1", NULL};
    static const char *const shards[] = {"parallel.workers=4", "parallel.fsdp=2", "parallel.zero=3",
                                         "train.verify_every=1", NULL};
    flipped(tp, 1, "layers.0.attention_norm.weight", "on rank 1");
    flipped(cp, 0, "output.weight", "on rank 0");
    flipped(shards, 3, "layers.1.feed_forward.w1.weight", "on rank 3");
    flipped(shards, 2, "layers.1.feed_forward.w1.weight", "on rank 2");
}

/* Parameters that only one rank has are not compared: a column of tp, a layer of pp. */
TEST(parameters_without_replicas_are_not_compared)
{
    static const char *const tp[] = {"parallel.workers=2", "parallel.tp=2", "train.verify_every=1", NULL};
    flipped(tp, 1, "layers.0.attention.wq.weight", NULL);
}

/* ---- steps that are not numbers ---- */

static void begin_alone(struct parity_model *m, struct parity_rank *r, const char *const *sets)
{
    struct why why = {""};
    *r = (struct parity_rank){0};
    parity_model_init(m, parity_llama, sets);
    if (parity_rank_open(r, m, memfd_create("skip", MFD_CLOEXEC), 0, &why))
        fail_msg("%s", why.text);
}

static double *last_param(struct parity_rank *r)
{
    return engine_buffer(&r->e, &r->e.train, r->e.train.param_buffer[find_tensor(&r->m->graph, "norm.weight")]);
}

TEST(a_skipped_step_counts_and_changes_nothing)
{
    static const char *const sets[] = {"train.nan=skip", "train.nan_limit=2", NULL};
    struct parity_model m;
    struct parity_rank r;
    struct engine_result result;
    struct why why = {""};
    begin_alone(&m, &r, sets);
    assert_ok(parity_rank_step(&r, &result, &why));
    assert_false(result.skipped);
    double good = *last_param(&r);
    size_t bytes = r.e.space_bytes[SPACE_PARAM];
    for (int i = 0; i < 2; i++) {
        *last_param(&r) = NAN;
        void *before = malloc(bytes);
        memcpy(before, r.e.space[SPACE_PARAM], bytes);
        assert_ok(parity_rank_step(&r, &result, &why));
        assert_true(result.skipped);
        assert_memory_equal(before, r.e.space[SPACE_PARAM], bytes);
        free(before);
    }
    assert_int_equal(r.e.step, 3);
    assert_int_equal(r.e.position, 3 * r.m->job.train.global_batch);
    assert_int_equal(r.e.updates, 1);
    *last_param(&r) = good;
    assert_ok(parity_rank_step(&r, &result, &why));
    assert_false(result.skipped);
    assert_int_equal(r.e.updates, 2);
    assert_int_equal(r.e.skipped, 2);
    parity_rank_close(&r);
    parity_model_fini(&m);
}

TEST(too_many_skipped_steps_in_a_row_stop_the_job)
{
    static const char *const sets[] = {"train.nan=skip", "train.nan_limit=2", NULL};
    struct parity_model m;
    struct parity_rank r;
    struct engine_result result;
    struct why why = {""};
    begin_alone(&m, &r, sets);
    *last_param(&r) = INFINITY;
    assert_ok(parity_rank_step(&r, &result, &why));
    assert_ok(parity_rank_step(&r, &result, &why));
    assert_err(ERR_INVALID, parity_rank_step(&r, &result, &why));
    assert_non_null(strstr(why.text, "step 3 was rejected"));
    assert_non_null(strstr(why.text, "2 skipped steps in a row"));
    assert_int_equal(r.e.step, 2);
    parity_rank_close(&r);
    parity_model_fini(&m);
}
