/* The model cut into stages, and the nodes of each stage as lists of ops: a forward, and a backward as a whole or in
 * halves; each backward for the first microbatch of a step and for later ones.
 *
 * A norm adds the residual stream to the output of a layer, so two tensors pass from one layer to the next. Where a
 * stage ends, the stage adds them, so that one tensor is sent; the sums are the same.
 *
 * The first backward of a step writes gradients, later ones add to them. Where the gradients of every microbatch are
 * scattered, all backwards write, and the scatters add. A buffer that a microbatch needs in more than one of its lists
 * has an instance for each microbatch in flight. */
#include "common/plan/compile/stages.h"
#include "common/plan/mutant.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* ---- cutting the graph ---- */

/* The index of a norm's sum among its outputs. */
static int sum_output(const struct graph_node *n)
{
    return n->op == GO_LAYERNORM ? 3 : 2;
}

static bool is_norm(const struct graph_node *n)
{
    return n->op == GO_LAYERNORM || n->op == GO_RMSNORM;
}

/* Turns the sum of norm `at`, if it has one, into a node of its own, number `to`. */
static void split_sum(struct graph *g, int at, int to)
{
    struct graph_node *norm = &g->nodes[at], *sum = &g->nodes[to];
    *sum = (struct graph_node){.op = GO_ADD, .layer = at > 0 ? g->nodes[at - 1].layer : -1};
    for (int i = 0; i < GRAPH_MAX_IN; i++)
        sum->in[i] = -1;
    for (int i = 0; i < GRAPH_MAX_OUT; i++)
        sum->out[i] = -1;
    if (!is_norm(norm) || norm->in[1] < 0 || norm->out[sum_output(norm)] < 0)
        return;
    sum->in[0] = norm->in[1];
    sum->in[1] = norm->in[0];
    sum->out[0] = norm->out[sum_output(norm)];
    norm->in[0] = sum->out[0];
    norm->in[1] = norm->out[sum_output(norm)] = -1;
}

/* The sum node at the end of stage s; -1: the stage has none. */
static int sum_node(const struct graph *g, const struct sharding *p, int s)
{
    int i = g->n_nodes - (p->n_stages - 1) + s;
    return s < p->n_stages - 1 && g->nodes[i].out[0] >= 0 ? i : -1;
}

/* Marks the outputs of a stage's nodes (made[t] = stage; -1: not made yet). False unless the nodes read at most one
 * tensor of the previous stage, *crossing, and none of earlier ones. */
static bool follow_stage(const struct graph *g, struct sharding_stage nodes, int stage, int *made, int *crossing)
{
    for (int i = nodes.first_node; i < nodes.end_node; i++) {
        for (int k = 0; k < GRAPH_MAX_IN; k++) {
            int t = g->nodes[i].in[k];
            if (t < 0 || made[t] < 0 || made[t] == stage)
                continue;
            if (made[t] != stage - 1 || (*crossing >= 0 && *crossing != t))
                return false;
            *crossing = t;
        }
        for (int k = 0; k < GRAPH_MAX_OUT; k++)
            if (g->nodes[i].out[k] >= 0)
                made[g->nodes[i].out[k]] = stage;
    }
    return true;
}

/* The tensor that passes from stage s - 1 to stage s, -1: none. False where more than one does. */
static bool find_crossing(const struct graph *g, const struct sharding *p, int s, int *made, int *ret)
{
    *ret = -1;
    if (!follow_stage(g, p->stage[s], s, made, ret))
        return false;
    int sum = sum_node(g, p, s);
    return sum < 0 || follow_stage(g, (struct sharding_stage){sum, sum + 1}, s, made, ret);
}

static err_t check_cut(const struct graph *g, const struct sharding *p, struct why *why)
{
    int *made = malloc(((size_t)g->n_tensors + 1) * sizeof(*made)), crossing;
    err_t e = made ? OK : ERR_NOMEM;
    for (int t = 0; made && t < g->n_tensors; t++)
        made[t] = -1;
    for (int s = 0; s < p->n_stages && !e; s++)
        if (!find_crossing(g, p, s, made, &crossing) || (s > 0 && crossing < 0))
            e = why_set(why, ERR_INVALID,
                        "parallel.pp: this model does not pass one tensor from stage %d to stage %d; the nearest legal "
                        "value is 1",
                        s - 1, s);
    free(made);
    return e;
}

