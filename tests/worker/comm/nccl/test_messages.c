/* Messages and all-to-all over NCCL: rings, exchanges between stages, early posts and late waits. */
#include "tests/worker/comm/nccl/ranks.h"

#include "common/base/clock.h"

static uint8_t word(int from, int to, int64_t number, int64_t i)
{
    uint64_t h = (uint64_t)i * 2654435761u + (uint64_t)number * 977 + (uint64_t)from * 131 + (uint64_t)to * 31;
    return (uint8_t)(h ^ h >> 17);
}

static void *made(struct rank *r, int64_t bytes, int from, int to, int64_t number)
{
    const size_t n = (size_t)bytes + 1;
    uint8_t *x = malloc(n);
    for (size_t i = 0; x && i < n; i++)
        x[i] = word(from, to, number, (int64_t)i);
    void *p = x ? rank_upload(r, x, n) : NULL;
    free(x);
    return p;
}

static int is_from(struct rank *r, const void *p, int64_t bytes, int from, int to, int64_t number)
{
    uint8_t *x = malloc((size_t)bytes + 1);
    CHECK(x && rank_download(r, x, p, (size_t)bytes + 1) == OK);
    for (int64_t i = 0; i < bytes; i++)
        CHECK(x[i] == word(from, to, number, i));
    free(x);
    return 0;
}

/* All ranks send first, and no send is buffered. */
static int ring(struct rank *r)
{
    static const int64_t lengths[] = {0, 1, 4096, 4097, 100003};
    int next = (r->rank + 1) % r->world, last = (r->rank + r->world - 1) % r->world;
    for (int s = 0; s < 5; s++) {
        int64_t before = comm_group_bytes(r->all);
        void *x = made(r, lengths[s], r->rank, next, s), *y = rank_upload(r, NULL, (size_t)lengths[s] + 1);
        CHECK(x && y);
        CHECK(comm_sendrecv(r->all, r->stream, x, lengths[s], next, y, lengths[s], last) == OK);
        CHECK(is_from(r, y, lengths[s], last, r->rank, s) == 0);
        CHECK(comm_group_bytes(r->all) - before == (r->world > 1 ? lengths[s] : 0));
        dev_free(r->dev, x, (size_t)lengths[s] + 1);
        dev_free(r->dev, y, (size_t)lengths[s] + 1);
    }
    return 0;
}

TEST(a_ring_step_of_any_length)
{
    ranks_need_device();
    for (int world = 1; world <= 4; world++)
        ranks_run_open(world, ring);
}

#define DEPTH 3
#define LENGTH 9001

/* All pairs of ranks, several messages in each direction, in a different order of posts and waits on every rank. */
static int exchange(struct rank *r, int round)
{
    void *x[4][DEPTH] = {{NULL}}, *y[4][DEPTH] = {{NULL}};
    struct comm_post out[4][DEPTH], in[4][DEPTH];
    for (int peer = 0; peer < r->world; peer++)
        for (int k = 0; k < DEPTH && peer != r->rank; k++) {
            x[peer][k] = made(r, LENGTH - 3000 * k, r->rank, peer, round * 10 + k);
            y[peer][k] = rank_upload(r, NULL, LENGTH + 1);
            CHECK(x[peer][k] && y[peer][k]);
        }
    for (int step = 0; step < r->world * DEPTH; step++) {
        int peer = (step + r->rank + round) % r->world, k = step / r->world;
        int64_t bytes = LENGTH - 3000 * k;
        if (peer == r->rank)
            continue;
        if (r->rank % 2)
            CHECK(comm_send_post(r->all, r->stream, x[peer][k], bytes, peer, &out[peer][k]) == OK);
        CHECK(comm_recv_post(r->all, r->stream, y[peer][k], bytes, peer, &in[peer][k]) == OK);
        if (r->rank % 2 == 0)
            CHECK(comm_send_post(r->all, r->stream, x[peer][k], bytes, peer, &out[peer][k]) == OK);
    }
    if (r->rank == round % 2)
        CHECK(comm_push(r->comm) == OK);
    for (int step = r->world * DEPTH - 1; step >= 0; step--) {
        int peer = (step * (r->world % 2 ? 1 : 3) + round) % r->world, k = step / r->world;
        if (peer == r->rank)
            continue;
        CHECK(comm_wait(r->all, out[peer][k]) == OK && comm_wait(r->all, in[peer][k]) == OK);
    }
    for (int peer = 0; peer < r->world; peer++)
        for (int k = 0; k < DEPTH && peer != r->rank; k++) {
            CHECK(is_from(r, y[peer][k], LENGTH - 3000 * k, peer, r->rank, round * 10 + k) == 0);
            dev_free(r->dev, x[peer][k], (size_t)(LENGTH - 3000 * k) + 1);
            dev_free(r->dev, y[peer][k], LENGTH + 1);
        }
    return 0;
}

