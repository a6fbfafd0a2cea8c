/* Extents and types of operands. With every symbol at its bound, an op must stay inside its buffers and inside the
 * columns of a matrix with padded rows. Element types are the compute type, the wide type, or the types of the host's
 * data. */
#include "common/plan/check/check.h"
#include "common/plan/check/operands.h"

#include <string.h>

static bool type_legal(const struct program *p, const struct op *op, int i, enum dtype dtype)
{
    switch (check_operands[op->kind].type[i]) {
    case 'd':
        return dtype == p->dtype;
    case 'w':
        return dtype == p->wide;
    case 'e': /* the gradient of an activation or of a parameter */
        return dtype == p->dtype || (dtype == p->wide && !(op->flags & (OPF_GELU | OPF_GELU_GRAD)));
    case 'f':
        return dtype == DT_F64;
    case 'i':
        return dtype == DT_I32;
    case '=':
        return dtype == p->buffers[op->arg[0].buffer].dtype;
    default:
        return true;
    }
}

/* An operand with a stride: n rows of `width` elements that begin `stride` elements apart. An operand without one is a
 * single row with stride -1. */
struct operand_rows {
    int64_t n, width, stride;
};

static struct operand_rows one_row(int64_t elements)
{
    return (struct operand_rows){1, elements, -1};
}

static struct operand_rows gemm_rows(const struct op *op, int i, int64_t m, int64_t n, int64_t k)
{
    if (i == 0)
        return op->flags & OPF_TRANS_A ? (struct operand_rows){k, m, op->lda} : (struct operand_rows){m, k, op->lda};
    if (i == 1)
        return op->flags & OPF_TRANS_B ? (struct operand_rows){n, k, op->ldb} : (struct operand_rows){k, n, op->ldb};
    if (i == 3 || i == 4)
        return (struct operand_rows){m, n, op->ldc};
    return one_row(i == 5 ? m : n); /* a_sum; bias, b_sum */
}

/* Operands q, k, v, o, lse[, d_o, d_q, d_k, d_v], begin. Queries, o, lse and begin have seq tokens of a sample, keys
 * and values seq_kv. */
static struct operand_rows attention_rows(const struct program *p, const struct op *op, int i, int64_t samples)
{
    int64_t seq = op->seq ? op->seq : p->seq, seq_kv = op->seq_kv ? op->seq_kv : seq;
    int64_t q = op->heads * op->head_dim, kv = op->kv_heads * op->head_dim;
    if (i == ATTENTION_BEGIN(op->kind))
        return one_row(samples * seq);
    switch (i) {
    case 0:
    case 6:
        return (struct operand_rows){samples * seq, q, op->lda};
    case 1:
    case 2:
    case 7:
    case 8:
        return (struct operand_rows){samples * seq_kv, kv, op->ldb};
    case 4:
        return one_row(samples * seq * op->heads);
    default:
        return (struct operand_rows){samples * seq, q, op->ldc};
    }
}

/* Operands q, k, v, cached keys, cached values, o. */
static struct operand_rows cached_rows(const struct op *op, int i, int64_t m)
{
    const int64_t q = op->heads * op->head_dim, kv = op->kv_heads * op->head_dim;
    if (i == 0 || i == 5)
        return (struct operand_rows){m, q, i ? op->ldc : op->lda};
    return i < 3 ? (struct operand_rows){m, kv, op->ldb} : (struct operand_rows){op->seq * op->seq_kv, kv, kv};
}

/* Operands x, of all tokens, and y, of runs. */
static struct operand_rows last_rows_of(const struct program *p, const struct op *op, int i, int64_t m, int64_t n)
{
    return i ? (struct operand_rows){m, n, n} : (struct operand_rows){p->max_samples, n, op->lda};
}

/* o, lse, o2, lse2 */
static struct operand_rows join_rows(const struct program *p, const struct op *op, int i, int64_t samples)
{
    int64_t tokens = samples * (op->seq ? op->seq : p->seq), stride = i == 2 && op->ldb ? op->ldb : op->ldc;
    return i % 2 ? one_row(tokens * op->heads) : (struct operand_rows){tokens, op->heads * op->head_dim, stride};
}

static int64_t own_extent(const struct program *p, const struct op *op, int64_t m)
{
    int64_t lo, hi;
    int tp = p->mesh.size[AXIS_TP];
    layout_split(m, tp, p->rank % tp, &lo, &hi);
    return (hi - lo) * program_dim(p, op->n, p->max_samples);
}