err_t stages_cut_graph(const struct graph *g, const struct sharding *p, struct graph *ret, struct why *why)
{
    struct graph cut = *g;
    int more = p->n_stages - 1;
    cut.nodes = malloc((size_t)(g->n_nodes + more) * sizeof(*cut.nodes));
    if (!cut.nodes)
        return why_set(why, ERR_NOMEM, "no memory to cut the model into stages");
    memcpy(cut.nodes, g->nodes, (size_t)g->n_nodes * sizeof(*cut.nodes));
    cut.n_nodes += more;
    for (int s = 0; s < more; s++)
        split_sum(&cut, p->stage[s + 1].first_node, g->n_nodes + s);
    err_t e = check_cut(&cut, p, why);
    if (e)
        free(cut.nodes);
    else
        *ret = cut;
    return e;
}

/* ---- a chunk's lists ---- */

struct stage {
    struct sharding_stage nodes, sum; /* sum: the node that ends it, or none */
    int takes, gives;                 /* tensors from the previous and for the next stage; -1: none */
};

static int tensor_between(const struct compiler *c, int s)
{
    const struct sharding *p = &c->p->sharding;
    int *made = malloc(((size_t)c->g->n_tensors + 1) * sizeof(*made)), crossing = -1;
    for (int t = 0; made && t < c->g->n_tensors; t++)
        made[t] = -1;
    for (int i = 0; made && i <= s; i++)
        (void)find_crossing(c->g, p, i, made, &crossing);
    free(made);
    return crossing;
}

static struct stage stage_of(const struct compiler *c, int chunk)
{
    const struct sharding *p = &c->p->sharding;
    int s = placement_stage(p->placement, p->mesh.size[AXIS_PP], p->coord[AXIS_PP], chunk);
    int sum = p->n_stages > 1 ? sum_node(c->g, p, s) : -1;
    return (struct stage){.nodes = p->stage[s],
                          .sum = {sum < 0 ? 0 : sum, sum + 1},
                          .takes = s > 0 ? tensor_between(c, s) : -1,
                          .gives = s < p->n_stages - 1 ? tensor_between(c, s + 1) : -1};
}

static struct op_range list_from(const struct compiler *c, int first)
{
    return (struct op_range){first, c->p->n_ops - first};
}

static void forward_list(struct compiler *c, const struct stage *s, struct pipeline_chunk *k)
{
    int first = c->p->n_ops;
    if (s->takes >= 0)
        k->input = c->act[s->takes] = compile_work_buffer(c, s->takes, "");
    compile_forward(c, s->nodes);
    if (s->sum.first_node < s->sum.end_node)
        compile_forward(c, s->sum);
    k->output = s->gives >= 0 ? c->act[s->gives] : -1;
    k->lists[LIST_FORWARD][0] = k->lists[LIST_FORWARD][1] = zero_rewrite_list(c, list_from(c, first), false, false);
}

/* ---- the canonical tree ---- */

/* Whether buffer b has gradients to which later microbatches add: not those that are scattered in every backward. */
static bool adds_up(const struct compiler *c, int b)
{
    const int t = b < 0 ? -1 : c->p->buffers[b].tensor;
    if (t < 0 || c->p->buffers[b].space != SPACE_GRAD)
        return false;
    return !zero_scatters(c) || !zero_divides(c, c->g->tensors[t].unit);
}

static bool is_written(const struct compiler *c, struct op_range list, int b)
{
    for (int i = list.first; i < list.first + list.n; i++)
        for (int k = 0; op_mode(&c->p->ops[i], k); k++)
            if (c->p->ops[i].arg[k].buffer == b && op_mode(&c->p->ops[i], k) != 'r')
                return true;
    return false;
}

static void leaf(struct compiler *c, int unit, int buffer)
{
    const struct buffer *run = &c->p->buffers[c->unit_run[unit]], *b = &c->p->buffers[buffer];
    int64_t bytes = (int64_t)dtype_bytes(b->dtype);
    assert(bytes > 0);
    struct graph_dim m = dim_one(b->bytes / bytes), offset = dim_one((b->offset - run->offset) / bytes);
    struct op *op = compile_op(c, OP_TREE_LEAF, -1);
    op->m = m;
    op_arg(op, 0, buffer);
    op_arg(op, 1, c->unit_tree[unit]);
    op->arg[1].offset = buffer == c->unit_run[unit] ? dim_one(0) : offset;
}

