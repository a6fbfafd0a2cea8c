/* Memory forecasts, and refusals of jobs that do not fit. */
#include "common/plan/estimate/memory.h"
#include "tests/common/plan/plan_fixture.h"

#include <time.h>

/* Seconds that a forecast may take; sanitizers make it slower. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__) || !defined(__OPTIMIZE__) || defined(__clang__)
#define FORECAST_SECONDS 20.0
#else
#define FORECAST_SECONDS 1.0
#endif

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

/* float32 with Adam needs 16 bytes per parameter; alignment adds less than 64 bytes per tensor. */
TEST(states_are_sixteen_bytes_per_parameter)
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
    /* Each of two ranks saves half of 12 bytes per parameter. */
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
    assert_message(&why, "4.00 GiB");
    assert_message(&why, "2 workers");
    assert_message(&why, "lower train.micro_batch"); /* activations are the largest part */
    job.train.seq = 16;
    job.train.micro_batch = 1;
    assert_err(ERR_INVALID, plan_fits(&job, (int64_t)2 << 30, &why));
    assert_message(&why, "lower parallel.workers");
    job.parallel.workers = 1;
    assert_err(ERR_INVALID, plan_fits(&job, (int64_t)1 << 30, &why));
    assert_message(&why, "lower model.dim");
    job.train.numerics = NUMERICS_CANONICAL;
    assert_err(ERR_INVALID, plan_fits(&job, (int64_t)1 << 30, &why));
    assert_message(&why, "raise train.micro_batch");
}

/* bfloat16 needs the same 16 bytes per parameter, 2 for its copy, and half the bytes of activations; the arena is on
 * the node. */
TEST(a_gpu_holds_everything_except_the_arena)
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

TEST(a_job_on_gpus_needs_little_memory_of_the_node)
{
    struct job_spec job = gpt2_small();
    struct why why;
    job.run.device = DEVICE_CUDA;
    assert_ok(plan_fits(&job, (int64_t)2 << 30, &why)); /* on a CPU it would need 40 GiB */
    assert_err(ERR_INVALID, plan_fits(&job, (int64_t)1 << 30, &why));
    assert_message(&why, "of the node's memory, which has 1.00 GiB");
    assert_message(&why, "to hold a save");
    assert_message(&why, "lower parallel.workers");
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
    assert_message(&why, "a worker needs");
    assert_message(&why, "GiB on the GPU, which has");
    assert_message(&why, "lower train.micro_batch");
    job.run.workers_per_gpu = 4; /* the job has two workers */
    assert_ok(plan_fits_device(&job, &p, 2 * m.device_bytes, &why));
    assert_err(ERR_INVALID, plan_fits_device(&job, &p, 2 * m.device_bytes - 1, &why));
    assert_message(&why, "for the 2 workers that share it");
    p.space_bytes[SPACE_WORK] = 0;
    assert_err(ERR_INVALID, plan_fits_device(&job, &p, (int64_t)3 << 30, &why));
    assert_message(&why, "lower run.workers_per_gpu");
    job.run.workers_per_gpu = 1;
    assert_err(ERR_INVALID, plan_fits_device(&job, &p, (int64_t)1 << 30, &why));
    assert_message(&why, "lower model.dim");
    program_fini(&p);
    graph_fini(&g);
}

/* The forecast equals the sum over all ranks' own programs, byte by byte, on any mesh: uneven heads and rows, idle
 * ranks, tied heads. */
static void assert_exact(const struct job_spec *job)
{
    struct graph g;
    struct why why;
    int64_t need = 0;
    if (graph_build(&job->model, job->train.seq, &g, &why) != OK)
        fail_msg("%s", why.text);
    for (int r = 0; r < job->parallel.workers; r++) {
        struct program p;
        struct plan_memory m;
        if (plan_compile(job, &g, MODE_TRAIN, r, &p, &why) != OK)
            fail_msg("rank %d: %s", r, why.text);
        plan_memory(&p, DEVICE_CPU, &m);
        need += m.total_bytes;
        program_fini(&p);
    }
    graph_fini(&g);
    if (plan_fits(job, need, &why) != OK)
        fail_msg("%lld bytes: %s", (long long)need, why.text);
    assert_err(ERR_INVALID, plan_fits(job, need - 1, &why));
}

