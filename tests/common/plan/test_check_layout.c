/* Sums, parts and pieces: every collective of many layouts is left out, doubled or moved to another group, on all ranks
 * alike. No rank then waits for ever and every order is legal; only the numbers would be wrong. */
#include "common/plan/check/plan_check.h"
#include "tests/common/plan/plan_fixture.h"

struct layout_row {
    const char *name;
    enum model_arch arch;
    int dp, fsdp, cp, tp, zero;
    int sp; /* 2: also async_tp */
    enum numerics numerics;
    enum dtype dtype;
    bool attention; /* biases of q, k and v, norms of heads */
};

static const struct layout_row rows[] = {
    {"tp", ARCH_LLAMA, 1, 1, 1, 2, 0, false, NUMERICS_FAST, DT_F32, false},
    {"tp sp", ARCH_GPT2, 1, 1, 1, 2, 0, true, NUMERICS_FAST, DT_F32, false},
    {"tp shared heads", ARCH_LLAMA, 1, 1, 1, 4, 0, true, NUMERICS_FAST, DT_F32, false},
    {"dp tp", ARCH_LLAMA, 2, 1, 1, 2, 0, true, NUMERICS_CANONICAL, DT_F32, false},
    {"zero 1", ARCH_LLAMA, 1, 2, 1, 1, 1, false, NUMERICS_FAST, DT_BF16, false},
    {"dp zero 2", ARCH_GPT2, 2, 2, 1, 1, 2, false, NUMERICS_FAST, DT_F32, false},
    {"zero 3", ARCH_LLAMA, 1, 3, 1, 1, 3, false, NUMERICS_FAST, DT_BF16, false},
    {"zero 3 tp", ARCH_GPT2, 1, 2, 1, 2, 3, true, NUMERICS_FAST, DT_F32, false},
    {"cp", ARCH_LLAMA, 1, 1, 2, 1, 0, false, NUMERICS_FAST, DT_F32, false},
    {"cp zero 1 canonical", ARCH_LLAMA, 1, 2, 2, 1, 1, false, NUMERICS_CANONICAL, DT_F32, false},
    {"tp async", ARCH_LLAMA, 1, 1, 1, 3, 0, 2, NUMERICS_FAST, DT_F32, false},
    {"cp tp async", ARCH_GPT2, 1, 1, 2, 2, 0, 2, NUMERICS_FAST, DT_BF16, false},
    {"tp attention", ARCH_LLAMA, 1, 1, 1, 4, 0, false, NUMERICS_FAST, DT_F32, true},
    {"zero 3 tp attention", ARCH_LLAMA, 1, 2, 1, 2, 3, true, NUMERICS_FAST, DT_F32, true},
};
#define N_ROWS ((int)(sizeof(rows) / sizeof(rows[0])))

static void setup(struct fixture *f, const struct layout_row *r)
{
    struct job_spec job = job_small(r->arch, r->dp * r->fsdp * r->cp * r->tp);
    job.model.layers = 1;
    job.model.dim = r->zero ? 32 : 16; /* so that every rank has pieces */
    job.model.qkv_bias = r->attention;
    job.model.qk_norm = r->attention ? QK_NORM_HEAD : QK_NORM_NONE;
    job.train.numerics = r->numerics;
    job.train.dtype = r->dtype;
    job.train.global_batch = 2 * r->dp * r->fsdp * 2; /* two microbatches a rank */
    job.parallel.fsdp = r->fsdp;
    job.parallel.cp = r->cp;
    job.parallel.tp = r->tp;
    job.parallel.zero = r->zero;
    job.parallel.sp = r->sp > 0;
    job.parallel.async_tp = r->sp > 1;
    job.parallel.prefetch = 1;
    job.parallel.reshard = true;
    job.parallel.chunks = 1;
    if (r->dtype == DT_BF16)
        job.run.device = DEVICE_CUDA;
    fixture_init(f, &job, MODE_TRAIN);
    if (plan_check(&f->graph, f->programs, f->n, &f->why) != OK)
        fail_msg("%s: %s", r->name, f->why.text);
}

