/* Pipelines: the numbers of all ranks together, in every schedule, against one worker. */
#include "common/plan/compile/internal.h"
#include "tests/common/plan/world.h"

static struct job_spec pipeline(enum model_arch arch, int pp, enum pipe_schedule schedule, int chunks, int batch)
{
    struct job_spec job = job_small(arch, pp);
    job.model.layers = pp * chunks > 2 ? pp * chunks : 2;
    job.parallel.pp = pp;
    job.parallel.schedule = schedule;
    job.parallel.chunks = chunks;
    job.train.global_batch = batch;
    job.train.dropout = arch == ARCH_TRANSFORMER ? 0.25 : 0;
    return job;
}

static const enum pipe_schedule schedules[] = {PIPE_1F1B,  PIPE_GPIPE, PIPE_INTERLEAVED, PIPE_ZB_H1,
                                               PIPE_ZB_H2, PIPE_ZB_V,  PIPE_DUALPIPE_V};
#define N_SCHEDULES ((int)(sizeof(schedules) / sizeof(schedules[0])))

static int chunks_of(enum pipe_schedule schedule)
{
    const struct job_schedule_row *row = job_schedule_row(schedule);
    return row->most > 1 ? 2 : 1;
}

TEST(every_schedule_is_one_worker)
{
    for (int arch = ARCH_LLAMA; arch <= ARCH_TRANSFORMER; arch++)
        for (int pp = 2; pp <= 4; pp++)
            for (int k = 0; k < N_SCHEDULES; k++) {
                const int chunks = job_schedule_row(schedules[k])->fewest;
                struct job_spec job = pipeline((enum model_arch)arch, pp, schedules[k], chunks, 10);
                world_compare(&job);
            }
}

TEST(chunks_are_one_worker)
{
    for (int arch = ARCH_LLAMA; arch <= ARCH_TRANSFORMER; arch++)
        for (int pp = 2; pp <= 4; pp++)
            for (int chunks = 2; chunks <= 3; chunks++) {
                struct job_spec job = pipeline((enum model_arch)arch, pp, PIPE_INTERLEAVED, chunks, 9);
                world_compare(&job);
            }
}

/* From one microbatch, fewer than ranks, to many, the last one short. */
TEST(any_number_of_microbatches_is_one_worker)
{
    static const int batches[] = {1, 2, 3, 4, 7, 16};
    for (int i = 0; i < 6; i++)
        for (int k = 0; k < N_SCHEDULES; k++) {
            struct job_spec job = pipeline(ARCH_LLAMA, 3, schedules[k], chunks_of(schedules[k]), batches[i]);
            job.train.micro_batch = batches[i] < 2 ? 1 : 2;
            world_compare(&job);
        }
}

TEST(a_head_tied_across_stages_is_one_worker)
{
    for (int pp = 2; pp <= 3; pp++)
        for (int k = 0; k < N_SCHEDULES; k++) {
            struct job_spec job = pipeline(ARCH_LLAMA, pp, schedules[k], chunks_of(schedules[k]), 10);
            job.model.tied = true;
            world_compare(&job);
        }
}

/* Replicas of a pipeline with equal numbers of microbatches, with one more, and with none. */
TEST(replicas_of_pipelines_are_one_worker)
{
    for (int dp = 2; dp <= 4; dp++)
        for (int batch = 2; batch <= 14; batch += 4)
            for (int k = 0; k < N_SCHEDULES; k++) {
                struct job_spec job = pipeline(ARCH_GPT2, 2, schedules[k], chunks_of(schedules[k]), batch);
                job.parallel.workers = 2 * dp;
                world_compare(&job);
            }
}

/* The canonical sum does not depend on the schedule. */
TEST(canonical_pipelines_are_one_worker_bit_for_bit)
{
    for (int dp = 1; dp <= 2; dp++)
        for (int k = 0; k < N_SCHEDULES; k++) {
            struct job_spec job = pipeline(ARCH_LLAMA, 2, schedules[k], chunks_of(schedules[k]), 10);
            job.parallel.workers = 2 * dp;
            job.train.numerics = NUMERICS_CANONICAL;
            world_compare_exact(&job);
        }
}

