/* Any routing fits the planned memory: as the first parameters give it; all tokens choose the same experts, which are
 * all on one rank; and the same with experts of another rank in every step. What the workers allocate is the plan,
 * nothing is allocated after the first step, the bound of rows that may arrive is reached, and the step is that of one
 * worker. With a capacity all layouts drop as many choices. */
#include "tests/parity/rank.h"

#include <malloc.h>
#include <math.h>
#include <sys/mman.h>

#define MAX_WORLD 8

struct routed {
    struct parity_model m;
    enum { USUAL, SAME, ALTERNATING } routing;
    double loss[MAX_WORLD], norm[MAX_WORLD];
    int64_t most[MAX_WORLD], bound[MAX_WORLD];     /* rows that arrived in a layer and microbatch */
    int64_t dropped[MAX_WORLD], rounds[MAX_WORLD]; /* of the last step */
};

#define EXPERTS 8
#define CHOICES 2
#define STEPS 2

/* The first of the experts that all tokens choose. */
static int64_t chosen(const struct routed *x, int step)
{
    return x->routing == ALTERNATING && step % 2 ? EXPERTS - CHOICES : 0;
}

/* Sets this rank's piece of a parameter, rows from lo on. Weights of zero give all tokens equal scores, and the bias
 * makes some experts better than the others. */
static void set_router(struct engine *e, int t, bool bias, int64_t first)
{
    const struct program *p = &e->train;
    const struct sharding_param *q = &p->sharding.param[t];
    double *at = (double *)(void *)((char *)e->space[SPACE_PARAM] + p->buffers[p->param_buffer[t]].offset);
    for (int64_t i = 0; i < (q->hi - q->lo) * q->cols; i++)
        at[i] = bias && q->lo + i >= first && q->lo + i < first + CHOICES;
}

static void set_routers(struct engine *e, const struct graph *g, int64_t first)
{
    for (int t = 0; t < g->n_tensors; t++) {
        const char *name = strstr(g->tensors[t].name, "router.gate.");
        if (name && g->tensors[t].kind == GT_PARAM && e->train.param_buffer[t] >= 0)
            set_router(e, t, strstr(name, "bias") != NULL, first);
    }
}

static int64_t most_arrived(const struct engine *e)
{
    const struct program_bindings *b = &e->train_bindings;
    int64_t most = 0;
    for (int i = 0; i < e->train.n_ops; i++)
        for (int s = 0; s < b->slots && e->train.ops[i].kind == OP_ARRIVE; s++) {
            int64_t n = b->arrived[e->train.ops[i].layer * b->slots + s];
            most = n > most ? n : most;
        }
    return most;
}

/* Each space is as large as the larger of the two programs needs, in multiples of 256 bytes. */
static bool allocates_the_plan(const struct engine *e)
{
    size_t bytes = 0;
    for (int s = 0; s < SPACE_COUNT; s++) {
        const int64_t a = e->train.space_bytes[s], b = e->has_eval ? e->eval.space_bytes[s] : 0;
        bytes += ((size_t)(a > b ? a : b) + 255) / 256 * 256;
    }
    return engine_device_bytes(e) == bytes;
}

static int route_rank(void *arg, int fd, int rank)
{
    struct routed *x = arg;
    struct parity_rank r = {0};
    struct engine_result result = {0};
    struct why why = {""};
    err_t err = parity_rank_open(&r, &x->m, fd, rank, &why);
    size_t before = 0;
    for (int step = 0; step < STEPS && !err; step++) {
        if (x->routing != USUAL)
            set_routers(&r.e, &x->m.graph, chosen(x, step));
        before = mallinfo2().uordblks;
        err = parity_rank_step(&r, &result, &why);
    }
    /* Products of other sizes may enter the cache of oneDNN, so only equal routing in both steps allocates nothing. */
    int bad = err != OK || (x->routing == SAME && mallinfo2().uordblks > before) || !allocates_the_plan(&r.e);
    if (bad)
        fprintf(stderr, "rank %d: %s %s; %zu bytes in use before the step, %zu after it; %zu allocated\n", rank,
                err_name(err), why.text, before, (size_t)mallinfo2().uordblks, engine_device_bytes(&r.e));
    x->loss[rank] = result.loss;
    x->norm[rank] = result.grad_norm;
    x->most[rank] = err ? 0 : most_arrived(&r.e);
    x->bound[rank] = err ? 0 : r.e.train.max_arrived;
    x->dropped[rank] = result.routers.dropped;
    x->rounds[rank] = result.routers.rounds;
    parity_rank_close(&r);
    return bad;
}