static bool is_kind(const struct op *op, enum op_kind kind)
{
    return op->kind == kind;
}

/* The nth op of a kind; -1: none. */
static int nth_of(const struct program *p, enum op_kind kind, int nth)
{
    for (int i = 0; i < p->n_ops; i++)
        if (is_kind(&p->ops[i], kind) && nth-- == 0)
            return i;
    return -1;
}

/* The number of ops of a kind that every rank has. */
static int count_of(const struct fixture *f, enum op_kind kind)
{
    int least = INT32_MAX;
    for (int r = 0; r < f->n; r++) {
        int n = 0;
        for (int i = 0; i < f->programs[r].n_ops; i++)
            n += is_kind(&f->programs[r].ops[i], kind);
        least = n < least ? n : least;
    }
    return least;
}

static void assert_refused(struct fixture *f, const struct layout_row *r, const char *change, enum op_kind kind,
                           int nth)
{
    err_t e = plan_check(&f->graph, f->programs, f->n, &f->why);
    if (e != ERR_INVALID || strncmp(f->why.text, "rank ", 5) != 0)
        fail_msg("%s: %s %d of all ranks %s: %s", r->name, op_name(kind), nth, change, e ? f->why.text : "accepted");
}

/* Turns the op into one without effect. Its waits and its event stay, so that the order of streams stays. */
static void make_nothing(struct op *op)
{
    op->kind = OP_PUSH;
    op->group = -1;
    for (int i = 0; i < OP_MAX_OPERANDS; i++)
        op->arg[i].buffer = -1;
}

static const enum op_kind collectives[] = {OP_ALL_REDUCE,  OP_OWN_GATHER,   OP_OWN_SCATTER, OP_GATHER,
                                           OP_UNIT_GATHER, OP_UNIT_SCATTER, OP_SHIFT,       OP_TREE_REDUCE};
#define N_COLLECTIVES ((int)(sizeof(collectives) / sizeof(collectives[0])))

/* Without a collective, what it sums remains shares, and what it gathers does not exist. */
TEST(no_collective_can_be_left_out)
{
    int dropped = 0;
    for (int row = 0; row < N_ROWS; row++) {
        struct fixture f;
        setup(&f, &rows[row]);
        for (int k = 0; k < N_COLLECTIVES; k++)
            for (int nth = 0; nth < count_of(&f, collectives[k]); nth++) {
                struct op saved[MAX_RANKS];
                int at[MAX_RANKS];
                for (int r = 0; r < f.n; r++) {
                    at[r] = nth_of(&f.programs[r], collectives[k], nth);
                    saved[r] = f.programs[r].ops[at[r]];
                    make_nothing(&f.programs[r].ops[at[r]]);
                }
                assert_refused(&f, &rows[row], "left out", collectives[k], nth);
                for (int r = 0; r < f.n; r++)
                    f.programs[r].ops[at[r]] = saved[r];
                dropped++;
            }
        assert_ok(plan_check(&f.graph, f.programs, f.n, &f.why));
        fixture_fini(&f);
    }
    assert_true(dropped > 150);
}

static void insert_op(struct program *p, int at, const struct op *op)
{
    struct op copy = *op;
    p->ops = realloc(p->ops, (size_t)(p->n_ops + 1) * sizeof(*p->ops));
    assert_non_null(p->ops);
    memmove(&p->ops[at + 1], &p->ops[at], (size_t)(p->n_ops - at) * sizeof(*p->ops));
    p->ops[at] = copy;
    p->n_ops++;
    for (int a = 0; a < p->n_actions; a++) {
        struct action *x = &p->actions[a];
        if (at > x->first_op && at <= x->first_op + x->n_ops && at - 1 < x->first_op + x->n_ops)
            x->n_ops++;
        else if (at <= x->first_op)
            x->first_op++;
    }
}