static int64_t shape_extent(const struct program *p, const struct op *op, char shape, int64_t m, int64_t n)
{
    int64_t k = program_dim(p, op->k, p->max_samples);
    switch (shape) {
    case 'M':
        return m * n;
    case 'K':
        return m * k;
    case 'R':
        return m * n * k;
    case 'T':
        return 2 * n + 2;
    case 'e':
        return n + 1;
    case 'c': /* a table of choices; check_drop checks its size */
        return 1;
    case 't':
        return m;
    case 'n':
        return n;
    case 'k':
        return k;
    case 's':
        return 1;
    case 'o':
        return own_extent(p, op, m);
    case '3':
        return 3 * m;
    case 'p':
        return 3 * m * k;
    case 'g':
        return m * p->groups[op->group].n;
    case 'b':
        return n > 0 ? (m + n - 1) / n : 0;
    default:
        return 0;
    }
}

/* Operands a, b, c, offsets, more. With OPF_TRANS_A the m rows are the inner dimension, and a result has k x n
 * elements.
 */
static struct operand_rows grouped_rows(const struct op *op, int i, int64_t m, int64_t n, int64_t k)
{
    const bool ta = op->flags & OPF_TRANS_A;
    const int64_t own = op->seq - op->seq_kv;
    if (i == 4)
        return ta                        ? (struct operand_rows){op->seq_kv * k, n, n}
               : op->flags & OPF_TRANS_B ? (struct operand_rows){op->seq_kv * n, k, k}
                                         : (struct operand_rows){op->seq_kv * k, n, n};
    struct operand_rows rows = {m, i == 0 || (i == 1 && !ta) ? k : n, i == 0 || (i == 1 && !ta) ? k : n};
    if (i == 3)
        return one_row(op->seq + 1);
    if (i == 1 && !ta)
        return op->flags & OPF_TRANS_B ? (struct operand_rows){own * n, k, k} : (struct operand_rows){own * k, n, n};
    if (i == 2 && ta)
        rows.n = own * k;
    return rows;
}

/* Matrices of own experts, all, of borrowed ones; gradients of borrowed ones, all, room for one, of own ones. */
static struct operand_rows borrow_rows(const struct program *p, const struct op *op, int i, int64_t m, int64_t n,
                                       int64_t k)
{
    const bool back = op->kind == OP_GIVE_BACK;
    const int64_t rows[] = {back ? m : k, 0, back ? 1 : m, k};
    return one_row(i == 1 ? (op->group >= 0 ? p->groups[op->group].n : 1) : rows[i] * n);
}

/* Operands x, all, y; all, index, inverse, offsets. */
static struct operand_rows exchange_rows_of(const struct program *p, const struct op *op, int i, int64_t m, int64_t n,
                                            int64_t k)
{
    const int64_t members = op->group >= 0 ? p->groups[op->group].n : 1;
    if (op->kind == OP_ARRIVE)
        return one_row(i == 0 ? m : i > 2 ? 1 : p->max_arrived); /* offsets: of one expert at least */
    return i == 1 ? one_row(members) : (struct operand_rows){i == 0 ? m : k, n, n};
}

/* Operands x, all, y; all, sources, choices; x, choices, weights, rows. */
static struct operand_rows gathered_rows(const struct program *p, const struct op *op, int i, int64_t m, int64_t n,
                                         int64_t k)
{
    const int64_t members = op->group >= 0 ? p->groups[op->group].n : 1;
    if (op->kind == OP_SOURCES)
        return one_row(i == 0 ? m : i == 1 ? op->seq : p->max_arrived);
    if (op->kind == OP_GATHER_TOKENS)
        return i == 1 ? one_row(members) : (struct operand_rows){i == 0 ? m : op->seq, n, n};
    if (i == 1)
        return one_row(m);
    return (struct operand_rows){i == 3 ? m : op->seq, i == 2 ? k : n, i == 2 ? k : n};
}

