/* Mixtures of experts: the forward and backward rules of their operators.
 *
 *   route      logits -> ids, weights. Where the model has an auxiliary loss, also the numbers of its sets of tokens; a
 *              set may be spread over cp, and over tp with sequence parallelism, and is summed there at once, since the
 *              backward needs the counts of the whole set
 *   drop       ids -> ids, where experts have a capacity: -1 for the choices of a sample that are too many. All ranks
 *              that have tokens of the sample need all its choices, so each writes its own in a table, and the tables
 *              are summed
 *   dispatch   a row for each choice of a token that was not dropped, sorted by expert
 *   experts    a product for each expert, with its own rows
 *   combine    the weighted sum of a token's rows
 *
 * Without expert parallelism a rank has all experts, and its rows stay with it: choices times tokens. Only where an
 * expert's rows begin is known at run time, from `offsets`. The parameters are whole, so with sequence parallelism
 * their gradients are shares of a sum over tp.
 *
 * With expert parallelism a rank has some of the experts, and rows go to the ranks of their experts and come back:
 *
 *   sort, gather    home rows, sorted by expert                       (exchange.h)
 *   gather          the offsets of all ranks: who sends how much to whom
 *   exchange        the rows that arrived, by sender
 *   gather          the same by expert: `index`                       -> products
 *   gather          back in the order of arrival: `inverse`
 *   exchange        home rows                                         -> combine
 *
 * With parallel.dispatch all_gather the tokens go to all ranks of the group instead, and each takes its rows of them:
 *
 *   gather_tokens   the tokens, and of each one's choices the home rows (`source`)
 *   sources         which choice, of those of all ranks, each row belongs to; stands for `index`
 *   rows_pick       the rows                                          -> products
 *
 * The rows and their order are the same. So are those of the backward, where the gradients of the tokens' sums are
 * gathered and each rank weighs those that it takes. Results return by exchange, as above.
 *
 * Without sequence parallelism all ranks of tp have all tokens and route them alike. Each one sends its own part of
 * them, as if it had only these; the results, and the gradients of x and of the weights, are gathered over tp.
 *
 * With parallel.expert_load balanced a rank also computes rows of experts that it borrows (borrow.c). Home rows are
 * then arranged by the rank that computes them, which follows from the offsets of all ranks.
 *
 * Each expert has the rows of all ranks of the group, so the gradients of experts are complete there. The sum over a
 * token's experts is made at home, in ascending order of the experts, whoever computed them. */
#include "common/plan/compile/internal.h"
#include "common/plan/mutant.h"

#include <stdio.h>

bool experts_count(const struct compiler *c)
{
    return c->p->mode == MODE_TRAIN && c->g->n_routers > 0;
}

/* ---- forward ---- */

static struct op *router_op(struct compiler *c, int i, enum op_kind kind, int tokens)
{
    const struct graph_router *r = &c->g->nodes[i].router;
    struct op *op = compile_op(c, kind, i);
    op->m = tp_rows(c, tokens);
    op->n = dim_one(r->experts);
    op->k = dim_one(r->k);
    return op;
}

int64_t experts_totals_before(const struct compiler *c, int i)
{
    int64_t n = 0;
    for (int k = 0; k < i; k++)
        if (c->g->nodes[k].op == GO_ROUTE)
            n += 2 * c->g->nodes[k].router.experts + 2;
    return n;
}

/* The axes over which the tokens of a set are spread. */
static unsigned set_axes(const struct compiler *c)
{
    return 1u << AXIS_CP | (c->own && !MUTANT(SETS_OF_OWN_TOKENS) ? 1u << AXIS_TP : 0);
}

static void sum_sets(struct compiler *c, int i, int numbers)
{
    const struct graph_node *n = &c->g->nodes[i];
    if (compile_group(c, set_axes(c)) < 0 || MUTANT(SETS_NOT_SUMMED))
        return;
    struct op *op = compile_collective(c, OP_ALL_REDUCE, i, set_axes(c));
    op->m = c->g->tensors[n->out[2]].dim[0];
    op->reduce = REDUCE_SUM;
    op_arg(op, 0, numbers);
}

