/* Asynchronous tensor parallelism: equal bits, as many bytes on the wire, a shorter step where the wire is slow, and
 * the checker finds every planted bug in it. */
#include "common/plan/check/plan_check.h"
#include "common/plan/estimate/forecast.h"
#include "tests/common/plan/world.h"

static struct job_spec job_of(enum model_arch arch, int cp, int tp)
{
    struct job_spec job = job_small(arch, cp * tp);
    job.parallel.cp = cp;
    job.parallel.tp = tp;
    job.train.global_batch = 4;
    job.train.numerics = NUMERICS_PROOF;
    job.train.dtype = DT_F64;
    return job;
}

static struct job_spec overlapped(struct job_spec job)
{
    job.parallel.async_tp = true;
    return job;
}

static void no_bit_differs(const struct job_spec *job)
{
    struct job_spec other = overlapped(*job);
    world_compare_two(job, &other);
}

TEST(matmuls_in_parts_have_the_bits_of_whole_ones)
{
    for (int arch = ARCH_LLAMA; arch <= ARCH_TRANSFORMER; arch++)
        for (int tp = 2; tp <= 4; tp++) {
            struct job_spec job = job_of((enum model_arch)arch, 1, tp), odd = job_uneven(job);
            no_bit_differs(&job);
            no_bit_differs(&odd);
            odd.train.dropout = arch == ARCH_TRANSFORMER ? 0.25 : 0;
            odd = overlapped(odd);
            world_compare(&odd); /* and to one worker's */
        }
}

TEST(parts_with_rings_and_recomputation_have_the_same_bits)
{
    for (int arch = ARCH_LLAMA; arch <= ARCH_TRANSFORMER; arch++)
        for (int what = RECOMPUTE_NONE; what <= RECOMPUTE_ATTENTION; what++) {
            struct job_spec job = job_uneven(job_of((enum model_arch)arch, 1 + what % 2, 2 + what % 2));
            job.parallel.recompute = (enum recompute)what;
            no_bit_differs(&job);
        }
}

TEST(parts_with_shards_and_stages_have_the_same_bits)
{
    const enum pipe_schedule schedules[] = {PIPE_1F1B, PIPE_GPIPE, PIPE_INTERLEAVED, PIPE_ZB_H1, PIPE_ZB_V};
    for (int arch = ARCH_LLAMA; arch <= ARCH_GPT2; arch++)
        for (int k = 0; k < 5; k++) {
            struct job_spec job = job_uneven(job_of((enum model_arch)arch, 1, 2 + k % 2));
            job.parallel.pp = 2;
            job.parallel.fsdp = 2;
            job.parallel.workers *= 4;
            job.parallel.schedule = schedules[k];
            job.parallel.chunks = job_schedule_row(schedules[k])->most > 1 ? 2 : 1;
            job.parallel.zero = 3 - k % 4;
            job.model.layers = 4;
            no_bit_differs(&job);
        }
}

TEST(parts_with_ranks_without_tokens_have_the_same_bits)
{
    for (int arch = ARCH_LLAMA; arch <= ARCH_GPT2; arch++) {
        struct job_spec job = job_of((enum model_arch)arch, 1, 4);
        job.train.seq = 3;
        job.train.micro_batch = 1;
        no_bit_differs(&job);
    }
}

TEST(parts_in_evaluation_and_generation_have_the_same_bits)
{
    for (int arch = ARCH_LLAMA; arch <= ARCH_TRANSFORMER; arch++)
        for (int cp = 1; cp <= 2; cp++)
            for (int tp = 2; tp <= 3; tp++) {
                struct job_spec job = job_uneven(job_of((enum model_arch)arch, cp, tp)), other = overlapped(job);
                world_compare_two_passes(&job, &other);
            }
}

/* With fewer columns than ranks there are no column blocks. */
TEST(narrow_models_overlap_what_they_can)
{
    struct job_spec job = job_of(ARCH_GPT2, 1, 4);
    job.model.dim = job.model.heads = 4;
    no_bit_differs(&job);
    job.parallel.tp = job.parallel.workers = 3;
    no_bit_differs(&job);
}

