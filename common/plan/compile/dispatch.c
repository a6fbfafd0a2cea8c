/* Mixtures of experts: the rows of experts, from the tokens to their sums.
 *
 * With expert parallelism a rank has some of the experts, and rows go to the ranks of their experts and come back:
 *
 *   sort, gather    home rows, sorted by expert                       (exchange.h)
 *   gather          the offsets of all ranks: how much each rank sends to each other one
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
 * With parallel.expert_rows a rank has room for some of the rows that the router may send. Home rows are then arranged
 * by round, and a layer computes one round after another, all ops between dispatch and combine:
 *
 *   round 1     exchange, products, exchange                          home rows of round 1
 *   round 2     the same, in the same buffers                         home rows of round 2
 *   ..                                                                -> combine
 *
 * The number of rounds follows from the most rows that may come; one without rows sends nothing. The backward repeats
 * the forward of each round before its own products, because the next round has overwritten the rows. Results replace
 * the home rows that a round has sent, of the gradients too. */
#include "common/plan/compile/internal.h"
#include "common/plan/mutant.h"

#include <math.h>
#include <stdio.h>

static bool is_parallel(const struct compiler *c)
{
    return c->p->sharding.ep.axes != 0;
}

static bool in_rounds(const struct compiler *c)
{
    return c->p->rounds > 1;
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
    struct op *op = experts_router_op(c, i, kind, tokens);
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

/* The most rows that may arrive for so many experts of router r. */
static int64_t most_rows(const struct compiler *c, const struct graph_router *r, int64_t experts)
{
    const struct program *p = c->p;
    int64_t rows = program_group_tokens(p, p->max_samples) * (r->k < experts ? r->k : experts);
    int64_t kept = p->max_samples * p->sharding.ep.share[AXIS_FSDP] * experts * graph_capacity(r, p->seq);
    return r->capacity > 0 && experts_have_limits(c) && kept < rows ? kept : rows;
}

static int64_t divide_up(int64_t n, int64_t by)
{
    return (n + by - 1) / by;
}

/* Rows of a round, and the number of rounds. They are those of the rank with most experts, on every rank. */
static void set_rounds(const struct compiler *c, const struct graph_router *r, int64_t members)
{
    struct program *p = c->p;
    const int64_t most = most_rows(c, r, divide_up(r->experts, members));
    const double all = (double)(program_group_tokens(p, p->max_samples) * r->k);
    const int64_t room = (int64_t)ceil(c->job->parallel.expert_rows * all / (double)members);
    if (c->job->parallel.expert_rows == 0 || room >= most || room < 1)
        return;
    p->round_rows = room - MUTANT(ROUND_TOO_SMALL);
    p->rounds = (int)divide_up(most, room);
}

void dispatch_init(struct compiler *c)
{
    struct program *p = c->p;
    const struct graph_cut all = {.experts = true};
    const int64_t members = sharding_parts(&p->sharding, &all);
    p->rounds = 1;
    p->balanced = is_parallel(c) && c->job->parallel.expert_load == EXPERT_LOAD_BALANCED;
    for (int i = 0; i < c->g->n_nodes && is_parallel(c); i++) {
        const struct graph_node *n = &c->g->nodes[i];
        if (n->op != GO_EXPERTS)
            continue;
        int64_t own = p->sharding.param[n->in[1]].rows / (c->g->tensors[n->in[1]].dim[0].factor / n->router.experts);
        if (p->balanced)
            p->max_arrived = divide_up(most_rows(c, &n->router, n->router.experts), members);
        else
            p->max_arrived = most_rows(c, &n->router, own);
        p->max_arrived -= MUTANT(ARRIVED_TOO_SMALL);
        p->mean_arrived = divide_up(program_group_tokens(p, p->max_samples) * n->router.k, members);
        p->mean_arrived = p->mean_arrived < p->max_arrived ? p->mean_arrived : p->max_arrived;
        set_rounds(c, &n->router, members);
        if (in_rounds(c) && p->max_arrived > p->round_rows)
            p->max_arrived = p->round_rows;
        return;
    }
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
    op_arg(op, 3, y);
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

/* Rows of this rank's experts to `home`. */
static void return_to(struct compiler *c, int i, int rows, int all, int inverse, int home, int tokens)
{
    int64_t cols = tp_cols(c, tokens);
    int arrived = exchange_buffer(c, i, "returned", (struct graph_dim){SYM_ARRIVED, 1}, cols);
    reorder(c, i, rows, inverse, arrived, cols);
    exchange(c, i, arrived, all, home, home_rows(c, i, tokens), cols, !MUTANT(NOT_RETURNED));
}

/* The same to a new buffer, which is returned. */
static int return_rows(struct compiler *c, int i, int rows, int all, int inverse, int tokens)
{
    int home = exchange_buffer(c, i, "home", home_rows(c, i, tokens), tp_cols(c, tokens));
    return_to(c, i, rows, all, inverse, home, tokens);
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

/* The node of the router of dispatch i. */
static const struct graph_node *router_before(const struct compiler *c, int i)
{
    while (c->g->nodes[i].op != GO_ROUTE)
        i--;
    return &c->g->nodes[i];
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
    if (!in_rounds(c) || !experts_count(c))
        return;
    op_arg(op, 4, c->p->number_buffer[NUMBER_ROUNDS]);
    op->arg[4].offset = dim_one(router_before(c, i)->router.index);
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

/* Emits the home rows of dispatch i, in the order in which they are sent. */
static int gather_home(struct compiler *c, int i, int x, int source, int home)
{
    struct op *op = rows_op(c, i, OP_ROWS_GATHER, c->g->nodes[i].in[0]);
    op_arg(op, 0, x);
    op_arg(op, 1, source);
    op_arg(op, 3, home);
    return home;
}

/* Sorts the choices by expert, and where ranks do not compute all rows of their own experts at once, by what they
 * compute. */
static void sort_home(struct compiler *c, int i, int ids, const int out[7])
{
    const struct graph_node *n = &c->g->nodes[i];
    const bool arranges = (c->p->balanced || in_rounds(c)) && !MUTANT(ROWS_NOT_ARRANGED);
    int offsets = exchange_buffer(c, i, "sent.offsets", dim_one(n->router.experts + 1), 0);
    int source = arranges ? exchange_buffer(c, i, "source", home_rows(c, i, n->in[0]), 0) : out[2];
    sort_rows(c, i, ids, out[1], source, offsets);
    c->act[n->out[4]] = gather_offsets(c, i, offsets);
    if (arranges)
        arrange(c, i, c->act[n->out[4]], out[1], source, out[2]);
}

/* The rows of this rank's experts, from the home rows; `out`: those of the node. */
static void receive_rows(struct compiler *c, int i, int home, const int out[7])
{
    const struct graph_node *n = &c->g->nodes[i];
    order_arrived(c, i, c->act[n->out[4]], (const int[]){out[5], out[6], out[3]});
    send_rows(c, i, home, c->act[n->out[4]], out[MUTANT(ROWS_TURNED_AROUND) ? 6 : 5], out[0], n->in[0]);
}

/* Values of the rows that arrive exist for each round, the others once. */
static void new_values(struct compiler *c, int i, bool arrived, bool home, int out[7])
{
    static const bool is_home[] = {[1] = true, [2] = true};
    for (int k = 0; k < 7; k++) {
        const bool exists = k < 4 || (is_parallel(c) && k > 4), here = k < 3 && is_home[k];
        out[k] = exists && (here ? home : arrived) ? compile_new_value(c, c->g->nodes[i].out[k]) : -1;
    }
}

void experts_dispatch(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    int x = compile_value(c, n->in[0]), ids = compile_value(c, sent_ids(c, i)), out[7];
    (void)kind;
    new_values(c, i, !in_rounds(c), true, out);
    x = own_part(c, i, "x", x, tp_cols(c, n->in[0]));
    ids = own_part(c, i, "ids", ids, n->router.k);
    if (gathers_tokens(c)) {
        dispatch_gathered(c, i, x, ids, out);
    } else if (!is_parallel(c)) {
        sort_rows(c, i, ids, out[1], out[2], out[3]);
        gather_home(c, i, x, out[2], out[0]);
    } else {
        sort_home(c, i, ids, out);
        int home = exchange_buffer(c, i, "sent", home_rows(c, i, n->in[0]), tp_cols(c, n->in[0]));
        c->home[i] = gather_home(c, i, x, out[2], home);
        if (!in_rounds(c))
            receive_rows(c, i, home, out);
    }
}

/* ---- rounds ---- */

bool dispatch_waits(const struct compiler *c, int i)
{
    const struct graph_node *n = &c->g->nodes[i];
    return in_rounds(c) && !c->round && n->op != GO_DISPATCH && n->out[0] >= 0 && c->g->tensors[n->out[0]].by_expert;
}

static int rounds_of(const struct compiler *c)
{
    return c->p->rounds - MUTANT(ROUND_LEFT_OUT);
}

/* The forward of one round, of all nodes between dispatch d and combine i. Results replace the home rows. */
static void round_forward(struct compiler *c, int d, int i, int round)
{
    const struct graph_node *n = &c->g->nodes[i];
    int out[7], home = c->home[d];
    c->round = round;
    new_values(c, d, true, false, out);
    receive_rows(c, d, home, out);
    for (int k = d + 1; k < i; k++) {
        compile_node(c, k);
        recompute_keep(c, k);
    }
    recompute_keep(c, d);
    c->round = MUTANT(ROUND_OF_ANOTHER) ? 1 : round;
    return_to(c, i, compile_value(c, n->in[0]), compile_value(c, n->in[3]), compile_value(c, n->in[5]), home,
              n->out[0]);
    c->round = 0;
}

/* The backward of one round. `grads`: the gradients of the home rows' results, which those of the rows replace. */
static void round_backward(struct compiler *c, int d, int i, int round, int grads)
{
    const struct graph_node *n = &c->g->nodes[i];
    const int all = compile_value(c, n->in[3]);
    c->round = round;
    int d_rows = compile_work_buffer(c, n->in[0], ".grad");
    send_rows(c, i, grads, all, compile_value(c, n->in[4]), d_rows, n->out[0]);
    compile_add_gradient(c, n->in[0], d_rows);
    for (int k = i - 1; k > d; k--)
        compile_node_backward(c, k);
    d_rows = compile_take_grad(c, c->g->nodes[d].out[0]);
    return_to(c, d, d_rows, all, compile_value(c, n->in[5]), grads, c->g->nodes[d].in[0]);
    c->round = 0;
}

/* The gradients of the home rows' results: those of the tokens' sums, times the weights. */
static int home_gradients(struct compiler *c, int i, int dy, int weights, int source)
{
    const int64_t cols = tp_cols(c, c->g->nodes[i].out[0]);
    int grads = exchange_buffer(c, i, "home.grad", home_rows(c, i, c->g->nodes[i].out[0]), cols);
    struct op *op = rows_op(c, i, OP_ROWS_GATHER, c->g->nodes[i].out[0]);
    op_arg(op, 0, dy);
    op_arg(op, 1, source);
    op_arg(op, 2, MUTANT(GRADIENTS_NOT_WEIGHED) ? -1 : weights);
    op_arg(op, 3, grads);
    return grads;
}

/* Backward of combine and of all nodes of its rounds; that of dispatch sums what is left in c->home. */
static int combine_grad_rounds(struct compiler *c, int i, int dy, int weights)
{
    const int d = c->producer[c->g->nodes[i].in[2]];
    if (c->half != PASS_WHOLE)
        c->err = why_set(c->why, ERR_INVALID,
                         "parallel.expert_rows computes rows of experts in rounds, and the second half of a backward "
                         "that parallel.schedule splits would need the rows of all of them: write "
                         "parallel.expert_rows 0, or parallel.schedule 1f1b");
    recompute_emit(c, d);
    int grads = home_gradients(c, i, dy, weights, compile_value(c, c->g->nodes[d].out[2])), home = c->home[d];
    for (int round = 1; round <= rounds_of(c) && !c->err; round++) {
        round_forward(c, d, i, round);
        round_backward(c, d, i, round, grads);
    }
    c->home[d] = grads;
    return home;
}

/* ---- combine ---- */

void experts_combine(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    const int d = c->producer[n->in[2]];
    int rows = compile_value(c, n->in[0]), home = rows;
    for (int round = 1; in_rounds(c) && round <= rounds_of(c); round++)
        round_forward(c, d, i, round);
    if (in_rounds(c)) {
        home = c->home[d];
    } else if (is_parallel(c)) {
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

/* The gradient of a value whose buffer its only reader may overwrite. */
static int grad_in_place(struct compiler *c, int t)
{
    return compile_may_overwrite(c, t) ? c->act[t] : compile_work_buffer(c, t, ".grad");
}

/* d_weights of combine i, and d_home, the gradients of its home rows; -1: not needed. */
static void sum_gradients(struct compiler *c, int i, const int args[5], int d_weights)
{
    const struct graph_node *n = &c->g->nodes[i];
    int own = own_part_new(c, i, "weights.grad", d_weights, n->router.k);
    struct op *op = rows_op(c, i, OP_ROWS_SUM_GRAD, n->out[0]);
    for (int k = 0; k < 5; k++)
        op_arg(op, k, args[k]);
    op_arg(op, 5, own);
    whole_from(c, i, own, d_weights, n->router.k);
}

void experts_combine_grad(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    int weights = compile_forward_value(c, n->in[1]), dy = compile_take_grad(c, n->out[0]), d_rows = -1;
    int d_weights = compile_typed_buffer(c, n->in[1], ".grad", c->p->wide);
    (void)kind;
    weights = own_part(c, i, "weights", weights, n->router.k);
    dy = own_part(c, i, "y.grad", dy, tp_cols(c, n->out[0]));
    int home = in_rounds(c) ? combine_grad_rounds(c, i, dy, weights) : home_again(c, i), d_home = home;
    int place = compile_forward_value(c, n->in[2]);
    if (gathers_tokens(c) || in_rounds(c))
        d_home = -1;
    else if (!is_parallel(c))
        d_home = d_rows = grad_in_place(c, n->in[0]);
    sum_gradients(c, i, (const int[]){home, weights, place, dy, d_home}, d_weights);
    if (is_parallel(c) && !in_rounds(c))
        d_rows = compile_work_buffer(c, n->in[0], ".grad");
    if (gathers_tokens(c))
        pick_gradients(c, i, dy, weights, d_rows);
    else if (is_parallel(c) && !in_rounds(c))
        send_rows(c, i, d_home, compile_value(c, n->in[3]), compile_value(c, n->in[4]), d_rows, n->out[0]);
    if (!in_rounds(c))
        compile_add_gradient(c, n->in[0], d_rows);
    compile_add_gradient(c, n->in[1], d_weights);
}

/* A token's gradient is the sum of those of its rows. */
void experts_dispatch_grad(struct compiler *c, int i, enum op_kind kind)
{
    const struct graph_node *n = &c->g->nodes[i];
    int place = compile_forward_value(c, n->out[1]);
    int d_rows = in_rounds(c) ? c->home[i] : compile_take_grad(c, n->out[0]);
    if (is_parallel(c) && !in_rounds(c))
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