/* The value of the auxiliary loss, once for each set: the ranks of cp and tp have the same sums. */
static void add_aux_loss(struct compiler *c, int i, int numbers)
{
    const struct graph_node *n = &c->g->nodes[i];
    if ((tp_index(c) || c->p->sharding.coord[AXIS_CP]) && !MUTANT(AUX_BY_ALL))
        return;
    struct op *op = compile_op(c, OP_AUX_LOSS, i);
    op->m = (struct graph_dim){c->g->tensors[n->out[2]].dim[0].sym, 1};
    op->n = dim_one(n->router.experts);
    op->rate = n->router.aux;
    op_arg(op, 0, numbers);
    op_arg(op, 1, c->p->aux_buffer);
    op->arg[1].offset = dim_one(n->router.index);
}

void experts_route(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    bool counts = experts_count(c), sets = counts && n->out[2] >= 0;
    int logits = compile_value(c, n->in[0]), ids = compile_new_value(c, n->out[0]),
        weights = compile_new_value(c, n->out[1]), numbers = sets ? compile_new_value(c, n->out[2]) : -1;
    if (counts && MUTANT(COUNTS_OF_THE_LAST)) {
        struct op *zero = compile_op(c, OP_ZERO, -1);
        zero->m = dim_one(2 * n->router.experts + 2);
        op_arg(zero, 0, c->p->totals_buffer);
        zero->arg[0].offset = dim_one(experts_totals_before(c, i));
    }
    struct op *op = router_op(c, i, kind, n->in[0]);
    op_arg(op, 0, logits);
    if (sets && n->router.scope == AUX_SAMPLE)
        compile_op_rows(c, op, 1, n->in[0]);
    if (MUTANT(SAMPLES_OF_THE_FIRST))
        op->arg[1].offset = dim_one(0);
    op_arg(op, 2, ids);
    op_arg(op, 3, weights);
    op_arg(op, 4, numbers);
    /* Ranks that have the same tokens count them once. */
    if (counts && (c->own || tp_index(c) == 0 || MUTANT(ROUTES_COUNTED_BY_ALL))) {
        op_arg(op, 5, c->p->totals_buffer);
        op->arg[5].offset = dim_one(experts_totals_before(c, i));
        op_arg(op, 6, c->p->closeness_buffer);
        op->arg[6].offset = dim_one(n->router.index);
    }
    op_arg(op, 7, MUTANT(CHOSEN_WITHOUT_BIASES) ? -1 : compile_value(c, n->in[1]));
    if (sets) {
        sum_sets(c, i, numbers);
        add_aux_loss(c, i, numbers);
    }
}

/* ---- capacity ---- */

bool experts_have_limits(const struct compiler *c)
{
    return c->p->mode != MODE_GENERATE;
}

static int choices_buffer(struct compiler *c, int i, struct graph_dim *ret_size)
{
    const struct graph_router *r = &c->g->nodes[i].router;
    struct buffer b = {.tensor = -1, .dtype = DT_F64, .ndim = 1, .space = SPACE_WORK, .run = -1, .slots = 1};
    b.dim[0] = (struct graph_dim){SYM_SAMPLES, (r->drop == DROP_PROBABILITY ? 2 : 1) * c->p->seq * r->k};
    snprintf(b.name, sizeof(b.name), "layer.%d.router.choices", c->g->nodes[i].layer);
    *ret_size = b.dim[0];
    return compile_buffer(c, &b);
}

static void sum_choices(struct compiler *c, int i, int table, struct graph_dim size)
{
    if (compile_group(c, set_axes(c)) < 0 || MUTANT(CHOICES_NOT_SUMMED))
        return;
    struct op *op = compile_collective(c, OP_ALL_REDUCE, i, set_axes(c));
    op->m = size;
    op->reduce = REDUCE_SUM;
    op_arg(op, 0, table);
}

/* The table of all choices of the microbatch's samples. */
static int all_choices(struct compiler *c, int i, int ids)
{
    const struct graph_node *n = &c->g->nodes[i];
    struct graph_dim size;
    int table = choices_buffer(c, i, &size);
    struct op *op = router_op(c, i, OP_CHOICES, n->in[0]);
    op_arg(op, 0, ids);
    op_arg(op, 1, n->router.drop == DROP_PROBABILITY && !MUTANT(DROPPED_BY_POSITION) ? compile_value(c, n->in[1]) : -1);
    compile_op_rows(c, op, 2, n->in[0]);
    op_arg(op, 3, table);
    sum_choices(c, i, table, size);
    return table;
}

