/* Output of the compiler: listings of tiny programs, the split of a batch, offsets, flags. */
#include "tests/common/plan/plan_fixture.h"

#include <math.h>

/* DTD_GOLDEN=write rewrites the golden files; read the difference before you commit it. */
static void assert_golden(const struct fixture *f, int rank, const char *name)
{
    char path[512], *text = NULL, *want = NULL;
    size_t len = 0, want_len = 0;
    const char *source = getenv("DTD_SOURCE");
    FILE *out = open_memstream(&text, &len);
    assert_non_null(out);
    program_print(&f->programs[rank], &f->graph, out);
    fclose(out);
    snprintf(path, sizeof(path), "%s/tests/common/plan/golden/%s.txt", source ? source : ".", name);
    if (getenv("DTD_GOLDEN")) {
        FILE *file = fopen(path, "w");
        assert_non_null(file);
        fwrite(text, 1, len, file);
        fclose(file);
    }
    FILE *file = fopen(path, "r");
    if (!file)
        fail_msg("cannot open %s; run with DTD_GOLDEN=write to make it", path);
    assert_true(getdelim(&want, &want_len, 0, file) > 0);
    fclose(file);
    char *got_at = text, *want_at = want, *got_save, *want_save;
    for (int line = 1;; line++, got_at = want_at = NULL) {
        char *g = strtok_r(got_at, "\n", &got_save), *w = strtok_r(want_at, "\n", &want_save);
        if (!g && !w)
            break;
        if (!g || !w || strcmp(g, w) != 0)
            fail_msg("%s:%d is\n%s\nnot\n%s", path, line, g ? g : "(the end)", w ? w : "(the end)");
    }
    free(text);
    free(want);
}

TEST(tiny_llama_prints_as_before)
{
    struct job_spec job = job_small(ARCH_LLAMA, 2);
    struct fixture f;
    job.model.layers = 1;
    job.train.global_batch = 5;
    fixture_init(&f, &job, MODE_TRAIN);
    assert_golden(&f, 0, "llama_train");
    fixture_fini(&f);
}

/* Three sequences, and at most eight tokens at a time. */
TEST(tiny_llama_decoding_prints_as_before)
{
    struct job_spec job = job_small(ARCH_LLAMA, 2);
    struct fixture f;
    job.model.layers = 1;
    job.parallel.tp = 2;
    job.train.micro_batch = 3;
    job.train.global_batch = 8;
    fixture_init(&f, &job, MODE_DECODE);
    assert_golden(&f, 1, "llama_decode");
    fixture_fini(&f);
}

/* The middle one of three ranks; the first has more tokens than the others. */
TEST(tiny_llama_in_parts_prints_as_before)
{
    struct job_spec job = job_small(ARCH_LLAMA, 3);
    struct fixture f;
    job.model.layers = 1;
    job.parallel.tp = 3;
    job.parallel.async_tp = true;
    fixture_init(&f, &job, MODE_EVAL);
    assert_golden(&f, 1, "llama_async_tp");
    fixture_fini(&f);
}

/* Two ranks have one key-value head: the second of them does not count its squares. */
TEST(tiny_olmo_prints_as_before)
{
    struct job_spec job = job_small(ARCH_LLAMA, 4);
    struct fixture f;
    job.parallel.tp = 4;
    job.model.layers = 1;
    job.model.qk_norm = QK_NORM_WHOLE;
    job.model.norm_place = NORM_AFTER;
    fixture_init(&f, &job, MODE_TRAIN);
    assert_golden(&f, 1, "olmo_tp");
    fixture_fini(&f);
}

/* The first of two ranks: sends its outputs in the order of 1f1b. */
TEST(tiny_pipeline_prints_as_before)
{
    struct job_spec job = job_small(ARCH_LLAMA, 2);
    struct fixture f;
    job.parallel.pp = 2;
    job.train.global_batch = 5;
    fixture_init(&f, &job, MODE_TRAIN);
    assert_golden(&f, 0, "llama_pipeline");
    fixture_fini(&f);
}

