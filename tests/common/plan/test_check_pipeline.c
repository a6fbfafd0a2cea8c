/* Pipelines with planted mistakes: messages, instances, orders, shares of tied parameters. */
#include "tests/common/plan/plan_fixture.h"

static void setup(struct fixture *f, enum pipe_schedule schedule, int chunks, bool tied)
{
    struct job_spec job = job_small(ARCH_LLAMA, 2);
    job.model.layers = 2 * chunks;
    job.model.tied = tied;
    job.train.global_batch = 12;
    job.parallel.pp = 2;
    job.parallel.schedule = schedule;
    job.parallel.chunks = chunks;
    fixture_init(f, &job, MODE_TRAIN);
    if (plan_check(&f->graph, f->programs, f->n, &f->why) != OK)
        fail_msg("%s", f->why.text);
}

static void assert_refused(struct fixture *f, const char *words)
{
    err_t e = plan_check(&f->graph, f->programs, f->n, &f->why);
    if (e == OK)
        fail_msg("accepted, though it should say \"%s\"", words);
    assert_err(ERR_INVALID, e);
    assert_says(&f->why, "rank ");
    assert_says(&f->why, words);
}

static int nth_of(const struct program *p, enum op_kind kind, int nth)
{
    for (int i = 0; i < p->n_ops; i++)
        if (p->ops[i].kind == kind && nth-- == 0)
            return i;
    fail_msg("no such op: %s", op_name(kind));
    return -1;
}

static int nth_action(const struct program *p, enum action_kind kind, int nth)
{
    for (int i = 0; i < p->n_actions; i++)
        if (p->actions[i].kind == kind && nth-- == 0)
            return i;
    fail_msg("no such action: %s", action_name(kind));
    return -1;
}

/* Every exchange that sends, left out by itself: some are missed by an event or the wrong microbatch, the others by the
 * rank that waits. */
TEST(no_message_can_be_left_out)
{
    struct fixture f;
    setup(&f, PIPE_GPIPE, 1, false);
    int hung = 0, left = 0;
    for (int r = 0; r < 2; r++)
        for (int a = 0; a < f.programs[r].n_actions; a++) {
            struct action *x = &f.programs[r].actions[a];
            int n = x->n_ops;
            if (x->kind != ACT_EXCHANGE || f.programs[r].ops[x->first_op].kind != OP_SEND)
                continue;
            x->n_ops = 0;
            assert_refused(&f, "rank ");
            hung += strstr(f.why.text, "waits for ever for its messages") != NULL;
            left++;
            x->n_ops = n;
        }
    assert_true(left >= 10 && hung >= 1);
    assert_ok(plan_check(&f.graph, f.programs, f.n, &f.why));
    fixture_fini(&f);
}

TEST(a_message_that_is_not_waited_for_is_refused)
{
    for (int r = 0; r < 2; r++) {
        struct fixture f;
        setup(&f, PIPE_1F1B, 1, false);
        struct program *p = &f.programs[r];
        for (int i = 0; i < p->n_ops; i++)
            if (p->ops[i].kind == OP_WAIT_ALL) {
                p->ops[i].kind = OP_SNAPSHOT;
                memcpy(p->ops[i].arg, p->ops[nth_of(p, OP_SNAPSHOT, 0)].arg, sizeof(p->ops[i].arg));
                break;
            }
        err_t e = plan_check(&f.graph, f.programs, f.n, &f.why);
        assert_err(ERR_INVALID, e);
        fixture_fini(&f);
    }
}

TEST(messages_of_other_lengths_or_microbatches_are_refused)
{
    struct fixture f;
    setup(&f, PIPE_GPIPE, 1, false);
    struct program *p = &f.programs[1];
    struct op *op = &p->ops[nth_of(p, OP_RECV, 0)];
    op->m.factor--;
    assert_refused(&f, "elements of");
    op->m.factor++;
    /* The first rank does two microbatches in the other order. */
    p = &f.programs[0];
    int a = nth_action(p, ACT_FORWARD, 1), b = nth_action(p, ACT_FORWARD, 2);
    int micro = p->actions[a].micro, slot = p->actions[a].slot;
    p->actions[a].micro = p->actions[b].micro;
    p->actions[a].slot = p->actions[b].slot;
    p->actions[b].micro = micro;
    p->actions[b].slot = slot;
    assert_refused(&f, "of microbatch");
    fixture_fini(&f);
}

