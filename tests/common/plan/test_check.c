/* The checker accepts what the compiler produces, and refuses every planted bug with a message that names it. */
#include "common/plan/check/plan_check.h"
#include "tests/common/plan/plan_fixture.h"

static void setup(struct fixture *f, int workers, enum numerics numerics)
{
    struct job_spec job = job_small(ARCH_LLAMA, workers);
    job.train.numerics = numerics;
    fixture_init(f, &job, MODE_TRAIN);
}

static void setup_bfloat16(struct fixture *f, enum model_arch arch, int workers)
{
    struct job_spec job = job_small(arch, workers);
    job.train.dtype = DT_BF16;
    job.run.device = DEVICE_CUDA;
    fixture_init(f, &job, MODE_TRAIN);
}

static int find_op(const struct program *p, enum op_kind kind, int nth)
{
    for (int i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == kind && nth-- == 0)
            return i;
    fail_msg("no such op: %s", op_name(kind));
    return -1;
}

static int find_action(const struct program *p, enum action_kind kind, int nth)
{
    for (int i = 0; i < p->n_actions; i++)
        if (p->actions[i].kind == kind && nth-- == 0)
            return i;
    fail_msg("no such action: %s", action_name(kind));
    return -1;
}

static int find_buffer(const struct program *p, const char *name)
{
    for (int i = 0; i < p->n_buffers; i++)
        if (strcmp(p->buffers[i].name, name) == 0)
            return i;
    fail_msg("no such buffer: %s", name);
    return -1;
}

static void remove_action(struct program *p, int i)
{
    memmove(&p->actions[i], &p->actions[i + 1], (size_t)(p->n_actions - i - 1) * sizeof(*p->actions));
    p->n_actions--;
}

static void insert_action(struct program *p, int at, struct action a)
{
    p->actions = realloc(p->actions, (size_t)(p->n_actions + 1) * sizeof(a));
    assert_non_null(p->actions);
    memmove(&p->actions[at + 1], &p->actions[at], (size_t)(p->n_actions - at) * sizeof(a));
    p->actions[at] = a;
    p->n_actions++;
}

/* The checker refuses the programs with a message that contains the rank and `words`. Frees the fixture. */
static void assert_refused(struct fixture *f, int rank, const char *const words[])
{
    char text[32];
    err_t e = plan_check(&f->graph, f->programs, f->n, &f->why);
    if (e == OK)
        fail_msg("accepted; the checker should report \"%s\"", words[0]);
    assert_err(ERR_INVALID, e);
    snprintf(text, sizeof(text), "rank %d", rank);
    assert_message(&f->why, text);
    for (int i = 0; words[i]; i++)
        assert_message(&f->why, words[i]);
    fixture_fini(f);
}
#define WORDS(...) ((const char *const[]){__VA_ARGS__, NULL})

TEST(every_compiled_program_passes)
{
    static const enum program_mode modes[] = {MODE_TRAIN, MODE_EVAL};
    static const enum dtype dtypes[] = {DT_F32, DT_BF16};
    for (int workers = 1; workers <= 7; workers++)
        for (int arch = ARCH_LLAMA; arch <= ARCH_GPT2; arch++)
            for (int numerics = NUMERICS_FAST; numerics <= NUMERICS_PROOF; numerics++)
                for (int tied = 0; tied < 2; tied++)
                    for (int m = 0; m < 4; m++) {
                        struct job_spec job = job_small((enum model_arch)arch, workers);
                        struct fixture f;
                        job.model.tied = tied || arch == ARCH_GPT2;
                        job.train.numerics = (enum numerics)numerics;
                        job.train.global_batch = 9; /* the last microbatch is short; 7 workers have 5 microbatches */
                        job.train.dtype = numerics == NUMERICS_FAST ? dtypes[m / 2] : DT_F32;
                        fixture_init(&f, &job, modes[m % 2]);
                        if (plan_check(&f.graph, f.programs, f.n, &f.why) != OK)
                            fail_msg("%d workers, arch %d, numerics %d: %s", workers, arch, numerics, f.why.text);
                        fixture_fini(&f);
                    }
}

