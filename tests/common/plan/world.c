#include "tests/common/plan/world.h"

#include "common/plan/check/plan_check.h"
#include "common/plan/compile/compile.h"
#include "common/plan/models/build.h"

#include <math.h>

#define MAX_WORLD 32
#define MAX_POSTS 64

struct machine_post {
    const struct op *op;
    const struct action *action;
    int peer; /* rank */
    bool done;
};

struct world_rank {
    struct program program;
    struct machine machine;
    int action, op; /* the next */
    bool over;
    struct machine_post posts[MAX_POSTS];
    int n_posts;
};

struct test_world {
    struct job_spec job;
    struct graph graph;
    int n;
    struct world_rank rank[MAX_WORLD];
    int32_t *ids, *targets, *begin;
    double loss, norm; /* of the last step */
    /* By graph tensor, global elements. */
    double **grad, **param;
    double losses[WORLD_STEPS], norms[WORLD_STEPS], aux[WORLD_STEPS], dropped[WORLD_STEPS];
};

/* ---- operands as numbers ---- */

static double get(const struct world_rank *r, const struct op *op, int arg, int64_t i)
{
    return machine_operand_get(&r->machine, op, arg, i);
}

static void set(const struct world_rank *r, const struct op *op, int arg, int64_t i, double value)
{
    machine_operand_set(&r->machine, op, arg, i, value);
}

static int64_t extent(const struct world_rank *r, struct graph_dim d)
{
    return program_dim(&r->program, d, r->machine.samples);
}

/* ---- collectives: each `member` has reached `op`, its own copy of it ---- */

struct meeting {
    struct test_world *w;
    const struct group *group;
    struct world_rank *member[MAX_WORLD];
    const struct op *op[MAX_WORLD];
    int n;
};

static double reduced(const struct meeting *m, int arg, int64_t i)
{
    double x = get(m->member[0], m->op[0], arg, i);
    for (int k = 1; k < m->n; k++) {
        double y = get(m->member[k], m->op[k], arg, i);
        x = m->op[0]->reduce == REDUCE_MAX ? fmax(x, y) : m->op[0]->reduce == REDUCE_MIN ? fmin(x, y) : x + y;
    }
    return machine_round(&m->member[0]->machine, m->op[0], arg, x);
}

static void all_reduce(const struct meeting *m)
{
    int64_t n = extent(m->member[0], m->op[0]->m);
    for (int k = 1; k < m->n; k++)
        assert_int_equal(extent(m->member[k], m->op[k]->m), n);
    for (int64_t i = 0; i < n; i++) {
        double x = reduced(m, 0, i);
        for (int k = 0; k < m->n; k++)
            set(m->member[k], m->op[k], 0, i, x);
    }
}

static void run_gather(const struct meeting *m)
{
    int64_t n = extent(m->member[0], m->op[0]->m);
    for (int to = 0; to < m->n; to++)
        for (int from = 0; from < m->n; from++)
            for (int64_t i = 0; i < n; i++)
                set(m->member[to], m->op[to], 1, from * n + i, get(m->member[from], m->op[from], 0, i));
}

/* The rows of member `from` for member `to` are contiguous in its home rows, and so are those from `from` among the
 * rows that arrived at `to`. */
static void copy_exchanged(const struct meeting *m, int from, int to, bool back)
{
    const int64_t cols = extent(m->member[0], m->op[0]->n);
    const struct exchange *x = machine_exchange(&m->member[from]->machine, m->op[from], 1);
    int64_t sent = x->before, arrived = 0, n = exchange_rows(x, from, to);
    for (int i = 0; i < to; i++)
        sent += exchange_rows(x, from, i);
    for (int i = 0; i < from; i++)
        arrived += exchange_rows(x, i, to);
    for (int64_t i = 0; i < n * cols; i++)
        if (back)
            set(m->member[from], m->op[from], 2, sent * cols + i, get(m->member[to], m->op[to], 0, arrived * cols + i));
        else
            set(m->member[to], m->op[to], 2, arrived * cols + i, get(m->member[from], m->op[from], 0, sent * cols + i));
}

static void run_exchange(const struct meeting *m)
{
    for (int from = 0; from < m->n; from++)
        for (int to = 0; to < m->n; to++)
            copy_exchanged(m, from, to, m->op[0]->flags & OPF_INVERSE);
}

