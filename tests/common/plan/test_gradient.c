/* The compiled gradient against central differences of the compiled loss, float64 on the reference kernels; and a
 * program in bfloat16 against its twin in float64. */
#include "common/base/rng.h"
#include "common/plan/check/plan_check.h"
#include "common/plan/compile/compile.h"
#include "common/plan/models/models.h"
#include "tests/common/plan/machine.h"

#include <math.h>

/* Initial values: larger than in training, so that no gradient is lost in rounding, with few bits, so that bfloat16
 * represents them. */
static void init_params(const struct machine *m, const struct graph *g)
{
    for (int t = 0; t < g->n_tensors; t++)
        for (int64_t i = 0; g->tensors[t].kind == GT_PARAM && i < tensor_elements(&g->tensors[t]); i++) {
            double x = round(64 * 0.3 * rng_normal(3, rng_stream(g->tensors[t].name), (uint64_t)i)) / 64;
            machine_set(m, m->p->param_buffer[t], i, (g->tensors[t].init == INIT_ONE ? 1 : 0) + x);
        }
}

static double difference(struct machine *m, int buffer, int64_t i, double step)
{
    double at = machine_get(m, buffer, i);
    machine_set(m, buffer, i, at + step);
    double above = machine_run(m);
    machine_set(m, buffer, i, at - step);
    double below = machine_run(m);
    machine_set(m, buffer, i, at);
    return (above - below) / (2 * step);
}

/* `loss` is the machine of an evaluation program over the same numbers. */
static void compare(const struct fixture *f, const struct machine *train, struct machine *eval)
{
    for (int t = 0; t < f->graph.n_tensors; t++) {
        const struct graph_tensor *g = &f->graph.tensors[t];
        if (g->kind != GT_PARAM)
            continue;
        int64_t n = tensor_elements(g);
        for (int64_t i = 0; i<n; i += n> 40 ? n / 23 : 3) {
            double want = difference(eval, eval->p->param_buffer[t], i, 1e-5);
            double grad = machine_get(train, train->p->grad_buffer[t], i);
            if (!(fabs(grad - want) <= 1e-8 + 1e-6 * fabs(want)))
                fail_msg("%s[%lld]: gradient %.12g, difference %.12g", g->name, (long long)i, grad, want);
            if (graph_grad_is_zero(g, i) && !(fabs(grad) < 1e-14))
                fail_msg("%s[%lld] should have no gradient, has %g", g->name, (long long)i, grad);
        }
    }
}

#define BATCH (5 * 8)

static void fill_batch(int32_t ids[BATCH], int32_t targets[BATCH])
{
    for (int i = 0; i < BATCH; i++) {
        ids[i] = (int32_t)(rng_uniform(5, 1, (uint64_t)i) * 32);
        targets[i] = (int32_t)(rng_uniform(5, 2, (uint64_t)i) * 32);
    }
}

static void check_fixtures(struct fixture *train, struct fixture *eval)
{
    struct machine mt, me;
    int32_t ids[BATCH], targets[BATCH];
    int32_t begin[BATCH];
    fill_batch(ids, targets);
    begins_fill(BATCH / train->job.train.seq, train->job.train.seq, begin);
    if (plan_check(&train->graph, train->programs, 1, &train->why) != OK)
        fail_msg("%s", train->why.text);
    machine_init(&mt, &train->programs[0], &train->graph, ids, targets);
    machine_init(&me, &eval->programs[0], &eval->graph, ids, targets);
    mt.begin = me.begin = begin;
    init_params(&mt, &train->graph);
    init_params(&me, &eval->graph);
    double loss = machine_run(&mt), again = machine_run(&mt), evaluated = machine_run(&me);
    assert_true(loss == again); /* and not the sum with an earlier step's */
    assert_true(loss == evaluated);
    assert_true(loss > 1 && loss < 1000); /* not NaN, not zero */
    compare(train, &mt, &me);
    machine_fini(&mt);
    machine_fini(&me);
}