TEST(generate_passes)
{
    for (int narrow = 0; narrow < 2; narrow++) {
        struct job_spec job = job_small(ARCH_GPT2, 1);
        struct fixture f;
        job.train.dtype = narrow ? DT_BF16 : DT_F32;
        fixture_init(&f, &job, MODE_GENERATE);
        if (plan_check(&f.graph, f.programs, 1, &f.why) != OK)
            fail_msg("%s", f.why.text);
        assert_true(f.programs[0].logits_buffer >= 0);
        assert_int_equal(f.programs[0].actions[0].kind, narrow ? ACT_BEGIN : ACT_FORWARD);
        fixture_fini(&f);
    }
}

/* A cache that is too small, one cache for keys and values, and a last row for every token. */
TEST(wrong_decoding_is_refused)
{
    for (int fault = 0; fault < 4; fault++) {
        struct job_spec job = job_small(ARCH_LLAMA, 2);
        struct fixture f;
        job.parallel.tp = 2;
        fixture_init(&f, &job, MODE_DECODE);
        if (fault == 0) {
            assert_ok(plan_check(&f.graph, f.programs, f.n, &f.why));
            fixture_fini(&f);
            continue;
        }
        for (int i = 0; i < f.programs[1].n_ops; i++) {
            struct op *op = &f.programs[1].ops[i];
            if (op->kind == OP_ATTENTION_CACHE && fault == 1)
                op->seq++;
            if (op->kind == OP_ATTENTION_CACHE && fault == 2)
                op->arg[3].buffer = op->arg[4].buffer;
            if (op->kind == OP_LAST_ROWS && fault == 3)
                op->m = (struct graph_dim){SYM_TOKENS, 1};
        }
        assert_refused(&f, 1,
                       fault == 1   ? WORDS("(attention_cached)", "cache.keys")
                       : fault == 2 ? WORDS("(attention_cached)", "cache.values")
                                    : WORDS("(last_rows)", "norm.last"));
    }
}

TEST(a_dropped_reduce_is_refused)
{
    struct fixture f;
    setup(&f, 2, NUMERICS_FAST);
    remove_action(&f.programs[1], find_action(&f.programs[1], ACT_REDUCE, 2)); /* losses, head, layer 1 */
    /* The norm of layer 1 waits for the event of the removed reduce. */
    assert_refused(&f, 1, WORDS("(norm)", "waits for event", "which nothing records"));
    setup(&f, 2, NUMERICS_FAST);
    for (int r = 0; r < 2; r++) {
        remove_action(&f.programs[r], find_action(&f.programs[r], ACT_REDUCE, 2));
        for (int i = 0; i < f.programs[r].n_ops; i++)
            if (f.programs[r].ops[i].kind == OP_NORM && f.programs[r].ops[i].wait[0] == f.graph.n_units + 2)
                f.programs[r].ops[i].wait[0] = -1; /* for the reduce of unit 2 */
    }
    assert_refused(&f, 0, WORDS("(norm)", "layers.1.attention_norm.weight.grad", "has not been reduced"));
}

TEST(a_dropped_reduce_of_the_losses_is_refused)
{
    struct fixture f;
    setup(&f, 2, NUMERICS_FAST);
    remove_action(&f.programs[0], find_action(&f.programs[0], ACT_REDUCE, 0));
    assert_refused(&f, 0, WORDS("(clip)", "reads loss", "has not been reduced"));
}

TEST(a_second_reduce_is_refused)
{
    static const enum numerics both[] = {NUMERICS_FAST, NUMERICS_CANONICAL};
    for (int i = 0; i < 2; i++) {
        struct fixture f;
        setup(&f, 2, both[i]);
        struct program *p = &f.programs[1];
        int b = find_action(p, ACT_REDUCE, 2);
        insert_action(p, b, p->actions[b]);
        assert_refused(&f, 1, WORDS("(reduce unit 2)", "layers.1.attention_norm.weight.grad", "a second time"));
    }
}

TEST(a_gradient_added_after_its_reduce_is_refused)
{
    struct fixture f;
    setup(&f, 2, NUMERICS_FAST);
    struct program *p = &f.programs[0];
    int last = find_action(p, ACT_BACKWARD, 2), reduce = find_action(p, ACT_REDUCE, 1);
    struct action moved = p->actions[reduce];       /* the head's gradient, before the last microbatch */
    p->ops[moved.first_op].stream = STREAM_COMPUTE; /* so that the order of streams is not the fault that is reported */
    remove_action(p, reduce);
    insert_action(p, last, moved);
    assert_refused(&f, 0, WORDS("(backward micro 2)", "adds to output.weight.grad after its reduce"));
}

