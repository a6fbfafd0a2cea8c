/* Routing that a job saves and others are given: a job in another layout uses the same experts, so that its losses
 * follow in float32 for many steps; what it saves in turn is the same; folders that do not fit are refused by name. */
#include "tests/parity/rank.h"
#include "worker/step/routing_file.h"

#include "common/base/file.h"

#include <inttypes.h>
#include <math.h>
#include <sys/mman.h>

#define MOST_STEPS 100
#define EXPERTS 6
#define CHOICES 2
#define SEQ 16
#define BATCH 6
#define ROUTERS 4

struct replay {
    struct parity_model m;
    int steps;
    double loss[MOST_STEPS];
    char why[1024]; /* of rank 0, if a step fails */
};

static int replay_rank(void *arg, int fd, int rank)
{
    struct replay *x = arg;
    struct parity_rank r = {0};
    struct engine_result result = {0};
    struct why why = {""};
    err_t err = parity_rank_open(&r, &x->m, fd, rank, &why);
    for (int step = 0; step < x->steps && !err; step++) {
        err = parity_rank_step(&r, &result, &why);
        x->loss[step] = result.loss;
    }
    if (err && rank == 0)
        snprintf(x->why, sizeof(x->why), "%s", why.text);
    parity_rank_close(&r);
    return 0;
}

/* Runs `steps` steps. `save` and `replay`: folders, or "". */
static struct replay *run(const char *layout, int steps, const char *save, const char *replay, const char *more)
{
    char to[512], from[512];
    snprintf(to, sizeof(to), "train.save_routing=\"%s\"", save);
    snprintf(from, sizeof(from), "train.replay_routing=\"%s\"", replay);
    const char *sets[] = {"model={experts: 6, experts_per_token: 2, expert_ffn: 11, aux_loss: 0.1, layers: 4}",
                          "train={verify_every: 0, global_batch: 6, micro_batch: 2, seq: 16, dtype: float32, "
                          "numerics: fast}",
                          layout,
                          to,
                          from,
                          more,
                          NULL};
    struct replay *x = mmap(NULL, sizeof(*x), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(x != MAP_FAILED);
    parity_model_init(&x->m, parity_llama, sets);
    x->steps = steps;
    parity_fork((int)x->m.job.parallel.workers, replay_rank, x);
    return x;
}

static void replay_free(struct replay *x)
{
    parity_model_fini(&x->m);
    munmap(x, sizeof(*x));
}

/* ---- what a folder has ---- */

typedef uint16_t step_ids[ROUTERS][BATCH][SEQ][CHOICES];

static void read_ids(const char *dir, int step, int ranks, step_ids ret)
{
    memset(ret, 0xff, sizeof(step_ids));
    for (int r = 0; r < ranks; r++) {
        char path[512];
        struct buf b = {0};
        struct routing_file f;
        struct routing_block block;
        struct why why;
        snprintf(path, sizeof(path), "%s/step-%d/%d-of-%d", dir, step, r, ranks);
        assert_ok(file_read(path, 1 << 20, &b));
        assert_ok(routing_file_open(b.data, b.len, path, &f, &why));
        while (routing_file_next(&f, &block))
            for (int64_t i = 0; i < block.tokens * CHOICES; i++) {
                uint16_t *to = &ret[block.router][block.sample][block.position + i / CHOICES][i % CHOICES];
                assert_int_equal(*to, UINT16_MAX);
                *to = routing_id(&block, i);
            }
        buf_fini(&b);
    }
}

static const char *const layouts[] = {
    "parallel={workers: 2, fsdp: 2, ep: 2}",          "parallel={workers: 2, tp: 2, ep: 2}",
    "parallel={workers: 2, tp: 2, sp: false}",        "parallel={workers: 4, cp: 2, pp: 2, ep: 2, recompute: experts}",
    "parallel={workers: 4, fsdp: 4, zero: 3, ep: 2}",
};
#define N_LAYOUTS (sizeof(layouts) / sizeof(layouts[0]))

static void folder_new(char dir[64])
{
    static int n;
    snprintf(dir, 64, "%s/%d", test_tmpdir(), n++);
}

TEST(choices_are_those_of_the_first_job_in_every_layout)
{
    static step_ids want, got;
    char a[64], b[64];
    folder_new(a);
    replay_free(run("parallel={workers: 1}", 2, a, "", "train.seed=1"));
    for (size_t i = 0; i < N_LAYOUTS; i++) {
        folder_new(b);
        /* other scores: the learning rate is another one */
        struct replay *x = run(layouts[i], 2, b, a, "train.lr=0.5");
        assert_string_equal(x->why, "");
        for (int step = 1; step <= 2; step++) {
            read_ids(a, step, 1, want);
            read_ids(b, step, (int)x->m.job.parallel.workers, got);
            for (size_t k = 0; k < sizeof(want) / sizeof(uint16_t); k++)
                assert_in_range(((uint16_t *)want)[k], 0, EXPERTS - 1);
            if (memcmp(want, got, sizeof(want)) != 0)
                fail_msg("%s: other choices in step %d", layouts[i], step);
        }
        replay_free(x);
        assert_ok(file_remove_tree(b));
    }
    assert_ok(file_remove_tree(a));
}

TEST(a_float32_twin_follows_for_a_hundred_steps)
{
    char a[64];
    folder_new(a);
    struct replay *one = run("parallel={workers: 1}", MOST_STEPS, a, "", "train.seed=1");
    for (size_t i = 0; i < 2; i++) {
        struct replay *x = run(layouts[i], MOST_STEPS, "", a, "train.seed=1");
        double most = 0;
        assert_string_equal(x->why, "");
        for (int step = 0; step < MOST_STEPS; step++)
            most = fmax(most, fabs(x->loss[step] - one->loss[step]) / one->loss[step]);
        print_message("%s: losses of %d steps differ by at most %.2g; the last is %g\n", layouts[i], MOST_STEPS, most,
                      one->loss[MOST_STEPS - 1]);
        assert_true(most <= 1e-5 && one->loss[MOST_STEPS - 1] < one->loss[0]);
        replay_free(x);
    }
    replay_free(one);
    assert_ok(file_remove_tree(a));
}

/* A job that continues from an earlier step, on fewer ranks, leaves no file of the longer attempt. */
TEST(later_steps_of_an_earlier_attempt_are_removed)
{
    static step_ids ids;
    char a[64], path[128];
    folder_new(a);
    replay_free(run(layouts[0], 3, a, "", "train.seed=1"));
    replay_free(run("parallel={workers: 1}", 1, a, "", "train.seed=1"));
    read_ids(a, 1, 1, ids);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof(path), "%s/%s", a, i ? "step-3" : "step-1/1-of-2");
        assert_int_equal(access(path, F_OK), -1);
    }
    assert_ok(file_remove_tree(a));
}