static struct job_spec job_of(enum model_arch arch, enum numerics numerics)
{
    struct job_spec job = job_small(arch, 1);
    job.train.global_batch = 5; /* three microbatches, the last short */
    job.train.numerics = numerics;
    job.train.dtype = DT_F64;
    return job;
}

static void check(enum model_arch arch, bool tied, enum numerics numerics)
{
    struct job_spec job = job_of(arch, numerics);
    struct fixture train, eval;
    job.model.tied = tied;
    fixture_init(&train, &job, MODE_TRAIN);
    fixture_init(&eval, &job, MODE_EVAL);
    check_fixtures(&train, &eval);
    fixture_fini(&train);
    fixture_fini(&eval);
}

static int param(struct graph_builder *b, const char *name, int64_t rows, int64_t cols)
{
    return graph_add_param(b, (struct graph_param){0, cols ? INIT_NORMAL : INIT_ONE, 1, rows, cols}, "%s", name);
}

static int norm(struct graph_builder *b, const char *name, int x, int res, int *sum)
{
    struct graph_node n = {.op = GO_RMSNORM, .in = {x, res, param(b, name, 16, 0), -1, -1}};
    int y = graph_add_activation(b, -1, "y", 16), rstd = graph_add_stat(b, -1, "rstd", 1);
    *sum = res < 0 ? -1 : graph_add_activation(b, -1, "sum", 16);
    struct graph_node *at = graph_add_node(b, GO_RMSNORM, -1);
    memcpy(at->in, n.in, sizeof(n.in));
    at->out[0] = y;
    at->out[1] = rstd;
    at->out[2] = *sum;
    at->eps = 1e-5;
    return y;
}

static int op2(struct graph_builder *b, enum graph_op op, int x, int y)
{
    int z = graph_add_activation(b, -1, graph_op_name(op), 16);
    struct graph_node *n = graph_add_node(b, op, -1);
    n->in[0] = x;
    n->in[1] = y;
    n->out[0] = z;
    return z;
}

/* A graph with what our models do not have: sums as separate nodes, post-norm, an activation with many readers of
 * several kinds, an attention that is added without a projection, ReLU. */
static void build_odd(struct graph_builder *b)
{
    int ids = graph_add_input(b, GT_IDS, "ids"), x = graph_add_activation(b, -1, "x", 16), sum, sum2;
    struct graph_node *n = graph_add_node(b, GO_EMBED, -1);
    n->in[0] = ids;
    n->in[1] = param(b, "table", 32, 16);
    n = &b->g->nodes[b->g->n_nodes - 1];
    n->out[0] = x;
    int h = graph_add_activation(b, -1, "h", 16), k = graph_add_activation(b, -1, "k", 16);
    graph_add_linear(b, -1, x, param(b, "w", 16, 16), -1, false, h);
    int relu = op2(b, GO_RELU, h, -1), y = op2(b, GO_ADD, x, relu);
    int z = norm(b, "post", y, -1, &sum), o = graph_add_activation(b, -1, "o", 16);
    graph_add_linear(b, -1, relu, param(b, "v", 16, 16), -1, true, k);
    n = graph_add_node(b, GO_ATTENTION, -1);
    n->in[0] = z;
    n->in[1] = k;
    n->in[2] = h;
    n->out[0] = o;
    n->out[1] = graph_add_stat(b, -1, "lse", 4);
    n = &b->g->nodes[b->g->n_nodes - 1];
    n->heads = n->kv_heads = n->head_dim = 4;
    n->causal = true;
    int u = norm(b, "fused", z, o, &sum), v = op2(b, GO_GELU, sum, -1), w = op2(b, GO_SWIGLU, u, v);
    int t = norm(b, "fused2", w, v, &sum2), lin = graph_add_activation(b, -1, "lin", 16), sum3, sum4;
    graph_add_linear(b, -1, z, param(b, "w3", 16, 16), -1, false, lin);
    int t3 = norm(b, "fused3", t, lin, &sum3), g = op2(b, GO_GELU, t3, -1);
    /* Each of these gradients shares its buffer with a tensor that is made much earlier. */
    int shared = op2(b, GO_ADD, op2(b, GO_ADD, sum3, z), op2(b, GO_ADD, g, y));
    int end = op2(b, GO_ADD, shared, op2(b, GO_ADD, op2(b, GO_ADD, sum2, sum), op2(b, GO_ADD, lin, x)));
    int t4 = norm(b, "fused4", end, w, &sum4);
    end = op2(b, GO_ADD, t4, sum4); /* one gradient for both outputs of the norm */
    int logits = graph_add_activation(b, -1, "logits", 32);
    graph_add_linear(b, -1, end, param(b, "head", 32, 16), -1, false, logits);
    graph_add_loss(b, logits);
}