static struct job_spec on_mesh(struct mesh mesh, int zero)
{
    struct job_spec job = job_small(ARCH_LLAMA, mesh_workers(&mesh));
    job.model.dim = 24;
    job.model.layers = 6;
    job.model.heads = 6;
    job.model.kv_heads = 3;
    job.model.ffn = 40;
    job.model.vocab = 333;
    job.train.seq = 22;
    job.parallel.zero = zero;
    job.parallel.pp = mesh.size[AXIS_PP];
    job.parallel.fsdp = mesh.size[AXIS_FSDP];
    job.parallel.cp = mesh.size[AXIS_CP];
    job.parallel.tp = mesh.size[AXIS_TP];
    job.parallel.prefetch = 1;
    job.parallel.reshard = job.parallel.sp = true;
    return job;
}

TEST(fits_is_exact)
{
    static const struct mesh meshes[] = {{{1, 2, 1, 1, 1}}, {{1, 1, 3, 1, 1}}, {{1, 2, 2, 1, 1}}, {{1, 4, 2, 1, 1}},
                                         {{1, 1, 1, 1, 2}}, {{1, 1, 1, 1, 3}}, {{1, 1, 1, 1, 6}}, {{1, 1, 1, 3, 1}},
                                         {{1, 2, 2, 2, 2}}, {{2, 1, 1, 1, 1}}, {{3, 2, 1, 1, 1}}, {{2, 1, 2, 1, 2}},
                                         {{2, 2, 1, 3, 1}}, {{1, 1, 1, 5, 1}}};
    for (size_t i = 0; i < sizeof(meshes) / sizeof(meshes[0]); i++)
        for (int zero = 0; zero <= 3; zero++)
            for (int canonical = 0; canonical < 2; canonical++)
                for (int tied = 0; tied < 2; tied++) {
                    struct job_spec job = on_mesh(meshes[i], zero);
                    if (zero && meshes[i].size[AXIS_FSDP] == 1)
                        continue;
                    job.model.tied = tied;
                    job.train.numerics = canonical ? NUMERICS_CANONICAL : NUMERICS_FAST;
                    assert_exact(&job);
                }
}

/* In a V rank 0 has both ends, and the largest need may be on any rank. */
TEST(fits_is_exact_in_a_v)
{
    static const struct mesh meshes[] = {
        {{2, 1, 1, 1, 1}}, {{3, 1, 1, 1, 1}}, {{2, 3, 1, 1, 1}}, {{2, 1, 2, 1, 2}}, {{3, 1, 2, 2, 1}}};
    static const enum pipe_schedule schedules[] = {PIPE_ZB_V, PIPE_DUALPIPE_V};
    for (size_t i = 0; i < sizeof(meshes) / sizeof(meshes[0]); i++)
        for (int zero = 0; zero <= (meshes[i].size[AXIS_FSDP] > 1 ? 3 : 0); zero++)
            for (int tied = 0; tied < 2; tied++)
                for (int k = 0; k < 2; k++) {
                    struct job_spec job = on_mesh(meshes[i], zero);
                    job.model.tied = tied;
                    job.parallel.schedule = schedules[k];
                    job.parallel.chunks = 2;
                    assert_exact(&job);
                }
}

/* Every rank but the last keeps a copy of parameters and moments: three numbers where moments are two. */
TEST(post_validation_keeps_three_numbers_per_parameter)
{
    static const struct mesh meshes[] = {{{2, 1, 1, 1, 1}}, {{3, 2, 1, 1, 1}}, {{2, 1, 2, 1, 1}}};
    for (size_t i = 0; i < sizeof(meshes) / sizeof(meshes[0]); i++)
        for (int zero = 0; zero <= (meshes[i].size[AXIS_FSDP] > 1 ? 3 : 0); zero++) {
            struct plan_memory waits[16], early[16];
            struct job_spec job = on_mesh(meshes[i], zero);
            struct graph g;
            struct why why;
            job.parallel.schedule = PIPE_ZB_H2;
            job.train.global_batch = 16;
            job.train.micro_batch = 1;
            assert_ok(graph_build(&job.model, job.train.seq, &g, &why));
            assert_ok(plan_memory_of_ranks(&job, &g, waits, &why));
            job.parallel.post_validation = true;
            assert_ok(plan_memory_of_ranks(&job, &g, early, &why));
            assert_exact(&job);
            const int workers = (int)job.parallel.workers, last = workers - workers / meshes[i].size[AXIS_PP];
            for (int r = 0; r < workers; r++) {
                const int64_t moments = waits[r].bytes[SPACE_OPT], kept = early[r].bytes[SPACE_OPT] - moments;
                if (2 * kept != (r < last ? 3 * moments : 0) || kept != early[r].kept_bytes)
                    fail_msg("rank %d keeps %lld bytes beside moments of %lld", r, (long long)kept, (long long)moments);
            }
            graph_fini(&g);
        }
}

