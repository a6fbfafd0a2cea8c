/* The attention of llama's relatives on every axis, all ranks together against one rank: heads of another width, biases
 * of wq, wk and wv, norms of queries and keys. Gradients by finite differences are in test_gradient.c. */
#include "common/plan/check/plan_check.h"
#include "tests/common/plan/world.h"

/* As in Qwen2, Qwen3, OLMoE, Mistral, Gemma 2; documents; all keys together. */
static const struct variant {
    const char *name;
    int64_t head_dim;
    bool bias;
    enum qk_norm norm;
    int64_t window, period;
    double softcap;
    bool documents;
} variants[] = {{"bias", .bias = true},
                {"norm of heads", .head_dim = 6, .norm = QK_NORM_HEAD},
                {"norm of all", .norm = QK_NORM_WHOLE},
                {"window", .window = 3},
                {"capped scores", .window = 2, .period = 2, .softcap = 0.5},
                {"documents", .documents = true},
                {"all", .head_dim = 10, .bias = true, .norm = QK_NORM_HEAD, .window = 4, .period = 2, .softcap = 2,
                 .documents = true}};
#define N_VARIANTS (sizeof(variants) / sizeof(variants[0]))

static struct job_spec job_of(const struct variant *v, int workers)
{
    struct job_spec job = job_small(ARCH_LLAMA, workers);
    job.model.head_dim = v->head_dim;
    job.model.qkv_bias = v->bias;
    job.model.qk_norm = v->norm;
    job.model.window = v->window;
    job.model.window_period = v->period;
    job.model.score_softcap = v->softcap;
    job.model.documents = v->documents;
    job.train.global_batch = 5;
    return job;
}

/* Fewer key-value heads than ranks: several ranks have shares of one head's gradient. */
TEST(every_axis_is_one_worker)
{
    static const struct {
        int fsdp, zero, tp, pp, cp;
        bool sp;
    } cells[] = {
        {2, 1, 1, 1, 1, true},  {2, 2, 1, 1, 1, true}, {2, 3, 1, 1, 1, true},  {1, 0, 2, 1, 1, true},
        {1, 0, 2, 1, 1, false}, {1, 0, 4, 1, 1, true}, {1, 0, 4, 1, 1, false}, {1, 0, 1, 2, 1, true},
        {1, 0, 1, 1, 2, true},  {1, 0, 1, 1, 3, true}, {1, 0, 2, 1, 2, true},  {1, 0, 2, 2, 1, false},
        {2, 3, 2, 1, 1, true},  {2, 2, 1, 2, 1, true}, {2, 3, 2, 2, 1, false}, {2, 1, 1, 1, 2, true},
    };
    for (size_t i = 0; i < sizeof(cells) / sizeof(cells[0]); i++)
        for (size_t v = 0; v < N_VARIANTS; v++) {
            struct job_spec job = job_of(&variants[v], cells[i].fsdp * cells[i].tp * cells[i].pp * cells[i].cp);
            job.parallel.fsdp = cells[i].fsdp;
            job.parallel.zero = cells[i].zero;
            job.parallel.tp = cells[i].tp;
            job.parallel.pp = cells[i].pp;
            job.parallel.cp = cells[i].cp;
            job.parallel.sp = cells[i].sp;
            world_compare(&job);
        }
}

TEST(sizes_that_no_rank_divides_are_one_worker)
{
    for (int tp = 2; tp <= 4; tp++)
        for (int sp = 0; sp < 3; sp++)
            for (size_t v = 0; v < N_VARIANTS; v++) {
                struct job_spec job = job_uneven(job_of(&variants[v], tp));
                job.parallel.tp = tp;
                job.parallel.sp = sp > 0;
                job.parallel.async_tp = sp > 1;
                world_compare(&job);
            }
}

TEST(recomputed_values_equal_kept_ones)
{
    for (int how = RECOMPUTE_FULL; how <= RECOMPUTE_ATTENTION; how++)
        for (int tp = 1; tp <= 2; tp++)
            for (size_t v = 0; v < N_VARIANTS; v++) {
                struct job_spec kept = job_of(&variants[v], 2), again;
                kept.parallel.tp = tp;
                again = kept;
                again.parallel.recompute = (enum recompute)how;
                world_compare_two(&kept, &again);
            }
}