/* ---- refusals ---- */

static void refused(const char *dir, int steps, const char *more, const char *part)
{
    struct replay *x = run("parallel={workers: 1}", steps, "", dir, more);
    if (!strstr(x->why, part) || !strstr(x->why, dir))
        fail_msg("\"%s\" is not in \"%s\"", part, x->why);
    replay_free(x);
}

static void change_byte(const char *path, size_t at, size_t len)
{
    struct buf b = {0};
    assert_ok(file_read(path, 1 << 20, &b));
    b.data[at] ^= 1;
    assert_ok(file_replace(path, b.data, b.len - len, 0644));
    buf_fini(&b);
}

TEST(folders_that_do_not_fit_are_refused_by_name)
{
    char a[64], path[128], other[128];
    folder_new(a);
    replay_free(run(layouts[0], 2, a, "", "train.seed=1"));
    refused(a, 3, "train.seed=1", "/step-3 has no files: step 3 was not saved there");
    refused(a, 1, "train.seed=2", "belongs to another job: the hash of the data, its order and train.seed is");
    refused(a, 1, "data.shuffle=blocks", "belongs to another job: the hash of the data, its order and train.seed is");
    refused(a, 1, "model.experts=5", "belongs to another job: model.experts is 6 there and 5 here");
    refused(a, 1, "model.experts_per_token=1", "model.experts_per_token is 2 there and 1 here");
    refused(a, 1, "train.seq=8", "step-1/0-of-2 ");
    snprintf(path, sizeof(path), "%s/step-1/1-of-2", a);
    change_byte(path, 100, 0);
    refused(a, 1, "train.seed=1", "1-of-2 is damaged: its checksum is wrong");
    change_byte(path, 100, 3);
    refused(a, 1, "train.seed=1", "1-of-2 is damaged: its checksum is wrong");
    assert_int_equal(unlink(path), 0);
    refused(a, 1, "train.seed=1", "1-of-2 cannot be read");
    /* the other rank's choices under two names */
    snprintf(other, sizeof(other), "%s/step-1/0-of-2", a);
    assert_int_equal(link(other, path), 0);
    refused(a, 1, "train.seed=1", "has choices of sample 0, position 0, too");
    assert_ok(file_remove_tree(a));
}
