/* The compiled gradient against central differences of the compiled loss, float64 on the reference kernels.
 *
 * The interpreter below is the slow and obvious one: no streams, no collectives (one rank), every buffer at its planned
 * place, so a wrong place or a wrong in-place choice shows as a wrong number. */
#include "common/base/rng.h"
#include "common/plan/models/models.h"
#include "kernels/kernels.h"
#include "tests/common/plan/plan_fixture.h"

#include <math.h>

struct machine {
    const struct program *p;
    const struct kern_ops *k;
    struct kern_stream *s;
    char *space[SPACE_COUNT];
    const struct action *action;
    int64_t samples;
    const int32_t *ids, *targets; /* of the global batch */
};

static void *arg_slot(const struct machine *m, const struct op *op, int i, int64_t slot)
{
    if (op->arg[i].buffer < 0)
        return NULL;
    const struct buffer *b = &m->p->buffers[op->arg[i].buffer];
    return m->space[b->space] + b->offset + slot * b->slot_bytes +
           (program_dim(m->p, op->arg[i].offset, m->samples) + op->arg[i].col) * (int64_t)dtype_bytes(b->dtype);
}

static void *arg(const struct machine *m, const struct op *op, int i)
{
    bool micro = op->arg[i].buffer >= 0 && m->p->buffers[op->arg[i].buffer].slot_index == SLOT_MICRO;
    return arg_slot(m, op, i, micro && m->action->micro >= 0 ? m->action->micro : 0);
}

static void tree_leaf(struct machine *m, const struct op *op, int64_t n)
{
    const struct program *p = m->p;
    int micro = m->action->micro, h = sumtree_height(p->n_micros, p->first_micro, micro);
    int c = sumtree_merges(p->n_micros, p->first_micro, micro);
    const double *from = arg(m, op, 0);
    if (c == 0)
        memcpy(arg_slot(m, op, 1, h), from, (size_t)n * sizeof(double));
    for (int i = 1; i <= c; i++) {
        double *to = arg_slot(m, op, 1, h - i);
        for (int64_t k = 0; k < n; k++)
            to[k] += from[k];
        from = to;
    }
}

#define A(i) arg(m, op, i)

static void run_norms(struct machine *m, const struct op *op, int64_t t, int64_t n)
{
    const struct kern_ops *k = m->k;
    struct kern_stream *s = m->s;
    if (op->kind == OP_RMSNORM)
        k->rmsnorm(s, t, n, op->eps, A(0), A(1), A(2), A(3), A(4), A(5));
    else if (op->kind == OP_RMSNORM_GRAD)
        k->rmsnorm_grad(s, t, n, A(0), A(1), A(2), A(3), A(4), A(5), A(6));
    else if (op->kind == OP_LAYERNORM)
        k->layernorm(s, t, n, op->eps, A(0), A(1), A(2), A(3), A(4), A(5), A(6), A(7));
    else
        k->layernorm_grad(s, t, n, A(0), A(1), A(2), A(3), A(4), A(5), A(6), A(7), A(8));
}

static void run_attention(struct machine *m, const struct op *op, int64_t batch)
{
    struct kern_attention a = {batch,   m->p->seq, op->heads, op->kv_heads, op->head_dim,
                               op->lda, op->ldb,   op->ldb,   op->ldc,      (op->flags & OPF_CAUSAL) != 0,
                               A(0),    A(1),      A(2),      A(3),         A(4)};
    struct kern_attention_grad g = {a, NULL, NULL, NULL, NULL};
    if (op->kind == OP_ATTENTION) {
        assert_ok(m->k->attention(m->s, &a));
        return;
    }
    g.d_o = A(5);
    g.d_q = A(6);
    g.d_k = A(7);
    g.d_v = A(8);
    assert_ok(m->k->attention_grad(m->s, &g));
}

static void run_gemm(struct machine *m, const struct op *op)
{
    struct kern_gemm g = {(op->flags & OPF_TRANS_A) != 0,
                          (op->flags & OPF_TRANS_B) != 0,
                          (op->flags & OPF_ACC) != 0,
                          program_dim(m->p, op->m, m->samples),
                          program_dim(m->p, op->n, m->samples),
                          program_dim(m->p, op->k, m->samples),
                          op->lda,
                          op->ldb,
                          op->ldc,
                          A(0),
                          A(1),
                          A(2),
                          A(3)};
    assert_ok(m->k->gemm(m->s, &g));
}