/* Copies the matrices that `to` borrows, or adds the gradients that it has of them to those of their rank. */
static void run_borrow(const struct meeting *m, int to)
{
    const struct exchange *x = machine_exchange(&m->member[to]->machine, m->op[to], 1);
    const int64_t n = m->op[to]->n.factor;
    int64_t own_lo, own_hi, lo, hi;
    exchange_experts(x, to, &own_lo, &own_hi);
    for (int64_t k = own_hi - own_lo; k < x->shares[to]; k++) {
        const int from = x->lender[to];
        exchange_experts(x, from, &lo, &hi);
        const int64_t slot = (k - (own_hi - own_lo)) * n, at = (exchange_shares(x, to)[k].expert - lo) * n;
        assert_in_range(slot / n, 0, m->op[to]->m.factor - 1);
        for (int64_t i = 0; i < n; i++)
            if (m->op[to]->kind == OP_BORROW)
                set(m->member[to], m->op[to], 2, slot + i, get(m->member[from], m->op[from], 0, at + i));
            else
                set(m->member[from], m->op[from], 3, at + i,
                    get(m->member[from], m->op[from], 3, at + i) + get(m->member[to], m->op[to], 0, slot + i));
    }
}

static void run_gather_tokens(const struct meeting *m)
{
    const struct exchange *x = machine_exchange(&m->member[0]->machine, m->op[0], 1);
    const int64_t n = extent(m->member[0], m->op[0]->n), k = extent(m->member[0], m->op[0]->k);
    int64_t at = 0;
    for (int from = 0; from < m->n; from++) {
        const int64_t mine = exchange_home_rows(x, from) / k * n;
        for (int64_t i = 0; i < mine; i++)
            for (int to = 0; to < m->n; to++)
                set(m->member[to], m->op[to], 2, at + i, get(m->member[from], m->op[from], 0, i));
        at += mine;
    }
    assert_true(at <= m->op[0]->seq * n);
}

static void run_own(const struct meeting *m, bool scatter)
{
    int64_t tokens = extent(m->member[0], m->op[0]->m), cols = extent(m->member[0], m->op[0]->n);
    for (int k = 0; k < m->n; k++) {
        int64_t lo, hi;
        layout_split(tokens, m->n, k, &lo, &hi);
        for (int64_t i = lo * cols; i < hi * cols; i++) {
            if (scatter) {
                set(m->member[k], m->op[k], 1, i - lo * cols, reduced(m, 0, i));
                continue;
            }
            double x = get(m->member[k], m->op[k], 0, i - lo * cols);
            for (int to = 0; to < m->n; to++)
                set(m->member[to], m->op[to], 1, i, x);
        }
    }
}

static int64_t part_before(const struct unit_part *p, int member)
{
    int64_t n = 0;
    for (int i = 0; i < member; i++)
        n += p->counts[i];
    return n;
}

static void unit_gather(const struct meeting *m)
{
    for (int to = 0; to < m->n; to++) {
        const struct fsdp_unit *u = &m->member[to]->program.units[m->op[to]->unit];
        for (int j = 0; j < u->n; j++)
            for (int from = 0; from < m->n; from++) {
                const struct unit_part *q = &m->member[from]->program.units[m->op[from]->unit].parts[j];
                assert_int_equal(q->tensor, u->parts[j].tensor);
                assert_int_equal(q->counts[from], u->parts[j].counts[from]);
                int64_t at = u->parts[j].local + part_before(&u->parts[j], from);
                for (int64_t i = 0; i < q->counts[from]; i++)
                    set(m->member[to], m->op[to], 1, at + i, get(m->member[from], m->op[from], 0, q->piece + i));
            }
    }
}

static void unit_scatter(const struct meeting *m)
{
    for (int to = 0; to < m->n; to++) {
        const struct fsdp_unit *u = &m->member[to]->program.units[m->op[to]->unit];
        for (int j = 0; j < u->n; j++) {
            const struct unit_part *q = &u->parts[j];
            int64_t at = q->local + part_before(q, to);
            for (int64_t i = 0; i < q->counts[to]; i++) {
                double x = reduced(m, 0, at + i);
                bool add = m->op[to]->flags & OPF_ACC;
                set(m->member[to], m->op[to], 1, q->piece + i,
                    x + (add ? get(m->member[to], m->op[to], 1, q->piece + i) : 0));
            }
        }
    }
}