/* The second of two ranks with other experts: one turn with a microbatch, and one without. */
TEST(tiny_mixture_prints_as_before)
{
    struct job_spec job = job_small(ARCH_LLAMA, 2);
    struct fixture f;
    job.model.layers = 1;
    job.model.experts = 4;
    job.model.experts_per_token = 2;
    job.model.expert_ffn = 12;
    job.parallel.fsdp = job.parallel.ep = 2;
    job.train.global_batch = 5;
    fixture_init(&f, &job, MODE_TRAIN);
    assert_golden(&f, 1, "mixture_two_turns");
    fixture_fini(&f);
}

/* The last rank, with a split backward and a head that is tied to the first rank's table. */
TEST(tiny_zero_bubble_pipeline_prints_as_before)
{
    struct job_spec job = job_small(ARCH_GPT2, 2);
    struct fixture f;
    job.parallel.pp = 2;
    job.parallel.schedule = PIPE_ZB_H1;
    job.train.global_batch = 5;
    fixture_init(&f, &job, MODE_TRAIN);
    assert_golden(&f, 1, "gpt2_zero_bubble");
    fixture_fini(&f);
}

/* The first of three ranks, which runs two forwards ahead of the step before. */
TEST(tiny_post_validation_prints_as_before)
{
    struct job_spec job = job_small(ARCH_LLAMA, 3);
    struct fixture f;
    job.model.layers = 3;
    job.parallel.pp = 3;
    job.parallel.schedule = PIPE_ZB_H2;
    job.parallel.post_validation = true;
    job.train.global_batch = 5 * job.train.micro_batch;
    fixture_init(&f, &job, MODE_TRAIN);
    assert_golden(&f, 0, "llama_post_validation");
    fixture_fini(&f);
}

TEST(tiny_canonical_gpt2_prints_as_before)
{
    struct job_spec job = job_small(ARCH_GPT2, 1);
    struct fixture f;
    job.model.layers = 1;
    job.train.global_batch = 6;
    job.train.numerics = NUMERICS_CANONICAL;
    fixture_init(&f, &job, MODE_TRAIN);
    assert_golden(&f, 0, "gpt2_canonical");
    fixture_fini(&f);
}

/* A listing of rank 0 of two workers in bfloat16. */
static void assert_bfloat16_golden(enum model_arch arch, enum program_mode mode, const char *name)
{
    struct job_spec job = job_small(arch, 2);
    struct fixture f;
    job.model.layers = 1;
    job.train.global_batch = 5;
    job.train.dtype = DT_BF16;
    job.run.device = DEVICE_CUDA;
    fixture_init(&f, &job, mode);
    assert_golden(&f, 0, name);
    fixture_fini(&f);
}

TEST(tiny_bfloat16_llama_prints_as_before)
{
    assert_bfloat16_golden(ARCH_LLAMA, MODE_TRAIN, "llama_bfloat16");
}

TEST(tiny_bfloat16_gpt2_prints_as_before)
{
    assert_bfloat16_golden(ARCH_GPT2, MODE_TRAIN, "gpt2_bfloat16");
}

/* A vocabulary and a feed-forward of odd size on two ranks: rows of logits are padded on rank 0, but not on rank 1,
 * which has 80 columns of 161. */
TEST(tiny_bfloat16_llama_of_odd_sizes_prints_as_before)
{
    struct job_spec job = job_small(ARCH_LLAMA, 2);
    struct fixture f;
    job.model.layers = 1;
    job.model.ffn = 21;
    job.model.vocab = 161;
    job.parallel.tp = 2;
    job.train.global_batch = 3;
    job.train.dtype = DT_BF16;
    job.run.device = DEVICE_CUDA;
    fixture_init(&f, &job, MODE_TRAIN);
    assert_golden(&f, 0, "llama_odd");
    for (int i = 0; i < f.programs[1].n_buffers; i++)
        assert_int_equal(f.programs[1].buffers[i].pitch, 0);
    fixture_fini(&f);
}

TEST(tiny_bfloat16_gpt2_evaluation_prints_as_before)
{
    assert_bfloat16_golden(ARCH_GPT2, MODE_EVAL, "gpt2_bfloat16_eval");
}

