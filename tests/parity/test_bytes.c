/* Bytes on the wire. On every rank, the bytes that the comm counted in a step, by the axes that its groups span, equal
 * those of the program, whose ops are added up by the rules of worker/comm/comm.h. With even shards they also equal the
 * formulas of the literature. */
#include "common/plan/compile/compile.h"
#include "common/plan/estimate/forecast.h"
#include "tests/parity/rank.h"

#include <sys/mman.h>

#define MAX_WORLD 8

/* ---- bytes of the program ---- */

struct sums {
    int64_t axis[ENGINE_AXIS_SETS];
};

static int64_t slice_of(int64_t n, int parts, int index)
{
    return n * (index + 1) / parts - n * index / parts;
}

/* Elements that an op transfers to member `me` of n. */
static int64_t op_elements(const struct program *p, const struct op *op, int n, int me, int64_t samples)
{
    const int64_t m = program_dim(p, op->m, samples), cols = program_dim(p, op->n, samples);
    int64_t sum = 0, lo, hi;
    switch (op->kind) {
    case OP_ALL_REDUCE:
        return (n - 1) * slice_of(m, n, me) + m - slice_of(m, n, me);
    case OP_OWN_GATHER:
        layout_split(m, n, me, &lo, &hi);
        return (m - (hi - lo)) * cols;
    case OP_OWN_SCATTER:
        layout_split(m, n, me, &lo, &hi);
        return (n - 1) * (hi - lo) * cols;
    case OP_GATHER:
        return (n - 1) * m;
    case OP_UNIT_GATHER:
    case OP_UNIT_SCATTER:
        for (int i = 0; i < p->units[op->unit].n; i++)
            for (int k = 0; k < n; k++) {
                int64_t part = p->units[op->unit].parts[i].counts[op->kind == OP_UNIT_GATHER ? k : me];
                sum += k == me ? 0 : part;
            }
        return sum;
    case OP_GATHER_TOKENS: /* if every rank has as many tokens */
        return (n - 1) * m * cols;
    case OP_EXCHANGE: /* if every token chooses all experts, of which each rank has equally many */
        return (op->flags & OPF_INVERSE ? program_dim(p, op->k, samples) : m) / n * (n - 1) * cols;
    case OP_RECV:
        return m;
    case OP_SHIFT:
        return program_dim(p, op->k, samples);
    default:
        return 0;
    }
}

static unsigned axes_of(const struct program *p, const struct group *g)
{
    unsigned axes = g->axes;
    for (int a = 0; a < AXIS_COUNT; a++)
        if (p->mesh.size[a] == 1)
            axes &= ~(1u << a);
    return axes;
}

static struct sums add_up(const struct program *p)
{
    struct sums s = {{0}};
    for (int i = 0; i < p->n_actions; i++) {
        const struct action *a = &p->actions[i];
        const int64_t samples = a->micro >= 0 ? p->micros[a->micro].samples : p->max_samples;
        for (int k = 0; k < a->n_ops; k++) {
            const struct op *op = &p->ops[a->first_op + k];
            if (op->group < 0 || op->arg[0].buffer < 0 || a->kind == ACT_SNAPSHOT) /* a wait has no operand */
                continue;
            const struct group *g = &p->groups[op->group];
            int me = 0;
            while (g->ranks[me] != p->rank)
                me++;
            s.axis[axes_of(p, g)] +=
                op_elements(p, op, g->n, me, samples) * (int64_t)dtype_bytes(p->buffers[op->arg[0].buffer].dtype);
        }
    }
    return s;
}

/* ---- bytes that were counted ---- */

struct counted {
    struct parity_model m;
    struct sums is[MAX_WORLD];
};

static int count_rank(void *arg, int fd, int rank)
{
    struct counted *c = arg;
    struct parity_rank r = {0};
    struct engine_result result = {0};
    struct why why = {""};
    err_t err = parity_rank_open(&r, &c->m, fd, rank, &why);
    err = err ? err : parity_rank_step(&r, &result, &why);
    const struct sums computed = err ? (struct sums){{0}} : add_up(&r.e.train);
    int bad = err != OK;
    for (int i = 0; i < ENGINE_AXIS_SETS && !err; i++)
        if (result.axis_bytes[i] != computed.axis[i]) {
            fprintf(stderr, "rank %d, axes %#x: %lld bytes counted, %lld in the program\n", rank, (unsigned)i,
                    (long long)result.axis_bytes[i], (long long)computed.axis[i]);
            bad = 1;
        }
    if (err)
        fprintf(stderr, "rank %d: %s %s\n", rank, err_name(err), why.text);
    memcpy(c->is[rank].axis, result.axis_bytes, sizeof(result.axis_bytes));
    parity_rank_close(&r);
    return bad;
}