void experts_drop(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    int ids = compile_value(c, n->in[0]);
    if (!experts_have_limits(c)) {
        compile_set_value(c, n->out[0], ids);
        return;
    }
    int table = all_choices(c, i, ids), kept = compile_new_value(c, n->out[0]);
    struct op *op = router_op(c, i, kind, n->in[0]);
    op_arg(op, 0, ids);
    compile_op_rows(c, op, 1, n->in[0]);
    if (MUTANT(TOKENS_OF_THE_FIRST_KEPT))
        op->arg[1].offset = dim_one(0);
    op_arg(op, 2, table);
    op_arg(op, 3, kept);
    if (experts_count(c) && (c->own || tp_index(c) == 0 || MUTANT(DROPS_COUNTED_BY_ALL))) {
        op_arg(op, 4, c->p->dropped_buffer);
        op->arg[4].offset = dim_one(n->router.index);
    }
}

/* ---- expert parallelism ---- */

static bool is_parallel(const struct compiler *c)
{
    return c->p->sharding.ep.axes != 0;
}

bool experts_cross_micros(const struct compiler *c)
{
    return c->p->sharding.ep.share[AXIS_FSDP] > 1;
}

bool experts_divide_tokens(const struct compiler *c)
{
    return c->p->sharding.ep.share[AXIS_TP] > 1 && !c->own;
}

/* The rows of an activation that belong to the tokens which this rank sends to experts. */
static struct graph_dim sent_rows(const struct compiler *c, int tokens)
{
    struct graph_dim d = tp_rows(c, tokens);
    d.sym = experts_divide_tokens(c) ? SYM_OWN : d.sym;
    return d;
}

static struct op *sent_op(struct compiler *c, int i, enum op_kind kind, int tokens)
{
    struct op *op = router_op(c, i, kind, tokens);
    op->m = sent_rows(c, tokens);
    return op;
}

static struct op *rows_op(struct compiler *c, int i, enum op_kind kind, int tokens)
{
    struct op *op = sent_op(c, i, kind, tokens);
    op->n = dim_one(tp_cols(c, tokens));
    return op;
}

/* ---- own parts of values that all ranks of tp have ---- */

static int own_buffer(struct compiler *c, int i, const char *name, enum dtype dtype, int64_t per_token)
{
    struct buffer b = {.tensor = -1, .dtype = dtype, .ndim = 2, .space = SPACE_WORK, .run = -1, .slots = 1};
    b.dim[0] = (struct graph_dim){SYM_OWN, 1};
    b.dim[1] = dim_one(per_token);
    snprintf(b.name, sizeof(b.name), "layer.%d.experts.own.%s", c->g->nodes[i].layer, name);
    return compile_buffer(c, &b);
}

/* The rows of own tokens of `all`, which has `per_token` elements for each token; `all` itself where it has no other
 * rows. */
static int own_part(struct compiler *c, int i, const char *name, int all, int64_t per_token)
{
    if (!experts_divide_tokens(c) || c->err)
        return all;
    int own = own_buffer(c, i, name, c->p->buffers[all].dtype, per_token);
    struct op *op = compile_op(c, OP_COPY, i);
    op->m = (struct graph_dim){SYM_OWN, per_token};
    op_arg(op, 0, all);
    op->arg[0].offset = (struct graph_dim){SYM_OWN0, MUTANT(OTHER_TOKENS_SENT) ? 0 : per_token};
    op_arg(op, 1, own);
    return own;
}

/* A buffer for the rows of own tokens of `all`, from which whole_from then gathers `all`. */
static int own_part_new(struct compiler *c, int i, const char *name, int all, int64_t per_token)
{
    if (!experts_divide_tokens(c) || c->err)
        return all;
    return own_buffer(c, i, name, c->p->buffers[all].dtype, per_token);
}

static void whole_from(struct compiler *c, int i, int own, int all, int64_t per_token)
{
    if (own == all || c->err)
        return;
    struct op *op = compile_collective(c, OP_OWN_GATHER, i, 1u << AXIS_TP);
    op->m = dim_tokens(1);
    op->n = dim_one(per_token);
    op_arg(op, 0, own);
    op_arg(op, 1, all);
}

int64_t experts_max_arrived(const struct compiler *c)
{
    const struct program *p = c->p;
    if (!is_parallel(c))
        return 0;
    for (int i = 0; i < c->g->n_nodes; i++)
        if (c->g->nodes[i].op == GO_EXPERTS) {
            const struct sharding_param *q = &p->sharding.param[c->g->nodes[i].in[1]];
            const struct graph_router *r = &c->g->nodes[i].router;
            int64_t experts = q->rows / (c->g->tensors[c->g->nodes[i].in[1]].dim[0].factor / r->experts);
            const struct graph_cut all = {.experts = true};
            const int64_t parts = p->balanced ? sharding_parts(&p->sharding, &all) : 1;
            experts = p->balanced ? r->experts : experts;
            int64_t rows = program_group_tokens(p, p->max_samples) * (r->k < experts ? r->k : experts);
            int64_t kept = p->max_samples * p->sharding.ep.share[AXIS_FSDP] * experts * graph_capacity(r, p->seq);
            bool limited = r->capacity > 0 && experts_have_limits(c) && kept < rows;
            return ((limited ? kept : rows) + parts - 1) / parts - MUTANT(ARRIVED_TOO_SMALL);
        }
    return 0;
}

