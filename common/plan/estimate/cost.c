/* Lower bounds for the work of an op: the operations of its matmuls, and the bytes that pass between memory and the
 * processor when every operand is accessed once. A forecast divides them by a device's rates; a benchmark divides them
 * by the measured time.
 *
 * Most kinds access their operands' buffers whole, so their cost is one sum over operands. `kinds` has the exceptions:
 * tables of which only some rows are read, column ranges of one matrix, additions in place. */
#include "common/plan/estimate/cost.h"

/* Of rows that arrive, whose number depends on the routing, as many as if all experts are equally busy. */
static int64_t dim(const struct program *p, struct graph_dim d, int64_t samples)
{
    if (d.sym == SYM_ARRIVED)
        return d.factor * ((p->mean_arrived * samples + p->max_samples - 1) / p->max_samples);
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

/* Whether operand i is both read and written. Of a matmul these are the result with OPF_ACC, and the sums. */
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

/* Counts elements instead of buffers, because the op may use only some rows or columns of the result and of a
 * parameter. */
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

/* Each row is multiplied with one expert's matrix. The matrices of all experts are read, or written, once. */
static struct op_cost grouped(const struct program *p, const struct op *op, int64_t samples)
{
    struct op_cost cost = whole(p, op, samples);
    if (op->arg[4].buffer >= 0) /* of borrowed experts as many as there may be; at least one is likely */
        cost.bytes -= (double)arg_bytes(p, op, 4, samples) * (1 - 1 / (double)op->seq_kv);
    cost.flops = 2 * (double)dim(p, op->m, samples) * (double)op->n.factor * (double)op->k.factor;
    if (op->flags & OPF_ACC)
        cost.bytes += arg_bytes(p, op, 2, samples);
    return cost;
}

/* Counts the rows of the table that the tokens name, at most once each, and the positions of one sequence. */
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

/* 1 + 2 + ... + n; 0 for n <= 0 */
static double triangle(double n)
{
    return n > 0 ? n * (n + 1) / 2 : 0;
}

/* The number of pairs (i, j), i < seq and j < keys, with j < i + shift: of row i clamp(i + shift, 0, keys). */
static double pairs_before(double seq, double keys, double shift)
{
    return triangle(seq - 1 + shift) - triangle(shift - 1) - triangle(seq - 1 + shift - keys) +
           triangle(shift - 1 - keys);
}

/* The number of (query, key) pairs of a sample and head: with a causal mask those with j < i + 1, and with a window not
 * those with j < i + pos0 - pos0_kv - window + 1. Where documents begin is not known here. */
static double visible_pairs(const struct op *op, double seq, double keys)
{
    double pairs = op->flags & OPF_CAUSAL ? pairs_before(seq, keys, 1) : seq * keys;
    if (op->window)
        pairs -= pairs_before(seq, keys, (double)(op->pos0 - op->pos0_kv - op->window + 1));
    return pairs;
}

/* q, o and their gradients have `heads` times head_dim columns, k and v kv_heads times head_dim. Each pair of positions
 * takes two matmuls forward and five backward. Queries and keys may be segments of a sequence. */
static struct op_cost attention(const struct program *p, const struct op *op, int64_t samples)
{
    bool grad = op->kind == OP_ATTENTION_GRAD;
    int64_t batch = dim(p, op->m, samples), seq = op->seq ? op->seq : p->seq, keys = op->seq_kv ? op->seq_kv : seq;
    double t = (double)(batch * seq), type = (double)dtype_bytes(p->dtype);
    double q = t * (double)(op->heads * op->head_dim);
    double kv = (double)(batch * keys) * (double)(op->kv_heads * op->head_dim);
    double pairs = (double)(batch * op->heads * op->head_dim) * visible_pairs(op, (double)seq, (double)keys);
    double lse = t * (double)op->heads * (double)dtype_bytes(p->wide);
    if (grad)
        return (struct op_cost){10 * pairs, (4 * q + 4 * kv) * type + lse};
    return (struct op_cost){4 * pairs, (2 * q + 2 * kv) * type + lse};
}

/* o and lse of one part are read and written, those of the other part are read. */
static struct op_cost attention_join(const struct program *p, const struct op *op, int64_t samples)
{
    double rows = (double)(dim(p, op->m, samples) * op->seq * op->heads);
    double type = (double)dtype_bytes(p->dtype), wide = (double)dtype_bytes(p->wide);
    return (struct op_cost){0, 3 * rows * ((double)op->head_dim * type + wide)};
}

/* Counts the copied columns of both operands, or the elements that a shift sends and receives. */
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

/* Blocks of squares are a part of their buffer, so elements are counted instead. */
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
    [OP_COPY_COLS] = part,      [OP_SHIFT] = part,  [OP_GROUPED_GEMM] = grouped,
};

/* Later rounds have no rows unless a rank has more than it has room for. */
void plan_op_cost(const struct program *p, const struct op *op, int64_t samples, struct op_cost *ret)
{
    if (op->round > 1) {
        *ret = (struct op_cost){0, 0};
        return;
    }
    *ret = (kinds[op->kind] ? kinds[op->kind] : whole)(p, op, samples);
}