/* Element i of node [lo, hi) of the canonical tree. */
static double tree_node(const struct meeting *m, int64_t lo, int64_t hi, int64_t i)
{
    for (int k = 0; k < m->n; k++) {
        const struct program *p = &m->member[k]->program;
        struct sumtree_node nodes[SUMTREE_MAX_NODES];
        int n = sumtree_nodes(p->n_micros, p->first_micro, p->end_micro, nodes);
        for (int j = 0; j < n; j++)
            if (nodes[j].lo == lo && nodes[j].hi == hi)
                return machine_operand_get_slot(&m->member[k]->machine, m->op[k], 0, j, i);
    }
    if (hi - lo < 2)
        fail_msg("no rank has leaf %lld", (long long)lo);
    int64_t half = 1;
    while (2 * half < hi - lo)
        half *= 2;
    return machine_round(&m->member[0]->machine, m->op[0], 1,
                         tree_node(m, lo, lo + half, i) + tree_node(m, lo + half, hi, i));
}

static void tree_reduce(const struct meeting *m)
{
    int64_t n = extent(m->member[0], m->op[0]->m);
    double *root = calloc((size_t)n + 1, sizeof(*root));
    for (int64_t i = 0; i < n; i++)
        root[i] = tree_node(m, 0, m->member[0]->program.n_micros, i);
    for (int k = 0; k < m->n; k++)
        for (int64_t i = 0; i < n; i++)
            set(m->member[k], m->op[k], 1, i, root[i]);
    free(root);
}

static int index_of(const struct group *g, int rank)
{
    for (int i = 0; i < g->n; i++)
        if (g->ranks[i] == rank)
            return i;
    return -1;
}

static void run_shift(const struct meeting *m)
{
    double *sent[MAX_WORLD];
    for (int k = 0; k < m->n; k++) {
        int64_t n = extent(m->member[k], m->op[k]->m);
        sent[k] = calloc((size_t)n + 1, sizeof(double));
        for (int64_t i = 0; i < n; i++)
            sent[k][i] = get(m->member[k], m->op[k], 0, i);
    }
    for (int k = 0; k < m->n; k++) {
        int from = m->op[k]->from;
        int64_t n = extent(m->member[k], m->op[k]->k);
        assert_in_range(from, 0, m->n - 1);
        assert_int_equal(m->op[from]->peer, k);
        assert_int_equal(extent(m->member[from], m->op[from]->m), n);
        for (int64_t i = 0; i < n; i++)
            set(m->member[k], m->op[k], 1, i, sent[from][i]);
    }
    for (int k = 0; k < m->n; k++)
        free(sent[k]);
}

static void run_collective(const struct meeting *m)
{
    switch (m->op[0]->kind) {
    case OP_ALL_REDUCE:
        all_reduce(m);
        break;
    case OP_GATHER:
        run_gather(m);
        break;
    case OP_OWN_GATHER:
    case OP_OWN_SCATTER:
        run_own(m, m->op[0]->kind == OP_OWN_SCATTER);
        break;
    case OP_UNIT_GATHER:
        unit_gather(m);
        break;
    case OP_UNIT_SCATTER:
        unit_scatter(m);
        break;
    case OP_TREE_REDUCE:
        tree_reduce(m);
        break;
    case OP_SHIFT:
        run_shift(m);
        break;
    case OP_EXCHANGE:
        run_exchange(m);
        break;
    case OP_BORROW:
    case OP_GIVE_BACK:
        for (int i = 0; i < m->n; i++)
            run_borrow(m, i);
        break;
    case OP_GATHER_TOKENS:
        run_gather_tokens(m);
        break;
    default:
        fail_msg("%s is no collective", op_name(m->op[0]->kind));
    }
}

static bool is_collective(const struct op *op)
{
    switch (op->kind) {
    case OP_ALL_REDUCE:
    case OP_GATHER:
    case OP_OWN_GATHER:
    case OP_OWN_SCATTER:
    case OP_UNIT_GATHER:
    case OP_UNIT_SCATTER:
    case OP_TREE_REDUCE:
    case OP_SHIFT:
    case OP_EXCHANGE:
    case OP_BORROW:
    case OP_GIVE_BACK:
    case OP_GATHER_TOKENS:
        return op->group >= 0;
    default:
        return false;
    }
}

/* ---- messages ---- */

static void add_post(struct test_world *w, struct world_rank *r, const struct op *op)
{
    const struct group *g = &r->program.groups[op->group];
    assert_true(r->n_posts < MAX_POSTS);
    (void)w;
    r->posts[r->n_posts++] = (struct machine_post){op, r->machine.action, g->ranks[op->peer], false};
}

static struct machine_post *first_post(struct world_rank *r, enum op_kind kind, int peer)
{
    for (int i = 0; i < r->n_posts; i++)
        if (!r->posts[i].done && r->posts[i].op->kind == kind && r->posts[i].peer == peer)
            return &r->posts[i];
    return NULL;
}