/* A buffer for home rows, or with cols 0 for int32[n]. */
static int exchange_buffer(struct compiler *c, int i, const char *name, struct graph_dim n, int64_t cols)
{
    struct buffer b = {.tensor = -1, .ndim = cols ? 2 : 1, .space = SPACE_WORK, .run = -1, .slots = 1};
    b.dtype = cols ? c->p->dtype : DT_I32;
    b.dim[0] = n;
    b.dim[1] = dim_one(cols);
    snprintf(b.name, sizeof(b.name), "layer.%d.experts.%s", c->g->nodes[i].layer, name);
    return compile_buffer(c, &b);
}

/* The home rows of node i: a row for each choice of a token of `tokens`. */
static struct graph_dim home_rows(const struct compiler *c, int i, int tokens)
{
    struct graph_dim d = sent_rows(c, tokens);
    d.factor *= c->g->nodes[i].router.k;
    return d;
}

/* y = the rows of x in the order of `index`. */
static void reorder(struct compiler *c, int i, int x, int index, int y, int64_t cols)
{
    struct op *op = compile_op(c, OP_ROWS_GATHER, i);
    op->m = (struct graph_dim){SYM_ARRIVED, 1};
    op->n = dim_one(cols);
    op_arg(op, 0, x);
    op_arg(op, 1, index);
    op_arg(op, 2, y);
}

static void exchange(struct compiler *c, int i, int x, int all, int y, struct graph_dim home, int64_t cols, bool back)
{
    const struct graph_dim arrived = {SYM_ARRIVED, 1};
    struct op *op = compile_collective_experts(c, OP_EXCHANGE, i);
    op->flags = back ? OPF_INVERSE : 0;
    op->m = back ? arrived : home;
    op->k = back ? home : arrived;
    op->n = dim_one(cols);
    op_arg(op, 0, x);
    op_arg(op, 1, all);
    op_arg(op, 2, y);
}

/* Home rows to the rows of this rank's experts, in `rows`. */
static void send_rows(struct compiler *c, int i, int home, int all, int index, int rows, int tokens)
{
    int64_t cols = tp_cols(c, tokens);
    int arrived = exchange_buffer(c, i, "arrived", (struct graph_dim){SYM_ARRIVED, 1}, cols);
    exchange(c, i, home, all, arrived, home_rows(c, i, tokens), cols, false);
    reorder(c, i, arrived, index, rows, cols);
}

/* Rows of this rank's experts to home rows. Returns their buffer. */
static int return_rows(struct compiler *c, int i, int rows, int all, int inverse, int tokens)
{
    int64_t cols = tp_cols(c, tokens);
    struct graph_dim n = home_rows(c, i, tokens);
    int arrived = exchange_buffer(c, i, "returned", (struct graph_dim){SYM_ARRIVED, 1}, cols);
    int home = exchange_buffer(c, i, "home", n, cols);
    reorder(c, i, rows, inverse, arrived, cols);
    exchange(c, i, arrived, all, home, n, cols, !MUTANT(NOT_RETURNED));
    return home;
}

/* ---- all-gather of the tokens ---- */

static bool gathers_tokens(const struct compiler *c)
{
    return is_parallel(c) && c->job->parallel.dispatch == DISPATCH_ALL_GATHER;
}

/* `per_token` elements of each token of all ranks, in a new buffer; x has those of this rank's tokens. */
static int tokens_of_all(struct compiler *c, int i, const char *name, int x, int all, int64_t per_token, int tokens)
{
    if (c->err)
        return -1;
    const int64_t most = program_group_tokens(c->p, c->p->max_samples);
    struct buffer b = {.tensor = -1, .dtype = c->p->buffers[x].dtype, .space = SPACE_WORK, .run = -1, .slots = 1};
    b.ndim = 2;
    b.dim[0] = dim_one(most);
    b.dim[1] = dim_one(per_token);
    snprintf(b.name, sizeof(b.name), "layer.%d.experts.%s.all", c->g->nodes[i].layer, name);
    int y = compile_buffer(c, &b);
    struct op *op = compile_collective_experts(c, OP_GATHER_TOKENS, i);
    op->m = sent_rows(c, tokens);
    op->n = dim_one(per_token);
    op->k = dim_one(c->g->nodes[i].router.k);
    op->seq = most;
    op_arg(op, 0, x);
    op_arg(op, 1, all);
    op_arg(op, 2, y);
    return y;
}