static int exchanges(struct rank *r)
{
    int rc = 0;
    for (int round = 0; round < 4; round++)
        rc = rc ? rc : exchange(r, round);
    return rc;
}

TEST(posts_out_of_phase)
{
    ranks_need_device();
    for (int world = 1; world <= 4; world++)
        ranks_run_open(world, exchanges);
}

/* Four messages of different sizes from 0 to 1. Of the last two, the later one has the earlier slot, because each is
 * posted when the slot of a finished message is free. */
static int send_four(struct rank *r, void *const x[4])
{
    struct comm_post post[4];
    for (int k = 0; k < 2; k++)
        CHECK(comm_send_post(r->all, r->stream, x[k], 1000 - k, 1, &post[k]) == OK);
    for (int k = 2; k < 4; k++) {
        CHECK(comm_wait(r->all, post[3 - k]) == OK);
        CHECK(comm_send_post(r->all, r->stream, x[k], 1000 - k, 1, &post[k]) == OK);
    }
    CHECK(post[3].slot < post[2].slot);
    CHECK(comm_wait(r->all, post[3]) == OK && comm_wait(r->all, post[2]) == OK);
    return 0;
}

static int order(struct rank *r)
{
    void *x[4];
    for (int k = 0; k < 4; k++)
        CHECK((x[k] = r->rank ? rank_upload(r, NULL, 1001) : made(r, 1000 - k, 0, 1, k)) != NULL);
    if (r->rank == 0)
        CHECK(send_four(r, x) == 0);
    for (int k = 0; k < 4 && r->rank == 1; k++)
        CHECK(comm_recv(r->all, r->stream, x[k], 1000 - k, 0) == OK);
    for (int k = 0; k < 4 && r->rank == 1; k++)
        CHECK(is_from(r, x[k], 1000 - k, 0, 1, k) == 0);
    CHECK(dev_stream_sync(r->stream, &r->why) == OK);
    for (int k = 0; k < 4; k++)
        dev_free(r->dev, x[k], r->rank ? 1001 : (size_t)(1001 - k));
    return 0;
}

TEST(messages_keep_the_order_of_their_posts)
{
    ranks_need_device();
    ranks_run_open(2, order);
}

/* A ring made of groups of two, in which all ranks wait for their sends first. */
static int circle(struct rank *r)
{
    static const int pairs[3][2] = {{0, 1}, {1, 2}, {0, 2}};
    struct comm_group *g[3];
    struct comm_post out, in;
    int next = (r->rank + 1) % 3, last = (r->rank + 2) % 3;
    for (int i = 0; i < 3; i++)
        CHECK(comm_group_new(r->comm, pairs[i], 2, &g[i]) == OK);
    void *x = made(r, 5000, r->rank, next, 1), *y = rank_upload(r, NULL, 5001);
    CHECK(x && y);
    struct comm_group *forth = g[r->rank], *back = g[last];
    CHECK(comm_send_post(forth, r->stream, x, 5000, 1 - forth->me, &out) == OK);
    CHECK(comm_recv_post(back, r->stream, y, 5000, 1 - back->me, &in) == OK);
    CHECK(comm_wait(forth, out) == OK && comm_wait(back, in) == OK);
    CHECK(is_from(r, y, 5000, last, r->rank, 1) == 0);
    CHECK(comm_group_bytes(back) == 5000 && comm_group_bytes(forth) == 0);
    dev_free(r->dev, x, 5001);
    dev_free(r->dev, y, 5001);
    for (int i = 2; i >= 0; i--)
        comm_group_free(g[i]);
    return 0;
}

TEST(a_circle_of_groups)
{
    ranks_need_device();
    ranks_run_open(3, circle);
}

/* Two microbatches pass through a pipeline and their gradients back, with a collective of each stage's replicas in
 * between: groups of neighbours, everything on one stream, no wait on the host. */
