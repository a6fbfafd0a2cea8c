/* How far every operand reaches, at the symbols' bounds: an op may not leave its buffers; and of which type its
 * elements are: what is computed with, wide, or what the host has. */
#include "common/plan/check.h"

#include <string.h>

/* Elements of each operand: M m * n, t m, n n, s one, b a block per n of m, - not known from the op. The
 * kinds with strides have a function below. */
static const char *const shapes[OP_KIND_COUNT] = {
    [OP_ZERO] = "M",
    [OP_COPY] = "MM",
    [OP_EMBED] = "t--M",
    [OP_EMBED_GRAD] = "tM--",
    [OP_BIAS_GRAD] = "Mn",
    [OP_RMSNORM] = "MMnMMt",
    [OP_RMSNORM_GRAD] = "MntMMMn",
    [OP_LAYERNORM] = "MMnnMMtt",
    [OP_LAYERNORM_GRAD] = "MnttMMMnn",
    [OP_SWIGLU] = "MMM",
    [OP_SWIGLU_GRAD] = "MMMMM",
    [OP_GELU] = "MM",
    [OP_GELU_GRAD] = "MMM",
    [OP_RELU] = "MM",
    [OP_RELU_GRAD] = "MMM",
    [OP_ADD] = "MMM",
    [OP_CROSS_ENTROPY] = "Mts",
    [OP_ALL_REDUCE] = "t",
    [OP_TREE_LEAF] = "tt",
    [OP_TREE_REDUCE] = "tt",
    [OP_NORM] = "tb",
    [OP_CLIP] = "tnss",
    [OP_ADAMW] = "tttts",
    [OP_SNAPSHOT] = "---",
    [OP_CAST] = "tt",
};

/* Types of each operand: d program.dtype, w program.wide, e either, f float64, i int32, - any. */
static const char *const types[OP_KIND_COUNT] = {
    [OP_ZERO] = "-",
    [OP_COPY] = "dd",
    [OP_EMBED] = "iddd",
    [OP_EMBED_GRAD] = "idww",
    [OP_GEMM] = "dddedww",
    [OP_CAST] = "wd",
    [OP_BIAS_GRAD] = "dw",
    [OP_RMSNORM] = "dddddw",
    [OP_RMSNORM_GRAD] = "ddwdddw",
    [OP_LAYERNORM] = "ddddddww",
    [OP_LAYERNORM_GRAD] = "ddwwdddww",
    [OP_ROPE] = "d",
    [OP_ATTENTION] = "ddddw",
    [OP_ATTENTION_GRAD] = "ddddwdddd",
    [OP_SWIGLU] = "ddd",
    [OP_SWIGLU_GRAD] = "ddddd",
    [OP_GELU] = "dd",
    [OP_GELU_GRAD] = "ddd",
    [OP_RELU] = "dd",
    [OP_RELU_GRAD] = "ddd",
    [OP_ADD] = "ddd",
    [OP_CROSS_ENTROPY] = "dif",
    [OP_ALL_REDUCE] = "-",
    [OP_TREE_LEAF] = "ww",
    [OP_TREE_REDUCE] = "ww",
    [OP_NORM] = "wf",
    [OP_CLIP] = "ffff",
    [OP_ADAMW] = "wwwwf",
    [OP_SNAPSHOT] = "www",
};

static bool type_legal(const struct program *p, const struct op *op, int i, enum dtype dtype)
{
    switch (types[op->kind][i]) {
    case 'd':
        return dtype == p->dtype;
    case 'w':
        return dtype == p->wide;
    case 'e': /* an activation's or a parameter's gradient */
        return dtype == p->dtype || (dtype == p->wide && !(op->flags & (OPF_GELU | OPF_GELU_GRAD)));
    case 'f':
        return dtype == DT_F64;
    case 'i':
        return dtype == DT_I32;
    default:
        return true;
    }
}

static int64_t rows(int64_t n, int64_t stride, int64_t width)
{
    return n > 0 ? (n - 1) * stride + width : 0;
}

static int64_t gemm_extent(const struct op *op, int i, int64_t m, int64_t n, int64_t k)
{
    if (i == 0)
        return op->flags & OPF_TRANS_A ? rows(k, op->lda, m) : rows(m, op->lda, k);
    if (i == 1)
        return op->flags & OPF_TRANS_B ? rows(n, op->ldb, k) : rows(k, op->ldb, n);
    if (i == 3 || i == 4)
        return rows(m, op->ldc, n);
    return i == 5 ? m : n; /* a_sum; bias, b_sum */
}

/* q, k, v, o, lse, d_o, d_q, d_k, d_v */
static int64_t attention_extent(const struct program *p, const struct op *op, int i, int64_t samples)
{
    int64_t tokens = samples * p->seq, q = op->heads * op->head_dim, kv = op->kv_heads * op->head_dim;
    switch (i) {
    case 0:
    case 6:
        return rows(tokens, op->lda, q);
    case 1:
    case 2:
    case 7:
    case 8:
        return rows(tokens, op->ldb, kv);
    case 4:
        return tokens * op->heads;
    default:
        return rows(tokens, op->ldc, q);
    }
}

/* Elements from the operand's start that the op may touch; 0 where it cannot be told. */
static int64_t extent(const struct program *p, const struct op *op, int i)
{
    int64_t m = program_dim(p, op->m, p->max_samples), n = program_dim(p, op->n, p->max_samples);
    if (op->kind == OP_GEMM)
        return gemm_extent(op, i, m, n, program_dim(p, op->k, p->max_samples));
    if (op->kind == OP_ATTENTION || op->kind == OP_ATTENTION_GRAD)
        return attention_extent(p, op, i, m);
    if (op->kind == OP_ROPE)
        return rows(m, op->lda, op->heads * op->head_dim);
    switch (shapes[op->kind][i]) {
    case 'M':
        return m * n;
    case 't':
        return m;
    case 'n':
        return n;
    case 's':
        return 1;
    case 'b':
        return n > 0 ? (m + n - 1) / n : 0;
    default:
        return 0;
    }
}

err_t check_operand_shapes(const struct check_at *at, const struct op *op, struct why *why)
{
    const struct program *p = at->p;
    for (int i = 0; op_mode(op, i); i++) {
        if (op->arg[i].buffer < 0)
            continue;
        const struct buffer *b = &p->buffers[op->arg[i].buffer];
        int64_t size = (int64_t)dtype_bytes(b->dtype);
        if (size == 0)
            return check_fail(at, why, "operand %s has no element type", b->name);
        if (!type_legal(p, op, i, b->dtype))
            return check_fail(at, why, "takes operand %d, %s, in another type than %s", i, b->name,
                              dtype_name(b->dtype));
        /* In an action without a microbatch: all instances, one behind the other. */
        bool all = b->slot_index == SLOT_MICRO && p->actions[at->action].micro < 0;
        int64_t room = (b->bytes + (all ? (b->slots - 1) * b->slot_bytes : 0)) / size;
        int64_t end = program_dim(p, op->arg[i].offset, p->max_samples) + op->arg[i].col + extent(p, op, i);
        if (end > room)
            return check_fail(at, why, "reaches element %lld of operand %s, which has %lld", (long long)end, b->name,
                              (long long)room);
    }
    return OK;
}
