/* The rows of op_desc for element-wise kernels, the loss and the optimizer. */
#include "tests/kernels/ops.h"

#include <stddef.h>
#include <string.h>

/* ---- element by element ---- */

/* y = f(x0[, x1]), all of n elements */
#define UNARY(name)                                                                                            \
    static err_t name##_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p) \
    {                                                                                                          \
        k->name(s, c->n, p[0], p[1]);                                                                          \
        return OK;                                                                                             \
    }
#define BINARY(name)                                                                                           \
    static err_t name##_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p) \
    {                                                                                                          \
        k->name(s, c->n, p[0], p[1], p[2]);                                                                    \
        return OK;                                                                                             \
    }

#define UNARY_WITH(name)                                                                                       \
    static err_t name##_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p) \
    {                                                                                                          \
        k->name(s, c->n, c->limit, p[0], p[1]);                                                                \
        return OK;                                                                                             \
    }

UNARY(gelu)
UNARY(gelu_erf)
UNARY_WITH(scale)
UNARY_WITH(cap)
UNARY(relu)
UNARY(cast)
BINARY(swiglu)
BINARY(geglu)
BINARY(gelu_grad)
BINARY(gelu_erf_grad)
BINARY(relu_grad)
BINARY(add)

static void unary_shape(const struct kcase *c, struct case_operand *o)
{
    o[0] = operand_in(c->n);
    o[1] = operand_out(c->n);
}

static void binary_shape(const struct kcase *c, struct case_operand *o)
{
    o[0] = o[1] = operand_in(c->n);
    o[2] = operand_out(c->n);
}

static void cast_shape(const struct kcase *c, struct case_operand *o)
{
    o[0] = operand_wide(operand_of(IN, AWKWARD, c->n));
    o[1] = operand_out(c->n);
}

static int64_t exact(const struct kcase *c)
{
    return 0;
}

static int64_t gate_terms(const struct kcase *c)
{
    return GATE_TERMS;
}

static void gelu_grad_link(const struct kcase *c, struct grad_link *l)
{
    l->forward = "gelu";
    l->from[0] = 0;
    l->seed[1] = 1;
    l->target[2] = 0;
}

static void relu_grad_link(const struct kcase *c, struct grad_link *l)
{
    gelu_grad_link(c, l);
    l->forward = "relu";
}

static void gelu_erf_grad_link(const struct kcase *c, struct grad_link *l)
{
    gelu_grad_link(c, l);
    l->forward = "gelu_erf";
}

static err_t cap_grad_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    k->cap_grad(s, c->n, c->limit, p[0], p[1], p[2]);
    return OK;
}

static void cap_grad_link(const struct kcase *c, struct grad_link *l)
{
    gelu_grad_link(c, l);
    l->forward = "cap";
}

static void swiglu_grad_shape(const struct kcase *c, struct case_operand *o)
{
    o[0] = o[1] = o[2] = operand_in(c->n);
    o[3] = o[4] = operand_out(c->n);
}

static err_t swiglu_grad_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    k->swiglu_grad(s, c->n, p[0], p[1], p[2], p[3], p[4]);
    return OK;
}

static void swiglu_grad_link(const struct kcase *c, struct grad_link *l)
{
    l->forward = "swiglu";
    l->from[0] = 0;
    l->from[1] = 1;
    l->seed[2] = 2;
    l->target[3] = 0;
    l->target[4] = 1;
}

static err_t geglu_grad_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    k->geglu_grad(s, c->n, p[0], p[1], p[2], p[3], p[4]);
    return OK;
}

static void geglu_grad_link(const struct kcase *c, struct grad_link *l)
{
    swiglu_grad_link(c, l);
    l->forward = "geglu";
}

/* ---- loss and optimizer ---- */

static void cross_entropy_shape(const struct kcase *c, struct case_operand *o)
{
    o[0] = operand_of(IN, TARGETS, c->t);
    o[1] = operand_rows(operand_acc(0), c->t, c->vocab, c->vocab + c->pad);
    o[2] = operand_of(ACC, DOUBLES, 1);
}

static err_t cross_entropy_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    k->cross_entropy(s, c->t, c->vocab, c->vocab + c->pad, p[0], c->flags & GRAD, LOSS_SCALE, p[1], p[2]);
    return OK;
}

/* The terms of a softmax are summed in short runs, and the runs in float64. */
static int64_t cross_entropy_terms(const struct kcase *c)
{
    return 64;
}

/* An implementation may store the row as exp(x - max) in between. */
static double cross_entropy_between(const struct kcase *c)
{
    return 1;
}

static enum content factor_of(const struct kcase *c)
{
    return c->flags & SOME_NAN ? SQUARES_AND_NAN : c->flags & SOME_INF ? DOUBLES_AND_INF : FACTOR;
}

static void adamw_shape(const struct kcase *c, struct case_operand *o)
{
    o[0] = o[1] = operand_wide(operand_acc(c->n));
    o[2] = operand_wide(operand_of(ACC, POSITIVE, c->n));
    o[3] = operand_wide(operand_in(c->n));
    o[4] = operand_of(IN, factor_of(c), 1);
}

