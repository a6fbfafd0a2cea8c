/* Forecasts and refusals. */
#include "tests/common/plan/plan_fixture.h"

static struct job_spec gpt2_small(void)
{
    struct job_spec job = job_small(ARCH_GPT2, 2);
    job.model = (struct job_model){
        .arch = ARCH_GPT2, .dim = 768, .layers = 12, .heads = 12, .vocab = 50257, .norm_eps = 1e-5, .tied = true};
    job.train.seq = 1024;
    job.train.global_batch = 8;
    job.train.micro_batch = 4;
    return job;
}

/* float32 with Adam: 16 bytes a parameter; alignment adds less than 64 bytes per tensor. */
TEST(states_are_sixteen_bytes_a_parameter)
{
    struct job_spec job = gpt2_small();
    struct graph g;
    struct program p;
    struct plan_memory m;
    struct why why;
    assert_ok(graph_build(&job.model, job.train.seq, &g, &why));
    assert_ok(plan_compile(&job, &g, MODE_TRAIN, 0, &p, &why));
    plan_memory(&p, DEVICE_CPU, &m);
    int64_t states = m.bytes[SPACE_PARAM] + m.bytes[SPACE_OPT] + m.bytes[SPACE_GRAD];
    assert_true(states >= 16 * g.n_params);
    assert_true(states <= 16 * g.n_params + 4 * 64 * 148);
    /* Half of 12 bytes a parameter is saved by each of two ranks. */
    assert_true(llabs(m.arena_bytes - 6 * g.n_params) < 1 << 20);
    assert_int_equal(m.total_bytes, states + m.bytes[SPACE_WORK] + m.bytes[SPACE_HOST] + m.arena_bytes);
    assert_int_equal(m.host_bytes, m.total_bytes);
    assert_int_equal(m.device_bytes, 0);
    /* What a layer keeps per token: two norms, qkv, o, two sums, fc and its gelu: 16 d, and 16 statistics; beside them
     * the embedding, the last norm and the logits. The logits are gone when the layers' gradients need room. */
    double tokens = 4 * 1024, kept = tokens * 4 * (12 * (16 * 768 + 16) + 2 * 768 + 50257);
    assert_true((double)m.bytes[SPACE_WORK] >= kept);
    assert_true((double)m.bytes[SPACE_WORK] < 1.02 * kept);
    program_fini(&p);
    graph_fini(&g);
}

TEST(a_job_that_does_not_fit_is_refused_with_what_to_change)
{
    struct job_spec job = gpt2_small();
    struct why why;
    assert_ok(plan_fits(&job, (int64_t)64 << 30, &why));
    assert_err(ERR_INVALID, plan_fits(&job, (int64_t)4 << 30, &why));
    assert_says(&why, "4.00 GiB");
    assert_says(&why, "2 workers");
    assert_says(&why, "lower train.micro_batch"); /* activations are the largest part */
    job.train.seq = 16;
    job.train.micro_batch = 1;
    assert_err(ERR_INVALID, plan_fits(&job, (int64_t)2 << 30, &why));
    assert_says(&why, "lower parallel.workers");
    job.parallel.workers = 1;
    assert_err(ERR_INVALID, plan_fits(&job, (int64_t)1 << 30, &why));
    assert_says(&why, "lower model.dim");
    job.train.numerics = NUMERICS_CANONICAL;
    assert_err(ERR_INVALID, plan_fits(&job, (int64_t)1 << 30, &why));
    assert_says(&why, "raise train.micro_batch");
}

/* bfloat16: the same 16 bytes a parameter and 2 for its copy, half the bytes of activations; the node has the save. */
TEST(a_gpu_holds_all_but_the_save)
{
    struct job_spec job = gpt2_small();
    struct graph g;
    struct program p;
    struct plan_memory m, cpu;
    struct why why;
    job.train.dtype = DT_BF16;
    job.run.device = DEVICE_CUDA;
    assert_ok(graph_build(&job.model, job.train.seq, &g, &why));
    assert_ok(plan_compile(&job, &g, MODE_TRAIN, 0, &p, &why));
    plan_memory(&p, DEVICE_CUDA, &m);
    plan_memory(&p, DEVICE_CPU, &cpu);
    int64_t spaces = 0;
    for (int s = 0; s < SPACE_COUNT; s++)
        spaces += p.space_bytes[s];
    assert_int_equal(m.device_bytes, spaces);
    assert_int_equal(m.host_bytes, p.arena_bytes + p.space_bytes[SPACE_HOST]);
    assert_int_equal(m.total_bytes, m.device_bytes + m.host_bytes);
    assert_int_equal(cpu.host_bytes, spaces + p.arena_bytes);
    assert_int_equal(cpu.device_bytes, 0);
    assert_true(llabs(m.arena_bytes - 6 * g.n_params) < 1 << 20); /* what is saved is float32 */
    int64_t states = m.bytes[SPACE_PARAM] + m.bytes[SPACE_OPT] + m.bytes[SPACE_GRAD];
    assert_true(states >= 16 * g.n_params && states <= 16 * g.n_params + 4 * 128 * 148);
    double tokens = 4 * 1024, values = tokens * (12 * 16 * 768 + 2 * 768 + 50257), stats = tokens * 12 * 16;
    double kept = 2 * (double)g.n_params + 2 * values + 4 * stats;
    assert_true((double)m.bytes[SPACE_WORK] >= kept);
    assert_true((double)m.bytes[SPACE_WORK] < 1.02 * kept);
    program_fini(&p);
    graph_fini(&g);
}