TEST(another_order_of_collectives_is_refused)
{
    struct fixture f;
    setup(&f, 3, NUMERICS_FAST);
    struct program *p = &f.programs[2];
    int a = find_action(p, ACT_REDUCE, 1), b = find_action(p, ACT_REDUCE, 2);
    struct action x = p->actions[a];
    p->actions[a] = p->actions[b];
    p->actions[b] = x;
    assert_refused(&f, 2, WORDS("action", "(all_reduce)", "unit.2.grad", "rank 0", "unit.3.grad", "one order"));
}

/* A rank without microbatches has only zeros, which need no sum, but the other ranks wait for it. */
TEST(a_collective_that_one_rank_lacks_is_a_deadlock)
{
    struct fixture f;
    struct job_spec job = job_small(ARCH_LLAMA, 3);
    job.train.global_batch = 4;
    fixture_init(&f, &job, MODE_EVAL);
    struct program *p = &f.programs[2];
    p->ops[find_op(p, OP_ZERO, 0)].wait[0] = -1;
    remove_action(p, find_action(p, ACT_REDUCE, 0));
    assert_refused(&f, 0, WORDS("(all_reduce)", "loss", "not all ranks of its group issue it"));
}

TEST(a_group_without_a_holder_is_refused)
{
    struct fixture f;
    setup(&f, 3, NUMERICS_FAST);
    f.programs[0].groups[0].n = 2;
    assert_refused(&f, 0, WORDS("(all_reduce)", "leaves rank 2 out"));
}

TEST(another_reduction_than_a_sum_is_refused)
{
    struct fixture f;
    setup(&f, 2, NUMERICS_FAST);
    f.programs[1].ops[find_op(&f.programs[1], OP_ALL_REDUCE, 2)].reduce = REDUCE_AVG;
    assert_refused(&f, 1, WORDS("does not sum unit.2.grad"));
}

TEST(overlapping_live_buffers_are_refused)
{
    struct fixture f;
    setup(&f, 1, NUMERICS_FAST);
    struct program *p = &f.programs[0];
    int q = find_buffer(p, "layer.0.gate"), v = find_buffer(p, "layer.1.gate"); /* equal sizes, both alive */
    p->buffers[v].offset = p->buffers[q].offset;
    assert_refused(&f, 0, WORDS("(backward micro 0)", "swiglu_grad", "layer.0.gate", "overwritten as layer.1"));
    setup(&f, 1, NUMERICS_FAST);
    p = &f.programs[0];
    p->buffers[find_buffer(p, "layer.0.q")].offset = p->buffers[find_buffer(p, "layer.0.attention_norm")].offset;
    assert_refused(&f, 0, WORDS("(gemm)", "layer.0.q", "shares bytes with its operand layer.0.attention_norm"));
}

TEST(overlapping_parameters_are_refused)
{
    struct fixture f;
    setup(&f, 1, NUMERICS_FAST);
    struct program *p = &f.programs[0];
    int a = find_buffer(p, "layers.0.attention.wk.weight"), b = find_buffer(p, "layers.0.attention.wv.weight");
    p->buffers[b].offset = p->buffers[a].offset;
    assert_refused(&f, 0, WORDS("layers.0.attention.wk.weight", "layers.0.attention.wv.weight", "share bytes"));
}

TEST(reading_before_writing_is_refused)
{
    struct fixture f;
    setup(&f, 1, NUMERICS_FAST);
    struct program *p = &f.programs[0];
    int a = find_op(p, OP_SWIGLU, 0);
    struct op x = p->ops[a];
    p->ops[a] = p->ops[a - 1]; /* the matmul that computes `up` now comes after its reader */
    p->ops[a - 1] = x;
    assert_refused(&f, 0, WORDS("action 1 (forward micro 0)", "(swiglu)", "reads layer.0.up before anything"));
}

TEST(an_activation_of_an_earlier_microbatch_is_refused)
{
    struct fixture f;
    setup(&f, 1, NUMERICS_FAST);
    struct program *p = &f.programs[0];
    int backward = find_action(p, ACT_BACKWARD, 1); /* of micro 1 */
    struct action x = p->actions[backward];
    p->actions[backward] = p->actions[backward + 1];
    p->actions[backward + 1] = x; /* forward 2 before backward 1 */
    err_t e = plan_check(&f.graph, f.programs, f.n, &f.why);
    assert_err(ERR_INVALID, e);
    assert_message(&f.why, "rank 0");
    fixture_fini(&f);
}