static void deliver(struct world_rank *from, struct machine_post *send, struct world_rank *to,
                    struct machine_post *recv)
{
    int64_t n = program_dim(&from->program, send->op->m, machine_samples(&from->program, send->action));
    assert_int_equal(program_dim(&to->program, recv->op->m, machine_samples(&to->program, recv->action)), n);
    for (int64_t i = 0; i < n; i++)
        set(to, recv->op, 0, i, get(from, send->op, 0, i));
    send->done = recv->done = true;
}

/* Delivers every message that both ends have posted. */
static bool deliver_all(struct test_world *w)
{
    bool any = false;
    for (int a = 0; a < w->n; a++)
        for (int b = 0; b < w->n; b++) {
            struct machine_post *send, *recv;
            while ((send = first_post(&w->rank[a], OP_SEND, b)) && (recv = first_post(&w->rank[b], OP_RECV, a))) {
                deliver(&w->rank[a], send, &w->rank[b], recv);
                any = true;
            }
        }
    return any;
}

/* Whether the message in the buffer has been delivered; then its post is removed. */
static bool message_over(struct world_rank *r, int buffer)
{
    int kept = 0, n = r->n_posts;
    for (int i = 0; i < n; i++)
        if (!r->posts[i].done && r->posts[i].op->arg[0].buffer == buffer)
            return false;
    for (int i = 0; i < n; i++)
        if (r->posts[i].op->arg[0].buffer != buffer)
            r->posts[kept++] = r->posts[i];
    assert_true(kept == n - 1);
    r->n_posts = kept;
    return true;
}

/* ---- running ---- */

static const struct op *next_op(const struct world_rank *r)
{
    const struct action *a = &r->program.actions[r->action];
    return r->op < a->n_ops ? &r->program.ops[a->first_op + r->op] : NULL;
}

static void enter(struct world_rank *r)
{
    while (r->action < r->program.n_actions &&
           (action_is_rare(r->program.actions[r->action].kind) || !r->program.actions[r->action].n_ops))
        r->action++;
    r->over = r->action >= r->program.n_actions;
    r->op = 0;
    if (!r->over)
        machine_enter(&r->machine, &r->program.actions[r->action]);
}

/* Runs a rank until a collective or a wait stops it. Returns whether it ran an op. */
static bool advance(struct test_world *w, struct world_rank *r)
{
    bool moved = false;
    while (!r->over) {
        const struct op *op = next_op(r);
        if (!op) {
            r->action++;
            enter(r);
            moved = true;
            continue;
        }
        if (is_collective(op) || (op->kind == OP_WAIT && !message_over(r, op->arg[0].buffer)))
            return moved;
        if (op->kind == OP_SEND || op->kind == OP_RECV)
            add_post(w, r, op);
        else if (op->kind != OP_WAIT && op->kind != OP_PUSH)
            machine_op(&r->machine, op);
        r->op++;
        moved = true;
    }
    return moved;
}

static bool try_meeting(struct test_world *w, struct world_rank *r)
{
    const struct op *op = r->over ? NULL : next_op(r);
    if (!op || !is_collective(op))
        return false;
    struct meeting m = {.w = w, .group = &r->program.groups[op->group], .n = r->program.groups[op->group].n};
    if (index_of(m.group, (int)(r - w->rank)) < 0)
        fail_msg("rank %d uses group %d, of which it is no member", (int)(r - w->rank), op->group);
    for (int k = 0; k < m.n; k++) {
        m.member[k] = &w->rank[m.group->ranks[k]];
        m.op[k] = m.member[k]->over ? NULL : next_op(m.member[k]);
        if (!m.op[k] || !is_collective(m.op[k]) || m.op[k]->group != op->group)
            return false;
        if (m.op[k]->kind != op->kind)
            fail_msg("group %d: rank %d is at %s, rank %d at %s", op->group, (int)(r - w->rank), op_name(op->kind),
                     m.group->ranks[k], op_name(m.op[k]->kind));
    }
    run_collective(&m);
    for (int k = 0; k < m.n; k++)
        m.member[k]->op++;
    return true;
}