static int linear(struct graph_builder *b, int x, const char *name, bool bias, bool trans_w)
{
    char text[16];
    snprintf(text, sizeof(text), "%s.bias", name);
    int w = param(b, name, 16, 16), y = graph_add_activation(b, -1, text, 16);
    graph_add_linear(b, -1, x, w, bias ? param(b, text, 16, 0) : -1, trans_w, y);
    return y;
}

/* Every combination of a GELU and the matmuls around it: both fused, one of them, none; biases of both forms of
 * weights. */
static void build_gelus(struct graph_builder *b)
{
    int ids = graph_add_input(b, GT_IDS, "ids"), x = graph_add_activation(b, -1, "x", 16), sum;
    int table = param(b, "table", 32, 16);
    struct graph_node *n = graph_add_node(b, GO_EMBED, -1);
    n->in[0] = ids;
    n->in[1] = table;
    n->out[0] = x;
    int g1 = op2(b, GO_GELU, linear(b, x, "a", true, false), -1); /* after a matmul, before two readers */
    int t1 = op2(b, GO_ADD, x, g1);                               /* the first of the two */
    int s1 = op2(b, GO_ADD, linear(b, g1, "b", true, true), t1);
    int h3 = linear(b, s1, "c", true, false);
    int g3 = op2(b, GO_GELU, h3, -1); /* its input has another reader; before a matmul */
    int s2 = op2(b, GO_ADD, linear(b, g3, "d", true, true), h3);
    int g5 = op2(b, GO_GELU, norm(b, "norm", s2, -1, &sum), -1); /* of a norm */
    int h6 = linear(b, linear(b, g5, "e", false, false), "f", true, false);
    n = graph_add_node(b, GO_ROPE, -1); /* rotates the matmul's output */
    n->in[0] = n->out[0] = h6;
    n->heads = n->head_dim = 4;
    graph_set_rope(b, &(struct job_model){.dim = 16, .heads = 4, .rope_theta = 100});
    int g6 = op2(b, GO_GELU, h6, -1);
    int g7 = op2(b, GO_GELU, linear(b, g6, "g", true, true), -1); /* between two matmuls */
    int end = op2(b, GO_ADD, linear(b, g7, "h", true, false), s2);
    int g8 = op2(b, GO_GELU, end, -1); /* between sums */
    int logits = graph_add_activation(b, -1, "logits", 32), head = param(b, "head", 32, 16);
    graph_add_linear(b, -1, op2(b, GO_ADD, g8, g8), head, -1, false, logits);
    graph_add_loss(b, logits);
}

static void built_init(struct fixture *f, const struct job_spec *job, enum program_mode mode,
                       void (*build)(struct graph_builder *b))
{
    struct graph_builder b = {.g = &f->graph, .seq = job->train.seq};
    memset(f, 0, sizeof(*f));
    f->graph.begin = -1;
    f->job = *job;
    f->n = 1;
    build(&b);
    assert_ok(b.err);
    assert_ok(plan_compile(&f->job, &f->graph, mode, 0, &f->programs[0], &f->why));
}

