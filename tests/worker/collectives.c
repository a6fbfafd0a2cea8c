/* See collectives.h. Ranks are forked processes, as in production. */
#include "tests/worker/collectives.h"

#include "tests/lib/test.h"
#include "tests/worker/memory_store.h"

#include "common/base/clock.h"

#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

#define MAX_RANKS 6
#define MAX_NODES 4

const char *ranks_backend = "shm";
struct kern_stream *ranks_stream;

/* The nodes of a case's ranks; NULL: all are on one node. Set before the ranks are forked. */
static const int *node_of;
static int node_segments[MAX_NODES];
static const int *numa_node_of; /* the same for NUMA nodes of one machine; NULL: one */
static struct memory_store *store;
static const uint8_t secret[32] = "an epoch's secret, for a test's";

int ranks_segment(void)
{
    int fd = memfd_create("test-comm", MFD_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

static void find_each_other(struct comm_config *config, struct memory_store_view *view)
{
    if (!node_of)
        return;
    config->store = memory_store_view_init(view, store, config->epoch);
    config->fd = node_segments[node_of[config->rank]];
    config->node_of = node_of;
    config->secret = secret;
    config->secret_bytes = sizeof(secret);
    config->address = "127.0.0.1";
}

int ranks_run_one(int fd, uint64_t epoch, int rank, int world, rank_fn fn)
{
    struct dev *dev = NULL;
    if (strcmp(ranks_backend, "staged") == 0 &&
        (dev_open("cpu", 0, &dev, NULL) || dev_stream_new(dev, 1, true, &ranks_stream, NULL)))
        return 4;
    struct comm_config config = {.backend = ranks_backend,
                                 .fd = fd,
                                 .dev = dev,
                                 .rank = rank,
                                 .world = world,
                                 .numa_node = numa_node_of ? numa_node_of[rank] : 0,
                                 .epoch = epoch,
                                 .shared_bytes = SHARED_BYTES,
                                 .timeout_ms = 20000};
    struct comm *c = NULL;
    struct comm_group *all = NULL;
    struct why why = {""};
    struct memory_store_view view;
    int ranks[16];
    find_each_other(&config, &view);
    for (int i = 0; i < world; i++)
        ranks[i] = i;
    if (comm_open(&config, &c, &why)) {
        fprintf(stderr, "rank %d: %s\n", rank, why.text);
        return 2;
    }
    int rc = comm_group_new(c, ranks, world, &all) ? 3 : fn(c, all, rank, world);
    if (rc && comm_why(c)[0])
        fprintf(stderr, "rank %d: %s\n", rank, comm_why(c));
    if (rc)
        comm_abort(c); /* the others must not wait for a rank that has failed */
    comm_group_free(all);
    comm_close(c);
    dev_stream_free(dev ? ranks_stream : NULL);
    dev_close(dev);
    return rc;
}

void ranks_run_forked(int fd, uint64_t epoch, int world, rank_fn fn)
{
    pid_t pid[16];
    int failed = 0;
    for (int r = 0; r < world; r++) {
        pid[r] = fork();
        assert_true(pid[r] >= 0);
        if (pid[r] == 0)
            _exit(ranks_run_one(fd, epoch, r, world, fn));
    }
    for (int r = 0; r < world; r++) {
        int status;
        assert_int_equal(waitpid(pid[r], &status, 0), pid[r]);
        failed += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    }
    assert_int_equal(failed, 0);
}

void ranks_run_worlds(rank_fn fn)
{
    for (int world = 1; world <= 5; world++) {
        int fd = ranks_segment();
        ranks_run_forked(fd, 1, world, fn);
        close(fd);
    }
}

bool ranks_on_nodes(void)
{
    return node_of != NULL;
}

bool ranks_ended(err_t err)
{
    return err == ERR_CANCELED || (node_of && err == ERR_CLOSED);
}

/* ---- nodes ---- */

/* Checks only whether the module exists: loading it here would initialize UCX in the parent of all ranks. */
void ranks_need_ucx(void)
{
    char path[4096];
    const char *bin = getenv("DTD_BIN");
    snprintf(path, sizeof(path), "%s/dtd-ucx.so", bin ? bin : ".");
    if (access(path, R_OK) == 0) {
        setenv("DTD_MODULE_DIR", bin ? bin : ".", 1);
        return;
    }
    fprintf(stderr, "skipped: %s is not built: it needs libucx-dev\n", path);
    _exit(77);
}

static void set_nodes(const char *backend, const int *nodes)
{
    if (strcmp(backend, "ucx") == 0)
        ranks_need_ucx();
    ranks_backend = backend;
    node_of = nodes;
    store = memory_store_new();
    for (int i = 0; i < MAX_NODES; i++)
        node_segments[i] = ranks_segment();
}

static void leave_nodes(void)
{
    for (int i = 0; i < MAX_NODES; i++)
        close(node_segments[i]);
    ranks_backend = "shm";
    node_of = NULL;
}

void ranks_run_nodes(const char *backend, rank_fn fn)
{
    static const struct {
        int world, node_of[MAX_RANKS];
    } layouts[] = {{4, {0, 0, 1, 1}}, {6, {0, 0, 1, 2, 2, 2}}, {4, {0, 1, 2, 3}}, {5, {0, 1, 0, 1, 1}}, {3, {0, 0, 0}}};
    for (size_t i = 0; i < COUNT(layouts); i++) {
        set_nodes(backend, layouts[i].node_of);
        ranks_run_forked(-1, 1, layouts[i].world, fn);
        leave_nodes();
    }
}

void ranks_run_numa(const int *nodes, int world, rank_fn fn)
{
    int fd = ranks_segment();
    numa_node_of = nodes;
    ranks_run_forked(fd, 1, world, fn);
    numa_node_of = NULL;
    close(fd);
}

void ranks_run_numa_nodes(rank_fn fn)
{
    static const struct {
        int world, numa_node_of[MAX_RANKS];
    } layouts[] = {{4, {0, 0, 1, 1}}, {6, {5, 5, 2, 2, 9, 9}}, {5, {0, 0, 1, 1, 1}}};
    for (size_t i = 0; i < COUNT(layouts); i++)
        ranks_run_numa(layouts[i].numa_node_of, layouts[i].world, fn);
}

void ranks_killed_on_nodes(const char *backend, rank_fn fn)
{
    static const int nodes[] = {0, 0, 1, 1};
    set_nodes(backend, nodes);
    ranks_killed(fn);
    leave_nodes();
}

/* ---- values ---- */

/* The nearest bfloat16, of two equally near ones the even one; x is small. */
static double to_half(double x)
{
    int power;
    frexp(x, &power);
    return ldexp(nearbyint(ldexp(x, 8 - power)), power - 8);
}

double ranks_value(int rank, int64_t i, enum dtype dtype)
{
    int64_t k = (i * 37 + rank * 101) % 1009 - 504;
    if (dtype == DT_BF16)
        return to_half((double)k / 7.0);
    return dtype == DT_F32 ? (double)((float)k / 7.0f) : dtype == DT_F64 ? (double)k / 7.0 : (double)(k * 1001);
}

static void put(void *x, int64_t i, enum dtype dtype, double v)
{
    switch (dtype) {
    case DT_F32:
        ((float *)x)[i] = (float)v;
        break;
    case DT_F64:
        ((double *)x)[i] = v;
        break;
    case DT_BF16: {
        float f = (float)v;
        memcpy((uint16_t *)x + i, (const uint16_t *)&f + 1, sizeof(uint16_t));
        break;
    }
    case DT_I32:
        ((int32_t *)x)[i] = (int32_t)v;
        break;
    default:
        ((int64_t *)x)[i] = (int64_t)v;
        break;
    }
}

double ranks_get(const void *x, int64_t i, enum dtype dtype)
{
    switch (dtype) {
    case DT_F32:
        return (double)((const float *)x)[i];
    case DT_F64:
        return ((const double *)x)[i];
    case DT_BF16: {
        uint16_t half[2] = {0, ((const uint16_t *)x)[i]};
        float f;
        memcpy(&f, half, sizeof(f));
        return (double)f;
    }
    case DT_I32:
        return ((const int32_t *)x)[i];
    default:
        return (double)((const int64_t *)x)[i];
    }
}

/* Reduces in rank order and rounds to the type after each step; bfloat16 to float32, and at the end to bfloat16. */
double ranks_oracle(const int *ranks, int n, int64_t i, enum dtype dtype, enum reduce_op op)
{
    double acc = ranks_value(ranks[0], i, dtype);
    for (int r = 1; r < n; r++) {
        double x = ranks_value(ranks[r], i, dtype);
        acc = op == REDUCE_MIN ? fmin(acc, x) : op == REDUCE_MAX ? fmax(acc, x) : acc + x;
        acc = dtype == DT_F32 || dtype == DT_BF16 ? (double)(float)acc : acc;
    }
    if (dtype == DT_BF16)
        return to_half(op == REDUCE_AVG ? (double)((float)acc / (float)n) : acc);
    if (op == REDUCE_AVG)
        acc = dtype == DT_F32 ? (double)((float)acc / (float)n) : dtype == DT_F64 ? acc / n : trunc(acc / n);
    return acc;
}

void ranks_fill(void *x, int64_t n, enum dtype dtype, int rank)
{
    for (int64_t i = 0; i < n; i++)
        put(x, i, dtype, ranks_value(rank, i, dtype));
}

static const enum dtype dtypes[] = {DT_F32, DT_F64, DT_I32, DT_I64, DT_BF16};
static const enum reduce_op ops[] = {REDUCE_SUM, REDUCE_MIN, REDUCE_MAX, REDUCE_AVG};
static const int64_t sizes[] = {0, 1, 3, 511, 1025, 33000, 100003}; /* small, with empty slices, several blocks */
const int ranks_everybody[] = {0, 1, 2, 3, 4, 5};

/* ---- all-reduce ---- */

int case_all_reduce(struct comm_group *g, void *x, int64_t n, enum dtype dtype, enum reduce_op op, int rank, int world)
{
    ranks_fill(x, n, dtype, rank);
    CHECK(comm_all_reduce(g, ranks_stream, x, n, dtype, op) == OK);
    for (int64_t i = 0; i < n; i++)
        CHECK(ranks_get(x, i, dtype) == ranks_oracle(ranks_everybody, world, i, dtype, op));
    return 0;
}

/* Over several nodes, where a call takes longer, only one operation of each type and size. */
int case_all_reduce_everything(struct comm *c, struct comm_group *all, int rank, int world)
{
    void *private = malloc(100003 * 8);
    int rc = private == NULL;
    for (size_t d = 0; d < COUNT(dtypes); d++)
        for (size_t o = 0; o < COUNT(ops); o++)
            for (size_t s = 0; s < COUNT(sizes); s++) {
                if (node_of && (d + s) % COUNT(ops) != o)
                    continue;
                rc = rc ? rc : case_all_reduce(all, private, sizes[s], dtypes[d], ops[o], rank, world);
                if (!rc && comm_shared(c))
                    rc = case_all_reduce(all, (char *)comm_shared(c) + 4096, sizes[s], dtypes[d], ops[o], rank, world);
            }
    free(private);
    return rc;
}

int case_nan(struct comm *c, struct comm_group *all, int rank, int world)
{
    (void)c;
    float x[2000];
    for (size_t o = 0; o < COUNT(ops); o++) {
        ranks_fill(x, 2000, DT_F32, rank);
        if (rank == world - 1)
            x[1234] = NAN;
        CHECK(comm_all_reduce(all, ranks_stream, x, 2000, DT_F32, ops[o]) == OK);
        CHECK(isnan(x[1234]) && !isnan(x[1233]));
    }
    return 0;
}

/* ---- the others ---- */

static int64_t make_counts(int pattern, int world, int64_t *counts)
{
    int64_t total = 0;
    for (int i = 0; i < world; i++) {
        counts[i] = pattern == 0 ? 1000 : pattern == 1 ? (i * 7919) % 5000 : i == world - 1 ? 70001 : 0;
        total += counts[i];
    }
    return total;
}

static int gather_case(struct comm *c, struct comm_group *all, int pattern, bool shared, enum dtype dtype, int rank,
                       int world)
{
    int64_t counts[16], total = make_counts(pattern, world, counts), at = 0;
    void *dst = malloc((size_t)(total + 1) * 8);
    void *src = shared ? comm_shared(c) : malloc((size_t)(counts[rank] + 1) * 8);
    CHECK(dst && src);
    ranks_fill(src, counts[rank], dtype, rank);
    CHECK(comm_all_gather(all, ranks_stream, src, dst, counts, dtype) == OK);
    for (int r = 0; r < world; r++)
        for (int64_t i = 0; i < counts[r]; i++, at++)
            CHECK(ranks_get(dst, at, dtype) == ranks_value(r, i, dtype));
    free(dst);
    if (!shared)
        free(src);
    return 0;
}

int case_gather_everything(struct comm *c, struct comm_group *all, int rank, int world)
{
    int rc = 0;
    for (size_t d = 0; d < COUNT(dtypes); d++)
        for (int pattern = 0; pattern < 3; pattern++)
            for (int shared = 0; shared <= (comm_shared(c) != NULL); shared++)
                rc = rc ? rc : gather_case(c, all, pattern, shared, dtypes[d], rank, world);
    return rc;
}

static int scatter_case(struct comm *c, struct comm_group *all, int pattern, bool shared, enum dtype dtype,
                        enum reduce_op op, int rank, int world)
{
    int64_t counts[16], total = make_counts(pattern, world, counts), skip = 0;
    void *src = shared ? comm_shared(c) : malloc((size_t)(total + 1) * 8);
    void *dst = malloc((size_t)(counts[rank] + 1) * 8);
    CHECK(dst && src);
    for (int r = 0; r < rank; r++)
        skip += counts[r];
    ranks_fill(src, total, dtype, rank);
    CHECK(comm_reduce_scatter(all, ranks_stream, src, dst, counts, dtype, op) == OK);
    for (int64_t i = 0; i < counts[rank]; i++)
        CHECK(ranks_get(dst, i, dtype) == ranks_oracle(ranks_everybody, world, skip + i, dtype, op));
    free(dst);
    if (!shared)
        free(src);
    return 0;
}

int case_scatter_everything(struct comm *c, struct comm_group *all, int rank, int world)
{
    int rc = 0;
    for (size_t d = 0; d < COUNT(dtypes); d++)
        for (size_t o = 0; o < COUNT(ops); o++)
            for (int pattern = 0; pattern < 3; pattern++)
                for (int shared = 0; shared <= (comm_shared(c) != NULL); shared++)
                    rc = rc || (node_of && (d + (size_t)pattern) % COUNT(ops) != o)
                             ? rc
                             : scatter_case(c, all, pattern, shared, dtypes[d], ops[o], rank, world);
    return rc;
}

int case_broadcast_everything(struct comm *c, struct comm_group *all, int rank, int world)
{
    static uint8_t private[400001];
    const int64_t lengths[] = {0, 1, 4097, 400001};
    for (size_t l = 0; l < COUNT(lengths); l++)
        for (int root = 0; root < world; root++)
            for (int shared = 0; shared <= (comm_shared(c) != NULL); shared++) {
                uint8_t *x = shared ? comm_shared(c) : private;
                for (int64_t i = 0; i < lengths[l]; i++)
                    x[i] = rank == root ? (uint8_t)(i * 31 + root) : 0xee;
                CHECK(comm_broadcast(all, ranks_stream, x, lengths[l], root) == OK);
                for (int64_t i = 0; i < lengths[l]; i++)
                    CHECK(x[i] == (uint8_t)(i * 31 + root));
            }
    return 0;
}

/* Every group of two or more of five ranks. A rank uses the groups of which it is a member, between collectives of all
 * ranks. */
int case_groups(struct comm *c, struct comm_group *all, int rank, int world)
{
    for (int mask = 1; mask < 1 << world; mask++) {
        int ranks[MAX_RANKS], n = 0;
        struct comm_group *g;
        float x[3000];
        for (int r = 0; r < world; r++)
            if (mask & 1 << r)
                ranks[n++] = r;
        CHECK(comm_group_new(c, ranks, n, &g) == OK);
        ranks_fill(x, 3000, DT_F32, rank);
        if (mask & 1 << rank) {
            CHECK(comm_all_reduce(g, ranks_stream, x, 3000, DT_F32, REDUCE_SUM) == OK);
            for (int i = 0; i < 3000; i++)
                CHECK((double)x[i] == ranks_oracle(ranks, n, i, DT_F32, REDUCE_SUM));
        }
        comm_group_free(g);
        if (mask % 7 == 0)
            CHECK(case_all_reduce(all, x, 3000, DT_F32, REDUCE_MAX, rank, world) == 0);
    }
    return 0;
}

int case_agree(struct comm *c, struct comm_group *all, int rank, int world)
{
    int64_t most = rank * 3 - 1, least = 10 - rank, sum = rank + ((int64_t)1 << 40);
    (void)c;
    CHECK(comm_agree(all, &most, REDUCE_MAX) == OK && most == (world - 1) * 3 - 1);
    CHECK(comm_agree(all, &least, REDUCE_MIN) == OK && least == 11 - world);
    CHECK(comm_agree(all, &sum, REDUCE_SUM) == OK);
    CHECK(sum == ((int64_t)world << 40) + world * (world - 1) / 2);
    return 0;
}

/* ---- places ---- */

#define PLACES_N 70001 /* more than a block of every type */

/* `shared`: the buffer lies in comm_shared, at a different offset on each rank. */
static void *place(struct comm *c, void *private, bool shared, int rank)
{
    return shared ? (uint8_t *)comm_shared(c) + 4096 * rank + 8 * (rank + 1) : private;
}

static int places_sum(struct comm *c, struct comm_group *all, void *private, int mixture, int64_t n, enum dtype dtype,
                      int rank, int world)
{
    void *x = place(c, private, mixture >> rank & 1, rank);
    int64_t counts[MAX_RANKS], skip = 0, total = 0;
    CHECK(case_all_reduce(all, x, n, dtype, REDUCE_SUM, rank, world) == 0);
    for (int r = 0; r < world; r++) {
        counts[r] = r == world - 1 ? n - total : n / (world + 2) * (r + 1) % (n / world + 1);
        skip += r < rank ? counts[r] : 0;
        total += counts[r];
    }
    CHECK(comm_barrier(all) == OK);
    ranks_fill(x, n, dtype, rank);
    uint8_t *own = (uint8_t *)x + (size_t)skip * dtype_bytes(dtype); /* in place */
    CHECK(comm_reduce_scatter(all, ranks_stream, x, own, counts, dtype, REDUCE_SUM) == OK);
    for (int64_t i = 0; i < counts[rank]; i++)
        CHECK(ranks_get(own, i, dtype) == ranks_oracle(ranks_everybody, world, skip + i, dtype, REDUCE_SUM));
    CHECK(comm_barrier(all) == OK);
    ranks_fill(own, counts[rank], dtype, rank);
    CHECK(comm_all_gather(all, ranks_stream, own, x, counts, dtype) == OK);
    total = 0;
    for (int r = 0; r < world; r++)
        for (int64_t i = 0; i < counts[r]; i++, total++)
            CHECK(ranks_get(x, total, dtype) == ranks_value(r, i, dtype));
    CHECK(comm_barrier(all) == OK);
    ranks_fill(x, n, dtype, rank);
    CHECK(comm_broadcast(all, ranks_stream, x, n * (int64_t)dtype_bytes(dtype), mixture % world) == OK);
    for (int64_t i = 0; i < n; i++)
        CHECK(ranks_get(x, i, dtype) == ranks_value(mixture % world, i, dtype));
    return comm_barrier(all);
}

int case_places(struct comm *c, struct comm_group *all, int rank, int world)
{
    static const int64_t lengths[] = {1, 1025, PLACES_N};
    void *private = malloc(PLACES_N * 8);
    int rc = private == NULL;
    for (int mixture = 0; mixture < 1 << world; mixture += node_of ? 3 : 1)
        for (size_t l = 0; l < COUNT(lengths); l++) {
            enum dtype dtype = dtypes[(mixture + (int)l) % 3];
            rc = rc ? rc : places_sum(c, all, private, mixture, lengths[l], dtype, rank, world);
        }
    free(private);
    return rc;
}

/* ---- bytes ---- */

/* The bytes that a call has received. */
static int64_t bytes_received(struct comm_group *g, int64_t *seen)
{
    int64_t before = *seen;
    *seen = comm_group_bytes(g);
    return *seen - before;
}

int case_bytes(struct comm *c, struct comm_group *all, int rank, int world)
{
    static double x[60 * 40], y[60 * 40];
    const int64_t n = 60 * 40, bytes = n * 8, moved = comm_bytes_moved(c); /* 60: 1 to 6 divide it */
    int64_t even[MAX_RANKS], uneven[MAX_RANKS] = {7, 0, 100, 31, 5, 2}, all_uneven = 0, seen = comm_group_bytes(all);
    struct comm_part parts[2] = {{0, 0, even}, {n / 2, n / 4, uneven}};
    for (int i = 0; i < world; i++) {
        even[i] = n / world;
        all_uneven += uneven[i];
    }
    CHECK(comm_all_reduce(all, ranks_stream, x, n, DT_F64, REDUCE_SUM) == OK);
    CHECK(bytes_received(all, &seen) == 2 * bytes * (world - 1) / world);
    CHECK(comm_all_gather(all, ranks_stream, x, y, even, DT_F64) == OK);
    CHECK(bytes_received(all, &seen) == bytes * (world - 1) / world);
    CHECK(comm_all_gather(all, ranks_stream, x, y, uneven, DT_F32) == OK);
    CHECK(bytes_received(all, &seen) == (all_uneven - uneven[rank]) * 4);
    CHECK(comm_reduce_scatter(all, ranks_stream, x, y, even, DT_F64, REDUCE_SUM) == OK);
    CHECK(bytes_received(all, &seen) == bytes * (world - 1) / world);
    CHECK(comm_broadcast(all, ranks_stream, x, 100, 0) == OK);
    CHECK(bytes_received(all, &seen) == (rank ? 100 : 0));
    for (int i = 0; i < world; i++)
        even[i] = 11; /* so that both parts fit */
    CHECK(comm_unit_gather(all, ranks_stream, x, y, parts, 2, DT_F64) == OK);
    CHECK(bytes_received(all, &seen) == ((world - 1) * 11 + all_uneven - uneven[rank]) * 8);
    CHECK(comm_unit_scatter(all, ranks_stream, x, y, parts, 2, DT_F64, true) == OK);
    CHECK(bytes_received(all, &seen) == (world - 1) * (11 + uneven[rank]) * 8);
    CHECK(comm_all_to_all(all, ranks_stream, x, even, y, even, DT_F64) == OK);
    CHECK(bytes_received(all, &seen) == (world - 1) * 11 * 8);
    int to = (rank + 1) % world, from = (rank + world - 1) % world;
    CHECK(comm_sendrecv(all, ranks_stream, x, 77, to, y, 77, from) == OK);
    CHECK(bytes_received(all, &seen) == (world > 1 ? 77 : 0));
    CHECK(comm_barrier(all) == OK && comm_agree(all, &all_uneven, REDUCE_SUM) == OK && bytes_received(all, &seen) == 0);
    CHECK(comm_bytes_moved(c) - moved == seen);
    return 0;
}

/* ---- ends ---- */

static void *abort_later(void *c)
{
    usleep(100000);
    comm_abort(c);
    return NULL;
}

/* The last rank is killed; the others wait for it in a collective until another thread aborts the comm. */
int case_killed(struct comm *c, struct comm_group *all, int rank, int world)
{
    pthread_t thread;
    float x[100] = {0};
    if (rank == world - 1)
        kill(getpid(), SIGKILL);
    if (rank == 0)
        CHECK(pthread_create(&thread, NULL, abort_later, c) == 0);
    CHECK(ranks_ended(comm_all_reduce(all, ranks_stream, x, 100, DT_F32, REDUCE_SUM)));
    CHECK(comm_barrier(all) == ERR_CANCELED);
    if (rank == 0)
        pthread_join(thread, NULL);
    return 0;
}

void ranks_killed(rank_fn fn)
{
    int fd = ranks_segment();
    pid_t pid[4];
    int64_t start = clock_mono_ms();
    for (int r = 0; r < 4; r++)
        if ((pid[r] = fork()) == 0)
            _exit(ranks_run_one(fd, 1, r, 4, fn));
    for (int r = 0; r < 4; r++) {
        int status;
        waitpid(pid[r], &status, 0);
        assert_true(r == 3 ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    assert_true(clock_mono_ms() - start < (ranks_on_nodes() ? 30000 : 5000));
    ranks_run_forked(fd, 2, 3, case_all_reduce_everything); /* and the segment serves the next epoch */
    close(fd);
}