/* Thousands of ranks have few kinds. */
TEST(a_job_of_4096_workers_is_forecast_in_a_second)
{
    static const struct mesh meshes[] = {{{1, 4096, 1, 1, 1}}, {{1, 1, 4096, 1, 1}}, {{1, 64, 8, 1, 8}},
                                         {{16, 8, 4, 1, 8}},   {{8, 2, 8, 4, 8}},    {{4, 8, 16, 8, 1}}};
    for (size_t i = 0; i < sizeof(meshes) / sizeof(meshes[0]); i++) {
        struct job_spec job = on_mesh(meshes[i], meshes[i].size[AXIS_FSDP] > 1 ? 3 : 0);
        struct timespec from, to;
        struct why why;
        job.model.dim = 4096;
        job.model.layers = 32;
        job.model.heads = 32;
        job.model.kv_heads = 8;
        job.model.ffn = 14336;
        job.model.vocab = 128256;
        job.train.seq = 8192;
        job.train.global_batch = 8192;
        job.train.micro_batch = 1;
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &from);
        assert_err(ERR_INVALID, plan_fits(&job, 1, &why));
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &to);
        assert_message(&why, "4096 workers");
        double seconds = (double)(to.tv_sec - from.tv_sec) + 1e-9 * (double)(to.tv_nsec - from.tv_nsec);
        if (seconds > FORECAST_SECONDS)
            fail_msg("mesh %zu took %.2f s", i, seconds);
    }
}

TEST(an_unsupported_value_is_named_with_a_legal_one)
{
    static const struct {
        size_t field;
        int64_t value;
        const char *message;
    } rows[] = {
        {offsetof(struct job_parallel, tp), 3, "parallel.workers is 2, not a multiple"},
        {offsetof(struct job_parallel, pp), 4, "the nearest legal value is 4"},
        {offsetof(struct job_parallel, cp), 0, "parallel.cp is 0; it must be 1 to 4096"},
        {offsetof(struct job_parallel, ep), 2, "parallel.ep is 2, but the model has no experts"},
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
        assert_message(&why, rows[i].message);
    }
    struct job_spec job = job_small(ARCH_LLAMA, 3);
    assert_ok(plan_mesh(&job, &mesh, &why));
    assert_int_equal(mesh_workers(&mesh), 3);
    assert_int_equal(mesh.size[AXIS_DP], 3);
    job = job_small(ARCH_LLAMA, 2);
    job.parallel.async_tp = true;
    assert_err(ERR_INVALID, plan_mesh(&job, &mesh, &why));
    assert_message(&why, "no collective of own tokens to overlap; the nearest legal value is false");
    job.parallel.tp = 2;
    assert_ok(plan_mesh(&job, &mesh, &why));
    job.parallel.sp = false;
    assert_err(ERR_INVALID, plan_mesh(&job, &mesh, &why));
    job = job_small(ARCH_LLAMA, 3);
    job.train.micro_batch = 11;
    assert_err(ERR_INVALID, plan_mesh(&job, &mesh, &why));
    assert_message(&why, "nearest legal value is 10");
    job = job_small(ARCH_LLAMA, 3);
    job.train.seq = 1 << 12;
    job.train.global_batch = (1 << 19) - 1;
    assert_ok(plan_mesh(&job, &mesh, &why));
    job.train.global_batch = 1 << 19;
    assert_err(ERR_INVALID, plan_mesh(&job, &mesh, &why));
    assert_message(&why, "2147483648 tokens; it must be below 2^31; the nearest legal train.global_batch is 524287");
    job = job_small(ARCH_LLAMA, 3);
    job.train.dtype = DT_F16;
    assert_err(ERR_INVALID, plan_mesh(&job, &mesh, &why));
    assert_message(&why, "train.dtype is float16; this version computes in float32, bfloat16 and float64");
}

TEST(sizes_beyond_63_bits_are_refused)
{
    struct job_spec job = job_small(ARCH_LLAMA, 1);
    struct graph g;
    struct program p;
    struct why why;
    job.train.seq = 1 << 24;
    job.train.global_batch = job.train.micro_batch = 127;
    job.train.numerics = NUMERICS_PROOF; /* 8 bytes each */
    job.train.dtype = DT_F64;
    job.model.vocab = 1 << 24;
    assert_ok(graph_build(&job.model, job.train.seq, &g, &why));
    assert_err(ERR_LIMIT, plan_compile(&job, &g, MODE_TRAIN, 0, &p, &why));
    assert_message(&why, "lower train.micro_batch");
    graph_fini(&g);
}
