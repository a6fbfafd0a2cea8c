/* Layouts of the results of every op, axis by axis, derived without the compiler's rules.
 *
 * On each axis of the mesh a value is whole on every rank, sharded by rows, sharded by columns, a piece, or a share of
 * a sum. Tokens are rows: on dp, fsdp and cp always, on tp under sequence parallelism. A matmul over a sharded inner
 * dimension computes shares; so does the gradient of a value that all tokens use. Only linear ops (is_linear) and
 * matmuls with whole values may read a share. Parameters are sharded as graph_cut prescribes. All reductions that data,
 * tensor, sequence and context parallelism need follow from these rules. */
#include "common/plan/check/check.h"
#include "common/plan/check/operands.h"

#include <string.h>

#define BASE(on) ((on) & ~(ON_SUM | ON_LENT))

/* ---- messages ---- */

static const char *name_of(const struct check_op *c, int i)
{
    return c->at->p->buffers[c->op->arg[i].buffer].name;
}

static const char *layout_word(unsigned on)
{
    if (on & ON_LENT)
        return "without the parts of ranks that borrowed experts";
    if (on & ON_SUM)
        return "a share of a sum";
    static const char *const words[] = {[ON_WHOLE] = "whole",
                                        [ON_ROWS] = "sharded by rows",
                                        [ON_COLS] = "sharded by columns",
                                        [ON_EXPERTS] = "sharded by experts",
                                        [ON_PIECE] = "a piece of the local tensor",
                                        [ON_EXPERTS_PIECE] = "a piece of the experts",
                                        [ON_GROUP] = "that of one group of expert parallelism"};
    return words[on];
}

static err_t share_fail(const struct check_op *c, int i, int axis)
{
    return check_fail(c->at, c->why, "reads %s, which is this rank's share of a sum over %s and has not been reduced",
                      name_of(c, i), mesh_axis_name((enum mesh_axis)axis));
}

static err_t pair_fail(const struct check_op *c, int axis, int i, unsigned is, int k, unsigned other)
{
    return check_fail(c->at, c->why, "combines %s, which is %s on %s, with %s, which is %s there", name_of(c, i),
                      layout_word(is), mesh_axis_name((enum mesh_axis)axis), name_of(c, k), layout_word(other));
}

static err_t want_fail(const struct check_op *c, int axis, int i, unsigned is, const char *wants)
{
    return check_fail(c->at, c->why, "reads %s, which is %s on %s; it needs %s", name_of(c, i), layout_word(is),
                      mesh_axis_name((enum mesh_axis)axis), wants);
}

/* ---- parameters and inputs ---- */

/* Ranks that differ on this axis have other samples. */
static bool is_batch(int axis)
{
    return axis == AXIS_DP || axis == AXIS_FSDP;
}

static bool is_data(int axis)
{
    return axis == AXIS_DP || axis == AXIS_FSDP || axis == AXIS_CP;
}

unsigned char layout_of_piece(unsigned on)
{
    return on == ON_EXPERTS ? ON_EXPERTS_PIECE : ON_PIECE;
}

struct value_layout layout_of_param(const struct program *p, const struct graph *g, int t, bool piece)
{
    struct value_layout l = {{0}, false};
    const struct graph_cut *cut = &g->tensors[t].cut;
    for (int a = 0; a < AXIS_COUNT && cut->experts; a++)
        l.on[a] = p->sharding.ep.share[a] > 1 ? ON_EXPERTS : ON_WHOLE;
    if (cut->segments && !cut->experts && p->mesh.size[AXIS_TP] > 1)
        l.on[AXIS_TP] = cut->dim ? ON_COLS : ON_ROWS;
    if (piece && p->sharding.param[t].pieces > 1)
        l.on[AXIS_FSDP] = layout_of_piece(l.on[AXIS_FSDP]);
    return l;
}

struct value_layout layout_of_input(const struct program *p)
{
    struct value_layout l = {{0}, false};
    for (int a = 0; a < AXIS_COUNT; a++)
        if (is_data(a) && p->mesh.size[a] > 1)
            l.on[a] = ON_ROWS;
    return l;
}

int layout_partial(const struct value_layout *l)
{
    for (int a = 0; a < AXIS_COUNT && !l->zero; a++)
        if (l->on[a] & (ON_SUM | ON_LENT))
            return a;
    return -1;
}

/* ---- ops whose operands have one shape ---- */

static bool operand_is_read(const struct check_op *c, int i)
{
    char mode = op_mode(c->op, i);
    return c->op->arg[i].buffer >= 0 && (mode == 'r' || mode == 'a');
}

/* Linear ops: the result for a sum is the sum of the results for its shares. */
static bool is_linear(const struct op *op)
{
    return op->kind == OP_COPY || op->kind == OP_ADD || op->kind == OP_COPY_COLS || op->kind == OP_ROPE ||
           op->kind == OP_SHIFT;
}

/* The first operand that determines the layout of the tokens; -1: all operands are zero. */
static int main_operand(const struct check_op *c, const struct value_layout *in, const char *class)
{
    for (int i = 0; class[i]; i++)
        if (class[i] == 't' && operand_is_read(c, i) && !in[i].zero)
            return i;
    return -1;
}

/* Whether the op is a norm of the heads in a token's columns. Its rows are heads of tokens, so columns are rows to it:
 * every rank has the whole weight. */
static bool norms_heads(const struct check_op *c)
{
    int node = c->op->node;
    return (c->op->kind == OP_RMSNORM || c->op->kind == OP_RMSNORM_GRAD) && node >= 0 && c->g->nodes[node].heads > 0;
}

static unsigned of_vector(unsigned on, bool heads)
{
    return on == ON_COLS && !heads ? ON_ROWS : ON_WHOLE;
}