static void remove_op(struct program *p, int at)
{
    memmove(&p->ops[at], &p->ops[at + 1], (size_t)(p->n_ops - at - 1) * sizeof(*p->ops));
    p->n_ops--;
    for (int a = 0; a < p->n_actions; a++) {
        struct action *x = &p->actions[a];
        if (at >= x->first_op && at < x->first_op + x->n_ops)
            x->n_ops--;
        else if (at < x->first_op)
            x->first_op--;
    }
}

/* A sum that is taken twice is a multiple of the right one. */
TEST(no_sum_can_be_taken_twice)
{
    static const enum op_kind sums[] = {OP_ALL_REDUCE, OP_UNIT_SCATTER, OP_TREE_REDUCE};
    int doubled = 0;
    for (int row = 0; row < N_ROWS; row++) {
        struct fixture f;
        setup(&f, &rows[row]);
        for (int k = 0; k < 3; k++)
            for (int nth = 0; nth < count_of(&f, sums[k]); nth++) {
                int at[MAX_RANKS];
                for (int r = 0; r < f.n; r++) {
                    at[r] = nth_of(&f.programs[r], sums[k], nth) + 1;
                    insert_op(&f.programs[r], at[r], &f.programs[r].ops[at[r] - 1]);
                }
                assert_refused(&f, &rows[row], "doubled", sums[k], nth);
                for (int r = 0; r < f.n; r++)
                    remove_op(&f.programs[r], at[r]);
                doubled++;
            }
        assert_ok(plan_check(&f.graph, f.programs, f.n, &f.why));
        fixture_fini(&f);
    }
    assert_true(doubled > 40);
}

/* Another group that contains this rank, over other axes. */
static int other_group(const struct program *p, int group, int nth)
{
    for (int i = 0; i < p->n_groups; i++) {
        bool member = false;
        for (int k = 0; k < p->groups[i].n; k++)
            member |= p->groups[i].ranks[k] == p->rank;
        if (member && p->groups[i].axes != p->groups[group].axes && nth-- == 0)
            return i;
    }
    return -1;
}

TEST(no_collective_can_go_over_another_group)
{
    int moved = 0;
    for (int row = 0; row < N_ROWS; row++) {
        struct fixture f;
        setup(&f, &rows[row]);
        for (int k = 0; k < N_COLLECTIVES; k++)
            for (int nth = 0; nth < count_of(&f, collectives[k]); nth++) {
                int was[MAX_RANKS], at[MAX_RANKS];
                bool all = true;
                for (int r = 0; r < f.n; r++) {
                    at[r] = nth_of(&f.programs[r], collectives[k], nth);
                    was[r] = f.programs[r].ops[at[r]].group;
                    int other = was[r] < 0 ? -1 : other_group(&f.programs[r], was[r], 0);
                    all &= other >= 0;
                    f.programs[r].ops[at[r]].group = other >= 0 ? other : was[r];
                }
                if (all)
                    assert_refused(&f, &rows[row], "over another group", collectives[k], nth);
                moved += all;
                for (int r = 0; r < f.n; r++)
                    f.programs[r].ops[at[r]].group = was[r];
            }
        fixture_fini(&f);
    }
    assert_true(moved > 50);
}

/* ---- single mistakes ---- */

/* If every rank of tp adds a bias or positions, the sum contains them tp times. */
TEST(a_bias_that_every_rank_adds_to_its_share_is_refused)
{
    struct fixture f;
    setup(&f, &rows[1]);
    for (int i = 0; i < f.programs[0].n_ops; i++) {
        const struct op *first = &f.programs[0].ops[i];
        bool adds = (first->kind == OP_GEMM || first->kind == OP_EMBED) && first->arg[2].buffer >= 0;
        struct op *second = &f.programs[1].ops[i];
        if (!adds || second->kind != first->kind || second->arg[2].buffer >= 0)
            continue;
        int is = first->arg[2].buffer;
        second->arg[2].buffer = is;
        assert_err(ERR_INVALID, plan_check(&f.graph, f.programs, f.n, &f.why));
        assert_message(&f.why, "only the first rank of that axis may add it");
        second->arg[2].buffer = -1;
        f.programs[0].ops[i].arg[2].buffer = -1;
        assert_err(ERR_INVALID, plan_check(&f.graph, f.programs, f.n, &f.why));
        assert_message(&f.why, "the first rank of that axis must add it");
        f.programs[0].ops[i].arg[2].buffer = is;
    }
    assert_ok(plan_check(&f.graph, f.programs, f.n, &f.why));
    fixture_fini(&f);
}

