/* The communication thread: first its queue alone; then engines with a communication thread in which an op fails, whose
 * epoch ends while one of the two threads waits, or whose ranks are on several nodes. tests/parity/test_switches.c
 * checks that the thread changes no result. No case depends on timing: the test checks that a thread sleeps before it
 * goes on.
 */
#include "tests/parity/compare.h"
#include "tests/parity/rank.h"
#include "tests/worker/collectives.h"

#include "worker/comm/backend.h"
#include "worker/step/comm_thread.h"

#include <sched.h>
#include <semaphore.h>
#include <sys/mman.h>

/* ---- the queue ---- */

/* Ops identified by their `unit`. */
#define MANY (3 * COMM_QUEUE)
static int ran[MANY + 1], n_ran;
static sem_t gate;
static _Atomic int at_gate;

static err_t note(const struct run *r, const struct op *op)
{
    ran[n_ran++] = op->unit;
    return r->update == op->unit ? OK : ERR_INTERNAL; /* a run by value */
}

static err_t note_behind_gate(const struct run *r, const struct op *op)
{
    atomic_store(&at_gate, 1);
    while (sem_wait(&gate))
        ;
    return note(r, op);
}

static err_t fail_by_name(const struct run *r, const struct op *op)
{
    return note(r, op) ? ERR_INTERNAL : ERR_IO;
}

struct op_queue {
    struct comm_thread *t;
    struct engine e;
    struct op op[MANY];
    int n;
};

static void queue_begin(struct op_queue *q)
{
    struct why why = {""};
    n_ran = 0;
    q->n = 0;
    assert_int_equal(sem_init(&gate, 0, 0), 0);
    assert_err(OK, comm_thread_new(&q->t, &why));
}

static uint64_t queue_op(struct op_queue *q, run_op_fn fn)
{
    struct op *op = &q->op[q->n];
    op->unit = q->n++;
    const struct run r = {.engine = &q->e, .update = op->unit};
    return comm_thread_queue(q->t, &r, op, fn, NULL);
}

static void sleeps(const struct comm_count *c)
{
    while (!atomic_load(&c->awaited))
        sched_yield();
}

static struct op_queue queue;

TEST(ops_run_in_the_order_in_which_they_are_queued)
{
    queue_begin(&queue);
    for (int i = 0; i < MANY; i++)
        assert_int_equal(queue_op(&queue, note), i + 1);
    assert_int_equal(comm_thread_finish(queue.t, false).err, OK);
    assert_int_equal(n_ran, MANY);
    for (int i = 0; i < MANY; i++)
        assert_int_equal(ran[i], i);
    comm_thread_free(queue.t);
}

TEST(a_wait_is_for_its_ticket)
{
    queue_begin(&queue);
    uint64_t first = queue_op(&queue, note), second = queue_op(&queue, note_behind_gate);
    assert_true(comm_thread_wait(queue.t, 0));
    assert_true(comm_thread_wait(queue.t, first));
    assert_int_equal(atomic_load(&queue.t->over.n), first);
    assert_int_equal(n_ran, 1);
    sem_post(&gate);
    assert_true(comm_thread_wait(queue.t, second));
    assert_int_equal(n_ran, 2);
    comm_thread_free(queue.t);
}

/* Opens the gate when the compute thread sleeps. */
static void *open_late(void *arg)
{
    const struct comm_thread *t = arg;
    sleeps(&t->over);
    const uint64_t queued = atomic_load(&t->queued.n), over = atomic_load(&t->over.n);
    sem_post(&gate);
    return queued - over > COMM_QUEUE ? arg : NULL;
}

TEST(a_full_queue_is_waited_for)
{
    pthread_t opener;
    void *too_many;
    queue_begin(&queue);
    assert_int_equal(pthread_create(&opener, NULL, open_late, queue.t), 0);
    queue_op(&queue, note_behind_gate);
    for (int i = 1; i < MANY; i++)
        queue_op(&queue, note);
    assert_int_equal(pthread_join(opener, &too_many), 0);
    assert_null(too_many);
    assert_int_equal(comm_thread_finish(queue.t, false).err, OK);
    for (int i = 0; i < MANY; i++)
        assert_int_equal(ran[i], i);
    comm_thread_free(queue.t);
}