static struct routed *route(const char *layout, int routing, const char *capacity)
{
    const char *sets[] = {"model={experts: 8, experts_per_token: 2, expert_ffn: 11, aux_loss: 0.1, router_bias: true}",
                          "train={verify_every: 0, global_batch: 8}", layout, capacity, NULL};
    struct routed *x = mmap(NULL, sizeof(*x), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(x != MAP_FAILED);
    parity_model_init(&x->m, parity_llama, sets);
    x->routing = routing;
    parity_fork((int)x->m.job.parallel.workers, route_rank, x);
    return x;
}

static void routed_free(struct routed *x)
{
    parity_model_fini(&x->m);
    munmap(x, sizeof(*x));
}

static const char *const layouts[] = {
    "parallel={workers: 2, fsdp: 2, ep: 2}",
    "parallel={workers: 4, fsdp: 4, zero: 3, ep: 4}",
    "parallel={workers: 4, fsdp: 4, zero: 2, ep: 4, recompute: experts}",
    "parallel={workers: 2, tp: 2, ep: 2, recompute: experts}",
    "parallel={workers: 4, tp: 2, sp: false, cp: 2, ep: 4}",
    "parallel={workers: 8, pp: 2, fsdp: 4, ep: 4, recompute: experts}",
    "parallel={workers: 2, fsdp: 2, ep: 2, expert_load: balanced}",
    "parallel={workers: 4, fsdp: 4, zero: 3, ep: 4, expert_load: balanced}",
    "parallel={workers: 4, tp: 2, sp: false, cp: 2, ep: 4, recompute: experts, expert_load: balanced}",
    "parallel={workers: 8, pp: 2, fsdp: 4, ep: 4, expert_load: balanced}",
    "parallel={workers: 2, fsdp: 2, ep: 2, recompute: experts, expert_rows: 1}",
    "parallel={workers: 4, fsdp: 4, zero: 3, ep: 4, recompute: experts, expert_rows: 1.25}",
    "parallel={workers: 4, tp: 2, sp: false, cp: 2, ep: 4, recompute: full, expert_rows: 2}",
    "parallel={workers: 8, pp: 2, fsdp: 4, ep: 4, recompute: experts, expert_rows: 3}",
};

/* If all tokens choose experts of one rank, it has all rows of its group, ep times the mean. A capacity may leave so
 * few that a rank has room for all of them. */
static void check_rounds(const struct routed *x, const char *layout)
{
    const double room = x->m.job.parallel.expert_rows;
    const bool limited = x->m.job.model.expert_capacity > 0, all = x->routing != USUAL && !limited;
    for (int r = 0; r < (int)x->m.job.parallel.workers; r++) {
        assert_int_equal(x->rounds[r], room > 0 ? x->rounds[0] : -1);
        if (all && room > 0 && x->rounds[r] != (int64_t)ceil((double)x->m.job.parallel.ep / room))
            fail_msg("%s: %lld rounds", layout, (long long)x->rounds[r]);
        if (room > 0 && !(limited && x->rounds[r] < 0))
            assert_in_range(x->rounds[r], 1, (int64_t)ceil((double)x->m.job.parallel.ep / room));
    }
}

static void check_layouts(int routing, const char *capacity)
{
    struct routed *one = route("parallel={workers: 1}", routing, capacity);
    for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++) {
        struct routed *x = route(layouts[i], routing, capacity);
        const bool balanced = x->m.job.parallel.expert_load == EXPERT_LOAD_BALANCED;
        for (int r = 0; r < (int)x->m.job.parallel.workers; r++) {
            if (!(fabs(x->loss[r] - one->loss[0]) <= 1e-12 * one->loss[0] &&
                  fabs(x->norm[r] - one->norm[0]) <= 1e-10 * one->norm[0]))
                fail_msg("%s: loss %.17g and norm %.17g, of one worker %.17g and %.17g", layouts[i], x->loss[r],
                         x->norm[r], one->loss[0], one->norm[0]);
            assert_in_range(x->most[r], 0, x->bound[r]);
            assert_int_equal(x->dropped[r], one->dropped[0]);
            if (balanced && !capacity) /* equally many rows, whatever the router chooses */
                assert_int_equal(x->most[r], x->bound[r]);
        }
        check_rounds(x, layouts[i]);
        if (routing != USUAL &&
            !(x->m.job.parallel.expert_rows > 0)) { /* the rank that has the experts which all tokens choose */
            const int rank = chosen(x, STEPS - 1) ? (int)x->m.job.parallel.workers - 1 : 0;
            const int64_t of = balanced ? EXPERTS : EXPERTS / x->m.job.parallel.ep;
            const int64_t full = capacity ? of : CHOICES; /* experts that fill the bound */
            assert_int_equal(x->most[rank] * full, x->bound[rank] * CHOICES);
        }
        routed_free(x);
    }
    assert_true((one->dropped[0] > 0) == (capacity != NULL));
    routed_free(one);
}

TEST(any_routing_fits_the_plan)
{
    for (int routing = USUAL; routing <= ALTERNATING; routing++)
        check_layouts(routing, NULL);
}

TEST(every_layout_drops_the_same_choices)
{
    for (int routing = USUAL; routing <= ALTERNATING; routing++) {
        check_layouts(routing, "model={expert_capacity: 0.75}");
        check_layouts(routing, "model={expert_capacity: 0.75, expert_drop: probability}");
    }
}
