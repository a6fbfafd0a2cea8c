/* Failed openings and the end of epochs: errors name the missing ranks, an abort ends every waiting call, and nothing
 * is left over for the next epoch of the same process. */
#include "tests/worker/comm/nccl/ranks.h"

#include "common/base/clock.h"

static err_t sum(struct rank *r, struct comm_group *g)
{
    enum { N = 1000 };
    static const float ones[N] = {1};
    float *x = rank_upload(r, ones, sizeof(ones));
    err_t err = x ? comm_all_reduce(g, r->stream, x, N, DT_F32, REDUCE_SUM) : ERR_NOMEM;
    err_t sync = dev_stream_sync(r->stream, &r->why);
    dev_free(r->dev, x, sizeof(ones));
    return err ? err : sync;
}

struct aborter {
    struct comm *comm;
    int after_ms;
    pthread_t id;
};

static void *abort_main(void *arg)
{
    struct aborter *a = arg;
    usleep((unsigned)a->after_ms * 1000);
    comm_abort(a->comm);
    comm_abort(a->comm);
    return NULL;
}

static void abort_start(struct aborter *a, struct comm *comm, int after_ms)
{
    *a = (struct aborter){.comm = comm, .after_ms = after_ms};
    if (pthread_create(&a->id, NULL, abort_main, a))
        abort();
}

/* ---- beginnings ---- */

static int one_is_missing(struct rank *r)
{
    if (r->rank == 1)
        return 0;
    int64_t start = clock_mono_ms();
    CHECK(rank_open(r, 1, 300) == ERR_TIMEOUT);
    CHECK(strstr(r->why.text, "missing: 1"));
    CHECK(!strstr(r->why.text, "0, 1") && !strstr(r->why.text, "1, 2"));
    CHECK(clock_mono_ms() - start < 5000);
    return 0;
}

TEST(missing_ranks_are_named)
{
    ranks_need_device();
    ranks_run(3, one_is_missing);
}

static void *cancel_main(void *arg)
{
    struct rank *r = arg;
    usleep(100000);
    atomic_store(&r->cancel, 1);
    return NULL;
}

static int canceled(struct rank *r)
{
    pthread_t id;
    if (r->rank == 1)
        return 0;
    CHECK(pthread_create(&id, NULL, cancel_main, r) == 0);
    CHECK(rank_open(r, 1, 20000) == ERR_CANCELED);
    pthread_join(id, NULL);
    return 0;
}

TEST(waiting_for_ranks_can_be_canceled)
{
    ranks_need_device();
    ranks_run(2, canceled);
}

/* Rank 1 publishes its GPU and host, reads the id, and never calls NCCL. */
static int comes_halfway(struct rank *r, bool cancel)
{
    pthread_t id;
    int64_t start = clock_mono_ms();
    if (r->rank == 1) {
        const struct comm_store *s = &r->store;
        r->epoch = 1;
        (void)rank_open(r, 99, 1); /* only to get its store */
        r->epoch = 1;
        CHECK(s->put(s->arg, "nccl/here/1", "GPU-x host", 10, &r->why) == OK);
        return 0;
    }
    if (cancel)
        CHECK(pthread_create(&id, NULL, cancel_main, r) == 0);
    err_t err = rank_open(r, 1, cancel ? 20000 : 1500);
    CHECK(err == (cancel ? ERR_CANCELED : ERR_TIMEOUT));
    CHECK(strstr(r->why.text, "communicator of 2 ranks"));
    CHECK(clock_mono_ms() - start < 10000);
    if (cancel)
        pthread_join(id, NULL);
    return 0;
}

static int halfway_and_late(struct rank *r)
{
    return comes_halfway(r, false);
}

static int halfway_and_canceled(struct rank *r)
{
    return comes_halfway(r, true);
}

TEST(a_rank_that_never_joins_is_waited_for_until_the_deadline)
{
    ranks_need_device();
    ranks_run(2, halfway_and_late);
}

TEST(joining_can_be_canceled)
{
    ranks_need_device();
    ranks_run(2, halfway_and_canceled);
}

/* Two ranks share the machine's only GPU; with one GPU each, there is no note and no variable is set. */
static int sharing(struct rank *r)
{
    const char *devices = getenv("DTD_CUDA_HOST_DEVICES");
    bool share = !devices;
    CHECK((strstr(comm_note(r->comm), "ranks 0 and 1 share") != NULL) == share);
    CHECK((getenv("NCCL_HOSTID") != NULL) == share);
    CHECK((getenv("NCCL_SOCKET_IFNAME") != NULL) == share);
    return sum(r, r->all) != OK;
}

TEST(ranks_on_one_gpu_appear_as_separate_hosts)
{
    ranks_need_device();
    unsetenv("DTD_CUDA_HOST_DEVICES");
    ranks_run_open(2, sharing);
}

TEST(ranks_on_separate_gpus_are_not_changed)
{
    ranks_need_device();
    if (!getenv("DTD_CUDA_HOST"))
        TEST_SKIP("only the stand-ins can set the number of GPUs");
    setenv("DTD_CUDA_HOST_DEVICES", "2", 1);
    ranks_run_open(2, sharing);
}

/* ---- aborts ---- */

static int abort_in_collective(struct rank *r)
{
    struct aborter a;
    CHECK(sum(r, r->all) == OK);
    if (r->rank == 0) {
        abort_start(&a, r->comm, 100);
        int64_t start = clock_mono_ms();
        (void)sum(r, r->all); /* no other rank calls it */
        CHECK(clock_mono_ms() - start < 10000);
        pthread_join(a.id, NULL);
        CHECK(sum(r, r->all) == ERR_CANCELED);
        CHECK(comm_barrier(r->all) == ERR_CANCELED);
        CHECK(strstr(comm_why(r->comm), "aborted"));
        atomic_fetch_add(&r->shared->counter[0], 1);
    }
    CHECK(rank_wait(r, 0, 1)); /* no rank closes before the abort */
    comm_abort(r->comm);
    return 0;
}

