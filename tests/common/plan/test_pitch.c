/* Padded rows: which matrices have them, that nothing but their memory changes, that all layouts compute one worker's
 * numbers, and that the checker refuses a wrong stride. */
#include "common/base/rng.h"
#include "common/plan/check/plan_check.h"
#include "tests/common/plan/world.h"

#include <math.h>

static int find_buffer(const struct program *p, const char *name)
{
    for (int i = 0; i < p->n_buffers; i++)
        if (strcmp(p->buffers[i].name, name) == 0)
            return i;
    return -1;
}

/* ---- which matrices, and their pitch ---- */

/* A vocabulary on `tp` ranks: rank 0's columns, and the pitch of its logits; 0: dense. */
TEST(rows_begin_where_loads_are_fast)
{
    static const struct {
        int64_t vocab, tp;
        enum dtype dtype;
        int64_t cols, pitch;
    } cases[] = {
        {50257, 1, DT_BF16, 50257, 50304}, {50257, 1, DT_F32, 50257, 50272},
        {50257, 2, DT_BF16, 25129, 25152}, {50256, 1, DT_BF16, 50256, 0},
        {50304, 1, DT_BF16, 50304, 0},     {50304, 3, DT_BF16, 16768, 0},
        {50258, 2, DT_BF16, 25129, 25152}, {257, 1, DT_BF16, 257, 320},
        {257, 1, DT_F32, 257, 288},        {260, 1, DT_F32, 260, 0},
        {101, 1, DT_BF16, 101, 128},       {31, 1, DT_F32, 31, 0},
        {128256, 4, DT_BF16, 32064, 0},    {8, 1, DT_BF16, 8, 0},
        {65, 1, DT_BF16, 65, 128},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct job_spec job = job_small(ARCH_GPT2, (int)cases[i].tp);
        struct fixture f;
        job.model.vocab = cases[i].vocab;
        job.parallel.tp = cases[i].tp;
        job.train.dtype = cases[i].dtype;
        job.run.device = DEVICE_CUDA;
        fixture_init(&f, &job, MODE_TRAIN);
        const struct program *p = &f.programs[0];
        const struct buffer *b = &p->buffers[find_buffer(p, "logits")];
        assert_int_equal(b->dim[1].factor, cases[i].cols);
        assert_int_equal(b->pitch, cases[i].pitch);
        assert_int_equal(b->bytes, 16 * buffer_row(b) * (int64_t)dtype_bytes(b->dtype)); /* of 2 samples of 8 tokens */
        assert_ok(plan_check(&f.graph, f.programs, f.n, &f.why));
        fixture_fini(&f);
    }
}

static const char *const pitched_names[] = {"layer.0.q", "layer.0.k", "layer.0.v", "logits"};

/* 17 columns a head, a bias on all, 101 words, 21 columns of the feed-forward. */
static struct job_spec job_odd(int workers)
{
    struct job_spec job = job_small(ARCH_TRANSFORMER, workers);
    job.model.dim = 51;
    job.model.heads = 3;
    job.model.ffn = 21;
    job.model.vocab = 101;
    job.train.seq = 7;
    job.train.global_batch = 5;
    return job;
}

/* No matrix as wide as a weight's rows, none with a kernel without a stride, and none that is sent to other ranks. */
TEST(only_rows_that_no_weight_has_are_padded)
{
    struct job_spec job = job_odd(1);
    struct fixture f;
    int apart = 0;
    fixture_init(&f, &job, MODE_TRAIN);
    const struct program *p = &f.programs[0];
    for (size_t i = 0; i < sizeof(pitched_names) / sizeof(pitched_names[0]); i++)
        assert_int_equal(p->buffers[find_buffer(p, pitched_names[i])].pitch, i < 3 ? 64 : 128);
    for (int i = 0; i < p->n_buffers; i++)
        apart += p->buffers[i].pitch > 0;
    assert_int_equal(apart, 2 * 3 * 2 + 1); /* q, k and v of two layers, their gradients, and logits */
    fixture_fini(&f);
}