static struct forecast forecast_of(const struct job_spec *job, const struct plan_rates *rates)
{
    struct fixture f;
    struct forecast ret;
    fixture_init(&f, job, MODE_TRAIN);
    if (plan_forecast(f.programs, f.n, rates, &ret, &f.why) != OK)
        fail_msg("%s", f.why.text);
    fixture_fini(&f);
    return ret;
}

/* On this wire the tokens of a layer take as long as its matmuls; with parallel.async_tp both run at the same time. */
TEST(a_step_on_a_slow_wire_is_shorter)
{
    static const struct plan_rates slow = {1e12, 1e12, 8e9, 1e-6, false, false, NULL, 0, NULL, NULL},
                                   thread = {1e12, 1e12, 8e9, 1e-6, true, false, NULL, 0, NULL, NULL};
    for (int arch = ARCH_LLAMA; arch <= ARCH_TRANSFORMER; arch++) {
        struct job_spec job = job_of((enum model_arch)arch, 1, 4);
        job.train.numerics = NUMERICS_FAST;
        job.train.dtype = DT_F32;
        job.train.seq = 512;
        job.model.dim = 512;
        job.model.ffn = 2048;
        job.model.vocab = 1024;
        job.model.heads = 8;
        struct job_spec async = overlapped(job);
        struct forecast plain = forecast_of(&job, &slow), parts = forecast_of(&async, &slow);
        print_message("arch %d: %.4g ms, with parallel.async_tp %.4g ms; exposed %.3f and %.3f\n", arch,
                      plain.seconds * 1e3, parts.seconds * 1e3, plain.exposed, parts.exposed);
        assert_true(parts.seconds < 0.95 * plain.seconds && parts.exposed < plain.exposed);
        assert_memory_equal(plain.bytes, parts.bytes, sizeof(plain.bytes));
        forecast_fini(&plain);
        forecast_fini(&parts);
        plain = forecast_of(&job, &thread); /* no overlap, and the latency of more calls */
        parts = forecast_of(&async, &thread);
        assert_true(parts.seconds < 1.05 * plain.seconds);
        forecast_fini(&plain);
        forecast_fini(&parts);
    }
}

/* With recomputation and in every mode: as many bytes as without async_tp. */
TEST(as_many_bytes_are_sent)
{
    static const struct plan_rates rates = {1e12, 1e12, 1e10, 1e-6, false, false, NULL, 0, NULL, NULL};
    for (int arch = ARCH_LLAMA; arch <= ARCH_GPT2; arch++)
        for (int what = RECOMPUTE_NONE; what <= RECOMPUTE_ATTENTION; what++) {
            struct job_spec job = job_uneven(job_of((enum model_arch)arch, 2, 3)), async;
            job.parallel.recompute = (enum recompute)what;
            async = overlapped(job);
            struct forecast plain = forecast_of(&job, &rates), parts = forecast_of(&async, &rates);
            assert_true(plain.bytes[1u << AXIS_TP] > 0);
            assert_memory_equal(plain.bytes, parts.bytes, sizeof(plain.bytes));
            forecast_fini(&plain);
            forecast_fini(&parts);
        }
}

/* ---- bugs that the checker finds ---- */

static bool names_part(const struct program *p, const struct op *op, int i, const char *what)
{
    return op->arg[i].buffer >= 0 && strstr(p->buffers[op->arg[i].buffer].name, what);
}

static bool is_shift(const struct program *p, const struct op *op)
{
    return op->kind == OP_SHIFT;
}

static bool is_later_shift(const struct program *p, const struct op *op)
{
    return op->kind == OP_SHIFT && names_part(p, op, 0, ".of.");
}

static bool is_rows(const struct program *p, const struct op *op)
{
    return op->kind == OP_GEMM && names_part(p, op, 0, ".of.");
}

static bool is_columns(const struct program *p, const struct op *op)
{
    return op->kind == OP_GEMM && names_part(p, op, 3, ".share.1");
}

static bool is_biased_columns(const struct program *p, const struct op *op)
{
    return is_columns(p, op) && op->arg[2].buffer >= 0;
}

