/* All-to-all and messages against an oracle that every rank computes itself: the data that one rank sends to another is
 * a function of the two ranks, a number and the index. */
#include "tests/lib/test.h"
#include "tests/worker/collectives.h"

#include "common/base/clock.h"
#include "worker/comm/backend.h"

#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))

static uint8_t word(int from, int to, int64_t number, int64_t i)
{
    uint64_t h = (uint64_t)i * 2654435761u + (uint64_t)number * 977 + (uint64_t)from * 131 + (uint64_t)to * 31;
    return (uint8_t)(h ^ h >> 17);
}

static void fill(uint8_t *x, int64_t bytes, int from, int to, int64_t number)
{
    for (int64_t i = 0; i < bytes; i++)
        x[i] = word(from, to, number, i);
}

static bool is_from(const uint8_t *x, int64_t bytes, int from, int to, int64_t number)
{
    for (int64_t i = 0; i < bytes; i++)
        if (x[i] != word(from, to, number, i))
            return false;
    return true;
}

/* ---- all-to-all ---- */

enum { EVEN, UNEVEN, ONE_PAIR, NOTHING, LARGE, PATTERNS };

/* Elements of 8 bytes from one member to another. */
static int64_t pair_count(int pattern, int from, int to, int n)
{
    switch (pattern) {
    case EVEN:
        return 700;
    case UNEVEN:
        return (from * 7919 + to * 104729) % 3001 * (from != to + 1);
    case ONE_PAIR:
        return from == n - 1 && to == 0 ? 50021 : 0;
    case LARGE:
        return 17000 + 4001 * from + 13 * to;
    default:
        return 0;
    }
}

static int exchange(struct comm_group *g, const int *ranks, int me, int pattern, uint8_t *src, int rank, int world)
{
    int64_t out[6], in[6], n_out = 0, n_in = 0;
    int n = 0;
    while (n < world && ranks[n] >= 0)
        n++;
    for (int i = 0; i < n; i++) {
        out[i] = pair_count(pattern, me, i, n);
        in[i] = pair_count(pattern, i, me, n);
        fill(src + n_out * 8, out[i] * 8, rank, ranks[i], pattern);
        n_out += out[i];
        n_in += in[i];
    }
    uint8_t *dst = malloc((size_t)n_in * 8 + 1), *at = dst;
    CHECK(dst);
    dst[n_in * 8] = 0x5a;
    CHECK(comm_all_to_all(g, ranks_stream, src, out, dst, in, DT_I64) == OK);
    for (int i = 0; i < n; at += in[i] * 8, i++)
        CHECK(is_from(at, in[i] * 8, ranks[i], rank, pattern));
    CHECK(*at == 0x5a);
    free(dst);
    return 0;
}

/* Over shm: all combinations of ranks that send from shared bytes, at different offsets, and from private memory. */
static int all_to_all_case(struct comm *c, struct comm_group *all, int rank, int world)
{
    uint8_t *private = malloc((size_t)8 << 20);
    int ranks[6] = {-1, -1, -1, -1, -1, -1};
    CHECK(private);
    memcpy(ranks, ranks_everybody, (size_t)world * sizeof(int));
    for (int pattern = 0; pattern < PATTERNS; pattern++)
        for (int mixture = 0; mixture < (comm_shared(c) ? 1 << world : 1); mixture++) {
            bool shared = mixture >> rank & 1;
            uint8_t *src = shared ? (uint8_t *)comm_shared(c) + 64 * rank : private;
            if (pattern == LARGE && mixture % 5)
                continue;
            CHECK(exchange(all, ranks, rank, pattern, src, rank, world) == 0);
        }
    free(private);
    return 0;
}

TEST(all_to_all_matches_the_oracle)
{
    ranks_run_worlds(all_to_all_case);
}

static int groups_case(struct comm *c, struct comm_group *all, int rank, int world)
{
    uint8_t *src = malloc((size_t)8 << 20), y[2];
    CHECK(src);
    for (int mask = 1; mask < 1 << world; mask++) {
        int ranks[6] = {-1, -1, -1, -1, -1, -1}, n = 0, me = 0;
        struct comm_group *g;
        for (int r = 0; r < world; r++)
            if (mask >> r & 1)
                me = r < rank ? me + 1 : me, ranks[n++] = r;
        CHECK(comm_group_new(c, ranks, n, &g) == OK);
        if (mask >> rank & 1) {
            CHECK(exchange(g, ranks, me, UNEVEN, src, rank, world) == 0);
            int next = (me + 1) % n, last = (me + n - 1) % n;
            fill(src, 2, rank, ranks[next], mask);
            CHECK(comm_sendrecv(g, ranks_stream, src, 2, next, y, 2, last) == OK);
            CHECK(is_from(y, 2, ranks[last], rank, mask));
        }
        comm_group_free(g);
    }
    free(src);
    return comm_barrier(all);
}