static int pipeline(struct rank *r)
{
    static const int down[] = {0, 2}, down2[] = {1, 3}, up[] = {0, 1}, up2[] = {2, 3};
    const int *const lists[] = {down, down2, up, up2};
    struct comm_group *g[4], *pipe, *replicas;
    for (int i = 0; i < 4; i++)
        CHECK(comm_group_new(r->comm, lists[i], 2, &g[i]) == OK);
    pipe = g[r->rank % 2];
    replicas = g[2 + r->rank / 2];
    bool first = r->rank < 2;
    void *x[2], *y[2];
    for (int m = 0; m < 2; m++) {
        x[m] = made(r, 5000, r->rank, r->rank ^ 2, m);
        y[m] = rank_upload(r, NULL, 5001);
        CHECK(x[m] && y[m]);
    }
    float *sum = rank_upload(r, (const float[]){1, 2, 3, 4}, 16), host[4];
    CHECK(sum);
    for (int m = 0; m < 2; m++) {
        if (first)
            CHECK(comm_send(pipe, r->stream, x[m], 5000, 1) == OK);
        else
            CHECK(comm_recv(pipe, r->stream, y[m], 5000, 0) == OK);
        CHECK(comm_all_reduce(replicas, r->stream, sum, 4, DT_F32, REDUCE_SUM) == OK);
    }
    for (int m = 0; m < 2; m++) {
        if (first)
            CHECK(comm_recv(pipe, r->stream, y[m], 5000, 1) == OK);
        else
            CHECK(comm_send(pipe, r->stream, x[m], 5000, 0) == OK);
    }
    for (int m = 0; m < 2; m++)
        CHECK(is_from(r, y[m], 5000, r->rank ^ 2, r->rank, m) == 0);
    CHECK(rank_download(r, host, sum, 16) == OK && host[3] == 16);
    for (int m = 0; m < 2; m++) {
        dev_free(r->dev, x[m], 5001);
        dev_free(r->dev, y[m], 5001);
    }
    dev_free(r->dev, sum, 16);
    for (int i = 3; i >= 0; i--)
        comm_group_free(g[i]);
    return 0;
}

TEST(stages_and_replicas)
{
    ranks_need_device();
    ranks_run_open(4, pipeline);
}

/* ---- all-to-all ---- */

static int64_t pair_count(int pattern, int from, int to)
{
    return pattern == 0   ? 70
           : pattern == 1 ? (from * 79 + to * 1047) % 301 * (from != to + 1)
           : pattern == 2 ? 0
                          : 5000;
}

static int all_to_all(struct rank *r, int pattern)
{
    int64_t out[4], in[4], n_out = 0, n_in = 0;
    for (int i = 0; i < r->world; i++) {
        n_out += out[i] = pair_count(pattern, r->rank, i);
        n_in += in[i] = pair_count(pattern, i, r->rank);
    }
    uint8_t *host = malloc((size_t)(n_out + n_in) * 8 + 1), *at = host;
    CHECK(host);
    for (int i = 0; i < r->world; i++)
        for (int64_t k = 0; k < out[i] * 8; k++)
            *at++ = word(r->rank, i, pattern, k);
    void *x = rank_upload(r, host, (size_t)n_out * 8 + 1), *y = rank_upload(r, NULL, (size_t)n_in * 8 + 1);
    CHECK(x && y);
    CHECK(comm_all_to_all(r->all, r->stream, x, out, y, in, DT_F64) == OK);
    CHECK(rank_download(r, host, y, (size_t)n_in * 8) == OK);
    at = host;
    for (int i = 0; i < r->world; i++)
        for (int64_t k = 0; k < in[i] * 8; k++)
            CHECK(*at++ == word(i, r->rank, pattern, k));
    dev_free(r->dev, x, (size_t)n_out * 8 + 1);
    dev_free(r->dev, y, (size_t)n_in * 8 + 1);
    free(host);
    return 0;
}

static int all_to_alls(struct rank *r)
{
    int rc = 0;
    for (int pattern = 0; pattern < 4; pattern++)
        rc = rc ? rc : all_to_all(r, pattern);
    return rc;
}

TEST(all_to_all_matches_the_oracle)
{
    ranks_need_device();
    for (int world = 1; world <= 4; world++)
        ranks_run_open(world, all_to_alls);
}

/* ---- ends ---- */

static void *abort_main(void *comm)
{
    usleep(100000);
    comm_abort(comm);
    return NULL;
}

static int nobody_sends(struct rank *r)
{
    pthread_t id;
    struct comm_post post;
    void *y = rank_upload(r, NULL, 100);
    CHECK(y);
    if (r->rank == 0) {
        CHECK(pthread_create(&id, NULL, abort_main, r->comm) == 0);
        int64_t start = clock_mono_ms();
        err_t err = comm_recv(r->all, r->stream, y, 100, 1);
        err_t sync = dev_stream_sync(r->stream, &r->why);
        CHECK(clock_mono_ms() - start < 10000); /* whatever the two calls return */
        (void)err, (void)sync;
        pthread_join(id, NULL);
        CHECK(comm_recv_post(r->all, r->stream, y, 100, 1, &post) == ERR_CANCELED);
        CHECK(comm_send(r->all, r->stream, y, 100, 1) == ERR_CANCELED);
        atomic_fetch_add(&r->shared->counter[0], 1);
    }
    CHECK(rank_wait(r, 0, 1));
    comm_abort(r->comm);
    dev_free(r->dev, y, 100);
    return 0;
}

TEST(an_abort_ends_the_wait_for_a_message)
{
    ranks_need_device();
    ranks_run_open(2, nobody_sends);
}