/* The choice of each row, in `choices`; `source` has the choice of each home row of this rank. */
static void find_choices(struct compiler *c, int i, int source, int all, int choices)
{
    const struct graph_router *r = &c->g->nodes[i].router;
    int sources = tokens_of_all(c, i, "source", source, all, r->k, c->g->nodes[i].in[0]);
    struct op *op = compile_op(c, OP_SOURCES, i);
    op->m = c->err ? dim_one(0) : c->p->buffers[all].dim[0];
    op->n = dim_one(r->experts);
    op->seq = program_group_tokens(c->p, c->p->max_samples) * r->k;
    op_arg(op, 0, all);
    op_arg(op, 1, sources);
    op_arg(op, 2, choices);
}

/* The rows of this rank's experts, of x, which has the tokens of all ranks. */
static void pick_rows(struct compiler *c, int i, int x, int choices, int weights, int rows, int64_t cols)
{
    struct op *op = compile_op(c, OP_ROWS_PICK, i);
    op->m = (struct graph_dim){SYM_ARRIVED, 1};
    op->n = dim_one(cols);
    op->k = dim_one(c->g->nodes[i].router.k);
    op->seq = program_group_tokens(c->p, c->p->max_samples);
    op_arg(op, 0, x);
    op_arg(op, 1, choices);
    op_arg(op, 2, weights);
    op_arg(op, 3, rows);
}

/* The gradients of the rows of this rank's experts: those of the sums of all ranks' tokens, times the weights. */
static void pick_gradients(struct compiler *c, int i, int dy, int weights, int d_rows)
{
    const struct graph_node *n = &c->g->nodes[i];
    const int all = compile_value(c, n->in[3]), choices = compile_value(c, n->in[4]);
    const int64_t cols = tp_cols(c, n->out[0]);
    int dy_all = tokens_of_all(c, i, "y.grad", dy, all, cols, n->out[0]);
    int weights_all = tokens_of_all(c, i, "weights", weights, all, n->router.k, n->out[0]);
    pick_rows(c, i, dy_all, choices, MUTANT(GRADIENTS_NOT_WEIGHED) ? -1 : weights_all, d_rows, cols);
}

/* ---- the order of rows ---- */

/* Home rows that are sorted by expert: into the order of the ranks that compute them. */
static void arrange(struct compiler *c, int i, int all, int place, int by_expert, int source)
{
    const int tokens = c->g->nodes[i].in[0];
    const int args[] = {all, place, by_expert, source, exchange_buffer(c, i, "moved", home_rows(c, i, tokens), 0)};
    struct op *op = sent_op(c, i, OP_ARRANGE, tokens);
    for (int k = 0; k < 5; k++)
        op_arg(op, k, args[k]);
}

/* Gathers the offsets of all ranks in a new buffer. */
static int gather_offsets(struct compiler *c, int i, int mine)
{
    const int64_t numbers = c->g->nodes[i].router.experts + 1;
    struct op *op = compile_collective_experts(c, OP_GATHER, i);
    int64_t members = c->err || op->group < 0 ? 1 : c->p->groups[op->group].n;
    op->m = dim_one(numbers);
    op_arg(op, 0, mine);
    int all = exchange_buffer(c, i, "all", dim_one(members * numbers), 0);
    op_arg(&c->p->ops[c->p->n_ops - 1], 1, all);
    return all;
}

/* The order of the rows that will arrive. */
static void order_arrived(struct compiler *c, int i, int all, const int out[3])
{
    struct op *op = compile_op(c, OP_ARRIVE, i);
    op->m = c->err ? dim_one(0) : c->p->buffers[all].dim[0];
    op->n = dim_one(c->g->nodes[i].router.experts);
    op_arg(op, 0, all);
    for (int k = gathers_tokens(c) ? 1 : 0; k < 3; k++)
        op_arg(op, 1 + k, out[k]);
}

/* ---- dispatch and products ---- */