static unsigned of_vector_grad(unsigned on, bool heads)
{
    return on == ON_COLS && !heads ? ON_ROWS : on == ON_WHOLE ? ON_WHOLE : ON_SUM;
}

/* Refuses layouts from which a kernel cannot compute its result. */
static err_t check_main(const struct check_op *c, int axis, int i, unsigned on)
{
    enum op_kind k = c->op->kind;
    bool norm = k == OP_RMSNORM || k == OP_RMSNORM_GRAD || k == OP_LAYERNORM || k == OP_LAYERNORM_GRAD;
    bool attention = k == OP_ATTENTION || k == OP_ATTENTION_GRAD || k == OP_ATTENTION_CACHE;
    if ((on & ON_SUM) && !is_linear(c->op))
        return share_fail(c, i, axis);
    if (BASE(on) == ON_PIECE)
        return want_fail(c, axis, i, on, "the local tensor");
    if (norm && on == ON_COLS && !norms_heads(c))
        return want_fail(c, axis, i, on, "all columns of a token");
    if (attention && axis == AXIS_TP && on == ON_ROWS)
        return want_fail(c, axis, i, on, "all tokens of a head");
    return OK;
}

/* The gradient of a norm of heads is linear in the gradient of its result, operand 3 (x, weight and rstd are whole
 * values): from a share of that follow shares of dx and of the weight's gradient. A rank has a share where several hold
 * the same key-value heads. */
static unsigned norm_share(const struct check_op *c, const struct value_layout *in, int axis, int i)
{
    bool linear = c->op->kind == OP_RMSNORM_GRAD && norms_heads(c) && i >= 3;
    return linear && !in[3].zero ? in[3].on[axis] & ON_SUM : 0;
}

static err_t token_op_read(const struct check_op *c, int axis, const struct value_layout *in, int m, int i, char class)
{
    unsigned main = in[m].on[axis] | norm_share(c, in, axis, i), on = in[i].on[axis];
    unsigned want = class == 'v' ? of_vector(BASE(main), norms_heads(c)) : class == 'i' && axis == AXIS_TP ? on : main;
    if (on == want)
        return OK;
    if (on & ON_SUM)
        return share_fail(c, i, axis);
    return pair_fail(c, axis, i, on, m, main);
}

/* Whether several ranks hold the same key-value heads; then each computes a share of the heads' gradient, from its own
 * query heads. Even with fewer heads than ranks, some rank may be the only holder of its heads. */
static bool is_shared(const struct check_op *c, int t)
{
    const struct sharding *sharding = &c->at->p->sharding;
    const struct graph_cut *cut = &c->g->tensors[t].cut;
    int tp = sharding->mesh.size[AXIS_TP], boxes, holders = 0,
        mine = sharding_cut_box(cut, tp, sharding->coord[AXIS_TP], &boxes);
    for (int i = 0; i < tp && cut->segments && cut->shared; i++)
        holders += sharding_cut_box(cut, tp, i, &boxes) == mine;
    return holders > 1;
}

static bool makes_shares(const struct check_op *c, int i)
{
    int node = c->op->node;
    return c->op->kind == OP_ATTENTION_GRAD && (i == 7 || i == 8) && node >= 0 &&
           is_shared(c, c->g->nodes[node].in[i - 6]);
}

static err_t token_op_layouts(const struct check_op *c, const struct value_layout *in, struct value_layout *ret)
{
    const char *class = check_operands[c->op->kind].class;
    int m = main_operand(c, in, class);
    for (int a = 0; a < AXIS_COUNT; a++) {
        unsigned on = m < 0 ? ON_WHOLE : in[m].on[a];
        err_t e = m < 0 ? OK : check_main(c, a, m, on);
        for (int i = 0; class[i] && !e; i++) {
            ret[i].zero = m < 0;
            ret[i].on[a] =
                (unsigned char)((class[i] == 'g' ? of_vector_grad(on, norms_heads(c)) : on) | norm_share(c, in, a, i));
            if (a == AXIS_TP && on == ON_COLS && makes_shares(c, i))
                ret[i].on[a] |= ON_SUM;
            if (m >= 0 && i != m && operand_is_read(c, i) && !in[i].zero && class[i] != 'g' && !makes_shares(c, i))
                e = token_op_read(c, a, in, m, i, class[i]);
        }
        if (e)
            return e;
    }
    return OK;
}

/* ---- matmuls ---- */

enum part {
    PART_NONE,
    PART_OUTER,
    PART_INNER
}; /* the dimension that is sharded: a dimension of the result, or the inner one, which is summed over */

static enum part part_of(unsigned on, bool rows_are_outer)
{
    if (BASE(on) == ON_WHOLE)
        return PART_NONE;
    return (BASE(on) == ON_ROWS) == rows_are_outer ? PART_OUTER : PART_INNER;
}

static err_t gemm_axis(const struct check_op *c, int axis, unsigned a, unsigned b, unsigned char *ret)
{
    enum part pa = part_of(a, !(c->op->flags & OPF_TRANS_A)), pb = part_of(b, c->op->flags & OPF_TRANS_B);
    bool pieces = BASE(a) == ON_PIECE || BASE(b) == ON_PIECE;
    unsigned sum = (a | b) & ON_SUM;
    if (pieces || ((a & ON_SUM) && (b & ON_SUM)) || (pa == PART_OUTER && pb != PART_NONE) ||
        (pb == PART_OUTER && pa != PART_NONE) || (pa == PART_INNER) != (pb == PART_INNER))
        return pair_fail(c, axis, 0, a, 1, b);
    if ((a == ON_SUM && pb != PART_NONE) || (b == ON_SUM && pa != PART_NONE))
        return share_fail(c, a == ON_SUM ? 0 : 1, axis);
    *ret = (unsigned char)(pa == PART_INNER   ? ON_SUM
                           : pa == PART_OUTER ? ON_ROWS | sum
                           : pb == PART_OUTER ? ON_COLS | sum
                                              : ON_WHOLE | sum);
    return OK;
}

