/* Ops that are one kernel each. common/plan/program.h states the order of their operands and fields. */
#include "worker/step/run.h"

#define KERN(r) ((r)->engine->kernels)

static int64_t elements(const struct run *r, const struct op *op)
{
    return run_rows(r, op) * (op->n.factor ? run_dim(r, op->n) : 1);
}

/* The size of the first operand in its own type. */
static size_t bytes_of(const struct run *r, const struct op *op)
{
    return (size_t)elements(r, op) * dtype_bytes(r->program->buffers[op->arg[0].buffer].dtype);
}

static err_t op_zero(const struct run *r, const struct op *op)
{
    return dev_zero(run_stream(r, op), run_arg(r, op, 0), bytes_of(r, op));
}

static err_t op_copy(const struct run *r, const struct op *op)
{
    return dev_copy(run_stream(r, op), run_arg(r, op, 1), run_arg(r, op, 0), bytes_of(r, op));
}

static err_t op_cast(const struct run *r, const struct op *op)
{
    KERN(r)->cast(run_stream(r, op), elements(r, op), run_arg(r, op, 0), run_arg(r, op, 1));
    return OK;
}

static int64_t seq_of(const struct run *r, const struct op *op)
{
    return op->seq ? op->seq : r->program->seq;
}

/* The end of the vocabulary rows that the table holds; an op that names no range uses the whole table. */
static int64_t vocab_end(const struct run *r, const struct op *op, int table)
{
    if (op->vocab_hi || op->vocab_lo)
        return op->vocab_hi;
    return run_dim(r, r->program->buffers[op->arg[table].buffer].dim[0]);
}

/* The address of row `row` of an operand with `stride` elements between rows; NULL for an absent one. */
static void *row_of(const struct run *r, const struct op *op, int arg, int64_t row, int64_t stride)
{
    uint8_t *x = run_arg(r, op, arg);
    return x ? x + (size_t)(row * stride) * dtype_bytes(r->program->buffers[op->arg[arg].buffer].dtype) : NULL;
}

/* Tokens whose positions follow one another, in each of their samples: all tokens of the op, or while decoding one of
 * the runs. */
struct token_part {
    int64_t first, n, seq, pos0; /* index of the first token; tokens; tokens of a sample; position of its first */
};

static int parts_of(const struct run *r)
{
    return r->n_runs ? r->n_runs : 1;
}

static struct token_part part_of(const struct run *r, const struct op *op, int i)
{
    struct token_part p = {0, run_dim(r, op->m), seq_of(r, op), op->pos0};
    for (int k = 0; k < i; k++)
        p.first += r->runs[k].n;
    if (r->n_runs) {
        p.n = p.seq = r->runs[i].n;
        p.pos0 = r->runs[i].first;
    }
    return p;
}

static err_t op_embed(const struct run *r, const struct op *op)
{
    const int64_t d = run_dim(r, op->n);
    for (int i = 0; i < parts_of(r); i++) {
        const struct token_part p = part_of(r, op, i);
        KERN(r)->embed(run_stream(r, op), p.n, d, p.seq, op->vocab_lo, vocab_end(r, op, 1),
                       row_of(r, op, 0, p.first, 1), run_arg(r, op, 1), row_of(r, op, 2, p.pos0, d),
                       row_of(r, op, 3, p.first, d));
    }
    return OK;
}

static err_t op_embed_grad(const struct run *r, const struct op *op)
{
    KERN(r)->embed_grad(run_stream(r, op), run_dim(r, op->m), run_dim(r, op->n), seq_of(r, op), op->vocab_lo,
                        vocab_end(r, op, 2), run_arg(r, op, 0), run_arg(r, op, 1), run_arg(r, op, 2),
                        row_of(r, op, 3, op->pos0, run_dim(r, op->n)));
    return OK;
}

static enum kern_act act_of(const struct op *op)
{
    if (op->flags & OPF_GELU)
        return KERN_ACT_GELU;
    return op->flags & OPF_GELU_GRAD ? KERN_ACT_GELU_GRAD : KERN_ACT_NONE;
}

