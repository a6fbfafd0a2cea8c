/* Graphs of models against published parameter counts, and the errors for illegal dimensions. */
#include "tests/common/plan/plan_fixture.h"

#include <math.h>

static struct job_model gpt2_small(void)
{
    return (struct job_model){
        .arch = ARCH_GPT2, .dim = 768, .layers = 12, .heads = 12, .vocab = 50257, .norm_eps = 1e-5, .tied = true};
}

static struct job_model llama3_8b(void)
{
    return (struct job_model){.arch = ARCH_LLAMA,
                              .dim = 4096,
                              .layers = 32,
                              .heads = 32,
                              .kv_heads = 8,
                              .ffn = 14336,
                              .vocab = 128256,
                              .norm_eps = 1e-5,
                              .rope_theta = 500000};
}

static const struct graph_tensor *find_tensor(const struct graph *g, const char *name)
{
    for (int i = 0; i < g->n_tensors; i++)
        if (strcmp(g->tensors[i].name, name) == 0)
            return &g->tensors[i];
    fail_msg("no tensor %s", name);
    return NULL;
}

TEST(gpt2_small_has_124439808_parameters)
{
    struct job_model m = gpt2_small();
    struct graph g;
    struct why why;
    int params = 0;
    assert_ok(graph_build(&m, 1024, &g, &why));
    assert_int_equal(g.n_params, 124439808);
    for (int i = 0; i < g.n_tensors; i++)
        params += g.tensors[i].kind == GT_PARAM;
    assert_int_equal(params, 148); /* Hugging Face's model.safetensors without the causal masks in it */
    assert_int_equal(g.n_units, 14);
    graph_fini(&g);
}

TEST(llama3_8b_has_8030261248_parameters)
{
    struct job_model m = llama3_8b();
    struct graph g;
    struct why why;
    assert_ok(graph_build(&m, 8192, &g, &why));
    assert_int_equal(g.n_params, 8030261248);
    graph_fini(&g);
}

/* The oracle: every matmul of a block written out, times 6; the two matmuls of attention times 12 or 6. */
TEST(flops_follow_the_formula)
{
    struct job_model m = gpt2_small();
    struct graph g;
    struct why why;
    assert_ok(graph_build(&m, 1024, &g, &why));
    double d = 768, block = d * 3 * d + d * d + 2 * d * 4 * d, n = 12 * block + 50257 * d;
    assert_true(g.n_params_matmul == (int64_t)n);
    assert_true(graph_flops_per_token(&g, &m, 1024, false) == 6 * n + 12 * 12 * d * 1024);
    assert_true(graph_flops_per_token(&g, &m, 1024, true) == 6 * n + 6 * 12 * d * 1024);
    graph_fini(&g);
    struct job_model l = llama3_8b();
    assert_ok(graph_build(&l, 8192, &g, &why));
    /* 57.9 GFLOP per token with the full square, 51.5 with its causal half. */
    assert_true(fabs(graph_flops_per_token(&g, &l, 8192, false) / 1e9 - 57.9) < 0.1);
    assert_true(fabs(graph_flops_per_token(&g, &l, 8192, true) / 1e9 - 51.5) < 0.1);
    graph_fini(&g);
}