/* A value that every rank adds to its share would be in the sum many times, so exactly the first rank of the axis must
 * add it. */
static err_t added_once(const struct check_op *c, int axis, unsigned result, int i, int graph_input)
{
    const struct program *p = c->at->p;
    int coord[AXIS_COUNT];
    bool there = c->op->arg[i].buffer >= 0;
    if (!(result & ON_SUM) || graph_input < 0)
        return OK;
    mesh_coords(&p->mesh, p->rank, coord);
    if (there == (coord[axis] == 0))
        return OK;
    const char *name = c->g->tensors[graph_input].name;
    return check_fail(c->at, c->why,
                      there ? "adds %s to its share of a sum over %s; only the first rank of that axis may add it"
                            : "does not add %s to its share of a sum over %s; the first rank of that axis must add it",
                      name, mesh_axis_name((enum mesh_axis)axis));
}

/* Input `k` of the op's node, if the op is the node's forward matmul; -1 otherwise. */
static int forward_input(const struct check_op *c, int k, enum graph_op kind)
{
    int node = c->op->node;
    if (node < 0 || c->g->nodes[node].op != kind)
        return -1;
    int weight = c->g->nodes[node].in[1], buffer = c->op->arg[1].buffer, out = c->op->arg[3].buffer;
    bool writes_grad = kind == GO_LINEAR && c->op->flags & OPF_TRANS_A;
    bool backward = kind == GO_LINEAR && !writes_grad &&
                    (c->op->flags & OPF_TRANS_B ? c->g->nodes[node].trans_w : !c->g->nodes[node].trans_w);
    if (writes_grad || backward || c->at->p->buffers[buffer].tensor != weight || out < 0)
        return -1;
    return c->g->nodes[node].in[k];
}

static err_t gemm_bias(const struct check_op *c, int axis, const struct value_layout *in, unsigned result)
{
    err_t e = added_once(c, axis, result, 2, forward_input(c, 2, GO_LINEAR));
    if (e || c->op->arg[2].buffer < 0)
        return e;
    unsigned want = of_vector(BASE(result), false), is = in[2].on[axis];
    return is == want ? OK : want_fail(c, axis, 2, is, want == ON_ROWS ? "the result's columns of it" : "the whole");
}

/* Layout of the sum of a (i 5) or b (i 6) over the inner dimension. */
static unsigned char inner_sum(const struct check_op *c, int i, unsigned on)
{
    bool rows_are_outer = i == 5 ? !(c->op->flags & OPF_TRANS_A) : (c->op->flags & OPF_TRANS_B) != 0;
    enum part part = part_of(on, rows_are_outer);
    unsigned sum = on & ON_SUM;
    return (unsigned char)(part == PART_INNER ? ON_SUM : part == PART_OUTER ? ON_ROWS | sum : sum);
}

static err_t gemm_layouts(const struct check_op *c, const struct value_layout *in, struct value_layout *ret)
{
    bool zero = in[0].zero || in[1].zero;
    for (int a = 0; a < AXIS_COUNT; a++) {
        err_t e = zero ? OK : gemm_axis(c, a, in[0].on[a], in[1].on[a], &ret[3].on[a]);
        unsigned on = ret[3].on[a];
        if (!e && !zero)
            e = gemm_bias(c, a, in, on);
        if (!e && (c->op->flags & (OPF_GELU | OPF_GELU_GRAD)) && (on & ON_SUM))
            e = check_fail(c->at, c->why, "applies the activation to a share of a sum over %s",
                           mesh_axis_name((enum mesh_axis)a));
        if (!e && (c->op->flags & OPF_GELU_GRAD) && !in[4].zero && in[4].on[a] != on)
            e = want_fail(c, a, 4, in[4].on[a], "the layout of the result");
        if (e)
            return e;
        ret[4].on[a] = (unsigned char)on;
        ret[5].on[a] = inner_sum(c, 5, in[0].on[a]);
        ret[6].on[a] = inner_sum(c, 6, in[1].on[a]);
    }
    ret[3].zero = ret[4].zero = zero;
    ret[5].zero = in[0].zero;
    ret[6].zero = in[1].zero;
    return OK;
}

/* One of the ranks that have the same tokens adds the loss, or counts them, so the result is a sum over every axis. */
static void loss_result(const struct check_op *c, struct value_layout *ret)
{
    for (int a = 0; a < AXIS_COUNT; a++)
        ret->on[a] = c->at->p->mesh.size[a] > 1 ? ON_SUM : ON_WHOLE;
}

/* ---- experts ---- */

/* The experts of a rank are on `rest` ranks of an axis, whose rows are of other tokens: a gradient is a share there. */
static err_t grouped_layouts(const struct check_op *c, const struct value_layout *in, struct value_layout *ret)
{
    const bool more = c->op->arg[4].buffer >= 0, lends = more && c->op->flags & OPF_TRANS_A, borrows = more && !lends;
    bool zero = in[0].zero || in[1].zero;
    for (int a = 0; a < AXIS_COUNT && !zero; a++) {
        bool experts = in[0].on[a] == ON_EXPERTS && in[1].on[a] == ON_EXPERTS;
        err_t e = experts ? OK : gemm_axis(c, a, in[0].on[a], in[1].on[a], &ret[2].on[a]);
        bool share = c->op->flags & OPF_TRANS_A && sharding_rest(&c->at->p->sharding, a) > 1;
        if (experts)
            ret[2].on[a] = (unsigned char)(ON_EXPERTS | (share ? ON_SUM : 0) | (lends ? ON_LENT : 0));
        if (experts && lends)
            ret[4].on[a] = ON_EXPERTS;
        if (!e && in[3].on[a] != in[0].on[a])
            e = pair_fail(c, a, 3, in[3].on[a], 0, in[0].on[a]);
        if (!e && borrows && in[4].on[a] != in[1].on[a])
            e = pair_fail(c, a, 4, in[4].on[a], 1, in[1].on[a]);
        if (e)
            return e;
    }
    ret[2].zero = ret[4].zero = zero;
    return OK;
}

