/* Pipelines with planted bugs in messages, buffer instances, orders, and shares of tied parameters. */
#include "common/plan/check/plan_check.h"
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
        fail_msg("accepted; the checker should report \"%s\"", words);
    assert_err(ERR_INVALID, e);
    assert_message(&f->why, "rank ");
    assert_message(&f->why, words);
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

static bool sends(const struct program *p, const struct action *x)
{
    for (int i = x->first_op; i < x->first_op + x->n_ops; i++)
        if (p->ops[i].kind == OP_SEND)
            return true;
    return false;
}

/* Leaves out every exchange that sends, one at a time: a wait, an event or the microbatch then does not fit. */
TEST(no_message_can_be_left_out)
{
    struct fixture f;
    setup(&f, PIPE_GPIPE, 1, false);
    int left = 0;
    for (int r = 0; r < 2; r++)
        for (int a = 0; a < f.programs[r].n_actions; a++) {
            struct action *x = &f.programs[r].actions[a];
            int n = x->n_ops;
            if (x->kind != ACT_EXCHANGE || !sends(&f.programs[r], x))
                continue;
            x->n_ops = 0;
            assert_refused(&f, "rank ");
            left++;
            x->n_ops = n;
        }
    assert_true(left >= 10);
    assert_ok(plan_check(&f.graph, f.programs, f.n, &f.why));
    fixture_fini(&f);
}

/* Leaves out every wait, one at a time: waits for receives, for sends whose buffer is reused, and for the last sends.
 */
TEST(a_message_that_is_not_waited_for_is_refused)
{
    static const enum pipe_schedule schedules[] = {PIPE_1F1B, PIPE_GPIPE, PIPE_INTERLEAVED};
    int received = 0, sent = 0, left = 0;
    for (int k = 0; k < 3; k++) {
        struct fixture f;
        setup(&f, schedules[k], 1 + (schedules[k] == PIPE_INTERLEAVED), false);
        for (int r = 0; r < 2; r++)
            for (int i = 0; i < f.programs[r].n_ops; i++) {
                struct op *op = &f.programs[r].ops[i];
                const struct op kept = *op;
                if (op->kind != OP_WAIT)
                    continue;
                op->kind = OP_PUSH;
                op->arg[0].buffer = -1;
                assert_refused(&f, "rank ");
                received += strstr(f.why.text, "is being received") != NULL;
                sent += strstr(f.why.text, "is being sent") != NULL;
                left += strstr(f.why.text, "no op has waited for the message in sent.") != NULL;
                *op = kept;
            }
        assert_ok(plan_check(&f.graph, f.programs, f.n, &f.why));
        fixture_fini(&f);
    }
    assert_true(received > 4 && sent > 4 && left > 4);
}

TEST(a_wait_for_no_message_is_refused)
{
    struct fixture f;
    setup(&f, PIPE_1F1B, 1, false);
    struct program *p = &f.programs[0];
    struct op *op = &p->ops[nth_of(p, OP_PUSH, 0)];
    const struct op *recv = &p->ops[nth_of(p, OP_RECV, 0)];
    op->kind = OP_WAIT;
    op->m = recv->m;
    op->arg[0] = recv->arg[0];
    assert_refused(&f, "to or from which no message was posted");
    fixture_fini(&f);
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
    /* The first rank computes two microbatches in the other order. */
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

/* All microbatches in flight use one instance: the second's activations overwrite those that the first's backward
 * reads. */
TEST(an_instance_that_another_microbatch_takes_is_refused)
{
    static const enum pipe_schedule all[] = {PIPE_GPIPE, PIPE_1F1B, PIPE_ZB_H1};
    for (int s = 0; s < 3; s++) {
        struct fixture f;
        setup(&f, all[s], 1, false);
        struct program *p = &f.programs[0];
        for (int a = 0; a < p->n_actions; a++)
            p->actions[a].slot = 0;
        assert_refused(&f, "which belongs to microbatch");
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
    assert_message(&f.why, "rank 0");
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
    assert_message(&f.why, "rank 1");
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
                p->ops[i].kind = OP_PUSH;
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
    assert_message(&f.why, "of chunk");
    fixture_fini(&f);
}

/* Each of two ranks sends first, and posts its receive only after its send is complete. */
TEST(sends_that_need_a_buffer_hang)
{
    struct fixture f;
    setup(&f, PIPE_1F1B, 1, false);
    int broken = 0;
    for (int r = 0; r < 2; r++) {
        struct program *p = &f.programs[r];
        for (int a = 0; a < p->n_actions; a++) {
            const struct action *x = &p->actions[a];
            for (int i = x->first_op; x->kind == ACT_EXCHANGE && i + 2 < x->first_op + x->n_ops; i++) {
                struct op *op = &p->ops[i];
                if (op[0].kind != OP_SEND || op[1].kind != OP_RECV || op[2].kind != OP_PUSH)
                    continue;
                /* send, push, recv: deadlocks on a backend whose push lasts until the send is received */
                struct op recv = op[1];
                op[1] = op[2];
                op[2] = recv;
                broken++;
            }
        }
    }
    assert_true(broken >= 2);
    assert_refused(&f, "waits for ever for its messages");
    fixture_fini(&f);
}