static void run_op(struct machine *m, const struct op *op)
{
    const struct kern_ops *k = m->k;
    struct kern_stream *s = m->s;
    int64_t t = program_dim(m->p, op->m, m->samples), n = program_dim(m->p, op->n, m->samples), seq = m->p->seq;
    switch (op->kind) {
    case OP_ZERO:
        memset(A(0), 0, (size_t)(t * n) * sizeof(double));
        break;
    case OP_EMBED:
        k->embed(s, t, n, seq, A(0), A(1), A(2), A(3));
        break;
    case OP_EMBED_GRAD:
        k->embed_grad(s, t, n, seq, A(0), A(1), A(2), A(3));
        break;
    case OP_GEMM:
        run_gemm(m, op);
        break;
    case OP_BIAS_GRAD:
        k->bias_grad(s, t, n, A(0), A(1));
        break;
    case OP_RMSNORM:
    case OP_RMSNORM_GRAD:
    case OP_LAYERNORM:
    case OP_LAYERNORM_GRAD:
        run_norms(m, op, t, n);
        break;
    case OP_ROPE:
        k->rope(s, t, seq, 0, op->heads, op->head_dim, op->lda, op->theta, (op->flags & OPF_INVERSE) != 0, A(0));
        break;
    case OP_ATTENTION:
    case OP_ATTENTION_GRAD:
        run_attention(m, op, t);
        break;
    case OP_SWIGLU:
        k->swiglu(s, t * n, A(0), A(1), A(2));
        break;
    case OP_SWIGLU_GRAD:
        k->swiglu_grad(s, t * n, A(0), A(1), A(2), A(3), A(4));
        break;
    case OP_GELU:
        k->gelu(s, t * n, A(0), A(1));
        break;
    case OP_GELU_GRAD:
        k->gelu_grad(s, t * n, A(0), A(1), A(2));
        break;
    case OP_RELU:
        k->relu(s, t * n, A(0), A(1));
        break;
    case OP_RELU_GRAD:
        k->relu_grad(s, t * n, A(0), A(1), A(2));
        break;
    case OP_COPY:
        k->copy(s, t * n, A(0), A(1));
        break;
    case OP_ADD:
        k->add(s, t * n, A(0), A(1), A(2));
        break;
    case OP_CROSS_ENTROPY:
        k->cross_entropy(s, t, n, A(1), (op->flags & OPF_GRAD) != 0, m->p->loss_scale, A(0), A(2));
        break;
    case OP_TREE_LEAF:
        tree_leaf(m, op, t);
        break;
    case OP_TREE_REDUCE: /* one rank: the root is the only node */
        memcpy(A(1), A(0), (size_t)t * sizeof(double));
        break;
    default:
        fail_msg("the test has no %s", op_name(op->kind));
    }
}

static void fill_inputs(struct machine *m, const struct micro *micro)
{
    const struct program *p = m->p;
    size_t bytes = (size_t)(micro->samples * p->seq) * sizeof(int32_t);
    memcpy(m->space[SPACE_HOST] + p->buffers[p->ids_buffer].offset, m->ids + micro->first * p->seq, bytes);
    memcpy(m->space[SPACE_HOST] + p->buffers[p->targets_buffer].offset, m->targets + micro->first * p->seq, bytes);
}

/* Everything up to the norm; returns the loss. */
static double run_step(struct machine *m)
{
    const struct program *p = m->p;
    double loss = 0;
    for (int a = 0; a < p->n_actions && p->actions[a].kind < ACT_NORM; a++) {
        m->action = &p->actions[a];
        m->samples = m->action->micro >= 0 ? p->micros[m->action->micro].samples : p->max_samples;
        if (m->action->kind == ACT_FORWARD)
            fill_inputs(m, &p->micros[m->action->micro]);
        for (int i = 0; i < m->action->n_ops; i++)
            run_op(m, &p->ops[m->action->first_op + i]);
    }
    for (int i = 0; i < p->n_micros; i++)
        loss += ((double *)(m->space[SPACE_HOST] + p->buffers[p->loss_buffer].offset))[i];
    return loss * p->loss_scale;
}

static void machine_init(struct machine *m, const struct program *p, const int32_t *ids, const int32_t *targets)
{
    *m = (struct machine){.p = p, .k = kern_find("ref", DT_F64), .ids = ids, .targets = targets};
    assert_non_null(m->k);
    assert_ok(kern_stream_new(m->k, 1, &m->s));
    for (int s = 0; s < SPACE_COUNT; s++) {
        size_t bytes = (size_t)p->space_bytes[s] + 64;
        m->space[s] = malloc(bytes);
        memset(m->space[s], s == SPACE_GRAD ? 0 : 0xff, bytes); /* NaN: what is read too early shows */
    }
}

static void machine_fini(struct machine *m)
{
    for (int s = 0; s < SPACE_COUNT; s++)
        free(m->space[s]);
    kern_stream_free(m->s);
}

static double *tensor(const struct machine *m, int buffer)
{
    const struct buffer *b = &m->p->buffers[buffer];
    return (double *)(m->space[b->space] + b->offset);
}

static int64_t tensor_elements(const struct graph_tensor *t)
{
    return t->dim[0].factor * (t->ndim > 1 ? t->dim[1].factor : 1);
}