static void sort_rows(struct compiler *c, int i, int ids, int place, int source, int offsets)
{
    const int args[] = {ids, place, source, offsets};
    struct op *op = sent_op(c, i, OP_ROUTE_SORT, c->g->nodes[i].in[0]);
    for (int k = 0; k < 4; k++)
        op_arg(op, k, args[k]);
}

/* The choices of the rows: those that were kept, where experts have a capacity. */
static int sent_ids(const struct compiler *c, int i)
{
    const int t = c->g->nodes[i].in[1], from = c->producer[t];
    return MUTANT(NOTHING_DROPPED) && c->g->nodes[from].op == GO_DROP ? c->g->nodes[from].in[0] : t;
}

/* Takes the rows of this rank's experts from x, of which it gathers all ranks' tokens. */
static void dispatch_gathered(struct compiler *c, int i, int x, int ids, const int out[7])
{
    const struct graph_node *n = &c->g->nodes[i];
    const int64_t cols = tp_cols(c, n->in[0]);
    int offsets = exchange_buffer(c, i, "sent.offsets", dim_one(n->router.experts + 1), 0);
    sort_rows(c, i, ids, out[1], out[2], offsets);
    int all = c->act[n->out[4]] = gather_offsets(c, i, offsets);
    order_arrived(c, i, all, (const int[]){out[5], out[6], out[3]});
    find_choices(c, i, out[2], all, out[5]);
    pick_rows(c, i, tokens_of_all(c, i, "x", x, all, cols, n->in[0]), out[5], -1, out[0], cols);
}

void experts_dispatch(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    const bool parallel = is_parallel(c), arranges = c->p->balanced && !MUTANT(ROWS_NOT_ARRANGED);
    int x = compile_value(c, n->in[0]), ids = compile_value(c, sent_ids(c, i)), out[7] = {-1, -1, -1, -1, -1, -1, -1};
    (void)kind;
    for (int k = 0; k < 7; k++)
        if (k < 4 || (parallel && k > 4))
            out[k] = compile_new_value(c, n->out[k]);
    int home = out[0], offsets = out[3], source = out[2];
    x = own_part(c, i, "x", x, tp_cols(c, n->in[0]));
    ids = own_part(c, i, "ids", ids, n->router.k);
    if (gathers_tokens(c)) {
        dispatch_gathered(c, i, x, ids, out);
        return;
    }
    if (parallel) {
        home = exchange_buffer(c, i, "sent", home_rows(c, i, n->in[0]), tp_cols(c, n->in[0]));
        offsets = exchange_buffer(c, i, "sent.offsets", dim_one(n->router.experts + 1), 0);
    }
    if (arranges)
        source = exchange_buffer(c, i, "source", home_rows(c, i, n->in[0]), 0);
    sort_rows(c, i, ids, out[1], source, offsets);
    if (parallel)
        c->act[n->out[4]] = gather_offsets(c, i, offsets);
    if (arranges)
        arrange(c, i, c->act[n->out[4]], out[1], source, out[2]);
    struct op *op = rows_op(c, i, OP_ROWS_GATHER, n->in[0]);
    op_arg(op, 0, x);
    op_arg(op, 1, out[2]);
    op_arg(op, 2, home);
    if (parallel) {
        order_arrived(c, i, c->act[n->out[4]], (const int[]){out[5], out[6], out[3]});
        send_rows(c, i, home, c->act[n->out[4]], out[MUTANT(ROWS_TURNED_AROUND) ? 6 : 5], out[0], n->in[0]);
    }
}

/* `more`: the matrices or gradients of borrowed experts, -1: none. */
static struct op *product_op(struct compiler *c, int i, int64_t n, int64_t k, int more)
{
    const struct graph_node *node = &c->g->nodes[i];
    struct op *op = compile_op(c, OP_GROUPED_GEMM, i);
    op->m = tp_rows(c, node->out[0]);
    op->n = dim_one(n);
    op->k = dim_one(k);
    op->seq = node->router.experts;
    if (is_parallel(c))
        op->seq = c->p->sharding.param[node->in[1]].rows / (c->g->tensors[node->in[1]].dim[0].factor / op->seq);
    if (more >= 0)
        op->seq_kv = borrow_slots(c, node->router.experts);
    op->seq += op->seq_kv;
    op_arg(op, 3, compile_value(c, node->in[2]));
    op_arg(op, 4, more);
    return op;
}

void experts_product(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    int x = compile_value(c, n->in[0]), y = compile_new_value(c, n->out[0]);
    (void)kind;
    int more = borrow_matrices(c, i);
    struct op *op = product_op(c, i, tp_cols(c, n->out[0]), tp_cols(c, n->in[0]), more);
    op->flags = OPF_TRANS_B;
    op_arg(op, 0, x);
    op_arg(op, 1, compile_value(c, n->in[1]));
    op_arg(op, 2, y);
}