static void fail_stuck(const struct test_world *w)
{
    for (int i = 0; i < w->n; i++) {
        const struct world_rank *r = &w->rank[i];
        const struct op *op = r->over ? NULL : next_op(r);
        print_error("rank %d: %s\n", i, r->over ? "at its end" : op_name(op->kind));
        if (op)
            print_error("    action %d (%s, chunk %d, micro %d), op %d, group %d\n", r->action,
                        action_name(r->program.actions[r->action].kind), r->program.actions[r->action].chunk,
                        r->program.actions[r->action].micro, r->op, op->group);
    }
    fail_msg("the ranks wait for each other");
}

static void capture_grads(struct test_world *w, struct world_rank *r);

static void step(struct test_world *w, bool first)
{
    bool all_over = false;
    for (int i = 0; i < w->n; i++) {
        w->rank[i].action = 0;
        w->rank[i].machine.step++;
        enter(&w->rank[i]);
    }
    while (!all_over) {
        bool moved = false;
        all_over = true;
        for (int i = 0; i < w->n; i++) {
            moved |= advance(w, &w->rank[i]);
            all_over &= w->rank[i].over;
        }
        moved |= deliver_all(w);
        for (int i = 0; i < w->n && !all_over; i++)
            moved |= try_meeting(w, &w->rank[i]);
        if (!moved && !all_over)
            fail_stuck(w);
    }
    for (int i = 0; i < w->n && first; i++)
        capture_grads(w, &w->rank[i]);
}

/* ---- state by global index ---- */

static double initial(int t, int64_t i)
{
    uint64_t x = (uint64_t)t * 0x9e3779b97f4a7c15u + (uint64_t)i * 0xbf58476d1ce4e5b9u + 1;
    x ^= x >> 31;
    x *= 0x94d049bb133111ebu;
    x ^= x >> 29;
    return ((double)(x >> 11) / (double)(1ull << 53) - 0.5) * 0.4;
}

typedef void (*element_fn)(struct test_world *w, struct world_rank *r, int t, int64_t global, int64_t local);

/* Calls back for every element of this rank's piece of parameter t, with its global index and its index in the piece.
 */
static void each_element(struct test_world *w, struct world_rank *r, int t, element_fn fn)
{
    const struct sharding_param *q = &r->program.sharding.param[t];
    const struct graph_tensor *g = &w->graph.tensors[t];
    struct sharding_box boxes[SHARDING_MAX_BOXES];
    int64_t cols = g->ndim > 1 ? g->dim[1].factor : 1;
    int n = q->held ? sharding_boxes(&r->program.sharding, &w->graph, t, q->lo, q->hi, boxes) : 0;
    for (int b = 0; b < n; b++) {
        const struct box *x = &boxes[b].box;
        int64_t width = g->ndim > 1 ? x->size[1] : 1, col0 = g->ndim > 1 ? x->offset[1] : 0;
        for (int64_t i = 0; i < x->size[0]; i++)
            for (int64_t j = 0; j < width; j++)
                fn(w, r, t, (x->offset[0] + i) * cols + col0 + j, boxes[b].offset + i * boxes[b].stride + j);
    }
}

static void fill_one(struct test_world *w, struct world_rank *r, int t, int64_t global, int64_t local)
{
    (void)w;
    double ones = w->graph.tensors[t].init == INIT_ONE ? 1.0 : 0.0;
    machine_set(&r->machine, r->program.param_buffer[t], local,
                w->graph.tensors[t].exact ? 3 + round(20 * initial(t, global)) : ones + initial(t, global));
}

static double *of_tensor(const struct test_world *w, int t)
{
    int64_t n = tensor_elements(&w->graph.tensors[t]);
    double *x = malloc(((size_t)n + 1) * sizeof(*x));
    for (int64_t i = 0; i < n; i++)
        x[i] = NAN;
    return x;
}

/* All replicas have the same bits. */
static void keep_element(struct test_world *w, double **all, int t, int64_t global, double value, const char *what)
{
    if (!all[t])
        all[t] = of_tensor(w, t);
    double had = all[t][global];
    if (!isnan(had) && had != value)
        fail_msg("replicas of %s of %s differ at element %lld: %.17g and %.17g", what, w->graph.tensors[t].name,
                 (long long)global, had, value);
    all[t][global] = value;
}

static const struct op *update_of(const struct world_rank *r, int t)
{
    for (int i = 0; i < r->program.n_ops; i++) {
        const struct op *op = &r->program.ops[i];
        if (op->kind == OP_ADAMW && r->program.buffers[op->arg[0].buffer].tensor == t)
            return op;
    }
    return NULL;
}