/* With a head that is tied to a table on another stage, two sums are added at the end, the same in every schedule. */
TEST(canonical_schedules_agree_bit_for_bit)
{
    struct job_spec first = pipeline(ARCH_GPT2, 2, PIPE_1F1B, 1, 10);
    first.parallel.workers = 4;
    first.train.numerics = NUMERICS_CANONICAL;
    for (int k = 1; k < N_SCHEDULES; k++) {
        struct job_spec other = first;
        if (schedule_placement((enum schedule_kind)schedules[k]) == PLACE_V)
            continue;
        other.parallel.schedule = schedules[k];
        world_compare_two(&first, &other);
    }
}

/* In a V both stages of a tied head are on one rank, and the canonical tree has one leaf for both. */
TEST(a_tied_head_in_a_v_is_not_canonical)
{
    struct job_spec job = pipeline(ARCH_GPT2, 2, PIPE_ZB_V, 2, 10);
    struct program p;
    struct why why = {""};
    struct graph g;
    job.train.numerics = NUMERICS_CANONICAL;
    assert_ok(graph_build(&job.model, job.train.seq, &g, &why));
    assert_int_equal(plan_compile(&job, &g, MODE_TRAIN, 0, &p, &why), ERR_INVALID);
    assert_non_null(strstr(why.text, "parallel.schedule is zb-v, which has two stages that use"));
    assert_non_null(strstr(why.text, "the nearest legal choice is interleaved, or model.tied false"));
    graph_fini(&g);
}

/* The gradient of a tied head in a V: with every ZeRO stage, tensor parallelism, recomputation, and ranks with
 * different numbers of microbatches. GPT-2's table has positions in its unit, which only the first chunk uses. */
TEST(a_tied_head_in_a_v_is_one_worker)
{
    static const enum recompute policies[] = {RECOMPUTE_NONE, RECOMPUTE_FULL, RECOMPUTE_POINTWISE, RECOMPUTE_ATTENTION};
    for (int arch = ARCH_LLAMA; arch <= ARCH_GPT2; arch++)
        for (int zero = 0; zero <= 3; zero++)
            for (int batch = 2; batch <= 14; batch += 4)
                for (int tp = 1; tp <= 2; tp++) {
                    const enum pipe_schedule schedule = batch % 8 == 2 ? PIPE_ZB_V : PIPE_DUALPIPE_V;
                    struct job_spec job = pipeline((enum model_arch)arch, 2, schedule, 2, batch);
                    job.model.tied = true;
                    job.parallel.fsdp = 2;
                    job.parallel.tp = tp;
                    job.parallel.sp = batch % 4 == 2;
                    job.parallel.workers = 4 * tp;
                    job.parallel.zero = zero;
                    job.parallel.reshard = batch != 6;
                    job.parallel.prefetch = 1;
                    job.parallel.recompute = policies[batch / 4 % 4];
                    world_compare(&job);
                }
}

static int count_ops(const struct program *p, enum op_kind kind)
{
    int n = 0;
    for (int i = 0; i < p->n_ops; i++)
        n += p->ops[i].kind == kind;
    return n;
}

/* In a V the last rank has a peer on one side only, rank 0 has logits and both ends of a tied head, and no rank sums
 * the head over the pipeline. */
TEST(a_v_passes_its_middle_without_a_message)
{
    struct job_spec job = pipeline(ARCH_LLAMA, 3, PIPE_ZB_V, 2, 10);
    struct fixture f;
    job.model.tied = true;
    fixture_init(&f, &job, MODE_TRAIN);
    for (int r = 0; r < 3; r++) {
        const struct program *p = &f.programs[r];
        assert_int_equal(p->logits_buffer >= 0, r == 0);
        for (int i = 0; i < p->n_ops; i++)
            if (p->ops[i].kind == OP_SEND || p->ops[i].kind == OP_RECV)
                assert_int_equal(abs(p->ops[i].peer - r), 1);
        for (int t = 0; t < f.graph.n_tensors; t++)
            assert_true(p->sharding.param[t].stages <= 1);
    }
    assert_true(count_ops(&f.programs[2], OP_COPY) > count_ops(&f.programs[2], OP_SEND));
    fixture_fini(&f);
}

