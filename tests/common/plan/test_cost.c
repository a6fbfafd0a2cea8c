/* Costs of ops against sums computed by hand. */
#include "common/plan/estimate/cost.h"
#include "tests/common/plan/plan_fixture.h"

static struct op_cost sum_of(const struct program *p, enum op_kind kind)
{
    struct op_cost sum = {0, 0}, one;
    for (int a = 0; a < p->n_actions; a++)
        for (int i = p->actions[a].first_op; i < p->actions[a].first_op + p->actions[a].n_ops; i++) {
            if (p->ops[i].kind != kind)
                continue;
            int m = p->actions[a].micro;
            plan_op_cost(p, &p->ops[i], m >= 0 ? p->micros[m].samples : p->max_samples, &one);
            sum.flops += one.flops;
            sum.bytes += one.bytes;
        }
    return sum;
}

/* 6 N per token and the causal half of attention. The diagonal is counted, and the backward has five matmuls where the
 * papers count four. */
TEST(the_flops_of_a_step_are_the_formulas)
{
    struct fixture f;
    struct job_spec job = job_small(ARCH_LLAMA, 1);
    fixture_init(&f, &job, MODE_TRAIN);
    const struct program *p = &f.programs[0];
    double tokens = 10 * 8, matmuls = sum_of(p, OP_GEMM).flops;
    double forward = sum_of(p, OP_ATTENTION).flops, backward = sum_of(p, OP_ATTENTION_GRAD).flops;
    assert_float_equal(matmuls, 6.0 * (double)f.graph.n_params_matmul * tokens, 0.5);
    assert_float_equal(forward, 4.0 * 2 * 16 * (8 + 1) / 2 * tokens, 0.5); /* layers, dim, visible keys */
    assert_float_equal(backward, 2.5 * forward, 0.5);
    fixture_fini(&f);
}

/* Through a window of 3 the 8 tokens see 1 + 2 + 6 * 3 keys in the first layer; the second has no window. The ranks of
 * a ring count each pair once. */
TEST(a_window_counts_the_keys_that_are_seen)
{
    for (int cp = 1; cp <= 4; cp++) {
        struct job_spec job = job_small(ARCH_LLAMA, cp);
        struct fixture f;
        double forward = 0;
        job.parallel.cp = cp;
        job.model.window = 3;
        job.model.window_period = 2;
        fixture_init(&f, &job, MODE_TRAIN);
        for (int r = 0; r < f.n; r++)
            forward += sum_of(&f.programs[r], OP_ATTENTION).flops;
        assert_float_equal(forward, 4.0 * 16 * (1 + 2 + 6 * 3 + 8 * 9 / 2) * 10, 0.5);
        assert_float_equal(graph_flops_per_token(&f.graph, &job.model, 8, true),
                           6.0 * (double)f.graph.n_params_matmul + 12 * 16 * (3 - 9.0 / 16 + 4), 1e-6);
        fixture_fini(&f);
    }
}

/* Each token's row for each of its 2 experts passes three matrices [12, 16] in each of 2 layers, forward and twice
 * backward. The ranks of expert parallelism share these products as if all experts are equally busy, whatever a rank
 * has room for; recomputed experts pass forward once more. */
TEST(the_flops_of_experts_are_the_formula_in_every_layout)
{
    static const struct {
        int workers, ep;
        enum recompute recompute;
        double rows, passes;
    } cases[] = {{1, 1, RECOMPUTE_NONE, 0, 3},    {4, 4, RECOMPUTE_NONE, 0, 3},    {4, 2, RECOMPUTE_NONE, 0, 3},
                 {4, 4, RECOMPUTE_EXPERTS, 0, 4}, {4, 4, RECOMPUTE_EXPERTS, 1, 4}, {4, 2, RECOMPUTE_FULL, 1.5, 4}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct job_spec job = job_small(ARCH_LLAMA, cases[i].workers);
        struct fixture f;
        double flops = 0;
        job.model.experts = 4;
        job.model.experts_per_token = 2;
        job.model.expert_ffn = 12;
        job.parallel.fsdp = cases[i].workers;
        job.parallel.ep = cases[i].ep;
        job.parallel.recompute = cases[i].recompute;
        job.parallel.expert_rows = cases[i].rows;
        job.train.global_batch = 4 * job.train.micro_batch;
        fixture_init(&f, &job, MODE_TRAIN);
        for (int r = 0; r < f.n; r++)
            flops += sum_of(&f.programs[r], OP_GROUPED_GEMM).flops;
        const double tokens = (double)(job.train.global_batch * 8);
        assert_float_equal(flops, 2 * cases[i].passes * tokens * 2 * 3 * 12 * 16 * 2, 0.5);
        fixture_fini(&f);
    }
}

TEST(the_update_moves_seven_numbers_per_parameter)
{
    struct fixture f;
    struct job_spec job = job_small(ARCH_GPT2, 1);
    fixture_init(&f, &job, MODE_TRAIN);
    const struct program *p = &f.programs[0];
    assert_float_equal(sum_of(p, OP_ADAMW).bytes, 28.0 * (double)f.graph.n_params, 0.5);
    double norm = sum_of(p, OP_NORM).bytes;
    assert_true(norm > 4.0 * (double)f.graph.n_params && norm < 4.1 * (double)f.graph.n_params);
    fixture_fini(&f);
}

/* Two samples of 8 tokens, width 16, float32; the logits are counted twice, the targets once. */
TEST(operands_count_once_and_twice_where_they_are_added_to)
{
    struct fixture f;
    struct job_spec job = job_small(ARCH_LLAMA, 1);
    struct op_cost cost;
    fixture_init(&f, &job, MODE_TRAIN);
    const struct program *p = &f.programs[0];
    for (int i = 0; i < p->n_ops; i++) {
        plan_op_cost(p, &p->ops[i], 2, &cost);
        if (p->ops[i].kind == OP_SWIGLU)
            assert_float_equal(cost.bytes, 3.0 * 16 * 4 * (double)p->ops[i].n.factor, 0.5);
        if (p->ops[i].kind == OP_CROSS_ENTROPY)
            assert_float_equal(cost.bytes, 2.0 * 16 * 32 * 4 + 16 * 4 + 2 * 8, 0.5);
        if (p->ops[i].kind == OP_EMBED) /* 16 tokens of a table of 32 */
            assert_float_equal(cost.bytes, 16 * 4 + 2.0 * 16 * 16 * 4, 0.5);
        if (p->ops[i].kind == OP_ROPE)
            assert_float_equal(cost.bytes, 2.0 * 16 * 4 * (double)(p->ops[i].heads * p->ops[i].head_dim), 0.5);
    }
    fixture_fini(&f);
}
