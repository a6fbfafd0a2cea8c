/* Events: every wait is necessary, and none is missing, which the checker tests in every job. Ops that need more than
 * OP_MAX_WAITS waits; the time that the pass takes. */
#include "common/plan/check/plan_check.h"
#include "common/plan/compile/internal.h"
#include "tests/common/plan/plan_fixture.h"

#include <time.h>

static int count_waits(const struct fixture *f)
{
    int n = 0;
    for (int r = 0; r < f->n; r++)
        for (int i = 0; i < f->programs[r].n_ops; i++)
            for (int k = 0; k < OP_MAX_WAITS; k++)
                n += f->programs[r].ops[i].wait[k] >= 0;
    return n;
}

/* Removes each wait of rank 0 in turn. */
static void assert_all_needed(const struct job_spec *job)
{
    struct fixture f;
    fixture_init(&f, job, MODE_TRAIN);
    assert_ok(plan_check(&f.graph, f.programs, f.n, &f.why));
    assert_true(count_waits(&f) > 0);
    struct program *p = &f.programs[0];
    for (int i = 0; i < p->n_ops; i++)
        for (int k = 0; k < OP_MAX_WAITS; k++) {
            int wait = p->ops[i].wait[k];
            if (wait < 0)
                continue;
            p->ops[i].wait[k] = -1;
            if (plan_check(&f.graph, f.programs, f.n, &f.why) != ERR_INVALID)
                fail_msg("op %d (%s) waits for event %d without need", i, op_name(p->ops[i].kind), wait);
            p->ops[i].wait[k] = wait;
        }
    fixture_fini(&f);
}

TEST(every_wait_is_necessary)
{
    struct job_spec job = job_small(ARCH_LLAMA, 2);
    assert_all_needed(&job);
    job.parallel.tp = 2;
    job.parallel.sp = true;
    assert_all_needed(&job);
    job.parallel.tp = 1;
    job.parallel.pp = 2;
    assert_all_needed(&job);
    job.parallel.schedule = PIPE_ZB_H1;
    assert_all_needed(&job);
    job.parallel.pp = 1;
    job.parallel.fsdp = 2;
    for (job.parallel.zero = 1; job.parallel.zero <= 2; job.parallel.zero++)
        assert_all_needed(&job);
}

static void crowd_op(struct compiler *c, enum op_stream stream, const int *buffers, int n, bool writes)
{
    int first = c->p->n_ops;
    struct op *op = compile_op(c, writes ? OP_ZERO : OP_SWIGLU_GRAD, -1);
    op->stream = stream;
    for (int i = 0; i < n; i++)
        op_arg(op, i, buffers[i]);
    compile_action(c, (struct action){.kind = ACT_NORM, .micro = -1, .unit = -1}, (struct op_range){first, 1});
}

static bool waits_for(const struct program *p, int x, int y)
{
    bool found = false;
    for (int k = 0; k < OP_MAX_WAITS; k++)
        found |= p->ops[x].wait[k] >= 0 && p->ops[x].wait[k] == p->ops[y].event;
    return found;
}

/* One list runs after each of more than OP_MAX_WAITS ops: these record one event. */
TEST(more_waits_than_an_op_has)
{
    enum { N = OP_MAX_WAITS + 3 };
    struct program p = {.mode = MODE_TRAIN, .mesh = {{1, 1, 1, 1, 1}}};
    struct job_spec job = job_small(ARCH_LLAMA, 1);
    struct why why = {""};
    struct compiler c = {.job = &job, .p = &p, .why = &why};
    struct buffer b = {.tensor = -1,
                       .dtype = DT_F32,
                       .ndim = 1,
                       .dim = {{SYM_ONE, 16}},
                       .space = SPACE_GRAD,
                       .run = -1,
                       .planned = true,
                       .slots = 1};
    const int one = compile_buffer(&c, &b);
    b.offset = 64;
    const int other = compile_buffer(&c, &b);
    const int both[] = {one, one, one, other, other};
    crowd_op(&c, STREAM_COMM, both, 5, false);
    struct action reader = p.actions[0];
    p.n_actions = 0;
    for (int i = 0; i < N; i++) {
        crowd_op(&c, STREAM_COMPUTE, &one, 1, true);
        compile_action(&c, reader, (struct op_range){reader.first_op, 1});
    }
    events_assign(&c);
    assert_ok(c.err);
    for (int i = 1; i <= N; i++)
        if (!waits_for(&p, reader.first_op, i) || !waits_for(&p, i, reader.first_op))
            fail_msg("the shared op and op %d do not wait for each other", i);
    program_fini(&p);
}

static double seconds_of(clockid_t clock)
{
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A hundred thousand ops in two steps usually take a tenth of the limit. */
TEST(long_steps_are_followed_in_no_time)
{
    struct job_spec job = job_small(ARCH_LLAMA, 2);
    struct fixture f;
    job.parallel.pp = 2;
    job.model.layers = 8;
    job.train.micro_batch = 1;
    job.train.global_batch = 512;
    double start = seconds_of(CLOCK_PROCESS_CPUTIME_ID);
    fixture_init(&f, &job, MODE_TRAIN);
    double took = (seconds_of(CLOCK_PROCESS_CPUTIME_ID) - start) / f.n;
    int64_t ops = 0;
    for (int a = 0; a < f.programs[0].n_actions; a++)
        ops += f.programs[0].actions[a].n_ops;
    assert_true(2 * ops > 90000);
    if (took > 1)
        fail_msg("a rank's program took %.3f s", took);
    printf("%lld ops in two steps: %.3f s\n", 2 * (long long)ops, took);
    fixture_fini(&f);
}