/* Only activations change in size: rows of 50257 and of 50304 columns take the same bytes. */
TEST(room_is_exact_and_only_in_activations)
{
    struct job_spec job = job_small(ARCH_GPT2, 1), even;
    struct fixture a, b;
    job.model.dim = 32; /* so that every table ends at an aligned offset */
    job.model.vocab = 50257;
    job.train.dtype = DT_BF16;
    even = job;
    even.model.vocab = 50304;
    fixture_init(&a, &job, MODE_TRAIN);
    fixture_init(&b, &even, MODE_TRAIN);
    const struct program *p = &a.programs[0], *q = &b.programs[0];
    int64_t words = 47 * 32; /* elements by which one table is larger */
    assert_int_equal(q->space_bytes[SPACE_PARAM] - p->space_bytes[SPACE_PARAM], 4 * words);
    assert_int_equal(q->space_bytes[SPACE_OPT] - p->space_bytes[SPACE_OPT], 8 * words);
    assert_int_equal(q->space_bytes[SPACE_GRAD] - p->space_bytes[SPACE_GRAD], 4 * words);
    int64_t copies = q->space_bytes[SPACE_WORK] - p->space_bytes[SPACE_WORK]; /* the first row begins later too */
    assert_true(copies <= 2 * words && copies > 2 * words - PLAN_ROW_BYTES);
    assert_int_equal(p->buffers[find_buffer(p, "logits")].bytes, q->buffers[find_buffer(q, "logits")].bytes);
    fixture_fini(&a);
    fixture_fini(&b);
}

/* ---- no bit changes ---- */

/* The op's field for the stride of operand i; NULL: none. */
static int64_t *stride_of(struct op *op, int i)
{
    switch (op->kind) {
    case OP_GEMM:
        return i == 0 ? &op->lda : i == 1 ? &op->ldb : &op->ldc;
    case OP_ATTENTION:
    case OP_ATTENTION_GRAD:
        return i % 6 == 0 ? &op->lda : i == 3 || i == 5 ? &op->ldc : &op->ldb;
    case OP_CROSS_ENTROPY:
        return &op->lda;
    default:
        return NULL;
    }
}

/* The same program with dense rows, at the same offsets. */
static void make_dense(struct program *p)
{
    for (int k = 0; k < p->n_ops; k++)
        for (int i = 0; op_mode(&p->ops[k], i); i++) {
            int b = p->ops[k].arg[i].buffer;
            if (b < 0 || !p->buffers[b].pitch)
                continue;
            assert_non_null(stride_of(&p->ops[k], i));
            *stride_of(&p->ops[k], i) = p->buffers[b].dim[1].factor;
        }
    for (int i = 0; i < p->n_buffers; i++)
        p->buffers[i].pitch = 0;
}

#define BATCH (5 * 7)

static double run(struct machine *m, const struct fixture *f)
{
    static int32_t ids[BATCH], targets[BATCH];
    for (int i = 0; i < BATCH; i++) {
        ids[i] = (int32_t)(rng_uniform(5, 1, (uint64_t)i) * (double)f->job.model.vocab);
        targets[i] = (int32_t)(rng_uniform(5, 2, (uint64_t)i) * (double)f->job.model.vocab);
    }
    machine_init(m, &f->programs[0], &f->graph, ids, targets);
    for (int t = 0; t < f->graph.n_tensors; t++)
        for (int64_t i = 0; f->graph.tensors[t].kind == GT_PARAM && i < tensor_elements(&f->graph.tensors[t]); i++)
            machine_set(m, f->programs[0].param_buffer[t], i,
                        0.3 * rng_normal(3, rng_stream(f->graph.tensors[t].name), (uint64_t)i));
    return machine_run(m);
}