TEST(a_backward_in_halves_is_one_worker)
{
    for (int tp = 1; tp <= 2; tp++)
        for (size_t v = 0; v < N_VARIANTS; v++) {
            struct job_spec job = job_of(&variants[v], 2 * tp);
            job.parallel.pp = 2;
            job.parallel.tp = tp;
            job.parallel.schedule = PIPE_ZB_H1;
            world_compare(&job);
        }
}

TEST(evaluation_and_generation_are_one_worker)
{
    for (size_t v = 0; v < N_VARIANTS; v++) {
        struct job_spec job = job_of(&variants[v], 2);
        job.parallel.cp = 2;
        world_compare_passes(&job);
        job.parallel.cp = 1;
        job.parallel.tp = 2;
        world_compare_passes(&job);
    }
}

/* Op number `at` of its kind in the program of `rank`, with tp 4 and two key-value heads: queries and keys take turns.
 */
static struct op *part_op(struct fixture *f, int rank, enum op_kind kind, int at)
{
    struct program *p = &f->programs[rank];
    for (int i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == kind && p->ops[i].node >= 0 && f->graph.nodes[p->ops[i].node].op == GO_RMSNORM && !at--)
            return &p->ops[i];
    fail_msg("rank %d has no such op", rank);
    return NULL;
}

static void break_kind(struct op *op)
{
    op->kind = OP_RMSNORM;
    op->arg[5] = op->arg[4]; /* rstd */
    op->arg[4] = op->arg[3];
    op->arg[2] = op->arg[1];
    op->arg[1].buffer = op->arg[3].buffer = -1;
    op->k = (struct graph_dim){SYM_ONE, 0};
}

static void break_columns(struct op *op)
{
    op->k = op->n;
}

static void break_count(struct op *op)
{
    op->kind = OP_ZERO;
    op->n.factor = 1;
    op->arg[0] = op->arg[3];
    for (int i = 1; i < 4; i++)
        op->arg[i].buffer = -1;
}

static void break_sums(struct op *op)
{
    op->arg[3].buffer = -1;
}

/* The checker's refusals of a norm of all heads, of which the rank has some. Planted bugs of test_mutants.c are others.
 */
TEST(a_norm_of_all_heads_has_the_sums_of_all_ranks)
{
    static const struct {
        enum op_kind kind;
        void (*damage)(struct op *op);
        const char *says;
    } rows[] = {
        {OP_RMSNORM_PART, break_kind, "sharded by columns on tp; it needs all columns of a token"},
        {OP_RMSNORM_PART, break_columns, "divides by 4 columns; a token has 16"},
        {OP_ROW_DOTS, break_count, "in which this rank's columns of layer.0.q do not count"},
        {OP_RMSNORM_PART_GRAD, break_sums, "does not subtract the dot product of"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct job_spec job = job_of(&variants[2], 4);
        struct fixture f;
        job.parallel.tp = 4;
        fixture_init(&f, &job, MODE_TRAIN);
        assert_err(OK, plan_check(&f.graph, f.programs, f.n, &f.why));
        for (int r = 0; r < 4; r++)
            rows[i].damage(part_op(&f, r, rows[i].kind, 0));
        assert_err(ERR_INVALID, plan_check(&f.graph, f.programs, f.n, &f.why));
        assert_message(&f.why, rows[i].says);
        fixture_fini(&f);
    }
}

/* Statistics are numbers per head and token. Their norm covers the heads of the rank. */
TEST(a_norm_of_heads_has_a_row_per_head)
{
    struct job_spec job = job_of(&variants[1], 2);
    struct fixture f;
    int found = 0;
    job.parallel.tp = 2;
    fixture_init(&f, &job, MODE_TRAIN);
    for (int i = 0; i < f.programs[1].n_ops; i++) {
        const struct op *op = &f.programs[1].ops[i];
        bool query =
            op->kind == OP_RMSNORM && strcmp(f.programs[1].buffers[op->arg[4].buffer].name, "layer.0.q_norm") == 0;
        if (!query)
            continue;
        found++;
        assert_int_equal(op->m.sym, SYM_TOKENS);
        assert_int_equal(op->m.factor, 2);
        assert_int_equal(op->n.factor, 6);
        assert_int_equal(f.programs[1].buffers[op->arg[5].buffer].dim[0].factor, 2);
    }
    assert_int_equal(found, 1);
    fixture_fini(&f);
}