TEST(a_loss_that_every_rank_of_tp_counts_is_refused)
{
    struct fixture f;
    setup(&f, &rows[0]);
    struct program *p = &f.programs[1];
    p->ops[nth_of(p, OP_LOSS_JOIN, 0)].arg[3].buffer = p->loss_buffer;
    assert_err(ERR_INVALID, plan_check(&f.graph, f.programs, f.n, &f.why));
    assert_message(&f.why, "is counted 2 times over all ranks instead of 1");
    fixture_fini(&f);
}

TEST(a_scatter_that_overwrites_earlier_microbatches_is_refused)
{
    struct fixture f;
    setup(&f, &rows[5]);
    struct program *p = &f.programs[0];
    for (int i = 0; i < p->n_ops; i++) {
        struct op *op = &p->ops[i];
        if (op->kind != OP_UNIT_SCATTER)
            continue;
        op->flags ^= OPF_ACC; /* adds in the first microbatch, overwrites in later ones */
        assert_err(ERR_INVALID, plan_check(&f.graph, f.programs, f.n, &f.why));
        assert_message(&f.why, "rank 0");
        op->flags ^= OPF_ACC;
    }
    fixture_fini(&f);
}

TEST(a_unit_with_a_wrong_table_is_refused)
{
    struct fixture f;
    setup(&f, &rows[6]);
    struct program *p = &f.programs[1];
    struct unit_part *part = &p->units[1].parts[0];
    for (int i = 0; i < p->units[1].n && !part->counts[1]; i++)
        part = &p->units[1].parts[i];
    part->piece += 16;
    assert_err(ERR_INVALID, plan_check(&f.graph, f.programs, f.n, &f.why));
    assert_message(&f.why, "expects the piece of");
    part->piece -= 16;
    part->local += 16;
    assert_err(ERR_INVALID, plan_check(&f.graph, f.programs, f.n, &f.why));
    assert_message(&f.why, "expects the local tensor of");
    part->local -= 16;
    part->counts[1]++;
    assert_err(ERR_INVALID, plan_check(&f.graph, f.programs, f.n, &f.why));
    assert_message(&f.why, "for member 1");
    part->counts[1]--;
    p->units[1].n--;
    assert_err(ERR_INVALID, plan_check(&f.graph, f.programs, f.n, &f.why));
    assert_message(&f.why, "in its table");
    p->units[1].n++;
    assert_ok(plan_check(&f.graph, f.programs, f.n, &f.why));
    fixture_fini(&f);
}

TEST(a_ring_reversed_on_one_rank_is_refused)
{
    struct fixture f;
    struct layout_row three = rows[8];
    three.cp = 3;
    setup(&f, &three);
    struct program *p = &f.programs[1];
    struct op *op = &p->ops[nth_of(p, OP_SHIFT, 0)];
    int peer = op->peer;
    op->peer = op->from;
    op->from = peer;
    assert_err(ERR_INVALID, plan_check(&f.graph, f.programs, f.n, &f.why));
    assert_message(&f.why, "rank 1");
    fixture_fini(&f);
}