/* Adds to the tree the gradients of a unit that the list has written: in one op, or one by one where the list, a half
 * of a backward, has written only some. */
static void leaves_of(struct compiler *c, struct op_range list, int unit)
{
    int n = 0, written = 0;
    for (int t = 0; t < c->g->n_tensors; t++) {
        int b = c->g->tensors[t].kind == GT_PARAM && c->g->tensors[t].unit == unit ? c->p->grad_buffer[t] : -1;
        n += b >= 0;
        written += b >= 0 && is_written(c, list, b);
    }
    if (written == n && n > 0)
        leaf(c, unit, c->unit_run[unit]);
    for (int t = 0; t < c->g->n_tensors && written < n && written > 0; t++) {
        int b = c->g->tensors[t].kind == GT_PARAM && c->g->tensors[t].unit == unit ? c->p->grad_buffer[t] : -1;
        if (b >= 0 && is_written(c, list, b))
            leaf(c, unit, b);
    }
}

static void tree_leaves(struct compiler *c, struct op_range list)
{
    for (int unit = c->g->n_units - 1; unit >= 0 && c->p->tree_depth && !c->err; unit--)
        if (c->unit_run[unit] >= 0)
            leaves_of(c, list, unit);
}

/* ---- backwards ---- */

/* The operand of a matmul that is its result; -1: the op is no matmul. */
static int result_of(const struct op *op)
{
    return op->kind == OP_GEMM ? 3 : op->kind == OP_GROUPED_GEMM ? 2 : -1;
}

/* The list of later microbatches: a copy of the first's in which gradients are not zeroed and the matmuls of weight
 * gradients add. Where the gradients of every microbatch are scattered, only the scatters add. */
static struct op_range later_list(struct compiler *c, struct op_range list, bool backward)
{
    int first = c->p->n_ops;
    if (c->p->tree_depth)
        return list;
    for (int i = list.first; i < list.first + list.n && !c->err; i++) {
        const struct op from = c->p->ops[i];
        if (from.kind == OP_ZERO && adds_up(c, from.arg[0].buffer))
            continue;
        struct op *op = compile_op(c, from.kind, -1);
        *op = from;
        int y = result_of(op);
        if (y >= 0 && adds_up(c, op->arg[y].buffer) && !MUTANT(MICROBATCH_OVERWRITES))
            op->flags |= OPF_ACC;
    }
    return zero_rewrite_list(c, list_from(c, first), backward, true);
}

static void end_backward(struct compiler *c, struct pipeline_chunk *k, enum chunk_list kind, int first, bool backward,
                         bool later)
{
    tree_leaves(c, list_from(c, first));
    struct op_range list = zero_rewrite_list(c, list_from(c, first), backward, false);
    k->lists[kind][0] = k->lists[kind][1] = list;
    if (later)
        k->lists[kind][1] = later_list(c, list, backward);
}

/* The gradient that arrives from the next stage must not be overwritten, because the next message may arrive in it
 * while this one is processed. Registering it as the gradient of the ids too, which have none, gives it a second user,
 * so no rule overwrites it. */
static void backward_list(struct compiler *c, const struct stage *s, struct pipeline_chunk *k, enum pass_half half,
                          bool later)
{
    static const enum chunk_list kinds[] = {
        [PASS_WHOLE] = LIST_BACKWARD, [PASS_INPUTS] = LIST_INPUT, [PASS_WEIGHTS] = LIST_WEIGHT};
    int first = c->p->n_ops;
    if (s->gives >= 0 && half != PASS_WEIGHTS) {
        k->output_grad = compile_work_buffer(c, s->gives, ".grad");
        c->grad[s->gives] = c->grad[c->g->ids] = k->output_grad;
    }
    if (s->sum.first_node < s->sum.end_node)
        compile_backward(c, s->sum, half);
    compile_backward(c, s->nodes, half);
    if (s->takes >= 0 && half != PASS_WEIGHTS)
        k->input_grad = compile_take_grad(c, s->takes);
    c->grad[c->g->ids] = -1;
    end_backward(c, k, kinds[half], first, half != PASS_INPUTS, later);
}

/* ---- instances ---- */

static int root_of(const struct compiler *c, int b)
{
    while (c->p->buffers[b].run >= 0)
        b = c->p->buffers[b].run;
    return b;
}

