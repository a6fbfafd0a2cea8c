/* Recordings of steps: a file that is written can be read, a damaged one is refused, and both ends of every message
 * that the programs send have the same number and size. */
#include "common/plan/estimate/recorded.h"
#include "tests/common/plan/plan_fixture.h"

#include <stdlib.h>

static int ranks[] = {0, 2};
static struct recorded_group groups[] = {{.axes = 2, .n = 2, .ranks = ranks}};
static struct recorded_action actions[] = {{ACT_FORWARD, 0, 0}, {ACT_EXCHANGE, -1, 1}};
static struct recorded_call calls[] = {
    {0, OP_GEMM, STREAM_COMPUTE, 3, -1, ROLE_NONE, -1, 0, 0, 0, DT_F32},
    {0, OP_ALL_REDUCE, STREAM_COMM, -1, 0, ROLE_NONE, -1, 0, 100, 100, DT_BF16},
    {1, OP_WAIT, STREAM_COMM, -1, 0, ROLE_WAIT_RECV, 2, 7, 0, 512, DT_F32},
};
static struct recorded_step steps[] = {{7, -5, 900, 1 << 20, 2 << 20}};
static struct recorded_host hosts[] = {{10, 20, HOST_DATA, 0}, {800, 801, HOST_SAVE, 0}};
static struct recorded_event events[] = {{-5, 30, 0, 0}, {30, 30, 1, 0}, {40, 50, 2, 1}};
static const struct recorded sample = {
    .job = 4,
    .profile = 1700000000123,
    .epoch = 2,
    .rank = 1,
    .world = 3,
    .node = 1,
    .pid = 77,
    .steps = 1,
    .first = 7,
    .lost = 5,
    .clock = {{1000, 1700000000000000000, -30, -4, 20}, {2000, 1700000000000001000, -3, 0, 9}},
    .groups = groups,
    .n_groups = 1,
    .actions = actions,
    .n_actions = 2,
    .calls = calls,
    .n_calls = 3,
    .step = steps,
    .n_step = 1,
    .hosts = hosts,
    .n_hosts = 2,
    .events = events,
    .n_events = 3,
    .total_ns = {[OP_GEMM] = 35},
    .total_calls = {[OP_GEMM] = 1}};

TEST(a_written_recording_can_be_read)
{
    struct buf text = {0};
    struct recorded r;
    struct why why = {""};
    assert_ok(recorded_print(&sample, &text));
    if (recorded_read((const char *)text.data, text.len, "x", &r, &why))
        fail_msg("%s", why.text);
    assert_true(r.job == 4 && r.profile == 1700000000123 && r.epoch == 2 && r.rank == 1 && r.world == 3 && r.node == 1);
    assert_true(r.pid == 77 && r.steps == 1 && r.first == 7 && r.lost == 5 && !r.device);
    assert_memory_equal(r.clock, sample.clock, sizeof(r.clock));
    assert_true(r.n_groups == 1 && r.groups[0].axes == 2 && r.groups[0].n == 2 && r.groups[0].ranks[1] == 2);
    assert_true(r.n_actions == 2 && r.n_calls == 3 && r.n_step == 1 && r.n_hosts == 2 && r.n_events == 3);
    for (int i = 0; i < 2; i++)
        assert_true(r.actions[i].kind == actions[i].kind && r.actions[i].micro == actions[i].micro &&
                    r.actions[i].chunk == actions[i].chunk);
    for (int i = 0; i < 3; i++) {
        const struct recorded_call *a = &r.calls[i], *b = &calls[i];
        assert_true(a->action == b->action && a->kind == b->kind && a->stream == b->stream && a->layer == b->layer);
        assert_true(a->group == b->group && a->role == b->role && a->peer == b->peer && a->message == b->message);
        assert_true(a->in == b->in && a->out == b->out && a->dtype == b->dtype);
        assert_true(r.events[i].from == events[i].from && r.events[i].to == events[i].to &&
                    r.events[i].call == events[i].call && r.events[i].step == events[i].step);
    }
    assert_true(r.step[0].step == 7 && r.step[0].from == -5 && r.step[0].to == 900 && r.step[0].rss_bytes == 1 << 20);
    assert_true(r.hosts[1].kind == HOST_SAVE && r.hosts[1].from == 800 && r.hosts[1].to == 801);
    assert_true(r.total_ns[OP_GEMM] == 35 && r.total_calls[OP_GEMM] == 1);
    recorded_fini(&r);
    buf_fini(&text);
}

TEST(a_cut_recording_is_refused)
{
    struct buf text = {0};
    struct recorded r;
    assert_ok(recorded_print(&sample, &text));
    for (size_t n = 0; n < text.len; n++) {
        struct why why = {""};
        assert_err(ERR_INVALID, recorded_read((const char *)text.data, n, "x", &r, &why));
        assert_message(&why, "let `dtctl profile` write it again");
    }
    buf_fini(&text);
}

/* Replaces the first `from` of the sample's text by `to`. */
static void refused(const char *from, const char *to)
{
    struct buf text = {0}, changed = {0};
    struct recorded r;
    struct why why = {""};
    assert_ok(recorded_print(&sample, &text));
    assert_ok(buf_append(&text, "", 1));
    const char *at = strstr((const char *)text.data, from);
    assert_non_null(at);
    assert_ok(buf_printf(&changed, "%.*s%s%s", (int)(at - (const char *)text.data), (const char *)text.data, to,
                         at + strlen(from)));
    if (recorded_read((const char *)changed.data, changed.len, "x", &r, &why) != ERR_INVALID)
        fail_msg("accepted: %s", to);
    assert_message(&why, "x:");
    buf_fini(&text);
    buf_fini(&changed);
}

