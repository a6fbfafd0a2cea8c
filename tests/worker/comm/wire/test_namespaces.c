/* Two ranks in separate network namespaces, connected by a pair of virtual links: collectives work, and when a link
 * goes down no rank hangs once the epoch is aborted. Skips without root and `ip`. */
#include "tests/lib/test.h"
#include "tests/worker/memory_store.h"
#include "worker/comm/comm.h"

#include "common/base/clock.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h> /* memfd_create */
#include <sys/wait.h>

#define N ((int64_t)4 << 20)

static const int nodes[] = {0, 1};
static const char *const addresses[] = {"10.231.77.1", "10.231.77.2"};
static struct memory_store *store;
static int segments[2];

struct rank {
    int number;
    struct comm *comm;
    struct comm_group *all;
    float *x;
};

static int run(const char *format, long number)
{
    char command[256];
    snprintf(command, sizeof(command), format, number);
    int status = system(command); /* built from constants and a number only */
    return WIFEXITED(status) ? WEXITSTATUS(status) : 255;
}

/* ---- the links ---- */

/* Sends a byte to the other rank and waits for its byte, through two pipes. */
static void meet(const int *pipes)
{
    char word = 'x';
    if (write(pipes[1], &word, 1) != 1 || read(pipes[0], &word, 1) != 1)
        _exit(9);
}

/* Rank 0 creates the pair of links and moves one end to rank 1's namespace. */
static int make_link(int number, pid_t peer, const int *pipes)
{
    int rc = 0;
    meet(pipes); /* both are in their namespaces */
    if (number == 0)
        rc = run("ip link add dtd0 type veth peer name dtd1 netns %ld 2>/dev/null", peer);
    meet(pipes);
    rc = rc ? rc
            : run(number ? "ip addr add 10.231.77.2/24 dev dtd%ld" : "ip addr add 10.231.77.1/24 dev dtd%ld", number);
    rc = rc ? rc : run("ip link set dtd%ld up", number);
    meet(pipes);
    return rc;
}

static void open_comm(struct rank *r)
{
    static const uint8_t secret[32] = "an epoch's secret";
    struct memory_store_view view;
    const int everybody[] = {0, 1};
    struct why why = {""};
    const struct comm_config config = {.backend = "stream",
                                       .fd = segments[r->number],
                                       .store = memory_store_view_init(&view, store, 1),
                                       .rank = r->number,
                                       .world = 2,
                                       .epoch = 1,
                                       .shared_bytes = 4096,
                                       .timeout_ms = 20000,
                                       .node_of = nodes,
                                       .secret = secret,
                                       .secret_bytes = sizeof(secret),
                                       .address = addresses[r->number]};
    err_t err = comm_open(&config, &r->comm, &why);
    err = err ? err : comm_group_new(r->comm, everybody, 2, &r->all);
    r->x = malloc((size_t)N * sizeof(float));
    if (err || !r->x) {
        fprintf(stderr, "rank %d: %s\n", r->number, why.text);
        _exit(3);
    }
}

static err_t sum(struct rank *r)
{
    for (int64_t i = 0; i < N; i++)
        r->x[i] = (float)(i % 1000 + r->number);
    err_t err = comm_all_reduce(r->all, NULL, r->x, N, DT_F32, REDUCE_SUM);
    for (int64_t i = 0; !err && i < N; i++)
        if (r->x[i] != (float)(2 * (i % 1000) + 1))
            _exit(4);
    return err;
}

/* ---- cases ---- */

static int pass(struct rank *r)
{
    for (int k = 0; k < 3; k++)
        if (sum(r))
            return 5;
    return comm_barrier(r->all) ? 6 : 0;
}

/* The link goes down in the middle of the second second; the abort follows when nothing moves any more. */
static void *cut_and_abort(void *arg)
{
    struct rank *r = arg;
    usleep(500000);
    if (r->number == 0)
        run("ip link set dtd%ld down", 0);
    usleep(1500000);
    comm_abort(r->comm);
    return NULL;
}

static int cut(struct rank *r)
{
    pthread_t thread;
    err_t err = sum(r);
    if (err || pthread_create(&thread, NULL, cut_and_abort, r))
        return 5;
    while (!err)
        err = sum(r);
    const int64_t noticed = clock_mono_ms();
    pthread_join(thread, NULL);
    if (err != ERR_CANCELED && err != ERR_CLOSED)
        return 6;
    return clock_mono_ms() - noticed > 15000 || comm_barrier(r->all) != ERR_CANCELED ? 7 : 0;
}

static int be_rank(int number, pid_t peer, const int *pipes, int (*fn)(struct rank *r))
{
    struct rank r = {.number = number};
    if (unshare(CLONE_NEWNET) || make_link(number, peer, pipes))
        return 77;
    open_comm(&r);
    int rc = fn(&r);
    comm_group_free(r.all);
    comm_close(r.comm);
    free(r.x);
    return rc;
}

static void run_pair(int (*fn)(struct rank *r))
{
    int there[2], back[2], status[2];
    pid_t pid[2];
    store = memory_store_new();
    assert_true(pipe(there) == 0 && pipe(back) == 0);
    for (int r = 0; r < 2; r++)
        assert_true((segments[r] = memfd_create("namespace", MFD_CLOEXEC)) >= 0);
    for (int r = 1; r >= 0; r--) {
        const int pipes[2] = {r ? there[0] : back[0], r ? back[1] : there[1]};
        if ((pid[r] = fork()) == 0)
            _exit(be_rank(r, r == 0 ? pid[1] : 0, pipes, fn)); /* rank 1 was first */
        assert_true(pid[r] > 0);
    }
    for (int r = 0; r < 2; r++)
        assert_int_equal(waitpid(pid[r], &status[r], 0), pid[r]);
    for (int r = 0; r < 2; r++) {
        if (WIFEXITED(status[r]) && WEXITSTATUS(status[r]) == 77)
            TEST_SKIP("network namespaces with a pair of links need root, `ip` and a kernel that has them");
        assert_true(WIFEXITED(status[r]) && WEXITSTATUS(status[r]) == 0);
    }
}

static void need_root(void)
{
    if (geteuid() != 0)
        TEST_SKIP("network namespaces need root");
}

TEST(collectives_pass_between_namespaces)
{
    need_root();
    run_pair(pass);
}

TEST(a_link_that_goes_down_hangs_no_rank)
{
    need_root();
    run_pair(cut);
}