/* Ranks that have the same tokens count them once: the first rank of tp. */
static err_t counted_once(const struct check_op *c, int operand, const struct value_layout *logits)
{
    const struct program *p = c->at->p;
    int coord[AXIS_COUNT];
    mesh_coords(&p->mesh, p->rank, coord);
    bool counts = c->op->arg[operand].buffer >= 0, should = logits->on[AXIS_TP] == ON_ROWS || coord[AXIS_TP] == 0;
    if (p->number_buffer[NUMBER_TOTALS] < 0 || counts == should)
        return OK;
    return check_fail(c->at, c->why,
                      counts ? "counts tokens that the first rank of tp counts too" : "does not count its tokens");
}

static err_t route_layouts(const struct check_op *c, const struct value_layout *in, struct value_layout *ret)
{
    for (int a = 0; a < AXIS_COUNT; a++) {
        unsigned on = in[0].on[a];
        if (on & ON_SUM)
            return share_fail(c, 0, a);
        if (on != ON_WHOLE && on != ON_ROWS)
            return want_fail(c, a, 0, on, "all experts of a token");
        bool spread = on == ON_ROWS && (a == AXIS_CP || a == AXIS_TP); /* of one sample over several ranks */
        ret[2].on[a] = ret[3].on[a] = (unsigned char)on;
        ret[4].on[a] = (unsigned char)(spread ? ON_SUM : on);
    }
    for (int a = 0; c->op->arg[7].buffer >= 0 && a < AXIS_COUNT; a++)
        if (in[7].on[a] != ON_WHOLE)
            return want_fail(c, a, 7, in[7].on[a], "the biases of all experts");
    loss_result(c, &ret[5]);
    loss_result(c, &ret[6]);
    return counted_once(c, 5, &in[0]);
}

/* A part of a sample over cp, or over tp where tokens are divided: a table of its choices is a share of that of all. */
static err_t choices_layouts(const struct check_op *c, const struct value_layout *in, struct value_layout *ret)
{
    for (int a = 0; a < AXIS_COUNT; a++) {
        unsigned on = in[0].on[a];
        if (on & ON_SUM)
            return share_fail(c, 0, a);
        if (c->op->arg[1].buffer >= 0 && !in[1].zero && in[1].on[a] != on)
            return pair_fail(c, a, 1, in[1].on[a], 0, on);
        ret[3].on[a] = (unsigned char)(on == ON_ROWS && !is_batch(a) ? ON_SUM : on);
    }
    return OK;
}

static err_t drop_layouts(const struct check_op *c, const struct value_layout *in, struct value_layout *ret)
{
    for (int a = 0; a < AXIS_COUNT; a++) {
        unsigned on = in[0].on[a], table = in[2].on[a];
        if ((on | table) & ON_SUM)
            return share_fail(c, on & ON_SUM ? 0 : 2, a);
        if (table != (is_batch(a) ? on : ON_WHOLE))
            return want_fail(c, a, 2, table, "all choices of a sample");
        ret[3].on[a] = (unsigned char)on;
    }
    loss_result(c, &ret[4]);
    return counted_once(c, 4, &in[0]);
}

/* The layout of home rows and their offsets, also on a rank without tokens, for which they are empty. */
static struct value_layout home_layout(const struct check_op *c, const struct value_layout *is)
{
    struct value_layout l = layout_of_input(c->at->p);
    if (c->at->p->sharding.ep.share[AXIS_TP] > 1)
        l.on[AXIS_TP] = ON_ROWS;
    return is->zero ? l : *is;
}

/* What the ranks of a group of expert parallelism have gathered. */
static unsigned gathered(const struct check_op *c, int axis)
{
    return sharding_rest(&c->at->p->sharding, axis) > 1 ? ON_GROUP : ON_WHOLE;
}

/* The value is of whole sets, and of the ranks that have equal numbers of them the first one counts it. */
static err_t aux_layouts(const struct check_op *c, const struct value_layout *in, struct value_layout *ret)
{
    const struct program *p = c->at->p;
    int coord[AXIS_COUNT];
    mesh_coords(&p->mesh, p->rank, coord);
    for (int a = 0; a < AXIS_COUNT; a++) {
        if (in[0].on[a] & ON_SUM)
            return share_fail(c, 0, a);
        if (in[0].on[a] == ON_WHOLE && coord[a] && a != AXIS_PP)
            return check_fail(c->at, c->why, "counts a loss that the first rank of %s counts too",
                              mesh_axis_name((enum mesh_axis)a));
    }
    loss_result(c, &ret[1]);
    return OK;
}

/* Rows leave the ranks that have the tokens for the ranks that have the experts, or come back. */
static err_t exchange_layouts(const struct check_op *c, const struct value_layout *in, struct value_layout *ret)
{
    const unsigned axes = c->at->p->sharding.ep.axes;
    const bool back = c->op->flags & OPF_INVERSE;
    const unsigned from = back ? ON_EXPERTS : ON_ROWS, to = back ? ON_ROWS : ON_EXPERTS;
    struct value_layout x = home_layout(c, &in[0]);
    for (int a = 0; a < AXIS_COUNT && back && in[0].zero; a++)
        x.on[a] = axes >> a & 1 ? ON_EXPERTS : x.on[a];
    ret[2] = x;
    for (int a = 0; a < AXIS_COUNT; a++) {
        bool over = axes >> a & 1;
        if (in[1].on[a] != (over ? gathered(c, a) : x.on[a]))
            return want_fail(c, a, 1, in[1].on[a], "the offsets of all ranks of the group");
        if (over && !x.zero && x.on[a] != from)
            return x.on[a] & ON_SUM ? share_fail(c, 0, a) : want_fail(c, a, 0, x.on[a], layout_word(from));
        if (over)
            ret[2].on[a] = (unsigned char)to;
    }
    return OK;
}