TEST(all_to_all_and_rings_of_any_group)
{
    ranks_run_worlds(groups_case);
}

/* Returns when all ranks have left comm_open, so that a case that aborts does not make it fail. */
static void all_opened(struct comm_group *all)
{
    if (comm_barrier(all))
        fprintf(stderr, "the first barrier saw what came after it\n"); /* legal: the epoch ended meanwhile */
}

static int counts_differ(struct comm *c, struct comm_group *all, int rank, int world)
{
    int64_t out[6] = {0}, in[6] = {0};
    static int32_t x[64], y[64];
    if (world == 1)
        return 0;
    all_opened(all);
    out[1] = rank == 0 ? 5 : 0;
    in[0] = rank == 1 ? 4 : 0;
    err_t err = comm_all_to_all(all, ranks_stream, x, out, y, in, DT_I32);
    CHECK(rank == 1 ? err == ERR_INVALID && strstr(comm_why(c), "20 bytes") : err == OK || ranks_ended(err));
    CHECK(ranks_ended(comm_barrier(all)));
    return 0;
}

TEST(counts_that_differ_end_the_comm)
{
    ranks_run_worlds(counts_differ);
}

/* ---- messages ---- */

static const int64_t sizes[] = {0, 1, 63, 4096, 65535, 65536, 65537, 262144, 262145, 700001};
#define LONGEST 700001

/* Around a ring, in which all ranks send first; also in shared bytes at odd offsets. */
static int ring_case(struct comm *c, struct comm_group *all, int rank, int world)
{
    uint8_t *x = malloc(LONGEST), *y = malloc(LONGEST);
    int next = (rank + 1) % world, last = (rank + world - 1) % world;
    CHECK(x && y);
    for (size_t s = 0; s < COUNT(sizes); s++)
        for (int mode = 0; mode < (comm_shared(c) ? 3 : 1); mode++) {
            uint8_t *src = mode ? (uint8_t *)comm_shared(c) + 17 : x;
            uint8_t *dst = mode == 2 ? (uint8_t *)comm_shared(c) + 800001 : y;
            fill(src, sizes[s], rank, next, (int64_t)s);
            memset(dst, 0xee, LONGEST);
            CHECK(comm_sendrecv(all, ranks_stream, src, sizes[s], next, dst, sizes[s], last) == OK);
            CHECK(is_from(dst, sizes[s], last, rank, (int64_t)s));
            memset(src, 0, LONGEST); /* the buffer may be written again */
        }
    free(x);
    free(y);
    return comm_barrier(all);
}

TEST(a_ring_step_of_any_length)
{
    ranks_run_worlds(ring_case);
}

/* The two directions of a pair have different sizes, and the message back is longer than a lane holds. */
static int uneven_ring_case(struct comm *c, struct comm_group *all, int rank, int world)
{
    static uint8_t x[1100000], y[1100000];
    int next = (rank + 1) % world, last = (rank + world - 1) % world;
    (void)c;
    if (world == 1)
        return 0;
    int64_t out = rank * 200003, in = last * 200003;
    for (int round = 0; round < 5; round++) {
        fill(x, out, rank, next, round);
        CHECK(comm_sendrecv(all, ranks_stream, x, out, next, y, in, last) == OK);
        CHECK(is_from(y, in, last, rank, round));
    }
    return 0;
}

TEST(a_ring_of_uneven_parts)
{
    ranks_run_worlds(uneven_ring_case);
}

static int64_t length_of(int from, int to, int number)
{
    unsigned part = (unsigned)(number * 7919 + from * 131 + to * 17) % 997;
    return part * (number % 50 == 0 ? 300 : 1);
}

