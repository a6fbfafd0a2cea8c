/* Tests an engine's use of a device: what it allocates and when, what it waits for, which events it records and waits
 * for on which stream, and how it handles a snapshot, a step whose result is NaN, and an epoch that ends in between. */
#include "tests/parity/harness.h"
#include "tests/worker/record_device.h"

#include "worker/step/run.h"
#include "worker/step/snapshot.h"

#include <math.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define STEPS 4

struct bench {
    struct parity_model m;
    struct dev *dev;
    struct engine e;
    struct comm *comm;
    struct parity_feed data;
    struct engine_feed feed;
};

static _Atomic int cancel;

static void begin(struct bench *b, struct dev *dev, const char *yaml, const char *const *sets, int fd, int rank)
{
    struct why why = {""};
    *b = (struct bench){.dev = dev};
    atomic_store(&cancel, 0);
    parity_model_init(&b->m, yaml, sets);
    const int world = (int)b->m.job.parallel.workers;
    const struct engine_config config = {.dev = dev,
                                         .job = &b->m.job,
                                         .graph = &b->m.graph,
                                         .rank = rank,
                                         .world = world,
                                         .eval = true,
                                         .cancel = &cancel};
    assert_int_equal(engine_init(&b->e, &config, &why), OK);
    const struct comm_config cc = {
        .backend = "staged", .fd = fd, .dev = dev, .rank = rank, .world = world, .epoch = 1, .timeout_ms = 20000};
    assert_int_equal(comm_open(&cc, &b->comm, &why), OK);
    assert_int_equal(engine_start(&b->e, b->comm, &why), OK);
    assert_int_equal(engine_fill_state(&b->e, &why), OK);
    b->data = (struct parity_feed){.seq = b->m.job.train.seq, .vocab = b->m.job.model.vocab};
    b->feed = (struct engine_feed){.sample = parity_sample, .arg = &b->data};
}

static void end(struct bench *b)
{
    engine_fini(&b->e);
    comm_close(b->comm);
    parity_model_fini(&b->m);
}

static const char *const alone[] = {"train.numerics=fast", NULL};
static const char *const masked[] = {"train.numerics=fast", "model.causal=true", NULL};
static const char *const two[] = {"train.numerics=fast", "parallel.workers=2", "train.verify_every=0", NULL};

static void begin_alone(struct bench *b, struct dev *dev, const char *yaml)
{
    begin(b, dev, yaml, alone, memfd_create("engine", MFD_CLOEXEC), 0);
}

static void step(struct bench *b)
{
    struct engine_result r;
    struct why why = {""};
    if (engine_step(&b->e, &b->feed, &r, &why))
        fail_msg("%s", why.text);
}

/* ---- the events of a program, as specified in program.h ---- */

/* Different events are different handles, in any slot. */
struct instance {
    int event;
    const void *is;
};

static void check_instance(struct instance *list, int *n, int event, const void *is)
{
    for (int i = 0; i < *n; i++) {
        if (list[i].event == event) {
            assert_ptr_equal(list[i].is, is);
            return;
        }
        assert_ptr_not_equal(list[i].is, is);
    }
    list[(*n)++] = (struct instance){event, is};
}

static const struct rec_entry *next_of_rig(const struct engine *e, const struct rec_entry *at,
                                           const struct rec_entry *last)
{
    for (; at < last; at++)
        for (int i = 0; (at->kind == REC_WAIT || at->kind == REC_RECORD) && i < e->train_bindings.n_events; i++)
            if (at->event == e->train_bindings.events[i])
                return at;
    return NULL;
}

/* Compares the log of one step with the program; returns the number of waits and records. */
static int check_events(const struct engine *e)
{
    static struct instance list[4096];
    int n_log, n_list = 0, seen = 0;
    const struct rec_entry *log = rec_log(&n_log), *at = log, *last = log + n_log;
    const struct program *p = &e->train;
    for (int i = 0; i < p->n_actions; i++) {
        const struct action *a = &p->actions[i];
        for (int k = 0; a->kind != ACT_SNAPSHOT && k < a->n_ops; k++) {
            const struct op *op = &p->ops[a->first_op + k];
            for (int w = 0; w <= OP_MAX_WAITS; w++) {
                int event = w < OP_MAX_WAITS ? op->wait[w] : op->event;
                if (event < 0)
                    continue;
                at = next_of_rig(e, at, last);
                assert_non_null(at);
                assert_int_equal(at->kind, w < OP_MAX_WAITS ? REC_WAIT : REC_RECORD);
                assert_int_equal(at->stream, op->stream);
                check_instance(list, &n_list, event, at->event);
                at++;
                seen++;
            }
        }
    }
    assert_null(next_of_rig(e, at, last));
    return seen;
}