static struct operand_rows rows_of(const struct program *p, const struct op *op, int i)
{
    int64_t m = program_dim(p, op->m, p->max_samples), n = program_dim(p, op->n, p->max_samples);
    switch (op->kind) {
    case OP_GEMM:
        return gemm_rows(op, i, m, n, program_dim(p, op->k, p->max_samples));
    case OP_ATTENTION:
    case OP_ATTENTION_GRAD:
        return attention_rows(p, op, i, m);
    case OP_ATTENTION_CACHE:
        return cached_rows(op, i, m);
    case OP_LAST_ROWS:
        return last_rows_of(p, op, i, m, n);
    case OP_EXCHANGE:
    case OP_ARRIVE:
        return exchange_rows_of(p, op, i, m, n, program_dim(p, op->k, p->max_samples));
    case OP_BORROW:
    case OP_GIVE_BACK:
        return borrow_rows(p, op, i, m, n, program_dim(p, op->k, p->max_samples));
    case OP_GATHER_TOKENS:
    case OP_SOURCES:
    case OP_ROWS_PICK:
        return gathered_rows(p, op, i, m, n, program_dim(p, op->k, p->max_samples));
    case OP_GROUPED_GEMM:
        return grouped_rows(op, i, m, n, program_dim(p, op->k, p->max_samples));
    case OP_ATTENTION_JOIN:
        return join_rows(p, op, i, m);
    case OP_ROPE:
        return (struct operand_rows){m, op->heads * op->head_dim, op->lda};
    default:
        break;
    }
    const char shape = check_operands[op->kind].shape[i];
    if (shape == 'A' || shape == 'B')
        return (struct operand_rows){m, n, shape == 'A' ? op->lda : op->ldb};
    return one_row(shape_extent(p, op, shape, m, n));
}

int64_t check_extent(const struct program *p, const struct op *op, int i)
{
    const struct operand_rows r = rows_of(p, op, i);
    return r.n > 0 ? (r.n - 1) * r.stride + r.width : 0;
}

/* Checks that an op with a stride uses the matrix's own row length and stays inside its columns, and that an op without
 * a stride reads dense rows. */
static err_t check_rows(const struct check_at *at, const struct op *op, int i, struct why *why)
{
    const struct op_operand *a = &op->arg[i];
    const struct buffer *b = &at->p->buffers[a->buffer];
    const struct operand_rows r = rows_of(at->p, op, i);
    if (r.stride < 0 && b->pitch && r.width)
        return check_fail(at, why, "reads %s as dense, but its rows are %lld elements apart", b->name,
                          (long long)b->pitch);
    if (r.stride < 0 || r.n == 0 || r.width == 0 || b->ndim != 2)
        return OK;
    const int64_t apart = b->pitch ? b->pitch : b->dim[1].factor, begins = apart ? a->offset.factor % apart : 0;
    bool constant = a->offset.sym == SYM_ONE;
    if (r.stride == apart && (constant || begins == 0) && begins + a->col + r.width <= b->dim[1].factor)
        return OK;
    return check_fail(at, why,
                      "uses columns %lld to %lld of %s with rows %lld apart; it has %lld columns with rows %lld apart",
                      (long long)(begins + a->col), (long long)(begins + a->col + r.width) - 1, b->name,
                      (long long)r.stride, (long long)b->dim[1].factor, (long long)apart);
}

/* ---- matmuls with parameters, and embeddings ---- */

/* Checks that a matmul reads all of this rank's part of a parameter, or computes all of its gradient. */
static err_t check_matrix(const struct check_at *at, const struct graph *g, int buffer, int64_t m, int64_t n,
                          int64_t stride, struct why *why)
{
    const struct buffer *b = &at->p->buffers[buffer];
    const struct sharding_param *q = b->tensor >= 0 ? &at->p->sharding.param[b->tensor] : NULL;
    if (!q || g->tensors[b->tensor].kind != GT_PARAM || (q->rows == m && q->cols == n && stride == n))
        return OK;
    return check_fail(at, why, "uses %lld x %lld elements of %s with rows %lld apart; it has %lld x %lld on this rank",
                      (long long)m, (long long)n, b->name, (long long)stride, (long long)q->rows, (long long)q->cols);
}