TEST(a_job_on_gpus_asks_the_node_for_little)
{
    struct job_spec job = gpt2_small();
    struct why why;
    job.run.device = DEVICE_CUDA;
    assert_ok(plan_fits(&job, (int64_t)2 << 30, &why)); /* where it would need 40 on a CPU */
    assert_err(ERR_INVALID, plan_fits(&job, (int64_t)1 << 30, &why));
    assert_says(&why, "of the node's memory, which has 1.00 GiB");
    assert_says(&why, "to hold a save");
    assert_says(&why, "lower parallel.workers");
}

TEST(a_program_that_does_not_fit_on_its_gpu_is_refused)
{
    struct job_spec job = gpt2_small();
    struct graph g;
    struct program p;
    struct plan_memory m;
    struct why why;
    job.train.dtype = DT_BF16;
    job.run.device = DEVICE_CUDA;
    job.run.workers_per_gpu = 1;
    assert_ok(graph_build(&job.model, job.train.seq, &g, &why));
    assert_ok(plan_compile(&job, &g, MODE_TRAIN, 0, &p, &why));
    plan_memory(&p, DEVICE_CUDA, &m);
    assert_ok(plan_fits_device(&job, &p, m.device_bytes, &why));
    assert_err(ERR_INVALID, plan_fits_device(&job, &p, m.device_bytes - 1, &why));
    assert_says(&why, "a worker needs");
    assert_says(&why, "GiB on the GPU, which has");
    assert_says(&why, "lower train.micro_batch");
    job.run.workers_per_gpu = 4; /* there are two */
    assert_ok(plan_fits_device(&job, &p, 2 * m.device_bytes, &why));
    assert_err(ERR_INVALID, plan_fits_device(&job, &p, 2 * m.device_bytes - 1, &why));
    assert_says(&why, "for the 2 workers that share it");
    p.space_bytes[SPACE_WORK] = 0;
    assert_err(ERR_INVALID, plan_fits_device(&job, &p, (int64_t)3 << 30, &why));
    assert_says(&why, "lower run.workers_per_gpu");
    job.run.workers_per_gpu = 1;
    assert_err(ERR_INVALID, plan_fits_device(&job, &p, (int64_t)1 << 30, &why));
    assert_says(&why, "lower model.dim");
    program_fini(&p);
    graph_fini(&g);
}

TEST(fits_is_exact)
{
    struct job_spec job = job_small(ARCH_LLAMA, 2);
    struct fixture f;
    int64_t need = 0;
    fixture_init(&f, &job, MODE_TRAIN);
    for (int r = 0; r < 2; r++) {
        struct plan_memory m;
        plan_memory(&f.programs[r], DEVICE_CPU, &m);
        need += m.total_bytes;
    }
    assert_ok(plan_fits(&job, need, &f.why));
    assert_err(ERR_INVALID, plan_fits(&job, need - 1, &f.why));
    fixture_fini(&f);
}

TEST(what_this_version_does_not_do_is_named_with_the_legal_value)
{
    static const struct {
        size_t field;
        int64_t value;
        const char *says;
    } rows[] = {
        {offsetof(struct job_parallel, tp), 3, "parallel.workers is 2, not a multiple"},
        {offsetof(struct job_parallel, pp), 4, "the nearest legal value is 4"},
        {offsetof(struct job_parallel, cp), 0, "parallel.cp is 0; it must be 1 to 4096"},
        {offsetof(struct job_parallel, ep), 2, "parallel.ep is 2, but this version has no experts"},
        {offsetof(struct job_parallel, zero), 1, "the nearest legal value is 0"},
        {offsetof(struct job_parallel, chunks), 2, "parallel.chunks is 2"},
        {offsetof(struct job_parallel, workers), 0, "parallel.workers is 0"},
        {offsetof(struct job_parallel, workers), 1 << 20, "nearest legal value is 4096"},
    };
    struct mesh mesh;
    struct why why;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct job_spec job = job_small(ARCH_LLAMA, 2);
        memcpy((char *)&job.parallel + rows[i].field, &rows[i].value, sizeof(rows[i].value));
        assert_err(ERR_INVALID, plan_mesh(&job, &mesh, &why));
        assert_says(&why, rows[i].says);
    }
    struct job_spec job = job_small(ARCH_LLAMA, 3);
    assert_ok(plan_mesh(&job, &mesh, &why));
    assert_int_equal(mesh_workers(&mesh), 3);
    assert_int_equal(mesh.size[AXIS_DP], 3);
    job = job_small(ARCH_LLAMA, 3);
    job.train.micro_batch = 11;
    assert_err(ERR_INVALID, plan_mesh(&job, &mesh, &why));
    assert_says(&why, "nearest legal value is 10");
    job = job_small(ARCH_LLAMA, 3);
    job.train.dtype = DT_F16;
    assert_err(ERR_INVALID, plan_mesh(&job, &mesh, &why));
    assert_says(&why, "train.dtype is float16; this version computes in float32, bfloat16 and float64");
}

TEST(sizes_beyond_63_bits_are_refused)
{
    struct job_spec job = job_small(ARCH_LLAMA, 1);
    struct graph g;
    struct program p;
    struct why why;
    job.train.seq = 1 << 24;
    job.train.global_batch = job.train.micro_batch = 1 << 20;
    job.model.vocab = 1 << 24;
    assert_ok(graph_build(&job.model, job.train.seq, &g, &why));
    assert_err(ERR_LIMIT, plan_compile(&job, &g, MODE_TRAIN, 0, &p, &why));
    assert_says(&why, "lower train.micro_batch");
    graph_fini(&g);
}