static bool is_sum(const struct program *p, const struct op *op)
{
    return op->kind == OP_OWN_SCATTER && names_part(p, op, 0, ".share.1");
}

static bool is_put(const struct program *p, const struct op *op)
{
    return op->kind == OP_COPY_COLS && names_part(p, op, 0, ".sum.1");
}

static bool is_norm(const struct program *p, const struct op *op)
{
    return op->kind == OP_LAYERNORM && op->node > 2;
}

/* The last buffer before operand 0's with `what` in its name. */
static int before(const struct program *p, const struct op *op, const char *what)
{
    int b = op->arg[0].buffer - 1;
    while (b >= 0 && !strstr(p->buffers[b].name, what))
        b--;
    assert_true(b >= 0);
    return b;
}

static void nothing(const struct program *p, struct op *op)
{
    op->kind = OP_PUSH;
    op->group = -1;
    for (int i = 0; i < OP_MAX_OPERANDS; i++)
        op->arg[i].buffer = -1;
}

static void other_tokens(const struct program *p, struct op *op)
{
    int b = op->arg[0].buffer; /* each of three ranks receives two, and they are adjacent */
    op->arg[0].buffer = b + 1 < p->n_buffers && strstr(p->buffers[b + 1].name, ".of.") ? b + 1 : b - 1;
}

static void rows_of_others(const struct program *p, struct op *op)
{
    op->arg[3].offset = (struct graph_dim){SYM_OWN0, op->ldc};
}

static void rows_from_the_start(const struct program *p, struct op *op)
{
    op->arg[3].offset = (struct graph_dim){SYM_ONE, 0};
}

static void own_rows(const struct program *p, struct op *op)
{
    int i = (int)(op - p->ops);
    while (p->ops[i].node != op->node || p->ops[i].m.sym != SYM_OWN)
        i--;
    op->arg[0].buffer = p->ops[i].arg[0].buffer;
    op->m.sym = SYM_OWN;
    op->arg[3].offset = op->arg[4].offset = (struct graph_dim){SYM_OWN0, op->ldc};
}

static void all_rows(const struct program *p, struct op *op)
{
    op->m.sym = SYM_TOKENS;
}

static void passes_own(const struct program *p, struct op *op)
{
    for (int i = (int)(op - p->ops); i >= 0 && p->ops[i].kind == OP_SHIFT; i--)
        op->arg[0].buffer = p->ops[i].arg[0].buffer;
    op->m.sym = SYM_OWN;
}

static void first_columns(const struct program *p, struct op *op)
{
    op->arg[1].offset = (struct graph_dim){SYM_ONE, 0};
    op->arg[1].col = 0;
}

static void first_bias(const struct program *p, struct op *op)
{
    op->arg[2].col = 0;
}

static void fewer_columns(const struct program *p, struct op *op)
{
    op->n.factor--;
}

static void share_before(const struct program *p, struct op *op)
{
    op->arg[0].buffer = before(p, op, ".share.0");
}

static void columns_before(const struct program *p, struct op *op)
{
    op->arg[1].col--;
}

static void sum_before(const struct program *p, struct op *op)
{
    op->arg[0].buffer = before(p, op, ".sum.0");
}

static void copied_alone(const struct program *p, struct op *op)
{
    op->kind = OP_COPY;
    op->arg[1].col = 0;
}

static void norm_of_tokens(const struct program *p, struct op *op)
{
    op->arg[0].buffer = 0;
    while (!strstr(p->buffers[op->arg[0].buffer].name, ".of."))
        op->arg[0].buffer++;
    op->m = p->buffers[op->arg[0].buffer].dim[0];
}