static err_t adamw_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    struct kern_adamw a = {.n = c->n,
                           .p = p[0],
                           .m = p[1],
                           .v = p[2],
                           .g = p[3],
                           .lr = 3e-3,
                           .beta1 = 0.9,
                           .beta2 = 0.95,
                           .eps = 1e-8,
                           .weight_decay = 0.1,
                           .grad_scale = p[4],
                           .step = 7};
    k->adamw(s, &a);
    return OK;
}

/* With a factor that is not finite, no bit may change. */
static int64_t adamw_terms(const struct kcase *c)
{
    return c->flags & (SOME_NAN | SOME_INF) ? 0 : 1;
}

static void sumsq_shape(const struct kcase *c, struct case_operand *o)
{
    o[0] = operand_wide(operand_in(c->n));
    o[1] = operand_of(OUT, DOUBLES, (c->n + c->k - 1) / c->k);
}

static err_t sumsq_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    k->sumsq_blocks(s, c->n, c->k, p[0], p[1]);
    return OK;
}

static int64_t sumsq_terms(const struct kcase *c)
{
    return c->k;
}

/* n blocks, m losses */
static void clip_shape(const struct kcase *c, struct case_operand *o)
{
    o[0] = operand_of(IN, c->flags & SOME_NAN ? SQUARES_AND_NAN : SQUARES, c->n);
    o[1] = operand_of(IN, c->flags & SOME_INF ? DOUBLES_AND_INF : DOUBLES, c->m);
    o[2] = o[3] = operand_of(OUT, DOUBLES, 1);
}

static err_t clip_call(const struct kern_ops *k, struct kern_stream *s, const struct kcase *c, void **p)
{
    struct kern_clip a = {.n_blocks = c->n,
                          .n_losses = c->m,
                          .blocks = p[0],
                          .losses = p[1],
                          .limit = c->limit,
                          .norm = p[2],
                          .factor = p[3]};
    k->clip(s, &a);
    return OK;
}

static int64_t clip_terms(const struct kcase *c)
{
    return c->n + 1;
}

const struct op_desc ops_flat[] = {
    {"swiglu", binary_shape, swiglu_call, .terms = gate_terms},
    {"swiglu_grad", swiglu_grad_shape, swiglu_grad_call, swiglu_grad_link, .terms = gate_terms,
     .aliases = {{3, 0}, {4, 1}}},
    {"geglu", binary_shape, geglu_call, .terms = gate_terms},
    {"geglu_grad", swiglu_grad_shape, geglu_grad_call, geglu_grad_link, .terms = gate_terms,
     .aliases = {{3, 0}, {4, 1}}},
    {"gelu_erf", unary_shape, gelu_erf_call, .terms = gate_terms},
    {"gelu_erf_grad", binary_shape, gelu_erf_grad_call, gelu_erf_grad_link, .terms = gate_terms, .aliases = {{2, 1}}},
    {"scale", unary_shape, scale_call, .terms = exact, .aliases = {{1, 0}}},
    {"cap", unary_shape, cap_call, .terms = gate_terms},
    {"cap_grad", binary_shape, cap_grad_call, cap_grad_link, .terms = gate_terms, .aliases = {{2, 1}}},
    {"gelu", unary_shape, gelu_call, .terms = gate_terms},
    {"gelu_grad", binary_shape, gelu_grad_call, gelu_grad_link, .terms = gate_terms, .aliases = {{2, 1}}},
    {"relu", unary_shape, relu_call, .terms = exact},
    {"relu_grad", binary_shape, relu_grad_call, relu_grad_link, .terms = exact, .aliases = {{2, 1}}},
    {"add", binary_shape, add_call, .terms = exact, .aliases = {{2, 0}, {2, 1}}},
    {"cast", cast_shape, cast_call, .terms = exact, .anywhere = true},
    {"cross_entropy", cross_entropy_shape, cross_entropy_call, .terms = cross_entropy_terms,
     .between = cross_entropy_between},
    {"adamw", adamw_shape, adamw_call, .terms = adamw_terms, .anywhere = true},
    {"sumsq_blocks", sumsq_shape, sumsq_call, .terms = sumsq_terms, .exact_doubles = true, .anywhere = true},
    {"clip", clip_shape, clip_call, .terms = clip_terms, .exact_doubles = true},
};
const int n_ops_flat = sizeof(ops_flat) / sizeof(ops_flat[0]);

static const struct op_desc *find_in(const struct op_desc *ops, int n, const char *name)
{
    for (int i = 0; i < n; i++)
        if (strcmp(ops[i].name, name) == 0)
            return &ops[i];
    return NULL;
}

const struct op_desc *op_find(const char *name)
{
    const struct op_desc *op = find_in(ops_matrix, n_ops_matrix, name);
    op = op ? op : find_in(ops_flat, n_ops_flat, name);
    op = op ? op : find_in(ops_part, n_ops_part, name);
    return op ? op : find_in(ops_experts, n_ops_experts, name);
}
