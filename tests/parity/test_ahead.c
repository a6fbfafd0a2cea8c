/* Post-validation: ranks that finish a step early update with an assumed clip factor and begin the next step. Every bit
 * of losses, norms, parameters and moments is that of a run that waits for the norm, with clipping in every third step,
 * steps that are not numbers, saves while the next step has begun, and pauses. */
#include "tests/parity/harness.h"
#include "tests/parity/rank.h"
#include "tests/worker/record_device.h"

#include <math.h>
#include <sys/mman.h>
#include <unistd.h>

#define STEPS 50
#define SAVED 21 /* a step that clips */

#define LAYOUT(...) ((const char *const[]){__VA_ARGS__, NULL})

/* On which device and how connected the ranks run. */
enum place { ON_A_NODE, ON_HIDDEN_MEMORY, ON_TWO_NODES };

/* What happens in a step: in which steps the norm clips, and which have a loss that is not a number. */
struct script {
    struct parity_feed data;
    struct engine *e;
    int64_t batch;
    int64_t clips; /* in every so many steps; 0: never */
    bool fails;
    int64_t pause, evaluate; /* parity_options */
    enum place place;
};

static bool is_clipped(const struct script *s, int64_t step)
{
    return s->clips && step % s->clips == 0;
}

static bool is_failed(const struct script *s, int64_t step)
{
    return s->fails && (step == 10 || step == 11 || step == 33);
}

/* Makes the loss of the step that runs, not of one that runs ahead, NaN on the ranks that have it. */
static err_t scripted_sample(void *arg, int64_t index, int32_t *ret_ids, int32_t *ret_targets)
{
    struct script *s = arg;
    const int64_t step = index / s->batch + 1;
    const struct program *p = s->e ? &s->e->train : NULL;
    if (p && s->e->step + 1 == step && is_failed(s, step))
        *(double *)engine_host_buffer(s->e, p, p->loss_buffer) = NAN;
    return parity_sample(&s->data, index, ret_ids, ret_targets);
}

static err_t script_begin(void *arg, struct engine *e, struct why *why)
{
    (void)why;
    ((struct script *)arg)->e = e;
    return OK;
}

/* Every process has its own copy of the job. */
static void script_step(void *arg, struct engine *e)
{
    double *clip = (double *)&e->config.job->train.clip;
    *clip = is_clipped(arg, e->step + 1) ? 1e-3 : 0;
}

struct outcome {
    struct parity_result *r;
    struct store *middle;
};

static struct parity_model model_of(const char *yaml, const char *const *layout, bool ahead)
{
    struct parity_model m;
    const char *sets[24] = {"train.nan=skip", "train.nan_limit=3",
                            ahead ? "parallel.post_validation=true" : "parallel.post_validation=false"};
    for (int i = 0; layout[i]; i++)
        sets[i + 3] = layout[i];
    parity_model_init(&m, yaml, sets);
    return m;
}

struct nodes_run {
    const struct parity_model *m;
    const struct parity_options *options;
    int segment[2];
    struct parity_result *r;
};

static int run_on_node(void *arg, int fd, int rank)
{
    const struct nodes_run *n = arg;
    char why[512] = "no sentence";
    (void)fd;
    int rc = parity_run_rank(n->m, n->segment[n->options->nodes->node_of[rank]], 1, rank, STEPS, n->options, n->r, why);
    if (rc)
        fprintf(stderr, "rank %d: %s\n", rank, why);
    return rc;
}

/* Each stage of a pipeline of two ranks is on a node of its own. */
static struct parity_result *run_on_nodes(const struct parity_model *m, struct parity_options options)
{
    struct parity_nodes nodes = {.address = "127.0.0.1", .store = memory_store_new()};
    struct nodes_run n = {m, &options, {-1, -1}, parity_result_new(m)};
    for (int i = 0; i < (int)m->job.parallel.workers; i++)
        nodes.node_of[i] = 2 * i / (int)m->job.parallel.workers;
    options.nodes = &nodes;
    options.comm = "stream";
    for (int i = 0; i < 2; i++)
        assert_true((n.segment[i] = memfd_create("node", MFD_CLOEXEC)) >= 0);
    parity_fork((int)m->job.parallel.workers, run_on_node, &n);
    assert_int_equal(n.r->replicas_differ, 0);
    close(n.segment[0]);
    close(n.segment[1]);
    return n.r;
}