static const struct mistake {
    const char *name;
    bool (*is)(const struct program *p, const struct op *op);
    void (*change)(const struct program *p, struct op *op);
    bool one; /* only rank 1 has the bug */
    const char *message;
} mistakes[] = {
    {"a shift left out", is_shift, nothing, false, "before anything has written it"},
    {"a shift left out by one rank", is_shift, nothing, true, ""},
    {"own tokens passed on again", is_later_shift, passes_own, false, ""},
    {"own tokens passed on again by one rank", is_later_shift, passes_own, true, ""},
    {"a matmul left out", is_rows, nothing, false, "before all parts of it have been written"},
    {"a matmul of other tokens", is_rows, other_tokens, false, ""},
    {"rows written to the own ones", is_rows, rows_of_others, false, "to other rows of"},
    {"rows written to the start", is_rows, rows_from_the_start, true, "to other rows of"},
    {"rows written a second time", is_rows, own_rows, false, "a second time"},
    {"more rows than there are", is_rows, all_rows, true, ""},
    {"columns left out", is_columns, nothing, false, "before anything has written it"},
    {"the first columns again", is_columns, first_columns, false, ""},
    {"the first columns again on one rank", is_columns, first_columns, true, ""},
    {"the first columns' bias", is_biased_columns, first_bias, false, "adds other columns"},
    {"one column fewer", is_columns, fewer_columns, false, ""},
    {"a sum left out", is_sum, nothing, false, "before anything has written it"},
    {"a sum left out by one rank", is_sum, nothing, true, ""},
    {"a share summed twice", is_sum, share_before, false, "a second time"},
    {"another share summed by one rank", is_sum, share_before, true, ""},
    {"a sum of fewer columns", is_sum, fewer_columns, false, "sums only some of the columns"},
    {"columns of a sum left out", is_put, nothing, false, "on next"},
    {"columns of a sum copied to other columns", is_put, columns_before, true, "to other columns"},
    {"other columns of a sum", is_put, sum_before, true, ""}, /* of another width or at another offset */
    {"columns of a sum used as all columns", is_put, copied_alone, false, "has only columns"},
    {"a norm of another rank's tokens", is_norm, norm_of_tokens, true, ""},
};

/* Changes the nth op of the kind on every rank, or on rank 1. False: there is none. */
static bool change(struct fixture *f, const struct mistake *m, int nth, struct op *saved, int *at)
{
    bool any = false;
    for (int r = 0; r < f->n; r++) {
        struct program *p = &f->programs[r];
        int left = nth;
        at[r] = -1;
        for (int i = 0; i < p->n_ops && at[r] < 0 && (r == 1 || !m->one); i++)
            if (m->is(p, &p->ops[i]) && left-- == 0)
                at[r] = i;
        if (at[r] < 0)
            continue;
        saved[r] = p->ops[at[r]];
        m->change(p, &p->ops[at[r]]);
        any |= memcmp(&saved[r], &p->ops[at[r]], sizeof(*saved)) != 0;
    }
    return any;
}

TEST(every_bug_with_parts_is_refused)
{
    struct job_spec job = job_of(ARCH_GPT2, 1, 3);
    struct fixture f;
    job.parallel.async_tp = true;
    job.model.layers = 1;
    fixture_init(&f, &job, MODE_TRAIN);
    assert_ok(plan_check(&f.graph, f.programs, f.n, &f.why));
    for (size_t i = 0; i < sizeof(mistakes) / sizeof(mistakes[0]); i++) {
        struct op saved[MAX_RANKS];
        int at[MAX_RANKS], nth = 0;
        for (; change(&f, &mistakes[i], nth, saved, at); nth++) {
            err_t e = plan_check(&f.graph, f.programs, f.n, &f.why);
            if (e != ERR_INVALID || strncmp(f.why.text, "rank ", 5) != 0 || !strstr(f.why.text, mistakes[i].message))
                fail_msg("%s, the %dth: %s", mistakes[i].name, nth, e ? f.why.text : "accepted");
            for (int r = 0; r < f.n; r++)
                if (at[r] >= 0)
                    f.programs[r].ops[at[r]] = saved[r];
        }
        print_message("%-36s %d: %s\n", mistakes[i].name, nth, f.why.text);
        assert_true(nth > 0);
    }
    assert_ok(plan_check(&f.graph, f.programs, f.n, &f.why));
    fixture_fini(&f);
}