TEST(a_gradient_that_is_never_zeroed_is_refused)
{
    struct fixture f;
    setup(&f, 1, NUMERICS_FAST);
    struct program *p = &f.programs[0];
    int first = p->actions[find_action(p, ACT_BACKWARD, 0)].first_op;
    for (int i = first; i < p->n_ops; i++)
        if (p->ops[i].kind == OP_GEMM && p->buffers[p->ops[i].arg[3].buffer].space == SPACE_GRAD) {
            p->ops[i].flags |= OPF_ACC;
            break;
        }
    assert_refused(&f, 0, WORDS("(backward micro 0)", "output.weight.grad", "before anything"));
}

TEST(a_microbatch_that_overwrites_earlier_gradients_is_refused)
{
    for (int workers = 1; workers <= 2; workers++) {
        struct fixture f;
        setup(&f, workers, NUMERICS_FAST);
        struct program *p = &f.programs[0];
        p->actions[find_action(p, ACT_BACKWARD, 1)].first_op = p->actions[find_action(p, ACT_BACKWARD, 0)].first_op;
        assert_refused(&f, 0, WORDS("(backward micro 1)", "(gemm)", "overwrites output.weight.grad"));
    }
}

TEST(a_missing_wait_is_refused)
{
    struct fixture f;
    setup(&f, 2, NUMERICS_FAST);
    struct program *p = &f.programs[1];
    p->ops[find_op(p, OP_ALL_REDUCE, 1)].wait[0] = -1; /* the head's gradient */
    assert_refused(&f, 1, WORDS("(all_reduce)", "norm.weight.grad", "another stream"));
    setup(&f, 2, NUMERICS_FAST);
    p = &f.programs[0];
    p->ops[find_op(p, OP_NORM, 0)].wait[0] = -1;
    assert_refused(&f, 0, WORDS("(norm)", "norm.weight.grad", "another stream"));
    setup(&f, 1, NUMERICS_FAST);
    p = &f.programs[0];
    p->ops[find_op(p, OP_ADAMW, 0)].wait[0] = -1; /* the previous step's snapshot may still read */
    assert_refused(&f, 0, WORDS("(adamw)", "writes tok_embeddings.weight", "another stream"));
}

TEST(waiting_for_each_other_is_a_deadlock)
{
    struct fixture f;
    setup(&f, 1, NUMERICS_FAST);
    struct program *p = &f.programs[0];
    int snapshot = find_op(p, OP_SNAPSHOT, 0), adamw = find_op(p, OP_ADAMW, 0);
    p->ops[snapshot].event = -1;
    p->ops[adamw].wait[0] = p->n_events - 1;
    assert_refused(&f, 0, WORDS("(adamw)", "waits for event", "nothing records"));
}

TEST(a_parameter_without_update_is_refused)
{
    struct fixture f;
    setup(&f, 1, NUMERICS_FAST);
    struct program *p = &f.programs[0];
    int a = find_op(p, OP_ADAMW, 3);
    for (int k = 0; k < OP_MAX_OPERANDS; k++)
        p->ops[a].arg[k] = p->ops[a + 1].arg[k];
    assert_refused(&f, 0, WORDS("layers.0.attention.wk.weight", "0 times instead of once"));
}

TEST(a_microbatch_that_no_rank_computes_is_refused)
{
    struct fixture f;
    setup(&f, 2, NUMERICS_FAST);
    f.programs[1].first_micro++;
    assert_err(ERR_INVALID, plan_check(&f.graph, f.programs, f.n, &f.why));
    assert_message(&f.why, "rank 1");
    fixture_fini(&f);
}

TEST(a_wrong_peak_is_refused)
{
    struct fixture f;
    setup(&f, 1, NUMERICS_FAST);
    f.programs[0].space_bytes[SPACE_WORK] += 64;
    assert_refused(&f, 0, WORDS("SPACE_WORK", "its buffers need"));
    setup(&f, 1, NUMERICS_FAST);
    f.programs[0].space_bytes[SPACE_WORK] -= 64;
    assert_refused(&f, 0, WORDS("SPACE_WORK", "ends at byte"));
}