static struct outcome play(const struct parity_model *m, struct script script, struct store *load)
{
    struct outcome o = {.middle = store_new(&m->graph, m->job.train.dtype == DT_F64 ? DT_F64 : DT_F32)};
    script.data = (struct parity_feed){.seq = m->job.train.seq, .vocab = m->job.model.vocab};
    script.batch = m->job.train.global_batch;
    const struct engine_feed feed = {.sample = scripted_sample, .arg = &script};
    struct parity_options options = {.feed = &feed,
                                     .before = script_begin,
                                     .each = script_step,
                                     .arg = &script,
                                     .pause = script.pause,
                                     .evaluate = script.evaluate,
                                     .load = load,
                                     .save = o.middle,
                                     .save_at = SAVED};
    if (script.place == ON_HIDDEN_MEMORY) {
        options.comm = "staged";
        options.open = rec_open;
        options.close = rec_close;
    }
    o.r = script.place == ON_TWO_NODES ? run_on_nodes(m, options) : parity_run(m, STEPS, &options);
    return o;
}

static void outcome_free(struct outcome *o)
{
    parity_result_free(o->r);
    store_free(o->middle);
}

static void assert_alike(const struct outcome *a, const struct outcome *b, int64_t from)
{
    for (int64_t s = from; s < STEPS; s++) /* as bits: some are NaN */
        if (memcmp(&a->r->loss[s], &b->r->loss[s], sizeof(double)) != 0 ||
            memcmp(&a->r->norm[s], &b->r->norm[s], sizeof(double)) != 0)
            fail_msg("step %d: loss %.17g and norm %.17g, not %.17g and %.17g", (int)s + 1, b->r->loss[s],
                     b->r->norm[s], a->r->loss[s], a->r->norm[s]);
    assert_memory_equal(a->r->param, b->r->param, (size_t)a->r->n * sizeof(double));
    assert_true(a->r->valid == b->r->valid);
}

static void compare(const char *yaml, const char *const *layout, struct script script)
{
    char name[SNAPSHOT_NAME_MAX];
    struct parity_model waits = model_of(yaml, layout, false), early = model_of(yaml, layout, true);
    struct outcome a = play(&waits, script, NULL), b = play(&early, script, NULL);
    assert_alike(&a, &b, 0);
    assert_int_equal(store_bad_elements(a.middle), 0);
    assert_int_equal(store_differences(a.middle, b.middle, name), 0);
    assert_int_equal(store_scalars(b.middle)[0], SAVED);
    /* From a save that was made while the next step had begun. */
    struct outcome c = play(&early, script, b.middle);
    assert_alike(&a, &c, SAVED);
    int64_t paused = script.pause ? (STEPS - 1) / script.pause : 0, wrong = 0;
    for (int64_t s = 1; s < STEPS; s++) /* none begins after the last */
        wrong += (is_clipped(&script, s) || is_failed(&script, s)) && (!script.pause || s % script.pause);
    assert_int_equal(a.r->ahead, 0);
    assert_int_equal(b.r->ahead, STEPS - 1 - paused);
    assert_int_equal(b.r->repeated, wrong);
    outcome_free(&a);
    outcome_free(&b);
    outcome_free(&c);
    parity_model_fini(&waits);
    parity_model_fini(&early);
}

static const struct script both = {.clips = 3, .fails = true};

#define ZB_H2_OF_2 "parallel.schedule=zb-h2", "parallel.pp=2", "model.layers=4"
#define ZB_H2_OF_4 "parallel.schedule=zb-h2", "parallel.pp=4", "model.layers=4"
#define ZB_V_OF_2 "parallel.schedule=zb-v", "parallel.chunks=2", "parallel.pp=2", "model.layers=4"

TEST(two_ranks_that_clip_and_skip)
{
    compare(parity_llama, LAYOUT("parallel.workers=2", ZB_H2_OF_2), both);
    compare(parity_llama, LAYOUT("parallel.workers=2", ZB_H2_OF_2, "train.numerics=fast"),
            (struct script){.clips = 3, .fails = true, .pause = 7});
}

TEST(nothing_is_repeated_without_clipping)
{
    compare(parity_llama, LAYOUT("parallel.workers=2", ZB_H2_OF_2), (struct script){0});
}