TEST(an_idle_thread_sleeps_and_is_woken)
{
    pthread_t opener;
    queue_begin(&queue);
    for (int i = 0; i < 3; i++) {
        sleeps(&queue.t->queued);
        assert_true(comm_thread_wait(queue.t, queue_op(&queue, note)));
    }
    assert_int_equal(pthread_create(&opener, NULL, open_late, queue.t), 0);
    assert_true(comm_thread_wait(queue.t, queue_op(&queue, note_behind_gate)));
    assert_int_equal(pthread_join(opener, NULL), 0);
    assert_int_equal(n_ran, 4);
    sleeps(&queue.t->queued);
    comm_thread_free(queue.t);
}

TEST(no_op_runs_after_a_failure)
{
    queue_begin(&queue);
    queue_op(&queue, note);
    queue_op(&queue, fail_by_name);
    uint64_t behind = queue_op(&queue, note);
    assert_false(comm_thread_wait(queue.t, behind));
    assert_true(comm_thread_failed(queue.t));
    queue_op(&queue, fail_by_name);
    struct comm_failure f = comm_thread_finish(queue.t, false);
    assert_int_equal(f.err, ERR_IO);
    assert_ptr_equal(f.op, &queue.op[1]);
    assert_int_equal(f.run.update, 1);
    assert_int_equal(n_ran, 2);
    /* After a failure the queue can be used again. */
    assert_true(comm_thread_wait(queue.t, queue_op(&queue, note)));
    assert_int_equal(comm_thread_finish(queue.t, false).err, OK);
    assert_int_equal(n_ran, 3);
    comm_thread_free(queue.t);
}

TEST(ops_that_have_not_started_can_be_skipped)
{
    pthread_t opener;
    queue_begin(&queue);
    queue_op(&queue, note_behind_gate);
    for (int i = 1; i < 5; i++)
        queue_op(&queue, note);
    while (!atomic_load(&at_gate))
        sched_yield();
    assert_int_equal(pthread_create(&opener, NULL, open_late, queue.t), 0);
    assert_int_equal(comm_thread_finish(queue.t, true).err, OK);
    assert_int_equal(pthread_join(opener, NULL), 0);
    assert_int_equal(n_ran, 1);
    assert_false(comm_thread_failed(queue.t));
    comm_thread_free(queue.t);
}

/* ---- engines ---- */

#define SAY(...) (fprintf(stderr, __VA_ARGS__), 1)
#define SETS(...) ((const char *const[]){__VA_ARGS__, NULL})

static _Atomic int *n_open; /* ranks; shared by them */