void experts_combine(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    int rows = compile_value(c, n->in[0]), home = rows;
    if (is_parallel(c)) {
        home = return_rows(c, i, rows, compile_value(c, n->in[3]), compile_value(c, n->in[5]), n->out[0]);
        c->home[i] = home;
    }
    const int64_t cols = tp_cols(c, n->out[0]);
    int weights = own_part(c, i, "weights", compile_value(c, n->in[1]), n->router.k);
    int y = compile_new_value(c, n->out[0]), own = own_part_new(c, i, "y", y, cols);
    struct op *op = rows_op(c, i, kind, n->out[0]);
    op_arg(op, 0, home);
    op_arg(op, 1, MUTANT(WEIGHTS_LEFT_OUT) ? -1 : weights);
    op_arg(op, 2, compile_value(c, n->in[2]));
    op_arg(op, 3, own);
    whole_from(c, i, own, y, cols);
}

void experts_gate(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    int y = compile_new_value(c, n->out[0]);
    struct op *op = compile_op(c, kind, i);
    op->m = tp_rows(c, n->out[0]);
    op->n = dim_one(tp_cols(c, n->out[0]));
    op_arg(op, 0, compile_value(c, n->in[0]));
    op_arg(op, 1, compile_value(c, n->in[1]));
    op_arg(op, 2, y);
}

/* ---- backward ---- */

/* The gradient of a value whose buffer its only reader may overwrite. */
static int grad_in_place(struct compiler *c, int t)
{
    return compile_may_overwrite(c, t) ? c->act[t] : compile_work_buffer(c, t, ".grad");
}

void experts_gate_grad(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    int x = compile_forward_value(c, n->in[0]), z = compile_forward_value(c, n->in[1]);
    int dy = compile_take_grad(c, n->out[0]), dx = compile_work_buffer(c, n->in[0], ".grad");
    const int args[] = {x, z, dy, dx, compile_work_buffer(c, n->in[1], ".grad")};
    struct op *op = compile_op(c, kind, i);
    op->m = tp_rows(c, n->out[0]);
    op->n = dim_one(tp_cols(c, n->out[0]));
    for (int k = 0; k < 5; k++)
        op_arg(op, k, args[k]);
    compile_add_gradient(c, n->in[0], dx);
    compile_add_gradient(c, n->in[1], args[4]);
}

/* The home rows of a combine: those of the forward, or where they were discarded, returned once more. */
static int home_again(struct compiler *c, int i)
{
    const struct graph_node *n = &c->g->nodes[i];
    bool discarded = recompute_discarded(c, n->in[0]);
    int rows = compile_forward_value(c, n->in[0]);
    for (int k = 3; k < 6 && is_parallel(c); k++)
        (void)compile_forward_value(c, n->in[k]);
    if (!is_parallel(c))
        return rows;
    return discarded ? return_rows(c, i, rows, compile_value(c, n->in[3]), compile_value(c, n->in[5]), n->out[0])
                     : c->home[i];
}

void experts_combine_grad(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    int home = home_again(c, i), weights = compile_forward_value(c, n->in[1]);
    int place = compile_forward_value(c, n->in[2]), dy = compile_take_grad(c, n->out[0]);
    int d_home = is_parallel(c) ? home : grad_in_place(c, n->in[0]);
    int d_weights = compile_typed_buffer(c, n->in[1], ".grad", c->p->wide);
    weights = own_part(c, i, "weights", weights, n->router.k);
    dy = own_part(c, i, "y.grad", dy, tp_cols(c, n->out[0]));
    int own = own_part_new(c, i, "weights.grad", d_weights, n->router.k);
    const int args[] = {home, weights, place, dy, d_home, own};
    struct op *op = rows_op(c, i, kind, n->out[0]);
    for (int k = 0; k < 6; k++)
        op_arg(op, k, args[k]);
    whole_from(c, i, own, d_weights, n->router.k);
    int d_rows = d_home;
    if (is_parallel(c))
        d_rows = compile_work_buffer(c, n->in[0], ".grad");
    if (gathers_tokens(c))
        pick_gradients(c, i, dy, weights, d_rows);
    else if (is_parallel(c))
        send_rows(c, i, d_home, compile_value(c, n->in[3]), compile_value(c, n->in[4]), d_rows, n->out[0]);
    compile_add_gradient(c, n->in[0], d_rows);
    compile_add_gradient(c, n->in[1], d_weights);
}