TEST(names_and_shapes_are_those_of_the_checkpoints)
{
    static const struct {
        const char *name;
        int ndim;
        int64_t dims[2];
        int unit;
        bool decay;
    } llama[] = {{"tok_embeddings.weight", 2, {32, 16}, 0, true},
                 {"layers.1.attention.wq.weight", 2, {16, 16}, 2, true},
                 {"layers.1.attention.wk.weight", 2, {8, 16}, 2, true},
                 {"layers.1.attention.wv.weight", 2, {8, 16}, 2, true},
                 {"layers.1.attention.wo.weight", 2, {16, 16}, 2, true},
                 {"layers.0.attention_norm.weight", 1, {16}, 1, false},
                 {"layers.0.ffn_norm.weight", 1, {16}, 1, false},
                 {"layers.0.feed_forward.w1.weight", 2, {64, 16}, 1, true},
                 {"layers.0.feed_forward.w2.weight", 2, {16, 64}, 1, true},
                 {"layers.0.feed_forward.w3.weight", 2, {64, 16}, 1, true},
                 {"norm.weight", 1, {16}, 3, false},
                 {"output.weight", 2, {32, 16}, 3, true}},
      gpt2[] = {{"transformer.wte.weight", 2, {32, 16}, 0, true},
                {"transformer.wpe.weight", 2, {8, 16}, 0, true},
                {"transformer.h.1.ln_1.weight", 1, {16}, 2, false},
                {"transformer.h.1.ln_1.bias", 1, {16}, 2, false},
                {"transformer.h.0.attn.c_attn.weight", 2, {16, 48}, 1, true},
                {"transformer.h.0.attn.c_attn.bias", 1, {48}, 1, false},
                {"transformer.h.0.attn.c_proj.weight", 2, {16, 16}, 1, true},
                {"transformer.h.0.mlp.c_fc.weight", 2, {16, 64}, 1, true},
                {"transformer.h.0.mlp.c_proj.weight", 2, {64, 16}, 1, true},
                {"transformer.ln_f.weight", 1, {16}, 3, false},
                {"transformer.ln_f.bias", 1, {16}, 3, false}};
    for (int arch = 0; arch < 2; arch++) {
        struct job_spec job = job_small((enum model_arch)arch, 1);
        struct graph g;
        struct why why;
        job.model.ffn = 64;
        assert_ok(graph_build(&job.model, job.train.seq, &g, &why));
        size_t n = arch ? sizeof(gpt2) / sizeof(gpt2[0]) : sizeof(llama) / sizeof(llama[0]);
        for (size_t i = 0; i < n; i++) {
            const struct graph_tensor *t = find_tensor(&g, arch ? gpt2[i].name : llama[i].name);
            assert_int_equal(t->kind, GT_PARAM);
            assert_int_equal(t->ndim, arch ? gpt2[i].ndim : llama[i].ndim);
            for (int d = 0; d < t->ndim; d++)
                assert_int_equal(t->dim[d].factor, arch ? gpt2[i].dims[d] : llama[i].dims[d]);
            assert_int_equal(t->unit, arch ? gpt2[i].unit : llama[i].unit);
            assert_int_equal(t->decay, arch ? gpt2[i].decay : llama[i].decay);
        }
        graph_fini(&g);
    }
}

/* Names are torchtitan's for Qwen3, which has heads of 128 columns beside a hidden size of 1024 / 16 = 64 a head. */
TEST(attention_of_the_relatives_of_llama)
{
    static const struct {
        const char *name;
        int64_t rows, cols;
        enum graph_init init;
    } rows[] = {
        {"layers.1.attention.wq.weight", 24, 16, INIT_NORMAL}, {"layers.1.attention.wk.weight", 12, 16, INIT_NORMAL},
        {"layers.1.attention.wo.weight", 16, 24, INIT_NORMAL}, {"layers.1.attention.wq.bias", 24, 0, INIT_ZERO},
        {"layers.0.attention.wk.bias", 12, 0, INIT_ZERO},      {"layers.0.attention.wv.bias", 12, 0, INIT_ZERO},
        {"layers.0.attention.q_norm.weight", 6, 0, INIT_ONE},  {"layers.0.attention.k_norm.weight", 6, 0, INIT_ONE}};
    struct job_spec job = job_small(ARCH_LLAMA, 1);
    struct graph g, plain;
    struct why why;
    assert_ok(graph_build(&job.model, 8, &plain, &why));
    job.model.head_dim = 6;
    job.model.qkv_bias = true;
    job.model.qk_norm = QK_NORM_HEAD;
    assert_ok(graph_build(&job.model, 8, &g, &why));
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        const struct graph_tensor *t = find_tensor(&g, rows[i].name);
        assert_int_equal(t->ndim, rows[i].cols ? 2 : 1);
        assert_int_equal(t->dim[0].factor, rows[i].rows);
        assert_int_equal(t->dim[1].factor, rows[i].cols);
        assert_int_equal(t->init, rows[i].init);
        assert_int_equal(t->decay, rows[i].cols > 0);
    }
    /* wq, wk, wv and wo grow by half; 48 biases and 12 weights of norms a layer */
    int64_t grown = 2 * (2 * 8 * 16 + 2 * 4 * 16), more = 2 * (48 + 12);
    assert_int_equal(g.n_params, plain.n_params + grown + more);
    assert_int_equal(g.n_params_matmul, plain.n_params_matmul + grown);
    assert_true(graph_flops_per_token(&g, &job.model, 8, false) == 6.0 * (double)g.n_params_matmul + 12 * 2 * 24 * 8);
    graph_fini(&g);
    job.model.qk_norm = QK_NORM_WHOLE;
    assert_ok(graph_build(&job.model, 8, &g, &why));
    assert_int_equal(find_tensor(&g, "layers.0.attention.q_norm.weight")->dim[0].factor, 24);
    assert_int_equal(find_tensor(&g, "layers.0.attention.k_norm.weight")->dim[0].factor, 12);
    graph_fini(&g);
    graph_fini(&plain);
}

