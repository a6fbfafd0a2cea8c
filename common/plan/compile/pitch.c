/* Rows that stand apart: which matrices have them, and how far.
 *
 * A product is fast where the rows of all three of its matrices begin at multiples of 16 bytes: only then do loads of
 * 16 bytes and the tensor memory accelerator apply. A vocabulary of 50257, or a part of one, makes rows of logits that
 * do not, in three products of the largest matrix there is. The plan puts room behind such rows, and products take the
 * distance of rows as a stride; they have as many columns as before, so every number is the same sum, and what is in
 * the room is never read. A pitch is a multiple of 128 bytes, PLAN_ROW_BYTES: a line of a GPU's second-level cache, two
 * of a processor's, and what NVIDIA recommends ("Matrix Multiplication Background User's Guide": multiples of 16 bytes,
 * on the A100 of 128). It costs at most 127 bytes a row. Rows that begin at multiples of 16 bytes anyway stay dense,
 * and so do rows shorter than 128 bytes: products of so few columns have nothing to gain, and the room would be most of
 * the matrix.
 *
 * It pays where the width of the matrix is no weight's row length: parameters, and what is laid out like them, are
 * dense, so a product that has such a weight would not become fast. And it is possible where every op that touches the
 * matrix takes a stride. Both follow from the nodes alone: the matrix is made by a product with a weight [out, in], it
 * is whole here, and all other nodes that name it are of kinds in the table below. So it is logits, and queries, keys
 * and values of odd heads. It is never sent and never reduced: what travels between ranks is dense. */
#include "common/plan/compile/internal.h"

#define FAST_BYTES 16 /* rows at multiples of this are left alone */

/* Bit i: every op that comes of input i, forward and backward, takes the distance of its rows; so does the gradient. */
static const unsigned takes_pitch[GO_COUNT] = {
    [GO_ROPE] = 1 << 0,
    [GO_ATTENTION] = 7 << 0,
    [GO_LOSS] = 1 << 0,
};

static int64_t row_bytes(const struct compiler *c, int t)
{
    return tp_cols(c, t) * (int64_t)dtype_bytes(c->p->dtype);
}

/* The product's result is whole here, as wide as its weight has rows, and its own rows begin anywhere. */
static bool may_begin(const struct compiler *c, int i)
{
    const struct graph_node *n = &c->g->nodes[i];
    if (n->op != GO_LINEAR || n->trans_w || tp_linear_cut(c, i) == LINEAR_BY_IN || tp_is_own(c, n->out[0]))
        return false;
    int64_t bytes = row_bytes(c, n->out[0]);
    return bytes > PLAN_ROW_BYTES && bytes % FAST_BYTES;
}

/* Nothing but node i, and ropes in front of it, reads what it takes as input k, in the layer that made it: so its
 * gradient is one op's result, and no other stage needs it. */
static bool may_go_on(const struct compiler *c, int i, int k)
{
    const struct graph_node *n = &c->g->nodes[i];
    int t = n->in[k], maker = c->producer[t];
    return takes_pitch[n->op] >> k & 1 && (n->op == GO_ROPE || c->reader[t] == i) && maker >= 0 &&
           c->g->nodes[maker].layer == n->layer;
}

/* Keys and values have one stride in an op. */
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