static void capture_grad(struct test_world *w, struct world_rank *r, int t, int64_t global, int64_t local)
{
    const struct op *op = update_of(r, t);
    if (!op)
        fail_msg("nothing updates %s on rank %d", w->graph.tensors[t].name, (int)(r - w->rank));
    keep_element(w, w->grad, t, global, get(r, op, 3, local), "the gradient");
}

static void capture_param(struct test_world *w, struct world_rank *r, int t, int64_t global, int64_t local)
{
    keep_element(w, w->param, t, global, machine_get(&r->machine, r->program.param_buffer[t], local), "the value");
}

static void each_param(struct test_world *w, struct world_rank *r, bool states, element_fn fn)
{
    for (int t = 0; t < w->graph.n_tensors; t++)
        if (w->graph.tensors[t].kind == GT_PARAM || (states && w->graph.tensors[t].kind == GT_STATE))
            each_element(w, r, t, fn);
}

static void capture_grads(struct test_world *w, struct world_rank *r)
{
    each_param(w, r, false, capture_grad);
}

/* ---- a job from begin to end ---- */

static void make_batch(struct test_world *w)
{
    int64_t n = w->job.train.global_batch * w->job.train.seq;
    w->ids = malloc((size_t)n * sizeof(int32_t));
    w->targets = malloc((size_t)n * sizeof(int32_t));
    for (int64_t i = 0; i < n; i++) {
        w->ids[i] = (int32_t)((i * 7 + i * i / 3) % w->job.model.vocab);
        w->targets[i] = (int32_t)((i * 5 + 3) % w->job.model.vocab);
    }
    w->begin = malloc((size_t)n * sizeof(int32_t));
    begins_fill(n / w->job.train.seq, w->job.train.seq, w->begin);
}

static double losses_of(const struct world_rank *r)
{
    double loss = 0;
    for (int i = 0; i < r->program.n_micros; i++)
        loss += machine_get(&r->machine, r->program.loss_buffer, i);
    return loss * r->program.loss_scale;
}

/* The auxiliary losses of all routers. */
static double aux_of(const struct world_rank *r, const struct graph *g)
{
    double sum = 0;
    for (int i = 0; r->program.number_buffer[NUMBER_AUX] >= 0 && i < g->n_routers; i++)
        sum += machine_get(&r->machine, r->program.number_buffer[NUMBER_AUX], i);
    return sum;
}

/* The number of choices that experts with a capacity dropped. */
static double dropped_of(const struct world_rank *r, const struct graph *g)
{
    double sum = 0;
    for (int i = 0; r->program.number_buffer[NUMBER_DROPPED] >= 0 && i < g->n_routers; i++)
        sum += machine_get(&r->machine, r->program.number_buffer[NUMBER_DROPPED], i);
    return sum;
}

static void run_steps(struct test_world *w)
{
    for (int s = 0; s < WORLD_STEPS; s++) {
        step(w, s == 0);
        for (int i = 0; i < w->n; i++) {
            const struct world_rank *r = &w->rank[i];
            double loss = losses_of(r), norm = machine_get(&r->machine, r->program.norm_buffer, 0);
            if (i > 0 && (loss != w->losses[s] || norm != w->norms[s]))
                fail_msg("step %d: rank %d has loss %.17g and norm %.17g, rank 0 %.17g and %.17g", s, i, loss, norm,
                         w->losses[s], w->norms[s]);
            double aux = aux_of(r, &w->graph), dropped = dropped_of(r, &w->graph);
            if (i > 0 && dropped != w->dropped[s])
                fail_msg("step %d: rank %d has dropped %g choices, rank 0 %g", s, i, dropped, w->dropped[s]);
            if (i > 0 && aux != w->aux[s])
                fail_msg("step %d: rank %d has the auxiliary loss %.17g, rank 0 %.17g", s, i, aux, w->aux[s]);
            w->losses[s] = loss;
            w->norms[s] = norm;
            w->aux[s] = aux;
            w->dropped[s] = dropped;
        }
    }
}