TEST(an_abort_ends_the_wait_for_a_collective)
{
    ranks_need_device();
    ranks_run_open(2, abort_in_collective);
}

static int abort_in_barrier(struct rank *r)
{
    struct aborter a;
    int64_t x = 1;
    CHECK(comm_barrier(r->all) == OK);
    if (r->rank == 0) {
        abort_start(&a, r->comm, 100);
        CHECK(comm_agree(r->all, &x, REDUCE_SUM) == ERR_CANCELED);
        CHECK(x == 1);
        pthread_join(a.id, NULL);
        atomic_fetch_add(&r->shared->counter[0], 1);
    }
    CHECK(rank_wait(r, 0, 1));
    comm_abort(r->comm);
    return 0;
}

TEST(an_abort_ends_the_wait_in_a_barrier)
{
    ranks_need_device();
    ranks_run_open(3, abort_in_barrier);
}

static int abort_in_split(struct rank *r)
{
    static const int two[] = {0, 1};
    struct comm_group *g = NULL;
    struct aborter a;
    if (r->rank == 0) {
        abort_start(&a, r->comm, 100);
        CHECK(comm_group_new(r->comm, two, 2, &g) == ERR_CANCELED);
        pthread_join(a.id, NULL);
        atomic_fetch_add(&r->shared->counter[0], 1);
    }
    CHECK(rank_wait(r, 0, 1));
    comm_abort(r->comm);
    return 0;
}

TEST(an_abort_ends_the_wait_for_a_split)
{
    ranks_need_device();
    ranks_run_open(3, abort_in_split);
}

/* A rank exits without closing: close on the other ranks still returns. */
static int dies(struct rank *r)
{
    CHECK(sum(r, r->all) == OK);
    if (r->rank == 1) {
        atomic_fetch_add(&r->shared->counter[0], 1);
        _exit(0);
    }
    CHECK(rank_wait(r, 0, 1));
    struct aborter a;
    int64_t start = clock_mono_ms();
    abort_start(&a, r->comm, 200);
    (void)sum(r, r->all);
    pthread_join(a.id, NULL);
    CHECK(clock_mono_ms() - start < 10000);
    return 0;
}

TEST(a_killed_rank_hangs_no_rank)
{
    ranks_need_device();
    ranks_run_open(2, dies);
}

/* Aborts at random times during collectives, new groups and comm_agree: every call ends with an error. */
static int hammer(struct rank *r)
{
    static const int two[] = {0, 1};
    for (uint64_t epoch = 2; epoch < 10; epoch++) {
        struct comm_group *g = NULL;
        struct aborter a;
        err_t err = OK;
        CHECK(rank_open(r, epoch, 20000) == OK);
        abort_start(&a, r->comm, (int)(epoch * 5));
        for (int64_t x = 1; !err; x++) {
            err = sum(r, r->all);
            if (!err && !g)
                err = comm_group_new(r->comm, two, 2, &g);
            if (!err && r->rank < 2)
                err = sum(r, g);
            if (!err)
                err = comm_agree(r->all, &x, REDUCE_MAX);
        }
        CHECK(err == ERR_CANCELED);
        pthread_join(a.id, NULL);
        comm_group_free(g);
        rank_close(r);
        dev_stream_free(r->stream); /* its queue still has work of the aborted epoch */
        CHECK(dev_stream_new(r->dev, 0, false, &r->stream, &r->why) == OK);
    }
    return 0;
}

TEST(aborts_may_come_at_any_time)
{
    ranks_need_device();
    ranks_run(3, hammer);
}

/* ---- the next epoch ---- */

static int reopen(struct rank *r)
{
    int64_t comms, allocations, comms_before, allocations_before;
    static const int two[] = {0, 1};
    bool counted = ranks_count_live(&comms_before, &allocations_before);
    for (uint64_t epoch = 1; epoch <= 6; epoch++) {
        struct comm_group *g = NULL;
        CHECK(rank_open(r, epoch, 20000) == OK);
        CHECK(comm_group_new(r->comm, two, 2, &g) == OK);
        CHECK(sum(r, r->all) == OK);
        CHECK(r->rank > 1 || sum(r, g) == OK);
        if (epoch % 2) {
            CHECK(comm_barrier(r->all) == OK);
            comm_abort(r->comm);
        }
        comm_group_free(g);
        rank_close(r);
        CHECK(!counted || ranks_count_live(&comms, &allocations));
        CHECK(!counted || (comms == comms_before && allocations == allocations_before));
    }
    return 0;
}

TEST(a_process_goes_from_epoch_to_epoch)
{
    ranks_need_device();
    ranks_run(3, reopen);
}

/* ---- rejected calls ---- */

TEST(memory_of_the_host_is_refused)
{
    struct dev *cpu = NULL;
    struct comm *c = NULL;
    struct why why = {""};
    struct comm_store none = {0};
    assert_ok(dev_open("cpu", 0, &cpu, &why));
    struct comm_config config = {.backend = "nccl", .world = 1, .dev = cpu, .store = &none, .timeout_ms = 100};
    err_t err = comm_open(&config, &c, &why);
    if (err == ERR_UNSUPPORTED)
        TEST_SKIP("no module dtd-nccl.so");
    assert_err(ERR_INVALID, err);
    assert_non_null(strstr(why.text, "run.device: cuda"));
    dev_close(cpu);
}
