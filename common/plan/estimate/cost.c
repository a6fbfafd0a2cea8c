/* What an op must at least do: the operations of its products and the bytes that have to pass between memory and the
 * processor when every operand is touched once. A forecast divides by what the device can do; a benchmark by what it
 * did.
 *
 * Most kinds move their operands' buffers whole, so the rule is one sum over operands; the rows of `kinds` are those
 * that do not: tables of which only some rows are read, several columns of one matrix, additions in place. */
#include "common/plan/estimate/cost.h"

static int64_t dim(const struct program *p, struct graph_dim d, int64_t samples)
{
    return program_dim(p, d, samples);
}

static int64_t buffer_moved(const struct program *p, int buffer, int64_t samples)
{
    const struct buffer *b = &p->buffers[buffer];
    int64_t bytes = (int64_t)dtype_bytes(b->dtype);
    for (int d = 0; d < b->ndim; d++)
        bytes *= dim(p, b->dim[d], samples);
    return bytes;
}

static int64_t arg_bytes(const struct program *p, const struct op *op, int i, int64_t samples)
{
    return op->arg[i].buffer < 0 ? 0 : buffer_moved(p, op->arg[i].buffer, samples);
}

/* What is added to is read and written; of a product's operands only a result with OPF_ACC and the sums are. */
static bool is_added(const struct op *op, int i)
{
    if (op->kind == OP_GEMM)
        return (i == 3 && (op->flags & OPF_ACC)) || i > 4;
    return op_operands(op->kind)[i] == 'a';
}

static struct op_cost whole(const struct program *p, const struct op *op, int64_t samples)
{
    struct op_cost cost = {0, 0};
    for (int i = 0; op_operands(op->kind)[i]; i++)
        cost.bytes += (is_added(op, i) ? 2 : 1) * arg_bytes(p, op, i, samples);
    return cost;
}

/* Of the result and of a parameter it may be some rows or columns only. */
static struct op_cost gemm(const struct program *p, const struct op *op, int64_t samples)
{
    const double m = (double)dim(p, op->m, samples), n = (double)dim(p, op->n, samples);
    const double k = (double)dim(p, op->k, samples), elements[] = {m * k, k * n, n, m * n, m * n, m, n};
    struct op_cost cost = {2 * m * n * k, 0};
    for (int i = 0; i < 7; i++)
        if (op->arg[i].buffer >= 0)
            cost.bytes +=
                (is_added(op, i) ? 2 : 1) * elements[i] * (double)dtype_bytes(p->buffers[op->arg[i].buffer].dtype);
    return cost;
}

/* Of a table the rows that the tokens name, at most once each; the positions are as long as the sequence. */
static struct op_cost embed(const struct program *p, const struct op *op, int64_t samples)
{
    bool grad = op->kind == OP_EMBED_GRAD;
    int64_t t = dim(p, op->m, samples), d = dim(p, op->n, samples), type = (int64_t)dtype_bytes(p->dtype);
    const struct buffer *table = &p->buffers[op->arg[grad ? 2 : 1].buffer];
    int64_t rows = table->dim[0].factor < t ? table->dim[0].factor : t, width = (int64_t)dtype_bytes(table->dtype);
    int64_t pos = op->arg[grad ? 3 : 2].buffer < 0 ? 0 : (op->seq ? op->seq : p->seq) * d * width;
    struct op_cost cost = {0, (double)(t * 4 + t * d * type)};
    cost.bytes += (double)((grad ? 2 : 1) * (rows * d * width + pos));
    return cost;
}

/* q, o and their gradients have `heads` columns of head_dim, k and v kv_heads. Two products of a pair of positions
 * forward, five backward; causal, half of the pairs and the diagonal. Queries and keys may be parts of a sequence. */
static struct op_cost attention(const struct program *p, const struct op *op, int64_t samples)
{
    bool grad = op->kind == OP_ATTENTION_GRAD;
    int64_t batch = dim(p, op->m, samples), seq = op->seq ? op->seq : p->seq, keys = op->seq_kv ? op->seq_kv : seq;
    double t = (double)(batch * seq), type = (double)dtype_bytes(p->dtype);
    double q = t * (double)(op->heads * op->head_dim);
    double kv = (double)(batch * keys) * (double)(op->kv_heads * op->head_dim);
    double pairs = q * (op->flags & OPF_CAUSAL ? ((double)keys + 1) / 2 : (double)keys);
    double lse = t * (double)op->heads * (double)dtype_bytes(p->wide);
    if (grad)
        return (struct op_cost){10 * pairs, (4 * q + 4 * kv) * type + lse};
    return (struct op_cost){4 * pairs, (2 * q + 2 * kv) * type + lse};
}

/* o and lse of one part are read and written, the other's are read. */
static struct op_cost attention_join(const struct program *p, const struct op *op, int64_t samples)
{
    double rows = (double)(dim(p, op->m, samples) * op->seq * op->heads);
    double type = (double)dtype_bytes(p->dtype), wide = (double)dtype_bytes(p->wide);
    return (struct op_cost){0, 3 * rows * ((double)op->head_dim * type + wide)};
}

/* Some columns of both, or as many elements of what travels. */
static struct op_cost part(const struct program *p, const struct op *op, int64_t samples)
{
    double type = (double)dtype_bytes(p->buffers[op->arg[0].buffer].dtype);
    double in = (double)(dim(p, op->m, samples) * dim(p, op->n, samples));
    double out = op->kind == OP_SHIFT ? (double)dim(p, op->k, samples) : in;
    return (struct op_cost){0, (in + out) * type};
}

static struct op_cost rope(const struct program *p, const struct op *op, int64_t samples)
{
    double n = (double)(dim(p, op->m, samples) * op->heads * op->head_dim);
    return (struct op_cost){0, 2 * n * (double)dtype_bytes(p->dtype)};
}

/* The norm's blocks and the losses are parts of buffers. */
static struct op_cost squares(const struct program *p, const struct op *op, int64_t samples)
{
    double n = (double)dim(p, op->m, samples);
    return (struct op_cost){0, n * (double)dtype_bytes(p->wide) + n / (double)dim(p, op->n, samples) * 8};
}

static struct op_cost adamw(const struct program *p, const struct op *op, int64_t samples)
{
    return (struct op_cost){0, 7.0 * (double)dim(p, op->m, samples) * (double)dtype_bytes(p->wide)};
}

typedef struct op_cost (*cost_fn)(const struct program *p, const struct op *op, int64_t samples);

static const cost_fn kinds[OP_KIND_COUNT] = {
    [OP_GEMM] = gemm,           [OP_EMBED] = embed, [OP_EMBED_GRAD] = embed,
    [OP_ATTENTION] = attention, [OP_ROPE] = rope,   [OP_ATTENTION_GRAD] = attention,
    [OP_NORM] = squares,        [OP_ADAMW] = adamw, [OP_ATTENTION_JOIN] = attention_join,
    [OP_COPY_COLS] = part,      [OP_SHIFT] = part,
};

void plan_op_cost(const struct program *p, const struct op *op, int64_t samples, struct op_cost *ret)
{
    *ret = (kinds[op->kind] ? kinds[op->kind] : whole)(p, op, samples);
}