static err_t check_matmul(const struct check_at *at, const struct graph *g, const struct op *op, struct why *why)
{
    bool ta = op->flags & OPF_TRANS_A, tb = op->flags & OPF_TRANS_B;
    int64_t most = at->p->max_samples;
    int64_t m = program_dim(at->p, op->m, most), n = program_dim(at->p, op->n, most);
    int64_t k = program_dim(at->p, op->k, most);
    int64_t lo, hi, width;
    bool columns = parts_columns(at->p, g, op, &lo, &hi, &width); /* parts.c checks that the other columns follow */
    err_t e = check_matrix(at, g, op->arg[0].buffer, ta ? k : m, ta ? m : k, op->lda, why);
    if (!e && !columns)
        e = check_matrix(at, g, op->arg[1].buffer, tb ? n : k, tb ? k : n, op->ldb, why);
    return e ? e : check_matrix(at, g, op->arg[3].buffer, m, n, op->ldc, why);
}

/* The same for the products of experts: of the matrices of all experts, one below the other. */
static err_t check_experts(const struct check_at *at, const struct graph *g, const struct op *op, struct why *why)
{
    const struct program *p = at->p;
    const int i = op->flags & OPF_TRANS_A ? 2 : 1;
    if (p->balanced != (op->arg[4].buffer >= 0))
        return check_fail(at, why, p->balanced ? "leaves out the rows of borrowed experts" : "borrows experts");
    const struct operand_rows r =
        grouped_rows(op, i, program_dim(p, op->m, p->max_samples), op->n.factor, op->k.factor);
    return check_matrix(at, g, op->arg[i].buffer, r.n, r.width, r.stride, why);
}

/* Checks that the table has the vocabulary rows of this tp rank, and that the op names the same range. */
static err_t check_vocab(const struct check_at *at, const struct graph *g, const struct op *op, struct why *why)
{
    const struct buffer *b = &at->p->buffers[op->arg[op->kind == OP_EMBED ? 1 : 2].buffer];
    const struct graph_cut *cut = b->tensor >= 0 ? &g->tensors[b->tensor].cut : NULL;
    int64_t lo = 0, hi = cut ? g->tensors[b->tensor].dim[0].factor : 0;
    bool said = op->vocab_lo || op->vocab_hi;
    if (!cut)
        return OK;
    if (cut->segments && cut->dim == 0)
        sharding_cut(cut, at->p->mesh.size[AXIS_TP], at->p->sharding.coord[AXIS_TP], &lo, &hi);
    if ((said && op->vocab_lo == lo && op->vocab_hi == hi) || (!said && hi == g->tensors[b->tensor].dim[0].factor))
        return OK;
    return check_fail(at, why, "reads rows %lld to %lld of the vocabulary from %s, which has %lld to %lld on this rank",
                      (long long)op->vocab_lo, (long long)op->vocab_hi - 1, b->name, (long long)lo, (long long)hi - 1);
}

/* Checks that random numbers follow from positions in the global batch: the op uses the rows of its tokens, the columns
 * that this rank has, and the node's own random stream. */
static err_t check_random(const struct check_at *at, const struct graph *g, const struct op *op, struct why *why)
{
    bool own = op->m.sym == SYM_OWN, rows = own == (op->arg[1].offset.sym == SYM_OWN0);
    const struct graph_node *node = op->node >= 0 ? &g->nodes[op->node] : NULL;
    const struct graph_tensor *x = node ? &g->tensors[node->in[0]] : NULL;
    int64_t lo = 0, hi;
    if (!rows || (!own && op->arg[1].offset.factor))
        return check_fail(at, why, "uses the positions of other tokens than those that it processes");
    if (op->kind != OP_DROPOUT)
        return OK;
    if (x && x->cut.segments)
        sharding_cut(&x->cut, at->p->mesh.size[AXIS_TP], at->p->sharding.coord[AXIS_TP], &lo, &hi);
    lo = x && x->cut.segments ? lo * (x->dim[1].factor / x->cut.units) : 0;
    if (!node || !x || op->site != node->site || op->col0 != lo || op->k.factor != x->dim[1].factor)
        return check_fail(at, why,
                          "draws random numbers of site %d from column %lld of %lld, which are not those of %s",
                          op->site, (long long)op->col0, (long long)op->k.factor, x ? x->name : "its value");
    return OK;
}

/* The buffer of a state of an op's router, input `i` of its node; -1: it has none. */
static int state_of(const struct check_at *at, const struct graph *g, const struct op *op, int i)
{
    const int t = g->nodes[op->node].in[i];
    return t < 0 ? -1 : at->p->param_buffer[t];
}