TEST(sharded_pipelines_are_one_worker)
{
    for (int zero = 1; zero <= 3; zero++)
        for (int batch = 2; batch <= 10; batch += 4)
            for (int k = 0; k < N_SCHEDULES; k++) {
                struct job_spec job = pipeline(ARCH_LLAMA, 2, schedules[k], chunks_of(schedules[k]), batch);
                job.parallel.workers = 4;
                job.parallel.fsdp = 2;
                job.parallel.zero = zero;
                job.parallel.reshard = zero == 3 && batch == 6;
                job.parallel.prefetch = 1;
                world_compare(&job);
            }
}

TEST(tensor_parallel_pipelines_are_one_worker)
{
    for (int sp = 0; sp <= 1; sp++)
        for (int k = 0; k < N_SCHEDULES; k++) {
            struct job_spec job = pipeline(ARCH_LLAMA, 2, schedules[k], chunks_of(schedules[k]), 10);
            job.parallel.workers = 4;
            job.parallel.tp = 2;
            job.parallel.sp = sp;
            world_compare(&job);
        }
}

TEST(context_parallel_pipelines_are_one_worker)
{
    for (int k = 0; k < N_SCHEDULES; k++) {
        struct job_spec job = pipeline(ARCH_LLAMA, 2, schedules[k], chunks_of(schedules[k]), 10);
        job.parallel.workers = 4;
        job.parallel.cp = 2;
        world_compare(&job);
    }
}

/* Recomputed values have the bits of the first computation. */
TEST(recomputation_changes_no_bit)
{
    static const enum recompute policies[] = {RECOMPUTE_FULL, RECOMPUTE_POINTWISE, RECOMPUTE_ATTENTION};
    for (int arch = ARCH_LLAMA; arch <= ARCH_TRANSFORMER; arch++)
        for (int i = 0; i < 3; i++)
            for (int k = 0; k < N_SCHEDULES; k++) {
                struct job_spec off = pipeline((enum model_arch)arch, 2, schedules[k], chunks_of(schedules[k]), 10),
                                on = off;
                on.parallel.recompute = policies[i];
                world_compare_two(&off, &on);
            }
}

TEST(evaluation_and_generation_go_through_the_pipeline)
{
    for (int arch = ARCH_LLAMA; arch <= ARCH_TRANSFORMER; arch++)
        for (int pp = 2; pp <= 3; pp++)
            for (int chunks = 1; chunks <= 2; chunks++)
                for (int dp = 1; dp <= 2; dp++) {
                    struct job_spec job = pipeline((enum model_arch)arch, pp, PIPE_INTERLEAVED, chunks, 10);
                    job.parallel.workers = pp * dp;
                    world_compare_passes(&job);
                    job.parallel.schedule = chunks > 1 ? PIPE_ZB_V : PIPE_ZB_H1;
                    world_compare_passes(&job);
                }
}

/* Every gradient is summed in ascending order of microbatches, and messages between stages have the compute type. */
TEST(pipelines_change_no_bit)
{
    static const enum dtype types[] = {DT_F32, DT_BF16};
    static const enum model_arch untied[] = {ARCH_LLAMA, ARCH_TRANSFORMER};
    for (int a = 0; a < 2; a++)
        for (int d = 0; d < 2; d++)
            for (int pp = 2; pp <= 3; pp++)
                for (int k = 0; k < N_SCHEDULES; k++) {
                    struct job_spec job = pipeline(untied[a], pp, schedules[k], chunks_of(schedules[k]), 9);
                    job.train.dtype = types[d];
                    world_compare_exact(&job);
                }
}

static struct job_spec from_file(char *text, int pp, int chunks, int batch)
{
    struct job_spec job = pipeline(ARCH_LLAMA, pp, PIPE_FILE, chunks, batch);
    job.parallel.schedule_csv = text;
    return job;
}