TEST(a_global_batch_need_not_divide)
{
    for (int workers = 1; workers <= 8; workers++)
        for (int64_t batch = 1; batch <= 12; batch++)
            for (int64_t micro = 1; micro <= batch; micro++) {
                struct job_spec job = job_small(ARCH_LLAMA, workers);
                struct fixture f;
                int next = 0, least = 100, most = 0;
                int64_t samples = 0;
                job.train.global_batch = batch;
                job.train.micro_batch = micro;
                fixture_init(&f, &job, MODE_EVAL);
                for (int r = 0; r < workers; r++) {
                    const struct program *p = &f.programs[r];
                    int share = p->end_micro - p->first_micro;
                    assert_int_equal(p->first_micro, next);
                    next = p->end_micro;
                    least = share < least ? share : least;
                    most = share > most ? share : most;
                    for (int i = p->first_micro; i < p->end_micro; i++) {
                        assert_int_equal(p->micros[i].first, i * micro); /* the same samples on any number of workers */
                        assert_true(p->micros[i].samples == micro || i == p->n_micros - 1);
                        samples += p->micros[i].samples;
                    }
                }
                assert_int_equal(samples, batch);
                assert_true(most - least <= 1);
                assert_true(f.programs[0].loss_scale == 1.0 / (double)(batch * job.train.seq));
                fixture_fini(&f);
            }
}

/* The most bytes of SPACE_WORK that are live at one op: the lower bound of any placement. */
static int64_t live_bound(const struct program *p)
{
    int *birth = calloc((size_t)p->n_buffers, sizeof(int)), *death = calloc((size_t)p->n_buffers, sizeof(int));
    int64_t most = 0;
    int time = 0, end;
    for (int a = 1; a <= (p->mode == MODE_TRAIN ? 2 : 1); a++) /* the first forward and backward */
        for (int i = 0; i < p->actions[a].n_ops; i++) {
            time++;
            for (int k = 0; k < OP_MAX_OPERANDS; k++) {
                int b = p->ops[p->actions[a].first_op + i].arg[k].buffer;
                if (b < 0 || p->buffers[b].space != SPACE_WORK || p->buffers[b].run >= 0)
                    continue;
                birth[b] = birth[b] ? birth[b] : time;
                death[b] = time;
            }
        }
    end = time;
    for (time = 1; time <= end; time++) {
        int64_t alive = 0;
        for (int b = 0; b < p->n_buffers; b++)
            if (birth[b] && birth[b] <= time && time <= death[b])
                alive += (p->buffers[b].bytes + 63) / 64 * 64;
        most = alive > most ? alive : most;
    }
    free(birth);
    free(death);
    return most;
}

TEST(packing_is_within_a_few_per_cent_of_the_bound)
{
    static const enum dtype dtypes[] = {DT_F32, DT_BF16};
    for (int arch = 0; arch < 2; arch++)
        for (int64_t layers = 1; layers <= 12; layers += 11)
            for (int i = 0; i < 4; i++) {
                struct job_spec job = job_small((enum model_arch)arch, 1);
                struct fixture f;
                job.model.dim = 64;
                job.model.layers = layers;
                job.model.vocab = 1000;
                job.train.seq = 32;
                job.train.dtype = dtypes[i % 2];
                fixture_init(&f, &job, i < 2 ? MODE_TRAIN : MODE_EVAL);
                const struct program *p = &f.programs[0];
                int64_t copies = job.train.dtype == DT_BF16 ? p->space_bytes[SPACE_PARAM] / 2 : 0;
                int64_t bound = copies + live_bound(p), got = p->space_bytes[SPACE_WORK];
                assert_true(got >= bound);
                if ((double)got > 1.05 * (double)bound)
                    fail_msg("arch %d, %d layers, %d: %lld bytes, bound %lld", arch, (int)layers, i, (long long)got,
                             (long long)bound);
                fixture_fini(&f);
            }
}

/* Without a backward no value of a layer outlives the layer, so all layers together need as much as one. */
TEST(evaluation_keeps_no_layer)
{
    for (int arch = 0; arch < 2; arch++) {
        int64_t bytes[2];
        for (int i = 0; i < 2; i++) {
            struct job_spec job = job_small((enum model_arch)arch, 1);
            struct fixture f;
            job.model.layers = i ? 12 : 2;
            fixture_init(&f, &job, MODE_EVAL);
            bytes[i] = f.programs[0].space_bytes[SPACE_WORK];
            fixture_fini(&f);
        }
        assert_int_equal(bytes[0], bytes[1]);
    }
}