static err_t op_gemm(const struct run *r, const struct op *op)
{
    const struct kern_gemm g = {
        .trans_a = op->flags & OPF_TRANS_A,
        .trans_b = op->flags & OPF_TRANS_B,
        .accumulate = op->flags & OPF_ACC,
        .wide_c = r->program->buffers[op->arg[3].buffer].dtype != r->program->dtype,
        .few = r->program->mode == MODE_DECODE,
        .act = act_of(op),
        .m = run_dim(r, op->m),
        .n = run_dim(r, op->n),
        .k = run_dim(r, op->k),
        .lda = op->lda,
        .ldb = op->ldb,
        .ldc = op->ldc,
        .a = run_arg(r, op, 0),
        .b = run_arg(r, op, 1),
        .bias = run_arg(r, op, 2),
        .c = run_arg(r, op, 3),
        .aux = run_arg(r, op, 4),
        .a_sum = run_arg(r, op, 5),
        .b_sum = run_arg(r, op, 6),
    };
    return KERN(r)->gemm(run_stream(r, op), &g);
}

static err_t op_bias_grad(const struct run *r, const struct op *op)
{
    KERN(r)->bias_grad(run_stream(r, op), run_dim(r, op->m), run_dim(r, op->n), run_arg(r, op, 0), run_arg(r, op, 1));
    return OK;
}

static err_t op_rmsnorm(const struct run *r, const struct op *op)
{
    KERN(r)->rmsnorm(run_stream(r, op), run_dim(r, op->m), run_dim(r, op->n), op->eps, op->flags & OPF_PLUS_ONE,
                     run_arg(r, op, 0), run_arg(r, op, 1), run_arg(r, op, 2), run_arg(r, op, 3), run_arg(r, op, 4),
                     run_arg(r, op, 5));
    return OK;
}

static err_t op_rmsnorm_grad(const struct run *r, const struct op *op)
{
    KERN(r)->rmsnorm_grad(run_stream(r, op), run_dim(r, op->m), run_dim(r, op->n), op->flags & OPF_PLUS_ONE,
                          run_arg(r, op, 0), run_arg(r, op, 1), run_arg(r, op, 2), run_arg(r, op, 3), run_arg(r, op, 4),
                          run_arg(r, op, 5), run_arg(r, op, 6));
    return OK;
}

static err_t op_row_dots(const struct run *r, const struct op *op)
{
    KERN(r)->row_dots(run_stream(r, op), run_dim(r, op->m), run_dim(r, op->n), op->flags & OPF_PLUS_ONE,
                      run_arg(r, op, 0), run_arg(r, op, 1), run_arg(r, op, 2), run_arg(r, op, 3));
    return OK;
}

static err_t op_rmsnorm_part(const struct run *r, const struct op *op)
{
    KERN(r)->rmsnorm_part(run_stream(r, op), run_dim(r, op->m), run_dim(r, op->n), op->k.factor, op->eps,
                          op->flags & OPF_PLUS_ONE, run_arg(r, op, 0), run_arg(r, op, 1), run_arg(r, op, 2),
                          run_arg(r, op, 3), run_arg(r, op, 4));
    return OK;
}

static err_t op_rmsnorm_part_grad(const struct run *r, const struct op *op)
{
    KERN(r)->rmsnorm_part_grad(run_stream(r, op), run_dim(r, op->m), run_dim(r, op->n), op->k.factor,
                               op->flags & OPF_PLUS_ONE, run_arg(r, op, 0), run_arg(r, op, 1), run_arg(r, op, 2),
                               run_arg(r, op, 3), run_arg(r, op, 4), run_arg(r, op, 5), run_arg(r, op, 6));
    return OK;
}

static err_t op_layernorm(const struct run *r, const struct op *op)
{
    KERN(r)->layernorm(run_stream(r, op), run_dim(r, op->m), run_dim(r, op->n), op->eps, run_arg(r, op, 0),
                       run_arg(r, op, 1), run_arg(r, op, 2), run_arg(r, op, 3), run_arg(r, op, 4), run_arg(r, op, 5),
                       run_arg(r, op, 6), run_arg(r, op, 7));
    return OK;
}

static err_t op_layernorm_grad(const struct run *r, const struct op *op)
{
    KERN(r)->layernorm_grad(run_stream(r, op), run_dim(r, op->m), run_dim(r, op->n), run_arg(r, op, 0),
                            run_arg(r, op, 1), run_arg(r, op, 2), run_arg(r, op, 3), run_arg(r, op, 4),
                            run_arg(r, op, 5), run_arg(r, op, 6), run_arg(r, op, 7), run_arg(r, op, 8));
    return OK;
}