/* A schedule from a file: microbatches in any order, whole backwards beside halves, an unusual order of chunks. */
TEST(schedules_from_a_file_are_one_worker)
{
    char mixed[] = "F0.1,F0.0,F0.2,I0.1,B0.0,W0.1,B0.2\nF0.1,F0.0,B0.1,B0.0,F0.2,I0.2,W0.2\n";
    struct job_spec job = from_file(mixed, 2, 1, 6);
    world_compare(&job);
    char chunks[] = "F0.0,F1.0,B1.0,B0.0,F0.1,F1.1,I1.1,I0.1,W0.1,W1.1\n"
                    "F0.0,F1.0,B1.0,B0.0,F0.1,F1.1,B1.1,I0.1,W0.1\n";
    job = from_file(chunks, 2, 2, 4);
    world_compare(&job);
    job.parallel.workers = 4;
    job.train.global_batch = 6; /* the second replica has one microbatch fewer */
    world_compare(&job);
    job.parallel.fsdp = 2;
    job.parallel.zero = 3;
    world_compare(&job);
}

/* PyTorch's form: its lines hold the stages of a V. Evaluation has the same placement. */
TEST(schedules_in_pytorchs_form_are_one_worker)
{
    char v[] = "0F0,0F1,0F2,3F0,3I0,3W0,3F1,0B0,3B1,3F2,3I2,0B1,0I2,3W2,0W2\n"
               "1F0,2F0,1F1,2F1,1F2,2B0,1B0,2F2,2I1,1I1,2B2,1W1,2W1,1B2\n";
    struct job_spec job = from_file(v, 2, 2, 6);
    for (int tied = 0; tied < 2; tied++) {
        job.model.tied = tied;
        world_compare(&job);
        world_compare_passes(&job);
    }
    job.parallel.workers = 4;
    job.parallel.fsdp = 2;
    job.parallel.zero = 3;
    job.train.global_batch = 10; /* the second rank of each pair has two microbatches */
    world_compare(&job);
    char loop[] = "0F0,0F1,2F0,2F1,2B0,2B1,0B0,0B1\n1F0,1F1,3F0,3B0,3F1,3B1,1B0,1B1\n";
    job = from_file(loop, 2, 2, 4);
    world_compare(&job);
    world_compare_passes(&job);
}

/* All forwards of a chunk, then all of the next. Values for the first rank's second chunk arrive while it still runs
 * the first, more than may be in flight at once (pipeline_exchange.c, MAX_POSTED). */
TEST(chunk_after_chunk_is_one_worker)
{
    enum { MICROS = 36 };
    char text[2 * 4 * MICROS * 8 + 2], *at = text;
    for (int rank = 0; rank < 2; rank++)
        for (int i = 0; i < 4 * MICROS; i++)
            at += sprintf(at, "%c%d.%d%c", "FFBB"[i / MICROS], "0110"[i / MICROS] - '0', i % MICROS,
                          i < 4 * MICROS - 1 ? ',' : '\n');
    struct job_spec job = from_file(text, 2, 2, 2 * MICROS);
    world_compare(&job);
    struct fixture f;
    int most = 0;
    fixture_init(&f, &job, MODE_TRAIN);
    for (int b = 0; b < f.programs[0].n_buffers; b++)
        most += strstr(f.programs[0].buffers[b].name, "received.") != NULL;
    assert_true(most > 32);
    fixture_fini(&f);
}