TEST(padded_rows_change_no_bit)
{
    struct job_spec job = job_odd(1);
    struct fixture apart, dense;
    struct machine a, d;
    job.train.numerics = NUMERICS_PROOF;
    fixture_init(&apart, &job, MODE_TRAIN);
    fixture_init(&dense, &job, MODE_TRAIN);
    make_dense(&dense.programs[0]);
    double loss = run(&a, &apart);
    assert_true(isfinite(loss) && loss > 1);
    assert_true(loss == run(&d, &dense));
    for (int t = 0; t < apart.graph.n_tensors; t++) {
        const struct graph_tensor *g = &apart.graph.tensors[t];
        int b = apart.programs[0].grad_buffer[t];
        for (int64_t i = 0; g->kind == GT_PARAM && i < tensor_elements(g); i++)
            if (machine_get(&a, b, i) != machine_get(&d, b, i))
                fail_msg("%s[%lld] is %.17g, with dense rows %.17g", g->name, (long long)i, machine_get(&a, b, i),
                         machine_get(&d, b, i));
    }
    machine_fini(&a);
    machine_fini(&d);
    fixture_fini(&apart);
    fixture_fini(&dense);
}

/* ---- all layouts ---- */

static const struct cell {
    int fsdp, zero, tp, pp, cp;
    bool sp, async;
    enum pipe_schedule schedule;
    enum recompute recompute;
} cells[] = {
    {.fsdp = 1, .tp = 1, .pp = 1, .cp = 1},
    {.fsdp = 2, .zero = 1, .tp = 1, .pp = 1, .cp = 1},
    {.fsdp = 2, .zero = 2, .tp = 1, .pp = 1, .cp = 1},
    {.fsdp = 2, .zero = 3, .tp = 1, .pp = 1, .cp = 1},
    {.fsdp = 1, .tp = 2, .pp = 1, .cp = 1},
    {.fsdp = 1, .tp = 2, .pp = 1, .cp = 1, .sp = true},
    {.fsdp = 1, .tp = 2, .pp = 1, .cp = 1, .sp = true, .async = true},
    {.fsdp = 1, .tp = 3, .pp = 1, .cp = 1, .sp = true},
    {.fsdp = 1, .tp = 3, .pp = 1, .cp = 1, .sp = true, .async = true, .recompute = RECOMPUTE_FULL},
    {.fsdp = 1, .tp = 1, .pp = 2, .cp = 1},
    {.fsdp = 1, .tp = 1, .pp = 2, .cp = 1, .schedule = PIPE_ZB_H1},
    {.fsdp = 1, .tp = 1, .pp = 1, .cp = 2},
    {.fsdp = 1, .tp = 1, .pp = 1, .cp = 3, .recompute = RECOMPUTE_FULL},
    {.fsdp = 1, .tp = 3, .pp = 1, .cp = 2, .sp = true},
    {.fsdp = 2, .zero = 3, .tp = 2, .pp = 2, .cp = 1, .schedule = PIPE_ZB_H1},
};
#define N_CELLS (sizeof(cells) / sizeof(cells[0]))

static struct job_spec job_in(const struct cell *c)
{
    struct job_spec job = job_odd(c->fsdp * c->tp * c->pp * c->cp);
    job.parallel.fsdp = c->fsdp;
    job.parallel.zero = c->zero;
    job.parallel.tp = c->tp;
    job.parallel.pp = c->pp;
    job.parallel.cp = c->cp;
    job.parallel.sp = c->sp;
    job.parallel.async_tp = c->async;
    job.parallel.schedule = c->schedule;
    job.parallel.recompute = c->recompute;
    job.model.causal = c->cp == 2;
    return job;
}

TEST(every_layout_with_padded_rows_is_one_worker)
{
    for (size_t i = 0; i < N_CELLS; i++) {
        struct job_spec job = job_in(&cells[i]);
        world_compare(&job);
    }
}