/* dW of each expert = dy^T x over its rows. */
void experts_weight_grad(struct compiler *c, int i, int dy)
{
    const struct graph_node *n = &c->g->nodes[i];
    int64_t out = tp_cols(c, n->out[0]), in = tp_cols(c, n->in[0]);
    int x = compile_forward_value(c, n->in[0]);
    (void)compile_forward_value(c, n->in[2]);
    int more = borrow_gradients(c, i);
    struct op *op = product_op(c, i, in, out, more);
    op->flags = OPF_TRANS_A | (c->grad_started[n->in[1]] ? OPF_ACC : 0);
    op_arg(op, 0, dy);
    op_arg(op, 1, x);
    op_arg(op, 2, c->p->grad_buffer[n->in[1]]);
    borrow_give_back(c, i, more);
    if (!MUTANT(EXPERTS_UNMARKED))
        compile_mark_shares(c, n->in[1],
                            (c->own || experts_divide_tokens(c)) && sharding_rest(&c->p->sharding, AXIS_TP) > 1);
    c->grad_started[n->in[1]] = true;
}

/* dx = dy W by expert, added to what another product has written. */
static void input_grad(struct compiler *c, int i, int dy)
{
    const struct graph_node *n = &c->g->nodes[i];
    int dx = c->grad[n->in[0]];
    bool acc = compile_grad_may_overwrite(c, dx) && dx != dy;
    if (!acc)
        dx = compile_work_buffer(c, n->in[0], ".grad");
    int more = borrow_matrices(c, i);
    struct op *op = product_op(c, i, tp_cols(c, n->in[0]), tp_cols(c, n->out[0]), more);
    op->flags = acc ? OPF_ACC : 0;
    op_arg(op, 0, dy);
    op_arg(op, 1, compile_value(c, n->in[1]));
    op_arg(op, 2, dx);
    if (!acc)
        compile_add_gradient(c, n->in[0], dx);
}

void experts_product_grad(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    int dy = compile_take_grad(c, n->out[0]);
    (void)kind;
    (void)compile_forward_value(c, n->in[0]);
    (void)compile_forward_value(c, n->in[2]);
    if (c->half == PASS_INPUTS)
        c->weight_dy[i] = dy;
    else
        experts_weight_grad(c, i, dy);
    input_grad(c, i, dy);
}

/* The node of the router of dispatch i. */
static const struct graph_node *router_before(const struct compiler *c, int i)
{
    while (c->g->nodes[i].op != GO_ROUTE)
        i--;
    return &c->g->nodes[i];
}

/* A token's gradient is the sum of those of its rows. */
void experts_dispatch_grad(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    int place = compile_forward_value(c, n->out[1]), d_rows = compile_take_grad(c, n->out[0]);
    if (is_parallel(c))
        d_rows = return_rows(c, i, d_rows, compile_value(c, n->out[4]), compile_value(c, n->out[6]), n->in[0]);
    int dx = compile_work_buffer(c, n->in[0], ".grad"), own = own_part_new(c, i, "x.grad", dx, tp_cols(c, n->in[0]));
    struct op *op = rows_op(c, i, kind, n->in[0]);
    op_arg(op, 0, d_rows);
    op_arg(op, 1, MUTANT(WEIGHTS_TWICE) ? compile_value(c, router_before(c, i)->out[1]) : -1);
    op_arg(op, 2, place);
    op_arg(op, 3, own);
    whole_from(c, i, own, dx, tp_cols(c, n->in[0]));
    compile_add_gradient(c, n->in[0], dx);
}

void experts_route_grad(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    int logits = compile_forward_value(c, n->in[0]), d_weights = compile_take_grad(c, n->out[1]);
    int dx = compile_work_buffer(c, n->in[0], ".grad");
    const int args[] = {logits, compile_value(c, n->out[0]), compile_value(c, n->out[1]), d_weights};
    struct op *op = router_op(c, i, kind, n->in[0]);
    for (int k = 0; k < 4; k++)
        op_arg(op, k, args[k]);
    if (n->out[2] >= 0 && n->router.scope == AUX_SAMPLE)
        compile_op_rows(c, op, 4, n->in[0]);
    op_arg(op, 5, compile_value(c, n->in[2] >= 0 ? n->in[2] : n->out[2]));
    op_arg(op, 6, dx);
    compile_add_gradient(c, n->in[0], dx);
}
