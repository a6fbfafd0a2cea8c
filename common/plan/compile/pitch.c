/* Padded rows (a pitch): which matrices have them, and how wide they are.
 *
 *   row 0   | 81 columns of logits ..................... | padding |
 *   row 1   | ..                                         |         |
 *           |<------------------ pitch: 128 elements ------------->|
 *
 * A matmul is fast where the rows of all three of its matrices begin at multiples of 16 bytes: only then can it use
 * 16-byte loads and the tensor memory accelerator. With a vocabulary of 50257, or a part of one, rows of logits do not,
 * in three matmuls of the largest matrix of the model. The plan pads such rows, and matmuls use the pitch as their
 * stride. They have as many columns as before, so the sums are the same, and the padding is never read.
 *
 * A pitch is a multiple of 128 bytes, PLAN_ROW_BYTES: one line of a GPU's second-level cache, two lines of a CPU's, and
 * NVIDIA's recommendation ("Matrix Multiplication Background User's Guide": multiples of 16 bytes, on the A100 of 128).
 * It costs at most 127 bytes a row. Rows that already begin at multiples of 16 bytes stay dense. So do rows shorter
 * than 128 bytes: matmuls with so few columns gain nothing, and the padding would be most of the matrix.
 *
 * A pitch is useful where no weight has rows of the matrix's width: parameters, and everything with their layout, are
 * dense, so a matmul with such a weight stays slow. It is possible where every op that accesses the matrix has a stride
 * for it. Both follow from the graph: the matrix is the output of a linear with a weight [out, in], it is not a share,
 * and all other nodes that use it are in the table below. These are logits, and queries, keys and values with heads of
 * odd size. A padded matrix is never sent or reduced, because messages between ranks are dense. */
#include "common/plan/compile/internal.h"

#define FAST_BYTES 16 /* rows at multiples of this are fast, and stay dense; the reason is above */

/* Bit i: every op that reads input i or writes its gradient, forward and backward, has a stride for it. */
static const unsigned takes_pitch[GO_COUNT] = {
    [GO_ROPE] = 1 << 0,
    [GO_ATTENTION] = 7 << 0,
    [GO_LOSS] = 1 << 0,
};

static int64_t row_bytes(const struct compiler *c, int t)
{
    return tp_cols(c, t) * (int64_t)dtype_bytes(c->p->dtype);
}

/* Node i is a linear whose output may be padded: its width is the weight's number of rows, it is not a share, and its
 * dense rows would be slow. */
static bool may_begin(const struct compiler *c, int i)
{
    const struct graph_node *n = &c->g->nodes[i];
    if (n->op != GO_LINEAR || n->trans_w || tp_linear_cut(c, i) == LINEAR_BY_IN || tp_is_own(c, n->out[0]))
        return false;
    int64_t bytes = row_bytes(c, n->out[0]);
    return bytes > PLAN_ROW_BYTES && bytes % FAST_BYTES;
}

/* Input k of node i may be padded: node i is its only reader apart from ropes before it, in the layer that made it. Its
 * gradient is then the result of one op, and no other stage needs it. */
static bool may_go_on(const struct compiler *c, int i, int k)
{
    const struct graph_node *n = &c->g->nodes[i];
    int t = n->in[k], maker = c->producer[t];
    return takes_pitch[n->op] >> k & 1 && (n->op == GO_ROPE || c->reader[t] == i) && maker >= 0 &&
           c->g->nodes[maker].layer == n->layer;
}

/* An op of attention has one stride for keys and values. */
static void make_alike(struct compiler *c, const struct graph_node *n)
{
    bool both = c->pitched[n->in[1]] && c->pitched[n->in[2]];
    c->pitched[n->in[1]] &= both;
    c->pitched[n->in[2]] &= both;
}

void pitch_find(struct compiler *c)
{
    for (int i = 0; i < c->g->n_nodes; i++)
        if (may_begin(c, i))
            c->pitched[c->g->nodes[i].out[0]] = true;
    for (int i = 0; i < c->g->n_nodes; i++)
        for (int k = 0; k < GRAPH_MAX_IN; k++)
            if (c->g->nodes[i].in[k] >= 0 && !may_go_on(c, i, k))
                c->pitched[c->g->nodes[i].in[k]] = false;
    for (int i = 0; i < c->g->n_nodes; i++)
        if (c->g->nodes[i].op == GO_ATTENTION)
            make_alike(c, &c->g->nodes[i]);
}

int64_t pitch_of(const struct compiler *c, int t)
{
    int64_t size = (int64_t)dtype_bytes(c->p->dtype), bytes = row_bytes(c, t);
    if (!c->pitched[t] || size == 0)
        return tp_cols(c, t);
    return (bytes + PLAN_ROW_BYTES - 1) / PLAN_ROW_BYTES * PLAN_ROW_BYTES / size;
}