/* An evaluation uses the memory of what has run ahead, which the next step then runs again. */
TEST(an_evaluation_in_between)
{
    const struct script script = {.clips = 3, .evaluate = 7};
    compare(parity_llama, LAYOUT("parallel.workers=2", ZB_H2_OF_2, "train.numerics=fast"), script);
    compare(parity_llama, LAYOUT("parallel.workers=4", ZB_H2_OF_4, "train.numerics=fast"), script);
}

/* Every message of a discarded slot is waited for: the comm has room for 64 (COMM_POSTS), fewer than are discarded. */
TEST(clipping_in_every_step)
{
    compare(parity_llama, LAYOUT("parallel.workers=4", ZB_H2_OF_4, "train.numerics=fast"), (struct script){.clips = 1});
}

TEST(four_ranks)
{
    compare(parity_llama, LAYOUT("parallel.workers=4", ZB_H2_OF_4, "train.numerics=fast"), both);
    compare(parity_llama, LAYOUT("parallel.workers=4", ZB_H2_OF_4, "train.global_batch=16"), both);
}

TEST(canonical_replicas)
{
    compare(parity_llama, LAYOUT("parallel.workers=4", ZB_H2_OF_2, "train.numerics=canonical"), both);
}

TEST(replicas_with_a_comm_thread)
{
    compare(parity_llama, LAYOUT("parallel.workers=4", ZB_H2_OF_2, "train.numerics=fast", "run.comm_thread=on"),
            (struct script){.clips = 3, .fails = true, .pause = 5});
}

/* 2 microbatches for 3 replicas: one of them only joins in collectives. */
TEST(a_replica_without_a_microbatch)
{
    compare(parity_llama, LAYOUT("parallel.workers=6", ZB_H2_OF_2, "train.global_batch=4", "train.numerics=fast"),
            both);
}

TEST(shards_of_everything)
{
    compare(parity_llama,
            LAYOUT("parallel.workers=4", ZB_H2_OF_2, "parallel.fsdp=2", "parallel.zero=3", "train.numerics=fast"),
            both);
}

TEST(shards_of_moments)
{
    compare(parity_llama,
            LAYOUT("parallel.workers=4", ZB_H2_OF_2, "parallel.fsdp=2", "parallel.zero=1", "train.numerics=fast"),
            both);
}

TEST(tensor_parallel_stages)
{
    compare(parity_llama, LAYOUT("parallel.workers=4", ZB_H2_OF_2, "parallel.tp=2", "train.numerics=fast"), both);
}

/* The V has a tied table on rank 0. */
TEST(a_v_with_a_tied_table)
{
    compare(parity_gpt2, LAYOUT("parallel.workers=2", ZB_V_OF_2, "train.numerics=fast"), both);
    compare(parity_gpt2,
            LAYOUT("parallel.workers=4", ZB_V_OF_2, "train.numerics=fast", "parallel.fsdp=2", "parallel.zero=2"), both);
}

/* What runs ahead draws the random numbers of its own step. */
TEST(dropout)
{
    compare(parity_transformer, LAYOUT("parallel.workers=2", ZB_H2_OF_2, "train.numerics=fast"), both);
}

/* The device is asynchronous, and the host reads losses and the factor from a mirror. */
TEST(hidden_memory)
{
    const struct script script = {.clips = 3, .place = ON_HIDDEN_MEMORY};
    compare(parity_llama, LAYOUT("parallel.workers=2", ZB_H2_OF_2, "train.numerics=fast"), script);
    compare(parity_llama, LAYOUT("parallel.workers=4", ZB_H2_OF_4, "train.numerics=fast"), script);
}

TEST(hidden_memory_in_a_v)
{
    const struct script script = {.clips = 3, .place = ON_HIDDEN_MEMORY};
    compare(parity_gpt2, LAYOUT("parallel.workers=2", ZB_V_OF_2, "train.numerics=fast"), script);
}

/* Messages over a wire need their sender until they are pushed. */
TEST(two_nodes)
{
    const struct script script = {.clips = 3, .fails = true, .place = ON_TWO_NODES};
    compare(parity_llama, LAYOUT("parallel.workers=2", ZB_H2_OF_2, "train.numerics=fast"), script);
    compare(parity_llama, LAYOUT("parallel.workers=4", ZB_H2_OF_4, "train.numerics=fast"), script);
    compare(parity_llama, LAYOUT("parallel.workers=4", ZB_H2_OF_4, "train.numerics=fast", "run.comm_thread=on"),
            script);
}