/* One instance for all microbatches in flight: the second's activations stand where the first's backward reads. */
TEST(an_instance_that_another_microbatch_takes_is_refused)
{
    static const enum pipe_schedule all[] = {PIPE_GPIPE, PIPE_1F1B, PIPE_ZB_H1};
    for (int s = 0; s < 3; s++) {
        struct fixture f;
        setup(&f, all[s], 1, false);
        struct program *p = &f.programs[0];
        for (int a = 0; a < p->n_actions; a++)
            p->actions[a].slot = 0;
        assert_refused(&f, "which is of microbatch");
        fixture_fini(&f);
    }
}

TEST(an_instance_that_is_not_there_is_refused)
{
    struct fixture f;
    setup(&f, PIPE_1F1B, 1, false);
    struct program *p = &f.programs[0];
    p->actions[nth_action(p, ACT_FORWARD, 1)].slot = 7;
    assert_refused(&f, "takes instance 7 of");
    fixture_fini(&f);
}

TEST(a_backward_before_its_message_is_refused)
{
    struct fixture f;
    setup(&f, PIPE_1F1B, 1, false);
    struct program *p = &f.programs[0];
    int b = nth_action(p, ACT_BACKWARD, 0);
    struct action moved = p->actions[b];
    int exchange = b - 1;
    while (p->actions[exchange].kind != ACT_EXCHANGE)
        exchange--;
    memmove(&p->actions[exchange + 1], &p->actions[exchange], (size_t)(b - exchange) * sizeof(moved));
    p->actions[exchange] = moved;
    assert_err(ERR_INVALID, plan_check(&f.graph, f.programs, f.n, &f.why));
    assert_says(&f.why, "rank 0");
    fixture_fini(&f);
}

TEST(weights_before_inputs_are_refused)
{
    struct fixture f;
    setup(&f, PIPE_ZB_H1, 1, false);
    struct program *p = &f.programs[1];
    int i = nth_action(p, ACT_INPUT, 0), w = nth_action(p, ACT_WEIGHT, 0);
    struct action x = p->actions[i];
    p->actions[i] = p->actions[w];
    p->actions[w] = x;
    assert_err(ERR_INVALID, plan_check(&f.graph, f.programs, f.n, &f.why));
    assert_says(&f.why, "rank 1");
    fixture_fini(&f);
}

TEST(a_tied_gradient_that_stages_do_not_sum_is_refused)
{
    struct fixture f;
    setup(&f, PIPE_1F1B, 1, true);
    int t = fixture_tensor(&f, "tok_embeddings.weight"), dropped = 0;
    for (int r = 0; r < 2; r++) {
        struct program *p = &f.programs[r];
        for (int i = 0; i < p->n_ops; i++)
            if (p->ops[i].kind == OP_ALL_REDUCE && p->buffers[p->ops[i].arg[0].buffer].tensor == t) {
                p->ops[i].kind = OP_WAIT_ALL;
                p->ops[i].arg[0].buffer = -1;
                dropped++;
            }
    }
    assert_int_equal(dropped, 2);
    assert_refused(&f, "share of a sum over pp");
    fixture_fini(&f);
}

TEST(a_microbatch_that_a_chunk_leaves_out_is_refused)
{
    struct fixture f;
    setup(&f, PIPE_INTERLEAVED, 2, false);
    struct program *p = &f.programs[1];
    struct action *a = &p->actions[nth_action(p, ACT_FORWARD, 3)];
    a->chunk = !a->chunk;
    assert_err(ERR_INVALID, plan_check(&f.graph, f.programs, f.n, &f.why));
    assert_says(&f.why, "of chunk");
    fixture_fini(&f);
}

/* Two ranks that each send first, and take only when their send is over. */
TEST(sends_that_need_a_buffer_hang)
{
    struct fixture f;
    setup(&f, PIPE_1F1B, 1, false);
    int broken = 0;
    for (int r = 0; r < 2; r++) {
        struct program *p = &f.programs[r];
        for (int a = 0; a < p->n_actions; a++) {
            const struct action *x = &p->actions[a];
            struct op *first = &p->ops[x->first_op];
            if (x->kind != ACT_EXCHANGE || x->n_ops < 3 || first[0].kind != OP_SEND || first[1].kind != OP_RECV ||
                first[2].kind != OP_WAIT_ALL)
                continue;
            /* send, wait, recv: what follows waits for the receive in vain, or the next exchange does */
            struct op recv = first[1];
            first[1] = first[2];
            first[2] = recv;
            broken++;
        }
    }
    assert_true(broken >= 2);
    assert_err(ERR_INVALID, plan_check(&f.graph, f.programs, f.n, &f.why));
    fixture_fini(&f);
}