/* Rank 1 uses member 2's tokens as its own. Their number is equal, so only their way round the ring shows it. */
static void claim_own(struct program *p, int b)
{
    p->buffers[b].dim[0].sym = SYM_OWN;
    for (int i = 0; i < p->n_ops; i++) {
        struct op *op = &p->ops[i];
        if (op->kind == OP_SHIFT && op->arg[0].buffer == b)
            op->m.sym = SYM_OWN;
        else if (op->kind == OP_SHIFT && op->arg[1].buffer == b)
            op->k.sym = SYM_OWN;
        else if (op->kind == OP_GEMM && op->arg[0].buffer == b)
            op->m.sym = SYM_OWN;
        if (op->kind == OP_GEMM && op->arg[0].buffer == b)
            op->arg[3].offset.sym = op->arg[4].offset.sym = SYM_OWN0;
    }
}

/* Op `at`, a matmul of buffer b, becomes a norm of b like op `norm`, with the same waits. */
static void norm_instead(struct program *p, int at, int norm, int b)
{
    struct op *op = &p->ops[at], was = *op;
    *op = p->ops[norm];
    memcpy(op->wait, was.wait, sizeof(op->wait));
    op->event = was.event;
    op->arg[0].buffer = b;
    op->arg[1].buffer = op->arg[4].buffer = -1; /* without a residual sum */
}

TEST(the_checker_does_not_rely_on_buffer_names_and_symbols)
{
    struct job_spec job = job_of(ARCH_GPT2, 1, 3);
    struct fixture f;
    job.parallel.async_tp = true;
    fixture_init(&f, &job, MODE_TRAIN);
    struct program *p = &f.programs[1];
    int b = 0, norm = 0;
    while (!strstr(p->buffers[b].name, ".of.2"))
        b++;
    while (!is_norm(p, &p->ops[norm]))
        norm++;
    claim_own(p, b);
    assert_err(ERR_INVALID, plan_check(&f.graph, f.programs, f.n, &f.why));
    assert_message(&f.why, "writes rows of member 1 from layer.0.ln_1.of.2, which has the tokens of member 2");
    fixture_fini(&f);
    fixture_init(&f, &job, MODE_TRAIN); /* and a norm reads them */
    claim_own(p, b);
    for (int i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == OP_GEMM && p->ops[i].arg[0].buffer == b)
            norm_instead(p, i, norm, b);
    assert_err(ERR_INVALID, plan_check(&f.graph, f.programs, f.n, &f.why));
    assert_message(&f.why, "which has the own tokens of another rank");
    fixture_fini(&f);
}

/* ---- waits ---- */

static const struct op *recorder(const struct program *p, int event)
{
    for (int i = 0; i < p->n_ops; i++)
        if (p->ops[i].event == event)
            return &p->ops[i];
    fail_msg("nothing records event %d", event);
    return NULL;
}

/* On a device with streams a step of the ring waits only for the step before it, and the matmul of a column block waits
 * for no sum of another block. */
TEST(no_op_waits_for_what_it_overlaps)
{
    for (int arch = ARCH_LLAMA; arch <= ARCH_GPT2; arch++) {
        struct job_spec job = job_uneven(job_of((enum model_arch)arch, 1, 4));
        struct fixture f;
        int later = 0, columns = 0;
        job.parallel.async_tp = true;
        fixture_init(&f, &job, MODE_TRAIN);
        for (int r = 0; r < f.n; r++)
            for (int i = 0; i < f.programs[r].n_ops; i++) {
                const struct program *p = &f.programs[r];
                const struct op *op = &p->ops[i];
                bool share =
                    op->kind == OP_GEMM && names_part(p, op, 3, ".share.") && !names_part(p, op, 3, ".share.0");
                for (int k = 0; k < OP_MAX_WAITS && is_later_shift(p, op); k++)
                    assert_int_equal(op->wait[k], -1);
                for (int k = 0; k < OP_MAX_WAITS && share; k++)
                    assert_true(op->wait[k] < 0 || recorder(p, op->wait[k])->node != op->node);
                later += is_later_shift(p, op);
                columns += share;
            }
        assert_int_equal(later, 4 * 2 * (2 * job.model.layers + 1)); /* ranks, steps of a ring, and the head's */
        assert_int_equal(columns, 4 * 3 * 2 * job.model.layers);
        fixture_fini(&f);
    }
}