/* Checks that a router uses the positions of its own tokens, and numbers of samples only with positions. */
static err_t check_router(const struct check_at *at, const struct graph *g, const struct op *op, struct why *why)
{
    const int i = op->kind == OP_ROUTE ? 1 : 4, numbers = op->kind == OP_ROUTE ? 4 : 5;
    const struct graph_router *r = op->node >= 0 ? &g->nodes[op->node].router : NULL;
    bool own = op->m.sym == SYM_OWN, samples = r && r->scope == AUX_SAMPLE && op->arg[numbers].buffer >= 0;
    if (r && op->kind == OP_ROUTE && op->arg[7].buffer != state_of(at, g, op, 1))
        return check_fail(at, why, "chooses without the biases of its router, or with others");
    if (r && op->kind == OP_ROUTE_GRAD && r->scope == AUX_BATCH && op->arg[5].buffer != state_of(at, g, op, 2))
        return check_fail(at, why, "balances the batch without the numbers of the step before, or with others");
    if (!r || op->n.factor != r->experts || op->k.factor != r->k)
        return check_fail(at, why, "chooses %lld of %lld experts, which is not what its router does",
                          (long long)op->k.factor, (long long)op->n.factor);
    if (samples != (op->arg[i].buffer >= 0))
        return check_fail(at, why,
                          samples ? "counts by sample without the samples of its tokens"
                                  : "reads positions that it does not need");
    if (samples && (own != (op->arg[i].offset.sym == SYM_OWN0) || (!own && op->arg[i].offset.factor)))
        return check_fail(at, why, "uses the positions of other tokens than those that it processes");
    return OK;
}

/* Checks that a choice is kept or dropped by the table of the router's samples, and of the tokens that the op has. */
static err_t check_drop(const struct check_at *at, const struct graph *g, const struct op *op, struct why *why)
{
    const int rows = op->kind == OP_CHOICES ? 2 : 1, table = op->kind == OP_CHOICES ? 3 : 2;
    const struct graph_node *n = op->node >= 0 ? &g->nodes[op->node] : NULL;
    const struct program *p = at->p;
    bool own = op->m.sym == SYM_OWN;
    if (!n || n->op != GO_DROP || op->n.factor != n->router.experts || op->k.factor != n->router.k)
        return check_fail(at, why, "drops choices of another router than its own");
    const bool weights = n->router.drop == DROP_PROBABILITY;
    const int64_t size = (weights ? 2 : 1) * p->seq * op->k.factor;
    const struct buffer *b = &p->buffers[op->arg[table].buffer];
    if (b->ndim != 1 || b->dim[0].sym != SYM_SAMPLES || b->dim[0].factor != size || op->arg[table].offset.factor)
        return check_fail(at, why, "needs a table of %lld numbers for each sample", (long long)size);
    if (op->kind == OP_CHOICES && weights != (op->arg[1].buffer >= 0))
        return check_fail(at, why,
                          weights ? "compares choices without their weights" : "reads weights that it does not need");
    if (own != (op->arg[rows].offset.sym == SYM_OWN0) || (!own && op->arg[rows].offset.factor))
        return check_fail(at, why, "uses the positions of other tokens than those that it processes");
    return OK;
}

/* Checks that rows are made of the choices of their dispatch, and not of those before some were dropped. A copy of own
 * tokens is another buffer. */
static err_t check_sort(const struct check_at *at, const struct graph *g, const struct op *op, struct why *why)
{
    const int ids = at->p->buffers[op->arg[0].buffer].tensor;
    bool others = op->node >= 0 && ids >= 0 && ids != g->nodes[op->node].in[1] && !mode_generates(at->p->mode);
    return others ? check_fail(at, why, "sorts %s, which are not the choices of its node", g->tensors[ids].name) : OK;
}

/* Checks that the experts of a token are added with their weights, and its rows' gradients without; and that rows which
 * a rank takes from tokens, its own or all, have no weights, and their gradients have them. */
static err_t check_row_sum(const struct check_at *at, const struct graph *g, const struct op *op, struct why *why)
{
    const bool picks = op->kind == OP_ROWS_PICK || op->kind == OP_ROWS_GATHER;
    bool combines = op->node >= 0 && g->nodes[op->node].op == GO_COMBINE;
    combines &= op->kind != OP_ROWS_GATHER || op->m.sym != SYM_ARRIVED; /* else it sorts rows */
    bool weighted = op->arg[picks ? 2 : 1].buffer >= 0;
    if (picks && combines != weighted)
        return check_fail(at, why,
                          combines ? "takes gradients of rows without their weights" : "weighs rows of tokens");
    return combines == weighted ? OK
                                : check_fail(at, why,
                                             combines ? "adds the experts of a token without their weights"
                                                      : "weighs gradients that have their weights already");
}