TEST(initial_values_follow_the_papers)
{
    struct job_spec job = job_small(ARCH_GPT2, 1);
    struct graph g;
    struct why why;
    assert_ok(graph_build(&job.model, 8, &g, &why));
    assert_true(find_tensor(&g, "transformer.h.1.mlp.c_fc.weight")->init_std == 0.02);
    assert_true(find_tensor(&g, "transformer.h.1.mlp.c_proj.weight")->init_std == 0.02 / sqrt(4));
    assert_true(find_tensor(&g, "transformer.h.0.attn.c_proj.weight")->init_std == 0.02 / sqrt(4));
    assert_int_equal(find_tensor(&g, "transformer.h.0.attn.c_proj.bias")->init, INIT_ZERO);
    assert_int_equal(find_tensor(&g, "transformer.ln_f.weight")->init, INIT_ONE);
    graph_fini(&g);
    job = job_small(ARCH_LLAMA, 1);
    assert_ok(graph_build(&job.model, 8, &g, &why));
    assert_true(find_tensor(&g, "layers.0.attention.wo.weight")->init_std == 0.02 / sqrt(2));
    assert_true(find_tensor(&g, "layers.1.feed_forward.w3.weight")->init_std == 0.02 / sqrt(4));
    assert_true(find_tensor(&g, "layers.1.feed_forward.w1.weight")->init_std == 0.02);
    assert_true(find_tensor(&g, "tok_embeddings.weight")->init_std == 1);
    assert_true(find_tensor(&g, "output.weight")->init_std == 0.25);
    graph_fini(&g);
    job.model.tied = true;
    assert_ok(graph_build(&job.model, 8, &g, &why));
    assert_true(find_tensor(&g, "tok_embeddings.weight")->init_std == 0.25);
    for (int i = 0; i < g.n_tensors; i++)
        assert_string_not_equal(g.tensors[i].name, "output.weight");
    graph_fini(&g);
}

TEST(only_the_key_bias_has_a_gradient_of_zero)
{
    for (int arch = 0; arch < 2; arch++) {
        struct job_spec job = job_small((enum model_arch)arch, 1);
        struct graph g;
        struct why why;
        assert_ok(graph_build(&job.model, 8, &g, &why));
        for (int i = 0; i < g.n_tensors; i++) {
            bool key = strstr(g.tensors[i].name, "attn.c_attn.bias") != NULL;
            assert_int_equal(g.tensors[i].zero_lo, key ? 16 : 0);
            assert_int_equal(g.tensors[i].zero_hi, key ? 32 : 0);
        }
        graph_fini(&g);
    }
}

TEST(defaults_are_filled_in)
{
    struct job_spec job = job_small(ARCH_LLAMA, 1);
    struct graph g;
    struct why why;
    job.model.kv_heads = 0;
    job.model.dim = 256;
    assert_ok(graph_build(&job.model, 8, &g, &why));
    assert_int_equal(find_tensor(&g, "layers.0.attention.wk.weight")->dim[0].factor, 256);
    assert_int_equal(find_tensor(&g, "layers.0.feed_forward.w1.weight")->dim[0].factor, 704); /* 682.67 up to 32 */
    graph_fini(&g);
}