/* Runs a step; fails the test if a rank's comm and its program disagree. */
static struct counted *count_bytes(const char *yaml, const char *const *sets)
{
    struct counted *c = mmap(NULL, sizeof(*c), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(c != MAP_FAILED);
    parity_model_init(&c->m, yaml, sets);
    assert_true(c->m.job.parallel.workers <= MAX_WORLD);
    parity_fork((int)c->m.job.parallel.workers, count_rank, c);
    return c;
}

#define COUNT(yaml, ...) count_bytes(yaml, (const char *const[]){"train.verify_every=0", __VA_ARGS__, NULL})

static void free_counted(struct counted *c)
{
    parity_model_fini(&c->m);
    munmap(c, sizeof(*c));
}

TEST(bytes_on_every_axis_equal_the_program)
{
    free_counted(COUNT(parity_llama, "parallel.workers=3"));
    free_counted(COUNT(parity_llama, "parallel.workers=3", "parallel.fsdp=3", "parallel.zero=3"));
    free_counted(COUNT(parity_gpt2, "parallel.workers=4", "parallel.fsdp=2", "parallel.zero=2", "parallel.tp=2"));
    free_counted(COUNT(parity_gpt2, "parallel.workers=4", "parallel.tp=2", "parallel.sp=false", "parallel.cp=2"));
    free_counted(COUNT(parity_llama, "parallel.workers=8", "parallel.pp=2", "parallel.tp=2", "parallel.cp=2"));
    free_counted(
        COUNT(parity_gpt2, "parallel.workers=3", "parallel.tp=3", "parallel.async_tp=true", "run.comm_thread=on"));
    free_counted(COUNT(parity_llama, "parallel.workers=4", "parallel.pp=2", "parallel.fsdp=2", "parallel.zero=1",
                       "train.global_batch=8"));
}

/* ---- formulas ---- */

#define DP (1u << AXIS_DP)
#define FSDP (1u << AXIS_FSDP)
#define PP (1u << AXIS_PP)

/* Sums over all ranks, in float64: 2 n (N-1)/N per rank for gradients. The losses and the gaps between tensors after
 * each unit add less than 2 %. */
static void assert_near(int64_t found, double formula)
{
    if (!((double)found >= formula && (double)found <= 1.02 * formula))
        fail_msg("%lld bytes were counted, the formula gives %.0f", (long long)found, formula);
}

static int64_t total_bytes(const struct counted *c, int world, unsigned axes)
{
    int64_t n = 0;
    for (int i = 0; i < world; i++)
        n += c->is[i].axis[axes];
    return n;
}

TEST(replicas_move_two_gradients_less_a_share)
{
    struct counted *c = COUNT(parity_llama, "parallel.workers=4");
    assert_near(total_bytes(c, 4, DP), 4 * 2 * 8.0 * (double)c->m.graph.n_params * 3 / 4);
    free_counted(c);
}

/* ZeRO 1: one scatter of gradients and one gather of parameters. ZeRO 3 with one microbatch per rank: parameters are
 * gathered in forward and backward, gradients are scattered once. */
TEST(shards_move_what_the_formulas_give)
{
    struct counted *c = COUNT(parity_llama, "parallel.workers=2", "parallel.fsdp=2", "parallel.zero=1",
                              "train.global_batch=4", "train.micro_batch=2");
    assert_near(total_bytes(c, 2, FSDP), 2 * 2 * 8.0 * (double)c->m.graph.n_params / 2);
    free_counted(c);
    c = COUNT(parity_llama, "parallel.workers=2", "parallel.fsdp=2", "parallel.zero=3", "train.global_batch=4",
              "train.micro_batch=2");
    int64_t three = total_bytes(c, 2, FSDP);
    double all = 2 * 8.0 * (double)c->m.graph.n_params / 2;
    assert_true((double)three > 2.5 * all && (double)three <= 1.02 * 3 * all); /* the head is gathered once */
    free_counted(c);
}

/* A pipeline moves an activation forward and its gradient back, once per microbatch. All microbatches are counted as
 * full, whatever the last one has. */
TEST(stages_move_an_activation_and_its_gradient)
{
    struct counted *c = COUNT(parity_llama, "parallel.workers=2", "parallel.pp=2", "train.global_batch=8");
    const double micros = 4, tokens = 2 * 12, dim = 48;
    assert_near(total_bytes(c, 2, PP), 2 * 8.0 * micros * tokens * dim);
    free_counted(c);
}

/* ---- experts ---- */

/* Bytes of rows that the exchanges of a step bring to all ranks. */
static int64_t exchanged(const struct program *p)
{
    int64_t sum = 0;
    for (int i = 0; i < p->n_actions; i++)
        for (int k = 0; k < p->actions[i].n_ops; k++) {
            const struct op *op = &p->ops[p->actions[i].first_op + k];
            const int64_t samples = p->micros[p->actions[i].micro < 0 ? 0 : p->actions[i].micro].samples;
            if (op->kind == OP_EXCHANGE)
                sum += op_elements(p, op, p->groups[op->group].n, 0, samples) * 8;
        }
    return sum;
}

/* Where every token chooses all k experts, routing is uniform, and the transport's counters are exact: in each layer
 * and microbatch the four exchanges bring 4 k T H (e - 1) / e numbers to a rank with T tokens of width H. That equals
 * the sum over the program, whose total on every set of axes equals the counters of the comm (count_rank). */
TEST(experts_exchange_what_the_formula_gives)
{
    static const struct {
        const char *layout;
        int64_t e, ranks; /* ranks: those among which the tokens of a microbatch are divided */
    } rows[] = {
        {"parallel={workers: 2, fsdp: 2, ep: 2}", 2, 1},
        {"parallel={workers: 4, fsdp: 4, zero: 3, ep: 2}", 2, 1},
        {"parallel={workers: 4, fsdp: 4, zero: 2, ep: 4}", 4, 1},
        {"parallel={workers: 2, tp: 2, ep: 2}", 2, 2},
        {"parallel={workers: 2, tp: 2, sp: false, ep: 2}", 2, 2},
        {"parallel={workers: 4, cp: 2, tp: 2, ep: 4}", 4, 4},
        {"parallel={workers: 4, tp: 4, ep: 2}", 2, 4},
        {"parallel={workers: 4, pp: 2, fsdp: 2, ep: 2}", 2, 1},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const int64_t k = 4, h = 48, layers = 2, seq = 12, samples = 2, batch = 16;
        struct counted *c = COUNT(parity_llama, "model={experts: 4, experts_per_token: 4, expert_ffn: 8, heads: 8}",
                                  "train.global_batch=16", rows[i].layout);
        const int pp = (int)c->m.job.parallel.pp, world = (int)c->m.job.parallel.workers;
        const int64_t tokens = samples * seq / rows[i].ranks;
        const int64_t micros = batch / samples / (world / pp / rows[i].ranks); /* of a rank */
        for (int r = 0; r < world; r++) {
            struct program p;
            struct why why;
            if (plan_compile(&c->m.job, &c->m.graph, MODE_TRAIN, r, &p, &why))
                fail_msg("%s", why.text);
            assert_int_equal(exchanged(&p),
                             4 * k * tokens * h * (rows[i].e - 1) / rows[i].e * 8 * layers / pp * micros);
            program_fini(&p);
        }
        free_counted(c);
    }
}

/* The gathered tokens, the numbers of their home rows and their weights, of all other ranks of the group. */
static int64_t gathered(const struct program *p)
{
    int64_t sum = 0;
    for (int i = 0; i < p->n_actions; i++)
        for (int k = 0; k < p->actions[i].n_ops; k++) {
            const struct op *op = &p->ops[p->actions[i].first_op + k];
            const int64_t samples = p->micros[p->actions[i].micro < 0 ? 0 : p->actions[i].micro].samples;
            const int64_t bytes = op->kind != OP_GATHER_TOKENS
                                      ? 0
                                      : op_elements(p, op, p->groups[op->group].n, 0, samples) *
                                            (int64_t)dtype_bytes(p->buffers[op->arg[0].buffer].dtype);
            if (bytes != (op->kind == OP_GATHER_TOKENS ? plan_op_wire(p, op, samples) : 0))
                fail_msg("the plan has %lld bytes for a gather of %lld", (long long)plan_op_wire(p, op, samples),
                         (long long)bytes);
            sum += bytes;
        }
    return sum;
}

/* In each layer and microbatch two gathers bring 2 T H (e - 1) numbers, and as many of T k int32 and T k weights; the
 * results and the gradients of tokens return by two exchanges as above. */
TEST(gathered_tokens_bring_what_the_formula_gives)
{
    static const struct {
        const char *layout;
        int64_t e, ranks;
    } rows[] = {
        {"parallel={workers: 2, fsdp: 2, ep: 2, dispatch: all_gather}", 2, 1},
        {"parallel={workers: 4, fsdp: 4, zero: 3, ep: 4, dispatch: all_gather}", 4, 1},
        {"parallel={workers: 2, tp: 2, ep: 2, dispatch: all_gather}", 2, 2},
        {"parallel={workers: 2, tp: 2, sp: false, ep: 2, dispatch: all_gather}", 2, 2},
        {"parallel={workers: 4, cp: 2, tp: 2, ep: 4, dispatch: all_gather}", 4, 4},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const int64_t k = 4, h = 48, layers = 2, seq = 12, samples = 2, batch = 16, e = rows[i].e;
        struct counted *c = COUNT(parity_llama, "model={experts: 4, experts_per_token: 4, expert_ffn: 8, heads: 8}",
                                  "train.global_batch=16", rows[i].layout);
        const int world = (int)c->m.job.parallel.workers;
        const int64_t tokens = samples * seq / rows[i].ranks;
        const int64_t turns = layers * (batch / samples / (world / rows[i].ranks));
        for (int r = 0; r < world; r++) {
            struct program p;
            struct why why;
            if (plan_compile(&c->m.job, &c->m.graph, MODE_TRAIN, r, &p, &why))
                fail_msg("%s", why.text);
            assert_int_equal(gathered(&p), (2 * h * 8 + k * 4 + k * 8) * tokens * (e - 1) * turns);
            assert_int_equal(exchanged(&p), 2 * k * tokens * h * (e - 1) / e * 8 * turns);
            program_fini(&p);
        }
        free_counted(c);
    }
}