/* Checks that a norm of heads covers all heads that this rank has of x, each by itself. */
static err_t check_heads(const struct check_at *at, const struct graph *g, const struct op *op, struct why *why)
{
    const struct graph_node *node = op->node >= 0 ? &g->nodes[op->node] : NULL;
    const struct buffer *x = &at->p->buffers[op->arg[0].buffer];
    int64_t cols = x->ndim == 2 ? x->dim[1].factor : 0;
    if (!node || !node->heads ||
        (op->n.sym == SYM_ONE && op->n.factor == node->head_dim && op->m.factor * op->n.factor == cols &&
         op->m.sym == x->dim[0].sym))
        return OK;
    return check_fail(at, why, "normalizes %lld rows of %lld columns of a token of %s, which has %lld heads of %lld",
                      (long long)op->m.factor, (long long)op->n.factor, x->name, (long long)(cols / node->head_dim),
                      (long long)node->head_dim);
}

/* Checks that the rows of a norm whose columns are sharded have as many columns as those of its node. */
static err_t check_whole(const struct check_at *at, const struct graph *g, const struct op *op, struct why *why)
{
    const struct graph_node *node = op->node >= 0 ? &g->nodes[op->node] : NULL;
    if (!node || node->op != GO_RMSNORM || node->heads)
        return check_fail(at, why, "is of no norm of all columns of a token");
    if (op->kind == OP_ROW_DOTS || (op->k.sym == SYM_ONE && op->k.factor == g->tensors[node->in[0]].dim[1].factor))
        return OK;
    return check_fail(at, why, "divides by %lld columns; a token has %lld", (long long)op->k.factor,
                      (long long)g->tensors[node->in[0]].dim[1].factor);
}

/* Checks that attention has the mask and the scores of its node. ring.c checks the positions of a part of the keys. */
static err_t check_mask(const struct check_at *at, const struct graph *g, const struct op *op, struct why *why)
{
    const struct graph_node *node = op->node >= 0 ? &g->nodes[op->node] : NULL;
    const bool cached = op->kind == OP_ATTENTION_CACHE; /* a text is one document */
    const int begin = cached ? -1 : op->arg[ATTENTION_BEGIN(op->kind)].buffer;
    if (!node || node->op != GO_ATTENTION)
        return check_fail(at, why, "is of no attention of the model");
    if (op->window != node->window || op->softcap != node->softcap || op->scale != node->scale)
        return check_fail(at, why, "has a window of %lld, a cap of %g and a scale of %g; its node has %lld, %g and %g",
                          (long long)op->window, op->softcap, op->scale, (long long)node->window, node->softcap,
                          node->scale);
    if (!cached && begin != (node->in[3] >= 0 ? at->p->begin_buffer : -1))
        return check_fail(at, why, begin < 0 ? "reads across documents" : "reads no buffer of documents");
    return OK;
}

static bool counts_tokens(enum graph_sym sym)
{
    return sym == SYM_OWN || sym == SYM_TOKENS || sym == SYM_ARRIVED || sym == SYM_RUNS || sym >= SYM_MEMBER;
}

/* Checks that an op on own tokens uses no buffers of all tokens or of another rank's tokens, and the other way round.
 * Exceptions: a matmul may write some rows of a buffer of all tokens (parts.c), and a copy may take some (layout.c). */