static int micros_of(const struct engine *e)
{
    return e->train.end_micro - e->train.first_micro;
}

/* Checks that a step neither allocates nor frees, and the number of its waits: one for each stream that its program
 * uses and one for each copy of a batch; `rounds` are the waits of its collectives. */
static void check_step(const struct bench *b, int streams, int rounds)
{
    static const enum rec_kind none[] = {REC_ALLOC, REC_FREE,      REC_HOST_ALLOC, REC_HOST_FREE,  REC_PIN,
                                         REC_UNPIN, REC_EVENT_NEW, REC_EVENT_FREE, REC_STREAM_NEW, REC_STREAM_FREE};
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++)
        if (rec_count(none[i]) != 0)
            fail_msg("a step allocates or frees an object of kind %d", none[i]);
    assert_int_equal(rec_count(REC_STREAM_SYNC), streams);
    assert_int_equal(rec_count(REC_EVENT_SYNC), micros_of(&b->e) + rounds);
}

TEST(a_step_allocates_nothing_and_waits_once)
{
    struct bench b;
    struct dev *dev = rec_open();
    begin_alone(&b, dev, parity_gpt2);
    assert_int_equal(rec_count(REC_ALLOC), 1); /* all spaces */
    for (int i = 0; i < STEPS; i++) {
        rec_forget();
        step(&b);
        check_step(&b, 1, 0);
        assert_true(check_events(&b.e) > 0);
    }
    end(&b);
    rec_close(dev);
}

static int one_of_two(int fd, int rank)
{
    struct bench b;
    struct dev *dev = rec_open();
    begin(&b, dev, parity_llama, two, fd, rank);
    int reduces = 0;
    for (int i = 0; i < b.e.train.n_actions; i++)
        for (int k = 0; k < b.e.train.actions[i].n_ops; k++)
            reduces += b.e.train.ops[b.e.train.actions[i].first_op + k].kind == OP_ALL_REDUCE;
    assert_true(reduces > 1);
    for (int i = 0; i < STEPS; i++) {
        rec_forget();
        step(&b);
        check_step(&b, 2, reduces); /* every gradient fits one round */
        assert_true(check_events(&b.e) > 2 * reduces);
    }
    end(&b);
    rec_close(dev);
    return 0;
}