/* The backward of attention reads o, so the sum with o needs its own bytes. */
TEST(a_value_that_a_backward_reads_is_not_overwritten)
{
    struct job_spec job = job_of(ARCH_LLAMA, NUMERICS_FAST);
    struct fixture f;
    built_init(&f, &job, MODE_TRAIN, build_odd);
    const struct program *p = &f.programs[0];
    int o = -1, sums = 0;
    for (int i = 0; i < p->n_ops; i++) {
        const struct op *op = &p->ops[i];
        if (op->kind == OP_ATTENTION)
            o = op->arg[3].buffer;
        if (op->kind == OP_RMSNORM && op->arg[1].buffer == o && o >= 0) {
            assert_int_not_equal(op->arg[3].buffer, o);
            sums++;
        }
    }
    assert_int_equal(sums, 1);
    fixture_fini(&f);
}

TEST(any_graph_has_the_right_gradient)
{
    for (int numerics = NUMERICS_FAST; numerics <= NUMERICS_CANONICAL; numerics++) {
        struct job_spec job = job_of(ARCH_LLAMA, (enum numerics)numerics);
        void (*const graphs[])(struct graph_builder *) = {build_odd, build_gelus};
        for (int i = 0; i < 2; i++) {
            struct fixture train, eval;
            built_init(&train, &job, MODE_TRAIN, graphs[i]);
            built_init(&eval, &job, MODE_EVAL, graphs[i]);
            check_fixtures(&train, &eval);
            fixture_fini(&train);
            fixture_fini(&eval);
        }
    }
}

/* Ops of the first forward and backward with a flag, or of a kind (flag 0). */
static int count_ops(const struct program *p, enum op_kind kind, uint32_t flag)
{
    int n = 0;
    for (int a = 1; a <= 2; a++)
        for (int i = 0; i < p->actions[a].n_ops; i++) {
            const struct op *op = &p->ops[p->actions[a].first_op + i];
            n += op->kind == kind && (op->flags & flag) == flag;
        }
    return n;
}

TEST(gelus_and_biases_are_fused_where_they_can_be)
{
    struct job_spec job = job_of(ARCH_LLAMA, NUMERICS_FAST);
    struct fixture f;
    built_init(&f, &job, MODE_TRAIN, build_gelus);
    const struct program *p = &f.programs[0];
    assert_int_equal(count_ops(p, OP_GEMM, OPF_GELU), 2); /* a and g */
    assert_int_equal(count_ops(p, OP_GELU, 0), 4);
    assert_int_equal(count_ops(p, OP_GEMM, OPF_GELU_GRAD), 4); /* d, e, g and h */
    assert_int_equal(count_ops(p, OP_GELU_GRAD, 0), 2);
    assert_int_equal(count_ops(p, OP_BIAS_GRAD, 0), 0);
    fixture_fini(&f);
}

TEST(llama_gradient_is_the_difference)
{
    check(ARCH_LLAMA, false, NUMERICS_FAST);
}

TEST(tied_llama_gradient_is_the_difference)
{
    check(ARCH_LLAMA, true, NUMERICS_FAST);
}

TEST(canonical_llama_gradient_is_the_difference)
{
    check(ARCH_LLAMA, false, NUMERICS_CANONICAL);
}

/* The attention of llama's relatives: Qwen2, Qwen3 and OLMoE. */
static void check_attention(int64_t head_dim, bool bias, enum qk_norm norm, enum numerics numerics,
                            enum recompute recompute)
{
    struct job_spec job = job_of(ARCH_LLAMA, numerics);
    struct fixture train, eval;
    job.model.head_dim = head_dim;
    job.model.qkv_bias = bias;
    job.model.qk_norm = norm;
    job.parallel.recompute = recompute;
    fixture_init(&train, &job, MODE_TRAIN);
    fixture_init(&eval, &job, MODE_EVAL);
    check_fixtures(&train, &eval);
    fixture_fini(&train);
    fixture_fini(&eval);
}