/* Checks that operand i is of all ranks of the group of expert parallelism. */
static err_t gathered_layout(const struct check_op *c, const struct value_layout *in, int i)
{
    for (int a = 0; a < AXIS_COUNT; a++)
        if (c->at->p->sharding.ep.axes >> a & 1 && in[i].on[a] != gathered(c, a))
            return in[i].on[a] & ON_SUM ? share_fail(c, i, a)
                                        : want_fail(c, a, i, in[i].on[a], "that of all ranks of the group");
    return OK;
}

static err_t arrive_layouts(const struct check_op *c, const struct value_layout *in, struct value_layout *ret)
{
    const unsigned axes = c->at->p->sharding.ep.axes;
    for (int a = 0; a < AXIS_COUNT; a++)
        for (int i = 1; i < 4; i++)
            ret[i].on[a] = (unsigned char)(axes >> a & 1 ? ON_EXPERTS : in[0].on[a]);
    loss_result(c, &ret[4]);
    return gathered_layout(c, in, 0);
}

/* Values of the tokens keep their layout. */
static err_t arrange_layouts(const struct check_op *c, const struct value_layout *in, struct value_layout *ret)
{
    ret[1] = ret[3] = ret[4] = in[1];
    for (int a = 0; a < AXIS_COUNT; a++)
        if (in[2].on[a] != in[1].on[a])
            return pair_fail(c, a, 2, in[2].on[a], 1, in[1].on[a]);
    return gathered_layout(c, in, 0);
}

/* Borrowed matrices are sharded as the own ones. */
static err_t borrow_layouts(const struct check_op *c, const struct value_layout *in, struct value_layout *ret)
{
    ret[2] = in[0];
    for (int a = 0; a < AXIS_COUNT; a++)
        if (in[0].on[a] != (c->at->p->sharding.ep.axes >> a & 1 ? ON_EXPERTS : ON_WHOLE))
            return want_fail(c, a, 0, in[0].on[a], "the local tensor");
    return gathered_layout(c, in, 1);
}

/* The tokens of one rank become those of all ranks of the group. */
static err_t gather_tokens_layouts(const struct check_op *c, const struct value_layout *in, struct value_layout *ret)
{
    const struct value_layout x = home_layout(c, &in[0]);
    err_t e = gathered_layout(c, in, 1);
    ret[2] = x;
    for (int a = 0; a < AXIS_COUNT && !e; a++) {
        if (!(c->at->p->sharding.ep.axes >> a & 1))
            continue;
        if (!x.zero && x.on[a] != ON_ROWS)
            e = x.on[a] & ON_SUM ? share_fail(c, 0, a) : want_fail(c, a, 0, x.on[a], layout_word(ON_ROWS));
        ret[2].on[a] = (unsigned char)gathered(c, a);
    }
    return e;
}

/* From values of all ranks of the group, operands 0 and `other`, what belongs to this rank's experts. */
static err_t picked_layouts(const struct check_op *c, const struct value_layout *in, int other, int to,
                            struct value_layout *ret)
{
    err_t e = gathered_layout(c, in, 0);
    if (!e && c->op->arg[other].buffer >= 0)
        e = gathered_layout(c, in, other);
    ret[to] = in[0];
    for (int a = 0; a < AXIS_COUNT && !e; a++)
        if (c->at->p->sharding.ep.axes >> a & 1)
            ret[to].on[a] = ON_EXPERTS;
    return e;
}

static err_t rows_pick_layouts(const struct check_op *c, const struct value_layout *in, struct value_layout *ret)
{
    for (int a = 0; a < AXIS_COUNT; a++)
        if (c->at->p->sharding.ep.axes >> a & 1 && in[1].on[a] != ON_EXPERTS)
            return want_fail(c, a, 1, in[1].on[a], layout_word(ON_EXPERTS));
    return picked_layouts(c, in, 2, 3, ret);
}

static err_t route_grad_layouts(const struct check_op *c, const struct value_layout *in, struct value_layout *ret)
{
    const bool of_batch = c->op->node >= 0 && c->g->nodes[c->op->node].in[2] >= 0;
    for (int a = 0; a < AXIS_COUNT; a++) {
        unsigned on = in[0].on[a], numbers = in[5].on[a];
        for (int i = 0; i < 4; i++)
            if (in[i].on[a] & ON_SUM)
                return share_fail(c, i, a);
            else if (!in[i].zero && in[i].on[a] != on)
                return pair_fail(c, a, i, in[i].on[a], 0, on);
        if (c->op->arg[5].buffer >= 0 && (numbers & ON_SUM))
            return share_fail(c, 5, a);
        if (c->op->arg[5].buffer >= 0 && numbers != (is_batch(a) && !of_batch ? on : ON_WHOLE))
            return want_fail(c, a, 5, numbers, "the numbers of the whole set");
        ret[6].on[a] = (unsigned char)on;
    }
    return OK;
}

/* ---- embeddings ---- */

/* Tokens are sharded on the data axes. A table that is sharded by rows contributes zero for the tokens that it does not
 * contain. */