/* Along the chain of ranks and back, with many more messages than slots. */
static int chain_case(struct comm *c, struct comm_group *all, int rank, int world)
{
    static uint8_t x[400000];
    (void)c;
    for (int k = 0; k < 400; k++) {
        int64_t bytes = length_of(0, 0, k);
        if (rank > 0)
            CHECK(comm_recv(all, ranks_stream, x, bytes, rank - 1) == OK && is_from(x, bytes, 0, 0, k));
        else
            fill(x, bytes, 0, 0, k);
        if (rank < world - 1) {
            CHECK(comm_send(all, ranks_stream, x, bytes, rank + 1) == OK);
            memset(x, 0, (size_t)bytes);
        }
    }
    return comm_barrier(all);
}

TEST(messages_come_in_order)
{
    ranks_run_worlds(chain_case);
}

#define DEPTH 5

/* All pairs of ranks exchange messages, with DEPTH in flight in each direction; every rank posts them and waits for
 * them in a different order. */
static int phases_case(struct comm *c, struct comm_group *all, int rank, int world)
{
    enum { LENGTH = 290001 }; /* several chunks in every backend; the shorter messages are one chunk */
    const size_t all_bytes = (size_t)world * DEPTH * LENGTH;
    uint8_t *x = malloc(all_bytes), *y = malloc(all_bytes);
    struct comm_post out[6][DEPTH], in[6][DEPTH];
    CHECK(x && y);
    for (int round = 0; round < 6; round++) {
        for (int step = 0; step < world * DEPTH; step++) {
            int peer = (step + rank + round) % world, k = step / world;
            size_t at = (size_t)(peer * DEPTH + k) * LENGTH;
            int64_t bytes = LENGTH - 90000 * (k % 4);
            bool late = (rank + round) % 2;
            if (peer == rank)
                continue;
            fill(x + at, bytes, rank, peer, round * 100 + k);
            if (late)
                CHECK(comm_send_post(all, ranks_stream, x + at, bytes, peer, &out[peer][k]) == OK);
            CHECK(comm_recv_post(all, ranks_stream, y + at, bytes, peer, &in[peer][k]) == OK);
            if (!late)
                CHECK(comm_send_post(all, ranks_stream, x + at, bytes, peer, &out[peer][k]) == OK);
        }
        for (int step = world * DEPTH - 1; step >= 0; step--) {
            int peer = (step * (rank % 2 ? 1 : 3) + round) % world, k = step / world;
            size_t at = (size_t)(peer * DEPTH + k) * LENGTH;
            if (world % 3 == 0)
                peer = (step + rank) % world, at = (size_t)(peer * DEPTH + k) * LENGTH;
            if (peer == rank)
                continue;
            CHECK(comm_wait(all, in[peer][k]) == OK);
            CHECK(is_from(y + at, LENGTH - 90000 * (k % 4), peer, rank, round * 100 + k));
            CHECK(comm_wait(all, out[peer][k]) == OK);
        }
    }
    free(x);
    free(y);
    (void)c;
    return comm_barrier(all);
}

TEST(posts_out_of_phase)
{
    ranks_run_worlds(phases_case);
}

/* Each rank first waits for a message that depends on a later post of its peer: rank 0 sends a large message to 1, and
 * after it the message that 2 needs; 1 receives from 0 only after a message from 2, which sends only after the message
 * from 0. */
static int crossing_case(struct comm *c, struct comm_group *all, int rank, int world)
{
    static uint8_t x[600000];
    uint8_t y = 0;
    struct comm_post much, little;
    (void)c;
    if (world < 3)
        return 0;
    if (rank == 0) {
        fill(x, sizeof(x), 0, 1, 9);
        CHECK(comm_send_post(all, ranks_stream, x, sizeof(x), 1, &much) == OK);
        CHECK(comm_send_post(all, ranks_stream, x, 1, 2, &little) == OK);
        CHECK(comm_wait(all, much) == OK && comm_wait(all, little) == OK);
    } else if (rank == 1) {
        CHECK(comm_recv(all, ranks_stream, &y, 1, 2) == OK && y == word(0, 1, 9, 0));
        CHECK(comm_recv(all, ranks_stream, x, sizeof(x), 0) == OK && is_from(x, sizeof(x), 0, 1, 9));
    } else if (rank == 2) {
        CHECK(comm_recv(all, ranks_stream, &y, 1, 0) == OK);
        CHECK(comm_send(all, ranks_stream, &y, 1, 1) == OK);
    }
    return comm_barrier(all);
}

TEST(a_full_lane_holds_up_no_other)
{
    ranks_run_worlds(crossing_case);
}