TEST(heads_of_another_width_have_the_right_gradient)
{
    check_attention(2, false, QK_NORM_NONE, NUMERICS_FAST, RECOMPUTE_NONE);
    check_attention(6, false, QK_NORM_NONE, NUMERICS_CANONICAL, RECOMPUTE_FULL);
}

TEST(biases_of_attention_have_the_right_gradient)
{
    check_attention(0, true, QK_NORM_NONE, NUMERICS_FAST, RECOMPUTE_NONE);
    check_attention(0, true, QK_NORM_NONE, NUMERICS_CANONICAL, RECOMPUTE_ATTENTION);
}

TEST(norms_of_heads_have_the_right_gradient)
{
    check_attention(0, false, QK_NORM_HEAD, NUMERICS_FAST, RECOMPUTE_NONE);
    check_attention(6, true, QK_NORM_HEAD, NUMERICS_CANONICAL, RECOMPUTE_POINTWISE);
    check_attention(6, false, QK_NORM_HEAD, NUMERICS_FAST, RECOMPUTE_FULL);
}

TEST(norms_of_all_heads_together_have_the_right_gradient)
{
    check_attention(0, false, QK_NORM_WHOLE, NUMERICS_FAST, RECOMPUTE_NONE);
    check_attention(6, true, QK_NORM_WHOLE, NUMERICS_CANONICAL, RECOMPUTE_POINTWISE);
    check_attention(6, false, QK_NORM_WHOLE, NUMERICS_FAST, RECOMPUTE_FULL);
}

/* Windows, capped scores, scores of another scale, documents: each alone, then all of them. */
TEST(masks_and_scores_have_the_right_gradient)
{
    static const struct {
        int64_t window, from, period;
        double softcap, scale;
        bool documents;
    } models[] = {{.window = 3},
                  {.softcap = 0.5},
                  {.scale = 0.3},
                  {.documents = true},
                  {.window = 2, .from = 1, .softcap = 0.5, .scale = 2, .documents = true},
                  {.window = 1, .period = 2, .documents = true}};
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
        struct job_spec job = job_of(ARCH_LLAMA, i % 2 ? NUMERICS_CANONICAL : NUMERICS_FAST);
        struct fixture train, eval;
        job.model.window = models[i].window;
        job.model.window_from = models[i].from;
        job.model.window_period = models[i].period;
        job.model.score_softcap = models[i].softcap;
        job.model.score_scale = models[i].scale;
        job.model.documents = models[i].documents;
        job.parallel.recompute = i % 3 ? RECOMPUTE_NONE : RECOMPUTE_ATTENTION;
        fixture_init(&train, &job, MODE_TRAIN);
        fixture_init(&eval, &job, MODE_EVAL);
        check_fixtures(&train, &eval);
        fixture_fini(&train);
        fixture_fini(&eval);
    }
}

/* ---- llama's relatives ---- */

static char rope_some[] = "10", rope_local[] = "l1";