static err_t embed_layouts(const struct check_op *c, const struct value_layout *in, struct value_layout *ret)
{
    for (int a = 0; a < AXIS_COUNT; a++) {
        unsigned ids = in[0].on[a], table = in[1].on[a];
        unsigned y = table == ON_ROWS ? ON_SUM : ids;
        if (table == ON_SUM || (table != ON_WHOLE && (table != ON_ROWS || ids != ON_WHOLE)))
            return want_fail(c, a, 1, table, "the whole table, or the rows of this tp rank");
        err_t e = added_once(c, a, y, 2, forward_input(c, 2, GO_EMBED));
        if (!e && c->op->arg[2].buffer >= 0 && in[2].on[a] != ON_WHOLE)
            e = want_fail(c, a, 2, in[2].on[a], "the whole");
        if (e)
            return e;
        ret[3].on[a] = (unsigned char)y;
    }
    return OK;
}

static err_t embed_grad_layouts(const struct check_op *c, const struct value_layout *in, struct value_layout *ret)
{
    int table = c->at->p->buffers[c->op->arg[2].buffer].tensor;
    bool cut = table >= 0 && c->g->tensors[table].cut.segments && c->at->p->mesh.size[AXIS_TP] > 1;
    for (int a = 0; a < AXIS_COUNT; a++) {
        unsigned dy = in[1].on[a];
        bool rows = a == AXIS_TP && cut;
        if (dy & ON_SUM)
            return share_fail(c, 1, a);
        if (dy != ON_WHOLE && (dy != ON_ROWS || rows))
            return want_fail(c, a, 1, dy, "all tokens' gradients");
        ret[2].on[a] = (unsigned char)(rows ? ON_ROWS : dy == ON_ROWS ? ON_SUM : ON_WHOLE);
        ret[3].on[a] = (unsigned char)(dy == ON_ROWS ? ON_SUM : ON_WHOLE);
    }
    ret[2].zero = ret[3].zero = in[1].zero;
    return OK;
}

/* ---- losses ---- */

static err_t loss_layouts(const struct check_op *c, const struct value_layout *in, struct value_layout *ret)
{
    bool join = c->op->kind == OP_LOSS_JOIN;
    for (int a = 0; a < AXIS_COUNT; a++) {
        unsigned logits = in[0].on[a];
        if (logits & ON_SUM)
            return share_fail(c, 0, a);
        if (!join && logits == ON_COLS)
            return want_fail(c, a, 0, logits, "the whole vocabulary");
        if (a == AXIS_TP && logits == ON_ROWS)
            return want_fail(c, a, 0, logits, "all tokens");
        if (join && in[2].on[a] != (is_data(a) ? logits : ON_WHOLE))
            return want_fail(c, a, 2, in[2].on[a], "the parts of all ranks");
    }
    ret[0] = in[0];
    loss_result(c, &ret[join ? 3 : 2]);
    return OK;
}

/* ---- norms whose columns are sharded ---- */

/* Whether this rank is the first of those that have its columns of the input of the op's node. */
static bool counts_columns(const struct check_op *c)
{
    const struct sharding *sharding = &c->at->p->sharding;
    const struct graph_cut *cut = &c->g->tensors[c->g->nodes[c->op->node].in[0]].cut;
    const int tp = sharding->mesh.size[AXIS_TP];
    int boxes, first = 0, mine = sharding_cut_box(cut, tp, sharding->coord[AXIS_TP], &boxes);
    while (cut->segments && sharding_cut_box(cut, tp, first, &boxes) != mine)
        first++;
    return !cut->segments || first == sharding->coord[AXIS_TP];
}

/* Layout of a number per token that is computed from all columns. */
static unsigned of_tokens(unsigned on)
{
    return on == ON_COLS ? ON_WHOLE : on;
}

static err_t want_layout(const struct check_op *c, int axis, const struct value_layout *in, int i, unsigned want)
{
    const unsigned on = in[i].on[axis];
    if (c->op->arg[i].buffer < 0 || in[i].zero || on == want)
        return OK;
    return on & ON_SUM && !(want & ON_SUM) ? share_fail(c, i, axis) : pair_fail(c, axis, i, on, 0, in[0].on[axis]);
}

/* x and its factors: neither may be a share, of x a rank has columns or rows. */
static err_t parts_input(const struct check_op *c, int axis, const struct value_layout *in, int factors)
{
    const unsigned on = in[0].on[axis];
    if (on & ON_SUM)
        return share_fail(c, 0, axis);
    if (on != ON_WHOLE && on != ON_ROWS && on != ON_COLS)
        return want_fail(c, axis, 0, on, "the local tensor");
    return want_layout(c, axis, in, factors, of_vector(on, false));
}

/* The sums of columns are shares. With a share of operand 1 they are too, and then all holders of the columns add
 * theirs; otherwise the first of them does. */
static err_t row_dots_layouts(const struct check_op *c, const struct value_layout *in, struct value_layout *ret)
{
    ret[3].zero = in[0].zero || in[1].zero;
    for (int a = 0; a < AXIS_COUNT && !ret[3].zero; a++) {
        const unsigned on = in[0].on[a], share = in[1].on[a] & ON_SUM;
        err_t e = parts_input(c, a, in, 2);
        if (!e)
            e = want_layout(c, a, in, 1, on | share);
        if (!e && a == AXIS_TP && on == ON_COLS && !share && !counts_columns(c))
            e = check_fail(c->at, c->why, "counts columns of %s that an earlier rank of tp counts", name_of(c, 0));
        if (e)
            return e;
        ret[3].on[a] = (unsigned char)(on == ON_COLS ? ON_SUM : on | share);
    }
    return OK;
}

static err_t norm_part_layouts(const struct check_op *c, const struct value_layout *in, struct value_layout *ret)
{
    ret[3].zero = ret[4].zero = in[0].zero;
    if (!in[0].zero && in[2].zero && counts_columns(c))
        return check_fail(c->at, c->why, "reads %s, in which this rank's columns of %s do not count", name_of(c, 2),
                          name_of(c, 0));
    for (int a = 0; a < AXIS_COUNT && !in[0].zero; a++) {
        const unsigned on = in[0].on[a];
        err_t e = parts_input(c, a, in, 1);
        if (!e)
            e = want_layout(c, a, in, 2, of_tokens(on));
        if (e)
            return e;
        ret[3].on[a] = (unsigned char)on;
        ret[4].on[a] = (unsigned char)of_tokens(on);
    }
    return OK;
}

