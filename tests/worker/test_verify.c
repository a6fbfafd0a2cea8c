/* Replicas that differ are found, whoever holds them, and said alike on every rank; and what a job does with steps that
 * are not numbers. Ranks are forked; each flips a bit of its own memory or does not. */
#include "tests/parity/harness.h"

#include "common/base/hash.h"

#include <math.h>
#include <sys/mman.h>
#include <sys/wait.h>

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

struct rig {
    struct parity_model m;
    struct engine e;
    struct comm *comm;
    struct parity_feed data;
};

static err_t rig_open(struct rig *r, const char *const *sets, int fd, int rank, struct why *why)
{
    parity_model_init(&r->m, parity_llama, sets);
    const struct engine_config config = {.dev = test_cpu(),
                                         .job = &r->m.job,
                                         .graph = &r->m.graph,
                                         .rank = rank,
                                         .world = (int)r->m.job.parallel.workers};
    err_t err = engine_init(&r->e, &config, why);
    const struct comm_config cc = {.backend = "shm",
                                   .fd = fd,
                                   .rank = rank,
                                   .world = config.world,
                                   .epoch = 1,
                                   .shared_bytes = engine_shared_bytes(&r->e),
                                   .timeout_ms = 30000};
    err = err ? err : comm_open(&cc, &r->comm, why);
    err = err ? err : engine_start(&r->e, r->comm, why);
    err = err ? err : engine_fill_state(&r->e, why);
    r->data = (struct parity_feed){r->m.job.train.seq, r->m.job.model.vocab};
    return err;
}

static void rig_close(struct rig *r)
{
    engine_fini(&r->e);
    comm_close(r->comm);
    parity_model_fini(&r->m);
}

static err_t rig_step(struct rig *r, struct engine_result *ret, struct why *why)
{
    const struct engine_feed feed = {parity_sample, &r->data};
    return engine_step(&r->e, &feed, ret, why);
}

static int find_tensor(const struct graph *g, const char *name)
{
    for (int t = 0; t < g->n_tensors; t++)
        if (strcmp(g->tensors[t].name, name) == 0)
            return t;
    fail_msg("no tensor %s", name);
    return -1;
}

/* One bit of the first element, a low one that outlives an update: no number changes that anybody would see. */
static void flip(struct rig *r, const char *name)
{
    const struct program *p = &r->e.train;
    const int buffer = p->param_buffer[find_tensor(&r->m.graph, name)];
    uint8_t *x = engine_buffer(&r->e, p, buffer);
    assert_int_equal(p->buffers[buffer].dtype, DT_F64);
    x[1] ^= 1;
}

struct flipping {
    const char *const *sets;
    int rank;         /* that flips */
    const char *name; /* NULL: nobody does */
    const char *said; /* of the sentence; NULL: nobody minds */
};

/* 0 when the rank says what it ought to. */
static int rank_flips(const struct flipping *f, int fd, int rank)
{
    struct rig r = {0};
    struct engine_result result;
    struct why why = {""};
    err_t err = rig_open(&r, f->sets, fd, rank, &why);
    err = err ? err : rig_step(&r, &result, &why);
    if (!err && f->name && rank == f->rank)
        flip(&r, f->name);
    err = err ? err : rig_step(&r, &result, &why);
    bool right = f->said ? err == ERR_CORRUPT && strstr(why.text, f->name) && strstr(why.text, f->said) &&
                               strstr(why.text, "after step 2 ")
                         : err == OK;
    if (!right)
        fprintf(stderr, "rank %d: %s %s\n", rank, err_name(err), why.text);
    rig_close(&r);
    return !right;
}

static void flipped(int world, const struct flipping *f)
{
    int fd = memfd_create("verify", MFD_CLOEXEC), failed = 0;
    pid_t pid[8];
    for (int i = 0; i < world; i++)
        if ((pid[i] = fork()) == 0)
            _exit(rank_flips(f, fd, i));
    for (int i = 0; i < world; i++) {
        int status;
        waitpid(pid[i], &status, 0);
        failed += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    }
    close(fd);
    assert_int_equal(failed, 0);
}

static const char *const three[] = {"parallel.workers=3", "train.verify_every=2", NULL};

TEST(replicas_stay_alike)
{
    flipped(3, &(struct flipping){three, -1, NULL, NULL});
}