static void mark_uses(const struct compiler *c, struct op_range list, unsigned phase, unsigned char *phases)
{
    for (int i = list.first; i < list.first + list.n; i++)
        for (int k = 0; k < OP_MAX_OPERANDS; k++)
            if (c->p->ops[i].arg[k].buffer >= 0)
                phases[root_of(c, c->p->ops[i].arg[k].buffer)] |= (unsigned char)phase;
}

/* Whether the buffer's offset depends on its lifetime, so that it may have several instances. */
static bool is_transient(const struct compiler *c, int b)
{
    const struct buffer *buffer = &c->p->buffers[b];
    return !buffer->planned && (buffer->space == SPACE_GRAD || (buffer->space == SPACE_WORK));
}

/* Gathered parameters have the same value for all microbatches: one instance. */
static void clear_params(const struct compiler *c, unsigned char *phases)
{
    for (int b = 0; b < c->p->n_buffers; b++) {
        int t = c->p->buffers[b].tensor;
        if (t >= 0 && c->g->tensors[t].kind == GT_PARAM && c->p->buffers[b].space == SPACE_WORK)
            phases[root_of(c, b)] = 0;
    }
}

/* A buffer that a microbatch uses in more than one of its lists gets an instance for each microbatch in flight. */
static void make_instances(struct compiler *c, const struct pipeline_chunk *k, int slots)
{
    static const unsigned phase[CHUNK_LISTS] = {1, 2, 2, 4};
    unsigned char *phases = calloc((size_t)c->p->n_buffers + 1, 1);
    if (!phases)
        c->err = ERR_NOMEM;
    for (int l = 0; l < CHUNK_LISTS && !c->err; l++)
        for (int i = 0; i < 2; i++)
            mark_uses(c, k->lists[l][i], phase[l], phases);
    if (!c->err)
        clear_params(c, phases);
    for (int b = 0; b < c->p->n_buffers && !c->err; b++) {
        unsigned in = phases[root_of(c, b)];
        if (!is_transient(c, b) || (in & (in - 1)) == 0)
            continue;
        c->p->buffers[b].slots = MUTANT(ONE_INSTANCE_FOR_ALL) ? 1 : slots;
        if (MUTANT(ONE_INSTANCE_FOR_ALL))
            continue;
        c->p->buffers[b].slot_index = SLOT_ACTION;
        if ((b == k->output || b == k->input_grad) && slots > 1)
            c->err =
                why_set(c->why, ERR_INVALID, "%s is sent while its microbatch still needs it", c->p->buffers[b].name);
    }
    free(phases);
}

void chunk_compile(struct compiler *c, const struct pipeline_chunk_spec *want, struct pipeline_chunk *ret)
{
    struct stage s = stage_of(c, want->chunk);
    bool train = c->p->mode == MODE_TRAIN, later = want->rounds > 1;
    *ret =
        (struct pipeline_chunk){.split = want->split, .input = -1, .output = -1, .input_grad = -1, .output_grad = -1};
    forward_list(c, &s, ret);
    if (train && !want->split) {
        backward_list(c, &s, ret, PASS_WHOLE, later);
    } else if (train) {
        backward_list(c, &s, ret, PASS_INPUTS, later);
        backward_list(c, &s, ret, PASS_WEIGHTS, later);
    }
    if (want->slots > 1)
        make_instances(c, ret, want->slots);
}

void chunk_join(struct compiler *c, struct pipeline_chunk *chunk)
{
    for (int l = 0; l < CHUNK_LISTS; l++) {
        bool same = chunk->lists[l][0].first == chunk->lists[l][1].first;
        chunk->joins[l][0] = zero_join_list(c, chunk->lists[l][0]);
        chunk->joins[l][1] = same ? chunk->joins[l][0] : zero_join_list(c, chunk->lists[l][1]);
    }
}

void chunks_forget(struct compiler *c, struct pipeline_chunk *chunks, int n, int ops, int buffers)
{
    struct op_range **kept = malloc(((size_t)n * CHUNK_LISTS * 2 + 1) * sizeof(*kept));
    int n_kept = 0;
    if (!kept)
        c->err = ERR_NOMEM;
    for (int i = 0; i < n && kept; i++)
        for (int l = 0; l < CHUNK_LISTS; l++)
            for (int k = 0; k < 2; k++)
                if (chunks[i].joins[l][k].n)
                    kept[n_kept++] = &chunks[i].joins[l][k];
    if (kept)
        zero_keep_ranges(c, ops, buffers, kept, n_kept);
    free(kept);
}