TEST(one_buffer_carries_the_residual_gradient)
{
    for (int arch = 0; arch < 2; arch++) {
        struct job_spec job = job_small((enum model_arch)arch, 1);
        struct fixture f;
        int carrier = -1, norms = 0;
        fixture_init(&f, &job, MODE_TRAIN);
        const struct program *p = &f.programs[0];
        for (int i = 0; i < p->n_ops; i++) {
            const struct op *op = &p->ops[i];
            if (op->kind != OP_RMSNORM_GRAD && op->kind != OP_LAYERNORM_GRAD)
                continue;
            int dx = op->arg[arch ? 6 : 5].buffer;
            assert_true(carrier < 0 || carrier == dx);
            carrier = dx;
            norms++;
        }
        assert_int_equal(norms, 2 * (2 * 2 + 1)); /* two ranges of ops */
        fixture_fini(&f);
    }
}

TEST(decay_is_on_matrices_only)
{
    struct job_spec job = job_small(ARCH_GPT2, 1);
    struct fixture f;
    fixture_init(&f, &job, MODE_TRAIN);
    const struct program *p = &f.programs[0];
    for (int i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == OP_ADAMW) {
            const struct buffer *b = &p->buffers[p->ops[i].arg[0].buffer];
            assert_int_equal((p->ops[i].flags & OPF_DECAY) != 0, b->ndim == 2);
        }
    fixture_fini(&f);
}

/* The blocks of the norm cover every tensor from its own start, one after another. */
TEST(norm_blocks_are_on_a_fixed_grid)
{
    for (int workers = 1; workers <= 3; workers += 2) {
        struct job_spec job = job_small(ARCH_LLAMA, workers);
        struct fixture f;
        job.model.dim = 48;
        job.model.vocab = 777;
        fixture_init(&f, &job, MODE_TRAIN);
        const struct program *p = &f.programs[0];
        int64_t next = 0, total = 0;
        for (int t = 0; t < f.graph.n_tensors; t++)
            for (int i = 0; i < p->n_ops; i++)
                if (p->ops[i].kind == OP_NORM && p->buffers[p->ops[i].arg[0].buffer].tensor == t) {
                    assert_int_equal(p->ops[i].arg[1].offset.factor, next);
                    next += (p->ops[i].m.factor + p->ops[i].n.factor - 1) / p->ops[i].n.factor;
                    assert_true(p->ops[i].n.factor <= 1024 && p->ops[i].n.factor > 1024 - 48);
                    total += p->ops[i].m.factor;
                }
        assert_int_equal(total, f.graph.n_params);
        for (int i = 0; i < p->n_ops; i++)
            if (p->ops[i].kind == OP_CLIP)
                assert_int_equal(p->ops[i].m.factor, next);
        fixture_fini(&f);
    }
}

static void assert_modes_alike(enum dtype dtype)
{
    struct job_spec job = job_small(ARCH_LLAMA, 2);
    struct fixture train, other;
    job.train.dtype = (int)dtype;
    fixture_init(&train, &job, MODE_TRAIN);
    for (int mode = MODE_EVAL; mode <= MODE_GENERATE; mode++) {
        fixture_init(&other, &job, (enum program_mode)mode);
        const struct program *a = &train.programs[0], *b = &other.programs[0];
        assert_int_equal(a->space_bytes[SPACE_PARAM], b->space_bytes[SPACE_PARAM]);
        for (int t = 0; t < train.graph.n_tensors; t++)
            if (a->param_buffer[t] >= 0)
                assert_int_equal(a->buffers[a->param_buffer[t]].offset, b->buffers[b->param_buffer[t]].offset);
        assert_int_equal(b->space_bytes[SPACE_GRAD] + b->space_bytes[SPACE_OPT] + b->arena_bytes, 0);
        assert_true(b->space_bytes[SPACE_WORK] < a->space_bytes[SPACE_WORK]);
        fixture_fini(&other);
    }
    fixture_fini(&train);
}

TEST(all_modes_lay_parameters_out_alike)
{
    assert_modes_alike(DT_F32);
    assert_modes_alike(DT_BF16);
}