static err_t check_tokens(const struct check_at *at, const struct op *op, int i, struct why *why)
{
    const struct buffer *b = &at->p->buffers[op->arg[i].buffer];
    enum graph_sym rows = b->ndim ? b->dim[0].sym : SYM_ONE, is = op->m.sym;
    bool own = op->kind == OP_OWN_GATHER || op->kind == OP_OWN_SCATTER || op->kind == OP_EXCHANGE;
    own |= op->kind == OP_BORROW || op->kind == OP_GIVE_BACK;
    bool inner = op->kind == OP_GEMM && op->flags & OPF_TRANS_A && i < 2;
    bool some = op->kind == OP_GEMM && i > 2 && parts_rows(at->p, op) >= 0;
    some |= op->kind == OP_COPY && i == 0 && check_copies_own(at->p, op);
    is = op->kind == OP_LAST_ROWS && i == 0 ? SYM_TOKENS : is;
    is = inner ? op->k.sym : op->kind == OP_GEMM && i != 0 && i != 3 && i != 4 ? SYM_ONE : is;
    is = op->kind == OP_SHIFT && i == 1 ? op->k.sym : is;
    if (own || some || b->space == SPACE_HOST || !counts_tokens(is) || !counts_tokens(rows) || is == rows)
        return OK;
    return check_fail(at, why, "processes %s tokens but uses %s, which has %s",
                      is == SYM_OWN       ? "own"
                      : is == SYM_RUNS    ? "the last"
                      : is == SYM_TOKENS  ? "all"
                      : is == SYM_ARRIVED ? "arrived"
                                          : "a member's",
                      b->name,
                      rows == SYM_OWN       ? "own ones"
                      : rows == SYM_RUNS    ? "those of runs"
                      : rows == SYM_TOKENS  ? "all"
                      : rows == SYM_ARRIVED ? "arrived ones"
                                            : "a member's");
}

static err_t check_operand(const struct check_at *at, const struct op *op, int i, struct why *why)
{
    const struct program *p = at->p;
    const struct buffer *b = &p->buffers[op->arg[i].buffer];
    int64_t size = (int64_t)dtype_bytes(b->dtype);
    if (size == 0)
        return check_fail(at, why, "operand %s has no element type", b->name);
    if (!type_legal(p, op, i, b->dtype))
        return check_fail(at, why, "does not accept the type of operand %d, %s: %s", i, b->name, dtype_name(b->dtype));
    /* an action without a microbatch uses all instances, which are contiguous */
    bool all = b->slot_index == SLOT_MICRO && p->actions[at->action].micro < 0;
    int64_t room = (b->bytes + (all ? (b->slots - 1) * b->slot_bytes : 0)) / size;
    int64_t extent = check_extent(p, op, i);
    int64_t end = program_dim(p, op->arg[i].offset, p->max_samples) + op->arg[i].col + extent;
    if (end > room && (extent || op->kind != OP_COPY_COLS)) /* without rows, COPY_COLS accesses no column */
        return check_fail(at, why, "reaches element %lld of operand %s, which has %lld", (long long)end, b->name,
                          (long long)room);
    err_t e = check_rows(at, op, i, why);
    return e ? e : check_tokens(at, op, i, why);
}

err_t check_operand_shapes(const struct check_at *at, const struct graph *g, const struct op *op, struct why *why)
{
    err_t e = OK;
    for (int i = 0; op_mode(op, i) && !e; i++)
        if (op->arg[i].buffer >= 0)
            e = check_operand(at, op, i, why);
    if (!e && op->kind == OP_GEMM)
        e = check_matmul(at, g, op, why);
    if (!e && op->kind == OP_GROUPED_GEMM)
        e = check_experts(at, g, op, why);
    if (!e && (op->kind == OP_EMBED || op->kind == OP_EMBED_GRAD))
        e = check_vocab(at, g, op, why);
    if (!e && (op->kind == OP_ROUTE || op->kind == OP_ROUTE_GRAD))
        e = check_router(at, g, op, why);
    if (!e && (op->kind == OP_CHOICES || op->kind == OP_DROP))
        e = check_drop(at, g, op, why);
    if (!e && op->kind == OP_ROUTE_SORT)
        e = check_sort(at, g, op, why);
    if (!e && (op->kind == OP_ROWS_PICK || op->kind == OP_ROWS_GATHER || op->kind == OP_ROWS_SUM))
        e = check_row_sum(at, g, op, why);
    if (!e && (op->kind == OP_RMSNORM || op->kind == OP_RMSNORM_GRAD))
        e = check_heads(at, g, op, why);
    if (!e && (op->kind == OP_ROW_DOTS || op->kind == OP_RMSNORM_PART || op->kind == OP_RMSNORM_PART_GRAD))
        e = check_whole(at, g, op, why);
    if (!e && (op->kind == OP_ATTENTION || op->kind == OP_ATTENTION_GRAD || op->kind == OP_ATTENTION_CACHE))
        e = check_mask(at, g, op, why);
    if (!e && (op->kind == OP_DROPOUT || op->kind == OP_POSITIONS))
        e = check_random(at, g, op, why);
    return e;
}