/* Each rank sends to the next, which posts its receive late. A rank enters a barrier when it has received its message,
 * without having waited for its send; the next rank enters the barrier only when it has that message. Long messages are
 * sent in many pieces. */
static int pushed_case(struct comm *c, struct comm_group *all, int rank, int world)
{
    static const int64_t lengths[] = {0, 1, 5000, 4000037};
    const int next = (rank + 1) % world, last = (rank + world - 1) % world;
    if (world == 1)
        return 0;
    CHECK(comm_push(c) == OK);
    for (size_t i = 0; i < COUNT(lengths); i++) {
        uint8_t *x = malloc((size_t)lengths[i] + 1), *y = malloc((size_t)lengths[i] + 1);
        struct comm_post out, in;
        CHECK(x && y);
        fill(x, lengths[i], rank, next, (int64_t)i);
        CHECK(comm_send_post(all, ranks_stream, x, lengths[i], next, &out) == OK);
        usleep(rank == 1 ? 20000 : 0);
        CHECK(comm_recv_post(all, ranks_stream, y, lengths[i], last, &in) == OK);
        CHECK(comm_push(c) == OK);
        CHECK(comm_wait(all, in) == OK && is_from(y, lengths[i], last, rank, (int64_t)i));
        CHECK(comm_barrier(all) == OK && comm_wait(all, out) == OK);
        free(x);
        free(y);
    }
    return 0;
}

TEST(a_pushed_message_arrives_without_its_sender)
{
    ranks_run_worlds(pushed_case);
}

static int limit_case(struct comm *c, struct comm_group *all, int rank, int world)
{
    static uint8_t y[COMM_POSTS + 1];
    struct comm_post post[COMM_POSTS], more;
    (void)c;
    if (world != 2)
        return 0;
    for (int i = 0; i < COMM_POSTS; i++)
        CHECK(comm_recv_post(all, ranks_stream, &y[i], 1, 1 - rank, &post[i]) == OK);
    CHECK(comm_recv_post(all, ranks_stream, &y[COMM_POSTS], 1, 1 - rank, &more) == ERR_LIMIT);
    CHECK(comm_send_post(all, ranks_stream, &y[COMM_POSTS], 1, 1 - rank, &more) == ERR_LIMIT);
    for (int i = 0; i < COMM_POSTS; i++) {
        uint8_t x = (uint8_t)(i + rank);
        CHECK(comm_send(all, ranks_stream, &x, 1, 1 - rank) == OK);
    }
    for (int i = COMM_POSTS - 1; i >= 0; i--)
        CHECK(comm_wait(all, post[i]) == OK && y[i] == (uint8_t)(i + 1 - rank));
    CHECK(comm_recv_post(all, ranks_stream, &y[0], 1, 1 - rank, &more) == OK);
    CHECK(comm_send(all, ranks_stream, &y[1], 1, 1 - rank) == OK);
    return comm_wait(all, more);
}

TEST(posts_are_bounded)
{
    ranks_run_worlds(limit_case);
}

static int lengths_differ(struct comm *c, struct comm_group *all, int rank, int world)
{
    uint8_t x[64] = {0};
    if (world == 1)
        return 0;
    all_opened(all);
    if (rank == 0)
        CHECK(comm_send(all, ranks_stream, x, 20, 1) == OK || ranks_ended(comm_barrier(all)));
    if (rank == 1)
        CHECK(comm_recv(all, ranks_stream, x, 21, 0) == ERR_INVALID && strstr(comm_why(c), "of 20 bytes"));
    CHECK(ranks_ended(comm_barrier(all)));
    return 0;
}

TEST(lengths_that_differ_end_the_comm)
{
    ranks_run_worlds(lengths_differ);
}

/* The segment's lanes are empty at the start of the next epoch, even if the last one left messages. */
static int leave_some(struct comm *c, struct comm_group *all, int rank, int world)
{
    uint8_t x = 1;
    struct comm_post post;
    (void)c;
    for (int i = 0; i < 3 && rank == 0 && world > 1; i++)
        CHECK(comm_send_post(all, ranks_stream, &x, 1, 1, &post) == OK);
    return comm_barrier(all);
}

TEST(an_epoch_starts_with_empty_lanes)
{
    int fd = ranks_segment();
    for (uint64_t epoch = 1; epoch <= 18; epoch += 2) {
        ranks_run_forked(fd, epoch, 2 + (int)(epoch % 3), leave_some);
        ranks_run_forked(fd, epoch + 1, 2 + (int)(epoch % 3), chain_case);
    }
    close(fd);
}