TEST(damage_is_refused)
{
    refused("rank 1 world", "rank 3 world");            /* no such rank */
    refused("steps 1 ", "steps 99999999999999999999 "); /* a number that is too large */
    refused("op gemm\n", "op jump\n");                  /* an unknown op */
    refused("group 2 0 2", "group 2 0 3");              /* a rank that the job has not */
    refused("action exchange", "action exit");
    refused("call 1 ", "call 2 ");              /* an action that the file has not */
    refused("arrived 2", "arrived 3");          /* a peer that the job has not */
    refused("bfloat16\n", "bfloat15\n");        /* an unknown type */
    refused("\n2 1 40 10\n", "\n3 1 40 10\n");  /* a call that the file has not */
    refused("\n2 1 40 10\n", "\n2 1 40 -1\n");  /* ends before it begins */
    refused("\n2 1 40 10\n", "\n2 1 40\n");     /* a field too few */
    refused("\n2 1 40 10\n", "\n2 1 40 10 \n"); /* a character too many */
    refused("\nclock 1000", "\nclok 1000");
    refused("end\n", "end\n\n"); /* lines after the end */
}

/* Finds the other end of a message of rank `from`; NULL: there is none, or there are two. */
static const struct recorded_call *other_end(const struct recorded *r, enum recorded_role role, int peer,
                                             int64_t message)
{
    const struct recorded_call *found = NULL;
    for (int i = 0; i < r->n_calls; i++) {
        const struct recorded_call *c = &r->calls[i];
        if (c->role != role || c->peer != peer || c->message != message)
            continue;
        if (found)
            return NULL;
        found = c;
    }
    return found;
}

static void check_messages(const struct job_spec *job, int64_t sends)
{
    struct fixture f;
    struct recorded r[MAX_RANKS];
    int64_t n = 0;
    fixture_init(&f, job, MODE_TRAIN);
    memset(r, 0, sizeof(r));
    for (int k = 0; k < f.n; k++)
        assert_ok(recorded_program(&f.programs[k], &r[k], NULL));
    for (int k = 0; k < f.n; k++)
        for (int i = 0; i < r[k].n_calls; i++) {
            const struct recorded_call *c = &r[k].calls[i];
            if (c->kind == OP_WAIT)
                assert_true(c->role == ROLE_WAIT_SEND || c->role == ROLE_WAIT_RECV);
            if (c->role != ROLE_SEND)
                continue;
            n++;
            const struct recorded_call *post = other_end(&r[c->peer], ROLE_RECV, k, c->message);
            const struct recorded_call *wait = other_end(&r[c->peer], ROLE_WAIT_RECV, k, c->message);
            assert_true(post && wait && other_end(&r[k], ROLE_WAIT_SEND, c->peer, c->message));
            assert_true(c->in > 0 && post->out == c->in && wait->out == c->in && c->dtype == wait->dtype);
        }
    assert_int_equal(n, sends);
    for (int k = 0; k < f.n; k++)
        recorded_fini(&r[k]);
    fixture_fini(&f);
}

static struct job_spec pipe_job(int pp, int chunks, enum pipe_schedule schedule)
{
    struct job_spec job = job_small(ARCH_LLAMA, pp);
    job.model.layers = 8;
    job.train.global_batch = 8;
    job.train.micro_batch = 1;
    job.parallel.pp = pp;
    job.parallel.chunks = chunks;
    job.parallel.schedule = schedule;
    return job;
}

/* Every microbatch passes every border between two stages once in each direction. */
TEST(both_ends_of_a_message_have_its_number)
{
    struct job_spec job = pipe_job(2, 1, PIPE_1F1B);
    check_messages(&job, 8 * 2);
    job = pipe_job(4, 1, PIPE_1F1B);
    check_messages(&job, 8 * 2 * 3);
    job = pipe_job(4, 2, PIPE_INTERLEAVED);
    check_messages(&job, 8 * 2 * 7);
}

/* Elements of all sums over dp together: those of all parameters, and the numbers that ranks agree on. */
TEST(collectives_have_the_elements_of_the_parameters)
{
    struct fixture f;
    struct recorded r = {0};
    struct job_spec job = job_small(ARCH_LLAMA, 2);
    int64_t sum = 0, params = 0;
    fixture_init(&f, &job, MODE_TRAIN);
    assert_ok(recorded_program(&f.programs[0], &r, NULL));
    for (int i = 0; i < f.graph.n_tensors; i++)
        if (f.programs[0].param_buffer[i] >= 0)
            params += f.programs[0].buffers[f.programs[0].param_buffer[i]].bytes / 4;
    for (int i = 0; i < r.n_calls; i++)
        if (r.calls[i].kind == OP_ALL_REDUCE && r.calls[i].dtype == DT_F32) {
            assert_true(r.calls[i].in == r.calls[i].out && r.groups[r.calls[i].group].n == 2);
            sum += r.calls[i].in;
        }
    assert_true(params > 1000 && sum == params);
    recorded_fini(&r);
    fixture_fini(&f);
}