/* Larger than a training's start, so that no gradient is lost in rounding. */
static void init_params(const struct machine *m, const struct graph *g)
{
    for (int t = 0; t < g->n_tensors; t++)
        for (int64_t i = 0; g->tensors[t].kind == GT_PARAM && i < tensor_elements(&g->tensors[t]); i++)
            tensor(m, m->p->param_buffer[t])[i] = (g->tensors[t].init == INIT_ONE ? 1 : 0) +
                                                  0.3 * rng_normal(3, rng_stream(g->tensors[t].name), (uint64_t)i);
}

static double difference(struct machine *m, int buffer, int64_t i, double step)
{
    double *x = &tensor(m, buffer)[i], at = *x;
    *x = at + step;
    double above = run_step(m);
    *x = at - step;
    double below = run_step(m);
    *x = at;
    return (above - below) / (2 * step);
}

/* `loss` is an evaluation program's machine over the same numbers. */
static void compare(const struct fixture *f, const struct machine *train, struct machine *eval)
{
    for (int t = 0; t < f->graph.n_tensors; t++) {
        const struct graph_tensor *g = &f->graph.tensors[t];
        if (g->kind != GT_PARAM)
            continue;
        const double *grad = tensor(train, train->p->grad_buffer[t]);
        int64_t n = tensor_elements(g);
        for (int64_t i = 0; i<n; i += n> 40 ? n / 23 : 3) {
            double want = difference(eval, eval->p->param_buffer[t], i, 1e-5);
            if (!(fabs(grad[i] - want) <= 1e-8 + 1e-6 * fabs(want)))
                fail_msg("%s[%lld]: gradient %.12g, difference %.12g", g->name, (long long)i, grad[i], want);
            if (i >= g->zero_lo && i < g->zero_hi && !(fabs(grad[i]) < 1e-14))
                fail_msg("%s[%lld] should have no gradient, has %g", g->name, (long long)i, grad[i]);
        }
    }
}

static void check_fixtures(struct fixture *train, struct fixture *eval)
{
    struct machine mt, me;
    int32_t ids[5 * 8], targets[5 * 8];
    for (int i = 0; i < 40; i++) {
        ids[i] = (int32_t)(rng_uniform(5, 1, (uint64_t)i) * 32);
        targets[i] = (int32_t)(rng_uniform(5, 2, (uint64_t)i) * 32);
    }
    if (plan_check(&train->graph, train->programs, 1, &train->why) != OK)
        fail_msg("%s", train->why.text);
    machine_init(&mt, &train->programs[0], ids, targets);
    machine_init(&me, &eval->programs[0], ids, targets);
    init_params(&mt, &train->graph);
    init_params(&me, &eval->graph);
    double loss = run_step(&mt), again = run_step(&mt), evaluated = run_step(&me);
    assert_true(loss == again); /* nothing is left over from the step before */
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

/* What our models do not have: sums as nodes of their own, post-norm, an activation with many readers of several kinds,
 * an attention that goes into a sum without a projection, ReLU. */
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
    /* Each of these gradients is shared with a tensor that is made long before. */
    int shared = op2(b, GO_ADD, op2(b, GO_ADD, sum3, z), op2(b, GO_ADD, g, y));
    int end = op2(b, GO_ADD, shared, op2(b, GO_ADD, op2(b, GO_ADD, sum2, sum), op2(b, GO_ADD, lin, x)));
    int t4 = norm(b, "fused4", end, w, &sum4);
    end = op2(b, GO_ADD, t4, sum4); /* one gradient for both outputs of the norm */
    int logits = graph_add_activation(b, -1, "logits", 32);
    graph_add_linear(b, -1, end, param(b, "head", 32, 16), -1, false, logits);
    graph_add_loss(b, logits);
}

static void odd_init(struct fixture *f, const struct job_spec *job, enum program_mode mode)
{
    struct graph_builder b = {.g = &f->graph, .seq = job->train.seq};
    memset(f, 0, sizeof(*f));
    f->job = *job;
    f->n = 1;
    build_odd(&b);
    assert_ok(b.err);
    assert_ok(plan_compile(&f->job, &f->graph, mode, 0, &f->programs[0], &f->why));
}

/* The attention's backward may read o, so the sum that o goes into needs bytes of its own. */
TEST(what_a_backward_reads_is_not_taken_over)
{
    struct job_spec job = job_of(ARCH_LLAMA, NUMERICS_FAST);
    struct fixture f;
    odd_init(&f, &job, MODE_TRAIN);
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
        struct fixture train, eval;
        odd_init(&train, &job, MODE_TRAIN);
        odd_init(&eval, &job, MODE_EVAL);
        check_fixtures(&train, &eval);
        fixture_fini(&train);
        fixture_fini(&eval);
    }
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

TEST(gpt2_gradient_is_the_difference)
{
    check(ARCH_GPT2, true, NUMERICS_FAST);
}

TEST(canonical_gpt2_gradient_is_the_difference)
{
    check(ARCH_GPT2, true, NUMERICS_CANONICAL);
}