/* Byte counters: messages are counted at the receiver. */
static int bytes_case(struct comm *c, struct comm_group *all, int rank, int world)
{
    static uint8_t x[100000], y[100000];
    const int64_t before = comm_bytes_moved(c);
    if (world < 2)
        return 0;
    CHECK(comm_sendrecv(all, ranks_stream, x, 100000, (rank + 1) % world, y, 100000, (rank + world - 1) % world) == OK);
    CHECK(comm_bytes_moved(c) - before == 100000);
    int64_t counts[6] = {10, 10, 10, 10, 10, 10};
    CHECK(comm_all_to_all(all, ranks_stream, x, counts, y, counts, DT_F64) == OK);
    CHECK(comm_bytes_moved(c) - before == 100000 + 80 * (world - 1));
    return 0;
}

TEST(payload_is_counted)
{
    ranks_run_worlds(bytes_case);
}

/* ---- ends ---- */

static void *abort_later(void *c)
{
    usleep(100000);
    comm_abort(c);
    return NULL;
}

/* The last rank is killed while messages are in flight: one rank waits to receive, one to send more than a lane holds,
 * one in an all-to-all. A message of the killed rank may have arrived completely if its receiver was early; then the
 * next message does not arrive. */
static int killed_case(struct comm *c, struct comm_group *all, int rank, int world)
{
    static uint8_t x[4 << 20];
    struct comm_post post;
    pthread_t thread;
    int64_t counts[6] = {100, 100, 100, 100, 100, 100};
    int victim = world - 1;
    if (rank == victim) {
        err_t sent = comm_send_post(all, ranks_stream, x, 1 << 20, 0, &post);
        CHECK(sent == OK || ranks_ended(sent)); /* if this rank is late, rank 0 has aborted already */
        kill(getpid(), SIGKILL);
    }
    if (rank == 0)
        CHECK(pthread_create(&thread, NULL, abort_later, c) == 0);
    err_t err = rank == 0   ? comm_recv(all, ranks_stream, x, 1 << 20, victim)
                : rank == 1 ? comm_send(all, ranks_stream, x, 1 << 20, victim)
                            : comm_all_to_all(all, ranks_stream, x, counts, x + 8000, counts, DT_F32);
    if (rank < 2 && !err) /* a transport may buffer all of it */
        err = comm_recv(all, ranks_stream, x, 1 << 20, victim);
    CHECK(ranks_ended(err));
    CHECK(comm_recv_post(all, ranks_stream, x, 1, victim, &post) == ERR_CANCELED);
    CHECK(comm_send(all, ranks_stream, x, 1, (rank + 1) % 3) == ERR_CANCELED);
    CHECK(comm_all_to_all(all, ranks_stream, x, counts, x + 8000, counts, DT_F32) == ERR_CANCELED);
    if (rank == 0)
        pthread_join(thread, NULL);
    return 0;
}

static void killed(void)
{
    int fd = ranks_segment();
    pid_t pid[4];
    int64_t start = clock_mono_ms();
    for (int r = 0; r < 4; r++)
        if ((pid[r] = fork()) == 0)
            _exit(ranks_run_one(fd, 1, r, 4, killed_case));
    for (int r = 0; r < 4; r++) {
        int status;
        waitpid(pid[r], &status, 0);
        assert_true(r == 3 ? WIFSIGNALED(status) : WIFEXITED(status) && WEXITSTATUS(status) == 0);
    }
    assert_true(clock_mono_ms() - start < (ranks_on_nodes() ? 30000 : 5000));
    ranks_run_forked(fd, 2, 4, phases_case); /* the next epoch can use the segment */
    close(fd);
}

TEST(a_killed_rank_hangs_no_message)
{
    killed();
}

/* ---- nodes ---- */

static int exchanges(struct comm *c, struct comm_group *all, int rank, int world)
{
    int rc = all_to_all_case(c, all, rank, world);
    return rc ? rc : groups_case(c, all, rank, world);
}

static int messages(struct comm *c, struct comm_group *all, int rank, int world)
{
    static const rank_fn cases[] = {ring_case,     uneven_ring_case, chain_case, phases_case,
                                    crossing_case, pushed_case,      bytes_case};
    int rc = 0;
    for (size_t i = 0; i < COUNT(cases); i++)
        rc = rc ? rc : cases[i](c, all, rank, world);
    return rc;
}