TEST(squares_counted_twice_or_not_at_all_are_refused)
{
    struct fixture f;
    setup(&f, &rows[1]);
    struct program *p = &f.programs[1];
    int at = nth_of(p, OP_NORM, 0);
    struct op saved = p->ops[at];
    make_nothing(&p->ops[at]);
    assert_err(ERR_INVALID, plan_check(&f.graph, f.programs, f.n, &f.why));
    assert_message(&f.why, "counts block");
    p->ops[at] = saved;
    int t = fixture_tensor(&f, "transformer.h.0.ln_1.weight"); /* rank 0 counts it for both */
    struct op *op = &f.programs[0].ops[0], more = {0};
    for (int i = 0; i < f.programs[0].n_ops; i++)
        if (f.programs[0].ops[i].kind == OP_NORM &&
            f.programs[0].buffers[f.programs[0].ops[i].arg[0].buffer].tensor == t)
            op = &f.programs[0].ops[i];
    assert_true(op->kind == OP_NORM);
    more = *op;
    more.arg[0].buffer = p->grad_buffer[t];
    more.arg[1].buffer = saved.arg[1].buffer;
    memcpy(more.wait, saved.wait, sizeof(more.wait));
    more.event = -1;
    insert_op(p, at + 1, &more);
    assert_err(ERR_INVALID, plan_check(&f.graph, f.programs, f.n, &f.why));
    assert_message(&f.why, "rank 1");
    fixture_fini(&f);
}

TEST(a_rank_of_tp_with_another_part_of_the_vocabulary_is_refused)
{
    struct fixture f;
    setup(&f, &rows[0]);
    struct program *p = &f.programs[1];
    struct op *op = &p->ops[nth_of(p, OP_EMBED, 0)];
    op->vocab_lo--;
    assert_err(ERR_INVALID, plan_check(&f.graph, f.programs, f.n, &f.why));
    assert_message(&f.why, "of the vocabulary");
    fixture_fini(&f);
}

TEST(decay_contrary_to_the_model_is_refused)
{
    struct fixture f;
    setup(&f, &rows[0]);
    f.programs[0].ops[nth_of(&f.programs[0], OP_ADAMW, 0)].flags ^= OPF_DECAY;
    assert_err(ERR_INVALID, plan_check(&f.graph, f.programs, f.n, &f.why));
    assert_message(&f.why, "contrary to the model");
    fixture_fini(&f);
}

/* Every rank of tp draws the random numbers of its own columns, in forward and backward alike. */
TEST(a_dropout_of_other_positions_is_refused)
{
    struct fixture f;
    struct job_spec job = job_small(ARCH_TRANSFORMER, 2);
    job.model.kv_heads = 0;
    job.train.dropout = 0.1;
    job.parallel.tp = 2;
    job.parallel.sp = true;
    job.parallel.chunks = 1;
    fixture_init(&f, &job, MODE_TRAIN);
    if (plan_check(&f.graph, f.programs, f.n, &f.why) != OK)
        fail_msg("%s", f.why.text);
    struct program *p = &f.programs[1];
    int n = 0;
    for (int i = 0; i < p->n_ops; i++) {
        struct op *op = &p->ops[i], saved = p->ops[i];
        if (op->kind != OP_DROPOUT)
            continue;
        op->site++;
        assert_err(ERR_INVALID, plan_check(&f.graph, f.programs, f.n, &f.why));
        assert_message(&f.why, "draws random numbers of site");
        *op = saved;
        op->col0++;
        assert_err(ERR_INVALID, plan_check(&f.graph, f.programs, f.n, &f.why));
        assert_message(&f.why, "draws random numbers of site");
        *op = saved;
        op->arg[1].offset = (struct graph_dim){op->m.sym == SYM_OWN ? SYM_ONE : SYM_OWN0, 0};
        assert_err(ERR_INVALID, plan_check(&f.graph, f.programs, f.n, &f.why));
        assert_message(&f.why, "the positions of other tokens");
        *op = saved;
        n++;
    }
    assert_true(n > 4);
    assert_ok(plan_check(&f.graph, f.programs, f.n, &f.why));
    fixture_fini(&f);
}