static void world_begin(struct test_world *w, const struct job_spec *job, enum program_mode mode)
{
    struct why why = {{0}};
    memset(w, 0, sizeof(*w));
    w->job = *job;
    w->n = (int)job->parallel.workers;
    assert_in_range(w->n, 1, MAX_WORLD);
    if (graph_build(&w->job.model, w->job.train.seq, &w->graph, &why) != OK)
        fail_msg("graph_build: %s", why.text);
    w->grad = calloc((size_t)w->graph.n_tensors + 1, sizeof(*w->grad));
    w->param = calloc((size_t)w->graph.n_tensors + 1, sizeof(*w->param));
    make_batch(w);
    struct program *all = calloc((size_t)w->n, sizeof(*all));
    for (int i = 0; i < w->n; i++) {
        struct world_rank *r = &w->rank[i];
        if (plan_compile(&w->job, &w->graph, mode, i, &r->program, &why) != OK)
            fail_msg("plan_compile of rank %d: %s", i, why.text);
        all[i] = r->program;
        machine_init(&r->machine, &r->program, &w->graph, w->ids, w->targets);
        r->machine.begin = w->begin;
        r->machine.lr = 1e-2;
        r->machine.limit = 1e-3;
        each_param(w, r, true, fill_one);
    }
    if (!getenv("WORLD_NO_CHECK") && plan_check(&w->graph, all, w->n, &why) != OK)
        fail_msg("plan_check: %s", why.text);
    free(all);
}

static void world_run(struct test_world *w, const struct job_spec *job)
{
    world_begin(w, job, MODE_TRAIN);
    run_steps(w);
    for (int i = 0; i < w->n; i++)
        each_param(w, &w->rank[i], true, capture_param);
}

static void world_fini(struct test_world *w)
{
    for (int t = 0; t < w->graph.n_tensors; t++) {
        free(w->grad[t]);
        free(w->param[t]);
    }
    free(w->grad);
    free(w->param);
    for (int i = 0; i < w->n; i++) {
        machine_fini(&w->rank[i].machine);
        program_fini(&w->rank[i].program);
    }
    graph_fini(&w->graph);
    free(w->ids);
    free(w->targets);
    free(w->begin);
}

/* ---- comparing ---- */

static double rms(const struct test_world *w, double **all)
{
    double sum = 0, n = 0;
    for (int t = 0; t < w->graph.n_tensors; t++)
        for (int64_t i = 0; all[t] && i < tensor_elements(&w->graph.tensors[t]); i++, n++)
            sum += all[t][i] * all[t][i];
    return sqrt(sum / n);
}

/* States change by whole numbers, so all bits are equal. */
static void compare_states(const struct test_world *a, double **x, double **y)
{
    for (int t = 0; t < a->graph.n_tensors; t++)
        for (int64_t i = 0; a->graph.tensors[t].kind == GT_STATE && i < tensor_elements(&a->graph.tensors[t]); i++)
            if (!y[t] || x[t][i] != y[t][i])
                fail_msg("%s[%lld] is %.17g, that of one worker %.17g", a->graph.tensors[t].name, (long long)i,
                         y[t] ? y[t][i] : (double)NAN, x[t][i]);
}

/* proof < 0: bit for bit. Skips elements whose exact gradient is zero: theirs is rounding error, which Adam amplifies.
 */
static void compare_all(const struct test_world *a, const struct test_world *b, double **x, double **y,
                        const char *what, double proof)
{
    double floor = 1e-3 * rms(a, x);
    for (int t = 0; t < a->graph.n_tensors; t++) {
        const struct graph_tensor *g = &a->graph.tensors[t];
        double largest = floor;
        if (g->kind != GT_PARAM)
            continue;
        if (!y[t])
            fail_msg("no rank has %s of %s", what, g->name);
        for (int64_t i = 0; i < tensor_elements(g); i++)
            largest = fmax(largest, fabs(x[t][i]));
        for (int64_t i = 0; i < tensor_elements(g); i++) {
            bool rounding = proof >= 0 && graph_grad_is_zero(g, i);
            bool ok = proof < 0 ? x[t][i] == y[t][i] : fabs(x[t][i] - y[t][i]) <= proof * largest;
            if (!ok && !rounding)
                fail_msg("%s of %s differs at element %lld: %.17g and %.17g (largest %.3g)", what, g->name,
                         (long long)i, x[t][i], y[t][i], largest);
        }
    }
    (void)b;
}