/* From a share of dy follow shares of dx and of the weight's gradient, in which the first holder of the columns has the
 * term of the dot product. */
static err_t norm_part_grad_layouts(const struct check_op *c, const struct value_layout *in, struct value_layout *ret)
{
    const bool shared = !in[4].zero && in[4].on[AXIS_TP] & ON_SUM, counted = c->op->arg[3].buffer >= 0;
    ret[5].zero = ret[6].zero = in[4].zero;
    if (counted != (!shared || counts_columns(c)))
        return check_fail(c->at, c->why,
                          counted ? "subtracts a dot product that an earlier rank of tp subtracts from %s"
                                  : "does not subtract the dot product of %s",
                          name_of(c, 4));
    for (int a = 0; a < AXIS_COUNT && !in[4].zero; a++) {
        const unsigned on = in[0].on[a], share = in[4].on[a] & ON_SUM;
        err_t e = parts_input(c, a, in, 1);
        for (int i = 2; i < 4 && !e; i++)
            e = want_layout(c, a, in, i, of_tokens(on));
        if (!e)
            e = want_layout(c, a, in, 4, on | share);
        if (e)
            return e;
        ret[5].on[a] = (unsigned char)(on | share);
        ret[6].on[a] = (unsigned char)(of_vector_grad(on, false) | share);
    }
    return OK;
}

/* ---- collectives of one value ---- */

static err_t own_gather_layouts(const struct check_op *c, const struct value_layout *in, struct value_layout *ret)
{
    ret[1] = in[0];
    if (!in[0].zero && in[0].on[AXIS_TP] != ON_ROWS)
        return in[0].on[AXIS_TP] & ON_SUM ? share_fail(c, 0, AXIS_TP)
                                          : want_fail(c, AXIS_TP, 0, in[0].on[AXIS_TP], "own tokens");
    ret[1].on[AXIS_TP] = ON_WHOLE;
    return OK;
}

static err_t own_scatter_layouts(const struct check_op *c, const struct value_layout *in, struct value_layout *ret)
{
    ret[1] = in[0];
    if (!in[0].zero && in[0].on[AXIS_TP] != ON_SUM)
        return check_fail(c->at, c->why, "reduces %s over tp, where it is %s, not a share of a sum", name_of(c, 0),
                          layout_word(in[0].on[AXIS_TP]));
    ret[1].on[AXIS_TP] = ON_ROWS;
    return OK;
}

static err_t gather_layouts(const struct check_op *c, const struct value_layout *in, struct value_layout *ret)
{
    unsigned axes = check_group_axes(c->at->p, c->op->group);
    const bool offsets = c->at->p->buffers[c->op->arg[0].buffer].dtype == DT_I32;
    const struct value_layout x = offsets ? home_layout(c, &in[0]) : in[0];
    ret[1] = x;
    for (int a = 0; a < AXIS_COUNT && !x.zero; a++) {
        if (!(axes >> a & 1))
            continue;
        if (x.on[a] & ON_SUM)
            return share_fail(c, 0, a);
        if (x.on[a] == ON_WHOLE)
            return want_fail(c, a, 0, x.on[a], "a part that the other ranks do not have");
        ret[1].on[a] = (unsigned char)(offsets ? gathered(c, a) : ON_WHOLE);
    }
    return OK;
}

/* A receive gets the layout that this function has checked at the send. */
err_t layout_of_message(const struct check_op *c, const struct value_layout *in, struct value_layout *ret)
{
    const struct program *p = c->at->p;
    const struct buffer *b = &p->buffers[c->op->arg[0].buffer];
    struct value_layout l = layout_of_input(p);
    if (p->mesh.size[AXIS_TP] > 1 && b->dim[0].sym == SYM_OWN)
        l.on[AXIS_TP] = ON_ROWS;
    else if (p->mesh.size[AXIS_TP] > 1 && b->tensor >= 0 && c->g->tensors[b->tensor].cut.segments)
        l.on[AXIS_TP] = ON_COLS;
    for (int a = 0; in && !in->zero && a < AXIS_COUNT; a++)
        if (in->on[a] != l.on[a])
            return in->on[a] & ON_SUM ? share_fail(c, 0, a) : want_fail(c, a, 0, in->on[a], layout_word(l.on[a]));
    *ret = l;
    return OK;
}

/* A copy of the own tokens' rows of a value that every tp rank has. */
static err_t own_copy_layouts(const struct check_op *c, const struct value_layout *in, struct value_layout *ret)
{
    const struct op *op = c->op;
    const struct graph_dim from = op->arg[0].offset;
    if (!in[0].zero && in[0].on[AXIS_TP] != ON_WHOLE)
        return in[0].on[AXIS_TP] & ON_SUM ? share_fail(c, 0, AXIS_TP)
                                          : want_fail(c, AXIS_TP, 0, in[0].on[AXIS_TP], "all tokens");
    if (from.sym != SYM_OWN0 || from.factor != op->m.factor || op->arg[0].col || op->arg[1].offset.factor)
        return check_fail(c->at, c->why, "copies rows of %s that do not begin with the first own token", name_of(c, 0));
    ret[1] = in[0];
    ret[1].on[AXIS_TP] = ON_ROWS;
    return OK;
}

bool check_copies_own(const struct program *p, const struct op *op)
{
    return p->mesh.size[AXIS_TP] > 1 && op->m.sym == SYM_OWN &&
           p->buffers[op->arg[0].buffer].dim[0].sym == SYM_TOKENS &&
           p->buffers[op->arg[1].buffer].dim[0].sym == SYM_OWN;
}