TEST(evaluation_and_generation_with_padded_rows_are_one_worker)
{
    for (size_t i = 0; i < N_CELLS; i++) {
        struct job_spec job = job_in(&cells[i]);
        world_compare_passes(&job);
    }
}

TEST(canonical_sums_with_padded_rows_have_the_same_bits)
{
    for (int workers = 2; workers <= 3; workers++) {
        struct job_spec job = job_odd(workers);
        job.train.numerics = NUMERICS_CANONICAL;
        world_compare_exact(&job);
    }
}

/* ---- wrong strides ---- */

static struct op *first_op(struct program *p, enum op_kind kind, int operand, const char *name)
{
    for (int i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == kind && p->ops[i].arg[operand].buffer == find_buffer(p, name))
            return &p->ops[i];
    fail_msg("no %s of %s", op_name(kind), name);
    return NULL;
}

static void nothing(struct program *p)
{
    (void)p;
}

static void closer(struct program *p)
{
    first_op(p, OP_GEMM, 3, "logits")->ldc -= 1;
}

static void on_each_other(struct program *p)
{
    first_op(p, OP_CROSS_ENTROPY, 0, "logits")->lda = 0;
}

static void wider(struct program *p)
{
    first_op(p, OP_CROSS_ENTROPY, 0, "logits")->n.factor += 1;
}

static void a_column_on(struct program *p)
{
    first_op(p, OP_CROSS_ENTROPY, 0, "logits")->arg[0].col = 1;
}

static void from_between(struct program *p)
{
    struct op *op = first_op(p, OP_ATTENTION, 1, "layer.0.k");
    op->arg[1].offset = (struct graph_dim){SYM_ONE, 5};
}

static void keys_as_dense(struct program *p)
{
    first_op(p, OP_ATTENTION_GRAD, 1, "layer.0.k")->ldb = 51;
}

static void copied_as_dense(struct program *p)
{
    struct op *op = p->ops;
    while (op->kind != OP_RELU)
        op++;
    op->arg[0].buffer = find_buffer(p, "layer.0.q");
    op->n.factor = 51;
}

static void without_room(struct program *p)
{
    p->buffers[find_buffer(p, "logits")].bytes -= 8;
}

static void between_boundaries(struct program *p)
{
    p->buffers[find_buffer(p, "logits")].offset += 64;
}

static void too_near(struct program *p)
{
    p->buffers[find_buffer(p, "logits")].pitch = 112; /* of float32: 448 bytes */
}

TEST(wrong_strides_are_refused)
{
    static const struct {
        void (*change)(struct program *p);
        const char *message;
    } mistakes[] = {
        {closer, "columns 0 to 100 of logits with rows 127 apart; it has 101 columns with rows 128 apart"},
        {on_each_other, "columns 0 to 100 of logits with rows 0 apart; it has 101 columns with rows 128 apart"},
        {wider, "columns 0 to 101 of logits with rows 128 apart; it has 101 columns"},
        {a_column_on, "columns 1 to 101 of logits"},
        {from_between, "columns 5 to 55 of layer.0.k"},
        {keys_as_dense, "with rows 51 apart; it has 51 columns with rows 64 apart"},
        {copied_as_dense, "reads layer.0.q as dense, but its rows are 64 elements apart"},
        {without_room, "logits"},
        {between_boundaries, "buffer logits has rows"},
        {too_near, "logits"},
    };
    for (size_t i = 0; i <= sizeof(mistakes) / sizeof(mistakes[0]); i++) {
        struct job_spec job = job_odd(1);
        struct fixture f;
        fixture_init(&f, &job, MODE_TRAIN);
        (i ? mistakes[i - 1].change : nothing)(&f.programs[0]);
        err_t e = plan_check(&f.graph, f.programs, 1, &f.why);
        if (e != (i ? ERR_INVALID : OK))
            fail_msg("mistake %zu: %s %s", i, err_name(e), f.why.text);
        if (i)
            assert_message(&f.why, mistakes[i - 1].message);
        fixture_fini(&f);
    }
}