static void compare(const struct job_spec *one, const struct job_spec *other, double proof)
{
    struct test_world *a = calloc(1, sizeof(*a)), *b = calloc(1, sizeof(*b));
    world_run(a, one);
    world_run(b, other);
    compare_all(a, b, a->grad, b->grad, "the first gradient", proof);
    for (int s = 0; s < WORLD_STEPS; s++) {
        double bound = proof < 0 ? 0 : proof;
        if (!(fabs(a->losses[s] - b->losses[s]) <= bound * fabs(a->losses[s])))
            fail_msg("loss of step %d: %.17g and %.17g", s, a->losses[s], b->losses[s]);
        if (!(fabs(a->norms[s] - b->norms[s]) <= bound * fabs(a->norms[s])))
            fail_msg("norm of step %d: %.17g and %.17g", s, a->norms[s], b->norms[s]);
    }
    for (int s = 0; s < WORLD_STEPS; s++) {
        if (!(fabs(a->aux[s] - b->aux[s]) <= (proof < 0 ? 1e-12 : proof) * fabs(a->aux[s])))
            fail_msg("auxiliary loss of step %d: %.17g and %.17g", s, a->aux[s], b->aux[s]);
        if (a->dropped[s] != b->dropped[s])
            fail_msg("choices dropped in step %d: %g and %g", s, a->dropped[s], b->dropped[s]);
    }
    compare_states(a, a->param, b->param);
    compare_all(a, b, a->param, b->param, "the value", proof);
    world_fini(a);
    world_fini(b);
    free(a);
    free(b);
}

/* Logit i of the matrix [seq, vocab], with any pitch. */
static double logit(const struct world_rank *r, int64_t i, int64_t vocab)
{
    int buffer = r->program.logits_buffer;
    return machine_get(&r->machine, buffer, i / vocab * buffer_row(&r->program.buffers[buffer]) + i % vocab);
}

/* Logits of one sample, whole on every rank of the last stage. bound 0: bit for bit, rank by rank. */
static void compare_logits(const struct test_world *one, const struct test_world *many, double bound)
{
    int compared = 0;
    for (int r = 0; r < many->n; r++) {
        const struct world_rank *a = &one->rank[one->n == many->n ? r : 0], *b = &many->rank[r];
        const struct sharding *sharding = &b->program.sharding;
        if (sharding->coord[AXIS_PP] !=
            placement_rank(sharding->placement, sharding->mesh.size[AXIS_PP], sharding->n_stages - 1))
            continue;
        for (int64_t i = 0; i < one->job.train.seq * one->job.model.vocab; i++) {
            double x = logit(a, i, one->job.model.vocab), y = logit(b, i, one->job.model.vocab);
            if (!(fabs(x - y) <= bound * fmax(1, fabs(x))))
                fail_msg("rank %d: logit %lld: %.17g and %.17g", r, (long long)i, x, y);
        }
        compared++;
    }
    assert_true(compared > 0);
}

static void compare_pass(const struct job_spec *one, const struct job_spec *many, enum program_mode mode, double bound)
{
    struct test_world *a = calloc(1, sizeof(*a)), *b = calloc(1, sizeof(*b));
    world_begin(a, one, mode);
    world_begin(b, many, mode);
    step(a, false);
    step(b, false);
    for (int r = 0; r < b->n && mode == MODE_EVAL; r++) {
        double x = losses_of(&a->rank[0]), y = losses_of(&b->rank[r]);
        if (!(fabs(x - y) <= bound * fabs(x)))
            fail_msg("loss of rank %d: %.17g and %.17g", r, x, y);
    }
    if (mode == MODE_GENERATE)
        compare_logits(a, b, bound);
    world_fini(a);
    world_fini(b);
    free(a);
    free(b);
}

static struct job_spec alone(const struct job_spec *job)
{
    struct job_spec one = *job;
    one.parallel = (struct job_parallel){.workers = 1, .fsdp = 1, .tp = 1, .pp = 1, .cp = 1, .ep = 1, .chunks = 1};
    return one;
}

void world_compare(const struct job_spec *job)
{
    struct job_spec many = *job, one;
    if (many.train.numerics == NUMERICS_FAST) {
        many.train.numerics = NUMERICS_PROOF;
        many.train.dtype = DT_F64;
    }
    one = alone(&many);
    compare(&one, &many, many.train.numerics == NUMERICS_CANONICAL ? 1e-4 : 1e-10);
}

void world_compare_exact(const struct job_spec *job)
{
    struct job_spec one = alone(job);
    compare(&one, job, -1);
}

void world_compare_two(const struct job_spec *a, const struct job_spec *b)
{
    compare(a, b, -1);
}

void world_compare_passes(const struct job_spec *job)
{
    struct job_spec many = *job, one;
    many.train.numerics = NUMERICS_PROOF;
    many.train.dtype = DT_F64;
    one = alone(&many);
    compare_pass(&one, &many, MODE_EVAL, 1e-10);
    compare_pass(&one, &many, MODE_GENERATE, 1e-10);
}

void world_compare_two_passes(const struct job_spec *a, const struct job_spec *b)
{
    compare_pass(a, b, MODE_EVAL, 0);
    compare_pass(a, b, MODE_GENERATE, 0);
}