err_t layout_of_op(const struct check_op *c, const struct value_layout in[OP_MAX_OPERANDS],
                   struct value_layout ret[OP_MAX_OPERANDS])
{
    memset(ret, 0, OP_MAX_OPERANDS * sizeof(*ret));
    switch (c->op->kind) {
    case OP_COPY:
        return check_copies_own(c->at->p, c->op) ? own_copy_layouts(c, in, ret) : token_op_layouts(c, in, ret);
    case OP_GEMM:
        return gemm_layouts(c, in, ret);
    case OP_GROUPED_GEMM:
        return grouped_layouts(c, in, ret);
    case OP_EXCHANGE:
        return exchange_layouts(c, in, ret);
    case OP_ARRIVE:
        return arrive_layouts(c, in, ret);
    case OP_ARRANGE:
        return arrange_layouts(c, in, ret);
    case OP_BORROW:
        return borrow_layouts(c, in, ret);
    case OP_GATHER_TOKENS:
        return gather_tokens_layouts(c, in, ret);
    case OP_SOURCES:
        return picked_layouts(c, in, 1, 2, ret);
    case OP_ROWS_PICK:
        return rows_pick_layouts(c, in, ret);
    case OP_ROUTE:
        return route_layouts(c, in, ret);
    case OP_CHOICES:
        return choices_layouts(c, in, ret);
    case OP_DROP:
        return drop_layouts(c, in, ret);
    case OP_AUX_LOSS:
        return aux_layouts(c, in, ret);
    case OP_ROUTE_GRAD:
        return route_grad_layouts(c, in, ret);
    case OP_EMBED:
        return embed_layouts(c, in, ret);
    case OP_EMBED_GRAD:
        return embed_grad_layouts(c, in, ret);
    case OP_ROW_DOTS:
        return row_dots_layouts(c, in, ret);
    case OP_RMSNORM_PART:
        return norm_part_layouts(c, in, ret);
    case OP_RMSNORM_PART_GRAD:
        return norm_part_grad_layouts(c, in, ret);
    case OP_CROSS_ENTROPY:
    case OP_LOSS_JOIN:
        return loss_layouts(c, in, ret);
    case OP_OWN_GATHER:
        return own_gather_layouts(c, in, ret);
    case OP_OWN_SCATTER:
        return own_scatter_layouts(c, in, ret);
    case OP_GATHER:
        return gather_layouts(c, in, ret);
    case OP_SEND:
    case OP_RECV:
        return layout_of_message(c, c->op->kind == OP_SEND ? in : NULL, ret);
    default:
        return check_operands[c->op->kind].class ? token_op_layouts(c, in, ret) : OK;
    }
}

/* ---- sums ---- */

err_t layout_add(const struct check_op *c, int buffer, struct value_layout *into, unsigned reduced,
                 const struct value_layout *more)
{
    const char *name = c->at->p->buffers[buffer].name;
    if (more->zero)
        return OK;
    for (int a = 0; a < AXIS_COUNT && !into->zero; a++) {
        if (into->on[a] & more->on[a] & ON_LENT)
            return check_fail(c->at, c->why, "adds to %s, which is without the parts of ranks that borrowed experts",
                              name);
        if (into->on[a] == (more->on[a] & ~ON_LENT))
            continue;
        if (reduced >> a & 1 && more->on[a] & ON_SUM)
            return check_fail(c->at, c->why, "adds to %s after its reduce", name);
        return check_fail(c->at, c->why, "adds a value that is %s on %s to %s, which is %s there",
                          layout_word(more->on[a]), mesh_axis_name((enum mesh_axis)a), name, layout_word(into->on[a]));
    }
    *into = *more;
    return OK;
}

err_t layout_reduce(const struct check_op *c, int buffer, unsigned axes, struct value_layout *l, unsigned *reduced)
{
    const char *name = c->at->p->buffers[buffer].name;
    for (int a = 0; a < AXIS_COUNT; a++) {
        if (!(axes >> a & 1))
            continue;
        if (*reduced >> a & 1)
            return check_fail(c->at, c->why, "reduces %s a second time in this step", name);
        if (!l->zero && l->on[a] & ON_LENT)
            return check_fail(c->at, c->why, "reduces %s, which is without the parts of ranks that borrowed experts",
                              name);
        if (!l->zero && !(l->on[a] & ON_SUM))
            return check_fail(c->at, c->why, "reduces %s over %s, where it is %s, not a share of a sum", name,
                              mesh_axis_name((enum mesh_axis)a), layout_word(l->on[a]));
        l->on[a] &= (unsigned char)~ON_SUM;
        *reduced |= 1u << a;
    }
    return OK;
}

struct value_layout layout_among_zeros(const struct value_layout *l)
{
    struct value_layout ret = *l;
    for (int a = 0; a < AXIS_COUNT; a++)
        ret.on[a] = (unsigned char)(l->on[a] == ON_WHOLE ? ON_WHOLE : ON_SUM);
    return ret;
}

err_t layout_of_grad(const struct check_op *c, int buffer, struct value_layout *l)
{
    const struct program *p = c->at->p;
    int t = p->buffers[buffer].tensor;
    struct value_layout is = layout_of_param(p, c->g, t, false);
    for (int a = 0; a < AXIS_COUNT && !l->zero; a++)
        if (a != AXIS_PP && BASE(l->on[a]) != is.on[a])
            return check_fail(c->at, c->why, "computes %s, which must be %s on %s, from values that are %s there",
                              p->buffers[buffer].name, layout_word(is.on[a]), mesh_axis_name((enum mesh_axis)a),
                              layout_word(l->on[a]));
    if (p->sharding.param[t].stages > 1)
        l->on[AXIS_PP] = ON_SUM;
    return OK;
}