/* Copies have the same element offsets as the parameters, and both are aligned to 64 bytes. */
TEST(bfloat16_keeps_wide_parameters_and_copies)
{
    for (int mode = MODE_TRAIN; mode <= MODE_GENERATE; mode++) {
        struct job_spec job = job_small(ARCH_GPT2, 1);
        struct fixture f;
        int copies = 0, casts = 0;
        job.train.dtype = DT_BF16;
        fixture_init(&f, &job, (enum program_mode)mode);
        const struct program *p = &f.programs[0];
        assert_int_equal(p->dtype, DT_BF16);
        assert_int_equal(p->wide, DT_F32);
        for (int i = 0; i < p->n_buffers; i++) {
            const struct buffer *b = &p->buffers[i];
            bool stat = b->tensor >= 0 && f.graph.tensors[b->tensor].kind == GT_STAT;
            if (b->space == SPACE_HOST)
                continue;
            assert_int_equal(b->dtype, b->space == SPACE_WORK && !stat ? DT_BF16 : DT_F32);
            if (b->space != SPACE_WORK || b->tensor < 0 || f.graph.tensors[b->tensor].kind != GT_PARAM)
                continue;
            assert_int_equal(2 * b->offset, p->buffers[p->param_buffer[b->tensor]].offset);
            assert_int_equal(b->offset % 64, 0);
            copies++;
        }
        for (int i = 0; i < p->n_ops; i++)
            casts += p->ops[i].kind == OP_CAST;
        assert_int_equal(casts, 1);
        assert_true(copies > 10);
        assert_true(p->space_bytes[SPACE_WORK] > p->space_bytes[SPACE_PARAM] / 2);
        fixture_fini(&f);
    }
}

TEST(a_rank_without_microbatches_has_no_copies)
{
    struct job_spec job = job_small(ARCH_LLAMA, 3);
    struct fixture f;
    job.train.global_batch = 4;
    job.train.dtype = DT_BF16;
    fixture_init(&f, &job, MODE_TRAIN);
    const struct program *p = &f.programs[2];
    assert_int_equal(p->space_bytes[SPACE_WORK], 0);
    for (int i = 0; i < p->n_ops; i++)
        assert_int_not_equal(p->ops[i].kind, OP_CAST);
    for (int s = SPACE_PARAM; s <= SPACE_GRAD; s++)
        assert_int_equal(p->space_bytes[s], f.programs[0].space_bytes[s]);
    fixture_fini(&f);
}

/* The op of a weight's gradient computes the bias gradient too, and GELU is fused. */
TEST(gpt2_has_no_pass_for_biases_or_gelu)
{
    struct job_spec job = job_small(ARCH_GPT2, 1);
    struct fixture f;
    int sums = 0, forward = 0, backward = 0;
    fixture_init(&f, &job, MODE_TRAIN);
    const struct program *p = &f.programs[0];
    for (int i = 0; i < p->n_ops; i++) {
        const struct op *op = &p->ops[i];
        assert_true(op->kind != OP_BIAS_GRAD && op->kind != OP_GELU && op->kind != OP_GELU_GRAD);
        sums += op->kind == OP_GEMM && op->arg[6].buffer >= 0;
        forward += op->kind == OP_GEMM && op->flags & OPF_GELU;
        backward += op->kind == OP_GEMM && op->flags & OPF_GELU_GRAD;
    }
    assert_int_equal(sums, 2 * 4 * 2); /* two ranges of ops, four matmuls, two layers */
    assert_int_equal(forward, 2);
    assert_int_equal(backward, 2 * 2);
    fixture_fini(&f);
}

TEST(the_tree_is_in_the_gradients_bytes_on_all_ranks)
{
    struct job_spec job = job_small(ARCH_LLAMA, 3);
    struct fixture f;
    job.train.global_batch = 26; /* 13 leaves: 5, 4, 4 */
    job.train.numerics = NUMERICS_CANONICAL;
    fixture_init(&f, &job, MODE_TRAIN);
    int depth = 0;
    for (int r = 0; r < 3; r++) {
        int d = sumtree_depth(13, f.programs[r].first_micro, f.programs[r].end_micro);
        depth = d > depth ? d : depth;
    }
    for (int r = 0; r < 3; r++) {
        const struct program *p = &f.programs[r];
        assert_int_equal(p->tree_depth, depth);
        assert_int_equal(p->space_bytes[SPACE_GRAD], (1 + depth) * p->space_bytes[SPACE_PARAM]);
    }
    fixture_fini(&f);
}