TEST(a_file_that_does_not_fit_is_refused)
{
    struct {
        const char *text;
        int pp, chunks, batch;
        enum numerics numerics;
        const char *message;
    } rows[] = {
        {"F0.0,B0.0\n", 2, 1, 2, NUMERICS_FAST, "has 1 lines; parallel.pp is 2"},
        {"F0.0,B0.0\nF0.0,B0.0\n", 2, 1, 4, NUMERICS_FAST, "has 1 microbatches; train.global_batch"},
        {"F0.0,B0.0\nF0.0,B0.0\n", 2, 2, 2, NUMERICS_FAST, "has 1 chunks per rank; parallel.chunks is 2: write 1"},
        {"F0.0\nF0.0,B0.0\n", 2, 1, 2, NUMERICS_FAST, "rank 0"},
        {"F0.0,X\nF0.0,B0.0\n", 2, 1, 2, NUMERICS_FAST, "parallel.schedule_csv:1:6"},
        {"F0.0,F0.1,B0.1,B0.0\nF0.0,F0.1,B0.1,B0.0\n", 2, 1, 4, NUMERICS_CANONICAL,
         "rank 0, slot 2 is the backward of chunk 0 on microbatch 1 when 0 is next"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        char text[128];
        struct why why;
        struct mesh mesh;
        snprintf(text, sizeof(text), "%s", rows[i].text);
        struct job_spec job = from_file(text, rows[i].pp, rows[i].chunks, rows[i].batch);
        job.train.numerics = rows[i].numerics;
        assert_int_equal(plan_mesh(&job, &mesh, &why), ERR_INVALID);
        if (!strstr(why.text, rows[i].message))
            fail_msg("\"%s\" does not contain \"%s\"", why.text, rows[i].message);
    }
}

TEST(chunks_that_the_schedule_does_not_have_are_refused)
{
    static const struct {
        enum pipe_schedule schedule;
        int chunks, pp;
        const char *message;
    } rows[] = {
        {PIPE_ZB_V, 1, 2,
         "parallel.chunks is 1, but the schedule zb-v has 2 chunks per rank; the nearest legal value is 2"},
        {PIPE_DUALPIPE_V, 3, 2, "the schedule dualpipe-v has 2 chunks per rank; the nearest legal value is 2"},
        {PIPE_ZB_H2, 2, 2, "the schedule zb-h2 has 1 chunks per rank; the nearest legal value is 1"},
        {PIPE_ZB_V, 2, 1, "parallel.chunks is 2, but parallel.pp is 1; the nearest legal value is 1"},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct why why;
        struct mesh mesh;
        struct job_spec job = pipeline(ARCH_LLAMA, rows[i].pp, rows[i].schedule, rows[i].chunks, 6);
        assert_int_equal(plan_mesh(&job, &mesh, &why), ERR_INVALID);
        if (!strstr(why.text, rows[i].message))
            fail_msg("\"%s\" does not contain \"%s\"", why.text, rows[i].message);
    }
}

/* The sum over chunks of the most instances of a buffer. */
static int instances(const struct program *p, const struct schedule *s)
{
    int most[2] = {1, 1};
    for (int a = 0; a < p->n_actions; a++)
        for (int i = p->actions[a].first_op; i < p->actions[a].first_op + p->actions[a].n_ops; i++)
            for (int k = 0; k < OP_MAX_OPERANDS; k++) {
                const int b = p->ops[i].arg[k].buffer, chunk = p->actions[a].chunk;
                if (b >= 0 && p->actions[a].kind == ACT_FORWARD && p->buffers[b].slot_index == SLOT_ACTION &&
                    p->buffers[b].space == SPACE_WORK && p->buffers[b].slots > most[chunk])
                    most[chunk] = p->buffers[b].slots;
            }
    return s->chunks > 1 ? most[0] + most[1] : most[0];
}

/* Activations have exactly one instance per microbatch in flight. The chunks of a rank have theirs apart, and may not
 * have the most at the same time. */
TEST(activations_have_as_many_instances_as_the_schedule_needs)
{
    for (int k = 0; k < N_SCHEDULES; k++) {
        int peaks[4];
        struct job_spec job = pipeline(ARCH_LLAMA, 4, schedules[k], job_schedule_row(schedules[k])->fewest, 16);
        struct fixture f;
        struct schedule s;
        fixture_init(&f, &job, MODE_TRAIN);
        assert_ok(pipeline_schedule(&f.job, &f.programs[0].mesh, MODE_TRAIN, &s, &f.why));
        assert_ok(schedule_check(&s, peaks, &f.why));
        for (int r = 0; r < 4; r++) {
            assert_true(instances(&f.programs[r], &s) >= peaks[r]);
            if (s.chunks == 1)
                assert_int_equal(instances(&f.programs[r], &s), peaks[r]);
            else
                assert_true(instances(&f.programs[r], &s) <= peaks[r] + 1);
        }
        schedule_fini(&s);
        fixture_fini(&f);
    }
}