TEST(two_ranks_keep_the_order_of_events)
{
    int fd = memfd_create("engine", MFD_CLOEXEC), status;
    pid_t pid = fork();
    if (pid == 0)
        _exit(one_of_two(fd, 1));
    assert_int_equal(one_of_two(fd, 0), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* Gradients of two replicas: their reduction is all of the communication, and the update has none. */
static int spends(int fd, int rank)
{
    struct bench b;
    begin(&b, test_cpu(), parity_llama, two, fd, rank);
    b.e.spent = (struct engine_spent){0};
    for (int i = 0; i < STEPS; i++)
        step(&b);
    const struct engine_spent *s = &b.e.spent;
    const int64_t rest = s->comm_ns - s->part_ns[TRAFFIC_GRADS]; /* readings of the clock around no comparison */
    assert_true(s->part_ns[TRAFFIC_GRADS] > 0 && rest >= 0);
    assert_true(s->update_ns > 0);
    for (int i = 0; i < TRAFFIC_COUNT; i++)
        assert_true(i == TRAFFIC_GRADS || s->part_ns[i] == 0);
    end(&b);
    return 0;
}

TEST(time_is_spent_by_purpose)
{
    int fd = memfd_create("engine", MFD_CLOEXEC), status;
    pid_t pid = fork();
    if (pid == 0)
        _exit(spends(fd, 1));
    assert_int_equal(spends(fd, 0), 0);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

TEST(actions_are_named_for_a_profiler)
{
    struct bench b;
    struct dev *dev = rec_open();
    int n_log, found = 0, depth = 0;
    begin_alone(&b, dev, parity_llama);
    rec_forget();
    step(&b);
    const struct rec_entry *log = rec_log(&n_log);
    for (int i = 0; i < n_log; i++)
        if (log[i].kind == REC_RANGE) {
            depth += log[i].text[0] ? 1 : -1;
            assert_true(depth == 0 || depth == 1);
            found += strcmp(log[i].text, "forward 3") == 0 || strcmp(log[i].text, "update") == 0;
        }
    assert_int_equal(found, 2);
    assert_int_equal(depth, 0);
    end(&b);
    rec_close(dev);
}

/* ---- snapshots ---- */

static void *arena_of(const struct snapshot *s)
{
    return calloc(1, s->bytes);
}

/* The arena after `steps` steps on a device that works synchronously. */
static void *expected_arena(int steps, size_t *ret_bytes)
{
    struct bench b;
    struct snapshot s;
    begin_alone(&b, test_cpu(), parity_llama);
    for (int i = 0; i < steps; i++)
        step(&b);
    assert_ok(snapshot_plan_save(&b.e, &s));
    void *arena = arena_of(&s);
    assert_ok(snapshot_copy(&s, &b.e, arena));
    assert_true(snapshot_over(&b.e));
    *ret_bytes = s.bytes;
    snapshot_fini(&s);
    end(&b);
    return arena;
}

/* The copy runs as late as possible and must still have the data of the step that requested it. */
TEST(a_snapshot_is_of_its_step_however_late_it_is_copied)
{
    struct bench b;
    struct snapshot s;
    size_t bytes;
    void *want = expected_arena(2, &bytes);
    struct dev *dev = rec_open();
    begin_alone(&b, dev, parity_llama);
    step(&b);
    step(&b);
    assert_ok(snapshot_plan_save(&b.e, &s));
    void *arena = arena_of(&s);
    rec_forget();
    assert_ok(snapshot_copy(&s, &b.e, arena));
    assert_int_equal(rec_count(REC_STREAM_SYNC) + rec_count(REC_EVENT_SYNC), 0);
    assert_true(rec_waiting() > 0);
    assert_false(snapshot_over(&b.e));
    step(&b); /* its update overwrites the copied data */
    assert_true(snapshot_over(&b.e));
    step(&b);
    assert_ok(snapshot_wait(&b.e, NULL));
    assert_int_equal(s.bytes, bytes);
    assert_memory_equal(arena, want, bytes);
    rec_forget();
    step(&b);
    check_step(&b, 1, 0);
    free(arena);
    free(want);
    snapshot_fini(&s);
    end(&b);
    rec_close(dev);
}

/* ---- numbers ---- */

static void *copy_of(const struct engine *e, enum buffer_space space)
{
    void *x = malloc(e->space_bytes[space]);
    memcpy(x, e->space[space], e->space_bytes[space]);
    return x;
}

static void refused(const char *yaml, struct dev *dev, float poison)
{
    struct bench b;
    struct engine_result r;
    struct why why = {""};
    begin_alone(&b, dev, yaml);
    step(&b);
    int last = b.m.graph.n_tensors - 1;
    while (b.m.graph.tensors[last].kind != GT_PARAM)
        last--;
    *(float *)engine_buffer(&b.e, &b.e.train, b.e.train.param_buffer[last]) = poison;
    void *params = copy_of(&b.e, SPACE_PARAM), *moments = copy_of(&b.e, SPACE_OPT);
    assert_err(ERR_INVALID, engine_step(&b.e, &b.feed, &r, &why));
    assert_non_null(strstr(why.text, "step 2 was rejected"));
    assert_int_equal(b.e.step, 1);
    assert_int_equal(b.e.updates, 1);
    assert_int_equal(b.e.position, b.m.job.train.global_batch);
    assert_memory_equal(params, b.e.space[SPACE_PARAM], b.e.space_bytes[SPACE_PARAM]);
    assert_memory_equal(moments, b.e.space[SPACE_OPT], b.e.space_bytes[SPACE_OPT]);
    free(params);
    free(moments);
    end(&b);
}

TEST(a_step_that_is_not_a_number_leaves_all_bits)
{
    struct dev *dev = rec_open();
    refused(parity_llama, test_cpu(), NAN);
    refused(parity_gpt2, test_cpu(), INFINITY);
    refused(parity_llama, dev, INFINITY);
    refused(parity_gpt2, dev, NAN);
    rec_close(dev);
}

/* The initial values of a tensor that takes several chunks are those of the CPU. */
TEST(first_parameters_do_not_depend_on_the_device)
{
    static const char *const large[] = {"train.numerics=fast",  "model.vocab=60000",   "train.seq=4",
                                        "train.global_batch=1", "train.micro_batch=1", NULL};
    struct bench a, b;
    struct dev *dev = rec_open();
    begin(&a, test_cpu(), parity_llama, large, memfd_create("a", MFD_CLOEXEC), 0);
    begin(&b, dev, parity_llama, large, memfd_create("b", MFD_CLOEXEC), 0);
    assert_true(a.e.space_bytes[SPACE_PARAM] > ((size_t)16 << 20));
    assert_memory_equal(a.e.space[SPACE_PARAM], b.e.space[SPACE_PARAM], a.e.space_bytes[SPACE_PARAM]);
    end(&a);
    end(&b);
    rec_close(dev);
}

/* ---- ends ---- */

static err_t epoch_ends(struct why *why)
{
    atomic_store(&cancel, 1);
    return why_set(why, ERR_INTERNAL, "the communicator was aborted");
}

static err_t epoch_ends_quietly(struct why *why)
{
    atomic_store(&cancel, 1);
    return why ? OK : ERR_INTERNAL;
}

static err_t device_fails(struct why *why)
{
    return why_set(why, ERR_INTERNAL, "a launch failed in attention.c:12");
}

/* A stream's error after the end of the epoch is a consequence of the end; otherwise it is the step's error. */
TEST(the_end_of_an_epoch_is_no_failure)
{
    struct bench b;
    struct engine_result r;
    struct why why = {""};
    struct dev *dev = rec_open();
    begin_alone(&b, dev, parity_llama);
    step(&b);
    rec_at_sync(epoch_ends);
    assert_err(ERR_CANCELED, engine_step(&b.e, &b.feed, &r, &why));
    atomic_store(&cancel, 0);
    rec_at_sync(epoch_ends_quietly);
    assert_err(ERR_CANCELED, engine_step(&b.e, &b.feed, &r, &why));
    atomic_store(&cancel, 0);
    assert_int_equal(b.e.step, 1);
    rec_at_sync(device_fails);
    assert_err(ERR_INTERNAL, engine_step(&b.e, &b.feed, &r, &why));
    assert_non_null(strstr(why.text, "attention.c:12"));
    assert_int_equal(b.e.step, 1);
    end(&b);
    rec_close(dev);
}

TEST(a_rank_alone_shares_nothing_except_leaves_of_a_tree)
{
    static const char *const canonical[] = {"train.numerics=canonical", NULL};
    static const struct {
        const char *const *sets;
        bool shares;
    } cases[] = {{alone, false}, {two, true}, {canonical, true}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct parity_model m;
        struct engine e;
        struct why why = {""};
        parity_model_init(&m, parity_gpt2, cases[i].sets);
        const struct engine_config config = {
            .dev = test_cpu(), .job = &m.job, .graph = &m.graph, .world = (int)m.job.parallel.workers};
        assert_ok(engine_init(&e, &config, &why));
        assert_int_equal(engine_shared_bytes(&e) > 0, cases[i].shares);
        engine_fini(&e);
        parity_model_fini(&m);
    }
}

/* Memory that is as it was allocated is not cleared a second time, and memory that was used is. */
TEST(the_first_moments_are_zero_also_after_steps)
{
    struct bench b;
    struct dev *dev = rec_open();
    struct why why = {""};
    begin_alone(&b, dev, parity_gpt2);
    const size_t bytes = b.e.space_bytes[SPACE_OPT];
    uint8_t *zero = calloc(1, bytes), *at = malloc(bytes);
    assert_true(bytes > 0 && zero && at);
    for (int round = 0; round < 2; round++) {
        assert_ok(dev_copy(b.e.stream[STREAM_COMPUTE], at, b.e.space[SPACE_OPT], bytes));
        assert_ok(dev_stream_sync(b.e.stream[STREAM_COMPUTE], &why));
        assert_memory_equal(at, zero, bytes);
        step(&b);
        assert_ok(dev_copy(b.e.stream[STREAM_COMPUTE], at, b.e.space[SPACE_OPT], bytes));
        assert_ok(dev_stream_sync(b.e.stream[STREAM_COMPUTE], &why));
        assert_true(memcmp(at, zero, bytes) != 0);
        assert_ok(engine_fill_state(&b.e, &why));
    }
    free(zero);
    free(at);
    end(&b);
    rec_close(dev);
}

/* ---- generation, profile ---- */

static void logits(struct dev *dev, const char *yaml, const char *const *sets, const int32_t *ids, int n, float *ret)
{
    struct parity_model m;
    struct engine e;
    struct why why = {""};
    const void *row;
    parity_model_init(&m, yaml, sets);
    const size_t vocab = (size_t)m.job.model.vocab;
    const struct engine_config config = {.dev = dev, .job = &m.job, .graph = &m.graph, .world = 1, .generate = true};
    assert_ok(engine_init(&e, &config, &why));
    assert_ok(engine_start(&e, NULL, &why));
    assert_ok(engine_fill_state(&e, &why));
    for (int i = 0; i < n; i++) {
        assert_ok(engine_logits(&e, ids, i + 1, &row, &why));
        memcpy(ret + (size_t)i * vocab, row, vocab * sizeof(float));
    }
    engine_fini(&e);
    parity_model_fini(&m);
}

TEST(logits_come_back_from_hidden_memory)
{
    static float a[9 * 300], b[9 * 300];
    const int32_t ids[9] = {5, 299, 0, 17, 17, 3, 250, 1, 44};
    struct dev *dev = rec_open();
    logits(test_cpu(), parity_gpt2, alone, ids, 9, a);
    logits(dev, parity_gpt2, alone, ids, 9, b);
    assert_memory_equal(a, b, sizeof(a));
    assert_true(memcmp(a, a + 300, 300 * sizeof(float)) != 0);
    rec_close(dev);
}

/* Rows of 301 logits are padded, rows of 304 are not: the first 301 words are the same, and so are their logits. */
TEST(a_generator_finds_rows_that_stand_apart)
{
    static const char *const odd[] = {"train.numerics=fast", "model.vocab=301", NULL};
    static const char *const even[] = {"train.numerics=fast", "model.vocab=304", NULL};
    static float a[9 * 301], b[9 * 301], want[9 * 304];
    const int32_t ids[9] = {5, 299, 0, 17, 17, 3, 300, 1, 44};
    struct dev *dev = rec_open();
    logits(test_cpu(), parity_gpt2, odd, ids, 9, a);
    logits(dev, parity_gpt2, odd, ids, 9, b);
    logits(test_cpu(), parity_gpt2, even, ids, 9, want);
    assert_memory_equal(a, b, sizeof(a));
    for (int i = 0; i < 9 * 301; i++)
        assert_true(fabsf(a[i] - want[i / 301 * 304 + i % 301]) < 1e-5f);
    rec_close(dev);
}

/* If the same token occurs twice, only its position differs, which this model reads from the batch's rows. */
TEST(a_prompt_has_its_positions)
{
    static float a[9 * 300], b[9 * 300];
    const int32_t ids[9] = {7, 7, 7, 7, 7, 7, 7, 7, 7};
    struct dev *dev = rec_open();
    logits(test_cpu(), parity_transformer, masked, ids, 9, a);
    logits(dev, parity_transformer, masked, ids, 9, b);
    assert_memory_equal(a, b, sizeof(a));
    for (int i = 1; i < 9; i++)
        assert_true(memcmp(a, a + (ptrdiff_t)i * 300, 300 * sizeof(float)) != 0);
    rec_close(dev);
}

static void profiled(struct dev *dev)
{
    struct bench b;
    struct engine_profile p = {.trace = NULL};
    int64_t calls = 0, ops = 0, by_kind = 0, by_action = 0;
    begin_alone(&b, dev, parity_llama);
    assert_ok(engine_profile_start(&b.e, &p, NULL));
    for (int i = 0; i < 3; i++)
        step(&b);
    for (int i = 0; i < b.e.train.n_actions; i++)
        ops += b.e.train.actions[i].kind == ACT_SNAPSHOT ? 0 : b.e.train.actions[i].n_ops;
    for (int k = 0; k < OP_KIND_COUNT; k++) {
        calls += p.calls[k];
        by_kind += p.ns[k];
        assert_true(p.ns[k] >= 0 && (p.ns[k] == 0 || p.calls[k] > 0));
    }
    for (int k = 0; k < ACT_COUNT; k++)
        by_action += p.action_ns[k];
    assert_int_equal(calls, 3 * ops);
    assert_true(by_kind > 0 && by_kind == by_action);
    assert_true(p.action_ns[ACT_BACKWARD] > p.action_ns[ACT_NORM]);
    assert_true(p.update_ns > 0 && p.update_ns <= p.action_ns[ACT_NORM] + p.action_ns[ACT_UPDATE]);
    int64_t comm = 0, parts = 0;
    for (int k = 0; k < OP_KIND_COUNT; k++)
        comm += engine_op_communicates((enum op_kind)k) ? p.ns[k] : 0;
    for (int i = 0; i < TRAFFIC_COUNT; i++)
        parts += p.part_ns[i];
    assert_int_equal(comm, parts);
    end(&b);
}

/* Three steps into a record that has room for all of their ops, but for `missing`. */
static void recorded(struct dev *dev, int missing)
{
    struct bench b;
    struct recorded r = {0};
    struct engine_record record = {0};
    struct engine_profile p = {.record = &record};
    int64_t ns[OP_KIND_COUNT] = {0}, calls[OP_KIND_COUNT] = {0};
    int *first = NULL;
    begin_alone(&b, dev, parity_llama);
    assert_ok(recorded_program(&b.e.train, &r, &first));
    const int ops =
        program_find(&b.e.train, ACT_SNAPSHOT, 0) < 0 ? r.n_calls : first[program_find(&b.e.train, ACT_SNAPSHOT, 0)];
    record.cap = 3 * ops - missing;
    record.events = calloc((size_t)record.cap, sizeof(*record.events));
    record.cap_hosts = 1000;
    record.hosts = calloc(1000, sizeof(*record.hosts));
    record.first_call = first;
    record.first = b.e.step + 1;
    assert_ok(engine_profile_start(&b.e, &p, NULL));
    for (int i = 0; i < 3; i++)
        step(&b);
    assert_int_equal(record.n, record.cap);
    assert_int_equal(record.lost, missing);
    for (int i = 0; i < record.n; i++) {
        const struct recorded_event *e = &record.events[i];
        assert_true(e->call == i % ops && e->step == i / ops && e->to >= e->from);
        ns[r.calls[e->call].kind] += e->to - e->from;
        calls[r.calls[e->call].kind]++;
    }
    if (!missing) {
        assert_memory_equal(ns, p.ns, sizeof(ns));
        assert_memory_equal(calls, p.calls, sizeof(calls));
    }
    /* A read of the batch for each microbatch of the program, and one for the scale of the loss. */
    assert_int_equal(record.n_hosts, 3 * (b.e.train.n_micros + 1));
    for (int i = 0; i < record.n_hosts; i++)
        assert_true(record.hosts[i].kind == HOST_DATA && record.hosts[i].step == i / (b.e.train.n_micros + 1));
    free(record.events);
    free(record.hosts);
    free(first);
    recorded_fini(&r);
    end(&b);
}

TEST(a_record_has_every_op_with_its_step)
{
    struct dev *dev = rec_open();
    recorded(test_cpu(), 0);
    recorded(dev, 0);
    recorded(test_cpu(), 100);
    rec_close(dev);
}

TEST(a_profile_counts_every_op)
{
    struct dev *dev = rec_open();
    profiled(test_cpu());
    profiled(dev);
    rec_close(dev);
}