static err_t op_rope(const struct run *r, const struct op *op)
{
    const struct graph *graph = r->engine->config.graph;
    const struct graph_rope *g = &graph->ropes[graph->nodes[op->node].rope];
    const struct kern_rope rope = {g->pairs, g->frequency, g->factor};
    for (int i = 0; i < parts_of(r); i++) {
        const struct token_part p = part_of(r, op, i);
        KERN(r)->rope(run_stream(r, op), p.n, p.seq, p.pos0, op->heads, op->head_dim, op->lda, &rope,
                      op->flags & OPF_INVERSE, row_of(r, op, 0, p.first, op->lda));
    }
    return OK;
}

static struct kern_attention attention_of(const struct run *r, const struct op *op)
{
    return (struct kern_attention){
        .batch = run_dim(r, op->m),
        .seq = seq_of(r, op),
        .seq_kv = op->seq_kv,
        .heads = op->heads,
        .kv_heads = op->kv_heads,
        .head_dim = op->head_dim,
        .q_stride = op->lda,
        .k_stride = op->ldb,
        .v_stride = op->ldb,
        .o_stride = op->ldc,
        .causal = op->flags & OPF_CAUSAL,
        .window = op->window,
        .q_pos0 = op->pos0,
        .k_pos0 = op->pos0_kv,
        .scale = op->scale,
        .softcap = op->softcap,
        .begin = run_arg(r, op, ATTENTION_BEGIN(op->kind)),
        .q = run_arg(r, op, 0),
        .k = run_arg(r, op, 1),
        .v = run_arg(r, op, 2),
        .o = run_arg(r, op, 3),
        .lse = run_arg(r, op, 4),
    };
}

static err_t op_attention(const struct run *r, const struct op *op)
{
    const struct kern_attention a = attention_of(r, op);
    return KERN(r)->attention(run_stream(r, op), &a);
}

static err_t op_attention_grad(const struct run *r, const struct op *op)
{
    const struct kern_attention_grad a = {
        .fwd = attention_of(r, op),
        .d_o = run_arg(r, op, 5),
        .d_q = run_arg(r, op, 6),
        .d_k = run_arg(r, op, 7),
        .d_v = run_arg(r, op, 8),
        .acc_q = op->flags & OPF_ACC_Q,
        .acc_kv = op->flags & OPF_ACC_KV,
    };
    return KERN(r)->attention_grad(run_stream(r, op), &a);
}

static err_t op_attention_join(const struct run *r, const struct op *op)
{
    const struct kern_attention_join a = {
        .batch = run_dim(r, op->m),
        .seq = seq_of(r, op),
        .heads = op->heads,
        .head_dim = op->head_dim,
        .o_stride = op->ldc,
        .o2_stride = op->ldc,
        .o = run_arg(r, op, 0),
        .lse = run_arg(r, op, 1),
        .o2 = run_arg(r, op, 2),
        .lse2 = run_arg(r, op, 3),
    };
    KERN(r)->attention_join(run_stream(r, op), &a);
    return OK;
}

/* Keys or values of a run enter the cache of its sequence; returns the first row of the sequence there. */
static void *enter_cache(const struct run *r, const struct op *op, const struct token_part *p, int64_t sequence,
                         int from, int to)
{
    const int64_t cols = op->kv_heads * op->head_dim, row = sequence * op->seq;
    KERN(r)->copy_cols(run_stream(r, op), p->n, cols, row_of(r, op, from, p->first, op->ldb), op->ldb,
                       row_of(r, op, to, row + p->pos0, cols), cols);
    return row_of(r, op, to, row, cols);
}

static err_t op_attention_cached(const struct run *r, const struct op *op)
{
    const int64_t cols = op->kv_heads * op->head_dim;
    err_t err = OK;
    for (int i = 0; !err && i < r->n_runs; i++) {
        const struct token_part p = part_of(r, op, i);
        const struct kern_attention_cached a = {
            .n = p.n,
            .pos0 = p.pos0,
            .heads = op->heads,
            .kv_heads = op->kv_heads,
            .head_dim = op->head_dim,
            .q_stride = op->lda,
            .k_stride = cols,
            .v_stride = cols,
            .o_stride = op->ldc,
            .window = op->window,
            .scale = op->scale,
            .softcap = op->softcap,
            .q = row_of(r, op, 0, p.first, op->lda),
            .k = enter_cache(r, op, &p, r->runs[i].sequence, 1, 3),
            .v = enter_cache(r, op, &p, r->runs[i].sequence, 2, 4),
            .o = row_of(r, op, 5, p.first, op->ldc),
        };
        err = KERN(r)->attention_cached(run_stream(r, op), &a);
    }
    return err;
}