static void fork_ranks(const char *yaml, const char *const *sets, parity_rank_fn fn)
{
    struct parity_model m;
    parity_model_init(&m, yaml, sets);
    n_open = mmap(NULL, sizeof(*n_open), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_true(n_open != MAP_FAILED);
    parity_fork((int)m.job.parallel.workers, fn, &m);
    munmap(n_open, sizeof(*n_open));
    parity_model_fini(&m);
}

/* Returns when all ranks have opened their comm, so that no rank ends the epoch while another still opens. */
static err_t open_rank(struct parity_rank *r, const struct parity_model *m, int fd, int rank, struct why *why)
{
    *r = (struct parity_rank){0};
    err_t err = parity_rank_open(r, m, fd, rank, why);
    if (err)
        return err;
    atomic_fetch_add(n_open, 1);
    while (atomic_load(n_open) < (int)m->job.parallel.workers)
        sched_yield();
    return OK;
}

static int has_thread(void *arg, int fd, int rank)
{
    const struct parity_model *m = arg;
    const bool wanted = m->job.run.comm_thread == COMM_THREAD_ON && m->job.parallel.workers > 1;
    struct parity_rank r;
    struct engine_result result;
    struct why why = {""};
    err_t err = open_rank(&r, arg, fd, rank, &why);
    err = err ? err : parity_rank_step(&r, &result, &why);
    uint64_t queued = r.e.comm_thread ? atomic_load(&r.e.comm_thread->queued.n) : 0;
    int bad = err || (queued > 0) != wanted || (r.e.comm_thread != NULL) != wanted
                  ? SAY("rank %d: %s, %d queued\n", rank, why.text, (int)queued)
                  : 0;
    parity_rank_close(&r);
    return bad;
}

TEST(one_rank_or_no_request_gives_no_thread)
{
    fork_ranks(parity_llama, SETS("parallel.workers=2", "run.comm_thread=on"), has_thread);
    fork_ranks(parity_llama, SETS("parallel.workers=2", "run.comm_thread=off"), has_thread);
    fork_ranks(parity_llama, SETS("parallel.workers=1", "run.comm_thread=on"), has_thread);
}

/* ---- an op that fails ---- */

static int sums;
static const struct comm_backend *sound;

/* Replaces the comm's function table with a copy that the test may change. */
static struct comm_backend *spy_on(struct parity_rank *r)
{
    static struct comm_backend spy;
    sound = r->comm->backend;
    spy = *sound;
    r->comm->backend = &spy;
    return &spy;
}

/* The third sum of this rank fails. */
static err_t third_sum_fails(struct comm_group *g, struct kern_stream *s, void *x, int64_t n, enum dtype dtype,
                             enum reduce_op op)
{
    if (++sums < 3)
        return sound->all_reduce(g, s, x, n, dtype, op);
    return why_set(&g->comm->why, ERR_IO, "the wire failed");
}

/* Rank 1 fails and aborts, as train.c does; the calls of the other ranks end. */
static int one_fails(void *arg, int fd, int rank)
{
    struct parity_rank r;
    struct engine_result result;
    struct why why = {""};
    err_t err = open_rank(&r, arg, fd, rank, &why);
    if (err)
        return SAY("rank %d: %s\n", rank, why.text);
    if (rank == 1)
        spy_on(&r)->all_reduce = third_sum_fails;
    err = parity_rank_step(&r, &result, &why);
    if (rank == 1)
        comm_abort(r.comm);
    bool right =
        rank == 1 ? err == ERR_IO && sums == 3 && strcmp(why.text, "all_reduce in reduce failed: the wire failed") == 0
                  : err == ERR_CANCELED && strcmp(why.text, "the epoch has ended") == 0;
    parity_rank_close(&r);
    return right ? 0 : SAY("rank %d: %s %s, %d sums\n", rank, err_name(err), why.text, sums);
}

TEST(a_queued_op_that_fails_is_named)
{
    fork_ranks(parity_llama, SETS("parallel.workers=2", "run.comm_thread=off"), one_fails);
    fork_ranks(parity_llama, SETS("parallel.workers=2", "run.comm_thread=on"), one_fails);
}

/* ---- ends ---- */

static _Atomic int cancel;

/* Ends the epoch as the link's thread does. */
static void end_epoch(struct parity_rank *r)
{
    atomic_store(&cancel, 1);
    comm_abort(r->comm);
}

static void *end_when_compute_sleeps(void *arg)
{
    struct parity_rank *r = arg;
    sleeps(&r->e.comm_thread->over);
    end_epoch(r);
    return NULL;
}

static int says_canceled(struct parity_rank *r, int rank, err_t err, const struct why *why)
{
    struct engine_result result;
    struct why again = {""};
    int bad = err != ERR_CANCELED || strcmp(why->text, "the epoch has ended") != 0;
    bad = bad || parity_rank_step(r, &result, &again) != ERR_CANCELED || r->e.step != 0;
    return bad ? SAY("rank %d: %s %s %s\n", rank, err_name(err), why->text, again.text) : 0;
}

/* Rank 1 never runs the step: rank 0's compute thread waits for its communication thread, which waits for rank 1. */
static int one_does_not_come(void *arg, int fd, int rank)
{
    struct parity_rank r;
    struct engine_result result;
    struct why why = {""};
    pthread_t link;
    err_t err = open_rank(&r, arg, fd, rank, &why);
    if (rank == 1 || err) {
        parity_rank_close(&r);
        return err ? SAY("rank %d: %s\n", rank, why.text) : 0;
    }
    r.e.config.cancel = &cancel;
    if (pthread_create(&link, NULL, end_when_compute_sleeps, &r))
        return SAY("no thread\n");
    err = parity_rank_step(&r, &result, &why);
    pthread_join(link, NULL);
    int bad = says_canceled(&r, rank, err, &why);
    parity_rank_close(&r);
    return bad;
}

TEST(an_epoch_ends_while_the_compute_thread_waits)
{
    fork_ranks(parity_llama, SETS("parallel.workers=2", "parallel.tp=2", "run.comm_thread=on"), one_does_not_come);
    fork_ranks(parity_llama, SETS("parallel.workers=2", "run.comm_thread=on"), one_does_not_come);
    fork_ranks(parity_llama, SETS("parallel.workers=2", "parallel.fsdp=2", "parallel.zero=3", "run.comm_thread=on"),
               one_does_not_come);
}

/* The epoch ends in the first sample, when nothing is queued yet. */
static err_t end_in_sample(void *arg, int64_t index, int32_t *ret_ids, int32_t *ret_targets)
{
    struct parity_rank *r = arg;
    sleeps(&r->e.comm_thread->queued);
    end_epoch(r);
    return parity_sample(&r->data, index, ret_ids, ret_targets);
}

static int ends_in_sample(void *arg, int fd, int rank)
{
    struct parity_rank r;
    struct engine_result result;
    struct why why = {""};
    err_t err = open_rank(&r, arg, fd, rank, &why);
    if (err)
        return SAY("rank %d: %s\n", rank, why.text);
    r.e.config.cancel = &cancel;
    err = engine_step(&r.e, &(struct engine_feed){.sample = end_in_sample, .arg = &r}, &result, &why);
    int bad = says_canceled(&r, rank, err, &why);
    parity_rank_close(&r);
    return bad;
}

TEST(an_epoch_ends_while_the_communication_thread_waits)
{
    fork_ranks(parity_llama, SETS("parallel.workers=2", "run.comm_thread=on"), ends_in_sample);
}

/* Rank 1, the second stage, cannot read its sample while it waits for a message that rank 0 does not send. */
static _Atomic int in_wait;

static err_t wait_seen(struct comm_group *g, int slot)
{
    atomic_store(&in_wait, 1);
    return sound->wait(g, slot);
}

static err_t flag_in_sample(void *arg, int64_t index, int32_t *ret_ids, int32_t *ret_targets)
{
    while (!atomic_load(&in_wait))
        sched_yield();
    atomic_store(&cancel, 1);
    return ERR_IO;
}

static int flagged_in_sample(void *arg, int fd, int rank)
{
    struct parity_rank r;
    struct engine_result result;
    struct why why = {""};
    err_t err = open_rank(&r, arg, fd, rank, &why);
    if (err)
        return SAY("rank %d: %s\n", rank, why.text);
    spy_on(&r)->wait = wait_seen;
    r.e.config.cancel = &cancel;
    if (rank == 1)
        err = engine_step(&r.e, &(struct engine_feed){.sample = flag_in_sample, .arg = &r}, &result, &why);
    bool right = rank == 1 ? err == ERR_CANCELED && atomic_load(&cancel) : err == OK;
    parity_rank_close(&r);
    return right ? 0 : SAY("rank %d: %s %s\n", rank, err_name(err), why.text);
}

TEST(an_end_before_the_abort_of_the_comm_leaves_no_thread_waiting)
{
    fork_ranks(parity_llama, SETS("parallel.workers=2", "parallel.pp=2", "run.comm_thread=on"), flagged_in_sample);
}

/* ---- several nodes ---- */

struct spread {
    struct parity_model m;
    struct parity_nodes nodes;
    struct parity_options options;
    int segment[2];
    struct parity_result *r;
};

#define STEPS 3

static int spread_rank(void *arg, int fd, int rank)
{
    const struct spread *s = arg;
    char why[512] = "no sentence";
    int rc = parity_run_rank(&s->m, s->segment[s->nodes.node_of[rank]], 1, rank, STEPS, &s->options, s->r, why);
    return rc ? SAY("rank %d: %s\n", rank, why) : 0;
}

static struct parity_result *run_spread(const char *backend, const char *thread)
{
    struct spread s = {.nodes = {.node_of = {0, 0, 1, 1}, .address = "127.0.0.1", .store = memory_store_new()}};
    s.options = (struct parity_options){.comm = backend, .nodes = &s.nodes};
    parity_model_init(&s.m, parity_llama,
                      SETS("parallel.workers=4", "parallel.fsdp=2", "parallel.pp=2", "parallel.zero=3", thread));
    s.r = parity_result_new(&s.m);
    for (int i = 0; i < 2; i++)
        assert_true((s.segment[i] = memfd_create("node", MFD_CLOEXEC)) >= 0);
    parity_fork((int)s.m.job.parallel.workers, spread_rank, &s);
    parity_model_fini(&s.m);
    close(s.segment[0]);
    close(s.segment[1]);
    return s.r;
}

static void same_bits_on_nodes(const char *backend)
{
    struct parity_result *without = run_spread(backend, "run.comm_thread=off");
    struct parity_result *with = run_spread(backend, "run.comm_thread=on");
    parity_compare_bits(without, with, STEPS);
    parity_result_free(without);
    parity_result_free(with);
}

TEST(ranks_on_two_nodes_over_tcp)
{
    same_bits_on_nodes("stream");
}

TEST(ranks_on_two_nodes_over_ucx)
{
    ranks_need_ucx();
    same_bits_on_nodes("ucx");
}