TEST(a_leaf_out_of_order_is_refused)
{
    struct fixture f;
    setup(&f, 1, NUMERICS_CANONICAL);
    struct program *p = &f.programs[0];
    p->actions[find_action(p, ACT_FORWARD, 1)].micro = 2;
    p->actions[find_action(p, ACT_BACKWARD, 1)].micro = 2;
    assert_refused(&f, 0, WORDS("(tree_leaf)", "microbatch 2", "when 1 is next"));
    setup(&f, 1, NUMERICS_CANONICAL);
    p = &f.programs[0];
    remove_action(p, find_action(p, ACT_BACKWARD, 4));
    assert_refused(&f, 0, WORDS("(tree_reduce)", "4 of this rank's 5 leaves"));
}

TEST(an_alias_that_no_kernel_allows_is_refused)
{
    struct fixture f;
    setup(&f, 1, NUMERICS_FAST);
    struct program *p = &f.programs[0];
    struct op *op = &p->ops[find_op(p, OP_SWIGLU, 0)];
    op->arg[2].buffer = op->arg[0].buffer;
    assert_refused(&f, 0, WORDS("(swiglu)", "writes layer.0.gate over operand 0"));
}

TEST(an_operand_that_leaves_its_buffer_is_refused)
{
    static const struct {
        enum op_kind kind;
        int nth, operand;
        const char *name; /* of the buffer */
    } rows[] = {
        {OP_GEMM, 0, 3, "layer.0.q"},        {OP_RMSNORM, 0, 5, "layer.0.attention_norm.rstd"},
        {OP_ROPE, 1, 0, "layer.0.k"},        {OP_ATTENTION, 0, 4, "layer.0.lse"},
        {OP_SWIGLU, 0, 2, "layer.0.swiglu"}, {OP_ADAMW, 1, 3, "layers.0.attention_norm.weight.grad"},
        {OP_ALL_REDUCE, 0, 0, "loss"},       {OP_NORM, 0, 1, "norm.blocks"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct fixture f;
        setup(&f, 2, NUMERICS_FAST);
        struct op *op = &f.programs[1].ops[find_op(&f.programs[1], rows[i].kind, rows[i].nth)];
        int64_t more = rows[i].kind == OP_NORM ? 2 : 1; /* the head's blocks are the last but one */
        op->arg[rows[i].operand].offset.factor += more;
        assert_refused(&f, 1, WORDS(op_name(rows[i].kind), "reaches element", rows[i].name));
    }
}

/* An event recorded in one slot satisfies the waits in another: the latest record covers all earlier ops of its stream.
 */
TEST(events_do_not_belong_to_slots)
{
    struct fixture f;
    setup(&f, 2, NUMERICS_FAST);
    struct program *p = &f.programs[1];
    p->actions[find_action(p, ACT_NORM, 0)].slot = 1; /* the reduces recorded in slot 0 */
    assert_ok(plan_check(&f.graph, f.programs, f.n, &f.why));
    fixture_fini(&f);
}

TEST(broken_structure_is_refused)
{
    struct fixture f;
    setup(&f, 1, NUMERICS_FAST);
    f.programs[0].ops[find_op(&f.programs[0], OP_EMBED, 0)].arg[1].buffer = -1;
    assert_refused(&f, 0, WORDS("(embed)", "operand 1 is missing"));
    setup(&f, 1, NUMERICS_FAST);
    f.programs[0].ops[find_op(&f.programs[0], OP_EMBED, 0)].arg[3].buffer = 100000;
    assert_refused(&f, 0, WORDS("(embed)", "operand 3 is buffer 100000"));
    setup(&f, 1, NUMERICS_FAST);
    f.programs[0].actions[1].n_ops = 1 << 20;
    assert_refused(&f, 0, WORDS("action 1"));
}

/* ---- streams ---- */

/* Jobs whose programs have every kind of dependency between streams; the last rank of some has no microbatch. */
static void setup_nth(struct fixture *f, int nth)
{
    static const struct {
        enum model_arch arch;
        int workers;
        enum numerics numerics;
        enum dtype dtype;
        enum program_mode mode;
    } rows[] = {
        {ARCH_LLAMA, 1, NUMERICS_FAST, DT_F32, MODE_TRAIN},     {ARCH_GPT2, 2, NUMERICS_FAST, DT_BF16, MODE_TRAIN},
        {ARCH_LLAMA, 3, NUMERICS_FAST, DT_BF16, MODE_TRAIN},    {ARCH_LLAMA, 1, NUMERICS_CANONICAL, DT_F32, MODE_TRAIN},
        {ARCH_GPT2, 3, NUMERICS_CANONICAL, DT_F32, MODE_TRAIN}, {ARCH_LLAMA, 3, NUMERICS_FAST, DT_BF16, MODE_EVAL},
    };
    const struct job_spec small = job_small(rows[nth].arch, rows[nth].workers);
    struct job_spec job = small;
    job.model.layers = 1;
    job.train.global_batch = 4; /* two microbatches */
    job.train.numerics = rows[nth].numerics;
    job.train.dtype = rows[nth].dtype;
    fixture_init(f, &job, rows[nth].mode);
}
#define SETUPS 6

/* The wait of the clip is redundant: the comm stream sums the losses before the gradients for which the norm has
 * waited. The compiler emits it for readers of the program. */
static bool is_spare(const struct op *op)
{
    return op->kind == OP_CLIP;
}

/* After `change` the checker refuses the program of rank r with a message that names the rank, an action, an op and the
 * race or the missing event. */
static void assert_race(struct fixture *f, int r, int op, const char *change)
{
    char rank[32];
    const struct op *o = &f->programs[r].ops[op];
    err_t e = plan_check(&f->graph, f->programs, f->n, &f->why);
    if (e != ERR_INVALID)
        fail_msg("rank %d, op %d (%s): %s: accepted", r, op, op_name(o->kind), change);
    snprintf(rank, sizeof(rank), "rank %d, action ", r);
    bool named = strstr(f->why.text, "another stream; it must wait for an event") ||
                 strstr(f->why.text, "which nothing records") || strstr(f->why.text, "of an earlier step");
    if (strncmp(f->why.text, rank, strlen(rank)) != 0 || !strstr(f->why.text, "), op ") || !named)
        fail_msg("rank %d, op %d (%s): %s: %s", r, op, op_name(o->kind), change, f->why.text);
}

/* Drops every wait of every program, one at a time. */
TEST(no_wait_can_be_dropped)
{
    int dropped = 0;
    for (int nth = 0; nth < SETUPS; nth++) {
        struct fixture f;
        setup_nth(&f, nth);
        for (int r = 0; r < f.n; r++)
            for (int i = 0; i < f.programs[r].n_ops; i++) {
                struct op *op = &f.programs[r].ops[i];
                if (op->wait[0] < 0 || is_spare(op))
                    continue;
                int wait = op->wait[0];
                op->wait[0] = -1;
                assert_race(&f, r, i, "without its wait");
                op->wait[0] = wait;
                dropped++;
            }
        assert_ok(plan_check(&f.graph, f.programs, f.n, &f.why));
        fixture_fini(&f);
    }
    assert_true(dropped > 60);
}

/* Drops every record of an event, one at a time, if no other op records the event. */
TEST(no_event_can_be_dropped)
{
    for (int nth = 0; nth < SETUPS; nth++) {
        struct fixture f;
        setup_nth(&f, nth);
        for (int r = 0; r < f.n; r++)
            for (int i = 0; i < f.programs[r].n_ops; i++) {
                struct op *op = &f.programs[r].ops[i];
                int event = op->event, others = 0, waiters = 0;
                for (int k = 0; k < f.programs[r].n_ops && event >= 0; k++) {
                    others += k != i && f.programs[r].ops[k].event == event;
                    waiters += f.programs[r].ops[k].wait[0] == event && !is_spare(&f.programs[r].ops[k]);
                }
                if (event < 0 || others || !waiters)
                    continue;
                op->event = -1;
                assert_race(&f, r, i, "without its event");
                op->event = event;
            }
        fixture_fini(&f);
    }
}

/* Every op of the compute stream depends on an earlier one, or a later one depends on it. */
TEST(no_op_can_move_to_another_stream)
{
    int moved = 0;
    for (int nth = 0; nth < SETUPS; nth++) {
        struct fixture f;
        setup_nth(&f, nth);
        for (int r = 0; r < f.n; r++)
            for (int i = 0; i < f.programs[r].n_ops; i++) {
                struct op *op = &f.programs[r].ops[i];
                bool zeroes_only =
                    f.programs[r].mode == MODE_EVAL && f.programs[r].first_micro == 2; /* this op has its own wait */
                if (op->stream != STREAM_COMPUTE || zeroes_only)
                    continue;
                op->stream = STREAM_COPY;
                assert_race(&f, r, i, "on the copy stream");
                op->stream = STREAM_COMPUTE;
                moved++;
            }
        fixture_fini(&f);
    }
    assert_true(moved > 300);
}

/* An op on another stream than the host's reads the batch. First it lacks the wait for the host's write; then the
 * host's next write does not wait for it. */
TEST(a_batch_that_is_overwritten_too_early_is_refused)
{
    struct fixture f;
    setup(&f, 1, NUMERICS_FAST);
    struct program *p = &f.programs[0];
    p->ops[find_op(p, OP_EMBED, 0)].stream = STREAM_COPY;
    assert_refused(&f, 0, WORDS("(embed)", "reads ids", "another stream"));
    setup(&f, 1, NUMERICS_FAST);
    p = &f.programs[0];
    int last = find_op(p, OP_EMBED_GRAD, 0), before = find_op(p, OP_CROSS_ENTROPY, 0);
    p->ops[before].event = p->ops[last - 1].event = p->ops[last].wait[0] = p->n_events++;
    p->ops[last].stream = STREAM_COMM;
    assert_refused(&f, 0, WORDS("(forward micro 1)", "lets the host write ids", "another stream"));
}

/* A job saves only in some steps, so an order that exists only through the snapshot is no order. */
TEST(an_order_that_depends_on_a_save_is_refused)
{
    struct fixture f;
    setup(&f, 2, NUMERICS_FAST);
    struct program *p = &f.programs[1];
    int snapshot = find_action(p, ACT_SNAPSHOT, 0), norm = find_action(p, ACT_NORM, 0);
    struct op *op = &p->ops[p->actions[snapshot].first_op];
    int first = find_op(p, OP_NORM, 0), reduced = p->ops[first].wait[0];
    struct action saved = p->actions[snapshot];
    remove_action(p, snapshot);
    insert_action(p, norm, saved); /* the snapshot waits for the head's reduce, and the norm for the snapshot */
    op->wait[0] = reduced;
    p->ops[first].wait[0] = op->event;
    assert_refused(&f, 1, WORDS("(norm)", "norm.weight.grad", "another stream"));
}

/* ---- types, copies, fused matmuls ---- */

TEST(an_operand_of_another_type_is_refused)
{
    struct fixture f;
    setup_bfloat16(&f, ARCH_GPT2, 1);
    struct program *p = &f.programs[0];
    struct op *op = &p->ops[find_op(p, OP_GEMM, 0)];
    op->arg[1].buffer = p->param_buffer[fixture_tensor(&f, "transformer.h.0.attn.c_attn.weight")];
    assert_refused(&f, 0, WORDS("(gemm)", "operand 1", "c_attn.weight", "float32"));
    setup_bfloat16(&f, ARCH_GPT2, 1);
    p = &f.programs[0];
    op = &p->ops[find_op(p, OP_ADAMW, 0)];
    op->arg[0].buffer = find_buffer(p, "transformer.wte.weight.copy");
    assert_refused(&f, 0, WORDS("(adamw)", "operand 0", "wte.weight.copy", "bfloat16"));
}

TEST(a_step_without_new_copies_is_refused)
{
    struct fixture f;
    setup_bfloat16(&f, ARCH_LLAMA, 1);
    struct program *p = &f.programs[0];
    p->actions[0].n_ops--; /* the cast comes after the zeroing of the losses */
    assert_refused(&f, 0, WORDS("(embed)", "tok_embeddings.weight.copy", "before anything has written it"));
    setup_bfloat16(&f, ARCH_LLAMA, 1);
    p = &f.programs[0];
    struct action begin = p->actions[0], cast = begin;
    cast.first_op = begin.first_op + 1;
    cast.n_ops = 1;
    p->actions[0].n_ops = 1;
    insert_action(p, p->n_actions, cast); /* after the update, so the first step has no cast before its forward */
    assert_refused(&f, 0, WORDS("(embed)", "tok_embeddings.weight.copy"));
}

TEST(copies_are_in_the_order_of_their_parameters)
{
    struct fixture f;
    setup_bfloat16(&f, ARCH_LLAMA, 1);
    struct program *p = &f.programs[0];
    struct buffer *a = &p->buffers[find_buffer(p, "layers.0.attention.wk.weight.copy")];
    struct buffer *b = &p->buffers[find_buffer(p, "layers.0.attention.wv.weight.copy")];
    int64_t offset = a->offset;
    a->offset = b->offset;
    b->offset = offset;
    assert_refused(&f, 0, WORDS("(cast)", "not its parameter", "layers.0.attention.wk.weight.copy"));
}

/* No buffer with a shorter lifetime may use a copy's bytes. */
TEST(a_copy_that_is_overwritten_is_refused)
{
    struct fixture f;
    setup_bfloat16(&f, ARCH_LLAMA, 1);
    struct program *p = &f.programs[0];
    p->buffers[find_buffer(p, "layer.0.q")].offset =
        p->buffers[find_buffer(p, "layers.1.attention.wq.weight.copy")].offset;
    assert_refused(&f, 0, WORDS("layers.1.attention.wq.weight.copy", "overwritten as layer.0.q"));
}

TEST(a_wrongly_fused_matmul_is_refused)
{
    struct fixture f;
    setup_bfloat16(&f, ARCH_GPT2, 2);
    struct program *p = &f.programs[1];
    int forward = -1, backward = -1, bias = -1;
    for (int i = 0; i < p->n_ops; i++) {
        forward = p->ops[i].flags & OPF_GELU ? i : forward;
        backward = p->ops[i].flags & OPF_GELU_GRAD ? i : backward;
        bias = p->ops[i].kind == OP_GEMM && p->ops[i].arg[6].buffer >= 0 ? i : bias;
    }
    assert_true(forward >= 0 && backward >= 0 && bias >= 0);
    const struct op saved[] = {p->ops[forward], p->ops[backward], p->ops[bias]};
    const int at[] = {forward, backward, bias};
#define REFUSED(...)                                                            \
    do {                                                                        \
        assert_err(ERR_INVALID, plan_check(&f.graph, f.programs, f.n, &f.why)); \
        for (int i = 0; WORDS(__VA_ARGS__)[i]; i++)                             \
            assert_message(&f.why, WORDS(__VA_ARGS__)[i]);                      \
        for (int i = 0; i < 3; i++)                                             \
            p->ops[at[i]] = saved[i];                                           \
    } while (0)
    p->ops[forward].arg[4].buffer = -1;
    REFUSED("rank 1", "(gemm)", "an activation but no aux");
    p->ops[forward].flags &= ~(uint32_t)OPF_GELU;
    REFUSED("rank 1", "(gemm)", "an aux but no activation");
    p->ops[forward].flags |= OPF_GELU_GRAD;
    REFUSED("rank 1", "(gemm)", "more than one of OPF_GELU");
    p->ops[backward].flags |= OPF_ACC;
    REFUSED("rank 1", "(gemm)", "more than one of OPF_GELU");
    p->ops[backward].arg[4].buffer = p->ops[backward].arg[3].buffer;
    REFUSED("rank 1", "(gemm)", "over operand");
    p->ops[forward].arg[4].buffer = p->ops[forward].arg[0].buffer;
    REFUSED("rank 1", "(gemm)");
    p->ops[bias].arg[6].offset.factor = 1;
    REFUSED("rank 1", "(gemm)", "reaches element", ".bias.grad");
    p->ops[bias].arg[6].buffer = p->param_buffer[fixture_tensor(&f, "transformer.h.0.ln_1.bias")];
    REFUSED("rank 1");
    assert_ok(plan_check(&f.graph, f.programs, f.n, &f.why));
#undef REFUSED
    fixture_fini(&f);
}

/* The gradient of a bias is zeroed before the first matmul that adds to it, like every sum that ops can only add to. */
TEST(a_bias_gradient_that_is_never_zeroed_is_refused)
{
    struct fixture f;
    setup_bfloat16(&f, ARCH_GPT2, 1);
    struct program *p = &f.programs[0];
    const struct action *backward = &p->actions[find_action(p, ACT_BACKWARD, 0)];
    int grad = p->grad_buffer[fixture_tensor(&f, "transformer.h.1.mlp.c_proj.bias")];
    for (int i = backward->first_op; i < backward->first_op + backward->n_ops; i++)
        if (p->ops[i].kind == OP_ZERO && p->ops[i].arg[0].buffer == grad)
            p->ops[i].arg[0].buffer = p->grad_buffer[fixture_tensor(&f, "transformer.h.1.ln_1.bias")];
    assert_refused(&f, 0, WORDS("(gemm)", "transformer.h.1.mlp.c_proj.bias.grad", "before anything"));
}

TEST(a_parameter_without_its_buffers_is_refused)
{
    struct fixture f;
    setup(&f, 1, NUMERICS_FAST);
    f.programs[0].v_buffer[fixture_tensor(&f, "norm.weight")] = -1;
    assert_refused(&f, 0, WORDS("norm.weight", "no buffer of its own"));
}