static err_t op_last_rows(const struct run *r, const struct op *op)
{
    const int64_t n = run_dim(r, op->n);
    for (int i = 0; i < r->n_runs; i++) {
        const struct token_part p = part_of(r, op, i);
        KERN(r)->copy_cols(run_stream(r, op), 1, n, row_of(r, op, 0, p.first + p.n - 1, op->lda), op->lda,
                           row_of(r, op, 1, i, n), n);
    }
    return OK;
}

static err_t op_swiglu(const struct run *r, const struct op *op)
{
    KERN(r)->swiglu(run_stream(r, op), elements(r, op), run_arg(r, op, 0), run_arg(r, op, 1), run_arg(r, op, 2));
    return OK;
}

static err_t op_swiglu_grad(const struct run *r, const struct op *op)
{
    KERN(r)->swiglu_grad(run_stream(r, op), elements(r, op), run_arg(r, op, 0), run_arg(r, op, 1), run_arg(r, op, 2),
                         run_arg(r, op, 3), run_arg(r, op, 4));
    return OK;
}

static err_t op_gelu(const struct run *r, const struct op *op)
{
    KERN(r)->gelu(run_stream(r, op), elements(r, op), run_arg(r, op, 0), run_arg(r, op, 1));
    return OK;
}

static err_t op_gelu_grad(const struct run *r, const struct op *op)
{
    KERN(r)->gelu_grad(run_stream(r, op), elements(r, op), run_arg(r, op, 0), run_arg(r, op, 1), run_arg(r, op, 2));
    return OK;
}

static err_t op_geglu(const struct run *r, const struct op *op)
{
    KERN(r)->geglu(run_stream(r, op), elements(r, op), run_arg(r, op, 0), run_arg(r, op, 1), run_arg(r, op, 2));
    return OK;
}

static err_t op_geglu_grad(const struct run *r, const struct op *op)
{
    KERN(r)->geglu_grad(run_stream(r, op), elements(r, op), run_arg(r, op, 0), run_arg(r, op, 1), run_arg(r, op, 2),
                        run_arg(r, op, 3), run_arg(r, op, 4));
    return OK;
}

static err_t op_gelu_erf(const struct run *r, const struct op *op)
{
    KERN(r)->gelu_erf(run_stream(r, op), elements(r, op), run_arg(r, op, 0), run_arg(r, op, 1));
    return OK;
}

static err_t op_gelu_erf_grad(const struct run *r, const struct op *op)
{
    KERN(r)->gelu_erf_grad(run_stream(r, op), elements(r, op), run_arg(r, op, 0), run_arg(r, op, 1), run_arg(r, op, 2));
    return OK;
}

static err_t op_scale(const struct run *r, const struct op *op)
{
    KERN(r)->scale(run_stream(r, op), elements(r, op), op->rate, run_arg(r, op, 0), run_arg(r, op, 1));
    return OK;
}

static err_t op_cap(const struct run *r, const struct op *op)
{
    KERN(r)->cap(run_stream(r, op), elements(r, op), op->rate, run_arg(r, op, 0), run_arg(r, op, 1));
    return OK;
}

static err_t op_cap_grad(const struct run *r, const struct op *op)
{
    KERN(r)->cap_grad(run_stream(r, op), elements(r, op), op->rate, run_arg(r, op, 0), run_arg(r, op, 1),
                      run_arg(r, op, 2));
    return OK;
}

static err_t op_relu(const struct run *r, const struct op *op)
{
    KERN(r)->relu(run_stream(r, op), elements(r, op), run_arg(r, op, 0), run_arg(r, op, 1));
    return OK;
}

static err_t op_relu_grad(const struct run *r, const struct op *op)
{
    KERN(r)->relu_grad(run_stream(r, op), elements(r, op), run_arg(r, op, 0), run_arg(r, op, 1), run_arg(r, op, 2));
    return OK;
}

static err_t op_add(const struct run *r, const struct op *op)
{
    KERN(r)->add(run_stream(r, op), elements(r, op), run_arg(r, op, 0), run_arg(r, op, 1), run_arg(r, op, 2));
    return OK;
}

static err_t op_copy_cols(const struct run *r, const struct op *op)
{
    KERN(r)->copy_cols(run_stream(r, op), run_dim(r, op->m), run_dim(r, op->n), run_arg(r, op, 0), op->lda,
                       run_arg(r, op, 1), op->ldb);
    return OK;
}