static const struct relative {
    const char *name;
    struct job_model m; /* without sizes */
} relatives[] = {
    {"smollm3", {.rope_layers = rope_some}},
    {"gpt-neox",
     {.rope_part = 0.5,
      .qkv_bias = true,
      .out_bias = true,
      .ffn_bias = true,
      .ffn_plain = true,
      .activation = ACTIVATION_GELU_ERF,
      .norm = NORM_LAYER,
      .branches = BRANCHES_PARALLEL}},
    {"phi",
     {.rope_part = 0.5,
      .qkv_bias = true,
      .out_bias = true,
      .ffn_bias = true,
      .head_bias = true,
      .ffn_plain = true,
      .activation = ACTIVATION_GELU,
      .norm = NORM_LAYER,
      .branches = BRANCHES_ONE_NORM}},
    {"starcoder2",
     {.qkv_bias = true,
      .out_bias = true,
      .ffn_bias = true,
      .ffn_plain = true,
      .tied = true,
      .activation = ACTIVATION_GELU,
      .norm = NORM_LAYER}},
    {"olmo2", {.norm_place = NORM_AFTER, .qk_norm = QK_NORM_WHOLE}},
    {"gemma2",
     {.norm = NORM_RMS1,
      .norm_place = NORM_BOTH,
      .activation = ACTIVATION_GELU,
      .tied = true,
      .embed_scale = 4,
      .score_scale = 0.3,
      .logit_cap = 2}},
    {"gemma3",
     {.norm = NORM_RMS1,
      .norm_place = NORM_BOTH,
      .qk_norm = QK_NORM_HEAD,
      .activation = ACTIVATION_GELU,
      .embed_scale = 4,
      .score_scale = 0.6,
      .rope_layers = rope_local,
      .rope_local_theta = 100}},
    {"granite", {.embed_scale = 3, .residual_scale = 0.4, .score_scale = 0.3, .logit_scale = 0.5, .ffn_bias = true}},
    {"factors of a head with a bias", {.head_bias = true, .logit_scale = 0.5, .logit_cap = 3}},
};

static struct job_spec job_relative(const struct relative *r, enum numerics numerics, enum recompute recompute)
{
    struct job_spec job = job_of(ARCH_LLAMA, numerics);
    const struct job_model sizes = job.model;
    job.model = r->m;
    job.model.dim = sizes.dim;
    job.model.layers = sizes.layers;
    job.model.heads = sizes.heads;
    job.model.kv_heads = sizes.kv_heads;
    job.model.vocab = sizes.vocab;
    job.model.norm_eps = sizes.norm_eps;
    job.model.rope_theta = sizes.rope_theta;
    job.parallel.recompute = recompute;
    return job;
}

TEST(relatives_of_llama_have_the_right_gradient)
{
    static const struct {
        enum numerics numerics;
        enum recompute recompute;
    } cases[] = {
        {NUMERICS_FAST, RECOMPUTE_NONE}, {NUMERICS_CANONICAL, RECOMPUTE_FULL}, {NUMERICS_FAST, RECOMPUTE_POINTWISE}};
    for (size_t i = 0; i < sizeof(relatives) / sizeof(relatives[0]); i++)
        for (size_t k = 0; k < sizeof(cases) / sizeof(cases[0]); k++) {
            struct job_spec job = job_relative(&relatives[i], cases[k].numerics, cases[k].recompute);
            struct fixture train, eval;
            printf("%s, recompute %d\n", relatives[i].name, (int)cases[k].recompute);
            fixture_init(&train, &job, MODE_TRAIN);
            fixture_init(&eval, &job, MODE_EVAL);
            check_fixtures(&train, &eval);
            fixture_fini(&train);
            fixture_fini(&eval);
        }
}

TEST(gpt2_with_the_exact_gelu_has_the_right_gradient)
{
    struct job_spec job = job_of(ARCH_GPT2, NUMERICS_FAST);
    struct fixture train, eval;
    job.model.activation = ACTIVATION_GELU_ERF;
    fixture_init(&train, &job, MODE_TRAIN);
    fixture_init(&eval, &job, MODE_EVAL);
    check_fixtures(&train, &eval);
    fixture_fini(&train);
    fixture_fini(&eval);
}

TEST(gpt2_gradient_is_the_difference)
{
    check(ARCH_GPT2, true, NUMERICS_FAST);
}

TEST(canonical_gpt2_gradient_is_the_difference)
{
    check(ARCH_GPT2, true, NUMERICS_CANONICAL);
}

/* ---- bfloat16 beside float64 ---- */

/* The distance between the two gradients of a tensor, relative to their norm or to a thousandth of the norm over all
 * tensors, whichever is larger. */