TEST(illegal_dimensions_are_named_with_the_nearest_legal_one)
{
    static const struct {
        enum model_arch arch;
        size_t field;
        int64_t value;
        const char *message[3];
    } rows[] = {
        {ARCH_GPT2, offsetof(struct job_model, heads), 5, {"model.heads", "5", "nearest legal value is 4"}},
        {ARCH_LLAMA, offsetof(struct job_model, heads), 7, {"model.heads", "7", "nearest legal value is 8"}},
        {ARCH_LLAMA,
         offsetof(struct job_model, heads),
         16,
         {"model.heads", "model.dim / 2", "nearest legal value is 8"}},
        {ARCH_LLAMA, offsetof(struct job_model, heads), 0, {"model.heads is 0", "1", "nearest legal value is 1"}},
        {ARCH_LLAMA, offsetof(struct job_model, kv_heads), 3, {"model.kv_heads", "model.heads (4)", "value is 2"}},
        {ARCH_GPT2, offsetof(struct job_model, kv_heads), 2, {"model.kv_heads", "gpt2", "set it to 4 or 0"}},
        {ARCH_LLAMA, offsetof(struct job_model, head_dim), 5, {"model.head_dim is 5", "even", "6"}},
        {ARCH_LLAMA,
         offsetof(struct job_model, head_dim),
         1 << 20,
         {"model.head_dim", "nearest legal value is", "32768"}},
        {ARCH_LLAMA,
         offsetof(struct job_model, head_dim),
         -4,
         {"model.head_dim is -4", "nearest legal value is 2", ""}},
        {ARCH_GPT2, offsetof(struct job_model, head_dim), 8, {"model.head_dim is 8", "gpt2", "set it to 0"}},
        {ARCH_LLAMA, offsetof(struct job_model, dim), 15, {"model.dim is 15", "even", "16"}},
        {ARCH_LLAMA, offsetof(struct job_model, vocab), 0, {"model.vocab is 0", "1", ""}},
        {ARCH_LLAMA, offsetof(struct job_model, layers), -3, {"model.layers is -3", "1", ""}},
        {ARCH_LLAMA, offsetof(struct job_model, ffn), INT64_MAX, {"model.ffn", "1048576", ""}},
        {ARCH_GPT2, offsetof(struct job_model, dim), INT64_MAX, {"model.dim", "131072", ""}},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct job_spec job = job_small(rows[i].arch, 1);
        struct graph g;
        struct why why;
        memcpy((char *)&job.model + rows[i].field, &rows[i].value, sizeof(rows[i].value));
        assert_err(ERR_INVALID, graph_build(&job.model, 8, &g, &why));
        for (int k = 0; k < 3; k++)
            assert_message(&why, rows[i].message[k]);
    }
    struct job_spec job = job_small(ARCH_LLAMA, 1);
    struct graph g;
    struct why why;
    assert_err(ERR_INVALID, graph_build(&job.model, 0, &g, &why));
    assert_message(&why, "train.seq");
    job.model.norm_eps = 0;
    assert_err(ERR_INVALID, graph_build(&job.model, 8, &g, &why));
    assert_message(&why, "model.norm_eps");
}

/* Every activation is read, else some parameter would get no gradient, and no tensor is read before it is made. */
TEST(graphs_are_in_order_and_nothing_is_left_over)
{
    for (int arch = 0; arch < 2; arch++) {
        struct job_spec job = job_small((enum model_arch)arch, 1);
        struct graph g;
        struct why why;
        assert_ok(graph_build(&job.model, 8, &g, &why));
        bool made[512] = {false}, read[512] = {false};
        for (int i = 0; i < g.n_nodes; i++) {
            const struct graph_node *n = &g.nodes[i];
            for (int k = 0; k < GRAPH_MAX_IN; k++)
                if (n->in[k] >= 0) {
                    enum graph_tensor_kind kind = g.tensors[n->in[k]].kind;
                    assert_true(made[n->in[k]] || (kind != GT_ACTIVATION && kind != GT_STAT));
                    read[n->in[k]] = true;
                }
            for (int k = 0; k < GRAPH_MAX_OUT; k++)
                if (n->out[k] >= 0)
                    made[n->out[k]] = true;
        }
        for (int i = 0; i < g.n_tensors; i++) {
            const struct graph_tensor *t = &g.tensors[i];
            bool last_sum =
                strcmp(t->name, "norm.sum") == 0 || strcmp(t->name, "ln_f.sum") == 0; /* only its norm is read */
            if (t->kind != GT_STAT && !read[i] && !last_sum)
                fail_msg("nothing reads %s", t->name);
        }
        graph_fini(&g);
    }
}