static err_t op_positions(const struct run *r, const struct op *op)
{
    KERN(r)->positions(run_stream(r, op), run_dim(r, op->m), run_dim(r, op->n), r->program->seq, run_arg(r, op, 1),
                       run_arg(r, op, 0), run_arg(r, op, 2));
    return OK;
}

/* Steps are counted from 1. A step that is repeated after a resume drops the same elements. */
static err_t op_dropout(const struct run *r, const struct op *op)
{
    const struct kern_dropout d = {
        .t = run_dim(r, op->m),
        .n = run_dim(r, op->n),
        .cols = run_dim(r, op->k),
        .col0 = op->col0,
        .rate = op->rate,
        .seed = r->engine->config.job->train.seed,
        .step = r->step,
        .site = op->site,
        .rows = run_arg(r, op, 1),
        .x = run_arg(r, op, 0),
        .y = run_arg(r, op, 2),
    };
    KERN(r)->dropout(run_stream(r, op), &d);
    return OK;
}

static err_t op_loss_part(const struct run *r, const struct op *op)
{
    KERN(r)->loss_part(run_stream(r, op), run_dim(r, op->m), run_dim(r, op->n), op->lda, op->vocab_lo,
                       run_arg(r, op, 1), run_arg(r, op, 0), run_arg(r, op, 2));
    return OK;
}

static err_t op_loss_join(const struct run *r, const struct op *op)
{
    KERN(r)->loss_join(run_stream(r, op), run_dim(r, op->m), run_dim(r, op->n), op->lda, op->vocab_lo,
                       run_dim(r, op->k), run_arg(r, op, 1), run_arg(r, op, 2), op->flags & OPF_GRAD, r->loss_scale,
                       run_arg(r, op, 0), run_arg(r, op, 3));
    return OK;
}

static err_t op_cross_entropy(const struct run *r, const struct op *op)
{
    KERN(r)->cross_entropy(run_stream(r, op), run_dim(r, op->m), run_dim(r, op->n), op->lda, run_arg(r, op, 1),
                           op->flags & OPF_GRAD, r->loss_scale, run_arg(r, op, 0), run_arg(r, op, 2));
    return OK;
}

const run_op_fn run_kernel_ops[OP_KIND_COUNT] = {
    [OP_ZERO] = op_zero,
    [OP_COPY] = op_copy,
    [OP_CAST] = op_cast,
    [OP_EMBED] = op_embed,
    [OP_EMBED_GRAD] = op_embed_grad,
    [OP_GEMM] = op_gemm,
    [OP_BIAS_GRAD] = op_bias_grad,
    [OP_RMSNORM] = op_rmsnorm,
    [OP_RMSNORM_GRAD] = op_rmsnorm_grad,
    [OP_ROW_DOTS] = op_row_dots,
    [OP_RMSNORM_PART] = op_rmsnorm_part,
    [OP_RMSNORM_PART_GRAD] = op_rmsnorm_part_grad,
    [OP_LAYERNORM] = op_layernorm,
    [OP_LAYERNORM_GRAD] = op_layernorm_grad,
    [OP_ROPE] = op_rope,
    [OP_ATTENTION] = op_attention,
    [OP_ATTENTION_GRAD] = op_attention_grad,
    [OP_SWIGLU] = op_swiglu,
    [OP_SWIGLU_GRAD] = op_swiglu_grad,
    [OP_GELU] = op_gelu,
    [OP_GELU_GRAD] = op_gelu_grad,
    [OP_GEGLU] = op_geglu,
    [OP_GEGLU_GRAD] = op_geglu_grad,
    [OP_GELU_ERF] = op_gelu_erf,
    [OP_GELU_ERF_GRAD] = op_gelu_erf_grad,
    [OP_SCALE] = op_scale,
    [OP_CAP] = op_cap,
    [OP_CAP_GRAD] = op_cap_grad,
    [OP_RELU] = op_relu,
    [OP_RELU_GRAD] = op_relu_grad,
    [OP_ADD] = op_add,
    [OP_CROSS_ENTROPY] = op_cross_entropy,
    [OP_ATTENTION_JOIN] = op_attention_join,
    [OP_COPY_COLS] = op_copy_cols,
    [OP_ATTENTION_CACHE] = op_attention_cached,
    [OP_LAST_ROWS] = op_last_rows,
    [OP_POSITIONS] = op_positions,
    [OP_DROPOUT] = op_dropout,
    [OP_LOSS_PART] = op_loss_part,
    [OP_LOSS_JOIN] = op_loss_join,
};