TEST(all_to_all_over_stream)
{
    ranks_run_nodes("stream", exchanges);
}

TEST(all_to_all_over_ucx)
{
    ranks_run_nodes("ucx", exchanges);
}

TEST(messages_over_stream)
{
    ranks_run_nodes("stream", messages);
}

TEST(messages_over_ucx)
{
    ranks_run_nodes("ucx", messages);
}

TEST(different_lengths_end_the_comm_over_stream)
{
    ranks_run_nodes("stream", counts_differ);
    ranks_run_nodes("stream", lengths_differ);
}

TEST(different_lengths_end_the_comm_over_ucx)
{
    ranks_run_nodes("ucx", counts_differ);
    ranks_run_nodes("ucx", lengths_differ);
}

TEST(a_killed_rank_hangs_no_message_over_stream)
{
    ranks_killed_on_nodes("stream", killed_case);
}

TEST(a_killed_rank_hangs_no_message_over_ucx)
{
    ranks_killed_on_nodes("ucx", killed_case);
}

/* ---- a backend without ---- */

TEST(a_backend_without_messages_is_named)
{
    static const struct comm_backend bare = {.name = "bare"};
    struct comm c = {.backend = &bare, .world = 2};
    int ranks[2] = {0, 1};
    struct comm_group g = {.comm = &c, .n = 2, .ranks = ranks};
    struct comm_post post;
    uint8_t x = 0, y;
    int64_t counts[2] = {1, 1};
    assert_err(ERR_UNSUPPORTED, comm_send(&g, NULL, &x, 1, 1));
    assert_non_null(strstr(comm_why(&c), "\"bare\" has no messages"));
    assert_err(ERR_UNSUPPORTED, comm_recv_post(&g, NULL, &y, 1, 1, &post));
    assert_err(ERR_UNSUPPORTED, comm_sendrecv(&g, NULL, &x, 1, 0, &y, 1, 0));
    assert_err(ERR_UNSUPPORTED, comm_all_to_all(&g, NULL, &x, counts, &y, counts, DT_U8));
}

/* ---- staged ---- */

static void run_staged(rank_fn fn)
{
    ranks_backend = "staged";
    ranks_run_worlds(fn);
    ranks_backend = "shm";
}

TEST(staged_all_to_all_matches_the_oracle)
{
    run_staged(all_to_all_case);
    run_staged(groups_case);
    run_staged(counts_differ);
}

TEST(staged_messages_match_the_oracle)
{
    run_staged(ring_case);
    run_staged(uneven_ring_case);
    run_staged(chain_case);
    run_staged(pushed_case);
    run_staged(bytes_case);
}

TEST(staged_messages_out_of_phase)
{
    run_staged(phases_case);
    run_staged(crossing_case);
    run_staged(limit_case);
    run_staged(lengths_differ);
}

static int staged_over_nodes(struct comm *c, struct comm_group *all, int rank, int world)
{
    int rc = ring_case(c, all, rank, world);
    return rc ? rc : phases_case(c, all, rank, world);
}

TEST(staged_messages_between_nodes)
{
    ranks_run_nodes("staged", staged_over_nodes);
}

TEST(a_killed_rank_hangs_no_staged_message)
{
    ranks_backend = "staged";
    killed();
    ranks_backend = "shm";
}

/* ---- ranks as threads, for the thread sanitizer ---- */

struct thread_rank {
    int fd, rank, rc;
    rank_fn fn;
};

static void *thread_main(void *arg)
{
    struct thread_rank *t = arg;
    t->rc = ranks_run_one(t->fd, 1, t->rank, 3, t->fn);
    return NULL;
}

static int as_thread(struct comm *c, struct comm_group *all, int rank, int world)
{
    int rc = all_to_all_case(c, all, rank, world);
    rc = rc ? rc : phases_case(c, all, rank, world);
    return rc ? rc : ring_case(c, all, rank, world);
}

TEST(ranks_may_be_threads)
{
    struct thread_rank t[3];
    pthread_t thread[3];
    int fd = ranks_segment();
    for (int r = 0; r < 3; r++) {
        t[r] = (struct thread_rank){fd, r, 0, as_thread};
        assert_int_equal(pthread_create(&thread[r], NULL, thread_main, &t[r]), 0);
    }
    for (int r = 0; r < 3; r++) {
        pthread_join(thread[r], NULL);
        assert_int_equal(t[r].rc, 0);
    }
    close(fd);
}