static void gradients_near(const struct fixture *f, const struct machine *narrow, const struct machine *twin,
                           double norm)
{
    for (int t = 0; t < f->graph.n_tensors; t++) {
        const struct graph_tensor *g = &f->graph.tensors[t];
        double off = 0, size = 0;
        for (int64_t i = 0; g->kind == GT_PARAM && i < tensor_elements(g); i++) {
            double want = machine_get(twin, twin->p->grad_buffer[t], i);
            double got = machine_get(narrow, narrow->p->grad_buffer[t], i);
            bool none = graph_grad_is_zero(g, i);
            off += none ? 0 : (got - want) * (got - want);
            size += want * want;
        }
        if (!(sqrt(off) <= 0.07 * (sqrt(size) + 1e-2 * norm)))
            fail_msg("%s: gradients are %g apart, of %g", g->name, sqrt(off), sqrt(size));
    }
}

/* The loss is near the twin's, before an update and after it, when the bfloat16 copies must have been made again. For
 * the second step the twin gets the parameters from the bfloat16 program's update. */
static void check_narrow(enum model_arch arch, bool tied, bool bias, enum qk_norm qk)
{
    struct job_spec job = job_of(arch, NUMERICS_FAST), wide;
    struct fixture f[3];
    struct machine m[3];
    int32_t ids[BATCH], targets[BATCH];
    job.model.tied = tied;
    job.model.qk_norm = qk;
    job.model.qkv_bias = bias;
    wide = job;
    job.train.dtype = DT_BF16;
    fill_batch(ids, targets);
    fixture_init(&f[0], &job, MODE_TRAIN);
    fixture_init(&f[1], &wide, MODE_TRAIN);
    fixture_init(&f[2], &job, MODE_EVAL);
    for (int i = 0; i < 3; i++) {
        if (plan_check(&f[i].graph, f[i].programs, 1, &f[i].why) != OK)
            fail_msg("%s", f[i].why.text);
        machine_init(&m[i], &f[i].programs[0], &f[i].graph, ids, targets);
        init_params(&m[i], &f[i].graph);
        m[i].lr = 0.05;
    }
    double first = 0;
    for (int step = 0; step < 2; step++) {
        double got = machine_run(&m[0]), want = machine_run(&m[1]), evaluated = machine_run(&m[2]);
        assert_true(got == evaluated);
        if (!(fabs(got - want) <= 0.01 * want) || fabs(got - first) < 0.05 * want)
            fail_msg("step %d: loss %g, in float64 %g, before %g", step, got, want, first);
        first = got;
        double norm = machine_update(&m[0]);
        gradients_near(&f[0], &m[0], &m[1], norm);
        for (int t = 0; t < f[0].graph.n_tensors; t++)
            for (int64_t i = 0; f[0].graph.tensors[t].kind == GT_PARAM && i < tensor_elements(&f[0].graph.tensors[t]);
                 i++)
                for (int k = 1; k < 3; k++)
                    machine_set(&m[k], m[k].p->param_buffer[t], i, machine_get(&m[0], m[0].p->param_buffer[t], i));
    }
    for (int i = 0; i < 3; i++) {
        machine_fini(&m[i]);
        fixture_fini(&f[i]);
    }
}

TEST(bfloat16_llama_is_near_its_float64_twin)
{
    check_narrow(ARCH_LLAMA, false, false, QK_NORM_NONE);
}

TEST(bfloat16_attention_of_the_relatives_is_near_its_float64_twin)
{
    check_narrow(ARCH_LLAMA, false, true, QK_NORM_NONE);
    check_narrow(ARCH_LLAMA, false, false, QK_NORM_HEAD);
    check_narrow(ARCH_LLAMA, false, false, QK_NORM_WHOLE);
}

TEST(bfloat16_gpt2_is_near_its_float64_twin)
{
    check_narrow(ARCH_GPT2, true, false, QK_NORM_NONE);
}