TEST(a_flipped_bit_is_named_with_its_tensor_and_ranks)
{
    flipped(3, &(struct flipping){three, 1, "layers.0.attention.wq.weight", "on rank 0 2"});
    flipped(3, &(struct flipping){three, 2, "norm.weight", "on rank 0 1"});
    flipped(3, &(struct flipping){three, 0, "tok_embeddings.weight", "on rank 1 2"});
}

/* Who is right nobody can say. */
TEST(of_two_ranks_both_are_named)
{
    static const char *const two[] = {"parallel.workers=2", "train.verify_every=1", NULL};
    flipped(2, &(struct flipping){two, 1, "layers.1.feed_forward.w2.weight", "on rank 1"});
}

/* Copies that other axes make: a norm on every rank of tp, everything on every rank of cp, a piece on every replica. */
TEST(replicas_of_every_axis_are_compared)
{
    static const char *const tp[] = {"parallel.workers=2", "parallel.tp=2", "train.verify_every=1", NULL};
    static const char *const cp[] = {"parallel.workers=2", "parallel.cp=2", "train.verify_every=1", NULL};
    static const char *const shards[] = {"parallel.workers=4", "parallel.fsdp=2", "parallel.zero=3",
                                         "train.verify_every=1", NULL};
    flipped(2, &(struct flipping){tp, 1, "layers.0.attention_norm.weight", "on rank 1"});
    flipped(2, &(struct flipping){cp, 0, "output.weight", "on rank 0"});
    flipped(4, &(struct flipping){shards, 3, "layers.1.feed_forward.w1.weight", "on rank 3"});
    flipped(4, &(struct flipping){shards, 2, "layers.1.feed_forward.w1.weight", "on rank 2"});
}

/* What only one rank has is not compared: a column of tp, a layer of pp. */
TEST(what_has_no_replica_is_nobodys_business)
{
    static const char *const tp[] = {"parallel.workers=2", "parallel.tp=2", "train.verify_every=1", NULL};
    flipped(2, &(struct flipping){tp, 1, "layers.0.attention.wq.weight", NULL});
}

/* ---- steps that are not numbers ---- */

static void begin_alone(struct rig *r, const char *const *sets)
{
    struct why why = {""};
    *r = (struct rig){0};
    if (rig_open(r, sets, memfd_create("skip", MFD_CLOEXEC), 0, &why))
        fail_msg("%s", why.text);
}

static double *last_param(struct rig *r)
{
    return engine_buffer(&r->e, &r->e.train, r->e.train.param_buffer[find_tensor(&r->m.graph, "norm.weight")]);
}

TEST(a_skipped_step_counts_and_changes_nothing)
{
    static const char *const sets[] = {"train.nan=skip", "train.nan_limit=2", NULL};
    struct rig r;
    struct engine_result result;
    struct why why = {""};
    begin_alone(&r, sets);
    assert_ok(rig_step(&r, &result, &why));
    assert_false(result.skipped);
    double good = *last_param(&r);
    size_t bytes = r.e.space_bytes[SPACE_PARAM];
    for (int i = 0; i < 2; i++) {
        *last_param(&r) = NAN;
        void *before = malloc(bytes);
        memcpy(before, r.e.space[SPACE_PARAM], bytes);
        assert_ok(rig_step(&r, &result, &why));
        assert_true(result.skipped);
        assert_memory_equal(before, r.e.space[SPACE_PARAM], bytes);
        free(before);
    }
    assert_int_equal(r.e.step, 3);
    assert_int_equal(r.e.position, 3 * r.m.job.train.global_batch);
    assert_int_equal(r.e.updates, 1);
    *last_param(&r) = good;
    assert_ok(rig_step(&r, &result, &why));
    assert_false(result.skipped);
    assert_int_equal(r.e.updates, 2);
    assert_int_equal(r.e.skipped, 2);
    rig_close(&r);
}

TEST(too_many_skipped_steps_in_a_row_stop_the_job)
{
    static const char *const sets[] = {"train.nan=skip", "train.nan_limit=2", NULL};
    struct rig r;
    struct engine_result result;
    struct why why = {""};
    begin_alone(&r, sets);
    *last_param(&r) = INFINITY;
    assert_ok(rig_step(&r, &result, &why));
    assert_ok(rig_step(&r, &result, &why));
    assert_err(ERR_INVALID, rig_step(&r, &result, &why));
    assert_non_null(strstr(why.text, "step 3 was refused"));
    assert_non_null(strstr(why.text, "2 skipped steps in a row"));
    assert_int_equal(r.e.step, 2);
    rig_close(&r);
}
