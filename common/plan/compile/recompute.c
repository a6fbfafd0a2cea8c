/* Activation recomputation (parallel.recompute): values that the forward discards and the backward computes again.
 *
 *   full       discards all values of a layer except those that other layers read. Where a layer starts with a residual
 *              sum, it keeps the sum and discards the two addends. So a layer keeps one tensor, and the first backward
 *              rule of the layer recomputes all of it
 *   pointwise  discards the outputs of norms and activation functions, but not residual sums
 *   attention  discards the output of attention and its statistics
 *   experts    discards the rows of experts, from the dispatch to the combine. It keeps x, the choice and its weights,
 *              so what a microbatch keeps does not depend on the routing, nor on the bound of the rows that may arrive
 *
 * The operators' rules do not depend on the policy. A backward rule that needs a discarded value calls recompute_emit,
 * which emits the nodes that compute it again, into new buffers, from values that are kept. The forward needs no
 * change: the lifetime of a buffer ends at its last use (memory_plan.c), and the backward no longer uses the old one.
 */
#include "common/plan/compile/internal.h"

#include <stdlib.h>

static bool is_norm(enum graph_op op)
{
    return op == GO_RMSNORM || op == GO_LAYERNORM;
}

static int layer_of(const struct compiler *c, int t)
{
    return t >= 0 && c->producer[t] >= 0 ? c->g->nodes[c->producer[t]].layer : -1;
}

/* Node i is the norm of a sum whose parts both come from other layers. */
static bool begins_layer(const struct compiler *c, int i)
{
    const struct graph_node *n = &c->g->nodes[i];
    return is_norm(n->op) && n->in[1] >= 0 && layer_of(c, n->in[0]) != n->layer && layer_of(c, n->in[1]) != n->layer;
}

static int sum_of(const struct graph_node *n)
{
    return n->op == GO_LAYERNORM ? n->out[3] : n->op == GO_RMSNORM ? n->out[2] : -1;
}

/* Marks the tensors that other layers read, which are kept, but not the addends of a sum that begins a layer. */
static void mark_inputs(const struct compiler *c, bool *inputs)
{
    for (int i = 0; i < c->g->n_nodes; i++) {
        const struct graph_node *n = &c->g->nodes[i];
        bool begins = begins_layer(c, i);
        for (int k = 0; k < GRAPH_MAX_IN; k++)
            if (n->in[k] >= 0 && !begins && layer_of(c, n->in[k]) != n->layer)
                inputs[n->in[k]] = true;
        if (begins && sum_of(n) >= 0)
            inputs[sum_of(n)] = true;
    }
}

/* A choice of experts is never made again: the weights and all that follows belong to the first one. */
static bool discards_full(const struct compiler *c, int t)
{
    const enum graph_op op = layer_of(c, t) >= 0 ? c->g->nodes[c->producer[t]].op : GO_ROUTE;
    return op != GO_ROUTE && op != GO_DROP;
}

static bool discards_pointwise(const struct compiler *c, int t)
{
    const struct graph_node *n = &c->g->nodes[c->producer[t]];
    if (is_norm(n->op))
        return t != sum_of(n);
    return graph_op_is_activation(n->op);
}

static bool discards_attention(const struct compiler *c, int t)
{
    return c->g->nodes[c->producer[t]].op == GO_ATTENTION;
}

static bool discards_experts(const struct compiler *c, int t)
{
    return c->g->tensors[t].by_expert || c->g->nodes[c->producer[t]].op == GO_DISPATCH;
}

static bool (*const policies[])(const struct compiler *c, int t) = {
    [RECOMPUTE_FULL] = discards_full,
    [RECOMPUTE_POINTWISE] = discards_pointwise,
    [RECOMPUTE_ATTENTION] = discards_attention,
    [RECOMPUTE_EXPERTS] = discards_experts,
};

static bool discards(const struct compiler *c, int t)
{
    enum recompute policy = c->job->parallel.recompute;
    return policy != RECOMPUTE_NONE && t != c->g->logits && policies[policy](c, t);
}

void recompute_discard(struct compiler *c, struct sharding_stage nodes)
{
    bool *inputs = calloc((size_t)c->g->n_tensors + 1, sizeof(*inputs));
    if (!inputs) {
        c->err = ERR_NOMEM;
        return;
    }
    if (c->job->parallel.recompute == RECOMPUTE_FULL)
        mark_inputs(c, inputs);
    for (int t = 0; t < c->g->n_tensors; t++) {
        enum graph_tensor_kind kind = c->g->tensors[t].kind;
        bool input = kind == GT_IDS || kind == GT_TARGETS || kind == GT_BEGIN;
        bool made = kind != GT_PARAM && !input && c->producer[t] >= nodes.first_node && c->producer[t] < nodes.end_node;
        c->discarded[t] = made && !inputs[t] && discards(c, t);
    }
    free(inputs);
}

bool recompute_discarded(const struct compiler *c, int t)
{
    return t >= 0 && c->discarded[t];
}

void recompute_keep(struct compiler *c, int node)
{
    const struct graph_node *n = &c->g->nodes[node];
    int gelu = n->op == GO_LINEAR ? compile_gelu_after(c, node) : -1;
    for (int k = 0; k < GRAPH_MAX_OUT; k++)
        if (n->out[k] >= 0)
            c->discarded[n->out[k]] = false;
    if (gelu >= 0)
        c->discarded[c->g->nodes[gelu].out[0]] = false;
}

void recompute_emit(struct compiler *c, int node)
{
    const struct graph_node *n = &c->g->nodes[node];
    bool from_sum = sum_of(n) >= 0 && !recompute_discarded(c, sum_of(n));
    for (int k = 0; k < GRAPH_MAX_IN && !from_sum; k++)
        if (recompute_discarded(c, n->in[k]))
            recompute_emit(c, compile_producer(c, n->in[k]));
    compile_node_again(c, node);
    recompute_keep(c, node);
}