TEST(a_rank_without_microbatches_adds_zero)
{
    struct job_spec job = job_small(ARCH_LLAMA, 3);
    struct fixture f;
    job.train.global_batch = 4; /* two microbatches for three ranks */
    fixture_init(&f, &job, MODE_TRAIN);
    const struct program *p = &f.programs[2];
    assert_int_equal(p->first_micro, p->end_micro);
    assert_int_equal(p->space_bytes[SPACE_WORK], 0);
    int64_t zeroed = 0;
    for (int i = 0; i < p->actions[0].n_ops; i++)
        if (p->buffers[p->ops[i].arg[0].buffer].space == SPACE_GRAD)
            zeroed += p->ops[i].m.factor * 4;
    assert_int_equal(zeroed, p->space_bytes[SPACE_GRAD]);
    fixture_fini(&f);
}

TEST(proofs_compute_in_float64)
{
    struct job_spec job = job_small(ARCH_GPT2, 1);
    struct fixture f;
    job.train.numerics = NUMERICS_PROOF;
    fixture_init(&f, &job, MODE_TRAIN);
    assert_int_equal(f.programs[0].dtype, DT_F64);
    assert_true(f.programs[0].space_bytes[SPACE_PARAM] >= 8 * f.graph.n_params);
    fixture_fini(&f);
}

TEST(a_rank_that_does_not_exist_is_refused)
{
    struct job_spec job = job_small(ARCH_GPT2, 2);
    struct graph g;
    struct program p;
    struct why why;
    assert_ok(graph_build(&job.model, job.train.seq, &g, &why));
    assert_err(ERR_INVALID, plan_compile(&job, &g, MODE_TRAIN, 2, &p, &why));
    assert_message(&why, "rank 2 of a job with 2 workers");
    graph_fini(&g);
}

static char *printed(const struct program *p, const struct graph *g)
{
    char *text = NULL;
    size_t len = 0;
    FILE *out = open_memstream(&text, &len);
    assert_non_null(out);
    program_print(p, g, out);
    assert_int_equal(fclose(out), 0);
    return text;
}

/* plan_compile_all, which computes the common part once, and plan_compile of each rank give equal programs. */
TEST(all_at_once_are_the_same_as_one_by_one)
{
    struct job_spec job = job_small(ARCH_LLAMA, 8);
    struct graph g;
    struct program all[9], one;
    struct why why;
    job.parallel.pp = 4;
    job.parallel.chunks = 2;
    job.parallel.schedule = PIPE_INTERLEAVED;
    job.model.layers = 9;
    job.model.tied = true;
    job.train.global_batch = 7 * job.train.micro_batch;
    assert_ok(graph_build(&job.model, job.train.seq, &g, &why));
    assert_ok(plan_compile_all(&job, &g, MODE_TRAIN, 8, all, &why));
    for (int r = 0; r < 8; r++) {
        assert_ok(plan_compile(&job, &g, MODE_TRAIN, r, &one, &why));
        char *a = printed(&all[r], &g), *b = printed(&one, &g);
        assert_string_equal(a, b);
        assert_memory_equal(all[r].space_bytes, one.space_bytes, sizeof(one.space_bytes));
        free(a);
        free(b);
        program_fini(&one);
        program_fini(&all[r]);
    }
    assert_err(ERR_INVALID, plan_compile_all(&job, &g, MODE_TRAIN, 9, all, &why));
    assert_message(&why, "rank 8 of a job with 8 workers");
    graph_fini(&g);
}

TEST(dimensions_follow_the_samples)
{
    struct program p = {.seq = 8};
    assert_int_equal(program_dim(&p, (struct graph_dim){SYM_ONE, 5}, 3), 5);
    assert_int_equal(program_dim(&p, (struct graph_dim){SYM_SAMPLES, 5}, 3), 15);
    assert_int_equal(program_dim(&p, (struct graph_dim){SYM_TOKENS, 5}, 3), 120);
}
